//! zklock and Curator: mutexes, read/write locks, multi-locks, revocation, and the nodes on the server.

use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use zklock::{Client, Config, Hold, Lock, Operation, Status};
use zklock_test_support::{PendingAnswer, RawClient, flags, wait_until};

use crate::acl;
use crate::common::{OwnerCalls as _, TEST_TIMEOUT};
use crate::fixture::CheckContext;
use crate::queued_acquire::{Library, LockKind, ME, QueuedAcquire, lock};
use crate::queues::{self, LONG_WAIT, SHORT_WAIT, TRY_ONCE, assert_other_is_refused, at_once, refusal};
use crate::semaphores;
use crate::table::{CheckResult, Row};

use LockKind::{Mutex, Read, SemaphoreMutex, Write};

const READERS_AND_WRITERS: [LockKind; 9] = [Read, Read, Write, Read, Read, Write, Write, Read, Write];

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![
        Row { name: "mutex: Curator holds, zklock waits", check: |cx| queues::zklock_waits(cx, Mutex) },
        Row { name: "mutex: zklock holds, Curator waits", check: |cx| queues::other_waits(cx, Mutex) },
        Row { name: "mutex: eight owners in the order of the queue", check: |cx| queues::in_order(cx, &[Mutex; 8]) },
        Row { name: "mutex: exclusion under load", check: |cx| queues::under_load(cx, Mutex) },
        Row { name: "mutex: same nodes: names, modes, data, access lists", check: mutex_nodes },
        Row { name: "mutex: same participants: paths, order, data", check: mutex_participants },
        Row { name: "mutex: fence check of each token", check: |cx| queues::token_is_checked(cx, Mutex) },
        Row { name: "mutex: re-entrant on both sides", check: re_entrant },
        Row { name: "Curator killed while it holds and waits: zklock acquires", check: queues::other_is_killed },
        Row { name: "Curator paused until its session expires: zklock acquires", check: queues::other_is_paused },
        Row { name: "zklock killed while it holds and waits: the other acquires", check: queues::zklock_is_killed },
        Row { name: "zklock paused until its session expires: Curator acquires", check: queues::zklock_is_paused },
        Row { name: "client closed on one side: the other side acquires", check: queues::clients_close },
        Row { name: "a waiter that times out leaves no node", check: queues::waiters_give_up },
        Row { name: "a namespace of Curator equals a chroot of zklock", check: namespace },
        Row { name: "read/write: Curator writes, zklock waits", check: |cx| queues::zklock_waits(cx, Write) },
        Row { name: "read/write: zklock writes, Curator waits", check: |cx| queues::other_waits(cx, Write) },
        Row {
            name: "read/write: nine owners; readers together, writers alone",
            check: |cx| queues::in_order(cx, &READERS_AND_WRITERS),
        },
        Row { name: "read/write: exclusion under load", check: queues::read_and_write_under_load },
        Row { name: "read/write: same nodes: names, modes, data, access lists", check: read_write_nodes },
        Row { name: "read/write: same participants of each lock", check: read_write_participants },
        Row { name: "read/write: fence check of each token", check: |cx| queues::token_is_checked(cx, Write) },
        Row { name: "read lock under the own write lock: name of the read node", check: nested_nodes },
        Row { name: "zklock downgrades: a writer of Curator waits", check: zklock_downgrades },
        Row { name: "Curator downgrades: a writer of zklock waits", check: curator_downgrades },
        Row { name: "upgrade from read lock to write lock", check: upgrade },
        Row { name: "a mutex and a read/write lock on one path", check: mutex_and_read_write },
        Row { name: "revocation: Curator asks a holder and a waiter of zklock", check: curator_revokes },
        Row { name: "revocation: zklock asks a holder and a waiter of Curator", check: zklock_revokes },
        Row { name: "multi-lock: zklock waits for a member lock of Curator", check: zklock_multi_waits },
        Row { name: "multi-lock: Curator waits for a member lock of zklock", check: curator_multi_waits },
        Row { name: "multi-lock: same nodes", check: multi_nodes },
        Row { name: "multi-lock, in order: exclusion under load", check: ordered_multi_under_load },
        Row { name: "multi-lock, at once: exclusion under load", check: transactional_multi_under_load },
        Row {
            name: "multi-lock, in order: each holds a lock that the other needs",
            check: ordered_multi_yields_partial_conflict,
        },
        Row {
            name: "multi-lock, at once: each holds a lock that the other needs",
            check: transactional_multi_yields_partial_conflict,
        },
        Row { name: "empty directories are deleted", check: containers },
        Row { name: "other nodes in the directory of a mutex", check: plain_children },
        Row { name: "access lists: both sides create nodes for their group", check: acl::creator_all },
        Row { name: "access lists: Curator's default list in a closed directory", check: acl::closed_directory },
    ];
    rows.extend(semaphores::rows());
    rows
}

