//! How a server is set up.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use zklock::Time;
use zklock::proto::DEFAULT_FRAME_LIMIT;

/// How a server is set up.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The unit of its time: session timeouts are from 2 to 20 of them, unless said otherwise.
    pub tick: Duration,
    /// The shortest session timeout.
    pub min_session_timeout: Option<Duration>,
    /// The longest session timeout.
    pub max_session_timeout: Option<Duration>,
    /// How often it looks for containers and nodes with a time to live that have to go.
    pub sweep: Duration,
    /// The longest request it takes, in bytes.
    pub frame_limit: usize,
    /// How many connections it takes from one address; none for any number.
    pub connections_per_address: Option<usize>,
    /// Whether it knows watches that stay (`addWatch`), as ZooKeeper does from 3.6 on.
    pub knows_persistent_watches: bool,
    /// What its session ids begin with.
    pub session_base: i64,
    /// What its session passwords are made from.
    pub secret: u64,
    /// What a wall clock showed at [`Time`] zero, in milliseconds since the epoch.
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
            knows_persistent_watches: true,
            session_base: 1 << 56,
            secret: 0,
            wall_origin_ms: 0,
        }
    }
}

impl Settings {
    /// For tests that wait for sessions to end: their timeouts may be as short as 100 ms.
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

    /// The session timeout that a client gets who asks for this one.
    pub(crate) fn negotiate(&self, asked_ms: i32) -> Duration {
        let asked = Duration::from_millis(u64::try_from(asked_ms).unwrap_or_default());
        asked.clamp(self.min_timeout(), self.max_timeout())
    }

    /// What a wall clock shows.
    pub(crate) fn wall_ms(&self, now: Time) -> i64 {
        self.wall_origin_ms + i64::try_from(now.as_nanos() / 1_000_000).unwrap_or(i64::MAX)
    }

    /// What it takes to resume a session. A guess is hopeless, but this is no cryptography: the server is for tests.
    pub(crate) fn password_of(&self, session: i64) -> [u8; 16] {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let half = |which: u8| hasher.hash_one((self.secret, session, which)).to_be_bytes();
        let mut password = [0; 16];
        password[..8].copy_from_slice(&half(0));
        password[8..].copy_from_slice(&half(1));
        password
    }
}
