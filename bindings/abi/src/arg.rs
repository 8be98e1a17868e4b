//! Arguments that point into the caller's memory: checked, and named where they are wrong.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
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

/// Where a struct goes that only ever gets more fields: as much of it as the caller knows.
pub struct Prefix<T> {
    place: NonNull<T>,
    size: usize,
}

impl<T: Copy> Prefix<T> {
    /// # Safety
    /// `place` is NULL, or the `size` bytes behind it can be written to as long as this lives; they may be unaligned and uninitialised.
    pub unsafe fn new(name: &str, place: *mut T, size: usize, least: usize) -> Result<Self> {
        let place = NonNull::new(place).ok_or_else(|| is_null(name))?;
        if size < least {
            return Err(invalid(format!("size of {name} is {size}; expected its sizeof, and at least {least}")));
        }
        Ok(Self { place, size: size.min(size_of::<T>()) })
    }

    /// How many bytes will be written.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Writes them.
    pub fn set(self, value: &T) {
        // SAFETY: both are that long, by the contract of `new`; bytes need no alignment.
        unsafe { self.place.as_ptr().cast::<u8>().copy_from_nonoverlapping((&raw const *value).cast(), self.size) };
    }
}

/// Where a text goes, as far as there is room.
pub struct Buffer {
    place: *mut c_char,
    size: usize,
    needed: Output<usize>,
}

impl Buffer {
    /// # Safety
    /// `place` is NULL, or the `size` bytes behind it can be written to as long as this lives; `needed` as for [`Output::new`].
    pub unsafe fn new(place: *mut c_char, size: usize, needed: *mut usize) -> Result<Self> {
        if place.is_null() && size > 0 {
            return Err(invalid(format!("buf is NULL, but {size} bytes long")));
        }
        // SAFETY: by the contract above.
        Ok(Self { place, size, needed: unsafe { Output::new("needed_out", needed)? } })
    }

    /// Writes the text there, with a NUL behind it, or only how many bytes that would take: BUFFER.
    pub fn set(self, text: &str) -> Result<()> {
        let needed = text.len() + 1;
        self.needed.set(needed);
        if needed > self.size {
            let message = format!("buf of {} bytes: {needed} are needed", self.size);
            return Err(Error::new(Status::Buffer, message));
        }
        // SAFETY: there is room for that many bytes, by the contract of `new`; bytes need no alignment.
        unsafe {
            self.place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
            self.place.add(text.len()).write(0);
        }
        Ok(())
    }
}

/// Several values; they need no alignment.
///
/// # Safety
/// `values` is NULL, or the `count` values behind it can be read if `count` is `limit` at most.
pub unsafe fn list<T: Copy>(name: &str, values: *const T, count: usize, limit: usize) -> Result<Vec<T>> {
    if count > limit {
        return Err(invalid(format!("{count} {name}: at most {limit} are allowed")));
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    if values.is_null() {
        return Err(invalid(format!("{name} is NULL, but count is {count}")));
    }
    // SAFETY: not null, and by the contract above.
    Ok((0..count).map(|at| unsafe { values.add(at).read_unaligned() }).collect())
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

/// The name of a file, which need not be UTF-8.
///
/// # Safety
/// `file` is NULL or a NUL-terminated string that stays as it is for `'a`.
pub unsafe fn file<'a>(name: &str, file: *const c_char) -> Result<&'a Path> {
    if file.is_null() {
        return Err(is_null(name));
    }
    // SAFETY: not null, and by the contract above.
    let bytes = unsafe { CStr::from_ptr(file) };
    Ok(Path::new(OsStr::from_bytes(bytes.to_bytes())))
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

/// A switch: 0 or 1.
pub fn switch(name: &str, value: i32) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(invalid(format!("{name} is {value}; expected 0 or 1"))),
    }
}

/// A pointer that must not be NULL.
pub fn is_null(name: &str) -> Error {
    invalid(format!("{name} is NULL"))
}

fn invalid(message: String) -> Error {
    Error::new(Status::Invalid, message)
}
