//! A network of a test's own: hosts on a bridge, each in a network namespace, whose cables can be pulled. Needs root.
//!
//! The namespaces have no names. They are gone when the last process and the last descriptor in them are, however the test ends.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::thread;

/// The bridge's own address, where the test is.
const HUB: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);
/// A station that does not exist.
const NOBODY: &str = "02:de:ad:00:00:01";

/// A bridge, in the namespace of the thread that made it and of the threads and processes that this one starts afterwards.
pub struct Network {
    namespace: File,
    hosts: Vec<Arc<Host>>,
}

/// A host at the bridge.
pub struct Host {
    number: u8,
    namespace: File,
    hub: File,
}

impl Network {
    /// Moves the calling thread into a namespace of its own, with loopback and a bridge. An error where the test has no right to
    /// that, or the machine no `ip`.
    pub fn enter() -> io::Result<Self> {
        // SAFETY: no memory is involved.
        check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
        let namespace = own_namespace()?;
        let network = Self { namespace, hosts: Vec::new() };
        network.ip("link set lo up")?;
        network.ip("link add hub type bridge")?;
        network.ip("link set hub up")?;
        network.ip(&format!("address add {HUB}/24 dev hub"))?;
        Ok(network)
    }

    /// Plugs in another host.
    pub fn add_host(&mut self) -> io::Result<Arc<Host>> {
        let number = u8::try_from(self.hosts.len() + 1).expect("a small network");
        let namespace = new_namespace()?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
        self.ip(&format!("link add host{number} type veth peer name eth0 netns {path}"))?;
        self.ip(&format!("link set host{number} master hub up"))?;
        let host = Arc::new(Host { number, namespace, hub: self.namespace.try_clone()? });
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
    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.number)
    }

    /// Pulls its cable, or puts it back: nothing comes or goes, and nobody is told.
    pub fn unplug(&self, off: bool) {
        let how = if off { "down" } else { "up" };
        ip(&self.hub, &format!("link set host{} {how}", self.number)).expect("ip link set");
    }

    /// Has all that it sends to another host vanish, or no longer.
    pub fn mute(&self, other: &Self, on: bool) {
        let other = other.address();
        // Deleting an entry that has gone by itself is an error, and as good.
        let _ = match on {
            true => self.ip(&format!("neigh replace {other} lladdr {NOBODY} dev eth0 nud permanent")),
            false => self.ip(&format!("neigh delete {other} dev eth0")),
        };
    }

    /// Has a command run on this host.
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
        // SAFETY: no memory is involved.
        check(unsafe { libc::setns(descriptor, libc::CLONE_NEWNET) })
    };
    // SAFETY: setns is a system call and nothing else; the descriptor is open as long as its network, which starts the command.
    unsafe { command.pre_exec(enter) };
}

/// A namespace is made for a thread, and outlives it as a descriptor.
fn new_namespace() -> io::Result<File> {
    let made = thread::spawn(|| {
        // SAFETY: no memory is involved.
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
