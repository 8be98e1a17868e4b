//! Support for the greenlets of gevent and eventlet. This module identifies the greenlet that makes a call, and lets
//! that greenlet wait while the other greenlets of its thread run. In a program without greenlets, the only cost is a
//! lookup in `sys.modules`. This file must not depend on gevent or eventlet: the code in `zklock/_greenlets.py` does.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use zklock::internal::CompletionQueue;

use crate::errors::OrRaise;
use crate::imports::imports;
use crate::python_call::CallPython;

/// Returns the calling greenlet, or `None` if the caller is the main greenlet of a thread. A hold of the main greenlet
/// belongs to the thread.
pub(crate) fn current_non_main(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    match current(py)? {
        Some(greenlet) if !greenlet.getattr(intern!(py, "parent"))?.is_none() => Ok(Some(greenlet)),
        _ => Ok(None),
    }
}

/// Returns the greenlet that runs now, if the program has imported the module `greenlet`.
fn current(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    static GET_CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let get_current = match GET_CURRENT.get(py) {
        Some(known) => known.bind(py).clone(),
        None => {
            let Some(module) = imports(py)?.modules.bind(py).get_item(intern!(py, "greenlet"))? else {
                return Ok(None);
            };
            // If another thread is still importing the module, `getcurrent` may not exist yet.
            let Some(found) = module.getattr_opt(intern!(py, "getcurrent"))? else { return Ok(None) };
            GET_CURRENT.get_or_init(py, || found.unbind()).bind(py).clone()
        }
    };
    let current = get_current.call_python(())?;
    // `getcurrent()` returns None when the interpreter ends.
    Ok((!current.is_none()).then_some(current))
}

/// What a call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitTarget {
    /// An answer of a server. The answer arrives even if no other greenlet runs.
    Server,
    /// A server's confirmation of a release.
    Release,
    /// Another holder's release of a lock. The holder may be a greenlet of the same thread.
    Contenders,
    /// The close of a client. A close takes at most 2 seconds.
    ClientClose,
}

impl WaitTarget {
    /// Returns what an acquire call waits for. If the limit is zero, the call waits only for a server.
    pub(crate) fn within(limit: Option<Duration>) -> Self {
        if limit == Some(Duration::ZERO) { Self::Server } else { Self::Contenders }
    }

    /// Returns the name that `zklock/_greenlets.py` uses for this value.
    const fn name(self) -> &'static str {
        match self {
            Self::Server | Self::Release => "server",
            Self::Contenders => "contenders",
            Self::ClientClose => "close",
        }
    }
}

/// The hub that runs other greenlets while the calling greenlet waits. The value is a function defined in `zklock/_greenlets.py`.
pub(crate) struct Hub<'py>(Bound<'py, PyAny>);

impl<'py> Hub<'py> {
    /// Returns the hub of the calling thread, or `None` if the call may block the thread. Returns an error if the caller must not
    /// wait.
    pub(crate) fn find(py: Python<'py>, target: WaitTarget) -> PyResult<Option<Self>> {
        let Some(current) = current(py)? else { return Ok(None) };
        let waits = imports(py)?.hub_waits.bind(py).call_python((current, target.name()))?;
        Ok((!waits.is_none()).then_some(Self(waits)))
    }

    /// Registers the calling greenlet as a waiter.
    pub(crate) fn start_wait(&self) -> PyResult<GreenletWait<'py>> {
        let py = self.0.py();
        let waits = self.0.call_python((py.get_type::<WakeQueue>(),))?;
        let queue = waits.getattr(intern!(py, "queue"))?.cast_into::<WakeQueue>()?;
        let key = queue.get().last_key.fetch_add(1, Ordering::Relaxed) + 1;
        let waker = GreenletWaker { key, keys: Arc::clone(&queue.get().keys), is_used: Arc::default() };
        Ok(GreenletWait { waits, waker })
    }
}

/// A wait of a greenlet. A `GreenletWait` keeps the wake queue of its hub alive.
pub(crate) struct GreenletWait<'py> {
    /// The `HubWaits` of the hub.
    waits: Bound<'py, PyAny>,
    waker: GreenletWaker,
}

impl GreenletWait<'_> {
    pub(crate) fn waker(&self) -> GreenletWaker {
        self.waker.clone()
    }

    /// Waits until another thread has used the waker, or until the deadline. The wait may also end earlier. If another greenlet throws
    /// an exception into the waiting greenlet, the function returns the exception as an error.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> PyResult<()> {
        if self.waker.is_used.load(Ordering::Acquire) {
            return Ok(());
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()).as_secs_f64());
        // Another thread may use the waker now, and thereby add the key to the queue. The hub then finds the key when this greenlet
        // waits.
        let py = self.waits.py();
        let waited = self.waits.call_python_method(intern!(py, "wait"), (self.waker.key, left));
        // This method of a dictionary runs no Python code, so Ctrl-C cannot prevent the removal of the key.
        let waiting = self.waits.getattr(intern!(py, "waiting"))?;
        waiting.call_python_method(intern!(py, "pop"), (self.waker.key, py.None()))?;
        let unwatched = self.waits.call_python_method(intern!(py, "unwatch_if_idle"), ());
        waited.and(unwatched).map(drop)
    }
}

/// Wakes a greenlet that waits in its hub. Any thread may use the waker. Once a thread has used the waker, every wait with this waker
/// returns at once.
#[derive(Clone)]
pub(crate) struct GreenletWaker {
    key: u64,
    keys: Arc<CompletionQueue<u64>>,
    is_used: Arc<AtomicBool>,
}

impl GreenletWaker {
    pub(crate) fn wake(&self) {
        self.is_used.store(true, Ordering::Release);
        self.keys.push(self.key);
    }
}

/// The wake queue of one hub. Each key in the queue identifies a greenlet that another thread has woken.
#[pyclass(frozen, name = "_WakeQueue", module = "zklock")]
struct WakeQueue {
    keys: Arc<CompletionQueue<u64>>,
    last_key: AtomicU64,
}

#[pymethods]
impl WakeQueue {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        Ok(Self { keys: Arc::new(CompletionQueue::new().or_raise(py)?), last_key: AtomicU64::new(0) })
    }

    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        self.keys.descriptor().or_raise(py)
    }

    fn take(&self) -> Vec<u64> {
        self.keys.take(usize::MAX)
    }
}
