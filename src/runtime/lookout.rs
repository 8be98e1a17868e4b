//! Where a thread waits that reads a client's socket in the place of the I/O thread: at the socket, and for whoever wakes it.

use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::time::Duration;

use super::eventfd::EventFd;
use crate::error::Result;

/// One client's. One thread at a time waits at it.
pub(super) struct Lookout {
    alarm: EventFd,
}

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// The socket has something.
    Input,
    /// Somebody has woken who waits; or a signal has.
    Alarm,
    /// The limit is over.
    Nothing,
}

impl Lookout {
    /// Errors: EXHAUSTED where the process or the machine has no descriptors left.
    pub(super) fn new() -> Result<Self> {
        Ok(Self { alarm: EventFd::new()? })
    }

    /// Wakes who waits; where nobody does, the next one finds it so.
    pub(super) fn wake(&self) {
        self.alarm.signal();
    }

    /// Waits until the socket has something, somebody wakes, or `limit` is over. A socket that another thread has closed meanwhile does no
    /// harm: whoever closes it wakes.
    pub(super) fn wait(&self, socket: Option<RawFd>, limit: Option<Duration>) -> Seen {
        let watched = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // A negative descriptor is passed over.
        let mut polled = [watched(self.alarm.as_raw_fd()), watched(socket.unwrap_or(-1))];
        let limit = limit.map(|limit| libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        // SAFETY: the array is as long as is said, and the limit is valid or null.
        let count = unsafe {
            let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
            libc::ppoll(polled.as_mut_ptr(), 2, limit, ptr::null())
        };
        let [alarm, socket] = polled.map(|polled| count > 0 && polled.revents != 0);
        if alarm {
            self.alarm.clear();
        }
        match count {
            0 => Seen::Nothing,
            _ if socket => Seen::Input,
            // It fails where a signal has come; for all else, memory would have to be short.
            _ => Seen::Alarm,
        }
    }
}
