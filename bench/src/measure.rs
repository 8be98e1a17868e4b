//! One window: what is read before and after, and the figures that come of it.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use zklock_rig::{Raw, ZooKeeper};

use crate::driver::{Process, Stamp};
use crate::machine::{self, Nanos, SECOND};
use crate::workload::Workload;

/// What a window shows. Times are microseconds; NaN is what was not measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    /// Acquired within the window.
    pub(crate) acquisitions: f64,
    /// Acquired within the window and after it.
    pub(crate) holds: usize,
    /// The window by the acquisitions in it.
    pub(crate) time: f64,
    /// From one call of acquire to the next.
    pub(crate) cycle_p50: f64,
    pub(crate) cycle_p99: f64,
    pub(crate) acquire_p50: f64,
    pub(crate) acquire_p99: f64,
    pub(crate) release_p50: f64,
    /// From the call of release to the moment when the next has the lock.
    pub(crate) handoff_p50: f64,
    pub(crate) handoff_p99: f64,
    /// How often the lock went to another worker.
    pub(crate) alternation: f64,
    /// Requests of an acquisition, heartbeats with them.
    pub(crate) requests: f64,
    pub(crate) client_cpu: f64,
    pub(crate) server_cpu: f64,
    /// Context switches of the clients.
    pub(crate) switches: f64,
    /// Cores that were busy with what is none of this.
    pub(crate) foreign: f64,
}

/// How long after the command the workers begin: until all threads wait for that.
const RUN_UP: Nanos = 30_000_000;
/// How long the workers are at work before the window begins, for each worker of a process: until all have joined the queue. Without it a
/// slow peer with many waiters would have hardly more than the joining in its window.
pub(crate) const LEAD_IN: Nanos = 2_000_000;
/// How long a driver may take for what was under way at the end of a window.
const PATIENCE: Duration = Duration::from_secs(60);
/// Reading the switches of more threads than this would disturb what is measured.
const FEW_THREADS: usize = 32;

/// Has drivers do the workload, and measures it for this length. `others` are the idle processes of other drivers.
pub(crate) fn window(
    server: &ZooKeeper,
    workload: Workload,
    drivers: &mut [Process],
    others: &[i32],
    length: Nanos,
    base: &str,
) -> Result<Figures, String> {
    let order = workload.order(server.address(), base.to_owned());
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
    let before = Reading::take(server, &pids, others, order.workers);
    machine::sleep_until(end);
    let after = Reading::take(server, &pids, others, order.workers);
    let mut holds = Vec::new();
    for (process, driver) in drivers.iter().enumerate() {
        let own = driver.stamps(PATIENCE)?;
        holds.extend(own.iter().map(|&stamp| Hold { process, path: stamp.worker % order.paths, stamp }));
    }
    // The question itself is one, too.
    let packets = packets_received(server)? - packets - 1.0;
    let mut figures = figures(&mut holds, start, end)?;
    figures.requests = packets / holds.len() as f64;
    figures.client_cpu = (after.clients - before.clients) as f64 / 1e3 / figures.acquisitions;
    figures.server_cpu = (after.server - before.server) as f64 / 1e3 / figures.acquisitions;
    figures.switches = (after.switches - before.switches) / figures.acquisitions;
    figures.foreign = ((after.busy - before.busy) - (after.own - before.own)) as f64 / (after.at - before.at) as f64;
    Ok(figures)
}

/// What the machine's counters say at one moment.
struct Reading {
    at: Nanos,
    clients: Nanos,
    server: Nanos,
    own: Nanos,
    busy: Nanos,
    switches: f64,
}

