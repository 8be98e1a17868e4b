//! One client as a value: its session, its locks, and all calls that are under way. The only place where a lock is granted,
//! a deadline is judged, or a hold is declared lost.
//!
//! The shell feeds it calls, bytes and the time, then takes what it has to say: bytes to send, connections to open, calls
//! that are answered, events for the program, and when it wants to be called again.

#![forbid(unsafe_code)]

mod attempt;
mod backlog;
mod calls;
mod cohort;
mod holds;
mod knots;
mod metrics;
mod path_bytes;
mod record;
#[cfg(test)]
mod tests;
mod waits;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result, Status};
use crate::mutant::Mutant;
use crate::note::{Level, Note, Notes};
use crate::proto::EventKind;
use crate::recipe::{
    Census, Chroot, Contender, Count, Desk, Errand, Fence, Input, Mirrors, Mode, Output, Participant, Tag, Told,
};
use crate::session::{self, ClientState, Command, ConnectString, Entropy, Guard, Session, SessionConfig};
use crate::time::Time;

use attempt::Attempt;
pub use backlog::Backlog;
pub(crate) use calls::{CLOSE_LIMIT, LOOK_LIMIT};
use cohort::Cohort;
use holds::{Hold, Trust};
use knots::Knots;
pub use metrics::{Metric, Metrics, Value};
pub(crate) use path_bytes::DEFAULT_MAX_PATH_BYTES;
use path_bytes::PathBytes;
pub use waits::{Waiting, WaitsFor};

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
    /// Leases of a semaphore, which own themselves; the number of the call that got them.
    Leases(u64),
}

/// What a lock is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recipe {
    /// One of Curator's queues: `InterProcessMutex`, and the halves of `InterProcessReadWriteLock`. Re-entrant by owner.
    Queue(Mode),
    /// Curator's `InterProcessSemaphoreMutex`: not re-entrant, and anybody may release it.
    SemaphoreMutex,
    /// Curator's `InterProcessSemaphoreV2`, with so many leases.
    Semaphore(i32),
    /// The same, with as many leases as a count says (Curator's `SharedCount`).
    CountedSemaphore {
        /// The count's path.
        count_path: Box<str>,
        /// What it begins with, where there is no node.
        initial: i32,
    },
    /// Several locks as one: queues, joined in one transaction; or one lock that is none.
    Multi(Box<[LockId]>),
}

impl Recipe {
    /// What it is called in a log.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Queue(Mode::Mutex) => "mutex",
            Self::Queue(Mode::Read) => "read",
            Self::Queue(Mode::Write) => "write",
            Self::SemaphoreMutex => "semaphore mutex",
            Self::Queue(Mode::Lease) | Self::Semaphore(_) | Self::CountedSemaphore { .. } => "semaphore",
            Self::Multi(_) => "multi",
        }
    }
}

/// How long an acquire may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// One look, no wait; the server has until this moment to answer.
    OneLook(Time),
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
    /// The value of a count.
    Count(i32),
    /// Whether a fencing token is a holder's.
    Holds(bool),
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
        /// How often it had been passed on in this process.
        pass: u32,
        /// Now.
        state: LockState,
        /// Before.
        previous: LockState,
    },
}

/// Somebody asks for a lock, or for a place in its queue, to be given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocation {
    /// The lock.
    pub lock: LockId,
    /// The path of the node that is to go, without the client's chroot.
    pub node_path: String,
}

/// What the program is to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// Something stands differently.
    Event(Event),
    /// Something is asked back.
    Revocation(Revocation),
}

/// For a log: what tells one from another.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Thread(number) => write!(f, "thread {number}"),
            Self::Custom(number) => write!(f, "owner {number}"),
            Self::Leases(number) => write!(f, "leases {number}"),
        }
    }
}

/// What is known of a hold at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldView {
    /// How it stands.
    pub state: LockState,
    /// Its fencing token.
    pub token: i64,
    /// How often the lock was passed on in this process with that token, before it came to this hold.
    pub pass: u32,
    /// How long it is safe without hearing from a server; zero if it is not.
    pub remaining: Duration,
}

impl HoldView {
    pub(crate) const fn is_safe(self) -> bool {
        matches!(self.state, LockState::Held | LockState::Suspended)
    }

