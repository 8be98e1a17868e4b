//! Releases holds, and waits until their nodes are deleted.

use std::sync::Arc;

use super::holds::lost_error;
use super::interface::{Answer, LockId, Notification, OpId, Recipe};
use super::owner::Owner;
use super::state::{Engine, Lock, NodeStatus, Op, OpKind};
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
        self.handle(now, |engine| {
            let op = engine.next_op_id();
            let members = engine.members(lock);
            let (mut leaving, mut failure) = (Vec::new(), None);
            // The members whose holder is another owner. Only semaphore mutexes allow this.
            let mut another = Vec::new();
            for &member in members.iter().rev() {
                let holder = engine.holder_to_release(member, owner).filter(|&holder| holder != owner);
                another.extend(holder.map(|holder| (member, holder)));
                // The successor depends on the hold, which may end in the next statement.
                let successor = engine.successor(now, member, owner);
                match engine.decrement_hold_count(now, member, owner) {
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
            engine.insert_op(now, op, OpKind::Release { lock, pending_nodes, failure }, Some(deadline));
            for machine_id in leaving {
                engine.make_leave(now, machine_id, wait.then_some(op));
            }
            for member in members {
                engine.start_next(now, member);
                engine.answer_ops_on_hold(now, member, owner);
            }
            for (member, holder) in another {
                engine.answer_ops_on_hold(now, member, holder);
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

    /// Decrements the hold count of `owner`. When the count reaches zero, the method returns the contender of the hold.
    /// The caller must then hand the lock over, or make the contender leave the queue.
    fn decrement_hold_count(&mut self, now: Time, lock: LockId, owner: Owner) -> Result<Option<MachineId>> {
        if self.is_closed() {
            return Err(Status::Closed.into());
        }
        let at = self.hold_to_release(lock, owner);
        let Some(held) = self.locks.get_mut(&lock) else { return Err(Status::Closed.into()) };
        let Some(at) = at else {
            let message = format!("{}: the caller does not hold the lock", held.path);
            return Err(Error::new(Status::NotOwner, message));
        };
        let Some(hold) = held.holds.get_mut(at) else { return Ok(None) };
        hold.hold_count -= 1;
        let (last, machine_id, node_status) = (hold.hold_count == 0, hold.machine_id, hold.node_status);
        if last {
            let hold = held.holds.swap_remove(at);
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

    /// Returns the owner of the hold that a release by `owner` would end.
    fn holder_to_release(&self, lock: LockId, owner: Owner) -> Option<Owner> {
        let at = self.hold_to_release(lock, owner)?;
        Some(self.locks.get(&lock)?.holds.get(at)?.owner)
    }

    /// Returns the index of the hold that a release by `owner` would end.
    fn hold_to_release(&self, lock: LockId, owner: Owner) -> Option<usize> {
        let Lock { holds, recipe, .. } = &**self.locks.get(&lock)?;
        let own = holds.iter().position(|hold| hold.owner == owner);
        match recipe {
            // Any owner may release a semaphore mutex. However, if the calling owner has a lost hold, its release fails
            // with LOST and does not release the hold of another owner.
            Recipe::SemaphoreMutex => {
                let live = holds.iter().position(|hold| !matches!(hold.node_status, NodeStatus::Lost(_)));
                let own = own.filter(|_| !Mutant::ReleaseOtherOwnersHold.is_active());
                own.or(live).or_else(|| (!holds.is_empty()).then_some(0))
            }
            _ => own,
        }
    }
}
