//! Tests of an engine whose server stores only a set of nodes.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

use zklock_proto::{
    Code, ConnectResponse, CreateMode, EventKind, Frames, MultiResult, OpCode, Request, Response, Stat, WatchEvent,
    encode_error,
};

use super::*;
use crate::error::{Error, Result, Status};
use crate::limits::Limits;
use crate::mutant::Mutant;
use crate::recipe::Mode;
use crate::session::{Command, ConnectString, ConnectionEvent, SessionConfig};
use crate::time::Time;

/// The fixed time that all tests use.
const NOW: Time = Time::from_nanos(1_000_000_000_000);

struct Peer {
    engine: Engine,
    /// The requests on this connection that the server has not answered yet, each with its xid.
    read: VecDeque<(i32, Request)>,
    nodes: BTreeSet<String>,
    last_number: i32,
    refuses_deletes: bool,
    /// True if the lists of the server never contain a node of the client.
    hides_nodes: bool,
    /// The size of the data in each node.
    data_bytes: usize,
}

impl Peer {
    fn new(chroot: &str) -> Self {
        let config = SessionConfig {
            timeout: Duration::from_secs(12),
            lease_margin: None,
            follow_config: None,
            frame_limit: 1 << 20,
            limits: Limits::default(),
        };
        let target = ConnectString::parse(&format!("s:1{chroot}")).unwrap();
        let mut chance: u128 = 7;
        let entropy = Box::new(move || {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            chance
        });
        Self {
            engine: Engine::new(target, config, NOW, entropy),
            read: VecDeque::new(),
            nodes: BTreeSet::new(),
            last_number: 0,
            refuses_deletes: false,
            hides_nodes: false,
            data_bytes: 0,
        }
    }

    fn connect(&mut self) {
        self.connect_at(NOW);
    }

    fn connect_at(&mut self, now: Time) {
        self.await_attempt(now);
        self.answer_handshake(now, &welcome());
    }

    /// Connects, and answers with this connect response. Returns the time at which the client has connected.
    fn connect_with(&mut self, now: Time, response: &[u8]) -> Time {
        let now = self.await_attempt(now);
        self.answer_handshake(now, response);
        now
    }

    /// Waits until the client connects. Returns the time.
    fn await_attempt(&mut self, mut now: Time) -> Time {
        while !matches!(self.engine.poll_command(), Some(Command::Connect(_))) {
            now = self.engine.next_timeout().unwrap();
            self.engine.advance(now);
        }
        now
    }

    fn answer_handshake(&mut self, now: Time, response: &[u8]) {
        self.engine.on_connection_event(now, ConnectionEvent::Connected("local"));
        self.engine.output().clear();
        self.read.clear();
        let _ = self.engine.received(now, response);
    }

    /// Returns the types of the requests on this connection that the server has not answered yet.
    fn sent(&mut self) -> Vec<OpCode> {
        let mut frames = Frames::new(1 << 20);
        frames.push(&std::mem::take(self.engine.output()));
        while let Some(frame) = frames.next().unwrap() {
            let (xid, request) = Request::decode(&frame).unwrap();
            // The tests ignore pings, which have a negative xid.
            self.read.extend((xid > 0).then_some((xid, request)));
        }
        self.read.iter().map(|(_, request)| request.op()).collect()
    }

    /// Answers the oldest request that the server has not answered yet.
    fn answer(&mut self) {
        self.answer_at(NOW);
    }

    fn answer_at(&mut self, now: Time) {
        let _ = self.sent();
        let (xid, request) = self.read.pop_front().unwrap();
        let answer = self.serve(&request);
        self.send_answer(now, xid, answer);
    }

    fn send_answer(&mut self, now: Time, xid: i32, answer: std::result::Result<Response, Code>) {
        let mut bytes = Vec::new();
        match answer {
            Ok(response) => response.encode(xid, 1, &mut bytes).unwrap(),
            Err(code) => encode_error(xid, 1, code, &mut bytes),
        }
        assert!(self.engine.received(now, &bytes).is_continue());
    }

    fn answer_all(&mut self) {
        self.answer_all_at(NOW);
    }

    fn answer_all_at(&mut self, now: Time) {
        while !self.sent().is_empty() {
            self.answer_at(now);
        }
    }

    /// Answers requests until the next request has this type.
    fn answer_until(&mut self, next: OpCode) {
        while self.sent().first() != Some(&next) {
            self.answer();
        }
    }

    fn serve(&mut self, request: &Request) -> std::result::Result<Response, Code> {
        let owned = Stat { ephemeral_owner: 5, ..Stat::default() };
        Ok(match request {
            Request::Exists { path, .. } if self.nodes.contains(path) => Response::Stat(Stat::default()),
            Request::Exists { .. } => return Err(Code::NO_NODE),
            Request::Create2 { path, mode, .. } => {
                self.last_number += 1;
                let is_numbered = *mode == CreateMode::EphemeralSequential;
                let path = if is_numbered { format!("{path}{:010}", self.last_number) } else { path.clone() };
                if !self.nodes.insert(path.clone()) {
                    return Err(Code::NODE_EXISTS);
                }
                Response::Create2 { path, stat: Stat { czxid: i64::from(self.last_number), ..owned } }
            }
            Request::GetChildren2 { .. } if self.hides_nodes => {
                Response::Children2 { children: Vec::new(), stat: Stat::default() }
            }
            Request::GetChildren2 { path, .. } => {
                let below = format!("{path}/");
                let children = self.nodes.iter().filter_map(|node| node.strip_prefix(&below)).map(str::to_owned);
                Response::Children2 { children: children.collect(), stat: Stat::default() }
            }
            Request::Delete { .. } if self.refuses_deletes => return Err(Code::NO_AUTH),
            Request::Delete { path, .. } => {
                self.nodes.remove(path);
                Response::Empty
            }
            Request::Multi(requests) => {
                Response::Multi(requests.iter().map(|request| self.serve_member(request)).collect())
            }
            Request::GetData { path, .. } if !self.nodes.contains(path) => return Err(Code::NO_NODE),
            Request::GetData { .. } => Response::Data { data: Some(vec![b'x'; self.data_bytes]), stat: owned },
            Request::Sync { path } => Response::Path(path.clone()),
            _ => Response::Empty,
        })
    }

