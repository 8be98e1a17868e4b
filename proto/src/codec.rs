//! The primitive values of the wire format: big-endian numbers, length-prefixed bytes and counted vectors.

use super::ProtoError;

/// The length that encodes a null string, buffer or vector.
const NULL: i32 = -1;
/// The size in bytes of the length prefix of a frame.
pub(super) const LENGTH_BYTES: usize = 4;
/// The largest length of a frame that fits into the length prefix, which is an `i32`.
const MAX_FRAME: usize = i32::MAX as usize;

/// Reads fields from the front of a byte slice. The parameter `what` of each method is the name of the field for error
/// messages.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the bytes that have not been read.
    pub(super) fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Fails if bytes follow the end of the record.
    pub(super) fn finish(self, what: &'static str) -> Result<(), ProtoError> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(ProtoError::Trailing { what, left }),
        }
    }

    pub(super) fn bool(&mut self, what: &'static str) -> Result<bool, ProtoError> {
        self.array::<1>(what).map(|[byte]| byte != 0)
    }

    pub(super) fn i32(&mut self, what: &'static str) -> Result<i32, ProtoError> {
        self.array(what).map(i32::from_be_bytes)
    }

    pub(super) fn i64(&mut self, what: &'static str) -> Result<i64, ProtoError> {
        self.array(what).map(i64::from_be_bytes)
    }

    /// Reads an `i32` and converts it to an enum.
    pub(super) fn enum_value<T: TryFrom<i32, Error = ProtoError>>(
        &mut self,
        what: &'static str,
    ) -> Result<T, ProtoError> {
        self.i32(what)?.try_into()
    }

    /// Reads a buffer. A null buffer becomes an empty buffer.
    pub(super) fn buffer(&mut self, what: &'static str) -> Result<Vec<u8>, ProtoError> {
        self.bytes(what).map(<[u8]>::to_vec)
    }

    /// Reads a buffer that may be null.
    pub(super) fn nullable(&mut self, what: &'static str) -> Result<Option<Vec<u8>>, ProtoError> {
        let is_null = self.rest.starts_with(&NULL.to_be_bytes());
        self.buffer(what).map(|bytes| (!is_null).then_some(bytes))
    }

    /// Reads a string. A null string becomes an empty string.
    pub(super) fn string(&mut self, what: &'static str) -> Result<String, ProtoError> {
        let bytes = self.bytes(what)?;
        match str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => {
                let offset = error.valid_up_to();
                let byte = bytes.get(offset).copied().unwrap_or_default();
                Err(ProtoError::NotUtf8 { what, offset, byte })
            }
        }
    }

    pub(super) fn strings(&mut self, what: &'static str) -> Result<Vec<String>, ProtoError> {
        self.vector(what, LENGTH_BYTES, |reader| reader.string(what))
    }

    /// Reads a counted vector whose elements take at least `min_bytes` bytes each. A null vector becomes an empty
    /// vector.
    ///
    /// Before the function reads an element, it compares the count with the number of remaining bytes. A wrong count
    /// therefore cannot make the function allocate too much memory.
    pub(super) fn vector<T>(
        &mut self,
        what: &'static str,
        min_bytes: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, ProtoError>,
    ) -> Result<Vec<T>, ProtoError> {
        let count = self.length(what)?;
        let limit = self.rest.len() / min_bytes;
        if count > limit {
            return Err(ProtoError::TooLong { what, len: count, limit });
        }
        (0..count).map(|_| element(self)).collect()
    }

    fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], ProtoError> {
        let needed = self.length(what)?;
        let Some((bytes, rest)) = self.rest.split_at_checked(needed) else {
            return Err(ProtoError::Truncated { what, needed, left: self.rest.len() });
        };
        self.rest = rest;
        Ok(bytes)
    }

    fn length(&mut self, what: &'static str) -> Result<usize, ProtoError> {
        match self.i32(what)? {
            NULL => Ok(0),
            value => usize::try_from(value).map_err(|_| ProtoError::Negative { what, value }),
        }
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], ProtoError> {
        let Some((bytes, rest)) = self.rest.split_first_chunk() else {
            return Err(ProtoError::Truncated { what, needed: N, left: self.rest.len() });
        };
        self.rest = rest;
        Ok(*bytes)
    }
}

