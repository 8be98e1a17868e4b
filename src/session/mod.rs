//! One ZooKeeper session as a value: it is handed bytes and the time, and hands back bytes to send, connections to open,
//! and events.
//!
//! What it answers for: a server is always being looked for; a dead one is noticed well inside the session timeout;
//! replies meet their requests; a request whose connection goes is answered with [`Failure::ConnectionLost`] at once;
//! watches are set again after a reconnect; the lease is proven by a quorum while something depends on it; and a session id
//! that changes is a session that ended, whatever the server says about it (ClickHouse Keeper answers a reconnect with a new
//! id and no expiry).

#![forbid(unsafe_code)]

mod connect_string;
mod lease;
mod oversize;
mod servers;
#[cfg(test)]
mod tests;
mod traffic;
mod watches;

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::time::Duration;

pub use connect_string::{ConnectString, DEFAULT_PORT, Server};
use lease::Sent;
pub use lease::{Lease, Proof};
pub use oversize::TooLarge;
use oversize::{Handling, Oversize};
use servers::Servers;
pub use traffic::Traffic;
pub use watches::Subscriber;
use watches::{Then, Watches};

use crate::error::{Error, Status};
use crate::limits::Limits;
use crate::mutant::Mutant;
use crate::note::{Level, Note, Notes};
use crate::proto::{
    AddWatchMode, Code, ConnectRequest, ConnectResponse, EventKind, Frames, MultiResult, OpCode, ProtoError,
    ReplyHeader, Request, Response, WatchEvent, WatcherType, XID_AUTH, XID_NOTIFICATION, XID_PING,
};
use crate::time::Time;

/// Where chance comes from: UUIDs, the order of the servers, the spread of waits. A simulation hands in a seeded one.
pub type Entropy = Box<dyn FnMut() -> u128 + Send>;

/// Number of servers that an error message lists, each with its cause.
const MOST_TOLD: usize = 8;

/// What depends on a session's lease, and so how it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// Nothing: a ping now and then keeps the session, and costs the servers next to nothing.
    None,
    /// Somebody waits: the lease is to run when his turn comes.
    Waiting,
    /// Something is held: the lease is to outlast the loss of a server.
    Holding,
}

/// What a session is made from.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// Asked of the server, which may negotiate another.
    pub timeout: Duration,
    /// How long before the session may end the lease does; `None`: a third of the negotiated timeout.
    pub lease_margin: Option<Duration>,
    /// Credentials, sent on every connection before anything else.
    pub auth: Vec<(String, Vec<u8>)>,
    /// Larger frames from a server are refused (`jute.maxbuffer`).
    pub frame_limit: usize,
    /// Thresholds; programs use the default.
    pub limits: Limits,
}

/// How the session stands, as programs see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(i32)]
pub enum ClientState {
    /// No session yet.
    #[default]
    Connecting = 0,
    /// The session has a connection.
    Connected = 1,
    /// The session's connection is gone; another one is being sought.
    Suspended = 2,
    /// The session ended, and the next one has not begun.
    Lost = 3,
    /// The client was closed.
    Closed = 4,
}

/// Why a request has no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The server said so.
    Code(Code),
    /// The connection went first: the request may or may not have been carried out.
    ConnectionLost,
    /// Servers closed the connection on it, or on a smaller one. It was most likely not carried out, but that is not certain.
    TooLarge(TooLarge),
}

impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        Self::Code(code)
    }
}

impl Failure {
    /// What it means to the caller; `doing` says what was being done to what.
    pub(crate) fn to_error(self, doing: &str) -> Error {
        match self {
            Self::Code(code) => Error::from_code(code, doing),
            Self::ConnectionLost => Error::new(Status::Connection, format!("{doing}: the connection was lost")),
            Self::TooLarge(too_large) => Error::new(Status::Exhausted, format!("{doing}: {too_large}")),
        }
    }
}

/// What the session tells its owner. `T` is the owner's tag for a request.
#[derive(Debug)]
pub enum Event<T> {
    /// Requests can be submitted. All watches of a resumed session have been asked for again.
    Connected {
        /// The same session as before the connection was lost.
        resumed: bool,
    },
    /// The connection is gone, and with it every request that was under way.
    Disconnected,
    /// The session is over for good, with its nodes; a new one is being made.
    Ended {
        /// No server said that it expired: its nodes may still be there for a while, and until this moment surely are.
        replaced: Option<Time>,
    },
    /// The answer to a request.
    Reply {
        /// The owner's tag.
        tag: T,
        /// The newest transaction that the server knew of; of a transaction its own; 0 where there was no answer.
        zxid: i64,
        /// The response, or why there is none.
        result: Result<Response, Failure>,
    },
    /// A watch fired, and is gone.
    Fired {
        /// Who asked for it.
        subscriber: Subscriber,
        /// What happened to the node.
        kind: EventKind,
        /// The node.
        path: String,
    },
    /// The server refused the credentials.
    AuthFailed,
    /// The session was closed, or the time to do so has run out.
    Closed,
}

/// What the session wants of the shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Drop what connection there is; resolve this server's name and connect to it; then call [`Session::connected`] or
    /// [`Session::disconnected`].
    Connect(Server),
    /// Drop the connection, or the attempt. No call is expected.
    Disconnect,
}

