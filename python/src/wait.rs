//! Waits for operations. Every native-module function that waits for an operation uses this file. A signal may
//! interrupt any wait. A waiting thread is detached from the interpreter. The main thread divides a wait into slices,
//! so that Python's signal handlers can run between two slices. A greenlet waits in its hub, and the hub runs the other
//! greenlets meanwhile. This file must not interpret the answers of operations.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use zklock::internal::refuse_in_callback;
use zklock::{Acquiring, Call, Connecting, Hold, Result, Status, WaitLost};

use crate::errors::{OrRaise, is_library_error};
use crate::greenlet::{GreenletWait, Hub, WaitTarget};
use crate::imports::imports;
use crate::python_call::CallPython;
use crate::seconds::Seconds;

/// The longest time for which a wait ignores Ctrl-C.
const SLICE: Duration = Duration::from_millis(100);
/// The time for which a daemon thread pauses if its client was closed because the interpreter is about to end.
const EXIT_PAUSE: Duration = Duration::from_secs(1);

/// An operation that a thread or a greenlet can wait for.
pub(crate) trait Waitable: Send {
    type Answer: Send;

    /// Waits for at most `slice`. The caller must not call the function again after it has returned an answer.
    fn wait_for(&self, slice: Duration) -> Option<Result<Self::Answer>>;

    /// Registers `hook`. When the operation is over, the library calls `hook` once, on any thread.
    fn on_done(&self, hook: impl FnOnce() + Send + 'static) -> Result<()>;

    /// The deadline of the operation. At the deadline, the operation ends even if the library has not called the hook.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

macro_rules! impl_waitable {
    ($($operation:ty => $answer:ty),+ $(,)?) => {$(
        impl Waitable for $operation {
            type Answer = $answer;

            fn wait_for(&self, slice: Duration) -> Option<Result<$answer>> {
                self.wait_for(slice)
            }

            fn on_done(&self, hook: impl FnOnce() + Send + 'static) -> Result<()> {
                self.on_done(hook)
            }
        }
    )+};
}

impl_waitable! { Acquiring => Hold, Connecting => zklock::Client }

impl<T: Send> Waitable for Call<T> {
    type Answer = T;

    fn wait_for(&self, slice: Duration) -> Option<Result<T>> {
        self.wait_for(slice)
    }

    fn on_done(&self, hook: impl FnOnce() + Send + 'static) -> Result<()> {
        self.on_done(hook)
    }
}

/// Waits for the loss of a hold until a deadline. A `WaitLost` of the core has no deadline.
pub(crate) struct TimedWaitLost {
    wait: WaitLost,
    deadline: Option<Instant>,
}

impl TimedWaitLost {
    pub(crate) fn new(wait: WaitLost, limit: Option<Duration>) -> Self {
        Self { wait, deadline: limit.and_then(|limit| Instant::now().checked_add(limit)) }
    }
}

impl Waitable for TimedWaitLost {
    type Answer = bool;

    fn wait_for(&self, slice: Duration) -> Option<Result<bool>> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let answer = self.wait.wait_for(left.map_or(slice, |left| left.min(slice)));
        let is_over = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
        answer.map(|lost| lost.map(|()| true)).or_else(|| is_over.then_some(Ok(false)))
    }

    fn on_done(&self, hook: impl FnOnce() + Send + 'static) -> Result<()> {
        self.wait.on_done(hook)
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

/// Waits until a hold is no longer safe, and then returns true. Returns false if the hold is still safe after the timeout.
pub(crate) fn wait_lost(
    py: Python<'_>,
    timeout: Option<Seconds>,
    start: impl FnOnce() -> Result<WaitLost> + Send,
) -> PyResult<bool> {
    let limit = timeout.and_then(Seconds::limit);
    let start = || {
        refuse_in_callback(limit)?;
        Ok(TimedWaitLost::new(start()?, limit))
    };
    wait(py, WaitTarget::within(limit), start, drop)?.or_raise(py)
}

/// Starts an operation and waits for its answer. If a signal handler raises an exception, or an exception is thrown into the waiting
/// greenlet, the function abandons the operation. If the abandoned operation has already succeeded, the function passes the result to
/// `undo`. An abandoned release still takes effect.
pub(crate) fn wait<W: Waitable>(
    py: Python<'_>,
    target: WaitTarget,
    start: impl FnOnce() -> Result<W> + Send,
    undo: impl FnOnce(W::Answer) + Send,
) -> PyResult<Result<W::Answer>> {
    let poll = |waiting: W, slice| match waiting.wait_for(slice) {
        Some(answer) => WaitStep::Answered(answer),
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
                return Ok(Err(error));
            }
            WaitStep::Answered(answer) => return Ok(answer),
            WaitStep::Waiting(waiting) => waiting,
        };
        let slice = match &hub {
            None if on_main_thread(py)? => SLICE,
            None => Duration::MAX,
            Some(hub) => {
                thrown = wait_in_greenlet(py, hub, &waiting, &mut in_hub);
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
fn wait_in_greenlet<'py, W: Waitable>(
    py: Python<'py>,
    hub: &Hub<'py>,
    waiting: &W,
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
    in_hub.wait(waiting.deadline())
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

enum WaitStep<W, T> {
    Waiting(W),
    Answered(Result<T>),
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