    fn serve_member(&mut self, request: &Request) -> MultiResult {
        match request {
            Request::Check { .. } => MultiResult::Ok(Response::Checked),
            request => MultiResult::Ok(self.serve(request).unwrap()),
        }
    }

    fn answers(&mut self) -> Vec<(OpId, Result<Answer>)> {
        std::iter::from_fn(|| self.engine.poll_answer()).collect()
    }
}

#[test]
fn connection_loss_during_chroot_creation_is_not_a_missing_chroot() {
    let mut peer = Peer::new("/app");
    peer.engine.enable_chroot_creation();
    let op = peer.engine.connect(NOW, NOW + Duration::from_secs(10));
    peer.connect();
    peer.answer();
    assert!(!peer.sent().is_empty(), "it creates the chroot");
    peer.engine.on_connection_event(NOW, ConnectionEvent::Disconnected("closed"));
    // The server has received none of these requests.
    peer.connect();
    peer.answer_all();
    assert_eq!(peer.answers(), [(op, Ok(Answer::Done))]);
}

#[test]
fn missing_chroot_is_checked_again_after_a_transaction_on_each_connection() {
    let mut peer = Peer::new("/app");
    let op = peer.engine.connect(NOW, NOW + Duration::from_secs(10));
    peer.connect();
    peer.answer();
    peer.engine.on_connection_event(NOW, ConnectionEvent::Disconnected("closed"));
    peer.connect();
    assert_eq!(peer.sent(), [OpCode::Multi, OpCode::Exists], "the session is proven, as after each reconnect");
    peer.answer();
    peer.answer();
    assert_eq!(peer.sent(), [OpCode::Multi, OpCode::Exists], "the server may lag");
    peer.nodes.insert("/app".to_owned());
    peer.answer_all();
    assert_eq!(peer.answers(), [(op, Ok(Answer::Done))]);
}

#[test]
fn thousands_of_held_back_contenders_are_refused_without_recursion() {
    const COUNT: usize = 3_000;
    let mut peer = Peer::new("");
    peer.connect();
    let semaphore = peer.engine.add_lock("/s", Recipe::Semaphore(5_000));
    let leases = i32::try_from(COUNT).unwrap();
    let (_, owner) = peer.engine.acquire_leases(NOW, semaphore, leases, AcquireLimit::Unlimited);
    peer.answer_all();
    peer.answers();
    peer.engine.set_max_path_bytes(COUNT * 70 + 700);
    peer.refuses_deletes = true;
    peer.engine.release(NOW, semaphore, owner, false);
    for number in 0..COUNT {
        let lock = peer.engine.add_lock(format!("/l/{number:05}"), Recipe::Queue(Mode::Mutex));
        peer.engine.acquire(NOW, lock, Owner::current_thread(), AcquireLimit::Unlimited);
    }
    assert!(peer.engine.held_back.len() > COUNT - 100);
    peer.answers();
    while peer.engine.metrics.deletes_refused == 0 {
        peer.answer();
    }
    let answers = peer.answers();
    assert!(answers.len() > COUNT - 100, "{} calls were answered", answers.len());
    assert!(answers.iter().all(|(_, result)| matches!(result, Err(error) if error.status() == Status::Exhausted)));
}

/// Without the pause, the client creates nodes as fast as the server answers.
#[test]
fn the_pause_before_a_rejoin_grows_if_the_lists_never_contain_the_node() {
    for recipe in [Recipe::Queue(Mode::Mutex), Recipe::Semaphore(1)] {
        let mut peer = Peer::new("");
        peer.hides_nodes = true;
        peer.connect();
        let lock = peer.engine.add_lock("/l", recipe);
        peer.engine.acquire(NOW, lock, Owner::current_thread(), AcquireLimit::Unlimited);
        let mut now = NOW;
        while now < NOW + Duration::from_secs(4) {
            // The server answers each request at once.
            for _ in 0..1000 {
                if peer.sent().is_empty() {
                    break;
                }
                peer.answer_at(now);
            }
            assert!(peer.sent().is_empty(), "requests without end after {} nodes", peer.last_number);
            now = peer.engine.next_timeout().unwrap();
            peer.engine.advance(now);
        }
        assert!((3..20).contains(&peer.last_number), "{} nodes", peer.last_number);
    }
}

/// A new session counts no earlier losses. In each session, the first loss of a node causes no pause.
#[test]
fn a_waiter_joins_again_at_once_after_the_end_of_a_session() {
    let mut peer = Peer::new("");
    peer.hides_nodes = true;
    peer.connect();
    let lock = peer.engine.add_lock("/l", Recipe::Queue(Mode::Mutex));
    peer.engine.acquire(NOW, lock, Owner::current_thread(), AcquireLimit::Unlimited);
    let mut now = NOW;
    for session in 1..6 {
        peer.answer_all_at(now);
        assert_eq!(peer.last_number, 2 * session, "two nodes in session {session}");
        peer.engine.on_connection_event(now, ConnectionEvent::Disconnected("closed"));
        for response in [expired(), welcome()] {
            now = peer.connect_with(now, &response);
        }
    }
}

