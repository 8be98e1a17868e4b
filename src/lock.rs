//! Locks, with methods to acquire and release a lock and to query the hold of an owner. The engine, and not the code
//! in this file, grants locks and decides whether a hold is safe.
//!
//! A [`Lock`] consists of one or more *client locks*. Each client lock is a lock in the engine of one client. A
//! mutex has one client lock. A multi-lock has one client lock if one engine can join the queues of all member locks in
//! one transaction. Any other multi-lock has several client locks, which the library acquires one after the other.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use zklock_core::engine::{Answer, Event, HoldToRelease, HoldView, LockId, LockState, Owner, Recipe, Waiting};
use zklock_core::error::{Error, Result, Status};
use zklock_core::recipe::Participant;

use crate::acquire::{Acquire, Cancellation, Goal, LockTarget};
use crate::acquiring::Acquiring;
use crate::client_inner::ClientInner;
use crate::client_lock::ClientLock;
use crate::client_locks::{ClientLocks, weakest};
use crate::hold::Hold;
use crate::listener::{Listener, ReplaceableListener};
use crate::multi_lock;
use crate::operation::Operation;
use crate::request::Request;
use crate::runtime::{EventHandler, Listen, RevocationHandler, Scope, refuse_in_callback};
use crate::span;
use crate::wait_lost;

