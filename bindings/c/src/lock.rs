//! Locks: acquire, release, and what can be asked of a hold.

use std::ffi::c_char;
use std::ops::Deref;

use zklock::{Lock, LockState, MAX_DATA, PerProcess};
use zklock_abi::arg::{self, Output};
use zklock_abi::guard::{guard, status};
use zklock_abi::handle::{self, Handle, Kind, Table};

use crate::client::zkl_client;
use crate::event::LockHandles;
use crate::status::zkl_status;

/// Nobody in this process holds the lock by this handle.
pub const ZKL_LOCK_FREE: i32 = 0;
/// Held, and safe.
pub const ZKL_LOCK_HELD: i32 = 1;
/// Safe as long as the lease runs, but the connection is gone, or the hold is not confirmed since it came back.
pub const ZKL_LOCK_SUSPENDED: i32 = 2;
/// The lease is over: it may be lost. It becomes ZKL_LOCK_HELD again, or ZKL_LOCK_LOST.
pub const ZKL_LOCK_UNCERTAIN: i32 = 3;
/// Lost for good: its session ended, or its node was removed. Releasing it reports that, and clears it.
pub const ZKL_LOCK_LOST: i32 = 4;

const _: () = {
    assert!(ZKL_LOCK_FREE == LockState::Free as i32);
    assert!(ZKL_LOCK_HELD == LockState::Held as i32);
    assert!(ZKL_LOCK_SUSPENDED == LockState::Suspended as i32);
    assert!(ZKL_LOCK_UNCERTAIN == LockState::Uncertain as i32);
    assert!(ZKL_LOCK_LOST == LockState::Lost as i32);
};

/// A lock on a path. Threads that share it exclude each other, like those of other processes, and queue fairly.
pub struct zkl_lock(());

/// What stands behind a lock: the lock, and where events find its handle.
pub struct Named {
    lock: Lock,
    handles: LockHandles,
}

impl Named {
    fn close(&self) -> zklock::Result<()> {
        let closed = self.lock.close();
        self.handles.remove(self.lock.id());
        closed
    }
}

impl Deref for Named {
    type Target = Lock;

    fn deref(&self) -> &Lock {
        &self.lock
    }
}

impl Handle for zkl_lock {
    type Object = Named;
    const KIND: Kind = Kind::Lock;

    fn table() -> &'static Table<Named> {
        static TABLE: PerProcess<Table<Named>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

/// Makes a mutex on a path like "/locks/nightly-report": re-entrant, each thread owning its own hold; on the same znodes as
/// Curator's InterProcessMutex. Nothing is sent yet. The lock written to *lock_out is to be freed with zkl_lock_free.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_mutex_new(
    client: *mut zkl_client,
    path: *const c_char,
    lock_out: *mut *mut zkl_lock,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends both for the length of the call.
        let (path, out) = unsafe { (arg::text("path", path)?, Output::new("lock_out", lock_out)?) };
        let session = handle::get(client)?;
        let lock = session.client.mutex(path)?;
        let (id, handles) = (lock.id(), session.handles.clone());
        let handle = handle::insert(Named { lock, handles })?;
        session.handles.add(id, handle);
        out.set(handle);
        Ok(())
    })
}

/// Frees a lock. Those that wait on it wake with ZKL_E_CLOSED; what is held by it, by whatever thread, is released without
/// waiting for the server. NULL is allowed. In a forked child the parent's hold is left alone.
///
/// Returns nothing; a handle that is not live changes nothing but the last error message.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_lock_free(lock: *mut zkl_lock) {
    guard(|| handle::free(lock, |lock| lock.close()));
}

/// Acquires the lock for the calling thread, or enters it once more; each entry takes a release. Waits without limit, also
/// through losses of the connection and of the session. To have an end, use zkl_acquire_timeout.
///
/// Returns: ZKL_OK, and the thread holds the lock; on every failure this call has entered nothing:
/// ZKL_E_CANCELED by zkl_cancel; ZKL_E_CLOSED by zkl_lock_free or zkl_client_free; ZKL_E_DEADLOCK where this thread holds
/// the path by another handle of the client; ZKL_E_LOST where this thread's hold was lost and is not released yet;
/// ZKL_E_FOREIGN where another family of locks uses the path; ZKL_E_EXHAUSTED at the end of the path's sequence numbers;
/// ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_CONNECTION, ZKL_E_SERVER, ZKL_E_UNSUPPORTED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Blocks until it has the lock; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_acquire(lock: *mut zkl_lock) -> zkl_status {
    status(|| handle::get(lock)?.acquire(None))
}

