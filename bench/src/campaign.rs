//! Pairs of windows, floor and peer, round after round.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use zklock_rig::{Options, ZooKeeper};

use crate::driver::Process;
use crate::machine::{self, Cores, Nanos, SECOND};
use crate::measure::{self, Figures};
use crate::peer::{FLOOR, Peer, Workshop};
use crate::workload::Workload;

/// What a server does with a transaction before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Disk {
    /// Nothing is forced; the log is in memory.
    Nofsync,
    /// It is on the disk.
    Fsync,
}

/// What is to be measured, and how.
pub(crate) struct Plan {
    pub(crate) peers: Vec<Peer>,
    pub(crate) workloads: Vec<Workload>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) rounds: usize,
    pub(crate) window: Nanos,
    pub(crate) warmth: Warmth,
    /// Whether the server is asked, after each window, if it saw what was said.
    pub(crate) audits: bool,
    /// How often a pair is done again at most, since others used the machine.
    pub(crate) redo_limit: usize,
}

/// Whether everybody runs before anything counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Warmth {
    Cold,
    Warm,
}

/// Two windows, one right after the other.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Pair {
    pub(crate) disk: Disk,
    pub(crate) workload: Workload,
    pub(crate) peer: &'static str,
    pub(crate) round: usize,
    /// How often it was done again since others used the machine.
    pub(crate) redone: usize,
    pub(crate) outcome: Outcome,
}

/// What came of a pair.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Measured { floor: Box<Figures>, peer: Box<Figures> },
    Failed(String),
}

/// Cores that others may use in a window.
pub(crate) const FOREIGN_LIMIT: f64 = 0.2;
/// Until the server's JVM has compiled what it needs.
const SERVER_WARM_UP: Nanos = 5 * SECOND;
/// How long, and how often, it is looked whether others leave the machine alone, before a pair is done again.
const QUIET_LOOK: Duration = Duration::from_millis(300);
const QUIET_ATTEMPTS: usize = 40;

impl Disk {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nofsync => "nofsync",
            Self::Fsync => "fsync",
        }
    }

    /// A server on the first core; from then on the calling thread is on the second.
    pub(crate) fn start(self, cores: Cores) -> ZooKeeper {
        machine::pin(cores.server);
        // As in production: the rig's own settings are for tests, which want servers that start fast and forget soon.
        let options = Options::default().tick_ms(2000).container_sweep_ms(60_000);
        let options = options.jvm_argument("-Xmx1g").jvm_argument("-XX:TieredStopAtLevel=4");
        let server = match self {
            Self::Nofsync => options.start(),
            Self::Fsync => options.jvm_argument("-Dzookeeper.forceSync=yes").on_disk().start(),
        };
        machine::pin(cores.clients);
        server
    }
}

impl Pair {
    /// Whether others used the machine all the same.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.foreign().is_some_and(|foreign| foreign > FOREIGN_LIMIT)
    }

    /// Cores that others used, in the worse of the two windows.
    pub(crate) fn foreign(&self) -> Option<f64> {
        match &self.outcome {
            Outcome::Measured { floor, peer } => Some(floor.foreign.max(peer.foreign)),
            Outcome::Failed(_) => None,
        }
    }
}

/// Measures all that is planned.
pub(crate) fn run(plan: &Plan, workshop: &Workshop, cores: Cores) -> Result<Vec<Pair>, String> {
    let mut pairs = Vec::new();
    for &disk in &plan.disks {
        for &workload in &plan.workloads {
            let peers: Vec<Peer> = plan.peers.iter().copied().filter(|peer| peer.takes(workload)).collect();
            if !peers.is_empty() {
                // Each has a server of its own, so that none finds what another has left.
                let server = disk.start(cores);
                let mut fleet = Fleet {
                    server: &server,
                    workshop,
                    workload,
                    audits: plan.audits,
                    drivers: BTreeMap::new(),
                    windows: 0,
                };
                fleet.measure(plan, disk, &peers, &mut pairs)?;
            }
        }
    }
    Ok(pairs)
}

/// The drivers of one workload on one server.
struct Fleet<'a> {
    server: &'a ZooKeeper,
    workshop: &'a Workshop,
    workload: Workload,
    audits: bool,
    drivers: BTreeMap<&'static str, Vec<Process>>,
    windows: usize,
}

