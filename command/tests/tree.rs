//! The whole process tree ends, whatever happens to the wrapper, the guardian and the processes of the tree.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use zklock_test_support::{Proxy, ZooKeeper, assert_not_late, wait_until};

use crate::common::{
    PROGRAM, Running, TEST_TIMEOUT, file, path, process, program, raw, send, wait_for_queue, zklock, zklock_on,
};

/// Leaves its session, its process group and its parent.
const DAEMON: &str = "(setsid sh -c '(sleep 60 &) ; sleep 60' &)";

/// A process that lives only until it has started the next one.
const COMET: &str = "import os\nwhile True:\n  if os.fork(): os._exit(0)";

/// Starts a script, and waits until it has started this number of `sleep` processes.
#[track_caller]
fn start(arguments: &[&str], script: &str, sleeps: usize) -> Running {
    let call = zklock(&[&["run"], arguments, &[&path("tree"), "sh", "-c", script]].concat()).start();
    wait_for_sleeps(&call, sleeps);
    call
}

#[track_caller]
fn wait_for_sleeps(call: &Running, count: usize) {
    wait_until(TEST_TIMEOUT, || call.tree().iter().filter(|process| process.name == "sleep").count() == count);
}

/// Asserts that the tree ends within one second after `since`.
#[track_caller]
fn assert_gone(call: &Running, since: Instant) {
    wait_until(TEST_TIMEOUT, || call.tree().is_empty());
    assert_not_late(since.elapsed(), Duration::from_secs(2));
}

#[test]
fn consul_797_children_do_not_outlive_a_signal() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut call = start(&[], "sleep 60 & sleep 60 & wait", 2);
        call.signal(signal);
        assert_eq!(call.wait(), 128 + signal);
        assert_eq!(call.tree(), []);
    }
}

#[test]
fn consul_1210_hangup_reaches_the_command() {
    let mut call = start(&[], "trap 'exit 5' HUP; sleep 60 & wait", 1);
    call.signal(libc::SIGHUP);
    assert_eq!(call.wait(), 5);
    assert_eq!(call.tree(), []);
}

#[test]
fn consul_2489_quit_and_user_signals_reach_the_command() {
    for signal in [libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2] {
        let mut call = start(&[], &format!("trap 'exit 5' {signal}; sleep 60 & wait"), 1);
        call.signal(signal);
        assert_eq!(call.wait(), 5);
        assert_eq!(call.tree(), []);
    }
}

#[test]
fn consul_3754_a_killed_wrapper_leaves_no_process() {
    let mut call = start(&[], &format!("trap '' TERM; {DAEMON}; sleep 60 & wait"), 3);
    let since = Instant::now();
    call.signal(libc::SIGKILL);
    assert_eq!(call.wait(), 1000 + libc::SIGKILL);
    assert_gone(&call, since);
    wait_until(TEST_TIMEOUT, || call.processes().is_empty());
}

#[test]
fn consul_4643_what_a_command_leaves_behind_ends_before_the_release() {
    let path = path("behind");
    let script = format!("{DAEMON}; exit 3");
    let output = zklock(&["run", &path, "sh", "-c", &script]).output();
    assert_eq!(output.status.code(), Some(3));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.starts_with("zklock: ended ") && errors.contains("that the command left behind"), "{errors}");
    wait_for_queue(&mut raw(), &path, 0);
}

#[test]
fn what_a_command_leaves_behind_runs_on_if_the_user_wants_it() {
    let (path, script) = (path("daemon"), "(setsid sleep 60 >/dev/null 2>&1 &); exit 3");
    let mut call = zklock(&["run", "--leave-running", &path, "sh", "-c", script]).start();
    assert_eq!(call.wait(), 3);
    wait_for_queue(&mut raw(), &path, 0);
    wait_until(TEST_TIMEOUT, || call.processes().len() == 1);
    assert_eq!(call.process("sleep").name, "sleep");
    let errors = call.standard_error();
    assert_eq!(
        errors,
        "zklock: 1 process that the command left behind may run on without the lock (--leave-running)\n"
    );
    // A command that zklock ends leaves nothing behind.
    let mut call = zklock(&["run", "-q", "--leave-running", "--for", "300ms", &path, "sh", "-c", DAEMON]).start();
    assert_eq!(call.wait(), 0, "the command ends before its time");
    assert!(!call.tree().is_empty());
    let script = format!("{DAEMON}; sleep 60");
    let mut call = zklock(&["run", "--leave-running", "--for", "2s", &path, "sh", "-c", &script]).start();
    assert_eq!(call.wait(), 143);
    assert_eq!(call.tree(), []);
}

