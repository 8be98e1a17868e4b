//! The settings of a client, and the code that checks their values. The code in this file does not connect clients and
//! does not read files.

use std::error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use zeroize::Zeroizing;
use zklock_core::acl::CreateAcls;
use zklock_core::engine::{DEFAULT_MAX_PATH_BYTES, Event};
use zklock_core::error::{Error, Result};
use zklock_core::limits::Limits;
use zklock_core::session::{ClientPorts, Credentials, SessionConfig};
use zklock_proto::DEFAULT_FRAME_LIMIT;

use crate::runtime::{
    AttemptInputs, CredentialSource, DispatchMode, EventHandler, EventSource, MAX_CREDENTIALS, SaslSettings,
    SaslSource, TlsSettings, TlsSource, is_digest, is_password,
};

/// The settings of a client. A program can use one config for many clients. Each method checks its value and returns
/// the config. If a value is not valid, the method stores the error, and [`Client::connect`](crate::Client::connect)
/// fails with the first stored error. [`Config::set`] sets the option with a given name.
///
/// ```
/// use std::time::Duration;
/// use zklock::Config;
///
/// let config = Config::new().session_timeout(Duration::from_secs(6)).add_auth("digest", b"user:password");
/// ```
#[derive(Clone)]
#[must_use = "a config has no effect until a client connects with it"]
pub struct Config {
    session_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    lease_margin: Option<Duration>,
    /// The value of the `auth.digest` option.
    pub(crate) digest: Option<Credentials>,
    /// The value of the `auth.digest_file` option.
    pub(crate) digest_file: Option<PathBuf>,
    auth: Vec<CredentialSource>,
    frame_limit: usize,
    pub(crate) max_path_bytes: usize,
    pub(crate) wait_for_kazoo: bool,
    pub(crate) create_chroot: bool,
    pub(crate) acls: CreateAcls,
    pub(crate) follow_config: bool,
    pub(crate) end_in_background: bool,
    pub(crate) handler: Option<Arc<EventHandler>>,
    pub(crate) dispatch_mode: DispatchMode,
    pub(crate) sasl: SaslSettings,
    pub(crate) tls: TlsSettings,
    /// The error for the first value that a method of the config rejected.
    error: Option<Error>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The output omits the credentials and the functions.
        f.debug_struct("Config")
            .field("session_timeout", &self.session_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("lease_margin", &self.lease_margin)
            .field("frame_limit", &self.frame_limit)
            .field("max_path_bytes", &self.max_path_bytes)
            .field("wait_for_kazoo", &self.wait_for_kazoo)
            .field("create_chroot", &self.create_chroot)
            .field("acls", &self.acls)
            .field("follow_config", &self.follow_config)
            .field("sasl", &self.sasl)
            .field("tls", &self.tls)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            session_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            lease_margin: None,
            digest: None,
            digest_file: None,
            auth: Vec::new(),
            frame_limit: DEFAULT_FRAME_LIMIT,
            max_path_bytes: DEFAULT_MAX_PATH_BYTES,
            wait_for_kazoo: false,
            create_chroot: false,
            acls: CreateAcls::default(),
            follow_config: false,
            end_in_background: false,
            handler: None,
            dispatch_mode: DispatchMode::EventThread,
            sasl: SaslSettings::default(),
            tls: TlsSettings::default(),
            error: None,
        }
    }
}

impl Config {
    /// Creates a config with the default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the session timeout. The servers end a session if they receive nothing from its client for this long. The
    /// timeout must be at least 1 ms. The default is 10 s. The servers may negotiate another value.
    pub fn session_timeout(self, timeout: Duration) -> Self {
        self.with_checked(milliseconds("session timeout", timeout), |config, timeout| config.session_timeout = timeout)
    }

