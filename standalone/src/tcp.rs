//! The TCP layer of the standalone server. One thread moves bytes between the sockets and the core, and causes the
//! faults that tests request. No other file of the library may use sockets, threads or clocks.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "the shell uses sockets, a thread and clocks")]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use socket2::{Domain, SockRef, Socket, Type};
use zklock_base::error::{Error, Result, Status};
use zklock_base::time::Time;
use zklock_process::{ForkEpoch, reset, resource_error, with_signals_blocked};
use zklock_proto::{ConnectRequest, DEFAULT_FRAME_LIMIT, Frames, OpCode};

use crate::replica::ConnectionAction;
use crate::server_core::ServerCore;
use crate::{ConnectionId, Settings};

/// An in-memory ZooKeeper server that listens on TCP and runs on its own thread. Dropping the value stops the server.
///
/// Any thread may call all methods. Each method blocks until the server thread has carried out the command. Every
/// method that returns a `Result` fails with CLOSED after [`stop`](Self::stop), and with FORKED in a forked child,
/// because the server belongs to the parent process.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    epoch: ForkEpoch,
    /// The server thread owns the waker, so a stopped server has no descriptor.
    waker: Weak<Waker>,
    commands: mpsc::Sender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The clients that a fault applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// All clients. A freeze or a delay also applies to clients that connect later.
    All,
    /// The client of this session. A freeze or a delay also applies to connections that this client opens later. If the
    /// session does not exist, a method fails with INVALID.
    Session(i64),
}

/// The server's data about a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionInfo {
    /// The session id.
    pub id: i64,
    /// The session timeout that was negotiated when the session was created.
    pub timeout: Duration,
    /// Whether the client of the session is connected now.
    pub is_connected: bool,
}

type Command = Box<dyn FnOnce(&mut ServerThread) + Send>;

impl Server {
    /// Starts a server for tests on a free port of the loopback interface.
    pub fn start() -> Result<Self> {
        Self::bind(("127.0.0.1", 0), Settings::for_tests())
    }

    /// Starts a server on this address. Port 0 selects a free port.
    ///
    /// Fails with INVALID if the address is not valid, with EXHAUSTED if the process or the system lacks resources, and
    /// with SERVER if the server cannot listen on the address.
    pub fn bind(address: impl ToSocketAddrs + fmt::Debug, settings: Settings) -> Result<Self> {
        let port = reserve(address)?;
        Self::listen(port, settings).map_err(|cause| resource_error("starting the server", &cause))
    }

    fn listen(port: Socket, settings: Settings) -> io::Result<Self> {
        let poll = Poll::new()?;
        let of_thread = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let waker = Arc::downgrade(&of_thread);
        let (commands, received) = mpsc::channel();
        let mut front = ServerThread::new(poll, port, settings)?;
        front.listen()?;
        let address = front.address;
        let run = move || {
            front.run(&received);
            drop(of_thread);
        };
        let thread = with_signals_blocked(|| thread::Builder::new().name("zkl-standalone".into()).spawn(run))?;
        Ok(Self { address, epoch: ForkEpoch::current(), waker, commands, thread: Mutex::new(Some(thread)) })
    }

    /// The address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lists all sessions.
    pub fn sessions(&self) -> Result<Vec<SessionInfo>> {
        self.execute(|front| front.sessions())
    }

    /// Ends sessions immediately, as if their timeouts had elapsed.
    pub fn expire(&self, target: Target) -> Result<()> {
        self.execute(move |front| front.expire(target))?
    }

    /// Resets connections. The clients may reconnect.
    pub fn cut(&self, target: Target) -> Result<()> {
        self.execute(move |front| front.cut(target))?
    }

    /// Stops the transfer of bytes on connections, in both directions. The bytes arrive after [`thaw`](Self::thaw). The
    /// server receives nothing from a frozen client, so the session of this client expires after its timeout.
    pub fn freeze(&self, target: Target) -> Result<()> {
        self.execute(move |front| front.change_fault(target, |fault| fault.frozen = true))?
    }

    /// Ends a [`freeze`](Self::freeze).
    pub fn thaw(&self, target: Target) -> Result<()> {
        self.execute(move |front| front.change_fault(target, |fault| fault.frozen = false))?
    }

    /// Delays all bytes that the server sends to clients from now on. A delay of zero ends the fault.
    pub fn delay(&self, target: Target, delay: Duration) -> Result<()> {
        self.execute(move |front| front.change_fault(target, |fault| fault.delay = delay))?
    }

