//! What can be wrong with a record.

use super::OpCode;

/// What bytes off the wire can be wrong about, and what a record can hold that the wire cannot.
///
/// Every variant names the field (`what`) and the offending value. After one of these on a live connection the
/// two sides no longer agree on what the bytes mean: the only cure is to close it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtoError {
    /// The bytes end inside a field.
    #[error("{what}: needs {needed} bytes, {left} are left")]
    Truncated {
        /// The field.
        what: &'static str,
        /// How many bytes it takes.
        needed: usize,
        /// How many there are.
        left: usize,
    },
    /// A length or a count is larger than it may be.
    #[error("{what}: length {len} is over the limit of {limit}")]
    TooLong {
        /// The field.
        what: &'static str,
        /// The length claimed.
        len: usize,
        /// The largest length that could be right.
        limit: usize,
    },
    /// A length or a count is below zero, and not the -1 that stands for null.
    #[error("{what}: negative length {value}")]
    Negative {
        /// The field.
        what: &'static str,
        /// The length claimed.
        value: i32,
    },
    /// A string is not UTF-8.
    #[error("{what}: not UTF-8, byte {byte:#04x} at offset {offset}")]
    NotUtf8 {
        /// The field.
        what: &'static str,
        /// Where in the string UTF-8 ends.
        offset: usize,
        /// The byte found there.
        byte: u8,
    },
    /// A number stands for nothing known here.
    #[error("{what}: unknown value {value}")]
    Unknown {
        /// The field.
        what: &'static str,
        /// The value found.
        value: i32,
    },
    /// The record is complete and bytes follow it.
    #[error("{what}: {left} bytes left over after the end")]
    Trailing {
        /// The record.
        what: &'static str,
        /// How many bytes follow.
        left: usize,
    },
    /// A request that a multi cannot carry was put into one.
    #[error("multi: {op:?} cannot be part of it")]
    NotInMulti {
        /// What was put in.
        op: OpCode,
    },
    /// A result that a multi reply cannot carry was put into one.
    #[error("multi reply: {response} cannot be part of it")]
    NotInMultiReply {
        /// The kind of response that was put in.
        response: &'static str,
    },
}
