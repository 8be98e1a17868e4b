//! Loom models of the log. Each model writes log lines while other threads set or remove handlers. Loom tries every
//! order of these steps. Whatever the order, the log must deliver each line at most once. A replaced handler must
//! receive no further line, and a handler that remains set must receive all lines. A removed handler must be dropped.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::AtomicBool;

use loom::thread;

use super::*;
use crate::runtime::event_thread::EventThread;

#[test]
fn queued_lines_are_delivered_in_order_before_removal() {
    loom::model(|| {
        let (sink, event_thread) = sink();
        let received = set_handler(sink, event_thread);
        push_line(sink, "one");
        push_line(sink, "two");
        drop(sink.state.wait_while(sink.state.lock(), None, |state| state.calls_finished < 2));
        sink.replace(0, None);
        assert_eq!(*received.lock().unwrap(), ["one", "two"]);
        assert_dropped(&received);
    });
}

#[test]
fn line_during_replacement_goes_to_exactly_one_handler() {
    loom::model(|| {
        let (sink, event_thread) = sink();
        let first = set_handler(sink, event_thread);
        let pusher = thread::spawn(move || push_line(sink, "line"));
        let second = set_handler(sink, event_thread);
        let early = first.lock().unwrap().len();
        assert_dropped(&first);
        pusher.join().unwrap();
        drop(sink.state.wait_while(sink.state.lock(), None, |state| state.calls_finished < 1));
        sink.replace(0, None);
        assert_eq!(first.lock().unwrap().len(), early, "a replaced handler was called");
        assert_eq!(early + second.lock().unwrap().len(), 1);
        assert_dropped(&second);
    });
}

#[test]
fn line_during_removal_is_delivered_at_most_once() {
    loom::model(|| {
        let (sink, event_thread) = sink();
        let received = set_handler(sink, event_thread);
        let pusher = thread::spawn(move || push_line(sink, "line"));
        sink.replace(0, None);
        let count = received.lock().unwrap().len();
        assert_dropped(&received);
        pusher.join().unwrap();
        assert!(count <= 1 && received.lock().unwrap().len() == count);
    });
}

#[test]
fn handler_that_removes_itself_gets_no_further_line() {
    loom::model(|| {
        let (sink, event_thread) = sink();
        let (received, is_over) = (Received::default(), Arc::new(Monitor::<bool>::default()));
        let (seen, over) = (Arc::clone(&received), Arc::clone(&is_over));
        let handler = move |line: &LogLine| {
            seen.lock().unwrap().push(line.message.clone());
            sink.replace(0, None);
            *over.lock() = true;
            over.notify();
        };
        sink.replace(3, Some((event_thread_dispatcher(event_thread), Arc::new(handler))));
        push_line(sink, "one");
        push_line(sink, "two");
        drop(is_over.wait_while(is_over.lock(), None, |is_over| !*is_over));
        assert_eq!(*received.lock().unwrap(), ["one"]);
        drop(sink.state.wait_while(sink.state.lock(), None, |state| state.dispatching_thread.is_some()));
    });
}

/// A handler's removal waits for any running call of that handler to return. In this model, the program itself chooses
/// the thread that calls the handler.
#[test]
fn removal_waits_for_the_running_call() {
    loom::model(|| {
        let (sink, _) = sink();
        let is_open = Arc::new(AtomicBool::new(true));
        let notified = Arc::new(std::sync::Mutex::new(Vec::<EventSource>::new()));
        let was_late = Arc::new(AtomicBool::new(false));
        let (open, late, notifier) = (Arc::clone(&is_open), Arc::clone(&was_late), Arc::clone(&notified));
        let handler = move |_: &LogLine| {
            thread::yield_now();
            late.store(!open.load(Ordering::SeqCst), Ordering::SeqCst);
        };
        let dispatcher =
            CallbackDispatcher::Notifier(Arc::new(move |handlers| notifier.lock().unwrap().push(handlers)));
        sink.replace(3, Some((dispatcher, Arc::new(handler))));
        push_line(sink, "line");
        let handlers = notified.lock().unwrap().pop().unwrap();
        let calling = thread::spawn(move || handlers.dispatch_next());
        sink.replace(0, None);
        is_open.store(false, Ordering::SeqCst);
        calling.join().unwrap();
        assert!(!was_late.load(Ordering::SeqCst));
    });
}

type Received = Arc<std::sync::Mutex<Vec<String>>>;

fn sink() -> (&'static LogSink, &'static EventThread) {
    (Box::leak(Box::default()), Box::leak(Box::default()))
}

fn event_thread_dispatcher(event_thread: &'static EventThread) -> CallbackDispatcher {
    CallbackDispatcher::EventThread(Registration::on_thread(event_thread).unwrap())
}

/// Replaces the handler. The returned list contains all lines that the new handler receives.
fn set_handler(sink: &'static LogSink, event_thread: &'static EventThread) -> Received {
    let received = Received::default();
    let seen = Arc::clone(&received);
    let handler = move |line: &LogLine| seen.lock().unwrap().push(line.message.clone());
    sink.replace(3, Some((event_thread_dispatcher(event_thread), Arc::new(handler))));
    received
}

fn push_line(sink: &'static LogSink, message: &str) {
    let (level, time, target) = (Level::Info, SystemTime::UNIX_EPOCH, "zklock::session");
    sink.add(LogLine { level, time, target, message: message.to_owned(), fields: Vec::new() });
}

/// Asserts that the handler, which shares `received`, was dropped.
fn assert_dropped(received: &Received) {
    assert_eq!(Arc::strong_count(received), 1);
}