    /// Two holds as one: as surely as the less sure of them.
    pub(crate) fn and(self, other: Self) -> Self {
        let (token, pass) = (self.token, self.pass).min((other.token, other.pass));
        Self {
            state: if other.state as i32 > self.state as i32 { other.state } else { self.state },
            token,
            pass,
            remaining: self.remaining.min(other.remaining),
        }
    }
}

/// A client; see the module's description.
pub struct Engine {
    session: Session<Tag>,
    mirrors: Mirrors,
    servers: String,
    chroot: Chroot,
    locks: BTreeMap<LockId, Box<Lock>>,
    by_directory: HashMap<Arc<str>, Vec<LockId>>,
    /// Those who stand in a directory as one.
    cohorts: HashMap<Arc<str>, Cohort>,
    ops: BTreeMap<OpId, Op>,
    /// The calls that wait to get into a lock, and those that look after a hold, by their owner.
    entering: BTreeMap<(LockId, Owner), Vec<OpId>>,
    machines: BTreeMap<u64, Machine>,
    deadlines: BTreeSet<(Time, OpId)>,
    retries: BTreeSet<(Time, u64)>,
    /// When calls that wait in several queues look for knots.
    looks: BTreeSet<(Time, OpId)>,
    /// How many contenders are holds.
    holding: usize,
    /// How many contenders are on their way out.
    leaving: usize,
    path_bytes: PathBytes,
    /// Contenders that may not join before others are out.
    held_back: VecDeque<u64>,
    /// Set while they are being admitted. A contender that is refused leaves, and its end must not start another round.
    is_admitting: bool,
    /// Semaphores whose count is being watched, by the machine that does.
    counts: BTreeMap<LockId, Counted>,
    /// kazoo's locks queue along.
    with_kazoo: bool,
    /// When holds whose node is not watched yet are looked after.
    check_at: Option<Time>,
    /// The lease was seen to be over, and the holds were told.
    lapsed: bool,
    state: ClientState,
    last_id: u64,
    answers: VecDeque<(OpId, Result<Answer>)>,
    news: VecDeque<News>,
    /// What was counted here; the rest of it is not looked at.
    tally: Metrics,
}

struct Lock {
    path: Arc<str>,
    directory: Arc<str>,
    recipe: Recipe,
    data: Option<Vec<u8>>,
    is_revocable: bool,
    /// So often what is held by it may be passed on to others of its cohort; 0: it belongs to none.
    max_passes: u32,
    holds: Vec<Hold>,
    /// The multi-locks that it is part of.
    multis: Vec<LockId>,
}

/// A count that is watched while somebody waits for leases.
struct Counted {
    machine: u64,
    value: Option<i32>,
}

struct Op {
    kind: Kind,
    started: Time,
    deadline: Option<Time>,
    /// Of an acquire: another was ahead of it at some time.
    had_to_wait: bool,
    /// Of an acquire: the locks it has joined, in the order of its contender's places.
    joined: Vec<LockId>,
    /// Of a release: what went wrong with one of several nodes.
    failure: Option<Error>,
    /// Of an acquire in several queues.
    knots: Knots,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Waits for the first connection, and then for this machine, which looks for the chroot.
    Connect {
        machine: Option<u64>,
    },
    Acquire {
        lock: LockId,
        owner: Owner,
        attempt: Attempt,
        one_look: bool,
        quantity: u32,
    },
    /// Waits until a hold whose lease is over is safe again, or lost.
    Reenter {
        lock: LockId,
        owner: Owner,
        one_look: bool,
    },
    /// Looks after a hold.
    Guard {
        lock: LockId,
        owner: Owner,
        awaits: Awaited,
    },
    /// So many nodes are still to go.
    Release {
        lock: LockId,
        left: usize,
    },
    /// A question or an errand.
    Ask {
        machine: u64,
    },
    Close,
}

/// What ends a call that looks after a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// The hold is lost, or was released.
    Loss,
    /// That, or the hold is safe.
    Safety,
}

