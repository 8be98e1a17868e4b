//! Nodes that a program reads, lists and deletes, or writes on behalf of a hold.

use std::time::Duration;

use zklock::{Permission, Status};
use zklock_test_support::{Direction, Proxy, Verdict, ZooKeeper, flags, permissions, wait_until};

use crate::common::{TEST_TIMEOUT, client, client_with, create_directory, path, raw, server_without_sweeps, status};

#[test]
fn a_write_needs_the_expected_version_and_the_node_of_the_hold() {
    let server = ZooKeeper::shared();
    let (path, client, mut raw) = (path("node"), client(&server.address()), raw(server));
    let record = format!("{path}-record");
    let lock = client.mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    let hold = lock.node_paths().unwrap().remove(0);
    assert_eq!(client.read_node(&record).unwrap(), None);
    assert_eq!(client.write_node(&hold, &record, b"x", Some(0)).unwrap(), None, "there is no node yet");
    assert_eq!(client.write_node(&hold, &record, b"one", None).unwrap(), Some(0));
    assert_eq!(client.write_node(&hold, &record, b"other", None).unwrap(), None, "the node exists");
    assert_eq!(client.write_node(&hold, &record, b"two", Some(0)).unwrap(), Some(1));
    assert_eq!(client.write_node(&hold, &record, b"other", Some(0)).unwrap(), None);
    let content = client.read_node(&record).unwrap().unwrap();
    assert_eq!((&*content.data, content.version), (&b"two"[..], 1));
    assert_eq!(raw.delete(&hold), 0);
    let error = client.write_node(&hold, &record, b"late", Some(1)).unwrap_err();
    assert_eq!(error.status(), Status::Lost);
    assert!(error.message().contains(&record) && error.message().contains(&hold), "{error}");
    assert_eq!(raw.data(&record).unwrap(), b"two");
    assert_eq!(status(client.write_node(&hold, "no/path", b"", None)), Status::Invalid);
    assert_eq!(status(client.write_node("no/path", &record, b"", None)), Status::Invalid);
    assert_eq!(status(client.write_node(&hold, &record, &vec![0; zklock::MAX_DATA + 1], None)), Status::Invalid);
}

#[test]
fn a_write_whose_reply_is_lost_happens_once() {
    const MULTI: [u8; 4] = 14_i32.to_be_bytes();
    for (cut, direction) in [(Verdict::CutBefore, Direction::ToClient), (Verdict::CutAfter, Direction::ToServer)] {
        let server = ZooKeeper::shared();
        let proxy = Proxy::start(&server.address());
        let (path, client) = (path("node"), client(&proxy.address()));
        let record = format!("{path}-record");
        let lock = client.mutex(&path).unwrap();
        lock.acquire(None).unwrap();
        let hold = lock.node_paths().unwrap().remove(0);
        for (version, data) in [(None, "one"), (Some(0), "two")] {
            let (mut request, mut is_done) = (None, false);
            proxy.hook(move |way, frame| {
                if way == Direction::ToServer && frame.get(4..8) == Some(&MULTI) && !is_done {
                    request = frame.get(..4).map(<[u8]>::to_vec);
                    if direction == Direction::ToServer {
                        is_done = true;
                        return cut;
                    }
                } else if way == Direction::ToClient
                    && request.is_some()
                    && frame.get(..4) == request.as_deref()
                    && !is_done
                {
                    is_done = true;
                    return cut;
                }
                Verdict::Forward
            });
            let expected = version.map_or(0, |version: i32| version + 1);
            assert_eq!(client.write_node(&hold, &record, data.as_bytes(), version).unwrap(), Some(expected), "{cut:?}");
            proxy.unhook();
        }
        assert_eq!(client.read_node(&record).unwrap().unwrap().data, b"two");
        assert_eq!(client.write_node(&hold, &record, b"three", Some(0)).unwrap(), None);
    }
}

