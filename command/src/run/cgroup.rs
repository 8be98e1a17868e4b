//! A control group for the command. The kernel can end all processes of a control group in one step, however fast they
//! start others. A command without a control group is ended process by process.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use rustix::io::write;

use crate::clock::BootTime;

/// Returns where a control group for the command of this process would be: below the control group of this process. No
/// other process gets the same answer. Returns `None` if the machine has no control groups of version 2.
pub(crate) fn locate() -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    // Processes of different pid namespaces can have the same number, and the same control group.
    let name = format!("zklock-{}-{}", std::process::id(), BootTime::now().as_nanos());
    Some(directory(&own, &mounts)?.join(name))
}

/// Finds the directory of a control group in the two files of a process.
fn directory(own: &str, mounts: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    let mut fields = mount.split_ascii_whitespace().skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    let below = Path::new(path).strip_prefix(root).ok()?;
    Some(Path::new(point).join(below))
}

/// A control group that this process has made.
pub(crate) struct ControlGroup {
    directory: File,
    /// The file through which a process enters the control group.
    processes: File,
}

impl ControlGroup {
    /// Makes the control group. Fails if this process may not make control groups here, or if the kernel cannot end a
    /// control group in one step.
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        fs::create_dir(directory)?;
        let writable = |name| OpenOptions::new().write(true).open(directory.join(name));
        let group = writable("cgroup.kill").and_then(|_| writable("cgroup.procs"));
        let group = group.and_then(|processes| Ok(Self { directory: File::open(directory)?, processes }));
        if group.is_err() {
            remove(directory);
        }
        group
    }

    /// Moves this process into the control group. The kernel can need 20 ms for this.
    pub(crate) fn enter(&self) -> io::Result<()> {
        write(&self.processes, b"0")?;
        Ok(())
    }

    /// Forks, and the child begins in the control group, which takes no longer than fork(2). Returns 0 in the child. Fails
    /// if the kernel or a filter of system calls does not support this.
    ///
    /// # Safety
    ///
    /// The process must have a single thread.
    pub(crate) unsafe fn fork(&self) -> io::Result<libc::pid_t> {
        let arguments = CloneArguments {
            flags: CLONE_INTO_CGROUP,
            exit_signal: u64::from(libc::SIGCHLD.unsigned_abs()),
            cgroup: u64::from(self.directory.as_raw_fd().unsigned_abs()),
            ..Default::default()
        };
        // SAFETY: Without CLONE_VM, the child has its own copy of the memory, as after fork(2).
        let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>()) };
        libc::pid_t::try_from(pid).ok().filter(|pid| *pid >= 0).ok_or_else(io::Error::last_os_error)
    }
}

/// `struct clone_args` of linux/sched.h. The crate libc does not have it for each target.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// From linux/sched.h.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Removes the control group and the groups below it, if they have no processes. A command can be a `zklock run`
/// itself, whose guardian was killed before it could remove its group.
pub(crate) fn remove(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    // If a process could not be ended, the control group stays.
    let _ = fs::remove_dir(directory);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_follows_from_the_two_files() {
        let mounts = "24 1 0:22 / /proc rw - proc proc rw\n30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let own = "1:name=systemd:/x\n0::/user.slice/a.scope\n";
        assert_eq!(directory(own, mounts).unwrap(), Path::new("/sys/fs/cgroup/user.slice/a.scope"));
        let inside = "30 24 0:26 /user.slice /mnt rw - cgroup2 cgroup2 rw\n";
        assert_eq!(directory(own, inside).unwrap(), Path::new("/mnt/a.scope"));
        assert_eq!(directory("0::/../other\n", inside), None, "a control group outside of the mount");
        assert_eq!(directory(own, "24 1 0:22 / /proc rw - proc proc rw\n"), None);
        assert_eq!(directory("5:cpu:/\n", mounts), None);
    }
}
