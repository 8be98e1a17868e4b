//! A lock's handle: acquire, release, and what can be asked of a hold.
//!
//! A handle stands for one or several *parts*, each of them a lock of one client's engine. A mutex is one part. So is a multi-lock of
//! one client's queues, which its engine joins in one transaction; other multi-locks have several, taken one after the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::call::{Acquiring, Call};
use crate::client::OpenSession;
use crate::engine::{Answer, Engine, HoldView, LockId, LockState, OpId, Owner, Patience, Recipe, Waiting};
use crate::error::{Error, Result, Status};
use crate::operation::{Entrance, Goal, Notices, Operation};
use crate::recipe::Participant;
use crate::runtime::{Pending, now, refuse_in_callback};
use crate::span;
use crate::time::Time;

/// More node data than this is refused, so that every frame with it stays below the servers' default limit of 1 MiB.
pub const MAX_DATA: usize = 512 * 1024;

/// A lock. All methods may be called from any thread; threads exclude each other and queue fairly, each with a node of its
/// own. Clones are the same lock. Dropping the last one releases what is held by it.
#[derive(Clone)]
pub struct Lock {
    parts: Arc<[Part]>,
    /// Of these parts.
    entrances: Arc<[Entrance]>,
    path: Arc<str>,
    /// Of a multi-lock: the locks that it consists of.
    members: Arc<[Self]>,
    notices: Arc<Notices>,
}

/// What a program wants to be called with the path of a node that is asked back.
pub(crate) type RevocationHandler = dyn Fn(&str) + Send + Sync;

/// One engine's lock. It is taken out of service with its last user.
pub(crate) struct Part {
    pub(crate) session: Arc<OpenSession>,
    pub(crate) id: LockId,
    recipe: Recipe,
    path: Arc<str>,
}

impl Part {
    pub(crate) fn new(session: Arc<OpenSession>, path: &str, recipe: Recipe) -> Result<Self> {
        session.check_open()?;
        let (mut id, path) = (0, Arc::<str>::from(path));
        session.shell.tell(|engine, _| id = engine.add_lock(Arc::clone(&path), recipe.clone()))?;
        Ok(Self { session, id, recipe, path })
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        self.session.check_open().map_err(|error| match error.status() {
            Status::Closed => self.closed(),
            _ => error,
        })
    }

    /// Asks about a lock that is there, with all that it consists of.
    pub(crate) fn ask<T>(&self, question: impl FnOnce(&Engine, Time) -> T) -> Result<T> {
        self.check_open()?;
        let about = |engine: &Engine, now| engine.is_open(self.id).then(|| question(engine, now));
        let answer = self.session.shell.ask(about)?.ok_or_else(|| self.closed())?;
        // A client that was closed in between has given up what was held: that is not the answer.
        self.check_open()?;
        Ok(answer)
    }

    pub(crate) fn tell(&self, order: impl FnOnce(&mut Engine, Time)) -> Result<()> {
        self.check_open()?;
        let mut is_open = false;
        self.session.shell.tell(|engine, now| {
            is_open = engine.is_open(self.id);
            if is_open {
                order(engine, now);
            }
        })?;
        if is_open { Ok(()) } else { Err(self.closed()) }
    }

    fn closed(&self) -> Error {
        Error::new(Status::Closed, format!("{}: {}", self.path, Status::Closed.text()))
    }

    /// Starts a call that ends after the session timeout at the latest.
    pub(crate) fn call(&self, submit: impl FnOnce(&mut Engine, Time) -> OpId) -> Result<Pending> {
        self.check_open()?;
        self.session.call(submit)
    }

    pub(crate) fn release(&self, owner: Owner, confirmed: bool) -> Result<Pending> {
        self.call(|engine, now| engine.release(now, self.id, owner, confirmed))
    }

    /// The way in.
    pub(crate) fn entrance(&self) -> Entrance {
        let locks = match &self.recipe {
            Recipe::Multi(members) => members.clone(),
            _ => Box::from([self.id]),
        };
        Entrance { shell: Arc::clone(&self.session.shell), id: self.id, locks, path: Arc::clone(&self.path) }
    }