/// A lock is a mutex, a semaphore mutex, the read lock or the write lock of a read/write lock, or a multi-lock. Threads
/// that share one lock object exclude each other like threads of different processes, and acquire the lock in the order
/// of their calls. Any thread may call any method of a lock.
///
/// All clones of a lock object share its holds. When the program drops the last clone, the library releases all holds
/// of the lock object without waiting for the server.
#[derive(Clone)]
pub struct Lock {
    client_locks: Arc<ClientLocks>,
    /// The member locks of a multi-lock. The list is empty for other locks.
    members: Arc<[Self]>,
    /// Contains one lock target for each client lock, in the order of the client locks.
    targets: Arc<[LockTarget]>,
    path: Arc<str>,
    cancellation: Arc<Cancellation>,
    on_event: Arc<ReplaceableListener>,
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Lock {
    pub(crate) fn new(client: Arc<ClientInner>, path: &str, recipe: Recipe) -> Result<Self> {
        let client_lock = ClientLock::new(client, path, recipe)?;
        let path = Arc::clone(client_lock.path());
        Ok(Self::of([client_lock], Arc::default(), path))
    }

    fn of(client_locks: impl IntoIterator<Item = ClientLock>, members: Arc<[Self]>, path: Arc<str>) -> Self {
        let of_members = members.iter().map(|member| Arc::clone(&member.client_locks)).collect();
        let client_locks = client_locks.into_iter().map(Arc::new).collect();
        let client_locks = Arc::new(ClientLocks::new(client_locks, of_members));
        let targets = client_locks.iter().map(ClientLock::target).collect();
        Self { client_locks, members, targets, path, cancellation: Arc::default(), on_event: Arc::default() }
    }

    /// Creates a multi-lock. A multi-lock consists of member locks on different paths. Like Curator's
    /// `InterProcessMultiLock`, the multi-lock acquires and releases all member locks together. The timeout of an
    /// acquire covers all member locks. An owner that holds the multi-lock holds each member lock. If the owner already
    /// holds a member lock, an acquire of the multi-lock re-enters this member lock. The member locks may be of
    /// different kinds and belong to different clients. If `locks` contains a multi-lock, the new multi-lock uses the
    /// member locks of that multi-lock instead. The call sends nothing to a server.
    ///
    /// A multi-lock uses one transaction to join the queues of all mutexes and read/write locks of one client. Two
    /// multi-locks with the same member locks in a different order therefore do not deadlock. All member locks that one
    /// transaction acquires have the same fencing token.
    ///
    /// If one transaction cannot join the queues of all member locks, the library acquires the member locks in several
    /// steps. The mutexes and read/write locks come first, grouped by client and sorted by the connect strings of the
    /// clients. After these locks, the library acquires the semaphore mutexes, sorted by connect string and path. If
    /// the acquire of a member lock fails, the library releases the member locks that it has already acquired, in
    /// reverse order. Programs do not deadlock if all of them write their server lists in the same way and use one
    /// client for each ensemble.
    ///
    /// A successful acquire guarantees that, at some moment, the owner held all member locks at once. When a successful
    /// acquire returns, each member lock is [`Held`](LockState::Held) or [`Suspended`](LockState::Suspended). A member
    /// lock can be lost while the acquire waits for a later member lock. In this case, the library releases the member
    /// locks that it acquired after the lost lock. The library then acquires the lost lock and the released locks
    /// again, within the same timeout. If the session lease of a member lock has ended, the acquire waits until that
    /// lock is safe again or lost.
    ///
    /// If a member lock or its client is closed, waiting calls and later calls on the multi-lock fail with CLOSED.
    /// Dropping or closing the multi-lock does not change its member locks: an owner that holds the member locks still
    /// holds them afterwards.
    ///
    /// Fails with INVALID if `locks` is empty, or if two locks of one client have the same path. Other errors: CLOSED,
    /// FORKED. Does not block.
    pub fn multi(locks: &[&Self]) -> Result<Self> {
        Self::build_multi(locks, multi_lock::at_once)
    }

    fn build_multi(locks: &[&Self], grouped: fn(Vec<&ClientLock>) -> Vec<Vec<&ClientLock>>) -> Result<Self> {
        refuse_duplicate_paths(locks)?;
        let members: Vec<Self> = locks.iter().flat_map(|lock| lock.members_or_self().to_vec()).collect();
        let all = members.iter().flat_map(|member| member.client_locks.iter()).collect();
        let client_locks = grouped(all).into_iter().map(multi_lock::combine).collect::<Result<Vec<_>>>()?;
        let path = match &*members {
            [] => return Err(Error::invalid("the multi-lock has no member locks; expected one or more")),
            [only] => Arc::clone(&only.path),
            [first, others @ ..] => format!("{} and {} more", first.path, others.len()).into(),
        };
        let lock = Self::of(client_locks, members.into(), path);
        if lock.client_locks.only().is_none() {
            for client_lock in lock.client_locks.iter() {
                client_lock.client.add_stepwise_multi(&lock.targets, &lock.cancellation);
            }
        }
        Ok(lock)
    }

    /// Creates a multi-lock that acquires its member locks one after the other, in the given order. Curator's
    /// `InterProcessMultiLock` works in the same way. Use this method if Curator programs use multi-locks on the same
    /// paths. All programs must list the locks in the same order. In all other respects, this method works like
    /// [`multi`](Self::multi).
    ///
    /// A lock created with [`multi`](Self::multi) can deadlock with a multi-lock of Curator. The library detects such a
    /// deadlock after about a third of a second. To end the deadlock, the zklock program's acquire leaves its queues
    /// and then joins them again. Locks created with `multi_in_order`, in contrast, deadlock if programs list the same
    /// locks in different orders.
    ///
    /// Fails with the same errors as [`multi`](Self::multi).
    pub fn multi_in_order(locks: &[&Self]) -> Result<Self> {
        Self::build_multi(locks, multi_lock::one_by_one)
    }

    /// The number that identifies the lock in events. The number is unique within the client. An event of a multi-lock
    /// contains the number of a member lock, not that of the multi-lock itself.
    pub fn id(&self) -> LockId {
        self.client_locks.iter().next().map_or(0, |client_lock| client_lock.id)
    }

    /// The path of the lock. For a multi-lock, this text contains the path of the first member lock and the number of
    /// other member locks.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The member locks of a multi-lock. The list is empty for other locks.
    pub fn members(&self) -> &[Self] {
        &self.members
    }

    /// Acquires the lock for the calling thread. If the thread already holds the lock, the call re-enters the lock and
    /// increments the hold count. The thread must release the lock once for each acquire. A semaphore mutex cannot be
    /// re-entered. For a multi-lock, the call acquires either all member locks or none.
    ///
    /// `timeout` is the time limit for the whole call. If `timeout` is `None`, the call waits without a limit, even if
    /// the connection or the session is lost. If `timeout` is zero, the call makes one attempt and does not wait for
    /// other participants.
    ///
    /// A call that fails acquires nothing. The errors are:
    /// - TIMEOUT if the lock was not acquired within the timeout. The call never returns TIMEOUT early.
    /// - CONNECTION if the timeout has passed and either the client has no connection or its server does not answer.
    /// - CANCELED if [`cancel`](Self::cancel) ended the wait.
    /// - CLOSED if the lock or the client was closed.
    /// - DEADLOCK if the thread would wait for itself. One example is a thread that already holds the same path through
    ///   another lock object of the client. Another example is a thread that holds the read lock and acquires the write
    ///   lock. If a thread acquires a semaphore mutex a second time, the second acquire waits; this alone does not
    ///   cause DEADLOCK.
    /// - DEADLOCK if a handler makes the call and the timeout is not zero.
    /// - LOST if the thread's hold was lost and the thread has not released that hold yet.
    /// - FOREIGN if another lock recipe uses the path.
    /// - EXHAUSTED if the path has no sequence numbers left, or if the node paths of the session would exceed
    ///   [`Config::max_path_bytes`](crate::Config::max_path_bytes).
    /// - INVALID if the nodes of a multi-lock are too large for one transaction of the server.
    /// - INVALID if the servers do not accept the access control lists of the client.
    /// - Other failures: AUTH, DENIED, SERVER, UNSUPPORTED, FORKED.
    ///
    /// Blocks until the thread holds the lock or the timeout has passed. With a timeout of zero, the call waits at most
    /// one second for the server.
    pub fn acquire(&self, timeout: Option<Duration>) -> Result<()> {
        refuse_in_callback(timeout)?;
        self.acquiring(Owner::current_thread(), timeout)?.finish_for_owner()
    }

    /// Acquires the lock as [`acquire`](Self::acquire) does, but not for the calling thread, and returns the hold. The
    /// hold belongs to a new owner. Any thread may use, release and drop the returned [`Hold`]. If the calling thread
    /// acquires the lock again, the thread waits until the hold is released.
    pub fn hold(&self, timeout: Option<Duration>) -> Result<Hold> {
        self.hold_as(Owner::unique(), timeout)
    }

    /// Acquires the lock for `owner`, and returns the hold. If the owner already holds the lock, the call re-enters the
    /// lock: the owner then has two [`Hold`]s, and releases each of them. In all other respects, this method works like
    /// [`hold`](Self::hold).
    pub fn hold_as(&self, owner: Owner, timeout: Option<Duration>) -> Result<Hold> {
        refuse_in_callback(timeout)?;
        self.start_acquire(owner, timeout)?.wait()
    }

    /// Makes one attempt to acquire the lock as [`hold`](Self::hold) does, and does not wait for other participants.
    /// Returns `None` if another participant holds the lock or waits for it. Blocks for at most one second.
    pub fn try_hold(&self) -> Result<Option<Hold>> {
        match self.hold(Some(Duration::ZERO)) {
            Err(error) if error.status() == Status::Timeout => Ok(None),
            result => result.map(Some),
        }
    }

    /// Starts acquiring the lock for `owner` without blocking. In all other respects, this method works like
    /// [`acquire`](Self::acquire). The acquire continues even if no thread waits for the result, and ends within the
    /// timeout.
    pub fn start_acquire(&self, owner: Owner, timeout: Option<Duration>) -> Result<Operation<Hold>> {
        Ok(self.acquiring(owner, timeout)?.into_operation())
    }

    fn acquiring(&self, owner: Owner, timeout: Option<Duration>) -> Result<Acquiring> {
        let first = self.client_locks.iter().next().ok_or(Status::Internal)?;
        first.check_open()?;
        let timeout = timeout.into();
        let is_stepwise = self.client_locks.only().is_none();
        let recipe = if is_stepwise { &Recipe::MultiLock(Box::default()) } else { first.recipe() };
        let span = span::acquire(&self.path, recipe, Some(owner), None, &timeout);
        let acquire = Acquire::start(&self.targets, Goal::Lock(owner), timeout, &self.cancellation, span)?;
        Ok(Acquiring::new(acquire, Arc::clone(&self.client_locks), Arc::clone(&self.path), 1))
    }

    /// Releases the lock once for the calling thread. The call decrements the hold count. When the hold count is 0, the
    /// thread no longer holds the lock. Any thread may release a semaphore mutex that was acquired through this lock
    /// object. For a multi-lock, the call releases each member lock that the thread holds. If the release of a member
    /// lock fails, the call still releases the others, and returns the first error. If all member locks are semaphore
    /// mutexes, any thread may release the multi-lock.
    ///
    /// The call succeeds in each of these cases:
    /// - The server has confirmed that the lock's node is deleted.
    /// - The lock was passed to another thread of this process by local hand-over
    ///   ([`set_local_handover`](Self::set_local_handover)).
    /// - The hold count is still above 0.
    ///
    /// Errors:
    /// - NOT_OWNER if the thread does not hold the lock, or does not hold a member lock of a multi-lock. The call does
    ///   not change a lock that the thread does not hold. For a semaphore mutex, the status means that no owner holds
    ///   the lock through this lock object.
    /// - LOST if the hold was lost before the release. In this case, another owner may have held the lock since the
    ///   loss.
    /// - CONNECTION if no server confirmed the release within the session timeout. The library keeps trying to delete
    ///   the node.
    /// - CLOSED if the lock or its client was closed. If a member lock of a multi-lock was closed, the other member
    ///   locks are still released.
    /// - DENIED if the client is not allowed to delete its node. The node remains until the client is closed or an
    ///   operator grants the permission.
    /// - Other failures: AUTH, SERVER, EXHAUSTED, FORKED.
    ///
    /// The call decrements the hold count even if it fails with LOST, CONNECTION, AUTH, DENIED, SERVER or EXHAUSTED.
    ///
    /// Blocks for at most the session timeout.
    pub fn release(&self) -> Result<()> {
        self.start_release(Owner::current_thread(), true)?.wait()
    }

    /// Starts one release of the lock for `owner`, without blocking. If the program drops the returned [`Operation`], the
    /// library still completes the release. If `confirmed` is false, the operation ends at once, and the library deletes
    /// the lock's node in the background.
    pub fn start_release(&self, owner: Owner, confirmed: bool) -> Result<Operation<()>> {
        let span = span::release(&self.path, owner, confirmed);
        let all_open = if self.members.is_empty() { Ok(()) } else { self.check_open() };
        let is_mixed = self.has_mixed_members();
        let release = |client_lock: &ClientLock| match is_mixed {
            true => client_lock.release_members(owner, std::iter::repeat(HoldToRelease::Own), confirmed),
            false => client_lock.release(owner, confirmed),
        };
        let pending: Vec<_> = self.client_locks.iter().rev().map(release).collect();
        // The call releases the other member locks of the multi-lock even if one member lock is closed.
        all_open?;
        Ok(Request::new(pending.into_iter().collect::<Result<_>>()?, |_| Ok(())).within(span).into_operation())
    }

    /// Returns whether some, but not all, of the member locks are semaphore mutexes. Any owner may release a semaphore
    /// mutex or a multi-lock of semaphore mutexes. The other multi-locks release only holds of the caller.
    fn has_mixed_members(&self) -> bool {
        let is_semaphore =
            |leaf: &Self| leaf.client_locks.iter().all(|lock| matches!(lock.recipe(), Recipe::SemaphoreMutex));
        let count = self.members.iter().filter(|leaf| is_semaphore(leaf)).count();
        count > 0 && count < self.members.len()
    }

    /// Fails with CLOSED if this lock or one of its member locks is closed.
    fn check_open(&self) -> Result<()> {
        self.client_locks.check_open()
    }

    /// Releases the lock once for the calling thread, but does not wait for the server. The library deletes the lock's
    /// node in the background.
    ///
    /// Fails with NOT_OWNER, LOST, CLOSED or FORKED under the same conditions as [`release`](Self::release). Does not
    /// block.
    pub fn release_nowait(&self) -> Result<()> {
        self.start_release(Owner::current_thread(), false)?.wait()
    }

    /// Cancels all acquires of this lock object that wait at this moment, in all threads. The canceled acquires fail
    /// with CANCELED. The call does not affect later acquires and existing holds. If the lock is granted at the same
    /// moment, a waiting acquire may still succeed. To end a wait for a multi-lock, call this method on the multi-lock,
    /// not on its member locks. Does not block.
    pub fn cancel(&self) -> Result<()> {
        self.cancellation.cancel();
        self.on_each(|client_lock| client_lock.update_engine(|engine, now| engine.cancel_waits(now, client_lock.id)))
    }

    /// Returns true if the calling thread holds the lock and the hold is safe at this moment. A hold is safe if,
    /// according to the clock of this machine, its session cannot have expired yet. This method ignores the holds of
    /// other owners. A semaphore mutex counts as held by the thread that acquired it, until any thread releases it. For
    /// a multi-lock, the result is true while the thread holds all member locks. Does not block.
    pub fn is_held(&self) -> Result<bool> {
        Ok(self.view(Owner::current_thread())?.is_some_and(HoldView::is_safe))
    }

    /// Returns true if any owner in this process holds the lock through this lock object, and the hold is safe at this
    /// moment. This method is for monitoring only. A result of true does not mean that the caller holds the lock.
    pub fn is_held_in_process(&self) -> Result<bool> {
        Ok(self.view_in_process()?.is_some_and(HoldView::is_safe))
    }

    /// Returns the state of the calling thread's hold. The state is [`Free`](LockState::Free) if the thread has no
    /// hold, even if another owner holds the lock. The state of a multi-lock is the worst state of its member locks.
    /// The state of a multi-lock is [`Free`](LockState::Free) unless all its member locks are held. Does not block.
    pub fn state(&self) -> Result<LockState> {
        Ok(state_of(self.view(Owner::current_thread())?))
    }

    /// Returns the state of a hold that was acquired through this lock object. The hold may belong to any owner in this
    /// process. If several owners hold the lock, for example several readers, the result is the state of one of their
    /// holds. The result is [`Lost`](LockState::Lost) only if all owners in this process have lost their holds.
    pub fn state_in_process(&self) -> Result<LockState> {
        Ok(state_of(self.view_in_process()?))
    }

    /// Returns the fencing token of the calling thread's hold. Each hold of a path has a larger token than all earlier
    /// holds of the path, except after a local hand-over. The token is the `czxid` of the lock node. A data store can
    /// remember the largest token that it has received, and refuse requests with smaller tokens. The store is then
    /// protected from writers that have lost the lock but have not detected the loss. If the owner of the write lock
    /// also acquires the read lock, send the token of the write lock: the token of the read lock can be larger than the
    /// token of the next writer.
    ///
    /// If one transaction acquired all member locks of a multi-lock, the member locks have the same token. If several
    /// transactions acquired the member locks, their tokens can differ, and this method returns the smallest token. If
    /// the tokens differ, send each store the token of the member lock that protects it.
    ///
    /// Fails with NOT_OWNER if the calling thread has no hold, even if another owner holds the lock. Fails with LOST if
    /// the thread's hold was lost. Other errors: CLOSED, FORKED. Does not block.
    pub fn fencing_token(&self) -> Result<i64> {
        Ok(self.live_view(Owner::current_thread())?.token)
    }

    /// Returns the fencing pass of the calling thread's hold. The fencing pass is the number of local hand-overs that
    /// occurred under the same token before the hold began ([`set_local_handover`](Self::set_local_handover)). The
    /// fencing pass is 0 for a hold that was acquired through the queue. For a multi-lock,
    /// [`fencing_token`](Self::fencing_token) returns the token of one member lock, and this method returns that member
    /// lock's fencing pass. If a store must distinguish the threads of one process, the store must compare both the
    /// token and the fencing pass. The store must refuse a write whose token is smaller than the token of an earlier
    /// write. Among writes with the same token, the store must refuse a write whose fencing pass is smaller than that
    /// of an earlier write.
    ///
    /// Fails with the same errors as [`fencing_token`](Self::fencing_token).
    pub fn fencing_pass(&self) -> Result<u32> {
        Ok(self.live_view(Owner::current_thread())?.fencing_pass)
    }

    /// Returns how long the calling thread's hold remains safe if no server answers from now on. Returns zero if the
    /// hold is not safe now. For a multi-lock, the result is the shortest time among its member locks.
    ///
    /// Fails with the same errors as [`fencing_token`](Self::fencing_token).
    pub fn remaining(&self) -> Result<Duration> {
        Ok(self.live_view(Owner::current_thread())?.remaining)
    }

    /// Returns the state, the token, the fencing pass and the remaining time of the hold of `owner`, at one moment.
    /// Returns `None` if the owner has no hold. This method answers the questions above for owners that are not the
    /// calling thread. Fails with CLOSED if the lock or its client is closed. Other errors: FORKED. Does not block.
    pub fn view(&self, owner: Owner) -> Result<Option<HoldView>> {
        self.weakest_view(|client_lock| {
            client_lock.read_engine(|engine, now| engine.hold_of(now, client_lock.id, owner))
        })
    }

    /// Returns the same as [`view`](Self::view). Fails with NOT_OWNER if `owner` has no hold, and with LOST if the hold
    /// of `owner` was lost.
    pub fn live_view(&self, owner: Owner) -> Result<HoldView> {
        self.require_live(self.view(owner)?)
    }

    /// Returns the paths of the calling thread's nodes, without the client's chroot. For a multi-lock, the list
    /// contains one path for each member lock. For every other lock, the list contains one path. A program can check in
    /// a ZooKeeper transaction that these nodes exist. If the lock was already lost, this transaction fails.
    ///
    /// Fails with the same errors as [`fencing_token`](Self::fencing_token).
    pub fn node_paths(&self) -> Result<Vec<String>> {
        self.node_paths_of(Owner::current_thread())
    }

    /// Returns the paths of the nodes of `owner`. See [`node_paths`](Self::node_paths).
    pub fn node_paths_of(&self, owner: Owner) -> Result<Vec<String>> {
        self.check_open()?;
        let client_locks = self.members_or_self().iter().flat_map(|leaf| leaf.client_locks.iter());
        let parts = client_locks.map(|client_lock| client_lock.hold_and_nodes(owner)).collect::<Result<Vec<_>>>()?;
        let (views, nodes): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        self.require_live(weakest(views))?;
        Ok(nodes.concat())
    }

    /// Waits until the calling thread's hold is no longer safe. The wait also ends if the hold is unsafe only for a
    /// moment. A hold in the state [`Uncertain`](LockState::Uncertain) or [`Lost`](LockState::Lost) is not safe. Returns
    /// true if the hold is no longer safe. Returns false if the hold is still safe at the end of `timeout`. If `timeout`
    /// is `None`, the wait has no time limit. If `timeout` is zero, the call checks the hold once.
    ///
    /// The wait ends on time even if the I/O thread was stopped, because the waiting thread itself checks the session
    /// lease. If the whole machine was suspended, the wait can end up to one second late. Calling
    /// [`cancel`](Self::cancel) does not end the wait.
    ///
    /// Fails with NOT_OWNER if the calling thread has no hold, or if the hold is released during the wait. Fails with
    /// CLOSED if the lock or the client is closed. Fails with DEADLOCK in a handler, unless `timeout` is zero. Other
    /// errors: FORKED.
    pub fn wait_lost(&self, timeout: Option<Duration>) -> Result<bool> {
        wait_lost::wait_until_lost(timeout, || self.start_wait_lost(Owner::current_thread()))
    }

    /// Starts a wait for the loss of `owner`'s hold. The operation succeeds when the hold is no longer safe. This method
    /// is for callers that divide the wait into several short waits, or that wait in an event loop. Dropping the operation
    /// ends the wait. While the operation exists, it keeps the lock open, and therefore the client.
    ///
    /// Fails with NOT_OWNER if the owner has no hold. The operation fails with NOT_OWNER if the hold is released during the
    /// wait. Other errors: CLOSED, FORKED. Does not block.
    pub fn start_wait_lost(&self, owner: Owner) -> Result<Operation<()>> {
        let lock = self.clone();
        wait_lost::start(
            self.client_locks.iter().map(ClientLock::shell_and_id),
            owner,
            move || lock.view(owner),
            &self.path,
        )
    }

    /// Asks the server for the participants of the lock: the holders and the waiters in all processes. Returns the
    /// participants in the order of the queue.
    ///
    /// For a read/write lock, the read lock returns only readers, and the write lock returns only writers.
    /// [`queue`](Self::queue) returns both. For a semaphore mutex, the holder comes before the waiters. For a
    /// multi-lock, the list contains the participants of each member lock, in the order of the member locks.
    ///
    /// Errors: CONNECTION, AUTH, DENIED, SERVER, EXHAUSTED, CLOSED, FORKED. Blocks for at most the session timeout.
    pub fn participants(&self) -> Result<Vec<Participant>> {
        self.start_participants()?.wait()
    }

    /// Returns the lock's participants, as [`participants`](Self::participants) does. For a read/write lock, the result
    /// contains both the readers and the writers. The read lock and the write lock return the same result.
    pub fn queue(&self) -> Result<Vec<Participant>> {
        self.start_queue()?.wait()
    }

    /// Starts a query for the participants without blocking. In all other respects, this method works like
    /// [`participants`](Self::participants). If the program drops the returned [`Operation`], the library still
    /// completes the query.
    pub fn start_participants(&self) -> Result<Operation<Vec<Participant>>> {
        self.list_participants(false)
    }

    /// Starts querying the whole queue without blocking. In all other respects, this method works like
    /// [`queue`](Self::queue).
    pub fn start_queue(&self) -> Result<Operation<Vec<Participant>>> {
        self.list_participants(true)
    }

    /// Returns the pending acquires of this lock object, and the reason why each acquire waits. The list contains the
    /// acquires of all threads in this process, in the order in which they began. The list of a multi-lock contains the
    /// acquires of the multi-lock; the lists of its member locks do not.
    ///
    /// The call does not send a request to a server, and therefore succeeds even if no server answers. To list the
    /// participants of all processes, call [`participants`](Self::participants). Both methods return the same node
    /// paths. With local hand-over, several acquires of a process can share one node
    /// ([`set_local_handover`](Self::set_local_handover)). If an acquire waits behind the shared node, the acquire has
    /// no node path, and `ahead` is the path of the shared node.
    ///
    /// Errors: CLOSED, FORKED. Does not block.
    pub fn waiting(&self) -> Result<Vec<Waiting>> {
        Ok(self.client_locks.iter().map(ClientLock::waiting).collect::<Result<Vec<_>>>()?.concat())
    }

    /// Sets the data of the nodes that later calls of an acquire method will create. From the data, people and tools can
    /// see which program holds the lock and which programs wait for it. With `None`, which is the default, the data is
    /// the address of the host, as in Curator. For a multi-lock, the call replaces the data of all member locks.
    ///
    /// Fails with INVALID if the data is longer than [`MAX_DATA`](crate::MAX_DATA). Other errors: CLOSED, FORKED. Does
    /// not block.
    pub fn set_data(&self, data: Option<&[u8]>) -> Result<()> {
        self.on_each(|client_lock| client_lock.set_data(data))
    }

    /// Calls `handler` for changes of all holds of this lock object, for all owners. With [`Listen::All`], the handler
    /// receives every change. With [`Listen::Loss`], the handler receives only losses. For a multi-lock, the handler
    /// receives the changes of each member lock. The library stops calling the handler when the [`Listener`] is
    /// dropped. These handler calls follow the rules of [`Config::on_event`](crate::Config::on_event). A lock can have
    /// any number of listeners.
    ///
    /// The handler receives changes that occur after this call, and earlier changes that are still queued. To receive
    /// every change, register the listener before the acquire. Alternatively, query the state after the registration.
    /// The fencing token and the fencing pass in an event identify the hold. If the lock is closed, the listener
    /// remains registered, and the handler still receives the end of each hold.
    ///
    /// Errors: CLOSED, FORKED, EXHAUSTED. Does not block.
    pub fn listen(&self, which: Listen, handler: impl Fn(&Event) + Send + Sync + 'static) -> Result<Listener> {
        self.add_listener(which, &(Arc::new(handler) as Arc<EventHandler>))
    }

    /// Calls `handler` when a hold of this lock is lost. The call is equivalent to [`listen`](Self::listen) with
    /// [`Listen::Loss`].
    pub fn on_lost(&self, handler: impl Fn(&Event) + Send + Sync + 'static) -> Result<Listener> {
        self.listen(Listen::Loss, handler)
    }

    /// Sets a handler for changes in this lock's holds. The handler receives the same events as a
    /// [`listen`](Self::listen) handler with [`Listen::All`]. A later call replaces the handler. To remove the handler,
    /// pass `None` or call [`close`](Self::close).
    ///
    /// When this method returns, the previous handler is not running on another thread, and the library does not call
    /// it again. If the previous handler is running, the method therefore waits until the handler returns. If the
    /// previous handler itself calls this method, the method does not wait.
    ///
    /// Errors: CLOSED, FORKED, EXHAUSTED.
    pub fn set_event_handler(&self, handler: Option<Box<EventHandler>>) -> Result<()> {
        self.check_open()?;
        let listener = handler.map(|handler| self.add_listener(Listen::All, &Arc::from(handler))).transpose()?;
        self.on_event.set(listener);
        Ok(())
    }

    fn add_listener(&self, which: Listen, handler: &Arc<EventHandler>) -> Result<Listener> {
        let client_locks = self.members_or_self().iter().flat_map(|leaf| leaf.client_locks.iter());
        Listener::register(
            handler,
            which,
            client_locks.map(|client_lock| client_lock.listener_target(Scope::Lock(client_lock.id))),
        )
    }

    /// Sets the handler for revocation requests. In such a request, a program asks the owner of a node to release the
    /// lock or to stop waiting for it ([`Client::revoke`](crate::Client::revoke), Curator's `Revoker`). A revocation
    /// request alone does not end the hold or the wait. The client calls `handler` with the path of each requested
    /// node. If several requests for one node are queued, the client may deliver them as one request. If more than 1024
    /// requests are queued, the client may drop the oldest requests.
    ///
    /// The thread that runs the event handlers also runs this handler. The thread delivers requests and events in the
    /// order in which they occurred. The same rules apply to this handler as to event handlers
    /// ([`Config::on_event`](crate::Config::on_event)).
    ///
    /// A later call of this method replaces the handler. The argument `None` removes the handler. The handler of a
    /// multi-lock replaces the handlers of all its member locks. When this method returns, the previous handler is not
    /// running on another thread, and the library does not call it again. If the previous handler is running, the
    /// method therefore waits until the handler returns. If the previous handler itself calls this method, the method
    /// does not wait. With the argument `None`, the method also waits if it fails with CLOSED, because the handler of a
    /// closed lock can still be running.
    ///
    /// Errors: CLOSED, FORKED, EXHAUSTED. If the call fails for one member lock of a multi-lock, the new handler
    /// remains set for the earlier member locks.
    pub fn set_revocable<F: Fn(&str) + Send + Sync + 'static>(&self, handler: Option<F>) -> Result<()> {
        let leaves = self.members_or_self();
        let Some(handler) = handler else {
            let remove = |leaf: &Self| leaf.on_each(|client_lock| client_lock.set_revocable(None));
            return leaves.iter().map(remove).collect::<Vec<_>>().into_iter().collect();
        };
        let handler: Arc<RevocationHandler> = Arc::new(handler);
        leaves.iter().try_for_each(Self::check_open)?;
        let set = |client_lock: &ClientLock| client_lock.set_revocable(Some(Arc::clone(&handler)));
        leaves.iter().try_for_each(|leaf| leaf.on_each(set))
    }

