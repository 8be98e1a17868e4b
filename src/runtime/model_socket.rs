//! A simulated connection for the models, and the objects with which threads wait for it. The connection transfers
//! bytes without a real socket. A simulated poller notifies the I/O thread once for each change of the connection.

#![allow(dead_code, clippy::needless_pass_by_ref_mut, reason = "what it stands for, and what only tests use")]

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use mio::Token;
use zklock_core::error::Result;

use super::io_thread::IoThread;
use super::sync::Monitor;
use super::tls::TlsStream;

/// The data that a client's connection shares with the threads that wait for the connection.
#[derive(Default)]
pub(super) struct ModelSocket(Monitor<ModelSocketState>);

#[derive(Default)]
struct ModelSocketState {
    /// Bytes that the server has sent and the client has not read yet.
    input: Vec<u8>,
    /// Bytes that the client has sent.
    output: Vec<u8>,
    /// True while the I/O thread waits for input.
    has_read_interest: bool,
    /// True if the poller has reported the input to the I/O thread, but the I/O thread has not read it yet.
    is_reported: bool,
    /// True if the I/O thread must end.
    is_shut_down: bool,
    /// True if the reader must check the connection.
    is_woken: bool,
}

impl ModelSocket {
    /// Removes and returns the bytes that the client has sent.
    pub(super) fn take_output(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().output)
    }

    /// Makes the server send these bytes.
    pub(super) fn push_input(&self, bytes: &[u8]) {
        let mut state = self.0.lock();
        state.input.extend_from_slice(bytes);
        state.is_reported |= state.has_read_interest;
        self.0.notify();
    }

    /// Waits for input on the I/O thread. Returns false if the thread must end.
    pub(super) fn wait_until_reported(&self) -> bool {
        let state = self.0.lock();
        let mut state = self.0.wait_while(state, None, |state| !state.is_reported && !state.is_shut_down);
        std::mem::take(&mut state.is_reported)
    }

    /// Ends the I/O thread.
    pub(super) fn shut_down(&self) {
        self.0.lock().is_shut_down = true;
        self.0.notify();
    }
}

#[derive(Default)]
pub(super) struct SocketWaiter {
    pub(super) wire: Arc<ModelSocket>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WakeReason {
    Readable,
    WokenUp,
    TimedOut,
    #[allow(dead_code, reason = "the model can always wait")]
    CannotWait,
}

impl SocketWaiter {
    pub(super) fn new() -> Result<Self> {
        Ok(Self::default())
    }

    pub(super) fn wake(&self) {
        self.wire.0.lock().is_woken = true;
        self.wire.0.notify();
    }

    pub(super) fn wait(&self, socket: Option<RawFd>, limit: Option<Duration>) -> WakeReason {
        let state = self.wire.0.lock();
        let has_input = |state: &ModelSocketState| socket.is_some() && !state.input.is_empty();
        let mut state = self.wire.0.wait_while(state, limit, |state| !state.is_woken && !has_input(state));
        match (std::mem::take(&mut state.is_woken), has_input(&state)) {
            (_, true) => WakeReason::Readable,
            (true, false) => WakeReason::WokenUp,
            (false, false) => WakeReason::TimedOut,
        }
    }
}

pub(super) struct Connection {
    wire: Arc<ModelSocket>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SocketInterest {
    pub(super) readable: bool,
    pub(super) writable: bool,
}

impl Connection {
    pub(super) fn from_socket(socket: &Arc<ModelSocket>) -> Self {
        Self { wire: Arc::clone(socket) }
    }

    /// Always fails, because clients in the models never open a connection.
    pub(super) fn connect(io: &IoThread, _: Token, _: SocketAddr, _: Option<TlsStream>) -> io::Result<Self> {
        let _ = io.poller();
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn reset_check(&mut self) {}

    pub(super) fn check_usable(&self, _: &IoThread) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn outcome(&self) -> Option<io::Result<String>> {
        None
    }

    pub(super) fn is_encrypted(&self) -> bool {
        false
    }

    pub(super) fn continue_handshake(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    pub(super) fn set_interest(&mut self, watch: SocketInterest) -> io::Result<()> {
        let mut state = self.wire.0.lock();
        if watch.readable != state.has_read_interest {
            state.has_read_interest = watch.readable;
            state.is_reported = watch.readable && !state.input.is_empty();
            self.wire.0.notify();
        }
        Ok(())
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.wire.0.lock();
        if state.input.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        io::Read::read(&mut std::mem::take(&mut state.input).as_slice(), buffer)
    }

    pub(super) fn has_unread(&self) -> bool {
        false
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wire.0.lock().output.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn wants_write(&self) -> bool {
        false
    }

    pub(super) fn close(self) {}

    pub(super) fn socket(&self) -> RawFd {
        0
    }
}
