//! TLS with real servers. `sessions` contains what works, `refusals` what must not work, `malformed_files` files with
//! random damage, `faults` what a server or the network does to a connection, `rotation` files that change, `secrets`
//! what remains in memory, and `peers` locks that are shared with other libraries.

mod faults;
mod malformed_files;
mod peers;
mod refusals;
mod rotation;
mod secrets;
mod sessions;

use std::sync::OnceLock;

use zklock::{Client, Config};
use zklock_test_support::{Certificates, ClientAuth, TEST_TIMEOUT, TlsListener, TlsVersions, ZooKeeper};

/// A server of Debian's version with TLS 1.2, which requires a certificate of each client. All tests share it.
fn debian() -> &'static ZooKeeper {
    static SERVER: OnceLock<ZooKeeper> = OnceLock::new();
    SERVER.get_or_init(|| {
        let listener = TlsListener::new(Certificates::shared()).versions(TlsVersions::Only12);
        ZooKeeper::options().container_sweep_ms(3_600_000).tls(&listener).start()
    })
}

/// A server of the newest version with TLS 1.3, which accepts plain text on the same port, and clients without a
/// certificate. All tests share it.
fn newest() -> &'static ZooKeeper {
    static SERVER: OnceLock<ZooKeeper> = OnceLock::new();
    SERVER.get_or_init(|| {
        let listener = TlsListener::new(Certificates::shared()).versions(TlsVersions::Only13);
        let listener = listener.client_auth(ClientAuth::Want).unified();
        ZooKeeper::options().newest().container_sweep_ms(3_600_000).tls(&listener).start()
    })
}

/// A config with the certificate of the client.
fn mutual(certificates: &Certificates) -> Config {
    let mut config = trusting(certificates);
    config.set("tls.cert", &certificates.file("client.pem")).unwrap();
    config.set("tls.key", &certificates.file("client.key")).unwrap();
    config
}

/// A config without a certificate of the client.
fn trusting(certificates: &Certificates) -> Config {
    let mut config = Config::new();
    config.set("tls.ca", &certificates.file("ca.pem")).unwrap();
    config
}

fn client(address: &str) -> Client {
    let config = mutual(Certificates::shared()).connect_timeout(TEST_TIMEOUT);
    Client::connect(address, &config).unwrap()
}
