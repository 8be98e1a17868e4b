//! Acquires in progress. An acquire continues whether or not a thread waits for it. The thread that receives the answer
//! to a step carries out the next step. This thread can be a calling thread or the I/O thread. An acquire refers to a
//! lock only through a [`LockTarget`].
//!
//! An acquire of a mutex or of leases has one step. For a multi-lock, one step is enough if the acquire joins all queues
//! in one transaction. Other multi-locks have several steps. [`Steps`] decides which step comes next, which locks are
//! released again, and when the acquire has succeeded. This module performs the actions that [`Steps`] requests, on one
//! thread at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tracing::Span;
use zklock_core::engine::{Answer, HoldId, HoldToRelease, LockId, OpId, Owner};
use zklock_core::error::{Error, Result, Status};
use zklock_core::steps::{Action, CallId, Ending, FIRST_CALL, Steps};
use zklock_core::wait::{Wait, WaitStep};

use crate::runtime::{AnswerHandler, Completion, Guarded, Hook, MutexGuard, Outcome, Shell, now, run_hook};
use crate::span;
use crate::timeout::Timeout;

/// An acquire in progress.
pub(crate) struct Acquire {
    targets: Arc<[LockTarget]>,
    goal: Goal,
    timeout: Timeout,
    cancellation: Arc<Cancellation>,
    cancels_at_start: u64,
    progress: Completion<Progress>,
}

/// Identifies the holds that an acquire has acquired: the hold of each member lock, or of the lock. The owner may later
/// release a member lock, and acquire it again. No two holds of one path have the same fencing token and fencing pass.
#[derive(Debug, Clone)]
pub(crate) struct HoldIds {
    pub(crate) owner: Owner,
    /// For each step of the acquire, the holds of its member locks.
    pub(crate) steps: Vec<Box<[HoldId]>>,
}

/// What an acquire operation acquires: a lock or leases.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal {
    /// Acquires a lock for this owner.
    Lock(Owner),
    /// Acquires this number of leases of a semaphore.
    Leases(i32),
}

/// The data that an acquire operation needs about one lock of an engine. Dropping a lock target never closes the lock
/// or its client. The I/O thread may drop a lock target, and closing a client could block the I/O thread.
pub(crate) struct LockTarget {
    pub(crate) shell: Arc<Shell>,
    pub(crate) id: LockId,
    /// The locks that the owner holds after the operation: the lock itself, or the member locks of a multi-lock.
    pub(crate) members: Box<[LockId]>,
    pub(crate) path: Arc<str>,
}

/// Records that the acquire operations of a lock were canceled, or that the lock was closed. Between two steps, the
/// operation is not in any engine, so the operation itself checks this record.
#[derive(Default)]
pub(crate) struct Cancellation {
    cancel_count: AtomicU64,
    is_closed: AtomicBool,
}

struct Progress {
    steps: Steps,
    /// True while a thread performs actions. The same thread also performs the actions that become due in the
    /// meantime because of other threads.
    is_performing: bool,
    /// The owner of the granted leases, if the operation acquires leases.
    granted_leases: Option<Owner>,
    /// The `tracing` span of the operation. When the operation ends, the library replaces this span with a disabled
    /// span.
    span: Span,
}

/// Receives an engine's answer to the second or any later call that an operation makes. The operation itself receives
/// the answer to its first call. [`Steps`] assigns a number to each call, because different engines may use the same
/// [`OpId`].
struct LaterCall {
    acquire: Arc<Acquire>,
    call: CallId,
}

impl Outcome for Progress {
    fn has_ended(&self) -> bool {
        self.steps.is_abandoned() || self.steps.ending().is_some()
    }
}

