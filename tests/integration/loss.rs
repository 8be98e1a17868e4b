//! The ways in which a program learns that a hold is no longer safe: listeners, waits and guards.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::{OwnerCalls as _, TEST_TIMEOUT, assert_not_late, client, client_with, path, queue, raw, status};
use zklock::{Client, ClientState, Config, Event, Listen, LockState, Owner, Status};
use zklock_test_support::{Proxy, ZooKeeper, wait_until};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Records the events that a handler receives.
#[derive(Clone, Default)]
struct EventRecorder(Arc<Mutex<Vec<Event>>>);

impl EventRecorder {
    fn handler(&self) -> impl Fn(&Event) + Send + Sync + 'static {
        let recorder = self.clone();
        move |event| recorder.0.lock().unwrap().push(event.clone())
    }

    /// The token and the states of each event of a hold.
    fn lock_transitions(&self) -> Vec<(i64, LockState, LockState)> {
        let step = |event: &Event| match *event {
            Event::Lock { token, previous, state, .. } => (token, previous, state),
            _ => panic!("no event of a hold: {event:?}"),
        };
        self.0.lock().unwrap().iter().map(step).collect()
    }

    fn clear(&self) {
        self.0.lock().unwrap().clear();
    }
}

use LockState::{Free, Held, Lost, Suspended, Uncertain};

#[test]
fn lock_listener_receives_only_its_lock() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let (one, two) = (client.mutex(&path("one")).unwrap(), client.mutex(&path("two")).unwrap());
    let both = [EventRecorder::default(), EventRecorder::default()];
    let listeners = both.each_ref().map(|recorder| one.listen(Listen::All, recorder.handler()).unwrap());
    let all = EventRecorder::default();
    let of_client = client.listen(all.handler()).unwrap();
    let mut tokens = Vec::new();
    for lock in [&one, &two] {
        lock.acquire(None).unwrap();
        tokens.push(lock.fencing_token().unwrap());
        lock.release().unwrap();
    }
    wait_until(TEST_TIMEOUT, || all.lock_transitions().len() == 4);
    for recorder in &both {
        assert_eq!(recorder.lock_transitions(), [(tokens[0], Free, Held), (tokens[0], Held, Free)]);
    }
    drop(listeners);
    one.acquire(None).unwrap();
    one.release().unwrap();
    wait_until(TEST_TIMEOUT, || all.lock_transitions().len() == 6);
    assert_eq!(both.each_ref().map(|recorder| recorder.lock_transitions().len()), [2, 2]);
    drop(of_client);
    one.close().unwrap();
    assert_eq!(status(one.listen(Listen::All, |_| {})), Status::Closed);
    client.close().unwrap();
    assert_eq!(status(client.listen(|_| {})), Status::Closed);
    assert_eq!(status(two.listen(Listen::Loss, |_| {})), Status::Closed);
}

#[test]
fn loss_listener_receives_only_losses() {
    let server = ZooKeeper::start();
    let client = client_with(&server.address(), 3 * SECOND);
    let (lock, semaphore) = (client.mutex("/lapse/lock").unwrap(), client.semaphore("/lapse/leases", 3).unwrap());
    let (of_lock, of_leases, of_others) =
        (EventRecorder::default(), EventRecorder::default(), EventRecorder::default());
    let listener = lock.listen(Listen::Loss, of_lock.handler()).unwrap();
    lock.acquire(None).unwrap();
    let (leases, others) = (semaphore.acquire(2, None).unwrap(), semaphore.acquire(1, None).unwrap());
    let on_leases = leases.on_lost(of_leases.handler()).unwrap();
    let on_others = others.listen(Listen::All, of_others.handler()).unwrap();
    let (token, tokens) = (lock.fencing_token().unwrap(), leases.token());
    others.release().unwrap();
    assert_eq!(status(others.listen(Listen::All, |_| {})), Status::NotOwner);
    assert_eq!(raw(&server).delete(&leases.node_paths().unwrap()[0]), 0);
    wait_until(TEST_TIMEOUT, || of_leases.lock_transitions().len() == 1);
    assert_eq!(of_leases.lock_transitions(), [(tokens, Held, Lost)]);
    lock.release().unwrap();
    lock.acquire(None).unwrap();
    let next = lock.fencing_token().unwrap();
    server.pause();
    wait_until(TEST_TIMEOUT, || of_lock.lock_transitions().len() == 1);
    let steps = of_lock.lock_transitions();
    assert!(matches!(steps[0], (of, Held | Suspended, Uncertain) if of == next && of > token), "{steps:?}");
    drop((listener, on_leases, on_others));
    assert_eq!(of_others.lock_transitions().len(), 1, "the released locks: {:?}", of_others.lock_transitions());
}

