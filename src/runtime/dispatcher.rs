//! The dispatcher thread: it calls the handlers of programs that do not call them by themselves, with no lock of ours held. One
//! for all clients of the process that have a handler; it starts with the first of them and ends with the last.
//!
//! There is never more than one, so that no two handlers run at the same time. Clients take turns, one call each.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::fork::{Epoch, PerProcess};
use super::io::lock;
use super::outlet::Outlet;
use super::signals;
use crate::error::{Error, Result, Status};

static DISPATCHER: PerProcess<Dispatcher> = PerProcess::new(Dispatcher::default);

thread_local! {
    /// In which process this is the dispatcher thread, which must not wait for itself.
    static DISPATCHING: Cell<Option<Epoch>> = const { Cell::new(None) };
}

/// One client's place on the thread. It is left when it is dropped; the last one sees the thread off.
pub(super) struct Place(());

#[derive(Default)]
struct Dispatcher {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Clients that have something to tell.
    ready: VecDeque<Arc<Outlet>>,
    is_serving: bool,
    places: usize,
    /// The thread goes on; it says so itself when it does not.
    is_running: bool,
    thread: Option<JoinHandle<()>>,
}

/// Has the thread call the next handler of a client.
pub(super) fn serve(outlet: Arc<Outlet>) {
    let dispatcher = DISPATCHER.get();
    lock(&dispatcher.state).ready.push_back(outlet);
    dispatcher.changed.notify_all();
}

/// Whether the calling thread is the dispatcher.
pub(super) fn is_this_thread() -> bool {
    DISPATCHING.try_with(Cell::get).unwrap_or_default() == Some(Epoch::current())
}

impl Place {
    /// The thread is started if there is none.
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
        state.places += 1;
        Ok(Self(()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let dispatcher = DISPATCHER.get();
        let mut state = lock(&dispatcher.state);
        state.places -= 1;
        dispatcher.changed.notify_all();
        if is_this_thread() {
            return;
        }
        // Unless another's handler keeps the thread, or another client has come.
        state = dispatcher
            .wait(state, |state| state.is_running && state.places == 0 && !state.is_serving && state.ready.is_empty());
        let thread = if state.is_running { None } else { state.thread.take() };
        drop(state);
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the event thread had panicked");
        }
    }
}

impl Dispatcher {
    fn run(&self) {
        DISPATCHING.set(Some(Epoch::current()));
        let mut state = lock(&self.state);
        loop {
            if let Some(outlet) = state.ready.pop_front() {
                state.is_serving = true;
                drop(state);
                outlet.dispatch(1);
                drop(outlet);
                state = lock(&self.state);
                state.is_serving = false;
                self.changed.notify_all();
            } else if state.places == 0 {
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
        condition: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'a, State> {
        self.changed.wait_while(state, condition).unwrap_or_else(PoisonError::into_inner)
    }
}