impl Acquire {
    /// Starts the operation, which then continues in the background.
    pub(crate) fn start(
        targets: &Arc<[LockTarget]>,
        goal: Goal,
        timeout: Timeout,
        cancellation: &Arc<Cancellation>,
        span: Span,
    ) -> Result<Arc<Self>> {
        targets.first().ok_or(Status::Internal)?.shell.check_process()?;
        let steps = Steps::new(targets.len());
        let acquire = Arc::new(Self {
            targets: Arc::clone(targets),
            goal,
            timeout,
            cancellation: Arc::clone(cancellation),
            cancels_at_start: cancellation.cancel_count.load(Ordering::SeqCst),
            progress: Completion::new(Progress { steps, is_performing: false, granted_leases: None, span }),
        });
        acquire.perform_actions(acquire.lock());
        Ok(acquire)
    }

    /// Waits for at most `slice`. Returns how the operation ended, or `None` if it is still running. Fails with
    /// DEADLOCK if the calling thread must not wait. The waiting thread itself checks the deadline, so the wait does
    /// not depend on the I/O thread. If this method returns a success, the caller owns the hold. If the program later
    /// abandons the operation, the library does not release this hold.
    pub(crate) fn wait_for(&self, slice: Duration) -> Option<Result<()>> {
        let mut wait = Wait::new(now(), slice, self.timeout.deadline);
        loop {
            // A hook on this thread may have forked the process, and this thread may now run in the child. The loop
            // therefore checks on every iteration which process it runs in.
            if let Err(forked) = self.check_process() {
                return Some(Err(forked));
            }
            let mut progress = self.lock();
            if let Some(result) = self.take_result(&mut progress) {
                return Some(result);
            }
            if let Err(deadlock) = self.timeout.check_may_wait(slice) {
                return Some(Err(deadlock));
            }
            match wait.next_step(now(), progress.steps.pending_call()) {
                WaitStep::Expire((_, step, op)) => {
                    drop(progress);
                    // The thread that receives the answer notifies the waiting threads.
                    self.with_target(step, |target| {
                        target.shell.expire_op(op);
                    });
                }
                WaitStep::Read(call @ (_, step, op), limit) => {
                    drop(progress);
                    self.with_target(step, |target| match target.shell.read_until_answered(op, limit) {
                        true => wait.has_waited(limit),
                        false => wait.sleep_for(call),
                    });
                }
                WaitStep::Sleep(limit) => drop(self.progress.wait(progress, limit)),
                WaitStep::Stop => return None,
            }
        }
    }

    /// Cancels the operation. The operation ends at once, unless it is about to succeed.
    pub(crate) fn cancel(self: &Arc<Self>) -> Result<()> {
        self.check_process()?;
        let mut progress = self.lock();
        progress.steps.cancel();
        self.perform_actions(progress);
        Ok(())
    }

    /// Cancels the operation, and releases the hold unless the library has already reported the success to the program.
    /// Calls that wait for the operation fail with CLOSED.
    pub(crate) fn abandon(self: &Arc<Self>) {
        // In a forked child, the operation has nothing to cancel.
        if self.check_process().is_err() {
            return;
        }
        let mut progress = self.lock();
        if !progress.steps.abandon() {
            return;
        }
        let hooks = progress.take_hooks();
        self.progress.notify();
        self.perform_actions(progress);
        hooks.into_iter().for_each(run_hook);
    }

