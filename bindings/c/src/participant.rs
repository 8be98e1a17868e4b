//! Who holds a lock and who waits for it.

use std::ffi::{CString, c_char, c_void};

use zklock::{Participant, Result};
use zklock_abi::arg;
use zklock_abi::guard::status;
use zklock_abi::handle;

use crate::lock::zkl_lock;
use crate::semaphore::zkl_semaphore;
use crate::status::zkl_status;

/// One that holds a lock or leases of a semaphore, or waits for them. All memory is the library's, and valid during the callback.
#[repr(C)]
pub struct zkl_participant {
    /// The library's own size of this struct. New fields are only ever appended: look at them where size covers them.
    pub size: u32,
    /// 1: holds the lock, or a lease, now; 0: waits.
    pub holds: i32,
    /// The session that owns the node; 0 if the node is not ephemeral.
    pub session_id: i64,
    /// The zxid of the node's creation; for a holder, its fencing token.
    pub czxid: i64,
    /// The node's path, without the client's chroot.
    pub node_path: *const c_char,
    /// The node's data: by default the host's address. A NUL that does not count follows it.
    pub data: *const u8,
    /// How many bytes of data there are.
    pub data_len: usize,
}

/// Is called with each participant. It must return: no exception, no longjmp.
pub type zkl_participants_cb = Option<unsafe extern "C" fn(user: *mut c_void, participant: *const zkl_participant)>;

/// Asks the server who holds the lock and who waits for it, in this process and all others, then calls cb once for each, in
/// the order of the queue, with user as it was given. The callback may call any function of zklock. Of a read/write lock, the
/// read lock tells of readers and the write lock of writers; see zkl_queue for both. Of a semaphore mutex, who holds comes first, then
/// those who wait. Of a multi-lock, those of one of its locks come after those of another.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_DENIED,
/// ZKL_E_SERVER, ZKL_E_INTERNAL. Where it fails, cb was not called.
/// Blocks for the session timeout at most; any thread, and cb is called on that thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_participants(
    lock: *mut zkl_lock,
    cb: zkl_participants_cb,
    user: *mut c_void,
) -> zkl_status {
    show(cb, user, || handle::get(lock)?.participants())
}

/// The same, but for a read/write lock it tells of readers and writers together, whichever half is asked.
///
/// Returns: as zkl_participants.
/// Blocks for the session timeout at most; any thread, and cb is called on that thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_queue(lock: *mut zkl_lock, cb: zkl_participants_cb, user: *mut c_void) -> zkl_status {
    show(cb, user, || handle::get(lock)?.queue())
}

/// The same for a semaphore: the leases that are out, the oldest first, each a participant that holds, then those who wait for some.
///
/// Returns: as zkl_participants.
/// Blocks for the session timeout at most; any thread, and cb is called on that thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_semaphore_participants(
    semaphore: *mut zkl_semaphore,
    cb: zkl_participants_cb,
    user: *mut c_void,
) -> zkl_status {
    show(cb, user, || handle::get(semaphore)?.participants())
}

/// Calls the program with each of those that are found.
fn show(cb: zkl_participants_cb, user: *mut c_void, find: impl FnOnce() -> Result<Vec<Participant>>) -> zkl_status {
    status(|| {
        let cb = cb.ok_or_else(|| arg::is_null("cb"))?;
        for mut found in find()? {
            // ZooKeeper allows no NUL in a path.
            let node_path = CString::new(found.node_path).unwrap_or_default();
            let data_len = found.data.len();
            found.data.push(0);
            let participant = zkl_participant {
                size: SIZE,
                holds: i32::from(found.holds),
                session_id: found.session_id,
                czxid: found.czxid,
                node_path: node_path.as_ptr(),
                data: found.data.as_ptr(),
                data_len,
            };
            // SAFETY: the caller gave a function of this type; what it is lent outlives the call.
            unsafe { cb(user, &raw const participant) };
        }
        Ok(())
    })
}

const SIZE: u32 = size_of::<zkl_participant>() as u32;
