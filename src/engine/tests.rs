//! An engine and a server that is a set of nodes.

use super::*;
use crate::limits::Limits;
use crate::proto::{
    Code, ConnectResponse, CreateMode, Frames, MultiResult, OpCode, Request, Response, Stat, encode_error,
};

/// The time of everything.
const NOW: Time = Time::from_nanos(1_000_000_000_000);

struct Peer {
    engine: Engine,
    /// Requests that the server has read on this connection, and their numbers.
    read: VecDeque<(i32, Request)>,
    nodes: BTreeSet<String>,
    last_number: i32,
    refuses_deletes: bool,
}

impl Peer {
    fn new(chroot: &str) -> Self {
        let config = SessionConfig {
            timeout: Duration::from_secs(12),
            lease_margin: None,
            auth: Vec::new(),
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
        }
    }

    fn connect(&mut self) {
        while !matches!(self.engine.poll_command(), Some(Command::Connect(_))) {
            let at = self.engine.next_timeout().unwrap();
            self.engine.advance(at);
        }
        self.engine.connected(NOW, "local");
        self.engine.output().clear();
        self.read.clear();
        let mut welcome = Vec::new();
        let (protocol_version, timeout_ms, session_id) = (0, 12_000, 5);
        ConnectResponse { protocol_version, timeout_ms, session_id, password: vec![0; 16], read_only: false }
            .encode(&mut welcome);
        assert!(self.engine.received(NOW, &welcome).is_continue());
    }

    /// What the engine has sent and is not answered.
    fn sent(&mut self) -> Vec<OpCode> {
        let mut frames = Frames::new(1 << 20);
        frames.push(&std::mem::take(self.engine.output()));
        while let Some(frame) = frames.next().unwrap() {
            let (xid, request) = Request::decode(&frame).unwrap();
            // Pings have no answer that matters.
            self.read.extend((xid > 0).then_some((xid, request)));
        }
        self.read.iter().map(|(_, request)| request.op()).collect()
    }

    /// The server answers the first request.
    fn answer(&mut self) {
        let _ = self.sent();
        let (xid, request) = self.read.pop_front().unwrap();
        let mut bytes = Vec::new();
        match self.serve(&request) {
            Ok(response) => response.encode(xid, 1, &mut bytes).unwrap(),
            Err(code) => encode_error(xid, 1, code, &mut bytes),
        }
        assert!(self.engine.received(NOW, &bytes).is_continue());
    }

    fn answer_all(&mut self) {
        while !self.sent().is_empty() {
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
                Response::Multi(requests.iter().map(|request| self.serve_part(request)).collect())
            }
            Request::GetData { .. } => Response::Data { data: None, stat: owned },
            _ => Response::Empty,
        })
    }

    fn serve_part(&mut self, request: &Request) -> MultiResult {
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
fn a_connection_that_breaks_while_the_chroot_is_created_makes_no_missing_chroot() {
    let mut peer = Peer::new("/app");
    peer.engine.create_chroot();
    let op = peer.engine.connect(NOW, NOW + Duration::from_secs(10));
    peer.connect();
    peer.answer();
    assert!(!peer.sent().is_empty(), "it creates the chroot");
    peer.engine.disconnected(NOW, "closed");
    // Nothing of that has arrived.
    peer.connect();
    peer.answer_all();
    assert_eq!(peer.answers(), [(op, Ok(Answer::Done))]);
}

#[test]
fn a_chroot_that_a_server_does_not_show_yet_is_looked_for_behind_a_transaction_on_each_connection() {
    let mut peer = Peer::new("/app");
    let op = peer.engine.connect(NOW, NOW + Duration::from_secs(10));
    peer.connect();
    peer.answer();
    peer.engine.disconnected(NOW, "closed");
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
fn any_number_of_contenders_is_refused_at_once() {
    const COUNT: usize = 3_000;
    let mut peer = Peer::new("");
    peer.connect();
    let semaphore = peer.engine.add_lock("/s", Recipe::Semaphore(5_000));
    let leases = u32::try_from(COUNT).unwrap();
    let (_, owner) = peer.engine.acquire_leases(NOW, semaphore, leases, Patience::Forever);
    peer.answer_all();
    peer.answers();
    peer.engine.set_max_path_bytes(COUNT * 70 + 700);
    peer.refuses_deletes = true;
    peer.engine.release(NOW, semaphore, owner, false);
    for number in 0..COUNT {
        let lock = peer.engine.add_lock(format!("/l/{number:05}"), Recipe::Queue(Mode::Mutex));
        peer.engine.acquire(NOW, lock, Owner::Thread(1), Patience::Forever);
    }
    assert!(peer.engine.held_back.len() > COUNT - 100);
    peer.answers();
    while peer.engine.tally.deletes_refused == 0 {
        peer.answer();
    }
    let answers = peer.answers();
    assert!(answers.len() > COUNT - 100, "{} calls were answered", answers.len());
    assert!(answers.iter().all(|(_, result)| matches!(result, Err(error) if error.status() == Status::Exhausted)));
}
