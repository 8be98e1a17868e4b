//! The table of statuses, and the error type. An error consists of a status and a message.
//!
//! The table below is the only source of the statuses. The C header, `zkl_strerror`, `zkl_status_errno`, the Python
//! exceptions and the documentation are generated from this table or checked against it. The number of a removed status
//! is never reused.

use std::borrow::Cow;
use std::ffi::c_int;
use std::fmt;

use zklock_proto::Code;

use crate::errno;

macro_rules! statuses {
    ($($(#[doc = $doc:literal])+ $variant:ident, $number:literal, $name:literal, $errno:expr, $python:literal, $text:literal;)+) => {
        /// The reason why a call failed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(i32)]
        #[non_exhaustive]
        pub enum Status {
            $($(#[doc = $doc])+ $variant = $number,)+
        }

        impl Status {
            /// All statuses, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The number of the status in C. It is negative.
            pub const fn number(self) -> i32 {
                self as i32
            }

            /// Returns the status with this number, or `None` if no status has this number.
            pub const fn from_number(number: i32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The name of the macro in C.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// A description in one sentence, without a full stop.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// The closest `errno` value.
            pub const fn errno(self) -> c_int {
                match self { $(Self::$variant => $errno,)+ }
            }

            /// The name of the Python exception.
            pub const fn python(self) -> &'static str {
                match self { $(Self::$variant => $python,)+ }
            }
        }
    };
}

statuses! {
    /// An argument is not valid.
    Invalid, -1, "ZKL_E_INVALID", errno::EINVAL, "InvalidArgument", "invalid argument";
    /// The handle was freed, is of another kind, or never existed. Only functions of the C library fail with this
    /// status.
    Handle, -2, "ZKL_E_HANDLE", errno::EBADF, "InternalError", "the handle was freed, is of another kind, or never existed";
    /// The timeout passed before the lock was acquired.
    Timeout, -3, "ZKL_E_TIMEOUT", errno::ETIMEDOUT, "LockTimeout", "timed out before the lock was acquired";
    /// The program canceled the wait.
    Canceled, -4, "ZKL_E_CANCELED", errno::ECANCELED, "Canceled", "the wait was canceled";
    /// The owner does not hold the lock.
    NotOwner, -5, "ZKL_E_NOT_OWNER", errno::EPERM, "NotOwner", "the caller does not hold the lock";
    /// The hold was lost: its session ended, or its node was deleted.
    Lost, -6, "ZKL_E_LOST", errno::ESTALE, "LockLost", "the lock was lost while it was held";
    /// The caller would wait for itself, or it would wait in a handler.
    Deadlock, -7, "ZKL_E_DEADLOCK", errno::EDEADLK, "Deadlock", "the caller would wait for itself";
    /// The client, the lock or the semaphore was closed.
    Closed, -8, "ZKL_E_CLOSED", errno::ESHUTDOWN, "ClientClosed", "the client or the handle was closed";
    /// No server answered in time. If the process has no file descriptor or memory left for a connection, the status is
    /// [`Exhausted`](Self::Exhausted) instead.
    Connection, -9, "ZKL_E_CONNECTION", errno::ENOTCONN, "ConnectionLost", "no ZooKeeper server answered in time";
    /// A server refused the credentials, or one side refused a certificate.
    Auth, -10, "ZKL_E_AUTH", errno::EACCES, "AuthFailed", "authentication failed";
    /// An access control list does not allow the operation.
    Denied, -11, "ZKL_E_DENIED", errno::EACCES, "PermissionDenied", "an access control list denies the operation";
    /// The client was made before `fork()`, and the calling process is the child.
    Forked, -12, "ZKL_E_FORKED", errno::ECHILD, "Forked", "the handle belongs to the parent of this forked process";
    /// The caller's buffer is too small. Only functions of the C library fail with this status.
    Buffer, -13, "ZKL_E_BUFFER", errno::ERANGE, "InternalError", "the buffer is too small";
    /// A limit was reached. There are limits for file descriptors, threads, handles, memory, the total length of the
    /// node paths of a session, and the sequence numbers of a path.
    Exhausted, -14, "ZKL_E_EXHAUSTED", errno::EOVERFLOW, "Exhausted", "a limit was reached, for example on the number of descriptors, threads or sequence numbers";
    /// Another lock recipe uses the path.
    Foreign, -15, "ZKL_E_FOREIGN", errno::EBUSY, "ForeignContender", "another lock recipe uses this path";
    /// The server reported an error that no other status describes.
    Server, -16, "ZKL_E_SERVER", errno::EIO, "ServerError", "the ZooKeeper server reported an error";
    /// An error in zklock itself.
    Internal, -17, "ZKL_E_INTERNAL", errno::ENOTRECOVERABLE, "InternalError", "internal error in zklock";
    /// This kind of lock, or this server, does not support the operation.
    Unsupported, -18, "ZKL_E_UNSUPPORTED", errno::EOPNOTSUPP, "Unsupported", "not supported by this lock or server";
    /// The operation is still running. Only functions of the C library fail with this status.
    Pending, -19, "ZKL_E_PENDING", errno::EINPROGRESS, "InternalError", "the operation is still running";
}

/// The error of a failed call: a status, and a message that names the value or the server that caused the failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    status: Status,
    message: Cow<'static, str>,
}

impl Error {
    /// Makes an error from a status and a message. Control characters in the message are escaped, because the message
    /// may contain text of a server or of another program, for example the name of a node.
    pub fn new(status: Status, message: impl Into<Cow<'static, str>>) -> Self {
        let message = message.into();
        let message = if message.contains(is_unprintable) { escaped(&message).into() } else { message };
        Self { status, message }
    }

    /// Makes an error with the status INVALID. Only the crates of zklock use this function.
    #[doc(hidden)]
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Status::Invalid, message)
    }

    /// Converts the error code of a server into an error. `doing` names the request that failed, for the message. Only
    /// the crates of zklock use this function.
    #[doc(hidden)]
    pub fn from_code(code: Code, doing: &str) -> Self {
        let status = match code {
            Code::NO_AUTH => Status::Denied,
            Code::AUTH_FAILED | Code::SESSION_CLOSED_REQUIRE_SASL_AUTH => Status::Auth,
            Code::UNIMPLEMENTED => Status::Unsupported,
            _ => Status::Server,
        };
        let hint = match code {
            Code::NO_CHILDREN_FOR_EPHEMERALS => {
                "; a node on the path is ephemeral, so it cannot have children: choose a path that is not below the node of a lock or of another session"
            }
            Code::QUOTA_EXCEEDED => {
                "; a quota of the path or of a node above it is used up: delete nodes below that node, or raise the quota (setquota)"
            }
            Code::SESSION_CLOSED_REQUIRE_SASL_AUTH => {
                "; the servers require an authenticated client (enforce.auth.schemes or sessionRequireClientSASLAuth): set sasl.mechanism for the scheme sasl, auth.digest for digest, or tls.cert and tls.key for x509"
            }
            _ => "",
        };
        Self::new(status, format!("{doing}: the server answered {code}{hint}"))
    }

    /// Adds the permission that the request requires on the node at `path`, if a server denied the request. Only the
    /// crates of zklock use this function.
    #[doc(hidden)]
    #[must_use]
    pub fn requiring(self, permission: impl fmt::Display, path: &str) -> Self {
        match self.status {
            Status::Denied => {
                let message = format!("{self}; this requires the permission {permission} on {path}");
                Self::new(Status::Denied, message)
            }
            _ => self,
        }
    }

    /// Returns the status, which the program can compare.
    pub const fn status(&self) -> Status {
        self.status
    }

    /// Returns the message, which is for people and logs.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self::new(status, status.text())
    }
}

/// Returns whether a character could change a terminal or a log file, or the order of the text.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unprintable(c) { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    escaped
}

/// The result of a call that can fail.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_in_a_message_is_escaped() {
        let error = Error::new(Status::Server, "a\u{1b}[31m\n\u{85}\u{202e}b \"ä\\n\u{1f512}\"");
        assert_eq!(error.message(), "a\\u{1b}[31m\\n\\u{85}\\u{202e}b \"ä\\n\u{1f512}\"");
        assert_eq!(Error::new(Status::Server, "plain").message(), "plain");
    }

    #[test]
    fn numbers_are_the_fixed_ones_without_gaps() {
        for (index, status) in Status::ALL.iter().enumerate() {
            assert_eq!(status.number(), -(i32::try_from(index).unwrap() + 1), "{}", status.name());
            assert_eq!(Status::from_number(status.number()), Some(*status));
            assert!(status.errno() > 0);
        }
        assert_eq!(Status::from_number(0), None);
        assert_eq!(Status::from_number(-20), None);
    }
}
