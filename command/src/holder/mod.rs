//! The verbs `hold` and `release`: a lock for a shell script. `hold` acquires the lock and returns, as `ssh-agent` does. A process in the
//! background, the *holder process*, has the session, and releases the lock when the process ends to which the lock is bound.
//!
//! The program forks before the library starts a thread. The child is the holder process, and the parent waits for its report.

mod bound;
mod process;
pub(crate) mod release;
mod report;
mod shell;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use self::bound::Bound;
use self::process::{HolderProcess, console};
use self::report::ReportTarget;
use crate::cli::HoldArguments;
use crate::exit::{Exit, Failure};
use crate::observe::table::{answer, print};
use crate::run::hold::Mode;
use crate::run::{nesting, signals};
use crate::settings::Settings;

/// Acquires a lock in the background, prints what a script needs to know, and returns the exit code.
pub(crate) fn run(arguments: &HoldArguments) -> u8 {
    let code = match start(arguments) {
        Ok(code) => code,
        Err(failure) => {
            console(arguments).failure(&failure, failure.exit.code());
            failure.exit.code()
        }
    };
    if code != 0 && arguments.sh {
        print(&shell::failure(code));
    }
    code
}

/// Makes the `eval` of a script fail after an error in the arguments of `hold --sh` or `release --sh`.
pub(crate) fn fail_script(words: &[OsString], code: u8) {
    let is_for_script = words.iter().any(|word| word == "--sh");
    if is_for_script && words.get(1).is_some_and(|verb| verb == "hold" || verb == "release") {
        print(&shell::failure(code));
    }
}

fn start(arguments: &HoldArguments) -> Result<u8, Failure> {
    let mode = Mode::of(&arguments.lock);
    if matches!(mode, Mode::Semaphore { .. }) && arguments.paths.len() > 1 {
        return Err(Failure::usage("--semaphore allows only one path"));
    }
    let settings = Settings::read(&arguments.connection, |name| std::env::var_os(name))?;
    let held = nesting::check(std::env::var_os(nesting::HELD).as_deref(), &settings.servers, &arguments.paths)?;
    if !arguments.foreground {
        close_inherited();
    }
    let bound = Bound::choose(arguments)?;
    let start = |report_target| HolderProcess {
        arguments,
        mode,
        settings: &settings,
        held: &held,
        bound: &bound,
        report_target,
    };
    if arguments.foreground {
        let (signals, _) = signals::block()?;
        return start(ReportTarget::Standard).run(signals).map(Exit::code);
    }
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| Failure::system("making a pipe", error))?;
    // SAFETY: The process has a single thread, so no lock can be held in the copy by a thread that does not exist there.
    match unsafe { libc::fork() } {
        -1 => Err(Failure::system("starting the holder process", io::Error::last_os_error())),
        0 => {
            drop(reader);
            let result = signals::block().and_then(|(signals, _)| start(ReportTarget::Pipe(writer)).run(signals));
            let code = match result {
                Ok(exit) => exit.code(),
                Err(failure) => {
                    console(arguments).failure(&failure, failure.exit.code());
                    failure.exit.code()
                }
            };
            std::process::exit(code.into())
        }
        pid => {
            drop(writer);
            wait_for_report(pid, File::from(reader))
        }
    }
}

/// Closes all descriptors but the standard streams. Otherwise, a program that reads from a pipe of the caller would wait for the end of the
/// holder process. Old kernels do not know the call.
fn close_inherited() {
    // SAFETY: The process has opened no descriptor that it still uses.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

/// Waits until the holder process has acquired the lock or has failed.
fn wait_for_report(pid: i32, mut reader: File) -> Result<u8, Failure> {
    let mut report = String::new();
    reader.read_to_string(&mut report).map_err(|error| Failure::system("reading from the holder process", error))?;
    if !report.is_empty() {
        return answer(&report).map(|()| 0).inspect_err(|_| {
            // The caller does not know the lock. The holder process may have ended.
            let _ = Pid::from_raw(pid).map(|holder| kill_process(holder, Signal::TERM));
        });
    }
    // The holder process has printed why it failed.
    let status = waitpid(Pid::from_raw(pid), WaitOptions::empty());
    let status = status.map_err(|error| Failure::system("waiting for the holder process", error))?;
    let code = status.and_then(|(_, status)| status.exit_status()).and_then(|code| u8::try_from(code).ok());
    match code {
        Some(code @ 1..) => Ok(code),
        _ => Err(Failure::new(Exit::Internal, "the holder process was killed before it acquired the lock")),
    }
}
