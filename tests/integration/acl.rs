//! Access control lists: the lists of the nodes that a client creates, the permissions that each operation requires,
//! and the errors if a permission is missing. The tests run on Debian's ZooKeeper and on the newest one, because only
//! newer servers check the permission to read when they report whether a node exists, and when they send watch events.

use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

use crate::common::{TEST_TIMEOUT, assert_times_out, path, queue, raw, status, wait_for_queue};
use zklock::{Client, Config, Error, Lock, Result, Status};
use zklock_test_support::permissions::{ADMIN, ALL, CREATE, DELETE, READ, WRITE};
use zklock_test_support::{RawClient, ZooKeeper, flags, wait_until};

const ANYONE: (&str, &str) = ("world", "anyone");
const NO_AUTH: i32 = -102;
/// A time limit for acquires that must not succeed.
const SHORT: Duration = Duration::from_secs(1);

fn newest() -> &'static ZooKeeper {
    static NEWEST: OnceLock<ZooKeeper> = OnceLock::new();
    NEWEST.get_or_init(|| ZooKeeper::options().newest().start())
}

fn servers() -> [&'static ZooKeeper; 2] {
    [ZooKeeper::shared(), newest()]
}

/// Creates a client that authenticates as `user` and sets these options.
fn client(server: &ZooKeeper, user: &str, options: &[(&str, &str)]) -> Client {
    create_shared_parent(server);
    let mut config = Config::new();
    if !user.is_empty() {
        config = config.add_auth("digest", format!("{user}:secret"));
    }
    options.iter().for_each(|(name, value)| config.set(name, value).unwrap());
    Client::connect(&server.address(), &config).unwrap()
}

fn raw_as(server: &ZooKeeper, user: &str) -> RawClient {
    let mut raw = raw(server);
    raw.authenticate("digest", &format!("{user}:secret")).unwrap();
    raw
}

/// Creates the parent of the paths of all tests, unless it exists. A client with the option `acl.parents` would otherwise
/// create the parent with permissions that exclude the other tests.
fn create_shared_parent(server: &ZooKeeper) {
    let _ = raw(server).create(path("").rsplit_once('/').unwrap().0, b"", flags::PERSISTENT);
}

/// Creates a persistent directory with the given permissions for everyone.
fn directory(server: &ZooKeeper, name: &str, permissions: i32) -> String {
    let path = path(name);
    create_shared_parent(server);
    create_directory(server, &path, permissions);
    path
}

fn create_directory(server: &ZooKeeper, path: &str, permissions: i32) {
    let acl = [(permissions, ANYONE.0, ANYONE.1)];
    raw(server).create_with_acl(path, b"", flags::PERSISTENT, &acl).unwrap();
}

fn acquire(lock: &Lock) -> Result<()> {
    lock.acquire(Some(TEST_TIMEOUT))
}

#[track_caller]
fn denied<T>(result: Result<T>, permission: &str, node: &str) -> Error {
    let error = result.err().unwrap();
    assert_eq!(error.status(), Status::Denied, "{error}");
    let end = format!("; this requires the permission {permission} on {node}");
    assert!(error.message().ends_with(&end), "{error}\ndoes not end with\n{end}");
    error
}

/// All nodes of a tree, with their access control lists. The tree may change in the meantime.
fn tree(raw: &mut RawClient, path: &str) -> Vec<(String, Vec<String>)> {
    let mut nodes: Vec<_> = raw.acl(path).map(|acl| (path.to_owned(), acl)).into_iter().collect();
    for child in raw.children(path).unwrap_or_default() {
        nodes.extend(tree(raw, &format!("{path}/{child}")));
    }
    nodes
}

