//! Connects a session to a server, starts or resumes the session there, and moves the session to another server if the
//! server list changes.

use std::time::Duration;

use zklock_proto::{ConnectResponse, ProtoError, Request, Response, WatcherType};

use super::connect_string::Server;
use super::credentials::encode_credentials;
use super::ensemble_config::CONFIG_PATH;
use super::lease::{Lease, Proof, SentPackets};
use super::servers::{Migration, ServerList};
use super::{
    ActiveSession, Command, ConnectionState, Departure, DepartureStage, Event, Failure, LeaseDemand, Purpose, Session,
    SessionOffer, to_u64,
};
use crate::log_record::{Level, LogRecord};
use crate::mutant::Mutant;
use crate::time::Time;

impl<T> Session<T> {
    pub(super) fn connect_next_server(&mut self, now: Time) {
        let Some(server) = self.servers.next() else { return };
        self.traffic.connection_attempts += 1;
        self.log_buffer.add(Level::Debug, || LogRecord::Connecting { server: server.to_string() });
        self.server = Some(server.clone());
        self.delay = None;
        self.connection = self.connecting(now);
        self.commands.push_back(Command::Connect(server));
    }

    pub(super) fn connecting(&self, now: Time) -> ConnectionState {
        ConnectionState::Connecting { deadline: now + self.attempt_timeout(Duration::from_millis(100)) }
    }

    pub(super) fn on_connect_response(
        &mut self,
        now: Time,
        sent: Time,
        offer: SessionOffer,
        frame: &[u8],
    ) -> Result<(), ProtoError> {
        let response = ConnectResponse::decode(frame)?;
        if response.timeout_ms <= 0 || response.session_id == 0 {
            let expired = self.active.is_some();
            self.end_session(false);
            self.close_connection(now, "the session had expired");
            if expired && self.connection != ConnectionState::Closed {
                // This server has reported the expiry, so the session asks this server for a new session. Another
                // server may be separated from the ensemble and may still offer the expired session.
                self.servers.retry_last();
                self.connection = ConnectionState::Disconnected { retry_at: now };
            }
            return Ok(());
        }
        if response.read_only {
            // A read-only server is not part of a quorum. A server that is not part of a quorum cannot create lock
            // nodes or extend the lease.
            self.close_connection(now, "the server is read-only");
            return Ok(());
        }
        let resumed = self.active.as_ref().is_some_and(|active| active.id == response.session_id);
        if resumed && offer == SessionOffer::Probe {
            // The session is alive, but this server may lag behind the state that the session has seen.
            self.close_connection(now, "the servers still have the session");
            self.servers.retry_last();
            self.connection = ConnectionState::Disconnected { retry_at: now };
            return Ok(());
        }
        if !resumed {
            self.end_session(true);
            if self.connection == ConnectionState::Closed {
                return Ok(());
            }
        }
        let agreed = Duration::from_millis(u64::try_from(response.timeout_ms).unwrap_or_default());
        // To create a session, a server needs a transaction that a quorum commits. A reply that resumes a session
        // proves nothing, because a single server can send it without a quorum.
        let active = match self.active.take() {
            Some(before) => {
                self.timeout = agreed.min(before.timeout);
                let mut lease = before.lease;
                lease.set_timeout(self.timeout);
                if Mutant::ResumeProves.is_active() {
                    lease.extend(Proof { request_sent: sent, touch_sent: sent });
                }
                ActiveSession { password: response.password.into(), lease, ..before }
            }
            None => {
                self.traffic.sessions += 1;
                self.timeout = agreed;
                let lease = Lease::new(sent, agreed, self.config.lease_margin);
                ActiveSession { id: response.session_id, password: response.password.into(), timeout: agreed, lease }
            }
        };
        self.active = Some(active);
        self.sent_packets = SentPackets::new(sent, self.timeout);
        self.begin_sasl(now, resumed);
        Ok(())
    }

    pub(super) fn send_auth(&mut self, now: Time, resumed: bool) {
        let before = self.output.len();
        let replies = encode_credentials(std::mem::take(&mut self.credentials), &mut self.output);
        self.has_secret_output |= replies > 0;
        self.traffic.requests += to_u64(replies);
        self.traffic.bytes_sent += to_u64(self.output.len() - before);
        self.last_sent = now;
        self.connection = ConnectionState::Authenticating { replies, resumed, deadline: now + self.server_timeout() };
        if replies == 0 {
            self.on_established(now, resumed);
        }
    }

