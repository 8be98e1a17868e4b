//! Loom models of an acquire. Each model lets some of these events happen at the same time:
//! - The answer arrives.
//! - The deadline passes.
//! - A thread cancels or abandons the operation.
//! - A thread waits for the operation or registers a hook.
//! - The client is closed.
//!
//! Loom tries every order of the events. The result of the operation may depend on the order, but all threads must
//! observe the same result. Each thread must observe the result exactly once. A node may remain only if a success was
//! reported to a thread.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use loom::thread::{self, JoinHandle};
use zklock_core::engine::{AcquireLimit, Engine, Recipe};
use zklock_core::recipe::Mode;
use zklock_core::session::ClientState;

use super::*;
use crate::runtime::models::{Server, close, connected, refuse};

#[test]
fn two_waiters_get_the_same_result() {
    check(&["OK"], 1, AcquireLimit::Unlimited, |scenario| {
        let server = scenario.spawn_server(0);
        let other = scenario.spawn(|scenario| scenario.wait());
        let end = scenario.wait();
        assert_eq!(other.join().unwrap().map_err(|error| error.status()), end.clone().map_err(|error| error.status()));
        server.join().unwrap();
        end
    });
}

#[test]
fn acquire_proceeds_without_waiter() {
    check(&["OK"], 2, AcquireLimit::Unlimited, |scenario| {
        let servers = [scenario.spawn_server(0), scenario.spawn_server(1)];
        servers.into_iter().for_each(|server| server.join().unwrap());
        // The thread of server 1 may have ended before the second step sent its request, so the test runs server 1 a
        // second time.
        scenario.serve(1);
        scenario.acquire.wait_for(Duration::ZERO).unwrap()
    });
}

#[test]
fn an_answer_and_the_deadline_at_once() {
    check(&["OK", TIMED_OUT], 1, AcquireLimit::Until(now()), |scenario| {
        let server = scenario.spawn_server(0);
        let end = scenario.wait();
        server.join().unwrap();
        end
    });
}

#[test]
fn a_deadline_passes_between_two_steps() {
    check(&["OK", TIMED_OUT], 2, AcquireLimit::Until(now()), |scenario| {
        let servers = [scenario.spawn_server(0), scenario.spawn_server(1)];
        let end = scenario.wait();
        servers.into_iter().for_each(|server| server.join().unwrap());
        end
    });
}

#[test]
fn failed_second_step_releases_first() {
    check(&[Status::Denied.name()], 2, AcquireLimit::Unlimited, |scenario| {
        let first = scenario.spawn_server(0);
        let end = scenario.spawn(|scenario| scenario.wait());
        first.join().unwrap();
        refuse(&scenario.shells[1]);
        end.join().unwrap()
    });
}

#[test]
fn cancel_races_with_next_step() {
    check(&[Status::Canceled.name()], 2, AcquireLimit::Unlimited, |scenario| {
        let canceler = scenario.spawn(|scenario| scenario.acquire.cancel().unwrap());
        scenario.serve(0);
        canceler.join().unwrap();
        scenario.wait()
    });
}

#[test]
fn cancel_of_all_waits_races_with_next_step() {
    check(&[Status::Canceled.name()], 2, AcquireLimit::Unlimited, |scenario| {
        let canceler = scenario.spawn(|scenario| {
            scenario.notices.cancel();
            for (shell, step) in scenario.shells.iter().zip(&*scenario.acquire.targets) {
                shell.update_engine(|engine, now| engine.cancel_waits(now, step.id)).unwrap();
            }
        });
        scenario.serve(0);
        canceler.join().unwrap();
        scenario.wait()
    });
}

#[test]
fn close_of_lock_races_with_next_step() {
    check(&[Status::Closed.name()], 2, AcquireLimit::Unlimited, |scenario| {
        let closer = scenario.spawn(|scenario| {
            scenario.notices.close();
            scenario.acquire.targets.iter().for_each(LockTarget::close_waits);
        });
        scenario.serve(0);
        closer.join().unwrap();
        scenario.wait()
    });
}

