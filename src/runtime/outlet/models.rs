//! A client has something to tell while its program polls, is rung, and closes. Loom tries every order. In each, one thread at a time
//! calls, whatever was told is called or the program knows that it waits, and nothing is called after the client was closed.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread;

use super::*;
use crate::engine::Event;
use crate::session::ClientState;

#[test]
fn what_is_told_is_called_or_the_descriptor_is_readable() {
    loom::model(|| {
        let (outlet, called) = polling();
        tell(&outlet);
        assert!(is_readable(&outlet));
        let teller = on_a_thread(&outlet, tell);
        outlet.dispatch(usize::MAX);
        teller.join().unwrap();
        assert_nothing_is_forgotten(&outlet);
        outlet.dispatch(usize::MAX);
        assert_eq!(called.load(Ordering::SeqCst), 2);
        assert!(!is_readable(&outlet));
    });
}

#[test]
fn two_dispatch_at_once() {
    loom::model(|| {
        let (outlet, called) = polling();
        tell(&outlet);
        let other = on_a_thread(&outlet, |outlet| {
            outlet.dispatch(1);
        });
        tell(&outlet);
        outlet.dispatch(1);
        other.join().unwrap();
        assert_nothing_is_forgotten(&outlet);
        outlet.dispatch(usize::MAX);
        assert_eq!(called.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn who_closes_calls_what_is_left_and_nothing_is_called_then() {
    loom::model(|| {
        let (outlet, called) = polling();
        tell(&outlet);
        let dispatcher = on_a_thread(&outlet, |outlet| {
            outlet.dispatch(usize::MAX);
        });
        end(&outlet, Duration::from_secs(1000));
        assert_eq!(called.load(Ordering::SeqCst), 1);
        tell(&outlet);
        assert_eq!(outlet.dispatch(usize::MAX), 0);
        dispatcher.join().unwrap();
        assert_eq!(called.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_client_that_does_not_wait_is_told_something_while_it_is_closed() {
    loom::model(|| {
        let (outlet, called) = polling();
        let teller = on_a_thread(&outlet, tell);
        let dispatcher = on_a_thread(&outlet, |outlet| {
            outlet.dispatch(usize::MAX);
        });
        end(&outlet, Duration::ZERO);
        let before = called.load(Ordering::SeqCst);
        teller.join().unwrap();
        dispatcher.join().unwrap();
        assert_eq!(called.load(Ordering::SeqCst), before);
        let state = outlet.state.lock();
        assert!(state.backlog.is_empty() && state.serving.is_none() && state.listeners.is_empty());
    });
}

/// It hears of what is told after it was set, beside the config's, and is not kept by a client that is closed.
#[test]
fn a_handler_is_set_while_something_is_told_and_the_client_is_closed() {
    loom::model(|| {
        let (outlet, called) = polling();
        let later = Arc::new(AtomicUsize::new(0));
        let handler = counting(&later, || {});
        let setter = thread::spawn({
            let (outlet, handler) = (Arc::clone(&outlet), Arc::clone(&handler));
            move || {
                let Ok(before) = outlet.set_event_handler(Some(handler)) else { return 0 };
                assert!(before.is_none());
                tell(&outlet);
                1
            }
        });
        tell(&outlet);
        end(&outlet, Duration::from_secs(1000));
        let set = setter.join().unwrap();
        assert!(
            later.load(Ordering::SeqCst) <= called.load(Ordering::SeqCst) && called.load(Ordering::SeqCst) <= 1 + set
        );
        assert!(outlet.state.lock().listeners.is_empty());
        assert_eq!(Arc::strong_count(&handler), 1);
    });
}

#[test]
fn a_handler_that_polls_closes_its_own_client() {
    loom::model(|| {
        let own = Arc::new(std::sync::Mutex::new(None::<Arc<Outlet>>));
        let handlers = Arc::clone(&own);
        let called = Arc::new(AtomicUsize::new(0));
        let outlet = polling_with({
            let called = Arc::clone(&called);
            move || {
                called.fetch_add(1, Ordering::SeqCst);
                let outlet = handlers.lock().unwrap().take();
                end(&outlet.unwrap(), Duration::from_secs(1000));
            }
        });
        *own.lock().unwrap() = Some(Arc::clone(&outlet));
        tell(&outlet);
        let teller = on_a_thread(&outlet, tell);
        assert_eq!(outlet.dispatch(usize::MAX), 1);
        teller.join().unwrap();
        assert_eq!(outlet.dispatch(usize::MAX), 0);
        assert_eq!(called.load(Ordering::SeqCst), 1);
    });
}

/// A thread that calls one handler each time it is rung for, like that of Python's.
#[test]
fn who_is_rung_for_each_time_calls_all_of_it() {
    loom::model(|| {
        let called = Arc::new(AtomicUsize::new(0));
        let rung = Arc::new(Monitor::<Vec<Handlers>>::default());
        let bell: Arc<Bell> = Arc::new({
            let rung = Arc::clone(&rung);
            move |handlers| {
                rung.lock().push(handlers);
                rung.notify();
            }
        });
        let outlet = Arc::new(Outlet::new(Caller::Bell(bell), Some(counting(&called, || {}))));
        let caller = thread::spawn({
            let (called, rung) = (Arc::clone(&called), Arc::clone(&rung));
            move || {
                while called.load(Ordering::SeqCst) < 2 {
                    let handlers = rung.wait_while(rung.lock(), None, |rung| rung.is_empty()).pop();
                    handlers.unwrap().call_next();
                }
            }
        });
        tell(&outlet);
        tell(&outlet);
        outlet.close(Duration::MAX);
        assert_eq!(called.load(Ordering::SeqCst), 2);
        caller.join().unwrap();
        rung.lock().clear();
    });
}

#[test]
fn who_is_rung_for_calls_nothing_when_the_client_was_closed() {
    loom::model(|| {
        let called = Arc::new(AtomicUsize::new(0));
        let handler = counting(&called, thread::yield_now);
        let outlet = Arc::new(Outlet::new(Caller::Bell(Arc::new(drop)), Some(handler)));
        tell(&outlet);
        let caller = on_a_thread(&outlet, |outlet| {
            outlet.handlers().call_next();
        });
        outlet.close(Duration::ZERO);
        let before = called.load(Ordering::SeqCst);
        caller.join().unwrap();
        assert_eq!(called.load(Ordering::SeqCst), before);
    });
}

/// A program that is rung for, and can't listen any more.
#[test]
fn nobody_waits_for_who_was_silenced() {
    loom::model(|| {
        let called = Arc::new(AtomicUsize::new(0));
        let handler = counting(&called, thread::yield_now);
        let outlet = Arc::new(Outlet::new(Caller::Bell(Arc::new(drop)), Some(handler)));
        tell(&outlet);
        let closer = on_a_thread(&outlet, |outlet| outlet.close(Duration::MAX));
        outlet.silence();
        tell(&outlet);
        closer.join().unwrap();
        assert!(!outlet.handlers().call_next());
        assert_eq!(called.load(Ordering::SeqCst), 0);
    });
}

/// What closing a client does with its outlet.
fn end(outlet: &Arc<Outlet>, patience: Duration) {
    outlet.tell_rest(clock::now() + patience);
    outlet.close(patience);
}

/// A client whose program polls, and how often its handler was called.
fn polling() -> (Arc<Outlet>, Arc<AtomicUsize>) {
    let called = Arc::new(AtomicUsize::new(0));
    (with_handler(counting(&called, thread::yield_now)), called)
}

fn polling_with(handler: impl Fn() + Send + Sync + 'static) -> Arc<Outlet> {
    with_handler(Arc::new(move |_: &Event| handler()))
}

fn with_handler(handler: Arc<EventHandler>) -> Arc<Outlet> {
    Arc::new(Outlet::new(Caller::Polling(EventFd::new().unwrap()), Some(handler)))
}

/// A handler during which something else happens, but not another handler.
fn counting(called: &Arc<AtomicUsize>, meanwhile: fn()) -> Arc<EventHandler> {
    let (called, running) = (Arc::clone(called), AtomicUsize::new(0));
    Arc::new(move |_| {
        assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two handlers at once");
        meanwhile();
        running.fetch_sub(1, Ordering::SeqCst);
        called.fetch_add(1, Ordering::SeqCst);
    })
}

fn tell(outlet: &Arc<Outlet>) {
    outlet.tell(News::Event(Event::Client { state: ClientState::Connected, previous: ClientState::Suspended }));
}

fn on_a_thread(outlet: &Arc<Outlet>, work: impl FnOnce(&Arc<Outlet>) + 'static) -> thread::JoinHandle<()> {
    let outlet = Arc::clone(outlet);
    thread::spawn(move || work(&outlet))
}

fn assert_nothing_is_forgotten(outlet: &Outlet) {
    let waits = !outlet.state.lock().backlog.is_empty();
    assert!(!waits || is_readable(outlet), "something waits, and nobody knows");
}

fn is_readable(outlet: &Outlet) -> bool {
    let mut poll = libc::pollfd { fd: outlet.fd().unwrap(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the array is one long.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}
