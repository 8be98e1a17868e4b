//! SASL, with which a client proves its identity. A [`SaslSource`] makes a mechanism for each connection from the
//! settings. The session uses the mechanism after its handshake with the server. The crate `zklock-sasl` contains the
//! mechanisms.

use std::path::Path;

use uuid::Uuid;
use zeroize::Zeroizing;
use zklock_core::error::{Error, Result, Status};
use zklock_core::session::{SaslMechanism, Server};
use zklock_sasl::{DigestLogin, DigestMd5, Gssapi, KerberosLogin, Login, parse_jaas, start_gssapi};
pub(crate) use zklock_sasl::{JAAS_FILE, Mechanism, SaslSettings};

use super::credentials::CredentialSource;
use super::file::{quote_file, read_regular_file, remove_newline, warn_if_exposed};

const PASSWORD_FILE: &str = "sasl.password_file";
/// The section of a client in a JAAS file, as in ZooKeeper's own client.
const DEFAULT_JAAS_SECTION: &str = "Client";
/// The maximum size of a JAAS file, in bytes.
const JAAS_LIMIT: usize = 64 * 1024;
/// The maximum length of a password, in bytes.
const PASSWORD_LIMIT: usize = 4096;

/// The SASL settings of a client.
pub(crate) struct SaslSource {
    settings: SaslSettings,
    /// The source of the password, if the program supplies it as credentials.
    password: Option<CredentialSource>,
}

impl SaslSource {
    /// Creates the source of a client. Returns `None` if the settings do not request SASL. The caller must have checked
    /// the settings.
    pub(crate) fn new(settings: &SaslSettings, password: Option<CredentialSource>) -> Option<Self> {
        settings.is_enabled().then(|| Self { settings: settings.clone(), password })
    }

    /// Returns whether [`load`](Self::load) can block.
    pub(super) fn can_block(&self) -> bool {
        let Self { settings, password } = self;
        settings.mechanism == Some(Mechanism::Gssapi)
            || settings.password_file.is_some()
            || settings.jaas_file.is_some()
            || password.as_ref().is_some_and(CredentialSource::can_block)
    }

    /// Returns whether the mechanisms for different servers differ.
    pub(super) fn depends_on_server(&self) -> bool {
        // The JAAS file can request Kerberos.
        self.settings.mechanism != Some(Mechanism::DigestMd5) && self.settings.host().is_none()
    }

    /// Returns the source's name for use in messages.
    pub(super) fn name(&self) -> String {
        if self.settings.mechanism == Some(Mechanism::Gssapi) {
            return "the Kerberos ticket".to_owned();
        }
        match (&self.settings.password_file, &self.settings.jaas_file, &self.password) {
            (Some(file), ..) => format!("{PASSWORD_FILE} {}", quote_file(file)),
            (None, Some(file), _) => format!("{JAAS_FILE} {}", quote_file(file)),
            (None, None, Some(source)) => source.name(),
            (None, None, None) => "sasl.password".to_owned(),
        }
    }

    /// Makes the mechanism for a connection. The call blocks while it reads a file, while it calls a callback of the
    /// program, or while it asks a KDC. If the mechanism depends on the server, and the server is not known yet, the
    /// call only checks that the client can get a ticket, and returns `None`.
    ///
    /// Errors: INVALID or EXHAUSTED if a file cannot be read, AUTH if Kerberos or the callback fails, UNSUPPORTED if the
    /// Kerberos library is missing.
    pub(super) fn load(&self, server: Option<&Server>) -> Result<Option<Box<dyn SaslMechanism>>> {
        let settings = &self.settings;
        let login = match (settings.mechanism, &settings.jaas_file) {
            (Some(Mechanism::Gssapi), _) => return self.start_gssapi(&settings.kerberos, server),
            (None, Some(file)) => self.read_jaas(file)?,
            _ => Login::Digest(DigestLogin {
                user: settings.user.clone().unwrap_or_default(),
                password: self.load_password()?,
            }),
        };
        match login {
            Login::Kerberos(login) => self.start_gssapi(&login, server),
            Login::Digest(login) => {
                settings.check_md5()?;
                let client_nonce = Uuid::new_v4().simple().to_string();
                Ok(Some(Box::new(DigestMd5::new(login, settings.digest_uri(), client_nonce))))
            }
        }
    }

    fn start_gssapi(&self, login: &KerberosLogin, server: Option<&Server>) -> Result<Option<Box<dyn SaslMechanism>>> {
        let boxed = |mechanism: Gssapi| -> Box<dyn SaslMechanism> { Box::new(mechanism) };
        start_gssapi(&self.settings, login, server).map(|mechanism| mechanism.map(boxed))
    }

    fn load_password(&self) -> Result<Zeroizing<String>> {
        let data = match (&self.settings.password_file, &self.password) {
            (Some(file), _) => {
                let mut data = read_regular_file(PASSWORD_FILE, file, PASSWORD_LIMIT)?;
                warn_if_exposed(PASSWORD_FILE, file);
                remove_newline(&mut data);
                data
            }
            (None, Some(source)) => source.load()?.data,
            (None, None) => return Ok(self.settings.password.clone().unwrap_or_default()),
        };
        let text = str::from_utf8(&data).ok().filter(|text| is_password(text));
        text.map(|text| Zeroizing::new(text.to_owned())).ok_or_else(|| {
            let status = if self.password.is_some() { Status::Auth } else { Status::Invalid };
            Error::new(status, format!("{} does not contain one line with a password in UTF-8", self.name()))
        })
    }

    fn read_jaas(&self, file: &Path) -> Result<Login> {
        let data = read_regular_file(JAAS_FILE, file, JAAS_LIMIT)?;
        warn_if_exposed(JAAS_FILE, file);
        let section = self.settings.jaas_section.as_deref().unwrap_or(DEFAULT_JAAS_SECTION);
        let text = str::from_utf8(&data).map_err(|_| "is not UTF-8".to_owned());
        let login = text.and_then(|text| parse_jaas(text, section)).and_then(|login| {
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
