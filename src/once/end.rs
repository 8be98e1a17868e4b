//! The end of a run: the last write of the run to the record. The write is repeated if no server answers.

use std::sync::Arc;

use zklock_core::error::{Error, Result, Status};

use super::job::{Answer, Job};
use super::record::Record;
use crate::chain::{self, Links, Next};
use crate::operation::Operation;

/// The requests that end a run.
struct End {
    job: Arc<Job>,
    record: Record,
    /// The number of further writes if no server answers.
    repetitions_left: u32,
    step: Step,
}

/// What the answer to the last request means.
enum Step {
    Write,
    /// The answer shows whether an earlier write, whose answer was lost, has written the record.
    Compare,
}

/// Starts writing the record. The operation ends with FOREIGN if another program has changed the record, and with LOST if the
/// hold was lost.
pub(super) fn start(job: &Arc<Job>, record: Record, repetitions: u32) -> Result<Operation<()>> {
    let first = job.write(&record)?;
    let end = End { job: Arc::clone(job), record, repetitions_left: repetitions, step: Step::Write };
    Ok(chain::start(end, first))
}

impl Links for End {
    type Answer = Answer;
    type Output = ();

    fn next(&mut self, answer: Result<Answer>) -> Result<Next<Answer, ()>> {
        let answer = match answer {
            Err(error) if error.status() == Status::Connection && self.repetitions_left > 0 => {
                self.repetitions_left -= 1;
                self.step = Step::Write;
                return Ok(Next::Request(self.job.write(&self.record)?));
            }
            answer => answer?,
        };
        match (&self.step, answer) {
            (Step::Write, Answer::Written(Some(_))) => Ok(Next::End(())),
            (Step::Write, Answer::Written(None)) => {
                self.step = Step::Compare;
                Ok(Next::Request(self.job.read(self.record.path())?))
            }
            (Step::Compare, answer) => {
                let written = Record::parse(self.record.path(), answer.content()?);
                if written.is_ok_and(|written| written.has_same_run(&self.record)) {
                    return Ok(Next::End(()));
                }
                let message = format!("another program has changed the record {}", self.record.path());
                Err(Error::new(Status::Foreign, message))
            }
            _ => Err(Status::Internal.into()),
        }
    }
}
