//! The nemesis: it injects faults. It has three independent schedules, one for the servers and two for the programs and
//! their connections. Each schedule injects one fault after the other, in random order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use fastrand::Rng;
use zklock_test_support::Ensemble;

use crate::operator::Operator;
use crate::programs::Program;

const MS: Duration = Duration::from_millis(1);

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The leader is killed with SIGKILL and restarted.
    LeaderKilled,
    /// A follower is killed with SIGKILL and restarted.
    FollowerKilled,
    /// Two servers are killed at the same time, so that the ensemble has no quorum.
    QuorumKilled,
    /// The servers are restarted one after the other, the leader last.
    RollingRestart,
    /// The leader is paused until another one is elected.
    LeaderStopped,
    /// A follower is paused.
    FollowerStopped,
    /// The leader is isolated from the other servers. No connection is closed, and clients still reach it.
    LeaderIsolated,
    /// The network link of the leader is down. No connection is closed.
    LeaderUnplugged,
    /// The network link of a follower is down. No connection is closed.
    FollowerUnplugged,
    /// Two programs are paused for twice the session timeout.
    ProgramPausedLong,
    /// A program is paused for less than the session timeout.
    ProgramPausedShort,
    /// A program is killed with SIGKILL, and another one replaces it.
    ProgramKilled,
    /// The machine of a program is suspended: its clocks jump forward by twice the session timeout.
    MachineSuspended,
    /// The CLOCK_REALTIME of a program jumps forward and backward.
    WallClockJump,
    /// The connections of a program are reset.
    Reset,
    /// The connections of a program are swallowed for less than the session timeout.
    BlackHoleShort,
    /// The connections of a program are swallowed for more than the session timeout.
    BlackHoleLong,
    /// The reply to a transaction is lost, and the connection is reset.
    LostReply,
    /// All transfer on the connections of a program is delayed.
    Delay,
    /// No server accepts the connections of a program.
    Refused,
    /// A program replaces its server list, and soon afterwards returns to the complete list.
    ServersReplaced,
    /// The session of a program is closed from outside.
    SessionClosed,
    /// An operator deletes the node of a lock.
    NodeDeleted,
}

impl Fault {
    /// The faults of servers that are possible on loopback.
    pub const SERVERS: [Self; 7] = [
        Self::LeaderKilled,
        Self::FollowerKilled,
        Self::QuorumKilled,
        Self::RollingRestart,
        Self::LeaderStopped,
        Self::FollowerStopped,
        Self::LeaderIsolated,
    ];
    /// The faults that need a network.
    pub const NETWORK_FAULTS: [Self; 2] = [Self::LeaderUnplugged, Self::FollowerUnplugged];
    /// The faults of programs, their connections, their sessions and their nodes.
    pub const PROGRAMS: [Self; 14] = [
        Self::ProgramPausedLong,
        Self::ProgramPausedShort,
        Self::ProgramKilled,
        Self::MachineSuspended,
        Self::WallClockJump,
        Self::Reset,
        Self::BlackHoleShort,
        Self::BlackHoleLong,
        Self::LostReply,
        Self::Delay,
        Self::Refused,
        Self::ServersReplaced,
        Self::SessionClosed,
        Self::NodeDeleted,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeaderKilled => "leader killed",
            Self::FollowerKilled => "follower killed",
            Self::QuorumKilled => "two servers killed",
            Self::RollingRestart => "rolling restart",
            Self::LeaderStopped => "leader stopped",
            Self::FollowerStopped => "follower stopped",
            Self::LeaderIsolated => "leader cut off from servers",
            Self::LeaderUnplugged => "leader unplugged",
            Self::FollowerUnplugged => "follower unplugged",
            Self::ProgramPausedLong => "program stopped for long",
            Self::ProgramPausedShort => "program stopped for short",
            Self::ProgramKilled => "program killed",
            Self::MachineSuspended => "machine suspended",
            Self::WallClockJump => "wall clock jumped",
            Self::Reset => "connections reset",
            Self::BlackHoleShort => "black hole, short",
            Self::BlackHoleLong => "black hole, long",
            Self::LostReply => "reply lost",
            Self::Delay => "delay",
            Self::Refused => "connections refused",
            Self::ServersReplaced => "server list replaced",
            Self::SessionClosed => "session closed from outside",
            Self::NodeDeleted => "node deleted by an operator",
        })
    }
}

