//! Semaphores, which use the same znodes as Curator's `InterProcessSemaphoreV2`. Leases do not belong to a thread. Each
//! semaphore consists of one client lock. The code in this file does not depend on [`Lock`](crate::Lock).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use zklock_core::engine::{Answer, LockId, Waiting};
use zklock_core::error::{Error, Result, Status};
use zklock_core::recipe::Participant;

use crate::acquire::{Acquire, Cancellation, Goal, LockTarget};
use crate::acquiring::Acquiring;
use crate::client_lock::ClientLock;
use crate::client_locks::ClientLocks;
use crate::hold::Hold;
use crate::operation::Operation;
use crate::request::Request;
use crate::runtime::refuse_in_callback;
use crate::span;

/// A semaphore at a ZooKeeper path. A semaphore has a number of leases, which threads and processes acquire and
/// release. Any thread may call any method of a semaphore. All clones of a semaphore object share the same underlying
/// object.
#[derive(Clone)]
pub struct Semaphore {
    client_lock: Arc<ClientLock>,
    /// A list whose only element is the client lock's lock target.
    target: Arc<[LockTarget]>,
    cancellation: Arc<Cancellation>,
}

impl Semaphore {
    pub(crate) fn new(client_lock: ClientLock) -> Self {
        let target = Arc::new([client_lock.target()]);
        Self { client_lock: Arc::new(client_lock), target, cancellation: Arc::default() }
    }

    /// The number that identifies the semaphore in events. The number is unique within the client.
    pub fn id(&self) -> LockId {
        self.client_lock.id
    }

    /// The path of the semaphore.
    pub fn path(&self) -> &str {
        self.client_lock.path()
    }

    /// Acquires `quantity` leases. `timeout` is the time limit for the whole call. If `timeout` is `None`, the call
    /// waits without a limit. If `timeout` is zero, the call makes one attempt and does not wait for other
    /// participants. The semaphore serves requests in the order of their arrival, so a small request does not overtake
    /// a large request.
    ///
    /// If the number of leases is a shared count, `quantity` may exceed the count. The call then waits until the shared
    /// count has grown to `quantity`.
    ///
    /// Curator clients acquire several leases one by one, so a Curator client can hold one lease while it waits for a
    /// second lease. Suppose that the semaphore has only two leases, and that a zklock client needs both leases. The
    /// zklock client then waits for the Curator client's lease. This deadlock ends when the timeout of one of the two
    /// clients passes.
    ///
    /// A call that fails acquires nothing. The errors are:
    /// - TIMEOUT if the leases were not acquired within the timeout. The call never returns TIMEOUT early.
    /// - CONNECTION if the timeout has passed and either the client has no connection or its server does not answer.
    /// - CANCELED if [`cancel`](Self::cancel) ended the wait.
    /// - CLOSED if the semaphore or the client was closed.
    /// - INVALID if `quantity` is below 1, above the fixed number of leases, or too large for one transaction of the
    ///   server.
    /// - INVALID if the servers do not accept the access control lists of the client.
    /// - DEADLOCK if a handler makes the call and the timeout is not zero.
    /// - Other failures: EXHAUSTED, AUTH, DENIED, SERVER, UNSUPPORTED, FORKED.
    ///
    /// Blocks until the leases are held or the timeout has passed. With a timeout of zero, the call waits at most one
    /// second for the server.
    pub fn acquire(&self, quantity: i32, timeout: Option<Duration>) -> Result<Hold> {
        refuse_in_callback(timeout)?;
        self.start_acquire(quantity, timeout)?.wait()
    }

