//! Pairs of windows, one of the base and one of the peer, round after round, after a warm-up of both.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use zklock_rig::{Options, ZooKeeper};

use crate::driver::Process;
use crate::machine::{self, Cores, Nanos, SECOND};
use crate::measure::{self, Figures};
use crate::peer::{FLOOR, Peer, Workshop};
use crate::table;
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
    pub(crate) base: Base,
    /// The workloads of each server.
    pub(crate) workloads: Vec<(Disk, Vec<Workload>)>,
    pub(crate) rounds: usize,
    pub(crate) window: Nanos,
    /// The largest number of windows of a warm-up; 0 if nothing is warmed up.
    pub(crate) warm_up_limit: usize,
    /// Whether the server is asked, after each window, if it saw what was said.
    pub(crate) audits: bool,
    /// How often a pair is done again at most, since others used the machine.
    pub(crate) redo_limit: usize,
}

/// The reference of a peer: the other window of each pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Base {
    /// The floor of all ratios.
    Floor,
    /// The same peer, with the other build of libzklock.so.
    Other,
}

/// All that was measured.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) pairs: Vec<Pair>,
    pub(crate) warm_ups: Vec<WarmUp>,
}

/// The windows of a peer before anything of it counts.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WarmUp {
    pub(crate) disk: Disk,
    pub(crate) workload: Workload,
    pub(crate) peer: String,
    /// Whether the last two windows agreed.
    pub(crate) is_steady: bool,
    /// The figure of the ratio, window after window, in microseconds.
    pub(crate) windows: Vec<f64>,
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
    /// Whether the warm-ups of both ended with two windows that agreed.
    pub(crate) is_steady: bool,
    pub(crate) outcome: Outcome,
}

/// What came of a pair.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Measured { base: Box<Figures>, peer: Box<Figures> },
    Failed(String),
}

/// Cores that others may use in a window.
pub(crate) const FOREIGN_LIMIT: f64 = 0.2;
/// Until the server's JVM has compiled what it needs.
const SERVER_WARM_UP: Nanos = 5 * SECOND;
/// Two windows agree if neither is larger than the other by more than this share.
pub(crate) const AGREEMENT: f64 = 0.05;
/// A new process works for at least this number of windows: the figures of a JVM can pause on their way down.
pub(crate) const BREAK_IN: usize = 8;
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
            Outcome::Measured { base, peer } => Some(base.foreign.max(peer.foreign)),
            Outcome::Failed(_) => None,
        }
    }
}

impl Base {
    /// Its name in a table.
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

/// Measures all that is planned.
pub(crate) fn run(plan: &Plan, workshop: &Workshop, cores: Cores) -> Result<Measured, String> {
    plan.peers.iter().try_for_each(|&peer| plan.base.of(peer).map(drop))?;
    let mut fleet = Fleet { plan, workshop, crews: BTreeMap::new(), windows: 0, measured: Measured::default() };
    for (disk, workloads) in &plan.workloads {
        for &workload in workloads {
            let peers: Vec<Peer> = plan.peers.iter().copied().filter(|peer| peer.takes(workload)).collect();
            if !peers.is_empty() {
                // A new server for each workload, so that none finds the nodes of another.
                let server = disk.start(cores);
                fleet.measure(Place { server: &server, disk: *disk, workload }, &peers)?;
            }
        }
    }
    Ok(fleet.measured)
}

/// Where a window takes place.
#[derive(Clone, Copy)]
struct Place<'a> {
    server: &'a ZooKeeper,
    disk: Disk,
    workload: Workload,
}

/// The drivers' processes, which outlive servers and workloads, so that a JVM that is warm stays warm.
struct Fleet<'a> {
    plan: &'a Plan,
    workshop: &'a Workshop,
    crews: BTreeMap<Peer, Crew>,
    windows: usize,
    measured: Measured,
}

/// The processes of a peer.
#[derive(Default)]
struct Crew {
    processes: Vec<Process>,
    /// How many windows the newest process has worked.
    experience: usize,
    /// Where its last warm-up took place, and whether that ended with two windows that agreed.
    warm_for: Option<(Disk, Workload, bool)>,
}

