//! What a network or a server does to a connection that uses TLS: records are changed or cut, connections end without
//! the closing record, handshakes are slow or stall, and servers ask for what the client does not do.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use zklock::{Client, LockState, Status};
use zklock_test_support::{Certificates, Direction, OpensslServer, Proxy, Verdict, wait_until};

use super::{client, debian, mutual, newest, trusting};
use crate::common::{TEST_TIMEOUT, assert_not_late, path, status, timed};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// Changes a part of the stream, and says what to do with it.
type Damage = fn(&mut Vec<u8>) -> Verdict;

/// What happens to the next bytes from the server.
const DAMAGES: [(&str, Damage); 8] = [
    ("cut inside of a record", |bytes| {
        bytes.truncate(bytes.len() - 3);
        Verdict::CutAfter
    }),
    ("cut inside of the head of a record", |bytes| {
        bytes.truncate(3);
        Verdict::CutAfter
    }),
    ("one bit of the content", |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        Verdict::Forward
    }),
    ("the type of a record", |bytes| {
        bytes[0] = 99;
        Verdict::Forward
    }),
    ("the length of a record", |bytes| {
        bytes[3..5].fill(0xff);
        bytes.resize(0x8000, 0);
        Verdict::Forward
    }),
    ("a record that arrives twice", |bytes| {
        bytes.extend_from_within(..);
        Verdict::Forward
    }),
    ("an alert that is not encrypted", |bytes| {
        const INTERNAL_ERROR: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];
        bytes.splice(.., INTERNAL_ERROR);
        Verdict::Forward
    }),
    ("plain text", |bytes| {
        bytes.splice(.., *b"HTTP/1.1 400 Bad Request\r\n\r\n");
        Verdict::Forward
    }),
];

/// The client gives up the connection, resumes the session on a new one, and keeps its hold.
#[test]
fn a_hold_survives_each_damage_to_the_stream() {
    thread::scope(|scope| {
        for server in [debian(), newest()] {
            for (name, damage) in DAMAGES {
                scope.spawn(move || {
                    let proxy = Proxy::start_opaque(&server.tls_address());
                    let client = client(&proxy.address());
                    let (session, held) = (client.session_id(), client.mutex(&path("damage")).unwrap());
                    held.acquire(Some(TEST_TIMEOUT)).unwrap();
                    let token = held.fencing_token().unwrap();
                    damage_once(&proxy, damage);
                    wait_until(TEST_TIMEOUT, || {
                        assert_ne!(held.state().unwrap(), LockState::Lost, "{name}");
                        held.participants().is_ok() && proxy.accepted_count() > 1
                    });
                    wait_until(TEST_TIMEOUT, || held.state().unwrap() == LockState::Held);
                    assert_eq!((client.session_id(), held.fencing_token().unwrap()), (session, token), "{name}");
                    held.release().unwrap();
                });
            }
        }
    });
}

/// The connection ends without the closing record of TLS, as if an attacker had cut the stream.
#[test]
fn a_connection_may_end_without_close_notify() {
    let proxy = Proxy::start_opaque(&debian().tls_address());
    let client = client(&proxy.address());
    let held = client.mutex(&path("end")).unwrap();
    held.acquire(Some(TEST_TIMEOUT)).unwrap();
    proxy.close_all();
    wait_until(TEST_TIMEOUT, || proxy.accepted_count() > 1 && held.participants().is_ok());
    wait_until(TEST_TIMEOUT, || held.state().unwrap() == LockState::Held);
    held.release().unwrap();
}

#[test]
fn a_server_that_answers_byte_by_byte_is_usable() {
    for server in [debian(), newest()] {
        let address = relay_byte_by_byte(server.tls_address());
        // The time limit of an attempt is a third of the session timeout. A busy machine delays each byte.
        let config = mutual(Certificates::shared()).session_timeout(60 * SECOND).connect_timeout(60 * SECOND);
        let client = Client::connect(&address, &config).unwrap();
        let lock = client.mutex(&path("slow")).unwrap();
        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
        lock.release().unwrap();
    }
}

