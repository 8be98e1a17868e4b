//! Tests of a session whose server only records requests.

use zklock_proto::{Acl, ConnectRequest, ConnectResponse, CreateMode, MultiResult, Stat, WatchEvent, XID_AUTH};

use super::*;
use crate::limits::Limits;
use crate::log_record::{Level, LogRecord};
use crate::mutant::Mutant;

/// The fixed time that all tests use.
const NOW: Time = Time::from_nanos(1_000_000_000_000);

fn server(host: &str) -> Server {
    Server { host: host.to_owned(), port: 1 }
}

/// Returns the data of a node with the configuration of these servers.
fn config_node(version: u32, hosts: &[&str]) -> String {
    let lines: Vec<String> = hosts.iter().map(|host| format!("server.1={host}:2:3:participant;0.0.0.0:1\n")).collect();
    format!("{}version={version:x}", lines.concat())
}

struct Peer {
    session: Session<u32>,
    /// The requests without an answer on this connection, each with its xid and its size in bytes.
    read: Vec<(i32, Request, usize)>,
    events: Vec<Event<u32>>,
    now: Time,
}

impl Peer {
    fn new() -> Self {
        let config = SessionConfig {
            timeout: Duration::from_secs(12),
            lease_margin: None,
            follow_config: None,
            frame_limit: 1 << 20,
            limits: Limits { watch_batch: 16, least_watch_batch: 4, ..Limits::default() },
        };
        Self::with(config)
    }

    /// Connects a session that follows the configuration of the ensemble, and answers the request that reads it.
    fn following(data: &str) -> Self {
        let config = SessionConfig { follow_config: Some(ClientPorts::Plain), ..Self::new().session.config.clone() };
        let mut peer = Self::with(config);
        peer.answer_config(Ok(data));
        peer
    }

    fn with(config: SessionConfig) -> Self {
        let mut peer = Self {
            session: Session::new(vec![server("s")], config, NOW, Box::new(|| 0)),
            read: Vec::new(),
            events: Vec::new(),
            now: NOW,
        };
        peer.connect(1);
        peer
    }

    /// Connects the session to a server that has processed `zxid`.
    fn connect(&mut self, zxid: i64) {
        while self.session.poll_command().is_none() {
            let at = self.session.next_timeout().unwrap();
            self.session.advance(at);
        }
        assert!(self.hello().last_zxid_seen <= zxid, "the server would refuse the session");
        self.welcome(5);
    }

    /// Waits for the next attempt to connect, and returns what the session tells the server.
    fn next_hello(&mut self) -> ConnectRequest {
        loop {
            match self.session.poll_command() {
                Some(Command::Connect(_)) => return self.hello(),
                Some(_) => {}
                None => {
                    self.now = self.now.max(self.session.next_timeout().unwrap());
                    self.session.advance(self.now);
                }
            }
        }
    }

    fn hello(&mut self) -> ConnectRequest {
        self.session.on_connection_event(self.now, ConnectionEvent::Connected("local"));
        let mut frames = Frames::new(1 << 20);
        frames.push(&std::mem::take(self.session.output()));
        ConnectRequest::decode(&frames.next().unwrap().unwrap()).unwrap()
    }

    /// Answers the handshake. The id 0 reports that the session has expired.
    fn welcome(&mut self, session_id: i64) {
        let mut welcome = Vec::new();
        let (protocol_version, timeout_ms) = (0, if session_id == 0 { 0 } else { 12_000 });
        ConnectResponse { protocol_version, timeout_ms, session_id, password: vec![0; 16], read_only: false }
            .encode(&mut welcome);
        self.read.clear();
        let _ = self.session.received(self.now, &welcome);
    }

    /// Returns the types of the requests without an answer on this connection.
    fn sent(&mut self) -> Vec<OpCode> {
        let mut frames = Frames::new(1 << 20);
        frames.push(&std::mem::take(self.session.output()));
        while let Some(frame) = frames.next().unwrap() {
            let (xid, request) = Request::decode(&frame).unwrap();
            self.read.push((xid, request, frame.len()));
        }
        self.read.iter().map(|(_, request, _)| request.op()).collect()
    }

    /// Answers the first request that has no answer yet.
    fn answer(&mut self, zxid: i64) -> Request {
        let _ = self.sent();
        let (xid, request, _) = self.read.remove(0);
        let mut bytes = Vec::new();
        let response = match &request {
            Request::GetData { .. } => Response::Data { data: None, stat: Stat::default() },
            Request::Create2 { path, .. } => Response::Create2 { path: path.clone(), stat: Stat::default() },
            Request::Multi(_) => Response::Multi(vec![MultiResult::Ok(Response::Checked)]),
            _ => Response::Empty,
        };
        response.encode(xid, zxid, &mut bytes).unwrap();
        assert!(self.session.received(self.now, &bytes).is_continue());
        request
    }

    /// Answers the request that reads the configuration.
    fn answer_config(&mut self, data: Result<&str, Code>) {
        assert_eq!(self.sent(), [OpCode::GetData]);
        self.answer_config_first(data);
    }

    /// Answers the first request without an answer, which reads the configuration.
    fn answer_config_first(&mut self, data: Result<&str, Code>) {
        let (xid, request, _) = self.read.remove(0);
        assert_eq!(request, Request::GetData { path: "/zookeeper/config".to_owned(), watch: true });
        let mut bytes = Vec::new();
        match data {
            Ok(data) => {
                let data = Some(data.as_bytes().to_vec());
                Response::Data { data, stat: Stat::default() }.encode(xid, 1, &mut bytes).unwrap();
            }
            Err(code) => zklock_proto::encode_error(xid, 1, code, &mut bytes),
        }
        let _ = self.session.received(self.now, &bytes);
    }

