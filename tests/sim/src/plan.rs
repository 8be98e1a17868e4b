//! What a seed stands for: how many clients and servers, how fast the network is, and which faults come when.

use std::time::Duration;

use fastrand::Rng;
use zklock::{Limits, MirrorLimits, Time};

use crate::world::ProgramPlan;

/// A whole run, before it begins.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) servers: usize,
    pub(crate) clients: Vec<ClientPlan>,
    /// What each path is.
    pub(crate) forms: Vec<Form>,
    /// Whether clients take several locks as one.
    pub(crate) multis: bool,
    /// How often threads of one process pass a mutex on among themselves; 0 where they do not.
    pub(crate) max_passes: u32,
    pub(crate) session_timeout: Duration,
    /// How often a follower tells its leader which sessions gave a sign of life.
    pub(crate) relay: Duration,
    pub(crate) latency: (Duration, Duration),
    pub(crate) lag: (Duration, Duration),
    pub(crate) sweep: Duration,
    /// Its servers know no watches that stay, so no client has mirrors.
    pub(crate) is_old: bool,
    /// What all paths are below. Some clients have it as their chroot, the others write it in front of their paths.
    pub(crate) root: &'static str,
    /// Clients queue with kazoo's locks.
    pub(crate) with_kazoo: bool,
    /// Processes that take locks step by step.
    pub(crate) programs: Vec<ProgramPlan>,
    /// The constants of all clients.
    pub(crate) limits: Limits,
    /// No leader answers that was replaced without its knowledge, so a `sync` shows all that was ordered before.
    pub(crate) syncs_are_sound: bool,
    /// Limit on the bytes that the paths of all nodes of one session take; `None` for the default, which no run reaches.
    pub(crate) max_path_bytes: Option<usize>,
    /// The longest request that the servers take; `None` for the default, which no request reaches.
    pub(crate) frame_limit: Option<usize>,
    pub(crate) faults: Vec<(Duration, Fault)>,
    /// When all faults are over.
    pub(crate) calm: Duration,
    /// Nothing goes wrong.
    pub(crate) is_undisturbed: bool,
}

/// What a path is, to all clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Mutex,
    ReadWrite,
    SemaphoreMutex,
    /// With so many leases.
    Semaphore(i32),
    /// With as many leases as a count says, which begins with this.
    Counted(i32),
}

/// Which recipe a node belongs to that is none of zklock's clients'.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForeignRecipe {
    Kazoo,
    KazooReader,
    /// The C recipe that comes with ZooKeeper.
    ZooKeeper,
    /// Curator's other family: a read/write lock beside mutexes, or the other way round.
    OtherCurator,
    /// Something that takes no part in locking.
    None,
}

/// One process.
#[derive(Debug)]
pub(crate) struct ClientPlan {
    /// How often each of its threads tries to get a lock.
    pub(crate) rounds: Vec<u32>,
    /// How many lock handles it has.
    pub(crate) handles: usize,
    pub(crate) clock: Clock,
    pub(crate) begins: Duration,
    pub(crate) has_chroot: bool,
}

/// What a process's clock shows when the world's shows something else: it began earlier, and runs faster or slower.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    ahead: Duration,
    /// How many nanoseconds more than a million it shows in a million.
    drift: i64,
}

