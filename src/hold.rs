//! Holds: what an acquire of a lock or of leases gives to the program. A hold answers every question about itself, and
//! ends itself. The code in this file does not depend on [`Lock`](crate::Lock) and [`Semaphore`](crate::Semaphore). The
//! engine, and not the code in this file, decides whether a hold is safe.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use zklock_core::engine::{Event, HoldId, HoldView, LockState, Owner};
use zklock_core::error::{Error, Result, Status};

use crate::acquire::HoldIds;
use crate::client_lock::ClientLock;
use crate::client_locks::ClientLocks;
use crate::listener::Listener;
use crate::operation::Operation;
use crate::runtime::{EventHandler, Listen, Scope};
use crate::wait_lost;

/// A hold of a lock, or of leases of a semaphore. Any thread may use and release a hold, whoever acquired it. All clones
/// of a value share the hold. A hold refers only to the acquire from which it comes, and never to a later hold of its
/// owner.
///
/// When the program drops the last clone, the library releases the hold without waiting for the server. To wait for the
/// server's confirmation, and to receive the error of the release, call [`release`](Self::release).
///
/// While a hold exists, its lock stays open, even if the program drops the lock object.
#[derive(Clone)]
#[must_use = "dropping this value releases the hold"]
pub struct Hold {
    shared: Arc<SharedHold>,
}

struct SharedHold {
    client_locks: Arc<ClientLocks>,
    path: Arc<str>,
    quantity: i32,
    ids: HoldIds,
    /// The token and the fencing pass of the hold: those of the hold in `ids` with the smallest token.
    id: HoldId,
    end: Arc<HoldEnd>,
}

/// Records how the program has ended a hold.
#[derive(Default)]
struct HoldEnd {
    is_released: AtomicBool,
    /// True if dropping the hold does not release it.
    is_left: AtomicBool,
}

/// The hold of an acquire. The acquire gives the same hold to each caller.
#[derive(Default)]
pub(crate) struct GivenHold {
    end: Arc<HoldEnd>,
    given: Mutex<Weak<SharedHold>>,
}

impl GivenHold {
    /// Returns the hold. If the program has dropped all values for the hold, the hold was released.
    pub(crate) fn get(
        &self,
        client_locks: &Arc<ClientLocks>,
        path: &Arc<str>,
        quantity: i32,
        ids: impl FnOnce() -> Result<HoldIds>,
    ) -> Result<Hold> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = given.upgrade() {
            return Ok(Hold { shared });
        }
        let (client_locks, path, end) = (Arc::clone(client_locks), Arc::clone(path), Arc::clone(&self.end));
        let ids = ids()?;
        let id = ids.smallest().ok_or(Status::Internal)?;
        let shared = Arc::new(SharedHold { client_locks, path, quantity, ids, id, end });
        *given = Arc::downgrade(&shared);
        Ok(Hold { shared })
    }
}

impl Hold {
    /// The path of the lock or the semaphore, as [`Lock::path`](crate::Lock::path) returns it.
    pub fn path(&self) -> &str {
        &self.shared.path
    }

    /// The number of leases. For a lock, the number is 1.
    pub fn quantity(&self) -> i32 {
        self.shared.quantity
    }

    /// The owner of the hold. An acquire for the same owner re-enters the lock ([`Lock::hold_as`](crate::Lock::hold_as)).
    pub fn owner(&self) -> Owner {
        self.shared.ids.owner
    }

    /// The fencing token of the hold. See [`Lock::fencing_token`](crate::Lock::fencing_token). The token is known from
    /// the acquire on, also after the hold was lost or released. If the semaphore has several leases, the tokens show
    /// the order of the acquires, and the owner of a token need not be the only holder.
    pub fn token(&self) -> i64 {
        self.shared.id.token
    }

    /// The fencing pass of the hold. See [`Lock::fencing_pass`](crate::Lock::fencing_pass).
    pub fn fencing_pass(&self) -> u32 {
        self.shared.id.fencing_pass
    }

    /// Returns the state of the hold, and how long it remains safe, at one moment. If the program has released the hold,
    /// the state is [`Free`](LockState::Free). The view of a multi-lock contains the worst state and the shortest
    /// remaining time of its member locks. If several leases were acquired together, the loss of one is the loss of all.
    ///
    /// Fails with CLOSED if the lock or its client is closed. Other errors: FORKED. Does not block.
    pub fn view(&self) -> Result<HoldView> {
        let HoldId { token, fencing_pass } = self.shared.id;
        let free = HoldView { state: LockState::Free, token, fencing_pass, remaining: Duration::ZERO };
        Ok(self.shared.end.view(&self.shared.client_locks, &self.shared.ids)?.map_or(free, |view| HoldView {
            token,
            fencing_pass,
            ..view
        }))
    }