    /// Drops the next reply to a request of type `op` and resets the connection. The server still carries out the
    /// request.
    pub fn lose_reply(&self, target: Target, op: OpCode) -> Result<()> {
        self.execute(move |front| front.lose_reply(target, op))?
    }

    /// Closes all connections and accepts no new ones until [`restart`](Self::restart). No session expires while the
    /// server is halted.
    pub fn halt(&self) -> Result<()> {
        self.execute(ServerThread::halt)
    }

    /// Closes all connections and listens again on the same port with the same data. The timeouts of all sessions start
    /// again.
    ///
    /// Fails with SERVER if another process listens on the port now, and with EXHAUSTED if the system lacks resources.
    pub fn restart(&self) -> Result<()> {
        self.execute(ServerThread::restart)?
    }

    /// Stops the server: closes its connections and its port, and discards its data. A second call has no effect.
    pub fn stop(&self) -> Result<()> {
        self.check_process()?;
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            let _ = self.execute(|front| front.is_stopping = true);
            let _ = thread.join();
        }
        Ok(())
    }

    fn execute<T: Send + 'static>(&self, command: impl FnOnce(&mut ServerThread) -> T + Send + 'static) -> Result<T> {
        self.check_process()?;
        let stopped = || Error::new(Status::Closed, format!("the server on {} was stopped", self.address));
        let (done, result) = mpsc::channel();
        let command: Command = Box::new(move |front| {
            let answer = command(front);
            front.process_actions();
            front.write();
            let _ = done.send(answer);
        });
        self.commands.send(command).map_err(|_| stopped())?;
        self.waker.upgrade().ok_or_else(stopped)?.wake().map_err(|_| stopped())?;
        result.recv().map_err(|_| stopped())
    }

    fn check_process(&self) -> Result<()> {
        if self.epoch == ForkEpoch::current() {
            return Ok(());
        }
        let message = format!("the server on {} belongs to the parent of this forked process", self.address);
        Err(Error::new(Status::Forked, message))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.stop().is_err() {
            // In a forked child, the server thread does not exist. At the time of the fork, the server thread may have
            // held the lock of the channel, so the child must not drop the channel.
            std::mem::forget(self.commands.clone());
        }
    }
}

const WAKER: Token = Token(0);
const LISTENER: Token = Token(1);
/// Connection ids start above the two tokens.
const FIRST_CONNECTION: ConnectionId = 2;

/// If a connection has more than this number of unsent bytes, the server stops reading from it.
const MAX_UNSENT_BYTES: usize = 4 << 20;
/// The number of bytes in one read. The number is small, because a request of a few bytes can cause a reply of a
/// megabyte.
const PIECE: usize = 4 * 1024;
/// The time after which the server tries again to accept a connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// After this number of reads from one connection, the server reads from the other connections.
const PIECES: u32 = 16;

/// The state of the server thread.
struct ServerThread {
    poll: Poll,
    /// A socket that is bound but never listens. It reserves the port while the server is halted.
    _port: Socket,
    address: SocketAddr,
    started: Instant,
    core: ServerCore,
    listener: Option<TcpListener>,
    /// Whether a connection could not be accepted, for example because the process has no free descriptor.
    has_unaccepted: bool,
    /// The server serves connections in the order in which it accepted them. The latest connection of a session therefore
    /// remains if several arrive at once.
    connections: BTreeMap<ConnectionId, Connection>,
    next: ConnectionId,
    faults: Faults,
    is_stopping: bool,
}

struct Connection {
    stream: TcpStream,
    /// The session of the client, once the server knows it.
    session: Option<i64>,
    /// The bytes to send, each with the earliest time at which they may be sent.
    unsent: VecDeque<(Time, Vec<u8>)>,
    /// The total number of bytes in `unsent`.
    unsent_bytes: usize,
    /// Whether the server has stopped reading, either to serve other connections or because the client does not read
    /// its replies.
    reading_paused: bool,
    /// Whether the server closes the connection as soon as `unsent` is empty.
    close_when_flushed: bool,
    /// Whether the server resets the connection at its next write.
    reset_pending: bool,
}

