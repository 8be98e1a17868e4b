//! What is measured: who wants which lock, and for how long.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::driver::Order;

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// One thread, one path: nobody else wants it.
    Alone,
    /// Two processes, one path; each holds it not at all, or for a while.
    TwoProcesses { holds: bool },
    /// So many waiters in one process, one path.
    Crowd(usize),
    /// Eight threads in one process, eight paths, one session.
    EightPaths,
}

/// How long [`Workload::TwoProcesses`] hold, if they do.
const HOLD: Duration = Duration::from_millis(5);

impl Workload {
    /// All that have a name; the default on the server that forces nothing to the disk.
    pub(crate) const ALL: [Self; 7] = [
        Self::Alone,
        Self::TwoProcesses { holds: false },
        Self::TwoProcesses { holds: true },
        Self::Crowd(8),
        Self::Crowd(64),
        Self::Crowd(256),
        Self::EightPaths,
    ];

    /// The default on the server that forces its log to the disk. The other workloads would repeat what these show of the disk.
    pub(crate) const WITH_FSYNC: [Self; 4] =
        [Self::Alone, Self::TwoProcesses { holds: false }, Self::Crowd(64), Self::EightPaths];

    /// The workloads of a name, or of `w3`, which means all crowds.
    pub(crate) fn parse(word: &str) -> Result<Vec<Self>, String> {
        let word = word.to_ascii_lowercase();
        let found: Vec<Self> = Self::ALL.into_iter().filter(|of| of.name() == word || of.family() == word).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let crowd = word.strip_prefix("w3-").and_then(|count| usize::from_str(count).ok()).filter(|&count| count > 0);
        crowd.map(|count| vec![Self::Crowd(count)]).ok_or_else(|| format!("no such workload: {word}"))
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::Crowd(count) => format!("{}-{count}", self.family()),
            _ => self.family().to_owned(),
        }
    }

    /// The name as the page writes it.
    pub(crate) fn short(self) -> String {
        self.name().replacen('w', "W", 1)
    }

    /// The name without numbers.
    pub(crate) fn family(self) -> &'static str {
        match self {
            Self::Alone => "w1",
            Self::TwoProcesses { holds: false } => "w2",
            Self::TwoProcesses { holds: true } => "w2h",
            Self::Crowd(_) => "w3",
            Self::EightPaths => "w4",
        }
    }

    pub(crate) fn processes(self) -> usize {
        if matches!(self, Self::TwoProcesses { .. }) { 2 } else { 1 }
    }

    /// What each process is to do.
    pub(crate) fn order(self, address: String, base: String) -> Order {
        let (workers, paths) = match self {
            Self::Alone | Self::TwoProcesses { .. } => (1, 1),
            Self::Crowd(count) => (count, 1),
            Self::EightPaths => (8, 8),
        };
        let hold = if self == (Self::TwoProcesses { holds: true }) { HOLD } else { Duration::ZERO };
        Order { address, base, workers, paths, hold }
    }

    /// Whether who wants the lock has to wait for others.
    pub(crate) fn is_contended(self) -> bool {
        matches!(self, Self::TwoProcesses { .. } | Self::Crowd(_))
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alone => write!(f, "W1: one thread, one path"),
            Self::TwoProcesses { holds: false } => write!(f, "W2: two processes, one path, hold 0"),
            Self::TwoProcesses { holds: true } => write!(f, "W2h: two processes, one path, hold 5 ms"),
            Self::Crowd(count) => write!(f, "W3: {count} waiters, one path"),
            Self::EightPaths => write!(f, "W4: eight threads, eight paths, one session"),
        }
    }
}

impl Serialize for Workload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}
