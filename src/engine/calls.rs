//! Calls: what is asked of the engine, when it is answered, and what it means that a deadline has passed.

use std::sync::Arc;
use std::time::Duration;

use super::attempt::{Attempt, Entry};
use super::holds::{Trust, lost};
use super::{
    Answer, Awaited, Engine, Event, Kind, Lock, LockId, LockState, Machine, News, Op, OpId, Owner, Patience, Recipe,
    Role,
};
use crate::error::{Error, Result, Status};
use crate::mutant::Mutant;
use crate::proto::Request;
use crate::recipe::{Census, Desk, Errand, Fence, Input, Max, Mode, Place, Step, Tag, Task};
use crate::session::ClientState;
use crate::time::Time;

/// How long a call that is to look only once waits for the server's answer.
pub(crate) const LOOK_LIMIT: Duration = Duration::from_secs(1);
/// A deadline that passes while the server has owed an answer for longer than this is a connection error, not a time-out.
const SILENCE: Duration = Duration::from_millis(100);
/// How long closing may take at most, where the server does not answer.
pub(crate) const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// The number of no state machine: nothing handles the answer to a request under it.
const NOBODY: u64 = 0;

impl Engine {
    /// Answered once there is a session and the chroot was found; a failure if the chroot is missing, and once the deadline has passed or the
    /// credentials were refused.
    pub fn connect(&mut self, now: Time, deadline: Time) -> OpId {
        let op = self.open(now, Kind::Connect { machine: None }, Some(deadline));
        if self.session.state() == ClientState::Closed {
            self.answer(now, op, Err(Status::Closed.into()));
        }
        if self.session.is_connected() {
            self.find_chroot(now, op);
            self.settle(now);
        }
        op
    }

    /// Answers a call that waited for the connection, once the chroot was found.
    pub(super) fn find_chroot(&mut self, now: Time, op: OpId) {
        if self.chroot.path.is_empty() {
            return self.answer(now, op, Ok(Answer::Done));
        }
        let id = self.next_id();
        let Some(Op { kind: Kind::Connect { machine }, .. }) = self.ops.get_mut(&op) else { return };
        *machine = Some(id);
        let task = Task::FindChroot { path: self.chroot.path.clone() };
        self.machines.insert(id, Machine::Errand(Box::new(Errand::new(task)), op));
        self.feed(now, id, Input::Connected);
    }

    /// Ends the session and answers all calls with CLOSED; this one is answered when the server has confirmed, or soon.
    pub fn close(&mut self, now: Time) -> OpId {
        let pending: Vec<OpId> = self.ops.keys().copied().collect();
        for op in pending {
            let error = self.ended(op, Status::Closed);
            self.answer(now, op, Err(error));
        }
        let held = self.held_locks();
        for lock in held {
            self.free_all(now, lock);
        }
        self.cohorts.clear();
        let op = self.open(now, Kind::Close, None);
        self.empty_session(now);
        self.session.close(now, now + CLOSE_LIMIT.min(self.session.timeout() / 3));
        self.settle(now);
        op
    }

    /// Deletes the nodes of a large session before it ends, so that the transaction that ends it is short. A server carries out the
    /// requests of a session in order, so the deletes go out in one write with the close, and the close does not wait for their answers.
    /// If a delete fails, or is not sent since a server may refuse its size, the end of the session removes the node.
    fn empty_session(&mut self, now: Time) {
        if !self.path_bytes.is_large() || !self.session.is_connected() {
            return;
        }
        let contenders = self.machines.values().filter_map(|machine| match machine {
            Machine::Contender(contender, _) => Some(contender),
            _ => None,
        });
        let (mut batches, mut bytes) = (Vec::new(), usize::MAX);
        for node in contenders.flat_map(|contender| contender.present_nodes()) {
            if bytes > self.path_bytes.batch() {
                batches.push(Vec::new());
                bytes = 0;
            }
            bytes += node.len();
            if let Some(batch) = batches.last_mut() {
                batch.push(Request::Delete { path: node.to_owned(), version: -1 });
            }
        }
        for batch in batches {
            self.session.submit(now, &Request::Multi(batch), Tag { machine: NOBODY, step: Step::Errand });
        }
    }

