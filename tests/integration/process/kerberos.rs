//! SASL with Kerberos: real servers, a real KDC, and the Kerberos library of the system. `make verify` runs these tests.
//! The Kerberos library reads its configuration from the environment, so the tests are a separate program.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test may panic")]

#[path = "../common.rs"]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::thread;
use std::time::Duration;

use common::{LONG_SESSION, TEST_TIMEOUT, path, status, timed, wait_for_waiters};
use zklock::{Client, ClientState, Config, LockState, Status};
use zklock_test_support::{
    Certificates, ClientAuth, CuratorPeer, CuratorVersion, Direction, KerberosRealm, Proxy, REALM, TlsListener,
    Verdict, ZooKeeper, request_type, wait_until, xid,
};

const MS: Duration = Duration::from_millis(1);

/// A realm with the principals `app`, `short` (tickets for four seconds) and `zookeeper/localhost`, and a server that
/// requires Kerberos. All tests share them.
struct Site {
    realm: KerberosRealm,
    app: PathBuf,
    short: PathBuf,
    server: ZooKeeper,
}

/// A test that stops the KDC holds this lock for writing, all others for reading.
static KDC: RwLock<()> = RwLock::new(());

fn uses_kdc() -> RwLockReadGuard<'static, ()> {
    KDC.read().unwrap_or_else(PoisonError::into_inner)
}

fn site() -> &'static Site {
    static SITE: OnceLock<Site> = OnceLock::new();
    SITE.get_or_init(|| {
        let realm = KerberosRealm::start();
        // SAFETY: each test calls this function first, so no other thread reads the environment.
        unsafe {
            std::env::set_var("KRB5_CONFIG", realm.config_file());
            std::env::set_var("KRB5CCNAME", realm.file("default.ccache"));
        }
        let service = realm.add_principal("zookeeper/localhost", "");
        let [app, short] =
            [("app", ""), ("short", "-maxlife 4sec")].map(|(name, life)| realm.add_principal(name, life));
        let listener = TlsListener::new(Certificates::shared()).client_auth(ClientAuth::None);
        let options = ZooKeeper::options().tls(&listener).jaas(&realm.jaas("zookeeper/localhost", &service));
        let options = options.jvm_argument(&format!("-Djava.security.krb5.conf={}", realm.config_file().display()));
        let options = options.config_line("kerberos.removeHostFromPrincipal=true");
        let server = options.config_line("kerberos.removeRealmFromPrincipal=true").require_sasl().start();
        Site { realm, app, short, server }
    })
}

/// Replaces the address by the name that the principal of the server contains.
fn named(address: &str) -> String {
    address.replace("127.0.0.1", "localhost")
}

fn with_options(options: &[(&str, &str)]) -> Config {
    let mut config = Config::new().connect_timeout(TEST_TIMEOUT).session_timeout(LONG_SESSION);
    config.set("sasl.mechanism", "gssapi").unwrap();
    for (name, value) in options {
        config.set(name, value).unwrap();
    }
    config
}

fn app() -> Config {
    with_options(&[("sasl.keytab", site().app.to_str().unwrap()), ("sasl.principal", "app")])
}

#[track_caller]
fn refusal(config: &Config, expected: Status) -> String {
    let (result, took) = timed(|| Client::connect(&named(&site().server.address()), config));
    let error = result.err().unwrap();
    assert_eq!(error.status(), expected, "{error}");
    assert!(took < 5000 * MS, "{took:?}");
    error.message().to_owned()
}

#[test]
#[ignore = "needs a KDC: make verify"]
fn keytab_is_enough_to_acquire_hand_over_and_reconnect() {
    let _kdc = uses_kdc();
    let proxy = Proxy::start(&site().server.address());
    let mut config = app();
    config.set("acl", "sasl:app:cdrwa").unwrap();
    let path = path("keytab");
    let client = Client::connect(&named(&proxy.address()), &config).unwrap();
    let other = Client::connect(&named(&site().server.address()), &config).unwrap();
    let (held, waiting) = (client.mutex(&path).unwrap(), other.mutex(&path).unwrap());
    held.acquire(Some(TEST_TIMEOUT)).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.acquire(Some(TEST_TIMEOUT)).and_then(|()| waiting.release()));
        wait_for_waiters(&held, 2);
        proxy.cut();
        wait_until(TEST_TIMEOUT, || client.metrics().unwrap().reconnects == 1);
        wait_until(TEST_TIMEOUT, || held.is_held().unwrap());
        held.release().unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(zklock::internal::identities(&client).unwrap(), ["sasl:app", "ip:127.0.0.1"]);
    assert!(!site().realm.file("default.ccache").exists(), "the tickets of a keytab stay in memory");
}