fn mutex_nodes(cx: &CheckContext<'_>) -> CheckResult {
    let listings = Library::BOTH.map(|who| {
        let path = cx.path(&format!("nodes-{who:?}"));
        let mut places =
            [QueuedAcquire::start(cx, who, Mutex, &path, 0), QueuedAcquire::start(cx, who, Mutex, &path, 1)];
        places[0].wait_acquired();
        let listing = node_listing(&mut cx.raw(), &path);
        let [first, mut second] = places;
        first.release();
        second.wait_acquired();
        second.release();
        listing
    });
    assert_eq!(listings[0], listings[1], "the nodes of zklock and of Curator");
    assert_eq!(listings[0].len(), 2);
    assert!(listings[0][0].starts_with("_c_UUID-lock-0000000000 ephemeral data "), "{:?}", listings[0]);
    custom_data(cx, Mutex)
}

/// Both libraries store the program's data in the lock node.
fn custom_data(cx: &CheckContext<'_>, kind: LockKind) -> CheckResult {
    let path = cx.path("data");
    let ours = lock(&cx.client(), kind, &path);
    ours.set_data(Some(b"mine")).unwrap();
    at_once(|limit| ours.acquire(limit));
    let zklocks = node_listing(&mut cx.raw(), &path);
    ours.release().unwrap();
    let (verb, called) = if kind == Mutex { ("mutex", "$data") } else { ("rw", "$data.write") };
    cx.run(&format!("{verb} $data {path} data=mine"));
    cx.run(&format!("acquire $t {called}"));
    let curators = node_listing(&mut cx.raw(), &path);
    cx.run(&format!("release $t {called}"));
    // The server may have deleted and created the directory between the two locks, so the sequence numbers may differ.
    let without_numbers = |listing: Vec<String>| listing[0].replace(|c: char| c.is_ascii_digit(), "");
    assert_eq!(without_numbers(zklocks), without_numbers(curators));
    CheckResult::Same
}

fn mutex_participants(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("participants");
    cx.run(&format!("mutex $m {path} data=first"));
    cx.run("acquire $t $m");
    let (one, two) = (lock(&cx.client(), Mutex, &path), lock(&cx.client(), Mutex, &path));
    one.set_data(Some(b"second")).unwrap();
    let waiting = one.start_acquire(ME, LONG_WAIT).unwrap();
    cx.wait_for_nodes(&path, 2);
    let third = two.start_acquire(ME, LONG_WAIT).unwrap();
    cx.wait_for_nodes(&path, 3);
    let ours = two.participants().unwrap();
    let paths: Vec<&str> = ours.iter().map(|participant| participant.node_path.as_str()).collect();
    assert_eq!(paths.join(" "), cx.query("participants $m"));
    assert_eq!(ours.iter().map(|participant| participant.holds).collect::<Vec<_>>(), [true, false, false]);
    let data: Vec<&[u8]> = ours.iter().map(|participant| &*participant.data).collect();
    assert_eq!(data[..2], [b"first".as_slice(), b"second"]);
    assert_eq!(paths[0], cx.query("path $t $m"));
    drop(third);
    cx.run("release $t $m");
    waiting.wait().unwrap().leave_to_owner();
    assert_eq!(cx.query("participants $m").split(' ').next(), ours.get(1).map(|participant| &*participant.node_path));
    one.release_as(ME).unwrap();
    // Without any participant, both libraries return an empty list.
    assert_eq!((cx.query("participants $m"), one.participants().unwrap()), (String::new(), Vec::new()));
    CheckResult::Same
}