/// What can go wrong. Numbers choose a client, a server, a path; they are taken modulo how many there are.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// A client's connection is reset.
    Cut { client: usize },
    /// A client's connection, or the next one, breaks once so many frames have come through in one direction.
    Break { client: usize, frames: usize, is_reply: bool, is_next: bool },
    /// A client's connection swallows what is sent, one way or both; perhaps it all arrives later.
    BlackHole { client: usize, up: bool, down: bool, thaw: Option<Duration> },
    /// A client can't reach one server, or any.
    Unreachable { client: usize, server: Option<usize>, length: Duration },
    /// A process stands still.
    Pause { client: usize, length: Duration },
    /// A process is killed: its connection ends, or nobody notices.
    Kill { client: usize, noticed: bool },
    /// A server stops and starts.
    Restart { server: usize, length: Duration },
    /// A server loses touch with the others, and notices it some time later.
    Isolate { server: usize, notices: Duration, length: Duration },
    /// A server's process stands still, or the leader's.
    PauseServer { server: Option<usize>, length: Duration },
    /// Nothing that the leader orders is committed any more. After some time it stops, and what it ordered is lost.
    DoomLeader { stops: Duration, length: Duration },
    /// An operator removes a lock's directories with all that is in them, or those of all locks.
    RemoveDirectory { path: Option<usize> },
    /// Another program creates a node of another recipe in a lock's directory, and deletes it some time later.
    Foreign { path: usize, recipe: ForeignRecipe, length: Duration },
    /// An operator takes permissions from a lock's directories for some time.
    Forbid { path: usize, perms: i32, length: Duration },
    /// The leader loses touch with the others, and notices it some time later.
    IsolateLeader { notices: Duration, length: Duration },
    /// A server falls behind.
    Lag { server: usize, lag: Duration, length: Duration },
    /// The network is slow for everybody.
    Slow { latency: Duration, length: Duration },
    /// A client's session is ended by an operator.
    Expire { client: usize },
    /// An operator deletes a lock's node: this one in the order of the queue.
    Delete { path: usize, place: usize },
    /// An operator asks for a lock's node to be given up.
    Revoke { path: usize, place: usize },
    /// An operator changes how many leases there are.
    SetCount { path: usize, value: i32 },
    /// A client reaches no other server than the one it is connected to.
    Stick { client: usize, length: Duration },
    /// The server that a client is connected to stops and starts.
    RestartServerOf { client: usize, length: Duration },
    /// A client's next handshake is answered with a new session, though the old one goes on (as ClickHouse Keeper does).
    NewSession { client: usize },
    /// The reply to a request of this kind is lost, and its connection with it.
    LoseReply { server: usize, op: zklock::proto::OpCode },
}

impl Plan {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let servers = if rng.u8(..4) == 0 { 1 } else { 3 };
        let session_timeout = Duration::from_millis(*pick(rng, &[2_000, 4_000, 6_000, 10_000]));
        let busy = Duration::from_millis(rng.u64(2_000..20_000));
        let latency = *pick(rng, &[(0, 1), (0, 5), (1, 20), (5, 60), (0, 200)]);
        let lag = *pick(rng, &[(0, 1), (0, 5), (1, 50), (0, 300)]);
        let (forms, multis) = forms(rng);
        let clients = (0..rng.usize(2..=4)).map(|_| ClientPlan::new(rng, busy, multis)).collect();
        let mut plan = Self {
            servers,
            clients,
            forms,
            multis,
            max_passes: 0,
            session_timeout,
            relay: session_timeout / *pick(rng, &[4, 8, 20]),
            latency: (ms(latency.0), ms(latency.1)),
            lag: (ms(lag.0), ms(lag.1)),
            sweep: ms(*pick(rng, &[100, 1_000, 60_000])),
            is_old: false,
            root: "",
            with_kazoo: false,
            programs: Vec::new(),
            limits: Limits::default(),
            syncs_are_sound: true,
            max_path_bytes: None,
            frame_limit: None,
            faults: Vec::new(),
            calm: busy,
            is_undisturbed: false,
        };
        let count = *pick(rng, &[0, 1, 1, 2, 3, 5, 8, 12]);
        for _ in 0..count {
            let at = busy.mul_f64(rng.f64());
            let fault = Fault::new(rng, session_timeout);
            plan.faults.push((at, fault));
        }
        let at = busy.mul_f64(rng.f64());
        plan.faults.extend(theme(rng, session_timeout).into_iter().map(|(after, fault)| (at + after, fault)));
        plan.is_undisturbed = plan.faults.is_empty() && (plan.latency.1 + plan.lag.1) * 40 < session_timeout;
        let operations = operations(rng, &plan.forms);
        plan.faults.extend(operations.into_iter().map(|operation| (busy.mul_f64(rng.f64()), operation)));
        plan.form_cohorts(&mut rng.clone());
        let seed = rng.clone().u64(..);
        plan.is_old = seed.is_multiple_of(2);
        plan.limit_paths(&mut rng.clone());
        // Dice for each part: a new part leaves the others as they were.
        let dice = |part: u64| Rng::with_seed(seed.rotate_left(17) ^ part);
        plan.limits = limits(&mut dice(1));
        let breaks = breaks(&mut dice(2), busy);
        plan.add_faults(breaks);
        let pauses = pauses(&mut dice(3), busy, session_timeout);
        plan.add_faults(pauses);
        let removals = removals(&mut dice(4), busy);
        plan.add_faults(removals);
        let strangers = strangers(&mut dice(7), busy, session_timeout);
        plan.add_faults(strangers);
        plan.with_kazoo = dice(8).bool();
        let refusals = refusals(&mut dice(9), busy, session_timeout);
        plan.add_faults(refusals);
        plan.root = if dice(5).u8(..4) == 0 { "/app" } else { "" };
        for (client, own) in plan.clients.iter_mut().enumerate() {
            own.has_chroot = dice(6 + client as u64).bool();
        }
        let isolates = |fault: &Fault| {
            matches!(fault, Fault::Isolate { .. } | Fault::IsolateLeader { .. } | Fault::DoomLeader { .. })
        };
        plan.syncs_are_sound = !plan.faults.iter().any(|(_, fault)| isolates(fault));
        plan.form_programs(&mut dice(100), busy);
        plan.limit_frames(&mut dice(11));
        plan
    }

    /// More faults, so the run is not undisturbed any more.
    pub(crate) fn add_faults(&mut self, faults: Vec<(Duration, Fault)>) {
        self.is_undisturbed &= faults.is_empty();
        self.faults.extend(faults);
    }
}

