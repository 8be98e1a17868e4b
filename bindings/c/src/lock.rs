//! Locks: acquire, release, and what can be asked of a hold.

use std::ffi::c_char;
use std::ops::Deref;

use zklock::{Error, Lock, LockState, MAX_DATA, Owner, PerProcess, Result, Status};
use zklock_abi::arg::{self, Buffer, Output};
use zklock_abi::guard::{free, guard, status};
use zklock_abi::handle::{self, Handle, Kind, Table};

use crate::client::{Session, zkl_client};
use crate::event::LockHandles;
use crate::revocation::Callbacks;
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

/// More locks are not made into one.
const MAX_LOCKS: usize = 4096;

/// What can be acquired and released: a mutex, one half of a read/write lock, a semaphore mutex, or several of them as one.
/// Threads that share it exclude each other, like those of other processes, and queue fairly.
pub struct zkl_lock(());

/// What stands behind a lock: the lock, and where events find its handle. They name a multi-lock's locks, and never itself.
pub struct Named {
    lock: Lock,
    handles: Option<LockHandles>,
    pub(crate) callbacks: Callbacks,
}

impl Named {
    fn close(&self) -> Result<()> {
        let closed = self.lock.close();
        if let Some(handles) = &self.handles {
            handles.remove(self.lock.id());
        }
        self.callbacks.close();
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
        out.set(insert(&session, session.client.mutex(path)?)?);
        Ok(())
    })
}

/// Lets the threads of this process that queue for this mutex pass it on among themselves, up to max_passes times in a row, before
/// its node is given up; 0 as at first: never. It concerns acquires by this handle that begin later, and goes for all handles of one
/// client on one path that are set so: one node stands for all who wait by them, in the order in which they began, and a release gives it to the
/// next of them without asking a server. It pays where many threads of one process want one lock.
///
/// Fairness: who waits in another process, behind that node, waits for at most max_passes holds more than without (the largest of the
/// handles' numbers). Then the node is removed, and the next thread here joins the queue at its end. Nobody here overtakes
/// another: who gives up leaves the place to the next.
///
/// Only a hold that is ZKL_LOCK_HELD is passed on, and none whose node somebody has asked for (zkl_set_revocable). The node keeps the
/// data of the acquire that made it. All holds that were passed on have the fencing token of the first: a store that is to tell them apart
/// compares zkl_fencing_pass, too. A multi-lock joins with nodes of its own, and what it has got is not passed on. With a
/// limit of 0, an acquire that finds others of this process there fails without asking a server. zkl_participants shows the one node,
/// and zkl_waiting all who wait by the handle.
///
/// Returns: ZKL_OK; ZKL_E_UNSUPPORTED for all but mutexes; ZKL_E_INVALID for a negative number; ZKL_E_HANDLE, ZKL_E_FORKED,
/// ZKL_E_CLOSED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_mutex_set_local_handover(lock: *mut zkl_lock, max_passes: i32) -> zkl_status {
    status(|| {
        let max_passes = u32::try_from(max_passes)
            .map_err(|_| Error::new(Status::Invalid, format!("max_passes is {max_passes}; expected 0 or more")))?;
        handle::get(lock)?.set_local_handover(max_passes)
    })
}

/// Makes a lock on a path that is not re-entrant, and that any thread may release; on the same znodes as Curator's
/// InterProcessSemaphoreMutex. A thread that acquires it again waits for a release. Nothing is sent yet. The lock
/// written to *lock_out is to be freed with zkl_lock_free.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_semaphore_mutex_new(
    client: *mut zkl_client,
    path: *const c_char,
    lock_out: *mut *mut zkl_lock,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends both for the length of the call.
        let (path, out) = unsafe { (arg::text("path", path)?, Output::new("lock_out", lock_out)?) };
        let session = handle::get(client)?;
        out.set(insert(&session, session.client.semaphore_mutex(path)?)?);
        Ok(())
    })
}

