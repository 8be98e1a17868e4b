//! What those who wait wait for, as this process knows it.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::time::Duration;

use zklock::{Result, Waiting, WaitsFor};
use zklock_abi::arg;
use zklock_abi::guard::status;
use zklock_abi::handle;

use crate::lock::zkl_lock;
use crate::semaphore::zkl_semaphore;
use crate::status::zkl_status;

/// It waits for a connection to a server. Its place in the queue is kept as long as the session lives.
pub const ZKL_WAITS_FOR_CONNECTION: i32 = 0;
/// It waits for an answer of the server.
pub const ZKL_WAITS_FOR_SERVER: i32 = 1;
/// It waits for the node ahead, and those before that one.
pub const ZKL_WAITS_FOR_NODE: i32 = 2;
/// It waits for leases that are out.
pub const ZKL_WAITS_FOR_LEASES: i32 = 3;
/// It waits for the count to say that there are enough leases at all.
pub const ZKL_WAITS_FOR_COUNT: i32 = 4;
/// It wants to enter a hold of its own thread once more, whose lease is over, and waits until that is safe again, or lost.
pub const ZKL_WAITS_FOR_OWN_HOLD: i32 = 5;

const _: () = {
    assert!(ZKL_WAITS_FOR_CONNECTION == WaitsFor::Connection as i32);
    assert!(ZKL_WAITS_FOR_SERVER == WaitsFor::Server as i32);
    assert!(ZKL_WAITS_FOR_NODE == WaitsFor::Node as i32);
    assert!(ZKL_WAITS_FOR_LEASES == WaitsFor::Leases as i32);
    assert!(ZKL_WAITS_FOR_COUNT == WaitsFor::Count as i32);
    assert!(ZKL_WAITS_FOR_OWN_HOLD == WaitsFor::OwnHold as i32);
};

/// An acquire that waits. All memory is the library's, and valid during the callback.
#[repr(C)]
pub struct zkl_wait {
    /// The library's own size of this struct. New fields are only ever appended: look at them where size covers them.
    pub size: u32,
    /// A ZKL_WAITS_FOR_*.
    pub waits_for: i32,
    /// The path of its own node, as zkl_participants shows it, or NULL while it has none. Of several: where it has to wait.
    pub node_path: *const c_char,
    /// What is in its way: the path of the nearest node ahead, as zkl_participants shows it, of the leases' directory, or of the
    /// count; NULL where that is not known. Without a connection: what was, when there was one.
    pub ahead: *const c_char,
    /// The session that owns that node; 0 where that is not known.
    pub session_id: i64,
    /// How many there are to go before, when they were last counted: nodes ahead, leases that have to come back, or that the count is
    /// too low by; 0 where that is not known.
    pub count: u64,
    /// How long it has waited, in milliseconds.
    pub waited_ms: i64,
    /// How long it will wait at most, in milliseconds; -1 without a limit.
    pub left_ms: i64,
}

/// Is called with each acquire that waits. It must return: no exception, no longjmp.
pub type zkl_waiting_cb = Option<unsafe extern "C" fn(user: *mut c_void, wait: *const zkl_wait)>;

/// Calls cb once for each acquire by this handle that waits, in any thread of this process, with what it waits for, in the order in
/// which they began, and with user as it was given. Those who wait for a multi-lock do so on its handle, and not on those of its locks.
/// The callback may call any function of zklock. It is what the client knows: no server is asked, so it answers where none does.
/// Who stands ahead in other processes, zkl_participants tells, by the same paths. Who waits behind others of his process
/// (zkl_mutex_set_local_handover) has no node of his own: that which stands for all of them is ahead.
///
/// Returns: ZKL_OK, also where nobody waits; ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL. Where it
/// fails, cb was not called.
/// Does not block; any thread, and cb is called on that thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_waiting(lock: *const zkl_lock, cb: zkl_waiting_cb, user: *mut c_void) -> zkl_status {
    show(cb, user, || handle::get(lock)?.waiting())
}

/// The same for those who wait for leases of a semaphore by this handle.
///
/// Returns: as zkl_waiting.
/// Does not block; any thread, and cb is called on that thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_semaphore_waiting(
    semaphore: *const zkl_semaphore,
    cb: zkl_waiting_cb,
    user: *mut c_void,
) -> zkl_status {
    show(cb, user, || handle::get(semaphore)?.waiting())
}

fn show(cb: zkl_waiting_cb, user: *mut c_void, find: impl FnOnce() -> Result<Vec<Waiting>>) -> zkl_status {
    status(|| {
        let cb = cb.ok_or_else(|| arg::is_null("cb"))?;
        for waiting in find()? {
            let (node_path, ahead) = (text(waiting.node_path), text(waiting.ahead));
            let wait = zkl_wait {
                size: SIZE,
                waits_for: waiting.waits_for as i32,
                node_path: pointer(node_path.as_ref()),
                ahead: pointer(ahead.as_ref()),
                session_id: waiting.session_id,
                count: waiting.count,
                waited_ms: milliseconds(waiting.waited),
                left_ms: waiting.left.map_or(-1, milliseconds),
            };
            // SAFETY: the caller gave a function of this type; what it is lent outlives the call.
            unsafe { cb(user, &raw const wait) };
        }
        Ok(())
    })
}

/// ZooKeeper allows no NUL in a path.
fn text(path: Option<String>) -> Option<CString> {
    path.and_then(|path| CString::new(path).ok())
}

fn pointer(text: Option<&CString>) -> *const c_char {
    text.map_or(ptr::null(), |text| text.as_ptr())
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

const SIZE: u32 = size_of::<zkl_wait>() as u32;
