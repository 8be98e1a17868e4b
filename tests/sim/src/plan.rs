//! The plan of a run, generated from a seed: clients, servers, network delays, and the times of the faults.

use std::time::Duration;

use fastrand::Rng;
use zklock_core::limits::{DirectoryCacheLimits, Limits};
use zklock_core::time::Time;
use zklock_standalone::SaslFault;

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) servers: usize,
    pub(crate) clients: Vec<ClientPlan>,
    /// The recipe of each path.
    pub(crate) path_recipes: Vec<PathRecipe>,
    /// Whether clients use multi-locks.
    pub(crate) with_multi_locks: bool,
    /// Maximum number of local hand-overs of a mutex; 0 disables them.
    pub(crate) max_passes: u32,
    pub(crate) session_timeout: Duration,
    /// How often a follower reports touched sessions to its leader.
    pub(crate) touch_interval: Duration,
    pub(crate) latency: (Duration, Duration),
    pub(crate) lag: (Duration, Duration),
    pub(crate) sweep_interval: Duration,
    /// The servers do not support persistent watches, so the clients have no directory caches.
    pub(crate) is_old: bool,
    /// The root of all paths. Some clients have it as their chroot, the others put it in front of their paths.
    pub(crate) root: &'static str,
    /// Clients treat kazoo's locks as contenders of the same queue.
    pub(crate) with_kazoo: bool,
    /// Processes that acquire locks step by step.
    pub(crate) programs: Vec<ProgramPlan>,
    /// The thresholds of all clients.
    pub(crate) limits: Limits,
    /// No deposed leader answers requests in this run. A `sync` therefore shows all transactions that were ordered
    /// before it.
    pub(crate) syncs_are_sound: bool,
    /// Limit on the bytes of the paths of all nodes of one session; `None` for the default, which no run reaches.
    pub(crate) max_path_bytes: Option<usize>,
    /// The longest request that the servers accept, in bytes; `None` for the default, which no request reaches.
    pub(crate) frame_limit: Option<usize>,
    /// If set, the servers require SASL, and know this secret.
    pub(crate) sasl_secret: Option<u64>,
    pub(crate) faults: Vec<(Duration, Fault)>,
    /// When all faults end.
    pub(crate) faults_end: Duration,
    /// The run has no faults, although its servers may refuse long requests.
    pub(crate) is_undisturbed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathRecipe {
    Mutex,
    ReadWrite,
    SemaphoreMutex,
    /// A semaphore with this number of leases.
    Semaphore(i32),
    /// A semaphore whose number of leases is a count with this initial value.
    Counted(i32),
}

/// The recipe of a node of another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForeignRecipe {
    Kazoo,
    KazooReader,
    /// The C recipe of the ZooKeeper distribution.
    ZooKeeper,
    /// The other family of Curator's locks: a read/write lock in the directory of a mutex, or vice versa.
    OtherCurator,
    /// A node that takes no part in locking.
    None,
}

/// A process with one client.
#[derive(Debug)]
pub(crate) struct ClientPlan {
    /// For each thread, the number of its acquires.
    pub(crate) rounds: Vec<u32>,
    /// Number of its lock handles.
    pub(crate) handles: usize,
    pub(crate) clock: Clock,
    /// When the process starts, after the start of the run.
    pub(crate) start: Duration,
    pub(crate) has_chroot: bool,
}

/// A process that acquires locks step by step.
#[derive(Debug)]
pub(crate) struct ProgramPlan {
    /// The clients of the process.
    pub(crate) clients: Vec<usize>,
    /// For each task, its owner and its number of acquires. Several tasks may have the same owner.
    pub(crate) tasks: Vec<(u64, u32)>,
}

/// The clock of a process, which has an offset from the clock of the world and a different rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    offset: Duration,
    /// Additional nanoseconds that the clock shows for each million nanoseconds.
    drift: i64,
}