/// A listener of a multi-lock of two clients receives the events of each member lock.
#[test]
fn multi_lock_listener_receives_events_of_all_members() {
    let server = ZooKeeper::shared();
    let clients = [client(&server.address()), client(&server.address())];
    let locks = clients.each_ref().map(|client| client.mutex(&path("part")).unwrap());
    let multi = zklock::Lock::multi(&[&locks[0], &locks[1]]).unwrap();
    let (recorder, lost) = (EventRecorder::default(), EventRecorder::default());
    let listeners = (multi.listen(Listen::All, recorder.handler()), multi.listen(Listen::Loss, lost.handler()));
    multi.acquire(None).unwrap();
    let node = multi.node_paths().unwrap().remove(1);
    wait_until(TEST_TIMEOUT, || recorder.lock_transitions().len() == 2);
    assert_eq!(raw(server).delete(&node), 0);
    wait_until(TEST_TIMEOUT, || lost.lock_transitions().len() == 1);
    assert_eq!(lost.lock_transitions()[0].2, Lost);
    assert_eq!(status(multi.release()), Status::Lost);
    wait_until(TEST_TIMEOUT, || recorder.lock_transitions().len() == 5);
    drop(listeners);
}

/// A gate that handlers wait for.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn wait(&self) {
        drop(self.0.1.wait_timeout_while(self.0.0.lock().unwrap(), TEST_TIMEOUT, |is_open| !*is_open).unwrap());
    }

    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn is_open(&self) -> bool {
        *self.0.0.lock().unwrap()
    }
}

/// The callback of one client does not delay the loss of another client, even if the other client also has earlier
/// events in its queue.
#[test]
fn a_loss_does_not_wait_for_a_slow_handler_of_another_client() {
    let server = ZooKeeper::shared();
    let (gate, (entered, is_in)) = (Gate::default(), mpsc::channel());
    let slow_gate = gate.clone();
    let config = Config::new().on_event(move |_| {
        let _ = entered.send(());
        slow_gate.wait();
    });
    let slow = Client::connect(&server.address(), &config).unwrap();
    is_in.recv_timeout(TEST_TIMEOUT).unwrap();
    let recorder = EventRecorder::default();
    let (lost, is_lost) = mpsc::channel();
    let other = Client::connect(&server.address(), &Config::new().on_event(recorder.handler())).unwrap();
    let lock = other.mutex(&path("urgent")).unwrap();
    let listener = lock.on_lost(move |_| lost.send(thread::current().name().map(str::to_owned)).unwrap()).unwrap();
    lock.acquire(None).unwrap();
    assert_eq!(raw(server).delete(&lock.node_paths().unwrap().remove(0)), 0);
    assert_eq!(is_lost.recv_timeout(TEST_TIMEOUT).unwrap().as_deref(), Some("zkl-losses"));
    assert!(!gate.is_open());
    let state = |event: &Event| if let Event::Lock { state, .. } = *event { Some(state) } else { None };
    let states: Vec<_> = recorder.0.lock().unwrap().iter().filter_map(state).collect();
    assert_eq!(states, [Held, Lost]);
    gate.open();
    drop(listener);
    slow.close().unwrap();
    other.close().unwrap();
}

/// Two handlers that run at the same time do not wait for each other.
#[test]
fn two_loss_handlers_may_close_both_clients() {
    let server = ZooKeeper::shared();
    let clients = [client(&server.address()), client(&server.address())];
    let locks = clients.each_ref().map(|client| client.mutex(&path("both")).unwrap());
    let (closed, are_closed) = mpsc::channel();
    let running = Arc::new(Barrier::new(2));
    let listeners = locks.each_ref().map(|lock| {
        let (closed, clients, running) = (closed.clone(), clients.clone(), Arc::clone(&running));
        let handler = move |_: &Event| {
            running.wait();
            let _ = clients.each_ref().map(Client::close);
            closed.send(()).unwrap();
        };
        lock.on_lost(handler).unwrap()
    });
    for lock in &locks {
        lock.acquire(None).unwrap();
    }
    for lock in &locks {
        assert_eq!(raw(server).delete(&lock.node_paths().unwrap().remove(0)), 0);
    }
    for _ in &locks {
        are_closed.recv_timeout(TEST_TIMEOUT).unwrap();
    }
    drop(listeners);
}

