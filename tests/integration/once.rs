//! Runs: a job runs once in each period, and the record of runs is written only while the hold exists.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use zklock::{Client, Hold, Owner, PastRun, Period, Run, RunResult, RunStart, Status};
use zklock_test_support::{Direction, Proxy, Verdict, ZooKeeper, flags, wait_until};

use crate::common::{LONG_SESSION, TEST_TIMEOUT, client, client_with, path, raw, status};

fn day() -> Period {
    Period::new("day").unwrap().in_zone("UTC").unwrap()
}

fn hold(client: &Client, path: &str) -> Hold {
    client.mutex(path).unwrap().hold_as(Owner::unique(), Some(TEST_TIMEOUT)).unwrap()
}

#[track_caller]
fn begin(hold: &Hold, retry_failed: bool) -> Run {
    match hold.begin_run(&day(), retry_failed).unwrap() {
        RunStart::Run(run) => run,
        RunStart::Skip(last) => panic!("{last:?}"),
    }
}

#[track_caller]
fn skip(hold: &Hold, retry_failed: bool) -> PastRun {
    match hold.begin_run(&day(), retry_failed).unwrap() {
        RunStart::Skip(last) => last,
        RunStart::Run(run) => panic!("{run:?}"),
    }
}

fn contains(frame: &[u8], text: &str) -> bool {
    frame.windows(text.len()).any(|part| part == text.as_bytes())
}

/// Whether a frame writes the record with this text.
fn writes(frame: &[u8], text: &str) -> bool {
    contains(frame, "zklock_runs") && contains(frame, text)
}

#[test]
fn a_job_runs_once_in_a_period() {
    let server = ZooKeeper::shared();
    let (client, path) = (client(&server.address()), path("once"));
    assert_eq!(client.past_runs(&path).unwrap(), []);
    let hold = hold(&client, &path);
    let run = begin(&hold, false);
    let begun = client.past_runs(&path).unwrap().remove(0);
    assert_eq!((begun.result.clone(), begun.ended, begun.token), (RunResult::Running, None, hold.token()));
    assert_eq!(
        (begun.node_path.clone(), begun.period),
        (hold.node_paths().unwrap().pop(), day().start(begun.started).unwrap())
    );
    // The run counts as running until it ends.
    assert_eq!(skip(&hold, true), begun);
    run.succeed().unwrap();
    assert_eq!(status(run.fail("late")), Status::Invalid);
    let ended = skip(&hold, true);
    assert_eq!(ended.result, RunResult::Succeeded);
    assert!(ended.ended.unwrap() >= begun.started);
    assert_eq!(client.past_runs(&path).unwrap(), [ended]);
}

#[test]
fn failed_and_interrupted_runs_are_repeated_only_if_the_program_asks() {
    let server = ZooKeeper::shared();
    let (client, path) = (client(&server.address()), path("retry"));
    let first = hold(&client, &path);
    begin(&first, false).fail(&"x".repeat(2000)).unwrap();
    assert_eq!(skip(&first, false).result, RunResult::Failed("x".repeat(1000)));
    drop(begin(&first, true));
    first.release().unwrap();
    let second = hold(&client, &path);
    assert_eq!(skip(&second, false).result, RunResult::Running);
    // A run that is taken back does not count.
    begin(&second, true).take_back().unwrap();
    begin(&second, true).succeed().unwrap();
    let results = client.past_runs(&path).unwrap().into_iter().map(|run| run.result);
    assert_eq!(results.collect::<Vec<_>>()[..2], [RunResult::Succeeded, RunResult::Running]);
}

