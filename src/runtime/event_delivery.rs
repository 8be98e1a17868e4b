//! The event delivery of one client. The event delivery queues events and calls the handlers of the program for each
//! event. The callback dispatcher selects the thread that calls the handlers. The shell passes events to the event
//! delivery, but the code in this file does not depend on the shell.
//!
//! Only one thread at a time calls handlers. The handlers receive the events in the order in which the events occurred.
//! While a handler runs, the calling thread holds no internal lock.
//!
//! When [`EventDelivery::remove`] returns, the removed handler is not running on another thread and is not called
//! again.

mod registry;

use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use zklock_core::engine::{CoalescingQueue, LockId, Notification};
use zklock_core::error::{Error, Result, Status};
use zklock_core::time::Time;
use zklock_process::ForkEpoch;

use super::callback_dispatcher::{CallbackDispatcher, DispatchMode, EventSource};
use super::event_thread::{Dispatch, HandlerWait, Registration, is_event_thread};
use super::sync::{Monitor, MutexGuard, ThreadId, current_thread};
use super::wake_socket::WakeSocket;
use super::{callback, clock};

pub use registry::Listen;
pub(crate) use registry::{EventHandler, HandlerId, RevocationHandler, Scope};
use registry::{Handler, Registry};

/// The largest number of events that the queue of a client contains without merging. If more events arrive, the queue
/// begins to merge events.
const MAX_UNMERGED: usize = 1024;

/// The event delivery of one client. The comment of this module describes the rules of event delivery.
pub(crate) struct EventDelivery {
    state: Monitor<State>,
}

struct State {
    queue: CoalescingQueue,
    dispatcher: CallbackDispatcher,
    /// True if the callback dispatcher was notified that events are queued.
    is_dispatch_scheduled: bool,
    /// True if the callback dispatcher was also notified that the queue contains a loss.
    is_loss_scheduled: bool,
    /// The thread that is calling handlers.
    dispatching_thread: Option<ThreadId>,
    /// True if only the thread that closes the client may still call handlers.
    is_closing: bool,
    is_closed: bool,
    /// True if the library no longer calls this client's handlers. In this state, no handler is running, unless a
    /// handler itself closes the client.
    is_finished: bool,
    /// True if a library thread closes the client. If the program polls, this thread must not call or drop
    /// handlers.
    is_left_to_program: bool,
    registry: Registry,
    /// The handlers that are left after the client closes. A program thread must drop these handlers.
    closed_handlers: Registry,
    /// The handlers that the dispatching thread is running. If a handler closes the client, the library calls other
    /// handlers before this handler returns, so the list can contain several entries.
    running_handlers: Vec<(HandlerId, Scope)>,
}

/// A handler that was removed and may still be running.
#[must_use]
pub(super) struct RemovedHandler {
    id: HandlerId,
    _handler: Handler,
}

impl EventDelivery {
    pub(crate) fn source(self: &Arc<Self>) -> EventSource {
        self.source_with(false)
    }

    fn source_with(self: &Arc<Self>, has_loss: bool) -> EventSource {
        EventSource::new(Arc::clone(self) as Arc<dyn Dispatch>, has_loss)
    }

    /// Creates an `EventDelivery` for one client. `mode` selects the callback dispatcher, and `on_event` receives all
    /// events.
    pub(crate) fn open(mode: &DispatchMode, on_event: Option<Arc<EventHandler>>) -> Result<Arc<Self>> {
        let dispatcher = match mode {
            DispatchMode::EventThread if on_event.is_none() => CallbackDispatcher::None,
            mode => CallbackDispatcher::open(mode)?,
        };
        Ok(Arc::new(Self::new(dispatcher, on_event)))
    }

    pub(super) fn new(dispatcher: CallbackDispatcher, on_event: Option<Arc<EventHandler>>) -> Self {
        let mut registry = Registry::default();
        if let Some(on_event) = on_event {
            registry.add(Scope::Client, Listen::All, Handler::Event(on_event));
        }
        let state = State {
            queue: CoalescingQueue::new(MAX_UNMERGED),
            dispatcher,
            is_dispatch_scheduled: false,
            is_loss_scheduled: false,
            dispatching_thread: None,
            is_closing: false,
            is_closed: false,
            is_finished: false,
            is_left_to_program: false,
            registry,
            closed_handlers: Registry::default(),
            running_handlers: Vec::new(),
        };
        Self { state: Monitor::new(state) }
    }

