//! A contender is one attempt to acquire a lock. All lock recipes use contenders.
//!
//! A contender creates its nodes in one transaction. For a mutex, a contender creates one node. For leases of a
//! semaphore, it creates several nodes in one directory. For a multi-lock, it creates one node in each of several
//! directories.
//!
//! The life of a contender has five phases ([`Phase`]): it joins, waits, holds its locks, leaves and is gone. A
//! contender never joins a second time. If a node of the contender is lost, the contender reports the loss. The engine
//! may then create a new contender with a new UUID. Because of the new UUID, a late delete request of the old contender
//! cannot delete a node of the new contender. A contender also never adopts a node of a session that has ended
//! (CURATOR-604).

mod join;
mod leave;
mod wait;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use zklock_proto::{EventKind, Response};

use super::directories::DirectoryCreation;
use super::name::{self, Mode};
use super::queue_index::QueueIndex;
use super::{Context, NodeIndex, RequestKind};
use crate::acl::Permission;
use crate::error::{Error, Status};
use crate::mutant::Mutant;
use crate::session::{CacheId, Failure, MachineId, Subscriber};
use crate::time::Time;

/// The maximum number of bytes of data that a contender keeps for a predecessor.
const MAX_PREDECESSOR_DATA: usize = 64;

/// The node data that requests a revocation (Curator's `Revoker`).
pub(in crate::recipe) const REVOKE: &[u8] = b"__REVOKE__";

/// An input of a state machine. Most inputs concern only contenders.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// The client has a connection, so the state machine can send its requests. The engine passes this input when it
    /// starts a state machine, and after each connect. If the client has a new session, [`Input::SessionEnded`] comes
    /// before this input.
    SendRequests,
    /// The connection was lost.
    Disconnected,
    /// The session has ended.
    SessionEnded {
        /// The value is `Some` if no server has reported the expiry of the session. The nodes of the session exist at
        /// least until this time, unless the contender deletes them.
        nodes_until: Option<Time>,
    },
    /// The reply to a request of the state machine.
    Reply {
        kind: RequestKind,
        /// The zxid of the reply. The reply to a transaction has the zxid of the transaction.
        zxid: i64,
        result: Result<Response, Failure>,
    },
    /// A watch on a node fired.
    WatchFired(EventKind, &'a str),
    /// The caller no longer wants the lock. The contender must delete its nodes.
    Leave,
    /// The contender must check that its own nodes still exist, and must set watches on them.
    VerifyNodes,
    /// A server has answered this client's delete request for a predecessor, and the predecessor no longer exists.
    PredecessorDeletedByUs(&'a str),
    /// The client has loaded the directory cache of this contender.
    CacheLive,
    /// The directory cache of this contender has ended. The value is true if the cache was consistent until its end,
    /// and false if the cache may have been wrong.
    CacheEnded(bool),
    /// The contender has waited for some time. If the owner of its predecessor is unknown, the contender must read the
    /// predecessor.
    ReadPredecessor,
    /// The maximum number of leases has changed to this value.
    MaxLeases(i32),
    /// The pause that [`Contender::take_retry`] returned is over.
    Retry,
}

/// A result that the contender returns after an input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// The contender has acquired its locks: its nodes belong to the current session, and no node ahead excludes them.
    Acquired,
    /// The contender makes only a single attempt, but would have to wait. The engine must make it leave.
    WouldBlock,
    /// The number of free leases is too small, so the contender waits.
    TooFewLeases,
    /// The contender's nodes still exist.
    NodesVerified,
    /// A node of the contender is lost. The contender is gone, or is deleting its other nodes.
    Removed(Removal),
    /// The contender cannot join. The contender is gone or is leaving.
    Failed(Error),
    /// The server refused to delete a node. The contender repeats the delete request.
    DeleteRefused(Error),
    /// All nodes of the contender are deleted.
    Gone,
}

/// The reason why a node was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    /// The session of the node has ended.
    SessionEnded,
    /// An operator or another client deleted the node.
    Deleted,
}

