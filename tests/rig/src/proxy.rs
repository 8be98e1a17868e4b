//! A TCP proxy between a client and a server, for everything a network does to a connection.

use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::port::Port;

/// A proxy on loopback. Faults are switched at run time and have taken effect when the call returns.
///
/// Dropping it resets all connections and waits for its threads.
pub struct Proxy {
    port: Port,
    shared: Arc<Shared>,
    acceptor: Mutex<Option<Acceptor>>,
}

/// Which way a frame travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server: a request.
    ToServer,
    /// From the server to the client: a reply or a notification.
    ToClient,
}

/// What becomes of a frame, and of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The frame goes on, as the hook left it.
    Forward,
    /// The frame is lost, the connection stays.
    Drop,
    /// The frame is lost, and both ends of the connection are reset.
    CutBefore,
    /// The frame goes on, then both ends of the connection are reset.
    CutAfter,
}

type Hook = Box<dyn FnMut(Direction, &mut Vec<u8>) -> Verdict + Send>;

impl Proxy {
    /// Starts a proxy to `target` (`host:port`) that understands ZooKeeper's frames: no frame is lost by half.
    pub fn start(target: &str) -> Self {
        Self::start_with(target, Units::Frames)
    }

    /// Starts a proxy to `target` that does not look into the stream, for TLS: hooks see bytes as they happen to arrive.
    pub fn start_opaque(target: &str) -> Self {
        Self::start_with(target, Units::Chunks)
    }

