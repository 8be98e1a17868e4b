//! A simulated process: an engine, its connection, and the program's threads.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use zklock_core::engine::Event;
use zklock_core::engine::{
    AcquireLimit, Answer, Engine, HoldId, HoldToRelease, LockId, LockState, Notification, OpId, Owner, Recipe,
    Revocation,
};
use zklock_core::error::Status;
use zklock_core::recipe::{Mode, NodeRequest, Participant};
use zklock_core::session::{ConnectString, Server, SessionConfig};
use zklock_core::time::Time;

use crate::checker::{COUNTS_DIRECTORY, Checker, Exclusion, FenceQuestion, Grant, Holder};
use crate::plan::{ClientPlan, Clock, MAX_ONE_NODE_REQUEST_BYTES, PathRecipe, Plan, ms, pick};
use crate::program::TaskCall;

pub(crate) struct Client {
    pub(crate) engine: Engine,
    pub(crate) connection: Option<usize>,
    /// The connection attempt in progress.
    pub(crate) attempt: Option<u64>,
    pub(crate) paused_until: Time,
    pub(crate) life: Life,
    /// The time of its scheduled timer event.
    pub(crate) timer: Option<Time>,
    threads: Vec<Thread>,
    handles: Vec<Handle>,
    calls: BTreeMap<OpId, Call>,
    /// The locks, with their paths, of the tasks of [`crate::plan::ProgramPlan`], which acquire several locks step by
    /// step.
    stepwise_locks: Vec<(LockId, usize)>,
    /// The operations of these tasks, and their results.
    pub(crate) task_calls: BTreeMap<OpId, TaskCall>,
    pub(crate) task_answers: Vec<(TaskCall, Result<Answer, zklock_core::error::Error>)>,
    /// Number of these tasks that are not complete.
    pub(crate) unfinished_tasks: usize,
    /// Decides how holds are released. The other decisions of a run do not depend on it.
    release_rng: Rng,
    index: usize,
    /// The chroot, which the engine puts before all paths, and the prefix that the program itself puts before its
    /// paths.
    chroot: &'static str,
    prefix: &'static str,
    clock: Clock,
    session_timeout: Duration,
    /// The run has no faults, although its servers may refuse long requests.
    is_undisturbed: bool,
    syncs_are_sound: bool,
    /// The path limit of its sessions, if it allows only a few nodes.
    max_path_bytes: Option<usize>,
    /// The longest request that its servers accept, if they accept only short requests.
    frame_limit: Option<usize>,
    /// SASL can fail, so that calls fail with AUTH.
    pub(crate) may_be_refused: bool,
    /// The time until which it was last suspended.
    pub(crate) resumed_at: Time,
    /// The time at which its connection was established.
    pub(crate) connected_at: Time,
    /// The session that is being closed, and the deadline for closing it.
    pub(crate) closing: (i64, Time),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    NotStarted,
    Running,
    Closing,
    Ended,
}

struct Handle {
    lock: LockId,
    path: usize,
    recipe: Recipe,
    is_revocable: bool,
    /// Maximum number of local hand-overs of a hold of this handle.
    max_passes: u32,
    /// For a multi-lock, the indices of the handles of its members.
    members: Vec<usize>,
}

/// A program thread.
struct Thread {
    rounds: u32,
    phase: Phase,
    /// The acquires that were not released yet.
    unreleased: Vec<UnreleasedAcquire>,
    /// Holds that the thread has released.
    released: Vec<(LockId, Owner, HoldId)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct UnreleasedAcquire {
    handle: usize,
    owner: Owner,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Waiting,
    Holding { until: Time },
    Leaving,
    Done,
}

struct Call {
    thread: Option<usize>,
    kind: CallKind,
    handle: usize,
    deadline: Option<Time>,
    may_be_canceled: bool,
    may_be_closed: bool,
    /// For a fence check, the true state at its start.
    question: Option<FenceQuestion>,
    began: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Acquire {
        owner: Owner,
        quantity: u32,
        more: Expectation,
        limit: TimeLimit,
    },
    Release {
        is_last: bool,
    },
    /// A release of a hold that has already ended.
    LateRelease,
    Ask,
    Close,
}

/// The expected result of an acquire, given what the thread already holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expectation {
    /// The thread holds nothing.
    First,
    /// The thread already holds the lock, or holds a lock that admits it.
    Inside,
    /// The thread would wait for itself.
    Deadlock,
    /// Any result is possible.
    Open,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TimeLimit {
    None,
    OneLook,
    Deadline,
}

/// The server with this number.
fn server(number: usize) -> Server {
    Server { host: format!("s{number}"), port: 2181 }
}

/// An event that a client asks the world to schedule.
pub(crate) enum Scheduled {
    /// Run this thread at this time.
    RunThread(usize, Time),
    /// Cancel this thread's acquire at this time, either alone or with all waits of its handle.
    Cancel(usize, bool, Time),
}

impl Client {
    pub(crate) fn new(index: usize, plan: &Plan, own: &ClientPlan, rng: &mut Rng, now: Time) -> Self {
        let servers = (0..plan.servers).map(server).collect();
        let (chroot, prefix) = if own.has_chroot { (plan.root, "") } else { ("", plan.root) };
        let target = ConnectString { servers, chroot: chroot.to_owned() };
        let config = SessionConfig {
            timeout: plan.session_timeout,
            lease_margin: None,
            follow_config: None,
            frame_limit: zklock_proto::DEFAULT_FRAME_LIMIT,
            limits: plan.limits,
        };
        let mut entropy = rng.fork();
        let entropy = Box::new(move || entropy.u128(..));
        let mut engine = Engine::new(target, config, own.clock.local(now), entropy);
        if let Some(limit) = plan.max_path_bytes {
            engine.set_max_path_bytes(limit);
        }
        if plan.with_kazoo {
            engine.enable_kazoo_queuing();
        }
        if plan.sasl_secret.is_some() && index.is_multiple_of(2) {
            engine.require_loading();
        }
        // Operators delete the root with all nodes below it, so it may be missing.
        engine.enable_chroot_creation();
        let mut handles = Vec::new();
        for number in 0..own.handles {
            let path = if number < plan.path_recipes.len() { number } else { rng.usize(..plan.path_recipes.len()) };
            for recipe in recipes(prefix, path, plan.path_recipes[path]) {
                let is_revocable = rng.u8(..4) == 0;
                // Some handles do not belong to the cohort.
                let is_in_cohort = recipe == Recipe::Queue(Mode::Mutex) && number % 3 < 2;
                let max_passes = if is_in_cohort { plan.max_passes } else { 0 };
                handles.push(Handle { lock: 0, path, recipe, is_revocable, max_passes, members: Vec::new() });
            }
        }
        if plan.with_multi_locks {
            (0..rng.usize(1..=2)).for_each(|_| handles.push(multi(rng, &handles)));
        }
        for at in 0..handles.len() {
            open(&mut engine, own.clock.local(now), prefix, &mut handles, at);
        }
        Self {
            engine,
            connection: None,
            attempt: None,
            paused_until: now,
            life: Life::NotStarted,
            timer: None,
            threads: own
                .rounds
                .iter()
                .map(|&rounds| Thread { rounds, phase: Phase::Idle, unreleased: Vec::new(), released: Vec::new() })
                .collect(),
            handles,
            calls: BTreeMap::new(),
            stepwise_locks: Vec::new(),
            task_calls: BTreeMap::new(),
            task_answers: Vec::new(),
            unfinished_tasks: 0,
            release_rng: rng.clone(),
            index,
            chroot,
            prefix,
            clock: own.clock,
            session_timeout: plan.session_timeout,
            is_undisturbed: plan.is_undisturbed,
            syncs_are_sound: plan.syncs_are_sound,
            max_path_bytes: plan.max_path_bytes,
            frame_limit: plan.frame_limit,
            may_be_refused: plan.refuses_sasl(),
            resumed_at: now,
            connected_at: now,
            closing: (0, now),
        }
    }

