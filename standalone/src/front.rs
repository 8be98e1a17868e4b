//! The standalone server on TCP: one thread that moves bytes between sockets and the core, and the faults that tests ask for.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use socket2::{Domain, SockRef, Socket, Type};
use zklock::proto::{ConnectRequest, DEFAULT_FRAME_LIMIT, Frames, OpCode};
use zklock::{Epoch, Error, Result, Status, Time, with_signals_blocked};

use crate::replica::Action;
use crate::server::Standalone;
use crate::{ConnectionId, Settings};

/// A server on TCP, on a thread of its own. It ends when this is dropped.
///
/// All methods may be called from any thread; they return when the server has done what they say. Errors of all of them:
/// CLOSED once it was stopped; FORKED in a forked child, which has no server.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    epoch: Epoch,
    waker: Waker,
    orders: mpsc::Sender<Order>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Which clients a fault is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// All of them, also those that connect later.
    All,
    /// The client of this session, also on the connections that it makes later. INVALID if there is no such session.
    Session(i64),
}

/// A session, as the server sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its id.
    pub id: i64,
    /// The timeout agreed when it began.
    pub timeout: Duration,
    /// Whether its client is connected now.
    pub is_connected: bool,
}

type Order = Box<dyn FnOnce(&mut Front) + Send>;

impl Server {
    /// Starts a server for tests on a free port of the loopback interface.
    pub fn start() -> Result<Self> {
        Self::bind(("127.0.0.1", 0), Settings::for_tests())
    }

    /// Starts a server on this address; with port 0 on a free one. Errors: INVALID for what is no address, SERVER where
    /// nobody can listen there.
    pub fn bind(address: impl ToSocketAddrs + fmt::Debug, settings: Settings) -> Result<Self> {
        let port = reserve(address)?;
        Self::listen(port, settings).map_err(|cause| zklock::refused("starting the server", &cause))
    }

    fn listen(port: Socket, settings: Settings) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let (orders, received) = mpsc::channel();
        let mut front = Front::new(poll, port, settings)?;
        front.listen()?;
        let address = front.address;
        let run = move || front.run(&received);
        let thread = with_signals_blocked(|| thread::Builder::new().name("zkl-standalone".into()).spawn(run))?;
        Ok(Self { address, epoch: Epoch::current(), waker, orders, thread: Mutex::new(Some(thread)) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All sessions.
    pub fn sessions(&self) -> Result<Vec<SessionInfo>> {
        self.order(|front| front.sessions())
    }

    /// Ends sessions at once, as if they had been silent for too long.
    pub fn expire(&self, target: Target) -> Result<()> {
        self.order(move |front| front.expire(target))?
    }

    /// Resets connections. The clients may come back.
    pub fn cut(&self, target: Target) -> Result<()> {
        self.order(move |front| front.cut(target))?
    }

    /// Lets connections stand still: what is sent on them, either way, arrives when they are [thawed](Self::thaw). The
    /// server hears nothing from such clients, so their sessions expire in time.
    pub fn freeze(&self, target: Target) -> Result<()> {
        self.order(move |front| front.disturb(target, |fault| fault.frozen = true))?
    }

    /// Ends a [`freeze`](Self::freeze).
    pub fn thaw(&self, target: Target) -> Result<()> {
        self.order(move |front| front.disturb(target, |fault| fault.frozen = false))?
    }

    /// Delays everything that clients are sent from now on. Zero ends it.
    pub fn delay(&self, target: Target, delay: Duration) -> Result<()> {
        self.order(move |front| front.disturb(target, |fault| fault.delay = delay))?
    }

    /// Lets the next reply to such a request be lost, and its connection with it, though the request itself is done.
    pub fn lose_reply(&self, target: Target, op: OpCode) -> Result<()> {
        self.order(move |front| front.lose_reply(target, op))?
    }

    /// Closes all connections and takes none until [`restart`](Self::restart). Meanwhile no session expires.
    pub fn halt(&self) -> Result<()> {
        self.order(Front::halt)
    }

    /// Closes all connections and goes on with the same data on the same port; all sessions have their whole time once more.
    /// Errors: SERVER where somebody else listens there now.
    pub fn restart(&self) -> Result<()> {
        self.order(Front::restart)?
    }

    /// Ends the server: its connections and its port are closed, its data is forgotten. May be called again.
    pub fn stop(&self) -> Result<()> {
        self.check()?;
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            let _ = self.order(|front| front.is_over = true);
            let _ = thread.join();
        }
        Ok(())
    }

    fn order<T: Send + 'static>(&self, order: impl FnOnce(&mut Front) -> T + Send + 'static) -> Result<T> {
        self.check()?;
        let stopped = || Error::new(Status::Closed, format!("the server on {} was stopped", self.address));
        let (done, result) = mpsc::channel();
        let order: Order = Box::new(move |front| {
            let answer = order(front);
            front.act();
            front.write();
            let _ = done.send(answer);
        });
        self.orders.send(order).map_err(|_| stopped())?;
        self.waker.wake().map_err(|_| stopped())?;
        result.recv().map_err(|_| stopped())
    }

