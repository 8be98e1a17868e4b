//! Waits for the loss of a hold. The code in this file does not depend on the types of locks and leases. Instead, the
//! caller passes a closure that returns the state of the hold.
//!
//! Two events can end such a wait. First, the engine can report a loss or the end of the session lease. After
//! such a report, the wait ends even if the hold becomes safe again a moment later. Second, the session lease can end.
//! The waiting thread itself compares the session lease with the clock, so the wait does not depend on other threads.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use zklock_core::engine::{Answer, HoldView, LockId, OpId, Owner};
use zklock_core::error::{Error, Result, Status};

use zklock_process::ForkEpoch;

use crate::runtime::{AnswerHandler, Hook, Monitor, Shell, now, refuse_in_callback, run_hook};

/// The longest time between two checks of the session lease. While the machine is suspended, the clock for timed
/// condition-variable waits stops, but the session lease's clock continues.
const LEASE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the current state of the hold.
type View = dyn Fn() -> Result<Option<HoldView>> + Send + Sync;

/// A wait for the loss of a hold. Dropping this value ends the wait, and drops its hooks without calling them. While
/// this value exists, it keeps the lock open, and therefore the client.
#[must_use]
pub struct WaitLost {
    signal: Arc<LossSignal>,
    view: Box<View>,
    /// How the wait has ended, as the first thread to ask has found it.
    result: OnceLock<Result<()>>,
    path: Arc<str>,
    hold_waits: Vec<CancelOnDrop>,
    epoch: ForkEpoch,
}

/// Receives an answer from the engine of each client lock, and keeps the first answer.
#[derive(Default)]
struct LossSignal {
    state: Monitor<State>,
}

#[derive(Default)]
struct State {
    answer: Option<Result<()>>,
    hooks: Vec<Hook>,
}

impl AnswerHandler for LossSignal {
    fn on_answer(self: Arc<Self>, _: OpId, answer: Result<Answer>) {
        self.end(answer.map(drop));
    }
}

impl LossSignal {
    /// Ends the wait, unless it has already ended.
    fn end(&self, answer: Result<()>) {
        let mut state = self.state.lock();
        state.answer.get_or_insert(answer);
        let hooks = std::mem::take(&mut state.hooks);
        drop(state);
        self.state.notify();
        hooks.into_iter().for_each(run_hook);
    }
}

/// A hold wait of one engine. Dropping this value cancels the hold wait.
struct CancelOnDrop {
    shell: Arc<Shell>,
    op: OpId,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        // A forked child does not cancel the hold waits of its parent.
        if self.shell.check_process().is_ok() {
            self.shell.cancel(self.op);
        }
    }
}

impl WaitLost {
    /// Starts a wait for the loss of `owner`'s hold. `view` returns the state of the hold. `client_locks` contains the
    /// shell and the id of each client lock that the owner holds.
    pub(crate) fn start(
        client_locks: impl Iterator<Item = (Arc<Shell>, LockId)>,
        owner: Owner,
        view: impl Fn() -> Result<Option<HoldView>> + Send + Sync + 'static,
        path: &Arc<str>,
    ) -> Result<Self> {
        // If the owner has no hold, or if the hold is already unsafe, `safe_duration` below reports this.
        let (signal, view, path) = (Arc::<LossSignal>::default(), Box::new(view), Arc::clone(path));
        let mut wait =
            Self { signal, view, result: OnceLock::new(), path, hold_waits: Vec::new(), epoch: ForkEpoch::current() };
        match wait.safe_duration()? {
            None => wait.signal.end(Ok(())),
            Some(_) => {
                for (shell, lock) in client_locks {
                    let signal = Arc::clone(&wait.signal) as Arc<dyn AnswerHandler>;
                    let op =
                        shell.submit_hold_wait(signal, |engine, now| engine.wait_until_unsafe(now, lock, owner))?;
                    wait.hold_waits.push(CancelOnDrop { shell, op });
                }
            }
        }
        Ok(wait)
    }

    /// Waits for at most `slice`. Returns `Ok` if the hold is no longer safe, and `None` if the hold is still safe. After
    /// the wait has ended, this method returns the same result each time, to any number of threads.
    ///
    /// Errors: NOT_OWNER if the hold is released during the wait; CLOSED, FORKED.
    pub fn wait_for(&self, slice: Duration) -> Option<Result<()>> {
        let end = now() + slice;
        loop {
            // In a forked child, another thread of the parent may have locked the signal.
            if let Err(forked) = self.epoch.check() {
                return Some(Err(forked));
            }
            let answer = self.signal.state.lock().answer.clone();
            if let Some(answer) = answer {
                return Some(self.result.get_or_init(|| self.result_of(answer)).clone());
            }
            let safe_for = match self.safe_duration() {
                Ok(Some(safe_for)) => safe_for,
                unsafe_or_gone => {
                    // From now on, the wait has ended, even if the hold becomes safe again.
                    self.signal.end(unsafe_or_gone.map(drop));
                    continue;
                }
            };
            let left = end - now();
            if left.is_zero() {
                return None;
            }
            let state = self.signal.state.lock();
            if state.answer.is_none() {
                drop(self.signal.state.wait(state, left.min(safe_for).min(LEASE_CHECK_INTERVAL)));
            }
        }
    }

    /// Calls `hook` once, on any thread, when the hold is released, the lock is closed, or the hold is no longer safe.
    /// If one of these events has already occurred, the calling thread calls `hook` at once. Callers that do not block
    /// in [`wait_for`](Self::wait_for), for example event loops, use this method. Errors: FORKED.
    pub fn on_done(&self, hook: impl FnOnce() + Send + 'static) -> Result<()> {
        self.epoch.check()?;
        let mut state = self.signal.state.lock();
        if state.answer.is_none() {
            state.hooks.push(Box::new(hook));
            return Ok(());
        }
        drop(state);
        run_hook(Box::new(hook));
        Ok(())
    }

    fn result_of(&self, answer: Result<()>) -> Result<()> {
        match answer {
            Err(error) if error.status() == Status::Lost => Ok(()),
            // If the program has closed the lock, this method reports the lock's own error instead of the error of one
            // of its client locks.
            Err(error) => (self.view)().and(Err(error)),
            Ok(()) => Ok(()),
        }
    }

    /// Returns how long the hold remains safe according to the lease clock, or `None` if the hold is not safe now.
    fn safe_duration(&self) -> Result<Option<Duration>> {
        match (self.view)()? {
            None => Err(Error::new(Status::NotOwner, format!("{}: {}", self.path, Status::NotOwner.text()))),
            Some(view) if !view.is_safe() => Ok(None),
            Some(view) => Ok(Some(view.remaining)),
        }
    }
}

impl Drop for WaitLost {
    fn drop(&mut self) {
        // The end of the hold waits must not call the hooks. A hook may own an object of the program whose drop uses
        // this lock, so the hooks are dropped after the signal is unlocked.
        if self.epoch.check().is_ok() {
            let hooks = std::mem::take(&mut self.signal.state.lock().hooks);
            drop(hooks);
        }
    }
}

impl fmt::Debug for WaitLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitLost").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Waits until a hold is no longer safe. Returns false if the hold is still safe at the end of `timeout`.
pub(crate) fn wait_until_lost(timeout: Option<Duration>, start: impl FnOnce() -> Result<WaitLost>) -> Result<bool> {
    refuse_in_callback(timeout)?;
    let wait = start()?;
    loop {
        match wait.wait_for(timeout.unwrap_or(Duration::MAX)) {
            Some(lost) => return lost.map(|()| true),
            None if timeout.is_some() => return Ok(false),
            None => {}
        }
    }
}
