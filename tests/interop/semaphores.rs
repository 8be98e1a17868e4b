//! zklock and Curator: semaphores, semaphore mutexes and counts.

use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use zklock::{Hold, Semaphore, Status};
use zklock_test_support::{flags, wait_until};

use crate::common::TEST_TIMEOUT;
use crate::curator::node_listing;
use crate::fixture::CheckContext;
use crate::queued_acquire::{Library, LockKind::SemaphoreMutex, QueuedAcquire, lock};
use crate::queues::{self, LONG_WAIT, SHORT_SESSION, SHORT_WAIT, TRY_ONCE, at_once, join, refusal};
use crate::table::{CheckResult, Row};

pub(crate) fn rows() -> Vec<Row> {
    vec![
        Row {
            name: "semaphore mutex: Curator holds, zklock waits",
            check: |cx| queues::zklock_waits(cx, SemaphoreMutex),
        },
        Row {
            name: "semaphore mutex: zklock holds, Curator waits",
            check: |cx| queues::other_waits(cx, SemaphoreMutex),
        },
        Row {
            name: "semaphore mutex: six owners in the order of the queue",
            check: |cx| queues::in_order(cx, &[SemaphoreMutex; 6]),
        },
        Row { name: "semaphore mutex: exclusion under load", check: |cx| queues::under_load(cx, SemaphoreMutex) },
        Row {
            name: "semaphore mutex: fence check of each token",
            check: |cx| queues::token_is_checked(cx, SemaphoreMutex),
        },
        Row { name: "semaphore mutex: same nodes; any thread can release", check: semaphore_mutex_nodes },
        Row { name: "semaphore: each side counts the leases of the other", check: quantities },
        Row { name: "semaphore: a waiter for many leases is not overtaken", check: nobody_overtakes },
        Row { name: "semaphore: at most the maximum, under load", check: never_too_many },
        Row { name: "semaphore: Curator holds one of two; both sides request more", check: halves },
        Row { name: "semaphore: Curator killed, its leases become free", check: curator_is_killed },
        Row { name: "semaphore: zklock killed, its leases become free", check: zklock_is_killed },
        Row { name: "semaphore: same nodes and participants", check: lease_nodes },
        Row { name: "semaphore: other nodes count as leases on both sides", check: plain_leases },
        Row { name: "count: created, read and set by each side, same bytes", check: counts },
        Row { name: "count: one side increases it, a waiter of the other acquires", check: raised },
        Row { name: "count: one side decreases it, holders keep their leases", check: lowered },
    ]
}

fn semaphore_mutex_nodes(cx: &CheckContext<'_>) -> CheckResult {
    let listings = Library::BOTH.map(|who| {
        let path = cx.path(&format!("nodes-{who:?}"));
        let place = QueuedAcquire::start(cx, who, SemaphoreMutex, &path, 0);
        let listing = node_listing(&mut cx.raw(), &format!("{path}/leases"));
        place.release();
        listing
    });
    assert_eq!(listings[0], listings[1], "the nodes of zklock and of Curator");
    assert!(listings[0].iter().any(|node| node.starts_with("_c_UUID-lease-0000000000 ephemeral data")));
    let path = cx.path("threads");
    let (ours, theirs) = (lock(&cx.client(), SemaphoreMutex, &path), cx.define(SemaphoreMutex, "$m", &path));
    cx.run(&format!("acquire $t {theirs}"));
    cx.run(&format!("release $u {theirs}"));
    at_once(|limit| ours.acquire(limit));
    thread::scope(|scope| join(scope.spawn(|| ours.release().unwrap())));
    cx.run(&format!("acquire $t {theirs} 2000"));
    cx.run(&format!("release $t {theirs}"));
    CheckResult::Same
}

/// Creates a semaphore of zklock, and Curator's `$s` on the same path.
fn semaphore(cx: &CheckContext<'_>, path: &str, max: i32) -> Semaphore {
    cx.run(&format!("semaphore $s {path} max={max}"));
    cx.client().semaphore(path, max).unwrap()
}

