//! Locks: the functions that acquire and release a lock, and queries about a hold. This module must not use semaphores, and must
//! not set callbacks.

use std::ffi::{c_char, c_void};

use zklock::{Error, Lock, LockState, MAX_DATA, Result, Status};
use zklock_abi::arg::{self, Buffer, Output};
use zklock_abi::boundary::{ffi_call, free, predicate, status};
use zklock_abi::handle;

use crate::client::{ClientObject, zkl_client};
use crate::lock_object::{LockObject, zkl_lock};
use crate::status::zkl_status;

/// The owner does not hold the lock. No ZKL_LOCK_* has the same value as a ZKL_STATE_*.
pub const ZKL_LOCK_FREE: i32 = 10;
/// The owner holds the lock, and the hold is safe.
pub const ZKL_LOCK_HELD: i32 = 11;
/// The hold is safe until the session lease ends, but the client cannot confirm the hold at this moment. The client has either
/// lost its connection, or has connected again and has not confirmed the hold yet.
pub const ZKL_LOCK_SUSPENDED: i32 = 12;
/// The session lease has ended, and the hold may be lost. An uncertain hold later becomes ZKL_LOCK_HELD or ZKL_LOCK_LOST.
pub const ZKL_LOCK_UNCERTAIN: i32 = 13;
/// The hold is lost and cannot become safe again, because its session ended or its node was deleted. Releasing a lost hold
/// fails with ZKL_E_LOST, but still ends the state ZKL_LOCK_LOST.
pub const ZKL_LOCK_LOST: i32 = 14;

const _: () = {
    assert!(ZKL_LOCK_FREE == LockState::Free as i32);
    assert!(ZKL_LOCK_HELD == LockState::Held as i32);
    assert!(ZKL_LOCK_SUSPENDED == LockState::Suspended as i32);
    assert!(ZKL_LOCK_UNCERTAIN == LockState::Uncertain as i32);
    assert!(ZKL_LOCK_LOST == LockState::Lost as i32);
};

/// The largest number of member locks in one multi-lock.
const MAX_LOCKS: usize = 4096;

/// Makes a mutex on a path, for example "/locks/nightly-report". The mutex is re-entrant, and each thread has its own hold. The
/// mutex uses the same znodes as Curator's InterProcessMutex. The function does not send a request to a server. The caller must
/// free the new lock, `*lock_out`, with zkl_lock_free.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_mutex_new(
    client: *mut zkl_client,
    path: *const c_char,
    lock_out: *mut *mut zkl_lock,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps both pointers valid during the call.
        let (path, out) = unsafe { (arg::text("path", path)?, Output::new("lock_out", lock_out)?) };
        let session = handle::get(client)?;
        out.set(insert(&session, session.client.mutex(path)?)?);
        Ok(())
    })
}

/// Sets the maximum number of local hand-overs in a row. In a local hand-over, a release passes the mutex to the next waiter of
/// this process without a request to a server. After `max_passes` local hand-overs in a row, the next release deletes the node
/// of the mutex. The default is 0. With a limit of 0, every release deletes the node.
///
/// The setting applies to later acquires through this handle. Local hand-over works among all handles of one client that have
/// the same path and a limit above 0. One node in the queue, the common node, represents all waiters of these handles. The
/// waiters acquire the mutex in the order in which they began to wait. Local hand-over helps if many threads of one process
/// acquire the same lock.
///
/// Local hand-over can delay other processes. If a waiter of another process is in the queue behind the common node, this
/// waiter waits for at most `max_passes` additional holds. If the acquires had different limits, the smallest limit of the
/// holds under this node applies. After the common node is deleted, the next waiter of this
/// process joins the end of the queue. Waiters of this process do not overtake each other. If a waiter stops waiting, the next
/// waiter of this process takes its place in the queue.
///
/// Local hand-over takes place only if the state of the hold is ZKL_LOCK_HELD and the node has received no revocation request
/// (zkl_set_revocable). The common node keeps the data from the acquire that created it. All holds under one node have the
/// same fencing token. To distinguish holds with the same token, a store must also compare the fencing pass
/// (zkl_fencing_pass).
///
/// A multi-lock joins the queue with its own node, and never takes part in local hand-over. If another owner of this process
/// holds the mutex or waits for it, an acquire with timeout 0 fails without a request to a server. The
/// function zkl_participants shows only the common node, and zkl_waiting shows all waiters of the handle.
///
/// Returns: ZKL_OK. On failure:
/// - ZKL_E_UNSUPPORTED if the lock is not a mutex.
/// - ZKL_E_INVALID if `max_passes` is negative.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_mutex_set_local_handover(lock: *mut zkl_lock, max_passes: i32) -> zkl_status {
    status(|| {
        let max_passes = u32::try_from(max_passes)
            .map_err(|_| Error::new(Status::Invalid, format!("max_passes is {max_passes}; expected 0 or more")))?;
        handle::get(lock)?.set_local_handover(max_passes)
    })
}

