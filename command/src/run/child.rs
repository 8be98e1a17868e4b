//! Starts the command: the child of the guardian.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, getpid, getppid, set_parent_process_death_signal, setpgid, waitpid};

use super::cgroup::ControlGroup;
use super::signals::Mask;
use crate::clock::BootTime;
use crate::variables::{self, STATUS_FD};

/// The error number of a start that came too late. No error of exec has this number.
pub(crate) const TOO_LATE: i32 = libc::ETIME;

/// The process group of the child. On a terminal, it is the group of the wrapper, so the terminal treats both as one
/// job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// A new group, if the wrapper has no terminal. Below cron, for example, the child would otherwise be the only
    /// process of the group of the wrapper with a parent in another group of the session. If the child ended while the
    /// wrapper is stopped, the kernel would send HUP to the whole group, and so end the caller of the wrapper
    /// (setpgid(2), orphaned process groups).
    New,
    /// The group of the wrapper, which the child joins.
    Wrapper(Pid),
    /// The group of the wrapper, which the guardian did not leave. The group belongs to another pid namespace, so no
    /// process of this namespace can join it.
    Inherited,
}

/// What the child needs from the process that starts it.
pub(crate) struct Origin {
    pub(crate) group: Group,
    /// The signal mask that the wrapper had when it was started.
    pub(crate) mask: Mask,
    /// The control group that the child enters.
    pub(crate) cgroup: Option<ControlGroup>,
    /// The descriptor that becomes readable when the lock is lost.
    pub(crate) status: OwnedFd,
    /// The child does not run the program at this time or later, because the lock may belong to another participant.
    pub(crate) start_until: BootTime,
}

/// Starts the program with additional environment variables, and returns its process id. An error is the error of exec,
/// or [`TOO_LATE`]. Call this function in a process with a single thread.
pub(crate) fn start(command: &[OsString], environment: Vec<(String, OsString)>, origin: Origin) -> io::Result<i32> {
    let Some((program, arguments)) = command.split_first() else { return Err(io::ErrorKind::InvalidInput.into()) };
    let guardian = getpid();
    let mut child = Command::new(program);
    child.args(arguments).envs(environment).env(STATUS_FD, origin.status.as_raw_fd().to_string());
    variables::secrets().for_each(|name| _ = child.env_remove(name));
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    // SAFETY: The process has a single thread, so no lock can be held in the copy by a thread that does not exist there.
    let (forked, is_inside) = match origin.cgroup.as_ref().map(|cgroup| unsafe { cgroup.fork() }) {
        Some(Ok(pid)) => (pid, true),
        // SAFETY: as above.
        _ => (unsafe { libc::fork() }, false),
    };
    match forked {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let error = origin.execute(child, guardian, is_inside);
            let _ = write(&writer, &error.raw_os_error().unwrap_or(libc::EINVAL).to_ne_bytes());
            // SAFETY: The call ends this process, and runs no other code of it.
            unsafe { libc::_exit(1) }
        }
        pid => {
            drop(writer);
            let mut number = [0; 4];
            match File::from(reader).read_exact(&mut number) {
                // exec has closed the pipe.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(pid),
                Err(error) => Err(error),
                Ok(()) => {
                    let _ = waitpid(Pid::from_raw(pid), WaitOptions::empty());
                    Err(io::Error::from_raw_os_error(i32::from_ne_bytes(number)))
                }
            }
        }
    }
}

impl Origin {
    /// Replaces this process, a child of the guardian, by the program. Returns only if this fails. `is_inside` is true if the
    /// process is already in its control group.
    fn execute(self, mut child: Command, guardian: Pid, is_inside: bool) -> io::Error {
        let prepare = move || {
            // The group may be gone if the wrapper was killed. The child then stays in the group of the guardian, which
            // ends it.
            let _ = match self.group {
                Group::New => setpgid(None, None),
                Group::Wrapper(group) => setpgid(None, Some(group)),
                Group::Inherited => Ok(()),
            };
            // A threaded control group refuses processes. The guardian then ends the tree process by process.
            let _ = self.cgroup.as_ref().filter(|_| !is_inside).map(ControlGroup::enter);
            // If the guardian dies, the kernel kills the child, and the wrapper ends what the child has started.
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if getppid() != Some(guardian) {
                // The guardian has died since the fork, and the kernel has not killed this process. No process waits for
                // an error. SAFETY: The call ends this process, and runs no other code of it.
                unsafe { libc::_exit(1) };
            }
            fcntl_setfd(self.status.as_fd(), FdFlags::empty())?;
            self.mask.set()?;
            // This process may have been stopped for a long time.
            if BootTime::now() < self.start_until { Ok(()) } else { Err(io::Error::from_raw_os_error(TOO_LATE)) }
        };
        // SAFETY: The process is a copy of a process with a single thread. The closure makes system calls, and neither takes
        // a lock nor allocates memory. exec sets the signal mask before it calls the closure.
        unsafe { child.pre_exec(prepare) };
        child.exec()
    }
}

/// Replaces standard input and output of this process, so that the other end of a pipe notices when the command closes
/// its own.
pub(crate) fn leave_standard_streams() {
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_end_of_the_lease_the_program_is_not_started() {
        let (status, _writer) = rustix::pipe::pipe().unwrap();
        let start_until = BootTime::now();
        let origin = Origin { group: Group::New, mask: Mask::of([]), cgroup: None, status, start_until };
        let error = start(&["true".into()], Vec::new(), origin).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(TOO_LATE));
    }
}
