//! From a server's name to its addresses, without ever holding up the I/O thread.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::thread;

use crate::session::Server;

/// The address of a server that was named by one.
pub(super) fn literal(server: &Server) -> Option<SocketAddr> {
    let address: IpAddr = server.host.parse().ok()?;
    Some(SocketAddr::new(address, server.port))
}

/// Resolves the name on a thread of its own, which ends with the call of `done`. The system's resolver may take as long as
/// it likes; nobody waits for it.
pub(super) fn in_background(
    server: Server,
    done: impl FnOnce(io::Result<Vec<SocketAddr>>) + Send + 'static,
) -> io::Result<()> {
    let resolve = move || {
        let addresses = (server.host.as_str(), server.port).to_socket_addrs().map(Iterator::collect);
        done(addresses);
    };
    super::signals::blocked(|| thread::Builder::new().name("zkl-dns".into()).spawn(resolve))?;
    Ok(())
}
