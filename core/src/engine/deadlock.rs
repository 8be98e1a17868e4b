//! Detects deadlocks between a multi-lock and a client that acquires the same locks one after the other.
//!
//! Multi-locks that join their queues in one transaction cannot deadlock each other (decision 6). However, another
//! client may acquire one lock after the other, as Curator's multi-lock does. Suppose that this client holds the first
//! lock, and waits for the second lock behind the multi-lock. At the same time, the multi-lock waits for the first
//! lock, so neither can continue. Only the multi-lock can resolve this deadlock. It leaves all its queues, and joins
//! them again behind the other client.

use std::collections::BTreeSet;
use std::time::Duration;

use super::interface::OpId;
use super::machines::StateMachine;
use super::state::{Acquire, Attempt, DeadlockDetector, Engine};
use super::timers::Timer;
use crate::error::Result;
use crate::recipe::{Contender, Participant, ParticipantQuery};
use crate::session::MachineId;
use crate::time::Time;

impl Engine {
    /// Starts the detection for an operation that has joined several queues.
    pub(super) fn start_deadlock_detection(&mut self, now: Time, op: OpId) {
        let Some(acquire) = self.pending_acquire_mut(op) else { return };
        let DeadlockDetector { interval, .. } = std::mem::take(&mut acquire.deadlock);
        // If the engine has already found a deadlock of this operation, it checks less often, because a second
        // suspicion is probably wrong.
        let limits = self.session.limits();
        let wait = (interval * 2).max(limits.first_deadlock_check).min(limits.longest_deadlock_check);
        self.schedule_deadlock_check(now, op, wait);
    }

    /// Lists the queues of an operation to find deadlocks. If too many contenders are ahead, the engine postpones the
    /// check.
    pub(super) fn check_for_deadlock(&mut self, now: Time, op: OpId) {
        let Some(&Acquire { lock, attempt: Attempt::Queues { contender, .. }, .. }) = self.pending_acquire(op) else {
            return;
        };
        let Some(most_ahead) = self.machines.contender(contender).map(Contender::max_ahead) else { return };
        let limits = self.session.limits();
        if most_ahead.is_none_or(|ahead| ahead > limits.max_ahead_for_deadlock_check) {
            return self.schedule_deadlock_check(now, op, limits.first_deadlock_check);
        }
        let scopes = self.members(lock).iter().filter_map(|&member| self.query_scope(member, true)).collect();
        let machine_id = self.next_machine_id();
        let query = Box::new(ParticipantQuery::new(scopes, 0));
        self.start_machine(now, machine_id, StateMachine::DeadlockCheck(query, op, contender));
    }

    /// Searches for deadlocks among the participants of the queues that an operation has joined. If two consecutive
    /// checks find the same pair of nodes, the engine treats this pair as a deadlock.
    pub(super) fn on_queues_listed(
        &mut self,
        now: Time,
        op: OpId,
        contender: MachineId,
        queues: Result<Vec<Participant>>,
    ) {
        let Some(own) = self.machines.contender(contender) else { return };
        let cycles = wait_cycles(&queues.unwrap_or_default(), own);
        let limits = *self.session.limits();
        let Some(Acquire { attempt: Attempt::Queues { contender: current, .. }, deadlock: detector, .. }) =
            self.pending_acquire_mut(op)
        else {
            return;
        };
        if *current != contender {
            // The operation has joined its queues again since the engine began the check.
            return;
        }
        if !detector.suspects.is_disjoint(&cycles) {
            self.make_leave(now, contender, None);
            return self.join(now, op);
        }
        let wait = match cycles.is_empty() {
            true => (detector.interval * 2).min(limits.longest_deadlock_check),
            // If a pair is not a deadlock, one of its nodes disappears soon. The second check then does not find the
            // pair.
            false => limits.deadlock_recheck,
        };
        detector.suspects = cycles;
        self.schedule_deadlock_check(now, op, wait);
    }

    fn schedule_deadlock_check(&mut self, now: Time, op: OpId, wait: Duration) {
        if let Some(Acquire { deadlock: detector, .. }) = self.pending_acquire_mut(op) {
            detector.interval = wait.max(detector.interval);
            self.timers.set(Timer::DeadlockCheck(op), now + wait);
        }
    }
}

/// Returns the pairs of nodes that may form a deadlock with `own`. Both nodes of a pair belong to the same session. One
/// node holds a lock for which `own` waits, and the other node waits behind `own` in another queue. A client creates
/// such nodes if it acquires locks one after the other, because it keeps its earlier locks while it waits for the next
/// lock.
fn wait_cycles(queues: &[Participant], own: &Contender) -> BTreeSet<(String, String)> {
    let own: Vec<&str> = own.node_paths().collect();
    let directory = |path: &str| path.rsplit_once('/').map_or("", |(directory, _)| directory).to_owned();
    let (mut ahead, mut behind) = (Vec::new(), Vec::new());
    for node in &own {
        let queue = queues.iter().filter(|other| directory(&other.node_path) == directory(node));
        let mut is_behind = false;
        for other in queue {
            if other.node_path == *node {
                is_behind = true;
            } else if is_behind && !other.holds {
                behind.push(other);
            } else if !is_behind && other.holds {
                ahead.push(other);
            }
        }
    }
    let pairs = ahead.iter().flat_map(|ahead| behind.iter().map(move |behind| (ahead, behind)));
    pairs
        .filter(|(ahead, behind)| {
            ahead.session_id == behind.session_id && directory(&ahead.node_path) != directory(&behind.node_path)
        })
        .map(|(ahead, behind)| (ahead.node_path.clone(), behind.node_path.clone()))
        .collect()
}