impl Fleet<'_> {
    fn measure(&mut self, plan: &Plan, disk: Disk, peers: &[Peer], pairs: &mut Vec<Pair>) -> Result<(), String> {
        let floor = Peer::named(FLOOR)?;
        if plan.warmth == Warmth::Warm {
            // A failure will come again, and be told then.
            let _ = self.window(floor, SERVER_WARM_UP);
            peers.iter().for_each(|&peer| drop(self.window(peer, plan.window)));
        }
        for round in 0..plan.rounds {
            for &peer in peers {
                let (outcome, redone) = self.pair(floor, peer, round, plan);
                let pair = Pair { disk, workload: self.workload, peer: peer.name, round, redone, outcome };
                eprintln!("{}", progress(&pair));
                pairs.push(pair);
            }
        }
        Ok(())
    }

    fn pair(&mut self, floor: Peer, peer: Peer, round: usize, plan: &Plan) -> (Outcome, usize) {
        for redone in 0.. {
            let outcome = self.two_windows(floor, peer, round.is_multiple_of(2), plan.window);
            match outcome {
                Ok((floor, peer)) => {
                    let is_quiet = floor.foreign.max(peer.foreign) <= FOREIGN_LIMIT;
                    if is_quiet || redone >= plan.redo_limit {
                        return (Outcome::Measured { floor: Box::new(floor), peer: Box::new(peer) }, redone);
                    }
                    wait_for_quiet();
                }
                Err(error) => return (Outcome::Failed(error), redone),
            }
        }
        unreachable!("a pair is not done again for ever")
    }

    fn two_windows(
        &mut self,
        floor: Peer,
        peer: Peer,
        is_floor_first: bool,
        length: Nanos,
    ) -> Result<(Figures, Figures), String> {
        if is_floor_first {
            let floor = self.window(floor, length)?;
            return Ok((floor, self.window(peer, length)?));
        }
        let peer = self.window(peer, length)?;
        Ok((self.window(floor, length)?, peer))
    }

    fn window(&mut self, peer: Peer, length: Nanos) -> Result<Figures, String> {
        self.windows += 1;
        let base = format!("/bench/window-{}", self.windows);
        let mut drivers = match self.drivers.remove(peer.name) {
            Some(drivers) => drivers,
            None => self.start(peer)?,
        };
        let others: Vec<i32> = self.drivers.values().flatten().map(Process::pid).collect();
        let outcome = measure::window(self.server, self.workload, &mut drivers, &others, length, &base)
            .and_then(|figures| self.audited(peer, figures, &base));
        if outcome.is_ok() {
            self.drivers.insert(peer.name, drivers);
        }
        // Those that failed are not asked again: the next window has new ones.
        outcome.map_err(|error| format!("{}: {error}", peer.name))
    }

    /// The figures, unless they say nothing, or what the server says is something else.
    fn audited(&self, peer: Peer, figures: Figures, base: &str) -> Result<Figures, String> {
        if self.audits {
            // Of a window as short as that, only the counts matter.
            return measure::audit(self.server, self.workload, peer.nodes(), figures.holds, base).map(|()| figures);
        }
        if figures.acquisitions == 0.0 { Err("nobody acquired within the window".to_owned()) } else { Ok(figures) }
    }

    fn start(&self, peer: Peer) -> Result<Vec<Process>, String> {
        let one = |_| Process::start(self.workshop.command(peer, &self.server.address()));
        (0..self.workload.processes()).map(one).collect()
    }
}

/// Waits until others leave the machine alone, or for as long as is worth it. Of ours, nobody has anything to do now.
fn wait_for_quiet() {
    for _ in 0..QUIET_ATTEMPTS {
        let (before, begun) = (machine::busy(), machine::now());
        thread::sleep(QUIET_LOOK);
        let busy = (machine::busy() - before) as f64 / (machine::now() - begun) as f64;
        if busy < FOREIGN_LIMIT / 2.0 {
            break;
        }
    }
}

fn progress(pair: &Pair) -> String {
    let head = format!("{} {} round {} {}", pair.disk.name(), pair.workload.name(), pair.round + 1, pair.peer);
    match &pair.outcome {
        Outcome::Measured { floor, peer } => {
            format!("{head}: {:.1} us a cycle, floor {:.1}, redone {}", peer.time, floor.time, pair.redone)
        }
        Outcome::Failed(error) => format!("{head}: FAILED: {error}"),
    }
}
