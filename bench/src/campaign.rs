//! The course of a measurement: after a warm-up, rounds of pairs of windows. Each pair is one window of the peer and
//! one of its reference.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use zklock_test_support::{Options, TlsListener, ZooKeeper};

use crate::driver::Process;
use crate::machine::{self, Cores, Nanos, SECOND};
use crate::measure::{self, Figures};
use crate::peer::{DriverBuilds, FLOOR, Peer};
use crate::workload::Workload;

/// What a server does with a transaction before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Disk {
    /// It writes the log to memory only.
    Nofsync,
    /// It forces the log to the disk.
    Fsync,
}

/// What to measure, and how.
pub(crate) struct Plan {
    pub(crate) peers: Vec<Peer>,
    pub(crate) base: Base,
    /// The workloads of each server.
    pub(crate) workloads: Vec<(Disk, Vec<Workload>)>,
    pub(crate) rounds: usize,
    pub(crate) window: Nanos,
    /// The maximum number of windows of a warm-up. 0 means no warm-up.
    pub(crate) warm_up_limit: usize,
    /// Whether to compare the counts of each window with the server's counts.
    pub(crate) audits: bool,
    /// The maximum number of repetitions of a pair that was disturbed by other processes.
    pub(crate) redo_limit: usize,
}

/// The reference of a peer: the other window of each pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Base {
    /// The floor of all ratios.
    Floor,
    /// The same peer with the other build of libzklock.so.
    Other,
}

#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) pairs: Vec<Pair>,
    pub(crate) warm_ups: Vec<WarmUp>,
}

/// The windows of a peer before the first one that counts.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WarmUp {
    pub(crate) disk: Disk,
    pub(crate) workload: Workload,
    pub(crate) peer: String,
    /// Whether the last two windows agreed.
    pub(crate) is_steady: bool,
    /// The main figure of each window, in microseconds.
    pub(crate) windows: Vec<f64>,
}

/// Two windows, one directly after the other.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Pair {
    pub(crate) disk: Disk,
    pub(crate) workload: Workload,
    pub(crate) peer: &'static str,
    pub(crate) round: usize,
    /// The number of repetitions because other processes used the machine.
    pub(crate) redone: usize,
    /// Whether the warm-ups of both ended with two windows that agreed.
    pub(crate) is_steady: bool,
    pub(crate) outcome: Outcome,
}

/// The result of a pair.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Measured { base: Box<Figures>, peer: Box<Figures> },
    Failed(String),
}

/// The number of cores that other processes may use in a window.
pub(crate) const FOREIGN_LIMIT: f64 = 0.2;
/// The time until the JVM of the server has compiled its hot code.
const SERVER_WARM_UP: Nanos = 5 * SECOND;
/// Two windows agree if neither is larger than the other by more than this share.
pub(crate) const AGREEMENT: f64 = 0.05;
/// The minimum number of windows of a new process. The figures of a JVM can stay constant for a while before they
/// improve further.
pub(crate) const BREAK_IN: usize = 8;
/// Before a pair is repeated, the benchmark waits until the machine is idle: the length and the maximum number of its
/// checks.
const QUIET_CHECK_INTERVAL: Duration = Duration::from_millis(300);
const QUIET_ATTEMPTS: usize = 40;

impl Disk {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nofsync => "nofsync",
            Self::Fsync => "fsync",
        }
    }

    /// Starts a server on the first core. The calling thread runs on the second core from then on.
    pub(crate) fn start(self, cores: Cores) -> ZooKeeper {
        self.start_with(cores, None)
    }

    /// Like [`start`](Self::start), with a TLS port.
    pub(crate) fn start_with(self, cores: Cores, tls: Option<&TlsListener>) -> ZooKeeper {
        machine::pin(cores.server);
        // The settings of a production server. The defaults of the test support start faster and expire sessions
        // earlier.
        let options = Options::default().tick_ms(2000).container_sweep_ms(60_000);
        let options = options.jvm_argument("-Xmx1g");
        let options = options.jvm_argument("-XX:TieredStopAtLevel=4").jvm_argument("-XX:CompileThresholdScaling=1");
        let options = tls.into_iter().fold(options, |options, listener| options.tls(listener));
        let server = match self {
            Self::Nofsync => options.start(),
            Self::Fsync => options.jvm_argument("-Dzookeeper.forceSync=yes").on_disk().start(),
        };
        machine::pin(cores.clients);
        server
    }
}

impl Pair {
    /// Whether other processes used the machine too much.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.foreign().is_some_and(|foreign| foreign > FOREIGN_LIMIT)
    }

    /// The number of cores that other processes used, in the worse of the two windows.
    pub(crate) fn foreign(&self) -> Option<f64> {
        match &self.outcome {
            Outcome::Measured { base, peer } => Some(base.foreign.max(peer.foreign)),
            Outcome::Failed(_) => None,
        }
    }
}

