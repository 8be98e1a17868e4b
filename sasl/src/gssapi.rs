//! The client's side of the SASL mechanism GSSAPI (RFC 4752), with Kerberos 5 and without a security layer. The
//! [`GssContext`] makes the tokens. Only the first token can need a KDC. The later steps only compute, so they may run
//! while the state of the client is locked.

use std::fs::File;

use zeroize::Zeroizing;
use zklock_core::error::{Error, Result, Status};
use zklock_core::path::quote;
use zklock_core::session::{SaslMechanism, SaslStep, Server};

use crate::gss_library::{GssContext, GssCredentials, GssLibrary, GssName};
use crate::settings::{KerberosLogin, SaslSettings};

const NO_TICKET: &str = "; get a ticket with kinit, or set sasl.keytab";

/// The bit for "no security layer" in an offer of a server.
const NO_LAYER: u8 = 1;
/// The answer to an offer: no security layer, and no message size. No authorization identity follows.
const CHOICE: [u8; 4] = [NO_LAYER, 0, 0, 0];

/// One exchange with a server.
pub struct Gssapi {
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

/// Begins an exchange with a server. Returns `None` if the name of the server is not known yet; the call then only checks
/// that the client can get a ticket. The call can ask a KDC and block.
///
/// Errors: AUTH if Kerberos fails, INVALID if the keytab cannot be read, UNSUPPORTED if the Kerberos library is missing.
#[inline(never)]
pub fn start_gssapi(settings: &SaslSettings, login: &KerberosLogin, server: Option<&Server>) -> Result<Option<Gssapi>> {
    let library = GssLibrary::load()?;
    if let Some(keytab) = &login.keytab {
        // The library does not say which file is missing.
        let refuse = |error| Error::invalid(format!("sasl.keytab {}: {error}", quote(&keytab.to_string_lossy())));
        File::open(keytab).map_err(refuse)?;
    }
    let client = login.principal.as_deref().unwrap_or("the default principal");
    let failed =
        |cause: &str, hint: &str| Error::new(Status::Auth, format!("SASL with Kerberos as {client}: {cause}{hint}"));
    let principal = login.principal.as_ref().map(|principal| GssName::new(library, principal)).transpose();
    let credentials = principal
        .and_then(|principal| GssCredentials::acquire(library, principal.as_ref(), &login.credential_stores()))
        .map_err(|cause| failed(&cause, NO_TICKET))?;
    let Some(host) = settings.host().or_else(|| server.map(|server| server.host.as_str())) else { return Ok(None) };
    let service = settings.service_principal(host);
    let mut hint = "";
    let started = GssName::new(library, &service).and_then(|name| {
        let mut context = GssContext::new(credentials, name);
        let step = context.step(None).inspect_err(|_| {
            if login.keytab.is_none() && context.has_expired() {
                hint = NO_TICKET;
            }
        })?;
        Ok(Gssapi { context, state: State::Ready(step.token), names: format!("{client} for {service}") })
    });
    started.map(Some).map_err(|cause| failed(&cause, &format!(" (service {service}){hint}")))
}

impl Gssapi {
    fn answer(&mut self, state: &State, token: Option<&[u8]>) -> std::result::Result<SaslStep, String> {
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

    fn step(&mut self, token: Option<&[u8]>) -> std::result::Result<SaslStep, String> {
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
