//! One process: an engine, its connection, and the threads of the program that use it.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use zklock::engine::{Answer, Engine, LockId, LockState, OpId, Owner, Patience, Recipe};
use zklock::recipe::Mode;
use zklock::session::{ConnectString, Server, SessionConfig};
use zklock::{Event, Status, Time};

use crate::judge::Judge;
use crate::plan::{ClientPlan, Plan, ms, pick};

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
    index: usize,
    clock: Duration,
    session_timeout: Duration,
    /// Nothing goes wrong in this run.
    is_undisturbed: bool,
    /// Until when it last stood still.
    stood_still: Time,
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
}

/// One thread of the program.
struct Actor {
    rounds: u32,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Waiting { handle: usize },
    Holding { handle: usize, depth: u32, until: Time },
    Leaving,
    Done,
}

struct Call {
    actor: Option<usize>,
    kind: Kind,
    deadline: Option<Time>,
    may_be_canceled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Acquire { reentry: bool, limit: Limit },
    Release { depth: u32 },
    Close,
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
    /// Those who wait by this actor's handle are to be cancelled.
    Cancel(usize, Time),
}

impl Client {
    pub(crate) fn new(index: usize, plan: &Plan, own: &ClientPlan, rng: &mut Rng, now: Time) -> Self {
        let servers = (0..plan.servers).map(|server| Server { host: format!("s{server}"), port: 2181 }).collect();
        let target = ConnectString { servers, chroot: String::new() };
        let config = SessionConfig {
            timeout: plan.session_timeout,
            lease_margin: None,
            auth: Vec::new(),
            frame_limit: zklock::proto::DEFAULT_FRAME_LIMIT,
        };
        let mut entropy = rng.fork();
        let entropy = Box::new(move || entropy.u128(..));
        let mut engine = Engine::new(target, config, now + own.clock, entropy);
        let handles = (0..own.handles)
            .map(|number| {
                let path = if number < plan.paths { number } else { rng.usize(..plan.paths) };
                Handle { lock: engine.add_lock(&path_of(path), Recipe::Queue(Mode::Mutex)), path }
            })
            .collect();
        Self {
            engine,
            link: None,
            dialing: None,
            paused_until: now,
            life: Life::Unborn,
            timer: None,
            actors: own.rounds.iter().map(|&rounds| Actor { rounds, phase: Phase::Idle }).collect(),
            handles,
            calls: BTreeMap::new(),
            index,
            clock: own.clock,
            session_timeout: plan.session_timeout,
            is_undisturbed: plan.faults.is_empty() && (plan.latency.1 + plan.lag.1) * 40 < plan.session_timeout,
            stood_still: now,
            connected_at: now,
            closing: (0, now),
        }
    }

    /// What its own clock shows.
    pub(crate) fn local(&self, now: Time) -> Time {
        now + self.clock
    }

    pub(crate) fn global(&self, local: Time) -> Time {
        Time::default() + (local - (Time::default() + self.clock))
    }

    pub(crate) fn actors(&self) -> usize {
        self.actors.len()
    }

    pub(crate) fn wakes_up(&mut self, now: Time) {
        self.stood_still = now;
    }

    pub(crate) fn is_done(&self) -> bool {
        self.actors.iter().all(|actor| actor.phase == Phase::Done)
    }

    /// What it is doing, for the history.
    pub(crate) fn describe(&self) -> String {
        let phases: Vec<String> = self.actors.iter().map(|actor| format!("{:?}", actor.phase)).collect();
        format!("{:?}, {:?}: {}", self.life, self.engine.state(), phases.join("; "))
    }

    /// A thread of the program does its next step.
    pub(crate) fn act(&mut self, rng: &mut Rng, judge: &mut Judge, now: Time, actor: usize) -> Vec<Wish> {
        if self.life != Life::Running {
            return Vec::new();
        }
        match self.actors[actor].phase {
            Phase::Idle if self.actors[actor].rounds == 0 => {
                self.actors[actor].phase = Phase::Done;
                Vec::new()
            }
            Phase::Idle => self.acquire(rng, now, actor),
            Phase::Holding { handle, depth, until } => {
                if until > now && rng.u8(..3) == 0 && depth < 3 {
                    return self.reenter(now, actor, handle);
                }
                if until > now {
                    return vec![Wish::Act(actor, until)];
                }
                self.release(rng, judge, now, actor, handle, depth);
                Vec::new()
            }
            Phase::Waiting { .. } | Phase::Leaving | Phase::Done => Vec::new(),
        }
    }

