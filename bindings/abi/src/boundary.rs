//! The boundary between C and Rust. Every exported function runs inside this boundary. No panic crosses the boundary. If a call
//! fails, the boundary stores the error message as the last error of the thread. This module must not use arguments or handles.

use std::any::Any;
use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::fmt::{self, Write};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use zklock_core::error::{Error, Result, Status};

/// The status of a call that succeeded.
pub const OK: i32 = 0;

/// The size of the message buffer in bytes. The buffer contains only the beginning of a longer message.
const MESSAGE_SIZE: usize = 1024;

thread_local! {
    /// The message of the last failure. The type has no destructor. A thread that is ending can therefore still use the
    /// message.
    static LAST_ERROR: Message = const { Message::new() };
}

/// Runs the body of an exported function. If the body fails, the function stores the error message. If the body succeeds, the
/// stored message does not change.
pub fn ffi_call<T: Failure>(body: impl FnOnce() -> Result<T>) -> T {
    catch_panic(body).unwrap_or_else(|error| {
        set_last_error(error.message());
        T::failure(error.status())
    })
}

/// Runs the body of a function that frees a handle. The stored message never changes, because a program may free its handles
/// before it reports the failure of an earlier call.
pub fn free(body: impl FnOnce() -> Result<()>) {
    let _ = catch_panic(body);
}

/// Runs the body of a safety predicate, whose result is 1 or 0. If the body fails, the function stores the error message and
/// returns 0. In C, every other number would mean that the hold is safe.
pub fn predicate(body: impl FnOnce() -> Result<bool>) -> i32 {
    catch_panic(body).map_or_else(
        |error| {
            set_last_error(error.message());
            0
        },
        i32::from,
    )
}

fn catch_panic<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let _uncancelable = CancelDisabled::new();
    // The data behind the mutexes of the library is consistent after every statement, and is therefore still usable after a
    // panic.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        Err(Error::new(Status::Internal, format!("internal error in zklock: {}", text_of(panic))))
    })
}

/// Delays a `pthread_cancel` until the call has ended. A cancellation during the call would unwind through code that does not
/// support unwinding, and would leave the library's mutexes locked.
struct CancelDisabled {
    before: c_int,
}

impl CancelDisabled {
    fn new() -> Self {
        let mut before = 0;
        // SAFETY: the function writes to the given variable. The first argument is one of the two allowed values.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Drop for CancelDisabled {
    fn drop(&mut self) {
        let mut disabled = 0;
        // SAFETY: the function writes to the given variable. The first argument is the state before the call.
        unsafe { pthread_setcancelstate(self.before, &raw mut disabled) };
    }
}

/// The value that glibc and musl define for this constant.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Runs the body of a function that returns only a status.
pub fn status(body: impl FnOnce() -> Result<()>) -> i32 {
    ffi_call(|| body().map(|()| OK))
}

/// The return value of a function that failed.
pub trait Failure {
    /// The value for a failure with this status.
    fn failure(status: Status) -> Self;
}

/// The implementation for functions that return a status, or a number that is never negative.
impl Failure for i32 {
    fn failure(status: Status) -> Self {
        status.number()
    }
}

/// The implementation for functions that return a session id. No session has the id 0.
impl Failure for i64 {
    fn failure(_: Status) -> Self {
        0
    }
}

impl Failure for () {
    fn failure(_: Status) {}
}

impl<T> Failure for *mut T {
    fn failure(_: Status) -> Self {
        std::ptr::null_mut()
    }
}

/// Returns the message of the last failure in this thread as a C string. The string is empty before the first failure.
pub fn last_error() -> *const c_char {
    LAST_ERROR.try_with(|message| message.0.as_ptr().cast::<c_char>()).unwrap_or(c"".as_ptr())
}

/// The implementation for functions that return a string.
impl<T> Failure for *const T {
    fn failure(_: Status) -> Self {
        std::ptr::null()
    }
}

fn set_last_error(text: &str) {
    // The call fails only while the thread is ending.
    let _ = LAST_ERROR.try_with(|message| Writer { message, at: 0 }.write_str(text));
}

fn text_of(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => match panic.downcast::<&'static str>() {
            Ok(text) => (*text).to_owned(),
            Err(panic) => {
                // The destructor of the panic value is unknown, and could panic too.
                mem::forget(panic);
                "a panic without a message".to_owned()
            }
        },
    }
}

/// A C string with a fixed size. Writing and reading the string allocates no memory.
struct Message([Cell<u8>; MESSAGE_SIZE]);

impl Message {
    const fn new() -> Self {
        Self([const { Cell::new(0) }; MESSAGE_SIZE])
    }

    fn put(&self, at: usize, byte: u8) {
        if let Some(cell) = self.0.get(at) {
            cell.set(byte);
        }
    }
}

struct Writer<'a> {
    message: &'a Message,
    at: usize,
}

impl Write for Writer<'_> {
    /// Writes as many whole characters as fit into the message.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for char in text.chars().map(|char| if char == '\0' { '\u{fffd}' } else { char }) {
            if self.at + char.len_utf8() >= MESSAGE_SIZE {
                break;
            }
            for byte in char.encode_utf8(&mut [0; 4]).bytes() {
                self.message.put(self.at, byte);
                self.at += 1;
            }
        }
        self.message.put(self.at, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::panic::panic_any;

    use super::*;

    fn message() -> &'static str {
        // SAFETY: the message is a C string, and is valid until this thread's next call.
        unsafe { CStr::from_ptr(last_error()) }.to_str().unwrap()
    }

    #[test]
    fn panic_returns_internal_with_its_message() {
        assert_eq!(status(|| panic!("at the {}", "disco")), Status::Internal.number());
        assert_eq!(message(), "internal error in zklock: at the disco");
        assert_eq!(status(|| panic_any(7)), Status::Internal.number());
        assert_eq!(message(), "internal error in zklock: a panic without a message");
        assert!(ffi_call::<*mut u8>(|| panic!("no pointer")).is_null());
        assert_eq!(ffi_call::<i64>(|| panic!("no id")), 0);
    }

    #[test]
    fn success_and_free_leave_the_last_message_alone() {
        assert_eq!(status(|| Err(Status::Timeout.into())), Status::Timeout.number());
        assert_eq!(status(|| Ok(())), OK);
        free(|| Ok(()));
        free(|| Err(Status::Handle.into()));
        free(|| panic!("in a destructor"));
        assert_eq!(message(), Status::Timeout.text());
        assert_eq!(status(|| Err(Status::Closed.into())), Status::Closed.number());
        assert_eq!(message(), Status::Closed.text());
    }

    #[test]
    fn failing_predicate_returns_zero_and_sets_message() {
        assert_eq!((predicate(|| Ok(true)), predicate(|| Ok(false))), (1, 0));
        assert_eq!(predicate(|| Err(Status::Forked.into())), 0);
        assert_eq!(message(), Status::Forked.text());
        assert_eq!(predicate(|| panic!("no answer")), 0);
        assert_eq!(message(), "internal error in zklock: no answer");
        assert_eq!((predicate(|| Ok(true)), predicate(|| Ok(false))), (1, 0));
        assert_eq!(message(), "internal error in zklock: no answer");
    }

    #[test]
    fn messages_are_cut_between_characters_and_have_no_nul() {
        let long = "日".repeat(MESSAGE_SIZE);
        status(|| Err(Error::new(Status::Server, long)));
        assert_eq!(message(), "日".repeat((MESSAGE_SIZE - 1) / 3));
        status(|| Err(Error::new(Status::Server, "a\0b")));
        assert_eq!(message(), "a\\u{0}b");
    }
}
