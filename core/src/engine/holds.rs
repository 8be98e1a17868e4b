//! Records which owners hold which locks and whether the holds are safe, and reports changes of holds to the program.
//!
//! An operator can delete the node of a hold. At the first heartbeat after the grant, the engine therefore reads the
//! node and sets a watch on it. From then on, the watch reports a deletion at once. If a directory cache contains the
//! node, the cache reports a deletion even before this heartbeat.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::interface::{Answer, Event, HoldId, HoldView, LockId, LockState, Notification, OpId, Revocation};
use super::machines::{Role, StateMachine};
use super::owner::Owner;
use super::record::{loss_cause, record_state};
use super::state::{Acquire, Engine, Hold, NodeStatus};
use crate::error::{Error, Status};
use crate::log_record::{Level, LogRecord};
use crate::mutant::Mutant;
use crate::recipe::{Contender, Input, Removal};
use crate::session::{ClientState, MachineId};
use crate::time::Time;

impl Hold {
    pub(super) const fn id(&self) -> HoldId {
        HoldId { token: self.token, fencing_pass: self.fencing_pass }
    }

    /// Sets the flag of [`Engine::release_flag`].
    pub(super) fn set_released(&self) {
        if let Some(flag) = &self.release_flag {
            flag.store(true, Ordering::Release);
        }
    }

    /// Returns the event that reports the end of a hold.
    pub(super) fn released_event(&self, lock: LockId, path: &Arc<str>) -> Event {
        let (path, previous) = (Arc::clone(path), self.reported_state);
        let (token, fencing_pass) = (self.token, self.fencing_pass);
        Event::Lock { lock, path, token, fencing_pass, state: LockState::Free, previous }
    }
}

impl Engine {
    /// Returns the hold of `owner`. For a multi-lock, the result combines the holds of all members.
    pub fn hold_of(&self, now: Time, lock: LockId, owner: Owner) -> Option<HoldView> {
        self.weakest_view(lock, |member| Some(self.view(now, self.hold(member, owner)?)))
    }

    /// Returns the hold of `owner` that has the given id. Multi-locks have no hold of their own.
    pub fn exact_hold(&self, now: Time, lock: LockId, owner: Owner, id: HoldId) -> Option<HoldView> {
        let mut holds = self.locks.get(&lock)?.holds.iter();
        holds.find(|hold| hold.owner == owner && hold.id() == id).map(|hold| self.view(now, hold))
    }

    /// Returns a flag that becomes true when the program releases the hold of `owner` that has the given id. The close
    /// of the client does not set the flag. If the owner does not have the hold, the flag is true.
    pub fn release_flag(&mut self, lock: LockId, owner: Owner, id: HoldId) -> Arc<AtomicBool> {
        let mut holds = self.locks.get_mut(&lock).into_iter().flat_map(|lock| &mut lock.holds);
        match holds.find(|hold| hold.owner == owner && hold.id() == id) {
            Some(hold) => Arc::clone(hold.release_flag.get_or_insert_default()),
            None => Arc::new(AtomicBool::new(true)),
        }
    }

    /// Returns the answer to an acquire whose owner now holds the lock.
    pub(super) fn acquired_answer(&self, op: OpId) -> Answer {
        let Some(Acquire { lock, owner, .. }) = self.pending_acquire(op) else { return Answer::Done };
        // An owner can have an older hold of a semaphore mutex, which is lost.
        let newest = |member| self.locks.get(member)?.holds.iter().rev().find(|hold| hold.owner == *owner);
        Answer::Acquired(self.members_or_self(lock).iter().filter_map(newest).map(Hold::id).collect())
    }

    /// Returns whether `owner` holds the lock and the hold is safe.
    pub fn is_safe(&self, now: Time, lock: LockId, owner: Owner) -> bool {
        let is_usable = self.is_open(lock) && self.state() != ClientState::Closed;
        is_usable && self.hold_of(now, lock, owner).is_some_and(|view| view.is_safe())
    }

    /// Returns the hold of any owner in this process. The result is a lost hold only if the lock has no other hold.
    pub fn hold_of_any(&self, now: Time, lock: LockId) -> Option<HoldView> {
        self.weakest_view(lock, |member| {
            let holds = &self.locks.get(&member)?.holds;
            let live = holds.iter().find(|hold| !matches!(hold.node_status, NodeStatus::Lost(_)));
            live.or_else(|| holds.first()).map(|hold| self.view(now, hold))
        })
    }