/// Acquires leases with zklock.
fn acquire_leases(semaphore: &Semaphore, quantity: i32) -> Hold {
    at_once(|limit| semaphore.acquire(quantity, limit))
}

/// The status with which zklock's acquire fails, both with one attempt and with a short wait.
#[track_caller]
fn failed_lease_status(semaphore: &Semaphore, quantity: i32) -> Status {
    let [looked, waited] = [TRY_ONCE, SHORT_WAIT].map(|limit| refusal(|| semaphore.acquire(quantity, limit).map(drop)));
    assert_eq!(looked, waited);
    waited
}

/// Acquires leases of `$s` with Curator. Returns the names of their nodes.
#[track_caller]
fn curator_gets(cx: &CheckContext<'_>, quantity: i32) -> Vec<String> {
    let nodes = cx.query(&format!("lease $t $s 5000 quantity={quantity}"));
    assert!(nodes.contains("-lease-"), "{nodes}");
    nodes.split(' ').map(str::to_owned).collect()
}

#[track_caller]
fn assert_curator_is_refused(cx: &CheckContext<'_>, quantity: i32) {
    assert_eq!(cx.query(&format!("lease $out $s 300 quantity={quantity}")), "none");
}

fn quantities(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("leases");
    let ours = semaphore(cx, &path, 3);
    let two = curator_gets(cx, 2);
    assert_eq!(failed_lease_status(&ours, 2), Status::Timeout);
    let one = acquire_leases(&ours, 1);
    assert_eq!(failed_lease_status(&ours, 1), Status::Timeout);
    assert_curator_is_refused(cx, 1);
    one.release().unwrap();
    cx.run(&format!("return $t $s {}", two[0]));
    let both = acquire_leases(&ours, 2);
    assert_curator_is_refused(cx, 1);
    assert_eq!(ours.participants().unwrap().iter().filter(|seen| seen.holds).count(), 3);
    cx.run("return $t $s");
    // The acquire that has waited longest is served as soon as enough leases are free.
    let waiting = cx.send("lease $t $s 20000 quantity=3");
    wait_until(TEST_TIMEOUT, || cx.raw().children(&format!("{path}/leases")).unwrap().len() == 4);
    assert!(!waiting.is_done());
    both.release().unwrap();
    assert_eq!(waiting.wait(TEST_TIMEOUT).split(' ').count(), 3);
    let waiting = ours.start_acquire(3, LONG_WAIT).unwrap();
    cx.wait_for_nodes(&format!("{path}/locks"), 1);
    cx.run("return $t $s");
    drop(waiting.wait().unwrap());
    CheckResult::Same
}

fn nobody_overtakes(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("leases");
    let locks = format!("{path}/locks");
    let ours = semaphore(cx, &path, 3);
    // zklock requests all leases, and Curator requests one lease that is free.
    let held = curator_gets(cx, 1);
    let all = ours.start_acquire(3, LONG_WAIT).unwrap();
    cx.wait_for_nodes(&locks, 1);
    let one = cx.send("lease $u $s 20000");
    cx.wait_for_nodes(&locks, 2);
    assert_curator_is_refused(cx, 1);
    assert!(!one.is_done());
    cx.run(&format!("return $t $s {}", held[0]));
    let all = all.wait().unwrap();
    assert!(!one.is_done());
    all.release().unwrap();
    assert!(one.wait(TEST_TIMEOUT).contains("-lease-"));
    // The same with the sides exchanged.
    let all = cx.send("lease $t $s 20000 quantity=3");
    cx.wait_for_nodes(&format!("{path}/leases"), 4);
    assert_eq!(failed_lease_status(&ours, 1), Status::Timeout);
    let one_of_ours = ours.start_acquire(1, LONG_WAIT).unwrap();
    cx.wait_for_nodes(&locks, 2);
    assert!(one_of_ours.wait_for(Duration::ZERO).is_none());
    cx.run(&cx.with_unique_names(&format!("return $u $s {}", one.wait(TEST_TIMEOUT))));
    assert_eq!(all.wait(TEST_TIMEOUT).split(' ').count(), 3);
    assert!(one_of_ours.wait_for(Duration::ZERO).is_none());
    cx.run("return $t $s");
    one_of_ours.wait().unwrap().release().unwrap();
    CheckResult::Same
}