    /// Sets the connect timeout: the time limit of [`Client::connect`](crate::Client::connect). The timeout must be at
    /// least 1 ms. The default is 10 s.
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        self.with_checked(milliseconds("connect timeout", timeout), |config, timeout| config.connect_timeout = timeout)
    }

    /// Sets the lease margin. The session lease is shorter than the session timeout by at least the lease margin. The
    /// client counts both times from the moment at which it sent the last transaction that the servers confirmed. A
    /// hold is safe only until the session lease ends. The default is a third of the negotiated session timeout. A
    /// larger margin makes holds safer. A smaller margin lets holds survive longer interruptions of the connection.
    ///
    /// The margin cannot exceed two thirds of the session timeout. If the program sets a larger margin, the library
    /// uses two thirds of the session timeout. After a period without traffic, the session lease can end even earlier.
    /// The client then cannot be sure that the servers have received its last requests.
    pub fn lease_margin(self, margin: Duration) -> Self {
        let (ms, limit) = (margin.as_millis(), i32::MAX);
        let is_allowed = ms <= limit as u128;
        let refusal = || Error::invalid(format!("lease margin {ms} ms: at most {limit} ms are allowed"));
        let margin = is_allowed.then_some(margin).ok_or_else(refusal);
        self.with_checked(margin, |config, margin| config.lease_margin = Some(margin))
    }

    /// Adds credentials, for example the `digest` scheme with `user:password`. On every connection, the client sends
    /// all credentials in the order of the `add_auth` calls. The credentials must not be longer than 64 KiB. Credentials
    /// for the `sasl` scheme are the password of the option `sasl.user`.
    pub fn add_auth(self, scheme: &str, auth: impl AsRef<[u8]>) -> Self {
        self.with_checked(credentials(scheme, auth.as_ref()), |config, credentials| {
            config.auth.push(CredentialSource::Fixed(credentials));
        })
    }

    /// Adds a callback that returns credentials for a scheme. Before each attempt to connect, the client calls
    /// `callback` and sends the result together with the credentials of [`add_auth`](Self::add_auth). The callback can
    /// therefore return other credentials after a rotation. The library erases the result from its memory after it has
    /// sent the result. The result must not be longer than 64 KiB. For the `digest` scheme, the result must have the
    /// form `user:password`. For the `sasl` scheme, the result is the password of the option `sasl.user`.
    ///
    /// The library calls `callback` on a thread that it starts for this purpose, one call at a time for each client.
    /// The callback may block: a slow callback delays only the attempt to connect. If the callback calls a method that
    /// would wait for other participants, the method fails with DEADLOCK, as in an event handler. When
    /// [`Client::close`](crate::Client::close) returns, the callback may still be running or may be about to start. The
    /// library drops the callback after this last run.
    ///
    /// If `callback` fails on the first attempt, [`Client::connect`](crate::Client::connect) fails at once with AUTH
    /// and the error's message. If `callback` fails later, the client writes a warning to the log and tries again after
    /// a pause of at most half a second.
    pub fn auth_callback(
        self,
        scheme: &str,
        callback: impl Fn() -> std::result::Result<Vec<u8>, Box<dyn error::Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        self.with_checked(checked_scheme(scheme), |config, scheme| {
            config.auth.push(CredentialSource::Callback { scheme, callback: Arc::new(callback) });
        })
    }

    /// Removes all callbacks that [`auth_callback`](Self::auth_callback) has added for `scheme`.
    pub(crate) fn remove_auth_callbacks(mut self, scheme: &str) -> Self {
        self.auth.retain(|source| !matches!(source, CredentialSource::Callback { scheme: own, .. } if own == scheme));
        self
    }

    /// Sets the maximum size, in bytes, of a frame that the client accepts from a server, like `jute.maxbuffer` in the
    /// Java client. If the answer to a request exceeds this size, the request fails. The value must be 1024 to
    /// 1073741824. The default is 1 MiB.
    pub fn frame_limit(self, bytes: usize) -> Self {
        self.with_checked(size("frame limit", bytes), |config, bytes| config.frame_limit = bytes)
    }

    /// Limits the total size of the node paths of one session. The size is the sum of the path lengths in bytes, plus 4
    /// bytes for each node. An acquire that would exceed the limit fails with EXHAUSTED. The value must be 1024 to
    /// 1073741824. The default is 768 KiB, which is safe for servers with the default `jute.maxbuffer` of 1 MiB.
    ///
    /// When a session ends, the server writes a transaction that contains the paths of all nodes of the session. A
    /// server cannot start again after it has written a transaction longer than twice its `jute.maxbuffer`. The limit
    /// must therefore not exceed the `jute.maxbuffer` of any server.
    pub fn max_path_bytes(self, bytes: usize) -> Self {
        self.with_checked(size("session.max_path_bytes", bytes), |config, bytes| config.max_path_bytes = bytes)
    }

    /// Controls whether mutexes and read/write locks wait in one queue with kazoo's locks on the same path. If the
    /// setting is off, which is the default, an acquire fails with FOREIGN if it finds a kazoo lock on its path.
    ///
    /// The setting is for programs that migrate from kazoo. In such a migration, the kazoo locks must also wait for
    /// zklock's locks. For this purpose, the kazoo programs must set `extra_lock_patterns=["-lock-"]` on the path of a
    /// mutex, and `["__READ__", "__WRIT__"]` on the path of a read/write lock.
    pub fn wait_for_kazoo(self, wait: bool) -> Self {
        Self { wait_for_kazoo: wait, ..self }
    }

    /// Controls whether the client creates the chroot that its server list names, if the chroot is missing. By default,
    /// the setting is off, and connecting to a missing chroot fails with SERVER. This default prevents a client from
    /// creating a chroot because its name was misspelled. Programs with different chroots do not exclude each other.
    pub fn create_chroot(self, create: bool) -> Self {
        Self { create_chroot: create, ..self }
    }

    /// Controls whether a new thread closes the client after the program drops the last object that uses it. If the
    /// setting is on, the drop does not block, and the library stops calling the client's handlers. Use this setting if
    /// no program thread may block, and the program cannot control which thread drops a value. The default is
    /// off.
    pub fn end_in_background(self, in_background: bool) -> Self {
        Self { end_in_background: in_background, ..self }
    }

    /// Sets the handler for state changes. The client calls `handler` for every change of the session and of all holds.
    /// The client calls the handler for one change at a time, in the order in which the changes occurred. By default,
    /// the library calls handlers on its event thread. If a client has a loss in its queue while the event thread runs
    /// another handler, a second thread calls the handlers of this client. The handlers of two clients can therefore
    /// run at the same time. With [`poll_events`](Self::poll_events), the program calls the handlers on its own
    /// threads. After the last call of the handler, and before [`Client::close`](crate::Client::close) returns, the
    /// client drops the handler.
    ///
    /// A handler may call any method, but must not wait for other participants. Otherwise the thread could wait for an
    /// event that is queued behind the event of the running handler. In a handler, these calls fail with DEADLOCK:
    /// - [`Lock::acquire`](crate::Lock::acquire) and [`Semaphore::acquire`](crate::Semaphore::acquire), unless the
    ///   timeout is zero
    /// - a wait for an acquire in progress, unless the acquire has ended, its timeout is zero, or the time limit of the
    ///   wait is zero
    /// - a wait for a loss, unless the timeout is zero
    ///
    /// If a hold and the session change at the same moment, the client delivers the event of the hold first. Each
    /// client queues up to 1024 separate events. Beyond this limit, the client merges each hold's events into one
    /// event, and the session's events into another. Merging removes intermediate states. After a merge, each event
    /// still begins with the state in which the previous event ended. The last event ends with the current state. The
    /// client never drops an event that reports the loss of a hold. If several sessions are lost one after the other
    /// during the merging, the client may report only one of these losses.
    pub fn on_event(self, handler: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self { handler: Some(Arc::new(handler)), ..self }
    }

    /// Selects the thread that calls the handlers for events and revocation requests. If `poll` is false, which is the
    /// default, the library calls the handlers on its event thread. If `poll` is true, the program must call
    /// [`Client::dispatch_events`](crate::Client::dispatch_events) whenever the descriptor of
    /// [`Client::event_fd`](crate::Client::event_fd) is readable.
    pub fn poll_events(self, poll: bool) -> Self {
        Self { dispatch_mode: if poll { DispatchMode::Polling } else { DispatchMode::EventThread }, ..self }
    }

    /// Lets the program call the handlers on its own threads, like [`poll_events`](Self::poll_events), but provides no
    /// descriptor. When the first event is queued, the library calls `notifier` with the event source of the client.
    /// The library can call `notifier` on any thread, and holds internal locks during the call. `notifier` must only
    /// pass the event source to the thread that will dispatch the events.
    pub(crate) fn set_event_notifier(&mut self, notifier: impl Fn(EventSource) + Send + Sync + 'static) {
        self.dispatch_mode = DispatchMode::Notifier(Arc::new(notifier));
    }

    /// Returns whether the client uses TLS.
    pub fn uses_tls(&self) -> bool {
        self.tls.is_enabled()
    }

    /// Returns whether the client sends credentials to the servers. A client certificate does not count as credentials.
    pub fn uses_credentials(&self) -> bool {
        self.sasl.is_enabled() || self.digest.is_some() || self.digest_file.is_some() || !self.auth.is_empty()
    }

    /// Returns the first error that a setting has caused. If no setting has caused an error, the method checks whether
    /// two settings exclude each other.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_values()?;
        if self.digest.is_some() && self.digest_file.is_some() {
            return Err(Error::invalid("options auth.digest and auth.digest_file are both set; expected one of them"));
        }
        self.sasl.check(self.auth.iter().filter(|source| source.is_sasl()).count())?;
        self.tls.check()
    }

    fn check_values(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// Changes a config in place. If a method refuses a value, the config does not change.
    pub(crate) fn try_update(&mut self, change: impl FnOnce(Self) -> Self) -> Result<()> {
        let changed = change(Self { error: None, ..self.clone() });
        changed.check_values()?;
        *self = Self { error: self.error.take(), ..changed };
        Ok(())
    }

    /// Passes a valid value to `set`. Stores the error of an invalid value, unless the config already contains an
    /// error.
    fn with_checked<T>(mut self, value: Result<T>, set: impl FnOnce(&mut Self, T)) -> Self {
        match value {
            Ok(value) => set(&mut self, value),
            Err(error) => drop(self.error.get_or_insert(error)),
        }
        self
    }

    /// Returns the source of the TLS configuration, or `None` if the client does not use TLS.
    pub(crate) fn tls_source(&self) -> Option<TlsSource> {
        TlsSource::new(&self.tls)
    }

    /// Returns the inputs that a client must load before each attempt to connect.
    pub(crate) fn attempt_inputs(&self) -> AttemptInputs {
        let digest = self.digest.clone().map(CredentialSource::Fixed);
        let file = self.digest_file.clone().map(CredentialSource::DigestFile);
        let (mut passwords, auth): (Vec<_>, Vec<_>) = self.auth.iter().cloned().partition(CredentialSource::is_sasl);
        let credentials = digest.into_iter().chain(file).chain(auth).collect();
        AttemptInputs::new(credentials, SaslSource::new(&self.sasl, passwords.pop()), self.tls_source())
    }

    pub(crate) fn session(&self) -> SessionConfig {
        let ports = if self.tls.is_enabled() { ClientPorts::Secure } else { ClientPorts::Plain };
        SessionConfig {
            timeout: self.session_timeout,
            lease_margin: self.lease_margin,
            follow_config: self.follow_config.then_some(ports),
            frame_limit: self.frame_limit,
            limits: Limits::default(),
        }
    }
}

