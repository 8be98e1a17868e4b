//! The settings of the client: the servers, and the options of the library. An option on the command line takes
//! precedence over a variable of the environment, and a variable over the options file.

use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use zklock::internal::{FileOption, read_options_and, time_with_units};
use zklock::{Config, ConfigOption};

use crate::cli::Connection;
use crate::console::Console;
use crate::exit::Failure;
use crate::variables::{self, CONFIG, Environment, SERVERS};

/// The name of the server list in an options file.
const SERVERS_IN_FILE: &str = "servers";
/// The name of the default options file, and the directory of the one that all users share.
const DEFAULT_FILE: &str = "zklock.conf";
const SHARED_DIRECTORY: &str = "/etc";

/// The default of `connect.timeout`.
const USUAL_CONNECT: Duration = Duration::from_secs(10);
/// How long a call that does not wait for the lock may connect: one second until the connection is open, and one second
/// until the server has answered. If the user sets `connect.timeout`, this time counts.
const NONBLOCK_CONNECT: Duration = Duration::from_secs(2);

/// The servers and the options of a client.
pub(crate) struct Settings {
    pub(crate) servers: String,
    pub(crate) config: Config,
    /// The options file that was read.
    pub(crate) file: Option<PathBuf>,
    /// All options that are set, with those of the file first. If an option is set several times, the last one counts.
    options: Vec<FileOption>,
    /// The number of options in the file.
    count_in_file: usize,
}

impl fmt::Debug for Settings {
    /// The values can be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("servers", &self.servers).finish_non_exhaustive()
    }
}

impl Settings {
    /// Reads the settings of this process.
    pub(crate) fn of_process(arguments: &Connection) -> Result<Self, Failure> {
        Self::read(arguments, &std::env::vars_os().collect())
    }

    /// Reads the settings from the arguments, the environment and the options file.
    fn read(arguments: &Connection, environment: &Environment) -> Result<Self, Failure> {
        variables::check_names(environment)?;
        let variable = |name: &str| match environment.get(OsStr::new(name)).map(|value| value.to_str()) {
            None => Ok(None),
            Some(Some(value)) => Ok(Some(value.to_owned())),
            Some(None) => Err(Failure::usage(format!("the variable {name} is not UTF-8 text"))),
        };
        let (mut config, mut options, mut servers) = (Config::new(), Vec::new(), None);
        let file = match &arguments.config {
            Some(file) => Some(file.clone()),
            None => default_file(environment)?,
        };
        let in_file = file.as_ref().map(|file| read_options_and(file, &[SERVERS_IN_FILE])).transpose()?;
        for (name, value) in in_file.into_iter().flatten() {
            if name == SERVERS_IN_FILE {
                servers = Some(value.to_string());
            } else {
                apply(&mut config, &mut options, &name, &value)?;
            }
        }
        let count_in_file = options.len();
        let mut set = |name: &str, value: &str| apply(&mut config, &mut options, name, value);
        for option in ConfigOption::ALL {
            let name = variables::of_option(option.name);
            if let Some(value) = variable(&name)? {
                let wrong = |error: zklock::Error| Failure::usage(format!("the variable {name}: {}", error.message()));
                set(option.name, &value).map_err(wrong)?;
            }
        }
        for (name, value) in &arguments.options {
            if let Some(option) = ConfigOption::secret(name) {
                return Err(visible_secret(name, option));
            }
            set(name, value).map_err(|error| Failure::usage(format!("--option: {}", error.message())))?;
        }
        let servers =
            arguments.servers.clone().map_or_else(|| variable(SERVERS), |servers| Ok(Some(servers)))?.or(servers);
        let servers = servers.ok_or_else(|| {
            Failure::usage(format!(
                "no servers are given; use --servers HOST:PORT,... or set {SERVERS}, or write servers = HOST:PORT,... to the options file"
            ))
        })?;
        Ok(Self { servers, config, file, options, count_in_file })
    }

    /// Returns whether the options file sets an option.
    pub(crate) fn is_in_file(&self, name: &str) -> bool {
        self.options.iter().take(self.count_in_file).any(|(option, _)| option == name)
    }

    /// Returns the options without the credentials and the lists that need them, for a client without rights.
    pub(crate) fn without_credentials(&self) -> zklock::Result<Config> {
        let mut config = Config::new();
        let mut others = self.options.iter().filter(|(name, _)| !name.starts_with("auth.") && !name.starts_with("acl"));
        others.try_for_each(|(name, value)| config.set(name, value)).map(|()| config)
    }

    /// Returns the value of an option, if it is set.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|(option, _)| option == name).map(|(_, value)| value.as_str())
    }

    /// Returns the options of a client for a call with this time limit, which also limits the connecting.
    pub(crate) fn config_within(&self, timeout: Option<Duration>) -> Config {
        let milliseconds = |value: &str| value.parse().ok().map(Duration::from_millis);
        let chosen =
            self.option("connect.timeout").and_then(|value| milliseconds(value).or_else(|| time_with_units(value)));
        let limit = match timeout {
            None => return self.config.clone(),
            Some(Duration::ZERO) => chosen.unwrap_or(NONBLOCK_CONNECT),
            Some(timeout) => chosen.unwrap_or(USUAL_CONNECT).min(timeout),
        };
        self.config.clone().connect_timeout(limit.max(Duration::from_millis(1)))
    }

    /// Prints that the settings protect nothing.
    pub(crate) fn warn(&self, console: &Console) {
        if self.option("tls.verify") == Some("none") {
            console.warn(UNVERIFIED);
        }
    }
}

/// Sets an option, and adds it to the list of options.
fn apply(config: &mut Config, options: &mut Vec<FileOption>, name: &str, value: &str) -> zklock::Result<()> {
    config.set(name, value)?;
    options.push((name.to_owned(), value.to_owned().into()));
    Ok(())
}

