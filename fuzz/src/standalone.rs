//! The standalone server's core among clients that send anything at all.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use zklock::Time;
use zklock::proto::{ConnectRequest, OpCode, Request};
use zklock_standalone::{Action, ConnectionId, Settings, Standalone};

use crate::dice::Dice;

const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
/// What one thing that a client does can make the server say, for each client that there is.
const WORDS: usize = 4 << 20;

/// Several connections do what the bytes say.
pub fn run(data: &[u8]) {
    let mut dice = Dice::new(data);
    let mut world = World::new();
    while !dice.is_empty() {
        world.step(&mut dice);
    }
    world.now = world.now + Duration::from_secs(3600);
    world.server.advance(world.now);
    world.listen();
    assert_eq!(world.server.replica().sessions().count(), 0, "sessions outlive an hour of silence");
    assert_eq!(world.server.replica().tree().ephemeral_count(), 0, "nodes outlive their sessions");
}

struct World {
    server: Standalone,
    now: Time,
    connections: Vec<ConnectionId>,
    last: ConnectionId,
}

impl World {
    fn new() -> Self {
        let settings = Settings { frame_limit: 4096, ..Settings::for_tests() };
        let (server, now) = (Standalone::new(settings, Time::default()), Time::default());
        let mut world = Self { server, now, connections: Vec::new(), last: 0 };
        world.accept();
        world
    }

    fn accept(&mut self) {
        self.last += 1;
        self.connections.push(self.last);
        self.server.accept(self.now, self.last, PEER);
    }

    fn step(&mut self, dice: &mut Dice<'_>) {
        match dice.below(16) {
            0 if self.connections.len() < 4 => self.accept(),
            1 => self.greet(dice),
            2 => {
                let bytes = dice.bytes();
                self.send(dice, bytes);
            }
            3 => self.now = self.now + Duration::from_millis(1 << dice.below(20)),
            4 => {
                let connection = dice.below(self.connections.len());
                if !self.connections.is_empty() {
                    let gone = self.connections.swap_remove(connection);
                    self.server.closed(self.now, gone);
                }
            }
            5 => {
                let sessions: Vec<i64> = self.server.replica().sessions().map(|(id, _)| id).collect();
                if !sessions.is_empty() {
                    self.server.expire(self.now, dice.pick(&sessions));
                }
            }
            6 if dice.byte() == 0 => {
                self.server.restart(self.now);
                self.connections.clear();
            }
            7..=10 => self.request(dice),
            _ => self.record(dice),
        }
        self.server.advance(self.now);
        self.listen();
    }

    fn greet(&mut self, dice: &mut Dice<'_>) {
        let sessions: Vec<i64> = self.server.replica().sessions().map(|(id, _)| id).collect();
        let session_id = if dice.byte() < 128 || sessions.is_empty() { 0 } else { dice.pick(&sessions) };
        let password = if session_id == 0 { vec![0; 16] } else { dice.bytes().to_vec() };
        let timeout_ms = if dice.byte() < 200 { 4000 } else { dice.i32() };
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
        self.send(dice, &bytes);
    }

    /// A frame of the right length whose type is known, and nothing else.
    fn record(&mut self, dice: &mut Dice<'_>) {
        let (xid, op, body) = (dice.i32(), dice.pick(OpCode::ALL), dice.bytes());
        let length = i32::try_from(8 + body.len()).unwrap();
        let frame = [&length.to_be_bytes()[..], &xid.to_be_bytes(), &op.to_wire().to_be_bytes(), body].concat();
        self.send(dice, &frame);
    }

    /// What a client may well ask, of few nodes.
    fn request(&mut self, dice: &mut Dice<'_>) {
        let mut bytes = Vec::new();
        let request = request(dice, 2);
        if request.encode(dice.i32(), &mut bytes).is_ok() {
            self.send(dice, &bytes);
        }
    }

    fn send(&mut self, dice: &mut Dice<'_>, bytes: &[u8]) {
        if !self.connections.is_empty() {
            let connection = dice.pick(&self.connections);
            self.server.received(self.now, connection, bytes);
        }
    }

    /// Whatever it says are whole frames, to those that are there, and not too much.
    fn listen(&mut self) {
        let mut said = 0;
        while let Some(action) = self.server.poll() {
            match action {
                Action::Send(_, bytes) => said += bytes.len(),
                Action::Close(gone) | Action::Reset(gone) => {
                    self.connections.retain(|&id| id != gone);
                    self.server.closed(self.now, gone);
                }
            }
        }
        assert!(said <= WORDS, "{said} bytes for one step");
        assert!(self.server.next_timeout() > self.now, "it wants to be called again at once");
    }
}

fn request(dice: &mut Dice<'_>, depth: usize) -> Request {
    use zklock::proto::{Acl, AddWatchMode, CreateMode, WatcherType};
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
    let path = dice.pick(&PATHS).to_owned();
    let version = dice.pick(&[-1, 0, 1, i32::MAX, i32::MIN, -2]);
    let acl = match dice.below(4) {
        0..=2 => Acl::open(),
        _ => vec![Acl {
            perms: dice.i32(),
            scheme: dice.pick(&["world", "auth", "digest", "ip", ""]).to_owned(),
            id: dice.pick(&["anyone", "", "a:b", "127.0.0.1/8", "1/99"]).to_owned(),
        }],
    };
    let data = (dice.byte() < 200).then(|| dice.bytes().to_vec());
    match dice.below(22) {
        0 => Request::Create { path, data, acl, mode: dice.pick(&MODES) },
        1 => Request::Create2 { path, data, acl, mode: dice.pick(&MODES) },
        2 => Request::CreateTtl { path, data, acl, mode: dice.pick(&MODES), ttl_ms: dice.i64() },
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
            let count = dice.below(5);
            Request::Multi((0..count).map(|_| request(dice, depth - 1)).collect())
        }
        13 if depth > 0 => {
            let count = dice.below(5);
            Request::MultiRead((0..count).map(|_| request(dice, depth - 1)).collect())
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
