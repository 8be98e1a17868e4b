//! The beginning of a run: the decision whether the job runs, and the entry in the record.

use std::sync::Arc;

use zklock_core::error::{Error, Result, Status};

use super::job::{Answer, Job, wall_time};
use super::participant;
use super::period::Period;
use super::record::{PastRun, Record, RunResult, counting_run, record_path};
use super::run::Run;
use crate::chain::{self, Links, Next};
use crate::hold::Hold;
use crate::operation::Operation;

/// Whether the program runs its job in this period ([`Hold::begin_run`]).
#[derive(Debug, Clone)]
pub enum RunStart {
    /// The program runs the job, and then ends the run.
    Run(Run),
    /// The job has already run in this period, or in a later period according to the clock of another host. The value is
    /// the last run.
    Skip(PastRun),
}

impl Hold {
    /// Begins a run of the job of this lock, unless the job has already run in this period. The record of runs is the data
    /// of the node `<path>-runs`, which the command `zklock run --once-per` also uses. For a multi-lock, the path is that
    /// of its first member lock. The servers write the record only while this hold exists.
    ///
    /// By default, a run that failed or was interrupted also counts. If `retry_failed` is true, the call begins the
    /// run again. A run counts as interrupted if the program does not end it: the process died, lost its lock, or
    /// dropped the [`Run`]. A run that began under this hold counts as running until it ends.
    ///
    /// Errors:
    /// - INVALID if several participants can hold the lock at the same time, for example a read lock; if the node of the
    ///   record contains other data; or if the variable `TZ` contains an unknown time zone.
    /// - LOST if the hold was lost, and NOT_OWNER if the program has released it.
    /// - FOREIGN if the last run still holds its lock. It then used another kind of lock on this path.
    /// - CONNECTION if no server answered. If the message says so, the run may be in the record and count as interrupted.
    /// - Other failures: AUTH, DENIED, SERVER, EXHAUSTED, CLOSED, FORKED.
    ///
    /// Makes two requests, or three after an interrupted run. Each blocks for at most the session timeout. If another
    /// program changes the record at the same time, the call decides again.
    pub fn begin_run(&self, period: &Period, retry_failed: bool) -> Result<RunStart> {
        self.start_begin_run(period, retry_failed)?.wait()
    }

    /// Starts to begin a run, without blocking. In all other respects, this method works like
    /// [`begin_run`](Self::begin_run). The program can cancel the operation. If the program cancels or drops the operation
    /// before it has received the run, the library removes the run from the record in the background. If the program
    /// releases the hold before the removal, the run counts as interrupted.
    pub fn start_begin_run(&self, period: &Period, retry_failed: bool) -> Result<Operation<RunStart>> {
        Ok(start_run(self, period, retry_failed)?.and_then(|start| {
            if let RunStart::Run(run) = &start {
                run.keep();
            }
            Ok(start)
        }))
    }
}

/// Starts to begin a run like [`Hold::start_begin_run`]. The library removes the run from the record if all clones of the
/// run are dropped before a call of [`keep_run`](super::keep_run).
pub fn start_run(hold: &Hold, period: &Period, retry_failed: bool) -> Result<Operation<RunStart>> {
    let (job, started) = (Job::of(hold)?, wall_time()?);
    let run = PastRun {
        period: period.start(started)?,
        started,
        ended: None,
        result: RunResult::Running,
        owner: participant::name(),
        token: job.token,
        node_path: Some(job.node.clone()),
    };
    let record_path = record_path(&job.path);
    let first = job.read(&record_path)?;
    let begin = Begin { job: Arc::new(job), record_path, run, retry_failed, step: Step::ReadRecord };
    Ok(chain::start(begin, first))
}

/// The requests that begin a run.
struct Begin {
    job: Arc<Job>,
    record_path: String,
    run: PastRun,
    retry_failed: bool,
    step: Step,
}

/// What the answer to the last request means.
enum Step {
    ReadRecord,
    /// The answer shows whether the last run, which has not ended, still holds its lock.
    ReadLastNode(Record),
    Write(Record),
}

impl Links for Begin {
    type Answer = Answer;
    type Output = RunStart;

    fn next(&mut self, answer: Result<Answer>) -> Result<Next<Answer, RunStart>> {
        match std::mem::replace(&mut self.step, Step::ReadRecord) {
            Step::ReadRecord => self.decide(Record::parse(&self.record_path, answer?.content()?)?),
            Step::ReadLastNode(record) => match (answer?.content()?, record.unfinished()) {
                (Some(_), Some(last)) => Err(self.still_runs(last)),
                _ => self.write(record),
            },
            Step::Write(mut record) => match answer.map_err(in_doubt)? {
                Answer::Written(Some(version)) => {
                    record.set_version(version);
                    Ok(Next::End(RunStart::Run(Run::new(Arc::clone(&self.job), record))))
                }
                // Another program has changed the record although this process holds the lock.
                Answer::Written(None) => Ok(Next::Request(self.job.read(&self.record_path)?)),
                _ => Err(Status::Internal.into()),
            },
        }
    }

    fn cancel(&self) -> Option<Error> {
        let canceled =
            || Error::new(Status::Canceled, format!("{}: the beginning of the run was canceled", self.job.path));
        (!matches!(self.step, Step::Write(_))).then(canceled)
    }
}

impl Begin {
    fn decide(&mut self, record: Record) -> Result<Next<Answer, RunStart>> {
        if let Some(last) = counting_run(record.runs(), self.run.period, self.retry_failed) {
            return Ok(Next::End(RunStart::Skip(last.clone())));
        }
        let Some((last, node)) = record.unfinished().and_then(|last| Some((last, last.node_path.as_deref()?))) else {
            return self.write(record);
        };
        if node == self.job.node {
            return Ok(Next::End(RunStart::Skip(last.clone())));
        }
        let request = self.job.read(node)?;
        self.step = Step::ReadLastNode(record);
        Ok(Next::Request(request))
    }

    fn write(&mut self, mut record: Record) -> Result<Next<Answer, RunStart>> {
        record.begin(self.run.clone());
        let request = self.job.write(&record)?;
        self.step = Step::Write(record);
        Ok(Next::Request(request))
    }

    /// The error if the last run still holds its lock. Its lock is then of another kind, because this process also holds
    /// a lock of the path.
    fn still_runs(&self, last: &PastRun) -> Error {
        let (owner, path, node) = (&last.owner, &self.job.path, last.node_path.as_deref().unwrap_or_default());
        let message = format!(
            "{owner} still runs the job of {path} under another kind of lock ({node}); use the same kind of lock in all calls"
        );
        Error::new(Status::Foreign, message)
    }
}

/// Adds to the error of a write that a server may have performed the write.
fn in_doubt(error: Error) -> Error {
    if error.status() != Status::Connection {
        return error;
    }
    let message =
        format!("{}; the run did not start, but it may be in the record and count as interrupted", error.message());
    Error::new(Status::Connection, message)
}
