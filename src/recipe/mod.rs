//! The lock recipes: pure state machines on top of a session.
//!
//! A *queue* is a directory of ephemeral sequential nodes. To join is to create a node, to leave is to delete it, and its mode says
//! from the sorted list whether it is in, and if not, which single node to watch.

#![forbid(unsafe_code)]

mod census;
mod contender;
mod count;
mod directories;
mod errand;
mod fence;
mod line;
mod mirror;
pub mod name;
mod rank;

pub use census::{Census, Max, Participant, Place};
pub use contender::{Contender, Input, Obstacle, Output, Removal, Seen, Wish};
pub use count::Count;
pub use directories::Chroot;
pub use errand::{Done, Errand, Task};
pub use fence::Fence;
pub use mirror::{Mirrors, Told};
pub use name::Mode;

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

/// The steps that the recipes' requests belong to. Numbers say which of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A directory or one of its ancestors is created.
    CreateParent(usize),
    /// The nodes are created.
    Create,
    /// A directory is listed.
    List(usize),
    /// An own node is read and watched.
    WatchOwn(Spot),
    /// The node ahead is read and watched.
    WatchAhead(usize),
    /// A node is deleted.
    Delete(Spot),
    /// A node ahead that a mirror shows is read, to know whose it is.
    LookAhead(usize),
    /// A directory is watched for its mirror.
    WatchBelow,
    /// A directory is watched, to know that it stays.
    WatchDirectory,
    /// A participant's node is read.
    Read(usize),
    /// A count is read, or something else that is one request.
    Errand,
}

/// One of a contender's nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    /// The directory's number.
    pub stand: usize,
    /// The node's number there.
    pub node: usize,
}

/// What a state machine works with while it handles one input: the session, in its own name.
pub struct Desk<'a> {
    /// The time of the input.
    pub now: Time,
    /// The machine's number.
    pub machine: Subscriber,
    /// Of an answer: the zxid that came with it, which is that of the transaction if it was one.
    pub zxid: i64,
    /// The session.
    pub session: &'a mut Session<Tag>,
    /// What is known of directories without asking.
    pub mirrors: &'a mut Mirrors,
    /// The client's chroot, with which all full paths begin.
    pub chroot: &'a Chroot,
}

impl<'a> Desk<'a> {
    /// For an input that is no answer.
    pub fn new(
        now: Time,
        machine: Subscriber,
        session: &'a mut Session<Tag>,
        mirrors: &'a mut Mirrors,
        chroot: &'a Chroot,
    ) -> Self {
        Self { now, machine, zxid: 0, session, mirrors, chroot }
    }
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

    fn watch_children(&mut self, step: Step, path: &str) {
        self.session.watch_children(self.now, path, self.machine, Tag { machine: self.machine, step });
    }

    fn unwatch_children(&mut self, path: &str) {
        self.session.unwatch_children(self.now, path, self.machine);
    }
}
