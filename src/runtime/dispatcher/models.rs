//! Clients come, go and have something to tell at the same time. Loom tries every order. In each, no two handlers run at once, none
//! runs after its client was closed, what was told is called, and the thread ends with the last client.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use loom::thread;

use super::*;
use crate::engine::{Event, News};
use crate::runtime::outlet::Caller;
use crate::runtime::outlet::Outlet;
use crate::session::ClientState;

#[test]
fn what_was_told_is_called_in_order_before_the_client_is_closed() {
    loom::model(|| {
        let dispatcher = dispatcher();
        let calls = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        let outlet = outlet(dispatcher, move |state| seen.lock().unwrap().push(state));
        tell(&outlet, ClientState::Connected);
        tell(&outlet, ClientState::Suspended);
        outlet.close(Duration::MAX);
        assert_eq!(*calls.lock().unwrap(), [ClientState::Connected, ClientState::Suspended]);
        assert_ended(dispatcher);
    });
}

#[test]
fn what_is_told_wakes_the_thread() {
    loom::model(|| {
        let dispatcher = dispatcher();
        let called = Arc::new(Monitor::<usize>::default());
        let handler = Arc::clone(&called);
        let outlet = outlet(dispatcher, move |_| {
            *handler.lock() += 1;
            handler.notify();
        });
        tell(&outlet, ClientState::Connected);
        tell(&outlet, ClientState::Suspended);
        drop(called.wait_while(called.lock(), None, |called| *called < 2));
        outlet.close(Duration::ZERO);
        assert_ended(dispatcher);
    });
}

#[test]
fn nothing_is_called_after_its_client_was_closed() {
    loom::model(|| {
        let dispatcher = dispatcher();
        let is_open = Arc::new(AtomicUsize::new(1));
        let handler = Arc::clone(&is_open);
        let outlet = outlet(dispatcher, move |_| {
            thread::yield_now();
            assert_eq!(handler.load(Ordering::SeqCst), 1);
        });
        tell(&outlet, ClientState::Connected);
        let teller = thread::spawn({
            let outlet = Arc::clone(&outlet);
            move || tell(&outlet, ClientState::Suspended)
        });
        outlet.close(Duration::ZERO);
        is_open.store(0, Ordering::SeqCst);
        assert_ended(dispatcher);
        teller.join().unwrap();
        assert_ended(dispatcher);
    });
}

#[test]
fn one_comes_while_another_goes() {
    loom::model(|| {
        let dispatcher = dispatcher();
        let running = Arc::new(AtomicUsize::new(0));
        let visit = move |dispatcher: &'static Dispatcher, running: &Arc<AtomicUsize>| {
            let running = Arc::clone(running);
            let outlet = outlet(dispatcher, move |_| {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
            });
            tell(&outlet, ClientState::Connected);
            outlet.close(Duration::ZERO);
        };
        let other = thread::spawn({
            let running = Arc::clone(&running);
            move || visit(dispatcher, &running)
        });
        visit(dispatcher, &running);
        other.join().unwrap();
        assert_ended(dispatcher);
    });
}

#[test]
fn a_handler_closes_its_own_client() {
    loom::model(|| {
        let dispatcher = dispatcher();
        let own = Arc::new(std::sync::Mutex::new(None::<Arc<Outlet>>));
        let handlers = Arc::clone(&own);
        let close = |own: &std::sync::Mutex<Option<Arc<Outlet>>>| {
            let outlet = own.lock().unwrap().take();
            outlet.inspect(|outlet| outlet.close(Duration::MAX)).is_some()
        };
        let outlet = outlet(dispatcher, move |_| {
            close(&handlers);
        });
        *own.lock().unwrap() = Some(Arc::clone(&outlet));
        tell(&outlet, ClientState::Connected);
        tell(&outlet, ClientState::Suspended);
        thread::yield_now();
        // Where the handler was too late, it is closed here.
        close(&own);
        drop(outlet);
        let state = dispatcher.state.wait_while(dispatcher.state.lock(), None, |state| state.is_running);
        assert!(state.places == 0 && state.ready.is_empty());
    });
}

fn dispatcher() -> &'static Dispatcher {
    Box::leak(Box::default())
}

fn outlet(dispatcher: &'static Dispatcher, handler: impl Fn(ClientState) + Send + Sync + 'static) -> Arc<Outlet> {
    let on_event = move |event: &Event| {
        if let Event::Client { state, .. } = event {
            handler(*state);
        }
    };
    Arc::new(Outlet::new(Caller::Dispatcher(Place::open_on(dispatcher).unwrap()), Some(Arc::new(on_event))))
}

fn tell(outlet: &Arc<Outlet>, state: ClientState) {
    outlet.tell(News::Event(Event::Client { state, previous: ClientState::Connecting }));
}

/// Nobody is left, and so is no thread.
fn assert_ended(dispatcher: &Dispatcher) {
    let state = dispatcher.state.lock();
    assert!(!state.is_running && state.places == 0 && state.ready.is_empty() && state.thread.is_none());
}