    /// Returns whether the hold is safe at this moment. A hold is safe if, according to the clock of this machine, its
    /// session cannot have expired yet. Fails with the same errors as [`view`](Self::view).
    pub fn is_held(&self) -> Result<bool> {
        Ok(self.view()?.is_safe())
    }

    /// Returns the state of the hold. Fails with the same errors as [`view`](Self::view).
    pub fn state(&self) -> Result<LockState> {
        Ok(self.view()?.state)
    }

    /// Returns how long the hold remains safe if no server answers from now on. Returns zero if the hold is not safe now.
    /// Fails with the same errors as [`view`](Self::view).
    pub fn remaining(&self) -> Result<Duration> {
        Ok(self.view()?.remaining)
    }

    /// Fails with LOST if the hold is not safe at this moment, and with NOT_OWNER if the program has released it. Other
    /// errors: CLOSED, FORKED. Does not block.
    pub fn check(&self) -> Result<()> {
        match self.view()? {
            view if view.is_safe() => Ok(()),
            HoldView { state: LockState::Free, .. } => Err(self.shared.error(Status::NotOwner)),
            _ => Err(self.shared.error(Status::Lost)),
        }
    }

    /// Returns the paths of the nodes, without the client's chroot: the node of each member lock of a multi-lock, or a
    /// node for each lease. If a multi-lock acquires its member locks in several steps, the nodes are in the order of the
    /// steps. Fails with LOST if the hold was lost, and with NOT_OWNER if the program has released it. Other
    /// errors: CLOSED, FORKED. Does not block.
    pub fn node_paths(&self) -> Result<Vec<String>> {
        self.check_exists()?;
        self.shared.client_locks.node_paths(&self.shared.ids)
    }

    /// Waits until the hold is no longer safe. Returns true if the hold is no longer safe, and false if it is still safe
    /// at the end of `timeout`. See [`Lock::wait_lost`](crate::Lock::wait_lost).
    ///
    /// Fails with NOT_OWNER if the program releases the hold before or during the wait. Fails with CLOSED if the lock or
    /// the client is closed. Fails with DEADLOCK in a handler, unless `timeout` is zero. Other errors: FORKED.
    pub fn wait_lost(&self, timeout: Option<Duration>) -> Result<bool> {
        wait_lost::wait_until_lost(timeout, || self.start_wait_lost())
    }

    /// Starts a wait for the loss of the hold. See [`Lock::start_wait_lost`](crate::Lock::start_wait_lost).
    ///
    /// Fails with NOT_OWNER if the program has released the hold. Other errors: CLOSED, FORKED. Does not block.
    pub fn start_wait_lost(&self) -> Result<Operation<()>> {
        if self.state()? == LockState::Free {
            return Err(self.shared.error(Status::NotOwner));
        }
        let SharedHold { client_locks, path, ids, end, .. } = &*self.shared;
        let holds = client_locks.iter().map(ClientLock::shell_and_id);
        // The wait has no reference to the shared value, so that a drop of the hold releases it also during the wait.
        let (client_locks, owner, ids, end) = (Arc::clone(client_locks), ids.owner, ids.clone(), Arc::clone(end));
        wait_lost::start(holds, owner, move || end.view(&client_locks, &ids), path)
    }

    /// Calls `handler` for changes of this hold. The rules of [`Lock::listen`](crate::Lock::listen) apply. After this
    /// call, query the state of the hold, because the state may have changed before the call.
    ///
    /// Fails with NOT_OWNER if the program has released the hold. Other errors: CLOSED, FORKED, EXHAUSTED. Does not block.
    pub fn listen(&self, which: Listen, handler: impl Fn(&Event) + Send + Sync + 'static) -> Result<Listener> {
        if self.state()? == LockState::Free {
            return Err(self.shared.error(Status::NotOwner));
        }
        let SharedHold { client_locks, ids, .. } = &*self.shared;
        let of_each = client_locks.iter().zip(&ids.steps).flat_map(|(client_lock, step)| {
            let members = client_lock.members().iter().zip(step);
            members.map(move |(&lock, &id)| client_lock.listener_target(Scope::Hold(lock, id)))
        });
        Listener::register(&(Arc::new(handler) as Arc<EventHandler>), which, of_each)
    }

