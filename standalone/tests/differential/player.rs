//! Plays a script on a server and records what the server sends.
//!
//! The player makes the records of two servers comparable. It replaces each session id by the number of the client, and
//! each zxid by its rank among all zxids of the script. The player omits times and sorts lists that have no order.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};

use zklock_proto::{
    Code, ConnectRequest, ConnectResponse, DEFAULT_FRAME_LIMIT, Frames, Identity, MultiResult, OpCode, ReplyHeader,
    Request, Response, Stat, WatchEvent, XID_AUTH, XID_NOTIFICATION, XID_PING, XID_SET_WATCHES,
};
use zklock_test_support::TEST_TIMEOUT;

/// The home node of a script. Each script replaces the zeros by its own number.
pub(crate) const HOME: &str = "/home-00000000";

/// The placeholder, in a `setWatches` request, for the newest zxid that the client has received.
pub(crate) const LAST_SEEN_ZXID: i64 = -2;

/// A step of a client in a script.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Closes the current session, connects, and requests a new session.
    Open,
    /// Sends a request and waits for the reply.
    Request(Request),
    /// Sends several requests at once and waits for all replies.
    RequestAll(Vec<Request>),
    /// Sends a request with this type and this body, which [`Request`] cannot express.
    Raw(i32, Vec<u8>),
    /// Sends a frame with this length field and these bytes.
    Frame(i32, Vec<u8>),
    /// Sends a connect request for a new session, with this last seen zxid and this session timeout.
    Handshake(i64, i32),
    /// Disconnects without closing the session.
    Disconnect,
    /// Resumes the session on a new connection, with the right password (`true`) or with a wrong one.
    Resume(bool),
    /// Waits for this number of events.
    AwaitEvents(usize),
}

/// The condition under which a client stops reading.
#[derive(Clone, Copy)]
enum Until {
    /// The client has received the reply to the request with this xid and this type.
    Reply(i32, i32),
    /// The client has received this number of events.
    Events(usize),
    /// The server has closed the connection.
    Closed,
}

/// A script: the number of a client and the step that this client takes.
pub(crate) type Script = Vec<(usize, Step)>;

/// Plays a script on the servers at these addresses, below the same home node. Returns the records of each server.
pub(crate) fn play(script: &Script, addresses: &[&str]) -> Vec<Vec<String>> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let home = format!("/home-{:08}", NEXT.fetch_add(1, Ordering::Relaxed));
    addresses.iter().map(|address| Player::new(address, &home).play(script)).collect()
}

struct Player<'a> {
    address: &'a str,
    home: &'a str,
    clients: BTreeMap<usize, Client>,
    observations: Vec<Observation>,
    /// The numbers that replace the session ids.
    sessions: BTreeMap<i64, i64>,
}

struct Client {
    /// `None` after the server has closed the connection or the client has disconnected.
    connection: Option<Connection>,
    session_id: i64,
    password: Vec<u8>,
    xid: i32,
    last_zxid: i64,
    /// Whether a session has ended since the client last read. The server deletes the ephemeral nodes of this session
    /// in an arbitrary order.
    in_disorder: bool,
}

struct Connection {
    stream: TcpStream,
    frames: Frames,
}

/// A step of a client, or data that the client received. The number identifies the client.
enum Observation {
    Step(usize, String),
    ConnectResponse(usize, ConnectResponse),
    Reply(usize, ReplyHeader, Result<Response, String>),
    Events(usize, Vec<(ReplyHeader, WatchEvent)>),
}

impl<'a> Player<'a> {
    fn new(address: &'a str, home: &'a str) -> Self {
        Self { address, home, clients: BTreeMap::new(), observations: Vec::new(), sessions: BTreeMap::new() }
    }

    fn play(mut self, script: &Script) -> Vec<String> {
        for (client_index, step) in script {
            self.observations.push(Observation::Step(*client_index, format!("{step:?}")));
            self.step(*client_index, step);
        }
        let everybody: Vec<usize> = self.clients.keys().copied().collect();
        for &client_index in &everybody {
            self.step(client_index, &Step::Request(Request::Ping));
        }
        everybody.into_iter().for_each(|client_index| self.close(client_index));
        self.transcript()
    }

