//! A TLS server that is not ZooKeeper: `openssl s_server`.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::port::Port;
use crate::{TEST_TIMEOUT, wait_until};

/// A TLS server without ZooKeeper. It accepts one connection at a time. Dropping it kills the server.
///
/// A test uses it to control the handshake, and to send what a ZooKeeper server never sends.
pub struct OpensslServer {
    child: Child,
    stdin: ChildStdin,
    port: Port,
}

impl OpensslServer {
    /// Starts a server with these arguments of `openssl s_server`, and waits until it listens. The value belongs to the
    /// calling thread: the server also ends when this thread ends.
    pub fn start(arguments: &[&str]) -> Self {
        let port = Port::reserve();
        let mut command = Command::new("openssl");
        command.args(["s_server", "-accept", &port.address()]).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // SAFETY: The closure only calls prctl, which is async-signal-safe.
        unsafe { command.pre_exec(end_with_parent) };
        let mut child = command.spawn().unwrap_or_else(|error| panic!("start openssl: {error}; make setup"));
        let (stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        // Nothing else may fill the pipe, or the server would block.
        std::thread::spawn(move || {
            let mut rest = Vec::new();
            let _ = stdout.read_to_end(&mut rest);
        });
        let server = Self { child, stdin, port };
        wait_until(TEST_TIMEOUT, || is_listening(server.port.number()));
        server
    }

    /// The address `127.0.0.1:port`.
    pub fn address(&self) -> String {
        self.port.address()
    }

    /// Writes to the standard input of the server. A write that begins with a letter may be a command: `K` updates the
    /// keys, `R` asks for a new handshake (TLS 1.2), `P` sends plain text, `q` ends the connection. The server sends
    /// everything else to its client.
    pub fn write(&mut self, bytes: &[u8]) {
        // The server may have ended.
        let _ = self.stdin.write_all(bytes).and_then(|()| self.stdin.flush());
    }
}

impl Drop for OpensslServer {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("kill a child");
    }
}

fn end_with_parent() -> io::Result<()> {
    // SAFETY: The call does not access memory.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether a socket listens on this port. The function does not connect, because the server would count the connection.
fn is_listening(port: u16) -> bool {
    const LISTEN: &str = "0A";
    let local = format!("0100007F:{port:04X}");
    let sockets = std::fs::read_to_string("/proc/net/tcp").expect("the list of sockets");
    sockets.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(1) == Some(&&*local) && fields.get(3) == Some(&LISTEN)
    })
}
