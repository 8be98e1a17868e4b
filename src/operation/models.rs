//! What may happen to an operation at the same time: its answer comes, its deadline passes, it is cancelled or abandoned, somebody
//! waits for it or wants to hear of its end, its client is closed. Loom tries every order. In each all hear of the same end, once,
//! and a node stays only where somebody was told that the lock is his.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use loom::thread::{self, JoinHandle};

use super::*;
use crate::engine::{Engine, Patience, Recipe};
use crate::recipe::Mode;
use crate::runtime::models::{Server, close, connected, refuse};
use crate::session::ClientState;

#[test]
fn two_wait_and_hear_the_same() {
    check(&["OK"], 1, Patience::Forever, |world| {
        let server = world.serving(0);
        let other = world.thread(|world| world.wait());
        let end = world.wait();
        assert_eq!(other.join().unwrap().map_err(|error| error.status()), end.clone().map_err(|error| error.status()));
        server.join().unwrap();
        end
    });
}

#[test]
fn it_goes_on_while_nobody_waits() {
    check(&["OK"], 2, Patience::Forever, |world| {
        let servers = [world.serving(0), world.serving(1)];
        servers.into_iter().for_each(|server| server.join().unwrap());
        // The second step may have begun when its server had looked already.
        world.serve(1);
        world.operation.wait_for(Duration::ZERO, true).unwrap()
    });
}

#[test]
fn an_answer_and_the_deadline_at_once() {
    check(&["OK", LATE], 1, Patience::Until(now()), |world| {
        let server = world.serving(0);
        let end = world.wait();
        server.join().unwrap();
        end
    });
}

#[test]
fn a_deadline_passes_between_two_steps() {
    check(&["OK", LATE], 2, Patience::Until(now()), |world| {
        let servers = [world.serving(0), world.serving(1)];
        let end = world.wait();
        servers.into_iter().for_each(|server| server.join().unwrap());
        end
    });
}

#[test]
fn the_second_step_fails_and_the_first_is_given_back() {
    check(&[Status::Denied.name()], 2, Patience::Forever, |world| {
        let first = world.serving(0);
        let end = world.thread(|world| world.wait());
        first.join().unwrap();
        refuse(&world.shells[1]);
        end.join().unwrap()
    });
}

#[test]
fn it_is_cancelled_while_it_goes_on() {
    check(&[Status::Canceled.name()], 2, Patience::Forever, |world| {
        let canceler = world.thread(|world| world.operation.cancel().unwrap());
        world.serve(0);
        canceler.join().unwrap();
        world.wait()
    });
}

#[test]
fn all_that_wait_are_cancelled_while_it_goes_on() {
    check(&[Status::Canceled.name()], 2, Patience::Forever, |world| {
        let canceler = world.thread(|world| {
            world.notices.cancel();
            for (shell, step) in world.shells.iter().zip(&*world.operation.entrances) {
                shell.tell(|engine, now| engine.cancel(now, step.id)).unwrap();
            }
        });
        world.serve(0);
        canceler.join().unwrap();
        world.wait()
    });
}

#[test]
fn its_lock_is_closed_while_it_goes_on() {
    check(&[Status::Closed.name()], 2, Patience::Forever, |world| {
        let closer = world.thread(|world| {
            world.notices.close();
            world.operation.entrances.iter().for_each(Entrance::close);
        });
        world.serve(0);
        closer.join().unwrap();
        world.wait()
    });
}

#[test]
fn its_client_is_closed_while_it_is_answered() {
    check(&[Status::Closed.name(), "OK"], 1, Patience::Forever, |world| {
        let closer = world.thread(|world| close(&world.shells[0]));
        world.serve(0);
        closer.join().unwrap();
        world.wait()
    });
}

#[test]
fn who_abandons_it_leaves_nothing_and_wakes_who_waits() {
    check(&[Status::Closed.name()], 1, Patience::Forever, |world| {
        let server = world.serving(0);
        let looker = world.thread(|world| world.operation.wait_for(Duration::MAX, false).unwrap());
        world.operation.abandon();
        server.join().unwrap();
        let seen = looker.join().unwrap();
        assert!(seen.is_ok() || seen.unwrap_err().status() == Status::Closed);
        world.wait()
    });
}

#[test]
fn it_is_abandoned_between_two_steps() {
    check(&[Status::Closed.name()], 2, Patience::Forever, |world| {
        let abandoner = world.thread(|world| world.operation.abandon());
        world.serve(0);
        world.serve(1);
        abandoner.join().unwrap();
        world.wait()
    });
}

/// The part is taken again, unless the release comes after the success. The other part stays in either case.
#[test]
fn a_part_is_released_while_the_next_step_is_answered() {
    loom::model(|| {
        let world = Arc::new(World::new(2, Patience::Forever));
        world.serve(0);
        let releaser = world.thread(|world| {
            let (id, owner) = (world.operation.entrances[0].id, world.operation.owner());
            let release = |engine: &mut Engine, now| {
                engine.release(now, id, owner, false);
            };
            world.shells[0].tell(release).unwrap();
        });
        world.serve(1);
        releaser.join().unwrap();
        for at in [0, 1, 0, 1] {
            world.serve(at);
        }
        world.operation.wait_for(Duration::ZERO, true).unwrap().unwrap();
        let is_safe = world.operation.entrances[0].is_safe(world.operation.owner());
        assert_eq!(world.servers[0].lock().unwrap().is_empty(), !is_safe);
        assert!(!world.servers[1].lock().unwrap().is_empty());
    });
}

