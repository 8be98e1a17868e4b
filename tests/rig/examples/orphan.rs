//! Starts a server and peers, says where, and never stops them: for the test that kills this process and looks for them.

use std::time::Duration;

use zklock_rig::{CuratorPeer, CuratorVersion, KazooPeer, Peer, ZooKeeper};

fn main() {
    let zookeeper = ZooKeeper::start();
    let session_timeout = Duration::from_secs(60);
    let running = CuratorPeer::start(CuratorVersion::Debian, &zookeeper.address(), session_timeout);
    let paused = CuratorPeer::start(CuratorVersion::Newest, &zookeeper.address(), session_timeout);
    let also_paused = KazooPeer::start(&zookeeper.address(), session_timeout);
    let peers: [&Peer; 3] = [&running, &paused, &also_paused];
    for peer in peers {
        peer.ask("version");
    }
    paused.pause();
    also_paused.pause();
    let [first, second, third] = peers.map(Peer::pid);
    println!("{} {} {first} {second} {third}", zookeeper.address(), zookeeper.pid());
    loop {
        std::thread::park();
    }
}
