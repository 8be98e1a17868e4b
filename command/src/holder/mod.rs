//! The verbs `hold` and `release`: a lock for a shell script. `hold` acquires the lock and returns, as `ssh-agent` does. A process in the
//! background, the *holder process*, has the session, and releases the lock when the process ends to which the lock is bound.
//!
//! The program forks before the library starts a thread. The child is the holder process, and the parent waits for its report. The holder
//! process releases the lock if the parent ends before it has confirmed the report.

mod bound;
mod process;
pub(crate) mod release;
mod report;
mod shell;

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use self::bound::Bound;
use self::process::{HolderProcess, console};
use self::report::{CONFIRMATION, ReportTarget};
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
    let pair = UnixStream::pair().map_err(|error| Failure::system("making a pair of sockets", error))?;
    let (to_holder, to_caller) = pair;
    // SAFETY: The process has a single thread, so no lock can be held in the copy by a thread that does not exist there.
    match unsafe { libc::fork() } {
        -1 => Err(Failure::system("starting the holder process", io::Error::last_os_error())),
        0 => {
            drop(to_holder);
            let result = signals::block().and_then(|(signals, _)| start(ReportTarget::Caller(to_caller)).run(signals));
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
            drop(to_caller);
            wait_for_report(pid, to_holder)
        }
    }
}

/// Tells the holder process to keep the lock, as soon as a report can be printed without a wait. Returns false if the process has ended.
///
/// From then on, this process does not end before the report is printed. Otherwise, the lock would be held, and its caller would not know it.
fn confirm(holder: &mut UnixStream) -> Result<bool, Failure> {
    let output = io::stdout();
    let mut sources = [PollFd::new(&output, PollFlags::OUT), PollFd::new(&*holder, PollFlags::empty())];
    while let Err(error) = poll(&mut sources, None) {
        if error != Errno::INTR {
            return Err(Failure::system("waiting for standard output", error));
        }
    }
    let failed = |error| Failure::system("blocking signals", error);
    let before = signals::Mask::all().set().map_err(failed)?;
    let is_confirmed = holder.write_all(&[CONFIRMATION]).is_ok();
    if !is_confirmed {
        before.set().map_err(failed)?;
    }
    Ok(is_confirmed)
}

/// Closes all descriptors but the standard streams. Otherwise, a program that reads from a pipe of the caller would wait for the end of the
/// holder process. Old kernels do not know the call.
fn close_inherited() {
    // SAFETY: The process has opened no descriptor that it still uses.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

/// Waits until the holder process has acquired the lock or has failed. Prints its report.
fn wait_for_report(pid: i32, mut holder: UnixStream) -> Result<u8, Failure> {
    let mut report = String::new();
    holder.read_to_string(&mut report).map_err(|error| Failure::system("reading from the holder process", error))?;
    if !report.is_empty() && confirm(&mut holder)? {
        return answer(&report).map(|()| 0).inspect_err(|_| {
            // The caller does not know the lock. The holder process may have ended.
            let _ = Pid::from_raw(pid).map(|holder| kill_process(holder, Signal::TERM));
        });
    }
    // The holder process has printed why it failed, unless it had already left the streams of the caller.
    let status = waitpid(Pid::from_raw(pid), WaitOptions::empty());
    let status = status.map_err(|error| Failure::system("waiting for the holder process", error))?;
    let code = status.and_then(|(_, status)| status.exit_status()).and_then(|code| u8::try_from(code).ok());
    match code {
        Some(code @ 1..) => Ok(code),
        Some(0) => Err(Failure::new(Exit::Busy, "the lock was released before its report could be printed")),
        _ => Err(Failure::new(Exit::Internal, "the holder process was killed before it acquired the lock")),
    }
}
