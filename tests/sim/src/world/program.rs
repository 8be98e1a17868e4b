//! Programs with tasks that acquire several locks step by step, through one or two clients of one process. They decide by
//! [`Steps`], as the library does. The judge's rule for them: success implies that every part is safe at that moment.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use zklock::engine::{Answer, LockId, OpId, Owner, Patience, Recipe};
use zklock::recipe::Mode;
use zklock::steps::{CallId, Ending, Order, Steps};
use zklock::{Error, Status, Time};

use super::{Happening, World};
use crate::client::{Client, Life, SLACK, stance};
use crate::judge::{Grant, Holder, Pair};
use crate::plan::{Fault, Form, Plan, ms, pick};

/// One process that takes locks step by step.
#[derive(Debug)]
pub(crate) struct ProgramPlan {
    /// The clients of the process.
    pub(crate) clients: Vec<usize>,
    /// The owner of each task and how often the task tries to get locks. Several tasks may have one owner.
    pub(crate) tasks: Vec<(u64, u32)>,
}

/// See the module's description.
pub(super) struct Program {
    clients: Vec<usize>,
    parts: Vec<Part>,
    tasks: Vec<Task>,
    /// What the judge knows that this program holds.
    granted: BTreeMap<Holder, Pair>,
}

/// A lock of one client.
struct Part {
    client: usize,
    lock: LockId,
    path: usize,
    recipe: Recipe,
}

struct Task {
    owner: u64,
    rounds: u32,
    phase: Phase,
}

enum Phase {
    Idle,
    Acquiring(Box<Acquire>),
    Holding(Vec<Step>),
    /// Waits for the answers of so many releases.
    Leaving(usize),
    Done,
}

struct Acquire {
    steps: Steps,
    /// The locks, in the order in which they are taken.
    parts: Vec<Step>,
    patience: Limit,
    deadline: Option<Time>,
    may_be_canceled: bool,
}

/// One lock, or several of one client that are joined in one transaction.
#[derive(Debug, Clone)]
struct Step {
    client: usize,
    lock: LockId,
    /// Their numbers among the program's parts.
    parts: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    None,
    OneLook,
    Deadline,
}

/// A call that a client makes for a task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskCall {
    program: usize,
    task: usize,
    purpose: Purpose,
}

#[derive(Debug, Clone, Copy)]
enum Purpose {
    Step(CallId),
    Release,
    /// The answer changes nothing.
    GiveBack,
}

impl Plan {
    /// A quarter of the runs has such programs, and enough locks for them.
    pub(crate) fn form_programs(&mut self, dice: &mut Rng, busy: Duration) {
        if dice.u8(..4) != 0 {
            return;
        }
        while self.lockable().len() < 2 && self.forms.len() < 4 {
            self.forms.push(*pick(dice, &[Form::Mutex, Form::Mutex, Form::ReadWrite, Form::SemaphoreMutex]));
        }
        let mut clients: Vec<usize> = (0..self.clients.len()).collect();
        dice.shuffle(&mut clients);
        for _ in 0..dice.usize(1..=2) {
            let own: Vec<usize> = clients.split_off(clients.len().saturating_sub(dice.usize(1..=2)));
            let Some(&first) = own.first() else { break };
            // One process has one clock.
            for &other in &own {
                self.clients[other].clock = self.clients[first].clock;
                self.clients[other].begins = self.clients[first].begins;
            }
            let owners = dice.u64(1..=3);
            let tasks = (0..dice.u64(1..=3)).map(|task| (task % owners, dice.u32(1..=4))).collect();
            self.programs.push(ProgramPlan { clients: own, tasks });
        }
        let fault = |dice: &mut Rng| match dice.u8(..3) {
            0 => Fault::Expire { client: dice.usize(..) },
            1 => Fault::Delete { path: dice.usize(..), place: 0 },
            _ => Fault::Unreachable { client: dice.usize(..), server: None, length: self.session_timeout.mul_f64(2.0) },
        };
        let faults = (0..dice.usize(0..=3)).map(|_| (busy.mul_f64(dice.f64()), fault(dice))).collect();
        self.add_faults(faults);
    }

    /// The paths of locks that can be part of a multi-lock.
    fn lockable(&self) -> Vec<usize> {
        let is_lock = |form: &Form| matches!(form, Form::Mutex | Form::ReadWrite | Form::SemaphoreMutex);
        (0..self.forms.len()).filter(|&path| is_lock(&self.forms[path])).collect()
    }
}

