//! Loom models of event delivery. In the models, events occur while the program polls, receives notifications, or
//! closes the client. Loom tries every order of these steps. In every order, only one thread at a time may call
//! handlers. Every event must be delivered, or the program must have been notified that the event is queued. The
//! library must not call a handler after the client was closed.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread;
use zklock_core::engine::{Event, LockState};
use zklock_core::session::ClientState;

use super::*;
use crate::runtime::callback_dispatcher::Notifier;

#[test]
fn pushed_event_is_dispatched_or_makes_descriptor_readable() {
    loom::model(|| {
        let (delivery, called) = polling();
        push_event(&delivery);
        assert!(is_readable(&delivery));
        let pusher = on_a_thread(&delivery, push_event);
        delivery.dispatch(usize::MAX);
        pusher.join().unwrap();
        assert_nothing_is_forgotten(&delivery);
        delivery.dispatch(usize::MAX);
        assert_eq!(called.load(Ordering::SeqCst), 2);
        assert!(!is_readable(&delivery));
    });
}

#[test]
fn two_dispatch_at_once() {
    loom::model(|| {
        let (delivery, called) = polling();
        push_event(&delivery);
        let other = on_a_thread(&delivery, |delivery| {
            delivery.dispatch(1);
        });
        push_event(&delivery);
        delivery.dispatch(1);
        other.join().unwrap();
        assert_nothing_is_forgotten(&delivery);
        delivery.dispatch(usize::MAX);
        assert_eq!(called.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn close_delivers_remaining_events_and_later_ones_are_dropped() {
    loom::model(|| {
        let (delivery, called) = polling();
        push_event(&delivery);
        let event_thread = on_a_thread(&delivery, |delivery| {
            delivery.dispatch(usize::MAX);
        });
        close_delivery(&delivery, Duration::from_secs(1000));
        assert_eq!(called.load(Ordering::SeqCst), 1);
        push_event(&delivery);
        assert_eq!(delivery.dispatch(usize::MAX), 0);
        event_thread.join().unwrap();
        assert_eq!(called.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn push_during_close_without_wait_is_dropped() {
    loom::model(|| {
        let (delivery, called) = polling();
        let pusher = on_a_thread(&delivery, push_event);
        let event_thread = on_a_thread(&delivery, |delivery| {
            delivery.dispatch(usize::MAX);
        });
        close_delivery(&delivery, Duration::ZERO);
        let before = called.load(Ordering::SeqCst);
        pusher.join().unwrap();
        event_thread.join().unwrap();
        assert_eq!(called.load(Ordering::SeqCst), before);
        let state = delivery.state.lock();
        assert!(state.queue.is_empty() && state.dispatching_thread.is_none() && state.registry.is_empty());
    });
}

/// The new handler receives the events that are queued after the program has added the handler. The handler of the
/// config receives these events too. A closed client must not refer to the new handler.
#[test]
fn handler_added_during_push_and_close_is_dropped_with_client() {
    loom::model(|| {
        let (delivery, called) = polling();
        let later = Arc::new(AtomicUsize::new(0));
        let handler = counting(&later, || {});
        let setter = thread::spawn({
            let (delivery, handler) = (Arc::clone(&delivery), Arc::clone(&handler));
            move || {
                if delivery.add_handler(Scope::Client, Listen::All, handler).is_err() {
                    return 0;
                }
                push_event(&delivery);
                1
            }
        });
        push_event(&delivery);
        close_delivery(&delivery, Duration::from_secs(1000));
        let set = setter.join().unwrap();
        assert!(
            later.load(Ordering::SeqCst) <= called.load(Ordering::SeqCst) && called.load(Ordering::SeqCst) <= 1 + set
        );
        assert!(delivery.state.lock().registry.is_empty());
        assert_eq!(Arc::strong_count(&handler), 1);
    });
}

/// `Drop` for listeners relies on the rule that this model verifies.
#[test]
fn a_handler_that_was_removed_neither_runs_nor_is_called_again() {
    loom::model(|| {
        let (delivery, _) = polling();
        let is_there = Arc::new(AtomicUsize::new(1));
        let handler: Arc<EventHandler> = Arc::new({
            let is_there = Arc::clone(&is_there);
            move |_| {
                assert_eq!(is_there.load(Ordering::SeqCst), 1);
                thread::yield_now();
                assert_eq!(is_there.load(Ordering::SeqCst), 1);
            }
        });
        let id = delivery.add_handler(Scope::Client, Listen::All, Arc::clone(&handler)).unwrap();
        push_event(&delivery);
        let event_thread = on_a_thread(&delivery, |delivery| {
            delivery.dispatch(usize::MAX);
        });
        delivery.remove(id);
        is_there.store(0, Ordering::SeqCst);
        assert_eq!(Arc::strong_count(&handler), 1, "the value of the handler is dropped before the end");
        push_event(&delivery);
        delivery.dispatch(usize::MAX);
        event_thread.join().unwrap();
    });
}

/// Two handlers run one after the other. The first handler removes the second handler and then itself, while another
/// thread also removes the second handler.
#[test]
fn handler_that_removes_the_next_prevents_its_call() {
    loom::model(|| {
        let (delivery, called) = polling();
        let ids = Arc::new(std::sync::Mutex::new(Vec::new()));
        let first: Arc<EventHandler> = Arc::new({
            let (delivery, ids) = (Arc::downgrade(&delivery), Arc::clone(&ids));
            move |_| {
                let ids: Vec<HandlerId> = ids.lock().unwrap().clone();
                let delivery = delivery.upgrade().unwrap();
                ids.into_iter().rev().for_each(|id| delivery.remove(id));
            }
        });
        let never: Arc<EventHandler> = Arc::new(|_| panic!("the handler was removed before"));
        let first = delivery.add_handler(Scope::Client, Listen::All, first).unwrap();
        let second = delivery.add_handler(Scope::Client, Listen::All, never).unwrap();
        ids.lock().unwrap().extend([first, second]);
        push_event(&delivery);
        let other = on_a_thread(&delivery, move |delivery| delivery.remove(second));
        assert_eq!(delivery.dispatch(usize::MAX), 1);
        other.join().unwrap();
        assert_eq!(called.load(Ordering::SeqCst), 1);
    });
}

/// A program closes its client while another thread dispatches events. The handler must receive the loss exactly once,
/// before the session ends.
#[test]
fn loss_on_close_is_delivered_once_before_session_ends() {
    loom::model(|| {
        let (delivery, _) = polling();
        let losses = Arc::new(AtomicUsize::new(0));
        let listener = counting(&losses, thread::yield_now);
        delivery.add_handler(Scope::Lock(7), Listen::Loss, listener).unwrap();
        push_event(&delivery);
        delivery.push(Notification::Forfeit(Event::lock(7, Arc::from("/a"), LockState::Free, LockState::Held)));
        let event_thread = on_a_thread(&delivery, |delivery| {
            delivery.dispatch(usize::MAX);
        });
        assert!(delivery.has_loss_handlers());
        delivery.deliver_losses(Time::from_nanos(u64::MAX));
        assert_eq!(losses.load(Ordering::SeqCst), 1);
        close_delivery(&delivery, Duration::MAX);
        event_thread.join().unwrap();
        assert_eq!(losses.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn polling_handler_can_close_its_own_client() {
    loom::model(|| {
        let own = Arc::new(std::sync::Mutex::new(None::<Arc<EventDelivery>>));
        let handlers = Arc::clone(&own);
        let called = Arc::new(AtomicUsize::new(0));
        let delivery = polling_with({
            let called = Arc::clone(&called);
            move || {
                called.fetch_add(1, Ordering::SeqCst);
                let delivery = handlers.lock().unwrap().take();
                close_delivery(&delivery.unwrap(), Duration::from_secs(1000));
            }
        });
        *own.lock().unwrap() = Some(Arc::clone(&delivery));
        push_event(&delivery);
        let pusher = on_a_thread(&delivery, push_event);
        assert_eq!(delivery.dispatch(usize::MAX), 1);
        pusher.join().unwrap();
        assert_eq!(delivery.dispatch(usize::MAX), 0);
        assert_eq!(called.load(Ordering::SeqCst), 1);
    });
}

/// After each call of the notifier, a program thread calls the handlers for one event. The Python binding works
/// in the same way.
#[test]
fn dispatch_per_notification_delivers_all_events() {
    loom::model(|| {
        let called = Arc::new(AtomicUsize::new(0));
        let notified = Arc::new(Monitor::<Vec<EventSource>>::default());
        let notifier: Arc<Notifier> = Arc::new({
            let notified = Arc::clone(&notified);
            move |handlers| {
                notified.lock().push(handlers);
                notified.notify();
            }
        });
        let delivery =
            Arc::new(EventDelivery::new(CallbackDispatcher::Notifier(notifier), Some(counting(&called, || {}))));
        let dispatcher = thread::spawn({
            let (called, notified) = (Arc::clone(&called), Arc::clone(&notified));
            move || {
                while called.load(Ordering::SeqCst) < 2 {
                    let handlers = notified.wait_while(notified.lock(), None, |notified| notified.is_empty()).pop();
                    handlers.unwrap().dispatch_next();
                }
            }
        });
        push_event(&delivery);
        push_event(&delivery);
        delivery.close(Duration::MAX);
        assert_eq!(called.load(Ordering::SeqCst), 2);
        dispatcher.join().unwrap();
        notified.lock().clear();
    });
}

#[test]
fn dispatch_after_close_calls_nothing() {
    loom::model(|| {
        let called = Arc::new(AtomicUsize::new(0));
        let handler = counting(&called, thread::yield_now);
        let delivery = Arc::new(EventDelivery::new(CallbackDispatcher::Notifier(Arc::new(drop)), Some(handler)));
        push_event(&delivery);
        let dispatcher = on_a_thread(&delivery, |delivery| {
            delivery.source().dispatch_next();
        });
        delivery.close(Duration::ZERO);
        let before = called.load(Ordering::SeqCst);
        dispatcher.join().unwrap();
        assert_eq!(called.load(Ordering::SeqCst), before);
    });
}

/// The library calls the notifier, but the program can no longer run its handlers.
#[test]
fn close_does_not_wait_after_handlers_were_discarded() {
    loom::model(|| {
        let called = Arc::new(AtomicUsize::new(0));
        let handler = counting(&called, thread::yield_now);
        let delivery = Arc::new(EventDelivery::new(CallbackDispatcher::Notifier(Arc::new(drop)), Some(handler)));
        push_event(&delivery);
        let closer = on_a_thread(&delivery, |delivery| delivery.close(Duration::MAX));
        delivery.discard_handlers();
        push_event(&delivery);
        closer.join().unwrap();
        assert!(!delivery.source().dispatch_next());
        assert_eq!(called.load(Ordering::SeqCst), 0);
    });
}

/// Closes the event delivery in the same way as a client does.
fn close_delivery(delivery: &Arc<EventDelivery>, timeout: Duration) {
    delivery.deliver_remaining(clock::now() + timeout);
    delivery.close(timeout);
}

/// Creates an event delivery for a program that polls. The second returned value counts the calls of the handler.
fn polling() -> (Arc<EventDelivery>, Arc<AtomicUsize>) {
    let called = Arc::new(AtomicUsize::new(0));
    (with_handler(counting(&called, thread::yield_now)), called)
}

fn polling_with(handler: impl Fn() + Send + Sync + 'static) -> Arc<EventDelivery> {
    with_handler(Arc::new(move |_: &Event| handler()))
}

fn with_handler(handler: Arc<EventHandler>) -> Arc<EventDelivery> {
    Arc::new(EventDelivery::new(CallbackDispatcher::Polling(WakeSocket::new().unwrap()), Some(handler)))
}

/// Creates a handler that counts its calls. During each call, the handler runs `meanwhile`, and checks that no other
/// call of this handler is running.
fn counting(called: &Arc<AtomicUsize>, meanwhile: fn()) -> Arc<EventHandler> {
    let (called, running) = (Arc::clone(called), AtomicUsize::new(0));
    Arc::new(move |_| {
        assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two handlers at once");
        meanwhile();
        running.fetch_sub(1, Ordering::SeqCst);
        called.fetch_add(1, Ordering::SeqCst);
    })
}

fn push_event(delivery: &Arc<EventDelivery>) {
    delivery.push(Notification::Event(Event::client(ClientState::Connected, ClientState::Suspended)));
}

fn on_a_thread(
    delivery: &Arc<EventDelivery>,
    work: impl FnOnce(&Arc<EventDelivery>) + 'static,
) -> thread::JoinHandle<()> {
    let delivery = Arc::clone(delivery);
    thread::spawn(move || work(&delivery))
}

fn assert_nothing_is_forgotten(delivery: &EventDelivery) {
    let waits = !delivery.state.lock().queue.is_empty();
    assert!(!waits || is_readable(delivery), "an event waits, but no thread was notified");
}

fn is_readable(delivery: &EventDelivery) -> bool {
    let mut poll = libc::pollfd { fd: delivery.poll_fd().unwrap(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one element.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}