    /// Where clients connect to, `127.0.0.1:port`.
    pub fn address(&self) -> String {
        self.port.address()
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Resets all current connections: both ends see ECONNRESET.
    pub fn cut(&self) {
        self.shared.end_all(Ending::Reset);
    }

    /// Closes all current connections: both ends read an end of file.
    pub fn close_all(&self) {
        self.shared.end_all(Ending::Close);
    }

    /// Swallows everything, both ways, while it is on: frames, and the news that one end has closed. Connections stay
    /// open, new ones are accepted and stay silent for good.
    pub fn black_hole(&self, on: bool) {
        self.shared.black_hole.store(on, Ordering::SeqCst);
    }

    /// Refuses new connections (ECONNREFUSED) while it is on. Current ones stay.
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

    /// Asks `hook` what to do with each frame from now on. It sees the frame without its length and may change it.
    ///
    /// It is asked just before the frame is passed on (or lost), on a thread of the proxy, one frame at a time: it must not
    /// call the proxy.
    pub fn hook(&self, hook: impl FnMut(Direction, &mut Vec<u8>) -> Verdict + Send + 'static) {
        *self.shared.hook() = Some(Box::new(hook));
    }

    /// Forwards all frames again.
    pub fn unhook(&self) {
        *self.shared.hook() = None;
    }

    fn start_with(target: &str, units: Units) -> Self {
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            units,
            accepted: AtomicUsize::new(0),
            black_hole: AtomicBool::new(false),
            delays: Mutex::default(),
            hook: Mutex::new(None),
            links: Mutex::default(),
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

/// What is passed on, lost or delayed as a whole.
#[derive(Clone, Copy)]
enum Units {
    Frames,
    Chunks,
}

struct Shared {
    target: String,
    units: Units,
    accepted: AtomicUsize,
    black_hole: AtomicBool,
    delays: Mutex<[Duration; 2]>,
    hook: Mutex<Option<Hook>>,
    links: Mutex<Vec<Link>>,
}

impl Shared {
    fn accept(self: &Arc<Self>, client: TcpStream) {
        let mut links = self.links.lock().unwrap();
        links.retain(|link| !link.thread.is_finished());
        links.push(Link::start(Arc::clone(self), client));
        self.accepted.fetch_add(1, Ordering::SeqCst);
    }

    fn end_all(&self, ending: Ending) {
        let links: Vec<Link> = self.links.lock().unwrap().drain(..).collect();
        // First all orders, then all waits: the connections end together.
        let threads: Vec<_> = links.into_iter().map(|link| link.end(ending)).collect();
        for thread in threads {
            let _ = thread.join();
        }
    }

    fn hook(&self) -> MutexGuard<'_, Option<Hook>> {
        // A hook that panicked took its own connection down; the test's own assertion tells more.
        self.hook.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge(&self, direction: Direction, frame: &mut Vec<u8>) -> Verdict {
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

/// The listening half: gone while connections are refused.
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
        // SAFETY: the descriptor is open as long as `listener` lives. On Linux this wakes a blocked accept.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Close,
    Reset,
}

/// One connection through the proxy, as seen from outside its thread.
struct Link {
    orders: PipeWriter,
    thread: JoinHandle<()>,
}

impl Link {
    fn start(shared: Arc<Shared>, client: TcpStream) -> Self {
        let (orders_of_thread, orders) = io::pipe().expect("a pipe");
        let thread = thread::spawn(move || run(&shared, client, orders_of_thread));
        Self { orders, thread }
    }

    fn end(mut self, ending: Ending) -> JoinHandle<()> {
        // The thread may have ended already.
        let _ = self.orders.write_all(&[ending as u8]);
        self.thread
    }
}

/// The thread of one connection.
fn run(shared: &Shared, client: TcpStream, mut orders: PipeReader) {
    if shared.black_hole() {
        // The packets that would open a connection to the server are swallowed, too.
        return end(&[&client], next_order(&mut orders));
    }
    let Some(server) = connect(&shared.target) else {
        return end(&[&client], Ending::Reset);
    };
    for stream in [&client, &server] {
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
    }
    let ending = pump(shared, &client, &server, &mut orders);
    end(&[&client, &server], ending);
}

fn pump(shared: &Shared, client: &TcpStream, server: &TcpStream, orders: &mut PipeReader) -> Ending {
    let mut lanes = [
        Lane::new(shared, Direction::ToServer, client, server),
        Lane::new(shared, Direction::ToClient, server, client),
    ];
    loop {
        for lane in &mut lanes {
            if lane.step().is_err() {
                return Ending::Reset;
            }
        }
        if lanes.iter().all(|lane| lane.to_closed) {
            return Ending::Close;
        }
        if wait(&lanes, orders) {
            return next_order(orders);
        }
    }
}

/// Waits until a lane may go on; true if there is an order.
fn wait(lanes: &[Lane<'_>; 2], orders: &PipeReader) -> bool {
    let [first, second] = lanes;
    let mut fds = [
        poll_fd(orders.as_raw_fd(), libc::POLLIN),
        first.readable(),
        first.writable(),
        second.readable(),
        second.writable(),
    ];
    let wake = lanes.iter().filter_map(Lane::next_due).min();
    let timeout = wake.map_or(-1, |due| due.saturating_duration_since(Instant::now()).as_millis() as i32 + 1);
    // SAFETY: `fds` is an array of as many pollfds as its length says, and outlives the call.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
    fds[0].revents != 0
}

/// One direction of one connection.
struct Lane<'a> {
    shared: &'a Shared,
    direction: Direction,
    from: &'a TcpStream,
    to: &'a TcpStream,
    /// Bytes that are not yet a whole frame.
    input: Vec<u8>,
    /// What has arrived, and when it is due.
    queue: VecDeque<(Instant, Piece)>,
    /// A frame on its way out.
    output: Vec<u8>,
    cut_after_output: bool,
    from_ended: bool,
    to_closed: bool,
}

enum Piece {
    Unit(Vec<u8>),
    End(Ending),
}

/// The connection is to be reset.
struct Cut;

impl<'a> Lane<'a> {
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

    /// Takes in and passes on as much as there is and as is due.
    fn step(&mut self) -> Result<(), Cut> {
        self.receive();
        while self.flush()? && self.pass_on()? {}
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
                Ok(0) => self.ended(Ending::Close),
                Ok(length) => self.take_in(&chunk[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.ended(Ending::Reset),
            }
        }
    }

    fn ended(&mut self, ending: Ending) {
        self.from_ended = true;
        self.queue.push_back((self.shared.due(self.direction), Piece::End(ending)));
    }

    fn take_in(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        let due = self.shared.due(self.direction);
        while let Some(unit) = self.next_unit() {
            self.queue.push_back((due, Piece::Unit(unit)));
        }
    }

    fn next_unit(&mut self) -> Option<Vec<u8>> {
        match self.shared.units {
            Units::Chunks => (!self.input.is_empty()).then(|| std::mem::take(&mut self.input)),
            Units::Frames => {
                let end = 4 + u32::from_be_bytes(*self.input.first_chunk()?) as usize;
                (self.input.len() >= end).then(|| self.input.drain(..end).skip(4).collect())
            }
        }
    }

    /// Writes the current output; true once there is none.
    fn flush(&mut self) -> Result<bool, Cut> {
        while !self.output.is_empty() {
            match self.to.write(&self.output) {
                Ok(length) => drop(self.output.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Cut),
            }
        }
        if self.cut_after_output { Err(Cut) } else { Ok(true) }
    }

    /// Decides about the next piece that is due; false if there is none.
    fn pass_on(&mut self) -> Result<bool, Cut> {
        match self.queue.front() {
            Some((due, _)) if *due > Instant::now() => return Ok(false),
            Some((_, Piece::End(_))) if self.shared.black_hole() => return Ok(false),
            _ => {}
        }
        match self.queue.pop_front() {
            None => return Ok(false),
            Some((_, Piece::Unit(unit))) => self.decide(unit)?,
            Some((_, Piece::End(Ending::Reset))) => return Err(Cut),
            Some((_, Piece::End(Ending::Close))) => {
                let _ = self.to.shutdown(Shutdown::Write);
                self.to_closed = true;
            }
        }
        Ok(true)
    }

    fn decide(&mut self, mut unit: Vec<u8>) -> Result<(), Cut> {
        match self.shared.judge(self.direction, &mut unit) {
            Verdict::Forward => {}
            Verdict::Drop => return Ok(()),
            Verdict::CutBefore => return Err(Cut),
            Verdict::CutAfter => self.cut_after_output = true,
        }
        if matches!(self.shared.units, Units::Frames) {
            self.output.extend_from_slice(&u32::try_from(unit.len()).unwrap().to_be_bytes());
        }
        self.output.append(&mut unit);
        Ok(())
    }
}

fn connect(target: &str) -> Option<TcpStream> {
    let address = target.to_socket_addrs().ok()?.next()?;
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()
}

/// Waits for an order. An order giver that is gone means a reset.
fn next_order(orders: &mut PipeReader) -> Ending {
    let mut order = [Ending::Reset as u8];
    let _ = orders.read_exact(&mut order);
    if order == [Ending::Close as u8] { Ending::Close } else { Ending::Reset }
}

/// Ends both halves of a connection; the sockets close when their owner drops them.
fn end(streams: &[&TcpStream], ending: Ending) {
    for stream in streams {
        match ending {
            Ending::Close => drop(stream.shutdown(Shutdown::Both)),
            Ending::Reset => reset_on_close(stream),
        }
    }
}

fn reset_on_close(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let length = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: the option's value is a linger that outlives the call.
    unsafe {
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), length);
    }
}

fn poll_fd(fd: RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}
