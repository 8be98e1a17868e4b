//! Semaphores, and the shared counts that can set the number of leases. This module must not set callbacks.

use std::ffi::{c_char, c_void};
use std::ops::Deref;

use zklock::internal::PerProcess;
use zklock::{Error, MAX_DATA, Result, Semaphore, Status};
use zklock_abi::arg::{self, Output};
use zklock_abi::boundary::{free, status};
use zklock_abi::handle::{self, Handle, HandleKind, Table};

use crate::callback::RevocationCallbacks;
use crate::client::zkl_client;
use crate::hold::zkl_hold;
use crate::status::zkl_status;

/// A semaphore on a path. A semaphore has a number of leases, which threads and processes acquire and release.
pub struct zkl_semaphore(());

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
/// were acquired through the handle remain held. The caller must still release these leases with zkl_hold_release. The
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
/// few leases does not overtake an earlier request for many leases. The caller must release the leases, `*hold_out`, with
/// zkl_hold_release. Any thread may release the leases.
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
    hold_out: *mut *mut zkl_hold,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("hold_out", hold_out)? };
        let timeout = arg::timeout(timeout_ms)?;
        let quantity = positive(quantity)?;
        out.set(handle::insert::<zkl_hold>(handle::get(semaphore)?.acquire(quantity, timeout)?)?);
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