/// Acquires a lock of each recipe below `path`, and calls `check` while the client holds all of them.
fn hold_every_recipe(client: &Client, path: &str, check: impl FnOnce()) {
    let rw = client.rwlock(&format!("{path}/rw")).unwrap();
    let members = ["first", "second"].map(|name| client.mutex(&format!("{path}/multi/{name}")).unwrap());
    let locks = [
        client.mutex(&format!("{path}/mutex")).unwrap(),
        rw.write,
        // The client nests this read lock in the write lock.
        rw.read,
        client.rwlock(&format!("{path}/readers")).unwrap().read,
        client.semaphore_mutex(&format!("{path}/semaphore mutex")).unwrap(),
        Lock::multi(&[&members[0], &members[1]]).unwrap(),
    ];
    locks.iter().for_each(|lock| acquire(lock).unwrap());
    let fixed = client.semaphore(&format!("{path}/leases"), 3).unwrap().acquire(2, Some(TEST_TIMEOUT)).unwrap();
    let counted = client.semaphore_counted(&format!("{path}/counted"), &format!("{path}/counts/max"), 2).unwrap();
    let counted = counted.acquire(1, Some(TEST_TIMEOUT)).unwrap();
    check();
    locks.iter().rev().for_each(|lock| lock.release().unwrap());
    fixed.release().unwrap();
    counted.release().unwrap();
}

#[test]
fn each_place_has_its_own_list_in_every_recipe() {
    for server in servers() {
        let options =
            [("acl", "auth::rw, world:anyone:r"), ("acl.lock_directory", "auth::crd"), ("acl.parents", "creator_all")];
        let (client, mut alice, path) = (client(server, "alice", &options), raw_as(server, "alice"), path("places"));
        hold_every_recipe(&client, &path, || {
            let parents = ["", "/multi", "/counts"].map(|below| format!("{path}{below}"));
            for (node, acl) in tree(&mut alice, &path) {
                let permissions = match () {
                    () if parents.contains(&node) => ALL,
                    () if node.contains("/_c_") => READ | WRITE,
                    () => CREATE | READ | DELETE,
                };
                let anyone = if node.contains("/_c_") { 2 } else { 1 };
                assert_eq!(acl.len(), anyone, "{node}: {acl:?}");
                assert!(acl[0].starts_with(&format!("{permissions} digest:alice:")), "{node}: {acl:?}");
                assert!(anyone == 1 || acl[1] == format!("{READ} world:anyone"), "{node}: {acl:?}");
            }
            // The clients delete the nodes in `locks` without waiting for the server.
            let is_held = |node: &String| node.contains("/_c_") && !node.contains("/locks/");
            let nodes = tree(&mut alice, &path).iter().filter(|(node, _)| is_held(node)).count();
            assert_eq!(nodes, 10, "one node for each lock and lease");
        });
    }
}

/// The default of each list is the list of the place below. A program that sets nothing creates open nodes.
#[test]
fn lists_that_are_not_set_have_defaults() {
    let server = ZooKeeper::shared();
    let (open, read) = (format!("{ALL} world:anyone"), format!("{} world:anyone", ALL & !ADMIN));
    type Row<'a> = (&'a [(&'a str, &'a str)], [&'a String; 3]);
    let rows: [Row<'_>; 4] = [
        (&[], [&open, &open, &open]),
        (&[("acl", "world:anyone:cdrw")], [&read, &read, &read]),
        (&[("acl.parents", "world:anyone:cdrw")], [&read, &read, &open]),
        (&[("acl.lock_directory", "world:anyone:cdrw"), ("acl", "open")], [&open, &read, &open]),
    ];
    for (options, expected) in rows {
        let (client, mut raw, path) = (client(server, "", options), raw(server), path("defaults"));
        let lock = client.mutex(&format!("{path}/lock")).unwrap();
        acquire(&lock).unwrap();
        let node = lock.node_paths().unwrap()[0].clone();
        let found = [path.clone(), format!("{path}/lock"), node].map(|node| raw.acl(&node).unwrap().join(","));
        assert_eq!(found.each_ref(), expected, "{options:?}");
        lock.release().unwrap();
    }
}

#[test]
fn chroot_has_the_list_of_parents() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("chroot"), raw(server));
    let mut config = Config::new().create_chroot(true);
    config.set("acl.parents", "world:anyone:crd").unwrap();
    let client = Client::connect(&format!("{}{path}", server.address()), &config).unwrap();
    // While the lock is held, the server does not delete its directory.
    let lock = client.mutex("/lock").unwrap();
    acquire(&lock).unwrap();
    let list = [format!("{} world:anyone", CREATE | READ | DELETE)];
    assert_eq!((raw.acl(&path).unwrap(), raw.acl(&format!("{path}/lock")).unwrap()), (list.to_vec(), list.to_vec()));
    lock.release().unwrap();
}

