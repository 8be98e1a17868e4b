//! Periods. This file uses no clock: the caller passes the time.

use std::time::{Duration, SystemTime};

use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};
use zklock_core::error::{Error, Result, Status};

use crate::options::{LONGEST_TIME, time_in_seconds};

/// A division of time into periods. In each period, a job runs at most once ([`Hold::begin_run`](crate::Hold::begin_run)).
/// The programs that start the job must use the same period and the same time zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Period {
    length: Length,
    /// The time zone of hours, days, weeks and months. `None` stands for the zone of this host.
    zone: Option<TimeZone>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    /// A fixed length in seconds. These periods are counted from 1970-01-01 00:00 UTC, so all hosts have the same
    /// periods.
    Seconds(i64),
    Hour,
    Day,
    /// A week begins on Monday.
    Week,
    Month,
}

impl Period {
    /// Makes a division into periods of a length: `minute`, `hour`, `day`, `week` or `month`, the same in the form of cron
    /// (`@hourly`, `@daily`, `@midnight`, `@weekly`, `@monthly`), or a time in whole seconds such as `30m` or `2h`. Hours,
    /// days, weeks and months begin in the time zone of this host, unless [`in_zone`](Self::in_zone) sets another one. A
    /// week begins on Monday. The periods of a time are counted from 1970-01-01 00:00 UTC.
    ///
    /// Fails with INVALID if the length has another form. Does not block.
    pub fn new(length: &str) -> Result<Self> {
        let length = match length {
            "minute" => Length::Seconds(60),
            "hour" | "@hourly" => Length::Hour,
            "day" | "@daily" | "@midnight" => Length::Day,
            "week" | "@weekly" => Length::Week,
            "month" | "@monthly" => Length::Month,
            text => seconds(text).ok_or_else(|| {
                Error::invalid(format!(
                    "period is {text:?}; expected minute, hour, day, week, month, @hourly, @daily, @weekly, @monthly, or whole \
                     seconds such as 30m or 2h"
                ))
            })?,
        };
        Ok(Self { length, zone: None })
    }

    /// Sets the time zone of hours, days, weeks and months, for example `Europe/Berlin` or `UTC`. The time zone does not
    /// change the periods of a time such as `30m`.
    ///
    /// Fails with INVALID if this host knows no time zone of this name. Reads a file of the time zone database.
    pub fn in_zone(self, name: &str) -> Result<Self> {
        let zone = TimeZone::get(name).map_err(|_| Error::invalid(format!("zone is {name:?}; {EXPECTED_ZONE}")))?;
        Ok(Self { zone: Some(zone), ..self })
    }

    /// Returns the beginning of the period that contains `now`.
    ///
    /// Fails with INVALID if the period has no time zone, and the variable `TZ` contains an unknown one. Fails with
    /// INTERNAL if the time is not in the years up to 9999. Reads the files of the time zone at the first call.
    pub fn start(&self, now: SystemTime) -> Result<SystemTime> {
        let now = timestamp(now)?;
        let start = self.length.start(now, &period_zone(self)?);
        let failed = |error| Error::new(Status::Internal, format!("finding the period of {now}: {error}"));
        start.map(SystemTime::from).map_err(failed)
    }
}

impl Length {
    fn start(self, now: Timestamp, zone: &TimeZone) -> std::result::Result<Timestamp, jiff::Error> {
        let local = now.to_zoned(zone.clone());
        let start_of_day = |days_ago: i8| local.checked_sub(Span::new().try_days(days_ago)?)?.start_of_day();
        match self {
            Self::Seconds(length) => {
                let into = now.as_second().checked_rem_euclid(length).unwrap_or_default();
                Timestamp::from_second(now.as_second().saturating_sub(into))
            }
            Self::Hour => Ok(local.with().minute(0).second(0).subsec_nanosecond(0).build()?.timestamp()),
            Self::Day => Ok(start_of_day(0)?.timestamp()),
            Self::Week => Ok(start_of_day(local.weekday().to_monday_zero_offset())?.timestamp()),
            Self::Month => Ok(local.first_of_month()?.start_of_day()?.timestamp()),
        }
    }
}

