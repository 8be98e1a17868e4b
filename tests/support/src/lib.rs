//! The support library of zklock's tests. It provides real ZooKeeper servers, a TCP proxy that injects faults, a raw
//! client that observes the server without the code under test, and processes that use the locks of other libraries.
//!
//! Every object belongs to one test and has its own ports and directories. It leaves nothing behind, however the test
//! ends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "if the test setup fails, the test must fail at once and show the place"
)]

mod certificates;
mod directory;
mod dynamic_ensemble;
mod ensemble;
mod frame;
mod kerberos;
mod network;
mod openssl;
mod peer;
mod port;
mod process;
mod proxy;
mod raw_client;
mod zookeeper;

pub use certificates::{Authority, Certificates, Identity, SERVER_NAME, Validity};
pub use dynamic_ensemble::DynamicEnsemble;
pub use ensemble::Ensemble;
pub use frame::{is_connect_request, request_type, xid};
pub use kerberos::{KerberosRealm, REALM};
pub use network::{Host, Network};
pub use openssl::OpensslServer;
pub use peer::{CuratorPeer, CuratorVersion, KazooPeer, PeerProcess, PendingAnswer};
pub use port::Port;
pub use process::{pause, resume};
pub use proxy::{Direction, Proxy, Verdict};
pub use raw_client::{AclEntry, RawClient, RawStat, flags, permissions};
pub use zookeeper::{ClientAuth, Options, TlsListener, TlsVersions, ZooKeeper};

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a test waits for a condition. A correct program needs a fraction of a second on an idle machine.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether the tests check time limits exactly, as in `make verify`.
pub fn limits_are_exact() -> bool {
    std::env::var_os("TEST_ZKLOCK_EXACT_LIMITS").is_some()
}

/// How late a result may be. A busy machine may delay every thread and every server.
pub fn slack() -> Duration {
    Duration::from_secs(if limits_are_exact() { 1 } else { 10 })
}

/// Asserts that something took at most `limit`, plus the slack for a busy machine.
#[track_caller]
pub fn assert_not_late(took: Duration, limit: Duration) {
    assert!(took <= limit + slack(), "late: after {took:?} instead of {limit:?}");
}

/// Polls `condition` until it holds. Panics at the caller's line if it does not hold within `limit`.
#[track_caller]
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        let waited = started.elapsed();
        assert!(waited < limit, "the awaited condition did not become true within {limit:?}");
        std::thread::sleep(poll_interval(waited));
    }
}

/// The pause before the next check of a condition. Most checks ask a server, so the checks of a long wait become rarer.
/// Many tests wait at the same time, and frequent checks would keep all processors busy.
fn poll_interval(waited: Duration) -> Duration {
    (waited / 4).clamp(Duration::from_millis(2), Duration::from_millis(40))
}

/// Cargo, without the variables of the package whose test is running. The build script of ring reads them. If they
/// differed from those of other builds, cargo would compile ring and everything above it again and again.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
        if name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_") {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Returns a path that no other test uses. For the same name, the length of the path is always the same.
pub fn path(name: &str) -> String {
    static LAST: AtomicU32 = AtomicU32::new(0);
    // A process id has at most seven digits (proc_pid_max(5)).
    format!("/test-{:07}/{name}-{:04}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed))
}

/// Returns the lock nodes in a directory, in queue order.
pub fn queue(raw: &mut RawClient, path: &str) -> Vec<String> {
    let mut nodes = raw.children(path).unwrap_or_default();
    nodes.sort_by_key(|name| name.rsplit('-').next().map(str::to_owned));
    nodes
}

/// Waits until the directory has this number of lock nodes.
#[track_caller]
pub fn wait_for_queue(raw: &mut RawClient, path: &str, length: usize) {
    wait_until(TEST_TIMEOUT, || queue(raw, path).len() == length);
}
