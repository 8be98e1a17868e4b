//! Passes log lines of the core to Python's `logging` (`zklock/_logs.py`). The thread that calls callbacks also delivers the log
//! lines. No thread of the core may call `logging`, because a Python handler may block.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, SystemTime};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use zklock::internal::{Level, LogDispatch, LogLine, LogValue, PerProcess, set_log_handler, set_log_level};

use crate::callback::{add_bound_call, notify_thread, start_thread, wait_until_idle};
use crate::errors::OrRaise;
use crate::imports::imports;
use crate::python_call::{CallPython, write_unraisable};

/// The log level that the last call of `sync_level` found. The value is a log level of the core, or 0 if logging is off. The value is
/// `NOT_CALLED` until `sync_level` first finds a level.
static LAST_LEVEL: PerProcess<AtomicI32> = PerProcess::new(|| AtomicI32::new(NOT_CALLED));
const NOT_CALLED: i32 = -1;

/// Reads the current configuration of `logging`. The function runs Python code, so a signal handler may run during the
/// call and raise an exception. Call the function before an operation begins. Then an exception from the signal handler cannot
/// interrupt the operation.
pub(crate) fn sync_level(py: Python<'_>) -> PyResult<()> {
    let wanted: Option<i64> = imports(py)?.log_level.bind(py).call_python(())?.extract()?;
    let level = wanted.and_then(level_of);
    let seen = LAST_LEVEL.get().swap(level.map_or(0, |level| level as i32), Ordering::AcqRel);
    match (seen, level) {
        (NOT_CALLED, None) => LAST_LEVEL.get().store(NOT_CALLED, Ordering::Release),
        (NOT_CALLED, Some(level)) => {
            install_handler(py, level).inspect_err(|_| LAST_LEVEL.get().store(NOT_CALLED, Ordering::Release))?;
        }
        (seen, level) if seen != level.map_or(0, |level| level as i32) => set_log_level(level),
        _ => {}
    }
    Ok(())
}

fn install_handler(py: Python<'_>, level: Level) -> PyResult<()> {
    start_thread(py)?;
    let handler = |line: &LogLine| {
        Python::attach(|py| match call(py, line) {
            Ok((deliver, line)) => add_bound_call(deliver, line),
            Err(error) => write_unraisable(py, error, None),
        });
    };
    set_log_handler(level, LogDispatch::Notifier(Arc::new(notify_thread)), Some(Arc::new(handler))).or_raise(py)
}

/// Delivers the remaining log lines, but stops after `timeout`. The caller must be detached from the interpreter.
pub(crate) fn flush(timeout: Duration) {
    if LAST_LEVEL.get().load(Ordering::Acquire) != NOT_CALLED {
        let _ = set_log_handler(Level::Error, LogDispatch::EventThread, None);
        wait_until_idle(timeout);
    }
}

/// Returns the Python function that delivers a log line, and the argument for that function.
fn call(py: Python<'_>, line: &LogLine) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
    let fields = PyDict::new(py);
    fields.set_item("event", &line.message)?;
    for (name, value) in &line.fields {
        match value {
            LogValue::Number(number) => fields.set_item(name, number)?,
            LogValue::Flag(flag) => fields.set_item(name, flag)?,
            LogValue::Text(text) => fields.set_item(name, text)?,
        }
    }
    let created = line.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let argument = (number_of(line.level), created, line.target, line.to_string(), fields).into_pyobject(py)?;
    Ok((imports(py)?.log_deliver.clone_ref(py), argument.into_any().unbind()))
}

/// Returns the core's log level that corresponds to a `logging` level. With the level NOTSET, the core writes all log lines.
const fn level_of(number: i64) -> Option<Level> {
    match number {
        ..=5 => Some(Level::Trace),
        6..=10 => Some(Level::Debug),
        11..=20 => Some(Level::Info),
        21..=30 => Some(Level::Warn),
        31..=40 => Some(Level::Error),
        _ => None,
    }
}

const fn number_of(level: Level) -> i32 {
    match level {
        Level::Trace => 5,
        Level::Debug => 10,
        Level::Info => 20,
        Level::Warn => 30,
        Level::Error => 40,
    }
}
