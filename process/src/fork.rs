//! The fork guard (rule 9). A forked child does not have the threads of its parent, and must not use its parent's
//! sockets or locks.
//!
//! Each process has a number, its *fork epoch*, which is larger than its parent's number. An object that belongs to a
//! process stores the number of this process. If the stored number differs from the current number, the object belongs
//! to the parent. The comparison takes no lock and allocates no memory.
//!
//! The number is stored in a special page of memory. If a child receives a copy of the memory, the kernel fills this
//! page with zeros in the child. The kernel fills the page after `fork()`, after `_Fork()`, and after a system call
//! that runs no fork handler. A child of `vfork()` shares the memory of its parent, so the guard does not detect such a
//! child.
//!
//! The child does not change, shut down or free the objects of its parent. This rule includes open descriptors.

use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use zklock_base::error::{Error, Status};

/// The largest number that this process or one of its ancestors has taken. This value is never smaller than the number
/// in the epoch cell.
static NEWEST: AtomicU64 = AtomicU64::new(0);
/// Points to the epoch cell, which contains the number of this process. If the number is 0, the process is a child that
/// has not taken a number yet.
static EPOCH_CELL: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// Contains the number of this process on kernels before Linux 4.14, which cannot fill a page with zeros in a child. On
/// such kernels, a fork handler sets the number to 0, so the guard detects only `fork()`.
static FALLBACK_CELL: AtomicU64 = AtomicU64::new(0);

/// The number of a process. A process and its forked children have different numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForkEpoch(u64);

impl ForkEpoch {
    /// Returns the fork epoch of the calling process.
    pub fn current() -> Self {
        // SAFETY: the pointer is null or comes from `install_epoch_cell`, whose result is valid until the process ends.
        let mark = unsafe { EPOCH_CELL.load(Ordering::Acquire).as_ref() }.unwrap_or_else(install_epoch_cell);
        match mark.load(Ordering::Relaxed) {
            0 => Self::begin(mark),
            number => Self(number),
        }
    }

    /// Assigns a number to a process that has no number. If two threads call this function at once, both threads use
    /// the same number.
    #[cold]
    fn begin(mark: &AtomicU64) -> Self {
        let number = NEWEST.fetch_add(1, Ordering::Relaxed) + 1;
        match mark.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Self(number),
            Err(other) => Self(other),
        }
    }

    /// Fails with FORKED in every forked child of the process that made this value.
    pub fn check(self) -> Result<(), Error> {
        if self == Self::current() {
            return Ok(());
        }
        let message = "this handle belongs to the parent process, and a forked child must not use it; make a client in the child \
                       (in Python: multiprocessing's \"spawn\" or \"forkserver\" start method)";
        Err(Error::new(Status::Forked, message))
    }

    /// Returns the fork epoch as a number that starts at 0.
    pub const fn fork_count(self) -> u64 {
        self.0 - 1
    }
}

/// Makes the epoch cell without a lock. A mutex that is locked during a fork would stay locked in the child forever. If
/// two threads run this function at once, each thread makes a cell, and one cell remains unused.
#[cold]
fn install_epoch_cell() -> &'static AtomicU64 {
    let fresh = map_wipe_on_fork_page().unwrap_or_else(|| {
        // SAFETY: the handler only stores an atomic number, which is safe in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(clear_fallback_cell)) };
        &FALLBACK_CELL
    });
    match EPOCH_CELL.compare_exchange(
        ptr::null_mut(),
        ptr::from_ref(fresh).cast_mut(),
        Ordering::AcqRel,
        Ordering::Acquire,
    ) {
        Ok(_) => fresh,
        // SAFETY: this function stored the pointer, so it is not null, and it is valid until the process ends.
        Err(other) => unsafe { &*other },
    }
}

extern "C" fn clear_fallback_cell() {
    FALLBACK_CELL.store(0, Ordering::Relaxed);
}

/// Makes a page that contains only zeros in every forked child.
fn map_wipe_on_fork_page() -> Option<&'static AtomicU64> {
    let size = size_of::<AtomicU64>();
    // SAFETY: this memory is new, and the kernel rounds its size up to a page. `madvise` affects no other memory.
    unsafe {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let page = libc::mmap(ptr::null_mut(), size, access, kind, -1, 0);
        if page == libc::MAP_FAILED {
            return None;
        }
        // Some emulators report success for every call of `madvise`, but do nothing.
        let is_taken_seriously = libc::madvise(page, size, -1) != 0;
        if is_taken_seriously && libc::madvise(page, size, libc::MADV_WIPEONFORK) == 0 {
            return Some(&*page.cast::<AtomicU64>());
        }
        libc::munmap(page, size);
    }
    None
}

/// A value that exists once for each process. A forked child makes a new value. A child does not use the parent's
/// value, because threads that exist only in the parent may hold the locks of that value. A value is never freed.
pub struct PerProcess<T: 'static> {
    value: AtomicPtr<(ForkEpoch, T)>,
    make: fn() -> T,
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

impl<T: Send + Sync> PerProcess<T> {
    /// Declares a value. `make` creates the value when it is first needed.
    pub const fn new(make: fn() -> T) -> Self {
        Self { value: AtomicPtr::new(ptr::null_mut()), make }
    }

    /// Returns the value of this process.
    pub fn get(&self) -> &'static T {
        let epoch = ForkEpoch::current();
        let mut seen = self.value.load(Ordering::Acquire);
        loop {
            // SAFETY: the pointer is null or comes from the `Box::into_raw` below, and is never freed.
            if let Some((made_in, value)) = unsafe { seen.as_ref() }
                && *made_in == epoch
            {
                return value;
            }
            let fresh = Box::into_raw(Box::new((epoch, (self.make)())));
            match self.value.compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: the value was just made and is never freed.
                Ok(_) => return unsafe { &(*fresh).1 },
                Err(other) => {
                    // SAFETY: the value was just made by `Box::into_raw`, and no other thread has its pointer.
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
    fn wiped_cell_gets_a_larger_epoch() {
        let mark = AtomicU64::new(0);
        let first = ForkEpoch::begin(&mark);
        assert_eq!(ForkEpoch::begin(&mark), first, "another thread of the same process");
        mark.store(0, Ordering::Relaxed);
        assert!(ForkEpoch::begin(&mark).fork_count() > first.fork_count());
    }
}
