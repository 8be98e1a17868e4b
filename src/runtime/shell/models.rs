//! What may happen to a call at the same time: its answer comes, its caller's deadline passes, somebody cancels it, the client is
//! closed. Loom tries every order. In each the caller wakes, with the one answer that the engine gave, and nothing of the call
//! is left; and whoever was the reader, the socket is read.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use loom::thread;

use super::*;
use crate::engine::{Owner, Patience, Recipe};
use crate::proto::{
    Code, ConnectResponse, CreateMode, Frames, OpCode, Request, Response, Stat, XID_PING, encode_error,
};
use crate::recipe::Mode;
use crate::runtime::outlet::{Caller as Handlers, Outlet};
use crate::runtime::wire::Wire;
use crate::session::{ConnectString, SessionConfig};

#[test]
fn an_answer_wakes_its_caller() {
    let ends = ends_of(Patience::Forever, |call| {
        let server = thread::spawn({
            let shell = Arc::clone(&call.shell);
            move || refuse(&shell)
        });
        let answer = call.wait();
        server.join().unwrap();
        answer
    });
    assert_eq!(ends, [Status::Denied.name()]);
}

#[test]
fn a_hook_that_is_set_while_the_answer_comes_is_run_once() {
    let ends = ends_of(Patience::Forever, |call| {
        let server = thread::spawn({
            let shell = Arc::clone(&call.shell);
            move || refuse(&shell)
        });
        let count = Arc::new(AtomicUsize::new(0));
        let hook = Arc::clone(&count);
        let run = move || {
            hook.fetch_add(1, Ordering::SeqCst);
        };
        call.on_done(Box::new(run)).unwrap();
        server.join().unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 1);
        assert!(call.is_over());
        call.wait()
    });
    assert_eq!(ends, [Status::Denied.name()]);
}

#[test]
fn an_answer_and_the_deadline_at_once() {
    let ends = ends_of(Patience::Until(clock::now()), |call| {
        let server = thread::spawn({
            let shell = Arc::clone(&call.shell);
            move || refuse(&shell)
        });
        let answer = call.wait();
        server.join().unwrap();
        answer
    });
    assert_eq!(ends, [Status::Denied.name(), LATE]);
}

#[test]
fn the_callers_deadline_and_the_io_threads_at_once() {
    let ends = ends_of(Patience::Until(clock::now()), |call| {
        let thread = thread::spawn({
            let shell = Arc::clone(&call.shell);
            move || {
                shell.tick();
            }
        });
        let answer = call.wait();
        thread.join().unwrap();
        answer
    });
    assert_eq!(ends, [LATE]);
}

#[test]
fn a_call_is_made_while_the_client_is_closed() {
    loom::model(|| {
        let shell = connected();
        let closer = thread::spawn({
            let shell = Arc::clone(&shell);
            move || close(&shell)
        });
        let call = acquire(&shell, Patience::Forever);
        assert_eq!(call.wait().unwrap_err().status(), Status::Closed);
        closer.join().unwrap();
    });
}

#[test]
fn slices_pass_while_a_call_is_cancelled() {
    let ends = ends_of(Patience::Forever, |call| {
        assert!(call.wait_for(Duration::from_millis(100)).is_none());
        let canceler = thread::spawn({
            let call = Arc::clone(&call);
            move || call.shell.cancel(call.op)
        });
        loop {
            if let Some(answer) = call.wait_for(Duration::from_millis(100)) {
                canceler.join().unwrap();
                return answer;
            }
        }
    });
    assert_eq!(ends, [Status::Canceled.name()]);
}

#[test]
fn a_cancel_a_close_and_the_deadline_at_once() {
    let ends = ends_of(Patience::Until(clock::now()), |call| {
        let canceler = thread::spawn({
            let call = Arc::clone(&call);
            move || call.shell.cancel(call.op)
        });
        let closer = thread::spawn({
            let shell = Arc::clone(&call.shell);
            move || close(&shell)
        });
        let answer = call.wait();
        canceler.join().unwrap();
        closer.join().unwrap();
        answer
    });
    assert_eq!(ends, [Status::Canceled.name(), Status::Closed.name(), LATE]);
}

#[test]
fn who_waits_reads_the_answer_itself_or_finds_that_the_io_thread_did() {
    let ends = ends_at_a_socket(|world| {
        let call = world.acquire();
        let server = world.thread(|world| world.refuse());
        let end = call.wait();
        server.join().unwrap();
        end
    });
    assert_eq!(ends, [Status::Denied.name()]);
}

#[test]
fn the_reader_is_woken_by_a_cancel() {
    let ends = ends_at_a_socket(|world| {
        let call = Arc::new(world.acquire());
        let canceler = world.thread({
            let call = Arc::clone(&call);
            move |_| call.shell.cancel(call.op)
        });
        let end = call.wait();
        canceler.join().unwrap();
        end
    });
    assert_eq!(ends, [Status::Canceled.name()]);
}

#[test]
fn the_reader_is_woken_by_a_close() {
    let ends = ends_at_a_socket(|world| {
        let call = world.acquire();
        let closer = world.thread(|world| close(&world.shell));
        let end = call.wait();
        closer.join().unwrap();
        end
    });
    assert_eq!(ends, [Status::Closed.name()]);
}

