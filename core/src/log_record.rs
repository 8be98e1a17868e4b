//! Log records of the pure core. The core adds records to its log buffer, up to the level that the shell requests. The
//! shell writes the records to the log while the shell holds no lock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use zklock_proto::{Code, EventKind, OpCode};

use crate::error::Error;

/// The importance of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i32)]
pub enum Level {
    /// Problems that need action, for example refused credentials.
    Error = 1,
    /// A lock, leases, a session or a connection was lost, or may soon be lost.
    Warn = 2,
    /// Changes of sessions and connections.
    Info = 3,
    /// Changes of acquire operations and holds.
    Debug = 4,
    /// Each request and each answer.
    Trace = 5,
}

/// A record for the log. The path of a lock is the path that the program passed. The path of a node includes the
/// chroot.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the names are also the field names of the log line")]
pub enum LogRecord {
    Connecting {
        server: String,
    },
    AttemptFailed {
        server: String,
        cause: String,
    },
    SessionBegun {
        server: String,
        session: i64,
        timeout: Duration,
    },
    Reconnected {
        server: String,
        session: i64,
    },
    ConnectionLost {
        server: String,
        session: i64,
        cause: String,
    },
    SessionLost {
        session: i64,
        replaced: bool,
    },
    AuthRefused {
        server: String,
    },
    SaslFailed {
        server: String,
        cause: String,
    },
    /// The shell could not load what it needs for a connection.
    LoadingFailed {
        error: Error,
    },
    /// The server list has changed. `source` is `program` or `ensemble`.
    ServersChanged {
        before: usize,
        after: usize,
        source: &'static str,
    },
    /// The client has left its server, because the server list has changed.
    ServerLeft {
        server: String,
        session: i64,
    },
    /// The client cannot follow the configuration of the ensemble, and keeps its server list.
    ConfigUnusable {
        cause: String,
    },
    SessionClosed {
        session: i64,
    },
    RequestSent {
        op: OpCode,
        xid: i32,
        path: Option<String>,
    },
    ReplyReceived {
        op: OpCode,
        xid: i32,
        zxid: i64,
        took: Duration,
        failure: Option<Code>,
    },
    WatchFired {
        kind: EventKind,
        path: String,
    },
    Acquired {
        path: Arc<str>,
        owner: String,
        token: i64,
        pass: u32,
        waited: Duration,
        handed_over: bool,
    },
    AcquireFailed {
        path: Arc<str>,
        owner: String,
        waited: Duration,
        error: Error,
    },
    Released {
        path: Arc<str>,
        owner: String,
        token: i64,
        pass: u32,
        held: Duration,
    },
    HoldStateChanged {
        path: Arc<str>,
        token: i64,
        pass: u32,
        state: &'static str,
    },
    HoldUncertain {
        path: Arc<str>,
        token: i64,
        pass: u32,
    },
    HoldLost {
        path: Arc<str>,
        token: i64,
        pass: u32,
        held: Duration,
        cause: &'static str,
    },
    RevocationRequested {
        path: Arc<str>,
        node: String,
    },
    DeleteRefused {
        error: Error,
    },
    /// The number of records that the core dropped because the log buffer was full.
    RecordsDropped {
        count: u64,
    },
}

/// The log records of one client that the shell has not written yet.
#[derive(Debug, Default)]
pub struct LogBuffer {
    max_level: Option<Level>,
    records: VecDeque<LogRecord>,
    dropped: u64,
}

/// The largest number of records in a log buffer. The buffer drops further records.
const MAX_BUFFERED_RECORDS: usize = 4096;

impl LogBuffer {
    /// Sets the highest level of the records that the buffer accepts. With `None`, the buffer accepts no records.
    pub fn set_max_level(&mut self, level: Option<Level>) {
        self.max_level = level;
    }

    /// Returns whether the buffer accepts records of this level.
    pub fn is_enabled(&self, level: Level) -> bool {
        Some(level) <= self.max_level
    }

    /// Adds a record if the buffer accepts records of this level.
    pub fn add(&mut self, level: Level, record: impl FnOnce() -> LogRecord) {
        if !self.is_enabled(level) {
            return;
        }
        if self.records.len() >= MAX_BUFFERED_RECORDS {
            self.dropped += 1;
            return;
        }
        self.records.push_back(record());
    }

    /// Returns whether the buffer contains no records.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Removes and returns all records. If the buffer has dropped records, the last record contains their number.
    pub fn take(&mut self) -> VecDeque<LogRecord> {
        let mut records = std::mem::take(&mut self.records);
        let count = std::mem::take(&mut self.dropped);
        records.extend((count > 0).then_some(LogRecord::RecordsDropped { count }));
        records
    }
}
