//! What is expected of every lock and of every other side: taking turns, order, exclusion, and that nobody who dies keeps others out.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use zklock::{Lock, Status};
use zklock_rig::{Peer, wait_until};

use crate::common::{SOON, status};
use crate::places::{Kind, ME, Place, Who, lock};
use crate::side::Side;
use crate::table::Seen;

pub(crate) const NOW: Option<Duration> = Some(Duration::ZERO);
pub(crate) const A_WHILE: Option<Duration> = Some(Duration::from_millis(300));
pub(crate) const SOME: Option<Duration> = Some(SOON);
/// The sessions of those who are killed or paused.
pub(crate) const SHORT: Duration = Duration::from_millis(1_500);

/// Why zklock does not get it. A machine that is too busy to answer in time is asked again.
#[track_caller]
pub(crate) fn refusal(acquire: impl Fn() -> zklock::Result<()>) -> Status {
    let mut tries = std::iter::repeat_with(|| acquire().unwrap_err().status()).take(20);
    tries.find(|&status| status != Status::Connection).unwrap_or(Status::Connection)
}

/// The other side holds: zklock does not get in, and gets in when it is released.
pub(crate) fn zklock_waits(side: &Side<'_>, kind: Kind) -> Seen {
    let path = side.path("waits");
    let ours = lock(&side.client(), kind, &path);
    let theirs = side.define(kind, "$held", &path);
    side.tell(&format!("acquire $t {theirs}"));
    assert_eq!(refusal(|| ours.acquire(NOW)), Status::Timeout);
    assert_eq!(refusal(|| ours.acquire(A_WHILE)), Status::Timeout);
    let waiting = ours.start_acquire(ME, SOME).unwrap();
    wait_until(SOON, || ours.queue().unwrap().len() > 1);
    assert!(waiting.wait_for(Duration::ZERO).is_none());
    side.tell(&format!("release $t {theirs}"));
    waiting.wait().unwrap();
    assert!(ours.is_held_by(ME).unwrap());
    ours.release_as(ME).unwrap();
    Seen::Alike
}

/// Whoever holds and whoever waits: the token is the holder's, by what zklock asks the ensemble.
pub(crate) fn token_is_checked(side: &Side<'_>, kind: Kind) -> Seen {
    let (path, client) = (side.path("fence"), side.client());
    let look = lock(&client, kind, &path);
    for who in [Who::Other, Who::Zklock] {
        let mut holder = Place::join(side, who, kind, &path, 0);
        holder.wait();
        let mut next = Place::join(side, Who::Zklock, kind, &path, 1);
        wait_until(SOON, || look.queue().unwrap().len() == 2);
        let tokens: Vec<i64> = look.queue().unwrap().iter().map(|participant| participant.czxid).collect();
        let holds = || tokens.iter().map(|&token| client.fence_check(&path, token).unwrap()).collect::<Vec<_>>();
        assert_eq!(holds(), [true, false], "{who:?} holds");
        holder.leave();
        next.wait();
        wait_until(SOON, || !client.fence_check(&path, tokens[0]).unwrap());
        assert!(client.fence_check(&path, look.queue().unwrap()[0].czxid).unwrap());
        next.leave();
    }
    Seen::Alike
}

/// zklock holds: the other side does not get in, and gets in when it is released.
pub(crate) fn other_waits(side: &Side<'_>, kind: Kind) -> Seen {
    let path = side.path("waits");
    let ours = lock(&side.client(), kind, &path);
    let theirs = side.define(kind, "$wanted", &path);
    ours.acquire(NOW).unwrap();
    keeps_out(side, &theirs);
    let waiting = side.send(&format!("acquire $t {theirs}"));
    wait_until(SOON, || ours.queue().unwrap().len() > 1);
    assert!(!waiting.is_done());
    ours.release().unwrap();
    assert_eq!(waiting.wait(SOON), "true");
    assert_eq!(refusal(|| ours.acquire(NOW)), Status::Timeout);
    side.tell(&format!("release $t {theirs}"));
    ours.acquire(NOW).unwrap();
    ours.release().unwrap();
    Seen::Alike
}

