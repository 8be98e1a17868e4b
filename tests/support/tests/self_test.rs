//! Tests of the test support library itself.

#![allow(clippy::unwrap_used, reason = "clippy exempts only test functions, not their helpers")]

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use zklock_test_support::{
    Direction, Ensemble, Network, Port, Proxy, RawClient, Verdict, ZooKeeper, assert_not_late, flags, wait_until,
};

const RAW_SESSION_MS: i32 = 60_000;
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn server_answers() {
    let zookeeper = ZooKeeper::shared();
    assert_eq!(zookeeper.four_letter_word("ruok"), "imok");
    assert!(zookeeper.log().contains("INFO"));
}

#[test]
fn raw_client_sees_and_changes_nodes() {
    let mut raw = RawClient::connect(&ZooKeeper::shared().address(), RAW_SESSION_MS);
    assert_eq!(raw.children("/raw"), None);
    assert_eq!(raw.create("/raw/a", b"", flags::PERSISTENT), Err(-101));
    assert_eq!(raw.create("/raw", b"one", flags::PERSISTENT).as_deref(), Ok("/raw"));
    assert_eq!(raw.create("/raw/n-", b"", flags::EPHEMERAL_SEQUENTIAL).as_deref(), Ok("/raw/n-0000000000"));
    assert_eq!(raw.create("/raw/a", b"", flags::EPHEMERAL).as_deref(), Ok("/raw/a"));
    assert_eq!(raw.children("/raw").unwrap(), ["a", "n-0000000000"]);
    assert_eq!(raw.stat("/raw/a").unwrap().ephemeral_owner, raw.session_id());
    assert_eq!(raw.set_data("/raw", b"two"), 0);
    assert_eq!(raw.data("/raw").unwrap(), b"two");
    let stat = raw.stat("/raw").unwrap();
    assert_eq!((stat.version, stat.cversion, stat.children), (1, 2, 2));
    assert!(stat.mzxid > stat.czxid);
    assert_eq!(raw.delete("/raw"), -111);
    assert_eq!(raw.delete("/raw/a"), 0);
    assert!(!raw.exists("/raw/a"));
}

#[test]
fn raw_client_closes_a_foreign_session() {
    let address = ZooKeeper::shared().address();
    let mut victim = RawClient::connect(&address, RAW_SESSION_MS);
    victim.create("/victim", b"", flags::EPHEMERAL).unwrap();
    RawClient::close_session(&address, victim.session_id(), victim.password());
    let mut witness = RawClient::connect(&address, RAW_SESSION_MS);
    assert!(!witness.exists("/victim"));
    assert!(RawClient::attach(&address, RAW_SESSION_MS, victim.session_id(), victim.password()).is_none());
}

#[test]
fn dropped_raw_client_closes_its_session_and_an_abandoned_one_expires() {
    let zookeeper = ZooKeeper::options().tick_ms(100).start();
    let mut witness = RawClient::connect(&zookeeper.address(), RAW_SESSION_MS);
    for (path, drops) in [("/dropped", true), ("/abandoned", false)] {
        let mut raw = RawClient::connect(&zookeeper.address(), if drops { RAW_SESSION_MS } else { 1_000 });
        raw.create(path, b"", flags::EPHEMERAL).unwrap();
        if drops {
            drop(raw);
        } else {
            raw.abandon();
        }
        assert!(drops || witness.exists(path));
        wait_until(TEST_TIMEOUT, || !witness.exists(path));
    }
}

