//! The state machine of an acquire with one or more steps. The state machine decides which step comes next, which
//! locks the acquire releases again, and when the acquire has succeeded. The state machine uses no engine, clock or
//! thread. The shell asks the state machine for actions, performs one action at a time, and passes the answers of the
//! engines to the state machine.
//!
//! An acquire succeeds if it has acquired the locks of all steps, and a check then finds that all these locks are safe.
//! If a lock is lost, or another owner has released the lock, the acquire returns to the step of this lock. It releases
//! the locks of this step and of all later steps, and then acquires these locks again in order. If the session lease of
//! a lock has ended, the acquire waits until the lock is safe or lost. While the acquire waits for a later step, each
//! earlier step has a *hold wait*. A hold wait is a call that the engine answers when the owner no longer holds the
//! lock.
//!
//! If the check succeeds, the owner held all locks at the moment when the check began. The engines had granted all
//! locks before that moment. No hold was lost at that moment, because a lost hold never becomes safe again.

use std::fmt;

use crate::engine::{Answer, HoldId, OpId};
use crate::error::{Error, Result, Status};
use crate::mutant::Mutant;

/// The number of a call to an engine. Each call has a different number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CallId(u64);

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of the first call, which acquires the lock of the first step.
pub const FIRST_CALL: CallId = CallId(1);

/// The state of an acquire. The module comment describes the rules.
#[derive(Debug)]
pub struct Steps {
    count: usize,
    /// The holds of each step whose locks are held.
    acquired: Vec<Box<[HoldId]>>,
    /// The number of steps whose locks the acquire keeps. The shell releases the other acquired locks before it
    /// performs any other action.
    kept: usize,
    call: Option<Call>,
    /// The hold waits of the first steps, in their order. While the acquire waits for a step, each earlier step has a
    /// hold wait.
    hold_waits: Vec<HoldWait>,
    /// Hold waits that the shell must cancel, because the acquire no longer needs them.
    to_cancel: Vec<(usize, OpId)>,
    /// The state of the last check of all locks.
    safety_check: SafetyCheck,
    intent: CallerIntent,
    ending: Option<Ending>,
    is_over: bool,
    last_call: u64,
}

/// An action that the shell must perform.
#[derive(Debug)]
pub enum Action {
    /// Start an acquire at the engine of this step. The shell then calls [`Steps::on_call_started`].
    Acquire(usize, CallId),
    /// Start a call that the engine of this step answers when the owner no longer holds the lock. The shell then calls
    /// [`Steps::on_hold_wait_started`].
    StartHoldWait(usize, CallId),
    /// Start a call that the engine of this step answers when the lock is safe again or lost. The shell then calls
    /// [`Steps::on_call_started`].
    Confirm(usize, CallId),
    /// Check whether the locks of all steps are safe. The shell then calls [`Steps::on_safety_checked`].
    Look,
    /// Cancel this call at the engine of this step. The engine still answers the call.
    Cancel(usize, OpId),
    /// Cancel this call at the engine of this step, and release the holds that the call has acquired. The engine still
    /// answers the call.
    Abandon(usize, OpId),
    /// Release these holds of this step. The program may already have released a hold. The shell must not release a later
    /// hold of the same lock.
    Release(usize, Box<[HoldId]>),
    /// The acquire has ended. If it has succeeded and the program abandons it, actions that release the locks follow.
    End(Ending),
}

/// How an acquire ended.
#[derive(Debug, Clone)]
pub enum Ending {
    /// The locks of all steps are held.
    Acquired,
    /// A step failed with this error.
    Failed(Error),
    /// The program canceled the acquire before this step was complete.
    Canceled(usize),
    /// The program abandoned the acquire.
    Abandoned,
}

#[derive(Debug)]
struct Call {
    id: CallId,
    step: usize,
    kind: CallKind,
    op: Option<OpId>,
    cancel: CancelState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Acquire,
    WaitUntilSafe,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CancelState {
    NotRequested,
    /// The shell must cancel the call. The shell can do this only after the engine has accepted the call and returned
    /// an [`OpId`].
    Requested,
    Sent,
}

#[derive(Debug)]
struct HoldWait {
    id: CallId,
    op: Option<OpId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SafetyCheck {
    Due,
    Running,
    Passed,
    /// The lock of this step is not safe.
    Failed(usize),
}

/// Describes what the program expects from the acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallerIntent {
    Wanted,
    Canceled,
    /// The shell has reported the success to the program, so the hold belongs to the program.
    Kept,
    /// The program no longer needs the result.
    Abandoned,
}

impl Steps {
    /// Creates an acquire with `count` steps. The number `count` must be at least 1.
    pub const fn new(count: usize) -> Self {
        Self {
            count,
            acquired: Vec::new(),
            kept: 0,
            call: None,
            hold_waits: Vec::new(),
            to_cancel: Vec::new(),
            safety_check: SafetyCheck::Due,
            intent: CallerIntent::Wanted,
            ending: None,
            is_over: false,
            last_call: 0,
        }
    }

