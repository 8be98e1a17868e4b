//! Calls under way: what a caller waits for, in one go or in slices.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::Span;

use crate::engine::Answer;
use crate::error::{Error, Result, Status};
use crate::lock::Part;
use crate::operation::Operation;
use crate::runtime::{Hook, Pending, run};
use crate::span;

/// A call under way that nothing can undo, or that asks something. Dropped unfinished, it goes on by itself.
pub struct Call<T> {
    answers: RefCell<Vec<Answered>>,
    take: Box<dyn Fn(Vec<Answer>) -> Result<T> + Send>,
    /// For those who trace.
    span: Span,
}

enum Answered {
    Not(Pending),
    With(Result<Answer>),
    Taken,
}

impl<T> Call<T> {
    pub(crate) fn new(pending: Vec<Pending>, take: impl Fn(Vec<Answer>) -> Result<T> + Send + 'static) -> Self {
        let answers = RefCell::new(pending.into_iter().map(Answered::Not).collect());
        Self { answers, take: Box::new(take), span: Span::none() }
    }

    /// The span that ends with it, or is dropped with it where nobody waits for its end.
    pub(crate) fn within(self, span: Span) -> Self {
        Self { span, ..self }
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
        let result = taken.collect::<Vec<_>>().into_iter().collect::<Result<Vec<_>>>().and_then(&self.take);
        span::ended(&self.span, &result);
        Some(result)
    }

    /// Whether it has ended: the next [`wait_for`](Self::wait_for) does not wait.
    pub fn is_over(&self) -> bool {
        self.answers.borrow().iter().all(|answered| match answered {
            Answered::Not(pending) => pending.is_over(),
            Answered::With(_) | Answered::Taken => true,
        })
    }

    /// Has `hook` called once when it has ended, as [`Acquiring::on_done`].
    pub fn on_done(&self, hook: impl FnOnce() + Send + 'static) -> Result<()> {
        let answers = self.answers.borrow();
        let running: Vec<&Pending> = answers.iter().filter_map(Answered::pending).collect();
        let last = Arc::new(Last { left: AtomicUsize::new(running.len()), hook: Mutex::new(Some(Box::new(hook))) });
        if running.is_empty() {
            last.run();
        }
        running.into_iter().try_for_each(|pending| {
            let last = Arc::clone(&last);
            pending.on_done(Box::new(move || last.count()))
        })
    }
}

impl Answered {
    fn pending(&self) -> Option<&Pending> {
        if let Self::Not(pending) = self { Some(pending) } else { None }
    }
}

/// Runs a hook when the last of several calls is answered.
struct Last {
    left: AtomicUsize,
    hook: Mutex<Option<Hook>>,
}

impl Last {
    fn count(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.run();
        }
    }

    fn run(&self) {
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner).take();
        hook.into_iter().for_each(run);
    }
}

/// An acquire under way, which goes on by itself. Dropped before it was told to have succeeded, it is cancelled, and released if it had
/// just won. All methods may be called from any thread, and as often as one likes.
pub struct Acquiring {
    operation: Arc<Operation>,
    /// They stay in service as long as this is not dropped.
    _parts: Arc<[Part]>,
}

impl Acquiring {
    pub(crate) fn new(operation: Arc<Operation>, parts: Arc<[Part]>) -> Self {
        Self { operation, _parts: parts }
    }

    /// Waits for the lock.
    pub fn wait(self) -> Result<()> {
        loop {
            if let Some(result) = self.wait_for(Duration::MAX) {
                return result;
            }
        }
    }

    /// Waits `slice` at most, or not at all where it is zero; `None` if it is not decided by then. With `Ok` the hold is the owner's,
    /// and dropping this changes nothing any more. In a callback it is DEADLOCK where it would have to wait.
    pub fn wait_for(&self, slice: Duration) -> Option<Result<()>> {
        self.operation.wait_for(slice, true)
    }

    /// The same, but that a hold is not the owner's yet: dropping this gives it back.
    pub fn look_for(&self, slice: Duration) -> Option<Result<()>> {
        self.operation.wait_for(slice, false)
    }

    /// Ends it, with CANCELED unless it is just succeeding.
    pub fn cancel(&self) -> Result<()> {
        self.operation.cancel()
    }

    /// Has `hook` called once when it is over, however it ended: by the thread that finds it so, with no lock held, and at once where it
    /// is over now. The thread is often the one that serves all clients: the hook is to do next to nothing, like writing to a descriptor
    /// ([`EventFd`](crate::EventFd)). Where it would wait for a lock that is DEADLOCK, as in a callback, and it must not wait for anything else. A
    /// client that is closed by the thread that serves all, or has its last user there, ends in the background.
    pub fn on_done(&self, hook: impl FnOnce() + Send + 'static) -> Result<()> {
        self.operation.on_done(Box::new(hook))
    }

    /// What dropping it does. Who waits for it elsewhere hears CLOSED.
    pub fn abandon(&self) {
        self.operation.abandon();
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        self.abandon();
    }
}
