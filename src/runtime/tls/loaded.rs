//! A TLS configuration loaded from the files named in the settings, and the client's certificate. All
//! connections share this configuration until one of the files changes. The code in this file does not read the files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, SignatureScheme};

/// A configuration that is ready for connections.
pub(super) struct LoadedTls {
    pub(super) config: Arc<ClientConfig>,
    identity: Arc<ClientIdentity>,
    pub(super) min_version: &'static str,
}

/// The certificate and the private key of the client, if it has any.
#[derive(Debug)]
pub(super) struct ClientIdentity {
    certified_key: Option<Arc<CertifiedKey>>,
    /// True if a server has asked the client for a certificate.
    is_requested: AtomicBool,
}

impl LoadedTls {
    pub(super) fn new(config: ClientConfig, identity: Arc<ClientIdentity>, min_version: &'static str) -> Self {
        Self { config: Arc::new(config), identity, min_version }
    }

    /// Returns whether the client has a certificate.
    pub(super) fn has_certificate(&self) -> bool {
        self.identity.certified_key.is_some()
    }

    /// Returns whether a server has asked the client for a certificate.
    pub(super) fn is_certificate_requested(&self) -> bool {
        self.identity.is_requested.load(Ordering::Relaxed)
    }
}

impl ClientIdentity {
    pub(super) fn new(certified_key: Option<Arc<CertifiedKey>>) -> Self {
        Self { certified_key, is_requested: AtomicBool::new(false) }
    }
}

impl ResolvesClientCert for ClientIdentity {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.is_requested.store(true, Ordering::Relaxed);
        self.certified_key.clone().filter(|key| key.key.choose_scheme(schemes).is_some())
    }

    fn has_certs(&self) -> bool {
        self.certified_key.is_some()
    }
}