/// The objects that the nemesis acts on.
pub struct FaultTargets<'a> {
    /// The servers.
    pub ensemble: &'a Ensemble,
    /// The programs, including those that were killed.
    pub programs: &'a mut Vec<Program>,
    /// The directories of the lock nodes.
    pub queues: &'a [String],
    /// The session timeout of the programs.
    pub session_timeout: Duration,
    /// The sessions that the nemesis closed or tried to close.
    pub closed: &'a mut BTreeSet<i64>,
}

/// The schedules of faults.
pub struct Nemesis {
    rng: Rng,
    schedules: [FaultSchedule; 3],
    /// The number of times that each fault was injected and ended.
    pub completed: BTreeMap<Fault, usize>,
    /// One line for each fault.
    pub log: Vec<String>,
}

struct FaultSchedule {
    kinds: Vec<Fault>,
    /// The remaining faults of this round.
    remaining: Vec<Fault>,
    is_begun: bool,
    /// The number of completed rounds.
    rounds: usize,
    running: Option<(Fault, Recovery)>,
    /// The time of the next step.
    due: Instant,
}

/// The action that ends a fault.
enum Recovery {
    None,
    RestartServers(Vec<usize>),
    /// The servers that still have to be restarted.
    ContinueRollingRestart(Vec<usize>),
    ResumeServer(usize),
    EndIsolation(usize),
    LinkUp(usize),
    ResumePrograms(Vec<usize>),
    EndBlackHole(usize),
    EndDelay(usize),
    AcceptConnections(usize),
    ResetWallClock(usize),
    DisarmReplyLoss(usize),
    UseAllServers(usize),
}

