//! Loom models of the event thread. In the models, several threads create clients, close clients and queue events at
//! the same time. Loom tries every order of these steps. In every order, no two handlers may run at once unless a
//! client has a loss in its queue, and no handler may run after its client was closed. Every event must be delivered,
//! and the event thread and the loss thread must end after the last client was closed.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use loom::thread;
use zklock_core::engine::{Event, LockState, Notification};
use zklock_core::session::ClientState;

use super::*;
use crate::runtime::callback_dispatcher::CallbackDispatcher;
use crate::runtime::clock;
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
        assert!(state.registrations == 0 && state.is_idle());
    });
}

#[test]
fn a_loss_does_not_wait_for_the_handler_of_another_client() {
    loss_during_handler(|other| push_event(other, ClientState::Connected));
}

#[test]
fn a_loss_does_not_wait_for_the_handler_of_another_loss() {
    loss_during_handler(push_loss);
}

/// A handler returns only after the loss of another client was reported. `push` makes the event of this handler.
fn loss_during_handler(push: impl Fn(&Arc<EventDelivery>) + Send + Sync + 'static) {
    loom::model(move || {
        let event_thread = dispatcher();
        let gate = Arc::new(Monitor::<bool>::default());
        let slow = Arc::clone(&gate);
        let wait = move |_: &Event| drop(slow.wait_while(slow.lock(), None, |is_open| !*is_open));
        let other = delivery_with(event_thread, wait);
        let delivery = delivery_with(event_thread, move |_| {
            *gate.lock() = true;
            gate.notify();
        });
        push(&other);
        push_loss(&delivery);
        other.close(Duration::MAX);
        delivery.close(Duration::MAX);
        assert_ended(event_thread);
    });
}

#[test]
fn handlers_of_two_losses_may_close_both_clients() {
    loom::model(|| {
        let event_thread = dispatcher();
        let deliveries = Arc::new(std::sync::Mutex::new(Vec::<Arc<EventDelivery>>::new()));
        let new = |all: &Arc<std::sync::Mutex<Vec<Arc<EventDelivery>>>>| {
            let all = Arc::clone(all);
            delivery_with(event_thread, move |_| {
                let both = all.lock().unwrap().clone();
                // A handler that closes a client waits twice: before the client reports its losses, and at its end.
                both.iter().for_each(|delivery| delivery.deliver_losses(clock::now()));
                both.iter().for_each(|delivery| delivery.close(Duration::ZERO));
            })
        };
        let both = [new(&deliveries), new(&deliveries)];
        deliveries.lock().unwrap().extend(both.iter().cloned());
        both.iter().for_each(push_loss);
        both.iter().for_each(|delivery| delivery.close(Duration::MAX));
        deliveries.lock().unwrap().clear();
        drop(both);
        let has_ended = |state: &mut State| state.is_running || state.has_loss_thread;
        let state = event_thread.state.wait_while(event_thread.state.lock(), None, has_ended);
        assert!(state.registrations == 0 && state.is_idle());
    });
}

fn dispatcher() -> &'static EventThread {
    Box::leak(Box::default())
}

fn new_delivery(
    event_thread: &'static EventThread,
    handler: impl Fn(ClientState) + Send + Sync + 'static,
) -> Arc<EventDelivery> {
    delivery_with(event_thread, move |event| {
        if let Event::Client { state, .. } = event {
            handler(*state);
        }
    })
}

fn delivery_with(
    event_thread: &'static EventThread,
    on_event: impl Fn(&Event) + Send + Sync + 'static,
) -> Arc<EventDelivery> {
    let registration = Registration::on_thread(event_thread).unwrap();
    Arc::new(EventDelivery::new(CallbackDispatcher::EventThread(registration), Some(Arc::new(on_event))))
}

fn push_event(delivery: &Arc<EventDelivery>, state: ClientState) {
    delivery.push(Notification::Event(Event::client(state, ClientState::Connecting)));
}

fn push_loss(delivery: &Arc<EventDelivery>) {
    delivery.push(Notification::Event(Event::lock(1, "/a".into(), LockState::Lost, LockState::Held)));
}

/// Asserts that no client is registered and no thread runs.
fn assert_ended(event_thread: &EventThread) {
    let state = event_thread.state.lock();
    assert!(!state.is_running && !state.has_loss_thread && state.registrations == 0 && state.is_idle());
    assert!(state.thread.is_none() && state.loss_thread.is_none());
}
