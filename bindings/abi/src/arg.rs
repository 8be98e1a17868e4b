//! Arguments that point to memory of the caller. Each function checks an argument. If the check fails, the error names this
//! argument. This module must not use handles.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::slice;
use std::time::Duration;

use zklock_core::error::{Error, Result, Status};

/// The memory for a result of type `T`.
pub struct Output<T>(NonNull<T>);

impl<T> Output<T> {
    /// # Safety
    ///
    /// `place` is NULL, or points to memory that can be written while this value exists. The memory may be unaligned and
    /// uninitialised.
    pub unsafe fn new(name: &str, place: *mut T) -> Result<Self> {
        NonNull::new(place).map(Self).ok_or_else(|| null_error(name))
    }

    /// Writes the result.
    pub fn set(self, value: T) {
        // SAFETY: the contract of `new` guarantees that the memory can be written.
        unsafe { self.0.write_unaligned(value) };
    }
}

/// The memory for an array of results.
pub struct OutputArray<T> {
    place: NonNull<T>,
    capacity: usize,
}

impl<T: Copy> OutputArray<T> {
    /// # Safety
    ///
    /// `place` is NULL, or points to `count` values that can be written while this value exists. The memory may be unaligned and
    /// uninitialised.
    pub unsafe fn new(name: &str, place: *mut T, count: usize) -> Result<Self> {
        if count == 0 {
            return Err(invalid(format!("count is 0; expected the number of elements of {name}, at least 1")));
        }
        Ok(Self { place: NonNull::new(place).ok_or_else(|| null_error(name))?, capacity: count })
    }

    /// Writes the first values, as many as the array can contain, and returns their number.
    pub fn set(self, values: &[T]) -> usize {
        let count = values.len().min(self.capacity);
        for (at, &value) in values.iter().take(count).enumerate() {
            // SAFETY: the contract of `new` guarantees that the array has more than `at` elements.
            unsafe { self.place.add(at).write_unaligned(value) };
        }
        count
    }
}

/// The memory for a struct that grows with new versions. [`set`](Self::set) writes only the fields that the caller knows.
pub struct SizedOutput<T> {
    place: NonNull<T>,
    size: usize,
}

impl<T: Copy> SizedOutput<T> {
    /// # Safety
    ///
    /// `place` is NULL, or points to `size` bytes that can be written while this value exists. The memory may be unaligned and
    /// uninitialised.
    pub unsafe fn new(name: &str, place: *mut T, size: usize, least: usize) -> Result<Self> {
        let place = NonNull::new(place).ok_or_else(|| null_error(name))?;
        if size < least {
            return Err(invalid(format!(
                "size of {name} is {size}; expected the sizeof of the struct, at least {least}"
            )));
        }
        Ok(Self { place, size: size.min(size_of::<T>()) })
    }

    /// The number of bytes that [`set`](Self::set) writes.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Writes the first `size` bytes of `value`.
    pub fn set(self, value: &T) {
        // SAFETY: the contract of `new` guarantees that both values have at least `size` bytes. Bytes need no alignment.
        unsafe { self.place.as_ptr().cast::<u8>().copy_from_nonoverlapping((&raw const *value).cast(), self.size) };
    }
}

/// The memory for a text, with a limited size.
pub struct Buffer {
    place: *mut c_char,
    size: usize,
    needed: Output<usize>,
}

impl Buffer {
    /// # Safety
    ///
    /// `place` is NULL, or points to `size` bytes that can be written while this value exists. For `needed`, the conditions of
    /// [`Output::new`] apply.
    pub unsafe fn new(place: *mut c_char, size: usize, needed: *mut usize) -> Result<Self> {
        if place.is_null() && size > 0 {
            return Err(invalid(format!("buf is NULL, but size is {size}; expected a buffer or size 0")));
        }
        // SAFETY: the contract above also guarantees the contract of `Output::new`.
        Ok(Self { place, size, needed: unsafe { Output::new("needed_out", needed)? } })
    }

