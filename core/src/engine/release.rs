//! Releases holds, and waits until their nodes are deleted.

use std::sync::Arc;

use super::holds::lost_error;
use super::interface::{Answer, HoldToRelease, LockId, Notification, OpId, Recipe};
use super::owner::Owner;
use super::state::{Engine, Hold, Lock, NodeStatus, Op, OpKind};
use crate::error::{Error, Result, Status};
use crate::mutant::Mutant;
use crate::session::MachineId;
use crate::time::Time;

impl Engine {
    /// Starts an operation that decrements the hold count of `owner` by one. When the count reaches zero, the engine
    /// deletes the node of the hold.
    ///
    /// If `wait` is true, the operation ends when the server has confirmed the deletion or the session timeout has
    /// passed. For a multi-lock, the operation releases all members that `owner` holds, in reverse order. If the
    /// release of a member fails, the operation still releases the other members. At the end, the operation reports the
    /// first failure.
    pub fn release(&mut self, now: Time, lock: LockId, owner: Owner, wait: bool) -> OpId {
        let members = self.members_or_self(&lock).iter();
        let holds: Vec<_> = members.map(|&member| (member, HoldToRelease::OwnOrAny)).collect();
        self.release_holds(now, owner, &holds, wait)
    }

    /// Starts an operation that releases one hold of each lock in `holds`. In all other respects, this method works
    /// like [`release`](Self::release) with a multi-lock of these locks.
    pub fn release_holds(&mut self, now: Time, owner: Owner, holds: &[(LockId, HoldToRelease)], wait: bool) -> OpId {
        self.handle(now, |engine| {
            let op = engine.next_op_id();
            let (mut leaving, mut failure) = (Vec::new(), None);
            let mut holders = Vec::new();
            for &(lock, which) in holds.iter().rev() {
                let (at, holder) = match engine.find_hold(lock, owner, which) {
                    Ok(found) => found,
                    Err(error) => {
                        failure = failure.or(Some(error));
                        continue;
                    }
                };
                holders.push((lock, holder));
                // The successor depends on the hold, which may end in the next statement.
                let successor = engine.successor(now, lock, at);
                match engine.decrement_hold_count(now, lock, at) {
                    Ok(machine_id) => {
                        leaving.extend(
                            machine_id.filter(|&machine_id| !engine.hand_over_locally(now, machine_id, successor)),
                        );
                    }
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            let pending_nodes = if wait { leaving.len() } else { 0 };
            let deadline = now + engine.session.timeout();
            let lock = holds.first().map_or(0, |&(lock, _)| lock);
            engine.insert_op(now, op, OpKind::Release { lock, pending_nodes, failure }, Some(deadline));
            for machine_id in leaving {
                engine.make_leave(now, machine_id, wait.then_some(op));
            }
            for (lock, holder) in holders.into_iter().rev() {
                engine.start_next(now, lock);
                engine.answer_ops_on_hold(now, lock, holder);
            }
            if pending_nodes == 0 {
                engine.finish_release(now, op);
            }
            op
        })
    }

    /// Records whether the client has deleted one of the nodes of a release.
    pub(super) fn on_node_released(&mut self, now: Time, op: OpId, failure: Option<Error>) {
        let Some(Op { kind: OpKind::Release { pending_nodes, failure: first, .. }, .. }) = self.ops.get_mut(&op) else {
            return;
        };
        *pending_nodes = pending_nodes.saturating_sub(1);
        *first = first.take().or(failure);
        if *pending_nodes == 0 {
            self.finish_release(now, op);
        }
    }

    fn finish_release(&mut self, now: Time, op: OpId) {
        let Some(Op { kind: OpKind::Release { failure, .. }, .. }) = self.ops.get_mut(&op) else { return };
        let result = failure.take().map_or(Ok(Answer::Done), Err);
        self.answer_op(now, op, result);
    }

    /// Decrements the hold count of the hold with the index `at`. When the count reaches zero, the method returns the
    /// contender of the hold. The caller must then hand the lock over, or make the contender leave the queue.
    fn decrement_hold_count(&mut self, now: Time, lock: LockId, at: usize) -> Result<Option<MachineId>> {
        let Some(held) = self.locks.get_mut(&lock) else { return Ok(None) };
        let Some(hold) = held.holds.get_mut(at) else { return Ok(None) };
        hold.hold_count -= 1;
        let (last, machine_id, node_status) = (hold.hold_count == 0, hold.machine_id, hold.node_status);
        if last {
            let hold = held.holds.swap_remove(at);
            hold.set_released();
            let path = Arc::clone(&held.path);
            self.notifications.push_back(Notification::Event(hold.released_event(lock, &path)));
            self.record_release(now, &hold, &path);
        }
        match node_status {
            NodeStatus::Lost(removal) => {
                let path = self.locks.get(&lock).map_or("", |lock| &lock.path);
                Err(lost_error(path, removal))
            }
            _ => Ok(last.then_some(machine_id)),
        }
    }

    /// Returns the index and the owner of the hold that a release by `owner` ends.
    fn find_hold(&self, lock: LockId, owner: Owner, which: HoldToRelease) -> Result<(usize, Owner)> {
        let Some(held) = self.locks.get(&lock).filter(|_| !self.is_closed()) else {
            return Err(Status::Closed.into());
        };
        let Lock { holds, recipe, path, .. } = &**held;
        let own = holds.iter().position(|hold| hold.owner == owner);
        let (at, problem) = match (which, recipe) {
            (HoldToRelease::Exact(id), _) => {
                let is_exact = |hold: &Hold| hold.id() == id || Mutant::ReleaseLaterHold.is_active();
                let exact = holds.iter().position(|hold| hold.owner == owner && is_exact(hold));
                (exact, "this hold was already released")
            }
            // If the owner has a lost hold, the release fails with LOST and does not release the hold of another owner.
            (HoldToRelease::OwnOrAny, Recipe::SemaphoreMutex) => {
                let live = holds.iter().position(|hold| !matches!(hold.node_status, NodeStatus::Lost(_)));
                let own = own.filter(|_| !Mutant::ReleaseOtherOwnersHold.is_active());
                (own.or(live).or_else(|| (!holds.is_empty()).then_some(0)), "no owner holds the lock")
            }
            (HoldToRelease::OwnOrAny | HoldToRelease::Own, _) => (own, "the caller does not hold the lock"),
        };
        let found = at.and_then(|at| Some((at, holds.get(at)?.owner)));
        found.ok_or_else(|| Error::new(Status::NotOwner, format!("{path}: {problem}")))
    }
}
