//! A client's engine among calls, time, and a server that is sound, lies, repeats itself, or talks nonsense.
//!
//! Whatever it says: every call is answered once, and by its deadline; nothing is held by a session that is over, nor longer than what
//! was proven, nor by a node that this session did not ask for; and the engine neither talks without end nor wants to be called again at
//! once for ever.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use zklock::engine::{Engine, LockId, LockState, News, OpId, Owner, Patience, Recipe};
use zklock::proto::{Code, EventKind, OpCode, Request, WatchEvent, encode_error};
use zklock::recipe::{Mode, Task};
use zklock::session::{Command, ConnectString, SessionConfig};
use zklock::{Event, Status, Time};
use zklock_standalone::{Action, Settings, Standalone};

use crate::dice::Dice;

const MS: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_secs(3);
/// What one step can make a client say that has so few locks.
const WORDS: usize = 1 << 20;
const PATHS: [&str; 3] = ["/a", "/b/c", "/d"];
const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

/// A client and its server do what the bytes say.
pub fn run(data: &[u8]) {
    let mut dice = Dice::new(data);
    let mut world = World::new(&mut dice);
    while !dice.is_empty() {
        world.step(&mut dice);
        world.settle();
    }
    world.end();
}

struct World {
    engine: Engine,
    server: Standalone,
    now: Time,
    locks: Vec<LockId>,
    /// The calls that are not answered yet, and when they have to be.
    calls: BTreeMap<OpId, Option<Time>>,
    leases: Vec<(LockId, Owner)>,
    link: Link,
    connections: u64,
    /// What the server has sent, and the client has not got.
    inbox: VecDeque<Vec<u8>>,
    /// The last frame that came, to come again.
    last: Vec<u8>,
    /// When the requests that prove something were sent on this connection.
    asked: Vec<Time>,
    /// The newest of them by the time when bytes came.
    proven: Option<Time>,
    /// The requests of this connection that are not answered yet, by number.
    under_way: VecDeque<i32>,
    /// The nodes that the session has asked for, by the beginning of their names; and which session that is.
    wanted: HashSet<String>,
    session: i64,
    closed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    None,
    Asked,
    Open(u64),
}

impl World {
    fn new(dice: &mut Dice<'_>) -> Self {
        let mut seed = 0_u128;
        let entropy = Box::new(move || {
            seed += 1;
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
        });
        let flags = dice.byte();
        let auth = if flags & 1 == 0 { Vec::new() } else { vec![("digest".to_owned(), b"a:b".to_vec())] };
        let config = SessionConfig {
            timeout: TIMEOUT,
            lease_margin: None,
            auth,
            frame_limit: 4096,
            limits: zklock::Limits::default(),
        };
        let chroot = if flags & 2 == 0 { "" } else { "/root" };
        let target = ConnectString::parse(&format!("s1,s2{chroot}")).unwrap();
        let now = Time::from_nanos(1);
        let mut engine = Engine::new(target, config, now, entropy);
        if flags & 4 != 0 {
            engine.wait_for_kazoo();
        }
        let mut locks = Vec::new();
        for path in PATHS {
            for recipe in [Recipe::Queue(Mode::Mutex), Recipe::Queue(Mode::Read), Recipe::Queue(Mode::Write)] {
                locks.push(engine.add_lock(path, recipe));
            }
        }
        locks.push(engine.add_lock("/e", Recipe::SemaphoreMutex));
        locks.push(engine.add_lock("/f", Recipe::Semaphore(2)));
        locks.push(engine.add_lock("/g", Recipe::CountedSemaphore { count_path: "/count".into(), initial: 2 }));
        locks.push(engine.add_lock("/a, /b/c", Recipe::Multi(Box::new([locks[0], locks[3]]))));
        let server = Standalone::new(Settings::for_tests(), now);
        let mut world = Self {
            engine,
            server,
            now,
            locks,
            calls: BTreeMap::new(),
            leases: Vec::new(),
            link: Link::None,
            connections: 0,
            inbox: VecDeque::new(),
            last: Vec::new(),
            asked: Vec::new(),
            proven: None,
            under_way: VecDeque::new(),
            wanted: HashSet::new(),
            session: 0,
            closed: false,
        };
        world.settle();
        world
    }