    /// Replaces the server list with the servers whose bits are set in `selected`, or with all servers if no bit is
    /// set.
    pub(crate) fn set_servers(&mut self, now: Time, count: usize, selected: usize) {
        let is_selected = |number: &usize| selected.is_multiple_of(1 << count) || selected & (1 << number) != 0;
        let servers = (0..count).filter(is_selected).map(server).collect();
        let target = ConnectString { servers, chroot: self.chroot.to_owned() };
        assert!(self.engine.set_servers(self.local(now), target).is_ok(), "the chroot is the same");
    }

    /// Returns the time on the client's own clock.
    pub(crate) fn local(&self, now: Time) -> Time {
        self.clock.local(now)
    }

    pub(crate) fn global(&self, local: Time) -> Time {
        self.clock.global(local)
    }

    pub(crate) fn thread_count(&self) -> usize {
        self.threads.len()
    }

    pub(crate) fn on_resumed(&mut self, now: Time) {
        self.resumed_at = now;
    }

    /// Returns whether a condition is true for any path of this handle.
    fn is_any_path(&self, handle: usize, is_so: impl Fn(&str) -> bool) -> bool {
        self.paths(&[handle]).into_iter().any(|path| is_so(&self.full_path(path)))
    }

    /// Returns whether a request for `nodes` nodes may be refused because it is too long. Requests for one node are
    /// short enough, even if requests of other operations are too long. Faults may look like the refusal of a long
    /// request.
    fn may_be_too_long(&self, nodes: usize) -> bool {
        let is_short = |limit| nodes == 1 || (self.is_undisturbed && nodes * MAX_ONE_NODE_REQUEST_BYTES <= limit);
        self.frame_limit.is_some_and(|limit| !is_short(limit))
    }

    /// Returns whether an acquire of several steps may fail with EXHAUSTED, if no step has more than `nodes` nodes.
    pub(crate) fn may_exhaust_steps(&self, nodes: usize) -> bool {
        self.max_path_bytes.is_some() || self.may_be_too_long(nodes)
    }

    /// Returns whether an acquire may fail with EXHAUSTED. The path limit allows a refusal only if the limit is below
    /// the path bytes of all holds and pending acquires of the client together. Tasks, and nodes that a server refuses
    /// to delete, can also need path bytes.
    fn may_be_exhausted(&self, checker: &Checker, handle: usize, quantity: u32) -> bool {
        let is_full = self.max_path_bytes.is_some_and(|limit| {
            let holds = (0..self.threads.len()).flat_map(|thread| self.held(thread));
            let nodes = holds.flat_map(|(handle, owner)| self.nodes_of(self.handles[handle].lock, owner));
            let held: usize = nodes.map(|node| 4 + node.len()).sum();
            let acquires = self.calls.values().filter_map(|call| match call.kind {
                CallKind::Acquire { quantity, .. } => Some((call.handle, quantity)),
                _ => None,
            });
            let pending =
                acquires.chain([(handle, quantity)]).map(|(handle, quantity)| self.most_path_bytes(handle, quantity));
            held + pending.sum::<usize>() > limit
        });
        let may_be_undeletable = || self.is_any_path_of_client(|path| checker.were_permissions_removed(path));
        is_full
            || (self.max_path_bytes.is_some() && (!self.stepwise_locks.is_empty() || may_be_undeletable()))
            || self.may_be_too_long(self.members(handle).len() * quantity as usize)
    }

    /// Returns an upper bound of the path bytes of an acquire. An acquire of leases also has a node of the inner mutex.
    fn most_path_bytes(&self, handle: usize, quantity: u32) -> usize {
        let name = "/leases/_c_01234567-89ab-cdef-0123-456789abcdef-__WRIT__0123456789".len();
        let members =
            self.members(handle).into_iter().map(|member| 4 + self.full_path(self.handles[member].path).len() + name);
        members.sum::<usize>() * (quantity as usize + 1)
    }

    fn is_any_path_of_client(&self, is_so: impl Fn(&str) -> bool) -> bool {
        (0..self.handles.len()).any(|handle| self.is_any_path(handle, &is_so))
    }

    pub(crate) fn full_path(&self, path: usize) -> String {
        format!("{}{}", self.chroot, path_of(self.prefix, path))
    }

    /// Returns the full paths of the nodes of a hold.
    pub(crate) fn nodes_of(&self, lock: LockId, owner: Owner) -> Vec<String> {
        self.engine.nodes_of(lock, owner).into_iter().map(|node| format!("{}{node}", self.chroot)).collect()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.unfinished_tasks == 0 && self.threads.iter().all(|thread| thread.phase == Phase::Done)
    }

