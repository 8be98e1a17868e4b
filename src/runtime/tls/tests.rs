//! Tests for the files that TLS reads, and for a TLS stream with both ends in this process. `tests/integration/tls`
//! tests TLS with real servers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{HandshakeKind, RootCertStore, ServerConfig, ServerConnection};
use zeroize::Zeroizing;
use zklock_core::error::Status;
use zklock_core::session::{ConnectString, Server};
use zklock_test_support::{Authority, Certificates, TEST_TIMEOUT, Validity, wait_until};

use super::files::NamedFile;
use super::private_key::{KeyPassword, read_private_key};
use super::provider::provider;
use super::stream::TlsStream;
use super::{TlsSettings, TlsSource, is_refusal};
use crate::runtime::socket::CheckedSocket;

const PASSWORD: &str = "hunter2";

/// Runs openssl, which reads the password from its environment.
fn openssl(arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).env("PASSWORD", PASSWORD).output().unwrap();
    assert!(output.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn read_key(file: &str, password: Option<&str>) -> Result<(), String> {
    let password = password.map(|password| KeyPassword {
        option: "tls.key_password",
        password: Zeroizing::new(password.as_bytes().to_vec()),
    });
    let file = NamedFile { option: "tls.key", path: file.as_ref() };
    let key = read_private_key(file, password.as_ref(), &provider());
    key.map(drop).map_err(|error| {
        assert_eq!(error.status(), Status::Invalid);
        error.message().to_owned()
    })
}

#[test]
fn keys_of_all_supported_formats_are_read() {
    let all = Certificates::create();
    let file = |name: &str| all.file(name);
    let (rsa, ec, ed25519) = (file("rsa.key"), file("ec.key"), file("ed25519.key"));
    openssl(&["genrsa", "-traditional", "-out", &rsa, "2048"]);
    openssl(&["ecparam", "-name", "secp384r1", "-genkey", "-out", &ec]);
    openssl(&["genpkey", "-algorithm", "ed25519", "-out", &ed25519]);
    for (key, label) in [(&rsa, "RSA PRIVATE KEY"), (&ec, "EC PRIVATE KEY"), (&ed25519, "PRIVATE KEY")] {
        assert!(fs::read_to_string(key).unwrap().contains(&format!("-----BEGIN {label}-----")), "{label}");
        read_key(key, None).unwrap();
        read_key(key, Some("not needed")).unwrap();
        let encrypted = format!("{key}.encrypted");
        for algorithm in
            [&["-v2", "aes-256-cbc"][..], &["-v2", "aes-128-cbc", "-v2prf", "hmacWithSHA1"], &["-v2", "des3"]]
        {
            let ends = ["-topk8", "-passout", "env:PASSWORD", "-in", key, "-out", &encrypted];
            openssl(&[&["pkcs8"][..], algorithm, &ends].concat());
            read_key(&encrypted, Some(PASSWORD)).unwrap();
            let said = read_key(&encrypted, Some("wrong")).unwrap_err();
            assert!(said.ends_with("cannot be decrypted: the password of option tls.key_password is wrong"), "{said}");
            assert!(read_key(&encrypted, None).unwrap_err().contains("set tls.key_password or tls.key_password_file"));
        }
    }
    // Without compiler optimization, scrypt with its default cost would take too long.
    let scrypt = file("scrypt.key");
    openssl(&[
        "pkcs8",
        "-topk8",
        "-scrypt",
        "-scrypt_N",
        "1024",
        "-passout",
        "env:PASSWORD",
        "-in",
        &ec,
        "-out",
        &scrypt,
    ]);
    read_key(&scrypt, Some(PASSWORD)).unwrap();
    // A key may be in the middle of a file with certificates and text, and its lines may be longer than usual.
    let key = fs::read_to_string(&rsa).unwrap();
    let certificate = all.root.certificate();
    fs::write(&rsa, format!("text\r\n{certificate}\n{}{certificate}", key.replace('\n', "\r\n"))).unwrap();
    read_key(&rsa, None).unwrap();
}

#[test]
fn keys_of_other_formats_are_refused_with_the_command_that_converts_them() {
    let all = Certificates::create();
    let (legacy, pbes1) = (all.file("legacy.key"), all.file("pbes1.key"));
    openssl(&["genrsa", "-traditional", "-aes128", "-passout", "env:PASSWORD", "-out", &legacy, "2048"]);
    let encrypt = ["pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES", "-passout", "env:PASSWORD"];
    openssl(&[&encrypt[..], &["-in", &all.file("client.key"), "-out", &pbes1]].concat());
    for (key, said) in [(&legacy, "Proc-Type: 4,ENCRYPTED"), (&pbes1, "does not support")] {
        let refused = read_key(key, Some(PASSWORD)).unwrap_err();
        assert!(refused.contains(said), "{refused}");
        let (_, command) = refused.split_once("convert it with: ").unwrap();
        let arguments: Vec<&str> = command.split(' ').skip(1).collect();
        // If `-passin` and `-passout` are missing, openssl asks for the passwords.
        openssl(&[&arguments[..], &["-passin", "env:PASSWORD", "-passout", "env:PASSWORD"]].concat());
        read_key(arguments.last().unwrap(), Some(PASSWORD)).unwrap();
    }
    let damaged = all.file("damaged.key");
    for (content, said) in [
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "damaged or of an unknown kind"),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n", "not valid PEM"),
        ("-----BEGIN PRIVATE KEY-----\n!!\n-----END PRIVATE KEY-----\n", "not valid PEM"),
        ("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n", "convert it with"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "contains no private key"),
    ] {
        fs::write(&damaged, content).unwrap();
        let refused = read_key(&damaged, Some(PASSWORD)).unwrap_err();
        assert!(refused.contains(said), "{refused}");
    }
}