/// The other side does not get this lock within a while.
#[track_caller]
pub(crate) fn keeps_out(side: &Side<'_>, lock: &str) {
    let answer = side.ask(&format!("acquire $out {lock} 300"));
    let is_refused = answer == "false" || (side.is_kazoo() && answer.contains("LockTimeout"));
    assert!(is_refused, "the other side got {lock}: {answer}");
}

/// Contenders of both sides by turns, first the one and then the other beginning: they get in in the order of the queue.
pub(crate) fn in_order(side: &Side<'_>, kinds: &[Kind]) -> Seen {
    for first in Who::BOTH {
        let path = side.path(&format!("order-{first:?}"));
        let mut places: Vec<(Kind, Place<'_>)> = Vec::new();
        for (who, &kind) in first.alternating().zip(kinds) {
            let ahead = places.len();
            places.push((kind, Place::join(side, who, kind, &path, ahead)));
        }
        while !places.is_empty() {
            let readers = places.iter().take_while(|(kind, _)| *kind == Kind::Read).count();
            let inside = readers.max(1);
            places[..inside].iter_mut().for_each(|(_, place)| place.wait());
            assert!(places[inside..].iter_mut().all(|(_, place)| !place.is_in()), "somebody overtook");
            places.remove(0).1.leave();
        }
    }
    Seen::Alike
}

/// Two of each side at once do what nobody else may see half done.
pub(crate) fn under_load(side: &Side<'_>, kind: Kind) -> Seen {
    let path = side.path("load");
    let ours = || lock(&side.client(), kind, &path);
    assert_eq!(load(side, side.ground.rounds, |name| side.define(kind, name, &path), ours, SOON), 0, "time-outs");
    Seen::Alike
}

/// The same with locks of the caller's making. Where zklock does not get it within the limit, it tries again; how often it had to.
pub(crate) fn load(
    side: &Side<'_>,
    rounds: u32,
    theirs: impl Fn(&str) -> String,
    ours: impl Fn() -> Lock,
    limit: Duration,
) -> u32 {
    let (file, timeouts) = (side.file("load"), AtomicU32::new(0));
    let files = ["a", "b"].map(|end| file.with_extension(end));
    files.iter().for_each(|file| fs::write(file, "0").unwrap());
    let others = ["$one", "$two"].map(|name| {
        let words = format!("{name} {}", theirs(name));
        side.send(&format!("increment {words} {} {rounds}", file.display()))
    });
    let both = [ours(), ours()];
    thread::scope(|scope| {
        let workers = both.each_ref().map(|lock| {
            let (files, timeouts) = (&files, &timeouts);
            scope.spawn(move || {
                for _ in 0..rounds {
                    while let Err(error) = lock.acquire(Some(limit)) {
                        assert!(matches!(error.status(), Status::Timeout | Status::Connection), "{error}");
                        assert!(timeouts.fetch_add(1, Ordering::Relaxed) < 100 * rounds, "it never gets on");
                    }
                    let number = agreed(files);
                    files.iter().for_each(|file| fs::write(file, (number + 1).to_string()).unwrap());
                    lock.release().unwrap();
                }
            })
        });
        workers.into_iter().for_each(join);
    });
    others.iter().for_each(|ticket| assert_eq!(ticket.wait(SOON * 3), "ok"));
    assert_eq!(agreed(&files), 4 * rounds);
    timeouts.into_inner()
}

/// Writers of both sides write what readers of both sides compare.
pub(crate) fn read_and_write_under_load(side: &Side<'_>) -> Seen {
    let (path, file, rounds) = (side.path("load"), side.file("load"), side.ground.rounds);
    let files = ["a", "b"].map(|end| file.with_extension(end));
    files.iter().for_each(|file| fs::write(file, "0").unwrap());
    let work = [("increment", Kind::Write), ("compare", Kind::Read)];
    let others = work.map(|(verb, kind)| {
        let name = format!("${verb}");
        side.send(&format!("{verb} {name} {} {} {rounds}", side.define(kind, &name, &path), file.display()))
    });
    let clients = [side.client(), side.client()];
    thread::scope(|scope| {
        let workers = [0, 1].map(|at| {
            let (client, (verb, kind), files, path) = (&clients[at], work[at], &files, &path);
            scope.spawn(move || {
                let lock = lock(client, kind, path);
                for _ in 0..rounds {
                    lock.acquire(SOME).unwrap();
                    let number = agreed(files);
                    if verb == "increment" {
                        files.iter().for_each(|file| fs::write(file, (number + 1).to_string()).unwrap());
                    }
                    lock.release().unwrap();
                }
            })
        });
        workers.into_iter().for_each(join);
    });
    others.iter().for_each(|ticket| assert_eq!(ticket.wait(SOON * 3), "ok"));
    assert_eq!(agreed(&files), 2 * rounds);
    Seen::Alike
}

/// The number that both files hold.
fn agreed(files: &[impl AsRef<Path>; 2]) -> u32 {
    let [first, second] = files.each_ref().map(|file| fs::read_to_string(file).unwrap());
    assert_eq!(first, second, "somebody else is at work");
    first.parse().unwrap()
}

pub(crate) fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The other side's process is killed where it holds one lock and waits for another.
pub(crate) fn other_is_killed(side: &Side<'_>) -> Seen {
    let (held, wanted) = (side.path("held"), side.path("wanted"));
    let victim = side.victim(SHORT);
    let there = side.with(victim.peer());
    let client = side.client();
    let (next, ours) = (lock(&client, Kind::Mutex, &held), lock(&client, Kind::Mutex, &wanted));
    ours.acquire(NOW).unwrap();
    there.tell(&format!("acquire $t {}", there.define(Kind::Mutex, "$held", &held)));
    let _waiting = there.send(&format!("acquire $u {}", there.define(Kind::Mutex, "$wanted", &wanted)));
    side.wait_for_nodes(&wanted, 2);
    let next = (next.start_acquire(ME, SOME).unwrap(), next);
    let behind = Place::join(side, Who::Other, Kind::Mutex, &wanted, 2);
    let mut behind = (behind, Place::join(side, Who::Zklock, Kind::Mutex, &wanted, 3));
    victim.peer().kill();
    next.0.wait().unwrap();
    ours.release().unwrap();
    behind.0.wait();
    assert!(!behind.1.is_in());
    behind.0.leave();
    behind.1.wait();
    behind.1.leave();
    Seen::Alike
}

/// The other side's process stands still for longer than its session lasts, and goes on.
pub(crate) fn other_is_paused(side: &Side<'_>) -> Seen {
    let path = side.path("paused");
    let victim = side.victim(SHORT);
    let there = side.with(victim.peer());
    let theirs = there.define(Kind::Mutex, "$held", &path);
    there.tell(&format!("acquire $t {theirs}"));
    let ours = lock(&side.client(), Kind::Mutex, &path);
    let waiting = ours.start_acquire(ME, SOME).unwrap();
    side.wait_for_nodes(&path, 2);
    victim.peer().pause();
    waiting.wait().unwrap();
    victim.peer().resume();
    there.event("state main LOST");
    let believes = there.ask("held $held");
    // Giving up what it thinks it holds does not disturb us.
    let _answer = there.ask(&format!("release $t {theirs}"));
    assert!(ours.is_held_by(ME).unwrap());
    assert_eq!(ours.participants().unwrap().len(), 1);
    ours.release_as(ME).unwrap();
    match &*believes {
        "true" => Seen::differs("afterwards it still thinks that it holds the lock; zklock does hold it"),
        _ => Seen::Alike,
    }
}

/// A process with zklock is killed where it holds one lock and waits for another.
pub(crate) fn zklock_is_killed(side: &Side<'_>) -> Seen {
    let (held, wanted) = (side.path("held"), side.path("wanted"));
    let victim = side.zklock_process(SHORT);
    let theirs = side.define(Kind::Mutex, "$theirs", &wanted);
    side.tell(&format!("acquire $t {theirs}"));
    victim.ask_true(&format!("acquire {held}"));
    let _waiting = victim.send(&format!("acquire {wanted}"));
    side.wait_for_nodes(&wanted, 2);
    let next = side.send(&format!("acquire $u {}", side.define(Kind::Mutex, "$next", &held)));
    side.wait_for_nodes(&held, 2);
    let mut behind = Place::join(side, Who::Other, Kind::Mutex, &wanted, 2);
    victim.kill();
    assert_eq!(next.wait(SOON), "true");
    side.tell(&format!("release $t {theirs}"));
    behind.wait();
    behind.leave();
    side.tell("release $u $next");
    Seen::Alike
}

/// A process with zklock stands still for longer than its session lasts, and goes on.
pub(crate) fn zklock_is_paused(side: &Side<'_>) -> Seen {
    let path = side.path("paused");
    let victim = side.zklock_process(SHORT);
    victim.ask_true(&format!("acquire {path}"));
    victim.ask_true(&format!("held {path}"));
    let waiting = side.send(&format!("acquire $t {}", side.define(Kind::Mutex, "$next", &path)));
    side.wait_for_nodes(&path, 2);
    victim.pause();
    assert_eq!(waiting.wait(SOON), "true");
    victim.resume();
    assert_eq!(victim.ask(&format!("held {path}")), "false", "it knows at its first look");
    side.tell("release $t $next");
    Seen::Alike
}

/// A client that is closed leaves what it held and what it waited for.
pub(crate) fn clients_close(side: &Side<'_>) -> Seen {
    let path = side.path("closed");
    let client = side.client();
    let ours = lock(&client, Kind::Mutex, &path);
    ours.acquire(NOW).unwrap();
    let waiting = side.send(&format!("acquire $t {}", side.define(Kind::Mutex, "$next", &path)));
    side.wait_for_nodes(&path, 2);
    client.close().unwrap();
    assert_eq!(waiting.wait(SOON), "true");
    side.tell("release $t $next");

    side.tell("client $c");
    let definition = if side.is_kazoo() { "lock" } else { "mutex" };
    side.tell(&format!("{definition} $theirs {path} client=$c"));
    side.tell("acquire $u $theirs");
    let ours = lock(&side.client(), Kind::Mutex, &path);
    let waiting = ours.start_acquire(ME, SOME).unwrap();
    side.wait_for_nodes(&path, 2);
    side.tell("close $c");
    waiting.wait().unwrap();
    Seen::Alike
}

/// Who stops waiting, because of a time-out or because somebody says so, leaves nothing that others would wait for.
pub(crate) fn waiters_give_up(side: &Side<'_>) -> Seen {
    let path = side.path("given-up");
    let first = lock(&side.client(), Kind::Mutex, &path);
    first.acquire(NOW).unwrap();
    let theirs = side.define(Kind::Mutex, "$m", &path);
    let curator = side.send(&format!("acquire $t {theirs}"));
    side.wait_for_nodes(&path, 2);
    let ours = lock(&side.client(), Kind::Mutex, &path);
    let canceled = ours.start_acquire(ME, SOME).unwrap();
    side.wait_for_nodes(&path, 3);
    let mut last =
        [Place::join(side, Who::Other, Kind::Mutex, &path, 3), Place::join(side, Who::Zklock, Kind::Mutex, &path, 4)];
    side.tell(if side.is_kazoo() { "cancel $m" } else { "interrupt $t" });
    assert!(curator.wait(SOON).starts_with("error"), "it was told to stop waiting");
    ours.cancel().unwrap();
    assert_eq!(status(canceled.wait()), Status::Canceled);
    side.wait_for_nodes(&path, 3);
    keeps_out(side, &theirs);
    assert_eq!(refusal(|| ours.acquire(A_WHILE)), Status::Timeout);
    side.wait_for_nodes(&path, 3);
    assert!(last.iter_mut().all(|place| !place.is_in()));
    first.release().unwrap();
    for mut place in last {
        place.wait();
        place.leave();
    }
    side.wait_for_nodes(&path, 0);
    Seen::Alike
}

trait AskTrue {
    fn ask_true(&self, command: &str);
}

impl AskTrue for Peer {
    #[track_caller]
    fn ask_true(&self, command: &str) {
        assert_eq!(self.ask(command), "true", "{command}");
    }
}