/// The freezes and delays that are in effect.
#[derive(Debug, Default)]
struct Faults {
    all: Fault,
    /// The sessions whose fault differs from `all`.
    sessions: HashMap<i64, Fault>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Fault {
    frozen: bool,
    delay: Duration,
}

impl ServerThread {
    fn new(poll: Poll, port: Socket, mut settings: Settings) -> io::Result<Self> {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        settings.wall_origin_ms = i64::try_from(wall.as_millis()).unwrap_or(i64::MAX);
        settings.secret ^= u64::try_from(wall.as_nanos() & u128::from(u64::MAX)).unwrap_or_default();
        // As in ZooKeeper, the session ids contain the start time, so that two servers do not create the same id.
        settings.session_base |= i64::from(wall.subsec_micros()) << 24;
        let address = port.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self {
            poll,
            _port: port,
            address,
            started: Instant::now(),
            core: ServerCore::new(settings, Time::default()),
            listener: None,
            connections: BTreeMap::new(),
            has_unaccepted: false,
            next: FIRST_CONNECTION,
            faults: Faults::default(),
            is_stopping: false,
        })
    }

    fn run(mut self, commands: &mpsc::Receiver<Command>) {
        self.run_loop(commands);
        self.halt();
    }

    fn run_loop(&mut self, commands: &mpsc::Receiver<Command>) {
        let mut events = Events::with_capacity(256);
        let mut buffer = vec![0; PIECE];
        while !self.is_stopping {
            match self.poll.poll(&mut events, self.poll_timeout()) {
                Ok(()) => {}
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
            // Always accept: if a connection arrived while the process had no free file descriptor, the poller does not
            // report it again.
            self.accept();
            let unfinished: Vec<_> = self.resumable_connections().collect();
            unfinished.into_iter().for_each(|id| self.read(id, &mut buffer));
            for event in &events {
                match event.token() {
                    WAKER | LISTENER => {}
                    Token(id) => self.read(id as ConnectionId, &mut buffer),
                }
            }
            while let Ok(command) = commands.try_recv() {
                command(self);
                // If data arrived on a connection while it was frozen, the poller does not report these data again.
                let ids: Vec<_> = self.connections.keys().copied().collect();
                ids.into_iter().for_each(|id| self.read(id, &mut buffer));
            }
            if self.listener.is_some() {
                let now = self.now();
                self.core.advance(now);
            }
            self.process_actions();
            self.write();
        }
    }

    /// The connections from which the server stopped reading early, and may now read again.
    fn resumable_connections(&self) -> impl Iterator<Item = ConnectionId> {
        let may_go_on =
            |connection: &Connection| connection.reading_paused && connection.unsent_bytes <= MAX_UNSENT_BYTES;
        self.connections.iter().filter(move |(_, connection)| may_go_on(connection)).map(|(&id, _)| id)
    }

    fn now(&self) -> Time {
        Time::default() + self.started.elapsed()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        if self.resumable_connections().next().is_some() {
            return Some(Duration::ZERO);
        }
        let awake = self.connections.values().filter(|connection| !self.faults.of(connection.session).frozen);
        let outgoing = awake.filter_map(|connection| connection.unsent.front()).map(|&(at, _)| at);
        let now = self.now();
        let core = self.listener.as_ref().map(|_| self.core.next_timeout());
        let accept = self.has_unaccepted.then(|| now + ACCEPT_RETRY);
        // Bytes that are already due wait for space in a socket buffer, and need no timer. The poller reports when the
        // buffer has space.
        outgoing.filter(|&at| at > now).chain(core).chain(accept).min().map(|at| at - now)
    }

    fn listen(&mut self) -> io::Result<()> {
        let listener = std::net::TcpListener::bind(self.address)?;
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        self.poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        self.listener = Some(listener);
        Ok(())
    }

    // Commands from other threads.

    fn halt(&mut self) {
        if let Some(listener) = self.listener.take() {
            // A forked child may have a copy of the socket, and this copy would continue to listen.
            let _ = SockRef::from(&listener).shutdown(std::net::Shutdown::Both);
        }
        self.connections.clear();
        self.core.restart(self.now());
    }

    fn restart(&mut self) -> Result<()> {
        self.halt();
        self.listen().map_err(|cause| cannot_listen(self.address, &cause))
    }

    fn sessions(&self) -> Vec<SessionInfo> {
        let replica = self.core.replica();
        let info = |(id, session): (i64, &crate::Session)| SessionInfo {
            id,
            timeout: session.timeout,
            is_connected: replica.connection_of(id).is_some(),
        };
        replica.sessions().map(info).collect()
    }

    fn expire(&mut self, target: Target) -> Result<()> {
        let now = self.now();
        match target {
            Target::All => {
                let sessions: Vec<_> = self.core.replica().sessions().map(|(id, _)| id).collect();
                for session in sessions {
                    self.core.expire(now, session);
                }
            }
            Target::Session(session) if self.core.expire(now, session) => {}
            Target::Session(session) => return Err(unknown(session)),
        }
        Ok(())
    }

    fn cut(&mut self, target: Target) -> Result<()> {
        self.check_target(target)?;
        for connection in self.connections.values_mut() {
            connection.reset_pending |= target.includes(connection.session);
        }
        Ok(())
    }

    fn change_fault(&mut self, target: Target, change: impl Fn(&mut Fault)) -> Result<()> {
        self.check_target(target)?;
        self.faults.change(target, change);
        let now = self.now();
        // When a delay ends, the bytes that it has held back become due.
        let faults = &self.faults;
        let undelayed =
            self.connections.values_mut().filter(|connection| faults.of(connection.session).delay.is_zero());
        undelayed.flat_map(|connection| &mut connection.unsent).for_each(|(at, _)| *at = now.min(*at));
        Ok(())
    }

    fn lose_reply(&mut self, target: Target, op: OpCode) -> Result<()> {
        self.check_target(target)?;
        let session = match target {
            Target::All => None,
            Target::Session(session) => Some(session),
        };
        self.core.lose_reply(session, op);
        Ok(())
    }

    /// Also accepts an expired session whose client is still connected, or that has a freeze or a delay, because a test
    /// must be able to thaw its client.
    fn check_target(&self, target: Target) -> Result<()> {
        match target {
            Target::Session(session) if !self.has_session(session) => Err(unknown(session)),
            Target::Session(_) | Target::All => Ok(()),
        }
    }

    fn has_session(&self, session: i64) -> bool {
        self.faults.sessions.contains_key(&session)
            || self.connections.values().any(|connection| connection.session == Some(session))
            || self.core.replica().sessions().any(|(id, _)| id == session)
    }

    // Connections.

    fn accept(&mut self) {
        self.has_unaccepted = false;
        while let Some(accepted) = self.listener.as_ref().map(TcpListener::accept) {
            let (mut stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(cause) => {
                    self.has_unaccepted = cause.kind() != io::ErrorKind::WouldBlock;
                    return;
                }
            };
            let id = self.next;
            self.next += 1;
            let registered = stream.set_nodelay(true).and_then(|()| {
                self.poll.registry().register(&mut stream, token(id), Interest::READABLE | Interest::WRITABLE)
            });
            if registered.is_err() {
                continue;
            }
            let connection = Connection {
                stream,
                session: None,
                unsent: VecDeque::new(),
                unsent_bytes: 0,
                reading_paused: false,
                close_when_flushed: false,
                reset_pending: false,
            };
            self.connections.insert(id, connection);
            self.core.accept(self.now(), id, peer);
        }
    }

    /// Reads the bytes that have arrived, up to a limit, so that other connections do not have to wait.
    fn read(&mut self, id: ConnectionId, buffer: &mut [u8]) {
        for turn in 0.. {
            let now = self.now();
            let Some(connection) = self.connections.get_mut(&id) else { return };
            if connection.session.is_none() {
                connection.session = connection.peek_session_id(buffer);
            }
            if connection.close_when_flushed || connection.reset_pending || self.faults.of(connection.session).frozen {
                return;
            }
            connection.reading_paused = turn == PIECES || connection.unsent_bytes > MAX_UNSENT_BYTES;
            if connection.reading_paused {
                return;
            }
            match connection.stream.read(buffer) {
                Ok(count) if count > 0 => {
                    self.core.received(now, id, buffer.get(..count).unwrap_or_default());
                    connection.session = connection.session.or_else(|| self.core.replica().session_of(id));
                    self.process_actions();
                }
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return self.forget(id),
            }
        }
    }

    /// Carries out the actions on connections that the core has queued.
    fn process_actions(&mut self) {
        while let Some(action) = self.core.poll() {
            let now = self.now();
            match action {
                ConnectionAction::Send(id, bytes) => {
                    if let Some(connection) = self.connections.get_mut(&id) {
                        let delay = self.faults.of(connection.session).delay;
                        connection.unsent_bytes += bytes.len();
                        connection.unsent.push_back((now + delay, bytes));
                    }
                }
                ConnectionAction::Close(id) => {
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.close_when_flushed = true;
                    }
                }
                ConnectionAction::Reset(id) => {
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.reset_pending = true;
                    }
                }
            }
        }
    }

    fn write(&mut self) {
        let now = self.now();
        let mut gone = Vec::new();
        for (&id, connection) in &mut self.connections {
            let frozen = self.faults.of(connection.session).frozen;
            if !connection.flush(now, frozen) {
                gone.push(id);
            }
        }
        gone.into_iter().for_each(|id| self.forget(id));
    }

    fn forget(&mut self, id: ConnectionId) {
        if self.connections.remove(&id).is_some() {
            self.core.closed(self.now(), id);
            self.process_actions();
        }
    }
}

