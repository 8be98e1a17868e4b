//! What it means that the system refuses a descriptor, a thread or memory: one status for all of them.

use std::io;

use crate::error::{Error, Status};

/// Why the system refused what `doing` needs: EXHAUSTED if a limit was reached, else INTERNAL.
pub fn refused(doing: &str, cause: &io::Error) -> Error {
    match shortage(cause) {
        Some(what) => Error::new(Status::Exhausted, format!("{doing}: {what} ({cause})")),
        None => Error::new(Status::Internal, format!("{doing}: {cause}")),
    }
}

/// What has run out, if that is why the system refused something.
pub(super) fn shortage(cause: &io::Error) -> Option<&'static str> {
    match cause.raw_os_error()? {
        libc::EMFILE => Some("the process has no file descriptors left; raise its limit (ulimit -n)"),
        libc::ENFILE => Some("the machine has no file descriptors left"),
        libc::EAGAIN => Some("no more threads can be started; raise the limit on processes (ulimit -u)"),
        libc::ENOMEM | libc::ENOBUFS => Some("the machine has no memory left"),
        _ => None,
    }
}
