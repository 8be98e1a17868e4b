//! The tree of processes below this process: which processes belong to it, and how to end all of them.
//!
//! The wrapper and the guardian are subreapers: if a process below them loses its parent, it becomes a child of the
//! guardian, or of the wrapper if the guardian is gone. A process therefore cannot leave the tree, whether it changes
//! its session, its process group or its parent. The tree is empty as soon as this process has no children left.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, kill_process, pidfd_open, pidfd_send_signal, waitid,
};

use super::link::Ending;
use crate::clock::BootTime;
use crate::exit::{Exit, Failure};
use crate::process;

/// After KILL, a process that does not end for this long is given up. It is in an uninterruptible system call, or
/// belongs to another user.
const PATIENCE: Duration = Duration::from_secs(5);

/// The processes below this process.
#[derive(Debug)]
pub(crate) struct Tree {
    /// Children that this process had before it ran a command. They do not belong to the tree.
    spared: Vec<i32>,
    /// The control group of the command, if there is one.
    cgroup: Option<PathBuf>,
}

/// A process of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Member {
    pid: i32,
    parent: i32,
}

/// Fails if `/proc` does not show the processes of this pid namespace. The tree could then not be found, and processes
/// of others could be taken for it.
pub(crate) fn check_proc() -> Result<(), Failure> {
    check_link(fs::read_link("/proc/self"))
}

fn check_link(link: io::Result<PathBuf>) -> Result<(), Failure> {
    let found = match link {
        Ok(link) if link.to_str() == Some(&own_pid().to_string()) => return Ok(()),
        Ok(_) => "shows the processes of another pid namespace".to_owned(),
        Err(error) => format!("cannot be read ({error})"),
    };
    let message =
        format!("/proc {found}, so zklock could not end the command; mount it, for example with unshare --mount-proc");
    Err(Failure::new(Exit::Internal, message))
}

impl Tree {
    /// Makes the tree of this process, without its present children.
    pub(crate) fn new() -> Self {
        Self { spared: children(own_pid()), cgroup: None }
    }

    /// Sets the control group of the command. [`kill`](Self::kill) then ends all processes of the control group in one
    /// step.
    pub(crate) fn set_cgroup(&mut self, cgroup: Option<PathBuf>) {
        self.cgroup = cgroup;
    }

    /// The control group of the command, if there is one.
    pub(crate) fn cgroup(&self) -> Option<&Path> {
        self.cgroup.as_deref()
    }

    /// Returns the number of processes in the tree.
    pub(crate) fn len(&self) -> usize {
        self.members().len()
    }

    /// Sends a signal to all processes of the tree. A process that starts during the call may not get the signal.
    pub(crate) fn signal(&self, signal: Signal) {
        for member in self.members() {
            send(member, signal);
        }
    }

    /// Ends all processes of the tree with KILL, and returns when no process is left. Calls `on_end` for each child of
    /// this process that has ended. Returns the number of processes that did not end.
    pub(crate) fn kill(&self, mut on_end: impl FnMut(i32, Ending)) -> usize {
        let mut before = Vec::new();
        let mut progress = BootTime::now();
        loop {
            if let Some(cgroup) = &self.cgroup {
                // If the control group cannot be used, the signals below end its processes.
                let _ = fs::write(cgroup.join("cgroup.kill"), "1");
            }
            // A process that starts others faster than this loop reads the whole tree cannot escape: its parent ends,
            // it becomes a child of this process, and the loop continues without a pause while the tree changes.
            let members = self.members();
            for &member in &members {
                send(member, Signal::KILL);
            }
            reap(&mut on_end);
            if self.is_empty() {
                return 0;
            }
            if members != before {
                (before, progress) = (members, BootTime::now());
            } else if BootTime::now() - progress > PATIENCE {
                // A child that cannot be found in `/proc` is a survivor too.
                return before.len().max(1);
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Returns whether no process of the tree is left.
    pub(crate) fn is_empty(&self) -> bool {
        if self.spared.is_empty() { has_no_children() } else { self.members().is_empty() }
    }

    /// Returns the processes of the tree, each parent before its children.
    fn members(&self) -> Vec<Member> {
        let own = own_pid();
        let mut members: Vec<Member> = children(own)
            .into_iter()
            .filter(|pid| !self.spared.contains(pid))
            .map(|pid| Member { pid, parent: own })
            .collect();
        let mut next = 0;
        while let Some(&Member { pid, .. }) = members.get(next) {
            members.extend(children(pid).into_iter().map(|child| Member { pid: child, parent: pid }));
            next += 1;
        }
        members
    }
}

/// Reads the ends of all children that have ended, and calls `on_end` for each of them.
pub(crate) fn reap(mut on_end: impl FnMut(i32, Ending)) {
    while let Ok(Some((pid, ending))) = reap_one() {
        on_end(pid, ending);
    }
}

fn reap_one() -> io::Result<Option<(i32, Ending)>> {
    let Some((pid, status)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG)? else { return Ok(None) };
    let code = status.exit_status().map(|code| Ending::Code(u8::try_from(code).unwrap_or(u8::MAX)));
    let ending = code.or_else(|| status.terminating_signal().map(Ending::Signal)).unwrap_or(Ending::Code(u8::MAX));
    Ok(Some((pid.as_raw_nonzero().get(), ending)))
}

/// Asks the kernel whether this process has children, including those that have ended.
fn has_no_children() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::All, options), Err(Errno::CHILD))
}

