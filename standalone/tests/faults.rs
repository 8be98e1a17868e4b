//! Tests of the faults of the standalone server, with zklock's own client.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failing test may panic")]

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use zklock::{Client, ClientState, Config, Event, LockState, Owner, Status};
use zklock_proto::OpCode;
use zklock_standalone::{Server, Settings, Target};
use zklock_test_support::{RawClient, wait_until};

const MS: Duration = Duration::from_millis(1);
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const PATH: &str = "/locks/a";

#[test]
fn expire_reports_lost_to_the_holder_and_grants_the_next_waiter() {
    let server = Server::start().unwrap();
    let (holder, events) = client_with_events(&server);
    let other = client(&server, 10_000 * MS);
    let (held, wanted) = (holder.mutex(PATH).unwrap(), other.mutex(PATH).unwrap());
    held.acquire(None).unwrap();
    let (session, token) = (holder.session_id().unwrap(), held.fencing_token().unwrap());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| wanted.acquire(Some(TEST_TIMEOUT)).map(|()| wanted.fencing_token().unwrap()));
        wait_until(TEST_TIMEOUT, || held.participants().unwrap().len() == 2);
        server.expire(Target::Session(session)).unwrap();
        assert!(waiting.join().unwrap().unwrap() > token);
    });
    wait_until(TEST_TIMEOUT, || held.state().unwrap() == LockState::Lost);
    assert!(!held.is_held().unwrap());
    assert_eq!(held.release().unwrap_err().status(), Status::Lost);
    wait_until(TEST_TIMEOUT, || holder.state().unwrap() == ClientState::Connected);
    assert_ne!(holder.session_id().unwrap(), session);
    holder.close().unwrap();
    let lost = |event: &Event| matches!(event, Event::Lock { state: LockState::Lost, .. });
    assert_eq!(events.lock().unwrap().iter().filter(|event| lost(event)).count(), 1);
}

#[test]
fn all_sessions_expire_at_once() {
    let server = Server::start().unwrap();
    let clients = [(); 3].map(|()| client(&server, 10_000 * MS));
    let before: Vec<_> = clients.iter().map(|client| client.session_id().unwrap()).collect();
    assert_eq!(server.sessions().unwrap().iter().map(|session| session.id).collect::<Vec<_>>(), before);
    server.expire(Target::All).unwrap();
    for (client, before) in clients.iter().zip(before) {
        wait_until(TEST_TIMEOUT, || ![0, before].contains(&client.session_id().unwrap()));
    }
}

#[test]
fn a_cut_costs_nothing_but_a_connection() {
    let server = Server::start().unwrap();
    let ((one, one_saw), (two, two_saw)) = (client_with_events(&server), client_with_events(&server));
    let (held, other) = (one.mutex(PATH).unwrap(), two.mutex("/locks/b").unwrap());
    held.acquire(None).unwrap();
    other.acquire(None).unwrap();
    let (session, token) = (one.session_id().unwrap(), held.fencing_token().unwrap());
    server.cut(Target::Session(session)).unwrap();
    wait_until(TEST_TIMEOUT, || interruptions(&one_saw) == 1);
    assert_eq!(interruptions(&two_saw), 0);
    server.cut(Target::All).unwrap();
    wait_until(TEST_TIMEOUT, || interruptions(&one_saw) == 2 && interruptions(&two_saw) == 1);
    assert_eq!((one.session_id().unwrap(), held.fencing_token().unwrap()), (session, token));
    assert!(held.is_held().unwrap() && other.is_held().unwrap());
}

#[test]
fn frozen_client_loses_its_session_while_others_proceed() {
    let server = Server::start().unwrap();
    let (frozen, other) = (client(&server, 3000 * MS), client(&server, 10_000 * MS));
    let (held, wanted) = (frozen.mutex(PATH).unwrap(), other.mutex(PATH).unwrap());
    held.acquire(None).unwrap();
    let session = frozen.session_id().unwrap();
    server.freeze(Target::Session(session)).unwrap();
    let start = Instant::now();
    // The session expires although its client reconnects repeatedly.
    wanted.acquire(Some(TEST_TIMEOUT)).unwrap();
    assert!(start.elapsed() < 10_000 * MS, "{:?}", start.elapsed());
    assert_eq!(held.state().unwrap(), LockState::Uncertain);
    assert!(!server.sessions().unwrap().iter().any(|one| one.id == session));
    server.thaw(Target::Session(session)).unwrap();
    wait_until(TEST_TIMEOUT, || held.state().unwrap() == LockState::Lost);
    assert_eq!(held.release().unwrap_err().status(), Status::Lost);
    assert_eq!(wanted.state().unwrap(), LockState::Held);
}