/// A fault. The numbers that select a client, a server or a path are taken modulo their count.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// A client's connection is reset.
    Cut { client: usize },
    /// A client's present or next connection breaks after a number of frames in one direction.
    Break { client: usize, frames: usize, is_reply: bool, is_next: bool },
    /// A client's connection delivers nothing in one or both directions. The messages may arrive later.
    BlackHole { client: usize, up: bool, down: bool, thaw: Option<Duration> },
    /// A client cannot reach one server, or any server.
    Unreachable { client: usize, server: Option<usize>, length: Duration },
    /// A process is suspended.
    Pause { client: usize, length: Duration },
    /// A process is killed. The server notices the end of its connection, or does not.
    Kill { client: usize, noticed: bool },
    /// A server stops and starts again.
    Restart { server: usize, length: Duration },
    /// A server is isolated from the others, and notices it some time later.
    Isolate { server: usize, notices: Duration, length: Duration },
    /// The process of a server, or of the leader, is suspended.
    PauseServer { server: Option<usize>, length: Duration },
    /// The leader's transactions are not committed any more. After some time the leader stops, and these transactions
    /// are lost.
    BlockCommits { stops: Duration, length: Duration },
    /// An operator deletes the directories of a lock, or of all locks, with all nodes in them.
    RemoveDirectory { path: Option<usize> },
    /// Another program creates a node of another recipe in a lock's directory, and deletes it some time later.
    Foreign { path: usize, recipe: ForeignRecipe, length: Duration },
    /// An operator restricts the permissions of the directories of a lock for some time.
    Forbid { path: usize, perms: i32, length: Duration },
    /// The leader is isolated from the other servers, and notices it some time later.
    IsolateLeader { notices: Duration, length: Duration },
    /// A server lags.
    Lag { server: usize, lag: Duration, length: Duration },
    /// The network is slow for all clients.
    Slow { latency: Duration, length: Duration },
    /// An operator ends a client's session.
    Expire { client: usize },
    /// An operator deletes a lock node, selected by its position in the queue.
    Delete { path: usize, place: usize },
    /// An operator requests the revocation of a lock node.
    Revoke { path: usize, place: usize },
    /// An operator changes the number of leases.
    SetCount { path: usize, value: i32 },
    /// A client can reach only the server that it is connected to.
    PinToServer { client: usize, length: Duration },
    /// The server that a client is connected to stops and starts again.
    RestartServerOf { client: usize, length: Duration },
    /// A client's next handshake gets a new session, although the old one still exists, as with ClickHouse Keeper.
    NewSession { client: usize },
    /// The program replaces the server list of a client. Each bit of `servers` stands for one server. If no bit of an
    /// existing server is set, the list contains all servers.
    SetServers { client: usize, servers: usize },
    /// The next exchange of SASL tokens with a server fails.
    Sasl { server: usize, fault: SaslFault },
    /// The reply to a request of this type is lost, together with its connection.
    LoseReply { server: usize, op: zklock_proto::OpCode },
}