    fn step(&mut self, dice: &mut Dice<'_>) {
        match dice.below(24) {
            0..=4 => self.call(dice),
            // What the server has to say, all of it or the next frame.
            5 | 6 => (0..100).for_each(|_| self.deliver_next()),
            7 | 8 => self.deliver_next(),
            9..=11 => self.deliver_altered(dice),
            12 => self.deliver(dice.bytes()),
            13 => self.forge_reply(dice),
            14 => self.forge_event(dice),
            15 => self.forge_connect_response(dice),
            16 | 17 => self.now = self.now + MS * (1 << dice.below(14)),
            18 => self.cut(dice),
            19 => {
                let sessions: Vec<i64> = self.server.replica().sessions().map(|(id, _)| id).collect();
                if !sessions.is_empty() {
                    self.server.expire(self.now, dice.pick(&sessions));
                }
            }
            20 => self.inbox.clear(),
            21 => self.deliver(&self.last.clone()),
            22 if self.inbox.len() > 1 => self.inbox.swap(0, 1),
            _ => self.connect(),
        }
    }

    // The program.

    fn call(&mut self, dice: &mut Dice<'_>) {
        let lock = dice.pick(&self.locks);
        let owner = Owner::Thread(1 + dice.below(2) as u64);
        let limit = self.now + MS * (1 << dice.below(14));
        let patience = dice.pick(&[Patience::Until(limit), Patience::Forever, Patience::OneLook(limit)]);
        let deadline = if patience == Patience::Forever { None } else { Some(limit) };
        let (soon, now) = (Some(self.now + self.engine.session_timeout()), self.now);
        let is_semaphore = self.locks[10..12].contains(&lock);
        let (op, deadline) = match dice.below(12) {
            0..=3 if is_semaphore => {
                let (op, owner) = self.engine.acquire_leases(now, lock, dice.below(4) as u32, patience);
                self.leases.push((lock, owner));
                (op, deadline)
            }
            0..=3 => (self.engine.acquire(now, lock, owner, patience), deadline),
            4 | 5 if is_semaphore && !self.leases.is_empty() => {
                let at = dice.below(self.leases.len());
                let (lock, owner) = self.leases.swap_remove(at);
                (self.engine.release(now, lock, owner, dice.byte() < 128), soon)
            }
            4 | 5 => (self.engine.release(now, lock, owner, dice.byte() < 128), soon),
            6 => (self.engine.participants(now, lock, dice.byte() < 128), soon),
            7 => {
                let path = || "/count".to_owned();
                let task = match dice.below(5) {
                    0 => Task::GetCount { path: path() },
                    1 => Task::SetCount { path: path(), value: dice.i32() },
                    2 => Task::SeedCount { path: path(), value: dice.i32() },
                    3 => Task::List { path: dice.pick(&PATHS).to_owned() },
                    _ => Task::Revoke { path: path() },
                };
                (self.engine.errand(now, task), soon)
            }
            8 => return self.engine.cancel(now, lock),
            9 => {
                if let Some(&op) = self.calls.keys().next() {
                    self.engine.cancel_op(now, op);
                }
                return;
            }
            10 => return self.engine.set_revocable(now, lock, dice.byte() < 128),
            _ => match dice.below(16) {
                0 if self.locks.len() > 13 => return self.engine.remove_lock(now, lock),
                1 => {
                    self.closed = true;
                    (self.engine.close(now), soon)
                }
                2 => return self.engine.close_entrance(now, lock),
                3 | 4 => return drop(self.engine.set_local_handover(lock, u32::from(dice.byte() % 4))),
                _ => return self.engine.set_data(lock, Some(dice.bytes())),
            },
        };
        assert!(self.calls.insert(op, deadline).is_none(), "two calls have one number");
    }

