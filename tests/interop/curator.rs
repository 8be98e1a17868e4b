//! zklock and Curator: mutexes, read/write locks, multi-locks, revocation, and what stands on the server.

use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use zklock::{Acquiring, Client, Config, Lock, Status};
use zklock_rig::{Raw, Ticket, flags, wait_until};

use crate::common::{SOON, status};
use crate::places::{Kind, ME, Place, Who, lock};
use crate::queues::{self, A_WHILE, NOW, SOME, keeps_out, refusal};
use crate::semaphores;
use crate::side::Side;
use crate::table::{Row, Seen};

use Kind::{Mutex, Read, SemaphoreMutex, Write};

const READERS_AND_WRITERS: [Kind; 9] = [Read, Read, Write, Read, Read, Write, Write, Read, Write];

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![
        Row { name: "mutex: Curator holds, zklock waits", check: |side| queues::zklock_waits(side, Mutex) },
        Row { name: "mutex: zklock holds, Curator waits", check: |side| queues::other_waits(side, Mutex) },
        Row {
            name: "mutex: eight by turns, in the order of the queue",
            check: |side| queues::in_order(side, &[Mutex; 8]),
        },
        Row { name: "mutex: alone inside under load", check: |side| queues::under_load(side, Mutex) },
        Row { name: "mutex: nodes alike: names, modes, data, access", check: mutex_nodes },
        Row { name: "mutex: participants alike: paths, order, data", check: mutex_participants },
        Row { name: "mutex: whose token is the holder's", check: |side| queues::token_is_checked(side, Mutex) },
        Row { name: "mutex: re-entrant on either side", check: re_entrant },
        Row { name: "Curator killed, holding and waiting: the next is served", check: queues::other_is_killed },
        Row { name: "Curator paused past its session: zklock is served", check: queues::other_is_paused },
        Row { name: "zklock killed, holding and waiting: the next is served", check: queues::zklock_is_killed },
        Row { name: "zklock paused past its session: Curator is served", check: queues::zklock_is_paused },
        Row { name: "a client closed on either side: the other is served", check: queues::clients_close },
        Row { name: "who gives up waiting on either side leaves nothing", check: queues::waiters_give_up },
        Row { name: "a namespace of Curator's is a chroot of zklock's", check: namespace },
        Row { name: "read/write: Curator writes, zklock waits", check: |side| queues::zklock_waits(side, Write) },
        Row { name: "read/write: zklock writes, Curator waits", check: |side| queues::other_waits(side, Write) },
        Row {
            name: "read/write: nine by turns, readers together, writers alone",
            check: |side| queues::in_order(side, &READERS_AND_WRITERS),
        },
        Row { name: "read/write: alone or among readers under load", check: queues::read_and_write_under_load },
        Row { name: "read/write: nodes alike: names, modes, data, access", check: read_write_nodes },
        Row { name: "read/write: participants alike, of each half", check: read_write_participants },
        Row { name: "read/write: whose token is the writer's", check: |side| queues::token_is_checked(side, Write) },
        Row { name: "read under an own write: the read node's name", check: nested_nodes },
        Row { name: "zklock stops writing and reads on: Curator's writer stays out", check: zklock_downgrades },
        Row { name: "Curator stops writing and reads on: zklock's writer stays out", check: curator_downgrades },
        Row { name: "a reader that wants to write", check: upgrade },
        Row { name: "a mutex and a read/write lock on one path", check: mutex_and_read_write },
        Row { name: "revocation: Curator asks zklock, holding and waiting", check: curator_revokes },
        Row { name: "revocation: zklock asks Curator, holding and waiting", check: zklock_revokes },
        Row { name: "multi-lock: zklock waits for Curator's member, and leaves nothing", check: zklock_multi_waits },
        Row { name: "multi-lock: Curator waits for zklock's member, and leaves nothing", check: curator_multi_waits },
        Row { name: "multi-lock: nodes alike", check: multi_nodes },
        Row { name: "multi-lock, in order: alone inside under load", check: in_order_load },
        Row { name: "multi-lock, at once: alone inside under load", check: at_once_load },
        Row { name: "multi-lock, in order: both have a part of what the other wants", check: in_order_in_between },
        Row { name: "multi-lock, at once: both have a part of what the other wants", check: at_once_in_between },
        Row { name: "directories go when nobody is left", check: containers },
        Row { name: "children that are nobody's beside a mutex", check: plain_children },
    ];
    rows.extend(semaphores::rows());
    rows
}

