//! What the command prints: messages for people, and events as JSON. Everything goes to standard error, because
//! standard output belongs to the command that runs under the lock.

use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::time::Duration;

use rustix::termios::{isatty, tcgetwinsize};
use serde_json::{Value, json};

use crate::clock::wall_time;
use crate::duration;
use crate::exit::Failure;
use crate::output::Output;
use crate::owner::printable_line;
use crate::process;

/// The end of the command waits for at most this time until its last lines are written.
const LAST_LINES: Duration = Duration::from_secs(1);
/// An attempt to connect that takes longer is shown on a terminal.
const SLOW_CONNECT: Duration = Duration::from_secs(1);
/// The number of columns of a terminal that does not know its size.
const USUAL_WIDTH: usize = 80;

/// How much to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verbosity {
    /// Only errors, and what zklock does to the command.
    Quiet,
    /// Also that the lock is busy, and the progress of a wait.
    Normal,
    /// Also each step.
    Verbose,
}

/// The output of the command.
#[derive(Debug)]
pub(crate) struct Console {
    verbosity: Verbosity,
    is_json: bool,
    /// Standard error, if no output may block this process. The output starts with the first line, because its thread
    /// must not exist when the process forks.
    lines: Option<OnceCell<Option<Output>>>,
    is_terminal: bool,
    /// True while the last line of the terminal is the progress line.
    has_progress: Cell<bool>,
}

impl Console {
    pub(crate) fn new(verbosity: Verbosity, is_json: bool) -> Self {
        let is_terminal = isatty(io::stderr());
        Self { verbosity, is_json, lines: None, is_terminal, has_progress: Cell::new(false) }
    }

    /// Prints without blocking this process. Before the process ends, it must call [`finish`](Self::finish).
    pub(crate) fn without_blocking(self) -> Self {
        Self { lines: Some(OnceCell::new()), ..self }
    }

    /// Gives a slow reader a short time to read the last lines.
    pub(crate) fn finish(&self) {
        if let Some(Some(output)) = self.lines.as_ref().and_then(OnceCell::get) {
            output.wait_until_written(LAST_LINES);
        }
    }

    /// Returns whether someone sees the progress of a wait.
    pub(crate) fn shows_progress(&self) -> bool {
        self.is_json || (self.is_terminal && self.verbosity > Verbosity::Quiet)
    }

    /// Returns whether only errors are printed.
    pub(crate) fn is_quiet(&self) -> bool {
        self.verbosity == Verbosity::Quiet
    }

    /// Prints an event as JSON.
    pub(crate) fn event(&self, name: &str, mut fields: Value) {
        if self.is_json {
            if let Some(fields) = fields.as_object_mut() {
                fields.insert("event".to_owned(), name.into());
                fields.insert("time".to_owned(), format!("{:.3}", wall_time()).into());
            }
            self.print(&fields.to_string());
        }
    }

    /// Prints a step, for `-v`.
    pub(crate) fn step(&self, text: &str) {
        if self.verbosity >= Verbosity::Verbose && !self.is_json {
            self.say(text);
        }
    }

    /// Prints something that is no error.
    pub(crate) fn notice(&self, text: &str) {
        if self.verbosity > Verbosity::Quiet {
            self.warn(text);
        }
    }

    /// Prints something that went wrong, also with `-q`: what a lock protects may be incomplete.
    pub(crate) fn warn(&self, text: &str) {
        self.event("warning", json!({"message": text}));
        if !self.is_json {
            self.say(text);
        }
    }

    /// Prints why the command ends. A failure without a message prints nothing.
    pub(crate) fn failure(&self, failure: &Failure, code: u8) {
        self.clear();
        self.event("failed", json!({"message": failure.message, "exit_code": code}));
        if !self.is_json && !failure.message.is_empty() {
            self.say(&failure.message);
        }
    }

    /// Replaces the progress line of a terminal.
    pub(crate) fn progress(&self, text: &str) {
        let is_shown = self.is_terminal && !self.is_json && self.verbosity > Verbosity::Quiet;
        if !is_shown || process::is_in_background(io::stderr()) {
            return;
        }
        let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
        // A terminal that does not know its size has 0 columns.
        let columns = if columns == 0 { USUAL_WIDTH } else { columns.max(20) };
        let line: String = printable_line(text).chars().take(columns.saturating_sub(1)).collect();
        self.write(format!("\r{line}\x1b[K"));
        self.has_progress.set(true);
    }

    /// Shows that the servers have not answered for this time.
    pub(crate) fn connecting(&self, servers: &str, lasts: Duration) {
        if lasts >= SLOW_CONNECT {
            let lasts = duration::show_seconds(lasts);
            self.progress(&format!("connecting for {lasts} to {servers} ..."));
        }
    }

    /// Removes the progress line.
    pub(crate) fn clear(&self) {
        if self.has_progress.replace(false) {
            self.write("\r\x1b[K".to_owned());
        }
    }

    /// Prints a line for people. A message can contain text from other participants or from the servers.
    fn say(&self, text: &str) {
        self.print(&format!("zklock: {}", printable_line(text)));
    }

    fn print(&self, line: &str) {
        self.clear();
        self.write(format!("{line}\n"));
    }

    fn write(&self, text: String) {
        let start = || Output::start(File::from(io::stderr().as_fd().try_clone_to_owned().ok()?), self.dropped_lines());
        match self.lines.as_ref().and_then(|output| output.get_or_init(start).as_ref()) {
            Some(output) => output.push(text),
            // One write for each line, so the lines of several processes do not mix. The other end of the output may be
            // closed.
            None => drop(io::stderr().write_all(text.as_bytes())),
        }
    }

    fn dropped_lines(&self) -> fn(u64) -> String {
        match self.is_json {
            true => |count| format!("{}\n", json!({"event": "dropped", "count": count})),
            false => |count| format!("zklock: {count} lines were not printed\n"),
        }
    }
}
