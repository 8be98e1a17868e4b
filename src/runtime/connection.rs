//! A connection to a server: its socket, and of what the I/O thread is told about it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use mio::net::TcpStream;
use mio::{Interest, Token};

use super::io::Io;
use super::poller::Poller;
use super::socket::Socket;

/// A socket that never blocks, registered with the I/O thread until it is dropped.
pub(super) struct Connection {
    stream: Socket<TcpStream>,
    poller: Arc<Poller>,
    token: Token,
    watch: Watch,
    /// The socket was found to be ours since the client was locked.
    is_known: bool,
}

/// Of what the I/O thread is told: something that came in, room for what has to go out. Each is told once, and then not until there was none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Watch {
    pub(super) input: bool,
    pub(super) room: bool,
}

impl Connection {
    /// Begins to connect. The I/O thread is told when that is over.
    pub(super) fn begin(io: &Io, token: Token, address: SocketAddr) -> io::Result<Self> {
        let mut stream = Socket::new(TcpStream::connect(address)?)?;
        // Two requests in two writes must not wait for each other's acknowledgement.
        stream.get()?.set_nodelay(true)?;
        let poller = io.poller();
        poller.add(stream.get()?, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self { stream, poller, token, watch: Watch { input: true, room: true }, is_known: false })
    }

    /// What came of connecting: this side's address, as servers are told it. None while it is not over.
    pub(super) fn outcome(&mut self) -> Option<io::Result<String>> {
        let stream = match self.stream.get() {
            Ok(stream) => stream,
            Err(cause) => return Some(Err(cause)),
        };
        match (stream.take_error(), stream.peer_addr()) {
            (Ok(Some(cause)) | Err(cause), _) => Some(Err(cause)),
            (Ok(None), Ok(_)) => {
                Some(Ok(stream.local_addr().map(|address| address.ip().to_string()).unwrap_or_default()))
            }
            (Ok(None), Err(cause)) if cause.kind() == io::ErrorKind::NotConnected => None,
            (Ok(None), Err(cause)) => Some(Err(cause)),
        }
    }

    /// An error if the socket is not ours any more, or the I/O thread waits elsewhere by now.
    pub(super) fn check(&mut self, io: &Io) -> io::Result<()> {
        self.stream.get()?;
        if Arc::ptr_eq(&self.poller, &io.poller()) { Ok(()) } else { Err(io::ErrorKind::NotConnected.into()) }
    }

    /// From now on the I/O thread is told of this, and at once where it is so already.
    pub(super) fn set_watch(&mut self, watch: Watch) -> io::Result<()> {
        if watch != self.watch {
            if !self.is_known {
                self.stream.get()?;
            }
            match watch.interest() {
                Some(interest) => self.poller.change(self.stream.just_checked(), self.token, interest)?,
                None => self.poller.forbid(self.socket(), self.token)?,
            }
            self.watch = watch;
        }
        Ok(())
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let result = self.stream.receive(buffer);
        self.is_known = true;
        result
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.stream.send(bytes);
        self.is_known = true;
        result
    }

    /// The client is locked: by now another part of the program may have closed the socket.
    pub(super) fn locked(&mut self) {
        self.is_known = false;
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