/// The guarantee that a destructor needs: after the drop, the program may destroy the objects that the handler uses.
#[test]
fn a_dropped_listener_neither_runs_nor_is_called_again() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("dropped")).unwrap();
    let owned = Arc::new(());
    let (entered, is_in) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let (calls, may_go_on, owns) = (Arc::new(AtomicUsize::new(0)), Mutex::new(may_go_on), Arc::clone(&owned));
    let counted = Arc::clone(&calls);
    let listener = lock
        .listen(Listen::All, move |_| {
            let _owns = &owns;
            entered.send(()).unwrap();
            may_go_on.lock().unwrap().recv().unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
    lock.acquire(None).unwrap();
    is_in.recv_timeout(TEST_TIMEOUT).unwrap();
    lock.release().unwrap();
    let dropped = AtomicBool::new(false);
    thread::scope(|scope| {
        let drops = scope.spawn(|| {
            drop(listener);
            dropped.store(true, Ordering::SeqCst);
            (calls.load(Ordering::SeqCst), Arc::strong_count(&owned))
        });
        // The drop cannot return while the handler runs, however long the test waits.
        thread::sleep(100 * MS);
        assert!(!dropped.load(Ordering::SeqCst));
        go_on.send(()).unwrap();
        assert_eq!(
            drops.join().unwrap(),
            (1, 1),
            "the event that waited is not told, and what the handler owned is gone"
        );
    });
    lock.acquire(None).unwrap();
    lock.release().unwrap();
    client.close().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[test]
fn a_handler_may_drop_its_own_listener_and_others() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("own")).unwrap();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, all) = (Arc::clone(&calls), Arc::clone(&kept));
    let first = lock.listen(Listen::All, move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        let listeners = std::mem::take(&mut *all.lock().unwrap());
        drop::<Vec<zklock::Listener>>(listeners);
    });
    let second = lock.listen(Listen::All, |_| panic!("the handler was removed before its turn"));
    kept.lock().unwrap().extend([first.unwrap(), second.unwrap()]);
    lock.acquire(None).unwrap();
    lock.release().unwrap();
    client.close().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert!(kept.lock().unwrap().is_empty());
}

#[test]
fn listeners_outlive_their_lock_and_their_client() {
    let server = ZooKeeper::shared();
    let (recorder, kept) = (EventRecorder::default(), {
        let client = client(&server.address());
        let lock = client.mutex(&path("outlived")).unwrap();
        let kept = (lock.listen(Listen::All, |_| {}).unwrap(), client.listen(|_| {}).unwrap());
        lock.acquire(None).unwrap();
        client.close().unwrap();
        kept
    });
    drop((recorder, kept));
}

/// A client or a lock has one event handler beside its listeners. After the call that replaces the handler has
/// returned, the previous handler does not run.
#[test]
fn a_handler_that_was_replaced_neither_runs_nor_is_called_again() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("replaced")).unwrap();
    let set_on_lock = |handler| lock.set_event_handler(handler);
    let set_on_client = |handler| client.set_event_handler(handler);
    type Set<'a> = &'a (dyn Fn(Option<Box<dyn Fn(&Event) + Send + Sync>>) -> zklock::Result<()> + Sync);
    for set in [&set_on_lock as Set<'_>, &set_on_client] {
        let (entered, is_in) = mpsc::channel();
        let running = Arc::new(AtomicBool::new(false));
        let runs = Arc::clone(&running);
        set(Some(Box::new(move |_| {
            runs.store(true, Ordering::SeqCst);
            let _ = entered.send(());
            thread::sleep(20 * MS);
            runs.store(false, Ordering::SeqCst);
        })))
        .unwrap();
        lock.acquire(None).unwrap();
        is_in.recv_timeout(TEST_TIMEOUT).unwrap();
        let recorder = EventRecorder::default();
        set(Some(Box::new(recorder.handler()))).unwrap();
        assert!(!running.load(Ordering::SeqCst), "it still runs");
        is_in.try_iter().for_each(drop);
        lock.release().unwrap();
        wait_until(TEST_TIMEOUT, || recorder.lock_transitions().last().is_some_and(|&(_, _, state)| state == Free));
        assert_eq!(is_in.try_iter().count(), 0, "it was called again");
        set(None).unwrap();
        recorder.clear();
        lock.acquire(None).unwrap();
        lock.release().unwrap();
        assert_eq!(recorder.lock_transitions(), []);
    }
}

