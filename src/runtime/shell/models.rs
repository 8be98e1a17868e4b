//! Loom models of an operation. Several events can occur at the same time: the answer arrives, the deadline passes, a
//! thread cancels the operation, or the client is closed. Loom tries every order of these events. Whatever the order,
//! the engine must answer the operation exactly once, and the waiting thread must return that answer. Afterwards, the
//! shell must have removed the operation, and one of the threads must continue to read the socket.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use loom::thread;
use zklock_core::engine::{AcquireLimit, CLOSE_LIMIT, Owner, Recipe};
use zklock_core::recipe::Mode;
use zklock_core::session::{ConnectString, ConnectionEvent, SessionConfig};
use zklock_proto::{
    Code, ConnectResponse, CreateMode, Frames, OpCode, Request, Response, Stat, XID_PING, encode_error,
};

use super::*;
use crate::runtime::callback_dispatcher::CallbackDispatcher;
use crate::runtime::event_delivery::EventDelivery;
use crate::runtime::model_socket::ModelSocket;
use crate::runtime::pending_op::PendingOp;

#[test]
fn answer_wakes_waiting_thread() {
    let ends = ends_of(AcquireLimit::Unlimited, |call| {
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
    let ends = ends_of(AcquireLimit::Unlimited, |call| {
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
    let ends = ends_of(AcquireLimit::Until(clock::now()), |call| {
        let server = thread::spawn({
            let shell = Arc::clone(&call.shell);
            move || refuse(&shell)
        });
        let answer = call.wait();
        server.join().unwrap();
        answer
    });
    assert_eq!(ends, [Status::Denied.name(), TIMED_OUT]);
}

#[test]
fn the_callers_deadline_and_the_io_threads_at_once() {
    let ends = ends_of(AcquireLimit::Until(clock::now()), |call| {
        let thread = thread::spawn({
            let shell = Arc::clone(&call.shell);
            move || {
                shell.on_timer();
            }
        });
        let answer = call.wait();
        thread.join().unwrap();
        answer
    });
    assert_eq!(ends, [TIMED_OUT]);
}

#[test]
fn a_call_is_made_while_the_client_is_closed() {
    loom::model(|| {
        let shell = connected();
        let closer = thread::spawn({
            let shell = Arc::clone(&shell);
            move || close(&shell)
        });
        let call = acquire(&shell, AcquireLimit::Unlimited);
        assert_eq!(call.wait().unwrap_err().status(), Status::Closed);
        closer.join().unwrap();
    });
}

#[test]
fn cancel_between_slices_returns_canceled() {
    let ends = ends_of(AcquireLimit::Unlimited, |call| {
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
    let ends = ends_of(AcquireLimit::Until(clock::now()), |call| {
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
    assert_eq!(ends, [Status::Canceled.name(), Status::Closed.name(), TIMED_OUT]);
}

#[test]
fn answer_is_read_by_waiting_thread_or_io_thread() {
    let ends = ends_at_a_socket(|client| {
        let call = client.acquire();
        let server = client.thread(|client| client.refuse());
        let end = call.wait();
        server.join().unwrap();
        end
    });
    assert_eq!(ends, [Status::Denied.name()]);
}

#[test]
fn the_reader_is_woken_by_a_cancel() {
    let ends = ends_at_a_socket(|client| {
        let call = Arc::new(client.acquire());
        let canceler = client.thread({
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
    let ends = ends_at_a_socket(|client| {
        let call = client.acquire();
        let closer = client.thread(|client| close(&client.shell));
        let end = call.wait();
        closer.join().unwrap();
        end
    });
    assert_eq!(ends, [Status::Closed.name()]);
}

#[test]
fn reader_returns_socket_after_its_slice() {
    let ends = ends_at_a_socket(|client| {
        let call = client.acquire();
        let server = client.thread(|client| client.refuse());
        // The time limit is so long that it never passes, because loom cannot repeat a run that depends on the real
        // clock.
        let slice = call.wait_for(Duration::from_secs(1000));
        // While this thread waits, the I/O thread reads the socket.
        server.join().unwrap();
        slice.unwrap_or_else(|| call.wait())
    });
    assert_eq!(ends, [Status::Denied.name()]);
}

#[test]
fn one_of_two_reads_and_both_are_answered() {
    let ends = ends_at_a_socket(|client| {
        let (first, second) = (client.acquire(), client.acquire());
        let other = client.thread(move |_| second.wait());
        client.refuse();
        let end = first.wait();
        assert_eq!(other.join().unwrap().unwrap_err().status(), Status::Denied);
        end
    });
    assert_eq!(ends, [Status::Denied.name()]);
}

#[test]
fn answer_for_another_call_does_not_end_the_reader() {
    let ends = ends_at_a_socket(|client| {
        let (first, second) = (client.acquire(), client.acquire());
        let other = client.thread(move |client| {
            client.shell.cancel(second.op);
            second.wait()
        });
        client.refuse();
        let end = first.wait();
        let other = other.join().unwrap().unwrap_err().status();
        assert!(matches!(other, Status::Canceled | Status::Denied));
        end
    });
    assert_eq!(ends, [Status::Denied.name()]);
}

/// A client with a connection, and an I/O thread.
struct ConnectedClient {
    shell: Arc<Shell>,
    wire: Arc<ModelSocket>,
}

/// Runs `scene` once for each possible interleaving of its threads' steps. Returns the name of each result that
/// occurred.
fn ends_at_a_socket(
    scene: impl Fn(&Arc<ConnectedClient>) -> Result<Answer> + Send + Sync + 'static,
) -> Vec<&'static str> {
    let seen = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let ends = Arc::clone(&seen);
    loom::model(move || {
        let client = Arc::new(ConnectedClient::new());
        let io_thread = client.thread(|client| {
            while client.wire.wait_until_reported() {
                client.shell.on_ready();
            }
        });
        let end = scene(&client).unwrap_err().status();
        assert!(lock(&client.shell.state).reader.is_none(), "no thread has returned the socket");
        client.wire.shut_down();
        io_thread.join().unwrap();
        ends.lock().unwrap().insert(end.name());
    });
    let seen = seen.lock().unwrap();
    seen.iter().copied().collect()
}

impl ConnectedClient {
    fn new() -> Self {
        let shell = connected();
        let mut ends = lock(&shell.state);
        let socket = Arc::clone(&ends.socket_waiter.as_ref().unwrap().wire);
        ends.socket_state = SocketState::Connected(Connection::from_socket(&socket));
        drop(ends);
        shell.update_engine(|_, _| {}).unwrap();
        Self { shell, wire: socket }
    }

    fn acquire(&self) -> PendingOp {
        acquire(&self.shell, AcquireLimit::Unlimited)
    }

    /// Makes the server refuse all requests that it has received, one after the other.
    fn refuse(&self) {
        let mut asked = self.wire.take_output();
        while !asked.is_empty() {
            self.wire.push_input(&refusal(&mut asked));
        }
    }

    fn thread<T: 'static>(self: &Arc<Self>, work: impl FnOnce(&Self) -> T + 'static) -> thread::JoinHandle<T> {
        let client = Arc::clone(self);
        thread::spawn(move || work(&client))
    }
}

/// In the models, this name means that the operation ended with TIMEOUT or CONNECTION. The status depends on the time
/// since the server's last answer.
const TIMED_OUT: &str = "late";

/// Starts an acquire operation and calls `wait`, which waits for the operation to end. Runs these steps in every
/// possible order. Returns the name of each result that occurred.
fn ends_of(
    acquire_limit: AcquireLimit,
    wait: impl Fn(Arc<PendingOp>) -> Result<Answer> + Send + Sync + 'static,
) -> Vec<&'static str> {
    let seen = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let ends = Arc::clone(&seen);
    loom::model(move || {
        let call = Arc::new(acquire(&connected(), acquire_limit));
        let status = wait(Arc::clone(&call)).unwrap_err().status();
        let end = match status {
            Status::Timeout | Status::Connection => TIMED_OUT,
            status => status.name(),
        };
        assert!(!lock(&call.shell.state).answer_handlers.contains_key(&call.op));
        let again = call.slot.wait_for(Duration::ZERO).map(|answer| answer.unwrap_err().status());
        assert_eq!(again, Some(status), "a later question has the same answer");
        ends.lock().unwrap().insert(end);
    });
    let seen = seen.lock().unwrap();
    seen.iter().copied().collect()
}

/// Creates a client with a session. The model itself acts as the I/O thread and as the server of this client.
pub(crate) fn connected() -> Arc<Shell> {
    let now = clock::now();
    let config = SessionConfig {
        timeout: Duration::from_secs(1000),
        lease_margin: None,
        follow_config: None,
        frame_limit: 1 << 20,
        limits: zklock_core::limits::Limits::default(),
    };
    let target = ConnectString::parse("127.0.0.1:1").unwrap();
    let mut engine = Engine::new(target, config, now, Box::new(|| 7));
    engine.connect(now, now + Duration::from_secs(1000));
    engine.advance(now);
    while engine.poll_command().is_some() {}
    engine.on_connection_event(now, ConnectionEvent::Connected("127.0.0.1"));
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
    let delivery = Arc::new(EventDelivery::new(CallbackDispatcher::None, None));
    Shell::new(engine, Token(1), None, delivery, SocketWaiter::new().unwrap(), AttemptInputs::default())
}

fn acquire(shell: &Arc<Shell>, acquire_limit: AcquireLimit) -> PendingOp {
    let mut lock = 0;
    shell.update_engine(|engine, _| lock = engine.add_lock("/lock", Recipe::Queue(Mode::Mutex))).unwrap();
    let deadline = if let AcquireLimit::Until(deadline) = acquire_limit { Some(deadline) } else { None };
    PendingOp::start(shell, deadline, |engine, now| engine.acquire(now, lock, Owner::current_thread(), acquire_limit))
        .unwrap()
}

pub(crate) fn close(shell: &Arc<Shell>) {
    PendingOp::start(shell, None, |engine, now| engine.close(now, now + CLOSE_LIMIT)).unwrap();
}

/// Makes the server refuse the first request that it has received.
pub(crate) fn refuse(shell: &Shell) {
    let source = shell.update_engine(|engine, now| {
        let bytes = refusal(engine.output());
        assert!(engine.received(now, &bytes).is_continue());
    });
    source.unwrap();
}

/// Removes the first request from `requests`, and returns an answer that refuses this request.
fn refusal(requests: &mut Vec<u8>) -> Vec<u8> {
    let frame = 4 + usize::try_from(u32::from_be_bytes(requests[..4].try_into().unwrap())).unwrap();
    let request: Vec<u8> = requests.drain(..frame).collect();
    let xid = i32::from_be_bytes(request[4..8].try_into().unwrap());
    let mut bytes = Vec::new();
    encode_error(xid, 1, Code::NO_AUTH, &mut bytes);
    bytes
}

/// A simulated server that carries out the requests of one client.
#[derive(Default)]
pub(crate) struct Server {
    /// The node paths, each with its node's czxid.
    nodes: Vec<(String, i64)>,
    last: i64,
}

impl Server {
    /// Answers all requests in one step. Continues until the client sends no further requests.
    pub(crate) fn serve(&mut self, shell: &Shell) {
        let source = shell.update_engine(|engine, now| {
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
        source.unwrap();
    }

    /// Returns whether the client has no node left.
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
            other => panic!("unexpected request: {other:?}"),
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
