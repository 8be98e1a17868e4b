//! What zklock's tests stand on: real ZooKeeper servers, a TCP proxy that cuts, freezes and delays, a raw client that
//! witnesses the server's state without going through the code under test, and processes that use other libraries' locks.
//!
//! Everything here belongs to one test: own ports, own directories, and nothing left behind when the test ends, however it
//! ends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a rig that cannot do its work must fail the test at once and say where"
)]

mod ensemble;
mod network;
mod peer;
mod port;
mod process;
mod proxy;
mod raw;
mod zookeeper;

pub use ensemble::Ensemble;
pub use network::{Host, Network};
pub use peer::{CuratorPeer, CuratorVersion, KazooPeer, Peer, Ticket};
pub use process::{pause, resume};
pub use proxy::{Direction, Proxy, Verdict};
pub use raw::{Raw, RawStat, flags};
pub use zookeeper::{Options, ZooKeeper};

use std::time::{Duration, Instant};

/// Polls `condition` every few milliseconds until it holds; panics at the caller's line if it does not within `limit`.
#[track_caller]
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "the awaited condition did not come true within {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
