//! Descriptors for programs that poll: readable once they were signalled. They are sockets, since nothing distinguishes an eventfd from another
//! eventfd under the same number.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;

use super::resource;
use super::socket::Socket;
use crate::error::{Error, Result};

/// A descriptor that is readable once it was signalled, until it is cleared. A forked child inherits it, and an executed program does not. It
/// consists of two descriptors, which are closed when it is dropped.
#[derive(Debug)]
pub struct EventFd {
    readable: Socket<UnixDatagram>,
    far: Socket<UnixDatagram>,
}

impl EventFd {
    /// One that is not readable yet. Errors: EXHAUSTED where the process or the machine has no descriptors left.
    pub fn new() -> Result<Self> {
        Self::open().map_err(no_descriptor)
    }

    pub(super) fn open() -> io::Result<Self> {
        // Of datagrams: when they are closed, a duplicate that the program keeps is readable, and no more than that.
        let (readable, far) = UnixDatagram::pair()?;
        Ok(Self { readable: Socket::new(readable)?, far: Socket::new(far)? })
    }

    /// Makes it readable.
    pub fn signal(&self) {
        // It fails if there is no more room, and is readable then; and if it was lost.
        let _ = self.far.send(&[1]);
    }

    /// Makes it unreadable again.
    pub fn clear(&self) {
        // Nothing at all is read from a socket that the program has shut down.
        while matches!(self.readable.receive(&mut [0; 1]), Ok(1..)) {}
    }

    /// Whether it still works. If another part of the program has closed it, it never becomes readable, and its number may be another file's.
    pub fn is_ours(&self) -> bool {
        self.readable.is_ours() && self.far.is_ours()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.readable.as_raw_fd()
    }
}

/// A descriptor that becomes readable once, and stays so. It consists of one descriptor.
#[derive(Debug)]
pub struct OnceFd(Socket<UnixDatagram>);

impl OnceFd {
    /// One that is not readable yet. Errors: EXHAUSTED where the process or the machine has no descriptors left.
    pub fn new() -> Result<Self> {
        // A datagram socket does not notice that the other one is closed.
        let open = || {
            let (readable, far) = UnixDatagram::pair()?;
            drop(Socket::new(far)?);
            Socket::new(readable)
        };
        open().map(Self).map_err(no_descriptor)
    }

    /// Makes it readable.
    pub fn signal(&mut self) {
        if let Ok(socket) = self.0.get() {
            // The end of all that comes in can be read. It does not fail on a socket that is open.
            let _ = socket.shutdown(Shutdown::Read);
        }
    }

    /// Whether it still works, as [`EventFd::is_ours`].
    pub fn is_ours(&self) -> bool {
        self.0.is_ours()
    }
}

impl AsRawFd for OnceFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn no_descriptor(cause: io::Error) -> Error {
    resource::refused("creating a pair of sockets", &cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `poll` says of it, for a moment or two.
    fn events(fd: &impl AsRawFd) -> libc::c_short {
        let mut polled = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the array has one element.
        unsafe { libc::poll(&raw mut polled, 1, 0) };
        polled.revents
    }

    #[test]
    fn it_is_readable_from_signal_to_clear() {
        let fd = EventFd::new().unwrap();
        assert_eq!(events(&fd), 0);
        // More often than there is room for.
        (0..10_000).for_each(|_| fd.signal());
        assert_eq!(events(&fd), libc::POLLIN);
        fd.clear();
        assert_eq!(events(&fd), 0);
        fd.signal();
        assert_eq!(events(&fd), libc::POLLIN);
    }

    #[test]
    fn once_is_for_good() {
        let mut fd = OnceFd::new().unwrap();
        assert_eq!(events(&fd), 0);
        fd.signal();
        fd.signal();
        assert_eq!(events(&fd), libc::POLLIN);
    }
}
