//! Performs acquires. The engine joins the queues of a lock, waits, and creates the hold. Contenders represent the
//! acquire in the queues.

use std::sync::Arc;

use super::cohort::LocalPass;
use super::dispatch::random_u64;
use super::holds::lost_error;
use super::interface::{LockId, LockState, OpId, Recipe};
use super::machines::{Role, StateMachine};
use super::owner::Owner;
use super::state::{Acquire, Attempt, Engine, Hold, NodeStatus, OpKind, Rejoins};
use super::timers::Timer;
use crate::acl::Permission;
use crate::error::{Error, Status};
use crate::mutant::Mutant;
use crate::recipe::{Contender, Context, Input, Mode, QueueRequest};
use crate::session::MachineId;
use crate::time::Time;

/// The maximum size of one transaction in bytes. The servers' default limit for a frame is larger (1 MiB).
const MAX_TRANSACTION: usize = 900 * 1024;
/// The number of bytes that a transaction needs for each node, in addition to the node's path and data.
const NODE_OVERHEAD: usize = 128;
/// If the state of a hold is unknown, the engine checks again after this pause whether the owner can re-enter the hold.
const REENTRY_RECHECK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(10);

impl Engine {
    /// Starts or restarts an acquire. The engine joins the queues of the lock, or the inner mutex of the semaphore.
    pub(super) fn join(&mut self, now: Time, op: OpId) {
        let Some(&Acquire { lock, owner, .. }) = self.pending_acquire(op) else { return };
        if !self.begin_attempt(now, op) {
            return;
        }
        match self.semaphore_of(lock) {
            Some(semaphore) => self.join_semaphore(now, op, semaphore),
            None if self.members(lock).iter().all(|&member| self.hold(member, owner).is_some()) => {
                self.reenter(now, op);
            }
            None => self.join_queues(now, op, lock, owner),
        }
    }

    /// Begins a new attempt of an acquire. Returns false if the acquire makes only one attempt and the client has no
    /// connection, unless the client is just moving to another server. The acquire has then failed.
    pub(super) fn begin_attempt(&mut self, now: Time, op: OpId) -> bool {
        self.set_attempt(op, Attempt::NotStarted);
        let has_failed = !self.session.is_connected()
            && !self.session.is_moving()
            && self.pending_acquire(op).is_some_and(|acquire| acquire.try_once);
        if has_failed {
            let error = self.no_service_error(&format!("not connected to {}", self.servers));
            self.fail_op(now, op, error);
        }
        !has_failed
    }

    /// Leaves the queues of an acquire, and starts the acquire again.
    pub(super) fn rejoin(&mut self, now: Time, op: OpId) {
        let Some(lock) = self.pending_acquire(op).map(|acquire| acquire.lock) else { return };
        if let Some(attempt) = self.set_attempt(op, Attempt::NotStarted) {
            self.end_attempt(now, lock, attempt);
            self.join(now, op);
        }
    }

    /// Repeats the last step of an attempt after its contender has lost a node.
    pub(super) fn retry_attempt(&mut self, now: Time, op: OpId) {
        let Some(&Acquire { lock, ref attempt, .. }) = self.pending_acquire(op) else { return };
        match *attempt {
            Attempt::Leases { inner_mutex, .. } => self.join_leases(now, op, inner_mutex),
            _ => self.join(now, op),
        }
        // If the operation has failed, the operations that waited behind its contender continue.
        self.start_next(now, lock);
    }

    /// Ends the current attempt of an operation.
    pub(super) fn end_attempt(&mut self, now: Time, lock: LockId, attempt: Attempt) {
        match attempt {
            Attempt::NotStarted | Attempt::Reentering | Attempt::WaitingInCohort => {}
            Attempt::CountingLeases(machine_id) => {
                self.machines.remove(machine_id);
            }
            Attempt::Queues { contender, .. } | Attempt::InnerMutex(contender) => {
                if Mutant::ForgetCohort.is_active() {
                    self.make_leave_unless_leaving(now, contender);
                } else if !self.reassign(now, lock, contender) {
                    self.make_leave_unless_leaving(now, contender);
                    self.start_next(now, lock);
                }
            }
            Attempt::Leases { inner_mutex, leases } => {
                self.make_leave_unless_leaving(now, leases);
                self.make_leave_unless_leaving(now, inner_mutex);
            }
        }
    }

