//! Determines what an operation waits for. The program can query this information, and the messages of timeouts contain
//! it.

use std::time::Duration;

use super::interface::{LockId, OpId, Recipe};
use super::owner::Owner;
use super::state::{Acquire, Attempt, Engine, Op, OpKind};
use crate::recipe::Blocker;
use crate::time::Time;

/// The reason why an acquire waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum WaitsFor {
    /// The acquire waits for a connection to a server. The acquire keeps its position in the queue while the session
    /// exists.
    Connection = 0,
    /// The acquire waits for an answer of the server.
    Server = 1,
    /// The acquire waits for the nodes ahead in the queue.
    Node = 2,
    /// The acquire waits for leases that other owners hold.
    Leases = 3,
    /// The acquire waits until the shared count increases, because the semaphore has too few leases.
    Count = 4,
    /// The acquire waits for another hold of its owner, because the session lease of this hold has ended. The wait ends
    /// when the hold is safe again or lost.
    OwnHold = 5,
}

/// Describes a pending acquire. The data comes from this process, without a request to a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Waiting {
    /// The reason why the acquire waits.
    pub waits_for: WaitsFor,
    /// The owner for which the acquire was started.
    pub owner: Owner,
    /// The path of the node that the acquire created, without the chroot. If the acquire has several nodes, this is the
    /// path of the first node that has to wait.
    pub node_path: Option<String>,
    /// The path of the nearest node ahead, of the directory of the leases, or of the node of the count. The path does
    /// not contain the client's chroot. The value is `None` if the client does not know the path. Without a connection,
    /// the value is the last known path.
    pub ahead: Option<String>,
    /// The id of the session that owns the nearest node ahead, or 0 if the session is not known.
    pub session_id: i64,
    /// The number of nodes ahead, the number of leases that other owners must release, or the number of missing leases.
    /// The number comes from the last check. The value 0 means that the number is not known.
    pub count: u64,
    /// The time for which the acquire has already waited.
    pub waited: Duration,
    /// The maximum time for which the acquire will continue to wait, or `None` if it has no limit.
    pub left: Option<Duration>,
}

/// The reason why an operation waits. The reason is never a missing connection, which the engine checks separately.
pub(super) enum WaitReason<'a> {
    /// The reason is not known yet.
    Unknown {
        own: Option<&'a str>,
    },
    Blocked {
        own: Option<&'a str>,
        blocker: Blocker<'a>,
        /// True if the operation waits in the inner mutex of a semaphore. The node ahead does not hold leases yet.
        is_inner_mutex: bool,
    },
    /// The shared count at this full path is less than the number of leases that the operation needs.
    Count {
        path: String,
        wanted: u32,
        max_leases: i32,
    },
    OwnHold {
        own: Option<&'a str>,
    },
    /// The operation waits behind the node of its cohort.
    Cohort {
        node: &'a str,
        is_holder: bool,
        /// The number of nodes ahead of the node that represents the cohort.
        ahead_count: usize,
    },
}

impl Engine {
    /// Returns the operations that wait for a lock, in the order in which they began.
    pub fn waiting(&self, now: Time, lock: LockId) -> Vec<Waiting> {
        let mut calls = self.ops_of_lock(lock);
        calls.sort_unstable();
        calls.into_iter().filter_map(|op| self.waiting_op(now, self.ops.get(&op)?)).collect()
    }

    /// Sets the start time of an operation to `started`, because the operation is one step of an acquire that began
    /// earlier.
    pub fn set_started(&mut self, op: OpId, started: Time) {
        if let Some(op) = self.ops.get_mut(&op) {
            op.started = started;
        }
    }

    fn waiting_op(&self, now: Time, op: &Op) -> Option<Waiting> {
        let OpKind::Acquire(acquire) = &op.kind else { return None };
        let reason = self.wait_reason(acquire);
        let (waits_for, own, ahead, session_id, count) = match &reason {
            WaitReason::Unknown { own } => (WaitsFor::Server, *own, None, 0, 0),
            WaitReason::OwnHold { own } => (WaitsFor::OwnHold, *own, None, 0, 0),
            WaitReason::Cohort { node, ahead_count, .. } => {
                let count = u64::try_from(*ahead_count).unwrap_or(u64::MAX).saturating_add(1);
                (WaitsFor::Node, None, Some(*node), self.session.id(), count)
            }
            WaitReason::Count { path, wanted, max_leases } => {
                let missing = i64::from(*wanted) - i64::from(*max_leases);
                (WaitsFor::Count, None, Some(path.as_str()), 0, missing.unsigned_abs())
            }
            WaitReason::Blocked { own, blocker: Blocker::Predecessor { node, ahead_count, info, .. }, .. } => {
                let session = info.map_or(0, |seen| seen.session_id);
                (WaitsFor::Node, *own, Some(*node), session, u64::try_from(*ahead_count).unwrap_or(u64::MAX))
            }
            WaitReason::Blocked { own, blocker: Blocker::TooFewLeases { directory, taken, max }, .. } => {
                let too_many = i64::try_from(*taken).unwrap_or(i64::MAX) - i64::from(*max);
                (WaitsFor::Leases, *own, Some(*directory), 0, u64::try_from(too_many).unwrap_or_default())
            }
        };
        let waits_for = if self.session.is_connected() { waits_for } else { WaitsFor::Connection };
        let path = |full: &str| full.get(self.chroot.path.len()..).unwrap_or_default().to_owned();
        Some(Waiting {
            waits_for,
            owner: acquire.owner,
            node_path: own.map(path),
            ahead: ahead.map(path),
            session_id,
            count,
            waited: now - op.started,
            left: op.deadline.map(|deadline| deadline - now),
        })
    }

