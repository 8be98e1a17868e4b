//! Sessions over TLS: locks, reconnects, expiry, and the identity of a certificate.

use std::thread;
use std::time::Duration;

use zklock::{Client, LockState, Status};
use zklock_test_support::{Certificates, Ensemble, Proxy, SERVER_NAME, TlsListener, Validity, ZooKeeper, wait_until};

use super::{client, debian, mutual, newest, trusting};
use crate::common::{self, TEST_TIMEOUT, assert_times_out, path, queue, raw, status, wait_for_waiters};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_lock_is_acquired_contended_and_handed_over() {
    for server in [debian(), newest()] {
        let (path, address) = (path("tls"), server.tls_address());
        let (one, two) = (client(&address), client(&address));
        let (held, waiting) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
        held.acquire(Some(TEST_TIMEOUT)).unwrap();
        assert_times_out(Duration::ZERO, |limit| waiting.acquire(Some(limit)));
        thread::scope(|scope| {
            let waiter = scope.spawn(|| waiting.acquire(Some(TEST_TIMEOUT)).and_then(|()| waiting.release()));
            wait_for_waiters(&held, 2);
            held.release().unwrap();
            waiter.join().unwrap().unwrap();
        });
        assert_eq!(queue(&mut raw(server), &path), Vec::<String>::new());
    }
}

/// A cut connection resumes its session, with and without a certificate of the client.
#[test]
fn a_session_survives_cut_connections() {
    for (server, config) in [(debian(), mutual(Certificates::shared())), (newest(), trusting(Certificates::shared()))] {
        let proxy = Proxy::start_opaque(&server.tls_address());
        let client = Client::connect(&proxy.address(), &config).unwrap();
        let (session, held) = (client.session_id(), client.mutex(&path("cut")).unwrap());
        held.acquire(Some(TEST_TIMEOUT)).unwrap();
        let token = held.fencing_token().unwrap();
        for round in 1..=3 {
            proxy.cut();
            wait_until(TEST_TIMEOUT, || proxy.accepted_count() > round && held.participants().is_ok());
            wait_until(TEST_TIMEOUT, || held.state().unwrap() == LockState::Held);
        }
        assert_eq!((client.session_id(), held.fencing_token().unwrap()), (session, token));
        held.release().unwrap();
    }
}

#[test]
fn a_hold_is_lost_when_the_session_expires() {
    let proxy = Proxy::start_opaque(&debian().tls_address());
    let config = mutual(Certificates::shared()).session_timeout(6 * SECOND).connect_timeout(TEST_TIMEOUT);
    let client = Client::connect(&proxy.address(), &config).unwrap();
    let (path, other) = (path("expiry"), super::client(&debian().tls_address()));
    let (held, waiting) = (client.mutex(&path).unwrap(), other.mutex(&path).unwrap());
    held.acquire(Some(TEST_TIMEOUT)).unwrap();
    proxy.black_hole(true);
    waiting.acquire(Some(TEST_TIMEOUT)).unwrap();
    assert!(!held.is_held().unwrap());
    waiting.release().unwrap();
    proxy.black_hole(false);
    proxy.cut();
    wait_until(TEST_TIMEOUT, || held.state().unwrap() == LockState::Lost);
    assert_eq!(status(held.release()), Status::Lost);
    held.acquire(Some(TEST_TIMEOUT)).unwrap();
}

#[test]
fn one_port_serves_clients_with_and_without_tls() {
    let (server, path) = (newest(), path("unified"));
    assert_eq!(server.address(), server.tls_address());
    let (secured, plain) = (client(&server.tls_address()), common::client(&server.address()));
    let locks = [secured.mutex(&path).unwrap(), plain.mutex(&path).unwrap()];
    for (one, other) in [(&locks[0], &locks[1]), (&locks[1], &locks[0])] {
        one.acquire(Some(TEST_TIMEOUT)).unwrap();
        assert_times_out(Duration::ZERO, |limit| other.acquire(Some(limit)));
        one.release().unwrap();
    }
}

