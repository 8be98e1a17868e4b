//! A private network for a test: a bridge and hosts, each host in its own network namespace. A test can set the link of
//! a host down. Needs root.
//!
//! The namespaces have no names. The kernel removes a namespace with the last process and the last descriptor that use
//! it, however the test ends.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::thread;

/// The address of the bridge. The test itself runs there.
const BRIDGE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);
/// A MAC address that no host has.
const UNUSED_MAC: &str = "02:de:ad:00:00:01";

/// A bridge in a network namespace. The thread that created the network is in this namespace, and so are the threads
/// and processes that it starts afterwards.
pub struct Network {
    namespace: File,
    hosts: Vec<Arc<Host>>,
}

/// A host that is connected to the bridge.
pub struct Host {
    number: u8,
    namespace: File,
    bridge_namespace: File,
}

impl Network {
    /// Moves the calling thread into a new network namespace with a loopback interface and a bridge. Fails if the test
    /// lacks the permission or if the machine has no `ip` command.
    pub fn enter() -> io::Result<Self> {
        // SAFETY: The call does not access memory of this process.
        check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
        let namespace = own_namespace()?;
        let network = Self { namespace, hosts: Vec::new() };
        network.ip("link set lo up")?;
        network.ip("link add hub type bridge")?;
        network.ip("link set hub up")?;
        network.ip(&format!("address add {BRIDGE_ADDRESS}/24 dev hub"))?;
        Ok(network)
    }

    /// Adds a host.
    pub fn add_host(&mut self) -> io::Result<Arc<Host>> {
        let number = u8::try_from(self.hosts.len() + 1).expect("a small network");
        let namespace = new_namespace()?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
        self.ip(&format!("link add host{number} type veth peer name eth0 netns {path}"))?;
        self.ip(&format!("link set host{number} master hub up"))?;
        let host = Arc::new(Host { number, namespace, bridge_namespace: self.namespace.try_clone()? });
        host.ip("link set lo up")?;
        host.ip(&format!("address add {}/24 dev eth0", host.address()))?;
        host.ip("link set eth0 up")?;
        self.hosts.push(Arc::clone(&host));
        Ok(host)
    }

    fn ip(&self, words: &str) -> io::Result<()> {
        ip(&self.namespace, words)
    }
}

impl Host {
    /// The address of the host.
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.number)
    }

    /// Sets the link of the host down (`off`) or up. While it is down, all packets are lost and no connection is
    /// closed.
    pub fn set_link_down(&self, off: bool) {
        let how = if off { "down" } else { "up" };
        ip(&self.bridge_namespace, &format!("link set host{} {how}", self.number)).expect("ip link set");
    }

    /// Drops all packets to another host while `on` is true.
    pub fn drop_packets_to(&self, other: &Self, on: bool) {
        let other = other.address();
        // The entry may be gone already. The error of the deletion is then harmless.
        let _ = match on {
            true => self.ip(&format!("neigh replace {other} lladdr {UNUSED_MAC} dev eth0 nud permanent")),
            false => self.ip(&format!("neigh delete {other} dev eth0")),
        };
    }

    /// Makes a command run on this host.
    pub(crate) fn run_here(&self, command: &mut Command) {
        run_in(&self.namespace, command);
    }

    fn ip(&self, words: &str) -> io::Result<()> {
        ip(&self.namespace, words)
    }
}

fn ip(namespace: &File, words: &str) -> io::Result<()> {
    let mut command = Command::new("ip");
    command.args(words.split(' '));
    run_in(namespace, &mut command);
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("ip {words}: {}", why.trim())))
}

fn run_in(namespace: &File, command: &mut Command) {
    let descriptor = namespace.as_raw_fd();
    let enter = move || {
        // SAFETY: The call does not access memory of this process.
        check(unsafe { libc::setns(descriptor, libc::CLONE_NEWNET) })
    };
    // SAFETY: setns is only a system call. The network keeps the descriptor open and outlives the start of the command.
    unsafe { command.pre_exec(enter) };
}

/// Creates a network namespace. A thread creates it, and the descriptor keeps it alive after the thread has ended.
fn new_namespace() -> io::Result<File> {
    let made = thread::spawn(|| {
        // SAFETY: The call does not access memory of this process.
        check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
        own_namespace()
    });
    made.join().expect("the thread ends")
}

fn own_namespace() -> io::Result<File> {
    File::open("/proc/thread-self/ns/net")
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