    /// Makes a contender leave its queue. The operation `waiter` waits until the contender is gone.
    pub(super) fn make_leave(&mut self, now: Time, machine_id: MachineId, waiter: Option<OpId>) {
        self.machines.set_role(machine_id, Role::Leaving(waiter));
        self.handle_input(now, machine_id, Input::Leave);
    }

    fn make_leave_unless_leaving(&mut self, now: Time, machine_id: MachineId) {
        if let Some(&StateMachine::Contender(_, Role::Acquiring(op) | Role::InnerMutex(op))) =
            self.machines.get(machine_id)
        {
            self.record_waited(machine_id, op);
            self.make_leave(now, machine_id, None);
        }
    }

    /// Records in an operation whether its contender has waited. The operation needs this information if it continues
    /// with another contender.
    pub(super) fn record_waited(&mut self, machine_id: MachineId, op: OpId) {
        let has_waited = self.machines.contender(machine_id).is_some_and(Contender::has_waited);
        if let Some(acquire) = self.pending_acquire_mut(op) {
            acquire.has_waited |= has_waited;
        }
    }

    /// Continues an operation whose contender has acquired its locks or leases.
    pub(super) fn on_acquired(&mut self, now: Time, machine_id: MachineId, op: OpId) {
        self.record_waited(machine_id, op);
        let Some(&Acquire { lock, ref attempt, .. }) = self.pending_acquire(op) else { return };
        match *attempt {
            Attempt::Queues { .. } => self.grant_queues(now, machine_id, op),
            Attempt::InnerMutex(_) => {
                self.machines.set_role(machine_id, Role::InnerMutex(op));
                self.join_leases(now, op, machine_id);
            }
            Attempt::Leases { inner_mutex, .. } => {
                let Some(semaphore) = self.semaphore_of(lock) else { return };
                self.create_hold(now, machine_id, semaphore, op, None);
                self.finish_grant(now, op, &[semaphore]);
                if !Mutant::KeepInnerMutex.is_active() {
                    self.make_leave(now, inner_mutex, None);
                }
            }
            // The acquire has no contender.
            Attempt::NotStarted | Attempt::Reentering | Attempt::WaitingInCohort | Attempt::CountingLeases(_) => {}
        }
    }

    // Queues.

    /// Joins the queues of all members that `owner` does not hold yet, in one transaction. There must be such a member.
    pub(super) fn join_queues(&mut self, now: Time, op: OpId, lock: LockId, owner: Owner) {
        let Some(&Acquire { try_once, .. }) = self.pending_acquire(op) else { return };
        let mut locks = self.members(lock);
        locks.retain(|&member| self.hold(member, owner).is_none());
        if Mutant::JoinOneByOne.is_active() {
            locks.truncate(1);
        }
        if self.join_cohort(now, op, lock, try_once) {
            return;
        }
        let requests = locks.iter().map(|&member| self.build_queue_request(member, owner));
        let Some(requests) = requests.collect() else { return self.fail_op(now, op, Status::Closed.into()) };
        let is_revocable = locks.iter().any(|&member| self.is_revocable(member));
        let attempt = |contender| Attempt::Queues { contender, locks };
        self.add_contender(now, op, requests, try_once, is_revocable, attempt);
    }

    fn build_queue_request(&self, lock: LockId, owner: Owner) -> Option<QueueRequest> {
        let wanted = self.locks.get(&lock)?;
        let Recipe::Queue(mode) = wanted.recipe else { return None };
        Some(QueueRequest {
            lock_path: Arc::clone(&wanted.directory),
            directory: Arc::clone(&wanted.directory),
            mode,
            with_kazoo: self.with_kazoo,
            data: self.data_of(lock),
            node_count: 1,
            max_leases: 0,
            nested_in: self.node_to_nest_in(lock, owner),
        })
    }

    /// Returns the node of the hold in which a read lock of `owner` can be nested, or `None` if `owner` has no such
    /// hold. While `owner` has this hold, no contender that excludes readers can acquire the lock.
    fn node_to_nest_in(&self, lock: LockId, owner: Owner) -> Option<String> {
        if !matches!(self.locks.get(&lock)?.recipe, Recipe::Queue(Mode::Read)) {
            return None;
        }
        let holds = self.locks_in_same_directory(lock).filter_map(|sibling| self.hold(sibling, owner));
        let live = |hold: &&Hold| !matches!(hold.node_status, NodeStatus::Lost(_));
        let machine_id = holds.into_iter().find(live).map(|hold| hold.machine_id)?;
        self.machines.contender(machine_id)?.node_name().map(str::to_owned)
    }

