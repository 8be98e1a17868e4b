//! Once per period: many hosts start a job, and one of them runs it.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use zklock_test_support::{Direction, Proxy, Verdict, ZooKeeper, assert_not_late, flags, wait_until};

use crate::common::{Running, TEST_TIMEOUT, code, file, path, queue, raw, zklock, zklock_on};

fn contains(frame: &[u8], text: &str) -> bool {
    frame.windows(text.len()).any(|part| part == text.as_bytes())
}

#[test]
fn crunz_289_a_quick_job_runs_once_however_many_hosts_start_it() {
    // `make faults` makes 1000 calls.
    let (hosts, calls) = if std::env::var_os("TEST_ZKLOCK_FAULTS").is_some() { (50, 20) } else { (10, 2) };
    let (path, log) = (path("quick"), file("log"));
    let script = format!("echo run >>{}; sleep 0.01", log.display());
    let codes = Mutex::new(Vec::new());
    let call = || zklock(&["run", "--once-per", "1d", &path, "-c", &script]).start().wait();
    let host = || {
        for _ in 0..calls {
            let code = call();
            codes.lock().unwrap().push(code);
        }
    };
    thread::scope(|scope| (0..hosts).for_each(|_| drop(scope.spawn(host))));
    let mut codes = codes.into_inner().unwrap();
    codes.sort_unstable();
    assert!(codes.len() == hosts * calls && codes[0] == 0, "{codes:?}");
    assert!(codes[1..].iter().all(|&code| code == 75), "{codes:?}");
    assert_eq!(fs::read_to_string(&log).unwrap(), "run\n");
    fs::remove_file(&log).unwrap();
}

#[test]
fn a_failed_run_is_repeated_only_if_the_user_asks() {
    let path = path("failed");
    let run = |more: &[&str], command: &str| {
        code(&[&["run", "--once-per", "day"], more, &[&path, "sh", "-c", command]].concat())
    };
    assert_eq!(run(&[], "exit 3").0, 3);
    let (skipped, errors) = run(&[], "true");
    assert_eq!(skipped, 75);
    assert!(
        errors.contains("has already run in this period") && errors.contains("failed with exit code 3"),
        "{errors}"
    );
    assert_eq!(run(&["--retry-failed"], "true").0, 0);
    let (skipped, errors) = run(&["--retry-failed"], "true");
    assert_eq!(skipped, 75);
    assert!(errors.contains("and it succeeded"), "{errors}");
    assert_eq!(run(&["-q", "-E", "0"], "exit 3"), (0, String::new()));
}

#[test]
fn node_cron_549_a_job_that_has_already_run_is_not_repeated() {
    // A server removes an empty container at any time, but no persistent directory.
    let (path, mut raw) = (format!("/again-{}", std::process::id()), raw());
    raw.create(&path, b"", flags::PERSISTENT).unwrap();
    assert_eq!(code(&["run", "--once-per", "day", &path, "true"]).0, 0);
    let before = raw.stat(&path).unwrap().cversion;
    assert_eq!(code(&["run", "--once-per", "day", &path, "false"]).0, 75);
    assert_eq!(raw.stat(&path).unwrap().cversion, before);
}

#[test]
fn an_interrupted_run_counts_as_failed() {
    let (path, mut raw) = (path("interrupted"), raw());
    let mut call = zklock(&["run", "--once-per", "day", &path, "sleep", "60"]).start();
    call.wait_for_tree(1);
    let node = queue(&mut raw, &path).remove(0);
    assert_eq!(raw.delete(&format!("{path}/{node}")), 0);
    assert_eq!(call.wait(), 79);
    let (skipped, errors) = code(&["run", "--once-per", "day", &path, "true"]);
    assert_eq!(skipped, 75);
    assert!(errors.contains("was interrupted"), "{errors}");
    assert_eq!(code(&["run", "--once-per", "day", "--retry-failed", &path, "true"]).0, 0);
}

#[test]
fn the_record_is_beside_the_lock_and_other_data_is_refused() {
    let (path, mut raw) = (path("record"), raw());
    assert_eq!(code(&["run", "--once-per", "day", &path, "true"]).0, 0);
    let record = String::from_utf8(raw.data(&format!("{path}-runs")).unwrap()).unwrap();
    assert!(record.contains("\"result\":\"succeeded\""), "{record}");
    assert_eq!(raw.set_data(&format!("{path}-runs"), b"something else"), 0);
    let (code, errors) = code(&["run", "--once-per", "day", &path, "true"]);
    assert_eq!(code, 64);
    assert!(errors.contains(&format!("the node {path}-runs is no record of runs")), "{errors}");
}