    pub(crate) fn set_data(&self, data: Option<&[u8]>) -> Result<()> {
        if let Some(data) = data.filter(|data| data.len() > MAX_DATA) {
            return Err(Error::invalid(format!("node data of {} bytes: at most {MAX_DATA} are allowed", data.len())));
        }
        self.tell(|engine, _| engine.set_data(self.id, data))
    }

    pub(crate) fn set_revocable(&self, handler: Option<Arc<RevocationHandler>>) -> Result<()> {
        self.check_open()?;
        self.session.shell.set_revocable(self.id, handler)
    }

    pub(crate) fn set_local_handover(&self, max_passes: u32) -> Result<()> {
        let mut result = Ok(());
        self.tell(|engine, _| result = engine.set_local_handover(self.id, max_passes))?;
        result
    }

    pub(crate) fn participants(&self, both: bool) -> Result<Pending> {
        self.call(|engine, now| engine.participants(now, self.id, both))
    }

    pub(crate) fn waiting(&self) -> Result<Vec<Waiting>> {
        self.ask(|engine, now| engine.waiting(now, self.id))
    }

    /// In this order: nobody gives a lock that is not there a handler.
    fn close(&self) -> Result<()> {
        self.session.shell.tell(|engine, now| engine.remove_lock(now, self.id))?;
        self.session.shell.forget(self.id)?;
        let leads_here =
            |step: &Entrance| Arc::ptr_eq(&step.shell, &self.session.shell) && step.locks.contains(&self.id);
        self.session.close_multis(|steps| steps.iter().any(leads_here));
        Ok(())
    }

    fn is_of(&self, session: &Arc<OpenSession>) -> bool {
        Arc::ptr_eq(&self.session, session)
    }

    /// Where it comes when several locks are taken one after the other: queues first, in one transaction for each client.
    fn rank(&self) -> (bool, String, Arc<str>) {
        let is_semaphore = matches!(self.recipe, Recipe::SemaphoreMutex);
        (is_semaphore, self.session.servers().to_owned(), Arc::clone(&self.path))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Fails in a forked child, where there is nothing to do.
        let _ = self.close();
    }
}

/// How long a call may take, from now on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeout {
    pub(crate) start: Time,
    pub(crate) patience: Patience,
    pub(crate) deadline: Option<Time>,
}

impl Timeout {
    /// DEADLOCK where the calling thread must not wait for so long.
    pub(crate) fn check(&self, slice: Duration) -> Result<()> {
        match self.patience {
            Patience::OneLook(_) => Ok(()),
            Patience::Until(_) | Patience::Forever => refuse_in_callback(Some(slice)),
        }
    }
}

impl Timeout {
    /// Whole milliseconds, as the program gave them; 0 for one look, none without a limit.
    pub(crate) fn milliseconds(&self) -> Option<u64> {
        match self.patience {
            Patience::OneLook(_) => Some(0),
            Patience::Until(end) => Some(u64::try_from((end - self.start).as_millis()).unwrap_or(u64::MAX)),
            Patience::Forever => None,
        }
    }
}

impl From<Option<Duration>> for Timeout {
    fn from(timeout: Option<Duration>) -> Self {
        let start = now();
        match timeout {
            None => Self { start, patience: Patience::Forever, deadline: None },
            Some(Duration::ZERO) => {
                let end = start + crate::engine::LOOK_LIMIT;
                Self { start, patience: Patience::OneLook(end), deadline: Some(end) }
            }
            Some(timeout) => {
                let end = start + timeout;
                Self { start, patience: Patience::Until(end), deadline: Some(end) }
            }
        }
    }
}

impl Lock {
    pub(crate) fn new(session: Arc<OpenSession>, path: &str, recipe: Recipe) -> Result<Self> {
        let part = Part::new(session, path, recipe)?;
        let path = Arc::clone(&part.path);
        Ok(Self::of(Arc::new([part]), path, Arc::new([])))
    }

    fn of(parts: Arc<[Part]>, path: Arc<str>, members: Arc<[Self]>) -> Self {
        let entrances: Arc<[Entrance]> = parts.iter().map(Part::entrance).collect();
        Self { parts, entrances, path, members, notices: Arc::default() }
    }