    /// Returns whether the operation has ended. In a forked child, each operation has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.check_process().is_err() || self.progress.has_ended()
    }

    /// Calls `hook` when the operation has ended, on the thread that detects the end. If the operation has already
    /// ended, the calling thread calls `hook` at once.
    pub(crate) fn on_done(&self, hook: Hook) -> Result<()> {
        self.check_process()?;
        self.progress.on_done(hook);
        Ok(())
    }

    /// Returns the owner of the hold. For leases, the owner is known only after the operation has succeeded.
    pub(crate) fn owner(&self) -> Option<Owner> {
        match self.goal {
            Goal::Lock(owner) => Some(owner),
            Goal::Leases(_) => self.lock().granted_leases,
        }
    }

    /// Identifies the holds of an operation that has succeeded.
    pub(crate) fn hold_ids(&self) -> Result<HoldIds> {
        let owner = self.owner().ok_or(Status::Internal)?;
        Ok(HoldIds { owner, steps: self.lock().steps.acquired().to_vec() })
    }

    pub(crate) fn path(&self) -> &str {
        self.targets.first().map_or("", |target| &target.path)
    }

    fn check_process(&self) -> Result<()> {
        self.targets.first().map_or(Ok(()), |target| target.shell.check_process())
    }

    // Steps.

    /// Performs actions until no action remains, unless another thread is already performing actions.
    fn perform_actions<'a>(self: &'a Arc<Self>, mut progress: MutexGuard<'a, Guarded<Progress>>) {
        if progress.is_performing {
            return;
        }
        progress.is_performing = true;
        loop {
            // The program may have canceled the operation between two steps, when no engine contained the operation.
            if self.cancellation.cancel_count.load(Ordering::SeqCst) != self.cancels_at_start {
                progress.steps.cancel();
            }
            let Some(action) = progress.steps.poll() else { break };
            if let Action::End(ending) = action {
                progress.is_performing = false;
                return self.finish(progress, &ending);
            }
            drop(progress);
            progress = self.perform_action(action);
        }
        progress.is_performing = false;
    }

    /// Performs an action, and passes the result to [`Steps`].
    fn perform_action(self: &Arc<Self>, action: Action) -> MutexGuard<'_, Guarded<Progress>> {
        match action {
            Action::Acquire(step, call) => self.start_call(step, call, LockTarget::acquire),
            Action::Confirm(step, call) => self.start_call(step, call, LockTarget::wait_until_safe),
            Action::StartHoldWait(step, call) => {
                let begun = self.submit(step, call, LockTarget::wait_until_ended);
                let mut progress = self.lock();
                match begun {
                    Ok(op) => progress.steps.on_hold_wait_started(step, call, op),
                    Err(error) => progress.steps.on_answer(call, Err(error)),
                }
                progress
            }
            Action::Look => {
                let owner = self.owner();
                let is_safe = |target: &LockTarget| owner.is_some_and(|owner| target.is_safe(owner));
                let first_unsafe = self.targets.iter().position(|target| !is_safe(target));
                let mut progress = self.lock();
                progress.steps.on_safety_checked(first_unsafe);
                progress
            }
            Action::Cancel(step, op) => {
                self.with_target(step, |target| target.shell.cancel(op));
                self.lock()
            }
            Action::Abandon(step, op) => {
                self.with_target(step, |target| target.shell.abandon(op));
                self.lock()
            }
            Action::Release(step, holds) => {
                if let Some(owner) = self.owner() {
                    self.with_target(step, |target| target.release(owner, &holds));
                }
                self.lock()
            }
            // No action follows `Action::End`.
            Action::End(_) => self.lock(),
        }
    }

    fn start_call(self: &Arc<Self>, step: usize, call: CallId, make: StartCall) -> MutexGuard<'_, Guarded<Progress>> {
        let begun = self.submit(step, call, make);
        let mut progress = self.lock();
        match begun {
            Ok(op) => progress.steps.on_call_started(call, op),
            Err(error) => {
                progress.steps.on_answer(call, Err(error));
                return progress;
            }
        }
        self.progress.notify();
        if self.cancellation.is_closed() {
            // The program may have closed the lock before the engine received this call. In this case, closing the lock
            // did not end this call, so this thread ends it now.
            drop(progress);
            self.with_target(step, LockTarget::close_waits);
            progress = self.lock();
        }
        progress
    }

    fn submit(self: &Arc<Self>, step: usize, call: CallId, make: StartCall) -> Result<OpId> {
        let target = self.targets.get(step).ok_or(Status::Internal)?;
        if self.cancellation.is_closed() {
            // Without this check, a call with timeout 0 could succeed although the program has already closed the lock.
            return Err(target.closed_error());
        }
        let acquire = Arc::clone(self);
        let handler: Arc<dyn AnswerHandler> =
            if call == FIRST_CALL { acquire } else { Arc::new(LaterCall { acquire, call }) };
        make(target, self, handler)
    }

    /// Passes the answer of an engine to [`Steps`].
    fn on_call_answer(self: &Arc<Self>, call: CallId, op: OpId, answer: Result<Answer>) {
        let mut progress = self.lock();
        if let (Goal::Leases(_), Ok(_)) = (self.goal, &answer) {
            progress.granted_leases = Some(Owner::leases(op));
        }
        progress.steps.on_answer(call, answer);
        self.perform_actions(progress);
    }

    fn finish(&self, mut progress: MutexGuard<'_, Guarded<Progress>>, ending: &Ending) {
        let span = std::mem::replace(&mut progress.span, Span::none());
        self.progress.end(progress);
        if !span.is_disabled() {
            // A panic in the program's subscriber must not affect the clients that this thread serves.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                span::record_acquire_outcome(&span, &self.timeout, &self.result(ending));
                drop(span);
            }));
        }
    }

    fn with_target(&self, step: usize, work: impl FnOnce(&LockTarget)) {
        if let Some(target) = self.targets.get(step) {
            work(target);
        }
    }

    /// Returns the result of an operation that has ended. From then on, the caller owns the hold.
    fn take_result(&self, progress: &mut Progress) -> Option<Result<()>> {
        if progress.steps.is_abandoned() {
            return Some(Err(self.closed_error()));
        }
        let result = self.result(progress.steps.ending()?);
        progress.steps.keep();
        Some(result)
    }

    fn result(&self, ending: &Ending) -> Result<()> {
        match ending {
            Ending::Acquired => Ok(()),
            // Closing one client also ends the steps in the other clients, with errors that name their locks.
            Ending::Failed(error) if error.status() == Status::Closed && self.targets.len() > 1 => {
                let paths: Vec<&str> = self.targets.iter().map(|target| &*target.path).collect();
                let what = "the multi-lock, one of its member locks or a client was closed";
                Err(Error::new(Status::Closed, format!("{}: {what}", paths.join(", "))))
            }
            Ending::Failed(error) => Err(error.clone()),
            Ending::Canceled(step) => Err(self.targets.get(*step).map_or_else(
                || Status::Canceled.into(),
                |target| Error::new(Status::Canceled, format!("{}: {}", target.path, Status::Canceled.text())),
            )),
            Ending::Abandoned => Err(self.closed_error()),
        }
    }

    fn closed_error(&self) -> Error {
        let path = self.path();
        Error::new(Status::Closed, format!("{path}: the acquire has ended, because the program closed its handle"))
    }

    fn lock(&self) -> MutexGuard<'_, Guarded<Progress>> {
        self.progress.lock()
    }
}