/// The name of the host in the list of servers, or the name of the option, must be in the certificate.
#[test]
fn names_are_verified() {
    let port = debian().tls_address().rsplit(':').next().unwrap().to_owned();
    for (host, name, verify) in [
        ("localhost", None, "full"),
        ("127.0.0.1", Some(SERVER_NAME), "full"),
        ("127.0.0.1", Some("localhost"), "full"),
        ("127.0.0.1", Some("127.0.0.1"), "full"),
        ("127.0.0.1", Some("other.example"), "ca"),
        ("127.0.0.1", Some("other.example"), "none"),
    ] {
        let mut config = mutual(Certificates::shared());
        config.set("tls.verify", verify).unwrap();
        if let Some(name) = name {
            config.set("tls.server_name", name).unwrap();
        }
        let client = Client::connect(&format!("{host}:{port}"), &config);
        assert!(client.is_ok(), "{host} {name:?} {verify}: {:?}", client.err());
    }
}

#[test]
fn an_encrypted_key_is_decrypted_with_a_password_from_a_value_or_a_file() {
    let certificates = Certificates::shared();
    certificates.add("protected", &certificates.intermediate.client("client", Validity::Now));
    let key = certificates.encrypt_key("protected", "secret");
    certificates.write("password", "secret\n");
    for (option, value) in [("tls.key_password", "secret"), ("tls.key_password_file", &*certificates.file("password"))]
    {
        let mut config = mutual(certificates);
        config.set("tls.cert", &certificates.file("protected.pem")).unwrap();
        config.set("tls.key", &key).unwrap();
        config.set(option, value).unwrap();
        Client::connect(&debian().tls_address(), &config).unwrap();
    }
}

/// The leader of a secured ensemble stops, and the client moves to another server.
#[test]
fn a_hold_survives_the_loss_of_a_server() {
    let listener = TlsListener::new(Certificates::shared());
    let ensemble = Ensemble::start_with(&ZooKeeper::options().newest().tls(&listener), 6);
    let client = client(&ensemble.tls_address());
    let held = client.mutex(&path("leader")).unwrap();
    held.acquire(Some(TEST_TIMEOUT)).unwrap();
    let token = held.fencing_token().unwrap();
    ensemble.servers()[ensemble.leader()].stop();
    wait_until(3 * TEST_TIMEOUT, || held.participants().is_ok() && held.state().unwrap() == LockState::Held);
    assert_eq!(held.fencing_token().unwrap(), token);
    held.release().unwrap();
}

/// The certificate of a client is its identity for access control lists.
#[test]
fn nodes_belong_to_the_certificate_of_their_creator() {
    let (certificates, path) = (Certificates::shared(), path("identity"));
    certificates.add("stranger", &certificates.intermediate.client("stranger", Validity::Now));
    for (server, address) in [(debian(), debian().tls_address()), (newest(), newest().tls_address())] {
        let mut config = mutual(certificates);
        config.set("acl", "creator_all").unwrap();
        let (one, two) = (Client::connect(&address, &config).unwrap(), Client::connect(&address, &config).unwrap());
        let (held, wanted) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
        held.acquire(Some(TEST_TIMEOUT)).unwrap();
        assert_times_out(Duration::ZERO, |limit| wanted.acquire(Some(limit)));
        config.set("tls.cert", &certificates.file("stranger.pem")).unwrap();
        config.set("tls.key", &certificates.file("stranger.key")).unwrap();
        let stranger = Client::connect(&address, &config).unwrap();
        let plain = common::client(&server.address());
        for denied in [&stranger, &plain] {
            assert_eq!(status(denied.mutex(&path).unwrap().acquire(Some(TEST_TIMEOUT))), Status::Denied);
        }
        held.release().unwrap();
        wanted.acquire(Some(TEST_TIMEOUT)).unwrap();
        wanted.release().unwrap();
    }
}