fn mutex_nodes(side: &Side<'_>) -> Seen {
    let pictures = Who::BOTH.map(|who| {
        let path = side.path(&format!("nodes-{who:?}"));
        let mut places = [Place::join(side, who, Mutex, &path, 0), Place::join(side, who, Mutex, &path, 1)];
        places[0].wait();
        let picture = picture(&mut side.raw(), &path);
        let [first, mut second] = places;
        first.leave();
        second.wait();
        second.leave();
        picture
    });
    assert_eq!(pictures[0], pictures[1], "zklock's nodes and Curator's");
    assert_eq!(pictures[0].len(), 2);
    assert!(pictures[0][0].starts_with("_c_UUID-lock-0000000000 ephemeral data "), "{:?}", pictures[0]);
    custom_data(side, Mutex)
}

/// Data that a program gave its locks.
fn custom_data(side: &Side<'_>, kind: Kind) -> Seen {
    let path = side.path("data");
    let ours = lock(&side.client(), kind, &path);
    ours.set_data(Some(b"mine")).unwrap();
    ours.acquire(NOW).unwrap();
    let zklocks = picture(&mut side.raw(), &path);
    ours.release().unwrap();
    let (verb, called) = if kind == Mutex { ("mutex", "$data") } else { ("rw", "$data.write") };
    side.tell(&format!("{verb} $data {path} data=mine"));
    side.tell(&format!("acquire $t {called}"));
    let curators = picture(&mut side.raw(), &path);
    side.tell(&format!("release $t {called}"));
    // The directory may have gone and come again between them.
    let without_numbers = |picture: Vec<String>| picture[0].replace(|c: char| c.is_ascii_digit(), "");
    assert_eq!(without_numbers(zklocks), without_numbers(curators));
    Seen::Alike
}

fn mutex_participants(side: &Side<'_>) -> Seen {
    let path = side.path("participants");
    side.tell(&format!("mutex $m {path} data=first"));
    side.tell("acquire $t $m");
    let (one, two) = (lock(&side.client(), Mutex, &path), lock(&side.client(), Mutex, &path));
    one.set_data(Some(b"second")).unwrap();
    let waiting = one.start_acquire(ME, SOME).unwrap();
    side.wait_for_nodes(&path, 2);
    let third = two.start_acquire(ME, SOME).unwrap();
    side.wait_for_nodes(&path, 3);
    let ours = two.participants().unwrap();
    let paths: Vec<&str> = ours.iter().map(|participant| participant.node_path.as_str()).collect();
    assert_eq!(paths.join(" "), side.ask("participants $m"));
    assert_eq!(ours.iter().map(|participant| participant.holds).collect::<Vec<_>>(), [true, false, false]);
    let data: Vec<&[u8]> = ours.iter().map(|participant| &*participant.data).collect();
    assert_eq!(data[..2], [b"first".as_slice(), b"second"]);
    assert_eq!(paths[0], side.ask("path $t $m"));
    drop(third);
    side.tell("release $t $m");
    waiting.wait().unwrap();
    assert_eq!(side.ask("participants $m").split(' ').next(), ours.get(1).map(|participant| &*participant.node_path));
    one.release_as(ME).unwrap();
    // Without anybody there, both say so.
    assert_eq!((side.ask("participants $m"), one.participants().unwrap()), (String::new(), Vec::new()));
    Seen::Alike
}