/// The same for the handler of revocation requests.
#[test]
fn a_revocation_handler_that_was_replaced_does_not_run_any_more() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("revoked")).unwrap();
    let (entered, is_in) = mpsc::channel();
    let running = Arc::new(AtomicBool::new(false));
    let runs = Arc::clone(&running);
    lock.set_revocable(Some(move |_: &str| {
        runs.store(true, Ordering::SeqCst);
        entered.send(()).unwrap();
        thread::sleep(20 * MS);
        runs.store(false, Ordering::SeqCst);
    }))
    .unwrap();
    lock.acquire(None).unwrap();
    client.revoke(&lock.node_paths().unwrap()[0]).unwrap();
    is_in.recv_timeout(TEST_TIMEOUT).unwrap();
    lock.set_revocable(None::<fn(&str)>).unwrap();
    assert!(!running.load(Ordering::SeqCst), "it still runs");
    lock.release().unwrap();
}

/// The node still exists during the call, so that the program can stop its work under the lock before another client is
/// granted the lock.
#[test]
fn client_close_reports_losses_before_the_session_ends() {
    let server = ZooKeeper::shared();
    for is_polled in [false, true] {
        let config = Config::new().poll_events(is_polled);
        let client = Client::connect(&server.address(), &config).unwrap();
        let path = path("farewell");
        let (lock, other) = (client.mutex(&path).unwrap(), client.mutex(&format!("{path}-other")).unwrap());
        let raw = Arc::new(Mutex::new(raw(server)));
        let (seen, says) = mpsc::channel();
        let (all, changes) = (EventRecorder::default(), EventRecorder::default());
        let on_change = lock.listen(Listen::All, changes.handler()).unwrap();
        let listener = lock.listen(Listen::Loss, {
            let (lock, record) = (lock.clone(), all.handler());
            move |event| {
                record(event);
                seen.send((queue(&mut raw.lock().unwrap(), &path).len(), status(lock.is_held()))).unwrap();
            }
        });
        lock.acquire(None).unwrap();
        // The release of a hold is not a loss.
        lock.release().unwrap();
        lock.acquire(None).unwrap();
        let token = lock.fencing_token().unwrap();
        other.acquire(None).unwrap();
        client.close().unwrap();
        assert_eq!(says.try_recv().unwrap(), (1, Status::Closed), "its node was there");
        assert_eq!(all.lock_transitions(), [(token, Held, Free)]);
        assert_eq!(changes.lock_transitions().last(), Some(&(token, Held, Free)));
        assert_eq!(changes.lock_transitions().len(), 4, "each loss is reported once");
        drop((listener, on_change));
    }
}

/// The event thread itself closes the client, so no other thread can call the listeners.
#[test]
fn close_in_a_callback_reports_losses_before_the_session_ends() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let path = path("own-end");
    let (lock, trigger) = (client.mutex(&path).unwrap(), client.mutex(&format!("{path}-trigger")).unwrap());
    let raw = Arc::new(Mutex::new(raw(server)));
    let (seen, says) = mpsc::channel();
    let listener = lock.listen(Listen::Loss, {
        let path = path.clone();
        move |_| seen.send(queue(&mut raw.lock().unwrap(), &path).len()).unwrap()
    });
    lock.acquire(None).unwrap();
    let closing = client.clone();
    let on_trigger = trigger.listen(Listen::All, move |_| closing.close().unwrap());
    trigger.acquire(None).unwrap();
    assert_eq!(says.recv_timeout(TEST_TIMEOUT).unwrap(), 1, "its node was there");
    drop((listener, on_trigger));
}

/// A handler that does not return delays the end of a session by one second, but not forever. The test closes the
/// client in the background, so that it can let the handler return.
#[test]
fn hanging_loss_callback_delays_close_by_one_second_at_most() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let path = path("hangs");
    let lock = client.mutex(&path).unwrap();
    let (entered, is_in) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let listener = lock.listen(Listen::Loss, move |_| {
        entered.send(()).unwrap();
        let _ = may_go_on.lock().unwrap().recv();
    });
    lock.acquire(None).unwrap();
    let (closing, mut raw) = (client.start_close().unwrap(), raw(server));
    assert_eq!(status(lock.acquire(None)), Status::Closed);
    is_in.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(queue(&mut raw, &path).len(), 1, "the session waits for the handler");
    wait_until(TEST_TIMEOUT, || queue(&mut raw, &path).is_empty());
    drop(go_on);
    closing.wait_for(TEST_TIMEOUT).unwrap().unwrap();
    drop(listener);
}

