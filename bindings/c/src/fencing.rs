//! Fencing tokens: the numbers of holds, with which a store can refuse late writes. This module must not acquire or release a
//! lock.

use std::ffi::c_char;

use zklock_abi::arg::{self, Output};
use zklock_abi::boundary::status;
use zklock_abi::handle;

use crate::client::zkl_client;
use crate::lock_object::zkl_lock;
use crate::status::zkl_status;

/// Gets the fencing token of the calling thread's hold. A fencing token is a number that grows with every hold of the path. A
/// store can remember the largest token that it has seen, and refuse requests with a smaller token. A store that refuses
/// smaller tokens is safe from writers that have lost their lock but have not detected the loss. If the owner of the write lock
/// also acquires the read lock, send the token of the write lock: the token of the read lock can be larger than the token of
/// the next writer.
///
/// If the member locks of a multi-lock joined their queues in one transaction, all member locks have the same token. If the
/// member locks of a multi-lock have different tokens, the function gets the smallest token. In this case, give each store the
/// token of the member lock that protects the store.
///
/// Returns: ZKL_OK, with the token in `*token_out`. On failure:
/// - ZKL_E_NOT_OWNER if the calling thread has no hold, even if another owner holds the lock.
/// - ZKL_E_LOST if the hold of the thread was lost.
/// - Other failures: ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_fencing_token(lock: *const zkl_lock, token_out: *mut i64) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("token_out", token_out)? };
        out.set(handle::get(lock)?.fencing_token()?);
        Ok(())
    })
}

/// Gets the fencing pass of the calling thread's hold. Several holds can have the same token because of local hand-overs
/// (zkl_mutex_set_local_handover). The fencing pass is the number of local hand-overs that occurred under this token before the
/// hold began. If the hold was acquired through the queue, the fencing pass is 0. For a multi-lock, the token and the fencing
/// pass come from the same member lock. If a store must distinguish the threads of one process, it must compare the token and
/// the fencing pass. The store must refuse a write whose token is smaller than the token of an earlier write. Among writes
/// with the same token, the store must refuse a write whose fencing pass is smaller than that of an earlier write.
///
/// Returns: the same statuses as zkl_fencing_token. On success, `*fencing_pass_out` contains the fencing pass.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_fencing_pass(lock: *const zkl_lock, fencing_pass_out: *mut i64) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("fencing_pass_out", fencing_pass_out)? };
        out.set(i64::from(handle::get(lock)?.fencing_pass()?));
        Ok(())
    })
}

/// Asks the ensemble whether the hold with this fencing token still exists on a path. The hold can belong to any zklock or
/// Curator client. The function supports mutexes, read/write locks, semaphores, semaphore mutexes and member locks of
/// multi-locks. A read lock may have several holders. The token of a waiter is not valid. A token for semaphore leases becomes
/// valid once the owner of the leases has left the semaphore's inner mutex.
///
/// The result was correct at some moment after the call began, even if the client's server lags behind the other servers. The
/// result may be outdated by the time the program reads it. A store must therefore compare tokens, even if the program calls
/// zkl_fence_check (docs/fencing.md). To check its own hold, a program should call zkl_is_held instead. The function
/// zkl_is_held sends no request, and takes the session lease into account. For zkl_fence_check, a hold exists as long as the
/// hold's node exists.
///
/// Returns: ZKL_OK, with 1 in `*valid_out` if the hold still exists, and 0 if the hold or the path does not exist. A call that
/// fails does not write `*valid_out`, so the caller must not read it. On failure:
/// - ZKL_E_INVALID if an argument is not valid, for example a token below 1.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_DENIED,
///   ZKL_E_SERVER, ZKL_E_INTERNAL.
///
/// Blocks for at most the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_fence_check(
    client: *mut zkl_client,
    path: *const c_char,
    token: i64,
    valid_out: *mut i32,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps both pointers valid during the call.
        let (path, out) = unsafe { (arg::text("path", path)?, Output::new("valid_out", valid_out)?) };
        out.set(i32::from(handle::get(client)?.client.fence_check(path, token)?));
        Ok(())
    })
}
