//! The trace of a program: one line for each action and event, with its time: nanoseconds of the CLOCK_MONOTONIC of
//! the host. The tests never change this clock.
//!
//! If a line reports that something is safe, its time was taken before the call that reported it.

use std::fmt;

/// A time of the clock of the host, in nanoseconds.
pub type Nanos = u64;

/// A line of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The time.
    pub at: Nanos,
    /// The program thread. The main thread and the event thread have number 0.
    pub thread: u32,
    /// The action or event.
    pub event: TraceEvent,
}

/// An action of a program, or an event that it received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceEvent {
    /// The program has created a client.
    Begin {
        /// The session timeout in milliseconds.
        timeout_ms: u64,
        /// Whether the program has an event handler.
        has_event_handler: bool,
    },
    /// The program is about to acquire a lock.
    Acquire {
        /// The path of the lock.
        path: String,
        /// The holds that it excludes.
        stance: Exclusion,
        /// The time limit in milliseconds, or -1 for none.
        limit_ms: i64,
    },
    /// The acquire succeeded.
    Acquired {
        /// The path of the lock.
        path: String,
        /// The fencing token.
        token: i64,
    },
    /// The acquire failed.
    Failed {
        /// The path of the lock.
        path: String,
        /// The status, a `ZKL_E_*`.
        status: i32,
    },
    /// The program has checked a hold: whether it is held, for how long it remains safe, and its state.
    Check {
        /// The token of the hold.
        token: i64,
        /// Whether the lock was held at the time of the line.
        is_held: bool,
        /// The time at which the program asked for the remaining time.
        remaining_at: Nanos,
        /// The remaining time in milliseconds.
        remaining_ms: u64,
        /// The state, a `ZKL_LOCK_*`.
        state: i32,
        /// The time at which the check had ended.
        done_at: Nanos,
    },
    /// The program is about to release a hold.
    Release {
        /// The token of the hold.
        token: i64,
        /// Whether the release waits for a confirmation by the server.
        waits: bool,
    },
    /// The release has returned.
    Released {
        /// The token of the hold.
        token: i64,
        /// The status: 0 or a `ZKL_E_*`.
        status: i32,
    },
    /// An event has reported a state change of a hold.
    LockEvent {
        /// The path of the lock.
        path: String,
        /// The token of the hold.
        token: i64,
        /// The state before, a `ZKL_LOCK_*`.
        previous: i32,
        /// The state after.
        state: i32,
    },
    /// An event has reported a state change of the session.
    ClientEvent {
        /// The state before, a `ZKL_STATE_*`.
        previous: i32,
        /// The state after.
        state: i32,
    },
    /// The program has freed its client.
    End {
        /// The number of library threads that are left.
        threads: u32,
    },
}

/// The holds that a hold excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exclusion {
    /// All others: the hold of a mutex, a write lock or a multi-lock of mutexes.
    Exclusive,
    /// Exclusive holds: the hold of a read lock.
    Shared,
    /// None, as long as at most this number of leases is granted.
    Leases(usize),
}

impl Line {
    /// Parses a line.
    pub fn parse(text: &str) -> Result<Self, String> {
        LineParser(text.split(' ')).line().ok_or_else(|| format!("not a line of a trace: {text:?}"))
    }
}

/// Parses a whole trace. An incomplete last line is ignored, because its writer was killed.
pub fn parse(text: &str) -> Result<Vec<Line>, String> {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(Line::parse).collect()
}

struct LineParser<'a>(std::str::Split<'a, char>);

impl LineParser<'_> {
    fn line(mut self) -> Option<Line> {
        let line = Line { at: self.number()?, thread: self.number()?, event: self.what()? };
        self.0.next().is_none().then_some(line)
    }

    fn what(&mut self) -> Option<TraceEvent> {
        Some(match self.0.next()? {
            "begin" => TraceEvent::Begin { timeout_ms: self.number()?, has_event_handler: self.flag()? },
            "call" => TraceEvent::Acquire { path: self.text()?, stance: self.stance()?, limit_ms: self.number()? },
            "got" => TraceEvent::Acquired { path: self.text()?, token: self.number()? },
            "failed" => TraceEvent::Failed { path: self.text()?, status: self.number()? },
            "look" => TraceEvent::Check {
                token: self.number()?,
                is_held: self.flag()?,
                remaining_at: self.number()?,
                remaining_ms: self.number()?,
                state: self.number()?,
                done_at: self.number()?,
            },
            "leave" => TraceEvent::Release { token: self.number()?, waits: self.flag()? },
            "left" => TraceEvent::Released { token: self.number()?, status: self.number()? },
            "lock" => TraceEvent::LockEvent {
                path: self.text()?,
                token: self.number()?,
                previous: self.number()?,
                state: self.number()?,
            },
            "client" => TraceEvent::ClientEvent { previous: self.number()?, state: self.number()? },
            "end" => TraceEvent::End { threads: self.number()? },
            _ => return None,
        })
    }

    fn number<T: std::str::FromStr>(&mut self) -> Option<T> {
        self.0.next()?.parse().ok()
    }

    fn text(&mut self) -> Option<String> {
        self.0.next().map(str::to_owned)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.0.next()? {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }
    }

    fn stance(&mut self) -> Option<Exclusion> {
        match self.0.next()? {
            "exclusive" => Some(Exclusion::Exclusive),
            "shared" => Some(Exclusion::Shared),
            leases => leases.strip_prefix("leases:")?.parse().ok().map(Exclusion::Leases),
        }
    }
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Leases(count) => write!(f, "leases:{count}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use super::*;

    #[test]
    fn a_trace_is_read_up_to_a_line_that_was_cut_off() {
        let lines = parse("5 1 call /a leases:2 -1\n7 1 got /a 12\n9 1 look 12 1 10 20").unwrap();
        let call = TraceEvent::Acquire { path: "/a".to_owned(), stance: Exclusion::Leases(2), limit_ms: -1 };
        assert_eq!(lines[0], Line { at: 5, thread: 1, event: call });
        assert_eq!(lines[1].event, TraceEvent::Acquired { path: "/a".to_owned(), token: 12 });
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn malformed_trace_line_is_an_error() {
        for text in ["5 1 got /a", "5 1 got /a 12 13", "5 1 sang /a 12", "5 1 look 12 2 10 20 1 30", "x 1 end 0"] {
            assert!(parse(&format!("{text}\n")).is_err(), "{text}");
        }
    }
}
