//! SASL, with which a client proves its identity. A [`SaslSource`] makes a mechanism for each connection from the
//! settings. The session uses the mechanism after its handshake with the server.

mod digest_md5;
mod settings;

use uuid::Uuid;
use zeroize::Zeroizing;
use zklock_core::error::{Error, Result};
use zklock_core::session::SaslMechanism;

use self::digest_md5::{DigestMd5, DigestUser};
pub(crate) use self::settings::{Mechanism, SaslSettings};
use super::file::{quote_file, read_regular_file, remove_newline, warn_if_exposed};

/// The maximum length of a password, in bytes.
const PASSWORD_LIMIT: usize = 4096;

/// The SASL settings of a client.
pub(crate) struct SaslSource(SaslSettings);

impl SaslSource {
    /// Creates the source of a client. Returns `None` if the settings do not request SASL. The caller must have checked
    /// the settings.
    pub(crate) fn new(settings: &SaslSettings) -> Option<Self> {
        settings.mechanism.map(|_| Self(settings.clone()))
    }

    /// Returns whether [`load`](Self::load) can block.
    pub(super) fn can_block(&self) -> bool {
        self.0.password_file.is_some()
    }

    /// Returns the source's name for use in messages.
    pub(super) fn name(&self) -> String {
        match &self.0.password_file {
            Some(file) => format!("sasl.password_file {}", quote_file(file)),
            None => "sasl.password".to_owned(),
        }
    }

    /// Makes the mechanism for a connection. The call blocks while it reads a file.
    ///
    /// Errors: INVALID or EXHAUSTED if the password file cannot be read.
    pub(super) fn load(&self) -> Result<Box<dyn SaslMechanism>> {
        let settings = &self.0;
        let password = match &settings.password_file {
            Some(_) => self.read_password()?,
            None => settings.password.clone().unwrap_or_default(),
        };
        let name = settings.user.clone().unwrap_or_default();
        let user = DigestUser { name, password, digest_uri: settings.digest_uri() };
        Ok(Box::new(DigestMd5::new(user, Uuid::new_v4().simple().to_string())))
    }

    fn read_password(&self) -> Result<Zeroizing<String>> {
        let Some(file) = &self.0.password_file else { return Ok(Zeroizing::default()) };
        let mut data = read_regular_file("sasl.password_file", file, PASSWORD_LIMIT)?;
        warn_if_exposed("sasl.password_file", file);
        remove_newline(&mut data);
        let text = str::from_utf8(&data).ok().filter(|text| is_password(text));
        let text = text.ok_or_else(|| {
            Error::invalid(format!("{} does not contain one line with a password in UTF-8", self.name()))
        })?;
        Ok(Zeroizing::new(text.to_owned()))
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