impl Plan {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let servers = if rng.u8(..4) == 0 { 1 } else { 3 };
        let session_timeout = Duration::from_millis(*pick(rng, &[2_000, 4_000, 6_000, 10_000]));
        let busy = Duration::from_millis(rng.u64(2_000..20_000));
        let latency = *pick(rng, &[(0, 1), (0, 5), (1, 20), (5, 60), (0, 200)]);
        let lag = *pick(rng, &[(0, 1), (0, 5), (1, 50), (0, 300)]);
        let (path_recipes, with_multi_locks) = recipes(rng);
        let clients = (0..rng.usize(2..=4)).map(|_| ClientPlan::new(rng, busy, with_multi_locks)).collect();
        let mut plan = Self {
            servers,
            clients,
            path_recipes,
            with_multi_locks,
            max_passes: 0,
            session_timeout,
            touch_interval: session_timeout / *pick(rng, &[4, 8, 20]),
            latency: (ms(latency.0), ms(latency.1)),
            lag: (ms(lag.0), ms(lag.1)),
            sweep_interval: ms(*pick(rng, &[100, 1_000, 60_000])),
            is_old: false,
            root: "",
            with_kazoo: false,
            programs: Vec::new(),
            limits: Limits::default(),
            syncs_are_sound: true,
            max_path_bytes: None,
            frame_limit: None,
            sasl_secret: None,
            faults: Vec::new(),
            faults_end: busy,
            is_undisturbed: false,
        };
        let count = *pick(rng, &[0, 1, 1, 2, 3, 5, 8, 12]);
        for _ in 0..count {
            let at = busy.mul_f64(rng.f64());
            let fault = Fault::new(rng, session_timeout);
            plan.faults.push((at, fault));
        }
        let at = busy.mul_f64(rng.f64());
        plan.faults.extend(combined_faults(rng, session_timeout).into_iter().map(|(after, fault)| (at + after, fault)));
        plan.is_undisturbed = plan.faults.is_empty() && (plan.latency.1 + plan.lag.1) * 40 < session_timeout;
        let operations = operator_actions(rng, &plan.path_recipes);
        plan.faults.extend(operations.into_iter().map(|operation| (busy.mul_f64(rng.f64()), operation)));
        plan.add_cohorts(&mut rng.clone());
        let seed = rng.clone().u64(..);
        plan.is_old = seed.is_multiple_of(2);
        plan.limit_paths(&mut rng.clone());
        // Each part of the plan has its own random number generator, so that a new part does not change the others.
        let part_rng = |part: u64| Rng::with_seed(seed.rotate_left(17) ^ part);
        plan.limits = limits(&mut part_rng(1));
        let breaks = breaks(&mut part_rng(2), busy);
        plan.add_faults(breaks);
        let pauses = pauses(&mut part_rng(3), busy, session_timeout);
        plan.add_faults(pauses);
        let removals = removals(&mut part_rng(4), busy);
        plan.add_faults(removals);
        let foreign_nodes = foreign_nodes(&mut part_rng(7), busy, session_timeout);
        plan.add_faults(foreign_nodes);
        plan.with_kazoo = part_rng(8).bool();
        let permission_removals = permission_removals(&mut part_rng(9), busy, session_timeout);
        plan.add_faults(permission_removals);
        plan.root = if part_rng(5).u8(..4) == 0 { "/app" } else { "" };
        for (client, own) in plan.clients.iter_mut().enumerate() {
            own.has_chroot = part_rng(6 + client as u64).bool();
        }
        let isolates = |fault: &Fault| {
            matches!(fault, Fault::Isolate { .. } | Fault::IsolateLeader { .. } | Fault::BlockCommits { .. })
        };
        plan.syncs_are_sound = !plan.faults.iter().any(|(_, fault)| isolates(fault));
        plan.add_programs(&mut part_rng(100), busy);
        plan.limit_frames(&mut part_rng(11));
        let lists = server_lists(&mut part_rng(12), busy);
        plan.faults.extend(lists);
        plan.add_sasl(&mut part_rng(13), busy);
        plan
    }

    /// Returns whether SASL can fail in this run, so that calls fail with AUTH.
    pub(crate) fn refuses_sasl(&self) -> bool {
        let refuses = |fault: &Fault| matches!(fault, Fault::Sasl { fault, .. } if *fault != SaslFault::Ignore);
        self.faults.iter().any(|(_, fault)| refuses(fault))
    }

    /// Adds faults to the run.
    fn add_faults(&mut self, faults: Vec<(Duration, Fault)>) {
        self.is_undisturbed &= faults.is_empty();
        self.faults.extend(faults);
    }
}