#[test]
fn participants_are_read_in_a_window_and_within_limits() {
    let mut peer = Peer::new("");
    peer.connect();
    peer.nodes.extend((0..1000).map(|number| format!("/l/_c_00000000-0000-0000-0000-000000000000-lock-{number:010}")));
    let lock = peer.engine.add_lock("/l", Recipe::Queue(Mode::Mutex));
    for (data_bytes, problem) in [
        (10, None),
        (100_000, Some("the 1000 nodes need more than 33554432 bytes for their paths and data")),
        (600_000, Some("-lock-0000000000 has 600000 bytes of data; at most 524288 are allowed")),
    ] {
        peer.data_bytes = data_bytes;
        let op = peer.engine.participants(NOW, lock, false);
        let answers = loop {
            assert!(peer.sent().len() <= 64, "{} requests at a time", peer.sent().len());
            peer.answer();
            let answers = peer.answers();
            if !answers.is_empty() {
                break answers;
            }
        };
        match (&answers[..], problem) {
            ([(ended, Ok(Answer::Participants(found)))], None) => {
                assert_eq!((*ended, found.len()), (op, 1000));
                assert!(found[0].holds && !found[999].holds && found[999].data.len() == data_bytes);
            }
            ([(_, Err(error))], Some(problem)) => {
                assert_eq!(error.status(), Status::Exhausted);
                assert!(error.message().contains(problem), "{error}");
            }
            other => panic!("{other:?}"),
        }
        peer.answer_all();
    }
}

/// A server may send events without end, for nodes with the name of the client.
#[test]
fn a_flood_of_events_ends_the_directory_cache() {
    for is_loaded in [false, true] {
        let mut peer = Peer::new("");
        peer.connect();
        let lock = peer.engine.add_lock("/l", Recipe::Queue(Mode::Mutex));
        for owner in [1, 2, 3] {
            peer.engine.acquire(NOW, lock, Owner::task(owner), AcquireLimit::Unlimited);
        }
        assert!(peer.sent().contains(&OpCode::AddWatch), "several contenders start a cache");
        peer.answer_until(OpCode::AddWatch);
        if is_loaded {
            // The answers to the watch and to the list.
            peer.answer();
            peer.answer();
        }
        let node = peer.nodes.first().unwrap();
        let own = format!("{}000000000000-lock-", &node[..node.len() - "000000000000-lock-0000000000".len()]);
        let mut number = 0;
        while !peer.sent().contains(&OpCode::RemoveWatches) {
            assert!(number < 1_000_000, "the cache grows without end");
            let path = format!("{own}{number:010}");
            number += 1;
            let mut bytes = Vec::new();
            WatchEvent { kind: EventKind::Created, state: 3, path }.encode(1, &mut bytes);
            assert!(peer.engine.received(NOW, &bytes).is_continue());
        }
    }
}

#[test]
fn only_directory_of_undeletable_node_is_refused() {
    let mut peer = Peer::new("");
    peer.connect();
    let [a, b] = ["/a", "/b"].map(|path| peer.engine.add_lock(path, Recipe::Queue(Mode::Mutex)));
    let both = peer.engine.add_lock("/a", Recipe::MultiLock([a, b].into()));
    let of_others = ["/a", "/b"].map(|path| format!("{path}/_c_00000000-0000-0000-0000-000000000000-lock-0000000000"));
    peer.nodes.extend(["/a", "/b"].map(str::to_owned).into_iter().chain(of_others));
    let waiting = peer.engine.acquire(NOW, both, Owner::task(1), AcquireLimit::Unlimited);
    peer.answer_all();
    peer.engine.cancel_op(NOW, waiting);
    peer.answers();
    // The client deletes its node in `/b` first. The server refuses this, and has not answered the other delete request
    // yet.
    peer.refuses_deletes = true;
    while peer.engine.metrics.deletes_refused == 0 {
        peer.answer();
    }
    peer.engine.acquire(NOW, a, Owner::task(2), AcquireLimit::Unlimited);
    assert!(peer.answers().is_empty());
    let refused = peer.engine.acquire(NOW, b, Owner::task(2), AcquireLimit::Unlimited);
    let answers = peer.answers();
    assert!(
        matches!(&*answers, [(op, Err(error))] if *op == refused && error.status() == Status::Denied),
        "{answers:?}"
    );
}

#[test]
fn wait_until_unsafe_is_answered_after_brief_lease_end() {
    let mut peer = Peer::new("");
    peer.connect();
    let (lock, owner) = (peer.engine.add_lock("/l", Recipe::Queue(Mode::Mutex)), Owner::current_thread());
    peer.engine.acquire(NOW, lock, owner, AcquireLimit::Unlimited);
    peer.answer_all();
    peer.answers();
    let (watch, guard) =
        (peer.engine.wait_until_unsafe(NOW, lock, owner), peer.engine.wait_until_ended(NOW, lock, owner));
    peer.engine.cancel_waits(NOW, lock);
    let canceled = Err(Error::new(Status::Canceled, format!("/l: {}", Status::Canceled.text())));
    assert_eq!(peer.answers(), [(guard, canceled)], "a wait for a loss is not a wait for the lock");
    let lease = peer.engine.hold_of(NOW, lock, owner).unwrap().remaining;
    // The process was suspended until the session lease had ended. After the suspension, the process first reads an
    // answer that extends the lease.
    let end = NOW + lease;
    assert!(peer.engine.received(end, &[]).is_continue());
    assert_eq!(peer.answers(), [(watch, Ok(Answer::Done))]);
    let wait_until_unsafe = peer.engine.wait_until_unsafe(end, lock, owner);
    assert_eq!(peer.answers(), [(wait_until_unsafe, Ok(Answer::Done))], "the hold is already unverified");
}

#[test]
fn wait_until_unsafe_ends_with_hold_and_client() {
    let mut peer = Peer::new("");
    peer.connect();
    let (lock, owner) = (peer.engine.add_lock("/l", Recipe::Queue(Mode::Mutex)), Owner::current_thread());
    let status = |answers: Vec<(OpId, Result<Answer>)>, op: OpId| {
        let answer = answers.into_iter().find(|(answered, _)| *answered == op);
        answer.map(|(_, answer)| answer.unwrap_err().status())
    };
    for _ in 0..2 {
        peer.engine.acquire(NOW, lock, owner, AcquireLimit::Unlimited);
        peer.answer_all();
    }
    let watch = peer.engine.wait_until_unsafe(NOW, lock, owner);
    peer.engine.release(NOW, lock, owner, false);
    assert_eq!(status(peer.answers(), watch), None, "the owner has re-entered the lock");
    peer.engine.release(NOW, lock, owner, false);
    assert_eq!(status(peer.answers(), watch), Some(Status::NotOwner));
    peer.answer_all();
    peer.engine.acquire(NOW, lock, owner, AcquireLimit::Unlimited);
    peer.answer_all();
    let watch = peer.engine.wait_until_unsafe(NOW, lock, owner);
    peer.engine.begin_close(NOW);
    assert_eq!(status(peer.answers(), watch), Some(Status::Closed));
    let refused = peer.engine.acquire(NOW, lock, owner, AcquireLimit::Unlimited);
    assert_eq!(status(peer.answers(), refused), Some(Status::Closed), "nothing is granted before the session ends");
}

