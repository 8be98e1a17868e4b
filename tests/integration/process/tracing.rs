//! Tracing: a span for each acquire, release, connect and session, and events inside them. The test has its own
//! subscriber, which is the only one in the process.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a failing test may panic")]

#[path = "../common.rs"]
mod common;

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use common::{TEST_TIMEOUT, client, client_with, path, raw, status, wait_for_waiters};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use zklock::internal::{LogDispatch, set_log_handler};
use zklock::{Config, Owner, Status};
use zklock_test_support::{Proxy, ZooKeeper, wait_until};

type Fields = BTreeMap<&'static str, String>;

/// A span or an event of `tracing`.
#[derive(Debug, Clone, Default)]
struct CapturedEvent {
    target: &'static str,
    name: &'static str,
    level: Option<Level>,
    fields: Fields,
    /// For a span: whether it has ended. For an event: the name of its span.
    is_over: bool,
    within: Option<&'static str>,
}

#[derive(Default)]
struct Listener {
    last: AtomicU64,
    spans: Mutex<BTreeMap<u64, CapturedEvent>>,
    lines: Mutex<Vec<CapturedEvent>>,
}

thread_local! {
    static ENTERED: Mutex<Vec<u64>> = const { Mutex::new(Vec::new()) };
}

struct FieldVisitor<'a>(&'a mut Fields);

impl Visit for FieldVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        write!(text, "{value:?}").unwrap();
        self.0.insert(field.name(), text);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Subscriber for &'static Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("zklock")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut seen = CapturedEvent { name: attributes.metadata().name(), ..CapturedEvent::default() };
        attributes.record(&mut FieldVisitor(&mut seen.fields));
        self.spans.lock().unwrap().insert(id, seen);
        Id::from_u64(id)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        values.record(&mut FieldVisitor(&mut self.spans.lock().unwrap().get_mut(&span.into_u64()).unwrap().fields));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let inner = ENTERED.with(|entered| entered.lock().unwrap().last().copied());
        let within = inner.map(|id| self.spans.lock().unwrap()[&id].name);
        let (target, level) = (event.metadata().target(), Some(*event.metadata().level()));
        let mut seen = CapturedEvent { target, level, within, ..CapturedEvent::default() };
        event.record(&mut FieldVisitor(&mut seen.fields));
        self.lines.lock().unwrap().push(seen);
    }

    fn enter(&self, span: &Id) {
        ENTERED.with(|entered| entered.lock().unwrap().push(span.into_u64()));
    }

    fn exit(&self, span: &Id) {
        ENTERED.with(|entered| assert_eq!(entered.lock().unwrap().pop(), Some(span.into_u64())));
    }

    fn try_close(&self, span: Id) -> bool {
        self.spans.lock().unwrap().get_mut(&span.into_u64()).unwrap().is_over = true;
        true
    }
}

/// Returns the subscriber of all tests in the process. A test finds its own spans by their paths and servers.
fn listener() -> &'static Listener {
    static LISTENER: OnceLock<&'static Listener> = OnceLock::new();
    LISTENER.get_or_init(|| {
        let listener: &'static Listener = Box::leak(Box::default());
        tracing::subscriber::set_global_default(listener).unwrap();
        listener
    })
}

impl Listener {
    fn lines(&self) -> MutexGuard<'_, Vec<CapturedEvent>> {
        self.lines.lock().unwrap()
    }

    /// The messages about a lock.
    fn messages(&self, path: &str) -> Vec<String> {
        let is_of = |line: &&CapturedEvent| {
            line.target == "zklock::lock" && line.fields.get("path").is_some_and(|is| is == path)
        };
        self.lines().iter().filter(is_of).map(message).collect()
    }

    fn wait_for_line(&self, field: &str, value: &str, says: &str) -> CapturedEvent {
        let has = |line: &&CapturedEvent| line.fields.get(field).is_some_and(|is| is == value) && message(line) == says;
        wait_until(TEST_TIMEOUT, || self.lines().iter().any(|line| has(&line)));
        self.lines().iter().find(has).unwrap().clone()
    }

    /// The spans of this name and path, ended or not.
    fn spans(&self, name: &str, field: &str, value: &str) -> Vec<CapturedEvent> {
        let spans = self.spans.lock().unwrap();
        let is_wanted =
            |span: &&CapturedEvent| span.name == name && span.fields.get(field).is_some_and(|is| is == value);
        spans.values().filter(is_wanted).cloned().collect()
    }
}

