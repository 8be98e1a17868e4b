//! Tests of panics. If a thread panics while it works for one client, only this client must fail.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use zklock_core::engine::{Event, OpId, Recipe};
use zklock_core::recipe::Mode;
use zklock_core::session::{ClientState, ConnectString};

use super::*;
use crate::config::Config;
use crate::runtime::pending_op::{AnswerSlot, PendingOp};

const LONG: Duration = Duration::from_secs(60);
const NOWHERE: &str = "127.0.0.1:1";

fn client(servers: &str, config: &Config, entropy: fn() -> u128) -> Arc<Shell> {
    let target = ConnectString::parse(servers).unwrap();
    let engine = Engine::new(target, config.session(), clock::now(), Box::new(entropy));
    let delivery = EventDelivery::open(&config.dispatch_mode, config.handler.clone()).unwrap();
    Shell::start(engine, delivery, config.attempt_inputs()).unwrap()
}

fn sound_client(servers: &str) -> Arc<Shell> {
    client(servers, &Config::new(), || 7)
}

/// The engine calls this function when it chooses the name of a node, or the length of a pause between two attempts to
/// connect.
fn panics_on(thread: &str) -> u128 {
    assert_ne!(thread::current().name(), Some(thread), "on purpose");
    7
}

fn connect(shell: &Arc<Shell>) -> Result<PendingOp> {
    let end = clock::now() + LONG;
    PendingOp::start(shell, Some(end), |engine, now| engine.connect(now, end))
}

fn expect_failed(shell: &Arc<Shell>) {
    let error = shell.read_engine(|engine, _| engine.state()).unwrap_err();
    assert_eq!(error.status(), Status::Internal);
    assert!(error.message().contains("panic"), "{error}");
    assert_eq!(shell.update_engine(|engine, _| engine.enable_kazoo_queuing()).unwrap_err().status(), Status::Internal);
    assert_eq!(
        PendingOp::start(shell, None, |engine, now| engine.close(now, now)).err().unwrap().status(),
        Status::Internal
    );
    stop(shell);
}

/// Asserts that the I/O thread still serves a client and its calls.
fn expect_sound(shell: &Arc<Shell>) {
    let at = clock::now();
    let call = PendingOp::start(shell, Some(at + LONG), |engine, now| engine.connect(now, now)).unwrap();
    assert_eq!(call.wait().unwrap_err().status(), Status::Connection);
    assert_eq!(shell.read_engine(|engine, _| engine.state()).unwrap(), ClientState::Connecting);
    stop(shell);
}

fn stop(shell: &Arc<Shell>) {
    shell.stop(clock::now() + Duration::from_secs(10));
}

fn accept(listener: &TcpListener) -> TcpStream {
    let (connection, _) = listener.accept().unwrap();
    expect_handshake(connection)
}

fn expect_handshake(mut connection: TcpStream) -> TcpStream {
    connection.set_read_timeout(Some(LONG)).unwrap();
    assert!(connection.read(&mut [0; 64]).unwrap() > 0, "no handshake");
    connection
}

fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

fn wait_until(shell: &Shell, condition: impl Fn(&State) -> bool) {
    let end = clock::now() + LONG;
    while !condition(&lock(&shell.state)) {
        assert!(clock::now() < end);
        thread::yield_now();
    }
}

#[test]
fn a_panic_on_the_io_thread_fails_its_client_and_no_other() {
    let heard: Arc<Mutex<Vec<Event>>> = Arc::default();
    let events = Arc::clone(&heard);
    let config = Config::new().on_event(move |event| events.lock().unwrap().push(event.clone()));
    // The server refuses the connection.
    let failing = client(NOWHERE, &config, || panics_on("zkl-io"));
    // The panic on the I/O thread may already have ended the client before this call.
    assert_eq!(connect(&failing).and_then(|call| call.wait()).unwrap_err().status(), Status::Internal);
    expect_failed(&failing);
    let closed = Event::client(ClientState::Closed, ClientState::Connecting);
    assert!(heard.lock().unwrap().contains(&closed));

    // The I/O thread also serves a client that the program creates after the failure.
    let (listener, address) = listen();
    let other = sound_client(&address);
    let _call = connect(&other).unwrap();
    accept(&listener);
    stop(&other);
}

