//! What may happen to a call at the same time: its answer comes, its caller's deadline passes, somebody cancels it, the client is
//! closed. Loom tries every order. In each the caller wakes, with the one answer that the engine gave, and nothing of the call
//! is left.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;
use std::time::Duration;

use loom::thread;

use super::*;
use crate::engine::{Owner, Patience, Recipe};
use crate::proto::{
    Code, ConnectResponse, CreateMode, Frames, OpCode, Request, Response, Stat, XID_PING, encode_error,
};
use crate::recipe::Mode;
use crate::runtime::outlet::{Caller as Handlers, Outlet};
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
    Shell::new(engine, Token(1), None, Arc::new(Outlet::new(Handlers::None, None)))
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
        let frame = 4 + usize::try_from(u32::from_be_bytes(engine.output()[..4].try_into().unwrap())).unwrap();
        let request: Vec<u8> = engine.output().drain(..frame).collect();
        let xid = i32::from_be_bytes(request[4..8].try_into().unwrap());
        let mut bytes = Vec::new();
        encode_error(xid, 1, Code::NO_AUTH, &mut bytes);
        assert!(engine.received(now, &bytes).is_continue());
    });
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
