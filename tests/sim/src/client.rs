//! One process: an engine, its connection, and the threads of the program that use it.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use zklock::engine::{Answer, Engine, LockId, LockState, News, OpId, Owner, Patience, Recipe, Revocation};
use zklock::recipe::{Mode, Participant, Task};
use zklock::session::{ConnectString, Server, SessionConfig};
use zklock::{Event, Status, Time};

use crate::judge::{COUNTS, Grant, Holder, Judge, Question, Stance};
use crate::plan::{ClientPlan, Clock, Form, Plan, ms, pick};
use crate::world::TaskCall;

pub(crate) struct Client {
    pub(crate) engine: Engine,
    pub(crate) link: Option<usize>,
    /// The attempt at a connection that is under way.
    pub(crate) dialing: Option<u64>,
    pub(crate) paused_until: Time,
    pub(crate) life: Life,
    /// When its timer is set for.
    pub(crate) timer: Option<Time>,
    actors: Vec<Actor>,
    handles: Vec<Handle>,
    calls: BTreeMap<OpId, Call>,
    /// Locks of tasks that take several of them step by step, with their paths.
    parts: Vec<(LockId, usize)>,
    /// Calls for such tasks, and their answers.
    pub(crate) task_calls: BTreeMap<OpId, TaskCall>,
    pub(crate) task_answers: Vec<(TaskCall, Result<Answer, zklock::Error>)>,
    /// Number of such tasks that are not done.
    pub(crate) tasks: usize,
    index: usize,
    /// What the servers put in front of its paths, and what it puts there itself.
    chroot: &'static str,
    prefix: &'static str,
    clock: Clock,
    session_timeout: Duration,
    /// Nothing goes wrong in this run.
    is_undisturbed: bool,
    syncs_are_sound: bool,
    /// Its sessions have room for a few nodes only, or its servers take short requests only.
    pub(crate) may_be_exhausted: bool,
    /// Until when it last stood still.
    pub(crate) stood_still: Time,
    /// Since when it has the connection it has.
    pub(crate) connected_at: Time,
    /// The session that is being closed, and when that is given up.
    pub(crate) closing: (i64, Time),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    Unborn,
    Running,
    Closing,
    Over,
}

struct Handle {
    lock: LockId,
    path: usize,
    recipe: Recipe,
    is_revocable: bool,
    /// So often may what is held by it be passed on among the threads.
    max_passes: u32,
    /// Of several locks as one: which handles these are.
    members: Vec<usize>,
}

/// One thread of the program.
struct Actor {
    rounds: u32,
    phase: Phase,
    /// What it has acquired and not released yet.
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
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
    actor: Option<usize>,
    kind: Kind,
    handle: usize,
    deadline: Option<Time>,
    may_be_canceled: bool,
    may_be_closed: bool,
    /// Of a call that asks about a token.
    question: Option<Question>,
    began: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Acquire { owner: Owner, quantity: u32, more: More, limit: Limit },
    Release { is_last: bool },
    Ask,
    Close,
}

/// What it means to acquire where something is held already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum More {
    /// Nothing is.
    First,
    /// All of it is, or what lets it in.
    Inside,
    /// It would have to wait for itself.
    Deadlock,
    /// Anything may become of it.
    Open,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    None,
    OneLook,
    Deadline,
}

/// What a client wants of the world, besides its network.
pub(crate) enum Wish {
    /// This actor is to act at this time.
    Act(usize, Time),
    /// This actor's call is to be cancelled; with all who wait by its handle, or alone.
    Cancel(usize, bool, Time),
}

