//! Statuses: their texts, and the message of the last failure. The numbers `ZKL_E_*` in the header are made from the table
//! in the core.

use std::ffi::{CStr, c_char};

use zklock::Status;
use zklock_abi::guard;

/// How a call ended: ZKL_OK, or a negative ZKL_E_*. Numbers are never reused.
pub type zkl_status = i32;

pub(crate) const ZKL_OK: zkl_status = 0;

/// The version of the library that runs, like "0.1.0".
///
/// Returns: a static text, never NULL.
/// Does not block; any thread; leaves the last error message alone.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// What a status means, in one sentence without a full stop.
///
/// Returns: a static text, never NULL; "unknown status" for a number that is none.
/// Does not block; any thread; leaves the last error message alone.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_strerror(status: i32) -> *const c_char {
    match Status::ALL.iter().position(|known| known.number() == status) {
        Some(index) => text(index).as_ptr(),
        None if status == ZKL_OK => c"success".as_ptr(),
        None => c"unknown status".as_ptr(),
    }
}

/// What went wrong in this thread's last call of zklock, with the values and the servers concerned: for people and logs.
/// Programs go by the status.
///
/// Returns: a text, never NULL; empty if the last call succeeded. It is UTF-8, cut after 1023 bytes, and stays valid until
/// the thread's next call of zklock, except zkl_version, zkl_strerror, zkl_status_errno and this one.
/// Does not block; each thread has its own.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_last_error_message() -> *const c_char {
    guard::last_error()
}

/// The errno value that comes nearest to a status: ETIMEDOUT, ECANCELED, EPERM, EDEADLK and so on. It is returned, and not
/// written to errno.
///
/// Returns: 0 for ZKL_OK, EINVAL for a number that is no status.
/// Does not block; any thread; leaves the last error message alone.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_status_errno(status: i32) -> i32 {
    match status {
        ZKL_OK => 0,
        _ => Status::from_number(status).map_or(libc::EINVAL, Status::errno),
    }
}

fn text(index: usize) -> &'static CStr {
    let text = TEXTS.split_inclusive(|&byte| byte == 0).nth(index).unwrap_or_default();
    CStr::from_bytes_with_nul(text).unwrap_or_default()
}

/// The table's texts as C wants them, one after the other.
static TEXTS: [u8; TEXTS_SIZE] = texts();

#[allow(clippy::indexing_slicing, reason = "runs in the compiler, which refuses a wrong index")]
const TEXTS_SIZE: usize = {
    let (mut size, mut status) = (0, 0);
    while status < Status::ALL.len() {
        size += Status::ALL[status].text().len() + 1;
        status += 1;
    }
    size
};

#[allow(clippy::indexing_slicing, reason = "runs in the compiler, which refuses a wrong index")]
const fn texts() -> [u8; TEXTS_SIZE] {
    let (mut texts, mut at, mut status) = ([0; TEXTS_SIZE], 0, 0);
    while status < Status::ALL.len() {
        let text = Status::ALL[status].text().as_bytes();
        let mut byte = 0;
        while byte < text.len() {
            texts[at] = text[byte];
            at += 1;
            byte += 1;
        }
        at += 1;
        status += 1;
    }
    texts
}
