//! The measurements as tables in Markdown.

use std::fmt::Write;

use crate::campaign::{Base, Disk, Outcome, Pair, WarmUp};
use crate::measure::{Figure, Figures, headline};
use crate::workload::Workload;

/// All rounds of one peer in one workload.
pub(crate) struct Row<'a> {
    pub(crate) peer: &'static str,
    /// The figures of the reference and of the peer, for each pair.
    measured: Vec<(&'a Figures, &'a Figures)>,
    failures: Vec<&'a str>,
    disturbed: usize,
    /// The number of pairs after a warm-up that reached its limit.
    unsteady: usize,
}

/// The median, both quartiles, and both extremes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) quartiles: (f64, f64),
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl<'a> Row<'a> {
    fn of(peer: &'static str, pairs: &[&'a Pair]) -> Self {
        let mut row = Row { peer, measured: Vec::new(), failures: Vec::new(), disturbed: 0, unsteady: 0 };
        for pair in pairs.iter().filter(|pair| pair.peer == peer) {
            row.disturbed += usize::from(pair.is_disturbed());
            row.unsteady += usize::from(!pair.is_steady && matches!(pair.outcome, Outcome::Measured { .. }));
            match &pair.outcome {
                Outcome::Measured { base, peer } => row.measured.push((base, peer)),
                Outcome::Failed(error) => row.failures.push(error),
            }
        }
        row
    }

    pub(crate) fn median(&self, figure: Figure) -> f64 {
        spread(self.measured.iter().map(|(_, peer)| figure(peer)).collect()).median
    }

    /// The median over the windows of the reference.
    fn base_median(&self, figure: Figure) -> f64 {
        spread(self.measured.iter().map(|(base, _)| figure(base)).collect()).median
    }

    /// The ratios of the pairs.
    pub(crate) fn ratio(&self, figure: Figure) -> Spread {
        spread(self.measured.iter().map(|(base, peer)| figure(peer) / figure(base)).collect())
    }
}

/// The rows of a workload, in the order of the peers.
pub(crate) fn rows(pairs: &[Pair], disk: Disk, workload: Workload) -> Vec<Row<'_>> {
    let of: Vec<&Pair> = pairs.iter().filter(|pair| pair.disk == disk && pair.workload == workload).collect();
    let mut peers: Vec<&'static str> = Vec::new();
    of.iter().filter(|pair| pair.round == 0).for_each(|pair| peers.push(pair.peer));
    peers.into_iter().map(|peer| Row::of(peer, &of)).collect()
}

/// The workloads that were measured, in order.
pub(crate) fn workloads(pairs: &[Pair], disk: Disk) -> Vec<Workload> {
    let mut workloads: Vec<Workload> = Vec::new();
    for pair in pairs.iter().filter(|pair| pair.disk == disk) {
        if !workloads.contains(&pair.workload) {
            workloads.push(pair.workload);
        }
    }
    workloads
}

pub(crate) fn tables(pairs: &[Pair], base: Base) -> String {
    let mut text = String::new();
    for disk in [Disk::Nofsync, Disk::Fsync] {
        let workloads = workloads(pairs, disk);
        for &workload in &workloads {
            table(&mut text, pairs, base, disk, workload);
        }
        growth(&mut text, pairs, disk, &workloads);
    }
    text + &disturbance_summary(pairs)
}

fn table(text: &mut String, pairs: &[Pair], base: Base, disk: Disk, workload: Workload) {
    let columns = columns(workload, base);
    let _ = writeln!(text, "### {workload}, server `{}`\n", disk.name());
    let heads: Vec<&str> = columns.iter().map(|(head, _)| head.as_str()).collect();
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
    if row.unsteady > 0 {
        let _ = write!(text, ", {} not steady", row.unsteady);
    }
    if row.disturbed > 0 {
        let _ = write!(text, ", {} disturbed", row.disturbed);
    }
    if let Some(error) = row.failures.first() {
        let _ = write!(text, ", {} failed: {}", row.failures.len(), one_line(error));
    }
    text
}

