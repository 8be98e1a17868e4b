//! The event thread. The event thread calls the handlers of every client, unless the program has chosen to call the
//! handlers itself. The event thread holds no lock of the library during these calls. One event thread serves all
//! clients of the process that have a handler. The event thread starts when the first client needs it, and ends after
//! the last client that needs it was closed. The code in this file does not depend on clients or events, because it
//! calls handlers only through the trait [`Dispatch`].
//!
//! The event thread calls one handler at a time. The clients take turns: the event thread handles one event of a
//! client, then one event of the next client. A source with a loss comes before all others. If such a source waits
//! while the event thread is in a handler, a second thread calls the handlers of sources with losses. This thread, the
//! loss thread, then exists as long as the event thread.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use zklock_core::error::Result;
use zklock_process::{ForkEpoch, PerProcess, resource_error};

use super::sync::{JoinHandle, Monitor, join_limit, spawn, thread_local};

static EVENT_THREAD: PerProcess<EventThread> = PerProcess::new(EventThread::default);

thread_local! {
    /// The fork epoch of this process and the event thread, if this thread is the event thread or the loss thread,
    /// otherwise `None`. The library uses this value to ensure that such a thread does not wait for itself. If a handler
    /// forks a child, the copy of this thread in the child is not an event thread.
    #[allow(clippy::missing_const_for_thread_local, reason = "the macro of loom does not support this block")]
    static OWN_EVENT_THREAD: Cell<Option<(ForkEpoch, &'static EventThread)>> = Cell::new(None);
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
    /// The sources that have a loss in their queues.
    urgent: VecDeque<(RegistrationId, Arc<dyn Dispatch>)>,
    /// The registrations whose handlers the event thread and the loss thread are calling.
    current: [Option<RegistrationId>; 2],
    registrations: usize,
    last_id: u64,
    /// True while the event thread is running. The event thread sets this field to false before it ends.
    is_running: bool,
    /// True once the event thread runs.
    has_started: bool,
    thread: Option<JoinHandle<()>>,
    /// The same for the loss thread.
    has_loss_thread: bool,
    loss_thread: Option<JoinHandle<()>>,
    /// True while one of the two threads waits for a handler that the other thread runs.
    is_waiting: bool,
}

/// The two threads that call handlers, in the order of `State::current`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Events,
    Losses,
}

/// Returns whether the calling thread is the event thread or the loss thread.
pub(super) fn is_event_thread() -> bool {
    own_event_thread().is_some()
}

fn own_event_thread() -> Option<&'static EventThread> {
    let (epoch, event_thread) = OWN_EVENT_THREAD.try_with(Cell::get).unwrap_or_default()?;
    (epoch == ForkEpoch::current()).then_some(event_thread)
}

