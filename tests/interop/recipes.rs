//! zklock where nodes stand that are called as in ZooKeeper's own lock recipes, in C and in Java. They order all children by what is behind the
//! last dash, and the one in C crashes where there is none: they can share a path with nobody.

use zklock::Status;
use zklock_rig::flags;

use crate::common::status;
use crate::places::{Kind, lock};
use crate::queues::{NOW, SOME};
use crate::side::{Met, Side};
use crate::table::{Row, Seen};

/// Who makes such nodes, and what they are called up to the number.
pub(crate) const NAMES: [(&str, &str); 2] = [
    ("C recipe: x-<session in hex>-", "x-0100000714a2000f-"),
    ("Java WriteLock: x-<session>-", "x-72057624736235520-"),
];

pub(crate) fn rows() -> Vec<Row> {
    vec![
        Row { name: "it is there: a mutex says FOREIGN", check: |side| refused(side, Kind::Mutex) },
        Row { name: "it is there: a write lock says FOREIGN", check: |side| refused(side, Kind::Write) },
        Row { name: "it is there: a read lock says FOREIGN", check: |side| refused(side, Kind::Read) },
        Row { name: "it comes later: the next mutex says FOREIGN", check: comes_later },
        Row { name: "it is there: also for who waits for kazoo", check: waiting_for_kazoo },
        Row { name: "among leases: counts as one", check: among_leases },
    ]
}

/// Such a node in this directory.
fn node(side: &Side<'_>, path: &str) -> String {
    let Met::Recipe(name) = side.met else { panic!("a node is met") };
    let mut raw = side.raw();
    // Whether it is there does not matter.
    let _ = raw.create(path, b"", flags::PERSISTENT);
    // It stays when this session ends: nobody of ours waits for it.
    raw.create(&format!("{path}/{name}"), b"", flags::PERSISTENT | flags::SEQUENTIAL).unwrap()
}

fn refused(side: &Side<'_>, kind: Kind) -> Seen {
    let path = side.path("there");
    let node = node(side, &path);
    let ours = lock(&side.client(), kind, &path);
    assert_eq!(status(ours.acquire(NOW)), Status::Foreign);
    let error = ours.acquire(SOME).unwrap_err();
    assert_eq!(error.status(), Status::Foreign);
    assert!(error.message().contains("ZooKeeper's own lock recipe"), "{error}");
    side.wait_for_nodes(&path, 1);
    side.raw().delete(&node);
    ours.acquire(NOW).unwrap();
    ours.release().unwrap();
    Seen::Alike
}

fn comes_later(side: &Side<'_>) -> Seen {
    let path = side.path("later");
    let (held, wanted) = (lock(&side.client(), Kind::Mutex, &path), lock(&side.client(), Kind::Mutex, &path));
    held.acquire(NOW).unwrap();
    node(side, &path);
    assert!(held.is_held().unwrap());
    assert_eq!(status(wanted.acquire(SOME)), Status::Foreign);
    held.release().unwrap();
    Seen::Alike
}

fn waiting_for_kazoo(side: &Side<'_>) -> Seen {
    let path = side.path("there");
    node(side, &path);
    let ours = lock(&side.client_with(|config| config.set_wait_for_kazoo(true)), Kind::Mutex, &path);
    assert_eq!(status(ours.acquire(SOME)), Status::Foreign);
    Seen::Alike
}

fn among_leases(side: &Side<'_>) -> Seen {
    let node = node(side, &side.path("leases"));
    let ours = side.client().semaphore(&side.root(), 2).unwrap();
    assert_eq!(status(ours.acquire(2, NOW).map(drop)), Status::Timeout);
    ours.acquire(1, NOW).unwrap().release().unwrap();
    side.raw().delete(&node);
    ours.acquire(2, NOW).unwrap().release().unwrap();
    Seen::Alike
}
