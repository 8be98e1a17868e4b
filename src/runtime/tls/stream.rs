//! TLS on one connection. A stream converts the bytes of a session to TLS records, and converts received TLS records
//! back to session bytes. A stream can contain decrypted bytes ([`TlsStream::has_unread`]) and records to send
//! ([`TlsStream::wants_write`]). The poller cannot report these bytes and records, because they are not in the socket.
//! No method of the stream blocks.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, HandshakeKind};

use super::failure::{self, Circumstances};
use super::loaded::LoadedTls;
use crate::runtime::socket::CheckedSocket;

pub(in crate::runtime) struct TlsStream {
    connection: ClientConnection,
    tls: Arc<LoadedTls>,
    name: ServerName<'static>,
    /// The first bytes that the server has sent, at most two.
    first_bytes: Vec<u8>,
    /// The number of decrypted bytes that no thread has read yet.
    unread: usize,
    /// True if the server has sent the closing record.
    has_ended: bool,
}

/// The number of bytes that identify a TLS record: one byte for its type and one byte for its major version.
const FIRST_BYTES: usize = 2;
/// After the connection is lost, the stream reads at most this many times to look for an alert from the server.
const READS_FOR_ALERT: usize = 8;

impl TlsStream {
    /// Prepares the handshake with a server whose certificate must contain `name`.
    pub(super) fn start(tls: Arc<LoadedTls>, name: ServerName<'static>) -> io::Result<Self> {
        let connection = ClientConnection::new(tls.config(), name.clone())
            .map_err(|error| failure::failure(format!("TLS cannot start: {error}")))?;
        Ok(Self { connection, tls, name, first_bytes: Vec::with_capacity(FIRST_BYTES), unread: 0, has_ended: false })
    }