impl Base {
    /// The name in a table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Other => "other build",
        }
    }

    fn of(self, peer: Peer) -> Result<Peer, String> {
        match self {
            Self::Floor => Peer::named(FLOOR),
            Self::Other => peer.with_other_build().ok_or_else(|| format!("{} does not use libzklock.so", peer.name)),
        }
    }
}

/// Measures everything in the plan.
pub(crate) fn run(plan: &Plan, builds: &DriverBuilds, cores: Cores) -> Result<Measured, String> {
    plan.peers.iter().try_for_each(|&peer| plan.base.of(peer).map(drop))?;
    let mut pool =
        DriverPool { plan, workshop: builds, drivers: BTreeMap::new(), windows: 0, measured: Measured::default() };
    for (disk, workloads) in &plan.workloads {
        for &workload in workloads {
            let peers: Vec<Peer> = plan.peers.iter().copied().filter(|peer| peer.supports(workload)).collect();
            if !peers.is_empty() {
                // Each workload has a new server, so that it does not find the nodes of another workload.
                let server = disk.start(cores);
                pool.measure(WindowSetup { server: &server, disk: *disk, workload }, &peers)?;
            }
        }
    }
    Ok(pool.measured)
}

/// The server and the workload of a window.
#[derive(Clone, Copy)]
struct WindowSetup<'a> {
    server: &'a ZooKeeper,
    disk: Disk,
    workload: Workload,
}

/// The processes of the drivers. They outlive servers and workloads, so that a JVM stays warm.
struct DriverPool<'a> {
    plan: &'a Plan,
    workshop: &'a DriverBuilds,
    drivers: BTreeMap<Peer, PeerDrivers>,
    windows: usize,
    measured: Measured,
}

/// The processes of a peer.
#[derive(Default)]
struct PeerDrivers {
    processes: Vec<Process>,
    /// The number of windows of the newest process.
    experience: usize,
    /// The server and the workload of the last warm-up, and whether it ended with two windows that agreed.
    warm_for: Option<(Disk, Workload, bool)>,
}

impl DriverPool<'_> {
    fn measure(&mut self, setup: WindowSetup<'_>, peers: &[Peer]) -> Result<(), String> {
        if self.plan.warm_up_limit > 0 {
            // Ignore a failure here: it occurs again in a pair, and is reported then.
            let _ = self.window(setup, Peer::named(FLOOR)?, SERVER_WARM_UP);
        }
        for round in 0..self.plan.rounds {
            for &peer in peers {
                let base = self.plan.base.of(peer)?;
                let is_warm = self.warm_up(setup, base).and_then(|base| Ok(base & self.warm_up(setup, peer)?));
                let is_steady = is_warm.as_ref().is_ok_and(|&is_steady| is_steady);
                let (outcome, redone) = match is_warm {
                    Ok(_) => self.pair(setup, base, peer, round),
                    Err(error) => (Outcome::Failed(error), 0),
                };
                let (disk, workload) = (setup.disk, setup.workload);
                let pair = Pair { disk, workload, peer: peer.name, round, redone, is_steady, outcome };
                eprintln!("{}", progress(&pair, self.plan.base));
                self.measured.pairs.push(pair);
            }
        }
        Ok(())
    }

    /// Repeats windows of a peer until two in a row agree, unless the peer is warm for this workload. Returns whether
    /// they agreed.
    fn warm_up(&mut self, setup: WindowSetup<'_>, peer: Peer) -> Result<bool, String> {
        let WindowSetup { disk, workload, .. } = setup;
        match self.drivers.get(&peer).and_then(|drivers| drivers.warm_for) {
            _ if self.plan.warm_up_limit == 0 => return Ok(true),
            Some((d, w, is_steady)) if (d, w) == (disk, workload) => return Ok(is_steady),
            _ => {}
        }
        let (_, figure) = measure::headline(workload);
        let mut windows: Vec<f64> = Vec::new();
        let mut is_steady = false;
        while !is_steady && windows.len() < self.plan.warm_up_limit {
            windows.push(figure(&self.window(setup, peer, self.plan.window)?));
            let is_new = self.drivers.get(&peer).is_none_or(|drivers| drivers.experience < BREAK_IN);
            is_steady = !is_new && agree(&windows);
        }
        if let Some(drivers) = self.drivers.get_mut(&peer) {
            drivers.warm_for = Some((disk, workload, is_steady));
        }
        let warm_up = WarmUp { disk, workload, peer: peer.label(), is_steady, windows };
        eprintln!("{}", warm_up_progress(&warm_up));
        self.measured.warm_ups.push(warm_up);
        Ok(is_steady)
    }

    fn pair(&mut self, setup: WindowSetup<'_>, base: Peer, peer: Peer, round: usize) -> (Outcome, usize) {
        for redone in 0.. {
            match self.two_windows(setup, base, peer, round.is_multiple_of(2)) {
                Ok((base, peer)) => {
                    let is_quiet = base.foreign.max(peer.foreign) <= FOREIGN_LIMIT;
                    if is_quiet || redone >= self.plan.redo_limit {
                        return (Outcome::Measured { base: Box::new(base), peer: Box::new(peer) }, redone);
                    }
                    wait_for_quiet();
                }
                Err(error) => return (Outcome::Failed(error), redone),
            }
        }
        unreachable!("the number of repetitions of a pair is limited")
    }

    fn two_windows(
        &mut self,
        setup: WindowSetup<'_>,
        base: Peer,
        peer: Peer,
        is_base_first: bool,
    ) -> Result<(Figures, Figures), String> {
        if is_base_first {
            let base = self.measured_window(setup, base)?;
            return Ok((base, self.measured_window(setup, peer)?));
        }
        let peer = self.measured_window(setup, peer)?;
        Ok((self.measured_window(setup, base)?, peer))
    }

    /// A window that counts. With `audits`, only the counts of nodes matter, so the window may contain no acquisition.
    fn measured_window(&mut self, setup: WindowSetup<'_>, peer: Peer) -> Result<Figures, String> {
        let statistics = self.window(setup, peer, self.plan.window)?;
        let is_empty = statistics.acquisitions == 0.0 && !self.plan.audits;
        if is_empty { Err(format!("{}: no acquire succeeded within the window", peer.label())) } else { Ok(statistics) }
    }

    fn window(&mut self, setup: WindowSetup<'_>, peer: Peer, length: Nanos) -> Result<Figures, String> {
        self.windows += 1;
        let base = format!("/bench/window-{}", self.windows);
        let mut drivers = self.drivers.remove(&peer).unwrap_or_default();
        let needed = setup.workload.processes();
        while drivers.processes.len() < needed {
            drivers.processes.push(Process::start(self.workshop.command(peer))?);
            drivers.experience = 0;
        }
        let (workers, idle) = drivers.processes.split_at_mut(needed);
        let idle = idle.iter().chain(self.drivers.values().flat_map(|drivers| &drivers.processes));
        let idle: Vec<i32> = idle.map(Process::pid).collect();
        let outcome = measure::window(setup.server, setup.workload, workers, &idle, length, &base)
            .and_then(|statistics| self.audited(setup, peer, statistics, &base));
        if outcome.is_ok() {
            drivers.experience += 1;
            self.drivers.insert(peer, drivers);
        }
        // If the window fails, the processes end here. The next window starts new ones, which are warmed up first.
        outcome.map_err(|error| format!("{}: {error}", peer.label()))
    }

    /// Returns the figures, or an error if the server reports other counts.
    fn audited(&self, setup: WindowSetup<'_>, peer: Peer, statistics: Figures, base: &str) -> Result<Figures, String> {
        if self.plan.audits {
            measure::audit(setup.server, setup.workload, peer.nodes(), statistics.holds, base)?;
        }
        Ok(statistics)
    }
}

