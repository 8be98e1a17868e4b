//! Operations: acquires and other calls that do not block a thread. Each operation can have a descriptor. This module starts only
//! acquires: `start.rs` starts the other calls. This module must not set callbacks.

use std::ffi::{CString, c_char, c_int};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use zklock::internal::{OnceWakeSocket, PerProcess, refuse_in_callback};
use zklock::{Error, Operation, Result, Status};
use zklock_abi::arg::{self, Output};
use zklock_abi::boundary::{ffi_call, free, status};
use zklock_abi::handle::{self, Handle, HandleKind, Table};

use crate::client::zkl_client;
use crate::hold::{ZKL_OWNER_THREAD, owner_of, zkl_hold};
use crate::lock_object::zkl_lock;
use crate::op_answer::OpAnswer;
use crate::participant::zkl_participant;
use crate::run::{self, zkl_past_run, zkl_run};
use crate::semaphore::{positive, zkl_semaphore};
use crate::status::zkl_status;

/// An operation that a *_start function starts: an acquire or another call. An operation continues even if no thread waits for
/// it. An acquire ends within its timeout. Any other operation takes at most as long as the blocking form of the call. The
/// function zkl_op_result returns the status of every operation. The other results of an operation come from zkl_op_hold,
/// zkl_op_value, zkl_op_participant, zkl_op_client, zkl_op_semaphore, zkl_op_run and zkl_op_past_run.
pub struct zkl_op(());

/// The object that a `zkl_op` handle identifies.
pub struct OpObject {
    operation: Operation<OpAnswer>,
    kind: Kind,
    /// The answer of an operation that has ended. The field is empty until a thread first asks for the answer.
    answer: OnceLock<Result<OpAnswer>>,
    descriptor: Arc<CompletionFd>,
    /// The error message of the operation. The field is empty until the program first asks for the message.
    message: OnceLock<CString>,
}

/// The rules of an operation that depend on the function that started it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Acquire {
        /// True if the calling thread has the hold after the program has seen the success of the operation. Otherwise, the
        /// hold belongs to the operation until the program takes the hold.
        is_for_thread: bool,
        /// True if the acquire does not wait for other participants.
        is_try: bool,
    },
    Request,
}

/// The descriptor that reports the end of an operation. The first call of `zkl_op_fd` creates the descriptor. If the program
/// has closed the descriptor, the next call creates another descriptor. The library uses the descriptor only while the mutex is
/// locked. Removing the descriptor from the mutex therefore closes the descriptor at once.
#[derive(Default)]
struct CompletionFd(Mutex<Option<OnceWakeSocket>>);

impl Handle for zkl_op {
    type Object = OpObject;
    const KIND: HandleKind = HandleKind::Op;

    fn table() -> &'static Table<OpObject> {
        static TABLE: PerProcess<Table<OpObject>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

/// Starts acquiring the lock for an owner, without waiting for the result. All other rules of zkl_acquire_timeout also apply to
/// this function. The parameter `owner` has the same meaning as for zkl_hold_acquire. After the operation has ended with ZKL_OK,
/// zkl_op_hold gets the hold. A hold of ZKL_OWNER_THREAD, the thread that starts the operation, needs no zkl_op_hold: after
/// zkl_op_result has returned ZKL_OK, this thread can release the lock with zkl_release. The caller must free the new operation,
/// `*op_out`, with zkl_op_free.
///
/// Returns: ZKL_OK if the operation has started. Later, zkl_op_result reports how the acquire ends. On failure:
/// - ZKL_E_INVALID in the same cases as zkl_acquire_timeout.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_acquire_start(
    lock: *mut zkl_lock,
    owner: u64,
    timeout_ms: i64,
    op_out: *mut *mut zkl_op,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("op_out", op_out)? };
        let timeout = arg::timeout(timeout_ms)?;
        let acquire = handle::get(lock)?.start_acquire(owner_of(owner), timeout)?;
        let kind = Kind::Acquire { is_for_thread: owner == ZKL_OWNER_THREAD, is_try: timeout == Some(Duration::ZERO) };
        out.set(insert(acquire.and_then(OpAnswer::hold), kind)?);
        Ok(())
    })
}

