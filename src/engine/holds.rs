//! Holds: who is in, how surely by the lease clock, and what the program is told of it.

use std::sync::Arc;
use std::time::Duration;

use super::record::record_state;
use super::{Engine, Event, HoldView, LockId, LockState, Machine, News, Owner, Revocation, Role};
use crate::error::{Error, Status};
use crate::mutant::Mutant;
use crate::note::{Level, Note};
use crate::recipe::{Contender, Input, Removal};
use crate::session::ClientState;
use crate::time::Time;

pub(super) struct Hold {
    pub(super) owner: Owner,
    pub(super) count: u32,
    pub(super) machine: u64,
    pub(super) since: Time,
    pub(super) token: i64,
    /// How often the contender was passed on before.
    pub(super) pass: u32,
    pub(super) trust: Trust,
    pub(super) told: LockState,
}

/// What is known of a hold beside its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// Its node is there.
    Sure,
    /// The connection was lost since the node was last seen.
    Unconfirmed,
    /// The lease was over since the node was last seen.
    Doubtful,
    /// It is lost.
    Lost(Removal),
}

impl Hold {
    /// The last thing to be told of it.
    pub(super) fn freed(&self, lock: LockId, path: &Arc<str>) -> News {
        let (path, previous) = (Arc::clone(path), self.told);
        News::Event(Event::Lock { lock, path, token: self.token, pass: self.pass, state: LockState::Free, previous })
    }
}

impl Engine {
    /// The hold of `owner`; of a multi-lock, all of its locks, and as surely as the least sure of them.
    pub fn hold_of(&self, now: Time, lock: LockId, owner: Owner) -> Option<HoldView> {
        self.least(lock, |member| Some(self.view(now, self.hold(member, owner)?)))
    }

    /// Whether `owner` holds the lock now, and safely so.
    pub fn is_safe(&self, now: Time, lock: LockId, owner: Owner) -> bool {
        let is_usable = self.is_open(lock) && self.state() != ClientState::Closed;
        is_usable && self.hold_of(now, lock, owner).is_some_and(|view| view.is_safe())
    }

    /// The hold of whoever in this process holds it; one that is lost only if there is no other.
    pub fn hold_of_any(&self, now: Time, lock: LockId) -> Option<HoldView> {
        self.least(lock, |member| {
            let holds = &self.locks.get(&member)?.holds;
            let live = holds.iter().find(|hold| !matches!(hold.trust, Trust::Lost(_)));
            live.or_else(|| holds.first()).map(|hold| self.view(now, hold))
        })
    }

    /// The paths of the nodes of `owner`'s hold, without the chroot.
    pub fn nodes_of(&self, lock: LockId, owner: Owner) -> Vec<String> {
        let holds = self.members(lock).into_iter().filter_map(|member| self.hold(member, owner));
        let contenders = holds.filter_map(|hold| match self.machines.get(&hold.machine) {
            Some(Machine::Contender(contender, _)) => Some(contender),
            _ => None,
        });
        let path = |path: &str| path.get(self.chroot.path.len()..).unwrap_or_default().to_owned();
        contenders.flat_map(|contender| contender.node_paths()).map(path).collect()
    }

    fn least(&self, lock: LockId, view: impl Fn(LockId) -> Option<HoldView>) -> Option<HoldView> {
        let mut all = self.members(lock).into_iter().map(view);
        let first = all.next()??;
        all.try_fold(first, |least, view| Some(least.and(view?)))
    }

    pub(super) fn view(&self, now: Time, hold: &Hold) -> HoldView {
        let state = self.hold_state(now, hold);
        let safe = matches!(state, LockState::Held | LockState::Suspended);
        let lease = self.session.lease().filter(|_| safe);
        let remaining = lease.map_or(Duration::ZERO, |lease| lease.remaining(now));
        HoldView { state, token: hold.token, pass: hold.pass, remaining }
    }

    pub(super) fn hold_state(&self, now: Time, hold: &Hold) -> LockState {
        match hold.trust {
            Trust::Lost(_) => LockState::Lost,
            _ if !self.session.lease_runs(now) => LockState::Uncertain,
            Trust::Doubtful => LockState::Uncertain,
            Trust::Sure if self.session.is_connected() => LockState::Held,
            Trust::Sure | Trust::Unconfirmed => LockState::Suspended,
        }
    }

    /// Looks at the lease clock before anything lengthens it: a hold whose lease was over is in doubt until it is seen again.
    pub(super) fn observe(&mut self, now: Time) {
        if self.holding > 0 && !self.lapsed && !self.session.lease_runs(now) && !Mutant::ForgetLapse.lives() {
            self.lapsed = true;
            self.distrust(now, Trust::Doubtful);
        }
    }

    /// The counterpart: the session is surely alive again.
    pub(super) fn recover(&mut self, now: Time) {
        if !self.lapsed || !self.session.lease_runs(now) {
            return;
        }
        self.lapsed = false;
        self.tell_all(now);
        let holders = self.locks.iter().flat_map(|(&id, lock)| lock.holds.iter().map(move |hold| (id, hold.owner)));
        for (lock, owner) in holders.collect::<Vec<_>>() {
            self.settle_reentry(now, lock, owner);
        }
    }