    /// Reports a change of the configuration.
    fn change_config(&mut self) {
        let mut bytes = Vec::new();
        WatchEvent { kind: EventKind::DataChanged, state: 3, path: "/zookeeper/config".to_owned() }
            .encode(-1, &mut bytes);
        assert!(self.session.received(self.now, &bytes).is_continue());
    }

    /// Returns the servers of the next connection attempts, each of which fails.
    fn attempts(&mut self, count: usize) -> Vec<String> {
        self.fail_attempts(count, ConnectionEvent::Disconnected("refused"))
    }

    /// Returns the sorted servers of the next connection attempts, each of which fails because of a certificate.
    fn refusals(&mut self, count: usize) -> Vec<String> {
        let mut hosts = self.fail_attempts(count, ConnectionEvent::CertificateRefused("unknown issuer"));
        hosts.sort();
        hosts
    }

    fn fail_attempts(&mut self, count: usize, failure: ConnectionEvent<'_>) -> Vec<String> {
        let mut hosts = Vec::new();
        while hosts.len() < count {
            let at = self.session.next_timeout().unwrap();
            self.session.advance(at);
            while let Some(command) = self.session.poll_command() {
                if let Command::Connect(server) = command {
                    hosts.push(server.host);
                    self.session.on_connection_event(at, failure);
                }
            }
        }
        hosts
    }

    fn log(&mut self) -> Vec<LogRecord> {
        self.session.log_buffer().take().into()
    }

    fn create(&mut self, size: usize, tag: u32) {
        let (path, data, acl) = ("/a".to_owned(), Some(vec![0; size]), Acl::open());
        self.session.submit(self.now, &Request::Create2 { path, data, acl, mode: CreateMode::Ephemeral }, tag);
    }

    fn get_data(&mut self, tag: u32) {
        self.session.submit(self.now, &Request::GetData { path: "/a".to_owned(), watch: false }, tag);
    }

    /// Returns the replies since the last call, each with its tag.
    fn answers(&mut self) -> Vec<(u32, Option<Failure>)> {
        self.events.extend(std::iter::from_fn(|| self.session.poll_event()));
        let answer = |event| match event {
            Event::Reply { tag, result, .. } => Some((tag, result.err())),
            _ => None,
        };
        std::mem::take(&mut self.events).into_iter().filter_map(answer).collect()
    }

    fn close(&mut self) {
        self.session.on_connection_event(self.now, ConnectionEvent::Disconnected("closed"));
    }
}

#[test]
fn watches_are_restored_from_the_same_zxid_until_all_are() {
    let mut peer = Peer::new();
    for path in ["/watched-1", "/watched-2", "/watched-3"] {
        peer.session.watch_data(NOW, path, Subscriber::Machine(MachineId(1)), 0);
        let _ = peer.answer(100);
    }
    let restored_from = |request| match request {
        Request::SetWatches { relative_zxid, .. } => relative_zxid,
        other => panic!("{other:?}"),
    };
    peer.close();
    peer.connect(200);
    assert_eq!(peer.sent(), [OpCode::SetWatches; 3]);
    assert_eq!(restored_from(peer.answer(200)), 100);
    // The session has seen zxid 200, so the next server must have reached zxid 200. The session has restored its
    // watches only up to zxid 100.
    peer.close();
    peer.connect(200);
    assert_eq!([200, 201, 202].map(|zxid| restored_from(peer.answer(zxid))), [100; 3]);
    peer.close();
    peer.connect(300);
    assert_eq!(restored_from(peer.answer(300)), 202);
}

/// Servers without a quorum, servers that start and load balancers close the connection during the handshake, as do
/// servers that were set up again with an empty state. Only an answer ends the session.
#[test]
fn a_session_survives_closed_handshakes_until_a_server_reports_its_end() {
    let mut peer = Peer::new();
    peer.session.watch_data(NOW, "/watched", Subscriber::Machine(MachineId(1)), 0);
    let _ = peer.answer(100);
    peer.close();
    let closed_for = |peer: &mut Peer, timeouts: u32| {
        let (since, mut offers) = (peer.now, Vec::new());
        while peer.now < since + peer.session.timeout * timeouts {
            offers.push(peer.next_hello().last_zxid_seen);
            peer.close();
        }
        offers
    };
    let has_ended = |peer: &mut Peer| {
        peer.events.extend(std::iter::from_fn(|| peer.session.poll_event()));
        peer.events.iter().any(|event| matches!(event, Event::SessionEnded { .. }))
    };
    let mut offers = closed_for(&mut peer, 1);
    offers.pop();
    assert!(offers.iter().all(|&zxid| zxid == 100), "the session cannot have expired yet: {offers:?}");
    // Every second handshake names no zxid, so that also servers without data answer.
    let offers = closed_for(&mut peer, 10);
    assert!(offers.windows(2).all(|pair| pair.contains(&100) && pair.contains(&0)), "{offers:?}");
    while peer.next_hello().last_zxid_seen != 0 {
        peer.close();
    }
    peer.welcome(5);
    assert_eq!(peer.next_hello().last_zxid_seen, 100, "the server may lag behind what the session has seen");
    assert!(!has_ended(&mut peer));
    peer.welcome(5);
    assert_eq!((peer.session.id(), peer.session.is_connected()), (5, true));
    peer.close();
    closed_for(&mut peer, 4);
    while peer.next_hello().last_zxid_seen != 0 {
        peer.close();
    }
    peer.welcome(0);
    assert!(has_ended(&mut peer));
    assert_eq!(peer.next_hello().session_id, 0);
}

