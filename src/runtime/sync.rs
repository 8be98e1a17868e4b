//! The locks of the runtime, and threads that wait for what is under one: std's. In the models (feature `loom`) they are loom's,
//! which tries every order in which threads may come to them.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[cfg(feature = "loom")]
pub(crate) use loom::sync::MutexGuard;
#[cfg(feature = "loom")]
use loom::{sync::Condvar, thread};
#[cfg(feature = "loom")]
pub(super) use loom::{
    sync::Mutex,
    thread::{Builder, JoinHandle, ThreadId},
    thread_local,
};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::MutexGuard;
#[cfg(not(feature = "loom"))]
use std::{sync::Condvar, thread};
#[cfg(not(feature = "loom"))]
pub(super) use std::{
    sync::Mutex,
    thread::{Builder, JoinHandle, ThreadId},
    thread_local,
};

/// The data under these locks is whole between any two statements, so a panic elsewhere does not spoil it.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn current_thread() -> ThreadId {
    thread::current().id()
}

/// A value whose changes threads wait for.
#[derive(Default)]
pub(crate) struct Monitor<T> {
    value: Mutex<T>,
    changed: Condvar,
    /// How many threads wait; it changes under the lock.
    waiting: AtomicUsize,
}

impl<T> Monitor<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Condvar::new(), waiting: AtomicUsize::new(0) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        lock(&self.value)
    }

    /// Wakes all who wait, so that they look at the value, which was changed before; the lock may be free again. Where nobody waits, which
    /// is often, no system call is spent on it.
    pub(crate) fn notify(&self) {
        // Who began to wait before the value was changed had counted himself under the lock by then.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }

    /// Has `wait` give the lock away until it is notified.
    fn counted<'a, R>(&'a self, guard: MutexGuard<'a, T>, wait: impl FnOnce(MutexGuard<'a, T>) -> R) -> R {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let woken = wait(guard);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        woken
    }

    /// Waits as long as `condition` holds, `limit` at most; with a limit of zero it looks, and does not wait.
    pub(super) fn wait_while<'a>(
        &'a self,
        guard: MutexGuard<'a, T>,
        limit: Option<Duration>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        match limit {
            None => self.wait_for_ever(guard, condition),
            Some(Duration::ZERO) => guard,
            Some(limit) => self.wait_in_time(guard, limit, condition),
        }
    }
}

#[cfg(not(feature = "loom"))]
impl<T> Monitor<T> {
    /// Waits until somebody notifies, `limit` at most, or for no reason at all.
    pub(crate) fn wait<'a>(&'a self, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        self.counted(guard, |guard| self.changed.wait_timeout(guard, limit)).unwrap_or_else(PoisonError::into_inner).0
    }

    fn wait_for_ever<'a>(
        &'a self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.counted(guard, |guard| self.changed.wait_while(guard, condition)).unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_in_time<'a>(
        &'a self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let wait = |guard| self.changed.wait_timeout_while(guard, limit, condition);
        self.counted(guard, wait).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Loom knows no time. A limit that passes is a wait during which others do as much as they like, or nothing.
#[cfg(feature = "loom")]
impl<T> Monitor<T> {
    pub(crate) fn wait<'a>(&'a self, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        if limit == Duration::MAX {
            return self.counted(guard, |guard| self.changed.wait(guard)).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        thread::yield_now();
        self.lock()
    }

    fn wait_for_ever<'a>(
        &'a self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        while condition(&mut guard) {
            guard = self.counted(guard, |guard| self.changed.wait(guard)).unwrap_or_else(PoisonError::into_inner);
        }
        guard
    }

    fn wait_in_time<'a>(
        &'a self,
        mut guard: MutexGuard<'a, T>,
        limit: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        match limit {
            Duration::MAX => self.wait_for_ever(guard, condition),
            _ if condition(&mut guard) => self.wait(guard, limit),
            _ => guard,
        }
    }
}