#[test]
fn exact_release_ends_no_later_hold_and_no_hold_of_another_owner() {
    let mut peer = Peer::new("");
    peer.connect();
    let (one, two) = (Owner::task(1), Owner::task(2));
    let (queue, semaphore) =
        (peer.engine.add_lock("/q", Recipe::Queue(Mode::Mutex)), peer.engine.add_lock("/s", Recipe::SemaphoreMutex));
    let acquire = |peer: &mut Peer, lock, owner| {
        peer.engine.acquire(NOW, lock, owner, AcquireLimit::Unlimited);
        peer.answer_all();
        let Some((_, Ok(Answer::Acquired(holds)))) = peer.answers().pop() else { panic!("the lock is free") };
        assert_eq!(peer.engine.hold_of(NOW, lock, owner).unwrap().id(), holds[0]);
        holds[0]
    };
    for lock in [queue, semaphore] {
        let first = acquire(&mut peer, lock, one);
        peer.engine.release_holds(NOW, one, &[(lock, HoldToRelease::Exact(first))], false);
        peer.answer_all();
        assert_eq!(peer.answers().pop().unwrap().1, Ok(Answer::Done));
        let later = acquire(&mut peer, lock, one);
        assert_ne!(first, later);
        for (owner, hold) in [(one, first), (two, later)] {
            assert_eq!(peer.engine.exact_hold(NOW, lock, owner, hold), None);
            peer.engine.release_holds(NOW, owner, &[(lock, HoldToRelease::Exact(hold))], false);
            let error = peer.answers().pop().unwrap().1.unwrap_err();
            assert_eq!(error.status(), Status::NotOwner);
            assert!(error.to_string().contains("this hold was already released"), "{error}");
        }
        peer.engine.release_holds(NOW, two, &[(lock, HoldToRelease::Own)], false);
        assert_eq!(peer.answers().pop().unwrap().1.unwrap_err().status(), Status::NotOwner);
        assert!(peer.engine.exact_hold(NOW, lock, one, later).unwrap().is_safe());
    }
    peer.engine.release(NOW, semaphore, two, false);
    assert_eq!(peer.engine.hold_of(NOW, semaphore, one), None, "any owner may release a semaphore mutex");
}

#[test]
fn release_sets_the_release_flag_of_a_hold_and_the_close_of_the_client_does_not() {
    let mut peer = Peer::new("");
    peer.connect();
    let (one, two) = (Owner::task(1), Owner::task(2));
    let locks = ["/a", "/b"].map(|path| peer.engine.add_lock(path, Recipe::Queue(Mode::Mutex)));
    let [(released, first), (open, second)] = locks.map(|lock| {
        peer.engine.acquire(NOW, lock, one, AcquireLimit::Unlimited);
        peer.answer_all();
        (lock, peer.engine.hold_of(NOW, lock, one).unwrap().id())
    });
    let later = HoldId { token: second.token + 1, ..second };
    let flags =
        [(released, one, first), (open, one, second), (open, one, second), (open, two, second), (open, one, later)]
            .map(|(lock, owner, id)| peer.engine.release_flag(lock, owner, id));
    let values = || flags.each_ref().map(|flag| flag.load(Ordering::Acquire));
    assert_eq!(values(), [false, false, false, true, true]);
    peer.engine.release(NOW, released, one, false);
    assert_eq!(values(), [true, false, false, true, true]);
    peer.engine.begin_close(NOW);
    assert_eq!(values(), [true, false, false, true, true]);
}

#[test]
fn removal_of_a_lock_sets_the_release_flag_of_its_hold() {
    let mut peer = Peer::new("");
    peer.connect();
    let (owner, lock) = (Owner::task(1), peer.engine.add_lock("/a", Recipe::Queue(Mode::Mutex)));
    peer.engine.acquire(NOW, lock, owner, AcquireLimit::Unlimited);
    peer.answer_all();
    let id = peer.engine.hold_of(NOW, lock, owner).unwrap().id();
    let flag = peer.engine.release_flag(lock, owner, id);
    peer.engine.remove_lock(NOW, lock);
    assert!(flag.load(Ordering::Acquire));
}

#[test]
fn abandoned_acquire_leaves_no_hold_even_if_its_answer_is_not_processed_yet() {
    let mut peer = Peer::new("");
    peer.connect();
    let (lock, owner) = (peer.engine.add_lock("/l", Recipe::Queue(Mode::Mutex)), Owner::task(1));
    let abandoned = peer.engine.acquire(NOW, lock, owner, AcquireLimit::Unlimited);
    peer.answer_all();
    assert!(peer.engine.hold_of(NOW, lock, owner).is_some());
    peer.engine.abandon_op(NOW, abandoned);
    assert_eq!(peer.engine.hold_of(NOW, lock, owner), None);
    peer.answer_all();
    // A hold that another acquire has re-entered remains.
    let first = peer.engine.acquire(NOW, lock, owner, AcquireLimit::Unlimited);
    peer.answer_all();
    let second = peer.engine.acquire(NOW, lock, owner, AcquireLimit::Unlimited);
    peer.engine.abandon_op(NOW, first);
    peer.engine.abandon_op(NOW, second);
    assert!(peer.engine.hold_of(NOW, lock, owner).is_some());
    // An acquire that waits is canceled.
    let waiting = peer.engine.acquire(NOW, lock, Owner::task(2), AcquireLimit::Unlimited);
    peer.answers();
    peer.engine.abandon_op(NOW, waiting);
    let (op, answer) = peer.answers().pop().unwrap();
    assert_eq!((op, answer.unwrap_err().status()), (waiting, Status::Canceled));
}

