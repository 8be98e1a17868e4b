//! Chains of requests: operations in which the answer to each request decides which request follows. The thread that
//! receives an answer starts the next request. This thread can be a calling thread or the I/O thread. The code in this
//! file does not depend on locks. [`Links`] decides which request follows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zklock_core::error::{Error, Result, Status};
use zklock_process::ForkEpoch;

use crate::operation::{InProgress, Operation};
use crate::runtime::{Completion, Hook, Outcome};

/// The decisions of a chain.
pub(crate) trait Links: Send + Sync + 'static {
    /// The answer to each request.
    type Answer: Send + 'static;
    /// The result of the chain.
    type Output: Clone + Send + 'static;

    /// Handles the answer to the last request. An error ends the chain.
    fn next(&mut self, answer: Result<Self::Answer>) -> Result<Next<Self::Answer, Self::Output>>;

    /// Returns the error with which a canceled chain ends at once, or `None` if the chain must wait for the next answer.
    fn cancel(&self) -> Option<Error> {
        None
    }
}

/// What a chain does after an answer.
pub(crate) enum Next<A, T> {
    Request(Operation<A>),
    End(T),
}

/// Starts a chain, whose first request has started. If the program drops the operation, the library cancels the chain.
pub(crate) fn start<L: Links>(links: L, first: Operation<L::Answer>) -> Operation<L::Output> {
    let progress = Completion::new(Progress { current: None, result: None, is_canceled: false });
    let chain = Arc::new(Chain { progress, epoch: ForkEpoch::current() });
    chain.continue_with(links, first);
    Operation::new(ChainWork(chain))
}

struct Chain<L: Links> {
    progress: Completion<Progress<L>>,
    epoch: ForkEpoch,
}

struct Progress<L: Links> {
    /// The field is `None` while a thread decides and starts the next request, and after the last answer.
    current: Option<(L, Arc<Operation<L::Answer>>)>,
    result: Option<Result<L::Output>>,
    is_canceled: bool,
}

impl<L: Links> Outcome for Progress<L> {
    fn has_ended(&self) -> bool {
        self.result.is_some()
    }
}

impl<L: Links> Chain<L> {
    /// Waits for the answer to a request in the background.
    fn continue_with(self: &Arc<Self>, links: L, request: Operation<L::Answer>) {
        let request = Arc::new(request);
        let mut progress = self.progress.lock();
        if let Some(error) = links.cancel().filter(|_| progress.is_canceled) {
            drop(progress);
            return self.end(Err(error));
        }
        progress.current = Some((links, Arc::clone(&request)));
        drop(progress);
        self.progress.notify();
        let chain = Arc::clone(self);
        // In a forked child, this call fails, and nothing follows.
        let _ = request.on_done(move || chain.advance());
    }

    /// Continues if the last request has its answer. No lock is held while the links decide, because the start of a request
    /// can run hooks of other operations.
    fn advance(self: &Arc<Self>) {
        let mut progress = self.progress.lock();
        let Some((mut links, request)) = progress.current.take_if(|(_, request)| request.is_over()) else { return };
        drop(progress);
        let answer = request.wait_for(Duration::ZERO).unwrap_or_else(|| Err(Status::Internal.into()));
        match links.next(answer) {
            Ok(Next::Request(request)) => self.continue_with(links, request),
            Ok(Next::End(output)) => self.end(Ok(output)),
            Err(error) => self.end(Err(error)),
        }
    }

    /// Ends the chain with this result, unless it has already ended. The result is dropped only after the state is unlocked.
    fn end(&self, result: Result<L::Output>) {
        let mut progress = self.progress.lock();
        if !progress.has_ended() {
            progress.result = Some(result);
            self.progress.end(progress);
        }
    }
}

/// The operation of a chain. The requests of the chain continue if the program drops this value.
struct ChainWork<L: Links>(Arc<Chain<L>>);

impl<L: Links> InProgress<L::Output> for ChainWork<L> {
    fn wait_for(&self, slice: Duration) -> Option<Result<L::Output>> {
        let end = Instant::now().checked_add(slice);
        let left = || end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        loop {
            // In a forked child, another thread of the parent may have locked the state.
            if let Err(forked) = self.0.epoch.check() {
                return Some(Err(forked));
            }
            let progress = self.0.progress.lock();
            if let Some(result) = &progress.result {
                return Some(result.clone());
            }
            if let Some((_, request)) = &progress.current {
                let request = Arc::clone(request);
                drop(progress);
                // The answer of a request remains after the end of the wait.
                let _ = request.wait_for(left())?;
                self.0.advance();
            } else if left().is_zero() {
                return None;
            } else {
                drop(self.0.progress.wait(progress, left()));
            }
        }
    }

    fn is_over(&self) -> bool {
        self.0.epoch.check().is_err() || self.0.progress.has_ended()
    }

    fn on_done(&self, hook: Hook) -> Result<()> {
        self.0.epoch.check()?;
        self.0.progress.on_done(hook);
        Ok(())
    }

    fn cancel(&self) -> Result<()> {
        self.0.epoch.check()?;
        let mut progress = self.0.progress.lock();
        progress.is_canceled = true;
        let Some(error) = progress.current.as_ref().and_then(|(links, _)| links.cancel()) else { return Ok(()) };
        let canceled = progress.current.take();
        drop(progress);
        self.0.end(Err(error));
        drop(canceled);
        Ok(())
    }

    fn abandon(&self) {
        // In a forked child, the chain has nothing to cancel.
        if self.cancel().is_ok() {
            self.0.end(Err(Status::Closed.into()));
        }
    }
}

impl<L: Links> Drop for ChainWork<L> {
    fn drop(&mut self) {
        self.abandon();
    }
}

#[cfg(all(test, zklock_loom))]
mod models;