#[test]
fn a_tree_that_ignores_term_is_killed_after_the_grace() {
    let mut call = start(&["--for", "2s", "--grace", "100ms"], "trap '' TERM; while :; do sleep 0.1; done", 1);
    assert_eq!(call.wait(), 137);
    assert_eq!(call.tree(), []);
}

/// Kills a wrapper, and returns how long its tree lived on.
fn kill_wrapper() -> Duration {
    let mut call = start(&[], &format!("trap '' TERM; {DAEMON}; sleep 60 & wait"), 3);
    let since = Instant::now();
    call.signal(libc::SIGKILL);
    wait_until(TEST_TIMEOUT, || call.tree().is_empty());
    let lived = since.elapsed();
    assert_eq!(call.wait(), 1000 + libc::SIGKILL);
    lived
}

/// A busy machine may exceed the promised second, but not each time.
#[test]
fn the_tree_of_a_killed_wrapper_ends_within_one_second() {
    let mut times = Vec::new();
    while times.last().is_none_or(|&time| time >= Duration::from_secs(1)) {
        assert!(times.len() < 10, "{times:?}");
        times.push(kill_wrapper());
    }
}

#[test]
fn a_signal_after_the_end_of_the_command_ends_the_waits_that_follow() {
    let log = file("events");
    let arguments = ["run", "--json", "-o", "session.timeout=60000", &path("late")];
    // The process that is left behind ignores TERM, so the tree ends after the grace period of 7.5 s. The signal
    // arrives earlier.
    let script = "trap '' TERM; (while :; do sleep 0.1; done) & exit 0";
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let mut call = zklock_on(&proxy.address(), &[&arguments[..], &["sh", "-c", script]].concat());
    call.command().stderr(fs::File::create(&log).unwrap());
    let mut call = call.start();
    wait_until(TEST_TIMEOUT, || fs::read_to_string(&log).unwrap().contains("\"exited\""));
    // Otherwise a server might confirm the release before `zklock` ends.
    proxy.black_hole(true);
    call.signal(libc::SIGTERM);
    assert_eq!(call.wait(), 81);
    assert_eq!(call.tree(), []);
    fs::remove_file(&log).unwrap();
}

#[test]
fn a_kill_of_the_process_group_spares_the_guardian() {
    use std::os::unix::process::CommandExt as _;
    let mut call = zklock(&["run", &path("group"), "sh", "-c", &format!("{DAEMON}; sleep 60")]);
    call.command().process_group(0);
    let mut call = call.start();
    wait_for_sleeps(&call, 3);
    let (since, group) = (Instant::now(), rustix::process::Pid::from_raw(call.pid()).unwrap());
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    assert_eq!(call.wait(), 1000 + libc::SIGKILL);
    assert_gone(&call, since);
}

#[test]
fn a_killed_guardian_ends_the_tree_and_is_70() {
    let mut call = start(&[], &format!("{DAEMON}; sleep 60 & wait"), 3);
    let since = Instant::now();
    send(call.process("zklock-guardian").pid, libc::SIGKILL);
    assert_eq!(call.wait(), 70);
    assert_eq!(call.tree(), []);
    assert_gone(&call, since);
}

#[test]
fn a_stopped_guardian_is_continued() {
    let mut call = start(&[], "sleep 60 & wait", 1);
    let guardian = call.process("zklock-guardian").pid;
    send(guardian, libc::SIGSTOP);
    wait_until(TEST_TIMEOUT, || process(guardian).is_some_and(|guardian| guardian.state != 'T'));
    call.signal(libc::SIGTERM);
    assert_eq!(call.wait(), 143);
    assert_eq!(call.tree(), []);
}

