//! `zklock release`: ends a holder process, and waits until it has released the lock.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::shell;
use crate::cli::ReleaseArguments;
use crate::exit::{Exit, Failure};
use crate::observe::table::answer;
use crate::variables::HOLD_PID;

/// The name of the holder process in `ps`.
pub(super) const PROCESS_NAME: &CStr = c"zklock-holder";
/// The name of the file in memory in which a holder process leaves its exit code. `zklock release` is not the parent of
/// the holder process, so it cannot ask the kernel for the exit code.
const EXIT_CODE_FILE: &str = "zklock-exit-code";
/// The time after which a release counts as not confirmed.
const LIMIT: Duration = Duration::from_secs(30);

/// Releases the lock.
pub(crate) fn run(arguments: &ReleaseArguments) -> Result<Exit, Failure> {
    let pid = arguments.pid.map_or_else(pid_of_environment, Ok);
    let released = pid.as_ref().map_err(Clone::clone).and_then(|&pid| release(pid));
    if arguments.sh {
        // After a loss, the script holds the lock as little as after a release.
        let is_over = matches!(&released, Ok(_) | Err(Failure { exit: Exit::Lost | Exit::Unconfirmed, .. }));
        let removed = pid.ok().filter(|_| is_over).map(|pid| shell::removal(pid, |name| std::env::var(name).ok()));
        let failed = released.as_ref().err().map(|failure| shell::failure(failure.exit.code()));
        answer(&[removed, failed].into_iter().flatten().collect::<String>())?;
    }
    released
}

fn release(pid: i32) -> Result<Exit, Failure> {
    let ended =
        || Failure::new(Exit::Lost, format!("process {pid} holds no lock; the lock was released or lost before"));
    let process = Some(pid).filter(|&pid| pid > 0).and_then(Pid::from_raw).ok_or_else(ended)?;
    let pidfd = match pidfd_open(process, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(Errno::SRCH | Errno::INVAL) => return Err(ended()),
        Err(error) => return Err(Failure::system("opening the holder process", error)),
    };
    // Another process can have the number of a holder process that has ended.
    if !is_running_holder(pid) || has_ended_within(&pidfd, Duration::ZERO) {
        return Err(ended());
    }
    let exit_code = open_exit_code_file(pid);
    match pidfd_send_signal(&pidfd, Signal::TERM) {
        Ok(()) => {}
        Err(Errno::SRCH) => return Err(ended()),
        Err(error) => return Err(Failure::system("sending a signal to the holder process", error)),
    }
    if !has_ended_within(&pidfd, LIMIT) {
        let message =
            format!("process {pid} has not confirmed the release; the lock becomes free when its session ends");
        return Err(Failure::new(Exit::Unconfirmed, message));
    }
    let mut code = [0];
    let is_known = exit_code.is_some_and(|mut file| file.read_exact(&mut code).is_ok());
    if is_known && code == [Exit::Lost.code()] {
        return Err(Failure::new(Exit::Lost, "the lock was lost before it was released"));
    }
    Ok(Exit::Command(0))
}

/// Creates the file in which this holder process leaves its exit code. Without the file, `zklock release` takes every end
/// of the process for a release.
pub(super) fn create_exit_code_file() -> Option<File> {
    memfd_create(EXIT_CODE_FILE, MemfdFlags::CLOEXEC).ok().map(File::from)
}

/// Stores the exit code of this holder process.
pub(super) fn store_exit_code(file: Option<File>, result: &Result<Exit, Failure>) {
    let code = result.as_ref().map_or_else(|failure| failure.exit.code(), |exit| exit.code());
    if let Some(mut file) = file {
        let _ = file.write_all(&[code]);
    }
}

/// Opens the exit code file of a holder process.
fn open_exit_code_file(pid: i32) -> Option<File> {
    let is_wanted = |link: &fs::DirEntry| {
        let target = fs::read_link(link.path()).unwrap_or_default();
        target.to_str().is_some_and(|target| target.starts_with(&format!("/memfd:{EXIT_CODE_FILE} ")))
    };
    let found = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().find(is_wanted)?;
    File::open(found.path()).ok()
}

fn pid_of_environment() -> Result<i32, Failure> {
    let Some(pid) = std::env::var_os(HOLD_PID) else {
        return Err(Failure::usage(format!(
            "no process id is given; pass the pid that zklock hold printed, or set {HOLD_PID}"
        )));
    };
    let number = pid.to_str().and_then(|pid| pid.parse().ok());
    number.ok_or_else(|| Failure::usage(format!("the variable {HOLD_PID} is {pid:?}; expected a process id")))
}

/// Waits for the end of a process.
fn has_ended_within(pidfd: &OwnedFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&limit)).is_ok_and(|ready| ready > 0)
}

/// Returns whether a process is a holder process that has not ended. The first thread of a killed process is a zombie
/// before the other threads have ended. Until then, the process still accepts signals.
fn is_running_holder(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let (Some((start, rest)), Ok(name)) = (stat.rsplit_once(") "), PROCESS_NAME.to_str()) else { return false };
    start.split_once('(').is_some_and(|(_, found)| found == name) && !rest.starts_with(['Z', 'X'])
}
