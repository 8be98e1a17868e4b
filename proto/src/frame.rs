//! Splits the byte stream of a connection into frames.

use super::ProtoError;
use super::codec::LENGTH_BYTES;

/// The frame limit in bytes that servers and clients use by default (ZooKeeper's `jute.maxbuffer`).
pub const DEFAULT_FRAME_LIMIT: usize = 0xfffff;

/// The memory that an empty buffer keeps for the next frames, in bytes.
const KEPT: usize = 1 << 16;

/// Splits a byte stream into frames.
///
/// Call [`push`](Self::push) with received bytes, then call [`next`](Self::next) until it returns `None`. If the caller
/// follows this order, the buffer never contains more than one frame of the maximum length and the bytes of one push.
#[derive(Debug)]
pub struct Frames {
    limit: usize,
    buffer: Vec<u8>,
    /// The index in `buffer` of the first byte that `next` has not returned. For each frame, `next` advances this index
    /// and does not move the remaining bytes, because moving the bytes for each small frame would be slow.
    start: usize,
    /// The number of bytes that must be skipped and have not arrived yet.
    bytes_to_skip: usize,
}

impl Frames {
    /// Creates an empty stream. A frame may have at most `limit` bytes, without its length prefix.
    pub const fn new(limit: usize) -> Self {
        Self { limit, buffer: Vec::new(), start: 0, bytes_to_skip: 0 }
    }

    /// Changes the frame limit, for all frames that [`next`](Self::next) has not returned yet.
    pub const fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        let passed = self.bytes_to_skip.min(bytes.len());
        self.bytes_to_skip -= passed;
        let bytes = bytes.get(passed..).unwrap_or_default();
        self.buffer.drain(..self.start);
        self.start = 0;
        if self.buffer.is_empty() {
            // A long frame must not cost memory after it.
            self.buffer.shrink_to(KEPT);
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the body of the next frame, or `None` if the frame is incomplete.
    ///
    /// Fails if the length prefix is invalid. Every later call then fails too, because the start of the next frame is
    /// unknown. If a valid length exceeds the limit, the caller can skip the frame with [`skip`](Self::skip).
    #[expect(clippy::should_implement_trait, reason = "an iterator would end at None, but more frames can follow")]
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

    /// Returns the next four bytes without consuming them. A server needs these bytes to recognize four-letter words.
    pub fn peek(&self) -> Option<[u8; LENGTH_BYTES]> {
        self.buffer.get(self.start..).and_then(<[u8]>::first_chunk).copied()
    }

    /// Skips a frame that exceeds the limit. Returns the first `N` bytes of the frame. If these bytes have not arrived
    /// yet, returns `None` and skips nothing.
    pub fn skip<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (prefix, rest) = self.buffer.get(self.start..)?.split_first_chunk()?;
        let len = usize::try_from(i32::from_be_bytes(*prefix)).ok()?;
        let head = *rest.first_chunk()?;
        let here = rest.len().min(len);
        self.start += LENGTH_BYTES + here;
        self.bytes_to_skip = len - here;
        Some(head)
    }

    /// Overwrites the frames that [`next`](Self::next) has returned since the last push, because they contain a secret.
    pub fn erase_returned(&mut self) {
        self.buffer.get_mut(..self.start).unwrap_or_default().fill(0);
    }

    /// Discards all bytes. The next push begins a new stream.
    pub fn clear(&mut self) {
        self.buffer.clear();
        self.start = 0;
        self.bytes_to_skip = 0;
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
