//! What the core logs, for Python's `logging` (`zklock/_logs.py`). The thread of callbacks takes each line there, as it takes events to the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, SystemTime};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use zklock::{Level, LogCalls, LogLine, LogValue, PerProcess, set_log_handler, set_log_level};

use crate::callback::{bell, drain, found, start_thread};
use crate::errors::OrRaise;
use crate::needed::needed;

/// What `logging` listens to, as it was seen last: a level of the core's; 0: nothing; `UNSEEN` before.
static LISTENED_TO: PerProcess<AtomicI32> = PerProcess::new(|| AtomicI32::new(UNSEEN));
const UNSEEN: i32 = -1;

/// Looks at how `logging` is set up now. To be called before anything is begun: it runs Python, and so handlers of signals, which may raise.
pub(crate) fn look(py: Python<'_>) -> PyResult<()> {
    let wanted: Option<i64> = needed(py)?.log_level.bind(py).call0()?.extract()?;
    let level = wanted.and_then(level_of);
    let seen = LISTENED_TO.get().swap(level.map_or(0, |level| level as i32), Ordering::AcqRel);
    match (seen, level) {
        (UNSEEN, None) => LISTENED_TO.get().store(UNSEEN, Ordering::Release),
        (UNSEEN, Some(level)) => listen(py, level)?,
        (seen, level) if seen != level.map_or(0, |level| level as i32) => set_log_level(level),
        _ => {}
    }
    Ok(())
}

fn listen(py: Python<'_>, level: Level) -> PyResult<()> {
    start_thread(py)?;
    let handler = |line: &LogLine| {
        Python::attach(|py| match call(py, line) {
            Ok((deliver, line)) => found(deliver, line),
            Err(error) => error.write_unraisable(py, None),
        });
    };
    set_log_handler(level, LogCalls::Rung(Arc::new(bell)), Some(Arc::new(handler))).or_raise(py)
}

/// Has the last lines logged, within `patience` or not at all. Detached from the interpreter.
pub(crate) fn end(patience: Duration) {
    if LISTENED_TO.get().load(Ordering::Acquire) != UNSEEN {
        let _ = set_log_handler(Level::Error, LogCalls::OnThread, None);
        drain(patience);
    }
}

/// What is to be called, and with what.
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
    Ok((needed(py)?.log_deliver.clone_ref(py), argument.into_any().unbind()))
}

/// What is listened to with a level of `logging`'s. NOTSET is everything.
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