    /// Declares all holds lost and the client closed: its shell has failed, and nothing more is heard of the session.
    pub fn abandon(&mut self, now: Time) {
        self.on_ended(now, None);
        let previous = std::mem::replace(&mut self.state, ClientState::Closed);
        self.news.push_back(News::Event(Event::Client { state: ClientState::Closed, previous }));
    }

    /// A lock on a path that was checked to be valid. That of a multi-lock is a name for messages, and its members are locks of this
    /// engine, no two with one path.
    pub fn add_lock(&mut self, path: impl Into<Arc<str>>, recipe: Recipe) -> LockId {
        let id = self.next_id();
        let path = path.into();
        let directory = if self.chroot.path.is_empty() || Mutant::ForgetChroot.lives() {
            Arc::clone(&path)
        } else {
            format!("{}{path}", self.chroot.path).into()
        };
        match &recipe {
            Recipe::Queue(_) => self.by_directory.entry(Arc::clone(&directory)).or_default().push(id),
            Recipe::Multi(members) => {
                for member in members {
                    if let Some(member) = self.locks.get_mut(member) {
                        member.multis.push(id);
                    }
                }
            }
            _ => {}
        }
        let (holds, multis) = (Vec::new(), Vec::new());
        let (data, is_revocable, max_passes) = (None, false, 0);
        let lock = Lock { path, directory, recipe, data, is_revocable, max_passes, holds, multis };
        self.locks.insert(id, Box::new(lock));
        id
    }

    /// Takes a lock away: those that wait on it get CLOSED, and what is held on it is released. So do those that wait for a
    /// multi-lock that it is part of.
    pub fn remove_lock(&mut self, now: Time, lock: LockId) {
        for waited_for in self.with_multis(lock) {
            self.end_waits(now, waited_for, Status::Closed);
        }
        let Some(removed) = self.locks.remove(&lock) else { return };
        if let Some(siblings) = self.by_directory.get_mut(&removed.directory) {
            siblings.retain(|&id| id != lock);
            if siblings.is_empty() {
                self.by_directory.remove(&removed.directory);
            }
        }
        if let Recipe::Multi(members) = &removed.recipe {
            for member in members {
                if let Some(member) = self.locks.get_mut(member) {
                    member.multis.retain(|&multi| multi != lock);
                }
            }
        }
        for hold in removed.holds {
            self.record_release(now, &hold, &removed.path);
            self.news.push_back(hold.freed(lock, &removed.path));
            self.dismiss(now, hold.machine, None);
        }
        self.muster_in(now, &removed.directory);
        self.settle(now);
    }

    /// Whether a lock is there, with all that it consists of.
    pub fn is_open(&self, lock: LockId) -> bool {
        self.locks.contains_key(&lock) && self.members(lock).iter().all(|member| self.locks.contains_key(member))
    }

    /// The data of nodes that later acquires create; `None`: the host's address.
    pub fn set_data(&mut self, lock: LockId, data: Option<&[u8]>) {
        for member in self.members(lock) {
            if let Some(lock) = self.locks.get_mut(&member) {
                lock.data = data.map(<[u8]>::to_vec);
            }
        }
    }

    /// Whether the program wants to hear when somebody asks for the lock to be given up.
    pub fn set_revocable(&mut self, now: Time, lock: LockId, is_revocable: bool) {
        for member in self.members(lock) {
            if let Some(lock) = self.locks.get_mut(&member) {
                lock.is_revocable = is_revocable;
            }
            for machine in self.contenders_of(member) {
                let is_revocable = self.locks_of(machine).iter().any(|lock| self.is_revocable(*lock));
                if let Some(Machine::Contender(contender, _)) = self.machines.get_mut(&machine) {
                    let mut desk = Desk::new(now, machine, &mut self.session, &mut self.mirrors, &self.chroot);
                    contender.set_revocable(&mut desk, is_revocable);
                }
            }
        }
        self.settle(now);
    }

    pub(super) fn is_revocable(&self, lock: LockId) -> bool {
        self.locks.get(&lock).is_some_and(|lock| lock.is_revocable)
    }

    /// The contenders that hold a lock, or wait for it.
    fn contenders_of(&self, lock: LockId) -> Vec<u64> {
        self.machines.keys().copied().filter(|&machine| self.locks_of(machine).contains(&lock)).collect()
    }

