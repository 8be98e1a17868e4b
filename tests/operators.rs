//! What operators do to a lock's nodes while it is in use: a node that is deleted, or a whole tree, is LOST at its holder as soon as
//! that can be known, and whoever waits joins again.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that fails is a test that fails"
)]

mod common;

use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{SOON, path, queue, raw, status, wait_for_queue};
use zklock::{Client, Config, Event, Leases, Lock, LockState, Result, Semaphore, Status, WaitsFor};
use zklock_rig::{Direction, Proxy, Raw, Verdict, ZooKeeper, wait_until};

const T: Duration = Duration::from_secs(6);
/// A heartbeat is a sixth of the session timeout, and what is looked for after it takes a moment.
const A_BEAT: Duration = Duration::from_secs(2);

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

/// Something that can be held, of one client.
enum Thing {
    Lock(Lock),
    /// Whose two locks are held by these.
    Multi(Lock, [Lock; 2]),
    Semaphore(Semaphore),
}

enum Hold<'a> {
    Lock(&'a Lock),
    Leases(Leases),
}

impl Thing {
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
            Self::Lock(lock) | Self::Multi(lock, _) => lock.acquire(Some(SOON)).map(|()| Hold::Lock(lock)),
            Self::Semaphore(semaphore) => semaphore.acquire(2, Some(SOON)).map(Hold::Leases),
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

/// A client, and when each hold of it was told to be lost.
fn client_with_losses(server: &ZooKeeper) -> (Client, Receiver<Instant>) {
    let (losses, told) = mpsc::channel();
    let mut config = Config::new();
    config.set_session_timeout(T).unwrap();
    config.set_event_handler(move |event| {
        if matches!(event, Event::Lock { state: LockState::Lost, .. }) {
            let _ = losses.send(Instant::now());
        }
    });
    (Client::connect(&server.address(), &config).unwrap(), told)
}

/// Deletes what is there, the way a command line does: what comes meanwhile is not seen, and keeps its directory. Who waits loses his
/// place before whoever he waits for does: otherwise he would get in, and lose it then.
fn remove_tree(raw: &mut Raw, path: &str) {
    let mut nodes = tree(raw, path);
    nodes.sort_by_key(|node| std::cmp::Reverse(sequence_number(node)));
    for node in nodes {
        raw.delete(&node);
    }
}

/// All nodes of a tree, those below before those above.
fn tree(raw: &mut Raw, path: &str) -> Vec<String> {
    let children = raw.children(path).unwrap_or_default();
    let mut nodes: Vec<String> = children.iter().flat_map(|child| tree(raw, &format!("{path}/{child}"))).collect();
    nodes.push(path.to_owned());
    nodes
}

/// `None` of a directory.
fn sequence_number(node: &str) -> Option<u32> {
    node.rsplit('-').next().and_then(|end| end.get(end.len().checked_sub(10)?..)).and_then(|digits| digits.parse().ok())
}

/// Takes one of its nodes away from each kind of hold, after `settle`; gives how long it took until its loss was told.
fn lose_one_node(server: &ZooKeeper, kind: Kind, settle: impl Fn(&[String])) -> Duration {
    let (client, told) = client_with_losses(server);
    let (thing, mut raw) = (Thing::new(&client, kind, &path("node")), raw(server));
    let hold = thing.acquire().unwrap();
    let nodes = hold.nodes();
    settle(&nodes);
    let deleted = Instant::now();
    assert_eq!(raw.delete(nodes.last().unwrap()), 0);
    let took = told.recv_timeout(SOON).unwrap() - deleted;
    assert_eq!((hold.state(), hold.is_held()), (LockState::Lost, false), "{kind:?}");
    if let Thing::Multi(_, [first, second]) = &thing {
        assert_eq!((first.state().unwrap(), second.state().unwrap()), (LockState::Held, LockState::Lost));
    }
    assert_eq!(status(hold.release()), Status::Lost, "{kind:?}");
    // Nothing of it is left, and it can be had again.
    wait_until(SOON, || nodes.iter().all(|node| !raw.exists(node)));
    thing.acquire().unwrap().release().unwrap();
    assert!(told.try_recv().is_err(), "{kind:?}: once");
    took
}

/// A hold's nodes are watched from its first heartbeat on.
#[test]
fn a_deleted_node_is_told_at_once_by_its_watch() {
    let server = ZooKeeper::shared();
    std::thread::scope(|scope| {
        for kind in KINDS {
            scope.spawn(move || {
                let is_watched = |node: &String| server.four_letter_word("wchp").contains(node);
                let took = lose_one_node(server, kind, |nodes| wait_until(SOON, || nodes.iter().all(is_watched)));
                println!("{kind:?}, watched: LOST {took:?} after its node was deleted");
                assert!(took < A_BEAT / 4, "{kind:?}: {took:?}");
            });
        }
    });
}

/// Before that, the heartbeat looks.
#[test]
fn a_node_that_is_deleted_before_it_is_watched_is_told_within_a_heartbeat() {
    let server = ZooKeeper::shared();
    std::thread::scope(|scope| {
        for kind in KINDS {
            scope.spawn(move || {
                let took = lose_one_node(server, kind, |_| {});
                println!("{kind:?}, unwatched: LOST {took:?} after its node was deleted");
                assert!(took < A_BEAT, "{kind:?}: {took:?}");
            });
        }
    });
}

/// The directories, too: the holder is told, the one who waits is let in, and what is needed is made anew.
#[test]
fn a_tree_that_is_removed_costs_the_holder_his_hold_and_waiters_nothing() {
    let server = ZooKeeper::shared();
    std::thread::scope(|scope| {
        for kind in KINDS {
            scope.spawn(move || {
                let (path, mut raw) = (path("tree"), raw(server));
                let ((one, told), (two, _)) = (client_with_losses(server), client_with_losses(server));
                // Readers do not wait for each other.
                let wanted = if kind == Kind::Read { Kind::Write } else { kind };
                let (held, wanted) = (Thing::new(&one, kind, &path), Thing::new(&two, wanted, &path));
                let hold = held.acquire().unwrap();
                std::thread::scope(|scope| {
                    let waiter = scope.spawn(|| {
                        let hold = wanted.acquire().unwrap();
                        assert!(hold.is_held());
                        hold.release().unwrap();
                    });
                    wait_until(SOON, || wanted.waits());
                    let start = Instant::now();
                    remove_tree(&mut raw, &path);
                    waiter.join().unwrap();
                    println!("{kind:?}: the waiter was in and out {:?} after its tree was removed", start.elapsed());
                    let took = told.recv_timeout(SOON).unwrap() - start;
                    println!("{kind:?}: LOST {took:?} after");
                    assert!(took < A_BEAT, "{kind:?}: {took:?}");
                });
                assert_eq!(status(hold.release()), Status::Lost, "{kind:?}");
                // With nobody there, all of it goes.
                wait_until(SOON, || {
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

/// The operation and the path of a request that creates something.
fn creation(frame: &[u8]) -> Option<(i32, String)> {
    let number = |at: usize| Some(i32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?));
    let op = number(4).filter(|op| [CREATE, CREATE_CONTAINER].contains(op))?;
    let length = usize::try_from(number(8)?).ok()?;
    Some((op, String::from_utf8(frame.get(12..12 + length)?.to_vec()).ok()?))
}

/// The answer to a create is lost, and an operator removes the node, or the directory too, before the client is back. The client then
/// sends a second create with the same UUID. There is one node in the end, and the client holds it.
#[test]
fn a_node_removed_before_its_lost_create_is_looked_for_leaves_one_node() {
    let server = ZooKeeper::shared();
    for takes_directory in [false, true] {
        let (proxy, path) = (Proxy::start(&server.address()), path("lost"));
        let (client, mut seen) = (Client::connect(&proxy.address(), &Config::new()).unwrap(), raw(server));
        let lock = client.mutex(&path).unwrap();
        lock.acquire(Some(SOON)).and_then(|()| lock.release()).unwrap();
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
                // The handshake of the next connection.
                wait_for_queue(&mut operator, &directory, 1);
                let node = format!("{directory}/{}", queue(&mut operator, &directory)[0]);
                assert_eq!(operator.delete(&node), 0);
                assert!(!takes_directory || operator.delete(&directory) == 0);
            }
            Verdict::Forward
        });
        lock.acquire(Some(SOON)).unwrap();
        let created = created.lock().unwrap().clone();
        assert!(created.len() > 1 && created.iter().all(|node| *node == created[0]), "the same UUID: {created:?}");
        let nodes = queue(&mut seen, &path);
        assert_eq!(nodes.len(), 1, "{nodes:?}");
        assert_eq!(seen.stat(&format!("{path}/{}", nodes[0])).unwrap().czxid, lock.fencing_token().unwrap());
        lock.release().unwrap();
        wait_for_queue(&mut seen, &path, 0);
    }
}

/// If the parent of an existing ancestor does not allow creates, a server answers a create of that ancestor with "no permission". The
/// client makes the directory below it anyway, also if the directory is removed once before the node is made, as servers remove empty
/// containers.
#[test]
fn an_ancestor_that_exists_and_may_not_be_created_is_no_obstacle() {
    let server = ZooKeeper::shared();
    let (proxy, parent) = (Proxy::start(&server.address()), path("fixed"));
    let (client, mut operator) = (Client::connect(&proxy.address(), &Config::new()).unwrap(), raw(server));
    let team = format!("{parent}/team");
    // Makes the parents, and goes.
    let first = client.mutex(&format!("{team}/first")).unwrap();
    first.acquire(Some(SOON)).unwrap();
    operator.forbid_creation(&parent);
    for is_removed in [false, true] {
        let directory = format!("{team}/lock-{is_removed}");
        let (below, mut made, mut is_done) = (format!("{directory}/"), 0, !is_removed);
        let mut remover = raw(server);
        proxy.hook(move |way, frame| {
            let (Direction::ToServer, Some((_, path))) = (way, creation(frame)) else { return Verdict::Forward };
            made += usize::from(path.starts_with(&below));
            // The first one finds no directory; the second one comes behind its creation.
            if made == 2 && !std::mem::replace(&mut is_done, true) {
                wait_until(SOON, || remover.delete(below.trim_end_matches('/')) == 0);
            }
            Verdict::Forward
        });
        let lock = client.mutex(&directory).unwrap();
        lock.acquire(Some(SOON)).unwrap();
        lock.release().unwrap();
    }
    proxy.unhook();
    // A directory that is missing and may not be made is still refused.
    let missing = client.mutex(&format!("{parent}/missing/lock")).unwrap();
    assert_eq!(status(missing.acquire(Some(SOON))), Status::Denied);
    let multi = Lock::multi(&[&missing, &client.mutex(&format!("{team}/another")).unwrap()]).unwrap();
    assert_eq!(status(multi.acquire(Some(SOON))), Status::Denied);
    first.release().unwrap();
}

/// The count of a semaphore exists, so that nothing has to be made.
#[test]
fn a_count_that_exists_and_may_not_be_created_is_used() {
    let server = ZooKeeper::shared();
    let (client, mut operator) = (Client::connect(&server.address(), &Config::new()).unwrap(), raw(server));
    let (parent, semaphore) = (path("counts"), path("counted"));
    client.set_count(&format!("{parent}/count"), 2).unwrap();
    operator.forbid_creation(&parent);
    let counted = client.counted_semaphore(&semaphore, &format!("{parent}/count"), 7).unwrap();
    counted.acquire(2, Some(SOON)).unwrap().release().unwrap();
    assert_eq!(
        client.counted_semaphore(&semaphore, &format!("{parent}/none"), 7).err().unwrap().status(),
        Status::Denied
    );
}
