//! The verbs `hold` and `release`: a lock for a script.

use std::os::fd::OwnedFd;
use std::process::Stdio;

use rustix::fs::OFlags;
use rustix::pipe::PipeFlags;
use zklock_test_support::{Proxy, ZooKeeper, wait_until};

use crate::common::{
    Call, Running, TEST_TIMEOUT, code, code_in_time, path, process, program, queue, raw, send, wait_for_queue, zklock,
    zklock_on,
};

/// The shells of this machine.
fn shells() -> Vec<&'static str> {
    ["/bin/sh", "/bin/bash"].into_iter().filter(|shell| std::fs::exists(shell).unwrap()).collect()
}

/// Makes a call of a shell. The script calls `$zklock`, and uses the lock `$lock`.
fn script(shell: &str, path: &str, text: &str) -> Call {
    program(shell, &["-c", text]).env("zklock", env!("CARGO_BIN_EXE_zklock")).env("lock", path)
}

/// Starts a script with a standard input that stays open.
fn start(mut call: Call) -> Running {
    call.command().stdin(Stdio::piped());
    call.start()
}

#[test]
fn a_script_holds_the_lock_until_it_ends() {
    for shell in shells() {
        for hold in ["$(\"$zklock\" hold --sh \"$lock\")", "$(\"$zklock\" hold --sh \"$lock\" || true)"] {
            let (path, mut raw) = (path("script's"), raw());
            let text =
                format!("eval \"{hold}\" || exit; echo $ZKLOCK_PATH $ZKLOCK_FENCE $ZKLOCK_HOLD_PID; read x; exit 3");
            let mut running = start(script(shell, &path, &text));
            wait_for_queue(&mut raw, &path, 1);
            let holder = running.process("zklock-holder");
            assert_eq!(code(&["try", &path]).0, 75, "{shell} {hold}");
            let node = format!("{path}/{}", queue(&mut raw, &path)[0]);
            let token = raw.stat(&node).unwrap().czxid;
            running.close_input();
            assert_eq!(running.wait(), 3);
            wait_for_queue(&mut raw, &path, 0);
            assert_eq!(running.standard_output(), format!("{path} {token} {}\n", holder.pid));
            wait_until(TEST_TIMEOUT, || running.processes().is_empty());
        }
    }
}

#[test]
fn a_script_that_gets_no_lock_does_not_go_on() {
    let path = path("busy");
    let holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    for shell in shells() {
        let text = "set -e; eval \"$(\"$zklock\" hold --sh -n \"$lock\")\"; echo unreachable";
        let output = script(shell, &path, text).output();
        assert_eq!((output.status.code(), output.stdout), (Some(75), Vec::new()));
        assert!(String::from_utf8(output.stderr).unwrap().contains(": held by "));
    }
    for wrong in ["hold --sh -w 5minutes \"$lock\"", "hold --unknown --sh \"$lock\"", "release --sh x"] {
        let text = format!("set -e; eval \"$(\"$zklock\" {wrong})\"; echo unreachable");
        let output = script("/bin/sh", &path, &text).output();
        assert_eq!((output.status.code(), output.stdout), (Some(64), Vec::new()), "{wrong}");
    }
    assert_eq!(code_in_time(&["hold", "-w", "1s", &path]).0, 75);
    assert_eq!(code(&["hold", "no/path"]).0, 64);
    assert_eq!(code(&["hold", "--pid", "2000000000", &path]).0, 64);
}

#[test]
fn a_release_is_confirmed_and_removes_the_variables() {
    let (path, mut raw) = (path("release"), raw());
    let text = "eval \"$(\"$zklock\" hold --sh \"$lock\")\"; pid=$ZKLOCK_HOLD_PID; eval \"$(\"$zklock\" release --sh)\"; \
                echo \"${ZKLOCK_PATH-none} ${ZKLOCK_HELD-none}\"; \"$zklock\" try \"$lock\"; echo $?; \
                \"$zklock\" release $pid; echo $?; \"$zklock\" release; echo $?";
    let output = script("/bin/sh", &path, text).output();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "none none\n0\n79\n64\n");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("holds no lock; the lock was released or lost before"), "{errors}");
    wait_for_queue(&mut raw, &path, 0);
}