#[test]
fn reentry_of_uncertain_hold_outlives_disconnect_and_fails_with_connection_at_deadline() {
    for is_disconnected in [false, true] {
        let mut peer = Peer::new("");
        peer.connect();
        let (lock, owner) = (peer.engine.add_lock("/l", Recipe::Queue(Mode::Mutex)), Owner::current_thread());
        peer.engine.acquire(NOW, lock, owner, AcquireLimit::Unlimited);
        peer.answer_all();
        peer.answers();
        let end = NOW + peer.engine.hold_of(NOW, lock, owner).unwrap().remaining;
        let deadline = end + Duration::from_millis(50);
        let reentry = peer.engine.acquire(end, lock, owner, AcquireLimit::TryOnce(deadline));
        assert_eq!(peer.engine.waiting(end, lock).len(), 1);
        if is_disconnected {
            peer.engine.on_connection_event(end, ConnectionEvent::Disconnected("closed"));
        }
        assert_eq!(peer.answers(), [], "the hold may become safe again");
        peer.engine.expire_op(deadline, reentry);
        let [(ended, Err(error))] = &peer.answers()[..] else { panic!("one operation has failed") };
        assert_eq!((*ended, error.status()), (reentry, Status::Connection));
    }
}

/// Returns a server's reply to the handshake.
fn welcome() -> Vec<u8> {
    connect_response(12_000, 5)
}

/// The response for a session that has ended.
fn expired() -> Vec<u8> {
    connect_response(0, 0)
}

fn connect_response(timeout_ms: i32, session_id: i64) -> Vec<u8> {
    let (mut welcome, protocol_version) = (Vec::new(), 0);
    ConnectResponse { protocol_version, timeout_ms, session_id, password: vec![0; 16], read_only: false }
        .encode(&mut welcome);
    welcome
}

/// A server that accepts every connection, and answers nothing but the handshake, is as silent as before.
#[test]
fn acquire_without_an_answer_on_several_connections_fails_with_connection() {
    let mut peer = Peer::new("");
    peer.connect();
    let lock = peer.engine.add_lock("/l", Recipe::Queue(Mode::Mutex));
    let deadline = NOW + Duration::from_millis(200);
    peer.engine.acquire(NOW, lock, Owner::current_thread(), AcquireLimit::Until(deadline));
    assert_eq!(peer.sent(), [OpCode::Create2, OpCode::GetChildren2]);
    peer.engine.on_connection_event(NOW + Duration::from_millis(130), ConnectionEvent::Disconnected("closed"));
    let now = next_server(&mut peer.engine);
    assert!(now < deadline && deadline - now < ops::MAX_SERVER_SILENCE);
    peer.engine.on_connection_event(now, ConnectionEvent::Connected("local"));
    peer.engine.output().clear();
    peer.read.clear();
    assert!(peer.engine.received(now, &welcome()).is_continue());
    assert_eq!(peer.sent().last(), Some(&OpCode::GetChildren2), "the client looks for its node");
    peer.engine.advance(deadline);
    let [(_, Err(error))] = &peer.answers()[..] else { panic!("the acquire has failed") };
    assert_eq!(error.status(), Status::Connection, "{error}");
}

#[test]
fn silence_ends_if_the_client_connects_again_and_asks_nothing() {
    let mut peer = Peer::new("");
    peer.connect();
    let lock = peer.engine.add_lock("/l", Recipe::Queue(Mode::Mutex));
    let ping = peer.engine.next_timeout().unwrap();
    peer.engine.advance(ping);
    assert!(!peer.engine.output().is_empty(), "the client sends a ping");
    peer.engine.on_connection_event(ping + Duration::from_secs(1), ConnectionEvent::Disconnected("closed"));
    let mut now = next_server(&mut peer.engine);
    peer.engine.on_connection_event(now, ConnectionEvent::Connected("local"));
    peer.engine.output().clear();
    peer.read.clear();
    assert!(peer.engine.received(now, &welcome()).is_continue());
    now = now + Duration::from_millis(1);
    let deadline = now + Duration::from_millis(10);
    peer.engine.acquire(now, lock, Owner::current_thread(), AcquireLimit::Until(deadline));
    peer.engine.advance(deadline);
    let [(_, Err(error))] = &peer.answers()[..] else { panic!("the acquire has failed") };
    assert_eq!(error.status(), Status::Timeout, "the server may only be slow: {error}");
}

/// Starts a client of two servers that has begun to connect to the first server. Returns the operation that waits for
/// the connection.
fn client_of_two_servers() -> (Engine, OpId) {
    let mut engine = Peer::new(",t:2").engine;
    let op = engine.connect(NOW, NOW + Duration::from_secs(60));
    next_server(&mut engine);
    (engine, op)
}

/// Runs the timers until the engine connects to a server. Returns the time.
fn next_server(engine: &mut Engine) -> Time {
    let mut now = NOW;
    while !matches!(engine.poll_command(), Some(Command::Connect(_))) {
        now = engine.next_timeout().unwrap();
        engine.advance(now);
    }
    now
}