    /// Several locks as one: Curator's `InterProcessMultiLock`. It is acquired and released as a whole, within one deadline, and
    /// consists of these very locks: while it is held, each of them is. What the caller holds of them already is entered once more.
    ///
    /// Mutexes and read/write locks of one client are joined in one transaction. So all such multi-locks queue in one order, and two
    /// that name the same locks in opposite order don't deadlock; and they have one fencing token. Where that can't be, the locks are
    /// taken one after the other, and given back in reverse if one can't be got: first the queues, one client after the other, in the order of their connect
    /// strings, then semaphore mutexes in the order of their paths. Programs that name the servers alike, and have one client for each ensemble, don't deadlock then, either.
    ///
    /// Success means that all locks were held at one moment after the last one was got, and that none is known to be lost: each is
    /// [`Held`](LockState::Held) or [`Suspended`](LockState::Suspended). If a lock is lost while a later one is waited for, the acquire gives back
    /// those that come after it and takes them again, within the same deadline. It waits for a lock whose lease is over to be confirmed or lost.
    ///
    /// Errors: INVALID for no lock at all, or two on one path.
    pub fn multi(locks: &[&Self]) -> Result<Self> {
        Self::put_together(locks, at_once)
    }

    fn put_together(locks: &[&Self], grouped: fn(Vec<&Part>) -> Vec<Vec<&Part>>) -> Result<Self> {
        refuse_twins(locks)?;
        let members: Vec<Self> = locks.iter().flat_map(|lock| lock.leaves().to_vec()).collect();
        let all = members.iter().flat_map(|member| member.parts.iter()).collect();
        let parts: Arc<[Part]> = grouped(all).into_iter().map(combine).collect::<Result<Vec<_>>>()?.into();
        let path = match &*members {
            [] => return Err(Error::invalid("a multi-lock of no locks; expected one or more")),
            [only] => Arc::clone(&only.path),
            [first, others @ ..] => format!("{} and {} more", first.path, others.len()).into(),
        };
        let lock = Self::of(parts, path, members.into());
        if lock.parts.len() > 1 {
            lock.parts.iter().for_each(|part| part.session.add_multi(&lock.entrances, &lock.notices));
        }
        Ok(lock)
    }

    /// A multi-lock whose locks are taken one after the other, in the order given, as Curator takes them: for programs that share their
    /// paths with Curator's multi-locks and name them in the same order. One that holds the first and comes to the second finds a
    /// [`multi`](Self::multi) ahead of it there, which waits for it in the first; that one gives way, but not before it has noticed.
    ///
    /// Errors: INVALID for no lock at all, or two on one path.
    pub fn multi_in_order(locks: &[&Self]) -> Result<Self> {
        Self::put_together(locks, one_by_one)
    }

    /// The lock's number, as it stands in events; unique within its client. Events name the members of a multi-lock.
    pub fn id(&self) -> LockId {
        self.parts.first().map_or(0, |part| part.id)
    }

    /// Its path. That of a multi-lock is its first lock's, with the number of the others.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The locks that a multi-lock consists of; none for others.
    pub fn members(&self) -> &[Self] {
        &self.members
    }

    /// Acquires the lock for the calling thread, or enters it once more. `None` waits without limit; zero looks once, without
    /// waiting for anybody.
    ///
    /// Errors: TIMEOUT where it was not got; CONNECTION where no server answered by then; CANCELED, CLOSED; LOST where this
    /// thread's hold was lost and is not released yet; DEADLOCK where this thread would wait for itself: it holds the path by another
    /// handle, or wants to write where it reads; or where it is being called back, and the limit is not zero.
    pub fn acquire(&self, timeout: Option<Duration>) -> Result<()> {
        self.acquire_as(Owner::current_thread(), timeout)
    }

    /// The same for any owner: for tasks and green threads, which share a thread of the operating system.
    pub fn acquire_as(&self, owner: Owner, timeout: Option<Duration>) -> Result<()> {
        refuse_in_callback(timeout)?;
        self.start_acquire(owner, timeout)?.wait()
    }

