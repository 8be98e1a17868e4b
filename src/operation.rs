//! Acquires under way. They go on by themselves: whoever an answer finds, a calling thread or the I/O thread, takes the next step, and
//! who waits only looks. So it is the same whether anybody waits.
//!
//! A mutex is one step, and so are a multi-lock that is joined in one transaction, and leases. Other multi-locks are several. What comes
//! next, what is given back and when it has succeeded is decided by [`Steps`], a value; here one thread at a time carries out its orders.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tracing::Span;

use crate::engine::{Answer, LockId, OpId, Owner};
use crate::error::{Error, Result, Status};
use crate::lock::Timeout;
use crate::runtime::{Caller, Hook, Monitor, MutexGuard, Shell, now, run};
use crate::span;
use crate::steps::{CallId, Ending, FIRST_CALL, Order, Steps};

/// An acquire under way.
pub(crate) struct Operation {
    entrances: Arc<[Entrance]>,
    goal: Goal,
    timeout: Timeout,
    notices: Arc<Notices>,
    cancels_before: u64,
    progress: Monitor<Progress>,
}

/// What is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal {
    /// To enter a lock.
    Entry(Owner),
    /// So many leases of a semaphore.
    Leases(u32),
}

/// The way into one engine's lock. It keeps neither the lock nor its client: the end of these is waited for, and must not be left to
/// the thread that an answer finds.
pub(crate) struct Entrance {
    pub(crate) shell: Arc<Shell>,
    pub(crate) id: LockId,
    /// What is held once it is entered: the lock, or those that it consists of.
    pub(crate) locks: Box<[LockId]>,
    pub(crate) path: Arc<str>,
}

/// What was said to all that wait for a lock: who is between two steps is to hear of it as well.
#[derive(Default)]
pub(crate) struct Notices {
    cancels: AtomicU64,
    is_closed: AtomicBool,
}

struct Progress {
    steps: Steps,
    /// A thread is carrying out orders, and goes on with what others feed meanwhile.
    is_busy: bool,
    /// Whose it is when it is got.
    owner: Owner,
    hooks: Vec<Hook>,
    /// For those who trace, until it is over.
    span: Span,
}

/// A call after the first one, by the number that [`Steps`] gave it: two engines may give their calls the same number.
struct LaterCall {
    operation: Arc<Operation>,
    call: CallId,
}

impl Operation {
    /// Begins the first step, and goes on by itself.
    pub(crate) fn start(
        entrances: &Arc<[Entrance]>,
        goal: Goal,
        timeout: Timeout,
        notices: &Arc<Notices>,
        span: Span,
    ) -> Result<Arc<Self>> {
        entrances.first().ok_or(Status::Internal)?.shell.check()?;
        let owner = match goal {
            Goal::Entry(owner) => owner,
            Goal::Leases(_) => Owner::Leases(0),
        };
        let steps = Steps::new(entrances.len());
        let operation = Arc::new(Self {
            entrances: Arc::clone(entrances),
            goal,
            timeout,
            notices: Arc::clone(notices),
            cancels_before: notices.cancels.load(Ordering::SeqCst),
            progress: Monitor::new(Progress { steps, is_busy: false, owner, hooks: Vec::new(), span }),
        });
        operation.go_on(operation.lock());
        Ok(operation)
    }

    /// How it ended, after `slice` at most; DEADLOCK where the calling thread must not wait. The deadline is kept by this thread itself, whatever the I/O thread is doing. Where
    /// `keeps`, a success is the program's from now on, and stays when it abandons the operation.
    pub(crate) fn wait_for(&self, slice: Duration, keeps: bool) -> Option<Result<()>> {
        let end = Instant::now().checked_add(slice);
        let mut told = None;
        let mut read = None;
        loop {
            // Each time: a hook that was run by this thread may have forked, and this be the child.
            if let Err(forked) = self.check() {
                return Some(Err(forked));
            }
            let mut progress = self.lock();
            if let Some(result) = self.look(&mut progress, keeps) {
                return Some(result);
            }
            if let Err(deadlock) = self.timeout.check(slice) {
                return Some(Err(deadlock));
            }
            let left = self.timeout.deadline.map_or(Duration::MAX, |deadline| deadline - now());
            let left_of_slice = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            let waits_for = progress.steps.waits_for();
            match waits_for {
                Some((call, step, op)) if left.is_zero() && told != Some(call) => {
                    told = Some(call);
                    drop(progress);
                    // Whoever has the answer, this thread or another, notifies those who wait.
                    self.with_step(step, |step| {
                        step.shell.expire(op);
                    });
                    continue;
                }
                _ if left_of_slice.is_zero() => return None,
                _ => {}
            }
            // Once the deadline has passed, who is at it will be done with it in a moment.
            let limit = if left.is_zero() { left_of_slice } else { left.min(left_of_slice) };
            match waits_for {
                Some((call, step, op)) if read != Some(call) => {
                    drop(progress);
                    let limit = (limit < Duration::MAX).then_some(limit);
                    self.with_step(step, |step| {
                        // Where another thread reads, this one is notified.
                        read = (!step.shell.read_for(op, limit)).then_some(call);
                    });
                }
                _ => drop(self.progress.wait(progress, limit)),
            }
        }
    }

