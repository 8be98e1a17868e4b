//! Holds: what an acquire of a lock or of leases gives to the program. This module must not use operations, and must not set
//! callbacks.

use std::ffi::c_char;
use std::time::Duration;

use zklock::internal::PerProcess;
use zklock::{Error, Hold, Owner, Result, Status};
use zklock_abi::arg::{self, Buffer, Output, SizedOutput};
use zklock_abi::boundary::{predicate, status};
use zklock_abi::handle::{self, Handle, HandleKind, Table};

use crate::lock::wait_lost_error;
use crate::lock_object::zkl_lock;
use crate::status::zkl_status;

/// A new owner, which exists only for one hold. No other acquire re-enters this hold.
pub const ZKL_OWNER_NEW: u64 = 0;
/// The calling thread as the owner of a hold, as in zkl_acquire. Every number between ZKL_OWNER_NEW and ZKL_OWNER_THREAD is an
/// owner that the program chooses, for example a task or a request.
pub(crate) const ZKL_OWNER_THREAD: u64 = u64::MAX;

/// A hold of a lock, or of leases of a semaphore. Any thread that has the handle may use and release the hold. A hold refers only
/// to the acquire from which it comes, and never to a later hold of its owner.
pub struct zkl_hold(());

/// The state of a hold at one moment (zkl_hold_view).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct zkl_hold_info {
    /// The size of this struct in the program, which the program sets before the call. Later versions only add fields at the end,
    /// and the library writes only the fields that the size includes.
    pub size: u32,
    /// The state of the hold: a ZKL_LOCK_*. ZKL_LOCK_FREE means that the program has released the hold through the lock.
    pub state: i32,
    /// The fencing token. The token is known from the acquire on, also after a loss (docs/fencing.md).
    pub token: i64,
    /// The fencing pass: the number of local hand-overs under this token before the hold began.
    pub fencing_pass: i64,
    /// The time for which the hold remains safe even if no server answers, in milliseconds, rounded down. 0 if the hold is not
    /// safe.
    pub remaining_ms: i64,
}

impl Handle for zkl_hold {
    type Object = Hold;
    const KIND: HandleKind = HandleKind::Hold;

    fn table() -> &'static Table<Hold> {
        static TABLE: PerProcess<Table<Hold>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

/// Acquires the lock for an owner within a timeout, and gets the hold. All other rules of zkl_acquire_timeout also apply to this
/// function. The parameter `owner` is ZKL_OWNER_NEW (0) for an owner that exists only for this hold, ZKL_OWNER_THREAD for the
/// calling thread, or any other number for an owner that the program chooses. If the owner already holds the lock, the call
/// re-enters the lock: the program then has two holds, and releases each of them. The caller must release the hold, `*hold_out`,
/// with zkl_hold_release. Any thread may release the hold. The call blocks the whole thread, with all its green threads.
///
/// Returns: the same statuses as zkl_acquire_timeout. If `owner` is ZKL_OWNER_NEW, the call cannot detect that the calling
/// thread itself has another hold of the lock, and then waits for this hold.
/// Blocks until the owner holds the lock or the timeout passes. A call with timeout 0 waits at most one second for the server.
/// Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_hold_acquire(
    lock: *mut zkl_lock,
    owner: u64,
    timeout_ms: i64,
    hold_out: *mut *mut zkl_hold,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("hold_out", hold_out)? };
        let timeout = arg::timeout(timeout_ms)?;
        out.set(handle::insert::<zkl_hold>(handle::get(lock)?.hold_as(owner_of(owner), timeout)?)?);
        Ok(())
    })
}

/// Gets the state of a hold, its fencing token and its remaining time, all of one moment. The program sets `info_out->size` to
/// sizeof(zkl_hold_info) before the call. All leases of one hold have one common state: the loss of one lease is the loss of all.
/// The hold of a multi-lock has the worst state, the smallest token and the shortest remaining time of its member locks.
///
/// Returns: ZKL_OK, with the answer in `*info_out`, also if the hold was lost. On failure:
/// - ZKL_E_CLOSED if the lock or the client was freed, which also ended the hold.
/// - ZKL_E_HANDLE if `hold` is not a live handle, for example the handle of a hold that was released.
/// - ZKL_E_INVALID if `info_out` is NULL, or if its size is too small.
/// - Other failures: ZKL_E_FORKED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_hold_view(hold: *const zkl_hold, info_out: *mut zkl_hold_info) -> zkl_status {
    status(|| {
        // SAFETY: the caller has set the size, and keeps the pointer valid during the call.
        let out = unsafe { sized_output(info_out)? };
        let (view, size) = (handle::get(hold)?.view()?, out.size());
        out.set(&zkl_hold_info {
            size: u32::try_from(size).unwrap_or_default(),
            state: view.state as i32,
            token: view.token,
            fencing_pass: i64::from(view.fencing_pass),
            remaining_ms: milliseconds(view.remaining),
        });
        Ok(())
    })
}

/// Reports whether a hold is safe at this moment. A hold is safe if, according to the clock of this machine, its session cannot
/// have expired yet.
///
/// Returns: 1 or 0. If an error occurs, the function returns 0, and zkl_last_error_message explains the error. An unsafe hold is
/// not an error, and does not change the last error message. To get an error status instead of 0, call zkl_hold_view.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_hold_is_held(hold: *const zkl_hold) -> i32 {
    predicate(|| handle::get(hold)?.is_held())
}