    /// Adds a lock for tasks.
    pub(crate) fn add_stepwise_lock(&mut self, path: usize, recipe: Recipe) -> LockId {
        let lock = self.engine.add_lock(path_of(self.prefix, path), recipe);
        self.stepwise_locks.push((lock, path));
        lock
    }

    /// Describes the state of the client for the history.
    pub(crate) fn describe(&self) -> String {
        let describe = |(at, thread): (usize, &Thread)| {
            let held =
                self.held(at).into_iter().map(|(handle, _)| (self.handles[handle].path, &self.handles[handle].recipe));
            let calls = self.calls.values().filter(|call| call.thread == Some(at));
            let calls: Vec<_> = calls.map(|call| (call.kind, call.handle)).collect();
            format!("{:?} with {:?} in {calls:?}", thread.phase, held.collect::<Vec<_>>())
        };
        let threads: Vec<String> = self.threads.iter().enumerate().map(describe).collect();
        format!("{:?}, {:?}: {}; {} tasks", self.life, self.engine.state(), threads.join("; "), self.unfinished_tasks)
    }

    /// Runs the next step of a program thread.
    pub(crate) fn run_thread(
        &mut self,
        rng: &mut Rng,
        checker: &mut Checker,
        now: Time,
        thread: usize,
    ) -> Vec<Scheduled> {
        if self.life != Life::Running {
            return Vec::new();
        }
        if rng.u8(..) == 0 && rng.bool() {
            let handle = rng.usize(..self.handles.len());
            self.reopen_lock(checker, now, handle);
        }
        if self.release_rng.u8(..8) == 0 && !self.threads[thread].released.is_empty() {
            self.release_late(now, thread);
        }
        match self.threads[thread].phase {
            Phase::Holding { .. } if self.threads[thread].unreleased.is_empty() => {
                self.threads[thread].phase = Phase::Idle;
                vec![Scheduled::RunThread(thread, now)]
            }
            Phase::Idle if self.threads[thread].rounds == 0 => {
                self.threads[thread].phase = Phase::Done;
                Vec::new()
            }
            Phase::Idle if rng.u8(..24) == 0 => {
                self.start_query(rng, checker, now, thread);
                Vec::new()
            }
            Phase::Idle => {
                let handle = self.choose(rng);
                self.threads[thread].rounds -= 1;
                self.threads[thread].phase = Phase::Waiting;
                self.acquire(rng, now, thread, handle, Expectation::First)
            }
            Phase::Holding { until } => {
                if until > now && rng.u8(..3) == 0 && self.threads[thread].unreleased.len() < 4 {
                    return self
                        .acquire_more(rng, now, thread)
                        .unwrap_or_else(|| vec![Scheduled::RunThread(thread, until)]);
                }
                if until > now {
                    return vec![Scheduled::RunThread(thread, until)];
                }
                self.release(rng, checker, now, thread);
                Vec::new()
            }
            Phase::Waiting | Phase::Leaving | Phase::Done => Vec::new(),
        }
    }

    /// Chooses a handle. The choice prefers multi-locks.
    fn choose(&self, rng: &mut Rng) -> usize {
        match self.handles.iter().position(|handle| !handle.members.is_empty()) {
            Some(first) if rng.u8(..3) == 0 => rng.usize(first..self.handles.len()),
            _ => rng.usize(..self.handles.len()),
        }
    }

    fn acquire(&mut self, rng: &mut Rng, now: Time, thread: usize, handle: usize, more: Expectation) -> Vec<Scheduled> {
        let local = self.local(now);
        let (acquire_limit, limit, deadline) = match (more, rng.u8(..8)) {
            // This acquire fails at once.
            (Expectation::Deadlock, _) => (AcquireLimit::Unlimited, TimeLimit::None, Some(now)),
            (Expectation::Inside, _) | (Expectation::First, 0..=3) => (AcquireLimit::Unlimited, TimeLimit::None, None),
            (_, 0..=6) => {
                let limit = self.session_timeout.mul_f64(rng.f64() * rng.f64() * 2.0);
                (AcquireLimit::Until(local + limit), TimeLimit::Deadline, Some(self.global(local + limit)))
            }
            _ => {
                let end = local + ms(1_000);
                (AcquireLimit::TryOnce(end), TimeLimit::OneLook, Some(self.global(end)))
            }
        };
        let Handle { lock, ref recipe, .. } = self.handles[handle];
        let (op, owner, quantity) = match *recipe {
            Recipe::Semaphore(most) | Recipe::CountedSemaphore { initial: most, .. } => {
                let quantity = rng.u32(1..=most.unsigned_abs());
                let (op, owner) = self.engine.acquire_leases(local, lock, quantity.cast_signed(), acquire_limit);
                (op, owner, quantity)
            }
            _ => (self.engine.acquire(local, lock, owner(thread), acquire_limit), owner(thread), 1),
        };
        let kind = CallKind::Acquire { owner, quantity, more, limit };
        self.record_call(now, op, Some(thread), kind, handle, deadline);
        if rng.u8(..8) == 0 && more != Expectation::Deadlock {
            return vec![Scheduled::Cancel(thread, rng.bool(), now + self.session_timeout.mul_f64(rng.f64()))];
        }
        Vec::new()
    }

    fn record_call(
        &mut self,
        began: Time,
        op: OpId,
        thread: Option<usize>,
        kind: CallKind,
        handle: usize,
        deadline: Option<Time>,
    ) {
        let (may_be_canceled, may_be_closed, question) = (false, false, None);
        let call = Call { thread, kind, handle, deadline, may_be_canceled, may_be_closed, question, began };
        self.calls.insert(op, call);
    }

