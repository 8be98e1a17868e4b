//! The argument `auth`: credentials, and callables that return credentials.
//!
//! The core asks for credentials on a library thread. A Python thread (`zklock/_callbacks.py`) calls the callable,
//! because only a thread that Python started can end safely when the interpreter ends. A library thread is detached
//! from the interpreter while it waits for the result. A library thread must not call a callable.

use std::error::Error;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use zeroize::Zeroizing;
use zklock::Config;
use zklock::internal::{PerProcess, configure, mark_callback_thread};

use crate::callback::{CallbackSlot, WeakCallback};
use crate::display::type_name;
use crate::errors::{OrRaise, wrong_type};
use crate::python_call::CallPython;
use crate::text;
use crate::wait::is_exiting;

/// The pairs of the argument `auth`.
#[derive(Default)]
pub(crate) struct AuthPairs(Vec<(String, Credentials)>);

enum Credentials {
    Fixed(Zeroizing<Vec<u8>>),
    /// The core has only a weak reference to the callable. The callable often refers to the client, so a strong
    /// reference would keep the client alive.
    Callable(Py<CallbackSlot>),
}

impl AuthPairs {
    pub(crate) fn of(pairs: &Bound<'_, PyAny>) -> PyResult<Self> {
        // The message must not contain the value, because the value may be a password.
        let wrong = || {
            wrong_type(
                "auth: expected pairs of scheme and credentials, like [(\"digest\", \"user:password\")], or of scheme and a callable that \
                 returns credentials",
            )
        };
        let pair = |pair: PyResult<Bound<'_, PyAny>>| {
            let (scheme, credentials) =
                pair?.extract::<(Bound<'_, PyString>, Bound<'_, PyAny>)>().map_err(|_| wrong())?;
            let credentials = match bytes_of(&credentials)? {
                Some(bytes) => Credentials::Fixed(bytes),
                None if credentials.is_callable() => {
                    let slot = CallbackSlot::new(Some(credentials.clone().unbind()));
                    Credentials::Callable(Py::new(credentials.py(), slot)?)
                }
                None => return Err(wrong()),
            };
            Ok((text::secret("auth", &scheme)?, credentials))
        };
        pairs.try_iter().map_err(|_| wrong())?.map(pair).collect::<PyResult<_>>().map(Self)
    }

    /// Adds the credentials to a config. While the client exists, a Python object must own the slots of the callables.
    pub(crate) fn add_to(&self, py: Python<'_>, config: &mut Config) -> PyResult<()> {
        for (scheme, credentials) in &self.0 {
            match credentials {
                Credentials::Fixed(bytes) => configure(config, |config| config.add_auth(scheme, bytes)),
                Credentials::Callable(slot) => {
                    let callable = WeakCallback::new(slot.bind(py))?;
                    configure(config, |config| config.auth_callback(scheme, move || call(&callable)))
                }
            }
            .or_raise(py)?;
        }
        Ok(())
    }

    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        let clone = |credentials: &Credentials| match credentials {
            Credentials::Fixed(bytes) => Credentials::Fixed(bytes.clone()),
            Credentials::Callable(slot) => Credentials::Callable(slot.clone_ref(py)),
        };
        Self(self.0.iter().map(|(scheme, credentials)| (scheme.clone(), clone(credentials))).collect())
    }

    /// Returns the slots of the callables.
    pub(crate) fn slots(&self, py: Python<'_>) -> Vec<Py<CallbackSlot>> {
        let slot = |credentials: &Credentials| match credentials {
            Credentials::Callable(slot) => Some(slot.clone_ref(py)),
            Credentials::Fixed(_) => None,
        };
        self.0.iter().filter_map(|(_, credentials)| slot(credentials)).collect()
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.iter().try_for_each(|(_, credentials)| match credentials {
            Credentials::Callable(slot) => visit.call(slot),
            Credentials::Fixed(_) => Ok(()),
        })
    }
}

/// Returns the content of a `bytes` or `str` object, or None for other objects.
fn bytes_of(value: &Bound<'_, PyAny>) -> PyResult<Option<Zeroizing<Vec<u8>>>> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(Some(Zeroizing::new(bytes.as_bytes().to_vec())));
    }
    let text = value.cast::<PyString>().ok();
    text.map(|text| Ok(Zeroizing::new(text::secret("auth", text)?.into_bytes()))).transpose()
}

