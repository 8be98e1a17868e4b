//! The calls that wait for a server, in a form that does not block: each function starts an operation. This module must not
//! acquire: `op.rs` starts acquires. This module must not set callbacks.

use std::ffi::c_char;

use zklock::{Client, Error, Operation, Result, Status};
use zklock_abi::arg::{self, Output};
use zklock_abi::boundary::status;
use zklock_abi::handle;

use crate::client::zkl_client;
use crate::config::{self, zkl_config};
use crate::hold::{self, zkl_hold};
use crate::lock_object::{LockHandles, zkl_lock};
use crate::op::{self, Kind, zkl_op};
use crate::op_answer::OpAnswer;
use crate::run::{JobArguments, zkl_run};
use crate::semaphore::zkl_semaphore;
use crate::status::zkl_status;

/// Starts making a client, and does not wait until the client is connected. All other rules of zkl_client_new also apply to
/// this function. The operation ends when the client has a session, or at the latest after the connect timeout. The program
/// then takes the client from the operation (zkl_op_client). Until then, the client has no handle, so no other function can use
/// a client that has no session. The caller must free the new operation, `*op_out`, with zkl_op_free. If the operation fails,
/// the program does not need to free anything else.
///
/// The library may call the callbacks of `config` as soon as the client starts to connect. If the program polls for events
/// (zkl_config_set_poll_events), the events stay queued until the program has taken the client.
///
/// Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_client_new. On failure:
/// - ZKL_E_INVALID if an argument is not valid.
/// - ZKL_E_HANDLE or ZKL_E_FORKED if `config` is not a live config of this process.
/// - Other failures: ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_client_start(
    servers: *const c_char,
    config: *const zkl_config,
    op_out: *mut *mut zkl_op,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps both pointers valid during the call.
        let (servers, out) = unsafe { (arg::text("servers", servers)?, Output::new("op_out", op_out)?) };
        let handles = LockHandles::default();
        // If the program frees the operation, the library drops the client. This drop must not block.
        let config = config::copy_of(config, &handles)?.end_in_background(true);
        let connecting = Client::start_connect(servers, &config)?;
        let operation = connecting.and_then(move |client| OpAnswer::client(client, &handles));
        out.set(op::insert(operation, Kind::Request)?);
        Ok(())
    })
}

/// Starts closing a client, without waiting for callbacks or for the server. Calls that wait for a lock of this client fail
/// with ZKL_E_CLOSED, and so do later calls on its locks. The handle `client` stays valid until the program frees it with
/// zkl_client_free. After the operation has ended, zkl_client_free does not block. The caller must also free the new
/// operation, `*op_out`, with zkl_op_free. If the program frees the operation early, the client still closes.
///
/// Use this function on a thread that the client's callbacks depend on. Such a thread must not call zkl_client_free, because
/// zkl_client_free waits for running callbacks. Examples are a thread that runs an event loop, and a thread that holds the
/// lock of an interpreter.
///
/// As in zkl_client_free, the client delivers its queued events before it closes, but only for a limited time. The client calls
/// its ZKL_LISTEN_LOSS listeners before it ends the session. If the program polls for events, no library thread calls a
/// callback. In this case, until the operation ends, the program must watch a duplicate of the event descriptor and call
/// zkl_client_dispatch_events. The library closes the event descriptor at the end of the operation. When the operation has
/// ended, all callbacks have returned, and the library no longer calls the client's callbacks. If the program polls for events,
/// the library calls each user_drop function on the calling thread, during zkl_client_free or zkl_client_free_nowait. If the
/// program does not poll for events, the library calls each user_drop function before the operation ends. This call can occur
/// on any thread.
///
/// Returns: ZKL_OK if the client is closing. The operation ends with ZKL_OK when the server has confirmed the end of the session,
/// or when the time for the confirmation has passed. In the second case, the nodes of the client can exist until the session
/// expires. On failure:
/// - ZKL_E_EXHAUSTED if the process cannot start a thread. The client then stays open.
/// - Other failures: ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
///
/// Does not block. The operation ends within two seconds, plus the running time of callbacks. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_client_close_start(client: *mut zkl_client, op_out: *mut *mut zkl_op) -> zkl_status {
    // SAFETY: the caller keeps the pointer valid during the call.
    unsafe { start(op_out, || Ok(handle::get(client)?.client.start_close()?.and_then(OpAnswer::done))) }
}

