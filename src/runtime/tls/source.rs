//! The TLS configuration of a client. A [`TlsSource`] reads the files named in the settings, and reads a file again
//! after the file has changed. While the files stay the same, all connections share one configuration, so that TLS
//! sessions are resumed. The code in this file does not encrypt bytes.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{ResolvesClientCert, VerifierBuilderError, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, ClientConfig, InconsistentKeys, RootCertStore};
use zeroize::Zeroizing;
use zklock_core::error::{Error, Result};
use zklock_core::session::Server;

use super::failure;
use super::files::{self, NamedFile, Stamps};
use super::loaded::{ClientIdentity, LoadedTls};
use super::private_key::{KeyPassword, read_private_key};
use super::provider::provider;
use super::settings::{TlsSettings, Verification};
use super::stream::TlsStream;
use super::verifier::{AnyCertificate, AnyName};
use crate::runtime::file::{quote_file, read_regular_file, warn_if_exposed};
use crate::runtime::report;
use crate::runtime::sync::{Mutex, lock};

/// The largest allowed size of a password file, in bytes.
const PASSWORD_LIMIT: usize = 4096;

/// The TLS settings of a client, and the configuration that was last loaded from the files named in them.
pub(crate) struct TlsSource {
    settings: TlsSettings,
    provider: Arc<CryptoProvider>,
    /// The CA certificates of the system. The source reads these certificates at most once.
    system_roots: Mutex<Option<Arc<RootCertStore>>>,
    loaded: Mutex<Option<Loaded>>,
}

struct Loaded {
    stamps: Stamps,
    tls: Arc<LoadedTls>,
}

impl TlsSource {
    /// Creates the TLS source of a client. Returns `None` if the settings do not turn TLS on. The caller must have
    /// checked the settings.
    pub(crate) fn new(settings: &TlsSettings) -> Option<Self> {
        if !settings.is_enabled() {
            return None;
        }
        if settings.verification == Some(Verification::None) {
            report::unverified_servers();
        }
        Some(Self {
            settings: settings.clone(),
            provider: provider(),
            system_roots: Mutex::new(None),
            loaded: Mutex::new(None),
        })
    }

    /// Reads the files named in the settings, unless they are unchanged since the last call. If this call fails, the
    /// source keeps the configuration of the last successful call. The call blocks while it reads files.
    ///
    /// Errors: INVALID if a file is not usable; the message names the option and the file. EXHAUSTED if the process or
    /// the machine has no file descriptors left.
    pub(crate) fn load(&self) -> Result<()> {
        // A file can change while this call reads it. In this case, the next call computes different stamps.
        let stamps = self.stamps();
        if lock(&self.loaded).as_ref().is_some_and(|loaded| loaded.stamps == stamps) {
            return Ok(());
        }
        let tls = Arc::new(self.read()?);
        *lock(&self.loaded) = Some(Loaded { stamps, tls });
        Ok(())
    }

    /// Returns whether a call of [`load`](Self::load) has succeeded.
    pub(in crate::runtime) fn is_loaded(&self) -> bool {
        lock(&self.loaded).is_some()
    }

    #[cfg(test)]
    pub(super) fn loaded_config(&self) -> Option<Arc<ClientConfig>> {
        lock(&self.loaded).as_ref().map(|loaded| loaded.tls.config())
    }

    /// Starts TLS for a connection to a server, with the configuration that was loaded last.
    pub(in crate::runtime) fn start(&self, server: &Server) -> std::io::Result<TlsStream> {
        let name = match &self.settings.server_name {
            Some(name) => name.clone(),
            None => {
                // The zone of an IPv6 address is a name of this machine, so a certificate does not contain it.
                let host = server.host.split('%').next().unwrap_or_default().to_owned();
                ServerName::try_from(host).map_err(|_| {
                    failure::refusal("its name cannot occur in a certificate; set tls.server_name to a name that can")
                })?
            }
        };
        let Some(tls) = lock(&self.loaded).as_ref().map(|loaded| Arc::clone(&loaded.tls)) else {
            return Err(failure::failure("the TLS files were not loaded"));
        };
        TlsStream::start(tls, name)
    }

    fn stamps(&self) -> Stamps {
        let TlsSettings { ca, cert, key, key_password_file, crl, .. } = &self.settings;
        let mut stamps = Stamps::default();
        [ca, cert, key, key_password_file, crl].into_iter().flatten().for_each(|path| stamps.add(path));
        stamps
    }

