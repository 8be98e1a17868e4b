//! Cohorts. A cohort is a group of operations of one client that wait for the same path and share one position in the
//! queue. The operations hand the lock over to each other locally. The client deletes the node only after several local
//! hand-overs (Dice, Marathe and Shavit, "Lock Cohorting", 2012).
//!
//! All operations on locks that have the same path and allow local hand-over form one cohort. One contender represents
//! the cohort. At first, the contender belongs to the first operation of the cohort. When this operation has acquired
//! the lock, the contender belongs to the hold. All other operations wait behind the contender, in the order in which
//! they began. These waiting operations have no nodes and send no requests.
//!
//! A cohort never has a second contender in the queue. After the contender has left, the next operation of the cohort
//! joins the end of the queue. Another client's participant behind the contender therefore waits for a limited number
//! of holds.
//!
//! A local hand-over uses neither the socket nor the I/O thread, and wakes only the thread that receives the hold.

use std::sync::Arc;

use super::interface::{LockId, LockState, OpId, Recipe};
use super::machines::{Role, StateMachine};
use super::state::{Acquire, Attempt, Engine, Op, OpKind};
use super::wait_reason::WaitReason;
use crate::error::{Error, Result, Status};
use crate::mutant::Mutant;
use crate::recipe::{Blocker, Contender, Mode};
use crate::session::MachineId;
use crate::time::Time;

/// The operation that will receive the lock next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Successor {
    op: OpId,
    pass: LocalPass,
}

/// A local hand-over.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocalPass {
    /// The number of local hand-overs under the same fencing token, including this one.
    pub(super) fencing_pass: u32,
    /// The limit of local hand-overs under this token.
    pub(super) max_passes: u32,
}

impl Engine {
    /// Sets how many local hand-overs this lock may have before the client deletes the node. The value 0 disables local
    /// hand-over. Only operations of this client can receive the lock locally, and only if their lock has the same path
    /// and allows local hand-over. The new value applies neither to holds nor to operations that already wait.
    ///
    /// The method fails with UNSUPPORTED if the lock is not a mutex, and with CLOSED if the lock does not exist.
    pub fn set_local_handover(&mut self, lock: LockId, max_passes: u32) -> Result<()> {
        let Some(set) = self.locks.get_mut(&lock) else { return Err(Status::Closed.into()) };
        if set.recipe != Recipe::Queue(Mode::Mutex) {
            let message = format!("{}: only a mutex supports local hand-over", set.path);
            return Err(Error::new(Status::Unsupported, message));
        }
        set.max_passes = max_passes;
        Ok(())
    }

    // Joining a cohort.

    /// If a contender represents the cohort of this operation, the operation waits behind the contender. The method
    /// returns false if the operation must join the queue instead. An operation that makes only one attempt fails
    /// instead of waiting behind the contender.
    pub(super) fn join_cohort(&mut self, now: Time, op: OpId, lock: LockId, try_once: bool) -> bool {
        let is_in_cohort = self.pending_acquire(op).is_some_and(|acquire| acquire.max_passes > 0);
        if !is_in_cohort || self.cohort_contender(lock).is_none() {
            return false;
        }
        self.set_attempt(op, Attempt::WaitingInCohort);
        if let Some(acquire) = self.pending_acquire_mut(op) {
            acquire.has_waited = true;
        }
        if try_once {
            self.fail_would_block(now, op);
        }
        true
    }

    /// Sets the attempt of an acquire, and updates the cohort of its lock. Returns the previous attempt.
    pub(super) fn set_attempt(&mut self, op: OpId, attempt: Attempt) -> Option<Attempt> {
        let Some(Op { kind: OpKind::Acquire(acquire), .. }) = self.ops.get_mut(&op) else { return None };
        let previous = std::mem::replace(&mut acquire.attempt, attempt);
        let Some(lock) = self.locks.get(&acquire.lock) else { return Some(previous) };
        if previous == Attempt::WaitingInCohort
            && let Some(cohort) = self.cohorts.get_mut(&lock.directory)
        {
            cohort.waiting_ops.remove(&op);
        }
        match acquire.attempt {
            Attempt::WaitingInCohort => {
                self.cohorts.entry(Arc::clone(&lock.directory)).or_default().waiting_ops.insert(op);
            }
            Attempt::Queues { contender, .. } if acquire.max_passes > 0 => {
                self.cohorts.entry(Arc::clone(&lock.directory)).or_default().contender = Some(contender);
            }
            _ => {}
        }
        Some(previous)
    }

    // Local hand-over.