type BoxError = Box<dyn Error + Send + Sync>;

/// Makes a Python thread call a callable, and waits for the result. The core calls this function on a library thread.
fn call(callable: &WeakCallback) -> Result<Vec<u8>, BoxError> {
    let outcome = Arc::new(Outcome::default());
    start(callable, &outcome)?;
    let mut credentials = outcome.wait()?;
    Ok(std::mem::take(&mut *credentials))
}

/// Each library thread holds a read lock on `ATTACHED` while the thread is attached to the interpreter.
static ATTACHED: PerProcess<RwLock<()>> = PerProcess::new(RwLock::default);

fn start(callable: &WeakCallback, outcome: &Arc<Outcome>) -> Result<(), BoxError> {
    let attached = ATTACHED.get().read().unwrap_or_else(PoisonError::into_inner);
    let ended = || Err::<(), BoxError>("the interpreter is about to end".into());
    if is_exiting() {
        return ended();
    }
    let start = |py: Python<'_>| {
        let Some(callable) = callable.get(py) else {
            outcome.set(Err("the program no longer uses the client".to_owned()));
            return Ok(());
        };
        let call = AuthCall { callable, outcome: Arc::clone(outcome) };
        py.import("zklock._callbacks")?.call_python_method(intern!(py, "start_auth_call"), (call,)).map(drop)
    };
    let started = Python::try_attach(|py| start(py).map_err(|error| describe(error.value(py)).into()));
    drop(attached);
    started.unwrap_or_else(ended)
}

/// Waits until no library thread is attached to the interpreter. The caller must be detached from the interpreter, and must have
/// recorded that the interpreter is about to end.
pub(crate) fn wait_until_detached() {
    drop(ATTACHED.get().write());
}

/// The result of a call: the credentials, or an error message that the library passes on to the program.
#[derive(Default)]
struct Outcome {
    result: Mutex<Option<Result<Zeroizing<Vec<u8>>, String>>>,
    is_set: Condvar,
}

impl Outcome {
    /// Sets the result, unless it is set already.
    fn set(&self, result: Result<Zeroizing<Vec<u8>>, String>) {
        self.lock().get_or_insert(result);
        self.is_set.notify_all();
    }

    fn wait(&self) -> Result<Zeroizing<Vec<u8>>, String> {
        let result = self.is_set.wait_while(self.lock(), |result| result.is_none());
        let result = result.unwrap_or_else(PoisonError::into_inner).take();
        result.unwrap_or_else(|| Err("it has no result".to_owned()))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Result<Zeroizing<Vec<u8>>, String>>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One call to a callable that the program passed in the argument ``auth``. The thread that makes the call must call ``begin()``, and
/// then ``finish()`` or ``fail()``. Only `zklock/_callbacks.py` receives objects of this class.
#[pyclass(frozen, module = "zklock")]
struct AuthCall {
    callable: Py<PyAny>,
    outcome: Arc<Outcome>,
}

#[pymethods]
impl AuthCall {
    /// Return the callable. After ``begin()``, the calling thread must do only the work of this call.
    fn begin(&self, py: Python<'_>) -> Py<PyAny> {
        mark_callback_thread();
        self.callable.clone_ref(py)
    }

    /// Set the result of the call.
    fn finish(&self, result: &Bound<'_, PyAny>) {
        self.outcome.set(match bytes_of(result) {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => {
                let kind = type_name(result);
                Err(format!("it returned {kind}; expected bytes or str"))
            }
            Err(_) => Err("it returned text that UTF-8 cannot encode".to_owned()),
        });
    }

    /// Record that the call raised an exception.
    fn fail(&self, error: &Bound<'_, PyAny>) {
        self.outcome.set(Err(describe(error)));
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.callable)
    }
}

/// If a call is dropped before it has a result, its result becomes an error. Otherwise, a library thread would wait forever for
/// the result.
impl Drop for AuthCall {
    fn drop(&mut self) {
        self.outcome.set(Err("its thread has ended".to_owned()));
    }
}

/// Returns the type and the text of an exception.
fn describe(error: &Bound<'_, PyAny>) -> String {
    let kind = type_name(error);
    match error.str() {
        Ok(text) if !text.is_empty().unwrap_or(true) => format!("{kind}: {}", text.to_string_lossy()),
        _ => kind,
    }
}