    /// The locks that a contender holds or waits for: several where it waits for a multi-lock.
    pub(super) fn locks_of(&self, machine: u64) -> Vec<LockId> {
        match self.machines.get(&machine) {
            Some(Machine::Contender(_, Role::Holding(lock, _))) => vec![*lock],
            Some(Machine::Contender(_, Role::Acquiring(op) | Role::Inside(op))) => {
                match self.ops.get(op).map(|op| op.kind) {
                    Some(Kind::Acquire { lock, .. }) => self.members(lock),
                    _ => Vec::new(),
                }
            }
            _ => Vec::new(),
        }
    }

    /// Acquires a lock, or enters it once more.
    pub fn acquire(&mut self, now: Time, lock: LockId, owner: Owner, patience: Patience) -> OpId {
        self.observe(now);
        let one_look = matches!(patience, Patience::OneLook(_));
        let may = self.may_acquire(now, lock, owner);
        let op = match may {
            Ok(false) => return self.begin_to_acquire(now, lock, Some(owner), patience, 1).0,
            Err(_) => self.open(now, Kind::Reenter { lock, owner, one_look }, None),
            Ok(true) => self.open(now, Kind::Reenter { lock, owner, one_look }, patience.deadline()),
        };
        match may {
            Err(error) => self.answer(now, op, Err(error)),
            Ok(_) => self.settle_reentry(now, lock, owner),
        }
        op
    }

    /// Looks after the hold of `owner`: answered with LOST when it is lost, and with NOT_OWNER when it was released. Of a multi-lock: when that
    /// happens to one of its locks.
    pub fn guard(&mut self, now: Time, lock: LockId, owner: Owner) -> OpId {
        self.look_after(now, Kind::Guard { lock, owner, awaits: Awaited::Loss }, None)
    }

    /// Waits until the hold of `owner` is safe, where its lease is over. Fails as a [`guard`](Self::guard) is answered, and with
    /// CONNECTION if the deadline passes.
    pub fn confirm(&mut self, now: Time, lock: LockId, owner: Owner, patience: Patience) -> OpId {
        self.look_after(now, Kind::Guard { lock, owner, awaits: Awaited::Safety }, patience.deadline())
    }

    fn look_after(&mut self, now: Time, kind: Kind, deadline: Option<Time>) -> OpId {
        self.observe(now);
        let op = self.open(now, kind, deadline);
        if let Some((lock, owner)) = kind.entrance() {
            self.settle_reentry(now, lock, owner);
        }
        op
    }

    /// Acquires leases of a semaphore; they belong to the owner that is given.
    pub fn acquire_leases(&mut self, now: Time, lock: LockId, quantity: u32, patience: Patience) -> (OpId, Owner) {
        self.observe(now);
        let refused = match self.locks.get(&lock).map(|lock| (&lock.recipe, &lock.path)) {
            _ if self.session.state() == ClientState::Closed => Some(Status::Closed.into()),
            None => Some(Status::Closed.into()),
            Some((Recipe::Semaphore(max), path)) if i64::from(quantity) > i64::from(*max) => {
                Some(Error::invalid(format!("{path}: {quantity} leases were asked for, and there are only {max}")))
            }
            Some((_, path)) if quantity == 0 => {
                Some(Error::invalid(format!("{path}: 0 leases were asked for; expected 1 or more")))
            }
            Some(_) => None,
        };
        match refused {
            None => self.begin_to_acquire(now, lock, None, patience, quantity),
            Some(error) => {
                let op = self.open(now, Kind::Ask { machine: 0 }, None);
                self.answer(now, op, Err(error));
                (op, Owner::Leases(op))
            }
        }
    }

    fn begin_to_acquire(
        &mut self,
        now: Time,
        lock: LockId,
        owner: Option<Owner>,
        patience: Patience,
        quantity: u32,
    ) -> (OpId, Owner) {
        let owner = owner.unwrap_or(Owner::Leases(self.last_id + 1));
        let (attempt, one_look) = (Attempt::Outside, matches!(patience, Patience::OneLook(_)));
        let kind = Kind::Acquire { lock, owner, attempt, one_look, quantity };
        let op = self.open(now, kind, patience.deadline());
        self.join(now, op);
        self.settle(now);
        (op, owner)
    }

