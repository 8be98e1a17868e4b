//! Messages to a service manager such as systemd, as sd_notify(3) describes them: datagrams to the socket in
//! `NOTIFY_SOCKET`.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::exit::Failure;

/// The variable with the name of the socket.
pub(crate) const SOCKET: &str = "NOTIFY_SOCKET";

/// A service manager that does not read its socket delays the command by at most this time.
const SEND_LIMIT: Duration = Duration::from_secs(1);

/// The connection to the service manager. Without a service manager, all methods do nothing.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    socket: Option<UnixDatagram>,
    is_stopping: Cell<bool>,
}

impl ServiceManager {
    /// Connects to the socket with this name: an absolute path, or `@` and an abstract name.
    pub(crate) fn connect(name: Option<&OsStr>) -> Result<Self, Failure> {
        let socket = name.map(|name| {
            connect(name.as_bytes()).map_err(|error| {
                Failure::usage(format!(
                    "--notify: cannot connect to the socket {} of {SOCKET}: {error}; expected an absolute path, or @ and a name",
                    name.to_string_lossy()
                ))
            })
        });
        Ok(Self { socket: socket.transpose()?, is_stopping: Cell::new(false) })
    }

    /// Describes what `zklock` does now. The text appears in `systemctl status`.
    pub(crate) fn status(&self, text: &str) {
        // The status is only information.
        let _ = self.send(&format!("STATUS={text}"));
    }

    /// Reports that the command runs under the lock.
    pub(crate) fn ready(&self, text: &str) -> io::Result<()> {
        self.send(&format!("READY=1\nSTATUS={text}"))
    }

    /// Reports, once, that the command ends.
    pub(crate) fn stopping(&self) {
        if !self.is_stopping.replace(true) {
            // The end of this process reports the same.
            let _ = self.send("STOPPING=1");
        }
    }

    fn send(&self, message: &str) -> io::Result<()> {
        self.socket.as_ref().map_or(Ok(()), |socket| socket.send(message.as_bytes()).map(drop))
    }
}

fn connect(name: &[u8]) -> io::Result<UnixDatagram> {
    let address = match name {
        [b'/', ..] => SocketAddr::from_pathname(OsStr::from_bytes(name))?,
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_LIMIT))?;
    socket.connect_addr(&address)?;
    Ok(socket)
}
