//! No password remains in the memory or in the log of a process that no longer needs it. Each test runs a child
//! process, which searches its own memory. The child receives the password only in masked form, so that the search
//! itself leaves no copy.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::common::{TEST_TIMEOUT, path};
use zklock::internal::{Level, LogDispatch, set_log_handler};
use zklock::{Client, ClientState, Config, Status};
use zklock_test_support::{ZooKeeper, wait_until};

const ENVIRONMENT: &str = "ZKL_TEST_SECRET";
const MASK: u8 = 0xa5;
/// The beginning and the end of the password. The search also finds a copy that is overwritten in part.
const WINDOW: usize = 8;

#[test]
fn digest_file_leaves_no_password_in_memory() {
    run_child("file");
}

#[test]
fn callback_leaves_no_password_in_memory() {
    run_child("callback");
}

#[test]
fn option_leaves_no_password_in_memory_after_close() {
    run_child("option");
}

#[test]
fn options_file_leaves_no_password_in_memory_after_close() {
    run_child("options");
}

#[test]
fn static_credentials_leave_no_password_in_memory_after_close() {
    run_child("static");
}

#[test]
fn sasl_password_file_leaves_no_password_in_memory() {
    run_child("sasl_file");
}

#[test]
fn sasl_password_leaves_no_password_in_memory_after_close() {
    run_child("sasl");
}

/// A file that only the child reads.
struct SecretFile(PathBuf);

impl Drop for SecretFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn run_child(kind: &str) {
    // The password is longer than the later requests of the client, which could overwrite a shorter password by chance.
    let mut random = [0; 1000];
    File::open("/dev/urandom").unwrap().read_exact(&mut random).unwrap();
    let password: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let file = SecretFile(std::env::temp_dir().join(format!("zklock-secret-{kind}-{}", std::process::id())));
    let before = match kind {
        "options" => "auth.digest = alice:",
        "sasl_file" => "",
        _ => "alice:",
    };
    fs::write(&file.0, format!("{before}{password}\n")).unwrap();
    let sasl = kind.starts_with("sasl");
    let sasl = sasl.then(|| ZooKeeper::options().sasl_users(&[("alice", &password)]).require_sasl().start());
    let server = sasl.as_ref().unwrap_or_else(|| ZooKeeper::shared());
    let masked: String = password.bytes().map(|byte| format!("{:02x}", byte ^ MASK)).collect();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "secrets::child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ENVIRONMENT, format!("{kind}\n{}\n{}\n{masked}", server.address(), file.0.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output: Vec<String> = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok).collect();
    assert!(child.wait().unwrap().success(), "{output:#?}");
    assert!(output.iter().any(|line| line.contains("no password left")), "{output:#?}");
}

/// The masked password.
#[derive(Clone)]
struct Needle(Vec<u8>);

impl Needle {
    /// Returns the credentials. The caller must erase them.
    fn credentials(&self) -> Vec<u8> {
        let mut credentials = Vec::with_capacity(6 + self.0.len());
        credentials.extend_from_slice(b"alice:");
        credentials.extend(self.0.iter().map(|byte| byte ^ MASK));
        credentials
    }

    fn with_credentials<T>(&self, work: impl FnOnce(&str) -> T) -> T {
        let mut credentials = self.credentials();
        let result = work(str::from_utf8(&credentials).unwrap());
        erase(&mut credentials);
        result
    }

    fn is_in(&self, bytes: &[u8]) -> bool {
        [&self.0[..WINDOW], &self.0[self.0.len() - WINDOW..]].iter().any(|part| {
            // Most positions differ in the first byte, so this comparison decides the time of the search.
            let first = part[0] ^ MASK;
            let mut rest = bytes;
            while let Some(at) = rest.iter().position(|&byte| byte == first) {
                rest = &rest[at..];
                if rest.iter().zip(*part).filter(|&(byte, masked)| byte ^ MASK == *masked).count() == WINDOW {
                    return true;
                }
                rest = &rest[1..];
            }
            false
        })
    }

