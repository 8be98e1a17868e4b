//! One server as a value: its copy of the tree, its connections, their watches, and the answers that wait for their turn.
//!
//! Reads are answered from its own copy, which may lag behind; everything else it asks the leader for. A connection's
//! requests are answered in their order, and whoever is told of a change is told before anybody reads it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use zklock::proto::{
    Acl, Code, ConnectRequest, ConnectResponse, EventKind, Frames, Identity, MultiResult, OpCode, Request,
    RequestHeader, Response, Stat, WatchEvent, XID_PING, encode_error,
};

use crate::leader::{Body, Origin, Txn};
use crate::tree::{ADMIN, Change, Happening, Node, READ, Tree};
use crate::watch::{Kind, Watches};
use crate::{ConnectionId, ServerId, Settings, acl, words};

/// One server.
#[derive(Debug)]
pub struct Replica {
    pub(crate) id: ServerId,
    pub(crate) settings: Settings,
    pub(crate) tree: Tree,
    pub(crate) zxid: i64,
    pub(crate) watches: Watches,
    pub(crate) sessions: BTreeMap<i64, Session>,
    pub(crate) connections: BTreeMap<ConnectionId, Connection>,
    pub(crate) counters: Counters,
    /// Requests whose reply is to be lost: of this session, or of any; of this kind.
    losses: Vec<(Option<i64>, OpCode)>,
    output: VecDeque<Output>,
    asked: u64,
}

/// What every server knows of a session.
#[derive(Debug, Clone)]
pub struct Session {
    /// After how much silence it ends, as agreed when it began.
    pub timeout: Duration,
}

/// What a server has done since it started.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) received: u64,
    pub(crate) sent: u64,
}

/// What a server has to say.
#[derive(Debug)]
pub enum Output {
    /// Something for a client.
    Act(Action),
    /// Something for the leader.
    Ask(Upcall),
}

/// What becomes of a client.
#[derive(Debug)]
pub enum Action {
    /// It is sent these bytes.
    Send(ConnectionId, Vec<u8>),
    /// Its connection is closed, once what was sent before is out.
    Close(ConnectionId),
    /// Its connection is reset: what was sent before may be lost too.
    Reset(ConnectionId),
}

/// What a server asks its leader.
#[derive(Debug)]
pub enum Upcall {
    /// A session for a new client; answered by a transaction.
    Open {
        /// Who waits for it.
        origin: Origin,
        /// The timeout.
        timeout: Duration,
    },
    /// Whether a session is still alive; answered by [`Replica::resumed`].
    Resume {
        /// Who waits for it.
        connection: ConnectionId,
        /// The session.
        session: i64,
        /// The timeout from now on.
        timeout: Duration,
    },
    /// A client has given a sign of life.
    Touch {
        /// Its session.
        session: i64,
        /// The timeout in force.
        timeout: Duration,
    },
    /// A change; answered by a transaction.
    Write {
        /// Who waits for it.
        origin: Origin,
        /// By whom.
        session: i64,
        /// Who that is.
        identities: Arc<[Identity]>,
        /// What.
        request: Box<Request>,
    },
    /// Everything ordered so far, please; answered by [`Replica::synced`], behind the transactions.
    Sync {
        /// Who waits for it.
        origin: Origin,
    },
}

/// A client.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: SocketAddr,
    pub(crate) phase: Phase,
    pub(crate) timeout: Duration,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    frames: Frames,
    identities: Arc<[Identity]>,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing has come yet.
    Silent,
    /// Its first frame is to come.
    Greeting,
    /// The leader is asked for a new session, or for this old one.
    Opening(Option<i64>),
    /// It has a session.
    Open(i64),
    /// It is about to be closed.
    Closing,
}

/// A request that is not answered yet.
#[derive(Debug)]
struct Waiting {
    xid: i32,
    what: Turn,
    /// Its reply does not arrive, and the connection is gone.
    lost: bool,
}

#[derive(Debug)]
enum Turn {
    /// It is answered from our own tree as soon as its turn comes.
    Read(Request),
    /// It is refused as soon as its turn comes.
    Refuse(Code),
    /// The leader orders it, under this number.
    Write(u64),
    /// The leader is asked to bring us up to date, under this number.
    Sync(u64, String),
}

