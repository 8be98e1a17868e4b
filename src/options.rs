//! The table of the client options, and the code that reads options from files. All language bindings use this table.
//! The code in this file parses values, and does not check whether the values are consistent with each other. The
//! methods of [`Config`] check the parsed values.

use std::path::{Path, PathBuf};
use std::time::Duration;

use zeroize::Zeroizing;
use zklock_core::acl::AccessList;
use zklock_core::error::{Error, Result};
use zklock_core::path::quote;
use zklock_core::session::Credentials;

use crate::config::Config;
use crate::runtime::{
    MAX_CREDENTIALS, Mechanism, Verification, is_digest, is_name, is_password, quote_file, read_regular_file,
    warn_if_exposed,
};
use crate::zookeeper_options::{self, Translation, is_pair};

/// The maximum size of an options file, in bytes.
const FILE_LIMIT: usize = 64 * 1024;

/// An option that [`Config::set`] can set.
#[derive(Debug)]
#[non_exhaustive]
pub struct ConfigOption {
    /// The name of the option, for example `session.timeout`.
    pub name: &'static str,
    /// A description of the allowed values.
    pub expected: &'static str,
    /// A description of the default value.
    pub default: &'static str,
    /// A description of the option in one sentence.
    pub help: &'static str,
    /// True if the value is a secret. The library never shows a secret in messages, in logs or in `Debug` output.
    pub is_secret: bool,
    /// Sets the value. Returns `None` if the value is not allowed.
    set: fn(&mut Config, &str) -> Option<()>,
}

