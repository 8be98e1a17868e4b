//! The poller of the I/O thread, which consists of mio's epoll and a wake socket. The poller detects when the program
//! has closed the poller's descriptors. The code in this file does not depend on clients, and uses only their sockets
//! and tokens.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use mio::event::Source;
use mio::{Events, Interest, Poll, Registry, Token};

use super::wake_socket::WakeSocket;

/// The token of the waker. The tokens of clients are larger.
pub(super) const WAKER: Token = Token(0);

/// If a thread waits longer than this time, it interrupts the wait to check that its descriptors still belong to the
/// library. If the program closes a descriptor on which a thread waits, no other thread can wake the waiting thread.
pub(super) const DESCRIPTOR_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The part of the poller that any thread may use.
pub(super) struct Poller {
    registry: ManuallyDrop<Registry>,
    waker: WakeSocket,
}

/// The part of the poller that belongs to the I/O thread.
pub(super) struct CheckedPoll {
    poll: ManuallyDrop<Poll>,
    events: Events,
    poller: Arc<Poller>,
}

impl CheckedPoll {
    pub(super) fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = WakeSocket::open()?;
        control(poll.as_raw_fd(), libc::EPOLL_CTL_ADD, waker.as_raw_fd(), WAKER, libc::EPOLLIN)?;
        let registry = ManuallyDrop::new(poll.registry().try_clone()?);
        let poller = Arc::new(Poller { registry, waker });
        Ok(Self { poll: ManuallyDrop::new(poll), events: Events::with_capacity(256), poller })
    }

    pub(super) fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    /// Returns whether the descriptors of the poller still belong to the library. If the descriptors do not belong to
    /// the library, other threads cannot end the I/O thread's wait.
    pub(super) fn is_ours(&self) -> bool {
        self.poller.is_ours() && self.poller.owns(self.poll.as_raw_fd())
    }

    /// Waits until an event occurs, `limit` has passed, or the I/O thread must check its descriptors again. Returns the
    /// tokens of the clients that have events.
    pub(super) fn wait(&mut self, limit: Option<Duration>) -> io::Result<Vec<Token>> {
        self.events.clear();
        self.poll.poll(
            &mut self.events,
            Some(limit.map_or(DESCRIPTOR_CHECK_INTERVAL, |limit| limit.min(DESCRIPTOR_CHECK_INTERVAL))),
        )?;
        let mut tokens: Vec<Token> = self.events.iter().map(|event| event.token()).collect();
        if tokens.contains(&WAKER) {
            self.poller.waker.clear();
            tokens.retain(|&token| token != WAKER);
        }
        Ok(tokens)
    }
}

impl Drop for CheckedPoll {
    fn drop(&mut self) {
        if self.poller.waker.is_ours() && self.poller.owns(self.poll.as_raw_fd()) {
            // SAFETY: the value is dropped only here, and is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.poll) };
        }
    }
}

impl Poller {
    /// Adds a new socket to the poller. Fails if the poller no longer belongs to the library.
    pub(super) fn add(&self, source: &mut impl Source, token: Token, interest: Interest) -> io::Result<()> {
        if !self.is_ours() {
            let message = "another part of the program has closed the descriptors at which the I/O thread waits";
            return Err(io::Error::other(message));
        }
        self.registry.register(source, token, interest)
    }

    /// Changes the events for which the I/O thread waits on a registered socket. The caller must have checked that the
    /// socket belongs to the library. If the poller's descriptor now names another epoll instance, the call fails,
    /// because the socket is not registered with that instance.
    pub(super) fn change(&self, source: &mut impl Source, token: Token, interest: Interest) -> io::Result<()> {
        self.registry.reregister(source, token, interest)
    }

    /// Makes the poller report only the end of the connection. The library mio has no such setting, because mio always
    /// requests events for some kind of data. Even if mio asks only for out-of-band data, the kernel reports all
    /// received data. If `socket` now refers to a file that is not registered with this poller, the call fails.
    pub(super) fn mask_readiness(&self, socket: RawFd, token: Token) -> io::Result<()> {
        control(self.registry.as_raw_fd(), libc::EPOLL_CTL_MOD, socket, token, 0)
    }

    pub(super) fn wake(&self) {
        self.waker.signal();
    }

    fn is_ours(&self) -> bool {
        self.waker.is_ours() && self.owns(self.registry.as_raw_fd())
    }

    /// Returns whether the descriptor number `epoll` still refers to this poller's epoll instance. The caller must have
    /// checked that the waker belongs to the library. Every epoll file has the same inode number, so this method
    /// instead checks whether the waker is registered with `epoll`.
    fn owns(&self, epoll: RawFd) -> bool {
        control(epoll, libc::EPOLL_CTL_MOD, self.waker.as_raw_fd(), WAKER, libc::EPOLLIN).is_ok()
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: the value is dropped only here, and is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.registry) };
        }
    }
}

/// Calls epoll_ctl(2) to set the events for which `epoll` reports `socket`. If one of the events has already occurred,
/// the kernel reports the event at once.
fn control(epoll: RawFd, what: libc::c_int, socket: RawFd, token: Token, events: libc::c_int) -> io::Result<()> {
    let mut event = libc::epoll_event { events: (libc::EPOLLET | events) as u32, u64: token.0 as u64 };
    // SAFETY: the event is valid during the call. If the number does not refer to an epoll instance, the call fails.
    let result = unsafe { libc::epoll_ctl(epoll, what, socket, &raw mut event) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd, OwnedFd};

    use super::*;

    /// Makes the descriptor `number` refer to a new epoll instance that does not belong to the library.
    fn steal(number: RawFd) -> OwnedFd {
        let stranger = Poll::new().unwrap();
        // SAFETY: the test deliberately replaces the file that the descriptor number refers to.
        assert_eq!(unsafe { libc::dup2(stranger.as_raw_fd(), number) }, number);
        // SAFETY: the number names a new file, which has no other owner.
        unsafe { OwnedFd::from_raw_fd(number) }
    }

    fn is_open(number: &impl AsRawFd) -> bool {
        // SAFETY: the call has no preconditions.
        unsafe { libc::fcntl(number.as_raw_fd(), libc::F_GETFD) >= 0 }
    }

    #[test]
    fn foreign_epoll_is_detected_and_left_open() {
        let poll = CheckedPoll::new().unwrap();
        assert!(poll.is_ours());
        let first = steal(poll.poll.as_raw_fd());
        assert!(!poll.is_ours());
        drop(poll);
        assert!(is_open(&first));

        let poll = CheckedPoll::new().unwrap();
        let second = steal(poll.poller.registry.as_raw_fd());
        assert!(!poll.is_ours());
        let mut socket = mio::net::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        poll.poller.add(&mut socket, Token(7), Interest::READABLE).unwrap_err();
        drop(poll);
        assert!(is_open(&second));
    }

    #[test]
    fn wake_ends_exactly_one_wait() {
        let mut poll = CheckedPoll::new().unwrap();
        poll.poller.wake();
        assert!(poll.wait(None).unwrap().is_empty());
        assert!(poll.is_ours());
        assert!(poll.wait(Some(Duration::ZERO)).unwrap().is_empty());
    }
}
