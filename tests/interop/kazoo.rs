//! zklock and kazoo: two families on one path, with and without the settings by which they see each other.

use zklock::Status;
use zklock_rig::{CuratorPeer, CuratorVersion};

use crate::common::{SOON, status};
use crate::places::{Kind, ME, lock};
use crate::queues::{self, NOW, SOME, keeps_out};
use crate::side::Side;
use crate::table::{Row, Seen};

use Kind::{Mutex, Read, Write};

pub(crate) fn rows() -> Vec<Row> {
    vec![
        Row { name: "no settings: kazoo is there, zklock says FOREIGN", check: foreign },
        Row { name: "no settings: zklock holds, kazoo comes", check: passes_by },
        Row { name: "only zklock has the setting", check: only_zklock_waits },
        Row { name: "only kazoo has the pattern", check: only_kazoo_waits },
        Row { name: "both: kazoo holds, zklock waits", check: |side| queues::zklock_waits(side, Mutex) },
        Row { name: "both: zklock holds, kazoo waits", check: |side| queues::other_waits(side, Mutex) },
        Row {
            name: "both: eight by turns, in the order of the queue",
            check: |side| queues::in_order(side, &[Mutex; 8]),
        },
        Row { name: "both: alone inside under load", check: |side| queues::under_load(side, Mutex) },
        Row { name: "both: who stands there, as zklock tells", check: participants },
        Row { name: "both: kazoo killed, holding and waiting: the next is served", check: queues::other_is_killed },
        Row { name: "both: kazoo paused past its session: zklock is served", check: queues::other_is_paused },
        Row { name: "both: zklock killed, holding and waiting: the next is served", check: queues::zklock_is_killed },
        Row { name: "both: zklock paused past its session: kazoo is served", check: queues::zklock_is_paused },
        Row { name: "both: a client closed on either side: the other is served", check: queues::clients_close },
        Row { name: "both: who gives up waiting on either side leaves nothing", check: queues::waiters_give_up },
        Row {
            name: "read/write, both: kazoo's WriteLock holds, zklock waits",
            check: |side| queues::zklock_waits(side, Write),
        },
        Row {
            name: "read/write, both: zklock writes, kazoo's WriteLock waits",
            check: |side| queues::other_waits(side, Write),
        },
        Row {
            name: "read/write, both: nine by turns, readers together, writers alone",
            check: |side| queues::in_order(side, &[Read, Read, Write, Read, Read, Write, Write, Read, Write]),
        },
        Row { name: "read/write, both: alone or among readers under load", check: queues::read_and_write_under_load },
        Row { name: "read/write: kazoo's ReadLock with both patterns", check: reader_with_both_patterns },
        Row { name: "read/write: kazoo's Lock beside readers", check: lock_beside_readers },
        Row { name: "read/write, no settings: kazoo is there, zklock says FOREIGN", check: foreign_read_write },
        Row { name: "both, and Curator besides", check: curator_besides },
        Row { name: "semaphores on one path: zklock's directories count", check: semaphores },
    ]
}

fn foreign(side: &Side<'_>) -> Seen {
    let path = side.path("foreign");
    let ours = lock(&side.client_with(|_| {}), Mutex, &path);
    for definition in ["lock", "read-lock", "write-lock"] {
        side.tell(&format!("{definition} $k {path}"));
        side.tell("acquire $t $k");
        assert_eq!(status(ours.acquire(NOW)), Status::Foreign);
        assert_eq!(status(ours.acquire(SOME)), Status::Foreign, "at once");
        side.wait_for_nodes(&path, 1);
        side.tell("release $t $k");
        ours.acquire(NOW).unwrap();
        ours.release().unwrap();
    }
    Seen::Alike
}

fn foreign_read_write(side: &Side<'_>) -> Seen {
    let path = side.path("foreign");
    let rw = side.client_with(|_| {}).rwlock(&path).unwrap();
    for definition in ["lock", "read-lock", "write-lock"] {
        side.tell(&format!("{definition} $k {path}"));
        side.tell("acquire $t $k");
        assert_eq!(status(rw.write.acquire(SOME)), Status::Foreign);
        assert_eq!(status(rw.read.acquire(SOME)), Status::Foreign);
        side.tell("release $t $k");
    }
    Seen::Alike
}

fn passes_by(side: &Side<'_>) -> Seen {
    let path = side.path("passes");
    let (first, second) = (side.client_with(|_| {}), side.client_with(|_| {}));
    let (held, wanted) = (lock(&first, Mutex, &path), lock(&second, Mutex, &path));
    held.acquire(NOW).unwrap();
    side.tell(&format!("lock $k {path}"));
    side.tell("acquire $t $k 2000");
    assert!(held.is_held().unwrap(), "both think that they hold it");
    assert_eq!(status(wanted.acquire(SOME)), Status::Foreign);
    side.tell("release $t $k");
    held.release().unwrap();
    Seen::differs("kazoo passes by, and both hold; the next zklock says FOREIGN")
}

fn only_zklock_waits(side: &Side<'_>) -> Seen {
    let path = side.path("half");
    let ours = lock(&side.client(), Mutex, &path);
    side.tell(&format!("lock $k {path}"));
    side.tell("acquire $t $k");
    let waiting = ours.start_acquire(ME, SOME).unwrap();
    side.wait_for_nodes(&path, 2);
    assert!(waiting.wait_for(queues::A_WHILE.unwrap()).is_none());
    side.tell("release $t $k");
    waiting.wait().unwrap();
    side.tell("acquire $t $k 2000");
    assert!(ours.is_held_by(ME).unwrap(), "both think that they hold it");
    side.tell("release $t $k");
    ours.release_as(ME).unwrap();
    Seen::differs("zklock waits for kazoo; kazoo passes by zklock")
}

