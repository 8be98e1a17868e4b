//! One window: the counters before and after it, and its figures.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use zklock_test_support::{RawClient, ZooKeeper};

use crate::driver::{Process, Stamp};
use crate::machine::{self, Nanos, SECOND};
use crate::workload::Workload;

/// The figures of a window. Times are in microseconds. NaN stands for a value that was not measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    /// The number of acquisitions within the window.
    pub(crate) acquisitions: f64,
    /// The number of acquisitions within the window and after it.
    pub(crate) holds: usize,
    /// The length of the window divided by the number of acquisitions in it.
    pub(crate) time: f64,
    /// The time from one call of acquire to the next.
    pub(crate) cycle_p50: f64,
    pub(crate) cycle_p99: f64,
    pub(crate) acquire_p50: f64,
    pub(crate) acquire_p99: f64,
    pub(crate) release_p50: f64,
    /// The time from the call of release until the next worker has the lock.
    pub(crate) handoff_p50: f64,
    pub(crate) handoff_p99: f64,
    /// The share of hand-overs to another worker.
    pub(crate) alternation: f64,
    /// The requests for each acquisition, including heartbeats.
    pub(crate) requests: f64,
    pub(crate) client_cpu: f64,
    pub(crate) server_cpu: f64,
    /// The context switches of the clients.
    pub(crate) switches: f64,
    /// The number of cores that other processes used.
    pub(crate) foreign: f64,
}

pub(crate) type Figure = fn(&Figures) -> f64;

/// The time between the command and the start of the workers, so that all threads are ready.
const RUN_UP: Nanos = 30_000_000;
/// The time for which the workers run before the window begins, for each worker of a process, until all have joined the
/// queue. Without it, the window of a slow peer with many waiters would contain little more than the joins.
pub(crate) const LEAD_IN: Nanos = 2_000_000;
/// The time limit for a driver to finish its last acquisitions after the end of a window.
const DRIVER_ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// The maximum number of threads whose context switches are read. Reading more would disturb the measurement.
const FEW_THREADS: usize = 32;

/// Runs the workload in the drivers and measures a window of this length. `others` are the idle processes of other
/// drivers.
pub(crate) fn window(
    server: &ZooKeeper,
    workload: Workload,
    drivers: &mut [Process],
    others: &[i32],
    length: Nanos,
    base: &str,
) -> Result<Figures, String> {
    let order = workload.prepare_command(server.address(), base.to_owned());
    for driver in drivers.iter_mut() {
        driver.prepare(&order)?;
    }
    let packets = packets_received(server)?;
    let begin = machine::now() + RUN_UP;
    let start = begin + LEAD_IN * order.workers as Nanos;
    let end = start + length;
    for driver in drivers.iter_mut() {
        driver.go(begin, end)?;
    }
    let pids: Vec<i32> = drivers.iter().map(Process::pid).collect();
    machine::sleep_until(start);
    let before = CpuSample::sample(server, &pids, others, order.workers);
    machine::sleep_until(end);
    let after = CpuSample::sample(server, &pids, others, order.workers);
    let mut holds = Vec::new();
    for (process, driver) in drivers.iter().enumerate() {
        let own = driver.stamps(DRIVER_ANSWER_LIMIT)?;
        holds.extend(own.iter().map(|&stamp| Hold { process, path: stamp.worker % order.paths, stamp }));
    }
    // The query itself is one packet.
    let packets = packets_received(server)? - packets - 1.0;
    let mut statistics = figures(&mut holds, start, end)?;
    statistics.requests = packets / holds.len() as f64;
    statistics.client_cpu = (after.clients - before.clients) as f64 / 1e3 / statistics.acquisitions;
    statistics.server_cpu = (after.server - before.server) as f64 / 1e3 / statistics.acquisitions;
    statistics.switches = (after.switches - before.switches) / statistics.acquisitions;
    statistics.foreign = ((after.busy - before.busy) - (after.own - before.own)) as f64 / (after.at - before.at) as f64;
    Ok(statistics)
}