impl Client {
    pub(crate) fn new(index: usize, plan: &Plan, own: &ClientPlan, rng: &mut Rng, now: Time) -> Self {
        let servers = (0..plan.servers).map(|server| Server { host: format!("s{server}"), port: 2181 }).collect();
        let (chroot, prefix) = if own.has_chroot { (plan.root, "") } else { ("", plan.root) };
        let target = ConnectString { servers, chroot: chroot.to_owned() };
        let config = SessionConfig {
            timeout: plan.session_timeout,
            lease_margin: None,
            auth: Vec::new(),
            frame_limit: zklock::proto::DEFAULT_FRAME_LIMIT,
            limits: plan.limits,
        };
        let mut entropy = rng.fork();
        let entropy = Box::new(move || entropy.u128(..));
        let mut engine = Engine::new(target, config, own.clock.local(now), entropy);
        if let Some(limit) = plan.max_path_bytes {
            engine.set_max_path_bytes(limit);
        }
        if plan.with_kazoo {
            engine.wait_for_kazoo();
        }
        // Operators remove the root with all that is below it.
        engine.create_chroot();
        let mut handles = Vec::new();
        for number in 0..own.handles {
            let path = if number < plan.forms.len() { number } else { rng.usize(..plan.forms.len()) };
            for recipe in recipes(prefix, path, plan.forms[path]) {
                let is_revocable = rng.u8(..4) == 0;
                // Some of the handles are not of the cohort.
                let is_in_cohort = recipe == Recipe::Queue(Mode::Mutex) && number % 3 < 2;
                let max_passes = if is_in_cohort { plan.max_passes } else { 0 };
                handles.push(Handle { lock: 0, path, recipe, is_revocable, max_passes, members: Vec::new() });
            }
        }
        if plan.multis {
            (0..rng.usize(1..=2)).for_each(|_| handles.push(multi(rng, &handles)));
        }
        for at in 0..handles.len() {
            open(&mut engine, own.clock.local(now), prefix, &mut handles, at);
        }
        Self {
            engine,
            link: None,
            dialing: None,
            paused_until: now,
            life: Life::Unborn,
            timer: None,
            actors: own
                .rounds
                .iter()
                .map(|&rounds| Actor { rounds, phase: Phase::Idle, entries: Vec::new() })
                .collect(),
            handles,
            calls: BTreeMap::new(),
            parts: Vec::new(),
            task_calls: BTreeMap::new(),
            task_answers: Vec::new(),
            tasks: 0,
            index,
            chroot,
            prefix,
            clock: own.clock,
            session_timeout: plan.session_timeout,
            is_undisturbed: plan.is_undisturbed,
            syncs_are_sound: plan.syncs_are_sound,
            may_be_exhausted: plan.max_path_bytes.is_some() || plan.frame_limit.is_some(),
            stood_still: now,
            connected_at: now,
            closing: (0, now),
        }
    }

    /// What its own clock shows.
    pub(crate) fn local(&self, now: Time) -> Time {
        self.clock.local(now)
    }

    pub(crate) fn global(&self, local: Time) -> Time {
        self.clock.global(local)
    }

    pub(crate) fn actors(&self) -> usize {
        self.actors.len()
    }

    pub(crate) fn wakes_up(&mut self, now: Time) {
        self.stood_still = now;
    }

    /// Whether something is true of a path of this handle.
    fn any_path(&self, handle: usize, is_so: impl Fn(&str) -> bool) -> bool {
        self.paths(&[handle]).into_iter().any(|path| is_so(&self.full_path(path)))
    }

    pub(crate) fn full_path(&self, path: usize) -> String {
        format!("{}{}", self.chroot, path_of(self.prefix, path))
    }

    /// The full paths of a hold's nodes.
    pub(crate) fn nodes_of(&self, lock: LockId, owner: Owner) -> Vec<String> {
        self.engine.nodes_of(lock, owner).into_iter().map(|node| format!("{}{node}", self.chroot)).collect()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.tasks == 0 && self.actors.iter().all(|actor| actor.phase == Phase::Done)
    }

    /// Makes a lock for tasks.
    pub(crate) fn add_part(&mut self, path: usize, recipe: Recipe) -> LockId {
        let lock = self.engine.add_lock(path_of(self.prefix, path), recipe);
        self.parts.push((lock, path));
        lock
    }

    /// What it is doing, for the history.
    pub(crate) fn describe(&self) -> String {
        let describe = |(at, actor): (usize, &Actor)| {
            let held =
                self.held(at).into_iter().map(|(handle, _)| (self.handles[handle].path, &self.handles[handle].recipe));
            let calls = self.calls.values().filter(|call| call.actor == Some(at));
            let calls: Vec<_> = calls.map(|call| (call.kind, call.handle)).collect();
            format!("{:?} with {:?} in {calls:?}", actor.phase, held.collect::<Vec<_>>())
        };
        let actors: Vec<String> = self.actors.iter().enumerate().map(describe).collect();
        format!("{:?}, {:?}: {}; {} tasks", self.life, self.engine.state(), actors.join("; "), self.tasks)
    }

