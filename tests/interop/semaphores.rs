//! zklock and Curator: semaphores, semaphore mutexes and counts.

use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use zklock::{Leases, Semaphore, Status};
use zklock_rig::{flags, wait_until};

use crate::common::SOON;
use crate::curator::picture;
use crate::places::{Kind::SemaphoreMutex, Place, Who, lock};
use crate::queues::{self, A_WHILE, NOW, SHORT, SOME, join, refusal};
use crate::side::Side;
use crate::table::{Row, Seen};

pub(crate) fn rows() -> Vec<Row> {
    vec![
        Row {
            name: "semaphore mutex: Curator holds, zklock waits",
            check: |side| queues::zklock_waits(side, SemaphoreMutex),
        },
        Row {
            name: "semaphore mutex: zklock holds, Curator waits",
            check: |side| queues::other_waits(side, SemaphoreMutex),
        },
        Row {
            name: "semaphore mutex: six by turns, in the order of the queue",
            check: |side| queues::in_order(side, &[SemaphoreMutex; 6]),
        },
        Row {
            name: "semaphore mutex: alone inside under load",
            check: |side| queues::under_load(side, SemaphoreMutex),
        },
        Row {
            name: "semaphore mutex: whose token is the holder's",
            check: |side| queues::token_is_checked(side, SemaphoreMutex),
        },
        Row { name: "semaphore mutex: nodes alike, any thread releases", check: semaphore_mutex_nodes },
        Row { name: "semaphore: quantities of both count", check: quantities },
        Row { name: "semaphore: who wants many is not overtaken", check: nobody_overtakes },
        Row { name: "semaphore: never more than there are, under load", check: never_too_many },
        Row { name: "semaphore: Curator has one of two and wants the second, so does zklock", check: halves },
        Row { name: "semaphore: Curator killed, its leases come back", check: curator_is_killed },
        Row { name: "semaphore: zklock killed, its leases come back", check: zklock_is_killed },
        Row { name: "semaphore: nodes and participants alike", check: lease_nodes },
        Row { name: "semaphore: children that are nobody's count on both sides", check: plain_leases },
        Row { name: "count: seeded, read and set by either side, byte for byte", check: counts },
        Row { name: "count: raised by one side, a waiter of the other gets in", check: raised },
        Row { name: "count: lowered, holders keep what they have", check: lowered },
    ]
}

fn semaphore_mutex_nodes(side: &Side<'_>) -> Seen {
    let pictures = Who::BOTH.map(|who| {
        let path = side.path(&format!("nodes-{who:?}"));
        let place = Place::join(side, who, SemaphoreMutex, &path, 0);
        let picture = picture(&mut side.raw(), &format!("{path}/leases"));
        place.leave();
        picture
    });
    assert_eq!(pictures[0], pictures[1], "zklock's nodes and Curator's");
    assert!(pictures[0].iter().any(|node| node.starts_with("_c_UUID-lease-0000000000 ephemeral data")));
    let path = side.path("threads");
    let (ours, theirs) = (lock(&side.client(), SemaphoreMutex, &path), side.define(SemaphoreMutex, "$m", &path));
    side.tell(&format!("acquire $t {theirs}"));
    side.tell(&format!("release $u {theirs}"));
    ours.acquire(NOW).unwrap();
    thread::scope(|scope| join(scope.spawn(|| ours.release().unwrap())));
    side.tell(&format!("acquire $t {theirs} 2000"));
    side.tell(&format!("release $t {theirs}"));
    Seen::Alike
}

/// A semaphore of ours, and Curator's `$s` on the same path.
fn semaphore(side: &Side<'_>, path: &str, max: i32) -> Semaphore {
    side.tell(&format!("semaphore $s {path} max={max}"));
    side.client().semaphore(path, max).unwrap()
}

/// What zklock got.
fn got(semaphore: &Semaphore, quantity: u32) -> Leases {
    semaphore.acquire(quantity, NOW).unwrap()
}

/// How zklock does not get so many: where it only looks, and where it waits for a while.
#[track_caller]
fn refused(semaphore: &Semaphore, quantity: u32) -> Status {
    let [looked, waited] = [NOW, A_WHILE].map(|limit| refusal(|| semaphore.acquire(quantity, limit).map(drop)));
    assert_eq!(looked, waited);
    waited
}

/// Curator gets so many leases of `$s`; their names.
#[track_caller]
fn curator_gets(side: &Side<'_>, quantity: u32) -> Vec<String> {
    let nodes = side.ask(&format!("lease $t $s 5000 quantity={quantity}"));
    assert!(nodes.contains("-lease-"), "{nodes}");
    nodes.split(' ').map(str::to_owned).collect()
}

