//! Semaphores, their leases, and the shared counts that can set the number of leases. This module must not set callbacks.

use std::ffi::{c_char, c_void};
use std::ops::Deref;

use zklock::internal::PerProcess;
use zklock::{Error, Leases, MAX_DATA, Result, Semaphore, Status};
use zklock_abi::arg::{self, Buffer, Output};
use zklock_abi::boundary::{ffi_call, free, predicate, status};
use zklock_abi::handle::{self, Handle, HandleKind, Table};

use crate::callback::RevocationCallbacks;
use crate::client::zkl_client;
use crate::lock::wait_lost_error;
use crate::status::zkl_status;

/// A semaphore on a path. A semaphore has a number of leases, which threads and processes acquire and release.
pub struct zkl_semaphore(());

/// Leases that were acquired from a semaphore. Leases belong to no thread. Any thread that has the handle may release the
/// leases.
pub struct zkl_leases(());

/// The object that a `zkl_semaphore` handle identifies.
pub struct SemaphoreObject {
    semaphore: Semaphore,
    pub(crate) callbacks: RevocationCallbacks,
}

impl Deref for SemaphoreObject {
    type Target = Semaphore;

    fn deref(&self) -> &Semaphore {
        &self.semaphore
    }
}

impl Handle for zkl_semaphore {
    type Object = SemaphoreObject;
    const KIND: HandleKind = HandleKind::Semaphore;

    fn table() -> &'static Table<SemaphoreObject> {
        static TABLE: PerProcess<Table<SemaphoreObject>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

impl Handle for zkl_leases {
    type Object = Leases;
    const KIND: HandleKind = HandleKind::Leases;

    fn table() -> &'static Table<Leases> {
        static TABLE: PerProcess<Table<Leases>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

/// Makes a semaphore with `max_leases` leases on a path. The semaphore uses the same znodes as Curator's
/// InterProcessSemaphoreV2. All programs that use the semaphore must set the same value of `max_leases`. The function sends no
/// request to a server. The caller must free the new semaphore, `*semaphore_out`, with zkl_semaphore_free.
///
/// Returns: ZKL_OK. On failure:
/// - ZKL_E_INVALID if an argument is not valid, for example if `max_leases` is below 1.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_semaphore_new(
    client: *mut zkl_client,
    path: *const c_char,
    max_leases: i32,
    semaphore_out: *mut *mut zkl_semaphore,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps both pointers valid during the call.
        let (path, out) = unsafe { (arg::text("path", path)?, Output::new("semaphore_out", semaphore_out)?) };
        out.set(insert(handle::get(client)?.client.semaphore(path, max_leases)?)?);
        Ok(())
    })
}

/// Makes a semaphore that takes its number of leases from a shared count at `count_path`. If a program changes the count
/// (zkl_shared_count_set, Curator's SharedCount), the number of leases changes too. If the count has no node yet, the call
/// creates the node with the value `initial`. If a program lowers the count, owners keep the leases that they already hold.
///
/// Returns: the same statuses as zkl_semaphore_new, and also ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER.
/// Blocks for at most the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_semaphore_new_counted(
    client: *mut zkl_client,
    path: *const c_char,
    count_path: *const c_char,
    initial: i32,
    semaphore_out: *mut *mut zkl_semaphore,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps all three pointers valid during the call.
        let (path, count_path, out) = unsafe {
            (
                arg::text("path", path)?,
                arg::text("count_path", count_path)?,
                Output::new("semaphore_out", semaphore_out)?,
            )
        };
        out.set(insert(handle::get(client)?.client.semaphore_counted(path, count_path, initial)?)?);
        Ok(())
    })
}

/// Frees a semaphore. Calls that wait for leases through this handle fail with ZKL_E_CLOSED. After this call, the leases that
/// were acquired through the handle remain held. The caller must still release these leases with zkl_leases_release. The
/// parameter `semaphore` may be NULL.
///
/// Returns nothing. If `semaphore` is not a live handle, the call has no effect. The last error message does not change.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_semaphore_free(semaphore: *mut zkl_semaphore) {
    free(|| {
        handle::free(semaphore, |open| {
            let closed = open.close();
            open.callbacks.close();
            closed
        })
    });
}

