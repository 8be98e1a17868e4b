//! An acquire in one or several steps, as a value. It decides which step comes next, what is given back, and when the acquire has succeeded. It
//! has no engine, clock or thread. The shell polls orders, carries them out one at a time, and feeds the answers of the engines.
//!
//! The rule of success: after the last step the shell looks at all parts, and each of them is safe. If a part is lost, or another owner
//! has released it, it is given back with those after it, and all of them are taken again in their order. If the lease of a part is over, the
//! acquire waits until the part is safe or lost. While a later step waits, each earlier part has a *guard*: a call that its engine answers when the part is lost.
//!
//! So all parts were held at the moment of the first look: each was granted before that moment and not lost after it, and a lost hold
//! never comes back as the same hold.

#![forbid(unsafe_code)]

use crate::engine::OpId;
use crate::error::{Error, Result, Status};
use crate::mutant::Mutant;

/// A call to an engine, from the order to its answer.
pub type CallId = u64;

/// The first call of all: the one that takes the first step.
pub const FIRST_CALL: CallId = 1;

/// See the module's description.
#[derive(Debug)]
pub struct Steps {
    count: usize,
    /// Number of steps whose parts were got and not given back.
    got: usize,
    /// Number of these that stay. The others are given back before anything else is done.
    kept: usize,
    call: Option<Call>,
    /// Of the first steps, in their order: one for each step that is got, while the next is waited for.
    guards: Vec<Guard>,
    /// Guards that are not needed any more, to be cancelled.
    dropped: Vec<(usize, OpId)>,
    /// The last look at all parts: not made yet, being made, or it found all of them safe.
    look: Look,
    claim: Claim,
    end: Option<Ending>,
    is_over: bool,
    last_call: CallId,
}

/// An instruction to the shell.
#[derive(Debug)]
pub enum Order {
    /// Ask the engine of this step to let the owner in; then [`Steps::begun`].
    Take(usize, CallId),
    /// Ask the engine of this step to answer when the owner does not hold the part any more; then [`Steps::guarded`].
    Guard(usize, CallId),
    /// Ask the engine of this step to answer when the part is safe again, or lost; then [`Steps::begun`].
    Confirm(usize, CallId),
    /// Look at all parts; then [`Steps::looked`].
    Look,
    /// Cancel this call, which the engine of this step has taken. The engine still answers it.
    Cancel(usize, OpId),
    /// Release what this step has got.
    GiveBack(usize),
    /// It is over. Nothing follows, unless the program abandons a success.
    End(Ending),
}

/// How it ended.
#[derive(Debug, Clone)]
pub enum Ending {
    /// All parts are held.
    Got,
    /// This step failed.
    Failed(Error),
    /// The program cancelled it before this step.
    Canceled(usize),
    /// The program gave it up.
    Abandoned,
}

#[derive(Debug)]
struct Call {
    id: CallId,
    step: usize,
    kind: Kind,
    op: Option<OpId>,
    cancel: Cancel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Take,
    Confirm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cancel {
    No,
    /// As soon as its number is known.
    Wanted,
    Ordered,
}

#[derive(Debug)]
struct Guard {
    id: CallId,
    op: Option<OpId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Due,
    UnderWay,
    Safe,
    /// This part is not.
    Unsafe(usize),
}

/// What the program wants of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    Wanted,
    Canceled,
    /// The success was reported to the program.
    Kept,
    /// The program does not want to know any more.
    Abandoned,
}

impl Steps {
    /// An acquire of `count` parts, at least one.
    pub const fn new(count: usize) -> Self {
        Self {
            count,
            got: 0,
            kept: 0,
            call: None,
            guards: Vec::new(),
            dropped: Vec::new(),
            look: Look::Due,
            claim: Claim::Wanted,
            end: None,
            is_over: false,
            last_call: 0,
        }
    }

    /// The next order. One at a time: the caller carries it out and feeds its result before it polls again.
    pub fn poll(&mut self) -> Option<Order> {
        if let Some((step, op)) = self.dropped.pop() {
            return Some(Order::Cancel(step, op));
        }
        if let Some(call) = &mut self.call {
            if let (Cancel::Wanted, Some(op)) = (call.cancel, call.op) {
                call.cancel = Cancel::Ordered;
                return Some(Order::Cancel(call.step, op));
            }
            let is_begun = call.op.is_some() && call.cancel == Cancel::No;
            return if is_begun { self.next_guard() } else { None };
        }
        if self.is_over || self.look == Look::UnderWay {
            return None;
        }
        if self.got > self.kept {
            self.got -= 1;
            return Some(Order::GiveBack(self.got));
        }
        self.next_step()
    }