/// A client that reports its losses does not grant locks to its own waiters.
#[test]
fn closing_client_grants_nothing_while_reporting_losses() {
    let server = ZooKeeper::shared();
    let clients = [client(&server.address()), client(&server.address())];
    let path = path("grants-nothing");
    let [lock, other] = clients.each_ref().map(|client| client.mutex(&path).unwrap());
    lock.acquire_as(Owner::task(1), None).unwrap();
    let second = lock.start_acquire(Owner::task(2), None).unwrap();
    let (seen, says) = mpsc::channel();
    let listener = lock.listen(Listen::Loss, {
        let lock = lock.clone();
        move |_| {
            let first = lock.release_as(Owner::task(1)).unwrap_err().status();
            wait_until(TEST_TIMEOUT, || second.wait_for(Duration::ZERO).is_some());
            seen.send((first, status(second.wait_for(Duration::ZERO).unwrap()))).unwrap();
        }
    });
    clients[0].close().unwrap();
    assert_eq!(says.try_recv().unwrap(), (Status::Closed, Status::Closed));
    other.acquire(Some(TEST_TIMEOUT)).unwrap();
    other.release().unwrap();
    drop(listener);
}

#[test]
fn listeners_of_a_polling_client_run_in_dispatch_events() {
    let server = ZooKeeper::shared();
    let config = Config::new().poll_events(true);
    let client = Client::connect(&server.address(), &config).unwrap();
    let lock = client.mutex(&path("polled")).unwrap();
    let recorder = EventRecorder::default();
    let (here, elsewhere) = (thread::current().id(), Arc::new(AtomicBool::new(false)));
    let (record, is_elsewhere) = (recorder.handler(), Arc::clone(&elsewhere));
    let listener = lock.listen(Listen::All, move |event| {
        record(event);
        is_elsewhere.fetch_or(thread::current().id() != here, Ordering::SeqCst);
    });
    lock.acquire(None).unwrap();
    assert_eq!(recorder.lock_transitions(), []);
    assert_eq!(client.dispatch_events().unwrap(), 1);
    lock.release().unwrap();
    drop(listener);
    assert_eq!(client.dispatch_events().unwrap(), 0, "the listener was removed");
    assert_eq!(recorder.lock_transitions().len(), 1);
    assert!(!elsewhere.load(Ordering::SeqCst));
}

/// A library thread closes the client. The program still dispatches the events of the closing client, and the
/// library calls no handler itself.
#[test]
fn polling_client_that_closes_in_the_background_leaves_its_handlers_to_the_program() {
    let server = ZooKeeper::shared();
    let config = Config::new().poll_events(true);
    let client = Client::connect(&server.address(), &config).unwrap();
    let lock = client.mutex(&path("polled-end")).unwrap();
    let (seen, losses) = mpsc::channel();
    let listener = lock.listen(Listen::Loss, move |_| seen.send(thread::current().id()).unwrap()).unwrap();
    lock.acquire(None).unwrap();
    let closing = client.start_close().unwrap();
    assert_eq!(status(lock.acquire(None)), Status::Closed);
    wait_until(TEST_TIMEOUT, || client.dispatch_events().unwrap() == 1);
    assert_eq!(losses.recv_timeout(TEST_TIMEOUT).unwrap(), thread::current().id());
    closing.wait_for(TEST_TIMEOUT).unwrap().unwrap();
    assert_eq!(status(client.dispatch_events()), Status::Closed);
    assert!(losses.try_recv().is_err(), "the handler ran once");
    drop(listener);
}

/// A forked child has a copy of the listener, and of a handler that belongs to the parent.
#[test]
fn in_a_forked_child_a_drop_does_nothing() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("forked")).unwrap();
    let recorder = EventRecorder::default();
    let owned = Arc::new(());
    let (record, owns) = (recorder.handler(), Arc::clone(&owned));
    let mut listener = Some(lock.listen(Listen::All, move |event| {
        let _owns = &owns;
        record(event);
    }));
    // SAFETY: The child only drops the listener, calls the library and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(listener.take());
        let is_right = Arc::strong_count(&owned) == 2 && status(lock.listen(Listen::All, |_| {})) == Status::Forked;
        // SAFETY: The call has no preconditions.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut ended = -1;
    // SAFETY: The status is valid for writes.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut ended, 0) }, child);
    assert_eq!(ended, 0);
    lock.acquire(None).unwrap();
    wait_until(TEST_TIMEOUT, || recorder.lock_transitions().len() == 1);
    drop(listener);
    assert_eq!(Arc::strong_count(&owned), 1);
}