    // The network.

    fn connect(&mut self) {
        if self.link == Link::Asked {
            self.connections += 1;
            self.link = Link::Open(self.connections);
            self.server.accept(self.now, self.connections, PEER);
            self.engine.connected(self.now, "10.0.0.1");
        }
    }

    fn cut(&mut self, dice: &mut Dice<'_>) {
        let Link::Open(connection) = self.link else { return };
        // A client whose connection went without a word finds out by itself.
        if dice.byte() > 200 {
            self.server.closed(self.now, connection);
            self.inbox.clear();
            self.link = Link::None;
            return;
        }
        self.hang_up();
        self.engine.disconnected(self.now, "cut");
    }

    fn hang_up(&mut self) {
        if let Link::Open(connection) = self.link {
            self.server.closed(self.now, connection);
        }
        self.link = Link::None;
        self.inbox.clear();
        self.asked.clear();
        self.proven = None;
        self.under_way.clear();
    }

    fn deliver_next(&mut self) {
        if let Some(frame) = self.inbox.pop_front() {
            self.deliver(&frame);
        }
    }

    fn deliver_altered(&mut self, dice: &mut Dice<'_>) {
        let Some(mut frame) = self.inbox.pop_front() else { return };
        let at = dice.below(frame.len());
        match dice.below(8) {
            0 => frame[at] = dice.byte(),
            1 => frame[at] ^= 1 << dice.below(8),
            2 => frame.truncate(at),
            3 => frame.extend_from_slice(dice.bytes()),
            4 if frame.len() >= 20 => {
                let code = dice.pick(&[-1, -2, -4, -7, -101, -102, -110, -112, -115, -118, -127, -9999, 7]);
                let header: Vec<u8> = frame[4..16].to_vec();
                frame = [&16_i32.to_be_bytes()[..], &header, &i32::to_be_bytes(code)].concat();
            }
            // Another number, another zxid, another time-out, another session.
            _ => {
                let place = dice.below(4);
                if let Some(bytes) = frame.get_mut([4..8, 8..16, 12..20, 8..12][place].clone()) {
                    let other = dice.i64().to_be_bytes();
                    let count = bytes.len();
                    bytes.copy_from_slice(&other[..count]);
                }
            }
        }
        self.deliver(&frame);
    }

    /// The answer that is due, but for what is in it.
    fn forge_reply(&mut self, dice: &mut Dice<'_>) {
        let xid = match dice.below(4) {
            0 => dice.pick(&[-1, -2, -4, -8, 0]),
            _ => self.under_way.front().copied().unwrap_or_default(),
        };
        let mut frame = Vec::new();
        encode_error(
            xid,
            dice.pick(&[1, 0, -1, i64::MAX, i64::MIN]),
            Code(dice.pick(&[0, 0, 0, -101, -112, -4, -110])),
            &mut frame,
        );
        frame.extend_from_slice(dice.bytes());
        let length = i32::try_from(frame.len() - 4).unwrap();
        frame[..4].copy_from_slice(&length.to_be_bytes());
        self.deliver(&frame);
    }

    fn forge_event(&mut self, dice: &mut Dice<'_>) {
        let watched = self.server.replica().tree().get("/a").map(|_| "/a").unwrap_or("/");
        let path = match dice.below(3) {
            0 => String::from_utf8_lossy(dice.bytes()).into_owned(),
            1 => watched.to_owned(),
            _ => self.held_nodes().pop().unwrap_or_default(),
        };
        let mut frame = Vec::new();
        WatchEvent { kind: dice.pick(EventKind::ALL), state: dice.i32(), path }.encode(-1, &mut frame);
        self.deliver(&frame);
    }

