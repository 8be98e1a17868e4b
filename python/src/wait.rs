//! The one door to waits that a signal may interrupt: detached from the interpreter, and on the main thread in slices, so
//! that Python's signal handlers have their turn in between.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use zklock::{Result, Status};

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
                stay_behind_at_the_end(py)?;
                return Ok(Err(error));
            }
            Step::Answered(answer) => return Ok(answer),
            Step::Waiting(waiting) => waiting,
        };
        let slice = if on_main_thread(py)? { SLICE } else { Duration::MAX };
        step = py.detach(|| look(waiting, slice));
    }
}

/// The interpreter is about to end, and has closed all clients.
static EXITING: AtomicBool = AtomicBool::new(false);

/// From now on a daemon thread that finds its client closed does not go on.
pub(crate) fn interpreter_ends() {
    EXITING.store(true, Ordering::Release);
}

/// Only daemon threads are left by then beside the main thread. One that went on would raise into a program that is being taken
/// apart, and its traceback could end the process with a fatal error of the interpreter's; so it never comes back.
pub(crate) fn stay_behind_at_the_end(py: Python<'_>) -> PyResult<()> {
    if !EXITING.load(Ordering::Acquire) || on_main_thread(py)? {
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
    let threading = py.import("threading")?;
    threading.call_method0("get_ident")?.eq(threading.call_method0("main_thread")?.getattr("ident")?)
}