    /// A thread of the program does its next step.
    pub(crate) fn act(&mut self, rng: &mut Rng, judge: &mut Judge, now: Time, actor: usize) -> Vec<Wish> {
        if self.life != Life::Running {
            return Vec::new();
        }
        if rng.u8(..) == 0 && rng.bool() {
            let handle = rng.usize(..self.handles.len());
            self.remove(judge, now, handle);
        }
        match self.actors[actor].phase {
            Phase::Holding { .. } if self.actors[actor].entries.is_empty() => {
                self.actors[actor].phase = Phase::Idle;
                vec![Wish::Act(actor, now)]
            }
            Phase::Idle if self.actors[actor].rounds == 0 => {
                self.actors[actor].phase = Phase::Done;
                Vec::new()
            }
            Phase::Idle if rng.u8(..24) == 0 => {
                self.ask(rng, judge, now, actor);
                Vec::new()
            }
            Phase::Idle => {
                let handle = self.choose(rng);
                self.actors[actor].rounds -= 1;
                self.actors[actor].phase = Phase::Waiting;
                self.acquire(rng, now, actor, handle, More::First)
            }
            Phase::Holding { until } => {
                if until > now && rng.u8(..3) == 0 && self.actors[actor].entries.len() < 4 {
                    return self.acquire_more(rng, now, actor).unwrap_or_else(|| vec![Wish::Act(actor, until)]);
                }
                if until > now {
                    return vec![Wish::Act(actor, until)];
                }
                self.release(rng, judge, now, actor);
                Vec::new()
            }
            Phase::Waiting | Phase::Leaving | Phase::Done => Vec::new(),
        }
    }

    /// Several locks as one are chosen more often than there are of them.
    fn choose(&self, rng: &mut Rng) -> usize {
        match self.handles.iter().position(|handle| !handle.members.is_empty()) {
            Some(first) if rng.u8(..3) == 0 => rng.usize(first..self.handles.len()),
            _ => rng.usize(..self.handles.len()),
        }
    }

    fn acquire(&mut self, rng: &mut Rng, now: Time, actor: usize, handle: usize, more: More) -> Vec<Wish> {
        let local = self.local(now);
        let (patience, limit, deadline) = match (more, rng.u8(..8)) {
            // That is answered at once.
            (More::Deadlock, _) => (Patience::Forever, Limit::None, Some(now)),
            (More::Inside, _) | (More::First, 0..=3) => (Patience::Forever, Limit::None, None),
            (_, 0..=6) => {
                let limit = self.session_timeout.mul_f64(rng.f64() * rng.f64() * 2.0);
                (Patience::Until(local + limit), Limit::Deadline, Some(self.global(local + limit)))
            }
            _ => {
                let end = local + ms(1_000);
                (Patience::OneLook(end), Limit::OneLook, Some(self.global(end)))
            }
        };
        let Handle { lock, ref recipe, .. } = self.handles[handle];
        let (op, owner, quantity) = match *recipe {
            Recipe::Semaphore(most) | Recipe::CountedSemaphore { initial: most, .. } => {
                let quantity = rng.u32(1..=most.unsigned_abs());
                let (op, owner) = self.engine.acquire_leases(local, lock, quantity, patience);
                (op, owner, quantity)
            }
            _ => (self.engine.acquire(local, lock, owner(actor), patience), owner(actor), 1),
        };
        let kind = Kind::Acquire { owner, quantity, more, limit };
        self.called(now, op, Some(actor), kind, handle, deadline);
        if rng.u8(..8) == 0 && more != More::Deadlock {
            return vec![Wish::Cancel(actor, rng.bool(), now + self.session_timeout.mul_f64(rng.f64()))];
        }
        Vec::new()
    }

    fn called(
        &mut self,
        began: Time,
        op: OpId,
        actor: Option<usize>,
        kind: Kind,
        handle: usize,
        deadline: Option<Time>,
    ) {
        let (may_be_canceled, may_be_closed, question) = (false, false, None);
        let call = Call { actor, kind, handle, deadline, may_be_canceled, may_be_closed, question, began };
        self.calls.insert(op, call);
    }

    /// A thread that holds something enters it once more, or wants more; none if there is nothing that it could want.
    fn acquire_more(&mut self, rng: &mut Rng, now: Time, actor: usize) -> Option<Vec<Wish>> {
        let is_queue = |handle: &usize| matches!(self.handles[*handle].recipe, Recipe::Queue(_) | Recipe::Multi(_));
        let held: Vec<usize> = self.actors[actor].entries.iter().map(|entry| entry.handle).collect();
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
        let more = self.more(now, actor, handle);
        Some(self.acquire(rng, now, actor, handle, more))
    }

