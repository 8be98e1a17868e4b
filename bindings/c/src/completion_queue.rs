//! Completion queues: one descriptor reports the end of any number of operations. This module must not start operations.

use std::ffi::c_int;

use zklock::internal::{CompletionQueue, PerProcess};
use zklock_abi::arg::{Output, OutputArray};
use zklock_abi::boundary::{ffi_call, free, status};
use zklock_abi::handle::{self, Handle, HandleKind, Table};

use crate::op::zkl_op;
use crate::status::zkl_status;

/// A queue that reports which operations have ended. One thread or event loop can wait for any number of operations by polling
/// the queue's single descriptor. Without a queue, each operation needs its own descriptor (zkl_op_fd).
pub struct zkl_completion_queue(());

impl Handle for zkl_completion_queue {
    type Object = CompletionQueue<u64>;
    const KIND: HandleKind = HandleKind::CompletionQueue;

    fn table() -> &'static Table<CompletionQueue<u64>> {
        static TABLE: PerProcess<Table<CompletionQueue<u64>>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

/// Makes an empty completion queue. A program usually needs one queue for each event loop. The queue can contain operations of
/// any number of clients. The caller must free the new queue, `*queue_out`, with zkl_completion_queue_free.
///
/// Returns: ZKL_OK. On failure:
/// - ZKL_E_EXHAUSTED if the process has no descriptors left.
/// - Other failures: ZKL_E_INVALID, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_completion_queue_new(queue_out: *mut *mut zkl_completion_queue) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("queue_out", queue_out)? };
        out.set(handle::insert(CompletionQueue::new()?)?);
        Ok(())
    })
}

/// Gets the descriptor of a completion queue, for poll, select, epoll and event loops. The descriptor is readable while the
/// queue contains keys (level-triggered). The descriptor belongs to the library, and the program must not read, write or close
/// it. The function zkl_completion_queue_free closes the descriptor. The program must remove the descriptor from its event
/// loop before it frees the queue.
///
/// Returns: the descriptor, which is 0 or more. Every call returns the same descriptor. On failure: ZKL_E_HANDLE,
/// ZKL_E_FORKED, ZKL_E_CLOSED or ZKL_E_INTERNAL. All statuses are negative.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_completion_queue_fd(queue: *const zkl_completion_queue) -> c_int {
    ffi_call(|| handle::get(queue)?.descriptor())
}

/// Registers an operation with a completion queue. When the operation ends, with or without success, the library puts `key`
/// into the queue. If the operation has already ended, the call puts the key into the queue at once. The program chooses a key
/// by which it can find the operation again, for example an index or an address. Each call of this function makes the queue
/// report the key once. If the program frees an operation that is still running, the queue still reports the operation's key:
/// at once for an acquire, and no later than the end of the operation for any other kind. A queue does not keep an operation
/// alive, and freeing the queue does not affect its operations.
///
/// Returns: ZKL_OK, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_op_notify(op: *mut zkl_op, queue: *mut zkl_completion_queue, key: u64) -> zkl_status {
    status(|| {
        let (op, queue) = (handle::get(op)?, handle::get(queue)?);
        op.on_done(move || queue.push(key))
    })
}

/// Takes the oldest keys from a completion queue, in the order in which the operations ended. The call writes at most `count`
/// keys to the array `keys`, and the number of keys to `*taken_out`. The number is 0 if the queue is empty. If further keys
/// remain, the descriptor stays readable. After the program has taken a key, zkl_op_result returns the result of the operation.
/// Several threads may take keys from one queue; each key goes to one thread.
///
/// Returns: ZKL_OK. On failure:
/// - ZKL_E_INVALID if `keys` or `taken_out` is NULL, or if `count` is 0.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_completion_queue_take(
    queue: *mut zkl_completion_queue,
    keys: *mut u64,
    count: usize,
    taken_out: *mut usize,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps both pointers valid during the call.
        let (keys, out) = unsafe { (OutputArray::new("keys", keys, count)?, Output::new("taken_out", taken_out)?) };
        out.set(keys.set(&handle::get(queue)?.take(count)));
        Ok(())
    })
}

/// Frees a completion queue and closes its descriptor. Operations that are still running continue, but do not report their
/// keys. The parameter `queue` may be NULL. In a forked child, the call does nothing.
///
/// Returns nothing. If `queue` is not a live handle, the call has no effect. The last error message does not change.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_completion_queue_free(queue: *mut zkl_completion_queue) {
    free(|| {
        handle::free(queue, |queue| {
            queue.close();
            Ok(())
        })
    });
}