    /// Gives it up; it ends at once, and with a success where that was just quicker.
    pub(crate) fn cancel(self: &Arc<Self>) -> Result<()> {
        self.check()?;
        let mut progress = self.lock();
        progress.steps.cancel();
        self.go_on(progress);
        Ok(())
    }

    /// Gives it up, and gives back what nobody was told of. Whoever waits for it hears CLOSED.
    pub(crate) fn abandon(self: &Arc<Self>) {
        // In a forked child there is nothing to do.
        if self.check().is_err() {
            return;
        }
        let mut progress = self.lock();
        if !progress.steps.abandon() {
            return;
        }
        let hooks = std::mem::take(&mut progress.hooks);
        self.progress.notify();
        self.go_on(progress);
        hooks.into_iter().for_each(run);
    }

    /// Has `hook` run when it is over, by the thread that finds it so: at once where it is.
    pub(crate) fn on_done(&self, hook: Hook) -> Result<()> {
        self.check()?;
        let mut progress = self.lock();
        if self.look(&mut progress, false).is_none() {
            progress.hooks.push(hook);
            return Ok(());
        }
        drop(progress);
        run(hook);
        Ok(())
    }

    /// Whose it is. Of leases it is known once they are got.
    pub(crate) fn owner(&self) -> Owner {
        self.lock().owner
    }

    fn check(&self) -> Result<()> {
        self.entrances.first().map_or(Ok(()), |step| step.shell.check())
    }

    // Steps.

    /// Carries out orders until there is none, unless another thread is at it.
    fn go_on<'a>(self: &'a Arc<Self>, mut progress: MutexGuard<'a, Progress>) {
        if progress.is_busy {
            return;
        }
        progress.is_busy = true;
        loop {
            // A cancel may have come while no step waited.
            if self.notices.cancels.load(Ordering::SeqCst) != self.cancels_before {
                progress.steps.cancel();
            }
            let Some(order) = progress.steps.poll() else { break };
            if let Order::End(ending) = order {
                progress.is_busy = false;
                return self.end(progress, &ending);
            }
            drop(progress);
            progress = self.carry_out(order);
        }
        progress.is_busy = false;
    }

    /// Carries out an order, and feeds what comes of it.
    fn carry_out(self: &Arc<Self>, order: Order) -> MutexGuard<'_, Progress> {
        match order {
            Order::Take(step, call) => self.begin(step, call, Entrance::take),
            Order::Confirm(step, call) => self.begin(step, call, Entrance::confirm),
            Order::Guard(step, call) => {
                let begun = self.submit(step, call, Entrance::guard);
                let mut progress = self.lock();
                match begun {
                    Ok(op) => progress.steps.guarded(step, call, op),
                    Err(error) => progress.steps.answered(call, Err(error)),
                }
                progress
            }
            Order::Look => {
                let owner = self.owner();
                let first_unsafe = self.entrances.iter().position(|step| !step.is_safe(owner));
                let mut progress = self.lock();
                progress.steps.looked(first_unsafe);
                progress
            }
            Order::Cancel(step, op) => {
                self.with_step(step, |step| step.shell.cancel(op));
                self.lock()
            }
            Order::GiveBack(step) => {
                let owner = self.owner();
                self.with_step(step, |step| step.give_back(owner));
                self.lock()
            }
            // It is the last one.
            Order::End(_) => self.lock(),
        }
    }

    fn begin(self: &Arc<Self>, step: usize, call: CallId, make: Make) -> MutexGuard<'_, Progress> {
        let begun = self.submit(step, call, make);
        let mut progress = self.lock();
        match begun {
            Ok(op) => progress.steps.begun(call, op),
            Err(error) => {
                progress.steps.answered(call, Err(error));
                return progress;
            }
        }
        self.progress.notify();
        if self.notices.is_closed() {
            // The lock was closed before this call began to wait.
            drop(progress);
            self.with_step(step, Entrance::close);
            progress = self.lock();
        }
        progress
    }

    fn submit(self: &Arc<Self>, step: usize, call: CallId, make: Make) -> Result<OpId> {
        let entrance = self.entrances.get(step).ok_or(Status::Internal)?;
        if self.notices.is_closed() {
            // Before the call's answer: a look may be over before anybody can close it.
            return Err(entrance.closed());
        }
        let operation = Arc::clone(self);
        let caller: Arc<dyn Caller> =
            if call == FIRST_CALL { operation } else { Arc::new(LaterCall { operation, call }) };
        make(entrance, self, caller)
    }

    /// An engine has answered a call.
    fn feed(self: &Arc<Self>, call: CallId, op: OpId, answer: Result<Answer>) {
        let mut progress = self.lock();
        if let (Goal::Leases(_), Ok(_)) = (self.goal, &answer) {
            progress.owner = Owner::Leases(op);
        }
        progress.steps.answered(call, answer.map(drop));
        self.go_on(progress);
    }

    fn end(&self, mut progress: MutexGuard<'_, Progress>, ending: &Ending) {
        let span = std::mem::replace(&mut progress.span, Span::none());
        let hooks = std::mem::take(&mut progress.hooks);
        // First the lock: who wakes needs it, and would have to sleep again.
        drop(progress);
        self.progress.notify();
        hooks.into_iter().for_each(run);
        if !span.is_disabled() {
            span::acquired(&span, &self.timeout, &self.result(ending));
        }
    }

    fn with_step(&self, at: usize, order: impl FnOnce(&Entrance)) {
        if let Some(step) = self.entrances.get(at) {
            order(step);
        }
    }

    fn look(&self, progress: &mut Progress, keeps: bool) -> Option<Result<()>> {
        if progress.steps.is_abandoned() {
            return Some(Err(self.closed()));
        }
        let result = self.result(progress.steps.ending()?);
        if keeps {
            progress.steps.keep();
        }
        Some(result)
    }

    fn result(&self, ending: &Ending) -> Result<()> {
        match ending {
            Ending::Got => Ok(()),
            Ending::Failed(error) => Err(error.clone()),
            Ending::Canceled(step) => Err(self.entrances.get(*step).map_or_else(
                || Status::Canceled.into(),
                |step| Error::new(Status::Canceled, format!("{}: {}", step.path, Status::Canceled.text())),
            )),
            Ending::Abandoned => Err(self.closed()),
        }
    }

    fn closed(&self) -> Error {
        let path = self.entrances.first().map_or("", |step| &step.path);
        Error::new(Status::Closed, format!("{path}: the acquire was given up, and its handle is closed"))
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock()
    }
}

