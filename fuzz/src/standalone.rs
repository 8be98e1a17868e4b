//! Tests the core of the standalone server with clients that send arbitrary data.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use arbitrary::Unstructured;
use zklock_core::time::Time;
use zklock_proto::{ConnectRequest, OpCode, Request};
use zklock_standalone::{ConnectionAction, ConnectionId, ServerCore, Settings};

use crate::choices::Choices;

const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
/// Maximum number of bytes that the server may send to all clients because of one action.
const MAX_OUTPUT_BYTES: usize = 4 << 20;

/// Performs the actions of several connections that the bytes determine.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let mut harness = ServerHarness::new();
    while !input.is_empty() {
        harness.step(&mut input);
    }
    harness.now = harness.now + Duration::from_secs(3600);
    harness.server.advance(harness.now);
    harness.listen();
    assert_eq!(harness.server.replica().sessions().count(), 0, "sessions still exist after an hour of silence");
    assert_eq!(
        harness.server.replica().tree().ephemeral_count(),
        0,
        "ephemeral nodes still exist after their sessions"
    );
}

struct ServerHarness {
    server: ServerCore,
    now: Time,
    connections: Vec<ConnectionId>,
    last: ConnectionId,
}

impl ServerHarness {
    fn new() -> Self {
        let settings = Settings { frame_limit: 4096, ..Settings::for_tests() };
        let (server, now) = (ServerCore::new(settings, Time::default()), Time::default());
        let mut harness = Self { server, now, connections: Vec::new(), last: 0 };
        harness.accept();
        harness
    }

    fn accept(&mut self) {
        self.last += 1;
        self.connections.push(self.last);
        self.server.accept(self.now, self.last, PEER);
    }

    fn step(&mut self, input: &mut Unstructured<'_>) {
        match input.index(16) {
            0 if self.connections.len() < 4 => self.accept(),
            1 => self.handshake(input),
            2 => {
                let bytes = input.some_bytes();
                self.send(input, bytes);
            }
            3 => self.now = self.now + Duration::from_millis(1 << input.index(20)),
            4 => {
                let connection = input.index(self.connections.len());
                if !self.connections.is_empty() {
                    let gone = self.connections.swap_remove(connection);
                    self.server.closed(self.now, gone);
                }
            }
            5 => {
                let sessions: Vec<i64> = self.server.replica().sessions().map(|(id, _)| id).collect();
                if !sessions.is_empty() {
                    self.server.expire(self.now, input.pick(&sessions));
                }
            }
            6 if input.byte() == 0 => {
                self.server.restart(self.now);
                self.connections.clear();
            }
            7..=10 => self.request(input),
            _ => self.record(input),
        }
        self.server.advance(self.now);
        self.listen();
    }

    fn handshake(&mut self, input: &mut Unstructured<'_>) {
        let sessions: Vec<i64> = self.server.replica().sessions().map(|(id, _)| id).collect();
        let session_id = if input.byte() < 128 || sessions.is_empty() { 0 } else { input.pick(&sessions) };
        let password = if session_id == 0 { vec![0; 16] } else { input.some_bytes().to_vec() };
        let timeout_ms = if input.byte() < 200 { 4000 } else { input.i32() };
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 0,
            timeout_ms,
            session_id,
            password,
            read_only: false,
        };
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.send(input, &bytes);
    }

    /// Sends a frame with the correct length and a known type, and with an arbitrary body.
    fn record(&mut self, input: &mut Unstructured<'_>) {
        let (xid, op, body) = (input.i32(), input.pick(OpCode::ALL), input.some_bytes());
        let length = i32::try_from(8 + body.len()).unwrap();
        let frame = [&length.to_be_bytes()[..], &xid.to_be_bytes(), &op.to_wire().to_be_bytes(), body].concat();
        self.send(input, &frame);
    }

    /// Sends a valid request about one of a few nodes.
    fn request(&mut self, input: &mut Unstructured<'_>) {
        let mut bytes = Vec::new();
        let request = request(input, 2);
        if request.encode(input.i32(), &mut bytes).is_ok() {
            self.send(input, &bytes);
        }
    }

    fn send(&mut self, input: &mut Unstructured<'_>, bytes: &[u8]) {
        if !self.connections.is_empty() {
            let connection = input.pick(&self.connections);
            self.server.received(self.now, connection, bytes);
        }
    }

    /// Processes the output of the server. Checks that the output is of bounded size and that the server needs no further call at once.
    fn listen(&mut self) {
        let mut said = 0;
        while let Some(action) = self.server.poll() {
            match action {
                ConnectionAction::Send(_, bytes) => said += bytes.len(),
                ConnectionAction::Close(gone) | ConnectionAction::Reset(gone) => {
                    self.connections.retain(|&id| id != gone);
                    self.server.closed(self.now, gone);
                }
            }
        }
        assert!(said <= MAX_OUTPUT_BYTES, "the server sent {said} bytes in one step");
        assert!(self.server.next_timeout() > self.now, "the server requests another call at once");
    }
}