    /// The engine has taken the call of a step, under this number. The answer may have come before.
    pub fn begun(&mut self, call: CallId, op: OpId) {
        if let Some(own) = self.call.as_mut().filter(|own| own.id == call) {
            own.op = Some(op);
        }
    }

    /// The same for a guard.
    pub fn guarded(&mut self, step: usize, call: CallId, op: OpId) {
        match self.guards.iter_mut().find(|guard| guard.id == call) {
            Some(guard) => guard.op = Some(op),
            // It was dropped, or answered: to cancel what was answered changes nothing.
            None => self.dropped.push((step, op)),
        }
    }

    /// A call was answered, or could not be made.
    pub fn answered(&mut self, call: CallId, answer: Result<()>) {
        match self.call.take_if(|own| own.id == call) {
            Some(call) => self.step_answered(&call, answer),
            None => self.guard_answered(call, answer),
        }
    }

    /// All parts were looked at, and this is the first that is not safe.
    pub fn looked(&mut self, first_unsafe: Option<usize>) {
        if self.look == Look::UnderWay {
            self.look = first_unsafe.map_or(Look::Safe, Look::Unsafe);
        }
    }

    /// The program gives it up: it ends with CANCELED, or with a success that was just quicker.
    pub fn cancel(&mut self) {
        if self.claim == Claim::Wanted {
            self.claim = Claim::Canceled;
            self.cancel_call();
        }
    }

    /// The program does not want to know how it ends: what is got is given back, unless the program was told of it. True if that ends the
    /// waits of all who wait for it.
    pub fn abandon(&mut self) -> bool {
        match (&self.end, self.claim) {
            (_, Claim::Kept | Claim::Abandoned) => return false,
            (Some(Ending::Failed(_) | Ending::Canceled(_)), _) if self.is_over => return false,
            _ => self.claim = Claim::Abandoned,
        }
        self.cancel_call();
        if self.is_over {
            // It had just won.
            self.is_over = false;
            self.finish(Ending::Abandoned);
        }
        true
    }

    /// The success was reported to the program.
    pub fn keep(&mut self) {
        if matches!((&self.end, self.claim), (Some(Ending::Got), Claim::Wanted | Claim::Canceled)) {
            self.claim = Claim::Kept;
        }
    }

    /// Whether the program has abandoned it.
    pub fn is_abandoned(&self) -> bool {
        self.claim == Claim::Abandoned
    }

    /// How it ended, if it is over.
    pub fn ending(&self) -> Option<&Ending> {
        self.end.as_ref().filter(|_| self.is_over)
    }

    /// The call that it waits for, once the engine has taken it: the step, and the call's number there.
    pub fn waits_for(&self) -> Option<(CallId, usize, OpId)> {
        let call = self.call.as_ref()?;
        Some((call.id, call.step, call.op?))
    }

    fn next_step(&mut self) -> Option<Order> {
        match (&self.end, self.claim) {
            (None | Some(Ending::Got), Claim::Abandoned) => self.finish(Ending::Abandoned),
            (None, Claim::Canceled) => match self.look {
                _ if self.got < self.count => self.finish(Ending::Canceled(self.got)),
                // The last step was quicker, but success would have to wait for this one.
                Look::Unsafe(step) => self.finish(Ending::Canceled(step)),
                Look::Due | Look::UnderWay | Look::Safe => {}
            },
            _ => {}
        }
        if self.got > self.kept {
            return self.poll();
        }
        if let Some(end) = &self.end {
            self.is_over = true;
            return Some(Order::End(end.clone()));
        }
        if self.got < self.count {
            let (step, call) = (self.got, self.open(self.got, Kind::Take));
            return Some(Order::Take(step, call));
        }
        // The engine of a single step has just looked.
        let is_safe = self.count == 1 || self.look == Look::Safe || Mutant::OverlookLostPart.lives();
        match self.look {
            _ if is_safe => {
                self.finish(Ending::Got);
                self.poll()
            }
            Look::Unsafe(step) => {
                self.look = Look::Due;
                let call = self.open(step, Kind::Confirm);
                Some(Order::Confirm(step, call))
            }
            _ => {
                self.look = Look::UnderWay;
                Some(Order::Look)
            }
        }
    }

    fn next_guard(&mut self) -> Option<Order> {
        let step = self.guards.len();
        if step >= self.got || Mutant::OverlookLostPart.lives() {
            return None;
        }
        self.last_call += 1;
        self.guards.push(Guard { id: self.last_call, op: None });
        Some(Order::Guard(step, self.last_call))
    }

