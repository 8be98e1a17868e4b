//! Calls Python code. Other files must not call Python objects in another way; `python/clippy.toml` lists the methods that they must
//! not use.
//!
//! While the interpreter shuts down, Python 3.13 and earlier call `pthread_exit` on a daemon thread that runs Python code. This function
//! unwinds the stack of the thread. The stack must not be unwound through pyo3's functions, so the process would end with SIGABRT or
//! SIGSEGV. The functions of this file instead block such a thread until the process ends. Python 3.14 also blocks these threads.

use std::{mem, ptr, thread};

use pyo3::BoundObject;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

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
        // SAFETY: Both pointers are valid during the call, the thread is attached to the interpreter, and `arguments` is a tuple.
        let answer = block_on_unwind(|| unsafe {
            let call: unsafe extern "C" fn(*mut PyObject, *mut PyObject) -> *mut PyObject = ffi::PyObject_CallObject;
            let call: unsafe extern "C-unwind" fn(*mut PyObject, *mut PyObject) -> *mut PyObject = mem::transmute(call);
            ptr::read_volatile(&call)(self.as_ptr(), arguments.as_ptr())
        });
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

/// Passes an exception to `sys.unraisablehook`. `object` is the object that caused the exception.
pub(crate) fn write_unraisable(py: Python<'_>, error: PyErr, object: Option<&Bound<'_, PyAny>>) {
    let object = object.map_or_else(ptr::null_mut, Bound::as_ptr);
    error.restore(py);
    // SAFETY: The pointer is valid during the call or null, the thread is attached to the interpreter, and an exception is set.
    block_on_unwind(|| unsafe {
        let write: unsafe extern "C" fn(*mut PyObject) = ffi::PyErr_WriteUnraisable;
        let write: unsafe extern "C-unwind" fn(*mut PyObject) = mem::transmute(write);
        ptr::read_volatile(&write)(object);
    });
}

/// Runs `call`. If `pthread_exit` unwinds the stack meanwhile, the function blocks the thread.
///
/// `call` must read the address of the function that it calls with `read_volatile`. pyo3 declares Python's functions as functions that
/// do not unwind. If the compiler knew which function is called, it would apply that declaration, and remove the guard.
fn block_on_unwind<T>(call: impl FnOnce() -> T) -> T {
    struct Guard;
    impl Drop for Guard {
        fn drop(&mut self) {
            loop {
                thread::park();
            }
        }
    }
    let guard = Guard;
    let answer = call();
    mem::forget(guard);
    answer
}
