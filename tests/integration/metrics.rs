//! The metrics of a client match its operations and events, on real servers.

use std::time::Duration;

use crate::common::{OwnerCalls as _, TEST_TIMEOUT, client, client_with, path, raw, status, wait_for_waiters};
use zklock::{Client, ClientState, Histogram, Labels, LockState, Metrics, Owner, Status};
use zklock_test_support::{Proxy, ZooKeeper, wait_until};

const MS: Duration = Duration::from_millis(1);

fn of(client: &Client) -> Metrics {
    client.metrics().unwrap()
}

#[test]
fn acquire_and_release_count_one_wait_and_one_hold() {
    let client = client(&ZooKeeper::shared().address());
    let lock = client.mutex(&path("cycle")).unwrap();
    lock.acquire(None).unwrap();
    let held = of(&client);
    assert_eq!((held.acquires_ok, held.waits.count(), held.held, held.holds.count()), (1, 1, 1, 0));
    lock.acquire(None).unwrap();
    lock.release().unwrap();
    std::thread::sleep(20 * MS);
    lock.release().unwrap();
    let after = of(&client);
    assert_eq!((after.acquires_ok, after.reentries, after.releases, after.held), (1, 1, 1, 0));
    assert_eq!((after.holds.count(), after.handovers, after.local_passes), (1, 0, 0));
    assert!(after.holds.sum() >= 20 * MS && after.waits.sum() < after.holds.sum() + TEST_TIMEOUT, "{after:?}");
    assert_eq!((after.sessions, after.connections, after.reconnects, after.sessions_lost), (1, 1, 0, 0));
    assert_eq!((after.state, after.session_timeout), (ClientState::Connected, Duration::from_secs(10)));
}

