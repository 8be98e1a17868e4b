//! The wire records of ZooKeeper: what travels between a client and a server, as plain values.
//!
//! Nothing here knows about time, sockets or threads. Every record goes both ways, since the client half of
//! the crate encodes requests and decodes replies while an in-memory server does the opposite.
//!
//! A connection carries frames: a 4-byte length and that many bytes. [`Frames`] cuts the incoming stream;
//! every `encode` here appends one whole frame, length included, and every `decode` takes what is inside one.
//! The first frame each way is a [`ConnectRequest`] and its [`ConnectResponse`]. After them a client sends
//! [`Request`]s, and whatever comes back starts with a [`ReplyHeader`]: its xid tells a [`Response`] from a
//! [`WatchEvent`], and which request the response answers.
//!
//! Bytes off the wire are never trusted: a decoder answers with a [`ProtoError`], it does not panic, and what it
//! allocates is bounded by the bytes it was given rather than by the counts they claim.

#![forbid(unsafe_code)]

mod code;
mod codec;
mod error;
mod event;
mod frame;
mod record;
mod request;
mod response;

pub use code::Code;
pub use error::ProtoError;
pub use event::{EventKind, WatchEvent};
pub use frame::{DEFAULT_FRAME_LIMIT, Frames};
pub use record::{Acl, ConnectRequest, ConnectResponse, Stat};
pub use request::{AddWatchMode, CreateMode, OpCode, Request, RequestHeader, WatcherType};
pub use response::{Identity, MultiResult, ReplyHeader, Response, encode_error};

/// The xid of a frame the server sends unasked: a watch fired.
pub const XID_NOTIFICATION: i32 = -1;
/// The xid of a ping and of its reply.
pub const XID_PING: i32 = -2;
/// The xid of an auth packet and of its reply.
pub const XID_AUTH: i32 = -4;
/// The xid of the request that re-registers watches after a reconnect, and of its reply.
pub const XID_SET_WATCHES: i32 = -8;