impl Replica {
    /// A server with nothing in its tree.
    pub fn new(id: ServerId, settings: Settings) -> Self {
        Self {
            id,
            settings,
            tree: Tree::default(),
            zxid: 0,
            watches: Watches::default(),
            sessions: BTreeMap::new(),
            connections: BTreeMap::new(),
            counters: Counters::default(),
            losses: Vec::new(),
            output: VecDeque::new(),
            asked: 0,
        }
    }

    /// Forgets what a process forgets when it ends: connections and watches, but not what was committed.
    pub fn restart(&mut self) {
        self.watches = Watches::default();
        self.connections.clear();
        self.output.clear();
    }

    /// What it knows of the tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The number of the last transaction it has applied.
    pub fn zxid(&self) -> i64 {
        self.zxid
    }

    /// How many watches it keeps.
    pub fn watch_count(&self) -> usize {
        self.watches.count()
    }

    /// The sessions it knows of.
    pub fn sessions(&self) -> impl Iterator<Item = (i64, &Session)> {
        self.sessions.iter().map(|(&id, session)| (id, session))
    }

    /// The connection of a session's client, if it is here.
    pub fn connection_of(&self, session: i64) -> Option<ConnectionId> {
        let mut open = self.connections.iter().filter(|(_, connection)| connection.phase == Phase::Open(session));
        open.next().map(|(&id, _)| id)
    }

    /// The session of a connection's client, if it has one.
    pub fn session_of(&self, connection: ConnectionId) -> Option<i64> {
        match self.connections.get(&connection)?.phase {
            Phase::Open(session) => Some(session),
            _ => None,
        }
    }

    /// Lets the next reply to such a request be lost, and its connection with it, though the request itself is done.
    pub fn lose_reply(&mut self, session: Option<i64>, op: OpCode) {
        self.losses.push((session, op));
    }

    /// No reply is to be lost any more.
    pub fn forget_losses(&mut self) {
        self.losses.clear();
    }

    /// The next thing it has to say.
    pub fn poll(&mut self) -> Option<Output> {
        self.output.pop_front()
    }

    // Connections.

    /// A client has connected. One that is one too many is closed at once.
    pub fn accept(&mut self, id: ConnectionId, peer: SocketAddr) {
        let neighbours = self.connections.values().filter(|other| other.peer.ip() == peer.ip()).count();
        if self.settings.connections_per_address.is_some_and(|limit| neighbours >= limit) {
            return self.output.push_back(Output::Act(Action::Close(id)));
        }
        let connection = Connection {
            peer,
            phase: Phase::Silent,
            timeout: Duration::ZERO,
            received: 0,
            sent: 0,
            frames: Frames::new(self.settings.frame_limit),
            identities: Arc::new([acl::identity_of(peer.ip())]),
            waiting: VecDeque::new(),
        };
        self.connections.insert(id, connection);
    }

    /// A client has gone.
    pub fn closed(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
        self.watches.close(id);
    }

    /// A client has sent something.
    pub fn received(&mut self, id: ConnectionId, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.frames.push(bytes);
        if connection.phase == Phase::Silent {
            let Some(word) = connection.frames.peek() else { return };
            if let Some(text) = words::answer(self, word) {
                self.send(id, text.into_bytes());
                return self.close(id);
            }
            self.set_phase(id, Phase::Greeting);
        }
        while let Some(connection) = self.connections.get_mut(&id) {
            let phase = connection.phase;
            if phase == Phase::Closing {
                return;
            }
            match connection.frames.next() {
                Ok(None) => return,
                Err(_) => return self.close(id),
                Ok(Some(frame)) => {
                    connection.received += 1;
                    self.counters.received += 1;
                    match phase {
                        Phase::Open(session) => self.request(id, session, &frame),
                        Phase::Greeting => self.greet(id, &frame),
                        // Nobody may speak before he is greeted.
                        Phase::Silent | Phase::Opening(_) | Phase::Closing => return self.close(id),
                    }
                }
            }
        }
    }

