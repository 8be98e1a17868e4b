//! The native module of the Python package `zklock`, with Python classes for the client and the locks of the core, and a server for
//! tests. The module converts arguments, releases the interpreter's lock around calls that may block, and lets Ctrl-C interrupt a
//! wait. The core implements everything else.

#![deny(clippy::disallowed_methods)]

mod aio;
mod auth;
mod callback;
mod client;
mod command;
mod detached_drop;
mod display;
mod errors;
mod event;
mod greenlet;
mod held_locks;
mod hold;
mod hold_tracker;
mod imports;
mod int_args;
mod lock;
mod log;
mod metrics;
mod once;
mod participant;
mod python_call;
mod resource_warning;
mod seconds;
mod semaphore;
mod standalone;
mod states;
mod task_lock;
mod text;
mod unknown_args;
mod wait;

use pyo3::prelude::*;

/// The native module of zklock. Programs import the package `zklock`.
#[pymodule(gil_used = false)]
mod _zklock {
    #[pymodule_export]
    use super::aio::_listen;
    #[pymodule_export]
    use super::aio::_semaphore_nowait;
    #[pymodule_export]
    use super::aio::_set_revocable;
    #[pymodule_export]
    use super::aio::_timeout;
    #[pymodule_export]
    use super::aio::CompletionQueue;
    #[pymodule_export]
    use super::aio::Op;
    #[pymodule_export]
    use super::aio::Settings;
    #[pymodule_export]
    use super::callback::_next_call;
    #[pymodule_export]
    use super::callback::_report_unraisable;
    #[pymodule_export]
    use super::client::_close_all;
    #[pymodule_export]
    use super::client::Client;
    #[pymodule_export]
    use super::command::_main;
    #[pymodule_export]
    use super::event::Listener;
    #[pymodule_export]
    use super::hold::Busy;
    #[pymodule_export]
    use super::hold::Hold;
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
    use super::once::OncePer;
    #[pymodule_export]
    use super::once::Run;
    #[pymodule_export]
    use super::semaphore::Leases;
    #[pymodule_export]
    use super::semaphore::Semaphore;
    #[pymodule_export]
    use super::standalone::Session;
    #[pymodule_export]
    use super::standalone::StandaloneServer;
    #[pymodule_export]
    use super::task_lock::TaskLock;

    use super::*;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = ::zklock::VERSION;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        imports::imports(module.py()).map(drop)
    }

    /// Check that the calling interpreter was the first to import the module. The package calls this function at each
    /// import, because all interpreters of a process share one native module.
    #[pyfunction]
    fn _check_interpreter(py: Python<'_>) -> PyResult<()> {
        imports::check_interpreter(py)
    }

    /// Return the core's table of statuses. Each row has a number, the name of the C macro, the name of the exception, and a text.
    #[pyfunction]
    fn _statuses() -> Vec<(i32, &'static str, &'static str, &'static str)> {
        ::zklock::Status::ALL.iter().map(|s| (s.number(), s.name(), s.python(), s.text())).collect()
    }
}
