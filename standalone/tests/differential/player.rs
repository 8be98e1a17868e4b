//! Plays a script on a server and writes down what the server says.
//!
//! What no two servers agree on is made comparable: session ids become the number of their client, and the numbers of
//! transactions their rank among all that the script has seen. Times are left out, and lists without an order are sorted.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use zklock::proto::{
    Code, ConnectRequest, ConnectResponse, DEFAULT_FRAME_LIMIT, Frames, Identity, MultiResult, OpCode, ReplyHeader,
    Request, Response, Stat, WatchEvent, XID_AUTH, XID_NOTIFICATION, XID_PING, XID_SET_WATCHES,
};

/// Where scripts live. Each is given a place of its own, by a number instead of the zeros.
pub(crate) const HOME: &str = "/home-00000000";

/// The zxid in a `setWatches` that stands for the newest one its client has been told.
pub(crate) const SEEN: i64 = -2;

/// What one of several clients does.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Closes the session it has, connects and asks for a new one.
    Open,
    /// Sends a request and waits for the answer.
    Ask(Request),
    /// Sends several requests at once and waits for all answers.
    AskAll(Vec<Request>),
    /// Sends a request that [`Request`] has no words for: its type and its body.
    Raw(i32, Vec<u8>),
    /// Sends a frame with this length, and this in it.
    Frame(i32, Vec<u8>),
    /// Sends a handshake that asks for a new session with this zxid as the newest it has seen, and with this session timeout.
    Greet(i64, i32),
    /// Breaks its connection off without a word.
    Leave,
    /// Asks for its session on a new connection, with the right password or a wrong one.
    Resume(bool),
    /// Listens until it has been told of so many events.
    Await(usize),
}

/// Until when a client listens.
#[derive(Clone, Copy)]
enum Until {
    /// The answer to this xid is there, which is one to a request of this type.
    Answer(i32, i32),
    /// So many events are there.
    Events(usize),
    /// The server has closed the connection.
    End,
}

/// A client by its number, and what it does.
pub(crate) type Script = Vec<(usize, Step)>;

/// Plays a script on the servers at these addresses, at the same place of their trees, and gives what each has said.
pub(crate) fn play(script: &Script, addresses: &[&str]) -> Vec<Vec<String>> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let home = format!("/home-{:08}", NEXT.fetch_add(1, Ordering::Relaxed));
    addresses.iter().map(|address| Player::new(address, &home).play(script)).collect()
}

struct Player<'a> {
    address: &'a str,
    home: &'a str,
    clients: BTreeMap<usize, Client>,
    said: Vec<Said>,
    /// What sessions are called, by their ids.
    sessions: BTreeMap<i64, i64>,
}

struct Client {
    /// None when the server has closed it, or the client has left.
    connection: Option<Connection>,
    session_id: i64,
    password: Vec<u8>,
    xid: i32,
    seen: i64,
    /// A session has ended since the client was last heard. Its ephemeral nodes go in no particular order.
    in_disorder: bool,
}

struct Connection {
    stream: TcpStream,
    frames: Frames,
}

/// What was heard, by which client.
enum Said {
    Note(usize, String),
    Welcome(usize, ConnectResponse),
    Reply(usize, ReplyHeader, Result<Response, String>),
    Events(usize, Vec<(ReplyHeader, WatchEvent)>),
}

impl<'a> Player<'a> {
    fn new(address: &'a str, home: &'a str) -> Self {
        Self { address, home, clients: BTreeMap::new(), said: Vec::new(), sessions: BTreeMap::new() }
    }

    fn play(mut self, script: &Script) -> Vec<String> {
        for (who, step) in script {
            self.said.push(Said::Note(*who, format!("{step:?}")));
            self.step(*who, step);
        }
        let everybody: Vec<usize> = self.clients.keys().copied().collect();
        for &who in &everybody {
            self.step(who, &Step::Ask(Request::Ping));
        }
        everybody.into_iter().for_each(|who| self.close(who));
        self.transcript()
    }

    /// Ends a session: none may be left to expire while another script is played.
    fn close(&mut self, who: usize) {
        let Some(client) = self.clients.get(&who) else { return };
        if client.connection.is_none() {
            self.step(who, &Step::Resume(true));
        }
        self.step(who, &Step::Ask(Request::CloseSession));
    }

