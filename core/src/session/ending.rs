//! Ends connections, and decides whether the session has ended with its connection.

use std::time::Duration;

use super::ensemble_config::Follower;
use super::{Command, ConnectionState, DeferredRequest, Event, Failure, InFlight, ServerFailure, Session};
use crate::log_record::{Level, LogRecord};
use crate::time::Time;

impl<T> Session<T> {
    /// Fails all deferred requests.
    pub(super) fn fail_deferred(&mut self, now: Time) {
        for DeferredRequest { info, .. } in self.large_requests.take_deferred() {
            self.complete(now, info.purpose, 0, Err(Failure::ConnectionLost));
        }
    }

    /// Closes the connection from this side.
    pub(super) fn close_connection(&mut self, now: Time, cause: &str) {
        self.commands.push_back(Command::Disconnect);
        self.on_connection_lost(now, cause);
    }

    pub(super) fn on_connection_lost(&mut self, now: Time, cause: &str) {
        if self.connection == ConnectionState::Closed {
            return;
        }
        let was_established = self.connection == ConnectionState::Established;
        let server = || self.server.as_ref().map(ToString::to_string).unwrap_or_default();
        let (session, cause_of) = (self.id(), || cause.to_owned());
        match was_established {
            _ if self.close_deadline.is_some() => {}
            true => {
                self.log_buffer.add(Level::Warn, || LogRecord::ConnectionLost {
                    server: server(),
                    session,
                    cause: cause_of(),
                });
            }
            false => {
                self.log_buffer.add(Level::Info, || LogRecord::AttemptFailed { server: server(), cause: cause_of() });
            }
        }
        self.last_failure = cause.to_owned();
        self.is_out_of_resources = false;
        if let Some(server) = &self.server {
            self.server_failures.retain(|failure| failure.server != *server);
            let (server, cause) = (server.clone(), self.last_failure.clone());
            self.server_failures.push(ServerFailure { server, cause, refusal: None });
        }
        // If the lost connection had lasted long enough, the session reconnects at once. After repeated failures, the
        // session pauses before it reconnects.
        let wait = if was_established && now - self.established_at >= self.config.limits.sound_connection {
            self.servers.record_success();
            Duration::ZERO
        } else {
            self.servers.record_failure(&mut self.entropy)
        };
        self.drop_connection(now, now + wait);
    }

    /// Ends the connection or the connection attempt. The requests without an answer fail. The session connects again
    /// at `retry_at`.
    pub(super) fn drop_connection(&mut self, now: Time, retry_at: Time) {
        let was_established = self.connection == ConnectionState::Established;
        self.erase_output();
        self.recursive_watches.clear();
        self.silent_since = self.silent_since.or_else(|| self.unanswered_since());
        self.ping_sent = None;
        self.is_config_watched = false;
        self.departure = None;
        self.planned_move = None;
        if self.sasl_in_use.take().is_some() {
            // The next connection must not use these credentials without the mechanism.
            self.credentials.clear();
        }
        self.connection = ConnectionState::Disconnected { retry_at };
        for InFlight { purpose, .. } in std::mem::take(&mut self.in_flight) {
            self.complete(now, purpose, 0, Err(Failure::ConnectionLost));
        }
        self.fail_deferred(now);
        if self.connection != ConnectionState::Closed && was_established && self.close_deadline.is_none() {
            self.traffic.connections_lost += 1;
            self.events.push_back(Event::Disconnected);
        }
    }

    /// Ends the session. `replaced` is true if no server reported an expiry.
    pub(super) fn end_session(&mut self, replaced: bool) {
        let Some(active) = self.active.take() else { return };
        self.data_watches.clear();
        self.child_watches.clear();
        // A new session has not seen any zxid, so it can use servers that were set up again with an empty state.
        (self.last_zxid, self.watched_zxid) = (0, 0);
        self.follower.iter_mut().for_each(Follower::on_session_ended);
        self.timeout = self.config.timeout;
        if self.close_deadline.is_some() {
            self.log_buffer.add(Level::Info, || LogRecord::SessionClosed { session: active.id });
            return self.finish_close();
        }
        self.traffic.sessions_lost += 1;
        self.log_buffer.add(Level::Warn, || LogRecord::SessionLost { session: active.id, replaced });
        self.events.push_back(Event::SessionEnded { nodes_until: replaced.then_some(active.lease.end()) });
    }

    pub(super) fn finish_close(&mut self) {
        if self.connection == ConnectionState::Closed {
            return;
        }
        self.connection = ConnectionState::Closed;
        if let Some(active) = self.active.take() {
            self.log_buffer.add(Level::Info, || LogRecord::SessionClosed { session: active.id });
        }
        self.close_deadline.get_or_insert_default();
        self.commands.push_back(Command::Disconnect);
        self.events.push_back(Event::Closed);
    }
}