impl World {
    /// Makes the programs of the plan, with their locks.
    pub(super) fn open_programs(&mut self) {
        for (number, plan) in self.plan.programs.iter().enumerate() {
            let mut parts = Vec::new();
            for path in self.plan.lockable() {
                for recipe in recipes(self.plan.forms[path]) {
                    for &client in &plan.clients {
                        let lock = self.clients[client].add_part(path, recipe.clone());
                        parts.push(Part { client, lock, path, recipe: recipe.clone() });
                    }
                }
            }
            let task = |&(owner, rounds): &(u64, u32)| Task { owner, rounds, phase: Phase::Idle };
            let tasks: Vec<Task> = plan.tasks.iter().map(task).collect();
            for &client in &plan.clients {
                self.clients[client].tasks = tasks.len();
            }
            let clients = plan.clients.clone();
            self.programs.push(Program { clients, parts, tasks, granted: BTreeMap::new() });
            let born = self.now + self.plan.clients[plan.clients[0]].begins + ms(500);
            for task in 0..plan.tasks.len() {
                self.sequence += 1;
                self.agenda.insert((born, self.sequence), Happening::Task(number, task));
            }
        }
    }

    /// The clients of the process that this one is in.
    pub(super) fn process_of(&self, client: usize) -> Vec<usize> {
        let program = self.programs.iter().find(|program| program.clients.contains(&client));
        program.map_or_else(|| vec![client], |program| program.clients.clone())
    }

    /// The first client of a program. All its clients pause, go on and die together.
    pub(super) fn client_of(&self, program: usize) -> usize {
        self.programs[program].clients[0]
    }

