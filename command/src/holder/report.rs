//! What `hold` prints when it has acquired the lock: the way to the caller, and the JSON object.

use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Map, Value, json};

use super::bound::Bound;
use crate::exit::{Exit, Failure};
use crate::observe::table::answer;
use crate::run::Variables;

pub(crate) const CALLER_ENDED: &str = "the process that needs the lock ended before the lock was acquired";

/// The way of the report to the caller.
#[derive(Debug)]
pub(crate) enum ReportTarget {
    /// The process that the user has started prints what it reads from this pipe.
    Pipe(OwnedFd),
    /// Standard output.
    Standard,
}

impl ReportTarget {
    /// The descriptor that shows that the caller no longer waits.
    pub(crate) fn source(&self) -> Option<PollFd<'_>> {
        match self {
            Self::Pipe(pipe) => Some(PollFd::new(pipe, PollFlags::empty())),
            Self::Standard => None,
        }
    }

    /// Returns whether the caller has ended while it waited for the report.
    pub(crate) fn is_closed(&self) -> bool {
        let Self::Pipe(pipe) = self else { return false };
        let mut source = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::empty())];
        poll(&mut source, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Sends the report. Fails if the caller has ended, because no process would then know the lock.
    pub(crate) fn send(self, text: &str) -> Result<(), Failure> {
        match self {
            Self::Pipe(pipe) => {
                let written = std::fs::File::from(pipe).write_all(text.as_bytes());
                written.map_err(|_| Failure::new(Exit::Busy, CALLER_ENDED))
            }
            Self::Standard => answer(text),
        }
    }
}

/// Writes the variables as JSON. The names are those of the variables, in lower case and without the prefix.
pub(crate) fn to_json(variables: &Variables, pid: i32, bound: &Bound) -> String {
    let mut fields = Map::new();
    fields.insert("pid".to_owned(), pid.into());
    fields.insert("bound_pid".to_owned(), bound.pid().map_or(Value::Null, Value::from));
    for (name, value) in variables.iter() {
        let name = name.trim_start_matches("ZKLOCK_").to_ascii_lowercase();
        let value = match name.as_str() {
            "held" => continue,
            "path" | "node" => json!(value.lines().collect::<Vec<_>>()),
            "fence" => json!(value.lines().filter_map(|token| token.parse::<i64>().ok()).collect::<Vec<_>>()),
            "waited_ms" => json!(value.parse::<u64>().ok()),
            _ => json!(value),
        };
        fields.insert(name, value);
    }
    format!("{}\n", Value::Object(fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_without_a_reader_fails() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(reader);
        assert_eq!(ReportTarget::Pipe(writer).send("{}\n").unwrap_err().exit, Exit::Busy);
    }
}