/// A server can resume a session without a quorum, so the answer proves nothing to the leader.
#[test]
fn resumed_session_keeps_the_end_of_its_lease() {
    let mut peer = Peer::new();
    let lease_end = |peer: &Peer| peer.session.active.as_ref().unwrap().lease.end();
    let before = lease_end(&peer);
    peer.close();
    peer.now = NOW + Duration::from_secs(3);
    peer.connect(1);
    assert_eq!(lease_end(&peer), before);
}

/// A program may ask for the length while the client has lost its session and has no new one yet.
#[test]
fn lease_has_a_length_without_a_session() {
    let mut peer = Peer::new();
    let length = peer.session.active.as_ref().unwrap().lease.length();
    assert_eq!(peer.session.lease_length(), length);
    peer.session.active = None;
    assert_eq!(peer.session.lease_length(), length);
}

#[test]
fn deliberate_bugs_are_found() {
    Mutant::AdvanceWhileRestoring.assert_found_by(watches_are_restored_from_the_same_zxid_until_all_are);
    Mutant::ResumeProves.assert_found_by(resumed_session_keeps_the_end_of_its_lease);
}

#[test]
fn request_that_loses_three_connections_fails_as_too_large_and_others_continue() {
    let mut peer = Peer::new();
    peer.get_data(1);
    peer.create(100_000, 2);
    peer.get_data(3);
    assert_eq!(peer.sent(), [OpCode::GetData, OpCode::Create2, OpCode::GetData]);
    peer.close();
    assert_eq!(peer.answers(), [1, 2, 3].map(|tag| (tag, Some(Failure::ConnectionLost))));
    for is_last in [false, true] {
        peer.connect(1);
        peer.get_data(1);
        peer.create(100_000, 2);
        peer.get_data(3);
        // The request waits until the earlier requests are answered, and then until a transaction is answered.
        assert_eq!(peer.sent(), [OpCode::GetData]);
        let _ = peer.answer(1);
        assert_eq!(peer.sent(), [OpCode::Multi]);
        let _ = peer.answer(1);
        assert_eq!(peer.sent(), [OpCode::Create2]);
        peer.close();
        let (refused, size) = (peer.answers(), 100_000..101_000);
        assert_eq!((refused[0], refused[2]), ((1, None), (3, Some(Failure::ConnectionLost))));
        match refused[1] {
            (2, Some(Failure::TooLarge(why))) => assert!(is_last && size.contains(&why.size) && why.losses == 3),
            other => assert_eq!((other, is_last), ((2, Some(Failure::ConnectionLost)), false)),
        }
    }
    peer.connect(1);
    peer.create(100_000, 4);
    peer.create(10_000, 5);
    assert_eq!(peer.sent(), [OpCode::Create2], "only the smaller request is sent");
    let _ = peer.answer(1);
    assert!(matches!(peer.answers()[..], [(4, Some(Failure::TooLarge(_))), (5, None)]));
}

#[test]
fn lists_may_be_longer_than_other_answers_and_a_longer_answer_fails_its_request_alone() {
    let limit = 1 << 20;
    let list = |count: usize, length: usize| Response::Children2 {
        children: vec!["n".repeat(length); count],
        stat: Stat::default(),
    };
    let data = |bytes| Response::Data { data: Some(vec![0; bytes]), stat: Stat::default() };
    for (answer, problem) in [
        (list(100_000, 63), None),
        (list(10, limit), Some("the list of 10 nodes has 10485888 bytes; this client accepts at most 8388608 bytes")),
        (list(MAX_CHILDREN + 1, 1), Some("the list has 131073 nodes; this client accepts at most 131072 nodes")),
        (data(limit - 200), None),
        (data(limit), Some("the answer has 1048664 bytes; this client accepts at most 1048576 bytes")),
    ] {
        let mut peer = Peer::new();
        let request = match &answer {
            Response::Data { .. } => Request::GetData { path: "/a".to_owned(), watch: false },
            _ => Request::GetChildren2 { path: "/a".to_owned(), watch: false },
        };
        peer.session.submit(NOW, &request, 1);
        peer.get_data(2);
        let _ = peer.sent();
        let (xid, ..) = peer.read.remove(0);
        let mut bytes = Vec::new();
        answer.encode(xid, 1, &mut bytes).unwrap();
        for chunk in bytes.chunks(100_000) {
            assert!(peer.session.received(NOW, chunk).is_continue());
        }
        let _ = peer.answer(2);
        match (&peer.answers()[..], problem) {
            ([(1, None), (2, None)], None) => {}
            ([(1, Some(failure)), (2, None)], Some(problem)) => {
                let error = failure.to_error("listing /a");
                assert_eq!((error.status(), error.message()), (Status::Exhausted, &*format!("listing /a: {problem}")));
            }
            (answers, _) => panic!("{answers:?}"),
        }
    }
}

/// However rarely a program repeats a request that is too large, the request costs three connections in total.
#[test]
fn request_that_is_too_large_is_refused_even_if_it_is_rarely_repeated() {
    let mut peer = Peer::new();
    let mut losses = 0;
    let error = loop {
        peer.create(100_000, 1);
        while peer.sent() != [OpCode::Create2] {
            let _ = peer.answer(1);
        }
        peer.close();
        losses += 1;
        match peer.answers()[..] {
            [(1, Some(Failure::TooLarge(error)))] => break error,
            _ => assert!(losses < 3, "the request is never refused"),
        }
        peer.connect(1);
        peer.now = peer.now + Duration::from_secs(62);
    };
    assert_eq!((losses, error.losses), (3, 3));
    assert!((1..1_000).contains(&error.accepted), "the transaction before the request was answered: {error}");
    // An operator has raised the limit of the servers. The program sets the same servers again.
    peer.connect(1);
    peer.session.set_servers(peer.now, vec![server("s")]);
    peer.create(100_000, 2);
    assert_eq!(peer.sent(), [OpCode::Create2]);
    let _ = peer.answer(1);
    assert_eq!(peer.answers(), [(2, None)]);
}

