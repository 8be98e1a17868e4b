//! A TCP proxy between a client and a server. It injects network faults into the connections.

use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::port::Port;

/// A proxy on loopback. A test switches faults on and off at run time. A fault is in effect when the call returns.
///
/// Dropping the proxy resets all connections and waits for its threads.
pub struct Proxy {
    port: Port,
    shared: Arc<Shared>,
    acceptor: Mutex<Option<Acceptor>>,
}

/// The direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server: a request.
    ToServer,
    /// From the server to the client: a reply or a notification.
    ToClient,
}

/// The fate of a frame and of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Forward the frame, with the changes of the hook.
    Forward,
    /// Drop the frame and keep the connection.
    Drop,
    /// Drop the frame and reset both ends of the connection.
    CutBefore,
    /// Forward the frame, then reset both ends of the connection.
    CutAfter,
}

type Hook = Box<dyn FnMut(Direction, &mut Vec<u8>) -> Verdict + Send>;

impl Proxy {
    /// Starts a proxy to `target` (`host:port`) that recognizes ZooKeeper's frames. It never drops a part of a frame.
    pub fn start(target: &str) -> Self {
        Self::start_with(target, Framing::Frames)
    }

    /// Starts a proxy to `target` that does not interpret the stream, for TLS. Hooks receive the bytes in chunks, as
    /// they arrive.
    pub fn start_opaque(target: &str) -> Self {
        Self::start_with(target, Framing::Chunks)
    }

    /// The address that clients connect to, `127.0.0.1:port`.
    pub fn address(&self) -> String {
        self.port.address()
    }

    /// The number of connections accepted so far.
    pub fn accepted_count(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Resets all current connections: both ends see ECONNRESET.
    pub fn cut(&self) {
        self.shared.end_all(CloseKind::Reset);
    }

    /// Closes all current connections: both ends read an end of file.
    pub fn close_all(&self) {
        self.shared.end_all(CloseKind::Close);
    }

    /// While on, swallows everything in both directions: the frames, and the end of either side. Connections stay open.
    /// New connections are accepted but stay silent, even after the fault ends.
    pub fn black_hole(&self, on: bool) {
        self.shared.black_hole.store(on, Ordering::SeqCst);
    }

    /// While on, refuses new connections (ECONNREFUSED). Current connections stay.
    pub fn refuse(&self, on: bool) {
        let mut acceptor = self.acceptor.lock().unwrap();
        if on {
            acceptor.take();
        } else if acceptor.is_none() {
            *acceptor = Some(Acceptor::start(&self.port, &self.shared));
        }
    }

    /// Delays every frame that arrives from now on in one direction.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.shared.delays.lock().unwrap()[direction as usize] = delay;
    }

    /// Calls `hook` for each frame from now on, to decide what to do with it. The hook receives the frame without its
    /// length prefix and may change it.
    ///
    /// A thread of the proxy calls the hook just before it forwards or drops the frame, one frame at a time. The hook
    /// must not call methods of the proxy.
    pub fn hook(&self, hook: impl FnMut(Direction, &mut Vec<u8>) -> Verdict + Send + 'static) {
        *self.shared.hook() = Some(Box::new(hook));
    }

    /// Removes the hook: the proxy forwards all frames again.
    pub fn unhook(&self) {
        *self.shared.hook() = None;
    }

    fn start_with(target: &str, framing: Framing) -> Self {
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            units: framing,
            accepted: AtomicUsize::new(0),
            black_hole: AtomicBool::new(false),
            delays: Mutex::default(),
            hook: Mutex::new(None),
            connections: Mutex::default(),
        });
        let proxy = Self { port: Port::reserve(), shared, acceptor: Mutex::new(None) };
        proxy.refuse(false);
        proxy
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.refuse(true);
        self.cut();
    }
}

/// The unit that the proxy forwards, drops or delays.
#[derive(Clone, Copy)]
enum Framing {
    Frames,
    Chunks,
}

struct Shared {
    target: String,
    units: Framing,
    accepted: AtomicUsize,
    black_hole: AtomicBool,
    delays: Mutex<[Duration; 2]>,
    hook: Mutex<Option<Hook>>,
    connections: Mutex<Vec<ProxiedConnection>>,
}

impl Shared {
    fn accept(self: &Arc<Self>, client: TcpStream) {
        let mut links = self.connections.lock().unwrap();
        links.retain(|link| !link.thread.is_finished());
        links.push(ProxiedConnection::start(Arc::clone(self), client));
        self.accepted.fetch_add(1, Ordering::SeqCst);
    }

    fn end_all(&self, ending: CloseKind) {
        let links: Vec<ProxiedConnection> = self.connections.lock().unwrap().drain(..).collect();
        // First send all commands, then wait for all threads, so that the connections end together.
        let threads: Vec<_> = links.into_iter().map(|link| link.end(ending)).collect();
        for thread in threads {
            let _ = thread.join();
        }
    }

