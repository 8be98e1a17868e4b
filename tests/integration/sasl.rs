//! SASL with DIGEST-MD5 on real servers that require it: locks, reconnects, access control lists and TLS. Each way in
//! which SASL can fail has its own test with its message. A proxy changes the replies of a real server for the ways
//! that a real server does not have.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::common::{LONG_SESSION, TEST_TIMEOUT, path, status, timed, wait_for_waiters};
use zklock::{Client, ClientState, Config, LockState, Status};
use zklock_test_support::{
    Certificates, ClientAuth, CuratorPeer, CuratorVersion, Direction, KazooPeer, Options, PeerProcess, Proxy,
    TlsListener, Verdict, ZooKeeper, is_connect_request, request_type, wait_until, xid,
};

const MS: Duration = Duration::from_millis(1);
/// The types of requests.
const SASL: i32 = 102;
const SET_WATCHES: i32 = 101;

const USERS: [(&str, &str); 4] =
    [("bob", "secret"), ("alice", "a \"b\" \\c,="), ("j\u{fc}rgen", "pa\u{df}wort"), ("eve", "\u{20ac}\u{1f512}")];

/// A server that requires SASL, and that also accepts TLS. All tests share it.
fn server() -> &'static ZooKeeper {
    static SERVER: OnceLock<ZooKeeper> = OnceLock::new();
    SERVER.get_or_init(|| {
        let listener = TlsListener::new(Certificates::shared()).client_auth(ClientAuth::None);
        let options = ZooKeeper::options().container_sweep_ms(3_600_000).tls(&listener);
        started(options.jvm_argument("-Dfile.encoding=UTF-8").sasl_users(&USERS))
    })
}

/// Starts a server that requires SASL, and opens its first session. A busy server can need longer for this session than a
/// client waits on one connection, and the tests count the connections.
fn started(options: Options) -> ZooKeeper {
    let server = options.require_sasl().start();
    drop(Client::connect(&server.address(), &bob()).unwrap());
    server
}

fn with_options(options: &[(&str, &str)]) -> Config {
    let mut config = Config::new().connect_timeout(TEST_TIMEOUT).session_timeout(LONG_SESSION);
    for (name, value) in options {
        config.set(name, value).unwrap();
    }
    config
}

fn user(name: &str, password: &str) -> Config {
    with_options(&[("sasl.mechanism", "digest-md5"), ("sasl.user", name), ("sasl.password", password)])
}

fn bob() -> Config {
    user("bob", "secret")
}

/// Connects, and asserts that this fails with AUTH within a few round trips and one connection.
#[track_caller]
fn refusal(target: &str, config: &Config) -> String {
    let proxy = Proxy::start(target);
    refusal_through(&proxy, config)
}

#[track_caller]
fn refusal_through(proxy: &Proxy, config: &Config) -> String {
    let (result, took) = timed(|| Client::connect(&proxy.address(), config));
    let error = result.err().unwrap();
    assert_eq!(error.status(), Status::Auth, "{error}");
    assert!(took < 5000 * MS, "{took:?}");
    assert_eq!(proxy.accepted_count(), 1, "{took:?}: {error}");
    assert!(error.message().starts_with("authentication with 127.0.0.1:"), "{error}");
    error.message().to_owned()
}

/// Changes the server's replies to SASL tokens. The function receives the number of the reply on its connection, and
/// the reply.
fn change_replies(proxy: &Proxy, change: impl Fn(usize, &mut Vec<u8>) -> Verdict + Send + 'static) {
    let mut pending = Vec::new();
    let mut count = 0;
    proxy.hook(move |way, frame| {
        if way == Direction::ToServer {
            if is_connect_request(frame) {
                (pending, count) = (Vec::new(), 0);
            } else if request_type(frame) == Some(SASL) {
                pending.push(xid(frame));
            }
        } else if pending.contains(&xid(frame)) {
            pending.retain(|asked| *asked != xid(frame));
            count += 1;
            return change(count, frame);
        }
        Verdict::Forward
    });
}