    /// Grants the locks of a contender that is first in all its queues. The owner may already hold other members of the
    /// multi-lock. If one of these holds is not safe, the operation waits or fails. While the operation waits, the
    /// engine may have to verify the contender's nodes again.
    pub(super) fn grant_queues(&mut self, now: Time, machine_id: MachineId, op: OpId) {
        let Some(&Acquire { lock, owner, attempt: Attempt::Queues { locks: ref joined, .. }, .. }) =
            self.pending_acquire(op)
        else {
            return;
        };
        let joined = joined.clone();
        let mut held_members = self.members(lock);
        held_members.retain(|member| !joined.contains(member));
        let is_verified = self.machines.contender(machine_id).is_some_and(Contender::are_nodes_verified);
        match self.check_reentry(now, &held_members, owner) {
            Reentry::Allowed if is_verified => {}
            Reentry::NotHeld if Mutant::JoinOneByOne.is_active() => {
                for &only in &joined {
                    self.create_hold(now, machine_id, only, op, None);
                    self.hold_mut(only, owner).into_iter().for_each(|hold| hold.hold_count = 0);
                }
                return self.join(now, op);
            }
            Reentry::NotHeld => return self.rejoin(now, op),
            Reentry::Allowed | Reentry::Unknown => {
                self.timers.set(Timer::ReentryCheck(machine_id), now + REENTRY_RECHECK_INTERVAL);
                return;
            }
            Reentry::Lost(error) => return self.fail_op(now, op, error),
        }
        self.increment_hold_counts(&held_members, owner);
        match *joined {
            [only] => self.create_hold(now, machine_id, only, op, None),
            _ => self.split(now, machine_id, &joined, op),
        }
        self.finish_grant(now, op, &joined);
    }

    /// Splits a contender with several directories into one contender for each lock.
    fn split(&mut self, now: Time, machine_id: MachineId, locks: &[LockId], op: OpId) {
        let mut last = self.last_id;
        let next_id = || {
            last += 1;
            MachineId(last)
        };
        let mut cx = Context::new(now, machine_id, &mut self.session, &mut self.caches, &self.chroot, &self.acls);
        let parts = self.machines.split(machine_id, |contender| contender.split(&mut cx, next_id));
        self.last_id = last;
        for (machine_id, &lock) in parts.into_iter().zip(locks) {
            self.create_hold(now, machine_id, lock, op, None);
        }
    }

    /// Creates the hold of a contender that has acquired its lock for the acquire `op`. `before` is the hold that a
    /// local hand-over has ended.
    pub(super) fn create_hold(
        &mut self,
        now: Time,
        machine_id: MachineId,
        lock: LockId,
        op: OpId,
        before: Option<LocalPass>,
    ) {
        let Some(&Acquire { owner, max_passes, .. }) = self.pending_acquire(op) else { return };
        let LocalPass { fencing_pass, max_passes } =
            before.map_or(LocalPass { fencing_pass: 0, max_passes }, |before| {
                // Other clients behind the node were promised the smallest limit of its holds.
                LocalPass { max_passes: before.max_passes.min(max_passes), ..before }
            });
        self.machines.set_role(machine_id, Role::Holding(lock, owner));
        let Some(contender) = self.machines.contender(machine_id) else { return };
        let token = contender.token().unwrap_or_default();
        let (node_status, reported_state) = (NodeStatus::Verified, LockState::Free);
        if let Some(granted) = self.locks.get_mut(&lock) {
            // A lock usually has only one hold.
            granted.holds.reserve_exact(1);
            granted.holds.push(Hold {
                owner,
                acquired_by: op,
                hold_count: 1,
                machine_id,
                granted_at: now,
                token,
                fencing_pass,
                max_passes,
                node_status,
                reported_state,
                release_flag: None,
            });
        }
    }

