//! A SASL mechanism for tests of clients. Each side sends a nonce, and then proves that it knows a secret number. The
//! mechanism protects nothing, and no client of users supports it.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

/// A side of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SaslSide {
    /// The client, which sends its nonce first.
    Client,
    /// The server.
    Server,
}

/// A fault of the next exchange with a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaslFault {
    /// The server refuses the token.
    Refuse,
    /// The server does not answer the token.
    Ignore,
    /// The server accepts the client, but does not know the secret.
    WrongProof,
    /// The server accepts the client without a proof.
    NoProof,
}

/// The progress of an exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SaslStage {
    Begin,
    Challenged {
        client_nonce: Vec<u8>,
        server_nonce: [u8; 8],
    },
    /// The exchange has failed, or one side has not proved its identity.
    Failed,
    Complete,
}

/// Returns the token with which a side proves that it knows the secret.
pub fn sasl_proof(secret: u64, side: SaslSide, client_nonce: &[u8], server_nonce: &[u8]) -> [u8; 8] {
    hash((secret, side, client_nonce, server_nonce))
}

/// Returns a number that depends on the value, as the bytes of a nonce or of a proof.
pub(crate) fn hash(value: impl std::hash::Hash) -> [u8; 8] {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value).to_be_bytes()
}

/// The answer of the server to a token.
pub(crate) enum SaslReply {
    Token(Option<Vec<u8>>),
    Refusal,
    Nothing,
}

impl SaslStage {
    /// Processes a token of the client. The nonce of the server must not have been used before.
    pub(crate) fn step(
        &mut self,
        secret: u64,
        server_nonce: [u8; 8],
        token: &[u8],
        fault: &mut Option<SaslFault>,
    ) -> SaslReply {
        let stage = std::mem::replace(self, Self::Failed);
        let is_begin = stage == Self::Begin;
        // Only the last reply contains a proof.
        let fault = fault.take_if(|fault| !is_begin || matches!(fault, SaslFault::Refuse | SaslFault::Ignore));
        match (stage, fault) {
            (_, Some(SaslFault::Ignore)) => SaslReply::Nothing,
            (Self::Begin, None) => {
                *self = Self::Challenged { client_nonce: token.to_vec(), server_nonce };
                SaslReply::Token(Some(server_nonce.to_vec()))
            }
            (
                Self::Challenged { client_nonce, server_nonce },
                None | Some(SaslFault::WrongProof | SaslFault::NoProof),
            ) if token == sasl_proof(secret, SaslSide::Client, &client_nonce, &server_nonce) => {
                let proof = |secret| Some(sasl_proof(secret, SaslSide::Server, &client_nonce, &server_nonce).to_vec());
                SaslReply::Token(match fault {
                    None => {
                        *self = Self::Complete;
                        proof(secret)
                    }
                    Some(SaslFault::WrongProof) => proof(!secret),
                    Some(_) => None,
                })
            }
            _ => SaslReply::Refusal,
        }
    }
}