#[test]
fn a_release_reports_a_loss_before_it() {
    let path = path("lost-release");
    let text = "eval \"$(\"$zklock\" hold --sh -o session.timeout=30000 \"$lock\")\"; \
                \"$zklock\" break --yes \"$lock\" >/dev/null; env -u ZKLOCK_HELD \"$zklock\" try -q \"$lock\"; echo $?; \
                \"$zklock\" release; echo $?";
    let output = script("/bin/sh", &path, text).output();
    let errors = String::from_utf8(output.stderr).unwrap();
    let codes = String::from_utf8(output.stdout).unwrap();
    // If the holder has noticed the loss first, it has ended the script.
    if output.status.code() == Some(0) {
        assert!(codes.ends_with("0\n79\n"), "{codes}{errors}");
    } else {
        assert!(!codes.ends_with("0\n0\n"), "{codes}{errors}");
    }
}

#[test]
fn a_hold_is_released_by_its_path() {
    let (path, mut raw) = (path("by-path"), raw());
    let mut call = zklock(&["hold", "-s", "--for", "60s", &path]).start();
    assert_eq!((call.wait(), queue(&mut raw, &path).len()), (0, 1));
    let second = zklock(&["hold", "-s", "--for", "60s", &path]).start();
    let holders = [call.process("zklock-holder").pid, second.process("zklock-holder").pid];
    wait_for_queue(&mut raw, &path, 2);
    let (code_of_both, errors) = code(&["release", &path]);
    assert!(code_of_both == 64 && holders.iter().all(|pid| errors.contains(&pid.to_string())), "{errors}");
    assert_eq!(code(&["release", &holders[0].to_string()]), (0, String::new()));
    assert_eq!(code(&["release", &path]), (0, String::new()));
    assert_eq!(queue(&mut raw, &path), [""; 0]);
    let expected = format!("zklock: no zklock hold of this user on this host holds {path}\n");
    assert_eq!(code(&["release", &path]), (79, expected));
}

#[test]
fn a_release_does_not_end_another_process() {
    let sleep = program("sleep", &["60"]).start();
    assert_eq!(code(&["release", &sleep.pid().to_string()]).0, 79);
    assert!(process(sleep.pid()).is_some());
}

#[test]
fn the_json_describes_the_hold_and_the_call_returns() {
    let (path, mut raw) = (path("json"), raw());
    let target = program("sleep", &["60"]).start();
    let output = zklock(&["hold", "--pid", &target.pid().to_string(), &path]).start();
    let mut output = output;
    assert_eq!(output.wait(), 0);
    let fields: serde_json::Value = serde_json::from_str(&output.standard_output()).unwrap();
    let node = format!("{path}/{}", queue(&mut raw, &path)[0]);
    assert_eq!(fields["path"], serde_json::json!([path]));
    assert_eq!((&fields["node"], &fields["mode"]), (&serde_json::json!([node]), &serde_json::json!("mutex")));
    assert_eq!(fields["fence"][0], raw.stat(&node).unwrap().czxid);
    assert_eq!(fields["bound_pid"], target.pid());
    let holder = output.process("zklock-holder");
    assert_eq!(fields["pid"], holder.pid);
    let status = String::from_utf8(zklock(&["status", &path]).output().stdout).unwrap();
    assert!(status.contains(&format!(":{} (sleep)", holder.pid)), "{status}");
    send(holder.pid, libc::SIGTERM);
    wait_for_queue(&mut raw, &path, 0);
    assert!(process(target.pid()).is_some());
}

#[test]
fn the_holder_process_keeps_no_descriptor_of_the_caller() {
    let (path, mut raw) = (path("descriptors"), raw());
    let mut call = script("/bin/sh", &path, "\"$zklock\" hold --for 60s \"$lock\" 3>&1 >&2").start();
    assert_eq!(call.standard_output(), "");
    assert_eq!((call.wait(), queue(&mut raw, &path).len()), (0, 1));
}

