//! From a server's name to its addresses, without ever holding up the I/O thread.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use super::fork::PerProcess;
use super::sync::{Builder, Mutex, lock};
use crate::session::Server;

/// What a resolver found; its error, if any, is told to all who asked.
pub(super) type Found = Result<Vec<SocketAddr>, Arc<io::Error>>;
type Done = Box<dyn FnOnce(Found) + Send>;
type Name = (String, u16);

/// Who waits for which name. A name is asked for once at a time in a process: a resolver that hangs holds one thread, however many
/// clients come and go meanwhile.
static ASKED: PerProcess<Mutex<HashMap<Name, Vec<Done>>>> = PerProcess::new(|| Mutex::new(HashMap::new()));

/// The address of a server that was named by one.
pub(super) fn literal(server: &Server) -> Option<SocketAddr> {
    let address: IpAddr = server.host.parse().ok()?;
    Some(SocketAddr::new(address, server.port))
}

/// Resolves the name on a thread of its own, which ends with the call of `done`. The system's resolver may take as long as
/// it likes; nobody waits for it.
pub(super) fn in_background(server: &Server, done: impl FnOnce(Found) + Send + 'static) -> io::Result<()> {
    let name = (server.host.clone(), server.port);
    let mut asked = lock(ASKED.get());
    match asked.entry(name.clone()) {
        Entry::Occupied(mut others) => others.get_mut().push(Box::new(done)),
        Entry::Vacant(first) => {
            super::signals::blocked(|| Builder::new().name("zkl-dns".into()).spawn(|| resolve(name)))?;
            first.insert(vec![Box::new(done)]);
        }
    }
    Ok(())
}

fn resolve(name: Name) {
    let found: Found = (name.0.as_str(), name.1).to_socket_addrs().map(Iterator::collect).map_err(Arc::new);
    let waiting = lock(ASKED.get()).remove(&name).unwrap_or_default();
    for done in waiting {
        done(found.clone());
    }
}
