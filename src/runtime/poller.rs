//! Where the I/O thread waits: an epoll of mio's and what wakes it, and how to find out that they are not ours any more.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use mio::event::Source;
use mio::{Events, Interest, Poll, Registry, Token};

use super::eventfd::EventFd;

/// The waker's token; clients have the numbers above.
pub(super) const WAKER: Token = Token(0);

/// How long a thread waits at descriptors before it looks whether they are still ours: a wait at closed ones can't be ended from outside.
pub(super) const PATROL: Duration = Duration::from_secs(1);

/// What any thread may do to the poller.
pub(super) struct Poller {
    registry: ManuallyDrop<Registry>,
    waker: EventFd,
}

/// The I/O thread's own part.
pub(super) struct Waiting {
    poll: ManuallyDrop<Poll>,
    events: Events,
    poller: Arc<Poller>,
}

impl Waiting {
    pub(super) fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = EventFd::open()?;
        control(poll.as_raw_fd(), libc::EPOLL_CTL_ADD, waker.as_raw_fd(), WAKER, libc::EPOLLIN)?;
        let registry = ManuallyDrop::new(poll.registry().try_clone()?);
        let poller = Arc::new(Poller { registry, waker });
        Ok(Self { poll: ManuallyDrop::new(poll), events: Events::with_capacity(256), poller })
    }

    pub(super) fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    /// Whether the thread can wait here, and be woken.
    pub(super) fn is_ours(&self) -> bool {
        self.poller.is_ours() && self.poller.owns(self.poll.as_raw_fd())
    }

    /// Waits until something happens, `limit` is over or it is time to look whether this is still ours. Gives who has something to do.
    pub(super) fn wait(&mut self, limit: Option<Duration>) -> io::Result<Vec<Token>> {
        self.events.clear();
        self.poll.poll(&mut self.events, Some(limit.map_or(PATROL, |limit| limit.min(PATROL))))?;
        let mut tokens: Vec<Token> = self.events.iter().map(|event| event.token()).collect();
        if tokens.contains(&WAKER) {
            self.poller.waker.clear();
            tokens.retain(|&token| token != WAKER);
        }
        Ok(tokens)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.poller.waker.is_ours() && self.poller.owns(self.poll.as_raw_fd()) {
            // SAFETY: dropped here only, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.poll) };
        }
    }
}

impl Poller {
    /// Has the thread wait for a new socket as well. Errors: one that says so if the poller is not ours any more.
    pub(super) fn add(&self, source: &mut impl Source, token: Token, interest: Interest) -> io::Result<()> {
        if self.is_ours() { self.registry.register(source, token, interest) } else { Err(lost()) }
    }

    /// Changes what a socket is waited for, which must be ours. The call fails if the poller is not: a stranger's does not know the socket.
    pub(super) fn change(&self, source: &mut impl Source, token: Token, interest: Interest) -> io::Result<()> {
        self.registry.reregister(source, token, interest)
    }

    /// Has the thread wait for nothing but the connection's end. mio can't say that: the least that it knows is out-of-band data, for which the
    /// kernel wakes the thread with all else that comes in. As with `change`, the socket must be ours.
    pub(super) fn forbid(&self, socket: RawFd, token: Token) -> io::Result<()> {
        control(self.registry.as_raw_fd(), libc::EPOLL_CTL_MOD, socket, token, 0)
    }

    pub(super) fn wake(&self) {
        self.waker.signal();
    }

    fn is_ours(&self) -> bool {
        self.waker.is_ours() && self.owns(self.registry.as_raw_fd())
    }

    /// Whether this number is still that of the poller, if the waker is ours. All of epoll's files look the same, but only ours knows the waker.
    fn owns(&self, epoll: RawFd) -> bool {
        control(epoll, libc::EPOLL_CTL_MOD, self.waker.as_raw_fd(), WAKER, libc::EPOLLIN).is_ok()
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: dropped here only, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.registry) };
        }
    }
}

/// Says what a socket is waited for. What is so already is reported at once.
fn control(epoll: RawFd, what: libc::c_int, socket: RawFd, token: Token, events: libc::c_int) -> io::Result<()> {
    let mut event = libc::epoll_event { events: (libc::EPOLLET | events) as u32, u64: token.0 as u64 };
    // SAFETY: the event is valid for the length of the call. On a number that is no epoll, the call fails.
    let result = unsafe { libc::epoll_ctl(epoll, what, socket, &raw mut event) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn lost() -> io::Error {
    io::Error::other("another part of the program has closed the descriptors at which the I/O thread waits")
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd, OwnedFd};

    use super::*;

    /// Gives a number to a new epoll of a stranger's.
    fn steal(number: RawFd) -> OwnedFd {
        let stranger = Poll::new().unwrap();
        // SAFETY: the number is taken from its owner, which is what is being tested.
        assert_eq!(unsafe { libc::dup2(stranger.as_raw_fd(), number) }, number);
        // SAFETY: the number has a new file, which is owned by nobody else.
        unsafe { OwnedFd::from_raw_fd(number) }
    }

    fn is_open(number: &impl AsRawFd) -> bool {
        // SAFETY: no preconditions.
        unsafe { libc::fcntl(number.as_raw_fd(), libc::F_GETFD) >= 0 }
    }

    #[test]
    fn a_strangers_epoll_is_noticed_and_left_open() {
        let waiting = Waiting::new().unwrap();
        assert!(waiting.is_ours());
        let first = steal(waiting.poll.as_raw_fd());
        assert!(!waiting.is_ours());
        drop(waiting);
        assert!(is_open(&first));

        let waiting = Waiting::new().unwrap();
        let second = steal(waiting.poller.registry.as_raw_fd());
        assert!(!waiting.is_ours());
        let mut socket = mio::net::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        waiting.poller.add(&mut socket, Token(7), Interest::READABLE).unwrap_err();
        drop(waiting);
        assert!(is_open(&second));
    }

    #[test]
    fn waking_ends_a_wait_and_is_not_told_twice() {
        let mut waiting = Waiting::new().unwrap();
        waiting.poller.wake();
        assert!(waiting.wait(None).unwrap().is_empty());
        assert!(waiting.is_ours());
        assert!(waiting.wait(Some(Duration::ZERO)).unwrap().is_empty());
    }
}