    /// Releases one entry of `owner`. The last one removes the node: with `wait` the answer comes when the server has
    /// confirmed it, or when the session timeout has passed without. Of a multi-lock, all that `owner` holds are released, the last
    /// first, whatever becomes of the others; the first failure is reported.
    pub fn release(&mut self, now: Time, lock: LockId, owner: Owner, wait: bool) -> OpId {
        self.observe(now);
        let deadline = now + self.session.timeout();
        let op = self.open(now, Kind::Release { lock, left: 0 }, Some(deadline));
        let members = self.members(lock);
        let mut leaving = Vec::new();
        // Semaphore mutexes that another owner held.
        let mut anothers = Vec::new();
        for &member in members.iter().rev() {
            let holder = self.holder_to_release(member, owner).filter(|&holder| holder != owner);
            anothers.extend(holder.map(|holder| (member, holder)));
            let heir = self.heir(now, member, owner);
            match self.leave(now, member, owner) {
                Ok(machine) => leaving.extend(machine.filter(|&machine| !self.pass_on(now, machine, heir))),
                Err(error) => {
                    if let Some(op) = self.ops.get_mut(&op) {
                        op.failure.get_or_insert(error);
                    }
                }
            }
        }
        if let Some(Op { kind: Kind::Release { left, .. }, .. }) = self.ops.get_mut(&op) {
            *left = if wait { leaving.len() } else { 0 };
        }
        for machine in leaving {
            self.dismiss(now, machine, wait.then_some(op));
        }
        for member in members {
            self.muster(now, member);
            self.settle_reentry(now, member, owner);
        }
        for (member, holder) in anothers {
            self.settle_reentry(now, member, holder);
        }
        if matches!(self.ops.get(&op), Some(Op { kind: Kind::Release { left: 0, .. }, .. })) {
            self.finish_release(now, op);
        }
        self.settle(now);
        op
    }

    /// One of the nodes that a release is to remove has gone, or something went wrong with it.
    pub(super) fn one_has_gone(&mut self, now: Time, op: OpId, failure: Option<Error>) {
        let Some(Op { kind: Kind::Release { left, .. }, failure: first, .. }) = self.ops.get_mut(&op) else { return };
        *left = left.saturating_sub(1);
        let is_last = *left == 0;
        if let Some(failure) = failure {
            first.get_or_insert(failure);
        }
        if is_last {
            self.finish_release(now, op);
        }
    }

    fn finish_release(&mut self, now: Time, op: OpId) {
        let failure = self.ops.get_mut(&op).and_then(|op| op.failure.take());
        self.answer(now, op, failure.map_or(Ok(Answer::Done), Err));
    }

    /// Wakes all that wait on this lock now.
    pub fn cancel(&mut self, now: Time, lock: LockId) {
        self.end_waits(now, lock, Status::Canceled);
        self.settle(now);
    }

    /// Those that wait on this lock get CLOSED; what is held stays held.
    pub fn close_entrance(&mut self, now: Time, lock: LockId) {
        self.end_waits(now, lock, Status::Closed);
        self.settle(now);
    }

    /// Gives up one call that waits for a lock, or looks after a hold.
    pub fn cancel_op(&mut self, now: Time, op: OpId) {
        let is_wanted = |kind: Kind| matches!(kind, Kind::Acquire { .. } | Kind::Reenter { .. } | Kind::Guard { .. });
        if self.ops.get(&op).is_some_and(|op| is_wanted(op.kind)) {
            let error = self.ended(op, Status::Canceled);
            self.give_up(now, op, error);
            self.settle(now);
        }
    }

    /// Asks who holds and who waits. Of a read/write lock those of the lock's own kind; or `both`.
    pub fn participants(&mut self, now: Time, lock: LockId, both: bool) -> OpId {
        let places: Vec<Place> = self.members(lock).iter().filter_map(|&member| self.place(member, both)).collect();
        let (chroot_len, is_known) = (self.chroot.path.len(), self.is_open(lock));
        let ask = |op| Machine::Census(Box::new(Census::new(places, chroot_len)), op);
        self.ask(now, is_known, ask)
    }

    /// Reads a count, sets it, makes its node, or asks for a node back. The paths in the task are without the chroot.
    pub fn errand(&mut self, now: Time, task: Task) -> OpId {
        let task = task.below(&self.chroot.path);
        self.ask(now, true, |op| Machine::Errand(Box::new(Errand::new(task)), op))
    }

