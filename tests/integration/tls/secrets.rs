//! No password and no private key in a readable form remains in the memory of a process with TLS, or in its log. The
//! test searches the memory of a child process, which never receives the secrets except in their files.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write, stdin};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use zklock::internal::{Level, LogDispatch, LogLine, set_log_handler};
use zklock::{Client, Config};
use zklock_test_support::{Certificates, Direction, Identity, Proxy, Validity, Verdict, ZooKeeper, wait_until};

use super::debian;
use crate::common::{TEST_TIMEOUT, path};

const ENVIRONMENT: &str = "ZKL_TEST_TLS_OPTIONS";
const PASSWORD: &str = "a-long-password-of-the-key-for-the-search-of-memory";

/// A text that must not be in the memory of the child.
struct Secret {
    name: &'static str,
    bytes: Vec<u8>,
}

/// Where the child finds the private key.
#[derive(Debug, Clone, Copy, PartialEq)]
enum KeyFile {
    Plain,
    Encrypted,
    /// One file contains the certificates and the key.
    Both,
    /// The directory of `tls.ca` also contains the key.
    InCaDirectory,
}

impl KeyFile {
    /// Writes the files of an identity, and returns the path of the key with the options of the child.
    fn write(self, identity: &Identity) -> (String, String) {
        let certificates = Certificates::shared();
        let name = format!("secret-{self:?}");
        certificates.add(&name, identity);
        let (mut ca, mut cert) = (certificates.file("ca.pem"), certificates.file(&format!("{name}.pem")));
        let mut key = certificates.file(&format!("{name}.key"));
        let mut further = String::new();
        match self {
            Self::Plain => {}
            Self::Encrypted => {
                key = certificates.encrypt_key(&name, PASSWORD);
                let password = certificates.write(&format!("{name}.password"), &format!("{PASSWORD}\n"));
                further = format!("tls.key_password_file = {}\n", password.display());
            }
            Self::Both => {
                let content = identity.certificates() + identity.key();
                cert = certificates.write(&format!("{name}.both.pem"), &content).display().to_string();
                key.clone_from(&cert);
            }
            Self::InCaDirectory => {
                let directory = certificates.path(&name);
                fs::create_dir(&directory).unwrap();
                fs::copy(ca, directory.join("ca.pem")).unwrap();
                fs::copy(&key, directory.join("key.pem")).unwrap();
                ca = certificates.file(&name);
            }
        }
        let options = format!("tls.ca = {ca}\ntls.cert = {cert}\ntls.key = {key}\n{further}");
        (key, certificates.write(&format!("{name}.options"), &options).display().to_string())
    }
}

#[test]
fn memory_and_log_contain_no_password_and_no_key_file() {
    for key_file in [KeyFile::Plain, KeyFile::Encrypted, KeyFile::Both, KeyFile::InCaDirectory] {
        let identity = Certificates::shared().intermediate.client("client", Validity::Now);
        let (key, options) = key_file.write(&identity);
        let secrets = secrets_of(identity.key());
        // OpenSSL makes copies of the decoded key and does not erase them.
        let is_openssl = cfg!(feature = "rustls-openssl");
        let secrets: Vec<Secret> =
            secrets.into_iter().filter(|secret| !(is_openssl && secret.name == "the decoded key")).collect();
        let mut child = Searched::start(&options);
        child.wait_for("connected");
        let control = Secret { name: "the name of the key file", bytes: key.into() };
        assert_ne!(child.find(&[control]), [""; 0], "the search finds nothing");
        assert_eq!(child.find(&secrets), [""; 0], "connected, {key_file:?}");
        child.goes_on();
        child.wait_for("closed");
        assert_eq!(child.find(&secrets), [""; 0], "closed, {key_file:?}");
    }
}

/// A program with the password of a session can take over the session and its locks.
#[test]
fn memory_contains_the_password_of_a_session_once_and_no_longer_than_the_session() {
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let password = Arc::clone(&seen);
    proxy.hook(move |way, frame| {
        // The answer to the handshake: protocol, timeout, session, the length of the password, and the password.
        if way == Direction::ToClient && frame.len() == 37 && password.lock().unwrap().is_empty() {
            password.lock().unwrap().extend_from_slice(&frame[20..36]);
        }
        Verdict::Forward
    });
    let options = Certificates::shared().write("plain.options", "connect.timeout = 60000\n");
    let mut child = Searched::start_at(&proxy.address(), &options.display().to_string());
    child.wait_for("connected");
    let bytes = seen.lock().unwrap().clone();
    assert_eq!(bytes.len(), 16);
    // Freed memory begins with data of the allocator, so the search looks for the second half.
    let password = [Secret { name: "the password of the session", bytes: bytes[8..].to_vec() }];
    assert_eq!(child.find(&password).len(), 1, "{:?}", child.find(&password));
    child.goes_on();
    child.wait_for("closed");
    assert_eq!(child.find(&password), [""; 0]);
}

