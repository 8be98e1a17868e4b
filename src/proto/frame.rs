//! Cutting the byte stream of a connection into frames.

use super::ProtoError;
use super::codec::LENGTH_BYTES;

/// The largest frame that peers accept unless told otherwise: the default of their `jute.maxbuffer`.
pub const DEFAULT_FRAME_LIMIT: usize = 0xfffff;

/// Cuts a byte stream into frames.
///
/// [`push`](Self::push) what arrives, then take frames with [`next`](Self::next) until there is none. Used that
/// way, what is held stays within one frame of the limit and one push.
#[derive(Debug)]
pub struct Frames {
    limit: usize,
    buffer: Vec<u8>,
    /// Where in `buffer` the first byte not yet handed out is. Frames advance it rather than shift the buffer,
    /// so that many small frames in one push cost no more than their bytes.
    start: usize,
    /// How many of the bytes to come belong to a frame that is passed over.
    skipped: usize,
}

impl Frames {
    /// An empty stream whose frames are at most `limit` bytes long, without their length prefix.
    pub const fn new(limit: usize) -> Self {
        Self { limit, buffer: Vec::new(), start: 0, skipped: 0 }
    }

    /// Takes in the bytes that arrived next.
    pub fn push(&mut self, bytes: &[u8]) {
        let passed = self.skipped.min(bytes.len());
        self.skipped -= passed;
        let bytes = bytes.get(passed..).unwrap_or_default();
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame's body, or `None` while it has not all arrived.
    ///
    /// A length no frame can have is an error, and stays one: where the frame after it begins is anyone's guess. One that is only
    /// too long can be passed over with [`skip`](Self::skip).
    #[expect(clippy::should_implement_trait, reason = "an iterator would end for good where this waits for more")]
    pub fn next(&mut self) -> Result<Option<Vec<u8>>, ProtoError> {
        let Some((prefix, rest)) = self.buffer.get(self.start..).and_then(<[u8]>::split_first_chunk) else {
            return Ok(None);
        };
        let len = self.check(i32::from_be_bytes(*prefix))?;
        let Some(body) = rest.get(..len) else {
            return Ok(None);
        };
        let body = body.to_vec();
        self.start += LENGTH_BYTES + len;
        Ok(Some(body))
    }

    /// The four bytes that come next, whatever they mean: a server may be spoken to in words of four letters.
    pub fn peek(&self) -> Option<[u8; LENGTH_BYTES]> {
        self.buffer.get(self.start..).and_then(<[u8]>::first_chunk).copied()
    }

    /// Passes over the next frame, which is too long to be taken in, once its first `N` bytes are there; gives these.
    pub fn skip<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (prefix, rest) = self.buffer.get(self.start..)?.split_first_chunk()?;
        let len = usize::try_from(i32::from_be_bytes(*prefix)).ok()?;
        let head = *rest.first_chunk()?;
        let here = rest.len().min(len);
        self.start += LENGTH_BYTES + here;
        self.skipped = len - here;
        Some(head)
    }

    /// Forgets everything: the next push begins a new stream.
    pub fn clear(&mut self) {
        self.buffer.clear();
        self.start = 0;
        self.skipped = 0;
    }

    fn check(&self, length: i32) -> Result<usize, ProtoError> {
        let what = "frame";
        let len = usize::try_from(length).map_err(|_| ProtoError::Negative { what, value: length })?;
        if len > self.limit {
            return Err(ProtoError::TooLong { what, len, limit: self.limit });
        }
        Ok(len)
    }
}
