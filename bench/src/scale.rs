//! What zklock needs where there is much of it: `drivers/scale.c`, and what came of it as a table.

use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::campaign::Disk;
use crate::driver::Process;
use crate::machine::Cores;
use crate::peer::Workshop;
use crate::table::shown;

/// Which runs, and how large.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Full,
    /// Just to see that it works.
    Small,
}

/// A run of the driver.
struct Run {
    title: &'static str,
    mode: &'static str,
    count: usize,
    /// Paths, or clients.
    parts: usize,
    limit: Duration,
}

/// What came of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Scale {
    title: &'static str,
    count: usize,
    parts: usize,
    limit_seconds: u64,
    /// The driver's answer, or why there is none.
    outcome: Result<Value, String>,
}

const MEMORY: [Run; 2] = [
    Run { title: "locks held by one client", mode: "held", count: 10_000, parts: 1, limit: minutes(2) },
    Run {
        title: "operations that wait, of one client, on 100 paths",
        mode: "waiting",
        count: 10_000,
        parts: 100,
        limit: minutes(2),
    },
];

const SCALE: [Run; 3] = [
    Run { title: "waiters for one lock, of 100 clients", mode: "crowd", count: 10_000, parts: 100, limit: minutes(5) },
    Run { title: "clients in one process", mode: "clients", count: 1000, parts: 1, limit: minutes(2) },
    Run { title: "start-up of a client", mode: "start-up", count: 200, parts: 1, limit: minutes(1) },
];

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

/// Memory of what is held, and of what waits.
pub(crate) fn memory(workshop: &Workshop, cores: Cores, size: Size) -> Result<Vec<Scale>, String> {
    run_all(&MEMORY, workshop, cores, size)
}

/// Many waiters, many clients, and how long a client takes to start.
pub(crate) fn scale(workshop: &Workshop, cores: Cores, size: Size) -> Result<Vec<Scale>, String> {
    run_all(&SCALE, workshop, cores, size)
}

fn run_all(runs: &[Run], workshop: &Workshop, cores: Cores, size: Size) -> Result<Vec<Scale>, String> {
    workshop.compile_scale()?;
    Ok(runs.iter().map(|run| run.run(workshop, cores, size)).collect())
}

impl Run {
    fn run(&self, workshop: &Workshop, cores: Cores, size: Size) -> Scale {
        let shrink = if size == Size::Small { 50 } else { 1 };
        let (count, parts) = (self.count / shrink, self.parts.div_ceil(shrink));
        let server = Disk::Nofsync.start(cores);
        let command = workshop.scale_command(&server.address(), self.mode, count, parts);
        let outcome = Process::start(command).and_then(|driver| driver.answer(self.limit));
        eprintln!("{} {}: {outcome:?}", count, self.title);
        Scale { title: self.title, count, parts, limit_seconds: self.limit.as_secs(), outcome }
    }
}

/// How many failed or did not finish.
pub(crate) fn failures(runs: &[Scale]) -> usize {
    runs.iter().filter(|run| run.outcome.is_err()).count()
}

/// What was measured, in Markdown.
pub(crate) fn table(runs: &[Scale]) -> String {
    let mut text = String::new();
    if runs.is_empty() {
        return text;
    }
    text.push_str("### Many at once: zklock from C, server `nofsync`\n\n");
    text.push_str("| what | step | seconds | client CPU s | allocated bytes each | resident bytes each | threads |\n");
    text.push_str("|---|---|---|---|---|---|---|\n");
    runs.iter().for_each(|run| run.rows(&mut text));
    text.push('\n');
    text
}

impl Scale {
    fn rows(&self, text: &mut String) {
        let head = format!("| {} {} |", self.count, self.title);
        let answer = match &self.outcome {
            Ok(answer) => answer,
            Err(error) => {
                let _ = writeln!(
                    text,
                    "{head} not finished: {} (limit {} s) | | | | | |",
                    error.replace('|', "/"),
                    self.limit_seconds
                );
                return;
            }
        };
        let number = |of: &Value, key: &str| of.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN);
        let threads = shown(number(answer, "threads"), 0);
        for step in answer.get("steps").and_then(Value::as_array).into_iter().flatten() {
            let each = |key: &str| shown(number(step, key) / self.count as f64, 0);
            let (seconds, cpu) = (shown(number(step, "seconds"), 2), shown(number(step, "cpu"), 2));
            let name = step.get("step").and_then(Value::as_str).unwrap_or_default();
            let _ =
                writeln!(text, "{head} {name} | {seconds} | {cpu} | {} | {} | {threads} |", each("heap"), each("rss"));
        }
        if answer.get("p50").is_some() {
            let (p50, p99) = (number(answer, "p50") * 1e3, number(answer, "p99") * 1e3);
            let _ = writeln!(text, "{head} p50 {} ms, p99 {} ms | | | | | |", shown(p50, 2), shown(p99, 2));
        }
    }
}

/// How many bytes libzklock.so has without its symbols.
pub(crate) fn stripped_size(workshop: &Workshop) -> Option<u64> {
    let stripped = workshop.directory().join("stripped.so");
    let mut command = Command::new("strip");
    command.arg("-o").arg(&stripped).arg(workshop.library().join("libzklock.so"));
    command.status().ok().filter(std::process::ExitStatus::success)?;
    stripped.metadata().ok().map(|metadata| metadata.len())
}