/// Chooses the thresholds of the clients. Two of three runs have other values than the default, so that a few clients
/// reach every branch.
fn limits(rng: &mut Rng) -> Limits {
    if rng.u8(..3) == 0 {
        return Limits::default();
    }
    let max_clients_to_start = *pick(rng, &[8, 1, 2, 3]);
    Limits {
        watch_batch: *pick(rng, &[128 * 1024, 1, 100, 250, 500]),
        sound_connection: ms(*pick(rng, &[1_000, 0, 100, 3_000])),
        max_leaving: *pick(rng, &[16, 16, 1, 2, 4]),
        first_retry: ms(*pick(rng, &[250, 10])),
        last_retry: ms(*pick(rng, &[30_000, 500])),
        first_deadlock_check: ms(*pick(rng, &[250, 20])),
        longest_deadlock_check: ms(*pick(rng, &[8_000, 2_000])),
        longest_pause_after_deadlocks: Limits::default().longest_pause_after_deadlocks,
        deadlock_recheck: ms(*pick(rng, &[100, 5])),
        max_ahead_for_deadlock_check: *pick(rng, &[16, 1, 3]),
        directory_cache: DirectoryCacheLimits {
            quick_succession: ms(*pick(rng, &[250, 20, 2_000])),
            joins_to_start: *pick(rng, &[3, 1, 2]),
            contenders_to_start: *pick(rng, &[2, 1, 3]),
            idle_time: ms(*pick(rng, &[1_000, 50, 2_000])),
            max_clients_to_start,
            max_clients: max_clients_to_start + *pick(rng, &[4, 0, 1]),
            max_foreign_changes: *pick(rng, &[256, 2, 8]),
            max_caches: *pick(rng, &[128, 1, 2]),
            max_memory: DirectoryCacheLimits::default().max_memory,
            max_unshared_uses: *pick(rng, &[32, 1, 3]),
            busy_pause: ms(*pick(rng, &[5_000, 100])),
            error_pause: ms(*pick(rng, &[30_000, 500])),
            read_delay: ms(*pick(rng, &[100, 5])),
            max_failed_starts: *pick(rng, &[3, 1]),
            remembered_directories: *pick(rng, &[1_024, 1, 2]),
        },
        ..Limits::default()
    }
}

/// Plans, for some runs, that servers are suspended or that a leader loses its transactions. A leader is suspended for
/// at most a twelfth of the session timeout, which is the time that a lease allows for late pings (decision 4).
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
        faults.push((at(rng), Fault::BlockCommits { stops, length }));
        if rng.bool() {
            faults.push((at(rng), Fault::Cut { client: rng.usize(..) }));
        }
    }
    faults
}

/// Plans, for some runs, that operators delete directories.
fn removals(rng: &mut Rng, busy: Duration) -> Vec<(Duration, Fault)> {
    if rng.u8(..8) != 0 {
        return Vec::new();
    }
    let removal = |rng: &mut Rng| Fault::RemoveDirectory { path: (rng.u8(..4) > 0).then(|| rng.usize(..)) };
    (0..rng.usize(1..=3)).map(|_| (busy.mul_f64(rng.f64()), removal(rng))).collect()
}