    /// Ensures that the client has a callback dispatcher, so that a thread calls the handlers.
    pub(super) fn ensure_dispatcher(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(Status::Closed.into());
        }
        if matches!(state.dispatcher, CallbackDispatcher::None) {
            state.dispatcher = CallbackDispatcher::EventThread(Registration::new()?);
        }
        Ok(())
    }

    /// Adds a handler for events. The handler receives later events and events that are still queued. Errors: CLOSED,
    /// EXHAUSTED.
    pub(crate) fn add_handler(&self, scope: Scope, which: Listen, handler: Arc<EventHandler>) -> Result<HandlerId> {
        self.ensure_dispatcher()?;
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(Status::Closed.into());
        }
        Ok(state.registry.add(scope, which, Handler::Event(handler)))
    }

    /// Removes a handler, and waits until no other thread is running the handler. A handler may remove itself.
    pub(crate) fn remove(&self, id: HandlerId) {
        let removed = self.state.lock().registry.remove(id);
        self.wait_until_returned(id);
        // Dropping the handler may run program code, so the thread releases the lock first.
        drop(removed);
    }

    /// Removes a handler. If the handler is running, this function does not wait for it.
    pub(crate) fn remove_nowait(&self, id: HandlerId) {
        let removed = self.state.lock().registry.remove(id);
        drop(removed);
    }

    /// Replaces the handler for revocation requests. Returns the previous handler.
    pub(super) fn set_revocable(&self, id: LockId, handler: Option<Arc<RevocationHandler>>) -> Option<RemovedHandler> {
        let handlers = &mut self.state.lock().registry;
        let before = handlers.revocation_handler(id);
        let removed = before.and_then(|id| Some(RemovedHandler { id, _handler: handlers.remove(id)? }));
        if let Some(handler) = handler {
            handlers.add(Scope::Revocation(id), Listen::All, Handler::Revocation(handler));
        }
        removed
    }

    /// Waits until no other thread is running a handler that was replaced or removed.
    pub(super) fn wait_for_removed(&self, retired: RemovedHandler) {
        self.wait_until_returned(retired.id);
        drop(retired);
    }

    /// Waits until no other thread is running a handler for revocation requests for this lock. The registry may no
    /// longer contain the handler, because the client or the lock was closed.
    pub(super) fn wait_for_revocation_handler(&self, lock: LockId) {
        self.wait_while_running(|(_, scope)| *scope == Scope::Revocation(lock));
    }

    fn wait_until_returned(&self, id: HandlerId) {
        self.wait_while_running(|(running, _)| *running == id);
    }

    fn wait_while_running(&self, which: impl Fn(&(HandlerId, Scope)) -> bool) {
        let state = self.state.lock();
        drop(self.wait_for_handler(state, None, |state| state.running_handlers.iter().any(&which)));
    }

    /// Removes all handlers and all queued events. A handler that is running at this moment continues to run.
    pub(crate) fn discard_handlers(&self) {
        let mut state = self.state.lock();
        let queue = std::mem::replace(&mut state.queue, CoalescingQueue::new(MAX_UNMERGED));
        let dropped = (queue, state.registry.take_all(), state.closed_handlers.take_all());
        self.state.notify();
        drop(state);
        // Dropping the handlers may run the program's destructors, so the thread releases the lock first.
        drop(dropped);
    }

    /// Queues an event or a revocation request, and notifies the thread that calls the handlers.
    pub(super) fn push(self: &Arc<Self>, notification: Notification) {
        let mut state = self.state.lock();
        if state.is_closed || !state.is_wanted(&notification) {
            return;
        }
        state.queue.push(notification);
        self.schedule_dispatch(&mut state);
    }

    /// Calls the handlers for the events that are queued now. The handlers run on the calling thread. This method
    /// handles at most `limit` events, and returns the number of handled events. If another thread is already calling
    /// handlers, this method returns 0, and the other thread handles the events.
    pub(crate) fn dispatch(self: &Arc<Self>, limit: usize) -> usize {
        let mut state = self.state.lock();
        if state.dispatching_thread.is_some() || state.is_closing {
            return 0;
        }
        state.begin();
        let waiting = state.queue.len().min(limit);
        let mut called = 0;
        while called < waiting && !state.is_closing {
            let Some(notification) = state.pop_wanted() else { break };
            called += 1;
            match self.call(state, &notification) {
                Some(next) => state = next,
                None => return called,
            }
        }
        self.finish_dispatch(&mut state);
        called
    }

    /// Returns a descriptor. The descriptor is readable while events are queued, and after the client was closed. If
    /// the program has closed the previous descriptor, this method creates a new descriptor.
    pub(crate) fn poll_fd(&self) -> Result<RawFd> {
        let state = &mut *self.state.lock();
        match &mut state.dispatcher {
            CallbackDispatcher::Polling(fd) => {
                if !fd.is_ours() {
                    *fd = WakeSocket::new()?;
                    if state.is_dispatch_scheduled {
                        fd.signal();
                    }
                }
                Ok(fd.as_raw_fd())
            }
            _ if state.is_closed => Err(Status::Closed.into()),
            _ => Err(not_polling()),
        }
    }

    /// Fails with INVALID if the program does not poll this client for events.
    pub(crate) fn check_polling(&self) -> Result<()> {
        let state = self.state.lock();
        match &state.dispatcher {
            CallbackDispatcher::Polling(_) => Ok(()),
            _ if state.is_closed => Err(Status::Closed.into()),
            _ => Err(not_polling()),
        }
    }

    /// A library thread calls this method before it closes the client. From then on, if the program polls, only
    /// the program's own threads call and drop the handlers.
    pub(crate) fn leave_to_program(&self) {
        self.state.lock().is_left_to_program = true;
    }

    /// The thread that closes a client calls this method. If the program polls, this method calls the handlers for the
    /// last events. After this call, no other thread calls handlers. If a handler itself closes the client, this method
    /// does nothing. The method calls no further handler after the time `end`.
    pub(super) fn deliver_remaining(&self, end: Time) {
        let mut state = self.state.lock();
        if !state.closing_thread_dispatches() || state.is_dispatching_thread() {
            return;
        }
        state.is_closing = true;
        state = self.state.wait_while(state, None, |state| state.dispatching_thread.is_some());
        state.begin();
        while clock::now() < end {
            let Some(notification) = state.pop_wanted() else { break };
            match self.call(state, &notification) {
                Some(next) => state = next,
                None => return,
            }
        }
        state.dispatching_thread = None;
        self.state.notify();
    }

    /// Returns whether the client has a handler that receives only losses. The library must call such a handler before
    /// the session ends.
    pub(super) fn has_loss_handlers(&self) -> bool {
        self.state.lock().registry.has_loss_handlers()
    }

    /// Waits until the handlers for all queued events have been called, or until the time `end`. If the program polls
    /// for events, the handlers run on the calling thread or on a thread that polls. Otherwise, they run on the event
    /// thread or on the notified thread. A handler that closes its own client blocks the thread that calls the
    /// handlers. In this case, the closing thread itself calls the handlers that are registered only for losses.
    pub(super) fn deliver_losses(&self, end: Time) {
        let mut state = self.state.lock();
        match (state.is_dispatching_thread(), &state.dispatcher) {
            (false, _) if state.closing_thread_dispatches() => {
                state =
                    self.state.wait_while(state, Some(end - clock::now()), |state| state.dispatching_thread.is_some());
                if state.dispatching_thread.is_none() {
                    drop(state);
                    self.deliver_remaining(end);
                }
            }
            (false, _) => {
                let is_busy = |state: &mut State| state.dispatching_thread.is_some() || !state.queue.is_empty();
                drop(self.state.wait_while(state, Some(end - clock::now()), is_busy));
            }
            // The library has notified the program, and the program calls the handlers.
            (true, CallbackDispatcher::Notifier(_)) => {}
            (true, _) => {
                let limit = Some(end - clock::now());
                state = self.wait_for_handler(state, limit, |state| state.dispatching_thread.is_some());
                let before = state.dispatching_thread;
                if before.is_some_and(|thread| thread != current_thread()) {
                    return;
                }
                state.dispatching_thread = Some(current_thread());
                for notification in state.queue.take_closed_holds() {
                    // If a handler has called this method, that handler is still running. The client must not call the
                    // same handler a second time.
                    let ids = state.registry.matching(&notification);
                    let ids = ids.filter(|&id| state.registry.is_for_losses_only(id));
                    let is_running = |id| state.running_handlers.iter().any(|&(running, _)| running == id);
                    let ids = ids.filter(|&id| !is_running(id)).collect();
                    match self.call_each(state, ids, &notification) {
                        Some(next) => state = next,
                        None => return,
                    }
                }
                state.dispatching_thread = before;
                self.state.notify();
            }
        }
    }

    /// Waits until the remaining events are delivered, but no longer than `timeout`. Then drops the events that are
    /// still queued, and all handlers. If a handler is still running, this method also waits until the handler returns.
    /// If a handler itself calls this method, the method does not wait. If the program itself must drop the handlers,
    /// [`drop_closed_handlers`](Self::drop_closed_handlers) drops them later.
    pub(super) fn close(self: &Arc<Self>, timeout: Duration) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        let own = state.is_dispatching_thread();
        if !own {
            let has_more =
                |state: &mut State| state.dispatching_thread.is_some() || !state.is_closing && !state.queue.is_empty();
            state = self.state.wait_while(state, Some(timeout), has_more);
        }
        state.is_closing = true;
        state.is_closed = true;
        let mut dropped = (std::mem::replace(&mut state.queue, CoalescingQueue::new(0)), state.registry.take_all());
        if state.is_polled() && state.is_left_to_program {
            state.closed_handlers = std::mem::take(&mut dropped.1);
        }
        if !own || is_event_thread() {
            state = self.wait_for_handler(state, None, |state| state.dispatching_thread.is_some());
        }
        let dispatcher = std::mem::replace(&mut state.dispatcher, CallbackDispatcher::None);
        state.is_finished = true;
        self.state.notify();
        drop(state);
        match dispatcher {
            // This call wakes up a thread that is polling the descriptor.
            CallbackDispatcher::Polling(fd) => fd.signal(),
            // If this value is the last registration, dropping the value waits until the event thread has ended.
            dispatcher => drop(dispatcher),
        }
        // Dropping the handlers may run the program's destructors, so the thread releases the lock first.
        drop(dropped);
    }

    /// Waits, for at most `timeout`, until another thread has closed the event delivery. If a handler is running after
    /// that, this method also waits until the handler returns. If a handler calls this method, the method does not
    /// wait.
    pub(super) fn wait_until_closed(&self, timeout: Duration) {
        let state = self.state.lock();
        if !state.is_dispatching_thread() {
            let state = self.state.wait_while(state, Some(timeout), |state| !state.is_finished);
            drop(self.wait_for_handler(state, None, |state| state.dispatching_thread.is_some()));
        }
    }

    /// Waits while another thread runs a handler and `condition` is true. If that thread in turn waits for a handler of
    /// the calling thread, this method does not wait.
    fn wait_for_handler<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        limit: Option<Duration>,
        condition: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'a, State> {
        if state.dispatching_thread.is_none_or(|thread| thread == current_thread()) {
            return state;
        }
        let Some(_waiting) = HandlerWait::begin() else { return state };
        self.state.wait_while(state, limit, condition)
    }

    /// Drops the handlers that [`close`](Self::close) left for the program to drop. Must be called on a program thread.
    pub(crate) fn drop_closed_handlers(&self) {
        let dropped = self.state.lock().closed_handlers.take_all();
        drop(dropped);
    }

    /// Calls the handlers that receive this event, and releases the lock during the calls. Returns `None` in a child
    /// that a handler has forked. In the child, the lock may stay locked forever, and the locked data belongs to the
    /// parent.
    fn call<'a>(&'a self, state: MutexGuard<'a, State>, notification: &Notification) -> Option<MutexGuard<'a, State>> {
        let ids = state.registry.matching(notification).collect();
        self.call_each(state, ids, notification)
    }

    fn call_each<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        ids: Vec<HandlerId>,
        notification: &Notification,
    ) -> Option<MutexGuard<'a, State>> {
        let epoch = ForkEpoch::current();
        for id in ids {
            // The program may have removed the handler during the previous call.
            let Some((handler, scope)) = state.registry.get(id) else { continue };
            state.running_handlers.push((id, scope));
            drop(state);
            run(handler, notification, epoch);
            if epoch != ForkEpoch::current() {
                return None;
            }
            state = self.state.lock();
            state.running_handlers.pop();
            self.state.notify();
        }
        Some(state)
    }

    fn finish_dispatch(self: &Arc<Self>, state: &mut State) {
        state.dispatching_thread = None;
        self.state.notify();
        if !state.queue.is_empty() {
            self.schedule_dispatch(state);
        }
    }

    fn schedule_dispatch(self: &Arc<Self>, state: &mut State) {
        let has_loss = state.queue.has_loss();
        let is_scheduled = state.is_dispatch_scheduled && (state.is_loss_scheduled || !has_loss);
        // The thread that is calling handlers checks the queue again after its current call.
        if is_scheduled || state.dispatching_thread.is_some() {
            return;
        }
        state.is_dispatch_scheduled = true;
        state.is_loss_scheduled = has_loss;
        match &state.dispatcher {
            CallbackDispatcher::None => {}
            CallbackDispatcher::EventThread(place) => place.schedule(Arc::<Self>::clone(self), has_loss),
            CallbackDispatcher::Polling(fd) => fd.signal(),
            CallbackDispatcher::Notifier(notifier) => {
                // If the notifier panicked, Rust has already printed the panic. The library calls the notifier again
                // after the next event.
                let notified = catch_unwind(AssertUnwindSafe(|| notifier(self.source_with(has_loss))));
                state.is_dispatch_scheduled = notified.is_ok();
            }
        }
    }
}