/// Each side acquires several leases beside acquires of a single lease by the other side. Curator acquires several
/// leases one by one, so at the same time it could wait for zklock while zklock waits for all leases.
fn never_too_many(cx: &CheckContext<'_>) -> CheckResult {
    const MAX: i32 = 3;
    let ours = semaphore(cx, &cx.path("leases"), MAX);
    cx.run(&format!("semaphore $s2 {} max={MAX}", cx.path("leases")));
    let out = AtomicI32::new(0);
    let counted = |quantity: i32, give_back: &dyn Fn()| {
        let before = out.fetch_add(quantity, Ordering::SeqCst);
        assert!(before + quantity <= MAX, "{before} leases were in use before {quantity} more were granted");
        thread::yield_now();
        out.fetch_sub(quantity, Ordering::SeqCst);
        give_back();
    };
    for (zklocks_most, curators_most) in [(3, 1), (1, 2)] {
        thread::scope(|scope| {
            let zklocks = [1, 2].map(|seed| {
                let (ours, counted) = (&ours, &counted);
                scope.spawn(move || {
                    for round in 0..cx.shared.rounds {
                        let quantity = (round.cast_signed() + seed) % zklocks_most + 1;
                        let leases = ours.acquire(quantity, LONG_WAIT).unwrap();
                        counted(quantity, &|| leases.release().unwrap());
                    }
                })
            });
            let curators = ["$s", "$s2"].map(|semaphore| {
                let counted = &counted;
                scope.spawn(move || {
                    for round in 0..cx.shared.rounds {
                        let quantity = round.cast_signed() % curators_most + 1;
                        let nodes = cx.query(&format!("lease {semaphore} {semaphore} 20000 quantity={quantity}"));
                        assert!(nodes.contains("-lease-"), "{nodes}");
                        counted(quantity, &|| cx.run(&format!("return {semaphore} {semaphore} {nodes}")));
                    }
                })
            });
            zklocks.into_iter().chain(curators).for_each(join);
        });
    }
    CheckResult::Same
}

fn halves(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("leases");
    let ours = semaphore(cx, &path, 2);
    // zklock requests both leases while Curator holds one and requests the other.
    curator_gets(cx, 1);
    let both = ours.start_acquire(2, Some(Duration::from_secs(4))).unwrap();
    cx.wait_for_nodes(&format!("{path}/locks"), 1);
    let second = cx.send("lease $u $s 20000");
    cx.wait_for_nodes(&format!("{path}/locks"), 2);
    assert!(!second.is_done());
    assert_eq!(both.wait().map(drop).unwrap_err().status(), Status::Timeout);
    assert!(second.wait(TEST_TIMEOUT).contains("-lease-"));
    cx.run("return $t $s");
    // The same with the sides exchanged: zklock holds one lease and requests another.
    let one = acquire_leases(&ours, 1);
    let both = cx.send("lease $t $s 20000 quantity=2");
    cx.wait_for_nodes(&format!("{path}/leases"), 3);
    assert_eq!(refusal(|| ours.acquire(1, SHORT_WAIT).map(drop)), Status::Timeout);
    one.release().unwrap();
    assert_eq!(both.wait(TEST_TIMEOUT).split(' ').count(), 2);
    cx.run("return $t $s");
    CheckResult::known_difference("Curator acquires leases one by one: both sides wait until the first deadline")
}

fn curator_is_killed(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("leases");
    let disposable = cx.start_disposable_peer(SHORT_SESSION);
    let there = cx.with_peer(disposable.peer());
    there.run(&format!("semaphore $s {path} max=2"));
    curator_gets(&there, 2);
    let ours = cx.client().semaphore(&path, 2).unwrap();
    assert_eq!(failed_lease_status(&ours, 1), Status::Timeout);
    let waiting = ours.start_acquire(2, LONG_WAIT).unwrap();
    cx.wait_for_nodes(&format!("{path}/locks"), 1);
    disposable.peer().kill();
    waiting.wait().unwrap().release().unwrap();
    CheckResult::Same
}