#[test]
fn a_reader_whose_slice_is_over_gives_the_socket_back() {
    let ends = ends_at_a_socket(|world| {
        let call = world.acquire();
        let server = world.thread(|world| world.refuse());
        // So long that it never passes by the clock: loom would not know it again.
        let slice = call.wait_for(Duration::from_secs(1000));
        // The I/O thread reads meanwhile.
        server.join().unwrap();
        slice.unwrap_or_else(|| call.wait())
    });
    assert_eq!(ends, [Status::Denied.name()]);
}

#[test]
fn one_of_two_reads_and_both_are_answered() {
    let ends = ends_at_a_socket(|world| {
        let (first, second) = (world.acquire(), world.acquire());
        let other = world.thread(move |_| second.wait());
        world.refuse();
        let end = first.wait();
        assert_eq!(other.join().unwrap().unwrap_err().status(), Status::Denied);
        end
    });
    assert_eq!(ends, [Status::Denied.name()]);
}

#[test]
fn a_call_is_answered_while_another_is_read_for() {
    let ends = ends_at_a_socket(|world| {
        let (first, second) = (world.acquire(), world.acquire());
        let other = world.thread(move |world| {
            world.shell.cancel(second.op);
            second.wait()
        });
        world.refuse();
        let end = first.wait();
        let other = other.join().unwrap().unwrap_err().status();
        assert!(matches!(other, Status::Canceled | Status::Denied));
        end
    });
    assert_eq!(ends, [Status::Denied.name()]);
}

/// A client with a connection, and an I/O thread.
struct World {
    shell: Arc<Shell>,
    wire: Arc<Wire>,
}

/// All the ways in which it ends.
fn ends_at_a_socket(scene: impl Fn(&Arc<World>) -> Result<Answer> + Send + Sync + 'static) -> Vec<&'static str> {
    let seen = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let ends = Arc::clone(&seen);
    loom::model(move || {
        let world = Arc::new(World::new());
        let io_thread = world.thread(|world| {
            while world.wire.poll() {
                world.shell.ready();
            }
        });
        let end = scene(&world).unwrap_err().status();
        assert!(lock(&world.shell.state).reader.is_none(), "nobody gives the socket back");
        world.wire.end();
        io_thread.join().unwrap();
        ends.lock().unwrap().insert(end.name());
    });
    let seen = seen.lock().unwrap();
    seen.iter().copied().collect()
}

impl World {
    fn new() -> Self {
        let shell = connected();
        let mut state = lock(&shell.state);
        let wire = Arc::clone(&state.lookout.as_ref().unwrap().wire);
        state.link = Link::Open(Connection::over(&wire));
        drop(state);
        shell.tell(|_, _| {}).unwrap();
        Self { shell, wire }
    }

    fn acquire(&self) -> Pending {
        acquire(&self.shell, Patience::Forever)
    }

    /// The server refuses all that it was asked, one after the other.
    fn refuse(&self) {
        let mut asked = self.wire.take_output();
        while !asked.is_empty() {
            self.wire.arrive(&refusal(&mut asked));
        }
    }

    fn thread<T: 'static>(self: &Arc<Self>, work: impl FnOnce(&Self) -> T + 'static) -> thread::JoinHandle<T> {
        let world = Arc::clone(self);
        thread::spawn(move || work(&world))
    }
}

/// TIMEOUT or CONNECTION, depending on how long the server has been silent.
const LATE: &str = "late";

/// All the ways in which an acquire may end that is waited for like this.
fn ends_of(
    patience: Patience,
    wait: impl Fn(Arc<Pending>) -> Result<Answer> + Send + Sync + 'static,
) -> Vec<&'static str> {
    let seen = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let ends = Arc::clone(&seen);
    loom::model(move || {
        let call = Arc::new(acquire(&connected(), patience));
        let end = match wait(Arc::clone(&call)).unwrap_err().status() {
            Status::Timeout | Status::Connection => LATE,
            status => status.name(),
        };
        assert!(!lock(&call.shell.state).callers.contains_key(&call.op));
        assert!(call.waiter.wait(Some(Duration::ZERO)).is_none());
        ends.lock().unwrap().insert(end);
    });
    let seen = seen.lock().unwrap();
    seen.iter().copied().collect()
}

/// A client with a session, whose I/O thread and server the models are.
pub(crate) fn connected() -> Arc<Shell> {
    let now = clock::now();
    let config = SessionConfig {
        timeout: Duration::from_secs(1000),
        lease_margin: None,
        auth: Vec::new(),
        frame_limit: 1 << 20,
        limits: crate::Limits::default(),
    };
    let target = ConnectString::parse("127.0.0.1:1").unwrap();
    let mut engine = Engine::new(target, config, now, Box::new(|| 7));
    engine.connect(now, now + Duration::from_secs(1000));
    engine.advance(now);
    while engine.poll_command().is_some() {}
    engine.connected(now, "127.0.0.1");
    let welcome = ConnectResponse {
        protocol_version: 0,
        timeout_ms: 1_000_000,
        session_id: 1,
        password: vec![0; 16],
        read_only: false,
    };
    let mut bytes = Vec::new();
    welcome.encode(&mut bytes);
    assert!(engine.received(now, &bytes).is_continue());
    assert!(engine.poll_answer().is_some());
    engine.output().clear();
    let outlet = Arc::new(Outlet::new(Handlers::None, None));
    Shell::new(engine, Token(1), None, outlet, Lookout::new().unwrap())
}

