//! The sources of credentials: the program, a file, or a program callback. The code in this file loads
//! credentials but does not send them.

use std::error;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use zeroize::Zeroizing;
use zklock_core::error::{Error, Result, Status};
use zklock_core::path::quote;
use zklock_core::session::Credentials;

use super::callback::call_catching_panic;
use super::file::{quote_file, read_regular_file, remove_newline, warn_if_exposed};

/// The maximum size of credentials, in bytes.
pub(crate) const MAX_CREDENTIALS: usize = 64 * 1024;

/// A function, provided by the program, that returns credentials.
type AuthCallback = dyn Fn() -> std::result::Result<Vec<u8>, Box<dyn error::Error + Send + Sync>> + Send + Sync;

/// A source of credentials.
#[derive(Clone)]
pub(crate) enum CredentialSource {
    /// The program has passed the credentials.
    Fixed(Credentials),
    /// A file that contains the credentials of the `digest` scheme (option `auth.digest_file`).
    DigestFile(PathBuf),
    /// A program callback returns the credentials.
    Callback { scheme: String, callback: Arc<AuthCallback> },
}

impl CredentialSource {
    /// Returns whether the credentials are the password of SASL. The client sends other credentials as they are.
    pub(crate) fn is_sasl(&self) -> bool {
        match self {
            Self::Fixed(Credentials { scheme, .. }) | Self::Callback { scheme, .. } => scheme == "sasl",
            Self::DigestFile(_) => false,
        }
    }

    /// Returns whether loading the credentials can block.
    pub(super) fn can_block(&self) -> bool {
        !matches!(self, Self::Fixed(_))
    }

    /// Returns the source's name for use in messages.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Fixed(Credentials { scheme, .. }) => format!("the credentials for {}", quote(scheme)),
            Self::DigestFile(file) => format!("auth.digest_file {}", quote_file(file)),
            Self::Callback { scheme, .. } => format!("the result of the auth callback for {}", quote(scheme)),
        }
    }

    /// Loads the credentials. The call can block indefinitely.
    ///
    /// Errors: INVALID or EXHAUSTED if a file cannot be read, AUTH if the callback fails.
    pub(super) fn load(&self) -> Result<Credentials> {
        match self {
            Self::Fixed(credentials) => Ok(credentials.clone()),
            Self::DigestFile(file) => {
                let mut data = read_regular_file("auth.digest_file", file, MAX_CREDENTIALS)?;
                warn_if_exposed("auth.digest_file", file);
                remove_newline(&mut data);
                if !is_digest(&data) {
                    return Err(Error::invalid(format!(
                        "{} does not contain one line with user:password",
                        self.name()
                    )));
                }
                Ok(Credentials { scheme: "digest".to_owned(), data })
            }
            Self::Callback { scheme, callback } => call(scheme, &**callback),
        }
    }
}

/// Calls the program's callback. Fails with AUTH if the callback fails or panics.
fn call(scheme: &str, callback: &AuthCallback) -> Result<Credentials> {
    let refuse = |why: &dyn Display| Error::new(Status::Auth, format!("the auth callback for {} {why}", quote(scheme)));
    let mut outcome = None;
    // The program also provides the code that formats and drops the error, and this code can panic too.
    let call = || outcome = Some(callback().map(Zeroizing::new).map_err(|cause| format!("failed: {cause}")));
    if !call_catching_panic(call) {
        return Err(refuse(&"panicked"));
    }
    let data = outcome.unwrap_or_else(|| Err("ended".to_owned())).map_err(|why| refuse(&why))?;
    if data.len() > MAX_CREDENTIALS {
        return Err(refuse(&format!("returned {} bytes; at most {MAX_CREDENTIALS} are allowed", data.len())));
    }
    if scheme == "digest" && !is_digest(&data) {
        return Err(refuse(&"returned no user:password"));
    }
    Ok(Credentials { scheme: scheme.to_owned(), data })
}

/// Returns whether the data has the form `user:password`. If the data has no
/// password, a server accepts it, but later denies access to protected nodes.
pub(crate) fn is_digest(data: &[u8]) -> bool {
    let colon = data.iter().position(|&byte| byte == b':');
    let has_line_break = data.iter().any(|byte| matches!(byte, b'\n' | b'\r' | 0));
    colon.is_some_and(|at| at > 0 && at + 1 < data.len()) && !has_line_break
}

#[cfg(test)]
#[allow(clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    fn load(
        callback: impl Fn() -> std::result::Result<Vec<u8>, Box<dyn error::Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Result<Credentials> {
        CredentialSource::Callback { scheme: "digest".into(), callback: Arc::new(callback) }.load()
    }

    #[test]
    fn digest_has_a_user_and_a_password() {
        for good in ["u:p", "u:p:q", "u: ", "u::"] {
            assert!(is_digest(good.as_bytes()), "{good:?}");
        }
        for bad in ["", ":", "u", "u:", ":p", "u:p\n", "u:p\r", "u:\0"] {
            assert!(!is_digest(bad.as_bytes()), "{bad:?}");
        }
    }

    #[test]
    fn callback_that_fails_returns_its_own_message() {
        assert_eq!(**load(|| Ok(b"u:p".to_vec())).unwrap().data, *b"u:p");
        let too_long = || Ok(vec![b':'; MAX_CREDENTIALS + 1]);
        for (error, message) in [
            (load(|| Err("the vault is sealed".into())), "failed: the vault is sealed"),
            (load(|| panic!("on purpose")), "panicked"),
            (load(|| Ok(b"secret".to_vec())), "returned no user:password"),
            (load(too_long), "returned 65537 bytes; at most 65536 are allowed"),
        ] {
            let error = error.unwrap_err();
            let expected = format!("the auth callback for \"digest\" {message}");
            assert_eq!((error.status(), error.message()), (Status::Auth, expected.as_str()));
        }
    }
}
