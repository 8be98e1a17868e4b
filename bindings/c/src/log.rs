//! The log: messages of the library about its own work. The log belongs to the process, so this module must not use objects of
//! a client.

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use zklock::internal::{
    EventSource, Level, LogDispatch, LogHandler, LogLine, PerProcess, WakeSocket, set_log_handler, set_log_level,
};
use zklock::{Error, Result, Status};
use zklock_abi::arg::Output;
use zklock_abi::boundary::{ffi_call, status};

use crate::callback::{UserData, zkl_user_drop};
use crate::status::zkl_status;

/// The library logs nothing. This level is the default.
pub const ZKL_LOG_OFF: i32 = 0;
/// Log lines about problems that need action, for example refused credentials.
pub const ZKL_LOG_ERROR: i32 = 1;
/// Log lines about locks, leases, sessions and connections that were lost, or that may be lost soon.
pub const ZKL_LOG_WARN: i32 = 2;
/// Log lines about changes of sessions and connections.
pub const ZKL_LOG_INFO: i32 = 3;
/// Log lines about changes of acquires and holds.
pub const ZKL_LOG_DEBUG: i32 = 4;
/// A log line for each request and for each answer.
pub const ZKL_LOG_TRACE: i32 = 5;

const _: () = {
    assert!(ZKL_LOG_ERROR == Level::Error as i32);
    assert!(ZKL_LOG_WARN == Level::Warn as i32);
    assert!(ZKL_LOG_INFO == Level::Info as i32);
    assert!(ZKL_LOG_DEBUG == Level::Debug as i32);
    assert!(ZKL_LOG_TRACE == Level::Trace as i32);
};

/// A field of a log line. Later versions do not change this struct.
#[repr(C)]
pub struct zkl_log_field {
    /// The name of the field, for example path, token, session, server or cause.
    pub name: *const c_char,
    /// The value of the field as text.
    pub value: *const c_char,
}

/// A log line. The struct and the memory that it points to belong to the library. Both are valid until the callback returns.
#[repr(C)]
pub struct zkl_log {
    /// The size of this struct in the library. Later versions only add fields at the end. Before a program reads an added
    /// field, the program must check that size includes the field.
    pub size: u32,
    /// The level of the line: a ZKL_LOG_*.
    pub level: i32,
    /// The wall-clock time at which the line was written, in nanoseconds since 1970.
    pub time_ns: i64,
    /// The subject of the line: "zklock::session", "zklock::lock", "zklock::request", or "zklock::log" for the log itself.
    /// Lines with other targets report internal problems that should not occur.
    pub target: *const c_char,
    /// The message and the fields as printable text, without a newline at the end.
    pub line: *const c_char,
    /// The message without the fields. All lines of one kind have the same message.
    pub message: *const c_char,
    /// The fields.
    pub fields: *const zkl_log_field,
    /// The number of fields.
    pub field_count: usize,
}

/// A callback that receives each log line. The callback must return normally. A callback must not throw an exception or call
/// longjmp.
pub type zkl_log_cb = Option<unsafe extern "C" fn(user: *mut c_void, log: *const zkl_log)>;

/// Sets the callback for log lines. The callback receives the log lines of all clients of this process. The parameter `level`
/// (a ZKL_LOG_*) is the most detailed level that the library logs. For each log line, the library calls `cb` and passes `user`
/// to it. A later call of zkl_set_log_callback replaces the callback. When the function returns, the previous callback is not
/// running any more. If `cb` is NULL or `level` is ZKL_LOG_OFF, the call turns logging off. Logging that is turned off costs
/// nothing. Before a call turns logging off, it waits up to two seconds for the delivery of queued lines.
///
/// The event thread calls `cb` for one line at a time, even if clients poll their events. With zkl_set_log_polling, the
/// callback instead runs on the thread that calls zkl_log_dispatch. The event thread runs as long as a log callback is set. The
/// lines of each client arrive in the order in which the logged events occurred. The Callbacks section above describes which
/// functions `cb` may call. If `cb` itself causes log lines on the event thread, the library delivers only the warnings and
/// errors among these lines.
///
/// While `cb` runs, the library queues up to 4096 lines. If the queue is full, the library drops further lines. The library
/// later logs the number of dropped lines with the target "zklock::log".
///
/// If `user_drop` is not NULL, the library calls `user_drop` after the callback is replaced or removed. The library calls
/// `user_drop` only once, after the last call of `cb` has returned. If `cb` is NULL or `level` is ZKL_LOG_OFF, the library
/// calls `user_drop` at once. In a forked child, the library calls neither the callback nor the `user_drop` of the parent.
///
/// Returns: ZKL_OK. If the call fails, the library does not use the pointer `user` and does not call `user_drop`. On failure:
/// - ZKL_E_INVALID if `level` is not a ZKL_LOG_*.
/// - ZKL_E_UNSUPPORTED if the library is linked into a Rust program that has its own tracing subscriber.
/// - Other failures: ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
///
/// Blocks while the previous callback is running, unless the previous callback itself makes the call. A call that turns logging
/// off also waits for queued lines, for at most two seconds. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_set_log_callback(
    level: i32,
    cb: zkl_log_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
) -> zkl_status {
    status(|| set(level, cb, user, user_drop, || Ok((LogDispatch::EventThread, None))))
}