    fn more(&self, now: Time, actor: usize, wanted: usize) -> More {
        let held = self.held(actor);
        let mode = |handle: usize| match self.handles[handle].recipe {
            Recipe::Queue(mode) => mode,
            _ => Mode::Mutex,
        };
        let is_lost = |&(handle, owner): &(usize, Owner)| {
            let view = self.engine.hold_of(self.local(now), self.handles[handle].lock, owner);
            view.is_none_or(|view| view.state == LockState::Lost)
        };
        if held.iter().any(is_lost) {
            return More::Open;
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
            (true, _) => More::Deadlock,
            // What he holds may turn out to be lost, and others may wait for him.
            (false, true) if paths.len() == 1 => More::Inside,
            _ => More::Open,
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

    /// The locks that a thread holds, and for whom.
    fn held(&self, actor: usize) -> Vec<(usize, Owner)> {
        let members = |entry: &Entry| {
            let owner = entry.owner;
            self.members(entry.handle).into_iter().map(move |member| (member, owner))
        };
        let mut held: Vec<(usize, Owner)> = self.actors[actor].entries.iter().flat_map(members).collect();
        held.sort_unstable();
        held.dedup();
        held
    }

    fn holder(&self, actor: usize, (handle, owner): (usize, Owner)) -> Holder {
        Holder { client: self.index, actor, lock: self.handles[handle].lock, owner }
    }

    /// Gives back one of the things that a thread has, not always the last.
    fn release(&mut self, rng: &mut Rng, judge: &mut Judge, now: Time, actor: usize) {
        let before = self.held(actor);
        self.check_revocations(judge, now, &before);
        let at = rng.usize(..self.actors[actor].entries.len());
        let Entry { handle, owner } = self.actors[actor].entries.swap_remove(at);
        let after = self.held(actor);
        for given_back in before.iter().filter(|held| !after.contains(held)) {
            judge.released(self.holder(actor, *given_back));
        }
        let is_last = self.actors[actor].entries.is_empty();
        self.actors[actor].phase = if is_last { Phase::Leaving } else { Phase::Holding { until: now } };
        let local = self.local(now);
        let releaser = self.releaser(rng, now, actor, handle, owner);
        let op = self.engine.release(local, self.handles[handle].lock, releaser, rng.bool());
        let deadline = Some(self.global(local + self.engine.session_timeout()));
        self.called(now, op, Some(actor), Kind::Release { is_last }, handle, deadline);
    }

    /// Anybody may release a semaphore mutex. It is clear whose hold that is, where there is only one.
    fn releaser(&self, rng: &mut Rng, now: Time, actor: usize, handle: usize, owner: Owner) -> Owner {
        let Handle { lock, ref recipe, .. } = self.handles[handle];
        let view = self.engine.hold_of(self.local(now), lock, owner);
        let is_live = view.is_some_and(|view| view.state != LockState::Lost);
        if *recipe != Recipe::SemaphoreMutex || !is_live || rng.bool() {
            return owner;
        }
        let mut others = (0..self.actors.len()).filter(|&other| other != actor);
        let has = |other: usize| self.actors[other].entries.iter().any(|entry| entry.handle == handle);
        match others.clone().any(has) {
            true => owner,
            false => others.next().map_or(Owner::Custom(1), self::owner),
        }
    }

    /// What happened before then has come to its ears, if it holds anything safely.
    pub(crate) fn knows_since(&self, now: Time) -> Option<Time> {
        // Whoever holds safely has had an answer to something that he asked after that.
        let since = ago(now, self.session_timeout);
        (self.connected_at <= since && self.stood_still <= since).then_some(since)
    }

    /// Whoever holds safely for long knows who asked him to give it up.
    fn check_revocations(&self, judge: &mut Judge, now: Time, held: &[(usize, Owner)]) {
        let Some(since) = self.knows_since(now) else { return };
        for &(handle, owner) in held.iter().filter(|(handle, _)| self.handles[*handle].is_revocable) {
            let lock = self.handles[handle].lock;
            let view = self.engine.hold_of(self.local(now), lock, owner);
            let Some(view) = view.filter(|view| view.state == LockState::Held) else { continue };
            for node in self.nodes_of(lock, owner) {
                judge.should_know(self.index, node, view.token, since);
            }
        }
    }

    pub(crate) fn cancel(&mut self, now: Time, actor: usize, alone: bool) {
        let local = self.local(now);
        let waits = |call: &Call| matches!(call.kind, Kind::Acquire { .. });
        let Some((&op, own)) = self.calls.iter().find(|(_, call)| call.actor == Some(actor) && waits(call)) else {
            return;
        };
        let handle = own.handle;
        for (&other, call) in &mut self.calls {
            call.may_be_canceled |= waits(call) && if alone { other == op } else { call.handle == handle };
        }
        match alone {
            true => self.engine.cancel_op(local, op),
            false => self.engine.cancel(local, self.handles[handle].lock),
        }
    }

    /// Asks who is there, or whose a token is, or changes how many leases there are.
    fn ask(&mut self, rng: &mut Rng, judge: &Judge, now: Time, actor: usize) {
        let handle = self.choose(rng);
        self.actors[actor].phase = Phase::Waiting;
        let local = self.local(now);
        let path = path_of(self.prefix, self.handles[handle].path);
        let question = if rng.bool() { judge.question(rng, &format!("{}{path}", self.chroot)) } else { None };
        let op = match (&self.handles[handle].recipe, &question) {
            (_, Some(question)) => self.engine.fence_check(local, &path, question.token),
            // There are always enough for what is asked for.
            (Recipe::CountedSemaphore { count_path, initial }, _) if rng.bool() => {
                let (path, value) = (count_path.to_string(), initial + rng.i32(0..=2));
                self.engine.errand(local, Task::SetCount { path, value })
            }
            _ => self.engine.participants(local, self.handles[handle].lock, rng.bool()),
        };
        let deadline = Some(self.global(local + self.engine.session_timeout()));
        self.called(now, op, Some(actor), Kind::Ask, handle, deadline);
        if let Some(call) = self.calls.get_mut(&op) {
            call.question = question;
        }
    }

    /// Takes a lock out of service, with those that it is part of, and opens them anew.
    fn remove(&mut self, judge: &mut Judge, now: Time, handle: usize) {
        let multis = (0..self.handles.len()).filter(|&multi| self.handles[multi].members.contains(&handle));
        let removed: Vec<usize> = std::iter::once(handle).chain(multis).collect();
        // What is held by several locks as one stays held by each.
        for actor in 0..self.actors.len() {
            let split = |entry: Entry| {
                let parts =
                    if removed.contains(&entry.handle) { self.members(entry.handle) } else { vec![entry.handle] };
                parts.into_iter().map(move |handle| Entry { handle, ..entry })
            };
            let entries = self.actors[actor].entries.iter().copied().flat_map(split);
            self.actors[actor].entries = entries.filter(|entry| entry.handle != handle).collect();
        }
        for call in self.calls.values_mut() {
            call.may_be_closed |= removed.contains(&call.handle);
        }
        judge.abandoned(self.index, self.handles[handle].lock);
        let local = self.local(now);
        for &handle in &removed {
            self.engine.remove_lock(local, self.handles[handle].lock);
        }
        for handle in removed {
            open(&mut self.engine, local, self.prefix, &mut self.handles, handle);
        }
    }

    /// The program has no more to do.
    pub(crate) fn close(&mut self, judge: &mut Judge, now: Time) {
        judge.died(self.index);
        self.life = Life::Closing;
        let limit = ms(2_000).min(self.engine.session_timeout() / 3);
        let given_up = self.global(self.local(now) + limit);
        self.closing = (self.engine.session_id(), given_up);
        let op = self.engine.close(self.local(now));
        let deadline = Some(given_up);
        self.called(now, op, None, Kind::Close, 0, deadline);
    }

    /// Takes what the engine has to say to the program.
    pub(crate) fn listen(
        &mut self,
        rng: &mut Rng,
        judge: &mut Judge,
        now: Time,
        say: &mut dyn FnMut(String),
    ) -> Vec<Wish> {
        let mut wishes = Vec::new();
        let answers: Vec<_> = std::iter::from_fn(|| self.engine.poll_answer()).collect();
        // The engine puts successes before failures: a call that failed in the same moment did not wait any more.
        let failed: Vec<OpId> = answers.iter().filter(|(_, result)| result.is_err()).map(|&(op, _)| op).collect();
        for (op, result) in answers {
            if let Some(call) = self.task_calls.remove(&op) {
                self.task_answers.push((call, result));
                continue;
            }
            let Some(call) = self.calls.remove(&op) else {
                let index = self.index;
                judge.blame(|| format!("client {index}: call {op} was answered twice, or never asked"));
                continue;
            };
            say(format!("answer to {:?} of thread {:?}: {result:?}", call.kind, call.actor));
            self.check_time(judge, now, &call, &result);
            if result.is_ok() {
                self.check_turn(judge, op, &call, &failed);
            }
            self.answered(rng, judge, now, &call, result, &mut wishes);
        }
        while let Some(news) = self.engine.poll_news() {
            say(format!("{news:?}"));
            match news {
                News::Event(Event::Lock { lock, token, pass, state, previous, .. }) => {
                    if self.is_undisturbed && state == LockState::Uncertain {
                        judge.blame(|| format!("token {token} is {state:?} where nothing went wrong"));
                    }
                    judge.told(self.index, lock, (token, pass), previous, state);
                }
                News::Event(Event::Client { state, previous }) => judge.told_client(self.index, previous, state),
                News::Revocation(revocation) => self.asked_back(judge, now, &revocation),
            }
        }
        wishes
    }

    fn asked_back(&self, judge: &mut Judge, now: Time, revocation: &Revocation) {
        judge.told_revoked(now, self.index, &format!("{}{}", self.chroot, revocation.node_path));
        let is_below = |path: usize| is_below(&revocation.node_path, &path_of(self.prefix, path));
        let is_of = |handle: &Handle| handle.lock == revocation.lock && is_below(handle.path);
        let is_tasks = |&(lock, path): &(LockId, usize)| lock == revocation.lock && is_below(path);
        if !self.handles.iter().any(is_of) && !self.parts.iter().any(is_tasks) {
            let index = self.index;
            judge.blame(|| format!("client {index}: {revocation:?} names another lock's node"));
        }
    }

    /// Those who pass a lock on among themselves have their turns in the order in which they began.
    fn check_turn(&self, judge: &mut Judge, op: OpId, call: &Call, failed: &[OpId]) {
        let is_cohorts =
            |call: &Call| matches!(call.kind, Kind::Acquire { .. }) && self.handles[call.handle].max_passes > 0;
        let path = |call: &Call| self.handles[call.handle].path;
        let enters_again = |actor: usize| self.held(actor).iter().any(|&(handle, _)| handle == call.handle);
        if !is_cohorts(call) || call.actor.is_some_and(enters_again) {
            return;
        }
        let mut before = self.calls.range(..op).filter(|(other, _)| !failed.contains(other)).map(|(_, other)| other);
        if let Some(other) = before.find(|other| is_cohorts(other) && path(other) == path(call)) {
            let (index, actor, waits) = (self.index, call.actor, other.actor);
            judge.blame(|| format!("client {index}: thread {actor:?} overtook thread {waits:?}"));
        }
    }

    fn check_time(&self, judge: &mut Judge, now: Time, call: &Call, result: &Result<Answer, zklock::Error>) {
        let Some(deadline) = call.deadline else { return };
        let index = self.index;
        // Who stood still could not look at the clock meanwhile.
        if now > deadline.max(self.stood_still) + SLACK {
            judge.blame(|| format!("client {index}: {:?} was answered {:?} late", call.kind, now - deadline));
        }
        let early = matches!(result, Err(error) if error.status() == Status::Timeout) && now + SLACK < deadline;
        // One look ends with its answer.
        if early && matches!(call.kind, Kind::Acquire { limit: Limit::Deadline, .. }) {
            judge.blame(|| format!("client {index}: {:?} timed out {:?} early", call.kind, deadline - now));
        }
        let Handle { path, ref recipe, max_passes, .. } = self.handles[call.handle];
        // In a cohort, a call that has no node yet keeps others out.
        let needs_nobody = matches!(recipe, Recipe::Queue(Mode::Mutex | Mode::Write)) && max_passes == 0;
        if early && needs_nobody && self.syncs_are_sound && !judge.was_used(&self.full_path(path), call.began) {
            judge.blame(|| format!("client {index}: {:?} found somebody at path {path}, where nobody was", call.kind));
        }
    }

    fn answered(
        &mut self,
        rng: &mut Rng,
        judge: &mut Judge,
        now: Time,
        call: &Call,
        result: Result<Answer, zklock::Error>,
        wishes: &mut Vec<Wish>,
    ) {
        let index = self.index;
        if call.kind == Kind::Close {
            self.life = Life::Over;
            return;
        }
        let Some(actor) = call.actor else { return };
        let soon = now + *pick(rng, &[ms(0), ms(1), ms(20), ms(300), self.session_timeout / 2]);
        let expected = match (call.kind, &result) {
            (Kind::Acquire { more: More::Deadlock, .. }, Ok(_)) => false,
            (_, Ok(_)) => true,
            (_, Err(error)) if error.status() == Status::Closed => self.life != Life::Running || call.may_be_closed,
            (Kind::Acquire { more, limit, .. }, Err(error)) => match error.status() {
                Status::Lost => matches!(more, More::Inside | More::Open),
                Status::Deadlock => matches!(more, More::Deadlock | More::Open),
                Status::Timeout | Status::Connection => limit != Limit::None,
                Status::Canceled => call.may_be_canceled,
                Status::Exhausted => self.may_be_exhausted,
                Status::Foreign => self.any_path(call.handle, |path| judge.had_foreign(path)),
                Status::Denied => self.any_path(call.handle, |path| judge.was_forbidden(path)),
                _ => false,
            },
            (Kind::Release { .. }, Err(error)) if error.status() == Status::Denied => {
                self.any_path(call.handle, |path| judge.was_forbidden(path))
            }
            (Kind::Release { .. }, Err(error)) => matches!(error.status(), Status::Lost | Status::Connection),
            (Kind::Ask, Err(error)) => error.status() == Status::Connection,
            (Kind::Close, Err(_)) => false,
        };
        if !expected {
            judge.blame(|| format!("client {index}: {:?} of thread {actor} ended with {result:?}", call.kind));
        }
        match call.kind {
            Kind::Acquire { owner, quantity, .. } => {
                if result.is_ok() {
                    self.granted(judge, now, actor, Entry { handle: call.handle, owner }, quantity);
                }
                if self.actors[actor].phase == Phase::Waiting {
                    let session = self.session_timeout;
                    let lengths = [ms(0), ms(0), ms(5), ms(5), ms(100), ms(100), session / 2, session, session * 3];
                    let until = now + *pick(rng, &lengths);
                    self.actors[actor].phase = if result.is_ok() { Phase::Holding { until } } else { Phase::Idle };
                }
            }
            Kind::Release { is_last: true } => self.actors[actor].phase = Phase::Idle,
            Kind::Release { is_last: false } | Kind::Close => {}
            Kind::Ask => {
                self.actors[actor].phase = Phase::Idle;
                if let Ok(Answer::Participants(participants)) = &result {
                    self.check_participants(judge, participants);
                }
                if let (Ok(Answer::Holds(holds)), Some(question)) = (&result, &call.question) {
                    judge.checked(index, question, *holds);
                }
            }
        }
        wishes.push(Wish::Act(actor, soon));
    }

    fn granted(&mut self, judge: &mut Judge, now: Time, actor: usize, entry: Entry, quantity: u32) {
        let before = self.held(actor);
        self.actors[actor].entries.push(entry);
        let mut tokens = Vec::new();
        for held in self.held(actor).into_iter().filter(|held| !before.contains(held)) {
            let (lock, path) = (self.handles[held.0].lock, self.handles[held.0].path);
            let nodes = self.nodes_of(lock, held.1);
            let view = self.engine.hold_of(self.local(now), lock, held.1);
            let (index, count) = (self.index, nodes.len());
            let Some(view) = view.filter(|_| count == quantity as usize) else {
                judge.blame(|| {
                    format!("client {index}: thread {actor} was granted {quantity} and has {count} nodes: {view:?}")
                });
                continue;
            };
            tokens.push(view.token);
            let stance = stance(&self.handles[held.0].recipe);
            // News takes no longer than that, or else the connection is given up.
            let since = self.connected_at.max(ago(now, self.session_timeout));
            let stood_still = now < self.stood_still + self.session_timeout * 2;
            let count_since = ago(now, self.session_timeout * if stood_still { 5 } else { 2 });
            let grant = Grant { path, stance, nodes, token: (view.token, view.pass), since, count_since };
            judge.granted(now, self.holder(actor, held), grant);
        }
        if tokens.windows(2).any(|pair| pair[0] != pair[1]) {
            let index = self.index;
            judge.blame(|| format!("client {index}: thread {actor} was granted several locks as one with {tokens:?}"));
        }
    }

    /// Holders come first in their directory, and nobody twice.
    fn check_participants(&self, judge: &mut Judge, participants: &[Participant]) {
        let index = self.index;
        let directory = |participant: &Participant| {
            let (directory, _) = participant.node_path.rsplit_once('/').unwrap_or_default();
            directory.to_owned()
        };
        for (at, one) in participants.iter().enumerate() {
            let before = &participants[..at];
            if before.iter().any(|other| other.node_path == one.node_path) {
                judge.blame(|| format!("client {index} was told of {} twice", one.node_path));
            }
            let waits_before = before.iter().any(|other| directory(other) == directory(one) && !other.holds);
            if one.holds && waits_before {
                judge.blame(|| format!("client {index} was told that {} holds, and others first", one.node_path));
            }
            let is_lock = one.node_path.contains("lock-");
            if one.holds && is_lock && before.iter().any(|other| directory(other) == directory(one)) {
                judge.blame(|| format!("client {index} was told that {} holds beside others", one.node_path));
            }
        }
    }

    /// What was counted adds up: each wait that was granted became holds, and each hold ended in one way.
    pub(crate) fn check_metrics(&self, judge: &mut Judge) {
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
            judge.blame(|| format!("client {} counts what does not add up: {now:?}", self.index));
        }
    }

    /// The program looks at what it holds.
    pub(crate) fn look(&self, judge: &mut Judge, now: Time) {
        let local = self.local(now);
        let is_settled = self.engine.next_timeout().is_none_or(|at| at > local);
        if is_settled {
            judge.seen_client(self.index, self.engine.state());
        }
        for actor in 0..self.actors.len() {
            for held in self.held(actor) {
                let lock = self.handles[held.0].lock;
                let Some(view) = self.engine.hold_of(local, lock, held.1) else {
                    let index = self.index;
                    judge.blame(|| format!("client {index}: a hold of thread {actor} is gone without a word"));
                    continue;
                };
                if matches!(view.state, LockState::Held | LockState::Suspended) {
                    let until = self.global(local + view.remaining);
                    let since = self.knows_since(now).filter(|_| view.state == LockState::Held);
                    judge.safe(now, self.holder(actor, held), until, since);
                }
                // With nothing due, what is seen is what was told.
                if is_settled {
                    judge.seen(self.index, lock, (view.token, view.pass), view.state);
                }
            }
        }
    }
}

/// The locks of a path.
fn recipes(prefix: &str, path: usize, form: Form) -> Vec<Recipe> {
    match form {
        Form::Mutex => vec![Recipe::Queue(Mode::Mutex)],
        Form::ReadWrite => vec![Recipe::Queue(Mode::Read), Recipe::Queue(Mode::Write)],
        Form::SemaphoreMutex => vec![Recipe::SemaphoreMutex],
        Form::Semaphore(most) => vec![Recipe::Semaphore(most)],
        Form::Counted(initial) => {
            vec![Recipe::CountedSemaphore { count_path: format!("{prefix}{COUNTS}{path}").into(), initial }]
        }
    }
}

/// Several of these locks as one, no two of one path, in any order.
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
    let recipe = Recipe::Multi(Box::default());
    Handle { lock: 0, path: 0, recipe, is_revocable: false, max_passes: 0, members }
}

