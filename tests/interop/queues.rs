//! Checks that apply to every lock and every other side: exclusion, order, and the recovery from a process that ended.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use zklock::{Lock, Status};
use zklock_test_support::{PeerProcess, wait_until};

use crate::common::{OwnerCalls as _, TEST_TIMEOUT, status};
use crate::fixture::CheckContext;
use crate::queued_acquire::{Library, LockKind, ME, QueuedAcquire, lock};
use crate::table::CheckResult;

pub(crate) const TRY_ONCE: Option<Duration> = Some(Duration::ZERO);
pub(crate) const SHORT_WAIT: Option<Duration> = Some(Duration::from_millis(300));
pub(crate) const LONG_WAIT: Option<Duration> = Some(TEST_TIMEOUT);
/// The session timeout of processes that are killed or paused.
pub(crate) const SHORT_SESSION: Duration = Duration::from_millis(1_500);

/// Returns the status with which zklock's acquire fails. After CONNECTION, the function tries again, because a busy
/// machine may not answer in time.
#[track_caller]
pub(crate) fn refusal(acquire: impl Fn() -> zklock::Result<()>) -> Status {
    let mut tries = std::iter::repeat_with(|| acquire().unwrap_err().status()).take(20);
    tries.find(|&status| status != Status::Connection).unwrap_or(Status::Connection)
}

/// Calls an acquire of a free lock with timeout 0. After CONNECTION, the function calls it again, because a busy machine
/// may not answer in time. The second call may have to wait until the node of the first call is deleted.
#[track_caller]
pub(crate) fn at_once<T>(acquire: impl Fn(Option<Duration>) -> zklock::Result<T>) -> T {
    match acquire(TRY_ONCE) {
        Err(error) if error.status() == Status::Connection => acquire(LONG_WAIT).unwrap(),
        result => result.unwrap(),
    }
}

/// The other side holds the lock. zklock does not get it until the other side releases it.
pub(crate) fn zklock_waits(cx: &CheckContext<'_>, kind: LockKind) -> CheckResult {
    let path = cx.path("waits");
    let ours = lock(&cx.client(), kind, &path);
    let theirs = cx.define(kind, "$held", &path);
    cx.run(&format!("acquire $t {theirs}"));
    assert_eq!(refusal(|| ours.acquire(TRY_ONCE)), Status::Timeout);
    assert_eq!(refusal(|| ours.acquire(SHORT_WAIT)), Status::Timeout);
    let waiting = ours.start_acquire(ME, LONG_WAIT).unwrap();
    wait_until(TEST_TIMEOUT, || ours.queue().unwrap().len() > 1);
    assert!(waiting.wait_for(Duration::ZERO).is_none());
    cx.run(&format!("release $t {theirs}"));
    waiting.wait().unwrap().leave_to_owner();
    assert!(ours.is_held_as(ME).unwrap());
    ours.release_as(ME).unwrap();
    CheckResult::Same
}

/// zklock's fence check accepts the token of a holder of either side, and rejects the token of a waiter.
pub(crate) fn token_is_checked(cx: &CheckContext<'_>, kind: LockKind) -> CheckResult {
    let (path, client) = (cx.path("fence"), cx.client());
    let look = lock(&client, kind, &path);
    for who in [Library::Other, Library::Zklock] {
        let mut holder = QueuedAcquire::start(cx, who, kind, &path, 0);
        holder.wait_acquired();
        let mut next = QueuedAcquire::start(cx, Library::Zklock, kind, &path, 1);
        wait_until(TEST_TIMEOUT, || look.queue().unwrap().len() == 2);
        let tokens: Vec<i64> = look.queue().unwrap().iter().map(|participant| participant.czxid).collect();
        let holds = || tokens.iter().map(|&token| client.fence_check(&path, token).unwrap()).collect::<Vec<_>>();
        assert_eq!(holds(), [true, false], "{who:?} holds");
        holder.release();
        next.wait_acquired();
        wait_until(TEST_TIMEOUT, || !client.fence_check(&path, tokens[0]).unwrap());
        assert!(client.fence_check(&path, look.queue().unwrap()[0].czxid).unwrap());
        next.release();
    }
    CheckResult::Same
}

