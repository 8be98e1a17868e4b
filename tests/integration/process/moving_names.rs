//! The name of a server moves to other addresses, as the name of a pod does in Kubernetes. The test changes
//! `/etc/hosts` in a mount namespace, so that the real resolver of the system finds the addresses. This is the only
//! test in its process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test may panic")]

#[path = "../common.rs"]
mod common;

use std::fs;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::{TEST_TIMEOUT, client_with, path};
use zklock::LockState;
use zklock_test_support::{ZooKeeper, wait_until};

const NAME: &str = "zk-pod-0";

/// Starts this program again in a mount namespace in which the test can replace files below `/etc`.
#[test]
fn client_finds_a_server_whose_name_moves() {
    let server = ZooKeeper::start();
    let directory = std::env::temp_dir().join(format!("zklock-names-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("hosts"), "").unwrap();
    // A missing name must not cause a request to a name server.
    fs::write(directory.join("nsswitch.conf"), "hosts: files\n").unwrap();
    let script = r#"
        mount --bind "$HOSTS/hosts" /etc/hosts && mount --bind "$HOSTS/nsswitch.conf" /etc/nsswitch.conf && exec "$@"
    "#;
    let in_namespace = |program: &Path| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(program).env("HOSTS", &directory);
        command
    };
    let refusal = in_namespace(Path::new("true")).output().unwrap();
    if !refusal.status.success() {
        fs::remove_dir_all(&directory).unwrap();
        return println!("user and mount namespaces are not available: {}", String::from_utf8_lossy(&refusal.stderr));
    }
    let status = in_namespace(&std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env("SERVER", server.address())
        .status()
        .unwrap();
    fs::remove_dir_all(&directory).unwrap();
    assert!(status.success(), "{status}");
}

#[test]
#[ignore = "a process of its own, started by the test above"]
fn child() {
    let hosts = PathBuf::from(std::env::var("HOSTS").unwrap()).join("hosts");
    let target = std::env::var("SERVER").unwrap();
    let set_addresses = |addresses: &[&str]| {
        let lines: Vec<String> = addresses.iter().map(|address| format!("{address} {NAME}\n")).collect();
        fs::write(&hosts, lines.concat()).unwrap();
    };
    let mut pod = Pod::start("127.0.0.2:0", &target);
    let port = pod.port();
    set_addresses(&["127.0.0.2"]);
    let client = client_with(&format!("{NAME}:{port}"), Duration::from_secs(20));
    let lock = client.mutex(&path("moving")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    let token = lock.fencing_token().unwrap();
    // No server listens at the address 127.0.0.9, like at the address of a pod that has not started or has ended.
    for (address, found) in [
        ("127.0.0.3", &["127.0.0.3"][..]),
        ("127.0.0.4", &["127.0.0.4", "127.0.0.9"]),
        ("127.0.0.2", &["127.0.0.9", "127.0.0.2"]),
    ] {
        let attempts = client.metrics().unwrap().connection_attempts;
        pod.end();
        set_addresses(&[]);
        wait_until(TEST_TIMEOUT, || client.metrics().unwrap().connection_attempts > attempts + 2);
        set_addresses(&["127.0.0.9"]);
        wait_until(TEST_TIMEOUT, || client.metrics().unwrap().connection_attempts > attempts + 5);
        pod = Pod::start(&format!("{address}:{port}"), &target);
        set_addresses(found);
        wait_until(TEST_TIMEOUT, || {
            let state = lock.state().unwrap();
            assert!(matches!(state, LockState::Held | LockState::Suspended), "{state:?}");
            state == LockState::Held && pod.is_used()
        });
    }
    assert_eq!(lock.fencing_token().unwrap(), token);
    lock.release().unwrap();
    pod.end();
}

/// Forwards the connections to one address to the server.
struct Pod {
    port: u16,
    has_ended: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    address: String,
}

impl Pod {
    fn start(address: &str, target: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let pod = Self {
            port: address.port(),
            has_ended: Arc::default(),
            streams: Arc::default(),
            address: address.to_string(),
        };
        let (has_ended, streams, target) = (Arc::clone(&pod.has_ended), Arc::clone(&pod.streams), target.to_owned());
        thread::spawn(move || {
            for connection in listener.incoming() {
                if has_ended.load(Ordering::SeqCst) {
                    return;
                }
                let (client, server) = (connection.unwrap(), TcpStream::connect(&target).unwrap());
                streams.lock().unwrap().extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                forward(&client, &server);
                forward(&server, &client);
            }
        });
        pod
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn is_used(&self) -> bool {
        !self.streams.lock().unwrap().is_empty()
    }

    /// Closes all connections and the listener.
    fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        // The listener accepts this connection, and then closes.
        drop(TcpStream::connect(&self.address));
        wait_until(TEST_TIMEOUT, || TcpStream::connect(&self.address).is_err());
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn forward(from: &TcpStream, to: &TcpStream) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
}
