//! Runs the tasks of programs. A task uses [`Steps`] for its decisions, as the library does. The checker requires that
//! every member lock is safe at the moment of success.

use std::collections::BTreeMap;

use zklock_core::engine::{AcquireLimit, Answer, HoldId, HoldToRelease, OpId, Owner, Recipe};
use zklock_core::error::{Error, Status};
use zklock_core::recipe::Mode;
use zklock_core::steps::{Action, Ending, Steps};
use zklock_core::time::Time;

use super::{Event, World};
use crate::checker::{Grant, Holder};
use crate::client::{Client, Life, SLACK, exclusion};
use crate::plan::{PathRecipe, ms, pick};
use crate::program::{Acquire, CallPurpose, MemberLock, MultiStep, Phase, Program, Task, TaskCall, TimeLimit};

impl World {
    /// Creates the programs of the plan and their locks.
    pub(super) fn create_programs(&mut self) {
        for (number, plan) in self.plan.programs.iter().enumerate() {
            let mut member_locks = Vec::new();
            for path in self.plan.lockable_paths() {
                for recipe in recipes(self.plan.path_recipes[path]) {
                    for &client in &plan.clients {
                        let lock = self.clients[client].add_stepwise_lock(path, recipe.clone());
                        member_locks.push(MemberLock { client, lock, path, recipe: recipe.clone() });
                    }
                }
            }
            let task = |&(owner, rounds): &(u64, u32)| Task { owner, rounds, phase: Phase::Idle };
            let tasks: Vec<Task> = plan.tasks.iter().map(task).collect();
            for &client in &plan.clients {
                self.clients[client].unfinished_tasks = tasks.len();
            }
            let clients = plan.clients.clone();
            self.programs.push(Program { clients, member_locks, tasks, granted: BTreeMap::new() });
            let born = self.now + self.plan.clients[plan.clients[0]].start + ms(500);
            for task in 0..plan.tasks.len() {
                self.sequence += 1;
                self.events.insert((born, self.sequence), Event::RunTask(number, task));
            }
        }
    }

    /// Returns all clients of the process that contains this client.
    pub(super) fn clients_of_process(&self, client: usize) -> Vec<usize> {
        let program = self.programs.iter().find(|program| program.clients.contains(&client));
        program.map_or_else(|| vec![client], |program| program.clients.clone())
    }

    /// Returns the first client of a program. All clients of a program are suspended, continue and end together.
    pub(super) fn client_of(&self, program: usize) -> usize {
        self.programs[program].clients[0]
    }

    /// Runs the next step of a task.
    pub(super) fn run_task(&mut self, program: usize, task: usize) {
        if self.clients[self.client_of(program)].life != Life::Running {
            return;
        }
        let own = &mut self.programs[program].tasks[task];
        match &mut own.phase {
            Phase::Idle if own.rounds == 0 => {
                own.phase = Phase::Done;
                for client in self.programs[program].clients.clone() {
                    self.clients[client].unfinished_tasks -= 1;
                    self.process_engine(client);
                }
            }
            Phase::Idle => {
                own.rounds -= 1;
                self.acquire(program, task);
            }
            Phase::Holding(held) => {
                let held = std::mem::take(held);
                self.release(program, task, &held);
            }
            Phase::Acquiring(_) | Phase::Leaving(_) | Phase::Done => {}
        }
    }

    /// Cancels or abandons the acquire of a task.
    pub(super) fn cancel_task(&mut self, program: usize, task: usize, abandons: bool) {
        if let Phase::Acquiring(acquire) = &mut self.programs[program].tasks[task].phase {
            acquire.may_be_canceled = true;
            if abandons {
                acquire.steps.abandon();
            } else {
                acquire.steps.cancel();
            }
            self.perform_task_actions(program, task);
        }
    }

