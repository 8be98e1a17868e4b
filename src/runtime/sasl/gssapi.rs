//! The client's side of the SASL mechanism GSSAPI (RFC 4752), with Kerberos 5 and without a security layer. The
//! [`GssContext`] makes the tokens. Only the first token can need a KDC. The later steps only compute, so they may run
//! while the state of the client is locked.

use zeroize::Zeroizing;
use zklock_core::session::{SaslMechanism, SaslStep};

use super::gss_library::GssContext;

/// The bit for "no security layer" in an offer of a server.
const NO_LAYER: u8 = 1;
/// The answer to an offer: no security layer, and no message size. No authorization identity follows.
const CHOICE: [u8; 4] = [NO_LAYER, 0, 0, 0];

/// One exchange with a server.
pub(super) struct Gssapi {
    context: GssContext,
    state: State,
    /// The names of both sides, for messages.
    names: String,
}

enum State {
    /// The first token, which the client has not sent yet.
    Ready(Zeroizing<Vec<u8>>),
    Establishing,
    AwaitingOffer,
    AwaitingEnd,
    Ended,
}

impl Gssapi {
    /// Begins an exchange. The call can ask a KDC and block.
    pub(super) fn start(mut context: GssContext, names: String) -> Result<Self, String> {
        let token = context.step(None)?.token;
        Ok(Self { context, state: State::Ready(token), names })
    }

    fn answer(&mut self, state: &State, token: Option<&[u8]>) -> Result<SaslStep, String> {
        let token = token.unwrap_or_default();
        match state {
            State::Establishing if is_digest_challenge(token) => {
                Err("the server offers DIGEST-MD5 and not Kerberos (sasl.mechanism = digest-md5)".to_owned())
            }
            State::Establishing => {
                let step = self.context.step(Some(token))?;
                self.state = if step.is_complete { State::AwaitingOffer } else { State::Establishing };
                Ok(SaslStep::Send(step.token))
            }
            State::AwaitingOffer => {
                let offer = self.context.unwrap(token)?;
                match offer.as_slice() {
                    [layers, _, _, _] if layers & NO_LAYER != 0 => {}
                    [layers, _, _, _] => {
                        return Err(format!("the server requires a security layer (offer {layers}); expected 1, none"));
                    }
                    other => return Err(format!("the server's offer has {} bytes; expected 4", other.len())),
                }
                self.state = State::AwaitingEnd;
                self.context.wrap(&CHOICE).map(SaslStep::Send)
            }
            State::AwaitingEnd if token.is_empty() => Ok(SaslStep::Done),
            State::Ready(_) | State::AwaitingEnd | State::Ended => {
                Err("the server sent a token after the end of the exchange".to_owned())
            }
        }
    }
}

impl SaslMechanism for Gssapi {
    fn first_token(&mut self) -> Zeroizing<Vec<u8>> {
        match std::mem::replace(&mut self.state, State::Establishing) {
            State::Ready(token) => token,
            _ => Zeroizing::default(),
        }
    }

    fn step(&mut self, token: Option<&[u8]>) -> Result<SaslStep, String> {
        let state = std::mem::replace(&mut self.state, State::Ended);
        self.answer(&state, token).map_err(|cause| format!("SASL with Kerberos as {}: {cause}", self.names))
    }

    fn refusal(&self) -> String {
        let names = &self.names;
        format!(
            "the server refused Kerberos as {names}; its log has the cause, for example another keytab of the service, or clocks that differ"
        )
    }
}

/// Returns whether a token of the server is a challenge of DIGEST-MD5. A token of Kerberos is binary.
fn is_digest_challenge(token: &[u8]) -> bool {
    token.is_ascii() && token.windows(6).any(|part| part == b"nonce=")
}
