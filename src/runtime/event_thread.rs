//! The event thread. The event thread calls the handlers of every client, unless the program has chosen to call the
//! handlers itself. The event thread holds no lock of the library during these calls. One event thread serves all
//! clients of the process that have a handler. The event thread starts when the first client needs it, and ends after
//! the last client that needs it was closed. The code in this file does not depend on clients or events, because it
//! calls handlers only through the trait [`Dispatch`].
//!
//! A process never has more than one event thread, and this thread calls one handler at a time. The clients take turns:
//! the event thread handles one event of a client, then one event of the next client.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use zklock_core::error::Result;
use zklock_process::{ForkEpoch, PerProcess, resource_error};

use super::sync::{JoinHandle, Monitor, join_limit, spawn, thread_local};

static EVENT_THREAD: PerProcess<EventThread> = PerProcess::new(EventThread::default);

thread_local! {
    /// The fork epoch of this process if this thread is the event thread, otherwise `None`. The library uses this value
    /// to ensure that the event thread does not wait for itself. If a handler forks a child, the copy of this thread in
    /// the child is not an event thread.
    #[allow(clippy::missing_const_for_thread_local, reason = "the macro of loom does not support this block")]
    static IS_EVENT_THREAD: Cell<Option<ForkEpoch>> = Cell::new(None);
}

/// A source of events: the event delivery of a client, or the log.
pub(super) trait Dispatch: Send + Sync {
    /// Calls the handlers for the next event. Returns false if no event is queued, or if another thread is calling
    /// handlers.
    fn dispatch_next(self: Arc<Self>) -> bool;

    /// Returns an address that identifies this source.
    fn identity(&self) -> usize;
}

/// A registration with the event thread. Dropping this value removes the registration. The event thread ends when its
/// last registration is dropped.
pub(super) struct Registration {
    thread: &'static EventThread,
    id: RegistrationId,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct RegistrationId(u64);

#[derive(Default)]
pub(super) struct EventThread {
    state: Monitor<State>,
}

#[derive(Default)]
struct State {
    /// The sources that have events in their queues, each with its registration id.
    ready: VecDeque<(RegistrationId, Arc<dyn Dispatch>)>,
    /// The registration whose handlers the event thread is calling.
    current: Option<RegistrationId>,
    registrations: usize,
    last_id: u64,
    /// True while the event thread is running. The event thread sets this field to false before it ends.
    is_running: bool,
    /// True once the event thread runs.
    has_started: bool,
    thread: Option<JoinHandle<()>>,
}

pub(super) fn is_event_thread() -> bool {
    IS_EVENT_THREAD.try_with(Cell::get).unwrap_or_default() == Some(ForkEpoch::current())
}

impl Registration {
    /// Registers with the event thread. If the event thread is not running, this function starts the thread.
    pub(super) fn new() -> Result<Self> {
        Self::on_thread(EVENT_THREAD.get())
    }

    pub(super) fn on_thread(event_thread: &'static EventThread) -> Result<Self> {
        let mut state = event_thread.state.lock();
        if !state.is_running {
            let thread = spawn("zkl-events", || event_thread.run())
                .map_err(|cause| resource_error("starting the event thread", &cause))?;
            // A previous event thread may not have ended yet, but it no longer calls handlers.
            state.thread = Some(thread);
            state.is_running = true;
            state.has_started = false;
        }
        state.registrations += 1;
        state.last_id += 1;
        // A thread that dropped the last registration no longer needs to wait for the end of the event thread.
        event_thread.state.notify();
        Ok(Self { thread: event_thread, id: RegistrationId(state.last_id) })
    }

    /// Makes the event thread call the handlers for the next event of a source.
    pub(super) fn schedule(&self, source: Arc<dyn Dispatch>) {
        let shared = &self.thread.state;
        shared.lock().ready.push_back((self.id, source));
        shared.notify();
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let shared = &self.thread.state;
        let mut state = shared.lock();
        state.registrations -= 1;
        // From now on, the event thread must not start a handler that belongs to this registration.
        let (own, others) = std::mem::take(&mut state.ready).into_iter().partition(|(id, _)| *id == self.id);
        state.ready = others;
        shared.notify();
        if !is_event_thread() {
            // The event thread may still be running a handler of this registration.
            state = shared.wait_while(state, None, |state| state.current == Some(self.id));
            // If no registration is left, this thread waits until the event thread has ended. This second wait also
            // ends if the event thread has work for another source, or if a new client registers. A thread that cannot
            // start or run ends later.
            let limit = join_limit(state.has_started);
            state = shared.wait_while(state, limit, |state| {
                state.is_running && state.registrations == 0 && state.current.is_none() && state.ready.is_empty()
            });
        }
        let thread = if is_event_thread() || state.is_running { None } else { state.thread.take() };
        drop(state);
        drop::<VecDeque<_>>(own);
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the event thread has panicked");
        }
    }
}

impl EventThread {
    fn run(&self) {
        IS_EVENT_THREAD.with(|dispatching| dispatching.set(Some(ForkEpoch::current())));
        let mut state = self.state.lock();
        state.has_started = true;
        loop {
            if let Some((id, source)) = state.ready.pop_front() {
                state.current = Some(id);
                drop(state);
                // If a panic could end the event thread, all clients would lose their event thread, and closing a
                // client would block. The panic handler of Rust has already printed the panic.
                let _ = catch_unwind(AssertUnwindSafe(|| source.dispatch_next()));
                if !is_event_thread() {
                    // This process is a child that the handler has forked, and this thread is its only thread. Another
                    // thread of the parent may have held the state's lock during the fork, so this thread must not lock
                    // the state. The thread ends, because no client in the child needs it.
                    return;
                }
                state = self.state.lock();
                state.current = None;
                self.state.notify();
            } else if state.registrations == 0 {
                state.is_running = false;
                self.state.notify();
                return;
            } else {
                state = self.state.wait_while(state, None, |state| state.ready.is_empty() && state.registrations > 0);
            }
        }
    }
}

#[cfg(all(test, zklock_loom))]
mod models;

#[cfg(all(test, not(zklock_loom)))]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::*;

    struct Panicking;

    impl Dispatch for Panicking {
        fn dispatch_next(self: Arc<Self>) -> bool {
            panic!("on purpose");
        }

        fn identity(&self) -> usize {
            0
        }
    }

    struct ReportingSource(Mutex<Sender<()>>);

    impl Dispatch for ReportingSource {
        fn dispatch_next(self: Arc<Self>) -> bool {
            self.0.lock().unwrap().send(()).is_ok()
        }

        fn identity(&self) -> usize {
            1
        }
    }

    #[test]
    fn panic_in_a_source_does_not_stop_the_event_thread() {
        let registration = Registration::on_thread(Box::leak(Box::default())).unwrap();
        let (sender, receiver) = channel();
        registration.schedule(Arc::new(Panicking));
        registration.schedule(Arc::new(ReportingSource(Mutex::new(sender))));
        receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        // Dropping the registration waits until the event thread has ended.
        drop(registration);
    }
}
