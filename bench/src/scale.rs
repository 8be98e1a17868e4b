//! The cost of many locks, waiters and clients: runs of `drivers/scale.c`, and a table of their results.

use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use zklock_test_support::{Certificates, TlsListener};

use crate::campaign::Disk;
use crate::driver::Process;
use crate::floor::{self, tls::Cost};
use crate::machine::{Cores, SECOND};
use crate::peer::DriverBuilds;
use crate::table::format_number;

/// The size of the runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Full,
    /// So small that the runs only show that they work.
    Small,
}

/// A run of the driver.
struct Run {
    title: &'static str,
    mode: &'static str,
    count: usize,
    /// The number of paths or clients.
    parts: usize,
    limit: Duration,
}

/// The result of a run of the driver.
#[derive(Debug, Serialize)]
pub(crate) struct Scale {
    title: &'static str,
    count: usize,
    parts: usize,
    limit_seconds: u64,
    /// The answer of the driver, or an error.
    outcome: Result<Value, String>,
}

const MEMORY: [Run; 2] = [
    Run { title: "locks held by one client", mode: "held", count: 10_000, parts: 1, limit: minutes(2) },
    Run {
        title: "waiting operations of one client, on 100 paths",
        mode: "waiting",
        count: 10_000,
        parts: 100,
        limit: minutes(2),
    },
];

const SCALE: [Run; 3] = [
    Run {
        title: "waiters for one lock, of 100 clients",
        mode: "waiters",
        count: 10_000,
        parts: 100,
        limit: minutes(5),
    },
    Run { title: "clients in one process", mode: "clients", count: 1000, parts: 1, limit: minutes(2) },
    Run { title: "starts of a client", mode: "start-up", count: 200, parts: 1, limit: minutes(1) },
];

/// The parts are windows.
const TLS: Run = Run {
    title: "connects, and 200 windows with as many cycles",
    mode: "tls",
    count: 200,
    parts: 200,
    limit: minutes(5),
};

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

/// Measures the memory of held locks and of waiters.
pub(crate) fn memory(builds: &DriverBuilds, cores: Cores, size: Size) -> Result<Vec<Scale>, String> {
    run_all(&MEMORY, builds, cores, size)
}

/// Measures many waiters, many clients, and the start time of a client.
pub(crate) fn scale(builds: &DriverBuilds, cores: Cores, size: Size) -> Result<Vec<Scale>, String> {
    run_all(&SCALE, builds, cores, size)
}

/// Measures connections and cycles in plain text, and with TLS and certificates on both sides.
pub(crate) fn tls(builds: &DriverBuilds, cores: Cores, size: Size) -> Result<Vec<Scale>, String> {
    run_all(&[TLS], builds, cores, size)
}

fn run_all(runs: &[Run], builds: &DriverBuilds, cores: Cores, size: Size) -> Result<Vec<Scale>, String> {
    builds.compile_scale()?;
    Ok(runs.iter().map(|run| run.run(builds, cores, size)).collect())
}

impl Run {
    fn run(&self, builds: &DriverBuilds, cores: Cores, size: Size) -> Scale {
        let shrink = if size == Size::Small { 50 } else { 1 };
        let (count, parts) = (self.count / shrink, self.parts.div_ceil(shrink));
        let certificates = Certificates::shared();
        let listener = (self.mode == TLS.mode).then(|| TlsListener::new(certificates));
        let server = Disk::Nofsync.start_with(cores, listener.as_ref());
        let mut command = builds.scale_command(&server.address(), self.mode, count, parts);
        if listener.is_some() {
            let files = [("tls.ca", "ca.pem"), ("tls.cert", "client.pem"), ("tls.key", "client.key")];
            let options: Vec<String> =
                files.iter().map(|(option, file)| format!("{option}={}\n", certificates.file(file))).collect();
            command.arg(server.tls_address()).arg(certificates.write("scale.properties", &options.concat()));
        }
        let measure_floor =
            || floor::tls::measure(&server.address(), &server.tls_address(), certificates, count, parts);
        if listener.is_some() {
            // The first cycles warm up the TLS of the JVM, which takes longer than all else.
            measure_floor();
        }
        let mut outcome = Process::start(command).and_then(|driver| driver.receive_answer(self.limit));
        if let (Some(_), Ok(answer)) = (&listener, &mut outcome) {
            let names = ["cycles of the floor in plain text", "cycles of the floor with TLS"];
            add_steps(answer, names, measure_floor());
        }
        eprintln!("{} {}: {outcome:?}", count, self.title);
        Scale { title: self.title, count, parts, limit_seconds: self.limit.as_secs(), outcome }
    }
}

/// Adds steps to the answer of a driver.
fn add_steps(answer: &mut Value, names: [&str; 2], costs: [Cost; 2]) {
    let Some(Value::Array(steps)) = answer.get_mut("steps") else { return };
    for (name, cost) in names.into_iter().zip(costs) {
        let seconds = |time| time as f64 / SECOND as f64;
        steps.push(json!({"step": name, "seconds": seconds(cost.time), "cpu": seconds(cost.cpu)}));
    }
}

/// The number of runs that failed or did not finish.
pub(crate) fn failures(runs: &[Scale]) -> usize {
    runs.iter().filter(|run| run.outcome.is_err()).count()
}

/// The results in Markdown.
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
        let threads = format_number(number(answer, "threads"), 0);
        for step in answer.get("steps").and_then(Value::as_array).into_iter().flatten() {
            let each = |key: &str| format_number(number(step, key) / self.count as f64, 0);
            let (seconds, cpu) = (format_number(number(step, "seconds"), 2), format_number(number(step, "cpu"), 2));
            let name = step.get("step").and_then(Value::as_str).unwrap_or_default();
            let _ =
                writeln!(text, "{head} {name} | {seconds} | {cpu} | {} | {} | {threads} |", each("heap"), each("rss"));
        }
        if answer.get("p50").is_some() {
            let (p50, p99) = (number(answer, "p50") * 1e3, number(answer, "p99") * 1e3);
            let _ =
                writeln!(text, "{head} p50 {} ms, p99 {} ms | | | | | |", format_number(p50, 2), format_number(p99, 2));
        }
    }
}

/// The size of libzklock.so in bytes, without its symbols.
pub(crate) fn stripped_size(builds: &DriverBuilds) -> Option<u64> {
    let stripped = builds.directory().join("stripped.so");
    let mut command = Command::new("strip");
    command.arg("-o").arg(&stripped).arg(builds.library().join("libzklock.so"));
    command.status().ok().filter(std::process::ExitStatus::success)?;
    stripped.metadata().ok().map(|metadata| metadata.len())
}