impl ConfigOption {
    /// All options, sorted by name.
    pub const ALL: &'static [Self] = &[
        Self {
            name: "acl",
            expected: "`open`, `creator_all`, or `scheme:id:cdrwa,...`",
            default: "open",
            help: "The access control list of the nodes that the client creates for its holds and waiters.",
            is_secret: false,
            set: |config, value| AccessList::parse(value).map(|list| config.acls.nodes = Some(list)).ok(),
        },
        Self {
            name: "acl.lock_directory",
            expected: "as `acl`",
            default: "as `acl.parents`",
            help: "The access control list of shared counts, and of the directories that contain the nodes for holds and waiters.",
            is_secret: false,
            set: |config, value| AccessList::parse(value).map(|list| config.acls.lock_directories = Some(list)).ok(),
        },
        Self {
            name: "acl.parents",
            expected: "as `acl`",
            default: "as `acl`",
            help: "The access control list of the ancestors of the lock directories, and of a chroot that the client creates.",
            is_secret: false,
            set: |config, value| AccessList::parse(value).map(|list| config.acls.parents = Some(list)).ok(),
        },
        Self {
            name: "auth.digest",
            expected: "user:password",
            default: "none",
            help: "The credentials for the `digest` scheme. The client sends them on every connection.",
            is_secret: true,
            set: |config, value| {
                let is_allowed = is_digest(value.as_bytes()) && value.len() <= MAX_CREDENTIALS;
                let data = || Zeroizing::new(value.as_bytes().to_vec());
                config.digest = Some(is_allowed.then(|| Credentials { scheme: "digest".to_owned(), data: data() })?);
                Some(())
            },
        },
        Self {
            name: "auth.digest_file",
            expected: "the name of a file that contains user:password",
            default: "none",
            help: "A file with the credentials for the `digest` scheme. The client reads the file before every attempt to connect.",
            is_secret: false,
            set: |config, value| file_name(value).map(|file| config.digest_file = Some(file)),
        },
        Self {
            name: "chroot.create",
            expected: "true or false",
            default: "false",
            help: "Whether the client creates the chroot of its server list if the chroot is missing. If this option is false, a missing chroot is an error.",
            is_secret: false,
            set: |config, value| {
                switch(value).and_then(|create| config.try_update(|config| config.create_chroot(create)).ok())
            },
        },
        Self {
            name: "connect.timeout",
            expected: "1 to 2147483647 milliseconds, or a time with units such as 1m30s",
            default: "10000",
            help: "The time limit for connecting.",
            is_secret: false,
            set: |config, value| {
                milliseconds(value).and_then(|timeout| config.try_update(|config| config.connect_timeout(timeout)).ok())
            },
        },
        Self {
            name: "lease.margin",
            expected: "0 to 2147483647 milliseconds, or a time with units such as 1m30s",
            default: "a third of the session timeout",
            help: "The session lease is shorter than the session timeout by at least this time. A hold is safe until the session lease ends.",
            is_secret: false,
            set: |config, value| {
                milliseconds(value).and_then(|margin| config.try_update(|config| config.lease_margin(margin)).ok())
            },
        },
        Self {
            name: "locks.wait_for_kazoo",
            expected: "true or false",
            default: "false",
            help: "Whether mutexes and read/write locks wait in one queue with kazoo's locks on the same path. The kazoo programs need a setting too.",
            is_secret: false,
            set: |config, value| {
                config.wait_for_kazoo = switch(value)?;
                Some(())
            },
        },
        Self {
            name: "sasl.ccache",
            expected: "a name of at most 255 bytes",
            default: "that of the Kerberos library, or memory if `sasl.keytab` is set",
            help: "The credential cache with the Kerberos ticket of the client, for example `FILE:/run/app/krb5cc`.",
            is_secret: false,
            set: |config, value| name(value).map(|name| config.sasl.kerberos.ccache = Some(name)),
        },
        Self {
            name: "sasl.keytab",
            expected: "the name of a file",
            default: "that of the Kerberos library",
            help: "A keytab with the key of the client. With a keytab, the client gets and renews Kerberos tickets itself.",
            is_secret: false,
            set: |config, value| file_name(value).map(|file| config.sasl.kerberos.keytab = Some(file)),
        },
        Self {
            name: "sasl.mechanism",
            expected: "digest-md5 or gssapi",
            default: "none",
            help: "The SASL mechanism with which the client proves its identity on every connection. `digest-md5` needs `sasl.user`, and `sasl.password` or `sasl.password_file`. `gssapi` is Kerberos.",
            is_secret: false,
            set: |config, value| {
                config.sasl.mechanism = match value {
                    "digest-md5" => Some(Mechanism::DigestMd5),
                    "gssapi" => Some(Mechanism::Gssapi),
                    _ => return None,
                };
                Some(())
            },
        },
        Self {
            name: "sasl.password",
            expected: "a password of at most 4096 bytes without control characters",
            default: "none",
            help: "The password of `sasl.user`.",
            is_secret: true,
            set: |config, value| {
                config.sasl.password = Some(is_password(value).then(|| Zeroizing::new(value.to_owned()))?);
                Some(())
            },
        },
        Self {
            name: "sasl.password_file",
            expected: "the name of a file",
            default: "none",
            help: "A file with the password of `sasl.user` on one line. The client reads the file before every attempt to connect.",
            is_secret: false,
            set: |config, value| file_name(value).map(|file| config.sasl.password_file = Some(file)),
        },
        Self {
            name: "sasl.principal",
            expected: "a name of at most 255 bytes",
            default: "that of the Kerberos library",
            help: "The Kerberos principal of the client, for example `app@EXAMPLE.COM`.",
            is_secret: false,
            set: |config, value| name(value).map(|name| config.sasl.kerberos.principal = Some(name)),
        },
        Self {
            name: "sasl.server_name",
            expected: "a name of at most 255 bytes",
            default: "`zk-sasl-md5` for `digest-md5`, or the host in the server list for `gssapi`",
            help: "The name of the servers' host in SASL. With `gssapi`, the value can also be `HOST@REALM` or `@REALM`.",
            is_secret: false,
            set: |config, value| name(value).map(|name| config.sasl.server_name = Some(name)),
        },
        Self {
            name: "sasl.service",
            expected: "a name of at most 255 bytes",
            default: "`zookeeper`",
            help: "The name of the servers' service in SASL.",
            is_secret: false,
            set: |config, value| name(value).map(|name| config.sasl.service = Some(name)),
        },
        Self {
            name: "sasl.user",
            expected: "a name of at most 255 bytes",
            default: "none",
            help: "The user of the SASL mechanism `digest-md5`. For an access control list, the identity of the client is `sasl:USER`.",
            is_secret: false,
            set: |config, value| name(value).map(|name| config.sasl.user = Some(name)),
        },
        Self {
            name: "servers.follow_config",
            expected: "true or false",
            default: "false",
            help: "Whether the client follows the server list that the ensemble stores in `/zookeeper/config`.",
            is_secret: false,
            set: |config, value| {
                config.follow_config = switch(value)?;
                Some(())
            },
        },
        Self {
            name: "session.max_path_bytes",
            expected: "1024 to 1073741824 bytes",
            default: "786432",
            help: "The maximum total size of all node paths of a session, in bytes. This limit must not exceed the `jute.maxbuffer` of any server.",
            is_secret: false,
            set: |config, value| {
                bytes(value).and_then(|bytes| config.try_update(|config| config.max_path_bytes(bytes)).ok())
            },
        },
        Self {
            name: "session.timeout",
            expected: "1 to 2147483647 milliseconds, or a time with units such as 1m30s",
            default: "10000",
            help: "The time after which the servers end a session if they receive nothing from its client. The servers may negotiate another value.",
            is_secret: false,
            set: |config, value| {
                milliseconds(value).and_then(|timeout| config.try_update(|config| config.session_timeout(timeout)).ok())
            },
        },
        Self {
            name: "tls.ca",
            expected: "the name of a file or directory",
            default: "the CA certificates of the system",
            help: "The CA certificates that the client accepts, in PEM format: a file, or a directory of files.",
            is_secret: false,
            set: |config, value| file_name(value).map(|file| config.tls.ca = Some(file)),
        },
        Self {
            name: "tls.cert",
            expected: "the name of a file",
            default: "none",
            help: "The certificate of the client in PEM format, followed by the certificates of its issuers. It needs `tls.key`.",
            is_secret: false,
            set: |config, value| file_name(value).map(|file| config.tls.cert = Some(file)),
        },
        Self {
            name: "tls.crl",
            expected: "the name of a file",
            default: "none",
            help: "The revocation lists in PEM format. The file must contain a current list for every CA in the certificate chain of a server.",
            is_secret: false,
            set: |config, value| file_name(value).map(|file| config.tls.crl = Some(file)),
        },
        Self {
            name: "tls.enabled",
            expected: "true or false",
            default: "true if another `tls.` option is set, or else false",
            help: "Whether the client uses TLS. A client that uses TLS never falls back to plain text.",
            is_secret: false,
            set: |config, value| switch(value).map(|enabled| config.tls.enabled = Some(enabled)),
        },
        Self {
            name: "tls.key",
            expected: "the name of a file",
            default: "none",
            help: "The private key of the client in PEM format: PKCS#8 (encrypted or not), PKCS#1 or SEC1. The key may be in the same file as the certificate (`tls.cert`).",
            is_secret: false,
            set: |config, value| file_name(value).map(|file| config.tls.key = Some(file)),
        },
        Self {
            name: "tls.key_password",
            expected: "a password",
            default: "none",
            help: "The password of an encrypted private key.",
            is_secret: true,
            set: |config, value| {
                let password = (!value.is_empty()).then(|| Zeroizing::new(value.to_owned()))?;
                config.tls.key_password = Some(password);
                Some(())
            },
        },
        Self {
            name: "tls.key_password_file",
            expected: "the name of a file",
            default: "none",
            help: "A file with the password of an encrypted private key. The client ignores line breaks at the end of the file.",
            is_secret: false,
            set: |config, value| file_name(value).map(|file| config.tls.key_password_file = Some(file)),
        },
        Self {
            name: "tls.min_version",
            expected: "1.2 or 1.3",
            default: "1.2",
            help: "The oldest version of TLS that the client accepts.",
            is_secret: false,
            set: |config, value| {
                let requires_tls13 = match value {
                    "1.2" => false,
                    "1.3" => true,
                    _ => return None,
                };
                config.tls.requires_tls13 = Some(requires_tls13);
                Some(())
            },
        },
        Self {
            name: "tls.server_name",
            expected: "a host name or an IP address",
            default: "the host in the server list",
            help: "The name that the certificate of every server must contain.",
            is_secret: false,
            set: |config, value| config.tls.set_server_name(value),
        },
        Self {
            name: "tls.verify",
            expected: "full, ca or none",
            default: "full",
            help: "What the client verifies about a server. With `full`, the client verifies the certificate chain and the host name. With `ca`, the client verifies the certificate chain, and `tls.ca` is required. With `none`, the client verifies nothing, so that anybody between the client and the server can read and change all data.",
            is_secret: false,
            set: |config, value| {
                let verification = match value {
                    "full" => Verification::Full,
                    "ca" => Verification::Chain,
                    "none" => Verification::None,
                    _ => return None,
                };
                config.tls.verification = Some(verification);
                Some(())
            },
        },
    ];

    /// Returns the option that `name` sets, or `None` if the value of the option is not a secret. `name` may also be an
    /// option name of ZooKeeper's own client.
    pub fn secret(name: &str) -> Option<&'static Self> {
        let is_secret = |name: &str| Self::find(name).ok().filter(|option| option.is_secret);
        match zookeeper_options::translate(name, "").ok()? {
            None => is_secret(name),
            Some(translations) => translations.iter().find_map(|translation| match translation {
                Translation::Option(option, _) => is_secret(option),
                Translation::DefaultMinVersion { .. }
                | Translation::ForbidSasl(_)
                | Translation::Fips(_)
                | Translation::JaasFile(_)
                | Translation::JaasSection(_) => None,
            }),
        }
    }

    fn find(name: &str) -> Result<&'static Self> {
        // Without `black_box`, LLVM 22 needs more than ten minutes to compile this function.
        let options = std::hint::black_box(Self::ALL);
        options.iter().find(|option| option.name == name).ok_or_else(|| {
            let names: Vec<&str> = options.iter().map(|option| option.name).collect();
            Error::invalid(format!("option {} is unknown; expected one of {}", quote(name), names.join(", ")))
        })
    }

    /// Returns a message that explains which part of a value is wrong. Returns `None` for options whose values have
    /// only one part.
    fn explain(&self, value: &str) -> Option<String> {
        match self.name {
            "acl" | "acl.lock_directory" | "acl.parents" => AccessList::parse(value).err(),
            _ => None,
        }
    }

    fn apply(&self, config: &mut Config, value: &str) -> Result<()> {
        (self.set)(config, value).ok_or_else(|| {
            let Self { name, expected, .. } = self;
            let why = match (self.explain(value), self.is_secret) {
                (Some(why), _) => return Error::invalid(format!("option {name}: {why}")),
                (None, true) => "not valid".to_owned(),
                (None, false) => quote(value),
            };
            Error::invalid(format!("option {name} is {why}; expected {expected}"))
        })
    }
}