/// Makes a semaphore mutex on a path. A semaphore mutex is not re-entrant, and any thread may release it. The semaphore mutex
/// uses the same znodes as Curator's InterProcessSemaphoreMutex. If a thread acquires a semaphore mutex that the thread already
/// holds, the call waits until another thread releases the lock. The function does not send a request to a server. The caller
/// must free the new lock, `*lock_out`, with zkl_lock_free.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_semaphore_mutex_new(
    client: *mut zkl_client,
    path: *const c_char,
    lock_out: *mut *mut zkl_lock,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps both pointers valid during the call.
        let (path, out) = unsafe { (arg::text("path", path)?, Output::new("lock_out", lock_out)?) };
        let session = handle::get(client)?;
        out.set(insert(&session, session.client.semaphore_mutex(path)?)?);
        Ok(())
    })
}

/// Makes the read lock and the write lock of a read/write lock on a path. Any number of readers can hold the read lock at the
/// same time. While a writer holds the write lock, no other owner can hold the read lock or the write lock. Both locks use the
/// same znodes as Curator's InterProcessReadWriteLock in version 5.5 and later. The function does not send a request to a
/// server.
///
/// Both locks are re-entrant, and each thread has its own holds. A thread that holds the write lock may also acquire the read
/// lock. If the thread then releases the write lock, the thread keeps the read lock. During this downgrade from the write lock
/// to the read lock, no other writer can acquire the write lock. If a thread that holds only the read lock tries to acquire the
/// write lock, the acquire fails with ZKL_E_DEADLOCK.
///
/// The caller must free the new locks, `*read_out` and `*write_out`, with zkl_lock_free. The caller may free the two locks in
/// any order. On failure, the function writes neither `*read_out` nor `*write_out`.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_rwlock_new(
    client: *mut zkl_client,
    path: *const c_char,
    read_out: *mut *mut zkl_lock,
    write_out: *mut *mut zkl_lock,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps all three pointers valid during the call.
        let (path, for_read, for_write) = unsafe {
            (arg::text("path", path)?, Output::new("read_out", read_out)?, Output::new("write_out", write_out)?)
        };
        if read_out == write_out {
            return Err(Error::new(
                Status::Invalid,
                "read_out and write_out are the same pointer; expected two different pointers",
            ));
        }
        let session = handle::get(client)?;
        let both = session.client.rwlock(path)?;
        let read = insert(&session, both.read)?;
        let write = insert(&session, both.write).inspect_err(|_| drop(handle::free(read, LockObject::close)))?;
        for_read.set(read);
        for_write.set(write);
        Ok(())
    })
}

/// Makes a multi-lock: a lock that consists of up to 4096 member locks, each on its own path. Each acquire and each release of
/// the multi-lock applies to all member locks. An acquire has one timeout for all member locks. While an owner holds the
/// multi-lock, the owner holds each member lock. If the owner already holds a member lock, the acquire of the multi-lock
/// re-enters this lock. The member locks may have different kinds and belong to different clients. If the locks array contains
/// a multi-lock, the new multi-lock contains the member locks of that multi-lock.
///
/// Mutexes and read/write locks of one client join their queues in one transaction. Two multi-locks that list the same locks in
/// different orders therefore do not deadlock. The multi-lock acquires all remaining member locks one by one. The order of
/// these acquires is the same in all programs that write their server lists in the same way. If a member lock cannot be
/// acquired, the library releases the member locks that it has already acquired.
///
/// The caller still owns the handles of the member locks. If the program frees a member lock or its client, the multi-lock
/// becomes unusable. Current waits and later calls then fail with ZKL_E_CLOSED. The caller must free the new lock, `*lock_out`,
/// with zkl_lock_free. When the multi-lock is freed, calls that wait for the multi-lock fail with ZKL_E_CLOSED. Freeing the
/// multi-lock does not change the member locks. A multi-lock must not contain two locks that have the same path and belong to
/// different clients of one ensemble. Such a multi-lock would wait for itself.
///
/// Returns: ZKL_OK. On failure:
/// - ZKL_E_INVALID if `count` is 0, if there are more than 4096 member locks, or if two locks of one client have the same path.
/// - ZKL_E_HANDLE or ZKL_E_FORKED if an element of the array `locks` is not a live lock of this process. The error message
///   contains the index of the element.
/// - Other failures: ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_multi_new(
    locks: *const *mut zkl_lock,
    count: usize,
    lock_out: *mut *mut zkl_lock,
) -> zkl_status {
    // SAFETY: the caller of this function has the same duties as the caller of `multi`.
    status(|| unsafe { multi(locks, count, lock_out, Lock::multi) })
}

