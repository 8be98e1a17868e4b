//! A session and a server that is a list of requests.

use super::*;
use crate::limits::Limits;
use crate::proto::{Acl, CreateMode, Stat};

/// The time of everything.
const NOW: Time = Time::from_nanos(1_000_000_000_000);

struct Peer {
    session: Session<u32>,
    /// What the server has read on this connection: the number, the operation, the size.
    read: Vec<(i32, Request, usize)>,
    events: Vec<Event<u32>>,
}

impl Peer {
    fn new() -> Self {
        let config = SessionConfig {
            timeout: Duration::from_secs(12),
            lease_margin: None,
            auth: Vec::new(),
            frame_limit: 1 << 20,
            limits: Limits { watch_batch: 16, least_watch_batch: 4, ..Limits::default() },
        };
        let server = Server { host: "s".into(), port: 1 };
        let mut peer = Self {
            session: Session::new(vec![server], config, NOW, Box::new(|| 7)),
            read: Vec::new(),
            events: Vec::new(),
        };
        peer.connect(1);
        peer
    }

    /// The session gets its connection, at a server that has come as far as `zxid`.
    fn connect(&mut self, zxid: i64) {
        while self.session.poll_command().is_none() {
            let at = self.session.next_timeout().unwrap();
            self.session.advance(at);
        }
        self.session.connected(NOW, "local");
        let mut frames = Frames::new(1 << 20);
        frames.push(&std::mem::take(self.session.output()));
        let hello = ConnectRequest::decode(&frames.next().unwrap().unwrap()).unwrap();
        assert!(hello.last_zxid_seen <= zxid, "the server would refuse the session");
        let mut welcome = Vec::new();
        let (protocol_version, timeout_ms, session_id) = (0, 12_000, 5);
        ConnectResponse { protocol_version, timeout_ms, session_id, password: vec![0; 16], read_only: false }
            .encode(&mut welcome);
        self.read.clear();
        assert!(self.session.received(NOW, &welcome).is_continue());
    }

    /// What the session has sent on this connection and is not answered.
    fn sent(&mut self) -> Vec<OpCode> {
        let mut frames = Frames::new(1 << 20);
        frames.push(&std::mem::take(self.session.output()));
        while let Some(frame) = frames.next().unwrap() {
            let (xid, request) = Request::decode(&frame).unwrap();
            self.read.push((xid, request, frame.len()));
        }
        self.read.iter().map(|(_, request, _)| request.op()).collect()
    }

    /// The server answers the first request.
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
        assert!(self.session.received(NOW, &bytes).is_continue());
        request
    }

    fn create(&mut self, size: usize, tag: u32) {
        let (path, data, acl) = ("/a".to_owned(), Some(vec![0; size]), Acl::open());
        self.session.submit(NOW, &Request::Create2 { path, data, acl, mode: CreateMode::Ephemeral }, tag);
    }

    fn look(&mut self, tag: u32) {
        self.session.submit(NOW, &Request::GetData { path: "/a".to_owned(), watch: false }, tag);
    }

    /// The answers since the last time, by their tags.
    fn answers(&mut self) -> Vec<(u32, Option<Failure>)> {
        self.events.extend(std::iter::from_fn(|| self.session.poll_event()));
        let answer = |event| match event {
            Event::Reply { tag, result, .. } => Some((tag, result.err())),
            _ => None,
        };
        std::mem::take(&mut self.events).into_iter().filter_map(answer).collect()
    }

    fn close(&mut self) {
        self.session.disconnected(NOW, "closed");
    }
}