#[test]
fn the_lock_is_released_when_the_process_is_killed() {
    let (path, mut raw) = (path("killed"), raw());
    let target = program("sleep", &["60"]).start();
    let holder = zklock(&["hold", "--pid", &target.pid().to_string(), &path]).start();
    wait_for_queue(&mut raw, &path, 1);
    target.signal(libc::SIGKILL);
    drop(target);
    wait_for_queue(&mut raw, &path, 0);
    wait_until(TEST_TIMEOUT, || holder.processes().is_empty());
}

#[test]
fn a_hold_ends_with_its_time() {
    let (path, mut raw) = (path("timed"), raw());
    let mut call = zklock(&["hold", "--for", "300ms", &path]).start();
    assert_eq!(call.wait(), 0);
    assert!(call.standard_output().contains("\"bound_pid\":null"));
    wait_for_queue(&mut raw, &path, 0);
    wait_until(TEST_TIMEOUT, || call.processes().is_empty());
}

#[test]
fn a_lost_lock_ends_the_process_that_needs_it() {
    for (action, ends) in [("term", true), ("ignore", false)] {
        let (path, mut raw) = (path("lost"), raw());
        let target = program("sleep", &["60"]).start();
        let pid = target.pid().to_string();
        let mut holder = zklock(&["hold", "--on-lost", action, "--pid", &pid, &path]).start();
        assert_eq!(holder.wait(), 0);
        let node = format!("{path}/{}", queue(&mut raw, &path)[0]);
        assert_eq!(raw.delete(&node), 0);
        wait_until(TEST_TIMEOUT, || holder.processes().is_empty() && process(target.pid()).is_none() == ends);
    }
}

#[test]
fn the_process_gets_term_before_the_lease_is_over() {
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let (path, mut raw) = (path("silent"), raw());
    let target = program("sleep", &["60"]).start();
    let arguments = ["hold", "-o", "session.timeout=6000", "--pid", &target.pid().to_string(), &path];
    let holder = zklock_on(&proxy.address(), &arguments).start();
    holder.process("zklock-holder");
    proxy.black_hole(true);
    wait_until(TEST_TIMEOUT, || process(target.pid()).is_none());
    assert_eq!(queue(&mut raw, &path).len(), 1, "the servers have not ended the session");
    wait_until(TEST_TIMEOUT, || holder.processes().is_empty());
}

#[test]
fn a_release_that_no_server_confirms_returns_after_the_session() {
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let (path, mut raw) = (path("late-release"), raw());
    let target = program("sleep", &["60"]).start();
    let pid = target.pid().to_string();
    let options = ["hold", "-o", "session.timeout=6000", "--pid", &pid, &path];
    let holder = zklock_on(&proxy.address(), &options).start();
    let process = holder.process("zklock-holder");
    proxy.black_hole(true);
    let (code, errors) = code(&["release", &process.pid.to_string()]);
    assert_eq!((code, queue(&mut raw, &path)), (0, Vec::new()), "{errors}");
}

#[test]
fn consul_4439_a_caller_that_ends_while_it_waits_leaves_the_queue() {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let (path, mut raw) = (path("waiting"), raw());
        let holder = zklock(&["run", &path, "sleep", "60"]).start();
        holder.wait_for_tree(1);
        let waiter = zklock(&["hold", &path]).start();
        wait_for_queue(&mut raw, &path, 2);
        waiter.signal(signal);
        wait_for_queue(&mut raw, &path, 1);
        wait_until(TEST_TIMEOUT, || waiter.processes().is_empty());
        assert_eq!(holder.tree().len(), 1);
    }
}