    /// Calls `handler` when this hold is lost. The call is equivalent to [`listen`](Self::listen) with [`Listen::Loss`].
    pub fn on_lost(&self, handler: impl Fn(&Event) + Send + Sync + 'static) -> Result<Listener> {
        self.listen(Listen::Loss, handler)
    }

    /// Releases the hold once, and waits until the server has confirmed the release. The hold has then ended, whatever
    /// the call returns.
    ///
    /// Errors:
    /// - NOT_OWNER if the hold was already released.
    /// - LOST if the hold was lost before the release. In this case, another owner may have held the lock since the loss.
    /// - CONNECTION if no server confirmed the release within the session timeout. The library keeps trying to delete the
    ///   nodes.
    /// - CLOSED if the lock or its client was closed, which ended the hold.
    /// - DENIED if the client is not allowed to delete a node. The node remains until the client is closed or an operator
    ///   grants the permission.
    /// - Other failures: AUTH, SERVER, EXHAUSTED, FORKED.
    ///
    /// Blocks for at most the session timeout.
    pub fn release(&self) -> Result<()> {
        self.start_release(true)?.wait()
    }

    /// Releases the hold without waiting for the server. The library deletes the nodes in the background. Fails with
    /// NOT_OWNER, LOST, CLOSED or FORKED under the same conditions as [`release`](Self::release). Does not block.
    pub fn release_nowait(&self) -> Result<()> {
        self.start_release(false)?.wait()
    }

    /// Starts releasing the hold without blocking. If `confirmed` is false, the operation ends at once, and the
    /// library deletes the nodes in the background. If the program drops the returned [`Operation`], the library still
    /// completes the release.
    pub fn start_release(&self, confirmed: bool) -> Result<Operation<()>> {
        self.shared.start_release(confirmed)
    }

    pub(crate) fn check_exists(&self) -> Result<()> {
        match self.view()?.state {
            LockState::Free => Err(self.shared.error(Status::NotOwner)),
            LockState::Lost => Err(self.shared.error(Status::Lost)),
            _ => Ok(()),
        }
    }

    /// The client lock of the first member lock of a multi-lock, or of the lock itself.
    pub(crate) fn first_lock(&self) -> Option<&ClientLock> {
        self.shared.client_locks.first()
    }

    pub(crate) fn is_released(&self) -> bool {
        self.shared.end.is_released()
    }

    pub(crate) fn release_flags(&self) -> Result<Vec<Arc<AtomicBool>>> {
        self.shared.client_locks.release_flags(&self.shared.ids)
    }

    /// Leaves the hold to its owner: dropping this value and its clones does not release the hold. The program releases
    /// the hold with [`Lock::start_release`](crate::Lock::start_release), or by closing the client.
    pub fn leave_to_owner(self) -> Owner {
        self.shared.end.is_left.store(true, Ordering::Release);
        self.owner()
    }
}

impl HoldEnd {
    fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Acquire)
    }

    fn view(&self, client_locks: &ClientLocks, ids: &HoldIds) -> Result<Option<HoldView>> {
        Ok(client_locks.view(ids)?.filter(|_| !self.is_released()))
    }
}

impl SharedHold {
    fn start_release(&self, confirmed: bool) -> Result<Operation<()>> {
        if self.end.is_released.swap(true, Ordering::AcqRel) {
            return self.client_locks.check_open().and(Err(self.error(Status::NotOwner)));
        }
        let release = self.client_locks.start_release_of(&self.path, &self.ids, confirmed);
        match release {
            Err(error) if error.status() == Status::NotOwner => Err(self.error(Status::NotOwner)),
            Err(error) if is_refused(&error) => {
                self.end.is_released.store(false, Ordering::Release);
                Err(error)
            }
            release => release,
        }
    }

    fn error(&self, status: Status) -> Error {
        let text = if status == Status::NotOwner { "the hold was already released" } else { status.text() };
        Error::new(status, format!("{}: {text}", self.path))
    }
}

/// Returns whether a release has no effect because of this error. The hold ends with its client, or belongs to the
/// parent process.
fn is_refused(error: &Error) -> bool {
    matches!(error.status(), Status::Closed | Status::Forked)
}

impl Drop for SharedHold {
    fn drop(&mut self) {
        if self.end.is_left.load(Ordering::Acquire) || self.end.is_released() {
            return;
        }
        let released = self.start_release(false).and_then(Operation::wait);
        if let Err(error) = released
            && !is_refused(&error)
        {
            tracing::warn!("the release of a dropped hold failed: {error}");
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("path", &self.path()).field("token", &self.token()).finish_non_exhaustive()
    }
}
