//! The report about a pending call, and the error message of a call that has timed out.

use std::thread;
use std::time::Duration;

use zklock::{Client, Config, Hold, Lock, LockState, Operation, Owner, Waiting, WaitsFor};
use zklock_test_support::{Direction, Proxy, Verdict, ZooKeeper, wait_until};

use crate::common::{OwnerCalls as _, TEST_TIMEOUT, client, path};

const MS: Duration = Duration::from_millis(1);
const TRY_ONCE: Option<Duration> = Some(Duration::ZERO);
/// Long enough for a server to report the nodes ahead.
const SHORT_WAIT: Duration = Duration::from_secs(1);
const ME: Owner = Owner::task(1);

/// Waits until the only pending call waits for `wanted`. Returns its report.
#[track_caller]
fn waits_for(wanted: WaitsFor, mut waiting: impl FnMut() -> zklock::Result<Vec<Waiting>>) -> Waiting {
    let mut all = Vec::new();
    wait_until(TEST_TIMEOUT, || {
        all = waiting().unwrap();
        all.first().is_some_and(|one| one.waits_for == wanted)
    });
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

#[test]
fn a_waiter_names_the_node_ahead() {
    let server = ZooKeeper::shared();
    let (path, one, two) = (path("node"), client(&server.address()), client(&server.address()));
    let (held, wanted) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.set_data(Some(b"host-a")).unwrap();
    assert_eq!(wanted.waiting().unwrap(), []);
    held.acquire(None).unwrap();
    assert_eq!(held.waiting().unwrap(), [], "it does not wait");
    let first = wanted.start_acquire(ME, Some(TEST_TIMEOUT)).unwrap();
    wait_until(TEST_TIMEOUT, || wanted.waiting().unwrap()[0].session_id != 0);
    let seen = waits_for(WaitsFor::Node, || wanted.waiting());
    assert_eq!(seen.ahead.as_ref(), held.node_paths().unwrap().first());
    assert_eq!((seen.session_id, seen.count, seen.owner), (one.session_id().unwrap(), 1, ME));
    assert!(seen.left.is_some_and(|left| left < TEST_TIMEOUT && left + seen.waited <= TEST_TIMEOUT));
    // Together with the list of participants, the report identifies the holder.
    let participants = held.participants().unwrap();
    let ahead = participants.iter().find(|participant| Some(&participant.node_path) == seen.ahead.as_ref()).unwrap();
    assert_eq!((ahead.holds, &*ahead.data), (true, b"host-a".as_slice()));
    assert_eq!(seen.node_path.as_ref(), Some(&participants[1].node_path));

    let second = wanted.start_acquire(Owner::task(2), None).unwrap();
    wait_until(TEST_TIMEOUT, || wanted.waiting().unwrap().get(1).is_some_and(|one| one.ahead == seen.node_path));
    let both = wanted.waiting().unwrap();
    assert_eq!((both[1].owner, both[1].count, both[1].left), (Owner::task(2), 2, None));
    assert!(both[0].waited >= both[1].waited);
    drop((first, second));
    wait_until(TEST_TIMEOUT, || wanted.waiting().unwrap().is_empty());
    held.release().unwrap();
}

#[test]
fn timeout_message_names_the_holder() {
    let server = ZooKeeper::shared();
    let (path, one, two) = (path("message"), client(&server.address()), client(&server.address()));
    let (held, wanted) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.set_data(Some(b"host-a")).unwrap();
    held.acquire(None).unwrap();
    let (node, session) = (held.node_paths().unwrap().remove(0), one.session_id().unwrap());
    let said = wanted.acquire(Some(SHORT_WAIT)).unwrap_err().to_string();
    assert!(said.starts_with(&format!("{path}: not acquired within ")), "{said}");
    assert!(said.ends_with(&format!("s; held by {node} (session {session:#x}, data \"host-a\")")), "{said}");
    // A single attempt reads the node ahead, too.
    let said = wanted.acquire(TRY_ONCE).unwrap_err().to_string();
    assert_eq!(said, format!("{path}: held by {node} (session {session:#x}, data \"host-a\")"));

    let waiter = held.start_acquire(ME, None).unwrap();
    wait_until(TEST_TIMEOUT, || held.participants().unwrap().len() == 2);
    let said = wanted.acquire(Some(SHORT_WAIT)).unwrap_err().to_string();
    let nearest = &held.participants().unwrap()[1].node_path;
    let expected = format!("s; 2 ahead in the queue, the nearest is {nearest} (session {session:#x}, data \"host-a\")");
    assert!(said.ends_with(&expected), "{said}");
    drop(waiter);
}

#[test]
fn waiting_reports_the_blocking_node_of_read_and_write_locks() {
    let server = ZooKeeper::shared();
    let (path, client) = (path("rw"), client(&server.address()));
    let lock = client.rwlock(&path).unwrap();
    lock.write.acquire(None).unwrap();
    let reading = [2, 3].map(|owner| lock.read.start_acquire(Owner::task(owner), None).unwrap());
    wait_until(TEST_TIMEOUT, || lock.read.waiting().unwrap().iter().filter(|one| one.ahead.is_some()).count() == 2);
    let writer = lock.write.node_paths().unwrap().remove(0);
    for reader in lock.read.waiting().unwrap() {
        assert_eq!((reader.waits_for, reader.count, reader.ahead.as_ref()), (WaitsFor::Node, 1, Some(&writer)));
    }
    assert_eq!(lock.write.waiting().unwrap(), [], "that wait belongs to the read lock");
    let said = lock.read.start_acquire(ME, Some(SHORT_WAIT)).unwrap().wait().unwrap_err().to_string();
    assert!(said.contains(&format!("1 ahead in the queue, the nearest is {writer}")), "{said}");
    lock.write.release().unwrap();
    let _holds = reading.map(|reading| reading.wait().unwrap());
    let _writing = lock.write.start_acquire(ME, None).unwrap();
    assert_eq!(waits_for(WaitsFor::Node, || lock.write.waiting()).count, 2);
}

#[test]
fn leases_are_waited_for_in_three_ways() {
    let server = ZooKeeper::shared();
    let (path, count, client) = (path("pool"), path("count"), client(&server.address()));
    let semaphore = client.semaphore_counted(&path, &count, 2).unwrap();
    let held = semaphore.acquire(2, None).unwrap();

    let many = semaphore.start_acquire(5, Some(SHORT_WAIT)).unwrap();
    let seen = waits_for(WaitsFor::Count, || semaphore.waiting());
    assert_eq!((seen.ahead.as_ref(), seen.count, seen.node_path), (Some(&count), 3, None));
    let said = many.wait().err().unwrap().to_string();
    assert!(said.ends_with(&format!("s; 5 leases are needed, but the shared count {count} allows only 2")), "{said}");

    let two = semaphore.start_acquire(2, None).unwrap();
    let seen = waits_for(WaitsFor::Leases, || semaphore.waiting());
    assert_eq!((seen.ahead, seen.count), (Some(format!("{path}/leases")), 2));
    assert!(seen.node_path.unwrap().starts_with(&format!("{path}/leases/_c_")));
    let said = semaphore.acquire(1, TRY_ONCE).err().unwrap().to_string();
    assert_eq!(said, format!("{path}: quantity is 1, but 2 of 2 leases are in use"));

    // The next acquire waits for the inner mutex until the one ahead is served.
    let said = semaphore.acquire(1, Some(SHORT_WAIT)).err().unwrap().to_string();
    assert!(said.contains(&format!("s; 1 ahead in the queue, the nearest is {path}/locks/")), "{said}");
    let one = semaphore.start_acquire(1, None).unwrap();
    wait_until(TEST_TIMEOUT, || semaphore.waiting().unwrap()[1].waits_for == WaitsFor::Node);
    assert!(semaphore.waiting().unwrap()[1].ahead.as_ref().unwrap().starts_with(&format!("{path}/locks/")));
    drop((one, held));
    drop(two.wait().unwrap());
}

/// The call first waits in both queues of one transaction, then for the semaphore mutex.
#[test]
fn multi_lock_waiting_reports_its_current_step() {
    let server = ZooKeeper::shared();
    let (one, two) = (client(&server.address()), client(&server.address()));
    let paths = ["a", "b", "c"].map(path);
    let make = |client: &Client| {
        let queues = [&paths[0], &paths[1]].map(|path| client.mutex(path).unwrap());
        let [first, second] = queues;
        [first, second, client.semaphore_mutex(&paths[2]).unwrap()]
    };
    let (theirs, ours) = (make(&one), make(&two));
    theirs[1].acquire(None).unwrap();
    theirs[2].acquire(None).unwrap();
    let all = Lock::multi(&[&ours[0], &ours[1], &ours[2]]).unwrap();
    let acquiring: Operation<Hold> = all.start_acquire(ME, Some(TEST_TIMEOUT)).unwrap();
    let seen = waits_for(WaitsFor::Node, || all.waiting());
    assert_eq!(seen.ahead.as_ref(), theirs[1].node_paths().unwrap().first());
    assert!(seen.node_path.unwrap().starts_with(&paths[1]), "its node there");
    assert!(ours.iter().all(|lock| lock.waiting().unwrap().is_empty()), "the acquire waits through its own handle");
    theirs[1].release().unwrap();
    let mut last = None;
    wait_until(TEST_TIMEOUT, || {
        assert!(acquiring.wait_for(MS).is_none());
        last = all.waiting().unwrap().pop();
        last.as_ref().is_some_and(|one| one.waits_for == WaitsFor::Leases)
    });
    let last = last.unwrap();
    assert_eq!(last.ahead, Some(format!("{}/leases", paths[2])));
    assert!(last.waited > seen.waited, "the list contains one wait: {last:?}");
    theirs[2].release().unwrap();
    acquiring.wait().unwrap().leave_to_owner();
    assert_eq!(all.waiting().unwrap(), []);
    all.release_as(ME).unwrap();
}

#[test]
fn waiting_during_disconnection_reports_the_server_and_the_position() {
    let server = ZooKeeper::start();
    let (path, one, two) = (path("away"), client(&server.address()), client(&server.address()));
    let (held, wanted) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    let node = held.node_paths().unwrap().pop();
    let _waiting = wanted.start_acquire(ME, None).unwrap();
    let before = waits_for(WaitsFor::Node, || wanted.waiting());
    server.pause();
    // A call that starts now has even less information.
    let other = two.mutex(&crate::common::path("silent")).unwrap();
    let _silent = other.start_acquire(ME, None).unwrap();
    let seen = waits_for(WaitsFor::Server, || other.waiting());
    assert_eq!((seen.node_path, seen.ahead, seen.count), (None, None, 0));
    let seen = waits_for(WaitsFor::Connection, || wanted.waiting());
    assert_eq!((seen.node_path, seen.ahead), (before.node_path, node));
    waits_for(WaitsFor::Connection, || other.waiting());
    server.resume();
    waits_for(WaitsFor::Node, || wanted.waiting());
    wait_until(TEST_TIMEOUT, || other.waiting().unwrap().is_empty());
}

/// The client is connected, but it has not confirmed the node again yet.
#[test]
fn reentry_into_an_uncertain_hold_reports_own_hold() {
    let server = ZooKeeper::start();
    let proxy = Proxy::start(&server.address());
    let config = Config::new().session_timeout(3000 * MS);
    let client = Client::connect(&proxy.address(), &config).unwrap();
    let lock = client.mutex(&path("doubt")).unwrap();
    lock.acquire_as(ME, None).unwrap();
    server.pause();
    wait_until(TEST_TIMEOUT, || lock.state_as(ME).unwrap() == LockState::Uncertain);
    let again = lock.start_acquire(ME, None).unwrap();
    let is_get_data = |frame: &[u8]| frame.get(4..8) == Some(&[0, 0, 0, 4]);
    proxy.hook(move |direction, frame| match direction == Direction::ToServer && is_get_data(frame) {
        true => Verdict::Drop,
        false => Verdict::Forward,
    });
    server.resume();
    let seen = waits_for(WaitsFor::OwnHold, || lock.waiting());
    assert_eq!((seen.owner, seen.ahead), (ME, None));
    proxy.unhook();
    again.wait().unwrap().leave_to_owner();
    assert_eq!(lock.waiting().unwrap(), []);
}

/// A query about pending calls sends no request to the server and does not block any thread.
#[test]
fn concurrent_waiting_queries_disturb_no_waiter() {
    let server = ZooKeeper::shared();
    let (path, client) = (path("many"), client(&server.address()));
    let lock = client.mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                lock.acquire(Some(TEST_TIMEOUT)).unwrap();
                lock.release().unwrap();
            });
        }
        wait_until(TEST_TIMEOUT, || lock.waiting().unwrap().iter().all(|one| one.waits_for == WaitsFor::Node));
        wait_until(TEST_TIMEOUT, || lock.waiting().unwrap().len() == 4);
        lock.release().unwrap();
        wait_until(TEST_TIMEOUT, || lock.waiting().unwrap().is_empty());
    });
}
