//! The periods of `--once-per`. This file uses no clock: the caller passes the time.

use jiff::tz::TimeZone;
use jiff::{Error, Span, Timestamp};

use crate::duration;
use crate::exit::Failure;

/// A division of time into periods. In each period, a job runs at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// Periods of a fixed length in seconds. They are counted from 1970-01-01 00:00 UTC, so all hosts have the same
    /// periods.
    Seconds(i64),
    Hour,
    Day,
    /// A week begins on Monday.
    Week,
    Month,
}

impl Schedule {
    /// Parses a period of the command line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "minute" => return Ok(Self::Seconds(60)),
            "hour" | "@hourly" => return Ok(Self::Hour),
            "day" | "@daily" | "@midnight" => return Ok(Self::Day),
            "week" | "@weekly" => return Ok(Self::Week),
            "month" | "@monthly" => return Ok(Self::Month),
            _ => {}
        }
        let period = duration::parse(text).ok().filter(|period| period.subsec_nanos() == 0);
        match period.map(|period| period.as_secs()) {
            Some(seconds @ 1..) => Ok(Self::Seconds(i64::try_from(seconds).unwrap_or(i64::MAX))),
            _ => Err("expected minute, hour, day, week, month, @hourly, @daily, @weekly, @monthly, or whole seconds \
                      such as 30m or 2h"
                .to_owned()),
        }
    }

    /// Returns the beginning of the period that contains `now`.
    pub(crate) fn period_start(self, now: Timestamp, zone: &TimeZone) -> Result<Timestamp, Error> {
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

/// Parses the name of a time zone.
pub(crate) fn zone(name: &str) -> Result<TimeZone, String> {
    TimeZone::get(name).map_err(|_| "expected the name of a time zone, for example Europe/Berlin or UTC".to_owned())
}

/// Returns the time zone of this host. An unknown zone in the variable `TZ` is an error: with another zone, the periods
/// would be others than those that the user wants.
pub(crate) fn zone_of_host() -> Result<TimeZone, Failure> {
    let zone = TimeZone::try_system();
    match (zone, std::env::var_os("TZ")) {
        (Ok(zone), _) => Ok(zone),
        (Err(_), Some(name)) => Err(Failure::usage(format!(
            "the variable TZ is {name:?}; expected the name of a time zone, for example Europe/Berlin or UTC"
        ))),
        // A host without a configured zone has UTC.
        (Err(_), None) => Ok(TimeZone::system()),
    }
}

/// Writes a time for a person.
pub(crate) fn show_time(time: Timestamp, zone: &TimeZone) -> String {
    time.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(period: &str, now: &str, zone: &str) -> String {
        let zone = TimeZone::get(zone).unwrap();
        let start = Schedule::parse(period).unwrap().period_start(now.parse().unwrap(), &zone).unwrap();
        start.to_string()
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
            assert_eq!(start("minute", "2026-01-01T03:59:59.9Z", zone), "2026-01-01T03:59:00Z");
        }
    }

    #[test]
    fn other_periods_are_refused() {
        for text in ["", "0", "0.5s", "fortnight", "@reboot", "-1h"] {
            assert!(Schedule::parse(text).unwrap_err().starts_with("expected minute, hour"), "{text}");
        }
        assert!(zone("Mars/Base").is_err());
    }
}