#[test]
fn old_keystores_are_refused_with_a_command_that_converts_them() {
    let all = Certificates::create();
    let keystore = all.file("keystore.p12");
    for ciphers in [&["-legacy"][..], &["-legacy", "-certpbe", "PBE-SHA1-RC2-40", "-keypbe", "PBE-SHA1-3DES"], &[]] {
        let export = ["pkcs12", "-export", "-passout", "env:PASSWORD", "-out", &keystore];
        let (client, key) = (all.file("client.pem"), all.file("client.key"));
        openssl(&[&export[..], &["-in", &client, "-inkey", &key], ciphers].concat());
        let settings = |cert: &str, key: &str| TlsSettings {
            cert: Some(cert.into()),
            key: Some(key.into()),
            key_password: Some(Zeroizing::new(PASSWORD.to_owned())),
            ..mutual(&all)
        };
        let refused = TlsSource::new(&settings(&keystore, &keystore)).unwrap().load().unwrap_err();
        let (_, command) = refused.message().split_once("convert it with: ").unwrap();
        assert_eq!(command.contains(" -legacy "), !ciphers.is_empty(), "{refused}");
        let arguments: Vec<&str> = command.split(' ').skip(1).collect();
        openssl(&[&arguments[..], &["-passin", "env:PASSWORD", "-passout", "env:PASSWORD"]].concat());
        let pem = arguments.last().unwrap();
        TlsSource::new(&settings(pem, pem)).unwrap().load().unwrap();
    }
}

#[test]
fn ca_directory_is_read_without_hidden_and_other_files() {
    let all = Certificates::create();
    let directory = all.path("authorities");
    fs::create_dir_all(directory.join("..2026_01_01")).unwrap();
    let settings = TlsSettings { ca: Some(directory.clone()), ..TlsSettings::default() };
    let source = TlsSource::new(&settings).unwrap();
    let said = |source: &TlsSource| source.load().unwrap_err().message().to_owned();
    assert!(said(&source).contains("is a directory without a PEM certificate"), "{}", said(&source));
    let add = |name: &str, content: &str| fs::write(directory.join(name), content).unwrap();
    add("README", "no certificate");
    add(".hidden.pem", "-----BEGIN CERTIFICATE-----\n!");
    add("one.pem", &all.root.certificate());
    add("same.pem", &all.root.certificate());
    add("two.pem", &Authority::new("two").certificate());
    source.load().unwrap();
    add("three.pem", "-----BEGIN CERTIFICATE-----\n!");
    assert!(said(&source).contains("three.pem"), "{}", said(&source));
}

/// While the files stay the same, all connections share one configuration.
#[test]
fn files_are_read_again_only_if_they_have_changed() {
    let all = Certificates::create();
    let source = TlsSource::new(&mutual(&all)).unwrap();
    source.load().unwrap();
    let first = source.loaded_config().unwrap();
    source.load().unwrap();
    assert!(Arc::ptr_eq(&first, &source.loaded_config().unwrap()));
    // After a failed reload, the source still uses the previous configuration.
    all.write("client.key", "");
    assert!(source.load().unwrap_err().message().contains("contains no private key"));
    assert!(Arc::ptr_eq(&first, &source.loaded_config().unwrap()));
    // The rotation of the files has replaced the key, but not yet the certificate.
    let next = all.intermediate.client("next", Validity::Now);
    all.write("client.key", next.key());
    assert!(source.load().unwrap_err().message().contains("does not belong to the first certificate of tls.cert"));
    all.write("client.pem", &next.certificates());
    source.load().unwrap();
    assert!(!Arc::ptr_eq(&first, &source.loaded_config().unwrap()));
}

