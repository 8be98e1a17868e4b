//! `fence_check`: whether a token still belongs to a holder, on a path of any recipe.

use std::thread;
use std::time::Duration;

use zklock::{Client, Config, Lock, Status};
use zklock_test_support::{ZooKeeper, flags, wait_until};

use crate::common::{TEST_TIMEOUT, client, path, raw, status, wait_for_queue, wait_for_waiters};

const TRY_ONCE: Option<Duration> = Some(Duration::ZERO);

/// For each participant in the queue: whether its token belongs to a holder.
fn holders(asker: &Client, path: &str, lock: &Lock) -> Vec<bool> {
    let tokens = lock.queue().unwrap().into_iter().map(|participant| participant.czxid);
    tokens.map(|token| asker.fence_check(path, token).unwrap()).collect()
}

#[test]
fn holders_token_passes_the_check_until_release() {
    let server = ZooKeeper::shared();
    let (path, client, asker) = (path("token"), client(&server.address()), client(&server.address()));
    assert!(!asker.fence_check(&path, 1).unwrap(), "no such path");
    for kind in [Client::mutex, Client::semaphore_mutex, |client: &Client, path: &str| Ok(client.rwlock(path)?.read)] {
        let lock = kind(&client, &path).unwrap();
        let mut last = 1;
        for _ in 0..2 {
            lock.acquire(TRY_ONCE).unwrap();
            let token = lock.fencing_token().unwrap();
            assert!(asker.fence_check(&path, token).unwrap());
            assert!(client.fence_check(&path, token).unwrap(), "a token of the same client");
            assert!(!asker.fence_check(&path, last).unwrap());
            assert!(!asker.fence_check(&path, token + 1).unwrap());
            lock.release().unwrap();
            assert!(!asker.fence_check(&path, token).unwrap());
            last = token;
        }
    }
}

#[test]
fn waiters_token_fails_the_check() {
    let server = ZooKeeper::shared();
    let (path, one, two) = (path("waiters"), client(&server.address()), client(&server.address()));
    let (held, wanted) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| wanted.acquire(Some(TEST_TIMEOUT)).map(|()| wanted.fencing_token().unwrap()));
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
fn tokens_of_all_readers_or_of_one_writer_pass_the_check() {
    let server = ZooKeeper::shared();
    let (path, client) = (path("readers"), client(&server.address()));
    let lock = client.rwlock(&path).unwrap();
    let mut raw = raw(server);
    lock.read.acquire(None).unwrap();
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            lock.read.acquire(Some(TEST_TIMEOUT)).unwrap();
            wait_until(TEST_TIMEOUT, || lock.read.queue().unwrap().len() == 4);
            assert_eq!(holders(&client, &path, &lock.read), [true, true, false, false]);
            lock.read.release().unwrap();
        });
        wait_for_queue(&mut raw, &path, 2);
        let writer = scope.spawn(|| {
            lock.write.acquire(Some(TEST_TIMEOUT)).unwrap();
            wait_for_waiters(&lock.read, 1);
            // The owner also acquires the read lock in the writer's position. Both tokens are valid.
            lock.read.acquire(None).unwrap();
            assert_eq!(holders(&client, &path, &lock.read), [true, true, false]);
            lock.write.release().unwrap();
            lock.read.release().unwrap();
        });
        wait_for_queue(&mut raw, &path, 3);
        let last = scope.spawn(|| {
            lock.read.acquire(Some(TEST_TIMEOUT)).unwrap();
            lock.read.release().unwrap();
        });
        reader.join().unwrap();
        lock.read.release().unwrap();
        writer.join().unwrap();
        last.join().unwrap();
    });
}

#[test]
fn tokens_of_leases_pass_and_of_waiting_leases_fail() {
    let server = ZooKeeper::shared();
    let (path, one, two) = (path("leases"), client(&server.address()), client(&server.address()));
    let (has, wants) = (one.semaphore(&path, 3).unwrap(), two.semaphore(&path, 3).unwrap());
    let held = has.acquire(2, TRY_ONCE).unwrap();
    let another = wants.acquire(1, TRY_ONCE).unwrap();
    let (first, second) = (held.token(), another.token());
    // An acquire of two more leases has to wait, but its nodes exist already.
    let waiting = wants.start_acquire(2, None).unwrap();
    wait_until(TEST_TIMEOUT, || has.participants().unwrap().len() == 5);
    let third = has.participants().unwrap()[4].czxid;
    let holds = || [first, second, third].map(|token| one.fence_check(&path, token).unwrap());
    assert_eq!(holds(), [true, true, false]);
    held.release().unwrap();
    let got = waiting.wait().unwrap();
    assert_eq!(got.token(), third);
    assert_eq!(holds(), [false, true, true]);
}

/// One transaction gives one token, which is valid on each of the paths.
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
fn token_of_a_deleted_node_fails_the_check() {
    let server = ZooKeeper::shared();
    let (path, asker, client) = (path("deleted"), client(&server.address()), client(&server.address()));
    let lock = client.mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    let token = lock.fencing_token().unwrap();
    zklock_test_support::RawClient::close_session(&server.address(), client.session_id().unwrap(), &[0; 16]);
    assert_eq!(raw(server).delete(&lock.node_paths().unwrap()[0]), 0);
    assert!(!asker.fence_check(&path, token).unwrap());
}

#[test]
fn fence_check_works_below_a_chroot_and_beside_foreign_children() {
    let server = ZooKeeper::shared();
    let (root, mut raw) = (path("chroot"), raw(server));
    let config = Config::new().create_chroot(true);
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
fn invalid_tokens_and_paths_return_invalid() {
    let client = client(&ZooKeeper::shared().address());
    for token in [0, -1, i64::MIN] {
        let error = client.fence_check("/a", token).unwrap_err();
        assert_eq!(error.status(), Status::Invalid);
        assert!(error.message().contains(&format!("token is {token}")), "{error}");
    }
    assert_eq!(status(client.fence_check("a", 1)), Status::Invalid);
    assert!(!client.fence_check("/a", i64::MAX).unwrap());
    client.close().unwrap();
    assert_eq!(status(client.fence_check("/a", 1)), Status::Closed);
}
