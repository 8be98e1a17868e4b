//! One server of an ensemble as a value: its copy of the tree, its connections, their watches, and the requests that
//! wait for their replies.
//!
//! A replica answers reads from its own copy of the tree, which may lag behind the leader. It sends all other requests
//! to the leader. It answers the requests of a connection in order. A watching client receives the event of a change
//! before any client can read that change from this replica.
//!
//! A replica must not order changes, and must not end a session by itself. Only the leader decides on both.

mod requests;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use zklock_proto::{
    Acl, Code, ConnectResponse, EventKind, Frames, Identity, MultiResult, OpCode, Request, Response, Stat, WatchEvent,
    encode_error,
};

use crate::leader::{Origin, Txn, TxnBody};
use crate::sasl::{SaslFault, SaslStage};
use crate::tree::{ADMIN, Change, Node, NodeEvent, READ, Tree};
use crate::watch::{WatchKind, Watches};
use crate::{ConnectionId, ServerId, Settings, acl};

/// One server of an ensemble.
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
    /// The requests whose replies the server drops: their session (`None` for any session) and their type.
    replies_to_drop: Vec<(Option<i64>, OpCode)>,
    sasl_fault: Option<SaslFault>,
    early_requests: u64,
    output: VecDeque<ReplicaOutput>,
    last_request_number: u64,
}

/// The data that every server has about a session.
#[derive(Debug, Clone)]
pub struct Session {
    /// The session timeout that was negotiated when the session was created.
    pub timeout: Duration,
}

/// The numbers of packets that the server has received and sent since its start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) received: u64,
    pub(crate) sent: u64,
}

/// The output of a replica.
#[derive(Debug)]
pub enum ReplicaOutput {
    /// An action for the connection of a client.
    ToClient(ConnectionAction),
    /// A request for the leader.
    ToLeader(LeaderRequest),
}

/// An action for the connection of a client.
#[derive(Debug)]
pub enum ConnectionAction {
    /// Sends these bytes.
    Send(ConnectionId, Vec<u8>),
    /// Closes the connection after all earlier bytes have been sent.
    Close(ConnectionId),
    /// Resets the connection. Bytes that were sent earlier may be lost.
    Reset(ConnectionId),
}