    fn open(&mut self, step: usize, kind: Kind) -> CallId {
        self.last_call += 1;
        self.call = Some(Call { id: self.last_call, step, kind, op: None, cancel: Cancel::No });
        self.last_call
    }

    fn step_answered(&mut self, call: &Call, answer: Result<()>) {
        match (call.kind, answer) {
            (Kind::Take, Ok(())) => {
                // A part that was not wanted any more when it was granted is given back.
                self.kept += usize::from(self.kept == self.got && self.end.is_none());
                self.got += 1;
                self.look = Look::Due;
            }
            // Something else may be lost by now.
            (Kind::Confirm, Ok(())) => self.look = Look::Due,
            (Kind::Confirm, Err(error)) if is_gone(&error) => self.go_back(call.step),
            // It was only to make room for an earlier step.
            (_, Err(error)) if error.status() == Status::Canceled && call.cancel != Cancel::No => {
                if self.claim != Claim::Wanted {
                    self.finish_unless_decided(Ending::Failed(error));
                }
            }
            (_, Err(error)) => self.finish_unless_decided(Ending::Failed(error)),
        }
    }

    fn guard_answered(&mut self, call: CallId, answer: Result<()>) {
        let Some(step) = self.guards.iter().position(|guard| guard.id == call) else { return };
        // It needs no cancel.
        if let Some(guard) = self.guards.get_mut(step) {
            guard.op = None;
        }
        match answer {
            Err(error) if !is_gone(&error) => self.finish_unless_decided(Ending::Failed(error)),
            _ => self.go_back(step),
        }
    }

    /// The part of this step is lost: it is taken again, with all that come after it.
    fn go_back(&mut self, step: usize) {
        self.keep_first(step);
        self.cancel_call();
    }

    fn finish_unless_decided(&mut self, end: Ending) {
        if self.end.is_none() {
            self.finish(end);
        }
    }

    /// Decides how it ends. Unless it is a success, the parts that were got are given back first.
    fn finish(&mut self, end: Ending) {
        self.drop_guards(0);
        if !matches!(end, Ending::Got) {
            self.keep_first(0);
        }
        self.cancel_call();
        self.end = Some(end);
    }

    fn keep_first(&mut self, steps: usize) {
        self.kept = self.kept.min(steps);
        self.look = Look::Due;
        self.drop_guards(steps);
    }

    fn drop_guards(&mut self, from: usize) {
        let dropped = self.guards.drain(from.min(self.guards.len())..);
        let known = dropped.enumerate().filter_map(|(at, guard)| Some((from + at, guard.op?)));
        self.dropped.extend(known);
    }

    fn cancel_call(&mut self) {
        if let Some(call) = &mut self.call
            && call.cancel == Cancel::No
        {
            call.cancel = Cancel::Wanted;
        }
    }
}

/// The owner does not hold it any more; everything else is an answer to the whole.
fn is_gone(error: &Error) -> bool {
    matches!(error.status(), Status::Lost | Status::NotOwner)
}

