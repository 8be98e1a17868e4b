//! Cohorts: calls of one process that stand in a queue as one, and pass the lock among themselves before they give up its node (Dice,
//! Marathe and Shavit, "Lock Cohorting", 2012).
//!
//! The handles of one path that are set so make a cohort. One contender stands for it: that of the call at its head, and then the hold.
//! All others wait behind it, in the order in which they began, with no node and no request of their own. There is never a second
//! one: when it has left, the next call joins at the end of the queue. So whoever waits behind it there waits for one hold, and at
//! most as many more as it may be passed on.

use std::collections::BTreeSet;

use super::attempt::Attempt;
use super::waits::Hindrance;
use super::{Engine, Kind, LockId, LockState, Machine, Op, OpId, Owner, Recipe, Role};
use crate::error::{Error, Result, Status};
use crate::mutant::Mutant;
use crate::recipe::{Contender, Desk, Mode, Obstacle};
use crate::time::Time;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Cohort {
    /// The contender that stands for it. One that is on its way out, or gone, stands for nobody.
    stand: u64,
    /// The calls that wait behind it.
    behind: BTreeSet<OpId>,
}

/// Who is to have a hold next, and how often it was passed on by then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heir {
    op: OpId,
    pass: u32,
}

impl Engine {
    /// How often what is held by this handle may be passed on to other calls of this client on the path, as far as their handles are set
    /// so, before its node is given up; 0: never. Who waits already is not concerned. Errors: UNSUPPORTED for all but mutexes; CLOSED.
    pub fn set_local_handover(&mut self, lock: LockId, max_passes: u32) -> Result<()> {
        let Some(set) = self.locks.get_mut(&lock) else { return Err(Status::Closed.into()) };
        if set.recipe != Recipe::Queue(Mode::Mutex) {
            let message = format!("{}: only a mutex can be passed on among the threads of a process", set.path);
            return Err(Error::new(Status::Unsupported, message));
        }
        set.max_passes = max_passes;
        Ok(())
    }

    // Falling in.

    /// Whether a call that is about to join a queue waits behind others of its cohort instead. One that is to look only once has
    /// seen enough.
    pub(super) fn fall_in(&mut self, now: Time, op: OpId, one_look: bool) -> bool {
        let Some(Op { kind: Kind::Acquire { lock, .. }, .. }) = self.ops.get(&op) else { return false };
        let is_in_cohort = self.locks.get(lock).is_some_and(|lock| lock.max_passes > 0);
        if !is_in_cohort || self.standing(*lock).is_none() {
            return false;
        }
        self.set_attempt(op, Attempt::Behind);
        self.ops.entry(op).and_modify(|op| op.had_to_wait = true);
        if one_look {
            self.found_busy(now, op);
        }
        true
    }

    /// What stands for a call is something else from now on.
    pub(super) fn regroup(&mut self, lock: LockId, op: OpId, before: Attempt, after: Attempt) {
        if before == Attempt::Behind {
            self.fall_out(lock, op);
        }
        let Some(lock) = self.locks.get(&lock) else { return };
        match after {
            Attempt::Behind => {
                self.cohorts.entry(lock.directory.clone()).or_default().behind.insert(op);
            }
            Attempt::Queue(machine) if lock.max_passes > 0 => {
                self.cohorts.entry(lock.directory.clone()).or_default().stand = machine;
            }
            _ => {}
        }
    }

    /// A call waits behind others no longer.
    pub(super) fn fall_out(&mut self, lock: LockId, op: OpId) {
        if let Some(cohort) = self.locks.get(&lock).and_then(|lock| self.cohorts.get_mut(&lock.directory)) {
            cohort.behind.remove(&op);
        }
    }

    // Passing on.

    /// Who is to have the hold of `owner` when he has released it: nobody but where it is surely safe and may be passed on once more, and
    /// no other process has asked for its node.
    pub(super) fn heir(&self, now: Time, lock: LockId, owner: Owner) -> Option<Heir> {
        let held = self.locks.get(&lock).filter(|lock| lock.max_passes > 0)?;
        let hold = held.holds.iter().find(|hold| hold.owner == owner)?;
        let is_safe = self.hold_state(now, hold) == LockState::Held || Mutant::PassBlindly.lives();
        let may_go_on = hold.pass < held.max_passes || Mutant::PassForever.lives();
        let cohort = self.cohorts.get(&held.directory).filter(|cohort| cohort.stand == hold.machine)?;
        let op = *cohort.behind.first()?;
        let is_wanted_back = self.contender(hold.machine).is_none_or(Contender::is_asked_back);
        (is_safe && may_go_on && !is_wanted_back).then(|| Heir { op, pass: hold.pass.saturating_add(1) })
    }

