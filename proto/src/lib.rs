//! Encodes and decodes the records of ZooKeeper's wire protocol.
//!
//! The module does not use time, sockets or threads. The module can encode and decode every record. The client of this
//! crate encodes requests and decodes replies. The in-memory server decodes requests and encodes replies.
//!
//! A connection carries a sequence of frames. A frame consists of a 4-byte length and a body of that length. [`Frames`]
//! splits the incoming bytes into frames. Every `encode` function appends one complete frame with its length. Every
//! `decode` function takes the body of one frame.
//!
//! The first frame from a client is a [`ConnectRequest`], and the first frame from a server is a [`ConnectResponse`].
//! After the handshake, a client sends [`Request`]s. Every later frame from the server starts with a [`ReplyHeader`].
//! The xid in this header distinguishes a [`Response`] from a [`WatchEvent`], and identifies the request to which a
//! response belongs.
//!
//! The decoders do not trust their input. For invalid input, a decoder returns a [`ProtoError`] instead of panicking.
//! The size of the input limits the memory that a decoder allocates. A large count in the input does not make the
//! decoder allocate more memory.

#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod code;
mod codec;
mod error;
mod event;
mod frame;
mod record;
mod request;
mod response;

pub use code::{Code, Refusal};
pub use error::ProtoError;
pub use event::{EventKind, WatchEvent};
pub use frame::{DEFAULT_FRAME_LIMIT, Frames};
pub use record::{Acl, ConnectRequest, ConnectResponse, Stat};
pub use request::{AddWatchMode, CreateMode, OpCode, Request, RequestHeader, WatcherType};
pub use response::{Identity, MultiResult, ReplyHeader, Response, encode_error};

/// The xid of a notification. When a watch fires, the server sends a notification, which does not answer any request.
pub const XID_NOTIFICATION: i32 = -1;
/// The xid of a ping and of the reply to a ping.
pub const XID_PING: i32 = -2;
/// The xid of an auth packet and of the reply to an auth packet.
pub const XID_AUTH: i32 = -4;
/// The xid of the request that restores watches after a reconnect, and of the reply to this request.
pub const XID_SET_WATCHES: i32 = -8;
