//! How a call gets in: the contenders that stand for it, from its first look until it holds.

use std::sync::Arc;

use super::holds::{Hold, Trust, lost};
use super::{Answer, Counted, Engine, Kind, LockId, LockState, Machine, Op, OpId, Owner, Recipe, Role, fresh};
use crate::error::{Error, Result, Status};
use crate::mutant::Mutant;
use crate::recipe::{Contender, Count, Desk, Done, Errand, Input, Mode, Task, Wish};
use crate::time::Time;

/// A transaction stays below this many bytes, and so below the servers' default limit for a frame (1 MiB).
const MAX_TRANSACTION: usize = 900 * 1024;
/// What a node takes of it beside its path and its data.
const NODE_OVERHEAD: usize = 128;
/// When to look again at holds that are in doubt.
const RECHECK: std::time::Duration = std::time::Duration::from_millis(10);

/// What stands for a call that wants to get in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// Nothing: it waits until there are enough leases at all.
    Outside,
    /// Nothing of its own: it waits behind the contender of its cohort.
    Behind,
    /// A look at the leases that are out.
    Look(u64),
    /// A contender; that of the inner mutex, where it wants leases.
    Queue(u64),
    /// That of the inner mutex, which is in, and that of the leases.
    Leases { inside: u64, leases: u64 },
}

impl Engine {
    /// Puts a fresh contender into the queue for a call.
    pub(super) fn join(&mut self, now: Time, op: OpId) {
        let Some(Op { kind: Kind::Acquire { lock, owner, one_look, quantity, .. }, .. }) = self.ops.get(&op) else {
            return;
        };
        let (lock, owner, one_look, quantity) = (*lock, *owner, *one_look, *quantity);
        self.set_attempt(op, Attempt::Outside);
        if one_look && !self.session.is_connected() {
            let error = self.connection_error(now, now);
            return self.give_up(now, op, error);
        }
        let members = self.members(lock);
        match members.first().and_then(|member| self.locks.get(member)).map(|lock| lock.recipe.clone()) {
            None => self.give_up(now, op, Status::Closed.into()),
            Some(Recipe::Queue(_) | Recipe::Multi(_)) => self.join_queues(now, op, &members, owner, one_look),
            Some(recipe) => {
                let semaphore = members.first().copied().unwrap_or(lock);
                self.join_semaphore(now, op, semaphore, &recipe, one_look, quantity);
            }
        }
    }

    /// The attempt of a call has lost a node: once more, from where it stands.
    pub(super) fn rejoin(&mut self, now: Time, op: OpId) {
        match self.attempt(op) {
            Some(Attempt::Leases { inside, .. }) => self.join_leases(now, op, inside),
            _ => self.join(now, op),
        }
    }

    /// The inner mutex of a semaphore is lost while leases are waited for: once more, from the start.
    pub(super) fn lose_inside(&mut self, now: Time, op: OpId) {
        if let Some(Attempt::Leases { leases, .. }) = self.attempt(op) {
            self.dismiss(now, leases, None);
            self.join(now, op);
        }
    }

    /// The leases have to wait, so the inner mutex is watched: if its node were lost unnoticed, another would come inside, and each of
    /// the two would wait for the leases that the other has made.
    pub(super) fn watch_inside(&mut self, now: Time, op: OpId) {
        let Some(Attempt::Leases { inside, .. }) = self.attempt(op) else { return };
        let is_unwatched =
            |machine: &Machine| matches!(machine, Machine::Contender(contender, _) if !contender.is_watched());
        if self.machines.get(&inside).is_some_and(is_unwatched) && !Mutant::ForgetInside.lives() {
            self.feed(now, inside, Input::Confirm);
        }
    }

    /// Ends what stands for a call.
    pub(super) fn drop_attempt(&mut self, now: Time, lock: LockId, attempt: Attempt) {
        match attempt {
            Attempt::Outside | Attempt::Behind => {}
            Attempt::Look(machine) => {
                self.machines.remove(&machine);
            }
            Attempt::Queue(machine) if Mutant::ForgetCohort.lives() => self.dismiss_unless_leaving(now, machine),
            Attempt::Queue(machine) => {
                if !self.hand_down(now, lock, machine) {
                    self.dismiss_unless_leaving(now, machine);
                    self.muster(now, lock);
                }
            }
            Attempt::Leases { inside, leases } => {
                self.dismiss_unless_leaving(now, leases);
                self.dismiss_unless_leaving(now, inside);
            }
        }
    }

