//! The state of the programs whose tasks acquire several locks step by step, through one or two clients of one process.
//! The code in `world/stepwise.rs` runs the tasks. The code in this file does not use clients or the world.

use std::collections::BTreeMap;

use zklock_core::engine::{LockId, Recipe};
use zklock_core::steps::{CallId, Steps};
use zklock_core::time::Time;

use crate::checker::{Holder, TokenPair};

pub(crate) struct Program {
    pub(crate) clients: Vec<usize>,
    pub(crate) member_locks: Vec<MemberLock>,
    pub(crate) tasks: Vec<Task>,
    /// The holds of this program that were reported to the checker.
    pub(crate) granted: BTreeMap<Holder, TokenPair>,
}

/// A lock of one client.
pub(crate) struct MemberLock {
    pub(crate) client: usize,
    pub(crate) lock: LockId,
    pub(crate) path: usize,
    pub(crate) recipe: Recipe,
}

pub(crate) struct Task {
    pub(crate) owner: u64,
    pub(crate) rounds: u32,
    pub(crate) phase: Phase,
}

pub(crate) enum Phase {
    Idle,
    Acquiring(Box<Acquire>),
    Holding(Vec<MultiStep>),
    /// Waits for the results of this number of releases.
    Leaving(usize),
    Done,
}

pub(crate) struct Acquire {
    pub(crate) steps: Steps,
    /// The locks, in the order in which they are acquired.
    pub(crate) steps_to_take: Vec<MultiStep>,
    pub(crate) time_limit: TimeLimit,
    pub(crate) deadline: Option<Time>,
    pub(crate) may_be_canceled: bool,
}

/// One lock, or several locks of one client that are joined in one transaction.
#[derive(Debug, Clone)]
pub(crate) struct MultiStep {
    pub(crate) client: usize,
    pub(crate) lock: LockId,
    /// Indices of the locks in `Program::member_locks`.
    pub(crate) members: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeLimit {
    None,
    OneLook,
    Deadline,
}

/// An operation of a client for a task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskCall {
    pub(crate) program: usize,
    pub(crate) task: usize,
    pub(crate) purpose: CallPurpose,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum CallPurpose {
    Step(CallId),
    Release,
    /// Releases a member lock; the result changes nothing.
    GiveBack,
}
