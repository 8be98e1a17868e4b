//! The `zklock` command, for `python -m zklock` and for the script that the wheel installs. This file must not
//! interpret the arguments.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Run the ``zklock`` command with the given process arguments, and return the exit code of the command. The process must
/// have no other threads.
#[pyfunction]
pub(crate) fn _main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| zklock_command::main(arguments))
}
