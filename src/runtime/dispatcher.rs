//! The dispatcher thread: it calls the program's event handlers, in order, with no lock of ours held. One for all clients
//! of the process that have a handler; it starts with the first of them and ends with the last.
//!
//! There is never more than one, so that no two handlers run at the same time.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::fork::PerProcess;
use super::io::lock;
use super::signals;
use crate::error::{Error, Result, Status};

static DISPATCHER: PerProcess<Dispatcher> = PerProcess::new(Dispatcher::default);

/// One client's way to its handlers.
pub(super) struct Outlet {
    id: u64,
    is_open: bool,
}

#[derive(Default)]
struct Dispatcher {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Whose handler is running.
    serving: Option<u64>,
    outlets: usize,
    last_id: u64,
    /// The thread goes on; it says so itself when it does not.
    is_running: bool,
    thread: Option<JoinHandle<()>>,
}

struct Job {
    outlet: u64,
    work: Box<dyn FnOnce() + Send>,
}

impl Outlet {
    /// A place on the dispatcher thread, which is started if there is none.
    pub(super) fn open() -> Result<Self> {
        let dispatcher = DISPATCHER.get();
        let mut state = lock(&dispatcher.state);
        if !state.is_running {
            let run = || thread::Builder::new().name("zkl-events".into()).spawn(|| dispatcher.run());
            let thread = signals::blocked(run)
                .map_err(|cause| Error::new(Status::Internal, format!("the event thread can't be started: {cause}")))?;
            // The one before, if any, was left to end by itself, and has nothing more to do than that.
            state.thread = Some(thread);
            state.is_running = true;
        }
        state.outlets += 1;
        state.last_id += 1;
        Ok(Self { id: state.last_id, is_open: true })
    }

    /// Leaves a call of a handler for the thread.
    pub(super) fn send(&self, work: impl FnOnce() + Send + 'static) {
        let dispatcher = DISPATCHER.get();
        lock(&dispatcher.state).jobs.push_back(Job { outlet: self.id, work: Box::new(work) });
        dispatcher.changed.notify_all();
    }

    /// Gives the thread `patience` to deliver what is left; the rest is dropped, as are all events where it is zero. Waits
    /// until the handler has returned for the last time, unless it is the handler itself that asks.
    pub(super) fn close(mut self, patience: Duration) {
        self.end(patience);
    }

    fn end(&mut self, patience: Duration) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let dispatcher = DISPATCHER.get();
        let mut state = lock(&dispatcher.state);
        state.outlets -= 1;
        let (id, own) = (self.id, DISPATCHING.get());
        if !own {
            state = dispatcher.wait(state, Some(patience), |state| state.jobs.iter().any(|job| job.outlet == id));
        }
        let (dropped, kept) =
            std::mem::take(&mut state.jobs).into_iter().partition::<VecDeque<_>, _>(|job| job.outlet == id);
        state.jobs = kept;
        dispatcher.changed.notify_all();
        if !own {
            state = dispatcher.wait(state, None, |state| state.serving == Some(id));
            // The last one sees the thread off, unless another's handler keeps it, or another client has come.
            state = dispatcher.wait(state, None, |state| {
                state.is_running && state.outlets == 0 && state.serving.is_none() && state.jobs.is_empty()
            });
        }
        let thread = if own || state.is_running { None } else { state.thread.take() };
        drop(state);
        // Not under the lock: a handler may take the program's things with it.
        drop(dropped);
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the event thread had panicked");
        }
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

impl Dispatcher {
    fn run(&self) {
        DISPATCHING.set(true);
        let mut state = lock(&self.state);
        loop {
            if let Some(Job { outlet, work }) = state.jobs.pop_front() {
                state.serving = Some(outlet);
                drop(state);
                deliver(work);
                state = lock(&self.state);
                state.serving = None;
                self.changed.notify_all();
            } else if state.outlets == 0 {
                state.is_running = false;
                self.changed.notify_all();
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        limit: Option<Duration>,
        mut condition: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'a, State> {
        match limit {
            None => self.changed.wait_while(state, condition).unwrap_or_else(PoisonError::into_inner),
            Some(Duration::ZERO) => state,
            Some(limit) => {
                let waited = self.changed.wait_timeout_while(state, limit, &mut condition);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}

thread_local! {
    /// Whether this is the dispatcher thread, which must not wait for itself.
    static DISPATCHING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whatever was lent for the call is dropped with it, before anything else is done.
fn deliver(work: Box<dyn FnOnce() + Send>) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        tracing::error!("an event handler panicked");
    }
}
