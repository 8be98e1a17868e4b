//! Processes as the kernel describes them: parents, process groups and sessions.
//!
//! rustix cannot represent a process group or session whose leader is in another pid namespace, as in a container that
//! has joined the session of its caller: the kernel reports the number 0. The functions of this file return `None` for
//! such a group or session.

use std::fs::{self, File};
use std::os::fd::AsFd;

use rustix::process::{Pid, Signal, getpid, getppid, kill_process};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

use crate::exit::Failure;

/// Set in the flags of a process that has not called exec since its parent made it (PF_FORKNOEXEC in the kernel).
const FORKED_WITHOUT_EXEC: u64 = 0x40;

/// Returns the parent of a process.
pub(crate) fn parent_of(pid: Pid) -> Option<Pid> {
    parent_and_flags(pid).and_then(|(parent, _)| Pid::from_raw(parent))
}

/// Returns the parent of a process that is a copy of its parent, or `None` for other processes.
pub(crate) fn parent_of_copy(pid: Pid) -> Option<Pid> {
    let (parent, flags) = parent_and_flags(pid)?;
    if flags & FORKED_WITHOUT_EXEC == 0 { None } else { Pid::from_raw(parent) }
}

fn parent_and_flags(pid: Pid) -> Option<(i32, u64)> {
    parse_stat(&fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?)
}

/// Reads the parent and the flags from the text of `/proc/PID/stat`. The name of the process can contain any character.
fn parse_stat(stat: &str) -> Option<(i32, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(1);
    let parent = fields.next()?.parse().ok()?;
    Some((parent, fields.nth(4)?.parse().ok()?))
}

/// Returns the process group of this process.
pub(crate) fn own_group() -> Option<Pid> {
    group_of(getpid())
}

fn group_of(pid: Pid) -> Option<Pid> {
    // SAFETY: The call has no memory effects.
    known(unsafe { libc::getpgid(pid.as_raw_nonzero().get()) })
}

fn session_of(pid: Pid) -> Option<Pid> {
    // SAFETY: The call has no memory effects.
    known(unsafe { libc::getsid(pid.as_raw_nonzero().get()) })
}

/// The id that a system call has returned. 0 is an id of another pid namespace, and -1 an error.
fn known(id: i32) -> Option<Pid> {
    if id > 0 { Pid::from_raw(id) } else { None }
}

/// Returns whether a shell can continue this job after ^Z. The first ancestor outside of the process group is then in
/// the same session. Otherwise, for example below sshd or in a container, ^Z has no effect (setpgid(2), orphaned
/// process groups).
pub(crate) fn has_job_control() -> bool {
    let (group, session) = (own_group(), session_of(getpid()));
    let mut ancestor = getppid();
    while let Some(pid) = ancestor {
        if group_of(pid) != group {
            return session_of(pid) == session;
        }
        ancestor = parent_of(pid);
    }
    false
}

/// Returns whether another job of the terminal is in the foreground. A job in the background must not write over the
/// terminal.
pub(crate) fn is_in_background(terminal: impl AsFd) -> bool {
    tcgetpgrp(terminal).is_ok_and(|group| Some(group) != own_group())
}

/// The settings of the terminal of this process. A program that is killed cannot restore them itself.
#[derive(Debug)]
pub(crate) struct SavedTerminal(Option<(File, Termios)>);

impl SavedTerminal {
    pub(crate) fn save() -> Self {
        let terminal = File::open("/dev/tty").ok();
        Self(terminal.and_then(|terminal| tcgetattr(&terminal).ok().map(|settings| (terminal, settings))))
    }

    /// Restores the settings, unless another job is in the foreground.
    pub(crate) fn restore(&self) {
        if let Some((terminal, settings)) = &self.0
            && !is_in_background(terminal)
        {
            let _ = tcsetattr(terminal, OptionalActions::Now, settings);
        }
    }
}

/// Stops this process. The default action of SIGTSTP would do the same, but the signal is blocked.
pub(crate) fn stop_self() -> Result<(), Failure> {
    kill_process(getpid(), Signal::STOP).map_err(|error| Failure::system("stopping", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_and_the_flags_follow_the_name() {
        let stat = "4711 (a) b) S 17 4711 4711 0 -1 4194368 100 0";
        assert_eq!(parse_stat(stat), Some((17, 4_194_368)));
        assert_eq!(parse_stat("4711 (a) S 17"), None);
    }

    #[test]
    fn an_id_of_another_pid_namespace_is_not_known() {
        assert_eq!(known(0), None);
        assert_eq!(known(-1), None);
        assert_eq!(known(4711), Pid::from_raw(4711));
    }
}