fn only_kazoo_waits(side: &Side<'_>) -> Seen {
    let path = side.path("half");
    let ours = lock(&side.client_with(|_| {}), Mutex, &path);
    let theirs = side.define(Mutex, "$k", &path);
    ours.acquire(NOW).unwrap();
    keeps_out(side, &theirs);
    let waiting = side.send(&format!("acquire $t {theirs}"));
    side.wait_for_nodes(&path, 2);
    ours.release().unwrap();
    assert_eq!(waiting.wait(SOON), "true");
    assert_eq!(status(ours.acquire(SOME)), Status::Foreign);
    side.tell(&format!("release $t {theirs}"));
    Seen::differs("kazoo waits for zklock; zklock says FOREIGN")
}

fn participants(side: &Side<'_>) -> Seen {
    let path = side.path("participants");
    let client = side.client();
    let ours = lock(&client, Mutex, &path);
    ours.set_data(Some(b"zklock")).unwrap();
    side.tell(&format!("lock $k {path} patterns=-lock- data=kazoo"));
    side.tell("acquire $t $k");
    let waiting = ours.start_acquire(ME, SOME).unwrap();
    side.wait_for_nodes(&path, 2);
    let seen = ours.participants().unwrap();
    assert_eq!(seen.iter().map(|seen| seen.holds).collect::<Vec<_>>(), [true, false]);
    assert_eq!(seen.iter().map(|seen| &*seen.data).collect::<Vec<_>>(), [b"kazoo".as_slice(), b"zklock"]);
    assert_eq!(seen[0].node_path, format!("{path}/{}", side.ask("node $k")));
    assert_eq!(side.ask("contenders $k"), "kazoo zklock");
    side.tell("release $t $k");
    waiting.wait().unwrap();
    Seen::Alike
}

/// It waits for readers as well: more than it has to.
fn reader_with_both_patterns(side: &Side<'_>) -> Seen {
    let path = side.path("readers");
    let ours = lock(&side.client(), Read, &path);
    side.tell(&format!("read-lock $k {path} patterns=__READ__,__WRIT__"));
    side.tell("acquire $t $k");
    ours.acquire(NOW).unwrap();
    side.tell("release $t $k");
    keeps_out(side, "$k");
    ours.release().unwrap();
    Seen::differs("it also waits for zklock's readers; it needs __WRIT__ alone")
}

/// A Lock that has no pattern for readers gets in beside them. For kazoo's own there is none that it should have.
fn lock_beside_readers(side: &Side<'_>) -> Seen {
    let path = side.path("readers");
    let (read, write) = (lock(&side.client(), Read, &path), lock(&side.client(), Write, &path));
    read.acquire(NOW).unwrap();
    side.tell(&format!("lock $writes {path} patterns=__WRIT__"));
    side.tell(&format!("lock $all {path} patterns=__READ__,__WRIT__"));
    side.tell("acquire $t $writes 2000");
    side.tell("release $t $writes");
    keeps_out(side, "$all");
    read.release().unwrap();
    side.tell("acquire $t $all");
    assert_eq!((status(read.acquire(NOW)), status(write.acquire(NOW))), (Status::Timeout, Status::Timeout));
    side.tell("release $t $all");
    side.tell(&format!("read-lock $reads {path} patterns=__WRIT__"));
    side.tell("acquire $t $reads");
    side.tell("acquire $u $all 2000");
    side.tell("release $u $all");
    keeps_out(side, &side.define(Write, "$write", &path));
    side.tell("release $t $reads");
    Seen::differs("it needs both patterns, and passes by kazoo's own readers; a WriteLock does not")
}

fn curator_besides(side: &Side<'_>) -> Seen {
    let path = side.path("three");
    let curator = CuratorPeer::start(CuratorVersion::Newest, &side.ground.zookeeper.address(), SOON);
    curator.tell(&format!("mutex m {path}"));
    let ours = lock(&side.client(), Mutex, &path);
    let theirs = side.define(Mutex, "$k", &path);
    assert_eq!(curator.ask("acquire t m 10000"), "true");
    keeps_out(side, &theirs);
    assert_eq!(status(ours.acquire(NOW)), Status::Timeout);
    curator.tell("release t m");
    side.tell(&format!("acquire $t {theirs}"));
    assert_eq!(status(ours.acquire(NOW)), Status::Timeout);
    assert_eq!(curator.ask("acquire t m 10000"), "true");
    curator.tell("release t m");
    side.tell(&format!("release $t {theirs}"));
    Seen::differs("kazoo waits for Curator, Curator passes by kazoo")
}

fn semaphores(side: &Side<'_>) -> Seen {
    let path = side.path("semaphore");
    let ours = side.client().semaphore(&path, 1).unwrap();
    let one = ours.acquire(1, NOW).unwrap();
    let waiting = ours.start_acquire(1, SOME).unwrap();
    side.wait_for_nodes(&format!("{path}/locks"), 1);
    // kazoo counts `leases` and `locks`, and gets none of two.
    side.tell(&format!("semaphore $k {path} max=2"));
    assert_eq!(side.ask("acquire $t $k 0"), "false");
    // It gets one of three, which stands where zklock counts none.
    side.tell(&format!("semaphore $more {path} max=3"));
    side.tell("acquire $t $more 2000");
    one.release().unwrap();
    waiting.wait().unwrap().release().unwrap();
    side.tell("release $t $more");
    Seen::differs("kazoo counts zklock's two directories, zklock none of kazoo's leases")
}