    /// Writes the text with a terminating NUL, and the number of bytes that the text needs. If the text does not fit, this
    /// method writes only the number and fails with BUFFER.
    pub fn set(self, text: &str) -> Result<()> {
        let needed = text.len() + 1;
        self.needed.set(needed);
        if needed > self.size {
            let message = format!("buf has {} bytes; expected at least {needed}", self.size);
            return Err(Error::new(Status::Buffer, message));
        }
        // SAFETY: the contract of `new` guarantees that `place` has room for these bytes. Bytes need no alignment.
        unsafe {
            self.place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
            self.place.add(text.len()).write(0);
        }
        Ok(())
    }
}

/// Copies `count` values from an array. The array needs no alignment.
///
/// # Safety
///
/// If `count` is at most `limit`, `values` is NULL or points to `count` readable values.
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
    // SAFETY: the pointer is not NULL, and the contract above guarantees that the memory can be read.
    Ok((0..count).map(|at| unsafe { values.add(at).read_unaligned() }).collect())
}

/// Reads a UTF-8 string.
///
/// # Safety
///
/// `text` is NULL, or a NUL-terminated string that does not change during `'a`.
pub unsafe fn text<'a>(name: &str, text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(null_error(name));
    }
    // SAFETY: the pointer is not NULL, and the contract above guarantees that the memory can be read.
    let bytes = unsafe { CStr::from_ptr(text) };
    bytes.to_str().map_err(|error| {
        let at = error.valid_up_to();
        let byte = bytes.to_bytes().get(at).copied().unwrap_or_default();
        invalid(format!("{name} is not UTF-8: byte {byte:#04x} at position {at}"))
    })
}

/// Reads a UTF-8 string, or returns `None` for NULL.
///
/// # Safety
///
/// `text` is NULL, or a NUL-terminated string that does not change during `'a`.
pub unsafe fn optional_text<'a>(name: &str, text: *const c_char) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the contract above is also the contract of `text`.
    unsafe { self::text(name, text).map(Some) }
}

/// Reads the name of a file. The name need not be UTF-8.
///
/// # Safety
///
/// `file` is NULL, or a NUL-terminated string that does not change during `'a`.
pub unsafe fn file<'a>(name: &str, file: *const c_char) -> Result<&'a Path> {
    if file.is_null() {
        return Err(null_error(name));
    }
    // SAFETY: the pointer is not NULL, and the contract above guarantees that the memory can be read.
    let bytes = unsafe { CStr::from_ptr(file) };
    Ok(Path::new(OsStr::from_bytes(bytes.to_bytes())))
}

/// Reads bytes. If the length is 0, `data` may be NULL.
///
/// # Safety
///
/// If `len` is at most `limit`, `data` is NULL or points to `len` bytes that do not change during `'a`.
pub unsafe fn bytes<'a>(name: &str, data: *const c_void, len: usize, limit: usize) -> Result<&'a [u8]> {
    if len > limit {
        return Err(invalid(format!("{name} of {len} bytes: at most {limit} are allowed")));
    }
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(invalid(format!("{name} is NULL, but its length is {len}")));
    }
    // SAFETY: the pointer is not NULL, and the contract above guarantees that the memory can be read.
    Ok(unsafe { slice::from_raw_parts(data.cast(), len) })
}

/// Converts a timeout in milliseconds. The value -1 means no limit.
pub fn timeout(milliseconds: i64) -> Result<Option<Duration>> {
    match u64::try_from(milliseconds) {
        Ok(milliseconds) => Ok(Some(Duration::from_millis(milliseconds))),
        Err(_) if milliseconds == -1 => Ok(None),
        Err(_) => Err(invalid(format!("timeout_ms is {milliseconds}; expected 0 or more, or -1 for no limit"))),
    }
}

/// Converts a setting in milliseconds. The message of a failure says that the value must be at least `least`.
pub fn milliseconds(name: &str, value: i32, least: u32) -> Result<Duration> {
    let value = u64::try_from(value).map_err(|_| invalid(format!("{name} is {value} ms; expected {least} or more")))?;
    Ok(Duration::from_millis(value))
}

/// Converts a switch, which is 0 or 1, into a `bool`.
pub fn switch(name: &str, value: i32) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(invalid(format!("{name} is {value}; expected 0 or 1"))),
    }
}

/// Returns the error for a pointer that must not be NULL.
pub fn null_error(name: &str) -> Error {
    invalid(format!("{name} is NULL"))
}

fn invalid(message: String) -> Error {
    Error::new(Status::Invalid, message)
}
