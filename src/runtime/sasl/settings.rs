//! The SASL settings that the program has set for a client. The code in this file does not read the files that the
//! settings name.

use std::fmt;
use std::path::PathBuf;

use zeroize::Zeroizing;
use zklock_core::error::{Error, Result};

use super::JAAS_FILE;

/// The name of a ZooKeeper server's host in DIGEST-MD5, unless its administrators have changed it.
const DIGEST_SERVER_NAME: &str = "zk-sasl-md5";
const DEFAULT_SERVICE: &str = "zookeeper";

/// The values of the options that begin with `sasl.`.
#[derive(Clone, Default)]
pub(crate) struct SaslSettings {
    pub(crate) mechanism: Option<Mechanism>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Zeroizing<String>>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) service: Option<String>,
    pub(crate) server_name: Option<String>,
    /// A JAAS file with the mechanism, the user and the password (`java.security.auth.login.config`).
    pub(crate) jaas_file: Option<PathBuf>,
    /// The section of the JAAS file (`zookeeper.sasl.clientconfig`).
    pub(crate) jaas_section: Option<String>,
    /// True if the program forbids SASL (`zookeeper.sasl.client`).
    pub(crate) is_forbidden: bool,
}

/// A SASL mechanism that the client supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mechanism {
    DigestMd5,
}

impl SaslSettings {
    /// Fails with INVALID if two options contradict each other, or one option needs another option.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |why: String| Err(Error::invalid(why));
        if self.is_forbidden && self.is_enabled() {
            let option = if self.jaas_file.is_some() { JAAS_FILE } else { "sasl.mechanism" };
            return refuse(format!("options zookeeper.sasl.client = false and {option} exclude each other"));
        }
        if self.jaas_file.is_none() && self.jaas_section.is_some() {
            return refuse(format!("option zookeeper.sasl.clientconfig needs option {JAAS_FILE}"));
        }
        if self.jaas_file.is_some() {
            let login = self.mechanism.map(|_| "sasl.mechanism").or_else(|| self.login_options().next());
            return match login {
                Some(option) => refuse(format!("options {JAAS_FILE} and {option} exclude each other")),
                None => Ok(()),
            };
        }
        if self.mechanism.is_none() {
            let names = [("sasl.service", &self.service), ("sasl.server_name", &self.server_name)];
            let names = names.into_iter().filter(|(_, name)| name.is_some()).map(|(option, _)| option);
            return match self.login_options().chain(names).next() {
                Some(option) => refuse(format!("option {option} needs option sasl.mechanism, for example digest-md5")),
                None => Ok(()),
            };
        }
        match (&self.user, &self.password, &self.password_file) {
            (None, ..) => refuse("sasl.mechanism = digest-md5 needs option sasl.user".to_owned()),
            (_, None, None) => {
                refuse("sasl.mechanism = digest-md5 needs option sasl.password or sasl.password_file".to_owned())
            }
            (_, Some(_), Some(_)) => {
                refuse("options sasl.password and sasl.password_file are both set; expected one of them".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the client uses SASL.
    pub(crate) fn is_enabled(&self) -> bool {
        self.mechanism.is_some() || self.jaas_file.is_some()
    }

    /// Returns the names of the options that are set for the user and the password.
    fn login_options(&self) -> impl Iterator<Item = &'static str> {
        let options = [
            ("sasl.user", self.user.is_some()),
            ("sasl.password", self.password.is_some()),
            ("sasl.password_file", self.password_file.is_some()),
        ];
        options.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name)
    }

    /// Returns the name of the service that DIGEST-MD5 protects.
    pub(super) fn digest_uri(&self) -> String {
        let service = self.service.as_deref().unwrap_or(DEFAULT_SERVICE);
        let server_name = self.server_name.as_deref().unwrap_or(DIGEST_SERVER_NAME);
        format!("{service}/{server_name}")
    }
}

impl fmt::Debug for SaslSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The output omits the password.
        f.debug_struct("SaslSettings")
            .field("mechanism", &self.mechanism)
            .field("user", &self.user)
            .field("password_file", &self.password_file)
            .field("service", &self.service)
            .field("server_name", &self.server_name)
            .field("jaas_file", &self.jaas_file)
            .field("jaas_section", &self.jaas_section)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_settings_are_refused_with_the_missing_option() {
        let (user, password) = (Some("bob".to_owned()), Some(Zeroizing::new("secret".to_owned())));
        let (file, mechanism) = (Some(PathBuf::from("/f")), Some(Mechanism::DigestMd5));
        let empty = SaslSettings::default;
        let settings =
            |user, password, password_file| SaslSettings { mechanism, user, password, password_file, ..empty() };
        for (settings, said) in [
            (SaslSettings { user: user.clone(), ..empty() }, "option sasl.user needs option sasl.mechanism"),
            (
                SaslSettings { password: password.clone(), ..empty() },
                "option sasl.password needs option sasl.mechanism",
            ),
            (SaslSettings { service: user.clone(), ..empty() }, "option sasl.service needs option sasl.mechanism"),
            (settings(None, password.clone(), None), "digest-md5 needs option sasl.user"),
            (settings(user.clone(), None, None), "digest-md5 needs option sasl.password or sasl.password_file"),
            (settings(user.clone(), password.clone(), file.clone()), "are both set; expected one of them"),
            (SaslSettings { jaas_section: user.clone(), ..empty() }, "needs option java.security.auth.login.config"),
            (
                SaslSettings { jaas_file: file.clone(), user: user.clone(), ..empty() },
                "and sasl.user exclude each other",
            ),
            (SaslSettings { jaas_file: file.clone(), mechanism, ..empty() }, "and sasl.mechanism exclude each other"),
            (
                SaslSettings { jaas_file: file.clone(), is_forbidden: true, ..empty() },
                "options zookeeper.sasl.client = false and java.security.auth.login.config exclude each other",
            ),
            (
                SaslSettings { mechanism, is_forbidden: true, ..empty() },
                "= false and sasl.mechanism exclude each other",
            ),
        ] {
            let error = settings.check().unwrap_err();
            assert!(error.message().contains(said), "{error}");
            assert!(!format!("{settings:?}").contains("secret"), "{settings:?}");
        }
        let forbidden = SaslSettings { is_forbidden: true, ..empty() };
        let jaas =
            SaslSettings { jaas_file: file.clone(), jaas_section: user.clone(), service: user.clone(), ..empty() };
        for settings in [empty(), forbidden, jaas, settings(user.clone(), password, None), settings(user, None, file)] {
            settings.check().unwrap();
        }
    }
}