    fn hook(&self) -> MutexGuard<'_, Option<Hook>> {
        // A hook that panicked has ended its own connection. The assertion of the test reports the failure in more
        // detail.
        self.hook.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn verdict(&self, direction: Direction, frame: &mut Vec<u8>) -> Verdict {
        if self.black_hole() {
            return Verdict::Drop;
        }
        self.hook().as_mut().map_or(Verdict::Forward, |hook| hook(direction, frame))
    }

    fn black_hole(&self) -> bool {
        self.black_hole.load(Ordering::SeqCst)
    }

    fn due(&self, direction: Direction) -> Instant {
        Instant::now() + self.delays.lock().unwrap()[direction as usize]
    }
}

/// The listener of the proxy. It does not exist while connections are refused.
struct Acceptor {
    listener: Arc<TcpListener>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    fn start(port: &Port, shared: &Arc<Shared>) -> Self {
        let listener = Arc::new(TcpListener::bind(port.address()).expect("listen on a reserved port"));
        let (of_thread, shared) = (Arc::clone(&listener), Arc::clone(shared));
        let thread = thread::spawn(move || {
            while let Ok((client, _)) = of_thread.accept() {
                shared.accept(client);
            }
        });
        Self { listener, thread: Some(thread) }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        // SAFETY: The descriptor stays open while `listener` exists. On Linux this call wakes a blocked accept.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CloseKind {
    Close,
    Reset,
}

/// One connection through the proxy, as seen from outside its thread.
struct ProxiedConnection {
    commands: PipeWriter,
    thread: JoinHandle<()>,
}

impl ProxiedConnection {
    fn start(shared: Arc<Shared>, client: TcpStream) -> Self {
        let (orders_of_thread, commands) = io::pipe().expect("a pipe");
        let thread = thread::spawn(move || run(&shared, client, orders_of_thread));
        Self { commands, thread }
    }

    fn end(mut self, ending: CloseKind) -> JoinHandle<()> {
        // The thread may have ended already.
        let _ = self.commands.write_all(&[ending as u8]);
        self.thread
    }
}

/// Runs the thread of one connection.
fn run(shared: &Shared, client: TcpStream, mut commands: PipeReader) {
    if shared.black_hole() {
        // The black hole also swallows the packets that would open the connection to the server.
        return end(&[&client], next_command(&mut commands));
    }
    let Some(server) = connect(&shared.target) else {
        return end(&[&client], CloseKind::Reset);
    };
    for stream in [&client, &server] {
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
    }
    let ending = pump(shared, &client, &server, &mut commands);
    end(&[&client, &server], ending);
}

fn pump(shared: &Shared, client: &TcpStream, server: &TcpStream, commands: &mut PipeReader) -> CloseKind {
    let mut pipes = [
        Pipe::new(shared, Direction::ToServer, client, server),
        Pipe::new(shared, Direction::ToClient, server, client),
    ];
    loop {
        for lane in &mut pipes {
            if lane.step().is_err() {
                return CloseKind::Reset;
            }
        }
        if pipes.iter().all(|lane| lane.to_closed) {
            return CloseKind::Close;
        }
        if wait(&pipes, commands) {
            return next_command(commands);
        }
    }
}

/// Waits until one of the directions can continue. Returns true if a command has arrived.
fn wait(pipes: &[Pipe<'_>; 2], commands: &PipeReader) -> bool {
    let [first, second] = pipes;
    let mut fds = [
        poll_fd(commands.as_raw_fd(), libc::POLLIN),
        first.readable(),
        first.writable(),
        second.readable(),
        second.writable(),
    ];
    let wake = pipes.iter().filter_map(Pipe::next_due).min();
    let timeout = wake.map_or(-1, |due| due.saturating_duration_since(Instant::now()).as_millis() as i32 + 1);
    // SAFETY: `fds` is an array of `fds.len()` pollfds and outlives the call.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
    fds[0].revents != 0
}

/// One direction of one connection.
struct Pipe<'a> {
    shared: &'a Shared,
    direction: Direction,
    from: &'a TcpStream,
    to: &'a TcpStream,
    /// Received bytes that do not yet form a complete frame.
    input: Vec<u8>,
    /// The received frames, each with the time at which it is due.
    queue: VecDeque<(Instant, Piece)>,
    /// The frame that is being written.
    output: Vec<u8>,
    cut_after_output: bool,
    from_ended: bool,
    to_closed: bool,
}

enum Piece {
    Unit(Vec<u8>),
    End(CloseKind),
}

/// An error that requires a reset of the connection.
struct ResetRequired;

impl<'a> Pipe<'a> {
    fn new(shared: &'a Shared, direction: Direction, from: &'a TcpStream, to: &'a TcpStream) -> Self {
        Self {
            shared,
            direction,
            from,
            to,
            input: Vec::new(),
            queue: VecDeque::new(),
            output: Vec::new(),
            cut_after_output: false,
            from_ended: false,
            to_closed: false,
        }
    }

    /// Reads everything that has arrived, and forwards everything that is due.
    fn step(&mut self) -> Result<(), ResetRequired> {
        self.receive();
        while self.flush()? && self.forward_next()? {}
        Ok(())
    }

