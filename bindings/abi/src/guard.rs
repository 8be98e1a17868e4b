//! The boundary between C and Rust: no panic leaves it, and every failure leaves its message until the next failure.

use std::any::Any;
use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::fmt::{self, Write};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use zklock::{Error, Result, Status};

/// What a function returns that did what it should.
pub const OK: i32 = 0;

/// Longer messages are cut.
const MESSAGE_SIZE: usize = 1024;

thread_local! {
    /// Without a destructor, so that it works while its thread is being torn down.
    static LAST_ERROR: Message = const { Message::new() };
}

/// Runs the body of an exported function. Its failure leaves a message; its success leaves the message of the last failure alone.
pub fn guard<T: Failure>(body: impl FnOnce() -> Result<T>) -> T {
    run(body).unwrap_or_else(|error| {
        set_last_error(error.message());
        T::failure(error.status())
    })
}

/// Runs the body of a function that frees something. It never leaves a message: programs free what they have before they report why they failed.
pub fn free(body: impl FnOnce() -> Result<()>) {
    let _ = run(body);
}

fn run<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let _uncancelable = Uncancelable::new();
    // What a body can leave half done when it panics are the library's own locks, which are whole between statements.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        Err(Error::new(Status::Internal, format!("internal error in zklock: {}", text_of(panic))))
    })
}

/// Puts off a `pthread_cancel` until the call is over: it would unwind through code that can't be unwound so, and leave the
/// library's locks taken.
struct Uncancelable {
    before: c_int,
}

impl Uncancelable {
    fn new() -> Self {
        let mut before = 0;
        // SAFETY: writes to the variable it is given; the argument is one of two that are allowed.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Drop for Uncancelable {
    fn drop(&mut self) {
        let mut disabled = 0;
        // SAFETY: as above, with the state that was found before.
        unsafe { pthread_setcancelstate(self.before, &raw mut disabled) };
    }
}

/// As glibc and musl define it.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// The same for functions that return nothing but a status.
pub fn status(body: impl FnOnce() -> Result<()>) -> i32 {
    guard(|| body().map(|()| OK))
}

/// What a function of this return type returns where it failed.
pub trait Failure {
    /// For a failure with this status.
    fn failure(status: Status) -> Self;
}

/// A status, or an answer that is never negative.
impl Failure for i32 {
    fn failure(status: Status) -> Self {
        status.number()
    }
}

/// A session id, of which 0 is none.
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

/// This thread's last failure as a C string; empty before the first one.
pub fn last_error() -> *const c_char {
    LAST_ERROR.try_with(|message| message.0.as_ptr().cast::<c_char>()).unwrap_or(c"".as_ptr())
}

/// A text of the library's.
impl<T> Failure for *const T {
    fn failure(_: Status) -> Self {
        std::ptr::null()
    }
}

fn set_last_error(text: &str) {
    // Fails only where the thread is as good as gone.
    let _ = LAST_ERROR.try_with(|message| Writer { message, at: 0 }.write_str(text));
}

fn text_of(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => match panic.downcast::<&'static str>() {
            Ok(text) => (*text).to_owned(),
            Err(panic) => {
                // Its destructor is unknown, and may panic in turn.
                mem::forget(panic);
                "a panic without a message".to_owned()
            }
        },
    }
}

/// A C string in place: setting and reading it allocates nothing.
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
    /// Writes as many whole characters as there is room for.
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
        // SAFETY: the message is a C string, and stays until this thread's next call.
        unsafe { CStr::from_ptr(last_error()) }.to_str().unwrap()
    }

    #[test]
    fn a_panic_is_an_internal_error_with_its_text() {
        assert_eq!(status(|| panic!("at the {}", "disco")), Status::Internal.number());
        assert_eq!(message(), "internal error in zklock: at the disco");
        assert_eq!(status(|| panic_any(7)), Status::Internal.number());
        assert_eq!(message(), "internal error in zklock: a panic without a message");
        assert!(guard::<*mut u8>(|| panic!("no pointer")).is_null());
        assert_eq!(guard::<i64>(|| panic!("no id")), 0);
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
    fn messages_are_cut_between_characters_and_have_no_nul() {
        let long = "日".repeat(MESSAGE_SIZE);
        status(|| Err(Error::new(Status::Server, long)));
        assert_eq!(message(), "日".repeat((MESSAGE_SIZE - 1) / 3));
        status(|| Err(Error::new(Status::Server, "a\0b")));
        assert_eq!(message(), "a\u{fffd}b");
    }
}
