//! The one door to waits that a signal may interrupt: detached from the interpreter, and on the main thread in slices, so
//! that Python's signal handlers have their turn in between.

use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use zklock::{Result, Status};

use crate::needed::needed;

/// How long Ctrl-C may go unheard.
const SLICE: Duration = Duration::from_millis(100);

/// Starts an operation and waits until `look` has its answer. Where a signal handler raises, the operation is dropped,
/// which gives it up; if it had succeeded all the same, the result goes to `undo`.
pub(crate) fn wait<W: Send, T: Send>(
    py: Python<'_>,
    start: impl FnOnce() -> Result<W> + Send,
    look: impl Fn(&W, Duration) -> Option<Result<T>> + Send + Sync,
    undo: impl FnOnce(T) + Send,
) -> PyResult<Result<T>> {
    let look = |waiting: W, slice| match look(&waiting, slice) {
        Some(answer) => Step::Answered(answer),
        None => Step::Waiting(waiting),
    };
    let mut step = py.detach(|| match start() {
        Ok(waiting) => look(waiting, SLICE),
        Err(error) => Step::Answered(Err(error)),
    });
    loop {
        if let Err(interrupt) = py.check_signals() {
            py.detach(move || match step {
                Step::Answered(Ok(result)) => undo(result),
                given_up => drop(given_up),
            });
            return Err(interrupt);
        }
        let waiting = match step {
            Step::Answered(Err(error)) if error.status() == Status::Closed => {
                stay_behind_at(py, End::Closing)?;
                return Ok(Err(error));
            }
            Step::Answered(answer) => return Ok(answer),
            Step::Waiting(waiting) => waiting,
        };
        let slice = if on_main_thread(py)? { SLICE } else { Duration::MAX };
        step = py.detach(|| look(waiting, slice));
    }
}

/// How far the end of the interpreter has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// All clients are being closed: a daemon thread that finds its client closed does not go on.
    Closing = 1,
    /// They are closed: nobody is called any more.
    Closed = 2,
}

static END: AtomicU8 = AtomicU8::new(0);

/// The interpreter is about to end.
pub(crate) fn interpreter_ends(end: End) {
    END.store(end as u8, Ordering::Release);
}

/// Only daemon threads are left by then beside the main thread. One that went on would raise into a program that is being taken
/// apart, and its traceback could end the process with a fatal error of the interpreter's; so it never comes back.
pub(crate) fn stay_behind_at(py: Python<'_>, end: End) -> PyResult<()> {
    if END.load(Ordering::Acquire) < end as u8 || on_main_thread(py)? {
        return Ok(());
    }
    py.detach(|| {
        loop {
            thread::park();
        }
    })
}

enum Step<W, T> {
    Waiting(W),
    Answered(Result<T>),
}

/// Only the main thread runs signal handlers.
fn on_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = needed(py)?;
    threading.get_ident.bind(py).call0()?.eq(threading.main_thread.bind(py).call0()?.getattr("ident")?)
}
