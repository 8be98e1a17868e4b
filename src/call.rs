//! Calls under way: what a caller waits for, in one go or in slices.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::engine::{Answer, Owner};
use crate::error::{Error, Result, Status};
use crate::lock::{Part, Timeout};
use crate::runtime::Pending;

/// A call under way that nothing can undo, or that asks something. Dropped unfinished, it goes on by itself.
pub struct Call<T> {
    answers: RefCell<Vec<Answered>>,
    take: Box<dyn Fn(Vec<Answer>) -> Result<T> + Send>,
}

enum Answered {
    Not(Pending),
    With(Result<Answer>),
    Taken,
}

impl<T> Call<T> {
    pub(crate) fn new(pending: Vec<Pending>, take: impl Fn(Vec<Answer>) -> Result<T> + Send + 'static) -> Self {
        Self { answers: RefCell::new(pending.into_iter().map(Answered::Not).collect()), take: Box::new(take) }
    }

    /// Waits for its end.
    pub fn wait(self) -> Result<T> {
        loop {
            if let Some(result) = self.wait_for(Duration::MAX) {
                return result;
            }
        }
    }

    /// Waits `slice` at most; `None` if it has not ended by then. Not to be called again after it has.
    pub fn wait_for(&self, slice: Duration) -> Option<Result<T>> {
        let end = Instant::now().checked_add(slice);
        let mut answers = self.answers.borrow_mut();
        for answered in answers.iter_mut() {
            if let Answered::Not(pending) = answered {
                let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
                *answered = Answered::With(pending.wait_for(left)?);
            }
        }
        // The first that failed is the one that is told.
        let taken = answers.iter_mut().map(|answered| match std::mem::replace(answered, Answered::Taken) {
            Answered::With(answer) => answer,
            Answered::Not(_) | Answered::Taken => Err(Error::from(Status::Internal)),
        });
        Some(taken.collect::<Vec<_>>().into_iter().collect::<Result<Vec<_>>>().and_then(&self.take))
    }
}

/// An acquire under way. Dropped unfinished, it is cancelled, and released if it had just won.
pub struct Acquiring {
    parts: Arc<[Part]>,
    owner: Owner,
    timeout: Timeout,
    /// How often the lock's waiters were cancelled: by now, and before this one began to wait.
    cancels: Arc<AtomicU64>,
    cancels_before: u64,
    progress: RefCell<Progress>,
}

struct Progress {
    /// So many parts are acquired.
    got: usize,
    /// The one that is being acquired.
    current: Option<Pending>,
}

impl Acquiring {
    pub(crate) fn start(parts: Arc<[Part]>, owner: Owner, timeout: Timeout, cancels: Arc<AtomicU64>) -> Result<Self> {
        let cancels_before = cancels.load(Ordering::SeqCst);
        let first = parts.first().ok_or(Status::Internal)?.acquire(owner, timeout)?;
        let progress = RefCell::new(Progress { got: 0, current: Some(first) });
        Ok(Self { parts, owner, timeout, cancels, cancels_before, progress })
    }

    /// Waits for the lock.
    pub fn wait(self) -> Result<()> {
        loop {
            if let Some(result) = self.wait_for(Duration::MAX) {
                return result;
            }
        }
    }

    /// Waits `slice` at most; `None` if it is not decided by then. Not to be called again after it was.
    pub fn wait_for(&self, slice: Duration) -> Option<Result<()>> {
        let end = Instant::now().checked_add(slice);
        let mut progress = self.progress.borrow_mut();
        loop {
            let Some(pending) = &progress.current else { return Some(Err(Status::Internal.into())) };
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            let answer = pending.wait_for(left)?;
            progress.current = None;
            let next = match answer {
                Ok(_) => {
                    progress.got += 1;
                    match self.parts.get(progress.got) {
                        None if progress.got == 1 => return Some(Ok(())),
                        // What was got first may be closed by now.
                        None => match self.parts.iter().try_for_each(|part| part.ask(|_, _| ())) {
                            Ok(()) => return Some(Ok(())),
                            Err(error) => Err(error),
                        },
                        Some(part) => part.acquire(self.owner, self.timeout),
                    }
                }
                Err(error) => Err(error),
            };
            match next {
                Ok(pending) => {
                    // While nobody waited for a part, there was nothing to cancel.
                    if self.cancels.load(Ordering::SeqCst) != self.cancels_before {
                        pending.cancel();
                    }
                    progress.current = Some(pending);
                }
                Err(error) => {
                    self.roll_back(&mut progress);
                    return Some(Err(error));
                }
            }
        }
    }

    /// Gives back what was got, the last first.
    fn roll_back(&self, progress: &mut Progress) {
        for part in self.parts.iter().take(progress.got).rev() {
            part.give_back(self.owner);
        }
        progress.got = 0;
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        let mut progress = self.progress.borrow_mut();
        let Some(pending) = progress.current.take() else { return };
        if self.parts.first().is_none_or(|part| part.session.shell.check().is_err()) {
            return;
        }
        pending.cancel();
        progress.got += usize::from(pending.wait().is_ok());
        self.roll_back(&mut progress);
    }
}
