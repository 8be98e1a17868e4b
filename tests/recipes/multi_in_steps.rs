//! Multi-locks that are acquired in several steps: success means that all parts are held, whatever happened to the first ones while a later one was
//! waited for.

use std::sync::mpsc;
use std::time::Duration;

use zklock::{Acquiring, Client, Lock, LockState, Owner, Status};
use zklock_rig::{Direction, Proxy, Raw, Verdict, ZooKeeper, wait_until};

use crate::common::{SOON, client, client_with, path, queue, raw, status, wait_for_queue};

const NOW: Duration = Duration::ZERO;
const SECOND: Duration = Duration::from_secs(1);
const TASK: Owner = Owner::Custom(7);
const RIVAL: Owner = Owner::Custom(8);

/// A multi-lock of two steps, through two clients. A third client, the rival, holds the second lock.
struct Scene {
    server: &'static ZooKeeper,
    clients: [Client; 2],
    locks: [Lock; 2],
    multi: Lock,
    rivals: [Lock; 2],
}

impl Scene {
    fn new(clients: [Client; 2], make: fn(&Client, &str) -> Lock) -> Self {
        let (server, paths) = (ZooKeeper::shared(), [path("first"), path("second")]);
        let rival = client(&server.address());
        let rivals = [make(&rival, &paths[0]), rival.mutex(&paths[1]).unwrap()];
        rivals[1].acquire(None).unwrap();
        let locks = [make(&clients[0], &paths[0]), clients[1].mutex(&paths[1]).unwrap()];
        let multi = Lock::multi_in_order(&locks.each_ref()).unwrap();
        Self { server, clients, locks, multi, rivals }
    }

    fn of_mutexes() -> Self {
        let address = ZooKeeper::shared().address();
        Self::new([client(&address), client(&address)], mutex)
    }

    /// Starts to acquire the multi-lock. Returns when it has the first lock, and the rival waits behind it there.
    fn start(&self, timeout: Option<Duration>) -> (Acquiring, Acquiring) {
        let acquiring = self.multi.start_acquire(TASK, timeout).unwrap();
        wait_until(SOON, || self.locks[0].is_held_by(TASK).unwrap());
        let rival = self.rivals[0].start_acquire(RIVAL, None).unwrap();
        wait_until(SOON, || self.rivals[0].waiting().unwrap().iter().any(|waiting| waiting.node_path.is_some()));
        (acquiring, rival)
    }

    /// Deletes the node by which the multi-lock has the first lock. Returns when the client knows.
    fn delete_first(&self) {
        let (node, losses) = (self.locks[0].node_paths_by(TASK).unwrap().remove(0), self.losses());
        assert_eq!(raw(self.server).delete(&node), 0);
        wait_until(SOON, || self.losses() > losses);
    }

    fn losses(&self) -> u64 {
        let metrics = self.clients[0].metrics().unwrap();
        metrics.losses_deleted + metrics.losses_session
    }

    /// The rival holds the first lock: the multi-lock waits for it, also when the second lock is free. Then it gets both.
    fn is_taken_again(&self, acquiring: &Acquiring, rival: &Acquiring) {
        rival.wait_for(SOON).unwrap().unwrap();
        self.rivals[1].release().unwrap();
        let mut raw = raw(self.server);
        wait_until(SOON, || acquiring.look_for(NOW).is_some() || self.first_queue(&mut raw).len() == 2);
        let end = acquiring.look_for(NOW);
        assert!(end.is_none(), "it ended with {end:?}, and another client holds the first lock");
        assert!(self.rivals[0].is_held_by(RIVAL).unwrap());
        self.rivals[0].release_as(RIVAL).unwrap();
        acquiring.wait_for(SOON).unwrap().unwrap();
        assert!(self.multi.is_held_by(TASK).unwrap() && self.locks.iter().all(|lock| lock.is_held_by(TASK).unwrap()));
        self.multi.release_as(TASK).unwrap();
        self.nothing_is_left();
    }

    fn first_queue(&self, raw: &mut Raw) -> Vec<String> {
        let path = self.locks[0].path();
        let leases = format!("{path}/leases");
        if raw.exists(&leases) { queue(raw, &leases) } else { queue(raw, path) }
    }

    fn nothing_is_left(&self) {
        let mut raw = raw(self.server);
        for lock in &self.locks {
            let path = lock.path();
            wait_until(SOON, || queue(&mut raw, path).iter().all(|name| name == "leases" || name == "locks"));
            wait_for_queue(&mut raw, &format!("{path}/leases"), 0);
        }
        assert!(self.clients.iter().all(|client| client.metrics().unwrap().waiting == 0));
    }
}

fn mutex(client: &Client, path: &str) -> Lock {
    client.mutex(path).unwrap()
}

fn semaphore_mutex(client: &Client, path: &str) -> Lock {
    client.semaphore_mutex(path).unwrap()
}

#[test]
fn a_part_whose_node_is_deleted_is_taken_again() {
    for make in [mutex, semaphore_mutex] {
        let address = ZooKeeper::shared().address();
        let scene = Scene::new([client(&address), client(&address)], make);
        let (acquiring, rival) = scene.start(Some(SOON * 3));
        scene.delete_first();
        scene.is_taken_again(&acquiring, &rival);
    }
}

