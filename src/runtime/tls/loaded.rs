//! A TLS configuration loaded from the files named in the settings, and the client's certificate. All
//! connections share this configuration until one of the files changes. The code in this file does not read the files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, Error, SignatureScheme};

use crate::runtime::sync::{Mutex, lock};

/// A configuration that is ready for connections.
pub(super) struct LoadedTls {
    config: Mutex<Arc<ClientConfig>>,
    verifier: Arc<dyn ServerCertVerifier>,
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
    pub(super) fn new(
        config: ClientConfig,
        verifier: Arc<dyn ServerCertVerifier>,
        identity: Arc<ClientIdentity>,
        min_version: &'static str,
    ) -> Self {
        Self { config: Mutex::new(Arc::new(config)), verifier, identity, min_version }
    }

    /// Returns the configuration of the next connection.
    pub(super) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&lock(&self.config))
    }

    /// Verifies a server that has resumed a TLS session. Such a server sends no certificate, and rustls verifies nothing.
    /// But the certificates of the session, or a revocation list, may have expired meanwhile. After a failure, the client
    /// resumes no earlier TLS session, so that the server can prove itself with a new certificate.
    pub(super) fn verify_resumed(&self, sent: &[CertificateDer<'_>], name: &ServerName<'_>) -> Result<(), Error> {
        let config = self.config();
        let now = config.time_provider.current_time().ok_or(Error::FailedToGetCurrentTime)?;
        let (first, others) = sent.split_first().ok_or(Error::NoCertificatesPresented)?;
        let verified = self.verifier.verify_server_cert(first, others, name, &[], now);
        if verified.is_err() {
            let mut fresh = ClientConfig::clone(&config);
            fresh.resumption = Resumption::default();
            *lock(&self.config) = Arc::new(fresh);
        }
        verified.map(drop)
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