    pub(super) fn wait_reason(&self, acquire: &Acquire) -> WaitReason<'_> {
        let machine_id = match acquire.attempt {
            Attempt::NotStarted => return self.missing_leases_reason(acquire),
            Attempt::Reentering => return WaitReason::OwnHold { own: None },
            Attempt::WaitingInCohort => return self.cohort_wait_reason(acquire.lock),
            Attempt::CountingLeases(_) => return WaitReason::Unknown { own: None },
            Attempt::Queues { contender, .. } | Attempt::InnerMutex(contender) => contender,
            Attempt::Leases { leases, .. } => leases,
        };
        let Some(contender) = self.machines.contender(machine_id) else {
            return WaitReason::Unknown { own: None };
        };
        let own = contender.node_paths().next();
        match contender.blocker() {
            Some((own, blocker)) => {
                let is_inner_mutex = matches!(acquire.attempt, Attempt::InnerMutex(_));
                WaitReason::Blocked { own, blocker, is_inner_mutex }
            }
            // The contender has acquired its locks, but the acquire still waits, because the state of another hold of
            // its owner is unknown.
            None if contender.is_acquired() => WaitReason::OwnHold { own },
            None => WaitReason::Unknown { own },
        }
    }

    /// Returns the reason why an acquire without a contender waits. The acquire may need more leases than the count
    /// allows.
    fn missing_leases_reason(&self, acquire: &Acquire) -> WaitReason<'_> {
        let semaphore = self.semaphore_of(acquire.lock);
        let known = semaphore.and_then(|semaphore| self.lease_counts.get(&semaphore)?.value);
        let recipe = semaphore.and_then(|semaphore| self.locks.get(&semaphore)).map(|lock| &lock.recipe);
        match (recipe, known) {
            (Some(Recipe::CountedSemaphore { count_path, .. }), Some(max_leases))
                if acquire.needs_more_than(max_leases) =>
            {
                let path = format!("{}{count_path}", self.chroot.path);
                WaitReason::Count { path, wanted: acquire.quantity, max_leases }
            }
            _ => WaitReason::Unknown { own: None },
        }
    }
}

impl WaitReason<'_> {
    /// Returns a text for messages that describes the reason, or `None` if the reason is not known. The paths in the
    /// text do not contain the chroot.
    pub(super) fn describe(&self, chroot: &str) -> Option<String> {
        let path = |full: &str| full.get(chroot.len()..).unwrap_or_default().to_owned();
        Some(match self {
            Self::Unknown { .. } | Self::OwnHold { .. } => return None,
            Self::Cohort { node, is_holder: true, .. } => {
                format!("held by another owner of this process, with the node {}", path(node))
            }
            Self::Cohort { node, is_holder: false, .. } => {
                format!("other owners of this process are ahead, with the node {}", path(node))
            }
            Self::Count { path: count, wanted, max_leases } => {
                let needed = if *wanted == 1 { "1 lease is".to_owned() } else { format!("{wanted} leases are") };
                format!("{needed} needed, but the shared count {} allows only {max_leases}", path(count))
            }
            Self::Blocked { blocker: Blocker::TooFewLeases { taken, max, .. }, .. } => {
                let leases = if *taken == 1 { "lease" } else { "leases" };
                format!("{taken} {leases} would be in use, but the maximum is {max}")
            }
            Self::Blocked {
                blocker: Blocker::Predecessor { node, ahead_count, is_holder, info },
                is_inner_mutex,
                ..
            } => {
                let owner = info.map_or_else(String::new, |info| {
                    let data = String::from_utf8_lossy(&info.data);
                    format!(" (session {:#x}, data {:?})", info.session_id, data)
                });
                let node = path(node);
                match *is_holder && !is_inner_mutex {
                    true => format!("held by {node}{owner}"),
                    false => format!("{ahead_count} ahead in the queue, the nearest is {node}{owner}"),
                }
            }
        })
    }
}
