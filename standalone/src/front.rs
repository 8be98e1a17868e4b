//! The standalone server on TCP: one thread that moves bytes between sockets and the core, and the faults that tests ask for.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use zklock::Time;
use zklock::proto::OpCode;

use crate::replica::Action;
use crate::server::Standalone;
use crate::{ConnectionId, Settings};

/// A server on TCP, on a thread of its own. It ends when this is dropped.
///
/// All methods may be called from any thread; they return when the server has done what they say, and do nothing once it
/// has ended.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    waker: Waker,
    orders: mpsc::Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

/// Which clients a fault is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// All of them, also those that connect later.
    All,
    /// The client of this session, as long as it has the connection it has now.
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
    /// Starts a server on a free port of the loopback interface.
    pub fn start() -> io::Result<Self> {
        Self::bind(("127.0.0.1", 0), Settings::default())
    }

    /// Starts a server on this address; with port 0 on a free one.
    pub fn bind(address: impl ToSocketAddrs, settings: Settings) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let (orders, received) = mpsc::channel();
        let mut front = Front::new(poll, address, settings);
        front.listen(listener)?;
        let thread = thread::Builder::new().name("zkl-standalone".into()).spawn(move || front.run(&received))?;
        Ok(Self { address, waker, orders, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All sessions.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.order(|front| front.sessions()).unwrap_or_default()
    }

    /// Ends a session at once, as if it had been silent for too long. False if there is none such.
    pub fn expire(&self, session: i64) -> bool {
        self.order(move |front| front.core.expire(front.now(), session)).unwrap_or(false)
    }

    /// Resets connections. The clients may come back.
    pub fn cut(&self, target: Target) {
        self.order(move |front| front.each(target, |connection| connection.doomed = true));
    }

    /// Lets connections stand still: what is sent on them, either way, arrives when they are thawed.
    pub fn freeze(&self, target: Target, frozen: bool) {
        self.order(move |front| {
            if target == Target::All {
                front.frozen = frozen;
            }
            front.each(target, |connection| connection.frozen = frozen);
        });
    }

    /// Delays everything that clients are sent from now on.
    pub fn delay(&self, target: Target, delay: Duration) {
        self.order(move |front| {
            if target == Target::All {
                front.delay = delay;
            }
            front.each(target, |connection| connection.delay = delay);
        });
    }

    /// Lets the next reply to such a request be lost, and its connection with it, though the request itself is done.
    pub fn lose_reply(&self, target: Target, op: OpCode) {
        self.order(move |front| {
            let session = match target {
                Target::All => None,
                Target::Session(session) => Some(session),
            };
            front.core.lose_reply(session, op);
        });
    }

    /// Closes all connections and takes none until [`restart`](Self::restart). Meanwhile no session expires.
    pub fn halt(&self) {
        self.order(Front::halt);
    }

    /// Closes all connections and goes on with the same data on the same port; all sessions have their whole time once more.
    pub fn restart(&self) -> io::Result<()> {
        self.order(Front::restart).unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()))
    }

    fn order<T: Send + 'static>(&self, order: impl FnOnce(&mut Front) -> T + Send + 'static) -> Option<T> {
        let (done, result) = mpsc::channel();
        let order: Order = Box::new(move |front| drop(done.send(order(front))));
        self.orders.send(order).ok()?;
        self.waker.wake().ok()?;
        result.recv().ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.order(|front| front.is_over = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

const WAKER: Token = Token(0);
const LISTENER: Token = Token(1);
/// Connections have the numbers above.
const FIRST_CONNECTION: ConnectionId = 2;

/// What the thread has.
struct Front {
    poll: Poll,
    address: SocketAddr,
    started: Instant,
    core: Standalone,
    listener: Option<TcpListener>,
    connections: HashMap<ConnectionId, Connection>,
    next: ConnectionId,
    frozen: bool,
    delay: Duration,
    is_over: bool,
}

struct Connection {
    stream: TcpStream,
    frozen: bool,
    delay: Duration,
    /// What it is to be sent, and from when on.
    outgoing: VecDeque<(Time, Vec<u8>)>,
    /// It is closed as soon as nothing is outgoing.
    closing: bool,
    /// It is reset as soon as anybody looks.
    doomed: bool,
}

impl Front {
    fn new(poll: Poll, address: SocketAddr, mut settings: Settings) -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        settings.wall_origin_ms = i64::try_from(wall.as_millis()).unwrap_or(i64::MAX);
        settings.secret ^= u64::try_from(wall.as_nanos() & u128::from(u64::MAX)).unwrap_or_default();
        Self {
            poll,
            address,
            started: Instant::now(),
            core: Standalone::new(settings, Time::default()),
            listener: None,
            connections: HashMap::new(),
            next: FIRST_CONNECTION,
            frozen: false,
            delay: Duration::ZERO,
            is_over: false,
        }
    }

    fn run(mut self, orders: &mpsc::Receiver<Order>) {
        let mut events = Events::with_capacity(256);
        let mut buffer = vec![0; 64 * 1024];
        while !self.is_over {
            match self.poll.poll(&mut events, self.pause()) {
                Ok(()) => {}
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
            for event in &events {
                match event.token() {
                    WAKER => {}
                    LISTENER => self.accept(),
                    Token(id) => self.read(id as ConnectionId, &mut buffer),
                }
            }
            while let Ok(order) = orders.try_recv() {
                order(&mut self);
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

    fn now(&self) -> Time {
        Time::default() + self.started.elapsed()
    }

    fn pause(&self) -> Option<Duration> {
        let due = self.connections.values().filter(|connection| !connection.frozen);
        let outgoing = due.filter_map(|connection| connection.outgoing.front()).map(|&(at, _)| at);
        let now = self.now();
        let core = self.listener.as_ref().map(|_| self.core.next_timeout());
        // What is due already is waiting for room in a socket, which the poller reports.
        outgoing.filter(|&at| at > now).chain(core).min().map(|at| at - now)
    }

    fn listen(&mut self, listener: std::net::TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        self.poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        self.listener = Some(listener);
        Ok(())
    }

    fn halt(&mut self) {
        self.listener = None;
        self.connections.clear();
        self.core.restart(self.now());
    }

    fn restart(&mut self) -> io::Result<()> {
        self.halt();
        self.listen(std::net::TcpListener::bind(self.address)?)
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

    fn each(&mut self, target: Target, fault: impl Fn(&mut Connection)) {
        match target {
            Target::All => self.connections.values_mut().for_each(fault),
            Target::Session(session) => {
                let id = self.core.replica().connection_of(session);
                id.and_then(|id| self.connections.get_mut(&id)).into_iter().for_each(fault);
            }
        }
    }

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
            let (frozen, delay) = (self.frozen, self.delay);
            let connection =
                Connection { stream, frozen, delay, outgoing: VecDeque::new(), closing: false, doomed: false };
            self.connections.insert(id, connection);
            self.core.accept(self.now(), id, peer);
        }
    }

    fn read(&mut self, id: ConnectionId, buffer: &mut [u8]) {
        loop {
            let now = self.now();
            let Some(connection) = self.connections.get_mut(&id) else { return };
            if connection.frozen || connection.closing || connection.doomed {
                return;
            }
            match connection.stream.read(buffer) {
                Ok(count) if count > 0 => {
                    self.core.received(now, id, buffer.get(..count).unwrap_or_default());
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
                        connection.outgoing.push_back((now + connection.delay, bytes));
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
            if !connection.flush(now) {
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

impl Connection {
    /// Sends what is due. False if nothing more can be done with it.
    fn flush(&mut self, now: Time) -> bool {
        if self.doomed {
            // Its peer sees a reset, not an orderly end.
            let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
            return false;
        }
        if self.frozen {
            return true;
        }
        while let Some((at, bytes)) = self.outgoing.front_mut() {
            if *at > now {
                return true;
            }
            match self.stream.write(bytes) {
                Ok(count) if count == bytes.len() => drop(self.outgoing.pop_front()),
                Ok(count) if count > 0 => drop(bytes.drain(..count)),
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return true,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return false,
            }
        }
        !self.closing
    }
}

const fn token(id: ConnectionId) -> Token {
    Token(id as usize)
}
