//! What goes wrong, and when: three lanes, one for the servers and two for the programs and their connections, each with one fault
//! after the other, in an order that the dice give.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use fastrand::Rng;
use zklock_rig::Ensemble;

use crate::operator::Operator;
use crate::programs::Program;

const MS: Duration = Duration::from_millis(1);

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The leader is killed with SIGKILL, and comes back.
    LeaderKilled,
    /// A follower is.
    FollowerKilled,
    /// Two servers are at once: nothing can be written.
    QuorumKilled,
    /// One server after the other is restarted, the leader last.
    RollingRestart,
    /// The leader stands still until another one is elected.
    LeaderStopped,
    /// A follower stands still.
    FollowerStopped,
    /// The leader is cut off from the other servers, silently. Clients still reach it.
    LeaderIsolated,
    /// The leader's cable is pulled: nobody reaches it, and nobody is told.
    LeaderUnplugged,
    /// A follower's is.
    FollowerUnplugged,
    /// Two programs stand still for twice the session timeout.
    StoppedForLong,
    /// A program stands still for less than it.
    StoppedForShort,
    /// A program is killed with SIGKILL, and another one takes its place.
    Killed,
    /// A program's machine is suspended: its clocks jump forward by twice the session timeout.
    Suspended,
    /// A program's CLOCK_REALTIME jumps to and fro.
    WallClockJump,
    /// A program's connections are reset.
    Reset,
    /// A program's connections are swallowed for less than the session timeout.
    HoleForShort,
    /// And for more.
    HoleForLong,
    /// The reply to a transaction is lost, with the connection.
    LostReply,
    /// Everything takes its time.
    Delay,
    /// No server accepts a program's connections.
    Refused,
    /// A session is closed by somebody else.
    SessionClosed,
    /// A lock's node is deleted by an operator.
    NodeDeleted,
}

impl Fault {
    /// Those of servers that loopback can show.
    pub const SERVERS: [Self; 7] = [
        Self::LeaderKilled,
        Self::FollowerKilled,
        Self::QuorumKilled,
        Self::RollingRestart,
        Self::LeaderStopped,
        Self::FollowerStopped,
        Self::LeaderIsolated,
    ];
    /// Those that take a network.
    pub const CABLES: [Self; 2] = [Self::LeaderUnplugged, Self::FollowerUnplugged];
    /// Those of programs, their connections, and what is theirs on the servers.
    pub const PROGRAMS: [Self; 13] = [
        Self::StoppedForLong,
        Self::StoppedForShort,
        Self::Killed,
        Self::Suspended,
        Self::WallClockJump,
        Self::Reset,
        Self::HoleForShort,
        Self::HoleForLong,
        Self::LostReply,
        Self::Delay,
        Self::Refused,
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
            Self::StoppedForLong => "program stopped for long",
            Self::StoppedForShort => "program stopped for short",
            Self::Killed => "program killed",
            Self::Suspended => "machine suspended",
            Self::WallClockJump => "wall clock jumped",
            Self::Reset => "connections reset",
            Self::HoleForShort => "black hole, short",
            Self::HoleForLong => "black hole, long",
            Self::LostReply => "reply lost",
            Self::Delay => "delay",
            Self::Refused => "connections refused",
            Self::SessionClosed => "session closed from outside",
            Self::NodeDeleted => "node deleted by an operator",
        })
    }
}

/// What it has its hands on.
pub struct Field<'a> {
    /// The servers.
    pub ensemble: &'a Ensemble,
    /// The programs; one that was killed stays.
    pub programs: &'a mut Vec<Program>,
    /// The directories with nodes of locks.
    pub queues: &'a [String],
    /// The programs' session timeout.
    pub session_timeout: Duration,
    /// Sessions that somebody else closed, or tried to.
    pub closed: &'a mut BTreeSet<i64>,
}

/// Lanes of faults.
pub struct Nemesis {
    dice: Rng,
    lanes: [Lane; 3],
    /// How often each fault was done, and undone.
    pub survived: BTreeMap<Fault, usize>,
    /// A line for each fault.
    pub log: Vec<String>,
}

