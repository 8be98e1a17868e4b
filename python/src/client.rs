//! `zklock.Client`.

use std::sync::{self, PoisonError};
use std::thread;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use zklock::{Config, Connecting, PerProcess, WeakClient};

use crate::errors::{OrRaise, add_to, word};
use crate::mutex::Mutex;
use crate::parting::Parting;
use crate::seconds::{self, Seconds};
use crate::states::client_state;
use crate::wait::{interpreter_ends, wait};

/// A client: one ZooKeeper session, shared by any number of locks and threads.
///
/// ``servers`` is a connect string like ``"host:2181,host:2181/chroot"``. All durations are seconds, as int or float:
///
/// * ``session_timeout``: how long the servers keep a session they do not hear of; they may negotiate another value.
/// * ``connect_timeout``: how long this call may take.
/// * ``lease_margin``: how long before the session can end its locks cease to count as held; None means a third of the
///   negotiated session timeout.
/// * ``auth``: pairs of scheme and credentials, for instance ``[("digest", "user:password")]``.
///
/// Waits for the session, ``connect_timeout`` at most. Ctrl-C interrupts the wait. Raises ConnectionLost where no server
/// answers in time, AuthFailed where one refuses the credentials, ValueError and TypeError for wrong arguments.
///
/// The session ends with ``close()``, at the end of a ``with`` block, when the client and all its locks are gone, or with the
/// interpreter (``atexit``).
/// Methods may be called from any thread. In the child of a fork every call raises Forked: make a client there.
#[pyclass(frozen, weakref, module = "zklock")]
pub(crate) struct Client {
    core: Parting<zklock::Client>,
    servers: String,
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(
        signature = (servers, *, session_timeout=Seconds::new(10), connect_timeout=Seconds::new(10), lease_margin=None, auth=None),
        text_signature = "(servers, *, session_timeout=10.0, connect_timeout=10.0, lease_margin=None, auth=())"
    )]
    fn new(
        py: Python<'_>,
        servers: String,
        #[pyo3(from_py_with = seconds::session_timeout)] session_timeout: Seconds,
        #[pyo3(from_py_with = seconds::connect_timeout)] connect_timeout: Seconds,
        #[pyo3(from_py_with = seconds::lease_margin)] lease_margin: Option<Seconds>,
        auth: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut config = Config::new();
        config.set_session_timeout(session_timeout.milliseconds()).or_raise(py)?;
        config.set_connect_timeout(connect_timeout.milliseconds()).or_raise(py)?;
        if let Some(margin) = lease_margin {
            config.set_lease_margin(margin.milliseconds()).or_raise(py)?;
        }
        if let Some(auth) = auth {
            add_auth(&mut config, auth)?;
        }
        let start = || zklock::Client::start_connect(&servers, &config);
        let client = wait(py, start, Connecting::wait_for, drop)?.or_raise(py)?;
        remember(&client);
        Ok(Self { core: Parting::new(client), servers })
    }

    /// A mutex on a path: Curator's ``InterProcessMutex``, re-entrant for each thread. Nothing is sent yet.
    ///
    /// ``timeout`` (seconds; None waits without limit) is for ``with``; ``acquire()`` has its own. ``data`` is what the
    /// lock's nodes carry; None means this host's address, as in Curator. Raises ValueError for a path that ZooKeeper
    /// would not take, ClientClosed.
    #[pyo3(signature = (path, timeout=None, data=None))]
    fn mutex(
        &self,
        py: Python<'_>,
        path: String,
        #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
        data: Option<&[u8]>,
    ) -> PyResult<Mutex> {
        let lock = self.core.mutex(&path).or_raise(py)?;
        if data.is_some() {
            lock.set_data(data).or_raise(py)?;
        }
        Ok(Mutex::new(lock, path, timeout))
    }

    /// How the session stands: a ClientState. Does not block.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        client_state(py, self.core.state().or_raise(py)?)
    }

    /// The session's id; 0 while there is none. A session that expired is followed by one with another id. Does not block.
    #[getter]
    pub(crate) fn session_id(&self, py: Python<'_>) -> PyResult<i64> {
        self.core.session_id().or_raise(py)
    }

    /// Ends the session, and with it every hold; all waits end with ClientClosed, as do later calls. May be called again.
    ///
    /// Waits for the server's confirmation, but 2 seconds at most.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.close()).or_raise(py)
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// Closes. An exception of the block is not masked.
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc_value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (exc_type, traceback);
        match py.detach(|| self.core.close()) {
            Err(error) if !exc_value.is_none() => add_to(py, exc_value, "closing the client", &error),
            closed => closed.or_raise(py),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let servers = PyString::new(py, &self.servers).repr()?;
        match (self.core.state(), self.core.session_id()) {
            (Ok(state), Ok(id)) => {
                let state = client_state(py, state)?.getattr("name")?;
                Ok(format!("<zklock.Client {servers} {state} session={id:#x}>"))
            }
            (Err(error), _) | (_, Err(error)) => Ok(format!("<zklock.Client {servers} {}>", word(error.status()))),
        }
    }
}

/// The clients that nobody may have closed when the interpreter ends.
static LIVE: PerProcess<sync::Mutex<Vec<WeakClient>>> = PerProcess::new(sync::Mutex::default);

fn remember(client: &zklock::Client) {
    let mut live = LIVE.get().lock().unwrap_or_else(PoisonError::into_inner);
    live.retain(|other| other.upgrade().is_some());
    live.push(client.downgrade());
}

/// Closes all clients, side by side: at the end of the interpreter, lest a daemon thread that still waits gets a lock in a
/// process that is no more.
#[pyfunction]
pub(crate) fn _close_all(py: Python<'_>) {
    interpreter_ends();
    let live = std::mem::take(&mut *LIVE.get().lock().unwrap_or_else(PoisonError::into_inner));
    py.detach(|| {
        thread::scope(|scope| {
            for client in live.iter().filter_map(WeakClient::upgrade) {
                let own = client.clone();
                if thread::Builder::new().spawn_scoped(scope, move || own.close()).is_err() {
                    let _ = client.close();
                }
            }
        });
    });
}

fn add_auth(config: &mut Config, pairs: &Bound<'_, PyAny>) -> PyResult<()> {
    // No value in the message: it may be a password.
    let wrong = || {
        PyTypeError::new_err(
            "argument 'auth': expected pairs of scheme and credentials, like [(\"digest\", \"user:password\")]",
        )
    };
    for pair in pairs.try_iter().map_err(|_| wrong())? {
        let (scheme, credentials) = pair?.extract::<(String, Bound<'_, PyAny>)>().map_err(|_| wrong())?;
        let added = if let Ok(bytes) = credentials.cast::<PyBytes>() {
            config.add_auth(&scheme, bytes.as_bytes())
        } else if let Ok(text) = credentials.cast::<PyString>() {
            config.add_auth(&scheme, text.extract::<String>()?.as_bytes())
        } else {
            return Err(wrong());
        };
        added.or_raise(pairs.py())?;
    }
    Ok(())
}