    /// Asks whether the hold with this token is a holder's on this path, whatever recipe uses it.
    pub fn fence_check(&mut self, now: Time, path: &str, token: i64) -> OpId {
        let fence = Fence::new(format!("{}{path}", self.chroot.path), token, self.with_kazoo);
        self.ask(now, true, |op| Machine::Fence(Box::new(fence), op))
    }

    fn ask(&mut self, now: Time, is_known: bool, machine: impl FnOnce(OpId) -> Machine) -> OpId {
        let id = self.next_id();
        let op = self.open(now, Kind::Ask { machine: id }, Some(now + self.session.timeout()));
        if !is_known || self.session.state() == ClientState::Closed {
            self.answer(now, op, Err(Status::Closed.into()));
            return op;
        }
        self.machines.insert(id, machine(op));
        if self.session.is_connected() {
            self.feed(now, id, Input::Connected);
        }
        self.settle(now);
        op
    }

    pub(super) fn place(&self, lock: LockId, both: bool) -> Option<Place> {
        let Lock { directory, recipe, .. } = &**self.locks.get(&lock)?;
        let directory = Arc::clone(directory);
        Some(match recipe {
            Recipe::Queue(mode) => Place::Queue { directory, mode: *mode, with_kazoo: self.with_kazoo, both },
            Recipe::SemaphoreMutex => Place::Semaphore { directory, max: Max::Fixed(1) },
            Recipe::Semaphore(max) => Place::Semaphore { directory, max: Max::Fixed(*max) },
            Recipe::CountedSemaphore { count_path, .. } => {
                Place::Semaphore { directory, max: Max::Count(format!("{}{count_path}", self.chroot.path)) }
            }
            Recipe::Multi(_) => return None,
        })
    }

    /// The deadline of a call has come, by its caller's clock. Nothing happens if it was answered, or is not due.
    pub fn expire(&mut self, now: Time, op: OpId) {
        let Some(due) = self.ops.get(&op) else { return };
        if due.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        if Mutant::OversleepDeadline.lives() && !self.session.is_connected() {
            self.deadlines.retain(|&(_, other)| other != op);
            return;
        }
        let error = self.overdue(now, due);
        self.give_up(now, op, error);
        self.settle(now);
    }

    // Acquiring.

    /// Whether `owner` may wait for the lock (false), is in already (true), or must not.
    fn may_acquire(&self, now: Time, lock: LockId, owner: Owner) -> Result<bool> {
        if self.session.state() == ClientState::Closed || !self.locks.contains_key(&lock) {
            return Err(Status::Closed.into());
        }
        let mut is_in = true;
        for member in self.members(lock) {
            is_in &= self.may_acquire_one(now, member, owner)?;
        }
        Ok(is_in)
    }

    fn may_acquire_one(&self, now: Time, lock: LockId, owner: Owner) -> Result<bool> {
        let Some(wanted) = self.locks.get(&lock) else { return Err(Status::Closed.into()) };
        let Recipe::Queue(mode) = wanted.recipe else {
            // Not re-entrant; but a hold that is lost has to be released first.
            return match self.hold(lock, owner).map(|hold| hold.trust) {
                Some(Trust::Lost(removal)) => Err(lost(&wanted.path, removal)),
                _ => Ok(false),
            };
        };
        if let Some(hold) = self.hold(lock, owner) {
            return match hold.trust {
                Trust::Lost(removal) => Err(lost(&wanted.path, removal)),
                _ if hold.count == u32::MAX => Err(Error::new(Status::Exhausted, "the lock was entered 2^32-1 times")),
                _ => Ok(true),
            };
        }
        for sibling in self.siblings(lock) {
            let Some(hold) = self.hold(sibling, owner) else { continue };
            let held = self.locks.get(&sibling).map(|lock| &lock.recipe);
            let nests = mode == Mode::Read && matches!(held, Some(Recipe::Queue(Mode::Read | Mode::Write)));
            if !nests && self.hold_state(now, hold) != LockState::Lost && !Mutant::UpgradeForever.lives() {
                return Err(self.deadlock(&wanted.path, mode, held));
            }
        }
        Ok(false)
    }