    fn acquire(&mut self, program: usize, task: usize) {
        let steps_to_take = self.choose_steps(program, task);
        if steps_to_take.is_empty() {
            return self.pause_task(program, task, Phase::Idle);
        }
        // If other clients join locks in one transaction, a deadlock may last until a deadline expires.
        let limits: &[TimeLimit] = match self.plan.with_multi_locks {
            true => &[TimeLimit::Deadline, TimeLimit::Deadline, TimeLimit::OneLook],
            false => &[TimeLimit::None, TimeLimit::None, TimeLimit::Deadline, TimeLimit::OneLook],
        };
        let acquire_limit = *pick(&mut self.program_rng, limits);
        let length = match acquire_limit {
            TimeLimit::None => None,
            TimeLimit::OneLook => Some(ms(1_000)),
            TimeLimit::Deadline => Some(self.plan.session_timeout.mul_f64(0.2 + self.program_rng.f64() * 5.0)),
        };
        let deadline = length.map(|length| self.now + length);
        let steps = Steps::new(steps_to_take.len());
        let acquire = Acquire { steps, steps_to_take, time_limit: acquire_limit, deadline, may_be_canceled: false };
        self.programs[program].tasks[task].phase = Phase::Acquiring(Box::new(acquire));
        if self.program_rng.u8(..6) == 0 {
            let at = self.now + self.plan.session_timeout.mul_f64(self.program_rng.f64());
            let abandons = self.program_rng.bool();
            self.schedule(at, Event::CancelTask(program, task, abandons));
        }
        self.perform_task_actions(program, task);
    }

    /// Chooses two or three locks with different paths, in the order of the paths. In runs with multi-locks,
    /// consecutive queues of one client may be joined in one transaction.
    fn choose_steps(&mut self, program: usize, task: usize) -> Vec<MultiStep> {
        let is_shared = self.is_shared(program, task);
        let (plan, rng) = (&self.plan, &mut self.program_rng);
        let own = &self.programs[program].member_locks;
        let mut paths = plan.lockable_paths();
        rng.shuffle(&mut paths);
        paths.truncate(rng.usize(2..=3));
        paths.sort_unstable();
        let mut steps: Vec<MultiStep> = Vec::new();
        for path in paths {
            // Tasks with the same owner cannot distinguish their holds of a semaphore mutex, because it is not
            // re-entrant. A task may also nest a read lock in the write lock of another one whose success was not
            // reported to the checker yet.
            let is_plain = |part: &MemberLock| matches!(part.recipe, Recipe::Queue(Mode::Mutex | Mode::Write));
            let fits = |part: &MemberLock| part.path == path && (!is_shared || is_plain(part));
            let parts: Vec<usize> = (0..own.len()).filter(|&part| fits(&own[part])).collect();
            if parts.is_empty() {
                continue;
            }
            let part = *pick(rng, &parts);
            let (client, lock) = (own[part].client, own[part].lock);
            let is_queue = |part: usize| matches!(own[part].recipe, Recipe::Queue(_));
            match steps.last_mut().filter(|last| last.client == client && is_queue(last.members[0])) {
                Some(last) if plan.with_multi_locks && is_queue(part) && rng.bool() => last.members.push(part),
                _ => steps.push(MultiStep { client, lock, members: vec![part] }),
            }
        }
        for step in steps.iter_mut().filter(|step| step.members.len() > 1) {
            let locks = step.members.iter().map(|&part| own[part].lock).collect();
            step.lock = self.clients[step.client].engine.add_lock("/several", Recipe::MultiLock(locks));
        }
        steps
    }

    fn is_shared(&self, program: usize, task: usize) -> bool {
        let tasks = &self.programs[program].tasks;
        tasks.iter().filter(|other| other.owner == tasks[task].owner).count() > 1
    }