#[test]
fn processes_that_start_others_in_a_loop_end_too() {
    let mut call = zklock(&["run", "--for", "300ms", &path("comet"), "sh", "-c", "python3 -c \"$COMET\" & sleep 60"])
        .env("COMET", COMET)
        .start();
    assert_eq!(call.wait(), 143);
    assert_eq!(call.tree(), []);
}

/// Starts a call as a user who may not make control groups.
fn start_unprivileged(arguments: &[&str]) -> Running {
    use std::os::unix::process::CommandExt as _;
    if !rustix::process::geteuid().is_root() {
        return zklock(arguments).env("COMET", COMET).start();
    }
    // Perhaps only root may read the repository, so the user gets a copy. Another process writes the copy: the children
    // of other tests would inherit a descriptor of this process, and Linux runs no file that is open for writing.
    let copy = directory_for_all_users().join(format!("zklock-{}", std::process::id()));
    assert!(Command::new("install").args(["-m", "755", PROGRAM]).arg(&copy).status().unwrap().success());
    let mut call = program(copy.to_str().unwrap(), arguments).env("COMET", COMET);
    call.command().uid(65534).gid(65534).current_dir("/");
    let call = call.start();
    wait_until(TEST_TIMEOUT, || call.processes().iter().any(|process| process.name == "zklock-guardian"));
    fs::remove_file(&copy).unwrap();
    call
}

/// Returns a directory for temporary files that every user can reach. Perhaps only root may enter the one of `TMPDIR`.
fn directory_for_all_users() -> PathBuf {
    let can_enter = |path: &Path| fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o001 != 0);
    let all = [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into(), "/dev/shm".into()];
    all.into_iter().find(|directory| directory.ancestors().all(can_enter)).unwrap()
}

#[test]
fn without_a_control_group_the_whole_tree_ends_too() {
    let script = format!("{DAEMON}; python3 -c \"$COMET\" & trap '' TERM; sleep 60");
    let mut call = start_unprivileged(&["run", &path("walk"), "sh", "-c", &script]);
    wait_for_sleeps(&call, 3);
    call.process("python3");
    let since = Instant::now();
    call.signal(libc::SIGKILL);
    assert_eq!(call.wait(), 1000 + libc::SIGKILL);
    assert_gone(&call, since);
}

fn parent_of(pid: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().parse().unwrap()
}

/// Returns the directory of the control group of a process, if the machine has control groups of version 2.
fn control_group(pid: i32) -> Option<PathBuf> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    Some(Path::new(mount.split(' ').nth(4).unwrap()).join(group))
}

#[test]
fn the_control_groups_of_nested_calls_are_removed_also_after_kills() {
    let script = format!("{PROGRAM} run {} sleep 60; exit 3", path("inner"));
    let mut call = zklock(&["run", &path("outer"), "sh", "-c", &script]).start();
    let command = call.process("sleep").pid;
    let inner = control_group(command).filter(|inner| inner.to_string_lossy().matches("/zklock-").count() == 2);
    let Some(inner) = inner.filter(|inner| inner.is_dir()) else {
        eprintln!("this test needs the permission to make control groups of version 2");
        return;
    };
    let outer = inner.parent().unwrap();
    let guardian = parent_of(command);
    let wrapper = parent_of(guardian);
    // The stopped wrapper neither ends the command nor removes its control group.
    send(wrapper, libc::SIGSTOP);
    send(guardian, libc::SIGKILL);
    wait_until(TEST_TIMEOUT, || process(command).is_none());
    assert!(inner.is_dir() && outer.is_dir());
    send(wrapper, libc::SIGKILL);
    assert_eq!(call.wait(), 3);
    assert!(!inner.exists() && !outer.exists(), "{}", inner.display());
}

#[test]
fn a_stopped_tree_ends_too() {
    let mut call = start(&[], "sleep 60 & kill -STOP $$", 1);
    wait_until(TEST_TIMEOUT, || call.process("sh").state == 'T');
    let since = Instant::now();
    call.signal(libc::SIGKILL);
    assert_eq!(call.wait(), 1000 + libc::SIGKILL);
    assert_gone(&call, since);
}
