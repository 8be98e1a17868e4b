//! Requests in progress: queries, releases and other requests that cannot be canceled. The code in this file does not
//! depend on locks. A request collects the engines' answers, and a closure converts them to the result.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::Span;
use zklock_core::engine::Answer;
use zklock_core::error::{Result, Status};

use crate::operation::{InProgress, Operation};
use crate::runtime::{Hook, PendingOp, refuse_in_callback, run_hook};
use crate::span;

/// The work of a request. The request continues if the program drops its operation.
pub(crate) struct Request<F> {
    pending: Vec<PendingOp>,
    convert: F,
    /// The `tracing` span of the request.
    span: Span,
    /// True if the request ends only when another participant changes something, so that a handler must not wait for it.
    waits_for_others: bool,
}

impl<F> Request<F> {
    /// Makes a request of engine operations that have started. `convert` makes the result from their answers.
    pub(crate) fn new<T>(pending: Vec<PendingOp>, convert: F) -> Self
    where
        F: Fn(Vec<Answer>) -> Result<T> + Send + Sync + 'static,
    {
        Self { pending, convert, span: Span::none(), waits_for_others: false }
    }

    /// Makes waits for the request fail with DEADLOCK in a handler.
    pub(crate) fn waiting_for_others(self) -> Self {
        Self { waits_for_others: true, ..self }
    }

    /// Sets the `tracing` span of the request. The span ends when the request ends, or when the operation is dropped.
    pub(crate) fn within(self, span: Span) -> Self {
        Self { span, ..self }
    }

    pub(crate) fn into_operation<T>(self) -> Operation<T>
    where
        F: Fn(Vec<Answer>) -> Result<T> + Send + Sync + 'static,
    {
        Operation::new(self)
    }

    fn wait_for_answers(&self, slice: Duration) -> Option<Result<Vec<Answer>>> {
        if self.waits_for_others
            && !self.pending.iter().all(PendingOp::is_over)
            && let Err(error) = refuse_in_callback(Some(slice))
        {
            return Some(Err(error));
        }
        let end = Instant::now().checked_add(slice);
        let left = || end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        // If several requests failed, this method reports the first failure.
        let answers = self.pending.iter().map(|pending| pending.wait_for(left())).collect::<Option<Vec<_>>>()?;
        Some(answers.into_iter().collect())
    }
}

impl<T, F: Fn(Vec<Answer>) -> Result<T> + Send + Sync> InProgress<T> for Request<F> {
    fn wait_for(&self, slice: Duration) -> Option<Result<T>> {
        let result = self.wait_for_answers(slice)?.and_then(&self.convert);
        span::record_outcome(&self.span, &result);
        Some(result)
    }

    fn is_over(&self) -> bool {
        self.pending.iter().all(PendingOp::is_over)
    }

    fn on_done(&self, hook: Hook) -> Result<()> {
        let last =
            Arc::new(CompletionCounter { left: AtomicUsize::new(self.pending.len()), hook: Mutex::new(Some(hook)) });
        if self.pending.is_empty() {
            last.run();
        }
        self.pending.iter().try_for_each(|pending| {
            let last = Arc::clone(&last);
            pending.on_done(Box::new(move || last.count_down()))
        })
    }

    fn cancel(&self) -> Result<()> {
        Ok(())
    }

    fn abandon(&self) {
        for pending in &self.pending {
            pending.give_up(Status::Closed.into());
        }
    }

    fn finish(self: Box<Self>) -> Result<T> {
        let answers = loop {
            if let Some(answers) = self.wait_for_answers(Duration::MAX) {
                break answers;
            }
        };
        let Self { pending, convert, span, .. } = *self;
        // The conversion then takes the answer itself. A copy of a long list would need much memory.
        drop(pending);
        let result = answers.and_then(convert);
        span::record_outcome(&span, &result);
        result
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