    /// Returns the next action. Before the caller polls again, it must perform the action and pass the result to the
    /// acquire.
    pub fn poll(&mut self) -> Option<Action> {
        if let Some((step, op)) = self.to_cancel.pop() {
            return Some(Action::Cancel(step, op));
        }
        let is_abandoned = self.is_abandoned();
        if let Some(call) = &mut self.call {
            if let (CancelState::Requested, Some(op)) = (call.cancel, call.op) {
                call.cancel = CancelState::Sent;
                let action = if is_abandoned { Action::Abandon } else { Action::Cancel };
                return Some(action(call.step, op));
            }
            let is_begun = call.op.is_some() && call.cancel == CancelState::NotRequested;
            return if is_begun { self.next_hold_wait() } else { None };
        }
        if self.is_over || self.safety_check == SafetyCheck::Running {
            return None;
        }
        if self.acquired.len() > self.kept {
            let holds = self.acquired.pop()?;
            return Some(Action::Release(self.acquired.len(), holds));
        }
        self.next_step()
    }

    /// Records the id that the engine gave to the call of a step. The answer to the call may have arrived earlier.
    pub fn on_call_started(&mut self, call: CallId, op: OpId) {
        if let Some(own) = self.call.as_mut().filter(|own| own.id == call) {
            own.op = Some(op);
        }
    }

    /// Records the id that the engine gave to a hold wait.
    pub fn on_hold_wait_started(&mut self, step: usize, call: CallId, op: OpId) {
        match self.hold_waits.iter_mut().find(|hold_wait| hold_wait.id == call) {
            Some(hold_wait) => hold_wait.op = Some(op),
            // The acquire no longer needs the hold wait, or the engine has already answered it. Canceling an answered
            // call has no effect.
            None => self.to_cancel.push((step, op)),
        }
    }

    /// Records the answer of a call. If the shell could not make a call, it passes an error as the answer.
    pub fn on_answer(&mut self, call: CallId, answer: Result<Answer>) {
        match self.call.take_if(|own| own.id == call) {
            Some(call) => self.on_step_answer(&call, answer),
            None => self.on_hold_wait_answer(call, answer),
        }
    }

    /// Returns the holds of each step whose locks are held.
    pub fn acquired(&self) -> &[Box<[HoldId]>] {
        &self.acquired
    }

    /// Records the result of a check of all locks. `first_unsafe` is the first step whose lock is not safe, or `None`
    /// if all locks are safe.
    pub fn on_safety_checked(&mut self, first_unsafe: Option<usize>) {
        if self.safety_check == SafetyCheck::Running {
            self.safety_check = first_unsafe.map_or(SafetyCheck::Passed, SafetyCheck::Failed);
        }
    }

    /// Cancels the acquire. The acquire ends with CANCELED. If the acquire was about to succeed, it ends with a success
    /// instead.
    pub fn cancel(&mut self) {
        if self.intent == CallerIntent::Wanted {
            self.intent = CallerIntent::Canceled;
            self.cancel_call();
        }
    }

    /// Abandons the acquire. The shell then releases the acquired locks, unless it has reported the success to the
    /// program. Returns true if the shell must fail the calls that wait for the acquire.
    pub fn abandon(&mut self) -> bool {
        match (&self.ending, self.intent) {
            (_, CallerIntent::Kept | CallerIntent::Abandoned) => return false,
            (Some(Ending::Failed(_) | Ending::Canceled(_)), _) if self.is_over => return false,
            _ => self.intent = CallerIntent::Abandoned,
        }
        self.cancel_call();
        if self.is_over {
            // The acquire had succeeded, but the shell had not reported the success to the program.
            self.is_over = false;
            self.finish(Ending::Abandoned);
        }
        true
    }

    /// Records that the shell has reported the success to the program.
    pub fn keep(&mut self) {
        if matches!(
            (&self.ending, self.intent),
            (Some(Ending::Acquired), CallerIntent::Wanted | CallerIntent::Canceled)
        ) {
            self.intent = CallerIntent::Kept;
        }
    }