fn message(line: &CapturedEvent) -> String {
    line.fields["message"].clone()
}

#[test]
fn each_acquire_and_each_release_is_a_span() {
    let listener = listener();
    let (client, other) = (client(&ZooKeeper::shared().address()), client(&ZooKeeper::shared().address()));
    let path = path("span");
    let (lock, held) = (client.mutex(&path).unwrap(), other.mutex(&path).unwrap());
    lock.acquire(None).unwrap();
    lock.release().unwrap();
    held.acquire(Some(Duration::ZERO)).unwrap();
    assert_eq!(status(lock.acquire(Some(Duration::from_secs(1)))), Status::Timeout);
    let waiting = lock.start_acquire(Owner::task(7), Some(TEST_TIMEOUT)).unwrap();
    wait_for_waiters(&held, 2);
    let all = listener.spans("acquire", "path", &path);
    assert!(!all[3].is_over && !all[3].fields.contains_key("outcome"), "{all:?}");
    waiting.cancel().unwrap();
    assert_eq!(status(waiting.wait()), Status::Canceled);
    // The thread that ends an acquire wakes the caller before it ends the span.
    wait_until(TEST_TIMEOUT, || listener.spans("acquire", "path", &path).iter().all(|span| span.is_over));
    let all = listener.spans("acquire", "path", &path);
    let told = |field| all.iter().map(|span| span.fields.get(field).cloned()).collect::<Vec<_>>();
    let some = |values: &[&str]| values.iter().map(|&value| Some(value.to_owned())).collect::<Vec<_>>();
    assert_eq!(told("outcome"), some(&["ZKL_OK", "ZKL_OK", "ZKL_E_TIMEOUT", "ZKL_E_CANCELED"]));
    assert_eq!(told("timeout_ms"), [None, Some("0".into()), Some("1000".into()), Some("60000".into())]);
    assert_eq!(told("owner")[3].as_deref(), Some("owner 7"));
    assert!(all.iter().all(|span| span.fields["recipe"] == "mutex"), "{all:?}");
    assert!(all[2].fields["waited_us"].parse::<u64>().unwrap() >= 1_000_000, "{all:?}");
    let releases = listener.spans("release", "path", &path);
    assert_eq!(releases.len(), 1);
    assert!(
        releases[0].is_over && releases[0].fields["outcome"] == "ZKL_OK" && releases[0].fields["confirmed"] == "true"
    );
    held.release_nowait().unwrap();
    // Leases, and a multi-lock.
    let semaphore = client.semaphore(&common::path("span of leases"), 2).unwrap();
    semaphore.acquire(2, Some(TEST_TIMEOUT)).unwrap().release().unwrap();
    let of_leases = listener.spans("acquire", "path", semaphore.path());
    assert_eq!((of_leases[0].fields["recipe"].as_str(), of_leases[0].fields["quantity"].as_str()), ("semaphore", "2"));
    assert_eq!(listener.spans("release", "path", semaphore.path())[0].fields["outcome"], "ZKL_OK");
    let multi = zklock::Lock::multi(&[&lock, &client.mutex(&common::path("other")).unwrap()]).unwrap();
    multi.acquire(Some(TEST_TIMEOUT)).unwrap();
    assert_eq!(listener.spans("acquire", "path", multi.path())[0].fields["recipe"], "multi");
}

#[test]
fn lock_lines_are_inside_the_session_span() {
    let listener = listener();
    let server = ZooKeeper::shared();
    let client = client_with(&server.address(), Duration::from_secs(2));
    let session = format!("{:#x}", client.session_id().unwrap());
    let lock = client.mutex(&path("told")).unwrap();
    lock.acquire(None).unwrap();
    let token = lock.fencing_token().unwrap().to_string();
    lock.release().unwrap();
    let acquired = listener.wait_for_line("path", lock.path(), "acquired");
    assert_eq!(
        (acquired.target, acquired.level, acquired.within),
        ("zklock::lock", Some(Level::DEBUG), Some("session"))
    );
    assert_eq!((&acquired.fields["token"], acquired.fields["handed_over"].as_str()), (&token, "false"));
    assert_eq!(listener.wait_for_line("path", lock.path(), "released").fields["token"], token);
    lock.acquire(None).unwrap();
    raw(server).delete(&lock.node_paths().unwrap()[0]);
    let lost = listener.wait_for_line("path", lock.path(), "lock lost");
    assert_eq!((lost.level, lost.within), (Some(Level::WARN), Some("session")));
    assert_eq!(lost.fields["cause"], "another client or an operator deleted its node");
    assert_eq!(status(lock.release()), Status::Lost);
    // Each message occurs once, and the order is right.
    wait_until(TEST_TIMEOUT, || listener.messages(lock.path()).len() == 4);
    assert_eq!(listener.messages(lock.path()), ["acquired", "released", "acquired", "lock lost"]);
    let spans = listener.spans("session", "session", &session);
    assert!(spans.len() == 1 && !spans[0].is_over && spans[0].fields["timeout_ms"] == "2000", "{spans:?}");
    client.close().unwrap();
    assert_eq!(listener.wait_for_line("session", &session, "session closed").level, Some(Level::INFO));
    wait_until(TEST_TIMEOUT, || listener.spans("session", "session", &session)[0].is_over);
}