fn zklock_is_killed(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("leases");
    let disposable = cx.zklock_process(SHORT_SESSION);
    assert_eq!(disposable.query(&format!("lease {path} 2 2")), "true");
    cx.run(&format!("semaphore $s {path} max=2"));
    assert_curator_is_refused(cx, 1);
    let waiting = cx.send("lease $t $s 20000 quantity=2");
    cx.wait_for_nodes(&format!("{path}/leases"), 3);
    disposable.kill();
    assert_eq!(waiting.wait(TEST_TIMEOUT).split(' ').count(), 2);
    cx.run("return $t $s");
    CheckResult::Same
}

fn lease_nodes(cx: &CheckContext<'_>) -> CheckResult {
    let paths = Library::BOTH.map(|who| cx.path(&format!("nodes-{who:?}")));
    let ours = cx.client().semaphore(&paths[0], 3).unwrap();
    ours.set_data(Some(b"mine")).unwrap();
    let leases = acquire_leases(&ours, 2);
    cx.run(&format!("semaphore $s {} max=3 data=mine", paths[1]));
    curator_gets(cx, 2);
    // The directory `locks` is left out. It may be gone already, because it has no participants.
    let listings = paths.each_ref().map(|path| node_listing(&mut cx.raw(), &format!("{path}/leases")));
    assert_eq!(listings[0], listings[1], "the nodes of zklock and of Curator");
    assert!(listings[0].iter().any(|node| node.starts_with("_c_UUID-lease-0000000001 ephemeral data \"mine\"")));
    leases.release().unwrap();
    cx.run("return $t $s");

    let path = cx.path("participants");
    let ours = semaphore(cx, &path, 3);
    let (theirs, two) = (curator_gets(cx, 1), acquire_leases(&ours, 2));
    let seen = ours.participants().unwrap();
    assert!(seen.iter().all(|seen| seen.holds));
    assert_eq!(seen[0].node_path, format!("{path}/leases/{}", theirs[0]), "the first lease is the oldest");
    assert_eq!(seen[1..].iter().map(|seen| seen.node_path.clone()).collect::<Vec<_>>(), two.node_paths().unwrap());
    let mut names: Vec<String> = cx.query("participants $s").split(' ').map(str::to_owned).collect();
    let mut our_names: Vec<&str> = seen.iter().map(|seen| seen.node_path.rsplit('/').next().unwrap()).collect();
    names.sort();
    our_names.sort_unstable();
    assert_eq!(our_names, names);
    assert_eq!(cx.query(&format!("data $s {}", theirs[0])).into_bytes(), seen[0].data);
    assert_eq!(seen[0].data, seen[1].data, "the host's address");
    CheckResult::Same
}

fn plain_leases(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("plain");
    for node in ["", "/leases", "/leases/nobody"] {
        cx.raw().create(&format!("{path}{node}"), b"", flags::PERSISTENT).unwrap();
    }
    let ours = semaphore(cx, &path, 2);
    let theirs = curator_gets(cx, 1);
    assert_eq!(failed_lease_status(&ours, 1), Status::Timeout);
    cx.run(&format!("return $t $s {}", theirs[0]));
    let one = acquire_leases(&ours, 1);
    assert_curator_is_refused(cx, 1);
    one.release().unwrap();
    CheckResult::Same
}

