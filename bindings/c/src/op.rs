//! Acquiring without blocking a thread: operations, their descriptors, and the owners that a program names itself.

use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zklock::{Acquiring, AcquiringLeases, Error, OnceFd, Owner, PerProcess, Result, Status};
use zklock_abi::arg::{self, Buffer, Output};
use zklock_abi::guard::{free, guard, status};
use zklock_abi::handle::{self, Handle, Kind, Table};

use crate::lock::{node_path, zkl_lock};
use crate::semaphore::{positive, zkl_leases, zkl_semaphore};
use crate::status::zkl_status;

/// An acquire under way. It goes on by itself, whether anybody waits for it or not, and ends within its limit.
pub struct zkl_op(());

/// What stands behind an operation.
pub struct Started {
    acquire: Acquire,
    descriptor: Arc<Descriptor>,
}

/// Made by the first request for it, and made anew if another part of the program has closed it. It is used under the lock only, so taking it
/// out closes it.
#[derive(Default)]
struct Descriptor(Mutex<Option<OnceFd>>);

enum Acquire {
    Lock(Acquiring),
    Leases(AcquiringLeases),
}

impl Handle for zkl_op {
    type Object = Started;
    const KIND: Kind = Kind::Op;

    fn table() -> &'static Table<Started> {
        static TABLE: PerProcess<Table<Started>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

/// Starts to acquire the lock for an owner, as zkl_acquire_timeout does for a thread, and does not wait for it. Owner 0 is the calling
/// thread; any other number is an owner of your own, like a task or a request: holds belong to it, re-entrancy goes by it, and any
/// thread may act for it. The operation written to *op_out is to be freed with zkl_op_free.
///
/// Returns: ZKL_OK, and how the acquire ends is said by zkl_op_result, also where that is known at once; ZKL_E_INVALID as
/// zkl_acquire_timeout; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_acquire_start(
    lock: *mut zkl_lock,
    owner: u64,
    timeout_ms: i64,
    op_out: *mut *mut zkl_op,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends it for the length of the call.
        let out = unsafe { Output::new("op_out", op_out)? };
        let timeout = arg::timeout(timeout_ms)?;
        out.set(insert(Acquire::Lock(handle::get(lock)?.start_acquire(owner_of(owner), timeout)?))?);
        Ok(())
    })
}

/// Starts to acquire so many leases, all or none, as zkl_semaphore_acquire_timeout does, and does not wait for them. Once the operation has
/// ended with ZKL_OK they are to be taken with zkl_op_leases. The operation written to *op_out is to be freed with zkl_op_free.
///
/// Returns: as zkl_acquire_start; ZKL_E_INVALID also for a quantity below 1, and one above max_leases.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_semaphore_acquire_start(
    semaphore: *mut zkl_semaphore,
    quantity: i32,
    timeout_ms: i64,
    op_out: *mut *mut zkl_op,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends it for the length of the call.
        let out = unsafe { Output::new("op_out", op_out)? };
        let timeout = arg::timeout(timeout_ms)?;
        let quantity = positive(quantity)?;
        out.set(insert(Acquire::Leases(handle::get(semaphore)?.start_acquire(quantity, timeout)?))?);
        Ok(())
    })
}

/// A descriptor that becomes readable when the operation is over, however it ended, and stays so: for poll, select, epoll and event loops.
/// It is the library's: not to be read, written or closed. It is made by the first call, and closed by zkl_op_free; take it out of a
/// loop before that. Operations whose descriptor nobody asks for have none. A forked child should not use it.
///
/// Returns: the descriptor, the same each time, unless the program has closed it: then another one; or the negative ZKL_E_EXHAUSTED where the process has no descriptor left: the operation goes on,
/// and this may be tried again; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_op_fd(op: *const zkl_op) -> c_int {
    guard(|| handle::get(op)?.descriptor())
}

/// How the operation ended. Once this, or zkl_op_wait, has returned ZKL_OK for a lock, the owner holds it, and freeing the
/// operation changes nothing about that.
///
/// Returns: ZKL_E_INVALID while it still runs, and only then; ZKL_OK; failures as zkl_acquire_timeout or as
/// zkl_semaphore_acquire_timeout, with ZKL_E_UNSUPPORTED in the place of an ZKL_E_INVALID that is found later than at the start;
/// ZKL_E_CANCELED also by zkl_op_cancel; ZKL_E_CLOSED also where another thread frees the operation; ZKL_E_HANDLE, ZKL_E_FORKED,
/// ZKL_E_INTERNAL. It may be asked as often as one likes, and gives the same each time.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_op_result(op: *mut zkl_op) -> zkl_status {
    status(|| handle::get(op)?.result())
}