fn milliseconds(what: &str, value: Duration) -> Result<Duration> {
    if (1..=i32::MAX as u128).contains(&value.as_millis()) {
        return Ok(value);
    }
    Err(Error::invalid(format!("{what} {} ms: expected 1 to {} ms", value.as_millis(), i32::MAX)))
}

fn size(what: &str, bytes: usize) -> Result<usize> {
    if (1024..=1 << 30).contains(&bytes) {
        return Ok(bytes);
    }
    Err(Error::invalid(format!("{what} {bytes}: expected 1024 to {} bytes", 1 << 30)))
}

fn credentials(scheme: &str, auth: &[u8]) -> Result<Credentials> {
    let scheme = checked_scheme(scheme)?;
    if auth.len() > MAX_CREDENTIALS {
        return Err(Error::invalid(format!("auth of {} bytes: at most {MAX_CREDENTIALS} are allowed", auth.len())));
    }
    if scheme == "digest" && !is_digest(auth) {
        return Err(Error::invalid(
            "auth of the scheme digest: expected user:password without a line break or a NUL".to_owned(),
        ));
    }
    if scheme == "sasl" && !str::from_utf8(auth).is_ok_and(is_password) {
        return Err(Error::invalid("auth of the scheme sasl: expected one line with a password in UTF-8"));
    }
    Ok(Credentials { scheme, data: Zeroizing::new(auth.to_vec()) })
}

