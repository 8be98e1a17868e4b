//! Credentials from the program, from a file and from a callback, and the loading of these credentials before each
//! attempt to connect. All tests use real servers.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{LONG_SESSION, TEST_TIMEOUT, assert_ends_at_limit, path, raw, status, timed};
use zklock::{Client, ClientState, Config, Status};
use zklock_test_support::{Direction, Proxy, Verdict, ZooKeeper, wait_until};

const MS: Duration = Duration::from_millis(1);

/// A file of one test, which is removed at the end of the test.
struct TestFile(PathBuf);

impl TestFile {
    fn new(content: &str) -> Self {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let file = Self(std::env::temp_dir().join(format!("zklock-credentials-{}-{number}", std::process::id())));
        file.write(content);
        file
    }

    fn write(&self, content: &str) {
        fs::write(&self.0, content).unwrap();
    }

    fn remove(&self) {
        let _ = fs::remove_file(&self.0);
    }

    fn config(&self) -> Config {
        with_option("auth.digest_file", self.0.to_str().unwrap())
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        self.remove();
    }
}

fn with_option(name: &str, value: &str) -> Config {
    let mut config = Config::new();
    config.set(name, value).unwrap();
    config
}

/// A proxy that collects the credentials in all auth packets.
fn recording_proxy(server: &ZooKeeper) -> (Proxy, Arc<Mutex<Vec<String>>>) {
    let proxy = Proxy::start(&server.address());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sent = Arc::clone(&seen);
    proxy.hook(move |direction, frame: &mut Vec<u8>| {
        // After the xid, an auth packet contains two numbers, the scheme and the credentials.
        if direction == Direction::ToServer && frame.get(..4) == Some(&(-4_i32).to_be_bytes()) {
            let fields = String::from_utf8_lossy(&frame[12..]).replace(|letter: char| letter.is_control(), "");
            sent.lock().unwrap().push(fields);
        }
        Verdict::Forward
    });
    (proxy, seen)
}

fn connect_error(servers: &str, config: &Config) -> zklock::Error {
    Client::connect(servers, config).err().unwrap()
}

fn wait_for_state(client: &Client, state: ClientState) {
    wait_until(TEST_TIMEOUT, || client.state().unwrap() == state);
}

#[test]
fn digest_and_digest_file_are_sent_on_each_connection_before_any_other_request() {
    let server = ZooKeeper::shared();
    let (proxy, seen) = recording_proxy(server);
    for (option, suffix) in
        [("auth.digest", ""), ("auth.digest_file", ""), ("auth.digest_file", "\n"), ("auth.digest_file", "\r\n")]
    {
        seen.lock().unwrap().clear();
        let file = TestFile::new(&format!("alice:first{suffix}"));
        let value = if option == "auth.digest" { "alice:first" } else { file.0.to_str().unwrap() };
        let client =
            Client::connect(&proxy.address(), &with_option(option, value).add_auth("digest", "bob:static")).unwrap();
        let lock = client.mutex(&path("digest")).unwrap();
        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
        file.write("alice:second");
        proxy.cut();
        wait_until(TEST_TIMEOUT, || seen.lock().unwrap().len() == 4);
        lock.release().unwrap();
        let second = if option == "auth.digest" { "first" } else { "second" };
        let expected = ["alice:first", "bob:static", &format!("alice:{second}"), "bob:static"];
        assert_eq!(*seen.lock().unwrap(), expected.map(|sent| format!("digest{}", sent)), "{option}");
        client.close().unwrap();
    }
}