    /// Returns whether the program has abandoned the acquire.
    pub fn is_abandoned(&self) -> bool {
        self.intent == CallerIntent::Abandoned
    }

    /// Returns how the acquire ended, or `None` while it runs.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref().filter(|_| self.is_over)
    }

    /// Returns the call that the acquire waits for, or `None` until the engine has accepted the call. The result is the
    /// number of the call, its step, and its id at the engine.
    pub fn pending_call(&self) -> Option<(CallId, usize, OpId)> {
        let call = self.call.as_ref()?;
        Some((call.id, call.step, call.op?))
    }

    fn next_step(&mut self) -> Option<Action> {
        match (&self.ending, self.intent) {
            (None | Some(Ending::Acquired), CallerIntent::Abandoned) => self.finish(Ending::Abandoned),
            (None, CallerIntent::Canceled) => match self.safety_check {
                _ if self.acquired.len() < self.count => self.finish(Ending::Canceled(self.acquired.len())),
                // The last step had succeeded before the program canceled the acquire. However, the lock of this step
                // is not safe, so the acquire would have to wait again.
                SafetyCheck::Failed(step) => self.finish(Ending::Canceled(step)),
                SafetyCheck::Due | SafetyCheck::Running | SafetyCheck::Passed => {}
            },
            _ => {}
        }
        if self.acquired.len() > self.kept {
            return self.poll();
        }
        if let Some(end) = &self.ending {
            self.is_over = true;
            return Some(Action::End(end.clone()));
        }
        let step = self.acquired.len();
        if step < self.count {
            let call = self.start_call(step, CallKind::Acquire);
            return Some(Action::Acquire(step, call));
        }
        // An acquire with a single step needs no check, because the engine has just granted the only lock.
        let is_safe =
            self.count == 1 || self.safety_check == SafetyCheck::Passed || Mutant::SkipFinalSafetyCheck.is_active();
        match self.safety_check {
            _ if is_safe => {
                self.finish(Ending::Acquired);
                self.poll()
            }
            SafetyCheck::Failed(step) => {
                self.safety_check = SafetyCheck::Due;
                let call = self.start_call(step, CallKind::WaitUntilSafe);
                Some(Action::Confirm(step, call))
            }
            _ => {
                self.safety_check = SafetyCheck::Running;
                Some(Action::Look)
            }
        }
    }

    fn next_hold_wait(&mut self) -> Option<Action> {
        let step = self.hold_waits.len();
        if step >= self.acquired.len() || Mutant::SkipFinalSafetyCheck.is_active() {
            return None;
        }
        let id = self.next_call();
        self.hold_waits.push(HoldWait { id, op: None });
        Some(Action::StartHoldWait(step, id))
    }

    fn next_call(&mut self) -> CallId {
        self.last_call += 1;
        CallId(self.last_call)
    }

    fn start_call(&mut self, step: usize, kind: CallKind) -> CallId {
        let id = self.next_call();
        self.call = Some(Call { id, step, kind, op: None, cancel: CancelState::NotRequested });
        id
    }

    fn on_step_answer(&mut self, call: &Call, answer: Result<Answer>) {
        match (call.kind, answer) {
            (CallKind::Acquire, Ok(answer)) => {
                // If the acquire no longer needs this lock, `kept` does not include the lock, and the shell releases
                // it.
                self.kept += usize::from(self.kept == self.acquired.len() && self.ending.is_none());
                self.acquired.push(if let Answer::Acquired(holds) = answer { holds } else { Box::default() });
                self.safety_check = SafetyCheck::Due;
            }
            // Another lock may have been lost during this wait.
            (CallKind::WaitUntilSafe, Ok(_)) => self.safety_check = SafetyCheck::Due,
            (CallKind::WaitUntilSafe, Err(error)) if is_not_held(&error) => self.restart_from(call.step),
            // The acquire canceled this call only to return to an earlier step.
            (_, Err(error)) if error.status() == Status::Canceled && call.cancel != CancelState::NotRequested => {
                if self.intent != CallerIntent::Wanted {
                    self.finish_unless_decided(Ending::Failed(error));
                }
            }
            (_, Err(error)) => self.finish_unless_decided(Ending::Failed(error)),
        }
    }

