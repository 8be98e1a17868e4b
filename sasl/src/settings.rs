//! The SASL settings that the program has set for a client. The code in this file does not read the files that the
//! settings name.

use std::ffi::{CStr, CString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;
use zklock_core::error::{Error, Result};
use zklock_core::path::quote;

/// The name of Java's property for a JAAS file.
pub const JAAS_FILE: &str = "java.security.auth.login.config";
/// The name of a ZooKeeper server's host in DIGEST-MD5, unless its administrators have changed it.
const DIGEST_SERVER_NAME: &str = "zk-sasl-md5";
const DEFAULT_SERVICE: &str = "zookeeper";

/// The options for the identity of the client, by mechanism.
const DIGEST_OPTIONS: &[&str] = &["sasl.user", "sasl.password", "sasl.password_file"];
const KERBEROS_OPTIONS: &[&str] = &["sasl.principal", "sasl.keytab", "sasl.ccache"];

/// The values of the options that begin with `sasl.`.
#[derive(Clone, Default)]
pub struct SaslSettings {
    /// The mechanism (`sasl.mechanism`).
    pub mechanism: Option<Mechanism>,
    /// The user of DIGEST-MD5 (`sasl.user`).
    pub user: Option<String>,
    /// The password of the user (`sasl.password`).
    pub password: Option<Zeroizing<String>>,
    /// A file with the password of the user (`sasl.password_file`).
    pub password_file: Option<PathBuf>,
    /// The name of the servers' service (`sasl.service`).
    pub service: Option<String>,
    /// The name of the servers' host, and of their realm (`sasl.server_name`).
    pub server_name: Option<String>,
    /// The identity of the client in Kerberos.
    pub kerberos: KerberosLogin,
    /// A JAAS file with the mechanism, the user and the password (`java.security.auth.login.config`).
    pub jaas_file: Option<PathBuf>,
    /// The section of the JAAS file (`zookeeper.sasl.clientconfig`).
    pub jaas_section: Option<String>,
    /// True if the program forbids SASL (`zookeeper.sasl.client`).
    pub is_forbidden: bool,
    /// True if the program forbids MD5 (`zookeeper.fips-mode`).
    pub is_fips: bool,
}

/// The identity of a client in Kerberos. The Kerberos library has a default for each value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KerberosLogin {
    /// The principal of the client (`sasl.principal`).
    pub principal: Option<String>,
    /// A keytab with the key of the client (`sasl.keytab`).
    pub keytab: Option<PathBuf>,
    /// The credential cache (`sasl.ccache`).
    pub ccache: Option<String>,
}

/// A SASL mechanism that the client supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// DIGEST-MD5.
    DigestMd5,
    /// GSSAPI with Kerberos 5.
    Gssapi,
}

impl KerberosLogin {
    /// Returns the names and values of the credential stores for the Kerberos library.
    pub(crate) fn credential_stores(&self) -> Vec<(&'static CStr, CString)> {
        // Without a cache in memory, the library would write tickets of the keytab into the cache of the user.
        let memory = |keytab: &Path| {
            let principal = self.principal.as_deref().unwrap_or_default();
            format!("MEMORY:zklock:{}:{principal}", keytab.display())
        };
        let cache = self.ccache.clone().or_else(|| self.keytab.as_deref().map(memory));
        let keytab = self.keytab.as_ref().map(|keytab| keytab.as_os_str().as_bytes().to_vec());
        let stores = [(c"client_keytab", keytab), (c"ccache", cache.map(String::into_bytes))];
        stores.into_iter().filter_map(|(name, value)| Some((name, CString::new(value?).ok()?))).collect()
    }
}