fn re_entrant(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("again");
    let ours = lock(&cx.client(), Mutex, &path);
    let theirs = cx.define(Mutex, "$m", &path);
    (0..3).for_each(|_| at_once(|limit| ours.acquire(limit)));
    for _ in 0..3 {
        assert_other_is_refused(cx, &theirs);
        ours.release().unwrap();
    }
    (0..3).for_each(|_| cx.run(&format!("acquire $t {theirs} 0")));
    for _ in 0..3 {
        assert_eq!(refusal(|| ours.acquire(TRY_ONCE)), Status::Timeout);
        cx.run(&format!("release $t {theirs}"));
    }
    at_once(|limit| ours.acquire(limit));
    ours.release().unwrap();
    CheckResult::Same
}

fn namespace(cx: &CheckContext<'_>) -> CheckResult {
    let chroot = cx.path("namespace");
    let address = format!("{}{chroot}", cx.shared.zookeeper.address());
    let config = Config::new().create_chroot(true);
    let client = Client::connect(&address, &config).unwrap();
    let ours = client.mutex("/in/it").unwrap();
    cx.run(&format!("client $c namespace={}", &chroot[1..]));
    cx.run("mutex $m /in/it client=$c");
    cx.run("acquire $t $m");
    assert_eq!(refusal(|| ours.acquire(TRY_ONCE)), Status::Timeout);
    let holder = ours.participants().unwrap().remove(0);
    assert_eq!(holder.node_path, cx.query("participants $m"), "the path without the chroot");
    assert!(cx.raw().exists(&format!("{chroot}{}", holder.node_path)));
    cx.run("release $t $m");
    at_once(|limit| ours.acquire(limit));
    assert_other_is_refused(cx, "$m");
    ours.release().unwrap();
    cx.run("close $c");
    CheckResult::Same
}

fn read_write_nodes(cx: &CheckContext<'_>) -> CheckResult {
    let listings = Library::BOTH.map(|who| {
        let path = cx.path(&format!("nodes-{who:?}"));
        let kinds = [Read, Read, Write, Read];
        let mut places: Vec<QueuedAcquire<'_>> = Vec::new();
        for kind in kinds {
            let ahead = places.len();
            places.push(QueuedAcquire::start(cx, who, kind, &path, ahead));
        }
        let listing = node_listing(&mut cx.raw(), &path);
        for mut place in places {
            place.wait_acquired();
            place.release();
        }
        listing
    });
    assert_eq!(listings[0], listings[1], "the nodes of zklock and of Curator");
    assert_eq!(listings[0].len(), 4);
    assert!(listings[0].iter().any(|node| node.starts_with("_c_UUID-__WRIT__0000000002 ephemeral")));
    custom_data(cx, Write)
}

