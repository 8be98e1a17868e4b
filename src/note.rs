//! What is worth a line in a log. The pure core writes notes, with no idea who reads them, and as many as the shell says that somebody wants;
//! the shell tells them when its locks are free.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::proto::{Code, EventKind, OpCode};

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i32)]
pub enum Level {
    /// Somebody has to do something.
    Error = 1,
    /// Something was lost, or may soon be.
    Warn = 2,
    /// What becomes of sessions and connections.
    Info = 3,
    /// What becomes of each acquire and each hold.
    Debug = 4,
    /// Each request.
    Trace = 5,
}

/// Something that happened. Paths of locks are as the program gave them, those of nodes are full.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "their names are the fields of the line")]
pub enum Note {
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
    SessionClosed {
        session: i64,
    },
    Sent {
        op: OpCode,
        xid: i32,
        path: Option<String>,
    },
    Answered {
        op: OpCode,
        xid: i32,
        zxid: i64,
        took: Duration,
        failure: Option<Code>,
    },
    Fired {
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
    GaveUp {
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
    LockStands {
        path: Arc<str>,
        token: i64,
        pass: u32,
        state: &'static str,
    },
    Uncertain {
        path: Arc<str>,
        token: i64,
        pass: u32,
    },
    Lost {
        path: Arc<str>,
        token: i64,
        pass: u32,
        held: Duration,
        cause: &'static str,
    },
    AskedBack {
        path: Arc<str>,
        node: String,
    },
    DeleteRefused {
        error: Error,
    },
    /// So many notes were not kept, since nobody had come for those before.
    Skipped {
        count: u64,
    },
}

/// The notes of one client that nobody has taken yet.
#[derive(Debug, Default)]
pub struct Notes {
    wanted: Option<Level>,
    waiting: VecDeque<Note>,
    skipped: u64,
}

/// So many wait for who tells them.
const LIMIT: usize = 4096;

impl Notes {
    /// From now on notes up to this level are written; `None`: none.
    pub fn want(&mut self, level: Option<Level>) {
        self.wanted = level;
    }

    /// Whether notes of this level are written.
    pub fn wants(&self, level: Level) -> bool {
        Some(level) <= self.wanted
    }

    /// Writes a note, if anybody wants it.
    pub fn add(&mut self, level: Level, note: impl FnOnce() -> Note) {
        if !self.wants(level) {
            return;
        }
        if self.waiting.len() >= LIMIT {
            self.skipped += 1;
            return;
        }
        self.waiting.push_back(note());
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes all there are.
    pub fn take(&mut self) -> VecDeque<Note> {
        let mut notes = std::mem::take(&mut self.waiting);
        let count = std::mem::take(&mut self.skipped);
        notes.extend((count > 0).then_some(Note::Skipped { count }));
        notes
    }
}