#[track_caller]
fn curator_is_kept_out(side: &Side<'_>, quantity: u32) {
    assert_eq!(side.ask(&format!("lease $out $s 300 quantity={quantity}")), "none");
}

fn quantities(side: &Side<'_>) -> Seen {
    let path = side.path("leases");
    let ours = semaphore(side, &path, 3);
    let two = curator_gets(side, 2);
    assert_eq!(refused(&ours, 2), Status::Timeout);
    let one = got(&ours, 1);
    assert_eq!(refused(&ours, 1), Status::Timeout);
    curator_is_kept_out(side, 1);
    one.release().unwrap();
    side.tell(&format!("return $t $s {}", two[0]));
    let both = got(&ours, 2);
    curator_is_kept_out(side, 1);
    assert_eq!(ours.participants().unwrap().iter().filter(|seen| seen.holds).count(), 3);
    side.tell("return $t $s");
    // What waits longest is served when there is enough.
    let waiting = side.send("lease $t $s 20000 quantity=3");
    wait_until(SOON, || side.raw().children(&format!("{path}/leases")).unwrap().len() == 4);
    assert!(!waiting.is_done());
    both.release().unwrap();
    assert_eq!(waiting.wait(SOON).split(' ').count(), 3);
    let waiting = ours.start_acquire(3, SOME).unwrap();
    side.wait_for_nodes(&format!("{path}/locks"), 1);
    side.tell("return $t $s");
    drop(waiting.wait().unwrap());
    Seen::Alike
}

fn nobody_overtakes(side: &Side<'_>) -> Seen {
    let path = side.path("leases");
    let locks = format!("{path}/locks");
    let ours = semaphore(side, &path, 3);
    // zklock wants all of them, and Curator one that is free.
    let held = curator_gets(side, 1);
    let all = ours.start_acquire(3, SOME).unwrap();
    side.wait_for_nodes(&locks, 1);
    let one = side.send("lease $u $s 20000");
    side.wait_for_nodes(&locks, 2);
    curator_is_kept_out(side, 1);
    assert!(!one.is_done());
    side.tell(&format!("return $t $s {}", held[0]));
    let all = all.wait().unwrap();
    assert!(!one.is_done());
    all.release().unwrap();
    assert!(one.wait(SOON).contains("-lease-"));
    // The other way round.
    let all = side.send("lease $t $s 20000 quantity=3");
    side.wait_for_nodes(&format!("{path}/leases"), 4);
    assert_eq!(refused(&ours, 1), Status::Timeout);
    let one_of_ours = ours.start_acquire(1, SOME).unwrap();
    side.wait_for_nodes(&locks, 2);
    assert!(one_of_ours.wait_for(Duration::ZERO).is_none());
    side.tell(&side.own(&format!("return $u $s {}", one.wait(SOON))));
    assert_eq!(all.wait(SOON).split(' ').count(), 3);
    assert!(one_of_ours.wait_for(Duration::ZERO).is_none());
    side.tell("return $t $s");
    one_of_ours.wait().unwrap().release().unwrap();
    Seen::Alike
}

/// Who takes several, one by one or at once, beside others who take one, and the other way round: Curator that has a part of what it
/// wants would wait for zklock that waits for all.
fn never_too_many(side: &Side<'_>) -> Seen {
    const MAX: i32 = 3;
    let ours = semaphore(side, &side.path("leases"), MAX);
    side.tell(&format!("semaphore $s2 {} max={MAX}", side.path("leases")));
    let out = AtomicI32::new(0);
    let counted = |quantity: u32, give_back: &dyn Fn()| {
        let quantity = quantity.cast_signed();
        let before = out.fetch_add(quantity, Ordering::SeqCst);
        assert!(before + quantity <= MAX, "{quantity} more, and {before} were out");
        thread::yield_now();
        out.fetch_sub(quantity, Ordering::SeqCst);
        give_back();
    };
    for (zklocks_most, curators_most) in [(3, 1), (1, 2)] {
        thread::scope(|scope| {
            let zklocks = [1, 2].map(|seed| {
                let (ours, counted) = (&ours, &counted);
                scope.spawn(move || {
                    for round in 0..side.ground.rounds {
                        let quantity = (round + seed) % zklocks_most + 1;
                        let leases = ours.acquire(quantity, SOME).unwrap();
                        counted(quantity, &|| leases.release().unwrap());
                    }
                })
            });
            let curators = ["$s", "$s2"].map(|semaphore| {
                let counted = &counted;
                scope.spawn(move || {
                    for round in 0..side.ground.rounds {
                        let quantity = round % curators_most + 1;
                        let nodes = side.ask(&format!("lease {semaphore} {semaphore} 20000 quantity={quantity}"));
                        assert!(nodes.contains("-lease-"), "{nodes}");
                        counted(quantity, &|| side.tell(&format!("return {semaphore} {semaphore} {nodes}")));
                    }
                })
            });
            zklocks.into_iter().chain(curators).for_each(join);
        });
    }
    Seen::Alike
}

