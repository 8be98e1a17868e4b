//! Calls in progress: queries, releases and other requests that cannot be canceled. A caller can wait until the call
//! ends, wait for a limited time and repeat this, or await the call as a future. The code in this file does not depend
//! on locks. A call collects the engines' answers, and a closure converts them to the result of the call.

use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tracing::Span;
use zklock_core::engine::Answer;
use zklock_core::error::{Error, Result, Status};

use crate::future::WakerRegistration;
use crate::runtime::{Hook, PendingOp, refuse_in_callback, run_hook};
use crate::span;

/// A call in progress: a query, a release, or another request that cannot be canceled. The call continues if the
/// program drops this value.
///
/// This value is also a future, which any executor can poll. The future resolves to the result of [`wait`](Self::wait).
#[must_use = "a call reports its errors only if the program waits for it or awaits it; drop the call to ignore its errors"]
pub struct Call<T> {
    calls: RefCell<Vec<CallState>>,
    convert: Box<dyn Fn(Vec<Answer>) -> Result<T> + Send>,
    awaiting: WakerRegistration,
    /// The `tracing` span of the call.
    span: Span,
    /// True if the call ends only when another participant changes something, so that a handler must not wait for it.
    waits_for_others: bool,
}

enum CallState {
    Pending(PendingOp),
    Answered(Result<Answer>),
    Taken,
}

impl<T> Call<T> {
    pub(crate) fn new(pending: Vec<PendingOp>, take: impl Fn(Vec<Answer>) -> Result<T> + Send + 'static) -> Self {
        let calls = RefCell::new(pending.into_iter().map(CallState::Pending).collect());
        let (awaiting, span) = (WakerRegistration::default(), Span::none());
        Self { calls, convert: Box::new(take), awaiting, span, waits_for_others: false }
    }

    /// Makes waits for the call fail with DEADLOCK in a handler.
    pub(crate) fn waiting_for_others(self) -> Self {
        Self { waits_for_others: true, ..self }
    }

    /// Sets the `tracing` span of the call. The span ends when the call ends, or when this value is dropped.
    pub(crate) fn within(self, span: Span) -> Self {
        Self { span, ..self }
    }

    /// Waits until the call ends, and returns its result.
    pub fn wait(self) -> Result<T> {
        loop {
            if let Some(result) = self.wait_for(Duration::MAX) {
                return result;
            }
        }
    }

    /// Waits for at most `slice`. Returns `None` if the call has not ended. After this method has returned a result,
    /// the program must not call the method again.
    pub fn wait_for(&self, slice: Duration) -> Option<Result<T>> {
        if self.waits_for_others
            && !self.is_over()
            && let Err(error) = refuse_in_callback(Some(slice))
        {
            return Some(Err(error));
        }
        let end = Instant::now().checked_add(slice);
        let mut answers = self.calls.borrow_mut();
        for answered in answers.iter_mut() {
            if let CallState::Pending(pending) = answered {
                let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
                *answered = CallState::Answered(pending.wait_for(left)?);
            }
        }
        // If several requests failed, this method reports the first failure.
        let taken = answers.iter_mut().map(|answered| match std::mem::replace(answered, CallState::Taken) {
            CallState::Answered(answer) => answer,
            CallState::Pending(_) | CallState::Taken => Err(Error::from(Status::Internal)),
        });
        let result = taken.collect::<Vec<_>>().into_iter().collect::<Result<Vec<_>>>().and_then(&self.convert);
        span::record_outcome(&self.span, &result);
        Some(result)
    }

    /// Returns whether the call has ended. After this method has returned true, the next [`wait_for`](Self::wait_for)
    /// does not wait.
    pub fn is_over(&self) -> bool {
        self.calls.borrow().iter().all(|answered| match answered {
            CallState::Pending(pending) => pending.is_over(),
            CallState::Answered(_) | CallState::Taken => true,
        })
    }

    /// Calls `hook` once when the call has ended. The rules of [`Acquiring::on_done`](crate::Acquiring::on_done) apply
    /// to the hook.
    pub fn on_done(&self, hook: impl FnOnce() + Send + 'static) -> Result<()> {
        let answers = self.calls.borrow();
        let running: Vec<&PendingOp> = answers.iter().filter_map(CallState::pending).collect();
        let last = Arc::new(CompletionCounter {
            left: AtomicUsize::new(running.len()),
            hook: Mutex::new(Some(Box::new(hook))),
        });
        if running.is_empty() {
            last.run();
        }
        running.into_iter().try_for_each(|pending| {
            let last = Arc::clone(&last);
            pending.on_done(Box::new(move || last.count_down()))
        })
    }
}

impl<T> fmt::Debug for Call<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}

impl<T> Future for Call<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut waker = std::mem::take(&mut this.awaiting);
        let end = || if this.is_over() { this.wait_for(Duration::ZERO) } else { None };
        let poll = waker.poll(cx, end, |hook| this.on_done(hook));
        this.awaiting = waker;
        poll
    }
}

impl CallState {
    fn pending(&self) -> Option<&PendingOp> {
        if let Self::Pending(pending) = self { Some(pending) } else { None }
    }
}

/// Runs a hook when the last of several requests is answered.
struct CompletionCounter {
    left: AtomicUsize,
    hook: Mutex<Option<Hook>>,
}

impl CompletionCounter {
    fn count_down(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.run();
        }
    }

    fn run(&self) {
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner).take();
        hook.into_iter().for_each(run_hook);
    }
}
