//! The logic of one ZooKeeper session, without I/O. The inputs of the session are received bytes and the time. The outputs of the session
//! are bytes to send, commands to open and close connections, and events.
//!
//! - The session always tries to have a connection. The session detects a dead server well before the session timeout has passed.
//! - The session assigns each reply to its request. If the connection is lost, the session answers all requests in flight with
//!   `Failure::ConnectionLost`.
//! - The session sets all watches again after a reconnect.
//! - While a hold or a waiter needs the session lease, the session extends the lease with requests that a quorum commits. The session sends
//!   such a request every sixth of the session timeout for a hold, and every third for a waiter. The session also sends a ping if it has
//!   sent nothing for a sixth of the session timeout.
//! - The session treats a connection as dead if a request has had no answer for a third of the session timeout. Other data from the server
//!   does not change this rule.
//! - If the server list changes, the session may move to another server. The session leaves its server when it waits for no answer, or after
//!   a sixth of the session timeout. If the shell must load inputs for an attempt to connect, the session stays until they are loaded.
//! - If a server replies with a new session id, the old session has ended, even if no server reported an expiry. ClickHouse Keeper replies
//!   with a new session id when an expired session reconnects.

mod connect_string;
mod credentials;
mod ensemble_config;
mod large_requests;
mod lease;
mod servers;
#[cfg(test)]
mod tests;
mod traffic;
mod watches;

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::time::Duration;

pub use connect_string::{ConnectString, Server};
pub use credentials::Credentials;
use credentials::encode_credentials;
pub use ensemble_config::ClientPorts;
use ensemble_config::{CONFIG_PATH, Follower};
pub(crate) use large_requests::TooLarge;
use large_requests::{LargeRequests, Next, Pending, Submission, WatchBatch};
use lease::SentPackets;
pub(crate) use lease::{Lease, Proof};
pub(crate) use servers::Entropy;
use servers::{Migration, ServerList, Servers};
pub(crate) use traffic::Traffic;
pub(crate) use watches::{CacheId, MachineId, Subscriber};
use watches::{WatchAction, Watches};

use crate::error::{Error, Status};
use crate::limits::Limits;
use crate::log_record::{Level, LogBuffer, LogRecord};
use crate::mutant::Mutant;
use crate::time::Time;
use zeroize::{Zeroize, Zeroizing};
use zklock_proto::{
    AddWatchMode, Code, ConnectRequest, ConnectResponse, EventKind, Frames, MultiResult, OpCode, ProtoError,
    ReplyHeader, Request, Response, WatchEvent, WatcherType, XID_AUTH, XID_NOTIFICATION, XID_PING,
};

/// The maximum number of servers in an error message.
const MAX_SERVERS_LISTED: usize = 8;

/// Describes what currently needs the session lease. This value determines how often the session extends the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseDemand {
    /// No operation and no hold needs the lease. Pings keep the session alive at little cost for the servers.
    None,
    /// An operation waits for a lock. The lease must be valid when the operation acquires the lock.
    Waiting,
    /// A hold needs the lease. The lease must remain valid even if a server fails.
    Holding,
}

/// The configuration of a session.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// The requested session timeout. The server may negotiate another session timeout.
    pub timeout: Duration,
    /// The time between the end of the lease and the earliest end of the session. `None` means a third of the negotiated timeout.
    pub lease_margin: Option<Duration>,
    /// The ports that the client uses if it follows the configuration of the ensemble. `None` if the client does not follow it.
    pub follow_config: Option<ClientPorts>,
    /// The largest frame that the session accepts from a server, in bytes (`jute.maxbuffer`).
    pub frame_limit: usize,
    /// Tunable thresholds. Programs use the default thresholds; only the simulation changes them.
    pub limits: Limits,
}

/// The state of a session, as reported to the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(i32)]
#[non_exhaustive]
pub enum ClientState {
    /// The client has had no session yet.
    #[default]
    Connecting = 0,
    /// The session has a connection.
    Connected = 1,
    /// The session has no connection, and the client is connecting to a server.
    Suspended = 2,
    /// The session has ended, and the next session has not begun.
    Lost = 3,
    /// The client is closed.
    Closed = 4,
}

/// The reason why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The server replied with an error code.
    Code(Code),
    /// The client lost the connection before the reply arrived. The server may or may not have performed the request.
    ConnectionLost,
    /// Servers closed the connection after this request or after a smaller request. The servers probably did not perform this request.
    TooLarge(TooLarge),
}

impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        Self::Code(code)
    }
}

impl Failure {
    /// Converts the failure to an error for the program. `doing` describes the operation and its path.
    pub(crate) fn to_error(self, doing: &str) -> Error {
        match self {
            Self::Code(code) => Error::from_code(code, doing),
            Self::ConnectionLost => Error::new(Status::Connection, format!("{doing}: the connection was lost")),
            Self::TooLarge(too_large) => Error::new(Status::Exhausted, format!("{doing}: {too_large}")),
        }
    }
}

/// An event that the session reports to its owner. `T` is the owner's tag for a request.
#[derive(Debug)]
pub(crate) enum Event<T> {
    /// The session has a connection and accepts requests. If the session was resumed, the session has already sent the requests that
    /// restore its watches.
    Connected {
        /// True if the session is the same as before the connection was lost.
        resumed: bool,
    },
    /// The connection was lost. All requests that were in flight have failed.
    Disconnected,
    /// The session has ended. The servers delete the ephemeral nodes of the session, and the client starts a new session.
    SessionEnded {
        /// The value is `Some` if no server reported an expiry. The nodes of the ended session exist at least until this time.
        nodes_until: Option<Time>,
    },
    /// The reply to a request.
    Reply {
        /// The tag that the owner gave to the request.
        tag: T,
        /// The zxid of the reply. The reply to a transaction has the zxid of the transaction. The reply to a read has the largest zxid that
        /// the server had processed. The value is 0 if there was no reply.
        zxid: i64,
        /// The response, or the reason for the failure.
        result: Result<Response, Failure>,
    },
    /// A watch fired. The server has removed the watch.
    WatchFired {
        /// The subscriber of the watch.
        subscriber: Subscriber,
        /// The type of the event.
        kind: EventKind,
        /// The path of the node.
        path: String,
    },
    /// The server refused the credentials.
    AuthFailed,
    /// The last connection to each of the servers has failed because of a certificate.
    CertificatesRefused,
    /// The session was closed, or the deadline for closing it has passed.
    Closed,
}

/// A command for the shell, which owns the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Drop the current connection, resolve the name of this server, and connect to this server. After that, call `Session::connected` or
    /// `Session::disconnected`.
    Connect(Server),
    /// Load the inputs of the next attempt to connect, and keep the present connection. After that, call `Engine::finish_loading` or
    /// `Engine::postpone_departure`. The session sends this command only after `Engine::require_loading`.
    Load,
    /// Drop the connection or the connection attempt. After this command, the shell reports nothing more about the connection to the
    /// session.
    Disconnect,
}