#[test]
fn connect_fails_early_only_if_every_server_refused_a_certificate() {
    let (mut engine, op) = client_of_two_servers();
    engine.on_connection_event(NOW, ConnectionEvent::Securing);
    engine.on_connection_event(NOW, ConnectionEvent::CertificateRefused("wrong CA"));
    assert!(engine.poll_answer().is_none());
    let now = next_server(&mut engine);
    engine.on_connection_event(now, ConnectionEvent::Disconnected("refused"));
    assert!(engine.poll_answer().is_none());
    let now = next_server(&mut engine);
    engine.on_connection_event(now, ConnectionEvent::CertificateRefused("wrong CA"));
    assert!(engine.poll_answer().is_none());
    let now = next_server(&mut engine);
    engine.on_connection_event(now, ConnectionEvent::CertificateRefused("wrong name"));
    let (ended, answer) = engine.poll_answer().unwrap();
    let error = answer.unwrap_err();
    assert_eq!((ended, error.status()), (op, Status::Auth));
    assert!(error.message().starts_with("s:1,t:2: last tried "), "{error}");
    assert!(error.message().contains(": wrong name; ") && error.message().ends_with(": wrong CA"), "{error}");
    // The client continues to connect for other calls, and a call that ends at its deadline reports the same reason.
    let lock = engine.add_lock("/l", Recipe::Queue(Mode::Mutex));
    engine.acquire(now, lock, Owner::current_thread(), AcquireLimit::Until(now));
    engine.advance(now);
    let (_, answer) = engine.poll_answer().unwrap();
    assert_eq!(answer.unwrap_err().status(), Status::Auth);
}

#[test]
fn stalled_tls_handshake_ends_at_its_time_limit() {
    let (mut engine, _) = client_of_two_servers();
    engine.on_connection_event(NOW, ConnectionEvent::Securing);
    let give_up = engine.next_timeout().unwrap();
    assert_eq!(give_up, NOW + Duration::from_secs(2));
    let said = engine.connection_error(give_up, NOW).message().to_owned();
    assert!(said.ends_with("does not complete the TLS handshake"), "{said}");
    engine.advance(give_up);
    assert_eq!(engine.poll_command(), Some(Command::Disconnect));
    let said = engine.connection_error(give_up, NOW).message().to_owned();
    assert!(said.contains("no complete TLS handshake in time"), "{said}");
}

#[test]
fn tls_record_in_answer_to_plain_text_is_recognized() {
    for record in [[0x15, 3, 3, 0, 2, 2, 80], [0x16, 3, 1, 0, 100, 2, 0]] {
        let (mut engine, op) = client_of_two_servers();
        for is_last in [false, true] {
            engine.on_connection_event(NOW, ConnectionEvent::Connected("local"));
            assert!(engine.received(NOW, &record).is_break());
            let said = engine.connection_error(NOW, NOW).message().to_owned();
            assert!(said.contains("the server requires TLS; set tls.enabled to true"), "{said}");
            // The first connect ends when each server has said so, and not only after the connect timeout.
            match engine.poll_answer() {
                Some((ended, Err(error))) => assert!(is_last && ended == op && error.status() == Status::Connection),
                other => assert!(!is_last && other.is_none(), "{other:?}"),
            }
            if !is_last {
                next_server(&mut engine);
            }
        }
    }
}

/// Returns the types of all requests for one attempt to acquire a lock.
fn requests_of_one_attempt(recipe: Recipe) -> Vec<OpCode> {
    let mut peer = Peer::new("");
    peer.connect();
    peer.answer_all();
    let lock = peer.engine.add_lock("/l", recipe);
    let limit = AcquireLimit::TryOnce(NOW + Duration::from_secs(5));
    peer.engine.acquire(NOW, lock, Owner::current_thread(), limit);
    let mut requests = Vec::new();
    while let Some(&first) = peer.sent().first() {
        requests.push(first);
        peer.answer();
    }
    requests
}

/// Asserts that one attempt lists nodes only after the server has received all changes that were made before the
/// attempt.
fn assert_lists_after_sync(recipe: Recipe) {
    let requests = requests_of_one_attempt(recipe);
    let list = requests.iter().position(|&op| op == OpCode::GetChildren2);
    let sync = requests.iter().position(|&op| op == OpCode::Sync);
    assert!(sync.is_some() && sync < list, "{requests:?}");
}

#[test]
fn one_attempt_lists_the_queue_after_a_sync() {
    assert_lists_after_sync(Recipe::Queue(Mode::Mutex));
}

#[test]
fn one_attempt_counts_the_leases_after_a_sync() {
    assert_lists_after_sync(Recipe::SemaphoreMutex);
}

/// An operator deletes a node of a multi-lock while the client reconnects. The client asks for the node before it lists
/// the other queue.
#[test]
fn multi_lock_that_lost_a_node_during_a_reconnect_is_not_granted() {
    let mut peer = Peer::new("");
    peer.connect();
    let members = ["/a", "/b"].map(|path| peer.engine.add_lock(path, Recipe::Queue(Mode::Mutex)));
    let (lock, owner) = (peer.engine.add_lock("", Recipe::MultiLock(Box::new(members))), Owner::current_thread());
    let op = peer.engine.acquire(NOW, lock, owner, AcquireLimit::Unlimited);
    peer.nodes.extend(["/a", "/b"].map(str::to_owned));
    peer.answer_until(OpCode::GetChildren2);
    assert_eq!(peer.sent(), [OpCode::GetChildren2; 2], "it has joined both queues");
    peer.answer();
    peer.engine.on_connection_event(NOW, ConnectionEvent::Disconnected("closed"));
    peer.nodes.retain(|node| !node.starts_with("/a/"));
    peer.connect();
    loop {
        if let [(answered, Ok(Answer::Acquired(holds)))] = &peer.answers()[..] {
            assert_eq!((*answered, holds.len()), (op, members.len()));
            break;
        }
        peer.answer();
    }
    for member in members {
        let [node] = &peer.engine.nodes_of(member, owner)[..] else { panic!("each member has one node") };
        assert!(peer.nodes.contains(node), "{node} is deleted");
    }
}