    fn on_hold_wait_answer(&mut self, call: CallId, answer: Result<Answer>) {
        let Some(step) = self.hold_waits.iter().position(|hold_wait| hold_wait.id == call) else { return };
        // The shell must not cancel a hold wait that the engine has answered.
        if let Some(hold_wait) = self.hold_waits.get_mut(step) {
            hold_wait.op = None;
        }
        match answer {
            Err(error) if !is_not_held(&error) => self.finish_unless_decided(Ending::Failed(error)),
            _ => self.restart_from(step),
        }
    }

    /// Acquires the locks of this step and of all later steps again, because the owner no longer holds the lock of this
    /// step.
    fn restart_from(&mut self, step: usize) {
        self.keep_first(step);
        self.cancel_call();
    }

    fn finish_unless_decided(&mut self, end: Ending) {
        if self.ending.is_none() {
            self.finish(end);
        }
    }

    /// Decides how the acquire ends. If the acquire does not succeed, the shell first releases the acquired locks.
    fn finish(&mut self, end: Ending) {
        self.drop_hold_waits(0);
        if !matches!(end, Ending::Acquired) {
            self.keep_first(0);
        }
        self.cancel_call();
        self.ending = Some(end);
    }

    fn keep_first(&mut self, steps: usize) {
        self.kept = self.kept.min(steps);
        self.safety_check = SafetyCheck::Due;
        self.drop_hold_waits(steps);
    }

    fn drop_hold_waits(&mut self, from: usize) {
        let dropped = self.hold_waits.drain(from.min(self.hold_waits.len())..);
        let known = dropped.enumerate().filter_map(|(at, hold_wait)| Some((from + at, hold_wait.op?)));
        self.to_cancel.extend(known);
    }

    fn cancel_call(&mut self) {
        if let Some(call) = &mut self.call
            && call.cancel == CancelState::NotRequested
        {
            call.cancel = CancelState::Requested;
        }
    }
}

/// Returns whether the error means that the owner no longer holds the lock. Every other error ends the whole acquire.
fn is_not_held(error: &Error) -> bool {
    matches!(error.status(), Status::Lost | Status::NotOwner)
}