    /// Lets a thread that holds locks re-enter one of them or acquire another lock. Returns `None` if there is no
    /// suitable lock.
    fn acquire_more(&mut self, rng: &mut Rng, now: Time, thread: usize) -> Option<Vec<Scheduled>> {
        let is_queue = |handle: &usize| matches!(self.handles[*handle].recipe, Recipe::Queue(_) | Recipe::MultiLock(_));
        let held: Vec<usize> = self.threads[thread].unreleased.iter().map(|entry| entry.handle).collect();
        if !held.iter().all(is_queue) {
            return None;
        }
        let handle = match rng.u8(..3) {
            0 => *pick(rng, &held),
            _ => {
                let paths = self.paths(&held);
                let near =
                    |handle: &usize| is_queue(handle) && self.paths(&[*handle]).iter().any(|path| paths.contains(path));
                let near: Vec<usize> = (0..self.handles.len()).filter(near).collect();
                *pick(rng, &near)
            }
        };
        let more = self.expectation(now, thread, handle);
        Some(self.acquire(rng, now, thread, handle, more))
    }

    fn expectation(&self, now: Time, thread: usize, wanted: usize) -> Expectation {
        let held = self.held(thread);
        let mode = |handle: usize| match self.handles[handle].recipe {
            Recipe::Queue(mode) => mode,
            _ => Mode::Mutex,
        };
        let is_lost = |&(handle, owner): &(usize, Owner)| {
            let view = self.engine.hold_of(self.local(now), self.handles[handle].lock, owner);
            view.is_none_or(|view| view.state == LockState::Lost)
        };
        if held.iter().any(is_lost) {
            return Expectation::Open;
        }
        let (mut inside, mut deadlock) = (true, false);
        for member in self.members(wanted) {
            if held.iter().any(|&(handle, _)| handle == member) {
                continue;
            }
            let siblings: Vec<Mode> = held
                .iter()
                .filter(|(handle, _)| self.handles[*handle].path == self.handles[member].path)
                .map(|&(handle, _)| mode(handle))
                .collect();
            let nests = mode(member) == Mode::Read && siblings.iter().all(|&mode| mode != Mode::Mutex);
            inside &= nests && !siblings.is_empty();
            deadlock |= !nests && !siblings.is_empty();
        }
        let paths = self.paths(&held.iter().map(|&(handle, _)| handle).collect::<Vec<_>>());
        match (deadlock, inside) {
            (true, _) => Expectation::Deadlock,
            // The hold may turn out to be lost, and other participants may wait for it.
            (false, true) if paths.len() == 1 => Expectation::Inside,
            _ => Expectation::Open,
        }
    }

    fn members(&self, handle: usize) -> Vec<usize> {
        match &*self.handles[handle].members {
            [] => vec![handle],
            members => members.to_vec(),
        }
    }

    fn paths(&self, handles: &[usize]) -> Vec<usize> {
        let mut paths: Vec<usize> =
            handles.iter().flat_map(|&handle| self.members(handle)).map(|member| self.handles[member].path).collect();
        paths.sort_unstable();
        paths.dedup();
        paths
    }

    /// Returns the locks that a thread holds, with their owners.
    fn held(&self, thread: usize) -> Vec<(usize, Owner)> {
        let members = |entry: &UnreleasedAcquire| {
            let owner = entry.owner;
            self.members(entry.handle).into_iter().map(move |member| (member, owner))
        };
        let mut held: Vec<(usize, Owner)> = self.threads[thread].unreleased.iter().flat_map(members).collect();
        held.sort_unstable();
        held.dedup();
        held
    }

    fn holder(&self, thread: usize, (handle, owner): (usize, Owner)) -> Holder {
        Holder { client: self.index, thread, lock: self.handles[handle].lock, owner }
    }

    /// Releases one of the acquires of a thread, not always the last one.
    fn release(&mut self, rng: &mut Rng, checker: &mut Checker, now: Time, thread: usize) {
        let before = self.held(thread);
        self.check_revocations(checker, now, &before);
        let at = rng.usize(..self.threads[thread].unreleased.len());
        let UnreleasedAcquire { handle, owner } = self.threads[thread].unreleased.swap_remove(at);
        let after = self.held(thread);
        for given_back in before.iter().filter(|held| !after.contains(held)) {
            checker.released(self.holder(thread, *given_back));
        }
        let is_last = self.threads[thread].unreleased.is_empty();
        self.threads[thread].phase = if is_last { Phase::Leaving } else { Phase::Holding { until: now } };
        let local = self.local(now);
        let holds = self.holds_of(local, handle, owner);
        let (releaser, waits) = (self.releaser(rng, now, thread, handle, owner), rng.bool());
        let op = if self.release_rng.bool() {
            let exact: Vec<_> = holds.iter().map(|&(lock, id)| (lock, HoldToRelease::Exact(id))).collect();
            self.engine.release_holds(local, owner, &exact, waits)
        } else {
            self.engine.release(local, self.handles[handle].lock, releaser, waits)
        };
        let deadline = Some(self.global(local + self.engine.session_timeout()));
        self.record_call(now, op, Some(thread), CallKind::Release { is_last }, handle, deadline);
        let has_ended = |&(lock, id): &(LockId, HoldId)| self.engine.exact_hold(local, lock, owner, id).is_none();
        let ended = holds.into_iter().filter(has_ended).map(|(lock, id)| (lock, owner, id));
        self.threads[thread].released.extend(ended);
    }

    /// Releases a hold that the thread has already released. The release must fail and change nothing.
    fn release_late(&mut self, now: Time, thread: usize) {
        let at = self.release_rng.usize(..self.threads[thread].released.len());
        let (lock, owner, id) = self.threads[thread].released.swap_remove(at);
        let local = self.local(now);
        let op = self.engine.release_holds(local, owner, &[(lock, HoldToRelease::Exact(id))], true);
        self.record_call(now, op, Some(thread), CallKind::LateRelease, 0, Some(now));
    }

    /// Returns the hold of each lock that `owner` holds through a handle.
    fn holds_of(&self, local: Time, handle: usize, owner: Owner) -> Vec<(LockId, HoldId)> {
        let locks = self.members(handle).into_iter().map(|member| self.handles[member].lock);
        locks.filter_map(|lock| Some((lock, self.engine.hold_of(local, lock, owner)?.id()))).collect()
    }

