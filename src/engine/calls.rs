//! Calls: what is asked of the engine, when it is answered, and what it means that a deadline has passed.

use std::sync::Arc;
use std::time::Duration;

use super::holds::{Hold, Trust, lost};
use super::{Answer, Engine, Kind, Lock, LockId, LockState, Machine, Op, OpId, Owner, Patience, Role};
use crate::error::{Error, Result, Status};
use crate::mutant::Mutant;
use crate::recipe::{Census, Contender, Input};
use crate::session::ClientState;
use crate::time::Time;

/// How long a call that is to look only once waits for the server's answer.
pub(crate) const LOOK_LIMIT: Duration = Duration::from_secs(1);
/// A deadline that passes while the server has owed an answer for longer than this is a connection error, not a time-out.
const SILENCE: Duration = Duration::from_millis(100);
/// How long closing may take at most, where the server does not answer.
pub(crate) const CLOSE_LIMIT: Duration = Duration::from_secs(2);

impl Engine {
    /// Answered once there is a session; a failure once the deadline has passed or the credentials were refused.
    pub fn connect(&mut self, now: Time, deadline: Time) -> OpId {
        let op = self.open(now, Kind::Connect, Some(deadline));
        if self.session.state() == ClientState::Closed {
            self.answer(op, Err(Status::Closed.into()));
        }
        if self.session.is_connected() {
            self.answer(op, Ok(Answer::Done));
        }
        op
    }

    /// Ends the session and answers all calls with CLOSED; this one is answered when the server has confirmed, or soon.
    pub fn close(&mut self, now: Time) -> OpId {
        let pending: Vec<OpId> = self.ops.keys().copied().collect();
        for op in pending {
            let error = self.ended(op, Status::Closed);
            self.answer(op, Err(error));
        }
        for (&id, lock) in &mut self.locks {
            let freed = lock.holds.drain(..).map(|hold| hold.freed(id, &lock.path));
            self.events.extend(freed);
        }
        let op = self.open(now, Kind::Close, None);
        self.session.close(now, now + CLOSE_LIMIT.min(self.session.timeout() / 3));
        self.settle(now);
        op
    }

    /// A lock on a path that was checked to be valid.
    pub fn add_lock(&mut self, path: &str, base: &'static str) -> LockId {
        let id = self.next_id();
        let directory: Arc<str> = format!("{}{path}", self.chroot).into();
        self.by_directory.entry(Arc::clone(&directory)).or_default().push(id);
        self.locks.insert(id, Lock { path: path.into(), directory, base, data: None, holds: Vec::new() });
        id
    }

    /// Takes a lock away: those that wait on it get CLOSED, and what is held on it is released.
    pub fn remove_lock(&mut self, now: Time, lock: LockId) {
        self.end_waits(now, lock, Status::Closed);
        let Some(removed) = self.locks.remove(&lock) else { return };
        if let Some(siblings) = self.by_directory.get_mut(&removed.directory) {
            siblings.retain(|&id| id != lock);
            if siblings.is_empty() {
                self.by_directory.remove(&removed.directory);
            }
        }
        for hold in removed.holds {
            self.events.push_back(hold.freed(lock, &removed.path));
            self.dismiss(now, hold.machine, None);
        }
        self.settle(now);
    }

    /// The data of nodes that later acquires create; `None`: the host's address.
    pub fn set_data(&mut self, lock: LockId, data: Option<Vec<u8>>) {
        if let Some(lock) = self.locks.get_mut(&lock) {
            lock.data = data;
        }
    }

    /// Acquires a lock, or enters it once more.
    pub fn acquire(&mut self, now: Time, lock: LockId, owner: Owner, patience: Patience) -> OpId {
        self.observe(now);
        let one_look = patience == Patience::OneLook;
        let deadline = match patience {
            Patience::OneLook => Some(now + LOOK_LIMIT),
            Patience::Until(at) => Some(at),
            Patience::Forever => None,
        };
        match self.may_acquire(now, lock, owner) {
            Err(error) => {
                let op = self.open(now, Kind::Reenter { lock, owner, one_look }, None);
                self.answer(op, Err(error));
                op
            }
            Ok(true) => {
                let op = self.open(now, Kind::Reenter { lock, owner, one_look }, deadline);
                self.settle_reentry(now, lock, owner);
                op
            }
            Ok(false) => {
                let machine = self.next_id();
                let op = self.open(now, Kind::Acquire { lock, owner, machine, one_look }, deadline);
                self.join(now, op);
                self.settle(now);
                op
            }
        }
    }

    /// Releases one entry of `owner`. The last one removes the node: with `wait` the answer comes when the server has
    /// confirmed it, or when the session timeout has passed without.
    pub fn release(&mut self, now: Time, lock: LockId, owner: Owner, wait: bool) -> OpId {
        self.observe(now);
        let deadline = now + self.session.timeout();
        let op = self.open(now, Kind::Release { lock }, Some(deadline));
        match self.leave(lock, owner) {
            Err(error) => self.answer(op, Err(error)),
            Ok(None) => self.answer(op, Ok(Answer::Done)),
            Ok(Some(machine)) => {
                self.dismiss(now, machine, wait.then_some(op));
                self.settle_reentry(now, lock, owner);
                if !wait {
                    self.answer(op, Ok(Answer::Done));
                }
            }
        }
        self.settle(now);
        op
    }