/// How a call to the engine of a step is made.
type Make = fn(&Entrance, &Operation, Arc<dyn Caller>) -> Result<OpId>;

impl Caller for Operation {
    fn answered(self: Arc<Self>, op: OpId, answer: Result<Answer>) {
        self.feed(FIRST_CALL, op, answer);
    }
}

impl Caller for LaterCall {
    fn answered(self: Arc<Self>, op: OpId, answer: Result<Answer>) {
        self.operation.feed(self.call, op, answer);
    }
}

impl Entrance {
    fn take(&self, operation: &Operation, caller: Arc<dyn Caller>) -> Result<OpId> {
        let Timeout { start, patience, .. } = operation.timeout;
        self.shell.submit(caller, |engine, now| {
            let op = match operation.goal {
                Goal::Entry(owner) => engine.acquire(now, self.id, owner, patience),
                Goal::Leases(quantity) => engine.acquire_leases(now, self.id, quantity, patience).0,
            };
            engine.began(op, start);
            op
        })
    }

    fn confirm(&self, operation: &Operation, caller: Arc<dyn Caller>) -> Result<OpId> {
        let Timeout { start, patience, .. } = operation.timeout;
        let owner = operation.owner();
        self.shell.submit(caller, |engine, now| {
            let op = engine.confirm(now, self.id, owner, patience);
            engine.began(op, start);
            op
        })
    }

    fn guard(&self, operation: &Operation, caller: Arc<dyn Caller>) -> Result<OpId> {
        let owner = operation.owner();
        self.shell.guard(caller, |engine, now| engine.guard(now, self.id, owner))
    }

    fn is_safe(&self, owner: Owner) -> bool {
        // Where it can't be asked, the next call says why.
        self.shell.ask(|engine, now| engine.is_safe(now, self.id, owner)).unwrap_or(false)
    }

    /// Releases what was got, also where a multi-lock itself was closed meanwhile.
    fn give_back(&self, owner: Owner) {
        // Fails in a forked child, where there is nothing to do.
        let _ = self.shell.tell(|engine, now| {
            for &lock in self.locks.iter().rev() {
                // Of a semaphore mutex anybody's hold would do; but what was got is not there any more if another released it.
                if engine.hold_of(now, lock, owner).is_some() {
                    engine.release(now, lock, owner, false);
                }
            }
        });
    }

    /// Those that wait for it get CLOSED.
    pub(crate) fn close(&self) {
        let _ = self.shell.tell(|engine, now| engine.close_entrance(now, self.id));
    }

    fn closed(&self) -> Error {
        Error::new(Status::Closed, format!("{}: {}", self.path, Status::Closed.text()))
    }
}

impl Notices {
    /// All that wait now are to be cancelled; the engines are to be told next.
    pub(crate) fn cancel(&self) {
        self.cancels.fetch_add(1, Ordering::SeqCst);
    }

    /// Nobody gets in any more; the engines are to be told next.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }
}

#[cfg(all(test, feature = "loom"))]
mod models;
