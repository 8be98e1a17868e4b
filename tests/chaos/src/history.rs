//! The history of a program, assembled from its trace: its calls, its holds, and the events of each hold.

use std::collections::BTreeMap;

use crate::trace::{Exclusion, Line, Nanos, TraceEvent};

/// A program that took part.
#[derive(Debug, Clone, Default)]
pub struct Process {
    /// The name of the program in reports.
    pub name: String,
    /// The language of the program.
    pub language: &'static str,
    /// The trace of the program.
    pub lines: Vec<Line>,
    /// The intervals in which the program was paused.
    pub pauses: Vec<Pause>,
    /// The times at which its CLOCK_BOOTTIME jumped forward by at least a session timeout.
    pub jumps: Vec<Nanos>,
    /// How the program ended.
    pub end: ProcessEnd,
}

/// An interval in which a program was paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// A time before the pause took effect.
    pub from: Nanos,
    /// A time after which the program was resumed.
    pub until: Nanos,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProcessEnd {
    /// It ended by itself, with exit status 0.
    #[default]
    Success,
    /// It was killed with SIGKILL at this time.
    Killed(Nanos),
    /// It ended in another way, with this wait status.
    Failure(i32),
}

/// An acquire.
#[derive(Debug, Clone)]
pub struct Call {
    /// The path of the lock.
    pub path: String,
    /// The time limit in milliseconds, or -1 for none.
    pub limit_ms: i64,
    /// The time of the call.
    pub requested_at: Nanos,
    /// The time of the return and the status: 0 or a `ZKL_E_*`. `None` if the call never returned.
    pub answer: Option<(Nanos, i32)>,
}

/// A hold, from the return of the acquire to its end.
#[derive(Debug, Clone)]
pub struct Hold {
    /// The path of the lock. The paths of a multi-lock are joined by `+`.
    pub path: String,
    /// The holds that it excludes.
    pub exclusion: Exclusion,
    /// The thread that acquired the lock.
    pub thread: u32,
    /// The fencing token.
    pub token: i64,
    /// The time at which the acquire began.
    pub requested_at: Nanos,
    /// The time at which the acquire had returned.
    pub acquired_at: Nanos,
    /// The checks of the hold.
    pub checks: Vec<StateCheck>,
    /// The time at which the release began, and whether the release waited for a confirmation.
    pub release_started: Option<(Nanos, bool)>,
    /// The time at which the release had returned, and its status.
    pub released: Option<(Nanos, i32)>,
}

/// A check of a hold: whether it is held, for how long it remains safe, and its state.
#[derive(Debug, Clone, Copy)]
pub struct StateCheck {
    /// The time at which the check began.
    pub at: Nanos,
    /// Whether the lock was held.
    pub is_held: bool,
    /// The time at which the period `remaining_ms` begins.
    pub remaining_at: Nanos,
    /// The reported remaining time, in milliseconds.
    pub remaining_ms: u64,
    /// The state of the hold.
    pub state: i32,
    /// The time at which the check had ended.
    pub done_at: Nanos,
}

/// A state change that an event reported.
#[derive(Debug, Clone, Copy)]
pub struct StateChange {
    /// The time of the event.
    pub at: Nanos,
    /// The state before.
    pub previous: i32,
    /// The state after.
    pub state: i32,
}

/// The history of a program.
#[derive(Debug, Default)]
pub struct ProcessHistory {
    /// The calls, in the order in which each thread made them.
    pub calls: Vec<Call>,
    /// The holds, in the order in which they were acquired.
    pub holds: Vec<Hold>,
    /// The events of holds, by the path of the lock and the token.
    pub lock_events: BTreeMap<(String, i64), Vec<StateChange>>,
    /// The events of the session.
    pub client_events: Vec<StateChange>,
    /// Whether the program has an event handler.
    pub has_event_handler: bool,
    /// The number of library threads that were left at the end.
    pub threads_left: Option<u32>,
}

impl ProcessHistory {
    /// Assembles the history of one client. A line that does not fit to the lines before it is an error of the program
    /// or of the test.
    pub fn of(lines: &[Line]) -> Result<Self, String> {
        let mut history = Self::default();
        let mut pending: BTreeMap<u32, (usize, Exclusion)> = BTreeMap::new();
        for line in lines {
            history.add(line, &mut pending).ok_or_else(|| format!("an unexpected line of a trace: {line:?}"))?;
        }
        Ok(history)
    }

    fn add(&mut self, line: &Line, pending: &mut BTreeMap<u32, (usize, Exclusion)>) -> Option<()> {
        let (at, thread) = (line.at, line.thread);
        match &line.event {
            TraceEvent::Begin { has_event_handler, .. } => self.has_event_handler = *has_event_handler,
            TraceEvent::Acquire { path, stance: exclusion, limit_ms } => {
                pending.insert(thread, (self.calls.len(), *exclusion));
                self.calls.push(Call { path: path.clone(), limit_ms: *limit_ms, requested_at: at, answer: None });
            }
            TraceEvent::Acquired { path, token } => {
                let (call, exclusion) = pending.remove(&thread)?;
                let call = self.calls.get_mut(call).filter(|call| call.path == *path)?;
                call.answer = Some((at, 0));
                let (path, token, requested_at) = (path.clone(), *token, call.requested_at);
                let checks = Vec::new();
                self.holds.push(Hold {
                    path,
                    exclusion,
                    thread,
                    token,
                    requested_at,
                    acquired_at: at,
                    checks,
                    release_started: None,
                    released: None,
                });
            }
            TraceEvent::Failed { status, .. } => {
                let (call, _) = pending.remove(&thread)?;
                self.calls.get_mut(call)?.answer = Some((at, *status));
            }
            TraceEvent::Check { token, is_held, remaining_at, remaining_ms, state, done_at } => {
                let (is_held, remaining_at, remaining_ms, state, done) =
                    (*is_held, *remaining_at, *remaining_ms, *state, *done_at);
                self.hold(thread, *token)?.checks.push(StateCheck {
                    at,
                    is_held,
                    remaining_at,
                    remaining_ms,
                    state,
                    done_at: done,
                });
            }
            TraceEvent::Release { token, waits } => self.hold(thread, *token)?.release_started = Some((at, *waits)),
            TraceEvent::Released { token, status } => self.hold(thread, *token)?.released = Some((at, *status)),
            TraceEvent::LockEvent { path, token, previous, state } => {
                let told = StateChange { at, previous: *previous, state: *state };
                self.lock_events.entry((path.clone(), *token)).or_default().push(told);
            }
            TraceEvent::ClientEvent { previous, state } => {
                self.client_events.push(StateChange { at, previous: *previous, state: *state });
            }
            TraceEvent::End { threads } => self.threads_left = Some(*threads),
        }
        Some(())
    }

    fn hold(&mut self, thread: u32, token: i64) -> Option<&mut Hold> {
        self.holds.iter_mut().rev().find(|hold| (hold.thread, hold.token) == (thread, token))
    }
}

impl Process {
    /// The total time between `from` and `until` in which the program was paused.
    pub fn paused_time(&self, from: Nanos, until: Nanos) -> Nanos {
        self.pauses.iter().map(|pause| pause.until.min(until).saturating_sub(pause.from.max(from))).sum()
    }
}

impl Hold {
    /// The paths of the locks.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.path.split('+')
    }
}