/// Makes a multi-lock that acquires its member locks one after the other, in the given order. Curator's InterProcessMultiLock
/// acquires its locks in the same way. Use this function if other programs use Curator multi-locks on the same paths. All
/// programs must list the locks in the same order. All other rules of zkl_multi_new also apply to this function.
///
/// A multi-lock made with zkl_multi_new can deadlock with a Curator multi-lock. The zklock multi-lock detects the deadlock,
/// leaves its queues, and joins the queues again after about a third of a second. Multi-locks made with zkl_multi_new_in_order
/// can deadlock if programs list the same locks in different orders.
///
/// Returns: the same statuses as zkl_multi_new.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_multi_new_in_order(
    locks: *const *mut zkl_lock,
    count: usize,
    lock_out: *mut *mut zkl_lock,
) -> zkl_status {
    // SAFETY: the caller of this function has the same duties as the caller of `multi`.
    status(|| unsafe { multi(locks, count, lock_out, Lock::multi_in_order) })
}

/// # Safety
/// `locks` is NULL or points to `count` elements. `lock_out` is NULL or points to writable memory.
unsafe fn multi(
    locks: *const *mut zkl_lock,
    count: usize,
    lock_out: *mut *mut zkl_lock,
    together: fn(&[&Lock]) -> Result<Lock>,
) -> Result<()> {
    // SAFETY: the caller keeps both pointers valid during the call.
    let (locks, out) = unsafe { (arg::list("locks", locks, count, MAX_LOCKS)?, Output::new("lock_out", lock_out)?) };
    let at = |at, error: Error| Error::new(error.status(), format!("locks[{at}]: {error}"));
    let member = |(index, &lock): (usize, &*mut zkl_lock)| handle::get(lock).map_err(|error| at(index, error));
    let members = locks.iter().enumerate().map(member).collect::<Result<Vec<_>>>()?;
    let handles: Vec<_> = members.iter().flat_map(|member| member.handles.iter().cloned()).collect();
    if handles.len() > MAX_LOCKS {
        let message = format!("the locks have {} member locks; expected at most {MAX_LOCKS}", handles.len());
        return Err(Error::new(Status::Invalid, message));
    }
    let lock = together(&members.iter().map(|member| &member.lock).collect::<Vec<_>>())?;
    out.set(handle::insert(LockObject::new(lock, handles))?);
    Ok(())
}

/// Makes a handle for a lock, and adds the handle to the table for events.
fn insert(session: &ClientObject, lock: Lock) -> Result<*mut zkl_lock> {
    let id = lock.id();
    let handle = handle::insert(LockObject::new(lock, vec![session.handles.clone()]))?;
    session.handles.add(id, handle);
    Ok(handle)
}

/// Frees a lock. Calls that wait for the lock through this handle fail with ZKL_E_CLOSED. The library releases all holds that
/// were acquired through this handle, without waiting for the server. The parameter `lock` may be NULL. In a forked child, the
/// call does not change the holds of the parent.
///
/// Freeing a member lock of a multi-lock also closes the multi-lock. Freeing a multi-lock does not change its member locks: an
/// owner that holds the member locks continues to hold them. Release a multi-lock before you free it.
///
/// Returns nothing. If `lock` is not a live handle, the call has no effect. The last error message does not change.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_lock_free(lock: *mut zkl_lock) {
    free(|| handle::free(lock, |lock| lock.close()));
}

