//! Durations on the command line and in messages, such as `90`, `1.5s`, `500ms`, `5m`, `2h` and `7d`.

use std::time::Duration;

use jiff::Timestamp;
use zklock::internal::{LONGEST_TIME, time_in_seconds};

/// Parses a duration. A number without a unit is a number of seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let refusal = || "expected a number with a unit, for example 500ms, 10s, 5m, 2h, 1h30m or 1d".to_owned();
    match time_in_seconds(text) {
        Some(time) if time > LONGEST_TIME => Err("expected at most 46000d".to_owned()),
        time => time.ok_or_else(refusal),
    }
}

/// Writes a duration for a person, with one or two units.
pub(crate) fn show(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 if !duration.is_zero() && duration.subsec_millis() != 0 => {
            let text = format!("{:.1}s", duration.as_secs_f64());
            if text == "0.0s" { format!("{}ms", duration.as_millis()) } else { text }
        }
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Writes how long ago something happened. The clock of the server can be ahead of the clock of this host.
pub(crate) fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    let Some(since) = since else { return String::new() };
    show_seconds(Duration::try_from(now.duration_since(since)).unwrap_or_default())
}

/// Writes a duration without parts of a second, for a line that changes once a second.
pub(crate) fn show_seconds(duration: Duration) -> String {
    show(Duration::from_secs(duration.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        for (text, ms) in [
            ("0", 0),
            ("3", 3000),
            ("1.5s", 1500),
            ("250ms", 250),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("1h30m", 5_400_000),
            ("1d2h3m4s5ms", 93_784_005),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in
            ["", "s", "-1", "+1", "1w", "1 s", "1e3", ".", "1..2", "9999999999999d", "inf", "1s1m", "1m30", "1m1m", "m"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_shown_with_at_most_two_units() {
        for (ms, text) in [
            (0, "0s"),
            (40, "40ms"),
            (1200, "1.2s"),
            (12_300, "12s"),
            (75_000, "1m15s"),
            (7_260_000, "2h01m"),
            (90_000_000, "1d01h"),
        ] {
            assert_eq!(show(Duration::from_millis(ms)), text);
        }
    }
}
