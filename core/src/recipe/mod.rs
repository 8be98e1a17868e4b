//! The lock recipes: state machines that use a session and perform no I/O.
//!
//! A *queue* is a directory of ephemeral sequential nodes. A contender joins a queue by creating a node, and leaves the
//! queue by deleting the node. The sorted list of children shows whether the contender has acquired the lock. If the
//! contender has not acquired the lock, the list shows the single node that it must watch.

mod contender;
mod directories;
mod directory_cache;
mod fence_check;
pub mod name;
mod node_request;
mod participants;
mod queue_index;
mod queue_order;
mod rank;
mod shared_count;

pub(crate) use contender::{Blocker, Contender, Input, Output, QueueRequest, Removal};
pub(crate) use directories::Chroot;
pub(crate) use directory_cache::{CacheEvent, DirectoryCaches};
pub(crate) use fence_check::FenceCheck;
pub use name::{LockFamily, Mode};
pub use node_request::{Children, NodeContent, NodeRequest};
pub(crate) use node_request::{NodeReply, RetriedRequest};
pub use participants::Participant;
pub(crate) use participants::{MaxLeases, ParticipantQuery, QueryScope};
pub use queue_order::QueueNode;
pub(crate) use rank::are_leases_available;
pub(crate) use shared_count::SharedCount;

use zklock_proto::{Code, Request};

use crate::acl::{CreateAcls, Permission, Place};
use crate::error::Error;
use crate::session::{Failure, MachineId, Session, Subscriber};
use crate::time::Time;

/// The tag of a request. The tag contains the recipient of the reply, and the purpose of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag {
    /// The state machine or the directory cache that receives the reply, or `None` if no recipient needs the reply.
    pub recipient: Option<Subscriber>,
    /// The purpose of the request.
    pub kind: RequestKind,
}

/// The purpose of a request that a recipe makes. The number in a variant is the index of the directory or node for
/// which the request is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// Creates a directory or one of its ancestors.
    CreateDirectory,
    /// Creates all nodes of the contender in one transaction.
    Create,
    /// Lists the children of a directory.
    List(usize),
    /// Reads a node of the contender and sets a watch on it.
    WatchOwn(NodeIndex),
    /// Reads the predecessor and sets a watch on it. The state machine of a watched count uses this purpose too.
    WatchData(usize),
    /// Deletes a node.
    Delete(NodeIndex),
    /// Reads the session and the data of the predecessor, without setting a watch. Only a contender that uses a
    /// directory cache makes this request.
    ReadPredecessor(usize),
    /// Sets the persistent recursive watch of a directory cache.
    WatchRecursive,
    /// Sets a watch on a directory to detect its deletion.
    WatchDirectory,
    /// Reads the node of a participant.
    ReadParticipant(usize),
    /// Performs a node request, such as reading a count.
    NodeRequest,
}

/// The index of a node of a contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeIndex {
    /// The index of the directory.
    pub slot: usize,
    /// The index of the node in this directory.
    pub node: usize,
}

/// The context in which a state machine handles one input.
pub(crate) struct Context<'a> {
    /// The time of the input.
    pub now: Time,
    /// The id of the state machine.
    pub machine_id: MachineId,
    /// The session.
    pub session: &'a mut Session<Tag>,
    /// The directory caches of the client.
    pub caches: &'a mut DirectoryCaches,
    /// The client's chroot, with which all full paths begin.
    pub chroot: &'a Chroot,
    /// The access control lists of the nodes that the client creates.
    pub acls: &'a CreateAcls,
}

impl<'a> Context<'a> {
    /// Creates the context of one input.
    pub(crate) fn new(
        now: Time,
        machine_id: MachineId,
        session: &'a mut Session<Tag>,
        caches: &'a mut DirectoryCaches,
        chroot: &'a Chroot,
        acls: &'a CreateAcls,
    ) -> Self {
        Self { now, machine_id, session, caches, chroot, acls }
    }
}

impl Context<'_> {
    /// Converts the failure of a create request to an error. The new node would have been in `place` and below
    /// `parent`.
    fn create_error(&self, failure: Failure, doing: &str, parent: &str, place: Place) -> Error {
        let error = failure.to_error(doing).requiring(Permission::Create, parent);
        match failure {
            Failure::Code(Code::INVALID_ACL) => {
                Error::invalid(format!("{}; {}", error.message(), self.acls.refusal_hint(place)))
            }
            _ => error,
        }
    }

    const fn subscriber(&self) -> Subscriber {
        Subscriber::Machine(self.machine_id)
    }

    const fn tag(&self, kind: RequestKind) -> Tag {
        Tag { recipient: Some(self.subscriber()), kind }
    }

    fn send(&mut self, kind: RequestKind, request: &Request) {
        let tag = self.tag(kind);
        self.session.submit(self.now, request, tag);
    }

    fn watch_data(&mut self, kind: RequestKind, path: &str) {
        let (subscriber, tag) = (self.subscriber(), self.tag(kind));
        self.session.watch_data(self.now, path, subscriber, tag);
    }

    fn unwatch_data(&mut self, path: &str) {
        let subscriber = self.subscriber();
        self.session.unwatch_data(self.now, path, subscriber);
    }

    fn watch_children(&mut self, kind: RequestKind, path: &str) {
        let (subscriber, tag) = (self.subscriber(), self.tag(kind));
        self.session.watch_children(self.now, path, subscriber, tag);
    }

    fn unwatch_children(&mut self, path: &str) {
        let subscriber = self.subscriber();
        self.session.unwatch_children(self.now, path, subscriber);
    }
}