    fn forge_connect_response(&mut self, dice: &mut Dice<'_>) {
        let response = zklock::proto::ConnectResponse {
            protocol_version: 0,
            timeout_ms: dice.pick(&[3_000, 1, 0, -1, i32::MAX, i32::MIN, 40_000]),
            session_id: dice.pick(&[self.session, 77, 0, -1, i64::MIN]),
            password: dice.bytes().to_vec(),
            read_only: dice.byte() > 200,
        };
        let mut frame = Vec::new();
        response.encode(&mut frame);
        self.deliver(&frame);
    }

    fn deliver(&mut self, bytes: &[u8]) {
        let Link::Open(_) = self.link else { return };
        self.last = bytes.to_vec();
        self.proven = self.proven.max(self.asked.last().copied());
        let xid = bytes.get(4..8).map(|xid| i32::from_be_bytes(xid.try_into().unwrap()));
        if xid.is_some() && xid == self.under_way.front().copied() {
            self.under_way.pop_front();
        }
        if self.engine.received(self.now, bytes).is_break() {
            self.hang_up();
        }
        self.settle();
    }

    // What comes of it.

    fn settle(&mut self) {
        for _ in 0..200 {
            self.server.advance(self.now);
            self.obey();
            self.listen();
            self.note_answers();
            if self.engine.next_timeout().is_none_or(|at| at > self.now) {
                self.check_session();
                self.check_holds();
                self.check_deadlines();
                return;
            }
            self.engine.advance(self.now);
        }
        panic!("it wants to be called again at once for ever");
    }

    fn obey(&mut self) {
        while let Some(command) = self.engine.poll_command() {
            self.hang_up();
            if let Command::Connect(_) = command {
                self.link = Link::Asked;
            }
        }
        let bytes = std::mem::take(self.engine.output());
        assert!(bytes.len() <= WORDS, "it said {} bytes at once", bytes.len());
        let Link::Open(connection) = self.link else { return };
        if bytes.is_empty() {
            return;
        }
        self.note_requests(&bytes);
        self.server.received(self.now, connection, &bytes);
    }

    fn note_requests(&mut self, bytes: &[u8]) {
        self.check_session();
        let mut rest = bytes;
        while let Some((length, behind)) = rest.split_first_chunk::<4>() {
            let length = usize::try_from(i32::from_be_bytes(*length)).expect("a frame of a negative length");
            let (frame, behind) = behind.split_at_checked(length).expect("half a frame");
            rest = behind;
            match Request::decode(frame) {
                // The first frame is no request, and looks like none.
                _ if self.under_way.is_empty() && self.asked.is_empty() => self.asked.push(self.now),
                Ok((xid, request)) => self.note_request(xid, &request),
                Err(error) => panic!("it sent what no server understands: {error}"),
            }
        }
    }

    fn note_request(&mut self, xid: i32, request: &Request) {
        if xid > 0 {
            self.under_way.push_back(xid);
        }
        match request {
            Request::Create2 { path, .. } | Request::Create { path, .. } => {
                self.wanted.insert(path.clone());
            }
            Request::Multi(all) => all.iter().for_each(|each| self.note_request(0, each)),
            _ => {}
        }
        if matches!(request.op(), OpCode::Create | OpCode::Create2 | OpCode::Delete | OpCode::Multi | OpCode::SetData) {
            self.asked.push(self.now);
        }
    }

    fn listen(&mut self) {
        while let Some(action) = self.server.poll() {
            match (action, self.link) {
                (Action::Send(to, bytes), Link::Open(connection)) if to == connection => self.post(&bytes),
                (Action::Close(gone) | Action::Reset(gone), Link::Open(connection)) if gone == connection => {
                    self.server.closed(self.now, gone);
                    self.hang_up();
                    self.engine.disconnected(self.now, "the server closed it");
                }
                _ => {}
            }
        }
    }