/// Waits until the operation is over, with a limit of its own in milliseconds: -1 for none, 0 to look. The operation is not
/// concerned by this limit, and goes on. Several threads may wait.
///
/// Returns: as zkl_op_result; ZKL_E_TIMEOUT also where the operation still runs at the end of this limit: zkl_op_result tells the two
/// apart, for it is ZKL_E_INVALID then. ZKL_E_INVALID for a negative limit other than -1. ZKL_E_DEADLOCK in a callback, where it would
/// have to wait.
/// Blocks until the operation is over, but no longer than the limit; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_op_wait(op: *mut zkl_op, timeout_ms: i64) -> zkl_status {
    status(|| {
        let timeout = arg::timeout(timeout_ms)?;
        handle::get(op)?.wait(timeout)
    })
}

/// Cancels the operation: it ends with ZKL_E_CANCELED, and leaves nothing. One that is just succeeding may still end with ZKL_OK; one that is
/// over stays as it is.
///
/// Returns: ZKL_OK, also where it is over; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block; any thread, but not from a signal handler.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_op_cancel(op: *mut zkl_op) -> zkl_status {
    status(|| match &handle::get(op)?.acquire {
        Acquire::Lock(lock) => lock.cancel(),
        Acquire::Leases(leases) => leases.cancel(),
    })
}

/// Takes the leases of an operation that has ended with ZKL_OK. Those written to *leases_out are to be given back with
/// zkl_leases_release.
///
/// Returns: ZKL_OK; ZKL_E_INVALID while the operation still runs, where they were taken before, and for an operation on a lock; where
/// it ended with a failure, that one, as zkl_op_result; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_op_leases(op: *mut zkl_op, leases_out: *mut *mut zkl_leases) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends it for the length of the call.
        let out = unsafe { Output::new("leases_out", leases_out)? };
        let op = handle::get(op)?;
        let Acquire::Leases(acquiring) = &op.acquire else {
            return Err(Error::new(Status::Invalid, "the operation acquires a lock, and no leases"));
        };
        op.result()?;
        let leases = acquiring.wait_for(Duration::ZERO).ok_or_else(still_runs)??;
        out.set(handle::insert::<zkl_leases>(leases)?);
        Ok(())
    })
}

/// Frees an operation. What nobody has heard of does not stay: one that still runs is cancelled, and if it had got the lock, but
/// neither zkl_op_result nor zkl_op_wait had returned ZKL_OK yet, the lock is released again, without waiting for the server. So are leases
/// that were not taken. A hold that was told of stays, and is released by its owner. Those that wait in zkl_op_wait wake with
/// ZKL_E_CLOSED. NULL is allowed. In a forked child nothing is touched.
///
/// Returns nothing; a handle that is not live changes nothing. The last error message stays as it was.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_op_free(op: *mut zkl_op) {
    free(|| {
        handle::free(op, |op| {
            op.close();
            Ok(())
        })
    });
}

/// Acquires the lock for an owner, as zkl_acquire_timeout does for the calling thread, which owner 0 stands for, and waits. For green threads
/// (goroutines, greenlets, fibers), which share a thread: give each a number of its own. The call blocks the whole thread.
///
/// Returns: as zkl_acquire_timeout.
/// Blocks until the owner has the lock, but no longer than the limit, as zkl_acquire_timeout; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_acquire_as(lock: *mut zkl_lock, owner: u64, timeout_ms: i64) -> zkl_status {
    status(|| {
        let timeout = arg::timeout(timeout_ms)?;
        handle::get(lock)?.acquire_as(owner_of(owner), timeout)
    })
}

/// Releases one entry of an owner, as zkl_release does for the calling thread, which owner 0 stands for.
///
/// Returns: as zkl_release.
/// Blocks for the session timeout at most; any thread, whichever acquired.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_release_as(lock: *mut zkl_lock, owner: u64) -> zkl_status {
    status(|| handle::get(lock)?.release_as(owner_of(owner)))
}

/// The same without waiting for the server: the library sees to it that the lock's node is removed.
///
/// Returns: as zkl_release_nowait.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_release_nowait_as(lock: *mut zkl_lock, owner: u64) -> zkl_status {
    status(|| handle::get(lock)?.start_release(owner_of(owner), false)?.wait())
}

/// Whether an owner holds the lock, and safely so at this moment, as zkl_is_held does for the calling thread, which owner 0 stands for.
///
/// Returns: as zkl_is_held: compare with 1.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_is_held_as(lock: *const zkl_lock, owner: u64) -> i32 {
    guard(|| Ok(i32::from(handle::get(lock)?.is_held_by(owner_of(owner))?)))
}

/// How the hold of an owner stands; unlike with zkl_lock_state, nobody else's is looked at where it has none.
///
/// Returns: as zkl_lock_state.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_lock_state_as(lock: *const zkl_lock, owner: u64) -> i32 {
    guard(|| Ok(handle::get(lock)?.state_by(owner_of(owner))? as i32))
}

/// The fencing token of the hold of an owner, and of nobody else.
///
/// Returns: as zkl_fencing_token; ZKL_E_NOT_OWNER where that owner does not hold the lock.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_fencing_token_as(lock: *const zkl_lock, owner: u64, token_out: *mut i64) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends it for the length of the call.
        let out = unsafe { Output::new("token_out", token_out)? };
        out.set(handle::get(lock)?.fencing_token_by(owner_of(owner))?);
        Ok(())
    })
}

