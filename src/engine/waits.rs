//! What a call waits for: for whoever asks, and for the message of a deadline that passed.

use std::time::Duration;

use super::attempt::Attempt;
use super::{Engine, Kind, LockId, Machine, Op, OpId, Owner, Recipe};
use crate::recipe::{Contender, Obstacle, Seen};
use crate::time::Time;

/// What a call that is to acquire something waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum WaitsFor {
    /// A connection to a server. Its place in the queue is kept as long as the session lives.
    Connection = 0,
    /// An answer of the server.
    Server = 1,
    /// The node ahead, and those before that one.
    Node = 2,
    /// Leases that are out.
    Leases = 3,
    /// The count, to say that there are enough leases at all.
    Count = 4,
    /// A hold of its own owner, whose lease is over, to be safe again or lost.
    OwnHold = 5,
}

/// A call that is to acquire something and has not yet, as this process knows it. No server was asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// What it waits for.
    pub waits_for: WaitsFor,
    /// Who wants it.
    pub owner: Owner,
    /// The path of its own node, without the client's chroot, once it has one. Of several: there where it has to wait.
    pub node_path: Option<String>,
    /// What is in its way, without the client's chroot, as far as it is known: the nearest node ahead, the directory of the leases, or the
    /// node of the count. Without a connection: what was, when there was one.
    pub ahead: Option<String>,
    /// The session that owns that node; 0 where that is not known.
    pub session_id: i64,
    /// How many there are to go before: nodes ahead, leases that have to come back, or that the count is too low by. As of when
    /// they were last counted; 0 where that is not known.
    pub count: u64,
    /// How long it has waited.
    pub waited: Duration,
    /// How long it will wait at most; `None` without a limit.
    pub left: Option<Duration>,
}

/// What keeps a call from getting in, apart from the connection.
pub(super) enum Hindrance<'a> {
    /// Nobody knows yet.
    Unknown {
        own: Option<&'a str>,
    },
    Obstacle {
        own: Option<&'a str>,
        obstacle: Obstacle<'a>,
        /// The one ahead is only on its way to the leases.
        is_inner: bool,
    },
    /// The count at this full path says that there are so many leases.
    Count {
        path: String,
        wanted: u32,
        max: i32,
    },
    OwnHold {
        own: Option<&'a str>,
    },
    /// The node of its cohort, behind which it waits.
    Cohort {
        node: &'a str,
        is_in: bool,
        /// So many are ahead of that one.
        count: usize,
    },
}

impl Engine {
    /// The calls that wait to get into a lock, in the order in which they began.
    pub fn waiting(&self, now: Time, lock: LockId) -> Vec<Waiting> {
        let mut calls = self.calls_for(lock);
        calls.sort_unstable();
        calls.into_iter().filter_map(|op| self.waiting_call(now, self.ops.get(&op)?)).collect()
    }

    /// A call is part of one that began earlier: what is said of its time counts from then.
    pub fn began(&mut self, op: OpId, started: Time) {
        if let Some(op) = self.ops.get_mut(&op) {
            op.started = started;
        }
    }

    fn waiting_call(&self, now: Time, op: &Op) -> Option<Waiting> {
        let (owner, hindrance) = match op.kind {
            Kind::Acquire { lock, owner, attempt, quantity, .. } => (owner, self.hindrance(lock, attempt, quantity)),
            Kind::Reenter { owner, .. } => (owner, Hindrance::OwnHold { own: None }),
            _ => return None,
        };
        let (waits_for, own, ahead, session_id, count) = match &hindrance {
            Hindrance::Unknown { own } => (WaitsFor::Server, *own, None, 0, 0),
            Hindrance::OwnHold { own } => (WaitsFor::OwnHold, *own, None, 0, 0),
            Hindrance::Cohort { node, count, .. } => {
                let count = u64::try_from(*count).unwrap_or(u64::MAX).saturating_add(1);
                (WaitsFor::Node, None, Some(*node), self.session.id(), count)
            }
            Hindrance::Count { path, wanted, max } => {
                let missing = i64::from(*wanted) - i64::from(*max);
                (WaitsFor::Count, None, Some(path.as_str()), 0, missing.unsigned_abs())
            }
            Hindrance::Obstacle { own, obstacle: Obstacle::Ahead { node, count, seen, .. }, .. } => {
                let session = seen.map_or(0, |seen| seen.session);
                (WaitsFor::Node, *own, Some(*node), session, u64::try_from(*count).unwrap_or(u64::MAX))
            }
            Hindrance::Obstacle { own, obstacle: Obstacle::Crowd { directory, count, max }, .. } => {
                let too_many = i64::try_from(*count).unwrap_or(i64::MAX) - i64::from(*max);
                (WaitsFor::Leases, *own, Some(*directory), 0, u64::try_from(too_many).unwrap_or_default())
            }
        };
        let waits_for = if self.session.is_connected() { waits_for } else { WaitsFor::Connection };
        let path = |full: &str| full.get(self.chroot.path.len()..).unwrap_or_default().to_owned();
        Some(Waiting {
            waits_for,
            owner,
            node_path: own.map(path),
            ahead: ahead.map(path),
            session_id,
            count,
            waited: now - op.started,
            left: op.deadline.map(|deadline| deadline - now),
        })
    }