impl SaslSettings {
    /// Fails with INVALID if two options contradict each other, or one option needs another option. `passwords` is the
    /// number of passwords that the program supplies as credentials.
    #[inline(never)]
    pub fn check(&self, passwords: usize) -> Result<()> {
        let exclude =
            |one: &str, other: &str| Err(Error::invalid(format!("options {one} and {other} exclude each other")));
        let need = |option: &str, other: &str| Err(Error::invalid(format!("option {option} needs option {other}")));
        let mut login_options = self.login_options();
        if passwords > 0 && self.mechanism != Some(Mechanism::DigestMd5) {
            return Err(Error::invalid("credentials for the scheme sasl need option sasl.mechanism = digest-md5"));
        }
        if self.is_forbidden && self.is_enabled() {
            let option = if self.jaas_file.is_some() { JAAS_FILE } else { "sasl.mechanism" };
            return exclude("zookeeper.sasl.client = false", option);
        }
        if self.jaas_file.is_some() {
            let option = self.mechanism.map(|_| "sasl.mechanism").or_else(|| login_options.next());
            return option.map_or(Ok(()), |option| exclude(JAAS_FILE, option));
        }
        if self.jaas_section.is_some() {
            return need("zookeeper.sasl.clientconfig", JAAS_FILE);
        }
        let server_name = self.server_name.as_deref().unwrap_or_default();
        let (name, own_options, is_server_name, expected) = match self.mechanism {
            None => {
                let names = [("sasl.service", &self.service), ("sasl.server_name", &self.server_name)];
                let names = names.into_iter().filter(|(_, name)| name.is_some()).map(|(option, _)| option);
                let option = login_options.chain(names).next();
                return option.map_or(Ok(()), |option| need(option, "sasl.mechanism, for example digest-md5"));
            }
            Some(Mechanism::DigestMd5) => {
                self.check_md5()?;
                let is_server_name = !server_name.contains('@');
                ("sasl.mechanism = digest-md5", DIGEST_OPTIONS, is_server_name, "a name without a realm")
            }
            Some(Mechanism::Gssapi) => {
                let is_server_name = !server_name.contains(['/', '\\']) && server_name.matches('@').count() <= 1;
                ("sasl.mechanism = gssapi", KERBEROS_OPTIONS, is_server_name, "HOST, HOST@REALM or @REALM")
            }
        };
        if let Some(option) = login_options.find(|option| !own_options.contains(option)) {
            return exclude(name, option);
        }
        if !is_server_name {
            let shown = quote(server_name);
            return Err(Error::invalid(format!("option sasl.server_name is {shown}; expected {expected}")));
        }
        if self.mechanism == Some(Mechanism::Gssapi) {
            return Ok(());
        }
        if self.user.is_none() {
            return need(name, "sasl.user");
        }
        match passwords + usize::from(self.password.is_some()) + usize::from(self.password_file.is_some()) {
            0 => need(name, "sasl.password or sasl.password_file"),
            1 => Ok(()),
            _ => Err(Error::invalid(
                "the password of sasl.user is set twice; expected one of sasl.password, sasl.password_file and credentials for the scheme sasl",
            )),
        }
    }

    /// Fails with INVALID if the program forbids MD5.
    pub fn check_md5(&self) -> Result<()> {
        if !self.is_fips {
            return Ok(());
        }
        Err(Error::invalid(
            "zookeeper.fips-mode = true forbids DIGEST-MD5, because FIPS 140 does not allow MD5; use sasl.mechanism = gssapi",
        ))
    }

    /// Returns whether the client uses SASL.
    pub fn is_enabled(&self) -> bool {
        self.mechanism.is_some() || self.jaas_file.is_some()
    }

    /// Returns the names of the options that are set for the identity of the client.
    fn login_options(&self) -> impl Iterator<Item = &'static str> {
        let options = [
            ("sasl.user", self.user.is_some()),
            ("sasl.password", self.password.is_some()),
            ("sasl.password_file", self.password_file.is_some()),
            ("sasl.principal", self.kerberos.principal.is_some()),
            ("sasl.keytab", self.kerberos.keytab.is_some()),
            ("sasl.ccache", self.kerberos.ccache.is_some()),
        ];
        options.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name)
    }

    /// Returns the host in the names of the servers' principals, or `None` if it is the host in the server list.
    pub fn host(&self) -> Option<&str> {
        let (host, _) = self.server_name.as_deref().map(split_realm)?;
        Some(host).filter(|host| !host.is_empty())
    }

    /// Returns the principal of a server. If no realm is set, the part after `@` is empty: the KDC then finds the realm,
    /// and the Kerberos library does not look up the host.
    pub(crate) fn service_principal(&self, host: &str) -> String {
        let service = self.service.as_deref().unwrap_or(DEFAULT_SERVICE);
        let realm = self.server_name.as_deref().map(|name| split_realm(name).1).unwrap_or_default();
        format!("{service}/{host}@{realm}")
    }

    /// Returns the name of the service that DIGEST-MD5 protects.
    #[inline(never)]
    pub fn digest_uri(&self) -> String {
        let service = self.service.as_deref().unwrap_or(DEFAULT_SERVICE);
        let server_name = self.server_name.as_deref().unwrap_or(DIGEST_SERVER_NAME);
        format!("{service}/{server_name}")
    }
}