/// How often the lock had been passed on in this process when the hold of an owner, and of nobody else, began, as zkl_fencing_pass.
///
/// Returns: as zkl_fencing_token_as, with *pass_out set.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_fencing_pass_as(lock: *const zkl_lock, owner: u64, pass_out: *mut i64) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends it for the length of the call.
        let out = unsafe { Output::new("pass_out", pass_out)? };
        out.set(i64::from(handle::get(lock)?.fencing_pass_by(owner_of(owner))?));
        Ok(())
    })
}

/// How long the hold of an owner, and of nobody else, is safe without hearing from a server, in milliseconds, as zkl_remaining_ms.
///
/// Returns: as zkl_fencing_token_as, with *remaining_ms_out set.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_remaining_ms_as(
    lock: *const zkl_lock,
    owner: u64,
    remaining_ms_out: *mut i64,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends it for the length of the call.
        let out = unsafe { Output::new("remaining_ms_out", remaining_ms_out)? };
        let remaining = handle::get(lock)?.remaining_by(owner_of(owner))?;
        out.set(i64::try_from(remaining.as_millis()).unwrap_or(i64::MAX));
        Ok(())
    })
}

/// The path of the node of an owner, as zkl_lock_node_path for that of the calling thread, which owner 0 stands for.
///
/// Returns: as zkl_lock_node_path.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_lock_node_path_as(
    lock: *const zkl_lock,
    owner: u64,
    buf: *mut c_char,
    size: usize,
    needed_out: *mut usize,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends both for the length of the call.
        let buffer = unsafe { Buffer::new(buf, size, needed_out)? };
        buffer.set(&node_path(&*handle::get(lock)?, owner_of(owner))?)
    })
}

impl Started {
    fn new(acquire: Acquire) -> Result<Self> {
        let started = Self { acquire, descriptor: Arc::default() };
        let known = match &started.acquire {
            Acquire::Lock(lock) => lock.look_for(Duration::ZERO),
            Acquire::Leases(leases) => leases.look_for(Duration::ZERO),
        };
        match known {
            Some(Err(error)) if error.status() == Status::Invalid => Err(error),
            _ => Ok(started),
        }
    }

    fn result(&self) -> Result<()> {
        self.look_for(Duration::ZERO).ok_or_else(still_runs)?
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        let Some(limit) = timeout else {
            loop {
                if let Some(result) = self.look_for(Duration::MAX) {
                    return result;
                }
            }
        };
        self.look_for(limit).ok_or_else(|| {
            let message = format!("the operation still runs after a wait of {} ms, and goes on", limit.as_millis());
            Error::new(Status::Timeout, message)
        })?
    }

    /// How it ended. A lock belongs to its owner from now on; leases do when they are taken.
    fn look_for(&self, slice: Duration) -> Option<Result<()>> {
        let result = match &self.acquire {
            Acquire::Lock(lock) => lock.wait_for(slice),
            Acquire::Leases(leases) => leases.look_for(slice),
        };
        result.map(|result| result.map_err(found_late))
    }

    fn descriptor(&self) -> Result<c_int> {
        let (number, is_new) = self.descriptor.number()?;
        if is_new {
            let descriptor = Arc::clone(&self.descriptor);
            let signal = move || descriptor.signal();
            match &self.acquire {
                Acquire::Lock(lock) => lock.on_done(signal)?,
                Acquire::Leases(leases) => leases.on_done(signal)?,
            }
        }
        Ok(number)
    }

    fn close(&self) {
        match &self.acquire {
            Acquire::Lock(lock) => lock.abandon(),
            Acquire::Leases(leases) => leases.abandon(),
        }
        drop(self.descriptor.lock().take());
    }
}

impl Descriptor {
    /// The descriptor, and whether it was made by this call.
    fn number(&self) -> Result<(c_int, bool)> {
        let mut place = self.lock();
        if let Some(descriptor) = place.as_ref().filter(|descriptor| descriptor.is_ours()) {
            return Ok((descriptor.as_raw_fd(), false));
        }
        Ok((place.insert(OnceFd::new()?).as_raw_fd(), true))
    }

    fn signal(&self) {
        if let Some(descriptor) = &mut *self.lock() {
            descriptor.signal();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<OnceFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn insert(acquire: Acquire) -> Result<*mut zkl_op> {
    handle::insert(Started::new(acquire)?)
}

/// INVALID says that an operation still runs.
fn found_late(error: Error) -> Error {
    match error.status() {
        Status::Invalid => Error::new(Status::Unsupported, error.message().to_owned()),
        _ => error,
    }
}

fn still_runs() -> Error {
    Error::new(Status::Invalid, "the operation still runs")
}

fn owner_of(number: u64) -> Owner {
    match number {
        0 => Owner::current_thread(),
        _ => Owner::Custom(number),
    }
}