    /// Ends a session, so that it does not expire during a later script.
    fn close(&mut self, client_index: usize) {
        let Some(client) = self.clients.get(&client_index) else { return };
        if client.connection.is_none() {
            self.step(client_index, &Step::Resume(true));
        }
        self.step(client_index, &Step::Request(Request::CloseSession));
    }

    fn step(&mut self, client_index: usize, step: &Step) {
        match step {
            Step::Open => {
                self.close(client_index);
                self.handshake(client_index, 0, 60_000, 0, vec![0; 16]);
            }
            Step::Handshake(seen, timeout_ms) => self.handshake(client_index, *seen, *timeout_ms, 0, vec![0; 16]),
            Step::Request(request) => self.ask(client_index, request),
            Step::RequestAll(requests) => self.ask_all(client_index, requests),
            Step::Raw(op, body) => {
                let xid = self.next_xid(client_index);
                let frame = [&xid.to_be_bytes()[..], &op.to_be_bytes(), body].concat();
                self.exchange(client_index, xid, *op, &framed(frame.len() as i32, &frame));
            }
            Step::Frame(length, body) => self.exchange(client_index, i32::MAX, 0, &framed(*length, body)),
            Step::Disconnect => {
                let Some(client) = self.clients.get_mut(&client_index) else { return };
                if let Some(connection) = client.connection.take() {
                    connection.close_and_wait();
                }
            }
            Step::AwaitEvents(count) => self.receive_until(client_index, Until::Events(*count)),
            Step::Resume(right) => {
                // When the new connection replaces the older one, ZooKeeper drops the events that it has not sent yet.
                // The reply to a ping comes after these events.
                if self.clients.get(&client_index).is_some_and(|client| client.connection.is_some()) {
                    self.ask(client_index, &Request::Ping);
                }
                let Some(client) = self.clients.get_mut(&client_index) else { return };
                let (session_id, mut password) = (client.session_id, client.password.clone());
                if !right {
                    password[0] ^= 1;
                }
                let older = client.connection.take();
                let kept = (client.session_id, client.password.clone());
                self.handshake(client_index, 0, 60_000, session_id, password);
                let Some(client) = self.clients.get_mut(&client_index) else { return };
                (client.session_id, client.password) = kept;
                if let Some(older) = older {
                    let newer = client.connection.replace(older);
                    self.receive_until(client_index, Until::Closed);
                    if let Some(client) = self.clients.get_mut(&client_index) {
                        client.connection = newer;
                    }
                }
            }
        }
    }

    fn handshake(
        &mut self,
        client_index: usize,
        last_zxid_seen: i64,
        timeout_ms: i32,
        session_id: i64,
        password: Vec<u8>,
    ) {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let mut connection = Connection { stream, frames: Frames::new(4 * DEFAULT_FRAME_LIMIT) };
        let mut frame = Vec::new();
        ConnectRequest { protocol_version: 0, last_zxid_seen, timeout_ms, session_id, password, read_only: false }
            .encode(&mut frame);
        connection.stream.write_all(&frame).unwrap();
        let Some(reply) = connection.read() else {
            return self.observations.push(Observation::Step(client_index, "is not let in".into()));
        };
        let welcome = ConnectResponse::decode(&reply).unwrap();
        let connection = (welcome.session_id != 0).then_some(connection);
        let (session_id, password) = (welcome.session_id, welcome.password.clone());
        let xid = self.clients.get(&client_index).map_or(0, |client| client.xid);
        let last_zxid = self.clients.get(&client_index).map_or(0, |client| client.last_zxid);
        // The client has not yet read the events of its previous connection.
        let in_disorder = self.clients.get(&client_index).is_some_and(|client| client.in_disorder);
        self.clients.insert(client_index, Client { connection, session_id, password, xid, last_zxid, in_disorder });
        let name = self.sessions.len() as i64 + 1;
        self.sessions.entry(session_id).or_insert(name);
        self.observations.push(Observation::ConnectResponse(client_index, welcome));
    }

    fn ask(&mut self, client_index: usize, request: &Request) {
        if *request == Request::CloseSession {
            self.clients.values_mut().for_each(|client| client.in_disorder = true);
        }
        self.ask_all(client_index, std::slice::from_ref(request));
        if *request == Request::CloseSession {
            self.receive_until(client_index, Until::Closed);
        }
    }