/// The main figure of a workload. It decides when a warm-up ends, and the pictures show its ratio.
pub(crate) fn headline(workload: Workload) -> (&'static str, Figure) {
    match workload {
        Workload::Uncontended => ("cycle", |of| of.cycle_p50),
        Workload::TwoProcesses { .. } => ("hand-off", |of| of.handoff_p50),
        Workload::ManyWaiters(_) => ("time per acquisition", |of| of.time),
        Workload::EightPaths => ("time per cycle", |of| of.time),
    }
}

/// The counters of the machine at one time.
struct CpuSample {
    at: Nanos,
    clients: Nanos,
    server: Nanos,
    own: Nanos,
    busy: Nanos,
    switches: f64,
}

impl CpuSample {
    fn sample(server: &ZooKeeper, drivers: &[i32], others: &[i32], workers: usize) -> Self {
        let busy = machine::busy();
        let sum = |pids: &[i32]| pids.iter().map(|&pid| machine::cpu_of(pid)).sum::<Nanos>();
        let (clients, server) = (sum(drivers), machine::cpu_of(server.pid()));
        let own = clients + server + sum(others) + machine::cpu_of(std::process::id().cast_signed());
        let switches = if workers > FEW_THREADS {
            f64::NAN
        } else {
            drivers.iter().map(|&pid| machine::switches_of(pid)).sum::<i64>() as f64
        };
        Self { at: machine::now(), clients, server, own, busy, switches }
    }
}

#[derive(Clone, Copy)]
struct Hold {
    process: usize,
    path: usize,
    stamp: Stamp,
}

impl Hold {
    fn owner(&self) -> (usize, usize) {
        (self.process, self.stamp.worker)
    }
}

/// Computes the figures from the stamps. Returns an error if two workers held a lock at the same time.
fn figures(holds: &mut [Hold], start: Nanos, end: Nanos) -> Result<Figures, String> {
    holds.sort_by_key(|hold| hold.stamp.acquired);
    let window = start..end;
    let within: Vec<&Hold> = holds.iter().filter(|hold| window.contains(&hold.stamp.acquired)).collect();
    let spans = |from: fn(&Stamp) -> Nanos, to: fn(&Stamp) -> Nanos| {
        Spans::of(within.iter().map(|hold| to(&hold.stamp) - from(&hold.stamp)).collect())
    };
    let acquire = spans(|stamp| stamp.called, |stamp| stamp.acquired);
    let release = spans(|stamp| stamp.releasing, |stamp| stamp.released);
    let cycle = Spans::of(cycles(&within));
    let (handoff, alternation) = handovers(holds, &window)?;
    Ok(Figures {
        acquisitions: within.len() as f64,
        holds: holds.len(),
        time: (end - start) as f64 / 1e3 / within.len() as f64,
        cycle_p50: cycle.quantile(0.5),
        cycle_p99: cycle.quantile(0.99),
        acquire_p50: acquire.quantile(0.5),
        acquire_p99: acquire.quantile(0.99),
        release_p50: release.quantile(0.5),
        handoff_p50: handoff.quantile(0.5),
        handoff_p99: handoff.quantile(0.99),
        alternation,
        requests: f64::NAN,
        client_cpu: f64::NAN,
        server_cpu: f64::NAN,
        switches: f64::NAN,
        foreign: f64::NAN,
    })
}

fn cycles(within: &[&Hold]) -> Vec<Nanos> {
    let mut called: BTreeMap<(usize, usize), Nanos> = BTreeMap::new();
    let since = |hold: &&Hold| called.insert(hold.owner(), hold.stamp.called).map(|last| hold.stamp.called - last);
    within.iter().filter_map(since).collect()
}

/// The times from one hold of a path to the next, and the share of hand-overs to another worker.
fn handovers(holds: &[Hold], window: &std::ops::Range<Nanos>) -> Result<(Spans, f64), String> {
    let mut last: BTreeMap<usize, Hold> = BTreeMap::new();
    let (mut spans, mut to_others) = (Vec::new(), 0);
    for hold in holds {
        let Some(before) = last.insert(hold.path, *hold) else { continue };
        let span = hold.stamp.acquired - before.stamp.releasing;
        if span < 0 {
            return Err(format!("overlap: two workers held path {} at the same time for {} ns", hold.path, -span));
        }
        if window.contains(&hold.stamp.acquired) {
            spans.push(span);
            to_others += usize::from(hold.owner() != before.owner());
        }
    }
    let alternation = to_others as f64 / spans.len() as f64;
    Ok((Spans::of(spans), alternation))
}