#[test]
fn the_end_of_a_wait_names_what_has_ended() {
    let (path, mut raw) = (path("reasons"), raw());
    let holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    let target = program("sleep", &["60"]).start();
    let waiter = zklock(&["hold", "--pid", &target.pid().to_string(), &path]).start();
    wait_for_queue(&mut raw, &path, 2);
    drop(target);
    let output = waiter.output();
    assert_eq!(output.status.code(), Some(75));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "zklock: the process that needs the lock ended before the lock was acquired\n"
    );
    let waiter = zklock(&["hold", &path]).start();
    wait_for_queue(&mut raw, &path, 2);
    waiter.signal(libc::SIGTERM);
    assert_eq!(
        String::from_utf8(waiter.output().stderr).unwrap(),
        "zklock: the call of zklock hold ended before the lock was acquired\n"
    );
}

/// Starts `hold` with a standard output that is full, and waits until the lock is held. Returns also the end of the
/// pipe that must stay open.
fn hold_without_space(arguments: &[&str], path: &str) -> (Running, OwnedFd) {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
    while rustix::io::write(&writer, &[b'x'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, OFlags::empty()).unwrap();
    let mut call = zklock(&[&["hold"], arguments, &[path]].concat());
    call.command().stdout(writer);
    let running = call.start();
    wait_for_queue(&mut raw(), path, 1);
    running.process("zklock-holder");
    (running, reader)
}

#[test]
fn a_report_without_a_reader_releases_the_lock() {
    let (path, mut raw) = (path("unread"), raw());
    let target = program("sleep", &["60"]).start();
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
    drop(reader);
    let read_only = std::fs::File::open("/dev/null").unwrap();
    for stdout in [Stdio::from(writer), Stdio::from(read_only)] {
        let mut call = zklock(&["hold", "--pid", &target.pid().to_string(), &path]);
        call.command().stdout(stdout);
        let mut running = call.start();
        assert_eq!(running.wait(), 70);
        wait_until(TEST_TIMEOUT, || running.processes().is_empty());
        assert_eq!(queue(&mut raw, &path), [""; 0]);
    }
}

#[test]
fn a_caller_that_ignores_the_ends_of_children_gets_the_exit_code() {
    let path = path("ignored");
    let holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    let text = "trap '' CHLD; exec \"$zklock\" hold -n --for 60s \"$lock\"";
    assert_eq!(script("/bin/sh", &path, text).output().status.code(), Some(75));
}

#[test]
fn a_hold_refuses_paths_that_are_too_long_for_a_variable() {
    let paths: Vec<String> = (0..150).map(|_| path(&"p".repeat(1000))).collect();
    let others = paths.iter().skip(1).flat_map(|path| ["--and", path.as_str()]);
    let arguments: Vec<&str> = ["hold", "--for", "60s", &paths[0]].into_iter().chain(others).collect();
    let (code, errors) = code(&arguments);
    assert_eq!(code, 64);
    assert!(errors.contains("the paths are too long"), "{errors}");
}

#[test]
fn a_caller_that_ends_before_it_can_print_the_report_releases_the_lock() {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let path = path("unprinted");
        let target = program("sleep", &["60"]).start();
        let (mut running, _reader) = hold_without_space(&["--pid", &target.pid().to_string()], &path);
        running.signal(signal);
        assert_eq!(running.wait(), 1000 + signal);
        wait_for_queue(&mut raw(), &path, 0);
        wait_until(TEST_TIMEOUT, || running.processes().is_empty());
    }
}

#[test]
fn a_hold_ends_with_its_time_while_its_report_cannot_be_printed() {
    let path = path("unprinted");
    let (mut running, _reader) = hold_without_space(&["--for", "300ms"], &path);
    assert_eq!(running.wait(), 75);
    wait_for_queue(&mut raw(), &path, 0);
    wait_until(TEST_TIMEOUT, || running.processes().is_empty());
}

#[test]
fn a_command_of_the_script_does_not_wait_for_the_lock_of_the_script() {
    let path = path("nested");
    let text = "eval \"$(\"$zklock\" hold --sh \"$lock\")\"; \"$zklock\" run \"$lock\" true";
    let output = script("/bin/sh", &path, text).output();
    assert_eq!(output.status.code(), Some(64));
}