    /// Completes an acquire that has succeeded. Other operations of the same owner can now re-enter the lock, or nest a
    /// read lock in it.
    pub(super) fn finish_grant(&mut self, now: Time, op: OpId, joined: &[LockId]) {
        self.record_grant(now, op, joined);
        let answer = self.acquired_answer(op);
        let Some(OpKind::Acquire(Acquire { lock, owner, .. })) = self.end_op(now, op, Ok(answer)) else { return };
        if !self.timers.is_set(Timer::HoldCheck) {
            self.timers.set(Timer::HoldCheck, now + self.session.heartbeat_interval());
        }
        for &member in joined {
            self.report_states(now, member);
        }
        for &member in joined {
            self.reenter_waiting_ops(now, member, owner);
            self.rejoin_nested_reads(now, member, owner);
        }
        self.reenter_waiting_ops(now, lock, owner);
    }

    /// Lets other operations of the owner re-enter a lock that the owner has just acquired. These operations leave the
    /// queue, because there they would wait for their own owner. An operation that also needs other locks joins only
    /// the queues of those other locks.
    fn reenter_waiting_ops(&mut self, now: Time, held: LockId, owner: Owner) {
        for lock in self.with_multi_locks(held) {
            if self.semaphore_of(lock).is_some() {
                continue;
            }
            let members = self.members(lock);
            for op in self.ops_of_owner(lock, owner) {
                let Some(acquire) = self.pending_acquire(op).filter(|acquire| !acquire.is_reentering()) else {
                    continue;
                };
                let waits_for_it = acquire.is_in_queue(held);
                if matches!(self.check_reentry(now, &members, owner), Reentry::Allowed) {
                    self.increment_hold_counts(&members, owner);
                    self.metrics.reentries += 1;
                    let answer = self.acquired_answer(op);
                    if let Some(OpKind::Acquire(acquire)) = self.end_op(now, op, Ok(answer)) {
                        self.end_attempt(now, lock, acquire.attempt);
                    }
                } else if waits_for_it {
                    self.rejoin(now, op);
                }
            }
        }
    }

    /// Restarts operations that wait for the read lock of a path, after their owner has acquired the read lock or the
    /// write lock of the path. Without a restart, these operations would wait in the queue for their own owner, or for a
    /// writer that waits for their owner.
    fn rejoin_nested_reads(&mut self, now: Time, lock: LockId, owner: Owner) {
        let mode = |lock: LockId| self.locks.get(&lock).map(|lock| &lock.recipe);
        if !matches!(mode(lock), Some(Recipe::Queue(Mode::Read | Mode::Write))) {
            return;
        }
        let siblings: Vec<LockId> = self
            .locks_in_same_directory(lock)
            .filter(|&sibling| mode(sibling) == Some(&Recipe::Queue(Mode::Read)))
            .collect();
        let waited_for: Vec<LockId> = siblings.into_iter().flat_map(|sibling| self.with_multi_locks(sibling)).collect();
        for lock in waited_for {
            for op in self.ops_of_owner(lock, owner) {
                if self.pending_acquire(op).is_some_and(|acquire| !acquire.is_reentering()) {
                    self.rejoin(now, op);
                }
            }
        }
    }

    pub(super) fn increment_hold_counts(&mut self, locks: &[LockId], owner: Owner) {
        for &lock in locks {
            if let Some(hold) = self.hold_mut(lock, owner) {
                hold.hold_count = hold.hold_count.saturating_add(1);
            }
        }
    }

    /// Returns whether `owner` can re-enter all locks in `locks`.
    pub(super) fn check_reentry(&self, now: Time, locks: &[LockId], owner: Owner) -> Reentry {
        let mut reentry = Reentry::Allowed;
        for &lock in locks {
            let Some(hold) = self.hold(lock, owner) else { return Reentry::NotHeld };
            match (self.hold_state(now, hold), hold.node_status) {
                (_, NodeStatus::Lost(removal)) => {
                    let path = self.locks.get(&lock).map_or("", |lock| &lock.path);
                    return Reentry::Lost(lost_error(path, removal));
                }
                (LockState::Held | LockState::Suspended, _) => {}
                _ => reentry = Reentry::Unknown,
            }
        }
        reentry
    }

