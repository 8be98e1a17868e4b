//! A connection to a server: its socket, its encryption, and the socket conditions for which the I/O thread waits. The
//! code in this file transfers bytes and does not interpret them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use mio::net::TcpStream;
use mio::{Interest, Token};

use super::io_thread::IoThread;
use super::poller::Poller;
use super::socket::CheckedSocket;
use super::tls::TlsStream;

/// A non-blocking socket. The socket stays registered with the I/O thread until this value is dropped.
pub(super) struct Connection {
    stream: CheckedSocket<TcpStream>,
    /// The encryption of the connection. The value is `None` for plain text.
    tls: Option<Box<TlsStream>>,
    poller: Arc<Poller>,
    token: Token,
    interest: SocketInterest,
    /// True if the connection has received any bytes of the session.
    has_received: bool,
    /// True if the thread that has locked the client has already checked that the socket still belongs to the library.
    is_checked: bool,
}

const NO_ANSWER: &str = "the server closed the connection without an answer; it may have no quorum yet, or too many \
                         connections from this address (maxClientCnxns, 60 by default), or its port requires TLS \
                         (tls.enabled)";

/// The conditions for which the I/O thread waits: received data, and room for data to send. The poller reports a
/// condition to the I/O thread only when the condition becomes true (edge-triggered).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SocketInterest {
    pub(super) readable: bool,
    pub(super) writable: bool,
}

impl Connection {
    /// Starts connecting to a server. The I/O thread receives an event when the attempt to connect has ended. The
    /// connection is encrypted if `tls` is not `None`.
    pub(super) fn connect(
        io: &IoThread,
        token: Token,
        address: SocketAddr,
        tls: Option<TlsStream>,
    ) -> io::Result<Self> {
        let mut stream = CheckedSocket::new(TcpStream::connect(address)?)?;
        // Without the option TCP_NODELAY, the kernel would delay a second request until the server has acknowledged the
        // first request.
        stream.checked()?.set_nodelay(true)?;
        let poller = io.poller();
        poller.add(stream.checked()?, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self {
            stream,
            tls: tls.map(Box::new),
            poller,
            token,
            interest: SocketInterest { readable: true, writable: true },
            has_received: false,
            is_checked: false,
        })
    }

    /// Returns the outcome of the attempt to connect: the connection's local IP address, or an error. Returns `None`
    /// while the attempt continues.
    pub(super) fn outcome(&mut self) -> Option<io::Result<String>> {
        let stream = match self.stream.checked() {
            Ok(stream) => stream,
            Err(cause) => return Some(Err(cause)),
        };
        let outcome = match (stream.take_error(), stream.peer_addr()) {
            (Ok(Some(cause)) | Err(cause), _) => Some(Err(cause)),
            (Ok(None), Ok(_)) => {
                Some(Ok(stream.local_addr().map(|address| address.ip().to_string()).unwrap_or_default()))
            }
            (Ok(None), Err(cause)) if cause.kind() == io::ErrorKind::NotConnected => None,
            (Ok(None), Err(cause)) => Some(Err(cause)),
        };
        match outcome {
            // The server may have closed the connection before this thread looks at it.
            Some(Err(cause)) if self.is_refused(cause.kind()) => Some(Err(io::Error::other(NO_ANSWER))),
            outcome => outcome,
        }
    }

    /// Returns whether the connection is encrypted.
    pub(super) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Continues the TLS handshake as far as possible without blocking. Returns true if the handshake is complete, or
    /// the connection needs no handshake.
    pub(super) fn continue_handshake(&mut self) -> io::Result<bool> {
        match &mut self.tls {
            Some(tls) => tls.continue_handshake(&self.stream),
            None => Ok(true),
        }
    }

    /// Fails if the socket no longer belongs to the library, or if the I/O thread has replaced its poller.
    pub(super) fn check_usable(&mut self, io: &IoThread) -> io::Result<()> {
        self.stream.checked()?;
        if Arc::ptr_eq(&self.poller, &io.poller()) { Ok(()) } else { Err(io::ErrorKind::NotConnected.into()) }
    }

    /// Changes the socket conditions that the I/O thread waits for. If a condition is already true, the I/O thread
    /// receives an event at once.
    pub(super) fn set_interest(&mut self, watch: SocketInterest) -> io::Result<()> {
        if watch != self.interest {
            match watch.to_mio() {
                Some(interest) if self.is_checked => {
                    self.poller.change(self.stream.unchecked(), self.token, interest)?;
                }
                Some(interest) => self.poller.change(self.stream.checked()?, self.token, interest)?,
                // A calling thread is about to wait for the socket. The thread checks the socket before it reads.
                None => self.poller.mask_readiness(self.socket(), self.token)?,
            }
            self.interest = watch;
        }
        Ok(())
    }

    /// Reads bytes of the session. Returns 0 if the server has closed the connection.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let result = match &mut self.tls {
            Some(tls) => tls.read(&self.stream, buffer),
            None => self.stream.receive(buffer),
        };
        self.is_checked = true;
        match result {
            Ok(0) if self.is_unanswered() => Err(io::Error::other(NO_ANSWER)),
            Err(cause) if self.is_refused(cause.kind()) => Err(io::Error::other(NO_ANSWER)),
            result => {
                self.has_received |= result.is_ok();
                result
            }
        }
    }

    /// Returns whether an error says that the server has closed the connection before it has sent anything. A server that
    /// requires TLS closes a plain-text connection in this way, and a server with too many connections closes a new one.
    fn is_refused(&self, cause: io::ErrorKind) -> bool {
        self.is_unanswered() && matches!(cause, io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
    }

    /// Returns whether the connection has no encryption and has received nothing.
    fn is_unanswered(&self) -> bool {
        !self.has_received && self.tls.is_none()
    }

    /// Returns whether the connection contains decrypted bytes. The next read returns these bytes without reading the
    /// socket.
    pub(super) fn has_unread(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_unread())
    }

    /// Sends bytes of the session. Returns the number of bytes that the connection has accepted.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = match &mut self.tls {
            Some(tls) => tls.write(&self.stream, bytes),
            None => self.stream.send(bytes),
        };
        self.is_checked = true;
        match result {
            Err(cause) if self.is_refused(cause.kind()) => Err(io::Error::other(NO_ANSWER)),
            result => result,
        }
    }

    /// Sends the accepted bytes for which the socket had no room. With TLS, a read can also produce records that must
    /// be sent.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => tls.flush(&self.stream),
            None => Ok(()),
        }
    }

    /// Returns whether [`flush`](Self::flush) has something to send.
    pub(super) fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// If the connection uses TLS, notifies the server that the client closes the connection on purpose.
    pub(super) fn close(mut self) {
        if let Some(tls) = &mut self.tls {
            tls.close(&self.stream);
        }
    }

    /// Marks the socket as unchecked, so that the next use checks it again. A thread calls this method after it has
    /// locked the client, because the program may already have closed the socket.
    pub(super) fn reset_check(&mut self) {
        self.is_checked = false;
    }

    /// The descriptor of the socket, for a thread that waits until the socket is readable.
    pub(super) fn socket(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

impl SocketInterest {
    fn to_mio(self) -> Option<Interest> {
        match (self.readable, self.writable) {
            (true, true) => Some(Interest::READABLE | Interest::WRITABLE),
            (true, false) => Some(Interest::READABLE),
            (false, true) => Some(Interest::WRITABLE),
            (false, false) => None,
        }
    }
}
