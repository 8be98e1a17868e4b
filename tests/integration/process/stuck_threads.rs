//! Threads that cannot run, and limits of the process. The other calls of a client go on. The tests change their process,
//! so they run one after the other.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failing test may panic")]

#[path = "../common.rs"]
mod common;

use std::mem::{MaybeUninit, size_of};
use std::os::unix::thread::JoinHandleExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{OwnerCalls as _, TEST_TIMEOUT, client, client_with, path, raw, wait_for_waiters};
use zklock::LockState;
use zklock_test_support::{ZooKeeper, wait_until};

const MS: Duration = Duration::from_millis(1);
/// A heartbeat of such a session takes longer than the test waits for a condition.
const SESSION: Duration = Duration::from_secs(600);
/// A thread is stuck until this number is zero.
static STUCK: AtomicUsize = AtomicUsize::new(0);
static IN_HANDLER: AtomicUsize = AtomicUsize::new(0);

extern "C" fn stay(_signal: libc::c_int) {
    IN_HANDLER.fetch_add(1, Ordering::SeqCst);
    while STUCK.load(Ordering::SeqCst) > 0 {
        // SAFETY: usleep has no precondition, and is safe in a signal handler.
        unsafe { libc::usleep(1000) };
    }
}

#[test]
fn a_process_with_threads_that_cannot_run_and_with_low_limits() {
    calls_go_on_while_the_waiting_thread_is_in_a_signal_handler();
    threads_of_the_library_have_the_scheduling_of_the_process();
    a_low_limit_of_descriptors_costs_neither_time_nor_processor_time();
}

/// The signal stops the thread either in the first milliseconds of its wait, when it may read the socket itself, or later.
fn calls_go_on_while_the_waiting_thread_is_in_a_signal_handler() {
    let server = ZooKeeper::shared();
    // SAFETY: the handler calls only functions that are safe in signal handlers.
    unsafe { libc::signal(libc::SIGUSR1, stay as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    for pause in [0, 1, 5, 100] {
        let (one, two) = (client_with(&server.address(), SESSION), client(&server.address()));
        let (busy, other, watched) = (path("busy"), path("other"), path("watched"));
        let (held, wanted, kept) = (two.mutex(&busy).unwrap(), one.mutex(&busy).unwrap(), one.mutex(&watched).unwrap());
        let losses = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&losses);
        let listener = kept.on_lost(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let _listener = listener.unwrap();
        // The holder watches its node, because it had to wait for it.
        let before = two.mutex(&watched).unwrap();
        before.acquire(None).unwrap();
        let acquiring = kept.start_acquire(zklock::Owner::task(1), None).unwrap();
        wait_for_waiters(&before, 2);
        before.release().unwrap();
        acquiring.wait().unwrap().leave_to_owner();
        held.acquire(None).unwrap();
        STUCK.store(1, Ordering::SeqCst);
        let id = Arc::new(AtomicI32::new(0));
        let (own_id, waiting) = (Arc::clone(&id), wanted.clone());
        let waiter = thread::spawn(move || {
            // SAFETY: the call has no precondition.
            own_id.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            waiting.acquire(Some(3 * TEST_TIMEOUT)).and_then(|()| waiting.release())
        });
        wait_until(TEST_TIMEOUT, || id.load(Ordering::SeqCst) != 0);
        if pause > 0 {
            wait_for_waiters(&held, 2);
        }
        thread::sleep(pause * MS);
        // While a thread works in a call, it holds the lock of its client. The signal must find the thread waiting.
        wait_until(TEST_TIMEOUT, || is_asleep(id.load(Ordering::SeqCst)));
        let seen = IN_HANDLER.load(Ordering::SeqCst);
        // SAFETY: the thread is not joined yet.
        unsafe { libc::pthread_kill(waiter.as_pthread_t(), libc::SIGUSR1) };
        wait_until(TEST_TIMEOUT, || IN_HANDLER.load(Ordering::SeqCst) > seen);
        let free = one.mutex(&other).unwrap();
        for _ in 0..5 {
            free.acquire(Some(TEST_TIMEOUT)).unwrap();
            free.release().unwrap();
        }
        let node = kept.node_paths_of(zklock::Owner::task(1)).unwrap().remove(0);
        assert_eq!(raw(server).delete(&node), 0);
        wait_until(TEST_TIMEOUT, || losses.load(Ordering::SeqCst) == 1);
        assert_eq!(kept.state_as(zklock::Owner::task(1)).unwrap(), LockState::Lost);
        STUCK.store(0, Ordering::SeqCst);
        held.release().unwrap();
        waiter.join().unwrap().unwrap();
    }
}

/// Returns whether a thread of this process waits in a system call.
fn is_asleep(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

/// A background thread with the policy `SCHED_IDLE`, pinned to one processor, creates the first client.
fn threads_of_the_library_have_the_scheduling_of_the_process() {
    let server = ZooKeeper::shared().address();
    let of_main = processors(std::process::id());
    let made_by_a_background_thread = thread::spawn(move || {
        // SAFETY: the structures are initialized, and the calls change only this thread.
        unsafe {
            let mut one = MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init();
            libc::CPU_SET(libc::sched_getcpu().try_into().unwrap(), &mut one);
            assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const one), 0);
            let idle = MaybeUninit::<libc::sched_param>::zeroed().assume_init();
            assert_eq!(libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const idle), 0);
        }
        client(&server)
    });
    let client = made_by_a_background_thread.join().unwrap();
    let io_threads: Vec<u32> = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|task| task.unwrap().file_name().into_string().unwrap().parse().unwrap())
        .filter(|id| std::fs::read_to_string(format!("/proc/self/task/{id}/comm")).is_ok_and(|name| name == "zkl-io\n"))
        .collect();
    assert_eq!(io_threads.len(), 1);
    assert_eq!(processors(io_threads[0]), of_main);
    // SAFETY: the call has no precondition.
    let policy = unsafe { libc::sched_getscheduler(io_threads[0].try_into().unwrap()) };
    // Without the right to change it, the policy remains.
    // SAFETY: the call has no precondition.
    if unsafe { libc::geteuid() } == 0 {
        assert_eq!(policy, libc::SCHED_OTHER);
    }
    drop(client);
}

