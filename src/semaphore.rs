//! Semaphores and their leases, which use the same znodes as Curator's `InterProcessSemaphoreV2`. A lease does not
//! belong to a thread. Each semaphore consists of one client lock. The code in this file does not depend on
//! [`Lock`](crate::Lock).

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use zklock_core::engine::{Answer, Event, HoldView, LockId, LockState, Owner, Waiting};
use zklock_core::error::{Error, Result, Status};
use zklock_core::recipe::Participant;

use crate::call::Call;
use crate::client_lock::ClientLock;
use crate::future::WakerRegistration;
use crate::listener::Listener;
use crate::operation::{Cancellation, Goal, LockTarget, Operation};
use crate::runtime::{EventHandler, Listen, Scope, refuse_in_callback};
use crate::span;
use crate::wait_lost::{self, WaitLost};

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

/// Leases that were acquired from a semaphore. The leases do not belong to a thread: any thread may use and release
/// them. When the program drops this value, the library releases the leases without waiting for the server.
#[must_use = "dropping this value releases the leases"]
pub struct Leases {
    client_lock: Arc<ClientLock>,
    owner: Owner,
    quantity: i32,
    /// All values for the same leases share this value. The last of them releases the leases.
    release: Arc<ReleaseOnDrop>,
}

/// Releases leases when it is dropped, unless the program has released them.
struct ReleaseOnDrop {
    client_lock: Arc<ClientLock>,
    owner: Owner,
    is_released: AtomicBool,
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
    pub fn acquire(&self, quantity: i32, timeout: Option<Duration>) -> Result<Leases> {
        refuse_in_callback(timeout)?;
        self.start_acquire(quantity, timeout)?.wait()
    }

    /// Starts acquiring leases without blocking. In all other respects, this method works like
    /// [`acquire`](Self::acquire). The acquire continues even if no thread waits for the result, and ends within the
    /// timeout.
    pub fn start_acquire(&self, quantity: i32, timeout: Option<Duration>) -> Result<AcquiringLeases> {
        self.check_open()?;
        let timeout = timeout.into();
        let span = span::acquire(self.path(), self.client_lock.recipe(), None, Some(quantity), &timeout);
        let operation = Operation::start(&self.target, Goal::Leases(quantity), timeout, &self.cancellation, span)?;
        Ok(AcquiringLeases {
            operation,
            awaiting: WakerRegistration::default(),
            client_lock: Arc::clone(&self.client_lock),
            quantity,
            returned: Mutex::default(),
        })
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
    pub fn start_participants(&self) -> Result<Call<Vec<Participant>>> {
        self.check_open()?;
        Ok(Call::new(vec![self.client_lock.participants(true)?], |answers| match answers.into_iter().next() {
            Some(Answer::Participants(participants)) => Ok(Arc::unwrap_or_clone(participants)),
            _ => Err(Status::Internal.into()),
        }))
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

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("path", &self.client_lock.path())
            .field("quantity", &self.quantity)
            .finish_non_exhaustive()
    }
}

impl Leases {
    /// The number of leases.
    pub fn quantity(&self) -> i32 {
        self.quantity
    }

    /// Releases all leases of this value, and waits until the server has confirmed that the nodes are deleted.
    ///
    /// Errors:
    /// - LOST if a lease was lost before the release. In this case, another owner may have held the lease since the
    ///   loss.
    /// - CONNECTION if no server confirmed the release within the session timeout. The library keeps trying to delete
    ///   the nodes.
    /// - NOT_OWNER if the leases were already released.
    /// - CLOSED if the client was closed, which ended the leases.
    /// - DENIED if the client is not allowed to delete the nodes. The nodes remain until the client is closed or an
    ///   operator grants the permission.
    /// - Other failures: AUTH, SERVER, EXHAUSTED, FORKED.
    ///
    /// Blocks for at most the session timeout.
    pub fn release(&self) -> Result<()> {
        self.start_release(true)?.wait()
    }

    /// Starts releasing the leases without blocking. If `confirmed` is false, [`Call::wait`] returns at once, and the
    /// library deletes the nodes in the background.
    pub fn start_release(&self, confirmed: bool) -> Result<Call<()>> {
        self.release.start(confirmed)
    }

    /// Returns true if the leases are held and safe at this moment. The leases are safe if, according to the clock of
    /// this machine, their session cannot have expired yet.
    pub fn is_held(&self) -> Result<bool> {
        Ok(self.view()?.is_some_and(HoldView::is_safe))
    }