    fn acquire(&mut self, rng: &mut Rng, now: Time, actor: usize) -> Vec<Wish> {
        self.actors[actor].rounds -= 1;
        let handle = rng.usize(..self.handles.len());
        let local = self.local(now);
        let (patience, limit, deadline) = match rng.u8(..8) {
            0..=3 => (Patience::Forever, Limit::None, None),
            4..=6 => {
                let limit = self.session_timeout.mul_f64(rng.f64() * rng.f64() * 2.0);
                (Patience::Until(local + limit), Limit::Deadline, Some(now + limit))
            }
            _ => (Patience::OneLook, Limit::OneLook, Some(now + ms(1_000))),
        };
        self.actors[actor].phase = Phase::Waiting { handle };
        let op = self.engine.acquire(local, self.handles[handle].lock, owner(actor), patience);
        let kind = Kind::Acquire { reentry: false, limit };
        self.calls.insert(op, Call { actor: Some(actor), kind, deadline, may_be_canceled: false });
        if rng.u8(..8) == 0 {
            return vec![Wish::Cancel(actor, now + self.session_timeout.mul_f64(rng.f64()))];
        }
        Vec::new()
    }

    fn reenter(&mut self, now: Time, actor: usize, handle: usize) -> Vec<Wish> {
        let op = self.engine.acquire(self.local(now), self.handles[handle].lock, owner(actor), Patience::Forever);
        let kind = Kind::Acquire { reentry: true, limit: Limit::None };
        self.calls.insert(op, Call { actor: Some(actor), kind, deadline: None, may_be_canceled: false });
        Vec::new()
    }

    fn release(&mut self, rng: &mut Rng, judge: &mut Judge, now: Time, actor: usize, handle: usize, depth: u32) {
        if depth == 1 {
            judge.released((self.index, actor));
        }
        self.actors[actor].phase = Phase::Leaving;
        let local = self.local(now);
        let op = self.engine.release(local, self.handles[handle].lock, owner(actor), rng.bool());
        let deadline = Some(now + self.engine.session_timeout());
        let kind = Kind::Release { depth };
        self.calls.insert(op, Call { actor: Some(actor), kind, deadline, may_be_canceled: false });
        if depth > 1 {
            self.actors[actor].phase = Phase::Holding { handle, depth: depth - 1, until: now };
        }
    }

    pub(crate) fn cancel(&mut self, now: Time, actor: usize) {
        let Phase::Waiting { handle } = self.actors[actor].phase else { return };
        let lock = self.handles[handle].lock;
        for call in self.calls.values_mut() {
            let Some(other) = call.actor else { continue };
            let waits_here = match self.actors[other].phase {
                Phase::Waiting { handle } | Phase::Holding { handle, .. } => self.handles[handle].lock == lock,
                _ => false,
            };
            call.may_be_canceled |= waits_here && matches!(call.kind, Kind::Acquire { .. });
        }
        self.engine.cancel(self.local(now), lock);
    }