#[test]
fn children_are_listed_awaited_and_deleted() {
    let server = server_without_sweeps();
    let (path, client, mut raw) = (path("children"), client(&server.address()), raw(server));
    assert_eq!(client.children(&path).unwrap(), None);
    assert_eq!(client.start_await_children(&path, 0, None).unwrap().wait().unwrap(), None);
    assert!(client.children("/").unwrap().unwrap().names.contains(&"zookeeper".to_owned()));
    let lock = client.mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    let first = client.children(&path).unwrap().unwrap();
    let node = format!("{path}/{}", first.names[0]);
    let content = client.read_node(&node).unwrap().unwrap();
    let stat = raw.stat(&node).unwrap();
    assert_eq!((content.czxid, content.session_id), (stat.czxid, client.session_id().unwrap()));
    assert!(content.created_ms > 1_500_000_000_000, "{content:?}");
    let unchanged = client.start_await_children(&path, first.zxid, Some(Duration::from_secs(1))).unwrap().wait();
    let error = unchanged.unwrap_err();
    assert_eq!(error.status(), Status::Timeout, "{error}");
    let changed = client.start_await_children(&path, first.zxid, None).unwrap();
    assert!(changed.wait_for(Duration::from_millis(50)).is_none());
    client.delete_node(&node).unwrap();
    client.delete_node(&node).unwrap();
    assert_eq!(changed.wait().unwrap().map(|children| children.names), Some(vec![]));
    raw.create(&format!("{path}/sub"), b"", flags::PERSISTENT).unwrap();
    let error = client.delete_node(&path).unwrap_err();
    assert_eq!(error.status(), Status::Server, "{error}");
    assert!(error.message().contains(&format!("deleting {path}")), "{error}");
    assert_eq!(status(client.children("no/path")), Status::Invalid);
    assert_eq!(status(client.delete_node("/")), Status::Invalid);
}

#[test]
fn a_watch_of_children_survives_a_reconnect_and_ends_with_its_call() {
    let server = ZooKeeper::start();
    let proxy = Proxy::start(&server.address());
    let (path, client, mut raw) = ("/children", client(&proxy.address()), raw(&server));
    raw.create(path, b"", flags::PERSISTENT).unwrap();
    let before = server.watch_count();
    let list = client.children(path).unwrap().unwrap();
    let call = client.start_await_children(path, list.zxid, Some(Duration::from_secs(60))).unwrap();
    wait_until(TEST_TIMEOUT, || server.watch_count() > before);
    proxy.cut();
    raw.create(&format!("{path}/sub"), b"", flags::PERSISTENT).unwrap();
    assert_eq!(call.wait().unwrap().unwrap().names, ["sub"]);
    let list = client.children(path).unwrap().unwrap();
    let unchanged = client.start_await_children(path, list.zxid, Some(Duration::from_secs(1))).unwrap();
    assert_eq!(status(unchanged.wait()), Status::Timeout);
    wait_until(TEST_TIMEOUT, || server.watch_count() <= before);
}

/// Without the deadline of its caller, the waiting thread would use a processor after one session timeout.
#[test]
fn a_wait_for_children_beyond_the_session_timeout_does_not_use_the_processor() {
    let server = ZooKeeper::shared();
    let (path, waiting) = (path("idle"), client_with(&server.address(), Duration::from_secs(1)));
    create_directory(server, &path);
    let list = client(&server.address()).children(&path).unwrap().unwrap();
    let before = thread_processor_time();
    let call = waiting.start_await_children(&path, list.zxid, Some(Duration::from_secs(3))).unwrap();
    call.wait().unwrap_err();
    let used = thread_processor_time() - before;
    assert!(used < Duration::from_millis(500), "{used:?}");
}

/// The processor time that the calling thread has used so far.
fn thread_processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: The time is valid for writes.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec.try_into().unwrap())
}

#[test]
fn permissions_are_checked_without_a_change() {
    let server = ZooKeeper::shared();
    let (path, client, mut raw) = (path("permission"), client(&server.address()), raw(server));
    let all = [
        (Permission::Create, permissions::CREATE),
        (Permission::Delete, permissions::DELETE),
        (Permission::Read, permissions::READ),
        (Permission::Write, permissions::WRITE),
    ];
    let lock = client.mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    for (missing, bit) in all {
        let node = format!("{path}/{missing:?}");
        raw.create_with_acl(&node, b"data", 0, &[(permissions::ALL & !bit, "world", "anyone")]).unwrap();
        let before = raw.stat(&path).unwrap().cversion;
        for (permission, _) in all {
            let is_allowed = client.check_permission(&node, permission).unwrap();
            assert_eq!(is_allowed, permission != missing, "{permission} on {node}");
        }
        assert_eq!(raw.stat(&path).unwrap().cversion, before);
    }
    let node = format!("{path}/Create");
    assert_eq!((raw.data(&node).unwrap(), raw.children(&node).unwrap()), (b"data".to_vec(), vec![]));
    assert!(client.check_permission("/", Permission::Read).unwrap());
    assert_eq!(status(client.check_permission(&format!("{path}/none"), Permission::Create)), Status::Server);
}