fn read_write_participants(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("participants");
    cx.run(&format!("rw $l {path}"));
    cx.run("acquire $t $l.read");
    let rw = cx.client().rwlock(&path).unwrap();
    at_once(|limit| rw.read.acquire(limit));
    let writer = cx.send("acquire $u $l.write");
    cx.wait_for_nodes(&path, 3);
    for (half, called) in [(&rw.read, "$l.read"), (&rw.write, "$l.write")] {
        let ours: Vec<String> = half.participants().unwrap().into_iter().map(|seen| seen.node_path).collect();
        assert_eq!(ours.join(" "), cx.query(&format!("participants {called}")));
    }
    let holders: Vec<bool> = rw.read.queue().unwrap().iter().map(|participant| participant.holds).collect();
    assert_eq!(holders, [true, true, false]);
    rw.read.release().unwrap();
    cx.run("release $t $l.read");
    assert_eq!(writer.wait(TEST_TIMEOUT), "true");
    cx.run("release $u $l.write");
    CheckResult::Same
}

fn nested_nodes(cx: &CheckContext<'_>) -> CheckResult {
    let (ours_path, theirs_path) = (cx.path("ours"), cx.path("theirs"));
    let rw = cx.client().rwlock(&ours_path).unwrap();
    at_once(|limit| rw.write.acquire(limit));
    at_once(|limit| rw.read.acquire(limit));
    cx.run(&format!("rw $l {theirs_path}"));
    cx.run("acquire $t $l.write");
    cx.run("acquire $t $l.read");
    let (ours, theirs) = (node_listing(&mut cx.raw(), &ours_path), node_listing(&mut cx.raw(), &theirs_path));
    cx.run("release $t $l.read");
    cx.run("release $t $l.write");
    assert!(ours[0].starts_with("_c_UUID-__READ__0000000000 ephemeral"), "{ours:?}");
    if cx.has_curator_621() {
        assert!(theirs[0].starts_with("_c_UUID-__READ__0000000001 ephemeral"), "{theirs:?}");
        return CheckResult::known_difference(
            "the read node of Curator has a new sequence number (CURATOR-621, fixed in 5.5.0)",
        );
    }
    assert_eq!(ours, theirs);
    CheckResult::Same
}

fn zklock_downgrades(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("downgrade");
    let rw = cx.client().rwlock(&path).unwrap();
    cx.run(&format!("rw $l {path}"));
    at_once(|limit| rw.write.acquire(limit));
    // First a writer that waits before zklock reads, and then a writer that comes after zklock has released its write
    // lock.
    let writer = cx.send("acquire $t $l.write");
    cx.wait_for_nodes(&path, 2);
    at_once(|limit| rw.read.acquire(limit));
    rw.write.release().unwrap();
    assert_other_is_refused(cx, "$l.write");
    assert!(!writer.is_done() && rw.read.is_held().unwrap());
    rw.read.release().unwrap();
    assert_eq!(writer.wait(TEST_TIMEOUT), "true");
    cx.run("release $t $l.write");
    CheckResult::Same
}

fn curator_downgrades(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("downgrade");
    let rw = cx.client().rwlock(&path).unwrap();
    cx.run(&format!("rw $l {path}"));
    cx.run("acquire $t $l.write");
    let writer = rw.write.start_acquire(ME, LONG_WAIT).unwrap();
    cx.wait_for_nodes(&path, 2);
    // In Curator 5.4.0 the read node gets a sequence number behind the writer that already waits.
    cx.run("acquire $t $l.read");
    cx.run("release $t $l.write");
    if cx.has_curator_621() {
        writer.wait().unwrap().leave_to_owner();
        assert_eq!(cx.query("held $l.read"), "true", "Curator reads while zklock writes");
        rw.write.release_as(ME).unwrap();
        cx.run("release $t $l.read");
        return CheckResult::known_difference(
            "a waiting writer acquires the lock while Curator reads (CURATOR-621, fixed in 5.5.0)",
        );
    }
    assert!(writer.wait_for(Duration::from_millis(300)).is_none(), "zklock writes while Curator reads");
    let other = cx.client().rwlock(&path).unwrap().write;
    assert_eq!(refusal(|| other.acquire(TRY_ONCE)), Status::Timeout);
    cx.run("release $t $l.read");
    writer.wait().unwrap().leave_to_owner();
    rw.write.release_as(ME).unwrap();
    CheckResult::Same
}