/// No server answers. The client calls the listener at the end of the session lease.
#[test]
fn loss_is_reported_at_lease_end_without_server() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let client = client_with(&proxy.address(), 3 * SECOND);
    let lock = client.mutex(&path("silent")).unwrap();
    let recorder = EventRecorder::default();
    let listener = lock.on_lost(recorder.handler()).unwrap();
    lock.acquire(None).unwrap();
    proxy.refuse(true);
    proxy.cut();
    wait_until(TEST_TIMEOUT, || client.state().unwrap() == ClientState::Suspended);
    assert_eq!(recorder.lock_transitions(), []);
    wait_until(TEST_TIMEOUT, || recorder.lock_transitions().len() == 1);
    assert_eq!((recorder.lock_transitions()[0].1, recorder.lock_transitions()[0].2), (Suspended, Uncertain));
    drop(listener);
}

// Waits.

#[test]
fn a_wait_for_a_loss_ends_when_the_node_is_deleted() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let (lock, semaphore) = (client.mutex(&path("wait")).unwrap(), client.semaphore(&path("wait-leases"), 2).unwrap());
    lock.acquire(None).unwrap();
    let leases = semaphore.acquire(2, None).unwrap();
    let mut raw = raw(server);
    for limit in [Some(Duration::ZERO), Some(20 * MS)] {
        assert!(!lock.wait_lost(limit).unwrap());
        assert!(!leases.wait_lost(limit).unwrap());
    }
    let (node, lease) = (lock.node_paths().unwrap().remove(0), leases.node_paths().unwrap().remove(1));
    let owner = Owner::current_thread();
    thread::scope(|scope| {
        let of_lock = scope.spawn(|| lock.wait_lost_as(owner, None));
        let of_leases = scope.spawn(|| leases.wait_lost(Some(TEST_TIMEOUT)));
        // This is not a wait for the lock, so a cancel does not end it.
        lock.cancel().unwrap();
        semaphore.cancel().unwrap();
        semaphore.close().unwrap();
        thread::sleep(50 * MS);
        assert!(!of_lock.is_finished() && !of_leases.is_finished());
        assert_eq!(raw.delete(&node), 0);
        assert!(of_lock.join().unwrap().unwrap());
        assert_eq!(raw.delete(&lease), 0);
        assert!(of_leases.join().unwrap().unwrap());
    });
    assert!(lock.wait_lost(None).unwrap(), "it is lost, and not released yet");
    assert_eq!(status(lock.release()), Status::Lost);
    assert_eq!(status(lock.wait_lost(None)), Status::NotOwner);
    assert_eq!(status(leases.release()), Status::Lost);
    assert_eq!(status(leases.wait_lost(Some(Duration::ZERO))), Status::NotOwner);
}

#[test]
fn a_wait_for_a_loss_ends_with_the_hold_the_lock_or_the_client() {
    let server = ZooKeeper::shared();
    type End = fn(&Client, &zklock::Lock);
    let ends: [(End, Status); 3] = [
        (|_, lock| lock.release_as(Owner::task(1)).unwrap(), Status::NotOwner),
        (|_, lock| lock.close().unwrap(), Status::Closed),
        (|client, _| client.close().unwrap(), Status::Closed),
    ];
    for (end, expected) in ends {
        let client = client(&server.address());
        let lock = client.mutex(&path("ends")).unwrap();
        assert_eq!(status(lock.wait_lost_as(Owner::task(1), None)), Status::NotOwner);
        lock.acquire_as(Owner::task(1), None).unwrap();
        thread::scope(|scope| {
            let waiters = [1, 2].map(|_| scope.spawn(|| lock.wait_lost_as(Owner::task(1), None)));
            assert!(!lock.wait_lost_as(Owner::task(1), Some(30 * MS)).unwrap());
            end(&client, &lock);
            for waiter in waiters {
                assert_eq!(status(waiter.join().unwrap()), expected);
            }
        });
        assert_eq!(status(lock.wait_lost_as(Owner::task(1), Some(Duration::ZERO))), expected);
    }
}

