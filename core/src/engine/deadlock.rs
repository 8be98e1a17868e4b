//! Detects deadlocks between a multi-lock and a client that acquires the same locks one after the other.
//!
//! Multi-locks that join their queues in one transaction cannot deadlock each other (decision 6). However, another
//! client may acquire one lock after the other, as Curator's multi-lock does. Suppose that this client holds the first
//! lock, and waits for the second lock behind the multi-lock. At the same time, the multi-lock waits for the first
//! lock, so neither can continue. Only the multi-lock can resolve this deadlock. It leaves all its queues, and joins
//! them again behind the other client.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::interface::OpId;
use super::machines::StateMachine;
use super::state::{Acquire, Attempt, DeadlockDetector, Engine};
use super::timers::Timer;
use crate::error::Result;
use crate::path::parent;
use crate::recipe::{Contender, Participant, ParticipantQuery};
use crate::session::MachineId;
use crate::time::Time;

/// Nodes, each with its directory, by the session and the transaction that created them.
type Transactions<'a> = BTreeMap<(i64, i64), Vec<(&'a str, &'a Participant)>>;

impl Engine {
    /// Starts the detection for an operation that has joined several queues.
    pub(super) fn start_deadlock_detection(&mut self, now: Time, op: OpId) {
        let Some(acquire) = self.pending_acquire_mut(op) else { return };
        let DeadlockDetector { interval, pause, .. } = std::mem::take(&mut acquire.deadlock);
        // If the engine has already suspected a deadlock of this operation, it checks less and less often, because a
        // second suspicion is probably wrong. If it checked as often as before, the threads of one client that hold one
        // lock for seconds and wait for another could make the operation lose its place again and again.
        let limits = self.session.limits();
        let pause = (pause * 2).min(limits.longest_pause_after_deadlocks);
        let wait = (interval * 2).min(limits.longest_deadlock_check).max(limits.first_deadlock_check).max(pause);
        if let Some(acquire) = self.pending_acquire_mut(op) {
            acquire.deadlock.pause = wait;
        }
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
            return self.rejoin(now, op);
        }
        let wait = match cycles.is_empty() {
            true => (detector.interval * 2).min(limits.longest_deadlock_check).max(detector.pause),
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

/// Returns pairs of nodes that may form a deadlock with `own`. Both nodes of a pair belong to the same session. One node
/// holds a lock for which `own` waits, and the other node waits behind `own` in another queue. A client creates such
/// nodes if it acquires locks one after the other, because it keeps its earlier locks while it waits for the next lock.
///
/// However, the nodes of a pair can also belong to two threads of one client, which do not wait for each other. If one
/// transaction has created all nodes of an acquire, these nodes have the same creation zxid. The function then omits
/// pairs of two such threads: the waiter also waits for the holder's lock, or the holder is also ahead of `own` in the
/// waiter's queue. An owner never waits in a queue in which it already has a node, except for a nested read lock, whose
/// node is directly behind the owner's write node.
///
/// Because a session can have many nodes, the result contains at most one pair for each transaction of a holder. The
/// oldest waiter stands for the later ones: while it waits, the pair remains suspect, and after it has gone, the next
/// check finds a later waiter.
fn wait_cycles(queues: &[Participant], own: &Contender) -> BTreeSet<(String, String)> {
    let own: BTreeSet<&str> = own.node_paths().collect();
    let mut queue_of: BTreeMap<&str, Vec<&Participant>> = BTreeMap::new();
    for node in queues {
        queue_of.entry(parent(&node.node_path)).or_default().push(node);
    }
    // The nodes that hold a lock ahead of `own`, and those that wait behind it, for each session and transaction.
    let (mut holders, mut waiters) = (Transactions::new(), Transactions::new());
    // The directories in which a transaction has created a node ahead of `own`, and behind it.
    let (mut ahead, mut behind) = (BTreeSet::new(), BTreeSet::new());
    for (&directory, queue) in &queue_of {
        let Some(at) = queue.iter().position(|node| own.contains(node.node_path.as_str())) else { continue };
        for (place, &node) in queue.iter().enumerate() {
            let (side, nodes, is_wanted) = match place.cmp(&at) {
                Ordering::Less => (&mut ahead, &mut holders, node.holds),
                Ordering::Equal => continue,
                Ordering::Greater => (&mut behind, &mut waiters, !node.holds),
            };
            side.insert((directory, node.czxid));
            if is_wanted {
                nodes.entry((node.session_id, node.czxid)).or_default().push((directory, node));
            }
        }
    }
    let pair = |(&(session_id, zxid), held): (&(i64, i64), &Vec<(&str, &Participant)>)| {
        waiters.range((session_id, i64::MIN)..=(session_id, i64::MAX)).find_map(|(&(_, later), wanted)| {
            let (_, holder) = held.iter().find(|(directory, _)| !behind.contains(&(*directory, later)))?;
            let (_, waiter) = wanted.iter().find(|(directory, _)| !ahead.contains(&(*directory, zxid)))?;
            Some((holder.node_path.clone(), waiter.node_path.clone()))
        })
    };
    holders.iter().filter_map(pair).collect()
}