/// Makes a lock of a handle.
fn open(engine: &mut Engine, local: Time, prefix: &str, handles: &mut [Handle], at: usize) {
    let recipe = match &handles[at] {
        Handle { recipe: Recipe::Multi(_), members, .. } => {
            Recipe::Multi(members.iter().map(|&member| handles[member].lock).collect())
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

pub(crate) fn stance(recipe: &Recipe) -> Stance {
    match recipe {
        Recipe::Queue(Mode::Read) => Stance::Shared,
        Recipe::Queue(_) | Recipe::Multi(_) => Stance::Exclusive,
        Recipe::SemaphoreMutex => Stance::Single,
        Recipe::Semaphore(_) | Recipe::CountedSemaphore { .. } => Stance::Leases,
    }
}

/// So long before, or the beginning.
fn ago(now: Time, length: Duration) -> Time {
    Time::default() + (now - Time::default()).saturating_sub(length)
}

/// Answers are given in the very moment in which they are due, but for rounding.
pub(crate) const SLACK: Duration = ms(1);

fn owner(actor: usize) -> Owner {
    Owner::Thread(actor as u64 + 1)
}

/// Their names begin alike, and one may be below another.
pub(crate) fn path_of(prefix: &str, path: usize) -> String {
    let names = ["/locks/0", "/locks/1", "/locks/10", "/locks/1/0"];
    format!("{prefix}{}", names[path])
}

fn is_below(node: &str, path: &str) -> bool {
    let rest = node.strip_prefix(path).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default();
    rest.starts_with("_c_") || rest.starts_with("locks/_c_") || rest.starts_with("leases/_c_")
}