    fn deadlock(&self, path: &str, wanted: Mode, held: Option<&Recipe>) -> Error {
        let why = match (wanted, held) {
            (Mode::Write, Some(Recipe::Queue(Mode::Read))) => {
                "the caller holds the read lock, and as a writer would wait for itself; release the read lock first"
            }
            _ => "the caller holds this path by another handle of the same client, and would wait for itself",
        };
        Error::new(Status::Deadlock, format!("{path}: {why}"))
    }

    /// Answers the calls of an owner that enter its hold once more or look after it, as far as the state of the hold is known.
    pub(super) fn settle_reentry(&mut self, now: Time, lock: LockId, owner: Owner) {
        for lock in self.with_multis(lock) {
            let members = self.members(lock);
            for op in self.calls_of(lock, owner) {
                let Some(&Op { kind: kind @ (Kind::Reenter { .. } | Kind::Guard { .. }), .. }) = self.ops.get(&op)
                else {
                    continue;
                };
                match (self.may_enter(now, &members, owner), kind) {
                    (Entry::Open, Kind::Guard { awaits: Awaited::Loss, .. }) | (Entry::InDoubt, _) => {}
                    (Entry::Open, Kind::Guard { .. }) => self.answer(now, op, Ok(Answer::Done)),
                    (Entry::Open, _) => {
                        self.enter(&members, owner);
                        self.tally.reentries += 1;
                        self.answer(now, op, Ok(Answer::Done));
                    }
                    (Entry::Free, Kind::Guard { .. }) => {
                        let error = self.ended(op, Status::NotOwner);
                        self.answer(now, op, Err(error));
                    }
                    // It was released meanwhile: back to the end of the queue.
                    (Entry::Free, _) => self.queue_up(now, op),
                    (Entry::Lost(error), _) => self.answer(now, op, Err(error)),
                }
            }
        }
    }

    fn queue_up(&mut self, now: Time, op: OpId) {
        let Some(waiting) = self.ops.get_mut(&op) else { return };
        if let Kind::Reenter { lock, owner, one_look } = waiting.kind {
            waiting.kind = Kind::Acquire { lock, owner, attempt: Attempt::Outside, one_look, quantity: 1 };
            self.join(now, op);
        }
    }

    /// The counterpart: all that the call wanted is held by now.
    pub(super) fn reenter(&mut self, now: Time, op: OpId) {
        let Some(waiting) = self.ops.get_mut(&op) else { return };
        if let Kind::Acquire { lock, owner, one_look, .. } = waiting.kind {
            waiting.kind = Kind::Reenter { lock, owner, one_look };
            self.settle_reentry(now, lock, owner);
        }
    }

    // Leaving.

    /// Takes one entry off the hold of `owner`; gives the contender to dismiss if it was the last.
    pub(super) fn leave(&mut self, now: Time, lock: LockId, owner: Owner) -> Result<Option<u64>> {
        if self.session.state() == ClientState::Closed {
            return Err(Status::Closed.into());
        }
        let at = self.hold_to_release(lock, owner);
        let Some(held) = self.locks.get_mut(&lock) else { return Err(Status::Closed.into()) };
        let Some(at) = at else {
            let message = format!("{}: the caller does not hold this lock", held.path);
            return Err(Error::new(Status::NotOwner, message));
        };
        let Some(hold) = held.holds.get_mut(at) else { return Ok(None) };
        hold.count -= 1;
        let (last, machine, trust) = (hold.count == 0, hold.machine, hold.trust);
        if last {
            let hold = held.holds.swap_remove(at);
            let path = Arc::clone(&held.path);
            self.news.push_back(hold.freed(lock, &path));
            self.record_release(now, &hold, &path);
        }
        match trust {
            Trust::Lost(removal) => {
                let path = self.locks.get(&lock).map_or("", |lock| &lock.path);
                Err(lost(path, removal))
            }
            _ => Ok(last.then_some(machine)),
        }
    }

    /// Whose hold `owner` would release.
    fn holder_to_release(&self, lock: LockId, owner: Owner) -> Option<Owner> {
        let at = self.hold_to_release(lock, owner)?;
        Some(self.locks.get(&lock)?.holds.get(at)?.owner)
    }