/// The nodes that a contender needs in one directory.
#[derive(Debug, Clone)]
pub(crate) struct QueueRequest {
    /// The full path of the lock. For a semaphore, the path is the parent of `directory`, and otherwise it is
    /// `directory` itself.
    pub lock_path: Arc<str>,
    /// The full path of the directory.
    pub directory: Arc<str>,
    /// The mode of the nodes.
    pub mode: Mode,
    /// True if the contender treats kazoo's locks as contenders of the same queue.
    pub with_kazoo: bool,
    /// The data of the nodes.
    pub data: Vec<u8>,
    /// The number of nodes. For all modes except leases, the number is 1.
    pub node_count: usize,
    /// The maximum number of leases. Only contenders for leases use this field.
    pub max_leases: i32,
    /// For a nested read lock: the name of the write node of the owner, which already holds the write lock. The read
    /// node gets the sequence number of the write node (CURATOR-621).
    pub nested_in: Option<String>,
}

impl QueueRequest {
    /// Returns the number of path bytes that these nodes add to the transaction that ends their session. Each path
    /// needs four more bytes for its length.
    pub(crate) fn path_bytes(&self) -> usize {
        let name = 1 + name::PROTECTION_LENGTH + self.mode.base().len() + name::DIGITS;
        (4 + self.directory.len() + name).saturating_mul(self.node_count)
    }
}

/// One attempt to acquire one or more locks.
#[derive(Debug)]
pub(crate) struct Contender {
    slots: Vec<QueueSlot>,
    /// True if the contender must leave at once instead of waiting.
    try_once: bool,
    /// True if the contender watches its nodes from the start, because another client may request a revocation.
    is_revocable: bool,
    phase: Phase,
    /// The id of the session that created the nodes.
    session_id: i64,
    /// True if the contender had to wait for a predecessor or for leases.
    has_waited: bool,
    /// The path of a node for which the contender has detected, but not yet reported, a revocation request.
    revocation: Option<String>,
    retry: RetryTimer,
}

/// The part of a contender that belongs to one directory and remains in all phases.
#[derive(Debug)]
struct QueueSlot {
    request: QueueRequest,
    /// The name of the nodes without the sequence number that the server appends.
    name_prefix: String,
    /// The nodes that the contender has, according to the last reply.
    nodes: Vec<Node>,
    /// True while a list request is in flight. The list that a contender requests together with the creation of its
    /// nodes arrives in the next phase.
    is_list_pending: bool,
    /// True if the directory caches have recorded that the contender uses this directory.
    is_use_recorded: bool,
    /// The directory cache that ranks the nodes.
    cache: Option<CacheId>,
}

#[derive(Debug)]
struct Node {
    path: String,
    /// The creation zxid. The value is `None` if the contender found the node by its UUID and has not read it.
    czxid: Option<i64>,
    watch: NodeWatch,
    /// True if the contender has read the node since the last request to verify it.
    is_verified: bool,
    /// The data version of the last revocation request.
    revocation_version: Option<i32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeWatch {
    Unset,
    Requested,
    Set,
    /// The contender sets no watch on the node, because a directory cache reports changes of the node.
    Cached,
}

/// The phase of a contender. A phase owns the data that only this phase needs.
#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// The contender creates its nodes.
    Joining(Joining),
    /// The nodes exist. The contender waits until it is first in all its directories. Each element belongs to the slot
    /// with the same index.
    Queued(Vec<Queued>),
    /// The contender has acquired its locks.
    Acquired,
    /// The contender no longer wants the lock, but its nodes may exist.
    Leaving(Leaving),
    Gone,
}

/// The state of a contender that creates its nodes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Joining {
    step: JoinStep,
    /// Creates missing directories, and detects a missing chroot.
    directory_creation: DirectoryCreation,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum JoinStep {
    /// The contender has sent no request.
    #[default]
    NotBegun,
    /// The contender lists the directories to find out whether joining can succeed. The contender has written nothing
    /// yet.
    Checking {
        /// True if one of the directories does not exist.
        is_directory_missing: bool,
    },
    /// A list has shown that the contender would have to wait in the directory with the index `at`. The contender has
    /// written nothing. It reads the node ahead, so that its answer names the owner of the node.
    Blocked { at: usize, position: Position },
    /// The contender has sent the create request, followed by the list requests. The server may first have to answer
    /// requests that create missing directories.
    Creating,
    /// The create request failed because a directory does not exist. A list is still in flight.
    DirectoryMissing {
        /// The index of the missing directory.
        at: usize,
    },
    /// The reply to the create request was lost, so nodes with this contender's UUID may exist.
    CreateUnknown,
}