/// Plans, for some runs, that programs with other recipes create nodes in the same directories.
fn foreign_nodes(rng: &mut Rng, busy: Duration, session_timeout: Duration) -> Vec<(Duration, Fault)> {
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

/// Plans, for some runs, that operators remove the permission to delete or to create nodes.
fn permission_removals(rng: &mut Rng, busy: Duration, session_timeout: Duration) -> Vec<(Duration, Fault)> {
    if rng.u8(..10) != 0 {
        return Vec::new();
    }
    let mut refusal = || {
        // All permissions without delete, without create, or without both.
        let (at, path, perms) = (busy.mul_f64(rng.f64()), rng.usize(..), *pick(rng, &[23, 23, 27, 19]));
        (at, Fault::Forbid { path, perms, length: session_timeout.mul_f64(rng.f64() * 2.0) })
    };
    (0..2).map(|_| refusal()).collect()
}

/// Plans, for a quarter of the runs, that programs replace the server lists of their clients. Half of these runs have
/// many changes.
fn server_lists(rng: &mut Rng, busy: Duration) -> Vec<(Duration, Fault)> {
    if rng.u8(..4) != 0 {
        return Vec::new();
    }
    let count = if rng.bool() { rng.usize(1..=4) } else { rng.usize(10..=40) };
    let mut change = || (busy.mul_f64(rng.f64()), Fault::SetServers { client: rng.usize(..), servers: rng.usize(..8) });
    (0..count).map(|_| change()).collect()
}

/// Plans, for a quarter of the runs, that connections break after some frames, counted from the fault or from the next
/// handshake.
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

/// Upper bound of the size of a request for one node, in bytes.
pub(crate) const MAX_ONE_NODE_REQUEST_BYTES: usize = 180;

impl Plan {
    /// Sets, for some runs, a path limit that allows only a few nodes in a session. The method has its own random
    /// number generator.
    fn limit_paths(&mut self, rng: &mut Rng) {
        let first = rng.u64(..);
        if (first / 2).is_multiple_of(6) {
            self.max_path_bytes = Some(rng.usize(64..600));
        }
    }

    /// Sets, for some runs, a short frame limit: servers accept requests for one node, but not all requests for several
    /// nodes. As with real limits, clients never suspect a request for one node, and can restore a watch on one node.
    fn limit_frames(&mut self, rng: &mut Rng) {
        if rng.u8(..8) != 0 {
            return;
        }
        self.frame_limit = Some(*pick(rng, &[200, 300, 400, 600]));
        self.limits.suspect_size = *pick(rng, &[MAX_ONE_NODE_REQUEST_BYTES, 200]);
        // A session ends after a gap of one session timeout, so two losses of the same request are closer together than
        // that.
        self.limits.least_watch_batch = *pick(rng, &[1, 50, 100]);
        // In half of these runs nothing else goes wrong, so that the effect of a long request on other operations
        // becomes visible.
        self.is_undisturbed = rng.bool() && (self.latency.1 + self.lag.1) * 40 < self.session_timeout;
        if self.is_undisturbed {
            self.faults.clear();
            // Watches are restored in requests that no server refuses.
            self.limits.watch_batch = self.limits.least_watch_batch;
        }
    }

    /// Lets the servers of a quarter of the runs require SASL, and lets some exchanges of tokens fail.
    fn add_sasl(&mut self, rng: &mut Rng, busy: Duration) {
        if rng.u8(..4) != 0 {
            return;
        }
        self.sasl_secret = Some(rng.u64(..));
        let mut faults = Vec::new();
        for _ in 0..*pick(rng, &[0, 0, 1, 2, 4]) {
            let (at, server) = (busy.mul_f64(rng.f64()), rng.usize(..));
            let fault = match rng.u8(..5) {
                0 => Fault::Sasl { server, fault: SaslFault::Refuse },
                1 => Fault::Sasl { server, fault: SaslFault::Ignore },
                2 => Fault::Sasl { server, fault: SaslFault::WrongProof },
                3 => Fault::Sasl { server, fault: SaslFault::NoProof },
                _ => Fault::LoseReply { server, op: zklock_proto::OpCode::Sasl },
            };
            faults.extend([(at, fault), (at, Fault::Cut { client: rng.usize(..) })]);
        }
        self.add_faults(faults);
    }

    /// Adds cohorts of threads to some runs, and more threads to their clients. The method has its own random number
    /// generator, so other runs do not change.
    fn add_cohorts(&mut self, rng: &mut Rng) {
        if !self.path_recipes.contains(&PathRecipe::Mutex) || rng.u8(..3) != 0 {
            return;
        }
        self.max_passes = rng.u32(1..=3);
        for client in &mut self.clients {
            client.rounds.extend((0..rng.usize(..=4)).map(|_| rng.u32(1..=6)));
        }
    }

    /// Adds programs to a quarter of the runs, and enough locks for them.
    fn add_programs(&mut self, rng: &mut Rng, busy: Duration) {
        if rng.u8(..4) != 0 {
            return;
        }
        while self.lockable_paths().len() < 2 && self.path_recipes.len() < 4 {
            self.path_recipes.push(*pick(
                rng,
                &[PathRecipe::Mutex, PathRecipe::Mutex, PathRecipe::ReadWrite, PathRecipe::SemaphoreMutex],
            ));
        }
        let mut clients: Vec<usize> = (0..self.clients.len()).collect();
        rng.shuffle(&mut clients);
        for _ in 0..rng.usize(1..=2) {
            let own: Vec<usize> = clients.split_off(clients.len().saturating_sub(rng.usize(1..=2)));
            let Some(&first) = own.first() else { break };
            // The clients of one process have the same clock.
            for &other in &own {
                self.clients[other].clock = self.clients[first].clock;
                self.clients[other].start = self.clients[first].start;
            }
            let owners = rng.u64(1..=3);
            let tasks = (0..rng.u64(1..=3)).map(|task| (task % owners, rng.u32(1..=4))).collect();
            self.programs.push(ProgramPlan { clients: own, tasks });
        }
        let fault = |rng: &mut Rng| match rng.u8(..3) {
            0 => Fault::Expire { client: rng.usize(..) },
            1 => Fault::Delete { path: rng.usize(..), place: 0 },
            _ => Fault::Unreachable { client: rng.usize(..), server: None, length: self.session_timeout.mul_f64(2.0) },
        };
        let faults = (0..rng.usize(0..=3)).map(|_| (busy.mul_f64(rng.f64()), fault(rng))).collect();
        self.add_faults(faults);
    }

    /// Returns the paths whose locks can be members of a multi-lock.
    pub(crate) fn lockable_paths(&self) -> Vec<usize> {
        let is_lock = |path_recipe: &PathRecipe| {
            matches!(path_recipe, PathRecipe::Mutex | PathRecipe::ReadWrite | PathRecipe::SemaphoreMutex)
        };
        (0..self.path_recipes.len()).filter(|&path| is_lock(&self.path_recipes[path])).collect()
    }
}

/// Chooses the recipes of the paths. Many runs have only mutexes, because errors are easiest to understand there.
fn recipes(rng: &mut Rng) -> (Vec<PathRecipe>, bool) {
    let any = |rng: &mut Rng| match rng.u8(..6) {
        0 => PathRecipe::Mutex,
        1 | 2 => PathRecipe::ReadWrite,
        3 => PathRecipe::SemaphoreMutex,
        4 => PathRecipe::Semaphore(rng.i32(1..=4)),
        _ => PathRecipe::Counted(rng.i32(1..=4)),
    };
    let path_recipe = match rng.u8(..16) {
        0..=6 => return (vec![PathRecipe::Mutex; rng.usize(1..=2)], false),
        7..=9 => PathRecipe::ReadWrite,
        10 => PathRecipe::SemaphoreMutex,
        11 | 12 => PathRecipe::Semaphore(rng.i32(1..=4)),
        13 => PathRecipe::Counted(rng.i32(1..=4)),
        _ => {
            let queue = |rng: &mut Rng| if rng.bool() { PathRecipe::Mutex } else { PathRecipe::ReadWrite };
            return ((0..rng.usize(3..=4)).map(|_| queue(rng)).collect(), true);
        }
    };
    let path_recipes = (0..rng.usize(1..=2)).map(|_| if rng.u8(..8) == 0 { any(rng) } else { path_recipe });
    (path_recipes.collect(), false)
}

/// Chooses harmless actions of operators.
fn operator_actions(rng: &mut Rng, path_recipes: &[PathRecipe]) -> Vec<Fault> {
    let mut operations = Vec::new();
    if rng.u8(..4) == 0 {
        let revoke = |rng: &mut Rng| Fault::Revoke { path: rng.usize(..), place: *pick(rng, &[0, 0, 1, 2]) };
        operations.extend((0..rng.usize(1..=6)).map(|_| revoke(rng)));
    }
    for (path, path_recipe) in path_recipes.iter().enumerate() {
        if let PathRecipe::Counted(_) = path_recipe {
            let set = |rng: &mut Rng| Fault::SetCount { path, value: rng.i32(0..=5) };
            operations.extend((0..rng.usize(0..=6)).map(|_| set(rng)));
        }
    }
    operations
}

impl ClientPlan {
    fn new(rng: &mut Rng, busy: Duration, with_multi_locks: bool) -> Self {
        Self {
            rounds: (0..threads(rng)).map(|_| rng.u32(1..=6)).collect(),
            handles: if with_multi_locks { rng.usize(3..=4) } else { rng.usize(1..=3) },
            clock: Clock::new(rng),
            start: busy.mul_f64(rng.f64() * rng.f64()),
            has_chroot: false,
        }
    }
}

impl Clock {
    fn new(rng: &mut Rng) -> Self {
        // The rates of unsynchronized machine clocks differ by a few hundred parts per million. Virtual machines may
        // differ more.
        let drift = *pick(rng, &[0, 0, 500, -500, 20_000, -20_000]);
        Self { offset: Duration::from_millis(rng.u64(0..1_000_000)), drift }
    }

    pub(crate) fn local(self, now: Time) -> Time {
        Time::from_nanos(scaled(now.as_nanos(), MILLION + self.drift, MILLION)) + self.offset
    }

    /// Returns the first time at which the clock shows `local`.
    pub(crate) fn global(self, local: Time) -> Time {
        let shown = (local - (Time::default() + self.offset)).as_nanos();
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
                use zklock_proto::OpCode as Op;
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

/// Chooses the number of threads. In some runs the number is so large that more contenders leave at once than the
/// admission limit allows.
fn threads(rng: &mut Rng) -> usize {
    if rng.u8(..32) == 0 { rng.usize(20..=40) } else { rng.usize(1..=3) }
}

/// Chooses combinations of faults that rarely occur together by chance.
fn combined_faults(rng: &mut Rng, session_timeout: Duration) -> Vec<(Duration, Fault)> {
    let client = rng.usize(..);
    let part = |rng: &mut Rng, least: f64, most: f64| session_timeout.mul_f64(least + rng.f64() * (most - least));
    match rng.u8(..8) {
        // A client returns to an isolated leader.
        0 => {
            let length = session_timeout * 4;
            vec![
                (Duration::ZERO, Fault::PinToServer { client, length }),
                (Duration::ZERO, Fault::IsolateLeader { notices: session_timeout * 3, length }),
                (part(rng, 0.3, 1.5), Fault::Cut { client }),
            ]
        }
        // A suspended process loses its server as soon as it continues.
        1 => {
            let length = part(rng, 0.2, 0.9);
            let after = length + part(rng, 0.0, 0.1);
            vec![
                (Duration::ZERO, Fault::Pause { client, length }),
                (after, Fault::RestartServerOf { client, length: session_timeout }),
                (after, Fault::Unreachable { client, server: None, length: session_timeout }),
            ]
        }
        // A session is replaced while its nodes still exist.
        2 => vec![(Duration::ZERO, Fault::NewSession { client }), (ms(1), Fault::Cut { client })],
        // A node is deleted while its owner is disconnected.
        3 => vec![
            (Duration::ZERO, Fault::Unreachable { client, server: None, length: session_timeout / 2 }),
            (part(rng, 0.0, 0.5), Fault::Delete { path: client, place: rng.usize(..3) }),
            (part(rng, 0.0, 0.5), Fault::Delete { path: client, place: 0 }),
        ],
        // A connection loses its server as soon as the delayed messages have arrived.
        4 | 5 => {
            let thaw = part(rng, 0.08, 0.5);
            let after = thaw + part(rng, 0.0, 0.1);
            vec![
                (Duration::ZERO, Fault::BlackHole { client, up: true, down: false, thaw: Some(thaw) }),
                (after, Fault::RestartServerOf { client, length: session_timeout }),
                (after, Fault::Unreachable { client, server: None, length: session_timeout }),
            ]
        }
        // Operators delete held nodes, and there are no other faults.
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