#[test]
fn a_multi_lock_of_two_clients_is_lost_with_one_of_its_locks() {
    let server = ZooKeeper::shared();
    let clients = [client(&server.address()), client(&server.address())];
    for broken in 0..2 {
        let locks = clients.each_ref().map(|client| client.mutex(&path("part")).unwrap());
        let multi = zklock::Lock::multi(&[&locks[0], &locks[1]]).unwrap();
        let hold = multi.hold(None).unwrap();
        let node = locks[broken].node_paths_of(hold.owner()).unwrap().remove(0);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| hold.wait_lost(None));
            assert!(!hold.wait_lost(Some(20 * MS)).unwrap());
            assert_eq!(raw(server).delete(&node), 0);
            assert!(waiter.join().unwrap().unwrap());
        });
        assert_eq!(status(hold.release()), Status::Lost);
    }
}

#[test]
fn wait_lost_in_a_callback_polls_but_returns_deadlock_if_it_would_wait() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("in-handler")).unwrap();
    let (sender, answers) = mpsc::channel();
    let (give, asked) = mpsc::channel::<zklock::Hold>();
    let asked = Mutex::new(asked);
    let listener = lock.listen(Listen::All, move |_| {
        let Ok(hold) = asked.lock().unwrap().recv() else { return };
        let ask = |limit| hold.wait_lost(limit).map_err(|error| error.status());
        let _ = sender.send([ask(Some(Duration::ZERO)), ask(None), ask(Some(SECOND))]);
    });
    let hold = lock.hold(None).unwrap();
    give.send(hold.clone()).unwrap();
    let answers = answers.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(answers, [Ok(false), Err(Status::Deadlock), Err(Status::Deadlock)]);
    drop((give, listener));
    hold.release().unwrap();
}

/// A hook that does not return blocks the thread that reads for all clients. The waiting thread can use only its own
/// clock.
#[test]
fn wait_lost_ends_with_the_lease_while_the_io_thread_hangs() {
    let mut worker = Worker::start("hangs");
    let (before, lost, took) = worker.result();
    assert!(lost, "the lease had ended");
    assert_not_late(took, before);
}

/// The process is stopped with SIGSTOP for longer than the session lease and shorter than the session timeout. The hold
/// may become safe again immediately.
#[test]
fn a_wait_for_a_loss_ends_at_once_when_the_process_goes_on_after_its_lease() {
    let mut worker = Worker::start("stopped");
    worker.signal(libc::SIGSTOP);
    // The test cannot observe the end of the lease in a stopped process. The lease ends after four of the six seconds.
    thread::sleep(5 * SECOND);
    worker.signal(libc::SIGCONT);
    let (_, lost, took) = worker.result();
    assert!(lost, "the lease had ended");
    // The wait includes the pause of five seconds.
    assert_not_late(took, 5 * SECOND);
}

/// A separate process that runs the test `worker`. A signal or a hook that hangs would also affect the other tests.
struct Worker(std::process::Child, std::io::BufReader<std::process::ChildStdout>);

const WORK: &str = "ZKL_TEST_WORKER";

