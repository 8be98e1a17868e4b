//! Tests of the TCP layer of the server, with clients that do not behave like ordinary clients.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failing test may panic")]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use zklock_proto::{ConnectRequest, Request};
use zklock_standalone::Server;
use zklock_test_support::{RawClient, flags, wait_until};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn four_letter_words_are_answered() {
    let server = Server::start().unwrap();
    assert_eq!(send_four_letter_word(&server, b"ruok"), b"imok");
    assert!(send_four_letter_word(&server, b"srvr\n").starts_with(b"Zookeeper version: 3."));
}

#[test]
fn many_connections_are_served_side_by_side() {
    let server = Server::start().unwrap();
    let address = server.address().to_string();
    let mut clients: Vec<RawClient> = (0..200).map(|_| RawClient::connect(&address, 30_000)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.create(&format!("/n{number}"), b"", flags::EPHEMERAL).unwrap();
    }
    assert_eq!(server.sessions().unwrap().iter().filter(|session| session.is_connected).count(), 200);
    let mut last = clients.pop().unwrap();
    drop(clients);
    wait_until(TEST_TIMEOUT, || last.children("/").unwrap().iter().filter(|name| name.starts_with('n')).count() == 1);
}

#[test]
fn client_that_does_not_read_blocks_nobody_and_loses_no_reply() {
    const COUNT: usize = 2000;
    let server = Server::start().unwrap();
    let mut raw = RawClient::connect(&server.address().to_string(), 60_000);
    raw.create("/big", &[7; 10_000], flags::PERSISTENT).unwrap();
    let mut lazy = session(&server);
    for xid in 1..=COUNT {
        lazy.write_all(&get_data(i32::try_from(xid).unwrap(), "/big")).unwrap();
    }
    // Twenty megabytes of replies wait for the client that does not read.
    assert_eq!(raw.children("/").unwrap().len(), 2);
    for xid in 1..=COUNT {
        let reply = frame(&mut lazy);
        assert_eq!(reply[..4], i32::try_from(xid).unwrap().to_be_bytes());
        assert!(reply.len() > 10_000);
    }
}

#[test]
fn a_frame_may_come_byte_by_byte() {
    let server = Server::start().unwrap();
    let mut stream = session(&server);
    for byte in get_data(5, "/zookeeper") {
        stream.write_all(&[byte]).unwrap();
    }
    assert_eq!(frame(&mut stream)[..4], [0, 0, 0, 5]);
}

#[test]
fn malformed_bytes_close_only_their_own_connection() {
    let server = Server::start().unwrap();
    let mut raw = RawClient::connect(&server.address().to_string(), 60_000);
    let too_long = [&0x0010_0000_i32.to_be_bytes()[..], &[0; 100]].concat();
    let negative = (-1_i32).to_be_bytes();
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 1000], &[0, 0, 0, 0], &[0, 0, 0, 3, 1, 2, 3], &too_long] {
        let mut stream = connect(&server);
        stream.write_all(nonsense).unwrap();
        assert_ended(stream);
    }
    // Repeat the test with a client that has a session. The server also checks the contents of the frames of such a
    // client.
    for nonsense in [&too_long[..], &negative, &[0, 0, 0, 2, 1, 2]] {
        let mut stream = session(&server);
        stream.write_all(nonsense).unwrap();
        assert_ended(stream);
    }
    assert_eq!(raw.children("/").unwrap(), ["zookeeper"]);
}

#[test]
fn dropped_server_closes_connections_and_port() {
    let server = Server::start().unwrap();
    let address = server.address();
    let stream = session(&server);
    drop(server);
    // The server thread owns the listener, so the thread has ended.
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_ended(stream);
    TcpListener::bind(address).unwrap();
}

fn send_four_letter_word(server: &Server, word: &[u8]) -> Vec<u8> {
    let mut stream = connect(server);
    stream.write_all(word).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

/// A connection that has completed the handshake.
fn session(server: &Server) -> TcpStream {
    let greeting = ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: 0,
        timeout_ms: 30_000,
        session_id: 0,
        password: vec![0; 16],
        read_only: false,
    };
    let mut bytes = Vec::new();
    greeting.encode(&mut bytes);
    let mut stream = connect(server);
    stream.write_all(&bytes).unwrap();
    frame(&mut stream);
    stream
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream
}

fn get_data(xid: i32, path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    Request::GetData { path: path.to_owned(), watch: false }.encode(xid, &mut bytes).unwrap();
    bytes
}

fn frame(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body).unwrap();
    body
}

/// Asserts that the server has closed or reset the connection.
#[track_caller]
fn assert_ended(mut stream: TcpStream) {
    let ended = stream.read(&mut [0; 64]);
    assert!(
        matches!(&ended, Ok(0)) || ended.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset),
        "{ended:?}"
    );
}
