//! Sends the requests of a session, and assigns each reply and each watch event. This file decides which replies prove
//! that the session was alive.

use zklock_proto::{
    Code, EventKind, MultiResult, OpCode, ProtoError, Refusal, ReplyHeader, Request, Response, WatchEvent, WatcherType,
    XID_AUTH, XID_NOTIFICATION, XID_PING,
};

use super::ensemble_config::CONFIG_PATH;
use super::large_requests::{Next, Pending, Submission, WatchBatch};
use super::lease::Proof;
use super::watches::WatchAction;
use super::{
    AnswerTooLong, ConnectionState, DeferredRequest, Event, Failure, InFlight, LIST_FRAMES, MAX_CHILDREN, Purpose,
    RequestInfo, Session, proof_request, to_u64,
};
use crate::log_record::{Level, LogRecord};
use crate::mutant::Mutant;
use crate::time::Time;

impl<T> Session<T> {
    pub(super) fn send(&mut self, now: Time, request: &Request, purpose: Purpose<T>) {
        if self.connection != ConnectionState::Established
            || (self.close_deadline.is_some() && !matches!(purpose, Purpose::Close))
        {
            return self.complete(now, purpose, 0, Err(Failure::ConnectionLost));
        }
        let before = self.output.len();
        let info = match self.encode(request, purpose) {
            Ok(packet) => packet,
            Err(purpose) => return self.complete(now, purpose, 0, Err(Failure::TooLong)),
        };
        if matches!(info.purpose, Purpose::RestoreWatches | Purpose::Close) {
            return self.note_request(now, info);
        }
        match self.large_requests.submit(info.size, self.pending()) {
            Submission::Send => self.note_request(now, info),
            Submission::Defer => {
                let bytes = self.output.split_off(before);
                self.large_requests.defer(info.size, DeferredRequest { bytes, info });
                self.send_deferred(now);
            }
            Submission::Refuse(too_large) => {
                self.output.truncate(before);
                self.complete(now, info.purpose, 0, Err(Failure::TooLarge(too_large)));
            }
        }
    }

    /// Appends a request to the output.
    pub(super) fn encode(&mut self, request: &Request, purpose: Purpose<T>) -> Result<RequestInfo<T>, Purpose<T>> {
        let xid = self.next_xid();
        let before = self.output.len();
        if request.encode(xid, &mut self.output).is_err() {
            return Err(purpose);
        }
        let (op, size) = (request.op(), self.output.len() - before);
        let path = if self.log_buffer.is_enabled(Level::Trace) { request.path().map(str::to_owned) } else { None };
        Ok(RequestInfo { xid, op, path, size, is_isolated: false, is_transaction: is_transaction(request), purpose })
    }

    pub(super) fn next_xid(&mut self) -> i32 {
        self.last_xid = self.last_xid.checked_add(1).unwrap_or(1);
        self.last_xid
    }

    /// Records a request whose bytes are in the output.
    fn note_request(&mut self, now: Time, packet: RequestInfo<T>) {
        let RequestInfo { xid, op, path, size, is_isolated, is_transaction, purpose } = packet;
        let proof =
            is_transaction.then(|| Proof { request_sent: now, touch_sent: self.sent_packets.last_touch_sent(now) });
        self.note_sent(now);
        self.traffic.requests += 1;
        self.traffic.bytes_sent += to_u64(size);
        self.log_buffer.add(Level::Trace, || LogRecord::RequestSent { op, xid, path });
        if self.in_flight.is_empty() && self.ping_sent.is_none() && now > self.established_at {
            // Since the session connected again, the server has owed no answer.
            self.silent_since = None;
        }
        self.in_flight.push_back(InFlight { xid, op, size, is_isolated, sent: now, proof, purpose });
    }

    /// Sends the deferred requests that may be sent now.
    pub(super) fn send_deferred(&mut self, now: Time) {
        loop {
            match self.large_requests.next(self.pending()) {
                Next::Wait => return,
                Next::Probe => {
                    if let Ok(probe) = self.encode(&proof_request(), Purpose::Internal) {
                        self.note_request(now, probe);
                    }
                }
                Next::Request { request: DeferredRequest { mut bytes, mut info }, is_isolated } => {
                    info.is_isolated = is_isolated;
                    self.output.append(&mut bytes);
                    self.note_request(now, info);
                }
            }
        }
    }

    fn pending(&self) -> Pending {
        match self.in_flight.front() {
            None => Pending::None,
            Some(InFlight { is_isolated: true, .. }) => Pending::Isolated,
            Some(_) => Pending::Others,
        }
    }