/// Parses a time of whole seconds.
fn seconds(text: &str) -> Option<Length> {
    let is_period = |time: &Duration| time.subsec_nanos() == 0 && !time.is_zero() && *time <= LONGEST_TIME;
    let time = time_in_seconds(text).filter(is_period)?;
    i64::try_from(time.as_secs()).ok().map(Length::Seconds)
}

const EXPECTED_ZONE: &str = "expected the name of a time zone, for example Europe/Berlin or UTC";

/// Returns the time zone of a period. An unknown zone in the variable `TZ` is an error: with another zone, the periods
/// would be others than those that the user wants.
pub fn period_zone(period: &Period) -> Result<TimeZone> {
    if let Some(zone) = &period.zone {
        return Ok(zone.clone());
    }
    match (TimeZone::try_system(), std::env::var_os("TZ")) {
        (Ok(zone), _) => Ok(zone),
        (Err(_), Some(name)) => Err(Error::invalid(format!("the variable TZ is {name:?}; {EXPECTED_ZONE}"))),
        // A host without a configured zone has UTC.
        (Err(_), None) => Ok(TimeZone::system()),
    }
}

/// Converts a time of day. The record contains times up to the year 9999.
pub(super) fn timestamp(time: SystemTime) -> Result<Timestamp> {
    let failed = |_| Error::new(Status::Internal, "the clock of this host shows a time after the year 9999");
    Timestamp::try_from(time).map_err(failed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn start(period: &str, now: &str, zone: &str) -> String {
        let period = Period::new(period).unwrap().in_zone(zone).unwrap();
        timestamp(period.start(now.parse::<Timestamp>().unwrap().into()).unwrap()).unwrap().to_string()
    }

    #[test]
    fn calendar_periods_begin_in_the_time_zone() {
        let now = "2026-03-29T12:34:56.7Z";
        assert_eq!(start("hour", now, "Asia/Kolkata"), "2026-03-29T12:30:00Z");
        assert_eq!(start("@daily", now, "UTC"), "2026-03-29T00:00:00Z");
        assert_eq!(start("day", now, "Europe/Berlin"), "2026-03-28T23:00:00Z", "the clocks change later on this day");
        assert_eq!(start("week", now, "Europe/Berlin"), "2026-03-22T23:00:00Z", "29 March is a Sunday");
        assert_eq!(start("month", now, "America/New_York"), "2026-03-01T05:00:00Z");
    }

    #[test]
    fn the_two_hours_of_the_end_of_summer_time_are_different_periods() {
        assert_eq!(start("hour", "2026-10-25T00:30:00Z", "Europe/Berlin"), "2026-10-25T00:00:00Z");
        assert_eq!(start("hour", "2026-10-25T01:30:00Z", "Europe/Berlin"), "2026-10-25T01:00:00Z");
    }

    #[test]
    fn fixed_periods_do_not_depend_on_the_time_zone() {
        for zone in ["UTC", "Asia/Kolkata"] {
            assert_eq!(start("2h", "2026-01-01T03:59:59.9Z", zone), "2026-01-01T02:00:00Z");
            assert_eq!(start("7200", "2026-01-01T03:59:59.9Z", zone), "2026-01-01T02:00:00Z");
            assert_eq!(start("minute", "2026-01-01T03:59:59.9Z", zone), "2026-01-01T03:59:00Z");
        }
    }

    #[test]
    fn other_periods_and_zones_are_refused() {
        for text in ["", "0", "0.5s", "fortnight", "@reboot", "-1h", "d\0y", "9999999999999d"] {
            let error = Period::new(text).unwrap_err();
            assert_eq!(error.status(), Status::Invalid);
            assert!(error.message().starts_with("period is \"") && error.message().contains("; expected minute, hour"));
        }
        for zone in ["", "Mars/Base", "../../etc/passwd", "U\0C"] {
            let error = Period::new("day").unwrap().in_zone(zone).unwrap_err();
            assert_eq!(error.status(), Status::Invalid);
            assert!(error.message().starts_with("zone is \"") && error.message().ends_with("Europe/Berlin or UTC"));
        }
    }

    #[test]
    fn a_time_that_a_record_cannot_contain_is_refused() {
        let late = SystemTime::UNIX_EPOCH + Duration::from_secs(300_000_000_000);
        assert_eq!(Period::new("day").unwrap().start(late).unwrap_err().status(), Status::Internal);
    }
}