/// The owner holds one member of a multi-lock. The process is stopped beyond the session lease of this hold, so the grant
/// of the other member waits until the hold is verified. In the meantime, the node of the other member is deleted.
#[test]
fn member_whose_node_is_deleted_before_its_grant_is_not_held() {
    let mut peer = Peer::new("");
    peer.connect();
    let members = ["/a", "/b"].map(|path| peer.engine.add_lock(path, Recipe::Queue(Mode::Mutex)));
    let [held, wanted] = members;
    let (both, owner) = (peer.engine.add_lock("", Recipe::MultiLock(Box::new(members))), Owner::task(1));
    peer.nodes.extend(["/a", "/b"].map(str::to_owned));
    peer.engine.acquire(NOW, held, owner, AcquireLimit::Unlimited);
    peer.answer_all();
    assert_eq!(peer.answers().len(), 1);
    let op = peer.engine.acquire(NOW + Duration::from_secs(7), both, owner, AcquireLimit::Unlimited);
    assert_eq!(peer.sent(), [OpCode::Create2, OpCode::GetChildren2]);
    let resumed = NOW + Duration::from_secs(9);
    peer.answer_at(resumed);
    peer.answer_at(resumed);
    assert_eq!(peer.answers(), [], "the first hold is not verified yet");
    peer.engine.on_connection_event(resumed, ConnectionEvent::Disconnected("closed"));
    peer.nodes.retain(|node| !node.starts_with("/b/"));
    let other = "/b/_c_00000000-0000-0000-0000-000000000000-lock-0000000000";
    peer.nodes.insert(other.to_owned());
    let mut now = NOW + Duration::from_secs(60);
    peer.connect_at(now);
    let mut advance = |peer: &mut Peer| {
        now = now + Duration::from_millis(10);
        if !peer.sent().is_empty() {
            peer.answer_at(now);
        }
        peer.engine.advance(now);
        peer.engine.hold_of(now, wanted, owner).is_some_and(HoldView::is_safe)
    };
    for _ in 0..20 {
        assert!(!advance(&mut peer), "{:?}", peer.nodes);
    }
    assert_eq!(peer.answers(), [], "the acquire waits behind the other client");
    peer.nodes.remove(other);
    let mut bytes = Vec::new();
    WatchEvent { kind: EventKind::Deleted, state: 3, path: other.to_owned() }.encode(-1, &mut bytes);
    assert!(peer.engine.received(NOW + Duration::from_secs(61), &bytes).is_continue());
    assert!((0..100).any(|_| advance(&mut peer)));
    assert!(matches!(&peer.answers()[..], [(answered, Ok(Answer::Acquired(_)))] if *answered == op));
}

/// An owner waits for two read locks of one path, with a writer between them.
#[test]
fn second_read_lock_of_an_owner_is_granted_with_the_first() {
    let mut peer = Peer::new("");
    peer.connect();
    peer.nodes.insert("/l".to_owned());
    let [first, second] = [Mode::Read; 2].map(|mode| peer.engine.add_lock("/l", Recipe::Queue(mode)));
    let writer = peer.engine.add_lock("/l", Recipe::Queue(Mode::Write));
    let (holder, reader, other) = (Owner::task(1), Owner::task(2), Owner::task(3));
    let acquires = [(writer, holder), (first, reader), (writer, other), (second, reader)];
    let [_, one, writes, two] = acquires.map(|(lock, owner)| {
        let op = peer.engine.acquire(NOW, lock, owner, AcquireLimit::Unlimited);
        peer.answer_all();
        op
    });
    assert_eq!(peer.answers().len(), 1, "the first writer has acquired the lock");
    let path = peer.engine.nodes_of(writer, holder).pop().unwrap();
    peer.engine.release(NOW, writer, holder, false);
    peer.answer_all();
    let mut bytes = Vec::new();
    WatchEvent { kind: EventKind::Deleted, state: 3, path }.encode(-1, &mut bytes);
    assert!(peer.engine.received(NOW, &bytes).is_continue());
    peer.answer_all();
    let answers = peer.answers();
    let is_granted = |op| answers.iter().any(|(answered, result)| *answered == op && result.is_ok());
    assert_eq!([one, two, writes].map(is_granted), [true, true, false], "{answers:?}");
}

#[test]
fn leases_that_do_not_fit_into_one_transaction_are_refused_at_once() {
    let mut peer = Peer::new("");
    peer.connect();
    let semaphore = peer.engine.add_lock("/s", Recipe::Semaphore(100_000));
    // Another client has the inner mutex.
    peer.nodes.insert("/s/locks/_c_00000000-0000-0000-0000-000000000000-lock-0000000000".to_owned());
    let (op, _) = peer.engine.acquire_leases(NOW, semaphore, 50_000, AcquireLimit::Unlimited);
    peer.answer_all();
    let [(answered, Err(error))] = &peer.answers()[..] else { panic!("the acquire must fail") };
    assert_eq!((*answered, error.status()), (op, Status::Invalid), "{error}");
}

/// A server finds no shared count, and refuses to create it. The count exists, but the server lags behind and the client
/// lacks the permission; or the count does not exist, and the server has just removed its parent.
#[test]
fn acquire_continues_after_a_refusal_to_create_its_count() {
    for refusal in [Code::NO_AUTH, Code::NO_NODE] {
        let mut peer = Peer::new("");
        peer.connect();
        peer.answer_all();
        let count = Recipe::CountedSemaphore { count_path: "/counts/s".into(), initial: 1 };
        let semaphore = peer.engine.add_lock("/s", count);
        let (op, _) = peer.engine.acquire_leases(NOW, semaphore, 1, AcquireLimit::Unlimited);
        let (mut reads, mut creates) = (0, 0);
        while !peer.sent().is_empty() {
            let (xid, request) = peer.read.pop_front().unwrap();
            let answer = match &request {
                Request::GetData { path, .. } if path == "/counts/s" => {
                    reads += 1;
                    let data = Response::Data { data: Some(1_i32.to_be_bytes().to_vec()), stat: Stat::default() };
                    if reads == 1 { Err(Code::NO_NODE) } else { Ok(data) }
                }
                Request::Exists { path, .. } if path == "/counts/s" => Err(Code::NO_NODE),
                Request::Create2 { path, .. } if path == "/counts/s" => {
                    creates += 1;
                    if creates == 1 { Err(refusal) } else { peer.serve(&request) }
                }
                other => peer.serve(other),
            };
            peer.send_answer(NOW, xid, answer);
        }
        let answers = peer.answers();
        assert!(matches!(&answers[..], [(answered, Ok(Answer::Acquired(_)))] if *answered == op), "{answers:?}");
        assert_eq!((reads, creates), (2, if refusal == Code::NO_AUTH { 1 } else { 2 }));
    }
}

