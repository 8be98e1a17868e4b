//! The server's front among peers that behave as they like.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails is a test that fails")]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use zklock::proto::{ConnectRequest, Request};
use zklock_rig::{Raw, flags, wait_until};
use zklock_standalone::Server;

const SOON: Duration = Duration::from_secs(20);

#[test]
fn it_answers_a_word_of_four_letters() {
    let server = Server::start().unwrap();
    assert_eq!(ask(&server, b"ruok"), b"imok");
    assert!(ask(&server, b"srvr\n").starts_with(b"Zookeeper version: 3."));
}

#[test]
fn many_connections_are_served_side_by_side() {
    let server = Server::start().unwrap();
    let address = server.address().to_string();
    let mut clients: Vec<Raw> = (0..200).map(|_| Raw::connect(&address, 30_000)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.create(&format!("/n{number}"), b"", flags::EPHEMERAL).unwrap();
    }
    assert_eq!(server.sessions().unwrap().iter().filter(|session| session.is_connected).count(), 200);
    let mut last = clients.pop().unwrap();
    drop(clients);
    wait_until(SOON, || last.children("/").unwrap().iter().filter(|name| name.starts_with('n')).count() == 1);
}

#[test]
fn whoever_does_not_read_holds_up_nobody_and_misses_nothing() {
    const COUNT: usize = 2000;
    let server = Server::start().unwrap();
    let mut raw = Raw::connect(&server.address().to_string(), 60_000);
    raw.create("/big", &[7; 10_000], flags::PERSISTENT).unwrap();
    let mut lazy = session(&server);
    for xid in 1..=COUNT {
        lazy.write_all(&get_data(i32::try_from(xid).unwrap(), "/big")).unwrap();
    }
    // Twenty megabytes are waiting for him.
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
fn nonsense_ends_its_own_connection_only() {
    let server = Server::start().unwrap();
    let mut raw = Raw::connect(&server.address().to_string(), 60_000);
    let too_long = [&0x0010_0000_i32.to_be_bytes()[..], &[0; 100]].concat();
    let negative = (-1_i32).to_be_bytes();
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 1000], &[0, 0, 0, 0], &[0, 0, 0, 3, 1, 2, 3], &too_long] {
        let mut stream = connect(&server);
        stream.write_all(nonsense).unwrap();
        assert_ended(stream);
    }
    // The same from somebody who has a session; what his frames say is checked, too.
    for nonsense in [&too_long[..], &negative, &[0, 0, 0, 2, 1, 2]] {
        let mut stream = session(&server);
        stream.write_all(nonsense).unwrap();
        assert_ended(stream);
    }
    assert_eq!(raw.children("/").unwrap(), ["zookeeper"]);
}

#[test]
fn a_server_that_is_dropped_has_closed_its_connections_and_its_port() {
    let server = Server::start().unwrap();
    let address = server.address();
    let stream = session(&server);
    drop(server);
    // The thread owns the listener: it has ended.
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_ended(stream);
    TcpListener::bind(address).unwrap();
}

fn ask(server: &Server, word: &[u8]) -> Vec<u8> {
    let mut stream = connect(server);
    stream.write_all(word).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

/// A connection that has been greeted.
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
    stream.set_read_timeout(Some(SOON)).unwrap();
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

/// The server has hung up, in whatever way.
#[track_caller]
fn assert_ended(mut stream: TcpStream) {
    let ended = stream.read(&mut [0; 64]);
    assert!(
        matches!(&ended, Ok(0)) || ended.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset),
        "{ended:?}"
    );
}