/// A large request follows the requests that restore watches, and the server answers none of these requests. The
/// session must still find out that the large request may be too large.
#[test]
fn a_large_request_behind_restored_watches_is_found() {
    let mut peer = Peer::new();
    peer.session.watch_data(NOW, "/watched", Subscriber::Machine(MachineId(1)), 0);
    let _ = peer.answer(1);
    for _ in 0..2 {
        peer.close();
        peer.connect(1);
        peer.create(100_000, 2);
    }
    assert_eq!(peer.sent(), [OpCode::SetWatches], "the larger request waits");
}

#[test]
fn deferred_requests_are_sent_in_order() {
    let mut peer = Peer::new();
    peer.create(5_000, 1);
    peer.close();
    peer.connect(1);
    peer.create(5_000, 1);
    peer.create(6_000, 2);
    peer.get_data(3);
    let mut answered = Vec::new();
    while !peer.sent().is_empty() {
        answered.push(peer.answer(1).op());
    }
    use OpCode::{Create2, GetData, Multi};
    assert_eq!(answered, [Multi, Create2, Multi, Create2, GetData]);
    assert_eq!(peer.answers()[1..], [(1, None), (2, None), (3, None)]);
    peer.create(6_000, 4);
    assert_eq!(peer.sent(), [Create2], "the servers accept this size");
}

#[test]
fn close_fails_deferred_requests_and_is_sent_at_once() {
    let mut peer = Peer::new();
    peer.create(5_000, 1);
    peer.close();
    peer.connect(1);
    peer.create(5_000, 1);
    peer.get_data(2);
    peer.session.close(NOW, NOW + Duration::from_secs(1));
    assert_eq!(peer.sent(), [OpCode::Multi, OpCode::CloseSession]);
    assert_eq!(peer.answers()[1..], [1, 2].map(|tag| (tag, Some(Failure::ConnectionLost))));
}

#[test]
fn answer_releases_all_deferred_requests_of_its_size() {
    let mut peer = Peer::new();
    (1..6).for_each(|tag| peer.create(5_000, tag));
    peer.close();
    peer.connect(1);
    (1..6).for_each(|tag| peer.create(5_000, tag));
    let probe = peer.answer(1);
    assert_eq!(probe.op(), OpCode::Multi);
    assert_eq!(peer.sent(), [OpCode::Create2]);
    let _ = peer.answer(1);
    assert_eq!(peer.sent(), [OpCode::Create2; 4], "the requests are sent together");
}

#[test]
fn a_connection_ends_the_shortage_of_descriptors() {
    let mut peer = Peer::new();
    peer.close();
    while peer.session.poll_command().is_none() {
        let at = peer.session.next_timeout().unwrap();
        peer.session.advance(at);
    }
    peer.session.on_connection_event(NOW, ConnectionEvent::OutOfResources("no descriptor"));
    assert!(peer.session.is_out_of_resources());
    peer.connect(1);
    assert!(!peer.session.is_out_of_resources());
}

#[test]
fn session_leaves_a_removed_server_after_the_last_answer() {
    let mut peer = Peer::new();
    let _ = peer.session.poll_command();
    peer.session.set_lease_demand(LeaseDemand::Holding);
    peer.get_data(1);
    peer.session.set_servers(NOW, vec![server("a"), server("b")]);
    assert_eq!(peer.sent(), [OpCode::GetData, OpCode::Multi], "the session extends its lease before it leaves");
    let _ = peer.answer(1);
    assert_eq!(peer.session.poll_command(), None, "a request has no answer yet");
    let (xid, ..) = peer.read.remove(0);
    let mut bytes = Vec::new();
    Response::Multi(vec![MultiResult::Ok(Response::Checked)]).encode(xid, 1, &mut bytes).unwrap();
    assert!(peer.session.received(NOW, &bytes).is_break());
    assert_eq!(peer.session.poll_command(), Some(Command::Disconnect));
    assert_eq!(peer.answers(), [(1, None)]);
    assert_eq!(peer.session.state(), ClientState::Suspended);
    assert_eq!(peer.session.next_timeout(), Some(NOW), "without a pause");
    let mut tried = peer.attempts(2);
    tried.sort();
    assert_eq!(tried, ["a", "b"]);
}

#[test]
fn list_that_contains_the_server_again_ends_the_plan_to_leave() {
    let mut peer = Peer::new();
    peer.get_data(1);
    peer.session.set_servers(NOW, vec![server("a")]);
    peer.session.set_servers(NOW, vec![server("a"), server("s")]);
    let _ = peer.answer(1);
    peer.session.advance(NOW + Duration::from_secs(2));
    assert_eq!(peer.session.state(), ClientState::Connected);
    let mut peer = Peer::following(&config_node(1, &["s"]));
    peer.get_data(1);
    for (version, host, is_leaving) in [(2, "a", true), (3, "b", true), (4, "s", false)] {
        peer.change_config();
        // The session does not leave, because this request has no answer.
        peer.get_data(version);
        let _ = peer.answer(1);
        peer.answer_config_first(Ok(&config_node(version, &[host])));
        assert_eq!(peer.session.departure.is_some(), is_leaving, "{host}");
    }
}

#[test]
fn session_leaves_a_silent_server_after_a_sixth_of_the_session_timeout() {
    let mut peer = Peer::new();
    peer.get_data(1);
    peer.session.set_servers(NOW, vec![server("a")]);
    let by = NOW + Duration::from_secs(2);
    assert_eq!(peer.session.next_timeout(), Some(by));
    peer.session.advance(by);
    assert_eq!(peer.session.state(), ClientState::Suspended);
    assert_eq!(peer.answers(), [(1, Some(Failure::ConnectionLost))]);
}

