//! A point in time, as the pure core knows it: a number that the shell reads off one clock and hands in.
//!
//! The shell reads `CLOCK_BOOTTIME`, which never goes back and goes on while the machine is suspended, so that a lease
//! can't outlive the session it stands for. Simulations hand in whatever they like.

#![forbid(unsafe_code)]

use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since a fixed but unknown moment. Arithmetic saturates: a deadline beyond the end of time is never due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The moment `nanos` nanoseconds after the clock's origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Time {
    type Output = Duration;

    /// How long after `rhs` this is; zero if it is before.
    fn sub(self, rhs: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(rhs.0))
    }
}
