//! Files that change while a client is connected. A rotation never costs a hold.

use std::thread;
use std::time::Duration;

use zklock::{Client, Config, LockState};
use zklock_test_support::{Authority, Certificates, Proxy, SERVER_NAME, TlsListener, Validity, ZooKeeper, wait_until};

use super::{debian, mutual, newest};
use crate::common::{TEST_TIMEOUT, path};

/// The program replaces the key first and the certificate later. In between, the files do not belong together, and the
/// client keeps the identity that it has loaded last.
#[test]
fn a_rotated_certificate_is_used_at_the_next_connection() {
    let certificates = Certificates::shared();
    let identity = |round: u32| certificates.intermediate.client(&format!("rotated-{round}"), Validity::Now);
    certificates.add("rotated", &identity(0));
    let mut config = mutual(certificates);
    config.set("tls.cert", &certificates.file("rotated.pem")).unwrap();
    config.set("tls.key", &certificates.file("rotated.key")).unwrap();
    // The log of this server names the client's certificate of each connection.
    let server = ZooKeeper::options().tls(&TlsListener::new(certificates)).start();
    let proxy = Proxy::start_opaque(&server.tls_address());
    let client = Client::connect(&proxy.address(), &config).unwrap();
    let (session, held) = (client.session_id(), client.mutex(&path("rotated")).unwrap());
    held.acquire(Some(TEST_TIMEOUT)).unwrap();
    let token = held.fencing_token().unwrap();
    thread::scope(|scope| {
        let load = scope.spawn(|| {
            let busy = client.mutex(&path("busy")).unwrap();
            let mut turns = 0;
            while !server.log().contains("CN=rotated-12'") || turns < 50 {
                busy.acquire(Some(TEST_TIMEOUT)).unwrap();
                let _ = busy.release();
                turns += 1;
            }
        });
        for round in 1..=12 {
            let new = identity(round);
            let reconnect = || {
                let before = proxy.accepted_count();
                proxy.cut();
                wait_until(TEST_TIMEOUT, || {
                    assert_ne!(held.state().unwrap(), LockState::Lost);
                    proxy.accepted_count() > before && held.participants().is_ok()
                });
            };
            let (first, second) = if round % 2 == 0 { ("pem", "key") } else { ("key", "pem") };
            let content = |kind| if kind == "pem" { new.certificates() } else { new.key().to_owned() };
            certificates.write(&format!("rotated.{first}"), &content(first));
            reconnect();
            certificates.write(&format!("rotated.{second}"), &content(second));
            reconnect();
            wait_until(TEST_TIMEOUT, || server.log().contains(&format!("CN=rotated-{round}'")));
        }
        load.join().unwrap();
    });
    wait_until(TEST_TIMEOUT, || held.state().unwrap() == LockState::Held);
    assert_eq!((client.session_id(), held.fencing_token().unwrap()), (session, token));
    held.release().unwrap();
}

/// Each of these files is wrong for some time: missing, empty, or half written.
#[test]
fn a_wrong_file_during_a_rotation_is_ignored() {
    let certificates = Certificates::shared();
    let good = certificates.intermediate.client("ignored", Validity::Now);
    certificates.add("ignored", &good);
    certificates.write("ignored-ca.pem", &certificates.root.certificate());
    let mut config = mutual(certificates);
    for (option, file) in [("tls.ca", "ignored-ca.pem"), ("tls.cert", "ignored.pem"), ("tls.key", "ignored.key")] {
        config.set(option, &certificates.file(file)).unwrap();
    }
    let proxy = Proxy::start_opaque(&debian().tls_address());
    let client = Client::connect(&proxy.address(), &config).unwrap();
    let held = client.mutex(&path("ignored")).unwrap();
    held.acquire(Some(TEST_TIMEOUT)).unwrap();
    for (file, content) in [
        ("ignored-ca.pem", certificates.root.certificate()),
        ("ignored.pem", good.certificates()),
        ("ignored.key", good.key().to_owned()),
    ] {
        // The last section of the file is incomplete.
        let cut = &content[..content.len() - 100];
        for wrong in [None, Some(""), Some(cut), Some("\u{1}")] {
            match wrong {
                Some(wrong) => drop(certificates.write(file, wrong)),
                None => std::fs::remove_file(certificates.path(file)).unwrap(),
            }
            reconnect(&proxy, &held);
        }
        certificates.write(file, &content);
        reconnect(&proxy, &held);
    }
    held.release().unwrap();
}