#[test]
fn a_hold_that_another_program_or_a_subshell_calls_is_refused() {
    for shell in shells() {
        for (before, hold) in [("", "timeout 30"), ("(", ""), ("echo | (", "")] {
            let (path, mut raw) = (path("caller"), raw());
            let after = if before.is_empty() { "" } else { "; )" };
            let text = format!("{before} eval \"$({hold} \"$zklock\" hold --sh \"$lock\")\" || exit; echo no {after}");
            let output = script(shell, &path, &text).output();
            let errors = String::from_utf8(output.stderr).unwrap();
            assert_eq!((output.status.code(), &*output.stdout), (Some(64), &b""[..]), "{shell} {text}: {errors}");
            assert!(errors.contains("another process than this shell called zklock hold"), "{errors}");
            wait_for_queue(&mut raw, &path, 0);
        }
        let text =
            "set -eu; (eval \"$(timeout 30 \"$zklock\" hold --pid $$ --sh \"$lock\")\"; \"$zklock\" try \"$lock\")";
        assert_eq!(script(shell, &path("chosen"), text).output().status.code(), Some(64), "the try is refused");
    }
}

#[test]
fn a_failed_release_ends_a_script() {
    let text = "set -e; eval \"$(\"$zklock\" hold --sh \"$lock\")\"; kill -9 $ZKLOCK_HOLD_PID; \
                while kill -0 $ZKLOCK_HOLD_PID 2>/dev/null && ! grep -q '(zombie)' /proc/$ZKLOCK_HOLD_PID/status; do sleep .05; done; \
                eval \"$(\"$zklock\" release --sh)\"; echo unreachable";
    let output = script("/bin/sh", &path("killed holder"), text).output();
    assert_eq!((output.status.code(), output.stdout), (Some(79), Vec::new()));
}

#[test]
fn a_release_of_a_lost_lock_restores_the_variables_and_fails() {
    let text = "eval \"$(\"$zklock\" hold --sh --on-lost ignore \"$lock\")\" || exit 1; \"$zklock\" break --yes \"$lock\" >&2; \
                while \"$zklock\" release $ZKLOCK_HOLD_PID 2>/dev/null; do :; done; \
                eval \"$(\"$zklock\" release --sh)\"; echo \"$? ${ZKLOCK_HELD-none} ${ZKLOCK_HOLD_PID-none}\"; \"$zklock\" try \"$lock\"";
    let output = script("/bin/sh", &path("lost"), text).output();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*output.stdout), (Some(0), &b"79 none none\n"[..]), "{errors}");
}

#[test]
fn a_script_can_release_its_locks_in_any_order() {
    let (path, first, second) = (path("outer"), path("first's"), path("second"));
    let script = format!(
        "hold() {{ eval \"$(\"$zklock\" hold --sh \"$1\")\" || exit; }}; outer=$ZKLOCK_HELD; \
         hold \"{first}\"; one=$ZKLOCK_HOLD_PID; hold {second}; eval \"$(\"$zklock\" release --sh $one)\"; \
         [ \"$ZKLOCK_PATH\" = {second} ] || exit 10; \"$zklock\" try \"{first}\" || exit 11; \
         \"$zklock\" try -q {second}; [ $? = 64 ] || exit 12; eval \"$(\"$zklock\" release --sh)\"; \
         [ \"$ZKLOCK_HELD:${{ZKLOCK_PATH-none}}\" = \"$outer:none\" ] || exit 13; \"$zklock\" try {second} || exit 14; \
         \"$zklock\" try -q \"$lock\"; [ $? = 64 ] || exit 15"
    );
    let zklock = env!("CARGO_BIN_EXE_zklock");
    let call = program(zklock, &["run", &path, "-c", &script]).env("zklock", zklock).env("lock", &path);
    let output = call.output();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_release_refuses_numbers_that_are_no_process_ids() {
    assert_eq!(code(&["release", "--", "-5"]).0, 79);
    assert_eq!(zklock(&["release"]).env("ZKLOCK_HOLD_PID", "-5").output().status.code(), Some(79));
}