#[test]
fn a_panic_of_a_thread_that_makes_a_call_fails_the_calls_of_all_threads() {
    let (listener, address) = listen();
    let (failing, other) = (sound_client(&address), sound_client(NOWHERE));
    let waiting = connect(&failing).unwrap();
    let _connection = accept(&listener);
    let waiter = thread::spawn(move || waiting.wait());
    wait_until(&failing, |state| state.reader.is_some());
    let made = PendingOp::start(&failing, None, |_, _| panic!("on purpose"));
    assert_eq!(made.err().unwrap().status(), Status::Internal);
    assert_eq!(waiter.join().unwrap().unwrap_err().status(), Status::Internal);
    expect_failed(&failing);
    expect_sound(&other);
}

#[test]
fn a_question_that_panics_fails_its_client_and_no_other() {
    let (failing, other) = (sound_client(NOWHERE), sound_client(NOWHERE));
    let call = connect(&failing).unwrap();
    assert_eq!(failing.read_engine(|_, _| panic!("on purpose")).unwrap_err().status(), Status::Internal);
    assert_eq!(call.wait().unwrap_err().status(), Status::Internal);
    expect_failed(&failing);
    expect_sound(&other);
}

/// The turn of a reader is short. On a busy machine, the I/O thread can read the answer instead, and the test starts again.
#[test]
fn a_panic_of_the_thread_that_reads_fails_its_client_and_no_other() {
    let other = sound_client(NOWHERE);
    let is_done = (0..50).any(|_| {
        let (listener, address) = listen();
        let failing = client(&address, &Config::new(), || panics_on("reader"));
        let end = clock::now() + Duration::from_secs(2);
        let call = PendingOp::start(&failing, Some(end), |engine, now| engine.connect(now, end)).unwrap();
        let mut connection = accept(&listener);
        let reader = thread::Builder::new().name("reader".into()).spawn(move || {
            let answer = call.wait();
            (answer, super::super::is_driving_io())
        });
        let reader = reader.unwrap();
        wait_until(&failing, |state| state.reader.is_some() || reader.is_finished());
        // After an answer that is no frame, the engine waits before it connects again. (The kernel would report the end of
        // the connection also to the I/O thread.)
        connection.write_all(&[0xff; 8]).unwrap();
        let (answer, is_serving) = reader.join().unwrap();
        let status = answer.unwrap_err().status();
        assert!(!is_serving);
        match status {
            Status::Internal => expect_failed(&failing),
            status => assert_eq!(status, Status::Connection),
        }
        stop(&failing);
        status == Status::Internal
    });
    assert!(is_done, "the thread that waits has never read the answer");
    expect_sound(&other);
}

#[test]
fn a_panic_on_a_resolver_thread_fails_its_client_and_no_other() {
    const NAME: &str = "no-such-host.invalid:2181";
    let (failing, other) = (client(NAME, &Config::new(), || panics_on("zkl-dns")), sound_client(NAME));
    // The client may already have failed before the call starts.
    let (call, others_call) = (connect(&failing), connect(&other).unwrap());
    assert_eq!(call.and_then(|call| call.wait()).unwrap_err().status(), Status::Internal);
    wait_until(&other, |state| state.engine.metrics().connection_attempts > 1);
    drop(others_call);
    expect_failed(&failing);
    stop(&other);
}

#[test]
fn late_addresses_are_used_only_while_they_are_recent() {
    const NAME: &str = "no-such-host.invalid:2181";
    let listeners = [(); 2].map(|()| listen());
    let addresses = listeners.each_ref().map(|(_, address)| address.parse().unwrap());
    // The client tries the two servers in turn. The other server never has an address.
    let shell = sound_client(&format!("{NAME},other-host.invalid:2181"));
    let add_late = |age: Duration| {
        let server = ConnectString::parse(NAME).unwrap().servers.remove(0);
        let since_boot: Duration = clock::now() - Time::default() - age;
        let received_at = Time::from_nanos(since_boot.as_nanos().try_into().unwrap());
        let late = LateAddresses { server, addresses: addresses.to_vec(), received_at };
        lock(&shell.state).resolved.push(late);
    };
    add_late(MAX_ADDRESS_AGE + Duration::from_secs(1));
    wait_until(&shell, |state| state.resolved.is_empty());
    let was_used = |(listener, _): &(TcpListener, String)| {
        listener.set_nonblocking(true).unwrap();
        match listener.accept() {
            Ok((connection, _)) => drop(expect_handshake(connection)),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                return false;
            }
        }
        true
    };
    assert_eq!(listeners.each_ref().map(was_used), [false; 2]);
    // Each attempt at the server begins with another address. The connection of each attempt is closed after its
    // handshake.
    let mut used = [false; 2];
    let end = clock::now() + LONG;
    while used != [true; 2] {
        assert!(clock::now() < end, "{used:?}");
        add_late(Duration::ZERO);
        wait_until(&shell, |state| state.resolved.is_empty());
        let now = listeners.each_ref().map(was_used);
        used = [used[0] || now[0], used[1] || now[1]];
    }
    stop(&shell);
}

