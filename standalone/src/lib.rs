//! An in-memory ZooKeeper server: for first steps, for unit tests of programs that use locks, and for the simulation of
//! zklock. The server writes nothing to disk and does not replicate. Use a real ensemble in production.
//!
//! The core of the server does no I/O: it receives connections, bytes and the time, and returns the bytes to send.

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod acl;
mod four_letter_words;
mod leader;
mod replica;
mod sasl;
mod server_core;
mod settings;
mod tcp;
mod transaction;
mod tree;
mod watch;

pub use leader::{Leader, Origin, Txn, TxnBody};
pub use replica::{ConnectionAction, LeaderRequest, Replica, ReplicaOutput, Session};
pub use sasl::{SaslFault, SaslSide, sasl_proof};
pub use server_core::ServerCore;
pub use settings::Settings;
pub use tcp::{Server, SessionInfo, Target};
pub use tree::{Change, Node, NodeEvent, NodeKind, Tree};

/// The number of a connection. The server never uses a number twice.
pub type ConnectionId = u64;
/// The number of a server in an ensemble.
pub type ServerId = u32;

/// Lets `cargo test` run the Rust examples in the Markdown pages.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../../docs/first-steps/rust.md")]
struct Readme;
