//! `zklock.testing.StandaloneServer`.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt};
use zklock::proto::OpCode;
use zklock_standalone::{Server, SessionInfo, Settings, Target};

use crate::client::Client;
use crate::errors::{OrRaise, unless_forked};
use crate::parting::Parting;
use crate::seconds::{self, Seconds};
use crate::{text, whole};

/// A ZooKeeper server in memory, on a thread of this process, for tests. It does not replicate, and writes nothing to disk.
///
/// ``address`` is ``"host:port"``; port 0 stands for a free one. Raises ValueError where it is no address, ServerError where
/// nobody can listen there.
///
/// Its faults are for one client: a ``zklock.Client``, or a session's id; or for all, also those that come later, where
/// ``session`` is None. They follow a client to the connections that it makes later, and are in force when the call
/// returns. A session that the server does not know is a ValueError. Sessions may be as short as 0.1 seconds.
///
/// The server ends with ``stop()``, at the end of a ``with`` block, or when it is garbage-collected; from then on all methods
/// raise ClientClosed. They may be called from any thread, and do not block. In the child of a fork they raise Forked.
#[pyclass(frozen, weakref, module = "zklock.testing")]
pub(crate) struct StandaloneServer {
    core: Parting<Server>,
}

#[pymethods]
impl StandaloneServer {
    #[new]
    #[pyo3(signature = (address="127.0.0.1:0".to_owned()), text_signature = "(address='127.0.0.1:0')")]
    fn new(py: Python<'_>, #[pyo3(from_py_with = text::address)] address: String) -> PyResult<Self> {
        let server = py.detach(|| Server::bind(address, Settings::for_tests())).or_raise(py)?;
        Ok(Self { core: Parting::new(server) })
    }

    /// Where it listens, as ``zklock.Client`` wants it: like ``"127.0.0.1:2181"``.
    #[getter]
    fn address(&self) -> String {
        self.core.address().to_string()
    }

    /// The sessions that are alive, as the server sees them.
    fn sessions(&self, py: Python<'_>) -> PyResult<Vec<Session>> {
        let sessions = py.detach(|| self.core.sessions()).or_raise(py)?;
        Ok(sessions.into_iter().map(Session).collect())
    }

    /// Ends a session at once, as if it had been silent for too long: its locks are lost.
    #[pyo3(signature = (session=None))]
    fn expire(&self, py: Python<'_>, session: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let target = target(py, session)?;
        py.detach(|| self.core.expire(target)).or_raise(py)
    }

    /// Resets a client's connection. The client may come back, and its session lives on.
    #[pyo3(signature = (session=None))]
    fn cut(&self, py: Python<'_>, session: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let target = target(py, session)?;
        py.detach(|| self.core.cut(target)).or_raise(py)
    }

    /// Lets a client's connections stand still: what is sent, either way, arrives when they are thawed. The server hears
    /// nothing of the client, so its session expires in time.
    #[pyo3(signature = (session=None))]
    fn freeze(&self, py: Python<'_>, session: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let target = target(py, session)?;
        py.detach(|| self.core.freeze(target)).or_raise(py)
    }

    /// Ends ``freeze()``, also for a session that has expired meanwhile: its client can now be told.
    #[pyo3(signature = (session=None))]
    fn thaw(&self, py: Python<'_>, session: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let target = target(py, session)?;
        py.detach(|| self.core.thaw(target)).or_raise(py)
    }

    /// Delays everything that a client is sent from now on, by so many seconds; 0 ends it.
    #[pyo3(signature = (seconds, session=None))]
    fn delay(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = seconds::seconds)] seconds: Seconds,
        session: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let target = target(py, session)?;
        py.detach(|| self.core.delay(target, seconds.milliseconds())).or_raise(py)
    }

    /// Lets the reply to a client's next request of this kind be lost, and its connection with it, though the request is
    /// carried out. ``op`` is an ``Op``, or any other of ZooKeeper's numbers for a request.
    #[pyo3(signature = (op, session=None))]
    fn lose_reply(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::op)] op: i32,
        session: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let Ok(op) = OpCode::try_from(op) else {
            return Err(PyValueError::new_err(format!("op {op} is no request of ZooKeeper's")));
        };
        let target = target(py, session)?;
        py.detach(|| self.core.lose_reply(target, op)).or_raise(py)
    }

    /// Closes all connections, and takes none until ``restart()``. Meanwhile no session expires.
    fn halt(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.halt()).or_raise(py)
    }

    /// Closes all connections and goes on, with the same data at the same address. All sessions have their whole time once
    /// more. Raises ServerError where somebody else listens there now.
    fn restart(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.restart()).or_raise(py)
    }

    /// Ends the server: its connections and its port are closed, its data is forgotten. May be called again. Does nothing in
    /// the child of a fork.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        unless_forked(py.detach(|| self.core.stop())).or_raise(py)
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// Stops.
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc_value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (exc_type, exc_value, traceback);
        self.stop(py)
    }

    fn __repr__(&self) -> String {
        format!("<zklock.testing.StandaloneServer '{}'>", self.core.address())
    }
}

/// A session, as the server saw it. Immutable; comparable.
#[pyclass(frozen, eq, skip_from_py_object, module = "zklock.testing")]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Session(SessionInfo);

#[pymethods]
impl Session {
    /// Its id.
    #[getter]
    fn id(&self) -> i64 {
        self.0.id
    }

    /// The timeout agreed when it began, in seconds.
    #[getter]
    fn timeout(&self) -> f64 {
        self.0.timeout.as_secs_f64()
    }

    /// True if its client was connected.
    #[getter]
    fn is_connected(&self) -> bool {
        self.0.is_connected
    }

    fn __repr__(&self) -> String {
        let SessionInfo { id, timeout, is_connected } = self.0;
        let connected = if is_connected { "connected" } else { "not connected" };
        format!("<zklock.testing.Session {id:#x} timeout={} {connected}>", timeout.as_secs_f64())
    }
}

/// Who is meant by a client, by a session's id, or by None.
fn target(py: Python<'_>, session: Option<&Bound<'_, PyAny>>) -> PyResult<Target> {
    let Some(session) = session else { return Ok(Target::All) };
    if let Ok(client) = session.cast::<Client>() {
        return of_client(client.get().session_id(py)?);
    }
    if session.is_instance_of::<PyInt>() && !session.is_instance_of::<PyBool>() {
        return match session.extract() {
            Ok(id) => Ok(Target::Session(id)),
            Err(_) => Err(PyValueError::new_err(format!("{session} is no session's id"))),
        };
    }
    // A client of zklock.aio.
    if let Ok(id) = session.getattr("session_id").and_then(|id| id.extract()) {
        return of_client(id);
    }
    let kind = session.get_type().name()?;
    Err(PyTypeError::new_err(format!("session: expected a zklock.Client, a session's id or None, not {kind}")))
}

fn of_client(session: i64) -> PyResult<Target> {
    match session {
        0 => Err(PyValueError::new_err("the client has no session now")),
        id => Ok(Target::Session(id)),
    }
}