/// Starts releasing a hold, and frees the handle immediately. The operation ends when the server has confirmed that the nodes of
/// the hold are deleted. All other rules of zkl_hold_release also apply to this function. The caller must free the new operation,
/// `*op_out`, with zkl_op_free. If the program frees the operation early, the library still releases the hold.
///
/// Returns: ZKL_OK if the release has started. Later, zkl_op_result returns the same statuses as zkl_hold_release. On failure:
/// ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_NOT_OWNER, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL. A call that fails
/// with ZKL_E_INVALID does not free the handle.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_hold_release_start(hold: *mut zkl_hold, op_out: *mut *mut zkl_op) -> zkl_status {
    // SAFETY: the caller keeps the pointer valid during the call.
    unsafe { start(op_out, || Ok(handle::take(hold)?.start_release(true)?.and_then(OpAnswer::done))) }
}

/// Starts an operation that asks the server for the participants of a lock. The rules of zkl_participants apply, except that
/// no callback receives the participants. After the operation has ended with ZKL_OK, zkl_op_value gets the number of
/// participants, and zkl_op_participant gets each participant. The caller must free the new operation, `*op_out`, with
/// zkl_op_free.
///
/// Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_participants. On
/// failure: ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL. Does not block. The
/// operation ends within the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_participants_start(lock: *mut zkl_lock, op_out: *mut *mut zkl_op) -> zkl_status {
    // SAFETY: the caller keeps the pointer valid during the call.
    unsafe { start(op_out, || Ok(handle::get(lock)?.start_participants()?.and_then(OpAnswer::participants))) }
}

/// Starts an operation that asks the server for the participants of a lock. For a read/write lock, the operation lists both
/// readers and writers, as zkl_queue does. All other rules of zkl_participants_start also apply to this function.
///
/// Returns: the same statuses as zkl_participants_start.
/// Does not block. The operation ends within the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_queue_start(lock: *mut zkl_lock, op_out: *mut *mut zkl_op) -> zkl_status {
    // SAFETY: the caller keeps the pointer valid during the call.
    unsafe { start(op_out, || Ok(handle::get(lock)?.start_queue()?.and_then(OpAnswer::participants))) }
}

/// Starts an operation that asks the server for the participants of a semaphore. The operation lists the participants in the
/// same order as zkl_semaphore_participants. All other rules of zkl_participants_start also apply to this function.
///
/// Returns: the same statuses as zkl_participants_start.
/// Does not block. The operation ends within the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_semaphore_participants_start(
    semaphore: *mut zkl_semaphore,
    op_out: *mut *mut zkl_op,
) -> zkl_status {
    // SAFETY: the caller keeps the pointer valid during the call.
    unsafe { start(op_out, || Ok(handle::get(semaphore)?.start_participants()?.and_then(OpAnswer::participants))) }
}

/// Starts a revocation request for a node without waiting for the server. All other rules of zkl_revoke also apply to this
/// function. The caller must free the new operation, `*op_out`, with zkl_op_free.
///
/// Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_revoke. On failure:
/// ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Does not block. The operation ends within the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_revoke_start(
    client: *mut zkl_client,
    node_path: *const c_char,
    op_out: *mut *mut zkl_op,
) -> zkl_status {
    // SAFETY: the caller keeps both pointers valid during the call.
    unsafe {
        start(op_out, || {
            let node_path = arg::text("node_path", node_path)?;
            Ok(handle::get(client)?.client.start_revoke(node_path)?.and_then(OpAnswer::done))
        })
    }
}

