//! The bytes that clients send to a replica: four-letter words, connect requests and requests. This file decides
//! whether the replica or the leader answers a request. It does not read the tree, and does not apply transactions.

use std::sync::Arc;

use zklock_proto::{Code, ConnectRequest, Identity, OpCode, Request, RequestHeader, Response, XID_PING};

use super::{ConnectionAction, ConnectionPhase, LeaderRequest, NO_ZXID, PendingKind, PendingRequest, Replica};
use crate::sasl::{self, SaslReply, SaslStage};
use crate::{ConnectionId, acl, four_letter_words};

impl Replica {
    /// Processes bytes that a client has sent.
    pub fn received(&mut self, id: ConnectionId, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.frames.push(bytes);
        if connection.phase == ConnectionPhase::NoData {
            let Some(word) = connection.frames.peek() else { return };
            if let Some(text) = four_letter_words::respond(self, word) {
                self.send(id, text.into_bytes());
                return self.close(id);
            }
            self.set_phase(id, ConnectionPhase::AwaitingHandshake);
        }
        while let Some(connection) = self.connections.get_mut(&id) {
            let phase = connection.phase;
            if phase == ConnectionPhase::Closing {
                return;
            }
            match connection.frames.next() {
                Ok(None) => return,
                Err(_) => return self.close(id),
                Ok(Some(frame)) => {
                    connection.received += 1;
                    self.counters.received += 1;
                    match phase {
                        ConnectionPhase::Established(session) => self.handle_request(id, session, &frame),
                        ConnectionPhase::AwaitingHandshake => self.handle_connect_request(id, &frame),
                        // A client must not send a request before it has received the connect response.
                        ConnectionPhase::NoData | ConnectionPhase::AwaitingLeader(_) | ConnectionPhase::Closing => {
                            return self.close(id);
                        }
                    }
                }
            }
        }
    }

    fn handle_connect_request(&mut self, id: ConnectionId, frame: &[u8]) {
        let Ok(request) = ConnectRequest::decode(frame) else { return self.close(id) };
        // If a client has seen a later transaction on another server, this server would show the client an older state.
        if request.last_zxid_seen > self.zxid {
            return self.close(id);
        }
        let timeout = self.settings.negotiate(request.timeout_ms);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.timeout = timeout;
        }
        let session = request.session_id;
        if session == 0 {
            self.set_phase(id, ConnectionPhase::AwaitingLeader(None));
            let origin = self.origin(id);
            return self.ask_leader(LeaderRequest::CreateSession { origin, timeout });
        }
        // If a connect request names a session that has a connection, the client of the session has abandoned its old
        // connection.
        if let Some(older) = self.connection_of(session) {
            self.close(older);
        }
        self.set_phase(id, ConnectionPhase::AwaitingLeader(Some(session)));
        if self.settings.password_of(session)[..] == request.password {
            self.ask_leader(LeaderRequest::ResumeSession { connection: id, session, timeout });
        } else {
            self.resume_decided(id, session, false);
        }
    }

    fn handle_request(&mut self, id: ConnectionId, session: i64, frame: &[u8]) {
        let Ok((RequestHeader { xid, op }, body)) = RequestHeader::decode(frame) else { return self.close(id) };
        let Some(connection) = self.connections.get(&id) else { return };
        let (timeout, identities) = (connection.timeout, Arc::clone(&connection.identities));
        let needs_sasl = self.settings.sasl_secret.is_some() && connection.sasl != SaslStage::Complete;
        self.ask_leader(LeaderRequest::TouchSession { session, timeout });
        let Ok(op) = OpCode::try_from(op) else {
            self.reply(id, xid, NO_ZXID, Err(Code::UNIMPLEMENTED));
            return self.close(id);
        };
        if needs_sasl && op != OpCode::Sasl {
            self.early_requests += 1;
            return self.refuse(id, xid, Code::SESSION_CLOSED_REQUIRE_SASL_AUTH);
        }
        let drop_reply =
            self.replies_to_drop.iter().position(|&(whose, kind)| kind == op && whose.is_none_or(|s| s == session));
        if let Some(at) = drop_reply {
            self.replies_to_drop.remove(at);
        }
        let drop_reply = drop_reply.is_some();
        let what = match Request::decode_as(op, body) {
            Ok(Request::Auth { .. } | Request::Sasl { .. }) if drop_reply => {
                return self.end(id, ConnectionAction::Reset(id));
            }
            Ok(Request::Auth { scheme, auth }) => return self.authenticate(id, xid, &scheme, &auth),
            Ok(Request::Sasl { token }) => return self.handle_sasl_token(id, xid, &token),
            Err(_) if op == OpCode::Auth => return self.close(id),
            Err(_) => PendingKind::Error(Code::MARSHALLING_ERROR),
            Ok(Request::Sync { path }) => {
                let origin = self.origin(id);
                self.ask_leader(LeaderRequest::Sync { origin });
                PendingKind::Sync(origin.request_number, path)
            }
            Ok(request) if is_write(&request) => {
                let origin = self.origin(id);
                self.ask_leader(LeaderRequest::Write { origin, session, identities, request: Box::new(request) });
                PendingKind::Write(origin.request_number)
            }
            Ok(request) => PendingKind::Read(request),
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            let xid = if op == OpCode::Ping { XID_PING } else { xid };
            connection.pending.push_back(PendingRequest { xid, kind: what, drop_reply });
        }
        self.answer_reads(id);
    }

    fn authenticate(&mut self, id: ConnectionId, xid: i32, scheme: &str, auth: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match acl::authenticate(scheme, auth, connection.peer.ip()) {
            Ok(identity) => {
                if !connection.identities.contains(&identity) {
                    connection.identities = connection.identities.iter().cloned().chain([identity]).collect();
                }
                self.reply(id, xid, 0, Ok(Response::Empty));
            }
            Err(code) => self.refuse(id, xid, code),
        }
    }

    fn handle_sasl_token(&mut self, id: ConnectionId, xid: i32, token: &[u8]) {
        let Some(secret) = self.settings.sasl_secret else {
            // Like a real server that is not set up for SASL.
            return self.reply(id, xid, 0, Ok(Response::SaslToken(None)));
        };
        self.last_request_number += 1;
        let server_nonce = sasl::hash((secret, id, self.last_request_number));
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match connection.sasl.step(secret, server_nonce, token, &mut self.sasl_fault) {
            SaslReply::Token(token) => {
                if connection.sasl == SaslStage::Complete {
                    let identity = Identity { scheme: "sasl".to_owned(), id: "client".to_owned() };
                    connection.identities = connection.identities.iter().cloned().chain([identity]).collect();
                }
                self.reply(id, xid, 0, Ok(Response::SaslToken(token)));
            }
            SaslReply::Refusal => self.refuse(id, xid, Code::AUTH_FAILED),
            SaslReply::Nothing => {}
        }
    }

    /// Answers a request with an error, and closes the connection.
    fn refuse(&mut self, id: ConnectionId, xid: i32, code: Code) {
        self.reply(id, xid, 0, Err(code));
        self.close(id);
    }
}

const fn is_write(request: &Request) -> bool {
    matches!(
        request,
        Request::Create { .. }
            | Request::Create2 { .. }
            | Request::CreateTtl { .. }
            | Request::Delete { .. }
            | Request::SetData { .. }
            | Request::SetAcl { .. }
            | Request::Check { .. }
            | Request::Multi(_)
            | Request::CloseSession
    )
}
