//! The fork guard (rule 9): a child of `fork()` has none of its parent's threads, and must not touch its sockets or locks.
//!
//! A number counts the forks between this process and the one that loaded the library. Everything that belongs to a
//! process remembers it; where it differs, the thing is the parent's. Nothing is locked and nothing is freed to find out.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::error::{Error, Status};

static EPOCH: AtomicU64 = AtomicU64::new(0);
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// Which process this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch(u64);

impl Epoch {
    /// Of the calling process.
    pub fn current() -> Self {
        if !IS_WATCHED.load(Ordering::Acquire) {
            // Not under a lock, which a fork at this moment would leave taken for good in the child. Of two threads that come here
            // at once each registers the handler, and every fork counts for two, which is as good.
            // SAFETY: the handler does nothing but add to an atomic number, which is safe in a forked child.
            unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
            IS_WATCHED.store(true, Ordering::Release);
        }
        Self(EPOCH.load(Ordering::Relaxed))
    }

    /// FORKED in any other process than the one it was taken in.
    pub fn check(self) -> Result<(), Error> {
        if self == Self::current() {
            return Ok(());
        }
        let message = "this handle belongs to the parent process, whose session a fork()ed child must not use; make a client \
                       in the child (in Python: multiprocessing's \"spawn\" or \"forkserver\" start method)";
        Err(Error::new(Status::Forked, message))
    }

    /// The number of forks, for those who put it into a handle.
    pub const fn number(self) -> u64 {
        self.0
    }
}

extern "C" fn count_fork() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
}

/// A value that each process has for itself: a forked child finds a fresh one and leaves the parent's alone, whose locks
/// may have been held by threads that the child does not have. Values are never freed; there is one a process.
pub struct PerProcess<T: 'static> {
    value: AtomicPtr<(Epoch, T)>,
    make: fn() -> T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// Made by `make` when it is first wanted.
    pub const fn new(make: fn() -> T) -> Self {
        Self { value: AtomicPtr::new(ptr::null_mut()), make }
    }

    /// This process's value.
    pub fn get(&self) -> &'static T {
        let epoch = Epoch::current();
        let mut seen = self.value.load(Ordering::Acquire);
        loop {
            // SAFETY: the pointer is null or comes from the Box::into_raw below and is never freed.
            if let Some((made_in, value)) = unsafe { seen.as_ref() }
                && *made_in == epoch
            {
                return value;
            }
            let fresh = Box::into_raw(Box::new((epoch, (self.make)())));
            match self.value.compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: just made, and never freed.
                Ok(_) => return unsafe { &(*fresh).1 },
                Err(other) => {
                    // SAFETY: just made by Box::into_raw, and published nowhere.
                    drop(unsafe { Box::from_raw(fresh) });
                    seen = other;
                }
            }
        }
    }
}
