//! What a run has shown: a table for people, and a line of JSON to be kept.

use std::fmt::Write;
use std::time::Duration;

use crate::judge::{Figures, Rule};
use crate::run::{Outcome, Place, Plan};

/// Of so many violations the first are told.
const SHOWN: usize = 20;

/// The table.
pub fn table(plan: &Plan, outcome: &Outcome) -> String {
    let mut text = String::new();
    let judgement = &outcome.judgement;
    let place = if plan.place == Place::Network { "network namespaces" } else { "loopback" };
    let length = outcome.length.as_secs_f64();
    let mut say = |line: String| text.push_str(&(line + "\n"));
    say(format!("seed {}, {place}, session timeout {:?}, faults for {length:.0} s", plan.seed, plan.session_timeout));
    let total = judgement.total();
    let columns: Vec<(&str, &Figures)> = judgement.figures.iter().map(|(name, figures)| (*name, figures)).collect();
    let columns: Vec<(&str, &Figures)> = columns.into_iter().chain([("all", &total)]).collect();
    let mut row = |name: &str, show: &dyn Fn(&Figures) -> String| {
        let cells: String = columns.iter().map(|(_, figures)| format!("{:>10}", show(figures))).collect();
        say(format!("  {name:34}{cells}"));
    };
    row("", &|figures| {
        columns
            .iter()
            .find(|(_, other)| std::ptr::eq(*other, figures))
            .map_or_else(String::new, |(name, _)| (*name).to_owned())
    });
    for (name, show) in ROWS {
        row(name, show);
    }
    for (fault, count) in &outcome.survived {
        say(format!("  survived: {fault:30}{count:>4}"));
    }
    say(format!("  faults survived {}", outcome.survived.values().sum::<usize>()));
    let (accepted, stale, nodes) = (judgement.accepted, judgement.stale, judgement.nodes);
    say(format!("  writes accepted {accepted}, would have been stale without tokens {stale}"));
    let (transactions, forgotten) = (judgement.transactions, judgement.forgotten);
    say(format!(
        "  transactions {transactions}, nodes of locks {nodes}; in the logs and forgotten by a leader {forgotten}"
    ));
    say(format!("  last node gone {:.2} s after all had finished", outcome.cleared.as_secs_f64()));
    for rule in Rule::ALL {
        say(format!("  {:34}{:>4}", rule.to_string(), judgement.count(rule)));
    }
    for violation in judgement.violations.iter().take(SHOWN) {
        say(format!("  VIOLATION {}: {}", violation.rule, violation.text));
    }
    if !judgement.violations.is_empty() {
        say(format!("  traces: {}", outcome.directory.display()));
    }
    text
}

type Row = (&'static str, &'static dyn Fn(&Figures) -> String);

const ROWS: [Row; 13] = [
    ("programs", &|figures| figures.processes.to_string()),
    ("killed", &|figures| figures.killed.to_string()),
    ("calls", &|figures| figures.calls.to_string()),
    ("acquisitions", &|figures| figures.acquisitions.to_string()),
    ("looks at holds", &|figures| figures.looks.to_string()),
    ("holds lost, and seen so", &|figures| figures.losses.to_string()),
    ("events delivered", &|figures| figures.events.to_string()),
    ("events missed", &|figures| figures.events_missed.to_string()),
    ("first looks after being away", &|figures| figures.awakenings.to_string()),
    ("worst deadline overrun", &|figures| seconds(figures.worst_overrun)),
    ("longest claim after a removal", &|figures| seconds(figures.worst_notice)),
    ("longest wait after the last fault", &|figures| seconds(figures.longest_wait)),
    ("acquired of calls", &|figures| {
        format!("{:.0} %", 100.0 * figures.acquisitions as f64 / figures.calls.max(1) as f64)
    }),
];

fn seconds(duration: Duration) -> String {
    format!("{:.3} s", duration.as_secs_f64())
}

/// The line of JSON.
pub fn json(plan: &Plan, outcome: &Outcome) -> String {
    let judgement = &outcome.judgement;
    let total = judgement.total();
    let mut text = String::from("{");
    let mut field = |name: &str, value: String| {
        let comma = if text.len() > 1 { ", " } else { "" };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}\"{name}\": {value}");
    };
    field("seed", plan.seed.to_string());
    field("place", format!("\"{:?}\"", plan.place).to_lowercase());
    field("seconds", format!("{:.1}", outcome.length.as_secs_f64()));
    field("acquisitions", total.acquisitions.to_string());
    field("calls", total.calls.to_string());
    field("faults", outcome.survived.values().sum::<usize>().to_string());
    field("losses", total.losses.to_string());
    field("writes", judgement.accepted.to_string());
    field("stale_without_tokens", judgement.stale.to_string());
    field("forgotten_by_a_leader", judgement.forgotten.to_string());
    field("events", total.events.to_string());
    field("awakenings", total.awakenings.to_string());
    field("worst_overrun_ms", total.worst_overrun.as_millis().to_string());
    field("worst_notice_ms", total.worst_notice.as_millis().to_string());
    field("longest_wait_ms", total.longest_wait.as_millis().to_string());
    for rule in Rule::ALL {
        field(&format!("{rule:?}").to_lowercase(), judgement.count(rule).to_string());
    }
    text + "}"
}