/// The server answers InvalidACL if it cannot resolve `auth`, and if it does not support a scheme.
#[test]
fn list_that_the_server_refuses_is_named_with_what_to_do() {
    let needs = "creator_all and auth require credentials: set the option auth.digest or sasl.mechanism, or use a client certificate";
    for server in servers() {
        for (option, list, what) in [
            ("acl", "creator_all", needs),
            ("acl.parents", "creator_all", needs),
            ("acl.lock_directory", "world:anyone:r,auth::cdr", needs),
            ("acl", "sasl:alice:cdrwa", "the servers must support each scheme and the form of each id"),
        ] {
            let (path, client) = (path("refused"), client(server, "", &[(option, list)]));
            let paths = [format!("{path}/one"), format!("{path}/two")];
            let members = paths.each_ref().map(|path| client.mutex(path).unwrap());
            let multi = Lock::multi(&[&members[0], &members[1]]).unwrap();
            let semaphore = client.semaphore(&paths[0], 1).unwrap();
            for refused in [
                members[0].acquire(Some(TEST_TIMEOUT)),
                members[0].acquire(Some(Duration::ZERO)),
                multi.acquire(Some(TEST_TIMEOUT)),
                semaphore.acquire(1, Some(TEST_TIMEOUT)).map(drop),
            ] {
                let error = refused.unwrap_err();
                assert_eq!(error.status(), Status::Invalid, "{option}={list}: {error}");
                assert!(error.message().contains(what), "{option}={list}: {error}");
                assert!(error.message().contains(&format!("of the option {option}")), "{option}={list}: {error}");
            }
        }
        let count = client(server, "", &[("acl", "creator_all")]).shared_count_set(&path("count"), 1).unwrap_err();
        assert_eq!(count.status(), Status::Invalid, "{count}");
        assert!(count.message().contains(needs), "{count}");
    }
}

/// Each row of the table on the page about access control.
#[test]
fn each_operation_requires_its_permissions() {
    for server in servers() {
        let (client, mut operator) = (client(server, "", &[]), raw(server));
        // Acquire.
        let missing = directory(server, "parent", ALL & !CREATE);
        let lock = client.mutex(&format!("{missing}/team/lock")).unwrap();
        let error = denied(acquire(&lock), "c (create)", &missing);
        assert!(error.message().contains(&format!("creating the directory {missing}/team: ")), "{error}");
        let closed = directory(server, "closed", READ | DELETE);
        denied(acquire(&client.mutex(&closed).unwrap()), "c (create)", &closed);
        let unlisted = directory(server, "unlisted", CREATE | DELETE);
        let lock = client.mutex(&unlisted).unwrap();
        denied(acquire(&lock), "r (read)", &unlisted);
        denied(lock.acquire(Some(Duration::ZERO)), "r (read)", &unlisted);
        // Queries.
        denied(lock.participants(), "r (read)", &unlisted);
        denied(client.fence_check(&unlisted, 1), "r (read)", &unlisted);
        let hidden = directory(server, "hidden", ALL);
        let node = operator.create_unreadable(&format!("{hidden}/x-lock-"), flags::EPHEMERAL_SEQUENTIAL).unwrap();
        let lock = client.mutex(&hidden).unwrap();
        denied(lock.participants(), "r (read)", &node);
        denied(acquire(&lock), "r (read)", &node);
        // Only newer servers check this permission for `exists`.
        if std::ptr::eq(server, newest()) {
            denied(client.fence_check(&hidden, 1), "r (read)", &node);
        }
        wait_for_queue(&mut operator, &hidden, 1);
        // Acquire and release need no more than these permissions.
        let enough = directory(server, "enough", CREATE | READ | DELETE);
        let lock = client.mutex(&enough).unwrap();
        acquire(&lock).unwrap();
        assert!(client.fence_check(&enough, lock.fencing_token().unwrap()).unwrap());
        assert_eq!(lock.participants().unwrap().len(), 1);
        lock.release().unwrap();
    }
}

