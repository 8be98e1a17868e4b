//! The classes `zklock.OncePer` and `zklock.Run`, and the list of past runs. The core decides whether a job runs. Any thread may use
//! the objects. This file must not use the class `Hold`, which makes objects of these classes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use zklock::internal::{keep_run, start_run};
use zklock::{Operation, PastRun, Period, Result, RunResult, RunStart};

use crate::detached_drop::DetachedDrop;
use crate::display::type_name;
use crate::errors::{EndedItem, OrRaise, end_block};
use crate::greenlet::WaitTarget;
use crate::imports::imports;
use crate::python_call::CallPython;
use crate::states::run_result;
use crate::text;
use crate::wait::wait;

/// A block for the work of a job that runs once in each period. ``Hold.once_per()`` returns a OncePer.
#[pyclass(frozen, weakref, module = "zklock")]
pub(crate) struct OncePer {
    hold: DetachedDrop<zklock::Hold>,
    /// The path of the lock, or `None` for a multi-lock.
    path: Option<String>,
    /// The quoted path of the lock, or a list of paths.
    quoted: String,
    period: Period,
    retry_failed: bool,
    /// The run of the block that the program has entered.
    run: Mutex<Option<Py<Run>>>,
}

/// A run of a job that has begun. A block with ``Hold.once_per()`` receives a Run. The end of the block records whether the job
/// succeeded.
#[pyclass(frozen, weakref, module = "zklock")]
pub(crate) struct Run {
    core: DetachedDrop<zklock::Run>,
    has_ended: AtomicBool,
    /// The quoted path of the lock.
    path: String,
}

impl OncePer {
    pub(crate) fn new(
        hold: zklock::Hold,
        path: Option<&str>,
        quoted: String,
        period: Period,
        retry_failed: bool,
    ) -> Self {
        let (hold, path) = (DetachedDrop::new(hold), path.map(str::to_owned));
        Self { hold, path, quoted, period, retry_failed, run: Mutex::new(None) }
    }

    /// Starts to begin the run. If the program does not take the result of the operation, the library takes the run back.
    pub(crate) fn start(&self) -> Result<Operation<RunStart>> {
        start_run(&self.hold, &self.period, self.retry_failed)
    }

    /// Makes the object for a run that has begun. Returns None if the job has already run.
    pub(crate) fn begun(&self, py: Python<'_>, start: RunStart) -> PyResult<Option<Py<Run>>> {
        let RunStart::Run(run) = start else { return Ok(None) };
        let core = DetachedDrop::new(run);
        let made = Py::new(py, Run { core, has_ended: AtomicBool::new(false), path: self.quoted.clone() })?;
        keep_run(&made.get().core);
        Ok(Some(made))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Py<Run>>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl OncePer {
    /// The path of the lock, or None for a multi-lock.
    #[getter]
    fn _path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// Begin a run of the job, and return a Run. Return None if the job has already run in this period.
    fn __enter__(&self, py: Python<'_>) -> PyResult<Option<Py<Run>>> {
        let start = wait(py, WaitTarget::Server, || self.start(), drop)?.or_raise(py)?;
        let run = self.begun(py, start)?;
        *self.lock() = run.as_ref().map(|run| run.clone_ref(py));
        Ok(run)
    }

    /// Record that the job succeeded. If the block raised an exception, record that the job failed, with the type and the text of
    /// the exception. If the program has already ended the run, do nothing.
    ///
    /// Raises LockLost if the hold was lost: the run then counts as interrupted. Raises NotOwner if the program has already released the
    /// hold, ForeignContender if another program has changed the record, and ConnectionLost if no server confirmed the record. If the
    /// block raised an exception, this exception propagates, with a note about the failed record.
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc_value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (exc_type, traceback);
        let run = self.lock().take();
        let Some(run) = run.as_ref().map(Py::get).filter(|run| !run._has_ended()) else { return Ok(()) };
        let failure = failure_of(exc_value);
        let ended = wait(py, WaitTarget::Release, || run.start_finish(failure.as_deref()), drop)?;
        let item = EndedItem { doing: "recording the end of the run", path: self.path.as_deref(), was_safe: false };
        end_block(py, exc_value, &item, ended)
    }
}

impl Run {
    pub(crate) fn start_finish(&self, failure: Option<&str>) -> Result<Operation<()>> {
        self.has_ended.store(true, Ordering::Release);
        self.core.start_finish(failure)
    }
}

#[pymethods]
impl Run {
    /// Record that the job failed, although the block raises no exception. The text says how the job failed, for people. The record
    /// contains at most the first 1,000 characters of the text. The run has then ended, even if the call raises an exception.
    ///
    /// The call blocks for at most three times the session timeout, and Ctrl-C interrupts the call. Raises LockLost if the hold was
    /// lost: the run then counts as interrupted. Raises ValueError if the run has already ended, NotOwner if the program has already
    /// released the hold, ForeignContender if another program has changed the record, and ConnectionLost if no server confirmed the
    /// record.
    fn fail(&self, py: Python<'_>, #[pyo3(from_py_with = text::how)] how: String) -> PyResult<()> {
        wait(py, WaitTarget::Release, || self.start_finish(Some(&how)), drop)?.or_raise(py)
    }

    /// Whether the run has ended.
    #[getter]
    fn _has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    fn __repr__(&self) -> String {
        let state = if self._has_ended() { "ended" } else { "running" };
        format!("<zklock.Run {} {state}>", self.path)
    }
}

/// Returns the failure that an exception of a block causes: its type and its text. The text of an exception can be any Python code, which
/// may fail.
pub(crate) fn failure_of(exception: &Bound<'_, PyAny>) -> Option<String> {
    if exception.is_none() {
        return None;
    }
    let text = exception.str().map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
    let name = type_name(exception);
    Some(if text.is_empty() { name } else { format!("{name}: {text}") })
}

/// Becomes a `zklock.PastRun`.
pub(crate) struct PastRunRecord(PastRun);

impl From<PastRun> for PastRunRecord {
    fn from(run: PastRun) -> Self {
        Self(run)
    }
}

impl<'py> IntoPyObject<'py> for PastRunRecord {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let PastRun { period, started, ended, result, owner, token, node_path, .. } = self.0;
        let failure = if let RunResult::Failed(how) = &result { Some(how.clone()) } else { None };
        let result = run_result(py, &result)?;
        imports(py)?.past_run.bind(py).call_python((period, started, ended, result, failure, owner, token, node_path))
    }
}

/// Waits for the last runs of a job.
pub(crate) fn past_runs(
    py: Python<'_>,
    start: impl FnOnce() -> Result<Operation<Vec<PastRun>>> + Send,
) -> PyResult<Vec<PastRunRecord>> {
    let runs = wait(py, WaitTarget::Server, start, drop)?.or_raise(py)?;
    Ok(runs.into_iter().map(PastRunRecord).collect())
}