    /// Performs the actions that the steps of a task require.
    fn perform_task_actions(&mut self, program: usize, task: usize) {
        let owner = self.owner(program, task);
        let mut touched = Vec::new();
        while let Phase::Acquiring(acquire) = &mut self.programs[program].tasks[task].phase {
            let Some(order) = acquire.steps.poll() else { break };
            let text = format!("{order:?}");
            let (parts, limit, deadline) = (acquire.steps_to_take.clone(), acquire.time_limit, acquire.deadline);
            self.log(|| format!("program {program}: task {task}: {text}"));
            let acquire_limit = |world: &Self, client: usize| match (limit, deadline) {
                (TimeLimit::OneLook, Some(end)) => AcquireLimit::TryOnce(world.clients[client].local(end)),
                (TimeLimit::Deadline, Some(end)) => AcquireLimit::Until(world.clients[client].local(end)),
                _ => AcquireLimit::Unlimited,
            };
            match order {
                Action::Acquire(step, call) | Action::StartHoldWait(step, call) | Action::Confirm(step, call) => {
                    let MultiStep { client, lock, .. } = parts[step];
                    let (now, acquire_limit) = (self.clients[client].local(self.now), acquire_limit(self, client));
                    let engine = &mut self.clients[client].engine;
                    let op = match order {
                        Action::Acquire(..) => engine.acquire(now, lock, owner, acquire_limit),
                        Action::Confirm(..) => engine.wait_until_safe(now, lock, owner, acquire_limit),
                        _ => engine.wait_until_ended(now, lock, owner),
                    };
                    self.record_task_call(program, task, CallPurpose::Step(call), client, op);
                    if let Phase::Acquiring(acquire) = &mut self.programs[program].tasks[task].phase {
                        match order {
                            Action::StartHoldWait(..) => acquire.steps.on_hold_wait_started(step, call, op),
                            _ => acquire.steps.on_call_started(call, op),
                        }
                    }
                    touched.push(client);
                }
                Action::Look => {
                    let is_safe = |step: &MultiStep| {
                        let client = &self.clients[step.client];
                        client.engine.is_safe(client.local(self.now), step.lock, owner)
                    };
                    let first_unsafe = parts.iter().position(|step| !is_safe(step));
                    if let Phase::Acquiring(acquire) = &mut self.programs[program].tasks[task].phase {
                        acquire.steps.on_safety_checked(first_unsafe);
                    }
                }
                Action::Cancel(step, op) | Action::Abandon(step, op) => {
                    let client = parts[step].client;
                    let now = self.clients[client].local(self.now);
                    let engine = &mut self.clients[client].engine;
                    match order {
                        Action::Abandon(..) => engine.abandon_op(now, op),
                        _ => engine.cancel_op(now, op),
                    }
                    touched.push(client);
                }
                Action::Release(step, holds) => {
                    for (&part, &id) in parts[step].members.iter().zip(&holds).rev() {
                        self.release_member(program, task, part, Some(id), CallPurpose::GiveBack);
                    }
                    touched.push(parts[step].client);
                }
                Action::End(ending) => self.on_task_ended(program, task, &ending),
            }
        }
        touched.sort_unstable();
        touched.dedup();
        touched.into_iter().for_each(|client| self.process_engine(client));
    }

    fn owner(&self, program: usize, task: usize) -> Owner {
        Owner::task(self.programs[program].tasks[task].owner)
    }

    fn record_task_call(&mut self, program: usize, task: usize, purpose: CallPurpose, client: usize, op: OpId) {
        self.clients[client].task_calls.insert(op, TaskCall { program, task, purpose });
    }

    /// Releases a member lock once, if the task's owner holds it. Returns whether it does. If `exact` is given, releases
    /// only the hold with this id.
    fn release_member(
        &mut self,
        program: usize,
        task: usize,
        part: usize,
        exact: Option<HoldId>,
        purpose: CallPurpose,
    ) -> bool {
        let owner = self.owner(program, task);
        let MemberLock { client, lock, .. } = self.programs[program].member_locks[part];
        let now = self.clients[client].local(self.now);
        let engine = &mut self.clients[client].engine;
        if engine.hold_of(now, lock, owner).is_none() {
            return false;
        }
        let waits = matches!(purpose, CallPurpose::Release) && self.program_rng.bool();
        let op = match exact {
            Some(id) => engine.release_holds(now, owner, &[(lock, HoldToRelease::Exact(id))], waits),
            None => engine.release(now, lock, owner, waits),
        };
        let is_free = engine.hold_of(now, lock, owner).is_none();
        self.record_task_call(program, task, purpose, client, op);
        if is_free {
            let holder = self.holder(program, part, owner);
            self.programs[program].granted.remove(&holder);
            self.checker.released(holder);
        }
        true
    }