#[test]
fn close_of_client_races_with_answer() {
    check(&[Status::Closed.name(), "OK"], 1, AcquireLimit::Unlimited, |scenario| {
        let closer = scenario.spawn(|scenario| close(&scenario.shells[0]));
        scenario.serve(0);
        closer.join().unwrap();
        scenario.wait()
    });
}

#[test]
fn abandon_releases() {
    check(&[Status::Closed.name()], 1, AcquireLimit::Unlimited, |scenario| {
        let server = scenario.spawn_server(0);
        let looker = scenario.spawn(|scenario| scenario.acquire.is_over());
        scenario.acquire.abandon();
        let owner = scenario.acquire.owner().unwrap();
        assert!(!scenario.acquire.targets[0].is_safe(owner), "the hold is visible after the call");
        server.join().unwrap();
        looker.join().unwrap();
        scenario.wait()
    });
}

#[test]
fn abandon_wakes_waiter() {
    check(&[Status::Closed.name()], 1, AcquireLimit::Unlimited, |scenario| {
        let waiter = scenario.spawn(|scenario| scenario.wait());
        scenario.acquire.abandon();
        waiter.join().unwrap()
    });
}

#[test]
fn abandon_races_with_next_step() {
    check(&[Status::Closed.name()], 2, AcquireLimit::Unlimited, |scenario| {
        let abandoner = scenario.spawn(|scenario| scenario.acquire.abandon());
        scenario.serve(0);
        scenario.serve(1);
        abandoner.join().unwrap();
        scenario.wait()
    });
}

/// If a member lock is released before the operation has succeeded, the operation acquires this member lock again. If a
/// member lock is released after the operation has succeeded, it remains released. The release never affects the other
/// member lock, which remains held.
#[test]
fn release_of_member_races_with_answer_of_next_step() {
    loom::model(|| {
        let scenario = Arc::new(Scenario::new(2, AcquireLimit::Unlimited));
        scenario.serve(0);
        let releaser = scenario.spawn(|scenario| {
            let (id, owner) = (scenario.acquire.targets[0].id, scenario.acquire.owner().unwrap());
            let release = |engine: &mut Engine, now| {
                engine.release(now, id, owner, false);
            };
            scenario.shells[0].update_engine(release).unwrap();
        });
        scenario.serve(1);
        releaser.join().unwrap();
        for at in [0, 1, 0, 1] {
            scenario.serve(at);
        }
        scenario.acquire.wait_for(Duration::ZERO).unwrap().unwrap();
        let is_safe = scenario.acquire.targets[0].is_safe(scenario.acquire.owner().unwrap());
        assert_eq!(scenario.servers[0].lock().unwrap().is_empty(), !is_safe);
        assert!(!scenario.servers[1].lock().unwrap().is_empty());
    });
}

#[test]
fn abandon_keeps_success_that_was_reported() {
    check(&["OK", Status::Closed.name()], 1, AcquireLimit::Unlimited, |scenario| {
        let server = scenario.spawn_server(0);
        let keeper = scenario.spawn(|scenario| scenario.wait());
        server.join().unwrap();
        scenario.acquire.abandon();
        keeper.join().unwrap()
    });
}

#[test]
fn hook_set_during_end_runs() {
    check(&["OK"], 1, AcquireLimit::Unlimited, |scenario| {
        let server = scenario.spawn_server(0);
        let hook = scenario.hook();
        server.join().unwrap();
        assert_eq!(hook.load(Ordering::SeqCst), 1);
        scenario.wait()
    });
}

#[test]
fn hooks_run_once() {
    check(&["OK", Status::Closed.name()], 1, AcquireLimit::Unlimited, |scenario| {
        let hook = scenario.hook();
        let server = scenario.spawn_server(0);
        let keeper = scenario.spawn(|scenario| scenario.acquire.wait_for(Duration::ZERO));
        scenario.acquire.abandon();
        server.join().unwrap();
        assert_eq!(hook.load(Ordering::SeqCst), 1);
        match keeper.join().unwrap() {
            Some(end) => end,
            None => scenario.wait(),
        }
    });
}

