//! Resolves the names of servers without blocking the I/O thread. The code in this file does not choose an address and
//! does not connect.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use zklock_core::session::Server;
use zklock_process::PerProcess;

use super::sync::{Mutex, lock, spawn};

/// The result of resolving a name. All callers that asked for the same name receive the same error.
pub(super) type ResolveResult = Result<Vec<SocketAddr>, Arc<io::Error>>;
type ResolveCallback = Box<dyn FnOnce(ResolveResult) + Send>;
type HostPort = (String, u16);

/// The callers that wait for the addresses of each name. While one thread is resolving a name, the process does not
/// start another thread for the same name. A resolver that hangs therefore blocks only one thread, even if many clients
/// ask for the name.
static PENDING_LOOKUPS: PerProcess<Mutex<HashMap<HostPort, Vec<ResolveCallback>>>> =
    PerProcess::new(|| Mutex::new(HashMap::new()));

/// Returns the address if the server's name is an IP address.
pub(super) fn literal(server: &Server) -> Option<SocketAddr> {
    let address: IpAddr = server.host.parse().ok()?;
    Some(SocketAddr::new(address, server.port))
}

/// Resolves the name on a new thread. The thread calls `done` and then ends. The system's resolver may take a long
/// time, but no other thread waits for it.
pub(super) fn in_background(server: &Server, done: impl FnOnce(ResolveResult) + Send + 'static) -> io::Result<()> {
    let name = (server.host.clone(), server.port);
    let mut asked = lock(PENDING_LOOKUPS.get());
    match asked.entry(name.clone()) {
        Entry::Occupied(mut others) => others.get_mut().push(Box::new(done)),
        Entry::Vacant(first) => {
            spawn("zkl-dns", || resolve(name))?;
            first.insert(vec![Box::new(done)]);
        }
    }
    Ok(())
}

fn resolve(name: HostPort) {
    let found: ResolveResult = (name.0.as_str(), name.1).to_socket_addrs().map(Iterator::collect).map_err(Arc::new);
    let waiting = lock(PENDING_LOOKUPS.get()).remove(&name).unwrap_or_default();
    for done in waiting {
        done(found.clone());
    }
}