fn request(input: &mut Unstructured<'_>, depth: usize) -> Request {
    use zklock_proto::{Acl, AddWatchMode, CreateMode, WatcherType};
    const PATHS: [&str; 12] =
        ["/", "/a", "/a/b", "/a/b/c-", "/c", "/zookeeper", "/zookeeper/quota", "", "a", "/a/", "//", "/a/../b"];
    const MODES: [CreateMode; 7] = [
        CreateMode::Persistent,
        CreateMode::Ephemeral,
        CreateMode::PersistentSequential,
        CreateMode::EphemeralSequential,
        CreateMode::Container,
        CreateMode::PersistentWithTtl,
        CreateMode::PersistentSequentialWithTtl,
    ];
    let path = input.pick(&PATHS).to_owned();
    let version = input.pick(&[-1, 0, 1, i32::MAX, i32::MIN, -2]);
    let acl = match input.index(4) {
        0..=2 => Acl::open(),
        _ => vec![Acl {
            perms: input.i32(),
            scheme: input.pick(&["world", "auth", "digest", "ip", ""]).to_owned(),
            id: input.pick(&["anyone", "", "a:b", "127.0.0.1/8", "1/99"]).to_owned(),
        }],
    };
    let data = (input.byte() < 200).then(|| input.some_bytes().to_vec());
    match input.index(22) {
        0 => Request::Create { path, data, acl, mode: input.pick(&MODES) },
        1 => Request::Create2 { path, data, acl, mode: input.pick(&MODES) },
        2 => Request::CreateTtl { path, data, acl, mode: input.pick(&MODES), ttl_ms: input.i64() },
        3 => Request::Delete { path, version },
        4 => Request::Exists { path, watch: true },
        5 => Request::GetData { path, watch: true },
        6 => Request::SetData { path, data, version },
        7 => Request::GetAcl { path },
        8 => Request::SetAcl { path, acl, version },
        9 => Request::GetChildren { path, watch: true },
        10 => Request::GetChildren2 { path, watch: true },
        11 => Request::Check { path, version },
        12 if depth > 0 => {
            let count = input.index(5);
            Request::Multi((0..count).map(|_| request(input, depth - 1)).collect())
        }
        13 if depth > 0 => {
            let count = input.index(5);
            Request::MultiRead((0..count).map(|_| request(input, depth - 1)).collect())
        }
        14 => Request::AddWatch { path, mode: AddWatchMode::PersistentRecursive },
        15 => Request::AddWatch { path, mode: AddWatchMode::Persistent },
        16 => Request::RemoveWatches { path, kind: WatcherType::Any },
        17 => Request::Auth { scheme: "digest".to_owned(), auth: data.unwrap_or_default() },
        18 => {
            let list = || vec![path.clone(); 2];
            Request::SetWatches { relative_zxid: version.into(), data: list(), exist: list(), child: list() }
        }
        19 => Request::Sync { path },
        20 => Request::Ping,
        _ => Request::CloseSession,
    }
}