impl Nemesis {
    /// Creates a nemesis with these faults.
    pub fn new(seed: u64, faults: &[Fault]) -> Self {
        let is_servers = |fault: &&Fault| Fault::SERVERS.contains(fault) || Fault::NETWORK_FAULTS.contains(fault);
        let (servers, programs): (Vec<Fault>, Vec<Fault>) = faults.iter().partition(|fault| is_servers(fault));
        let lane = |kinds| FaultSchedule {
            kinds,
            remaining: Vec::new(),
            is_begun: false,
            rounds: 0,
            running: None,
            due: Instant::now(),
        };
        Self {
            rng: Rng::with_seed(seed),
            schedules: [lane(servers), lane(programs.clone()), lane(programs)],
            completed: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    /// Whether every fault has been injected at least once.
    pub fn has_completed_all(&self) -> bool {
        self.schedules.iter().all(|lane| lane.kinds.is_empty() || lane.rounds > 0)
    }

    /// Starts and ends the faults that are due.
    pub fn step(&mut self, targets: &mut FaultTargets<'_>) {
        for index in 0..self.schedules.len() {
            if self.schedules[index].due > Instant::now() {
                continue;
            }
            let pause = match self.schedules[index].running.take() {
                Some((fault, recovery)) => self.continue_or_end(index, fault, recovery, targets),
                None => self.begin_next(index, targets),
            };
            self.schedules[index].due = Instant::now() + pause;
        }
    }

    /// Ends all running faults. Returns false if a fault needs more time to end.
    pub fn recover(&mut self, targets: &mut FaultTargets<'_>) -> bool {
        for index in 0..self.schedules.len() {
            if let Some((fault, recovery)) = self.schedules[index].running.take() {
                self.continue_or_end(index, fault, recovery, targets);
            }
        }
        self.schedules.iter().all(|lane| lane.running.is_none())
    }

    /// Ends a fault or a part of it. Returns the pause before the next step.
    fn continue_or_end(
        &mut self,
        lane: usize,
        fault: Fault,
        recovery: Recovery,
        targets: &mut FaultTargets<'_>,
    ) -> Duration {
        if let Recovery::ContinueRollingRestart(mut left) = recovery {
            if !targets.ensemble.is_serving() {
                self.schedules[lane].running = Some((fault, Recovery::ContinueRollingRestart(left)));
                return 50 * MS;
            }
            if let Some(server) = left.pop() {
                targets.ensemble.servers()[server].stop();
                targets.ensemble.relaunch(server);
                self.schedules[lane].running = Some((fault, Recovery::ContinueRollingRestart(left)));
                return 300 * MS;
            }
        } else {
            recover_from(recovery, targets);
        }
        self.log.push(format!("{} end {fault}", crate::clock::now()));
        *self.completed.entry(fault).or_default() += 1;
        self.rng.u32(100..700) * MS
    }

    fn begin_next(&mut self, lane: usize, targets: &mut FaultTargets<'_>) -> Duration {
        let is_servers = lane == 0;
        // An ensemble of three servers tolerates only one fault at a time.
        if is_servers && !targets.ensemble.is_serving() {
            return 50 * MS;
        }
        let Some(fault) = self.next_fault(lane) else { return Duration::from_secs(1) };
        match self.begin(fault, targets) {
            Some((recovery, length)) => {
                self.log.push(format!("{} begin {fault}", crate::clock::now()));
                self.schedules[lane].running = Some((fault, recovery));
                length
            }
            // The fault found no suitable target. It is tried again later.
            None => {
                self.schedules[lane].remaining.insert(0, fault);
                100 * MS
            }
        }
    }

    fn next_fault(&mut self, lane: usize) -> Option<Fault> {
        let FaultSchedule { kinds, remaining, is_begun, rounds, .. } = &mut self.schedules[lane];
        if let Some(fault) = remaining.pop() {
            return Some(fault);
        }
        *rounds += usize::from(*is_begun);
        *is_begun = true;
        remaining.clone_from(kinds);
        self.rng.shuffle(remaining);
        remaining.pop()
    }

    /// Injects a fault. Returns the action that ends it, and its duration.
    fn begin(&mut self, fault: Fault, targets: &mut FaultTargets<'_>) -> Option<(Recovery, Duration)> {
        let timeout = targets.session_timeout;
        let servers = targets.ensemble.servers();
        match fault {
            Fault::LeaderKilled | Fault::FollowerKilled => {
                let server = self.server(fault == Fault::LeaderKilled, targets)?;
                servers[server].stop();
                Some((Recovery::RestartServers(vec![server]), self.rng.u32(300..2500) * MS))
            }
            Fault::QuorumKilled => {
                let spared = self.rng.usize(..servers.len());
                let killed: Vec<usize> = (0..servers.len()).filter(|&server| server != spared).collect();
                killed.iter().for_each(|&server| servers[server].stop());
                Some((Recovery::RestartServers(killed), self.rng.u32(300..3000) * MS))
            }
            Fault::RollingRestart => {
                let leader = targets.ensemble.find_leader()?;
                let followers = (0..servers.len()).filter(|&server| server != leader);
                Some((
                    Recovery::ContinueRollingRestart([leader].into_iter().chain(followers).collect()),
                    Duration::ZERO,
                ))
            }
            Fault::LeaderStopped | Fault::FollowerStopped => {
                let server = self.server(fault == Fault::LeaderStopped, targets)?;
                servers[server].pause();
                Some((Recovery::ResumeServer(server), self.outage_length(fault == Fault::LeaderStopped)))
            }
            Fault::LeaderIsolated => {
                let server = self.server(true, targets)?;
                targets.ensemble.isolate(server);
                Some((Recovery::EndIsolation(server), self.outage_length(true)))
            }
            Fault::LeaderUnplugged | Fault::FollowerUnplugged => {
                let server = self.server(fault == Fault::LeaderUnplugged, targets)?;
                targets.ensemble.set_link_down(server, true);
                Some((Recovery::LinkUp(server), self.outage_length(fault == Fault::LeaderUnplugged)))
            }
            Fault::ProgramPausedLong => {
                let holder = self.with_random_holder(targets, Program::pause_while_holding)?;
                let other = self.program(targets, false).filter(|&other| other != holder);
                other.iter().for_each(|&program| targets.programs[program].pause());
                let stopped = [holder].into_iter().chain(other).collect();
                Some((Recovery::ResumePrograms(stopped), 2 * timeout + 100 * MS))
            }
            Fault::ProgramPausedShort => {
                let program = self.program(targets, false)?;
                targets.programs[program].pause();
                Some((Recovery::ResumePrograms(vec![program]), timeout.mul_f64(0.1 + 0.8 * self.rng.f64())))
            }
            Fault::ProgramKilled => {
                let program = self.program(targets, false)?;
                targets.programs[program].kill();
                Some((Recovery::None, Duration::ZERO))
            }
            Fault::MachineSuspended => {
                let nanos = i64::try_from((2 * timeout).as_nanos()).unwrap_or(i64::MAX);
                self.with_random_holder(targets, |program| program.suspend_while_holding(nanos))?;
                Some((Recovery::None, Duration::ZERO))
            }
            Fault::WallClockJump => {
                let program = self.program(targets, false)?;
                let hours = self.rng.i64(-100..100);
                targets.programs[program].set_wall_clock(hours * 3600 * 1_000_000_000);
                Some((Recovery::ResetWallClock(program), timeout / 2))
            }
            Fault::Reset => {
                let program = self.program(targets, true)?;
                targets.programs[program].reset_connections();
                Some((Recovery::None, Duration::ZERO))
            }
            Fault::BlackHoleShort | Fault::BlackHoleLong => {
                let program = self.program(targets, true)?;
                targets.programs[program].black_hole(true);
                let part = if fault == Fault::BlackHoleShort { 0.1 + 0.6 * self.rng.f64() } else { 1.3 };
                Some((Recovery::EndBlackHole(program), timeout.mul_f64(part)))
            }
            Fault::LostReply => {
                let program = self.program(targets, true)?;
                targets.programs[program].lose_reply();
                Some((Recovery::DisarmReplyLoss(program), timeout / 2))
            }
            Fault::Delay => {
                let program = self.program(targets, true)?;
                targets.programs[program].delay(self.rng.u32(20..400) * MS);
                Some((Recovery::EndDelay(program), self.rng.u32(500..3000) * MS))
            }
            Fault::Refused => {
                let program = self.program(targets, true)?;
                targets.programs[program].refuse(true);
                targets.programs[program].reset_connections();
                Some((Recovery::AcceptConnections(program), timeout.mul_f64(self.rng.f64())))
            }
            Fault::ServersReplaced => {
                let program = self.program(targets, false)?;
                let selected = self.rng.usize(1..1 << servers.len());
                targets.programs[program].use_servers(|server| selected & (1 << server) != 0);
                Some((Recovery::UseAllServers(program), self.rng.u32(50..1500) * MS))
            }
            Fault::SessionClosed => self.act_on_random_node(targets, |operator, server, node, closed| {
                let Some(owner) = operator.owner(node)?.filter(|&owner| owner != 0) else { return Ok(false) };
                closed.insert(owner);
                Operator::close_session(server, owner).map(|()| true)
            }),
            Fault::NodeDeleted => {
                self.act_on_random_node(targets, |operator, _, node, _| operator.delete(node).map(|()| true))
            }
        }
    }

    fn server(&mut self, is_leader: bool, targets: &FaultTargets<'_>) -> Option<usize> {
        let leader = targets.ensemble.find_leader()?;
        let count = targets.ensemble.servers().len();
        Some(if is_leader { leader } else { (leader + self.rng.usize(1..count)) % count })
    }

    /// A duration that is long enough for the election of another leader, or any duration for a follower.
    fn outage_length(&mut self, is_leader: bool) -> Duration {
        self.rng.u32(if is_leader { 4000..5500 } else { 500..4000 }) * MS
    }

    /// Chooses a running program, in most cases one that holds a lock.
    fn program(&mut self, targets: &FaultTargets<'_>, is_wired: bool) -> Option<usize> {
        let fits = |program: &Program| program.is_running() && (!is_wired || program.uses_proxies());
        let mut fitting: Vec<usize> = (0..targets.programs.len()).filter(|&at| fits(&targets.programs[at])).collect();
        self.rng.shuffle(&mut fitting);
        let wants_holder = self.rng.u8(..4) > 0;
        let holder = fitting.iter().copied().find(|&at| wants_holder && targets.programs[at].is_holding());
        holder.or_else(|| fitting.first().copied())
    }

    /// Chooses a running program for which the fault succeeds.
    fn with_random_holder(
        &mut self,
        targets: &mut FaultTargets<'_>,
        done: impl Fn(&mut Program) -> bool,
    ) -> Option<usize> {
        let mut living: Vec<usize> =
            (0..targets.programs.len()).filter(|&at| targets.programs[at].is_running()).collect();
        self.rng.shuffle(&mut living);
        living.into_iter().find(|&program| done(&mut targets.programs[program]))
    }

    /// Changes a node of a lock, in most cases the node of the holder.
    fn act_on_random_node(
        &mut self,
        targets: &mut FaultTargets<'_>,
        deed: impl Fn(&mut Operator, &str, &str, &mut BTreeSet<i64>) -> io::Result<bool>,
    ) -> Option<(Recovery, Duration)> {
        let server = targets.ensemble.servers()[self.rng.usize(..targets.ensemble.servers().len())].address();
        let queue = &targets.queues[self.rng.usize(..targets.queues.len())];
        let wants_holder = self.rng.u8(..3) > 0;
        let mut attempt = || {
            let mut operator = Operator::connect(&server)?;
            operator.sync()?;
            let nodes = operator.children(queue)?;
            let chosen = if wants_holder { nodes.first() } else { nodes.last() };
            let done = match chosen {
                Some(name) => deed(&mut operator, &server, &format!("{queue}/{name}"), targets.closed)?,
                None => false,
            };
            operator.close()?;
            io::Result::Ok(done)
        };
        // The server may not serve at the moment.
        attempt().unwrap_or(false).then_some((Recovery::None, Duration::ZERO))
    }
}

fn recover_from(recovery: Recovery, targets: &mut FaultTargets<'_>) {
    let servers = targets.ensemble.servers();
    match recovery {
        Recovery::None | Recovery::ContinueRollingRestart(_) => {}
        Recovery::RestartServers(killed) => killed.into_iter().for_each(|server| targets.ensemble.relaunch(server)),
        Recovery::ResumeServer(server) => servers[server].resume(),
        Recovery::EndIsolation(server) => targets.ensemble.end_isolation(server),
        Recovery::LinkUp(server) => targets.ensemble.set_link_down(server, false),
        Recovery::ResumePrograms(stopped) => stopped.into_iter().for_each(|program| targets.programs[program].resume()),
        Recovery::EndBlackHole(program) => targets.programs[program].black_hole(false),
        Recovery::EndDelay(program) => targets.programs[program].delay(Duration::ZERO),
        Recovery::AcceptConnections(program) => targets.programs[program].refuse(false),
        Recovery::ResetWallClock(program) => targets.programs[program].set_wall_clock(0),
        Recovery::DisarmReplyLoss(program) => targets.programs[program].disarm_reply_loss(),
        Recovery::UseAllServers(program) => targets.programs[program].use_servers(|_| true),
    }
}