fn re_entrant(side: &Side<'_>) -> Seen {
    let path = side.path("again");
    let ours = lock(&side.client(), Mutex, &path);
    let theirs = side.define(Mutex, "$m", &path);
    (0..3).for_each(|_| ours.acquire(NOW).unwrap());
    for _ in 0..3 {
        keeps_out(side, &theirs);
        ours.release().unwrap();
    }
    (0..3).for_each(|_| side.tell(&format!("acquire $t {theirs} 0")));
    for _ in 0..3 {
        assert_eq!(refusal(|| ours.acquire(NOW)), Status::Timeout);
        side.tell(&format!("release $t {theirs}"));
    }
    ours.acquire(NOW).unwrap();
    ours.release().unwrap();
    Seen::Alike
}

fn namespace(side: &Side<'_>) -> Seen {
    let chroot = side.path("namespace");
    let address = format!("{}{chroot}", side.ground.zookeeper.address());
    let mut config = Config::new();
    config.set_create_chroot(true);
    let client = Client::connect(&address, &config).unwrap();
    let ours = client.mutex("/in/it").unwrap();
    side.tell(&format!("client $c namespace={}", &chroot[1..]));
    side.tell("mutex $m /in/it client=$c");
    side.tell("acquire $t $m");
    assert_eq!(refusal(|| ours.acquire(NOW)), Status::Timeout);
    let holder = ours.participants().unwrap().remove(0);
    assert_eq!(holder.node_path, side.ask("participants $m"), "without what goes before");
    assert!(side.raw().exists(&format!("{chroot}{}", holder.node_path)));
    side.tell("release $t $m");
    ours.acquire(NOW).unwrap();
    keeps_out(side, "$m");
    ours.release().unwrap();
    side.tell("close $c");
    Seen::Alike
}

fn read_write_nodes(side: &Side<'_>) -> Seen {
    let pictures = Who::BOTH.map(|who| {
        let path = side.path(&format!("nodes-{who:?}"));
        let kinds = [Read, Read, Write, Read];
        let mut places: Vec<Place<'_>> = Vec::new();
        for kind in kinds {
            let ahead = places.len();
            places.push(Place::join(side, who, kind, &path, ahead));
        }
        let picture = picture(&mut side.raw(), &path);
        for mut place in places {
            place.wait();
            place.leave();
        }
        picture
    });
    assert_eq!(pictures[0], pictures[1], "zklock's nodes and Curator's");
    assert_eq!(pictures[0].len(), 4);
    assert!(pictures[0].iter().any(|node| node.starts_with("_c_UUID-__WRIT__0000000002 ephemeral")));
    custom_data(side, Write)
}

fn read_write_participants(side: &Side<'_>) -> Seen {
    let path = side.path("participants");
    side.tell(&format!("rw $l {path}"));
    side.tell("acquire $t $l.read");
    let rw = side.client().rwlock(&path).unwrap();
    rw.read.acquire(NOW).unwrap();
    let writer = side.send("acquire $u $l.write");
    side.wait_for_nodes(&path, 3);
    for (half, called) in [(&rw.read, "$l.read"), (&rw.write, "$l.write")] {
        let ours: Vec<String> = half.participants().unwrap().into_iter().map(|seen| seen.node_path).collect();
        assert_eq!(ours.join(" "), side.ask(&format!("participants {called}")));
    }
    let holders: Vec<bool> = rw.read.queue().unwrap().iter().map(|participant| participant.holds).collect();
    assert_eq!(holders, [true, true, false]);
    rw.read.release().unwrap();
    side.tell("release $t $l.read");
    assert_eq!(writer.wait(SOON), "true");
    side.tell("release $u $l.write");
    Seen::Alike
}

