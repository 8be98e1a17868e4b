//! Tests of the servers with TLS, with openssl as the client.

#![allow(clippy::unwrap_used, reason = "clippy exempts only test functions, not their helpers")]

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use zklock_test_support::{
    Authority, Certificates, ClientAuth, CuratorPeer, CuratorVersion, Ensemble, KazooPeer, TlsListener, TlsVersions,
    Validity, ZooKeeper,
};

#[test]
fn a_port_for_mutual_tls_requires_a_certificate_of_the_authority() {
    let certificates = Certificates::create();
    certificates.add("rogue", &Authority::new("rogue").client("client", Validity::Now));
    let listener = TlsListener::new(&certificates);
    for options in [ZooKeeper::options(), ZooKeeper::options().newest()] {
        let server = options.tls(&listener).start();
        for version in ["-tls1_2", "-tls1_3"] {
            let ask = |identity: Option<&str>| srvr(&certificates, &server.tls_address(), identity, &[version]);
            assert!(ask(Some("client")).contains("Mode: standalone"), "{version}: {}", ask(Some("client")));
            assert!(!ask(None).contains("Mode: "), "{version}");
            assert!(!ask(Some("rogue")).contains("Mode: "), "{version}");
        }
        assert!(server.four_letter_word("srvr").contains("Mode: standalone"));
    }
}

#[test]
fn a_unified_port_accepts_both() {
    let certificates = Certificates::create();
    let listener =
        TlsListener::new(&certificates).unified().client_auth(ClientAuth::None).versions(TlsVersions::Only13);
    for options in [ZooKeeper::options(), ZooKeeper::options().newest()] {
        let server = options.tls(&listener).start();
        assert_eq!(server.address(), server.tls_address());
        assert!(srvr(&certificates, &server.tls_address(), None, &["-tls1_3"]).contains("Mode: standalone"));
        assert!(!srvr(&certificates, &server.tls_address(), None, &["-tls1_2"]).contains("Mode: "));
        assert!(server.four_letter_word("srvr").contains("Mode: standalone"));
    }
}

#[test]
fn each_server_of_an_ensemble_has_a_port() {
    let certificates = Certificates::create();
    let listener = TlsListener::new(&certificates).versions(TlsVersions::Only12).client_auth(ClientAuth::Want);
    let ensemble = Ensemble::start_with(&ZooKeeper::options().newest().tls(&listener), 6);
    for address in ensemble.tls_address().split(',') {
        assert!(srvr(&certificates, address, None, &["-tls1_2"]).contains("Mode: "), "{address}");
    }
}

#[test]
fn peers_share_a_lock_over_tls() {
    let (certificates, session) = (Certificates::create(), Duration::from_secs(20));
    let server = ZooKeeper::options().tls(&TlsListener::new(&certificates)).start();
    let address = server.tls_address();
    let curators =
        CuratorVersion::ALL.map(|version| CuratorPeer::start_with_tls(version, &address, session, &certificates));
    let kazoo = KazooPeer::start_with_tls(&address, session, &certificates);
    for curator in &curators {
        curator.run("mutex m /lock");
        assert_eq!(curator.query("acquire t m 10000"), "true");
        curator.run("release t m");
    }
    kazoo.run("lock m /lock");
    assert_eq!(kazoo.query("acquire t m 10000"), "true");
}

/// Sends the four-letter word `srvr` with openssl, and returns its whole output.
fn srvr(certificates: &Certificates, address: &str, identity: Option<&str>, arguments: &[&str]) -> String {
    let mut openssl = Command::new("openssl");
    openssl.args(["s_client", "-connect", address, "-verify_return_error", "-ign_eof", "-nocommands"]);
    openssl.args(["-verify_ip", "127.0.0.1", "-CAfile", &certificates.file("ca.pem")]).args(arguments);
    if let Some(name) = identity {
        let file = |kind: &str| certificates.file(&format!("{name}.{kind}"));
        openssl.args(["-cert", &file("pem"), "-cert_chain", &file("pem"), "-key", &file("key")]);
    }
    let mut openssl = openssl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // openssl may have ended already.
    let _ = openssl.stdin.take().unwrap().write_all(b"srvr");
    let output = openssl.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
