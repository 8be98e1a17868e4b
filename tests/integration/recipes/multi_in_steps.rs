//! Multi-locks that are acquired in several steps. Success means that all member locks are held, whatever happened to
//! the first ones while the acquire waited for a later one.

use std::sync::mpsc;
use std::time::Duration;

use zklock::{Client, Hold, Lock, LockState, Operation, Owner, Status};
use zklock_test_support::{Direction, Proxy, RawClient, Verdict, ZooKeeper, wait_until};

use crate::common::{OwnerCalls as _, TEST_TIMEOUT, client, client_with, path, queue, raw, status, wait_for_queue};

const SECOND: Duration = Duration::from_secs(1);
const TASK: Owner = Owner::task(7);
const RIVAL: Owner = Owner::task(8);

/// A multi-lock of two steps, through two clients. A third client, the rival, holds the second lock.
struct TwoStepLock {
    server: &'static ZooKeeper,
    clients: [Client; 2],
    locks: [Lock; 2],
    multi: Lock,
    rivals: [Lock; 2],
}

impl TwoStepLock {
    fn new(clients: [Client; 2], make: fn(&Client, &str) -> Lock) -> Self {
        let (server, paths) = (ZooKeeper::shared(), [path("first"), path("second")]);
        let rival = client(&server.address());
        let rivals = [make(&rival, &paths[0]), rival.mutex(&paths[1]).unwrap()];
        rivals[1].acquire(None).unwrap();
        let locks = [make(&clients[0], &paths[0]), clients[1].mutex(&paths[1]).unwrap()];
        let multi = Lock::multi_in_order(&locks.each_ref()).unwrap();
        Self { server, clients, locks, multi, rivals }
    }

    fn with_mutexes() -> Self {
        let address = ZooKeeper::shared().address();
        Self::new([client(&address), client(&address)], mutex)
    }

    /// Starts to acquire the multi-lock. Returns when it holds the first lock and the rival waits behind it.
    fn acquire_first_step(&self, timeout: Option<Duration>) -> (Operation<Hold>, Operation<Hold>) {
        let acquiring = self.multi.start_acquire(TASK, timeout).unwrap();
        wait_until(TEST_TIMEOUT, || self.locks[0].is_held_as(TASK).unwrap());
        let rival = self.rivals[0].start_acquire(RIVAL, None).unwrap();
        wait_until(TEST_TIMEOUT, || {
            self.rivals[0].waiting().unwrap().iter().any(|waiting| waiting.node_path.is_some())
        });
        (acquiring, rival)
    }

    /// Deletes the node of the first lock. Returns when the client has noticed the loss.
    fn delete_first_node(&self) {
        let (node, losses) = (self.locks[0].node_paths_of(TASK).unwrap().remove(0), self.losses());
        assert_eq!(raw(self.server).delete(&node), 0);
        wait_until(TEST_TIMEOUT, || self.losses() > losses);
    }

    fn losses(&self) -> u64 {
        let metrics = self.clients[0].metrics().unwrap();
        metrics.losses_deleted + metrics.losses_session
    }

    /// The rival holds the first lock. The multi-lock waits for it, even though the second lock is free. Then it gets
    /// both.
    fn assert_reacquired(&self, acquiring: &Operation<Hold>, rival: &Operation<Hold>) {
        rival.wait_for(TEST_TIMEOUT).unwrap().unwrap().leave_to_owner();
        self.rivals[1].release().unwrap();
        let mut raw = raw(self.server);
        wait_until(TEST_TIMEOUT, || acquiring.is_over() || self.first_queue(&mut raw).len() == 2);
        assert!(!acquiring.is_over(), "the acquire has ended, but another client holds the first lock");
        assert!(self.rivals[0].is_held_as(RIVAL).unwrap());
        self.rivals[0].release_as(RIVAL).unwrap();
        acquiring.wait_for(TEST_TIMEOUT).unwrap().unwrap().leave_to_owner();
        assert!(self.multi.is_held_as(TASK).unwrap() && self.locks.iter().all(|lock| lock.is_held_as(TASK).unwrap()));
        self.multi.release_as(TASK).unwrap();
        self.assert_no_nodes_left();
    }

    fn first_queue(&self, raw: &mut RawClient) -> Vec<String> {
        let path = self.locks[0].path();
        let leases = format!("{path}/leases");
        if raw.exists(&leases) { queue(raw, &leases) } else { queue(raw, path) }
    }

