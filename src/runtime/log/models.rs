//! Lines come while handlers come and go. Loom tries every order. In each, a line is told once at most, none to a handler that another has
//! taken the place of, all to one that stays; and a handler that is gone is dropped.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::AtomicBool;

use loom::thread;

use super::*;
use crate::runtime::dispatcher::Dispatcher;

#[test]
fn lines_are_told_in_order_before_the_end() {
    loom::model(|| {
        let (sink, dispatcher) = sink();
        let told = listen(sink, dispatcher);
        say(sink, "one");
        say(sink, "two");
        drop(sink.state.wait_while(sink.state.lock(), None, |state| state.ended < 2));
        sink.replace(0, None);
        assert_eq!(*told.lock().unwrap(), ["one", "two"]);
        assert_gone(&told);
    });
}

#[test]
fn a_line_comes_while_another_takes_the_place() {
    loom::model(|| {
        let (sink, dispatcher) = sink();
        let first = listen(sink, dispatcher);
        let teller = thread::spawn(move || say(sink, "line"));
        let second = listen(sink, dispatcher);
        let early = first.lock().unwrap().len();
        assert_gone(&first);
        teller.join().unwrap();
        drop(sink.state.wait_while(sink.state.lock(), None, |state| state.ended < 1));
        sink.replace(0, None);
        assert_eq!(first.lock().unwrap().len(), early, "one that was replaced was called");
        assert_eq!(early + second.lock().unwrap().len(), 1);
        assert_gone(&second);
    });
}

#[test]
fn a_line_comes_while_the_log_ends() {
    loom::model(|| {
        let (sink, dispatcher) = sink();
        let told = listen(sink, dispatcher);
        let teller = thread::spawn(move || say(sink, "line"));
        sink.replace(0, None);
        let count = told.lock().unwrap().len();
        assert_gone(&told);
        teller.join().unwrap();
        assert!(count <= 1 && told.lock().unwrap().len() == count);
    });
}

#[test]
fn a_handler_ends_the_log_itself() {
    loom::model(|| {
        let (sink, dispatcher) = sink();
        let (told, is_over) = (Told::default(), Arc::new(Monitor::<bool>::default()));
        let (seen, over) = (Arc::clone(&told), Arc::clone(&is_over));
        let handler = move |line: &LogLine| {
            seen.lock().unwrap().push(line.message.clone());
            sink.replace(0, None);
            *over.lock() = true;
            over.notify();
        };
        sink.replace(3, Some((on(dispatcher), Arc::new(handler))));
        say(sink, "one");
        say(sink, "two");
        drop(is_over.wait_while(is_over.lock(), None, |is_over| !*is_over));
        assert_eq!(*told.lock().unwrap(), ["one"]);
        drop(sink.state.wait_while(sink.state.lock(), None, |state| state.serving.is_some()));
    });
}

/// Who is told by a bell has no thread that is waited for, but for the call.
#[test]
fn a_call_is_over_before_its_handler_goes() {
    loom::model(|| {
        let (sink, _) = sink();
        let is_open = Arc::new(AtomicBool::new(true));
        let rung = Arc::new(std::sync::Mutex::new(Vec::<Handlers>::new()));
        let was_late = Arc::new(AtomicBool::new(false));
        let (open, late, bell) = (Arc::clone(&is_open), Arc::clone(&was_late), Arc::clone(&rung));
        let handler = move |_: &LogLine| {
            thread::yield_now();
            late.store(!open.load(Ordering::SeqCst), Ordering::SeqCst);
        };
        let caller = Caller::Bell(Arc::new(move |handlers| bell.lock().unwrap().push(handlers)));
        sink.replace(3, Some((caller, Arc::new(handler))));
        say(sink, "line");
        let handlers = rung.lock().unwrap().pop().unwrap();
        let calling = thread::spawn(move || handlers.call_next());
        sink.replace(0, None);
        is_open.store(false, Ordering::SeqCst);
        calling.join().unwrap();
        assert!(!was_late.load(Ordering::SeqCst));
    });
}

type Told = Arc<std::sync::Mutex<Vec<String>>>;

fn sink() -> (&'static Sink, &'static Dispatcher) {
    (Box::leak(Box::default()), Box::leak(Box::default()))
}

fn on(dispatcher: &'static Dispatcher) -> Caller {
    Caller::Dispatcher(Place::open_on(dispatcher).unwrap())
}

/// A handler in the place of the one before. What it is told.
fn listen(sink: &'static Sink, dispatcher: &'static Dispatcher) -> Told {
    let told = Told::default();
    let seen = Arc::clone(&told);
    let handler = move |line: &LogLine| seen.lock().unwrap().push(line.message.clone());
    sink.replace(3, Some((on(dispatcher), Arc::new(handler))));
    told
}

fn say(sink: &'static Sink, message: &str) {
    let (level, time, target) = (Level::Info, SystemTime::UNIX_EPOCH, "zklock::session");
    sink.add(LogLine { level, time, target, message: message.to_owned(), fields: Vec::new() });
}

/// The handler has been dropped.
fn assert_gone(told: &Told) {
    assert_eq!(Arc::strong_count(told), 1);
}