    /// Handles an established connection: the server has accepted the session and the credentials.
    pub(super) fn on_established(&mut self, now: Time, resumed: bool) {
        self.connection = ConnectionState::Established;
        self.planned_move = None;
        self.server_failures.clear();
        self.is_out_of_resources = false;
        self.established_at = now;
        self.traffic.connections += 1;
        self.traffic.reconnects += u64::from(self.ever_connected);
        self.ever_connected = true;
        if self.close_deadline.is_some() {
            self.send(now, &Request::CloseSession, Purpose::Close);
            return;
        }
        self.restore_watches(now);
        if resumed && self.lease_demand != LeaseDemand::None {
            self.request_proof(now);
        }
        let server = || self.server.as_ref().map(ToString::to_string).unwrap_or_default();
        let (session, timeout) = (self.id(), self.timeout);
        self.log_buffer.add(Level::Info, || match resumed {
            true => LogRecord::Reconnected { server: server(), session },
            false => LogRecord::SessionBegun { server: server(), session, timeout },
        });
        self.events.push_back(Event::Connected { resumed });
        // If the session moves to another server, it reads the configuration there.
        if self.departure.is_none() {
            self.read_config(now);
        }
        self.leave_server_if_due(now);
    }

    // Server lists that change.

    /// Replaces the server list. `present` is the present or last server. It is `None` if the session must not leave
    /// this server.
    pub(super) fn replace_servers(
        &mut self,
        now: Time,
        list: ServerList,
        present: Option<Server>,
        source: &'static str,
    ) {
        if self.connection == ConnectionState::Closed || self.close_deadline.is_some() {
            return;
        }
        self.forget_refused_sizes();
        let before = self.servers.len();
        let present = present.filter(|_| self.has_transport());
        let migration = self.servers.replace(list, present.as_ref(), &mut self.entropy);
        self.server_failures.retain(|failure| self.servers.contains(&failure.server));
        let after = self.servers.len();
        self.log_buffer.add(Level::Info, || LogRecord::ServersChanged { before, after, source });
        match self.connection {
            ConnectionState::Disconnected { .. } => self.connection = ConnectionState::Disconnected { retry_at: now },
            _ if !self.has_transport() => {
                self.commands.push_back(Command::Disconnect);
                self.connection = ConnectionState::Disconnected { retry_at: now };
            }
            _ if migration == Migration::Stay => self.departure = None,
            _ => self.plan_departure(now, migration),
        }
    }

    fn plan_departure(&mut self, now: Time, migration: Migration) {
        let stage = match self.departure {
            None if self.is_loading_required => DepartureStage::LoadAt(now),
            None | Some(Departure { stage: DepartureStage::Leaving { .. }, .. }) => {
                return self.start_leaving(now, migration);
            }
            Some(departure) => departure.stage,
        };
        self.departure = Some(Departure { migration, stage });
        self.leave_server_if_due(now);
    }

    /// Leaves the server as soon as all requests are answered.
    pub(super) fn start_leaving(&mut self, now: Time, migration: Migration) {
        let stage = DepartureStage::Leaving { by: now + self.heartbeat_interval() };
        self.departure = Some(Departure { migration, stage });
        // The answer makes the lease of the session as long as possible before the session loses its connection.
        if self.is_connected() && self.lease_demand != LeaseDemand::None {
            self.request_proof(now);
        }
        self.leave_server_if_due(now);
    }

    /// Continues the planned departure. The session leaves the server if no request is without an answer, or if the
    /// time for answers is over.
    pub(super) fn leave_server_if_due(&mut self, now: Time) {
        let Some(Departure { migration, stage }) = self.departure.filter(|_| self.is_connected()) else { return };
        let is_idle = self.in_flight.is_empty() && !self.large_requests.has_deferred();
        match stage {
            DepartureStage::LoadAt(at) if now >= at => {
                self.departure = Some(Departure { migration, stage: DepartureStage::Loading });
                self.commands.push_back(Command::Load);
            }
            DepartureStage::Leaving { by } if now >= by || is_idle => self.leave_server(now, migration),
            DepartureStage::LoadAt(_) | DepartureStage::Loading | DepartureStage::Leaving { .. } => {}
        }
    }