    /// Returns the owner that releases the hold. Any owner may release a semaphore mutex, but the release is
    /// unambiguous only if there is one hold.
    fn releaser(&self, rng: &mut Rng, now: Time, thread: usize, handle: usize, owner: Owner) -> Owner {
        let Handle { lock, ref recipe, .. } = self.handles[handle];
        let view = self.engine.hold_of(self.local(now), lock, owner);
        let is_live = view.is_some_and(|view| view.state != LockState::Lost);
        if *recipe != Recipe::SemaphoreMutex || !is_live || rng.bool() {
            return owner;
        }
        let mut others = (0..self.threads.len()).filter(|&other| other != thread);
        let has = |other: usize| self.threads[other].unreleased.iter().any(|entry| entry.handle == handle);
        match others.clone().any(has) {
            true => owner,
            false => others.next().map_or(Owner::task(1), self::owner),
        }
    }

    /// Returns a time such that a client with a safe hold must know all changes before it.
    pub(crate) fn must_know_before(&self, now: Time) -> Option<Time> {
        // A client with a safe hold has received an answer to a request that was sent after this time.
        let since = ago(now, self.session_timeout);
        (self.connected_at <= since && self.resumed_at <= since).then_some(since)
    }

    /// Checks that a client knows all revocation requests if it has held the lock safely for long.
    fn check_revocations(&self, checker: &mut Checker, now: Time, held: &[(usize, Owner)]) {
        let Some(since) = self.must_know_before(now) else { return };
        for &(handle, owner) in held.iter().filter(|(handle, _)| self.handles[*handle].is_revocable) {
            let lock = self.handles[handle].lock;
            let view = self.engine.hold_of(self.local(now), lock, owner);
            let Some(view) = view.filter(|view| view.state == LockState::Held) else { continue };
            for node in self.nodes_of(lock, owner) {
                checker.expect_revocation_reported(self.index, node, view.token, since);
            }
        }
    }

    pub(crate) fn cancel(&mut self, now: Time, thread: usize, alone: bool) {
        let local = self.local(now);
        let waits = |call: &Call| matches!(call.kind, CallKind::Acquire { .. });
        let Some((&op, own)) = self.calls.iter().find(|(_, call)| call.thread == Some(thread) && waits(call)) else {
            return;
        };
        let handle = own.handle;
        for (&other, call) in &mut self.calls {
            call.may_be_canceled |= waits(call) && if alone { other == op } else { call.handle == handle };
        }
        match alone {
            true => self.engine.cancel_op(local, op),
            false => self.engine.cancel_waits(local, self.handles[handle].lock),
        }
    }

    /// Starts to list the participants of a lock, to check a fencing token, or to set the number of leases.
    fn start_query(&mut self, rng: &mut Rng, checker: &Checker, now: Time, thread: usize) {
        let handle = self.choose(rng);
        self.threads[thread].phase = Phase::Waiting;
        let local = self.local(now);
        let path = path_of(self.prefix, self.handles[handle].path);
        let question = if rng.bool() { checker.fence_question(rng, &format!("{}{path}", self.chroot)) } else { None };
        let op = match (&self.handles[handle].recipe, &question) {
            (_, Some(question)) => self.engine.fence_check(local, &path, question.token),
            // The new number allows every acquire of the run.
            (Recipe::CountedSemaphore { count_path, initial }, _) if rng.bool() => {
                let (path, value) = (count_path.to_string(), initial + rng.i32(0..=2));
                self.engine.start_node_request(local, NodeRequest::SetCount { path, value })
            }
            _ => self.engine.participants(local, self.handles[handle].lock, rng.bool()),
        };
        let deadline = Some(self.global(local + self.engine.session_timeout()));
        self.record_call(now, op, Some(thread), CallKind::Ask, handle, deadline);
        if let Some(call) = self.calls.get_mut(&op) {
            call.question = question;
        }
    }

    /// Removes a lock and the multi-locks that contain it, and adds them again.
    fn reopen_lock(&mut self, checker: &mut Checker, now: Time, handle: usize) {
        let multis = (0..self.handles.len()).filter(|&multi| self.handles[multi].members.contains(&handle));
        let removed: Vec<usize> = std::iter::once(handle).chain(multis).collect();
        // The holds of a multi-lock remain as holds of its members.
        for thread in 0..self.threads.len() {
            let split = |entry: UnreleasedAcquire| {
                let parts =
                    if removed.contains(&entry.handle) { self.members(entry.handle) } else { vec![entry.handle] };
                parts.into_iter().map(move |handle| UnreleasedAcquire { handle, ..entry })
            };
            let entries = self.threads[thread].unreleased.iter().copied().flat_map(split);
            self.threads[thread].unreleased = entries.filter(|entry| entry.handle != handle).collect();
        }
        for call in self.calls.values_mut() {
            call.may_be_closed |= removed.contains(&call.handle);
        }
        checker.on_lock_removed(self.index, self.handles[handle].lock);
        let local = self.local(now);
        for &handle in &removed {
            self.engine.remove_lock(local, self.handles[handle].lock);
        }
        for handle in removed {
            open(&mut self.engine, local, self.prefix, &mut self.handles, handle);
        }
    }

    /// Closes the client, because its program has completed its work.
    pub(crate) fn close(&mut self, checker: &mut Checker, now: Time) {
        checker.on_client_ended(self.index);
        self.life = Life::Closing;
        let limit = ms(2_000).min(self.engine.session_timeout() / 3);
        let given_up = self.global(self.local(now) + limit);
        // A session without an established connection has no nodes. The client leaves its end to the servers.
        let session = if self.engine.metrics().connections == 0 { 0 } else { self.engine.session_id() };
        self.closing = (session, given_up);
        let op = self.engine.close(self.local(now), self.local(now) + zklock_core::engine::CLOSE_LIMIT);
        let deadline = Some(given_up);
        self.record_call(now, op, None, CallKind::Close, 0, deadline);
    }

