//! A descriptor for programs that poll: readable once it was signalled, until it is cleared.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::error::{Error, Result, Status};

/// An eventfd, which a forked child inherits and an executed program does not. Closed when it is dropped.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// One that is not readable yet. Errors: EXHAUSTED where the process or the machine has no descriptors left.
    pub fn new() -> Result<Self> {
        // SAFETY: no preconditions.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            let message = format!("no descriptor to be had: {}", io::Error::last_os_error());
            return Err(Error::new(Status::Exhausted, message));
        }
        // SAFETY: just made, and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes it readable.
    pub fn signal(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: the buffer has that many bytes. It fails where 2^64-2 signals were given, and it is readable then.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes it unreadable again.
    pub fn clear(&self) {
        let mut count = 0_u64.to_ne_bytes();
        // SAFETY: the buffer has that many bytes. It fails where nothing was signalled, and it is not readable then.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