    fn dismiss_unless_leaving(&mut self, now: Time, machine: u64) {
        if let Some(&Machine::Contender(_, Role::Acquiring(op) | Role::Inside(op))) = self.machines.get(&machine) {
            self.keep_wait(machine, op);
            self.dismiss(now, machine, None);
        }
    }

    /// That a contender has waited counts for its call, also when another takes its place.
    pub(super) fn keep_wait(&mut self, machine: u64, op: OpId) {
        let has_waited =
            matches!(self.machines.get(&machine), Some(Machine::Contender(contender, _)) if contender.has_waited());
        self.ops.entry(op).and_modify(|op| op.had_to_wait |= has_waited);
    }

    /// A call's contender is in.
    pub(super) fn arrived(&mut self, now: Time, machine: u64, op: OpId) {
        self.keep_wait(machine, op);
        let Some(&Op { kind: Kind::Acquire { lock, owner, attempt, .. }, .. }) = self.ops.get(&op) else { return };
        let is_queue = |lock: &super::Lock| matches!(lock.recipe, Recipe::Queue(_));
        match attempt {
            Attempt::Leases { inside, .. } => {
                let semaphore = self.members(lock).first().copied().unwrap_or(lock);
                self.hold_by(now, machine, semaphore, owner, 0);
                self.granted(now, op, lock, owner, &[semaphore]);
                if !Mutant::StayInside.lives() {
                    self.dismiss(now, inside, None);
                }
            }
            _ if self.members(lock).iter().all(|member| self.locks.get(member).is_some_and(|lock| is_queue(lock))) => {
                self.grant_queues(now, machine, op, lock, owner);
            }
            _ => {
                self.set_role(machine, Role::Inside(op));
                self.join_leases(now, op, machine);
            }
        }
    }

    // Queues.

    /// Joins all that `owner` does not hold yet, in one transaction.
    fn join_queues(&mut self, now: Time, op: OpId, members: &[LockId], owner: Owner, one_look: bool) {
        let mut joined: Vec<LockId> =
            members.iter().copied().filter(|&member| self.hold(member, owner).is_none()).collect();
        if Mutant::JoinOneByOne.lives() {
            joined.truncate(1);
        }
        if joined.is_empty() {
            return self.reenter(now, op);
        }
        if let Some(op) = self.ops.get_mut(&op) {
            op.joined.clone_from(&joined);
        }
        if self.fall_in(now, op, one_look) {
            return;
        }
        let wishes: Vec<Wish> = joined.iter().filter_map(|&member| self.wish(member, owner)).collect();
        if wishes.len() < joined.len() {
            return self.give_up(now, op, Status::Closed.into());
        }
        let is_revocable = joined.iter().any(|&member| self.is_revocable(member));
        self.enqueue(now, op, wishes, one_look, is_revocable, Attempt::Queue);
    }

    fn wish(&self, lock: LockId, owner: Owner) -> Option<Wish> {
        let wanted = self.locks.get(&lock)?;
        let Recipe::Queue(mode) = wanted.recipe else { return None };
        Some(Wish {
            directory: Arc::clone(&wanted.directory),
            mode,
            with_kazoo: self.with_kazoo,
            data: self.data_of(lock),
            count: 1,
            max: 0,
            under: self.hold_to_share(lock, owner),
        })
    }

    /// The node of a hold of the same owner, under which this read lock can stand: nobody it would have to wait for can be in.
    fn hold_to_share(&self, lock: LockId, owner: Owner) -> Option<String> {
        if !matches!(self.locks.get(&lock)?.recipe, Recipe::Queue(Mode::Read)) {
            return None;
        }
        let holds = self.siblings(lock).filter_map(|sibling| self.hold(sibling, owner));
        let live = |hold: &&Hold| !matches!(hold.trust, Trust::Lost(_));
        let machine = holds.into_iter().find(live).map(|hold| hold.machine)?;
        match self.machines.get(&machine) {
            Some(Machine::Contender(contender, _)) => contender.node_name().map(str::to_owned),
            _ => None,
        }
    }

