//! The log: how a program hears what the library has to say about itself.

use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;
use std::time::SystemTime;

use zklock::{Error, Level, LogCalls, LogHandler, LogLine, Status, set_log_handler};
use zklock_abi::guard::status;

use crate::event::{User, zkl_user_drop};
use crate::status::zkl_status;

/// Nothing is logged, as at first.
pub const ZKL_LOG_OFF: i32 = 0;
/// Somebody has to do something: credentials were refused.
pub const ZKL_LOG_ERROR: i32 = 1;
/// Something was lost, or may soon be: a lock, a lease, a session, a connection.
pub const ZKL_LOG_WARN: i32 = 2;
/// What becomes of sessions and connections.
pub const ZKL_LOG_INFO: i32 = 3;
/// What becomes of each acquire and each hold.
pub const ZKL_LOG_DEBUG: i32 = 4;
/// Each request, each answer.
pub const ZKL_LOG_TRACE: i32 = 5;

const _: () = {
    assert!(ZKL_LOG_ERROR == Level::Error as i32);
    assert!(ZKL_LOG_WARN == Level::Warn as i32);
    assert!(ZKL_LOG_INFO == Level::Info as i32);
    assert!(ZKL_LOG_DEBUG == Level::Debug as i32);
    assert!(ZKL_LOG_TRACE == Level::Trace as i32);
};

/// A field of a line. This struct will stay as it is.
#[repr(C)]
pub struct zkl_log_field {
    /// What it is called: path, token, session, server, cause and others.
    pub name: *const c_char,
    /// Its value as text.
    pub value: *const c_char,
}

/// A line of the log. All memory is the library's, and valid during the callback.
#[repr(C)]
pub struct zkl_log {
    /// The library's own size of this struct. New fields are only ever appended: look at them where size covers them.
    pub size: u32,
    /// A ZKL_LOG_*.
    pub level: i32,
    /// When it was written: nanoseconds since 1970, by the clock of the day.
    pub time_ns: i64,
    /// What it is about: "zklock::session", "zklock::lock", "zklock::request", or "zklock::log" for the log itself. Others are for
    /// what should not happen.
    pub target: *const c_char,
    /// The message and the fields, ready to be printed. No newline is at its end.
    pub line: *const c_char,
    /// The message alone, which is the same for all that is of one kind.
    pub message: *const c_char,
    /// The fields.
    pub fields: *const zkl_log_field,
    /// How many there are.
    pub field_count: usize,
}

/// Is called with each line of the log. It must return: no exception, no longjmp.
pub type zkl_log_cb = Option<unsafe extern "C" fn(user: *mut c_void, log: *const zkl_log)>;

/// Has cb called, with user as it was given, for each line up to this level (a ZKL_LOG_*) that the library logs in this process,
/// whichever client it is of. It takes the place of the one before, whose last call is over when this returns. With cb NULL or
/// ZKL_LOG_OFF nothing is logged any more, which costs nothing; what was logged by then is told before, as far as two seconds allow.
///
/// The calls come one after the other, in the order in which things happened with each client, on the thread of the library that calls the
/// callbacks of events, also where clients poll theirs; that thread goes on as long as there is a cb. What cb may call stands under
/// Callbacks, above; of what is logged meanwhile on the thread that calls it, warnings and errors alone are told. While it does not return, 4096 lines wait. What comes
/// on top of that is dropped, and a line of the target "zklock::log" says how many those were.
///
/// user_drop, which may be NULL, is called once: when another cb has taken the place of this one, or none, and cb has returned for the
/// last time. With cb NULL or ZKL_LOG_OFF it is called at once. In a forked child nobody is called by what the parent has set, nor is user_drop.
///
/// Returns: ZKL_OK; ZKL_E_INVALID for another level, ZKL_E_INTERNAL, ZKL_E_UNSUPPORTED where a program in Rust has the library linked
/// into it and listens to tracing by itself, and user is not taken.
/// Blocks until the call of the one before that is under way has returned, unless it is that which asks; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_set_log_callback(
    level: i32,
    cb: zkl_log_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
) -> zkl_status {
    status(|| {
        let level = match level {
            ZKL_LOG_OFF => None,
            ZKL_LOG_ERROR => Some(Level::Error),
            ZKL_LOG_WARN => Some(Level::Warn),
            ZKL_LOG_INFO => Some(Level::Info),
            ZKL_LOG_DEBUG => Some(Level::Debug),
            ZKL_LOG_TRACE => Some(Level::Trace),
            other => {
                let message = format!("level is {other}; expected a ZKL_LOG_*, which are 0 to 5");
                return Err(Error::new(Status::Invalid, message));
            }
        };
        let user = Arc::new(User::new(user, user_drop));
        let handler = cb.filter(|_| level.is_some()).map(|cb| {
            let user = Arc::clone(&user);
            Arc::new(move |line: &LogLine| tell(cb, user.pointer(), line)) as Arc<LogHandler>
        });
        set_log_handler(level.unwrap_or(Level::Error), LogCalls::OnThread, handler)?;
        user.take();
        Ok(())
    })
}

fn tell(cb: unsafe extern "C" fn(*mut c_void, *const zkl_log), user: *mut c_void, line: &LogLine) {
    let text = |text: &str| CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
    let (target, message, whole) = (text(line.target), text(&line.message), text(&line.to_string()));
    let fields: Vec<_> = line.fields.iter().map(|(name, value)| (text(name), text(&value.to_string()))).collect();
    let fields: Vec<_> =
        fields.iter().map(|(name, value)| zkl_log_field { name: name.as_ptr(), value: value.as_ptr() }).collect();
    let since = line.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let told = zkl_log {
        size: SIZE,
        level: line.level as i32,
        time_ns: i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        target: target.as_ptr(),
        line: whole.as_ptr(),
        message: message.as_ptr(),
        fields: fields.as_ptr(),
        field_count: fields.len(),
    };
    // SAFETY: the caller gave a function of this type; what it is lent outlives the call.
    unsafe { cb(user, &raw const told) };
}

const SIZE: u32 = size_of::<zkl_log>() as u32;