impl Config {
    /// Sets an option by its name, for example `session.timeout` to `5000`. [`ConfigOption::ALL`] lists all options.
    /// Some options also have a typed method. The call also accepts an option name of ZooKeeper's own client, for
    /// example `zookeeper.ssl.trustStore.location`, if a zklock option has the same meaning.
    ///
    /// Errors: INVALID if the name is unknown or the value is not allowed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        self.set_and_list(name, value).map(drop)
    }

    /// Sets an option by its name, and returns the names of all options that the call has set. Some ZooKeeper option
    /// names have no effect in zklock. If a name has no effect, the function returns only that name.
    fn set_and_list<'a>(&mut self, name: &'a str, value: &str) -> Result<Vec<&'a str>> {
        let Some(translations) = zookeeper_options::translate(name, value)? else {
            ConfigOption::find(name)?.apply(self, value)?;
            return Ok(vec![name]);
        };
        if translations.is_empty() {
            return Ok(vec![name]);
        }
        let set = |translation: &Translation| match translation {
            Translation::Option(option, value) => ConfigOption::find(option)?.apply(self, value).map(|()| *option),
            Translation::DefaultMinVersion { requires_tls13 } => {
                self.tls.requires_tls13_by_default = Some(*requires_tls13);
                Ok("tls.min_version")
            }
            Translation::ForbidSasl(is_forbidden) => {
                self.sasl.is_forbidden = *is_forbidden;
                Ok(name)
            }
            Translation::Fips(is_fips) => {
                self.sasl.is_fips = *is_fips;
                Ok(name)
            }
            Translation::JaasFile(file) => {
                let refusal = || Error::invalid(format!("{} is not the name of a file", quote(file)));
                self.sasl.jaas_file = Some(file_name(file).ok_or_else(refusal)?);
                Ok(name)
            }
            Translation::JaasSection(section) => {
                let refusal = || Error::invalid(format!("{} is not the name of a section", quote(section)));
                self.sasl.jaas_section = Some(is_name(section).then(|| section.clone()).ok_or_else(refusal)?);
                Ok(name)
            }
        };
        // The message must contain `name`, because the program has passed this name and not the translated option.
        let named = |error: Error| Error::invalid(format!("{name}: {}", error.message()));
        translations.iter().map(set).collect::<Result<_>>().map_err(named)
    }

    /// Reads options from a file and sets them. The file must be UTF-8 text of at most 64 KiB, with one `name = value`
    /// on each line. Empty lines and lines that begin with `#` are ignored. A `#` after a value belongs to the value.
    /// If the file contains an error, the call sets no option.
    ///
    /// Errors: INVALID if the file cannot be read or a line is wrong; the message names the file and the line.
    /// EXHAUSTED if the process or the machine has no file descriptors left. The call blocks while it reads the file.
    pub fn load(&mut self, file: impl AsRef<Path>) -> Result<()> {
        read_options(file)?.iter().try_for_each(|(name, value)| self.set(name, value))
    }
}