#[test]
fn connections_and_requests_are_logged() {
    let listener = listener();
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let servers = proxy.address();
    let client = client(&servers);
    let session = format!("{:#x}", client.session_id().unwrap());
    assert_eq!(listener.spans("connect", "servers", &servers)[0].fields["outcome"], "ZKL_OK");
    let lock = client.mutex(&path("connections")).unwrap();
    lock.acquire(None).unwrap();
    proxy.refuse(true);
    proxy.cut();
    let lost = listener.wait_for_line("session", &session, "connection lost");
    assert_eq!((lost.target, lost.level), ("zklock::session", Some(Level::WARN)));
    assert!(lost.fields["server"] == servers && !lost.fields["cause"].is_empty(), "{lost:?}");
    assert_eq!(listener.wait_for_line("server", &servers, "connection attempt failed").level, Some(Level::INFO));
    assert_eq!(listener.wait_for_line("path", lock.path(), "hold state changed").fields["state"], "SUSPENDED");
    proxy.refuse(false);
    listener.wait_for_line("session", &session, "reconnected");
    lock.release().unwrap();
    let create = |line: &CapturedEvent| {
        line.target == "zklock::request" && line.fields.get("path").is_some_and(|path| path.starts_with(lock.path()))
    };
    let requests: Vec<CapturedEvent> = listener.lines().iter().filter(|line| create(line)).cloned().collect();
    assert!(requests.iter().all(|request| request.level == Some(Level::TRACE)), "{requests:?}");
    let ops: Vec<&str> = requests.iter().filter_map(|request| request.fields.get("op")).map(String::as_str).collect();
    assert!(ops.contains(&"Create2") || ops.contains(&"Create") || ops.contains(&"Multi"), "{ops:?}");
    assert!(ops.contains(&"Delete"), "{ops:?}");
    assert!(listener.lines().iter().any(|line| message(line) == "answer" && line.fields.contains_key("took_us")));
}

#[test]
fn a_file_with_a_secret_that_others_may_read_or_write_is_logged_once() {
    let listener = listener();
    let directory = std::env::temp_dir().join(format!("zklock-exposed-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    for (name, content, mode, lines) in [
        ("readable", "auth.digest = alice:secret", 0o644, 1),
        ("writable", "tls.key_password = secret", 0o602, 1),
        ("closed", "auth.digest = alice:secret", 0o640, 0),
        ("public", "session.timeout = 5000", 0o666, 0),
    ] {
        let file = directory.join(name);
        std::fs::write(&file, content).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        for _ in 0..2 {
            Config::new().load(&file).unwrap();
        }
        let is_of_file =
            |line: &&CapturedEvent| line.fields.get("file").is_some_and(|is| *is == file.display().to_string());
        let found: Vec<CapturedEvent> = listener.lines().iter().filter(is_of_file).cloned().collect();
        assert_eq!(found.len(), lines, "{name}: {found:?}");
        for line in &found {
            assert_eq!(message(line), "other users may read or write a file that contains a secret");
            assert_eq!((line.level, &*line.fields["mode"]), (Some(Level::WARN), &*format!("{mode:03o}")));
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn log_handler_is_refused_if_a_subscriber_exists() {
    listener();
    let refused =
        set_log_handler(zklock::internal::Level::Info, LogDispatch::EventThread, Some(std::sync::Arc::new(|_| {})));
    assert_eq!(refused.unwrap_err().status(), Status::Unsupported);
}