/// Makes the two halves of a read/write lock on a path: readers share it, a writer has it alone; on the same znodes as
/// Curator's InterProcessReadWriteLock, as of 5.5. Each half is re-entrant, each thread owning its own holds. A thread that writes may
/// also acquire the read lock, and goes on reading when it releases the write lock: no other writer gets in between. A thread
/// that reads may not acquire the write lock: ZKL_E_DEADLOCK. Nothing is sent yet. The locks written to *read_out and *write_out
/// are to be freed with zkl_lock_free, in any order; on failure neither is written.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_rwlock_new(
    client: *mut zkl_client,
    path: *const c_char,
    read_out: *mut *mut zkl_lock,
    write_out: *mut *mut zkl_lock,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends all three for the length of the call.
        let (path, for_read, for_write) = unsafe {
            (arg::text("path", path)?, Output::new("read_out", read_out)?, Output::new("write_out", write_out)?)
        };
        if read_out == write_out {
            return Err(Error::new(Status::Invalid, "read_out and write_out are the same; expected a place for each"));
        }
        let session = handle::get(client)?;
        let both = session.client.rwlock(path)?;
        let read = insert(&session, both.read)?;
        let write = insert(&session, both.write).inspect_err(|_| drop(handle::free(read, Named::close)))?;
        for_read.set(read);
        for_write.set(write);
        Ok(())
    })
}

/// Makes one lock of several, 4096 at most, each of a path of its own: like Curator's InterProcessMultiLock, it is acquired and
/// released as a whole, within one time limit. While it is held, each of them is; what the thread held of them before is entered
/// once more. They may be of different kinds and of different clients; where one is a multi-lock, its locks are taken.
///
/// Mutexes and read/write locks of one client are joined in one transaction, so that two multi-locks of the same locks
/// in another order do not deadlock. Others are acquired one after the other, in an order that is the same for all programs that name
/// their servers alike, and given back if one can't be got.
///
/// The handles stay the caller's. Once one of the locks is freed, or its client, the multi-lock is of no use: those that
/// wait for it wake with ZKL_E_CLOSED, and later calls return that. The lock written to *lock_out is to be freed with zkl_lock_free, which
/// wakes those that wait for the multi-lock, and changes nothing for its locks, held or not.
///
/// Returns: ZKL_OK; ZKL_E_INVALID for no locks, too many, or two on one path; ZKL_E_HANDLE and ZKL_E_FORKED, with the index in the
/// message; ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_multi_new(
    locks: *const *mut zkl_lock,
    count: usize,
    lock_out: *mut *mut zkl_lock,
) -> zkl_status {
    // SAFETY: as the caller says.
    status(|| unsafe { multi(locks, count, lock_out, Lock::multi) })
}

/// The same, but that the locks are acquired one after the other, in the order given, as Curator's InterProcessMultiLock does: for
/// programs that share their paths with Curator's and name them in the same order. Beside Curator's, zkl_multi_new may find that
/// each waits for the other, and takes a third of a second to give way. Programs that name the same locks in different orders
/// deadlock with this one.
///
/// Returns: as zkl_multi_new.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_multi_new_in_order(
    locks: *const *mut zkl_lock,
    count: usize,
    lock_out: *mut *mut zkl_lock,
) -> zkl_status {
    // SAFETY: as the caller says.
    status(|| unsafe { multi(locks, count, lock_out, Lock::multi_in_order) })
}

/// # Safety
/// `locks` has `count` elements, and `lock_out` can be written to, or they are NULL.
unsafe fn multi(
    locks: *const *mut zkl_lock,
    count: usize,
    lock_out: *mut *mut zkl_lock,
    together: fn(&[&Lock]) -> Result<Lock>,
) -> Result<()> {
    // SAFETY: the caller lends both for the length of the call.
    let (locks, out) = unsafe { (arg::list("locks", locks, count, MAX_LOCKS)?, Output::new("lock_out", lock_out)?) };
    let at = |at, error: Error| Error::new(error.status(), format!("locks[{at}]: {error}"));
    let member = |(index, &lock): (usize, &*mut zkl_lock)| handle::get(lock).map_err(|error| at(index, error));
    let members = locks.iter().enumerate().map(member).collect::<Result<Vec<_>>>()?;
    let lock = together(&members.iter().map(|member| &member.lock).collect::<Vec<_>>())?;
    out.set(handle::insert(Named { lock, handles: None, callbacks: Callbacks::default() })?);
    Ok(())
}