    /// Holds are not what they seemed: look after all of them.
    pub(super) fn distrust(&mut self, now: Time, trust: Trust) {
        for lock in self.locks.values_mut() {
            for hold in &mut lock.holds {
                match (hold.trust, trust) {
                    (Trust::Sure, _) | (Trust::Unconfirmed, Trust::Doubtful) => hold.trust = trust,
                    _ => {}
                }
            }
        }
        self.confirm_holds(now, |_| true);
        self.tell_all(now);
    }

    /// The end of all that is held by a lock, which this program brings about.
    pub(super) fn free_all(&mut self, now: Time, lock: LockId) {
        let Some(held) = self.locks.get_mut(&lock) else { return };
        let (holds, path) = (std::mem::take(&mut held.holds), Arc::clone(&held.path));
        for hold in holds {
            self.news.push_back(hold.freed(lock, &path));
            self.record_release(now, &hold, &path);
        }
    }

    pub(super) fn confirm_holds(&mut self, now: Time, which: impl Fn(&Contender) -> bool) {
        if !self.session.is_connected() {
            return;
        }
        let is_wanted = |machine: &Machine| match machine {
            Machine::Contender(contender, Role::Holding(..)) => which(contender),
            Machine::Contender(contender, Role::Inside(_)) => which(contender) && !Mutant::ForgetInside.lives(),
            _ => false,
        };
        let holding = self.machines.iter().filter(|(_, machine)| is_wanted(machine)).map(|(&id, _)| id);
        for machine in holding.collect::<Vec<_>>() {
            self.feed(now, machine, Input::Confirm);
        }
    }

    pub(super) fn lose(&mut self, now: Time, lock: LockId, owner: Owner, machine: u64, removal: Removal) {
        if Mutant::HideLoss.lives() {
            return;
        }
        if let Some(hold) = self.hold_by_machine(lock, machine) {
            hold.trust = Trust::Lost(removal);
        }
        self.record_loss(now, lock, machine, removal);
        self.tell(now, lock);
        self.muster(now, lock);
        self.settle_reentry(now, lock, owner);
    }

    // Events.

    /// Somebody wants a node back.
    pub(super) fn tell_revoked(&mut self, machine: u64, node: &str) {
        let locks = self.locks_of(machine);
        let directory = node.rsplit_once('/').map(|(directory, _)| directory);
        let is_of = |lock: &LockId| self.locks.get(lock).is_some_and(|lock| Some(&*lock.directory) == directory);
        // The nodes of a semaphore are in directories below its own, and it is never one of several.
        let lock = locks.iter().copied().find(is_of).or_else(|| locks.first().copied());
        let node_path = node.get(self.chroot.path.len()..).unwrap_or_default().to_owned();
        if let Some(path) = lock.and_then(|lock| self.locks.get(&lock)).map(|lock| Arc::clone(&lock.path)) {
            self.session.notes().add(Level::Info, || Note::AskedBack { path, node: node_path.clone() });
        }
        self.news.extend(lock.map(|lock| News::Revocation(Revocation { lock, node_path })));
    }

    pub(super) fn tell_all(&mut self, now: Time) {
        for lock in self.held_locks() {
            self.tell(now, lock);
        }
    }

    pub(super) fn held_locks(&self) -> Vec<LockId> {
        self.locks.iter().filter(|(_, lock)| !lock.holds.is_empty()).map(|(&id, _)| id).collect()
    }

    pub(super) fn tell(&mut self, now: Time, lock: LockId) {
        let Some(told) = self.locks.get(&lock) else { return };
        let states: Vec<LockState> = told.holds.iter().map(|hold| self.hold_state(now, hold)).collect();
        let Some(told) = self.locks.get_mut(&lock) else { return };
        for (hold, state) in told.holds.iter_mut().zip(states) {
            let previous = std::mem::replace(&mut hold.told, state);
            if previous != state {
                record_state(&mut self.tally, self.session.notes(), &told.path, hold, previous);
                let (path, token, pass) = (Arc::clone(&told.path), hold.token, hold.pass);
                self.news.push_back(News::Event(Event::Lock { lock, path, token, pass, state, previous }));
            }
        }
    }

    pub(super) fn hold(&self, lock: LockId, owner: Owner) -> Option<&Hold> {
        self.locks.get(&lock)?.holds.iter().find(|hold| hold.owner == owner)
    }

    /// The hold of this contender. Its owner may have another one, that is lost and was not released yet.
    pub(super) fn hold_by_machine(&mut self, lock: LockId, machine: u64) -> Option<&mut Hold> {
        self.locks.get_mut(&lock)?.holds.iter_mut().find(|hold| hold.machine == machine)
    }

    pub(super) fn hold_mut(&mut self, lock: LockId, owner: Owner) -> Option<&mut Hold> {
        self.locks.get_mut(&lock)?.holds.iter_mut().find(|hold| hold.owner == owner)
    }
}

pub(super) fn lost(path: &str, removal: Removal) -> Error {
    Error::new(Status::Lost, format!("{path}: the lock was lost while it was held: {}", cause_of(removal)))
}

pub(super) const fn cause_of(removal: Removal) -> &'static str {
    match removal {
        Removal::SessionEnded => "its session ended",
        Removal::Deleted => "its node was deleted by somebody else",
    }
}