    /// A contender of queues is in. So is the call, unless what it wants to enter once more is not safe.
    fn grant_queues(&mut self, now: Time, machine: u64, op: OpId, lock: LockId, owner: Owner) {
        let joined = self.ops.get(&op).map(|op| op.joined.clone()).unwrap_or_default();
        let entered: Vec<LockId> = self.members(lock).into_iter().filter(|member| !joined.contains(member)).collect();
        match self.may_enter(now, &entered, owner) {
            Entry::Open => {}
            Entry::Free if Mutant::JoinOneByOne.lives() => {
                for &only in &joined {
                    self.hold_by(now, machine, only, owner, 0);
                    self.hold_mut(only, owner).into_iter().for_each(|hold| hold.count = 0);
                }
                return self.join(now, op);
            }
            Entry::Free => {
                self.dismiss(now, machine, None);
                return self.join(now, op);
            }
            Entry::InDoubt => {
                self.retries.insert((now + RECHECK, machine));
                return;
            }
            Entry::Lost(error) => return self.give_up(now, op, error),
        }
        self.enter(&entered, owner);
        match &*joined {
            [only] => self.hold_by(now, machine, *only, owner, 0),
            _ => self.split(now, machine, &joined, owner),
        }
        self.granted(now, op, lock, owner, &joined);
    }

    /// A contender with several places becomes one for each.
    fn split(&mut self, now: Time, machine: u64, locks: &[LockId], owner: Owner) {
        let Some(Machine::Contender(contender, _)) = self.machines.remove(&machine) else { return };
        let mut last = self.last_id;
        let number = || {
            last += 1;
            last
        };
        let mut desk = Desk::new(now, machine, &mut self.session, &mut self.mirrors, &self.chroot);
        let parts = contender.split(&mut desk, number);
        self.last_id = last;
        for ((machine, part), &lock) in parts.into_iter().zip(locks) {
            self.machines.insert(machine, Machine::Contender(Box::new(part), Role::Acquiring(0)));
            self.hold_by(now, machine, lock, owner, 0);
        }
    }

    /// A contender that is in becomes a hold, or after so many passes that of another.
    pub(super) fn hold_by(&mut self, now: Time, machine: u64, lock: LockId, owner: Owner, pass: u32) {
        self.set_role(machine, Role::Holding(lock, owner));
        let Some(Machine::Contender(contender, _)) = self.machines.get(&machine) else { return };
        let token = contender.token().unwrap_or_default();
        let (trust, told) = (Trust::Sure, LockState::Free);
        if let Some(granted) = self.locks.get_mut(&lock) {
            // Mostly the only one.
            granted.holds.reserve_exact(1);
            granted.holds.push(Hold { owner, count: 1, machine, since: now, token, pass, trust, told });
        }
    }

    /// A call has what it wanted, and so have others of the same owner.
    pub(super) fn granted(&mut self, now: Time, op: OpId, lock: LockId, owner: Owner, joined: &[LockId]) {
        self.record_grant(now, op, owner, joined);
        self.answer(now, op, Ok(Answer::Done));
        if self.check_at.is_none() {
            self.check_at = Some(now + self.session.beat());
        }
        for &member in joined {
            self.tell(now, member);
        }
        for &member in joined {
            self.enter_with(now, member, owner);
            self.nest_with(now, member, owner);
        }
        self.enter_with(now, lock, owner);
    }

    /// Other calls of an owner that has just got the lock enter it, and need no place in its queue any more: there they would wait for
    /// him. Those that want other locks as well join the queues of these alone.
    fn enter_with(&mut self, now: Time, entered: LockId, owner: Owner) {
        for lock in self.with_multis(entered) {
            let members = self.members(lock);
            if !self.is_reentrant(&members) {
                continue;
            }
            for op in self.calls_of(lock, owner) {
                let Some(Op { kind: Kind::Acquire { attempt, .. }, joined, .. }) = self.ops.get(&op) else { continue };
                let (attempt, waits_for_it) = (*attempt, joined.contains(&entered));
                if matches!(self.may_enter(now, &members, owner), Entry::Open) {
                    self.enter(&members, owner);
                    self.tally.reentries += 1;
                    self.answer(now, op, Ok(Answer::Done));
                    self.drop_attempt(now, lock, attempt);
                } else if waits_for_it {
                    self.drop_attempt(now, lock, attempt);
                    self.join(now, op);
                }
            }
        }
    }