    /// Wakes all that wait on this lock now.
    pub fn cancel(&mut self, now: Time, lock: LockId) {
        self.end_waits(now, lock, Status::Canceled);
        self.settle(now);
    }

    /// Gives up one call that waits for a lock.
    pub fn cancel_op(&mut self, now: Time, op: OpId) {
        if matches!(self.ops.get(&op), Some(Op { kind: Kind::Acquire { .. } | Kind::Reenter { .. }, .. })) {
            let error = self.ended(op, Status::Canceled);
            self.give_up(now, op, error);
            self.settle(now);
        }
    }

    /// Asks who holds and who waits.
    pub fn participants(&mut self, now: Time, lock: LockId) -> OpId {
        let machine = self.next_id();
        let op = self.open(now, Kind::Census { machine }, Some(now + self.session.timeout()));
        let open = self.session.state() != ClientState::Closed;
        let Some(asked) = self.locks.get(&lock).filter(|_| open) else {
            self.answer(op, Err(Status::Closed.into()));
            return op;
        };
        let census = Census::new(Arc::clone(&asked.directory), self.chroot.len(), asked.base);
        self.machines.insert(machine, Machine::Census(census, op));
        if self.session.is_connected() {
            self.feed(now, machine, Input::Connected);
        }
        self.settle(now);
        op
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
    pub(super) fn may_acquire(&self, now: Time, lock: LockId, owner: Owner) -> Result<bool> {
        if self.session.state() == ClientState::Closed {
            return Err(Status::Closed.into());
        }
        let Some(wanted) = self.locks.get(&lock) else { return Err(Status::Closed.into()) };
        if let Some(hold) = self.hold(lock, owner) {
            return match hold.trust {
                Trust::Lost(removal) => Err(lost(&wanted.path, removal)),
                _ if hold.count == u32::MAX => Err(Error::new(Status::Exhausted, "the lock was entered 2^32-1 times")),
                _ => Ok(true),
            };
        }
        let siblings = self.by_directory.get(&wanted.directory).map_or(&[][..], Vec::as_slice);
        let held_by_sibling = siblings
            .iter()
            .filter(|&&id| id != lock)
            .any(|&id| self.hold(id, owner).is_some_and(|hold| self.hold_state(now, hold) != LockState::Lost));
        if held_by_sibling {
            let message = format!(
                "{}: the caller holds this path by another handle of the same client, and would wait for itself",
                wanted.path
            );
            return Err(Error::new(Status::Deadlock, message));
        }
        Ok(false)
    }

    /// Puts a fresh contender into the queue for a call.
    pub(super) fn join(&mut self, now: Time, op: OpId) {
        let Some(Op { kind: Kind::Acquire { lock, one_look, .. }, .. }) = self.ops.get(&op) else { return };
        let (lock, one_look) = (*lock, *one_look);
        let Some(wanted) = self.locks.get(&lock) else { return };
        if one_look && !self.session.is_connected() {
            let error = self.connection_error(now, now);
            return self.give_up(now, op, error);
        }
        let data = wanted.data.clone().unwrap_or_else(|| self.session.local_address().as_bytes().to_vec());
        let (directory, base) = (Arc::clone(&wanted.directory), wanted.base);
        let contender = Contender::new(directory, base, data, one_look, self.session.entropy());
        let machine = self.next_id();
        if let Some(Op { kind: Kind::Acquire { machine: current, .. }, .. }) = self.ops.get_mut(&op) {
            *current = machine;
        }
        self.machines.insert(machine, Machine::Contender(contender, Role::Acquiring(op)));
        self.admit(now, machine);
    }

    /// A call's contender is in: the call holds the lock, and so do all others of the same owner.
    pub(super) fn grant(&mut self, now: Time, machine: u64, op: OpId) {
        let Some(Op { kind: Kind::Acquire { lock, owner, .. }, .. }) = self.ops.get(&op) else { return };
        let (lock, owner) = (*lock, *owner);
        self.set_role(machine, Role::Holding(lock, owner));
        let Some(Machine::Contender(contender, _)) = self.machines.get(&machine) else { return };
        let token = contender.token().unwrap_or_default();
        let Some(granted) = self.locks.get_mut(&lock) else { return };
        let (trust, told) = (Trust::Sure, LockState::Free);
        granted.holds.push(Hold { owner, count: 1, machine, token, trust, told });
        self.answer(op, Ok(Answer::Done));
        if self.check_at.is_none() {
            self.check_at = Some(now + self.session.beat());
        }
        self.tell(now, lock);
        self.enter_with(now, lock, owner);
    }

    /// Other calls of an owner that has just got the lock enter it, and need no place in the queue any more.
    pub(super) fn enter_with(&mut self, now: Time, lock: LockId, owner: Owner) {
        for op in self.calls_of(lock, owner) {
            let Some(Op { kind: Kind::Acquire { machine, .. }, .. }) = self.ops.get(&op) else { continue };
            let machine = *machine;
            if let Some(hold) = self.hold_mut(lock, owner) {
                hold.count = hold.count.saturating_add(1);
            }
            self.answer(op, Ok(Answer::Done));
            self.dismiss(now, machine, None);
        }
    }

    /// Looks after the calls of an owner that want to enter his hold once more, as far as it is known how the hold stands.
    pub(super) fn settle_reentry(&mut self, now: Time, lock: LockId, owner: Owner) {
        for op in self.calls_of(lock, owner) {
            let Some(Op { kind: Kind::Reenter { one_look, .. }, .. }) = self.ops.get(&op) else { continue };
            let one_look = *one_look;
            let Some(hold) = self.hold(lock, owner) else {
                // It was released meanwhile: back to the end of the queue.
                self.requeue(now, op, Kind::Acquire { lock, owner, machine: 0, one_look });
                continue;
            };
            match (self.hold_state(now, hold), hold.trust) {
                (_, Trust::Lost(removal)) => {
                    let path = self.locks.get(&lock).map_or("", |lock| &lock.path);
                    let error = lost(path, removal);
                    self.answer(op, Err(error));
                }
                (LockState::Held | LockState::Suspended, _) => {
                    if let Some(hold) = self.hold_mut(lock, owner) {
                        hold.count = hold.count.saturating_add(1);
                    }
                    self.answer(op, Ok(Answer::Done));
                }
                _ => {}
            }
        }
    }

    fn requeue(&mut self, now: Time, op: OpId, kind: Kind) {
        if let Some(waiting) = self.ops.get_mut(&op) {
            waiting.kind = kind;
        }
        self.join(now, op);
    }

    // Leaving.

    /// Takes one entry off the hold of `owner`; gives the contender to dismiss if it was the last.
    pub(super) fn leave(&mut self, lock: LockId, owner: Owner) -> Result<Option<u64>> {
        if self.session.state() == ClientState::Closed {
            return Err(Status::Closed.into());
        }
        let Some(held) = self.locks.get_mut(&lock) else { return Err(Status::Closed.into()) };
        let Some(at) = held.holds.iter().position(|hold| hold.owner == owner) else {
            let message = format!("{}: the caller does not hold this lock", held.path);
            return Err(Error::new(Status::NotOwner, message));
        };
        let Some(hold) = held.holds.get_mut(at) else { return Ok(None) };
        hold.count -= 1;
        let (last, machine, trust) = (hold.count == 0, hold.machine, hold.trust);
        if last {
            let hold = held.holds.swap_remove(at);
            self.events.push_back(hold.freed(lock, &held.path));
        }
        match trust {
            Trust::Lost(removal) => {
                let path = self.locks.get(&lock).map_or("", |lock| &lock.path);
                Err(lost(path, removal))
            }
            _ => Ok(last.then_some(machine)),
        }
    }

    /// Sends a contender away; `waiter` is answered when it is gone.
    pub(super) fn dismiss(&mut self, now: Time, machine: u64, waiter: Option<OpId>) {
        self.set_role(machine, Role::Leaving(waiter));
        self.feed(now, machine, Input::Leave);
    }

    pub(super) fn end_waits(&mut self, now: Time, lock: LockId, status: Status) {
        let everybody = (lock, Owner::Thread(0))..=(lock, Owner::Custom(u64::MAX));
        let waiting: Vec<OpId> = self.entering.range(everybody).flat_map(|(_, calls)| calls.clone()).collect();
        for op in waiting {
            let error = self.ended(op, status);
            self.give_up(now, op, error);
        }
    }

    /// Ends a call without success, and sees to it that nothing of it stays.
    pub(super) fn give_up(&mut self, now: Time, op: OpId, error: Error) {
        let Some(Op { kind, .. }) = self.ops.get(&op) else { return };
        let kind = *kind;
        self.answer(op, Err(error));
        match kind {
            Kind::Acquire { .. } if Mutant::LeaveNode.lives() => {}
            Kind::Acquire { machine, .. } => self.dismiss(now, machine, None),
            Kind::Census { machine } => {
                self.machines.remove(&machine);
            }
            Kind::Connect | Kind::Reenter { .. } | Kind::Release { .. } | Kind::Close => {}
        }
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
        let Kind::Acquire { lock, machine, .. } = op.kind else { return self.connection_error(now, op.started) };
        let path = self.locks.get(&lock).map_or("", |lock| &lock.path);
        let ahead = match self.machines.get(&machine) {
            Some(Machine::Contender(contender, _)) => contender.ahead(),
            _ => None,
        };
        match ahead {
            Some((node, count)) if self.session.is_connected() => {
                let node = node.get(self.chroot.len()..).unwrap_or_default();
                let message = format!("{path}: not acquired within {waited} ms; {count} ahead, the nearest is {node}");
                Error::new(Status::Timeout, message)
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
        Error::new(Status::Connection, message)
    }
}

/// For a message: rounded, since a deadline is counted from a moment before the engine first heard of the call.
const fn milliseconds(duration: Duration) -> u128 {
    (duration.as_nanos() + 500_000) / 1_000_000
}