fn upgrade(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("upgrade");
    let rw = cx.client().rwlock(&path).unwrap();
    at_once(|limit| rw.read.acquire(limit));
    assert_eq!(refusal(|| rw.write.acquire(LONG_WAIT)), Status::Deadlock);
    rw.read.release().unwrap();
    cx.run(&format!("rw $l {path}"));
    cx.run("acquire $t $l.read");
    assert_eq!(cx.query("acquire $t $l.write 300"), "false");
    cx.run("release $t $l.read");
    CheckResult::known_difference("zklock fails with DEADLOCK at once; Curator waits for itself")
}

fn mutex_and_read_write(cx: &CheckContext<'_>) -> CheckResult {
    for (theirs, ours) in [(Mutex, Write), (Mutex, Read), (Read, Mutex), (Write, Mutex)] {
        let path = cx.path(&format!("{theirs:?}-{ours:?}"));
        let held = cx.define(theirs, "$held", &path);
        cx.run(&format!("acquire $t {held}"));
        let ours = lock(&cx.client(), ours, &path);
        assert_eq!(refusal(|| ours.acquire(LONG_WAIT)), Status::Foreign);
        cx.run(&format!("release $t {held}"));
        at_once(|limit| ours.acquire(limit));
        // Curator ignores the nodes of the other kind of lock, its own as well as zklock's.
        cx.run(&format!("acquire $t {held} 2000"));
        cx.run(&format!("release $t {held}"));
        ours.release().unwrap();
    }
    CheckResult::known_difference("zklock fails with FOREIGN; Curator ignores the other kind of lock, even its own")
}

fn revocation_requests(lock: &Lock) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    lock.set_revocable(Some(move |node: &str| drop(sender.send(node.to_owned())))).unwrap();
    receiver
}

fn curator_revokes(cx: &CheckContext<'_>) -> CheckResult {
    for kind in [Mutex, Read, Write] {
        let path = cx.path(&format!("revoke-{kind:?}"));
        let rival = lock(&cx.client(), if kind == Mutex { Mutex } else { Write }, &path);
        let held = lock(&cx.client(), kind, &path);
        let requests = revocation_requests(&held);
        at_once(|limit| held.acquire(limit));
        let node = held.node_paths().unwrap().remove(0);
        cx.run(&format!("revoke {node}"));
        assert_eq!(requests.recv_timeout(TEST_TIMEOUT).unwrap(), node);
        held.release().unwrap();

        at_once(|limit| rival.acquire(limit));
        let waiting = held.start_acquire(ME, LONG_WAIT).unwrap();
        wait_until(TEST_TIMEOUT, || held.queue().unwrap().len() == 2);
        let node = held.queue().unwrap().remove(1).node_path;
        cx.run(&format!("revoke {node}"));
        assert_eq!(requests.recv_timeout(TEST_TIMEOUT).unwrap(), node);
        rival.release().unwrap();
        waiting.wait().unwrap().leave_to_owner();
        held.release_as(ME).unwrap();
    }
    CheckResult::Same
}

fn zklock_revokes(cx: &CheckContext<'_>) -> CheckResult {
    let (path, client) = (cx.path("revoke"), cx.client());
    let ours = lock(&client, Mutex, &path);
    cx.run(&format!("mutex $m {path}"));
    cx.run("revocable $m release=$t");
    cx.run("acquire $t $m");
    let waiting = ours.start_acquire(ME, LONG_WAIT).unwrap();
    cx.wait_for_nodes(&path, 2);
    let holder = ours.participants().unwrap().remove(0);
    assert!(holder.holds && holder.data.is_empty());
    client.revoke(&holder.node_path).unwrap();
    cx.event("revoked $m");
    assert_eq!(cx.event("released $m"), cx.with_unique_names("released $m ok"));
    waiting.wait().unwrap().leave_to_owner();

    cx.run("revocable $m");
    let waiting = cx.send("acquire $t $m");
    cx.wait_for_nodes(&path, 2);
    let waiter = ours.participants().unwrap().remove(1);
    // Curator sets the watch after it has created the node, and does not notice an earlier request.
    cx.wait_for_watch(&waiter.node_path);
    client.revoke(&waiter.node_path).unwrap();
    cx.event("revoked $m");
    ours.release_as(ME).unwrap();
    assert_eq!(waiting.wait(TEST_TIMEOUT), "true");
    cx.run("release $t $m");
    CheckResult::Same
}