#[test]
fn restart_keeps_data_and_address() {
    let zookeeper = ZooKeeper::start();
    let mut raw = RawClient::connect(&zookeeper.address(), RAW_SESSION_MS);
    raw.create("/kept", b"data", flags::PERSISTENT).unwrap();
    let (address, pid) = (zookeeper.address(), zookeeper.pid());
    zookeeper.stop();
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert_eq!(TcpStream::connect(&address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    zookeeper.restart();
    assert_eq!(zookeeper.address(), address);
    assert_eq!(RawClient::connect(&address, RAW_SESSION_MS).data("/kept").unwrap(), b"data");
}

#[test]
fn paused_server_is_silent_and_comes_back() {
    let zookeeper = ZooKeeper::start();
    let address = zookeeper.address();
    zookeeper.pause();
    let (answered, answer) = mpsc::channel();
    let waiter = thread::spawn(move || {
        RawClient::connect(&address, RAW_SESSION_MS);
        answered.send(()).unwrap();
    });
    assert!(answer.recv_timeout(Duration::from_millis(300)).is_err());
    zookeeper.resume();
    answer.recv_timeout(TEST_TIMEOUT).unwrap();
    waiter.join().unwrap();
    zookeeper.pause();
    // A paused server can be killed and restarted.
    zookeeper.restart();
    assert_eq!(zookeeper.four_letter_word("ruok"), "imok");
}

#[test]
fn connections_and_watches_are_counted() {
    let zookeeper = ZooKeeper::start();
    assert_eq!((zookeeper.connection_count(), zookeeper.watch_count()), (0, 0));
    let raw = RawClient::connect(&zookeeper.address(), RAW_SESSION_MS);
    assert_eq!(zookeeper.connection_count(), 1);
    raw.close();
    wait_until(TEST_TIMEOUT, || zookeeper.connection_count() == 0);
}

#[test]
fn empty_containers_are_swept() {
    let mut raw = RawClient::connect(&ZooKeeper::shared().address(), RAW_SESSION_MS);
    raw.create("/container", b"", flags::CONTAINER).unwrap();
    raw.create("/container/child", b"", flags::PERSISTENT).unwrap();
    assert_eq!(raw.delete("/container/child"), 0);
    wait_until(TEST_TIMEOUT, || !raw.exists("/container"));
}

#[test]
fn server_data_and_peers_go_with_a_killed_test_process() {
    let mut parent = Command::new(example("orphan")).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (address, pids) = line.trim().split_once(' ').unwrap();
    TcpStream::connect(address).unwrap();
    parent.kill().unwrap();
    let leftovers = format!("zklock-rig-{}-", parent.id());
    parent.wait().unwrap();
    for pid in pids.split(' ') {
        wait_until(TEST_TIMEOUT, || has_ended(pid));
    }
    wait_until(TEST_TIMEOUT, || {
        let mut names = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
        !names.any(|name| name.to_string_lossy().starts_with(&leftovers))
    });
}

/// Returns whether an orphan has ended. The first process of a container may never wait for its orphans, so they remain
/// zombies.
fn has_ended(pid: &str) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The state follows the name of the command, which is in parentheses.
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']))
}

#[test]
fn nothing_is_left_of_a_dropped_server() {
    let zookeeper = ZooKeeper::start();
    let (pid, address) = (zookeeper.pid(), zookeeper.address());
    drop(zookeeper);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    TcpListener::bind(address).unwrap();
}

#[test]
fn proxy_passes_frames_on() {
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let mut raw = RawClient::connect(&proxy.address(), RAW_SESSION_MS);
    let data = vec![7; 300_000];
    raw.create("/proxied", &data, flags::EPHEMERAL).unwrap();
    assert_eq!(raw.data("/proxied").unwrap(), data);
    assert_eq!(proxy.accepted_count(), 1);
}

#[test]
fn cut_resets_both_ends() {
    let (proxy, mut client, mut server) = proxied_connection();
    proxy.cut();
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    // The proxy still accepts connections. It resets this one, perhaps before `connect` returns, because the listener
    // of the server is gone.
    drop(TcpStream::connect(proxy.address()));
    wait_until(TEST_TIMEOUT, || proxy.accepted_count() == 2);
}

#[test]
fn close_all_ends_both_ends_in_order() {
    let (proxy, mut client, mut server) = proxied_connection();
    proxy.close_all();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
}

#[test]
fn end_of_one_side_reaches_the_other() {
    let (_proxy, client, mut server) = proxied_connection();
    drop(client);
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
}

#[test]
fn black_hole_swallows_frames_and_the_end() {
    let (proxy, client, mut server) = proxied_connection();
    proxy.black_hole(true);
    send(&client, b"lost");
    drop(client);
    server.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut newcomer = TcpStream::connect(proxy.address()).unwrap();
    newcomer.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert_eq!(newcomer.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    proxy.black_hole(false);
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
}

#[test]
fn black_hole_leaves_the_connection_usable() {
    let (proxy, client, server) = proxied_connection();
    proxy.black_hole(true);
    send(&client, b"lost");
    thread::sleep(Duration::from_millis(50));
    proxy.black_hole(false);
    send(&client, b"kept");
    assert_eq!(frame(&server), b"kept");
    send(&server, b"back");
    assert_eq!(frame(&client), b"back");
}

#[test]
fn refused_connections_and_kept_ones() {
    let (proxy, client, server) = proxied_connection();
    proxy.refuse(true);
    assert_eq!(TcpStream::connect(proxy.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    send(&client, b"still here");
    assert_eq!(frame(&server), b"still here");
    proxy.refuse(false);
    TcpStream::connect(proxy.address()).unwrap();
}

#[test]
fn delay_is_one_way_and_does_not_add_up() {
    let (proxy, client, server) = proxied_connection();
    let delay = Duration::from_secs(2);
    proxy.delay(Direction::ToServer, delay);
    let start = Instant::now();
    for _ in 0..5 {
        send(&client, b"late");
    }
    for _ in 0..5 {
        assert_eq!(frame(&server), b"late");
    }
    assert!(start.elapsed() >= delay, "{:?}", start.elapsed());
    assert_not_late(start.elapsed(), delay);
    let start = Instant::now();
    send(&server, b"at once");
    assert_eq!(frame(&client), b"at once");
    assert!(start.elapsed() < delay);
}

#[test]
fn hook_changes_and_drops_frames() {
    let (proxy, client, server) = proxied_connection();
    proxy.hook(|direction, frame| match (direction, frame.as_slice()) {
        (Direction::ToServer, b"drop") => Verdict::Drop,
        (Direction::ToServer, _) => {
            frame.extend_from_slice(b" and more");
            Verdict::Forward
        }
        (Direction::ToClient, _) => Verdict::Forward,
    });
    send(&client, b"drop");
    send(&client, b"this");
    assert_eq!(frame(&server), b"this and more");
    proxy.unhook();
    send(&client, b"plain");
    assert_eq!(frame(&server), b"plain");
}

#[test]
fn hook_cuts_before_and_after_a_frame() {
    for (verdict, arrives) in [(Verdict::CutBefore, false), (Verdict::CutAfter, true)] {
        let (proxy, mut client, mut server) = proxied_connection();
        proxy.hook(move |_, _| verdict);
        send(&client, b"last");
        assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        if arrives {
            assert_eq!(frame(&server), b"last");
        }
        assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}

/// The main purpose of hooks: the server executes a request, but its client never receives the reply.
#[test]
fn hook_loses_the_reply_of_a_create() {
    for lose_the_reply in [true, false] {
        let zookeeper = ZooKeeper::shared();
        let proxy = Proxy::start(&zookeeper.address());
        let mut raw = RawClient::connect(&proxy.address(), RAW_SESSION_MS);
        proxy.hook(move |direction, _| match direction {
            Direction::ToClient => Verdict::CutBefore,
            Direction::ToServer if lose_the_reply => Verdict::Forward,
            Direction::ToServer => Verdict::CutAfter,
        });
        let path = format!("/reply-lost-{lose_the_reply}");
        let (session, password) = (raw.session_id(), raw.password().to_vec());
        let of_thread = path.clone();
        thread::spawn(move || raw.create(&of_thread, b"", flags::EPHEMERAL)).join().unwrap_err();
        let mut witness = RawClient::connect(&zookeeper.address(), RAW_SESSION_MS);
        wait_until(TEST_TIMEOUT, || witness.exists(&path));
        RawClient::close_session(&zookeeper.address(), session, &password);
        assert!(!witness.exists(&path));
    }
}

#[test]
fn unreachable_target_resets_the_client() {
    let zookeeper_is_down = Port::reserve();
    let proxy = Proxy::start(&zookeeper_is_down.address());
    let mut client = TcpStream::connect(proxy.address()).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn opaque_proxy_passes_anything_on() {
    let proxy = Proxy::start_opaque(&ZooKeeper::shared().address());
    let mut client = TcpStream::connect(proxy.address()).unwrap();
    std::io::Write::write_all(&mut client, b"ruok").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "imok");
}

#[test]
fn a_leader_on_a_network_is_replaced_when_nobody_hears_it() {
    let mut network = match Network::enter() {
        Ok(network) => network,
        Err(error) => return println!("no network namespaces: {error}"),
    };
    // The sync limit of 4 s is longer than the four calls of `ip` that isolate a server.
    let ensemble = Ensemble::start_on(&mut network, &ZooKeeper::options().tick_ms(200), 20);
    let limit = Duration::from_secs(60);
    let first = ensemble.leader();
    ensemble.set_link_down(first, true);
    let second = ensemble.leader();
    assert_ne!(second, first);
    ensemble.set_link_down(first, false);
    wait_until(limit, || ensemble.is_serving());
    ensemble.isolate(second);
    let leads = |server: usize| ensemble.servers()[server].four_letter_word("srvr").contains("Mode: leader");
    assert!(leads(second), "clients still reach the server, and it has not noticed the cut yet");
    wait_until(limit, || (0..3).any(|server| server != second && leads(server)));
    ensemble.end_isolation(second);
    wait_until(limit, || ensemble.is_serving() && !leads(second));
}

#[test]
#[should_panic(expected = "did not become true")]
fn wait_until_gives_up() {
    wait_until(Duration::from_millis(20), || false);
}

/// A proxy with one connection through it. Returns the client's end and the server's end.
fn proxied_connection() -> (Proxy, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(&listener.local_addr().unwrap().to_string());
    let client = TcpStream::connect(proxy.address()).unwrap();
    let (server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    }
    // One frame in each direction shows that the connection is complete.
    send(&client, b"hello");
    assert_eq!(frame(&server), b"hello");
    (proxy, client, server)
}

fn send(mut stream: &TcpStream, body: &[u8]) {
    let mut bytes = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend_from_slice(body);
    std::io::Write::write_all(&mut stream, &bytes).unwrap();
}

fn frame(mut stream: &TcpStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body).unwrap();
    body
}

/// Cargo builds the examples of a package together with its tests, in a neighboring directory.
fn example(name: &str) -> std::path::PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().with_file_name("examples").join(name)
}