#[test]
#[ignore = "needs a KDC: make verify"]
fn ticket_of_kinit_is_enough_with_and_without_tls() {
    let _kdc = uses_kdc();
    let Site { realm, app, server, .. } = site();
    let cache = realm.kinit("app", app, "1h");
    let mut config = with_options(&[("sasl.ccache", cache.to_str().unwrap())]);
    let plain = Client::connect(&named(&server.address()), &config).unwrap();
    config.set("tls.ca", &Certificates::shared().file("ca.pem")).unwrap();
    let encrypted = Client::connect(&named(&server.tls_address()), &config).unwrap();
    let path = path("kinit");
    for client in [plain, encrypted] {
        let lock = client.mutex(&path).unwrap();
        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
        lock.release().unwrap();
    }
}

#[test]
#[ignore = "needs a KDC: make verify"]
fn hold_outlives_its_ticket_and_a_reconnect_gets_a_new_one() {
    let _kdc = uses_kdc();
    let proxy = Proxy::start(&site().server.address());
    let config = with_options(&[("sasl.keytab", site().short.to_str().unwrap()), ("sasl.principal", "short")]);
    let client = Client::connect(&named(&proxy.address()), &config).unwrap();
    let lock = client.mutex(&path("renewal")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    for reconnects in 1..=2 {
        thread::sleep(6000 * MS);
        assert!(lock.is_held().unwrap());
        proxy.cut();
        wait_until(TEST_TIMEOUT, || client.metrics().unwrap().reconnects == reconnects);
        wait_until(TEST_TIMEOUT, || lock.is_held().unwrap());
    }
    lock.release().unwrap();
    assert_eq!(client.metrics().unwrap().sessions_lost, 0);
}

#[test]
#[ignore = "needs a KDC: make verify"]
fn name_of_the_servers_can_be_set() {
    let _kdc = uses_kdc();
    for name in ["localhost", &format!("localhost@{REALM}")] {
        let mut config = app();
        config.set("sasl.server_name", name).unwrap();
        Client::connect(&site().server.address(), &config).unwrap();
    }
    let mut config = app();
    config.set("sasl.server_name", &format!("@{REALM}")).unwrap();
    Client::connect(&named(&site().server.address()), &config).unwrap();
}

#[test]
#[ignore = "needs a KDC: make verify"]
fn session_that_expires_is_replaced() {
    let _kdc = uses_kdc();
    let proxy = Proxy::start(&site().server.address());
    let client = Client::connect(&named(&proxy.address()), &app().session_timeout(1500 * MS)).unwrap();
    let lock = client.mutex(&path("expired")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    proxy.refuse(true);
    proxy.cut();
    thread::sleep(3500 * MS);
    proxy.refuse(false);
    wait_until(TEST_TIMEOUT, || lock.state().unwrap() == LockState::Lost);
    assert_eq!(status(lock.release()), Status::Lost);
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    lock.release().unwrap();
}

/// Before a client leaves its server on purpose, it does not know the next server, whose ticket it needs.
#[test]
#[ignore = "needs a KDC: make verify"]
fn client_moves_to_another_server_with_the_ticket_of_that_server() {
    let _kdc = uses_kdc();
    let (here, there) = (Proxy::start(&site().server.address()), Proxy::start(&site().server.address()));
    let mut config = app();
    // With credentials of another scheme, the client must still not connect without its ticket.
    config.set("auth.digest", "carol:secret").unwrap();
    let client = Client::connect(&named(&here.address()), &config).unwrap();
    let lock = client.mutex(&path("move")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    client.set_servers(&named(&there.address())).unwrap();
    wait_until(TEST_TIMEOUT, || client.metrics().unwrap().reconnects == 1);
    wait_until(TEST_TIMEOUT, || lock.is_held().unwrap());
    assert_eq!(there.accepted_count(), 1);
    lock.release().unwrap();
    let identities = zklock::internal::identities(&client).unwrap();
    assert!(identities.contains(&"sasl:app".to_owned()), "{identities:?}");
}

/// The JAAS file is that of the Java program.
#[test]
#[ignore = "needs a KDC: make verify"]
fn curator_with_the_same_jaas_file_shares_a_lock() {
    let _kdc = uses_kdc();
    let Site { realm, app, server, .. } = site();
    let file = realm.file("client-jaas.conf");
    let login = format!("useKeyTab=true storeKey=true keyTab=\"{}\" principal=\"app\"", app.display());
    let module = "com.sun.security.auth.module.Krb5LoginModule";
    fs::write(&file, format!("Client {{ {module} required {login}; }};\n")).unwrap();
    let address = named(&server.address());
    let krb5 = format!("-Djava.security.krb5.conf={}", realm.config_file().display());
    let curator = CuratorPeer::start_with_jaas(CuratorVersion::Newest, &address, LONG_SESSION, &file, &[&krb5]);
    let mut config = Config::new().connect_timeout(TEST_TIMEOUT);
    config.set("java.security.auth.login.config", file.to_str().unwrap()).unwrap();
    config.set("zookeeper.server.realm", REALM).unwrap();
    let client = Client::connect(&address, &config).unwrap();
    let path = path("curator");
    let lock = client.mutex(&path).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    curator.run(&format!("mutex m {path}"));
    let theirs = curator.send("acquire t m");
    wait_for_waiters(&lock, 2);
    assert!(!theirs.is_done());
    lock.release().unwrap();
    assert_eq!(theirs.wait(TEST_TIMEOUT), "true");
    thread::scope(|scope| {
        let ours = scope.spawn(|| lock.acquire(Some(TEST_TIMEOUT)).and_then(|()| lock.release()));
        wait_for_waiters(&lock, 2);
        assert!(!ours.is_finished());
        curator.query("release t m");
        ours.join().unwrap().unwrap();
    });
}

// What is wrong.

#[test]
#[ignore = "needs a KDC: make verify"]
fn unknown_principal_is_refused_with_its_name() {
    let _kdc = uses_kdc();
    let keytab = site().realm.add_principal("gone", "");
    site().realm.admin("delprinc -force gone");
    let said =
        refusal(&with_options(&[("sasl.keytab", keytab.to_str().unwrap()), ("sasl.principal", "gone")]), Status::Auth);
    assert!(
        said.starts_with("SASL with Kerberos as gone: ") && said.contains("not found in Kerberos database"),
        "{said}"
    );
}

#[test]
#[ignore = "needs a KDC: make verify"]
fn wrong_service_is_refused_with_its_name() {
    let _kdc = uses_kdc();
    let mut config = app();
    config.set("sasl.service", "other").unwrap();
    let said = refusal(&config, Status::Auth);
    assert!(said.contains("not found in Kerberos database") && said.contains("(service other/localhost@)"), "{said}");
}

#[test]
#[ignore = "needs a KDC: make verify"]
fn server_with_another_key_refuses_the_ticket() {
    let _kdc = uses_kdc();
    let Site { realm, .. } = site();
    let service = realm.add_principal("rotated/localhost", "");
    realm.admin("cpw -randkey rotated/localhost");
    server_refuses_the_ticket("rotated", &service, &realm.config_file(), "Checksum failed");
}

/// With a negative tolerance, Java refuses all tickets in the same way as if the clocks differed too much.
#[test]
#[ignore = "needs a KDC: make verify"]
fn server_with_another_clock_refuses_the_ticket() {
    let _kdc = uses_kdc();
    let Site { realm, .. } = site();
    let service = realm.add_principal("skewed/localhost", "");
    let file = realm.file("skewed.conf");
    let config = fs::read_to_string(realm.config_file()).unwrap();
    fs::write(&file, config.replace("[libdefaults]\n", "[libdefaults]\n clockskew = -1\n")).unwrap();
    server_refuses_the_ticket("skewed", &service, &file, "Clock skew too great");
}

/// Starts a server with this service and this configuration of Kerberos, and connects to it. `cause` is the text in the
/// log of the server.
#[track_caller]
fn server_refuses_the_ticket(service: &str, keytab: &Path, krb5_config: &Path, cause: &str) {
    let options = ZooKeeper::options().jaas(&site().realm.jaas(&format!("{service}/localhost"), keytab));
    let options = options.jvm_argument(&format!("-Djava.security.krb5.conf={}", krb5_config.display()));
    let server = options.require_sasl().start();
    let mut config = app();
    config.set("sasl.service", service).unwrap();
    let error = Client::connect(&named(&server.address()), &config).err().unwrap();
    assert_eq!(error.status(), Status::Auth, "{error}");
    for said in [&format!("the server refused Kerberos as app for {service}/localhost@"), "clocks that differ"] {
        assert!(error.message().contains(said), "{error}");
    }
    assert!(server.log().contains(cause), "{}", server.log());
}

#[test]
#[ignore = "needs a KDC: make verify"]
fn wrong_proof_of_the_server_is_refused() {
    let _kdc = uses_kdc();
    let proxy = Proxy::start(&site().server.address());
    let mut first_token = None;
    proxy.hook(move |way, frame| {
        if way == Direction::ToServer && request_type(frame) == Some(102) {
            first_token.get_or_insert_with(|| xid(frame));
        } else if way == Direction::ToClient && Some(xid(frame)) == first_token {
            *frame.last_mut().unwrap() ^= 1;
        }
        Verdict::Forward
    });
    let (result, took) = timed(|| Client::connect(&named(&proxy.address()), &app()));
    let error = result.err().unwrap();
    assert_eq!(error.status(), Status::Auth, "{error}");
    assert!(error.message().contains("SASL with Kerberos as app for zookeeper/localhost@: "), "{error}");
    assert!(took < 5000 * MS && proxy.accepted_count() == 1, "{took:?}");
}

#[test]
#[ignore = "needs a KDC: make verify"]
fn server_without_sasl_is_said_to_be_one() {
    let _kdc = uses_kdc();
    let error = Client::connect(&named(&ZooKeeper::shared().address()), &app()).err().unwrap();
    assert_eq!(error.status(), Status::Auth, "{error}");
    assert!(error.message().contains("the server does not support SASL, but sasl.mechanism is set"), "{error}");
}

#[test]
#[ignore = "needs a KDC: make verify"]
fn missing_keytab_is_named() {
    let _kdc = uses_kdc();
    let file = site().realm.file("missing.keytab");
    let said = refusal(&with_options(&[("sasl.keytab", file.to_str().unwrap())]), Status::Invalid);
    assert!(said.starts_with("sasl.keytab \"") && said.ends_with("No such file or directory (os error 2)"), "{said}");
    fs::write(&file, "no keytab").unwrap();
    let said = refusal(&with_options(&[("sasl.keytab", file.to_str().unwrap())]), Status::Auth);
    assert!(said.contains("get a ticket with kinit, or set sasl.keytab"), "{said}");
    fs::remove_file(&file).unwrap();
}

#[test]
#[ignore = "needs a KDC: make verify"]
fn missing_or_expired_ticket_is_an_error_that_says_what_to_do() {
    let _kdc = uses_kdc();
    let Site { realm, short, .. } = site();
    let missing = realm.file("missing.ccache");
    let said = refusal(&with_options(&[("sasl.ccache", missing.to_str().unwrap())]), Status::Auth);
    assert!(said.contains("get a ticket with kinit, or set sasl.keytab"), "{said}");
    let cache = realm.kinit("short", short, "1s");
    thread::sleep(3000 * MS);
    let said = refusal(&with_options(&[("sasl.ccache", cache.to_str().unwrap())]), Status::Auth);
    assert!(said.contains("expired") && said.contains("get a ticket with kinit, or set sasl.keytab"), "{said}");
}

#[test]
#[ignore = "needs a KDC: make verify"]
fn servers_with_another_mechanism_are_said_to_have_it() {
    let _kdc = uses_kdc();
    let server = ZooKeeper::options().sasl_users(&[("bob", "secret")]).require_sasl().start();
    // The principal of this server exists, because only the port differs.
    let error = Client::connect(&named(&server.address()), &app()).err().unwrap();
    assert_eq!(error.status(), Status::Auth, "{error}");
    assert!(error.message().contains("the server offers DIGEST-MD5 and not Kerberos"), "{error}");
    let mut config = Config::new().connect_timeout(TEST_TIMEOUT);
    for (name, value) in [("sasl.mechanism", "digest-md5"), ("sasl.user", "bob"), ("sasl.password", "secret")] {
        config.set(name, value).unwrap();
    }
    let said = refusal(&config, Status::Auth);
    assert!(said.contains("the server does not offer DIGEST-MD5: it probably requires Kerberos"), "{said}");
}

#[test]
#[ignore = "needs a KDC: make verify"]
fn kdc_that_is_down_delays_the_reconnect_until_it_is_back() {
    let _only = KDC.write().unwrap_or_else(PoisonError::into_inner);
    let Site { realm, short, server, .. } = site();
    let proxy = Proxy::start(&server.address());
    let keytab = ("sasl.keytab", short.to_str().unwrap());
    let cache = ("sasl.ccache", "MEMORY:outage");
    let config = with_options(&[keytab, cache, ("sasl.principal", "short")]);
    let client = Client::connect(&named(&proxy.address()), &config).unwrap();
    let lock = client.mutex(&path("outage")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    thread::sleep(6000 * MS);
    realm.pause();
    proxy.cut();
    wait_until(TEST_TIMEOUT, || {
        let error = client.mutex(&path("other")).unwrap().acquire(Some(300 * MS)).unwrap_err();
        error.message().contains("SASL with Kerberos as short") && error.message().contains("Ticket expired")
    });
    realm.resume();
    wait_until(TEST_TIMEOUT, || client.state().unwrap() == ClientState::Connected);
    lock.release().unwrap();
}