#[test]
fn session_stays_at_a_server_that_the_new_list_contains() {
    let mut peer = Peer::new();
    for list in [vec![server("a"), server("s")], vec![server("b"), server("s"), server("c")], vec![server("s")]] {
        // With the random number 0, the session stays if the list has grown.
        peer.session.set_servers(NOW, list);
        assert_eq!(peer.session.state(), ClientState::Connected);
    }
    peer.session.log_buffer().set_max_level(Some(Level::Info));
    peer.session.set_servers(NOW, vec![server("s"), server("s")]);
    assert_eq!(peer.log(), [], "the servers are the same");
}

#[test]
fn session_that_spreads_the_load_returns_if_the_added_server_does_not_answer() {
    let mut peer = Peer::new();
    let _ = peer.session.poll_command();
    peer.session.entropy = Box::new(|| u128::MAX);
    peer.session.set_servers(NOW, vec![server("s"), server("a"), server("b"), server("c")]);
    let mut at = NOW;
    let mut tried = Vec::new();
    while tried.len() < 2 {
        at = at.max(peer.session.next_timeout().unwrap());
        peer.session.advance(at);
        while let Some(command) = peer.session.poll_command() {
            if let Command::Connect(server) = command {
                tried.push(server.host);
                peer.session.on_connection_event(at, ConnectionEvent::Connected("local"));
            }
        }
    }
    assert!(tried[0] != "s" && tried[1] == "s", "{tried:?}");
    // A ninth of the session timeout is the limit for each step of an attempt.
    assert!(at - NOW < Duration::from_secs(2), "{:?}", at - NOW);
}

#[test]
fn silent_added_server_delays_the_return_for_a_ninth_of_the_session_timeout_in_each_handshake() {
    for is_encrypted in [true, false] {
        let mut peer = Peer::new();
        let _ = peer.session.poll_command();
        peer.session.timeout = Duration::from_secs(3);
        peer.session.entropy = Box::new(|| u128::MAX);
        peer.session.set_servers(NOW, vec![server("s"), server("a"), server("b"), server("c")]);
        peer.session.advance(NOW);
        assert_eq!(peer.session.poll_command(), Some(Command::Disconnect));
        assert!(matches!(peer.session.poll_command(), Some(Command::Connect(added)) if added != server("s")));
        if is_encrypted {
            peer.session.on_connection_event(NOW, ConnectionEvent::Securing);
        } else {
            peer.session.on_connection_event(NOW, ConnectionEvent::Connected("local"));
        }
        let limit = peer.session.next_timeout().unwrap() - NOW;
        assert!(limit <= Duration::from_secs(3) / 9, "{limit:?}");
    }
}

/// Returns a session that has requested the inputs of the next attempt, because the program has removed its server.
fn loading_peer() -> Peer {
    let mut peer = Peer::new();
    let _ = peer.session.poll_command();
    peer.session.require_loading();
    peer.session.set_lease_demand(LeaseDemand::Holding);
    peer.session.set_servers(NOW, vec![server("a")]);
    assert_eq!(peer.session.poll_command(), Some(Command::Load));
    peer
}

#[test]
fn session_leaves_its_server_only_after_the_inputs_are_loaded() {
    let mut peer = loading_peer();
    let third = Duration::from_secs(4);
    for round in 0..3 {
        let failed_at = NOW + third * round;
        peer.session.on_connection_event(failed_at, ConnectionEvent::LoadFailed);
        peer.session.advance(failed_at + third / 2);
        assert_eq!(peer.session.poll_command(), None);
        assert!(peer.session.next_timeout().unwrap() <= failed_at + third);
        while !peer.sent().is_empty() {
            let _ = peer.answer(1);
        }
        peer.session.advance(failed_at + third);
        assert_eq!(peer.session.poll_command(), Some(Command::Load));
        // A new list that also omits the server does not request the inputs a second time.
        peer.session.set_servers(failed_at + third, vec![server(&format!("b{round}"))]);
        assert_eq!(peer.session.poll_command(), None);
    }
    let at = NOW + third * 3;
    let _ = peer.sent();
    peer.session.on_connection_event(at, ConnectionEvent::InputsLoaded);
    assert_eq!(peer.sent().last(), Some(&OpCode::Multi), "the session extends its lease before it leaves");
    assert_eq!(peer.session.state(), ClientState::Connected);
    peer.session.advance(at + Duration::from_secs(2));
    assert_eq!(peer.session.poll_command(), Some(Command::Disconnect));
    assert_eq!(peer.attempts(1), ["b2"]);
}

#[test]
fn lost_connection_new_list_and_close_end_the_wait_for_the_inputs() {
    let mut peer = loading_peer();
    peer.close();
    peer.session.on_connection_event(NOW, ConnectionEvent::InputsLoaded);
    assert_eq!(peer.attempts(1), ["a"]);

    let mut peer = loading_peer();
    peer.session.set_servers(NOW, vec![server("a"), server("s")]);
    peer.session.on_connection_event(NOW, ConnectionEvent::InputsLoaded);
    peer.session.advance(NOW + Duration::from_secs(2));
    assert_eq!((peer.session.state(), peer.session.poll_command()), (ClientState::Connected, None));

    let mut peer = loading_peer();
    peer.session.close(NOW, NOW + Duration::from_secs(9));
    peer.session.on_connection_event(NOW, ConnectionEvent::InputsLoaded);
    assert_eq!(peer.sent().last(), Some(&OpCode::CloseSession));
    assert_eq!(peer.session.poll_command(), None);
}

