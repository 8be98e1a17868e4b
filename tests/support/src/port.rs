//! A reserved TCP port on loopback. The test keeps the port, whether or not a server listens on it.

use std::io;
use std::mem::size_of;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A reserved port: a socket that is bound but never listens.
///
/// While the socket exists, the kernel does not assign the port to any other socket: neither to the `bind` of another
/// test, nor as the local port of an outgoing connection. (Otherwise a client that retries a stopped server could
/// connect to itself, and the server could not restart.) A server that sets SO_REUSEADDR, as the listeners of Java and
/// Rust do, can still listen on the port. Until a server listens, connections are refused.
pub struct Port {
    number: u16,
    _socket: OwnedFd,
}

impl Port {
    /// Reserves any free port.
    pub fn reserve() -> Self {
        Self::try_reserve().expect("reserve a port on loopback")
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// The address `127.0.0.1:port`.
    pub fn address(&self) -> String {
        format!("{}:{}", Ipv4Addr::LOCALHOST, self.number)
    }

    fn try_reserve() -> io::Result<Self> {
        let socket = socket()?;
        bind_any(&socket)?;
        // The option must be set after the bind. If it were set before, two reservations could share a port.
        allow_reuse(&socket)?;
        Ok(Self { number: local_port(&socket)?, _socket: socket })
    }
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: The call has no pointer arguments, and its result is checked before use.
    let fd = check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: `fd` was opened above, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bind_any(socket: &OwnedFd) -> io::Result<()> {
    let mut address = any_port();
    // SAFETY: `address` is a sockaddr_in that outlives the call, and the length is the length of that type.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw mut address).cast(), length_of::<libc::sockaddr_in>()) })?;
    Ok(())
}

fn allow_reuse(socket: &OwnedFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: The value of the option is an int that outlives the call.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_REUSEADDR,
            (&raw const on).cast(),
            length_of::<libc::c_int>(),
        )
    })?;
    Ok(())
}

fn local_port(socket: &OwnedFd) -> io::Result<u16> {
    let mut address = any_port();
    let mut length = length_of::<libc::sockaddr_in>();
    // SAFETY: The kernel writes at most `length` bytes into `address`, and both outlive the call.
    check(unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut length) })?;
    Ok(u16::from_be(address.sin_port))
}

fn any_port() -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be() },
        sin_zero: [0; 8],
    }
}

fn length_of<T>() -> libc::socklen_t {
    size_of::<T>() as libc::socklen_t
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