    fn assert_no_nodes_left(&self) {
        let mut raw = raw(self.server);
        for lock in &self.locks {
            let path = lock.path();
            wait_until(TEST_TIMEOUT, || queue(&mut raw, path).iter().all(|name| name == "leases" || name == "locks"));
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
fn member_deleted_during_a_later_step_is_reacquired() {
    for make in [mutex, semaphore_mutex] {
        let address = ZooKeeper::shared().address();
        let scene = TwoStepLock::new([client(&address), client(&address)], make);
        let (acquiring, rival) = scene.acquire_first_step(Some(TEST_TIMEOUT * 3));
        scene.delete_first_node();
        scene.assert_reacquired(&acquiring, &rival);
    }
}

#[test]
fn member_lost_by_session_expiry_is_reacquired_at_once() {
    let address = ZooKeeper::shared().address();
    let (proxy, (say, hear)) = (Proxy::start(&address), mpsc::channel());
    // The connect response contains the password of the session.
    proxy.hook(move |way, frame| {
        if way == Direction::ToClient && frame.len() == 37 && frame.get(16..20) == Some(&16_i32.to_be_bytes()) {
            say.send(frame[20..36].to_vec()).unwrap();
        }
        Verdict::Forward
    });
    let scene = TwoStepLock::new([client(&proxy.address()), client(&address)], mutex);
    let (acquiring, rival) = scene.acquire_first_step(Some(TEST_TIMEOUT * 3));
    RawClient::close_session(&address, scene.clients[0].session_id().unwrap(), &hear.recv().unwrap());
    wait_until(TEST_TIMEOUT, || scene.losses() == 1);
    // The multi-lock stops waiting for the second lock. It requests the second lock again after it has the first one.
    let mut raw = raw(scene.server);
    wait_for_queue(&mut raw, scene.locks[1].path(), 1);
    wait_for_queue(&mut raw, scene.locks[0].path(), 2);
    scene.assert_reacquired(&acquiring, &rival);
}

#[test]
fn members_of_one_client_are_rechecked() {
    let both = client(&ZooKeeper::shared().address());
    let scene = TwoStepLock::new([both.clone(), both], mutex);
    let (acquiring, rival) = scene.acquire_first_step(None);
    scene.delete_first_node();
    scene.assert_reacquired(&acquiring, &rival);
}

/// Any owner may release a semaphore mutex.
#[test]
fn member_released_by_another_owner_is_reacquired() {
    let address = ZooKeeper::shared().address();
    let scene = TwoStepLock::new([client(&address), client(&address)], semaphore_mutex);
    let (acquiring, rival) = scene.acquire_first_step(Some(TEST_TIMEOUT * 3));
    scene.locks[0].release_as(Owner::task(9)).unwrap();
    scene.assert_reacquired(&acquiring, &rival);
}

#[test]
fn member_not_reacquired_in_time_returns_timeout() {
    let scene = TwoStepLock::with_mutexes();
    let (acquiring, rival) = scene.acquire_first_step(Some(SECOND * 2));
    scene.delete_first_node();
    rival.wait_for(TEST_TIMEOUT).unwrap().unwrap().leave_to_owner();
    scene.rivals[1].release().unwrap();
    let error = acquiring.wait_for(TEST_TIMEOUT).unwrap().unwrap_err();
    assert_eq!(error.status(), Status::Timeout, "{error}");
    assert!(error.message().contains(scene.locks[0].path()), "{error}");
    scene.rivals[0].release_as(RIVAL).unwrap();
    scene.assert_no_nodes_left();
}

/// The acquire re-enters the first lock. It does not release the outer hold, because only the owner can do that.
#[test]
fn loss_of_a_reentered_member_returns_lost() {
    let scene = TwoStepLock::with_mutexes();
    scene.locks[0].acquire_as(TASK, None).unwrap();
    let (acquiring, rival) = scene.acquire_first_step(None);
    wait_for_queue(&mut raw(scene.server), scene.locks[1].path(), 2);
    scene.delete_first_node();
    let error = acquiring.wait_for(TEST_TIMEOUT).expect("it does not wait for the second lock").unwrap_err();
    assert_eq!(error.status(), Status::Lost, "{error}");
    assert!(error.message().contains(scene.locks[0].path()), "{error}");
    assert_eq!(scene.locks[0].state_as(TASK).unwrap(), LockState::Lost);
    assert_eq!(status(scene.locks[0].release_as(TASK)), Status::Lost);
    assert_eq!(scene.locks[0].state_as(TASK).unwrap(), LockState::Free, "the multi-lock has released its hold");
    rival.wait_for(TEST_TIMEOUT).unwrap().unwrap().leave_to_owner();
    scene.rivals[0].release_as(RIVAL).unwrap();
    scene.rivals[1].release().unwrap();
    scene.assert_no_nodes_left();
}

/// The session lease of the first client ends, although its session lives: its transactions do not reach the server.
#[test]
fn uncertain_member_delays_success() {
    const MULTI: i32 = 14;
    let address = ZooKeeper::shared().address();
    let proxy = Proxy::start(&address);
    let clients = [client_with(&proxy.address(), SECOND * 6), client(&address)];
    let [scene, limited] = [(); 2].map(|()| TwoStepLock::new(clients.clone(), mutex));
    let ((acquiring, _rival), (in_time, _other)) =
        (scene.acquire_first_step(None), limited.acquire_first_step(Some(SECOND * 9)));
    let node = scene.locks[0].node_paths_of(TASK).unwrap();
    proxy.hook(|way, frame: &mut Vec<u8>| {
        let transaction = way == Direction::ToServer && frame.get(4..8) == Some(&MULTI.to_be_bytes());
        if transaction { Verdict::Drop } else { Verdict::Forward }
    });
    wait_until(TEST_TIMEOUT, || scene.locks[0].state_as(TASK).unwrap() == LockState::Uncertain);
    scene.rivals[1].release().unwrap();
    limited.rivals[1].release().unwrap();
    wait_until(TEST_TIMEOUT, || scene.locks[1].is_held_as(TASK).unwrap());
    assert!(!acquiring.is_over(), "the acquire has succeeded with a part that is not safe");
    assert_eq!(status(in_time.wait_for(TEST_TIMEOUT).unwrap()), Status::Connection);
    assert!(!acquiring.is_over());
    proxy.unhook();
    acquiring.wait_for(TEST_TIMEOUT).unwrap().unwrap().leave_to_owner();
    assert_eq!(scene.locks[0].node_paths_of(TASK).unwrap(), node, "the place is kept");
    assert!(scene.multi.is_held_as(TASK).unwrap());
    scene.multi.release_as(TASK).unwrap();
}