/// A session; see the module's description.
pub struct Session<T> {
    config: SessionConfig,
    servers: Servers,
    entropy: Entropy,
    link: Link,
    identity: Option<Identity>,
    ever_connected: bool,
    guard: Guard,
    closing: Option<Time>,
    /// The session timeout in force: the one negotiated, or before that the one wished for.
    timeout: Duration,
    /// The newest zxid that was seen. A server that has not come as far refuses the session, so that nothing goes back in time.
    last_zxid: i64,
    /// The newest zxid up to which all events of the watches were delivered: from here on, a new connection has to make up for them.
    /// While watches are being restored, replies advance `last_zxid` and not this.
    watched_zxid: i64,
    last_xid: i32,
    up_since: Time,
    last_sent: Time,
    /// What was sent on this connection, for the lease.
    sent: Sent,
    /// When a heartbeat was last sent, or a request that turned out to prove the lease.
    last_beat: Time,
    last_received: Time,
    /// When the server last answered what it was asked. Notifications come unasked and say nothing about that.
    last_answered: Time,
    ping_sent: Option<Time>,
    in_flight: VecDeque<InFlight<T>>,
    /// Requests that wait until a suspected one before them, or among them, is answered.
    held: VecDeque<Held<T>>,
    /// The transaction that goes ahead of an isolated request was sent on this connection.
    is_probed: bool,
    oversize: Oversize,
    /// Bytes of paths in one request that restores watches, at most.
    watch_batch: usize,
    watches: Watches,
    child_watches: Watches,
    /// Directories below which everything is watched, on this connection, and for whom.
    watched_below: BTreeMap<String, Subscriber>,
    frames: Frames,
    output: Vec<u8>,
    commands: VecDeque<Command>,
    events: VecDeque<Event<T>>,
    /// The server of the present or the last connection, and why the last one failed: for error messages.
    server: Option<Server>,
    cause: String,
    /// The servers that failed since a connection last stood, each with its own last cause; the latest is the last.
    failures: Vec<(Server, String)>,
    /// The last attempt failed because this machine had no descriptor or memory for it.
    is_starved: bool,
    local_address: String,
    traffic: Traffic,
    notes: Notes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Down { retry_at: Time },
    Connecting { give_up: Time },
    Handshake { sent: Time, give_up: Time },
    Authenticating { replies: usize, resumed: bool, give_up: Time },
    Up,
    Closed,
}

#[derive(Debug)]
struct Identity {
    id: i64,
    password: Vec<u8>,
    /// As agreed when the session began: a new leader goes back to it.
    timeout: Duration,
    lease: Lease,
}

struct InFlight<T> {
    xid: i32,
    op: OpCode,
    /// Of its frame, in bytes.
    size: usize,
    /// It was sent alone, since it may be too large.
    is_isolated: bool,
    sent: Time,
    /// What the answer proves, if it comes only after a quorum has committed the request.
    proof: Option<Proof>,
    purpose: Purpose<T>,
}

/// An encoded request that was not sent yet.
struct Held<T> {
    bytes: Vec<u8>,
    packet: Packet<T>,
}

/// A request without its bytes.
struct Packet<T> {
    xid: i32,
    op: OpCode,
    path: Option<String>,
    size: usize,
    is_isolated: bool,
    is_transaction: bool,
    purpose: Purpose<T>,
}

enum Purpose<T> {
    Answer(T),
    Watch(T, String, WatcherType),
    /// Ours alone: a heartbeat, a watch removed.
    Housekeeping,
    /// Watches set again. Without them nobody would be woken, so a refusal loses the connection.
    Restore,
    Close,
}

impl<T> Session<T> {
    /// A session that will look for its first server at the first [`advance`](Self::advance).
    pub fn new(servers: Vec<Server>, config: SessionConfig, now: Time, mut entropy: Entropy) -> Self {
        Self {
            servers: Servers::new(servers, &mut entropy),
            timeout: config.timeout,
            sent: Sent::new(now, config.timeout),
            frames: Frames::new(config.frame_limit),
            entropy,
            link: Link::Down { retry_at: now },
            identity: None,
            ever_connected: false,
            guard: Guard::None,
            closing: None,
            last_zxid: 0,
            watched_zxid: 0,
            last_xid: 0,
            up_since: now,
            last_sent: now,
            last_beat: now,
            last_received: now,
            last_answered: now,
            ping_sent: None,
            in_flight: VecDeque::new(),
            held: VecDeque::new(),
            is_probed: false,
            oversize: Oversize::default(),
            watch_batch: config.limits.watch_batch,
            watches: Watches::default(),
            child_watches: Watches::default(),
            watched_below: BTreeMap::new(),
            output: Vec::new(),
            commands: VecDeque::new(),
            events: VecDeque::new(),
            server: None,
            cause: "no connection was tried yet".to_owned(),
            failures: Vec::new(),
            is_starved: false,
            local_address: String::new(),
            traffic: Traffic::default(),
            notes: Notes::default(),
            config,
        }
    }

    // What the owner may ask.

    /// How the session stands.
    pub fn state(&self) -> ClientState {
        match (self.link, &self.identity) {
            _ if self.closing.is_some() => ClientState::Closed,
            (Link::Closed, _) => ClientState::Closed,
            (Link::Up, _) => ClientState::Connected,
            (_, Some(_)) => ClientState::Suspended,
            (_, None) if self.ever_connected => ClientState::Lost,
            (_, None) => ClientState::Connecting,
        }
    }

    /// Whether requests can be submitted.
    pub fn is_connected(&self) -> bool {
        self.link == Link::Up && self.closing.is_none()
    }

    /// The session's id; 0 where there is none.
    pub fn id(&self) -> i64 {
        self.identity.as_ref().map_or(0, |identity| identity.id)
    }

    /// The session's lease, where there is a session.
    pub fn lease(&self) -> Option<&Lease> {
        self.identity.as_ref().map(|identity| &identity.lease)
    }

    /// Whether the session is surely alive.
    pub fn lease_runs(&self, now: Time) -> bool {
        self.lease().is_some_and(|lease| lease.runs(now))
    }

    /// The session timeout in force.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// How often a quorum is asked to confirm the session while something is held.
    pub fn beat(&self) -> Duration {
        self.timeout / 6
    }

    /// For how long the server has owed an answer without a sign of life; zero if it owes none.
    pub fn silence(&self, now: Time) -> Duration {
        self.owed_since().map_or(Duration::ZERO, |since| now - since)
    }

    /// The server in use, or why each of the servers failed, for error messages.
    pub fn story(&self) -> String {
        let Some(server) = &self.server else { return self.cause.clone() };
        let mut story = self.last_step(server);
        if self.link == Link::Up {
            return story;
        }
        let others = || self.failures.iter().rev().filter(|(other, _)| other != server);
        for (other, cause) in others().take(MOST_TOLD - 1) {
            story += &format!("; {other}: {cause}");
        }
        match others().count().saturating_sub(MOST_TOLD - 1) {
            0 => story,
            more => format!("{story}; and {more} more"),
        }
    }

