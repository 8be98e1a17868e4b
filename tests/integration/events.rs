//! Events: none is missing, each begins at the state in which the one before ended, and the right thread calls the
//! handlers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::{TEST_TIMEOUT, client, path, raw, status};
use zklock::internal::{self, EventSource, set_event_notifier};
use zklock::{Client, ClientState, Config, Event, LockState, Owner, Status};
use zklock_test_support::{Proxy, ZooKeeper, wait_until};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Records the events that a handler receives.
#[derive(Clone, Default)]
struct EventRecorder(Arc<Mutex<Vec<Event>>>);

impl EventRecorder {
    fn config(&self, pause: Duration) -> Config {
        let recorder = self.clone();
        Config::new().on_event(move |event| {
            recorder.0.lock().unwrap().push(event.clone());
            thread::sleep(pause);
        })
    }

    fn events(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }

    /// The sequence of session states, and the sequence of states of each hold. Panics if a step is missing.
    fn state_sequences(&self) -> (Vec<ClientState>, HashMap<i64, Vec<LockState>>) {
        let mut client = vec![ClientState::Connecting];
        let mut holds: HashMap<i64, Vec<LockState>> = HashMap::new();
        for event in self.events() {
            match event {
                Event::Client { state, previous, .. } => {
                    assert_eq!(client.last(), Some(&previous));
                    client.push(state);
                }
                Event::Lock { lock, token, state, previous, .. } => {
                    let told = holds.entry(token).or_insert_with(|| vec![LockState::Free]);
                    assert_eq!(told.last(), Some(&previous), "of lock {lock}");
                    told.push(state);
                }
                event => panic!("an event of an unknown kind: {event:?}"),
            }
        }
        (client, holds)
    }
}

/// If an event notifier panics, its client and the other clients continue.
#[test]
fn panicking_notifier_does_not_stop_clients() {
    let mut config = Config::new().on_event(|_| {});
    set_event_notifier(&mut config, |_| panic!("on purpose"));
    let servers = ZooKeeper::shared().address();
    let notified_client = Client::connect(&servers, &config).unwrap();
    let lock = notified_client.mutex(&path("bell")).unwrap();
    lock.acquire(None).unwrap();
    // This client uses the same I/O thread.
    let other = client(&servers);
    assert_eq!(other.state().unwrap(), ClientState::Connected);
    lock.release().unwrap();
    notified_client.close().unwrap();
}

/// Connections break and nodes are deleted repeatedly, faster than the handler returns.
#[test]
fn no_change_is_missed() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let (recorder, path, mut raw) = (EventRecorder::default(), path("changes"), raw(server));
    let client = Client::connect(&proxy.address(), &recorder.config(3 * MS)).unwrap();
    let rw = client.rwlock(&path).unwrap();
    let semaphore = client.semaphore(&format!("{path}-leases"), 3).unwrap();
    let (mut released, mut lost) = (Vec::new(), Vec::new());
    for round in 0..16 {
        let lock = if round % 2 == 0 { &rw.read } else { &rw.write };
        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
        let leases = semaphore.acquire(2, Some(TEST_TIMEOUT)).unwrap();
        let token = lock.fencing_token().unwrap();
        let node = lock.node_paths().unwrap().remove(0);
        if round % 4 == 3 {
            assert_eq!(raw.delete(&node), 0);
        }
        proxy.cut();
        wait_until(TEST_TIMEOUT, || {
            !matches!(lock.state().unwrap(), LockState::Held | LockState::Suspended) || round % 4 != 3
        });
        match lock.release() {
            Err(error) if error.status() == Status::Lost => lost.push(token),
            other => {
                other.unwrap();
                released.push(token);
            }
        }
        released.push(leases.token());
        leases.release().unwrap();
    }
    wait_until(TEST_TIMEOUT, || recorder.events().len() > 80);
    client.close().unwrap();
    let (session, holds) = recorder.state_sequences();
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
fn lock_events_precede_the_session_event_of_the_same_moment() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let recorder = EventRecorder::default();
    let client = Client::connect(&proxy.address(), &recorder.config(Duration::ZERO)).unwrap();
    let lock = client.mutex(&path("before")).unwrap();
    let other = client.mutex(&path("before")).unwrap();
    lock.acquire(None).unwrap();
    other.acquire(None).unwrap();
    proxy.refuse(true);
    proxy.cut();
    wait_until(TEST_TIMEOUT, || client.state().unwrap() == ClientState::Suspended);
    client.close().unwrap();
    let all = recorder.events();
    let words: Vec<String> = all
        .iter()
        .map(|event| match event {
            Event::Client { state, .. } => format!("client {state:?}"),
            Event::Lock { state, .. } => format!("{state:?}"),
            event => panic!("an event of an unknown kind: {event:?}"),
        })
        .collect();
    let expected = ["client Connected", "Held", "Held", "Suspended", "Suspended", "client Suspended", "Free", "Free"];
    assert_eq!(words[..8], expected);
    assert_eq!(words[8], "client Closed");
}

