//! Operators that change the nodes of a lock in use. If an operator deletes a node or a whole tree, the holder becomes
//! LOST as soon as the client can know it, and the waiters join the queue again.

use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{TEST_TIMEOUT, assert_not_late, path, queue, raw, server_without_sweeps, status, wait_for_queue};
use zklock::{Client, Config, Event, Lock, LockState, Result, Semaphore, Status, WaitsFor};
use zklock_test_support::{Direction, Proxy, RawClient, Verdict, ZooKeeper, wait_until};

const SESSION_TIMEOUT: Duration = Duration::from_secs(6);
/// A heartbeat is a sixth of the session timeout. The check of the nodes that follows takes a little longer.
const HEARTBEAT_LIMIT: Duration = Duration::from_secs(3);
/// The heartbeats of a client with this session timeout are ten seconds apart.
const LONG_SESSION_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mutex,
    Read,
    Write,
    SemaphoreMutex,
    Leases,
    Multi,
}

const KINDS: [Kind; 6] = [Kind::Mutex, Kind::Read, Kind::Write, Kind::SemaphoreMutex, Kind::Leases, Kind::Multi];

/// A lock or semaphore of one client.
enum Lockable {
    Lock(Lock),
    /// A multi-lock and the handles of its two member locks.
    Multi(Lock, [Lock; 2]),
    Semaphore(Semaphore),
}

enum Hold<'a> {
    Lock(&'a Lock),
    Leases(zklock::Hold),
}

impl Lockable {
    fn new(client: &Client, kind: Kind, path: &str) -> Self {
        match kind {
            Kind::Mutex => Self::Lock(client.mutex(path).unwrap()),
            Kind::Read => Self::Lock(client.rwlock(path).unwrap().read),
            Kind::Write => Self::Lock(client.rwlock(path).unwrap().write),
            Kind::SemaphoreMutex => Self::Lock(client.semaphore_mutex(path).unwrap()),
            Kind::Leases => Self::Semaphore(client.semaphore(path, 2).unwrap()),
            Kind::Multi => {
                let locks = ["a", "b"].map(|name| client.mutex(&format!("{path}/{name}")).unwrap());
                Self::Multi(Lock::multi(&[&locks[0], &locks[1]]).unwrap(), locks)
            }
        }
    }

    fn acquire(&self) -> Result<Hold<'_>> {
        match self {
            Self::Lock(lock) | Self::Multi(lock, _) => lock.acquire(Some(TEST_TIMEOUT)).map(|()| Hold::Lock(lock)),
            Self::Semaphore(semaphore) => semaphore.acquire(2, Some(TEST_TIMEOUT)).map(Hold::Leases),
        }
    }

    fn waits(&self) -> bool {
        let waiting = match self {
            Self::Lock(lock) | Self::Multi(lock, _) => lock.waiting(),
            Self::Semaphore(semaphore) => semaphore.waiting(),
        };
        waiting.unwrap().iter().any(|one| matches!(one.waits_for, WaitsFor::Node | WaitsFor::Leases))
    }
}

impl Hold<'_> {
    fn nodes(&self) -> Vec<String> {
        match self {
            Self::Lock(lock) => lock.node_paths(),
            Self::Leases(leases) => leases.node_paths(),
        }
        .unwrap()
    }

    fn state(&self) -> LockState {
        match self {
            Self::Lock(lock) => lock.state(),
            Self::Leases(leases) => leases.state(),
        }
        .unwrap()
    }

    fn is_held(&self) -> bool {
        match self {
            Self::Lock(lock) => lock.is_held(),
            Self::Leases(leases) => leases.is_held(),
        }
        .unwrap()
    }

    fn release(self) -> Result<()> {
        match self {
            Self::Lock(lock) => lock.release(),
            Self::Leases(leases) => leases.release(),
        }
    }
}

