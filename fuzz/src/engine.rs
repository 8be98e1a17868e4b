//! Tests a client's engine with random operations, times and servers. The server may be correct, send wrong replies, repeat itself, or send
//! arbitrary bytes.
//!
//! The following must hold in all cases. Every operation ends once, and not later than its deadline. A hold belongs to the current session,
//! is safe only as long as it was proven, and has a node that this session requested. If the server requires SASL, no request precedes the
//! proofs of both sides. The engine sends a bounded number of bytes, and does not request immediate further calls endlessly.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use arbitrary::Unstructured;
use zklock_core::engine::Event;
use zklock_core::engine::{AcquireLimit, CLOSE_LIMIT, Engine, LockId, LockState, Notification, OpId, Owner, Recipe};
use zklock_core::error::Status;
use zklock_core::recipe::{Mode, NodeRequest};
use zklock_core::session::{
    ClientPorts, Command, ConnectString, ConnectionEvent, Credentials, SaslMechanism, SessionConfig,
};
use zklock_core::time::Time;
use zklock_proto::{Code, EventKind, OpCode, Request, WatchEvent, encode_error};
use zklock_sim::ClientSasl;
use zklock_standalone::{ConnectionAction, ServerCore, Settings};

use crate::choices::Choices;

const MS: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_secs(3);
/// The maximum number of bytes that a client with a few locks may send in one step.
const MAX_OUTPUT_BYTES: usize = 1 << 20;
const SASL_SECRET: u64 = 7;
const PATHS: [&str; 3] = ["/a", "/b/c", "/d"];
const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

/// Performs the actions of a client and its server that the bytes determine.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let mut harness = EngineHarness::new(&mut input);
    while !input.is_empty() {
        harness.step(&mut input);
        harness.run_until_idle();
    }
    harness.finish();
}