#[test]
fn watches_are_restored_from_the_same_zxid_until_all_are() {
    let mut peer = Peer::new();
    for path in ["/watched-1", "/watched-2", "/watched-3"] {
        peer.session.watch(NOW, path, 1, 0);
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
    // The session was at 200, so the next server has to be, and its watches were not.
    peer.close();
    peer.connect(200);
    assert_eq!([200, 201, 202].map(|zxid| restored_from(peer.answer(zxid))), [100; 3]);
    peer.close();
    peer.connect(300);
    assert_eq!(restored_from(peer.answer(300)), 202);
}

#[test]
fn a_request_that_costs_three_connections_fails_and_others_go_on() {
    let mut peer = Peer::new();
    peer.look(1);
    peer.create(100_000, 2);
    peer.look(3);
    assert_eq!(peer.sent(), [OpCode::GetData, OpCode::Create2, OpCode::GetData]);
    peer.close();
    assert_eq!(peer.answers(), [1, 2, 3].map(|tag| (tag, Some(Failure::ConnectionLost))));
    for is_last in [false, true] {
        peer.connect(1);
        peer.look(1);
        peer.create(100_000, 2);
        peer.look(3);
        // It waits for what was before it, then for a transaction.
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
    assert_eq!(peer.sent(), [OpCode::Create2], "of the two the small one");
    let _ = peer.answer(1);
    assert!(matches!(peer.answers()[..], [(4, Some(Failure::TooLarge(_))), (5, None)]));
}

/// Whoever sends together with the requests that restore watches is suspected as well: the server answers none of them.
#[test]
fn a_large_request_behind_restored_watches_is_found() {
    let mut peer = Peer::new();
    peer.session.watch(NOW, "/watched", 1, 0);
    let _ = peer.answer(1);
    for _ in 0..2 {
        peer.close();
        peer.connect(1);
        peer.create(100_000, 2);
    }
    assert_eq!(peer.sent(), [OpCode::SetWatches], "the large one waits");
}

#[test]
fn requests_that_were_held_back_go_out_in_their_order() {
    let mut peer = Peer::new();
    peer.create(5_000, 1);
    peer.close();
    peer.connect(1);
    peer.create(5_000, 1);
    peer.create(6_000, 2);
    peer.look(3);
    let mut answered = Vec::new();
    while !peer.sent().is_empty() {
        answered.push(peer.answer(1).op());
    }
    use OpCode::{Create2, GetData, Multi};
    assert_eq!(answered, [Multi, Create2, Multi, Create2, GetData]);
    assert_eq!(peer.answers()[1..], [(1, None), (2, None), (3, None)]);
    peer.create(6_000, 4);
    assert_eq!(peer.sent(), [Create2], "that size is known to be accepted");
}

#[test]
fn a_close_waits_for_nothing_that_is_held_back() {
    let mut peer = Peer::new();
    peer.create(5_000, 1);
    peer.close();
    peer.connect(1);
    peer.create(5_000, 1);
    peer.look(2);
    peer.session.close(NOW, NOW + Duration::from_secs(1));
    assert_eq!(peer.sent(), [OpCode::Multi, OpCode::CloseSession]);
    assert_eq!(peer.answers()[1..], [1, 2].map(|tag| (tag, Some(Failure::ConnectionLost))));
}

#[test]
fn an_answer_frees_all_requests_of_its_size() {
    let mut peer = Peer::new();
    (1..6).for_each(|tag| peer.create(5_000, tag));
    peer.close();
    peer.connect(1);
    (1..6).for_each(|tag| peer.create(5_000, tag));
    let probe = peer.answer(1);
    assert_eq!(probe.op(), OpCode::Multi);
    assert_eq!(peer.sent(), [OpCode::Create2]);
    let _ = peer.answer(1);
    assert_eq!(peer.sent(), [OpCode::Create2; 4], "they go out together");
}

#[test]
fn a_connection_ends_the_shortage_of_descriptors() {
    let mut peer = Peer::new();
    peer.close();
    while peer.session.poll_command().is_none() {
        let at = peer.session.next_timeout().unwrap();
        peer.session.advance(at);
    }
    peer.session.starved(NOW, "no descriptor");
    assert!(peer.session.is_starved());
    peer.connect(1);
    assert!(!peer.session.is_starved());
}