/// Gives a lock a handle, which events find.
fn insert(session: &Session, lock: Lock) -> Result<*mut zkl_lock> {
    let (id, handles) = (lock.id(), Some(session.handles.clone()));
    let handle = handle::insert(Named { lock, handles, callbacks: Callbacks::default() })?;
    session.handles.add(id, handle);
    Ok(handle)
}

/// Frees a lock. Those that wait on it wake with ZKL_E_CLOSED; what is held by it, by whatever thread, is released without
/// waiting for the server. NULL is allowed. In a forked child the parent's hold is left alone. A lock that is part of a
/// multi-lock is closed all the same, and the multi-lock with it; a multi-lock's own locks stay as they are, held or not.
///
/// Returns nothing; a handle that is not live changes nothing. The last error message stays as it was.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_lock_free(lock: *mut zkl_lock) {
    free(|| handle::free(lock, |lock| lock.close()));
}

/// Acquires the lock for the calling thread, or enters it once more; each entry takes a release. (A semaphore mutex can't be
/// entered twice.) A multi-lock is acquired as a whole, or not at all. Waits without limit, also through losses of the connection
/// and of the session. To have an end, use zkl_acquire_timeout. Goroutines, greenlets and fibers of one thread share its holds, and
/// do not exclude each other: use zkl_acquire_as.
///
/// Returns: ZKL_OK, and the thread holds the lock; on every failure this call has entered nothing:
/// ZKL_E_CANCELED by zkl_cancel; ZKL_E_CLOSED by zkl_lock_free or zkl_client_free; ZKL_E_DEADLOCK where this thread would
/// wait for itself, since it holds the path by another handle of the client, or reads where it wants to write (a semaphore mutex
/// knows no owner, and waits), and in a callback (Callbacks, above); ZKL_E_LOST where this thread's hold was lost and is not released yet;
/// ZKL_E_FOREIGN where another family of locks uses the path; ZKL_E_EXHAUSTED at the end of the path's sequence numbers,
/// and where the paths of all nodes of the client would take more than session.max_path_bytes (docs/sizing.md);
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

/// Releases one entry of the calling thread; the last one gives the lock up. A semaphore mutex may be released by any thread,
/// whichever acquired it by this handle. Of a multi-lock, all that the thread holds of its locks is released by one entry each,
/// whatever becomes of the others, and the first failure is returned.
///
/// Returns: ZKL_OK, and the server has confirmed that the lock's node is gone, or the lock was passed on to another thread of this
/// process (zkl_mutex_set_local_handover); ZKL_E_NOT_OWNER where this thread does not hold the lock (a semaphore mutex: nobody does
/// by this handle), and nothing changes; ZKL_E_LOST where the hold had been lost, so that others may have held it in the meantime;
/// ZKL_E_CONNECTION where no server confirmed within the session timeout, and the library goes on trying;
/// ZKL_E_CLOSED, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// With ZKL_E_LOST and ZKL_E_CONNECTION the entry is released, too; as is, with ZKL_E_CLOSED for a multi-lock one of whose locks was
/// freed, what is left of it.
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
/// what is held. A wait that is just succeeding may still return ZKL_OK. Those who wait for a multi-lock do so on its handle,
/// and not on those of its locks.
///
/// Returns: ZKL_OK, also where nobody waits; ZKL_E_CLOSED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block; any thread, but not from a signal handler.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_cancel(lock: *mut zkl_lock) -> zkl_status {
    status(|| handle::get(lock)?.cancel())
}

/// Whether the calling thread holds the lock, and safely so at this moment: its session is surely alive, by the clock of
/// this machine. A semaphore mutex is held by the thread that acquired it, until any thread releases it. A multi-lock is held
/// while all of its locks are.
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

/// How the calling thread's hold stands; where it has none, that of the thread of this process that holds by this handle (of a
/// read lock, of any of them). A multi-lock stands as badly as the worst of its locks, and is free if one of them is.
///
/// Returns: a ZKL_LOCK_*, or the negative ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_lock_state(lock: *const zkl_lock) -> i32 {
    guard(|| Ok(handle::get(lock)?.state()? as i32))
}