#[test]
fn semaphores_require_their_permissions_on_both_inner_directories() {
    let server = ZooKeeper::shared();
    let (client, enough) = (client(server, "", &[]), CREATE | READ | DELETE);
    let semaphore_with = |permissions: [i32; 2]| {
        let path = directory(server, "semaphore", ALL);
        for (name, permissions) in ["locks", "leases"].into_iter().zip(permissions) {
            create_directory(server, &format!("{path}/{name}"), permissions);
        }
        path
    };
    let semaphore = client.semaphore(&semaphore_with([enough; 2]), 1).unwrap();
    semaphore.acquire(1, Some(TEST_TIMEOUT)).unwrap().release().unwrap();
    for (at, name) in ["locks", "leases"].into_iter().enumerate() {
        for (permission, text) in [(CREATE, "c (create)"), (READ, "r (read)")] {
            let mut permissions = [enough; 2];
            permissions[at] &= !permission;
            let path = semaphore_with(permissions);
            let semaphore = client.semaphore(&path, 1).unwrap();
            denied(semaphore.acquire(1, Some(TEST_TIMEOUT)), text, &format!("{path}/{name}"));
        }
    }
}

#[test]
fn shared_counts_require_their_permissions() {
    let server = ZooKeeper::shared();
    let (client, mut operator) = (client(server, "", &[]), raw(server));
    let parent = directory(server, "counts", ALL);
    let count = |operator: &mut RawClient, name: &str, permissions| {
        let (path, number) = (format!("{parent}/{name}"), 3_i32.to_be_bytes());
        let acl = [(permissions, ANYONE.0, ANYONE.1)];
        operator.create_with_acl(&path, &number, flags::PERSISTENT, &acl).unwrap();
        path
    };
    let (readable, writable) = (count(&mut operator, "read", READ), count(&mut operator, "write", WRITE));
    assert_eq!(client.shared_count_get(&readable).unwrap(), 3);
    denied(client.shared_count_set(&readable, 4), "w (write)", &readable);
    client.shared_count_set(&writable, 4).unwrap();
    denied(client.shared_count_get(&writable), "r (read)", &writable);
    let semaphore = client.semaphore_counted(&path("counted"), &writable, 1);
    denied(semaphore.and_then(|semaphore| semaphore.acquire(1, Some(TEST_TIMEOUT))), "r (read)", &writable);
    let closed = directory(server, "closed counts", READ);
    denied(client.shared_count_set(&format!("{closed}/new"), 1), "c (create)", &closed);
    denied(client.shared_count_set(&format!("{closed}/below/new"), 1), "c (create)", &closed);
    denied(client.semaphore_counted(&path("counted"), &format!("{closed}/new"), 1), "c (create)", &closed);
}

