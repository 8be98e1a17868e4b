//! A connection to a server: its socket, and of what the I/O thread is told about it.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use mio::net::TcpStream;
use mio::{Interest, Token};

use super::io::Io;

/// A socket that never blocks, registered with the I/O thread until it is dropped.
pub(super) struct Connection {
    stream: TcpStream,
    io: Arc<Io>,
    token: Token,
    watch: Watch,
}

/// Of what the I/O thread is told: something that came in, room for what has to go out. Each is told once, and then not until there was none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Watch {
    pub(super) input: bool,
    pub(super) room: bool,
}

impl Connection {
    /// Begins to connect. The I/O thread is told when that is over.
    pub(super) fn begin(io: &Arc<Io>, token: Token, address: SocketAddr) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        // Two requests in two writes must not wait for each other's acknowledgement.
        stream.set_nodelay(true)?;
        io.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self { stream, io: Arc::clone(io), token, watch: Watch { input: true, room: true } })
    }

    /// What came of connecting: this side's address, as servers are told it. None while it is not over.
    pub(super) fn outcome(&self) -> Option<io::Result<String>> {
        match (self.stream.take_error(), self.stream.peer_addr()) {
            (Ok(Some(cause)) | Err(cause), _) => Some(Err(cause)),
            (Ok(None), Ok(_)) => {
                Some(Ok(self.stream.local_addr().map(|address| address.ip().to_string()).unwrap_or_default()))
            }
            (Ok(None), Err(cause)) if cause.kind() == io::ErrorKind::NotConnected => None,
            (Ok(None), Err(cause)) => Some(Err(cause)),
        }
    }

    /// From now on the I/O thread is told of this, and at once where it is so already.
    pub(super) fn set_watch(&mut self, watch: Watch) -> io::Result<()> {
        if watch != self.watch {
            match watch.interest() {
                Some(interest) => self.io.registry().reregister(&mut self.stream, self.token, interest)?,
                None => self.forbid()?,
            }
            self.watch = watch;
        }
        Ok(())
    }

    /// The I/O thread is told of nothing but the connection's end. mio can't say that: the least that it knows is out-of-band data, for
    /// which the kernel wakes the thread with all else that comes in.
    fn forbid(&self) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLET as u32, u64: self.token.0 as u64 };
        // SAFETY: both descriptors are open, and the event is valid for the length of the call.
        let result = unsafe {
            libc::epoll_ctl(self.io.registry().as_raw_fd(), libc::EPOLL_CTL_MOD, self.socket(), &raw mut event)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer)
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    /// For who waits at it.
    pub(super) fn socket(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

impl Watch {
    fn interest(self) -> Option<Interest> {
        match (self.input, self.room) {
            (true, true) => Some(Interest::READABLE | Interest::WRITABLE),
            (true, false) => Some(Interest::READABLE),
            (false, true) => Some(Interest::WRITABLE),
            (false, false) => None,
        }
    }
}