fn checked_scheme(scheme: &str) -> Result<String> {
    if scheme.is_empty() || scheme.len() > 255 || scheme.chars().any(char::is_control) {
        let scheme = zklock_core::path::quote(scheme);
        return Err(Error::invalid(format!("auth scheme {scheme}: expected a name like digest")));
    }
    Ok(scheme.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use zklock_core::error::Status;

    fn refusal(change: impl FnOnce(Config) -> Config) -> String {
        change(Config::new()).check().unwrap_err().message().to_owned()
    }

    #[test]
    fn values_are_checked_and_named() {
        assert!(refusal(|config| config.session_timeout(Duration::ZERO)).contains("session timeout 0 ms"));
        assert!(refusal(|config| config.connect_timeout(Duration::from_secs(1 << 40))).contains("connect timeout"));
        assert!(refusal(|config| config.add_auth("", b"x")).contains("auth scheme \"\""));
        assert!(refusal(|config| config.add_auth("digest", vec![0; 1 << 20])).contains("auth of 1048576 bytes"));
        assert!(
            refusal(|config| config.add_auth("sasl", b"hunter2\xff"))
                .ends_with("sasl: expected one line with a password in UTF-8")
        );
        assert!(refusal(|config| config.frame_limit(0)).contains("frame limit 0"));
        assert!(refusal(|config| config.max_path_bytes(1023)).contains("session.max_path_bytes 1023"));
        assert!(refusal(|config| config.lease_margin(Duration::MAX)).contains("lease margin"));
        Config::new().lease_margin(Duration::ZERO).add_auth("digest", "user:secret").check().unwrap();
    }

    #[test]
    fn connecting_fails_with_the_first_error_of_the_settings() {
        let config =
            Config::new().frame_limit(1).session_timeout(Duration::ZERO).connect_timeout(Duration::from_secs(1));
        let error = crate::Client::connect("127.0.0.1:1", &config).err().unwrap();
        assert_eq!(
            (error.status(), error.message()),
            (Status::Invalid, "frame limit 1: expected 1024 to 1073741824 bytes")
        );
    }

    #[test]
    fn a_change_in_place_is_made_as_a_whole_or_not_at_all() {
        let mut config = Config::new().frame_limit(1);
        let refused = config.try_update(|config| config.lease_margin(Duration::ZERO).session_timeout(Duration::ZERO));
        assert!(refused.unwrap_err().message().contains("session timeout 0 ms"));
        assert_eq!(config.session().lease_margin, None);
        config.try_update(|config| config.lease_margin(Duration::ZERO)).unwrap();
        assert_eq!(config.session().lease_margin, Some(Duration::ZERO));
        assert!(config.check().unwrap_err().message().contains("frame limit 1"), "an error before it is forgotten");
    }

    #[test]
    fn debug_output_shows_no_credentials() {
        let shown = format!("{:?}", Config::new().add_auth("digest", "user:secret").on_event(|_| {}));
        assert!(shown.contains("session_timeout") && !shown.contains("secret") && !shown.contains("115"), "{shown}");
    }
}
