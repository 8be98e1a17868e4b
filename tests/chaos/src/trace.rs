//! What a program wrote down while it ran: a line for each thing, with the time of the host's one clock (CLOCK_MONOTONIC,
//! nanoseconds), which nobody tampers with.
//!
//! Where a line claims that something is safe, its time was taken before the call that said so.

use std::fmt;

/// A moment of the host's clock, in nanoseconds.
pub type Nanos = u64;

/// A line of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When.
    pub at: Nanos,
    /// Which thread of the program; 0 is its main one.
    pub thread: u32,
    /// What happened.
    pub what: What,
}

/// What a program did or heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// It has a client, with a session of so many milliseconds, and is told of events or not.
    Begin {
        /// The session timeout.
        timeout_ms: u64,
        /// Whether it has an event handler.
        hears_events: bool,
    },
    /// It is about to ask for a lock, with a limit in milliseconds, -1 for none.
    Call {
        /// The lock's path.
        path: String,
        /// How it excludes others.
        stance: Stance,
        /// The limit.
        limit_ms: i64,
    },
    /// It was given it.
    Got {
        /// The lock's path.
        path: String,
        /// The fencing token.
        token: i64,
    },
    /// It was not given it.
    Failed {
        /// The lock's path.
        path: String,
        /// The status, a `ZKL_E_*`.
        status: i32,
    },
    /// It looked at what it has: is it held, for how long will it be, how does it stand?
    Look {
        /// Of which hold.
        token: i64,
        /// Whether it is held, asked at the line's own time.
        is_held: bool,
        /// When it asked how long.
        left_at: Nanos,
        /// How long, in milliseconds.
        left_ms: u64,
        /// How it stands, a `ZKL_LOCK_*`.
        state: i32,
        /// When all was answered.
        done_at: Nanos,
    },
    /// It is about to give a hold up.
    Leave {
        /// Which.
        token: i64,
        /// Whether it waits for the server's word.
        waits: bool,
    },
    /// It has given it up.
    Left {
        /// Which.
        token: i64,
        /// The status: 0 or a `ZKL_E_*`.
        status: i32,
    },
    /// It was told how a hold stands.
    LockEvent {
        /// The lock's path.
        path: String,
        /// Which hold.
        token: i64,
        /// How it stood, a `ZKL_LOCK_*`.
        previous: i32,
        /// How it stands.
        state: i32,
    },
    /// It was told how its session stands.
    ClientEvent {
        /// How it stood, a `ZKL_STATE_*`.
        previous: i32,
        /// How it stands.
        state: i32,
    },
    /// Its client is freed, and so many threads of the library are left.
    End {
        /// How many.
        threads: u32,
    },
}

/// Whom a hold excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stance {
    /// Everybody: a mutex, a writer, several mutexes as one.
    Exclusive,
    /// Writers.
    Shared,
    /// Nobody, until so many are in.
    Leases(usize),
}

impl Line {
    /// Reads a line.
    pub fn parse(text: &str) -> Result<Self, String> {
        Words(text.split(' ')).line().ok_or_else(|| format!("not a line of a trace: {text:?}"))
    }
}

/// Reads a whole trace. The last line is left out where its writer was killed before it was whole.
pub fn parse(text: &str) -> Result<Vec<Line>, String> {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(Line::parse).collect()
}

struct Words<'a>(std::str::Split<'a, char>);

impl Words<'_> {
    fn line(mut self) -> Option<Line> {
        let line = Line { at: self.number()?, thread: self.number()?, what: self.what()? };
        self.0.next().is_none().then_some(line)
    }

    fn what(&mut self) -> Option<What> {
        Some(match self.0.next()? {
            "begin" => What::Begin { timeout_ms: self.number()?, hears_events: self.flag()? },
            "call" => What::Call { path: self.text()?, stance: self.stance()?, limit_ms: self.number()? },
            "got" => What::Got { path: self.text()?, token: self.number()? },
            "failed" => What::Failed { path: self.text()?, status: self.number()? },
            "look" => What::Look {
                token: self.number()?,
                is_held: self.flag()?,
                left_at: self.number()?,
                left_ms: self.number()?,
                state: self.number()?,
                done_at: self.number()?,
            },
            "leave" => What::Leave { token: self.number()?, waits: self.flag()? },
            "left" => What::Left { token: self.number()?, status: self.number()? },
            "lock" => What::LockEvent {
                path: self.text()?,
                token: self.number()?,
                previous: self.number()?,
                state: self.number()?,
            },
            "client" => What::ClientEvent { previous: self.number()?, state: self.number()? },
            "end" => What::End { threads: self.number()? },
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

    fn stance(&mut self) -> Option<Stance> {
        match self.0.next()? {
            "exclusive" => Some(Stance::Exclusive),
            "shared" => Some(Stance::Shared),
            leases => leases.strip_prefix("leases:")?.parse().ok().map(Stance::Leases),
        }
    }
}

impl fmt::Display for Stance {
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
        let call = What::Call { path: "/a".to_owned(), stance: Stance::Leases(2), limit_ms: -1 };
        assert_eq!(lines[0], Line { at: 5, thread: 1, what: call });
        assert_eq!(lines[1].what, What::Got { path: "/a".to_owned(), token: 12 });
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn what_is_no_line_is_an_error() {
        for text in ["5 1 got /a", "5 1 got /a 12 13", "5 1 sang /a 12", "5 1 look 12 2 10 20 1 30", "x 1 end 0"] {
            assert!(parse(&format!("{text}\n")).is_err(), "{text}");
        }
    }
}