fn nested_nodes(side: &Side<'_>) -> Seen {
    let (ours_path, theirs_path) = (side.path("ours"), side.path("theirs"));
    let rw = side.client().rwlock(&ours_path).unwrap();
    rw.write.acquire(NOW).unwrap();
    rw.read.acquire(NOW).unwrap();
    side.tell(&format!("rw $l {theirs_path}"));
    side.tell("acquire $t $l.write");
    side.tell("acquire $t $l.read");
    let (ours, theirs) = (picture(&mut side.raw(), &ours_path), picture(&mut side.raw(), &theirs_path));
    side.tell("release $t $l.read");
    side.tell("release $t $l.write");
    assert!(ours[0].starts_with("_c_UUID-__READ__0000000000 ephemeral"), "{ours:?}");
    if side.has_curator_621() {
        assert!(theirs[0].starts_with("_c_UUID-__READ__0000000001 ephemeral"), "{theirs:?}");
        return Seen::differs("Curator's has a number of its own (CURATOR-621, fixed in 5.5.0)");
    }
    assert_eq!(ours, theirs);
    Seen::Alike
}

fn zklock_downgrades(side: &Side<'_>) -> Seen {
    let path = side.path("downgrade");
    let rw = side.client().rwlock(&path).unwrap();
    side.tell(&format!("rw $l {path}"));
    rw.write.acquire(NOW).unwrap();
    // One that is there before zklock reads, and one that comes when it no longer writes.
    let writer = side.send("acquire $t $l.write");
    side.wait_for_nodes(&path, 2);
    rw.read.acquire(NOW).unwrap();
    rw.write.release().unwrap();
    keeps_out(side, "$l.write");
    assert!(!writer.is_done() && rw.read.is_held().unwrap());
    rw.read.release().unwrap();
    assert_eq!(writer.wait(SOON), "true");
    side.tell("release $t $l.write");
    Seen::Alike
}

fn curator_downgrades(side: &Side<'_>) -> Seen {
    let path = side.path("downgrade");
    let rw = side.client().rwlock(&path).unwrap();
    side.tell(&format!("rw $l {path}"));
    side.tell("acquire $t $l.write");
    let writer = rw.write.start_acquire(ME, SOME).unwrap();
    side.wait_for_nodes(&path, 2);
    // In 5.4.0 the read node gets a number behind that of the writer, who is there already.
    side.tell("acquire $t $l.read");
    side.tell("release $t $l.write");
    if side.has_curator_621() {
        writer.wait().unwrap();
        assert_eq!(side.ask("held $l.read"), "true", "Curator reads while zklock writes");
        rw.write.release_as(ME).unwrap();
        side.tell("release $t $l.read");
        return Seen::differs("a writer that waits gets in while Curator reads (CURATOR-621, fixed in 5.5.0)");
    }
    assert!(writer.wait_for(Duration::from_millis(300)).is_none(), "zklock writes while Curator reads");
    assert_eq!(status(side.client().rwlock(&path).unwrap().write.acquire(NOW)), Status::Timeout);
    side.tell("release $t $l.read");
    writer.wait().unwrap();
    rw.write.release_as(ME).unwrap();
    Seen::Alike
}

fn upgrade(side: &Side<'_>) -> Seen {
    let path = side.path("upgrade");
    let rw = side.client().rwlock(&path).unwrap();
    rw.read.acquire(NOW).unwrap();
    assert_eq!(refusal(|| rw.write.acquire(SOME)), Status::Deadlock);
    rw.read.release().unwrap();
    side.tell(&format!("rw $l {path}"));
    side.tell("acquire $t $l.read");
    assert_eq!(side.ask("acquire $t $l.write 300"), "false");
    side.tell("release $t $l.read");
    Seen::differs("zklock: DEADLOCK at once. Curator waits for itself")
}

fn mutex_and_read_write(side: &Side<'_>) -> Seen {
    for (theirs, ours) in [(Mutex, Write), (Mutex, Read), (Read, Mutex), (Write, Mutex)] {
        let path = side.path(&format!("{theirs:?}-{ours:?}"));
        let held = side.define(theirs, "$held", &path);
        side.tell(&format!("acquire $t {held}"));
        let ours = lock(&side.client(), ours, &path);
        assert_eq!(refusal(|| ours.acquire(SOME)), Status::Foreign);
        side.tell(&format!("release $t {held}"));
        ours.acquire(NOW).unwrap();
        // As it does for its own.
        side.tell(&format!("acquire $t {held} 2000"));
        side.tell(&format!("release $t {held}"));
        ours.release().unwrap();
    }
    Seen::differs("zklock: FOREIGN. Curator passes by, also by its own")
}