    fn leave_server(&mut self, now: Time, migration: Migration) {
        let server = self.server.as_ref().map(ToString::to_string).unwrap_or_default();
        let session = self.id();
        self.log_buffer.add(Level::Info, || LogRecord::ServerLeft { server, session });
        self.last_failure = "the client has left this server, because its server list has changed".to_owned();
        self.commands.push_back(Command::Disconnect);
        self.drop_connection(now, now);
        self.planned_move = Some(migration);
    }

    /// Reads and watches the configuration of the ensemble, if the session follows it.
    pub(super) fn read_config(&mut self, now: Time) {
        if self.follower.is_some() && self.is_connected() {
            let request = Request::GetData { path: CONFIG_PATH.to_owned(), watch: true };
            self.send(now, &request, Purpose::ReadConfig);
        }
    }

    /// Ignores the answers to requests that read the configuration, and the event of its watch.
    pub(super) fn ignore_pending_config(&mut self) {
        self.is_config_watched = false;
        let in_flight = self.in_flight.iter_mut().map(|request| &mut request.purpose);
        let deferred = self.large_requests.deferred_mut().map(|request| &mut request.info.purpose);
        for purpose in in_flight.chain(deferred).filter(|purpose| matches!(purpose, Purpose::ReadConfig)) {
            *purpose = Purpose::Internal;
        }
    }

    pub(super) fn on_config_read(&mut self, now: Time, result: Result<Response, Failure>) {
        let Some(follower) = &mut self.follower else { return };
        let present = self.server.clone();
        let was_listed = present.as_ref().is_some_and(|present| follower.lists(present));
        let list = match result {
            Ok(Response::Data { data, .. }) => {
                self.is_config_watched = true;
                follower.on_data(&data.unwrap_or_default())
            }
            Err(Failure::Code(code)) => Err(format!("the server answered {code}")),
            Err(Failure::AnswerTooLong(too_long)) => Err(too_long.to_string()),
            Ok(_) | Err(_) => return,
        };
        match list {
            Ok(Some(list)) => {
                // If no configuration has listed the present server, the program may have named a server of the list in
                // another way. The session then keeps its connection, unless it already plans to leave.
                let is_leaving = self.departure.is_some();
                let present = present.filter(|present| was_listed || is_leaving || list.servers.contains(present));
                self.replace_servers(now, list, present, "ensemble");
            }
            Err(cause) if follower.record_refusal(&cause) => {
                self.log_buffer.add(Level::Warn, || LogRecord::ConfigUnusable { cause });
            }
            Ok(None) | Err(_) => {}
        }
    }

    /// Sets all watches of the session again. If a node changed after `watched_zxid`, its watch fires at once.
    fn restore_watches(&mut self, now: Time) {
        if Mutant::ForgetWatches.is_active() {
            return;
        }
        let data = self.data_watches.paths_to_restore().into_iter().map(|path| (WatcherType::Data, path));
        let child = self.child_watches.paths_to_restore().into_iter().map(|path| (WatcherType::Children, path));
        let child = child.filter(|_| !Mutant::ForgetChildWatches.is_active());
        let mut paths = data.chain(child).collect::<Vec<_>>().into_iter().peekable();
        let batch = self.watch_batch.bytes();
        let relative_zxid = if Mutant::AdvanceWhileRestoring.is_active() { self.last_zxid } else { self.watched_zxid };
        while paths.peek().is_some() {
            let (mut data, mut child) = (Vec::new(), Vec::new());
            let mut bytes = 0;
            while let Some((kind, path)) = paths.next_if(|(_, path)| bytes == 0 || bytes + path.len() < batch) {
                bytes += path.len() + 4;
                if kind == WatcherType::Data { &mut data } else { &mut child }.push(path);
            }
            let request = Request::SetWatches { relative_zxid, data, exist: Vec::new(), child };
            self.send(now, &request, Purpose::RestoreWatches);
        }
    }
}