/// A server accepts connections and then stays silent. The client finds the other server in time.
#[test]
fn a_stalled_handshake_does_not_keep_the_client_from_another_server() {
    let stalled = Proxy::start_opaque(&debian().tls_address());
    stalled.black_hole(true);
    let servers = format!("{},{}", stalled.address(), debian().tls_address());
    // The client tries its servers in random order.
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| client(&servers));
        }
    });
}

/// The connection is cut, and the handshake of the next one stalls. Calls end at their deadline, and the hold ends with
/// the lease.
#[test]
fn calls_keep_their_deadline_while_a_handshake_stalls() {
    let proxy = Proxy::start_opaque(&newest().tls_address());
    let config = trusting(Certificates::shared()).session_timeout(10 * SECOND).connect_timeout(TEST_TIMEOUT);
    let client = Client::connect(&proxy.address(), &config).unwrap();
    let (held, wanted) = (client.mutex(&path("held")).unwrap(), client.mutex(&path("wanted")).unwrap());
    held.acquire(Some(TEST_TIMEOUT)).unwrap();
    proxy.hook(|_, _| Verdict::Drop);
    proxy.cut();
    let (result, took) = timed(|| wanted.acquire(Some(400 * MS)));
    assert_eq!(status(result), Status::Connection);
    assert_not_late(took, 1000 * MS);
    wait_until(TEST_TIMEOUT, || held.state().unwrap() == LockState::Uncertain);
    let (result, took) = timed(|| client.close());
    assert!(took < TEST_TIMEOUT, "{took:?}: {result:?}");
}

/// A request for a new handshake, for new keys, or for a certificate in the middle of the session. The client refuses,
/// or complies, and stays usable: calls end at their deadline, and the client can be closed.
#[test]
fn requests_in_the_middle_of_a_session_do_no_harm() {
    let certificates = Certificates::shared();
    let identity = certificates.file("server.both.pem");
    for (version, command, count) in [
        ("-tls1_2", "R\n", 3),
        ("-tls1_2", "r\n", 3),
        ("-tls1_3", "K\n", 300),
        ("-tls1_3", "k\n", 300),
        ("-tls1_3", "c\n", 3),
    ] {
        let mut server = OpensslServer::start(&["-cert", &identity, "-cert_chain", &identity, version]);
        server.write(&connect_response());
        let client = Client::connect(&server.address(), &mutual(certificates)).unwrap();
        for _ in 0..count {
            server.write(command.as_bytes());
            // openssl looks for one command in what it has read.
            thread::sleep(MS);
        }
        let lock = client.mutex("/a").unwrap();
        let (result, took) = timed(|| lock.acquire(Some(300 * MS)));
        assert_eq!(status(result), Status::Connection, "{command}");
        assert_not_late(took, 1000 * MS);
        let (_, took) = timed(|| client.close());
        assert!(took < TEST_TIMEOUT, "{command}: {took:?}");
    }
}

/// Damages the next bytes from the server, and lets the server send some.
fn damage_once(proxy: &Proxy, damage: Damage) {
    let armed = Arc::new(AtomicBool::new(true));
    proxy.hook(move |direction, bytes| {
        if direction == Direction::ToClient && armed.swap(false, Ordering::SeqCst) {
            return damage(bytes);
        }
        Verdict::Forward
    });
}

/// A relay that forwards each byte of the server separately. Returns its address.
fn relay_byte_by_byte(server: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
            client.set_nodelay(true).unwrap();
            let (mut to_server, mut from_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
            thread::spawn(move || forward_bytes(server, client));
        }
    });
    address
}

fn forward_bytes(mut from: TcpStream, mut to: TcpStream) {
    let mut byte = [0];
    while from.read_exact(&mut byte).and_then(|()| to.write_all(&byte)).is_ok() {}
}

/// The answer of a ZooKeeper server to a new session, with a session timeout of 30 seconds.
pub(super) fn connect_response() -> Vec<u8> {
    let (protocol, timeout, session) = (0_i32.to_be_bytes(), 30_000_i32.to_be_bytes(), 77_i64.to_be_bytes());
    [&37_i32.to_be_bytes()[..], &protocol, &timeout, &session, &16_i32.to_be_bytes(), &[0; 16], &[0]].concat()
}
