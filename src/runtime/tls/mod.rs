//! TLS, with rustls. The settings of a program become a rustls configuration ([`TlsSource`]), and each connection gets a
//! [`TlsStream`], which encrypts and decrypts between the session and the socket. This directory knows no sessions and
//! no locks.

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

pub(super) use failure::is_refusal;
pub(crate) use settings::{TlsSettings, Verification};
pub(crate) use source::TlsSource;
pub(super) use stream::TlsStream;
