//! Wake sockets. One thread polls a wake socket's descriptor. Another thread makes the descriptor readable to wake the
//! polling thread. A wake socket is not an eventfd, because the library cannot distinguish its own eventfd from an
//! eventfd of the program. The code in this file does not poll descriptors.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;

use zklock_core::error::{Error, Result};
use zklock_process::resource_error;

use super::socket::CheckedSocket;

/// A descriptor. Calling [`signal`](Self::signal) makes the descriptor readable, and it stays readable until a call to
/// [`clear`](Self::clear). A forked child inherits the descriptor, but a program started by exec does not. This value
/// uses two descriptors of the process, and closes them when it is dropped.
#[derive(Debug)]
pub struct WakeSocket {
    readable: CheckedSocket<UnixDatagram>,
    peer: CheckedSocket<UnixDatagram>,
}

impl WakeSocket {
    /// Creates a descriptor that is initially not readable. Errors: EXHAUSTED if the process or the machine has no
    /// descriptors left.
    pub fn new() -> Result<Self> {
        Self::open().map_err(no_descriptor)
    }

    pub(super) fn open() -> io::Result<Self> {
        // The library uses datagram sockets here, because the program may have a duplicate of the descriptor. When the
        // library closes its datagram sockets, poll(2) reports no error for the duplicate.
        let (readable, far) = UnixDatagram::pair()?;
        Ok(Self { readable: CheckedSocket::new(readable)?, peer: CheckedSocket::new(far)? })
    }

    /// Makes the descriptor readable.
    pub fn signal(&self) {
        // If the buffer is full, `send` fails, but the descriptor is already readable. `send` also fails if the program
        // has closed the descriptor.
        let _ = self.peer.send(&[1]);
    }

    /// Makes the descriptor unreadable.
    pub fn clear(&self) {
        // If the program has shut the socket down, `receive` returns 0 bytes.
        while matches!(self.readable.receive(&mut [0; 1]), Ok(1..)) {}
    }

    /// Returns whether the descriptor still works. If another part of the program has closed the descriptor, the
    /// library cannot make it readable. The descriptor number may then refer to another file.
    pub fn is_ours(&self) -> bool {
        self.readable.is_ours() && self.peer.is_ours()
    }
}

impl AsRawFd for WakeSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.readable.as_raw_fd()
    }
}

/// A descriptor that becomes readable once and stays readable. This value uses one descriptor of the process.
#[derive(Debug)]
pub struct OnceWakeSocket(CheckedSocket<UnixDatagram>);

impl OnceWakeSocket {
    /// Creates a descriptor that is initially not readable. Errors: EXHAUSTED if the process or the machine has no
    /// descriptors left.
    pub fn new() -> Result<Self> {
        // A datagram socket does not become readable when its peer is closed.
        let open = || {
            let (readable, far) = UnixDatagram::pair()?;
            drop(CheckedSocket::new(far)?);
            CheckedSocket::new(readable)
        };
        open().map(Self).map_err(no_descriptor)
    }

    /// Makes the descriptor readable.
    pub fn signal(&mut self) {
        if let Ok(socket) = self.0.checked() {
            // After this shutdown, a read reports the end of the data, so the socket is readable. Shutting down an open
            // socket does not fail.
            let _ = socket.shutdown(Shutdown::Read);
        }
    }

    /// Returns whether the descriptor still works ([`WakeSocket::is_ours`]).
    pub fn is_ours(&self) -> bool {
        self.0.is_ours()
    }
}

impl AsRawFd for OnceWakeSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn no_descriptor(cause: io::Error) -> Error {
    resource_error("creating a pair of sockets", &cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns, without waiting, the events that `poll` reports for the descriptor.
    fn events(fd: &impl AsRawFd) -> libc::c_short {
        let mut polled = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the array has one element.
        unsafe { libc::poll(&raw mut polled, 1, 0) };
        polled.revents
    }

    #[test]
    fn wake_socket_is_readable_from_signal_to_clear() {
        let fd = WakeSocket::new().unwrap();
        assert_eq!(events(&fd), 0);
        // These calls write more data than fits in the socket's buffer.
        (0..10_000).for_each(|_| fd.signal());
        assert_eq!(events(&fd), libc::POLLIN);
        fd.clear();
        assert_eq!(events(&fd), 0);
        fd.signal();
        assert_eq!(events(&fd), libc::POLLIN);
    }

    #[test]
    fn once_wake_socket_stays_readable() {
        let mut fd = OnceWakeSocket::new().unwrap();
        assert_eq!(events(&fd), 0);
        fd.signal();
        fd.signal();
        assert_eq!(events(&fd), libc::POLLIN);
    }
}