    /// Calls of an owner for the read lock of a path that he has just got the write lock of: in the queue they would wait for him.
    fn nest_with(&mut self, now: Time, lock: LockId, owner: Owner) {
        let mode = |lock: LockId| self.locks.get(&lock).map(|lock| &lock.recipe);
        if mode(lock) != Some(&Recipe::Queue(Mode::Write)) {
            return;
        }
        let siblings: Vec<LockId> =
            self.siblings(lock).filter(|&sibling| mode(sibling) == Some(&Recipe::Queue(Mode::Read))).collect();
        let waited_for: Vec<LockId> = siblings.into_iter().flat_map(|sibling| self.with_multis(sibling)).collect();
        for lock in waited_for {
            for op in self.calls_of(lock, owner) {
                let Some(Op { kind: Kind::Acquire { attempt, .. }, .. }) = self.ops.get(&op) else { continue };
                let attempt = *attempt;
                self.drop_attempt(now, lock, attempt);
                self.join(now, op);
            }
        }
    }

    /// Takes one more entry of each.
    pub(super) fn enter(&mut self, locks: &[LockId], owner: Owner) {
        for &lock in locks {
            if let Some(hold) = self.hold_mut(lock, owner) {
                hold.count = hold.count.saturating_add(1);
            }
        }
    }

    /// Whether all these holds of `owner` can be entered once more.
    pub(super) fn may_enter(&self, now: Time, locks: &[LockId], owner: Owner) -> Entry {
        let mut entry = Entry::Open;
        for &lock in locks {
            let Some(hold) = self.hold(lock, owner) else { return Entry::Free };
            match (self.hold_state(now, hold), hold.trust) {
                (_, Trust::Lost(removal)) => {
                    let path = self.locks.get(&lock).map_or("", |lock| &lock.path);
                    return Entry::Lost(lost(path, removal));
                }
                (LockState::Held | LockState::Suspended, _) => {}
                _ => entry = Entry::InDoubt,
            }
        }
        entry
    }

    // Semaphores.

    /// First the inner mutex, then the leases: so quantities are served whole, and in their order.
    fn join_semaphore(
        &mut self,
        now: Time,
        op: OpId,
        semaphore: LockId,
        recipe: &Recipe,
        one_look: bool,
        quantity: u32,
    ) {
        let Some(max) = self.max_leases(now, semaphore, recipe) else { return };
        if i64::from(quantity) > i64::from(max) {
            if one_look {
                let path = self.path_of(op);
                let message = format!("{path}: {quantity} leases were asked for, and there are {max} at the moment");
                self.give_up(now, op, Error::new(Status::Timeout, message));
            }
            // Otherwise it waits without keeping others waiting, until the count is raised.
            return;
        }
        let Some(directory) = self.locks.get(&semaphore).map(|lock| Arc::clone(&lock.directory)) else { return };
        if one_look {
            // Where there is no room, nothing is written, and nobody waits for a look.
            let machine = self.next_id();
            self.set_attempt(op, Attempt::Look(machine));
            let look = Errand::new(Task::List { path: format!("{directory}/leases") });
            self.machines.insert(machine, Machine::Errand(Box::new(look), op));
            return self.feed(now, machine, Input::Connected);
        }
        self.join_inner_mutex(now, op, semaphore, &directory);
    }

    fn join_inner_mutex(&mut self, now: Time, op: OpId, semaphore: LockId, directory: &str) {
        let is_revocable = self.is_revocable(semaphore);
        let wish = Wish {
            directory: format!("{directory}/locks").into(),
            mode: Mode::Mutex,
            with_kazoo: false,
            data: self.session.local_address().as_bytes().to_vec(),
            count: 1,
            max: 0,
            under: None,
        };
        self.enqueue(now, op, vec![wish], false, is_revocable, Attempt::Queue);
    }

    fn join_leases(&mut self, now: Time, op: OpId, inside: u64) {
        let Some(Op { kind: Kind::Acquire { lock, one_look, quantity, .. }, .. }) = self.ops.get(&op) else { return };
        let (one_look, quantity) = (*one_look, *quantity);
        let semaphore = self.members(*lock).first().copied().unwrap_or(*lock);
        let Some(wanted) = self.locks.get(&semaphore) else { return };
        let (directory, recipe, is_revocable) =
            (Arc::clone(&wanted.directory), wanted.recipe.clone(), wanted.is_revocable);
        let max = self.max_leases(now, semaphore, &recipe).unwrap_or_default();
        if i64::from(quantity) > i64::from(max) {
            return self.step_back(now, op);
        }
        let wish = Wish {
            directory: format!("{directory}/leases").into(),
            mode: Mode::Lease,
            with_kazoo: false,
            data: self.data_of(semaphore),
            count: usize::try_from(quantity).unwrap_or(usize::MAX),
            max,
            under: None,
        };
        let attempt = |leases| Attempt::Leases { inside, leases };
        self.enqueue(now, op, vec![wish], one_look, is_revocable, attempt);
    }

