//! zklock and kazoo: two kinds of locks on one path, with and without the settings that make them recognize each other.

use zklock::Status;
use zklock_test_support::{CuratorPeer, CuratorVersion, wait_until};

use crate::acl;
use crate::common::{OwnerCalls as _, TEST_TIMEOUT};
use crate::fixture::CheckContext;
use crate::queued_acquire::{LockKind, ME, lock};
use crate::queues::{self, LONG_WAIT, TRY_ONCE, assert_other_is_refused, at_once, refusal};
use crate::table::{CheckResult, Row};

use LockKind::{Mutex, Read, Write};

pub(crate) fn rows() -> Vec<Row> {
    vec![
        Row { name: "no settings: kazoo holds, zklock fails with FOREIGN", check: foreign },
        Row { name: "no settings: zklock holds, kazoo acquires", check: kazoo_without_pattern_ignores_zklock },
        Row { name: "only zklock has the setting", check: only_zklock_waits },
        Row { name: "only kazoo has the pattern", check: only_kazoo_waits },
        Row { name: "both: kazoo holds, zklock waits", check: |cx| queues::zklock_waits(cx, Mutex) },
        Row { name: "both: zklock holds, kazoo waits", check: |cx| queues::other_waits(cx, Mutex) },
        Row { name: "both: eight owners in the order of the queue", check: |cx| queues::in_order(cx, &[Mutex; 8]) },
        Row { name: "both: exclusion under load", check: |cx| queues::under_load(cx, Mutex) },
        Row { name: "both: participants, according to zklock", check: participants },
        Row { name: "both: kazoo killed while it holds and waits: zklock acquires", check: queues::other_is_killed },
        Row { name: "both: kazoo paused until its session expires: zklock acquires", check: queues::other_is_paused },
        Row {
            name: "both: zklock killed while it holds and waits: the other acquires",
            check: queues::zklock_is_killed,
        },
        Row { name: "both: zklock paused until its session expires: kazoo acquires", check: queues::zklock_is_paused },
        Row { name: "both: client closed on one side: the other side acquires", check: queues::clients_close },
        Row { name: "both: a waiter that times out leaves no node", check: queues::waiters_give_up },
        Row {
            name: "read/write, both: kazoo's WriteLock holds, zklock waits",
            check: |cx| queues::zklock_waits(cx, Write),
        },
        Row {
            name: "read/write, both: zklock writes, kazoo's WriteLock waits",
            check: |cx| queues::other_waits(cx, Write),
        },
        Row {
            name: "read/write, both: nine owners; readers together, writers alone",
            check: |cx| queues::in_order(cx, &[Read, Read, Write, Read, Read, Write, Write, Read, Write]),
        },
        Row { name: "read/write, both: exclusion under load", check: queues::read_and_write_under_load },
        Row { name: "read/write: kazoo's ReadLock with both patterns", check: reader_with_both_patterns },
        Row { name: "read/write: kazoo's Lock beside readers", check: lock_beside_readers },
        Row { name: "read/write, no settings: kazoo holds, zklock fails with FOREIGN", check: foreign_read_write },
        Row { name: "both: kazoo lock object used again after its directory was deleted", check: directory_gone },
        Row { name: "both, and Curator on the same path", check: kazoo_and_curator_together },
        Row { name: "semaphores on one path", check: semaphores },
        Row { name: "access lists: both sides create nodes for their group", check: acl::creator_all },
        Row { name: "access lists: kazoo's default list in a closed directory", check: acl::closed_directory },
    ]
}

fn foreign(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("foreign");
    let ours = lock(&cx.client_with(|config| config), Mutex, &path);
    for definition in ["lock", "read-lock", "write-lock"] {
        cx.run(&format!("{definition} $k {path}"));
        cx.run("acquire $t $k");
        assert_eq!(refusal(|| ours.acquire(TRY_ONCE)), Status::Foreign);
        assert_eq!(refusal(|| ours.acquire(LONG_WAIT)), Status::Foreign, "at once");
        cx.wait_for_nodes(&path, 1);
        cx.run("release $t $k");
        at_once(|limit| ours.acquire(limit));
        ours.release().unwrap();
    }
    CheckResult::Same
}