/// Creates a client and records when its holds became LOST.
fn client_with_losses(server: &ZooKeeper, session_timeout: Duration) -> (Client, Receiver<Instant>) {
    let (losses, told) = mpsc::channel();
    let config = Config::new().session_timeout(session_timeout).on_event(move |event| {
        if matches!(event, Event::Lock { state: LockState::Lost, .. }) {
            let _ = losses.send(Instant::now());
        }
    });
    (Client::connect(&server.address(), &config).unwrap(), told)
}

/// Deletes the nodes of a tree like a command-line tool: nodes that are created meanwhile remain, with their
/// directories. The deletion starts with the last waiter. Otherwise a waiter would be granted the lock and then lose
/// it.
fn remove_tree(raw: &mut RawClient, path: &str) {
    let mut nodes = tree(raw, path);
    nodes.sort_by_key(|node| std::cmp::Reverse(sequence_number(node)));
    for node in nodes {
        raw.delete(&node);
    }
}

/// All nodes of a tree, children before their parents.
fn tree(raw: &mut RawClient, path: &str) -> Vec<String> {
    let children = raw.children(path).unwrap_or_default();
    let mut nodes: Vec<String> = children.iter().flat_map(|child| tree(raw, &format!("{path}/{child}"))).collect();
    nodes.push(path.to_owned());
    nodes
}

/// The sequence number of a lock node, or `None` for a directory.
fn sequence_number(node: &str) -> Option<u32> {
    node.rsplit('-').next().and_then(|end| end.get(end.len().checked_sub(10)?..)).and_then(|digits| digits.parse().ok())
}

/// Calls `settle` with the nodes of a hold, and then deletes one of them. Returns the time until the loss was reported.
fn lose_one_node(server: &ZooKeeper, kind: Kind, session_timeout: Duration, settle: impl Fn(&[String])) -> Duration {
    let (client, told) = client_with_losses(server, session_timeout);
    let (thing, mut raw) = (Lockable::new(&client, kind, &path("node")), raw(server));
    let hold = thing.acquire().unwrap();
    let nodes = hold.nodes();
    settle(&nodes);
    let deleted = Instant::now();
    assert_eq!(raw.delete(nodes.last().unwrap()), 0);
    let took = told.recv_timeout(TEST_TIMEOUT).unwrap() - deleted;
    assert_eq!((hold.state(), hold.is_held()), (LockState::Lost, false), "{kind:?}");
    if let Lockable::Multi(_, [first, second]) = &thing {
        assert_eq!((first.state().unwrap(), second.state().unwrap()), (LockState::Held, LockState::Lost));
    }
    assert_eq!(status(hold.release()), Status::Lost, "{kind:?}");
    // The other nodes of the hold are deleted too, and the lock can be acquired again.
    wait_until(TEST_TIMEOUT, || nodes.iter().all(|node| !raw.exists(node)));
    thing.acquire().unwrap().release().unwrap();
    assert!(told.try_recv().is_err(), "{kind:?}: once");
    took
}

/// The client watches the nodes of a hold from the first heartbeat on.
#[test]
fn deletion_of_a_watched_node_is_reported_at_once() {
    let server = ZooKeeper::shared();
    std::thread::scope(|scope| {
        for kind in KINDS {
            scope.spawn(move || {
                let is_watched = |node: &String| server.four_letter_word("wchp").contains(node);
                let wait = |nodes: &[String]| {
                    wait_until(TEST_TIMEOUT, || {
                        // Six threads ask the server for all its watches.
                        std::thread::sleep(Duration::from_millis(100));
                        nodes.iter().all(is_watched)
                    });
                };
                let took = lose_one_node(server, kind, LONG_SESSION_TIMEOUT, wait);
                println!("{kind:?}, watched: LOST {took:?} after its node was deleted");
                // A heartbeat has just set the watches, so the next one is almost a sixth of the session timeout away.
                assert!(took < LONG_SESSION_TIMEOUT / 12, "{kind:?}: {took:?}");
            });
        }
    });
}