#[cfg(test)]
#[allow(clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    /// Carries out orders until a call has to be waited for, or nothing is left to do, and writes them down. What is looked at is safe, but for this
    /// part.
    fn run(steps: &mut Steps, first_unsafe: Option<usize>) -> Vec<String> {
        let mut orders = Vec::new();
        while let Some(order) = steps.poll() {
            orders.push(match order {
                Order::Take(step, call) => {
                    steps.begun(call, call);
                    format!("take {step}")
                }
                Order::Confirm(step, call) => {
                    steps.begun(call, call);
                    format!("confirm {step}")
                }
                Order::Guard(step, call) => {
                    steps.guarded(step, call, call);
                    format!("guard {step}")
                }
                Order::Look => {
                    steps.looked(first_unsafe);
                    "look".to_owned()
                }
                Order::Cancel(step, _) => format!("cancel {step}"),
                Order::GiveBack(step) => format!("give back {step}"),
                Order::End(Ending::Got) => "got".to_owned(),
                Order::End(Ending::Failed(error)) => error.status().name().to_owned(),
                Order::End(Ending::Canceled(step)) => format!("canceled at {step}"),
                Order::End(Ending::Abandoned) => "abandoned".to_owned(),
            });
        }
        orders
    }

    /// Answers the call that is waited for.
    fn answer(steps: &mut Steps, answer: Result<()>) {
        let Some((call, ..)) = steps.waits_for() else { panic!("it waits for nothing: {steps:?}") };
        steps.answered(call, answer);
    }

    fn error(status: Status) -> Result<()> {
        Err(status.into())
    }

    /// Two steps; the second is waited for.
    fn at_second() -> Steps {
        let mut steps = Steps::new(2);
        assert_eq!(run(&mut steps, None), ["take 0"]);
        answer(&mut steps, Ok(()));
        assert_eq!(run(&mut steps, None), ["take 1", "guard 0"]);
        steps
    }

    #[test]
    fn a_single_step_needs_no_look() {
        let mut steps = Steps::new(1);
        assert_eq!(run(&mut steps, None), ["take 0"]);
        answer(&mut steps, Ok(()));
        assert_eq!(run(&mut steps, None), ["got"]);
    }

    #[test]
    fn all_parts_are_looked_at_before_success() {
        let mut steps = at_second();
        answer(&mut steps, Ok(()));
        assert_eq!(run(&mut steps, None), ["look", "cancel 0", "got"]);
        assert!(matches!(steps.ending(), Some(Ending::Got)));
    }

    #[test]
    fn a_part_that_is_lost_is_taken_again_with_those_after_it() {
        let mut steps = Steps::new(3);
        run(&mut steps, None);
        answer(&mut steps, Ok(()));
        run(&mut steps, None);
        answer(&mut steps, Ok(()));
        assert_eq!(run(&mut steps, None), ["take 2", "guard 1"]);
        // The guard of the first part was the second call but one.
        steps.answered(3, error(Status::Lost));
        assert_eq!(run(&mut steps, None), ["cancel 1", "cancel 2"]);
        answer(&mut steps, error(Status::Canceled));
        assert_eq!(run(&mut steps, None), ["give back 1", "give back 0", "take 0"]);
    }

    #[test]
    fn a_step_that_wins_while_an_earlier_part_is_lost_is_given_back() {
        let mut steps = at_second();
        steps.answered(3, error(Status::NotOwner));
        assert_eq!(run(&mut steps, None), ["cancel 1"]);
        answer(&mut steps, Ok(()));
        assert_eq!(run(&mut steps, None), ["give back 1", "give back 0", "take 0"]);
    }

    #[test]
    fn a_part_that_is_not_safe_is_waited_for_and_then_all_are_looked_at_again() {
        let mut steps = at_second();
        answer(&mut steps, Ok(()));
        assert_eq!(run(&mut steps, Some(0)), ["look", "confirm 0", "guard 1"]);
        answer(&mut steps, Ok(()));
        assert_eq!(run(&mut steps, Some(1)), ["look", "confirm 1"]);
        answer(&mut steps, error(Status::Lost));
        assert_eq!(run(&mut steps, None), ["cancel 1", "give back 1", "take 1"]);
        answer(&mut steps, Ok(()));
        assert_eq!(run(&mut steps, None), ["look", "cancel 0", "got"]);
    }

    #[test]
    fn a_deadline_that_passes_while_a_part_is_not_safe_is_the_end() {
        let mut steps = at_second();
        answer(&mut steps, Ok(()));
        run(&mut steps, Some(0));
        answer(&mut steps, error(Status::Connection));
        let orders = run(&mut steps, None);
        assert_eq!(orders, ["cancel 1", "cancel 0", "give back 1", "give back 0", Status::Connection.name()]);
    }

    #[test]
    fn it_is_cancelled_between_two_steps_or_ends_with_the_success_that_was_quicker() {
        let mut steps = Steps::new(2);
        run(&mut steps, None);
        steps.cancel();
        assert_eq!(run(&mut steps, None), ["cancel 0"]);
        answer(&mut steps, Ok(()));
        assert_eq!(run(&mut steps, None), ["give back 0", "canceled at 1"]);
        let mut steps = at_second();
        steps.cancel();
        assert_eq!(run(&mut steps, None), ["cancel 1"]);
        answer(&mut steps, Ok(()));
        assert_eq!(run(&mut steps, None), ["look", "cancel 0", "got"]);
        let mut steps = at_second();
        steps.cancel();
        run(&mut steps, None);
        answer(&mut steps, Ok(()));
        let given_up = ["look", "cancel 0", "give back 1", "give back 0", "canceled at 0"];
        assert_eq!(run(&mut steps, Some(0)), given_up, "it does not wait until the first part is safe");
    }

    #[test]
    fn what_is_abandoned_is_given_back_unless_it_was_kept() {
        let mut steps = at_second();
        answer(&mut steps, Ok(()));
        run(&mut steps, None);
        assert!(steps.abandon());
        assert_eq!(run(&mut steps, None), ["give back 1", "give back 0", "abandoned"]);
        let mut steps = at_second();
        answer(&mut steps, Ok(()));
        run(&mut steps, None);
        steps.keep();
        assert!(!steps.abandon());
        assert_eq!(run(&mut steps, None), Vec::<String>::new());
    }
}