fn told(lock: &Lock) -> Receiver<String> {
    let (told, receiver) = mpsc::channel();
    lock.set_revocable(Some(move |node: &str| drop(told.send(node.to_owned())))).unwrap();
    receiver
}

fn curator_revokes(side: &Side<'_>) -> Seen {
    for kind in [Mutex, Read, Write] {
        let path = side.path(&format!("revoke-{kind:?}"));
        let rival = lock(&side.client(), if kind == Mutex { Mutex } else { Write }, &path);
        let held = lock(&side.client(), kind, &path);
        let asked = told(&held);
        held.acquire(NOW).unwrap();
        let node = held.node_paths().unwrap().remove(0);
        side.tell(&format!("revoke {node}"));
        assert_eq!(asked.recv_timeout(SOON).unwrap(), node);
        held.release().unwrap();

        rival.acquire(NOW).unwrap();
        let waiting = held.start_acquire(ME, SOME).unwrap();
        wait_until(SOON, || held.queue().unwrap().len() == 2);
        let node = held.queue().unwrap().remove(1).node_path;
        side.tell(&format!("revoke {node}"));
        assert_eq!(asked.recv_timeout(SOON).unwrap(), node);
        rival.release().unwrap();
        waiting.wait().unwrap();
        held.release_as(ME).unwrap();
    }
    Seen::Alike
}

fn zklock_revokes(side: &Side<'_>) -> Seen {
    let (path, client) = (side.path("revoke"), side.client());
    let ours = lock(&client, Mutex, &path);
    side.tell(&format!("mutex $m {path}"));
    side.tell("revocable $m release=$t");
    side.tell("acquire $t $m");
    let waiting = ours.start_acquire(ME, SOME).unwrap();
    side.wait_for_nodes(&path, 2);
    let holder = ours.participants().unwrap().remove(0);
    assert!(holder.holds && holder.data.is_empty());
    client.revoke(&holder.node_path).unwrap();
    side.event("revoked $m");
    assert_eq!(side.event("released $m"), side.own("released $m ok"));
    waiting.wait().unwrap();

    side.tell("revocable $m");
    let waiting = side.send("acquire $t $m");
    side.wait_for_nodes(&path, 2);
    client.revoke(&ours.participants().unwrap().remove(1).node_path).unwrap();
    side.event("revoked $m");
    ours.release_as(ME).unwrap();
    assert_eq!(waiting.wait(SOON), "true");
    side.tell("release $t $m");
    Seen::Alike
}

type Put = fn(&[&Lock]) -> zklock::Result<Lock>;

/// The two ways in which zklock takes several.
const WAYS: [Put; 2] = [Lock::multi, Lock::multi_in_order];

fn multi(side: &Side<'_>, put: Put, paths: &[&String]) -> Lock {
    let client = side.client();
    let locks: Vec<Lock> = paths.iter().map(|path| lock(&client, Mutex, path)).collect();
    put(&locks.iter().collect::<Vec<_>>()).unwrap()
}

fn zklock_multi_waits(side: &Side<'_>) -> Seen {
    for (way, put) in WAYS.into_iter().enumerate() {
        let (free, taken) = (side.path(&format!("free-{way}")), side.path(&format!("taken-{way}")));
        let ours = multi(side, put, &[&free, &taken]);
        let held = side.define(Mutex, "$held", &taken);
        side.tell(&format!("acquire $t {held}"));
        assert_eq!(refusal(|| ours.acquire(A_WHILE)), Status::Timeout);
        side.wait_for_nodes(&free, 0);
        side.wait_for_nodes(&taken, 1);
        let waiting = ours.start_acquire(ME, SOME).unwrap();
        // What comes after the first lock is asked for by whoever waits.
        wait_until(SOON, || {
            assert!(waiting.wait_for(Duration::ZERO).is_none());
            side.raw().children(&taken).unwrap_or_default().len() == 2
        });
        side.tell(&format!("release $t {held}"));
        waiting.wait().unwrap();
        keeps_out(side, &held);
        keeps_out(side, &side.define(Mutex, "$free", &free));
        ours.release_as(ME).unwrap();
    }
    Seen::Alike
}