impl Fleet<'_> {
    fn measure(&mut self, place: Place<'_>, peers: &[Peer]) -> Result<(), String> {
        if self.plan.warm_up_limit > 0 {
            // A failure will come again, and is reported then.
            let _ = self.window(place, Peer::named(FLOOR)?, SERVER_WARM_UP);
        }
        for round in 0..self.plan.rounds {
            for &peer in peers {
                let base = self.plan.base.of(peer)?;
                let is_warm = self.warm_up(place, base).and_then(|base| Ok(base & self.warm_up(place, peer)?));
                let is_steady = is_warm.as_ref().is_ok_and(|&is_steady| is_steady);
                let (outcome, redone) = match is_warm {
                    Ok(_) => self.pair(place, base, peer, round),
                    Err(error) => (Outcome::Failed(error), 0),
                };
                let (disk, workload) = (place.disk, place.workload);
                let pair = Pair { disk, workload, peer: peer.name, round, redone, is_steady, outcome };
                eprintln!("{}", progress(&pair, self.plan.base));
                self.measured.pairs.push(pair);
            }
        }
        Ok(())
    }

    /// Has a peer work until two windows in a row agree, unless it did so here before. Returns whether they agreed.
    fn warm_up(&mut self, place: Place<'_>, peer: Peer) -> Result<bool, String> {
        let Place { disk, workload, .. } = place;
        match self.crews.get(&peer).and_then(|crew| crew.warm_for) {
            _ if self.plan.warm_up_limit == 0 => return Ok(true),
            Some((d, w, is_steady)) if (d, w) == (disk, workload) => return Ok(is_steady),
            _ => {}
        }
        let (_, figure) = table::headline(workload);
        let mut windows: Vec<f64> = Vec::new();
        let mut is_steady = false;
        while !is_steady && windows.len() < self.plan.warm_up_limit {
            windows.push(figure(&self.window(place, peer, self.plan.window)?));
            let is_new = self.crews.get(&peer).is_none_or(|crew| crew.experience < BREAK_IN);
            is_steady = !is_new && agree(&windows);
        }
        if let Some(crew) = self.crews.get_mut(&peer) {
            crew.warm_for = Some((disk, workload, is_steady));
        }
        let warm_up = WarmUp { disk, workload, peer: peer.label(), is_steady, windows };
        eprintln!("{}", warm_up_progress(&warm_up));
        self.measured.warm_ups.push(warm_up);
        Ok(is_steady)
    }

    fn pair(&mut self, place: Place<'_>, base: Peer, peer: Peer, round: usize) -> (Outcome, usize) {
        for redone in 0.. {
            match self.two_windows(place, base, peer, round.is_multiple_of(2)) {
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
        unreachable!("a pair is not done again for ever")
    }

    fn two_windows(
        &mut self,
        place: Place<'_>,
        base: Peer,
        peer: Peer,
        is_base_first: bool,
    ) -> Result<(Figures, Figures), String> {
        if is_base_first {
            let base = self.measured_window(place, base)?;
            return Ok((base, self.measured_window(place, peer)?));
        }
        let peer = self.measured_window(place, peer)?;
        Ok((self.measured_window(place, base)?, peer))
    }

    /// A window that counts. If only the counts of nodes matter, it may be too short for an acquisition.
    fn measured_window(&mut self, place: Place<'_>, peer: Peer) -> Result<Figures, String> {
        let figures = self.window(place, peer, self.plan.window)?;
        let is_empty = figures.acquisitions == 0.0 && !self.plan.audits;
        if is_empty { Err(format!("{}: no acquisition within the window", peer.label())) } else { Ok(figures) }
    }

    fn window(&mut self, place: Place<'_>, peer: Peer, length: Nanos) -> Result<Figures, String> {
        self.windows += 1;
        let base = format!("/bench/window-{}", self.windows);
        let mut crew = self.crews.remove(&peer).unwrap_or_default();
        let needed = place.workload.processes();
        while crew.processes.len() < needed {
            crew.processes.push(Process::start(self.workshop.command(peer))?);
            crew.experience = 0;
        }
        let (workers, idle) = crew.processes.split_at_mut(needed);
        let idle = idle.iter().chain(self.crews.values().flat_map(|crew| &crew.processes));
        let idle: Vec<i32> = idle.map(Process::pid).collect();
        let outcome = measure::window(place.server, place.workload, workers, &idle, length, &base)
            .and_then(|figures| self.audited(place, peer, figures, &base));
        if outcome.is_ok() {
            crew.experience += 1;
            self.crews.insert(peer, crew);
        }
        // A crew that failed ends here: the next window has a new one, which is warmed up first.
        outcome.map_err(|error| format!("{}: {error}", peer.label()))
    }

    /// The figures, unless the server reports other counts.
    fn audited(&self, place: Place<'_>, peer: Peer, figures: Figures, base: &str) -> Result<Figures, String> {
        if self.plan.audits {
            measure::audit(place.server, place.workload, peer.nodes(), figures.holds, base)?;
        }
        Ok(figures)
    }
}

/// Whether the last two windows agree.
fn agree(windows: &[f64]) -> bool {
    let [.., before, last] = windows else { return false };
    (before / last).max(last / before) <= 1.0 + AGREEMENT
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