impl HoldIds {
    /// Returns the hold with the smallest fencing token, which is the token of a multi-lock.
    pub(crate) fn smallest(&self) -> Option<HoldId> {
        self.steps.iter().flatten().min().copied()
    }
}

/// A method of [`LockTarget`] that calls an engine to start a part of an operation.
type StartCall = fn(&LockTarget, &Acquire, Arc<dyn AnswerHandler>) -> Result<OpId>;

impl AnswerHandler for Acquire {
    fn on_answer(self: Arc<Self>, op: OpId, answer: Result<Answer>) {
        self.on_call_answer(FIRST_CALL, op, answer);
    }
}

impl AnswerHandler for LaterCall {
    fn on_answer(self: Arc<Self>, op: OpId, answer: Result<Answer>) {
        self.acquire.on_call_answer(self.call, op, answer);
    }
}

impl LockTarget {
    fn acquire(&self, acquire: &Acquire, handler: Arc<dyn AnswerHandler>) -> Result<OpId> {
        let Timeout { start, acquire_limit, .. } = acquire.timeout;
        self.shell.submit(handler, |engine, now| {
            let op = match acquire.goal {
                Goal::Lock(owner) => engine.acquire(now, self.id, owner, acquire_limit),
                Goal::Leases(quantity) => engine.acquire_leases(now, self.id, quantity, acquire_limit).0,
            };
            engine.set_started(op, start);
            op
        })
    }

