//! The locks of an engine: how they are added, removed and configured, and how they belong together.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::interface::{LockId, Notification, Recipe};
use super::machines::{Role, StateMachine};
use super::state::{Engine, Lock};
use crate::error::Status;
use crate::mutant::Mutant;
use crate::recipe::{Context, MaxLeases, QueryScope};
use crate::session::MachineId;
use crate::time::Time;

impl Engine {
    /// Adds a lock. The caller must have checked that `path` is valid. For a multi-lock, `path` is only a name for
    /// messages. The members of a multi-lock must be locks of this engine and must have different paths.
    pub fn add_lock(&mut self, path: impl Into<Arc<str>>, recipe: Recipe) -> LockId {
        let id = self.next_id();
        let path = path.into();
        let directory = if self.chroot.path.is_empty() || Mutant::ForgetChroot.is_active() {
            Arc::clone(&path)
        } else {
            format!("{}{path}", self.chroot.path).into()
        };
        match &recipe {
            Recipe::Queue(_) => self.locks_by_directory.entry(Arc::clone(&directory)).or_default().push(id),
            Recipe::MultiLock(members) => {
                for member in members {
                    if let Some(member) = self.locks.get_mut(member) {
                        member.multi_locks.push(id);
                    }
                }
            }
            _ => {}
        }
        let (holds, multi_locks) = (Vec::new(), Vec::new());
        let (data, is_revocable, max_passes) = (None, false, 0);
        let lock = Lock { path, directory, recipe, data, is_revocable, max_passes, holds, multi_locks };
        self.locks.insert(id, Box::new(lock));
        id
    }

    /// Removes a lock. Operations that wait for this lock, or for a multi-lock that contains it, fail with CLOSED. The
    /// engine releases all holds of the lock.
    pub fn remove_lock(&mut self, now: Time, lock: LockId) {
        self.handle(now, |engine| {
            for waited_for in engine.with_multi_locks(lock) {
                engine.fail_waits(now, waited_for, Status::Closed, true);
            }
            let Some(removed) = engine.locks.remove(&lock) else { return };
            if let Some(siblings) = engine.locks_by_directory.get_mut(&removed.directory) {
                siblings.retain(|&id| id != lock);
                if siblings.is_empty() {
                    engine.locks_by_directory.remove(&removed.directory);
                }
            }
            if let Recipe::MultiLock(members) = &removed.recipe {
                for member in members {
                    if let Some(member) = engine.locks.get_mut(member) {
                        member.multi_locks.retain(|&multi| multi != lock);
                    }
                }
            }
            for hold in removed.holds {
                hold.set_released();
                engine.record_release(now, &hold, &removed.path);
                engine.notifications.push_back(Notification::Event(hold.released_event(lock, &removed.path)));
                engine.make_leave(now, hold.machine_id, None);
            }
            engine.start_next_in(now, &removed.directory);
        });
    }

    /// Returns whether the engine contains a lock and all its members.
    pub fn is_open(&self, lock: LockId) -> bool {
        self.locks.contains_key(&lock) && self.members(lock).iter().all(|member| self.locks.contains_key(member))
    }

    /// Sets the data of each node that a later acquire call creates. If `data` is `None`, these nodes contain the IP
    /// address of this machine.
    pub fn set_data(&mut self, lock: LockId, data: Option<&[u8]>) {
        for member in self.members(lock) {
            if let Some(lock) = self.locks.get_mut(&member) {
                lock.data = data.map(<[u8]>::to_vec);
            }
        }
    }

    /// Sets whether the program wants notifications of revocation requests for this lock.
    pub fn set_revocable(&mut self, now: Time, lock: LockId, is_revocable: bool) {
        self.handle(now, |engine| {
            for member in engine.members(lock) {
                if let Some(lock) = engine.locks.get_mut(&member) {
                    lock.is_revocable = is_revocable;
                }
                for machine_id in engine.contenders_of(member) {
                    let locks = engine.locks_of(machine_id);
                    if locks.contains(&member) {
                        engine.set_revocable_for(now, machine_id, &locks);
                    }
                }
            }
        });
    }

    // Queries.

    /// Returns the members of a multi-lock, or the lock itself.
    pub(super) fn members(&self, lock: LockId) -> Vec<LockId> {
        self.members_or_self(&lock).to_vec()
    }