#[test]
fn multi_lock_waits_if_a_transaction_reports_the_end_of_its_session() {
    for code in [Code::SESSION_MOVED, Code::SESSION_EXPIRED] {
        let mut peer = Peer::new("");
        peer.connect();
        peer.answer_all();
        let members = ["/a", "/b"].map(|path| peer.engine.add_lock(path, Recipe::Queue(Mode::Mutex)));
        let lock = peer.engine.add_lock("", Recipe::MultiLock(Box::new(members)));
        let op = peer.engine.acquire(NOW, lock, Owner::task(1), AcquireLimit::Unlimited);
        assert_eq!(peer.sent().first(), Some(&OpCode::Multi));
        let (xid, _) = peer.read.pop_front().unwrap();
        let results = [code, Code::RUNTIME_INCONSISTENCY].map(MultiResult::Err);
        let mut bytes = Vec::new();
        Response::Multi(results.to_vec()).encode(xid, 1, &mut bytes).unwrap();
        assert!(peer.engine.received(NOW, &bytes).is_break(), "the client leaves the connection");
        assert_eq!(peer.answers(), []);
        peer.nodes.extend(["/a", "/b"].map(str::to_owned));
        peer.connect();
        peer.answer_all();
        assert!(matches!(&peer.answers()[..], [(answered, Ok(_))] if *answered == op), "{code}");
    }
}

/// Acquires a multi-lock of `/a` and `/b` for two minutes, and returns how often it leaves its queues because of a
/// suspected deadlock. Another client has `nodes` in these queues. Each node is a directory and a number, which is the
/// sequence number and the creation zxid. Nodes with numbers above a million are always behind the multi-lock.
fn displacements(nodes: &[(&str, i64)]) -> usize {
    let mut peer = Peer::new("");
    peer.connect();
    peer.answer_all();
    let members = ["/a", "/b"].map(|path| peer.engine.add_lock(path, Recipe::Queue(Mode::Mutex)));
    let lock = peer.engine.add_lock("", Recipe::MultiLock(Box::new(members)));
    let other = "_c_00000000-0000-4000-8000-000000000001-lock-";
    peer.nodes.extend(nodes.iter().map(|(directory, number)| format!("{directory}/{other}{number:010}")));
    peer.nodes.extend(["/a", "/b"].map(str::to_owned));
    peer.last_number = 1_000;
    peer.engine.acquire(NOW, lock, Owner::task(1), AcquireLimit::Unlimited);
    let (mut now, mut deletions) = (NOW, 0);
    while now - NOW < Duration::from_secs(120) {
        while !peer.sent().is_empty() {
            let (xid, request) = peer.read.pop_front().unwrap();
            deletions += usize::from(matches!(request, Request::Delete { .. }));
            let answer = match &request {
                Request::GetData { path, .. } if path.contains(other) => {
                    let (_, number) = path.rsplit_once('-').unwrap();
                    let stat = Stat { ephemeral_owner: 6, czxid: number.parse().unwrap(), ..Stat::default() };
                    Ok(Response::Data { data: None, stat })
                }
                other => peer.serve(other),
            };
            peer.send_answer(now, xid, answer);
        }
        now = now + Duration::from_millis(100);
        peer.engine.advance(now);
    }
    deletions / members.len()
}

/// A thread of another client holds both locks, and another thread waits for both locks behind this client.
#[test]
fn two_multi_locks_of_another_client_are_no_deadlock() {
    let (holder, waiter) = (1, 1_000_001);
    assert_eq!(displacements(&[("/a", holder), ("/b", holder), ("/a", waiter), ("/b", waiter)]), 0);
    assert_eq!(displacements(&[("/a", holder), ("/a", waiter), ("/b", waiter)]), 0, "the waiter also waits for /a");
    assert_eq!(displacements(&[("/a", holder), ("/b", holder), ("/b", waiter)]), 0, "the holder also holds /b");
}

/// One owner, or two threads of one client, hold one lock and wait for the other lock.
#[test]
fn repeated_suspicions_of_a_deadlock_become_rarer() {
    let count = displacements(&[("/a", 1), ("/b", 1_000_001)]);
    assert!((4..=8).contains(&count), "{count}");
}

#[test]
fn deliberate_bugs_are_found() {
    Mutant::ListFirst.assert_found_by(multi_lock_that_lost_a_node_during_a_reconnect_is_not_granted);
    Mutant::ReleaseLaterHold.assert_found_by(exact_release_ends_no_later_hold_and_no_hold_of_another_owner);
    Mutant::CheckWithoutSync.assert_found_by(one_attempt_lists_the_queue_after_a_sync);
    Mutant::CountWithoutSync.assert_found_by(one_attempt_counts_the_leases_after_a_sync);
}

/// A program that fails to connect drops the client, but perhaps only after the next attempt has begun.
#[test]
fn engine_reports_that_the_first_connect_has_failed() {
    let mut peer = Peer::new("");
    assert!(!peer.engine.has_failed_to_connect());
    let connect = peer.engine.connect(NOW, NOW + Duration::from_secs(10));
    peer.engine.loading_failed(NOW, &Error::new(Status::Auth, "sealed"), false);
    assert!(!peer.engine.has_failed_to_connect(), "the next attempt may succeed");
    peer.engine.loading_failed(NOW, &Error::new(Status::Auth, "sealed"), true);
    assert_eq!(peer.answers().pop().unwrap().0, connect);
    assert!(peer.engine.has_failed_to_connect());

    let mut peer = Peer::new("");
    peer.engine.connect(NOW, NOW + Duration::from_secs(10));
    peer.connect();
    peer.answer_all();
    assert!(!peer.engine.has_failed_to_connect());
}