/// In two of three runs clients have other constants than programs, so that few of them reach every branch.
fn limits(rng: &mut Rng) -> Limits {
    if rng.u8(..3) == 0 {
        return Limits::default();
    }
    let few = *pick(rng, &[8, 1, 2, 3]);
    Limits {
        watch_batch: *pick(rng, &[128 * 1024, 1, 100, 250, 500]),
        sound_connection: ms(*pick(rng, &[1_000, 0, 100, 3_000])),
        max_leaving: *pick(rng, &[16, 16, 1, 2, 4]),
        first_retry: ms(*pick(rng, &[250, 10])),
        last_retry: ms(*pick(rng, &[30_000, 500])),
        first_look: ms(*pick(rng, &[250, 20])),
        last_look: ms(*pick(rng, &[8_000, 2_000])),
        second_look: ms(*pick(rng, &[100, 5])),
        most_ahead: *pick(rng, &[16, 1, 3]),
        mirror: MirrorLimits {
            soon: ms(*pick(rng, &[250, 20, 2_000])),
            hot: *pick(rng, &[3, 1, 2]),
            company: *pick(rng, &[2, 1, 3]),
            idle: ms(*pick(rng, &[1_000, 50, 2_000])),
            few,
            many: few + *pick(rng, &[4, 0, 1]),
            noise: *pick(rng, &[256, 2, 8]),
            most: *pick(rng, &[128, 1, 2]),
            solo: *pick(rng, &[32, 1, 3]),
            pause: ms(*pick(rng, &[5_000, 100])),
            ban: ms(*pick(rng, &[30_000, 500])),
            look: ms(*pick(rng, &[100, 5])),
            tries: *pick(rng, &[3, 1]),
            remembered: *pick(rng, &[1_024, 1, 2]),
        },
        ..Limits::default()
    }
}

/// In some runs servers stand still, or a leader loses what it orders. A leader stands still no longer than the lease allows for
/// late pings: a twelfth of the session timeout (decision 4).
fn pauses(rng: &mut Rng, busy: Duration, session_timeout: Duration) -> Vec<(Duration, Fault)> {
    let mut faults = Vec::new();
    let at = |rng: &mut Rng| busy.mul_f64(rng.f64());
    if rng.u8(..5) == 0 {
        for _ in 0..rng.usize(1..=6) {
            let (server, most) = if rng.bool() { (None, 1.0 / 12.0) } else { (Some(rng.usize(..)), 0.5) };
            faults.push((at(rng), Fault::PauseServer { server, length: session_timeout.mul_f64(rng.f64() * most) }));
        }
    }
    if rng.u8(..8) == 0 {
        let mut part = |most: f64| session_timeout.mul_f64(rng.f64() * most);
        let (stops, length) = (part(2.0), part(1.0));
        faults.push((at(rng), Fault::DoomLeader { stops, length }));
        if rng.bool() {
            faults.push((at(rng), Fault::Cut { client: rng.usize(..) }));
        }
    }
    faults
}