type MultiConstructor = fn(&[&Lock]) -> zklock::Result<Lock>;

/// The two ways in which zklock acquires several locks.
const MULTI_CONSTRUCTORS: [MultiConstructor; 2] = [Lock::multi, Lock::multi_in_order];

fn multi(cx: &CheckContext<'_>, put: MultiConstructor, paths: &[&String]) -> Lock {
    let client = cx.client();
    let locks: Vec<Lock> = paths.iter().map(|path| lock(&client, Mutex, path)).collect();
    put(&locks.iter().collect::<Vec<_>>()).unwrap()
}

fn zklock_multi_waits(cx: &CheckContext<'_>) -> CheckResult {
    for (way, put) in MULTI_CONSTRUCTORS.into_iter().enumerate() {
        let (free, taken) = (cx.path(&format!("free-{way}")), cx.path(&format!("taken-{way}")));
        let ours = multi(cx, put, &[&free, &taken]);
        let held = cx.define(Mutex, "$held", &taken);
        cx.run(&format!("acquire $t {held}"));
        assert_eq!(refusal(|| ours.acquire(SHORT_WAIT)), Status::Timeout);
        cx.wait_for_nodes(&free, 0);
        cx.wait_for_nodes(&taken, 1);
        let waiting = ours.start_acquire(ME, LONG_WAIT).unwrap();
        // Only a call that waits, such as `wait_for`, requests the locks after the first one.
        wait_until(TEST_TIMEOUT, || {
            assert!(waiting.wait_for(Duration::ZERO).is_none());
            cx.raw().children(&taken).unwrap_or_default().len() == 2
        });
        cx.run(&format!("release $t {held}"));
        waiting.wait().unwrap().leave_to_owner();
        assert_other_is_refused(cx, &held);
        assert_other_is_refused(cx, &cx.define(Mutex, "$free", &free));
        ours.release_as(ME).unwrap();
    }
    CheckResult::Same
}

fn curator_multi_waits(cx: &CheckContext<'_>) -> CheckResult {
    let (free, taken) = (cx.path("free"), cx.path("taken"));
    let client = cx.client();
    let (ours, other) = (lock(&client, Mutex, &taken), lock(&client, Mutex, &free));
    cx.run(&format!("multi $multi {free} {taken}"));
    at_once(|limit| ours.acquire(limit));
    assert_other_is_refused(cx, "$multi");
    at_once(|limit| other.acquire(limit));
    other.release().unwrap();
    let waiting = cx.send("acquire $t $multi");
    cx.wait_for_nodes(&taken, 2);
    ours.release().unwrap();
    assert_eq!(waiting.wait(TEST_TIMEOUT), "true");
    assert_eq!(refusal(|| ours.acquire(TRY_ONCE)), Status::Timeout);
    assert_eq!(refusal(|| other.acquire(TRY_ONCE)), Status::Timeout);
    cx.run("release $t $multi");
    CheckResult::Same
}

