//! What was measured, as tables in Markdown.

use std::fmt::Write;

use crate::campaign::{Disk, Outcome, Pair};
use crate::measure::Figures;
use crate::peer::FLOOR;
use crate::workload::Workload;

/// All rounds of one peer in one workload.
pub(crate) struct Row<'a> {
    pub(crate) peer: &'static str,
    measured: Vec<(&'a Figures, &'a Figures)>,
    failures: Vec<&'a str>,
    disturbed: usize,
}

/// The middle and both ends.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

type Figure = fn(&Figures) -> f64;

impl<'a> Row<'a> {
    fn of(peer: &'static str, pairs: &[&'a Pair]) -> Self {
        let mut row = Row { peer, measured: Vec::new(), failures: Vec::new(), disturbed: 0 };
        for pair in pairs.iter().filter(|pair| pair.peer == peer) {
            row.disturbed += usize::from(pair.is_disturbed());
            match &pair.outcome {
                Outcome::Measured { floor, peer } => row.measured.push((floor, peer)),
                Outcome::Failed(error) => row.failures.push(error),
            }
        }
        row
    }

    pub(crate) fn median(&self, figure: Figure) -> f64 {
        spread(self.measured.iter().map(|(_, peer)| figure(peer)).collect()).median
    }

    /// To the floor, of the windows beside it.
    pub(crate) fn ratio(&self, figure: Figure) -> Spread {
        spread(self.measured.iter().map(|(floor, peer)| figure(peer) / figure(floor)).collect())
    }
}

/// The rows of a workload, in the order in which the peers came.
pub(crate) fn rows(pairs: &[Pair], disk: Disk, workload: Workload) -> Vec<Row<'_>> {
    let of: Vec<&Pair> = pairs.iter().filter(|pair| pair.disk == disk && pair.workload == workload).collect();
    let mut peers: Vec<&'static str> = Vec::new();
    of.iter().filter(|pair| pair.round == 0).for_each(|pair| peers.push(pair.peer));
    peers.into_iter().map(|peer| Row::of(peer, &of)).collect()
}

/// The workloads that were measured, in their order.
pub(crate) fn workloads(pairs: &[Pair], disk: Disk) -> Vec<Workload> {
    let mut workloads: Vec<Workload> = Vec::new();
    for pair in pairs.iter().filter(|pair| pair.disk == disk) {
        if !workloads.contains(&pair.workload) {
            workloads.push(pair.workload);
        }
    }
    workloads
}

/// What a workload is about, and what its ratio is taken of.
pub(crate) fn headline(workload: Workload) -> (&'static str, Figure) {
    match workload {
        Workload::Alone => ("cycle", |of| of.cycle_p50),
        Workload::TwoProcesses { .. } => ("hand-off", |of| of.handoff_p50),
        Workload::Crowd(_) => ("time per acquisition", |of| of.time),
        Workload::EightPaths => ("time per cycle", |of| of.time),
    }
}

/// All tables.
pub(crate) fn tables(pairs: &[Pair]) -> String {
    let mut text = String::new();
    for disk in [Disk::Nofsync, Disk::Fsync] {
        let workloads = workloads(pairs, disk);
        for &workload in &workloads {
            table(&mut text, pairs, disk, workload);
        }
        growth(&mut text, pairs, disk, &workloads);
    }
    text + &circumstances(pairs)
}

fn table(text: &mut String, pairs: &[Pair], disk: Disk, workload: Workload) {
    let columns = columns(workload);
    let _ = writeln!(text, "### {workload}, server `{}`\n", disk.name());
    let heads: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
    let _ = writeln!(text, "| peer | {} | rounds |", heads.join(" | "));
    let _ = writeln!(text, "|---|{}", "---|".repeat(columns.len() + 1));
    for row in rows(pairs, disk, workload) {
        if !row.measured.is_empty() {
            let cells: Vec<String> = columns.iter().map(|(_, cell)| cell(&row)).collect();
            let _ = writeln!(text, "| {} | {} | {} |", row.peer, cells.join(" | "), remarks(&row));
        } else if let Some(error) = row.failures.first() {
            let _ = writeln!(text, "| {} | failed: {} |{}", row.peer, one_line(error), " |".repeat(columns.len()));
        }
    }
    text.push('\n');
}

