//! Conversion into `std::io` errors, for programs whose functions return an [`io::Result`].

use std::io;

use crate::error::{Error, Status};

/// Converts an error into an I/O error whose kind fits the status. The I/O error contains the original error:
/// [`io::Error::get_ref`] and [`io::Error::downcast`] return it.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(kind(error.status()), error)
    }
}

const fn kind(status: Status) -> io::ErrorKind {
    match status {
        Status::Invalid | Status::Handle | Status::Buffer => io::ErrorKind::InvalidInput,
        Status::Timeout => io::ErrorKind::TimedOut,
        Status::Pending => io::ErrorKind::WouldBlock,
        Status::NotOwner | Status::Auth | Status::Denied => io::ErrorKind::PermissionDenied,
        Status::Deadlock => io::ErrorKind::Deadlock,
        Status::Closed | Status::Connection => io::ErrorKind::NotConnected,
        Status::Exhausted => io::ErrorKind::QuotaExceeded,
        Status::Foreign => io::ErrorKind::ResourceBusy,
        Status::Unsupported => io::ErrorKind::Unsupported,
        // The kind `Interrupted` is not suitable here, because callers repeat a call that fails with this kind.
        Status::Canceled | Status::Lost | Status::Forked | Status::Server | Status::Internal => io::ErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_error_wraps_error_with_kind_of_its_status() {
        let error = Error::new(Status::Timeout, "/locks/a: timed out");
        let wrapped = io::Error::from(error.clone());
        assert_eq!((wrapped.kind(), wrapped.to_string()), (io::ErrorKind::TimedOut, error.to_string()));
        assert_eq!(wrapped.get_ref().and_then(|inner| inner.downcast_ref()), Some(&error));
        assert_eq!(wrapped.downcast::<Error>().unwrap(), error);
        for &status in Status::ALL {
            assert_ne!(io::Error::from(Error::from(status)).kind(), io::ErrorKind::Interrupted, "{}", status.name());
        }
        let work = || -> io::Result<()> { Err(Error::from(Status::Denied))? };
        assert_eq!(work().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