    /// Handles the results and notifications of the engine.
    pub(crate) fn process_output(
        &mut self,
        rng: &mut Rng,
        checker: &mut Checker,
        now: Time,
        say: &mut dyn FnMut(String),
    ) -> Vec<Scheduled> {
        let mut wishes = Vec::new();
        let answers: Vec<_> = std::iter::from_fn(|| self.engine.poll_answer()).collect();
        // The engine reports successes before failures. An operation that failed at the same time was not waiting any
        // more.
        let failed: Vec<OpId> = answers.iter().filter(|(_, result)| result.is_err()).map(|&(op, _)| op).collect();
        for (op, result) in answers {
            if let Some(call) = self.task_calls.remove(&op) {
                self.task_answers.push((call, result));
                continue;
            }
            let Some(call) = self.calls.remove(&op) else {
                let index = self.index;
                checker.add_violation(|| format!("client {index}: call {op:?} was answered twice, or was never made"));
                continue;
            };
            say(format!("answer to {:?} of thread {:?}: {result:?}", call.kind, call.thread));
            self.check_time(checker, now, &call, &result);
            if result.is_ok() {
                self.check_turn(checker, op, &call, &failed);
            }
            self.on_answer(rng, checker, now, &call, result, &mut wishes);
        }
        while let Some(notification) = self.engine.poll_notification() {
            say(format!("{notification:?}"));
            match notification {
                Notification::Event(Event::Lock { lock, token, fencing_pass, state, previous, .. })
                | Notification::Forfeit(Event::Lock { lock, token, fencing_pass, state, previous, .. }) => {
                    if self.is_undisturbed && state == LockState::Uncertain {
                        checker.add_violation(|| format!("token {token} is {state:?}, although no fault occurred"));
                    }
                    checker.on_hold_reported(self.index, lock, (token, fencing_pass), previous, state);
                }
                Notification::Event(Event::Client { state, previous, .. })
                | Notification::Forfeit(Event::Client { state, previous, .. }) => {
                    checker.on_client_state_reported(self.index, previous, state);
                }
                Notification::Event(_) | Notification::Forfeit(_) => {
                    checker.add_violation(|| "an event of an unknown kind".to_owned());
                }
                Notification::Revocation(revocation) => self.check_revocation(checker, now, &revocation),
            }
        }
        wishes
    }

    fn check_revocation(&self, checker: &mut Checker, now: Time, revocation: &Revocation) {
        checker.on_revocation_reported(now, self.index, &format!("{}{}", self.chroot, revocation.node_path));
        let is_below = |path: usize| is_below(&revocation.node_path, &path_of(self.prefix, path));
        let is_of = |handle: &Handle| handle.lock == revocation.lock && is_below(handle.path);
        let is_tasks = |&(lock, path): &(LockId, usize)| lock == revocation.lock && is_below(path);
        if !self.handles.iter().any(is_of) && !self.stepwise_locks.iter().any(is_tasks) {
            let index = self.index;
            checker.add_violation(|| format!("client {index}: {revocation:?} names the node of another lock"));
        }
    }

    /// Checks that the operations of a cohort acquire the lock in the order in which they began.
    fn check_turn(&self, checker: &mut Checker, op: OpId, call: &Call, failed: &[OpId]) {
        let is_cohorts =
            |call: &Call| matches!(call.kind, CallKind::Acquire { .. }) && self.handles[call.handle].max_passes > 0;
        let path = |call: &Call| self.handles[call.handle].path;
        let enters_again = |thread: usize| self.held(thread).iter().any(|&(handle, _)| handle == call.handle);
        if !is_cohorts(call) || call.thread.is_some_and(enters_again) {
            return;
        }
        let mut before = self.calls.range(..op).filter(|(other, _)| !failed.contains(other)).map(|(_, other)| other);
        if let Some(other) = before.find(|other| is_cohorts(other) && path(other) == path(call)) {
            let (index, thread, waits) = (self.index, call.thread, other.thread);
            checker.add_violation(|| format!("client {index}: thread {thread:?} overtook thread {waits:?}"));
        }
    }

    fn check_time(
        &self,
        checker: &mut Checker,
        now: Time,
        call: &Call,
        result: &Result<Answer, zklock_core::error::Error>,
    ) {
        let Some(deadline) = call.deadline else { return };
        let index = self.index;
        // A suspended process could not check its clock.
        if now > deadline.max(self.resumed_at) + SLACK {
            checker.add_violation(|| format!("client {index}: {:?} was answered {:?} late", call.kind, now - deadline));
        }
        let early = matches!(result, Err(error) if error.status() == Status::Timeout) && now + SLACK < deadline;
        // An acquire that makes only one attempt ends with its answer.
        if early && matches!(call.kind, CallKind::Acquire { limit: TimeLimit::Deadline, .. }) {
            checker.add_violation(|| format!("client {index}: {:?} timed out {:?} early", call.kind, deadline - now));
        }
        let Handle { path, ref recipe, max_passes, .. } = self.handles[call.handle];
        let timed_out = matches!(result, Err(error) if error.status() == Status::Timeout);
        let was_long = deadline - call.began > self.session_timeout / 2;
        // In a cohort, an operation without a node can block others.
        let needs_nobody = matches!(recipe, Recipe::Queue(Mode::Mutex | Mode::Write)) && max_passes == 0;
        let full_path = self.full_path(path);
        let directories = match recipe {
            Recipe::Queue(_) if needs_nobody => vec![full_path],
            Recipe::Semaphore(_) | Recipe::SemaphoreMutex => {
                vec![format!("{full_path}/leases"), format!("{full_path}/locks")]
            }
            _ => Vec::new(),
        };
        let was_used = directories.iter().any(|directory| checker.was_used(directory, call.began));
        if early && self.syncs_are_sound && !directories.is_empty() && !was_used {
            checker.add_violation(|| {
                format!("client {index}: {:?} found path {path} busy, although no participant was there", call.kind)
            });
        }
        // The operation never had a node. It must succeed even if other operations send requests that are too long for
        // a server.
        let starved = timed_out && was_long && self.is_undisturbed && needs_nobody;
        if starved && !checker.was_used(&self.full_path(path), call.began) {
            checker.add_violation(|| {
                format!("client {index}: {:?} timed out at path {path}, although no participant was there", call.kind)
            });
        }
    }