fn remarks(row: &Row<'_>) -> String {
    let mut text = row.measured.len().to_string();
    if row.disturbed > 0 {
        let _ = write!(text, ", {} disturbed", row.disturbed);
    }
    if let Some(error) = row.failures.first() {
        let _ = write!(text, ", {} failed: {}", row.failures.len(), one_line(error));
    }
    text
}

type Cell = Box<dyn Fn(&Row<'_>) -> String>;

fn columns(workload: Workload) -> Vec<(&'static str, Cell)> {
    let alone = || {
        vec![
            number("cycle p50", |of| of.cycle_p50),
            number("p99", |of| of.cycle_p99),
            number("acquire p50", |of| of.acquire_p50),
            number("release p50", |of| of.release_p50),
            ratio("× floor (range)", |of| of.cycle_p50),
            ratio("p99 × floor", |of| of.cycle_p99),
            fraction("requests/cycle", |of| of.requests),
            number("client CPU µs", |of| of.client_cpu),
            ratio("CPU × floor", |of| of.client_cpu),
            number("server CPU µs", |of| of.server_cpu),
            fraction("switches", |of| of.switches),
        ]
    };
    let two = || {
        vec![
            number("cycles/s", |of| 1e6 / of.time),
            ratio("time per cycle × floor", |of| of.time),
            number("hand-off p50 µs", |of| of.handoff_p50),
            number("p99", |of| of.handoff_p99),
            ratio("hand-off × floor (range)", |of| of.handoff_p50),
            fraction("alternation", |of| of.alternation),
            fraction("requests/cycle", |of| of.requests),
            number("client CPU µs/cycle", |of| of.client_cpu),
            number("server CPU µs/cycle", |of| of.server_cpu),
            fraction("switches", |of| of.switches),
        ]
    };
    let crowd = || {
        vec![
            number("acquisitions/s", |of| 1e6 / of.time),
            number("µs per acquisition", |of| of.time),
            ratio("× floor (range)", |of| of.time),
            fraction("wait p50 ms", |of| of.acquire_p50 / 1e3),
            fraction("wait p99 ms", |of| of.acquire_p99 / 1e3),
            number("hand-off p50 µs", |of| of.handoff_p50),
            number("hand-off p99", |of| of.handoff_p99),
            fraction("requests", |of| of.requests),
            number("client CPU µs", |of| of.client_cpu),
            number("server CPU µs", |of| of.server_cpu),
        ]
    };
    let paths = || {
        vec![
            number("cycles/s", |of| 1e6 / of.time),
            ratio("× floor (range)", |of| of.time),
            number("cycle p50 µs", |of| of.cycle_p50),
            number("p99", |of| of.cycle_p99),
            fraction("requests/cycle", |of| of.requests),
            number("client CPU µs", |of| of.client_cpu),
            number("server CPU µs", |of| of.server_cpu),
            fraction("switches", |of| of.switches),
        ]
    };
    match workload {
        Workload::Alone => alone(),
        Workload::TwoProcesses { .. } => two(),
        Workload::Crowd(_) => crowd(),
        Workload::EightPaths => paths(),
    }
}

fn number(head: &'static str, figure: Figure) -> (&'static str, Cell) {
    (head, Box::new(move |row| shown(row.median(figure), 0)))
}

fn fraction(head: &'static str, figure: Figure) -> (&'static str, Cell) {
    (head, Box::new(move |row| shown(row.median(figure), 2)))
}

fn ratio(head: &'static str, figure: Figure) -> (&'static str, Cell) {
    (head, Box::new(move |row| row.ratio(figure).shown()))
}

/// How the time of an acquisition grows with the number of those who wait.
fn growth(text: &mut String, pairs: &[Pair], disk: Disk, workloads: &[Workload]) {
    let crowds: Vec<Workload> = workloads.iter().copied().filter(|of| matches!(of, Workload::Crowd(_))).collect();
    let [first, .., last] = crowds.as_slice() else { return };
    let heads: Vec<String> = crowds.iter().map(Workload::to_string).collect();
    let _ = writeln!(text, "### W3 growth: µs per acquisition (client CPU µs), server `{}`\n", disk.name());
    let _ = writeln!(text, "| peer | {} | growth |\n|---|{}", heads.join(" | "), "---|".repeat(heads.len() + 1));
    for row in rows(pairs, disk, *first) {
        let of = |workload: Workload| rows(pairs, disk, workload).into_iter().find(|other| other.peer == row.peer);
        let median = |workload: Workload, figure: Figure| of(workload).map_or(f64::NAN, |row| row.median(figure));
        let cell = |&workload: &Workload| {
            let (time, cpu) = (median(workload, |of| of.time), median(workload, |of| of.client_cpu));
            format!("{} ({})", shown(time, 0), shown(cpu, 0))
        };
        let cells: Vec<String> = crowds.iter().map(cell).collect();
        let grown = median(*last, |of| of.time) / median(*first, |of| of.time);
        let _ = writeln!(text, "| {} | {} | ×{} |", row.peer, cells.join(" | "), shown(grown, 1));
    }
    text.push('\n');
}

/// How quiet the machine was, and what the floor is to itself.
fn circumstances(pairs: &[Pair]) -> String {
    let mut text = String::new();
    let mut foreign: Vec<f64> = pairs.iter().filter_map(Pair::foreign).collect();
    foreign.sort_by(f64::total_cmp);
    let quantile =
        |share: f64| foreign.get((foreign.len() as f64 * share) as usize).or_else(|| foreign.last()).copied();
    let core = |share: f64| shown(quantile(share).unwrap_or(f64::NAN), 2);
    let _ = writeln!(
        text,
        "{} pairs of windows; cores that others used: median {}, 95th percentile {}, most {}; pairs done again: {}; disturbed \
         all the same: {}; failed: {}\n",
        pairs.len(),
        core(0.5),
        core(0.95),
        core(1.0),
        pairs.iter().map(|pair| pair.redone).sum::<usize>(),
        pairs.iter().filter(|pair| pair.is_disturbed()).count(),
        failures(pairs),
    );
    for disk in [Disk::Nofsync, Disk::Fsync] {
        if let Some(row) = rows(pairs, disk, Workload::Alone).iter().find(|row| row.peer == FLOOR) {
            let itself = row.ratio(headline(Workload::Alone).1).shown();
            let _ = writeln!(text, "A/A (the floor to itself, W1 cycle p50), server `{}`: {itself}\n", disk.name());
        }
    }
    text
}

/// How many pairs failed.
pub(crate) fn failures(pairs: &[Pair]) -> usize {
    pairs.iter().filter(|pair| matches!(pair.outcome, Outcome::Failed(_))).count()
}

impl Spread {
    pub(crate) fn shown(self) -> String {
        if self.median.is_nan() {
            return "-".to_owned();
        }
        let digits = if self.median < 0.1 { 3 } else { 2 };
        format!("{:.digits$} ({:.digits$}-{:.digits$})", self.median, self.least, self.most)
    }
}

pub(crate) fn spread(mut values: Vec<f64>) -> Spread {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    let half = values.len() / 2;
    let median =
        if values.len().is_multiple_of(2) && half > 0 { f64::midpoint(at(half - 1), at(half)) } else { at(half) };
    Spread { median, least: at(0), most: values.last().copied().unwrap_or(f64::NAN) }
}

pub(crate) fn shown(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { "-".to_owned() }
}

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().replace('|', "/")
}
