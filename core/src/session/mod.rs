//! The logic of one ZooKeeper session, without I/O. The inputs of the session are received bytes and the time. The
//! outputs of the session are bytes to send, commands to open and close connections, and events.
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
mod connecting;
mod credentials;
mod ending;
mod ensemble_config;
mod inputs;
mod large_requests;
mod lease;
mod requests;
mod sasl;
mod servers;
#[cfg(test)]
mod tests;
mod traffic;
mod watches;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

pub use connect_string::{ConnectString, Server};
pub use credentials::Credentials;
use ensemble_config::Follower;
pub use ensemble_config::{ClientPorts, check_ensemble_config};
pub use inputs::ConnectionEvent;
pub(crate) use large_requests::TooLarge;
use large_requests::{LargeRequests, WatchBatch};
use lease::SentPackets;
pub(crate) use lease::{Lease, Proof};
pub use sasl::{SaslMechanism, SaslStep};
pub(crate) use servers::Entropy;
use servers::{Migration, ServerList, Servers};
pub(crate) use traffic::Traffic;
use watches::Watches;
pub(crate) use watches::{CacheId, MachineId, Subscriber};

use crate::error::{Error, Status};
use crate::limits::Limits;
use crate::log_record::LogBuffer;
use crate::time::Time;
use zeroize::Zeroizing;
use zklock_proto::{AddWatchMode, Code, EventKind, Frames, OpCode, Request, Response, WatcherType};

/// The maximum number of children in a list that the session accepts. The limit keeps the memory of a client small,
/// whatever a server sends.
const MAX_CHILDREN: usize = 1 << 17;
/// A list may be longer than other answers by this factor, because its length depends on other clients. With the default
/// frame limit, a list of 100,000 contenders is short enough.
const LIST_FRAMES: usize = 8;

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
    /// The time between the end of the lease and the earliest end of the session. `None` means a third of the
    /// negotiated timeout.
    pub lease_margin: Option<Duration>,
    /// The ports that the client uses if it follows the configuration of the ensemble. `None` if the client does not
    /// follow it.
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
    /// Servers closed the connection after this request or after a smaller request. The servers probably did not
    /// perform this request.
    TooLarge(TooLarge),
    /// The request does not fit into a frame, so the session did not send it.
    TooLong,
    /// The answer is longer than the client allows. A server has performed the request.
    AnswerTooLong(AnswerTooLong),
}

/// An answer that the client does not accept because of its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerTooLong {
    /// The answer has `len` bytes, and `limit` bytes are allowed.
    Frame { len: usize, limit: usize },
    /// The answer lists `count` children in `len` bytes, and `limit` bytes are allowed.
    List { count: usize, len: usize, limit: usize },
    /// The answer lists `count` children, and [`MAX_CHILDREN`] are allowed.
    Children { count: usize },
}

impl fmt::Display for AnswerTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frame { len, limit } => {
                write!(f, "the answer has {len} bytes; this client accepts at most {limit} bytes")
            }
            Self::List { count, len, limit } => {
                write!(f, "the list of {count} nodes has {len} bytes; this client accepts at most {limit} bytes")
            }
            Self::Children { count } => {
                write!(f, "the list has {count} nodes; this client accepts at most {MAX_CHILDREN} nodes")
            }
        }
    }
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
            Self::TooLong => Error::new(Status::Exhausted, format!("{doing}: the request does not fit into a frame")),
            Self::AnswerTooLong(too_long) => Error::new(Status::Exhausted, format!("{doing}: {too_long}")),
        }
    }
}