/// Calls the client when it is dropped.
struct CallsOnDrop(Arc<Shell>);

impl Drop for CallsOnDrop {
    fn drop(&mut self) {
        let _ = self.0.read_engine(|engine, _| engine.state());
    }
}

#[test]
fn refused_revocation_handler_is_dropped_while_the_thread_holds_no_lock() {
    let (shell, mut removed) = (sound_client(NOWHERE), None);
    shell
        .update_engine(|engine, now| {
            let lock = engine.add_lock("/lock", Recipe::Queue(Mode::Mutex));
            engine.remove_lock(now, lock);
            removed = Some(lock);
        })
        .unwrap();
    let (of_thread, calls_client) = (Arc::clone(&shell), CallsOnDrop(Arc::clone(&shell)));
    let handler: Arc<RevocationHandler> = Arc::new(move |_: &str| {
        let _ = &calls_client;
    });
    let (sender, receiver) = channel();
    thread::spawn(move || sender.send(of_thread.set_revocable(removed.unwrap(), Some(handler)).unwrap_err().status()));
    assert_eq!(receiver.recv_timeout(LONG).unwrap(), Status::Closed);
    stop(&shell);
}

/// An answer handler for tests. If `other` is `None`, the handler panics when it receives its answer. If `other`
/// contains a client, the handler starts an operation on that client. The start panics inside the library. Starting the
/// operation therefore fails, and the handler sends the resulting status to the channel `made`.
struct Panicking {
    other: Option<Arc<Shell>>,
    made: Mutex<Sender<Option<Status>>>,
}

impl AnswerHandler for Panicking {
    fn on_answer(self: Arc<Self>, _: OpId, _: Result<Answer>) {
        let other = self.other.as_ref().unwrap();
        let made = PendingOp::start(other, None, |_, _| panic!("on purpose"));
        lock(&self.made).send(made.err().map(|error| error.status())).unwrap();
    }
}

#[test]
fn panic_in_answer_handler_leaves_no_call_unanswered() {
    let (failing, other) = (sound_client(NOWHERE), sound_client(NOWHERE));
    let panicking = Arc::new(Panicking { other: None, made: Mutex::new(channel().0) });
    let pending = connect(&failing).unwrap();
    // The two operations below end at the same time. The client must still deliver the second answer after
    // the first answer handler has panicked.
    let answered: Arc<AnswerSlot> = Arc::default();
    failing
        .with_state(|state| {
            let now = clock::now();
            for handler in [panicking as Arc<dyn AnswerHandler>, Arc::clone(&answered) as Arc<dyn AnswerHandler>] {
                let op = state.engine.connect(now, now);
                state.answer_handlers.insert(op, handler);
            }
            state.engine.advance(now);
        })
        .unwrap();
    let status = |answer: Option<Result<Answer>>| answer.unwrap().unwrap_err().status();
    assert_eq!(status(answered.wait_for(LONG)), Status::Connection);
    assert_eq!(status(pending.slot.wait_for(LONG)), Status::Internal);
    expect_failed(&failing);
    expect_sound(&other);
}

#[test]
fn a_panic_in_a_call_that_an_answer_leads_to_fails_the_client_of_that_call() {
    let (failing, first) = (sound_client(NOWHERE), sound_client(NOWHERE));
    let (made, receiver) = channel();
    let panicking = Panicking { other: Some(Arc::clone(&failing)), made: Mutex::new(made) };
    first.submit(Arc::new(panicking), |engine, now| engine.connect(now, now)).unwrap();
    assert_eq!(receiver.recv_timeout(LONG).unwrap(), Some(Status::Internal));
    expect_failed(&failing);
    expect_sound(&first);
}