/// The fencing token of that hold: a number that grows with every hold of the path. A store that refuses a smaller token
/// than the largest it has seen is safe from writers that lost their lock and have not noticed. A multi-lock that was joined in one
/// transaction has one token for all its locks; otherwise, or where some were held before, this is the smallest of them, and a
/// store is better given the token of the lock that guards it.
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

/// How often the lock had been passed on in this process, with the same token, when that hold began (zkl_mutex_set_local_handover);
/// 0 for a hold that came through the queue. Of a multi-lock: that which belongs to the token. A store that is to tell the
/// threads of one process apart refuses a smaller token, and with an equal token a smaller pass.
///
/// Returns: as zkl_fencing_token, with *pass_out set.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_fencing_pass(lock: *const zkl_lock, pass_out: *mut i64) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends it for the length of the call.
        let out = unsafe { Output::new("pass_out", pass_out)? };
        out.set(i64::from(handle::get(lock)?.fencing_pass()?));
        Ok(())
    })
}

/// Asks the ensemble whether the hold with this fencing token is still the holder's on a path, whoever holds it and whichever recipe it
/// is: a mutex, a read/write lock (then also that of one of several readers), a semaphore, a semaphore mutex, or one path of a
/// multi-lock; made by zklock or by Curator. What the answer says was true at a moment since the call began, also where the client's
/// server lags behind the others. A waiter's token is not a holder's. The leases of a semaphore count once whoever got them has left
/// its inner mutex.
///
/// For a hold of one's own zkl_is_held is the answer that costs nothing, and knows of its lease: here a hold counts for as
/// long as its node is there. Neither takes the place of the store's own comparison of tokens, for the answer may be old when it is
/// read; docs/fencing.md has that.
///
/// Returns: 1; 0, also where there is no such path; or the negative ZKL_E_INVALID, also for a token below 1; ZKL_E_HANDLE,
/// ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_INTERNAL. A negative number is
/// true in C: compare with 1.
/// Blocks for the session timeout at most; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_fence_check(client: *mut zkl_client, path: *const c_char, token: i64) -> i32 {
    guard(|| {
        // SAFETY: the caller lends it for the length of the call.
        let path = unsafe { arg::text("path", path)? };
        Ok(i32::from(handle::get(client)?.client.fence_check(path, token)?))
    })
}

/// How long that hold is safe without hearing from a server, in milliseconds, rounded down; 0 where it is not safe now. Of a
/// multi-lock: the shortest time of its locks.
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
/// be NULL. Of a multi-lock: of all its locks, in the place of their own.
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

/// The path of the calling thread's node, without the client's chroot, for a transaction of the program's own that is to fail
/// once the lock is lost, by a check of that node. It is written to the size bytes at buf, with a NUL; how many bytes it takes,
/// to *needed_out. With size 0, buf may be NULL.
///
/// Returns: ZKL_OK; ZKL_E_BUFFER where it does not fit: nothing is written but *needed_out; ZKL_E_NOT_OWNER where this thread
/// does not hold the lock; ZKL_E_LOST where the hold was lost; ZKL_E_INVALID, also for a multi-lock: ask its locks; ZKL_E_HANDLE,
/// ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_lock_node_path(
    lock: *const zkl_lock,
    buf: *mut c_char,
    size: usize,
    needed_out: *mut usize,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends both for the length of the call.
        let buffer = unsafe { Buffer::new(buf, size, needed_out)? };
        buffer.set(&node_path(&*handle::get(lock)?, Owner::current_thread())?)
    })
}

/// The path of the one node by which `owner` holds a lock.
pub(crate) fn node_path(lock: &Lock, owner: Owner) -> Result<String> {
    if !lock.members().is_empty() {
        return Err(Error::new(Status::Invalid, "a multi-lock has a node for each of its locks: ask them"));
    }
    Ok(lock.node_paths_by(owner)?.into_iter().next().ok_or(Status::NotOwner)?)
}
