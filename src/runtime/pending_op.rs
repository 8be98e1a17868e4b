//! A pending operation is an engine operation that has no answer yet. A thread can wait for the answer. This thread
//! itself checks the deadline, and reads the socket if the shell allows it. The code in this file does not depend on
//! locks or sessions.

use std::sync::Arc;
use std::time::Duration;

use zklock_core::engine::{Answer, Engine, OpId};
use zklock_core::error::{Error, Result};
use zklock_core::time::Time;
use zklock_core::wait::{Wait, WaitStep};

use super::callback::Hook;
use super::clock;
use super::completion::Completion;
use super::shell::{AnswerHandler, Shell};

/// The answer of one operation. Any number of threads can wait for it, and each receives the same answer.
pub(super) type AnswerSlot = Completion<Option<Result<Answer>>>;

impl AnswerHandler for AnswerSlot {
    fn on_answer(self: Arc<Self>, _: OpId, answer: Result<Answer>) {
        self.complete(answer);
    }
}

/// A started operation, which keeps its answer.
pub(crate) struct PendingOp {
    pub(super) shell: Arc<Shell>,
    pub(super) op: OpId,
    pub(super) slot: Arc<AnswerSlot>,
    deadline: Option<Time>,
}

impl PendingOp {
    /// Starts an operation.
    pub(crate) fn start(
        shell: &Arc<Shell>,
        deadline: Option<Time>,
        submit: impl FnOnce(&mut Engine, Time) -> OpId,
    ) -> Result<Self> {
        let slot = Arc::new(AnswerSlot::default());
        let op = shell.submit(Arc::clone(&slot) as Arc<dyn AnswerHandler>, submit)?;
        Ok(Self { shell: Arc::clone(shell), op, slot, deadline })
    }

    /// Sets the deadline of the operation, and returns the operation.
    pub(crate) fn with_deadline(self, deadline: Time) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Runs `hook` when the answer has arrived, on the thread that received the answer. If the answer has already
    /// arrived, the calling thread runs `hook` at once.
    pub(crate) fn on_done(&self, hook: Hook) -> Result<()> {
        self.shell.check_process()?;
        self.slot.on_done(hook);
        Ok(())
    }

    /// Ends the operation with this error for the threads that wait for it. The request to the servers continues. Returns
    /// false if the operation already has its answer, or if this process is a forked child.
    pub(crate) fn give_up(&self, error: Error) -> bool {
        self.shell.check_process().is_ok() && self.slot.complete(Err(error))
    }

    /// Returns true if the answer has arrived, or if it can never arrive because this process is a forked child.
    pub(crate) fn is_over(&self) -> bool {
        self.shell.check_process().is_err() || self.slot.has_ended()
    }

    /// Waits for the answer. The waiting thread itself checks the deadline, so the wait does not depend on the I/O
    /// thread.
    pub(crate) fn wait(&self) -> Result<Answer> {
        loop {
            if let Some(answer) = self.wait_for(Duration::MAX) {
                return answer;
            }
        }
    }

    /// Waits at most `slice` for the answer. Returns `None` if the operation has not ended.
    pub(crate) fn wait_for(&self, slice: Duration) -> Option<Result<Answer>> {
        let mut wait = Wait::new(clock::now(), slice, self.deadline);
        loop {
            if let Err(forked) = self.shell.check_process() {
                return Some(Err(forked));
            }
            if let Some(answer) = self.slot.wait_for(Duration::ZERO) {
                return Some(answer);
            }
            match wait.next_step(clock::now(), Some(self.op)) {
                // If the operation has already ended, another thread has received its answer. That thread will put the
                // answer into the slot at once.
                WaitStep::Expire(op) if self.shell.expire_op(op) => return self.slot.wait_for(Duration::MAX),
                WaitStep::Expire(_) => {}
                WaitStep::Read(op, limit) => match self.shell.read_until_answered(op, limit) {
                    true => wait.has_waited(limit),
                    false => wait.sleep_for(op),
                },
                WaitStep::Sleep(limit) => match self.slot.wait_for(limit) {
                    Some(answer) => return Some(answer),
                    None => wait.has_waited(limit),
                },
                WaitStep::Stop => return None,
            }
        }
    }
}
