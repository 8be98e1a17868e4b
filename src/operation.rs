//! Acquires under way. They go on by themselves: whoever an answer finds, a calling thread or the I/O thread, takes the next step, and
//! who waits only looks. So it is the same whether anybody waits.
//!
//! A mutex is one step, and so are a multi-lock that is joined in one transaction, and leases. Other multi-locks are several, in the
//! order of their parts; if one fails, what was got is given back, the last first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tracing::Span;

use crate::engine::{Answer, Engine, LockId, OpId, Owner};
use crate::error::{Error, Result, Status};
use crate::lock::Timeout;
use crate::runtime::{Caller, Hook, Monitor, MutexGuard, Shell, now, run};
use crate::session::ClientState;
use crate::span;

/// An acquire under way.
pub(crate) struct Operation {
    steps: Arc<[Entrance]>,
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
    /// So many steps are done.
    got: usize,
    stage: Stage,
    claim: Claim,
    /// Whose it is when it is got.
    owner: Owner,
    hooks: Vec<Hook>,
    /// For those who trace, until it is over.
    span: Span,
}

enum Stage {
    /// A step has been begun, and this call is not answered.
    Waiting(OpId),
    /// A thread is at it. The answer to the step that it begins may come before it is done with that.
    Busy(Option<(OpId, Result<Answer>)>),
    Done(Result<()>),
}

/// What the program wants of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    Wanted,
    Canceled,
    /// It was told that it has it.
    Kept,
    /// It will not hear of it any more.
    Abandoned,
}

impl Operation {
    /// Begins the first step, and goes on by itself.
    pub(crate) fn start(
        steps: &Arc<[Entrance]>,
        goal: Goal,
        timeout: Timeout,
        notices: &Arc<Notices>,
        span: Span,
    ) -> Result<Arc<Self>> {
        steps.first().ok_or(Status::Internal)?.shell.check()?;
        let owner = match goal {
            Goal::Entry(owner) => owner,
            Goal::Leases(_) => Owner::Leases(0),
        };
        let (got, stage, claim, hooks) = (0, Stage::Busy(None), Claim::Wanted, Vec::new());
        let operation = Arc::new(Self {
            steps: Arc::clone(steps),
            goal,
            timeout,
            notices: Arc::clone(notices),
            cancels_before: notices.cancels.load(Ordering::SeqCst),
            progress: Monitor::new(Progress { got, stage, claim, owner, hooks, span }),
        });
        operation.go_on();
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
            let at = progress.got;
            match progress.stage {
                Stage::Waiting(op) if left.is_zero() && told != Some(at) => {
                    told = Some(at);
                    drop(progress);
                    // Whoever has the answer, this thread or another, notifies those who wait.
                    self.with_step(at, |step| {
                        step.shell.expire(op);
                    });
                    continue;
                }
                _ if left_of_slice.is_zero() => return None,
                _ => {}
            }
            // Once the deadline has passed, who is at it will be done with it in a moment.
            let limit = if left.is_zero() { left_of_slice } else { left.min(left_of_slice) };
            match progress.stage {
                Stage::Waiting(op) if read != Some(op) => {
                    drop(progress);
                    let limit = (limit < Duration::MAX).then_some(limit);
                    self.with_step(at, |step| {
                        // Where another thread reads, this one is notified.
                        read = (!step.shell.read_for(op, limit)).then_some(op);
                    });
                }
                _ => drop(self.progress.wait(progress, limit)),
            }
        }
    }

    /// Gives it up; it ends at once, and with a success where that was just quicker.
    pub(crate) fn cancel(&self) -> Result<()> {
        self.check()?;
        let mut progress = self.lock();
        if progress.claim == Claim::Wanted {
            progress.claim = Claim::Canceled;
            self.cancel_step(progress);
        }
        Ok(())
    }

    /// Gives it up, and gives back what nobody was told of. Whoever waits for it hears CLOSED.
    pub(crate) fn abandon(&self) {
        // In a forked child there is nothing to do.
        if self.check().is_err() {
            return;
        }
        let mut progress = self.lock();
        match (&progress.stage, progress.claim) {
            (Stage::Done(Err(_)), _) | (_, Claim::Kept | Claim::Abandoned) => return,
            _ => progress.claim = Claim::Abandoned,
        }
        let hooks = std::mem::take(&mut progress.hooks);
        self.progress.notify();
        match progress.stage {
            Stage::Done(_) => self.fail(progress, self.closed()),
            Stage::Waiting(_) | Stage::Busy(_) => self.cancel_step(progress),
        }
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
        self.steps.first().map_or(Ok(()), |step| step.shell.check())
    }

    // Steps.

    /// Begins one step after the other, until one has to be waited for. To be called by the one thread that is at it.
    fn go_on(self: &Arc<Self>) {
        loop {
            let at = self.lock().got;
            let begun = match self.steps.get(at) {
                // Before its answer: a look may be over before anybody can close it.
                Some(step) if self.notices.is_closed() => Err(step.closed()),
                Some(step) => step.begin(self).map(Some),
                None => self.check_all().map(|()| None),
            };
            let mut progress = self.lock();
            match begun {
                Ok(Some(op)) => match std::mem::replace(&mut progress.stage, Stage::Busy(None)) {
                    Stage::Busy(Some((op, answer))) => {
                        if let Err(error) = progress.take(op, answer, self.goal) {
                            return self.fail(progress, error);
                        }
                    }
                    _ => {
                        progress.stage = Stage::Waiting(op);
                        self.progress.notify();
                        return self.catch_up(progress, op);
                    }
                },
                Ok(None) => return self.end(progress, Ok(())),
                Err(error) => return self.fail(progress, error),
            }
        }
    }

    /// While no step waited, there was nothing to cancel and nobody to wake.
    fn catch_up(&self, progress: MutexGuard<'_, Progress>, op: OpId) {
        let (at, claim) = (progress.got, progress.claim);
        drop(progress);
        if self.notices.is_closed() {
            self.with_step(at, Entrance::close);
        }
        let is_canceled = self.notices.cancels.load(Ordering::SeqCst) != self.cancels_before;
        if is_canceled || matches!(claim, Claim::Canceled | Claim::Abandoned) {
            self.with_step(at, |step| step.shell.cancel(op));
        }
    }

    /// What was got first may be closed by now.
    fn check_all(&self) -> Result<()> {
        match &*self.steps {
            [_] => Ok(()),
            steps => steps.iter().try_for_each(Entrance::check_open),
        }
    }

    fn fail(&self, mut progress: MutexGuard<'_, Progress>, error: Error) {
        let (got, owner) = (std::mem::take(&mut progress.got), progress.owner);
        drop(progress);
        self.give_back(got, owner);
        self.end(self.lock(), Err(error));
    }

    fn end(&self, mut progress: MutexGuard<'_, Progress>, result: Result<()>) {
        if progress.claim == Claim::Abandoned && result.is_ok() {
            // It had just won.
            return self.fail(progress, self.closed());
        }
        let span = std::mem::replace(&mut progress.span, Span::none());
        let traced = (!span.is_disabled()).then(|| result.clone());
        progress.stage = Stage::Done(result);
        let hooks = std::mem::take(&mut progress.hooks);
        // First the lock: who wakes needs it, and would have to sleep again.
        drop(progress);
        self.progress.notify();
        hooks.into_iter().for_each(run);
        if let Some(result) = traced {
            span::acquired(&span, &self.timeout, &result);
        }
    }

    fn give_back(&self, got: usize, owner: Owner) {
        self.steps.iter().take(got).rev().for_each(|step| step.give_back(owner));
    }

    fn cancel_step(&self, progress: MutexGuard<'_, Progress>) {
        let Stage::Waiting(op) = progress.stage else { return };
        let at = progress.got;
        drop(progress);
        self.with_step(at, |step| step.shell.cancel(op));
    }

    fn with_step(&self, at: usize, order: impl FnOnce(&Entrance)) {
        if let Some(step) = self.steps.get(at) {
            order(step);
        }
    }

    fn look(&self, progress: &mut Progress, keeps: bool) -> Option<Result<()>> {
        match &progress.stage {
            _ if progress.claim == Claim::Abandoned => Some(Err(self.closed())),
            Stage::Waiting(_) | Stage::Busy(_) => None,
            Stage::Done(result) => {
                if keeps && result.is_ok() {
                    progress.claim = Claim::Kept;
                }
                Some(result.clone())
            }
        }
    }

    fn closed(&self) -> Error {
        let path = self.steps.first().map_or("", |step| &step.path);
        Error::new(Status::Closed, format!("{path}: the acquire was given up, and its handle is closed"))
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock()
    }
}