    fn on_answer(
        &mut self,
        rng: &mut Rng,
        checker: &mut Checker,
        now: Time,
        call: &Call,
        result: Result<Answer, zklock_core::error::Error>,
        wishes: &mut Vec<Scheduled>,
    ) {
        let index = self.index;
        if call.kind == CallKind::Close {
            self.life = Life::Ended;
            return;
        }
        let Some(thread) = call.thread else { return };
        if call.kind == CallKind::LateRelease {
            if !matches!(&result, Err(error) if matches!(error.status(), Status::NotOwner | Status::Closed)) {
                checker.add_violation(|| format!("client {index}: the release of an ended hold ended with {result:?}"));
            }
            return;
        }
        let soon = now + *pick(rng, &[ms(0), ms(1), ms(20), ms(300), self.session_timeout / 2]);
        let expected = match (call.kind, &result) {
            (CallKind::Acquire { more: Expectation::Deadlock, .. }, Ok(_)) => false,
            (_, Ok(_)) => true,
            (_, Err(error)) if error.status() == Status::Closed => self.life != Life::Running || call.may_be_closed,
            (CallKind::Acquire { more, limit, quantity, .. }, Err(error)) => match error.status() {
                Status::Lost => matches!(more, Expectation::Inside | Expectation::Open),
                Status::Deadlock => matches!(more, Expectation::Deadlock | Expectation::Open),
                Status::Timeout | Status::Connection => limit != TimeLimit::None,
                Status::Canceled => call.may_be_canceled,
                Status::Exhausted => self.may_be_exhausted(checker, call.handle, quantity),
                Status::Foreign => self.is_any_path(call.handle, |path| checker.had_foreign(path)),
                Status::Denied => self.is_any_path(call.handle, |path| checker.were_permissions_removed(path)),
                Status::Auth => self.may_be_refused,
                _ => false,
            },
            (CallKind::Release { .. }, Err(error)) if error.status() == Status::Denied => {
                self.is_any_path(call.handle, |path| checker.were_permissions_removed(path))
            }
            (CallKind::Release { .. }, Err(error)) => {
                matches!(error.status(), Status::Lost | Status::Connection) && !self.is_undisturbed
            }
            (CallKind::Ask, Err(error)) if error.status() == Status::Auth => self.may_be_refused,
            (CallKind::Ask, Err(error)) => error.status() == Status::Connection && !self.is_undisturbed,
            (CallKind::LateRelease | CallKind::Close, Err(_)) => false,
        };
        if !expected {
            checker
                .add_violation(|| format!("client {index}: {:?} of thread {thread} ended with {result:?}", call.kind));
        }
        match call.kind {
            CallKind::Acquire { owner, quantity, .. } => {
                if let Ok(answer) = &result {
                    self.check_acquired(checker, now, call.handle, owner, answer);
                    self.granted(checker, now, thread, UnreleasedAcquire { handle: call.handle, owner }, quantity);
                }
                if self.threads[thread].phase == Phase::Waiting {
                    let session = self.session_timeout;
                    let lengths = [ms(0), ms(0), ms(5), ms(5), ms(100), ms(100), session / 2, session, session * 3];
                    let until = now + *pick(rng, &lengths);
                    self.threads[thread].phase = if result.is_ok() { Phase::Holding { until } } else { Phase::Idle };
                }
            }
            CallKind::Release { is_last: true } => self.threads[thread].phase = Phase::Idle,
            CallKind::Release { is_last: false } | CallKind::LateRelease | CallKind::Close => {}
            CallKind::Ask => {
                self.threads[thread].phase = Phase::Idle;
                if let Ok(Answer::Participants(participants)) = &result {
                    self.check_participants(checker, participants);
                }
                if let (Ok(Answer::Holds(holds)), Some(question)) = (&result, &call.question) {
                    checker.on_fence_checked(index, question, *holds);
                }
            }
        }
        wishes.push(Scheduled::RunThread(thread, soon));
    }

    /// Checks that the answer to an acquire identifies the holds of its owner.
    fn check_acquired(&self, checker: &mut Checker, now: Time, handle: usize, owner: Owner, answer: &Answer) {
        let holds: Vec<HoldId> = self.holds_of(self.local(now), handle, owner).into_iter().map(|(_, id)| id).collect();
        if !matches!(answer, Answer::Acquired(acquired) if **acquired == *holds) {
            let index = self.index;
            checker.add_violation(|| format!("client {index}: an acquire answers {answer:?}, but has {holds:?}"));
        }
    }

    fn granted(&mut self, checker: &mut Checker, now: Time, thread: usize, entry: UnreleasedAcquire, quantity: u32) {
        let before = self.held(thread);
        self.threads[thread].unreleased.push(entry);
        let mut tokens = Vec::new();
        for held in self.held(thread).into_iter().filter(|held| !before.contains(held)) {
            let (lock, path) = (self.handles[held.0].lock, self.handles[held.0].path);
            let nodes = self.nodes_of(lock, held.1);
            let view = self.engine.hold_of(self.local(now), lock, held.1);
            let (index, count) = (self.index, nodes.len());
            let Some(view) = view.filter(|_| count == quantity as usize) else {
                checker.add_violation(|| {
                    format!("client {index}: thread {thread} was granted {quantity}, but has {count} nodes: {view:?}")
                });
                continue;
            };
            tokens.push(view.token);
            let exclusion = exclusion(&self.handles[held.0].recipe);
            // Events arrive within this time, or the client drops the connection.
            let known_before = self.connected_at.max(ago(now, self.session_timeout));
            let stood_still = now < self.resumed_at + self.session_timeout * 2;
            let count_known_before = ago(now, self.session_timeout * if stood_still { 5 } else { 2 });
            let grant = Grant {
                path,
                exclusion,
                nodes,
                token: (view.token, view.fencing_pass),
                known_before,
                count_known_before,
            };
            checker.granted(now, self.holder(thread, held), grant);
        }
        if tokens.windows(2).any(|pair| pair[0] != pair[1]) {
            let index = self.index;
            checker.add_violation(|| {
                format!("client {index}: thread {thread} was granted a multi-lock with different tokens {tokens:?}")
            });
        }
    }

    /// Checks that holders are listed before the waiters of their directory, and that no participant is listed twice.
    fn check_participants(&self, checker: &mut Checker, participants: &[Participant]) {
        let index = self.index;
        let directory = |participant: &Participant| {
            let (directory, _) = participant.node_path.rsplit_once('/').unwrap_or_default();
            directory.to_owned()
        };
        for (at, one) in participants.iter().enumerate() {
            let before = &participants[..at];
            if before.iter().any(|other| other.node_path == one.node_path) {
                checker.add_violation(|| {
                    format!("client {index}: the list of participants contains {} twice", one.node_path)
                });
            }
            let waits_before = before.iter().any(|other| directory(other) == directory(one) && !other.holds);
            if one.holds && waits_before {
                checker.add_violation(|| {
                    format!("client {index}: the list of participants has waiters before the holder {}", one.node_path)
                });
            }
            let is_lock = one.node_path.contains("lock-");
            if one.holds && is_lock && before.iter().any(|other| directory(other) == directory(one)) {
                checker.add_violation(|| {
                    format!("client {index}: the list of participants has another holder beside {}", one.node_path)
                });
            }
        }
    }