    fn step(&mut self, who: usize, step: &Step) {
        match step {
            Step::Open => {
                self.close(who);
                self.greet(who, 0, 60_000, 0, vec![0; 16]);
            }
            Step::Greet(seen, timeout_ms) => self.greet(who, *seen, *timeout_ms, 0, vec![0; 16]),
            Step::Ask(request) => self.ask(who, request),
            Step::AskAll(requests) => self.ask_all(who, requests),
            Step::Raw(op, body) => {
                let xid = self.next_xid(who);
                let frame = [&xid.to_be_bytes()[..], &op.to_be_bytes(), body].concat();
                self.exchange(who, xid, *op, &framed(frame.len() as i32, &frame));
            }
            Step::Frame(length, body) => self.exchange(who, i32::MAX, 0, &framed(*length, body)),
            Step::Leave => {
                let Some(client) = self.clients.get_mut(&who) else { return };
                if let Some(connection) = client.connection.take() {
                    connection.hang_up();
                }
            }
            Step::Await(count) => self.hear(who, Until::Events(*count)),
            Step::Resume(right) => {
                let Some(client) = self.clients.get_mut(&who) else { return };
                let (session_id, mut password) = (client.session_id, client.password.clone());
                if !right {
                    password[0] ^= 1;
                }
                let older = client.connection.take();
                let kept = (client.session_id, client.password.clone());
                self.greet(who, 0, 60_000, session_id, password);
                let Some(client) = self.clients.get_mut(&who) else { return };
                (client.session_id, client.password) = kept;
                if let Some(older) = older {
                    let newer = client.connection.replace(older);
                    self.hear(who, Until::End);
                    if let Some(client) = self.clients.get_mut(&who) {
                        client.connection = newer;
                    }
                }
            }
        }
    }

    fn greet(&mut self, who: usize, last_zxid_seen: i64, timeout_ms: i32, session_id: i64, password: Vec<u8>) {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut connection = Connection { stream, frames: Frames::new(4 * DEFAULT_FRAME_LIMIT) };
        let mut frame = Vec::new();
        ConnectRequest { protocol_version: 0, last_zxid_seen, timeout_ms, session_id, password, read_only: false }
            .encode(&mut frame);
        connection.stream.write_all(&frame).unwrap();
        let Some(reply) = connection.read() else { return self.said.push(Said::Note(who, "is not let in".into())) };
        let welcome = ConnectResponse::decode(&reply).unwrap();
        let connection = (welcome.session_id != 0).then_some(connection);
        let (session_id, password) = (welcome.session_id, welcome.password.clone());
        let xid = self.clients.get(&who).map_or(0, |client| client.xid);
        let seen = self.clients.get(&who).map_or(0, |client| client.seen);
        // What it was told on the connection before this one is still to be heard.
        let in_disorder = self.clients.get(&who).is_some_and(|client| client.in_disorder);
        self.clients.insert(who, Client { connection, session_id, password, xid, seen, in_disorder });
        let name = self.sessions.len() as i64 + 1;
        self.sessions.entry(session_id).or_insert(name);
        self.said.push(Said::Welcome(who, welcome));
    }

    fn ask(&mut self, who: usize, request: &Request) {
        if *request == Request::CloseSession {
            self.clients.values_mut().for_each(|client| client.in_disorder = true);
        }
        self.ask_all(who, std::slice::from_ref(request));
        if *request == Request::CloseSession {
            self.hear(who, Until::End);
        }
    }

    fn ask_all(&mut self, who: usize, requests: &[Request]) {
        let mut frames = Vec::new();
        let mut awaited = Vec::new();
        for request in requests {
            let mut request = request.clone();
            if let Request::SetWatches { relative_zxid, .. } | Request::SetWatches2 { relative_zxid, .. } = &mut request
                && *relative_zxid == SEEN
                && let Some(client) = self.clients.get(&who)
            {
                *relative_zxid = client.seen;
            }
            let xid = match request {
                Request::Ping => XID_PING,
                Request::Auth { .. } => XID_AUTH,
                Request::SetWatches { .. } | Request::SetWatches2 { .. } => XID_SET_WATCHES,
                _ => self.next_xid(who),
            };
            request.encode(xid, &mut frames).unwrap();
            awaited.push(Until::Answer(xid, request.op().to_wire()));
        }
        self.send(who, &frames);
        awaited.into_iter().for_each(|until| self.hear(who, until));
    }

