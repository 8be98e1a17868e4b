//! Requests to release a lock or leases, and the functions that set the callbacks for these requests. This module must not keep
//! a callback: the object of the lock or semaphore keeps the callback.

use std::ffi::{c_char, c_void};

use zklock_abi::arg;
use zklock_abi::boundary::status;
use zklock_abi::handle;

use crate::callback::{UserData, zkl_user_drop};
use crate::client::zkl_client;
use crate::lock_object::zkl_lock;
use crate::semaphore::zkl_semaphore;
use crate::status::zkl_status;

/// A callback that receives revocation requests for a lock. The callback must return normally. A callback must not throw an
/// exception or call longjmp.
pub type zkl_revocable_cb = Option<unsafe extern "C" fn(user: *mut c_void, lock: *mut zkl_lock)>;

/// A callback that receives revocation requests for leases of a semaphore. The callback must return normally. A callback must
/// not throw an exception or call longjmp.
pub type zkl_semaphore_revocable_cb = Option<unsafe extern "C" fn(user: *mut c_void, semaphore: *mut zkl_semaphore)>;

/// Sets the callback that receives revocation requests for a lock. With a revocation request, a program asks the owner of a
/// node to release the lock, or to stop waiting for the lock (zkl_revoke, Curator's Revoker). A revocation request does not
/// release the lock by itself. For each node that receives a request, the library calls `cb` once. The arguments of `cb` are
/// the pointer `user` and the handle of this lock. The library may deliver several queued requests for one node as one request.
/// If more than 1024 requests are queued, the library may drop the oldest requests.
///
/// The library delivers revocation requests and events on the same thread, in the order in which they occurred. The rules for
/// event callbacks also apply to `cb` (section Callbacks above). A hold of a mutex or a read/write lock belongs to an owner,
/// for example a thread. Only this owner can release the hold, so `cb` should notify the owner.
///
/// A later call of zkl_set_revocable replaces the callback. If `cb` is NULL, the call removes the callback and calls
/// `user_drop` at once. After the function has returned, the previous callback is not running on another thread, and the
/// library does not call this callback again. If the previous callback itself calls zkl_set_revocable, the function does not
/// wait. A call with a NULL `cb` also waits for the previous callback if it fails with ZKL_E_CLOSED, because the callback of a
/// closed lock can still be running.
///
/// If `user_drop` is not NULL, the library calls `user_drop` after the callback is replaced, or after the lock or its client is
/// freed. The library calls `user_drop` only once, after the last call of `cb` has returned. If the program frees the lock when
/// the library is about to call `cb`, the library can still make that call.
///
/// The callback of a multi-lock replaces the callbacks of all its member locks. The callback of a multi-lock stays in use until
/// the multi-lock or all of its member locks are freed.
///
/// Returns: ZKL_OK, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL. On failure, the library does not
/// use the pointer `user` and does not call `user_drop`.
/// Blocks while the previous callback is running. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_set_revocable(
    lock: *mut zkl_lock,
    cb: zkl_revocable_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
) -> zkl_status {
    status(|| {
        let named = handle::get(lock)?;
        // The callback may run on another thread. The closure therefore captures the handle as a number.
        let address = lock.addr();
        let cb = cb.map(|cb| {
            move |user: *mut c_void| {
                // SAFETY: the caller passed a function of this type, and `user` as the argument of this function.
                unsafe { cb(user, std::ptr::without_provenance_mut(address)) };
            }
        });
        named.callbacks.set(cb, UserData::new(user, user_drop), |handler| named.set_revocable(handler))
    })
}

/// Sets the callback that receives revocation requests for a semaphore's leases. The rules of zkl_set_revocable also apply to
/// the leases of a semaphore. After the program frees the semaphore, the library no longer delivers requests for leases that
/// are still held.
///
/// Returns: the same statuses as zkl_set_revocable.
/// Blocks while the previous callback is running. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_semaphore_set_revocable(
    semaphore: *mut zkl_semaphore,
    cb: zkl_semaphore_revocable_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
) -> zkl_status {
    status(|| {
        let open = handle::get(semaphore)?;
        let address = semaphore.addr();
        let cb = cb.map(|cb| {
            move |user: *mut c_void| {
                // SAFETY: the caller passed a function of this type, and `user` as the argument of this function.
                unsafe { cb(user, std::ptr::without_provenance_mut(address)) };
            }
        });
        open.callbacks.set(cb, UserData::new(user, user_drop), |handler| open.set_revocable(handler))
    })
}

/// Requests the revocation of a node. The request asks the owner of the node to release the lock or the lease, or to stop
/// waiting. The parameter `node_path` is a path that zkl_participants reports. The owner receives the request only if its
/// program has set a callback (zkl_set_revocable, Curator's makeRevocable). The owner may ignore the request.
///
/// Returns: ZKL_OK, even if the node does not exist any more; ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED,
/// ZKL_E_CONNECTION, ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_INTERNAL.
/// Blocks for at most the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_revoke(client: *mut zkl_client, node_path: *const c_char) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let node_path = unsafe { arg::text("node_path", node_path)? };
        handle::get(client)?.client.revoke(node_path)
    })
}