struct Lane {
    kinds: Vec<Fault>,
    /// Those that are still to come in this round.
    round: Vec<Fault>,
    is_begun: bool,
    /// How many are over.
    rounds: usize,
    running: Option<(Fault, Undo)>,
    /// When to go on.
    due: Instant,
}

/// What ends a fault.
enum Undo {
    Nothing,
    Relaunch(Vec<usize>),
    /// The servers that are still to be restarted.
    Roll(Vec<usize>),
    Continue(usize),
    Rejoin(usize),
    Plug(usize),
    Wake(Vec<usize>),
    Fill(usize),
    Hurry(usize),
    Accept(usize),
    SetClock(usize),
    ForgetLoss(usize),
}

impl Nemesis {
    /// One with these faults.
    pub fn new(seed: u64, faults: &[Fault]) -> Self {
        let is_servers = |fault: &&Fault| Fault::SERVERS.contains(fault) || Fault::CABLES.contains(fault);
        let (servers, programs): (Vec<Fault>, Vec<Fault>) = faults.iter().partition(|fault| is_servers(fault));
        let lane =
            |kinds| Lane { kinds, round: Vec::new(), is_begun: false, rounds: 0, running: None, due: Instant::now() };
        Self {
            dice: Rng::with_seed(seed),
            lanes: [lane(servers), lane(programs.clone()), lane(programs)],
            survived: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    /// Whether every fault has been there.
    pub fn has_done_all(&self) -> bool {
        self.lanes.iter().all(|lane| lane.kinds.is_empty() || lane.rounds > 0)
    }

    /// Begins and ends what is due.
    pub fn step(&mut self, field: &mut Field<'_>) {
        for index in 0..self.lanes.len() {
            if self.lanes[index].due > Instant::now() {
                continue;
            }
            let pause = match self.lanes[index].running.take() {
                Some((fault, undo)) => self.go_on(index, fault, undo, field),
                None => self.begin_next(index, field),
            };
            self.lanes[index].due = Instant::now() + pause;
        }
    }

    /// Ends what is running; false while that takes its time.
    pub fn heal(&mut self, field: &mut Field<'_>) -> bool {
        for index in 0..self.lanes.len() {
            if let Some((fault, undo)) = self.lanes[index].running.take() {
                self.go_on(index, fault, undo, field);
            }
        }
        self.lanes.iter().all(|lane| lane.running.is_none())
    }

    /// Ends a fault, or a part of it. How long to wait then.
    fn go_on(&mut self, lane: usize, fault: Fault, undo: Undo, field: &mut Field<'_>) -> Duration {
        if let Undo::Roll(mut left) = undo {
            if !field.ensemble.is_whole() {
                self.lanes[lane].running = Some((fault, Undo::Roll(left)));
                return 50 * MS;
            }
            if let Some(server) = left.pop() {
                field.ensemble.servers()[server].stop();
                field.ensemble.relaunch(server);
                self.lanes[lane].running = Some((fault, Undo::Roll(left)));
                return 300 * MS;
            }
        } else {
            end(undo, field);
        }
        self.log.push(format!("{} end {fault}", crate::clock::now()));
        *self.survived.entry(fault).or_default() += 1;
        self.dice.u32(100..700) * MS
    }

    fn begin_next(&mut self, lane: usize, field: &mut Field<'_>) -> Duration {
        let is_servers = lane == 0;
        // One trouble at a time is what an ensemble of three is for.
        if is_servers && !field.ensemble.is_whole() {
            return 50 * MS;
        }
        let Some(fault) = self.draw(lane) else { return Duration::from_secs(1) };
        match self.begin(fault, field) {
            Some((undo, length)) => {
                self.log.push(format!("{} begin {fault}", crate::clock::now()));
                self.lanes[lane].running = Some((fault, undo));
                length
            }
            // It found nobody; its turn comes again.
            None => {
                self.lanes[lane].round.insert(0, fault);
                100 * MS
            }
        }
    }

    fn draw(&mut self, lane: usize) -> Option<Fault> {
        let Lane { kinds, round, is_begun, rounds, .. } = &mut self.lanes[lane];
        if let Some(fault) = round.pop() {
            return Some(fault);
        }
        *rounds += usize::from(*is_begun);
        *is_begun = true;
        round.clone_from(kinds);
        self.dice.shuffle(round);
        round.pop()
    }

    /// Does a fault; what ends it, and after how long.
    fn begin(&mut self, fault: Fault, field: &mut Field<'_>) -> Option<(Undo, Duration)> {
        let timeout = field.session_timeout;
        let servers = field.ensemble.servers();
        match fault {
            Fault::LeaderKilled | Fault::FollowerKilled => {
                let server = self.server(fault == Fault::LeaderKilled, field)?;
                servers[server].stop();
                Some((Undo::Relaunch(vec![server]), self.dice.u32(300..2500) * MS))
            }
            Fault::QuorumKilled => {
                let spared = self.dice.usize(..servers.len());
                let killed: Vec<usize> = (0..servers.len()).filter(|&server| server != spared).collect();
                killed.iter().for_each(|&server| servers[server].stop());
                Some((Undo::Relaunch(killed), self.dice.u32(300..3000) * MS))
            }
            Fault::RollingRestart => {
                let leader = field.ensemble.find_leader()?;
                let followers = (0..servers.len()).filter(|&server| server != leader);
                Some((Undo::Roll([leader].into_iter().chain(followers).collect()), Duration::ZERO))
            }
            Fault::LeaderStopped | Fault::FollowerStopped => {
                let server = self.server(fault == Fault::LeaderStopped, field)?;
                servers[server].pause();
                Some((Undo::Continue(server), self.outage(fault == Fault::LeaderStopped)))
            }
            Fault::LeaderIsolated => {
                let server = self.server(true, field)?;
                field.ensemble.isolate(server);
                Some((Undo::Rejoin(server), self.outage(true)))
            }
            Fault::LeaderUnplugged | Fault::FollowerUnplugged => {
                let server = self.server(fault == Fault::LeaderUnplugged, field)?;
                field.ensemble.unplug(server, true);
                Some((Undo::Plug(server), self.outage(fault == Fault::LeaderUnplugged)))
            }
            Fault::StoppedForLong => {
                let holder = self.holder(field, Program::stop_holding)?;
                let other = self.program(field, false).filter(|&other| other != holder);
                other.iter().for_each(|&program| field.programs[program].stop());
                let stopped = [holder].into_iter().chain(other).collect();
                Some((Undo::Wake(stopped), 2 * timeout + 100 * MS))
            }
            Fault::StoppedForShort => {
                let program = self.program(field, false)?;
                field.programs[program].stop();
                Some((Undo::Wake(vec![program]), timeout.mul_f64(0.1 + 0.8 * self.dice.f64())))
            }
            Fault::Killed => {
                let program = self.program(field, false)?;
                field.programs[program].kill();
                Some((Undo::Nothing, Duration::ZERO))
            }
            Fault::Suspended => {
                let nanos = i64::try_from((2 * timeout).as_nanos()).unwrap_or(i64::MAX);
                self.holder(field, |program| program.suspend_holding(nanos))?;
                Some((Undo::Nothing, Duration::ZERO))
            }
            Fault::WallClockJump => {
                let program = self.program(field, false)?;
                let hours = self.dice.i64(-100..100);
                field.programs[program].set_wall_clock(hours * 3600 * 1_000_000_000);
                Some((Undo::SetClock(program), timeout / 2))
            }
            Fault::Reset => {
                let program = self.program(field, true)?;
                field.programs[program].cut();
                Some((Undo::Nothing, Duration::ZERO))
            }
            Fault::HoleForShort | Fault::HoleForLong => {
                let program = self.program(field, true)?;
                field.programs[program].black_hole(true);
                let part = if fault == Fault::HoleForShort { 0.1 + 0.6 * self.dice.f64() } else { 1.3 };
                Some((Undo::Fill(program), timeout.mul_f64(part)))
            }
            Fault::LostReply => {
                let program = self.program(field, true)?;
                field.programs[program].lose_reply();
                Some((Undo::ForgetLoss(program), timeout / 2))
            }
            Fault::Delay => {
                let program = self.program(field, true)?;
                field.programs[program].delay(self.dice.u32(20..400) * MS);
                Some((Undo::Hurry(program), self.dice.u32(500..3000) * MS))
            }
            Fault::Refused => {
                let program = self.program(field, true)?;
                field.programs[program].refuse(true);
                field.programs[program].cut();
                Some((Undo::Accept(program), timeout.mul_f64(self.dice.f64())))
            }
            Fault::SessionClosed => self.meddle(field, |operator, server, node, closed| {
                let Some(owner) = operator.owner(node)?.filter(|&owner| owner != 0) else { return Ok(false) };
                closed.insert(owner);
                Operator::close_session(server, owner).map(|()| true)
            }),
            Fault::NodeDeleted => self.meddle(field, |operator, _, node, _| operator.delete(node).map(|()| true)),
        }
    }

    fn server(&mut self, is_leader: bool, field: &Field<'_>) -> Option<usize> {
        let leader = field.ensemble.find_leader()?;
        let count = field.ensemble.servers().len();
        Some(if is_leader { leader } else { (leader + self.dice.usize(1..count)) % count })
    }

    /// Long enough for another leader to be elected, or any time.
    fn outage(&mut self, is_leader: bool) -> Duration {
        self.dice.u32(if is_leader { 4000..5500 } else { 500..4000 }) * MS
    }

    /// A program, and rather one that holds something.
    fn program(&mut self, field: &Field<'_>, is_wired: bool) -> Option<usize> {
        let fits = |program: &Program| program.runs() && (!is_wired || program.is_wired());
        let mut fitting: Vec<usize> = (0..field.programs.len()).filter(|&at| fits(&field.programs[at])).collect();
        self.dice.shuffle(&mut fitting);
        let wants_holder = self.dice.u8(..4) > 0;
        let holder = fitting.iter().copied().find(|&at| wants_holder && field.programs[at].holds());
        holder.or_else(|| fitting.first().copied())
    }

    /// One that has something, and to which that could be done.
    fn holder(&mut self, field: &mut Field<'_>, done: impl Fn(&mut Program) -> bool) -> Option<usize> {
        let mut living: Vec<usize> = (0..field.programs.len()).filter(|&at| field.programs[at].runs()).collect();
        self.dice.shuffle(&mut living);
        living.into_iter().find(|&program| done(&mut field.programs[program]))
    }

    /// Does something to a node of a lock, and rather to its holder's.
    fn meddle(
        &mut self,
        field: &mut Field<'_>,
        deed: impl Fn(&mut Operator, &str, &str, &mut BTreeSet<i64>) -> io::Result<bool>,
    ) -> Option<(Undo, Duration)> {
        let server = field.ensemble.servers()[self.dice.usize(..field.ensemble.servers().len())].address();
        let queue = &field.queues[self.dice.usize(..field.queues.len())];
        let wants_holder = self.dice.u8(..3) > 0;
        let mut attempt = || {
            let mut operator = Operator::connect(&server)?;
            operator.catch_up()?;
            let nodes = operator.children(queue)?;
            let chosen = if wants_holder { nodes.first() } else { nodes.last() };
            let done = match chosen {
                Some(name) => deed(&mut operator, &server, &format!("{queue}/{name}"), field.closed)?,
                None => false,
            };
            operator.close()?;
            io::Result::Ok(done)
        };
        // A server may not serve just now.
        attempt().unwrap_or(false).then_some((Undo::Nothing, Duration::ZERO))
    }
}

fn end(undo: Undo, field: &mut Field<'_>) {
    let servers = field.ensemble.servers();
    match undo {
        Undo::Nothing | Undo::Roll(_) => {}
        Undo::Relaunch(killed) => killed.into_iter().for_each(|server| field.ensemble.relaunch(server)),
        Undo::Continue(server) => servers[server].resume(),
        Undo::Rejoin(server) => field.ensemble.rejoin(server),
        Undo::Plug(server) => field.ensemble.unplug(server, false),
        Undo::Wake(stopped) => stopped.into_iter().for_each(|program| field.programs[program].wake()),
        Undo::Fill(program) => field.programs[program].black_hole(false),
        Undo::Hurry(program) => field.programs[program].delay(Duration::ZERO),
        Undo::Accept(program) => field.programs[program].refuse(false),
        Undo::SetClock(program) => field.programs[program].set_wall_clock(0),
        Undo::ForgetLoss(program) => field.programs[program].lose_none(),
    }
}
