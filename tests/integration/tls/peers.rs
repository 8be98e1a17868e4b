//! Curator and kazoo on the same secured server contend with zklock for one lock.

use std::time::Duration;

use zklock::Client;
use zklock_test_support::{Certificates, CuratorPeer, CuratorVersion, KazooPeer, PeerProcess, ZooKeeper};

use super::{debian, mutual, newest};
use crate::common::{TEST_TIMEOUT, assert_times_out, path, raw, wait_for_queue};

const SESSION: Duration = Duration::from_secs(30);

#[test]
fn curator_and_kazoo_share_a_lock_with_zklock() {
    let certificates = Certificates::shared();
    let (old, new) = (debian().tls_address(), newest().tls_address());
    // All processes start at the same time.
    let [debians, newests] = [(CuratorVersion::Debian, &old), (CuratorVersion::Newest, &new)]
        .map(|(version, address)| CuratorPeer::start_with_tls(version, address, SESSION, certificates));
    let kazoo = KazooPeer::start_with_tls(&old, SESSION, certificates);
    contend(&debians, debian(), |path| format!("mutex m {path}"));
    contend(&newests, newest(), |path| format!("mutex m {path}"));
    // kazoo waits for the nodes of zklock if it knows their names.
    contend(&kazoo, debian(), |path| format!("lock m {path} patterns=-lock-"));
}

/// Each side waits once while the other side holds the lock.
fn contend(peer: &PeerProcess, server: &ZooKeeper, define: impl Fn(&str) -> String) {
    let (path, config) = (path("peer"), mutual(Certificates::shared()).wait_for_kazoo(true));
    let client = Client::connect(&server.tls_address(), &config).unwrap();
    let (lock, mut raw) = (client.mutex(&path).unwrap(), raw(server));
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    peer.run(&define(&path));
    let theirs = peer.send("acquire t m");
    wait_for_queue(&mut raw, &path, 2);
    assert!(!theirs.is_done());
    lock.release().unwrap();
    assert_eq!(theirs.wait(TEST_TIMEOUT), "true");
    assert_times_out(Duration::ZERO, |limit| lock.acquire(Some(limit)));
    std::thread::scope(|scope| {
        let ours = scope.spawn(|| lock.acquire(Some(TEST_TIMEOUT)).and_then(|()| lock.release()));
        wait_for_queue(&mut raw, &path, 2);
        assert!(!ours.is_finished());
        peer.query("release t m");
        ours.join().unwrap().unwrap();
    });
}
