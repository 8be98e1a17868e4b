//! One client as a value: its session, its locks, and all calls that are under way. The only place where a lock is granted,
//! a deadline is judged, or a hold is declared lost.
//!
//! The shell feeds it calls, bytes and the time, then takes what it has to say: bytes to send, connections to open, calls
//! that are answered, events for the program, and when it wants to be called again.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result, Status};
use crate::recipe::{Census, Contender, Desk, Input, Output, Participant, Removal, Tag};
use crate::session::{self, ClientState, Command, ConnectString, Entropy, Session, SessionConfig};
use crate::time::Time;

/// How long a call that is to look only once waits for the server's answer.
pub(crate) const LOOK_LIMIT: Duration = Duration::from_secs(1);
/// A deadline that passes while the server has owed an answer for longer than this is a connection error, not a time-out.
const SILENCE: Duration = Duration::from_millis(100);
/// How long closing may take at most, where the server does not answer.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// A lock of one engine.
pub type LockId = u64;
/// A call under way.
pub type OpId = u64;

/// Who holds or wants a lock: re-entrancy and release go by this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// A thread of this process, by a number that is never given out twice.
    Thread(u64),
    /// Whatever the program calls an owner: a task, a request.
    Custom(u64),
}

/// How long an acquire may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// One look, no wait.
    OneLook,
    /// Until this moment.
    Until(Time),
    /// For ever.
    Forever,
}

/// How a hold stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum LockState {
    /// Not held.
    Free = 0,
    /// Held, and safe.
    Held = 1,
    /// Safe while the lease runs, but the connection is gone or the hold is not confirmed since it came back.
    Suspended = 2,
    /// The lease is over: it may be lost.
    Uncertain = 3,
    /// Lost for good.
    Lost = 4,
}

/// What an answered call brings.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// Who stands in the queue.
    Participants(Vec<Participant>),
}

/// Something the program may want to hear of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The client's session stands differently.
    Client {
        /// Now.
        state: ClientState,
        /// Before.
        previous: ClientState,
    },
    /// A hold stands differently.
    Lock {
        /// The lock.
        lock: LockId,
        /// Its path, as the program gave it.
        path: Arc<str>,
        /// The fencing token of the hold.
        token: i64,
        /// Now.
        state: LockState,
        /// Before.
        previous: LockState,
    },
}

/// What is known of a hold at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldView {
    /// How it stands.
    pub state: LockState,
    /// Its fencing token.
    pub token: i64,
    /// How long it is safe without hearing from a server; zero if it is not.
    pub remaining: Duration,
}

/// A client; see the module's description.
pub struct Engine {
    session: Session<Tag>,
    servers: String,
    chroot: String,
    locks: BTreeMap<LockId, Lock>,
    by_directory: HashMap<Arc<str>, Vec<LockId>>,
    ops: BTreeMap<OpId, Op>,
    machines: BTreeMap<u64, Machine>,
    deadlines: BTreeSet<(Time, OpId)>,
    retries: BTreeSet<(Time, u64)>,
    /// How many contenders are holds.
    holding: usize,
    /// When holds whose node is not watched yet are looked after.
    check_at: Option<Time>,
    /// The lease was seen to be over, and the holds were told.
    lapsed: bool,
    state: ClientState,
    last_id: u64,
    answers: VecDeque<(OpId, Result<Answer>)>,
    events: VecDeque<Event>,
}

struct Lock {
    path: Arc<str>,
    directory: Arc<str>,
    base: &'static str,
    data: Option<Vec<u8>>,
    holds: Vec<Hold>,
}

struct Hold {
    owner: Owner,
    count: u32,
    machine: u64,
    token: i64,
    trust: Trust,
    told: LockState,
}

/// What is known of a hold beside its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// Its node is there.
    Sure,
    /// The connection was lost since the node was last seen.
    Unconfirmed,
    /// The lease was over since the node was last seen.
    Doubtful,
    /// It is lost.
    Lost(Removal),
}

struct Op {
    kind: Kind,
    started: Time,
    deadline: Option<Time>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Waits for the first connection.
    Connect,
    Acquire {
        lock: LockId,
        owner: Owner,
        machine: u64,
        one_look: bool,
    },
    /// Waits until a hold whose lease is over is safe again, or lost.
    Reenter {
        lock: LockId,
        owner: Owner,
    },
    Release,
    Census {
        machine: u64,
    },
    Close,
}

enum Machine {
    Contender(Contender, Role),
    Census(Census, OpId),
}