fn multi_nodes(cx: &CheckContext<'_>) -> CheckResult {
    let members =
        ["ours", "theirs", "in-order"].map(|name| ["a", "b"].map(|member| cx.path(&format!("{name}/{member}"))));
    let ours = multi(cx, Lock::multi, &members[0].each_ref());
    let in_order = multi(cx, Lock::multi_in_order, &members[2].each_ref());
    at_once(|limit| ours.acquire(limit));
    at_once(|limit| in_order.acquire(limit));
    cx.run(&format!("multi $multi {}", members[1].join(" ")));
    cx.run("acquire $t $multi");
    let listings = ["ours", "theirs", "in-order"].map(|name| node_listing(&mut cx.raw(), &cx.path(name)));
    ours.release().unwrap();
    in_order.release().unwrap();
    cx.run("release $t $multi");
    assert_eq!(listings[0], listings[1], "the nodes of zklock and of Curator");
    assert_eq!(listings[2], listings[1], "the nodes of zklock and of Curator");
    assert_eq!(listings[0].len(), 4);
    CheckResult::Same
}

fn multi_load(cx: &CheckContext<'_>, rounds: u32, put: MultiConstructor, limit: Duration) -> u32 {
    let (a, b) = (cx.path("a"), cx.path("b"));
    let theirs = |name: &str| {
        cx.run(&format!("multi {name} {a} {b}"));
        name.to_owned()
    };
    queues::load(cx, rounds, theirs, || multi(cx, put, &[&a, &b]), limit)
}

/// If both sides acquire the locks one by one in the same order, neither side times out.
fn ordered_multi_under_load(cx: &CheckContext<'_>) -> CheckResult {
    assert_eq!(multi_load(cx, cx.shared.rounds, Lock::multi_in_order, TEST_TIMEOUT), 0, "time-outs");
    CheckResult::Same
}

/// zklock uses one transaction, Curator acquires one lock after the other. If each blocks the other, zklock yields
/// within a third of a second.
fn transactional_multi_under_load(cx: &CheckContext<'_>) -> CheckResult {
    assert_eq!(multi_load(cx, cx.shared.rounds.min(3), Lock::multi, TEST_TIMEOUT), 0, "time-outs");
    CheckResult::known_difference(
        "same result, but zklock yields after a third of a second if Curator holds the first lock",
    )
}

/// Curator holds the first lock and requests the second after zklock has started to wait. Curator gets the second lock,
/// and then zklock gets both.
fn ordered_multi_yields_partial_conflict(cx: &CheckContext<'_>) -> CheckResult {
    let (ours, waiting, theirs) = partial_multi_conflict(cx, Lock::multi_in_order, TEST_TIMEOUT);
    assert_eq!(theirs.wait(TEST_TIMEOUT), "true");
    assert!(waiting.wait_for(Duration::ZERO).is_none());
    cx.run("release $t $multi");
    cx.run("release $t $a");
    waiting.wait().unwrap().leave_to_owner();
    ours.release_as(ME).unwrap();
    CheckResult::Same
}

/// The same, but zklock is ahead of Curator in the second queue. zklock yields when it notices the deadlock.
fn transactional_multi_yields_partial_conflict(cx: &CheckContext<'_>) -> CheckResult {
    let (ours, waiting, theirs) = partial_multi_conflict(cx, Lock::multi, TEST_TIMEOUT);
    assert_eq!(theirs.wait(TEST_TIMEOUT), "true");
    assert!(waiting.wait_for(Duration::ZERO).is_none());
    cx.run("release $t $multi");
    cx.run("release $t $a");
    waiting.wait().unwrap().leave_to_owner();
    ours.release_as(ME).unwrap();
    CheckResult::known_difference("same result, after a third of a second in which zklock detects the deadlock")
}

fn partial_multi_conflict(
    cx: &CheckContext<'_>,
    put: MultiConstructor,
    limit: Duration,
) -> (Lock, Operation<Hold>, PendingAnswer) {
    let (a, b) = (cx.path("a"), cx.path("b"));
    let ours = multi(cx, put, &[&a, &b]);
    cx.run(&format!("mutex $a {a}"));
    cx.run(&format!("mutex $b {b}"));
    cx.run("multi $multi $a $b");
    cx.run("acquire $t $a");
    let waiting = ours.start_acquire(ME, Some(limit)).unwrap();
    cx.wait_for_nodes(&a, 2);
    (ours, waiting, cx.send("acquire $t $multi"))
}

