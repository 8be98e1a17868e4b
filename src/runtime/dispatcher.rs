//! The dispatcher thread: it calls the handlers of programs that do not call them by themselves, with no lock of ours held. One
//! for all clients of the process that have a handler; it starts with the first of them and ends with the last.
//!
//! There is never more than one, so that no two handlers run at the same time. Clients take turns, one call each.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use super::fork::{Epoch, PerProcess};
use super::sync::{Builder, JoinHandle, Monitor, thread_local};
use super::{resource, signals};
use crate::error::Result;

static DISPATCHER: PerProcess<Dispatcher> = PerProcess::new(Dispatcher::default);

thread_local! {
    /// In which process this is the dispatcher thread, which must not wait for itself. A child that a handler forks goes on in a copy
    /// of that thread, which is none of the child's.
    #[allow(clippy::missing_const_for_thread_local, reason = "loom's macro takes no such block")]
    static DISPATCHING: Cell<Option<Epoch>> = Cell::new(None);
}

/// What has handlers to be called: a client's outlet, or the log.
pub(super) trait Served: Send + Sync {
    /// Calls the next one that waits. False where none does, or another thread is calling.
    fn call_next(self: Arc<Self>) -> bool;

    /// What tells it from others.
    fn address(&self) -> usize;
}

/// One client's place on the thread. It is left when it is dropped; the last one sees the thread off.
pub(super) struct Place {
    dispatcher: &'static Dispatcher,
    id: u64,
}

#[derive(Default)]
pub(super) struct Dispatcher {
    state: Monitor<State>,
}

#[derive(Default)]
struct State {
    /// Clients that have something to tell.
    ready: VecDeque<(u64, Arc<dyn Served>)>,
    /// Whose place it is at.
    serving: Option<u64>,
    places: usize,
    last_id: u64,
    /// The thread goes on; it says so itself when it does not.
    is_running: bool,
    thread: Option<JoinHandle<()>>,
}

/// Whether the calling thread is the dispatcher.
pub(super) fn is_this_thread() -> bool {
    DISPATCHING.try_with(Cell::get).unwrap_or_default() == Some(Epoch::current())
}

impl Place {
    /// The thread is started if there is none.
    pub(super) fn open() -> Result<Self> {
        Self::open_on(DISPATCHER.get())
    }

    pub(super) fn open_on(dispatcher: &'static Dispatcher) -> Result<Self> {
        let mut state = dispatcher.state.lock();
        if !state.is_running {
            let run = || Builder::new().name("zkl-events".into()).spawn(|| dispatcher.run());
            let thread =
                signals::blocked(run).map_err(|cause| resource::refused("starting the event thread", &cause))?;
            // The one before, if any, was left to end by itself, and has nothing more to do than that.
            state.thread = Some(thread);
            state.is_running = true;
        }
        state.places += 1;
        state.last_id += 1;
        Ok(Self { dispatcher, id: state.last_id })
    }

    /// Has the thread call the next handler of a client, or of the log.
    pub(super) fn serve(&self, served: Arc<dyn Served>) {
        let shared = &self.dispatcher.state;
        shared.lock().ready.push_back((self.id, served));
        shared.notify();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let shared = &self.dispatcher.state;
        let mut state = shared.lock();
        state.places -= 1;
        // There is nothing to call any more.
        let (own, others) = std::mem::take(&mut state.ready).into_iter().partition(|(id, _)| *id == self.id);
        state.ready = others;
        shared.notify();
        if !is_this_thread() {
            // It may have called the last handler a moment ago.
            state = shared.wait_while(state, None, |state| state.serving == Some(self.id));
            // The last one sees the thread off, unless another's handler keeps it, or another client has come.
            state = shared.wait_while(state, None, |state| {
                state.is_running && state.places == 0 && state.serving.is_none() && state.ready.is_empty()
            });
        }
        let thread = if is_this_thread() || state.is_running { None } else { state.thread.take() };
        drop(state);
        drop::<VecDeque<_>>(own);
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the event thread had panicked");
        }
    }
}

impl Dispatcher {
    fn run(&self) {
        DISPATCHING.with(|dispatching| dispatching.set(Some(Epoch::current())));
        let mut state = self.state.lock();
        loop {
            if let Some((id, served)) = state.ready.pop_front() {
                state.serving = Some(id);
                drop(state);
                served.call_next();
                if !is_this_thread() {
                    // A child that was forked by the handler, and in it this thread alone. The lock may be taken for good, and there
                    // is nobody to serve.
                    return;
                }
                state = self.state.lock();
                state.serving = None;
                self.state.notify();
            } else if state.places == 0 {
                state.is_running = false;
                self.state.notify();
                return;
            } else {
                state = self.state.wait_while(state, None, |state| state.ready.is_empty() && state.places > 0);
            }
        }
    }
}

#[cfg(all(test, feature = "loom"))]
mod models;
