//! TLS, implemented with rustls. A [`TlsSource`] converts the settings of the program to a rustls configuration. Each
//! connection has a [`TlsStream`], which encrypts and decrypts bytes between the session and the socket. The code in
//! this directory does not depend on sessions or locks.

mod failure;
mod files;
mod loaded;
mod pem;
mod private_key;
mod provider;
mod settings;
mod source;
mod stream;
#[cfg(test)]
mod tests;
mod verifier;

pub(super) use failure::{is_plain_text, is_refusal};
pub(crate) use settings::{TlsSettings, Verification};
pub(crate) use source::TlsSource;
pub(super) use stream::TlsStream;
