//! An in-memory ZooKeeper server: for first steps, for unit tests of programs that use locks, and as the ensemble of
//! zklock's simulation. It keeps nothing on disk and is alone; production runs on a real ensemble.
//!
//! The core is pure: it is handed connections, bytes and the time, and hands back what to send.

mod acl;
mod draft;
mod front;
mod leader;
mod replica;
mod server;
mod settings;
mod tree;
mod watch;
mod words;

pub use front::{Server, SessionInfo, Target};
pub use leader::{Body, Leader, Origin, Txn};
pub use replica::{Action, Output, Replica, Session, Upcall};
pub use server::Standalone;
pub use settings::Settings;
pub use tree::{Change, Happening, Kind, Node, Tree};

/// A connection, by a number that is never given out twice.
pub type ConnectionId = u64;
/// A server of an ensemble.
pub type ServerId = u32;

/// So that the tour in there runs, and what other pages have in Rust.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../../docs/first-steps/rust.md")]
struct Readme;
