//! The TLS settings that the program has set for a client. The code in this file does not read the files that the
//! settings name.

use std::fmt;
use std::path::PathBuf;

use rustls::SupportedProtocolVersion;
use rustls::pki_types::ServerName;
use zeroize::Zeroizing;
use zklock_core::error::{Error, Result};

static TLS13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];
static TLS13_AND_TLS12: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];

/// The values of the options that begin with `tls.`.
#[derive(Clone, Default)]
pub(crate) struct TlsSettings {
    pub(crate) enabled: Option<bool>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) key_password: Option<Zeroizing<String>>,
    pub(crate) key_password_file: Option<PathBuf>,
    pub(crate) crl: Option<PathBuf>,
    pub(crate) verification: Option<Verification>,
    pub(crate) server_name: Option<ServerName<'static>>,
    /// True if the program accepts only TLS 1.3, false if it also accepts TLS 1.2.
    pub(crate) requires_tls13: Option<bool>,
    /// The client uses this value if `requires_tls13` is not set.
    pub(crate) requires_tls13_by_default: Option<bool>,
}

/// Selects what the client verifies about a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Verification {
    /// The certificate chain and the name of the server.
    #[default]
    Full,
    /// The certificate chain only.
    Chain,
    /// Neither the certificate chain nor the name. The server must only prove that it owns the private key of its
    /// certificate.
    None,
}

impl TlsSettings {
    /// Sets the name that the certificates of the servers must contain. Returns `None` if a certificate cannot contain
    /// the name.
    pub(crate) fn set_server_name(&mut self, name: &str) -> Option<()> {
        self.server_name = Some(ServerName::try_from(name.to_owned()).ok()?);
        Some(())
    }

    /// Returns whether the client uses TLS. If the program has not set `tls.enabled`, setting any other TLS option
    /// turns TLS on.
    pub(crate) fn is_enabled(&self) -> bool {
        let any_path = [&self.ca, &self.cert, &self.key, &self.key_password_file, &self.crl];
        self.enabled.unwrap_or_else(|| {
            any_path.iter().any(|path| path.is_some())
                || self.key_password.is_some()
                || self.verification.is_some()
                || self.server_name.is_some()
                || self.requires_tls13.is_some()
                || self.requires_tls13_by_default.is_some()
        })
    }

    /// Fails with INVALID if two options contradict each other, or one option needs another option.
    pub(crate) fn check(&self) -> Result<()> {
        let needs = |option: &str, other: &str| Err(Error::invalid(format!("option {option} needs option {other}")));
        let has_password = self.key_password.is_some() || self.key_password_file.is_some();
        match (&self.cert, &self.key) {
            (Some(_), None) => return needs("tls.cert", "tls.key; both may name the same file"),
            (None, Some(_)) => return needs("tls.key", "tls.cert; both may name the same file"),
            (None, None) if self.key_password.is_some() => return needs("tls.key_password", "tls.key"),
            (None, None) if has_password => return needs("tls.key_password_file", "tls.key"),
            _ => {}
        }
        if self.key_password.is_some() && self.key_password_file.is_some() {
            return Err(Error::invalid("options tls.key_password and tls.key_password_file exclude each other"));
        }
        // Without `tls.ca`, the client would trust all public CAs. An attacker can also get a certificate from a public
        // CA, for the attacker's own domain.
        if self.is_enabled() && self.verification == Some(Verification::Chain) && self.ca.is_none() {
            return needs(
                "tls.verify = ca (zookeeper.ssl.hostnameVerification = false)",
                "tls.ca: without it, the client would accept every server with a certificate of a public CA, for any name",
            );
        }
        Ok(())
    }

    /// The TLS versions that the client offers.
    pub(super) fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        if self.requires_tls13() { TLS13 } else { TLS13_AND_TLS12 }
    }

    /// Returns the oldest TLS version that the client accepts, as text for messages.
    pub(super) fn min_version(&self) -> &'static str {
        if self.requires_tls13() { "1.3" } else { "1.2" }
    }

    fn requires_tls13(&self) -> bool {
        self.requires_tls13.or(self.requires_tls13_by_default).unwrap_or_default()
    }
}

impl fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The output omits the password.
        f.debug_struct("TlsSettings")
            .field("enabled", &self.is_enabled())
            .field("ca", &self.ca)
            .field("cert", &self.cert)
            .field("key", &self.key)
            .field("crl", &self.crl)
            .field("verification", &self.verification.unwrap_or_default())
            .field("server_name", &self.server_name)
            .field("min_version", &self.min_version())
            .finish_non_exhaustive()
    }
}