#[test]
fn records_beside_a_lock_require_their_permissions() {
    for server in servers() {
        let (client, mut operator) = (client(server, "", &[]), raw(server));
        let parent = directory(server, "records", ALL);
        let record = |operator: &mut RawClient, name: &str, permissions| {
            let path = format!("{parent}/{name}");
            let acl = [(permissions, ANYONE.0, ANYONE.1)];
            operator.create_with_acl(&path, b"", flags::PERSISTENT, &acl).unwrap();
            path
        };
        let (readable, writable) = (record(&mut operator, "read", READ), record(&mut operator, "write", WRITE));
        let lock = client.mutex(&format!("{parent}/lock")).unwrap();
        acquire(&lock).unwrap();
        let hold = lock.node_paths().unwrap().remove(0);
        denied(client.read_node(&writable), "r (read)", &writable);
        denied(client.write_node(&hold, &readable, b"run", Some(0)), "w (write)", &readable);
        assert_eq!(client.write_node(&hold, &writable, b"run", Some(0)).unwrap(), Some(1));
        let closed = directory(server, "closed records", READ);
        denied(client.write_node(&hold, &format!("{closed}/new"), b"run", None), "c (create)", &closed);
        operator.set_acl(&hold, &[(WRITE, ANYONE.0, ANYONE.1)]);
        denied(client.write_node(&hold, &writable, b"run", Some(1)), "r (read)", &hold);
    }
}

#[test]
fn denied_directory_of_a_multi_lock_is_named() {
    let server = ZooKeeper::shared();
    let client = client(server, "", &[]);
    let (good, closed) = (directory(server, "good", ALL), directory(server, "closed", READ | DELETE));
    let (missing, mut raw) = (format!("{closed}/missing"), raw(server));
    for (bad, node) in [(&closed, &closed), (&missing, &closed)] {
        let members = [&good, bad].map(|path| client.mutex(path).unwrap());
        let multi = Lock::multi(&[&members[0], &members[1]]).unwrap();
        denied(acquire(&multi), "c (create)", node);
        assert_eq!(queue(&mut raw, &good), [""; 0], "the transaction creates all nodes or none");
    }
}

/// A waiter must be able to read the node ahead. Otherwise it would never notice that the node was deleted.
#[test]
fn waiter_that_may_not_read_the_node_ahead_is_denied() {
    for server in servers() {
        let options = [("acl", "creator_all"), ("acl.parents", "open")];
        let [alice, bob] = ["alice", "bob"].map(|user| client(server, user, &options));
        let path = path("private");
        let [held, wanted] = [&alice, &bob].map(|client| client.mutex(&path).unwrap());
        acquire(&held).unwrap();
        let node = held.node_paths().unwrap()[0].clone();
        denied(acquire(&wanted), "r (read)", &node);
        held.release().unwrap();
        acquire(&wanted).unwrap();
        wanted.release().unwrap();
        // The same with directory caches, after quick cycles of both clients.
        for _ in 0..6 {
            for lock in [&held, &wanted] {
                let Err(error) = acquire(lock).and_then(|()| lock.release()) else { continue };
                assert_eq!(error.status(), Status::Denied, "{error}");
            }
        }
        acquire(&held).unwrap();
        denied(acquire(&wanted), "r (read)", &held.node_paths().unwrap()[0]);
        held.release().unwrap();
    }
}

/// A holder does not have to read its own node, but a waiter does.
#[test]
fn waiter_must_be_able_to_read_its_own_node() {
    let server = ZooKeeper::shared();
    let (path, other) = (path("own"), client(server, "", &[]));
    let client = client(server, "", &[("acl", "world:anyone:cdwa"), ("acl.parents", "open")]);
    let (lock, blocking) = (client.mutex(&path).unwrap(), other.mutex(&path).unwrap());
    acquire(&lock).unwrap();
    assert!(lock.is_held().unwrap());
    lock.release().unwrap();
    acquire(&blocking).unwrap();
    let error = acquire(&lock).unwrap_err();
    assert_eq!(error.status(), Status::Denied, "{error}");
    assert!(error.message().contains("reading the client's own node in"), "{error}");
    assert!(error.message().contains(&format!("requires the permission r (read) on {path}/_c_")), "{error}");
    blocking.release().unwrap();
}