    /// There are not enough leases any more: others, who want less, shall not wait for that.
    fn step_back(&mut self, now: Time, op: OpId) {
        if let Some(Op { kind: Kind::Acquire { lock, attempt, .. }, .. }) = self.ops.get(&op) {
            let (lock, attempt) = (*lock, *attempt);
            self.set_attempt(op, Attempt::Outside);
            self.drop_attempt(now, lock, attempt);
            self.join(now, op);
        }
    }

    /// How many leases there are, if that is known; it is asked for if not.
    fn max_leases(&mut self, now: Time, semaphore: LockId, recipe: &Recipe) -> Option<i32> {
        match recipe {
            Recipe::Semaphore(max) => Some(*max),
            Recipe::SemaphoreMutex => Some(1),
            Recipe::CountedSemaphore { count_path, initial } => {
                if let Some(counted) = self.counts.get(&semaphore) {
                    return counted.value;
                }
                let machine = self.next_id();
                self.counts.insert(semaphore, Counted { machine, value: None });
                let count = Count::new(format!("{}{count_path}", self.chroot.path), *initial);
                self.machines.insert(machine, Machine::Count(Box::new(count), semaphore));
                if self.session.is_connected() {
                    self.feed(now, machine, Input::Connected);
                }
                None
            }
            Recipe::Queue(_) | Recipe::Multi(_) => None,
        }
    }

    /// The count of a semaphore was read.
    pub(super) fn count_read(&mut self, now: Time, semaphore: LockId, result: Result<i32>) {
        let waiting = self.waiting_for(semaphore);
        let value = match result {
            Ok(value) => value,
            Err(error) => {
                for op in waiting {
                    self.give_up(now, op, error.clone());
                }
                return;
            }
        };
        if let Some(counted) = self.counts.get_mut(&semaphore) {
            if counted.value.is_some() && Mutant::KeepOldCount.lives() {
                return;
            }
            counted.value = Some(value);
        }
        for op in waiting {
            let Some(Op { kind: Kind::Acquire { attempt, quantity, .. }, .. }) = self.ops.get(&op) else { continue };
            match *attempt {
                Attempt::Outside => self.join(now, op),
                Attempt::Leases { .. } if i64::from(*quantity) > i64::from(value) => self.step_back(now, op),
                Attempt::Leases { leases, .. } => self.feed(now, leases, Input::Max(value)),
                Attempt::Behind | Attempt::Look(_) | Attempt::Queue(_) => {}
            }
        }
    }

    /// Counts that nobody waits for are not watched.
    pub(super) fn stop_idle_counts(&mut self, now: Time) {
        let semaphores: Vec<LockId> = self.counts.keys().copied().collect();
        for semaphore in semaphores {
            if !self.waiting_for(semaphore).is_empty() {
                continue;
            }
            if let Some(Counted { machine, .. }) = self.counts.remove(&semaphore) {
                self.feed(now, machine, Input::Leave);
                self.machines.remove(&machine);
            }
        }
    }

    /// An errand is done: a call's own, or the look at the leases of one that is to look only once.
    pub(super) fn errand_done(&mut self, now: Time, op: OpId, result: Result<Done>) {
        let Some(Op { kind, .. }) = self.ops.get(&op) else { return };
        let Kind::Acquire { lock, quantity, .. } = *kind else {
            let answer = result.map(|done| match done {
                Done::Count(value) => Answer::Count(value),
                Done::Done | Done::Children(_) => Answer::Done,
            });
            return self.answer(now, op, answer);
        };
        let semaphore = self.members(lock).first().copied().unwrap_or(lock);
        let Some((directory, recipe)) =
            self.locks.get(&semaphore).map(|lock| (Arc::clone(&lock.directory), lock.recipe.clone()))
        else {
            return;
        };
        let out = match result {
            Ok(Done::Children(out)) => i64::try_from(out).unwrap_or(i64::MAX),
            Ok(_) => 0,
            Err(error) => return self.give_up(now, op, error),
        };
        let max = self.max_leases(now, semaphore, &recipe).unwrap_or_default();
        if out.saturating_add(i64::from(quantity)) > i64::from(max) {
            let path = self.path_of(op);
            let message = format!("{path}: {quantity} wanted, {out} of {max} leases are out");
            return self.give_up(now, op, Error::new(Status::Timeout, message));
        }
        self.set_attempt(op, Attempt::Outside);
        self.join_inner_mutex(now, op, semaphore, &directory);
    }