#[derive(Debug, Clone, Copy)]
enum Role {
    Acquiring(OpId),
    Holding(LockId, Owner),
    /// On its way out; somebody may wait for it.
    Leaving(Option<OpId>),
}

impl Engine {
    /// A client that looks for its servers from the first [`advance`](Self::advance) on.
    pub fn new(target: ConnectString, config: SessionConfig, now: Time, entropy: Entropy) -> Self {
        let servers = target.servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        Self {
            session: Session::new(target.servers, config, now, entropy),
            servers,
            chroot: target.chroot,
            locks: BTreeMap::new(),
            by_directory: HashMap::new(),
            ops: BTreeMap::new(),
            machines: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            retries: BTreeSet::new(),
            holding: 0,
            check_at: None,
            lapsed: false,
            state: ClientState::Connecting,
            last_id: 0,
            answers: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    // What the shell feeds.

    /// The shell has the connection it was asked for.
    pub fn connected(&mut self, now: Time, local_address: &str) {
        self.session.connected(now, local_address);
        self.settle(now);
    }

    /// The connection, or the attempt, has failed.
    pub fn disconnected(&mut self, now: Time, cause: &str) {
        self.observe(now);
        self.session.disconnected(now, cause);
        self.settle(now);
    }

    /// Bytes have come in.
    pub fn received(&mut self, now: Time, bytes: &[u8]) {
        self.observe(now);
        self.session.received(now, bytes);
        self.settle(now);
    }

    /// Does all that is due. Bytes that have already come in should be fed first.
    pub fn advance(&mut self, now: Time) {
        self.observe(now);
        self.session.advance(now);
        self.settle(now);
        while let Some(&(at, op)) = self.deadlines.first() {
            if at > now {
                break;
            }
            self.expire(now, op);
        }
        while let Some(&(at, machine)) = self.retries.first() {
            if at > now {
                break;
            }
            self.retries.remove(&(at, machine));
            self.feed(now, machine, Input::Retry);
        }
        if self.check_at.is_some_and(|at| now >= at) {
            self.check_at = None;
            self.confirm_holds(now, |contender| !contender.is_watched());
        }
        self.settle(now);
    }

    /// When [`advance`](Self::advance) wants to be called.
    pub fn next_timeout(&self) -> Option<Time> {
        let lease_end = self.session.lease().filter(|_| self.holding > 0 && !self.lapsed).map(session::Lease::end);
        let deadline = self.deadlines.first().map(|&(at, _)| at);
        let retry = self.retries.first().map(|&(at, _)| at);
        [self.session.next_timeout(), deadline, retry, self.check_at, lease_end].into_iter().flatten().min()
    }

    /// Bytes to be sent; the shell takes off the front what it has sent.
    pub fn output(&mut self) -> &mut Vec<u8> {
        self.session.output()
    }

    /// The next thing for the shell to do.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.session.poll_command()
    }

    /// The next call that is answered.
    pub fn poll_answer(&mut self) -> Option<(OpId, Result<Answer>)> {
        self.answers.pop_front()
    }

    /// The next event, in the order in which they happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // Calls.

    /// Answered once there is a session; a failure once the deadline has passed or the credentials were refused.
    pub fn connect(&mut self, now: Time, deadline: Time) -> OpId {
        let op = self.open(now, Kind::Connect, Some(deadline));
        if self.session.is_connected() {
            self.answer(op, Ok(Answer::Done));
        }
        op
    }

    /// Ends the session and answers all calls with CLOSED; this one is answered when the server has confirmed, or soon.
    pub fn close(&mut self, now: Time) -> OpId {
        let pending: Vec<OpId> = self.ops.keys().copied().collect();
        for op in pending {
            self.answer(op, Err(Status::Closed.into()));
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
        self.end_waits(now, lock, &Status::Closed.into());
        let Some(removed) = self.locks.remove(&lock) else { return };
        if let Some(siblings) = self.by_directory.get_mut(&removed.directory) {
            siblings.retain(|&id| id != lock);
            if siblings.is_empty() {
                self.by_directory.remove(&removed.directory);
            }
        }
        for hold in removed.holds {
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
                let op = self.open(now, Kind::Reenter { lock, owner }, None);
                self.answer(op, Err(error));
                op
            }
            Ok(true) => {
                let op = self.open(now, Kind::Reenter { lock, owner }, deadline);
                self.settle_reentry(now, lock);
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
        let op = self.open(now, Kind::Release, Some(deadline));
        match self.leave(lock, owner) {
            Err(error) => self.answer(op, Err(error)),
            Ok(None) => self.answer(op, Ok(Answer::Done)),
            Ok(Some(machine)) => {
                self.dismiss(now, machine, wait.then_some(op));
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
        self.end_waits(now, lock, &Status::Canceled.into());
        self.settle(now);
    }

    /// Gives up one call that waits for a lock.
    pub fn cancel_op(&mut self, now: Time, op: OpId) {
        if matches!(self.ops.get(&op), Some(Op { kind: Kind::Acquire { .. } | Kind::Reenter { .. }, .. })) {
            self.give_up(now, op, Status::Canceled.into());
            self.settle(now);
        }
    }

    /// Asks who holds and who waits.
    pub fn participants(&mut self, now: Time, lock: LockId) -> OpId {
        let machine = self.next_id();
        let op = self.open(now, Kind::Census { machine }, Some(now + self.session.timeout()));
        let Some(asked) = self.locks.get(&lock) else {
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
        let error = self.overdue(now, due);
        self.give_up(now, op, error);
        self.settle(now);
    }

    // Questions.

    /// How the client's session stands.
    pub fn state(&self) -> ClientState {
        self.session.state()
    }

    /// The session's id; 0 where there is none.
    pub fn session_id(&self) -> i64 {
        self.session.id()
    }

    /// The session timeout in force.
    pub fn session_timeout(&self) -> Duration {
        self.session.timeout()
    }

    /// How many watches its server is believed to keep for it.
    pub fn watch_count(&self) -> usize {
        self.session.watch_count()
    }

    /// The hold of `owner`.
    pub fn hold_of(&self, now: Time, lock: LockId, owner: Owner) -> Option<HoldView> {
        let hold = self.hold(lock, owner)?;
        Some(self.view(now, hold))
    }

    /// The hold of whoever in this process holds it; one that is lost only if there is no other.
    pub fn hold_of_any(&self, now: Time, lock: LockId) -> Option<HoldView> {
        let holds = &self.locks.get(&lock)?.holds;
        let live = holds.iter().find(|hold| !matches!(hold.trust, Trust::Lost(_)));
        live.or_else(|| holds.first()).map(|hold| self.view(now, hold))
    }

    fn view(&self, now: Time, hold: &Hold) -> HoldView {
        let state = self.hold_state(now, hold);
        let safe = matches!(state, LockState::Held | LockState::Suspended);
        let lease = self.session.lease().filter(|_| safe);
        let remaining = lease.map_or(Duration::ZERO, |lease| lease.remaining(now));
        HoldView { state, token: hold.token, remaining }
    }

    fn hold_state(&self, now: Time, hold: &Hold) -> LockState {
        match hold.trust {
            Trust::Lost(_) => LockState::Lost,
            _ if !self.session.lease_runs(now) => LockState::Uncertain,
            Trust::Doubtful => LockState::Uncertain,
            Trust::Sure if self.session.is_connected() => LockState::Held,
            Trust::Sure | Trust::Unconfirmed => LockState::Suspended,
        }
    }

    // Acquiring.

    /// Whether `owner` may wait for the lock (false), is in already (true), or must not.
    fn may_acquire(&self, now: Time, lock: LockId, owner: Owner) -> Result<bool> {
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
    fn join(&mut self, now: Time, op: OpId) {
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
        if self.session.is_connected() {
            self.feed(now, machine, Input::Connected);
        }
    }

    /// A call's contender is in: the call holds the lock, and so do all others of the same owner.
    fn grant(&mut self, now: Time, machine: u64, op: OpId) {
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
    fn enter_with(&mut self, now: Time, lock: LockId, owner: Owner) {
        let others: Vec<OpId> = self
            .ops
            .iter()
            .filter(|(_, op)| matches!(op.kind, Kind::Acquire { lock: l, owner: o, .. } if l == lock && o == owner))
            .map(|(&id, _)| id)
            .collect();
        for op in others {
            let Some(Op { kind: Kind::Acquire { machine, .. }, .. }) = self.ops.get(&op) else { continue };
            let machine = *machine;
            if let Some(hold) = self.hold_mut(lock, owner) {
                hold.count += 1;
            }
            self.answer(op, Ok(Answer::Done));
            self.dismiss(now, machine, None);
        }
    }

    /// Answers calls that want to enter a hold once more, where it is known how the hold stands.
    fn settle_reentry(&mut self, now: Time, lock: LockId) {
        let waiting: Vec<(OpId, Owner)> = self
            .ops
            .iter()
            .filter_map(|(&id, op)| match op.kind {
                Kind::Reenter { lock: wanted, owner } if wanted == lock => Some((id, owner)),
                _ => None,
            })
            .collect();
        for (op, owner) in waiting {
            let Some(hold) = self.hold(lock, owner) else {
                self.answer(op, Err(Status::NotOwner.into()));
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

    // Leaving.

    /// Takes one entry off the hold of `owner`; gives the contender to dismiss if it was the last.
    fn leave(&mut self, lock: LockId, owner: Owner) -> Result<Option<u64>> {
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
            let (path, token, previous) = (Arc::clone(&held.path), hold.token, hold.told);
            self.events.push_back(Event::Lock { lock, path, token, state: LockState::Free, previous });
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
    fn dismiss(&mut self, now: Time, machine: u64, waiter: Option<OpId>) {
        self.set_role(machine, Role::Leaving(waiter));
        self.feed(now, machine, Input::Leave);
    }

    fn end_waits(&mut self, now: Time, lock: LockId, error: &Error) {
        let waiting: Vec<OpId> = self.ops.iter().filter(|(_, op)| op.kind.waits_for(lock)).map(|(&id, _)| id).collect();
        for op in waiting {
            self.give_up(now, op, error.clone());
        }
    }

    /// Ends a call without success, and sees to it that nothing of it stays.
    fn give_up(&mut self, now: Time, op: OpId, error: Error) {
        let Some(Op { kind, .. }) = self.ops.get(&op) else { return };
        let kind = *kind;
        self.answer(op, Err(error));
        match kind {
            Kind::Acquire { machine, .. } => self.dismiss(now, machine, None),
            Kind::Census { machine } => {
                self.machines.remove(&machine);
            }
            Kind::Connect | Kind::Reenter { .. } | Kind::Release | Kind::Close => {}
        }
    }

    /// What it means that a call's deadline has passed.
    fn overdue(&self, now: Time, op: &Op) -> Error {
        let waited = (now - op.started).as_millis();
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

    fn connection_error(&self, now: Time, started: Time) -> Error {
        let waited = (now - started).as_millis();
        let message = format!("no answer from {} within {waited} ms; {}", self.servers, self.session.story());
        Error::new(Status::Connection, message)
    }

    // The session.

    /// Takes all that the session says to its consequences.
    fn settle(&mut self, now: Time) {
        while let Some(event) = self.session.poll_event() {
            match event {
                session::Event::Connected { resumed } => self.on_connected(now, resumed),
                session::Event::Disconnected => self.on_disconnected(now),
                session::Event::Ended { replaced } => self.on_ended(now, replaced),
                session::Event::Reply { tag, result } => self.feed(now, tag.machine, Input::Reply(tag.step, result)),
                session::Event::Fired { subscriber, kind, path } => {
                    self.feed(now, subscriber, Input::Fired(kind, &path));
                }
                session::Event::AuthFailed => self.on_auth_failed(now),
                session::Event::Closed => self.on_closed(),
            }
        }
        self.recover(now);
        // Whatever has a node depends on the lease.
        self.session.set_guarded(!self.machines.is_empty());
        let state = self.session.state();
        if state != self.state {
            let previous = std::mem::replace(&mut self.state, state);
            self.events.push_back(Event::Client { state, previous });
        }
    }

    fn on_connected(&mut self, now: Time, resumed: bool) {
        self.answer_all(|kind| matches!(kind, Kind::Connect), &Ok(()));
        self.feed_all(now, |_| Input::Connected);
        if resumed {
            self.distrust(now, Trust::Unconfirmed);
        }
    }

    fn on_disconnected(&mut self, now: Time) {
        self.feed_all(now, |_| Input::Disconnected);
        self.tell_all(now);
        // One look means one look.
        for op in self.select(|kind| matches!(kind, Kind::Acquire { one_look: true, .. })) {
            let started = self.ops.get(&op).map_or(now, |op| op.started);
            let error = self.connection_error(now, started);
            self.give_up(now, op, error);
        }
    }

    fn on_ended(&mut self, now: Time, replaced: bool) {
        self.lapsed = false;
        let error = Error::new(
            Status::Lost,
            "the session ended before the release was confirmed; another may have held the lock",
        );
        self.answer_all(|kind| matches!(kind, Kind::Release), &Err(error));
        self.feed_all(now, |_| Input::SessionEnded { replaced });
    }

    fn on_auth_failed(&mut self, now: Time) {
        let error =
            Error::new(Status::Auth, format!("{} refused the credentials; {}", self.servers, self.session.story()));
        for op in self.select(|kind| !matches!(kind, Kind::Close | Kind::Release)) {
            self.give_up(now, op, error.clone());
        }
    }

    fn on_closed(&mut self) {
        self.machines.clear();
        self.holding = 0;
        self.answer_all(|kind| matches!(kind, Kind::Close), &Ok(()));
    }

    /// Looks at the lease clock before anything lengthens it: a hold whose lease was over is in doubt until it is seen again.
    fn observe(&mut self, now: Time) {
        if self.holding > 0 && !self.lapsed && !self.session.lease_runs(now) {
            self.lapsed = true;
            self.distrust(now, Trust::Doubtful);
        }
    }

    /// The counterpart: the session is surely alive again.
    fn recover(&mut self, now: Time) {
        if !self.lapsed || !self.session.lease_runs(now) {
            return;
        }
        self.lapsed = false;
        self.tell_all(now);
        for lock in self.held_locks() {
            self.settle_reentry(now, lock);
        }
    }

    /// Holds are not what they seemed: look after all of them.
    fn distrust(&mut self, now: Time, trust: Trust) {
        for lock in self.locks.values_mut() {
            for hold in &mut lock.holds {
                match (hold.trust, trust) {
                    (Trust::Sure, _) | (Trust::Unconfirmed, Trust::Doubtful) => hold.trust = trust,
                    _ => {}
                }
            }
        }
        self.confirm_holds(now, |_| true);
        self.tell_all(now);
    }

    fn confirm_holds(&mut self, now: Time, which: impl Fn(&Contender) -> bool) {
        if !self.session.is_connected() {
            return;
        }
        let holding: Vec<u64> = self
            .machines
            .iter()
            .filter(|(_, machine)| matches!(machine, Machine::Contender(c, Role::Holding(..)) if which(c)))
            .map(|(&id, _)| id)
            .collect();
        for machine in holding {
            self.feed(now, machine, Input::Confirm);
        }
    }

    // The state machines.

    fn feed_all<'a>(&mut self, now: Time, input: impl Fn(u64) -> Input<'a>) {
        let machines: Vec<u64> = self.machines.keys().copied().collect();
        for machine in machines {
            self.feed(now, machine, input(machine));
        }
    }

    fn feed(&mut self, now: Time, machine: u64, input: Input<'_>) {
        let mut desk = Desk { now, machine, session: &mut self.session };
        match self.machines.get_mut(&machine) {
            None => {}
            Some(Machine::Census(census, op)) => {
                let op = *op;
                if let Some(result) = census.handle(&mut desk, input) {
                    self.machines.remove(&machine);
                    self.answer(op, result.map(Answer::Participants));
                }
            }
            Some(Machine::Contender(contender, role)) => {
                let role = *role;
                let output = contender.handle(&mut desk, input);
                let gone = contender.is_gone();
                if let Some(output) = output {
                    self.obey(now, machine, role, output);
                }
                if gone {
                    self.machines.remove(&machine);
                }
            }
        }
    }

    /// Draws the consequences of what a contender says.
    fn obey(&mut self, now: Time, machine: u64, role: Role, output: Output) {
        match (role, output) {
            (Role::Acquiring(op), Output::In) => self.grant(now, machine, op),
            (Role::Acquiring(op), Output::Busy) => {
                self.retire(machine);
                let path = self.path_of(op);
                self.answer(op, Err(Error::new(Status::Timeout, format!("{path}: somebody holds it or is ahead"))));
            }
            (Role::Acquiring(op), Output::Failed(error)) => {
                self.retire(machine);
                self.answer(op, Err(error));
            }
            (Role::Acquiring(op), Output::Removed(_)) => {
                self.retire(machine);
                self.join(now, op);
            }
            (Role::Holding(lock, owner), Output::Removed(removal)) => {
                self.retire(machine);
                self.lose(now, lock, owner, removal);
            }
            (Role::Holding(lock, owner), Output::Confirmed) => {
                if let Some(hold) = self.hold_mut(lock, owner) {
                    hold.trust = Trust::Sure;
                }
                self.tell(now, lock);
                self.settle_reentry(now, lock);
            }
            (Role::Leaving(Some(op)), Output::Gone) => self.answer(op, Ok(Answer::Done)),
            (Role::Leaving(Some(op)), Output::Removed(_)) => {
                let error =
                    Error::new(Status::Lost, "the lock's node had been deleted by somebody else before the release");
                self.answer(op, Err(error));
            }
            (role, Output::RetryIn(wait, error)) => {
                if let Role::Leaving(Some(op)) = role {
                    self.retire(machine);
                    self.answer(op, Err(error));
                }
                self.retries.insert((now + wait, machine));
            }
            _ => {}
        }
    }

    /// Nobody waits for this contender any more.
    fn retire(&mut self, machine: u64) {
        self.set_role(machine, Role::Leaving(None));
    }

    fn lose(&mut self, now: Time, lock: LockId, owner: Owner, removal: Removal) {
        if let Some(hold) = self.hold_mut(lock, owner) {
            hold.trust = Trust::Lost(removal);
        }
        self.tell(now, lock);
        self.settle_reentry(now, lock);
    }

    // Events.

    fn tell_all(&mut self, now: Time) {
        for lock in self.held_locks() {
            self.tell(now, lock);
        }
    }

    fn held_locks(&self) -> Vec<LockId> {
        self.locks.iter().filter(|(_, lock)| !lock.holds.is_empty()).map(|(&id, _)| id).collect()
    }

    fn tell(&mut self, now: Time, lock: LockId) {
        let Some(told) = self.locks.get(&lock) else { return };
        let states: Vec<LockState> = told.holds.iter().map(|hold| self.hold_state(now, hold)).collect();
        let Some(told) = self.locks.get_mut(&lock) else { return };
        for (hold, state) in told.holds.iter_mut().zip(states) {
            let previous = std::mem::replace(&mut hold.told, state);
            if previous != state {
                let (path, token) = (Arc::clone(&told.path), hold.token);
                self.events.push_back(Event::Lock { lock, path, token, state, previous });
            }
        }
    }

    // Bookkeeping.

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn open(&mut self, now: Time, kind: Kind, deadline: Option<Time>) -> OpId {
        let id = self.next_id();
        self.ops.insert(id, Op { kind, started: now, deadline });
        if let Some(at) = deadline {
            self.deadlines.insert((at, id));
        }
        id
    }

    /// Every call is answered once: here.
    fn answer(&mut self, op: OpId, result: Result<Answer>) {
        let Some(Op { deadline, .. }) = self.ops.remove(&op) else { return };
        if let Some(at) = deadline {
            self.deadlines.remove(&(at, op));
        }
        self.answers.push_back((op, result));
    }

    fn answer_all(&mut self, which: impl Fn(&Kind) -> bool, result: &Result<()>) {
        for op in self.select(which) {
            self.answer(op, result.clone().map(|()| Answer::Done));
        }
    }

    fn select(&self, which: impl Fn(&Kind) -> bool) -> Vec<OpId> {
        self.ops.iter().filter(|(_, op)| which(&op.kind)).map(|(&id, _)| id).collect()
    }

    fn path_of(&self, op: OpId) -> Arc<str> {
        match self.ops.get(&op) {
            Some(Op { kind: Kind::Acquire { lock, .. }, .. }) => {
                self.locks.get(lock).map(|lock| Arc::clone(&lock.path))
            }
            _ => None,
        }
        .unwrap_or_default()
    }

    fn set_role(&mut self, machine: u64, role: Role) {
        if let Some(Machine::Contender(_, current)) = self.machines.get_mut(&machine) {
            self.holding -= usize::from(matches!(current, Role::Holding(..)));
            self.holding += usize::from(matches!(role, Role::Holding(..)));
            *current = role;
        }
    }

    fn hold(&self, lock: LockId, owner: Owner) -> Option<&Hold> {
        self.locks.get(&lock)?.holds.iter().find(|hold| hold.owner == owner)
    }

    fn hold_mut(&mut self, lock: LockId, owner: Owner) -> Option<&mut Hold> {
        self.locks.get_mut(&lock)?.holds.iter_mut().find(|hold| hold.owner == owner)
    }
}

impl Kind {
    const fn waits_for(self, lock: LockId) -> bool {
        match self {
            Self::Acquire { lock: wanted, .. } | Self::Reenter { lock: wanted, .. } => wanted == lock,
            Self::Connect | Self::Release | Self::Census { .. } | Self::Close => false,
        }
    }
}

fn lost(path: &str, removal: Removal) -> Error {
    let how = match removal {
        Removal::SessionEnded => "its session ended",
        Removal::Deleted => "its node was deleted by somebody else",
    };
    Error::new(Status::Lost, format!("{path}: the lock was lost while it was held: {how}"))
}