    /// Controls local hand-over. In a local hand-over, a release passes the mutex to the next waiter of this process
    /// without a request to a server. At most `max_passes` releases in a row are local hand-overs, and the next release
    /// deletes the node. The default of `max_passes` is 0, so that every release deletes the node.
    ///
    /// The setting applies to later acquires of this lock object. A release can also pass the mutex to another lock
    /// object of the same client. Both lock objects must have the same path and enable local hand-over. All waiters of
    /// these lock objects share a single node. The waiters acquire the mutex in the order in which they began to wait.
    /// Local hand-over helps if many threads of one process acquire the same lock.
    ///
    /// Local hand-over delays other processes. If the shared node is ahead of a waiter of another process, that waiter
    /// waits for at most `max_passes` additional holds. If the acquires had different values of
    /// `max_passes`, the smallest value of the holds under this node applies. After a release has deleted the node, the next waiter of this process joins the end of the queue. Waiters
    /// of this process do not overtake each other. If a waiter stops waiting, the next waiter of this process takes
    /// over its place in the queue.
    ///
    /// A local hand-over requires the hold to be in the state [`Held`](LockState::Held). In addition, the client must
    /// have received no revocation request for the node of the hold ([`set_revocable`](Self::set_revocable)). After a
    /// local hand-over, the data of the node does not change. All holds under one node have the same fencing token. A
    /// store that needs to distinguish these holds must also compare the fencing pass
    /// ([`fencing_pass`](Self::fencing_pass)).
    ///
    /// A multi-lock joins the queue with a separate node, and takes no part in local hand-over. If another owner in
    /// this process holds or waits for the mutex, an acquire with a timeout of zero fails without sending a request to
    /// a server.
    ///
    /// Fails with UNSUPPORTED if the lock is not a mutex. Other errors: CLOSED, FORKED. Does not block.
    pub fn set_local_handover(&self, max_passes: u32) -> Result<()> {
        match self.client_locks.only() {
            Some(client_lock) => client_lock.set_local_handover(max_passes),
            None => Err(self.error(Status::Unsupported)),
        }
    }