/// Acquires `quantity` leases within a timeout. The call acquires either all of these leases or no lease. The parameter
/// `timeout_ms` is the time limit for the whole call in milliseconds, or -1 for no limit. With timeout 0, the call makes one
/// attempt and does not wait for other participants. The semaphore serves requests in the order of their arrival. A request for
/// few leases does not overtake an earlier request for many leases. The caller must release the leases, `*leases_out`, with
/// zkl_leases_release. Any thread may release the leases.
///
/// If the number of leases is a shared count, `quantity` may be larger than the count. The call then waits until the count is
/// raised. During this wait, the call has no place in the queue. Other requests can therefore overtake the call, and
/// zkl_semaphore_participants does not show the call.
///
/// Returns: ZKL_OK if the leases are held. A call that fails has acquired nothing. On failure:
/// - ZKL_E_TIMEOUT if the leases were not acquired within the timeout. The call never returns this status early.
/// - ZKL_E_CONNECTION if, at the end of the timeout, the client has no connection or its server does not answer.
/// - ZKL_E_CANCELED if zkl_semaphore_cancel ended the wait.
/// - ZKL_E_CLOSED if zkl_semaphore_free or zkl_client_free closed the semaphore.
/// - ZKL_E_INVALID if `quantity` is below 1, above max_leases, or too large for one server transaction.
/// - ZKL_E_INVALID if the servers do not accept the client's access control lists (docs/acl.md).
/// - ZKL_E_INVALID if `timeout_ms` is negative and not -1.
/// - ZKL_E_DEADLOCK if a callback makes the call and `timeout_ms` is not 0.
/// - Other failures: ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_UNSUPPORTED, ZKL_E_HANDLE, ZKL_E_FORKED,
///   ZKL_E_INTERNAL.
///
/// Blocks until the leases are held or the timeout passes. A call with timeout 0 waits at most one second for the server. Any
/// thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_semaphore_acquire_timeout(
    semaphore: *mut zkl_semaphore,
    quantity: i32,
    timeout_ms: i64,
    leases_out: *mut *mut zkl_leases,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("leases_out", leases_out)? };
        let timeout = arg::timeout(timeout_ms)?;
        let quantity = positive(quantity)?;
        out.set(handle::insert(handle::get(semaphore)?.acquire(quantity, timeout)?)?);
        Ok(())
    })
}

/// Cancels all waits for leases through this handle, in all threads. The waiting calls fail with ZKL_E_CANCELED. The call
/// affects neither later waits nor leases that are already held. A call that is about to acquire its leases may still return
/// ZKL_OK despite the cancellation.
///
/// Returns: ZKL_OK, even if no thread waits; ZKL_E_CLOSED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function, but a signal handler must not.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_semaphore_cancel(semaphore: *mut zkl_semaphore) -> zkl_status {
    status(|| handle::get(semaphore)?.cancel())
}

/// Sets the data of each node that a later acquire call creates. The rules of zkl_lock_set_data also apply to a semaphore.
/// Each lease has its own node with this data.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_semaphore_set_data(
    semaphore: *mut zkl_semaphore,
    data: *const c_void,
    len: usize,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps these bytes valid during the call.
        let data = unsafe { arg::bytes("data", data, len, MAX_DATA)? };
        handle::get(semaphore)?.set_data(Some(data))
    })
}

/// Releases all leases of a handle, and frees the handle. The call frees a live handle of this process even if the release
/// fails.
///
/// Returns: ZKL_OK if the server has confirmed that the nodes of the leases are deleted. On failure:
/// - ZKL_E_LOST if a lease was lost before the release. After the loss, another owner may have held the lease.
/// - ZKL_E_CONNECTION if no server confirmed the release within the session timeout. The library keeps trying to delete the
///   nodes.
/// - ZKL_E_CLOSED if the client was freed, which also ended the leases.
/// - ZKL_E_HANDLE if `leases` is not a live handle, for example NULL or the handle of leases that were already released.
/// - ZKL_E_DENIED if an access control list does not allow the client to delete the nodes (as for zkl_release).
/// - Other failures: ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_SERVER, ZKL_E_FORKED, ZKL_E_INTERNAL.
///
/// Blocks for at most the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_leases_release(leases: *mut zkl_leases) -> zkl_status {
    status(|| handle::take(leases)?.release())
}

/// Reports whether the leases are held and safe at this moment. Leases are safe if, according to the clock of this machine,
/// their session cannot have expired yet.
///
/// Returns: 1 or 0. If an error occurs, the function returns 0, and zkl_last_error_message explains the error. Unsafe leases
/// are not an error, and do not change the last error message. To get an error status instead of 0, call zkl_leases_state.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_leases_is_held(leases: *const zkl_leases) -> i32 {
    predicate(|| handle::get(leases)?.is_held())
}

/// Reports the state of the leases. All leases of one handle have one common state. If any lease of a handle is lost, all
/// leases of that handle have the state ZKL_LOCK_LOST.
///
/// Returns: one of the ZKL_LOCK_* values, which are all 10 or more. On failure: a negative status (ZKL_E_HANDLE, ZKL_E_FORKED,
/// ZKL_E_CLOSED or ZKL_E_INTERNAL). Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_leases_state(leases: *const zkl_leases) -> i32 {
    ffi_call(|| Ok(handle::get(leases)?.state()? as i32))
}

/// Gets the fencing token of the leases. The token grows with every acquire of the semaphore. If several owners can hold leases
/// at the same time, the tokens only show the order of the acquires. Other owners can hold leases at the same time as the owner
/// of the largest token.
///
/// Returns: ZKL_OK, with the token in `*token_out`. On failure:
/// - ZKL_E_LOST if a lease was lost.
/// - Other failures: ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_leases_fencing_token(leases: *const zkl_leases, token_out: *mut i64) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("token_out", token_out)? };
        out.set(query_leases(leases, Leases::fencing_token)?);
        Ok(())
    })
}

