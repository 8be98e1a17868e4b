//! The SASL mechanisms with which a client proves its identity: DIGEST-MD5, and GSSAPI through the Kerberos library of the
//! system. This crate knows no sessions and no threads, and reads no file itself.
//!
//! Few clients use SASL, so this crate is built for size. A function that the optimizer copied into a crate that is built
//! for speed would grow, so large public functions are `inline(never)`.
//!
//! The items of this crate may change in any release. Programs use the crate `zklock`.

#![deny(missing_docs)]

mod digest_md5;
mod gss_library;
mod gssapi;
mod jaas;
mod settings;

pub use digest_md5::DigestMd5;
pub use gssapi::{Gssapi, start_gssapi};
pub use jaas::{DigestLogin, Login, parse_jaas};
pub use settings::{JAAS_FILE, KerberosLogin, Mechanism, SaslSettings};
