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

/// Writes a duration for a message: in milliseconds if it is shorter than a second, and otherwise in seconds. Programs in
/// some languages pass milliseconds, and others pass seconds. The result is rounded to milliseconds: a wait begins slightly
/// after its call, and a message must not show 99 ms for a timeout of 100 ms.
pub fn in_words(duration: Duration) -> String {
    let ms = (duration.as_nanos() + 500_000) / 1_000_000;
    let seconds = format!("{}.{:03}", ms / 1000, ms % 1000);
    match ms {
        0..1000 => format!("{ms} ms"),
        _ => format!("{} s", seconds.trim_end_matches('0').trim_end_matches('.')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_the_unit_that_a_person_would_choose() {
        for (micros, words) in [
            (0, "0 ms"),
            (99_600, "100 ms"),
            (999_499, "999 ms"),
            (999_500, "1 s"),
            (1_500_000, "1.5 s"),
            (10_000_000, "10 s"),
            (61_050_400, "61.05 s"),
        ] {
            assert_eq!(in_words(Duration::from_micros(micros)), words);
        }
    }
}