    fn next_xid(&mut self, who: usize) -> i32 {
        let Some(client) = self.clients.get_mut(&who) else { return 0 };
        client.xid += 1;
        client.xid
    }

    fn exchange(&mut self, who: usize, xid: i32, op: i32, bytes: &[u8]) {
        self.send(who, bytes);
        self.hear(who, Until::Answer(xid, op));
    }

    fn send(&mut self, who: usize, bytes: &[u8]) {
        let connection = self.clients.get_mut(&who).and_then(|client| client.connection.as_mut());
        if let Some(connection) = connection {
            // One that the server has closed meanwhile shows when it is read from.
            let _ = connection.stream.write_all(&replaced(bytes, HOME, self.home));
        }
    }

    fn hear(&mut self, who: usize, until: Until) {
        let Some(client) = self.clients.get_mut(&who) else { return };
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
            client.seen = client.seen.max(header.zxid);
            let Until::Answer(xid, op) = until else {
                self.said.push(Said::Note(who, format!("is told unasked: {header:?}")));
                continue;
            };
            assert_eq!(header.xid, xid, "the answer to another request");
            reply = Some((header, decoded(header, op, body)));
            if ![Code::UNIMPLEMENTED, Code::AUTH_FAILED].contains(&header.err) {
                break;
            }
            // The server closes the connection of those who are refused so.
        }
        if client.in_disorder {
            events.sort_by_key(|(_, event)| (event.path.clone(), event.kind.to_wire()));
            client.in_disorder = false;
        }
        if !events.is_empty() {
            self.said.push(Said::Events(who, events));
        }
        if let Some((header, result)) = reply {
            self.said.push(Said::Reply(who, header, result));
        }
        if is_closed {
            self.said.push(Said::Note(who, "is disconnected".into()));
        }
    }

    fn transcript(mut self) -> Vec<String> {
        let mut zxids = BTreeSet::new();
        for said in &mut self.said {
            said.each_zxid(&mut |zxid| {
                zxids.insert(*zxid);
            });
        }
        let ranks: BTreeMap<i64, i64> = zxids.into_iter().filter(|&zxid| zxid > 0).zip(1..).collect();
        for said in &mut self.said {
            said.each_zxid(&mut |zxid| *zxid = ranks.get(zxid).copied().unwrap_or(*zxid));
            for stat in said.stats() {
                (stat.ctime, stat.mtime) = (0, 0);
                stat.ephemeral_owner =
                    self.sessions.get(&stat.ephemeral_owner).copied().unwrap_or(stat.ephemeral_owner);
            }
        }
        self.said.iter_mut().map(Said::line).collect()
    }
}

impl Connection {
    /// Leaves, and waits until the server has noticed: to come back sooner is a race that a server may lose.
    fn hang_up(mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        while self.read().is_some() {}
    }

    /// The next frame; none at the end.
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

impl Said {
    fn stats(&mut self) -> Vec<&mut Stat> {
        match self {
            Self::Reply(_, _, Ok(response)) => stats_of(response),
            _ => Vec::new(),
        }
    }

    fn each_zxid(&mut self, act: &mut dyn FnMut(&mut i64)) {
        if let Self::Reply(_, header, _) = self
            // A server numbers some of the requests that it can't read.
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
            Self::Note(who, text) => format!("{who} {text}"),
            Self::Welcome(who, ConnectResponse { protocol_version, timeout_ms, session_id, password, read_only }) => {
                let (granted, length) = (*session_id != 0, password.len());
                format!(
                    "{who} handshake {protocol_version} {granted} {timeout_ms} ms, password of {length}, {read_only}"
                )
            }
            Self::Reply(who, header, Ok(response)) => {
                sort(response);
                format!("{who} answer {header:?} {response:?}")
            }
            Self::Reply(who, ReplyHeader { xid, err: Code::MARSHALLING_ERROR, .. }, _) => {
                format!("{who} {xid} is not understood")
            }
            Self::Reply(who, header, Err(body)) => format!("{who} answer {header:?} {body}"),
            Self::Events(who, events) => format!("{who} events {events:?}"),
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

/// The bytes with a text in place of another of the same length.
fn replaced(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for at in 0..(bytes.len() + 1).saturating_sub(from.len()) {
        if bytes[at..].starts_with(from.as_bytes()) {
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
    }
    bytes
}