    fn holder(&self, program: usize, part: usize, owner: Owner) -> Holder {
        let MemberLock { client, lock, .. } = self.programs[program].member_locks[part];
        // Tasks with the same owner are one holder. No thread has such a number.
        let thread = 1_000 + owner.task_number().unwrap_or_default() as usize;
        Holder { client, thread, lock, owner }
    }

    /// Handles the results of operations for tasks.
    pub(super) fn process_task_answers(&mut self, client: usize) {
        for (call, result) in std::mem::take(&mut self.clients[client].task_answers) {
            let TaskCall { program, task, purpose } = call;
            self.log(|| format!("program {program}: task {task}: {purpose:?} is answered: {result:?}"));
            match purpose {
                CallPurpose::Step(number) => {
                    if let Phase::Acquiring(acquire) = &mut self.programs[program].tasks[task].phase {
                        acquire.steps.on_answer(number, result);
                        self.perform_task_actions(program, task);
                    }
                }
                CallPurpose::Release => self.on_released(program, task, &result),
                CallPurpose::GiveBack => {}
            }
        }
    }

    fn on_released(&mut self, program: usize, task: usize, result: &Result<Answer, Error>) {
        if let Err(error) = result
            && !matches!(error.status(), Status::Lost | Status::Connection | Status::Denied)
        {
            self.checker.add_violation(|| format!("program {program}: task {task}: the release failed: {error}"));
        }
        if let Phase::Leaving(left) = &mut self.programs[program].tasks[task].phase {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.pause_task(program, task, Phase::Idle);
            }
        }
    }

    /// Pauses a task, which then continues in the given phase.
    fn pause_task(&mut self, program: usize, task: usize, phase: Phase) {
        let session = self.plan.session_timeout;
        let length = *pick(&mut self.program_rng, &[ms(0), ms(1), ms(20), ms(300), session / 2, session * 2]);
        self.programs[program].tasks[task].phase = phase;
        self.schedule(self.now + length, Event::RunTask(program, task));
    }

    fn on_task_ended(&mut self, program: usize, task: usize, ending: &Ending) {
        let is_shared = self.is_shared(program, task);
        let abandons = self.program_rng.u8(..8) == 0;
        let now = self.now;
        let Phase::Acquiring(acquire) = &mut self.programs[program].tasks[task].phase else { return };
        if matches!(ending, Ending::Acquired) && abandons {
            // The program has not read the success yet.
            acquire.may_be_canceled = true;
            acquire.steps.abandon();
            return;
        }
        acquire.steps.keep();
        let (parts, limit, deadline) =
            (std::mem::take(&mut acquire.steps_to_take), acquire.time_limit, acquire.deadline);
        let is_expected = match ending {
            Ending::Acquired => true,
            Ending::Canceled(_) | Ending::Abandoned => acquire.may_be_canceled,
            Ending::Failed(error) => match error.status() {
                Status::Timeout | Status::Connection => limit != TimeLimit::None,
                Status::Canceled => acquire.may_be_canceled,
                // These are possible only if another task has acquired the lock before.
                Status::Lost | Status::Deadlock => is_shared,
                Status::Exhausted => {
                    let nodes = parts.iter().map(|step| step.members.len()).max().unwrap_or_default();
                    self.is_any_member(program, &parts, |client, _| client.may_exhaust_steps(nodes))
                }
                Status::Auth => self.is_any_member(program, &parts, |client, _| client.may_be_refused),
                Status::Foreign => self.is_any_member(program, &parts, |_, path| self.checker.had_foreign(path)),
                Status::Denied => {
                    self.is_any_member(program, &parts, |_, path| self.checker.were_permissions_removed(path))
                }
                _ => false,
            },
        };
        if !is_expected {
            self.checker.add_violation(|| format!("program {program}: task {task} ended with {ending:?}"));
        }
        let stood_still = self.clients[self.client_of(program)].resumed_at;
        if deadline.is_some_and(|deadline| now > deadline.max(stood_still) + SLACK) {
            self.checker.add_violation(|| format!("program {program}: task {task} ended late, with {ending:?}"));
        }
        let is_timeout = matches!(ending, Ending::Failed(error) if error.status() == Status::Timeout);
        if is_timeout && limit == TimeLimit::Deadline && deadline.is_some_and(|deadline| now + SLACK < deadline) {
            self.checker.add_violation(|| format!("program {program}: task {task} timed out early"));
        }
        let is_got = matches!(ending, Ending::Acquired);
        if is_got {
            for part in parts.iter().flat_map(|step| &step.members) {
                self.check_success(program, task, *part);
            }
        }
        // The handle of a multi-lock is removed; its members stay held.
        for step in parts.iter().filter(|step| step.members.len() > 1) {
            let now = self.clients[step.client].local(now);
            self.clients[step.client].engine.remove_lock(now, step.lock);
        }
        let phase = if is_got { Phase::Holding(parts) } else { Phase::Idle };
        self.pause_task(program, task, phase);
    }

    /// Returns whether a condition is true for the client and the full path of any lock in these steps.
    fn is_any_member(&self, program: usize, steps: &[MultiStep], is_so: impl Fn(&Client, &str) -> bool) -> bool {
        steps.iter().flat_map(|step| &step.members).any(|&part| {
            let MemberLock { client, path, .. } = self.programs[program].member_locks[part];
            let client = &self.clients[client];
            is_so(client, &client.full_path(path))
        })
    }

    /// Checks that a lock is safe after a success, and reports the grant to the checker.
    fn check_success(&mut self, program: usize, task: usize, part: usize) {
        let owner = self.owner(program, task);
        let MemberLock { client, lock, path, ref recipe } = self.programs[program].member_locks[part];
        let (exclusion, holder) = (exclusion(recipe), self.holder(program, part, owner));
        let own = &self.clients[client];
        let local = own.local(self.now);
        let Some(view) = own.engine.hold_of(local, lock, owner).filter(|_| own.engine.is_safe(local, lock, owner))
        else {
            let state = own.engine.hold_of(local, lock, owner).map(|view| view.state);
            let path = own.full_path(path);
            let text = format!("program {program}: task {task} has succeeded, but its hold of {path} is {state:?}");
            return self.checker.add_violation(|| text);
        };
        let token = (view.token, view.fencing_pass);
        if self.programs[program].granted.insert(holder, token) == Some(token) {
            // The lock was re-entered.
            return;
        }
        let nodes = own.nodes_of(lock, owner);
        let known_before = own.must_know_before(self.now).unwrap_or_default();
        let grant = Grant { path, exclusion, nodes, token, known_before, count_known_before: Time::default() };
        self.checker.granted(self.now, holder, grant);
    }

    fn release(&mut self, program: usize, task: usize, held: &[MultiStep]) {
        let mut left = 0;
        for &part in held.iter().rev().flat_map(|step| step.members.iter().rev()) {
            left += usize::from(self.release_member(program, task, part, None, CallPurpose::Release));
        }
        if left == 0 {
            self.checker.add_violation(|| format!("program {program}: task {task} holds nothing to release"));
        }
        self.programs[program].tasks[task].phase = Phase::Leaving(left);
        for client in self.programs[program].clients.clone() {
            self.process_engine(client);
        }
    }

    /// Reports the safe holds of all tasks of a client to the checker.
    pub(super) fn check_task_holds(&mut self, client: usize) {
        let own = &self.clients[client];
        let local = own.local(self.now);
        for holder in
            self.programs.iter().flat_map(|program| program.granted.keys()).filter(|held| held.client == client)
        {
            let Some(view) = own.engine.hold_of(local, holder.lock, holder.owner) else {
                self.checker.add_violation(|| format!("a hold of {holder:?} ended without an event"));
                continue;
            };
            if own.engine.is_safe(local, holder.lock, holder.owner) {
                self.checker.on_hold_safe(self.now, *holder, own.global(local + view.remaining), None);
            }
        }
    }
}

fn recipes(path_recipe: PathRecipe) -> Vec<Recipe> {
    match path_recipe {
        PathRecipe::Mutex => vec![Recipe::Queue(Mode::Mutex)],
        PathRecipe::ReadWrite => vec![Recipe::Queue(Mode::Read), Recipe::Queue(Mode::Write)],
        PathRecipe::SemaphoreMutex => vec![Recipe::SemaphoreMutex],
        PathRecipe::Semaphore(_) | PathRecipe::Counted(_) => Vec::new(),
    }
}
