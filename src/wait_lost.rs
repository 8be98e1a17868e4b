//! Waits for the loss of a hold. The code in this file does not depend on the types of locks and leases. Instead, the
//! caller passes a closure that returns the state of the hold.
//!
//! Two events can end such a wait. First, the engine can report a loss or the end of the session lease. After
//! such a report, the wait ends even if the hold becomes safe again a moment later. Second, the session lease can end.
//! The waiting thread itself compares the session lease with the clock, so the wait does not depend on other threads.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use zklock_core::engine::{Answer, HoldView, LockId, OpId, Owner};
use zklock_core::error::{Error, Result, Status};

use zklock_process::ForkEpoch;

use crate::operation::{InProgress, Operation};
use crate::runtime::{AnswerHandler, Completion, Hook, Shell, now, refuse_in_callback};

/// The longest time between two checks of the session lease. While the machine is suspended, the clock for timed
/// condition-variable waits stops, but the session lease's clock continues.
const LEASE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the current state of the hold.
type View = dyn Fn() -> Result<Option<HoldView>> + Send + Sync;

/// A wait for the loss of a hold. Dropping this value ends the wait, and drops its hooks without calling them. While
/// this value exists, it keeps the lock open, and therefore the client.
struct WaitLost {
    signal: Arc<LossSignal>,
    view: Box<View>,
    /// How the wait has ended, as the first thread to ask has found it.
    result: OnceLock<Result<()>>,
    path: Arc<str>,
    hold_waits: Vec<CancelOnDrop>,
    epoch: ForkEpoch,
}

/// The first answer that one of the client locks' engines has given. The success means that the hold is not safe.
#[derive(Default)]
struct LossSignal(Completion<Option<Result<()>>>);

impl AnswerHandler for LossSignal {
    fn on_answer(self: Arc<Self>, _: OpId, answer: Result<Answer>) {
        self.0.complete(answer.map(drop));
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

/// Starts a wait for the loss of `owner`'s hold. `view` returns the state of the hold. `client_locks` contains the shell
/// and the id of each client lock that the owner holds.
///
/// The operation succeeds if the hold is no longer safe. It fails with NOT_OWNER if the hold is released during the wait.
/// Other errors: CLOSED, FORKED.
pub(crate) fn start(
    client_locks: impl Iterator<Item = (Arc<Shell>, LockId)>,
    owner: Owner,
    view: impl Fn() -> Result<Option<HoldView>> + Send + Sync + 'static,
    path: &Arc<str>,
) -> Result<Operation<()>> {
    // If the owner has no hold, or if the hold is already unsafe, `safe_duration` below reports this.
    let (signal, view, path) = (Arc::<LossSignal>::default(), Box::new(view), Arc::clone(path));
    let (result, epoch) = (OnceLock::new(), ForkEpoch::current());
    let mut wait = WaitLost { signal, view, result, path, hold_waits: Vec::new(), epoch };
    match wait.safe_duration()? {
        None => _ = wait.signal.0.complete(Ok(())),
        Some(_) => {
            for (shell, lock) in client_locks {
                let signal = Arc::clone(&wait.signal) as Arc<dyn AnswerHandler>;
                let op = shell.submit_hold_wait(signal, |engine, now| engine.wait_until_unsafe(now, lock, owner))?;
                wait.hold_waits.push(CancelOnDrop { shell, op });
            }
        }
    }
    Ok(Operation::new(wait))
}

impl InProgress<()> for WaitLost {
    fn wait_for(&self, slice: Duration) -> Option<Result<()>> {
        let end = now() + slice;
        loop {
            // In a forked child, another thread of the parent may have locked the signal.
            if let Err(forked) = self.epoch.check() {
                return Some(Err(forked));
            }
            if let Some(answer) = self.signal.0.wait_for(Duration::ZERO) {
                return Some(self.result.get_or_init(|| self.result_of(answer)).clone());
            }
            let safe_for = match self.safe_duration() {
                Ok(Some(safe_for)) => safe_for,
                unsafe_or_gone => {
                    // From now on, the wait has ended, even if the hold becomes safe again.
                    self.signal.0.complete(unsafe_or_gone.map(drop));
                    continue;
                }
            };
            let left = end - now();
            if left.is_zero() {
                return None;
            }
            self.signal.0.wait_for(left.min(safe_for).min(LEASE_CHECK_INTERVAL));
        }
    }

    fn is_over(&self) -> bool {
        self.wait_for(Duration::ZERO).is_some()
    }

    fn on_done(&self, hook: Hook) -> Result<()> {
        self.epoch.check()?;
        self.signal.0.on_done(hook);
        Ok(())
    }

    fn cancel(&self) -> Result<()> {
        self.end(Status::Canceled)
    }

    fn abandon(&self) {
        // In a forked child, the wait has already ended.
        let _ = self.end(Status::Closed);
    }
}

impl WaitLost {
    fn end(&self, status: Status) -> Result<()> {
        self.epoch.check()?;
        self.signal.0.complete(Err(status.into()));
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
        // The end of the hold waits must not call the hooks.
        if self.epoch.check().is_ok() {
            self.signal.0.discard_hooks();
        }
    }
}

/// Waits until a hold is no longer safe. Returns false if the hold is still safe at the end of `timeout`.
pub(crate) fn wait_until_lost(
    timeout: Option<Duration>,
    start: impl FnOnce() -> Result<Operation<()>>,
) -> Result<bool> {
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
