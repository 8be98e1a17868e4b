//! Drops core values while the thread is detached from the interpreter, because dropping them may block. For instance, dropping a
//! client blocks for up to two seconds, until the server confirms the end of the session. A Python object must store such a value in a
//! `DetachedDrop`.

use std::ops::Deref;

use pyo3::prelude::*;

/// A value that is dropped while the thread is detached from the interpreter.
pub(crate) struct DetachedDrop<T: Send>(Option<T>);

impl<T: Send> DetachedDrop<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T: Send> Deref for DetachedDrop<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(value) => value,
            None => unreachable!("only drop takes the value"),
        }
    }
}

impl<T: Send> Drop for DetachedDrop<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        // If the thread cannot attach to an interpreter, the value is dropped at the end of this function.
        Python::try_attach(|py| py.detach(|| drop(value)));
    }
}
