//! The handler of the log, for languages that have no `tracing`. It is the process's, so there is one test.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails is a test that fails")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, SystemTime};

use common::{SOON, client, path, status};
use zklock::{Level, LogCalls, LogLine, LogValue, Status, set_log_handler, set_log_level};
use zklock_rig::{ZooKeeper, wait_until};

type Lines = Arc<Mutex<Vec<LogLine>>>;

fn keep(lines: &Lines) -> Option<Arc<zklock::LogHandler>> {
    let lines = Arc::clone(lines);
    Some(Arc::new(move |line: &LogLine| lines.lock().unwrap().push(line.clone())))
}

fn told(lines: &Lines, message: &str) -> Option<LogLine> {
    lines.lock().unwrap().iter().find(|line| line.message == message).cloned()
}

#[test]
fn lines_come_to_the_handler() {
    let server = ZooKeeper::shared();
    let lines = Lines::default();
    let started = SystemTime::now();
    set_log_handler(Level::Debug, LogCalls::OnThread, keep(&lines)).unwrap();
    let client = client(&server.address());
    let path = path("a log");
    let lock = client.mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    lock.release().unwrap();
    wait_until(SOON, || told(&lines, "released").is_some());
    let acquired = told(&lines, "acquired").unwrap();
    assert_eq!((acquired.level, acquired.target), (Level::Debug, "zklock::lock"));
    assert!(acquired.fields.contains(&("path", LogValue::Text(path.clone()))), "{acquired:?}");
    assert!(acquired.fields.contains(&("handed_over", LogValue::Flag(false))), "{acquired:?}");
    assert!(acquired.to_string().starts_with(&format!("acquired path={path:?} owner=\"thread ")), "{acquired}");
    assert!(acquired.time >= started && acquired.time <= SystemTime::now());
    assert!(lines.lock().unwrap().iter().all(|line| line.level <= Level::Debug));

    // Another level, from now on.
    set_log_level(Some(Level::Info));
    lines.lock().unwrap().clear();
    lock.acquire(None).unwrap();
    lock.release().unwrap();
    client.close().unwrap();
    wait_until(SOON, || told(&lines, "session closed").is_some());
    assert_eq!(lines.lock().unwrap().len(), 1);

    the_one_before_is_over_when_another_takes_its_place();
    a_handler_may_call_but_not_wait();
    one_that_stands_still_is_told_what_it_missed();
    none_is_none();
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
    set_log_handler(Level::Info, LogCalls::OnThread, Some(Arc::new(slow))).unwrap();
    let client = client(&ZooKeeper::shared().address());
    begins.recv_timeout(SOON).unwrap();
    let lines = Lines::default();
    set_log_handler(Level::Info, LogCalls::OnThread, keep(&lines)).unwrap();
    assert!(is_over.load(Ordering::SeqCst), "the call was under way");
    assert!(begins.recv_timeout(Duration::from_millis(300)).is_err(), "it was called once more, or is still there");
    drop(client);
    wait_until(SOON, || told(&lines, "session closed").is_some());
}

/// On the thread of events. What it has logged itself is not told, which would never end; and it may take itself away.
fn a_handler_may_call_but_not_wait() {
    let client = client(&ZooKeeper::shared().address());
    let lock = client.mutex(&path("called by the log")).unwrap();
    let (sender, results) = mpsc::channel();
    let calls = lock.clone();
    let handler = move |line: &LogLine| {
        if line.message == "acquired" {
            let waits = status(calls.acquire(None));
            let looks = status(calls.acquire(Some(Duration::ZERO)));
            set_log_handler(Level::Info, LogCalls::OnThread, None).unwrap();
            sender.send((waits, looks, thread::current().name().map(str::to_owned))).unwrap();
        }
    };
    set_log_handler(Level::Debug, LogCalls::OnThread, Some(Arc::new(handler))).unwrap();
    lock.acquire(None).unwrap();
    let expected = (Status::Deadlock, Status::Timeout, Some("zkl-events".to_owned()));
    assert_eq!(results.recv_timeout(SOON).unwrap(), expected);
    lock.release().unwrap();
    wait_until(SOON, || matches!(results.try_recv(), Err(mpsc::TryRecvError::Disconnected)));
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
    set_log_handler(Level::Trace, LogCalls::OnThread, Some(Arc::new(handler))).unwrap();
    let cycles = 1500;
    for _ in 0..cycles {
        lock.acquire(None).unwrap();
        lock.release().unwrap();
    }
    drop(closed);
    set_log_handler(Level::Trace, LogCalls::OnThread, None).unwrap();
    let lines = lines.lock().unwrap();
    let gaps: Vec<&LogLine> = lines.iter().filter(|line| line.target == "zklock::log").collect();
    let LogValue::Number(count) = gaps[0].fields[0].1 else { unreachable!() };
    assert!(count > 1000 && gaps[0].level == Level::Warn && gaps[0].fields[0].0 == "count", "{gaps:?}");
    let dropped: i64 =
        gaps.iter().map(|gap| if let LogValue::Number(count) = gap.fields[0].1 { count } else { 0 }).sum();
    let told = i64::try_from(lines.len() - gaps.len()).unwrap();
    // A line for each request, answer, grant and release.
    assert!(told >= 4096 && told + dropped >= 6 * cycles, "{told} told, {dropped} dropped");
}

fn none_is_none() {
    let lines = Lines::default();
    set_log_handler(Level::Trace, LogCalls::OnThread, keep(&lines)).unwrap();
    set_log_handler(Level::Trace, LogCalls::OnThread, None).unwrap();
    set_log_level(Some(Level::Trace));
    drop(client(&ZooKeeper::shared().address()));
    assert_eq!(lines.lock().unwrap().len(), 0);
    assert_eq!(Arc::strong_count(&lines), 1, "the handler is gone");
}
