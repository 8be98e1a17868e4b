//! Lets a calling thread wait until a client's socket is readable. While a calling thread waits, the I/O thread does
//! not read the socket. Other threads can end the wait. The code in this file does not read the socket.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use zklock_core::error::Result;

use super::poller::DESCRIPTOR_CHECK_INTERVAL;
use super::sync::{Mutex, lock};
use super::wake_socket::WakeSocket;

/// An object that lets a thread wait for one client's socket. Only one thread at a time may wait.
pub(super) struct SocketWaiter {
    /// The value is `None` if the descriptor was lost and the library could not create a new descriptor. Without a
    /// descriptor, the waiting thread checks the socket once per `DESCRIPTOR_CHECK_INTERVAL`.
    wake_socket: Mutex<Option<Arc<WakeSocket>>>,
}

/// The reason why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WakeReason {
    /// The socket is readable, or the thread must check whether the socket still belongs to the library.
    Readable,
    /// Another thread, or a signal, has ended the wait.
    WokenUp,
    /// The time limit has passed.
    TimedOut,
    /// The system refuses to wait for the socket, for example because the process has lowered `RLIMIT_NOFILE` below the
    /// number of descriptors.
    CannotWait,
}

impl SocketWaiter {
    /// Errors: EXHAUSTED if the process or the machine has no descriptors left.
    pub(super) fn new() -> Result<Self> {
        Ok(Self { wake_socket: Mutex::new(Some(Arc::new(WakeSocket::new()?))) })
    }

    /// Ends the current wait. If no thread waits, the next wait ends at once.
    pub(super) fn wake(&self) {
        if let Some(alarm) = &*lock(&self.wake_socket) {
            alarm.signal();
        }
    }

    /// Waits until the socket is readable, another thread ends the wait, or `limit` has passed. A thread that closes
    /// the socket also ends this wait. The waiting thread therefore does not use the closed descriptor.
    pub(super) fn wait(&self, socket: Option<RawFd>, limit: Option<Duration>) -> WakeReason {
        let alarm = lock(&self.wake_socket).clone();
        let watched = |fd: Option<RawFd>| libc::pollfd {
            // `ppoll` ignores a negative descriptor.
            fd: fd.unwrap_or(-1),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut polled = [watched(alarm.as_ref().map(|alarm| alarm.as_raw_fd())), watched(socket)];
        let slice = limit.map_or(DESCRIPTOR_CHECK_INTERVAL, |limit| limit.min(DESCRIPTOR_CHECK_INTERVAL));
        let slice_spec = libc::timespec {
            // The slice is at most `DESCRIPTOR_CHECK_INTERVAL`, so its whole seconds fit into `tv_sec`. On musl, the
            // name of the type is deprecated.
            tv_sec: slice.as_secs().try_into().unwrap_or_default(),
            tv_nsec: slice.subsec_nanos().into(),
        };
        // SAFETY: the array has two elements, and the time limit is valid.
        let count = unsafe { libc::ppoll(polled.as_mut_ptr(), 2, &raw const slice_spec, ptr::null()) };
        let [is_woken, has_input] = polled.map(|polled| count > 0 && polled.revents != 0);
        let is_check_due = count == 0 && limit != Some(slice);
        if is_woken || is_check_due {
            self.reset(alarm);
        }
        match count {
            0 if !is_check_due => WakeReason::TimedOut,
            _ if has_input || is_check_due => WakeReason::Readable,
            -1 if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted => WakeReason::CannotWait,
            _ => WakeReason::WokenUp,
        }
    }

    /// Makes the descriptor unreadable again after a wake-up. If the program has closed the descriptor, this method
    /// creates a new descriptor. If the thread kept the old descriptor, an unrelated file with the same descriptor
    /// number could end every wait.
    fn reset(&self, alarm: Option<Arc<WakeSocket>>) {
        match alarm {
            Some(alarm) if alarm.is_ours() => alarm.clear(),
            _ => *lock(&self.wake_socket) = WakeSocket::new().ok().map(Arc::new),
        }
    }
}