#[test]
fn closing_ends_the_plan_to_leave_the_server() {
    let mut peer = Peer::new();
    peer.get_data(1);
    peer.session.set_servers(NOW, vec![server("a")]);
    peer.session.close(NOW, NOW + Duration::from_secs(9));
    let at = NOW + Duration::from_secs(3);
    peer.session.advance(at);
    assert!(peer.session.next_timeout().unwrap() > at);
}

#[test]
fn new_list_ends_the_attempt_to_connect_and_the_pause() {
    let mut peer = Peer::new();
    peer.close();
    peer.session.set_servers(NOW, vec![server("a")]);
    assert_eq!(peer.session.next_timeout(), Some(NOW));
    peer.session.advance(NOW);
    let commands: Vec<_> = std::iter::from_fn(|| peer.session.poll_command()).collect();
    assert_eq!(commands.last(), Some(&Command::Connect(server("a"))));
    peer.session.set_servers(NOW, vec![server("b")]);
    peer.session.advance(NOW);
    let commands: Vec<_> = std::iter::from_fn(|| peer.session.poll_command()).collect();
    assert_eq!(commands, [Command::Disconnect, Command::Connect(server("b"))]);
}

#[test]
fn new_list_ends_the_failures_of_removed_servers() {
    let mut peer = Peer::new();
    peer.close();
    peer.session.set_servers(NOW, vec![server("a"), server("b")]);
    assert_eq!(peer.refusals(2), ["a", "b"]);
    assert!(peer.session.are_all_certificates_refused());
    peer.session.set_servers(NOW, vec![server("c"), server("d")]);
    assert!(!peer.session.are_all_certificates_refused());
    let refused = peer.refusals(1);
    assert!(!peer.session.are_all_certificates_refused());
    let summary = peer.session.connection_summary();
    assert_eq!(summary, format!("last tried {}:1: unknown issuer", refused[0]), "the summary has no removed server");
    let _ = peer.refusals(1);
    assert!(peer.session.are_all_certificates_refused());
    // One of two servers remains, and its refusal still counts.
    peer.session.set_servers(NOW, vec![server("c")]);
    assert!(peer.session.are_all_certificates_refused());
    peer.session.set_servers(NOW, vec![server("c"), server("e")]);
    assert!(!peer.session.are_all_certificates_refused());
}

#[test]
fn session_follows_the_configuration_and_tries_the_given_servers_last() {
    let mut peer = Peer::following(&config_node(1, &["a", "b"]));
    assert_eq!(
        peer.session.state(),
        ClientState::Connected,
        "the given server may have another name in the configuration"
    );
    peer.close();
    let mut tried = peer.attempts(6);
    tried[..2].sort();
    tried[3..5].sort();
    assert_eq!(tried, ["a", "b", "s", "a", "b", "s"]);
}

#[test]
fn session_leaves_a_server_that_the_next_configuration_omits() {
    let mut peer = Peer::following(&config_node(1, &["s"]));
    peer.session.log_buffer().set_max_level(Some(Level::Info));
    peer.change_config();
    peer.answer_config(Ok(&config_node(2, &["a"])));
    assert_eq!(peer.session.state(), ClientState::Suspended);
    let changed = LogRecord::ServersChanged { before: 1, after: 2, source: "ensemble" };
    let left = LogRecord::ServerLeft { server: "s:1".to_owned(), session: 5 };
    assert_eq!(peer.log(), [changed, left]);
    assert_eq!(peer.attempts(2), ["a", "s"]);
}

#[test]
fn unusable_configuration_changes_nothing_and_is_logged_once() {
    let mut peer = Peer::following(&config_node(1, &["s"]));
    peer.session.log_buffer().set_max_level(Some(Level::Info));
    for (answer, cause) in [
        (Ok(""), "the node is empty"),
        (Err(Code::NO_AUTH), &format!("the server answered {}", Code::NO_AUTH)),
        (Err(Code::NO_NODE), &format!("the server answered {}", Code::NO_NODE)),
    ] {
        let refused = LogRecord::ConfigUnusable { cause: cause.to_owned() };
        for expected in [vec![refused], vec![]] {
            peer.close();
            peer.connect(1);
            let _ = peer.log();
            peer.answer_config(answer);
            assert_eq!(peer.log(), expected);
        }
    }
    assert_eq!(peer.session.state(), ClientState::Connected);
}

#[test]
fn new_list_of_the_program_replaces_the_followed_list() {
    let mut peer = Peer::following(&config_node(7, &["s", "t"]));
    peer.session.set_servers(NOW, vec![server("s"), server("u")]);
    // The session reads the configuration again, even if its version is not newer.
    peer.answer_config(Ok(&config_node(3, &["s", "v"])));
    assert_eq!(peer.session.watch_count(), 1);
    peer.close();
    let mut tried = peer.attempts(3);
    tried[..2].sort();
    assert_eq!(tried, ["s", "v", "u"]);
}

#[test]
fn configuration_that_was_requested_before_a_new_list_is_ignored() {
    let mut peer = Peer::following(&config_node(7, &["s", "t"]));
    peer.change_config();
    assert_eq!(peer.sent(), [OpCode::GetData]);
    peer.session.set_servers(NOW, vec![server("s"), server("u")]);
    assert_eq!(peer.sent(), [OpCode::GetData; 2], "the session reads the configuration again");
    peer.answer_config_first(Ok(&config_node(8, &["v"])));
    assert_eq!(peer.session.state(), ClientState::Connected);
    peer.answer_config(Ok(&config_node(9, &["s", "w"])));
    assert_eq!(peer.session.watch_count(), 1);
    peer.close();
    let mut tried = peer.attempts(3);
    tried[..2].sort();
    assert_eq!(tried, ["s", "w", "u"]);
}