    /// Returns the mappings of this process that contain the password.
    fn find_in_memory(&self) -> Vec<String> {
        let memory = File::open("/proc/self/mem").unwrap();
        let mut buffer = vec![0; 1 << 20];
        let mut found = Vec::new();
        for mapping in fs::read_to_string("/proc/self/maps").unwrap().lines() {
            let (range, rest) = mapping.split_once(' ').unwrap();
            if !rest.starts_with('r') || rest.contains("[vvar") || rest.contains("[vsyscall") {
                continue;
            }
            let (start, end) = range.split_once('-').unwrap();
            let [mut at, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
            while at < end {
                let length = usize::try_from(end - at).unwrap().min(buffer.len());
                let Ok(count) = memory.read_at(&mut buffer[..length], at) else { break };
                if self.is_in(&buffer[..count]) {
                    found.push(mapping.to_owned());
                }
                // A copy may lie at the boundary of two parts.
                at += if count == buffer.len() { (count - WINDOW) as u64 } else { count.max(1) as u64 };
            }
        }
        erase(&mut buffer);
        found
    }
}

fn erase(bytes: &mut [u8]) {
    bytes.fill(0);
    black_box(bytes);
}

/// Ends the connections of this process to the server.
fn cut(server: SocketAddr) {
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let fd = entry.unwrap().file_name().to_str().unwrap().parse::<i32>().unwrap();
        // SAFETY: the calls change no memory except the two arguments, and fail for other descriptors.
        unsafe {
            let mut peer: libc::sockaddr_in = std::mem::zeroed();
            let mut length = size_of_val(&peer) as libc::socklen_t;
            if libc::getpeername(fd, (&raw mut peer).cast(), &raw mut length) == 0
                && i32::from(peer.sin_family) == libc::AF_INET
                && u16::from_be(peer.sin_port) == server.port()
            {
                libc::shutdown(fd, libc::SHUT_RDWR);
            }
        }
    }
}

#[test]
#[ignore = "the child process of the other tests"]
fn child() {
    let Ok(arguments) = std::env::var(ENVIRONMENT) else { return };
    let [kind, servers, file, masked] = arguments.split('\n').collect::<Vec<_>>().try_into().unwrap();
    let bytes = (0..masked.len()).step_by(2).map(|at| u8::from_str_radix(&masked[at..at + 2], 16).unwrap());
    let needle = Needle(bytes.collect());

    // The search finds a copy.
    let mut copy = needle.credentials();
    assert!(!needle.find_in_memory().is_empty());
    erase(&mut copy);
    assert_eq!(needle.find_in_memory(), [""; 0]);

    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&lines);
    let record = move |line: &zklock::internal::LogLine| log.lock().unwrap().push(format!("{line:?}"));
    set_log_handler(Level::Trace, LogDispatch::EventThread, Some(Arc::new(record))).unwrap();
    let mut config = Config::new();
    match kind {
        "file" => config.set("auth.digest_file", file).unwrap(),
        "options" => config.load(file).unwrap(),
        "option" => {
            let refused = needle.with_credentials(|value| config.set("auth.digest", &value[6..])).unwrap_err();
            assert_eq!(refused.status(), Status::Invalid);
            needle.with_credentials(|value| config.set("auth.digest", value)).unwrap();
        }
        "sasl" | "sasl_file" => {
            config.set("sasl.mechanism", "digest-md5").unwrap();
            config.set("sasl.user", "alice").unwrap();
            if kind == "sasl" {
                needle.with_credentials(|value| config.set("sasl.password", &value[6..])).unwrap();
            } else {
                config.set("sasl.password_file", file).unwrap();
            }
        }
        "static" => config = needle.with_credentials(|value| config.add_auth("digest", value)),
        _ => {
            let needle = needle.clone();
            config = config.auth_callback("digest", move || Ok(needle.credentials()));
        }
    }
    let client = Client::connect(servers, &config).unwrap();
    let lock = client.mutex(&path("secret")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    cut(servers.parse().unwrap());
    wait_until(TEST_TIMEOUT, || client.metrics().unwrap().reconnects == 1);
    wait_until(TEST_TIMEOUT, || client.state().unwrap() == ClientState::Connected && lock.is_held().unwrap());
    let found = needle.find_in_memory();
    // A client keeps credentials that the program has passed, because it needs them for the next connection.
    let keeps = ["option", "options", "sasl", "static"].contains(&kind);
    assert_eq!(!found.is_empty(), keeps, "{found:#?}");
    lock.release().unwrap();
    client.close().unwrap();
    let shown = format!("{client:?} {config:?}");
    assert!(!needle.is_in(shown.as_bytes()), "Debug output shows the password");
    drop((lock, client, config));
    set_log_handler(Level::Trace, LogDispatch::EventThread, None).unwrap();
    let lines = lines.lock().unwrap().join("\n");
    assert!(lines.contains("reconnected") && !needle.is_in(lines.as_bytes()), "{lines}");
    assert_eq!(needle.find_in_memory(), [""; 0]);
    println!("no password left");
    std::io::stdout().flush().unwrap();
}