    /// Returns the state of the leases. All leases of this value have the same state: if one lease is lost, the state
    /// of all leases is [`Lost`](LockState::Lost).
    pub fn state(&self) -> Result<LockState> {
        Ok(self.view()?.map_or(LockState::Free, |view| view.state))
    }

    /// Returns the fencing token of the leases. Every later acquire of the semaphore has a larger token. If the
    /// semaphore has several leases, the tokens show the order of the acquires. With several leases, the owner of a
    /// token need not be the only holder.
    ///
    /// Fails with LOST if a lease was lost. Fails with NOT_OWNER if the leases were released. Other errors: CLOSED,
    /// FORKED.
    pub fn fencing_token(&self) -> Result<i64> {
        Ok(self.live_view()?.token)
    }

    /// Returns how long the leases remain safe if no server answers from now on. Returns zero if the leases are not
    /// safe now.
    ///
    /// Fails with the same errors as [`fencing_token`](Self::fencing_token).
    pub fn remaining(&self) -> Result<Duration> {
        Ok(self.live_view()?.remaining)
    }

    /// Waits until at least one of the leases is no longer safe. See [`Lock::wait_lost`](crate::Lock::wait_lost).
    ///
    /// Fails with NOT_OWNER if the leases are released before or during the wait. Fails with CLOSED if the client is
    /// closed. Fails with DEADLOCK in a handler, unless `timeout` is zero. Other errors: FORKED.
    pub fn wait_lost(&self, timeout: Option<Duration>) -> Result<bool> {
        wait_lost::wait_until_lost(timeout, || self.start_wait_lost())
    }

    /// Returns a [`WaitLost`], which reports when at least one of the leases is no longer safe. See
    /// [`Lock::start_wait_lost`](crate::Lock::start_wait_lost).
    pub fn start_wait_lost(&self) -> Result<WaitLost> {
        let (client_lock, owner) = (Arc::clone(&self.client_lock), self.owner);
        let view = move || client_lock.read_engine(|engine, now| engine.hold_of(now, client_lock.id, owner));
        WaitLost::start(std::iter::once(self.client_lock.shell_and_id()), owner, view, self.client_lock.path())
    }

    /// Returns the leases' node paths, without the client's chroot.
    ///
    /// Fails with the same errors as [`fencing_token`](Self::fencing_token).
    pub fn node_paths(&self) -> Result<Vec<String>> {
        let (view, nodes) = self.client_lock.hold_and_nodes(self.owner)?;
        self.require_live(view)?;
        Ok(nodes)
    }

    /// Calls `handler` for changes of these leases. The rules of [`Lock::listen`](crate::Lock::listen) apply. After
    /// this call, query the state of the leases, because the state may have changed before the call.
    ///
    /// Fails with NOT_OWNER if the leases were released. Other errors: CLOSED, FORKED, EXHAUSTED.
    pub fn listen(&self, which: Listen, handler: impl Fn(&Event) + Send + Sync + 'static) -> Result<Listener> {
        let Some(view) = self.view()? else { return Err(self.error(Status::NotOwner)) };
        let scope = Scope::Leases(self.client_lock.id, view.token);
        Listener::register(
            &(Arc::new(handler) as Arc<EventHandler>),
            which,
            std::iter::once(self.client_lock.listener_target(scope)),
        )
    }

    /// Calls `handler` for losses of these leases. The call is equivalent to [`listen`](Self::listen) with
    /// [`Listen::Loss`].
    pub fn on_lost(&self, handler: impl Fn(&Event) + Send + Sync + 'static) -> Result<Listener> {
        self.listen(Listen::Loss, handler)
    }

    fn error(&self, status: Status) -> Error {
        Error::new(status, format!("{}: {}", self.client_lock.path(), status.text()))
    }

    fn view(&self) -> Result<Option<HoldView>> {
        self.client_lock.read_engine(|engine, now| engine.hold_of(now, self.client_lock.id, self.owner))
    }

    fn live_view(&self) -> Result<HoldView> {
        self.require_live(self.view()?)
    }

    fn require_live(&self, view: Option<HoldView>) -> Result<HoldView> {
        match view {
            None => Err(self.error(Status::NotOwner)),
            Some(HoldView { state: LockState::Lost, .. }) => Err(self.error(Status::Lost)),
            Some(view) => Ok(view),
        }
    }
}

impl ReleaseOnDrop {
    fn start(&self, confirmed: bool) -> Result<Call<()>> {
        let span = span::release(self.client_lock.path(), self.owner, confirmed);
        let pending = self.client_lock.release(self.owner, confirmed)?;
        self.is_released.store(true, Ordering::Relaxed);
        Ok(Call::new(vec![pending], |_| Ok(())).within(span))
    }
}

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        if !self.is_released.load(Ordering::Relaxed) {
            // This call fails if the client is closed. A closed client has no leases to release.
            let _ = self.start(false);
        }
    }
}

