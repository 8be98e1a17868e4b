//! The native half of the Python package `zklock`: the core's client and locks as Python classes, and a server to test them on. It converts arguments,
//! releases the interpreter's lock around whatever may block, and lets Ctrl-C interrupt a wait; it decides nothing.

mod aio;
mod callback;
mod client;
mod errors;
mod event;
mod greenlet;
mod lock;
mod log;
mod metrics;
mod needed;
mod participant;
mod parting;
mod seconds;
mod semaphore;
mod standalone;
mod states;
mod text;
mod wait;
mod waiting;
mod whole;

use pyo3::prelude::*;

/// The native half of zklock. Programs import `zklock`.
#[pymodule(gil_used = false)]
mod _zklock {
    #[pymodule_export]
    use super::aio::_fencing_pass;
    #[pymodule_export]
    use super::aio::_fencing_token;
    #[pymodule_export]
    use super::aio::_is_held;
    #[pymodule_export]
    use super::aio::_node_path;
    #[pymodule_export]
    use super::aio::_node_paths;
    #[pymodule_export]
    use super::aio::_release_nowait;
    #[pymodule_export]
    use super::aio::_remaining;
    #[pymodule_export]
    use super::aio::_semaphore;
    #[pymodule_export]
    use super::aio::_set_revocable;
    #[pymodule_export]
    use super::aio::_state;
    #[pymodule_export]
    use super::aio::Inbox;
    #[pymodule_export]
    use super::aio::Op;
    #[pymodule_export]
    use super::aio::Settings;
    #[pymodule_export]
    use super::callback::_next_call;
    #[pymodule_export]
    use super::callback::_report;
    #[pymodule_export]
    use super::client::_close_all;
    #[pymodule_export]
    use super::client::_read_options;
    #[pymodule_export]
    use super::client::Client;
    #[pymodule_export]
    use super::lock::Lock;
    #[pymodule_export]
    use super::lock::MultiLock;
    #[pymodule_export]
    use super::lock::Mutex;
    #[pymodule_export]
    use super::lock::ReadLock;
    #[pymodule_export]
    use super::lock::RwLock;
    #[pymodule_export]
    use super::lock::SemaphoreMutex;
    #[pymodule_export]
    use super::lock::WriteLock;
    #[pymodule_export]
    use super::participant::Participant;
    #[pymodule_export]
    use super::semaphore::Leases;
    #[pymodule_export]
    use super::semaphore::Semaphore;
    #[pymodule_export]
    use super::standalone::Session;
    #[pymodule_export]
    use super::standalone::StandaloneServer;
    #[pymodule_export]
    use super::waiting::Waiting;

    use super::*;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = ::zklock::VERSION;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        needed::needed(module.py()).map(drop)
    }

    /// Called whenever the package is imported; the module itself is only initialised in the first interpreter.
    #[pyfunction]
    fn _check_interpreter(py: Python<'_>) -> PyResult<()> {
        needed::check_interpreter(py)
    }

    /// The core's table of statuses: number, name of the C macro, name of the exception, text.
    #[pyfunction]
    fn _statuses() -> Vec<(i32, &'static str, &'static str, &'static str)> {
        ::zklock::Status::ALL.iter().map(|s| (s.number(), s.name(), s.python(), s.text())).collect()
    }
}