/// Starts an operation that asks the ensemble whether the hold with this fencing token still exists. All other rules of
/// zkl_fence_check also apply to this function. After the operation has ended with ZKL_OK, zkl_op_value gets 1 if the hold
/// still exists, and 0 otherwise. The caller must free the new operation, `*op_out`, with zkl_op_free.
///
/// Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_fence_check. On failure:
/// ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Does not block. The operation ends within the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_fence_check_start(
    client: *mut zkl_client,
    path: *const c_char,
    token: i64,
    op_out: *mut *mut zkl_op,
) -> zkl_status {
    // SAFETY: the caller keeps both pointers valid during the call.
    unsafe {
        start(op_out, || {
            let path = arg::text("path", path)?;
            Ok(handle::get(client)?.client.start_fence_check(path, token)?.and_then(OpAnswer::number))
        })
    }
}

/// Starts reading the value of a shared count. All other rules of zkl_shared_count_get also apply to this function. After the
/// operation has ended with ZKL_OK, zkl_op_value gets the count. The caller must free the new operation, `*op_out`, with
/// zkl_op_free.
///
/// Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_shared_count_get. On
/// failure: ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Does not block. The operation ends within the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_shared_count_get_start(
    client: *mut zkl_client,
    count_path: *const c_char,
    op_out: *mut *mut zkl_op,
) -> zkl_status {
    // SAFETY: the caller keeps both pointers valid during the call.
    unsafe {
        start(op_out, || {
            let count_path = arg::text("count_path", count_path)?;
            Ok(handle::get(client)?.client.start_shared_count_get(count_path)?.and_then(OpAnswer::number))
        })
    }
}

/// Starts an operation that sets a shared count to a new value. All other rules of zkl_shared_count_set also apply to this
/// function. The caller must free the new operation, `*op_out`, with zkl_op_free.
///
/// Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_shared_count_set. On
/// failure: ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Does not block. The operation ends within the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_shared_count_set_start(
    client: *mut zkl_client,
    count_path: *const c_char,
    value: i32,
    op_out: *mut *mut zkl_op,
) -> zkl_status {
    // SAFETY: the caller keeps both pointers valid during the call.
    unsafe {
        start(op_out, || {
            let count_path = arg::text("count_path", count_path)?;
            Ok(handle::get(client)?.client.start_shared_count_set(count_path, value)?.and_then(OpAnswer::done))
        })
    }
}

/// Starts making a semaphore that takes its number of leases from a shared count. All other rules of zkl_semaphore_new_counted
/// also apply to this function. After the operation has ended with ZKL_OK, the program takes the semaphore from the operation
/// (zkl_op_semaphore). The caller must free the new operation, `*op_out`, with zkl_op_free.
///
/// Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_semaphore_new_counted.
/// On failure: ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Does not block. The operation ends within the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_semaphore_new_counted_start(
    client: *mut zkl_client,
    path: *const c_char,
    count_path: *const c_char,
    initial: i32,
    op_out: *mut *mut zkl_op,
) -> zkl_status {
    // SAFETY: the caller keeps all three pointers valid during the call.
    unsafe {
        start(op_out, || {
            let (path, count_path) = (arg::text("path", path)?, arg::text("count_path", count_path)?);
            let call = handle::get(client)?.client.start_semaphore_counted(path, count_path, initial)?;
            Ok(call.and_then(OpAnswer::semaphore))
        })
    }
}

/// Starts an operation that waits until a hold is no longer safe. If the hold is released, the operation ends with
/// ZKL_E_NOT_OWNER. To end the wait earlier, cancel or free the operation. All other rules of zkl_hold_wait_lost also apply to
/// this function. The caller must free the new operation, `*op_out`, with zkl_op_free.
///
/// Returns: ZKL_OK if the wait has started. Later, zkl_op_result never returns ZKL_OK. When the wait has ended, zkl_op_result
/// reports the status that zkl_wait_lost would return, for example ZKL_E_LOST if the hold is no longer safe. On failure:
/// ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_NOT_OWNER, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_hold_wait_lost_start(hold: *mut zkl_hold, op_out: *mut *mut zkl_op) -> zkl_status {
    // SAFETY: the caller keeps the pointer valid during the call.
    unsafe {
        start(op_out, || {
            let (wait, whose) = hold::query(hold, |hold| Ok((hold.start_wait_lost()?, hold::whose(hold))))?;
            Ok(wait.and_then(move |()| Err(Error::new(Status::Lost, format!("{whose} no longer safe")))))
        })
    }
}