#[test]
fn a_new_period_runs_again() {
    let path = path("period");
    assert_eq!(code(&["run", "--once-per", "1s", &path, "true"]).0, 0);
    wait_until(TEST_TIMEOUT, || code(&["run", "--once-per", "1s", "-q", &path, "true"]).0 == 0);
}

#[test]
fn the_end_of_a_run_is_recorded_when_the_servers_are_back() {
    let (proxy, path, done) = (Proxy::start(&ZooKeeper::shared().address()), path("back"), file("done"));
    let script = format!("until test -e {}; do sleep 0.05; done", done.display());
    let arguments = ["run", "-o", "session.timeout=30000", "--once-per", "day", &path, "-c", &script];
    let mut call = zklock_on(&proxy.address(), &arguments).start();
    call.process("sleep");
    proxy.refuse(true);
    proxy.cut();
    fs::write(&done, "").unwrap();
    wait_until(TEST_TIMEOUT, || call.processes().len() == 1);
    proxy.refuse(false);
    assert_eq!(call.wait(), 0);
    let record = String::from_utf8(raw().data(&format!("{path}-runs")).unwrap()).unwrap();
    assert!(record.contains("\"result\":\"succeeded\""), "{record}");
    fs::remove_file(&done).unwrap();
}

#[test]
fn a_run_that_a_signal_ends_before_the_command_starts_does_not_count() {
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let (path, mut raw) = (path("signal"), raw());
    let record = format!("{path}-runs");
    // The answer to the write of the beginning arrives after the signal.
    let delayed = record.clone();
    let (signaled, flag) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let is_signaled = Arc::clone(&signaled);
    proxy.hook(move |direction, frame| {
        if direction == Direction::ToServer && contains(frame, &delayed) && contains(frame, "zklock_runs") {
            flag.store(true, Ordering::SeqCst);
        } else if direction == Direction::ToClient && flag.swap(false, Ordering::SeqCst) {
            wait_until(TEST_TIMEOUT, || is_signaled.load(Ordering::SeqCst));
        }
        Verdict::Forward
    });
    let mut call = zklock_on(&proxy.address(), &["run", "--once-per", "day", &path, "echo", "started"]).start();
    wait_until(TEST_TIMEOUT, || raw.data(&record).is_some());
    call.signal(libc::SIGTERM);
    signaled.store(true, Ordering::SeqCst);
    assert_eq!((call.wait(), call.standard_output()), (143, String::new()));
    assert_eq!(raw.data(&record).unwrap(), br#"{"zklock_runs":[]}"#);
    assert_eq!(code(&["run", "--once-per", "day", &path, "true"]).0, 0);
}

/// Runs a command that cannot start. `on_removal` is called for each request that removes its run from the record.
fn start_missing_command(record: &str, mut on_removal: impl FnMut() -> Verdict + Send + 'static) -> (Proxy, Running) {
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let (path, record) = (record.strip_suffix("-runs").unwrap().to_owned(), record.to_owned());
    proxy.hook(move |direction, frame| {
        let is_removal = contains(frame, &record) && contains(frame, r#"{"zklock_runs":[]}"#);
        if direction == Direction::ToServer && is_removal { on_removal() } else { Verdict::Forward }
    });
    let options = ["run", "-o", "session.timeout=30000", "--once-per", "day", &path, "/nonexistent/program"];
    let call = zklock_on(&proxy.address(), &options).start();
    (proxy, call)
}

#[test]
fn a_record_that_another_program_changes_keeps_the_run_that_did_not_start() {
    let (record, mut other) = (format!("{}-runs", path("changed")), raw());
    let changed = record.clone();
    let (_proxy, call) = start_missing_command(&record, move || {
        let data = other.data(&changed).unwrap();
        assert_eq!(other.set_data(&changed, &data), 0);
        Verdict::Forward
    });
    let output = call.output();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(127), "{errors}");
    let expected =
        "the command did not start, but its run may count as interrupted: another program has changed the record";
    assert!(errors.contains(expected), "{errors}");
    assert!(String::from_utf8(raw().data(&record).unwrap()).unwrap().contains("\"running\""));
}

#[test]
fn a_signal_ends_the_removal_of_a_run_that_did_not_start() {
    let (record, is_lost) = (format!("{}-runs", path("removal")), Arc::new(AtomicBool::new(false)));
    let flag = Arc::clone(&is_lost);
    let (_proxy, call) = start_missing_command(&record, move || {
        flag.store(true, Ordering::SeqCst);
        Verdict::Drop
    });
    wait_until(TEST_TIMEOUT, || is_lost.load(Ordering::SeqCst));
    call.signal(libc::SIGTERM);
    let output = call.output();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(127), "{errors}");
    assert!(errors.contains("may count as interrupted: a signal ended the wait for the servers"), "{errors}");
}