/// A request from a server to its leader.
#[derive(Debug)]
pub enum LeaderRequest {
    /// Create a session for a new client. The answer is a transaction.
    CreateSession {
        /// The client's request.
        origin: Origin,
        /// The session timeout.
        timeout: Duration,
    },
    /// Resume a session if it is still alive. The answer is a call of [`Replica::resume_decided`].
    ResumeSession {
        /// The connection whose client wants to resume the session.
        connection: ConnectionId,
        /// The session.
        session: i64,
        /// The session timeout from now on.
        timeout: Duration,
    },
    /// Extend a session because its client has sent a message.
    TouchSession {
        /// The session of the client.
        session: i64,
        /// The session timeout in effect.
        timeout: Duration,
    },
    /// Change the tree. The answer is a transaction.
    Write {
        /// The client's request.
        origin: Origin,
        /// The session of the client.
        session: i64,
        /// The identities of the client.
        identities: Arc<[Identity]>,
        /// The change.
        request: Box<Request>,
    },
    /// Bring the replica up to date. The leader first sends all earlier transactions. The answer is a call of
    /// [`Replica::synced`].
    Sync {
        /// The client's request.
        origin: Origin,
    },
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: SocketAddr,
    pub(crate) phase: ConnectionPhase,
    pub(crate) timeout: Duration,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    frames: Frames,
    identities: Arc<[Identity]>,
    sasl: SaslStage,
    pending: VecDeque<PendingRequest>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionPhase {
    /// The server has received no bytes.
    NoData,
    /// The server waits for the connect request.
    AwaitingHandshake,
    /// The server waits for the leader to create a new session or to resume the given session.
    AwaitingLeader(Option<i64>),
    /// The connection has a session.
    Established(i64),
    /// The connection is about to be closed.
    Closing,
}

/// A request without an answer yet.
#[derive(Debug)]
struct PendingRequest {
    xid: i32,
    kind: PendingKind,
    /// The server drops the reply and resets the connection.
    drop_reply: bool,
}

#[derive(Debug)]
enum PendingKind {
    /// The server answers from its own tree when it reaches the request.
    Read(Request),
    /// The server answers with this error code when it reaches the request.
    Error(Code),
    /// The leader orders the request. The number identifies it.
    Write(u64),
    /// The leader brings the replica up to date. The number identifies the request.
    Sync(u64, String),
}

impl Replica {
    /// Creates a server with an empty tree.
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
            replies_to_drop: Vec::new(),
            sasl_fault: None,
            early_requests: 0,
            output: VecDeque::new(),
            last_request_number: 0,
        }
    }

    /// Discards the connections and watches, which are lost when a process ends. Keeps the committed data.
    pub fn restart(&mut self) {
        self.watches = Watches::default();
        self.connections.clear();
        self.output.clear();
    }

    /// The server's copy of the tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The number of the last transaction that the server has applied.
    pub fn zxid(&self) -> i64 {
        self.zxid
    }

    /// The number of watches.
    pub fn watch_count(&self) -> usize {
        self.watches.count()
    }

    /// All sessions.
    pub fn sessions(&self) -> impl Iterator<Item = (i64, &Session)> {
        self.sessions.iter().map(|(&id, session)| (id, session))
    }

    /// The connection of a session, if it is connected to this server.
    pub fn connection_of(&self, session: i64) -> Option<ConnectionId> {
        let mut open =
            self.connections.iter().filter(|(_, connection)| connection.phase == ConnectionPhase::Established(session));
        open.next().map(|(&id, _)| id)
    }

    /// The session of a connection, if it has one.
    pub fn session_of(&self, connection: ConnectionId) -> Option<i64> {
        match self.connections.get(&connection)?.phase {
            ConnectionPhase::Established(session) => Some(session),
            _ => None,
        }
    }

    /// Drops the next reply to a request of type `op` and resets the connection. The server still carries out the
    /// request.
    pub fn lose_reply(&mut self, session: Option<i64>, op: OpCode) {
        self.replies_to_drop.push((session, op));
    }

    /// Lets the next exchange of SASL tokens fail.
    pub fn fail_sasl(&mut self, fault: SaslFault) {
        self.sasl_fault = Some(fault);
    }

    /// The number of requests that clients have sent before both sides had proved their identities with SASL.
    pub fn early_requests(&self) -> u64 {
        self.early_requests
    }

    /// Cancels all pending faults of [`lose_reply`](Self::lose_reply) and [`fail_sasl`](Self::fail_sasl).
    pub fn clear_reply_losses(&mut self) {
        self.replies_to_drop.clear();
        self.sasl_fault = None;
    }

    /// Returns the next output.
    pub fn poll(&mut self) -> Option<ReplicaOutput> {
        self.output.pop_front()
    }

    // Connections.

    /// Registers a connection that a client has opened. Closes the connection if the address of the client has reached
    /// its limit of connections.
    pub fn accept(&mut self, id: ConnectionId, peer: SocketAddr) {
        let neighbors = self.connections.values().filter(|other| other.peer.ip() == peer.ip()).count();
        if self.settings.connections_per_address.is_some_and(|limit| neighbors >= limit) {
            return self.output.push_back(ReplicaOutput::ToClient(ConnectionAction::Close(id)));
        }
        let connection = Connection {
            peer,
            phase: ConnectionPhase::NoData,
            timeout: Duration::ZERO,
            received: 0,
            sent: 0,
            frames: Frames::new(self.settings.frame_limit),
            identities: Arc::new([acl::identity_of(peer.ip())]),
            sasl: SaslStage::Begin,
            pending: VecDeque::new(),
        };
        self.connections.insert(id, connection);
    }

    /// Removes a connection that has ended.
    pub fn closed(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
        self.watches.remove_connection(id);
    }

    /// Handles the leader's decision on a session that a client wants to resume.
    pub fn resume_decided(&mut self, id: ConnectionId, session: i64, alive: bool) {
        let Some(connection) = self.connections.get(&id) else { return };
        if connection.phase != ConnectionPhase::AwaitingLeader(Some(session)) {
            return;
        }
        if alive {
            return self.send_connect_response(id, session);
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

    fn send_connect_response(&mut self, id: ConnectionId, session_id: i64) {
        let Some(connection) = self.connections.get(&id) else { return };
        let response = ConnectResponse {
            protocol_version: 0,
            timeout_ms: i32::try_from(connection.timeout.as_millis()).unwrap_or(i32::MAX),
            session_id,
            password: self.settings.password_of(session_id).to_vec(),
            read_only: false,
        };
        self.set_phase(id, ConnectionPhase::Established(session_id));
        self.send_with(id, |out| response.encode(out));
    }

    // Requests.

    /// Answers requests from the queue of a connection, up to the first request that needs an answer from the leader.
    fn answer_reads(&mut self, id: ConnectionId) {
        while let Some(connection) = self.connections.get_mut(&id) {
            if !matches!(
                connection.pending.front(),
                Some(PendingRequest { kind: PendingKind::Read(_) | PendingKind::Error(_), .. })
            ) {
                return;
            }
            let Some(PendingRequest { xid, kind: what, drop_reply }) = connection.pending.pop_front() else { return };
            let result = match what {
                PendingKind::Read(request) => self.read(id, &request),
                PendingKind::Error(code) => Err(code),
                PendingKind::Write(_) | PendingKind::Sync(..) => return,
            };
            let zxid = self.zxid;
            self.reply_or_drop(id, drop_reply, xid, zxid, result);
        }
    }

    /// Handles the leader's answer to [`LeaderRequest::Sync`]: the replica has applied all transactions that the leader
    /// ordered before the request.
    pub fn synced(&mut self, origin: Origin) {
        let Some(connection) = self.connections.get_mut(&origin.connection) else { return };
        if !matches!(&connection.pending.front(), Some(PendingRequest { kind: PendingKind::Sync(number, _), .. }) if *number == origin.request_number)
        {
            return;
        }
        if let Some(PendingRequest { xid, kind: PendingKind::Sync(_, path), drop_reply }) =
            connection.pending.pop_front()
        {
            let zxid = self.zxid;
            self.reply_or_drop(origin.connection, drop_reply, xid, zxid, Ok(Response::Path(path)));
        }
        self.answer_reads(origin.connection);
    }

    fn read(&mut self, id: ConnectionId, request: &Request) -> Result<Response, Code> {
        match request {
            Request::Ping => Ok(Response::Empty),
            Request::Exists { path, .. } if path.contains('\0') => Err(Code::BAD_ARGUMENTS),
            Request::Exists { path, watch } => {
                self.add_watch_if(*watch, WatchKind::Data, path, id);
                self.node(path).map(|node| Response::Stat(node.stat()))
            }
            Request::GetData { path, watch } => {
                let node = self.readable_node(id, path)?;
                let response = Response::Data { data: node.data.as_deref().map(<[u8]>::to_vec), stat: node.stat() };
                self.add_watch_if(*watch, WatchKind::Data, path, id);
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
            Request::GetAllChildrenNumber { path } => {
                self.readable_node(id, path)?;
                Ok(Response::AllChildrenNumber(i32::try_from(self.tree.count_below(path)).unwrap_or(i32::MAX)))
            }
            Request::GetAcl { path } => self.access_list(id, path),
            Request::GetEphemerals { prefix } => {
                let session = self.session_of(id).ok_or(Code::SESSION_EXPIRED)?;
                let paths = self.tree.ephemerals_of(session).filter(|path| path.starts_with(prefix.as_str()));
                Ok(Response::Paths(paths.map(|path| path.to_string()).collect()))
            }
            Request::WhoAmI => {
                Ok(Response::Identities(self.identities(id).iter().map(acl::without_password_hash).collect()))
            }
            Request::MultiRead(requests) => {
                let results = requests.iter().map(|request| self.read_without_watch(id, request));
                let result = |result: Result<_, _>| result.map_or_else(MultiResult::Err, MultiResult::Ok);
                Ok(Response::Multi(results.map(result).collect()))
            }
            Request::SetWatches { relative_zxid, data, exist, child } => {
                self.set_watches(id, *relative_zxid, data, exist, child);
                Ok(Response::Empty)
            }
            Request::SetWatches2 { relative_zxid, data, exist, child, persistent, persistent_recursive } => {
                self.set_watches(id, *relative_zxid, data, exist, child);
                for (kind, paths) in
                    [(WatchKind::Persistent, persistent), (WatchKind::PersistentRecursive, persistent_recursive)]
                {
                    paths.iter().for_each(|path| self.watches.add(kind, path, id));
                }
                Ok(Response::Empty)
            }
            Request::AddWatch { .. } if !self.settings.supports_persistent_watches => Err(Code::UNIMPLEMENTED),
            Request::AddWatch { path, mode } => {
                let kind = match mode {
                    zklock_proto::AddWatchMode::Persistent => WatchKind::Persistent,
                    zklock_proto::AddWatchMode::PersistentRecursive => WatchKind::PersistentRecursive,
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

    /// Answers one of several read requests in a multi. These requests never set a watch.
    fn read_without_watch(&mut self, id: ConnectionId, request: &Request) -> Result<Response, Code> {
        match request.clone() {
            Request::GetData { path, .. } => self.read(id, &Request::GetData { path, watch: false }),
            Request::GetChildren { path, .. } => self.read(id, &Request::GetChildren { path, watch: false }),
            _ => Err(Code::UNIMPLEMENTED),
        }
    }

    fn node(&self, path: &str) -> Result<&Node, Code> {
        self.tree.get(path).ok_or(Code::NO_NODE)
    }

    fn readable_node(&self, id: ConnectionId, path: &str) -> Result<&Node, Code> {
        let node = self.node(path)?;
        acl::check(&node.acl, READ, self.identities(id))?;
        Ok(node)
    }

    fn children(&mut self, id: ConnectionId, path: &str, watch: bool) -> Result<(Vec<String>, Stat), Code> {
        let node = self.readable_node(id, path)?;
        let found = (node.children.iter().cloned().collect(), node.stat());
        self.add_watch_if(watch, WatchKind::Children, path, id);
        Ok(found)
    }

    /// Answers `getACL`. Only clients that may change the list see the password hashes in it.
    fn access_list(&self, id: ConnectionId, path: &str) -> Result<Response, Code> {
        let node = self.node(path)?;
        acl::check(&node.acl, READ | ADMIN, self.identities(id))?;
        let may_see_all = acl::check(&node.acl, ADMIN, self.identities(id)).is_ok();
        let acl =
            node.acl.iter().map(|acl| if may_see_all { acl.clone() } else { without_password_hash(acl) }).collect();
        Ok(Response::Acl { acl, stat: node.stat() })
    }

    fn identities(&self, id: ConnectionId) -> &[Identity] {
        self.connections.get(&id).map_or(&[], |connection| &connection.identities)
    }

    // Watches.

    fn add_watch_if(&mut self, wanted: bool, kind: WatchKind, path: &str, id: ConnectionId) {
        if wanted {
            self.watches.add(kind, path, id);
        }
    }

    /// Restores the watches of a client that has reconnected, and notifies it of the changes that it missed.
    fn set_watches(
        &mut self,
        id: ConnectionId,
        relative_zxid: i64,
        data: &[String],
        exist: &[String],
        child: &[String],
    ) {
        for path in data {
            let missed = match self.tree.get(path) {
                None => Some(EventKind::Deleted),
                Some(node) => (node.stat().mzxid > relative_zxid).then_some(EventKind::DataChanged),
            };
            self.restore_watch(id, WatchKind::Data, path, missed);
        }
        for path in exist {
            let missed = self.tree.get(path).map(|_| EventKind::Created);
            self.restore_watch(id, WatchKind::Data, path, missed);
        }
        for path in child {
            let missed = match self.tree.get(path) {
                None => Some(EventKind::Deleted),
                Some(node) => (node.stat().pzxid > relative_zxid).then_some(EventKind::ChildrenChanged),
            };
            self.restore_watch(id, WatchKind::Children, path, missed);
        }
    }

    fn restore_watch(&mut self, id: ConnectionId, kind: WatchKind, path: &str, missed: Option<EventKind>) {
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

    /// Applies the next transaction that the leader has ordered.
    pub fn apply(&mut self, txn: &Txn) {
        self.zxid = txn.zxid;
        let result = match &txn.body {
            TxnBody::CreateSession { timeout } => {
                self.sessions.insert(txn.session, Session { timeout: *timeout });
                if let Some(origin) = self.own(txn) {
                    self.send_connect_response(origin.connection, txn.session);
                }
                return;
            }
            TxnBody::CloseSession => return self.end_session(txn),
            TxnBody::Error(code) => Err(*code),
            TxnBody::MultiError(codes) => {
                Ok(Response::Multi(codes.iter().map(|&code| MultiResult::Err(code)).collect()))
            }
            TxnBody::Change(change) => Ok(self.apply_change(txn, change)),
            TxnBody::Multi(changes) => {
                let results = changes.iter().map(|change| MultiResult::Ok(self.apply_change(txn, change)));
                Ok(Response::Multi(results.collect()))
            }
        };
        self.answer_write(txn, result);
    }

    fn apply_change(&mut self, txn: &Txn, change: &Change) -> Response {
        let mut events = Vec::new();
        let response = self.tree.apply(txn.zxid, txn.wall_ms, change, &mut events);
        events.iter().for_each(|event| self.trigger_watches(event));
        response
    }

    fn trigger_watches(&mut self, event: &NodeEvent) {
        for (id, kind, path) in self.watches.trigger(event) {
            let acl = if kind == event.kind { Some(&event.acl) } else { self.tree.get(&path).map(|node| &node.acl) };
            if acl.is_some_and(|acl| acl::check(acl, READ, self.identities(id)).is_ok()) {
                self.notify(id, kind, &path);
            }
        }
    }

    fn end_session(&mut self, txn: &Txn) {
        let ephemerals: Vec<Arc<str>> = self.tree.ephemerals_of(txn.session).map(Arc::clone).collect();
        for path in ephemerals {
            self.apply_change(txn, &Change::Delete { path });
        }
        self.sessions.remove(&txn.session);
        self.answer_write(txn, Ok(Response::Empty));
        if let Some(connection) = self.connection_of(txn.session) {
            self.close(connection);
        }
    }

    fn answer_write(&mut self, txn: &Txn, result: Result<Response, Code>) {
        let Some(Origin { connection: id, request_number, .. }) = self.own(txn) else { return };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let is_next =
            |waiting: &PendingRequest| matches!(waiting.kind, PendingKind::Write(own) if own == request_number);
        if !connection.pending.front().is_some_and(is_next) {
            return;
        }
        if let Some(PendingRequest { xid, drop_reply, .. }) = connection.pending.pop_front() {
            self.reply_or_drop(id, drop_reply, xid, txn.zxid, result);
        }
        self.answer_reads(id);
    }

    fn own(&self, txn: &Txn) -> Option<Origin> {
        txn.origin.filter(|origin| origin.server == self.id)
    }

    // Output.

    fn origin(&mut self, connection: ConnectionId) -> Origin {
        self.last_request_number += 1;
        Origin { server: self.id, connection, request_number: self.last_request_number }
    }

    fn ask_leader(&mut self, request: LeaderRequest) {
        self.output.push_back(ReplicaOutput::ToLeader(request));
    }

    /// Answers a request, or resets the connection if a test requested the loss of this reply.
    fn reply_or_drop(
        &mut self,
        id: ConnectionId,
        drop_reply: bool,
        xid: i32,
        zxid: i64,
        result: Result<Response, Code>,
    ) {
        if drop_reply {
            self.end(id, ConnectionAction::Reset(id));
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
        if connection.phase == ConnectionPhase::Closing {
            return;
        }
        connection.sent += 1;
        self.counters.sent += 1;
        self.output.push_back(ReplicaOutput::ToClient(ConnectionAction::Send(id, bytes)));
    }

    fn close(&mut self, id: ConnectionId) {
        self.end(id, ConnectionAction::Close(id));
    }

    fn end(&mut self, id: ConnectionId, how: ConnectionAction) {
        if self.connections.get(&id).is_some_and(|connection| connection.phase != ConnectionPhase::Closing) {
            self.set_phase(id, ConnectionPhase::Closing);
            // A request that still waits in the queue must not set a watch later.
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.pending.clear();
            }
            self.watches.remove_connection(id);
            self.output.push_back(ReplicaOutput::ToClient(how));
        }
    }

    fn set_phase(&mut self, id: ConnectionId, phase: ConnectionPhase) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.phase = phase;
        }
    }
}

/// ZooKeeper uses this zxid in notifications and in its reply to an unknown request.
const NO_ZXID: i64 = -1;

fn without_password_hash(acl: &Acl) -> Acl {
    match (acl.scheme.as_str(), acl.id.split_once(':')) {
        ("digest", Some((user, _))) => Acl { id: format!("{user}:x"), ..acl.clone() },
        _ => acl.clone(),
    }
}
