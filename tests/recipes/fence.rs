//! `fence_check`: whether a token is still a holder's, on a path of any recipe.

use std::thread;
use std::time::Duration;

use zklock::{Client, Config, Lock, Status};
use zklock_rig::{ZooKeeper, flags, wait_until};

use crate::common::{SOON, client, path, raw, status, wait_for_queue, wait_for_waiters};

const NOW: Option<Duration> = Some(Duration::ZERO);

/// Which of those who stand in the queue hold, by their tokens.
fn holders(asker: &Client, path: &str, lock: &Lock) -> Vec<bool> {
    let tokens = lock.queue().unwrap().into_iter().map(|participant| participant.czxid);
    tokens.map(|token| asker.fence_check(path, token).unwrap()).collect()
}

#[test]
fn a_token_is_the_holders_until_it_is_released() {
    let server = ZooKeeper::shared();
    let (path, client, asker) = (path("token"), client(&server.address()), client(&server.address()));
    assert!(!asker.fence_check(&path, 1).unwrap(), "no such path");
    for kind in [Client::mutex, Client::semaphore_mutex, |client: &Client, path: &str| Ok(client.rwlock(path)?.read)] {
        let lock = kind(&client, &path).unwrap();
        let mut last = 1;
        for _ in 0..2 {
            lock.acquire(NOW).unwrap();
            let token = lock.fencing_token().unwrap();
            assert!(asker.fence_check(&path, token).unwrap());
            assert!(client.fence_check(&path, token).unwrap(), "of one's own");
            assert!(!asker.fence_check(&path, last).unwrap());
            assert!(!asker.fence_check(&path, token + 1).unwrap());
            lock.release().unwrap();
            assert!(!asker.fence_check(&path, token).unwrap());
            last = token;
        }
    }
}

#[test]
fn who_waits_has_a_token_that_is_no_holders() {
    let server = ZooKeeper::shared();
    let (path, one, two) = (path("waiters"), client(&server.address()), client(&server.address()));
    let (held, wanted) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| wanted.acquire(Some(SOON)).map(|()| wanted.fencing_token().unwrap()));
        wait_for_waiters(&held, 2);
        let before: Vec<i64> = held.participants().unwrap().iter().map(|participant| participant.czxid).collect();
        assert_eq!(holders(&one, &path, &held), [true, false]);
        held.release().unwrap();
        assert_eq!(waiter.join().unwrap().unwrap(), before[1]);
        assert!(one.fence_check(&path, before[1]).unwrap());
        assert!(!one.fence_check(&path, before[0]).unwrap());
    });
}

#[test]
fn readers_hold_together_and_a_writer_alone() {
    let server = ZooKeeper::shared();
    let (path, client) = (path("readers"), client(&server.address()));
    let lock = client.rwlock(&path).unwrap();
    let mut raw = raw(server);
    lock.read.acquire(None).unwrap();
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            lock.read.acquire(Some(SOON)).unwrap();
            wait_until(SOON, || lock.read.queue().unwrap().len() == 4);
            assert_eq!(holders(&client, &path, &lock.read), [true, true, false, false]);
            lock.read.release().unwrap();
        });
        wait_for_queue(&mut raw, &path, 2);
        let writer = scope.spawn(|| {
            lock.write.acquire(Some(SOON)).unwrap();
            wait_for_waiters(&lock.read, 1);
            // It reads as well, in the writer's place: both tokens are good.
            lock.read.acquire(None).unwrap();
            assert_eq!(holders(&client, &path, &lock.read), [true, true, false]);
            lock.write.release().unwrap();
            lock.read.release().unwrap();
        });
        wait_for_queue(&mut raw, &path, 3);
        let last = scope.spawn(|| {
            lock.read.acquire(Some(SOON)).unwrap();
            lock.read.release().unwrap();
        });
        reader.join().unwrap();
        lock.read.release().unwrap();
        writer.join().unwrap();
        last.join().unwrap();
    });
}