    /// Creates a contender for an acquire. The contender joins at once, unless the engine holds it back.
    pub(super) fn add_contender(
        &mut self,
        now: Time,
        op: OpId,
        requests: Vec<QueueRequest>,
        try_once: bool,
        is_revocable: bool,
        attempt: impl FnOnce(MachineId) -> Attempt,
    ) {
        if let Some(error) = self.undeletable_error(op, &requests) {
            return self.fail_op(now, op, error);
        }
        if let Some(error) = self.transaction_size_error(op, &requests) {
            return self.fail_op(now, op, error);
        }
        let machine_id = self.next_machine_id();
        let path_bytes = requests.iter().map(QueueRequest::path_bytes).fold(0, usize::saturating_add);
        if let Err(error) = self.machines.path_bytes.check(&self.path_of(op), path_bytes) {
            return self.fail_op(now, op, error);
        }
        self.machines.path_bytes.add(machine_id, path_bytes);
        self.set_attempt(op, attempt(machine_id));
        let is_multi = requests.len() > 1;
        let mut contender =
            Contender::new(requests, try_once, self.caches.client_uuid_high(), random_u64(&mut self.session));
        let mut cx = Context::new(now, machine_id, &mut self.session, &mut self.caches, &self.chroot, &self.acls);
        contender.set_revocable(&mut cx, is_revocable);
        self.machines.insert(machine_id, StateMachine::Contender(Box::new(contender), Role::Acquiring(op)));
        if is_multi {
            self.start_deadlock_detection(now, op);
        }
        match self.pending_acquire(op).map(|acquire| acquire.rejoins.at).filter(|&at| at > now) {
            Some(at) => self.timers.set(Timer::Join(machine_id), at),
            None => self.admit(now, machine_id),
        }
    }

    /// Records that a contender of an acquire has lost a node, so that a later contender waits before it joins.
    pub(super) fn record_node_loss(&mut self, now: Time, op: OpId) {
        let first = self.session.limits().first_retry;
        if let Some(acquire) = self.pending_acquire_mut(op) {
            acquire.rejoins.record_loss(now, first);
        }
    }

    /// Forgets the lost nodes of an acquire. The end of a session removes all nodes, and is no sign of a wrong server.
    pub(super) fn forget_node_losses(&mut self, op: OpId) {
        if let Some(acquire) = self.pending_acquire_mut(op) {
            acquire.rejoins = Rejoins::default();
        }
    }

    /// Returns an error if the nodes of an acquire do not fit into one transaction.
    pub(super) fn transaction_size_error(&self, op: OpId, requests: &[QueueRequest]) -> Option<Error> {
        let acl_bytes = self.acls.node_bytes();
        let size = |request: &QueueRequest| {
            let bytes = request.directory.len() + request.data.len() + NODE_OVERHEAD;
            request.node_count.saturating_mul(bytes.saturating_add(acl_bytes))
        };
        let bytes = requests.iter().map(size).fold(0, usize::saturating_add);
        let has_several = requests.iter().map(|request| request.node_count).sum::<usize>() > 1;
        (bytes > MAX_TRANSACTION && has_several).then(|| {
            let path = self.path_of(op);
            Error::invalid(format!(
                "{path}: the nodes need {bytes} bytes for paths and data in one transaction; at most {MAX_TRANSACTION} are allowed"
            ))
        })
    }

    /// Returns an error if an acquire would wait behind a node that its own client may not delete. The nodes of an
    /// earlier session are no reason for an error, because they disappear when that session expires.
    fn undeletable_error(&self, op: OpId, requests: &[QueueRequest]) -> Option<Error> {
        let (node, directory) = self.machines.undeletable().find_map(|contender| {
            requests.iter().find_map(|QueueRequest { directory, .. }| {
                contender.undeletable_node(directory, self.session.id()).map(|node| (node, directory))
            })
        })?;
        let message = format!(
            "{}: {node} is still in the queue; this client has left the queue, but the server refuses to delete the node",
            self.path_of(op)
        );
        Some(Error::new(Status::Denied, message).requiring(Permission::Delete, directory))
    }
}

impl Acquire {
    /// Returns whether the owner already holds all locks, so that the acquire waits in no queue.
    pub(super) fn is_reentering(&self) -> bool {
        self.attempt == Attempt::Reentering
    }

    /// Returns whether the acquire waits in the queue of `lock`.
    fn is_in_queue(&self, lock: LockId) -> bool {
        match &self.attempt {
            Attempt::Queues { locks, .. } => locks.contains(&lock),
            Attempt::WaitingInCohort => self.lock == lock,
            _ => false,
        }
    }
}

/// Says whether an owner can re-enter locks.
pub(super) enum Reentry {
    /// The owner can re-enter all locks.
    Allowed,
    /// The owner does not hold at least one of the locks.
    NotHeld,
    /// The engine does not know the state of at least one hold at the moment.
    Unknown,
    /// One of the holds is lost.
    Lost(Error),
}
