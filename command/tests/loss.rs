//! The reaction to a lock that is no longer certain.

use std::collections::VecDeque;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use zklock_test_support::{Direction, Proxy, Verdict, ZooKeeper, wait_until, xid};

use crate::common::{
    PROGRAM, TEST_TIMEOUT, code, file, path, process, program, queue, raw, send, wait_for_queue, zklock, zklock_on,
};

const SHORT_SESSION: &str = "session.timeout=9000";

#[test]
fn a_stopped_wrapper_loses_its_command_before_another_holder_starts() {
    let (path, log) = (path("stopped"), file("log"));
    let script = format!("trap 'date +%s%N >>{0}; exit' TERM; while :; do sleep 0.02; done", log.display());
    let mut first = zklock(&["run", "-o", SHORT_SESSION, &path, "sh", "-c", &script]).start();
    first.process("sleep");
    first.signal(libc::SIGSTOP);
    let script = format!("date +%s%N >>{}", log.display());
    let second = zklock(&["run", &path, "sh", "-c", &script]).output();
    assert_eq!(second.status.code(), Some(0));
    assert_eq!(first.tree(), []);
    let times = fs::read_to_string(&log).unwrap();
    let times: Vec<u128> = times.lines().map(|time| time.parse().unwrap()).collect();
    assert!(times.len() == 2 && times[0] < times[1], "{times:?}");
    first.signal(libc::SIGCONT);
    assert_eq!(first.wait(), 79);
    fs::remove_file(&log).unwrap();
}

/// A proxy that delays each answer, and the longest time from a request to its answer.
fn slow_proxy(delay: Duration) -> (Proxy, Arc<Mutex<Duration>>) {
    let (proxy, longest) = (Proxy::start(&ZooKeeper::shared().address()), Arc::new(Mutex::new(Duration::ZERO)));
    let (measured, mut requests) = (Arc::clone(&longest), VecDeque::new());
    proxy.delay(Direction::ToClient, delay);
    proxy.hook(move |direction, frame: &mut Vec<u8>| {
        const WATCH_EVENT: i32 = -1;
        if direction == Direction::ToServer {
            requests.push_back(Instant::now());
        } else if let Some(sent) = (xid(frame) != WATCH_EVENT).then(|| requests.pop_front()).flatten() {
            let mut longest = measured.lock().unwrap();
            *longest = sent.elapsed().max(*longest);
        }
        Verdict::Forward
    });
    (proxy, longest)
}

/// The lease of a client that only waited is short until two heartbeats have followed. How short depends on the time
/// between the last heartbeat of the waiter and the grant. The longest grace period is correct for a server that answers
/// within T/12, so the test starts again if the server of a busy machine was slower.
#[test]
fn the_longest_grace_period_does_not_end_a_command_that_had_to_wait() {
    const SESSION_TIMEOUT: Duration = Duration::from_secs(27);
    for _ in 0..5 {
        let waiters: Vec<_> = (0..6)
            .map(|phase| {
                let (path, (proxy, longest)) = (path("long-grace"), slow_proxy(Duration::from_millis(1500)));
                let holds = format!("{}", 10.5 + 0.75 * f64::from(phase));
                let holder = zklock(&["run", &path, "sleep", &holds]).start();
                holder.wait_for_tree(1);
                let arguments = ["run", "-o", "session.timeout=27000", "--grace", "6750ms", &path, "sleep", "10.5"];
                let waiter = zklock_on(&proxy.address(), &arguments).start();
                (proxy, longest, holder, waiter)
            })
            .collect();
        let mut was_slow = false;
        for (_proxy, longest, mut holder, mut waiter) in waiters {
            let (ends, longest) = ((holder.wait(), waiter.wait()), *longest.lock().unwrap());
            was_slow |= longest >= SESSION_TIMEOUT / 12;
            assert!(ends == (0, 0) || was_slow, "{ends:?}, although each answer arrived within {longest:?}");
        }
        if !was_slow {
            return;
        }
    }
    panic!("the server was too slow in each attempt");
}

#[test]
fn a_silent_server_ends_the_command_before_the_session_ends() {
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let (path, mut raw) = (path("silent"), raw());
    let arguments = ["run", "-o", SHORT_SESSION, &path, "sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"];
    let mut call = zklock_on(&proxy.address(), &arguments).start();
    call.process("sleep");
    proxy.black_hole(true);
    wait_until(TEST_TIMEOUT, || call.tree().is_empty());
    assert_eq!(queue(&mut raw, &path).len(), 1, "the servers have not ended the session yet");
    assert_eq!(call.wait(), 79);
}