impl Dispatch for EventDelivery {
    fn dispatch_next(self: Arc<Self>) -> bool {
        self.dispatch(1) > 0
    }

    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl State {
    /// Records that the calling thread will call handlers from now on.
    fn begin(&mut self) {
        self.dispatching_thread = Some(current_thread());
        self.is_dispatch_scheduled = false;
        self.is_loss_scheduled = false;
        if let CallbackDispatcher::Polling(fd) = &self.dispatcher {
            fd.clear();
        }
    }

    /// Returns the next event for which a handler is registered.
    fn pop_wanted(&mut self) -> Option<Notification> {
        while let Some(notification) = self.queue.pop() {
            if self.is_wanted(&notification) {
                return Some(notification);
            }
        }
        None
    }

    /// Returns whether the program calls the handlers on its own threads.
    const fn is_polled(&self) -> bool {
        matches!(self.dispatcher, CallbackDispatcher::Polling(_))
    }

    /// Returns whether the thread that closes the client runs the handlers for the client's last events.
    const fn closing_thread_dispatches(&self) -> bool {
        self.is_polled() && !self.is_left_to_program
    }

    fn is_wanted(&self, notification: &Notification) -> bool {
        self.registry.matching(notification).next().is_some()
    }

    /// Returns whether the calling thread runs a handler. If this thread waited for the handler, it would wait for
    /// itself.
    fn is_dispatching_thread(&self) -> bool {
        self.dispatcher.is_current_thread() || self.dispatching_thread == Some(current_thread())
    }
}

/// Calls a handler. Then drops the passed reference to the handler, which may run program code. If the handler forks,
/// this function does not drop it in the child, because the parent drops it.
fn run(handler: Handler, notification: &Notification, epoch: ForkEpoch) {
    let call = move || {
        match (&handler, notification) {
            (Handler::Event(handler), Notification::Event(event) | Notification::Forfeit(event)) => handler(event),
            (Handler::Revocation(handler), Notification::Revocation(revocation)) => handler(&revocation.node_path),
            _ => {}
        }
        if epoch != ForkEpoch::current() {
            std::mem::forget(handler);
        }
    };
    callback::call_logging_panic("a program callback", call);
}

fn not_polling() -> Error {
    let message = "a library thread calls the callbacks of this client; a program that dispatches the events itself \
                   must set poll_events in the config of the client";
    Error::invalid(message)
}

#[cfg(all(test, zklock_loom))]
mod models;