/// Whether the last two windows agree.
fn agree(windows: &[f64]) -> bool {
    let [.., before, last] = windows else { return false };
    (before / last).max(last / before) <= 1.0 + AGREEMENT
}

/// Waits until the machine is idle, up to a limit. The benchmark's own processes are idle at this time.
fn wait_for_quiet() {
    for _ in 0..QUIET_ATTEMPTS {
        let (before, begun) = (machine::busy(), machine::now());
        thread::sleep(QUIET_CHECK_INTERVAL);
        let busy = (machine::busy() - before) as f64 / (machine::now() - begun) as f64;
        if busy < FOREIGN_LIMIT / 2.0 {
            break;
        }
    }
}

fn progress(pair: &Pair, base_kind: Base) -> String {
    let head = format!("{} {} round {} {}", pair.disk.name(), pair.workload.name(), pair.round + 1, pair.peer);
    match &pair.outcome {
        Outcome::Measured { base, peer } => {
            let of = base_kind.name();
            format!("{head}: {:.1} us a cycle, {of} {:.1}, redone {}", peer.time, base.time, pair.redone)
        }
        Outcome::Failed(error) => format!("{head}: FAILED: {error}"),
    }
}

fn warm_up_progress(of: &WarmUp) -> String {
    let windows: Vec<String> = of.windows.iter().map(|value| format!("{value:.0}")).collect();
    let end = if of.is_steady { "steady" } else { "NOT STEADY" };
    format!("{} {} warm-up {}: {} us, {end}", of.disk.name(), of.workload.name(), of.peer, windows.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_agree_within_the_limit() {
        assert!(agree(&[900.0, 100.0, 104.9]) && agree(&[104.9, 100.0]));
        assert!(!agree(&[100.0, 105.1]) && !agree(&[105.1, 100.0]));
    }

    #[test]
    fn one_window_and_windows_without_a_figure_do_not_agree() {
        assert!(!agree(&[]) && !agree(&[100.0]) && !agree(&[100.0, f64::NAN]) && !agree(&[f64::NAN, f64::NAN]));
    }
}