fn foreign_read_write(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("foreign");
    let rw = cx.client_with(|config| config).rwlock(&path).unwrap();
    for definition in ["lock", "read-lock", "write-lock"] {
        cx.run(&format!("{definition} $k {path}"));
        cx.run("acquire $t $k");
        assert_eq!(refusal(|| rw.write.acquire(LONG_WAIT)), Status::Foreign);
        assert_eq!(refusal(|| rw.read.acquire(LONG_WAIT)), Status::Foreign);
        cx.run("release $t $k");
    }
    CheckResult::Same
}

fn kazoo_without_pattern_ignores_zklock(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("passes");
    let (first, second) = (cx.client_with(|config| config), cx.client_with(|config| config));
    let (held, wanted) = (lock(&first, Mutex, &path), lock(&second, Mutex, &path));
    at_once(|limit| held.acquire(limit));
    cx.run(&format!("lock $k {path}"));
    cx.run("acquire $t $k 2000");
    assert!(held.is_held().unwrap(), "both sides report that they hold the lock");
    assert_eq!(refusal(|| wanted.acquire(LONG_WAIT)), Status::Foreign);
    cx.run("release $t $k");
    held.release().unwrap();
    CheckResult::known_difference("kazoo ignores zklock, and both hold; the next zklock fails with FOREIGN")
}

fn only_zklock_waits(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("half");
    let ours = lock(&cx.client(), Mutex, &path);
    cx.run(&format!("lock $k {path}"));
    cx.run("acquire $t $k");
    let waiting = ours.start_acquire(ME, LONG_WAIT).unwrap();
    cx.wait_for_nodes(&path, 2);
    assert!(waiting.wait_for(queues::SHORT_WAIT.unwrap()).is_none());
    cx.run("release $t $k");
    waiting.wait().unwrap().leave_to_owner();
    cx.run("acquire $t $k 2000");
    assert!(ours.is_held_as(ME).unwrap(), "both sides report that they hold the lock");
    cx.run("release $t $k");
    ours.release_as(ME).unwrap();
    CheckResult::known_difference("zklock waits for kazoo; kazoo ignores zklock")
}

fn only_kazoo_waits(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("half");
    let ours = lock(&cx.client_with(|config| config), Mutex, &path);
    let theirs = cx.define(Mutex, "$k", &path);
    at_once(|limit| ours.acquire(limit));
    assert_other_is_refused(cx, &theirs);
    let waiting = cx.send(&format!("acquire $t {theirs}"));
    cx.wait_for_nodes(&path, 2);
    ours.release().unwrap();
    assert_eq!(waiting.wait(TEST_TIMEOUT), "true");
    assert_eq!(refusal(|| ours.acquire(LONG_WAIT)), Status::Foreign);
    cx.run(&format!("release $t {theirs}"));
    CheckResult::known_difference("kazoo waits for zklock; zklock fails with FOREIGN")
}

fn participants(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("participants");
    let client = cx.client();
    let ours = lock(&client, Mutex, &path);
    ours.set_data(Some(b"zklock")).unwrap();
    cx.run(&format!("lock $k {path} patterns=-lock- data=kazoo"));
    cx.run("acquire $t $k");
    let waiting = ours.start_acquire(ME, LONG_WAIT).unwrap();
    cx.wait_for_nodes(&path, 2);
    let seen = ours.participants().unwrap();
    assert_eq!(seen.iter().map(|seen| seen.holds).collect::<Vec<_>>(), [true, false]);
    assert_eq!(seen.iter().map(|seen| &*seen.data).collect::<Vec<_>>(), [b"kazoo".as_slice(), b"zklock"]);
    assert_eq!(seen[0].node_path, format!("{path}/{}", cx.query("node $k")));
    assert_eq!(cx.query("contenders $k"), "kazoo zklock");
    cx.run("release $t $k");
    waiting.wait().unwrap().leave_to_owner();
    CheckResult::Same
}

/// kazoo also waits for readers, which is not necessary.
fn reader_with_both_patterns(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("readers");
    let ours = lock(&cx.client(), Read, &path);
    cx.run(&format!("read-lock $k {path} patterns=__READ__,__WRIT__"));
    cx.run("acquire $t $k");
    at_once(|limit| ours.acquire(limit));
    cx.run("release $t $k");
    assert_other_is_refused(cx, "$k");
    ours.release().unwrap();
    CheckResult::known_difference("it also waits for readers of zklock; the pattern __WRIT__ alone is enough")
}