fn mutual(all: &Certificates) -> TlsSettings {
    let path = |name: &str| Some(PathBuf::from(all.file(name)));
    TlsSettings { ca: path("ca.pem"), cert: path("client.pem"), key: path("client.key"), ..TlsSettings::default() }
}

/// The client end and the server end of one connection.
struct Pair {
    client: TlsStream,
    socket: CheckedSocket<UnixStream>,
    server: ServerConnection,
    far: UnixStream,
}

impl Pair {
    fn new(all: &Certificates, settings: &TlsSettings) -> Self {
        let source = TlsSource::new(settings).unwrap();
        source.load().unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let client = source.start(&localhost()).unwrap();
        let server = ServerConnection::new(Arc::new(server_config(all))).unwrap();
        Self { client, socket: CheckedSocket::new(near).unwrap(), server, far }
    }

    /// Connects the client to the server, and completes the TLS handshake.
    fn connect(all: &Certificates) -> Self {
        let mut pair = Self::new(all, &mutual(all));
        while !pair.client.continue_handshake(&pair.socket).unwrap() {
            pair.run_server().unwrap();
        }
        pair.run_server().unwrap();
        assert!(!pair.server.is_handshaking());
        pair
    }

    /// Makes the server read all data that has arrived, and send all data that it has to send.
    fn run_server(&mut self) -> io::Result<()> {
        loop {
            match self.server.read_tls(&mut self.far) {
                Ok(0) => break,
                Ok(_) => {
                    self.server.process_new_packets().map_err(io::Error::other)?;
                }
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => break,
                Err(cause) => return Err(cause),
            }
        }
        while self.server.wants_write() {
            self.server.write_tls(&mut self.far)?;
        }
        Ok(())
    }

    /// Reads until the socket is empty.
    fn read(&mut self, size: usize) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        let mut buffer = vec![0; size];
        loop {
            match self.client.read(&self.socket, &mut buffer) {
                Ok(0) => return Ok(all),
                Ok(count) => all.extend_from_slice(&buffer[..count]),
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(all),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
    }
}

fn localhost() -> Server {
    ConnectString::parse("localhost:1").unwrap().servers.first().unwrap().clone()
}

fn server_config(all: &Certificates) -> ServerConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(all.path("ca.pem")).unwrap()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build().unwrap();
    let chain = CertificateDer::pem_file_iter(all.path("server.pem")).unwrap().map(Result::unwrap).collect();
    ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(all.path("server.key")).unwrap())
        .unwrap()
}

