//! The client's side of the SASL mechanism of the standalone server.

use zeroize::Zeroizing;
use zklock_core::session::{SaslMechanism, SaslStep};
use zklock_standalone::{SaslSide, sasl_proof};

/// One exchange with a server.
#[derive(Debug)]
pub struct ClientSasl {
    secret: u64,
    nonce: [u8; 8],
    /// The nonce of the server, if the client has received it.
    server_nonce: Option<Vec<u8>>,
}

impl ClientSasl {
    /// Begins an exchange. Each exchange must have another nonce.
    pub fn new(secret: u64, nonce: u64) -> Self {
        Self { secret, nonce: nonce.to_be_bytes(), server_nonce: None }
    }
}

impl SaslMechanism for ClientSasl {
    fn first_token(&mut self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.nonce.to_vec())
    }

    fn step(&mut self, token: Option<&[u8]>) -> Result<SaslStep, String> {
        let token = token.unwrap_or_default();
        let Some(server_nonce) = &self.server_nonce else {
            self.server_nonce = Some(token.to_vec());
            let proof = sasl_proof(self.secret, SaslSide::Client, &self.nonce, token);
            return Ok(SaslStep::Send(Zeroizing::new(proof.to_vec())));
        };
        if token == sasl_proof(self.secret, SaslSide::Server, &self.nonce, server_nonce) {
            return Ok(SaslStep::Done);
        }
        Err("the server does not know the secret".to_owned())
    }

    fn refusal(&self) -> String {
        "the server refused the client".to_owned()
    }
}