    /// Forgets which request sizes the servers refused, because other servers, or servers with another configuration,
    /// may accept them.
    pub(super) fn forget_refused_sizes(&mut self) {
        self.large_requests.forget_sizes();
        self.watch_batch = WatchBatch::new(self.config.limits.watch_batch, self.config.limits.least_watch_batch);
    }

    /// Handles a connection that a server has closed, possibly because a request on the connection was too large.
    pub(super) fn detect_refused_size(&mut self, now: Time) {
        if let Some(&InFlight { is_isolated: true, size, sent, .. }) = self.in_flight.front() {
            // A server checks the size of a request first. If the server closes the connection much later, the size is
            // not the reason.
            if now - sent > self.heartbeat_interval() || Mutant::RetryTooLarge.is_active() {
                return;
            }
            if let Some(too_large) = self.large_requests.record_isolated_loss(size)
                && let Some(InFlight { purpose, .. }) = self.in_flight.pop_front()
            {
                self.complete(now, purpose, 0, Err(Failure::TooLarge(too_large)));
                if Mutant::RefuseBesideTooLarge.is_active() {
                    for DeferredRequest { info, .. } in self.large_requests.take_deferred() {
                        self.complete(now, info.purpose, 0, Err(Failure::TooLarge(too_large)));
                    }
                }
            }
            return;
        }
        let is_restore = |request: &InFlight<T>| matches!(request.purpose, Purpose::RestoreWatches);
        if self.in_flight.iter().any(is_restore) {
            self.watch_batch.record_loss();
        }
        let others = self.in_flight.iter().filter(|request| !is_restore(request));
        self.large_requests.record_loss(others.map(|request| request.size));
    }

    pub(super) fn send_heartbeat(&mut self, now: Time) {
        if self.next_proof_at().is_some_and(|at| now >= at) {
            return self.request_proof(now);
        }
        self.note_sent(now);
        let before = self.output.len();
        if Request::Ping.encode(XID_PING, &mut self.output).is_ok() {
            self.traffic.pings += 1;
            self.log_buffer.add(Level::Trace, || LogRecord::RequestSent {
                op: OpCode::Ping,
                xid: XID_PING,
                path: None,
            });
            self.traffic.bytes_sent += to_u64(self.output.len() - before);
            self.ping_sent = Some(now);
        }
    }

    pub(super) fn on_frame(&mut self, now: Time, frame: &[u8]) -> Result<(), ProtoError> {
        if let ConnectionState::Handshake { sent, offer, .. } = self.connection {
            return self.on_connect_response(now, sent, offer, frame);
        }
        let (header, body) = ReplyHeader::decode(frame)?;
        match header.xid {
            XID_NOTIFICATION => self.on_watch_event(now, &WatchEvent::decode(body)?),
            XID_PING => {
                if let Some(sent) = self.ping_sent.take() {
                    self.sent_packets.record_answer(sent, now);
                }
                if self.in_flight.is_empty() {
                    self.record_answer(now);
                }
            }
            XID_AUTH => self.on_auth_reply(now, header.err),
            _ if matches!(self.connection, ConnectionState::Sasl { .. }) => {
                return self.on_sasl_reply(now, &header, body);
            }
            _ => return self.on_reply(now, &header, body),
        }
        Ok(())
    }

    fn on_watch_event(&mut self, now: Time, event: &WatchEvent) {
        self.traffic.watch_events += 1;
        self.log_buffer.add(Level::Trace, || LogRecord::WatchFired { kind: event.kind, path: event.path.clone() });
        if event.path == CONFIG_PATH && std::mem::take(&mut self.is_config_watched) {
            self.read_config(now);
        }
        self.notify_recursive_watches(event);
        // When a node is deleted, the watches on its data and on its children fire.
        let (of_node, of_children) = match event.kind {
            EventKind::Created | EventKind::DataChanged => (true, false),
            EventKind::ChildrenChanged => (false, true),
            EventKind::Deleted => (true, true),
            _ => return,
        };
        let mut subscribers = if of_node { self.data_watches.on_fired(&event.path) } else { Vec::new() };
        subscribers.extend(if of_children { self.child_watches.on_fired(&event.path) } else { Vec::new() });
        for subscriber in subscribers {
            self.events.push_back(Event::WatchFired { subscriber, kind: event.kind, path: event.path.clone() });
        }
    }

    /// Notifies the subscribers of recursive watches. These subscribers receive the event before the subscribers of
    /// other watches on the node.
    fn notify_recursive_watches(&mut self, event: &WatchEvent) {
        let parents = std::iter::successors(Some(event.path.as_str()), |path| Some(path.rsplit_once('/')?.0));
        for directory in parents.take_while(|_| !self.recursive_watches.is_empty()) {
            if let Some(&subscriber) = self.recursive_watches.get(directory) {
                let (kind, path) = (event.kind, event.path.clone());
                self.events.push_back(Event::WatchFired { subscriber, kind, path });
            }
        }
    }