type Cell = Box<dyn Fn(&Row<'_>) -> String>;
type Column = (String, Cell);

/// The columns of a workload. The ratio of the main figure comes first, with its spread.
fn columns(workload: Workload, base: Base) -> Vec<Column> {
    let (what, figure) = headline(workload);
    let mut columns = headline_columns(what, figure, base);
    columns.extend(match workload {
        Workload::Uncontended => vec![
            number("cycle p50 µs", |of| of.cycle_p50),
            number("p99", |of| of.cycle_p99),
            number("acquire p50", |of| of.acquire_p50),
            number("release p50", |of| of.release_p50),
            ratio("p99", base, |of| of.cycle_p99),
            fraction("requests", |of| of.requests),
            number("client CPU µs", |of| of.client_cpu),
            ratio("client CPU", base, |of| of.client_cpu),
            number("server CPU µs", |of| of.server_cpu),
            fraction("switches", |of| of.switches),
        ],
        Workload::TwoProcesses { .. } => vec![
            number("hand-off p50 µs", |of| of.handoff_p50),
            number("p99", |of| of.handoff_p99),
            number("cycles/s", |of| 1e6 / of.time),
            ratio("time per cycle", base, |of| of.time),
            fraction("alternation", |of| of.alternation),
            fraction("requests", |of| of.requests),
            number("client CPU µs", |of| of.client_cpu),
            number("server CPU µs", |of| of.server_cpu),
            fraction("switches", |of| of.switches),
        ],
        Workload::ManyWaiters(_) => vec![
            number("acquisitions/s", |of| 1e6 / of.time),
            number("µs per acquisition", |of| of.time),
            fraction("wait p50 ms", |of| of.acquire_p50 / 1e3),
            fraction("wait p99 ms", |of| of.acquire_p99 / 1e3),
            number("hand-off p50 µs", |of| of.handoff_p50),
            number("hand-off p99", |of| of.handoff_p99),
            fraction("requests", |of| of.requests),
            number("client CPU µs", |of| of.client_cpu),
            number("server CPU µs", |of| of.server_cpu),
        ],
        Workload::EightPaths => vec![
            number("cycles/s", |of| 1e6 / of.time),
            number("cycle p50 µs", |of| of.cycle_p50),
            number("p99", |of| of.cycle_p99),
            fraction("requests", |of| of.requests),
            number("client CPU µs", |of| of.client_cpu),
            number("server CPU µs", |of| of.server_cpu),
            fraction("switches", |of| of.switches),
        ],
    });
    columns
}

fn headline_columns(what: &str, figure: Figure, base: Base) -> Vec<Column> {
    let mut columns: Vec<Column> = vec![
        (format!("{what} × {}", base.name()), Box::new(move |row| digits(row.ratio(figure).median))),
        ("quartiles".to_owned(), Box::new(move |row| range(row.ratio(figure).quartiles))),
        ("range".to_owned(), Box::new(move |row| row.ratio(figure).range())),
    ];
    if base == Base::Other {
        columns.push((
            format!("{what} of the other build, µs"),
            Box::new(move |row| format_number(row.base_median(figure), 0)),
        ));
    }
    columns
}

fn number(head: &str, figure: Figure) -> Column {
    (head.to_owned(), Box::new(move |row| format_number(row.median(figure), 0)))
}

fn fraction(head: &str, figure: Figure) -> Column {
    (head.to_owned(), Box::new(move |row| format_number(row.median(figure), 2)))
}

fn ratio(head: &str, base: Base, figure: Figure) -> Column {
    (format!("{head} × {} (quartiles)", base.name()), Box::new(move |row| row.ratio(figure).format()))
}

/// A table of the time per acquisition for each number of waiters.
fn growth(text: &mut String, pairs: &[Pair], disk: Disk, workloads: &[Workload]) {
    let crowds: Vec<Workload> = workloads.iter().copied().filter(|of| matches!(of, Workload::ManyWaiters(_))).collect();
    let [first, .., last] = crowds.as_slice() else { return };
    let heads: Vec<String> = crowds.iter().map(Workload::to_string).collect();
    let _ = writeln!(text, "### W3 growth: µs per acquisition (client CPU µs), server `{}`\n", disk.name());
    let _ = writeln!(text, "| peer | {} | growth |\n|---|{}", heads.join(" | "), "---|".repeat(heads.len() + 1));
    for row in rows(pairs, disk, *first) {
        let of = |workload: Workload| rows(pairs, disk, workload).into_iter().find(|other| other.peer == row.peer);
        let median = |workload: Workload, figure: Figure| of(workload).map_or(f64::NAN, |row| row.median(figure));
        let cell = |&workload: &Workload| {
            let (time, cpu) = (median(workload, |of| of.time), median(workload, |of| of.client_cpu));
            format!("{} ({})", format_number(time, 0), format_number(cpu, 0))
        };
        let cells: Vec<String> = crowds.iter().map(cell).collect();
        let grown = median(*last, |of| of.time) / median(*first, |of| of.time);
        let _ = writeln!(text, "| {} | {} | ×{} |", row.peer, cells.join(" | "), format_number(grown, 1));
    }
    text.push('\n');
}

/// The load of the machine by other processes.
fn disturbance_summary(pairs: &[Pair]) -> String {
    let mut text = String::new();
    let mut foreign: Vec<f64> = pairs.iter().filter_map(Pair::foreign).collect();
    foreign.sort_by(f64::total_cmp);
    let quantile =
        |share: f64| foreign.get((foreign.len() as f64 * share) as usize).or_else(|| foreign.last()).copied();
    let core = |share: f64| format_number(quantile(share).unwrap_or(f64::NAN), 2);
    let _ = writeln!(
        text,
        "{} pairs of windows; processor cores that other processes used: median {}, 95th percentile {}, maximum {}; repeated \
         pairs: {}; pairs that stayed disturbed: {}; failed: {}\n",
        pairs.len(),
        core(0.5),
        core(0.95),
        core(1.0),
        pairs.iter().map(|pair| pair.redone).sum::<usize>(),
        pairs.iter().filter(|pair| pair.is_disturbed()).count(),
        failures(pairs),
    );
    text
}

/// A table of the number of windows of each warm-up.
pub(crate) fn warm_ups(warm_ups: &[WarmUp]) -> String {
    let mut places: Vec<(Disk, Workload)> = Vec::new();
    let mut peers: Vec<&str> = Vec::new();
    for warm_up in warm_ups {
        let setup = (warm_up.disk, warm_up.workload);
        if !places.contains(&setup) {
            places.push(setup);
        }
        if !peers.contains(&warm_up.peer.as_str()) {
            peers.push(&warm_up.peer);
        }
    }
    if places.is_empty() {
        return String::new();
    }
    let mut text = "### Warm-up: number of windows until two consecutive windows agreed\n\n".to_owned();
    let heads: Vec<String> =
        places.iter().map(|(disk, workload)| format!("{} `{}`", workload.short(), disk.name())).collect();
    let _ = writeln!(text, "| peer | {} |\n|---|{}", heads.join(" | "), "---|".repeat(heads.len()));
    for peer in peers {
        let last = |&setup: &(Disk, Workload)| {
            warm_ups.iter().rev().find(|of| of.peer == peer && (of.disk, of.workload) == setup)
        };
        let cell = |setup| match last(setup) {
            None => "-".to_owned(),
            Some(of) if of.is_steady => of.windows.len().to_string(),
            Some(of) => format!("{}, not steady", of.windows.len()),
        };
        let cells: Vec<String> = places.iter().map(cell).collect();
        let _ = writeln!(text, "| {peer} | {} |", cells.join(" | "));
    }
    text.push('\n');
    let unsteady: Vec<String> = warm_ups.iter().filter(|of| !of.is_steady).map(unsteady).collect();
    let list = if unsteady.is_empty() { "none".to_owned() } else { unsteady.join("; ") };
    let _ = writeln!(text, "Not steady at the limit: {list}.\n");
    text
}

fn unsteady(of: &WarmUp) -> String {
    let last =
        of.windows.iter().rev().take(2).rev().map(|&value| format_number(value, 0)).collect::<Vec<_>>().join(" and ");
    format!("{} in {} on `{}` (last windows {last} µs)", of.peer, of.workload.short(), of.disk.name())
}

/// The number of pairs that failed.
pub(crate) fn failures(pairs: &[Pair]) -> usize {
    pairs.iter().filter(|pair| matches!(pair.outcome, Outcome::Failed(_))).count()
}

impl Spread {
    pub(crate) fn format(self) -> String {
        if self.median.is_nan() {
            return "-".to_owned();
        }
        format!("{} ({})", digits(self.median), range(self.quartiles))
    }

    fn range(self) -> String {
        range((self.least, self.most))
    }
}

/// Formats a ratio with three significant digits.
fn digits(ratio: f64) -> String {
    format_number(ratio, if ratio < 0.1 { 3 } else { 2 })
}

fn range((from, to): (f64, f64)) -> String {
    if from.is_nan() { "-".to_owned() } else { format!("{}-{}", digits(from), digits(to)) }
}

pub(crate) fn spread(mut values: Vec<f64>) -> Spread {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    let at = |share: f64| quantile(&values, share);
    Spread { median: at(0.5), quartiles: (at(0.25), at(0.75)), least: at(0.0), most: at(1.0) }
}

/// A quantile, interpolated between two of the sorted values if necessary. NaN if there are no values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let position = sorted.len().saturating_sub(1) as f64 * share;
    let (below, part) = (position.floor() as usize, position.fract());
    let at = |index: usize| sorted.get(index).or_else(|| sorted.last()).copied().unwrap_or(f64::NAN);
    at(below) + (at(below + 1) - at(below)) * part
}

