//! The TLS cryptography provider that the features of this crate select. The library passes this provider to each
//! rustls configuration. The library never installs a provider for the whole process, because the program may use
//! rustls itself.

use std::sync::Arc;

use rustls::Error;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::SigningKey;

#[cfg(not(any(feature = "ring", feature = "aws-lc-rs", feature = "rustls-openssl")))]
compile_error!("zklock needs one of the features ring, aws-lc-rs and rustls-openssl");

/// The cryptography that the Cargo features select: `rustls-openssl` if it is enabled, otherwise `aws-lc-rs`, otherwise
/// `ring`.
pub(super) fn provider() -> Arc<CryptoProvider> {
    #[cfg(feature = "rustls-openssl")]
    let provider = rustls_openssl::default_provider();
    #[cfg(all(feature = "aws-lc-rs", not(feature = "rustls-openssl")))]
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    #[cfg(all(feature = "ring", not(any(feature = "aws-lc-rs", feature = "rustls-openssl"))))]
    let provider = rustls::crypto::ring::default_provider();
    Arc::new(provider)
}

/// Creates a signing key from a private key. This function only borrows `key`, so the caller can erase it later.
/// `KeyProvider::load_private_key` would take ownership of `key`.
pub(super) fn signing_key(
    provider: &CryptoProvider,
    key: &PrivateKeyDer<'static>,
) -> Result<Arc<dyn SigningKey>, Error> {
    let _ = provider;
    #[cfg(feature = "rustls-openssl")]
    let signing_key = provider.key_provider.load_private_key(key.clone_key());
    #[cfg(all(feature = "aws-lc-rs", not(feature = "rustls-openssl")))]
    let signing_key = rustls::crypto::aws_lc_rs::sign::any_supported_type(key);
    #[cfg(all(feature = "ring", not(any(feature = "aws-lc-rs", feature = "rustls-openssl"))))]
    let signing_key = rustls::crypto::ring::sign::any_supported_type(key);
    signing_key
}
