//! `zklock release`: ends a holder process, and waits until it has released the lock.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::shell;
use crate::cli::{HoldName, ReleaseArguments};
use crate::exit::{Exit, Failure};
use crate::observe::table::answer;
use crate::variables::HOLD_PID;

/// The name of the holder process in `ps`.
pub(super) const PROCESS_NAME: &CStr = c"zklock-holder";
/// The name of the file in memory that describes a holder process: the path of each lock on one line, and at the end the
/// exit code. `zklock release` is not the parent of the holder process, so it cannot ask the kernel for the exit code.
const HOLD_FILE: &str = "zklock-hold";
/// The beginning of the line with the exit code. A path begins with a slash.
const EXIT_CODE: &str = "exit code ";
/// The time after which a release counts as not confirmed.
const LIMIT: Duration = Duration::from_secs(30);

/// Releases the lock.
pub(crate) fn run(arguments: &ReleaseArguments) -> Result<Exit, Failure> {
    let pid = match &arguments.hold {
        Some(HoldName::Pid(pid)) => Ok(*pid),
        Some(HoldName::Path(path)) => find_holder(path),
        None => pid_of_environment(),
    };
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
    let file = open_hold_file(pid);
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
    let text = file.and_then(|file| io::read_to_string(file).ok()).unwrap_or_default();
    if text.lines().last() == Some(&format!("{EXIT_CODE}{}", Exit::Lost.code())) {
        return Err(Failure::new(Exit::Lost, "the lock was lost before it was released"));
    }
    Ok(Exit::Command(0))
}

/// Creates the file that describes this holder process. Without the file, `zklock release` takes every end of the process
/// for a release, and does not find its paths.
pub(super) fn create_hold_file(paths: &[String]) -> Option<File> {
    let mut file = File::from(memfd_create(HOLD_FILE, MemfdFlags::CLOEXEC).ok()?);
    paths.iter().try_for_each(|path| writeln!(file, "{path}")).ok()?;
    Some(file)
}

/// Stores the exit code of this holder process.
pub(super) fn store_exit_code(file: Option<File>, result: &Result<Exit, Failure>) {
    let code = result.as_ref().map_or_else(|failure| failure.exit.code(), |exit| exit.code());
    if let Some(mut file) = file {
        let _ = writeln!(file, "{EXIT_CODE}{code}");
    }
}

/// Finds the holder process of this user that holds the lock with this path.
fn find_holder(path: &str) -> Result<i32, Failure> {
    let holds = |&pid: &i32| {
        let file = Some(pid).filter(|&pid| is_running_holder(pid)).and_then(open_hold_file);
        file.and_then(|file| io::read_to_string(file).ok()).is_some_and(|text| text.lines().any(|line| line == path))
    };
    let processes = fs::read_dir("/proc").map_err(|error| Failure::system("reading /proc", error))?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    match &*pids.filter(holds).collect::<Vec<_>>() {
        [pid] => Ok(*pid),
        [] => Err(Failure::new(Exit::Lost, format!("no zklock hold of this user on this host holds {path}"))),
        several => {
            let list: Vec<String> = several.iter().map(i32::to_string).collect();
            Err(Failure::usage(format!(
                "several processes hold {path}; expected one process id of {}",
                list.join(", ")
            )))
        }
    }
}

/// Opens the file that describes a holder process.
fn open_hold_file(pid: i32) -> Option<File> {
    let is_wanted = |link: &fs::DirEntry| {
        let target = fs::read_link(link.path()).unwrap_or_default();
        target.to_str().is_some_and(|target| target.starts_with(&format!("/memfd:{HOLD_FILE} ")))
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