#[test]
fn acquires_are_counted_by_outcome() {
    let server = ZooKeeper::shared();
    let (client, other) = (client(&server.address()), client(&server.address()));
    let path = path("outcomes");
    let (lock, held) = (client.mutex(&path).unwrap(), other.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    assert_eq!(status(lock.acquire(Some(1000 * MS))), Status::Timeout);
    assert_eq!(status(lock.acquire(Some(Duration::ZERO))), Status::Timeout);
    let waiting = lock.start_acquire(Owner::task(1), None).unwrap();
    wait_until(TEST_TIMEOUT, || of(&client).waiting == 1);
    waiting.cancel().unwrap();
    assert_eq!(status(waiting.wait()), Status::Canceled);
    let waiting = lock.start_acquire(Owner::task(1), None).unwrap();
    lock.close().unwrap();
    assert_eq!(status(waiting.wait()), Status::Closed);
    let rw = client.rwlock(&crate::common::path("upgrade")).unwrap();
    rw.read.acquire(None).unwrap();
    assert_eq!(status(rw.write.acquire(None)), Status::Deadlock);
    let now = of(&client);
    assert_eq!((now.acquires_ok, now.acquires_timeout, now.acquires_canceled), (1, 2, 2));
    assert_eq!((now.acquires_connection, now.acquires_failed, now.waiting), (0, 1, 0));
    assert_eq!((now.waits.count(), now.handovers), (1, 0), "only successful acquires count as waits");
    wait_until(TEST_TIMEOUT, || of(&client).leaving == 0);
}

#[test]
fn handover_is_counted_at_the_waiter() {
    let server = ZooKeeper::shared();
    let (giver, taker) = (client(&server.address()), client(&server.address()));
    let path = path("hand-over");
    let (held, wanted) = (giver.mutex(&path).unwrap(), taker.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    let waiting = wanted.start_acquire(Owner::task(1), Some(TEST_TIMEOUT)).unwrap();
    wait_for_waiters(&held, 2);
    wait_until(TEST_TIMEOUT, || wanted.waiting().unwrap()[0].count == 1);
    std::thread::sleep(50 * MS);
    held.release().unwrap();
    waiting.wait().unwrap().leave_to_owner();
    assert_eq!((of(&giver).handovers, of(&taker).handovers, of(&taker).local_passes), (0, 1, 0));
    assert!(of(&taker).waits.sum() >= 50 * MS);
    // The same within one process, without a request to the server.
    wanted.release_as(Owner::task(1)).unwrap();
    wanted.set_local_handover(10).unwrap();
    let two = [2, 3].map(|owner| wanted.start_acquire(Owner::task(owner), Some(TEST_TIMEOUT)).unwrap());
    for (owner, acquiring) in [2, 3].into_iter().zip(two) {
        acquiring.wait().unwrap().leave_to_owner();
        wanted.release_as(Owner::task(owner)).unwrap();
    }
    let now = of(&taker);
    assert_eq!((now.acquires_ok, now.handovers, now.local_passes, now.releases), (3, 2, 1, 3));
}

/// The metrics count an acquire as one that waited, even if its node was deleted and it joined the queue again.
#[test]
fn wait_after_rejoining_counts_as_handover() {
    let server = ZooKeeper::shared();
    let (giver, taker) = (client(&server.address()), client(&server.address()));
    let path = path("again");
    let (held, wanted) = (giver.mutex(&path).unwrap(), taker.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    let waiting = wanted.start_acquire(Owner::task(1), Some(TEST_TIMEOUT)).unwrap();
    wait_for_waiters(&held, 2);
    wait_until(TEST_TIMEOUT, || wanted.waiting().unwrap()[0].count == 1);
    // Delete the waiter's own node first, then the node ahead. After the waiter has joined again, it usually finds no
    // node ahead.
    let nodes: Vec<String> = held.participants().unwrap().into_iter().map(|one| one.node_path).collect();
    let mut operator = raw(server);
    for node in nodes.iter().rev() {
        operator.delete(node);
    }
    waiting.wait().unwrap().leave_to_owner();
    assert_eq!((of(&taker).acquires_ok, of(&taker).handovers), (1, 1));
}

/// Leases of a semaphore, and several locks in one transaction.
#[test]
fn semaphores_and_multi_locks_are_counted() {
    let server = ZooKeeper::shared();
    let (client, other) = (client(&server.address()), client(&server.address()));
    let path = path("semaphore");
    let (semaphore, taken) = (client.semaphore(&path, 2).unwrap(), other.semaphore(&path, 2).unwrap());
    let all = taken.acquire(2, Some(TEST_TIMEOUT)).unwrap();
    let waiting = semaphore.start_acquire(1, Some(TEST_TIMEOUT)).unwrap();
    wait_until(TEST_TIMEOUT, || semaphore.waiting().unwrap().iter().any(|waiting| waiting.count == 1));
    all.release().unwrap();
    let leases = waiting.wait().unwrap();
    let now = of(&client);
    assert_eq!((now.acquires_ok, now.handovers, now.held), (1, 1, 1), "leases of one acquire are one hold");
    leases.release().unwrap();
    let locks = [client.mutex(&crate::common::path("a")).unwrap(), client.mutex(&crate::common::path("b")).unwrap()];
    let multi = zklock::Lock::multi(&locks.each_ref()).unwrap();
    multi.acquire(Some(TEST_TIMEOUT)).unwrap();
    assert_eq!((of(&client).acquires_ok, of(&client).held), (2, 2));
    // A hold that ends with its lock handle or its client also counts as released.
    drop(multi);
    drop(locks);
    assert_eq!((of(&client).releases, of(&client).held), (3, 0));
    let last = client.mutex(&crate::common::path("last")).unwrap();
    last.acquire(Some(TEST_TIMEOUT)).unwrap();
    client.close().unwrap();
    let closed = of(&client);
    assert_eq!((closed.releases, closed.held, closed.state), (4, 0, ClientState::Closed));
    assert_eq!((closed.holds.count(), closed.sessions_lost, closed.connections_lost), (4, 0, 0));
}

#[test]
fn a_hold_is_lost_with_its_node_or_its_session() {
    let server = ZooKeeper::start();
    let proxy = Proxy::start(&server.address());
    let client = client_with(&proxy.address(), Duration::from_secs(4));
    let lock = client.mutex(&path("lost")).unwrap();
    lock.acquire(None).unwrap();
    raw(&server).delete(&lock.node_paths().unwrap()[0]);
    wait_until(TEST_TIMEOUT, || of(&client).losses_deleted == 1);
    assert_eq!(status(lock.release()), Status::Lost);
    lock.acquire(None).unwrap();
    // The client notices the lost connection at once, and gets no other.
    proxy.black_hole(true);
    proxy.cut();
    wait_until(TEST_TIMEOUT, || of(&client).suspensions == 1);
    wait_until(TEST_TIMEOUT, || of(&client).uncertainties == 1);
    let cut = of(&client);
    assert_eq!((cut.suspensions, cut.held, cut.losses_session, cut.state), (1, 1, 0, ClientState::Suspended));
    // The server receives nothing from the client for longer than the session timeout.
    std::thread::sleep(Duration::from_millis(4500));
    proxy.black_hole(false);
    proxy.cut();
    wait_until(TEST_TIMEOUT, || of(&client).losses_session == 1 && of(&client).state == ClientState::Connected);
    assert_eq!(status(lock.release()), Status::Lost);
    let now = of(&client);
    assert_eq!((now.releases, now.holds.count(), now.held), (0, 2, 0), "each hold ended once: {now:?}");
    assert_eq!((now.sessions, now.sessions_lost, now.connections_lost), (2, 1, 1));
    assert!(now.reconnects >= 1 && now.connection_attempts > now.connections, "{now:?}");
}

#[test]
fn a_connection_that_is_cut_is_made_again() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let client = client(&proxy.address());
    let lock = client.mutex(&path("cut")).unwrap();
    lock.acquire(None).unwrap();
    for count in 1..=3 {
        proxy.cut();
        wait_until(TEST_TIMEOUT, || of(&client).reconnects == count && lock.state().unwrap() == LockState::Held);
    }
    let now = of(&client);
    assert_eq!((now.connections, now.connections_lost, now.sessions, now.sessions_lost), (4, 3, 1, 0));
    assert_eq!((now.suspensions, now.uncertainties, now.held), (3, 0, 1));
    lock.release().unwrap();
    // The server is not reachable.
    proxy.refuse(true);
    proxy.cut();
    assert_eq!(status(lock.acquire(Some(300 * MS))), Status::Connection);
    assert_eq!(of(&client).acquires_connection, 1);
}

/// A separate server counts the packets of its only connection.
#[test]
fn requests_are_those_that_the_server_has_received() {
    let server = ZooKeeper::start();
    let client = client(&server.address());
    let lock = client.mutex(&path("requests")).unwrap();
    for _ in 0..20 {
        lock.acquire(None).unwrap();
        lock.release().unwrap();
    }
    // The client may be in the middle of a ping, and the server may count a reply after the client has received it.
    wait_until(TEST_TIMEOUT, || {
        let connections = server.four_letter_word("cons");
        let line = connections.lines().find(|line| line.contains("sid=0x")).unwrap();
        let number = |name: &str| -> u64 {
            let (_, rest) = line.split_once(&format!("{name}=")).unwrap();
            rest.split([',', ')']).next().unwrap().parse().unwrap()
        };
        // The server also counts the handshake.
        let now = of(&client);
        number("recved") == now.requests + now.pings + 1
            && number("sent") == now.answers + now.pings + now.watch_events + 1
    });
    let now = of(&client);
    assert!(now.requests >= 40 && now.round_trips.count() == now.answers, "{now:?}");
    assert!(now.bytes_sent > 40 * now.requests && now.bytes_received > 16 * now.answers, "{now:?}");
}

/// The Prometheus text must contain the same numbers as the struct. The client has been busy before.
#[test]
fn the_text_for_prometheus_has_the_same_numbers() {
    let client = client(&ZooKeeper::shared().address());
    let lock = client.mutex(&path("text")).unwrap();
    for _ in 0..5 {
        lock.acquire(None).unwrap();
        lock.release().unwrap();
    }
    assert_eq!(status(lock.release()), Status::NotOwner);
    let now = of(&client);
    let text = now.prometheus(&Labels::parse("app=\"t\"").unwrap());
    let value = |series: &str| -> f64 {
        let line = text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
        line.unwrap_or_else(|| panic!("{series} is not in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(value("zklock_acquires_total{app=\"t\",outcome=\"ok\"}"), 5.0);
    assert_eq!(value("zklock_client_state{app=\"t\",state=\"connected\"}"), 1.0);
    assert_eq!(value("zklock_session_timeout_seconds{app=\"t\"}"), 10.0);
    assert_eq!(value("zklock_wait_seconds_sum{app=\"t\"}"), now.waits.sum().as_nanos() as f64 / 1e9);
    assert_eq!(value("zklock_wait_seconds_count{app=\"t\"}"), 5.0);
    assert_eq!(value("zklock_wait_seconds_bucket{app=\"t\",le=\"+Inf\"}"), 5.0);
    let requests = value("zklock_requests_total{app=\"t\"}");
    assert_eq!(format!("{requests}"), now.requests.to_string());
    assert_eq!(text.matches("zklock_hold_seconds_bucket{").count(), Histogram::BUCKETS);
}