#[cfg(test)]
#[allow(clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    /// Performs actions until the acquire waits for a call or has no actions left. Returns the actions as text. In
    /// these tests, a check finds that all locks are safe, except the lock of the step `first_unsafe`.
    fn run(steps: &mut Steps, first_unsafe: Option<usize>) -> Vec<String> {
        let mut orders = Vec::new();
        while let Some(order) = steps.poll() {
            orders.push(match order {
                Action::Acquire(step, call) => {
                    steps.on_call_started(call, OpId(call.0));
                    format!("take {step}")
                }
                Action::Confirm(step, call) => {
                    steps.on_call_started(call, OpId(call.0));
                    format!("confirm {step}")
                }
                Action::StartHoldWait(step, call) => {
                    steps.on_hold_wait_started(step, call, OpId(call.0));
                    format!("hold wait {step}")
                }
                Action::Look => {
                    steps.on_safety_checked(first_unsafe);
                    "look".to_owned()
                }
                Action::Cancel(step, _) => format!("cancel {step}"),
                Action::Abandon(step, _) => format!("abandon {step}"),
                Action::Release(step, _) => format!("release {step}"),
                Action::End(Ending::Acquired) => "got".to_owned(),
                Action::End(Ending::Failed(error)) => error.status().name().to_owned(),
                Action::End(Ending::Canceled(step)) => format!("canceled at {step}"),
                Action::End(Ending::Abandoned) => "abandoned".to_owned(),
            });
        }
        orders
    }

    /// Answers the call that the acquire waits for.
    fn answer(steps: &mut Steps, answer: Result<Answer>) {
        let Some((call, ..)) = steps.pending_call() else { panic!("the acquire waits for nothing: {steps:?}") };
        steps.on_answer(call, answer);
    }

    fn error(status: Status) -> Result<Answer> {
        Err(status.into())
    }

    /// An acquire of two steps that waits for its second step.
    fn waiting_for_second_step() -> Steps {
        let mut steps = Steps::new(2);
        assert_eq!(run(&mut steps, None), ["take 0"]);
        answer(&mut steps, Ok(Answer::Done));
        assert_eq!(run(&mut steps, None), ["take 1", "hold wait 0"]);
        steps
    }

    #[test]
    fn single_step_succeeds_without_safety_check() {
        let mut steps = Steps::new(1);
        assert_eq!(run(&mut steps, None), ["take 0"]);
        answer(&mut steps, Ok(Answer::Done));
        assert_eq!(run(&mut steps, None), ["got"]);
    }

    #[test]
    fn all_members_are_checked_before_success() {
        let mut steps = waiting_for_second_step();
        answer(&mut steps, Ok(Answer::Done));
        assert_eq!(run(&mut steps, None), ["look", "cancel 0", "got"]);
        assert!(matches!(steps.ending(), Some(Ending::Acquired)));
    }

    #[test]
    fn lost_member_is_acquired_again_with_later_ones() {
        let mut steps = Steps::new(3);
        run(&mut steps, None);
        answer(&mut steps, Ok(Answer::Done));
        run(&mut steps, None);
        answer(&mut steps, Ok(Answer::Done));
        assert_eq!(run(&mut steps, None), ["take 2", "hold wait 1"]);
        // Call 3 is the hold wait of the first step.
        steps.on_answer(CallId(3), error(Status::Lost));
        assert_eq!(run(&mut steps, None), ["cancel 1", "cancel 2"]);
        answer(&mut steps, error(Status::Canceled));
        assert_eq!(run(&mut steps, None), ["release 1", "release 0", "take 0"]);
    }

    #[test]
    fn step_acquired_after_loss_of_earlier_member_is_released() {
        let mut steps = waiting_for_second_step();
        steps.on_answer(CallId(3), error(Status::NotOwner));
        assert_eq!(run(&mut steps, None), ["cancel 1"]);
        answer(&mut steps, Ok(Answer::Done));
        assert_eq!(run(&mut steps, None), ["release 1", "release 0", "take 0"]);
    }

    #[test]
    fn unsafe_member_is_waited_for_and_all_are_checked_again() {
        let mut steps = waiting_for_second_step();
        answer(&mut steps, Ok(Answer::Done));
        assert_eq!(run(&mut steps, Some(0)), ["look", "confirm 0", "hold wait 1"]);
        answer(&mut steps, Ok(Answer::Done));
        assert_eq!(run(&mut steps, Some(1)), ["look", "confirm 1"]);
        answer(&mut steps, error(Status::Lost));
        assert_eq!(run(&mut steps, None), ["cancel 1", "release 1", "take 1"]);
        answer(&mut steps, Ok(Answer::Done));
        assert_eq!(run(&mut steps, None), ["look", "cancel 0", "got"]);
    }

    #[test]
    fn deadline_while_member_is_unsafe_fails_and_releases_all() {
        let mut steps = waiting_for_second_step();
        answer(&mut steps, Ok(Answer::Done));
        run(&mut steps, Some(0));
        answer(&mut steps, error(Status::Connection));
        let orders = run(&mut steps, None);
        assert_eq!(orders, ["cancel 1", "cancel 0", "release 1", "release 0", Status::Connection.name()]);
    }

    #[test]
    fn cancel_between_steps_fails_unless_last_step_succeeded_first() {
        let mut steps = Steps::new(2);
        run(&mut steps, None);
        steps.cancel();
        assert_eq!(run(&mut steps, None), ["cancel 0"]);
        answer(&mut steps, Ok(Answer::Done));
        assert_eq!(run(&mut steps, None), ["release 0", "canceled at 1"]);
        let mut steps = waiting_for_second_step();
        steps.cancel();
        assert_eq!(run(&mut steps, None), ["cancel 1"]);
        answer(&mut steps, Ok(Answer::Done));
        assert_eq!(run(&mut steps, None), ["look", "cancel 0", "got"]);
        let mut steps = waiting_for_second_step();
        steps.cancel();
        run(&mut steps, None);
        answer(&mut steps, Ok(Answer::Done));
        let given_up = ["look", "cancel 0", "release 1", "release 0", "canceled at 0"];
        assert_eq!(run(&mut steps, Some(0)), given_up, "the acquire does not wait until the first part is safe");
    }

    #[test]
    fn abandon_releases_members_unless_success_was_reported() {
        let mut steps = waiting_for_second_step();
        answer(&mut steps, Ok(Answer::Done));
        run(&mut steps, None);
        assert!(steps.abandon());
        assert_eq!(run(&mut steps, None), ["release 1", "release 0", "abandoned"]);
        let mut steps = waiting_for_second_step();
        answer(&mut steps, Ok(Answer::Done));
        run(&mut steps, None);
        steps.keep();
        assert!(!steps.abandon());
        assert_eq!(run(&mut steps, None), Vec::<String>::new());
    }
}