/// Sorted durations.
struct Spans(Vec<Nanos>);

impl Spans {
    fn of(mut spans: Vec<Nanos>) -> Self {
        spans.sort_unstable();
        Self(spans)
    }

    /// A quantile in microseconds.
    fn quantile(&self, share: f64) -> f64 {
        let index = (self.0.len() as f64 * share) as usize;
        self.0.get(index.min(self.0.len().saturating_sub(1))).map_or(f64::NAN, |&span| span as f64 / 1e3)
    }
}

/// The number of all packets that the server has received, including pings and queries like this one.
fn packets_received(server: &ZooKeeper) -> Result<f64, String> {
    let answer = server.four_letter_word("mntr");
    let count = answer.lines().find_map(|line| line.strip_prefix("zk_packets_received")?.trim().parse().ok());
    count.ok_or_else(|| format!("the answer to mntr has no number of packets: {answer}"))
}

/// The number of nodes that the server must have seen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nodes {
    /// One node for each hold.
    OneEach,
    /// Several holds of one process may share a node.
    Shared,
}

/// Checks with the server that each hold had a node in the directory of its lock, and that no node is left.
pub(crate) fn audit(
    server: &ZooKeeper,
    workload: Workload,
    nodes: Nodes,
    holds: usize,
    base: &str,
) -> Result<(), String> {
    let order = workload.prepare_command(server.address(), base.to_owned());
    let mut raw = RawClient::connect(&server.address(), 60_000);
    let (mut changes, mut left) = (0, 0);
    for index in 0..order.paths {
        let path = order.path(index);
        let settled = Instant::now() + Duration::from_secs(5);
        let stat = loop {
            let stat = raw.stat(&path).ok_or_else(|| format!("audit: {path} does not exist"))?;
            // Some peers do not wait for the reply to their last release.
            if stat.children == 0 || Instant::now() > settled {
                break stat;
            }
            thread::sleep(Duration::from_millis(5));
        };
        changes += usize::try_from(stat.cversion).unwrap_or(0);
        left += stat.children;
    }
    let first_uses = order.paths * workload.processes();
    let is_right = match nodes {
        Nodes::OneEach => [2 * holds, 2 * (holds + first_uses)].contains(&changes),
        Nodes::Shared => changes <= 2 * (holds + first_uses) && changes.is_multiple_of(2),
    };
    if left == 0 && is_right {
        return Ok(());
    }
    Err(format!("audit: {holds} holds, but {changes} creates and deletes of nodes, and {left} nodes left"))
}

/// Converts the length of a window from seconds.
pub(crate) fn length(seconds: f64) -> Nanos {
    (seconds * SECOND as f64) as Nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(process: usize, called: Nanos, acquired: Nanos, releasing: Nanos) -> Hold {
        Hold { process, path: 0, stamp: Stamp { worker: 0, called, acquired, releasing, released: releasing + 1 } }
    }

    #[test]
    fn handover_is_measured_from_release_call_to_next_acquired() {
        let mut holds = [hold(0, 0, 1000, 2000), hold(1, 500, 5000, 6000), hold(0, 2500, 10_000, 11_000)];
        let statistics = figures(&mut holds, 0, 20_000).unwrap();
        assert_eq!((statistics.handoff_p50, statistics.alternation), (4.0, 1.0));
        assert_eq!((statistics.cycle_p50, statistics.acquisitions), (2.5, 3.0));
    }

    #[test]
    fn two_at_one_time_are_an_error() {
        let mut holds = [hold(0, 0, 1000, 2000), hold(1, 500, 1999, 6000)];
        assert!(figures(&mut holds, 0, 20_000).unwrap_err().starts_with("overlap"));
    }
}