fn containers(cx: &CheckContext<'_>) -> CheckResult {
    for first in Library::BOTH {
        let top = cx.path(&format!("top-{first:?}"));
        let path = format!("{top}/between/lock");
        for (ahead, who) in first.alternating().take(2).enumerate() {
            let mut place = QueuedAcquire::start(cx, who, Mutex, &path, 0);
            place.wait_acquired();
            place.release();
            let semaphore = format!("{path}-semaphore-{ahead}");
            let place = QueuedAcquire::start(cx, who, SemaphoreMutex, &semaphore, 0);
            place.release();
        }
        wait_until(TEST_TIMEOUT, || !cx.raw().exists(&top));
    }
    CheckResult::Same
}

fn plain_children(cx: &CheckContext<'_>) -> CheckResult {
    let (path, mut raw) = (cx.path("plain"), cx.raw());
    raw.create(&path, b"", flags::PERSISTENT).unwrap();
    for name in ["zzz", "hello", "LOCK-0000000000"] {
        raw.create(&format!("{path}/{name}"), b"", flags::PERSISTENT).unwrap();
    }
    // Letters sort after digits: both sides are granted the lock and exclude each other.
    let ours = lock(&cx.client(), Mutex, &path);
    let theirs = cx.define(Mutex, "$m", &path);
    at_once(|limit| ours.acquire(limit));
    assert_other_is_refused(cx, &theirs);
    ours.release().unwrap();
    cx.run(&format!("acquire $t {theirs} 2000"));
    assert_eq!(refusal(|| ours.acquire(TRY_ONCE)), Status::Timeout);
    cx.run(&format!("release $t {theirs}"));
    // A digit sorts first.
    raw.create(&format!("{path}/0"), b"", flags::PERSISTENT).unwrap();
    at_once(|limit| ours.acquire(limit));
    ours.release().unwrap();
    assert_other_is_refused(cx, &theirs);
    CheckResult::known_difference("a node whose name sorts before digits blocks Curator, but not zklock")
}

/// The nodes below a path as any client sees them: names without their random parts, modes, data and access control
/// lists.
pub(crate) fn node_listing(raw: &mut RawClient, path: &str) -> Vec<String> {
    let mut nodes = Vec::new();
    let mut left = vec![path.to_owned()];
    while let Some(parent) = left.pop() {
        for name in raw.children(&parent).unwrap_or_default() {
            let node = format!("{parent}/{name}");
            let (stat, data) = (raw.stat(&node).unwrap(), raw.data(&node).unwrap());
            let mode = if stat.ephemeral_owner == 0 { "stays" } else { "ephemeral" };
            let acl = raw.acl(&node).unwrap().join(",");
            nodes.push(format!(
                "{} {mode} data {:?} version {} for {acl}",
                without_uuid(&node[path.len() + 1..]),
                String::from_utf8_lossy(&data),
                stat.version
            ));
            left.push(node);
        }
    }
    nodes.sort();
    nodes
}

/// Replaces the random part of a name by `UUID`. Asserts that it has the form that Curator generates.
fn without_uuid(name: &str) -> String {
    let Some((head, rest)) = name.split_once("_c_") else { return name.to_owned() };
    let (uuid, rest) = rest.split_at(36);
    let groups: Vec<usize> = uuid.split('-').map(str::len).collect();
    assert_eq!(groups, [8, 4, 4, 4, 12], "{name}");
    assert!(uuid.bytes().all(|b| b == b'-' || b.is_ascii_digit() || (b'a'..=b'f').contains(&b)), "{name}");
    assert_eq!(uuid.as_bytes()[14], b'4', "expected a random UUID: {name}");
    format!("{head}_c_UUID{rest}")
}