/// The state of a contender that no longer wants the lock.
#[derive(Debug, PartialEq, Eq)]
enum Leaving {
    /// The reply to the create request has not arrived yet.
    Creating,
    /// The contender searches for its nodes, because it does not know whether the server has created them.
    Searching,
    /// The contender knows its nodes and is deleting them.
    Deleting(Deleting),
}

/// The state of a contender that is deleting its nodes.
#[derive(Debug, PartialEq, Eq, Default)]
struct Deleting {
    /// The contender must not delete its nodes before this time.
    not_before: Option<Time>,
    /// True if another client or an operator has deleted a node of the contender.
    was_deleted_by_other: bool,
    /// The nodes that no longer exist.
    deleted: BTreeSet<NodeIndex>,
    /// Nodes for which the contender sent a delete request whose reply was lost.
    unconfirmed: BTreeSet<NodeIndex>,
    /// Nodes that still exist because the client lacks the permission to delete them.
    denied: BTreeSet<NodeIndex>,
}

/// The state of a contender that waits in one directory.
#[derive(Debug, Default, PartialEq, Eq)]
struct Queued {
    position: Position,
    /// The path of a predecessor that the contender is reading. The directory cache contains this predecessor, but not
    /// the owner of the predecessor.
    pending_predecessor_read: Option<String>,
    /// The names of later nodes that have the same sequence number as the contender's own node.
    ties_behind: Vec<String>,
}

/// The position of the nodes in one directory.
#[derive(Debug, Default, PartialEq, Eq)]
enum Position {
    /// The position is not known yet.
    #[default]
    Unknown,
    /// Another node is ahead.
    Behind(Predecessor),
    /// Too many leases are taken. `taken` includes the leases of this contender.
    TooFewLeases { taken: usize },
    /// No node ahead excludes the contender's own node.
    First,
}

#[derive(Debug, PartialEq, Eq)]
struct Predecessor {
    path: String,
    /// The number of nodes ahead.
    ahead_count: usize,
    watch: NodeWatch,
    /// True if the predecessor has the same sequence number as the contender's node. In this case, the predecessor may
    /// have been created later.
    is_tie: bool,
    /// True if the predecessor belongs to the same session as the contender. In this case, the deletion of the
    /// predecessor may mean that the session has ended.
    is_own_session: bool,
    /// True if the client has lost the connection since the last list. In this case, the client may have missed events,
    /// and restored watches may fire in any order.
    may_have_missed_events: bool,
    /// The predecessor's owner, according to the last read.
    info: Option<PredecessorInfo>,
}

/// The owner of a node ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PredecessorInfo {
    /// The id of the session that owns the node, or 0 if the node is not ephemeral.
    pub session_id: i64,
    /// The first bytes of the data in the node.
    pub data: Vec<u8>,
}

impl PredecessorInfo {
    fn new(session_id: i64, mut data: Vec<u8>) -> Self {
        data.truncate(MAX_PREDECESSOR_DATA);
        data.shrink_to_fit();
        Self { session_id, data }
    }

    /// Returns an error if no session owns the node at `path`, so that the node does not leave by itself.
    fn permanent_node_error(&self, path: &str) -> Option<Error> {
        (self.session_id == 0).then(|| {
            let reason = "its name is that of a lock node, but no session owns it, so a lock would wait for it forever";
            Error::new(Status::Foreign, format!("{path}: {reason}; delete this node, or use another path for the lock"))
        })
    }
}

/// Schedules the repetition of a refused request. The pause grows with each refusal.
#[derive(Debug)]
struct RetryTimer {
    /// The next pause, or zero before the first pause.
    delay: Duration,
    state: RetryState,
}