/// Starts acquiring `quantity` leases without waiting for the result. The operation acquires either all of these leases or
/// none. All other rules of zkl_semaphore_acquire_timeout also apply to this function. When the operation has ended with
/// ZKL_OK, zkl_op_hold gets the hold of the leases. The caller must free the new operation, `*op_out`, with zkl_op_free.
///
/// Returns: the same statuses as zkl_acquire_start. The call also fails with ZKL_E_INVALID if `quantity` is below 1 or above
/// max_leases.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_semaphore_acquire_start(
    semaphore: *mut zkl_semaphore,
    quantity: i32,
    timeout_ms: i64,
    op_out: *mut *mut zkl_op,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("op_out", op_out)? };
        let timeout = arg::timeout(timeout_ms)?;
        let quantity = positive(quantity)?;
        let acquire = handle::get(semaphore)?.start_acquire(quantity, timeout)?;
        let kind = Kind::Acquire { is_for_thread: false, is_try: timeout == Some(Duration::ZERO) };
        out.set(insert(acquire.and_then(OpAnswer::hold), kind)?);
        Ok(())
    })
}

/// Gets a descriptor that becomes readable when the operation ends, with or without success, and then stays readable. The
/// program can pass the descriptor to poll, select, epoll and event loops. The descriptor belongs to the library, and the
/// program must not read, write or close it. Calling zkl_op_free closes the descriptor. The program must remove the descriptor
/// from its event loop before it calls zkl_op_free. The first call of zkl_op_fd creates the descriptor of an operation. A
/// forked child should not use the descriptor.
///
/// Returns: the descriptor, which is 0 or more. Every call returns the same descriptor, unless the program has closed the
/// descriptor. On failure:
/// - ZKL_E_EXHAUSTED if the process has no descriptors left. Despite this failure, the operation continues, and the program may
///   call zkl_op_fd again.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED or ZKL_E_INTERNAL. All statuses are negative.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_op_fd(op: *const zkl_op) -> c_int {
    ffi_call(|| handle::get(op)?.descriptor())
}

/// Reports how an operation ended. If zkl_op_result or zkl_op_wait returns ZKL_OK for an operation that acquires, the owner has
/// the hold, and zkl_op_hold gets it.
///
/// Returns: ZKL_E_PENDING while the operation is still running. After the operation has ended, every call returns the same
/// status:
/// - ZKL_OK if the operation succeeded. An acquire operation succeeds if it acquires the lock or the leases.
/// - ZKL_E_TIMEOUT if the operation's timeout passed first.
/// - ZKL_E_CANCELED if the operation was canceled, for example by zkl_op_cancel.
/// - ZKL_E_CLOSED if the lock, the semaphore or the client was closed, or if another thread freed the operation.
/// - Other failures: the same statuses as zkl_acquire_timeout or the same statuses as zkl_semaphore_acquire_timeout. For any
///   other operation: the same statuses as its blocking form, for example the same statuses as zkl_release.
///
/// The call itself can fail with ZKL_E_HANDLE, ZKL_E_FORKED or ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_op_result(op: *mut zkl_op) -> zkl_status {
    status(|| handle::get(op)?.result())
}

/// Describes why an operation failed. The text is for people and logs. Any thread can read the text, even if another thread
/// called zkl_op_result.
///
/// Returns: a string, never NULL. The string is valid until the operation is freed. The string is empty while the operation is
/// running, and after the operation has ended with ZKL_OK. If `op` is not an operation of this process, the string is "not an
/// operation of this process". In this case, zkl_last_error_message returns the details (ZKL_E_HANDLE, ZKL_E_FORKED,
/// ZKL_E_INTERNAL).
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_op_message(op: *const zkl_op) -> *const c_char {
    let message = ffi_call(|| Ok(handle::get(op)?.message()));
    if message.is_null() { c"not an operation of this process".as_ptr() } else { message }
}

/// Waits until an operation ends. The parameter `timeout_ms` is the time limit of this wait in milliseconds. With -1, the call
/// waits without a limit. With 0, the call checks the operation once. If the wait reaches its time limit, the operation itself
/// continues. Several threads may wait for one operation.
///
/// Returns: the same statuses as zkl_op_result, and also:
/// - ZKL_E_PENDING if the operation is still running at the end of the time limit.
/// - ZKL_E_INVALID if `timeout_ms` is negative and not -1.
/// - ZKL_E_DEADLOCK if a callback makes the call and the call would have to wait.
///
/// Blocks until the operation ends or the time limit has passed. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_op_wait(op: *mut zkl_op, timeout_ms: i64) -> zkl_status {
    status(|| {
        let timeout = arg::timeout(timeout_ms)?;
        handle::get(op)?.wait(timeout)
    })
}

/// Checks whether the calling thread may wait for other participants. A program that starts an operation and then waits for the
/// operation can call this function first. Without this check, a wait in a callback fails only after the operation has joined
/// its queue.
///
/// Returns: ZKL_OK if the thread may wait, ZKL_E_DEADLOCK if a callback makes the call, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_check_may_wait() -> zkl_status {
    status(|| refuse_in_callback(None))
}

