//! The texts of the statuses, and the message of the last failure. The macros `ZKL_E_*` in the header are generated from the
//! status table of the core. This module must not use other modules of this crate.

use std::ffi::{CStr, c_char};

use zklock::Status;
use zklock_abi::boundary;

/// The result of a call: ZKL_OK, or a negative ZKL_E_*. A status number never changes and is never reused.
pub type zkl_status = i32;

pub(crate) const ZKL_OK: zkl_status = 0;

/// Reports the version of the library that the program uses at run time, for example "0.1.0".
///
/// Returns: a static string, never NULL.
/// Does not block. Any thread may call this function. The call does not change the last error message.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Reports the version of the library that the program runs with. The version is a number: 10000 * major + 100 * minor +
/// patch. Two versions can be compared as numbers. The macro ZKL_VERSION_NUMBER is the version number of the header that the
/// program was compiled with.
///
/// Returns: the number, for example 100 for version 0.1.0.
/// Does not block. Any thread may call this function. The call does not change the last error message.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_version_number() -> i32 {
    VERSION_NUMBER
}

const VERSION_NUMBER: i32 = 10_000 * number(env!("CARGO_PKG_VERSION_MAJOR"))
    + 100 * number(env!("CARGO_PKG_VERSION_MINOR"))
    + number(env!("CARGO_PKG_VERSION_PATCH"));

#[allow(clippy::panic, reason = "runs in the compiler, which reports the panic as an error")]
const fn number(text: &str) -> i32 {
    match i32::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => panic!("cargo gives a number"),
    }
}

/// Returns a short text that describes a status. The text does not end with a full stop.
///
/// Returns: a static string, never NULL; "unknown status" if `status` is not a known number.
/// Does not block. Any thread may call this function. The call does not change the last error message.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_strerror(status: i32) -> *const c_char {
    match Status::ALL.iter().position(|known| known.number() == status) {
        Some(index) => text(index).as_ptr(),
        None if status == ZKL_OK => c"success".as_ptr(),
        None => c"unknown status".as_ptr(),
    }
}

/// Describes the last failed call on the calling thread. The message names the values and servers that were involved. The
/// message is for people and logs. A program should test the status, not the message. Successful calls and *_free functions do
/// not change the message.
///
/// Returns: a string, never NULL. The string is empty if no call on this thread has failed yet. The string is in UTF-8 and has
/// at most 1023 bytes. The string stays valid until the thread calls another function of zklock, except zkl_version,
/// zkl_strerror, zkl_status_errno and zkl_last_error_message. Does not block. Each thread has its own message.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_last_error_message() -> *const c_char {
    boundary::last_error()
}

/// Converts a status into the closest errno value, for example ETIMEDOUT, ECANCELED, EPERM or EDEADLK. The function returns the
/// errno value, and does not set errno.
///
/// Returns: the errno value; 0 for ZKL_OK; EINVAL if `status` is not a known number.
/// Does not block. Any thread may call this function. The call does not change the last error message.
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

/// The texts of the status table. Each text ends with a NUL, and the next text follows directly.
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