/// Appends fields to a buffer.
pub(super) struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl Writer<'_> {
    pub(super) fn bool(&mut self, value: bool) {
        self.out.push(u8::from(value));
    }

    pub(super) fn i32(&mut self, value: i32) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    pub(super) fn i64(&mut self, value: i64) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    pub(super) fn buffer(&mut self, bytes: &[u8]) {
        self.i32(wire_length(bytes.len()));
        self.out.extend_from_slice(bytes);
    }

    pub(super) fn nullable(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.buffer(bytes),
            None => self.i32(NULL),
        }
    }

    pub(super) fn string(&mut self, text: &str) {
        self.buffer(text.as_bytes());
    }

    pub(super) fn strings(&mut self, texts: &[String]) {
        self.vector(texts, |writer, text| writer.string(text));
    }

    pub(super) fn vector<T>(&mut self, elements: &[T], mut element: impl FnMut(&mut Self, &T)) {
        self.i32(wire_length(elements.len()));
        for each in elements {
            element(self, each);
        }
    }
}

/// Appends one frame, which consists of a length and the output of `body`.
///
/// This function is for small records only. If the body is too long for the length prefix, the function writes the
/// largest possible length, and every peer refuses this frame. Use [`try_frame`] for records without a size limit.
pub(super) fn frame(out: &mut Vec<u8>, body: impl FnOnce(&mut Writer<'_>)) {
    let start = begin_frame(out);
    body(&mut Writer { out });
    end_frame(out, start);
}

/// Appends one frame. If `body` fails or its output is too long for the length prefix, `out` does not change.
pub(super) fn try_frame(
    out: &mut Vec<u8>,
    body: impl FnOnce(&mut Writer<'_>) -> Result<(), ProtoError>,
) -> Result<(), ProtoError> {
    let start = begin_frame(out);
    let written = body(&mut Writer { out }).and_then(|()| check_length(out.len() - start - LENGTH_BYTES));
    match written {
        Ok(()) => end_frame(out, start),
        Err(_) => out.truncate(start),
    }
    written
}

fn begin_frame(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    start
}

fn end_frame(out: &mut [u8], start: usize) {
    if let Some((length, body)) = out.get_mut(start..).and_then(<[u8]>::split_first_chunk_mut) {
        *length = wire_length(body.len()).to_be_bytes();
    }
}

fn check_length(len: usize) -> Result<(), ProtoError> {
    if len > MAX_FRAME {
        return Err(ProtoError::TooLong { what: "frame", len, limit: MAX_FRAME });
    }
    Ok(())
}

/// Converts a length to the `i32` of the wire format. A length that does not fit becomes `i32::MAX`, and
/// [`check_length`] then refuses the frame.
fn wire_length(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}

/// Defines an enum whose variants are numbers in the wire format. If `TryFrom<i32>` fails, the error names the field.
macro_rules! wire_enum {
    ($(#[$meta:meta])* $what:literal $name:ident { $($(#[$doc:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(i32)]
        pub enum $name {
            $($(#[$doc])* $variant = $value,)*
        }

        impl $name {
            /// All variants.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the number of the variant in the wire format.
            pub const fn to_wire(self) -> i32 {
                self as i32
            }
        }

        impl TryFrom<i32> for $name {
            type Error = $crate::ProtoError;

            fn try_from(value: i32) -> Result<Self, Self::Error> {
                match value {
                    $($value => Ok(Self::$variant),)*
                    _ => Err($crate::ProtoError::Unknown { what: $what, value }),
                }
            }
        }
    };
}

pub(super) use wire_enum;