    /// Starts acquiring leases without blocking. In all other respects, this method works like
    /// [`acquire`](Self::acquire). The acquire continues even if no thread waits for the result, and ends within the
    /// timeout.
    pub fn start_acquire(&self, quantity: i32, timeout: Option<Duration>) -> Result<Operation<Hold>> {
        self.check_open()?;
        let timeout = timeout.into();
        let span = span::acquire(self.path(), self.client_lock.recipe(), None, Some(quantity), &timeout);
        let acquire = Acquire::start(&self.target, Goal::Leases(quantity), timeout, &self.cancellation, span)?;
        let client_locks = Arc::new(ClientLocks::new(Box::new([Arc::clone(&self.client_lock)]), Box::default()));
        Ok(Acquiring::new(acquire, client_locks, Arc::clone(self.client_lock.path()), quantity).into_operation())
    }

    /// Cancels every acquire of this semaphore object that is waiting at this moment, in any thread. The canceled
    /// acquires fail with CANCELED. The call affects neither later acquires nor existing leases. An acquire may still
    /// succeed if its leases are granted during this call. Does not block.
    pub fn cancel(&self) -> Result<()> {
        self.check_open()?;
        self.client_lock.update_engine(|engine, now| engine.cancel_waits(now, self.client_lock.id))
    }

    /// Asks the server for the participants of the semaphore. The list begins with the acquired leases, from the oldest
    /// to the newest. The waiters follow the leases. Each lease is a separate participant.
    ///
    /// Errors: CONNECTION, AUTH, DENIED, SERVER, EXHAUSTED, CLOSED, FORKED. Blocks for at most the session timeout.
    pub fn participants(&self) -> Result<Vec<Participant>> {
        self.start_participants()?.wait()
    }

    /// Starts a query for the participants without blocking. In all other respects, this method works like
    /// [`participants`](Self::participants).
    pub fn start_participants(&self) -> Result<Operation<Vec<Participant>>> {
        self.check_open()?;
        let take = |answers: Vec<Answer>| match answers.into_iter().next() {
            Some(Answer::Participants(participants)) => Ok(Arc::unwrap_or_clone(participants)),
            _ => Err(Status::Internal.into()),
        };
        Ok(Request::new(vec![self.client_lock.participants(true)?], take).into_operation())
    }

    /// Returns the pending acquires of this semaphore object, and the reason why each acquire waits. See
    /// [`Lock::waiting`](crate::Lock::waiting).
    pub fn waiting(&self) -> Result<Vec<Waiting>> {
        self.check_open()?;
        self.client_lock.waiting()
    }

    /// Sets the data of the nodes that later calls will create. See [`Lock::set_data`](crate::Lock::set_data). Each
    /// lease has its own node.
    pub fn set_data(&self, data: Option<&[u8]>) -> Result<()> {
        self.check_open()?;
        self.client_lock.set_data(data)
    }

    /// Sets the handler for requests to revoke leases. See [`Lock::set_revocable`](crate::Lock::set_revocable). The
    /// handler receives the path of a node that represents a lease.
    pub fn set_revocable<F: Fn(&str) + Send + Sync + 'static>(&self, handler: Option<F>) -> Result<()> {
        let Some(handler) = handler else {
            return self.client_lock.set_revocable(None).and_then(|()| self.check_open());
        };
        self.check_open()?;
        self.client_lock.set_revocable(Some(Arc::new(handler)))
    }

    /// Closes the semaphore. Waiting calls and later calls on this semaphore object fail with CLOSED. Owners keep the
    /// leases that they hold, and the program must still release these leases. Does not block.
    pub fn close(&self) -> Result<()> {
        self.client_lock.client.shell.check_process()?;
        self.cancellation.close();
        self.target.iter().for_each(LockTarget::close_waits);
        Ok(())
    }

    fn check_open(&self) -> Result<()> {
        // This check comes before all other statements, so that every call in a forked child fails with FORKED.
        self.client_lock.check_open()?;
        if self.cancellation.is_closed() {
            return Err(Error::new(Status::Closed, format!("{}: {}", self.client_lock.path(), Status::Closed.text())));
        }
        Ok(())
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("path", &self.path()).finish_non_exhaustive()
    }
}