#[test]
fn who_was_told_that_it_is_his_keeps_it_when_it_is_abandoned() {
    check(&["OK", Status::Closed.name()], 1, Patience::Forever, |world| {
        let server = world.serving(0);
        let keeper = world.thread(|world| world.wait());
        server.join().unwrap();
        world.operation.abandon();
        keeper.join().unwrap()
    });
}

#[test]
fn a_hook_that_is_set_while_it_ends_is_run() {
    check(&["OK"], 1, Patience::Forever, |world| {
        let server = world.serving(0);
        let hook = world.hook();
        server.join().unwrap();
        assert_eq!(hook.load(Ordering::SeqCst), 1);
        world.wait()
    });
}

#[test]
fn hooks_are_run_once_whoever_ends_it() {
    check(&["OK", Status::Closed.name()], 1, Patience::Forever, |world| {
        let hook = world.hook();
        let server = world.serving(0);
        let keeper = world.thread(|world| world.operation.wait_for(Duration::ZERO, true));
        world.operation.abandon();
        server.join().unwrap();
        assert_eq!(hook.load(Ordering::SeqCst), 1);
        match keeper.join().unwrap() {
            Some(end) => end,
            None => world.wait(),
        }
    });
}

/// TIMEOUT or CONNECTION, depending on how long the server has been silent.
const LATE: &str = "late";

/// An operation of so many steps, each of a client of its own, and their servers.
struct World {
    shells: Vec<Arc<Shell>>,
    servers: Vec<Mutex<Server>>,
    notices: Arc<Notices>,
    operation: Arc<Operation>,
}

/// Tries all orders: the ends are among these, each is seen, and a node stays where the end is a success.
fn check(
    expected: &[&str],
    steps: usize,
    patience: Patience,
    scene: impl Fn(&Arc<World>) -> Result<()> + Send + Sync + 'static,
) {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let ends = Arc::clone(&seen);
    loom::model(move || {
        let world = Arc::new(World::new(steps, patience));
        let end = scene(&world);
        for (at, server) in world.servers.iter().enumerate() {
            world.serve(at);
            let is_closed = world.shells[at].ask(|engine, _| engine.state()).unwrap() == ClientState::Closed;
            assert!(is_closed || server.lock().unwrap().is_empty() != end.is_ok(), "{end:?}");
        }
        ends.lock().unwrap().insert(match end.map_err(|error| error.status()) {
            Ok(()) => "OK",
            Err(Status::Timeout | Status::Connection) => LATE,
            Err(status) => status.name(),
        });
    });
    let expected: BTreeSet<&str> = expected.iter().copied().collect();
    assert_eq!(*seen.lock().unwrap(), expected);
}

impl World {
    fn new(steps: usize, patience: Patience) -> Self {
        let shells: Vec<_> = (0..steps).map(|_| connected()).collect();
        let entrance = |shell: &Arc<Shell>| {
            let mut id = 0;
            shell.tell(|engine, _| id = engine.add_lock("/lock", Recipe::Queue(Mode::Mutex))).unwrap();
            Entrance { shell: Arc::clone(shell), id, locks: Box::new([id]), path: "/lock".into() }
        };
        let entrances: Arc<[Entrance]> = shells.iter().map(entrance).collect();
        let notices = Arc::new(Notices::default());
        let deadline = if let Patience::Until(deadline) = patience { Some(deadline) } else { None };
        let timeout = Timeout { start: now(), patience, deadline };
        let owner = Owner::current_thread();
        let operation = Operation::start(&entrances, Goal::Entry(owner), timeout, &notices, Span::none()).unwrap();
        let servers = (0..steps).map(|_| Mutex::default()).collect();
        Self { shells, servers, notices, operation }
    }

    fn wait(&self) -> Result<()> {
        self.operation.wait_for(Duration::MAX, true).unwrap()
    }

    /// One server answers what it was asked.
    fn serve(&self, at: usize) {
        let mut server = std::mem::take(&mut *self.servers[at].lock().unwrap());
        server.serve(&self.shells[at]);
        *self.servers[at].lock().unwrap() = server;
    }

    fn serving(self: &Arc<Self>, at: usize) -> JoinHandle<()> {
        self.thread(move |world| world.serve(at))
    }

    fn thread<T: 'static>(self: &Arc<Self>, work: impl FnOnce(&Self) -> T + 'static) -> JoinHandle<T> {
        let world = Arc::clone(self);
        thread::spawn(move || work(&world))
    }

    /// Counts how often it is run.
    fn hook(&self) -> Arc<AtomicUsize> {
        let count = Arc::new(AtomicUsize::new(0));
        let hook = Arc::clone(&count);
        self.operation
            .on_done(Box::new(move || {
                hook.fetch_add(1, Ordering::SeqCst);
            }))
            .unwrap();
        count
    }
}