    fn on_auth_reply(&mut self, now: Time, err: Code) {
        self.traffic.answers += 1;
        if err != Code::OK {
            let server = || self.server.as_ref().map(ToString::to_string).unwrap_or_default();
            self.log_buffer.add(Level::Error, || LogRecord::AuthRefused { server: server() });
            self.events.push_back(Event::AuthFailed);
            self.close_connection(now, "the server refused the credentials");
            return;
        }
        if let ConnectionState::Authenticating { replies, resumed, .. } = self.connection {
            // Each answer to credentials must arrive within a third of the session timeout, even if the server sends
            // other data.
            let give_up = now + self.server_timeout();
            self.connection =
                ConnectionState::Authenticating { replies: replies.saturating_sub(1), resumed, deadline: give_up };
            if replies <= 1 {
                self.on_established(now, resumed);
            }
        }
    }

    fn on_reply(&mut self, now: Time, header: &ReplyHeader, body: &[u8]) -> Result<(), ProtoError> {
        match self.in_flight.front() {
            Some(front) if front.xid == header.xid => {}
            front => {
                let expected = front.map_or_else(|| "none".to_owned(), |front| front.xid.to_string());
                self.close_connection(now, &format!("the server answered request {}; expected {expected}", header.xid));
                return Ok(());
            }
        }
        if header.err.refusal() == Refusal::Reconnect {
            self.close_connection(now, &format!("the server answered {}", header.err));
            return Ok(());
        }
        // The session decodes the reply before it removes the request from the queue. If the reply is unreadable, the
        // session closes the connection, and then fails all requests in the queue, including this request.
        let result = match (header.err, self.in_flight.front()) {
            (Code::OK, Some(front)) => match listed_count(front.op, body).filter(|&count| count > MAX_CHILDREN) {
                Some(count) => Err(Failure::AnswerTooLong(AnswerTooLong::Children { count })),
                None => Ok(Response::decode(front.op, body)?),
            },
            (code, _) => Err(Failure::Code(code)),
        };
        // Some servers report that a session has moved only within the answer to a transaction, and continue to answer
        // on this connection (ZOOKEEPER-2886).
        if let Ok(Response::Multi(results)) = &result {
            let code = |result: &MultiResult| if let MultiResult::Err(code) = result { Some(*code) } else { None };
            if let Some(code) = results.iter().filter_map(code).find(|code| code.refusal() == Refusal::Reconnect) {
                self.close_connection(now, &format!("the server answered {code}"));
                return Ok(());
            }
        }
        let Some(InFlight { xid, op, sent, proof, purpose, .. }) = self.take_in_flight(now) else { return Ok(()) };
        let (zxid, took, failure) = (header.zxid, now - sent, (header.err != Code::OK).then_some(header.err));
        self.log_buffer.add(Level::Trace, || LogRecord::ReplyReceived { op, xid, zxid, took, failure });
        self.advance_zxid(header.zxid, &purpose, result.is_ok());
        let proof = match proof {
            Some(_) if Mutant::LeaseFromReply.is_active() => Some(Proof { request_sent: now, touch_sent: now }),
            Some(proof) if Mutant::SentCountsAsTouch.is_active() => {
                Some(Proof { touch_sent: proof.request_sent, ..proof })
            }
            proof => proof,
        };
        if let (Some(proof), true, Some(active)) = (proof, proves_commit(&result), &mut self.active) {
            active.lease.extend(proof);
            self.last_proof_sent = self.last_proof_sent.max(sent);
        }
        self.complete(now, purpose, header.zxid, result);
        self.send_deferred(now);
        self.leave_server_if_due(now);
        Ok(())
    }

    /// Returns the largest frame that the session accepts now. The next answer may be a list.
    pub(super) fn frame_limit(&self) -> usize {
        let is_list = self.in_flight.front().is_some_and(|front| is_list(front.op));
        self.config.frame_limit.saturating_mul(if is_list { LIST_FRAMES } else { 1 })
    }

    /// Handles an answer of `len` bytes that exceeds the frame limit. Only the request that caused it fails.
    /// `body` is the begin of the answer behind its header.
    pub(super) fn refuse_answer(&mut self, now: Time, len: usize, body: &[u8]) {
        let limit = self.frame_limit();
        let Some(InFlight { op, purpose, .. }) = self.take_in_flight(now) else { return };
        let too_long = match listed_count(op, body) {
            Some(count) => AnswerTooLong::List { count, len, limit },
            None => AnswerTooLong::Frame { len, limit },
        };
        self.complete(now, purpose, 0, Err(Failure::AnswerTooLong(too_long)));
        self.send_deferred(now);
    }