fn curator_multi_waits(side: &Side<'_>) -> Seen {
    let (free, taken) = (side.path("free"), side.path("taken"));
    let client = side.client();
    let (ours, other) = (lock(&client, Mutex, &taken), lock(&client, Mutex, &free));
    side.tell(&format!("multi $multi {free} {taken}"));
    ours.acquire(NOW).unwrap();
    keeps_out(side, "$multi");
    other.acquire(NOW).unwrap();
    other.release().unwrap();
    let waiting = side.send("acquire $t $multi");
    side.wait_for_nodes(&taken, 2);
    ours.release().unwrap();
    assert_eq!(waiting.wait(SOON), "true");
    assert_eq!(refusal(|| ours.acquire(NOW)), Status::Timeout);
    assert_eq!(refusal(|| other.acquire(NOW)), Status::Timeout);
    side.tell("release $t $multi");
    Seen::Alike
}

fn multi_nodes(side: &Side<'_>) -> Seen {
    let members =
        ["ours", "theirs", "in-order"].map(|name| ["a", "b"].map(|member| side.path(&format!("{name}/{member}"))));
    let ours = multi(side, Lock::multi, &members[0].each_ref());
    let in_order = multi(side, Lock::multi_in_order, &members[2].each_ref());
    ours.acquire(NOW).unwrap();
    in_order.acquire(NOW).unwrap();
    side.tell(&format!("multi $multi {}", members[1].join(" ")));
    side.tell("acquire $t $multi");
    let pictures = ["ours", "theirs", "in-order"].map(|name| picture(&mut side.raw(), &side.path(name)));
    ours.release().unwrap();
    in_order.release().unwrap();
    side.tell("release $t $multi");
    assert_eq!(pictures[0], pictures[1], "zklock's nodes and Curator's");
    assert_eq!(pictures[2], pictures[1], "zklock's nodes and Curator's");
    assert_eq!(pictures[0].len(), 4);
    Seen::Alike
}

fn multi_load(side: &Side<'_>, rounds: u32, put: Put, limit: Duration) -> u32 {
    let (a, b) = (side.path("a"), side.path("b"));
    let theirs = |name: &str| {
        side.tell(&format!("multi {name} {a} {b}"));
        name.to_owned()
    };
    queues::load(side, rounds, theirs, || multi(side, put, &[&a, &b]), limit)
}

/// In one order, one by one: nobody waits in vain.
fn in_order_load(side: &Side<'_>) -> Seen {
    assert_eq!(multi_load(side, side.ground.rounds, Lock::multi_in_order, SOON), 0, "time-outs");
    Seen::Alike
}

/// In one transaction against one by one: where each stands in the other's way, zklock gives way. That takes a third of a second.
fn at_once_load(side: &Side<'_>) -> Seen {
    assert_eq!(multi_load(side, side.ground.rounds.min(3), Lock::multi, SOON), 0, "time-outs");
    Seen::differs("alike, but that zklock takes a third of a second to give way to a Curator that holds the first")
}

/// Curator has the first and is about to want the second, when zklock comes: Curator gets on, and then zklock.
fn in_order_in_between(side: &Side<'_>) -> Seen {
    let (ours, waiting, theirs) = in_between(side, Lock::multi_in_order, SOON);
    assert_eq!(theirs.wait(SOON), "true");
    assert!(waiting.wait_for(Duration::ZERO).is_none());
    side.tell("release $t $multi");
    side.tell("release $t $a");
    waiting.wait().unwrap();
    ours.release_as(ME).unwrap();
    Seen::Alike
}

