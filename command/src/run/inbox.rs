//! Everything that can wake the wrapper: signals, messages of the guardian, and events of the library.

use std::io;
use std::os::fd::OwnedFd;
use std::process::exit;
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};
use rustix::process::{Pid, getpid};

use super::guardian::Guardian;
use super::signals::{self, Received, Signals};
use crate::exit::{Exit, Failure};

/// Wakes the wrapper from another thread.
#[derive(Debug, Clone)]
pub(crate) struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(crate) fn wake(&self) {
        // A full counter already wakes the wrapper.
        let _ = write(&*self.0, &1_u64.to_ne_bytes());
    }
}

/// The signals and wake-ups of this process.
#[derive(Debug)]
pub(crate) struct Inbox {
    signals: Signals,
    waker: Waker,
}

impl Inbox {
    pub(crate) fn new(signals: Signals) -> Result<Self, Failure> {
        let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Failure::system("making an event descriptor", error))?;
        Ok(Self { signals, waker: Waker(Arc::new(counter)) })
    }

    pub(crate) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Waits until something happens, for at most `limit`.
    pub(crate) fn wait(&self, guardian: Option<&Guardian>, limit: Option<Duration>) -> Result<(), Failure> {
        let source = guardian.map(|guardian| PollFd::new(guardian.link(), PollFlags::IN));
        self.wait_with(source.into_iter().collect(), limit)
    }

    /// Waits until something happens, also on other descriptors, for at most `limit`.
    pub(crate) fn wait_with<'s>(
        &'s self,
        mut sources: Vec<PollFd<'s>>,
        limit: Option<Duration>,
    ) -> Result<(), Failure> {
        let limit = limit.map(|limit| Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 }));
        sources.extend([PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&*self.waker.0, PollFlags::IN)]);
        match poll(&mut sources, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Failure::system("waiting for events", error)),
        }
        // The counter is 0 again after the read. Without a wake-up, the read fails.
        let _ = read(&*self.waker.0, &mut [0; 8]);
        Ok(())
    }

    /// Returns a signal that has arrived, or `None`.
    pub(crate) fn signal(&self) -> Result<Option<Received>, Failure> {
        self.signals.take().map_err(|error: io::Error| Failure::system("reading a signal", error))
    }

    /// Returns a signal that ends this process, if one has arrived.
    pub(crate) fn ending_signal(&self) -> Result<Option<i32>, Failure> {
        while let Some(received) = self.signal()? {
            if received.is_ending() {
                return Ok(Some(received.signal));
            }
        }
        Ok(None)
    }
}

/// Makes INT, TERM, HUP and QUIT end this process, if it is the first process of a container. The kernel discards these
/// signals if such a process does not wait for them. The function has no effect in other processes, which the signals
/// end anyway. The process must not have other threads, and must not wait for these signals itself.
pub(crate) fn end_first_process_on_signal() -> Result<(), Failure> {
    if getpid() != Pid::INIT {
        return Ok(());
    }
    let (signals, _) = signals::block()?;
    let inbox = Inbox::new(signals)?;
    let end = move || {
        while let Ok(signal) = inbox.wait(None, None).and_then(|()| inbox.ending_signal()) {
            if let Some(signal) = signal {
                exit(Exit::Signal(signal).code().into());
            }
        }
    };
    Builder::new().spawn(end).map(drop).map_err(|error| Failure::system("starting a thread", error))
}
