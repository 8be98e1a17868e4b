//! Errors of encoding and decoding.

/// An error in received bytes, or a record that the wire format cannot represent.
///
/// Most variants contain the name of the field (`what`) and the invalid value. After an error in received bytes, the
/// client and the server no longer agree on the position in the stream, so the caller must close the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtoError {
    /// The bytes end inside a field.
    #[error("{what}: needs {needed} bytes, {left} are left")]
    Truncated {
        /// The field.
        what: &'static str,
        /// The number of bytes that the field takes.
        needed: usize,
        /// The number of bytes that remain.
        left: usize,
    },
    /// A length or a count exceeds its limit.
    #[error("{what}: length {len} is over the limit of {limit}")]
    TooLong {
        /// The field.
        what: &'static str,
        /// The length or count in the record.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// A length or a count is negative. The value -1 is allowed only where it encodes null.
    #[error("{what}: negative length {value}")]
    Negative {
        /// The field.
        what: &'static str,
        /// The length or count in the record.
        value: i32,
    },
    /// A string is not UTF-8.
    #[error("{what}: not UTF-8, byte {byte:#04x} at offset {offset}")]
    NotUtf8 {
        /// The field.
        what: &'static str,
        /// The offset of the first invalid byte in the string.
        offset: usize,
        /// The invalid byte.
        byte: u8,
    },
    /// A number has no known meaning.
    #[error("{what}: unknown value {value}")]
    Unknown {
        /// The field.
        what: &'static str,
        /// The number.
        value: i32,
    },
    /// Bytes follow the end of the record.
    #[error("{what}: {left} bytes left over after the end")]
    Trailing {
        /// The record.
        what: &'static str,
        /// The number of bytes after the record.
        left: usize,
    },
    /// A multi request contains an operation that is not allowed in a multi request.
    #[error("multi: {op} cannot be part of a multi request")]
    NotInMulti {
        /// The name of the operation.
        op: String,
    },
    /// A multi reply contains a result that is not allowed in a multi reply.
    #[error("multi reply: {response} cannot be part of a multi reply")]
    NotInMultiReply {
        /// The kind of the response.
        response: &'static str,
    },
}
