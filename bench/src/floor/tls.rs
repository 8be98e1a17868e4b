//! The minimum cost of TLS: a loop that creates and deletes a node, in plain text and with TLS.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use zklock_test_support::Certificates;

use super::wire::{Connection, Node, OK};
use crate::machine::{self, Nanos};

/// What the cycles of one connection cost.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cost {
    pub(crate) time: Nanos,
    pub(crate) cpu: Nanos,
}

/// Runs `windows` windows of `cycles` cycles on each of two connections, in plain text and with TLS. The windows of both alternate. A cycle is an
/// uncontended acquire and release: two requests, each with its reply.
pub(crate) fn measure(plain: &str, tls: &str, certificates: &Certificates, cycles: usize, windows: usize) -> [Cost; 2] {
    let config = client_config(certificates);
    let mut connections = [Connection::open(plain), Connection::open_with_tls(tls, &config)];
    connections[0].ensure_exists("/bench-tls-floor");
    (0..2).for_each(|side| run(&mut connections[side], side, cycles));
    let mut costs = [Cost::default(); 2];
    for window in 0..2 * windows {
        let side = (window + window / 2) % 2;
        let (time, cpu) = (machine::now(), machine::own_cpu());
        run(&mut connections[side], side, cycles);
        costs[side].time += machine::now() - time;
        costs[side].cpu += machine::own_cpu() - cpu;
    }
    connections.into_iter().for_each(Connection::close);
    costs
}

fn run(connection: &mut Connection, side: usize, cycles: usize) {
    let path = format!("/bench-tls-floor/{side}");
    for _ in 0..cycles {
        connection.create(&path, Node::Ephemeral);
        assert_eq!(connection.call(), OK);
        connection.delete(&path);
        assert_eq!(connection.call(), OK);
    }
}

/// The same certificates as those of zklock in this run.
fn client_config(certificates: &Certificates) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_file_iter(certificates.path("ca.pem")).expect("the certificates of the CA") {
        roots.add(root.expect("a certificate")).expect("a root certificate");
    }
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(certificates.path("client.pem")).expect("the client certificate").collect();
    let key = PrivateKeyDer::from_pem_file(certificates.path("client.key")).expect("the key of the client");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the versions of TLS")
        .with_root_certificates(roots)
        .with_client_auth_cert(chain.expect("a chain of certificates"), key)
        .expect("a key that belongs to the certificate");
    Arc::new(config)
}
