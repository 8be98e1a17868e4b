//! The fork guard (rule 9): a child process has none of its parent's threads, and must not touch its sockets or locks.
//!
//! Each process has a number, greater than that of its parent. Whatever belongs to a process remembers the number; a different number
//! means that it belongs to the parent. To find out, nothing is locked and nothing is allocated.
//!
//! The number is in a page that the kernel empties in every child that gets a copy of the memory, however the child was made: by
//! `fork()`, by `_Fork()`, or by a system call, for which no fork handler runs. A child of `vfork()` shares the memory, and is not noticed.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::error::{Error, Status};

/// The number of the newest process on the way from the one that loaded the library to this one. Never behind the mark.
static NEWEST: AtomicU64 = AtomicU64::new(0);
/// Where this process's number is; 0 there means that the process is a child that has not numbered itself yet.
static MARK: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// The mark where the kernel can't empty a page (before Linux 4.14): a fork handler empties it. It misses what is no `fork()`.
static HANDLED: AtomicU64 = AtomicU64::new(0);

/// Which process this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch(u64);

impl Epoch {
    /// Of the calling process.
    pub fn current() -> Self {
        // SAFETY: null, or what `make_mark` gave, which stays as long as the process.
        let mark = unsafe { MARK.load(Ordering::Acquire).as_ref() }.unwrap_or_else(make_mark);
        match mark.load(Ordering::Relaxed) {
            0 => Self::begin(mark),
            number => Self(number),
        }
    }

    /// Numbers a process that has no number yet. Of two threads that do so at once, one decides.
    #[cold]
    fn begin(mark: &AtomicU64) -> Self {
        let number = NEWEST.fetch_add(1, Ordering::Relaxed) + 1;
        match mark.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Self(number),
            Err(other) => Self(other),
        }
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
        self.0 - 1
    }
}

/// Not under a lock, which a fork at this moment would leave taken for good in the child. Of two threads that come here at once each makes
/// a mark, and one of the marks stays unused.
#[cold]
fn make_mark() -> &'static AtomicU64 {
    let fresh = emptied_page().unwrap_or_else(|| {
        // SAFETY: the handler does nothing but store an atomic number, which is safe in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(empty)) };
        &HANDLED
    });
    match MARK.compare_exchange(ptr::null_mut(), ptr::from_ref(fresh).cast_mut(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => fresh,
        // SAFETY: it comes from here, so it is not null, and stays as long as the process.
        Err(other) => unsafe { &*other },
    }
}

extern "C" fn empty() {
    HANDLED.store(0, Ordering::Relaxed);
}

/// A page that is all zeros in every child.
fn emptied_page() -> Option<&'static AtomicU64> {
    let size = size_of::<AtomicU64>();
    // SAFETY: new memory of its own, which the kernel rounds up to a page; the advice concerns nothing else.
    unsafe {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let page = libc::mmap(ptr::null_mut(), size, access, kind, -1, 0);
        if page == libc::MAP_FAILED {
            return None;
        }
        // Some emulators say yes to every advice, and follow none.
        let is_taken_seriously = libc::madvise(page, size, -1) != 0;
        if is_taken_seriously && libc::madvise(page, size, libc::MADV_WIPEONFORK) == 0 {
            return Some(&*page.cast::<AtomicU64>());
        }
        libc::munmap(page, size);
    }
    None
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emptied_mark_gets_a_number_that_no_process_had() {
        let mark = AtomicU64::new(0);
        let first = Epoch::begin(&mark);
        assert_eq!(Epoch::begin(&mark), first, "another thread of the same process");
        mark.store(0, Ordering::Relaxed);
        assert!(Epoch::begin(&mark).number() > first.number());
    }
}