/// Acquires the lock for the calling thread. If the thread already holds the lock, the call re-enters the lock and increments
/// the hold count. The thread must release the lock once for each acquire. A semaphore mutex is not re-entrant. An acquire of
/// a multi-lock acquires either all member locks or none of them.
///
/// The call waits without a time limit, and continues to wait if the connection or the session is lost. To wait with a time
/// limit, use zkl_acquire_timeout. Green threads of one thread (goroutines, greenlets, fibers) share that thread's holds and
/// do not exclude each other. Give each green thread its own hold (zkl_hold_acquire).
///
/// Returns: ZKL_OK if the calling thread holds the lock now. A call that fails has acquired nothing. On failure:
/// - ZKL_E_CANCELED if zkl_cancel ended the wait.
/// - ZKL_E_CLOSED if zkl_lock_free or zkl_client_free closed the lock.
/// - ZKL_E_DEADLOCK if the thread already holds a lock on the path through another handle of the client, and would therefore
///   wait for itself. For a semaphore mutex, the call does not check for this deadlock.
/// - ZKL_E_DEADLOCK if the thread holds only the read lock of a read/write lock and acquires the write lock. When the call
///   starts, it checks the thread's holds, but not the thread's pending acquires (zkl_acquire_start).
/// - ZKL_E_DEADLOCK if a callback makes the call (section Callbacks above).
/// - ZKL_E_LOST if the thread has lost an earlier hold of this lock, and has not released the lost hold yet.
/// - ZKL_E_FOREIGN if another lock recipe uses the path.
/// - ZKL_E_EXHAUSTED if the path has no sequence numbers left, or if the node paths of the client would exceed
///   session.max_path_bytes (docs/sizing.md).
/// - ZKL_E_INVALID if the nodes of a multi-lock are too large for one server transaction.
/// - ZKL_E_INVALID if the servers do not accept the client's access control lists (docs/acl.md).
/// - Other failures: ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_CONNECTION, ZKL_E_SERVER, ZKL_E_UNSUPPORTED, ZKL_E_HANDLE, ZKL_E_FORKED,
///   ZKL_E_INTERNAL.
///
/// Blocks until the thread holds the lock. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn zkl_acquire(lock: *mut zkl_lock) -> zkl_status {
    status(|| handle::get(lock)?.acquire(None))
}

/// Acquires the lock for the calling thread within a timeout. All other rules of zkl_acquire also apply to this function. The
/// parameter `timeout_ms` is the time limit for the whole call in milliseconds, or -1 for no limit. With timeout 0, the call
/// makes one attempt and does not wait for other participants.
///
/// Returns: the same statuses as zkl_acquire, and also:
/// - ZKL_E_TIMEOUT if the lock was not acquired within the timeout. The call never returns this status early.
/// - ZKL_E_CONNECTION if, at the end of the timeout, the client has no connection or its server does not answer.
/// - ZKL_E_INVALID if `timeout_ms` is negative and not -1.
///
/// Blocks until the thread holds the lock or the timeout passes. A call with timeout 0 waits at most one second for the
/// server. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn zkl_acquire_timeout(lock: *mut zkl_lock, timeout_ms: i64) -> zkl_status {
    status(|| {
        let timeout = arg::timeout(timeout_ms)?;
        handle::get(lock)?.acquire(timeout)
    })
}

/// Releases the lock once for the calling thread. The call decrements the hold count. When the hold count is 0, the thread no
/// longer holds the lock. Any thread may release a semaphore mutex that was acquired through this handle. For a multi-lock, the
/// call releases every member lock that the thread holds, even if the release of another member lock fails. In this
/// case, the call returns the first error. If all member locks are semaphore mutexes, any thread may release the multi-lock.
///
/// Returns: ZKL_OK if the hold count is still above 0. If the hold count is 0, the call returns ZKL_OK after the server has
/// confirmed that the node of the lock is deleted. After a local hand-over to another thread of this process
/// (zkl_mutex_set_local_handover), the call returns ZKL_OK without a request to a server. On failure:
/// - ZKL_E_NOT_OWNER if the thread does not hold the lock, or does not hold every member lock of a multi-lock. The call does
///   not change locks that the thread does not hold. For a semaphore mutex, this status means that no thread holds the lock
///   through this handle.
/// - ZKL_E_LOST if the hold was lost before the release. After the loss, another owner may have held the lock.
/// - ZKL_E_CONNECTION if no server confirmed the release within the session timeout. The library keeps trying to delete the
///   node.
/// - ZKL_E_CLOSED if the lock, a member lock or the client was freed. The call still releases the other member locks of a
///   multi-lock.
/// - ZKL_E_DENIED if an access control list does not allow the client to delete its node. The node remains until
///   zkl_client_free closes the client, or until an operator grants the permission (docs/acl.md).
/// - Other failures: ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_SERVER, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
///
/// The call decrements the hold count even if it fails with ZKL_E_LOST, ZKL_E_CONNECTION, ZKL_E_EXHAUSTED, ZKL_E_AUTH,
/// ZKL_E_DENIED or ZKL_E_SERVER.
///
/// Blocks for at most the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_release(lock: *mut zkl_lock) -> zkl_status {
    status(|| handle::get(lock)?.release())
}

