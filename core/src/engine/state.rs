//! The data of an engine: its operations, locks and holds. The other files of this directory decide; this file does
//! not.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::interface::{AcquireLimit, Answer, LockId, LockState, Notification, OpId, Recipe};
use super::machines::StateMachines;
use super::metrics::Metrics;
use super::owner::Owner;
use super::timers::TimerTable;
use crate::acl::CreateAcls;
use crate::error::{Error, Result};
use crate::recipe::{Chroot, DirectoryCaches, Removal, Tag};
use crate::session::{ClientState, MachineId, Session};
use crate::time::Time;

/// The engine of one client. The documentation of this module describes its interface.
pub struct Engine {
    pub(super) session: Session<Tag>,
    pub(super) caches: DirectoryCaches,
    pub(super) servers: String,
    pub(super) chroot: Chroot,
    pub(super) acls: CreateAcls,
    pub(super) locks: BTreeMap<LockId, Box<Lock>>,
    pub(super) locks_by_directory: HashMap<Arc<str>, Vec<LockId>>,
    /// The cohorts, by directory.
    pub(super) cohorts: HashMap<Arc<str>, Cohort>,
    pub(super) ops: BTreeMap<OpId, Op>,
    /// Operations that acquire a lock or wait for a change of a hold, sorted by lock and owner.
    pub(super) ops_by_owner: BTreeMap<(LockId, Owner), Vec<OpId>>,
    pub(super) machines: StateMachines,
    pub(super) timers: TimerTable,
    /// Contenders that must wait until other contenders have left before they may join.
    pub(super) held_back: VecDeque<MachineId>,
    /// True while the engine admits contenders that were held back. If a contender ends in the meantime, the engine
    /// must not begin to admit contenders a second time.
    pub(super) is_admitting: bool,
    /// The semaphores whose number of leases the engine watches.
    pub(super) lease_counts: BTreeMap<LockId, LeaseCount>,
    /// True if the engine treats kazoo's locks as contenders of the same queue.
    pub(super) with_kazoo: bool,
    /// True if the engine has detected the end of the session lease and has updated the states of the holds.
    pub(super) is_lease_over: bool,
    pub(super) reported_state: ClientState,
    /// True if the program is closing the client. In this case, the engine grants no locks.
    pub(super) is_closing: bool,
    /// True if the operation of [`Engine::connect`] has failed. The program then drops the client.
    pub(super) has_failed_to_connect: bool,
    pub(super) last_id: u64,
    pub(super) answers: VecDeque<(OpId, Result<Answer>)>,
    pub(super) notifications: VecDeque<Notification>,
    /// The counters that the engine maintains. The engine does not use the other fields of `Metrics`.
    pub(super) metrics: Metrics,
}

pub(super) struct Lock {
    pub(super) path: Arc<str>,
    pub(super) directory: Arc<str>,
    pub(super) recipe: Recipe,
    pub(super) data: Option<Vec<u8>>,
    pub(super) is_revocable: bool,
    /// The maximum number of local hand-overs of one hold, or 0 if the lock belongs to no cohort.
    pub(super) max_passes: u32,
    pub(super) holds: Vec<Hold>,
    /// The multi-locks that contain the lock.
    pub(super) multi_locks: Vec<LockId>,
}

/// The number of leases of a semaphore. The engine watches this number while an operation waits for leases.
pub(super) struct LeaseCount {
    pub(super) machine_id: MachineId,
    pub(super) value: Option<i32>,
}

/// An operation from its start to its answer.
pub(super) struct Op {
    pub(super) kind: OpKind,
    pub(super) started: Time,
    pub(super) deadline: Option<Time>,
}

/// The kind of an operation, with the data that only this kind needs.
pub(super) enum OpKind {
    /// Waits for the first connection. After that, the operation waits for the state machine that checks the chroot.
    Connect {
        machine_id: Option<MachineId>,
    },
    Acquire(Acquire),
    /// Waits until the hold meets a condition.
    HoldWait {
        lock: LockId,
        owner: Owner,
        until: HoldCondition,
    },
    /// Waits until `pending_nodes` nodes are deleted.
    Release {
        lock: LockId,
        pending_nodes: usize,
        /// The first failure.
        failure: Option<Error>,
    },
    /// A query of participants, a fence check or a node request.
    Query {
        machine_id: MachineId,
    },
    Close,
}

/// An acquire from its start to its answer.
pub(super) struct Acquire {
    pub(super) lock: LockId,
    pub(super) owner: Owner,
    /// The number of leases that a semaphore must grant. For other locks, the number is 1.
    pub(super) quantity: u32,
    /// True if the acquire fails instead of waiting for other participants.
    pub(super) try_once: bool,
    /// The limit of local hand-overs when the acquire began.
    pub(super) max_passes: u32,
    pub(super) attempt: Attempt,
    /// True if the acquire had to wait for another contender.
    pub(super) has_waited: bool,
    pub(super) rejoins: Rejoins,
    pub(super) deadlock: DeadlockDetector,
}

/// How often an acquire has lost its nodes, and when it may join again.
#[derive(Debug, Default)]
pub(super) struct Rejoins {
    /// The last pause, or zero.
    pause: Duration,
    /// The time at which the acquire may join again.
    pub(super) at: Time,
}

impl Rejoins {
    /// The longest pause, as a multiple of the first one.
    const GROWTH: u32 = 16;

