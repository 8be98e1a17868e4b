//! What a client can be told before it connects.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{DEFAULT_MAX_PATH_BYTES, Event};
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::proto::DEFAULT_FRAME_LIMIT;
use crate::runtime::Handlers;
use crate::session::SessionConfig;

/// A client's settings. Each setter checks its value at once. [`Config::set`] sets the same by name.
#[derive(Clone)]
pub struct Config {
    session_timeout: Duration,
    connect_timeout: Duration,
    lease_margin: Option<Duration>,
    auth: Vec<(String, Vec<u8>)>,
    frame_limit: usize,
    max_path_bytes: usize,
    wait_for_kazoo: bool,
    create_chroot: bool,
    ends_in_background: bool,
    handler: Option<Arc<EventHandler>>,
    calls: Calls,
}

/// Who calls a program's handlers.
#[derive(Clone)]
pub(crate) enum Calls {
    /// The dispatcher thread.
    OnThread,
    /// The program, by a descriptor.
    Polled,
    /// The program, when this was called.
    Rung(Arc<Bell>),
}

/// What a program wants to be called with when a handler waits.
pub(crate) type Bell = dyn Fn(Handlers) + Send + Sync;

/// What a program wants to be called with events.
pub(crate) type EventHandler = dyn Fn(&Event) + Send + Sync;

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither credentials nor functions.
        f.debug_struct("Config")
            .field("session_timeout", &self.session_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("lease_margin", &self.lease_margin)
            .field("frame_limit", &self.frame_limit)
            .field("max_path_bytes", &self.max_path_bytes)
            .field("wait_for_kazoo", &self.wait_for_kazoo)
            .field("create_chroot", &self.create_chroot)
            .finish_non_exhaustive()
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            session_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            lease_margin: None,
            auth: Vec::new(),
            frame_limit: DEFAULT_FRAME_LIMIT,
            max_path_bytes: DEFAULT_MAX_PATH_BYTES,
            wait_for_kazoo: false,
            create_chroot: false,
            ends_in_background: false,
            handler: None,
            calls: Calls::OnThread,
        }
    }
}

impl Config {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long the servers keep a session they do not hear of. They may negotiate another value. Default: 10 s.
    pub fn set_session_timeout(&mut self, timeout: Duration) -> Result<()> {
        self.session_timeout = milliseconds("session timeout", timeout)?;
        Ok(())
    }

    /// How long [`Client::connect`](crate::Client::connect) may take. Default: 10 s.
    pub fn set_connect_timeout(&mut self, timeout: Duration) -> Result<()> {
        self.connect_timeout = milliseconds("connect timeout", timeout)?;
        Ok(())
    }

    /// How long before a session can end its locks cease to count as held. Larger is safer, smaller rides out longer
    /// interruptions; it always leaves a third of the negotiated session timeout. Default: a third.
    pub fn set_lease_margin(&mut self, margin: Duration) -> Result<()> {
        if margin.as_millis() > i32::MAX as u128 {
            return Err(Error::invalid(format!(
                "lease margin {} ms: at most {} ms are allowed",
                margin.as_millis(),
                i32::MAX
            )));
        }
        self.lease_margin = Some(margin);
        Ok(())
    }

    /// Adds credentials, for instance `digest` and `user:password`. They are sent on every connection, in this order.
    pub fn add_auth(&mut self, scheme: &str, auth: &[u8]) -> Result<()> {
        const LIMIT: usize = 64 * 1024;
        if scheme.is_empty() || scheme.len() > 255 || scheme.chars().any(char::is_control) {
            return Err(Error::invalid(format!(
                "auth scheme {}: expected a name like digest",
                crate::path::quote(scheme)
            )));
        }
        if auth.len() > LIMIT {
            return Err(Error::invalid(format!("auth of {} bytes: at most {LIMIT} are allowed", auth.len())));
        }
        self.auth.push((scheme.to_owned(), auth.to_vec()));
        Ok(())
    }

    /// Larger frames from a server are refused, like the Java client's `jute.maxbuffer`. Default: 1 MiB.
    pub fn set_frame_limit(&mut self, bytes: usize) -> Result<()> {
        if !(1024..=1 << 30).contains(&bytes) {
            return Err(Error::invalid(format!("frame limit {bytes}: expected 1024 to {} bytes", 1 << 30)));
        }
        self.frame_limit = bytes;
        Ok(())
    }

    /// Limits the bytes that the paths of all nodes of one session take, plus 4 for each node. An acquire that would exceed the limit
    /// fails with EXHAUSTED. Default: 768 KiB, which is safe for servers with the default `jute.maxbuffer` of 1 MiB.
    ///
    /// The transaction that ends a session carries all these paths. A server that has written a transaction longer than twice its
    /// `jute.maxbuffer` does not start again. So the limit must not exceed the `jute.maxbuffer` of any server.
    pub fn set_max_path_bytes(&mut self, bytes: usize) -> Result<()> {
        if !(1024..=1 << 30).contains(&bytes) {
            return Err(Error::invalid(format!("session.max_path_bytes {bytes}: expected 1024 to {} bytes", 1 << 30)));
        }
        self.max_path_bytes = bytes;
        Ok(())
    }