#[test]
fn unusable_digest_file_fails_the_first_connect_at_once_and_is_named() {
    let server = ZooKeeper::shared();
    let file = TestFile::new("");
    let name = file.0.to_str().unwrap().to_owned();
    for (content, why) in [
        ("", "does not contain one line with user:password"),
        ("hunter2", "does not contain one line with user:password"),
        ("a:hunter2\nb:c\n", "does not contain one line with user:password"),
        ("a:hunter2\n\n", "does not contain one line with user:password"),
        (&"a:".repeat(40_000), "is longer than 65536 bytes"),
    ] {
        file.write(content);
        let (error, took) = timed(|| connect_error(&server.address(), &file.config().connect_timeout(TEST_TIMEOUT)));
        assert_eq!(error.status(), Status::Invalid, "{error}");
        assert!(
            error.message().starts_with(&format!("auth.digest_file {name:?}")) && error.message().contains(why),
            "{error}"
        );
        assert!(!error.message().contains("hunter2"), "{error}");
        assert!(took < 5000 * MS, "{took:?}");
    }
    file.remove();
    let error = connect_error("127.0.0.1:1", &file.config());
    assert_eq!(error.status(), Status::Invalid);
    assert!(error.message().contains("No such file"), "{error}");
    let both = with_option("auth.digest", "a:b");
    let mut both = both;
    both.set("auth.digest_file", &name).unwrap();
    assert!(connect_error(&server.address(), &both).message().contains("are both set"));
}

