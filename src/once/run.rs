//! Runs that have begun, and the list of past runs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zklock_core::error::{Error, Result};
use zklock_core::path;

use super::end;
use super::job::{Job, wall_time};
use super::record::{PastRun, Record, RunResult, failure, record_path};
use crate::client::Client;
use crate::operation::Operation;

/// The number of times that the library repeats the write of the end of a run. Each attempt takes at most the session
/// timeout.
const REPETITIONS: u32 = 2;

/// A run of a job ([`Hold::begin_run`](crate::Hold::begin_run)). The program ends the run with [`succeed`](Self::succeed),
/// [`fail`](Self::fail) or [`take_back`](Self::take_back), before it releases the hold. If the program drops all clones of
/// the run before, the run counts as interrupted, as after the death of the process. Any thread may use a run. A run keeps
/// its hold: the drop of the last [`Hold`](crate::Hold) does not release the lock before the drop of the run.
#[derive(Clone)]
#[must_use = "a run that the program does not end counts as interrupted"]
pub struct Run {
    shared: Arc<SharedRun>,
}

struct SharedRun {
    job: Arc<Job>,
    /// The record with this run as its newest run.
    record: Record,
    has_ended: AtomicBool,
    /// True after the program has received the run.
    is_kept: AtomicBool,
}

/// A run that the program has not received never started.
impl Drop for SharedRun {
    fn drop(&mut self) {
        if !*self.is_kept.get_mut() && !*self.has_ended.get_mut() {
            // If the removal fails, the run counts as interrupted. A forked child removes nothing.
            let _ = self.start_take_back();
        }
    }
}

/// Records that the program has received a run, which [`start_run`](super::start_run) has begun.
pub fn keep_run(run: &Run) {
    run.keep();
}

impl Run {
    pub(super) fn new(job: Arc<Job>, record: Record) -> Self {
        let (has_ended, is_kept) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { shared: Arc::new(SharedRun { job, record, has_ended, is_kept }) }
    }

    pub(super) fn keep(&self) {
        self.shared.is_kept.store(true, Ordering::Release);
    }

    /// Records that the job succeeded. The run has then ended, whatever the call returns. If no server confirms the
    /// record, the run may count as interrupted.
    ///
    /// Errors:
    /// - LOST if the hold was lost. The run then counts as interrupted, because another program may have run the job since.
    /// - NOT_OWNER if the program has already released the hold, and INVALID if the run has already ended.
    /// - FOREIGN if another program has changed the record.
    /// - CONNECTION if no server confirmed the record within three times the session timeout.
    /// - Other failures: AUTH, DENIED, SERVER, EXHAUSTED, CLOSED, FORKED.
    ///
    /// Blocks for at most three times the session timeout.
    pub fn succeed(&self) -> Result<()> {
        self.start_finish(None)?.wait()
    }

    /// Records that the job failed. `how` is a text for people, for example `exit code 3`. The record contains at most its
    /// first 1,000 characters. In all other respects, this method works like [`succeed`](Self::succeed).
    pub fn fail(&self, how: &str) -> Result<()> {
        self.start_finish(Some(how))?.wait()
    }

    /// Starts recording the end of the run, without blocking: a success if `failure` is `None`, or else a failure. In all
    /// other respects, this method works like [`succeed`](Self::succeed) and [`fail`](Self::fail). If the program drops the
    /// returned [`Operation`], the library still records the end.
    pub fn start_finish(&self, failure_text: Option<&str>) -> Result<Operation<()>> {
        self.end()?;
        let mut record = self.shared.record.clone();
        record.finish(wall_time()?, failure_text.map_or(RunResult::Succeeded, failure));
        end::start(&self.shared.job, record, REPETITIONS)
    }

    /// Removes the run from the record, because the job never started. The job can then still run in this period. Fails
    /// with the same errors as [`succeed`](Self::succeed). Blocks for at most twice the session timeout.
    pub fn take_back(&self) -> Result<()> {
        self.start_take_back()?.wait()
    }

    /// Starts removing the run from the record, without blocking. In all other respects, this method works like
    /// [`take_back`](Self::take_back).
    pub fn start_take_back(&self) -> Result<Operation<()>> {
        self.end()?;
        self.shared.start_take_back()
    }

    fn end(&self) -> Result<()> {
        if self.shared.has_ended.swap(true, Ordering::AcqRel) {
            return Err(Error::invalid(format!("{}: the run has already ended", self.shared.job.path)));
        }
        Ok(())
    }
}

impl SharedRun {
    fn start_take_back(&self) -> Result<Operation<()>> {
        let mut record = self.record.clone();
        record.take_back();
        end::start(&self.job, record, 0)
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("path", &self.shared.job.path).finish_non_exhaustive()
    }
}

impl Client {
    /// Reads the last runs of the job of a lock, from the newest to the oldest. The record contains at most ten runs. The
    /// list is empty if the job has never run.
    ///
    /// Fails with INVALID if the path is not valid, or the node of the record contains other data. Other errors:
    /// CONNECTION, AUTH, DENIED, SERVER, EXHAUSTED, CLOSED, FORKED. Blocks for at most the session timeout.
    pub fn past_runs(&self, path: &str) -> Result<Vec<PastRun>> {
        self.start_past_runs(path)?.wait()
    }

    /// Starts reading the last runs, without blocking. In all other respects, this method works like
    /// [`past_runs`](Self::past_runs).
    pub fn start_past_runs(&self, path: &str) -> Result<Operation<Vec<PastRun>>> {
        path::validate(path)?;
        let node = record_path(path);
        let reading = self.start_read_node(&node)?;
        Ok(reading.and_then(move |content| Ok(Record::parse(&node, content)?.into_runs())))
    }
}