/// In some runs operators remove directories.
fn removals(rng: &mut Rng, busy: Duration) -> Vec<(Duration, Fault)> {
    if rng.u8(..8) != 0 {
        return Vec::new();
    }
    let removal = |rng: &mut Rng| Fault::RemoveDirectory { path: (rng.u8(..4) > 0).then(|| rng.usize(..)) };
    (0..rng.usize(1..=3)).map(|_| (busy.mul_f64(rng.f64()), removal(rng))).collect()
}

/// In some runs programs with other recipes come to the same directories.
fn strangers(rng: &mut Rng, busy: Duration, session_timeout: Duration) -> Vec<(Duration, Fault)> {
    use ForeignRecipe as Recipe;
    if rng.u8(..8) != 0 {
        return Vec::new();
    }
    let recipes = [Recipe::Kazoo, Recipe::KazooReader, Recipe::ZooKeeper, Recipe::OtherCurator, Recipe::None];
    let mut stranger = || {
        let (at, recipe, path) = (busy.mul_f64(rng.f64()), *pick(rng, &recipes), rng.usize(..));
        (at, Fault::Foreign { path, recipe, length: session_timeout.mul_f64(rng.f64() * rng.f64()) })
    };
    (0..4).map(|_| stranger()).collect()
}

/// In some runs servers refuse deletes or creates.
fn refusals(rng: &mut Rng, busy: Duration, session_timeout: Duration) -> Vec<(Duration, Fault)> {
    if rng.u8(..10) != 0 {
        return Vec::new();
    }
    let mut refusal = || {
        // All but delete, all but create, all but both.
        let (at, path, perms) = (busy.mul_f64(rng.f64()), rng.usize(..), *pick(rng, &[23, 23, 27, 19]));
        (at, Fault::Forbid { path, perms, length: session_timeout.mul_f64(rng.f64() * 2.0) })
    };
    (0..2).map(|_| refusal()).collect()
}

