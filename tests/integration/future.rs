//! Operations as futures, on minimal executors: they need no runtime, and no thread waits for them.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::common::{OwnerCalls as _, TEST_TIMEOUT, client, path, raw, status, wait_for_queue};
use zklock::{Client, Config, Hold, Lock, Operation, Owner, Result, Status};
use zklock_test_support::{Proxy, ZooKeeper, wait_until};

/// A task that runs on the thread that created it. It counts how often it is woken.
struct Task {
    thread: Thread,
    woken: AtomicUsize,
}

impl Task {
    fn new() -> Arc<Self> {
        Arc::new(Self { thread: thread::current(), woken: AtomicUsize::new(0) })
    }

    fn woken(&self) -> usize {
        self.woken.load(Ordering::SeqCst)
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Polls a future only after its task was woken. Returns its output and the number of polls.
#[track_caller]
fn run<T>(future: impl Future<Output = T>) -> (T, usize) {
    let (task, end) = (Task::new(), Instant::now() + TEST_TIMEOUT);
    let (waker, mut future) = (Waker::from(Arc::clone(&task)), pin!(future));
    for polls in 1.. {
        let woken = task.woken();
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return (output, polls);
        }
        while task.woken() == woken {
            assert!(Instant::now() < end, "the task was not woken");
            thread::park_timeout(Duration::from_millis(100));
        }
    }
    unreachable!()
}

#[track_caller]
fn block_on<T>(future: impl Future<Output = T>) -> T {
    run(future).0
}

fn poll(acquiring: &mut Operation<Hold>, task: &Arc<Task>) -> Poll<Result<Hold>> {
    Pin::new(acquiring).poll(&mut Context::from_waker(&Waker::from(Arc::clone(task))))
}

/// A lock that one client holds, and a handle of another client for the same lock.
fn held_and_wanted(server: &ZooKeeper, name: &str) -> (Lock, Lock) {
    let path = path(name);
    let (holder, other) = (client(&server.address()), client(&server.address()));
    let held = holder.mutex(&path).unwrap();
    held.acquire(None).unwrap();
    (held, other.mutex(&path).unwrap())
}

#[test]
fn each_operation_resolves_as_its_wait_returns() {
    let server = ZooKeeper::shared();
    block_on(async {
        let client = Client::start_connect(&server.address(), &Config::new())?.await?;
        let lock = client.mutex(&path("each"))?;
        let owner = Owner::task(7);
        let hold = lock.start_acquire(owner, Some(TEST_TIMEOUT))?.await?;
        assert!(lock.is_held_as(owner)?);
        assert_eq!(lock.start_participants()?.await?.len(), 1);
        hold.start_release(true)?.await?;
        assert!(lock.start_participants()?.await?.is_empty());

        let semaphore = client.semaphore(&path("leases"), 2)?;
        let leases = semaphore.start_acquire(2, Some(TEST_TIMEOUT))?.await?;
        assert!(leases.is_held()?);
        assert_eq!(status(semaphore.start_acquire(1, Some(Duration::ZERO))?.await.map(drop)), Status::Timeout);
        leases.start_release(true)?.await
    })
    .unwrap();
    let nobody = Client::start_connect("127.0.0.1:1", &config(Duration::from_millis(300))).unwrap();
    assert_eq!(status(block_on(nobody).map(drop)), Status::Connection);
}

fn config(connect_timeout: Duration) -> Config {
    Config::new().connect_timeout(connect_timeout)
}

/// The release of a multi-lock of two clients consists of two calls, and its acquire of several steps.
#[test]
fn several_steps_are_one_future() {
    let server = ZooKeeper::shared();
    let (one, two) = (client(&server.address()), client(&server.address()));
    let locks = [one.mutex(&path("one")).unwrap(), two.mutex(&path("two")).unwrap()];
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    let owner = Owner::task(7);
    let acquiring = multi.start_acquire(owner, Some(TEST_TIMEOUT)).unwrap();
    let (result, polls) = run(acquiring);
    result.unwrap().leave_to_owner();
    assert!(polls <= 2, "{polls} polls");
    assert!(locks.iter().all(|lock| lock.is_held_as(owner).unwrap()));
    let (result, polls) = run(multi.start_release(owner, true).unwrap());
    result.unwrap();
    assert!(polls <= 2, "{polls} polls");
    wait_for_queue(&mut raw(server), locks[1].path(), 0);
}

#[test]
fn a_task_is_woken_when_the_lock_is_released_and_not_before() {
    let server = ZooKeeper::shared();
    let (held, wanted) = held_and_wanted(server, "woken");
    let (task, owner) = (Task::new(), Owner::task(7));
    let mut acquiring = wanted.start_acquire(owner, None).unwrap();
    assert!(poll(&mut acquiring, &task).is_pending());
    wait_for_queue(&mut raw(server), wanted.path(), 2);
    assert_eq!(task.woken(), 0);
    held.release().unwrap();
    wait_until(TEST_TIMEOUT, || task.woken() == 1);
    let hold = poll(&mut acquiring, &task).map(Result::unwrap);
    // The task has received the hold, so dropping the future does not release it.
    drop(acquiring);
    assert!(wanted.is_held_as(owner).unwrap());
    assert_eq!(task.woken(), 1);
    drop(hold);
    assert!(!wanted.is_held_as(owner).unwrap());
}

#[test]
fn timeout_of_an_unpolled_future_is_kept() {
    let server = ZooKeeper::shared();
    let (_held, wanted) = held_and_wanted(server, "limit");
    let (limit, start) = (Duration::from_secs(1), Instant::now());
    let acquiring = wanted.start_acquire(Owner::task(7), Some(limit)).unwrap();
    assert_eq!(status(block_on(acquiring)), Status::Timeout);
    assert!(start.elapsed() >= limit);
}

/// A future may move to another task between two polls, for example after a `select`.
#[test]
fn the_task_of_the_latest_poll_is_woken() {
    let server = ZooKeeper::shared();
    let (held, wanted) = held_and_wanted(server, "moved");
    let (first, second) = (Task::new(), Task::new());
    let mut acquiring = wanted.start_acquire(Owner::task(7), None).unwrap();
    assert!(poll(&mut acquiring, &first).is_pending());
    assert!(poll(&mut acquiring, &second).is_pending());
    assert_eq!(Arc::strong_count(&first), 1, "the first task is kept");
    held.release().unwrap();
    wait_until(TEST_TIMEOUT, || second.woken() == 1);
    assert!(matches!(poll(&mut acquiring, &second), Poll::Ready(Ok(_))));
    assert_eq!(first.woken(), 0);
}

#[test]
fn dropping_the_future_cancels_the_acquire() {
    let server = ZooKeeper::shared();
    let (held, wanted) = held_and_wanted(server, "dropped");
    let (task, mut raw) = (Task::new(), raw(server));
    let mut acquiring = wanted.start_acquire(Owner::task(7), None).unwrap();
    assert!(poll(&mut acquiring, &task).is_pending());
    wait_for_queue(&mut raw, wanted.path(), 2);
    drop(acquiring);
    wait_for_queue(&mut raw, wanted.path(), 1);
    assert_eq!(Arc::strong_count(&task), 1, "the task is kept");
    assert!(held.is_held().unwrap());
}

#[test]
fn cancel_and_close_resolve_awaited_futures() {
    let server = ZooKeeper::shared();
    let (_held, wanted) = held_and_wanted(server, "ended");
    type End = fn(&Lock) -> Result<()>;
    let ends: [(End, Status); 2] = [(Lock::cancel, Status::Canceled), (Lock::close, Status::Closed)];
    for (end, expected) in ends {
        let acquiring = wanted.start_acquire(Owner::task(7), None).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                wait_for_queue(&mut raw(server), wanted.path(), 2);
                end(&wanted).unwrap();
            });
            assert_eq!(status(block_on(acquiring)), expected);
        });
        wait_for_queue(&mut raw(server), wanted.path(), 1);
    }
}