#[test]
fn each_client_can_be_thawed_after_a_freeze_of_all_even_if_its_session_has_expired() {
    let server = Server::start().unwrap();
    let (one, two) = (client(&server, 500 * MS), client(&server, 500 * MS));
    let [first, second] = [&one, &two].map(|client| client.session_id().unwrap());
    server.freeze(Target::All).unwrap();
    wait_until(TEST_TIMEOUT, || server.sessions().unwrap().is_empty());
    server.thaw(Target::Session(first)).unwrap();
    // The client learns that its session has expired. As a new client, it is frozen again.
    wait_until(TEST_TIMEOUT, || one.session_id().unwrap() == 0);
    assert!(server.sessions().unwrap().is_empty());
    server.thaw(Target::All).unwrap();
    for (client, before) in [(&one, first), (&two, second)] {
        wait_until(TEST_TIMEOUT, || ![0, before].contains(&client.session_id().unwrap()));
    }
}

#[test]
fn a_thaw_in_time_keeps_everything() {
    let server = Server::start().unwrap();
    let client = client(&server, 6000 * MS);
    let lock = client.mutex(PATH).unwrap();
    lock.acquire(None).unwrap();
    server.freeze(Target::All).unwrap();
    wait_until(TEST_TIMEOUT, || lock.state().unwrap() == LockState::Suspended);
    server.thaw(Target::All).unwrap();
    wait_until(TEST_TIMEOUT, || lock.state().unwrap() == LockState::Held);
    lock.release().unwrap();
}

#[test]
fn connect_fails_while_all_are_frozen() {
    let server = Server::start().unwrap();
    server.freeze(Target::All).unwrap();
    let config = Config::new().connect_timeout(300 * MS);
    let refused = Client::connect(&server.address().to_string(), &config).err().unwrap();
    assert_eq!(refused.status(), Status::Connection);
    server.thaw(Target::All).unwrap();
    client(&server, 10_000 * MS);
}

#[test]
fn a_delay_is_felt_by_its_client_alone() {
    let server = Server::start().unwrap();
    let delay = 2000 * MS;
    // The client gives up a connection that is silent for a third of the session timeout.
    let (slow, quick) = (client(&server, 20_000 * MS), client(&server, 10_000 * MS));
    let took = |client: &Client, path| {
        let lock = client.mutex(path).unwrap();
        let start = Instant::now();
        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
        lock.release().unwrap();
        start.elapsed()
    };
    // This first round creates the directories.
    took(&slow, PATH);
    took(&quick, "/locks/b");
    server.delay(Target::Session(slow.session_id().unwrap()), delay).unwrap();
    let slow_took = took(&slow, PATH);
    assert!(slow_took >= 2 * delay, "an answer to the acquire, one to the release: {slow_took:?}");
    assert!(took(&quick, "/locks/b") < delay);
    server.delay(Target::All, Duration::ZERO).unwrap();
    assert!(took(&slow, PATH) < delay);
}

#[test]
fn end_of_a_delay_sends_what_it_has_held_back() {
    let server = Server::start().unwrap();
    let client = client(&server, 100_000 * MS);
    let session = Target::Session(client.session_id().unwrap());
    let lock = client.mutex(PATH).unwrap();
    server.delay(session, 2 * TEST_TIMEOUT).unwrap();
    let acquiring = lock.start_acquire(Owner::task(1), Some(TEST_TIMEOUT)).unwrap();
    assert!(acquiring.wait_for(300 * MS).is_none());
    server.delay(session, Duration::ZERO).unwrap();
    acquiring.wait().unwrap().leave_to_owner();
}

#[test]
fn lost_reply_leaves_no_orphaned_node() {
    let requests = [OpCode::Create2, OpCode::GetChildren2, OpCode::Delete];
    for op in requests {
        check_lost_reply(op, true);
    }
    for op in requests.into_iter().chain([OpCode::CreateContainer]) {
        check_lost_reply(op, false);
    }
}

/// Loses one reply while a client acquires, holds or releases a lock. If `there` is true, the directory of the lock
/// already exists.
fn check_lost_reply(op: OpCode, there: bool) {
    let server = Server::start().unwrap();
    let mut raw = RawClient::connect(&server.address().to_string(), 30_000);
    let (client, saw) = client_with_events(&server);
    let lock = client.mutex(PATH).unwrap();
    if there {
        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
        lock.release().unwrap();
    }
    server.lose_reply(Target::Session(client.session_id().unwrap()), op).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    let nodes = raw.children(PATH).unwrap();
    assert_eq!(nodes.len(), 1, "{op:?}: {nodes:?}");
    let node = raw.stat(&format!("{PATH}/{}", nodes[0])).unwrap();
    assert_eq!(node.czxid, lock.fencing_token().unwrap(), "{op:?}");
    lock.release().unwrap();
    assert_eq!(raw.children(PATH).unwrap(), Vec::<String>::new(), "{op:?}");
    // The client delivers its events before it is closed.
    client.close().unwrap();
    let lost = |event: &&Event| matches!(event, Event::Client { state: ClientState::Suspended, .. });
    assert_eq!(saw.lock().unwrap().iter().filter(lost).count(), 1, "{op:?}: the fault happened");
}