/// In a quarter of the runs connections break after some frames, counted from the fault or from the next handshake.
fn breaks(rng: &mut Rng, busy: Duration) -> Vec<(Duration, Fault)> {
    if rng.u8(..4) != 0 {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for _ in 0..rng.usize(1..=4) {
        let (at, client) = (busy.mul_f64(rng.f64()), rng.usize(..));
        let is_next = rng.bool();
        let frames = *pick(rng, &[0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 12, 20]);
        faults.push((at, Fault::Break { client, frames, is_reply: rng.u8(..3) > 0, is_next }));
        if is_next {
            faults.push((at, Fault::Cut { client }));
        }
    }
    faults
}

/// A request for one node takes fewer bytes.
const ONE_NODE: usize = 180;

impl Plan {
    /// In some runs a session has room for a few nodes only. With dice of their own, as the next.
    fn limit_paths(&mut self, dice: &mut Rng) {
        let first = dice.u64(..);
        if (first / 2).is_multiple_of(6) {
            self.max_path_bytes = Some(dice.usize(64..600));
        }
    }

    /// In some runs servers take short requests only: those for one node, but not each of those for several. As with programs, no request for
    /// one node is suspected, and a watch of one node can be restored.
    fn limit_frames(&mut self, rng: &mut Rng) {
        if rng.u8(..8) != 0 {
            return;
        }
        self.frame_limit = Some(*pick(rng, &[200, 300, 400, 600]));
        self.limits.suspect_size = *pick(rng, &[ONE_NODE, 200]);
        self.limits.suspicion = *pick(rng, &[ms(1_000), ms(10_000), ms(60_000)]);
        self.limits.least_watch_batch = *pick(rng, &[1, 50, 100]);
        self.is_undisturbed = false;
    }

    /// In some runs threads form cohorts, and then there are more of them. With dice of their own: those of the other runs fall as before.
    fn form_cohorts(&mut self, dice: &mut Rng) {
        if !self.forms.contains(&Form::Mutex) || dice.u8(..3) != 0 {
            return;
        }
        self.max_passes = dice.u32(1..=3);
        for client in &mut self.clients {
            client.rounds.extend((0..dice.usize(..=4)).map(|_| dice.u32(1..=6)));
        }
    }
}

/// What the paths are. Many runs have only mutexes: what goes wrong with those, goes wrong most clearly there.
fn forms(rng: &mut Rng) -> (Vec<Form>, bool) {
    let any = |rng: &mut Rng| match rng.u8(..6) {
        0 => Form::Mutex,
        1 | 2 => Form::ReadWrite,
        3 => Form::SemaphoreMutex,
        4 => Form::Semaphore(rng.i32(1..=4)),
        _ => Form::Counted(rng.i32(1..=4)),
    };
    let form = match rng.u8(..16) {
        0..=6 => return (vec![Form::Mutex; rng.usize(1..=2)], false),
        7..=9 => Form::ReadWrite,
        10 => Form::SemaphoreMutex,
        11 | 12 => Form::Semaphore(rng.i32(1..=4)),
        13 => Form::Counted(rng.i32(1..=4)),
        _ => {
            let queue = |rng: &mut Rng| if rng.bool() { Form::Mutex } else { Form::ReadWrite };
            return ((0..rng.usize(3..=4)).map(|_| queue(rng)).collect(), true);
        }
    };
    let forms = (0..rng.usize(1..=2)).map(|_| if rng.u8(..8) == 0 { any(rng) } else { form });
    (forms.collect(), false)
}

/// What operators do that harms nobody.
fn operations(rng: &mut Rng, forms: &[Form]) -> Vec<Fault> {
    let mut operations = Vec::new();
    if rng.u8(..4) == 0 {
        let revoke = |rng: &mut Rng| Fault::Revoke { path: rng.usize(..), place: *pick(rng, &[0, 0, 1, 2]) };
        operations.extend((0..rng.usize(1..=6)).map(|_| revoke(rng)));
    }
    for (path, form) in forms.iter().enumerate() {
        if let Form::Counted(_) = form {
            let set = |rng: &mut Rng| Fault::SetCount { path, value: rng.i32(0..=5) };
            operations.extend((0..rng.usize(0..=6)).map(|_| set(rng)));
        }
    }
    operations
}

impl ClientPlan {
    fn new(rng: &mut Rng, busy: Duration, multis: bool) -> Self {
        Self {
            rounds: (0..threads(rng)).map(|_| rng.u32(1..=6)).collect(),
            handles: if multis { rng.usize(3..=4) } else { rng.usize(1..=3) },
            clock: Clock::new(rng),
            begins: busy.mul_f64(rng.f64() * rng.f64()),
            has_chroot: false,
        }
    }
}

impl Clock {
    fn new(rng: &mut Rng) -> Self {
        // Clocks of machines differ by some hundred millionths, if nobody sets them; those that a hypervisor slows down, by more.
        let drift = *pick(rng, &[0, 0, 500, -500, 20_000, -20_000]);
        Self { ahead: Duration::from_millis(rng.u64(0..1_000_000)), drift }
    }

    pub(crate) fn local(self, now: Time) -> Time {
        Time::from_nanos(scaled(now.as_nanos(), MILLION + self.drift, MILLION)) + self.ahead
    }

    /// When it shows this, and not before.
    pub(crate) fn global(self, local: Time) -> Time {
        let shown = (local - (Time::default() + self.ahead)).as_nanos();
        let shown = u64::try_from(shown).unwrap_or(u64::MAX);
        Time::from_nanos(scaled(shown, MILLION, MILLION + self.drift).saturating_add(1))
    }
}

const MILLION: i64 = 1_000_000;

fn scaled(nanos: u64, by: i64, of: i64) -> u64 {
    u64::try_from(i128::from(nanos) * i128::from(by) / i128::from(of)).unwrap_or(u64::MAX)
}

impl Fault {
    fn new(rng: &mut Rng, session_timeout: Duration) -> Self {
        let (client, server) = (rng.usize(..), rng.usize(..));
        let part = |rng: &mut Rng, most: f64| session_timeout.mul_f64(rng.f64() * most);
        match rng.u8(..18) {
            0 | 1 => Self::Cut { client },
            2 | 3 => {
                let (up, down) = *pick(rng, &[(true, true), (true, false), (false, true)]);
                let thaw = rng.bool().then(|| part(rng, 1.5));
                Self::BlackHole { client, up, down, thaw }
            }
            4 => Self::Unreachable { client, server: rng.bool().then_some(server), length: part(rng, 2.0) },
            5 | 6 => Self::Pause { client, length: part(rng, 2.5) },
            7 => Self::Kill { client, noticed: rng.bool() },
            8 => Self::Restart { server, length: part(rng, 1.0) },
            9 => Self::Isolate { server, notices: part(rng, 2.0), length: part(rng, 3.0) },
            10 => Self::IsolateLeader { notices: part(rng, 3.0), length: part(rng, 4.0) },
            11 => Self::Lag { server, lag: part(rng, 0.5), length: part(rng, 2.0) },
            12 => Self::Slow { latency: part(rng, 0.3), length: part(rng, 1.0) },
            13 => Self::Expire { client },
            14 => Self::Delete { path: client, place: *pick(rng, &[0, 0, 1, 2]) },
            15 => Self::NewSession { client },
            16 => Self::RestartServerOf { client, length: part(rng, 1.0) },
            _ => {
                use zklock::proto::OpCode as Op;
                let op = *pick(
                    rng,
                    &[
                        Op::Create2,
                        Op::Create2,
                        Op::Delete,
                        Op::GetChildren2,
                        Op::GetData,
                        Op::Multi,
                        Op::CreateContainer,
                    ],
                );
                Self::LoseReply { server, op }
            }
        }
    }
}

/// How many threads a program has. With many of them, more give up at once than may be on their way out.
fn threads(rng: &mut Rng) -> usize {
    if rng.u8(..32) == 0 { rng.usize(20..=40) } else { rng.usize(1..=3) }
}

/// Faults that hurt only together, and seldom come together by chance.
fn theme(rng: &mut Rng, session_timeout: Duration) -> Vec<(Duration, Fault)> {
    let client = rng.usize(..);
    let part = |rng: &mut Rng, least: f64, most: f64| session_timeout.mul_f64(least + rng.f64() * (most - least));
    match rng.u8(..8) {
        // A client comes back to a leader that was cut off.
        0 => {
            let length = session_timeout * 4;
            vec![
                (Duration::ZERO, Fault::Stick { client, length }),
                (Duration::ZERO, Fault::IsolateLeader { notices: session_timeout * 3, length }),
                (part(rng, 0.3, 1.5), Fault::Cut { client }),
            ]
        }
        // A process that stood still loses its server as soon as it goes on.
        1 => {
            let length = part(rng, 0.2, 0.9);
            let after = length + part(rng, 0.0, 0.1);
            vec![
                (Duration::ZERO, Fault::Pause { client, length }),
                (after, Fault::RestartServerOf { client, length: session_timeout }),
                (after, Fault::Unreachable { client, server: None, length: session_timeout }),
            ]
        }
        // A session is replaced while its nodes are still there.
        2 => vec![(Duration::ZERO, Fault::NewSession { client }), (ms(1), Fault::Cut { client })],
        // A node goes while its owner is away.
        3 => vec![
            (Duration::ZERO, Fault::Unreachable { client, server: None, length: session_timeout / 2 }),
            (part(rng, 0.0, 0.5), Fault::Delete { path: client, place: rng.usize(..3) }),
            (part(rng, 0.0, 0.5), Fault::Delete { path: client, place: 0 }),
        ],
        // A connection loses its server as soon as what stood still on it has arrived.
        4 | 5 => {
            let thaw = part(rng, 0.08, 0.5);
            let after = thaw + part(rng, 0.0, 0.1);
            vec![
                (Duration::ZERO, Fault::BlackHole { client, up: true, down: false, thaw: Some(thaw) }),
                (after, Fault::RestartServerOf { client, length: session_timeout }),
                (after, Fault::Unreachable { client, server: None, length: session_timeout }),
            ]
        }
        // Operators delete what is held, and nothing else is wrong.
        6 => (0..rng.usize(1..=4))
            .map(|_| (part(rng, 0.0, 2.0), Fault::Delete { path: rng.usize(..), place: 0 }))
            .collect(),
        _ => Vec::new(),
    }
}

pub(crate) fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[rng.usize(..from.len())]
}

pub(crate) const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}
