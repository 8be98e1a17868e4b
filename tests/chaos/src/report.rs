//! The report of a run: a table for readers and a line of JSON for later comparison.

use std::fmt::Write;
use std::time::Duration;

use crate::checker::{Rule, Statistics};
use crate::run::{Environment, Outcome, Plan};

/// The maximum number of violations in the report.
const SHOWN: usize = 20;

/// Formats the table.
pub fn table(plan: &Plan, outcome: &Outcome) -> String {
    let mut text = String::new();
    let judgment = &outcome.report;
    let place = if plan.environment == Environment::Network { "network namespaces" } else { "loopback" };
    let length = outcome.length.as_secs_f64();
    let mut say = |line: String| text.push_str(&(line + "\n"));
    say(format!("seed {}, {place}, session timeout {:?}, faults for {length:.0} s", plan.seed, plan.session_timeout));
    let total = judgment.total();
    let columns: Vec<(&str, &Statistics)> =
        judgment.statistics.iter().map(|(name, statistics)| (*name, statistics)).collect();
    let columns: Vec<(&str, &Statistics)> = columns.into_iter().chain([("all", &total)]).collect();
    let mut row = |name: &str, show: &dyn Fn(&Statistics) -> String| {
        let cells: String = columns.iter().map(|(_, statistics)| format!("{:>10}", show(statistics))).collect();
        say(format!("  {name:34}{cells}"));
    };
    row("", &|statistics| {
        columns
            .iter()
            .find(|(_, other)| std::ptr::eq(*other, statistics))
            .map_or_else(String::new, |(name, _)| (*name).to_owned())
    });
    for (name, show) in ROWS {
        row(name, show);
    }
    for (fault, count) in &outcome.completed_faults {
        say(format!("  survived: {fault:30}{count:>4}"));
    }
    if let Some(interval) = plan.certificate_rotation {
        say(format!("  connections with TLS; certificates replaced every {interval:?}, {} times", outcome.rotations));
    }
    if plan.uses_sasl {
        say("  connections with SASL (DIGEST-MD5)".to_owned());
    }
    say(format!("  faults survived {}", outcome.completed_faults.values().sum::<usize>()));
    let (writes_accepted, writes_stale, lock_nodes) =
        (judgment.writes_accepted, judgment.writes_stale, judgment.lock_nodes);
    say(format!("  writes accepted {writes_accepted}, stale writes that tokens prevented {writes_stale}"));
    let (transactions, rolled_back) = (judgment.transactions, judgment.rolled_back);
    say(format!(
        "  transactions {transactions}, nodes of locks {lock_nodes}; transactions that a leader lost {rolled_back}"
    ));
    say(format!("  last node deleted {:.2} s after the programs had finished", outcome.cleanup_time.as_secs_f64()));
    for rule in Rule::ALL {
        say(format!("  {:34}{:>4}", rule.to_string(), judgment.count(rule)));
    }
    for violation in judgment.violations.iter().take(SHOWN) {
        say(format!("  VIOLATION {}: {}", violation.rule, violation.text));
    }
    if !judgment.violations.is_empty() {
        say(format!("  traces: {}", outcome.directory.display()));
    }
    text
}

type Row = (&'static str, &'static dyn Fn(&Statistics) -> String);

const ROWS: [Row; 13] = [
    ("programs", &|statistics| statistics.processes.to_string()),
    ("killed", &|statistics| statistics.killed.to_string()),
    ("calls", &|statistics| statistics.calls.to_string()),
    ("acquisitions", &|statistics| statistics.acquisitions.to_string()),
    ("checks of holds", &|statistics| statistics.state_checks.to_string()),
    ("losses that were noticed", &|statistics| statistics.losses.to_string()),
    ("events delivered", &|statistics| statistics.events.to_string()),
    ("events missed", &|statistics| statistics.event_errors.to_string()),
    ("first checks after a pause", &|statistics| statistics.checks_after_pause.to_string()),
    ("worst deadline overrun", &|statistics| seconds(statistics.worst_overrun)),
    ("longest claim after a removal", &|statistics| seconds(statistics.worst_removal_notice)),
    ("longest wait after the last fault", &|statistics| seconds(statistics.longest_wait)),
    ("acquired of calls", &|statistics| {
        format!("{:.0} %", 100.0 * statistics.acquisitions as f64 / statistics.calls.max(1) as f64)
    }),
];

fn seconds(duration: Duration) -> String {
    format!("{:.3} s", duration.as_secs_f64())
}

/// Formats the line of JSON.
pub fn json(plan: &Plan, outcome: &Outcome) -> String {
    let judgment = &outcome.report;
    let total = judgment.total();
    let mut text = String::from("{");
    let mut targets = |name: &str, value: String| {
        let comma = if text.len() > 1 { ", " } else { "" };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}\"{name}\": {value}");
    };
    targets("seed", plan.seed.to_string());
    targets("rotations", outcome.rotations.to_string());
    targets("place", format!("\"{:?}\"", plan.environment).to_lowercase());
    targets("seconds", format!("{:.1}", outcome.length.as_secs_f64()));
    targets("acquisitions", total.acquisitions.to_string());
    targets("calls", total.calls.to_string());
    targets("faults", outcome.completed_faults.values().sum::<usize>().to_string());
    targets("losses", total.losses.to_string());
    targets("writes", judgment.writes_accepted.to_string());
    targets("stale_without_tokens", judgment.writes_stale.to_string());
    targets("forgotten_by_a_leader", judgment.rolled_back.to_string());
    targets("events", total.events.to_string());
    targets("awakenings", total.checks_after_pause.to_string());
    targets("worst_overrun_ms", total.worst_overrun.as_millis().to_string());
    targets("worst_notice_ms", total.worst_removal_notice.as_millis().to_string());
    targets("longest_wait_ms", total.longest_wait.as_millis().to_string());
    for rule in Rule::ALL {
        targets(&format!("{rule:?}").to_lowercase(), judgment.count(rule).to_string());
    }
    text + "}"
}