#[derive(Debug, PartialEq, Eq)]
enum RetryState {
    Idle,
    /// The contender must repeat the request after this pause. The engine has not set a timer yet.
    Requested(Duration),
    /// The engine has a timer for the repetition.
    Scheduled,
}

/// The reason why a contender waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocker<'a> {
    /// The contender waits for a predecessor.
    Predecessor {
        /// The full path of the predecessor.
        node: &'a str,
        /// The number of nodes that were ahead at the last check.
        ahead_count: usize,
        /// True if the predecessor holds the lock.
        is_holder: bool,
        /// The predecessor's owner, if the contender has read it.
        info: Option<&'a PredecessorInfo>,
    },
    /// Too many leases are taken.
    TooFewLeases {
        /// The full path of the directory of leases.
        directory: &'a str,
        /// The number of leases that are taken, including the leases of this contender.
        taken: usize,
        /// The maximum number of leases.
        max: i32,
    },
}

impl Contender {
    /// Creates a contender for one or more directories. If `try_once` is true, the contender leaves instead of
    /// waiting. The names of its nodes contain `client_uuid_high`, which all nodes of this client have in common.
    pub(crate) fn new(requests: Vec<QueueRequest>, try_once: bool, client_uuid_high: u64, entropy: u64) -> Self {
        let prefix = name::protected_prefix(client_uuid_high, entropy);
        let slots = requests.into_iter().map(|request| QueueSlot::new(request, &prefix)).collect();
        Self::with_slots(slots, try_once)
    }

    fn with_slots(slots: Vec<QueueSlot>, try_once: bool) -> Self {
        Self {
            slots,
            try_once,
            is_revocable: false,
            phase: Phase::Joining(Joining::default()),
            session_id: 0,
            has_waited: false,
            revocation: None,
            retry: RetryTimer { delay: Duration::ZERO, state: RetryState::Idle },
        }
    }

    /// Returns the full paths of all nodes of the contender, in the order of its directories.
    pub(crate) fn node_paths(&self) -> impl Iterator<Item = &str> {
        self.nodes().map(|node| node.path.as_str())
    }

    /// Returns the full paths of all nodes that probably exist. The result does not include nodes for which the
    /// contender has sent a delete request.
    pub(crate) fn present_nodes(&self) -> impl Iterator<Item = &str> {
        let is_present = self.is_queued() || self.is_acquired();
        self.node_paths().filter(move |_| is_present)
    }

    /// Returns the number of path bytes that the contender's nodes add to the transaction that ends their session. The
    /// result includes nodes that may not exist.
    pub(crate) fn path_bytes(&self) -> usize {
        self.slots.iter().map(|slot| slot.request.path_bytes()).fold(0, usize::saturating_add)
    }

    /// Returns the name of the first node that the contender has, or `None` if it has no node.
    pub(crate) fn node_name(&self) -> Option<&str> {
        self.nodes().next().map(Node::name)
    }

    /// Returns the contender's fencing token, which is the creation zxid of its nodes. A later node on the same path
    /// always has a greater token, even if the directory was deleted and created again. Sequence numbers, in contrast,
    /// start again in a new directory.
    pub(crate) fn token(&self) -> Option<i64> {
        let slot = self.slots.first()?;
        if Mutant::TokenIsSequence.is_active() {
            return slot.nodes.first().and_then(|node| name::sequence_number(node.name(), &slot.name_prefix));
        }
        slot.nodes.first().and_then(|node| node.czxid)
    }

    /// Returns the contender's own node and its blocker in the same directory. If the contender has several
    /// directories, the result is for the first directory in which it must wait.
    pub(crate) fn blocker(&self) -> Option<(Option<&str>, Blocker<'_>)> {
        match &self.phase {
            Phase::Joining(Joining { step: JoinStep::Blocked { at, position }, .. }) => self.blocker_at(*at, position),
            Phase::Queued(queues) => {
                queues.iter().enumerate().find_map(|(at, queued)| self.blocker_at(at, &queued.position))
            }
            Phase::Joining(_) | Phase::Acquired | Phase::Leaving(_) | Phase::Gone => None,
        }
    }

