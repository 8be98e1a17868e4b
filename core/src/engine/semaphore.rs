//! Acquires leases of semaphores.
//!
//! An acquire first joins the inner mutex of the semaphore, and then creates its leases. The inner mutex makes sure
//! that an acquire receives all its leases at once, and that acquires succeed in the order of the queue. While the
//! semaphore has fewer leases than an acquire needs, the acquire waits outside the inner mutex, because it would block
//! other acquires there.

use std::sync::Arc;

use super::interface::{LockId, OpId, Recipe};
use super::machines::StateMachine;
use super::state::{Acquire, Attempt, Engine, LeaseCount};
use crate::error::{Error, Result, Status};
use crate::mutant::Mutant;
use crate::recipe::{
    Input, Mode, NodeReply, NodeRequest, QueueRequest, RetriedRequest, SharedCount, are_leases_available,
};
use crate::session::MachineId;
use crate::time::Time;

impl Engine {
    /// Joins the inner mutex of the semaphore. An acquire that makes only one attempt counts the leases first.
    pub(super) fn join_semaphore(&mut self, now: Time, op: OpId, semaphore: LockId) {
        let Some(max) = self.max_leases(now, semaphore) else { return };
        let Some(acquire @ &Acquire { quantity, try_once, .. }) = self.pending_acquire(op) else { return };
        match (acquire.needs_more_than(max), try_once) {
            (true, true) => {
                let path = self.path_of(op);
                let message =
                    format!("{path}: quantity is {quantity}, but the semaphore has only {max} leases at the moment");
                self.fail_op(now, op, Error::new(Status::Timeout, message));
            }
            (true, false) => {}
            (false, true) => self.count_leases(now, op, semaphore),
            (false, false) => self.join_inner_mutex(now, op, semaphore),
        }
    }

    /// Counts the leases before the acquire joins the inner mutex. If too few leases are free, the acquire writes
    /// nothing and blocks no other contender.
    fn count_leases(&mut self, now: Time, op: OpId, semaphore: LockId) {
        let Some(directory) = self.locks.get(&semaphore).map(|lock| &lock.directory) else { return };
        let count_request = RetriedRequest::new(NodeRequest::CountChildren { path: format!("{directory}/leases") });
        let machine_id = self.next_machine_id();
        self.set_attempt(op, Attempt::CountingLeases(machine_id));
        self.start_machine(now, machine_id, StateMachine::RetriedRequest(Box::new(count_request), op));
    }

    /// Joins the inner mutex if enough leases are free. `result` contains the number of leases that other contenders
    /// have taken.
    pub(super) fn on_leases_counted(&mut self, now: Time, op: OpId, result: Result<NodeReply>) {
        let Some(&Acquire { lock, quantity, .. }) = self.pending_acquire(op) else { return };
        let Some(semaphore) = self.semaphore_of(lock) else { return };
        let taken = match result {
            Ok(NodeReply::ChildCount(taken)) => taken,
            Ok(_) => 0,
            Err(error) => return self.fail_op(now, op, error),
        };
        let max = self.max_leases(now, semaphore).unwrap_or_default();
        if !are_leases_available(taken.saturating_add(count_of(quantity)), max) {
            let path = self.path_of(op);
            // The leases of participants that wait are nodes too.
            let in_use = usize::try_from(max).map_or(taken, |max| taken.min(max));
            let message = format!("{path}: quantity is {quantity}, but {in_use} of {max} leases are in use");
            return self.fail_op(now, op, Error::new(Status::Timeout, message));
        }
        self.join_inner_mutex(now, op, semaphore);
    }

    fn join_inner_mutex(&mut self, now: Time, op: OpId, semaphore: LockId) {
        // An acquire of too many leases fails at once, and not only after it has acquired the inner mutex.
        if self.pending_acquire(op).is_some_and(|acquire| acquire.quantity > 1)
            && let Some(leases) = self.lease_request(op, semaphore, 0)
            && let Some(error) = self.transaction_size_error(op, &[leases])
        {
            return self.fail_op(now, op, error);
        }
        let Some(wanted) = self.locks.get(&semaphore) else { return };
        let (lock_path, is_revocable) = (Arc::clone(&wanted.directory), wanted.is_revocable);
        let request = QueueRequest {
            directory: format!("{lock_path}/locks").into(),
            lock_path,
            mode: Mode::Mutex,
            with_kazoo: false,
            data: self.session.local_address().as_bytes().to_vec(),
            node_count: 1,
            max_leases: 0,
            nested_in: None,
        };
        self.add_contender(now, op, vec![request], false, is_revocable, Attempt::InnerMutex);
    }

    /// Creates the leases of an acquire that has acquired the inner mutex.
    pub(super) fn join_leases(&mut self, now: Time, op: OpId, inner_mutex: MachineId) {
        let Some(lock) = self.pending_acquire(op).map(|acquire| acquire.lock) else { return };
        let Some(semaphore) = self.semaphore_of(lock) else { return };
        let max_leases = self.max_leases(now, semaphore).unwrap_or_default();
        let (Some(acquire), Some(wanted)) = (self.pending_acquire(op), self.locks.get(&semaphore)) else { return };
        if acquire.needs_more_than(max_leases) {
            // Acquires that need fewer leases can now continue.
            return self.rejoin(now, op);
        }
        let (try_once, is_revocable) = (acquire.try_once, wanted.is_revocable);
        let Some(request) = self.lease_request(op, semaphore, max_leases) else { return };
        let attempt = |leases| Attempt::Leases { inner_mutex, leases };
        self.add_contender(now, op, vec![request], try_once, is_revocable, attempt);
    }