/// Cancels an operation that acquires, connects, waits for a loss, or begins a run. A canceled operation ends with
/// ZKL_E_CANCELED. The library deletes the node of a canceled acquire, and removes a canceled run from the record. The message of
/// a canceled connect says why the client is not connected yet (zkl_op_message). An operation that is about to succeed may still
/// end with ZKL_OK. If the operation has already ended, its result does not change. The call has no effect on any other
/// operation, for example releasing a lock, querying a lock, or closing a client.
///
/// Returns: ZKL_OK, even if the call has no effect; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function, but a signal handler must not.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_op_cancel(op: *mut zkl_op) -> zkl_status {
    status(|| handle::get(op)?.operation.cancel())
}

/// Takes the hold of an acquire operation that has ended with ZKL_OK. The caller must release the hold, `*hold_out`, with
/// zkl_hold_release. The program can take the hold once.
///
/// Returns: ZKL_OK. On failure:
/// - ZKL_E_PENDING while the operation is still running.
/// - ZKL_E_INVALID if the hold was already taken, or if the operation does not acquire.
/// - The same statuses as zkl_op_result, if the operation has failed.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_op_hold(op: *mut zkl_op, hold_out: *mut *mut zkl_hold) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("hold_out", hold_out)? };
        let hold = handle::get(op)?.answer("hold", "acquires a lock or leases", |answer| match answer {
            OpAnswer::Hold(hold) => Some(hold.take("hold")),
            _ => None,
        })??;
        out.set(handle::insert::<zkl_hold>(hold)?);
        Ok(())
    })
}

/// Gets the number that an operation found. For zkl_shared_count_get_start, the number is the value of the shared count. For
/// zkl_fence_check_start, the number is 1 if the hold still exists, and 0 otherwise. For zkl_participants_start,
/// zkl_queue_start and zkl_semaphore_participants_start, the number is the number of participants. For zkl_past_runs_start, the
/// number is the number of past runs. The program may call the function any number of times.
///
/// Returns: ZKL_OK, with the number in `*value_out`. On failure:
/// - ZKL_E_PENDING while the operation is still running.
/// - ZKL_E_INVALID if an argument is not valid, or if the operation was not started by one of the functions listed above.
/// - The same statuses as zkl_op_result, if the operation has failed.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_op_value(op: *const zkl_op, value_out: *mut i64) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("value_out", value_out)? };
        let does = "reads a shared count, checks a fencing token, lists participants or reads past runs";
        out.set(handle::get(op)?.answer("value", does, |answer| match answer {
            OpAnswer::Number(value) => Some(*value),
            OpAnswer::Participants(found) => i64::try_from(found.len()).ok(),
            OpAnswer::PastRuns(runs) => i64::try_from(runs.len()).ok(),
            _ => None,
        })?);
        Ok(())
    })
}

/// Gets a participant that an operation has found (zkl_participants_start, zkl_queue_start, zkl_semaphore_participants_start).
/// The parameter `index` selects the participant. The first participant in the queue has the index 0. The function
/// zkl_op_value gets the number of participants. The struct belongs to the library, and is valid until the operation is freed.
///
/// Returns: ZKL_OK, with the participant in `*participant_out`. On failure:
/// - ZKL_E_PENDING while the operation is still running.
/// - ZKL_E_INVALID if an argument is not valid, for example if `index` is too large, or if the operation was not started by one
///   of the functions listed above.
/// - The same statuses as zkl_op_result, if the operation has failed.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_op_participant(
    op: *const zkl_op,
    index: usize,
    participant_out: *mut *const zkl_participant,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("participant_out", participant_out)? };
        let op = handle::get(op)?;
        let found = op.answer("participants", "lists participants", |answer| match answer {
            OpAnswer::Participants(found) => Some(found),
            _ => None,
        })?;
        out.set(at(found, index, "participants")?.as_ptr());
        Ok(())
    })
}

/// Gets a past run that an operation has read (zkl_past_runs_start). The parameter `index` selects the run. The newest run has the
/// index 0. The function zkl_op_value gets the number of runs. The struct belongs to the library, and is valid until the operation
/// is freed.
///
/// Returns: ZKL_OK, with the run in `*run_out`. On failure: the same statuses as zkl_op_participant.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_op_past_run(
    op: *const zkl_op,
    index: usize,
    run_out: *mut *const zkl_past_run,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("run_out", run_out)? };
        let op = handle::get(op)?;
        let runs = op.answer("past runs", "reads past runs", |answer| match answer {
            OpAnswer::PastRuns(runs) => Some(runs),
            _ => None,
        })?;
        out.set(at(runs, index, "past runs")?.as_ptr());
        Ok(())
    })
}