    fn check(&self) -> Result<()> {
        if self.epoch == Epoch::current() {
            return Ok(());
        }
        let message = format!("the server on {} belongs to the parent of this forked process", self.address);
        Err(Error::new(Status::Forked, message))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.stop().is_err() {
            // A forked child: the thread at the other end of the channel, which may have held its locks, is not here.
            std::mem::forget(self.orders.clone());
        }
    }
}

const WAKER: Token = Token(0);
const LISTENER: Token = Token(1);
/// Connections have the numbers above.
const FIRST_CONNECTION: ConnectionId = 2;

/// A client that leaves so much unread is not read either.
const BACKLOG: usize = 4 << 20;
/// How much is read at once. A few bytes can ask for a megabyte.
const PIECE: usize = 4 * 1024;
/// How often a connection is read before others have their turn.
const PIECES: u32 = 16;

/// What the thread has.
struct Front {
    poll: Poll,
    /// Bound but never listening, so that the port stays ours while we are halted.
    _port: Socket,
    address: SocketAddr,
    started: Instant,
    core: Standalone,
    listener: Option<TcpListener>,
    connections: HashMap<ConnectionId, Connection>,
    next: ConnectionId,
    faults: Faults,
    is_over: bool,
}

struct Connection {
    stream: TcpStream,
    /// Whose it is, once that is known.
    session: Option<i64>,
    /// What it is to be sent, and from when on.
    outgoing: VecDeque<(Time, Vec<u8>)>,
    /// How many bytes these are.
    backlog: usize,
    /// It was not read to the end, since it does not read what it is sent.
    held_back: bool,
    /// It is closed as soon as nothing is outgoing.
    closing: bool,
    /// It is reset as soon as anybody looks.
    doomed: bool,
}

/// The faults in force that last.
#[derive(Debug, Default)]
struct Faults {
    all: Fault,
    sessions: HashMap<i64, Fault>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Fault {
    frozen: bool,
    delay: Duration,
}

impl Front {
    fn new(poll: Poll, port: Socket, mut settings: Settings) -> io::Result<Self> {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        settings.wall_origin_ms = i64::try_from(wall.as_millis()).unwrap_or(i64::MAX);
        settings.secret ^= u64::try_from(wall.as_nanos() & u128::from(u64::MAX)).unwrap_or_default();
        // As in ZooKeeper, the time of the start: a session of one server is to be none of another's.
        settings.session_base |= i64::from(wall.subsec_micros()) << 24;
        let address = port.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self {
            poll,
            _port: port,
            address,
            started: Instant::now(),
            core: Standalone::new(settings, Time::default()),
            listener: None,
            connections: HashMap::new(),
            next: FIRST_CONNECTION,
            faults: Faults::default(),
            is_over: false,
        })
    }