/// A session. The documentation of this module describes its tasks.
pub(crate) struct Session<T> {
    config: SessionConfig,
    /// The servers that the program named.
    given_servers: Vec<Server>,
    servers: Servers,
    /// The configuration that the session follows, if the program has requested this.
    follower: Option<Follower>,
    /// True if the server watches the configuration for the session.
    is_config_watched: bool,
    /// Set if the session is about to leave its server, because the server list has changed.
    departure: Option<Departure>,
    /// True if the shell must load inputs before an attempt to connect, and loading can fail or block.
    is_loading_required: bool,
    /// True during the first attempt of a session that left a usable server to spread the load.
    is_rebalancing: bool,
    entropy: Entropy,
    connection: ConnectionState,
    active: Option<ActiveSession>,
    ever_connected: bool,
    lease_demand: LeaseDemand,
    close_deadline: Option<Time>,
    /// The session timeout in effect: the negotiated timeout, or the requested timeout if the client has no session.
    timeout: Duration,
    /// The largest zxid that the session has seen. A server that has not reached this zxid refuses the session, so the session never sees
    /// older data.
    last_zxid: i64,
    /// The zxid up to which the session has received all watch events. On a new connection, the session requests all events with larger
    /// zxids. While the session restores its watches, replies advance `last_zxid` but not this field.
    watched_zxid: i64,
    last_xid: i32,
    established_at: Time,
    last_sent: Time,
    /// The packets of this connection with their times. The session computes the lease from these times.
    sent_packets: SentPackets,
    /// The send time of the last heartbeat transaction, or of a later request that extended the lease.
    last_proof_sent: Time,
    last_received: Time,
    /// The time at which the server last replied to a request. Notifications do not count, because the server sends them without a request.
    last_answered: Time,
    ping_sent: Option<Time>,
    in_flight: VecDeque<InFlight<T>>,
    large_requests: LargeRequests<DeferredRequest<T>>,
    watch_batch: WatchBatch,
    data_watches: Watches,
    child_watches: Watches,
    /// Directories with a persistent recursive watch on this connection, and their subscribers.
    recursive_watches: BTreeMap<String, Subscriber>,
    frames: Frames,
    /// The credentials for the next connection. The session keeps credentials only until it has sent them.
    credentials: Vec<Credentials>,
    /// The inputs that the shell is loading for the present attempt to connect, for error messages.
    loading: Option<String>,
    output: Zeroizing<Vec<u8>>,
    /// True if the memory of the output may still contain credentials.
    has_secret_output: bool,
    commands: VecDeque<Command>,
    events: VecDeque<Event<T>>,
    /// The server of the current or last connection, and the reason why the last connection failed. Both fields are for error messages.
    server: Option<Server>,
    last_failure: String,
    /// The servers that failed after the last established connection, each with its last failure. The last entry contains the latest
    /// failure. A change of the server list removes the servers that the new list does not contain.
    server_failures: Vec<ServerFailure>,
    /// True if the last connection attempt failed because this machine had no file descriptor or memory left.
    is_out_of_resources: bool,
    local_address: String,
    traffic: Traffic,
    log_buffer: LogBuffer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionState {
    Disconnected { retry_at: Time },
    Connecting { deadline: Time },
    Securing { deadline: Time },
    Handshake { sent: Time, deadline: Time },
    Authenticating { replies: usize, resumed: bool, deadline: Time },
    Established,
    Closed,
}

/// The plan to leave the present server.
#[derive(Debug, Clone, Copy)]
struct Departure {
    migration: Migration,
    stage: DepartureStage,
}

/// The session loads the inputs of the next attempt before it leaves the server. If they cannot be loaded, the session could not even
/// return to this server.
#[derive(Debug, Clone, Copy)]
enum DepartureStage {
    /// The shell must load the inputs at this time.
    LoadAt(Time),
    /// The shell is loading the inputs.
    Loading,
    /// The session waits for answers. It leaves the server at the time `by` even if requests have no answer.
    Leaving { by: Time },
}

impl DepartureStage {
    /// Returns the time at which the session must act.
    fn due_at(self) -> Option<Time> {
        match self {
            Self::LoadAt(at) | Self::Leaving { by: at } => Some(at),
            Self::Loading => None,
        }
    }
}

#[derive(Debug)]
struct ActiveSession {
    id: i64,
    password: Vec<u8>,
    /// The timeout that was negotiated at the start of the session. After an election, the new leader uses this timeout again.
    timeout: Duration,
    lease: Lease,
}

/// The last failure of a server.
struct ServerFailure {
    server: Server,
    cause: String,
    /// True if the client refused the certificate of the server, or the server refused the certificate of the client.
    is_certificate_refused: bool,
}

struct InFlight<T> {
    xid: i32,
    op: OpCode,
    /// The length of the frame in bytes.
    size: usize,
    /// True if the session sent the request alone because the request may be too large for the server.
    is_isolated: bool,
    sent: Time,
    /// The times that a reply proves. The value is `None` if the server may reply before a quorum has committed the request.
    proof: Option<Proof>,
    purpose: Purpose<T>,
}

/// An encoded request that the session has not sent yet.
struct DeferredRequest<T> {
    bytes: Vec<u8>,
    info: RequestInfo<T>,
}

/// The properties of an encoded request.
struct RequestInfo<T> {
    xid: i32,
    op: OpCode,
    path: Option<String>,
    size: usize,
    is_isolated: bool,
    is_transaction: bool,
    purpose: Purpose<T>,
}

enum Purpose<T> {
    Submitted(T),
    Watch(T, String, WatcherType),
    /// A request that the session makes for its own purposes, such as a heartbeat or the removal of a watch.
    Internal,
    /// A request that sets watches again. If the server refuses this request, the session closes the connection. Without the watches,
    /// waiters would miss events.
    RestoreWatches,
    /// Reads and watches the configuration of the ensemble.
    ReadConfig,
    Close,
}

impl<T> Session<T> {
    /// Creates a session without a connection. The session connects to a server at the first call of [`advance`](Self::advance).
    pub(crate) fn new(servers: Vec<Server>, config: SessionConfig, now: Time, mut entropy: Entropy) -> Self {
        Self {
            follower: config.follow_config.map(|ports| Follower::new(ports, servers.clone())),
            given_servers: servers.clone(),
            servers: Servers::new(servers, &mut entropy),
            is_config_watched: false,
            departure: None,
            is_loading_required: false,
            is_rebalancing: false,
            timeout: config.timeout,
            sent_packets: SentPackets::new(now, config.timeout),
            frames: Frames::new(config.frame_limit),
            entropy,
            connection: ConnectionState::Disconnected { retry_at: now },
            active: None,
            ever_connected: false,
            lease_demand: LeaseDemand::None,
            close_deadline: None,
            last_zxid: 0,
            watched_zxid: 0,
            last_xid: 0,
            established_at: now,
            last_sent: now,
            last_proof_sent: now,
            last_received: now,
            last_answered: now,
            ping_sent: None,
            in_flight: VecDeque::new(),
            large_requests: LargeRequests::new(config.limits.suspect_size),
            watch_batch: WatchBatch::new(config.limits.watch_batch, config.limits.least_watch_batch),
            data_watches: Watches::default(),
            child_watches: Watches::default(),
            recursive_watches: BTreeMap::new(),
            credentials: Vec::new(),
            loading: None,
            output: Zeroizing::default(),
            has_secret_output: false,
            commands: VecDeque::new(),
            events: VecDeque::new(),
            server: None,
            last_failure: "the client has not tried to connect yet".to_owned(),
            server_failures: Vec::new(),
            is_out_of_resources: false,
            local_address: String::new(),
            traffic: Traffic::default(),
            log_buffer: LogBuffer::default(),
            config,
        }
    }

    // Queries of the owner.

    /// Returns the state of the session.
    pub(crate) fn state(&self) -> ClientState {
        match (self.connection, &self.active) {
            _ if self.close_deadline.is_some() => ClientState::Closed,
            (ConnectionState::Closed, _) => ClientState::Closed,
            (ConnectionState::Established, _) => ClientState::Connected,
            (_, Some(_)) => ClientState::Suspended,
            (_, None) if self.ever_connected => ClientState::Lost,
            (_, None) => ClientState::Connecting,
        }
    }

    /// Returns whether the session accepts requests.
    pub(crate) fn is_connected(&self) -> bool {
        self.connection == ConnectionState::Established && self.close_deadline.is_none()
    }

    /// Returns the session id, or 0 if there is no session.
    pub(crate) fn id(&self) -> i64 {
        self.active.as_ref().map_or(0, |active| active.id)
    }

    /// Returns the lease, or `None` if there is no session.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.active.as_ref().map(|active| &active.lease)
    }

    /// Returns whether the session has certainly not expired.
    pub(crate) fn is_lease_valid(&self, now: Time) -> bool {
        self.lease().is_some_and(|lease| lease.is_valid(now))
    }

    /// Returns the session timeout in effect.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the length of a lease with the session timeout in effect, even if there is no session.
    pub(crate) fn lease_length(&self) -> Duration {
        Lease::new(Time::default(), self.timeout, self.config.lease_margin).length()
    }

    /// Returns the heartbeat interval while a lock is held: a sixth of the session timeout.
    pub(crate) fn heartbeat_interval(&self) -> Duration {
        self.timeout / 6
    }

    /// Returns how long the session has been waiting for an answer from the server, or zero if the session waits for no answer.
    pub(crate) fn unanswered_for(&self, now: Time) -> Duration {
        self.unanswered_since().map_or(Duration::ZERO, |since| now - since)
    }

    /// Returns the current server, or the failures of all servers, for error messages.
    pub(crate) fn connection_summary(&self) -> String {
        let Some(server) = &self.server else { return self.last_failure.clone() };
        let mut summary = self.server_status(server);
        if self.connection == ConnectionState::Established {
            return summary;
        }
        // An attempt in progress must not hide why the attempts before it failed.
        let is_retry = !matches!(self.connection, ConnectionState::Disconnected { .. } | ConnectionState::Closed);
        if let Some(last) = self.server_failures.iter().find(|failure| is_retry && failure.server == *server) {
            summary += &format!("; before that: {}", last.cause);
        }
        let others = || self.server_failures.iter().rev().filter(|failure| failure.server != *server);
        for ServerFailure { server: other, cause, .. } in others().take(MAX_SERVERS_LISTED - 1) {
            summary += &format!("; {other}: {cause}");
        }
        match others().count().saturating_sub(MAX_SERVERS_LISTED - 1) {
            0 => summary,
            more => format!("{summary}; and {more} more"),
        }
    }

    /// Returns whether the last connection attempt failed because this machine had no file descriptor or memory left.
    pub(crate) fn is_out_of_resources(&self) -> bool {
        self.is_out_of_resources
    }