impl Reading {
    fn take(server: &ZooKeeper, drivers: &[i32], others: &[i32], workers: usize) -> Self {
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

/// What the stamps say; an error where two held at one time.
fn figures(holds: &mut [Hold], start: Nanos, end: Nanos) -> Result<Figures, String> {
    holds.sort_by_key(|hold| hold.stamp.acquired);
    let window = start..end;
    let within: Vec<&Hold> = holds.iter().filter(|hold| window.contains(&hold.stamp.acquired)).collect();
    let spans = |from: fn(&Stamp) -> Nanos, to: fn(&Stamp) -> Nanos| {
        Spans::of(within.iter().map(|hold| to(&hold.stamp) - from(&hold.stamp)).collect())
    };
    let acquire = spans(|stamp| stamp.called, |stamp| stamp.acquired);
    let release = spans(|stamp| stamp.leaving, |stamp| stamp.left);
    let cycle = Spans::of(cycles(&within));
    let (handoff, alternation) = hand_overs(holds, &window)?;
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

/// From one hold of a path to the next: how long it took, and how often it was another's.
fn hand_overs(holds: &[Hold], window: &std::ops::Range<Nanos>) -> Result<(Spans, f64), String> {
    let mut last: BTreeMap<usize, Hold> = BTreeMap::new();
    let (mut spans, mut to_others) = (Vec::new(), 0);
    for hold in holds {
        let Some(before) = last.insert(hold.path, *hold) else { continue };
        let span = hold.stamp.acquired - before.stamp.leaving;
        if span < 0 {
            return Err(format!("overlap: two held path {} for {} ns", hold.path, -span));
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

    /// In microseconds.
    fn quantile(&self, share: f64) -> f64 {
        let index = (self.0.len() as f64 * share) as usize;
        self.0.get(index.min(self.0.len().saturating_sub(1))).map_or(f64::NAN, |&span| span as f64 / 1e3)
    }
}

/// All requests that the server has had, pings and questions like this one with them.
fn packets_received(server: &ZooKeeper) -> Result<f64, String> {
    let answer = server.four_letter_word("mntr");
    let count = answer.lines().find_map(|line| line.strip_prefix("zk_packets_received")?.trim().parse().ok());
    count.ok_or_else(|| format!("mntr without packets: {answer}"))
}

/// What the server must have seen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nodes {
    /// A node for each hold.
    OneEach,
    /// Holds of one process may share a node.
    Shared,
}

/// Asks the server: each hold had its node in the directory of its lock, all were removed, and none is left.
pub(crate) fn audit(
    server: &ZooKeeper,
    workload: Workload,
    nodes: Nodes,
    holds: usize,
    base: &str,
) -> Result<(), String> {
    let order = workload.order(server.address(), base.to_owned());
    let mut raw = Raw::connect(&server.address(), 60_000);
    let (mut changes, mut left) = (0, 0);
    for index in 0..order.paths {
        let path = order.path(index);
        let settled = Instant::now() + Duration::from_secs(5);
        let stat = loop {
            let stat = raw.stat(&path).ok_or_else(|| format!("audit: {path} is gone"))?;
            // Some do not wait for the answer to their last release.
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
    Err(format!("audit: {holds} holds, but {changes} nodes made or removed, and {left} left"))
}

/// A window's usual length, from seconds.
pub(crate) fn length(seconds: f64) -> Nanos {
    (seconds * SECOND as f64) as Nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(process: usize, called: Nanos, acquired: Nanos, leaving: Nanos) -> Hold {
        Hold { process, path: 0, stamp: Stamp { worker: 0, called, acquired, leaving, left: leaving + 1 } }
    }

    #[test]
    fn hand_overs_go_from_release_to_acquired() {
        let mut holds = [hold(0, 0, 1000, 2000), hold(1, 500, 5000, 6000), hold(0, 2500, 10_000, 11_000)];
        let figures = figures(&mut holds, 0, 20_000).unwrap();
        assert_eq!((figures.handoff_p50, figures.alternation), (4.0, 1.0));
        assert_eq!((figures.cycle_p50, figures.acquisitions), (2.5, 3.0));
    }

    #[test]
    fn two_at_one_time_are_an_error() {
        let mut holds = [hold(0, 0, 1000, 2000), hold(1, 500, 1999, 6000)];
        assert!(figures(&mut holds, 0, 20_000).unwrap_err().starts_with("overlap"));
    }
}