/// Sets the callback for log lines, for programs that dispatch log lines themselves. The program must watch the descriptor that
/// zkl_log_event_fd returns, and must call zkl_log_dispatch when the descriptor is readable. No library thread calls `cb` or
/// `user_drop`. This function is for programs that cannot run a callback on a library thread. All other rules of
/// zkl_set_log_callback also apply to this function. The functions zkl_set_log_polling and zkl_set_log_callback each replace
/// the callback that the other function set. Before a call turns logging off, it delivers the queued lines on the calling
/// thread.
///
/// Returns: the same statuses as zkl_set_log_callback.
/// Blocks while the previous callback is running, unless the previous callback itself makes the call. Any thread may call this
/// function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_set_log_polling(
    level: i32,
    cb: zkl_log_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
) -> zkl_status {
    status(|| {
        set(level, cb, user, user_drop, || {
            let polled = Arc::new(PolledLog::new()?);
            let notified = Arc::clone(&polled);
            Ok((LogDispatch::Notifier(Arc::new(move |source| notified.notify(source))), Some(polled)))
        })
    })
}

/// Gets the descriptor of the log, for poll, select, epoll and event loops. The descriptor is readable while log lines are queued
/// (level-triggered). The descriptor belongs to the library, and the program must not read, write or close it. The library
/// closes the descriptor when zkl_set_log_polling or zkl_set_log_callback replaces or removes the callback.
///
/// Returns: the descriptor, which is 0 or more. Every call returns the same descriptor until the callback is replaced, unless the
/// program has closed the descriptor. On failure:
/// - ZKL_E_INVALID if no callback is set with zkl_set_log_polling.
/// - Other failures: ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_log_event_fd() -> c_int {
    ffi_call(|| polled_log()?.descriptor())
}

/// Delivers the queued log lines. The function calls the zkl_set_log_polling callback on the calling thread, once per line,
/// for at most 4096 lines. Only one thread at a time delivers log lines. The call delivers nothing if another thread is
/// delivering log lines, or if the callback itself makes the call.
///
/// Returns: ZKL_OK, with the number of delivered lines in `*count_out`. On failure:
/// - ZKL_E_INVALID if no callback is set with zkl_set_log_polling, or if `count_out` is NULL.
/// - ZKL_E_INTERNAL.
///
/// Blocks while the callback runs. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_log_dispatch(count_out: *mut i32) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("count_out", count_out)? };
        out.set(polled_log()?.dispatch());
        Ok(())
    })
}

