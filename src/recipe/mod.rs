//! The lock recipes: pure state machines on top of a session.
//!
//! A *queue* is a directory of ephemeral sequential nodes. To join is to create a node, to leave is to delete it, and a
//! policy says from the sorted list whether we are in, and if not, which single node to watch.

#![forbid(unsafe_code)]

mod census;
pub mod name;
mod queue;

pub use census::{Census, Participant};
pub use queue::{Contender, Input, Output, Removal};

use crate::proto::Request;
use crate::session::{Session, Subscriber};
use crate::time::Time;

/// The engine's mark on a request: whose it is, and which step of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// The state machine that sent it.
    pub machine: Subscriber,
    /// What the answer is to.
    pub step: Step,
}

/// The steps that the recipes' requests belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// One of the directory's ancestors, or the directory itself, is created.
    CreateParent,
    /// The node is created.
    Create,
    /// The directory is listed.
    List,
    /// The own node is read and watched.
    WatchOwn,
    /// The node ahead is read and watched.
    WatchAhead,
    /// The node is deleted.
    Delete,
    /// A participant's node is read: its index in the census.
    Read(usize),
}

/// What a state machine works with while it handles one input: the session, in its own name.
pub struct Desk<'a> {
    /// The time of the input.
    pub now: Time,
    /// The machine's number.
    pub machine: Subscriber,
    /// The session.
    pub session: &'a mut Session<Tag>,
}

impl Desk<'_> {
    fn send(&mut self, step: Step, request: &Request) {
        self.session.submit(self.now, request, Tag { machine: self.machine, step });
    }

    fn watch(&mut self, step: Step, path: &str) {
        self.session.watch(self.now, path, self.machine, Tag { machine: self.machine, step });
    }

    fn unwatch(&mut self, path: &str) {
        self.session.unwatch(self.now, path, self.machine);
    }
}