/// Before the first heartbeat the client sets no watch. The heartbeat checks the nodes.
#[test]
fn deletion_before_the_first_heartbeat_is_reported_within_one_heartbeat() {
    let server = ZooKeeper::shared();
    std::thread::scope(|scope| {
        for kind in KINDS {
            scope.spawn(move || {
                let took = lose_one_node(server, kind, SESSION_TIMEOUT, |_| {});
                println!("{kind:?}, unwatched: LOST {took:?} after its node was deleted");
                assert_not_late(took, HEARTBEAT_LIMIT);
            });
        }
    });
}

/// The directories are deleted too. The holder becomes LOST, the waiter is granted the lock, and the client creates the
/// directories again.
#[test]
fn deleted_tree_is_lost_for_the_holder_and_waiters_rejoin() {
    let server = ZooKeeper::shared();
    std::thread::scope(|scope| {
        for kind in KINDS {
            scope.spawn(move || {
                let (path, mut raw) = (path("tree"), raw(server));
                let [(one, told), (two, _)] = [(); 2].map(|()| client_with_losses(server, SESSION_TIMEOUT));
                // Readers do not wait for each other, so the waiter is a writer.
                let wanted = if kind == Kind::Read { Kind::Write } else { kind };
                let (held, wanted) = (Lockable::new(&one, kind, &path), Lockable::new(&two, wanted, &path));
                let hold = held.acquire().unwrap();
                std::thread::scope(|scope| {
                    let waiter = scope.spawn(|| {
                        let hold = wanted.acquire().unwrap();
                        assert!(hold.is_held());
                        hold.release().unwrap();
                    });
                    wait_until(TEST_TIMEOUT, || wanted.waits());
                    let start = Instant::now();
                    remove_tree(&mut raw, &path);
                    waiter.join().unwrap();
                    println!("{kind:?}: the waiter was in and out {:?} after its tree was removed", start.elapsed());
                    let took = told.recv_timeout(TEST_TIMEOUT).unwrap() - start;
                    println!("{kind:?}: LOST {took:?} after");
                    assert_not_late(took, HEARTBEAT_LIMIT);
                });
                assert_eq!(status(hold.release()), Status::Lost, "{kind:?}");
                // Without participants, the whole tree can be deleted.
                wait_until(TEST_TIMEOUT, || {
                    remove_tree(&mut raw, &path);
                    !raw.exists(&path)
                });
                held.acquire().unwrap().release().unwrap();
            });
        }
    });
}

const CREATE: i32 = 15;
const CREATE_CONTAINER: i32 = 19;

/// The type and the path of a create request.
fn creation(frame: &[u8]) -> Option<(i32, String)> {
    let number = |at: usize| Some(i32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?));
    let op = number(4).filter(|op| [CREATE, CREATE_CONTAINER].contains(op))?;
    let length = usize::try_from(number(8)?).ok()?;
    Some((op, String::from_utf8(frame.get(12..12 + length)?.to_vec()).ok()?))
}

/// The reply to a create is lost, and an operator deletes the node, or the directory too, before the client reconnects.
/// The client then sends a second create with the same UUID. In the end there is one node, and the client holds it.
#[test]
fn a_node_removed_before_its_lost_create_is_looked_for_leaves_one_node() {
    let server = server_without_sweeps();
    for takes_directory in [false, true] {
        let (proxy, path) = (Proxy::start(&server.address()), path("lost"));
        let (client, mut seen) = (Client::connect(&proxy.address(), &Config::new()).unwrap(), raw(server));
        let lock = client.mutex(&path).unwrap();
        lock.acquire(Some(TEST_TIMEOUT)).and_then(|()| lock.release()).unwrap();
        let created = Arc::new(Mutex::new(Vec::new()));
        let (told, directory, mut operator) = (Arc::clone(&created), path.clone(), raw(server));
        let (mut is_cut, mut is_removed) = (false, false);
        proxy.hook(move |way, frame| {
            let node = creation(frame).filter(|(_, made)| made.starts_with(&format!("{directory}/")));
            if let (Direction::ToServer, Some((_, node))) = (way, node) {
                told.lock().unwrap().push(node);
                if !std::mem::replace(&mut is_cut, true) {
                    return Verdict::CutAfter;
                }
            } else if way == Direction::ToServer && is_cut && !std::mem::replace(&mut is_removed, true) {
                // This frame is the handshake of the next connection.
                wait_for_queue(&mut operator, &directory, 1);
                let node = format!("{directory}/{}", queue(&mut operator, &directory)[0]);
                assert_eq!(operator.delete(&node), 0);
                assert!(!takes_directory || operator.delete(&directory) == 0);
            }
            Verdict::Forward
        });
        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
        let created = created.lock().unwrap().clone();
        assert!(created.len() > 1 && created.iter().all(|node| *node == created[0]), "the same UUID: {created:?}");
        let nodes = queue(&mut seen, &path);
        assert_eq!(nodes.len(), 1, "{nodes:?}");
        assert_eq!(seen.stat(&format!("{path}/{}", nodes[0])).unwrap().czxid, lock.fencing_token().unwrap());
        lock.release().unwrap();
        wait_for_queue(&mut seen, &path, 0);
    }
}