/// The name and the value of an option in an options file. The value can be a secret.
pub type FileOption = (String, Zeroizing<String>);

/// Reads the options from a file and checks them. Returns the names with their values, in the order of the file.
///
/// The function accepts the same files and returns the same errors as [`Config::load`]. The call blocks while it reads
/// the file.
pub fn read_options(file: impl AsRef<Path>) -> Result<Vec<FileOption>> {
    read_options_and(file, &[])
}

/// Reads an options file that may also set `others`: names that are no options of the library, and whose values the
/// function does not check.
pub fn read_options_and(file: impl AsRef<Path>, others: &[&'static str]) -> Result<Vec<FileOption>> {
    let file = file.as_ref();
    let bytes = read_regular_file("options file", file, FILE_LIMIT)?;
    let options =
        parse(&bytes, others).map_err(|why| Error::invalid(format!("options file {}{why}", quote_file(file))))?;
    if options.iter().any(|(name, _)| ConfigOption::secret(name).is_some()) {
        warn_if_exposed("options file", file);
    }
    Ok(options)
}

/// Parses the content of an options file. An error message says which line is wrong, and why.
fn parse(bytes: &[u8], others: &[&'static str]) -> std::result::Result<Vec<FileOption>, String> {
    let mut scratch = Config::new();
    let mut options: Vec<FileOption> = Vec::new();
    // The options that the file has set so far. Each entry contains the option, its name in the file, and the line
    // number.
    let mut known: Vec<(&str, &str, usize)> = Vec::new();
    for (number, line) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        let refuse = |why: &str| format!(", line {number}: {why}");
        let line = std::str::from_utf8(line).map_err(|error| {
            let at = error.valid_up_to();
            let byte = line.get(at).copied().unwrap_or_default();
            refuse(&format!("is not UTF-8: byte {byte:#04x} at position {at}"))
        })?;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // In a line without `=` after the name, the rest of the line may be a secret. The message must not contain the
        // rest.
        let first = line.split([' ', '\t', ':', '=']).next().unwrap_or_default();
        let Some((name, value)) = line.split_once('=').filter(|(name, _)| name.trim() == first) else {
            return Err(refuse(&format!("{} is not an option; expected name = value", quote(first))));
        };
        let (name, value) = (name.trim(), value.trim());
        let set = match others.iter().find(|other| **other == name) {
            Some(other) => Ok(vec![*other]),
            None => scratch.set_and_list(name, value),
        };
        let concerned = set.map_err(|error| {
            let hint = if value.contains(" #") { "; a comment needs a line of its own" } else { "" };
            refuse(&format!("{}{hint}", error.message()))
        })?;
        for option in concerned {
            match known.iter().find(|(other, by, _)| *other == option && !is_pair(by, name)) {
                Some((_, by, line)) if *by == name => {
                    return Err(refuse(&format!("option {name} is set twice; line {line} sets it as well")));
                }
                Some((_, by, line)) => {
                    let twice = format!("option {option} is set twice: here as {name}, and in line {line} as {by}");
                    return Err(refuse(&twice));
                }
                None => known.push((option, name, number)),
            }
        }
        options.push((name.to_owned(), Zeroizing::new(value.to_owned())));
    }
    Ok(options)
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

fn name(value: &str) -> Option<String> {
    is_name(value).then(|| value.to_owned())
}

/// Converts a file name to an absolute path, so that a later change of the working directory has no effect.
fn file_name(value: &str) -> Option<PathBuf> {
    let is_name = !value.is_empty() && !value.contains('\0');
    is_name.then(|| std::path::absolute(value).unwrap_or_else(|_| value.into()))
}

/// Parses a whole number of milliseconds, written in digits, or a time with units.
fn milliseconds(value: &str) -> Option<Duration> {
    number(value).map(Duration::from_millis).or_else(|| time_with_units(value))
}

/// The longest time that a user can set: more than a hundred years.
pub const LONGEST_TIME: Duration = Duration::from_secs(4_000_000_000);

/// Parses a time with units, or a number of seconds, for example `1.5`.
pub fn time_in_seconds(text: &str) -> Option<Duration> {
    let is_number = !text.contains(|c: char| !c.is_ascii_digit() && c != '.');
    if is_number { time_with_units(&format!("{text}s")) } else { time_with_units(text) }
}

/// Parses a time with units, for example `500ms`, `1.5s` or `1h30m`. Each unit must be smaller than the unit before it.
pub fn time_with_units(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 6] =
        [("d", 86_400.0), ("h", 3600.0), ("m", 60.0), ("min", 60.0), ("s", 1.0), ("ms", 0.001)];
    let (mut rest, mut seconds, mut previous) = (text, 0.0, f64::INFINITY);
    loop {
        let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let (unit, after) = tail.split_at(tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len()));
        let (_, unit) = *UNITS.iter().find(|(name, unit_in_seconds)| *name == unit && *unit_in_seconds < previous)?;
        seconds += number.parse::<f64>().ok()? * unit;
        (rest, previous) = (after, unit);
        if rest.is_empty() {
            return Duration::try_from_secs_f64(seconds).ok();
        }
    }
}