    fn ask_all(&mut self, client_index: usize, requests: &[Request]) {
        let mut frames = Vec::new();
        let mut awaited = Vec::new();
        for request in requests {
            let mut request = request.clone();
            if let Request::SetWatches { relative_zxid, .. } | Request::SetWatches2 { relative_zxid, .. } = &mut request
                && *relative_zxid == LAST_SEEN_ZXID
                && let Some(client) = self.clients.get(&client_index)
            {
                *relative_zxid = client.last_zxid;
            }
            let xid = match request {
                Request::Ping => XID_PING,
                Request::Auth { .. } => XID_AUTH,
                Request::SetWatches { .. } | Request::SetWatches2 { .. } => XID_SET_WATCHES,
                _ => self.next_xid(client_index),
            };
            request.encode(xid, &mut frames).unwrap();
            awaited.push(Until::Reply(xid, request.op().to_wire()));
        }
        self.send(client_index, &frames);
        awaited.into_iter().for_each(|until| self.receive_until(client_index, until));
    }

    fn next_xid(&mut self, client_index: usize) -> i32 {
        let Some(client) = self.clients.get_mut(&client_index) else { return 0 };
        client.xid += 1;
        client.xid
    }

    fn exchange(&mut self, client_index: usize, xid: i32, op: i32, bytes: &[u8]) {
        self.send(client_index, bytes);
        self.receive_until(client_index, Until::Reply(xid, op));
    }

    fn send(&mut self, client_index: usize, bytes: &[u8]) {
        let connection = self.clients.get_mut(&client_index).and_then(|client| client.connection.as_mut());
        if let Some(connection) = connection {
            // If the server has closed the connection, the next read reports it.
            let _ = connection.stream.write_all(&replaced(bytes, HOME, self.home));
        }
    }

    fn receive_until(&mut self, client_index: usize, until: Until) {
        let Some(client) = self.clients.get_mut(&client_index) else { return };
        let mut events = Vec::new();
        let mut reply = None;
        let mut is_closed = false;
        while let Some(connection) = &mut client.connection {
            let Some(frame) = connection.read() else {
                client.connection = None;
                is_closed = true;
                break;
            };
            let frame = replaced(&frame, self.home, HOME);
            let (header, body) = ReplyHeader::decode(&frame).unwrap();
            if header.xid == XID_NOTIFICATION {
                events.push((header, WatchEvent::decode(body).unwrap()));
                match until {
                    Until::Events(count) if count == events.len() => break,
                    _ => continue,
                }
            }
            client.last_zxid = client.last_zxid.max(header.zxid);
            let Until::Reply(xid, op) = until else {
                self.observations.push(Observation::Step(client_index, format!("is told unasked: {header:?}")));
                continue;
            };
            assert_eq!(header.xid, xid, "the answer to another request");
            reply = Some((header, decoded(header, op, body)));
            if ![Code::UNIMPLEMENTED, Code::AUTH_FAILED].contains(&header.err) {
                break;
            }
            // After these errors the server closes the connection.
        }
        if client.in_disorder {
            events.sort_by_key(|(_, event)| (event.path.clone(), event.kind.to_wire()));
            client.in_disorder = false;
        }
        if !events.is_empty() {
            self.observations.push(Observation::Events(client_index, events));
        }
        if let Some((header, result)) = reply {
            self.observations.push(Observation::Reply(client_index, header, result));
        }
        if is_closed {
            self.observations.push(Observation::Step(client_index, "is disconnected".into()));
        }
    }

    fn transcript(mut self) -> Vec<String> {
        let mut zxids = BTreeSet::new();
        for said in &mut self.observations {
            said.each_zxid(&mut |zxid| {
                zxids.insert(*zxid);
            });
        }
        let ranks: BTreeMap<i64, i64> = zxids.into_iter().filter(|&zxid| zxid > 0).zip(1..).collect();
        for said in &mut self.observations {
            said.each_zxid(&mut |zxid| *zxid = ranks.get(zxid).copied().unwrap_or(*zxid));
            for stat in said.stats() {
                (stat.ctime, stat.mtime) = (0, 0);
                stat.ephemeral_owner =
                    self.sessions.get(&stat.ephemeral_owner).copied().unwrap_or(stat.ephemeral_owner);
            }
        }
        self.observations.iter_mut().map(Observation::line).collect()
    }
}