    fn wait_until_safe(&self, acquire: &Acquire, handler: Arc<dyn AnswerHandler>) -> Result<OpId> {
        let Timeout { start, acquire_limit, .. } = acquire.timeout;
        let owner = acquire.owner().ok_or(Status::Internal)?;
        self.shell.submit(handler, |engine, now| {
            let op = engine.wait_until_safe(now, self.id, owner, acquire_limit);
            engine.set_started(op, start);
            op
        })
    }

    fn wait_until_ended(&self, acquire: &Acquire, handler: Arc<dyn AnswerHandler>) -> Result<OpId> {
        let owner = acquire.owner().ok_or(Status::Internal)?;
        self.shell.submit_hold_wait(handler, |engine, now| engine.wait_until_ended(now, self.id, owner))
    }

    fn is_safe(&self, owner: Owner) -> bool {
        // If this query fails, the next call to the engine reports the error.
        self.shell.read_engine(|engine, now| engine.is_safe(now, self.id, owner)).unwrap_or(false)
    }

    /// Releases these holds, even if the multi-lock itself was closed in the meantime.
    fn release(&self, owner: Owner, holds: &[HoldId]) {
        let holds: Vec<_> = self.members.iter().copied().zip(holds.iter().copied().map(HoldToRelease::Exact)).collect();
        // In a forked child, this call fails, and the child has nothing to release.
        let _ = self.shell.update_engine(|engine, now| {
            engine.release_holds(now, owner, &holds, false);
        });
    }

    /// Ends all waits for this lock with CLOSED.
    pub(crate) fn close_waits(&self) {
        let _ = self.shell.update_engine(|engine, now| engine.close_waits(now, self.id));
    }

    fn closed_error(&self) -> Error {
        Error::new(Status::Closed, format!("{}: {}", self.path, Status::Closed.text()))
    }
}

impl Cancellation {
    /// Records that all current acquire operations are canceled. After this call, the caller must also cancel these
    /// operations in the engines.
    pub(crate) fn cancel(&self) {
        self.cancel_count.fetch_add(1, Ordering::SeqCst);
    }

    /// Records that the lock is closed, so acquire operations can no longer succeed. After this call, the caller must
    /// end the engines' waits for the lock.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }
}

#[cfg(all(test, zklock_loom))]
mod models;

#[cfg(all(test, not(zklock_loom)))]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::runtime::EventDelivery;
    use zklock_core::engine::{Engine, Recipe};
    use zklock_core::recipe::Mode;
    use zklock_core::session::ConnectString;

    #[test]
    fn panic_in_step_fails_acquire_for_all_waiters() {
        let config = Config::new();
        let target = ConnectString::parse("127.0.0.1:1").unwrap();
        let engine = Engine::new(target, config.session(), now(), Box::new(|| 7));
        let delivery = EventDelivery::open(&config.dispatch_mode, None).unwrap();
        let shell = Shell::start(engine, delivery, config.attempt_inputs()).unwrap();
        let mut id = 0;
        shell.update_engine(|engine, _| id = engine.add_lock("/lock", Recipe::Queue(Mode::Mutex))).unwrap();
        let targets: Arc<[LockTarget]> =
            Arc::new([LockTarget { shell: Arc::clone(&shell), id, members: [id].into(), path: "/lock".into() }]);
        let owner = Owner::current_thread();
        let start = || Acquire::start(&targets, Goal::Lock(owner), None.into(), &Arc::default(), Span::none()).unwrap();
        let acquire = start();
        let (sender, receiver) = std::sync::mpsc::channel();
        let hook = move || {
            let _ = sender.send(());
        };
        acquire.on_done(Box::new(hook)).unwrap();
        shell.read_engine(|_, _| panic!("on purpose")).unwrap_err();
        receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        for acquire in [acquire, start()] {
            let result = acquire.wait_for(Duration::from_secs(60));
            assert_eq!(result.unwrap().unwrap_err().status(), Status::Internal);
        }
        shell.stop(now() + Duration::from_secs(10));
    }
}