#[test]
fn halted_server_refuses_and_restarted_server_keeps_sessions_and_nodes() {
    let server = Server::start().unwrap();
    let (client, saw) = client_with_events(&server);
    let lock = client.mutex(PATH).unwrap();
    lock.acquire(None).unwrap();
    let token = lock.fencing_token().unwrap();
    server.halt().unwrap();
    wait_until(TEST_TIMEOUT, || lock.state().unwrap() == LockState::Suspended);
    let config = Config::new().connect_timeout(300 * MS);
    assert!(Client::connect(&server.address().to_string(), &config).is_err());
    assert!(lock.is_held().unwrap());
    server.restart().unwrap();
    wait_until(TEST_TIMEOUT, || interruptions(&saw) == 1);
    // A restart also works if the server was not halted before.
    server.restart().unwrap();
    wait_until(TEST_TIMEOUT, || interruptions(&saw) == 2);
    assert_eq!(lock.fencing_token().unwrap(), token);
    lock.release().unwrap();
}

#[test]
fn no_session_expires_while_the_server_is_halted() {
    let server = Server::start().unwrap();
    let raw = RawClient::connect(&server.address().to_string(), 2000);
    server.halt().unwrap();
    thread::sleep(2500 * MS);
    assert_eq!(server.sessions().unwrap().len(), 1);
    server.restart().unwrap();
    RawClient::attach(&server.address().to_string(), 2000, raw.session_id(), raw.password()).unwrap();
}

#[test]
fn fault_for_unknown_session_returns_invalid() {
    let server = Server::start().unwrap();
    let nobody = Target::Session(0x77);
    let results = [
        server.expire(nobody),
        server.cut(nobody),
        server.freeze(nobody),
        server.thaw(nobody),
        server.delay(nobody, 10 * MS),
        server.lose_reply(nobody, OpCode::Create2),
    ];
    for result in results {
        let error = result.unwrap_err();
        assert_eq!((error.status(), error.message()), (Status::Invalid, "the server has no session 0x77"));
    }
    // A session that had faults is unknown after its end.
    let former = client(&server, 10_000 * MS);
    let session = Target::Session(former.session_id().unwrap());
    server.delay(session, 10 * MS).unwrap();
    server.freeze(session).unwrap();
    server.thaw(session).unwrap();
    server.delay(session, Duration::ZERO).unwrap();
    former.close().unwrap();
    wait_until(TEST_TIMEOUT, || server.cut(session).is_err());
    assert_eq!(server.freeze(session).unwrap_err().status(), Status::Invalid);
    server.stop().unwrap();
    server.stop().unwrap();
    assert_eq!(server.cut(Target::All).unwrap_err().status(), Status::Closed);
    assert_eq!(server.sessions().unwrap_err().status(), Status::Closed);
}

#[test]
fn an_address_that_cannot_be_had_is_an_error() {
    let server = Server::start().unwrap();
    let taken = Server::bind(server.address(), Settings::default()).unwrap_err();
    assert_eq!(taken.status(), Status::Server);
    assert!(taken.message().starts_with(&format!("cannot listen on {}: ", server.address())), "{taken}");
    // A halted server keeps its address: no socket without SO_REUSEADDR can bind to it.
    server.halt().unwrap();
    let other = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    assert_eq!(other.bind(&server.address().into()).unwrap_err().kind(), ErrorKind::AddrInUse);
    server.restart().unwrap();
    for nonsense in ["", "127.0.0.1", "127.0.0.1:x", "no-such-host.invalid:0"] {
        assert_eq!(Server::bind(nonsense, Settings::default()).unwrap_err().status(), Status::Invalid, "{nonsense}");
    }
}

fn client(server: &Server, session_timeout: Duration) -> Client {
    let config = Config::new().session_timeout(session_timeout);
    Client::connect(&server.address().to_string(), &config).unwrap()
}

type Events = Arc<Mutex<Vec<Event>>>;

fn client_with_events(server: &Server) -> (Client, Events) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&events);
    let config = Config::new().on_event(move |event| recorded.lock().unwrap().push(event.clone()));
    (Client::connect(&server.address().to_string(), &config).unwrap(), events)
}

/// Counts how often a hold changed from SUSPENDED back to HELD.
fn interruptions(events: &Events) -> usize {
    let again =
        |event: &&Event| matches!(event, Event::Lock { previous: LockState::Suspended, state: LockState::Held, .. });
    events.lock().unwrap().iter().filter(again).count()
}
