//! The timers of an engine. The session and the directory caches have timers of their own.

use std::collections::{BTreeMap, BTreeSet};

use super::interface::OpId;
use crate::session::MachineId;
use crate::time::Time;

/// The action that the engine performs at a time. The engine performs simultaneous actions in the order of these
/// variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Fails the operation, because its deadline has expired.
    Deadline(OpId),
    /// Repeats a request that a server has refused.
    Retry(MachineId),
    /// Lets a contender join whose acquire has lost nodes before.
    Join(MachineId),
    /// Checks again whether the owner of a contender may re-enter the lock.
    ReentryCheck(MachineId),
    /// Searches for a deadlock of an operation that waits in several queues.
    DeadlockCheck(OpId),
    /// Verifies the holds whose nodes the client does not watch yet.
    HoldCheck,
}

/// A table of timers. Each timer is set at most once.
#[derive(Debug, Default)]
pub(super) struct TimerTable {
    by_time: BTreeSet<(Time, Timer)>,
    times: BTreeMap<Timer, Time>,
}

impl TimerTable {
    /// Sets a timer. If the timer is already set, the new time replaces the old one.
    pub(super) fn set(&mut self, timer: Timer, at: Time) {
        if let Some(previous) = self.times.insert(timer, at) {
            self.by_time.remove(&(previous, timer));
        }
        self.by_time.insert((at, timer));
    }

    pub(super) fn stop(&mut self, timer: Timer) {
        if let Some(at) = self.times.remove(&timer) {
            self.by_time.remove(&(at, timer));
        }
    }

    pub(super) fn stop_all_except_deadlines(&mut self) {
        self.by_time.retain(|(_, timer)| matches!(timer, Timer::Deadline(_)));
        self.times.retain(|timer, _| matches!(timer, Timer::Deadline(_)));
    }

    pub(super) fn is_set(&self, timer: Timer) -> bool {
        self.times.contains_key(&timer)
    }

    /// Returns the time of the earliest timer.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.by_time.first().map(|&(at, _)| at)
    }

    /// Removes and returns the earliest timer whose time has come.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<Timer> {
        let &(at, timer) = self.by_time.first().filter(|&&(at, _)| at <= now)?;
        self.by_time.remove(&(at, timer));
        self.times.remove(&timer);
        Some(timer)
    }
}
