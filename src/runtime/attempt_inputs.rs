//! The inputs of an attempt to connect. Before each attempt, the library reads files and calls callbacks of the program
//! to get credentials, SASL passwords and certificates. A file system can hang and a callback can be slow, so the library loads these
//! inputs on a separate thread. No other thread waits for this thread. The code in this file does not connect.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use zklock_core::error::{Error, Result, Status};
use zklock_core::session::{Credentials, SaslMechanism, Server};
use zklock_process::ForkEpoch;

use super::credentials::CredentialSource;
use super::sasl::SaslSource;
use super::sync::spawn;
use super::tls::{TlsSource, TlsStream};

/// The sources from which a client loads its inputs before each attempt to connect.
#[derive(Default)]
pub(crate) struct AttemptInputs {
    credentials: Vec<CredentialSource>,
    sasl: Option<SaslSource>,
    tls: Option<TlsSource>,
}

/// The inputs of one attempt to connect.
pub(super) struct LoadedInputs {
    /// The server for which the inputs were loaded, if it was known.
    pub(super) server: Option<Server>,
    pub(super) credentials: Vec<Credentials>,
    pub(super) sasl: Option<Box<dyn SaslMechanism>>,
    /// The error if the TLS files could not be reloaded. The connection then uses the files that were loaded earlier.
    pub(super) tls_error: Option<Error>,
}

impl AttemptInputs {
    pub(crate) fn new(credentials: Vec<CredentialSource>, sasl: Option<SaslSource>, tls: Option<TlsSource>) -> Self {
        Self { credentials, sasl, tls }
    }

    /// Returns whether loading the inputs can block. If loading cannot block, the caller may load the inputs while it
    /// holds locks.
    pub(super) fn can_block(&self) -> bool {
        self.tls.is_some()
            || self.sasl.as_ref().is_some_and(SaslSource::can_block)
            || self.credentials.iter().any(CredentialSource::can_block)
    }

    /// Returns whether an attempt to connect needs credentials or a SASL mechanism.
    pub(super) fn has_credentials(&self) -> bool {
        !self.credentials.is_empty() || self.sasl.is_some()
    }

    /// Returns whether the inputs of different servers differ.
    pub(super) fn depend_on_server(&self) -> bool {
        self.sasl.as_ref().is_some_and(SaslSource::depends_on_server)
    }

    /// Returns a text for messages that names the inputs whose loading can block.
    pub(super) fn names(&self) -> String {
        let blocking = self.credentials.iter().filter(|source| source.can_block());
        let tls = self.tls.iter().map(|_| "the TLS files".to_owned());
        let sasl = self.sasl.iter().filter(|source| source.can_block()).map(SaslSource::name);
        tls.chain(sasl).chain(blocking.map(CredentialSource::name)).collect::<Vec<_>>().join(" and ")
    }

    /// Loads the inputs. The call can block indefinitely. The library calls `is_wanted` before it calls a program
    /// callback. Once `is_wanted` has returned false, the library no longer calls program callbacks.
    ///
    /// If the next server is not known yet, the result can lack inputs that depend on the server.
    ///
    /// Returns `None` if the inputs are no longer wanted. Errors: INVALID, EXHAUSTED, AUTH, UNSUPPORTED.
    pub(super) fn load(&self, server: Option<&Server>, is_wanted: impl Fn() -> bool) -> Option<Result<LoadedInputs>> {
        let tls_error = match self.tls.as_ref().map_or(Ok(()), TlsSource::load) {
            Err(error) if self.tls.as_ref().is_some_and(TlsSource::is_loaded) => Some(error),
            Err(error) => return Some(Err(error)),
            Ok(()) => None,
        };
        let sasl = is_wanted().then(|| self.sasl.as_ref().map(|source| source.load(server)))?;
        let sasl = match sasl.transpose() {
            Ok(sasl) => sasl.flatten(),
            Err(error) => return Some(Err(error)),
        };
        let mut credentials = Vec::with_capacity(self.credentials.len());
        for source in &self.credentials {
            let loaded = is_wanted().then(|| source.load())?;
            match loaded {
                Ok(loaded) => credentials.push(loaded),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(LoadedInputs { server: server.cloned(), credentials, sasl, tls_error }))
    }

    /// Starts TLS for a connection to a server. Returns `None` if the client uses plain text.
    pub(super) fn start_tls(&self, server: &Server) -> io::Result<Option<TlsStream>> {
        self.tls.as_ref().map(|tls| tls.start(server)).transpose()
    }

    /// Loads the inputs on a new thread. The thread passes the result to `done`. If the inputs are no longer wanted,
    /// the thread does not call `done`.
    pub(super) fn load_in_background(
        self: &Arc<Self>,
        server: Option<Server>,
        is_wanted: impl Fn() -> bool + Send + 'static,
        done: impl FnOnce(Result<LoadedInputs>) + Send + 'static,
    ) -> io::Result<()> {
        let (inputs, epoch) = (Arc::clone(self), ForkEpoch::current());
        let run = move || {
            // Even if loading panics, this thread must report to the client that loading has ended.
            let loaded = catch_unwind(AssertUnwindSafe(|| inputs.load(server.as_ref(), is_wanted)));
            let loaded = loaded.unwrap_or_else(|_| Some(Err(panic_error(&inputs.names()))));
            if epoch.check().is_err() {
                // This process is a child that a callback has forked. The parent drops the inputs, so the child must
                // not drop them.
                return std::mem::forget(inputs);
            }
            drop(inputs);
            if let Some(loaded) = loaded {
                done(loaded);
            }
        };
        spawn("zkl-load", run).map(drop)
    }
}

fn panic_error(inputs: &str) -> Error {
    let message = format!(
        "the library panicked while it loaded {inputs}; please report the message of the panic, which is on standard error"
    );
    Error::new(Status::Internal, message)
}