    /// Whether the last attempt failed because this machine had no descriptor or memory for it.
    pub fn is_starved(&self) -> bool {
        self.is_starved
    }

    /// What this server did last.
    fn last_step(&self, server: &Server) -> String {
        match self.link {
            Link::Up => format!("connected to {server}"),
            Link::Connecting { .. } => format!("{server} does not take the connection"),
            Link::Handshake { .. } => format!("{server} does not answer the handshake"),
            Link::Authenticating { .. } => format!("{server} does not answer the credentials"),
            Link::Down { .. } | Link::Closed => format!("last tried {server}: {}", self.cause),
        }
    }

    /// The host's address as its server sees it; empty before the first connection.
    pub fn local_address(&self) -> &str {
        &self.local_address
    }

    /// How many watches the server is believed to keep for this session.
    pub fn watch_count(&self) -> usize {
        self.watches.count() + self.child_watches.count() + self.watched_below.len()
    }

    /// Its thresholds, and those of its owner.
    pub const fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// What it has done so far.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// What is worth a line in a log, of this session and of what uses it.
    pub fn notes(&mut self) -> &mut Notes {
        &mut self.notes
    }

    /// Chance.
    pub fn entropy(&mut self) -> u128 {
        (self.entropy)()
    }

    // What the owner may do.

    /// Tells what depends on the lease.
    pub fn set_guard(&mut self, guard: Guard) {
        self.guard = guard;
    }

    /// Has a quorum confirm the session. What is asked after it is answered from a state that is not older.
    ///
    /// The leader checks the session, and a quorum commits the request.
    pub fn prove(&mut self, now: Time) {
        self.last_beat = now;
        self.send(now, &proof_request(), Purpose::Housekeeping);
    }

    /// Has the server catch up: what is asked after it is answered from a state that is not older than this call. This is no transaction,
    /// and proves nothing.
    pub fn sync(&mut self, now: Time, path: &str) {
        self.send(now, &Request::Sync { path: path.to_owned() }, Purpose::Housekeeping);
    }

    /// How long to wait before a proof makes the lease run. Zero: one does so now, for all that is known.
    pub fn proof_due_in(&self, now: Time) -> Duration {
        let Some(lease) = self.lease() else { return Duration::ZERO };
        let would_run = |heard: Time| lease.end_by(Proof { committed: now, heard }) > now + self.beat();
        if would_run(self.sent.heard(now)) { Duration::ZERO } else { self.sent.hears_in(now, would_run) }
    }

    /// Sends a request. Without a connection its answer is [`Failure::ConnectionLost`].
    pub fn submit(&mut self, now: Time, request: &Request, tag: T) {
        self.send(now, request, Purpose::Answer(tag));
    }

    /// Watches a directory and all that is below it until the connection is lost, or [`unwatch_below`](Self::unwatch_below): an
    /// [`Event::Fired`] for each change. False where that can't be: servers before 3.9 keep one watch of a connection for a path,
    /// of whatever kind (ZOOKEEPER-4466). For the same reason whoever watches the directory itself later takes this watch away, which is
    /// told as [`EventKind::PersistentWatchRemoved`].
    pub fn watch_below(&mut self, now: Time, directory: &str, subscriber: Subscriber, tag: T) -> bool {
        let is_free = !self.watches.contains(directory) && !self.child_watches.contains(directory);
        if !is_free || !self.is_connected() || self.watched_below.contains_key(directory) {
            return false;
        }
        self.watched_below.insert(directory.to_owned(), subscriber);
        let request = Request::AddWatch { path: directory.to_owned(), mode: AddWatchMode::PersistentRecursive };
        self.send(now, &request, Purpose::Answer(tag));
        true
    }

    /// The counterpart.
    pub fn unwatch_below(&mut self, now: Time, directory: &str) {
        if self.watched_below.remove(directory).is_some() && self.link == Link::Up {
            let request = Request::RemoveWatches { path: directory.to_owned(), kind: WatcherType::Any };
            self.send(now, &request, Purpose::Housekeeping);
        }
    }

    fn take_watch_below(&mut self, now: Time, path: &str) {
        if let Some(&subscriber) = self.watched_below.get(path) {
            self.unwatch_below(now, path);
            let (kind, path) = (EventKind::PersistentWatchRemoved, path.to_owned());
            self.events.push_back(Event::Fired { subscriber, kind, path });
        }
    }

    /// Reads a node and watches it; the answer is that of `getData`. Where it succeeds, one [`Event::Fired`] will follow.
    pub fn watch(&mut self, now: Time, path: &str, subscriber: Subscriber, tag: T) {
        self.take_watch_below(now, path);
        self.watches.ask(path, subscriber);
        let request = Request::GetData { path: path.to_owned(), watch: true };
        self.send(now, &request, Purpose::Watch(tag, path.to_owned(), WatcherType::Data));
    }

    /// Lists a directory and watches it for children that come or go; the answer is that of `getChildren2`. Where it succeeds, one
    /// [`Event::Fired`] will follow.
    pub fn watch_children(&mut self, now: Time, path: &str, subscriber: Subscriber, tag: T) {
        self.take_watch_below(now, path);
        self.child_watches.ask(path, subscriber);
        let request = Request::GetChildren2 { path: path.to_owned(), watch: true };
        self.send(now, &request, Purpose::Watch(tag, path.to_owned(), WatcherType::Children));
    }

    /// `subscriber` does not want to hear of `path` any more.
    pub fn unwatch(&mut self, now: Time, path: &str, subscriber: Subscriber) {
        let then = self.watches.unsubscribe(path, subscriber);
        self.settle(now, path, WatcherType::Data, then);
    }

    /// The same of its children.
    pub fn unwatch_children(&mut self, now: Time, path: &str, subscriber: Subscriber) {
        let then = self.child_watches.unsubscribe(path, subscriber);
        self.settle(now, path, WatcherType::Children, then);
    }

    /// The same, for a node that this session is about to delete.
    pub fn unwatch_doomed(&mut self, path: &str, subscriber: Subscriber) {
        self.watches.unsubscribe_doomed(path, subscriber);
    }

