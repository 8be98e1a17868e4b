//! The participants of a lock or a semaphore, which are its holders and waiters. This module must not keep the callback: the
//! callback runs only during the call.

use std::ffi::{CString, c_char, c_void};

use zklock::{Participant, Result};
use zklock_abi::arg;
use zklock_abi::boundary::status;
use zklock_abi::handle;

use crate::lock_object::zkl_lock;
use crate::semaphore::zkl_semaphore;
use crate::status::zkl_status;

/// A participant: a node in the queue of a lock or a semaphore. The owner of the node is either a holder or a waiter. The
/// struct and the memory that it points to belong to the library. A struct that a callback receives is valid until the callback
/// returns. A struct that the program gets from zkl_op_participant is valid until the program frees the operation.
#[repr(C)]
pub struct zkl_participant {
    /// The size of this struct in the library. Later versions only add fields at the end. Before a program reads an added
    /// field, the program must check that size includes the field.
    pub size: u32,
    /// 1 if the participant holds the lock or a lease now; 0 if the participant waits.
    pub holds: i32,
    /// The session that owns the node; 0 if the node is not ephemeral.
    pub session_id: i64,
    /// The zxid of the transaction that created the node. For a holder, this zxid is the fencing token.
    pub czxid: i64,
    /// The path of the node, without the client's chroot.
    pub node_path: *const c_char,
    /// The data of the node. By default, the data is the address of the host on which the node's owner runs. A NUL follows the
    /// data. The field data_len does not count this NUL.
    pub data: *const u8,
    /// The number of bytes of data.
    pub data_len: usize,
}

/// A callback that receives each participant. The callback must return normally. A callback must not throw an exception or call
/// longjmp.
pub type zkl_participants_cb = Option<unsafe extern "C" fn(user: *mut c_void, participant: *const zkl_participant)>;

/// Asks the server for the participants of a lock. The participants are the holders and the waiters, in this process and in all
/// other processes. The function calls `cb` once for each participant, in the order of the queue, and passes `user` to `cb`.
/// The callback may call any function of zklock.
///
/// For the read lock of a read/write lock, `cb` receives only readers. For the write lock, `cb` receives only writers. The
/// function zkl_queue shows readers and writers. For a semaphore mutex, `cb` receives the holder before the waiters. For a
/// multi-lock, `cb` receives the participants of the first member lock, then the participants of the second member lock, and so
/// on.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_EXHAUSTED, ZKL_E_AUTH,
/// ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_INTERNAL. If the function fails, it does not call `cb`. Blocks for at most the session
/// timeout plus the time that `cb` takes. Any thread may call this function. The function calls `cb` on the calling thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_participants(
    lock: *mut zkl_lock,
    cb: zkl_participants_cb,
    user: *mut c_void,
) -> zkl_status {
    call_for_each(cb, user, || handle::get(lock)?.participants())
}

/// Shows the participants of a lock. For a read/write lock, the function shows readers and writers together. All other rules of
/// zkl_participants also apply to this function. The read lock and the write lock of a read/write lock give the same result.
///
/// Returns: the same statuses as zkl_participants.
/// Blocks for at most the session timeout plus the time that `cb` takes. Any thread may call this function. The function calls
/// `cb` on the calling thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_queue(lock: *mut zkl_lock, cb: zkl_participants_cb, user: *mut c_void) -> zkl_status {
    call_for_each(cb, user, || handle::get(lock)?.queue())
}

/// Shows the participants of a semaphore. The rules of zkl_participants also apply to a semaphore. The callback first receives
/// the leases, from the oldest to the newest, and then the waiters. Each lease is a separate participant.
///
/// Returns: the same statuses as zkl_participants.
/// Blocks for at most the session timeout plus the time that `cb` takes. Any thread may call this function. The function calls
/// `cb` on the calling thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_semaphore_participants(
    semaphore: *mut zkl_semaphore,
    cb: zkl_participants_cb,
    user: *mut c_void,
) -> zkl_status {
    call_for_each(cb, user, || handle::get(semaphore)?.participants())
}

/// Calls `cb` for each participant that `find` returns.
fn call_for_each(
    cb: zkl_participants_cb,
    user: *mut c_void,
    find: impl FnOnce() -> Result<Vec<Participant>>,
) -> zkl_status {
    status(|| {
        let cb = cb.ok_or_else(|| arg::null_error("cb"))?;
        for found in find()? {
            let record = ParticipantRecord::new(found);
            // SAFETY: the caller passed a function of this type, and the arguments outlive the call.
            unsafe { cb(user, record.as_ptr()) };
        }
        Ok(())
    })
}

/// A participant, and the memory that its struct points to.
pub(crate) struct ParticipantRecord {
    participant: zkl_participant,
    _node_path: CString,
    _data: Vec<u8>,
}

// SAFETY: the pointers of the struct point to memory of the record, which never changes.
unsafe impl Send for ParticipantRecord {}
// SAFETY: the reason for `Send` also applies to `Sync`.
unsafe impl Sync for ParticipantRecord {}

impl ParticipantRecord {
    pub(crate) fn new(found: Participant) -> Self {
        // ZooKeeper does not allow a NUL in a path.
        let node_path = CString::new(found.node_path).unwrap_or_default();
        let (data_len, mut data) = (found.data.len(), found.data);
        data.push(0);
        let participant = zkl_participant {
            size: SIZE,
            holds: i32::from(found.holds),
            session_id: found.session_id,
            czxid: found.czxid,
            node_path: node_path.as_ptr(),
            data: data.as_ptr(),
            data_len,
        };
        Self { participant, _node_path: node_path, _data: data }
    }

    pub(crate) const fn as_ptr(&self) -> *const zkl_participant {
        &raw const self.participant
    }
}

const SIZE: u32 = size_of::<zkl_participant>() as u32;
