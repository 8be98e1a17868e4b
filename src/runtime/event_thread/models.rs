//! Loom models of the event thread. In the models, several threads create clients, close clients and queue events at
//! the same time. Loom tries every order of these steps. In every order, no two handlers may run at once, and no
//! handler may run after its client was closed. Every event must be delivered, and the event thread must end after the
//! last client was closed.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use loom::thread;
use zklock_core::engine::{Event, Notification};
use zklock_core::session::ClientState;

use super::*;
use crate::runtime::callback_dispatcher::CallbackDispatcher;
use crate::runtime::event_delivery::EventDelivery;

#[test]
fn close_delivers_queued_events_in_order() {
    loom::model(|| {
        let event_thread = dispatcher();
        let calls = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        let delivery = new_delivery(event_thread, move |state| seen.lock().unwrap().push(state));
        push_event(&delivery, ClientState::Connected);
        push_event(&delivery, ClientState::Suspended);
        delivery.close(Duration::MAX);
        assert_eq!(*calls.lock().unwrap(), [ClientState::Connected, ClientState::Suspended]);
        assert_ended(event_thread);
    });
}

#[test]
fn push_wakes_the_event_thread() {
    loom::model(|| {
        let event_thread = dispatcher();
        let called = Arc::new(Monitor::<usize>::default());
        let handler = Arc::clone(&called);
        let delivery = new_delivery(event_thread, move |_| {
            *handler.lock() += 1;
            handler.notify();
        });
        push_event(&delivery, ClientState::Connected);
        push_event(&delivery, ClientState::Suspended);
        drop(called.wait_while(called.lock(), None, |called| *called < 2));
        delivery.close(Duration::ZERO);
        assert_ended(event_thread);
    });
}

#[test]
fn no_handler_runs_after_close_returned() {
    loom::model(|| {
        let event_thread = dispatcher();
        let is_open = Arc::new(AtomicUsize::new(1));
        let handler = Arc::clone(&is_open);
        let delivery = new_delivery(event_thread, move |_| {
            thread::yield_now();
            assert_eq!(handler.load(Ordering::SeqCst), 1);
        });
        push_event(&delivery, ClientState::Connected);
        let pusher = thread::spawn({
            let delivery = Arc::clone(&delivery);
            move || push_event(&delivery, ClientState::Suspended)
        });
        delivery.close(Duration::ZERO);
        is_open.store(0, Ordering::SeqCst);
        assert_ended(event_thread);
        pusher.join().unwrap();
        assert_ended(event_thread);
    });
}

#[test]
fn register_during_deregister_keeps_handlers_sequential() {
    loom::model(|| {
        let event_thread = dispatcher();
        let running = Arc::new(AtomicUsize::new(0));
        let visit = move |event_thread: &'static EventThread, running: &Arc<AtomicUsize>| {
            let running = Arc::clone(running);
            let delivery = new_delivery(event_thread, move |_| {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
            });
            push_event(&delivery, ClientState::Connected);
            delivery.close(Duration::ZERO);
        };
        let other = thread::spawn({
            let running = Arc::clone(&running);
            move || visit(event_thread, &running)
        });
        visit(event_thread, &running);
        other.join().unwrap();
        assert_ended(event_thread);
    });
}

#[test]
fn new_client_ends_the_wait_of_a_closing_client() {
    loom::model(|| {
        let event_thread = dispatcher();
        let closing = Registration::on_thread(event_thread).unwrap();
        let closer = thread::spawn(move || drop(closing));
        let other = Registration::on_thread(event_thread).unwrap();
        closer.join().unwrap();
        drop(other);
        assert_ended(event_thread);
    });
}

#[test]
fn handler_can_close_its_own_client() {
    loom::model(|| {
        let event_thread = dispatcher();
        let own = Arc::new(std::sync::Mutex::new(None::<Arc<EventDelivery>>));
        let handlers = Arc::clone(&own);
        let close = |own: &std::sync::Mutex<Option<Arc<EventDelivery>>>| {
            let delivery = own.lock().unwrap().take();
            delivery.inspect(|delivery| delivery.close(Duration::MAX)).is_some()
        };
        let delivery = new_delivery(event_thread, move |_| {
            close(&handlers);
        });
        *own.lock().unwrap() = Some(Arc::clone(&delivery));
        push_event(&delivery, ClientState::Connected);
        push_event(&delivery, ClientState::Suspended);
        thread::yield_now();
        // If the handler has not closed the client in time, the model closes the client here.
        close(&own);
        drop(delivery);
        let state = event_thread.state.wait_while(event_thread.state.lock(), None, |state| state.is_running);
        assert!(state.registrations == 0 && state.ready.is_empty());
    });
}

fn dispatcher() -> &'static EventThread {
    Box::leak(Box::default())
}

fn new_delivery(
    event_thread: &'static EventThread,
    handler: impl Fn(ClientState) + Send + Sync + 'static,
) -> Arc<EventDelivery> {
    let on_event = move |event: &Event| {
        if let Event::Client { state, .. } = event {
            handler(*state);
        }
    };
    Arc::new(EventDelivery::new(
        CallbackDispatcher::EventThread(Registration::on_thread(event_thread).unwrap()),
        Some(Arc::new(on_event)),
    ))
}

fn push_event(delivery: &Arc<EventDelivery>, state: ClientState) {
    delivery.push(Notification::Event(Event::client(state, ClientState::Connecting)));
}

/// Asserts that no client is registered and no thread runs.
fn assert_ended(event_thread: &EventThread) {
    let state = event_thread.state.lock();
    assert!(!state.is_running && state.registrations == 0 && state.ready.is_empty() && state.thread.is_none());
}
