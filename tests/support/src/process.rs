//! Signals to processes that the test has started.

use std::fs;
use std::io;

use crate::{TEST_TIMEOUT, wait_until};

/// Pauses a process of this test with SIGSTOP and waits until all its threads have stopped.
pub fn pause(pid: i32) {
    signal(pid, libc::SIGSTOP);
    wait_until(TEST_TIMEOUT, || all_threads_stopped(pid));
}

/// Resumes a paused process of this test.
pub fn resume(pid: i32) {
    signal(pid, libc::SIGCONT);
}

/// Sends a signal to a child that has not been waited for, or to a child of such a child.
pub(crate) fn signal(pid: i32, signal: i32) {
    // SAFETY: The call does not access memory. The pid still belongs to the process, because it has not been waited
    // for.
    let result = unsafe { libc::kill(pid, signal) };
    assert_eq!(result, 0, "signal {signal} to {pid}: {}", io::Error::last_os_error());
}

fn all_threads_stopped(pid: i32) -> bool {
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|task| {
        let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
        // The state follows the name of the command, which is in parentheses.
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    })
}