/// A `Lock` of kazoo is granted beside zklock's readers unless it has a pattern for them. It is granted beside kazoo's
/// own readers even with both patterns.
fn lock_beside_readers(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("readers");
    let (read, write) = (lock(&cx.client(), Read, &path), lock(&cx.client(), Write, &path));
    at_once(|limit| read.acquire(limit));
    cx.run(&format!("lock $writes {path} patterns=__WRIT__"));
    cx.run(&format!("lock $all {path} patterns=__READ__,__WRIT__"));
    cx.run("acquire $t $writes 2000");
    cx.run("release $t $writes");
    assert_other_is_refused(cx, "$all");
    read.release().unwrap();
    cx.run("acquire $t $all");
    assert_eq!(
        (refusal(|| read.acquire(TRY_ONCE)), refusal(|| write.acquire(TRY_ONCE))),
        (Status::Timeout, Status::Timeout)
    );
    cx.run("release $t $all");
    cx.run(&format!("read-lock $reads {path} patterns=__WRIT__"));
    cx.run("acquire $t $reads");
    cx.run("acquire $u $all 2000");
    cx.run("release $u $all");
    assert_other_is_refused(cx, &cx.define(Write, "$write", &path));
    cx.run("release $t $reads");
    CheckResult::known_difference("it needs both patterns, and ignores kazoo's own readers; a WriteLock waits for them")
}

/// zklock's directories are containers, like Curator's. The server deletes them when they are empty.
fn directory_gone(cx: &CheckContext<'_>) -> CheckResult {
    let path = format!("{}/container", cx.root());
    let ours = lock(&cx.client(), Mutex, &path);
    at_once(|limit| ours.acquire(limit));
    let theirs = cx.define(Mutex, "$k", &path);
    assert_other_is_refused(cx, &theirs);
    ours.release().unwrap();
    wait_until(TEST_TIMEOUT, || !cx.raw().exists(&path));
    let again = cx.query(&format!("acquire $t {theirs}"));
    assert!(again.contains("NoNodeError"), "{again}");
    at_once(|limit| ours.acquire(limit));
    ours.release().unwrap();
    // The server may delete the directory after kazoo has found it. kazoo itself creates one that stays.
    wait_until(TEST_TIMEOUT, || !cx.raw().exists(&path));
    cx.run(&format!("acquire $t {}", cx.define(Mutex, "$new", &path)));
    cx.run("release $t $new");
    CheckResult::known_difference("its acquire fails with NoNodeError; a new object creates the directory")
}

fn kazoo_and_curator_together(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("three");
    let curator = CuratorPeer::start(CuratorVersion::Newest, &cx.shared.zookeeper.address(), TEST_TIMEOUT);
    curator.run(&format!("mutex m {path}"));
    let ours = lock(&cx.client(), Mutex, &path);
    let theirs = cx.define(Mutex, "$k", &path);
    assert_eq!(curator.query("acquire t m 10000"), "true");
    assert_other_is_refused(cx, &theirs);
    assert_eq!(refusal(|| ours.acquire(TRY_ONCE)), Status::Timeout);
    curator.run("release t m");
    cx.run(&format!("acquire $t {theirs}"));
    assert_eq!(refusal(|| ours.acquire(TRY_ONCE)), Status::Timeout);
    assert_eq!(curator.query("acquire t m 10000"), "true");
    curator.run("release t m");
    cx.run(&format!("release $t {theirs}"));
    CheckResult::known_difference("kazoo waits for Curator; Curator ignores kazoo")
}

fn semaphores(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("semaphore");
    let ours = cx.client().semaphore(&path, 1).unwrap();
    let one = at_once(|limit| ours.acquire(1, limit));
    let waiting = ours.start_acquire(1, LONG_WAIT).unwrap();
    cx.wait_for_nodes(&format!("{path}/locks"), 1);
    // kazoo counts the nodes `leases` and `locks`, and gets none of two leases.
    cx.run(&format!("semaphore $k {path} max=2"));
    assert_eq!(cx.query("acquire $t $k 0"), "false");
    // kazoo gets one of three leases. Its node is in a directory whose nodes zklock does not count.
    cx.run(&format!("semaphore $more {path} max=3"));
    cx.run("acquire $t $more 2000");
    one.release().unwrap();
    waiting.wait().unwrap().release().unwrap();
    cx.run("release $t $more");
    CheckResult::known_difference(
        "kazoo counts the two directories of zklock as leases; zklock counts no lease of kazoo",
    )
}