#[test]
fn leases_are_held_and_those_that_are_waited_for_are_not() {
    let server = ZooKeeper::shared();
    let (path, one, two) = (path("leases"), client(&server.address()), client(&server.address()));
    let (has, wants) = (one.semaphore(&path, 3).unwrap(), two.semaphore(&path, 3).unwrap());
    let held = has.acquire(2, NOW).unwrap();
    let another = wants.acquire(1, NOW).unwrap();
    let (first, second) = (held.fencing_token().unwrap(), another.fencing_token().unwrap());
    // Two more have to wait; their nodes are there.
    let waiting = wants.start_acquire(2, None).unwrap();
    wait_until(SOON, || has.participants().unwrap().len() == 5);
    let third = has.participants().unwrap()[4].czxid;
    let holds = || [first, second, third].map(|token| one.fence_check(&path, token).unwrap());
    assert_eq!(holds(), [true, true, false]);
    held.release().unwrap();
    let got = waiting.wait().unwrap();
    assert_eq!(got.fencing_token().unwrap(), third);
    assert_eq!(holds(), [false, true, true]);
}

/// One transaction, one token; each path for itself.
#[test]
fn a_multi_lock_has_one_token_on_all_its_paths() {
    let server = ZooKeeper::shared();
    let (paths, client) = ([path("one"), path("other")], client(&server.address()));
    let locks = paths.each_ref().map(|path| client.mutex(path).unwrap());
    let both = Lock::multi(&[&locks[0], &locks[1]]).unwrap();
    both.acquire(None).unwrap();
    let token = both.fencing_token().unwrap();
    let holds = || paths.each_ref().map(|path| client.fence_check(path, token).unwrap());
    assert_eq!(holds(), [true, true]);
    locks[0].release().unwrap();
    assert_eq!(holds(), [false, true]);
    locks[1].release().unwrap();
}

#[test]
fn a_node_that_an_operator_took_away_holds_nothing() {
    let server = ZooKeeper::shared();
    let (path, asker, client) = (path("deleted"), client(&server.address()), client(&server.address()));
    let lock = client.mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    let token = lock.fencing_token().unwrap();
    zklock_rig::Raw::close_session(&server.address(), client.session_id().unwrap(), &[0; 16]);
    assert_eq!(raw(server).delete(&lock.node_paths().unwrap()[0]), 0);
    assert!(!asker.fence_check(&path, token).unwrap());
}

#[test]
fn below_a_chroot_and_beside_plain_children() {
    let server = ZooKeeper::shared();
    let (root, mut raw) = (path("chroot"), raw(server));
    let mut config = Config::new();
    config.set_create_chroot(true);
    let inside = Client::connect(&format!("{}{root}", server.address()), &config).unwrap();
    let lock = inside.mutex("/a").unwrap();
    lock.acquire(None).unwrap();
    let token = lock.fencing_token().unwrap();
    raw.create(&format!("{root}/a/0"), b"", flags::PERSISTENT).unwrap();
    assert!(inside.fence_check("/a", token).unwrap());
    assert!(!inside.fence_check(&root, token).unwrap());
    assert!(client(&server.address()).fence_check(&format!("{root}/a"), token).unwrap());
    lock.release().unwrap();
}

#[test]
fn tokens_and_paths_that_can_not_be_are_named() {
    let client = client(&ZooKeeper::shared().address());
    for token in [0, -1, i64::MIN] {
        let error = client.fence_check("/a", token).unwrap_err();
        assert_eq!(error.status(), Status::Invalid);
        assert!(error.message().contains(&format!("token {token}")), "{error}");
    }
    assert_eq!(status(client.fence_check("a", 1)), Status::Invalid);
    assert!(!client.fence_check("/a", i64::MAX).unwrap());
    client.close().unwrap();
    assert_eq!(status(client.fence_check("/a", 1)), Status::Closed);
}
