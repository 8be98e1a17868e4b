//! Drivers: programs that acquire and release locks on command. Each driver is a separate process.
//!
//! A driver reads one command from each line of its input, and writes one answer in JSON to each line of its output. A
//! driver exits when its input ends.
//!
//!     prepare ADDRESS BASE WORKERS PATHS HOLD_US      {}
//!     go START END                                    {"stamps": [WORKER, CALLED, ACQUIRED, RELEASING, RELEASED, ...]}
//!
//! `prepare` connects to the server at ADDRESS, starts the threads, and creates everything that is created once for
//! each path. Worker W uses the path BASE-P, with P = W mod PATHS. After `go`, each worker repeatedly acquires the
//! lock, holds it and releases it, beginning at START. A worker stops after a release at END or later. When all workers
//! have stopped, the driver disconnects and answers. All times are nanoseconds of CLOCK_MONOTONIC. An answer may be
//! {"error": "..."} instead.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::machine::Nanos;

/// The times of one acquire and its release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) worker: usize,
    /// The times at which acquire was called, acquire returned, release was called, and release returned.
    pub(crate) called: Nanos,
    pub(crate) acquired: Nanos,
    pub(crate) releasing: Nanos,
    pub(crate) released: Nanos,
}

/// The parameters of `prepare`.
#[derive(Clone, Debug)]
pub(crate) struct PrepareCommand {
    /// The address of the server.
    pub(crate) address: String,
    pub(crate) base: String,
    pub(crate) workers: usize,
    pub(crate) paths: usize,
    pub(crate) hold: Duration,
}

impl PrepareCommand {
    /// The path with this index.
    pub(crate) fn path(&self, index: usize) -> String {
        format!("{}-{index}", self.base)
    }

    fn to_line(&self) -> String {
        let Self { address, base, workers, paths, hold } = self;
        format!("prepare {address} {base} {workers} {paths} {}", hold.as_micros())
    }

    fn parse(words: &[&str]) -> Option<Self> {
        let &["prepare", address, base, workers, paths, hold] = words else { return None };
        let hold = Duration::from_micros(hold.parse().ok()?);
        let (address, base) = (address.to_owned(), base.to_owned());
        Some(Self { address, base, workers: workers.parse().ok()?, paths: paths.parse().ok()?, hold })
    }
}

/// A driver in Rust.
pub(crate) trait Driver {
    fn prepare(&mut self, order: &PrepareCommand) -> Result<(), String>;
    fn go(&mut self, start: Nanos, end: Nanos) -> Result<Vec<Stamp>, String>;
}

/// Executes the commands on standard input until it ends.
pub(crate) fn serve(driver: &mut dyn Driver) {
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let answer = execute(driver, &line).unwrap_or_else(|error| json!({ "error": error }));
        println!("{answer}");
    }
}

fn execute(driver: &mut dyn Driver, line: &str) -> Result<Value, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if let Some(order) = PrepareCommand::parse(&words) {
        return driver.prepare(&order).map(|()| json!({}));
    }
    let &["go", start, end] = words.as_slice() else { return Err(format!("no such command: {line}")) };
    let time = |word: &str| word.parse().map_err(|_| format!("not a time: {word}"));
    let stamps = driver.go(time(start)?, time(end)?)?;
    let flat = stamps.iter().flat_map(|stamp| {
        let Stamp { worker, called, acquired, releasing, released } = *stamp;
        [worker as Nanos, called, acquired, releasing, released]
    });
    Ok(json!({ "stamps": flat.collect::<Vec<Nanos>>() }))
}

/// The process of a driver. Dropping the value kills the process. The process also ends when the benchmark ends, for
/// whatever reason.
pub(crate) struct Process {
    child: Child,
    stdin: ChildStdin,
    answers: Receiver<String>,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Result<Self, String> {
        let name = command.get_program().display().to_string();
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("start {name}: {error}"))?;
        let stdin = child.stdin.take().expect("a piped input");
        let stdout = child.stdout.take().expect("a piped output");
        let (sender, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, stdin, answers })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub(crate) fn prepare(&mut self, order: &PrepareCommand) -> Result<(), String> {
        self.send_line(&order.to_line())?;
        self.receive_answer(Duration::from_secs(60)).map(drop)
    }

    /// Sends the command `go` without waiting for its answer.
    pub(crate) fn go(&mut self, start: Nanos, end: Nanos) -> Result<(), String> {
        self.send_line(&format!("go {start} {end}"))
    }

    /// Waits for the stamps of the last `go`.
    pub(crate) fn stamps(&self, limit: Duration) -> Result<Vec<Stamp>, String> {
        let receive_answer = self.receive_answer(limit)?;
        let numbers = receive_answer.get("stamps").and_then(Value::as_array).ok_or("the answer has no stamps")?;
        let numbers: Vec<Nanos> = numbers.iter().filter_map(Value::as_i64).collect();
        let stamp = |of: &[Nanos; 5]| {
            let &[worker, called, acquired, releasing, released] = of;
            Stamp { worker: worker as usize, called, acquired, releasing, released }
        };
        Ok(numbers.as_chunks().0.iter().map(stamp).collect())
    }

    /// Writes a command.
    pub(crate) fn send_line(&mut self, command: &str) -> Result<(), String> {
        writeln!(self.stdin, "{command}").map_err(|error| format!("the driver does not accept commands: {error}"))
    }

    /// Waits for the next answer.
    pub(crate) fn receive_answer(&self, limit: Duration) -> Result<Value, String> {
        let line = self.answers.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("no answer within {} s", limit.as_secs()),
            RecvTimeoutError::Disconnected => "the driver has ended".to_owned(),
        })?;
        let answer: Value = serde_json::from_str(&line).map_err(|error| format!("invalid answer: {line}: {error}"))?;
        match answer.get("error").and_then(Value::as_str) {
            Some(error) => Err(error.to_owned()),
            None => Ok(answer),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
