//! A program's trace, put together: its calls, its holds, and what it was told of each.

use std::collections::BTreeMap;

use crate::trace::{Line, Nanos, Stance, What};

/// A program that took part.
#[derive(Debug, Clone, Default)]
pub struct Process {
    /// What it is called in reports.
    pub name: String,
    /// What it is written in.
    pub language: &'static str,
    /// What it wrote down.
    pub lines: Vec<Line>,
    /// When it stood still, because we stopped it.
    pub absences: Vec<Absence>,
    /// When its CLOCK_BOOTTIME jumped forward by at least a session timeout.
    pub jumps: Vec<Nanos>,
    /// How it ended.
    pub end: End,
}

/// A time in which a program stood still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Absence {
    /// It was stopped before.
    pub from: Nanos,
    /// It was woken after.
    pub until: Nanos,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum End {
    /// By itself, with success.
    #[default]
    Well,
    /// By us, with SIGKILL.
    Killed(Nanos),
    /// In another way, which is its wait status.
    Badly(i32),
}

/// A call that asks for a lock.
#[derive(Debug, Clone)]
pub struct Call {
    /// For which.
    pub path: String,
    /// Its limit in milliseconds; -1 for none.
    pub limit_ms: i64,
    /// When.
    pub asked: Nanos,
    /// When it returned, and with what: 0 or a `ZKL_E_*`. None if it never did.
    pub answer: Option<(Nanos, i32)>,
}

/// A hold, from a call's return to its end.
#[derive(Debug, Clone)]
pub struct Hold {
    /// The lock's path; those of several as one are joined by `+`.
    pub path: String,
    /// Whom it excludes.
    pub stance: Stance,
    /// Whose.
    pub thread: u32,
    /// Its fencing token.
    pub token: i64,
    /// When the call began.
    pub asked: Nanos,
    /// When it had returned.
    pub got: Nanos,
    /// What was seen of it.
    pub looks: Vec<Look>,
    /// When it began to be given up, and whether that was to be confirmed.
    pub leave: Option<(Nanos, bool)>,
    /// When that had returned, and with what.
    pub left: Option<(Nanos, i32)>,
}

/// A look at a hold.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// When it began, with the question whether it is held.
    pub at: Nanos,
    /// The answer.
    pub is_held: bool,
    /// Since when it is safe for `left_ms`.
    pub left_at: Nanos,
    /// How long it said to be safe.
    pub left_ms: u64,
    /// How it stood.
    pub state: i32,
    /// When it had ended.
    pub done: Nanos,
}

/// A change of a hold that was told.
#[derive(Debug, Clone, Copy)]
pub struct Told {
    /// When.
    pub at: Nanos,
    /// How it stood.
    pub previous: i32,
    /// How it stands.
    pub state: i32,
}

/// What a program did and heard.
#[derive(Debug, Default)]
pub struct Story {
    /// In the order in which they began, for each thread.
    pub calls: Vec<Call>,
    /// In the order in which they were got.
    pub holds: Vec<Hold>,
    /// By the lock's path and the token.
    pub told: BTreeMap<(String, i64), Vec<Told>>,
    /// Of its session.
    pub client: Vec<Told>,
    /// Whether it has an event handler.
    pub hears_events: bool,
    /// The library's threads that were left at its end.
    pub threads_left: Option<u32>,
}

impl Story {
    /// Of one client. What can't follow from what went before is an error of the program or of the rig.
    pub fn of(lines: &[Line]) -> Result<Self, String> {
        let mut story = Self::default();
        let mut pending: BTreeMap<u32, (usize, Stance)> = BTreeMap::new();
        for line in lines {
            story.add(line, &mut pending).ok_or_else(|| format!("a line that follows from nothing: {line:?}"))?;
        }
        Ok(story)
    }

    fn add(&mut self, line: &Line, pending: &mut BTreeMap<u32, (usize, Stance)>) -> Option<()> {
        let (at, thread) = (line.at, line.thread);
        match &line.what {
            What::Begin { hears_events, .. } => self.hears_events = *hears_events,
            What::Call { path, stance, limit_ms } => {
                pending.insert(thread, (self.calls.len(), *stance));
                self.calls.push(Call { path: path.clone(), limit_ms: *limit_ms, asked: at, answer: None });
            }
            What::Got { path, token } => {
                let (call, stance) = pending.remove(&thread)?;
                let call = self.calls.get_mut(call).filter(|call| call.path == *path)?;
                call.answer = Some((at, 0));
                let (path, token, asked) = (path.clone(), *token, call.asked);
                let looks = Vec::new();
                self.holds.push(Hold { path, stance, thread, token, asked, got: at, looks, leave: None, left: None });
            }
            What::Failed { status, .. } => {
                let (call, _) = pending.remove(&thread)?;
                self.calls.get_mut(call)?.answer = Some((at, *status));
            }
            What::Look { token, is_held, left_at, left_ms, state, done_at } => {
                let (is_held, left_at, left_ms, state, done) = (*is_held, *left_at, *left_ms, *state, *done_at);
                self.hold(thread, *token)?.looks.push(Look { at, is_held, left_at, left_ms, state, done });
            }
            What::Leave { token, waits } => self.hold(thread, *token)?.leave = Some((at, *waits)),
            What::Left { token, status } => self.hold(thread, *token)?.left = Some((at, *status)),
            What::LockEvent { path, token, previous, state } => {
                let told = Told { at, previous: *previous, state: *state };
                self.told.entry((path.clone(), *token)).or_default().push(told);
            }
            What::ClientEvent { previous, state } => {
                self.client.push(Told { at, previous: *previous, state: *state });
            }
            What::End { threads } => self.threads_left = Some(*threads),
        }
        Some(())
    }

    fn hold(&mut self, thread: u32, token: i64) -> Option<&mut Hold> {
        self.holds.iter_mut().rev().find(|hold| (hold.thread, hold.token) == (thread, token))
    }
}

impl Process {
    /// How long it stood still in between.
    pub fn absent(&self, from: Nanos, until: Nanos) -> Nanos {
        self.absences.iter().map(|absence| absence.until.min(until).saturating_sub(absence.from.max(from))).sum()
    }
}

impl Hold {
    /// The paths of its locks.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.path.split('+')
    }
}