#[test]
fn a_signal_ends_the_wait_for_the_beginning_of_a_run() {
    let (path, proxy) = (path("beginning"), Proxy::start(&ZooKeeper::shared().address()));
    let record = format!("{path}-runs");
    let (is_written, flag) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let seen = Arc::clone(&is_written);
    proxy.hook(move |direction, frame| {
        if direction == Direction::ToServer && contains(frame, &record) && contains(frame, "zklock_runs") {
            flag.store(true, Ordering::SeqCst);
        } else if direction == Direction::ToClient && flag.load(Ordering::SeqCst) {
            seen.store(true, Ordering::SeqCst);
            return Verdict::Drop;
        }
        Verdict::Forward
    });
    let call = zklock_on(&proxy.address(), &["run", "--once-per", "day", &path, "true"]).start();
    wait_until(TEST_TIMEOUT, || is_written.load(Ordering::SeqCst));
    let since = Instant::now();
    call.signal(libc::SIGTERM);
    let output = call.output();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(143), "{errors}");
    assert!(errors.contains("it may be in the record and count as interrupted"), "{errors}");
    assert_not_late(since.elapsed(), Duration::from_secs(3));
}

#[test]
fn the_time_limit_also_limits_the_read_of_the_record() {
    let (path, proxy) = (path("limit"), Proxy::start(&ZooKeeper::shared().address()));
    let record = format!("{path}-runs");
    proxy.hook(move |direction, frame| {
        if direction == Direction::ToServer && contains(frame, &record) { Verdict::Drop } else { Verdict::Forward }
    });
    let since = Instant::now();
    let mut call = zklock_on(&proxy.address(), &["run", "--once-per", "day", "-w", "1s", &path, "true"]).start();
    assert_eq!(call.wait(), 69);
    assert_not_late(since.elapsed(), Duration::from_secs(2));
}

#[test]
fn a_command_that_cannot_start_does_not_count() {
    let path = path("missing");
    for (command, expected) in [("/nonexistent/program", 127), ("/etc", 126), ("true", 0), ("true", 75)] {
        let (code, errors) = code(&["run", "--once-per", "day", &path, "--", command]);
        assert_eq!(code, expected, "{command}: {errors}");
    }
}

#[test]
fn a_retry_checks_that_the_last_run_is_over_whatever_its_kind_of_lock() {
    let path = path("kinds");
    let first = zklock(&["run", "--once-per", "day", &path, "sleep", "60"]).start();
    first.wait_for_tree(1);
    let again = ["run", "-n", "--semaphore", "1", "--once-per", "day", "--retry-failed", &path, "true"];
    let (refused, errors) = code(&again);
    assert_eq!(refused, 83, "{errors}");
    assert!(errors.contains("still runs the job") && errors.contains("another kind of lock"), "{errors}");
    drop(first);
    wait_until(TEST_TIMEOUT, || code(&again).0 == 0);
}

#[test]
fn an_unknown_time_zone_is_refused() {
    let path = path("zone");
    let run = |zone| zklock(&["run", "--once-per", "day", &path, "true"]).env("TZ", zone).output();
    let refused = run("Pacific/Aukland");
    let errors = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(64));
    assert!(errors.contains("the variable TZ is \"Pacific/Aukland\""), "{errors}");
    assert_eq!(run("Pacific/Auckland").status.code(), Some(0));
}

#[test]
fn a_record_from_the_future_is_named() {
    let (path, mut raw) = (path("future"), raw());
    assert_eq!(code(&["run", "--once-per", "day", &path, "true"]).0, 0);
    let record = format!("{path}-runs");
    let text = String::from_utf8(raw.data(&record).unwrap()).unwrap();
    let period = text.split("\"period\":\"").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(raw.set_data(&record, text.replace(period, "2999-01-01T00:00:00Z").as_bytes()), 0);
    let (skipped, errors) = code(&["run", "--once-per", "day", &path, "true"]);
    assert_eq!(skipped, 75);
    assert!(errors.contains("is in the future of this host") && errors.contains(&record), "{errors}");
    let report = zklock(&["doctor", "--json", &path]).output().stdout;
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    let finding = report["findings"].as_array().unwrap().iter().find(|finding| finding["check"] == "runs").unwrap();
    assert_eq!(finding["level"], "warn", "{report}");
}