/// Sets the callback for log lines. `dispatch` selects the thread that calls the callback.
fn set(
    level: i32,
    cb: zkl_log_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
    dispatch: impl FnOnce() -> Result<(LogDispatch, Option<Arc<PolledLog>>)>,
) -> Result<()> {
    let level = match level {
        ZKL_LOG_OFF => None,
        ZKL_LOG_ERROR => Some(Level::Error),
        ZKL_LOG_WARN => Some(Level::Warn),
        ZKL_LOG_INFO => Some(Level::Info),
        ZKL_LOG_DEBUG => Some(Level::Debug),
        ZKL_LOG_TRACE => Some(Level::Trace),
        other => {
            let message = format!("level is {other}; expected a ZKL_LOG_* value, 0 to 5");
            return Err(Error::new(Status::Invalid, message));
        }
    };
    let user = Arc::new(UserData::new(user, user_drop));
    let handler = cb.filter(|_| level.is_some()).map(|cb| {
        let user = Arc::clone(&user);
        Arc::new(move |line: &LogLine| call_log_callback(cb, user.pointer(), line)) as Arc<LogHandler>
    });
    let (dispatch, polled) = if handler.is_some() { dispatch()? } else { (LogDispatch::EventThread, None) };
    if let (None, Ok(before)) = (&handler, polled_log()) {
        // The calling thread delivers the queued lines, because the library would wait for the program. Without further lines,
        // the delivery ends.
        set_log_level(None);
        before.dispatch();
    }
    set_log_handler(level.unwrap_or(Level::Error), dispatch, handler)?;
    *lock(POLLED_LOG.get()) = polled;
    user.take_ownership();
    Ok(())
}

/// The log of a program that calls the callback itself, or `None`.
static POLLED_LOG: PerProcess<Mutex<Option<Arc<PolledLog>>>> = PerProcess::new(Mutex::default);

/// The largest number of lines that one call delivers. The queue of the log contains at most this number of lines.
const MAX_LINES: i32 = 4096;

/// The log of a program that calls the callback itself.
struct PolledLog(Mutex<PolledState>);

struct PolledState {
    descriptor: WakeSocket,
    /// The source of the queued lines, or `None` if no line is queued.
    source: Option<EventSource>,
}

impl PolledLog {
    fn new() -> Result<Self> {
        Ok(Self(Mutex::new(PolledState { descriptor: WakeSocket::new()?, source: None })))
    }

    /// Records that lines are queued. The log calls this method while it holds its own lock.
    fn notify(self: &Arc<Self>, source: EventSource) {
        let mut state = lock(&self.0);
        state.source = Some(source);
        state.descriptor.signal();
        drop(state);
        // If two threads set callbacks at the same time, the log decides which callback stays.
        *lock(POLLED_LOG.get()) = Some(Arc::clone(self));
    }

    fn dispatch(&self) -> i32 {
        // The log calls `notify` again while further lines are queued.
        (1..=MAX_LINES)
            .take_while(|_| self.take_source().is_some_and(|source| source.dispatch_next()))
            .last()
            .unwrap_or(0)
    }

    fn take_source(&self) -> Option<EventSource> {
        let mut state = lock(&self.0);
        state.descriptor.clear();
        state.source.take()
    }

    fn descriptor(&self) -> Result<c_int> {
        let mut state = lock(&self.0);
        if !state.descriptor.is_ours() {
            state.descriptor = WakeSocket::new()?;
            if state.source.is_some() {
                state.descriptor.signal();
            }
        }
        Ok(state.descriptor.as_raw_fd())
    }
}

fn polled_log() -> Result<Arc<PolledLog>> {
    let polled = lock(POLLED_LOG.get()).clone();
    polled.ok_or_else(|| {
        let message =
            "the program does not poll the log; expected an earlier call of zkl_set_log_polling with a callback";
        Error::new(Status::Invalid, message)
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn call_log_callback(cb: unsafe extern "C" fn(*mut c_void, *const zkl_log), user: *mut c_void, line: &LogLine) {
    let text = |text: &str| CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
    let (target, message, whole) = (text(line.target), text(&line.message), text(&line.to_string()));
    let fields: Vec<_> = line.fields.iter().map(|(name, value)| (text(name), text(&value.to_string()))).collect();
    let fields: Vec<_> =
        fields.iter().map(|(name, value)| zkl_log_field { name: name.as_ptr(), value: value.as_ptr() }).collect();
    let since = line.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let c_log = zkl_log {
        size: SIZE,
        level: line.level as i32,
        time_ns: i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        target: target.as_ptr(),
        line: whole.as_ptr(),
        message: message.as_ptr(),
        fields: fields.as_ptr(),
        field_count: fields.len(),
    };
    // SAFETY: the caller passed a function of this type, and the arguments outlive the call.
    unsafe { cb(user, &raw const c_log) };
}

const SIZE: u32 = size_of::<zkl_log>() as u32;
