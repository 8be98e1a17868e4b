//! The inputs of a session from the shell, and the outputs to the shell.

use std::ops::ControlFlow;

use zeroize::Zeroize;
use zklock_proto::{ConnectRequest, Frames, ProtoError, ReplyHeader};

use super::credentials::Credentials;
use super::sasl::SaslMechanism;
use super::{
    Command, ConnectionRefusal, ConnectionState, Departure, DepartureStage, Event, Session, SessionOffer, not_loaded,
    to_u64,
};
use crate::time::{Time, in_words};

/// A change of the connection that the shell reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionEvent<'a> {
    /// The shell must load the named inputs before it can connect, for example credentials from a file.
    LoadingInputs(&'a str),
    /// The attempt to connect waits for another thread of the shell, for this reason.
    Stalled(&'a str),
    /// The shell has loaded the inputs. The shell now connects, or has carried out [`Command::Load`].
    InputsLoaded,
    /// The shell could not carry out [`Command::Load`]. The client stays at its server, and the session sends the
    /// command again after a third of the session timeout.
    LoadFailed,
    /// The server has accepted the connection, and the TLS handshake begins.
    Securing,
    /// A connection to the server is established. If the client uses TLS, the TLS handshake is complete. The value is
    /// the IP address of this machine on the connection.
    Connected(&'a str),
    /// The connection or the connection attempt has failed for this reason.
    Disconnected(&'a str),
    /// The connection has failed for this reason: the client refused the certificate of the server, or the server
    /// refused the certificate of the client. If this is the last failure of every server, the operations that wait for
    /// the first connection fail with AUTH at once.
    CertificateRefused(&'a str),
    /// The connection has failed for this reason: one side uses TLS, and the other side does not. If this is the last
    /// failure of every server, the operations that wait for the first connection fail with CONNECTION at once.
    ProtocolRefused(&'a str),
    /// The connection attempt has failed for this reason: this machine has no file descriptor, thread or memory for a
    /// connection.
    OutOfResources(&'a str),
}

impl<T> Session<T> {
    /// Handles a change of the connection.
    pub(crate) fn on_connection_event(&mut self, now: Time, event: ConnectionEvent<'_>) {
        match event {
            ConnectionEvent::LoadingInputs(names) => self.delay = Some(not_loaded(names)),
            ConnectionEvent::Stalled(cause) => {
                self.delay = Some(cause.to_owned());
                if self.server.is_none() {
                    cause.clone_into(&mut self.last_failure);
                }
            }
            ConnectionEvent::InputsLoaded => self.on_inputs_loaded(now),
            ConnectionEvent::LoadFailed => self.postpone_departure(now),
            ConnectionEvent::Securing if matches!(self.connection, ConnectionState::Connecting { .. }) => {
                self.connection = ConnectionState::Securing { deadline: now + self.handshake_timeout() };
            }
            ConnectionEvent::Securing => {}
            ConnectionEvent::Connected(local_address) => self.on_connected(now, local_address),
            ConnectionEvent::Disconnected(cause) => self.on_disconnected(now, cause),
            ConnectionEvent::CertificateRefused(cause) => self.on_refused(now, cause, ConnectionRefusal::Certificate),
            ConnectionEvent::ProtocolRefused(cause) => self.on_refused(now, cause, ConnectionRefusal::Protocol),
            ConnectionEvent::OutOfResources(cause) => {
                self.on_disconnected(now, cause);
                self.is_out_of_resources = true;
            }
        }
    }

    /// Returns the next command for the shell.
    pub(crate) fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// Returns the next event for the owner.
    pub(crate) fn poll_event(&mut self) -> Option<Event<T>> {
        self.events.pop_front()
    }

    /// Returns the bytes to send. The shell removes bytes from the front after it has sent them. Removed bytes remain
    /// in the memory of the buffer. After all credentials were sent, this method therefore erases the memory.
    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        if self.output.is_empty() {
            self.erase_output();
        }
        &mut self.output
    }

    pub(super) fn erase_output(&mut self) {
        if std::mem::take(&mut self.has_secret_output) {
            self.output.zeroize();
        }
        self.output.clear();
    }

    /// Sets the credentials and the SASL mechanism for the next connection. After the handshake, the session uses the
    /// mechanism and sends the credentials before any other request, and then forgets both. The shell must therefore
    /// set them before each connection.
    pub(crate) fn set_credentials(&mut self, credentials: Vec<Credentials>, sasl: Option<Box<dyn SaslMechanism>>) {
        self.credentials = credentials;
        self.sasl = sasl;
    }

    /// Returns whether the session has credentials or a SASL mechanism that it has not used yet.
    pub(crate) fn has_credentials(&self) -> bool {
        !self.credentials.is_empty() || self.sasl.is_some()
    }

    /// Handles the end of the loading. If the shell now connects to the server, the time limit of the attempt begins
    /// again. If the session waits for the inputs before it leaves its server, it now leaves.
    fn on_inputs_loaded(&mut self, now: Time) {
        if self.delay.take().is_some() && matches!(self.connection, ConnectionState::Connecting { .. }) {
            self.connection = self.connecting(now);
        }
        if let Some(Departure { migration, stage: DepartureStage::Loading }) = self.departure {
            self.start_leaving(now, migration);
        }
    }

    /// Makes the session request the inputs of the next attempt before it leaves a server on purpose.
    pub(crate) fn require_loading(&mut self) {
        self.is_loading_required = true;
    }

    fn postpone_departure(&mut self, now: Time) {
        if let Some(Departure { stage: stage @ DepartureStage::Loading, .. }) = &mut self.departure {
            *stage = DepartureStage::LoadAt(now + self.timeout / 3);
        }
    }

    fn on_connected(&mut self, now: Time, local_address: &str) {
        if !matches!(self.connection, ConnectionState::Connecting { .. } | ConnectionState::Securing { .. }) {
            return;
        }
        self.local_address = local_address.to_owned();
        self.frames.clear();
        self.erase_output();
        let offer = self.next_offer(now);
        self.connection = ConnectionState::Handshake { sent: now, deadline: now + self.handshake_timeout(), offer };
        let (session_id, password) =
            self.active.as_ref().map_or_else(|| (0, vec![0; 16]), |active| (active.id, active.password.to_vec()));
        let mut request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: if offer == SessionOffer::Probe { 0 } else { self.last_zxid },
            timeout_ms: i32::try_from(self.config.timeout.as_millis()).unwrap_or(i32::MAX),
            session_id,
            password,
            read_only: false,
        };
        request.encode(&mut self.output);
        request.password.zeroize();
        self.has_secret_output = true;
        self.traffic.bytes_sent += to_u64(self.output.len());
        self.last_sent = now;
    }

    /// Chooses what the session tells the next server. A server that has not reached the session's zxid closes the
    /// connection during the handshake. Other servers do the same: a server without a quorum, a server that starts, a
    /// load balancer. If the session can have expired, the next handshake therefore names no zxid. Servers with a quorum
    /// answer it, even if they were set up again with an empty state: they resume the session or report its end.
    fn next_offer(&mut self, now: Time) -> SessionOffer {
        let is_refused = std::mem::take(&mut self.is_zxid_refused);
        // Without holds and waiters, the session does not extend the lease. However, the session was still alive when
        // the last frame arrived.
        let alive = self.last_received + self.timeout;
        match self.lease() {
            Some(lease) if is_refused && now >= lease.end().max(alive) => SessionOffer::Probe,
            _ => SessionOffer::Resume,
        }
    }

    fn on_disconnected(&mut self, now: Time, cause: &str) {
        if matches!(self.connection, ConnectionState::Disconnected { .. } | ConnectionState::Closed) {
            return;
        }
        self.is_zxid_refused =
            matches!(self.connection, ConnectionState::Handshake { offer: SessionOffer::Resume, .. });
        if self.connection == ConnectionState::Established && self.close_deadline.is_none() {
            self.detect_refused_size(now);
        }
        self.on_connection_lost(now, cause);
    }

    fn on_refused(&mut self, now: Time, cause: &str, refusal: ConnectionRefusal) {
        if matches!(self.connection, ConnectionState::Disconnected { .. } | ConnectionState::Closed) {
            return;
        }
        self.on_disconnected(now, cause);
        self.record_refusal(refusal);
    }

    fn record_refusal(&mut self, refusal: ConnectionRefusal) {
        if let Some(failure) = self.server_failures.last_mut() {
            failure.refusal = Some(refusal);
        }
        if self.is_refused_by_all(|_| true) {
            self.events.push_back(Event::ServersRefused);
        }
    }

    /// Handles received bytes. Returns `Break` if the session does not need further bytes from this connection.
    pub(crate) fn received(&mut self, now: Time, bytes: &[u8]) -> ControlFlow<()> {
        self.traffic.bytes_received += to_u64(bytes.len());
        if self.has_transport() {
            self.frames.push(bytes);
        }
        loop {
            if !self.has_transport() {
                self.frames = Frames::new(self.config.frame_limit);
                return ControlFlow::Break(());
            }
            self.frames.set_limit(self.frame_limit());
            match self.frames.next() {
                Ok(None) => return ControlFlow::Continue(()),
                Ok(Some(mut frame)) => {
                    self.last_received = now;
                    let has_password = self.is_in_handshake();
                    if let Err(error) = self.on_frame(now, &frame) {
                        self.close_connection(now, &format!("the server sent an invalid frame: {error}"));
                    }
                    if has_password {
                        frame.zeroize();
                        self.frames.erase_returned();
                    }
                }
                Err(ProtoError::TooLong { len, .. }) if self.connection == ConnectionState::Established => {
                    match self.frames.skip() {
                        None => return ControlFlow::Continue(()),
                        Some(head) => self.skip_oversized_reply(now, head, len),
                    }
                }
                Err(ProtoError::TooLong { len, .. }) if self.is_in_handshake() && is_tls_record(len) => {
                    self.close_connection(now, "the server requires TLS; set tls.enabled to true");
                    self.record_refusal(ConnectionRefusal::Protocol);
                }
                Err(error) => self.close_connection(now, &format!("the server sent invalid bytes: {error}")),
            }
        }
    }

    /// Handles a reply that is longer than the frame limit. `head` is the header and the beginning of the answer.
    fn skip_oversized_reply(&mut self, now: Time, head: [u8; ReplyHeader::LENGTH + 4], len: usize) {
        match (ReplyHeader::decode(&head), self.in_flight.front()) {
            (Ok((header, body)), Some(front)) if header.xid == front.xid => self.refuse_answer(now, len, body),
            _ => self.close_connection(now, &format!("the server sent a frame of {len} bytes that answers no request")),
        }
    }

    /// Returns the time at which [`advance`](Self::advance) must be called. Other calls can change this time.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        let connection_at = match self.connection {
            ConnectionState::Disconnected { retry_at } => Some(retry_at),
            ConnectionState::Connecting { deadline: give_up }
            | ConnectionState::Securing { deadline: give_up }
            | ConnectionState::Handshake { deadline: give_up, .. }
            | ConnectionState::Sasl { deadline: give_up, .. }
            | ConnectionState::Authenticating { deadline: give_up, .. } => Some(give_up),
            ConnectionState::Established => {
                let leave_at = self.departure.and_then(|departure| departure.stage.due_at());
                [self.next_heartbeat_at(), self.server_timeout_at(), leave_at].into_iter().flatten().min()
            }
            ConnectionState::Closed => None,
        };
        match self.close_deadline {
            Some(deadline) if self.connection != ConnectionState::Closed => {
                Some(connection_at.map_or(deadline, |at| at.min(deadline)))
            }
            _ => connection_at,
        }
    }

    /// Performs all actions that are due.
    pub(crate) fn advance(&mut self, now: Time) {
        if self.connection != ConnectionState::Closed && self.close_deadline.is_some_and(|deadline| now >= deadline) {
            self.finish_close();
        }
        match self.connection {
            ConnectionState::Disconnected { retry_at } if now >= retry_at => self.connect_next_server(now),
            ConnectionState::Connecting { deadline: give_up } if now >= give_up => {
                let cause = self.delay.clone();
                self.close_connection(now, cause.as_deref().unwrap_or("no connection in time"));
            }
            ConnectionState::Securing { deadline: give_up } if now >= give_up => {
                self.close_connection(now, "no complete TLS handshake in time");
            }
            ConnectionState::Handshake { deadline: give_up, .. } if now >= give_up => {
                self.close_connection(now, "no answer to the handshake in time");
            }
            ConnectionState::Sasl { deadline: give_up, .. } if now >= give_up => {
                self.close_connection(now, "SASL has not ended in time");
            }
            ConnectionState::Authenticating { deadline: give_up, .. } if now >= give_up => {
                self.close_connection(now, "no answer to the credentials in time");
            }
            ConnectionState::Established if self.server_timeout_at().is_some_and(|at| now >= at) => {
                let silence = now - self.unanswered_since().unwrap_or(now);
                self.close_connection(now, &format!("no answer for {}", in_words(silence)));
            }
            ConnectionState::Established if self.next_heartbeat_at().is_some_and(|at| now >= at) => {
                self.send_heartbeat(now);
            }
            _ => {}
        }
        self.leave_server_if_due(now);
    }

    fn is_in_handshake(&self) -> bool {
        matches!(self.connection, ConnectionState::Handshake { .. })
    }

    pub(super) fn has_transport(&self) -> bool {
        !matches!(
            self.connection,
            ConnectionState::Disconnected { .. }
                | ConnectionState::Connecting { .. }
                | ConnectionState::Securing { .. }
                | ConnectionState::Closed
        )
    }
}

/// Returns whether the length of a frame is in truth the beginning of a TLS record: an alert or a handshake message,
/// and the major version 3.
fn is_tls_record(length: usize) -> bool {
    matches!(length >> 16, 0x1503 | 0x1603)
}
