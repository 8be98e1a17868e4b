//! The environment variables of the command: the names that it knows, and the refusal of all other names that begin with
//! `ZKLOCK_`. A misspelled name would otherwise have no effect, without a message.

use std::collections::BTreeMap;
use std::ffi::OsString;

use zklock::ConfigOption;

use crate::exit::Failure;

/// The variable with the server list.
pub(crate) const SERVERS: &str = "ZKLOCK_SERVERS";
/// The variable with the name of the options file.
pub(crate) const CONFIG: &str = "ZKLOCK_CONFIG";
/// The locks that are held above a process.
pub(crate) const HELD: &str = "ZKLOCK_HELD";
/// The number of the status descriptor of a command.
pub(crate) const STATUS_FD: &str = "ZKLOCK_STATUS_FD";
/// The process id of the holder process of a script.
pub(crate) const HOLD_PID: &str = "ZKLOCK_HOLD_PID";
/// What describes a hold to the programs that run under it.
pub(crate) const OF_HOLD: [&str; 8] = [
    "ZKLOCK_PATH",
    "ZKLOCK_NODE",
    "ZKLOCK_MODE",
    "ZKLOCK_FENCE",
    "ZKLOCK_SESSION",
    "ZKLOCK_OWNER",
    "ZKLOCK_WAITED_MS",
    HELD,
];

const PREFIX: &str = "ZKLOCK_";
/// Variables of the programs that load the library.
const OF_EXAMPLES: [&str; 2] = ["ZKLOCK_HEADER", "ZKLOCK_LIBRARY"];
/// Kubernetes sets variables that begin like this for a service with the name `zklock`.
const OF_KUBERNETES: [&str; 2] = ["ZKLOCK_SERVICE_", "ZKLOCK_PORT"];

/// The variables of a process.
pub(crate) type Environment = BTreeMap<OsString, OsString>;

/// Returns the name of the variable for an option: upper case, with underscores instead of dots.
pub(crate) fn of_option(option: &str) -> String {
    format!("{PREFIX}{}", option.to_uppercase().replace('.', "_"))
}

/// Returns the variables that contain secrets. The command that runs under the lock does not need them.
pub(crate) fn secrets() -> impl Iterator<Item = String> {
    ConfigOption::ALL.iter().filter(|option| option.is_secret).map(|option| of_option(option.name))
}

/// Fails if a variable has a name that begins with `ZKLOCK_` and that no part of the command knows.
pub(crate) fn check_names(environment: &Environment) -> Result<(), Failure> {
    let known: Vec<String> = ConfigOption::ALL.iter().map(|option| of_option(option.name)).collect();
    let known: Vec<&str> =
        known.iter().map(String::as_str).chain([SERVERS, CONFIG, STATUS_FD, HOLD_PID]).chain(OF_HOLD).collect();
    let is_unknown = |name: &&str| {
        name.starts_with(PREFIX)
            && !known.contains(name)
            && !OF_EXAMPLES.contains(name)
            && !OF_KUBERNETES.iter().any(|prefix| name.starts_with(prefix))
    };
    let Some(name) = environment.keys().filter_map(|name| name.to_str()).find(is_unknown) else { return Ok(()) };
    let nearest = known.into_iter().min_by_key(|known| distance(name, known)).unwrap_or_default();
    Err(Failure::usage(format!("the variable {name} is unknown; the nearest name is {nearest}")))
}

/// Counts the letters that differ between two names (Levenshtein distance).
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.bytes().enumerate() {
        let mut next = vec![at + 1];
        for (wanted, pair) in other.bytes().zip(row.windows(2)) {
            if let ([diagonal, above], Some(left)) = (pair, next.last()) {
                next.push((diagonal + usize::from(letter != wanted)).min(above + 1).min(left + 1));
            }
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_refused_with_the_nearest_one() {
        let check = |name: &str| check_names(&BTreeMap::from([(name.into(), "x".into())]));
        for (wrong, nearest) in [
            ("ZKLOCK_TLS_CAFILE", "ZKLOCK_TLS_CA"),
            ("ZKLOCK_SERVER", "ZKLOCK_SERVERS"),
            ("ZKLOCK_SESSIONTIMEOUT", "ZKLOCK_SESSION_TIMEOUT"),
        ] {
            let expected = format!("the variable {wrong} is unknown; the nearest name is {nearest}");
            assert_eq!(check(wrong).unwrap_err().message, expected);
        }
        for name in ["ZKLOCK_TLS_CA", "ZKLOCK_FENCE", "ZKLOCK_STATUS_FD", "ZKLOCK_PORT_2181_TCP", "ZKLOC", "PATH"] {
            check(name).unwrap();
        }
    }
}
