//! The workloads: how many workers acquire which locks, and for how long they hold them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::driver::PrepareCommand;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// One thread and one path, without competition.
    Uncontended,
    /// Two processes and one path. Each holds the lock not at all or for [`HOLD`].
    TwoProcesses { holds: bool },
    /// This number of waiters in one process, and one path.
    ManyWaiters(usize),
    /// Eight threads in one process, eight paths, one session.
    EightPaths,
}

/// The hold time of [`Workload::TwoProcesses`] with `holds`.
const HOLD: Duration = Duration::from_millis(5);

impl Workload {
    /// All named workloads, which are the default on the server that forces nothing to the disk.
    pub(crate) const ALL: [Self; 7] = [
        Self::Uncontended,
        Self::TwoProcesses { holds: false },
        Self::TwoProcesses { holds: true },
        Self::ManyWaiters(8),
        Self::ManyWaiters(64),
        Self::ManyWaiters(256),
        Self::EightPaths,
    ];

    /// The default workloads on the server that forces its log to the disk. The other workloads would show the same
    /// effect of the disk.
    pub(crate) const WITH_FSYNC: [Self; 4] =
        [Self::Uncontended, Self::TwoProcesses { holds: false }, Self::ManyWaiters(64), Self::EightPaths];

    /// The workload with this name. `w3` stands for all numbers of waiters.
    pub(crate) fn parse(word: &str) -> Result<Vec<Self>, String> {
        let word = word.to_ascii_lowercase();
        let found: Vec<Self> = Self::ALL.into_iter().filter(|of| of.name() == word || of.family() == word).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let crowd = word.strip_prefix("w3-").and_then(|count| usize::from_str(count).ok()).filter(|&count| count > 0);
        crowd.map(|count| vec![Self::ManyWaiters(count)]).ok_or_else(|| format!("no such workload: {word}"))
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::ManyWaiters(count) => format!("{}-{count}", self.family()),
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
            Self::Uncontended => "w1",
            Self::TwoProcesses { holds: false } => "w2",
            Self::TwoProcesses { holds: true } => "w2h",
            Self::ManyWaiters(_) => "w3",
            Self::EightPaths => "w4",
        }
    }

    pub(crate) fn processes(self) -> usize {
        if matches!(self, Self::TwoProcesses { .. }) { 2 } else { 1 }
    }

    /// The parameters of each process.
    pub(crate) fn prepare_command(self, address: String, base: String) -> PrepareCommand {
        let (workers, paths) = match self {
            Self::Uncontended | Self::TwoProcesses { .. } => (1, 1),
            Self::ManyWaiters(count) => (count, 1),
            Self::EightPaths => (8, 8),
        };
        let hold = if self == (Self::TwoProcesses { holds: true }) { HOLD } else { Duration::ZERO };
        PrepareCommand { address, base, workers, paths, hold }
    }

    /// Whether workers have to wait for each other.
    pub(crate) fn is_contended(self) -> bool {
        matches!(self, Self::TwoProcesses { .. } | Self::ManyWaiters(_))
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uncontended => write!(f, "W1: one thread, one path"),
            Self::TwoProcesses { holds: false } => write!(f, "W2: two processes, one path, hold 0"),
            Self::TwoProcesses { holds: true } => write!(f, "W2h: two processes, one path, hold 5 ms"),
            Self::ManyWaiters(count) => write!(f, "W3: {count} waiters, one path"),
            Self::EightPaths => write!(f, "W4: eight threads, eight paths, one session"),
        }
    }
}

impl Serialize for Workload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}