impl Connection {
    /// Disconnects and waits until the server has noticed that the connection is closed. Otherwise, the server might
    /// process a new connection of the client first.
    fn close_and_wait(mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        while self.read().is_some() {}
    }

    /// Returns the next frame, or `None` at the end of the connection.
    fn read(&mut self) -> Option<Vec<u8>> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(frame) = self.frames.next().unwrap() {
                return Some(frame);
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.frames.push(&buffer[..count]),
                Err(cause) if matches!(cause.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                    return None;
                }
                Err(cause) => {
                    let server = self.stream.peer_addr();
                    panic!("{server:?} neither answers nor closes the connection: {cause}")
                }
            }
        }
    }
}

impl Observation {
    fn stats(&mut self) -> Vec<&mut Stat> {
        match self {
            Self::Reply(_, _, Ok(response)) => stats_of(response),
            _ => Vec::new(),
        }
    }

    fn each_zxid(&mut self, act: &mut dyn FnMut(&mut i64)) {
        if let Self::Reply(_, header, _) = self
            // A real server gives a zxid to some requests that it cannot decode.
            && header.err != Code::MARSHALLING_ERROR
        {
            act(&mut header.zxid);
        }
        if let Self::Events(_, events) = self {
            events.iter_mut().for_each(|(header, _)| act(&mut header.zxid));
        }
        for stat in self.stats() {
            [&mut stat.czxid, &mut stat.mzxid, &mut stat.pzxid].into_iter().for_each(&mut *act);
        }
    }

    fn line(&mut self) -> String {
        match self {
            Self::Step(client_index, text) => format!("{client_index} {text}"),
            Self::ConnectResponse(
                client_index,
                ConnectResponse { protocol_version, timeout_ms, session_id, password, read_only },
            ) => {
                let (granted, length) = (*session_id != 0, password.len());
                format!(
                    "{client_index} handshake {protocol_version} {granted} {timeout_ms} ms, password of {length}, {read_only}"
                )
            }
            Self::Reply(client_index, header, Ok(response)) => {
                sort(response);
                format!("{client_index} answer {header:?} {response:?}")
            }
            Self::Reply(client_index, ReplyHeader { xid, err: Code::MARSHALLING_ERROR, .. }, _) => {
                format!("{client_index} {xid} is not understood")
            }
            Self::Reply(client_index, header, Err(body)) => format!("{client_index} answer {header:?} {body}"),
            Self::Events(client_index, events) => format!("{client_index} events {events:?}"),
        }
    }
}

fn decoded(header: ReplyHeader, op: i32, body: &[u8]) -> Result<Response, String> {
    if !header.err.is_ok() {
        return Err(format!("{body:02x?}"));
    }
    let op = OpCode::try_from(op).map_err(|_| format!("{body:02x?}"))?;
    Response::decode(op, body).map_err(|cause| format!("{cause}: {body:02x?}"))
}

fn stats_of(response: &mut Response) -> Vec<&mut Stat> {
    match response {
        Response::Stat(stat)
        | Response::Create2 { stat, .. }
        | Response::Data { stat, .. }
        | Response::Acl { stat, .. }
        | Response::Children2 { stat, .. } => vec![stat],
        Response::Multi(results) => results
            .iter_mut()
            .flat_map(|result| match result {
                MultiResult::Ok(response) => stats_of(response),
                MultiResult::Err(_) => Vec::new(),
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn sort(response: &mut Response) {
    match response {
        Response::Children(names) | Response::Paths(names) | Response::Children2 { children: names, .. } => {
            names.sort();
        }
        Response::Identities(identities) => {
            identities.sort_by_key(|Identity { scheme, id }| (scheme.clone(), id.clone()));
        }
        Response::Multi(results) => {
            for result in results {
                if let MultiResult::Ok(response) = result {
                    sort(response);
                }
            }
        }
        _ => {}
    }
}

fn framed(length: i32, body: &[u8]) -> Vec<u8> {
    [&length.to_be_bytes()[..], body].concat()
}

/// Replaces all occurrences of a text by another text of the same length.
fn replaced(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for at in 0..(bytes.len() + 1).saturating_sub(from.len()) {
        if bytes[at..].starts_with(from.as_bytes()) {
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
    }
    bytes
}