/// In the models, this name means that the operation ended with TIMEOUT or CONNECTION. The status depends on the time
/// since the server's last answer.
const TIMED_OUT: &str = "late";

/// An operation with several steps. Each step uses a different client, which has its own server.
struct Scenario {
    shells: Vec<Arc<Shell>>,
    servers: Vec<Mutex<Server>>,
    notices: Arc<Cancellation>,
    acquire: Arc<Acquire>,
}

/// Runs `scene` once for each possible order of its events. The operation must end only in the expected ways, and each
/// expected end must occur in at least one order. A node must remain if and only if the operation succeeds.
fn check(
    expected: &[&str],
    steps: usize,
    acquire_limit: AcquireLimit,
    scene: impl Fn(&Arc<Scenario>) -> Result<()> + Send + Sync + 'static,
) {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let ends = Arc::clone(&seen);
    loom::model(move || {
        let scenario = Arc::new(Scenario::new(steps, acquire_limit));
        let end = scene(&scenario);
        for (at, server) in scenario.servers.iter().enumerate() {
            scenario.serve(at);
            let is_closed = scenario.shells[at].read_engine(|engine, _| engine.state()).unwrap() == ClientState::Closed;
            assert!(is_closed || server.lock().unwrap().is_empty() != end.is_ok(), "{end:?}");
        }
        ends.lock().unwrap().insert(match end.map_err(|error| error.status()) {
            Ok(()) => "OK",
            Err(Status::Timeout | Status::Connection) => TIMED_OUT,
            Err(status) => status.name(),
        });
    });
    let expected: BTreeSet<&str> = expected.iter().copied().collect();
    assert_eq!(*seen.lock().unwrap(), expected);
}

impl Scenario {
    fn new(steps: usize, acquire_limit: AcquireLimit) -> Self {
        let shells: Vec<_> = (0..steps).map(|_| connected()).collect();
        let target = |shell: &Arc<Shell>| {
            let mut id = 0;
            shell.update_engine(|engine, _| id = engine.add_lock("/lock", Recipe::Queue(Mode::Mutex))).unwrap();
            LockTarget { shell: Arc::clone(shell), id, members: Box::new([id]), path: "/lock".into() }
        };
        let targets: Arc<[LockTarget]> = shells.iter().map(target).collect();
        let notices = Arc::new(Cancellation::default());
        let deadline = if let AcquireLimit::Until(deadline) = acquire_limit { Some(deadline) } else { None };
        let timeout = Timeout { start: now(), acquire_limit, deadline };
        let owner = Owner::current_thread();
        let acquire = Acquire::start(&targets, Goal::Lock(owner), timeout, &notices, Span::none()).unwrap();
        let servers = (0..steps).map(|_| Mutex::default()).collect();
        Self { shells, servers, notices, acquire }
    }

    fn wait(&self) -> Result<()> {
        self.acquire.wait_for(Duration::MAX).unwrap()
    }

    /// Lets one server answer the requests that it has received.
    fn serve(&self, at: usize) {
        let mut server = std::mem::take(&mut *self.servers[at].lock().unwrap());
        server.serve(&self.shells[at]);
        *self.servers[at].lock().unwrap() = server;
    }

    fn spawn_server(self: &Arc<Self>, at: usize) -> JoinHandle<()> {
        self.spawn(move |scenario| scenario.serve(at))
    }

    fn spawn<T: 'static>(self: &Arc<Self>, work: impl FnOnce(&Self) -> T + 'static) -> JoinHandle<T> {
        let scenario = Arc::clone(self);
        thread::spawn(move || work(&scenario))
    }

    /// Registers a hook. The returned counter counts the calls of the hook.
    fn hook(&self) -> Arc<AtomicUsize> {
        let count = Arc::new(AtomicUsize::new(0));
        let hook = Arc::clone(&count);
        self.acquire
            .on_done(Box::new(move || {
                hook.fetch_add(1, Ordering::SeqCst);
            }))
            .unwrap();
        count
    }
}