    /// Frame by frame.
    fn post(&mut self, mut bytes: &[u8]) {
        while let Some(length) = bytes.first_chunk::<4>() {
            let length = 4 + usize::try_from(i32::from_be_bytes(*length)).unwrap();
            let (frame, rest) = bytes.split_at(length);
            self.inbox.push_back(frame.to_vec());
            bytes = rest;
        }
    }

    fn note_answers(&mut self) {
        while let Some((op, answer)) = self.engine.poll_answer() {
            assert!(self.calls.remove(&op).is_some(), "call {op} was answered twice, or is none");
            if let Err(error) = answer {
                assert!(!error.message().is_empty(), "{:?} without a message", error.status());
                assert!(error.message().len() < 64 * 1024, "a message of {} bytes", error.message().len());
            }
        }
        while let Some(news) = self.engine.poll_news() {
            match news {
                News::Event(Event::Client { state, previous }) => assert_ne!(state, previous),
                News::Event(Event::Lock { state, previous, .. }) => assert_ne!(state, previous),
                News::Revocation(_) => {}
            }
        }
    }

    fn check_session(&mut self) {
        let session = self.engine.session_id();
        if session != self.session {
            self.session = session;
            self.wanted.clear();
        }
    }

    fn held_nodes(&self) -> Vec<String> {
        self.holds().flat_map(|(lock, owner)| self.engine.nodes_of(lock, owner)).collect()
    }

    fn holds(&self) -> impl Iterator<Item = (LockId, Owner)> {
        let threads = self.locks.iter().flat_map(|&lock| [1, 2].map(|thread| (lock, Owner::Thread(thread))));
        threads.chain(self.leases.iter().copied())
    }

    /// Safe is only what this session asked for, and what was sent lately and may have been answered.
    fn check_holds(&self) {
        let chroot_and = |node: &str| [node.to_owned(), format!("/root{node}")];
        for (lock, owner) in self.holds() {
            let Some(view) = self.engine.hold_of(self.now, lock, owner) else { continue };
            if !matches!(view.state, LockState::Held | LockState::Suspended) {
                assert_eq!(view.remaining, Duration::ZERO);
                continue;
            }
            assert!(self.session != 0, "held without a session");
            assert!(view.remaining <= self.engine.session_timeout(), "held for longer than a session lives");
            for node in self.engine.nodes_of(lock, owner) {
                let is_wanted = |name: &str| self.wanted.iter().any(|asked| name.starts_with(asked.as_str()));
                assert!(chroot_and(&node).iter().any(|name| is_wanted(name)), "held by {node}, which nobody asked for");
            }
            if view.state == LockState::Held {
                let proven = self.proven.expect("held, and nothing was answered");
                assert!(self.now < proven + self.engine.session_timeout(), "held for longer than was proven");
            }
        }
    }

    fn check_deadlines(&self) {
        for (op, deadline) in &self.calls {
            assert!(deadline.is_none_or(|at| at > self.now), "call {op} is not answered in time");
        }
    }

    /// Nobody answers any more; what has an end comes to it. Then the client is closed.
    fn end(&mut self) {
        for _ in 0..40 {
            self.now = self.now + TIMEOUT / 4;
            self.settle();
        }
        if !self.closed {
            let op = self.engine.close(self.now);
            self.calls.insert(op, Some(self.now + Duration::from_secs(2)));
            self.settle();
        }
        self.now = self.now + Duration::from_secs(3);
        self.settle();
        assert!(self.calls.is_empty(), "calls outlive their client: {:?}", self.calls);
        assert!(self.engine.next_timeout().is_none(), "a closed client wants to be called again");
        let op = self.engine.acquire(self.now, self.locks[0], Owner::Thread(1), Patience::Forever);
        let (answered, answer) = self.engine.poll_answer().expect("a closed client keeps a caller waiting");
        assert_eq!((answered, answer.map_err(|error| error.status())), (op, Err(Status::Closed)));
    }
}
