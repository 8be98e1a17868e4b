//! Resets TCP connections.

use std::os::fd::{AsFd, AsRawFd};

/// Resets a TCP connection: the peer receives a reset instead of an orderly end. The reset takes effect even if a forked
/// child has a copy of the socket. If the socket is not connected, the call has no effect.
pub fn reset(socket: &impl AsFd) {
    // SAFETY: a socket address may consist of zeros.
    let mut unspecified: libc::sockaddr = unsafe { std::mem::zeroed() };
    unspecified.sa_family = libc::AF_UNSPEC as libc::sa_family_t;
    let length = size_of::<libc::sockaddr>() as libc::socklen_t;
    // Closing a socket with a linger time of zero also resets the connection, but only if no copy of the socket exists.
    // SAFETY: the descriptor is open, and the address is valid for the length.
    unsafe { libc::connect(socket.as_fd().as_raw_fd(), &raw const unspecified, length) };
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_types, reason = "tests")]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn peer_sees_a_reset_although_a_copy_of_the_socket_exists() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        // The copy of a forked child has the same effect.
        let copy = socket.try_clone().unwrap();
        super::reset(&socket);
        drop(socket);
        assert_eq!(peer.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        drop(copy);
    }
}