/// Starts to begin a run of a job. After the operation has ended with ZKL_OK, zkl_op_run gets the run, or NULL if the job has
/// already run. If the program cancels or frees the operation before it has taken the run, the library removes the run from the
/// record in the background. If the program releases the hold before the removal, the run counts as interrupted. All other rules
/// of zkl_hold_begin_run also apply to this function. The caller must free the new operation, `*op_out`, with zkl_op_free.
///
/// Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_hold_begin_run. On
/// failure: ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_LOST, ZKL_E_NOT_OWNER, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_hold_begin_run_start(
    hold: *mut zkl_hold,
    period: *const c_char,
    zone: *const c_char,
    flags: u32,
    op_out: *mut *mut zkl_op,
) -> zkl_status {
    // SAFETY: the caller keeps all three pointers valid during the call.
    unsafe {
        start(op_out, || {
            let job = JobArguments::new(period, zone, flags)?;
            Ok(job.start(&*handle::get(hold)?)?.and_then(OpAnswer::run))
        })
    }
}

/// Starts to end a run, and frees the handle immediately. The operation ends when a server has confirmed the record. All other
/// rules of zkl_run_finish also apply to this function. The caller must free the new operation, `*op_out`, with zkl_op_free. If
/// the program frees the operation early, the library still writes the record.
///
/// Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_run_finish. On failure:
/// ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_LOST, ZKL_E_NOT_OWNER, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL. A call
/// that fails with ZKL_E_INVALID does not free the handle.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_run_finish_start(
    run: *mut zkl_run,
    failure: *const c_char,
    op_out: *mut *mut zkl_op,
) -> zkl_status {
    // SAFETY: the caller keeps both pointers valid during the call.
    unsafe {
        start(op_out, || {
            let failure = arg::optional_text("failure", failure)?;
            Ok(handle::take(run)?.start_finish(failure)?.and_then(OpAnswer::done))
        })
    }
}

/// Starts to remove a run from the record, and frees the handle immediately. All other rules of zkl_run_take_back also apply to
/// this function. The caller must free the new operation, `*op_out`, with zkl_op_free. If the program frees the operation early,
/// the library still removes the run.
///
/// Returns: the same statuses as zkl_run_finish_start.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_run_take_back_start(run: *mut zkl_run, op_out: *mut *mut zkl_op) -> zkl_status {
    // SAFETY: the caller keeps the pointer valid during the call.
    unsafe { start(op_out, || Ok(handle::take(run)?.start_take_back()?.and_then(OpAnswer::done))) }
}

/// Starts to read the last runs of the job of a lock. The rules of zkl_past_runs apply, except that no callback receives the runs.
/// After the operation has ended with ZKL_OK, zkl_op_value gets the number of runs, and zkl_op_past_run gets each run. The caller
/// must free the new operation, `*op_out`, with zkl_op_free.
///
/// Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_past_runs. On failure:
/// ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Does not block. The operation ends within the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_past_runs_start(
    client: *mut zkl_client,
    path: *const c_char,
    op_out: *mut *mut zkl_op,
) -> zkl_status {
    // SAFETY: the caller keeps both pointers valid during the call.
    unsafe {
        start(op_out, || {
            let path = arg::text("path", path)?;
            Ok(handle::get(client)?.client.start_past_runs(path)?.and_then(OpAnswer::past_runs))
        })
    }
}

/// Makes a handle for the operation that `start` starts.
///
/// # Safety
/// `op_out` is NULL or points to writable memory.
unsafe fn start(op_out: *mut *mut zkl_op, start: impl FnOnce() -> Result<Operation<OpAnswer>>) -> zkl_status {
    status(|| {
        // SAFETY: the caller of this function guarantees the contract.
        let out = unsafe { Output::new("op_out", op_out)? };
        out.set(op::insert(start()?, Kind::Request)?);
        Ok(())
    })
}