/// An event that the session reports to its owner. `T` is the owner's tag for a request.
#[derive(Debug)]
pub(crate) enum Event<T> {
    /// The session has a connection and accepts requests. If the session was resumed, the session has already sent the
    /// requests that restore its watches.
    Connected {
        /// True if the session is the same as before the connection was lost.
        resumed: bool,
    },
    /// The connection was lost. All requests that were in flight have failed.
    Disconnected,
    /// The session has ended. The servers delete the ephemeral nodes of the session, and the client starts a new
    /// session.
    SessionEnded {
        /// The value is `Some` if no server reported an expiry. The nodes of the ended session exist at least until
        /// this time.
        nodes_until: Option<Time>,
    },
    /// The reply to a request.
    Reply {
        /// The tag that the owner gave to the request.
        tag: T,
        /// The zxid of the reply. The reply to a transaction has the zxid of the transaction. The reply to a read has
        /// the largest zxid that the server had processed. The value is 0 if there was no reply.
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
    /// The server refused the credentials, or SASL has failed. The cause is the failure of the connection.
    AuthFailed,
    /// The last connection to each of the servers has failed because of a certificate, or because one side uses TLS and
    /// the other side does not.
    ServersRefused,
    /// The session was closed, or the deadline for closing it has passed.
    Closed,
}

/// A command for the shell, which owns the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Drop the current connection, resolve the name of this server, and connect to this server. After that, report
    /// [`ConnectionEvent::Connected`] or a failure.
    Connect(Server),
    /// Load the inputs of the next attempt to connect, and keep the present connection. After that, report
    /// [`ConnectionEvent::InputsLoaded`] or [`ConnectionEvent::LoadFailed`]. The session sends this command only after
    /// `Engine::require_loading`.
    Load,
    /// Drop the connection or the connection attempt. After this command, the shell reports nothing more about the
    /// connection to the session.
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
    /// Set during the first attempt of a session that left its server on purpose.
    planned_move: Option<Migration>,
    entropy: Entropy,
    connection: ConnectionState,
    active: Option<ActiveSession>,
    ever_connected: bool,
    lease_demand: LeaseDemand,
    close_deadline: Option<Time>,
    /// The session timeout in effect: the negotiated timeout, or the requested timeout if the client has no session.
    timeout: Duration,
    /// The largest zxid that the session has seen. A server that has not reached this zxid refuses the session, so the
    /// session never sees older data.
    last_zxid: i64,
    /// True if a server has closed the connection during the last handshake, which named `last_zxid`.
    is_zxid_refused: bool,
    /// The zxid up to which the session has received all watch events. On a new connection, the session requests all
    /// events with larger zxids. While the session restores its watches, replies advance `last_zxid` but not this
    /// field.
    watched_zxid: i64,
    last_xid: i32,
    established_at: Time,
    last_sent: Time,
    /// The packets of this connection with their times. The session computes the lease from these times.
    sent_packets: SentPackets,
    /// The send time of the last heartbeat transaction, or of a later request that extended the lease.
    last_proof_sent: Time,
    last_received: Time,
    /// The time at which the server last replied to a request. Notifications do not count, because the server sends
    /// them without a request.
    last_answered: Time,
    /// The time since which requests had been without an answer when the connection was lost. The value is `None` if a
    /// server has answered a request since then, or if the session had nothing to ask after it connected again.
    silent_since: Option<Time>,
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
    /// The SASL mechanism for the next connection.
    sasl: Option<Box<dyn SaslMechanism>>,
    /// The SASL mechanism of this connection, during the SASL step.
    sasl_in_use: Option<Box<dyn SaslMechanism>>,
    /// The reason why the present attempt to connect has not reached the server yet, for error messages.
    delay: Option<String>,
    output: Zeroizing<Vec<u8>>,
    /// True if the memory of the output may still contain credentials.
    has_secret_output: bool,
    commands: VecDeque<Command>,
    events: VecDeque<Event<T>>,
    /// The server of the current or last connection, and the reason why the last connection failed. Both fields are for
    /// error messages.
    server: Option<Server>,
    last_failure: String,
    /// The servers that failed after the last established connection, each with its last failure. The last entry
    /// contains the latest failure. A change of the server list removes the servers that the new list does not contain.
    server_failures: Vec<ServerFailure>,
    /// True if the last connection attempt failed because this machine had no file descriptor, thread or memory left.
    is_out_of_resources: bool,
    local_address: String,
    traffic: Traffic,
    log_buffer: LogBuffer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionState {
    Disconnected {
        retry_at: Time,
    },
    Connecting {
        deadline: Time,
    },
    Securing {
        deadline: Time,
    },
    Handshake {
        sent: Time,
        deadline: Time,
        offer: SessionOffer,
    },
    /// The client has sent a SASL token, and waits for the answer. The deadline applies to the whole step.
    Sasl {
        xid: i32,
        is_first: bool,
        resumed: bool,
        deadline: Time,
    },
    Authenticating {
        replies: usize,
        resumed: bool,
        deadline: Time,
    },
    Established,
    Closed,
}

/// What the session tells a server in the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionOffer {
    /// The id of the session, if there is one, and the largest zxid that it has seen.
    Resume,
    /// The id without the zxid. The answer shows whether the servers still have the session.
    Probe,
}

/// The plan to leave the present server.
#[derive(Debug, Clone, Copy)]
struct Departure {
    migration: Migration,
    stage: DepartureStage,
}