/// In boxes, since the tree in which they are kept is half empty.
enum Machine {
    Contender(Box<Contender>, Role),
    Census(Box<Census>, OpId),
    Errand(Box<Errand>, OpId),
    Fence(Box<Fence>, OpId),
    /// Looks at the queues of a call in which this contender waits.
    Knots(Box<Census>, OpId, u64),
    Count(Box<Count>, LockId),
}

#[derive(Debug, Clone, Copy)]
enum Role {
    Acquiring(OpId),
    /// Has the inner mutex of a semaphore, while leases are waited for.
    Inside(OpId),
    Holding(LockId, Owner),
    /// On its way out; somebody may wait for it.
    Leaving(Option<OpId>),
    /// On its way out, but a server refuses to let it go.
    Stranded,
}

impl Engine {
    /// A client that looks for its servers from the first [`advance`](Self::advance) on.
    pub fn new(target: ConnectString, config: SessionConfig, now: Time, entropy: Entropy) -> Self {
        let servers = target.servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let limits = config.limits.mirror;
        let mut session = Session::new(target.servers, config, now, entropy);
        let kin = fresh(&mut session);
        Self {
            session,
            mirrors: Mirrors::new(kin, limits),
            servers,
            chroot: Chroot { path: target.chroot, create: false },
            locks: BTreeMap::new(),
            by_directory: HashMap::new(),
            cohorts: HashMap::new(),
            ops: BTreeMap::new(),
            entering: BTreeMap::new(),
            machines: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            retries: BTreeSet::new(),
            looks: BTreeSet::new(),
            holding: 0,
            leaving: 0,
            path_bytes: PathBytes::new(DEFAULT_MAX_PATH_BYTES),
            held_back: VecDeque::new(),
            is_admitting: false,
            counts: BTreeMap::new(),
            with_kazoo: false,
            check_at: None,
            lapsed: false,
            state: ClientState::Connecting,
            last_id: 0,
            answers: VecDeque::new(),
            news: VecDeque::new(),
            tally: Metrics::default(),
        }
    }

    /// Queues with kazoo's locks, where they stand in the same directory, from now on. They have to be told likewise
    /// (`extra_lock_patterns`), or they pass by ours.
    pub fn wait_for_kazoo(&mut self) {
        self.with_kazoo = true;
    }

    /// Limits the bytes that the paths of all nodes of the session take, from now on. An acquire that would exceed it is EXHAUSTED.
    pub fn set_max_path_bytes(&mut self, limit: usize) {
        self.path_bytes.set_limit(limit);
    }

