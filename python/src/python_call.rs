//! Calls Python code. Other files must not call Python objects in another way; `python/clippy.toml` lists the methods that they must
//! not use.
//!
//! While the interpreter shuts down, Python 3.13 and earlier call `pthread_exit` on a daemon thread that runs Python code. This function
//! unwinds the stack of the thread. The stack must not be unwound through pyo3's functions, so the process would end with SIGABRT or
//! SIGSEGV. `call_python` instead blocks such a thread until the process ends. Python 3.14 also does that, for all threads.

use std::thread;

use pyo3::BoundObject;
use pyo3::ffi::PyObject;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

// pyo3 must not use this function. pyo3 declares its functions as functions that do not unwind, and link-time optimization would apply
// that declaration here.
unsafe extern "C-unwind" {
    fn PyObject_CallObject(callable: *mut PyObject, arguments: *mut PyObject) -> *mut PyObject;
}

pub(crate) trait CallPython<'py> {
    /// Calls the object.
    fn call_python(&self, arguments: impl IntoPyObject<'py, Target = PyTuple>) -> PyResult<Bound<'py, PyAny>>;

    /// Calls a method of the object.
    fn call_python_method(
        &self,
        name: &Bound<'py, PyString>,
        arguments: impl IntoPyObject<'py, Target = PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>>;
}

impl<'py> CallPython<'py> for Bound<'py, PyAny> {
    fn call_python(&self, arguments: impl IntoPyObject<'py, Target = PyTuple>) -> PyResult<Self> {
        let py = self.py();
        let arguments = arguments.into_pyobject(py).map_err(Into::into)?.into_bound();
        let guard = BlockOnUnwind;
        // SAFETY: Both pointers are valid during the call, the thread is attached to the interpreter, and `arguments` is a tuple.
        let answer = unsafe { PyObject_CallObject(self.as_ptr(), arguments.as_ptr()) };
        std::mem::forget(guard);
        // SAFETY: The function returns a new reference, or null after it has set an exception.
        unsafe { Bound::from_owned_ptr_or_err(py, answer) }
    }

    fn call_python_method(
        &self,
        name: &Bound<'py, PyString>,
        arguments: impl IntoPyObject<'py, Target = PyTuple>,
    ) -> PyResult<Self> {
        self.getattr(name)?.call_python(arguments)
    }
}

/// Blocks the thread when `pthread_exit` unwinds its stack.
struct BlockOnUnwind;

impl Drop for BlockOnUnwind {
    fn drop(&mut self) {
        loop {
            thread::park();
        }
    }
}