pub(crate) fn format_number(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { "-".to_owned() }
}

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().replace('|', "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_its_quartiles_between_the_values() {
        let spread = spread(vec![7.0, 1.0, 2.0, 4.0, f64::NAN, 3.0, 6.0, 5.0]);
        assert_eq!(spread, Spread { median: 4.0, quartiles: (2.5, 5.5), least: 1.0, most: 7.0 });
        assert_eq!(spread.format(), "4.00 (2.50-5.50)");
    }

    #[test]
    fn a_warm_up_that_reached_its_limit_is_reported() {
        let of = |peer: &str, is_steady, windows| WarmUp {
            disk: Disk::Fsync,
            workload: Workload::ManyWaiters(64),
            peer: peer.to_owned(),
            is_steady,
            windows,
        };
        let text = warm_ups(&[of("zklock-c", true, vec![9.0, 9.1]), of("curator", false, vec![30.0, 20.0, 15.0])]);
        assert!(text.contains("| peer | W3-64 `fsync` |\n"), "{text}");
        assert!(text.contains("| zklock-c | 2 |\n| curator | 3, not steady |\n"), "{text}");
        assert!(
            text.ends_with("Not steady at the limit: curator in W3-64 on `fsync` (last windows 20 and 15 µs).\n\n"),
            "{text}"
        );
    }
}
