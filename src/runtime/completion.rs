//! The end of an operation: a state that ends once, the threads that wait for the end, and the hooks that run after it.
//! The code in this file does not depend on the kinds of operations.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::callback::{Hook, run_hook};
use super::sync::{Monitor, MutexGuard};

/// The state of an operation.
pub(crate) trait Outcome {
    /// Returns whether the operation has ended. After this method has returned true, it always returns true.
    fn has_ended(&self) -> bool;
}

impl<T> Outcome for Option<T> {
    fn has_ended(&self) -> bool {
        self.is_some()
    }
}

/// The state of an operation, for any number of threads. For an operation without other state, the state is an `Option`,
/// which is `None` until the operation has ended.
#[derive(Default)]
pub(crate) struct Completion<S> {
    monitor: Monitor<Guarded<S>>,
}

/// The state of an operation while a thread has locked it.
#[derive(Default)]
pub(crate) struct Guarded<S> {
    state: S,
    /// The hooks that run when the operation has ended.
    hooks: Vec<Hook>,
}

impl<S: Outcome> Completion<S> {
    pub(crate) fn new(state: S) -> Self {
        Self { monitor: Monitor::new(Guarded { state, hooks: Vec::new() }) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Guarded<S>> {
        self.monitor.lock()
    }

    /// Waits until another thread changes the state, for at most `limit`. The wait can also end without a change.
    pub(crate) fn wait<'a>(&'a self, state: MutexGuard<'a, Guarded<S>>, limit: Duration) -> MutexGuard<'a, Guarded<S>> {
        self.monitor.wait(state, limit)
    }

    /// Wakes the threads that wait for a change of the state. Only [`end`](Self::end) runs hooks.
    pub(crate) fn notify(&self) {
        self.monitor.notify();
    }

    /// Unlocks the state of an operation that has just ended, wakes all waiting threads, and runs the hooks.
    pub(crate) fn end(&self, mut ended: MutexGuard<'_, Guarded<S>>) {
        let hooks = ended.take_hooks();
        // The threads that wake up need the lock.
        drop(ended);
        self.notify();
        hooks.into_iter().for_each(run_hook);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().has_ended()
    }

    /// Runs `hook` when the operation has ended, on the thread that ends the operation. If the operation has already
    /// ended, the calling thread runs `hook` at once.
    pub(crate) fn on_done(&self, hook: Hook) {
        let mut state = self.lock();
        if !state.has_ended() {
            state.hooks.push(hook);
            return;
        }
        drop(state);
        run_hook(hook);
    }

    /// Drops the hooks without running them. A hook may own an object of the program whose drop uses this operation, so
    /// the hooks are dropped after the state is unlocked.
    pub(crate) fn discard_hooks(&self) {
        let hooks = self.lock().take_hooks();
        drop(hooks);
    }
}

impl<T: Clone> Completion<Option<T>> {
    /// Ends the operation with this answer. If the operation has already ended, its answer does not change, and the method
    /// returns false.
    pub(crate) fn complete(&self, answer: T) -> bool {
        let mut state = self.lock();
        if state.has_ended() {
            return false;
        }
        state.state = Some(answer);
        self.end(state);
        true
    }

    /// Waits for the answer for at most `limit`.
    pub(crate) fn wait_for(&self, limit: Duration) -> Option<T> {
        let limit = (limit < Duration::MAX).then_some(limit);
        let state = self.lock();
        self.monitor.wait_while(state, limit, |state| !state.has_ended()).state.clone()
    }
}

impl<S> Guarded<S> {
    pub(crate) fn take_hooks(&mut self) -> Vec<Hook> {
        std::mem::take(&mut self.hooks)
    }
}

impl<S> Deref for Guarded<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.state
    }
}

impl<S> DerefMut for Guarded<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.state
    }
}