/// A proxy before the shared server that replaces the reply with this number by an error or a token.
fn changed(number: usize, code: i32, token: Option<&[u8]>) -> Proxy {
    let proxy = Proxy::start(&server().address());
    let token = token.map(<[u8]>::to_vec);
    change_replies(&proxy, move |reply, frame| {
        if reply == number {
            frame.truncate(12);
            frame.extend(code.to_be_bytes());
            let length = token.as_ref().map_or(-1, |token| token.len() as i32);
            frame.extend(length.to_be_bytes());
            frame.extend(token.iter().flatten());
        }
        Verdict::Forward
    });
    proxy
}

#[test]
fn every_user_acquires_and_hands_over() {
    let path = path("users");
    for (name, password) in USERS {
        let client = Client::connect(&server().address(), &user(name, password)).unwrap();
        let other = Client::connect(&server().address(), &bob()).unwrap();
        let (held, waiting) = (client.mutex(&path).unwrap(), other.mutex(&path).unwrap());
        held.acquire(Some(TEST_TIMEOUT)).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| waiting.acquire(Some(TEST_TIMEOUT)).and_then(|()| waiting.release()));
            wait_for_waiters(&held, 2);
            held.release().unwrap();
            waiter.join().unwrap().unwrap();
        });
    }
}

#[test]
fn identity_is_restored_on_each_connection_before_watches_and_requests() {
    let proxy = Proxy::start(&server().address());
    let sent = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sent);
    proxy.hook(move |way, frame| {
        if way == Direction::ToServer {
            seen.lock().unwrap().push(request_type(frame));
        }
        Verdict::Forward
    });
    let holder = Client::connect(&server().address(), &bob()).unwrap();
    let client = Client::connect(&proxy.address(), &bob()).unwrap();
    let path = path("restored");
    let (first, kept) = (holder.mutex(&path).unwrap(), client.mutex(&format!("{path}-kept")).unwrap());
    let waiting = client.mutex(&path).unwrap();
    first.acquire(Some(TEST_TIMEOUT)).unwrap();
    kept.acquire(Some(TEST_TIMEOUT)).unwrap();
    let session = client.session_id().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.acquire(Some(TEST_TIMEOUT)).and_then(|()| waiting.release()));
        // The waiter has read the node ahead, and watches it. The client restores only a watch that the server has confirmed.
        wait_until(TEST_TIMEOUT, || waiting.waiting().unwrap().iter().any(|wait| wait.session_id != 0));
        for reconnects in 1..=3 {
            proxy.cut();
            wait_until(TEST_TIMEOUT, || client.metrics().unwrap().reconnects == reconnects);
            wait_until(TEST_TIMEOUT, || kept.state().unwrap() == LockState::Held && kept.is_held().unwrap());
            // The connect request of the new connection has no type.
            let sent = sent.lock().unwrap().clone();
            let begin = sent.iter().rposition(Option::is_none).unwrap();
            let first = sent[begin..].iter().take(4).copied().collect::<Vec<_>>();
            assert_eq!(first, [None, Some(SASL), Some(SASL), Some(SET_WATCHES)], "{sent:?}");
        }
        first.release().unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(client.session_id().unwrap(), session);
    kept.release().unwrap();
    let metrics = client.metrics().unwrap();
    assert_eq!((metrics.sessions, metrics.sessions_lost), (1, 0));
}