#[test]
fn revocation_requires_write_permission_on_the_node() {
    let server = ZooKeeper::shared();
    let (path, other) = (path("revoke"), client(server, "", &[]));
    let lists = [("acl", "auth::cdrwa,world:anyone:r"), ("acl.parents", "open")];
    let (alice, friend) = (client(server, "alice", &lists), client(server, "alice", &[]));
    let lock = alice.mutex(&path).unwrap();
    let (requests, told) = mpsc::channel();
    lock.set_revocable(Some(move |_: &str| requests.send(()).unwrap())).unwrap();
    acquire(&lock).unwrap();
    let node = lock.node_paths().unwrap()[0].clone();
    denied(other.revoke(&node), "w (write)", &node);
    assert!(told.try_recv().is_err());
    friend.revoke(&node).unwrap();
    told.recv_timeout(TEST_TIMEOUT).unwrap();
    lock.release().unwrap();
}

/// No client may delete nodes in this directory, not even the nodes that it created. A holder gives up the lock when it
/// closes its client.
#[test]
fn client_that_may_not_delete_frees_the_lock_when_it_is_closed() {
    for server in servers() {
        let path = directory(server, "no delete", CREATE | READ);
        let ([one, two], mut raw) = ([(); 2].map(|()| client(server, "", &[])), raw(server));
        let [held, wanted] = [&one, &two].map(|client| client.mutex(&path).unwrap());
        acquire(&held).unwrap();
        let node = held.node_paths().unwrap()[0].clone();
        assert_eq!(raw.delete(&node), NO_AUTH, "others may not delete the node");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| acquire(&wanted));
            wait_for_queue(&mut raw, &path, 2);
            let start = Instant::now();
            let error = denied(held.release(), "d (delete)", &path);
            assert!(error.message().contains(&node) && error.message().contains("zklock repeats"), "{error}");
            assert!(!held.is_held().unwrap());
            // Another acquire of the same client would wait behind its own node.
            for limit in [None, Some(TEST_TIMEOUT), Some(Duration::ZERO)] {
                let error = denied(held.acquire(limit), "d (delete)", &path);
                assert!(error.message().contains(&format!("{node} is still in the queue")), "{error}");
            }
            assert_eq!(queue(&mut raw, &path).len(), 2, "the refused acquires created no nodes");
            assert!(!waiter.is_finished());
            one.close().unwrap();
            waiter.join().unwrap().unwrap();
            println!("released, refused and closed in {:?}", start.elapsed());
            assert!(start.elapsed() < TEST_TIMEOUT / 4);
        });
        // A waiter whose timeout has passed remains in the queue too, until its client is closed.
        let three = client(server, "", &[]);
        assert_eq!(status(three.mutex(&path).unwrap().acquire(Some(SHORT))), Status::Timeout);
        assert_eq!(queue(&mut raw, &path).len(), 2);
        three.close().unwrap();
        assert_eq!(queue(&mut raw, &path).len(), 1);
        two.close().unwrap();
        assert_eq!(queue(&mut raw, &path), [""; 0]);
    }
}

/// The client repeats a delete request that the server refused.
#[test]
fn node_disappears_after_the_permission_is_granted() {
    let server = ZooKeeper::shared();
    let (path, client, mut operator) =
        (directory(server, "granted", ALL & !DELETE), client(server, "", &[]), raw(server));
    let lock = client.mutex(&path).unwrap();
    acquire(&lock).unwrap();
    denied(lock.release(), "d (delete)", &path);
    operator.set_acl(&path, &[(ALL, ANYONE.0, ANYONE.1)]);
    wait_for_queue(&mut operator, &path, 0);
    wait_until(TEST_TIMEOUT, || acquire(&lock).is_ok());
    lock.release().unwrap();
}

