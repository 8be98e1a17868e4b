//! Arguments that point into the caller's memory: checked, and named where they are wrong.

use std::ffi::{CStr, c_char};
use std::ptr::NonNull;
use std::slice;
use std::time::Duration;

use zklock::{Error, Result, Status};

/// Where a result goes, once there is one.
pub struct Output<T>(NonNull<T>);

impl<T> Output<T> {
    /// # Safety
    /// `place` is NULL or can be written to as long as this lives; it may be unaligned and uninitialised.
    pub unsafe fn new(name: &str, place: *mut T) -> Result<Self> {
        NonNull::new(place).map(Self).ok_or_else(|| is_null(name))
    }

    /// Writes the result there.
    pub fn set(self, value: T) {
        // SAFETY: by the contract of `new`.
        unsafe { self.0.write_unaligned(value) };
    }
}

/// A text.
///
/// # Safety
/// `text` is NULL or a NUL-terminated string that stays as it is for `'a`.
pub unsafe fn text<'a>(name: &str, text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(is_null(name));
    }
    // SAFETY: not null, and by the contract above.
    let bytes = unsafe { CStr::from_ptr(text) };
    bytes.to_str().map_err(|error| {
        let at = error.valid_up_to();
        let byte = bytes.to_bytes().get(at).copied().unwrap_or_default();
        invalid(format!("{name} is not UTF-8: byte {byte:#04x} at position {at}"))
    })
}

/// Bytes; NULL stands for none if the length is 0.
///
/// # Safety
/// `data` is NULL, or the `len` bytes behind it stay as they are for `'a` if `len` is `limit` at most.
pub unsafe fn bytes<'a>(name: &str, data: *const u8, len: usize, limit: usize) -> Result<&'a [u8]> {
    if len > limit {
        return Err(invalid(format!("{name} of {len} bytes: at most {limit} are allowed")));
    }
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(invalid(format!("{name} is NULL, but {len} bytes long")));
    }
    // SAFETY: not null, and by the contract above.
    Ok(unsafe { slice::from_raw_parts(data, len) })
}

/// A time limit: -1 for none.
pub fn timeout(milliseconds: i64) -> Result<Option<Duration>> {
    match u64::try_from(milliseconds) {
        Ok(milliseconds) => Ok(Some(Duration::from_millis(milliseconds))),
        Err(_) if milliseconds == -1 => Ok(None),
        Err(_) => Err(invalid(format!("timeout_ms is {milliseconds}; expected 0 or more, or -1 for no limit"))),
    }
}

/// A setting in milliseconds.
pub fn milliseconds(name: &str, value: i32) -> Result<Duration> {
    let value = u64::try_from(value).map_err(|_| invalid(format!("{name} of {value} ms: can't be negative")))?;
    Ok(Duration::from_millis(value))
}

/// A pointer that must not be NULL.
pub fn is_null(name: &str) -> Error {
    invalid(format!("{name} is NULL"))
}

fn invalid(message: String) -> Error {
    Error::new(Status::Invalid, message)
}