    fn blocker_at<'a>(&'a self, at: usize, position: &'a Position) -> Option<(Option<&'a str>, Blocker<'a>)> {
        let QueueSlot { request, nodes, .. } = self.slots.get(at)?;
        let blocker = match position {
            Position::Behind(Predecessor { path, ahead_count, info, .. }) => {
                let is_holder = *ahead_count == 1 && request.mode != Mode::Read;
                Blocker::Predecessor { node: path, ahead_count: *ahead_count, is_holder, info: info.as_ref() }
            }
            Position::TooFewLeases { taken } => {
                Blocker::TooFewLeases { directory: &request.directory, taken: *taken, max: request.max_leases }
            }
            Position::Unknown | Position::First => return None,
        };
        Some((nodes.first().map(|node| node.path.as_str()), blocker))
    }

    /// Returns the number of nodes ahead in the contender's longest queue, or `None` if a position is not known yet.
    pub(crate) fn max_ahead(&self) -> Option<usize> {
        let Phase::Queued(queues) = &self.phase else { return None };
        let ahead = queues.iter().map(|queued| match &queued.position {
            Position::Behind(predecessor) => Some(predecessor.ahead_count),
            Position::First => Some(0),
            Position::Unknown | Position::TooFewLeases { .. } => None,
        });
        ahead.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// Returns whether another client has requested a revocation from the contender. Only a revocable contender reads
    /// such requests.
    pub(crate) fn is_revocation_requested(&self) -> bool {
        self.nodes().any(|node| node.revocation_version.is_some())
    }

    /// Returns whether the contender leaves instead of waiting.
    pub(crate) fn tries_once(&self) -> bool {
        self.try_once
    }

    pub(crate) fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// Returns whether the contender watches all its nodes, so that it detects their deletion.
    pub(crate) fn are_nodes_watched(&self) -> bool {
        self.nodes().all(|node| node.watch != NodeWatch::Unset)
    }

    /// Returns whether the contender has read all its nodes since the last request to verify them.
    pub(crate) fn are_nodes_verified(&self) -> bool {
        self.nodes().all(|node| node.is_verified)
    }

    pub(crate) fn is_acquired(&self) -> bool {
        self.phase == Phase::Acquired
    }

    /// Returns whether the contender has not yet begun to join.
    pub(crate) fn has_not_joined(&self) -> bool {
        self.join_step() == Some(&JoinStep::NotBegun)
    }

    /// Returns a node in `directory` that the client may not delete, if the node belongs to this session.
    pub(crate) fn undeletable_node(&self, directory: &str, session_id: i64) -> Option<&str> {
        let Phase::Leaving(Leaving::Deleting(Deleting { denied, .. })) = &self.phase else { return None };
        let undeletable = denied.iter().filter_map(|index| {
            let slot = self.slots.get(index.slot)?;
            let is_here = *slot.request.directory == *directory && self.session_id == session_id;
            slot.nodes.get(index.node).filter(|_| is_here)
        });
        undeletable.map(|node| node.path.as_str()).next()
    }

    /// Returns whether a server has refused to delete a node of the contender, because the client lacks the permission.
    pub(crate) fn has_undeletable_node(&self) -> bool {
        matches!(&self.phase, Phase::Leaving(Leaving::Deleting(Deleting { denied, .. })) if !denied.is_empty())
    }

    /// Returns whether the contender has left completely.
    pub(crate) fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }

    /// Handles one input.
    pub(crate) fn handle(&mut self, cx: &mut Context<'_>, input: Input<'_>) -> Option<Output> {
        let output = match input {
            Input::SendRequests => self.send_requests(cx),
            Input::Disconnected => self.on_disconnected(),
            Input::SessionEnded { nodes_until } => self.on_session_ended(cx, nodes_until),
            Input::Reply { kind, zxid, result } => self.on_reply(cx, kind, zxid, result),
            Input::WatchFired(kind, path) => self.on_watch_fired(cx, kind, path),
            Input::Leave => self.leave(cx),
            Input::VerifyNodes => self.verify_nodes(cx),
            Input::PredecessorDeletedByUs(path) => self.on_predecessor_deleted_by_us(cx, path),
            Input::CacheLive => self.update_positions(cx),
            Input::CacheEnded(was_consistent) => self.on_cache_ended(cx, was_consistent),
            Input::ReadPredecessor => self.read_predecessors(cx),
            Input::MaxLeases(max) => self.on_max_leases(cx, max),
            Input::Retry => self.on_retry(cx),
        };
        if self.phase == Phase::Gone {
            self.end_cache_use(cx);
        }
        output
    }

    /// Returns the pause after which the engine must pass [`Input::Retry`] to the contender. The method returns each
    /// pause only once.
    pub(crate) fn take_retry(&mut self) -> Option<Duration> {
        let RetryState::Requested(wait) = self.retry.state else { return None };
        self.retry.state = RetryState::Scheduled;
        Some(wait)
    }

    /// Returns the full path of a node for which another client has requested a revocation. The method returns each
    /// request only once.
    pub(crate) fn take_revocation(&mut self) -> Option<String> {
        self.revocation.take()
    }

    /// Sets whether the contender detects revocation requests.
    pub(crate) fn set_revocable(&mut self, cx: &mut Context<'_>, is_revocable: bool) {
        if is_revocable != std::mem::replace(&mut self.is_revocable, is_revocable) {
            self.watch_for_revocation(cx);
        }
    }

    /// Splits a contender that has acquired its locks into one contender for each directory. Watches and cache
    /// subscriptions move to the new ids, which `next_id` returns.
    pub(crate) fn split(self, cx: &mut Context<'_>, mut next_id: impl FnMut() -> MachineId) -> Vec<(MachineId, Self)> {
        let (session_id, is_revocable) = (self.session_id, self.is_revocable);
        let single = |mut slot: QueueSlot| {
            let own = next_id();
            for node in &mut slot.nodes {
                // The new contender will not receive the reply to this request, because the reply goes to the id of the
                // old contender.
                if node.watch == NodeWatch::Requested {
                    node.watch = NodeWatch::Unset;
                }
                if !Mutant::SplitWithoutWatches.is_active() {
                    let (from, to) = (Subscriber::Machine(cx.machine_id), Subscriber::Machine(own));
                    cx.session.transfer_watch(&node.path, from, to);
                    if let Some(cache) = slot.cache {
                        cx.caches.transfer(cache, node.name(), cx.machine_id, own);
                    }
                }
            }
            // The cache has ended. The new contender will not receive the event that reports this, because the event
            // goes to the id of the old contender.
            if slot.cache.is_some_and(|cache| !cx.caches.contains(cache)) {
                slot.detach_cache();
            }
            let single = Self::with_slots(vec![slot], false);
            (own, Self { phase: Phase::Acquired, session_id, is_revocable, ..single })
        };
        self.slots.into_iter().map(single).collect()
    }

    /// Returns the step of a contender that is joining.
    fn join_step(&self) -> Option<&JoinStep> {
        match &self.phase {
            Phase::Joining(Joining { step, .. }) => Some(step),
            _ => None,
        }
    }

    /// Sets the step of a contender that is joining.
    fn set_join_step(&mut self, to: JoinStep) {
        if let Phase::Joining(Joining { step, .. }) = &mut self.phase {
            *step = to;
        }
    }

    /// Changes to the phase in which the contender waits.
    fn start_queuing(&mut self) {
        self.phase = Phase::Queued(self.slots.iter().map(|_| Queued::default()).collect());
    }

    fn is_queued(&self) -> bool {
        matches!(self.phase, Phase::Queued(_))
    }

    /// Returns the two parts of a waiting contender that belong to one directory. Returns `None` in other phases.
    fn queued_mut(&mut self, at: usize) -> Option<(&mut QueueSlot, &mut Queued)> {
        let Phase::Queued(queues) = &mut self.phase else { return None };
        Some((self.slots.get_mut(at)?, queues.get_mut(at)?))
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.slots.iter().flat_map(|slot| &slot.nodes)
    }

    fn nodes_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.slots.iter_mut().flat_map(|slot| &mut slot.nodes)
    }

    fn node_mut(&mut self, index: NodeIndex) -> Option<&mut Node> {
        self.slots.get_mut(index.slot)?.nodes.get_mut(index.node)
    }

    fn node_indices(&self) -> Vec<NodeIndex> {
        let of_slot = |(slot, has): (usize, &QueueSlot)| (0..has.nodes.len()).map(move |node| NodeIndex { slot, node });
        self.slots.iter().enumerate().flat_map(of_slot).collect()
    }

    /// Returns the contender's directories as text for messages.
    fn directories(&self) -> String {
        self.slots.iter().map(|slot| &*slot.request.directory).collect::<Vec<_>>().join(", ")
    }

    // Connection and session.

    pub(super) fn send_requests(&mut self, cx: &mut Context<'_>) -> Option<Output> {
        match &self.phase {
            Phase::Joining(Joining { step, .. }) => match step {
                JoinStep::NotBegun => self.begin(cx),
                JoinStep::CreateUnknown => self.find_nodes(cx),
                JoinStep::Checking { .. }
                | JoinStep::Blocked { .. }
                | JoinStep::Creating
                | JoinStep::DirectoryMissing { .. } => {}
            },
            Phase::Queued(_) => self.resume_waiting(cx),
            Phase::Leaving(Leaving::Searching) => self.find_nodes(cx),
            Phase::Leaving(Leaving::Deleting(_)) => self.delete(cx),
            Phase::Acquired | Phase::Leaving(Leaving::Creating) | Phase::Gone => {}
        }
        None
    }

    fn on_disconnected(&mut self) -> Option<Output> {
        if let Phase::Queued(queues) = &mut self.phase {
            for Queued { position, .. } in queues {
                if let Position::Behind(predecessor) = position {
                    predecessor.may_have_missed_events = !Mutant::GrantAfterMissedEvents.is_active();
                }
            }
        }
        if !Mutant::KeepCacheAfterDisconnect.is_active() {
            (0..self.slots.len()).for_each(|at| self.detach_cache(at, false));
        }
        None
    }

    fn on_session_ended(&mut self, cx: &mut Context<'_>, nodes_until: Option<Time>) -> Option<Output> {
        let was_leaving = self.is_leaving();
        if Mutant::AdoptDeadNode.is_active() && self.is_queued() {
            self.nodes_mut().for_each(|node| node.watch = NodeWatch::Unset);
            return None;
        }
        let has_written = match &self.phase {
            Phase::Joining(Joining { step, .. }) => matches!(step, JoinStep::Creating | JoinStep::CreateUnknown),
            Phase::Queued(_) | Phase::Acquired | Phase::Leaving(_) => true,
            Phase::Gone => false,
        };
        let may_be_left = nodes_until.is_some() && has_written;
        // While the contender searches for its nodes after a lost reply, it may know only some of them.
        let are_known = matches!(self.phase, Phase::Queued(_) | Phase::Acquired | Phase::Leaving(Leaving::Deleting(_)));
        if !may_be_left {
            self.phase = Phase::Gone;
        } else if are_known {
            // The nodes of the old session would block other contenders until the old session expires. The contender
            // therefore deletes these nodes in the new session. However, it must not delete them while the program may
            // still rely on its hold.
            let may_be_relied_on = self.phase == Phase::Acquired && !Mutant::DeleteReplacedHoldAtOnce.is_active();
            if !was_leaving {
                let not_before = nodes_until.filter(|_| may_be_relied_on);
                self.phase = Phase::Leaving(Leaving::Deleting(Deleting { not_before, ..Deleting::default() }));
            }
            self.delete(cx);
        } else {
            self.phase = Phase::Leaving(Leaving::Searching);
        }
        match was_leaving {
            true => (self.phase == Phase::Gone).then_some(Output::Gone),
            false => Some(Output::Removed(Removal::SessionEnded)),
        }
    }

    /// Stops using the directory cache of one directory. The contender must now watch the nodes whose changes the cache
    /// has reported. `was_consistent` is false if the cache may have been wrong before its end.
    fn detach_cache(&mut self, at: usize, was_consistent: bool) {
        if let Some((_, Queued { position: Position::Behind(predecessor), .. })) = self.queued_mut(at)
            && predecessor.watch == NodeWatch::Cached
        {
            predecessor.may_have_missed_events |= !was_consistent;
            predecessor.watch = NodeWatch::Unset;
        }
        if let Some(slot) = self.slots.get_mut(at) {
            slot.detach_cache();
        }
    }

    fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving(_) | Phase::Gone)
    }

    // How a contender ends.

    /// Handles the loss of a node that belongs to the contender.
    fn on_own_node_removed(&mut self, cx: &mut Context<'_>) -> Option<Output> {
        if self.is_leaving() || (Mutant::OverlookLostMember.is_active() && self.slots.len() > 1) {
            return None;
        }
        // A server has probably deleted the node. However, a node that still exists would block other contenders, so
        // the contender deletes all its nodes.
        self.start_leaving(cx);
        Some(Output::Removed(Removal::Deleted))
    }

    fn finish(&mut self) -> Option<Output> {
        self.phase = Phase::Gone;
        Some(Output::Gone)
    }

    /// Handles a failed join. The contender has no nodes at this time.
    fn fail(&mut self, cx: &mut Context<'_>, error: Error) -> Option<Output> {
        self.stop_all_waiting(cx);
        self.phase = Phase::Gone;
        Some(Output::Failed(error))
    }

    /// Returns the error of a request that reads the node at `path`, or lists its children.
    fn read_error(&self, failure: Failure, doing: &str, path: &str) -> Error {
        failure.to_error(&format!("{doing} {}", self.directories())).requiring(Permission::Read, path)
    }

    /// Returns the full path of a directory.
    fn directory(&self, at: usize) -> &str {
        self.slots.get(at).map_or("", |slot| &slot.request.directory)
    }

    /// Handles a reply of the wrong type as a failure. This case should not occur, because the session assigns each
    /// reply to its request.
    fn on_unexpected_response(&mut self, cx: &mut Context<'_>, response: &Response, request: &str) -> Option<Output> {
        self.leave(cx);
        let message = format!("{}: the server answered {request} with {response:?}", self.directories());
        Some(Output::Failed(Error::new(Status::Internal, message)))
    }
}