#[test]
fn decrypted_bytes_that_no_event_announces_are_reported() {
    let mut pair = Pair::connect(&Certificates::create());
    assert_eq!(pair.read(64).unwrap(), b"");
    pair.server.writer().write_all(&[7; 1000]).unwrap();
    pair.run_server().unwrap();
    let mut buffer = [0; 400];
    // The first read takes all records from the socket.
    for (count, has_unread) in [(400, true), (400, true), (200, false)] {
        assert_eq!(pair.client.read(&pair.socket, &mut buffer).unwrap(), count);
        assert_eq!(pair.client.has_unread(), has_unread);
    }
    let error = pair.client.read(&pair.socket, &mut buffer).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_full_socket_leaves_records_to_send() {
    let mut pair = Pair::connect(&Certificates::create());
    let data: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let (mut sent, mut received) = (0, Vec::new());
    let mut was_full = false;
    while received.len() < data.len() {
        let result = if sent < data.len() { pair.client.write(&pair.socket, &data[sent..]) } else { Ok(0) };
        match result {
            Ok(count) => sent += count,
            Err(cause) => assert_eq!(cause.kind(), io::ErrorKind::WouldBlock),
        }
        pair.client.flush(&pair.socket).unwrap();
        was_full |= pair.client.wants_write();
        match pair.server.read_tls(&mut pair.far) {
            Ok(_) => {
                pair.server.process_new_packets().unwrap();
            }
            Err(cause) => assert_eq!(cause.kind(), io::ErrorKind::WouldBlock),
        }
        let mut chunk = vec![0; 1 << 16];
        if let Ok(count) = pair.server.reader().read(&mut chunk) {
            received.extend_from_slice(&chunk[..count]);
        }
    }
    assert!(was_full);
    assert!(received == data);
    assert!(!pair.client.wants_write());
}

/// The server asks for new keys, and the client answers although the session has nothing to send.
#[test]
fn a_key_update_is_answered() {
    let mut pair = Pair::connect(&Certificates::create());
    pair.server.refresh_traffic_keys().unwrap();
    pair.server.writer().write_all(b"one").unwrap();
    pair.run_server().unwrap();
    assert_eq!(pair.read(64).unwrap(), b"one");
    pair.client.flush(&pair.socket).unwrap();
    assert!(!pair.client.wants_write());
    pair.client.write(&pair.socket, b"two").unwrap();
    pair.run_server().unwrap();
    let mut buffer = [0; 64];
    assert_eq!(pair.server.reader().read(&mut buffer).unwrap(), 3);
}

#[test]
fn both_ends_of_a_closed_connection_report_its_end() {
    let all = Certificates::create();
    let mut pair = Pair::connect(&all);
    pair.client.close(&pair.socket);
    pair.run_server().unwrap();
    assert_eq!(pair.server.reader().read(&mut [0; 8]).unwrap(), 0);
    let mut pair = Pair::connect(&all);
    pair.server.writer().write_all(b"last").unwrap();
    pair.server.send_close_notify();
    pair.run_server().unwrap();
    let mut buffer = [0; 64];
    assert_eq!(pair.client.read(&pair.socket, &mut buffer).unwrap(), 4);
    assert_eq!(pair.client.read(&pair.socket, &mut buffer).unwrap(), 0);
    // The server closes the connection without sending TLS's closing record.
    let mut pair = Pair::connect(&all);
    pair.far.shutdown(Shutdown::Both).unwrap();
    assert_eq!(pair.read(64).unwrap(), b"");
    assert_eq!(pair.client.read(&pair.socket, &mut buffer).unwrap(), 0);
}

/// A server of openssl, which can use keys and signatures that rustls cannot use.
struct OpensslServer {
    process: Child,
    address: String,
}

impl OpensslServer {
    fn start(certificate: &str, key: &str, further: &[&str]) -> Self {
        let mut openssl = Command::new("openssl");
        openssl.args(["s_server", "-accept", "127.0.0.1:0", "-cert", certificate, "-key", key]).args(further);
        // The server ends with its standard input.
        let mut process = openssl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| line.unwrap().strip_prefix("ACCEPT ").map(str::to_owned)).unwrap();
        thread::spawn(move || lines.for_each(drop));
        Self { process, address }
    }
}