    /// From now on `to` hears of `path` in the place of `from`.
    pub fn hand_over_watch(&mut self, path: &str, from: Subscriber, to: Subscriber) {
        self.watches.hand_over(path, from, to);
    }

    /// Ends the session: at once where it has a connection, else as soon as it gets one, given up at `deadline`.
    /// [`Event::Closed`] follows in any case.
    pub fn close(&mut self, now: Time, deadline: Time) {
        if self.closing.is_some() {
            // Where it has ended already, whoever asks once more hears it once more.
            self.events.extend((self.link == Link::Closed).then_some(Event::Closed));
            return;
        }
        if self.link == Link::Up {
            self.send(now, &Request::CloseSession, Purpose::Close);
        }
        self.closing = Some(deadline);
        self.drop_held(now);
        // Without a session there is nothing to end, and one that never came to anything has nothing that could stay.
        if self.identity.is_none() || !self.ever_connected {
            self.finish();
        }
    }

    // What the shell does.

    /// The next thing for the shell to do.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// The next thing for the owner to know.
    pub fn poll_event(&mut self) -> Option<Event<T>> {
        self.events.pop_front()
    }

    /// Bytes to be sent; the shell takes off the front what it has sent.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// The shell has a connection; `local_address` is this end's IP address.
    pub fn connected(&mut self, now: Time, local_address: &str) {
        if !matches!(self.link, Link::Connecting { .. }) {
            return;
        }
        self.local_address = local_address.to_owned();
        self.frames.clear();
        self.output.clear();
        self.link = Link::Handshake { sent: now, give_up: now + self.share(Duration::from_secs(1)) };
        let (session_id, password) = self
            .identity
            .as_ref()
            .map_or_else(|| (0, vec![0; 16]), |identity| (identity.id, identity.password.clone()));
        ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: self.last_zxid,
            timeout_ms: i32::try_from(self.config.timeout.as_millis()).unwrap_or(i32::MAX),
            session_id,
            password,
            read_only: false,
        }
        .encode(&mut self.output);
        self.traffic.bytes_sent += length(self.output.len());
        self.last_sent = now;
    }

    /// The shell's connection, or its attempt at one, has failed.
    pub fn disconnected(&mut self, now: Time, cause: &str) {
        if matches!(self.link, Link::Down { .. } | Link::Closed) {
            return;
        }
        if matches!(self.link, Link::Handshake { .. }) && self.is_past_hope(now) {
            self.end(true);
        }
        if self.link == Link::Up && self.closing.is_none() {
            self.look_for_oversize(now);
        }
        self.lose(now, cause);
    }

    /// The machine refused what a connection needs.
    pub fn starved(&mut self, now: Time, cause: &str) {
        self.disconnected(now, cause);
        self.is_starved = true;
    }

    /// Bytes have come in. `Break` means that nothing more of this connection is wanted.
    pub fn received(&mut self, now: Time, bytes: &[u8]) -> ControlFlow<()> {
        self.traffic.bytes_received += length(bytes.len());
        if self.has_connection() {
            self.frames.push(bytes);
        }
        loop {
            if !self.has_connection() {
                self.frames = Frames::new(self.config.frame_limit);
                return ControlFlow::Break(());
            }
            match self.frames.next() {
                Ok(None) => return ControlFlow::Continue(()),
                Ok(Some(frame)) => {
                    self.last_received = now;
                    if let Err(error) = self.frame(now, &frame) {
                        self.hang_up(now, &format!("it sent a frame that can't be right: {error}"));
                    }
                }
                Err(ProtoError::TooLong { len, .. }) if self.link == Link::Up => match self.frames.skip() {
                    None => return ControlFlow::Continue(()),
                    Some(head) => self.too_long(now, head, len),
                },
                Err(error) => self.hang_up(now, &format!("it sent bytes that can't be right: {error}")),
            }
        }
    }

    /// A reply is longer than we take: that is the trouble of who asked for it, and nobody else's.
    fn too_long(&mut self, now: Time, head: [u8; ReplyHeader::LENGTH], len: usize) {
        match (ReplyHeader::decode(&head), self.in_flight.front()) {
            (Ok((header, _)), Some(front)) if header.xid == front.xid => {
                if let Some(InFlight { purpose, .. }) = self.take_answered(now) {
                    self.answer(now, purpose, 0, Err(Failure::Code(Code::MARSHALLING_ERROR)));
                    self.send_held(now);
                }
            }
            _ => self.hang_up(now, &format!("it sent {len} bytes at once that nobody had asked for")),
        }
    }

    /// When [`advance`](Self::advance) wants to be called, unless something else changes it.
    pub fn next_timeout(&self) -> Option<Time> {
        let link = match self.link {
            Link::Down { retry_at } => Some(retry_at),
            Link::Connecting { give_up } | Link::Handshake { give_up, .. } | Link::Authenticating { give_up, .. } => {
                Some(give_up)
            }
            Link::Up => [self.beat_at(), self.dead_at()].into_iter().flatten().min(),
            Link::Closed => None,
        };
        match self.closing {
            Some(deadline) if self.link != Link::Closed => Some(link.map_or(deadline, |at| at.min(deadline))),
            _ => link,
        }
    }

    /// Does what is due.
    pub fn advance(&mut self, now: Time) {
        if self.link != Link::Closed && self.closing.is_some_and(|deadline| now >= deadline) {
            self.finish();
        }
        match self.link {
            Link::Down { retry_at } if now >= retry_at => self.connect(now),
            Link::Connecting { give_up } if now >= give_up => self.hang_up(now, "no connection in time"),
            Link::Handshake { give_up, .. } if now >= give_up => {
                self.hang_up(now, "no answer to the handshake in time");
            }
            Link::Authenticating { give_up, .. } if now >= give_up => {
                self.hang_up(now, "no answer to the credentials in time");
            }
            Link::Up if self.dead_at().is_some_and(|at| now >= at) => {
                self.hang_up(now, &format!("no answer for {} ms", self.silence(now).as_millis()));
            }
            Link::Up if self.beat_at().is_some_and(|at| now >= at) => self.send_heartbeat(now),
            _ => {}
        }
    }

    fn has_connection(&self) -> bool {
        !matches!(self.link, Link::Down { .. } | Link::Connecting { .. } | Link::Closed)
    }

    // Connecting.

    fn connect(&mut self, now: Time) {
        let Some(server) = self.servers.next() else { return };
        self.traffic.connection_attempts += 1;
        self.notes.add(Level::Debug, || Note::Connecting { server: server.to_string() });
        self.server = Some(server.clone());
        self.link = Link::Connecting { give_up: now + self.share(Duration::from_millis(100)) };
        self.commands.push_back(Command::Connect(server));
    }

    fn handshake(&mut self, now: Time, sent: Time, frame: &[u8]) -> Result<(), ProtoError> {
        let response = ConnectResponse::decode(frame)?;
        if response.timeout_ms <= 0 || response.session_id == 0 {
            let expired = self.identity.is_some();
            self.end(false);
            self.hang_up(now, "the session had expired");
            if expired && self.link != Link::Closed {
                // Who knows that will give out the next one. Another may be one that keeps nobody, and gave out this one.
                self.servers.again();
                self.link = Link::Down { retry_at: now };
            }
            return Ok(());
        }
        if response.read_only {
            // It has no quorum: it can neither grant nor prove anything.
            self.hang_up(now, "it is read-only");
            return Ok(());
        }
        let resumed = self.identity.as_ref().is_some_and(|identity| identity.id == response.session_id);
        if !resumed {
            self.end(true);
            if self.link == Link::Closed {
                return Ok(());
            }
        }
        let agreed = Duration::from_millis(u64::try_from(response.timeout_ms).unwrap_or_default());
        // To make a session is a transaction; to resume one proves nothing, since a single server may answer it.
        let identity = match self.identity.take() {
            Some(before) => {
                self.timeout = agreed.min(before.timeout);
                let mut lease = before.lease;
                lease.resume(self.timeout);
                if Mutant::ResumeProves.lives() {
                    lease.prove(Proof { committed: sent, heard: sent });
                }
                Identity { password: response.password, lease, ..before }
            }
            None => {
                self.traffic.sessions += 1;
                self.timeout = agreed;
                let lease = Lease::new(sent, agreed, self.config.lease_margin);
                Identity { id: response.session_id, password: response.password, timeout: agreed, lease }
            }
        };
        self.identity = Some(identity);
        self.sent = Sent::new(sent, self.timeout);
        self.authenticate(now, resumed);
        Ok(())
    }

    fn authenticate(&mut self, now: Time, resumed: bool) {
        let mut replies = 0;
        let before = self.output.len();
        for (scheme, auth) in &self.config.auth {
            let request = Request::Auth { scheme: scheme.clone(), auth: auth.clone() };
            replies += usize::from(request.encode(XID_AUTH, &mut self.output).is_ok());
        }
        self.traffic.requests += length(replies);
        self.traffic.bytes_sent += length(self.output.len() - before);
        self.last_sent = now;
        self.link = Link::Authenticating { replies, resumed, give_up: now + self.patience() };
        if replies == 0 {
            self.stand(now, resumed);
        }
    }

    /// The connection stands.
    fn stand(&mut self, now: Time, resumed: bool) {
        self.link = Link::Up;
        self.failures.clear();
        self.is_starved = false;
        self.up_since = now;
        self.traffic.connections += 1;
        self.traffic.reconnects += u64::from(self.ever_connected);
        self.ever_connected = true;
        if self.closing.is_some() {
            self.send(now, &Request::CloseSession, Purpose::Close);
            return;
        }
        self.restore_watches(now);
        if resumed && self.guard != Guard::None {
            self.prove(now);
        }
        let server = || self.server.as_ref().map(ToString::to_string).unwrap_or_default();
        let (session, timeout) = (self.id(), self.timeout);
        self.notes.add(Level::Info, || match resumed {
            true => Note::Reconnected { server: server(), session },
            false => Note::SessionBegun { server: server(), session, timeout },
        });
        self.events.push_back(Event::Connected { resumed });
    }

    /// Asks for all watches again. What changed since `watched_zxid` fires at once.
    fn restore_watches(&mut self, now: Time) {
        if Mutant::ForgetWatches.lives() {
            return;
        }
        let data = self.watches.take_stock().into_iter().map(|path| (WatcherType::Data, path));
        let child = self.child_watches.take_stock().into_iter().map(|path| (WatcherType::Children, path));
        let child = child.filter(|_| !Mutant::ForgetChildWatches.lives());
        let mut paths = data.chain(child).collect::<Vec<_>>().into_iter().peekable();
        let batch = self.watch_batch;
        let relative_zxid = if Mutant::AdvanceWhileRestoring.lives() { self.last_zxid } else { self.watched_zxid };
        while paths.peek().is_some() {
            let (mut data, mut child) = (Vec::new(), Vec::new());
            let mut bytes = 0;
            while let Some((kind, path)) = paths.next_if(|(_, path)| bytes == 0 || bytes + path.len() < batch) {
                bytes += path.len() + 4;
                if kind == WatcherType::Data { &mut data } else { &mut child }.push(path);
            }
            let request = Request::SetWatches { relative_zxid, data, exist: Vec::new(), child };
            self.send(now, &request, Purpose::Restore);
        }
    }

    // Requests and replies.

    fn send(&mut self, now: Time, request: &Request, purpose: Purpose<T>) {
        if self.link != Link::Up || (self.closing.is_some() && !matches!(purpose, Purpose::Close)) {
            return self.answer(now, purpose, 0, Err(Failure::ConnectionLost));
        }
        let before = self.output.len();
        let mut packet = match self.encode(request, purpose) {
            Ok(packet) => packet,
            // Too long for any frame: no server would have taken it.
            Err(purpose) => return self.answer(now, purpose, 0, Err(Failure::Code(Code::MARSHALLING_ERROR))),
        };
        if matches!(packet.purpose, Purpose::Restore | Purpose::Close) {
            return self.note_request(now, packet);
        }
        match self.oversize.handling(now, packet.size, &self.config.limits) {
            Handling::Send => {}
            Handling::Isolate => packet.is_isolated = true,
            Handling::Refuse(too_large) => {
                self.output.truncate(before);
                return self.answer(now, packet.purpose, 0, Err(Failure::TooLarge(too_large)));
            }
        }
        if packet.is_isolated || self.awaits_isolated() || !self.held.is_empty() {
            let bytes = self.output.split_off(before);
            self.held.push_back(Held { bytes, packet });
            return self.send_held(now);
        }
        self.note_request(now, packet);
    }

    /// Appends a request to the output.
    fn encode(&mut self, request: &Request, purpose: Purpose<T>) -> Result<Packet<T>, Purpose<T>> {
        let xid = self.last_xid.checked_add(1).unwrap_or(1);
        self.last_xid = xid;
        let before = self.output.len();
        if request.encode(xid, &mut self.output).is_err() {
            return Err(purpose);
        }
        let (op, size) = (request.op(), self.output.len() - before);
        let path = if self.notes.wants(Level::Trace) { request.path().map(str::to_owned) } else { None };
        Ok(Packet { xid, op, path, size, is_isolated: false, is_transaction: is_transaction(request), purpose })
    }

    /// The bytes of this request are in the output from now on.
    fn note_request(&mut self, now: Time, packet: Packet<T>) {
        let Packet { xid, op, path, size, is_isolated, is_transaction, purpose } = packet;
        let proof = is_transaction.then(|| Proof { committed: now, heard: self.sent.heard(now) });
        self.note_sent(now);
        self.traffic.requests += 1;
        self.traffic.bytes_sent += length(size);
        self.notes.add(Level::Trace, || Note::Sent { op, xid, path });
        self.in_flight.push_back(InFlight { xid, op, size, is_isolated, sent: now, proof, purpose });
    }

    /// Sends the requests that were held back, in their order. An isolated one waits until all before it are answered, the last of them
    /// a small transaction, so that the server is known to work. Those behind it wait until it is answered.
    fn send_held(&mut self, now: Time) {
        let limits = self.config.limits;
        while let Some(Held { packet: next, .. }) = self.held.front_mut() {
            // An answer since may have shown that a server accepts its size.
            next.is_isolated &= self.oversize.handling(now, next.size, &limits) != Handling::Send;
            let is_isolated = next.is_isolated;
            let must_wait = if is_isolated { !self.in_flight.is_empty() } else { self.awaits_isolated() };
            if must_wait {
                return;
            }
            if is_isolated && !std::mem::replace(&mut self.is_probed, true) {
                if let Ok(probe) = self.encode(&proof_request(), Purpose::Housekeeping) {
                    self.note_request(now, probe);
                }
                return;
            }
            let Some(Held { mut bytes, packet }) = self.held.pop_front() else { return };
            self.is_probed &= !packet.is_isolated;
            self.output.append(&mut bytes);
            self.note_request(now, packet);
        }
    }

    fn awaits_isolated(&self) -> bool {
        self.in_flight.front().is_some_and(|first| first.is_isolated)
    }

    /// A server has closed a connection: perhaps since a request on it was too large.
    fn look_for_oversize(&mut self, now: Time) {
        let limits = self.config.limits;
        if let Some(&InFlight { is_isolated: true, size, sent, .. }) = self.in_flight.front() {
            // A server reads the size first. If it takes longer, it has another reason.
            if now - sent > self.beat() || Mutant::RetryTooLarge.lives() {
                return;
            }
            self.oversize.closed_on(now, size, &limits);
            if let Some(too_large) = self.oversize.refusal(size)
                && let Some(InFlight { purpose, .. }) = self.in_flight.pop_front()
            {
                self.answer(now, purpose, 0, Err(Failure::TooLarge(too_large)));
            }
            return;
        }
        let is_restore = |request: &InFlight<T>| matches!(request.purpose, Purpose::Restore);
        if self.in_flight.iter().any(is_restore) {
            self.watch_batch = (self.watch_batch / 2).max(limits.least_watch_batch).min(self.watch_batch);
        }
        let others = self.in_flight.iter().filter(|request| !is_restore(request));
        self.oversize.closed(now, others.map(|request| request.size), &limits);
    }

    fn send_heartbeat(&mut self, now: Time) {
        if self.proof_at().is_some_and(|at| now >= at) {
            return self.prove(now);
        }
        self.note_sent(now);
        let before = self.output.len();
        if Request::Ping.encode(XID_PING, &mut self.output).is_ok() {
            self.traffic.pings += 1;
            self.notes.add(Level::Trace, || Note::Sent { op: OpCode::Ping, xid: XID_PING, path: None });
            self.traffic.bytes_sent += length(self.output.len() - before);
            self.ping_sent = Some(now);
        }
    }

    fn frame(&mut self, now: Time, frame: &[u8]) -> Result<(), ProtoError> {
        if let Link::Handshake { sent, .. } = self.link {
            return self.handshake(now, sent, frame);
        }
        let (header, body) = ReplyHeader::decode(frame)?;
        match header.xid {
            XID_NOTIFICATION => self.notification(&WatchEvent::decode(body)?),
            XID_PING => {
                if let Some(sent) = self.ping_sent.take() {
                    self.sent.answered(sent, now);
                }
                if self.in_flight.is_empty() {
                    self.last_answered = now;
                }
            }
            XID_AUTH => self.auth_reply(now, header.err),
            _ => return self.reply(now, &header, body),
        }
        Ok(())
    }

    fn notification(&mut self, event: &WatchEvent) {
        self.traffic.watch_events += 1;
        self.notes.add(Level::Trace, || Note::Fired { kind: event.kind, path: event.path.clone() });
        self.tell_below(event);
        // A node's end is the end of the watches on it and on its children.
        let (of_node, of_children) = match event.kind {
            EventKind::Created | EventKind::DataChanged => (true, false),
            EventKind::ChildrenChanged => (false, true),
            EventKind::Deleted => (true, true),
            _ => return,
        };
        let mut subscribers = if of_node { self.watches.fired(&event.path) } else { Vec::new() };
        subscribers.extend(if of_children { self.child_watches.fired(&event.path) } else { Vec::new() });
        for subscriber in subscribers {
            self.events.push_back(Event::Fired { subscriber, kind: event.kind, path: event.path.clone() });
        }
    }

    /// Whoever watches the directory hears of it before those who watch the node.
    fn tell_below(&mut self, event: &WatchEvent) {
        let parents = std::iter::successors(Some(event.path.as_str()), |path| Some(path.rsplit_once('/')?.0));
        for directory in parents.take_while(|_| !self.watched_below.is_empty()) {
            if let Some(&subscriber) = self.watched_below.get(directory) {
                let (kind, path) = (event.kind, event.path.clone());
                self.events.push_back(Event::Fired { subscriber, kind, path });
            }
        }
    }

    fn auth_reply(&mut self, now: Time, err: Code) {
        self.traffic.answers += 1;
        if err != Code::OK {
            let server = || self.server.as_ref().map(ToString::to_string).unwrap_or_default();
            self.notes.add(Level::Error, || Note::AuthRefused { server: server() });
            self.events.push_back(Event::AuthFailed);
            self.hang_up(now, "it refused the credentials");
            return;
        }
        if let Link::Authenticating { replies, resumed, .. } = self.link {
            // Whatever else it says, it has a third of the timeout for each answer.
            let give_up = now + self.patience();
            self.link = Link::Authenticating { replies: replies.saturating_sub(1), resumed, give_up };
            if replies <= 1 {
                self.stand(now, resumed);
            }
        }
    }

    fn reply(&mut self, now: Time, header: &ReplyHeader, body: &[u8]) -> Result<(), ProtoError> {
        match self.in_flight.front() {
            Some(front) if front.xid == header.xid => {}
            front => {
                let expected = front.map_or_else(|| "none".to_owned(), |front| front.xid.to_string());
                self.hang_up(now, &format!("it answered request {} where {expected} was due", header.xid));
                return Ok(());
            }
        }
        if is_doubtful(header.err) {
            self.hang_up(now, &format!("it answered {}", header.err));
            return Ok(());
        }
        // Decoded before it leaves the queue: bytes that can't be read lose the connection, and the request with it.
        let result = match (header.err, self.in_flight.front()) {
            (Code::OK, Some(front)) => Ok(Response::decode(front.op, body)?),
            (code, _) => Err(Failure::Code(code)),
        };
        let Some(InFlight { xid, op, sent, proof, purpose, .. }) = self.take_answered(now) else { return Ok(()) };
        let (zxid, took, failure) = (header.zxid, now - sent, (header.err != Code::OK).then_some(header.err));
        self.notes.add(Level::Trace, || Note::Answered { op, xid, zxid, took, failure });
        self.advance_zxid(header.zxid, &purpose, result.is_ok());
        let proof = match proof {
            Some(_) if Mutant::LeaseFromReply.lives() => Some(Proof { committed: now, heard: now }),
            Some(proof) if Mutant::SentIsHeard.lives() => Some(Proof { heard: proof.committed, ..proof }),
            proof => proof,
        };
        if let (Some(proof), true, Some(identity)) = (proof, proves(&result), &mut self.identity) {
            identity.lease.prove(proof);
            self.last_beat = self.last_beat.max(sent);
        }
        self.answer(now, purpose, header.zxid, result);
        self.send_held(now);
        Ok(())
    }

    /// An answer came with this zxid. Before it, the server has delivered all earlier events, but only of the watches that it has: a
    /// connection has all of them once every request that restores watches is answered.
    fn advance_zxid(&mut self, zxid: i64, answered: &Purpose<T>, is_ok: bool) {
        self.last_zxid = self.last_zxid.max(zxid);
        let is_restore = |purpose: &Purpose<T>| matches!(purpose, Purpose::Restore);
        let is_restoring = self.in_flight.iter().take(1).any(|next| is_restore(&next.purpose));
        // A refused one loses the connection.
        if !is_restoring && (is_ok || !is_restore(answered)) {
            self.watched_zxid = self.last_zxid;
        }
    }

    fn take_answered(&mut self, now: Time) -> Option<InFlight<T>> {
        let answered = self.in_flight.pop_front()?;
        self.last_answered = now;
        self.sent.answered(answered.sent, now);
        self.oversize.answered(answered.size);
        self.traffic.answers += 1;
        self.traffic.round_trips.observe(now - answered.sent);
        Some(answered)
    }

    fn answer(&mut self, now: Time, purpose: Purpose<T>, zxid: i64, result: Result<Response, Failure>) {
        match purpose {
            Purpose::Answer(tag) => self.events.push_back(Event::Reply { tag, zxid, result }),
            Purpose::Watch(tag, path, kind) => {
                let watches = if kind == WatcherType::Data { &mut self.watches } else { &mut self.child_watches };
                let then = watches.answered(&path, result.is_ok());
                self.settle(now, &path, kind, then);
                self.events.push_back(Event::Reply { tag, zxid, result });
            }
            Purpose::Restore if matches!(result, Err(Failure::Code(_))) => {
                self.hang_up(now, "it refused to set the watches again");
            }
            Purpose::Housekeeping | Purpose::Restore => {}
            // Whether it got there is not known: the next connection closes it, as long as there is time.
            Purpose::Close if result == Err(Failure::ConnectionLost) && !Mutant::CloseOnce.lives() => {}
            Purpose::Close => self.finish(),
        }
    }

    fn settle(&mut self, now: Time, path: &str, kind: WatcherType, then: Then) {
        if then == Then::Remove && self.link == Link::Up {
            let request = Request::RemoveWatches { path: path.to_owned(), kind };
            self.send(now, &request, Purpose::Housekeeping);
        }
    }

    // Losing.

    /// Requests that were held back are not sent any more.
    fn drop_held(&mut self, now: Time) {
        self.is_probed = false;
        for Held { packet, .. } in std::mem::take(&mut self.held) {
            self.answer(now, packet.purpose, 0, Err(Failure::ConnectionLost));
        }
    }

    /// Drops the connection from this side.
    fn hang_up(&mut self, now: Time, cause: &str) {
        self.commands.push_back(Command::Disconnect);
        self.lose(now, cause);
    }

    fn lose(&mut self, now: Time, cause: &str) {
        if self.link == Link::Closed {
            return;
        }
        let stood = self.link == Link::Up;
        let server = || self.server.as_ref().map(ToString::to_string).unwrap_or_default();
        let (session, cause_of) = (self.id(), || cause.to_owned());
        match stood {
            _ if self.closing.is_some() => {}
            true => {
                self.notes.add(Level::Warn, || Note::ConnectionLost { server: server(), session, cause: cause_of() });
            }
            false => self.notes.add(Level::Info, || Note::AttemptFailed { server: server(), cause: cause_of() }),
        }
        self.cause = cause.to_owned();
        self.is_starved = false;
        if let Some(server) = &self.server {
            self.failures.retain(|(other, _)| other != server);
            self.failures.push((server.clone(), self.cause.clone()));
        }
        self.output.clear();
        self.watched_below.clear();
        self.ping_sent = None;
        // A connection that stood is sought again at once; what fails over and over makes room.
        let wait = if stood && now - self.up_since >= self.config.limits.sound_connection {
            self.servers.succeeded();
            Duration::ZERO
        } else {
            self.servers.failed(&mut self.entropy)
        };
        self.link = Link::Down { retry_at: now + wait };
        for InFlight { purpose, .. } in std::mem::take(&mut self.in_flight) {
            self.answer(now, purpose, 0, Err(Failure::ConnectionLost));
        }
        self.drop_held(now);
        if self.link != Link::Closed && stood && self.closing.is_none() {
            self.traffic.connections_lost += 1;
            self.events.push_back(Event::Disconnected);
        }
    }

    /// The session is over.
    fn end(&mut self, replaced: bool) {
        let Some(identity) = self.identity.take() else { return };
        self.watches.clear();
        self.child_watches.clear();
        // A new session has seen nothing: servers that were set up anew must be able to take it.
        (self.last_zxid, self.watched_zxid) = (0, 0);
        self.timeout = self.config.timeout;
        if self.closing.is_some() {
            self.notes.add(Level::Info, || Note::SessionClosed { session: identity.id });
            return self.finish();
        }
        self.traffic.sessions_lost += 1;
        self.notes.add(Level::Warn, || Note::SessionLost { session: identity.id, replaced });
        self.events.push_back(Event::Ended { replaced: replaced.then_some(identity.lease.end()) });
    }

    fn finish(&mut self) {
        if self.link == Link::Closed {
            return;
        }
        self.link = Link::Closed;
        if let Some(identity) = self.identity.take() {
            self.notes.add(Level::Info, || Note::SessionClosed { session: identity.id });
        }
        self.closing.get_or_insert_default();
        self.commands.push_back(Command::Disconnect);
        self.events.push_back(Event::Closed);
    }

    /// Servers that hang up on a handshake have an older history than the session has seen: they lag, or were set up anew.
    /// The first kind catches up; once the session would have expired twice over, it must be the second.
    fn is_past_hope(&self, now: Time) -> bool {
        // An idle client's lease is not proven any more, but its session was alive when it was last heard of.
        let alive = self.last_received + self.timeout;
        self.lease().is_some_and(|lease| now >= lease.end().max(alive) + self.timeout * 2)
    }

    // Times.

    /// How long one server's connection or handshake may take: all should have their turn before a lease is over, but
    /// `least` is left to a slow one.
    fn share(&self, least: Duration) -> Duration {
        let servers = u32::try_from(self.servers.len().min(3)).unwrap_or(3);
        (self.timeout / 3 / servers).max(least)
    }

    fn owed_since(&self) -> Option<Time> {
        let asked = match (self.in_flight.front(), self.ping_sent) {
            (Some(front), Some(ping)) => Some(front.sent.min(ping)),
            (Some(front), None) => Some(front.sent),
            (None, ping) => ping,
        };
        asked.map(|asked| asked.max(self.last_answered))
    }

    /// How long a server may owe an answer before it counts as dead.
    fn patience(&self) -> Duration {
        self.timeout / 3
    }

    fn dead_at(&self) -> Option<Time> {
        self.owed_since().map(|since| since + self.patience())
    }

    fn beat_at(&self) -> Option<Time> {
        if self.closing.is_some() {
            return None;
        }
        // The next proof tells that the leader has heard of it: how long a lease is, depends on when that was. One ping at a time,
        // so that it is clear which one is answered.
        let ping_at = self.ping_sent.is_none().then(|| self.last_sent + self.beat());
        [self.proof_at(), ping_at].into_iter().flatten().min()
    }

    /// When a quorum is to be asked next.
    fn proof_at(&self) -> Option<Time> {
        match self.guard {
            Guard::None => None,
            Guard::Waiting => Some(self.last_beat + self.timeout / 3),
            Guard::Holding => Some(self.last_beat + self.beat()),
        }
    }

    fn note_sent(&mut self, now: Time) {
        self.last_sent = now;
        self.sent.note(now);
    }
}

