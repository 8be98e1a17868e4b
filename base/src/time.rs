//! A point in time for the pure crates. A shell reads the clock and passes the time to them.
//!
//! The shell reads `CLOCK_BOOTTIME`. `CLOCK_BOOTTIME` never goes back, and it also counts the time during which the
//! machine is suspended. A session lease that is measured with this clock therefore cannot last longer than its
//! session. A simulation can pass any time to the core.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A number of nanoseconds since a fixed but unknown moment. If an addition overflows, the result is the largest time,
/// so such a deadline never passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// Makes the time that is `nanos` nanoseconds after the origin of the clock.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the number of nanoseconds since the origin of the clock.
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

    /// Returns the duration from `rhs` to this time, or zero if this time is earlier than `rhs`.
    fn sub(self, rhs: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(rhs.0))
    }
}
