//! What `hold` prints when it has acquired the lock: the way to the caller, and the JSON object.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use serde_json::{Map, Value, json};

use super::bound::{Bound, is_ready};
use crate::exit::{Exit, Failure};
use crate::run::Variables;

pub(crate) const UNPRINTED: &str = "the lock was released before its report could be printed";

/// What the process that prints the report sends back before it prints the last piece.
pub(crate) const CONFIRMATION: u8 = b'\n';

/// The number of bytes that a pipe takes without a wait, if it accepts bytes at all (`PIPE_BUF`).
pub(crate) const PIECE: usize = 4096;

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
        is_ready(PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::empty()))
    }

    /// Sends the report. Fails if the caller has ended, because no process would then know the lock.
    pub(crate) fn send(self, text: &str) -> Result<Delivery, Failure> {
        let Self::Caller(mut socket) = self else { return Ok(Delivery::Unprinted(text.as_bytes().to_vec())) };
        let sent = socket.write_all(text.as_bytes()).and_then(|()| socket.shutdown(Shutdown::Write));
        sent.and_then(|()| socket.set_nonblocking(true)).map_err(|_| Failure::new(Exit::Busy, UNPRINTED))?;
        Ok(Delivery::Unconfirmed(socket))
    }
}

/// How far the delivery of a report is.
#[derive(Debug)]
pub(crate) enum Delivery {
    /// The caller has not confirmed the report yet.
    Unconfirmed(UnixStream),
    /// This process has not printed this part yet, because standard output is full.
    Unprinted(Vec<u8>),
    Done,
}

impl Delivery {
    /// The descriptor that becomes ready when the delivery can continue.
    pub(crate) fn source(&self) -> Option<PollFd<'_>> {
        match self {
            Self::Unconfirmed(socket) => Some(PollFd::new(socket, PollFlags::IN)),
            Self::Unprinted(_) => Some(standard_output()),
            Self::Done => None,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// Continues the delivery without a wait. Fails if no process can know the lock any more.
    pub(crate) fn advance(&mut self) -> Result<(), Failure> {
        match self {
            Self::Unconfirmed(socket) => match socket.read(&mut [0]) {
                Ok(1..) => *self = Self::Done,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Ok(0) | Err(_) => return Err(Failure::new(Exit::Busy, UNPRINTED)),
            },
            Self::Unprinted(rest) => {
                while !rest.is_empty() && is_ready(standard_output()) {
                    let written = write_piece(rest)?;
                    rest.drain(..written);
                }
                if rest.is_empty() {
                    *self = Self::Done;
                }
            }
            Self::Done => {}
        }
        Ok(())
    }
}

/// The source that is ready when standard output takes a piece without a wait.
pub(crate) fn standard_output() -> PollFd<'static> {
    PollFd::from_borrowed_fd(rustix::stdio::stdout(), PollFlags::OUT)
}

/// Writes the first piece of a text to standard output, and returns the number of bytes written. The buffer of the
/// standard library is not used: it hides that standard output is not open for writing.
pub(crate) fn write_piece(text: &[u8]) -> Result<usize, Failure> {
    match rustix::io::write(rustix::stdio::stdout(), text.get(..PIECE).unwrap_or(text)) {
        Ok(written) => Ok(written),
        Err(Errno::INTR | Errno::AGAIN) => Ok(0),
        Err(error) => Err(Failure::system("writing to standard output", error)),
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
    fn report_that_is_read_but_not_confirmed_fails() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let mut delivery = ReportTarget::Caller(writer).send("{}\n").unwrap();
        assert_eq!(io::read_to_string(&mut reader).unwrap(), "{}\n");
        assert!(delivery.advance().is_ok() && !delivery.is_done());
        drop(reader);
        assert_eq!(delivery.advance().unwrap_err().exit, Exit::Busy);
    }

    #[test]
    fn confirmation_counts_after_the_end_of_the_caller() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let mut delivery = ReportTarget::Caller(writer).send("{}\n").unwrap();
        io::read_to_string(&mut reader).unwrap();
        reader.write_all(&[CONFIRMATION]).unwrap();
        drop(reader);
        assert!(delivery.advance().is_ok() && delivery.is_done());
    }
}