impl Worker {
    /// Starts the process. Returns when the process holds a lock and waits for its loss.
    fn start(what: &str) -> Self {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "loss::worker", "--ignored", "--nocapture"])
            .env(WORK, format!("{what} {} {}", ZooKeeper::shared().address(), path(what)))
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let output = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut worker = Self(child, output);
        worker.line("waits");
        worker
    }

    fn signal(&self, signal: i32) {
        // SAFETY: The process is a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.0.id().cast_signed(), signal) }, 0);
    }

    /// Returns the remaining time of the session lease, whether the hold was lost, and the time until the wait
    /// returned.
    fn result(&mut self) -> (Duration, bool, Duration) {
        let line = self.line("result");
        let mut words = line.split(' ').skip(1);
        let mut number = || Duration::from_millis(words.next().unwrap().parse().unwrap());
        let (before, took) = (number(), number());
        let lost = line.ends_with("true");
        (before, lost, took)
    }

    fn line(&mut self, begin: &str) -> String {
        use std::io::BufRead;
        loop {
            let mut line = String::new();
            assert_ne!(self.1.read_line(&mut line).unwrap(), 0, "the worker ended");
            // The name of the test may precede the text in the line.
            if let Some(at) = line.find(&format!("worker: {begin}")) {
                return line[at + "worker: ".len()..].trim().to_owned();
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "run by other tests, in a process of its own"]
fn worker() {
    let Ok(work) = std::env::var(WORK) else { return };
    // If the wait does not end, the test that waits for this process fails.
    thread::spawn(|| {
        thread::sleep(3 * TEST_TIMEOUT);
        std::process::exit(1);
    });
    let words: Vec<&str> = work.split(' ').collect();
    let [what, servers, path] = words[..] else { panic!("{work}") };
    let client = client_with(servers, 6 * SECOND);
    let lock = client.mutex(path).unwrap();
    lock.acquire(None).unwrap();
    if what == "hangs" {
        // The thread that reads for all clients calls this hook, because no thread waits for the operation.
        let waited_for = client.mutex(&format!("{path}-hook")).unwrap();
        waited_for.acquire_as(Owner::task(2), None).unwrap();
        let started = waited_for.start_acquire(Owner::task(1), None).unwrap();
        let (entered, is_in) = mpsc::channel();
        started
            .on_done(move || {
                entered.send(thread::current().name().map(str::to_owned)).unwrap();
                thread::sleep(60 * SECOND);
            })
            .unwrap();
        drop(waited_for.start_release(Owner::task(2), false).unwrap());
        assert_eq!(is_in.recv_timeout(TEST_TIMEOUT).unwrap().as_deref(), Some("zkl-io"));
    }
    let start = std::time::Instant::now();
    let before = lock.remaining().unwrap();
    println!("\nworker: waits");
    let lost = lock.wait_lost(None);
    println!("\nworker: result {} {} {}", before.as_millis(), start.elapsed().as_millis(), lost == Ok(true));
    // The client may be unable to close.
    std::process::exit(0);
}

// Holds.

#[test]
fn a_hold_reports_its_state_and_a_failed_release() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("hold")).unwrap();
    let hold = lock.hold_as(Owner::current_thread(), None).unwrap();
    assert_eq!((hold.token(), hold.fencing_pass()), (lock.fencing_token().unwrap(), 0));
    assert_eq!((hold.is_held().unwrap(), hold.state().unwrap()), (true, Held));
    assert!(hold.remaining().unwrap() > Duration::ZERO);
    assert!(!hold.wait_lost(Some(Duration::ZERO)).unwrap());
    thread::scope(|scope| {
        // A hold is the same on whatever thread it is used.
        assert!(scope.spawn(|| hold.is_held().unwrap()).join().unwrap());
    });
    assert!(format!("{hold:?}").contains(lock.path()));
    hold.release().unwrap();
    assert_eq!(lock.state_in_process().unwrap(), Free);
    let hold = lock.hold(None).unwrap();
    let (losses, heard) = mpsc::channel();
    let _listener = hold.on_lost(move |event| losses.send(event.clone()).unwrap()).unwrap();
    assert_eq!(raw(server).delete(&hold.node_paths().unwrap()[0]), 0);
    assert!(hold.wait_lost(None).unwrap());
    assert!(matches!(heard.recv_timeout(TEST_TIMEOUT).unwrap(), Event::Lock { token, .. } if token == hold.token()));
    assert_eq!((hold.state().unwrap(), hold.remaining().unwrap()), (Lost, Duration::ZERO));
    assert_eq!((status(hold.check()), status(hold.node_paths())), (Status::Lost, Status::Lost));
    assert_eq!(status(hold.release()), Status::Lost);
    drop(lock.hold(None).unwrap());
    wait_until(TEST_TIMEOUT, || lock.participants().unwrap().is_empty());
    assert!(heard.try_recv().is_err(), "a later hold is another hold");
}

#[test]
fn a_hold_moves_between_threads_and_keeps_its_lock() {
    let server = ZooKeeper::shared();
    let path = path("owned");
    let watched = client(&server.address()).mutex(&path).unwrap();
    let hold = client(&server.address()).mutex(&path).unwrap().hold(None).unwrap();
    let token = hold.token();
    let hold = thread::spawn(move || {
        assert_eq!(hold.view().unwrap().token, token);
        hold
    });
    let hold = hold.join().unwrap();
    assert_eq!(watched.participants().unwrap().len(), 1, "the hold is the last user of its client");
    thread::spawn(move || hold.release().unwrap()).join().unwrap();
    assert_eq!(watched.participants().unwrap(), []);
    // Two holds of one thread exclude each other.
    let first = watched.hold(None).unwrap();
    assert_eq!(watched.hold(Some(Duration::ZERO)).unwrap_err().status(), Status::Timeout);
    assert_eq!(status(watched.acquire(Some(Duration::ZERO))), Status::Timeout, "the owner is not a thread");
    thread::scope(|scope| {
        let second = scope.spawn(|| watched.hold(Some(TEST_TIMEOUT)));
        drop(first);
        drop(second.join().unwrap().unwrap());
    });
}