/// The session loads the inputs of the next attempt before it leaves the server. If they cannot be loaded, the session
/// could not even return to this server.
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
    /// With this password, anybody can take over the session.
    password: Zeroizing<Vec<u8>>,
    /// The timeout that was negotiated at the start of the session. After an election, the new leader uses this timeout
    /// again.
    timeout: Duration,
    lease: Lease,
}

/// A failure that another attempt with the same settings does not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionRefusal {
    /// The client refused the certificate of the server, or the server refused the certificate of the client.
    Certificate,
    /// One side uses TLS, and the other side does not.
    Protocol,
}

/// The last failure of a server.
struct ServerFailure {
    server: Server,
    cause: String,
    refusal: Option<ConnectionRefusal>,
}

struct InFlight<T> {
    xid: i32,
    op: OpCode,
    /// The length of the frame in bytes.
    size: usize,
    /// True if the session sent the request alone because the request may be too large for the server.
    is_isolated: bool,
    sent: Time,
    /// The times that a reply proves. The value is `None` if the server may reply before a quorum has committed the
    /// request.
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
    /// A request that sets watches again. If the server refuses this request, the session closes the connection.
    /// Without the watches, waiters would miss events.
    RestoreWatches,
    /// Reads and watches the configuration of the ensemble.
    ReadConfig,
    Close,
}