#[test]
fn consul_985_a_short_interruption_does_not_end_the_command() {
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let done = file("done");
    let script = format!("until test -e {}; do sleep 0.05; done; exit 7", done.display());
    let mut call = zklock_on(&proxy.address(), &["run", &path("short"), "sh", "-c", &script]).start();
    call.process("sh");
    for _ in 0..3 {
        let accepted = proxy.accepted_count();
        proxy.cut();
        wait_until(TEST_TIMEOUT, || proxy.accepted_count() > accepted);
    }
    fs::write(&done, "").unwrap();
    assert_eq!(call.wait(), 7);
    fs::remove_file(&done).unwrap();
}

#[test]
fn etcd_7983_the_command_can_wait_for_the_loss() {
    let (path, mut raw, log) = (path("told"), raw(), file("log"));
    let script = format!("read line <&$ZKLOCK_STATUS_FD; echo $line >{}; exit 4", log.display());
    let mut call = zklock(&["run", "--on-lost", "ignore", &path, "sh", "-c", &script]).start();
    call.process("sh");
    let node = queue(&mut raw, &path).remove(0);
    assert_eq!(raw.delete(&format!("{path}/{node}")), 0);
    assert_eq!(call.wait(), 80);
    assert_eq!(fs::read_to_string(&log).unwrap(), "lost\n");
    fs::remove_file(&log).unwrap();
}

#[test]
fn the_command_stops_while_the_connection_is_lost_if_the_user_wants_it() {
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let path = path("suspended");
    let arguments = ["run", "-o", "session.timeout=30000", "--on-suspend", "stop", &path, "sleep", "60"];
    let mut call = zklock_on(&proxy.address(), &arguments).start();
    let pid = call.process("sleep").pid;
    proxy.refuse(true);
    proxy.cut();
    wait_until(TEST_TIMEOUT, || process(pid).is_some_and(|process| process.state == 'T'));
    // The shell continues the whole process group at `fg`. The wrapper then stops the tree again.
    send(pid, libc::SIGCONT);
    wait_until(TEST_TIMEOUT, || process(pid).is_some_and(|process| process.state != 'T'));
    call.signal(libc::SIGCONT);
    wait_until(TEST_TIMEOUT, || process(pid).is_some_and(|process| process.state == 'T'));
    proxy.refuse(false);
    wait_until(TEST_TIMEOUT, || process(pid).is_some_and(|process| process.state != 'T'));
    call.signal(libc::SIGTERM);
    assert_eq!(call.wait(), 143);
}

#[test]
fn the_command_ends_with_the_connection_if_the_user_wants_it() {
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let path = path("term");
    let call = zklock_on(&proxy.address(), &["run", "--on-suspend", "term", &path, "sleep", "60"]).start();
    let pid = call.process("sleep").pid;
    // A busy wrapper may not notice a short interruption.
    proxy.refuse(true);
    proxy.cut();
    wait_until(TEST_TIMEOUT, || process(pid).is_none());
    proxy.refuse(false);
    let output = call.output();
    assert_eq!(output.status.code(), Some(79));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("the connection is lost, so the command is ended (--on-suspend term)"), "{errors}");
}

/// The shell is the leader of a session without a terminal, as below cron. The wrapper belongs to its process group.
#[test]
fn a_stopped_wrapper_without_a_terminal_does_not_end_its_caller() {
    let script = "\"$1\" run -o \"$2\" \"$3\" sleep 60; echo \"code $?\"";
    let path = path("stopped");
    let arguments = ["--wait", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_zklock"), SHORT_SESSION, &path];
    let call = program("setsid", &arguments).start();
    let command = call.process("sleep");
    let wrapper = call.process("zklock");
    send(wrapper.pid, libc::SIGSTOP);
    wait_until(TEST_TIMEOUT, || process(command.pid).is_none());
    // The guardian continues nothing, so the wrapper is still stopped.
    assert_eq!(process(wrapper.pid).unwrap().state, 'T');
    send(wrapper.pid, libc::SIGCONT);
    let output = call.output();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "code 79\n");
}

/// The command ignores TERM from its start, so TERM does not end it before the loss, however late it starts.
#[test]
fn a_loss_while_the_time_limit_ends_the_command_is_a_loss() {
    let (path, mut raw, log) = (path("both"), raw(), file("log"));
    let options = ["-o", "session.timeout=30000", "--for", "300ms", "--grace", "5s"];
    let ignoring = ["-c", "trap '' TERM; exec \"$@\"", "sh", PROGRAM, "run"];
    let mut call = program("sh", &[&ignoring[..], &options, &[&*path, "sleep", "60"]].concat());
    call.command().stderr(fs::File::create(&log).unwrap());
    let mut call = call.start();
    wait_until(TEST_TIMEOUT, || fs::read_to_string(&log).unwrap().contains("the time of --for is over"));
    let node = queue(&mut raw, &path).remove(0);
    assert_eq!(raw.delete(&format!("{path}/{node}")), 0);
    assert_eq!(call.wait(), 79);
    fs::remove_file(&log).unwrap();
}