/// What `tls.verify=none` means.
pub(crate) const UNVERIFIED: &str =
    "tls.verify is none: anybody between this host and the servers can read and change all data";

/// Returns the options file that is read without `--config`. An empty variable stands for no file.
fn default_file(environment: &Environment) -> Result<Option<PathBuf>, Failure> {
    let directory = |name: &str| environment.get(OsStr::new(name)).filter(|name| !name.is_empty()).map(PathBuf::from);
    if environment.contains_key(OsStr::new(CONFIG)) {
        return Ok(directory(CONFIG));
    }
    let own = directory("XDG_CONFIG_HOME").or_else(|| Some(directory("HOME")?.join(".config")));
    for directory in own.into_iter().chain([SHARED_DIRECTORY.into()]) {
        let file = directory.join(DEFAULT_FILE);
        // Without a file that exists but is not readable, the call could use no TLS.
        match file.try_exists() {
            Ok(true) => return Ok(Some(file)),
            Ok(false) => {}
            Err(error) => return Err(Failure::usage(format!("options file {}: {error}", file.display()))),
        }
    }
    Ok(None)
}

/// Refuses a secret among the arguments, which all users of this machine can read.
fn visible_secret(name: &str, option: &ConfigOption) -> Failure {
    let beside = format!("{}_file", option.name);
    let file = ConfigOption::ALL.iter().find(|file| file.name == beside);
    let file = file.map(|file| format!("--option {}=FILE, ", file.name)).unwrap_or_default();
    Failure::usage(format!(
        "--option {name}: other users of this machine can see a secret among the arguments; use {file}the variable {}, or a file for --config",
        variables::of_option(option.name)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: &[(&str, &str)], environment: &[(&str, &str)]) -> Result<Settings, Failure> {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let arguments = Connection { servers: Some("h:1".to_owned()), options, config: None };
        // The machine can have a default file.
        let all = environment.iter().chain(&[(CONFIG, "")]);
        Settings::read(&arguments, &all.map(|(name, value)| (name.into(), value.into())).collect())
    }

    fn message(options: &[(&str, &str)], environment: &[(&str, &str)]) -> String {
        read(options, environment).unwrap_err().message
    }

    #[test]
    fn wrong_values_name_the_place_and_the_option() {
        read(&[("session.timeout", "5000")], &[("ZKLOCK_LEASE_MARGIN", "100")]).unwrap();
        assert!(
            message(&[("session.timeout", "x")], &[])
                .starts_with("--option: option session.timeout is \"x\"; expected")
        );
        assert!(message(&[("tls", "x")], &[]).starts_with("--option: option \"tls\" is unknown"));
        let said = message(&[], &[("ZKLOCK_SESSION_TIMEOUT", "0")]);
        assert!(
            said.starts_with("the variable ZKLOCK_SESSION_TIMEOUT: option session.timeout is \"0\"; expected"),
            "{said}"
        );
        assert!(!message(&[], &[("ZKLOCK_AUTH_DIGEST", "hunter2")]).contains("hunter2"));
    }

    #[test]
    fn secrets_among_the_arguments_are_refused_with_what_to_use() {
        assert_eq!(
            message(&[("auth.digest", "user:hunter2")], &[]),
            "--option auth.digest: other users of this machine can see a secret among the arguments; \
             use --option auth.digest_file=FILE, the variable ZKLOCK_AUTH_DIGEST, or a file for --config"
        );
        let said = message(&[("sasl.password", "hunter2")], &[]);
        assert!(
            said.contains("use --option sasl.password_file=FILE, the variable ZKLOCK_SASL_PASSWORD, or a file"),
            "{said}"
        );
        assert!(!said.contains("hunter2"), "{said}");
        for name in ["tls.key_password", "zookeeper.ssl.keyStore.password"] {
            let said = message(&[(name, "hunter2")], &[]);
            assert!(said.starts_with(&format!("--option {name}: ")), "{said}");
            assert!(said.contains("the variable ZKLOCK_TLS_KEY_PASSWORD") && !said.contains("hunter2"), "{said}");
        }
        let secrets = [("ZKLOCK_TLS_KEY_PASSWORD", "hunter2")];
        let settings = read(&[("auth.digest_file", "/run/secrets/digest")], &secrets).unwrap();
        assert_eq!(settings.option("auth.digest_file"), Some("/run/secrets/digest"));
    }

    #[test]
    fn the_last_setting_counts_and_limits_the_connecting() {
        let limit = |options: &[(&str, &str)], timeout| {
            let config = read(options, &[]).unwrap().config_within(timeout);
            let text = format!("{config:?}");
            text.split("connect_timeout: ").nth(1).unwrap().split(',').next().unwrap().to_owned()
        };
        let seconds = Duration::from_secs;
        assert_eq!(limit(&[], None), "10s");
        assert_eq!(limit(&[], Some(seconds(3))), "3s");
        assert_eq!(limit(&[], Some(seconds(300))), "10s");
        assert_eq!(limit(&[], Some(Duration::ZERO)), "2s");
        let chosen = [("connect.timeout", "1"), ("connect.timeout", "1m")];
        assert_eq!([Some(Duration::ZERO), Some(seconds(300))].map(|timeout| limit(&chosen, timeout)), ["60s", "60s"]);
    }

    #[test]
    fn without_servers_the_message_names_all_ways_to_set_them() {
        let failure = Settings::read(&Connection::default(), &[(CONFIG.into(), "".into())].into()).unwrap_err();
        assert_eq!(
            failure.message,
            "no servers are given; use --servers HOST:PORT,... or set ZKLOCK_SERVERS, \
             or write servers = HOST:PORT,... to the options file"
        );
    }
}
