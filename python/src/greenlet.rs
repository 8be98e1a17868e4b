//! Greenlets (gevent, eventlet): which of them calls, and how it waits while the others on its thread run. Without them nothing here
//! costs more than a look into `sys.modules`. `zklock/_greenlets.py` knows the frameworks.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use zklock::{EventFd, Owner};

use crate::errors::OrRaise;
use crate::needed::needed;

/// The calling greenlet, or the calling thread outside of greenlets and in a thread's main greenlet.
pub(crate) fn owner(py: Python<'_>) -> PyResult<Owner> {
    Ok(own(py)?.unwrap_or_else(Owner::current_thread))
}

/// The calling greenlet, unless it is its thread's main one: that one is the thread.
pub(crate) fn own(py: Python<'_>) -> PyResult<Option<Owner>> {
    match current(py)? {
        Some(greenlet) if !greenlet.getattr(intern!(py, "parent"))?.is_none() => owner_of(&greenlet).map(Some),
        _ => Ok(None),
    }
}

/// A greenlet's own number, kept by the greenlet itself: its address may become another's.
#[pyclass(frozen, module = "zklock")]
struct GreenletOwner(Owner);

fn owner_of(greenlet: &Bound<'_, PyAny>) -> PyResult<Owner> {
    let py = greenlet.py();
    let attributes = greenlet.getattr(intern!(py, "__dict__"))?.cast_into::<PyDict>()?;
    let name = intern!(py, "__zklock_owner__");
    if let Some(Ok(known)) = attributes.get_item(name)?.map(Bound::cast_into::<GreenletOwner>) {
        return Ok(known.get().0);
    }
    let owner = Owner::new_green_thread();
    attributes.set_item(name, Bound::new(py, GreenletOwner(owner))?)?;
    Ok(owner)
}

/// The greenlet that runs, once the program has imported greenlets.
fn current(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    static GET_CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let get_current = match GET_CURRENT.get(py) {
        Some(known) => known.bind(py).clone(),
        None => {
            let Some(module) = needed(py)?.modules.bind(py).get_item(intern!(py, "greenlet"))? else {
                return Ok(None);
            };
            // Another thread may be importing it.
            let Some(found) = module.getattr_opt(intern!(py, "getcurrent"))? else { return Ok(None) };
            GET_CURRENT.get_or_init(py, || found.unbind()).bind(py).clone()
        }
    };
    let current = get_current.call0()?;
    // There is none any more when the interpreter ends.
    Ok((!current.is_none()).then_some(current))
}

/// What a call waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Awaited {
    /// An answer of a server, which comes whatever other greenlets do.
    Server,
    /// Other contenders, which may be greenlets of the same thread.
    Contenders,
    /// The end of a client, within 2 seconds.
    End,
}

impl Awaited {
    /// What an acquire waits for: it looks at other contenders and does not wait for them if its limit is zero.
    pub(crate) fn within(limit: Option<Duration>) -> Self {
        if limit == Some(Duration::ZERO) { Self::Server } else { Self::Contenders }
    }

    /// As `zklock/_greenlets.py` has it.
    const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Contenders => "contenders",
            Self::End => "end",
        }
    }
}

/// The hub that runs other greenlets while the calling one waits.
pub(crate) struct Hub<'py>(Bound<'py, PyAny>);

impl<'py> Hub<'py> {
    /// That of the calling thread; none where a call may block the thread. Raises where the caller must not wait at all.
    pub(crate) fn find(py: Python<'py>, awaited: Awaited) -> PyResult<Option<Self>> {
        let Some(current) = current(py)? else { return Ok(None) };
        let wait = needed(py)?.hub_wait.bind(py).call1((current, awaited.name()))?;
        Ok((!wait.is_none()).then_some(Self(wait)))
    }

    /// Waits until a bell was rung. Raises what is thrown into the greenlet meanwhile.
    pub(crate) fn wait(&self, bell: &Bell) -> PyResult<()> {
        self.0.call1((bell.0.as_raw_fd(),)).map(drop)
    }
}

/// What any thread may ring to wake a greenlet that waits. Stays rung.
#[derive(Clone)]
pub(crate) struct Bell(Arc<EventFd>);

impl Bell {
    pub(crate) fn new(py: Python<'_>) -> PyResult<Self> {
        Ok(Self(Arc::new(EventFd::new().or_raise(py)?)))
    }

    pub(crate) fn ring(&self) {
        self.0.signal();
    }
}
