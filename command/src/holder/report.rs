//! What `hold` prints when it has acquired the lock, and how the holder process knows that it is printed. The process that
//! the user has started prints what it reads from a socket, and confirms the report before it prints.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags};
use serde_json::{Map, Value, json};

use super::bound::{Bound, is_ready};
use crate::exit::{Exit, Failure};
use crate::run::Variables;

pub(crate) const UNPRINTED: &str = "the lock was released before its report could be printed";

/// What the process that prints the report sends back before it prints.
pub(crate) const CONFIRMATION: u8 = b'\n';

/// The way of the report to the caller.
#[derive(Debug)]
pub(crate) struct Caller {
    socket: UnixStream,
    is_confirmed: bool,
}

impl Caller {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self { socket, is_confirmed: false }
    }

    /// The descriptor that shows that the caller has ended or has confirmed the report.
    pub(crate) fn source(&self) -> Option<PollFd<'_>> {
        (!self.is_confirmed).then(|| PollFd::new(&self.socket, PollFlags::IN))
    }

    /// Returns whether the caller has ended while it waited for the report.
    pub(crate) fn has_ended(&self) -> bool {
        is_ready(PollFd::new(&self.socket, PollFlags::empty()))
    }

    /// Sends the report. Fails if the caller has ended, because no process would then know the lock.
    pub(crate) fn send(&mut self, text: &str) -> Result<(), Failure> {
        let sent = self.socket.write_all(text.as_bytes()).and_then(|()| self.socket.shutdown(Shutdown::Write));
        sent.and_then(|()| self.socket.set_nonblocking(true)).map_err(|_| unprinted())
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    /// Looks for the confirmation without a wait. Fails if no process can know the lock any more.
    pub(crate) fn look(&mut self) -> Result<(), Failure> {
        if self.is_confirmed {
            return Ok(());
        }
        match self.socket.read(&mut [0]) {
            Ok(1..) => self.is_confirmed = true,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Ok(0) | Err(_) => return Err(unprinted()),
        }
        Ok(())
    }
}

/// The end of a holder process whose report was not printed. The caller prints why.
pub(crate) fn unprinted() -> Failure {
    Failure::new(Exit::Busy, "")
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
    fn a_report_counts_only_with_its_confirmation() {
        let (reader, writer) = UnixStream::pair().unwrap();
        drop(reader);
        assert_eq!(Caller::new(writer).send("{}\n"), Err(unprinted()));
        for is_confirmed in [false, true] {
            let (mut reader, writer) = UnixStream::pair().unwrap();
            let mut caller = Caller::new(writer);
            caller.send("{}\n").unwrap();
            assert_eq!(io::read_to_string(&mut reader).unwrap(), "{}\n");
            assert!(caller.look().is_ok() && !caller.is_confirmed());
            if is_confirmed {
                reader.write_all(&[CONFIRMATION]).unwrap();
            }
            drop(reader);
            assert_eq!(caller.look().is_ok(), is_confirmed);
            assert_eq!(caller.is_confirmed(), is_confirmed);
        }
    }
}