    /// Closes the lock object. Dropping the last clone has the same effect. Waiting calls and later calls on this lock
    /// object fail with CLOSED. The library releases all holds of this lock object without waiting for the server.
    ///
    /// Closing a member lock of a multi-lock also closes the multi-lock. Closing a multi-lock does not change its
    /// member locks, and does not release them. Does not block.
    pub fn close(&self) -> Result<()> {
        let closed = self.on_each(ClientLock::close);
        self.on_event.remove_nowait();
        closed
    }

    fn members_or_self(&self) -> &[Self] {
        if self.members.is_empty() { std::slice::from_ref(self) } else { &self.members }
    }

    fn list_participants(&self, both: bool) -> Result<Operation<Vec<Participant>>> {
        self.check_open()?;
        let client_locks = self.members_or_self().iter().flat_map(|leaf| leaf.client_locks.iter());
        let pending = client_locks.map(|client_lock| client_lock.participants(both)).collect::<Result<_>>()?;
        let join = |answers: Vec<Answer>| {
            let of = |answer| match answer {
                Answer::Participants(participants) => Ok(Arc::unwrap_or_clone(participants)),
                _ => Err(Status::Internal.into()),
            };
            let lists = answers.into_iter().map(of).collect::<Result<Vec<_>>>()?;
            let joined = lists.into_iter().reduce(|mut all, list| {
                all.extend(list);
                all
            });
            Ok(joined.unwrap_or_default())
        };
        Ok(Request::new(pending, join).into_operation())
    }