    fn run(mut self, orders: &mpsc::Receiver<Order>) {
        self.serve(orders);
        self.halt();
    }

    fn serve(&mut self, orders: &mpsc::Receiver<Order>) {
        let mut events = Events::with_capacity(256);
        let mut buffer = vec![0; PIECE];
        while !self.is_over {
            match self.poll.poll(&mut events, self.pause()) {
                Ok(()) => {}
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
            // Always: nobody mentions those again that came while no more files could be opened.
            self.accept();
            let unfinished: Vec<_> = self.unfinished().collect();
            unfinished.into_iter().for_each(|id| self.read(id, &mut buffer));
            for event in &events {
                match event.token() {
                    WAKER | LISTENER => {}
                    Token(id) => self.read(id as ConnectionId, &mut buffer),
                }
            }
            while let Ok(order) = orders.try_recv() {
                order(self);
                // A thawed connection has news that nobody will mention again.
                let ids: Vec<_> = self.connections.keys().copied().collect();
                ids.into_iter().for_each(|id| self.read(id, &mut buffer));
            }
            if self.listener.is_some() {
                let now = self.now();
                self.core.advance(now);
            }
            self.act();
            self.write();
        }
    }

    /// Those that were not read to the end, and may be read on.
    fn unfinished(&self) -> impl Iterator<Item = ConnectionId> {
        let may_go_on = |connection: &Connection| connection.held_back && connection.backlog <= BACKLOG;
        self.connections.iter().filter(move |(_, connection)| may_go_on(connection)).map(|(&id, _)| id)
    }

    fn now(&self) -> Time {
        Time::default() + self.started.elapsed()
    }

    fn pause(&self) -> Option<Duration> {
        if self.unfinished().next().is_some() {
            return Some(Duration::ZERO);
        }
        let awake = self.connections.values().filter(|connection| !self.faults.of(connection.session).frozen);
        let outgoing = awake.filter_map(|connection| connection.outgoing.front()).map(|&(at, _)| at);
        let now = self.now();
        let core = self.listener.as_ref().map(|_| self.core.next_timeout());
        // What is due already is waiting for room in a socket, which the poller reports.
        outgoing.filter(|&at| at > now).chain(core).min().map(|at| at - now)
    }

    fn listen(&mut self) -> io::Result<()> {
        let listener = std::net::TcpListener::bind(self.address)?;
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        self.poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        self.listener = Some(listener);
        Ok(())
    }

    // Orders.

    fn halt(&mut self) {
        if let Some(listener) = self.listener.take() {
            // A forked child may have it too, and would go on listening.
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
        self.check(target)?;
        for connection in self.connections.values_mut() {
            connection.doomed |= target.includes(connection.session);
        }
        Ok(())
    }

    fn disturb(&mut self, target: Target, change: impl Fn(&mut Fault)) -> Result<()> {
        self.check(target)?;
        self.faults.change(target, change);
        Ok(())
    }

    fn lose_reply(&mut self, target: Target, op: OpCode) -> Result<()> {
        self.check(target)?;
        let session = match target {
            Target::All => None,
            Target::Session(session) => Some(session),
        };
        self.core.lose_reply(session, op);
        Ok(())
    }

    /// A session that has ended is still somebody's while its client does not know: he may be thawed.
    fn check(&self, target: Target) -> Result<()> {
        match target {
            Target::Session(session) if !self.knows(session) => Err(unknown(session)),
            Target::Session(_) | Target::All => Ok(()),
        }
    }

    fn knows(&self, session: i64) -> bool {
        self.faults.sessions.contains_key(&session) || self.core.replica().sessions().any(|(id, _)| id == session)
    }

    // Connections.

    fn accept(&mut self) {
        while let Some((mut stream, peer)) = self.listener.as_ref().and_then(|listener| listener.accept().ok()) {
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
                outgoing: VecDeque::new(),
                backlog: 0,
                held_back: false,
                closing: false,
                doomed: false,
            };
            self.connections.insert(id, connection);
            self.core.accept(self.now(), id, peer);
        }
    }

    /// Reads what has come, but not so much at once that others would have to wait.
    fn read(&mut self, id: ConnectionId, buffer: &mut [u8]) {
        for turn in 0.. {
            let now = self.now();
            let Some(connection) = self.connections.get_mut(&id) else { return };
            if connection.session.is_none() {
                connection.session = connection.wanted(buffer);
            }
            if connection.closing || connection.doomed || self.faults.of(connection.session).frozen {
                return;
            }
            connection.held_back = turn == PIECES || connection.backlog > BACKLOG;
            if connection.held_back {
                return;
            }
            match connection.stream.read(buffer) {
                Ok(count) if count > 0 => {
                    self.core.received(now, id, buffer.get(..count).unwrap_or_default());
                    connection.session = connection.session.or_else(|| self.core.replica().session_of(id));
                    self.act();
                }
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return self.forget(id),
            }
        }
    }

    /// Does what the core says.
    fn act(&mut self) {
        while let Some(action) = self.core.poll() {
            let now = self.now();
            match action {
                Action::Send(id, bytes) => {
                    if let Some(connection) = self.connections.get_mut(&id) {
                        let delay = self.faults.of(connection.session).delay;
                        connection.backlog += bytes.len();
                        connection.outgoing.push_back((now + delay, bytes));
                    }
                }
                Action::Close(id) => {
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.closing = true;
                    }
                }
                Action::Reset(id) => {
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.doomed = true;
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
            self.act();
        }
    }
}

impl Drop for Connection {
    /// A forked child may have the socket too, which would keep it open.
    fn drop(&mut self) {
        if !self.doomed {
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Connection {
    /// The session that its client wants back, if that is what it has begun with.
    fn wanted(&self, buffer: &mut [u8]) -> Option<i64> {
        let count = self.stream.peek(buffer).ok()?;
        let mut frames = Frames::new(DEFAULT_FRAME_LIMIT);
        frames.push(buffer.get(..count)?);
        let request = ConnectRequest::decode(&frames.next().ok()??).ok()?;
        Some(request.session_id).filter(|&session| session != 0)
    }

    /// Sends what is due. False if nothing more can be done with it.
    fn flush(&mut self, now: Time, frozen: bool) -> bool {
        if self.doomed {
            // Its peer sees a reset, not an orderly end.
            let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
            return false;
        }
        if frozen {
            return true;
        }
        while let Some((at, bytes)) = self.outgoing.front_mut() {
            if *at > now {
                return true;
            }
            match self.stream.write(bytes) {
                Ok(count) if count > 0 => {
                    bytes.drain(..count);
                    self.backlog -= count;
                    if bytes.is_empty() {
                        self.outgoing.pop_front();
                    }
                }
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return true,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return false,
            }
        }
        !self.closing
    }
}

impl Faults {
    fn of(&self, session: Option<i64>) -> Fault {
        *session.and_then(|session| self.sessions.get(&session)).unwrap_or(&self.all)
    }

    /// What is said of all is said of each.
    fn change(&mut self, target: Target, change: impl Fn(&mut Fault)) {
        match target {
            Target::All => {
                change(&mut self.all);
                self.sessions.values_mut().for_each(change);
            }
            Target::Session(session) => change(self.sessions.entry(session).or_insert(self.all)),
        }
    }
}

impl Target {
    fn includes(self, session: Option<i64>) -> bool {
        self == Self::All || session.map(Self::Session) == Some(self)
    }
}

/// A socket that has the address to itself, but for a listener of ours.
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
    // A port of the kernel's choice is to be nobody else's; one that was asked for may have old connections.
    socket.set_reuse_address(address.port() != 0)?;
    socket.bind(&address.into())?;
    socket.set_reuse_address(true)?;
    Ok(socket)
}

fn cannot_listen(address: SocketAddr, cause: &io::Error) -> Error {
    let doing = format!("cannot listen on {address}");
    match zklock::refused(&doing, cause) {
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
