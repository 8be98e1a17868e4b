//! Events: none is missed, each begins where the one before ended, and who calls the handlers.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that fails is a test that fails"
)]

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use common::{SOON, client, path, raw, status};
use zklock::{Client, ClientState, Config, Event, Handlers, LockState, Owner, Status};
use zklock_rig::{Proxy, ZooKeeper, wait_until};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// What a handler heard.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Event>>>);

impl Heard {
    fn config(&self, pause: Duration) -> Config {
        let (heard, mut config) = (self.clone(), Config::new());
        config.set_event_handler(move |event| {
            heard.0.lock().unwrap().push(event.clone());
            thread::sleep(pause);
        });
        config
    }

    fn all(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }

    /// The states that the session went through, and those of each hold. Fails where a step is missing.
    fn chains(&self) -> (Vec<ClientState>, HashMap<i64, Vec<LockState>>) {
        let mut client = vec![ClientState::Connecting];
        let mut holds: HashMap<i64, Vec<LockState>> = HashMap::new();
        for event in self.all() {
            match event {
                Event::Client { state, previous } => {
                    assert_eq!(client.last(), Some(&previous));
                    client.push(state);
                }
                Event::Lock { lock, token, state, previous, .. } => {
                    let told = holds.entry(token).or_insert_with(|| vec![LockState::Free]);
                    assert_eq!(told.last(), Some(&previous), "of lock {lock}");
                    told.push(state);
                }
            }
        }
        (client, holds)
    }
}

/// Connections break and nodes are deleted all the time, faster than the handler goes.
#[test]
fn a_bell_that_panics_stops_no_client() {
    let mut config = Config::new();
    config.set_event_handler(|_| {});
    config.set_event_bell(|_| panic!("on purpose"));
    let servers = ZooKeeper::shared().address();
    let rung = Client::connect(&servers, &config).unwrap();
    let lock = rung.mutex(&path("bell")).unwrap();
    lock.acquire(None).unwrap();
    // On the same I/O thread.
    let other = client(&servers);
    assert_eq!(other.state().unwrap(), ClientState::Connected);
    lock.release().unwrap();
    rung.close().unwrap();
}

#[test]
fn no_change_is_missed() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let (heard, path, mut raw) = (Heard::default(), path("changes"), raw(server));
    let client = Client::connect(&proxy.address(), &heard.config(3 * MS)).unwrap();
    let rw = client.rwlock(&path).unwrap();
    let semaphore = client.semaphore(&format!("{path}-leases"), 3).unwrap();
    let (mut released, mut lost) = (Vec::new(), Vec::new());
    for round in 0..16 {
        let lock = if round % 2 == 0 { &rw.read } else { &rw.write };
        lock.acquire(Some(SOON)).unwrap();
        let leases = semaphore.acquire(2, Some(SOON)).unwrap();
        let token = lock.fencing_token().unwrap();
        let node = lock.node_paths().unwrap().remove(0);
        if round % 4 == 3 {
            assert_eq!(raw.delete(&node), 0);
        }
        proxy.cut();
        wait_until(SOON, || !matches!(lock.state().unwrap(), LockState::Held | LockState::Suspended) || round % 4 != 3);
        match lock.release() {
            Err(error) if error.status() == Status::Lost => lost.push(token),
            other => {
                other.unwrap();
                released.push(token);
            }
        }
        released.push(leases.fencing_token().unwrap());
        leases.release().unwrap();
    }
    wait_until(SOON, || heard.all().len() > 80);
    client.close().unwrap();
    let (session, holds) = heard.chains();
    assert_eq!(session.last(), Some(&ClientState::Closed));
    assert!(session.len() > 16, "{}", session.len());
    assert_eq!(lost.len(), 4);
    for token in &lost {
        assert!(holds[token].contains(&LockState::Lost), "{:?}", holds[token]);
    }
    for token in &released {
        assert!(!holds[token].contains(&LockState::Lost), "{:?}", holds[token]);
    }
    assert_eq!(holds.len(), lost.len() + released.len());
    assert!(holds.values().all(|states| states.last() == Some(&LockState::Free)));
}

#[test]
fn holds_are_told_before_the_session_where_both_change() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let heard = Heard::default();
    let client = Client::connect(&proxy.address(), &heard.config(Duration::ZERO)).unwrap();
    let lock = client.mutex(&path("before")).unwrap();
    let other = client.mutex(&path("before")).unwrap();
    lock.acquire(None).unwrap();
    other.acquire(None).unwrap();
    proxy.refuse(true);
    proxy.cut();
    wait_until(SOON, || client.state().unwrap() == ClientState::Suspended);
    client.close().unwrap();
    let all = heard.all();
    let words: Vec<String> = all
        .iter()
        .map(|event| match event {
            Event::Client { state, .. } => format!("client {state:?}"),
            Event::Lock { state, .. } => format!("{state:?}"),
        })
        .collect();
    let expected = ["client Connected", "Held", "Held", "Suspended", "Suspended", "client Suspended", "Free", "Free"];
    assert_eq!(words[..8], expected);
    assert_eq!(words[8], "client Closed");
}

