//! The exit codes of the command. This file is the only place that knows their numbers.

use std::fmt;

use zklock::{Error, Status};

/// The reason why the command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command that ran under the lock ended with this code.
    Command(u8),
    /// A signal ended the command that ran under the lock, or `zklock` itself before the command started.
    Signal(i32),
    /// The arguments, an option or a path are wrong.
    Usage,
    /// No server answered, or a server reported an error.
    Unavailable,
    /// An error in `zklock` itself, or a limit of this machine.
    Internal,
    /// The lock was not acquired in time, or the job has already run in this period.
    Busy,
    /// A server refused the credentials, an access control list forbids the operation, or the certificate of a server
    /// is not valid.
    Denied,
    /// The lock was lost, and the command was ended.
    Lost,
    /// The command finished, but the lock had been lost before.
    Suspect,
    /// The command finished, but no server confirmed the release of the lock.
    Unconfirmed,
    /// Another participant asked for the lock, and the command was ended.
    Revoked,
    /// Another lock recipe uses the path.
    Foreign,
    /// The command could not be executed.
    NotExecutable,
    /// The command was not found.
    NotFound,
}

impl Exit {
    /// The code that the shell sees.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Command(code) => code,
            Self::Signal(signal) => u8::try_from(signal).unwrap_or_default().saturating_add(128),
            Self::Usage => 64,
            Self::Unavailable => 69,
            Self::Internal => 70,
            Self::Busy => 75,
            Self::Denied => 77,
            Self::Lost => 79,
            Self::Suspect => 80,
            Self::Unconfirmed => 81,
            Self::Revoked => 82,
            Self::Foreign => 83,
            Self::NotExecutable => 126,
            Self::NotFound => 127,
        }
    }

    const fn of_status(status: Status) -> Self {
        match status {
            Status::Invalid => Self::Usage,
            Status::Timeout => Self::Busy,
            Status::Connection | Status::Server | Status::Unsupported => Self::Unavailable,
            Status::Auth | Status::Denied => Self::Denied,
            Status::Lost => Self::Lost,
            Status::Foreign => Self::Foreign,
            _ => Self::Internal,
        }
    }
}

/// An end that needs an explanation: the exit code, and one sentence for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Makes the failure of a system call. `doing` names what failed.
    pub(crate) fn system(doing: &str, error: impl fmt::Display) -> Self {
        Self::new(Exit::Internal, format!("{doing} failed: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(Exit::of_status(error.status()), error.message())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_documented_ones() {
        let codes = [
            (Exit::Command(3), 3),
            (Exit::Signal(15), 143),
            (Exit::Usage, 64),
            (Exit::Unavailable, 69),
            (Exit::Internal, 70),
            (Exit::Busy, 75),
            (Exit::Denied, 77),
            (Exit::Lost, 79),
            (Exit::Suspect, 80),
            (Exit::Unconfirmed, 81),
            (Exit::Revoked, 82),
            (Exit::Foreign, 83),
            (Exit::NotExecutable, 126),
            (Exit::NotFound, 127),
        ];
        for (exit, code) in codes {
            assert_eq!(exit.code(), code, "{exit:?}");
        }
    }
}
