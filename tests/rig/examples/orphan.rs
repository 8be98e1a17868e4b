//! Starts a server, says where, and never stops it: for the test that kills this process and looks for the server.

fn main() {
    let zookeeper = zklock_rig::ZooKeeper::start();
    println!("{} {}", zookeeper.pid(), zookeeper.address());
    loop {
        std::thread::park();
    }
}
