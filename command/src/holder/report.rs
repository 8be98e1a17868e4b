//! What `hold` prints when it has acquired the lock: the way to the caller, and the JSON object.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Map, Value, json};

use super::bound::Bound;
use crate::exit::{Exit, Failure};
use crate::observe::table::answer;
use crate::run::Variables;

pub(crate) const CALLER_ENDED: &str = "the process that needs the lock ended before the lock was acquired";

/// What the process that prints the report sends back before it prints.
pub(crate) const CONFIRMATION: u8 = b'\n';

/// The way of the report to the caller.
#[derive(Debug)]
pub(crate) enum ReportTarget {
    /// The process that the user has started prints what it reads from this socket.
    Caller(UnixStream),
    /// Standard output.
    Standard,
}

impl ReportTarget {
    /// The descriptor that shows that the caller no longer waits.
    pub(crate) fn source(&self) -> Option<PollFd<'_>> {
        match self {
            Self::Caller(socket) => Some(PollFd::new(socket, PollFlags::empty())),
            Self::Standard => None,
        }
    }

    /// Returns whether the caller has ended while it waited for the report.
    pub(crate) fn is_closed(&self) -> bool {
        let Self::Caller(socket) = self else { return false };
        let mut source = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::empty())];
        poll(&mut source, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Sends the report. Fails if the caller has ended, because no process would then know the lock.
    pub(crate) fn send(self, text: &str) -> Result<Receipt, Failure> {
        let Self::Caller(mut socket) = self else { return answer(text).map(|()| Receipt(None)) };
        let sent = socket.write_all(text.as_bytes()).and_then(|()| socket.shutdown(Shutdown::Write));
        sent.and_then(|()| socket.set_nonblocking(true)).map_err(|_| Failure::new(Exit::Busy, CALLER_ENDED))?;
        Ok(Receipt(Some(socket)))
    }
}

/// Whether the caller has the report. The socket is closed as soon as the caller has confirmed it.
#[derive(Debug)]
pub(crate) struct Receipt(Option<UnixStream>);

impl Receipt {
    /// The descriptor on which the confirmation arrives, if it has not arrived yet.
    pub(crate) fn source(&self) -> Option<PollFd<'_>> {
        self.0.as_ref().map(|socket| PollFd::new(socket, PollFlags::IN))
    }

    /// Returns whether the caller has ended without a confirmation. No process would then know the lock.
    pub(crate) fn is_refused(&mut self) -> bool {
        let Some(socket) = &mut self.0 else { return false };
        match socket.read(&mut [0]) {
            Ok(1..) => {
                self.0 = None;
                false
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => false,
            Ok(0) | Err(_) => true,
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
        let (reader, writer) = UnixStream::pair().unwrap();
        drop(reader);
        assert_eq!(ReportTarget::Caller(writer).send("{}\n").unwrap_err().exit, Exit::Busy);
    }

    #[test]
    fn report_that_is_read_but_not_confirmed_is_refused() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let mut receipt = ReportTarget::Caller(writer).send("{}\n").unwrap();
        assert_eq!(io::read_to_string(&mut reader).unwrap(), "{}\n");
        assert!(!receipt.is_refused());
        drop(reader);
        assert!(receipt.is_refused());
    }

    #[test]
    fn confirmation_counts_after_the_end_of_the_caller() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let mut receipt = ReportTarget::Caller(writer).send("{}\n").unwrap();
        io::read_to_string(&mut reader).unwrap();
        reader.write_all(&[CONFIRMATION]).unwrap();
        drop(reader);
        assert!(!receipt.is_refused());
        assert!(receipt.source().is_none());
    }
}