    // Both.

    /// Puts a contender into its directories.
    fn enqueue(
        &mut self,
        now: Time,
        op: OpId,
        wishes: Vec<Wish>,
        one_look: bool,
        is_revocable: bool,
        attempt: impl FnOnce(u64) -> Attempt,
    ) {
        let size = |wish: &Wish| wish.count.saturating_mul(wish.directory.len() + wish.data.len() + NODE_OVERHEAD);
        let bytes = wishes.iter().map(size).fold(0, usize::saturating_add);
        let machine = self.next_id();
        let attempt = attempt(machine);
        if bytes > MAX_TRANSACTION && wishes.iter().map(|wish| wish.count).sum::<usize>() > 1 {
            let path = self.path_of(op);
            let message = format!(
                "{path}: its nodes would take {bytes} bytes of paths and data in one transaction; at most {MAX_TRANSACTION} are allowed"
            );
            return self.give_up(now, op, Error::invalid(message));
        }
        let path_bytes = wishes.iter().map(Wish::path_bytes).fold(0, usize::saturating_add);
        if let Err(error) = self.path_bytes.check(&self.path_of(op), path_bytes) {
            return self.give_up(now, op, error);
        }
        self.path_bytes.joined(path_bytes);
        self.set_attempt(op, attempt);
        let is_multi = wishes.len() > 1;
        let mut contender = Contender::new(wishes, one_look, self.mirrors.kin(), fresh(&mut self.session));
        let mut desk = Desk::new(now, machine, &mut self.session, &mut self.mirrors, &self.chroot);
        contender.set_revocable(&mut desk, is_revocable);
        self.machines.insert(machine, Machine::Contender(Box::new(contender), Role::Acquiring(op)));
        if is_multi {
            self.look_out_for_knots(now, op);
        }
        self.admit(now, machine);
    }

    /// The locks that a lock stands for.
    pub(super) fn members(&self, lock: LockId) -> Vec<LockId> {
        match self.locks.get(&lock).map(|lock| &lock.recipe) {
            Some(Recipe::Multi(members)) => members.to_vec(),
            _ => vec![lock],
        }
    }

    /// A lock, and those that it is part of.
    pub(super) fn with_multis(&self, lock: LockId) -> Vec<LockId> {
        let multis = self.locks.get(&lock).map_or(&[][..], |lock| &lock.multis);
        [&[lock], multis].concat()
    }

    /// Other queues in the same directory.
    pub(super) fn siblings(&self, lock: LockId) -> impl Iterator<Item = LockId> {
        let directory = self.locks.get(&lock).map(|lock| &lock.directory);
        let siblings = directory.and_then(|directory| self.by_directory.get(directory));
        siblings.into_iter().flatten().copied().filter(move |&sibling| sibling != lock)
    }

    fn is_reentrant(&self, locks: &[LockId]) -> bool {
        locks.iter().all(|lock| self.locks.get(lock).is_some_and(|lock| matches!(lock.recipe, Recipe::Queue(_))))
    }

    fn data_of(&self, lock: LockId) -> Vec<u8> {
        let set = self.locks.get(&lock).and_then(|lock| lock.data.clone());
        set.unwrap_or_else(|| self.session.local_address().as_bytes().to_vec())
    }

    /// The calls that wait for leases of this semaphore.
    fn waiting_for(&self, semaphore: LockId) -> Vec<OpId> {
        let locks = self.with_multis(semaphore);
        locks.into_iter().flat_map(|lock| self.calls_for(lock)).collect()
    }

    fn attempt(&self, op: OpId) -> Option<Attempt> {
        match self.ops.get(&op)?.kind {
            Kind::Acquire { attempt, .. } => Some(attempt),
            _ => None,
        }
    }

    pub(super) fn set_attempt(&mut self, op: OpId, attempt: Attempt) {
        if let Some(Op { kind: Kind::Acquire { lock, attempt: current, .. }, .. }) = self.ops.get_mut(&op) {
            let (lock, before) = (*lock, std::mem::replace(current, attempt));
            self.regroup(lock, op, before, attempt);
        }
    }
}

/// Whether holds can be entered once more.
pub(super) enum Entry {
    /// All of them.
    Open,
    /// One of them is not held.
    Free,
    /// It will be known soon.
    InDoubt,
    /// One of them is lost.
    Lost(Error),
}
