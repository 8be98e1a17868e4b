//! The log handler, for languages that have no `tracing`. It is global to the process, so there is only one test.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failing test may panic")]

#[path = "../common.rs"]
mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, SystemTime};

use common::{TEST_TIMEOUT, client, path, raw, status};
use zklock::Status;
use zklock::internal::{Level, LogDispatch, LogLine, LogValue, set_log_handler, set_log_level};
use zklock_test_support::{ZooKeeper, wait_until};

type Lines = Arc<Mutex<Vec<LogLine>>>;

fn keep(lines: &Lines) -> Option<Arc<zklock::internal::LogHandler>> {
    let lines = Arc::clone(lines);
    Some(Arc::new(move |line: &LogLine| lines.lock().unwrap().push(line.clone())))
}

fn find_line(lines: &Lines, message: &str) -> Option<LogLine> {
    lines.lock().unwrap().iter().find(|line| line.message == message).cloned()
}

#[test]
fn log_handler_receives_lines() {
    let server = ZooKeeper::shared();
    let lines = Lines::default();
    let started = SystemTime::now();
    set_log_handler(Level::Debug, LogDispatch::EventThread, keep(&lines)).unwrap();
    let client = client(&server.address());
    let path = path("a log");
    let lock = client.mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    lock.release().unwrap();
    wait_until(TEST_TIMEOUT, || find_line(&lines, "released").is_some());
    let acquired = find_line(&lines, "acquired").unwrap();
    assert_eq!((acquired.level, acquired.target), (Level::Debug, "zklock::lock"));
    assert!(acquired.fields.contains(&("path", LogValue::Text(path.clone()))), "{acquired:?}");
    assert!(acquired.fields.contains(&("handed_over", LogValue::Flag(false))), "{acquired:?}");
    assert!(acquired.to_string().starts_with(&format!("acquired path={path:?} owner=\"thread ")), "{acquired}");
    assert!(acquired.time >= started && acquired.time <= SystemTime::now());
    assert!(lines.lock().unwrap().iter().all(|line| line.level <= Level::Debug));

    // From now on, the level is different.
    set_log_level(Some(Level::Info));
    lines.lock().unwrap().clear();
    lock.acquire(None).unwrap();
    lock.release().unwrap();
    client.close().unwrap();
    wait_until(TEST_TIMEOUT, || find_line(&lines, "session closed").is_some());
    assert_eq!(lines.lock().unwrap().len(), 1);

    the_one_before_is_over_when_another_takes_its_place();
    a_handler_may_call_but_not_wait();
    one_that_stands_still_is_told_what_it_missed();
    none_is_none();
    a_loss_does_not_wait_for_a_slow_handler();
}