/// Nobody calls the handler while a hold goes through more changes than are kept. (One that stood still would keep the other tests'.)
#[test]
fn who_did_not_listen_is_told_fewer_steps() {
    let server = ZooKeeper::shared();
    let heard = Heard::default();
    let mut config = heard.config(Duration::ZERO);
    config.set_poll_events(true);
    let client = Client::connect(&server.address(), &config).unwrap();
    let lock = client.mutex(&path("still")).unwrap();
    for _ in 0..1500 {
        lock.acquire(None).unwrap();
        lock.release_nowait().unwrap();
    }
    lock.acquire(None).unwrap();
    let token = lock.fencing_token().unwrap();
    assert!((1024..1030).contains(&client.dispatch_events().unwrap()));
    let (_, holds) = heard.chains();
    assert_eq!(holds[&token], [LockState::Free, LockState::Held]);
    assert!(holds.len() < 520, "{} holds were told", holds.len());
    lock.release().unwrap();
    client.close().unwrap();
    let (session, holds) = heard.chains();
    assert_eq!(session.last(), Some(&ClientState::Closed));
    assert!(holds.values().all(|states| states.last() == Some(&LockState::Free)));
}

#[test]
fn in_a_handler_nothing_is_waited_for() {
    let server = ZooKeeper::shared();
    let held = client(&server.address()).mutex(&path("handler")).unwrap();
    held.acquire(None).unwrap();
    let (sender, results) = mpsc::channel();
    let (lock, done) = (held.clone(), AtomicBool::new(false));
    let mut config = Config::new();
    config.set_event_handler(move |_| {
        if done.swap(true, Ordering::SeqCst) {
            return;
        }
        let task = Owner::Custom(1);
        let _ = sender.send(lock.acquire(Some(SECOND)));
        let _ = sender.send(lock.guard(None).map(drop));
        let _ = sender.send(lock.start_acquire(task, None).and_then(zklock::Acquiring::wait));
        // What was started may be looked at, and one look may be waited for.
        let started = lock.start_acquire(task, Some(SECOND)).unwrap();
        assert!(started.wait_for(Duration::ZERO).is_none());
        let _ = sender.send(started.wait_for(MS).unwrap());
        let _ = sender.send(lock.start_acquire(task, Some(Duration::ZERO)).and_then(zklock::Acquiring::wait));
        let _ = sender.send(lock.acquire(Some(Duration::ZERO)));
        panic!("a handler's panic is its own");
    });
    let client = Client::connect(&server.address(), &config).unwrap();
    let statuses: Vec<Status> = (0..6).map(|_| status(results.recv_timeout(SOON).unwrap())).collect();
    assert_eq!(statuses[..4], [Status::Deadlock; 4]);
    assert_eq!(statuses[4..], [Status::Timeout; 2]);
    held.release().unwrap();
    // No node has stayed behind.
    wait_until(SOON, || held.participants().unwrap().is_empty());
    client.close().unwrap();
}

#[test]
fn handlers_that_are_polled() {
    let server = ZooKeeper::shared();
    let (heard, path) = (Heard::default(), path("polled"));
    let mut config = heard.config(Duration::ZERO);
    assert_eq!(status(client(&server.address()).dispatch_events()), Status::Invalid);
    config.set_poll_events(true);
    let client = Client::connect(&server.address(), &config).unwrap();
    assert!(client.event_fd().unwrap() >= 0);
    let lock = client.mutex(&path).unwrap();
    drop(lock.guard(None).unwrap());
    assert!(heard.all().is_empty());
    assert_eq!(client.dispatch_events().unwrap(), 3);
    assert_eq!(client.dispatch_events().unwrap(), 0);
    client.close().unwrap();
    assert_eq!(
        heard.all().last(),
        Some(&Event::Client { state: ClientState::Closed, previous: ClientState::Connected })
    );
    assert_eq!(status(client.dispatch_events()), Status::Closed);
    assert_eq!(status(client.event_fd()), Status::Closed);
}

#[test]
fn handlers_that_are_rung_for() {
    let server = ZooKeeper::shared();
    let heard = Heard::default();
    let (rings, mut config) = (Arc::new(AtomicUsize::new(0)), heard.config(Duration::ZERO));
    let (sender, ready) = mpsc::channel();
    let counted = Arc::clone(&rings);
    config.set_event_bell(move |handlers| {
        counted.fetch_add(1, Ordering::SeqCst);
        let _ = sender.send(handlers);
    });
    let client = Client::connect(&server.address(), &config).unwrap();
    let lock = client.mutex(&path("rung")).unwrap();
    drop(lock.guard(None).unwrap());
    // Once for all that wait.
    assert_eq!((rings.load(Ordering::SeqCst), heard.all().len()), (1, 0));
    let handlers = ready.recv_timeout(SOON).unwrap();
    assert!(handlers == client.handlers().unwrap());
    assert!(handlers.call_next());
    assert_eq!((rings.load(Ordering::SeqCst), heard.all().len()), (2, 1));
    assert!(handlers.call_next() && handlers.call_next());
    assert!(!handlers.call_next());
    let serving = thread::spawn(move || ready.iter().filter(Handlers::call_next).count());
    client.close().unwrap();
    assert_eq!(heard.all().len(), 4);
    drop((client, lock, config));
    assert_eq!(serving.join().unwrap(), 1);
}
