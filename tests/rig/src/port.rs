//! A TCP port on loopback that stays ours, whether or not a server listens on it right now.

use std::io;
use std::mem::size_of;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A reserved port: a socket that is bound but never listens.
///
/// As long as it lives, the kernel gives the port to nobody else: not to another test's `bind`, and not as the local port
/// of an outgoing connection (a client that retries a stopped server could otherwise end up connected to itself, and the
/// server could not come back). A server that sets SO_REUSEADDR, as Java's and Rust's listeners do, may still listen on it;
/// until one does, connections are refused.
pub(crate) struct Port {
    number: u16,
    _socket: OwnedFd,
}

impl Port {
    /// Reserves any free port.
    pub(crate) fn reserve() -> Self {
        Self::try_reserve().expect("reserve a port on loopback")
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// `127.0.0.1:port`
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", Ipv4Addr::LOCALHOST, self.number)
    }

    fn try_reserve() -> io::Result<Self> {
        let socket = socket()?;
        bind_any(&socket)?;
        // Only now: with the option set before, two reservations could share a port.
        allow_reuse(&socket)?;
        Ok(Self { number: local_port(&socket)?, _socket: socket })
    }
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the result is checked before it is owned.
    let fd = check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: `fd` was opened above and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bind_any(socket: &OwnedFd) -> io::Result<()> {
    let mut address = any_port();
    // SAFETY: `address` is a sockaddr_in that outlives the call, and the length is its own.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw mut address).cast(), length_of::<libc::sockaddr_in>()) })?;
    Ok(())
}

fn allow_reuse(socket: &OwnedFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is an int that outlives the call.
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
    // SAFETY: the kernel writes at most `length` bytes into `address`; both outlive the call.
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