fn a_loss_does_not_wait_for_a_slow_handler() {
    let (began, begins) = mpsc::channel();
    let (open, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let slow = move |_: &LogLine| {
        let _ = began.send(());
        let _ = gate.lock().unwrap().recv_timeout(TEST_TIMEOUT);
    };
    set_log_handler(Level::Info, LogDispatch::EventThread, Some(Arc::new(slow))).unwrap();
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    begins.recv_timeout(TEST_TIMEOUT).unwrap();
    let lock = client.mutex(&path("a slow log")).unwrap();
    let (lost, is_lost) = mpsc::channel();
    let listener = lock.on_lost(move |_| lost.send(()).unwrap()).unwrap();
    lock.acquire(None).unwrap();
    assert_eq!(raw(server).delete(&lock.node_paths().unwrap().remove(0)), 0);
    is_lost.recv_timeout(TEST_TIMEOUT).unwrap();
    // The handler does not wait any more.
    drop(open);
    drop(listener);
    client.close().unwrap();
    set_log_handler(Level::Info, LogDispatch::EventThread, None).unwrap();
}

fn the_one_before_is_over_when_another_takes_its_place() {
    let (began, begins) = mpsc::channel();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let slow = move |_: &LogLine| {
        let _ = began.send(());
        thread::sleep(Duration::from_millis(200));
        over.store(true, Ordering::SeqCst);
    };
    set_log_handler(Level::Info, LogDispatch::EventThread, Some(Arc::new(slow))).unwrap();
    let client = client(&ZooKeeper::shared().address());
    begins.recv_timeout(TEST_TIMEOUT).unwrap();
    let lines = Lines::default();
    set_log_handler(Level::Info, LogDispatch::EventThread, keep(&lines)).unwrap();
    assert!(is_over.load(Ordering::SeqCst), "the call was still running");
    assert!(begins.recv_timeout(Duration::from_millis(300)).is_err(), "the handler was called again, or still exists");
    drop(client);
    wait_until(TEST_TIMEOUT, || find_line(&lines, "session closed").is_some());
}

/// The event thread calls the handler. The handler does not receive the lines that it causes itself, which would never
/// end. It may remove itself.
fn a_handler_may_call_but_not_wait() {
    let client = client(&ZooKeeper::shared().address());
    let lock = client.mutex(&path("called by the log")).unwrap();
    let (sender, results) = mpsc::channel();
    let calls = lock.clone();
    let handler = move |line: &LogLine| {
        if line.message == "acquired" {
            let waits = status(calls.acquire(None));
            let looks = status(calls.acquire(Some(Duration::ZERO)));
            set_log_handler(Level::Info, LogDispatch::EventThread, None).unwrap();
            sender.send((waits, looks, thread::current().name().map(str::to_owned))).unwrap();
        }
    };
    set_log_handler(Level::Debug, LogDispatch::EventThread, Some(Arc::new(handler))).unwrap();
    lock.acquire(None).unwrap();
    let expected = (Status::Deadlock, Status::Timeout, Some("zkl-events".to_owned()));
    assert_eq!(results.recv_timeout(TEST_TIMEOUT).unwrap(), expected);
    lock.release().unwrap();
    wait_until(TEST_TIMEOUT, || matches!(results.try_recv(), Err(mpsc::TryRecvError::Disconnected)));
}

fn one_that_stands_still_is_told_what_it_missed() {
    let client = client(&ZooKeeper::shared().address());
    let lock = client.mutex(&path("too much")).unwrap();
    let (lines, gate) = (Lines::default(), Arc::new(Mutex::new(())));
    let (kept, waits) = (keep(&lines).unwrap(), Arc::clone(&gate));
    let handler = move |line: &LogLine| {
        drop(waits.lock());
        kept(line);
    };
    let closed = gate.lock().unwrap();
    set_log_handler(Level::Trace, LogDispatch::EventThread, Some(Arc::new(handler))).unwrap();
    let cycles = 1500;
    for _ in 0..cycles {
        lock.acquire(None).unwrap();
        lock.release().unwrap();
    }
    drop(closed);
    set_log_handler(Level::Trace, LogDispatch::EventThread, None).unwrap();
    let lines = lines.lock().unwrap();
    let gaps: Vec<&LogLine> = lines.iter().filter(|line| line.target == "zklock::log").collect();
    let LogValue::Number(count) = gaps[0].fields[0].1 else { unreachable!() };
    assert!(count > 1000 && gaps[0].level == Level::Warn && gaps[0].fields[0].0 == "count", "{gaps:?}");
    let dropped: i64 =
        gaps.iter().map(|gap| if let LogValue::Number(count) = gap.fields[0].1 { count } else { 0 }).sum();
    let told = i64::try_from(lines.len() - gaps.len()).unwrap();
    // The log has one line for each request, reply, grant and release.
    assert!(told >= 4096 && told + dropped >= 6 * cycles, "{told} told, {dropped} dropped");
}

fn none_is_none() {
    let lines = Lines::default();
    set_log_handler(Level::Trace, LogDispatch::EventThread, keep(&lines)).unwrap();
    set_log_handler(Level::Trace, LogDispatch::EventThread, None).unwrap();
    set_log_level(Some(Level::Trace));
    drop(client(&ZooKeeper::shared().address()));
    assert_eq!(lines.lock().unwrap().len(), 0);
    assert_eq!(Arc::strong_count(&lines), 1, "the handler is gone");
}