fn halves(side: &Side<'_>) -> Seen {
    let path = side.path("leases");
    let ours = semaphore(side, &path, 2);
    // zklock wants both while Curator, which has one, wants the other.
    curator_gets(side, 1);
    let both = ours.start_acquire(2, Some(Duration::from_secs(1))).unwrap();
    side.wait_for_nodes(&format!("{path}/locks"), 1);
    let second = side.send("lease $u $s 20000");
    side.wait_for_nodes(&format!("{path}/locks"), 2);
    assert!(!second.is_done());
    assert_eq!(both.wait().map(drop).unwrap_err().status(), Status::Timeout);
    assert!(second.wait(SOON).contains("-lease-"));
    side.tell("return $t $s");
    // And the other way round: zklock has one and wants another.
    let one = got(&ours, 1);
    let both = side.send("lease $t $s 20000 quantity=2");
    side.wait_for_nodes(&format!("{path}/leases"), 3);
    assert_eq!(refusal(|| ours.acquire(1, A_WHILE).map(drop)), Status::Timeout);
    one.release().unwrap();
    assert_eq!(both.wait(SOON).split(' ').count(), 2);
    side.tell("return $t $s");
    Seen::differs("Curator takes them one by one: nobody gets on until the first deadline")
}

fn curator_is_killed(side: &Side<'_>) -> Seen {
    let path = side.path("leases");
    let victim = side.victim(SHORT);
    let there = side.with(victim.peer());
    there.tell(&format!("semaphore $s {path} max=2"));
    curator_gets(&there, 2);
    let ours = side.client().semaphore(&path, 2).unwrap();
    assert_eq!(refused(&ours, 1), Status::Timeout);
    let waiting = ours.start_acquire(2, SOME).unwrap();
    side.wait_for_nodes(&format!("{path}/locks"), 1);
    victim.peer().kill();
    waiting.wait().unwrap().release().unwrap();
    Seen::Alike
}

fn zklock_is_killed(side: &Side<'_>) -> Seen {
    let path = side.path("leases");
    let victim = side.zklock_process(SHORT);
    assert_eq!(victim.ask(&format!("lease {path} 2 2")), "true");
    side.tell(&format!("semaphore $s {path} max=2"));
    curator_is_kept_out(side, 1);
    let waiting = side.send("lease $t $s 20000 quantity=2");
    side.wait_for_nodes(&format!("{path}/leases"), 3);
    victim.kill();
    assert_eq!(waiting.wait(SOON).split(' ').count(), 2);
    side.tell("return $t $s");
    Seen::Alike
}

fn lease_nodes(side: &Side<'_>) -> Seen {
    let paths = Who::BOTH.map(|who| side.path(&format!("nodes-{who:?}")));
    let ours = side.client().semaphore(&paths[0], 3).unwrap();
    ours.set_data(Some(b"mine")).unwrap();
    let leases = got(&ours, 2);
    side.tell(&format!("semaphore $s {} max=3 data=mine", paths[1]));
    curator_gets(side, 2);
    // Not of `locks`, which may have gone by now: nobody stands there.
    let pictures = paths.each_ref().map(|path| picture(&mut side.raw(), &format!("{path}/leases")));
    assert_eq!(pictures[0], pictures[1], "zklock's nodes and Curator's");
    assert!(pictures[0].iter().any(|node| node.starts_with("_c_UUID-lease-0000000001 ephemeral data \"mine\"")));
    leases.release().unwrap();
    side.tell("return $t $s");

    let path = side.path("participants");
    let ours = semaphore(side, &path, 3);
    let (theirs, two) = (curator_gets(side, 1), got(&ours, 2));
    let seen = ours.participants().unwrap();
    assert!(seen.iter().all(|seen| seen.holds));
    assert_eq!(seen[0].node_path, format!("{path}/leases/{}", theirs[0]), "the oldest first");
    assert_eq!(seen[1..].iter().map(|seen| seen.node_path.clone()).collect::<Vec<_>>(), two.node_paths().unwrap());
    let mut names: Vec<String> = side.ask("participants $s").split(' ').map(str::to_owned).collect();
    let mut our_names: Vec<&str> = seen.iter().map(|seen| seen.node_path.rsplit('/').next().unwrap()).collect();
    names.sort();
    our_names.sort_unstable();
    assert_eq!(our_names, names);
    assert_eq!(side.ask(&format!("data $s {}", theirs[0])).into_bytes(), seen[0].data);
    assert_eq!(seen[0].data, seen[1].data, "the host's address");
    Seen::Alike
}