#[test]
fn a_run_that_the_program_never_receives_is_removed_from_the_record() {
    let server = ZooKeeper::shared();
    let (proxy, path) = (Proxy::start(&server.address()), path("untaken"));
    let client = client_with(&proxy.address(), LONG_SESSION);
    let hold = hold(&client, &path);
    let runs = || client.past_runs(&path).unwrap().len();
    // The program drops the operation before the write, during the write and after the write.
    let (is_canceled, record) = (Arc::new(AtomicBool::new(false)), format!("{path}-runs"));
    let flag = Arc::clone(&is_canceled);
    proxy.hook(move |direction, frame| {
        if direction == Direction::ToServer && contains(frame, &record) {
            wait_until(TEST_TIMEOUT, || flag.load(Ordering::SeqCst));
        }
        Verdict::Forward
    });
    drop(hold.start_begin_run(&day(), false).unwrap());
    let canceled = hold.start_begin_run(&day(), false).unwrap();
    canceled.cancel().unwrap();
    assert_eq!(status(canceled.wait_for(TEST_TIMEOUT).unwrap()), Status::Canceled);
    is_canceled.store(true, Ordering::SeqCst);
    let (is_written, seen) = (Arc::new(AtomicBool::new(false)), AtomicUsize::new(0));
    let written = Arc::clone(&is_written);
    proxy.hook(move |direction, frame| {
        if direction == Direction::ToServer && writes(frame, "running") && seen.fetch_add(1, Ordering::SeqCst) == 0 {
            written.store(true, Ordering::SeqCst);
        }
        Verdict::Forward
    });
    let writing = hold.start_begin_run(&day(), false).unwrap();
    wait_until(TEST_TIMEOUT, || is_written.load(Ordering::SeqCst));
    drop(writing);
    wait_until(TEST_TIMEOUT, || runs() == 0);
    let begun = hold.start_begin_run(&day(), false).unwrap();
    wait_until(TEST_TIMEOUT, || begun.is_over());
    assert_eq!(runs(), 1);
    drop(begun);
    wait_until(TEST_TIMEOUT, || runs() == 0);
    begin(&hold, false).succeed().unwrap();
}

/// Cuts the connection after the server has received the first write with this text.
fn lose_answer(proxy: &Proxy, text: &'static str) {
    let (is_lost, hidden) = (AtomicBool::new(false), AtomicBool::new(false));
    proxy.hook(move |direction, frame| match direction {
        Direction::ToServer if writes(frame, text) && !is_lost.swap(true, Ordering::SeqCst) => {
            hidden.store(true, Ordering::SeqCst);
            Verdict::Forward
        }
        Direction::ToClient if hidden.swap(false, Ordering::SeqCst) => Verdict::CutBefore,
        _ => Verdict::Forward,
    });
}

#[test]
fn a_lost_answer_changes_neither_the_beginning_nor_the_end_of_a_run() {
    let server = ZooKeeper::shared();
    let (proxy, path) = (Proxy::start(&server.address()), path("lost-answer"));
    let client = client_with(&proxy.address(), LONG_SESSION);
    let hold = hold(&client, &path);
    lose_answer(&proxy, "running");
    let run = begin(&hold, false);
    lose_answer(&proxy, "succeeded");
    run.succeed().unwrap();
    let runs = client.past_runs(&path).unwrap();
    assert_eq!(runs.iter().map(|run| &run.result).collect::<Vec<_>>(), [&RunResult::Succeeded]);
}