    /// Returns the same list as [`members`](Self::members), without an allocation.
    pub(super) fn members_or_self<'a>(&'a self, lock: &'a LockId) -> &'a [LockId] {
        match self.locks.get(lock).map(|lock| &lock.recipe) {
            Some(Recipe::MultiLock(members)) => members,
            _ => std::slice::from_ref(lock),
        }
    }

    /// Returns a lock and all multi-locks that contain it.
    pub(super) fn with_multi_locks(&self, lock: LockId) -> Vec<LockId> {
        let multis = self.locks.get(&lock).map_or(&[][..], |lock| &lock.multi_locks);
        [&[lock], multis].concat()
    }

    /// Returns the other locks that have the same directory as `lock`.
    pub(super) fn locks_in_same_directory(&self, lock: LockId) -> impl Iterator<Item = LockId> {
        let directory = self.locks.get(&lock).map(|lock| &lock.directory);
        let siblings = directory.and_then(|directory| self.locks_by_directory.get(directory));
        siblings.into_iter().flatten().copied().filter(move |&sibling| sibling != lock)
    }

    pub(super) fn is_revocable(&self, lock: LockId) -> bool {
        self.locks.get(&lock).is_some_and(|lock| lock.is_revocable)
    }

    pub(super) fn data_of(&self, lock: LockId) -> Vec<u8> {
        let set = self.locks.get(&lock).and_then(|lock| lock.data.clone());
        set.unwrap_or_else(|| self.session.local_address().as_bytes().to_vec())
    }

    pub(super) fn query_scope(&self, lock: LockId, include_both_modes: bool) -> Option<QueryScope> {
        let Lock { directory, recipe, .. } = &**self.locks.get(&lock)?;
        let directory = Arc::clone(directory);
        Some(match recipe {
            Recipe::Queue(mode) => {
                QueryScope::Queue { directory, mode: *mode, with_kazoo: self.with_kazoo, include_both_modes }
            }
            Recipe::SemaphoreMutex => QueryScope::Semaphore { directory, max_leases: MaxLeases::Fixed(1) },
            Recipe::Semaphore(max) => QueryScope::Semaphore { directory, max_leases: MaxLeases::Fixed(*max) },
            Recipe::CountedSemaphore { count_path, .. } => QueryScope::Semaphore {
                directory,
                max_leases: MaxLeases::Count(format!("{}{count_path}", self.chroot.path)),
            },
            Recipe::MultiLock(_) => return None,
        })
    }

    // Contenders.

    /// Returns the locks that a contender holds or waits for. For a multi-lock, the result may contain several locks.
    pub(super) fn locks_of(&self, machine_id: MachineId) -> Vec<LockId> {
        match self.machines.get(machine_id) {
            Some(StateMachine::Contender(_, Role::Holding(lock, _))) => vec![*lock],
            Some(StateMachine::Contender(_, Role::Acquiring(op) | Role::InnerMutex(op))) => {
                self.pending_acquire(*op).map_or_else(Vec::new, |acquire| self.members(acquire.lock))
            }
            _ => Vec::new(),
        }
    }

    /// Returns the contenders that hold a lock or wait for it, in the order in which the engine created them. The result
    /// includes the contenders of lost holds.
    fn contenders_of(&self, lock: LockId) -> BTreeSet<MachineId> {
        let holders = self.locks.get(&lock).into_iter().flat_map(|lock| &lock.holds).map(|hold| hold.machine_id);
        let ops = self.with_multi_locks(lock).into_iter().flat_map(|lock| self.ops_of_lock(lock));
        let waiters = ops.filter_map(|op| self.pending_acquire(op)).flat_map(|acquire| acquire.attempt.contenders());
        holders.chain(waiters).collect()
    }

    /// Makes a contender detect revocation requests if one of these locks is revocable. Otherwise, the contender no
    /// longer detects revocation requests.
    pub(super) fn set_revocable_for(&mut self, now: Time, machine_id: MachineId, locks: &[LockId]) {
        let is_revocable = locks.iter().any(|&lock| self.is_revocable(lock));
        if let Some(StateMachine::Contender(contender, _)) = self.machines.get_mut(machine_id) {
            let mut cx = Context::new(now, machine_id, &mut self.session, &mut self.caches, &self.chroot, &self.acls);
            contender.set_revocable(&mut cx, is_revocable);
        }
    }
}