/// Waits until a hold is no longer safe. The rules of zkl_wait_lost also apply to this function.
///
/// Returns: the same statuses as zkl_wait_lost. If the hold is released during the wait, the call fails with ZKL_E_HANDLE instead
/// of ZKL_E_NOT_OWNER.
/// Blocks until the wait ends, for at most the timeout. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_hold_wait_lost(hold: *mut zkl_hold, timeout_ms: i64) -> zkl_status {
    status(|| {
        let timeout = arg::timeout(timeout_ms)?;
        let (is_lost, whose) = query(hold, |hold| Ok((hold.wait_lost(timeout)?, whose(hold))))?;
        Err(wait_lost_error(&whose, is_lost, timeout_ms))
    })
}

/// Releases a hold, and frees the handle. The call ends the hold and frees a live handle of this process, whatever it returns.
///
/// Returns: ZKL_OK if the server has confirmed that the nodes of the hold are deleted, or if the owner has another hold of the
/// lock. On failure:
/// - ZKL_E_LOST if the hold was lost before the release. After the loss, another owner may have held the lock.
/// - ZKL_E_NOT_OWNER if the program has already released the hold through the lock (zkl_release).
/// - ZKL_E_CONNECTION if no server confirmed the release within the session timeout. The library keeps trying to delete the
///   nodes.
/// - ZKL_E_CLOSED if the lock or the client was freed, which also ended the hold.
/// - ZKL_E_HANDLE if `hold` is not a live handle, for example NULL or the handle of a hold that was already released.
/// - ZKL_E_DENIED if an access control list does not allow the client to delete the nodes (as for zkl_release).
/// - Other failures: ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_SERVER, ZKL_E_FORKED, ZKL_E_INTERNAL.
///
/// Blocks for at most the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_hold_release(hold: *mut zkl_hold) -> zkl_status {
    status(|| handle::take(hold)?.release())
}

/// Releases a hold without waiting for the server, and frees the handle. The library deletes the nodes of the hold in the
/// background. All other rules of zkl_hold_release also apply to this function.
///
/// Returns: ZKL_OK, ZKL_E_LOST, ZKL_E_NOT_OWNER, ZKL_E_CLOSED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_hold_release_nowait(hold: *mut zkl_hold) -> zkl_status {
    status(|| handle::take(hold)?.release_nowait())
}

/// Gets the path of a node of a hold. The rules of zkl_lock_node_path also apply to this function. The parameter `index` selects
/// the node of a lease, or of a member lock of a multi-lock. The index of the first node is 0.
///
/// Returns: ZKL_OK. On failure:
/// - ZKL_E_BUFFER if the path does not fit. A call that fails with ZKL_E_BUFFER writes only `*needed_out`.
/// - ZKL_E_LOST if the hold was lost.
/// - ZKL_E_NOT_OWNER if the program has already released the hold through the lock (zkl_release).
/// - ZKL_E_INVALID if an argument is not valid, for example if `index` is too large.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_hold_node_path(
    hold: *const zkl_hold,
    index: usize,
    buf: *mut c_char,
    size: usize,
    needed_out: *mut usize,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps both pointers valid during the call.
        let buffer = unsafe { Buffer::new(buf, size, needed_out)? };
        let paths = query(hold, Hold::node_paths)?;
        let path = paths.get(index).ok_or_else(|| {
            let message = format!("index is {index}; expected less than {}, the number of nodes", paths.len());
            Error::new(Status::Invalid, message)
        })?;
        buffer.set(path)
    })
}

/// # Safety
/// `info_out` is NULL, or points to a struct with a valid size.
unsafe fn sized_output(info_out: *mut zkl_hold_info) -> Result<SizedOutput<zkl_hold_info>> {
    if info_out.is_null() {
        return Err(arg::null_error("info_out"));
    }
    // SAFETY: the caller of this function guarantees that the size can be read, and that it is valid.
    unsafe {
        let size = (&raw const (*info_out).size).read_unaligned();
        SizedOutput::new("info_out", info_out, size as usize, size_of::<zkl_hold_info>())
    }
}

/// Runs a query that requires a hold. If another thread releases the hold at the same time, the function returns the error for a
/// freed handle.
pub(crate) fn query<T>(hold: *const zkl_hold, question: impl FnOnce(&Hold) -> Result<T>) -> Result<T> {
    let not_owner = match question(&*handle::get(hold)?) {
        Err(error) if error.status() == Status::NotOwner => error,
        answer => return answer,
    };
    Err(handle::get(hold).err().unwrap_or(not_owner))
}

/// Returns the owner that a number stands for.
pub(crate) fn owner_of(number: u64) -> Owner {
    match number {
        ZKL_OWNER_NEW => Owner::unique(),
        ZKL_OWNER_THREAD => Owner::current_thread(),
        _ => Owner::task(number),
    }
}

/// Names a hold, for a message about its loss.
pub(crate) fn whose(hold: &Hold) -> String {
    format!("{}: the hold is", hold.path())
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
