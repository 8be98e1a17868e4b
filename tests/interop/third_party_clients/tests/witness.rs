//! Third-party clients: the Rust crates `zookeeper-client` and `zookeeper` inspect zklock's nodes and wait in its
//! queues.

use std::time::Duration;

use zklock::{Client, Config, Status};
use zklock_test_support::{ZooKeeper, wait_until};
use zookeeper::{Acl, CreateMode, WatchedEvent, ZooKeeper as OtherClient};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// `zookeeper-client` sees one node with Curator's name format. Our session owns it, and its czxid is our token.
#[test]
fn zookeeper_client_sees_curators_node() {
    let server = ZooKeeper::shared();
    let client = Client::connect(&server.address(), &Config::new()).unwrap();
    let lock = client.mutex("/witness/seen").unwrap();
    lock.acquire(None).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let witness = zookeeper_client::Client::connect(&server.address()).await.unwrap();
        let children = witness.list_children("/witness/seen").await.unwrap();
        assert_eq!(children.len(), 1);
        let name = &children[0];
        assert!(name.starts_with("_c_") && name.ends_with("-lock-0000000000") && name.len() == 55, "{name}");
        let (data, stat) = witness.get_data(&format!("/witness/seen/{name}")).await.unwrap();
        assert_eq!(data, b"127.0.0.1");
        assert_eq!(stat.czxid, lock.fencing_token().unwrap());
        assert_eq!(stat.ephemeral_owner, client.session_id().unwrap());
        lock.release().unwrap();
        assert_eq!(witness.list_children("/witness/seen").await.unwrap(), Vec::<String>::new());
    });
}

/// A node that the test creates with the crate `zookeeper`, in Curator's name format, takes its turn in zklock's queue.
#[test]
fn a_contender_of_the_crate_zookeeper_takes_turns() {
    let server = ZooKeeper::shared();
    let client = Client::connect(&server.address(), &Config::new()).unwrap();
    let lock = client.mutex("/witness/turns").unwrap();
    lock.acquire(None).unwrap();
    let other = OtherClient::connect(&server.address(), Duration::from_secs(30), |_: WatchedEvent| {}).unwrap();
    let asked = "/witness/turns/_c_5c3a8f0e-11d2-4b1c-9a44-7d8e21f0b6aa-lock-";
    let node =
        other.create(asked, b"by hand".to_vec(), Acl::open_unsafe().clone(), CreateMode::EphemeralSequential).unwrap();
    let found = lock.participants().unwrap();
    assert!(found[0].holds && !found[1].holds);
    assert_eq!(found[1].data, b"by hand");
    lock.release().unwrap();
    assert_eq!(
        lock.acquire(Some(Duration::ZERO)).unwrap_err().status(),
        Status::Timeout,
        "the other client holds the lock next"
    );
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.acquire(Some(TEST_TIMEOUT)).and_then(|()| lock.release()));
        wait_until(TEST_TIMEOUT, || lock.participants().unwrap().len() == 2);
        other.delete(&node, None).unwrap();
        waiter.join().unwrap().unwrap();
    });
    other.close().unwrap();
}