/// zklock holds the lock. The other side does not get it until zklock releases it.
pub(crate) fn other_waits(cx: &CheckContext<'_>, kind: LockKind) -> CheckResult {
    let path = cx.path("waits");
    let ours = lock(&cx.client(), kind, &path);
    let theirs = cx.define(kind, "$wanted", &path);
    at_once(|limit| ours.acquire(limit));
    assert_other_is_refused(cx, &theirs);
    let waiting = cx.send(&format!("acquire $t {theirs}"));
    wait_until(TEST_TIMEOUT, || ours.queue().unwrap().len() > 1);
    assert!(!waiting.is_done());
    ours.release().unwrap();
    assert_eq!(waiting.wait(TEST_TIMEOUT), "true");
    assert_eq!(refusal(|| ours.acquire(TRY_ONCE)), Status::Timeout);
    cx.run(&format!("release $t {theirs}"));
    at_once(|limit| ours.acquire(limit));
    ours.release().unwrap();
    CheckResult::Same
}

/// Asserts that the other side does not get this lock within 300 ms.
#[track_caller]
pub(crate) fn assert_other_is_refused(cx: &CheckContext<'_>, lock: &str) {
    let answer = cx.query(&format!("acquire $out {lock} 300"));
    let is_refused = answer == "false" || (cx.is_kazoo() && answer.contains("LockTimeout"));
    assert!(is_refused, "the other side got {lock}: {answer}");
}