    /// Which of a lock's holds `owner` would release.
    fn hold_to_release(&self, lock: LockId, owner: Owner) -> Option<usize> {
        let Lock { holds, recipe, .. } = &**self.locks.get(&lock)?;
        let own = holds.iter().position(|hold| hold.owner == owner);
        match recipe {
            // Anybody's will do: whoever acquired it and lost it since is told so, and does not take it from the next.
            Recipe::SemaphoreMutex => {
                let live = holds.iter().position(|hold| !matches!(hold.trust, Trust::Lost(_)));
                let own = own.filter(|_| !Mutant::ReleaseAnothers.lives());
                own.or(live).or_else(|| (!holds.is_empty()).then_some(0))
            }
            _ => own,
        }
    }

    /// Sends a contender away; `waiter` is answered when it is gone.
    pub(super) fn dismiss(&mut self, now: Time, machine: u64, waiter: Option<OpId>) {
        self.set_role(machine, Role::Leaving(waiter));
        self.feed(now, machine, Input::Leave);
    }

    /// The calls that wait to get into a lock.
    pub(super) fn calls_for(&self, lock: LockId) -> Vec<OpId> {
        let everybody = (lock, Owner::Thread(0))..=(lock, Owner::Leases(u64::MAX));
        self.entering.range(everybody).flat_map(|(_, calls)| calls.clone()).collect()
    }

    fn end_waits(&mut self, now: Time, lock: LockId, status: Status) {
        for op in self.calls_for(lock) {
            let error = self.ended(op, status);
            self.give_up(now, op, error);
        }
    }

    /// Ends a call without success, and sees to it that nothing of it stays.
    pub(super) fn give_up(&mut self, now: Time, op: OpId, error: Error) {
        let Some(Op { kind, .. }) = self.ops.get(&op) else { return };
        let kind = *kind;
        self.answer(now, op, Err(error));
        match kind {
            Kind::Acquire { .. } if Mutant::LeaveNode.lives() => {}
            Kind::Acquire { lock, attempt, .. } => self.drop_attempt(now, lock, attempt),
            Kind::Ask { machine } | Kind::Connect { machine: Some(machine) } => {
                self.machines.remove(&machine);
            }
            Kind::Connect { machine: None }
            | Kind::Reenter { .. }
            | Kind::Guard { .. }
            | Kind::Release { .. }
            | Kind::Close => {}
        }
    }

    /// A call that was to look only once has seen somebody ahead.
    pub(super) fn found_busy(&mut self, now: Time, op: OpId) {
        let path = self.path_of(op);
        let told = self.told_of(op).unwrap_or_else(|| "somebody holds it or is ahead".to_owned());
        self.give_up(now, op, Error::new(Status::Timeout, format!("{path}: {told}")));
    }

    /// A wait that was ended by this program: the lock's path, and how.
    fn ended(&self, op: OpId, status: Status) -> Error {
        match self.path_of(op) {
            path if path.is_empty() => status.into(),
            path => Error::new(status, format!("{path}: {}", status.text())),
        }
    }

    /// What it means that a call's deadline has passed.
    pub(super) fn overdue(&self, now: Time, op: &Op) -> Error {
        let waited = milliseconds(now - op.started);
        let Kind::Acquire { lock, attempt, quantity, .. } = op.kind else {
            return self.connection_error(now, op.started);
        };
        let path = self.locks.get(&lock).map_or("", |lock| &lock.path);
        let hindrance = self.hindrance(lock, attempt, quantity);
        match hindrance.told(&self.chroot.path) {
            Some(told) if self.session.is_connected() => {
                Error::new(Status::Timeout, format!("{path}: not acquired within {waited} ms; {told}"))
            }
            _ if self.session.is_connected() && self.session.silence(now) < SILENCE => {
                Error::new(Status::Timeout, format!("{path}: not acquired within {waited} ms"))
            }
            _ => self.connection_error(now, op.started),
        }
    }

    pub(super) fn connection_error(&self, now: Time, started: Time) -> Error {
        let waited = milliseconds(now - started);
        let message = format!("no answer from {} within {waited} ms; {}", self.servers, self.session.story());
        let status = if self.session.is_starved() { Status::Exhausted } else { Status::Connection };
        Error::new(status, message)
    }
}

impl Patience {
    const fn deadline(self) -> Option<Time> {
        match self {
            Self::OneLook(at) | Self::Until(at) => Some(at),
            Self::Forever => None,
        }
    }
}

/// For a message: rounded, since a deadline is counted from a moment before the engine first heard of the call.
const fn milliseconds(duration: Duration) -> u128 {
    (duration.as_nanos() + 500_000) / 1_000_000
}