/// An acquire of leases in progress. The acquire continues even if no thread waits for the result. Any thread may call
/// any method of this value.
///
/// If the program drops this value while the acquire is still running, the library cancels the acquire. If the acquire
/// has succeeded, but no method has returned the leases, dropping this value releases the leases. This value is also a
/// future, which any executor can poll. The future resolves to the result of [`wait`](Self::wait).
#[must_use = "dropping this value cancels the acquire"]
pub struct AcquiringLeases {
    operation: Arc<Operation>,
    awaiting: WakerRegistration,
    client_lock: Arc<ClientLock>,
    quantity: i32,
    /// The leases, after a method has returned them, for as long as the program keeps a value for them.
    returned: Mutex<Option<Weak<ReleaseOnDrop>>>,
}

impl AcquiringLeases {
    /// Waits for the leases, but no longer than the acquire's timeout. Fails with the same errors as
    /// [`Semaphore::acquire`].
    pub fn wait(self) -> Result<Leases> {
        loop {
            if let Some(result) = self.wait_for(Duration::MAX) {
                return result;
            }
        }
    }

    /// Waits for at most `slice`, and returns the leases. Returns `None` if the acquire is still running. After the
    /// acquire has ended, this method returns the same result each time, to any number of threads. The values that it
    /// returns share the leases, and the library releases the leases when the last of them is dropped. If a handler
    /// makes the call while the acquire still runs, the call fails with DEADLOCK, unless `slice` or the timeout of the
    /// acquire is zero.
    pub fn wait_for(&self, slice: Duration) -> Option<Result<Leases>> {
        self.operation.wait_for(slice, true).map(|result| result.and_then(|()| self.leases()))
    }

    /// Waits for at most `slice`. Returns the result of the acquire, or `None` if the acquire is still running. This
    /// call does not return the leases.
    pub fn look_for(&self, slice: Duration) -> Option<Result<()>> {
        self.operation.wait_for(slice, false)
    }

    /// Cancels the acquire. The acquire then ends with CANCELED, unless the acquire has already ended or is about to
    /// succeed. Does not block.
    pub fn cancel(&self) -> Result<()> {
        self.operation.cancel()
    }

    /// Calls `hook` once when the acquire has ended. The rules of [`Acquiring::on_done`](crate::Acquiring::on_done)
    /// apply to the hook.
    pub fn on_done(&self, hook: impl FnOnce() + Send + 'static) -> Result<()> {
        self.operation.on_done(Box::new(hook))
    }

    /// Ends the acquire, as dropping this value does. If another thread waits for this acquire, its call fails with
    /// CLOSED.
    pub fn abandon(&self) {
        self.operation.abandon();
    }

    fn leases(&self) -> Result<Leases> {
        let (client_lock, owner) = (&self.client_lock, self.operation.owner().ok_or(Status::Internal)?);
        let mut returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        let release = returned.as_ref().and_then(Weak::upgrade).unwrap_or_else(|| {
            // If the program has dropped all values for the leases, the leases are released.
            let is_released = AtomicBool::new(returned.is_some());
            Arc::new(ReleaseOnDrop { client_lock: Arc::clone(client_lock), owner, is_released })
        });
        *returned = Some(Arc::downgrade(&release));
        Ok(Leases { client_lock: Arc::clone(client_lock), owner, quantity: self.quantity, release })
    }
}

impl fmt::Debug for AcquiringLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquiringLeases")
            .field("path", &self.client_lock.path())
            .field("quantity", &self.quantity)
            .finish_non_exhaustive()
    }
}

impl Future for AcquiringLeases {
    type Output = Result<Leases>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut waker = std::mem::take(&mut this.awaiting);
        let poll = waker.poll(cx, || this.wait_for(Duration::ZERO), |hook| this.on_done(hook));
        this.awaiting = waker;
        poll
    }
}

impl Drop for AcquiringLeases {
    fn drop(&mut self) {
        // When the operation ends, it must not wake the task of a dropped future.
        self.awaiting = WakerRegistration::default();
        self.abandon();
    }
}