#[test]
fn a_record_that_another_program_changes_is_decided_again_at_the_beginning_and_kept_at_the_end() {
    let server = ZooKeeper::shared();
    let (proxy, path) = (Proxy::start(&server.address()), path("changed"));
    let client = client_with(&proxy.address(), LONG_SESSION);
    let (hold, record) = (hold(&client, &path), format!("{path}-runs"));
    let (mut other, changed) = (raw(server), AtomicBool::new(false));
    let name = record.clone();
    proxy.hook(move |direction, frame| {
        if direction == Direction::ToServer && writes(frame, "running") && !changed.swap(true, Ordering::SeqCst) {
            other.create(&name, br#"{"zklock_runs":[]}"#, flags::PERSISTENT).unwrap();
        }
        Verdict::Forward
    });
    let run = begin(&hold, false);
    let mut other = raw(server);
    assert_eq!(other.set_data(&record, br#"{"zklock_runs":[]}"#), 0);
    let error = run.succeed().unwrap_err();
    assert_eq!(error.status(), Status::Foreign);
    assert!(error.message().contains(&format!("another program has changed the record {record}")), "{error}");
    assert_eq!(client.past_runs(&path).unwrap(), []);
}

#[test]
fn a_run_of_a_lost_hold_is_no_success() {
    let server = ZooKeeper::shared();
    let (client, path) = (client(&server.address()), path("lost"));
    let lost = hold(&client, &path);
    let run = begin(&lost, false);
    assert_eq!(raw(server).delete(&lost.node_paths().unwrap()[0]), 0);
    assert_eq!(status(run.succeed()), Status::Lost);
    wait_until(TEST_TIMEOUT, || lost.check().is_err());
    assert_eq!(status(lost.begin_run(&day(), true)), Status::Lost);
    let next = hold(&client, &path);
    assert_eq!(skip(&next, false).result, RunResult::Running);
    // A hold that was released protects no run either.
    let run = begin(&next, true);
    next.release().unwrap();
    assert_eq!(status(run.succeed()), Status::NotOwner);
    assert_eq!(status(next.begin_run(&day(), true)), Status::NotOwner);
}

#[test]
fn a_record_from_the_future_counts_and_other_data_is_refused() {
    let server = ZooKeeper::shared();
    let (client, path) = (client(&server.address()), path("future"));
    let (hold, record, mut raw) = (hold(&client, &path), format!("{path}-runs"), raw(server));
    begin(&hold, false).fail("exit code 3").unwrap();
    let text = String::from_utf8(raw.data(&record).unwrap()).unwrap();
    let period = text.split("\"period\":\"").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(raw.set_data(&record, text.replace(period, "2999-01-01T00:00:00Z").as_bytes()), 0);
    assert!(skip(&hold, true).period > std::time::SystemTime::now());
    assert_eq!(raw.set_data(&record, b"something else"), 0);
    for error in [hold.begin_run(&day(), true).unwrap_err(), client.past_runs(&path).unwrap_err()] {
        assert_eq!(error.status(), Status::Invalid);
        assert!(error.message().contains(&format!("the node {record} is no record of runs")), "{error}");
    }
}

#[test]
fn a_lock_that_several_participants_can_hold_has_no_runs() {
    let server = ZooKeeper::shared();
    let (client, path) = (client(&server.address()), path("shared"));
    let rw = client.rwlock(&path).unwrap();
    let read = rw.read.hold_as(Owner::unique(), Some(TEST_TIMEOUT)).unwrap();
    let leases = client.semaphore(&path, 2).unwrap();
    for shared in [read, leases.acquire(2, Some(TEST_TIMEOUT)).unwrap()] {
        let error = shared.begin_run(&day(), false).unwrap_err();
        assert_eq!(error.status(), Status::Invalid);
        assert!(error.message().contains("a run needs a lock that only one participant can hold"), "{error}");
        shared.release().unwrap();
    }
    let write = rw.write.hold_as(Owner::unique(), Some(TEST_TIMEOUT)).unwrap();
    begin(&write, false).succeed().unwrap();
    // For a multi-lock, the record belongs to the first member lock.
    let members = [client.mutex(&format!("{path}-b")).unwrap(), client.mutex(&format!("{path}-a")).unwrap()];
    let multi = zklock::Lock::multi(&[&members[0], &members[1]]).unwrap();
    let both = multi.hold_as(Owner::unique(), Some(TEST_TIMEOUT)).unwrap();
    begin(&both, false).succeed().unwrap();
    assert_eq!(client.past_runs(&format!("{path}-b")).unwrap().len(), 1);
}