    /// Returns the paths of the nodes of `owner`'s hold, without the chroot.
    pub fn nodes_of(&self, lock: LockId, owner: Owner) -> Vec<String> {
        let holds = self.members(lock).into_iter().filter_map(|member| self.hold(member, owner));
        let contenders = holds.filter_map(|hold| self.machines.contender(hold.machine_id));
        let path = |path: &str| path.get(self.chroot.path.len()..).unwrap_or_default().to_owned();
        contenders.flat_map(|contender| contender.node_paths()).map(path).collect()
    }

    fn weakest_view(&self, lock: LockId, view: impl Fn(LockId) -> Option<HoldView>) -> Option<HoldView> {
        let mut all = self.members(lock).into_iter().map(view);
        let first = all.next()??;
        all.try_fold(first, |least, view| Some(least.and(view?)))
    }

    pub(super) fn view(&self, now: Time, hold: &Hold) -> HoldView {
        let state = self.hold_state(now, hold);
        let safe = matches!(state, LockState::Held | LockState::Suspended);
        let lease = self.session.lease().filter(|_| safe);
        let remaining = lease.map_or(Duration::ZERO, |lease| lease.remaining(now));
        HoldView { state, token: hold.token, fencing_pass: hold.fencing_pass, remaining }
    }

    pub(super) fn hold_state(&self, now: Time, hold: &Hold) -> LockState {
        match hold.node_status {
            NodeStatus::Lost(_) => LockState::Lost,
            _ if !self.session.is_lease_valid(now) => LockState::Uncertain,
            NodeStatus::UnverifiedSinceLeaseEnd => LockState::Uncertain,
            NodeStatus::Verified if self.session.is_connected() => LockState::Held,
            NodeStatus::Verified | NodeStatus::Unverified => LockState::Suspended,
        }
    }

    /// Checks whether the session lease has ended. The engine calls this method before it handles answers that can
    /// extend the lease. If the lease has ended, the state of each hold is unknown until the client has read the node
    /// of the hold again.
    pub(super) fn check_lease(&mut self, now: Time) {
        if self.machines.has_holds()
            && !self.is_lease_over
            && !self.session.is_lease_valid(now)
            && !Mutant::IgnoreLeaseEnd.is_active()
        {
            self.is_lease_over = true;
            self.mark_holds_unverified(now, NodeStatus::UnverifiedSinceLeaseEnd);
            for (lock, owner) in self.ops_by_owner.keys().copied().collect::<Vec<_>>() {
                self.answer_ops_on_hold(now, lock, owner);
            }
        }
    }

    /// Handles a session lease that has become valid again.
    pub(super) fn on_lease_regained(&mut self, now: Time) {
        if !self.is_lease_over || !self.session.is_lease_valid(now) {
            return;
        }
        self.is_lease_over = false;
        self.report_all_states(now);
        let holders = self.locks.iter().flat_map(|(&id, lock)| lock.holds.iter().map(move |hold| (id, hold.owner)));
        for (lock, owner) in holders.collect::<Vec<_>>() {
            self.answer_ops_on_hold(now, lock, owner);
        }
    }

    /// Marks the nodes of all holds as unverified, and starts to verify them.
    pub(super) fn mark_holds_unverified(&mut self, now: Time, node_status: NodeStatus) {
        for lock in self.locks.values_mut() {
            for hold in &mut lock.holds {
                match (hold.node_status, node_status) {
                    (NodeStatus::Verified, _) | (NodeStatus::Unverified, NodeStatus::UnverifiedSinceLeaseEnd) => {
                        hold.node_status = node_status;
                    }
                    _ => {}
                }
            }
        }
        self.verify_holds(now, |_| true);
        self.report_all_states(now);
    }

    /// Ends all holds of a lock, because the program closes the client.
    pub(super) fn close_holds(&mut self, now: Time, lock: LockId) {
        let Some(held) = self.locks.get_mut(&lock) else { return };
        let (holds, path) = (std::mem::take(&mut held.holds), Arc::clone(&held.path));
        for hold in holds {
            self.notifications.push_back(Notification::Forfeit(hold.released_event(lock, &path)));
            self.record_release(now, &hold, &path);
        }
    }