impl Drop for Connection {
    /// A forked child may have a copy of the socket, and this copy would keep the connection open.
    fn drop(&mut self) {
        if !self.reset_pending {
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Connection {
    /// Returns the session that the client wants to resume, if the first frame of the client is a connect request with
    /// a session id.
    fn peek_session_id(&self, buffer: &mut [u8]) -> Option<i64> {
        let count = self.stream.peek(buffer).ok()?;
        let mut frames = Frames::new(DEFAULT_FRAME_LIMIT);
        frames.push(buffer.get(..count)?);
        let request = ConnectRequest::decode(&frames.next().ok()??).ok()?;
        Some(request.session_id).filter(|&session| session != 0)
    }

    /// Sends the bytes that are due. Returns false if the connection has ended.
    fn flush(&mut self, now: Time, frozen: bool) -> bool {
        if self.reset_pending {
            reset(&self.stream);
            return false;
        }
        if frozen {
            return true;
        }
        while let Some((at, bytes)) = self.unsent.front_mut() {
            if *at > now {
                return true;
            }
            match self.stream.write(bytes) {
                Ok(count) if count > 0 => {
                    bytes.drain(..count);
                    self.unsent_bytes -= count;
                    if bytes.is_empty() {
                        self.unsent.pop_front();
                    }
                }
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return true,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return false,
            }
        }
        !self.close_when_flushed
    }
}

impl Faults {
    fn of(&self, session: Option<i64>) -> Fault {
        *session.and_then(|session| self.sessions.get(&session)).unwrap_or(&self.all)
    }

    /// If a test changes the fault of all clients, the fault of each single session changes too.
    fn change(&mut self, target: Target, change: impl Fn(&mut Fault)) {
        match target {
            Target::All => {
                change(&mut self.all);
                self.sessions.values_mut().for_each(change);
            }
            Target::Session(session) => change(self.sessions.entry(session).or_insert(self.all)),
        }
        self.sessions.retain(|_, fault| *fault != self.all);
    }
}

impl Target {
    fn includes(self, session: Option<i64>) -> bool {
        self == Self::All || session.map(Self::Session) == Some(self)
    }
}

/// Binds a socket that reserves the address. Only a socket that also has SO_REUSEADDR can bind to the same address.
fn reserve(address: impl ToSocketAddrs + fmt::Debug) -> Result<Socket> {
    let given = format!("{address:?}");
    let invalid = |cause: &io::Error| {
        Error::new(Status::Invalid, format!("{given} is not an address to listen on: {cause}; expected host:port"))
    };
    let addresses: Vec<_> = address.to_socket_addrs().map_err(|cause| invalid(&cause))?.collect();
    let mut last = invalid(&io::ErrorKind::InvalidInput.into());
    for address in addresses {
        match bound(address) {
            Ok(socket) => return Ok(socket),
            Err(cause) => last = cannot_listen(address, &cause),
        }
    }
    Err(last)
}

fn bound(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // If the kernel chose the port, no other socket may share it. If the caller requested the port, old connections of
    // this port may still be in TIME_WAIT.
    socket.set_reuse_address(address.port() != 0)?;
    socket.bind(&address.into())?;
    socket.set_reuse_address(true)?;
    Ok(socket)
}

fn cannot_listen(address: SocketAddr, cause: &io::Error) -> Error {
    let doing = format!("cannot listen on {address}");
    match resource_error(&doing, cause) {
        shortage if shortage.status() == Status::Exhausted => shortage,
        _ => Error::new(Status::Server, format!("{doing}: {cause}")),
    }
}

fn unknown(session: i64) -> Error {
    Error::new(Status::Invalid, format!("the server has no session {session:#x}"))
}

const fn token(id: ConnectionId) -> Token {
    Token(id as usize)
}