/// No handler runs while a hold goes through more changes than the queue keeps. The program polls for events, because a
/// blocked handler would also block the handlers of other tests.
#[test]
fn unread_events_are_merged() {
    let server = ZooKeeper::shared();
    let recorder = EventRecorder::default();
    let config = recorder.config(Duration::ZERO).poll_events(true);
    let client = Client::connect(&server.address(), &config).unwrap();
    let lock = client.mutex(&path("still")).unwrap();
    for _ in 0..1500 {
        lock.acquire(None).unwrap();
        lock.release_nowait().unwrap();
    }
    lock.acquire(None).unwrap();
    let token = lock.fencing_token().unwrap();
    assert!((1024..1030).contains(&client.dispatch_events().unwrap()));
    let (_, holds) = recorder.state_sequences();
    assert_eq!(holds[&token], [LockState::Free, LockState::Held]);
    assert!(holds.len() < 520, "events reported {} holds", holds.len());
    lock.release().unwrap();
    client.close().unwrap();
    let (session, holds) = recorder.state_sequences();
    assert_eq!(session.last(), Some(&ClientState::Closed));
    assert!(holds.values().all(|states| states.last() == Some(&LockState::Free)));
}

#[test]
fn waiting_calls_in_a_callback_return_deadlock() {
    let server = ZooKeeper::shared();
    let held = client(&server.address()).mutex(&path("handler")).unwrap();
    held.acquire(None).unwrap();
    let (sender, results) = mpsc::channel();
    let (lock, done) = (held.clone(), AtomicBool::new(false));
    let config = Config::new().on_event(move |_| {
        if done.swap(true, Ordering::SeqCst) {
            return;
        }
        let task = Owner::task(1);
        let _ = sender.send(lock.acquire(Some(SECOND)));
        let _ = sender.send(lock.hold(None).map(drop));
        let _ = sender.send(lock.start_acquire(task, None).and_then(zklock::Operation::wait).map(drop));
        // A handler may check an operation without waiting, and may wait for an acquire with the time limit 0.
        let started = lock.start_acquire(task, Some(SECOND)).unwrap();
        assert!(started.wait_for(Duration::ZERO).is_none());
        let _ = sender.send(started.wait_for(MS).unwrap().map(drop));
        let _ = sender.send(lock.start_acquire(task, Some(Duration::ZERO)).and_then(zklock::Operation::wait).map(drop));
        let _ = sender.send(lock.acquire(Some(Duration::ZERO)));
        panic!("a handler's panic is its own");
    });
    let client = Client::connect(&server.address(), &config).unwrap();
    let statuses: Vec<Status> = (0..6).map(|_| status(results.recv_timeout(TEST_TIMEOUT).unwrap())).collect();
    assert_eq!(statuses[..4], [Status::Deadlock; 4]);
    assert_eq!(statuses[4..], [Status::Timeout; 2]);
    held.release().unwrap();
    // The acquires have left no node behind.
    wait_until(TEST_TIMEOUT, || held.participants().unwrap().is_empty());
    client.close().unwrap();
}

#[test]
fn polled_events_are_dispatched_by_the_program() {
    let server = ZooKeeper::shared();
    let (recorder, path) = (EventRecorder::default(), path("polled"));
    let config = recorder.config(Duration::ZERO).poll_events(true);
    assert_eq!(status(client(&server.address()).dispatch_events()), Status::Invalid);
    let client = Client::connect(&server.address(), &config).unwrap();
    assert!(client.event_fd().unwrap() >= 0);
    let lock = client.mutex(&path).unwrap();
    drop(lock.hold(None).unwrap());
    assert!(recorder.events().is_empty());
    assert_eq!(client.dispatch_events().unwrap(), 3);
    assert_eq!(client.dispatch_events().unwrap(), 0);
    client.close().unwrap();
    let closed = matches!(
        recorder.events().last(),
        Some(Event::Client { state: ClientState::Closed, previous: ClientState::Connected, .. })
    );
    assert!(closed, "{:?}", recorder.events());
    assert_eq!(status(client.dispatch_events()), Status::Closed);
    assert_eq!(status(client.event_fd()), Status::Closed);
}

#[test]
fn notifier_is_called_once_until_events_are_dispatched() {
    let server = ZooKeeper::shared();
    let recorder = EventRecorder::default();
    let (rings, mut config) = (Arc::new(AtomicUsize::new(0)), recorder.config(Duration::ZERO));
    let (sender, ready) = mpsc::channel();
    let counted = Arc::clone(&rings);
    set_event_notifier(&mut config, move |handlers| {
        counted.fetch_add(1, Ordering::SeqCst);
        let _ = sender.send(handlers);
    });
    let client = Client::connect(&server.address(), &config).unwrap();
    let lock = client.mutex(&path("rung")).unwrap();
    drop(lock.hold(None).unwrap());
    // The library calls the notifier once for all events that wait.
    assert_eq!((rings.load(Ordering::SeqCst), recorder.events().len()), (1, 0));
    let handlers = ready.recv_timeout(TEST_TIMEOUT).unwrap();
    assert!(handlers == internal::event_source(&client).unwrap());
    assert!(handlers.dispatch_next());
    assert_eq!((rings.load(Ordering::SeqCst), recorder.events().len()), (2, 1));
    assert!(handlers.dispatch_next() && handlers.dispatch_next());
    assert!(!handlers.dispatch_next());
    let serving = thread::spawn(move || ready.iter().filter(EventSource::dispatch_next).count());
    client.close().unwrap();
    assert_eq!(recorder.events().len(), 4);
    drop((client, lock, config));
    assert_eq!(serving.join().unwrap(), 1);
}
