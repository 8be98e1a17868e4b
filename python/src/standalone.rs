//! The class `zklock.testing.StandaloneServer`. The class is for tests, so no other file of the native module may use it.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt};
use zklock_proto::OpCode;
use zklock_standalone::{Server, SessionInfo, Settings, Target};

use crate::client::Client;
use crate::detached_drop::DetachedDrop;
use crate::display::{repr, type_name};
use crate::errors::{OrRaise, ignore_forked, wrong_type, wrong_value};
use crate::seconds::{self, Seconds};
use crate::{int_args, text};

/// A ZooKeeper server for tests. The server runs on a thread of this process, keeps its data in memory, and does not replicate data to
/// other servers.
///
/// ``address`` is ``"host:port"``; port 0 selects a free port. Raises ValueError for a malformed address, and ServerError if the server
/// cannot listen at the address.
///
/// The methods that cause a fault take an argument ``session``. The argument is a client, the id of a session, or None. With
/// ``session=None``, a fault applies to all clients. ``freeze()`` and ``delay()`` also apply to later connections and later clients.
/// ``lose_reply()`` with ``session=None`` drops only the reply to the first client that sends such a request. When the method returns, the fault is already in effect. The method raises ValueError if the
/// session is unknown. Session timeouts may be as short as 0.1 seconds.
///
/// The server ends with ``stop()``, at the end of a ``with`` block, or when the object is garbage-collected. After the end of the
/// server, all methods except ``stop()`` raise ClientClosed. Any thread may call the methods. The methods do not block. In a forked
/// child process, all methods except ``stop()`` raise Forked.
#[pyclass(frozen, weakref, module = "zklock.testing")]
pub(crate) struct StandaloneServer {
    core: DetachedDrop<Server>,
}

#[pymethods]
impl StandaloneServer {
    #[new]
    #[pyo3(signature = (address="127.0.0.1:0".to_owned()), text_signature = "(address='127.0.0.1:0')")]
    fn new(py: Python<'_>, #[pyo3(from_py_with = text::address)] address: String) -> PyResult<Self> {
        let server = py.detach(|| Server::bind(address, Settings::for_tests())).or_raise(py)?;
        Ok(Self { core: DetachedDrop::new(server) })
    }

    /// The address at which the server listens, such as ``"127.0.0.1:2181"``. The address is a connect string for ``zklock.Client``.
    #[getter]
    fn address(&self) -> String {
        self.core.address().to_string()
    }

    /// Return the sessions that have not ended, as a list of Sessions.
    fn sessions(&self, py: Python<'_>) -> PyResult<Vec<Session>> {
        let sessions = py.detach(|| self.core.sessions()).or_raise(py)?;
        Ok(sessions.into_iter().map(Session).collect())
    }

    /// End a session at once, as if its session timeout had passed. The client loses the locks of the session.
    #[pyo3(signature = (session=None))]
    fn expire(&self, py: Python<'_>, session: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let target = target(py, session)?;
        py.detach(|| self.core.expire(target)).or_raise(py)
    }

    /// Reset a client's connection. The session continues, and the client may reconnect.
    #[pyo3(signature = (session=None))]
    fn cut(&self, py: Python<'_>, session: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let target = target(py, session)?;
        py.detach(|| self.core.cut(target)).or_raise(py)
    }

    /// Freeze a client's connections: messages in both directions arrive only after ``thaw()``. The session of a frozen client expires
    /// after its timeout, because the server receives no messages from the client.
    #[pyo3(signature = (session=None))]
    fn freeze(&self, py: Python<'_>, session: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let target = target(py, session)?;
        py.detach(|| self.core.freeze(target)).or_raise(py)
    }

    /// End the effect of ``freeze()``. The delayed messages then arrive. The method also works for an expired session, so that the
    /// server can report the expiry to the client.
    #[pyo3(signature = (session=None))]
    fn thaw(&self, py: Python<'_>, session: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let target = target(py, session)?;
        py.detach(|| self.core.thaw(target)).or_raise(py)
    }

    /// Delay all later messages to a client by ``seconds``; 0 ends the delay.
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

    /// Drop the reply to a client's next ``op`` request, and close the client's connection. The server still executes the request.
    /// ``op`` is an ``Op``, or a request number of ZooKeeper.
    #[pyo3(signature = (op, session=None))]
    fn lose_reply(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = int_args::op)] op: i32,
        session: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let Ok(op) = OpCode::try_from(op) else {
            return Err(wrong_value(format!("op is {op}; expected the number of a ZooKeeper request")));
        };
        let target = target(py, session)?;
        py.detach(|| self.core.lose_reply(target, op)).or_raise(py)
    }

    /// Close all connections, and accept no connections until ``restart()``. No session expires while the server is halted.
    fn halt(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.halt()).or_raise(py)
    }

    /// Close all connections, and continue with the same data at the same address. Every session timeout restarts. Raises
    /// ServerError if another process is now listening on the address.
    fn restart(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.restart()).or_raise(py)
    }

    /// End the server: close the connections and the port, and discard the data. A program may call ``stop()`` several times. In a
    /// forked child process, ``stop()`` does nothing.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        ignore_forked(py.detach(|| self.core.stop())).or_raise(py)
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// Stop the server.
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

/// The properties that a session had when the program called ``sessions()``. Sessions are immutable and comparable.
#[pyclass(frozen, eq, skip_from_py_object, module = "zklock.testing")]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Session(SessionInfo);

#[pymethods]
impl Session {
    /// The id of the session.
    #[getter]
    fn id(&self) -> i64 {
        self.0.id
    }

    /// The negotiated session timeout, in seconds.
    #[getter]
    fn timeout(&self) -> f64 {
        self.0.timeout.as_secs_f64()
    }

    /// Whether the client of the session was connected when the program called ``sessions()``.
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

/// Returns the sessions that a fault applies to. The argument is a client, a session id or None.
fn target(py: Python<'_>, session: Option<&Bound<'_, PyAny>>) -> PyResult<Target> {
    let Some(session) = session else { return Ok(Target::All) };
    if let Ok(client) = session.cast::<Client>() {
        return of_client(client.get().session_id(py)?);
    }
    if session.is_instance_of::<PyInt>() && !session.is_instance_of::<PyBool>() {
        return match session.extract() {
            Ok(id) => Ok(Target::Session(id)),
            Err(_) => Err(wrong_value(format!("session is {}; expected the id of a session", repr(session)?))),
        };
    }
    // The argument may be a client of zklock.aio.
    if let Ok(id) = session.getattr("session_id").and_then(|id| id.extract()) {
        return of_client(id);
    }
    let kind = type_name(session);
    Err(wrong_type(format!("session: expected a zklock.Client, a session id or None, not {kind}")))
}

fn of_client(session: i64) -> PyResult<Target> {
    match session {
        0 => Err(wrong_value("the client has no session now")),
        id => Ok(Target::Session(id)),
    }
}