impl<T> Session<T> {
    /// Creates a session without a connection. The session connects to a server at the first call of
    /// [`advance`](Self::advance).
    pub(crate) fn new(servers: Vec<Server>, config: SessionConfig, now: Time, mut entropy: Entropy) -> Self {
        Self {
            follower: config.follow_config.map(|ports| Follower::new(ports, servers.clone())),
            given_servers: servers.clone(),
            servers: Servers::new(servers, &mut entropy),
            is_config_watched: false,
            departure: None,
            is_loading_required: false,
            planned_move: None,
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
            silent_since: None,
            ping_sent: None,
            in_flight: VecDeque::new(),
            large_requests: LargeRequests::new(config.limits.suspect_size),
            watch_batch: WatchBatch::new(config.limits.watch_batch, config.limits.least_watch_batch),
            data_watches: Watches::default(),
            child_watches: Watches::default(),
            recursive_watches: BTreeMap::new(),
            credentials: Vec::new(),
            sasl: None,
            sasl_in_use: None,
            delay: None,
            output: Zeroizing::default(),
            has_secret_output: false,
            commands: VecDeque::new(),
            events: VecDeque::new(),
            server: None,
            last_failure: "the client has not tried to connect yet".to_owned(),
            server_failures: Vec::new(),
            is_out_of_resources: false,
            is_zxid_refused: false,
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

    /// Returns how long the session has been waiting for an answer, or zero if the session waits for no answer. The time
    /// includes lost connections on which the servers answered nothing.
    pub(crate) fn unanswered_for(&self, now: Time) -> Duration {
        let since = self.unanswered_since().map(|since| self.silent_since.map_or(since, |before| before.min(since)));
        since.map_or(Duration::ZERO, |since| now - since)
    }

    /// Returns whether a server has answered a request since this time.
    pub(crate) fn has_answered_since(&self, since: Time) -> bool {
        self.last_answered >= since
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

    /// Returns whether the last connection attempt failed because this machine had no file descriptor, thread or memory left.
    pub(crate) fn is_out_of_resources(&self) -> bool {
        self.is_out_of_resources
    }

    /// Returns whether the session has left its server on purpose, and its first attempt elsewhere has not ended yet.
    pub(crate) fn is_moving(&self) -> bool {
        self.planned_move.is_some()
    }

    /// Returns whether the server list contains the server.
    pub(crate) fn uses_server(&self, server: &Server) -> bool {
        self.servers.contains(server)
    }

    /// Returns whether the last connection to each of the servers has failed because of a certificate.
    pub(crate) fn are_all_certificates_refused(&self) -> bool {
        self.is_refused_by_all(|refusal| refusal == ConnectionRefusal::Certificate)
    }

    fn is_refused_by_all(&self, is_wanted: impl Fn(ConnectionRefusal) -> bool) -> bool {
        let is_refused = |server: &Server| {
            let mut of_server = self.server_failures.iter().filter(|failure| failure.server == *server);
            of_server.any(|failure| failure.refusal.is_some_and(&is_wanted))
        };
        self.servers.all().all(is_refused)
    }

    /// Returns a phrase about the state of the server for error messages.
    fn server_status(&self, server: &Server) -> String {
        match self.connection {
            ConnectionState::Established => format!("connected to {server}"),
            ConnectionState::Connecting { .. } => match &self.delay {
                Some(cause) => format!("{server}: {cause}"),
                None => format!("{server} does not accept the connection"),
            },
            ConnectionState::Securing { .. } => format!("{server} does not complete the TLS handshake"),
            ConnectionState::Handshake { .. } => format!("{server} does not answer the handshake"),
            ConnectionState::Sasl { .. } => format!("{server} does not answer the SASL token"),
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

    /// Sends a transaction whose reply extends the lease. A read request that is sent later returns data that is at
    /// least as new as this transaction.
    ///
    /// The leader checks the session, and a quorum commits the transaction.
    pub(crate) fn request_proof(&mut self, now: Time) {
        self.last_proof_sent = now;
        self.send(now, &proof_request(), Purpose::Internal);
    }

    /// Makes the server catch up with the leader. A read request that is sent later returns data that is at least as
    /// new as this call. The request is not a transaction and does not extend the lease.
    pub(crate) fn sync(&mut self, now: Time, path: &str) {
        self.send(now, &Request::Sync { path: path.to_owned() }, Purpose::Internal);
    }

    /// Returns how long the session must wait before a proof request can make the lease valid. If the result is zero, a
    /// proof request that is sent now should make the lease valid.
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

    /// Sets a persistent recursive watch on a directory. The session reports every change as [`Event::WatchFired`]. The
    /// watch ends when the connection ends or [`unwatch_recursive`](Self::unwatch_recursive) is called.
    ///
    /// Returns false, and sets no watch, if the session has no connection or already has another watch on the
    /// directory. Servers before 3.9 keep only one watch for each path on a connection (ZOOKEEPER-4466). For the same
    /// reason, a later watch on the directory itself removes the recursive watch. The session reports the removal as
    /// [`EventKind::PersistentWatchRemoved`].
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

    /// Reads a node and sets a watch on it. The reply has the form of a `getData` reply. If the request succeeds, the
    /// session later reports one [`Event::WatchFired`].
    pub(crate) fn watch_data(&mut self, now: Time, path: &str, subscriber: Subscriber, tag: T) {
        self.displace_recursive_watch(now, path);
        self.data_watches.subscribe(path, subscriber);
        let request = Request::GetData { path: path.to_owned(), watch: true };
        self.send(now, &request, Purpose::Watch(tag, path.to_owned(), WatcherType::Data));
    }

    /// Lists a directory and sets a watch on its children. The reply has the form of a `getChildren2` reply. If the
    /// request succeeds, the session later reports one [`Event::WatchFired`].
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

    /// Replaces the servers that the program named. If the session follows the configuration of the ensemble, the
    /// session uses the new list until it has read the configuration again. If the list contains the same servers as
    /// before, the session only forgets which request sizes the servers refused.
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

    /// Closes the session on the server. If the session has no connection, the session first reconnects. At `deadline`,
    /// the session stops trying. The session reports [`Event::Closed`] in any case.
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

    // Times.

    /// Returns the time limit for connecting to one server, or for the handshake with this server. With this limit, the
    /// session can try all servers before a lease ends. The limit is never shorter than `least`.
    fn attempt_timeout(&self, least: Duration) -> Duration {
        let servers = u32::try_from(self.servers.len().min(3)).unwrap_or(3);
        (self.timeout / 3 / servers).max(least)
    }

    /// Returns the time limit for the TLS handshake, and for the handshake of ZooKeeper.
    fn handshake_timeout(&self) -> Duration {
        // A session that spreads the load has left a usable server, to which it can soon return.
        self.attempt_timeout(if self.planned_move == Some(Migration::Rebalance) {
            Duration::from_millis(100)
        } else {
            Duration::from_secs(1)
        })
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
        // After a ping, the next proof can extend the lease further, because the lease depends on the last packet for
        // which the leader touched the session. Only one ping is in flight at a time, so each answer belongs to a known
        // ping.
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

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn not_loaded(inputs: &str) -> String {
    format!("the client has not loaded {inputs} in time")
}

/// A transaction that only checks that the node `/zookeeper` exists. This node always exists. The transaction changes
/// nothing and fires no watch.
fn proof_request() -> Request {
    Request::Multi(vec![Request::Check { path: "/zookeeper".to_owned(), version: -1 }])
}