/// One thread runs all tasks. Each increments a number that only the lock protects.
#[test]
fn tasks_of_one_thread_take_turns() {
    const TASKS: u64 = 10;
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("turns")).unwrap();
    let inside = AtomicUsize::new(0);
    let work = |task: u64| {
        let (lock, inside) = (&lock, &inside);
        async move {
            let owner = Owner::task(task);
            for _ in 0..5 {
                lock.start_acquire(owner, Some(TEST_TIMEOUT))?.await?.leave_to_owner();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two owners hold the lock");
                // Other tasks can run here.
                lock.start_participants()?.await?;
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                lock.start_release(owner, true)?.await?;
            }
            Result::Ok(())
        }
    };
    let mut tasks: Vec<_> = (0..TASKS).map(|task| Some(Box::pin(work(task)))).collect();
    block_on(std::future::poll_fn(|cx| {
        for task in &mut tasks {
            if let Some(Poll::Ready(result)) = task.as_mut().map(|task| task.as_mut().poll(cx)) {
                result.unwrap();
                *task = None;
            }
        }
        if tasks.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    }));
}

/// A server that does not answer keeps the operations pending. A forked child has copies of them, and of a task that no
/// thread wakes there.
#[test]
fn in_a_forked_child_each_operation_is_over() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let client = client(&proxy.address());
    let (lock, held) = (client.mutex(&path("forked")).unwrap(), client.mutex(&path("forked-held")).unwrap());
    held.acquire(None).unwrap();
    let kept = client.mutex(&path("forked-kept")).unwrap();
    kept.acquire(None).unwrap();
    let lost = kept.start_wait_lost(Owner::current_thread()).unwrap();
    proxy.black_hole(true);
    let mut connecting = Client::start_connect(&proxy.address(), &config(Duration::from_secs(60))).unwrap();
    let mut acquiring = lock.start_acquire(Owner::unique(), None).unwrap();
    let mut listing = lock.start_participants().unwrap();
    let mut releasing = held.start_release(Owner::current_thread(), true).unwrap();
    let waker = Waker::from(Task::new());
    let mut outcomes = || {
        let cx = &mut Context::from_waker(&waker);
        [
            outcome(Pin::new(&mut connecting).poll(cx)),
            outcome(Pin::new(&mut acquiring).poll(cx)),
            outcome(Pin::new(&mut listing).poll(cx)),
            outcome(Pin::new(&mut releasing).poll(cx)),
        ]
    };
    assert_eq!(outcomes(), [None; 4]);
    // SAFETY: The child only polls and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_forked = |result: Result<()>| result.is_err_and(|error| error.status() == Status::Forked);
        let is_right = outcomes() == [Some(Status::Forked); 4]
            && lost.wait_for(Duration::ZERO).is_some_and(is_forked)
            && is_forked(lost.on_done(|| ()));
        // SAFETY: The call has no preconditions.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut ended = -1;
    // SAFETY: The status is valid for writes.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut ended, 0) }, child);
    assert_eq!(ended, 0);
    assert_eq!(outcomes(), [None; 4]);
    proxy.black_hole(false);
}

/// The status with which an operation has failed.
fn outcome<T>(poll: Poll<Result<T>>) -> Option<Status> {
    match poll {
        Poll::Ready(result) => Some(result.map(drop).unwrap_err().status()),
        Poll::Pending => None,
    }
}
