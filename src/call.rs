//! Calls in progress: queries, releases and other requests that cannot be canceled. A caller can wait until the call
//! ends, wait for a limited time and repeat this, or await the call as a future. The code in this file does not depend
//! on locks. A call collects the engines' answers, and a closure converts them to the result of the call.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tracing::Span;
use zklock_core::engine::Answer;
use zklock_core::error::Result;

use crate::future::WakerRegistration;
use crate::runtime::{Hook, PendingOp, refuse_in_callback, run_hook};
use crate::span;

/// A call in progress: a query, a release, or another request that cannot be canceled. The call continues if the
/// program drops this value.
///
/// This value is also a future, which any executor can poll. The future resolves to the result of [`wait`](Self::wait).
#[must_use = "a call reports its errors only if the program waits for it or awaits it; drop the call to ignore its errors"]
pub struct Call<T> {
    calls: Vec<PendingOp>,
    convert: Box<dyn Fn(Vec<Answer>) -> Result<T> + Send + Sync>,
    awaiting: WakerRegistration,
    /// The `tracing` span of the call.
    span: Span,
    /// True if the call ends only when another participant changes something, so that a handler must not wait for it.
    waits_for_others: bool,
}

impl<T> Call<T> {
    pub(crate) fn new(calls: Vec<PendingOp>, take: impl Fn(Vec<Answer>) -> Result<T> + Send + Sync + 'static) -> Self {
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
        let answers = loop {
            if let Some(answers) = self.wait_for_answers(Duration::MAX) {
                break answers;
            }
        };
        let Self { calls, convert, span, .. } = self;
        // The conversion then takes the answer itself. A copy of a long list would need much memory.
        drop(calls);
        let result = answers.and_then(convert);
        span::record_outcome(&span, &result);
        result
    }

    /// Waits for at most `slice`. Returns `None` if the call has not ended. After the call has ended, this method returns
    /// the same result each time, to any number of threads.
    pub fn wait_for(&self, slice: Duration) -> Option<Result<T>> {
        let result = self.wait_for_answers(slice)?.and_then(&self.convert);
        span::record_outcome(&self.span, &result);
        Some(result)
    }

    fn wait_for_answers(&self, slice: Duration) -> Option<Result<Vec<Answer>>> {
        if self.waits_for_others
            && !self.is_over()
            && let Err(error) = refuse_in_callback(Some(slice))
        {
            return Some(Err(error));
        }
        let end = Instant::now().checked_add(slice);
        let left = || end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        // If several requests failed, this method reports the first failure.
        let answers = self.calls.iter().map(|pending| pending.wait_for(left())).collect::<Option<Vec<_>>>()?;
        Some(answers.into_iter().collect())
    }

    /// Returns whether the call has ended. After this method has returned true, the next [`wait_for`](Self::wait_for)
    /// does not wait.
    pub fn is_over(&self) -> bool {
        self.calls.iter().all(PendingOp::is_over)
    }

    /// Calls `hook` once when the call has ended. The rules of [`Acquiring::on_done`](crate::Acquiring::on_done) apply
    /// to the hook.
    pub fn on_done(&self, hook: impl FnOnce() + Send + 'static) -> Result<()> {
        let last = Arc::new(CompletionCounter {
            left: AtomicUsize::new(self.calls.len()),
            hook: Mutex::new(Some(Box::new(hook))),
        });
        if self.calls.is_empty() {
            last.run();
        }
        self.calls.iter().try_for_each(|pending| {
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
