//! The settings of a server, and the values that follow from them. A setting does not change after the start of the
//! server.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use zklock_base::time::Time;
use zklock_proto::DEFAULT_FRAME_LIMIT;

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The unit of time. By default, session timeouts are between 2 and 20 ticks.
    pub tick: Duration,
    /// The shortest session timeout. `None` means 2 ticks.
    pub min_session_timeout: Option<Duration>,
    /// The longest session timeout. `None` means 20 ticks.
    pub max_session_timeout: Option<Duration>,
    /// The interval at which the server searches for empty containers and for nodes whose time to live has passed.
    pub sweep: Duration,
    /// The length limit of a request, in bytes.
    pub frame_limit: usize,
    /// The maximum number of connections from one IP address. `None` means no limit.
    pub connections_per_address: Option<usize>,
    /// Whether the server supports persistent watches (`addWatch`), as ZooKeeper 3.6 and later does.
    pub supports_persistent_watches: bool,
    /// If this number is set, a client must prove with SASL that it knows the number, before it sends another request.
    /// The mechanism is that of [`sasl_proof`](crate::sasl_proof).
    pub sasl_secret: Option<u64>,
    /// The high bits of all session ids.
    pub session_base: i64,
    /// The seed of the session passwords.
    pub secret: u64,
    /// The wall-clock time at [`Time`] zero, in milliseconds since the epoch.
    pub wall_origin_ms: i64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tick: Duration::from_secs(2),
            min_session_timeout: None,
            max_session_timeout: None,
            sweep: Duration::from_secs(60),
            frame_limit: DEFAULT_FRAME_LIMIT,
            connections_per_address: None,
            supports_persistent_watches: true,
            sasl_secret: None,
            session_base: 1 << 56,
            secret: 0,
            wall_origin_ms: 0,
        }
    }
}

impl Settings {
    /// Settings for tests that wait for sessions to expire: a session timeout may be as short as 100 ms.
    pub fn for_tests() -> Self {
        Self { min_session_timeout: Some(Duration::from_millis(100)), ..Self::default() }
    }

    /// The shortest session timeout.
    pub fn min_timeout(&self) -> Duration {
        self.min_session_timeout.unwrap_or(self.tick * 2)
    }

    /// The longest session timeout.
    pub fn max_timeout(&self) -> Duration {
        self.max_session_timeout.unwrap_or(self.tick * 20).max(self.min_timeout())
    }

    /// The session timeout that the server grants if a client requests `requested_ms`.
    pub(crate) fn negotiate(&self, requested_ms: i32) -> Duration {
        let requested = Duration::from_millis(u64::try_from(requested_ms).unwrap_or_default());
        requested.clamp(self.min_timeout(), self.max_timeout())
    }

    /// The wall-clock time at `now`, in milliseconds since the epoch.
    pub(crate) fn wall_ms(&self, now: Time) -> i64 {
        self.wall_origin_ms + i64::try_from(now.as_nanos() / 1_000_000).unwrap_or(i64::MAX)
    }

    /// The password that a client needs to resume a session. With passwords, no client can resume the session of
    /// another client by mistake. The passwords are not cryptographically secure, because the server is for tests.
    pub(crate) fn password_of(&self, session: i64) -> [u8; 16] {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let half = |which: u8| hasher.hash_one((self.secret, session, which)).to_be_bytes();
        let mut password = [0; 16];
        password[..8].copy_from_slice(&half(0));
        password[8..].copy_from_slice(&half(1));
        password
    }
}