    /// Makes what was just released the hold of its heir. False where there is none: its node is to go.
    pub(super) fn pass_on(&mut self, now: Time, machine: u64, heir: Option<Heir>) -> bool {
        let Some(Heir { op, pass }) = heir else { return false };
        let Some(Op { kind: Kind::Acquire { lock, owner, .. }, .. }) = self.ops.get(&op) else { return false };
        let (lock, owner) = (*lock, *owner);
        self.entrust(now, machine, lock);
        self.hold_by(now, machine, lock, owner, pass);
        self.tally.local_passes += 1;
        self.granted(now, op, lock, owner, &[lock]);
        true
    }

    /// The call for which a contender stands has ended: the place in the queue is the next one's, unless somebody has asked for it.
    pub(super) fn hand_down(&mut self, now: Time, lock: LockId, machine: u64) -> bool {
        let Some(held) = self.locks.get(&lock) else { return false };
        let Some(cohort) = self.cohorts.get(&held.directory).filter(|cohort| cohort.stand == machine) else {
            return false;
        };
        let Some(Machine::Contender(contender, Role::Acquiring(_))) = self.machines.get(&machine) else { return false };
        let Some(&op) = cohort.behind.first() else { return false };
        if contender.is_asked_back() || contender.looks_once() {
            return false;
        }
        let Some(Op { kind: Kind::Acquire { lock, .. }, .. }) = self.ops.get(&op) else { return false };
        self.entrust(now, machine, *lock);
        self.set_attempt(op, Attempt::Queue(machine));
        self.set_role(machine, Role::Acquiring(op));
        true
    }

    /// A contender stands for a call of this handle from now on.
    fn entrust(&mut self, now: Time, machine: u64, lock: LockId) {
        let is_revocable = self.is_revocable(lock);
        if let Some(Machine::Contender(contender, _)) = self.machines.get_mut(&machine) {
            let mut desk = Desk::new(now, machine, &mut self.session, &mut self.mirrors, &self.chroot);
            contender.set_revocable(&mut desk, is_revocable);
        }
    }

    /// Where nobody stands for those who wait any more, the next of them joins.
    pub(super) fn muster(&mut self, now: Time, lock: LockId) {
        if let Some(directory) = self.locks.get(&lock).map(|lock| lock.directory.clone()) {
            self.muster_in(now, &directory);
        }
    }

    pub(super) fn muster_in(&mut self, now: Time, directory: &str) {
        while let Some(cohort) = self.cohorts.get(directory)
            && !self.stands(cohort.stand)
        {
            match cohort.behind.first() {
                Some(&next) => self.join(now, next),
                None => drop(self.cohorts.remove(directory)),
            }
        }
    }

    // Questions.

    /// What is in the way of a call that waits behind others.
    pub(super) fn in_front(&self, lock: LockId) -> Hindrance<'_> {
        let contender = self.standing(lock).and_then(|machine| self.contender(machine));
        let Some((contender, node)) = contender.and_then(|contender| Some((contender, contender.node_paths().next()?)))
        else {
            return Hindrance::Unknown { own: None };
        };
        let count = match contender.obstacle() {
            Some((_, Obstacle::Ahead { count, .. })) => count,
            _ => 0,
        };
        Hindrance::Cohort { node, is_in: contender.is_in(), count }
    }

    /// The contender that stands for the cohort of this lock.
    fn standing(&self, lock: LockId) -> Option<u64> {
        let lock = self.locks.get(&lock)?;
        self.cohorts.get(&lock.directory).map(|cohort| cohort.stand).filter(|&stand| self.stands(stand))
    }

    fn stands(&self, machine: u64) -> bool {
        matches!(self.machines.get(&machine), Some(Machine::Contender(_, Role::Acquiring(_) | Role::Holding(..))))
    }

    fn contender(&self, machine: u64) -> Option<&Contender> {
        match self.machines.get(&machine) {
            Some(Machine::Contender(contender, _)) => Some(contender),
            _ => None,
        }
    }
}
