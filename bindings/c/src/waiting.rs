//! Pending acquires, and the reason why each acquire waits. This process does not always know the reason. This module must not
//! keep the callback: the callback runs only during the call.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::time::Duration;

use zklock::{Result, Waiting, WaitsFor};
use zklock_abi::arg;
use zklock_abi::boundary::status;
use zklock_abi::handle;

use crate::lock_object::zkl_lock;
use crate::semaphore::zkl_semaphore;
use crate::status::zkl_status;

/// The acquire waits for a connection to a server. The acquire keeps its place in the queue while the session is alive.
pub const ZKL_WAITS_FOR_CONNECTION: i32 = 0;
/// The acquire waits for an answer from the server.
pub const ZKL_WAITS_FOR_SERVER: i32 = 1;
/// The acquire waits until nodes ahead of it in the queue are deleted.
pub const ZKL_WAITS_FOR_NODE: i32 = 2;
/// The acquire waits until other owners release leases.
pub const ZKL_WAITS_FOR_LEASES: i32 = 3;
/// The acquire waits until the shared count is raised.
pub const ZKL_WAITS_FOR_COUNT: i32 = 4;
/// The acquire re-enters a hold whose session lease has ended. The acquire waits until this hold is safe again or lost.
pub const ZKL_WAITS_FOR_OWN_HOLD: i32 = 5;

const _: () = {
    assert!(ZKL_WAITS_FOR_CONNECTION == WaitsFor::Connection as i32);
    assert!(ZKL_WAITS_FOR_SERVER == WaitsFor::Server as i32);
    assert!(ZKL_WAITS_FOR_NODE == WaitsFor::Node as i32);
    assert!(ZKL_WAITS_FOR_LEASES == WaitsFor::Leases as i32);
    assert!(ZKL_WAITS_FOR_COUNT == WaitsFor::Count as i32);
    assert!(ZKL_WAITS_FOR_OWN_HOLD == WaitsFor::OwnHold as i32);
};

/// A pending acquire. The struct and the memory that it points to belong to the library. Both are valid until the callback
/// returns.
#[repr(C)]
pub struct zkl_wait {
    /// The size of this struct in the library. Later versions only add fields at the end. Before a program reads an added
    /// field, the program must check that size includes the field.
    pub size: u32,
    /// The reason for the wait: a ZKL_WAITS_FOR_*.
    pub waits_for: i32,
    /// The path of the node that represents the acquire in the queue. The path has the same form as the paths that
    /// zkl_participants shows. The field is NULL if the acquire has no node yet. If the acquire has nodes in several queues,
    /// the field names the node in the queue in which the acquire waits.
    pub node_path: *const c_char,
    /// The path of the node for which the acquire waits. In a queue, this node is the nearest node ahead. If the acquire waits
    /// for leases, this node is the directory of the leases. If the acquire waits for a shared count, this node contains the
    /// count. Node paths have the same form as the paths that zkl_participants shows. The field is NULL if the path is not
    /// known. Without a connection, the field contains the last known path.
    pub ahead: *const c_char,
    /// The session that owns the nearest node ahead; 0 if this session is not known.
    pub session_id: i64,
    /// The number of nodes ahead, or the number of leases that other owners must release first. For a shared count, this field
    /// shows by how many leases the count is too low. The number can be outdated, because it comes from the last answer of the
    /// server. The field is 0 if the number is not known.
    pub count: u64,
    /// The time that the acquire has spent waiting, in milliseconds.
    pub waited_ms: i64,
    /// The time until the acquire times out, in milliseconds; -1 if the acquire has no time limit.
    pub left_ms: i64,
}

/// A callback that receives each pending acquire. The callback must return normally. A callback must not throw an exception or
/// call longjmp.
pub type zkl_waiting_cb = Option<unsafe extern "C" fn(user: *mut c_void, wait: *const zkl_wait)>;

/// Shows why the pending acquires of a lock are waiting. The function calls `cb` once for each waiting acquire of this handle,
/// and passes `user` to `cb`. The acquires can come from any thread of this process. The function calls `cb` in the order in
/// which the acquires began. The callback may call any function of zklock. To see the pending acquires of a multi-lock, pass
/// the multi-lock's own handle. If the program passes the handle of a member lock, the function does not show these acquires.
///
/// The function shows information that the client already has, and sends no request. The function therefore works even if no
/// server answers. The function zkl_participants shows the participants of all processes, with the same node paths. An acquire
/// can wait behind other acquires of its process (zkl_mutex_set_local_handover). Such an acquire has no separate node. In this
/// case, the `ahead` field names the node that these acquires share.
///
/// Returns: ZKL_OK, even if no acquire waits; ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL. If the
/// function fails, it does not call `cb`. Does not block, except while `cb` runs. Any thread may call this function. The
/// function calls `cb` on the calling thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_waiting(lock: *const zkl_lock, cb: zkl_waiting_cb, user: *mut c_void) -> zkl_status {
    call_for_each(cb, user, || handle::get(lock)?.waiting())
}

/// Shows why the pending acquires of a semaphore are waiting. The rules of zkl_waiting also apply to a semaphore.
///
/// Returns: the same statuses as zkl_waiting.
/// Does not block, except while `cb` runs. Any thread may call this function. The function calls `cb` on the calling thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_semaphore_waiting(
    semaphore: *const zkl_semaphore,
    cb: zkl_waiting_cb,
    user: *mut c_void,
) -> zkl_status {
    call_for_each(cb, user, || handle::get(semaphore)?.waiting())
}

fn call_for_each(cb: zkl_waiting_cb, user: *mut c_void, find: impl FnOnce() -> Result<Vec<Waiting>>) -> zkl_status {
    status(|| {
        let cb = cb.ok_or_else(|| arg::null_error("cb"))?;
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
            // SAFETY: the caller passed a function of this type, and the arguments outlive the call.
            unsafe { cb(user, &raw const wait) };
        }
        Ok(())
    })
}

/// ZooKeeper does not allow a NUL in a path.
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