    /// Records that a contender of the acquire has lost a node. After the first loss, the acquire joins again at once.
    /// After further losses, the pause grows from `first` on: a server whose lists never contain the nodes of this
    /// client would otherwise receive create requests without end.
    pub(super) fn record_loss(&mut self, now: Time, first: Duration) {
        let longest = first * Self::GROWTH;
        let is_new = self.at == Time::default() || now > self.at + longest * 2;
        self.pause = if is_new { Duration::ZERO } else { (self.pause * 2).clamp(first, longest) };
        self.at = now + self.pause;
    }
}

/// The condition that ends a hold wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HoldCondition {
    /// The hold is lost or released.
    Ended,
    /// The hold is safe, lost or released.
    Safe,
    /// The session lease of the hold has ended, or the hold is lost or released.
    Unsafe,
}

/// The progress of an unfinished acquire. Some variants contain the ids of the state machines that work for the
/// acquire.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// No state machine works for the acquire yet. The acquire has not joined a queue, or it needs more leases than the
    /// semaphore has.
    NotStarted,
    /// The owner already holds all locks. The acquire waits until each hold whose session lease has ended is safe again
    /// or lost.
    Reentering,
    /// The acquire waits behind the contender that represents its cohort.
    WaitingInCohort,
    /// The engine is counting the leases that other contenders have taken.
    CountingLeases(MachineId),
    /// A contender represents the acquire in the queues of these locks. Each lock belongs to the slot of the contender
    /// with the same index.
    Queues { contender: MachineId, locks: Vec<LockId> },
    /// A contender represents the acquire in the queue of the inner mutex of a semaphore.
    InnerMutex(MachineId),
    /// One contender has acquired the inner mutex of the semaphore. The other contender waits for the leases.
    Leases { inner_mutex: MachineId, leases: MachineId },
}

pub(super) struct Hold {
    pub(super) owner: Owner,
    /// The acquire that created the hold.
    pub(super) acquired_by: OpId,
    pub(super) hold_count: u32,
    pub(super) machine_id: MachineId,
    pub(super) granted_at: Time,
    pub(super) token: i64,
    /// The number of local hand-overs before this hold.
    pub(super) fencing_pass: u32,
    /// The limit of local hand-overs under the token of this hold.
    pub(super) max_passes: u32,
    pub(super) node_status: NodeStatus,
    pub(super) reported_state: LockState,
    /// The flag of [`Engine::release_flag`], if the program has asked for it.
    pub(super) release_flag: Option<Arc<AtomicBool>>,
}

/// What the client knows about the node of a hold. The engine checks separately whether the session lease is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeStatus {
    /// The client has verified that the node exists.
    Verified,
    /// The connection was lost after the node was last read.
    Unverified,
    /// The session lease has ended since the node was last read.
    UnverifiedSinceLeaseEnd,
    /// The hold is lost.
    Lost(Removal),
}

/// The operations that share one position in the queue of a directory.
#[derive(Debug, Default)]
pub(super) struct Cohort {
    /// The id of the contender that represents the cohort. If this contender is leaving or gone, no contender
    /// represents the cohort.
    pub(super) contender: Option<MachineId>,
    /// The operations that wait behind the contender.
    pub(super) waiting_ops: BTreeSet<OpId>,
}

/// Detects deadlocks of one operation.
#[derive(Debug, Default)]
pub(super) struct DeadlockDetector {
    /// Suspected deadlocks. Each pair consists of two nodes that belong to the same session. The first node holds a
    /// lock for which the operation waits. The second node waits behind a node of the operation.
    pub(super) suspects: BTreeSet<(String, String)>,
    pub(super) interval: Duration,
    /// The pause before the first check, and the shortest pause between two checks. The pause doubles each time the
    /// operation joins its queues again.
    pub(super) pause: Duration,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("servers", &self.servers)
            .field("state", &self.reported_state)
            .finish_non_exhaustive()
    }
}

impl Acquire {
    pub(super) fn new(lock: LockId, owner: Owner, quantity: u32, max_passes: u32, acquire_limit: AcquireLimit) -> Self {
        Self {
            lock,
            max_passes,
            owner,
            quantity,
            try_once: matches!(acquire_limit, AcquireLimit::TryOnce(_)),
            attempt: Attempt::NotStarted,
            has_waited: false,
            rejoins: Rejoins::default(),
            deadlock: DeadlockDetector::default(),
        }
    }
}

impl Attempt {
    /// Returns the contenders that work for the acquire.
    pub(super) fn contenders(&self) -> impl Iterator<Item = MachineId> {
        let (first, second) = match *self {
            Self::NotStarted | Self::Reentering | Self::WaitingInCohort | Self::CountingLeases(_) => (None, None),
            Self::Queues { contender, .. } | Self::InnerMutex(contender) => (Some(contender), None),
            Self::Leases { inner_mutex, leases } => (Some(inner_mutex), Some(leases)),
        };
        first.into_iter().chain(second)
    }
}

impl OpKind {
    /// Returns the lock and the owner of an operation that acquires a lock or waits for a change of a hold.
    pub(super) const fn lock_and_owner(&self) -> Option<(LockId, Owner)> {
        match *self {
            Self::Acquire(Acquire { lock, owner, .. }) | Self::HoldWait { lock, owner, .. } => Some((lock, owner)),
            Self::Connect { .. } | Self::Release { .. } | Self::Query { .. } | Self::Close => None,
        }
    }
}