    /// Records the zxid of a reply. For the watches that a server knows, the server sends all events up to the zxid of
    /// a reply before it sends this reply. The server knows all watches of the session after it has answered every
    /// request that restores watches.
    fn advance_zxid(&mut self, zxid: i64, answered: &Purpose<T>, is_ok: bool) {
        self.last_zxid = self.last_zxid.max(zxid);
        let is_restore = |purpose: &Purpose<T>| matches!(purpose, Purpose::RestoreWatches);
        let is_restoring = self.in_flight.iter().take(1).any(|next| is_restore(&next.purpose));
        // If the server refused a request that restores watches, the session closes the connection.
        if !is_restoring && (is_ok || !is_restore(answered)) {
            self.watched_zxid = self.last_zxid;
        }
    }

    fn record_answer(&mut self, now: Time) {
        self.last_answered = now;
        self.silent_since = None;
    }

    pub(super) fn take_in_flight(&mut self, now: Time) -> Option<InFlight<T>> {
        let answered = self.in_flight.pop_front()?;
        self.record_answer(now);
        self.sent_packets.record_answer(answered.sent, now);
        self.large_requests.record_answer(answered.size);
        self.traffic.answers += 1;
        self.traffic.round_trips.observe(now - answered.sent);
        Some(answered)
    }

    pub(super) fn complete(&mut self, now: Time, purpose: Purpose<T>, zxid: i64, result: Result<Response, Failure>) {
        match purpose {
            Purpose::Submitted(tag) => self.events.push_back(Event::Reply { tag, zxid, result }),
            Purpose::Watch(tag, path, kind) => {
                let watches = if kind == WatcherType::Data { &mut self.data_watches } else { &mut self.child_watches };
                let action = watches.on_reply(&path, result.is_ok());
                self.apply_watch_action(now, &path, kind, action);
                self.events.push_back(Event::Reply { tag, zxid, result });
            }
            Purpose::RestoreWatches if matches!(result, Err(Failure::Code(_))) => {
                self.close_connection(now, "the server refused to set the watches again");
            }
            Purpose::ReadConfig => self.on_config_read(now, result),
            Purpose::RestoreWatches if result.is_ok() => {
                let is_restore = |request: &InFlight<T>| matches!(request.purpose, Purpose::RestoreWatches);
                if !self.in_flight.iter().any(is_restore) {
                    self.watch_batch.record_answer();
                }
            }
            Purpose::Internal | Purpose::RestoreWatches => {}
            // The server may not have received the request to close the session. If time is left, the session repeats
            // the request on the next connection.
            Purpose::Close if result == Err(Failure::ConnectionLost) && !Mutant::CloseOnce.is_active() => {}
            Purpose::Close => self.finish_close(),
        }
    }

    pub(super) fn apply_watch_action(&mut self, now: Time, path: &str, kind: WatcherType, action: WatchAction) {
        if action == WatchAction::Remove && self.connection == ConnectionState::Established {
            let request = Request::RemoveWatches { path: path.to_owned(), kind };
            self.send(now, &request, Purpose::Internal);
        }
    }
}

fn is_list(op: OpCode) -> bool {
    matches!(op, OpCode::GetChildren | OpCode::GetChildren2)
}

/// Returns the number of children in the answer to a list request. The number is at the beginning of the answer.
fn listed_count(op: OpCode, body: &[u8]) -> Option<usize> {
    let (count, _) = body.split_first_chunk().filter(|_| is_list(op))?;
    usize::try_from(i32::from_be_bytes(*count)).ok()
}

/// Returns whether a request is a transaction. A server replies to a transaction only after a quorum has committed the
/// transaction.
pub(super) fn is_transaction(request: &Request) -> bool {
    use OpCode::{Create, Create2, CreateContainer, Delete, Multi, SetData};
    matches!(request.op(), Create | Create2 | CreateContainer | Delete | Multi | SetData)
}

/// Returns whether the reply proves that a quorum has committed the transaction while the session was alive. If the
/// reply is the error that a node is missing, this error comes from the leader. Other errors may come from a single
/// server. In the reply to a multi request, however, all errors come from the leader.
fn proves_commit(result: &Result<Response, Failure>) -> bool {
    match result {
        Ok(Response::Multi(results)) => results
            .iter()
            .all(|result| matches!(result, MultiResult::Ok(_) | MultiResult::Err(Code::NO_AUTH | Code::NO_NODE))),
        Ok(_) => true,
        Err(failure) => *failure == Failure::Code(Code::NO_NODE),
    }
}
