//! In the models, a client's connection and its lookout: a socket whose bytes are moved by hand, and the poller that tells the I/O
//! thread of it, each time once.

#![allow(dead_code, clippy::needless_pass_by_ref_mut, reason = "what it stands for, and what only tests use")]

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use mio::Token;

use super::io::Io;
use super::sync::Monitor;
use crate::error::Result;

/// What a client's lookout and its connection share.
#[derive(Default)]
pub(super) struct Wire(Monitor<Ends>);

#[derive(Default)]
struct Ends {
    /// What the server has sent, and nobody has read.
    input: Vec<u8>,
    /// What the client has sent.
    output: Vec<u8>,
    /// The I/O thread is to be told of input.
    is_watched: bool,
    /// It is told, and has not looked yet.
    is_told: bool,
    /// There is nothing more for it to do.
    is_over: bool,
    /// The reader is to look.
    alarm: bool,
}

impl Wire {
    /// Gives the server what the client has sent.
    pub(super) fn take_output(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().output)
    }

    /// The server has sent this.
    pub(super) fn arrive(&self, bytes: &[u8]) {
        let mut ends = self.0.lock();
        ends.input.extend_from_slice(bytes);
        ends.is_told |= ends.is_watched;
        self.0.notify();
    }

    /// What the I/O thread waits for. False where there is nothing more to do.
    pub(super) fn poll(&self) -> bool {
        let ends = self.0.lock();
        let mut ends = self.0.wait_while(ends, None, |ends| !ends.is_told && !ends.is_over);
        std::mem::take(&mut ends.is_told)
    }

    /// Ends the I/O thread.
    pub(super) fn end(&self) {
        self.0.lock().is_over = true;
        self.0.notify();
    }
}

#[derive(Default)]
pub(super) struct Lookout {
    pub(super) wire: Arc<Wire>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    Input,
    Alarm,
    Nothing,
}

impl Lookout {
    pub(super) fn new() -> Result<Self> {
        Ok(Self::default())
    }

    pub(super) fn wake(&self) {
        self.wire.0.lock().alarm = true;
        self.wire.0.notify();
    }

    pub(super) fn wait(&self, socket: Option<RawFd>, limit: Option<Duration>) -> Seen {
        let ends = self.wire.0.lock();
        let has_input = |ends: &Ends| socket.is_some() && !ends.input.is_empty();
        let mut ends = self.wire.0.wait_while(ends, limit, |ends| !ends.alarm && !has_input(ends));
        match (std::mem::take(&mut ends.alarm), has_input(&ends)) {
            (_, true) => Seen::Input,
            (true, false) => Seen::Alarm,
            (false, false) => Seen::Nothing,
        }
    }
}

pub(super) struct Connection {
    wire: Arc<Wire>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Watch {
    pub(super) input: bool,
    pub(super) room: bool,
}

impl Connection {
    pub(super) fn over(wire: &Arc<Wire>) -> Self {
        Self { wire: Arc::clone(wire) }
    }

    /// Nobody connects.
    pub(super) fn begin(io: &Io, _: Token, _: SocketAddr) -> io::Result<Self> {
        let _ = io.poller();
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn locked(&mut self) {}

    pub(super) fn check(&self, _: &Io) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn outcome(&self) -> Option<io::Result<String>> {
        None
    }

    pub(super) fn set_watch(&mut self, watch: Watch) -> io::Result<()> {
        let mut ends = self.wire.0.lock();
        if watch.input != ends.is_watched {
            ends.is_watched = watch.input;
            ends.is_told = watch.input && !ends.input.is_empty();
            self.wire.0.notify();
        }
        Ok(())
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut ends = self.wire.0.lock();
        if ends.input.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        io::Read::read(&mut std::mem::take(&mut ends.input).as_slice(), buffer)
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wire.0.lock().output.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    pub(super) fn socket(&self) -> RawFd {
        0
    }
}