/// If the parent of an existing ancestor does not allow creates, a server answers a create of that ancestor with "no
/// permission". The client still creates the directory below it, even if the directory is deleted once before the node
/// is created, as servers delete empty containers.
#[test]
fn an_ancestor_that_exists_and_may_not_be_created_is_no_obstacle() {
    let server = ZooKeeper::shared();
    let (proxy, parent) = (Proxy::start(&server.address()), path("fixed"));
    let (client, mut operator) = (Client::connect(&proxy.address(), &Config::new()).unwrap(), raw(server));
    let team = format!("{parent}/team");
    // This lock creates the parents.
    let first = client.mutex(&format!("{team}/first")).unwrap();
    first.acquire(Some(TEST_TIMEOUT)).unwrap();
    operator.forbid_creation(&parent);
    for is_removed in [false, true] {
        let directory = format!("{team}/lock-{is_removed}");
        let (below, mut made, mut is_done) = (format!("{directory}/"), 0, !is_removed);
        let mut remover = raw(server);
        proxy.hook(move |way, frame| {
            let (Direction::ToServer, Some((_, path))) = (way, creation(frame)) else { return Verdict::Forward };
            made += usize::from(path.starts_with(&below));
            // The first create finds no directory. The second one follows the creation of the directory.
            if made == 2 && !std::mem::replace(&mut is_done, true) {
                wait_until(TEST_TIMEOUT, || remover.delete(below.trim_end_matches('/')) == 0);
            }
            Verdict::Forward
        });
        let lock = client.mutex(&directory).unwrap();
        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
        lock.release().unwrap();
    }
    proxy.unhook();
    // If the directory is missing and must not be created, the acquire still fails.
    let missing = client.mutex(&format!("{parent}/missing/lock")).unwrap();
    assert_eq!(status(missing.acquire(Some(TEST_TIMEOUT))), Status::Denied);
    let multi = Lock::multi(&[&missing, &client.mutex(&format!("{team}/another")).unwrap()]).unwrap();
    assert_eq!(status(multi.acquire(Some(TEST_TIMEOUT))), Status::Denied);
    first.release().unwrap();
}

/// The count of the semaphore exists already, so the client does not have to create it.
#[test]
fn a_count_that_exists_and_may_not_be_created_is_used() {
    let server = ZooKeeper::shared();
    let (client, mut operator) = (Client::connect(&server.address(), &Config::new()).unwrap(), raw(server));
    let (parent, semaphore) = (path("counts"), path("counted"));
    client.shared_count_set(&format!("{parent}/count"), 2).unwrap();
    operator.forbid_creation(&parent);
    let counted = client.semaphore_counted(&semaphore, &format!("{parent}/count"), 7).unwrap();
    counted.acquire(2, Some(TEST_TIMEOUT)).unwrap().release().unwrap();
    assert_eq!(
        client.semaphore_counted(&semaphore, &format!("{parent}/none"), 7).err().unwrap().status(),
        Status::Denied
    );
}