/// A certificate that the client has already accepted is revoked. A resumed TLS session must not hide the revocation.
/// If the certificate is accepted again in time, the hold survives.
#[test]
fn a_revocation_takes_effect_at_the_next_connection() {
    for (server, name) in [(debian(), "debian.crl"), (newest(), "newest.crl")] {
        let certificates = Certificates::shared();
        let (root, intermediate) = (&certificates.root, &certificates.intermediate);
        let lists = |revoked: &[_]| root.revoke(&[], Validity::Now) + &intermediate.revoke(revoked, Validity::Now);
        certificates.write(name, &lists(&[]));
        let mut config = mutual(certificates).session_timeout(2 * TEST_TIMEOUT);
        config.set("tls.crl", &certificates.file(name)).unwrap();
        let proxy = Proxy::start_opaque(&server.tls_address());
        let client = Client::connect(&proxy.address(), &config).unwrap();
        let (held, wanted) = (client.mutex(&path("revoked")).unwrap(), client.mutex(&path("wanted")).unwrap());
        held.acquire(Some(TEST_TIMEOUT)).unwrap();
        reconnect(&proxy, &held);
        certificates.write(name, &lists(&[&certificates.server]));
        proxy.cut();
        let mut message = String::new();
        wait_until(TEST_TIMEOUT, || {
            message = wanted
                .acquire(Some(Duration::from_millis(300)))
                .map_or_else(|error| error.to_string(), |()| String::new());
            message.contains("revoked")
        });
        certificates.write(name, &lists(&[]));
        wait_until(TEST_TIMEOUT, || held.participants().is_ok() && held.state().unwrap() == LockState::Held);
        held.release().unwrap();
    }
}

/// The authority of the whole ensemble is replaced: first the clients trust both authorities, then the server gets a
/// new certificate, and at last the clients trust only the new authority.
#[test]
fn the_authority_is_replaced_while_a_lock_is_held() {
    let certificates = Certificates::create();
    let server = ZooKeeper::options().tls(&TlsListener::new(&certificates)).start();
    let config: Config = mutual(&certificates).session_timeout(3 * TEST_TIMEOUT);
    let client = Client::connect(&server.tls_address(), &config).unwrap();
    let held = client.mutex(&path("authority")).unwrap();
    held.acquire(Some(TEST_TIMEOUT)).unwrap();
    let token = held.fencing_token().unwrap();
    let successor = Authority::new("successor");
    certificates.write("ca.pem", &(certificates.root.certificate() + &successor.certificate()));
    certificates.add("server", &successor.server(&["127.0.0.1", SERVER_NAME], Validity::Now));
    server.restart();
    wait_until(TEST_TIMEOUT, || held.participants().is_ok());
    certificates.write("ca.pem", &successor.certificate());
    certificates.add("client", &successor.client("client", Validity::Now));
    server.restart();
    wait_until(TEST_TIMEOUT, || held.participants().is_ok() && held.state().unwrap() == LockState::Held);
    assert_eq!(held.fencing_token().unwrap(), token);
    held.release().unwrap();
}

/// Cuts the connection and waits until the client has a new one. The hold must survive.
fn reconnect(proxy: &Proxy, held: &zklock::Lock) {
    let before = proxy.accepted_count();
    proxy.cut();
    wait_until(TEST_TIMEOUT, || {
        assert_ne!(held.state().unwrap(), LockState::Lost);
        proxy.accepted_count() > before && held.participants().is_ok()
    });
    wait_until(TEST_TIMEOUT, || held.state().unwrap() == LockState::Held);
}