    fn read(&self) -> Result<LoadedTls> {
        let verifier = self.verifier()?;
        let identity = Arc::new(ClientIdentity::new(self.certified_key()?));
        let config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(self.settings.versions())
            .map_err(|error| Error::invalid(format!("option tls.min_version: {error}")))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&verifier))
            .with_client_cert_resolver(Arc::clone(&identity) as Arc<dyn ResolvesClientCert>);
        Ok(LoadedTls::new(config, verifier, identity, self.settings.min_version()))
    }

    fn verifier(&self) -> Result<Arc<dyn ServerCertVerifier>> {
        let verification = self.settings.verification.unwrap_or_default();
        if verification == Verification::None {
            return Ok(Arc::new(AnyCertificate(Arc::clone(&self.provider))));
        }
        let mut builder = WebPkiServerVerifier::builder_with_provider(self.roots()?, Arc::clone(&self.provider))
            .enforce_revocation_expiration();
        if let Some(crl) = named("tls.crl", self.settings.crl.as_deref()) {
            builder = builder.with_crls(crl.revocation_lists()?);
        }
        let verifier = builder.build().map_err(|error| match error {
            VerifierBuilderError::InvalidCrl(error) => {
                Error::invalid(format!("option tls.crl: a revocation list of the file is not valid ({error:?})"))
            }
            error => Error::invalid(format!("option tls.ca: {error}")),
        })?;
        Ok(if verification == Verification::Full { verifier } else { Arc::new(AnyName(verifier)) })
    }

    fn roots(&self) -> Result<Arc<RootCertStore>> {
        if let Some(ca) = named("tls.ca", self.settings.ca.as_deref()) {
            return Ok(Arc::new(files::read_roots(ca)?));
        }
        if let Some(roots) = &*lock(&self.system_roots) {
            return Ok(Arc::clone(roots));
        }
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let cause = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
            return Err(Error::invalid(format!(
                "option tls.ca is not set, and the system has no CA certificates{cause}; set tls.ca to the file of the CA"
            )));
        }
        let roots = Arc::new(roots);
        *lock(&self.system_roots) = Some(Arc::clone(&roots));
        Ok(roots)
    }

    fn certified_key(&self) -> Result<Option<Arc<CertifiedKey>>> {
        let TlsSettings { cert, key, .. } = &self.settings;
        let (Some(cert), Some(key)) = (named("tls.cert", cert.as_deref()), named("tls.key", key.as_deref())) else {
            return Ok(None);
        };
        let chain = cert.certificates()?;
        let signing_key = read_private_key(key, self.key_password()?.as_ref(), &self.provider)?;
        let certified_key = CertifiedKey::new(chain, signing_key);
        match certified_key.keys_match() {
            // Some providers cannot compute the public key that belongs to a private key.
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
                Ok(Some(Arc::new(certified_key)))
            }
            Err(rustls::Error::InconsistentKeys(_)) => {
                Err(key
                    .refuse(&format!("does not belong to the first certificate of tls.cert {}", quote_file(cert.path))))
            }
            Err(rustls::Error::InvalidCertificate(CertificateError::BadEncoding)) => {
                Err(cert.refuse("begins with a certificate that is not valid X.509"))
            }
            // The library cannot compare some certificates with the key, for example certificates of X.509 version 1.
            // Servers accept such certificates of clients.
            Err(_) => Ok(Some(Arc::new(certified_key))),
        }
    }

    fn key_password(&self) -> Result<Option<KeyPassword>> {
        if let Some(password) = &self.settings.key_password {
            let password = Zeroizing::new(password.as_bytes().to_vec());
            return Ok(Some(KeyPassword { option: "tls.key_password", password }));
        }
        let Some(file) = &self.settings.key_password_file else { return Ok(None) };
        let mut password = read_regular_file("tls.key_password_file", file, PASSWORD_LIMIT)?;
        warn_if_exposed("tls.key_password_file", file);
        let length = password.len() - password.iter().rev().take_while(|byte| b"\r\n".contains(byte)).count();
        password.truncate(length);
        Ok(Some(KeyPassword { option: "tls.key_password_file", password }))
    }
}

fn named<'a>(option: &'static str, path: Option<&'a Path>) -> Option<NamedFile<'a>> {
    path.map(|path| NamedFile { option, path })
}

impl fmt::Debug for TlsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSource").field("settings", &self.settings).finish_non_exhaustive()
    }
}
