//! System errors that report a lack of descriptors, threads or memory. All such errors have the status EXHAUSTED. This
//! file makes no system calls.

use std::io;

use zklock_base::error::{Error, Status};

/// Makes an error from a failed system call. The status is EXHAUSTED if a limit was reached, and INTERNAL otherwise.
/// `doing` names the action that failed.
pub fn resource_error(doing: &str, cause: &io::Error) -> Error {
    match exhausted_resource(cause) {
        Some(what) => Error::new(Status::Exhausted, format!("{doing}: {what} ({cause})")),
        None => Error::new(Status::Internal, format!("{doing}: {cause}")),
    }
}

/// Returns the name of the resource that the system lacks, or `None` if the error has another cause.
pub fn exhausted_resource(cause: &io::Error) -> Option<&'static str> {
    match cause.raw_os_error()? {
        libc::EMFILE => Some("the process has no file descriptors left; raise its limit (ulimit -n)"),
        libc::ENFILE => Some("the machine has no file descriptors left"),
        libc::EAGAIN => Some("no more threads can be started; raise the limit on processes (ulimit -u)"),
        libc::ENOMEM | libc::ENOBUFS => Some("the machine has no memory left"),
        _ => None,
    }
}