impl QueueSlot {
    fn new(request: QueueRequest, prefix: &str) -> Self {
        let number = request.nested_in.as_deref().map_or("", |nested_in| name::sequence_text(nested_in, request.mode));
        Self {
            name_prefix: [prefix, request.mode.base(), number].concat(),
            request,
            nodes: Vec::new(),
            is_list_pending: false,
            is_use_recorded: false,
            cache: None,
        }
    }

    /// Returns the sequence number that the server assigned to a node. Returns `None` for a nested read lock, whose
    /// number comes from the write node.
    fn sequence_of(&self, node: &Node) -> Option<i64> {
        let number = || name::sequence_text(node.name(), self.request.mode).parse().ok();
        if self.request.nested_in.is_none() { number() } else { None }
    }

    /// Frees memory that the contender no longer needs after the acquire, because a client may have tens of thousands
    /// of holds.
    fn free_memory(&mut self) {
        self.request.data = Vec::new();
        if !Mutant::TokenIsSequence.is_active() {
            self.name_prefix = String::new();
        }
    }

    /// Stops using the directory cache. The contender must now watch its nodes, whose changes the cache has reported.
    fn detach_cache(&mut self) {
        self.cache = None;
        for node in self.nodes.iter_mut().filter(|node| node.watch == NodeWatch::Cached) {
            node.watch = NodeWatch::Unset;
        }
    }
}

impl Node {
    fn name(&self) -> &str {
        name_of(&self.path)
    }

    /// Creates the entry for a node whose full path is known.
    fn new(path: String, czxid: Option<i64>) -> Self {
        Self { path, czxid, watch: NodeWatch::Unset, is_verified: true, revocation_version: None }
    }
}

fn name_of(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}