    /// The program has no more to do.
    pub(crate) fn close(&mut self, judge: &mut Judge, now: Time) {
        judge.died(self.index);
        self.life = Life::Closing;
        let limit = ms(2_000).min(self.engine.session_timeout() / 3);
        self.closing = (self.engine.session_id(), now + limit);
        let op = self.engine.close(self.local(now));
        let deadline = Some(now + limit);
        self.calls.insert(op, Call { actor: None, kind: Kind::Close, deadline, may_be_canceled: false });
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
        while let Some((op, result)) = self.engine.poll_answer() {
            let Some(call) = self.calls.remove(&op) else {
                let index = self.index;
                judge.blame(|| format!("client {index}: call {op} was answered twice, or never asked"));
                continue;
            };
            say(format!("answer to {:?} of thread {:?}: {result:?}", call.kind, call.actor));
            self.check_time(judge, now, &call, &result);
            self.answered(rng, judge, now, &call, result, &mut wishes);
        }
        while let Some(event) = self.engine.poll_event() {
            say(format!("event {event:?}"));
            match event {
                Event::Lock { lock, token, state, previous, .. } => {
                    if self.is_undisturbed && state == LockState::Uncertain {
                        judge.blame(|| format!("token {token} is {state:?} where nothing went wrong"));
                    }
                    judge.told(self.index, lock, token, previous, state);
                }
                Event::Client { state, previous } => judge.told_client(self.index, previous, state),
            }
        }
        wishes
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
            (_, Ok(_)) => true,
            (_, Err(error)) if error.status() == Status::Closed => self.life != Life::Running,
            (Kind::Acquire { reentry: true, .. }, Err(error)) => match error.status() {
                Status::Lost => true,
                Status::Canceled => call.may_be_canceled,
                _ => false,
            },
            (Kind::Acquire { limit, .. }, Err(error)) => match error.status() {
                Status::Timeout | Status::Connection => limit != Limit::None,
                Status::Canceled => call.may_be_canceled,
                _ => false,
            },
            (Kind::Release { .. }, Err(error)) => matches!(error.status(), Status::Lost | Status::Connection),
            (Kind::Close, Err(_)) => false,
        };
        if !expected {
            judge.blame(|| format!("client {index}: {:?} of thread {actor} ended with {result:?}", call.kind));
        }
        match (call.kind, self.actors[actor].phase) {
            (Kind::Acquire { reentry: false, .. }, Phase::Waiting { handle }) => {
                self.actors[actor].phase = if result.is_ok() {
                    let session = self.session_timeout;
                    let lengths = [ms(0), ms(0), ms(5), ms(5), ms(100), ms(100), session / 2, session, session * 3];
                    let until = now + *pick(rng, &lengths);
                    self.granted(judge, now, actor, handle);
                    Phase::Holding { handle, depth: 1, until }
                } else {
                    Phase::Idle
                };
                wishes.push(Wish::Act(actor, soon));
            }
            (Kind::Acquire { reentry: true, .. }, Phase::Holding { handle, depth, until }) => {
                let depth = depth + u32::from(result.is_ok());
                self.actors[actor].phase = Phase::Holding { handle, depth, until };
                wishes.push(Wish::Act(actor, soon));
            }
            (Kind::Release { depth }, phase) => {
                if depth == 1 {
                    self.actors[actor].phase = Phase::Idle;
                } else {
                    self.actors[actor].phase = phase;
                }
                wishes.push(Wish::Act(actor, soon));
            }
            _ => {}
        }
    }

    fn granted(&self, judge: &mut Judge, now: Time, actor: usize, handle: usize) {
        let Handle { lock, path } = self.handles[handle];
        match self.engine.hold_of(self.local(now), lock, owner(actor)) {
            Some(view) => {
                // News takes no longer than that, or else the connection is given up.
                let recently = Time::default() + (now - Time::default()).saturating_sub(self.session_timeout);
                let since = self.connected_at.max(recently);
                judge.granted(now, (self.index, actor), path, &path_of(path), view.token, since);
            }
            None => judge
                .blame(|| format!("client {}: thread {actor} was granted a lock that it does not hold", self.index)),
        }
    }

    /// The program looks at what it holds.
    pub(crate) fn look(&self, judge: &mut Judge, now: Time) {
        let local = self.local(now);
        let is_settled = self.engine.next_timeout().is_none_or(|at| at > local);
        if is_settled {
            judge.seen_client(self.index, self.engine.state());
        }
        for (actor, Actor { phase, .. }) in self.actors.iter().enumerate() {
            let Phase::Holding { handle, .. } = *phase else { continue };
            let Handle { lock, .. } = self.handles[handle];
            let Some(view) = self.engine.hold_of(local, lock, owner(actor)) else {
                let index = self.index;
                judge.blame(|| format!("client {index}: the hold of thread {actor} is gone without a word"));
                continue;
            };
            if matches!(view.state, LockState::Held | LockState::Suspended) {
                let until = self.global(local + view.remaining);
                judge.safe(now, (self.index, actor), view.token, until);
            }
            // With nothing due, what is seen is what was told.
            if is_settled {
                judge.seen(self.index, lock, view.token, view.state);
            }
        }
    }
}

/// Answers are given in the very moment in which they are due, but for rounding.
const SLACK: Duration = ms(1);

fn owner(actor: usize) -> Owner {
    Owner::Thread(actor as u64 + 1)
}

pub(crate) fn path_of(path: usize) -> String {
    format!("/locks/{path}")
}