/// Takes the run from a zkl_hold_begin_run_start operation that has ended with ZKL_OK. If `*run_out` is not NULL, the caller must end
/// the run with zkl_run_finish. If `*run_out` is NULL, the job has already run in this period. The program can take the run once.
///
/// Returns: the same statuses as zkl_op_client.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_op_run(op: *mut zkl_op, run_out: *mut *mut zkl_run) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("run_out", run_out)? };
        let start = handle::get(op)?.answer("run", "begins a run", |answer| match answer {
            OpAnswer::Run(start) => Some(start.take("run")),
            _ => None,
        })??;
        out.set(run::insert(start)?);
        Ok(())
    })
}

/// Takes the client from a zkl_client_start operation that has ended with ZKL_OK. The caller must free the client,
/// `*client_out`, with zkl_client_free.
///
/// Returns: ZKL_OK. On failure:
/// - ZKL_E_PENDING while the operation is still running.
/// - ZKL_E_INVALID if an argument is not valid, if the client was already taken, or if another function has started the
///   operation.
/// - The same statuses as zkl_op_result, if the operation has failed.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_op_client(op: *mut zkl_op, client_out: *mut *mut zkl_client) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("client_out", client_out)? };
        let client = handle::get(op)?.answer("client", "connects a client", |answer| match answer {
            OpAnswer::Client(client) => Some(client.take("client")),
            _ => None,
        })??;
        out.set(handle::insert(client)?);
        Ok(())
    })
}

/// Takes the semaphore from a zkl_semaphore_new_counted_start operation that has ended with ZKL_OK. The caller must free the
/// semaphore, `*semaphore_out`, with zkl_semaphore_free.
///
/// Returns: the same statuses as zkl_op_client.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_op_semaphore(op: *mut zkl_op, semaphore_out: *mut *mut zkl_semaphore) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("semaphore_out", semaphore_out)? };
        let semaphore = handle::get(op)?.answer("semaphore", "makes a semaphore", |answer| match answer {
            OpAnswer::Semaphore(semaphore) => Some(semaphore.take("semaphore")),
            _ => None,
        })??;
        out.set(handle::insert(semaphore)?);
        Ok(())
    })
}

/// Frees an operation. If an acquire, a connect, a wait for a loss or the beginning of a run is still running, the call cancels
/// it. Any other operation, for example a release, runs to completion. Calls of zkl_op_wait that wait for the operation fail with
/// ZKL_E_CLOSED. The parameter `op` may be NULL. In a forked child, the call does nothing.
///
/// If the program frees the operation before it has taken the operation's client (zkl_op_client), the library closes the
/// client in the background. The library then calls no further callbacks of this client. If the program has not taken a run that
/// has begun (zkl_op_run), the library removes the run from the record in the background.
///
/// A successful acquire operation owns its hold until the program takes the hold with zkl_op_hold. If the program frees the
/// operation before, the library releases the hold without waiting for the server. There is one exception: if the owner is
/// ZKL_OWNER_THREAD, and zkl_op_result or zkl_op_wait has already returned ZKL_OK for an acquire of a lock, the thread still holds
/// the lock after this call, and must release it. If the program has already released the hold that the operation acquired,
/// zkl_op_free does not release a later hold of the same owner. If the operation acquires a multi-lock in several steps, a query
/// can still show holds of member locks for a short time after this call.
///
/// Returns nothing. If `op` is not a live handle, the call has no effect. The last error message does not change.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_op_free(op: *mut zkl_op) {
    free(|| {
        handle::free(op, |op| {
            op.close();
            Ok(())
        })
    });
}

impl OpObject {
    fn new(operation: Operation<OpAnswer>, kind: Kind) -> Result<Self> {
        let (answer, descriptor, message) = (OnceLock::new(), Arc::default(), OnceLock::new());
        let started = Self { operation, kind, answer, descriptor, message };
        match started.wait_for(Duration::ZERO) {
            Some(Err(error)) if error.status() == Status::Invalid => Err(error.clone()),
            _ => Ok(started),
        }
    }

    fn result(&self) -> Result<()> {
        self.wait_and_keep(Duration::ZERO).ok_or_else(pending_error)?
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        let Some(limit) = timeout else {
            loop {
                if let Some(result) = self.wait_and_keep(Duration::MAX) {
                    return result;
                }
            }
        };
        self.wait_and_keep(limit).ok_or_else(|| {
            let message = format!("the operation is still running after a wait of {} ms", limit.as_millis());
            Error::new(Status::Pending, message)
        })?
    }

