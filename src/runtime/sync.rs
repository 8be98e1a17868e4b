//! The locks and condition variables of the runtime. They are those of the standard library. In the models (cfg
//! `zklock_loom`), the locks come from loom, which tries every possible order of the threads' steps. The models have no
//! clock. In the models, a time limit may pass at any moment, after any number of steps of the other threads. The code
//! in this file does not depend on the data that the locks protect.

use std::io;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[cfg(not(zklock_loom))]
use zklock_process::adopt_scheduling_of_the_process;
use zklock_process::with_signals_blocked;

#[cfg(zklock_loom)]
pub(crate) use loom::sync::MutexGuard;
#[cfg(zklock_loom)]
use loom::{
    sync::Condvar,
    thread::{self, Builder},
};
#[cfg(zklock_loom)]
pub(super) use loom::{
    sync::Mutex,
    thread::{JoinHandle, ThreadId},
    thread_local,
};
#[cfg(not(zklock_loom))]
pub(crate) use std::sync::MutexGuard;
#[cfg(not(zklock_loom))]
use std::{sync::Condvar, thread::Builder};
#[cfg(not(zklock_loom))]
pub(super) use std::{sync::Mutex, thread::JoinHandle, thread_local};

/// The identity of a thread. `std::thread::current()` panics after a thread has destroyed its thread-local data, but
/// another destructor of the program may still call the library then.
#[cfg(not(zklock_loom))]
pub(super) type ThreadId = zklock_core::engine::Owner;

/// Starts a thread of the library. The thread blocks all signals, and has the scheduling of the process instead of the
/// scheduling of the calling thread.
pub(super) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let run = move || {
        #[cfg(not(zklock_loom))]
        adopt_scheduling_of_the_process();
        run()
    };
    with_signals_blocked(|| Builder::new().name(name.to_owned()).spawn(run))
}

/// Returns the longest time for which a call waits for the end of a library thread. A thread that has not started cannot
/// end during the call, if the caller holds the lock of the dynamic loader.
pub(super) const fn join_limit(has_started: bool) -> Option<Duration> {
    match has_started {
        // In the models, every thread runs, and a limit could pass at any moment.
        _ if cfg!(zklock_loom) => None,
        true => Some(Duration::from_secs(10)),
        false => Some(Duration::from_millis(100)),
    }
}

/// Locks a mutex, even if a thread has panicked while it held the lock. The data under the mutex is consistent between
/// any two statements, so a panic does not make the data invalid.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn current_thread() -> ThreadId {
    #[cfg(zklock_loom)]
    return thread::current().id();
    #[cfg(not(zklock_loom))]
    ThreadId::current_thread()
}

/// A value, and a condition variable that signals changes of the value.
#[derive(Default)]
pub(crate) struct Monitor<T> {
    value: Mutex<T>,
    changed: Condvar,
    /// The number of waiting threads. A thread changes the number only while it holds the lock.
    waiting: AtomicUsize,
}

impl<T> Monitor<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Condvar::new(), waiting: AtomicUsize::new(0) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        lock(&self.value)
    }

    /// Wakes all threads that wait for a change of the value. The caller may already have released the lock. If no
    /// thread waits, which is the usual case, this method makes no system call.
    pub(crate) fn notify(&self) {
        // Before a waiting thread releases the lock, it increments the counter `waiting`. If a thread was already
        // waiting when the value changed, this method therefore reads a counter above zero.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }

    /// Counts this thread as a waiting thread while it calls `wait`, which releases the lock.
    fn counted<'a, R>(&'a self, guard: MutexGuard<'a, T>, wait: impl FnOnce(MutexGuard<'a, T>) -> R) -> R {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let result = wait(guard);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// Waits while `condition` is true, for at most `limit`. A limit of zero means that the method does not wait.
    pub(super) fn wait_while<'a>(
        &'a self,
        guard: MutexGuard<'a, T>,
        limit: Option<Duration>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        match limit {
            None => self.wait_unbounded(guard, condition),
            Some(Duration::ZERO) => guard,
            Some(limit) => self.wait_bounded(guard, limit, condition),
        }
    }
}

#[cfg(not(zklock_loom))]
impl<T> Monitor<T> {
    /// Waits until another thread calls `notify`, for at most `limit`. The wait can also end without a call of
    /// `notify`.
    pub(crate) fn wait<'a>(&'a self, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        self.counted(guard, |guard| self.changed.wait_timeout(guard, limit)).unwrap_or_else(PoisonError::into_inner).0
    }

    fn wait_unbounded<'a>(
        &'a self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.counted(guard, |guard| self.changed.wait_while(guard, condition)).unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_bounded<'a>(
        &'a self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let wait = |guard| self.changed.wait_timeout_while(guard, limit, condition);
        self.counted(guard, wait).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// In a model, a time limit of at least this length never passes.
#[cfg(zklock_loom)]
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Loom has no clock. In a model, a wait with a time limit of less than a century may end immediately. While a thread
/// waits with a time limit, the other threads may do any amount of work, or no work.
#[cfg(zklock_loom)]
impl<T> Monitor<T> {
    pub(crate) fn wait<'a>(&'a self, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        if limit >= CENTURY {
            return self.counted(guard, |guard| self.changed.wait(guard)).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        thread::yield_now();
        self.lock()
    }

    fn wait_unbounded<'a>(
        &'a self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        while condition(&mut guard) {
            guard = self.counted(guard, |guard| self.changed.wait(guard)).unwrap_or_else(PoisonError::into_inner);
        }
        guard
    }

    fn wait_bounded<'a>(
        &'a self,
        mut guard: MutexGuard<'a, T>,
        limit: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        if limit >= CENTURY {
            self.wait_unbounded(guard, condition)
        } else if condition(&mut guard) {
            self.wait(guard, limit)
        } else {
            guard
        }
    }
}