impl Caller for Operation {
    fn answered(self: Arc<Self>, op: OpId, answer: Result<Answer>) {
        let mut progress = self.lock();
        match &mut progress.stage {
            Stage::Busy(arrived) => *arrived = Some((op, answer)),
            Stage::Done(_) => {}
            Stage::Waiting(_) => {
                progress.stage = Stage::Busy(None);
                match progress.take(op, answer, self.goal) {
                    Err(error) => self.fail(progress, error),
                    Ok(()) => {
                        drop(progress);
                        self.go_on();
                    }
                }
            }
        }
    }
}

impl Progress {
    fn take(&mut self, op: OpId, answer: Result<Answer>, goal: Goal) -> Result<()> {
        answer?;
        self.got += 1;
        if let Goal::Leases(_) = goal {
            self.owner = Owner::Leases(op);
        }
        Ok(())
    }
}

impl Entrance {
    fn begin(&self, operation: &Arc<Operation>) -> Result<OpId> {
        let Timeout { start, patience, .. } = operation.timeout;
        let caller = Arc::clone(operation) as Arc<dyn Caller>;
        self.shell.submit(caller, |engine, now| {
            let op = match operation.goal {
                Goal::Entry(owner) => engine.acquire(now, self.id, owner, patience),
                Goal::Leases(quantity) => engine.acquire_leases(now, self.id, quantity, patience).0,
            };
            engine.began(op, start);
            op
        })
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

    fn check_open(&self) -> Result<()> {
        let is_open = |engine: &Engine, _| engine.is_open(self.id) && engine.state() != ClientState::Closed;
        match self.shell.ask(is_open)? {
            true => Ok(()),
            false => Err(self.closed()),
        }
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