#[test]
fn a_killed_command_gets_no_term() {
    let (path, mut raw, log) = (path("kill"), raw(), file("log"));
    let script = format!("trap 'echo term >{}' TERM; while :; do sleep 0.02; done", log.display());
    let mut call = zklock(&["run", "--on-lost", "kill", &path, "sh", "-c", &script]).start();
    call.process("sleep");
    let node = queue(&mut raw, &path).remove(0);
    assert_eq!(raw.delete(&format!("{path}/{node}")), 0);
    assert_eq!(call.wait(), 79);
    assert!(!log.exists());
}

#[test]
fn etcd_10117_a_killed_call_frees_the_lock_within_the_session_timeout() {
    let (path, mut raw) = (path("abandoned"), raw());
    let mut call = zklock(&["run", "-o", SHORT_SESSION, &path, "sleep", "60"]).start();
    call.wait_for_tree(1);
    call.signal(libc::SIGKILL);
    call.wait();
    let since = Instant::now();
    wait_for_queue(&mut raw, &path, 0);
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
}

/// Returns the writing end of a pipe that is full, and the other end.
fn full_pipe() -> (std::process::Stdio, std::os::fd::OwnedFd) {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let size = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
    assert_eq!(rustix::io::write(&writer, &vec![b'x'; size]).unwrap(), size);
    (writer.into(), reader)
}

#[test]
fn a_reader_that_does_not_read_delays_no_reaction() {
    let (path, mut raw) = (path("blocked"), raw());
    let mut call = zklock(&["run", "-v", "--on-lost", "kill", &path, "sh", "-c", "while :; do sleep 0.05; done"]);
    let (stderr, _reader) = full_pipe();
    call.command().stderr(stderr);
    let mut call = call.start();
    call.process("sleep");
    let node = queue(&mut raw, &path).remove(0);
    assert_eq!(raw.delete(&format!("{path}/{node}")), 0);
    assert_eq!(call.wait(), 79);
    assert_eq!(call.tree(), []);
}

#[test]
fn a_reader_that_does_not_read_does_not_keep_the_lock() {
    let (path, mut raw) = (path("unread"), raw());
    let mut call = zklock(&["run", "--json", "--for", "200ms", &path, "sleep", "60"]);
    let (stderr, _reader) = full_pipe();
    call.command().stderr(stderr);
    let mut call = call.start();
    assert_eq!(call.wait(), 143);
    wait_for_queue(&mut raw, &path, 0);
}

#[test]
fn a_signal_ends_the_wait_for_a_release_that_no_server_confirms() {
    let (proxy, done) = (Proxy::start(&ZooKeeper::shared().address()), file("done"));
    let script = format!("until test -e {}; do sleep 0.05; done", done.display());
    let arguments = ["run", "-o", "session.timeout=30000", "--once-per", "day", &path("release"), "-c", &script];
    let mut call = zklock_on(&proxy.address(), &arguments).start();
    call.process("sleep");
    proxy.black_hole(true);
    fs::write(&done, "").unwrap();
    wait_until(TEST_TIMEOUT, || call.tree().is_empty());
    let since = Instant::now();
    wait_until(TEST_TIMEOUT, || {
        call.signal(libc::SIGTERM);
        process(call.pid()).is_none()
    });
    assert_eq!(call.wait(), 81);
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
    fs::remove_file(&done).unwrap();
}

/// `-q` prints only errors. A loss is an error, and so is the end of processes that should have stayed.
#[test]
fn quiet_prints_what_zklock_does_to_the_command() {
    let (path, mut raw) = (path("quiet"), raw());
    let call = zklock(&["run", "-q", &path, "sleep", "60"]).start();
    call.process("sleep");
    let node = queue(&mut raw, &path).remove(0);
    assert_eq!(raw.delete(&format!("{path}/{node}")), 0);
    let output = call.output();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(79), "{errors}");
    assert_eq!(errors, "zklock: the lock is lost, so the command is ended\n");
    let left = code(&["run", "-q", &path, "sh", "-c", "sleep 60 & exit 3"]);
    assert_eq!(
        left,
        (3, "zklock: ended 1 process that the command left behind; --leave-running leaves them alone\n".to_owned())
    );
}