    /// A task does its next step.
    pub(super) fn act(&mut self, program: usize, task: usize) {
        if self.clients[self.client_of(program)].life != Life::Running {
            return;
        }
        let own = &mut self.programs[program].tasks[task];
        match &mut own.phase {
            Phase::Idle if own.rounds == 0 => {
                own.phase = Phase::Done;
                for client in self.programs[program].clients.clone() {
                    self.clients[client].tasks -= 1;
                    self.pump(client);
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

    /// A task cancels what it waits for, or abandons it.
    pub(super) fn give_up(&mut self, program: usize, task: usize, abandons: bool) {
        if let Phase::Acquiring(acquire) = &mut self.programs[program].tasks[task].phase {
            acquire.may_be_canceled = true;
            if abandons {
                acquire.steps.abandon();
            } else {
                acquire.steps.cancel();
            }
            self.go_on(program, task);
        }
    }

    fn acquire(&mut self, program: usize, task: usize) {
        let parts = self.choose(program, task);
        if parts.is_empty() {
            return self.rest(program, task, Phase::Idle);
        }
        // Locks that others join in one transaction may have to wait until a deadline unties them.
        let limits: &[Limit] = match self.plan.multis {
            true => &[Limit::Deadline, Limit::Deadline, Limit::OneLook],
            false => &[Limit::None, Limit::None, Limit::Deadline, Limit::OneLook],
        };
        let patience = *pick(&mut self.dice, limits);
        let length = match patience {
            Limit::None => None,
            Limit::OneLook => Some(ms(1_000)),
            Limit::Deadline => Some(self.plan.session_timeout.mul_f64(0.2 + self.dice.f64() * 5.0)),
        };
        let deadline = length.map(|length| self.now + length);
        let steps = Steps::new(parts.len());
        let acquire = Acquire { steps, parts, patience, deadline, may_be_canceled: false };
        self.programs[program].tasks[task].phase = Phase::Acquiring(Box::new(acquire));
        if self.dice.u8(..6) == 0 {
            let at = self.now + self.plan.session_timeout.mul_f64(self.dice.f64());
            let abandons = self.dice.bool();
            self.at(at, Happening::GiveUp(program, task, abandons));
        }
        self.go_on(program, task);
    }

    /// Two or three locks of different paths, in the order of these; where others join theirs in one transaction, neighbours of one client
    /// are joined as well.
    fn choose(&mut self, program: usize, task: usize) -> Vec<Step> {
        let is_shared = self.is_shared(program, task);
        let (plan, dice) = (&self.plan, &mut self.dice);
        let own = &self.programs[program].parts;
        let mut paths = plan.lockable();
        dice.shuffle(&mut paths);
        paths.truncate(dice.usize(2..=3));
        paths.sort_unstable();
        let mut steps: Vec<Step> = Vec::new();
        for path in paths {
            // Tasks with one owner can't tell their holds of a semaphore mutex apart, since it is not re-entrant. And one of them may read
            // under the write lock of another whose success the judge does not know yet.
            let is_plain = |part: &Part| matches!(part.recipe, Recipe::Queue(Mode::Mutex | Mode::Write));
            let fits = |part: &Part| part.path == path && (!is_shared || is_plain(part));
            let parts: Vec<usize> = (0..own.len()).filter(|&part| fits(&own[part])).collect();
            if parts.is_empty() {
                continue;
            }
            let part = *pick(dice, &parts);
            let (client, lock) = (own[part].client, own[part].lock);
            let is_queue = |part: usize| matches!(own[part].recipe, Recipe::Queue(_));
            match steps.last_mut().filter(|last| last.client == client && is_queue(last.parts[0])) {
                Some(last) if plan.multis && is_queue(part) && dice.bool() => last.parts.push(part),
                _ => steps.push(Step { client, lock, parts: vec![part] }),
            }
        }
        for step in steps.iter_mut().filter(|step| step.parts.len() > 1) {
            let locks = step.parts.iter().map(|&part| own[part].lock).collect();
            step.lock = self.clients[step.client].engine.add_lock("/several", Recipe::Multi(locks));
        }
        steps
    }

    fn is_shared(&self, program: usize, task: usize) -> bool {
        let tasks = &self.programs[program].tasks;
        tasks.iter().filter(|other| other.owner == tasks[task].owner).count() > 1
    }

    /// Carries out what the steps of a task order.
    fn go_on(&mut self, program: usize, task: usize) {
        let owner = self.owner(program, task);
        let mut touched = Vec::new();
        while let Phase::Acquiring(acquire) = &mut self.programs[program].tasks[task].phase {
            let Some(order) = acquire.steps.poll() else { break };
            let text = format!("{order:?}");
            let (parts, limit, deadline) = (acquire.parts.clone(), acquire.patience, acquire.deadline);
            self.say(|| format!("program {program}: task {task}: {text}"));
            let patience = |world: &Self, client: usize| match (limit, deadline) {
                (Limit::OneLook, Some(end)) => Patience::OneLook(world.clients[client].local(end)),
                (Limit::Deadline, Some(end)) => Patience::Until(world.clients[client].local(end)),
                _ => Patience::Forever,
            };
            match order {
                Order::Take(step, call) | Order::Guard(step, call) | Order::Confirm(step, call) => {
                    let Step { client, lock, .. } = parts[step];
                    let (now, patience) = (self.clients[client].local(self.now), patience(self, client));
                    let engine = &mut self.clients[client].engine;
                    let op = match order {
                        Order::Take(..) => engine.acquire(now, lock, owner, patience),
                        Order::Confirm(..) => engine.confirm(now, lock, owner, patience),
                        _ => engine.guard(now, lock, owner),
                    };
                    self.called(program, task, Purpose::Step(call), client, op);
                    if let Phase::Acquiring(acquire) = &mut self.programs[program].tasks[task].phase {
                        match order {
                            Order::Guard(..) => acquire.steps.guarded(step, call, op),
                            _ => acquire.steps.begun(call, op),
                        }
                    }
                    touched.push(client);
                }
                Order::Look => {
                    let is_safe = |step: &Step| {
                        let client = &self.clients[step.client];
                        client.engine.is_safe(client.local(self.now), step.lock, owner)
                    };
                    let first_unsafe = parts.iter().position(|step| !is_safe(step));
                    if let Phase::Acquiring(acquire) = &mut self.programs[program].tasks[task].phase {
                        acquire.steps.looked(first_unsafe);
                    }
                }
                Order::Cancel(step, op) => {
                    let client = parts[step].client;
                    let now = self.clients[client].local(self.now);
                    self.clients[client].engine.cancel_op(now, op);
                    touched.push(client);
                }
                Order::GiveBack(step) => {
                    for &part in parts[step].parts.iter().rev() {
                        self.let_go(program, task, part, Purpose::GiveBack);
                    }
                    touched.push(parts[step].client);
                }
                Order::End(ending) => self.ended(program, task, &ending),
            }
        }
        touched.sort_unstable();
        touched.dedup();
        touched.into_iter().for_each(|client| self.pump(client));
    }

    fn owner(&self, program: usize, task: usize) -> Owner {
        Owner::Custom(self.programs[program].tasks[task].owner)
    }

    fn called(&mut self, program: usize, task: usize, purpose: Purpose, client: usize, op: OpId) {
        self.clients[client].task_calls.insert(op, TaskCall { program, task, purpose });
    }

    /// Releases one entry of a part, if the task has any. True if it has.
    fn let_go(&mut self, program: usize, task: usize, part: usize, purpose: Purpose) -> bool {
        let owner = self.owner(program, task);
        let Part { client, lock, .. } = self.programs[program].parts[part];
        let now = self.clients[client].local(self.now);
        let engine = &mut self.clients[client].engine;
        if engine.hold_of(now, lock, owner).is_none() {
            return false;
        }
        let waits = matches!(purpose, Purpose::Release) && self.dice.bool();
        let op = engine.release(now, lock, owner, waits);
        let is_free = engine.hold_of(now, lock, owner).is_none();
        self.called(program, task, purpose, client, op);
        if is_free {
            let holder = self.holder(program, part, owner);
            self.programs[program].granted.remove(&holder);
            self.judge.released(holder);
        }
        true
    }

    fn holder(&self, program: usize, part: usize, owner: Owner) -> Holder {
        let Part { client, lock, .. } = self.programs[program].parts[part];
        // Tasks with one owner are one holder; no thread has such a number.
        let actor = 1_000 + if let Owner::Custom(number) = owner { number as usize } else { 0 };
        Holder { client, actor, lock, owner }
    }

    /// The answers to calls that a client made for tasks.
    pub(super) fn hear_tasks(&mut self, client: usize) {
        for (call, result) in std::mem::take(&mut self.clients[client].task_answers) {
            let TaskCall { program, task, purpose } = call;
            self.say(|| format!("program {program}: task {task}: {purpose:?} is answered: {result:?}"));
            match purpose {
                Purpose::Step(number) => {
                    if let Phase::Acquiring(acquire) = &mut self.programs[program].tasks[task].phase {
                        acquire.steps.answered(number, result.map(drop));
                        self.go_on(program, task);
                    }
                }
                Purpose::Release => self.has_left(program, task, &result),
                Purpose::GiveBack => {}
            }
        }
    }

    fn has_left(&mut self, program: usize, task: usize, result: &Result<Answer, Error>) {
        if let Err(error) = result
            && !matches!(error.status(), Status::Lost | Status::Connection | Status::Denied)
        {
            self.judge.blame(|| format!("program {program}: task {task} released: {error}"));
        }
        if let Phase::Leaving(left) = &mut self.programs[program].tasks[task].phase {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.rest(program, task, Phase::Idle);
            }
        }
    }

    /// The task does something else a while later.
    fn rest(&mut self, program: usize, task: usize, phase: Phase) {
        let session = self.plan.session_timeout;
        let length = *pick(&mut self.dice, &[ms(0), ms(1), ms(20), ms(300), session / 2, session * 2]);
        self.programs[program].tasks[task].phase = phase;
        self.at(self.now + length, Happening::Task(program, task));
    }

    fn ended(&mut self, program: usize, task: usize, ending: &Ending) {
        let is_shared = self.is_shared(program, task);
        let abandons = self.dice.u8(..8) == 0;
        let now = self.now;
        let Phase::Acquiring(acquire) = &mut self.programs[program].tasks[task].phase else { return };
        if matches!(ending, Ending::Got) && abandons {
            // The program has not seen the success yet.
            acquire.may_be_canceled = true;
            acquire.steps.abandon();
            return;
        }
        acquire.steps.keep();
        let (parts, limit, deadline) = (std::mem::take(&mut acquire.parts), acquire.patience, acquire.deadline);
        let is_expected = match ending {
            Ending::Got => true,
            Ending::Canceled(_) | Ending::Abandoned => acquire.may_be_canceled,
            Ending::Failed(error) => match error.status() {
                Status::Timeout | Status::Connection => limit != Limit::None,
                Status::Canceled => acquire.may_be_canceled,
                // Only where another task has entered the lock before.
                Status::Lost | Status::Deadlock => is_shared,
                Status::Exhausted => self.any_part(program, &parts, |client, _| client.may_be_exhausted),
                Status::Foreign => self.any_part(program, &parts, |_, path| self.judge.had_foreign(path)),
                Status::Denied => self.any_part(program, &parts, |_, path| self.judge.was_forbidden(path)),
                _ => false,
            },
        };
        if !is_expected {
            self.judge.blame(|| format!("program {program}: task {task} ended with {ending:?}"));
        }
        let stood_still = self.clients[self.client_of(program)].stood_still;
        if deadline.is_some_and(|deadline| now > deadline.max(stood_still) + SLACK) {
            self.judge.blame(|| format!("program {program}: task {task} ended late, with {ending:?}"));
        }
        let is_timeout = matches!(ending, Ending::Failed(error) if error.status() == Status::Timeout);
        if is_timeout && limit == Limit::Deadline && deadline.is_some_and(|deadline| now + SLACK < deadline) {
            self.judge.blame(|| format!("program {program}: task {task} timed out early"));
        }
        let is_got = matches!(ending, Ending::Got);
        if is_got {
            for part in parts.iter().flat_map(|step| &step.parts) {
                self.succeeded(program, task, *part);
            }
        }
        // The handle of a multi-lock is closed; its locks stay held.
        for step in parts.iter().filter(|step| step.parts.len() > 1) {
            let now = self.clients[step.client].local(now);
            self.clients[step.client].engine.remove_lock(now, step.lock);
        }
        let phase = if is_got { Phase::Holding(parts) } else { Phase::Idle };
        self.rest(program, task, phase);
    }

    /// Whether something is true of the client and the full path of a lock among these.
    fn any_part(&self, program: usize, steps: &[Step], is_so: impl Fn(&Client, &str) -> bool) -> bool {
        steps.iter().flat_map(|step| &step.parts).any(|&part| {
            let Part { client, path, .. } = self.programs[program].parts[part];
            let client = &self.clients[client];
            is_so(client, &client.full_path(path))
        })
    }

    /// The rule: success implies that this part is safe.
    fn succeeded(&mut self, program: usize, task: usize, part: usize) {
        let owner = self.owner(program, task);
        let Part { client, lock, path, ref recipe } = self.programs[program].parts[part];
        let (stance, holder) = (stance(recipe), self.holder(program, part, owner));
        let own = &self.clients[client];
        let local = own.local(self.now);
        let Some(view) = own.engine.hold_of(local, lock, owner).filter(|_| own.engine.is_safe(local, lock, owner))
        else {
            let state = own.engine.hold_of(local, lock, owner).map(|view| view.state);
            let path = own.full_path(path);
            let text = format!("program {program}: task {task} has succeeded, and its hold of {path} is {state:?}");
            return self.judge.blame(|| text);
        };
        let token = (view.token, view.pass);
        if self.programs[program].granted.insert(holder, token) == Some(token) {
            // Entered once more.
            return;
        }
        let nodes = own.nodes_of(lock, owner);
        let since = own.knows_since(self.now).unwrap_or_default();
        let grant = Grant { path, stance, nodes, token, since, count_since: Time::default() };
        self.judge.granted(self.now, holder, grant);
    }

    fn release(&mut self, program: usize, task: usize, held: &[Step]) {
        let mut left = 0;
        for &part in held.iter().rev().flat_map(|step| step.parts.iter().rev()) {
            left += usize::from(self.let_go(program, task, part, Purpose::Release));
        }
        if left == 0 {
            self.judge.blame(|| format!("program {program}: task {task} holds nothing to release"));
        }
        self.programs[program].tasks[task].phase = Phase::Leaving(left);
        for client in self.programs[program].clients.clone() {
            self.pump(client);
        }
    }

    /// Reports what the tasks of a client rely on to the judge.
    pub(super) fn look_at_tasks(&mut self, client: usize) {
        let own = &self.clients[client];
        let local = own.local(self.now);
        for holder in
            self.programs.iter().flat_map(|program| program.granted.keys()).filter(|held| held.client == client)
        {
            let Some(view) = own.engine.hold_of(local, holder.lock, holder.owner) else {
                self.judge.blame(|| format!("a hold of {holder:?} is gone without a word"));
                continue;
            };
            if own.engine.is_safe(local, holder.lock, holder.owner) {
                self.judge.safe(self.now, *holder, own.global(local + view.remaining), None);
            }
        }
    }
}

fn recipes(form: Form) -> Vec<Recipe> {
    match form {
        Form::Mutex => vec![Recipe::Queue(Mode::Mutex)],
        Form::ReadWrite => vec![Recipe::Queue(Mode::Read), Recipe::Queue(Mode::Write)],
        Form::SemaphoreMutex => vec![Recipe::SemaphoreMutex],
        Form::Semaphore(_) | Form::Counted(_) => Vec::new(),
    }
}