    /// Returns the request for the leases that an acquire needs.
    fn lease_request(&self, op: OpId, semaphore: LockId, max_leases: i32) -> Option<QueueRequest> {
        let (quantity, lock_path) =
            (self.pending_acquire(op)?.quantity, Arc::clone(&self.locks.get(&semaphore)?.directory));
        Some(QueueRequest {
            directory: format!("{lock_path}/leases").into(),
            lock_path,
            mode: Mode::Lease,
            with_kazoo: false,
            data: self.data_of(semaphore),
            node_count: count_of(quantity),
            max_leases,
            nested_in: None,
        })
    }

    /// Watches the acquire's node in the inner mutex while the acquire waits for leases. Without this watch, the client
    /// would not notice the deletion of the node. Another contender could then acquire the inner mutex, and the two
    /// contenders would wait for each other's leases.
    pub(super) fn watch_inner_mutex(&mut self, now: Time, op: OpId) {
        let Some(&Acquire { attempt: Attempt::Leases { inner_mutex, .. }, .. }) = self.pending_acquire(op) else {
            return;
        };
        let is_unwatched = |machine: &StateMachine| matches!(machine, StateMachine::Contender(contender, _) if !contender.are_nodes_watched());
        if self.machines.get(inner_mutex).is_some_and(is_unwatched) && !Mutant::NeverWatchInnerMutex.is_active() {
            self.handle_input(now, inner_mutex, Input::VerifyNodes);
        }
    }

    /// Restarts an acquire that has lost the inner mutex of its semaphore while it waited for leases.
    pub(super) fn on_inner_mutex_lost(&mut self, now: Time, op: OpId) {
        if let Some(&Acquire { attempt: Attempt::Leases { leases, .. }, .. }) = self.pending_acquire(op) {
            self.make_leave(now, leases, None);
            self.join(now, op);
        }
    }

    // The maximum number of leases.

    /// Returns the maximum number of leases of a semaphore. If the engine does not know the maximum, it requests the
    /// value from the server and returns `None`.
    fn max_leases(&mut self, now: Time, semaphore: LockId) -> Option<i32> {
        match &self.locks.get(&semaphore)?.recipe {
            Recipe::Semaphore(max) => Some(*max),
            Recipe::SemaphoreMutex => Some(1),
            Recipe::CountedSemaphore { count_path, initial } => {
                if let Some(lease_count) = self.lease_counts.get(&semaphore) {
                    return lease_count.value;
                }
                let count = SharedCount::new(format!("{}{count_path}", self.chroot.path), *initial);
                let machine_id = self.next_machine_id();
                self.lease_counts.insert(semaphore, LeaseCount { machine_id, value: None });
                self.start_machine(now, machine_id, StateMachine::SharedCount(Box::new(count), semaphore));
                None
            }
            Recipe::Queue(_) | Recipe::MultiLock(_) => None,
        }
    }

    /// Handles a new value of the shared count that a semaphore uses, or the failure to read this value.
    pub(super) fn on_lease_count(&mut self, now: Time, semaphore: LockId, result: Result<i32>) {
        let waiting = self.acquires_of_semaphore(semaphore);
        let value = match result {
            Ok(value) => value,
            Err(error) => {
                for op in waiting {
                    self.fail_op(now, op, error.clone());
                }
                return;
            }
        };
        if let Some(lease_count) = self.lease_counts.get_mut(&semaphore) {
            if lease_count.value.is_some() && Mutant::KeepOldCount.is_active() {
                return;
            }
            lease_count.value = Some(value);
        }
        for op in waiting {
            let Some(acquire) = self.pending_acquire(op) else { continue };
            match acquire.attempt {
                Attempt::NotStarted => self.join(now, op),
                Attempt::Leases { .. } if acquire.needs_more_than(value) => self.rejoin(now, op),
                Attempt::Leases { leases, .. } => self.handle_input(now, leases, Input::MaxLeases(value)),
                _ => {}
            }
        }
    }

    /// Stops watching the shared counts that no acquire needs.
    pub(super) fn stop_idle_counts(&mut self, now: Time) {
        let semaphores: Vec<LockId> = self.lease_counts.keys().copied().collect();
        for semaphore in semaphores {
            if self.with_multi_locks(semaphore).into_iter().any(|lock| self.has_pending_acquire(lock)) {
                continue;
            }
            if let Some(LeaseCount { machine_id, .. }) = self.lease_counts.remove(&semaphore) {
                self.handle_input(now, machine_id, Input::Leave);
                self.machines.remove(machine_id);
            }
        }
    }

    /// Returns the unfinished acquires that need leases of this semaphore.
    fn acquires_of_semaphore(&self, semaphore: LockId) -> Vec<OpId> {
        let locks = self.with_multi_locks(semaphore);
        let ops = locks.into_iter().flat_map(|lock| self.ops_of_lock(lock));
        ops.filter(|&op| self.pending_acquire(op).is_some()).collect()
    }

    /// Returns the semaphore whose leases an acquire of this lock needs, or `None` if the lock consists of queues.
    pub(super) fn semaphore_of(&self, lock: LockId) -> Option<LockId> {
        let only = match &self.locks.get(&lock)?.recipe {
            Recipe::MultiLock(members) => *members.first()?,
            _ => lock,
        };
        (!matches!(self.locks.get(&only)?.recipe, Recipe::Queue(_) | Recipe::MultiLock(_))).then_some(only)
    }
}

impl Acquire {
    /// Returns whether the acquire needs more leases than a semaphore with this maximum can grant.
    pub(super) fn needs_more_than(&self, max_leases: i32) -> bool {
        !are_leases_available(count_of(self.quantity), max_leases)
    }
}

fn count_of(quantity: u32) -> usize {
    usize::try_from(quantity).unwrap_or(usize::MAX)
}