#[test]
fn session_that_leaves_for_a_list_of_the_program_reads_the_configuration_at_the_next_server() {
    let mut peer = Peer::following(&config_node(7, &["s"]));
    peer.get_data(1);
    peer.session.set_servers(NOW, vec![server("a")]);
    peer.change_config();
    assert_eq!(peer.sent(), [OpCode::GetData], "only the request of the owner");
    peer.session.advance(NOW + Duration::from_secs(2));
    assert_eq!(peer.session.state(), ClientState::Suspended);
    while peer.session.poll_command().is_some() {}
    peer.connect(1);
    peer.answer_config(Ok(&config_node(7, &["a"])));
}

fn credentials(data: &str) -> Vec<Credentials> {
    vec![Credentials { scheme: "digest".into(), data: Zeroizing::new(data.as_bytes().to_vec()) }]
}

#[test]
fn credentials_are_sent_once_before_any_other_request() {
    let mut peer = Peer::new();
    peer.session.on_connection_event(NOW, ConnectionEvent::Disconnected("cut"));
    peer.session.set_credentials(credentials("a:b"), None);
    assert!(peer.session.has_credentials());
    peer.connect(1);
    assert!(!peer.session.has_credentials() && !peer.session.is_connected());
    assert_eq!(peer.sent(), [OpCode::Auth]);
    let (xid, request, _) = peer.read.remove(0);
    assert_eq!((xid, request), (XID_AUTH, Request::Auth { scheme: "digest".into(), auth: b"a:b".to_vec() }));
    let mut accepted = Vec::new();
    Response::Empty.encode(XID_AUTH, 0, &mut accepted).unwrap();
    assert!(peer.session.received(NOW, &accepted).is_continue());
    assert!(peer.session.is_connected());
    // The session has no credentials for the next connection.
    peer.session.on_connection_event(NOW, ConnectionEvent::Disconnected("cut"));
    peer.connect(1);
    assert!(peer.session.is_connected() && !peer.sent().contains(&OpCode::Auth));
}

#[test]
fn unsent_credentials_are_kept_for_the_next_attempt() {
    let mut peer = Peer::new();
    peer.session.on_connection_event(NOW, ConnectionEvent::Disconnected("cut"));
    peer.session.set_credentials(credentials("a:b"), None);
    let at = peer.session.next_timeout().unwrap();
    peer.session.advance(at);
    while peer.session.poll_command().is_some() {}
    peer.session.on_connection_event(at, ConnectionEvent::Disconnected("refused"));
    assert!(peer.session.has_credentials());
    peer.connect(1);
    assert_eq!(peer.sent(), [OpCode::Auth]);
}

/// A mechanism of two steps. The client sends `one` and `two`, and the server answers `more` and null.
struct ToyMechanism {
    steps: usize,
}

impl SaslMechanism for ToyMechanism {
    fn first_token(&mut self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(b"one".to_vec())
    }

    fn step(&mut self, token: Option<&[u8]>) -> Result<SaslStep, String> {
        self.steps += 1;
        match (self.steps, token) {
            (1, Some(b"more")) => Ok(SaslStep::Send(Zeroizing::new(b"two".to_vec()))),
            (2, None) => Ok(SaslStep::Done),
            _ => Err(format!("wrong token {token:?}")),
        }
    }

    fn refusal(&self) -> String {
        format!("the server refused step {}", self.steps)
    }
}

impl Peer {
    /// Connects again with the toy mechanism and credentials, and returns the xid of the first token.
    fn connect_with_sasl(&mut self) -> i32 {
        self.session.on_connection_event(NOW, ConnectionEvent::Disconnected("cut"));
        self.session.set_credentials(credentials("a:b"), Some(Box::new(ToyMechanism { steps: 0 })));
        self.connect(1);
        self.token(b"one")
    }

    /// Returns the xid of the only request, which must be this token.
    fn token(&mut self, expected: &[u8]) -> i32 {
        assert_eq!(self.sent(), [OpCode::Sasl]);
        let (xid, request, _) = self.read.remove(0);
        assert_eq!(request, Request::Sasl { token: expected.to_vec() });
        xid
    }

    fn answer_token(&mut self, xid: i32, code: Code, token: Option<&[u8]>) {
        let mut reply = Vec::new();
        if code == Code::OK {
            Response::SaslToken(token.map(<[u8]>::to_vec)).encode(xid, 0, &mut reply).unwrap();
        } else {
            zklock_proto::encode_error(xid, 0, code, &mut reply);
        }
        let _ = self.session.received(self.now, &reply);
    }

    fn has_auth_failed(&mut self) -> bool {
        std::iter::from_fn(|| self.session.poll_event()).any(|event| matches!(event, Event::AuthFailed))
    }
}

#[test]
fn sasl_precedes_credentials_and_all_requests() {
    let mut peer = Peer::new();
    let xid = peer.connect_with_sasl();
    assert!(!peer.session.is_connected());
    peer.answer_token(xid, Code::OK, Some(b"more"));
    let second = peer.token(b"two");
    assert_eq!(second, xid + 1);
    assert!(!peer.session.is_connected());
    peer.answer_token(second, Code::OK, None);
    assert!(!peer.session.is_connected() && !peer.session.has_credentials());
    assert_eq!(peer.sent(), [OpCode::Auth]);
    peer.read.clear();
    peer.answer_token(XID_AUTH, Code::OK, None);
    assert!(peer.session.is_connected());
    // The session has no mechanism for the next connection.
    peer.session.on_connection_event(NOW, ConnectionEvent::Disconnected("cut"));
    peer.connect(1);
    assert!(peer.session.is_connected() && !peer.sent().contains(&OpCode::Sasl));
}