    /// Returns whether the last connection to each of the servers has failed because of a certificate.
    pub(crate) fn are_all_certificates_refused(&self) -> bool {
        let is_refused = |server: &Server| {
            self.server_failures.iter().any(|failure| failure.is_certificate_refused && failure.server == *server)
        };
        self.servers.all().all(is_refused)
    }

    /// Returns a phrase about the state of the server for error messages.
    fn server_status(&self, server: &Server) -> String {
        match self.connection {
            ConnectionState::Established => format!("connected to {server}"),
            ConnectionState::Connecting { .. } => match &self.loading {
                Some(inputs) => format!("{server}: {}", not_loaded(inputs)),
                None => format!("{server} does not accept the connection"),
            },
            ConnectionState::Securing { .. } => format!("{server} does not complete the TLS handshake"),
            ConnectionState::Handshake { .. } => format!("{server} does not answer the handshake"),
            ConnectionState::Authenticating { .. } => format!("{server} does not answer the credentials"),
            ConnectionState::Disconnected { .. } | ConnectionState::Closed => {
                format!("last tried {server}: {}", self.last_failure)
            }
        }
    }

    /// Returns the IP address of this machine on the last connection. The text is empty before the first connection.
    pub(crate) fn local_address(&self) -> &str {
        &self.local_address
    }

    /// Returns the number of this session's watches on the server, as far as the client knows.
    pub(crate) fn watch_count(&self) -> usize {
        let config = usize::from(self.is_config_watched);
        self.data_watches.count() + self.child_watches.count() + self.recursive_watches.len() + config
    }

    /// Returns the thresholds of the session and its owner.
    pub(crate) const fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// Returns the counters of the session.
    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Returns the log buffer of the session and of its owner.
    pub(crate) fn log_buffer(&mut self) -> &mut LogBuffer {
        &mut self.log_buffer
    }

    /// Returns a new random number.
    pub(crate) fn entropy(&mut self) -> u128 {
        (self.entropy)()
    }

    // Calls of the owner.

    /// Records whether a hold, a waiter or nothing needs the lease from now on.
    pub(crate) fn set_lease_demand(&mut self, demand: LeaseDemand) {
        self.lease_demand = demand;
    }

    /// Sends a transaction whose reply extends the lease. A read request that is sent later returns data that is at least as new as this
    /// transaction.
    ///
    /// The leader checks the session, and a quorum commits the transaction.
    pub(crate) fn request_proof(&mut self, now: Time) {
        self.last_proof_sent = now;
        self.send(now, &proof_request(), Purpose::Internal);
    }

    /// Makes the server catch up with the leader. A read request that is sent later returns data that is at least as new as this call. The
    /// request is not a transaction and does not extend the lease.
    pub(crate) fn sync(&mut self, now: Time, path: &str) {
        self.send(now, &Request::Sync { path: path.to_owned() }, Purpose::Internal);
    }

    /// Returns how long the session must wait before a proof request can make the lease valid. If the result is zero, a proof request that
    /// is sent now should make the lease valid.
    pub(crate) fn proof_delay(&self, now: Time) -> Duration {
        let Some(lease) = self.lease() else { return Duration::ZERO };
        let would_run = |touch_sent: Time| {
            lease.end_with(Proof { request_sent: now, touch_sent }) > now + self.heartbeat_interval()
        };
        if would_run(self.sent_packets.last_touch_sent(now)) {
            Duration::ZERO
        } else {
            self.sent_packets.time_until_touch(now, would_run)
        }
    }

    /// Sends a request to the server. If there is no connection, the reply is [`Failure::ConnectionLost`].
    pub(crate) fn submit(&mut self, now: Time, request: &Request, tag: T) {
        self.send(now, request, Purpose::Submitted(tag));
    }

    /// Sets a persistent recursive watch on a directory. The session reports every change as [`Event::WatchFired`]. The watch ends when the
    /// connection ends or [`unwatch_recursive`](Self::unwatch_recursive) is called.
    ///
    /// Returns false, and sets no watch, if the session has no connection or already has another watch on the directory. Servers before 3.9
    /// keep only one watch for each path on a connection (ZOOKEEPER-4466). For the same reason, a later watch on the directory itself
    /// removes the recursive watch. The session reports the removal as [`EventKind::PersistentWatchRemoved`].
    pub(crate) fn watch_recursive(&mut self, now: Time, directory: &str, subscriber: Subscriber, tag: T) -> bool {
        let is_free = !self.data_watches.contains(directory) && !self.child_watches.contains(directory);
        if !is_free || !self.is_connected() || self.recursive_watches.contains_key(directory) {
            return false;
        }
        self.recursive_watches.insert(directory.to_owned(), subscriber);
        let request = Request::AddWatch { path: directory.to_owned(), mode: AddWatchMode::PersistentRecursive };
        self.send(now, &request, Purpose::Submitted(tag));
        true
    }

    /// Removes the watch that [`watch_recursive`](Self::watch_recursive) set.
    pub(crate) fn unwatch_recursive(&mut self, now: Time, directory: &str) {
        if self.recursive_watches.remove(directory).is_some() && self.connection == ConnectionState::Established {
            let request = Request::RemoveWatches { path: directory.to_owned(), kind: WatcherType::Any };
            self.send(now, &request, Purpose::Internal);
        }
    }

    fn displace_recursive_watch(&mut self, now: Time, path: &str) {
        if let Some(&subscriber) = self.recursive_watches.get(path) {
            self.unwatch_recursive(now, path);
            let (kind, path) = (EventKind::PersistentWatchRemoved, path.to_owned());
            self.events.push_back(Event::WatchFired { subscriber, kind, path });
        }
    }

    /// Reads a node and sets a watch on it. The reply has the form of a `getData` reply. If the request succeeds, the session later reports
    /// one [`Event::WatchFired`].
    pub(crate) fn watch_data(&mut self, now: Time, path: &str, subscriber: Subscriber, tag: T) {
        self.displace_recursive_watch(now, path);
        self.data_watches.subscribe(path, subscriber);
        let request = Request::GetData { path: path.to_owned(), watch: true };
        self.send(now, &request, Purpose::Watch(tag, path.to_owned(), WatcherType::Data));
    }

    /// Lists a directory and sets a watch on its children. The reply has the form of a `getChildren2` reply. If the request succeeds, the
    /// session later reports one [`Event::WatchFired`].
    pub(crate) fn watch_children(&mut self, now: Time, path: &str, subscriber: Subscriber, tag: T) {
        self.displace_recursive_watch(now, path);
        self.child_watches.subscribe(path, subscriber);
        let request = Request::GetChildren2 { path: path.to_owned(), watch: true };
        self.send(now, &request, Purpose::Watch(tag, path.to_owned(), WatcherType::Children));
    }

    /// Ends the subscription of `subscriber` to changes of the node.
    pub(crate) fn unwatch_data(&mut self, now: Time, path: &str, subscriber: Subscriber) {
        let action = self.data_watches.unsubscribe(path, subscriber);
        self.apply_watch_action(now, path, WatcherType::Data, action);
    }

    /// Ends the subscription of `subscriber` to the list of children.
    pub(crate) fn unwatch_children(&mut self, now: Time, path: &str, subscriber: Subscriber) {
        let action = self.child_watches.unsubscribe(path, subscriber);
        self.apply_watch_action(now, path, WatcherType::Children, action);
    }

    /// Ends the subscription of `subscriber` to a node that this session is about to delete.
    pub(crate) fn unwatch_before_delete(&mut self, path: &str, subscriber: Subscriber) {
        self.data_watches.unsubscribe_before_delete(path, subscriber);
    }

    /// Moves the subscription of `from` to the subscriber `to`.
    pub(crate) fn transfer_watch(&mut self, path: &str, from: Subscriber, to: Subscriber) {
        self.data_watches.transfer(path, from, to);
    }

    /// Replaces the servers that the program named. If the session follows the configuration of the ensemble, the session uses the new list
    /// until it has read the configuration again. If the list contains the same servers as before, the session only forgets which request
    /// sizes the servers refused.
    pub(crate) fn set_servers(&mut self, now: Time, servers: Vec<Server>) {
        let has_same = |one: &[Server], other: &[Server]| one.iter().all(|server| other.contains(server));
        if has_same(&servers, &self.given_servers) && has_same(&self.given_servers, &servers) {
            self.forget_refused_sizes();
            return;
        }
        self.given_servers.clone_from(&servers);
        self.follower = self.config.follow_config.map(|ports| Follower::new(ports, servers.clone()));
        self.ignore_pending_config();
        let present = self.server.clone();
        self.replace_servers(now, ServerList { servers, fallback: Vec::new() }, present, "program");
        // If the session moves to another server, it reads the configuration there.
        if self.is_connected() && self.departure.is_none() {
            self.read_config(now);
        }
    }

