//! The `zklock` command, which runs programs under a distributed lock. The program in `bin/zklock.rs` and the Python
//! package call it. This file turns the arguments into a job.

mod cli;
mod clock;
mod console;
mod doctor;
mod duration;
mod exit;
mod holder;
mod observe;
mod operate;
mod output;
mod owner;
mod process;
mod run;
mod settings;
mod survey;
mod text;
mod variables;

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::path::Path;
use std::time::Duration;

use clap::CommandFactory as _;
use serde_json::json;

use crate::cli::{Call, Connection, JobArguments, LockArguments, RunArguments, TryArguments, Verb, Waiting};
use crate::console::{Console, Verbosity};
use crate::exit::{Exit, Failure};
use crate::run::inbox::end_first_process_on_signal;
use crate::run::{Job, Mode, paths};
use crate::settings::Settings;

/// Runs the command with the arguments of a process, beginning with the name of the program, and returns its exit code.
///
/// Call this function once, on the first thread of a process that has no other threads: the function forks, and blocks
/// signals. The process should end with the exit code.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    open_standard_streams();
    let words = cli::verb_first(arguments.into_iter().collect());
    let Call { cli, command, late_option } = match cli::parse(words.clone()) {
        Ok(call) => call,
        Err(error) => {
            if error.use_stderr() {
                holder::fail_script(&words, Exit::Usage.code());
            }
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Command(0) };
            return match error.print() {
                // The other end of the output may be closed.
                Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                    end(Err(Failure::system("writing to standard output", error)), false)
                }
                _ => exit.code(),
            };
        }
    };
    let handles_signals = matches!(cli.verb, Verb::Run(_) | Verb::Try(_) | Verb::Hold(_) | Verb::Top(_));
    if !handles_signals && let Err(failure) = end_first_process_on_signal() {
        return end(Err(failure), false);
    }
    match cli.verb {
        Verb::Run(RunArguments { connection, lock, waiting, job, path }) => {
            start(&Arguments { connection, lock, waiting, path, command, late_option, needs_command: true }, job)
        }
        Verb::Try(TryArguments { connection, lock, job, path }) => {
            let waiting = Waiting { nonblock: true, ..Waiting::default() };
            start(&Arguments { connection, lock, waiting, path, command, late_option, needs_command: false }, job)
        }
        Verb::Ls(arguments) => end(observe::ls::run(&arguments), arguments.json),
        Verb::Wait(arguments) => end(observe::await_free::run(&arguments), arguments.json),
        Verb::Revoke(arguments) => end(operate::revoke::run(&arguments), arguments.json),
        Verb::Break(arguments) => end(operate::break_lock::run(&arguments), arguments.json),
        Verb::Hold(arguments) => holder::run(&arguments),
        Verb::Release(arguments) => end(holder::release::run(&arguments), false),
        Verb::Doctor(arguments) => end(doctor::run(&arguments), arguments.json),
        Verb::Status(arguments) => end(observe::status::run(&arguments), arguments.json),
        Verb::Top(arguments) => end(observe::top::run(&arguments), arguments.json),
    }
}

/// Returns the definition of the arguments, from which the man pages and the completions of shells are made.
pub fn definition() -> clap::Command {
    cli::Cli::command()
}

/// Opens `/dev/null` in place of the standard streams that the caller has closed. Otherwise, a descriptor of this
/// process could get the number of a standard stream. The runtime of a Rust program does the same, and Python's does
/// not.
fn open_standard_streams() {
    while let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        if null.as_raw_fd() > 2 {
            return;
        }
        let _ = null.into_raw_fd();
    }
}

/// The arguments of `run` and `try`, without the options of the command.
struct Arguments {
    connection: Connection,
    lock: LockArguments,
    waiting: Waiting,
    path: OsString,
    command: Vec<OsString>,
    late_option: Option<OsString>,
    needs_command: bool,
}

/// Runs a job and prints why it failed.
fn start(arguments: &Arguments, options: JobArguments) -> u8 {
    let verbosity = match (options.quiet, options.verbose) {
        (true, _) => Verbosity::Quiet,
        (_, true) => Verbosity::Verbose,
        _ => Verbosity::Normal,
    };
    let conflict = options.conflict_exit_code;
    let code = |exit: Exit| if exit == Exit::Busy { conflict } else { exit.code() };
    let console = Console::new(verbosity, options.json).without_blocking();
    let result = job(arguments, options).and_then(|job| run::run(&job, &console));
    let exit = match &result {
        Ok(exit) => *exit,
        Err(failure) => {
            if failure.exit != Exit::Busy || verbosity > Verbosity::Quiet {
                console.failure(failure, code(failure.exit));
            }
            failure.exit
        }
    };
    console.event("ended", json!({"exit_code": code(exit)}));
    console.finish();
    code(exit)
}

/// Returns the exit code, and prints why a verb failed.
fn end(result: Result<Exit, Failure>, is_json: bool) -> u8 {
    match result {
        Ok(exit) => exit.code(),
        Err(failure) => {
            Console::new(Verbosity::Normal, is_json).failure(&failure, failure.exit.code());
            failure.exit.code()
        }
    }
}

/// Checks the arguments.
fn job(arguments: &Arguments, options: JobArguments) -> Result<Job, Failure> {
    let paths = paths(&arguments.path, &arguments.lock)?;
    let command = command(arguments, options.shell.as_ref())?;
    if command.is_none() && arguments.needs_command {
        return Err(Failure::usage("no command is given; write it after the path, or use -c TEXT"));
    }
    let mode = Mode::of(&arguments.lock);
    let timeout = if arguments.waiting.nonblock { Some(Duration::ZERO) } else { arguments.waiting.timeout };
    let settings = Settings::of_process(&arguments.connection)?;
    Ok(Job { settings, mode, paths, command, timeout, options })
}

/// Returns the words of the command, if one is given.
fn command(arguments: &Arguments, shell: Option<&OsString>) -> Result<Option<Vec<OsString>>, Failure> {
    if let Some(option) = &arguments.late_option {
        let option = option.to_string_lossy();
        return Err(Failure::usage(format!(
            "{option} follows the path; write options before the path, or -- before the command"
        )));
    }
    match (shell, &*arguments.command) {
        (Some(text), []) => Ok(Some(vec!["/bin/sh".into(), "-c".into(), text.clone()])),
        (Some(_), _) => Err(Failure::usage("-c and a command are given; expected one of them")),
        (None, []) => Ok(None),
        // The user may have meant a second path.
        (None, [program, separator, ..]) if separator == "--" && is_missing(program) => {
            let program = program.to_string_lossy();
            Err(Failure::usage(format!(
                "the program {program} does not exist; to acquire several locks as a unit, write --and {program}"
            )))
        }
        (None, command) => Ok(Some(command.to_vec())),
    }
}

fn is_missing(program: &OsString) -> bool {
    program.as_encoded_bytes().starts_with(b"/") && !Path::new(program).exists()
}