    fn greet(&mut self, id: ConnectionId, frame: &[u8]) {
        let Ok(request) = ConnectRequest::decode(frame) else { return self.close(id) };
        // A client that has seen more than we have would see time go back.
        if request.last_zxid_seen > self.zxid {
            return self.close(id);
        }
        let timeout = self.settings.negotiate(request.timeout_ms);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.timeout = timeout;
        }
        let session = request.session_id;
        if session == 0 {
            self.set_phase(id, Phase::Opening(None));
            let origin = self.origin(id);
            return self.ask(Upcall::Open { origin, timeout });
        }
        // Whoever knows the session's id comes from the same client, which has given up its old connection.
        if let Some(older) = self.connection_of(session) {
            self.close(older);
        }
        self.set_phase(id, Phase::Opening(Some(session)));
        if self.settings.password_of(session)[..] == request.password {
            self.ask(Upcall::Resume { connection: id, session, timeout });
        } else {
            self.resumed(id, session, false);
        }
    }

    /// The leader's word on a session that a client wants back.
    pub fn resumed(&mut self, id: ConnectionId, session: i64, alive: bool) {
        let Some(connection) = self.connections.get(&id) else { return };
        if connection.phase != Phase::Opening(Some(session)) {
            return;
        }
        if alive {
            return self.welcome(id, session);
        }
        let refusal = ConnectResponse {
            protocol_version: 0,
            timeout_ms: 0,
            session_id: 0,
            password: vec![0; 16],
            read_only: false,
        };
        self.send_with(id, |out| refusal.encode(out));
        self.close(id);
    }

    fn welcome(&mut self, id: ConnectionId, session: i64) {
        let Some(connection) = self.connections.get(&id) else { return };
        let response = ConnectResponse {
            protocol_version: 0,
            timeout_ms: i32::try_from(connection.timeout.as_millis()).unwrap_or(i32::MAX),
            session_id: session,
            password: self.settings.password_of(session).to_vec(),
            read_only: false,
        };
        self.set_phase(id, Phase::Open(session));
        self.send_with(id, |out| response.encode(out));
    }

    // Requests.

    fn request(&mut self, id: ConnectionId, session: i64, frame: &[u8]) {
        let Ok((RequestHeader { xid, op }, body)) = RequestHeader::decode(frame) else { return self.close(id) };
        let Some(connection) = self.connections.get(&id) else { return };
        let (timeout, identities) = (connection.timeout, Arc::clone(&connection.identities));
        self.ask(Upcall::Touch { session, timeout });
        let Ok(op) = OpCode::try_from(op) else {
            self.reply(id, xid, NO_ZXID, Err(Code::UNIMPLEMENTED));
            return self.close(id);
        };
        let lost = self.losses.iter().position(|&(whose, kind)| kind == op && whose.is_none_or(|s| s == session));
        if let Some(at) = lost {
            self.losses.remove(at);
        }
        let lost = lost.is_some();
        let what = match Request::decode_as(op, body) {
            Ok(Request::Auth { .. }) if lost => return self.end(id, Action::Reset(id)),
            Ok(Request::Auth { scheme, auth }) => return self.authenticate(id, xid, &scheme, &auth),
            Err(_) if op == OpCode::Auth => return self.close(id),
            Err(_) => Turn::Refuse(Code::MARSHALLING_ERROR),
            Ok(Request::Sync { path }) => {
                let origin = self.origin(id);
                self.ask(Upcall::Sync { origin });
                Turn::Sync(origin.number, path)
            }
            Ok(request) if is_write(&request) => {
                let origin = self.origin(id);
                self.ask(Upcall::Write { origin, session, identities, request: Box::new(request) });
                Turn::Write(origin.number)
            }
            Ok(request) => Turn::Read(request),
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            let xid = if op == OpCode::Ping { XID_PING } else { xid };
            connection.waiting.push_back(Waiting { xid, what, lost });
        }
        self.answer_reads(id);
    }

    fn authenticate(&mut self, id: ConnectionId, xid: i32, scheme: &str, auth: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match acl::authenticate(scheme, auth, connection.peer.ip()) {
            Ok(identity) => {
                if !connection.identities.contains(&identity) {
                    connection.identities = connection.identities.iter().cloned().chain([identity]).collect();
                }
                self.reply(id, xid, 0, Ok(Response::Empty));
            }
            Err(code) => {
                self.reply(id, xid, 0, Err(code));
                self.close(id);
            }
        }
    }

    /// Answers what waits at the front of a connection's line and needs nobody else.
    fn answer_reads(&mut self, id: ConnectionId) {
        while let Some(connection) = self.connections.get_mut(&id) {
            if !matches!(connection.waiting.front(), Some(Waiting { what: Turn::Read(_) | Turn::Refuse(_), .. })) {
                return;
            }
            let Some(Waiting { xid, what, lost }) = connection.waiting.pop_front() else { return };
            let result = match what {
                Turn::Read(request) => self.read(id, &request),
                Turn::Refuse(code) => Err(code),
                Turn::Write(_) | Turn::Sync(..) => return,
            };
            let zxid = self.zxid;
            self.finish(id, lost, xid, zxid, result);
        }
    }

    /// The leader's answer to [`Upcall::Sync`]: all that was ordered before has been applied.
    pub fn synced(&mut self, origin: Origin) {
        let Some(connection) = self.connections.get_mut(&origin.connection) else { return };
        if !matches!(&connection.waiting.front(), Some(Waiting { what: Turn::Sync(number, _), .. }) if *number == origin.number)
        {
            return;
        }
        if let Some(Waiting { xid, what: Turn::Sync(_, path), lost }) = connection.waiting.pop_front() {
            let zxid = self.zxid;
            self.finish(origin.connection, lost, xid, zxid, Ok(Response::Path(path)));
        }
        self.answer_reads(origin.connection);
    }

    fn read(&mut self, id: ConnectionId, request: &Request) -> Result<Response, Code> {
        match request {
            Request::Ping => Ok(Response::Empty),
            Request::Exists { path, .. } if path.contains('\0') => Err(Code::BAD_ARGUMENTS),
            Request::Exists { path, watch } => {
                self.watch_if(*watch, Kind::Data, path, id);
                self.node(path).map(|node| Response::Stat(node.stat()))
            }
            Request::GetData { path, watch } => {
                let node = self.readable(id, path)?;
                let response = Response::Data { data: node.data.as_deref().map(<[u8]>::to_vec), stat: node.stat() };
                self.watch_if(*watch, Kind::Data, path, id);
                Ok(response)
            }
            Request::GetChildren { path, watch } => {
                let (children, _) = self.children(id, path, *watch)?;
                Ok(Response::Children(children))
            }
            Request::GetChildren2 { path, watch } => {
                let (children, stat) = self.children(id, path, *watch)?;
                Ok(Response::Children2 { children, stat })
            }
            Request::CountDescendants { path } => {
                self.readable(id, path)?;
                Ok(Response::Count(i32::try_from(self.tree.count_below(path)).unwrap_or(i32::MAX)))
            }
            Request::GetAcl { path } => self.access_list(id, path),
            Request::GetEphemerals { prefix } => {
                let session = self.session_of(id).ok_or(Code::SESSION_EXPIRED)?;
                let paths = self.tree.ephemerals_of(session).filter(|path| path.starts_with(prefix.as_str()));
                Ok(Response::Paths(paths.map(|path| path.to_string()).collect()))
            }
            Request::WhoAmI => Ok(Response::Identities(self.identities(id).iter().map(acl::public).collect())),
            Request::MultiRead(requests) => {
                let results = requests.iter().map(|request| self.read_one(id, request));
                let result = |result: Result<_, _>| result.map_or_else(MultiResult::Err, MultiResult::Ok);
                Ok(Response::Multi(results.map(result).collect()))
            }
            Request::SetWatches { relative_zxid, data, exist, child } => {
                self.set_watches(id, *relative_zxid, data, exist, child);
                Ok(Response::Empty)
            }
            Request::SetWatches2 { relative_zxid, data, exist, child, persistent, persistent_recursive } => {
                self.set_watches(id, *relative_zxid, data, exist, child);
                for (kind, paths) in [(Kind::Persistent, persistent), (Kind::Recursive, persistent_recursive)] {
                    paths.iter().for_each(|path| self.watches.add(kind, path, id));
                }
                Ok(Response::Empty)
            }
            Request::AddWatch { .. } if !self.settings.knows_persistent_watches => Err(Code::UNIMPLEMENTED),
            Request::AddWatch { path, mode } => {
                let kind = match mode {
                    zklock::proto::AddWatchMode::Persistent => Kind::Persistent,
                    zklock::proto::AddWatchMode::PersistentRecursive => Kind::Recursive,
                };
                self.watches.add(kind, path, id);
                Ok(Response::WatchAdded)
            }
            Request::CheckWatches { path, kind } => {
                self.watches.contains(*kind, path).then_some(Response::Empty).ok_or(Code::NO_WATCHER)
            }
            Request::RemoveWatches { path, kind } => {
                self.watches.remove(*kind, path, id).then_some(Response::Empty).ok_or(Code::NO_WATCHER)
            }
            _ => Err(Code::UNIMPLEMENTED),
        }
    }

    /// One of several reads, which set no watches whatever they say.
    fn read_one(&mut self, id: ConnectionId, request: &Request) -> Result<Response, Code> {
        match request.clone() {
            Request::GetData { path, .. } => self.read(id, &Request::GetData { path, watch: false }),
            Request::GetChildren { path, .. } => self.read(id, &Request::GetChildren { path, watch: false }),
            _ => Err(Code::UNIMPLEMENTED),
        }
    }

    fn node(&self, path: &str) -> Result<&Node, Code> {
        self.tree.get(path).ok_or(Code::NO_NODE)
    }

    fn readable(&self, id: ConnectionId, path: &str) -> Result<&Node, Code> {
        let node = self.node(path)?;
        acl::check(&node.acl, READ, self.identities(id))?;
        Ok(node)
    }

    fn children(&mut self, id: ConnectionId, path: &str, watch: bool) -> Result<(Vec<String>, Stat), Code> {
        let node = self.readable(id, path)?;
        let found = (node.children.iter().cloned().collect(), node.stat());
        self.watch_if(watch, Kind::Children, path, id);
        Ok(found)
    }

    /// The list; the hashes of passwords in it are for those only who may change it.
    fn access_list(&self, id: ConnectionId, path: &str) -> Result<Response, Code> {
        let node = self.node(path)?;
        acl::check(&node.acl, READ | ADMIN, self.identities(id))?;
        let may_see_all = acl::check(&node.acl, ADMIN, self.identities(id)).is_ok();
        let acl = node.acl.iter().map(|acl| if may_see_all { acl.clone() } else { masked(acl) }).collect();
        Ok(Response::Acl { acl, stat: node.stat() })
    }

    fn identities(&self, id: ConnectionId) -> &[Identity] {
        self.connections.get(&id).map_or(&[], |connection| &connection.identities)
    }

    // Watches.

    fn watch_if(&mut self, wanted: bool, kind: Kind, path: &str, id: ConnectionId) {
        if wanted {
            self.watches.add(kind, path, id);
        }
    }

    /// Sets again what a client had watched elsewhere, and tells it what it has missed.
    fn set_watches(&mut self, id: ConnectionId, seen: i64, data: &[String], exist: &[String], child: &[String]) {
        for path in data {
            let missed = match self.tree.get(path) {
                None => Some(EventKind::Deleted),
                Some(node) => (node.stat().mzxid > seen).then_some(EventKind::DataChanged),
            };
            self.watch_or_tell(id, Kind::Data, path, missed);
        }
        for path in exist {
            let missed = self.tree.get(path).map(|_| EventKind::Created);
            self.watch_or_tell(id, Kind::Data, path, missed);
        }
        for path in child {
            let missed = match self.tree.get(path) {
                None => Some(EventKind::Deleted),
                Some(node) => (node.stat().pzxid > seen).then_some(EventKind::ChildrenChanged),
            };
            self.watch_or_tell(id, Kind::Children, path, missed);
        }
    }

    fn watch_or_tell(&mut self, id: ConnectionId, kind: Kind, path: &str, missed: Option<EventKind>) {
        match missed {
            Some(missed) => self.notify(id, missed, path),
            None => self.watches.add(kind, path, id),
        }
    }

    fn notify(&mut self, id: ConnectionId, kind: EventKind, path: &str) {
        let event = WatchEvent { kind, state: WatchEvent::SYNC_CONNECTED, path: path.to_owned() };
        self.send_with(id, |out| event.encode(NO_ZXID, out));
    }

    // Transactions.

    /// Does what the leader has ordered next.
    pub fn apply(&mut self, txn: &Txn) {
        self.zxid = txn.zxid;
        let result = match &txn.body {
            Body::OpenSession { timeout } => {
                self.sessions.insert(txn.session, Session { timeout: *timeout });
                if let Some(origin) = self.own(txn) {
                    self.welcome(origin.connection, txn.session);
                }
                return;
            }
            Body::CloseSession => return self.end_session(txn),
            Body::Failed(code) => Err(*code),
            Body::ManyFailed(codes) => Ok(Response::Multi(codes.iter().map(|&code| MultiResult::Err(code)).collect())),
            Body::One(change) => Ok(self.make(txn, change)),
            Body::Many(changes) => {
                let results = changes.iter().map(|change| MultiResult::Ok(self.make(txn, change)));
                Ok(Response::Multi(results.collect()))
            }
        };
        self.answer(txn, result);
    }

    fn make(&mut self, txn: &Txn, change: &Change) -> Response {
        let mut happened = Vec::new();
        let response = self.tree.apply(txn.zxid, txn.wall_ms, change, &mut happened);
        happened.iter().for_each(|happening| self.tell(happening));
        response
    }

    fn tell(&mut self, happening: &Happening) {
        for (id, kind, path) in self.watches.fire(happening) {
            let acl =
                if kind == happening.kind { Some(&happening.acl) } else { self.tree.get(&path).map(|node| &node.acl) };
            if acl.is_some_and(|acl| acl::check(acl, READ, self.identities(id)).is_ok()) {
                self.notify(id, kind, &path);
            }
        }
    }

    fn end_session(&mut self, txn: &Txn) {
        let ephemerals: Vec<Arc<str>> = self.tree.ephemerals_of(txn.session).map(Arc::clone).collect();
        for path in ephemerals {
            self.make(txn, &Change::Delete { path });
        }
        self.sessions.remove(&txn.session);
        self.answer(txn, Ok(Response::Empty));
        if let Some(connection) = self.connection_of(txn.session) {
            self.close(connection);
        }
    }

    fn answer(&mut self, txn: &Txn, result: Result<Response, Code>) {
        let Some(Origin { connection: id, number, .. }) = self.own(txn) else { return };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let is_next = |waiting: &Waiting| matches!(waiting.what, Turn::Write(own) if own == number);
        if !connection.waiting.front().is_some_and(is_next) {
            return;
        }
        if let Some(Waiting { xid, lost, .. }) = connection.waiting.pop_front() {
            self.finish(id, lost, xid, txn.zxid, result);
        }
        self.answer_reads(id);
    }

    fn own(&self, txn: &Txn) -> Option<Origin> {
        txn.origin.filter(|origin| origin.server == self.id)
    }

    // Saying something.

    fn origin(&mut self, connection: ConnectionId) -> Origin {
        self.asked += 1;
        Origin { server: self.id, connection, number: self.asked }
    }

    fn ask(&mut self, upcall: Upcall) {
        self.output.push_back(Output::Ask(upcall));
    }

    /// Answers a request, unless its reply is to be lost.
    fn finish(&mut self, id: ConnectionId, lost: bool, xid: i32, zxid: i64, result: Result<Response, Code>) {
        if lost {
            self.end(id, Action::Reset(id));
        } else {
            self.reply(id, xid, zxid, result);
        }
    }

    fn reply(&mut self, id: ConnectionId, xid: i32, zxid: i64, result: Result<Response, Code>) {
        self.send_with(id, |out| {
            let code = match result {
                Ok(response) => response.encode(xid, zxid, out).err().map(|_| Code::MARSHALLING_ERROR),
                Err(code) => Some(code),
            };
            if let Some(code) = code {
                encode_error(xid, zxid, code, out);
            }
        });
    }

    fn send_with(&mut self, id: ConnectionId, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        write(&mut bytes);
        self.send(id, bytes);
    }

    fn send(&mut self, id: ConnectionId, bytes: Vec<u8>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.phase == Phase::Closing {
            return;
        }
        connection.sent += 1;
        self.counters.sent += 1;
        self.output.push_back(Output::Act(Action::Send(id, bytes)));
    }

    fn close(&mut self, id: ConnectionId) {
        self.end(id, Action::Close(id));
    }

    fn end(&mut self, id: ConnectionId, how: Action) {
        if self.connections.get(&id).is_some_and(|connection| connection.phase != Phase::Closing) {
            self.set_phase(id, Phase::Closing);
            // What waits behind an answer that is still to come must not set a watch any more.
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.waiting.clear();
            }
            self.watches.close(id);
            self.output.push_back(Output::Act(how));
        }
    }

    fn set_phase(&mut self, id: ConnectionId, phase: Phase) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.phase = phase;
        }
    }
}

/// Servers put no number on their notifications, nor on their answer to what they have never heard of.
const NO_ZXID: i64 = -1;

const fn is_write(request: &Request) -> bool {
    matches!(
        request,
        Request::Create { .. }
            | Request::Create2 { .. }
            | Request::CreateTtl { .. }
            | Request::Delete { .. }
            | Request::SetData { .. }
            | Request::SetAcl { .. }
            | Request::Check { .. }
            | Request::Multi(_)
            | Request::CloseSession
    )
}

fn masked(acl: &Acl) -> Acl {
    match (acl.scheme.as_str(), acl.id.split_once(':')) {
        ("digest", Some((user, _))) => Acl { id: format!("{user}:x"), ..acl.clone() },
        _ => acl.clone(),
    }
}