    /// The same with a guard that releases when it is dropped.
    pub fn guard(&self, timeout: Option<Duration>) -> Result<Guard<'_>> {
        self.acquire(timeout)?;
        Ok(Guard { lock: self, owner: Owner::current_thread() })
    }

    /// Starts to acquire the lock for `owner`. It goes on by itself, within its time as well, whether anybody waits or not.
    pub fn start_acquire(&self, owner: Owner, timeout: Option<Duration>) -> Result<Acquiring> {
        let first = self.parts.first().ok_or(Status::Internal)?;
        first.check_open()?;
        let timeout = timeout.into();
        let recipe = if self.parts.len() > 1 { &Recipe::Multi(Box::default()) } else { &first.recipe };
        let span = span::acquire(&self.path, recipe, Some(owner), None, &timeout);
        let operation = Operation::start(&self.entrances, Goal::Entry(owner), timeout, &self.notices, span)?;
        Ok(Acquiring::new(operation, Arc::clone(&self.parts)))
    }

    /// Releases one entry of the calling thread, and waits until the server has confirmed that the node is gone, unless the lock was
    /// passed on to another thread of this process ([`set_local_handover`](Self::set_local_handover)).
    ///
    /// Errors: NOT_OWNER from a thread that does not hold, and nothing changes; LOST where the hold had been lost; CONNECTION
    /// where no server confirmed within the session timeout. In every case but the first the entry is released. Of a multi-lock all that
    /// is held is released, and the first error is told.
    pub fn release(&self) -> Result<()> {
        self.release_as(Owner::current_thread())
    }

    /// The same for any owner.
    pub fn release_as(&self, owner: Owner) -> Result<()> {
        self.start_release(owner, true)?.wait()
    }

    /// Starts to release one entry of `owner`. Dropped unfinished, it goes on by itself. Without `confirmed` it is decided at
    /// once, and the removal of the node is left to the library.
    pub fn start_release(&self, owner: Owner, confirmed: bool) -> Result<Call<()>> {
        let span = span::release(&self.path, owner, confirmed);
        let whole = if self.members.is_empty() { Ok(()) } else { self.on_each(|part| part.ask(|_, _| ())) };
        let calls: Vec<_> = self.parts.iter().rev().map(|part| part.release(owner, confirmed)).collect();
        // What is left of a multi-lock is released all the same.
        whole?;
        Ok(Call::new(calls.into_iter().collect::<Result<_>>()?, |_| Ok(())).within(span))
    }

    /// Releases one entry of the calling thread, and leaves the removal of the node to the library.
    pub fn release_nowait(&self) -> Result<()> {
        self.start_release(Owner::current_thread(), false)?.wait()
    }

    /// Wakes those that wait on this handle now, with CANCELED. Who waits later is not concerned.
    pub fn cancel(&self) -> Result<()> {
        self.notices.cancel();
        self.on_each(|part| part.tell(|engine, now| engine.cancel(now, part.id)))
    }

    /// Whether the calling thread holds the lock, and safely so at this moment: its session is surely alive.
    pub fn is_held(&self) -> Result<bool> {
        self.is_held_by(Owner::current_thread())
    }

    /// The same for any owner.
    pub fn is_held_by(&self, owner: Owner) -> Result<bool> {
        Ok(is_safe(self.view_of(owner)?))
    }

    /// Whether anybody in this process holds the lock by this handle, and safely so.
    pub fn is_held_in_process(&self) -> Result<bool> {
        Ok(is_safe(self.view_of_any()?))
    }

    /// How the calling thread's hold stands; where it has none, that of whoever in this process holds by this handle. A multi-lock
    /// stands as badly as the worst of its locks, and is held if all of them are.
    pub fn state(&self) -> Result<LockState> {
        Ok(self.own_or_any()?.map_or(LockState::Free, |view| view.state))
    }

    /// How the hold of `owner` stands, and nobody else's.
    pub fn state_by(&self, owner: Owner) -> Result<LockState> {
        Ok(self.view_of(owner)?.map_or(LockState::Free, |view| view.state))
    }

    /// The fencing token of that hold: a number that grows with every hold of the path, for a store to refuse the stale
    /// (the znode's `czxid`). A multi-lock that was joined in one transaction has one for all; where it was not, this is the smallest,
    /// and a store is better given that of the lock it is guarded by. Errors: NOT_OWNER where nobody holds, LOST where the hold was lost.
    pub fn fencing_token(&self) -> Result<i64> {
        Ok(self.hold()?.token)
    }

    /// That of the hold of `owner`, and nobody else's. Errors: NOT_OWNER where he has none, LOST where it was lost.
    pub fn fencing_token_by(&self, owner: Owner) -> Result<i64> {
        Ok(self.hold_by(owner)?.token)
    }

    /// How often the lock had been passed on in this process, with the same token, when that hold began
    /// ([`set_local_handover`](Self::set_local_handover)); 0 for one that came through the queue. A store compares the token and then this.
    /// Errors as above.
    pub fn fencing_pass(&self) -> Result<u32> {
        Ok(self.hold()?.pass)
    }

    /// That of the hold of `owner`, and nobody else's. Errors as for [`fencing_token_by`](Self::fencing_token_by).
    pub fn fencing_pass_by(&self, owner: Owner) -> Result<u32> {
        Ok(self.hold_by(owner)?.pass)
    }

    /// How long that hold is safe without hearing from a server; zero where it is not safe now. Errors as above.
    pub fn remaining(&self) -> Result<Duration> {
        Ok(self.hold()?.remaining)
    }

    /// How long the hold of `owner` is safe. Errors as for [`fencing_token_by`](Self::fencing_token_by).
    pub fn remaining_by(&self, owner: Owner) -> Result<Duration> {
        Ok(self.hold_by(owner)?.remaining)
    }

    /// The paths of the calling thread's nodes, without the client's chroot: one, or one for each lock of a multi-lock. For a
    /// transaction of one's own that is to fail once the lock is lost, by a `check` of them. Errors: NOT_OWNER, LOST.
    pub fn node_paths(&self) -> Result<Vec<String>> {
        self.node_paths_by(Owner::current_thread())
    }

    /// Those of any owner.
    pub fn node_paths_by(&self, owner: Owner) -> Result<Vec<String>> {
        self.hold_by(owner)?;
        let of_part = |part: &Part| part.ask(|engine, _| engine.nodes_of(part.id, owner));
        Ok(self.parts.iter().map(of_part).collect::<Result<Vec<_>>>()?.concat())
    }

    /// Who holds and who waits, in the order of the queue. Of a read/write lock, each half tells of its own kind; see
    /// [`queue`](Self::queue) for both. Blocks for the session timeout at most.
    pub fn participants(&self) -> Result<Vec<Participant>> {
        self.start_participants()?.wait()
    }

    /// The same for readers and writers together.
    pub fn queue(&self) -> Result<Vec<Participant>> {
        self.start_queue()?.wait()
    }

    /// Starts to ask for the [`participants`](Self::participants). Dropped unfinished, it asks no more.
    pub fn start_participants(&self) -> Result<Call<Vec<Participant>>> {
        self.census(false)
    }

    /// Starts to ask for the whole [`queue`](Self::queue).
    pub fn start_queue(&self) -> Result<Call<Vec<Participant>>> {
        self.census(true)
    }

    /// What those who wait on this handle wait for, in this process, in the order in which they began; of a multi-lock, those who wait for
    /// its handle, and not for those of its locks. It is what the client knows: no server is asked, and nobody waits. Who is
    /// ahead of them in other processes, [`participants`](Self::participants) tells, by the same paths. Who waits behind others of his
    /// process ([`set_local_handover`](Self::set_local_handover)) has no node of his own: that which stands for all of them is ahead.
    pub fn waiting(&self) -> Result<Vec<Waiting>> {
        Ok(self.parts.iter().map(Part::waiting).collect::<Result<Vec<_>>>()?.concat())
    }

    /// The data of nodes that later acquires create; `None`: the host's address, as Curator has it. Of a multi-lock: of all its locks.
    pub fn set_data(&self, data: Option<&[u8]>) -> Result<()> {
        self.on_each(|part| part.set_data(data))
    }

    /// Has `handler` called, with the path of the node that is asked for, whenever somebody asks for this lock to be given up, also while
    /// it is still waited for ([`Client::revoke`](crate::Client::revoke), Curator's `Revoker`). It is a request: nothing is taken away.
    /// The calls come one after the other, on the thread of events. The handler stays until another takes its place or `None` does,
    /// and is dropped after its last call. Of a multi-lock: for each of its locks, in the place of their own.
    pub fn set_revocable<F: Fn(&str) + Send + Sync + 'static>(&self, handler: Option<F>) -> Result<()> {
        let handler = handler.map(|handler| Arc::new(handler) as Arc<RevocationHandler>);
        let leaves = self.leaves();
        leaves.iter().try_for_each(|leaf| leaf.on_each(|part| part.ask(|_, _| ())))?;
        leaves.iter().try_for_each(|leaf| leaf.on_each(|part| part.set_revocable(handler.clone())))
    }

    /// Lets the threads of this process that queue for this mutex pass it on among themselves, up to `max_passes` times in a row, before
    /// they give it up; 0 as at first: never. It concerns acquires by this handle that begin later, and goes for all handles of
    /// this client on this path that are set so: one node stands for all who wait by them, in the order in which they began, and is given from one
    /// to the next without asking a server. Who waits in another process, behind that node, waits for at most `max_passes` holds more
    /// than without; then the node is removed, and the next one here joins the queue at its end.
    ///
    /// Only a hold that is [`Held`](LockState::Held) is passed on, and none whose node somebody has asked for, as far as it is looked for
    /// ([`set_revocable`](Self::set_revocable)). The node keeps the data of the call that made it. All holds that were passed on have the
    /// token of the first, and a store tells them apart by [`fencing_pass`](Self::fencing_pass). A multi-lock joins with a node of its own, and what it has got is not passed on.
    ///
    /// Errors: UNSUPPORTED for all but mutexes; CLOSED.
    pub fn set_local_handover(&self, max_passes: u32) -> Result<()> {
        match &*self.parts {
            [part] => part.set_local_handover(max_passes),
            _ => Err(self.error(Status::Unsupported)),
        }
    }

    /// Takes the handle out of service, as dropping it does: those that wait on it wake with CLOSED, and what is held by it
    /// is released without waiting. Later calls give CLOSED, also those of multi-locks that it is part of; who waits for one of these
    /// wakes as well. The locks of a multi-lock are not concerned.
    pub fn close(&self) -> Result<()> {
        self.on_each(Part::close)
    }

    fn leaves(&self) -> &[Self] {
        if self.members.is_empty() { std::slice::from_ref(self) } else { &self.members }
    }

    fn census(&self, both: bool) -> Result<Call<Vec<Participant>>> {
        let calls = self.parts.iter().map(|part| part.participants(both)).collect::<Result<_>>()?;
        Ok(Call::new(calls, |answers| {
            let of = |answer| match answer {
                Answer::Participants(participants) => Ok(participants),
                _ => Err(Status::Internal.into()),
            };
            Ok(answers.into_iter().map(of).collect::<Result<Vec<_>>>()?.concat())
        }))
    }

    fn hold(&self) -> Result<HoldView> {
        let nobody = || {
            let message = format!("{}: nobody in this process holds this lock by this handle", self.path);
            Error::new(Status::NotOwner, message)
        };
        self.live(self.own_or_any()?, nobody)
    }

    fn hold_by(&self, owner: Owner) -> Result<HoldView> {
        self.live(self.view_of(owner)?, || self.error(Status::NotOwner))
    }

    fn live(&self, view: Option<HoldView>, missing: impl FnOnce() -> Error) -> Result<HoldView> {
        match view.ok_or_else(missing)? {
            HoldView { state: LockState::Lost, .. } => Err(self.error(Status::Lost)),
            view => Ok(view),
        }
    }

    fn own_or_any(&self) -> Result<Option<HoldView>> {
        match self.view_of(Owner::current_thread())? {
            None => self.view_of_any(),
            own => Ok(own),
        }
    }

    fn view_of(&self, owner: Owner) -> Result<Option<HoldView>> {
        self.least(|part| part.ask(|engine, now| engine.hold_of(now, part.id, owner)))
    }

    fn view_of_any(&self) -> Result<Option<HoldView>> {
        self.least(|part| part.ask(|engine, now| engine.hold_of_any(now, part.id)))
    }

    /// The hold of all parts, as surely as the least sure of them.
    fn least(&self, view: impl Fn(&Part) -> Result<Option<HoldView>>) -> Result<Option<HoldView>> {
        // All of them are asked: one that is closed is an error, whoever holds the others.
        let views = self.parts.iter().map(view).collect::<Result<Vec<_>>>()?;
        Ok(views.into_iter().reduce(|least, view| Some(least?.and(view?))).flatten())
    }

    fn on_each(&self, order: impl Fn(&Part) -> Result<()>) -> Result<()> {
        self.parts.iter().map(order).collect::<Vec<_>>().into_iter().collect()
    }

    fn error(&self, status: Status) -> Error {
        Error::new(status, format!("{}: {}", self.path, status.text()))
    }
}