/// Parses a whole number of bytes, written in digits.
fn bytes(value: &str) -> Option<usize> {
    usize::try_from(number(value)?).ok()
}

fn number(value: &str) -> Option<u64> {
    let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
    value.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zklock_core::error::Status;

    fn parse(bytes: &[u8]) -> std::result::Result<Vec<FileOption>, String> {
        super::parse(bytes, &[])
    }

    fn message(result: Result<()>) -> String {
        let error = result.unwrap_err();
        assert_eq!(error.status(), Status::Invalid);
        error.message().to_owned()
    }

    #[test]
    fn options_accept_valid_values_and_refuse_others() {
        let mut names: Vec<&str> = ConfigOption::ALL.iter().map(|option| option.name).collect();
        for name in ["acl", "acl.lock_directory", "acl.parents"] {
            let said = message(Config::new().set(name, "auth::r,digest:user:secret:r"));
            assert_eq!(
                said,
                format!(
                    "option {name}: entry 2: the id of the scheme digest is wrong; expected user:hash, where hash is the SHA-1 of user:password in base64, which has 28 characters"
                )
            );
            assert!(message(Config::new().set(name, "")).ends_with("the list is empty"));
            Config::new().set(name, "creator_all").unwrap();
        }
        let has_text = |name: &str| ["acl", "auth.", "sasl.", "tls."].iter().any(|prefix| name.starts_with(prefix));
        for &name in names.iter().filter(|name| !has_text(name)) {
            for value in ["", "x", " 1", "+1", "-1", "1.5", "99999999999", "18446744073709551616", "\u{662}"] {
                let said = message(Config::new().set(name, value));
                assert!(said.starts_with(&format!("option {name} is {value:?}; expected ")), "{said}");
            }
        }
        names.sort_unstable();
        assert!(names.is_sorted_by(|one, other| one < other), "a name occurs twice");
        for value in ["True", "yes", "1", "false "] {
            assert!(message(Config::new().set("chroot.create", value)).ends_with("expected true or false"));
        }
        let mut config = Config::new();
        config.set("chroot.create", "true").unwrap();
        assert!(config.create_chroot);
        config.set("chroot.create", "false").unwrap();
        assert!(!config.create_chroot);
        for (name, value) in [("session.timeout", "5000"), ("connect.timeout", "2147483647"), ("lease.margin", "0")] {
            config.set(name, value).unwrap();
        }
        assert_eq!(config.connect_timeout, Duration::from_millis(2_147_483_647));
        assert_eq!(config.session().timeout, Duration::from_secs(5));
        assert_eq!(config.session().lease_margin, Some(Duration::ZERO));
        config.set("session.max_path_bytes", "1024").unwrap();
        assert_eq!(config.max_path_bytes, 1024);
        let said = message(config.set("session.max_path_bytes", "1023"));
        assert_eq!(said, "option session.max_path_bytes is \"1023\"; expected 1024 to 1073741824 bytes");
    }

    #[test]
    fn secrets_are_not_shown() {
        for value in ["", "x", "hunter2", ":hunter2", "hunter2:", "u:hunter2\n"] {
            let said = message(Config::new().set("auth.digest", value));
            assert_eq!(said, "option auth.digest is not valid; expected user:password", "{value:?}");
        }
        for line in
            ["auth.digest hunter2", "auth.digest: u:hunter2", "auth.digest u:hunter2=3", "auth.digest:u:hunter2=3"]
        {
            let said = parse(line.as_bytes()).unwrap_err();
            assert_eq!(said, ", line 1: \"auth.digest\" is not an option; expected name = value", "{line:?}");
        }
        assert_eq!(
            parse(b"auth.digest = hunter2 # x").unwrap_err(),
            ", line 1: option auth.digest is not valid; expected user:password; a comment needs a line of its own"
        );
        let mut config = Config::new();
        config.set("auth.digest", "u:hunter2").unwrap();
        let shown = format!("{config:?} {:?}", ConfigOption::ALL);
        assert!(!shown.contains("hunter2") && !shown.contains("104, 117"), "{shown}");
    }

    #[test]
    fn digest_and_digest_file_exclude_each_other() {
        let mut config = Config::new();
        for value in ["", "a\0b"] {
            let said = message(config.set("auth.digest_file", value));
            assert!(
                said.starts_with(&format!("option auth.digest_file is {value:?}; expected the name of a file")),
                "{said}"
            );
        }
        config.set("auth.digest_file", "somewhere").unwrap();
        assert!(config.digest_file.as_ref().unwrap().is_absolute());
        config.set("auth.digest", "u:p:q").unwrap();
        assert!(message(config.check()).contains("auth.digest and auth.digest_file are both set"));
    }

    #[test]
    fn tls_options_accept_valid_values_and_refuse_others() {
        for (name, value) in [
            ("tls.ca", ""),
            ("tls.cert", "a\0b"),
            ("tls.enabled", "yes"),
            ("tls.key", ""),
            ("tls.key_password_file", ""),
            ("tls.crl", ""),
            ("tls.verify", "FULL"),
            ("tls.server_name", "not a name"),
            ("tls.server_name", ""),
            ("tls.min_version", "1.1"),
        ] {
            let said = message(Config::new().set(name, value));
            assert!(said.starts_with(&format!("option {name} is {value:?}; expected ")), "{said}");
        }
        assert_eq!(
            message(Config::new().set("tls.key_password", "")),
            "option tls.key_password is not valid; expected a password"
        );
        for (name, value) in [
            ("tls.ca", "ca.pem"),
            ("tls.cert", "client.pem"),
            ("tls.enabled", "true"),
            ("tls.key", "client.pem"),
            ("tls.key_password", "hunter2"),
            ("tls.key_password_file", "password"),
            ("tls.crl", "crl.pem"),
            ("tls.min_version", "1.3"),
            ("tls.server_name", "zk1.example.com"),
            ("tls.server_name", "::1"),
            ("tls.verify", "ca"),
            ("zookeeper.client.secure", "true"),
        ] {
            let mut config = Config::new();
            config.set(name, value).unwrap();
            assert!(config.tls.is_enabled(), "{name}");
            assert!(!format!("{config:?}").contains("hunter2"));
            config.set("tls.enabled", "false").unwrap();
            assert!(!config.tls.is_enabled(), "{name}");
        }
        assert!(!Config::new().tls.is_enabled());
    }

    #[test]
    fn contradictions_of_tls_options_are_named() {
        let said = |options: &[(&str, &str)]| {
            let mut config = Config::new();
            options.iter().for_each(|(name, value)| config.set(name, value).unwrap());
            message(config.check())
        };
        assert!(said(&[("tls.cert", "x")]).starts_with("option tls.cert needs option tls.key"));
        assert!(said(&[("tls.key", "x")]).starts_with("option tls.key needs option tls.cert"));
        assert_eq!(said(&[("tls.key_password", "x")]), "option tls.key_password needs option tls.key");
        assert_eq!(said(&[("tls.key_password_file", "x")]), "option tls.key_password_file needs option tls.key");
        for chain_only in [("tls.verify", "ca"), ("zookeeper.ssl.hostnameVerification", "false")] {
            let expected = "option tls.verify = ca (zookeeper.ssl.hostnameVerification = false) needs option tls.ca: without it, the client would accept every server with a certificate of a public CA, for any name";
            assert_eq!(said(&[chain_only]), expected);
            for further in [("tls.ca", "x"), ("tls.enabled", "false")] {
                let mut config = Config::new();
                [chain_only, further].iter().for_each(|(name, value)| config.set(name, value).unwrap());
                config.check().unwrap();
            }
        }
        let both = [("tls.cert", "x"), ("tls.key", "x"), ("tls.key_password", "x"), ("tls.key_password_file", "x")];
        assert!(said(&both).contains("tls.key_password and tls.key_password_file"));
    }

    #[test]
    fn names_of_zookeeper_set_existing_options() {
        let mut config = Config::new();
        for (name, value) in [
            ("client.secure", "true"),
            ("ssl.keyStore.location", "client.pem"),
            ("ssl.keyStore.password", "hunter2"),
            ("ssl.trustStore.location", "ca.pem"),
            ("ssl.hostnameVerification", "false"),
            ("ssl.enabledProtocols", "TLSv1.3"),
        ] {
            config.set(&format!("zookeeper.{name}"), value).unwrap();
        }
        config.check().unwrap();
        assert!(config.tls.key.is_some() && config.tls.ca.is_some() && config.tls.key_password.is_some());
        assert_eq!(config.tls.verification, Some(Verification::Chain));
        assert!(message(config.set("zookeeper.server.nothing", "X")).contains("no equivalent"));
        for (name, value, said) in [
            ("java.security.auth.login.config", "", "java.security.auth.login.config: \"\" is not the name of a file"),
            ("zookeeper.sasl.clientconfig", "", "zookeeper.sasl.clientconfig: \"\" is not the name of a section"),
            (
                "zookeeper.sasl.client.username",
                "",
                "zookeeper.sasl.client.username: option sasl.service is \"\"; expected",
            ),
        ] {
            let refusal = message(Config::new().set(name, value));
            assert!(refusal.starts_with(said), "{refusal}");
        }
        config.set("java.security.auth.login.config", "jaas.conf").unwrap();
        config.set("zookeeper.sasl.clientconfig", "Client").unwrap();
        config.set("zookeeper.sasl.client.username", "zookeeper").unwrap();
        config.check().unwrap();
        assert!(config.sasl.jaas_file.as_ref().unwrap().is_absolute() && config.uses_credentials());
        config.set("zookeeper.sasl.client", "false").unwrap();
        assert!(message(config.check()).contains("exclude each other"));
    }

    /// If a file sets both `zookeeper.ssl.protocol` and `zookeeper.ssl.enabledProtocols`, the enabled protocols take
    /// precedence, as in ZooKeeper's client.
    #[test]
    fn result_of_protocol_and_enabled_protocols_does_not_depend_on_their_order() {
        let protocol = |version| format!("zookeeper.ssl.protocol = {version}");
        let enabled = |versions| format!("zookeeper.ssl.enabledProtocols = {versions}");
        for (lines, version) in [
            ([protocol("TLSv1.2"), enabled("TLSv1.3")], "1.3"),
            ([protocol("TLSv1.3"), enabled("TLSv1.2,TLSv1.3")], "1.2"),
            ([protocol("TLSv1.3"), String::new()], "1.3"),
            ([protocol("TLSv1.2"), String::new()], "1.2"),
            ([enabled("TLSv1.3"), String::new()], "1.3"),
        ] {
            for lines in [lines.join("\n"), lines.iter().rev().cloned().collect::<Vec<_>>().join("\n")] {
                let mut config = Config::new();
                let options = parse(lines.as_bytes()).unwrap();
                options.iter().for_each(|(name, value)| config.set(name, value).unwrap());
                assert!(config.tls.is_enabled());
                assert!(format!("{:?}", config.tls).contains(&format!("min_version: {version:?}")), "{lines}");
            }
        }
        let mut config = Config::new();
        config.set("tls.min_version", "1.3").unwrap();
        config.set("zookeeper.ssl.protocol", "TLSv1.2").unwrap();
        assert!(format!("{:?}", config.tls).contains("min_version: \"1.3\""));
    }

    #[test]
    fn names_that_set_the_same_option_are_refused_in_a_file() {
        for (one, other, option) in [
            ("tls.verify = full", "zookeeper.ssl.hostnameVerification = false", "tls.verify"),
            ("tls.enabled = true", "zookeeper.client.secure = true", "tls.enabled"),
            ("tls.ca = a", "zookeeper.ssl.trustStore.location = b", "tls.ca"),
            ("tls.cert = a", "zookeeper.ssl.keyStore.location = b", "tls.cert"),
            ("tls.key = a", "zookeeper.ssl.keyStore.location = b", "tls.key"),
            ("tls.key_password = hunter2", "zookeeper.ssl.keyStore.password = hunter3", "tls.key_password"),
            ("tls.key_password_file = a", "zookeeper.ssl.keyStore.passwordPath = b", "tls.key_password_file"),
            ("tls.min_version = 1.3", "zookeeper.ssl.enabledProtocols = TLSv1.2", "tls.min_version"),
            ("tls.min_version = 1.3", "zookeeper.ssl.protocol = TLSv1.2", "tls.min_version"),
        ] {
            for (first, second) in [(one, other), (other, one)] {
                let name = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
                let said = parse(format!("#\n{first}\n{second}").as_bytes()).unwrap_err();
                let (here, there) = (name(second), name(first));
                assert_eq!(
                    said,
                    format!(", line 3: option {option} is set twice: here as {here}, and in line 2 as {there}")
                );
            }
        }
        for name in ["zookeeper.ssl.keyStore.type = PEM", "zookeeper.ssl.protocol = TLSv1.2"] {
            let said = parse(format!("{name}\n{name}").as_bytes()).unwrap_err();
            assert!(said.ends_with(" is set twice; line 1 sets it as well"), "{said}");
        }
        parse(b"zookeeper.ssl.keyStore.type = PEM\nzookeeper.ssl.trustStore.type = PEM").unwrap();
    }

    #[test]
    fn unknown_names_are_refused() {
        for name in ["", "session_timeout", "SESSION.TIMEOUT", "session.timeout ", "tls.cas", "a\0b"] {
            let said = message(Config::new().set(name, "1"));
            assert!(said.starts_with(&format!("option {name:?} is unknown; expected one of ")), "{said}");
            assert!(said.contains("connect.timeout, lease.margin") && said.contains("session.timeout"), "{said}");
        }
    }

    #[test]
    fn files_have_comments_and_blank_lines() {
        let text = "# servers: h:2181\r\n\r\n  session.timeout=6000  \r\n\tlease.margin = 1000\n#\n";
        let options = parse(text.as_bytes()).unwrap();
        let expected = [("session.timeout", "6000"), ("lease.margin", "1000")];
        assert_eq!(options, expected.map(|(name, value)| (name.to_owned(), Zeroizing::new(value.to_owned()))));
        assert_eq!(parse(b"").unwrap(), []);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, said) in [
            ("\n[zklock]\n", ", line 2: \"[zklock]\" is not an option; expected name = value"),
            ("= 3", ", line 1: option \"\" is unknown"),
            ("lease.margin =", ", line 1: option lease.margin is \"\"; expected 0 to "),
            ("lease.margin = 1 # ms", "1m30s; a comment needs a line of its own"),
            (
                "lease.margin = 1\n\nlease.margin = 1",
                ", line 3: option lease.margin is set twice; line 1 sets it as well",
            ),
            ("tls.cas = x", ", line 1: option \"tls.cas\" is unknown"),
        ] {
            let why = parse(text.as_bytes()).unwrap_err();
            assert!(why.contains(said), "{text:?}: {why}");
        }
        assert!(parse(b"#\n#ab\xff").unwrap_err().contains(", line 2: is not UTF-8: byte 0xff at position 3"));
    }

    #[test]
    fn times_can_have_units() {
        for (text, ms) in
            [("1500", 1500), ("500ms", 500), ("1.5s", 1500), ("2m", 120_000), ("1m30s", 90_000), ("1h", 3_600_000)]
        {
            assert_eq!(milliseconds(text), Some(Duration::from_millis(ms)), "{text}");
            Config::new().set("session.timeout", text).unwrap();
        }
        for text in ["", "s", "1.5", "-1s", "1 s", "30s1m", "1m1m", "1m30", "1w", "1e3s", "1..2s", "inf", "1s "] {
            assert_eq!(milliseconds(text), None, "{text}");
        }
        let error = Config::new().set("session.timeout", "1000h").unwrap_err();
        assert!(error.message().contains("expected 1 to 2147483647 milliseconds, or a time with units"), "{error}");
    }

    #[test]
    fn unusable_file_is_refused_with_its_name() {
        let folder = std::env::temp_dir().join(format!("zklock-options-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("options");
        let mut config = Config::new().lease_margin(Duration::from_millis(7));
        let mut said = |path: &Path| message(config.load(path));
        assert!(said(&file).contains("options\": No such file"), "{}", said(&file));
        assert!(said(&folder).contains("is a directory"), "{}", said(&folder));
        assert!(said(Path::new("/dev/zero")).contains("\"/dev/zero\": is not a regular file"));
        assert!(said(Path::new("")).contains("No such file"));
        let pipe = folder.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(said(&pipe).contains("is not a regular file"));
        std::fs::write(&file, vec![b'#'; 64 * 1024 + 1]).unwrap();
        assert!(said(&file).contains("is longer than 65536 bytes"));
        std::fs::write(&file, "lease.margin = 9\nx").unwrap();
        assert!(said(&file).contains("options\", line 2: "));
        assert_eq!(
            config.session().lease_margin,
            Some(Duration::from_millis(7)),
            "a wrong file set some of its options"
        );
        std::fs::write(&file, vec![b'#'; 64 * 1024]).unwrap();
        config.load(&file).unwrap();
        std::fs::write(&file, "lease.margin = 9").unwrap();
        config.load(&file).unwrap();
        assert_eq!(config.session().lease_margin, Some(Duration::from_millis(9)));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
