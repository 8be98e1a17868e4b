//! The one table of statuses, and the error value that carries one with its story.
//!
//! The C header, `zkl_strerror`, `zkl_status_errno`, the Python exceptions and the documentation are all made from, or
//! checked against, the table below. Numbers are never reused.

use std::borrow::Cow;
use std::ffi::c_int;

use crate::proto::Code;

macro_rules! statuses {
    ($($(#[doc = $doc:literal])+ $variant:ident, $number:literal, $name:literal, $errno:expr, $python:literal, $text:literal;)+) => {
        /// How a call ended when it did not succeed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(i32)]
        #[non_exhaustive]
        pub enum Status {
            $($(#[doc = $doc])+ $variant = $number,)+
        }

        impl Status {
            /// Every status, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The number that C programs see; negative.
            pub const fn number(self) -> i32 {
                self as i32
            }

            /// The status with this number.
            pub const fn from_number(number: i32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The name of the C macro.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// One sentence for people.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// The `errno` value that comes nearest.
            pub const fn errno(self) -> c_int {
                match self { $(Self::$variant => $errno,)+ }
            }

            /// The Python exception that stands for it.
            pub const fn python(self) -> &'static str {
                match self { $(Self::$variant => $python,)+ }
            }
        }
    };
}

statuses! {
    /// An argument can't be right.
    Invalid, -1, "ZKL_E_INVALID", libc::EINVAL, "ValueError", "invalid argument";
    /// The handle is stale, was freed, or is of another kind.
    Handle, -2, "ZKL_E_HANDLE", libc::EBADF, "ValueError", "not a live handle of this kind";
    /// The deadline passed before the lock was got.
    Timeout, -3, "ZKL_E_TIMEOUT", libc::ETIMEDOUT, "LockTimeout", "timed out before the lock was acquired";
    /// Another thread cancelled the wait.
    Canceled, -4, "ZKL_E_CANCELED", libc::ECANCELED, "Canceled", "the wait was canceled";
    /// The caller does not hold the lock.
    NotOwner, -5, "ZKL_E_NOT_OWNER", libc::EPERM, "NotOwner", "the caller does not hold the lock";
    /// The hold was lost: its session ended or its node was removed.
    Lost, -6, "ZKL_E_LOST", libc::ESTALE, "LockLost", "the lock was lost while it was held";
    /// The call would wait for its own caller.
    Deadlock, -7, "ZKL_E_DEADLOCK", libc::EDEADLK, "Deadlock", "the caller would wait for itself";
    /// The client or the handle was closed.
    Closed, -8, "ZKL_E_CLOSED", libc::ESHUTDOWN, "ClientClosed", "the client or the handle was closed";
    /// No server answered in time.
    Connection, -9, "ZKL_E_CONNECTION", libc::ENOTCONN, "ConnectionLost", "no ZooKeeper server answered in time";
    /// The server refused the credentials.
    Auth, -10, "ZKL_E_AUTH", libc::EACCES, "AuthFailed", "authentication failed";
    /// An access control list forbids the operation.
    Denied, -11, "ZKL_E_DENIED", libc::EACCES, "PermissionDenied", "an access control list forbids it";
    /// The handle was made before `fork()`, and this is the child.
    Forked, -12, "ZKL_E_FORKED", libc::ECHILD, "Forked", "the handle belongs to the parent of this forked process";
    /// The caller's buffer is too small.
    Buffer, -13, "ZKL_E_BUFFER", libc::ERANGE, "Error", "the buffer is too small";
    /// A limit was reached: file descriptors, threads, handles, the sequence numbers of a path, or a count.
    Exhausted, -14, "ZKL_E_EXHAUSTED", libc::EOVERFLOW, "Exhausted", "a limit was reached: descriptors, threads, handles, or sequence numbers";
    /// A contender of another lock family uses the path.
    Foreign, -15, "ZKL_E_FOREIGN", libc::EBUSY, "ForeignContender", "a contender of another lock family is on this path";
    /// The server answered with an error that has no status of its own.
    Server, -16, "ZKL_E_SERVER", libc::EIO, "ServerError", "the ZooKeeper server reported an error";
    /// A defect of zklock itself.
    Internal, -17, "ZKL_E_INTERNAL", libc::ENOTRECOVERABLE, "Error", "internal error in zklock";
    /// This kind of lock, or this server, can't do it.
    Unsupported, -18, "ZKL_E_UNSUPPORTED", libc::EOPNOTSUPP, "Error", "not supported by this lock or server";
}

/// A failed call: its status, and a message that names the value or the server it is about.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    status: Status,
    message: Cow<'static, str>,
}

impl Error {
    /// An error with a message of its own.
    pub fn new(status: Status, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Status::Invalid, message)
    }

    /// What a server's error code means to the caller; `doing` says what was being done to what.
    pub(crate) fn from_code(code: Code, doing: &str) -> Self {
        let status = match code {
            Code::NO_AUTH => Status::Denied,
            Code::AUTH_FAILED | Code::SESSION_CLOSED_REQUIRE_SASL_AUTH => Status::Auth,
            Code::UNIMPLEMENTED => Status::Unsupported,
            _ => Status::Server,
        };
        // The server's word for it, and our own where a frame would be, or is, too long.
        let hint = if code == Code::MARSHALLING_ERROR { ", or it was too long for one frame" } else { "" };
        Self::new(status, format!("{doing}: the server answered {code}{hint}"))
    }

    /// The status, for programs.
    pub const fn status(&self) -> Status {
        self.status
    }

    /// The message, for people.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self::new(status, status.text())
    }
}

/// What fallible calls return.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_fixed_ones_without_gaps() {
        for (index, status) in Status::ALL.iter().enumerate() {
            assert_eq!(status.number(), -(i32::try_from(index).unwrap() + 1), "{}", status.name());
            assert_eq!(Status::from_number(status.number()), Some(*status));
            assert!(status.errno() > 0);
        }
        assert_eq!(Status::from_number(0), None);
        assert_eq!(Status::from_number(-19), None);
    }
}
