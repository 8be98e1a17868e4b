//! A client: one ZooKeeper session, shared by any number of locks and threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::config::Config;
use crate::engine::{CLOSE_LIMIT, Engine};
use crate::error::{Result, Status};
use crate::lock::Lock;
use crate::path;
use crate::runtime::{Pending, Shell, now};
use crate::session::{ClientState, ConnectString};

/// A client. Clones share one session, which ends when [`close`](Self::close) is called, or with the last clone and the
/// last lock made from it. All methods may be called from any thread.
#[derive(Clone)]
pub struct Client {
    pub(crate) session: Arc<OpenSession>,
}

/// A session that ends with its last user.
pub(crate) struct OpenSession {
    pub(crate) shell: Arc<Shell>,
    closed: AtomicBool,
}

impl Client {
    /// Connects to one of the servers in a connect string like `host:2181,host:2181/chroot`, and waits for the session.
    ///
    /// Blocks for the connect timeout at most. Errors: INVALID names the piece of the string that is wrong, CONNECTION the
    /// last server tried and why it failed, AUTH says that the credentials were refused.
    pub fn connect(servers: &str, config: &Config) -> Result<Self> {
        Self::start_connect(servers, config)?.wait()
    }

    /// The same without waiting.
    pub fn start_connect(servers: &str, config: &Config) -> Result<Connecting> {
        let target = ConnectString::parse(servers)?;
        let started = now();
        let entropy = Box::new(|| uuid::Uuid::new_v4().as_u128());
        let shell = Shell::start(Engine::new(target, config.session(), started, entropy), config.handler())?;
        let client = Self { session: Arc::new(OpenSession { shell, closed: AtomicBool::new(false) }) };
        let deadline = started + config.connect_timeout();
        let call = client.session.shell.call(Some(deadline), |engine, now| engine.connect(now, deadline))?;
        Ok(Connecting { client, call })
    }

    /// A re-entrant lock on a path: Curator's `InterProcessMutex`. Nothing is sent yet.
    pub fn mutex(&self, path: &str) -> Result<Lock> {
        path::validate(path)?;
        Lock::new(Arc::clone(&self.session), path, "lock-")
    }

    /// How the session stands.
    pub fn state(&self) -> Result<ClientState> {
        self.session.shell.ask(|engine, _| engine.state())
    }

    /// The session's id; 0 while there is none.
    pub fn session_id(&self) -> Result<i64> {
        self.session.shell.ask(|engine, _| engine.session_id())
    }

    /// The client, for those who do not want to keep it.
    pub fn downgrade(&self) -> WeakClient {
        WeakClient { session: Arc::downgrade(&self.session) }
    }

    /// Wakes all waiters with CLOSED and ends the session, and with it every hold. Waits for the server's confirmation, but
    /// two seconds at most. Later calls on the client and its locks give CLOSED.
    pub fn close(&self) -> Result<()> {
        self.session.close()
    }
}

/// A client that lives as long as others use it.
#[derive(Clone)]
pub struct WeakClient {
    session: Weak<OpenSession>,
}

impl WeakClient {
    /// The client, if anybody still uses it.
    pub fn upgrade(&self) -> Option<Client> {
        self.session.upgrade().map(|session| Client { session })
    }
}

/// A client that looks for its first server. Dropped, it gives up.
pub struct Connecting {
    client: Client,
    call: Pending,
}

impl Connecting {
    /// Waits for the session.
    pub fn wait(self) -> Result<Client> {
        self.call.wait()?;
        Ok(self.client)
    }

    /// Waits `slice` at most; `None` if it is not decided by then. Not to be called again after it was.
    pub fn wait_for(&self, slice: Duration) -> Option<Result<Client>> {
        Some(self.call.wait_for(slice)?.map(|_| self.client.clone()))
    }
}

impl OpenSession {
    pub(crate) fn check_open(&self) -> Result<()> {
        self.shell.check()?;
        if self.closed.load(Ordering::Acquire) { Err(Status::Closed.into()) } else { Ok(()) }
    }

    fn close(&self) -> Result<()> {
        self.shell.check()?;
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let patience = now() + CLOSE_LIMIT;
        let closed = self.shell.call(None, |engine, now| engine.close(now)).and_then(|call| call.wait());
        self.shell.stop(patience);
        closed.map(drop)
    }
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        if self.shell.check().is_err() {
            // A forked child: the parent's threads, locked or half done, are not ours to take apart.
            std::mem::forget(Arc::clone(&self.shell));
            return;
        }
        if let Err(error) = self.close() {
            tracing::debug!("closing: {error}");
        }
    }
}