/// Returns the processors on which a thread may run.
fn processors(thread: u32) -> Vec<usize> {
    // SAFETY: the set is initialized, and the kernel writes at most its size.
    unsafe {
        let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init();
        assert_eq!(libc::sched_getaffinity(thread.try_into().unwrap(), size_of::<libc::cpu_set_t>(), &raw mut set), 0);
        (0..1024).filter(|&processor| libc::CPU_ISSET(processor, &set)).collect()
    }
}

/// With such a limit, `ppoll` refuses to wait for two descriptors.
fn a_low_limit_of_descriptors_costs_neither_time_nor_processor_time() {
    let server = ZooKeeper::shared();
    let (one, two) = (client_with(&server.address(), SESSION), client(&server.address()));
    let (busy, other) = (path("limited-busy"), path("limited-free"));
    let (held, wanted, free) = (two.mutex(&busy).unwrap(), one.mutex(&busy).unwrap(), one.mutex(&other).unwrap());
    held.acquire(None).unwrap();
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: getrlimit initializes the structure.
    let before = unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr()), 0);
        limit.assume_init()
    };
    let set = |current| {
        let limit = libc::rlimit { rlim_cur: current, ..before };
        // SAFETY: the structure is initialized.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    };
    set(1);
    for _ in 0..5 {
        free.acquire(Some(TEST_TIMEOUT)).unwrap();
        free.release().unwrap();
    }
    let (used, since) = (processor_time(), Instant::now());
    wanted.acquire(Some(500 * MS)).unwrap_err();
    let (used, took) = (processor_time() - used, since.elapsed());
    set(before.rlim_cur);
    assert!(used < took / 2, "{used:?} of {took:?}");
    held.release().unwrap();
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}