    pub(super) fn verify_holds(&mut self, now: Time, which: impl Fn(&Contender) -> bool) {
        if !self.session.is_connected() {
            return;
        }
        let is_wanted = |machine: &StateMachine| match machine {
            StateMachine::Contender(contender, Role::Holding(..)) => which(contender),
            // The acquire waits until another hold of its owner is safe.
            StateMachine::Contender(contender, Role::Acquiring(_)) if contender.is_acquired() => which(contender),
            StateMachine::Contender(contender, Role::InnerMutex(_)) => {
                which(contender) && !Mutant::NeverWatchInnerMutex.is_active()
            }
            _ => false,
        };
        let holding = self.machines.iter().filter(|(_, machine)| is_wanted(machine)).map(|(id, _)| id);
        for machine_id in holding.collect::<Vec<_>>() {
            self.handle_input(now, machine_id, Input::VerifyNodes);
        }
    }

    pub(super) fn on_hold_lost(
        &mut self,
        now: Time,
        lock: LockId,
        owner: Owner,
        machine_id: MachineId,
        removal: Removal,
    ) {
        if Mutant::HideLoss.is_active() {
            return;
        }
        if let Some(hold) = self.hold_by_machine(lock, machine_id) {
            hold.node_status = NodeStatus::Lost(removal);
        }
        self.record_loss(now, lock, machine_id, removal);
        self.report_states(now, lock);
        self.start_next(now, lock);
        self.answer_ops_on_hold(now, lock, owner);
    }

    // Events.

    /// Reports a revocation request to the program.
    pub(super) fn report_revocation(&mut self, machine_id: MachineId, node: &str) {
        let locks = self.locks_of(machine_id);
        let directory = node.rsplit_once('/').map(|(directory, _)| directory);
        let is_of = |lock: &LockId| self.locks.get(lock).is_some_and(|lock| Some(&*lock.directory) == directory);
        // The nodes of a semaphore are in subdirectories of its path, so the search by directory does not find the
        // semaphore. However, an operation on a semaphore has no other locks.
        let lock = locks.iter().copied().find(is_of).or_else(|| locks.first().copied());
        let node_path = node.get(self.chroot.path.len()..).unwrap_or_default().to_owned();
        if let Some(path) = lock.and_then(|lock| self.locks.get(&lock)).map(|lock| Arc::clone(&lock.path)) {
            self.session
                .log_buffer()
                .add(Level::Info, || LogRecord::RevocationRequested { path, node: node_path.clone() });
        }
        self.notifications.extend(lock.map(|lock| Notification::Revocation(Revocation { lock, node_path })));
    }

    pub(super) fn report_all_states(&mut self, now: Time) {
        for lock in self.held_locks() {
            self.report_states(now, lock);
        }
    }

    pub(super) fn held_locks(&self) -> Vec<LockId> {
        self.locks.iter().filter(|(_, lock)| !lock.holds.is_empty()).map(|(&id, _)| id).collect()
    }

    pub(super) fn report_states(&mut self, now: Time, lock: LockId) {
        let Some(entry) = self.locks.get(&lock) else { return };
        let states: Vec<LockState> = entry.holds.iter().map(|hold| self.hold_state(now, hold)).collect();
        let Some(entry) = self.locks.get_mut(&lock) else { return };
        for (hold, state) in entry.holds.iter_mut().zip(states) {
            let previous = std::mem::replace(&mut hold.reported_state, state);
            if previous != state {
                record_state(&mut self.metrics, self.session.log_buffer(), &entry.path, hold, previous);
                let (path, token, fencing_pass) = (Arc::clone(&entry.path), hold.token, hold.fencing_pass);
                self.notifications.push_back(Notification::Event(Event::Lock {
                    lock,
                    path,
                    token,
                    fencing_pass,
                    state,
                    previous,
                }));
            }
        }
    }

    pub(super) fn hold(&self, lock: LockId, owner: Owner) -> Option<&Hold> {
        self.locks.get(&lock)?.holds.iter().find(|hold| hold.owner == owner)
    }

    /// Returns the hold of this contender. The owner alone does not identify the hold, because it may have another hold
    /// that is lost but not yet released.
    pub(super) fn hold_by_machine(&mut self, lock: LockId, machine_id: MachineId) -> Option<&mut Hold> {
        self.locks.get_mut(&lock)?.holds.iter_mut().find(|hold| hold.machine_id == machine_id)
    }

    pub(super) fn hold_mut(&mut self, lock: LockId, owner: Owner) -> Option<&mut Hold> {
        self.locks.get_mut(&lock)?.holds.iter_mut().find(|hold| hold.owner == owner)
    }
}

pub(super) fn lost_error(path: &str, removal: Removal) -> Error {
    Error::new(Status::Lost, format!("{path}: the lock was lost while it was held: {}", loss_cause(removal)))
}