    /// Waits for at most `slice`, and returns the result of the operation if the operation has ended. A hold of the
    /// calling thread now belongs to the thread.
    fn wait_and_keep(&self, slice: Duration) -> Option<Result<()>> {
        if !self.operation.is_over()
            && let Err(deadlock) = self.check_may_wait(slice)
        {
            return Some(Err(deadlock));
        }
        let answer = self.wait_for(slice)?;
        if let (Kind::Acquire { is_for_thread: true, .. }, Ok(OpAnswer::Hold(hold))) = (self.kind, answer) {
            hold.leave_to_owner();
        }
        Some(answer.as_ref().map(drop).map_err(Clone::clone))
    }

    /// Fails with DEADLOCK if a callback calls, and if the wait could need the end of this callback.
    fn check_may_wait(&self, slice: Duration) -> Result<()> {
        let may_wait = matches!(self.kind, Kind::Acquire { is_try: true, .. });
        if may_wait { Ok(()) } else { refuse_in_callback(Some(slice)).map_err(|_| callback_error()) }
    }

    /// Waits for at most `slice`, and returns the answer of the operation if the operation has ended. The object then keeps
    /// the answer.
    fn wait_for(&self, slice: Duration) -> Option<&Result<OpAnswer>> {
        if let Some(answer) = self.answer.get() {
            return Some(answer);
        }
        let answer = self.operation.wait_for(slice)?;
        Some(self.answer.get_or_init(|| answer))
    }

    /// Returns what `take` finds in the answer of an operation that has succeeded. For the error message, `what` is the expected
    /// part of the answer, and `does` says what an operation with such an answer does.
    fn answer<'a, T>(&'a self, what: &str, does: &str, take: impl FnOnce(&'a OpAnswer) -> Option<T>) -> Result<T> {
        let answer = self.wait_for(Duration::ZERO).ok_or_else(pending_error)?.as_ref().map_err(Clone::clone)?;
        let message = || format!("the operation has no {what}; expected an operation that {does}");
        take(answer).ok_or_else(|| Error::new(Status::Invalid, message()))
    }

    fn message(&self) -> *const c_char {
        let Some(Err(error)) = self.wait_for(Duration::ZERO) else { return c"".as_ptr() };
        // Only a message from a server can contain a NUL.
        let text = || CString::new(error.message().replace('\0', "\u{fffd}")).unwrap_or_default();
        self.message.get_or_init(text).as_ptr()
    }

    fn descriptor(&self) -> Result<c_int> {
        let (number, is_new) = self.descriptor.number()?;
        if is_new {
            let descriptor = Arc::clone(&self.descriptor);
            self.on_done(move || descriptor.signal())?;
        }
        Ok(number)
    }

    /// Calls `hook` when the operation has ended, or at once if the operation has already ended.
    pub(crate) fn on_done(&self, hook: impl FnOnce() + Send + 'static) -> Result<()> {
        self.operation.on_done(hook)
    }

    fn close(&self) {
        self.operation.abandon();
        drop(self.descriptor.lock().take());
    }
}

impl CompletionFd {
    /// Returns the descriptor, and whether this call created it.
    fn number(&self) -> Result<(c_int, bool)> {
        let mut place = self.lock();
        if let Some(descriptor) = place.as_ref().filter(|descriptor| descriptor.is_ours()) {
            return Ok((descriptor.as_raw_fd(), false));
        }
        Ok((place.insert(OnceWakeSocket::new()?).as_raw_fd(), true))
    }

    fn signal(&self) {
        if let Some(descriptor) = &mut *self.lock() {
            descriptor.signal();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<OnceWakeSocket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a handle for an operation that has started.
pub(crate) fn insert(operation: Operation<OpAnswer>, kind: Kind) -> Result<*mut zkl_op> {
    handle::insert(OpObject::new(operation, kind)?)
}

/// Returns an element of a list.
fn at<'a, T>(list: &'a [T], index: usize, what: &str) -> Result<&'a T> {
    list.get(index).ok_or_else(|| {
        let message = format!("index is {index}; expected less than {}, the number of {what}", list.len());
        Error::new(Status::Invalid, message)
    })
}

fn pending_error() -> Error {
    Status::Pending.into()
}

fn callback_error() -> Error {
    let message = "a callback must not wait for an operation, because the operation may wait until this callback returns; \
                   wait on another thread, or check the operation with timeout 0";
    Error::new(Status::Deadlock, message)
}