fn acquire(shell: &Arc<Shell>, patience: Patience) -> Pending {
    let mut lock = 0;
    shell.tell(|engine, _| lock = engine.add_lock("/lock", Recipe::Queue(Mode::Mutex))).unwrap();
    let deadline = if let Patience::Until(deadline) = patience { Some(deadline) } else { None };
    shell.call(deadline, |engine, now| engine.acquire(now, lock, Owner::current_thread(), patience)).unwrap()
}

pub(crate) fn close(shell: &Arc<Shell>) {
    shell.call(None, |engine, now| engine.close(now)).unwrap();
}

/// The server refuses what it was asked first.
pub(crate) fn refuse(shell: &Shell) {
    shell.with(|engine, now| {
        let bytes = refusal(engine.output());
        assert!(engine.received(now, &bytes).is_continue());
    });
}

/// The answer to the first of these requests, which is taken away.
fn refusal(requests: &mut Vec<u8>) -> Vec<u8> {
    let frame = 4 + usize::try_from(u32::from_be_bytes(requests[..4].try_into().unwrap())).unwrap();
    let request: Vec<u8> = requests.drain(..frame).collect();
    let xid = i32::from_be_bytes(request[4..8].try_into().unwrap());
    let mut bytes = Vec::new();
    encode_error(xid, 1, Code::NO_AUTH, &mut bytes);
    bytes
}

/// A server that knows one client, and does what it is asked.
#[derive(Default)]
pub(crate) struct Server {
    /// Of sessions, with their numbers.
    nodes: Vec<(String, i64)>,
    last: i64,
}

impl Server {
    /// Answers all that was asked, and what is asked then, as one step.
    pub(crate) fn serve(&mut self, shell: &Shell) {
        shell.with(|engine, now| {
            while !engine.output().is_empty() {
                let mut frames = Frames::new(1 << 20);
                frames.push(&std::mem::take(engine.output()));
                while let Some(body) = frames.next().unwrap() {
                    let (xid, request) = Request::decode(&body).unwrap();
                    let goes_on = engine.received(now, &self.answer(xid, &request)).is_continue();
                    assert!(goes_on || request == Request::CloseSession, "{request:?}");
                }
            }
        });
    }

    /// Whether the client has no node left.
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    fn answer(&mut self, xid: i32, request: &Request) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.last += i64::from(xid != XID_PING);
        match self.response(request) {
            Ok(response) => response.encode(xid, self.last, &mut bytes).unwrap(),
            Err(code) => encode_error(xid, self.last, code, &mut bytes),
        }
        bytes
    }

    fn response(&mut self, request: &Request) -> std::result::Result<Response, Code> {
        Ok(match request {
            Request::Create { path, mode, .. } | Request::Create2 { path, mode, .. } => {
                let (path, stat) = self.create(path, *mode);
                match request.op() {
                    OpCode::Create => Response::Path(path),
                    _ => Response::Create2 { path, stat },
                }
            }
            Request::Delete { path, .. } => {
                let at = self.nodes.iter().position(|(node, _)| node == path).ok_or(Code::NO_NODE)?;
                self.nodes.remove(at);
                Response::Empty
            }
            Request::GetChildren { .. } => Response::Children(self.names()),
            Request::GetChildren2 { .. } => Response::Children2 { children: self.names(), stat: Stat::default() },
            Request::Exists { path, .. } => Response::Stat(self.stat(path)?),
            Request::GetData { path, .. } => Response::Data { data: Some(Vec::new()), stat: self.stat(path)? },
            Request::Sync { path } => Response::Path(path.clone()),
            Request::Ping | Request::CloseSession => Response::Empty,
            other => panic!("the server is not asked this: {other:?}"),
        })
    }

    fn create(&mut self, path: &str, mode: CreateMode) -> (String, Stat) {
        let stat = Stat { czxid: self.last, ephemeral_owner: 1, ..Stat::default() };
        if mode != CreateMode::EphemeralSequential {
            return (path.to_owned(), stat);
        }
        let path = format!("{path}{:010}", self.last);
        self.nodes.push((path.clone(), self.last));
        (path, stat)
    }

    fn stat(&self, path: &str) -> std::result::Result<Stat, Code> {
        let (_, czxid) = self.nodes.iter().find(|(node, _)| node == path).ok_or(Code::NO_NODE)?;
        Ok(Stat { czxid: *czxid, ephemeral_owner: 1, ..Stat::default() })
    }

    fn names(&self) -> Vec<String> {
        self.nodes.iter().map(|(path, _)| path.rsplit('/').next().unwrap().to_owned()).collect()
    }
}