#[test]
fn a_part_whose_session_ends_is_taken_again_at_once() {
    let address = ZooKeeper::shared().address();
    let (proxy, (say, hear)) = (Proxy::start(&address), mpsc::channel());
    // The answer to the handshake has the password of the session.
    proxy.hook(move |way, frame| {
        if way == Direction::ToClient && frame.len() == 37 && frame.get(16..20) == Some(&16_i32.to_be_bytes()) {
            say.send(frame[20..36].to_vec()).unwrap();
        }
        Verdict::Forward
    });
    let scene = Scene::new([client(&proxy.address()), client(&address)], mutex);
    let (acquiring, rival) = scene.start(Some(SOON * 3));
    Raw::close_session(&address, scene.clients[0].session_id().unwrap(), &hear.recv().unwrap());
    wait_until(SOON, || scene.losses() == 1);
    // The multi-lock does not wait for the second lock any more: it comes back to it when it has the first one.
    let mut raw = raw(scene.server);
    wait_for_queue(&mut raw, scene.locks[1].path(), 1);
    wait_for_queue(&mut raw, scene.locks[0].path(), 2);
    scene.is_taken_again(&acquiring, &rival);
}

#[test]
fn two_parts_of_one_client_are_checked_as_well() {
    let both = client(&ZooKeeper::shared().address());
    let scene = Scene::new([both.clone(), both], mutex);
    let (acquiring, rival) = scene.start(None);
    scene.delete_first();
    scene.is_taken_again(&acquiring, &rival);
}

/// Anybody may release a semaphore mutex.
#[test]
fn a_part_that_another_owner_releases_is_taken_again() {
    let address = ZooKeeper::shared().address();
    let scene = Scene::new([client(&address), client(&address)], semaphore_mutex);
    let (acquiring, rival) = scene.start(Some(SOON * 3));
    scene.locks[0].release_as(Owner::Custom(9)).unwrap();
    scene.is_taken_again(&acquiring, &rival);
}

#[test]
fn a_part_that_can_not_be_taken_again_in_time_is_a_time_out() {
    let scene = Scene::of_mutexes();
    let (acquiring, rival) = scene.start(Some(SECOND * 2));
    scene.delete_first();
    rival.wait_for(SOON).unwrap().unwrap();
    scene.rivals[1].release().unwrap();
    let error = acquiring.wait_for(SOON).unwrap().unwrap_err();
    assert_eq!(error.status(), Status::Timeout, "{error}");
    assert!(error.message().contains(scene.locks[0].path()), "{error}");
    scene.rivals[0].release_as(RIVAL).unwrap();
    scene.nothing_is_left();
}

/// The first lock is entered once more, and the outer entry is not given back: only its owner can do that.
#[test]
fn a_part_that_was_held_before_and_is_lost_is_an_error() {
    let scene = Scene::of_mutexes();
    scene.locks[0].start_acquire(TASK, None).unwrap().wait().unwrap();
    let (acquiring, rival) = scene.start(None);
    wait_for_queue(&mut raw(scene.server), scene.locks[1].path(), 2);
    scene.delete_first();
    let error = acquiring.wait_for(SOON).expect("it does not wait for the second lock").unwrap_err();
    assert_eq!(error.status(), Status::Lost, "{error}");
    assert!(error.message().contains(scene.locks[0].path()), "{error}");
    assert_eq!(scene.locks[0].state_by(TASK).unwrap(), LockState::Lost);
    assert_eq!(status(scene.locks[0].release_as(TASK)), Status::Lost);
    assert_eq!(scene.locks[0].state_by(TASK).unwrap(), LockState::Free, "the multi-lock has given back its entry");
    rival.wait_for(SOON).unwrap().unwrap();
    scene.rivals[0].release_as(RIVAL).unwrap();
    scene.rivals[1].release().unwrap();
    scene.nothing_is_left();
}

/// The lease of the first client is over, though its session lives: nothing that a quorum commits reaches the server.
#[test]
fn a_part_that_is_uncertain_is_waited_for() {
    const MULTI: i32 = 14;
    let address = ZooKeeper::shared().address();
    let proxy = Proxy::start(&address);
    let clients = [client_with(&proxy.address(), SECOND * 6), client(&address)];
    let [scene, limited] = [(); 2].map(|()| Scene::new(clients.clone(), mutex));
    let ((acquiring, _rival), (in_time, _other)) = (scene.start(None), limited.start(Some(SECOND * 9)));
    let node = scene.locks[0].node_paths_by(TASK).unwrap();
    proxy.hook(|way, frame: &mut Vec<u8>| {
        let transaction = way == Direction::ToServer && frame.get(4..8) == Some(&MULTI.to_be_bytes());
        if transaction { Verdict::Drop } else { Verdict::Forward }
    });
    wait_until(SOON, || scene.locks[0].state_by(TASK).unwrap() == LockState::Uncertain);
    scene.rivals[1].release().unwrap();
    limited.rivals[1].release().unwrap();
    wait_until(SOON, || scene.locks[1].is_held_by(TASK).unwrap());
    assert!(acquiring.look_for(NOW).is_none(), "it has succeeded with a part that is not safe");
    assert_eq!(status(in_time.wait_for(SOON).unwrap()), Status::Connection);
    assert!(acquiring.look_for(NOW).is_none());
    proxy.unhook();
    acquiring.wait_for(SOON).unwrap().unwrap();
    assert_eq!(scene.locks[0].node_paths_by(TASK).unwrap(), node, "the place is kept");
    assert!(scene.multi.is_held_by(TASK).unwrap());
    scene.multi.release_as(TASK).unwrap();
}