    /// Closes the session on the server. If the session has no connection, the session first reconnects. At `deadline`, the session stops
    /// trying. The session reports [`Event::Closed`] in any case.
    pub(crate) fn close(&mut self, now: Time, deadline: Time) {
        if self.close_deadline.is_some() {
            // If the session is already closed, each further call makes the session report the event again.
            self.events.extend((self.connection == ConnectionState::Closed).then_some(Event::Closed));
            return;
        }
        if self.connection == ConnectionState::Established {
            self.send(now, &Request::CloseSession, Purpose::Close);
        }
        self.close_deadline = Some(deadline);
        self.departure = None;
        self.fail_deferred(now);
        // If there is no session, the servers have nothing to close. A session that was never established has no nodes.
        if self.active.is_none() || !self.ever_connected {
            self.finish_close();
        }
    }

    // Inputs and outputs of the shell.

    /// Returns the next command for the shell.
    pub(crate) fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// Returns the next event for the owner.
    pub(crate) fn poll_event(&mut self) -> Option<Event<T>> {
        self.events.pop_front()
    }

    /// Returns the bytes to send. The shell removes bytes from the front after it has sent them. Removed bytes remain in the memory of the
    /// buffer. After all credentials were sent, this method therefore erases the memory.
    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        if self.output.is_empty() {
            self.erase_output();
        }
        &mut self.output
    }

    fn erase_output(&mut self) {
        if std::mem::take(&mut self.has_secret_output) {
            self.output.zeroize();
        }
        self.output.clear();
    }

    /// Sets the credentials for the next connection. After the handshake, the session sends these credentials before any other request,
    /// and then forgets them. The shell must therefore set the credentials before each connection.
    pub(crate) fn set_credentials(&mut self, credentials: Vec<Credentials>) {
        self.credentials = credentials;
    }

    /// Returns whether the session has credentials that it has not sent yet.
    pub(crate) fn has_credentials(&self) -> bool {
        !self.credentials.is_empty()
    }

    /// Reports that the shell must load the named inputs before it can connect to the server of the present attempt.
    pub(crate) fn start_loading(&mut self, inputs: &str) {
        self.loading = Some(inputs.to_owned());
    }

    /// Reports that the shell has loaded the inputs. If the shell now connects to the server, the time limit of the attempt begins again.
    /// If the session waits for the inputs before it leaves its server, it now leaves.
    pub(crate) fn finish_loading(&mut self, now: Time) {
        if self.loading.take().is_some() && matches!(self.connection, ConnectionState::Connecting { .. }) {
            self.connection = self.connecting(now);
        }
        if let Some(Departure { migration, stage: DepartureStage::Loading }) = self.departure {
            self.start_leaving(now, migration);
        }
    }

    /// Makes the session request the inputs of the next attempt before it leaves a server on purpose.
    pub(crate) fn require_loading(&mut self) {
        self.is_loading_required = true;
    }

    /// Reports that the shell could not load the inputs that the session has requested. The session stays at its server, and requests the
    /// inputs again after a third of the session timeout.
    pub(crate) fn postpone_departure(&mut self, now: Time) {
        if let Some(Departure { stage: stage @ DepartureStage::Loading, .. }) = &mut self.departure {
            *stage = DepartureStage::LoadAt(now + self.timeout / 3);
        }
    }

    /// Reports that the server has accepted the connection, and that the TLS handshake begins. After that, the shell calls `connected` or
    /// `disconnected`.
    pub(crate) fn start_securing(&mut self, now: Time) {
        if matches!(self.connection, ConnectionState::Connecting { .. }) {
            self.connection = ConnectionState::Securing { deadline: now + self.handshake_timeout() };
        }
    }

    /// Reports that a connection to the server is established. If the client uses TLS, the TLS handshake is complete. `local_address` is the
    /// IP address of this machine on the connection.
    pub(crate) fn connected(&mut self, now: Time, local_address: &str) {
        if !matches!(self.connection, ConnectionState::Connecting { .. } | ConnectionState::Securing { .. }) {
            return;
        }
        self.local_address = local_address.to_owned();
        self.frames.clear();
        self.erase_output();
        self.connection = ConnectionState::Handshake { sent: now, deadline: now + self.handshake_timeout() };
        let (session_id, password) =
            self.active.as_ref().map_or_else(|| (0, vec![0; 16]), |active| (active.id, active.password.clone()));
        ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: self.last_zxid,
            timeout_ms: i32::try_from(self.config.timeout.as_millis()).unwrap_or(i32::MAX),
            session_id,
            password,
            read_only: false,
        }
        .encode(&mut self.output);
        self.traffic.bytes_sent += to_u64(self.output.len());
        self.last_sent = now;
    }

    /// Reports that the connection or the connection attempt has failed.
    pub(crate) fn disconnected(&mut self, now: Time, cause: &str) {
        if matches!(self.connection, ConnectionState::Disconnected { .. } | ConnectionState::Closed) {
            return;
        }
        if matches!(self.connection, ConnectionState::Handshake { .. }) && self.is_session_unrecoverable(now) {
            self.end_session(true);
        }
        if self.connection == ConnectionState::Established && self.close_deadline.is_none() {
            self.detect_refused_size(now);
        }
        self.on_connection_lost(now, cause);
    }

    /// Reports that the connection has failed because the client refused the certificate of the server, or the server refused the
    /// certificate of the client.
    pub(crate) fn certificate_refused(&mut self, now: Time, cause: &str) {
        if matches!(self.connection, ConnectionState::Disconnected { .. } | ConnectionState::Closed) {
            return;
        }
        self.disconnected(now, cause);
        if let Some(failure) = self.server_failures.last_mut() {
            failure.is_certificate_refused = true;
        }
        if self.are_all_certificates_refused() {
            self.events.push_back(Event::CertificatesRefused);
        }
    }

    /// Reports that this machine has no file descriptor or memory for a connection.
    pub(crate) fn out_of_resources(&mut self, now: Time, cause: &str) {
        self.disconnected(now, cause);
        self.is_out_of_resources = true;
    }

    /// Handles received bytes. Returns `Break` if the session does not need further bytes from this connection.
    pub(crate) fn received(&mut self, now: Time, bytes: &[u8]) -> ControlFlow<()> {
        self.traffic.bytes_received += to_u64(bytes.len());
        if self.has_transport() {
            self.frames.push(bytes);
        }
        loop {
            if !self.has_transport() {
                self.frames = Frames::new(self.config.frame_limit);
                return ControlFlow::Break(());
            }
            match self.frames.next() {
                Ok(None) => return ControlFlow::Continue(()),
                Ok(Some(frame)) => {
                    self.last_received = now;
                    if let Err(error) = self.on_frame(now, &frame) {
                        self.close_connection(now, &format!("the server sent an invalid frame: {error}"));
                    }
                }
                Err(ProtoError::TooLong { len, .. }) if self.connection == ConnectionState::Established => {
                    match self.frames.skip() {
                        None => return ControlFlow::Continue(()),
                        Some(head) => self.skip_oversized_reply(now, head, len),
                    }
                }
                Err(ProtoError::TooLong { len, .. }) if self.is_in_handshake() && is_tls_record(len) => {
                    self.close_connection(now, "the server requires TLS; set tls.enabled to true");
                }
                Err(error) => self.close_connection(now, &format!("the server sent invalid bytes: {error}")),
            }
        }
    }

    /// Handles a reply that is longer than the frame limit. Only the request that caused this reply fails.
    fn skip_oversized_reply(&mut self, now: Time, head: [u8; ReplyHeader::LENGTH], len: usize) {
        match (ReplyHeader::decode(&head), self.in_flight.front()) {
            (Ok((header, _)), Some(front)) if header.xid == front.xid => {
                if let Some(InFlight { purpose, .. }) = self.take_in_flight(now) {
                    self.complete(now, purpose, 0, Err(Failure::Code(Code::MARSHALLING_ERROR)));
                    self.send_deferred(now);
                }
            }
            _ => self.close_connection(now, &format!("the server sent a frame of {len} bytes that answers no request")),
        }
    }

    /// Returns the time at which [`advance`](Self::advance) must be called. Other calls can change this time.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        let connection_at = match self.connection {
            ConnectionState::Disconnected { retry_at } => Some(retry_at),
            ConnectionState::Connecting { deadline: give_up }
            | ConnectionState::Securing { deadline: give_up }
            | ConnectionState::Handshake { deadline: give_up, .. }
            | ConnectionState::Authenticating { deadline: give_up, .. } => Some(give_up),
            ConnectionState::Established => {
                let leave_at = self.departure.and_then(|departure| departure.stage.due_at());
                [self.next_heartbeat_at(), self.server_timeout_at(), leave_at].into_iter().flatten().min()
            }
            ConnectionState::Closed => None,
        };
        match self.close_deadline {
            Some(deadline) if self.connection != ConnectionState::Closed => {
                Some(connection_at.map_or(deadline, |at| at.min(deadline)))
            }
            _ => connection_at,
        }
    }

    /// Performs all actions that are due.
    pub(crate) fn advance(&mut self, now: Time) {
        if self.connection != ConnectionState::Closed && self.close_deadline.is_some_and(|deadline| now >= deadline) {
            self.finish_close();
        }
        match self.connection {
            ConnectionState::Disconnected { retry_at } if now >= retry_at => self.connect_next_server(now),
            ConnectionState::Connecting { deadline: give_up } if now >= give_up => {
                let cause = self.loading.as_deref().map(not_loaded);
                self.close_connection(now, cause.as_deref().unwrap_or("no connection in time"));
            }
            ConnectionState::Securing { deadline: give_up } if now >= give_up => {
                self.close_connection(now, "no complete TLS handshake in time");
            }
            ConnectionState::Handshake { deadline: give_up, .. } if now >= give_up => {
                self.close_connection(now, "no answer to the handshake in time");
            }
            ConnectionState::Authenticating { deadline: give_up, .. } if now >= give_up => {
                self.close_connection(now, "no answer to the credentials in time");
            }
            ConnectionState::Established if self.server_timeout_at().is_some_and(|at| now >= at) => {
                self.close_connection(now, &format!("no answer for {} ms", self.unanswered_for(now).as_millis()));
            }
            ConnectionState::Established if self.next_heartbeat_at().is_some_and(|at| now >= at) => {
                self.send_heartbeat(now);
            }
            _ => {}
        }
        self.leave_server_if_due(now);
    }

    fn is_in_handshake(&self) -> bool {
        matches!(self.connection, ConnectionState::Handshake { .. })
    }

    fn has_transport(&self) -> bool {
        !matches!(
            self.connection,
            ConnectionState::Disconnected { .. }
                | ConnectionState::Connecting { .. }
                | ConnectionState::Securing { .. }
                | ConnectionState::Closed
        )
    }

    // Connecting.

    fn connect_next_server(&mut self, now: Time) {
        let Some(server) = self.servers.next() else { return };
        self.traffic.connection_attempts += 1;
        self.log_buffer.add(Level::Debug, || LogRecord::Connecting { server: server.to_string() });
        self.server = Some(server.clone());
        self.loading = None;
        self.connection = self.connecting(now);
        self.commands.push_back(Command::Connect(server));
    }

    fn connecting(&self, now: Time) -> ConnectionState {
        ConnectionState::Connecting { deadline: now + self.attempt_timeout(Duration::from_millis(100)) }
    }

    fn on_connect_response(&mut self, now: Time, sent: Time, frame: &[u8]) -> Result<(), ProtoError> {
        let response = ConnectResponse::decode(frame)?;
        if response.timeout_ms <= 0 || response.session_id == 0 {
            let expired = self.active.is_some();
            self.end_session(false);
            self.close_connection(now, "the session had expired");
            if expired && self.connection != ConnectionState::Closed {
                // This server has reported the expiry, so the session asks this server for a new session. Another server may be separated
                // from the ensemble and may still offer the expired session.
                self.servers.retry_last();
                self.connection = ConnectionState::Disconnected { retry_at: now };
            }
            return Ok(());
        }
        if response.read_only {
            // A read-only server is not part of a quorum. A server that is not part of a quorum cannot create lock nodes or extend the
            // lease.
            self.close_connection(now, "the server is read-only");
            return Ok(());
        }
        let resumed = self.active.as_ref().is_some_and(|active| active.id == response.session_id);
        if !resumed {
            self.end_session(true);
            if self.connection == ConnectionState::Closed {
                return Ok(());
            }
        }
        let agreed = Duration::from_millis(u64::try_from(response.timeout_ms).unwrap_or_default());
        // To create a session, a server needs a transaction that a quorum commits. A reply that resumes a session proves nothing, because a
        // single server can send it without a quorum.
        let active = match self.active.take() {
            Some(before) => {
                self.timeout = agreed.min(before.timeout);
                let mut lease = before.lease;
                lease.set_timeout(self.timeout);
                if Mutant::ResumeProves.is_active() {
                    lease.extend(Proof { request_sent: sent, touch_sent: sent });
                }
                ActiveSession { password: response.password, lease, ..before }
            }
            None => {
                self.traffic.sessions += 1;
                self.timeout = agreed;
                let lease = Lease::new(sent, agreed, self.config.lease_margin);
                ActiveSession { id: response.session_id, password: response.password, timeout: agreed, lease }
            }
        };
        self.active = Some(active);
        self.sent_packets = SentPackets::new(sent, self.timeout);
        self.send_auth(now, resumed);
        Ok(())
    }

    fn send_auth(&mut self, now: Time, resumed: bool) {
        let before = self.output.len();
        let replies = encode_credentials(std::mem::take(&mut self.credentials), &mut self.output);
        self.has_secret_output |= replies > 0;
        self.traffic.requests += to_u64(replies);
        self.traffic.bytes_sent += to_u64(self.output.len() - before);
        self.last_sent = now;
        self.connection = ConnectionState::Authenticating { replies, resumed, deadline: now + self.server_timeout() };
        if replies == 0 {
            self.on_established(now, resumed);
        }
    }

    /// Handles an established connection: the server has accepted the session and the credentials.
    fn on_established(&mut self, now: Time, resumed: bool) {
        self.connection = ConnectionState::Established;
        self.is_rebalancing = false;
        self.server_failures.clear();
        self.is_out_of_resources = false;
        self.established_at = now;
        self.traffic.connections += 1;
        self.traffic.reconnects += u64::from(self.ever_connected);
        self.ever_connected = true;
        if self.close_deadline.is_some() {
            self.send(now, &Request::CloseSession, Purpose::Close);
            return;
        }
        self.restore_watches(now);
        if resumed && self.lease_demand != LeaseDemand::None {
            self.request_proof(now);
        }
        let server = || self.server.as_ref().map(ToString::to_string).unwrap_or_default();
        let (session, timeout) = (self.id(), self.timeout);
        self.log_buffer.add(Level::Info, || match resumed {
            true => LogRecord::Reconnected { server: server(), session },
            false => LogRecord::SessionBegun { server: server(), session, timeout },
        });
        self.events.push_back(Event::Connected { resumed });
        // If the session moves to another server, it reads the configuration there.
        if self.departure.is_none() {
            self.read_config(now);
        }
        self.leave_server_if_due(now);
    }

    // Server lists that change.

    /// Replaces the server list. `present` is the present or last server. It is `None` if the session must not leave this server.
    fn replace_servers(&mut self, now: Time, list: ServerList, present: Option<Server>, source: &'static str) {
        if self.connection == ConnectionState::Closed || self.close_deadline.is_some() {
            return;
        }
        self.forget_refused_sizes();
        let before = self.servers.len();
        let present = present.filter(|_| self.has_transport());
        let migration = self.servers.replace(list, present.as_ref(), &mut self.entropy);
        self.server_failures.retain(|failure| self.servers.all().any(|server| *server == failure.server));
        let after = self.servers.len();
        self.log_buffer.add(Level::Info, || LogRecord::ServersChanged { before, after, source });
        match self.connection {
            ConnectionState::Disconnected { .. } => self.connection = ConnectionState::Disconnected { retry_at: now },
            _ if !self.has_transport() => {
                self.commands.push_back(Command::Disconnect);
                self.connection = ConnectionState::Disconnected { retry_at: now };
            }
            _ if migration == Migration::Stay => self.departure = None,
            _ => self.plan_departure(now, migration),
        }
    }

    fn plan_departure(&mut self, now: Time, migration: Migration) {
        let stage = match self.departure {
            None if self.is_loading_required => DepartureStage::LoadAt(now),
            None | Some(Departure { stage: DepartureStage::Leaving { .. }, .. }) => {
                return self.start_leaving(now, migration);
            }
            Some(departure) => departure.stage,
        };
        self.departure = Some(Departure { migration, stage });
        self.leave_server_if_due(now);
    }

    /// Leaves the server as soon as all requests are answered.
    fn start_leaving(&mut self, now: Time, migration: Migration) {
        let stage = DepartureStage::Leaving { by: now + self.heartbeat_interval() };
        self.departure = Some(Departure { migration, stage });
        // The answer makes the lease of the session as long as possible before the session loses its connection.
        if self.is_connected() && self.lease_demand != LeaseDemand::None {
            self.request_proof(now);
        }
        self.leave_server_if_due(now);
    }

    /// Continues the planned departure. The session leaves the server if no request is without an answer, or if the time for answers is
    /// over.
    fn leave_server_if_due(&mut self, now: Time) {
        let Some(Departure { migration, stage }) = self.departure.filter(|_| self.is_connected()) else { return };
        let is_idle = self.in_flight.is_empty() && !self.large_requests.has_deferred();
        match stage {
            DepartureStage::LoadAt(at) if now >= at => {
                self.departure = Some(Departure { migration, stage: DepartureStage::Loading });
                self.commands.push_back(Command::Load);
            }
            DepartureStage::Leaving { by } if now >= by || is_idle => self.leave_server(now, migration),
            DepartureStage::LoadAt(_) | DepartureStage::Loading | DepartureStage::Leaving { .. } => {}
        }
    }

    fn leave_server(&mut self, now: Time, migration: Migration) {
        let server = self.server.as_ref().map(ToString::to_string).unwrap_or_default();
        let session = self.id();
        self.log_buffer.add(Level::Info, || LogRecord::ServerLeft { server, session });
        self.last_failure = "the client has left this server, because its server list has changed".to_owned();
        self.commands.push_back(Command::Disconnect);
        self.drop_connection(now, now);
        self.is_rebalancing = migration == Migration::Rebalance;
    }

    /// Reads and watches the configuration of the ensemble, if the session follows it.
    fn read_config(&mut self, now: Time) {
        if self.follower.is_some() && self.is_connected() {
            let request = Request::GetData { path: CONFIG_PATH.to_owned(), watch: true };
            self.send(now, &request, Purpose::ReadConfig);
        }
    }

    /// Ignores the answers to requests that read the configuration, and the event of its watch.
    fn ignore_pending_config(&mut self) {
        self.is_config_watched = false;
        let in_flight = self.in_flight.iter_mut().map(|request| &mut request.purpose);
        let deferred = self.large_requests.deferred_mut().map(|request| &mut request.info.purpose);
        for purpose in in_flight.chain(deferred).filter(|purpose| matches!(purpose, Purpose::ReadConfig)) {
            *purpose = Purpose::Internal;
        }
    }

    fn on_config_read(&mut self, now: Time, result: Result<Response, Failure>) {
        let Some(follower) = &mut self.follower else { return };
        let present = self.server.clone();
        let was_listed = present.as_ref().is_some_and(|present| follower.lists(present));
        let list = match result {
            Ok(Response::Data { data, .. }) => {
                self.is_config_watched = true;
                follower.on_data(&data.unwrap_or_default())
            }
            Err(Failure::Code(code)) => Err(format!("the server answered {code}")),
            Ok(_) | Err(_) => return,
        };
        match list {
            Ok(Some(list)) => {
                // If no configuration has listed the present server, the program may have named a server of the list in another way. The
                // session then keeps its connection, unless it already plans to leave.
                let is_leaving = self.departure.is_some();
                let present = present.filter(|present| was_listed || is_leaving || list.servers.contains(present));
                self.replace_servers(now, list, present, "ensemble");
            }
            Err(cause) if follower.record_refusal(&cause) => {
                self.log_buffer.add(Level::Warn, || LogRecord::ConfigUnusable { cause });
            }
            Ok(None) | Err(_) => {}
        }
    }

    /// Sets all watches of the session again. If a node changed after `watched_zxid`, its watch fires at once.
    fn restore_watches(&mut self, now: Time) {
        if Mutant::ForgetWatches.is_active() {
            return;
        }
        let data = self.data_watches.paths_to_restore().into_iter().map(|path| (WatcherType::Data, path));
        let child = self.child_watches.paths_to_restore().into_iter().map(|path| (WatcherType::Children, path));
        let child = child.filter(|_| !Mutant::ForgetChildWatches.is_active());
        let mut paths = data.chain(child).collect::<Vec<_>>().into_iter().peekable();
        let batch = self.watch_batch.bytes();
        let relative_zxid = if Mutant::AdvanceWhileRestoring.is_active() { self.last_zxid } else { self.watched_zxid };
        while paths.peek().is_some() {
            let (mut data, mut child) = (Vec::new(), Vec::new());
            let mut bytes = 0;
            while let Some((kind, path)) = paths.next_if(|(_, path)| bytes == 0 || bytes + path.len() < batch) {
                bytes += path.len() + 4;
                if kind == WatcherType::Data { &mut data } else { &mut child }.push(path);
            }
            let request = Request::SetWatches { relative_zxid, data, exist: Vec::new(), child };
            self.send(now, &request, Purpose::RestoreWatches);
        }
    }

    // Requests and replies.

    fn send(&mut self, now: Time, request: &Request, purpose: Purpose<T>) {
        if self.connection != ConnectionState::Established
            || (self.close_deadline.is_some() && !matches!(purpose, Purpose::Close))
        {
            return self.complete(now, purpose, 0, Err(Failure::ConnectionLost));
        }
        let before = self.output.len();
        let info = match self.encode(request, purpose) {
            Ok(packet) => packet,
            // The request does not fit into a frame, so no server would accept the request.
            Err(purpose) => return self.complete(now, purpose, 0, Err(Failure::Code(Code::MARSHALLING_ERROR))),
        };
        if matches!(info.purpose, Purpose::RestoreWatches | Purpose::Close) {
            return self.note_request(now, info);
        }
        match self.large_requests.submit(info.size, self.pending()) {
            Submission::Send => self.note_request(now, info),
            Submission::Defer => {
                let bytes = self.output.split_off(before);
                self.large_requests.defer(info.size, DeferredRequest { bytes, info });
                self.send_deferred(now);
            }
            Submission::Refuse(too_large) => {
                self.output.truncate(before);
                self.complete(now, info.purpose, 0, Err(Failure::TooLarge(too_large)));
            }
        }
    }

    /// Appends a request to the output.
    fn encode(&mut self, request: &Request, purpose: Purpose<T>) -> Result<RequestInfo<T>, Purpose<T>> {
        let xid = self.last_xid.checked_add(1).unwrap_or(1);
        self.last_xid = xid;
        let before = self.output.len();
        if request.encode(xid, &mut self.output).is_err() {
            return Err(purpose);
        }
        let (op, size) = (request.op(), self.output.len() - before);
        let path = if self.log_buffer.is_enabled(Level::Trace) { request.path().map(str::to_owned) } else { None };
        Ok(RequestInfo { xid, op, path, size, is_isolated: false, is_transaction: is_transaction(request), purpose })
    }

    /// Records a request whose bytes are in the output.
    fn note_request(&mut self, now: Time, packet: RequestInfo<T>) {
        let RequestInfo { xid, op, path, size, is_isolated, is_transaction, purpose } = packet;
        let proof =
            is_transaction.then(|| Proof { request_sent: now, touch_sent: self.sent_packets.last_touch_sent(now) });
        self.note_sent(now);
        self.traffic.requests += 1;
        self.traffic.bytes_sent += to_u64(size);
        self.log_buffer.add(Level::Trace, || LogRecord::RequestSent { op, xid, path });
        self.in_flight.push_back(InFlight { xid, op, size, is_isolated, sent: now, proof, purpose });
    }

    /// Sends the deferred requests that may be sent now.
    fn send_deferred(&mut self, now: Time) {
        loop {
            match self.large_requests.next(self.pending()) {
                Next::Wait => return,
                Next::Probe => {
                    if let Ok(probe) = self.encode(&proof_request(), Purpose::Internal) {
                        self.note_request(now, probe);
                    }
                }
                Next::Request { request: DeferredRequest { mut bytes, mut info }, is_isolated } => {
                    info.is_isolated = is_isolated;
                    self.output.append(&mut bytes);
                    self.note_request(now, info);
                }
            }
        }
    }

    fn pending(&self) -> Pending {
        match self.in_flight.front() {
            None => Pending::None,
            Some(InFlight { is_isolated: true, .. }) => Pending::Isolated,
            Some(_) => Pending::Others,
        }
    }

    /// Forgets which request sizes the servers refused, because other servers, or servers with another configuration, may accept them.
    fn forget_refused_sizes(&mut self) {
        self.large_requests.forget_sizes();
        self.watch_batch = WatchBatch::new(self.config.limits.watch_batch, self.config.limits.least_watch_batch);
    }

    /// Handles a connection that a server has closed, possibly because a request on the connection was too large.
    fn detect_refused_size(&mut self, now: Time) {
        if let Some(&InFlight { is_isolated: true, size, sent, .. }) = self.in_flight.front() {
            // A server checks the size of a request first. If the server closes the connection much later, the size is not the reason.
            if now - sent > self.heartbeat_interval() || Mutant::RetryTooLarge.is_active() {
                return;
            }
            if let Some(too_large) = self.large_requests.record_isolated_loss(size)
                && let Some(InFlight { purpose, .. }) = self.in_flight.pop_front()
            {
                self.complete(now, purpose, 0, Err(Failure::TooLarge(too_large)));
                if Mutant::RefuseBesideTooLarge.is_active() {
                    for DeferredRequest { info, .. } in self.large_requests.take_deferred() {
                        self.complete(now, info.purpose, 0, Err(Failure::TooLarge(too_large)));
                    }
                }
            }
            return;
        }
        let is_restore = |request: &InFlight<T>| matches!(request.purpose, Purpose::RestoreWatches);
        if self.in_flight.iter().any(is_restore) {
            self.watch_batch.record_loss();
        }
        let others = self.in_flight.iter().filter(|request| !is_restore(request));
        self.large_requests.record_loss(others.map(|request| request.size));
    }

    fn send_heartbeat(&mut self, now: Time) {
        if self.next_proof_at().is_some_and(|at| now >= at) {
            return self.request_proof(now);
        }
        self.note_sent(now);
        let before = self.output.len();
        if Request::Ping.encode(XID_PING, &mut self.output).is_ok() {
            self.traffic.pings += 1;
            self.log_buffer.add(Level::Trace, || LogRecord::RequestSent {
                op: OpCode::Ping,
                xid: XID_PING,
                path: None,
            });
            self.traffic.bytes_sent += to_u64(self.output.len() - before);
            self.ping_sent = Some(now);
        }
    }

    fn on_frame(&mut self, now: Time, frame: &[u8]) -> Result<(), ProtoError> {
        if let ConnectionState::Handshake { sent, .. } = self.connection {
            return self.on_connect_response(now, sent, frame);
        }
        let (header, body) = ReplyHeader::decode(frame)?;
        match header.xid {
            XID_NOTIFICATION => self.on_watch_event(now, &WatchEvent::decode(body)?),
            XID_PING => {
                if let Some(sent) = self.ping_sent.take() {
                    self.sent_packets.record_answer(sent, now);
                }
                if self.in_flight.is_empty() {
                    self.last_answered = now;
                }
            }
            XID_AUTH => self.on_auth_reply(now, header.err),
            _ => return self.on_reply(now, &header, body),
        }
        Ok(())
    }

    fn on_watch_event(&mut self, now: Time, event: &WatchEvent) {
        self.traffic.watch_events += 1;
        self.log_buffer.add(Level::Trace, || LogRecord::WatchFired { kind: event.kind, path: event.path.clone() });
        if event.path == CONFIG_PATH && std::mem::take(&mut self.is_config_watched) {
            self.read_config(now);
        }
        self.notify_recursive_watches(event);
        // When a node is deleted, the watches on its data and on its children fire.
        let (of_node, of_children) = match event.kind {
            EventKind::Created | EventKind::DataChanged => (true, false),
            EventKind::ChildrenChanged => (false, true),
            EventKind::Deleted => (true, true),
            _ => return,
        };
        let mut subscribers = if of_node { self.data_watches.on_fired(&event.path) } else { Vec::new() };
        subscribers.extend(if of_children { self.child_watches.on_fired(&event.path) } else { Vec::new() });
        for subscriber in subscribers {
            self.events.push_back(Event::WatchFired { subscriber, kind: event.kind, path: event.path.clone() });
        }
    }

    /// Notifies the subscribers of recursive watches. These subscribers receive the event before the subscribers of other watches on the
    /// node.
    fn notify_recursive_watches(&mut self, event: &WatchEvent) {
        let parents = std::iter::successors(Some(event.path.as_str()), |path| Some(path.rsplit_once('/')?.0));
        for directory in parents.take_while(|_| !self.recursive_watches.is_empty()) {
            if let Some(&subscriber) = self.recursive_watches.get(directory) {
                let (kind, path) = (event.kind, event.path.clone());
                self.events.push_back(Event::WatchFired { subscriber, kind, path });
            }
        }
    }

    fn on_auth_reply(&mut self, now: Time, err: Code) {
        self.traffic.answers += 1;
        if err != Code::OK {
            let server = || self.server.as_ref().map(ToString::to_string).unwrap_or_default();
            self.log_buffer.add(Level::Error, || LogRecord::AuthRefused { server: server() });
            self.events.push_back(Event::AuthFailed);
            self.close_connection(now, "the server refused the credentials");
            return;
        }
        if let ConnectionState::Authenticating { replies, resumed, .. } = self.connection {
            // Each answer to credentials must arrive within a third of the session timeout, even if the server sends other data.
            let give_up = now + self.server_timeout();
            self.connection =
                ConnectionState::Authenticating { replies: replies.saturating_sub(1), resumed, deadline: give_up };
            if replies <= 1 {
                self.on_established(now, resumed);
            }
        }
    }

    fn on_reply(&mut self, now: Time, header: &ReplyHeader, body: &[u8]) -> Result<(), ProtoError> {
        match self.in_flight.front() {
            Some(front) if front.xid == header.xid => {}
            front => {
                let expected = front.map_or_else(|| "none".to_owned(), |front| front.xid.to_string());
                self.close_connection(now, &format!("the server answered request {}; expected {expected}", header.xid));
                return Ok(());
            }
        }
        if is_outcome_unknown(header.err) {
            self.close_connection(now, &format!("the server answered {}", header.err));
            return Ok(());
        }
        // The session decodes the reply before it removes the request from the queue. If the reply is unreadable, the session closes the
        // connection, and then fails all requests in the queue, including this request.
        let result = match (header.err, self.in_flight.front()) {
            (Code::OK, Some(front)) => Ok(Response::decode(front.op, body)?),
            (code, _) => Err(Failure::Code(code)),
        };
        let Some(InFlight { xid, op, sent, proof, purpose, .. }) = self.take_in_flight(now) else { return Ok(()) };
        let (zxid, took, failure) = (header.zxid, now - sent, (header.err != Code::OK).then_some(header.err));
        self.log_buffer.add(Level::Trace, || LogRecord::ReplyReceived { op, xid, zxid, took, failure });
        self.advance_zxid(header.zxid, &purpose, result.is_ok());
        let proof = match proof {
            Some(_) if Mutant::LeaseFromReply.is_active() => Some(Proof { request_sent: now, touch_sent: now }),
            Some(proof) if Mutant::SentCountsAsTouch.is_active() => {
                Some(Proof { touch_sent: proof.request_sent, ..proof })
            }
            proof => proof,
        };
        if let (Some(proof), true, Some(active)) = (proof, proves_commit(&result), &mut self.active) {
            active.lease.extend(proof);
            self.last_proof_sent = self.last_proof_sent.max(sent);
        }
        self.complete(now, purpose, header.zxid, result);
        self.send_deferred(now);
        self.leave_server_if_due(now);
        Ok(())
    }

    /// Records the zxid of a reply. For the watches that a server knows, the server sends all events up to the zxid of a reply before it
    /// sends this reply. The server knows all watches of the session after it has answered every request that restores watches.
    fn advance_zxid(&mut self, zxid: i64, answered: &Purpose<T>, is_ok: bool) {
        self.last_zxid = self.last_zxid.max(zxid);
        let is_restore = |purpose: &Purpose<T>| matches!(purpose, Purpose::RestoreWatches);
        let is_restoring = self.in_flight.iter().take(1).any(|next| is_restore(&next.purpose));
        // If the server refused a request that restores watches, the session closes the connection.
        if !is_restoring && (is_ok || !is_restore(answered)) {
            self.watched_zxid = self.last_zxid;
        }
    }

    fn take_in_flight(&mut self, now: Time) -> Option<InFlight<T>> {
        let answered = self.in_flight.pop_front()?;
        self.last_answered = now;
        self.sent_packets.record_answer(answered.sent, now);
        self.large_requests.record_answer(answered.size);
        self.traffic.answers += 1;
        self.traffic.round_trips.observe(now - answered.sent);
        Some(answered)
    }

    fn complete(&mut self, now: Time, purpose: Purpose<T>, zxid: i64, result: Result<Response, Failure>) {
        match purpose {
            Purpose::Submitted(tag) => self.events.push_back(Event::Reply { tag, zxid, result }),
            Purpose::Watch(tag, path, kind) => {
                let watches = if kind == WatcherType::Data { &mut self.data_watches } else { &mut self.child_watches };
                let action = watches.on_reply(&path, result.is_ok());
                self.apply_watch_action(now, &path, kind, action);
                self.events.push_back(Event::Reply { tag, zxid, result });
            }
            Purpose::RestoreWatches if matches!(result, Err(Failure::Code(_))) => {
                self.close_connection(now, "the server refused to set the watches again");
            }
            Purpose::ReadConfig => self.on_config_read(now, result),
            Purpose::RestoreWatches if result.is_ok() => {
                let is_restore = |request: &InFlight<T>| matches!(request.purpose, Purpose::RestoreWatches);
                if !self.in_flight.iter().any(is_restore) {
                    self.watch_batch.record_answer();
                }
            }
            Purpose::Internal | Purpose::RestoreWatches => {}
            // The server may not have received the request to close the session. If time is left, the session repeats the request on the
            // next connection.
            Purpose::Close if result == Err(Failure::ConnectionLost) && !Mutant::CloseOnce.is_active() => {}
            Purpose::Close => self.finish_close(),
        }
    }

    fn apply_watch_action(&mut self, now: Time, path: &str, kind: WatcherType, action: WatchAction) {
        if action == WatchAction::Remove && self.connection == ConnectionState::Established {
            let request = Request::RemoveWatches { path: path.to_owned(), kind };
            self.send(now, &request, Purpose::Internal);
        }
    }

    // Losing.

    /// Fails all deferred requests.
    fn fail_deferred(&mut self, now: Time) {
        for DeferredRequest { info, .. } in self.large_requests.take_deferred() {
            self.complete(now, info.purpose, 0, Err(Failure::ConnectionLost));
        }
    }

    /// Closes the connection from this side.
    fn close_connection(&mut self, now: Time, cause: &str) {
        self.commands.push_back(Command::Disconnect);
        self.on_connection_lost(now, cause);
    }

    fn on_connection_lost(&mut self, now: Time, cause: &str) {
        if self.connection == ConnectionState::Closed {
            return;
        }
        let was_established = self.connection == ConnectionState::Established;
        let server = || self.server.as_ref().map(ToString::to_string).unwrap_or_default();
        let (session, cause_of) = (self.id(), || cause.to_owned());
        match was_established {
            _ if self.close_deadline.is_some() => {}
            true => {
                self.log_buffer.add(Level::Warn, || LogRecord::ConnectionLost {
                    server: server(),
                    session,
                    cause: cause_of(),
                });
            }
            false => {
                self.log_buffer.add(Level::Info, || LogRecord::AttemptFailed { server: server(), cause: cause_of() });
            }
        }
        self.last_failure = cause.to_owned();
        self.is_out_of_resources = false;
        if let Some(server) = &self.server {
            self.server_failures.retain(|failure| failure.server != *server);
            let (server, cause) = (server.clone(), self.last_failure.clone());
            self.server_failures.push(ServerFailure { server, cause, is_certificate_refused: false });
        }
        // If the lost connection had lasted long enough, the session reconnects at once. After repeated failures, the session pauses before
        // it reconnects.
        let wait = if was_established && now - self.established_at >= self.config.limits.sound_connection {
            self.servers.record_success();
            Duration::ZERO
        } else {
            self.servers.record_failure(&mut self.entropy)
        };
        self.drop_connection(now, now + wait);
    }

    /// Ends the connection or the connection attempt. The requests without an answer fail. The session connects again at `retry_at`.
    fn drop_connection(&mut self, now: Time, retry_at: Time) {
        let was_established = self.connection == ConnectionState::Established;
        self.erase_output();
        self.recursive_watches.clear();
        self.ping_sent = None;
        self.is_config_watched = false;
        self.departure = None;
        self.is_rebalancing = false;
        self.connection = ConnectionState::Disconnected { retry_at };
        for InFlight { purpose, .. } in std::mem::take(&mut self.in_flight) {
            self.complete(now, purpose, 0, Err(Failure::ConnectionLost));
        }
        self.fail_deferred(now);
        if self.connection != ConnectionState::Closed && was_established && self.close_deadline.is_none() {
            self.traffic.connections_lost += 1;
            self.events.push_back(Event::Disconnected);
        }
    }

    /// Ends the session. `replaced` is true if no server reported an expiry.
    fn end_session(&mut self, replaced: bool) {
        let Some(active) = self.active.take() else { return };
        self.data_watches.clear();
        self.child_watches.clear();
        // A new session has not seen any zxid, so it can use servers that were set up again with an empty state.
        (self.last_zxid, self.watched_zxid) = (0, 0);
        self.follower.iter_mut().for_each(Follower::on_session_ended);
        self.timeout = self.config.timeout;
        if self.close_deadline.is_some() {
            self.log_buffer.add(Level::Info, || LogRecord::SessionClosed { session: active.id });
            return self.finish_close();
        }
        self.traffic.sessions_lost += 1;
        self.log_buffer.add(Level::Warn, || LogRecord::SessionLost { session: active.id, replaced });
        self.events.push_back(Event::SessionEnded { nodes_until: replaced.then_some(active.lease.end()) });
    }

    fn finish_close(&mut self) {
        if self.connection == ConnectionState::Closed {
            return;
        }
        self.connection = ConnectionState::Closed;
        if let Some(active) = self.active.take() {
            self.log_buffer.add(Level::Info, || LogRecord::SessionClosed { session: active.id });
        }
        self.close_deadline.get_or_insert_default();
        self.commands.push_back(Command::Disconnect);
        self.events.push_back(Event::Closed);
    }

    /// Returns whether all servers have certainly lost the session. A server that has not reached the session's zxid closes the connection
    /// during the handshake. There are two possible reasons: the server lags behind, or all servers were set up again with an empty state.
    /// The function assumes the second reason if two session timeouts have passed since the latest possible expiry.
    fn is_session_unrecoverable(&self, now: Time) -> bool {
        // Without holds and waiters, the session does not extend the lease. However, the session was still alive when the last frame
        // arrived.
        let alive = self.last_received + self.timeout;
        self.lease().is_some_and(|lease| now >= lease.end().max(alive) + self.timeout * 2)
    }

    // Times.

    /// Returns the time limit for connecting to one server, or for the handshake with this server. With this limit, the session can try all
    /// servers before a lease ends. The limit is never shorter than `least`.
    fn attempt_timeout(&self, least: Duration) -> Duration {
        let servers = u32::try_from(self.servers.len().min(3)).unwrap_or(3);
        (self.timeout / 3 / servers).max(least)
    }

    /// Returns the time limit for the TLS handshake, and for the handshake of ZooKeeper.
    fn handshake_timeout(&self) -> Duration {
        // A session that spreads the load has left a usable server, to which it can soon return.
        self.attempt_timeout(if self.is_rebalancing { Duration::from_millis(100) } else { Duration::from_secs(1) })
    }

    fn unanswered_since(&self) -> Option<Time> {
        let asked = match (self.in_flight.front(), self.ping_sent) {
            (Some(front), Some(ping)) => Some(front.sent.min(ping)),
            (Some(front), None) => Some(front.sent),
            (None, ping) => ping,
        };
        asked.map(|asked| asked.max(self.last_answered))
    }

    /// Returns how long the session waits for an answer before it treats the server as dead.
    fn server_timeout(&self) -> Duration {
        self.timeout / 3
    }

    fn server_timeout_at(&self) -> Option<Time> {
        self.unanswered_since().map(|since| since + self.server_timeout())
    }

    fn next_heartbeat_at(&self) -> Option<Time> {
        if self.close_deadline.is_some() {
            return None;
        }
        // After a ping, the next proof can extend the lease further, because the lease depends on the last packet for which the leader
        // touched the session. Only one ping is in flight at a time, so each answer belongs to a known ping.
        let ping_at = self.ping_sent.is_none().then(|| self.last_sent + self.heartbeat_interval());
        [self.next_proof_at(), ping_at].into_iter().flatten().min()
    }

    /// Returns when the next transaction for the lease is due.
    fn next_proof_at(&self) -> Option<Time> {
        match self.lease_demand {
            LeaseDemand::None => None,
            LeaseDemand::Waiting => Some(self.last_proof_sent + self.timeout / 3),
            LeaseDemand::Holding => Some(self.last_proof_sent + self.heartbeat_interval()),
        }
    }

    fn note_sent(&mut self, now: Time) {
        self.last_sent = now;
        self.sent_packets.note(now);
    }
}

