//! Signals to processes that are ours.

use std::fs;
use std::io;
use std::time::Duration;

use crate::wait_until;

/// Freezes a process of ours with SIGSTOP and waits until all its threads stand still.
pub fn pause(pid: i32) {
    signal(pid, libc::SIGSTOP);
    wait_until(Duration::from_secs(5), || all_threads_stopped(pid));
}

/// Lets a process of ours go on that was paused.
pub fn resume(pid: i32) {
    signal(pid, libc::SIGCONT);
}

/// Sends a signal to a child that has not been waited for, or to a child of such a child.
pub(crate) fn signal(pid: i32, signal: i32) {
    // SAFETY: no memory is involved; as long as nobody has waited for it, the pid is that of our process.
    let result = unsafe { libc::kill(pid, signal) };
    assert_eq!(result, 0, "signal {signal} to {pid}: {}", io::Error::last_os_error());
}

fn all_threads_stopped(pid: i32) -> bool {
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|task| {
        let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
        // The state follows the command's name, which stands in parentheses.
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    })
}
