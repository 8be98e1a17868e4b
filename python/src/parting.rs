//! Values of the core whose end may block: a client waits up to two seconds for the server to confirm that its session is
//! closed. They end with the interpreter's lock released, wherever Python happens to let go of them.

use std::ops::Deref;

use pyo3::prelude::*;

/// A value that is dropped detached from the interpreter.
pub(crate) struct Parting<T: Send>(Option<T>);

impl<T: Send> Parting<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T: Send> Deref for Parting<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(value) => value,
            None => unreachable!("taken by drop alone"),
        }
    }
}

impl<T: Send> Drop for Parting<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        // Where there is no interpreter to attach to (any more), the value just drops at the end of this function.
        Python::try_attach(|py| py.detach(|| drop(value)));
    }
}
