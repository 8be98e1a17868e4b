//! SASL, with which a client proves its identity. A [`SaslSource`] makes a mechanism for each connection from the
//! settings. The session uses the mechanism after its handshake with the server.

mod digest_md5;
mod gss_library;
mod gssapi;
mod jaas;
mod settings;

use std::fs::File;
use std::path::Path;

use uuid::Uuid;
use zeroize::Zeroizing;
use zklock_core::error::{Error, Result, Status};
use zklock_core::session::{SaslMechanism, Server};

use self::digest_md5::{DigestMd5, DigestUser};
use self::gss_library::{GssContext, GssCredentials, GssLibrary, GssName};
use self::gssapi::Gssapi;
use self::jaas::{DigestLogin, Login};
use self::settings::KerberosLogin;
pub(crate) use self::settings::{JAAS_FILE, Mechanism, SaslSettings};
use super::file::{quote_file, read_regular_file, remove_newline, warn_if_exposed};

const NO_TICKET: &str = "get a ticket with kinit, or set sasl.keytab";
const PASSWORD_FILE: &str = "sasl.password_file";
/// The section of a client in a JAAS file, as in ZooKeeper's own client.
const DEFAULT_JAAS_SECTION: &str = "Client";
/// The maximum size of a JAAS file, in bytes.
const JAAS_LIMIT: usize = 64 * 1024;
/// The maximum length of a password, in bytes.
const PASSWORD_LIMIT: usize = 4096;

/// The SASL settings of a client.
pub(crate) struct SaslSource(SaslSettings);

impl SaslSource {
    /// Creates the source of a client. Returns `None` if the settings do not request SASL. The caller must have checked
    /// the settings.
    pub(crate) fn new(settings: &SaslSettings) -> Option<Self> {
        settings.is_enabled().then(|| Self(settings.clone()))
    }

    /// Returns whether [`load`](Self::load) can block.
    pub(super) fn can_block(&self) -> bool {
        self.0.mechanism == Some(Mechanism::Gssapi) || self.0.password_file.is_some() || self.0.jaas_file.is_some()
    }

    /// Returns whether the mechanisms for different servers differ.
    pub(super) fn depends_on_server(&self) -> bool {
        // The JAAS file can request Kerberos.
        self.0.mechanism != Some(Mechanism::DigestMd5) && self.0.host().is_none()
    }

    /// Returns the source's name for use in messages.
    pub(super) fn name(&self) -> String {
        if self.0.mechanism == Some(Mechanism::Gssapi) {
            return "the Kerberos ticket".to_owned();
        }
        match (&self.0.password_file, &self.0.jaas_file) {
            (Some(file), _) => format!("{PASSWORD_FILE} {}", quote_file(file)),
            (None, Some(file)) => format!("{JAAS_FILE} {}", quote_file(file)),
            (None, None) => "sasl.password".to_owned(),
        }
    }

    /// Makes the mechanism for a connection. The call blocks while it reads a file, or while it asks a KDC. If the
    /// mechanism depends on the server, and the server is not known yet, the call only checks that the client can get a
    /// ticket, and returns `None`.
    ///
    /// Errors: INVALID or EXHAUSTED if a file cannot be read, AUTH if Kerberos fails, UNSUPPORTED if the Kerberos
    /// library is missing.
    pub(super) fn load(&self, server: Option<&Server>) -> Result<Option<Box<dyn SaslMechanism>>> {
        let settings = &self.0;
        let login = match (settings.mechanism, &settings.jaas_file, &settings.password_file) {
            (Some(Mechanism::Gssapi), ..) => Login::Kerberos(settings.kerberos.clone()),
            (None, Some(file), _) => self.read_jaas(file)?,
            (_, _, file) => {
                let password = file.as_ref().map(|file| self.read_password(file)).transpose()?;
                let password = password.or_else(|| settings.password.clone()).unwrap_or_default();
                Login::Digest(DigestLogin { user: settings.user.clone().unwrap_or_default(), password })
            }
        };
        match login {
            Login::Kerberos(login) => self.start_gssapi(&login, server),
            Login::Digest(DigestLogin { user, password }) => {
                let user = DigestUser { name: user, password, digest_uri: settings.digest_uri() };
                Ok(Some(Box::new(DigestMd5::new(user, Uuid::new_v4().simple().to_string()))))
            }
        }
    }

    fn start_gssapi(&self, login: &KerberosLogin, server: Option<&Server>) -> Result<Option<Box<dyn SaslMechanism>>> {
        let library = GssLibrary::load()?;
        if let Some(keytab) = &login.keytab {
            // The library does not say which file is missing.
            let refuse = |error| Error::invalid(format!("sasl.keytab {}: {error}", quote_file(keytab)));
            File::open(keytab).map_err(refuse)?;
        }
        let client = login.principal.as_deref().unwrap_or("the default principal");
        let failed = |cause: String| Error::new(Status::Auth, format!("SASL with Kerberos as {client}: {cause}"));
        let principal = login.principal.as_ref().map(|principal| GssName::new(library, principal)).transpose();
        let credentials = principal
            .and_then(|principal| GssCredentials::acquire(library, principal.as_ref(), &login.credential_stores()));
        let credentials = credentials.map_err(|cause| failed(format!("{cause}; {NO_TICKET}")))?;
        let host = self.0.host().or_else(|| server.map(|server| server.host.as_str()));
        let Some(host) = host else { return Ok(None) };
        let service = self.0.service_principal(host);
        let server = GssName::new(library, &service).map_err(failed)?;
        let names = format!("{client} for {service}");
        let mechanism = Gssapi::start(GssContext::new(credentials, server), names);
        Ok(Some(Box::new(mechanism.map_err(|cause| failed(format!("{cause} (service {service})")))?)))
    }

    fn read_password(&self, file: &Path) -> Result<Zeroizing<String>> {
        let mut data = read_regular_file(PASSWORD_FILE, file, PASSWORD_LIMIT)?;
        warn_if_exposed(PASSWORD_FILE, file);
        remove_newline(&mut data);
        let text = str::from_utf8(&data).ok().filter(|text| is_password(text));
        let text = text.ok_or_else(|| {
            Error::invalid(format!("{} does not contain one line with a password in UTF-8", self.name()))
        })?;
        Ok(Zeroizing::new(text.to_owned()))
    }

    fn read_jaas(&self, file: &Path) -> Result<Login> {
        let data = read_regular_file(JAAS_FILE, file, JAAS_LIMIT)?;
        warn_if_exposed(JAAS_FILE, file);
        let section = self.0.jaas_section.as_deref().unwrap_or(DEFAULT_JAAS_SECTION);
        let text = str::from_utf8(&data).map_err(|_| "is not UTF-8".to_owned());
        let login = text.and_then(|text| jaas::parse(text, section)).and_then(|login| {
            let is_valid = match &login {
                Login::Digest(login) => is_name(&login.user) && is_password(&login.password),
                Login::Kerberos(login) => {
                    [&login.principal, &login.ccache].into_iter().flatten().all(|name| is_name(name))
                }
            };
            is_valid.then_some(login).ok_or_else(|| "has an empty or too long value".to_owned())
        });
        login.map_err(|why| Error::invalid(format!("{}: the file {why}", self.name())))
    }
}

/// Returns whether a text can be the name of a user, a service or a host.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= 255 && !text.chars().any(char::is_control)
}

/// Returns whether a text can be a password.
pub(crate) fn is_password(text: &str) -> bool {
    !text.is_empty() && text.len() <= PASSWORD_LIMIT && !text.chars().any(char::is_control)
}
