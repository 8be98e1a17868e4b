//! The SASL step of a session, in which the client proves its identity to the server of a connection. The session
//! exchanges tokens that only the mechanism and the server understand. This file does not know any mechanism, and does
//! not know where passwords come from.

use zeroize::Zeroizing;
use zklock_proto::{Code, OpCode, ProtoError, ReplyHeader, Request, Response};

use super::{ConnectionState, Event, Session, to_u64};
use crate::log_record::{Level, LogRecord};
use crate::mutant::Mutant;
use crate::time::Time;

/// The maximum length of a token, in bytes. Kerberos tickets, which have the longest tokens, are shorter than this
/// limit.
const MAX_TOKEN: usize = 64 * 1024;
/// The bytes of a SASL packet besides the token: the length of the frame, the xid, the type and the length of the token.
const PACKET_OVERHEAD: usize = 16;

/// The client's side of a SASL mechanism for one connection. A mechanism makes a limited number of steps.
pub trait SaslMechanism: Send {
    /// Returns the client's first token, which may be empty. The session calls this method once, before all others.
    fn first_token(&mut self) -> Zeroizing<Vec<u8>>;

    /// Processes a token of the server. A server sends null if it has nothing to say.
    ///
    /// Returns an error text if the token is not valid.
    fn step(&mut self, token: Option<&[u8]>) -> Result<SaslStep, String>;

    /// Describes why a server can have refused the last token, for the error message. The text begins with `the server`.
    fn refusal(&self) -> String;
}

/// The result of a step of a mechanism.
#[derive(Debug)]
pub enum SaslStep {
    /// The client sends this token, which may be empty.
    Send(Zeroizing<Vec<u8>>),
    /// Both sides have proved what the mechanism requires.
    Done,
}

impl<T> Session<T> {
    /// Begins the SASL step, unless the client has no mechanism. After this step, the session sends the credentials.
    pub(super) fn begin_sasl(&mut self, now: Time, resumed: bool) {
        let mechanism = self.sasl.take().filter(|_| !(resumed && Mutant::SaslOnlyOnce.is_active()));
        let Some(mut mechanism) = mechanism else { return self.send_auth(now, resumed) };
        let token = mechanism.first_token();
        self.sasl_in_use = Some(mechanism);
        let deadline = now + self.server_timeout();
        self.send_sasl_token(now, token, |xid| ConnectionState::Sasl { xid, is_first: true, resumed, deadline });
        if Mutant::RequestBeforeSasl.is_active() {
            self.send_auth(now, resumed);
        }
    }

    fn send_sasl_token(
        &mut self,
        now: Time,
        mut token: Zeroizing<Vec<u8>>,
        next_state: impl FnOnce(i32) -> ConnectionState,
    ) {
        if token.len() > MAX_TOKEN {
            return self.fail_sasl(now, &too_long("the client has", token.len()));
        }
        let xid = self.next_xid();
        let before = self.output.len();
        // A buffer that grows moves its content, and does not erase the first copy.
        self.output.reserve(PACKET_OVERHEAD + token.len());
        let request = Request::Sasl { token: std::mem::take(&mut *token) };
        let encoded = request.encode(xid, &mut self.output);
        if let Request::Sasl { token: sent } = request {
            *token = sent;
        }
        if let Err(error) = encoded {
            return self.fail_sasl(now, &error.to_string());
        }
        self.has_secret_output = true;
        self.traffic.requests += 1;
        self.traffic.bytes_sent += to_u64(self.output.len() - before);
        self.last_sent = now;
        self.connection = next_state(xid);
    }

    /// Handles a reply during the SASL step.
    pub(super) fn on_sasl_reply(&mut self, now: Time, header: &ReplyHeader, body: &[u8]) -> Result<(), ProtoError> {
        let ConnectionState::Sasl { xid, is_first, resumed, deadline } = self.connection else { return Ok(()) };
        if header.xid != xid {
            self.close_connection(now, &format!("the server answered request {}; expected {xid}", header.xid));
            return Ok(());
        }
        self.traffic.answers += 1;
        if !header.err.is_ok() {
            self.on_sasl_error(now, header.err);
            return Ok(());
        }
        let Response::SaslToken(token) = Response::decode(OpCode::Sasl, body)? else { return Ok(()) };
        let token = token.as_deref();
        if is_first && token.is_none() {
            self.fail_sasl(now, NOT_SUPPORTED);
            return Ok(());
        }
        let length = token.map_or(0, <[u8]>::len);
        if length > MAX_TOKEN {
            self.fail_sasl(now, &too_long("the server sent", length));
            return Ok(());
        }
        let Some(mechanism) = &mut self.sasl_in_use else { return Ok(()) };
        match mechanism.step(token) {
            Ok(SaslStep::Send(token)) => {
                self.send_sasl_token(now, token, |xid| ConnectionState::Sasl {
                    xid,
                    is_first: false,
                    resumed,
                    deadline,
                });
            }
            Err(cause) if !Mutant::IgnoreSaslProof.is_active() => self.fail_sasl(now, &cause),
            Ok(SaslStep::Done) | Err(_) => {
                self.sasl_in_use = None;
                self.send_auth(now, resumed);
            }
        }
        Ok(())
    }

    fn on_sasl_error(&mut self, now: Time, code: Code) {
        match code {
            Code::AUTH_FAILED | Code::SESSION_CLOSED_REQUIRE_SASL_AUTH => {
                let cause = self.sasl_in_use.as_ref().map(|mechanism| mechanism.refusal()).unwrap_or_default();
                self.fail_sasl(now, &format!("{cause} ({code})"));
            }
            Code::UNIMPLEMENTED => self.fail_sasl(now, NOT_SUPPORTED),
            // Another error says nothing about the identity, and another server may accept the token.
            _ => self.close_connection(now, &format!("the server answered {code} to a SASL token")),
        }
    }

    fn fail_sasl(&mut self, now: Time, cause: &str) {
        let server = || self.server.as_ref().map(ToString::to_string).unwrap_or_default();
        self.log_buffer.add(Level::Error, || LogRecord::SaslFailed { server: server(), cause: cause.to_owned() });
        self.events.push_back(Event::AuthFailed);
        self.close_connection(now, cause);
    }
}

const NOT_SUPPORTED: &str = "the server does not support SASL, but sasl.mechanism is set: remove the option, or set up SASL on the server (authProvider.1 and a JAAS file with the section Server)";

fn too_long(whose: &str, length: usize) -> String {
    format!("{whose} a SASL token of {length} bytes; at most {MAX_TOKEN} are allowed")
}