/// Splits `HOST@REALM`. Both parts can be empty.
fn split_realm(name: &str) -> (&str, &str) {
    name.split_once('@').unwrap_or((name, ""))
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
            .field("kerberos", &self.kerberos)
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
        let (file, mechanism, gssapi) =
            (Some(PathBuf::from("/f")), Some(Mechanism::DigestMd5), Some(Mechanism::Gssapi));
        let empty = SaslSettings::default;
        let kerberos = KerberosLogin { keytab: file.clone(), ..KerberosLogin::default() };
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
            (
                settings(user.clone(), password.clone(), file.clone()),
                "is set twice; expected one of sasl.password, sasl",
            ),
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
            (SaslSettings { kerberos: kerberos.clone(), ..empty() }, "option sasl.keytab needs option sasl.mechanism"),
            (
                SaslSettings { kerberos: kerberos.clone(), mechanism, ..empty() },
                "= digest-md5 and sasl.keytab exclude each",
            ),
            (SaslSettings { mechanism: gssapi, user: user.clone(), ..empty() }, "= gssapi and sasl.user exclude each"),
            (
                SaslSettings { mechanism: gssapi, server_name: Some("a/b".to_owned()), ..empty() },
                "option sasl.server_name is \"a/b\"; expected HOST, HOST@REALM or @REALM",
            ),
            (
                SaslSettings { mechanism, is_forbidden: true, ..empty() },
                "= false and sasl.mechanism exclude each other",
            ),
            (
                SaslSettings { is_fips: true, ..settings(user.clone(), password.clone(), None) },
                "zookeeper.fips-mode = true forbids DIGEST-MD5",
            ),
        ] {
            let error = settings.check(0).unwrap_err();
            assert!(error.message().contains(said), "{error}");
            assert!(!format!("{settings:?}").contains("secret"), "{settings:?}");
        }
        let said = |settings: SaslSettings| settings.check(1).unwrap_err().message().to_owned();
        for mechanism in [None, gssapi] {
            let settings = SaslSettings { mechanism, ..empty() };
            assert_eq!(said(settings), "credentials for the scheme sasl need option sasl.mechanism = digest-md5");
        }
        assert!(said(settings(user.clone(), password.clone(), None)).contains("is set twice"));
        settings(user.clone(), None, None).check(1).unwrap();
        let forbidden = SaslSettings { is_forbidden: true, ..empty() };
        let jaas =
            SaslSettings { jaas_file: file.clone(), jaas_section: user.clone(), service: user.clone(), ..empty() };
        for settings in [empty(), forbidden, jaas, settings(user.clone(), password, None), settings(user, None, file)] {
            settings.check(0).unwrap();
        }
    }

    #[test]
    fn principal_of_a_server_has_the_host_and_the_realm() {
        for (service, server_name, expected, host) in [
            (None, None, "zookeeper/h@", None),
            (Some("zk"), None, "zk/h@", None),
            (None, Some("other"), "zookeeper/other@", Some("other")),
            (None, Some("other@R"), "zookeeper/other@R", Some("other")),
            (None, Some("@R"), "zookeeper/h@R", None),
        ] {
            let own = |name: Option<&str>| name.map(str::to_owned);
            let (service, server_name) = (own(service), own(server_name));
            let settings =
                SaslSettings { mechanism: Some(Mechanism::Gssapi), service, server_name, ..SaslSettings::default() };
            settings.check(0).unwrap();
            assert_eq!(settings.host(), host);
            assert_eq!(settings.service_principal(settings.host().unwrap_or("h")), expected);
        }
    }

    #[test]
    fn tickets_of_a_keytab_are_in_memory_unless_a_cache_is_set() {
        let stores = |keytab: Option<&str>, ccache: Option<&str>| {
            let (keytab, ccache) = (keytab.map(PathBuf::from), ccache.map(str::to_owned));
            let login = KerberosLogin { keytab, ccache, principal: Some("app".into()) };
            let text =
                |(name, value): (&CStr, CString)| format!("{}={}", name.to_str().unwrap(), value.to_str().unwrap());
            login.credential_stores().into_iter().map(text).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(stores(None, None), "");
        assert_eq!(stores(None, Some("FILE:/c")), "ccache=FILE:/c");
        assert_eq!(stores(Some("/k"), None), "client_keytab=/k ccache=MEMORY:zklock:/k:app");
        assert_eq!(stores(Some("/k"), Some("FILE:/c")), "client_keytab=/k ccache=FILE:/c");
    }
}
