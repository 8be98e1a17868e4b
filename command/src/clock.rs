//! The clocks. The clock of all deadlines is `CLOCK_BOOTTIME`, which also counts the time for which the machine was
//! suspended. The library measures the session lease with the same clock.

use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns the time of day in milliseconds, as the records on the servers contain it, or the latest known time if the
/// clock shows a time after the year 9999.
pub(crate) fn wall_time() -> Timestamp {
    let now = Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::MAX);
    Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(Timestamp::MAX)
}

/// Converts a time of a record.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp::try_from(time).unwrap_or(Timestamp::MAX)
}

/// Writes a time for a person.
pub(crate) fn show_time(time: Timestamp, zone: &TimeZone) -> String {
    time.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
}

/// A point in time, as the duration since the machine was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootTime(Duration);

impl BootTime {
    /// Returns the present time.
    pub(crate) fn now() -> Self {
        Self::try_from(clock_gettime(ClockId::Boottime)).unwrap_or(Self(Duration::ZERO))
    }

    /// Makes a point in time from nanoseconds since the start of the machine.
    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }

    /// Returns the nanoseconds since the start of the machine.
    pub(crate) fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the duration since the start of the machine.
    pub(crate) const fn since_boot(self) -> Duration {
        self.0
    }

    /// Returns the point in time that is `earlier` before this one.
    pub(crate) const fn minus(self, earlier: Duration) -> Self {
        Self(self.0.saturating_sub(earlier))
    }
}

impl TryFrom<Timespec> for BootTime {
    type Error = std::num::TryFromIntError;

    fn try_from(time: Timespec) -> Result<Self, Self::Error> {
        Ok(Self(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?)))
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}

impl Sub for BootTime {
    type Output = Duration;

    /// Returns zero if `earlier` is later than this time.
    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