    pub(crate) fn max_path_bytes(&self) -> usize {
        self.max_path_bytes
    }

    /// Has mutexes and read/write locks queue with kazoo's locks where these stand in the same directory, instead of reporting them as
    /// FOREIGN; for programs that move from kazoo. kazoo has to wait for ours likewise: its locks need
    /// `extra_lock_patterns=["-lock-"]` beside a mutex, `["__READ__", "__WRIT__"]` beside a read/write lock. Default: no.
    pub fn set_wait_for_kazoo(&mut self, wait: bool) {
        self.wait_for_kazoo = wait;
    }

    pub(crate) fn waits_for_kazoo(&self) -> bool {
        self.wait_for_kazoo
    }

    /// Has the client create the chroot of its connect string if it is missing. By default a missing chroot is an error: a mistyped one would
    /// otherwise come into being, and programs below two chroots do not exclude each other. Default: no.
    pub fn set_create_chroot(&mut self, create: bool) {
        self.create_chroot = create;
    }

    pub(crate) fn creates_chroot(&self) -> bool {
        self.create_chroot
    }

    /// Has a client whose last user goes end on a thread of its own, which that user does not wait for, and without a word to its
    /// handlers: for programs whose threads must never block, and that can't say where a value is dropped. Default: no.
    pub fn set_end_in_background(&mut self, in_background: bool) {
        self.ends_in_background = in_background;
    }

    pub(crate) fn ends_in_background(&self) -> bool {
        self.ends_in_background
    }

    /// Calls `handler` with every change of the client's and its holds' states, one after the other, in the order in which
    /// they happened, on a thread of its own. It is dropped after its last call, before the client's end returns.
    ///
    /// It may call everything but what waits for other contenders, which is DEADLOCK: [`Lock::acquire`](crate::Lock::acquire) and
    /// [`Semaphore::acquire`](crate::Semaphore::acquire) with another limit than zero, and what waits for an acquire that was started.
    /// While it does not return, a thousand events wait as they came; those on top of that are joined, so that each hold and the session
    /// are told fewer steps, but never miss their end, nor that they were lost.
    pub fn set_event_handler(&mut self, handler: impl Fn(&Event) + Send + Sync + 'static) {
        self.handler = Some(Arc::new(handler));
    }

    /// Has the program call its handlers, those of events and of revocations, by itself, with
    /// [`Client::dispatch_events`](crate::Client::dispatch_events) when [`Client::event_fd`](crate::Client::event_fd) is readable, instead of
    /// on a thread of the library's. Default: no.
    pub fn set_poll_events(&mut self, poll: bool) {
        self.calls = if poll { Calls::Polled } else { Calls::OnThread };
    }

    /// The same without a descriptor: `bell` is called with the client's handlers when the first of them waits, on any thread and
    /// under locks of the library. It must do no more than pass them on to who calls them.
    pub fn set_event_bell(&mut self, bell: impl Fn(Handlers) + Send + Sync + 'static) {
        self.calls = Calls::Rung(Arc::new(bell));
    }

    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    pub(crate) fn handler(&self) -> Option<Arc<EventHandler>> {
        self.handler.clone()
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    pub(crate) fn session(&self) -> SessionConfig {
        SessionConfig {
            timeout: self.session_timeout,
            lease_margin: self.lease_margin,
            auth: self.auth.clone(),
            frame_limit: self.frame_limit,
            limits: Limits::default(),
        }
    }
}

fn milliseconds(what: &str, value: Duration) -> Result<Duration> {
    if (1..=i32::MAX as u128).contains(&value.as_millis()) {
        return Ok(value);
    }
    Err(Error::invalid(format!("{what} {} ms: expected 1 to {} ms", value.as_millis(), i32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked_and_named() {
        let mut config = Config::new();
        assert!(config.set_session_timeout(Duration::ZERO).unwrap_err().message().contains("session timeout 0 ms"));
        assert!(
            config.set_connect_timeout(Duration::from_secs(1 << 40)).unwrap_err().message().contains("connect timeout")
        );
        assert!(config.add_auth("", b"x").is_err());
        assert!(config.add_auth("digest", &vec![0; 1 << 20]).is_err());
        assert!(config.set_frame_limit(0).is_err());
        assert!(config.set_max_path_bytes(1023).unwrap_err().message().contains("session.max_path_bytes 1023"));
        assert!(config.set_lease_margin(Duration::MAX).is_err());
        config.set_lease_margin(Duration::ZERO).unwrap();
        config.add_auth("digest", b"user:secret").unwrap();
    }
}