    /// Continues the handshake as far as possible without blocking. Returns true if the handshake is complete.
    pub(in crate::runtime) fn continue_handshake<T: AsRawFd>(&mut self, socket: &CheckedSocket<T>) -> io::Result<bool> {
        while self.connection.is_handshaking() {
            self.flush(socket)?;
            if self.wants_write() {
                return Ok(false);
            }
            match self.receive_records(socket) {
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(failure::describe_closed(&self.first_bytes));
                }
                result => drop(result?),
            }
        }
        if self.connection.handshake_kind() == Some(HandshakeKind::Resumed) {
            let sent = self.connection.peer_certificates().unwrap_or_default();
            self.tls.verify_resumed(sent, &self.name).map_err(|error| self.describe(&error))?;
        }
        self.flush(socket)?;
        Ok(true)
    }

    /// Reads decrypted bytes. Returns 0 if the server has closed the connection.
    ///
    /// Errors: `WouldBlock` if the socket has no data. `Interrupted` if the socket may have more data, but the received
    /// records contained no bytes of the session.
    pub(in crate::runtime) fn read<T: AsRawFd>(
        &mut self,
        socket: &CheckedSocket<T>,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        if let Some(result) = self.read_decrypted(buffer) {
            return result;
        }
        self.receive_records(socket)?;
        self.read_decrypted(buffer).unwrap_or_else(|| Err(io::ErrorKind::Interrupted.into()))
    }

    /// Reads decrypted bytes, or the end of the connection. Returns `None` if the stream must receive records first.
    fn read_decrypted(&mut self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        match self.connection.reader().read(buffer) {
            Ok(count) => {
                self.unread -= count.min(self.unread);
                Some(Ok(count))
            }
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => None,
            // The server closed the connection without sending the TLS alert close_notify. The session treats every end
            // of a connection alike, because incomplete frames show that data is missing.
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => Some(Ok(0)),
            Err(cause) => Some(Err(cause)),
        }
    }

    /// Encrypts bytes and sends them. Returns the number of bytes that the stream has accepted. If the socket has no
    /// room, the stream keeps some records for [`flush`](Self::flush).
    ///
    /// Errors: `WouldBlock` if the stream already keeps too many records.
    pub(in crate::runtime) fn write<T: AsRawFd>(
        &mut self,
        socket: &CheckedSocket<T>,
        bytes: &[u8],
    ) -> io::Result<usize> {
        self.flush(socket)?;
        let accepted = self.connection.writer().write(bytes)?;
        self.flush(socket)?;
        if accepted == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(accepted) }
    }

    /// Sends the waiting records until the socket has no more room.
    pub(in crate::runtime) fn flush<T: AsRawFd>(&mut self, socket: &CheckedSocket<T>) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Records(socket)) {
                Ok(_) => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(self.reason_for_close(socket, cause)),
            }
        }
        Ok(())
    }

    /// Returns whether the stream contains TLS records that it has not sent yet.
    pub(in crate::runtime) fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// Returns whether the stream contains decrypted bytes, or the end of the connection, that no thread has read yet.
    pub(in crate::runtime) fn has_unread(&self) -> bool {
        self.unread > 0 || self.has_ended
    }

    /// Sends the alert `close_notify`, which tells the server that no more data follows. If the socket has no room, the
    /// server does not receive the alert.
    pub(in crate::runtime) fn close<T: AsRawFd>(&mut self, socket: &CheckedSocket<T>) {
        self.connection.send_close_notify();
        let _ = self.flush(socket);
    }

    /// Reads the socket once, and decrypts the received records. Returns the number of received bytes, which is 0 if
    /// the server has closed the connection.
    fn receive_records<T: AsRawFd>(&mut self, socket: &CheckedSocket<T>) -> io::Result<usize> {
        let mut records = FirstBytes { socket, seen: &mut self.first_bytes };
        let count = self.connection.read_tls(&mut records)?;
        if count == 0 && self.connection.is_handshaking() {
            return Err(failure::describe_closed(&self.first_bytes));
        }
        match self.connection.process_new_packets() {
            Ok(state) => {
                self.unread = state.plaintext_bytes_to_read();
                self.has_ended = state.peer_has_closed();
                Ok(count)
            }
            Err(error) => {
                // Sends an alert with the reason for the failure, which the server can write to its log.
                let _ = self.connection.write_tls(&mut Records(socket));
                Err(self.describe(&error))
            }
        }
    }

    /// Returns the reason why a write to the socket failed with the error `cause`. If the server sent an alert before
    /// it closed the connection, the alert is the reason. Otherwise, `cause` is the reason.
    fn reason_for_close<T: AsRawFd>(&mut self, socket: &CheckedSocket<T>, cause: io::Error) -> io::Error {
        for _ in 0..READS_FOR_ALERT {
            match self.receive_records(socket) {
                Ok(count) if count > 0 => {}
                Err(alert) if failure::is_tls_failure(&alert) => return alert,
                _ => break,
            }
        }
        cause
    }

    fn describe(&self, error: &rustls::Error) -> io::Error {
        let circumstances = Circumstances {
            min_version: self.tls.min_version,
            has_certificate: self.tls.has_certificate(),
            is_certificate_requested: self.tls.is_certificate_requested(),
            server_name: &self.name.to_str(),
            first_bytes: &self.first_bytes,
        };
        failure::describe(error, &circumstances)
    }
}

/// Writes TLS records to the socket.
struct Records<'a, T: AsRawFd>(&'a CheckedSocket<T>);

impl<T: AsRawFd> Write for Records<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads TLS records from the socket, and keeps a copy of the first bytes.
struct FirstBytes<'a, T: AsRawFd> {
    socket: &'a CheckedSocket<T>,
    seen: &'a mut Vec<u8>,
}

impl<T: AsRawFd> Read for FirstBytes<'_, T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.socket.receive(buffer)?;
        let missing = FIRST_BYTES.saturating_sub(self.seen.len()).min(count);
        self.seen.extend_from_slice(buffer.get(..missing).unwrap_or_default());
        Ok(count)
    }
}