/// The same with a limit in milliseconds over all that it takes: -1 for none, 0 to look once without waiting for anybody.
///
/// Returns: as zkl_acquire; ZKL_E_TIMEOUT where the lock was not got in time, never early; ZKL_E_CONNECTION where no server
/// had answered by then; ZKL_E_INVALID for another negative limit.
/// Blocks until it has the lock, but no longer than the limit; with 0, for one answer of the server, and a second at most.
/// Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_acquire_timeout(lock: *mut zkl_lock, timeout_ms: i64) -> zkl_status {
    status(|| {
        let timeout = arg::timeout(timeout_ms)?;
        handle::get(lock)?.acquire(timeout)
    })
}

/// Releases one entry of the calling thread; the last one gives the lock up.
///
/// Returns: ZKL_OK, and the server has confirmed that the lock's node is gone; ZKL_E_NOT_OWNER where this thread does not
/// hold the lock, and nothing changes; ZKL_E_LOST where the hold had been lost, so that others may have held it in the
/// meantime; ZKL_E_CONNECTION where no server confirmed within the session timeout, and the library goes on trying;
/// ZKL_E_CLOSED, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// With ZKL_E_LOST and ZKL_E_CONNECTION the entry is released, too.
/// Blocks for the session timeout at most; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_release(lock: *mut zkl_lock) -> zkl_status {
    status(|| handle::get(lock)?.release())
}

/// The same without waiting for the server: the library sees to it that the lock's node is removed.
///
/// Returns: ZKL_OK, ZKL_E_NOT_OWNER, ZKL_E_LOST, ZKL_E_CLOSED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL, as zkl_release.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_release_nowait(lock: *mut zkl_lock) -> zkl_status {
    status(|| handle::get(lock)?.release_nowait())
}

/// Wakes those that wait on this handle now, in any thread, with ZKL_E_CANCELED. Who waits later is not concerned, nor is
/// what is held. A wait that is just succeeding may still return ZKL_OK.
///
/// Returns: ZKL_OK, also where nobody waits; ZKL_E_CLOSED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block; any thread, but not from a signal handler.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_cancel(lock: *mut zkl_lock) -> zkl_status {
    status(|| handle::get(lock)?.cancel())
}

/// Whether the calling thread holds the lock, and safely so at this moment: its session is surely alive, by the clock of
/// this machine.
///
/// Returns: 1, 0, or the negative ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL. A negative number is true in
/// C: compare with 1.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_is_held(lock: *const zkl_lock) -> i32 {
    guard(|| Ok(i32::from(handle::get(lock)?.is_held()?)))
}

/// The same for any thread of this process that holds by this handle.
///
/// Returns: as zkl_is_held.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_is_held_in_process(lock: *const zkl_lock) -> i32 {
    guard(|| Ok(i32::from(handle::get(lock)?.is_held_in_process()?)))
}

/// How the calling thread's hold stands; where it has none, that of the thread of this process that holds by this handle.
///
/// Returns: a ZKL_LOCK_*, or the negative ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_lock_state(lock: *const zkl_lock) -> i32 {
    guard(|| Ok(handle::get(lock)?.state()? as i32))
}

/// The fencing token of that hold: a number that grows with every hold of the path. A store that refuses a smaller token
/// than the largest it has seen is safe from writers that lost their lock and have not noticed.
///
/// Returns: ZKL_OK with *token_out set; ZKL_E_NOT_OWNER where nobody in this process holds by this handle; ZKL_E_LOST where
/// the hold was lost; ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_fencing_token(lock: *const zkl_lock, token_out: *mut i64) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends it for the length of the call.
        let out = unsafe { Output::new("token_out", token_out)? };
        out.set(handle::get(lock)?.fencing_token()?);
        Ok(())
    })
}

/// How long that hold is safe without hearing from a server, in milliseconds, rounded down; 0 where it is not safe now.
///
/// Returns: as zkl_fencing_token, with *remaining_ms_out set.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_remaining_ms(lock: *const zkl_lock, remaining_ms_out: *mut i64) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends it for the length of the call.
        let out = unsafe { Output::new("remaining_ms_out", remaining_ms_out)? };
        let remaining = handle::get(lock)?.remaining()?;
        out.set(i64::try_from(remaining.as_millis()).unwrap_or(i64::MAX));
        Ok(())
    })
}

/// The data of the nodes that later acquires create, for people and tools to see who holds and who waits; by default the
/// host's address, as Curator has it. The len bytes are copied, 512 KiB at most. With len 0 the nodes are empty, and data may
/// be NULL.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_lock_set_data(lock: *mut zkl_lock, data: *const u8, len: usize) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends them for the length of the call.
        let data = unsafe { arg::bytes("data", data, len, MAX_DATA)? };
        handle::get(lock)?.set_data(Some(data))
    })
}