    fn require_live(&self, view: Option<HoldView>) -> Result<HoldView> {
        match view.ok_or_else(|| self.error(Status::NotOwner))? {
            HoldView { state: LockState::Lost, .. } => Err(self.error(Status::Lost)),
            view => Ok(view),
        }
    }

    fn view_in_process(&self) -> Result<Option<HoldView>> {
        self.weakest_view(|client_lock| client_lock.read_engine(|engine, now| engine.hold_of_any(now, client_lock.id)))
    }

    /// Combines the hold views of all client locks.
    fn weakest_view(&self, view: impl Fn(&ClientLock) -> Result<Option<HoldView>>) -> Result<Option<HoldView>> {
        // The closure runs for all client locks. This method fails if any client lock is closed, even if the owner does
        // not hold one of the others.
        let views = self.client_locks.iter().map(view).collect::<Result<Vec<_>>>()?;
        Ok(weakest(views))
    }

    fn on_each(&self, order: impl Fn(&ClientLock) -> Result<()>) -> Result<()> {
        self.client_locks.iter().map(order).collect::<Vec<_>>().into_iter().collect()
    }

    fn error(&self, status: Status) -> Error {
        Error::new(status, format!("{}: {}", self.path, status.text()))
    }
}

/// Refuses a multi-lock with two member locks on one path, because an acquire of such a multi-lock would wait for
/// itself.
fn refuse_duplicate_paths(locks: &[&Lock]) -> Result<()> {
    let mut seen: HashMap<(*const ClientInner, &Arc<str>), usize> = HashMap::new();
    for (at, lock) in locks.iter().enumerate() {
        for client_lock in lock.members_or_self().iter().flat_map(|leaf| leaf.client_locks.iter()) {
            if let Some(first) = seen.insert((Arc::as_ptr(&client_lock.client), client_lock.path()), at) {
                let path = zklock_core::path::quote(client_lock.path());
                let message = format!(
                    "locks[{first}] and locks[{at}] have the same path {path}; expected different paths in a multi-lock"
                );
                return Err(Error::invalid(message));
            }
        }
    }
    Ok(())
}

fn state_of(view: Option<HoldView>) -> LockState {
    view.map_or(LockState::Free, |view| view.state)
}