    /// Checks that the metrics are consistent: each granted acquire became holds, and each hold ended in one way.
    pub(crate) fn check_metrics(&self, checker: &mut Checker) {
        let now = self.engine.metrics();
        let lost = now.losses_session + now.losses_deleted;
        let adds_up = now.waits.count() == now.acquires_ok
            && now.holds.count() == now.releases + lost
            && now.held + now.holds.count() >= now.acquires_ok
            && now.acquires_ok >= now.handovers
            && now.handovers >= now.local_passes
            && now.connections == now.reconnects + now.connections.min(1)
            && now.connection_attempts >= now.connections
            && now.requests >= now.answers
            && now.sessions >= now.sessions_lost;
        let is_idle = now.held == 0 && now.waiting == 0;
        if !adds_up || (self.life == Life::Running && self.is_done() && !is_idle) {
            checker.add_violation(|| format!("client {}: the metrics are inconsistent: {now:?}", self.index));
        }
    }

    /// Reads the states of the session and of all holds, and passes them to the checker.
    pub(crate) fn check_holds(&self, checker: &mut Checker, now: Time) {
        let local = self.local(now);
        let is_settled = self.engine.next_timeout().is_none_or(|at| at > local);
        if is_settled {
            checker.on_client_state_seen(self.index, self.engine.state());
        }
        for thread in 0..self.threads.len() {
            for held in self.held(thread) {
                let lock = self.handles[held.0].lock;
                let Some(view) = self.engine.hold_of(local, lock, held.1) else {
                    let index = self.index;
                    checker
                        .add_violation(|| format!("client {index}: a hold of thread {thread} ended without an event"));
                    continue;
                };
                if matches!(view.state, LockState::Held | LockState::Suspended) {
                    let until = self.global(local + view.remaining);
                    let since = self.must_know_before(now).filter(|_| view.state == LockState::Held);
                    checker.on_hold_safe(now, self.holder(thread, held), until, since);
                }
                // While no action is due, the state must be the reported one.
                if is_settled {
                    checker.on_hold_seen(self.index, lock, (view.token, view.fencing_pass), view.state);
                }
            }
        }
    }
}

/// Returns the recipes of the locks on a path.
fn recipes(prefix: &str, path: usize, path_recipe: PathRecipe) -> Vec<Recipe> {
    match path_recipe {
        PathRecipe::Mutex => vec![Recipe::Queue(Mode::Mutex)],
        PathRecipe::ReadWrite => vec![Recipe::Queue(Mode::Read), Recipe::Queue(Mode::Write)],
        PathRecipe::SemaphoreMutex => vec![Recipe::SemaphoreMutex],
        PathRecipe::Semaphore(most) => vec![Recipe::Semaphore(most)],
        PathRecipe::Counted(initial) => {
            vec![Recipe::CountedSemaphore { count_path: format!("{prefix}{COUNTS_DIRECTORY}{path}").into(), initial }]
        }
    }
}

/// Creates a handle for a multi-lock of some of these locks, with different paths and in random order.
fn multi(rng: &mut Rng, handles: &[Handle]) -> Handle {
    let mut members: Vec<usize> = (0..handles.len()).filter(|&at| handles[at].members.is_empty()).collect();
    rng.shuffle(&mut members);
    let mut paths = Vec::new();
    members.retain(|&member| {
        let path = handles[member].path;
        let is_new = !paths.contains(&path);
        paths.push(path);
        is_new
    });
    members.truncate(rng.usize(2..=members.len().max(2)));
    let recipe = Recipe::MultiLock(Box::default());
    Handle { lock: 0, path: 0, recipe, is_revocable: false, max_passes: 0, members }
}

/// Adds the lock of a handle to the engine.
fn open(engine: &mut Engine, local: Time, prefix: &str, handles: &mut [Handle], at: usize) {
    let recipe = match &handles[at] {
        Handle { recipe: Recipe::MultiLock(_), members, .. } => {
            Recipe::MultiLock(members.iter().map(|&member| handles[member].lock).collect())
        }
        Handle { recipe, .. } => recipe.clone(),
    };
    handles[at].lock = engine.add_lock(path_of(prefix, handles[at].path), recipe);
    if handles[at].is_revocable {
        engine.set_revocable(local, handles[at].lock, true);
    }
    if handles[at].max_passes > 0 {
        let _ = engine.set_local_handover(handles[at].lock, handles[at].max_passes);
    }
}

pub(crate) fn exclusion(recipe: &Recipe) -> Exclusion {
    match recipe {
        Recipe::Queue(Mode::Read) => Exclusion::Shared,
        Recipe::Queue(_) | Recipe::MultiLock(_) => Exclusion::Exclusive,
        Recipe::SemaphoreMutex => Exclusion::SingleLease,
        Recipe::Semaphore(_) | Recipe::CountedSemaphore { .. } => Exclusion::Leases,
    }
}

/// Returns the time `length` before `now`, or the start of the clock.
fn ago(now: Time, length: Duration) -> Time {
    Time::default() + (now - Time::default()).saturating_sub(length)
}

/// Tolerance for rounding. The simulation delivers results exactly when they are due.
pub(crate) const SLACK: Duration = ms(1);

fn owner(thread: usize) -> Owner {
    // The programs of [`crate::program`] number their tasks from 0.
    Owner::task(1_000_000 + thread as u64)
}

/// The names have common beginnings, and one path is below another.
pub(crate) fn path_of(prefix: &str, path: usize) -> String {
    let names = ["/locks/0", "/locks/1", "/locks/10", "/locks/1/0"];
    format!("{prefix}{}", names[path])
}

fn is_below(node: &str, path: &str) -> bool {
    let rest = node.strip_prefix(path).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default();
    rest.starts_with("_c_") || rest.starts_with("locks/_c_") || rest.starts_with("leases/_c_")
}
