//! The guardian: a second process that starts the command and ends its process tree, whatever happens to the wrapper.
//! This file starts the guardian and is the wrapper's view of it.
//!
//! The wrapper forks before the library starts a thread. A copy of a process with a single thread may run any code; an
//! exec of the own program would be slower and would fail if the file had been replaced or removed. The guardian makes
//! no use of the library.

use std::ffi::OsString;
use std::fs::File;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, setpgid, waitpid};

use super::child::Group;
use super::link::{Link, Order, Report};
use super::signals::Mask;
use super::tree::{self, Tree};
use super::{cgroup, guardian_process};
use crate::exit::Failure;
use crate::process::own_group;

/// The guardian of this wrapper.
#[derive(Debug)]
pub(crate) struct Guardian {
    pid: Pid,
    link: Link,
    /// The tree of the wrapper, which contains the guardian and everything below it.
    tree: Tree,
}

/// What has happened to the guardian and its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GuardianEvent {
    Report(Report),
    /// The guardian has died. A guardian that has reported `Gone` also ends.
    Died,
}

/// Returns whether this process belongs to a session with a terminal.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

impl Guardian {
    /// Starts the guardian for a command. `mask` is the signal mask that the command gets. If `leaves_running` is true, the
    /// guardian does not end the processes that the command leaves behind. Call this function before the process has a
    /// second thread.
    pub(crate) fn start(command: &[OsString], mask: Mask, leaves_running: bool) -> Result<Self, Failure> {
        tree::check_proc()?;
        let failed = |error: io::Error| Failure::system("starting the guardian process", error);
        set_child_subreaper(Some(getpid())).map_err(|error| failed(error.into()))?;
        let mut tree = Tree::new();
        let (link, other_end) = Link::pair().map_err(failed)?;
        // A control group cannot be removed while processes of it keep running.
        let cgroup = if leaves_running { None } else { cgroup::locate() };
        let group = match (has_terminal(), own_group()) {
            (false, _) => Group::New,
            (true, Some(group)) => Group::Wrapper(group),
            (true, None) => Group::Inherited,
        };
        // SAFETY: The process has a single thread, so no lock can be held in the copy by a thread that does not exist
        // there.
        match unsafe { libc::fork() } {
            -1 => Err(failed(io::Error::last_os_error())),
            0 => {
                drop(link);
                if group != Group::Inherited {
                    // A signal to the process group of the wrapper, even KILL, does not reach the guardian.
                    let _ = setpgid(None, None);
                }
                guardian_process::run(
                    other_end,
                    guardian_process::Wrapper { group, mask, cgroup, leaves_running },
                    command,
                )
            }
            pid => {
                let pid = Pid::from_raw(pid).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
                tree.set_cgroup(cgroup);
                Ok(Self { pid, link, tree })
            }
        }
    }

    /// Sends an order. If the guardian is gone, the order is lost, and [`event`](Self::event) returns `Died`.
    pub(crate) fn order(&self, order: &Order) -> io::Result<()> {
        match self.link.order(order) {
            Err(error)
                if error.kind() == io::ErrorKind::BrokenPipe || error.kind() == io::ErrorKind::ConnectionReset =>
            {
                Ok(())
            }
            result => result,
        }
    }

    /// Returns something that has happened, or `None`.
    pub(crate) fn event(&self) -> io::Result<Option<GuardianEvent>> {
        match self.link.receive_report() {
            Ok(report) => Ok(Some(GuardianEvent::Report(report))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Some(GuardianEvent::Died)),
            Err(error) => Err(error),
        }
    }

    /// The connection, for poll.
    pub(crate) const fn link(&self) -> &Link {
        &self.link
    }

    /// Handles a SIGCHLD: continues the guardian if a signal has stopped it. A stopped guardian protects nothing.
    pub(crate) fn keep_running(&self) {
        // The call has no effect on a guardian that is running.
        let _ = kill_process(self.pid, Signal::CONT);
    }

    /// Ends the guardian and the whole tree with KILL, because the guardian is dead or does not act. Returns the number
    /// of processes that did not end.
    pub(crate) fn kill_tree(&self) -> usize {
        let survivors = self.tree.kill(|_, _| {});
        if let Some(cgroup) = self.tree.cgroup() {
            cgroup::remove(cgroup);
        }
        survivors
    }

    /// Ends the guardian, which has not started a command or has ended its tree, and waits for its end.
    pub(crate) fn dismiss(self) {
        self.keep_running();
        drop(self.link);
        while let Err(Errno::INTR) = waitpid(Some(self.pid), WaitOptions::empty()) {}
    }
}