struct EngineHarness {
    engine: Engine,
    server: ServerCore,
    now: Time,
    locks: Vec<LockId>,
    /// The operations in progress, with the times at which they must end.
    calls: BTreeMap<OpId, Option<Time>>,
    leases: Vec<(LockId, Owner)>,
    link: LinkState,
    connections: u64,
    /// Data that the server has sent and the client has not received.
    undelivered: VecDeque<Vec<u8>>,
    /// The last frame that was delivered, which may be delivered again.
    last: Vec<u8>,
    /// Send times of the requests on this connection that can prove the session.
    proof_sent_at: Vec<Time>,
    /// The latest of these times that was before the last received bytes.
    proven_at: Option<Time>,
    /// The xids of the requests on this connection without a reply.
    pending_xids: VecDeque<i32>,
    /// The beginnings of the node names that the session has requested. The next field is the id of this session.
    wanted: HashSet<String>,
    session: i64,
    closed: bool,
    has_credentials: bool,
    needs_sasl: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkState {
    Disconnected,
    Connecting,
    Connected(u64),
}

impl EngineHarness {
    fn new(input: &mut Unstructured<'_>) -> Self {
        let mut seed = 0_u128;
        let entropy = Box::new(move || {
            seed += 1;
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
        });
        let flags = input.byte();
        let config = SessionConfig {
            timeout: TIMEOUT,
            lease_margin: None,
            follow_config: (flags & 16 != 0).then_some(ClientPorts::Plain),
            frame_limit: 4096,
            limits: zklock_core::limits::Limits::default(),
        };
        let chroot = if flags & 2 == 0 { "" } else { "/root" };
        let target = ConnectString::parse(&format!("s1,s2{chroot}")).unwrap();
        let now = Time::from_nanos(1);
        let mut engine = Engine::new(target, config, now, entropy);
        if flags & 4 != 0 {
            engine.enable_kazoo_queuing();
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
        locks.push(engine.add_lock("/a, /b/c", Recipe::MultiLock(Box::new([locks[0], locks[3]]))));
        let needs_sasl = flags & 8 != 0;
        let settings = Settings { sasl_secret: needs_sasl.then_some(SASL_SECRET), ..Settings::for_tests() };
        let server = ServerCore::new(settings, now);
        let mut harness = Self {
            engine,
            server,
            now,
            locks,
            calls: BTreeMap::new(),
            leases: Vec::new(),
            link: LinkState::Disconnected,
            connections: 0,
            undelivered: VecDeque::new(),
            last: Vec::new(),
            proof_sent_at: Vec::new(),
            proven_at: None,
            pending_xids: VecDeque::new(),
            wanted: HashSet::new(),
            session: 0,
            closed: false,
            has_credentials: flags & 1 != 0,
            needs_sasl,
        };
        harness.run_until_idle();
        harness
    }

    fn step(&mut self, input: &mut Unstructured<'_>) {
        match input.index(24) {
            0..=4 => self.call(input),
            // Deliver all data from the server, or only the next frame.
            5 | 6 => (0..100).for_each(|_| self.deliver_next()),
            7 | 8 => self.deliver_next(),
            9..=11 => self.deliver_altered(input),
            12 => self.deliver(input.some_bytes()),
            13 => self.forge_reply(input),
            14 => self.forge_event(input),
            15 => self.forge_connect_response(input),
            16 | 17 => self.now = self.now + MS * (1 << input.index(14)),
            18 => self.cut(input),
            19 => {
                let sessions: Vec<i64> = self.server.replica().sessions().map(|(id, _)| id).collect();
                if !sessions.is_empty() {
                    self.server.expire(self.now, input.pick(&sessions));
                }
            }
            20 => self.undelivered.clear(),
            21 => self.deliver(&self.last.clone()),
            22 if self.undelivered.len() > 1 => self.undelivered.swap(0, 1),
            _ => self.connect(),
        }
    }

    // The program.

    fn call(&mut self, input: &mut Unstructured<'_>) {
        let lock = input.pick(&self.locks);
        let owner = Owner::task(1 + input.index(2) as u64);
        let limit = self.now + MS * (1 << input.index(14));
        let acquire_limit =
            input.pick(&[AcquireLimit::Until(limit), AcquireLimit::Unlimited, AcquireLimit::TryOnce(limit)]);
        let deadline = if acquire_limit == AcquireLimit::Unlimited { None } else { Some(limit) };
        let (soon, now) = (Some(self.now + self.engine.session_timeout()), self.now);
        let is_semaphore = self.locks[10..12].contains(&lock);
        let (op, deadline) = match input.index(12) {
            0..=3 if is_semaphore => {
                let (op, owner) = self.engine.acquire_leases(now, lock, input.index(6) as i32 - 1, acquire_limit);
                self.leases.push((lock, owner));
                (op, deadline)
            }
            0..=3 => (self.engine.acquire(now, lock, owner, acquire_limit), deadline),
            4 | 5 if is_semaphore && !self.leases.is_empty() => {
                let at = input.index(self.leases.len());
                let (lock, owner) = self.leases.swap_remove(at);
                (self.engine.release(now, lock, owner, input.byte() < 128), soon)
            }
            4 | 5 => (self.engine.release(now, lock, owner, input.byte() < 128), soon),
            6 => (self.engine.participants(now, lock, input.byte() < 128), soon),
            7 => {
                let path = || "/count".to_owned();
                let task = match input.index(5) {
                    0 => NodeRequest::GetCount { path: path() },
                    1 => NodeRequest::SetCount { path: path(), value: input.i32() },
                    2 => NodeRequest::CreateCount { path: path(), value: input.i32() },
                    3 => NodeRequest::CountChildren { path: input.pick(&PATHS).to_owned() },
                    _ => NodeRequest::Revoke { path: path() },
                };
                (self.engine.start_node_request(now, task), soon)
            }
            8 => return self.engine.cancel_waits(now, lock),
            9 => {
                if let Some(&op) = self.calls.keys().next() {
                    self.engine.cancel_op(now, op);
                }
                return;
            }
            10 => return self.engine.set_revocable(now, lock, input.byte() < 128),
            _ => match input.index(16) {
                0 if self.locks.len() > 13 => return self.engine.remove_lock(now, lock),
                1 => {
                    self.closed = true;
                    (self.engine.close(now, now + CLOSE_LIMIT), soon)
                }
                2 => return self.engine.close_waits(now, lock),
                5 => return self.engine.begin_close(now),
                6 => return self.set_servers(input),
                3 | 4 => return drop(self.engine.set_local_handover(lock, u32::from(input.byte() % 4))),
                _ => return self.engine.set_data(lock, Some(input.some_bytes())),
            },
        };
        assert!(self.calls.insert(op, deadline).is_none(), "two calls have the same number");
    }

    fn set_servers(&mut self, input: &mut Unstructured<'_>) {
        let list = input.pick(&["s1", "s2,s3", "s1,s2", "s1,s2,s3,s4", "s1/other"]);
        let is_set = self.engine.set_servers(self.now, ConnectString::parse(list).unwrap()).is_ok();
        assert_eq!(is_set, list != "s1/other");
    }

    // The network.

    fn connect(&mut self) {
        if self.link == LinkState::Connecting {
            self.connections += 1;
            self.link = LinkState::Connected(self.connections);
            self.server.accept(self.now, self.connections, PEER);
            let credentials = || Credentials { scheme: "digest".to_owned(), data: b"a:b".to_vec().into() };
            let credentials = self.has_credentials.then(credentials).into_iter().collect();
            let sasl = || -> Box<dyn SaslMechanism> { Box::new(ClientSasl::new(SASL_SECRET, self.connections)) };
            self.engine.set_credentials(credentials, self.needs_sasl.then(sasl));
            self.engine.on_connection_event(self.now, ConnectionEvent::Connected("10.0.0.1"));
        }
    }

    fn cut(&mut self, input: &mut Unstructured<'_>) {
        let LinkState::Connected(connection) = self.link else { return };
        // If the connection is lost silently, the client must detect it by itself.
        if input.byte() > 200 {
            self.server.closed(self.now, connection);
            self.undelivered.clear();
            self.link = LinkState::Disconnected;
            return;
        }
        self.drop_connection();
        self.engine.on_connection_event(self.now, ConnectionEvent::Disconnected("cut"));
    }

    fn drop_connection(&mut self) {
        if let LinkState::Connected(connection) = self.link {
            self.server.closed(self.now, connection);
        }
        self.link = LinkState::Disconnected;
        self.undelivered.clear();
        self.proof_sent_at.clear();
        self.proven_at = None;
        self.pending_xids.clear();
    }

    fn deliver_next(&mut self) {
        if let Some(frame) = self.undelivered.pop_front() {
            self.deliver(&frame);
        }
    }

    fn deliver_altered(&mut self, input: &mut Unstructured<'_>) {
        let Some(mut frame) = self.undelivered.pop_front() else { return };
        let at = input.index(frame.len());
        match input.index(8) {
            0 => frame[at] = input.byte(),
            1 => frame[at] ^= 1 << input.index(8),
            2 => frame.truncate(at),
            3 => frame.extend_from_slice(input.some_bytes()),
            4 if frame.len() >= 20 => {
                let code = input.pick(&[-1, -2, -4, -7, -101, -102, -110, -112, -115, -118, -127, -9999, 7]);
                let header: Vec<u8> = frame[4..16].to_vec();
                frame = [&16_i32.to_be_bytes()[..], &header, &i32::to_be_bytes(code)].concat();
            }
            // Replace the xid, the zxid, the session timeout or the session id.
            _ => {
                let place = input.index(4);
                if let Some(bytes) = frame.get_mut([4..8, 8..16, 12..20, 8..12][place].clone()) {
                    let other = input.i64().to_be_bytes();
                    let count = bytes.len();
                    bytes.copy_from_slice(&other[..count]);
                }
            }
        }
        self.deliver(&frame);
    }

    /// Delivers a reply with the expected xid and arbitrary content.
    fn forge_reply(&mut self, input: &mut Unstructured<'_>) {
        let xid = match input.index(4) {
            0 => input.pick(&[-1, -2, -4, -8, 0]),
            _ => self.pending_xids.front().copied().unwrap_or_default(),
        };
        let mut frame = Vec::new();
        encode_error(
            xid,
            input.pick(&[1, 0, -1, i64::MAX, i64::MIN]),
            Code(input.pick(&[0, 0, 0, -101, -112, -4, -110])),
            &mut frame,
        );
        frame.extend_from_slice(input.some_bytes());
        let length = i32::try_from(frame.len() - 4).unwrap();
        frame[..4].copy_from_slice(&length.to_be_bytes());
        self.deliver(&frame);
    }

    fn forge_event(&mut self, input: &mut Unstructured<'_>) {
        let watched = self.server.replica().tree().get("/a").map(|_| "/a").unwrap_or("/");
        let path = match input.index(3) {
            0 => String::from_utf8_lossy(input.some_bytes()).into_owned(),
            1 => watched.to_owned(),
            _ => self.held_nodes().pop().unwrap_or_default(),
        };
        let mut frame = Vec::new();
        WatchEvent { kind: input.pick(EventKind::ALL), state: input.i32(), path }.encode(-1, &mut frame);
        self.deliver(&frame);
    }

    fn forge_connect_response(&mut self, input: &mut Unstructured<'_>) {
        let response = zklock_proto::ConnectResponse {
            protocol_version: 0,
            timeout_ms: input.pick(&[3_000, 1, 0, -1, i32::MAX, i32::MIN, 40_000]),
            session_id: input.pick(&[self.session, 77, 0, -1, i64::MIN]),
            password: input.some_bytes().to_vec(),
            read_only: input.byte() > 200,
        };
        let mut frame = Vec::new();
        response.encode(&mut frame);
        self.deliver(&frame);
    }

    fn deliver(&mut self, bytes: &[u8]) {
        let LinkState::Connected(_) = self.link else { return };
        self.last = bytes.to_vec();
        self.proven_at = self.proven_at.max(self.proof_sent_at.last().copied());
        let xid = bytes.get(4..8).map(|xid| i32::from_be_bytes(xid.try_into().unwrap()));
        if xid.is_some() && xid == self.pending_xids.front().copied() {
            self.pending_xids.pop_front();
        }
        if self.engine.received(self.now, bytes).is_break() {
            self.drop_connection();
        }
        self.run_until_idle();
    }

    // Checks.

    fn run_until_idle(&mut self) {
        for _ in 0..200 {
            self.server.advance(self.now);
            self.apply_commands();
            self.process_server_actions();
            self.check_answers();
            if self.engine.next_timeout().is_none_or(|at| at > self.now) {
                self.check_session();
                self.check_holds();
                self.check_deadlines();
                return;
            }
            self.engine.advance(self.now);
        }
        panic!("the engine requests another call at once without end");
    }

    fn apply_commands(&mut self) {
        while let Some(command) = self.engine.poll_command() {
            if command == Command::Load {
                // This shell needs no inputs to connect.
                self.engine.on_connection_event(self.now, ConnectionEvent::InputsLoaded);
                continue;
            }
            self.drop_connection();
            if let Command::Connect(_) = command {
                self.link = LinkState::Connecting;
            }
        }
        let bytes = std::mem::take(self.engine.output());
        assert!(bytes.len() <= MAX_OUTPUT_BYTES, "the engine sent {} bytes at once", bytes.len());
        let LinkState::Connected(connection) = self.link else { return };
        if bytes.is_empty() {
            return;
        }
        self.record_requests(&bytes);
        self.server.received(self.now, connection, &bytes);
        let early = self.server.replica().early_requests();
        assert_eq!(early, 0, "a request precedes the proofs of both sides");
    }

    fn record_requests(&mut self, bytes: &[u8]) {
        self.check_session();
        let mut rest = bytes;
        while let Some((length, behind)) = rest.split_first_chunk::<4>() {
            let length = usize::try_from(i32::from_be_bytes(*length)).expect("a frame has a negative length");
            let (frame, behind) = behind.split_at_checked(length).expect("a frame is incomplete");
            rest = behind;
            match Request::decode(frame) {
                // The first frame is the handshake, which is not a request.
                _ if self.pending_xids.is_empty() && self.proof_sent_at.is_empty() => self.proof_sent_at.push(self.now),
                Ok((xid, request)) => self.record_request(xid, &request),
                Err(error) => panic!("the engine sent an invalid request: {error}"),
            }
        }
    }

    fn record_request(&mut self, xid: i32, request: &Request) {
        if xid > 0 {
            self.pending_xids.push_back(xid);
        }
        match request {
            Request::Create2 { path, .. } | Request::Create { path, .. } => {
                self.wanted.insert(path.clone());
            }
            Request::Multi(all) => all.iter().for_each(|each| self.record_request(0, each)),
            _ => {}
        }
        if matches!(request.op(), OpCode::Create | OpCode::Create2 | OpCode::Delete | OpCode::Multi | OpCode::SetData) {
            self.proof_sent_at.push(self.now);
        }
    }

    fn process_server_actions(&mut self) {
        while let Some(action) = self.server.poll() {
            match (action, self.link) {
                (ConnectionAction::Send(to, bytes), LinkState::Connected(connection)) if to == connection => {
                    self.queue_frames(&bytes);
                }
                (ConnectionAction::Close(gone) | ConnectionAction::Reset(gone), LinkState::Connected(connection))
                    if gone == connection =>
                {
                    self.server.closed(self.now, gone);
                    self.drop_connection();
                    self.engine.on_connection_event(
                        self.now,
                        ConnectionEvent::Disconnected("the server closed the connection"),
                    );
                }
                _ => {}
            }
        }
    }

    /// Adds the frames in `bytes` to the data that the client has not received.
    fn queue_frames(&mut self, mut bytes: &[u8]) {
        while let Some(length) = bytes.first_chunk::<4>() {
            let length = 4 + usize::try_from(i32::from_be_bytes(*length)).unwrap();
            let (frame, rest) = bytes.split_at(length);
            self.undelivered.push_back(frame.to_vec());
            bytes = rest;
        }
    }

    fn check_answers(&mut self) {
        while let Some((op, answer)) = self.engine.poll_answer() {
            assert!(self.calls.remove(&op).is_some(), "call {op:?} was answered twice, or was never made");
            if let Err(error) = answer {
                assert!(!error.message().is_empty(), "{:?} without a message", error.status());
                assert!(error.message().len() < 64 * 1024, "a message of {} bytes", error.message().len());
            }
        }
        while let Some(news) = self.engine.poll_notification() {
            match news {
                Notification::Event(event) | Notification::Forfeit(event) => match event {
                    Event::Client { state, previous, .. } => assert_ne!(state, previous),
                    Event::Lock { state, previous, .. } => assert_ne!(state, previous),
                    event => panic!("an event of an unknown kind: {event:?}"),
                },
                Notification::Revocation(_) => {}
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
        let threads = self.locks.iter().flat_map(|&lock| [1, 2].map(|thread| (lock, Owner::task(thread))));
        threads.chain(self.leases.iter().copied())
    }

    /// Checks that a safe hold has a node that this session requested, and that the session was proven recently enough.
    fn check_holds(&self) {
        let chroot_and = |node: &str| [node.to_owned(), format!("/root{node}")];
        for (lock, owner) in self.holds() {
            let Some(view) = self.engine.hold_of(self.now, lock, owner) else { continue };
            if !matches!(view.state, LockState::Held | LockState::Suspended) {
                assert_eq!(view.remaining, Duration::ZERO);
                continue;
            }
            assert!(self.session != 0, "held without a session");
            assert!(
                view.remaining <= self.engine.session_timeout(),
                "the remaining time is longer than the session timeout"
            );
            for node in self.engine.nodes_of(lock, owner) {
                let is_wanted = |name: &str| self.wanted.iter().any(|asked| name.starts_with(asked.as_str()));
                assert!(
                    chroot_and(&node).iter().any(|name| is_wanted(name)),
                    "held by {node}, which the client did not request"
                );
            }
            if view.state == LockState::Held {
                let proven_at = self.proven_at.expect("a hold, but no answer of the server");
                assert!(
                    self.now < proven_at + self.engine.session_timeout(),
                    "the hold is safe for longer than the last proof allows"
                );
            }
        }
    }

    fn check_deadlines(&self) {
        for (op, deadline) in &self.calls {
            assert!(deadline.is_none_or(|at| at > self.now), "call {op:?} was not answered before its deadline");
        }
    }

    /// Lets the server be silent until all deadlines have passed, and then closes the client.
    fn finish(&mut self) {
        for _ in 0..40 {
            self.now = self.now + TIMEOUT / 4;
            self.run_until_idle();
        }
        if !self.closed {
            let op = self.engine.close(self.now, self.now + CLOSE_LIMIT);
            self.calls.insert(op, Some(self.now + Duration::from_secs(2)));
            self.run_until_idle();
        }
        self.now = self.now + Duration::from_secs(3);
        self.run_until_idle();
        assert!(self.calls.is_empty(), "calls still run after the client was closed: {:?}", self.calls);
        assert!(self.engine.next_timeout().is_none(), "a closed client still has a timer");
        let op = self.engine.acquire(self.now, self.locks[0], Owner::task(1), AcquireLimit::Unlimited);
        let (answered, answer) = self.engine.poll_answer().expect("a closed client does not answer at once");
        assert_eq!((answered, answer.map_err(|error| error.status())), (op, Err(Status::Closed)));
    }
}