    /// Returns the operation that will receive the lock when the hold with the index `at` is released. Returns `None` in
    /// four cases: the state of the hold is not HELD, the limit of local hand-overs is reached, another client has
    /// requested a revocation, or no operation waits.
    pub(super) fn successor(&self, now: Time, lock: LockId, at: usize) -> Option<Successor> {
        let held = self.locks.get(&lock)?;
        let hold = held.holds.get(at).filter(|hold| hold.max_passes > 0)?;
        let is_held = self.hold_state(now, hold) == LockState::Held || Mutant::HandOverUnsafeHold.is_active();
        let may_go_on = hold.fencing_pass < hold.max_passes || Mutant::HandOverWithoutLimit.is_active();
        let cohort = self.cohorts.get(&held.directory).filter(|cohort| cohort.contender == Some(hold.machine_id))?;
        let op = *cohort.waiting_ops.first()?;
        let is_revocation_requested =
            self.machines.contender(hold.machine_id).is_none_or(Contender::is_revocation_requested);
        let pass = LocalPass { fencing_pass: hold.fencing_pass.saturating_add(1), max_passes: hold.max_passes };
        (is_held && may_go_on && !is_revocation_requested).then_some(Successor { op, pass })
    }

    /// Hands a released lock over to the successor. Returns false if there is no successor. In this case, the caller
    /// must delete the node.
    pub(super) fn hand_over_locally(&mut self, now: Time, machine_id: MachineId, successor: Option<Successor>) -> bool {
        let Some(Successor { op, pass }) = successor else { return false };
        let Some(&Acquire { lock, .. }) = self.pending_acquire(op) else { return false };
        self.set_revocable_for(now, machine_id, &[lock]);
        self.create_hold(now, machine_id, lock, op, Some(pass));
        self.metrics.local_passes += 1;
        self.finish_grant(now, op, &[lock]);
        true
    }

    /// Assigns a contender to the next operation of its cohort, because the contender's operation has ended. Returns
    /// false if the contender has no new operation. This happens if no operation waits, if another client has requested
    /// a revocation, or if the contender makes only one attempt.
    pub(super) fn reassign(&mut self, now: Time, lock: LockId, machine_id: MachineId) -> bool {
        let Some(held) = self.locks.get(&lock) else { return false };
        let Some(cohort) = self.cohorts.get(&held.directory).filter(|cohort| cohort.contender == Some(machine_id))
        else {
            return false;
        };
        let Some(StateMachine::Contender(contender, Role::Acquiring(_))) = self.machines.get(machine_id) else {
            return false;
        };
        let Some(&op) = cohort.waiting_ops.first() else { return false };
        if contender.is_revocation_requested() || contender.tries_once() {
            return false;
        }
        let Some(&Acquire { lock, .. }) = self.pending_acquire(op) else { return false };
        self.set_revocable_for(now, machine_id, &[lock]);
        self.set_attempt(op, Attempt::Queues { contender: machine_id, locks: vec![lock] });
        self.machines.set_role(machine_id, Role::Acquiring(op));
        true
    }

    /// Makes the next operation of the cohort join the queue if no contender represents the cohort.
    pub(super) fn start_next(&mut self, now: Time, lock: LockId) {
        if let Some(directory) = self.locks.get(&lock).map(|lock| lock.directory.clone()) {
            self.start_next_in(now, &directory);
        }
    }

    pub(super) fn start_next_in(&mut self, now: Time, directory: &str) {
        while let Some(cohort) = self.cohorts.get(directory)
            && !cohort.contender.is_some_and(|contender| self.is_contender_active(contender))
        {
            match cohort.waiting_ops.first() {
                Some(&next) => self.join(now, next),
                None => drop(self.cohorts.remove(directory)),
            }
        }
    }

    // Queries.

    /// Returns what the operations behind the contender of a cohort wait for.
    pub(super) fn cohort_wait_reason(&self, lock: LockId) -> WaitReason<'_> {
        let contender = self.cohort_contender(lock).and_then(|machine_id| self.machines.contender(machine_id));
        let Some((contender, node)) = contender.and_then(|contender| Some((contender, contender.node_paths().next()?)))
        else {
            return WaitReason::Unknown { own: None };
        };
        let ahead_count = match contender.blocker() {
            Some((_, Blocker::Predecessor { ahead_count, .. })) => ahead_count,
            _ => 0,
        };
        WaitReason::Cohort { node, is_holder: contender.is_acquired(), ahead_count }
    }

    /// Returns the contender that represents the cohort of this lock.
    fn cohort_contender(&self, lock: LockId) -> Option<MachineId> {
        let lock = self.locks.get(&lock)?;
        let contender = self.cohorts.get(&lock.directory)?.contender?;
        self.is_contender_active(contender).then_some(contender)
    }

    fn is_contender_active(&self, machine_id: MachineId) -> bool {
        matches!(
            self.machines.get(machine_id),
            Some(StateMachine::Contender(_, Role::Acquiring(_) | Role::Holding(..)))
        )
    }
}
