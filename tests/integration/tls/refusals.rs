//! What must not work: wrong files, wrong certificates, and servers without TLS. Each row is a client that cannot
//! connect. The error must have the right status, name the cause, and come before the deadline.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use zklock::{Client, Config, Status};
use zklock_test_support::{Authority, Certificates, OpensslServer, Validity, ZooKeeper};

use super::{debian, newest};
use crate::common::{slack, timed};

/// The number of rows that run at the same time. Many rows mostly wait.
const PARALLEL_ROWS: usize = 24;
/// The time limit for connecting to a server that the test imitates. The client tries again until then.
const SHORT: Duration = Duration::from_secs(2);
/// The same for a real server, whose answer may be late.
const LONG: Duration = Duration::from_secs(3);
/// The time limit for errors after which the client does not try again.
const NEVER: Duration = Duration::from_secs(30);

/// A client that cannot connect.
struct Row {
    name: &'static str,
    server: Server,
    /// Options that replace those of [`mutual`](super::mutual). An empty value removes an option.
    options: Vec<(&'static str, String)>,
    status: Status,
    /// Parts of the message.
    message: Vec<String>,
}

#[derive(Clone, Copy)]
enum Server {
    /// A real server, which requires a certificate of the client.
    Debian,
    /// A real server, which accepts clients without a certificate.
    Newest,
    /// The port of a real server without TLS.
    Plain,
    /// openssl with this identity.
    Openssl(&'static str),
    /// openssl without TLS 1.2 and 1.3.
    OpensslTls11,
    /// A server that handles each connection with this function.
    Fake(fn(TcpStream)),
    /// The port of no server: the client fails before it connects.
    None,
}

/// The shared certificates, with further files for the rows.
struct Files(&'static Certificates);

impl Files {
    fn create() -> Self {
        let all = Certificates::shared();
        let (root, intermediate, rogue) = (&all.root, &all.intermediate, Authority::new("rogue"));
        for (name, identity) in [
            ("nameless", intermediate.server(&[], Validity::Now)),
            ("dns-only", intermediate.server(&["localhost", "zookeeper.example"], Validity::Now)),
            ("elsewhere", intermediate.server(&["elsewhere.example", "192.0.2.1"], Validity::Now)),
            ("expired", intermediate.server(&["127.0.0.1"], Validity::Expired)),
            ("early", intermediate.server(&["127.0.0.1"], Validity::NotYet)),
            ("good", intermediate.server(&["127.0.0.1"], Validity::Now)),
            ("rogue-client", rogue.client("client", Validity::Now)),
            ("expired-client", intermediate.client("client", Validity::Expired)),
            ("other-client", intermediate.client("other", Validity::Now)),
        ] {
            all.add(name, &identity);
        }
        let revoked = intermediate.server(&["127.0.0.1"], Validity::Now);
        all.add("revoked", &revoked);
        let nothing = root.revoke(&[], Validity::Now);
        let list = |validity| intermediate.revoke(&[&revoked], validity);
        all.write("list.crl", &(nothing.clone() + &list(Validity::Now)));
        all.write("expired.crl", &(nothing.clone() + &list(Validity::Expired)));
        all.write("root-only.crl", &nothing);
        all.write("rogue.pem", &rogue.certificate());
        all.write("empty.pem", "");
        all.write("garbage.pem", "\u{1}\u{2} no certificate");
        all.write("cut.pem", &root.certificate()[..200]);
        all.write("not-base64.pem", "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n");
        all.write("not-x509.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        all.write("jks.pem", "");
        fs::write(all.path("jks.pem"), b"\xfe\xed\xfe\xed\0\0\0\x02\0\0\0\x01").unwrap();
        fs::create_dir(all.path("directory")).unwrap();
        all.encrypt_key("client", "right");
        let mut openssl = Command::new("openssl");
        openssl.args(["pkcs12", "-export", "-passout", "pass:secret", "-in", &all.file("client.both.pem")]);
        assert!(openssl.args(["-out", &all.file("keystore.p12")]).status().unwrap().success());
        assert!(Command::new("mkfifo").arg(all.path("pipe")).status().unwrap().success());
        add_version_1(all);
        Self(all)
    }

    fn file(&self, name: &str) -> String {
        self.0.file(name)
    }

    /// Clients whose settings or files are wrong. They fail before they connect.
    fn unusable_files(&self) -> Vec<Row> {
        let row = |name, options: &[(&'static str, &str)], message: &[&str]| {
            let file = |(option, file): &(&'static str, &str)| match *option {
                "tls.key_password" | "tls.min_version" | "tls.verify" => (*option, (*file).to_owned()),
                _ if file.is_empty() => (*option, String::new()),
                _ => (*option, self.file(file)),
            };
            let options: Vec<_> = options.iter().map(file).collect();
            // The message names the option, and the file.
            let named = options.first().into_iter().map(|(option, _)| (*option).to_owned());
            let message = named.chain(message.iter().map(|&part| part.to_owned())).collect();
            Row { name, server: Server::None, options, status: Status::Invalid, message }
        };
        let encrypted = "client.encrypted.key";
        vec![
            row("missing file", &[("tls.ca", "no.pem")], &["no.pem", "No such file"]),
            row("missing key", &[("tls.key", "no.key")], &["no.key", "No such file"]),
            row("directory without certificates", &[("tls.ca", "directory")], &["is a directory without"]),
            row("directory as certificate", &[("tls.cert", "directory")], &["is a directory; expected a file"]),
            row("pipe", &[("tls.ca", "pipe")], &["is not a regular file"]),
            row("empty file", &[("tls.ca", "empty.pem")], &["contains no certificate"]),
            row("garbage", &[("tls.ca", "garbage.pem")], &["contains no certificate"]),
            row("garbage as key", &[("tls.key", "garbage.pem")], &["contains no private key"]),
            row("garbage as revocation list", &[("tls.crl", "garbage.pem")], &["contains no revocation list"]),
            row("certificate as key", &[("tls.key", "client.pem")], &["contains no private key"]),
            row("key as certificate", &[("tls.cert", "client.key")], &["contains no certificate"]),
            row("truncated file", &[("tls.ca", "cut.pem")], &["is not valid PEM", "is missing"]),
            row("not Base64", &[("tls.ca", "not-base64.pem")], &["not Base64"]),
            row("not X.509", &[("tls.ca", "not-x509.pem")], &["not a valid X.509 certificate"]),
            row(
                "keystore: JKS",
                &[("tls.ca", "jks.pem")],
                &["JKS", "keytool -list -rfc -keystore", "> ", "jks.converted.pem"],
            ),
            row("keystore: PKCS#12", &[("tls.cert", "keystore.p12")], &["PKCS#12", "openssl pkcs12 -in"]),
            row("key of another certificate", &[("tls.key", "other-client.key")], &["does not belong to"]),
            row("encrypted key without password", &[("tls.key", encrypted)], &["is encrypted", "tls.key_password"]),
            row(
                "wrong password",
                &[("tls.key", encrypted), ("tls.key_password", "wrong")],
                &["password", "tls.key_password is wrong"],
            ),
            row("certificate without key", &[("tls.key", "")], &["needs option"]),
            row("public CAs for any name", &[("tls.verify", "ca"), ("tls.ca", "")], &["needs option tls.ca"]),
        ]
    }

    /// Clients and servers that must not trust each other.
    fn refused_certificates(&self) -> Vec<Row> {
        let row = |name, server, options: &[(&'static str, &str)], message: &[&str]| {
            let options = options.iter().map(|&(option, file)| match option {
                "tls.server_name" | "tls.verify" => (option, file.to_owned()),
                _ if file.is_empty() => (option, String::new()),
                _ => (option, self.file(file)),
            });
            let message = message.iter().map(|&part| part.to_owned()).collect();
            Row { name, server, options: options.collect(), status: Status::Auth, message }
        };
        let without_certificate = [("tls.cert", ""), ("tls.key", "")];
        let rogue = [("tls.cert", "rogue-client.pem"), ("tls.key", "rogue-client.key")];
        let old = [("tls.cert", "version-1.pem"), ("tls.key", "version-1.key")];
        let expired = [("tls.cert", "expired-client.pem"), ("tls.key", "expired-client.key")];
        vec![
            row("wrong CA", Server::Debian, &[("tls.ca", "rogue.pem")], &["not signed by a CA of tls.ca"]),
            row("wrong CA, TLS 1.3", Server::Newest, &[("tls.ca", "rogue.pem")], &["not signed by a CA of tls.ca"]),
            row(
                "wrong name",
                Server::Debian,
                &[("tls.server_name", "wrong.example")],
                &["not for wrong.example", "localhost, 127.0.0.1, zookeeper.example"],
            ),
            row(
                "address not in the certificate",
                Server::Openssl("dns-only"),
                &[],
                &["not for 127.0.0.1", "localhost"],
            ),
            row("another address", Server::Openssl("elsewhere"), &[], &["not for 127.0.0.1", "192.0.2.1"]),
            row("no name", Server::Openssl("nameless"), &[], &["no subject alternative name"]),
            row("expired", Server::Openssl("expired"), &[], &["expired at 2001-01-01"]),
            row("expired, without names", Server::Openssl("expired"), &[("tls.verify", "ca")], &["expired at"]),
            row("not yet valid", Server::Openssl("early"), &[], &["not valid before 2998-01-01"]),
            row("client's certificate", Server::Openssl("client"), &[], &["serverAuth"]),
            row("revoked", Server::Openssl("revoked"), &[("tls.crl", "list.crl")], &["revoked"]),
            row(
                "revocation list expired",
                Server::Openssl("good"),
                &[("tls.crl", "expired.crl")],
                &["expired at 2001"],
            ),
            row(
                "no revocation list of the CA",
                Server::Openssl("good"),
                &[("tls.crl", "root-only.crl")],
                &["has no revocation list"],
            ),
            row("no certificate", Server::Debian, &without_certificate, &["requires a client certificate", "tls.cert"]),
            row("certificate of another CA", Server::Debian, &rogue, &["refused the client certificate"]),
            row("certificate of another CA, TLS 1.3", Server::Newest, &rogue, &["refused the client certificate"]),
            row(
                "self-signed certificate of X.509 version 1",
                Server::Debian,
                &old,
                &["refused the client certificate"],
            ),
            row(
                "server's certificate of X.509 version 1",
                Server::Openssl("version-1"),
                &[],
                &["old version of X.509"],
            ),
            row("expired certificate", Server::Debian, &expired, &["refused the client certificate"]),
        ]
    }

    /// Servers that do not speak TLS as the client expects.
    fn incompatible_servers(&self) -> Vec<Row> {
        let row = |name, server, options: &[(&'static str, &str)], message: &[&str]| Row {
            name,
            server,
            options: options.iter().map(|&(option, value)| (option, value.to_owned())).collect(),
            status: Status::Connection,
            message: message.iter().map(|&part| part.to_owned()).collect(),
        };
        let plain = [("tls.enabled", "false")];
        let too_old = ["does not support TLS 1.2 or later", "tls.min_version"];
        vec![
            row(
                "TLS to plain text",
                Server::Plain,
                &[],
                &["without an answer to the TLS handshake", "secureClientPort"],
            ),
            row("plain text to TLS", Server::Debian, &plain, &["requires TLS", "tls.enabled"]),
            row("version too old", Server::OpensslTls11, &[], &too_old),
            row("version too old, ServerHello", Server::Fake(answer_with_tls11), &[], &too_old),
            row(
                "minimum version",
                Server::Debian,
                &[("tls.min_version", "1.3")],
                &["does not support TLS 1.3 or later"],
            ),
            row("silence", Server::Fake(stay_silent), &[], &["does not complete the TLS handshake"]),
            row("half a ServerHello", Server::Fake(send_half_a_hello), &[], &["does not complete the TLS handshake"]),
            row("end after half a ServerHello", Server::Fake(end_after_half_a_hello), &[], &["closed the connection"]),
            row("end", Server::Fake(end_at_once), &[], &["closed the connection"]),
            row("HTTP", Server::Fake(answer_with_http), &[], &["without TLS", "secureClientPort"]),
            row("ZooKeeper without TLS", Server::Fake(answer_with_session), &[], &["without TLS", "secureClientPort"]),
            row("garbage", Server::Fake(send_garbage), &[], &["without TLS"]),
            row("garbage in a record", Server::Fake(send_garbage_record), &[], &["TLS"]),
            row("record of 64 KiB", Server::Fake(send_huge_record), &[], &["TLS"]),
            row("handshake message of 16 MiB", Server::Fake(send_huge_message), &[], &["TLS"]),
            row("endless warnings", Server::Fake(send_warnings), &[], &["TLS"]),
            row("endless empty records", Server::Fake(send_empty_records), &[], &["TLS"]),
        ]
    }
}

/// Adds the identity `version-1`, whose certificate has version 1 of X.509, as openssl makes it without extensions.
fn add_version_1(all: &Certificates) {
    let openssl = |arguments: &[&str]| {
        let output = Command::new("openssl").args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let (key, request, certificate) = (all.file("version-1.key"), all.file("version-1.csr"), all.file("version-1.pem"));
    let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"];
    openssl(&[&["req"], &curve[..], &["-subj", "/CN=old", "-keyout", &key, "-out", &request]].concat());
    openssl(&["x509", "-req", "-in", &request, "-signkey", &key, "-out", &certificate]);
    all.write("version-1.both.pem", &[key, certificate].map(|file| fs::read_to_string(file).unwrap()).concat());
}

#[test]
fn each_wrong_variant_fails_with_its_own_error() {
    let files = Files::create();
    let rows = [files.unusable_files(), files.refused_certificates(), files.incompatible_servers()];
    let rows: Vec<Row> = rows.into_iter().flatten().collect();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            failures.lock().unwrap().extend(row.check(files.0).err());
        }
    };
    thread::scope(|scope| (0..PARALLEL_ROWS).for_each(|_| drop(scope.spawn(work))));
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {} rows:\n{}", failures.len(), rows.len(), failures.join("\n"));
}

impl Row {
    fn check(&self, certificates: &Certificates) -> Result<(), String> {
        let (address, _server) = self.server.start(certificates);
        let limit = match self.server {
            _ if self.status != Status::Connection => NEVER,
            Server::Fake(_) => SHORT,
            _ => LONG,
        };
        let (result, took) = timed(|| {
            let config = self.config(certificates)?.connect_timeout(limit);
            Client::connect(&address, &config)
        });
        let Err(error) = result else { return Err(format!("{}: the client has connected", self.name)) };
        let is_right = error.status() == self.status
            && self.message.iter().all(|part| error.message().contains(part.as_str()))
            && took < limit + slack()
            && (self.status == Status::Connection || took < limit);
        if is_right { Ok(()) } else { Err(format!("{}: {:?} after {took:?}: {error}", self.name, error.status())) }
    }

    fn config(&self, certificates: &Certificates) -> zklock::Result<Config> {
        let mut options = vec![
            ("tls.ca", certificates.file("ca.pem")),
            ("tls.cert", certificates.file("client.pem")),
            ("tls.key", certificates.file("client.key")),
        ];
        options.retain(|(option, _)| self.options.iter().all(|(other, _)| other != option));
        let mut config = Config::new();
        for (option, value) in options.iter().chain(&self.options).filter(|(_, value)| !value.is_empty()) {
            config.set(option, value)?;
        }
        Ok(config)
    }
}

impl Server {
    /// Returns the address, and a server that belongs to the caller.
    fn start(self, certificates: &Certificates) -> (String, Option<OpensslServer>) {
        match self {
            Self::Debian => (debian().tls_address(), None),
            Self::Newest => (newest().tls_address(), None),
            Self::Plain => (ZooKeeper::shared().address(), None),
            Self::Openssl(name) => {
                let identity = certificates.file(&format!("{name}.both.pem"));
                let server = OpensslServer::start(&["-cert", &identity, "-cert_chain", &identity]);
                (server.address(), Some(server))
            }
            Self::OpensslTls11 => {
                let identity = certificates.file("good.both.pem");
                let old = ["-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"];
                let server = OpensslServer::start(&[&["-cert", &identity][..], &old].concat());
                (server.address(), Some(server))
            }
            Self::Fake(handle) => (fake_server(handle), None),
            Self::None => ("127.0.0.1:1".to_owned(), None),
        }
    }
}

/// A server that reads a ClientHello from each connection and then calls `handle`. Returns its address.
fn fake_server(handle: fn(TcpStream)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut head = [0; 5];
                if stream.read_exact(&mut head).is_ok() {
                    let mut hello = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
                    if stream.read_exact(&mut hello).is_ok() {
                        handle(stream);
                    }
                }
            });
        }
    });
    address
}

fn stay_silent(mut stream: TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

fn end_at_once(_: TcpStream) {}

/// A ServerHello for this version, with a cipher suite that the client offers.
fn server_hello(version: [u8; 2]) -> Vec<u8> {
    let body = [&version[..], &[7; 32], &[0], &[0xc0, 0x2b], &[0], &[0, 0]].concat();
    let message = [&[2, 0, 0, body.len() as u8][..], &body].concat();
    record(22, &message)
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[kind, 3, 3][..], &(content.len() as u16).to_be_bytes(), content].concat()
}

fn answer_with_tls11(mut stream: TcpStream) {
    let _ = stream.write_all(&server_hello([3, 2]));
    stay_silent(stream);
}

fn send_half_a_hello(mut stream: TcpStream) {
    let _ = stream.write_all(&server_hello([3, 3])[..30]);
    stay_silent(stream);
}

fn end_after_half_a_hello(mut stream: TcpStream) {
    let _ = stream.write_all(&server_hello([3, 3])[..30]);
}

fn answer_with_http(mut stream: TcpStream) {
    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
}

/// The ConnectResponse of a ZooKeeper server.
fn answer_with_session(mut stream: TcpStream) {
    let _ = stream
        .write_all(&[&[0, 0, 0, 37][..], &[0; 4], &[0, 0, 0x75, 0x30], &[0; 8], &[0, 0, 0, 16], &[0; 17]].concat());
    stay_silent(stream);
}

fn send_garbage(mut stream: TcpStream) {
    let _ = stream.write_all(&[0xa5; 4096]);
    stay_silent(stream);
}

fn send_garbage_record(mut stream: TcpStream) {
    let _ = stream.write_all(&record(22, &[0xa5; 4096]));
    stay_silent(stream);
}

fn send_huge_record(mut stream: TcpStream) {
    let _ = stream.write_all(&record(22, &[2; 0xffff]));
    stay_silent(stream);
}

/// Each record contains a part of a message that never ends.
fn send_huge_message(mut stream: TcpStream) {
    let mut content = vec![0; 0x4000];
    content[..4].copy_from_slice(&[2, 0xff, 0xff, 0xff]);
    while stream.write_all(&record(22, &content)).is_ok() {
        content.fill(0);
    }
}

fn send_warnings(mut stream: TcpStream) {
    const USER_CANCELED: [u8; 2] = [1, 90];
    while stream.write_all(&record(21, &USER_CANCELED)).is_ok() {}
}

fn send_empty_records(mut stream: TcpStream) {
    while stream.write_all(&record(22, &[])).is_ok() {}
}