/// A thread has this value while it waits until a handler on another thread returns.
pub(super) struct HandlerWait(Option<&'static EventThread>);

impl HandlerWait {
    /// Returns `None` if the calling thread must not wait. Of the event thread and the loss thread, only one may wait
    /// for a handler, because otherwise each would wait for the other.
    pub(super) fn begin() -> Option<Self> {
        let event_thread = own_event_thread();
        let is_other_waiting =
            event_thread.is_some_and(|thread| std::mem::replace(&mut thread.state.lock().is_waiting, true));
        (!is_other_waiting).then(|| Self(event_thread))
    }
}

impl Drop for HandlerWait {
    fn drop(&mut self) {
        if let Some(event_thread) = self.0 {
            event_thread.state.lock().is_waiting = false;
        }
    }
}

impl Registration {
    /// Registers with the event thread. If the event thread is not running, this function starts the thread.
    pub(super) fn new() -> Result<Self> {
        Self::on_thread(EVENT_THREAD.get())
    }

    pub(super) fn on_thread(event_thread: &'static EventThread) -> Result<Self> {
        let mut state = event_thread.state.lock();
        if !state.is_running {
            let thread = event_thread
                .start("zkl-events", Role::Events)
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

    /// Makes the event thread call the handlers for the next event of a source. If the source has a loss in its queue,
    /// `has_loss` is true. The caller may schedule a source again when the first loss arrives.
    pub(super) fn schedule(&self, source: Arc<dyn Dispatch>, has_loss: bool) {
        let shared = &self.thread.state;
        let mut state = shared.lock();
        if !has_loss {
            state.ready.push_back((self.id, source));
        } else if state.urgent.iter().all(|(id, _)| *id != self.id) {
            // The caller has a reference to the source, so this line drops no source.
            state.ready.retain(|(id, _)| *id != self.id);
            state.urgent.push_back((self.id, source));
            self.thread.ensure_loss_thread(&mut state);
        }
        shared.notify();
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let shared = &self.thread.state;
        let mut state = shared.lock();
        state.registrations -= 1;
        // From now on, the event thread must not start a handler that belongs to this registration.
        let is_own = |(id, _): &(RegistrationId, _)| *id == self.id;
        let (own, others) = std::mem::take(&mut state.ready).into_iter().partition(is_own);
        state.ready = others;
        let (own_urgent, others) = std::mem::take(&mut state.urgent).into_iter().partition(is_own);
        state.urgent = others;
        shared.notify();
        if !is_event_thread() {
            // A handler of this registration may still be running.
            state = shared.wait_while(state, None, |state| state.current.contains(&Some(self.id)));
            // If no registration is left, this thread waits until the event thread has ended. This second wait also
            // ends if the event thread has work for another source, or if a new client registers. A thread that cannot
            // start or run ends later.
            let limit = join_limit(state.has_started);
            state = shared.wait_while(state, limit, |state| {
                (state.is_running || state.has_loss_thread) && state.registrations == 0 && state.is_idle()
            });
        }
        let threads = if is_event_thread() || state.is_running || state.has_loss_thread {
            [None, None]
        } else {
            [state.thread.take(), state.loss_thread.take()]
        };
        drop(state);
        drop::<[VecDeque<_>; 2]>([own, own_urgent]);
        for thread in threads.into_iter().flatten() {
            if thread.join().is_err() {
                tracing::error!("the event thread has panicked");
            }
        }
    }
}

impl State {
    /// Removes the next source for a thread.
    fn take_next(&mut self, role: Role) -> Option<(RegistrationId, Arc<dyn Dispatch>)> {
        let next = self.urgent.pop_front();
        if role == Role::Losses { next } else { next.or_else(|| self.ready.pop_front()) }
    }

    fn has_next(&self, role: Role) -> bool {
        !self.urgent.is_empty() || role == Role::Events && !self.ready.is_empty()
    }

    fn is_idle(&self) -> bool {
        self.current == [None, None] && self.ready.is_empty() && self.urgent.is_empty()
    }

    fn set_current(&mut self, role: Role, id: Option<RegistrationId>) {
        let [events, losses] = &mut self.current;
        *if role == Role::Events { events } else { losses } = id;
    }
}

impl EventThread {
    fn start(&'static self, name: &str, role: Role) -> std::io::Result<JoinHandle<()>> {
        spawn(name, move || self.run(role))
    }

    /// Starts the loss thread if the event thread is in a handler. If the start fails, the loss waits for the event
    /// thread, which calls the handlers of losses first.
    fn ensure_loss_thread(&'static self, state: &mut State) {
        if state.has_loss_thread || state.current == [None, None] {
            return;
        }
        if let Ok(thread) = self.start("zkl-losses", Role::Losses) {
            // A previous loss thread may not have ended yet, but it no longer calls handlers.
            state.loss_thread = Some(thread);
            state.has_loss_thread = true;
        }
    }

    fn run(&'static self, role: Role) {
        OWN_EVENT_THREAD.with(|own| own.set(Some((ForkEpoch::current(), self))));
        let mut state = self.state.lock();
        state.has_started = true;
        loop {
            if let Some((id, source)) = state.take_next(role) {
                state.set_current(role, Some(id));
                if !state.urgent.is_empty() {
                    self.ensure_loss_thread(&mut state);
                }
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
                state.set_current(role, None);
                self.state.notify();
            } else if state.registrations == 0 {
                *if role == Role::Events { &mut state.is_running } else { &mut state.has_loss_thread } = false;
                self.state.notify();
                return;
            } else {
                state = self.state.wait_while(state, None, |state| !state.has_next(role) && state.registrations > 0);
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
        registration.schedule(Arc::new(Panicking), false);
        registration.schedule(Arc::new(ReportingSource(Mutex::new(sender))), false);
        receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        // Dropping the registration waits until the event thread has ended.
        drop(registration);
    }
}
