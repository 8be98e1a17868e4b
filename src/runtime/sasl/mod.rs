//! SASL, with which a client proves its identity. A [`SaslSource`] makes a mechanism for each connection from the
//! settings. The session uses the mechanism after its handshake with the server.

mod digest_md5;
mod jaas;
mod settings;

use std::path::Path;

use uuid::Uuid;
use zeroize::Zeroizing;
use zklock_core::error::{Error, Result};
use zklock_core::session::SaslMechanism;

use self::digest_md5::{DigestMd5, DigestUser};
use self::jaas::DigestLogin;
pub(crate) use self::settings::{Mechanism, SaslSettings};
use super::file::{quote_file, read_regular_file, remove_newline, warn_if_exposed};

const PASSWORD_FILE: &str = "sasl.password_file";
/// The name of Java's property.
pub(crate) const JAAS_FILE: &str = "java.security.auth.login.config";
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
        self.0.password_file.is_some() || self.0.jaas_file.is_some()
    }

    /// Returns the source's name for use in messages.
    pub(super) fn name(&self) -> String {
        match (&self.0.password_file, &self.0.jaas_file) {
            (Some(file), _) => format!("{PASSWORD_FILE} {}", quote_file(file)),
            (None, Some(file)) => format!("{JAAS_FILE} {}", quote_file(file)),
            (None, None) => "sasl.password".to_owned(),
        }
    }

    /// Makes the mechanism for a connection. The call blocks while it reads a file.
    ///
    /// Errors: INVALID or EXHAUSTED if the file with the password cannot be read.
    pub(super) fn load(&self) -> Result<Box<dyn SaslMechanism>> {
        let settings = &self.0;
        let user = settings.user.clone().unwrap_or_default();
        let DigestLogin { user, password } = match (&settings.password_file, &settings.jaas_file) {
            (Some(file), _) => DigestLogin { user, password: self.read_password(file)? },
            (None, Some(file)) => self.read_jaas(file)?,
            (None, None) => DigestLogin { user, password: settings.password.clone().unwrap_or_default() },
        };
        let user = DigestUser { name: user, password, digest_uri: settings.digest_uri() };
        Ok(Box::new(DigestMd5::new(user, Uuid::new_v4().simple().to_string())))
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

    fn read_jaas(&self, file: &Path) -> Result<DigestLogin> {
        let data = read_regular_file(JAAS_FILE, file, JAAS_LIMIT)?;
        warn_if_exposed(JAAS_FILE, file);
        let section = self.0.jaas_section.as_deref().unwrap_or(DEFAULT_JAAS_SECTION);
        let text = str::from_utf8(&data).map_err(|_| "is not UTF-8".to_owned());
        let login = text.and_then(|text| jaas::parse(text, section)).and_then(|login| {
            let is_valid = is_name(&login.user) && is_password(&login.password);
            is_valid.then_some(login).ok_or_else(|| "has an empty or too long username or password".to_owned())
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
