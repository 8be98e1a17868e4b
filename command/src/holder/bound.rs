//! What ends a hold: the end of a process, or a time.

use std::fs;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};

use crate::cli::{HoldArguments, OnHoldLost};
use crate::exit::Failure;
use crate::process::parent_of_copy;

/// What ends a hold, besides a signal to the holder process.
#[derive(Debug)]
pub(crate) struct Bound {
    process: Option<BoundProcess>,
    /// The longest duration of the hold.
    pub(crate) max_hold: Option<Duration>,
    on_lost: OnHoldLost,
    /// True if the user has not chosen what ends the hold, and the call returns to the bound process.
    is_caller: bool,
}

#[derive(Debug)]
struct BoundProcess {
    pid: Pid,
    /// A descriptor of the process, which stays valid if the kernel gives its number to another process.
    pidfd: OwnedFd,
}

impl Bound {
    /// Chooses what ends the hold. Without an option, it is the process that called `zklock`.
    pub(crate) fn choose(arguments: &HoldArguments) -> Result<Self, Failure> {
        let process = match arguments.pid {
            Some(pid) => Some(open(pid)?),
            None if arguments.max_hold.is_some() => None,
            None => Some(open_caller()?),
        };
        let is_caller = process.is_some() && arguments.pid.is_none();
        Ok(Self { process, max_hold: arguments.max_hold, on_lost: arguments.on_lost, is_caller })
    }

    pub(crate) fn pid(&self) -> Option<i32> {
        self.process.as_ref().map(|process| process.pid.as_raw_nonzero().get())
    }

    /// The process that must evaluate the output, if the lock is bound to the caller.
    pub(crate) fn caller(&self) -> Option<i32> {
        self.pid().filter(|_| self.is_caller)
    }

    /// The name of the bound process, for the other participants.
    pub(crate) fn process_name(&self) -> Option<String> {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.pid()?)).ok()?;
        Some(name.trim_end().to_owned())
    }

    /// The descriptor that becomes readable when the bound process has ended.
    pub(crate) fn source(&self) -> Option<PollFd<'_>> {
        self.process.as_ref().map(|process| PollFd::new(&process.pidfd, PollFlags::IN))
    }

    /// Returns whether the bound process has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.source().is_some_and(is_ready)
    }

    /// Sends TERM to the bound process, because the lock is lost.
    pub(crate) fn signal_loss(&self) {
        if let (Some(process), Some(_)) = (&self.process, self.terminated()) {
            // The process may have ended.
            let _ = pidfd_send_signal(&process.pidfd, Signal::TERM);
        }
    }

    /// The process that gets TERM if the lock is lost.
    pub(crate) fn terminated(&self) -> Option<i32> {
        if self.on_lost == OnHoldLost::Term { self.pid() } else { None }
    }
}

fn open(pid: i32) -> Result<BoundProcess, Failure> {
    let missing = || Failure::usage(format!("--pid {pid}: there is no process with this id"));
    let pid = Pid::from_raw(pid).ok_or_else(missing)?;
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Ok(BoundProcess { pid, pidfd }),
        Err(Errno::SRCH | Errno::INVAL) => Err(missing()),
        Err(error) => Err(Failure::system("opening the process of --pid", error)),
    }
}

/// Opens the process that called this program. A shell runs `$(...)` and `(...)` in a copy of itself, which ends with
/// the command. In this case, the caller is the shell that made the copy.
fn open_caller() -> Result<BoundProcess, Failure> {
    let gone = || Failure::usage("the process that called zklock has ended; expected a running shell, or --pid N");
    let mut pid = getppid().ok_or_else(gone)?;
    while let Some(parent) = parent_of_copy(pid) {
        pid = parent;
    }
    // The first process of the system adopts the children of processes that have ended. In a container, it can be the
    // shell itself.
    if pid == Pid::INIT && session(1) != session(0) {
        return Err(gone());
    }
    open(pid.as_raw_nonzero().get()).map_err(|_| gone())
}

/// Returns the session of a process, or of this process for the number 0. The session is 0 if its first process is
/// outside of the container, which rustix does not expect.
fn session(pid: i32) -> i32 {
    // SAFETY: The call reads a property of a process, and accepts any number.
    unsafe { libc::getsid(pid) }
}

/// Returns whether a descriptor is ready now.
pub(super) fn is_ready(source: PollFd<'_>) -> bool {
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut [source], Some(&now)).is_ok_and(|ready| ready > 0)
}