#[test]
fn failed_sasl_is_reported_at_once_and_leaves_no_credentials() {
    for (code, token, cause) in [
        (Code::AUTH_FAILED, None, "the server refused step 0 (AuthFailed (-115))"),
        (
            Code::SESSION_CLOSED_REQUIRE_SASL_AUTH,
            None,
            "the server refused step 0 (SessionClosedRequireSaslAuth (-124))",
        ),
        (Code::UNIMPLEMENTED, None, "the server does not support SASL"),
        (Code::OK, None, "the server does not support SASL"),
        (Code::OK, Some(vec![0; 65_537]), "the server sent a SASL token of 65537 bytes; at most 65536 are allowed"),
        (Code::OK, Some(b"x".to_vec()), "wrong token Some([120])"),
    ] {
        let mut peer = Peer::new();
        let xid = peer.connect_with_sasl();
        peer.answer_token(xid, code, token.as_deref());
        assert_eq!(peer.session.state(), ClientState::Suspended);
        assert!(peer.has_auth_failed(), "{cause}");
        let summary = peer.session.connection_summary();
        assert!(summary.starts_with(&format!("last tried s:1: {cause}")), "{summary}");
        assert!(!peer.session.has_credentials(), "the next connection would use the credentials without SASL");
    }
}

#[test]
fn other_failures_during_sasl_are_failures_of_the_connection() {
    let mut peer = Peer::new();
    let xid = peer.connect_with_sasl();
    peer.answer_token(xid, Code::SESSION_MOVED, None);
    assert!(!peer.has_auth_failed());
    assert_eq!(
        peer.session.connection_summary(),
        "last tried s:1: the server answered SessionMoved (-118) to a SASL token"
    );
    let mut peer = Peer::new();
    let xid = peer.connect_with_sasl();
    peer.answer_token(xid + 1, Code::OK, Some(b"more"));
    assert!(!peer.has_auth_failed());
    let expected = format!("last tried s:1: the server answered request {}; expected {xid}", xid + 1);
    assert_eq!(peer.session.connection_summary(), expected);
    // The time limit applies to all tokens together.
    let mut peer = Peer::new();
    let xid = peer.connect_with_sasl();
    let deadline = peer.session.next_timeout().unwrap();
    assert!(deadline <= NOW + Duration::from_secs(4));
    peer.answer_token(xid, Code::OK, Some(b"more"));
    assert_eq!(peer.session.next_timeout().unwrap(), deadline);
    peer.session.advance(deadline);
    assert!(!peer.has_auth_failed() && !peer.session.has_credentials());
    assert_eq!(peer.session.connection_summary(), "last tried s:1: SASL has not ended in time");
}

#[test]
fn unused_sasl_mechanism_is_kept_for_the_next_attempt() {
    let mut peer = Peer::new();
    peer.session.on_connection_event(NOW, ConnectionEvent::Disconnected("cut"));
    peer.session.set_credentials(Vec::new(), Some(Box::new(ToyMechanism { steps: 0 })));
    let at = peer.session.next_timeout().unwrap();
    peer.session.advance(at);
    while peer.session.poll_command().is_some() {}
    peer.session.on_connection_event(at, ConnectionEvent::Disconnected("refused"));
    assert!(peer.session.has_credentials());
    peer.connect(1);
    peer.token(b"one");
    assert!(!peer.session.has_credentials());
}

#[test]
fn loading_is_named_in_messages_and_begins_the_time_limit_again() {
    let mut peer = Peer::new();
    peer.session.on_connection_event(NOW, ConnectionEvent::Disconnected("cut"));
    let start = peer.session.next_timeout().unwrap();
    peer.session.advance(start);
    let limit = peer.session.next_timeout().unwrap() - start;
    peer.session.on_connection_event(NOW, ConnectionEvent::LoadingInputs("the file f"));
    assert_eq!(
        peer.session.connection_summary(),
        "s:1: the client has not loaded the file f in time; before that: cut"
    );
    let loaded = start + limit / 2;
    peer.session.on_connection_event(loaded, ConnectionEvent::InputsLoaded);
    assert_eq!(peer.session.next_timeout(), Some(loaded + limit));
    assert_eq!(peer.session.connection_summary(), "s:1 does not accept the connection; before that: cut");
    peer.session.on_connection_event(NOW, ConnectionEvent::LoadingInputs("the file f"));
    peer.session.advance(loaded + limit);
    let summary = peer.session.connection_summary();
    assert_eq!(summary, "last tried s:1: the client has not loaded the file f in time");
}

/// The server answers the heartbeats of a session that has moved, but each transaction fails.
#[test]
fn session_that_moved_within_a_transaction_leaves_its_connection() {
    for code in [Code::SESSION_MOVED, Code::SESSION_EXPIRED] {
        let mut peer = Peer::new();
        let _ = peer.sent();
        peer.session.set_lease_demand(LeaseDemand::Holding);
        let at = (0..40).map(|beat| NOW + Duration::from_secs(2 * beat)).find(|&at| {
            peer.session.advance(at);
            peer.sent().contains(&OpCode::Multi)
        });
        let at = at.expect("a client with a hold sends transactions");
        while let Some((xid, request, _)) = (!peer.read.is_empty()).then(|| peer.read.remove(0)) {
            let response = match request {
                Request::Multi(_) => Response::Multi(vec![MultiResult::Err(code)]),
                _ => Response::Empty,
            };
            let mut bytes = Vec::new();
            response.encode(xid, 7, &mut bytes).unwrap();
            let _ = peer.session.received(at, &bytes);
        }
        assert!(!peer.session.is_connected(), "{code}");
        let mut commands = std::iter::from_fn(|| peer.session.poll_command());
        assert!(commands.any(|command| command == Command::Disconnect), "{code}");
    }
}