    pub(super) fn hindrance(&self, lock: LockId, attempt: Attempt, quantity: u32) -> Hindrance<'_> {
        match attempt {
            Attempt::Outside => self.lacking(lock, quantity),
            Attempt::Behind => self.in_front(lock),
            Attempt::Look(_) => Hindrance::Unknown { own: None },
            Attempt::Queue(machine) | Attempt::Leases { leases: machine, .. } => {
                let Some(Machine::Contender(contender, _)) = self.machines.get(&machine) else {
                    return Hindrance::Unknown { own: None };
                };
                match contender.obstacle() {
                    Some((own, obstacle)) => {
                        Hindrance::Obstacle { own, obstacle, is_inner: self.semaphore_of(lock).is_some() }
                    }
                    // It is in, and what else its owner has to hold is in doubt.
                    None if contender.is_in() => Hindrance::OwnHold { own: first_node(contender) },
                    None => Hindrance::Unknown { own: first_node(contender) },
                }
            }
        }
    }

    /// What is in the way of a call, for a message.
    pub(super) fn told_of(&self, op: OpId) -> Option<String> {
        let Kind::Acquire { lock, attempt, quantity, .. } = self.ops.get(&op)?.kind else { return None };
        self.hindrance(lock, attempt, quantity).told(&self.chroot.path)
    }

    /// Nothing stands for the call: there may not be enough leases at all.
    fn lacking(&self, lock: LockId, wanted: u32) -> Hindrance<'_> {
        let semaphore = self.semaphore_of(lock);
        let known = semaphore.and_then(|semaphore| self.counts.get(&semaphore)?.value);
        let recipe = semaphore.and_then(|semaphore| self.locks.get(&semaphore)).map(|lock| &lock.recipe);
        match (recipe, known) {
            (Some(Recipe::CountedSemaphore { count_path, .. }), Some(max)) if i64::from(wanted) > i64::from(max) => {
                Hindrance::Count { path: format!("{}{count_path}", self.chroot.path), wanted, max }
            }
            _ => Hindrance::Unknown { own: None },
        }
    }

    /// The semaphore that a call for this lock wants leases of.
    fn semaphore_of(&self, lock: LockId) -> Option<LockId> {
        let first = self.members(lock).first().copied()?;
        let is_queue = matches!(self.locks.get(&first)?.recipe, Recipe::Queue(_) | Recipe::Multi(_));
        (!is_queue).then_some(first)
    }
}

impl Hindrance<'_> {
    /// For a message, as far as it is known. Paths are shown without the chroot.
    pub(super) fn told(&self, chroot: &str) -> Option<String> {
        let path = |full: &str| full.get(chroot.len()..).unwrap_or_default().to_owned();
        Some(match self {
            Self::Unknown { .. } | Self::OwnHold { .. } => return None,
            Self::Cohort { node, is_in: true, .. } => format!("held in this process, by {}", path(node)),
            Self::Cohort { node, is_in: false, .. } => {
                format!("others of this process wait before it, by {}", path(node))
            }
            Self::Count { path: count, wanted, max } => {
                format!("{wanted} leases are wanted, and the count {} says {max}", path(count))
            }
            Self::Obstacle { obstacle: Obstacle::Crowd { count, max, .. }, .. } => {
                format!("with these, {count} of {max} leases would be out")
            }
            Self::Obstacle { obstacle: Obstacle::Ahead { node, count, is_in, seen }, is_inner, .. } => {
                let (node, of) = (path(node), seen.map_or_else(String::new, signed));
                match *is_in && !is_inner {
                    true => format!("held by {node}{of}"),
                    false => format!("{count} ahead, the nearest is {node}{of}"),
                }
            }
        })
    }
}

fn first_node(contender: &Contender) -> Option<&str> {
    contender.node_paths().next()
}

/// Whose a node is.
fn signed(seen: &Seen) -> String {
    let data = String::from_utf8_lossy(&seen.data);
    format!(" (session {:#x}, {:?})", seen.session, data)
}