    fn readable(&self) -> libc::pollfd {
        poll_fd(if self.from_ended { -1 } else { self.from.as_raw_fd() }, libc::POLLIN)
    }

    fn writable(&self) -> libc::pollfd {
        poll_fd(if self.output.is_empty() { -1 } else { self.to.as_raw_fd() }, libc::POLLOUT)
    }

    fn next_due(&self) -> Option<Instant> {
        if !self.output.is_empty() {
            return None;
        }
        let held = self.shared.black_hole().then(|| Instant::now() + Duration::from_millis(5));
        self.queue.front().map(|(due, _)| held.map_or(*due, |held| held.max(*due)))
    }

    fn receive(&mut self) {
        let mut chunk = [0; 16 * 1024];
        while !self.from_ended {
            match self.from.read(&mut chunk) {
                Ok(0) => self.source_ended(CloseKind::Close),
                Ok(length) => self.queue_units(&chunk[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.source_ended(CloseKind::Reset),
            }
        }
    }

    fn source_ended(&mut self, ending: CloseKind) {
        self.from_ended = true;
        self.queue.push_back((self.shared.due(self.direction), Piece::End(ending)));
    }

    /// Ends this direction only. The other direction first forwards what the receiver sent before it closed the
    /// connection.
    fn receiver_ended(&mut self) {
        self.from_ended = true;
        self.queue.clear();
        self.output.clear();
        self.to_closed = true;
    }

    fn queue_units(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        let due = self.shared.due(self.direction);
        while let Some(unit) = self.next_unit() {
            self.queue.push_back((due, Piece::Unit(unit)));
        }
    }

    fn next_unit(&mut self) -> Option<Vec<u8>> {
        match self.shared.units {
            Framing::Chunks => (!self.input.is_empty()).then(|| std::mem::take(&mut self.input)),
            Framing::Frames => {
                let end = 4 + u32::from_be_bytes(*self.input.first_chunk()?) as usize;
                (self.input.len() >= end).then(|| self.input.drain(..end).skip(4).collect())
            }
        }
    }

    /// Writes the current output. Returns true when all of it is written or the receiver has closed the connection.
    fn flush(&mut self) -> Result<bool, ResetRequired> {
        while !self.output.is_empty() {
            match self.to.write(&self.output) {
                Ok(length) => drop(self.output.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.receiver_ended(),
            }
        }
        if self.cut_after_output { Err(ResetRequired) } else { Ok(true) }
    }

    /// Forwards or drops the next item of the queue that is due. Returns false if there is none.
    fn forward_next(&mut self) -> Result<bool, ResetRequired> {
        match self.queue.front() {
            Some((due, _)) if *due > Instant::now() => return Ok(false),
            Some((_, Piece::End(_))) if self.shared.black_hole() => return Ok(false),
            _ => {}
        }
        match self.queue.pop_front() {
            None => return Ok(false),
            Some((_, Piece::Unit(unit))) => self.apply_verdict(unit)?,
            Some((_, Piece::End(CloseKind::Reset))) => return Err(ResetRequired),
            Some((_, Piece::End(CloseKind::Close))) => {
                let _ = self.to.shutdown(Shutdown::Write);
                self.to_closed = true;
            }
        }
        Ok(true)
    }

    fn apply_verdict(&mut self, mut unit: Vec<u8>) -> Result<(), ResetRequired> {
        match self.shared.verdict(self.direction, &mut unit) {
            Verdict::Forward => {}
            Verdict::Drop => return Ok(()),
            Verdict::CutBefore => return Err(ResetRequired),
            Verdict::CutAfter => self.cut_after_output = true,
        }
        if matches!(self.shared.units, Framing::Frames) {
            self.output.extend_from_slice(&u32::try_from(unit.len()).unwrap().to_be_bytes());
        }
        self.output.append(&mut unit);
        Ok(())
    }
}

fn connect(target: &str) -> Option<TcpStream> {
    let address = target.to_socket_addrs().ok()?.next()?;
    // If the queue of a busy server is full, the kernel repeats the packet that opens a connection after one second, and
    // after two more.
    TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()
}

/// Waits for a command. If the sender is gone, the command is a reset.
fn next_command(commands: &mut PipeReader) -> CloseKind {
    let mut order = [CloseKind::Reset as u8];
    let _ = commands.read_exact(&mut order);
    if order == [CloseKind::Close as u8] { CloseKind::Close } else { CloseKind::Reset }
}

/// Ends both halves of a connection. Each socket closes when its owner drops it.
fn end(streams: &[&TcpStream], ending: CloseKind) {
    for stream in streams {
        match ending {
            CloseKind::Close => drop(stream.shutdown(Shutdown::Both)),
            CloseKind::Reset => reset_on_close(stream),
        }
    }
}

fn reset_on_close(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let length = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: The value of the option is a linger that outlives the call.
    unsafe {
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), length);
    }
}

fn poll_fd(fd: RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}