fn counts(cx: &CheckContext<'_>) -> CheckResult {
    let (path, client) = (cx.path("count"), cx.client());
    // Both libraries read Curator's initial value and the bytes that either library writes.
    cx.run(&format!("count $n {path} seed=2"));
    assert_eq!(client.shared_count_get(&path).unwrap(), 2);
    for value in [0x0102_0304, -5] {
        client.shared_count_set(&path, value).unwrap();
        let zklocks = cx.raw().data(&path).unwrap();
        cx.event(&format!("count $n {value}"));
        assert_eq!(cx.query("get $n"), value.to_string());
        client.shared_count_set(&path, 0).unwrap();
        cx.event("count $n 0");
        cx.run(&format!("set $n {value}"));
        assert_eq!(client.shared_count_get(&path).unwrap(), value);
        assert_eq!(cx.raw().data(&path).unwrap(), zklocks);
        assert_eq!(zklocks, value.to_be_bytes());
        cx.event(&format!("count $n {value}"));
    }
    // A change by zklock is a new version for Curator.
    let seen = cx.query("versioned $n");
    client.shared_count_set(&path, 1).unwrap();
    assert_eq!(cx.query("try-set $n 9"), "false", "it was {seen}");
    // Both libraries read zklock's initial value. The side that comes second does not change it.
    let seeded = [cx.path("ours/count"), cx.path("theirs/count")];
    let _semaphore = client.semaphore_counted(&cx.path("leases"), &seeded[0], 4).unwrap();
    cx.run(&format!("count $ours {} seed=9", seeded[0]));
    assert_eq!(cx.query("get $ours"), "4");
    cx.run(&format!("count $theirs {} seed=4", seeded[1]));
    let _semaphore = client.semaphore_counted(&cx.path("leases"), &seeded[1], 9).unwrap();
    assert_eq!(client.shared_count_get(&seeded[1]).unwrap(), 4);
    let listings = ["ours", "theirs"].map(|name| node_listing(&mut cx.raw(), &cx.path(name)));
    assert_eq!(listings[0], listings[1], "the nodes of zklock and of Curator");
    CheckResult::Same
}

/// Creates a semaphore of zklock and Curator's `$s`, both on one count that Curator names `$n`.
fn counted(cx: &CheckContext<'_>, initial: i32) -> Semaphore {
    let (path, count) = (cx.path("leases"), cx.path("count"));
    let ours = cx.client().semaphore_counted(&path, &count, initial).unwrap();
    cx.run(&format!("count $n {count} seed={initial}"));
    cx.run(&format!("semaphore $s {path} count=$n"));
    ours
}

fn raised(cx: &CheckContext<'_>) -> CheckResult {
    let (ours, client, count) = (counted(cx, 1), cx.client(), cx.path("count"));
    let locks = cx.path("leases/locks");
    let one = acquire_leases(&ours, 1);
    let waiting = cx.send("lease $t $s 20000");
    cx.wait_for_nodes(&locks, 1);
    client.shared_count_set(&count, 2).unwrap();
    assert!(waiting.wait(TEST_TIMEOUT).contains("-lease-"));
    let waiting = ours.start_acquire(2, LONG_WAIT).unwrap();
    cx.wait_for_nodes(&locks, 1);
    cx.event("count $n 2");
    cx.run("set $n 4");
    let two = waiting.wait().unwrap();
    drop((one, two));
    cx.run("return $t $s");
    CheckResult::Same
}

fn lowered(cx: &CheckContext<'_>) -> CheckResult {
    let (ours, client, count) = (counted(cx, 2), cx.client(), cx.path("count"));
    for who in Library::BOTH {
        let one = acquire_leases(&ours, 1);
        curator_gets(cx, 1);
        match who {
            Library::Zklock => {
                client.shared_count_set(&count, 1).unwrap();
                cx.event("count $n 1");
            }
            Library::Other => cx.run("set $n 1"),
        }
        assert!(one.is_held().unwrap());
        assert_eq!(cx.query("participants $s").split(' ').count(), 2);
        assert_eq!(failed_lease_status(&ours, 1), Status::Timeout);
        assert_curator_is_refused(cx, 1);
        one.release().unwrap();
        assert_eq!(failed_lease_status(&ours, 1), Status::Timeout);
        assert_curator_is_refused(cx, 1);
        cx.run("return $t $s");
        let one = acquire_leases(&ours, 1);
        assert_curator_is_refused(cx, 1);
        one.release().unwrap();
        client.shared_count_set(&count, 2).unwrap();
        cx.event("count $n 2");
    }
    CheckResult::Same
}
