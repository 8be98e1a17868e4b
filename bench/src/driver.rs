//! Drivers: programs that acquire and release as they are told, each in a process of its own.
//!
//! Each line of a driver's input is a command, each line of its output the answer, in JSON. The end of its input is its own end.
//!
//!     prepare ADDRESS BASE WORKERS PATHS HOLD_US      {}
//!     go START END                                    {"stamps": [WORKER, CALLED, ACQUIRED, LEAVING, LEFT, ...]}
//!
//! To prepare is to connect to the server at ADDRESS, to start the threads, and to make what is made once for each path: worker W works on
//! the path BASE-P, with P = W mod PATHS. From START on each acquires, holds, and releases; whoever has released at END or later stops; when all have, the driver
//! disconnects and answers. All times are nanoseconds of CLOCK_MONOTONIC. An answer may be {"error": "..."} instead.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::machine::Nanos;

/// One acquire and its release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) worker: usize,
    /// When acquire was called, when it returned, when release was called, and when it returned.
    pub(crate) called: Nanos,
    pub(crate) acquired: Nanos,
    pub(crate) leaving: Nanos,
    pub(crate) left: Nanos,
}

/// What is to be prepared.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// Of the server.
    pub(crate) address: String,
    pub(crate) base: String,
    pub(crate) workers: usize,
    pub(crate) paths: usize,
    pub(crate) hold: Duration,
}

impl Order {
    /// The path of that index.
    pub(crate) fn path(&self, index: usize) -> String {
        format!("{}-{index}", self.base)
    }

    fn command(&self) -> String {
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

/// A driver in Rust: what a command does.
pub(crate) trait Driver {
    fn prepare(&mut self, order: &Order) -> Result<(), String>;
    fn go(&mut self, start: Nanos, end: Nanos) -> Result<Vec<Stamp>, String>;
}

/// Does what standard input says, until it ends.
pub(crate) fn serve(driver: &mut dyn Driver) {
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let answer = obey(driver, &line).unwrap_or_else(|error| json!({ "error": error }));
        println!("{answer}");
    }
}

fn obey(driver: &mut dyn Driver, line: &str) -> Result<Value, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if let Some(order) = Order::parse(&words) {
        return driver.prepare(&order).map(|()| json!({}));
    }
    let &["go", start, end] = words.as_slice() else { return Err(format!("no such command: {line}")) };
    let time = |word: &str| word.parse().map_err(|_| format!("no time: {word}"));
    let stamps = driver.go(time(start)?, time(end)?)?;
    let flat = stamps.iter().flat_map(|stamp| {
        let Stamp { worker, called, acquired, leaving, left } = *stamp;
        [worker as Nanos, called, acquired, leaving, left]
    });
    Ok(json!({ "stamps": flat.collect::<Vec<Nanos>>() }))
}

/// A driver's process. It is killed when this is dropped, and ends with the harness however that ends.
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

    pub(crate) fn prepare(&mut self, order: &Order) -> Result<(), String> {
        self.tell(&order.command())?;
        self.answer(Duration::from_secs(60)).map(drop)
    }

    /// Has it go at `start`, without waiting.
    pub(crate) fn go(&mut self, start: Nanos, end: Nanos) -> Result<(), String> {
        self.tell(&format!("go {start} {end}"))
    }

    /// What it did, once it has done it.
    pub(crate) fn stamps(&self, limit: Duration) -> Result<Vec<Stamp>, String> {
        let answer = self.answer(limit)?;
        let numbers = answer.get("stamps").and_then(Value::as_array).ok_or("an answer without stamps")?;
        let numbers: Vec<Nanos> = numbers.iter().filter_map(Value::as_i64).collect();
        let stamp = |of: &[Nanos; 5]| {
            let &[worker, called, acquired, leaving, left] = of;
            Stamp { worker: worker as usize, called, acquired, leaving, left }
        };
        Ok(numbers.as_chunks().0.iter().map(stamp).collect())
    }

    /// Writes a command.
    pub(crate) fn tell(&mut self, command: &str) -> Result<(), String> {
        writeln!(self.stdin, "{command}").map_err(|error| format!("the driver does not listen: {error}"))
    }

    /// The next answer.
    pub(crate) fn answer(&self, limit: Duration) -> Result<Value, String> {
        let line = self.answers.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("no answer within {} s", limit.as_secs()),
            RecvTimeoutError::Disconnected => "the driver has ended".to_owned(),
        })?;
        let answer: Value = serde_json::from_str(&line).map_err(|error| format!("not an answer: {line}: {error}"))?;
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
