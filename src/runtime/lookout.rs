//! Where a thread waits that reads a client's socket in the place of the I/O thread: at the socket, and for whoever wakes it.

use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::eventfd::EventFd;
use super::poller::PATROL;
use super::sync::{Mutex, lock};
use crate::error::Result;

/// One client's. One thread at a time waits at it.
pub(super) struct Lookout {
    /// None if it was lost, and there was no descriptor for another one: then the thread that waits looks once in a patrol.
    alarm: Mutex<Option<Arc<EventFd>>>,
}

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// The socket has something, or it is time to look whether it is ours.
    Input,
    /// Somebody has woken who waits; or a signal has.
    Alarm,
    /// The limit is over.
    Nothing,
}

impl Lookout {
    /// Errors: EXHAUSTED where the process or the machine has no descriptors left.
    pub(super) fn new() -> Result<Self> {
        Ok(Self { alarm: Mutex::new(Some(Arc::new(EventFd::new()?))) })
    }

    /// Wakes who waits; where nobody does, the next one finds it so.
    pub(super) fn wake(&self) {
        if let Some(alarm) = &*lock(&self.alarm) {
            alarm.signal();
        }
    }

    /// Waits until the socket has something, somebody wakes, or `limit` is over. A socket that another thread has closed meanwhile does no
    /// harm: whoever closes it wakes.
    pub(super) fn wait(&self, socket: Option<RawFd>, limit: Option<Duration>) -> Seen {
        let alarm = lock(&self.alarm).clone();
        let watched = |fd: Option<RawFd>| libc::pollfd {
            // A negative descriptor is passed over.
            fd: fd.unwrap_or(-1),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut polled = [watched(alarm.as_ref().map(|alarm| alarm.as_raw_fd())), watched(socket)];
        let slice = limit.map_or(PATROL, |limit| limit.min(PATROL));
        let slice_spec = libc::timespec {
            tv_sec: libc::time_t::try_from(slice.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: slice.subsec_nanos().into(),
        };
        // SAFETY: the array is as long as is said, and the limit is valid.
        let count = unsafe { libc::ppoll(polled.as_mut_ptr(), 2, &raw const slice_spec, ptr::null()) };
        let [is_rung, has_input] = polled.map(|polled| count > 0 && polled.revents != 0);
        let is_patrol = count == 0 && limit != Some(slice);
        if is_rung || is_patrol {
            self.take(alarm);
        }
        match count {
            0 if !is_patrol => Seen::Nothing,
            _ if has_input || is_patrol => Seen::Input,
            // It fails where a signal has come; for all else, memory would have to be short.
            _ => Seen::Alarm,
        }
    }

    /// Ends an alarm. One that was lost is replaced: a stranger's file under its number would end every wait.
    fn take(&self, alarm: Option<Arc<EventFd>>) {
        match alarm {
            Some(alarm) if alarm.is_ours() => alarm.clear(),
            _ => *lock(&self.alarm) = EventFd::new().ok().map(Arc::new),
        }
    }
}