#[test]
fn file_that_disappears_delays_the_reconnect_until_it_is_back() {
    let (proxy, seen) = recording_proxy(ZooKeeper::shared());
    let file = TestFile::new("alice:first");
    let client = Client::connect(&proxy.address(), &file.config()).unwrap();
    let lock = client.mutex(&path("rotation")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    let session = client.session_id().unwrap();
    file.remove();
    proxy.cut();
    wait_for_state(&client, ClientState::Suspended);
    let error = client.mutex(&path("other")).unwrap().acquire(Some(300 * MS)).unwrap_err();
    assert_eq!(error.status(), Status::Connection);
    assert!(error.message().contains("auth.digest_file") && error.message().contains("No such file"), "{error}");
    file.write("alice:second");
    wait_for_state(&client, ClientState::Connected);
    assert_eq!(client.session_id().unwrap(), session);
    lock.release().unwrap();
    assert_eq!(*seen.lock().unwrap(), ["digestalice:first", "digestalice:second"]);
}

#[test]
fn callback_rotates_credentials_for_each_attempt() {
    let (proxy, seen) = recording_proxy(ZooKeeper::shared());
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let config = Config::new()
        .auth_callback("digest", move || Ok(format!("alice:{}", counted.fetch_add(1, Ordering::SeqCst)).into_bytes()));
    let client = Client::connect(&proxy.address(), &config).unwrap();
    let lock = client.mutex(&path("callback")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    for _ in 0..3 {
        let before = seen.lock().unwrap().len();
        proxy.cut();
        wait_until(TEST_TIMEOUT, || seen.lock().unwrap().len() > before);
        wait_for_state(&client, ClientState::Connected);
    }
    lock.release().unwrap();
    client.close().unwrap();
    let seen = seen.lock().unwrap();
    assert!(seen.len() >= 4 && seen.is_sorted() && seen.windows(2).all(|two| two[0] != two[1]), "{seen:?}");
    assert_eq!(seen[0], "digestalice:0");
    let after_close = calls.load(Ordering::SeqCst);
    proxy.cut();
    assert_eq!(calls.load(Ordering::SeqCst), after_close);
}

#[test]
fn failing_callback_fails_the_first_connect_with_its_message() {
    let address = ZooKeeper::shared().address();
    let config =
        Config::new().connect_timeout(TEST_TIMEOUT).auth_callback("digest", || Err("the vault is sealed".into()));
    let (error, took) = timed(|| connect_error(&address, &config));
    assert_eq!(
        (error.status(), error.message()),
        (Status::Auth, "the auth callback for \"digest\" failed: the vault is sealed")
    );
    assert!(took < 5000 * MS, "{took:?}");
    let panicking = Config::new().auth_callback("digest", || panic!("on purpose"));
    assert_eq!(connect_error(&address, &panicking).message(), "the auth callback for \"digest\" panicked");
    let panicking = Config::new().auth_callback("digest", || Err(Box::new(PanickingError)));
    assert_eq!(connect_error(&address, &panicking).message(), "the auth callback for \"digest\" panicked");
}

#[test]
fn unknown_scheme_is_an_auth_error_at_once_after_one_connection() {
    let server = ZooKeeper::shared();
    let unknown = Config::new().auth_callback("no-such-scheme", || Ok(b"x".to_vec()));
    for config in [Config::new().add_auth("no-such-scheme", "x"), unknown] {
        let proxy = Proxy::start(&server.address());
        let (error, took) = timed(|| connect_error(&proxy.address(), &config.connect_timeout(TEST_TIMEOUT)));
        assert_eq!(error.status(), Status::Auth, "{error}");
        assert!(took < 5000 * MS, "{took:?}");
        assert_eq!(proxy.accepted_count(), 1);
    }
}

#[test]
fn refusal_after_a_reconnect_fails_calls_at_once_and_a_rotation_ends_it() {
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let config = Config::new().session_timeout(LONG_SESSION).add_auth("digest", "alice:first");
    let client = Client::connect(&proxy.address(), &config).unwrap();
    let (held, other) = (client.mutex(&path("held")).unwrap(), client.mutex(&path("other")).unwrap());
    held.acquire(Some(TEST_TIMEOUT)).unwrap();
    // A real server refuses the credentials, because it does not know the scheme.
    proxy.hook(|direction, frame: &mut Vec<u8>| {
        if direction == Direction::ToServer && frame.get(..4) == Some(&(-4_i32).to_be_bytes()) {
            frame[16] = b'x';
        }
        Verdict::Forward
    });
    let before = proxy.accepted_count();
    proxy.cut();
    let (result, took) = timed(|| other.acquire(Some(TEST_TIMEOUT)));
    assert_eq!(status(result), Status::Auth);
    assert!(took < 5000 * MS, "{took:?}");
    let (_, took) = timed(|| {
        for _ in 0..5 {
            assert_eq!(status(other.acquire(Some(TEST_TIMEOUT))), Status::Auth);
        }
    });
    // The pause between two attempts grows to half a second.
    let attempts = proxy.accepted_count() - before;
    assert!(attempts <= 10 + usize::try_from(took.as_millis()).unwrap() / 250, "{attempts} in {took:?}");
    assert!(held.is_held().unwrap());
    proxy.unhook();
    wait_for_state(&client, ClientState::Connected);
    held.release().unwrap();
}

/// The identity of alice with the password `first` in an access control list: the base64 form of the SHA-1 digest.
const ALICE: &str = "alice:z34SObkK3PzVJk03+vB6enuRwVM=";

#[test]
fn wrong_password_is_denied_at_protected_nodes_until_the_callback_returns_the_right_one() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let parent = path("protected").replace('/', "-").replacen('-', "/", 1);
    raw(server).create_private(&parent, "digest", ALICE).unwrap();
    let password = Arc::new(Mutex::new("wrong"));
    let current = Arc::clone(&password);
    let config =
        Config::new().auth_callback("digest", move || Ok(format!("alice:{}", current.lock().unwrap()).into_bytes()));
    let client = Client::connect(&proxy.address(), &config).unwrap();
    let lock = client.mutex(&format!("{parent}/lock")).unwrap();
    assert_eq!(status(lock.acquire(Some(TEST_TIMEOUT))), Status::Denied);
    *password.lock().unwrap() = "first";
    let before = proxy.accepted_count();
    proxy.cut();
    wait_until(TEST_TIMEOUT, || proxy.accepted_count() > before);
    wait_for_state(&client, ClientState::Connected);
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    lock.release().unwrap();
}

#[test]
fn server_that_enforces_authentication_refuses_requests_without_credentials() {
    for options in [ZooKeeper::options(), ZooKeeper::options().newest()] {
        let server =
            options.config_line("enforce.auth.enabled=true").config_line("enforce.auth.schemes=digest").start();
        let proxy = Proxy::start(&server.address());
        let config = Config::new().connect_timeout(TEST_TIMEOUT);
        let client = Client::connect(&proxy.address(), &config).unwrap();
        let lock = client.mutex(&path("enforced")).unwrap();
        let (result, took) = timed(|| lock.acquire(Some(TEST_TIMEOUT)));
        let error = result.unwrap_err();
        assert_eq!(error.status(), Status::Auth, "{error}");
        for part in ["SessionClosedRequireSaslAuth", "enforce.auth.schemes", "auth.digest"] {
            assert!(error.message().contains(part), "{error}");
        }
        assert!(took < 5000 * MS, "{took:?}");
        client.close().unwrap();
        assert!(proxy.accepted_count() <= 3, "{}", proxy.accepted_count());

        let file = TestFile::new("alice:first");
        let client = Client::connect(&proxy.address(), &file.config()).unwrap();
        let lock = client.mutex(&path("enforced")).unwrap();
        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
        proxy.cut();
        wait_until(TEST_TIMEOUT, || client.metrics().unwrap().reconnects == 1);
        wait_for_state(&client, ClientState::Connected);
        lock.release().unwrap();
    }
}

/// Ends a callback that blocks.
struct Gate(Arc<AtomicBool>);

impl Gate {
    fn new() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    fn open(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// A callback that does not return while the gate is closed.
    fn callback(&self, blocks: Arc<AtomicBool>) -> Config {
        let open = Arc::clone(&self.0);
        Config::new().auth_callback("digest", move || {
            while blocks.load(Ordering::SeqCst) && !open.load(Ordering::SeqCst) {
                std::thread::sleep(MS);
            }
            Ok(b"alice:secret".to_vec())
        })
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

#[test]
fn callback_that_hangs_delays_no_deadline_no_other_client_and_no_close() {
    let server = ZooKeeper::shared();
    let (gate, blocks) = (Gate::new(), Arc::new(AtomicBool::new(true)));
    let config = gate.callback(Arc::clone(&blocks)).connect_timeout(400 * MS);
    let error = assert_ends_at_limit(400 * MS, || Client::connect(&server.address(), &config)).err().unwrap();
    assert_eq!(error.status(), Status::Connection);
    assert!(error.message().contains("the auth callback for \"digest\""), "{error}");

    blocks.store(false, Ordering::SeqCst);
    let proxy = Proxy::start(&server.address());
    let config = gate.callback(Arc::clone(&blocks)).connect_timeout(TEST_TIMEOUT);
    let client = Client::connect(&proxy.address(), &config).unwrap();
    let lock = client.mutex(&path("hang")).unwrap();
    blocks.store(true, Ordering::SeqCst);
    proxy.cut();
    wait_for_state(&client, ClientState::Suspended);
    assert_eq!(status(assert_ends_at_limit(300 * MS, || lock.acquire(Some(300 * MS)))), Status::Connection);
    let other = Client::connect(&server.address(), &Config::new()).unwrap();
    other.mutex(&path("other")).unwrap().acquire(Some(TEST_TIMEOUT)).unwrap();
    let (closed, took) = timed(|| client.close());
    assert!(took < 5000 * MS, "{took:?} {closed:?}");
}

#[test]
fn slow_callback_connects_although_it_needs_longer_than_an_attempt() {
    let (gate, blocks) = (Gate::new(), Arc::new(AtomicBool::new(true)));
    // An attempt to connect to one server takes at most a third of the session timeout.
    let config = gate.callback(blocks).session_timeout(600 * MS).connect_timeout(TEST_TIMEOUT);
    let opener = std::thread::spawn({
        let open = Arc::clone(&gate.0);
        move || {
            std::thread::sleep(900 * MS);
            open.store(true, Ordering::SeqCst);
        }
    });
    Client::connect(&ZooKeeper::shared().address(), &config).unwrap();
    opener.join().unwrap();
}

/// An error of the program that panics when it is formatted.
#[derive(Debug)]
struct PanickingError;

impl std::fmt::Display for PanickingError {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("on purpose")
    }
}

impl std::error::Error for PanickingError {}