/// Sends a signal to a process if it is still the child of the same parent. Another process may have got the number of
/// a process that has ended. The children of this process keep their numbers until this process has read their ends.
fn send(member: Member, signal: Signal) {
    let Some(pid) = Pid::from_raw(member.pid) else { return };
    if member.parent == own_pid() {
        // The process may have ended.
        let _ = kill_process(pid, signal);
        return;
    }
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if parent_of(member.pid).is_some_and(|parent| parent == member.parent || parent == own_pid()) {
        // The process may have ended, or belong to another user.
        let _ = pidfd_send_signal(process, signal);
    }
}

fn own_pid() -> i32 {
    getpid().as_raw_nonzero().get()
}

/// Returns the children of a process.
fn children(pid: i32) -> Vec<i32> {
    // The kernel lists the children of each thread. While a thread ends, the list of threads may lack another one, so a
    // result counts only if no thread has started or ended meanwhile.
    for _ in 0..10 {
        let before = threads(pid);
        let lists: io::Result<Vec<String>> =
            before.iter().map(|thread| fs::read_to_string(thread.join("children"))).collect();
        if let Ok(lists) = lists
            && threads(pid) == before
        {
            let pids = lists.iter().flat_map(|list| list.split_ascii_whitespace());
            return pids.filter_map(|pid| pid.parse().ok()).collect();
        }
    }
    // This kernel does not list children, or the process starts and ends threads all the time.
    parents().into_iter().filter(|&(_, parent)| parent == pid).map(|(pid, _)| pid).collect()
}

/// Returns the directories of the threads of a process.
fn threads(pid: i32) -> Vec<PathBuf> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    threads.flatten().map(|thread| thread.path()).collect()
}

/// Returns the parent of each process of the machine.
fn parents() -> HashMap<i32, i32> {
    let Ok(processes) = fs::read_dir("/proc") else { return HashMap::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| Some((pid, parent_of(pid)?))).collect()
}

fn parent_of(pid: i32) -> Option<i32> {
    process::parent_of(Pid::from_raw(pid)?).map(|parent| parent.as_raw_nonzero().get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_proc_of_another_pid_namespace_is_refused() {
        assert!(check_proc().is_ok());
        let failure = check_link(Ok("1234567890".into())).unwrap_err();
        assert_eq!(failure.exit, Exit::Internal);
        assert!(failure.message.starts_with("/proc shows the processes of another pid namespace"), "{failure:?}");
        assert!(check_link(Err(io::ErrorKind::NotFound.into())).is_err());
    }

    #[test]
    fn parents_and_children_agree() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert_eq!(parent_of(pid), Some(own_pid()));
        assert_eq!(parents().get(&pid), Some(&own_pid()));
        assert!(children(own_pid()).contains(&pid));
        assert!(!Tree::new().members().contains(&Member { pid, parent: own_pid() }), "it was there before");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn children_are_found_while_threads_of_their_parent_end() {
        let mut missed = 0;
        for _ in 0..300 {
            let ending = AtomicBool::new(false);
            std::thread::scope(|scope| {
                // The kernel lists threads in the order of their start.
                for _ in 0..4 {
                    scope.spawn(|| {
                        while !ending.load(Ordering::Relaxed) {
                            std::thread::yield_now();
                        }
                    });
                }
                let parent = scope.spawn(|| {
                    let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
                    let pid = i32::try_from(child.id()).unwrap();
                    ending.store(true, Ordering::Relaxed);
                    let missed = (0..5).filter(|_| !children(own_pid()).contains(&pid)).count();
                    child.kill().unwrap();
                    child.wait().unwrap();
                    missed
                });
                missed += parent.join().unwrap();
            });
        }
        assert_eq!(missed, 0, "of 1,500 readings");
    }
}