/// The password, and the key in each form that a copy of its file or a decoder can have. Freed memory begins with data
/// of the allocator, so each secret leaves the first bytes of such a copy out.
fn secrets_of(key: &str) -> [Secret; 5] {
    // The second line of a PEM file contains the first bytes of the key, and the third line the rest.
    let lines: Vec<&str> = key.lines().collect();
    let der = PrivatePkcs8KeyDer::from_pem_slice(key.as_bytes()).unwrap();
    [
        Secret { name: "the password", bytes: PASSWORD.into() },
        Secret { name: "the text of the key", bytes: lines[1][16..].into() },
        Secret { name: "the end of the text of the key", bytes: lines[2][..32].into() },
        Secret { name: "the text of the key without line breaks", bytes: lines[1..3].concat()[40..88].into() },
        // The secret number has the bytes 36 to 67. The bytes after it are the public key.
        Secret { name: "the decoded key", bytes: der.secret_pkcs8_der()[16..72].into() },
    ]
}

/// A process whose memory the test searches.
struct Searched {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Searched {
    fn start(options: &str) -> Self {
        Self::start_at(&debian().tls_address(), options)
    }

    fn start_at(address: &str, options: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tls::secrets::child", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ENVIRONMENT, format!("{address} {options}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while !line.starts_with(word) {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the child has ended");
        }
    }

    fn goes_on(&self) {
        writeln!(self.child.stdin.as_ref().unwrap()).unwrap();
    }

    /// Returns which secrets are in which mappings.
    fn find(&self, secrets: &[Secret]) -> Vec<String> {
        let directory = format!("/proc/{}", self.child.id());
        let memory = File::open(format!("{directory}/mem")).unwrap();
        let mut found = Vec::new();
        for mapping in fs::read_to_string(format!("{directory}/maps")).unwrap().lines() {
            let (range, rest) = mapping.split_once(' ').unwrap();
            // Only data that the process can write is a copy that the process has made.
            if !rest.starts_with("rw") {
                continue;
            }
            let (start, end) = range.split_once('-').unwrap();
            let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
            let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
            // Some mappings cannot be read.
            if memory.read_exact_at(&mut bytes, start).is_err() {
                continue;
            }
            for secret in secrets {
                found.extend((0..count(&bytes, &secret.bytes)).map(|_| format!("{}: {mapping}", secret.name)));
            }
        }
        found
    }
}

impl Drop for Searched {
    fn drop(&mut self) {
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

fn count(bytes: &[u8], part: &[u8]) -> usize {
    let (mut rest, mut count) = (bytes, 0);
    while let Some(at) = rest.iter().position(|&byte| byte == part[0]) {
        rest = &rest[at..];
        count += usize::from(rest.starts_with(part));
        rest = &rest[1..];
    }
    count
}

#[test]
#[ignore = "the child process of the other test"]
fn child() {
    let Ok(arguments) = std::env::var(ENVIRONMENT) else { return };
    let (address, options) = arguments.split_once(' ').unwrap();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&lines);
    let record = move |line: &LogLine| log.lock().unwrap().push(format!("{line:?}"));
    set_log_handler(Level::Trace, LogDispatch::EventThread, Some(Arc::new(record))).unwrap();
    let mut config = Config::new();
    config.load(options).unwrap();
    let client = Client::connect(address, &config).unwrap();
    let lock = client.mutex(&path("secret")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    // The log stays in the memory, so the search includes it.
    wait_until(TEST_TIMEOUT, || !lines.lock().unwrap().is_empty());
    println!("\nconnected {:?}", config.clone());
    let mut line = String::new();
    stdin().read_line(&mut line).unwrap();
    lock.release().unwrap();
    client.close().unwrap();
    drop((lock, client, config));
    println!("closed");
    stdin().read_line(&mut line).unwrap();
}