/// Releases the lock once for the calling thread, without waiting for the server. The library deletes the node of the lock in
/// the background.
///
/// Returns: ZKL_OK, ZKL_E_NOT_OWNER, ZKL_E_LOST, ZKL_E_CLOSED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL. The statuses have
/// the same meanings as for zkl_release.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_release_nowait(lock: *mut zkl_lock) -> zkl_status {
    status(|| handle::get(lock)?.release_nowait())
}

/// Cancels every call that is waiting for the lock through this handle, in all threads. The waiting calls fail with
/// ZKL_E_CANCELED. The call does not affect later waits or existing holds. A call that is about to acquire the lock may still
/// return ZKL_OK despite the cancellation. To end waits for a multi-lock, pass the handle of the multi-lock, not the handle of
/// a member lock.
///
/// Returns: ZKL_OK, even if no thread waits; ZKL_E_CLOSED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function, but a signal handler must not.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_cancel(lock: *mut zkl_lock) -> zkl_status {
    status(|| handle::get(lock)?.cancel())
}

/// Reports whether the calling thread holds the lock, and whether the hold is safe at this moment. A hold is safe if, according
/// to the clock of this machine, its session cannot have expired yet. The function ignores the holds of other threads. A thread
/// that acquires a semaphore mutex holds the semaphore mutex until this thread or another thread releases it. For a multi-lock,
/// the result is 1 only if the thread holds all member locks.
///
/// Returns: 1 or 0. If an error occurs, the function returns 0, and zkl_last_error_message explains the error. An unsafe hold
/// is not an error, and does not change the last error message. To get an error status instead of 0, call zkl_lock_state.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_is_held(lock: *const zkl_lock) -> i32 {
    predicate(|| handle::get(lock)?.is_held())
}

/// Reports whether any owner in this process holds the lock through this handle, and whether the hold is safe at this moment.
/// This function is for monitoring. A result of 1 does not mean that the caller holds the lock.
///
/// Returns: 1 or 0, with the same meaning as the result of zkl_is_held. To get an error status instead of 0, call
/// zkl_lock_state_in_process.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_is_held_in_process(lock: *const zkl_lock) -> i32 {
    predicate(|| handle::get(lock)?.is_held_in_process())
}

/// Reports the state of the calling thread's hold. The state is ZKL_LOCK_FREE if the calling thread has no hold, even if
/// another owner holds the lock. The state of a multi-lock is the worst state of its member locks. If the thread does not hold
/// every member lock, the state of the multi-lock is ZKL_LOCK_FREE.
///
/// Returns: one of the ZKL_LOCK_* values, which are all 10 or more. On failure: a negative status (ZKL_E_HANDLE, ZKL_E_FORKED,
/// ZKL_E_CLOSED or ZKL_E_INTERNAL). Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_lock_state(lock: *const zkl_lock) -> i32 {
    ffi_call(|| Ok(handle::get(lock)?.state()? as i32))
}

/// Reports the state of a hold that was acquired through this handle. The hold can belong to any owner in this process. If
/// several owners hold a read lock, the function reports the state of one of their holds. The function reports a lost hold only
/// if no other hold exists.
///
/// Returns: a ZKL_LOCK_*, which is 10 or more. On failure, the function returns the same statuses as zkl_lock_state.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_lock_state_in_process(lock: *const zkl_lock) -> i32 {
    ffi_call(|| Ok(handle::get(lock)?.state_in_process()? as i32))
}

/// Gets the time for which the calling thread's hold remains safe even if no server answers. The time is in milliseconds,
/// rounded down. If the hold is not safe now, the time is 0. For a multi-lock, the function gets the shortest time of all
/// member locks.
///
/// Returns: the same statuses as zkl_fencing_token. On success, `*remaining_ms_out` contains the time.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_remaining_ms(lock: *const zkl_lock, remaining_ms_out: *mut i64) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("remaining_ms_out", remaining_ms_out)? };
        let remaining = handle::get(lock)?.remaining()?;
        out.set(i64::try_from(remaining.as_millis()).unwrap_or(i64::MAX));
        Ok(())
    })
}