#[test]
fn session_that_expires_is_replaced_with_the_same_identity() {
    let proxy = Proxy::start(&server().address());
    let config = bob().session_timeout(1500 * MS);
    let client = Client::connect(&proxy.address(), &config).unwrap();
    let lock = client.mutex(&path("expired")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    proxy.refuse(true);
    proxy.cut();
    wait_until(TEST_TIMEOUT, || lock.state().unwrap() == LockState::Uncertain);
    std::thread::sleep(3000 * MS);
    proxy.refuse(false);
    wait_until(TEST_TIMEOUT, || lock.state().unwrap() == LockState::Lost);
    assert_eq!(status(lock.release()), Status::Lost);
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    lock.release().unwrap();
    assert_eq!(client.metrics().unwrap().sessions_lost, 1);
}

#[test]
fn access_control_lists_name_the_user() {
    for (acl, is_shared) in
        [("creator_all", false), ("sasl:bob:cdrwa", false), ("sasl:bob:cdrwa,sasl:alice:cdrwa", true)]
    {
        let path = path("acl");
        let mut config = bob();
        config.set("acl", acl).unwrap();
        let client = Client::connect(&server().address(), &config).unwrap();
        let lock = client.mutex(&path).unwrap();
        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
        let alice = Client::connect(&server().address(), &user(USERS[1].0, USERS[1].1)).unwrap();
        let found = alice.mutex(&path).unwrap().participants();
        assert_eq!(found.is_ok(), is_shared, "{acl}: {found:?}");
        assert!(is_shared || status(found) == Status::Denied, "{acl}");
        let again = Client::connect(&server().address(), &bob()).unwrap();
        assert_eq!(again.mutex(&path).unwrap().participants().unwrap().len(), 1);
        lock.release().unwrap();
    }
}

#[test]
fn tls_and_sasl_work_together() {
    let mut config = bob();
    config.set("tls.ca", &Certificates::shared().file("ca.pem")).unwrap();
    let address = server().tls_address();
    let proxy = Proxy::start_opaque(&address);
    let client = Client::connect(&proxy.address(), &config).unwrap();
    let lock = client.mutex(&path("tls")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    proxy.cut();
    wait_until(TEST_TIMEOUT, || client.metrics().unwrap().reconnects == 1);
    wait_until(TEST_TIMEOUT, || lock.is_held().unwrap());
    lock.release().unwrap();
    config.set("sasl.password", "wrong").unwrap();
    let error = Client::connect(&address, &config).err().unwrap();
    assert_eq!(error.status(), Status::Auth);
    assert!(error.message().contains("refused the user \"bob\" or its password"), "{error}");
}

#[test]
fn both_versions_of_the_server_accept_sasl_beside_digest_credentials() {
    let newest = started(ZooKeeper::options().newest().sasl_users(&USERS));
    let old_enforcement =
        ZooKeeper::options().sasl_users(&USERS).config_line("sessionRequireClientSASLAuth=true").start();
    for server in [&newest, &old_enforcement] {
        let config = bob().add_auth("digest", "carol:secret");
        let client = Client::connect(&server.address(), &config).unwrap();
        let lock = client.mutex(&path("newest")).unwrap();
        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
        lock.release().unwrap();
        let said = refusal(&server.address(), &user("bob", "wrong"));
        assert!(said.contains("the server refused the user \"bob\" or its password; check sasl.user"), "{said}");
        let client = Client::connect(&server.address(), &with_options(&[])).unwrap();
        let error = client.mutex(&path("without")).unwrap().acquire(Some(TEST_TIMEOUT)).unwrap_err();
        assert_eq!(error.status(), Status::Auth, "{error}");
        assert!(error.message().contains("set sasl.mechanism for the scheme sasl"), "{error}");
    }
}

/// The options of a Java program with ZooKeeper's own client.
#[test]
fn jaas_file_is_read_before_each_connection() {
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    let section = |password: &str| format!("Ours {{ {module} required username=\"bob\" password=\"{password}\"; }};\n");
    let jaas = TestFile::new(&section("secret"));
    let config = with_options(&[
        ("java.security.auth.login.config", jaas.0.to_str().unwrap()),
        ("zookeeper.sasl.clientconfig", "Ours"),
        ("zookeeper.sasl.client.username", "zookeeper"),
        ("zookeeper.sasl.client", "true"),
    ]);
    let proxy = Proxy::start(&server().address());
    let client = Client::connect(&proxy.address(), &config).unwrap();
    let lock = client.mutex(&path("jaas")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    jaas.write(section("wrong"));
    proxy.cut();
    wait_until(TEST_TIMEOUT, || status_of_another_lock(&client) == Some(Status::Auth));
    jaas.write(section("secret"));
    wait_until(TEST_TIMEOUT, || client.state().unwrap() == ClientState::Connected);
    lock.release().unwrap();
    jaas.write("Client { };");
    let error = Client::connect(&server().address(), &config).err().unwrap();
    assert_eq!(error.status(), Status::Invalid);
    assert!(error.message().starts_with("java.security.auth.login.config \""), "{error}");
    assert!(error.message().ends_with("the file has no section \"Ours\""), "{error}");
}

fn status_of_another_lock(client: &Client) -> Option<Status> {
    client.mutex(&path("other")).unwrap().acquire(Some(300 * MS)).err().map(|error| error.status())
}

// What is wrong on the side of the client.

#[test]
fn wrong_password_is_refused_at_once() {
    let said = refusal(&server().address(), &user("bob", "wrong"));
    assert!(said.contains("the server refused the user \"bob\" or its password; check sasl.user and sasl.password ("));
    assert!(said.contains("SessionClosedRequireSaslAuth (-124)") && !said.contains("wrong"), "{said}");
}

#[test]
fn unknown_user_is_refused_at_once() {
    let server = started(ZooKeeper::options().sasl_users(&[("bob", "secret")]));
    let said = refusal(&server.address(), &user("mallory", "guess"));
    assert!(said.contains("the server refused the user \"mallory\" or its password; check sasl.user"), "{said}");
}

#[test]
fn wrong_service_is_refused_at_once() {
    for option in ["sasl.service", "sasl.server_name"] {
        let mut config = bob();
        config.set(option, "other").unwrap();
        let said = refusal(&server().address(), &config);
        assert!(said.contains("the server refused the user \"bob\""), "{said}");
        config.set(option, if option == "sasl.service" { "zookeeper" } else { "zk-sasl-md5" }).unwrap();
        Client::connect(&server().address(), &config).unwrap();
    }
}

#[test]
fn client_without_sasl_is_told_the_options() {
    let client = Client::connect(&server().address(), &with_options(&[])).unwrap();
    let (result, took) = timed(|| client.mutex(&path("without")).unwrap().acquire(Some(TEST_TIMEOUT)));
    let error = result.unwrap_err();
    assert_eq!(error.status(), Status::Auth, "{error}");
    for part in ["SessionClosedRequireSaslAuth", "set sasl.mechanism for the scheme sasl"] {
        assert!(error.message().contains(part), "{error}");
    }
    assert!(took < 5000 * MS, "{took:?}");
}

// What is wrong on the side of the server.

#[test]
fn server_without_sasl_is_said_to_be_one() {
    for address in [ZooKeeper::shared().address(), changed(1, -6, None).address()] {
        let said = refusal(&address, &bob());
        assert!(said.contains("the server does not support SASL, but sasl.mechanism is set"), "{said}");
    }
}

#[test]
fn server_with_another_mechanism_is_said_to_have_none() {
    for code in [-115, -124] {
        let said = refusal_through(&changed(1, code, None), &bob());
        assert!(said.contains("the server does not offer DIGEST-MD5: it probably requires Kerberos"), "{said}");
    }
}

#[test]
fn server_that_never_answers_is_an_error_of_the_connection() {
    for number in [1, 2] {
        let proxy = Proxy::start(&server().address());
        change_replies(&proxy, move |reply, _| if reply == number { Verdict::Drop } else { Verdict::Forward });
        let config = bob().session_timeout(3000 * MS).connect_timeout(500 * MS);
        let (_, took) = timed(|| fails_to_connect(&proxy, "does not answer the SASL token"));
        assert!(took >= 500 * MS, "{took:?}");
        // The client tries again after a third of the session timeout.
        let error = Client::connect(&proxy.address(), &config.connect_timeout(2500 * MS)).err().unwrap();
        assert!(error.message().contains("SASL has not ended in time"), "{error}");
        assert!(proxy.accepted_count() >= 3);
    }
}

#[test]
fn token_that_is_too_long_is_refused() {
    for (length, said) in [
        (2048, "it has 2048 bytes; DIGEST-MD5 allows at most 2047 bytes"),
        (70_000, "the server sent a SASL token of 70000 bytes; at most 65536 are allowed"),
    ] {
        let message = refusal_through(&changed(1, 0, Some(&vec![b'x'; length])), &bob());
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn malformed_challenge_is_refused() {
    for (challenge, said) in [
        (&b""[..], "algorithm is \"\"; expected md5-sess"),
        (b"nonce=\"\x1b[31m", "at position 0, expected name=value"),
        (b"nonce=n,algorithm=md5-sess,qop=auth-conf", "qop is \"auth-conf\"; expected auth"),
        (&[0x60, 0x82, 1, 2, 0xff, 0], "expected name=value"),
    ] {
        let message = refusal_through(&changed(1, 0, Some(challenge)), &bob());
        assert!(
            message.contains("the server's message is not one of DIGEST-MD5") && message.contains(said),
            "{message}"
        );
        assert!(!message.contains('\x1b'));
    }
}

#[test]
fn wrong_proof_of_the_server_is_refused() {
    let proof = b"rspauth=ea40f60335c427b5527b84dbabcdfffd";
    let message = refusal_through(&changed(2, 0, Some(proof)), &bob());
    assert!(message.contains("the server does not know the password of the user \"bob\""), "{message}");
    assert!(message.contains("another server may have taken its place"), "{message}");
}

#[test]
fn missing_proof_of_the_server_is_refused() {
    for proof in [None, Some(&b""[..]), Some(b"other=1")] {
        let message = refusal_through(&changed(2, 0, proof), &bob());
        assert!(message.contains("or sent no proof that it knows the password"), "{message}");
    }
    // This server does not close the connection of a client whose authentication has failed.
    let server =
        ZooKeeper::options().sasl_users(&USERS).jvm_argument("-Dzookeeper.allowSaslFailedClients=true").start();
    let message = refusal(&server.address(), &user("bob", "wrong"));
    assert!(message.contains("the server refused the user or its password, or sent no proof"), "{message}");
}

/// Connects through the proxy until the connect timeout passes, and the message has this text. The timeout can also pass while
/// a busy server has not answered the handshake or the SASL token yet.
#[track_caller]
fn fails_to_connect(proxy: &Proxy, said: &str) {
    let config = bob().connect_timeout(500 * MS);
    let mut message = String::new();
    let mut has_said = || {
        let error = Client::connect(&proxy.address(), &config).err().unwrap();
        assert_eq!(error.status(), Status::Connection, "{error}");
        message = error.message().to_owned();
        let is_late =
            ["handshake", "SASL token"].iter().any(|what| message.contains(&format!("does not answer the {what}")));
        message.contains(said) || !is_late
    };
    wait_until(TEST_TIMEOUT, &mut has_said);
    assert!(message.contains(said), "{message}");
}

#[test]
fn other_errors_and_replies_are_errors_of_the_connection() {
    let proxy = changed(2, -118, None);
    fails_to_connect(&proxy, "the server answered SessionMoved (-118) to a SASL token");
    for (change, said) in [
        ((|frame| frame[3] ^= 64) as fn(&mut Vec<u8>), "the server answered request 6"),
        (|frame| frame.truncate(16), "the server sent an invalid frame: reply sasl token: needs 4 bytes"),
        (|frame| frame.truncate(18), "the server sent an invalid frame: reply sasl token: needs 4 bytes"),
        (|frame| frame.push(0), "the server sent an invalid frame: reply: 1 bytes left over"),
    ] {
        let proxy = Proxy::start(&server().address());
        change_replies(&proxy, move |_, frame| {
            change(frame);
            Verdict::Forward
        });
        fails_to_connect(&proxy, said);
    }
    let proxy = Proxy::start(&server().address());
    change_replies(&proxy, |_, _| Verdict::CutBefore);
    let error = Client::connect(&proxy.address(), &bob().connect_timeout(500 * MS)).err().unwrap();
    assert_eq!(error.status(), Status::Connection, "{error}");
}

// Programs with other libraries.

#[test]
fn curator_and_kazoo_share_a_lock_with_zklock() {
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    let jaas = TestFile::new(&format!("Client {{ {module} required username=\"bob\" password=\"secret\"; }};\n"));
    let address = server().address();
    // All processes start at the same time.
    let curators =
        CuratorVersion::ALL.map(|version| CuratorPeer::start_with_jaas(version, &address, LONG_SESSION, &jaas.0, &[]));
    let kazoo = KazooPeer::start_with_sasl(&address, LONG_SESSION, "bob", "secret");
    for curator in &curators {
        contend(curator, |path| format!("mutex m {path}"));
    }
    // kazoo waits for the nodes of zklock if it knows their names.
    contend(&kazoo, |path| format!("lock m {path} patterns=-lock-"));
}

/// Each side waits once while the other side holds the lock.
fn contend(peer: &PeerProcess, define: impl Fn(&str) -> String) {
    let path = path("peer");
    let client = Client::connect(&server().address(), &bob().wait_for_kazoo(true)).unwrap();
    let lock = client.mutex(&path).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    peer.run(&define(&path));
    let theirs = peer.send("acquire t m");
    wait_for_waiters(&lock, 2);
    assert!(!theirs.is_done());
    lock.release().unwrap();
    assert_eq!(theirs.wait(TEST_TIMEOUT), "true");
    std::thread::scope(|scope| {
        let ours = scope.spawn(|| lock.acquire(Some(TEST_TIMEOUT)).and_then(|()| lock.release()));
        wait_for_waiters(&lock, 2);
        assert!(!ours.is_finished());
        peer.query("release t m");
        ours.join().unwrap().unwrap();
    });
}

// Passwords in files.

/// A file of one test, which is removed at the end of the test.
struct TestFile(PathBuf);

impl TestFile {
    fn new(content: &str) -> Self {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let file = Self(std::env::temp_dir().join(format!("zklock-sasl-{}-{number}", std::process::id())));
        file.write(content);
        file
    }

    fn write(&self, content: impl AsRef<[u8]>) {
        fs::write(&self.0, content).unwrap();
    }

    fn config(&self) -> Config {
        let file = self.0.to_str().unwrap();
        with_options(&[("sasl.mechanism", "digest-md5"), ("sasl.user", "bob"), ("sasl.password_file", file)])
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn password_file_is_read_before_each_connection() {
    let proxy = Proxy::start(&server().address());
    let file = TestFile::new("secret\r\n");
    let client = Client::connect(&proxy.address(), &file.config()).unwrap();
    let lock = client.mutex(&path("file")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    let session = client.session_id().unwrap();
    // A wrong password fails the calls at once, and the holds remain until the session ends.
    file.write("wrong");
    proxy.cut();
    let (result, took) = timed(|| client.mutex(&path("other")).unwrap().acquire(Some(TEST_TIMEOUT)));
    assert_eq!(status(result), Status::Auth);
    assert!(took < 5000 * MS, "{took:?}");
    assert!(lock.is_held().unwrap());
    fs::remove_file(&file.0).unwrap();
    wait_until(TEST_TIMEOUT, || {
        let error = client.mutex(&path("other")).unwrap().acquire(Some(300 * MS)).unwrap_err();
        error.message().contains("sasl.password_file") && error.message().contains("No such file")
    });
    file.write("secret\n");
    wait_until(TEST_TIMEOUT, || client.state().unwrap() == ClientState::Connected);
    assert_eq!(client.session_id().unwrap(), session);
    lock.release().unwrap();
}

#[test]
fn program_supplies_the_password_before_each_connection() {
    let proxy = Proxy::start(&server().address());
    let config = with_options(&[("sasl.mechanism", "digest-md5"), ("sasl.user", "bob")]);
    let password = Arc::new(Mutex::new("secret"));
    let current = Arc::clone(&password);
    let with_callback = config.clone().auth_callback("sasl", move || Ok(current.lock().unwrap().as_bytes().to_vec()));
    let client = Client::connect(&proxy.address(), &with_callback).unwrap();
    let lock = client.mutex(&path("callback")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    *password.lock().unwrap() = "wrong";
    proxy.cut();
    wait_until(TEST_TIMEOUT, || status_of_another_lock(&client) == Some(Status::Auth));
    *password.lock().unwrap() = "secret";
    wait_until(TEST_TIMEOUT, || client.state().unwrap() == ClientState::Connected);
    lock.release().unwrap();
    let fixed = Client::connect(&proxy.address(), &config.clone().add_auth("sasl", "secret")).unwrap();
    assert!(zklock::internal::identities(&fixed).unwrap().contains(&"sasl:bob".to_owned()));
    for (config, status, said) in [
        (
            config.clone().auth_callback("sasl", || Err("the vault is sealed".into())),
            Status::Auth,
            "failed: the vault is sealed",
        ),
        (
            config.clone().auth_callback("sasl", || Ok(b"hunter2\n".to_vec())),
            Status::Auth,
            "the result of the auth callback for \"sasl\" does not contain one line with a password in UTF-8",
        ),
        (bob().add_auth("sasl", "secret"), Status::Invalid, "the password of sasl.user is set twice"),
        (with_options(&[]).add_auth("sasl", "secret"), Status::Invalid, "need option sasl.mechanism = digest-md5"),
    ] {
        let error = Client::connect(&server().address(), &config).err().unwrap();
        assert_eq!(error.status(), status, "{error}");
        assert!(error.message().contains(said) && !error.message().contains("hunter2"), "{error}");
    }
}

#[test]
fn fips_mode_forbids_digest_md5() {
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    let jaas = TestFile::new(&format!("Client {{ {module} required username=\"bob\" password=\"secret\"; }};\n"));
    for mut config in [bob(), with_options(&[("java.security.auth.login.config", jaas.0.to_str().unwrap())])] {
        config.set("zookeeper.fips-mode", "true").unwrap();
        let error = Client::connect(&server().address(), &config).err().unwrap();
        assert_eq!(error.status(), Status::Invalid, "{error}");
        assert!(error.message().contains("zookeeper.fips-mode = true forbids DIGEST-MD5"), "{error}");
        config.set("zookeeper.fips-mode", "false").unwrap();
        Client::connect(&server().address(), &config).unwrap();
    }
}

#[test]
fn unusable_password_file_fails_the_first_connect_at_once_and_is_named() {
    let file = TestFile::new("");
    for (content, why) in [
        (&b""[..], "does not contain one line with a password in UTF-8"),
        (b"\n", "does not contain one line with a password in UTF-8"),
        (b"hunter2\nhunter3\n", "does not contain one line with a password in UTF-8"),
        (b"hunter2\xff", "does not contain one line with a password in UTF-8"),
        (&[b'x'; 5000], "is longer than 4096 bytes"),
    ] {
        file.write(content);
        let (result, took) = timed(|| Client::connect(&server().address(), &file.config()));
        let error = result.err().unwrap();
        assert_eq!(error.status(), Status::Invalid, "{error}");
        assert!(error.message().starts_with("sasl.password_file \"") && error.message().contains(why), "{error}");
        assert!(!error.message().contains("hunter"), "{error}");
        assert!(took < 5000 * MS, "{took:?}");
    }
}