/// A path that is locked twice would be waited for by who holds it.
fn refuse_twins(locks: &[&Lock]) -> Result<()> {
    let mut seen: HashMap<(*const OpenSession, &str), usize> = HashMap::new();
    for (at, lock) in locks.iter().enumerate() {
        for part in lock.leaves().iter().flat_map(|leaf| leaf.parts.iter()) {
            if let Some(first) = seen.insert((Arc::as_ptr(&part.session), part.path()), at) {
                let path = crate::path::quote(&part.path);
                let message = format!(
                    "path {path} is twice in a multi-lock, by locks[{first}] and locks[{at}]; expected different paths"
                );
                return Err(Error::invalid(message));
            }
        }
    }
    Ok(())
}

/// Makes one part of several of one client, to be joined in one transaction; or of a single one.
fn combine(group: Vec<&Part>) -> Result<Part> {
    let session = Arc::clone(&group.first().ok_or(Status::Internal)?.session);
    let path = match &*group {
        [first, others @ ..] if !others.is_empty() => format!("{} and {} more", first.path, others.len()),
        _ => group.first().map(|part| part.path.to_string()).unwrap_or_default(),
    };
    Part::new(session, &path, Recipe::Multi(group.iter().map(|part| part.id).collect()))
}

/// Those that one engine can join in one transaction, and the rest, in the order in which they are taken.
fn at_once(parts: Vec<&Part>) -> Vec<Vec<&Part>> {
    let mut groups: Vec<Vec<&Part>> = Vec::new();
    for part in parts {
        let is_queue = |part: &Part| matches!(part.recipe, Recipe::Queue(_));
        let joins = |group: &&mut Vec<&Part>| {
            group.iter().all(|other| is_queue(other) && other.is_of(&part.session)) && is_queue(part)
        };
        match groups.iter_mut().find(joins) {
            Some(group) => group.push(part),
            None => groups.push(vec![part]),
        }
    }
    groups.sort_by_cached_key(|group| group.iter().map(|part| part.rank()).min());
    groups
}

fn one_by_one(parts: Vec<&Part>) -> Vec<Vec<&Part>> {
    parts.into_iter().map(|part| vec![part]).collect()
}

/// A hold of the thread that made it, released on drop.
pub struct Guard<'a> {
    lock: &'a Lock,
    owner: Owner,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.lock.release_as(self.owner) {
            tracing::warn!("release: {error}");
        }
    }
}

impl Owner {
    /// The calling thread.
    pub fn current_thread() -> Self {
        thread_local! {
            static NUMBER: u64 = next_thread_number();
        }
        // While a thread is being torn down it has no number any more; 0 is nobody's.
        Self::Thread(NUMBER.try_with(|&number| number).unwrap_or_default())
    }

    /// A new owner for a green thread: a greenlet, fiber or coroutine that shares a thread of the system with others. No thread and no
    /// other green thread ever gets its number.
    pub fn new_green_thread() -> Self {
        Self::Thread(next_thread_number())
    }
}

fn next_thread_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

pub(crate) fn is_safe(view: Option<HoldView>) -> bool {
    view.is_some_and(HoldView::is_safe)
}