    /// Creates the chroot if it is missing, from now on.
    pub fn create_chroot(&mut self) {
        self.chroot.create = true;
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

    /// The machine refused what a connection needs: descriptors, memory.
    pub fn starved(&mut self, now: Time, cause: &str) {
        self.observe(now);
        self.session.starved(now, cause);
        self.settle(now);
    }

    /// Bytes have come in. `Break` means that nothing more of this connection is wanted.
    pub fn received(&mut self, now: Time, bytes: &[u8]) -> ControlFlow<()> {
        self.observe(now);
        let flow = self.session.received(now, bytes);
        self.settle(now);
        flow
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
        while let Some(&(at, op)) = self.looks.first() {
            if at > now {
                break;
            }
            self.looks.remove(&(at, op));
            self.look_for_knots(now, op);
        }
        self.mirrors.tidy(now, &mut self.session);
        if self.check_at.is_some_and(|at| now >= at) {
            self.check_at = (self.holding > 0).then(|| now + self.session.beat());
            self.confirm_holds(now, |contender| !contender.is_watched());
        }
        self.settle(now);
    }

    /// When [`advance`](Self::advance) wants to be called.
    pub fn next_timeout(&self) -> Option<Time> {
        let lease_end = self.session.lease().filter(|_| self.holding > 0 && !self.lapsed).map(session::Lease::end);
        let deadline = self.deadlines.first().map(|&(at, _)| at);
        let retry = self.retries.first().map(|&(at, _)| at);
        let look = self.looks.first().map(|&(at, _)| at);
        let mirrors = self.mirrors.next_timeout();
        [self.session.next_timeout(), deadline, retry, look, self.check_at, lease_end, mirrors]
            .into_iter()
            .flatten()
            .min()
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

    /// The next thing that the program is to be told, in the order in which they happened. Revocations are of those locks for
    /// which they matter ([`set_revocable`](Self::set_revocable)).
    pub fn poll_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// What is worth a line in a log.
    pub fn notes(&mut self) -> &mut Notes {
        self.session.notes()
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

    // The session.

    /// Takes all that the session says to its consequences.
    fn settle(&mut self, now: Time) {
        while let Some(event) = self.next_event(now) {
            match event {
                session::Event::Connected { resumed } => self.on_connected(now, resumed),
                session::Event::Disconnected => self.on_disconnected(now),
                session::Event::Ended { replaced } => self.on_ended(now, replaced),
                session::Event::Reply { tag, result, .. } if Mirrors::is_mirror(tag.machine) => {
                    self.mirrors.answered(now, &mut self.session, tag, result);
                }
                session::Event::Fired { subscriber, kind, path } if Mirrors::is_mirror(subscriber) => {
                    self.mirrors.fired(now, &mut self.session, subscriber, kind, &path);
                }
                session::Event::Reply { tag, zxid, result } => {
                    self.feed_at(now, tag.machine, zxid, Input::Reply(tag.step, result));
                }
                session::Event::Fired { subscriber, kind, path } => {
                    self.feed(now, subscriber, Input::Fired(kind, &path));
                }
                session::Event::AuthFailed => self.on_auth_failed(now),
                session::Event::Closed => self.on_closed(now),
            }
        }
        self.recover(now);
        self.stop_idle_counts(now);
        self.session.set_guard(match self.machines.is_empty() {
            true => Guard::None,
            false if self.holding > 0 => Guard::Holding,
            false => Guard::Waiting,
        });
        let state = self.session.state();
        if state != self.state && !Mutant::HideSession.lives() {
            let previous = std::mem::replace(&mut self.state, state);
            self.news.push_back(News::Event(Event::Client { state, previous }));
        }
    }

    /// What a mirror has to say comes before what happened after it.
    fn next_event(&mut self, now: Time) -> Option<session::Event<Tag>> {
        while let Some((machine, told)) = self.mirrors.poll() {
            match told {
                Told::Live => self.feed(now, machine, Input::MirrorLive),
                Told::Ended(was_sound) => self.feed(now, machine, Input::MirrorEnded(was_sound)),
                Told::Gone(path) => self.feed(now, machine, Input::Fired(EventKind::Deleted, &path)),
                Told::Passed(path) => self.feed(now, machine, Input::Passed(&path)),
                Told::Look => self.feed(now, machine, Input::Look),
            }
        }
        self.session.poll_event()
    }

    fn on_connected(&mut self, now: Time, resumed: bool) {
        // If the session lacks room for all, contenders that have not joined wait until others have left.
        let is_outside =
            |machine: &Machine| matches!(machine, Machine::Contender(contender, _) if contender.is_outside());
        let outside = self.machines.iter().filter(|(_, machine)| !self.path_bytes.fit() && is_outside(machine));
        self.held_back = outside.map(|(&id, _)| id).collect();
        let others: Vec<u64> =
            self.machines.keys().copied().filter(|machine| self.held_back.binary_search(machine).is_err()).collect();
        for machine in others {
            self.feed(now, machine, Input::Connected);
        }
        self.admit_held_back(now);
        for op in self.select(|kind| matches!(kind, Kind::Connect { machine: None })) {
            self.find_chroot(now, op);
        }
        if resumed {
            self.distrust(now, Trust::Unconfirmed);
        }
    }

    fn on_disconnected(&mut self, now: Time) {
        self.mirrors.disconnected(now, &mut self.session);
        self.feed_all(now, |_| Input::Disconnected);
        self.tell_all(now);
        // One look means one look.
        for op in self.select(|kind| matches!(kind, Kind::Acquire { one_look: true, .. })) {
            let started = self.ops.get(&op).map_or(now, |op| op.started);
            let error = self.connection_error(now, started);
            self.give_up(now, op, error);
        }
    }

    fn on_ended(&mut self, now: Time, replaced: Option<Time>) {
        self.lapsed = false;
        for op in self.select(|kind| matches!(kind, Kind::Release { .. })) {
            let path = self.path_of(op);
            let message =
                format!("{path}: the session ended before the release was confirmed; another may have held the lock");
            self.answer(now, op, Err(Error::new(Status::Lost, message)));
        }
        // None of them joins: each ends with its session, and a new contender takes its place.
        self.held_back.clear();
        self.path_bytes.session_ended();
        for machine in self.machines.values_mut() {
            if let Machine::Contender(contender, _) = machine {
                contender.forget_path_bytes();
            }
        }
        self.feed_all(now, |_| Input::SessionEnded { replaced });
    }

    fn on_auth_failed(&mut self, now: Time) {
        let error =
            Error::new(Status::Auth, format!("{} refused the credentials; {}", self.servers, self.session.story()));
        for op in self.select(|kind| !matches!(kind, Kind::Close | Kind::Release { .. })) {
            self.give_up(now, op, error.clone());
        }
    }

    fn on_closed(&mut self, now: Time) {
        self.machines.clear();
        self.mirrors.disconnected(now, &mut self.session);
        self.held_back.clear();
        // Nothing is due any more.
        self.retries.clear();
        self.looks.clear();
        self.check_at = None;
        (self.holding, self.leaving) = (0, 0);
        self.path_bytes.session_ended();
        self.answer_all(now, |kind| matches!(kind, Kind::Close));
    }

    // The state machines.

    fn feed_all<'a>(&mut self, now: Time, input: impl Fn(u64) -> Input<'a>) {
        let machines: Vec<u64> = self.machines.keys().copied().collect();
        for machine in machines {
            self.feed(now, machine, input(machine));
        }
    }

    fn feed(&mut self, now: Time, machine: u64, input: Input<'_>) {
        self.feed_at(now, machine, 0, input);
    }

    fn feed_at(&mut self, now: Time, machine: u64, zxid: i64, input: Input<'_>) {
        let mut desk = Desk { zxid, ..Desk::new(now, machine, &mut self.session, &mut self.mirrors, &self.chroot) };
        match self.machines.get_mut(&machine) {
            None => {}
            Some(Machine::Census(census, op)) => {
                let op = *op;
                if let Some(result) = census.handle(&mut desk, input) {
                    self.machines.remove(&machine);
                    self.answer(now, op, result.map(Answer::Participants));
                }
            }
            Some(Machine::Errand(errand, op)) => {
                let op = *op;
                if let Some(result) = errand.handle(&mut desk, input) {
                    self.machines.remove(&machine);
                    self.errand_done(now, op, result);
                }
            }
            Some(Machine::Fence(fence, op)) => {
                let op = *op;
                if let Some(result) = fence.handle(&mut desk, input) {
                    self.machines.remove(&machine);
                    self.answer(now, op, result.map(Answer::Holds));
                }
            }
            Some(Machine::Knots(census, op, contender)) => {
                let (op, contender) = (*op, *contender);
                if let Some(result) = census.handle(&mut desk, input) {
                    self.machines.remove(&machine);
                    self.queues_seen(now, op, contender, result);
                }
            }
            Some(Machine::Count(count, lock)) => {
                let lock = *lock;
                if let Some(result) = count.handle(&mut desk, input) {
                    self.count_read(now, lock, result);
                }
            }
            Some(Machine::Contender(contender, role)) => {
                let role = *role;
                let output = contender.handle(&mut desk, input);
                let gone = contender.is_gone();
                let retry = contender.take_retry();
                if let Some(node) = contender.take_revoked() {
                    self.tell_revoked(machine, &node);
                }
                if let Some(Output::Refused(error)) = &output {
                    self.tally.deletes_refused += 1;
                    self.session.notes().add(Level::Warn, || Note::DeleteRefused { error: error.clone() });
                }
                if let Some(output) = output {
                    self.obey(now, machine, role, output);
                }
                if let Some(wait) = retry {
                    self.retries.insert((now + wait, machine));
                    self.strand(now, machine);
                }
                if gone {
                    self.remove(now, machine);
                }
            }
        }
    }

    /// Lets a contender join, or hold back for as long as too many are on their way out: callers that give up faster than a
    /// server deletes would fill its directory, its memory and everybody's lists. It also holds back while
    /// the paths of contenders on their way out take the room that its own paths need.
    fn admit(&mut self, now: Time, machine: u64) {
        if !self.session.is_connected() {
            return;
        }
        if self.leaving < self.session.limits().max_leaving && self.path_bytes.fit() {
            self.feed(now, machine, Input::Connected);
        } else {
            self.held_back.push_back(machine);
        }
    }

    /// Forgets a contender of which nothing is left.
    fn remove(&mut self, now: Time, machine: u64) {
        if let Some(Machine::Contender(contender, role)) = self.machines.remove(&machine) {
            self.holding -= usize::from(role.is_holding());
            self.leaving -= usize::from(role.is_leaving());
            self.path_bytes.gone(contender.path_bytes(), role.is_leaving());
        }
        self.admit_held_back(now);
    }

    fn admit_held_back(&mut self, now: Time) {
        if std::mem::replace(&mut self.is_admitting, true) {
            return;
        }
        while self.session.is_connected()
            && self.leaving < self.session.limits().max_leaving
            && !Mutant::HoldBackForever.lives()
            && let Some(&next) = self.held_back.front()
        {
            let waits = match self.machines.get(&next) {
                Some(Machine::Contender(contender, Role::Acquiring(op))) if contender.is_outside() => Some(*op),
                _ => None,
            };
            let refusal = waits.and_then(|op| self.path_bytes.check(&self.path_of(op), 0).err());
            if waits.is_some() && refusal.is_none() && !self.path_bytes.fit() {
                // It has room once others have left.
                break;
            }
            self.held_back.pop_front();
            match (waits, refusal) {
                (Some(op), Some(error)) => {
                    // The next call of its cohort may take it over, and is held back in its turn.
                    if !Mutant::ForgetHandedDown.lives() {
                        self.held_back.push_front(next);
                    }
                    self.give_up(now, op, error);
                }
                (Some(_), None) => self.feed(now, next, Input::Connected),
                (None, _) => {}
            }
        }
        self.is_admitting = false;
    }

    /// Draws the consequences of what a contender says.
    fn obey(&mut self, now: Time, machine: u64, role: Role, output: Output) {
        match (role, output) {
            (Role::Acquiring(op), Output::In) => self.arrived(now, machine, op),
            (Role::Acquiring(op), Output::Busy) => {
                self.retire(machine);
                self.found_busy(now, op);
            }
            (Role::Acquiring(op), Output::Failed(error)) => {
                self.retire(machine);
                self.give_up(now, op, error);
            }
            (Role::Acquiring(op), Output::Removed(_)) => {
                self.keep_wait(machine, op);
                self.retire(machine);
                // It may have stood under a hold whose node is gone: that is to be known before the next one does.
                self.confirm_holds(now, |contender| !contender.is_watched());
                self.rejoin(now, op);
            }
            (Role::Acquiring(op), Output::Crowded) => self.watch_inside(now, op),
            (Role::Inside(op), Output::Removed(_)) => {
                self.keep_wait(machine, op);
                self.retire(machine);
                self.lose_inside(now, op);
            }
            (Role::Holding(lock, owner), Output::Removed(removal)) => {
                self.retire(machine);
                self.lose(now, lock, owner, machine, removal);
            }
            (Role::Holding(lock, owner), Output::Confirmed) => {
                if let Some(hold) = self.hold_by_machine(lock, machine) {
                    hold.trust = Trust::Sure;
                }
                self.tell(now, lock);
                self.settle_reentry(now, lock, owner);
            }
            (Role::Leaving(Some(op)), Output::Gone) => self.one_has_gone(now, op, None),
            (Role::Leaving(Some(op)), Output::Removed(_)) => {
                let path = self.path_of(op);
                let message = format!("{path}: its node had been deleted by somebody else before the release");
                self.one_has_gone(now, op, Some(Error::new(Status::Lost, message)));
            }
            (Role::Leaving(Some(op)), Output::Refused(error)) => {
                self.retire(machine);
                self.one_has_gone(now, op, Some(error));
            }
            _ => {}
        }
    }

    /// Nobody waits for this contender any more.
    fn retire(&mut self, machine: u64) {
        self.set_role(machine, Role::Leaving(None));
    }

    /// A server does not let this contender go, and will be asked again. Others need not wait for that.
    fn strand(&mut self, now: Time, machine: u64) {
        if matches!(self.machines.get(&machine), Some(Machine::Contender(_, Role::Leaving(None)))) {
            self.set_role(machine, Role::Stranded);
            self.admit_held_back(now);
        }
    }

    // Bookkeeping.

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn open(&mut self, now: Time, kind: Kind, deadline: Option<Time>) -> OpId {
        let id = self.next_id();
        self.ops.insert(
            id,
            Op {
                kind,
                started: now,
                deadline,
                had_to_wait: false,
                joined: Vec::new(),
                failure: None,
                knots: Knots::default(),
            },
        );
        if let Some(place) = kind.entrance() {
            self.entering.entry(place).or_default().push(id);
        }
        if let Some(at) = deadline {
            self.deadlines.insert((at, id));
        }
        id
    }

    /// Every call is answered once: here.
    fn answer(&mut self, now: Time, op: OpId, result: Result<Answer>) {
        let _ = self.forget_knots(op);
        let Some(Op { kind, deadline, started, .. }) = self.ops.remove(&op) else { return };
        self.record_answer(now, kind, started, &result);
        if let Some(place) = kind.entrance()
            && let Some(calls) = self.entering.get_mut(&place)
        {
            calls.retain(|&call| call != op);
            if calls.is_empty() {
                self.entering.remove(&place);
            }
        }
        if let Some(at) = deadline {
            self.deadlines.remove(&(at, op));
        }
        if let Kind::Acquire { lock, attempt: Attempt::Behind, .. } = kind {
            self.fall_out(lock, op);
        }
        match kind {
            // Who got in is told before who has left: others wait for him.
            Kind::Acquire { .. } if result.is_ok() => self.answers.push_front((op, result)),
            _ => self.answers.push_back((op, result)),
        }
    }

    fn answer_all(&mut self, now: Time, which: impl Fn(&Kind) -> bool) {
        for op in self.select(which) {
            self.answer(now, op, Ok(Answer::Done));
        }
    }

    /// The calls that `owner` makes to get into the lock.
    fn calls_of(&self, lock: LockId, owner: Owner) -> Vec<OpId> {
        self.entering.get(&(lock, owner)).cloned().unwrap_or_default()
    }

    fn select(&self, which: impl Fn(&Kind) -> bool) -> Vec<OpId> {
        self.ops.iter().filter(|(_, op)| which(&op.kind)).map(|(&id, _)| id).collect()
    }

    fn path_of(&self, op: OpId) -> Arc<str> {
        match self.ops.get(&op) {
            Some(Op {
                kind:
                    Kind::Acquire { lock, .. }
                    | Kind::Reenter { lock, .. }
                    | Kind::Guard { lock, .. }
                    | Kind::Release { lock, .. },
                ..
            }) => self.locks.get(lock).map(|lock| Arc::clone(&lock.path)),
            _ => None,
        }
        .unwrap_or_default()
    }

    fn set_role(&mut self, machine: u64, role: Role) {
        if let Some(Machine::Contender(contender, current)) = self.machines.get_mut(&machine) {
            self.path_bytes.set_leaving(contender.path_bytes(), current.is_leaving(), role.is_leaving());
            self.holding = self.holding + usize::from(role.is_holding()) - usize::from(current.is_holding());
            self.leaving = self.leaving + usize::from(role.is_leaving()) - usize::from(current.is_leaving());
            *current = role;
        }
    }
}

/// Half of what makes a UUID.
fn fresh(session: &mut Session<Tag>) -> u64 {
    // The rest of it is as random.
    session.entropy() as u64
}

impl Role {
    const fn is_holding(self) -> bool {
        matches!(self, Self::Holding(..))
    }

    const fn is_leaving(self) -> bool {
        matches!(self, Self::Leaving(_))
    }
}

impl Kind {
    /// Which lock the call waits to get into, or looks after, and for whom.
    const fn entrance(self) -> Option<(LockId, Owner)> {
        match self {
            Self::Acquire { lock, owner, .. } | Self::Reenter { lock, owner, .. } | Self::Guard { lock, owner, .. } => {
                Some((lock, owner))
            }
            Self::Connect { .. } | Self::Release { .. } | Self::Ask { .. } | Self::Close => None,
        }
    }
}