/// Both sides queue alternately, once beginning with each side. The lock is granted in the order of the queue.
pub(crate) fn in_order(cx: &CheckContext<'_>, kinds: &[LockKind]) -> CheckResult {
    for first in Library::BOTH {
        let path = cx.path(&format!("order-{first:?}"));
        let mut places: Vec<(LockKind, QueuedAcquire<'_>)> = Vec::new();
        for (who, &kind) in first.alternating().zip(kinds) {
            let ahead = places.len();
            places.push((kind, QueuedAcquire::start(cx, who, kind, &path, ahead)));
        }
        while !places.is_empty() {
            let readers = places.iter().take_while(|(kind, _)| *kind == LockKind::Read).count();
            let inside = readers.max(1);
            places[..inside].iter_mut().for_each(|(_, place)| place.wait_acquired());
            assert!(places[inside..].iter_mut().all(|(_, place)| !place.poll_acquired()), "somebody overtook");
            places.remove(0).1.release();
        }
    }
    CheckResult::Same
}

/// Two threads of each side make changes under the lock that no other thread may see half done.
pub(crate) fn under_load(cx: &CheckContext<'_>, kind: LockKind) -> CheckResult {
    let path = cx.path("load");
    let ours = || lock(&cx.client(), kind, &path);
    assert_eq!(load(cx, cx.shared.rounds, |name| cx.define(kind, name, &path), ours, TEST_TIMEOUT), 0, "time-outs");
    CheckResult::Same
}

/// The same with given locks. If zklock does not get the lock within the limit, it tries again. Returns the number of
/// such timeouts.
pub(crate) fn load(
    cx: &CheckContext<'_>,
    rounds: u32,
    theirs: impl Fn(&str) -> String,
    ours: impl Fn() -> Lock,
    limit: Duration,
) -> u32 {
    let (file, timeouts) = (cx.file("load"), AtomicU32::new(0));
    let files = ["a", "b"].map(|end| file.with_extension(end));
    files.iter().for_each(|file| fs::write(file, "0").unwrap());
    let others = ["$one", "$two"].map(|name| {
        let words = format!("{name} {}", theirs(name));
        cx.send(&format!("increment {words} {} {rounds}", file.display()))
    });
    let both = [ours(), ours()];
    thread::scope(|scope| {
        let workers = both.each_ref().map(|lock| {
            let (files, timeouts) = (&files, &timeouts);
            scope.spawn(move || {
                for _ in 0..rounds {
                    while let Err(error) = lock.acquire(Some(limit)) {
                        assert!(matches!(error.status(), Status::Timeout | Status::Connection), "{error}");
                        assert!(timeouts.fetch_add(1, Ordering::Relaxed) < 100 * rounds, "too many acquires timed out");
                    }
                    let number = equal_numbers_in(files);
                    files.iter().for_each(|file| fs::write(file, (number + 1).to_string()).unwrap());
                    lock.release().unwrap();
                }
            })
        });
        workers.into_iter().for_each(join);
    });
    others.iter().for_each(|ticket| assert_eq!(ticket.wait(TEST_TIMEOUT * 3), "ok"));
    assert_eq!(equal_numbers_in(&files), 4 * rounds);
    timeouts.into_inner()
}

/// Writers of both sides change files that readers of both sides compare.
pub(crate) fn read_and_write_under_load(cx: &CheckContext<'_>) -> CheckResult {
    let (path, file, rounds) = (cx.path("load"), cx.file("load"), cx.shared.rounds);
    let files = ["a", "b"].map(|end| file.with_extension(end));
    files.iter().for_each(|file| fs::write(file, "0").unwrap());
    let work = [("increment", LockKind::Write), ("compare", LockKind::Read)];
    let others = work.map(|(verb, kind)| {
        let name = format!("${verb}");
        cx.send(&format!("{verb} {name} {} {} {rounds}", cx.define(kind, &name, &path), file.display()))
    });
    let clients = [cx.client(), cx.client()];
    thread::scope(|scope| {
        let workers = [0, 1].map(|at| {
            let (client, (verb, kind), files, path) = (&clients[at], work[at], &files, &path);
            scope.spawn(move || {
                let lock = lock(client, kind, path);
                for _ in 0..rounds {
                    lock.acquire(LONG_WAIT).unwrap();
                    let number = equal_numbers_in(files);
                    if verb == "increment" {
                        files.iter().for_each(|file| fs::write(file, (number + 1).to_string()).unwrap());
                    }
                    lock.release().unwrap();
                }
            })
        });
        workers.into_iter().for_each(join);
    });
    others.iter().for_each(|ticket| assert_eq!(ticket.wait(TEST_TIMEOUT * 3), "ok"));
    assert_eq!(equal_numbers_in(&files), 2 * rounds);
    CheckResult::Same
}

/// The number that both files contain.
fn equal_numbers_in(files: &[impl AsRef<Path>; 2]) -> u32 {
    let [first, second] = files.each_ref().map(|file| fs::read_to_string(file).unwrap());
    assert_eq!(first, second, "another participant works at the same time");
    first.parse().unwrap()
}

pub(crate) fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The process of the other side is killed while it holds one lock and waits for another.
pub(crate) fn other_is_killed(cx: &CheckContext<'_>) -> CheckResult {
    let (held, wanted) = (cx.path("held"), cx.path("wanted"));
    let disposable = cx.start_disposable_peer(SHORT_SESSION);
    let there = cx.with_peer(disposable.peer());
    let client = cx.client();
    let (next, ours) = (lock(&client, LockKind::Mutex, &held), lock(&client, LockKind::Mutex, &wanted));
    at_once(|limit| ours.acquire(limit));
    there.run(&format!("acquire $t {}", there.define(LockKind::Mutex, "$held", &held)));
    let _waiting = there.send(&format!("acquire $u {}", there.define(LockKind::Mutex, "$wanted", &wanted)));
    cx.wait_for_nodes(&wanted, 2);
    let next = (next.start_acquire(ME, LONG_WAIT).unwrap(), next);
    let behind = QueuedAcquire::start(cx, Library::Other, LockKind::Mutex, &wanted, 2);
    let mut behind = (behind, QueuedAcquire::start(cx, Library::Zklock, LockKind::Mutex, &wanted, 3));
    disposable.peer().kill();
    next.0.wait().unwrap().leave_to_owner();
    ours.release().unwrap();
    behind.0.wait_acquired();
    assert!(!behind.1.poll_acquired());
    behind.0.release();
    behind.1.wait_acquired();
    behind.1.release();
    CheckResult::Same
}

/// The process of the other side is paused for longer than its session timeout, and then resumed.
pub(crate) fn other_is_paused(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("paused");
    let disposable = cx.start_disposable_peer(SHORT_SESSION);
    let there = cx.with_peer(disposable.peer());
    let theirs = there.define(LockKind::Mutex, "$held", &path);
    there.run(&format!("acquire $t {theirs}"));
    let ours = lock(&cx.client(), LockKind::Mutex, &path);
    let waiting = ours.start_acquire(ME, LONG_WAIT).unwrap();
    cx.wait_for_nodes(&path, 2);
    disposable.peer().pause();
    waiting.wait().unwrap().leave_to_owner();
    disposable.peer().resume();
    there.event("state main LOST");
    let believes = there.query("held $held");
    // The release of a hold that the other side has lost does not affect zklock.
    let _answer = there.query(&format!("release $t {theirs}"));
    assert!(ours.is_held_as(ME).unwrap());
    assert_eq!(ours.participants().unwrap().len(), 1);
    ours.release_as(ME).unwrap();
    match &*believes {
        "true" => CheckResult::known_difference(
            "after the pause it still reports that it holds the lock, although zklock holds it",
        ),
        _ => CheckResult::Same,
    }
}

/// A process with zklock is killed while it holds one lock and waits for another.
pub(crate) fn zklock_is_killed(cx: &CheckContext<'_>) -> CheckResult {
    let (held, wanted) = (cx.path("held"), cx.path("wanted"));
    let disposable = cx.zklock_process(SHORT_SESSION);
    let theirs = cx.define(LockKind::Mutex, "$theirs", &wanted);
    cx.run(&format!("acquire $t {theirs}"));
    disposable.query_true(&format!("acquire {held}"));
    let _waiting = disposable.send(&format!("acquire {wanted}"));
    cx.wait_for_nodes(&wanted, 2);
    let next = cx.send(&format!("acquire $u {}", cx.define(LockKind::Mutex, "$next", &held)));
    cx.wait_for_nodes(&held, 2);
    let mut behind = QueuedAcquire::start(cx, Library::Other, LockKind::Mutex, &wanted, 2);
    disposable.kill();
    assert_eq!(next.wait(TEST_TIMEOUT), "true");
    cx.run(&format!("release $t {theirs}"));
    behind.wait_acquired();
    behind.release();
    cx.run("release $u $next");
    CheckResult::Same
}

/// A process with zklock is paused for longer than its session timeout, and then resumed.
pub(crate) fn zklock_is_paused(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("paused");
    let disposable = cx.zklock_process(SHORT_SESSION);
    disposable.query_true(&format!("acquire {path}"));
    disposable.query_true(&format!("held {path}"));
    let waiting = cx.send(&format!("acquire $t {}", cx.define(LockKind::Mutex, "$next", &path)));
    cx.wait_for_nodes(&path, 2);
    disposable.pause();
    assert_eq!(waiting.wait(TEST_TIMEOUT), "true");
    disposable.resume();
    assert_eq!(disposable.query(&format!("held {path}")), "false", "its first check after the pause reports the loss");
    cx.run("release $t $next");
    CheckResult::Same
}

/// A client that is closed releases its holds and cancels its waits.
pub(crate) fn clients_close(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("closed");
    let client = cx.client();
    let ours = lock(&client, LockKind::Mutex, &path);
    at_once(|limit| ours.acquire(limit));
    let waiting = cx.send(&format!("acquire $t {}", cx.define(LockKind::Mutex, "$next", &path)));
    cx.wait_for_nodes(&path, 2);
    client.close().unwrap();
    assert_eq!(waiting.wait(TEST_TIMEOUT), "true");
    cx.run("release $t $next");

    cx.run("client $c");
    let definition = if cx.is_kazoo() { "lock" } else { "mutex" };
    cx.run(&format!("{definition} $theirs {path} client=$c"));
    cx.run("acquire $u $theirs");
    let ours = lock(&cx.client(), LockKind::Mutex, &path);
    let waiting = ours.start_acquire(ME, LONG_WAIT).unwrap();
    cx.wait_for_nodes(&path, 2);
    cx.run("close $c");
    waiting.wait().unwrap().leave_to_owner();
    CheckResult::Same
}

/// A wait that ends, by a timeout or because it is cancelled, leaves no node behind.
pub(crate) fn waiters_give_up(cx: &CheckContext<'_>) -> CheckResult {
    let path = cx.path("given-up");
    let first = lock(&cx.client(), LockKind::Mutex, &path);
    at_once(|limit| first.acquire(limit));
    let theirs = cx.define(LockKind::Mutex, "$m", &path);
    let curator = cx.send(&format!("acquire $t {theirs}"));
    cx.wait_for_nodes(&path, 2);
    let ours = lock(&cx.client(), LockKind::Mutex, &path);
    let canceled = ours.start_acquire(ME, LONG_WAIT).unwrap();
    cx.wait_for_nodes(&path, 3);
    let mut last = [
        QueuedAcquire::start(cx, Library::Other, LockKind::Mutex, &path, 3),
        QueuedAcquire::start(cx, Library::Zklock, LockKind::Mutex, &path, 4),
    ];
    cx.run(if cx.is_kazoo() { "cancel $m" } else { "interrupt $t" });
    assert!(curator.wait(TEST_TIMEOUT).starts_with("error"), "the canceled waiter reports an error");
    ours.cancel().unwrap();
    assert_eq!(status(canceled.wait()), Status::Canceled);
    cx.wait_for_nodes(&path, 3);
    assert_other_is_refused(cx, &theirs);
    assert_eq!(refusal(|| ours.acquire(SHORT_WAIT)), Status::Timeout);
    cx.wait_for_nodes(&path, 3);
    assert!(last.iter_mut().all(|place| !place.poll_acquired()));
    first.release().unwrap();
    for mut place in last {
        place.wait_acquired();
        place.release();
    }
    cx.wait_for_nodes(&path, 0);
    CheckResult::Same
}

trait QueryTrue {
    fn query_true(&self, command: &str);
}

impl QueryTrue for PeerProcess {
    #[track_caller]
    fn query_true(&self, command: &str) {
        assert_eq!(self.query(command), "true", "{command}");
    }
}