fn not_loaded(inputs: &str) -> String {
    format!("the client has not loaded {inputs} in time")
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Returns whether the length of a frame is in truth the beginning of a TLS record: an alert or a handshake message, and the major
/// version 3.
fn is_tls_record(length: usize) -> bool {
    matches!(length >> 16, 0x1503 | 0x1603)
}

/// A transaction that only checks that the node `/zookeeper` exists. This node always exists. The transaction changes nothing and fires no
/// watch.
fn proof_request() -> Request {
    Request::Multi(vec![Request::Check { path: "/zookeeper".to_owned(), version: -1 }])
}

/// Returns whether a request is a transaction. A server replies to a transaction only after a quorum has committed the transaction.
fn is_transaction(request: &Request) -> bool {
    use OpCode::{Create, Create2, CreateContainer, Delete, Multi, SetData};
    matches!(request.op(), Create | Create2 | CreateContainer | Delete | Multi | SetData)
}

/// Returns whether the reply proves that a quorum has committed the transaction while the session was alive. If the reply is the error that
/// a node is missing, this error comes from the leader. Other errors may come from a single server. In the reply to a multi request,
/// however, all errors come from the leader.
fn proves_commit(result: &Result<Response, Failure>) -> bool {
    match result {
        Ok(Response::Multi(results)) => results
            .iter()
            .all(|result| matches!(result, MultiResult::Ok(_) | MultiResult::Err(Code::NO_AUTH | Code::NO_NODE))),
        Ok(_) => true,
        Err(failure) => *failure == Failure::Code(Code::NO_NODE),
    }
}

/// Returns whether the code leaves both the result of the request and the state of the session unknown. In this case, the session closes
/// the connection, and the next handshake shows whether the session still exists.
fn is_outcome_unknown(code: Code) -> bool {
    use Code as C;
    matches!(
        code,
        C::SESSION_EXPIRED | C::SESSION_MOVED | C::CONNECTION_LOSS | C::OPERATION_TIMEOUT | C::REQUEST_TIMEOUT
    )
}