/// Gets the time for which the leases remain safe even if no server answers. The time is in milliseconds, rounded down. If the
/// leases are not safe now, the time is 0.
///
/// Returns: the same statuses as zkl_leases_fencing_token. On success, `*remaining_ms_out` contains the time.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_leases_remaining_ms(leases: *const zkl_leases, remaining_ms_out: *mut i64) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("remaining_ms_out", remaining_ms_out)? };
        let remaining = query_leases(leases, Leases::remaining)?;
        out.set(i64::try_from(remaining.as_millis()).unwrap_or(i64::MAX));
        Ok(())
    })
}

/// Waits until at least one of the leases is no longer safe. The rules of zkl_wait_lost also apply to leases.
///
/// Returns: the same statuses as zkl_wait_lost. If the leases are released during the wait, the call fails with ZKL_E_HANDLE
/// instead of ZKL_E_NOT_OWNER.
/// Blocks until the wait ends, for at most the timeout. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_leases_wait_lost(leases: *mut zkl_leases, timeout_ms: i64) -> zkl_status {
    status(|| {
        let timeout = arg::timeout(timeout_ms)?;
        let is_lost = query_leases(leases, |leases| leases.wait_lost(timeout))?;
        Err(wait_lost_error("the leases are", is_lost, timeout_ms))
    })
}

/// Gets the node path of one lease. The rules of zkl_lock_node_path also apply to leases. The parameter `index` selects the
/// lease. The index of the first lease is 0.
///
/// Returns: ZKL_OK. On failure:
/// - ZKL_E_BUFFER if the path does not fit. A call that fails with ZKL_E_BUFFER writes only `*needed_out`.
/// - ZKL_E_LOST if a lease was lost.
/// - ZKL_E_INVALID if an argument is not valid, for example if `index` is too large.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_leases_node_path(
    leases: *const zkl_leases,
    index: usize,
    buf: *mut c_char,
    size: usize,
    needed_out: *mut usize,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps both pointers valid during the call.
        let buffer = unsafe { Buffer::new(buf, size, needed_out)? };
        let paths = query_leases(leases, Leases::node_paths)?;
        let path = paths.get(index).ok_or_else(|| {
            let message = format!("index is {index}; expected less than {}, the number of leases", paths.len());
            Error::new(Status::Invalid, message)
        })?;
        buffer.set(path)
    })
}

/// Reads the value of a shared count (Curator's SharedCount). The node of a shared count contains four bytes in big-endian
/// order.
///
/// Returns: ZKL_OK, with the count in `*value_out`. On failure:
/// - ZKL_E_SERVER if the count has no node. The function zkl_shared_count_set creates the node.
/// - ZKL_E_INVALID if an argument is not valid, or if the node does not contain a count.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_DENIED,
///   ZKL_E_INTERNAL.
///
/// Blocks for at most the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_shared_count_get(
    client: *mut zkl_client,
    count_path: *const c_char,
    value_out: *mut i32,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps both pointers valid during the call.
        let (count_path, out) = unsafe { (arg::text("count_path", count_path)?, Output::new("value_out", value_out)?) };
        out.set(handle::get(client)?.client.shared_count_get(count_path)?);
        Ok(())
    })
}

/// Sets a shared count to a new value. The call creates the node of the count if the node does not exist. The new value becomes
/// the number of leases of every semaphore that uses the count.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_EXHAUSTED, ZKL_E_AUTH,
/// ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_INTERNAL.
/// Blocks for at most the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_shared_count_set(
    client: *mut zkl_client,
    count_path: *const c_char,
    value: i32,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let count_path = unsafe { arg::text("count_path", count_path)? };
        handle::get(client)?.client.shared_count_set(count_path, value)
    })
}

/// Runs a query that requires held leases. If another thread releases the leases at the same time, the function returns the
/// error for a freed handle.
pub(crate) fn query_leases<T>(leases: *const zkl_leases, question: impl FnOnce(&Leases) -> Result<T>) -> Result<T> {
    let not_owner = match question(&*handle::get(leases)?) {
        Err(error) if error.status() == Status::NotOwner => error,
        answer => return answer,
    };
    Err(handle::get(leases).err().unwrap_or(not_owner))
}

fn insert(semaphore: Semaphore) -> Result<*mut zkl_semaphore> {
    handle::insert(object(semaphore))
}

pub(crate) fn object(semaphore: Semaphore) -> SemaphoreObject {
    SemaphoreObject { semaphore, callbacks: RevocationCallbacks::default() }
}

/// Checks that a quantity of leases is 1 or more.
pub(crate) fn positive(quantity: i32) -> Result<i32> {
    if quantity > 0 {
        return Ok(quantity);
    }
    Err(Error::new(Status::Invalid, format!("quantity is {quantity}; expected 1 or more")))
}
