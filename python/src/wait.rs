//! The one door to waits that a signal may interrupt: detached from the interpreter, and on the main thread in slices, so
//! that Python's signal handlers have their turn in between. A greenlet waits with its hub instead, which runs the others.

use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use zklock::{Acquiring, AcquiringLeases, Call, Connecting, Leases, Result, Status};

use crate::errors::OrRaise;
use crate::greenlet::{Awaited, Bell, Hub};
use crate::needed::needed;

/// How long Ctrl-C may go unheard.
const SLICE: Duration = Duration::from_millis(100);

/// An operation under way.
pub(crate) trait Running: Send {
    type Answer: Send;

    /// Waits `slice` at most. Not to be called again after it gave an answer.
    fn wait_for(&self, slice: Duration) -> Option<Result<Self::Answer>>;

    /// Has `hook` called once when it is over, by any thread.
    fn on_done(&self, hook: impl FnOnce() + Send + 'static) -> Result<()>;
}

macro_rules! running {
    ($($operation:ty => $answer:ty),+ $(,)?) => {$(
        impl Running for $operation {
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

running! { Acquiring => (), AcquiringLeases => Leases, Connecting => zklock::Client }

impl<T: Send> Running for Call<T> {
    type Answer = T;

    fn wait_for(&self, slice: Duration) -> Option<Result<T>> {
        self.wait_for(slice)
    }

    fn on_done(&self, hook: impl FnOnce() + Send + 'static) -> Result<()> {
        self.on_done(hook)
    }
}

/// Starts an operation and waits for its answer. Where a signal handler raises, or something is thrown into the greenlet that waits,
/// the operation is dropped, which gives it up; if it had succeeded by then, the result goes to `undo`.
pub(crate) fn wait<W: Running>(
    py: Python<'_>,
    awaited: Awaited,
    start: impl FnOnce() -> Result<W> + Send,
    undo: impl FnOnce(W::Answer) + Send,
) -> PyResult<Result<W::Answer>> {
    let look = |waiting: W, slice| match waiting.wait_for(slice) {
        Some(answer) => Step::Answered(answer),
        None => Step::Waiting(waiting),
    };
    let hub = Hub::find(py, awaited)?;
    let first_slice = if hub.is_some() { Duration::ZERO } else { SLICE };
    let mut step = py.detach(|| match start() {
        Ok(waiting) => look(waiting, first_slice),
        Err(error) => Step::Answered(Err(error)),
    });
    let (mut bell, mut thrown) = (None, Ok(()));
    loop {
        if let Err(interrupt) = std::mem::replace(&mut thrown, Ok(())).and_then(|()| py.check_signals()) {
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
        let slice = match &hub {
            None if on_main_thread(py)? => SLICE,
            None => Duration::MAX,
            Some(hub) => {
                thrown = wait_with(py, hub, &waiting, &mut bell);
                Duration::ZERO
            }
        };
        step = match &thrown {
            Ok(()) => py.detach(|| look(waiting, slice)),
            Err(_) => Step::Waiting(waiting),
        };
    }
}

/// Lets other greenlets run until an operation is over.
fn wait_with<W: Running>(py: Python<'_>, hub: &Hub<'_>, waiting: &W, bell: &mut Option<Bell>) -> PyResult<()> {
    let bell = match bell {
        Some(bell) => bell,
        None => {
            let fresh = Bell::new(py)?;
            let rung = fresh.clone();
            waiting.on_done(move || rung.ring()).or_raise(py)?;
            bell.insert(fresh)
        }
    };
    hub.wait(bell)
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

/// Only the main thread runs signal handlers. Where gevent or eventlet has patched `threading`, its threads are greenlets, and the main
/// thread is known by the process's number.
fn on_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = needed(py)?;
    if threading.get_native_id.bind(py).call0()?.extract::<u32>()? == std::process::id() {
        return Ok(true);
    }
    threading.get_ident.bind(py).call0()?.eq(threading.main_thread.bind(py).call0()?.getattr("ident")?)
}