/// The same, but that zklock stands before Curator in the second: it gives way when it notices.
fn at_once_in_between(side: &Side<'_>) -> Seen {
    let (ours, waiting, theirs) = in_between(side, Lock::multi, SOON);
    assert_eq!(theirs.wait(SOON), "true");
    assert!(waiting.wait_for(Duration::ZERO).is_none());
    side.tell("release $t $multi");
    side.tell("release $t $a");
    waiting.wait().unwrap();
    ours.release_as(ME).unwrap();
    Seen::differs("alike, after a third of a second in which zklock notices that each waits for the other")
}

fn in_between(side: &Side<'_>, put: Put, limit: Duration) -> (Lock, Acquiring, Ticket) {
    let (a, b) = (side.path("a"), side.path("b"));
    let ours = multi(side, put, &[&a, &b]);
    side.tell(&format!("mutex $a {a}"));
    side.tell(&format!("mutex $b {b}"));
    side.tell("multi $multi $a $b");
    side.tell("acquire $t $a");
    let waiting = ours.start_acquire(ME, Some(limit)).unwrap();
    side.wait_for_nodes(&a, 2);
    (ours, waiting, side.send("acquire $t $multi"))
}

fn containers(side: &Side<'_>) -> Seen {
    for first in Who::BOTH {
        let top = side.path(&format!("top-{first:?}"));
        let path = format!("{top}/between/lock");
        for (ahead, who) in first.alternating().take(2).enumerate() {
            let mut place = Place::join(side, who, Mutex, &path, 0);
            place.wait();
            place.leave();
            let semaphore = format!("{path}-semaphore-{ahead}");
            let place = Place::join(side, who, SemaphoreMutex, &semaphore, 0);
            place.leave();
        }
        wait_until(SOON, || !side.raw().exists(&top));
    }
    Seen::Alike
}

fn plain_children(side: &Side<'_>) -> Seen {
    let (path, mut raw) = (side.path("plain"), side.raw());
    raw.create(&path, b"", flags::PERSISTENT).unwrap();
    for name in ["zzz", "hello", "LOCK-0000000000"] {
        raw.create(&format!("{path}/{name}"), b"", flags::PERSISTENT).unwrap();
    }
    // Letters come after digits: both sides get in, and keep each other out.
    let ours = lock(&side.client(), Mutex, &path);
    let theirs = side.define(Mutex, "$m", &path);
    ours.acquire(NOW).unwrap();
    keeps_out(side, &theirs);
    ours.release().unwrap();
    side.tell(&format!("acquire $t {theirs} 2000"));
    assert_eq!(refusal(|| ours.acquire(NOW)), Status::Timeout);
    side.tell(&format!("release $t {theirs}"));
    // A digit comes first.
    raw.create(&format!("{path}/0"), b"", flags::PERSISTENT).unwrap();
    ours.acquire(NOW).unwrap();
    ours.release().unwrap();
    keeps_out(side, &theirs);
    Seen::differs("one that sorts before digits blocks Curator, never zklock")
}

/// The nodes below a path as anybody can see them: names without what is random in them, modes, data, access.
pub(crate) fn picture(raw: &mut Raw, path: &str) -> Vec<String> {
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

/// The name with `UUID` for the random part, where that has the form that Curator gives it.
fn without_uuid(name: &str) -> String {
    let Some((head, rest)) = name.split_once("_c_") else { return name.to_owned() };
    let (uuid, rest) = rest.split_at(36);
    let groups: Vec<usize> = uuid.split('-').map(str::len).collect();
    assert_eq!(groups, [8, 4, 4, 4, 12], "{name}");
    assert!(uuid.bytes().all(|b| b == b'-' || b.is_ascii_digit() || (b'a'..=b'f').contains(&b)), "{name}");
    assert_eq!(uuid.as_bytes()[14], b'4', "a random one: {name}");
    format!("{head}_c_UUID{rest}")
}
