//! The settings of the client: the servers, and the options of the library. An option on the command line takes
//! precedence over a variable of the environment, and a variable over the options file.

use std::ffi::OsString;
use std::time::Duration;

use zklock::internal::{read_options, time_with_units};
use zklock::{Config, ConfigOption};

use crate::cli::Connection;
use crate::exit::Failure;

/// The variable with the server list.
const SERVERS: &str = "ZKLOCK_SERVERS";
/// The variable with the name of the options file.
const CONFIG: &str = "ZKLOCK_CONFIG";

/// The option with the time limit for connecting, and its default.
const CONNECT_TIMEOUT: &str = "connect.timeout";
const USUAL_CONNECT: Duration = Duration::from_secs(10);
/// How long a call that does not wait for the lock may connect: one second until the connection is open, and one second
/// until the server has answered. If the user sets `connect.timeout`, this time counts.
const NONBLOCK_CONNECT: Duration = Duration::from_secs(2);

/// The servers and the options of a client.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) servers: String,
    pub(crate) config: Config,
    /// The value of `connect.timeout`, if the user has set it.
    connect_timeout: Option<Duration>,
}

impl Settings {
    /// Reads the settings from the arguments, the environment and the options file.
    pub(crate) fn read(
        arguments: &Connection,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Failure> {
        let variable = |name: &str| match environment(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(value)) => Ok(Some(value)),
            Some(Err(_)) => Err(Failure::usage(format!("the variable {name} is not UTF-8 text"))),
        };
        let servers = match &arguments.servers {
            Some(servers) => Some(servers.clone()),
            None => variable(SERVERS)?,
        };
        let servers = servers.ok_or_else(|| {
            Failure::usage(format!("no servers are given; use --servers HOST:PORT,... or set {SERVERS}"))
        })?;
        let (mut config, mut connect_timeout) = (Config::new(), None);
        let mut set = |name: &str, value: &str| {
            config.set(name, value)?;
            if name == CONNECT_TIMEOUT {
                connect_timeout = value.parse().ok().map(Duration::from_millis).or_else(|| time_with_units(value));
            }
            Ok::<(), zklock::Error>(())
        };
        let file = match &arguments.config {
            Some(file) => Some(file.clone()),
            None => environment(CONFIG).map(Into::into),
        };
        if let Some(file) = file {
            for (name, value) in read_options(file)? {
                set(&name, &value)?;
            }
        }
        for option in ConfigOption::ALL {
            let name = variable_name(option.name);
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
        Ok(Self { servers, config, connect_timeout })
    }

    /// Returns the options of a client for a call with this time limit, which also limits the connecting.
    pub(crate) fn config_within(&self, timeout: Option<Duration>) -> Config {
        let limit = match timeout {
            None => return self.config.clone(),
            Some(Duration::ZERO) => self.connect_timeout.unwrap_or(NONBLOCK_CONNECT),
            Some(timeout) => self.connect_timeout.unwrap_or(USUAL_CONNECT).min(timeout),
        };
        self.config.clone().connect_timeout(limit.max(Duration::from_millis(1)))
    }
}

/// Refuses a secret among the arguments, which all users of this machine can read.
fn visible_secret(name: &str, option: &ConfigOption) -> Failure {
    let beside = format!("{}_file", option.name);
    let file = ConfigOption::ALL.iter().find(|file| file.name == beside);
    let file = file.map(|file| format!("--option {}=FILE, ", file.name)).unwrap_or_default();
    Failure::usage(format!(
        "--option {name}: other users of this machine can see a secret among the arguments; use {file}the variable {}, or a file for --config",
        variable_name(option.name)
    ))
}

/// Returns the variables that contain secrets. The command that runs under the lock does not need them.
pub(crate) fn secret_variables() -> impl Iterator<Item = String> {
    let options = ConfigOption::ALL.iter().map(|option| option.name);
    options.filter(|name| ConfigOption::secret(name).is_some()).map(variable_name)
}

/// Returns the name of the variable for an option: upper case, with underscores instead of dots.
fn variable_name(option: &str) -> String {
    format!("ZKLOCK_{}", option.to_uppercase().replace('.', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: &[(&str, &str)], environment: &[(&str, &str)]) -> Result<Settings, Failure> {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let arguments = Connection { servers: Some("h:1".to_owned()), options, config: None };
        Settings::read(&arguments, |wanted| {
            environment.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.into())
        })
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
        read(&[("auth.digest_file", "/run/secrets/digest")], &[("ZKLOCK_TLS_KEY_PASSWORD", "hunter2")]).unwrap();
    }

    #[test]
    fn without_servers_the_message_names_both_ways_to_set_them() {
        let failure = Settings::read(&Connection::default(), |_| None).unwrap_err();
        assert_eq!(failure.message, "no servers are given; use --servers HOST:PORT,... or set ZKLOCK_SERVERS");
    }
}
