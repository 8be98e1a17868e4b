//! zklock in a directory with nodes whose names come from ZooKeeper's own lock recipes, in C and in Java. These recipes
//! order all children by the text after the last dash, and the C recipe crashes if a name has no dash. They cannot
//! share a path with any other library.

use zklock::Status;
use zklock_test_support::flags;

use crate::fixture::{CheckContext, OtherLibrary};
use crate::queued_acquire::{LockKind, lock};
use crate::queues::{LONG_WAIT, TRY_ONCE, at_once, refusal};
use crate::table::{CheckResult, Row};

/// The recipes and the names of their nodes without the sequence number.
pub(crate) const NAMES: [(&str, &str); 2] = [
    ("C recipe: x-<session in hex>-", "x-0100000714a2000f-"),
    ("Java WriteLock: x-<session>-", "x-72057624736235520-"),
];

pub(crate) fn rows() -> Vec<Row> {
    vec![
        Row { name: "the node exists: a mutex fails with FOREIGN", check: |cx| refused(cx, LockKind::Mutex) },
        Row { name: "the node exists: a write lock fails with FOREIGN", check: |cx| refused(cx, LockKind::Write) },
        Row { name: "the node exists: a read lock fails with FOREIGN", check: |cx| refused(cx, LockKind::Read) },
        Row { name: "the node is created later: the next mutex fails with FOREIGN", check: comes_later },
        Row { name: "the node exists: a client that waits for kazoo also fails", check: waiting_for_kazoo },
        Row { name: "the node is among leases: it counts as a lease", check: among_leases },
    ]
}

/// Creates such a node in this directory.
fn node(cx: &CheckContext<'_>, path: &str) -> String {
    let OtherLibrary::Recipe(name) = cx.other else { panic!("this check needs a node of a recipe") };
    let mut raw = cx.raw();
    // The node is persistent. It remains after the end of this session, and no check waits for it.
    raw.create_with_ancestors(&format!("{path}/{name}"), b"", flags::PERSISTENT | flags::SEQUENTIAL).unwrap()
}

fn refused(cx: &CheckContext<'_>, kind: LockKind) -> CheckResult {
    let path = cx.path("there");
    let node = node(cx, &path);
    let ours = lock(&cx.client(), kind, &path);
    assert_eq!(refusal(|| ours.acquire(TRY_ONCE)), Status::Foreign);
    let error = ours.acquire(LONG_WAIT).unwrap_err();
    assert_eq!(error.status(), Status::Foreign);
    assert!(error.message().contains("ZooKeeper's own lock recipe"), "{error}");
    cx.wait_for_nodes(&path, 1);
    cx.raw().delete(&node);
    at_once(|limit| ours.acquire(limit));
    ours.release().unwrap();
    CheckResult::Same
}

fn comes_later(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("later");
    let (held, wanted) = (lock(&cx.client(), LockKind::Mutex, &path), lock(&cx.client(), LockKind::Mutex, &path));
    at_once(|limit| held.acquire(limit));
    node(cx, &path);
    assert!(held.is_held().unwrap());
    assert_eq!(refusal(|| wanted.acquire(LONG_WAIT)), Status::Foreign);
    held.release().unwrap();
    CheckResult::Same
}

fn waiting_for_kazoo(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("there");
    node(cx, &path);
    let ours = lock(&cx.client_with(|config| config.wait_for_kazoo(true)), LockKind::Mutex, &path);
    assert_eq!(refusal(|| ours.acquire(LONG_WAIT)), Status::Foreign);
    CheckResult::Same
}

fn among_leases(cx: &CheckContext<'_>) -> CheckResult {
    let node = node(cx, &cx.path("leases"));
    let ours = cx.client().semaphore(&cx.root(), 2).unwrap();
    assert_eq!(refusal(|| ours.acquire(2, TRY_ONCE).map(drop)), Status::Timeout);
    at_once(|limit| ours.acquire(1, limit)).release().unwrap();
    cx.raw().delete(&node);
    at_once(|limit| ours.acquire(2, limit)).release().unwrap();
    CheckResult::Same
}