fn plain_leases(side: &Side<'_>) -> Seen {
    let path = side.path("plain");
    for node in ["", "/leases", "/leases/nobody"] {
        side.raw().create(&format!("{path}{node}"), b"", flags::PERSISTENT).unwrap();
    }
    let ours = semaphore(side, &path, 2);
    let theirs = curator_gets(side, 1);
    assert_eq!(refused(&ours, 1), Status::Timeout);
    side.tell(&format!("return $t $s {}", theirs[0]));
    let one = got(&ours, 1);
    curator_is_kept_out(side, 1);
    one.release().unwrap();
    Seen::Alike
}

fn counts(side: &Side<'_>) -> Seen {
    let (path, client) = (side.path("count"), side.client());
    // Curator's seed, and the bytes that either sets.
    side.tell(&format!("count $n {path} seed=2"));
    assert_eq!(client.get_count(&path).unwrap(), 2);
    for value in [0x0102_0304, -5] {
        client.set_count(&path, value).unwrap();
        let zklocks = side.raw().data(&path).unwrap();
        side.event(&format!("count $n {value}"));
        assert_eq!(side.ask("get $n"), value.to_string());
        client.set_count(&path, 0).unwrap();
        side.event("count $n 0");
        side.tell(&format!("set $n {value}"));
        assert_eq!(client.get_count(&path).unwrap(), value);
        assert_eq!(side.raw().data(&path).unwrap(), zklocks);
        assert_eq!(zklocks, value.to_be_bytes());
        side.event(&format!("count $n {value}"));
    }
    // zklock's change is a new version to Curator.
    let seen = side.ask("versioned $n");
    client.set_count(&path, 1).unwrap();
    assert_eq!(side.ask("try-set $n 9"), "false", "it was {seen}");
    // zklock's seed, and who comes second leaves it.
    let seeded = [side.path("ours/count"), side.path("theirs/count")];
    let _semaphore = client.counted_semaphore(&side.path("leases"), &seeded[0], 4).unwrap();
    side.tell(&format!("count $ours {} seed=9", seeded[0]));
    assert_eq!(side.ask("get $ours"), "4");
    side.tell(&format!("count $theirs {} seed=4", seeded[1]));
    let _semaphore = client.counted_semaphore(&side.path("leases"), &seeded[1], 9).unwrap();
    assert_eq!(client.get_count(&seeded[1]).unwrap(), 4);
    let pictures = ["ours", "theirs"].map(|name| picture(&mut side.raw(), &side.path(name)));
    assert_eq!(pictures[0], pictures[1], "zklock's nodes and Curator's");
    Seen::Alike
}

/// A semaphore of ours and Curator's `$s`, both on one count that Curator calls `$n`.
fn counted(side: &Side<'_>, initial: i32) -> Semaphore {
    let (path, count) = (side.path("leases"), side.path("count"));
    let ours = side.client().counted_semaphore(&path, &count, initial).unwrap();
    side.tell(&format!("count $n {count} seed={initial}"));
    side.tell(&format!("semaphore $s {path} count=$n"));
    ours
}

fn raised(side: &Side<'_>) -> Seen {
    let (ours, client, count) = (counted(side, 1), side.client(), side.path("count"));
    let locks = side.path("leases/locks");
    let one = got(&ours, 1);
    let waiting = side.send("lease $t $s 20000");
    side.wait_for_nodes(&locks, 1);
    client.set_count(&count, 2).unwrap();
    assert!(waiting.wait(SOON).contains("-lease-"));
    let waiting = ours.start_acquire(2, SOME).unwrap();
    side.wait_for_nodes(&locks, 1);
    side.event("count $n 2");
    side.tell("set $n 4");
    let two = waiting.wait().unwrap();
    drop((one, two));
    side.tell("return $t $s");
    Seen::Alike
}

fn lowered(side: &Side<'_>) -> Seen {
    let (ours, client, count) = (counted(side, 2), side.client(), side.path("count"));
    for who in Who::BOTH {
        let one = got(&ours, 1);
        curator_gets(side, 1);
        match who {
            Who::Zklock => {
                client.set_count(&count, 1).unwrap();
                side.event("count $n 1");
            }
            Who::Other => side.tell("set $n 1"),
        }
        assert!(one.is_held().unwrap());
        assert_eq!(side.ask("participants $s").split(' ').count(), 2);
        assert_eq!(refused(&ours, 1), Status::Timeout);
        curator_is_kept_out(side, 1);
        one.release().unwrap();
        assert_eq!(refused(&ours, 1), Status::Timeout);
        curator_is_kept_out(side, 1);
        side.tell("return $t $s");
        let one = got(&ours, 1);
        curator_is_kept_out(side, 1);
        one.release().unwrap();
        client.set_count(&count, 2).unwrap();
        side.event("count $n 2");
    }
    Seen::Alike
}