/// Waits until the calling thread's hold is no longer safe. The wait ends even if the hold can become safe again. A hold that
/// is not safe has the state ZKL_LOCK_UNCERTAIN or ZKL_LOCK_LOST. The parameter `timeout_ms` is the time limit in milliseconds.
/// With -1, the call waits without a limit. With 0, the call checks the hold once. The waiting thread checks the session lease
/// itself. The call therefore detects the end of the session lease even if the process was stopped during the wait. Calling
/// zkl_cancel does not end this wait.
///
/// To watch the hold of another thread, register a listener for losses (zkl_lock_listen). Any thread can wait for the loss of a
/// zkl_hold (zkl_hold_wait_lost).
///
/// Returns: never ZKL_OK. The status reports how the wait ended:
/// - ZKL_E_LOST if the hold is no longer safe. To find out whether the hold is lost or uncertain, call zkl_lock_state.
/// - ZKL_E_TIMEOUT if the hold is still safe at the end of the timeout. The call never returns this status early.
/// - ZKL_E_NOT_OWNER if the thread has no hold, or if the hold is released during the wait.
/// - ZKL_E_CLOSED if the lock or its client is freed.
/// - ZKL_E_DEADLOCK if a callback makes the call and `timeout_ms` is not 0.
/// - ZKL_E_INVALID if `timeout_ms` is negative and not -1.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
///
/// Blocks until the wait ends, for at most the timeout. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_wait_lost(lock: *mut zkl_lock, timeout_ms: i64) -> zkl_status {
    status(|| {
        let timeout = arg::timeout(timeout_ms)?;
        let lock = handle::get(lock)?;
        let is_lost = lock.wait_lost(timeout)?;
        Err(wait_lost_error(&format!("{}: the hold is", lock.path()), is_lost, timeout_ms))
    })
}

/// Returns the error that describes how a wait for a loss ended.
pub(crate) fn wait_lost_error(whose: &str, is_lost: bool, timeout_ms: i64) -> Error {
    if is_lost {
        Error::new(Status::Lost, format!("{whose} no longer safe"))
    } else {
        Error::new(Status::Timeout, format!("{whose} still safe after {timeout_ms} ms"))
    }
}

/// Sets the data of each node that a later acquire call creates. The data shows which program holds the lock, and which
/// programs wait for the lock. By default, the data is the address of the host, as in Curator. The library copies len bytes
/// from data. `len` must not exceed 512 KiB. If `len` is 0, the nodes have no data, and the parameter `data` may be NULL. For
/// a multi-lock, the call sets the data of all member locks, and replaces their previous data.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_lock_set_data(lock: *mut zkl_lock, data: *const c_void, len: usize) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps these bytes valid during the call.
        let data = unsafe { arg::bytes("data", data, len, MAX_DATA)? };
        handle::get(lock)?.set_data(Some(data))
    })
}

/// Gets the path of the node that represents the calling thread's hold. The path does not contain the client's chroot. In a
/// ZooKeeper transaction, a program can check that this node exists. If the lock was lost, the transaction then fails.
///
/// The function writes the path, with a terminating NUL, to the buffer `buf`. This buffer has `size` bytes. The function
/// stores the required buffer size, in bytes, in `*needed_out`. If `size` is 0, `buf` may be NULL.
///
/// Returns: ZKL_OK. On failure:
/// - ZKL_E_BUFFER if the path does not fit. A call that fails with ZKL_E_BUFFER writes only `*needed_out`.
/// - ZKL_E_NOT_OWNER if the calling thread does not hold the lock.
/// - ZKL_E_LOST if the hold of the thread was lost.
/// - ZKL_E_INVALID if an argument is not valid, or if the lock is a multi-lock. A program can call the function for each member
///   lock instead.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_lock_node_path(
    lock: *const zkl_lock,
    buf: *mut c_char,
    size: usize,
    needed_out: *mut usize,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps both pointers valid during the call.
        let buffer = unsafe { Buffer::new(buf, size, needed_out)? };
        let lock = handle::get(lock)?;
        if !lock.members().is_empty() {
            let message = "a multi-lock has a node for each member lock; call the function for a member lock";
            return Err(Error::new(Status::Invalid, message));
        }
        buffer.set(&lock.node_paths()?.into_iter().next().ok_or(Status::NotOwner)?)
    })
}
