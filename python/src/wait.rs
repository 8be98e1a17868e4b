//! Waits for operations. Every native-module function that waits for an operation uses this file. A signal may
//! interrupt any wait. A waiting thread is detached from the interpreter. The main thread divides a wait into slices,
//! so that Python's signal handlers can run between two slices. A greenlet waits in its hub, and the hub runs the other
//! greenlets meanwhile. This file must not interpret the answers of operations.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use zklock::internal::refuse_in_callback;
use zklock::{Operation, Result, Status};

use crate::errors::{OrRaise, is_library_error};
use crate::greenlet::{GreenletWait, Hub, WaitTarget};
use crate::imports::imports;
use crate::python_call::CallPython;
use crate::seconds::Seconds;

/// The longest time for which a wait ignores Ctrl-C.
const SLICE: Duration = Duration::from_millis(100);
/// The time for which a daemon thread pauses if its client was closed because the interpreter is about to end.
const EXIT_PAUSE: Duration = Duration::from_secs(1);

/// Waits until a hold is no longer safe, and then returns true. Returns false if the hold is still safe after the timeout.
pub(crate) fn wait_lost(
    py: Python<'_>,
    timeout: Option<Seconds>,
    start: impl FnOnce() -> Result<Operation<()>> + Send,
) -> PyResult<bool> {
    let limit = timeout.and_then(Seconds::limit);
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let start = || {
        refuse_in_callback(limit)?;
        start()
    };
    match wait_until(py, WaitTarget::within(limit), deadline, start, drop)? {
        Some(lost) => lost.map(|()| true).or_raise(py),
        None => Ok(false),
    }
}

/// Starts an operation and waits for its answer. If a signal handler raises an exception, or an exception is thrown into the waiting
/// greenlet, the function abandons the operation. If the abandoned operation has already succeeded, the function passes the result to
/// `undo`. An abandoned release still takes effect.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    target: WaitTarget,
    start: impl FnOnce() -> Result<Operation<T>> + Send,
    undo: impl FnOnce(T) + Send,
) -> PyResult<Result<T>> {
    // Without a deadline, the wait ends with an answer.
    Ok(wait_until(py, target, None, start, undo)?.unwrap_or_else(|| Err(Status::Internal.into())))
}

/// Waits for an operation like [`wait`], and returns `None` if the operation is still running at the deadline.
fn wait_until<T: Send>(
    py: Python<'_>,
    target: WaitTarget,
    deadline: Option<Instant>,
    start: impl FnOnce() -> Result<Operation<T>> + Send,
    undo: impl FnOnce(T) + Send,
) -> PyResult<Option<Result<T>>> {
    let left = || deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
    let poll = |waiting: Operation<T>, slice: Duration| match waiting.wait_for(slice.min(left())) {
        Some(answer) => WaitStep::Answered(answer),
        None if left().is_zero() => WaitStep::Expired,
        None => WaitStep::Waiting(waiting),
    };
    let hub = match Hub::find(py, target) {
        Ok(hub) => hub,
        Err(error) => {
            // If a signal handler raised the exception, the end of a `with` block must still release the lock.
            if target == WaitTarget::Release && !is_library_error(py, &error) {
                py.detach(|| drop(start()));
            }
            return Err(error);
        }
    };
    let first_slice = if hub.is_some() { Duration::ZERO } else { SLICE };
    let mut step = py.detach(|| match start() {
        Ok(waiting) => poll(waiting, first_slice),
        Err(error) => WaitStep::Answered(Err(error)),
    });
    let (mut in_hub, mut thrown) = (None, Ok(()));
    loop {
        if let Err(interrupt) = std::mem::replace(&mut thrown, Ok(())).and_then(|()| py.check_signals()) {
            py.detach(move || match step {
                WaitStep::Answered(Ok(result)) => undo(result),
                given_up => drop(given_up),
            });
            return Err(interrupt);
        }
        let waiting = match step {
            WaitStep::Answered(Err(error)) if error.status() == Status::Closed => {
                pause_if_exiting(py)?;
                return Ok(Some(Err(error)));
            }
            WaitStep::Answered(answer) => return Ok(Some(answer)),
            WaitStep::Expired => return Ok(None),
            WaitStep::Waiting(waiting) => waiting,
        };
        let slice = match &hub {
            None if on_main_thread(py)? => SLICE,
            None => Duration::MAX,
            Some(hub) => {
                thrown = wait_in_greenlet(py, hub, &waiting, deadline, &mut in_hub);
                Duration::ZERO
            }
        };
        step = match &thrown {
            Ok(()) => py.detach(|| poll(waiting, slice)),
            Err(_) => WaitStep::Waiting(waiting),
        };
    }
}

/// Lets other greenlets run until an operation is over.
fn wait_in_greenlet<'py, T>(
    py: Python<'py>,
    hub: &Hub<'py>,
    waiting: &Operation<T>,
    deadline: Option<Instant>,
    in_hub: &mut Option<GreenletWait<'py>>,
) -> PyResult<()> {
    let in_hub = match in_hub {
        Some(in_hub) => in_hub,
        None => {
            let started = hub.start_wait()?;
            let waker = started.waker();
            waiting.on_done(move || waker.wake()).or_raise(py)?;
            in_hub.insert(started)
        }
    };
    in_hub.wait(deadline)
}

static IS_EXITING: AtomicBool = AtomicBool::new(false);

/// Records that the interpreter is about to end.
pub(crate) fn set_exiting() {
    IS_EXITING.store(true, Ordering::Release);
}

/// Returns whether the interpreter is about to end.
pub(crate) fn is_exiting() -> bool {
    IS_EXITING.load(Ordering::Acquire)
}

/// If the interpreter is about to end, the function blocks the calling daemon thread for one second. The thread usually does nothing
/// else before the process ends. Without the pause, most daemon threads would print a traceback of ClientClosed whenever a program
/// ends. The pause must end, because an exit handler may wait for the thread, or for a Python lock of the thread.
fn pause_if_exiting(py: Python<'_>) -> PyResult<()> {
    if is_exiting() && !on_main_thread(py)? {
        py.detach(|| thread::sleep(EXIT_PAUSE));
    }
    Ok(())
}

enum WaitStep<T> {
    Waiting(Operation<T>),
    Answered(Result<T>),
    /// The operation is still running at the deadline.
    Expired,
}

/// Returns whether the calling thread is the main thread. Python runs signal handlers only on the main thread. If gevent or eventlet
/// has patched `threading`, the threads of `threading` are greenlets. The native id of the main thread is the process id. The function
/// therefore also compares the native id of the calling thread with the process id.
fn on_main_thread(py: Python<'_>) -> PyResult<bool> {
    let imports = imports(py)?;
    if imports.get_native_id.bind(py).call_python(())?.extract::<u32>()? == std::process::id() {
        return Ok(true);
    }
    imports.is_main_thread.bind(py).call_python(())?.extract()
}
