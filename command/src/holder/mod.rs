//! The verbs `hold` and `release`: a lock for a shell script. `hold` acquires the lock and returns, as `ssh-agent`
//! does. A process in the background, the *holder process*, has the session, and releases the lock when the process
//! ends to which the lock is bound.
//!
//! The program forks before the library starts a thread. The child is the holder process, and the parent waits for its
//! report. The holder process releases the lock if the parent ends before it has confirmed the report.

mod bound;
mod process;
pub(crate) mod release;
mod report;
mod shell;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use self::bound::Bound;
use self::process::{HolderProcess, console};
use self::report::{CONFIRMATION, Caller, UNPRINTED};
pub(crate) use self::shell::quote;
use crate::cli::HoldArguments;
use crate::exit::{Exit, Failure};
use crate::observe::table::print;
use crate::run::hold::Mode;
use crate::run::nesting::Held;
use crate::run::{check_lengths, paths, signals};
use crate::settings::Settings;
use crate::variables;

/// Acquires a lock in the background, prints what a script needs to know, and returns the exit code.
pub(crate) fn run(arguments: &HoldArguments) -> u8 {
    let code = start(arguments).unwrap_or_else(|failure| fail(arguments, &failure));
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

/// Prints why this process ends, and returns its exit code.
fn fail(arguments: &HoldArguments, failure: &Failure) -> u8 {
    console(arguments).failure(failure, failure.exit.code());
    failure.exit.code()
}

fn start(arguments: &HoldArguments) -> Result<u8, Failure> {
    let (mode, paths) = (Mode::of(&arguments.lock), paths(&arguments.path, &arguments.lock)?);
    let settings = Settings::of_process(&arguments.connection)?;
    let held = Held::check(std::env::var_os(variables::HELD).as_deref(), &settings.servers, &paths)?;
    check_lengths(&paths, mode, &held.value(Some(i32::MAX)))?;
    signals::restore_child_signal();
    close_inherited();
    let bound = Bound::choose(arguments)?;
    let (to_holder, to_caller) =
        UnixStream::pair().map_err(|error| Failure::system("making a pair of sockets", error))?;
    // SAFETY: The process has a single thread, so no lock can be held in the copy by a thread that does not exist
    // there.
    match unsafe { libc::fork() } {
        -1 => Err(Failure::system("starting the holder process", io::Error::last_os_error())),
        0 => {
            drop(to_holder);
            let (paths, settings, held, bound) = (&paths, &settings, &held, &bound);
            let holder =
                HolderProcess { arguments, mode, paths, settings, held, bound, caller: Caller::new(to_caller) };
            let result = signals::block().and_then(|(signals, _)| holder.run(signals));
            let code = result.map_or_else(|failure| fail(arguments, &failure), Exit::code);
            std::process::exit(code.into())
        }
        pid => {
            drop(to_caller);
            wait_for_report(pid, to_holder)
        }
    }
}

/// Closes all descriptors but the standard streams. Otherwise, a program that reads from a pipe of the caller would
/// wait for the end of the holder process. Old kernels do not know the call.
fn close_inherited() {
    // SAFETY: The process has opened no descriptor that it still uses.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

/// Waits until the holder process has acquired the lock or has failed. Prints its report.
fn wait_for_report(pid: i32, mut holder: UnixStream) -> Result<u8, Failure> {
    let mut report = Vec::new();
    holder.read_to_end(&mut report).map_err(|error| Failure::system("reading from the holder process", error))?;
    let printed = print_report(&report, &mut holder).inspect_err(|_| {
        // The caller does not know the lock. The holder process may have ended.
        let _ = Pid::from_raw(pid).map(|holder| kill_process(holder, Signal::TERM));
    });
    if printed? {
        return Ok(0);
    }
    let status = waitpid(Pid::from_raw(pid), WaitOptions::empty());
    let status = status.map_err(|error| Failure::system("waiting for the holder process", error))?;
    let code = status.and_then(|(_, status)| status.exit_status()).and_then(|code| u8::try_from(code).ok());
    match code {
        None => {
            let message =
                "the holder process was killed; if it held the lock, the lock becomes free when its session ends";
            Err(Failure::new(Exit::Internal, message))
        }
        // The holder process has printed why it failed.
        Some(code @ 1..) if report.is_empty() => Ok(code),
        Some(code) if code == Exit::Lost.code() => {
            Err(Failure::new(Exit::Lost, "the lock was lost before its report could be printed"))
        }
        Some(_) => Err(Failure::new(Exit::Busy, UNPRINTED)),
    }
}

/// Prints the report of the holder process. Returns false if the process has ended.
///
/// The holder process keeps the lock only after the confirmation. From the confirmation on, this process does not end
/// before it has printed the report. Otherwise, the lock would be held, and the caller would not know it.
fn print_report(report: &[u8], holder: &mut UnixStream) -> Result<bool, Failure> {
    if report.is_empty() || !wait_for_output(holder)? {
        return Ok(false);
    }
    let failed = |error| Failure::system("blocking signals", error);
    let before = signals::Mask::all().set().map_err(failed)?;
    if holder.write_all(&[CONFIRMATION]).is_err() {
        before.set().map_err(failed)?;
        return Ok(false);
    }
    // The standard library would hide that standard output is not open for writing.
    let output = rustix::io::dup(rustix::stdio::stdout()).map_err(io::Error::from);
    let printed = output.and_then(|output| File::from(output).write_all(report));
    printed.map(|()| true).map_err(|error| Failure::system("writing to standard output", error))
}

/// Waits until standard output takes a text. Returns false if the holder process has ended.
fn wait_for_output(holder: &UnixStream) -> Result<bool, Failure> {
    let output = PollFd::from_borrowed_fd(rustix::stdio::stdout(), PollFlags::OUT);
    let mut sources = [output, PollFd::new(holder, PollFlags::empty())];
    loop {
        match poll(&mut sources, None) {
            Ok(_) => return Ok(sources.iter().skip(1).all(|holder| holder.revents().is_empty())),
            Err(Errno::INTR) => {}
            Err(error) => return Err(Failure::system("waiting for standard output", error)),
        }
    }
}