/// An acquire of a lease deletes a node in `locks`. If the client may not delete this node, the acquire succeeds, but
/// all other acquires fail or wait until the client is closed.
#[test]
fn semaphore_without_permission_to_delete_is_blocked_until_its_client_is_closed() {
    let server = ZooKeeper::shared();
    let path = directory(server, "leases", ALL);
    let locks = format!("{path}/locks");
    create_directory(server, &locks, CREATE | READ);
    let [one, two] = [(); 2].map(|()| client(server, "", &[]));
    let [first, second] = [&one, &two].map(|client| client.semaphore(&path, 3).unwrap());
    let leases = first.acquire(1, Some(TEST_TIMEOUT)).unwrap();
    assert_eq!(status(second.acquire(1, Some(SHORT))), Status::Timeout);
    wait_until(TEST_TIMEOUT, || first.acquire(1, Some(SHORT)).is_err_and(|error| error.status() == Status::Denied));
    leases.release().unwrap();
    one.close().unwrap();
    two.close().unwrap();
    let three = client(server, "", &[]);
    three.semaphore(&path, 3).unwrap().acquire(1, Some(TEST_TIMEOUT)).unwrap().release().unwrap();
}

/// Only the group may delete in the directory, and thus release a lock. All clients may queue and read.
#[test]
fn others_may_queue_but_only_the_group_may_delete() {
    for server in servers() {
        let parent = directory(server, "group", ALL);
        let path = format!("{parent}/lock");
        let lists = [("acl", "auth::rw,world:anyone:r"), ("acl.lock_directory", "auth::cdrwa,world:anyone:cr")];
        let [one, two] = [(); 2].map(|()| client(server, "team", &lists));
        let [held, wanted] = [&one, &two].map(|client| client.mutex(&path).unwrap());
        acquire(&held).unwrap();
        let (node, mut outsider) = (held.node_paths().unwrap()[0].clone(), raw(server));
        assert_eq!((outsider.delete(&node), outsider.set_data(&node, b"x")), (NO_AUTH, NO_AUTH));
        assert_eq!(raw_as(server, "another").delete(&node), NO_AUTH);
        let guest = client(server, "", &[]);
        let visit = guest.mutex(&path).unwrap();
        assert_eq!(visit.participants().unwrap().len(), 1);
        assert_times_out(Duration::ZERO, |limit| visit.acquire(Some(limit)));
        std::thread::scope(|scope| {
            scope.spawn(|| acquire(&wanted).and_then(|()| wanted.release()).unwrap());
            wait_for_queue(&mut outsider, &path, 2);
            let last = scope.spawn(|| acquire(&visit).map(|()| visit.release()));
            wait_for_queue(&mut outsider, &path, 3);
            held.release().unwrap();
            denied(last.join().unwrap().unwrap(), "d (delete)", &path);
        });
        guest.close().unwrap();
        acquire(&held).unwrap();
        held.release().unwrap();
    }
}

/// Without `c` for others, an outsider can neither delay the group nor take part.
#[test]
fn outsiders_of_a_closed_group_are_denied() {
    let server = ZooKeeper::shared();
    let (parent, lists) = (directory(server, "closed group", ALL), [("acl", "creator_all")]);
    let path = format!("{parent}/lock");
    let [one, two] = [(); 2].map(|()| client(server, "team", &lists));
    let [held, wanted] = [&one, &two].map(|client| client.mutex(&path).unwrap());
    acquire(&held).unwrap();
    let outsider = client(server, "", &[]).mutex(&path).unwrap();
    denied(acquire(&outsider), "c (create)", &path);
    denied(outsider.participants(), "r (read)", &path);
    std::thread::scope(|scope| {
        scope.spawn(|| acquire(&wanted).and_then(|()| wanted.release()).unwrap());
        wait_for_queue(&mut raw_as(server, "team"), &path, 2);
        held.release().unwrap();
    });
}
