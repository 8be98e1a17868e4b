//! Starts a server and peers, prints their address and process ids, and never stops them. A test kills this process and
//! then checks that the server and the peers end.

use std::time::Duration;

use zklock_test_support::{CuratorPeer, CuratorVersion, KazooPeer, PeerProcess, ZooKeeper};

fn main() {
    let zookeeper = ZooKeeper::start();
    let session_timeout = Duration::from_secs(60);
    let running = CuratorPeer::start(CuratorVersion::Debian, &zookeeper.address(), session_timeout);
    let paused = CuratorPeer::start(CuratorVersion::Newest, &zookeeper.address(), session_timeout);
    let also_paused = KazooPeer::start(&zookeeper.address(), session_timeout);
    let peers: [&PeerProcess; 3] = [&running, &paused, &also_paused];
    for peer in peers {
        peer.query("version");
    }
    paused.pause();
    also_paused.pause();
    let [first, second, third] = peers.map(PeerProcess::pid);
    println!("{} {} {first} {second} {third}", zookeeper.address(), zookeeper.pid());
    loop {
        std::thread::park();
    }
}