impl Drop for OpensslServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The other providers accept more kinds.
#[cfg(not(any(feature = "aws-lc-rs", feature = "rustls-openssl")))]
#[test]
fn certificates_with_other_kinds_of_keys_and_names_are_refused_with_the_reason() {
    let all = Certificates::create();
    let ca = ["-CA", &all.file("authority.pem"), "-CAkey", &all.file("authority.key")].map(str::to_owned);
    let ca: Vec<&str> = ca.iter().map(String::as_str).collect();
    let new = ["req", "-x509", "-noenc", "-days", "30", "-newkey"];
    let own = ["-subj", "/CN=authority", "-out", ca[1], "-keyout", ca[3]];
    openssl(&[&new[..], &["rsa:2048"], &own].concat());
    let kinds = "expected RSA of 2048 to 8192 bits, ECDSA with P-256 or P-384, or Ed25519";
    let localhost = "subjectAltName=DNS:localhost";
    let mut wrong = Vec::new();
    let p256 = &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"][..];
    for (key, name, further, said) in [
        (&["rsa:1024"][..], localhost, &["-cipher", "DEFAULT@SECLEVEL=0"][..], kinds),
        (&["ec", "-pkeyopt", "ec_paramgen_curve:P-521"], localhost, &[], kinds),
        (&["ec", "-pkeyopt", "ec_paramgen_curve:P-521"], localhost, &["-tls1_2"], kinds),
        (&["rsa-pss", "-pkeyopt", "rsa_keygen_bits:2048"], localhost, &[], kinds),
        (&["ed448"], localhost, &[], kinds),
        (&["ed448"], localhost, &["-tls1_2"], kinds),
        (p256, "subjectAltName=DNS:127.0.0.1", &[], "it is for 127.0.0.1; an address must be an entry IP, not DNS"),
        (&["rsa:2048", "-sha1"], localhost, &["-cipher", "DEFAULT@SECLEVEL=0"], kinds),
    ] {
        let (certificate, own_key) = (all.file("other.pem"), all.file("other.key"));
        let ends = ["-subj", "/CN=server", "-addext", name, "-addext", "basicConstraints=critical,CA:FALSE"];
        openssl(&[&new[..], key, &ca, &ends, &["-out", &certificate, "-keyout", &own_key]].concat());
        let server = OpensslServer::start(&certificate, &own_key, further);
        let settings = TlsSettings { ca: Some(all.path("authority.pem")), ..TlsSettings::default() };
        let source = TlsSource::new(&settings).unwrap();
        source.load().unwrap();
        let host = if name.contains("127.0.0.1") { "127.0.0.1" } else { "localhost" };
        let mut client = source.start(&Server { host: host.to_owned(), port: 1 }).unwrap();
        let socket = CheckedSocket::new(TcpStream::connect(&server.address).unwrap()).unwrap();
        let error = loop {
            match client.continue_handshake(&socket) {
                Ok(is_complete) => assert!(!is_complete, "{key:?} {further:?}"),
                Err(error) => break error,
            }
        };
        if !error.to_string().contains(said) {
            wrong.push(format!("{key:?} {further:?}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A server that resumes a TLS session sends no certificate. Trust nevertheless ends with the first of the certificate, the
/// certificate of an intermediate authority, and a revocation list.
#[test]
fn a_resumed_session_ends_with_the_certificate() {
    assert_that_a_resumed_session_ends_with("certificate");
}

#[test]
fn a_resumed_session_ends_with_the_revocation_list() {
    assert_that_a_resumed_session_ends_with("revocation list");
}

fn assert_that_a_resumed_session_ends_with(what: &str) {
    let all = Certificates::create();
    let end = SystemTime::now() + Duration::from_secs(4);
    let valid = |wanted| if what == wanted { Validity::Until(end) } else { Validity::Now };
    all.add("server", &all.intermediate.server(&["localhost"], valid("certificate")));
    let lists = all.root.revoke(&[], Validity::Now) + &all.intermediate.revoke(&[], valid("revocation list"));
    let crl = Some(all.write("lists.crl", &lists));
    let source = TlsSource::new(&TlsSettings { crl, ..mutual(&all) }).unwrap();
    source.load().unwrap();
    let config = Arc::new(server_config(&all));
    let connect = || {
        let (near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let server = ServerConnection::new(Arc::clone(&config)).unwrap();
        let client = source.start(&localhost()).unwrap();
        let mut pair = Pair { client, socket: CheckedSocket::new(near).unwrap(), server, far };
        while !pair.client.continue_handshake(&pair.socket)? {
            pair.run_server().unwrap();
        }
        pair.run_server().unwrap();
        // The client receives the tickets for later connections.
        pair.read(64)?;
        Ok::<_, io::Error>(pair.server.handshake_kind().unwrap())
    };
    assert_eq!(connect().unwrap(), HandshakeKind::Full);
    assert_eq!(connect().unwrap(), HandshakeKind::Resumed);
    thread::sleep(end.duration_since(SystemTime::now()).unwrap_or_default());
    // The last second counts as a whole.
    let mut refusal = None;
    wait_until(TEST_TIMEOUT, || {
        refusal = connect().err();
        refusal.is_some()
    });
    let error = refusal.unwrap();
    assert!(is_refusal(&error) && error.to_string().contains(" expired"), "{error}");
    assert!(error.to_string().contains(what), "{error}");
    // The next connection resumes nothing, so that a new certificate of the server would be accepted.
    let error = connect().unwrap_err();
    assert!(is_refusal(&error), "{error}");
}

/// In TLS 1.3 the client learns only after its handshake that the server refused its certificate. When the client
/// learns about the refusal, the server may already have closed the connection.
#[test]
fn a_refusal_is_reported_even_if_the_next_write_fails() {
    let all = Certificates::create();
    let mut pair = Pair::new(&all, &TlsSettings { cert: None, key: None, ..mutual(&all) });
    while !pair.client.continue_handshake(&pair.socket).unwrap() {
        pair.run_server().unwrap();
    }
    pair.run_server().unwrap_err();
    while pair.server.wants_write() {
        pair.server.write_tls(&mut pair.far).unwrap();
    }
    // A child that another test has just forked may still have a copy of this descriptor.
    pair.far.shutdown(Shutdown::Both).unwrap();
    let error = pair.client.write(&pair.socket, b"hello").unwrap_err();
    assert!(is_refusal(&error), "{error}");
    assert!(error.to_string().starts_with("the server requires a client certificate; set tls.cert and tls.key"));
}