fn length(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// A transaction that only checks whether `/zookeeper` is there, which it always is: nothing changes, and no watch fires.
fn proof_request() -> Request {
    Request::Multi(vec![Request::Check { path: "/zookeeper".to_owned(), version: -1 }])
}

/// Whether this request is a transaction, answered only after a quorum has committed it.
fn is_transaction(request: &Request) -> bool {
    use OpCode::{Create, Create2, CreateContainer, Delete, Multi, SetData};
    matches!(request.op(), Create | Create2 | CreateContainer | Delete | Multi | SetData)
}

/// Whether the answer to a transaction shows that a quorum has committed it for a living session. "No node" is the leader's
/// word; other refusals may be a single server's own. Within a multi all are the leader's.
fn proves(result: &Result<Response, Failure>) -> bool {
    match result {
        Ok(Response::Multi(results)) => results
            .iter()
            .all(|result| matches!(result, MultiResult::Ok(_) | MultiResult::Err(Code::NO_AUTH | Code::NO_NODE))),
        Ok(_) => true,
        Err(failure) => *failure == Failure::Code(Code::NO_NODE),
    }
}

/// Whether this answer leaves open what became of the request and of the session: a connection lost is the honest word for
/// it, and the next handshake tells the rest.
fn is_doubtful(code: Code) -> bool {
    use Code as C;
    matches!(
        code,
        C::SESSION_EXPIRED | C::SESSION_MOVED | C::CONNECTION_LOSS | C::OPERATION_TIMEOUT | C::REQUEST_TIMEOUT
    )
}
