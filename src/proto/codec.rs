//! The primitives every record is made of: big-endian numbers, length-prefixed bytes, counted vectors.

use super::ProtoError;

/// The length that stands for a null string, buffer or vector.
const NULL: i32 = -1;
/// Bytes of a frame's length prefix.
pub(super) const LENGTH_BYTES: usize = 4;
/// No frame can be longer: its length is sent as an `i32`.
const MAX_FRAME: usize = i32::MAX as usize;

/// Reads fields off the front of a byte slice; `what` names the field in errors.
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

    /// What has not been read yet.
    pub(super) fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Refuses bytes after the end of a record.
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

    /// A number that stands for one of a few things.
    pub(super) fn choice<T: TryFrom<i32, Error = ProtoError>>(&mut self, what: &'static str) -> Result<T, ProtoError> {
        self.i32(what)?.try_into()
    }

    /// A null buffer reads as an empty one.
    pub(super) fn buffer(&mut self, what: &'static str) -> Result<Vec<u8>, ProtoError> {
        self.bytes(what).map(<[u8]>::to_vec)
    }

    /// A buffer, or null.
    pub(super) fn nullable(&mut self, what: &'static str) -> Result<Option<Vec<u8>>, ProtoError> {
        let is_null = self.rest.starts_with(&NULL.to_be_bytes());
        self.buffer(what).map(|bytes| (!is_null).then_some(bytes))
    }

    /// A null string reads as an empty one.
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

    /// A counted vector whose elements take at least `min_bytes` each; null reads as empty.
    ///
    /// The count is checked against the bytes left, so a claim of billions fails before the first element.
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
        self.i32(saturate(bytes.len()));
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
        self.i32(saturate(elements.len()));
        for each in elements {
            element(self, each);
        }
    }
}

/// Appends one frame: the length, then what `body` writes.
///
/// For small records only. A body too long for its length prefix would go out with the largest length there is,
/// which every peer refuses; what can really grow goes through [`try_frame`].
pub(super) fn frame(out: &mut Vec<u8>, body: impl FnOnce(&mut Writer<'_>)) {
    let start = open(out);
    body(&mut Writer { out });
    close(out, start);
}

/// Appends one frame, or leaves `out` as it was when `body` fails or is too long for the length prefix.
pub(super) fn try_frame(
    out: &mut Vec<u8>,
    body: impl FnOnce(&mut Writer<'_>) -> Result<(), ProtoError>,
) -> Result<(), ProtoError> {
    let start = open(out);
    let written = body(&mut Writer { out }).and_then(|()| check_length(out.len() - start - LENGTH_BYTES));
    match written {
        Ok(()) => close(out, start),
        Err(_) => out.truncate(start),
    }
    written
}

fn open(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    start
}

fn close(out: &mut [u8], start: usize) {
    if let Some((length, body)) = out.get_mut(start..).and_then(<[u8]>::split_first_chunk_mut) {
        *length = saturate(body.len()).to_be_bytes();
    }
}

fn check_length(len: usize) -> Result<(), ProtoError> {
    if len > MAX_FRAME {
        return Err(ProtoError::TooLong { what: "frame", len, limit: MAX_FRAME });
    }
    Ok(())
}

/// A length as the wire has it. One that does not fit belongs to a frame that does not fit either, and
/// [`check_length`] refuses that as a whole.
fn saturate(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}

/// An enum whose variants are numbers on the wire: the enum, and `TryFrom<i32>` naming the field it is read from.
macro_rules! wire_enum {
    ($(#[$meta:meta])* $what:literal $name:ident { $($(#[$doc:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(i32)]
        pub enum $name {
            $($(#[$doc])* $variant = $value,)*
        }

        impl $name {
            /// Every variant there is.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The number that stands for it on the wire.
            pub const fn to_wire(self) -> i32 {
                self as i32
            }
        }

        impl TryFrom<i32> for $name {
            type Error = $crate::proto::ProtoError;

            fn try_from(value: i32) -> Result<Self, Self::Error> {
                match value {
                    $($value => Ok(Self::$variant),)*
                    _ => Err($crate::proto::ProtoError::Unknown { what: $what, value }),
                }
            }
        }
    };
}

pub(super) use wire_enum;
