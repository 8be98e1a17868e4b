//! The values that the engine exchanges with its caller. This file decides nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::recipe::{Children, Mode, NodeContent, NodeReply, Participant};
use crate::session::ClientState;
use crate::time::Time;

/// The id of a lock in an engine.
pub type LockId = u64;
/// The id of an operation in progress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub(crate) u64);

impl fmt::Debug for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The recipe of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recipe {
    /// A lock of Curator's `InterProcessMutex` or `InterProcessReadWriteLock`. The lock is re-entrant for its owner.
    Queue(Mode),
    /// Curator's `InterProcessSemaphoreMutex`. This lock is not re-entrant, and any owner may release it.
    SemaphoreMutex,
    /// Curator's `InterProcessSemaphoreV2` with a fixed number of leases.
    Semaphore(i32),
    /// Curator's `InterProcessSemaphoreV2` with a `SharedCount` that contains the number of leases.
    CountedSemaphore {
        /// The path of the shared count.
        count_path: Box<str>,
        /// The initial value with which the client creates a missing shared count.
        initial: i32,
    },
    /// A multi-lock. Either all members are queues, which a contender joins in one transaction, or the only member is a
    /// lock of another recipe.
    MultiLock(Box<[LockId]>),
}

impl Recipe {
    /// Returns the name of the recipe for logs.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Queue(Mode::Mutex) => "mutex",
            Self::Queue(Mode::Read) => "read",
            Self::Queue(Mode::Write) => "write",
            Self::SemaphoreMutex => "semaphore mutex",
            Self::Queue(Mode::Lease) | Self::Semaphore(_) | Self::CountedSemaphore { .. } => "semaphore",
            Self::MultiLock(_) => "multi",
        }
    }
}

/// The time limit of an acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcquireLimit {
    /// The acquire makes one attempt and does not wait for other participants. If no server answers before the given
    /// time, the acquire fails.
    TryOnce(Time),
    /// The acquire waits until the given time.
    Until(Time),
    /// The acquire waits without a limit.
    Unlimited,
}

/// The state of a hold. The C API uses the same numbers. No state of [`ClientState`] has one of these numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
#[non_exhaustive]
pub enum LockState {
    /// The lock is not held.
    Free = 10,
    /// The hold is safe.
    Held = 11,
    /// The hold is safe while the session lease lasts. The client has no connection, or has not verified the node since
    /// it reconnected.
    Suspended = 12,
    /// The session lease has ended, so the hold may be lost.
    Uncertain = 13,
    /// The hold is lost.
    Lost = 14,
}

/// Identifies a hold. No two holds of one lock have equal ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldId {
    /// The fencing token.
    pub token: i64,
    /// The number of local hand-overs under this token before the hold began.
    pub fencing_pass: u32,
}

/// The hold of a lock that a release ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldToRelease {
    /// The hold of the owner. If the owner does not hold a semaphore mutex, the release ends the hold of another owner.
    OwnOrAny,
    /// The hold of the owner.
    Own,
    /// The hold of the owner that has this id.
    Exact(HoldId),
}

/// The result of an operation that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The operation succeeded and returns no value.
    Done,
    /// The owner holds the lock. For a multi-lock, the list contains the hold of each member, in the order of the
    /// members.
    Acquired(Box<[HoldId]>),
    /// The holders and waiters of a lock.
    Participants(Arc<Vec<Participant>>),
    /// The value of a count.
    Count(i32),
    /// True if a fencing token belongs to a current holder.
    Holds(bool),
    /// The content of a node, or `None` if the node does not exist.
    Content(Option<NodeContent>),
    /// The children of a node, or `None` if the node does not exist.
    Children(Option<Children>),
    /// True if the client has a permission.
    Allowed(bool),
    /// The identities of the client, each in the form `scheme:id`.
    Identities(Vec<String>),
    /// The version of a node after a write, or `None` if the node did not have the expected version.
    Written(Option<i32>),
}

impl From<NodeReply> for Answer {
    fn from(reply: NodeReply) -> Self {
        match reply {
            NodeReply::Count(value) => Self::Count(value),
            NodeReply::Content(content) => Self::Content(content),
            NodeReply::Children(children) => Self::Children(children),
            NodeReply::Allowed(is_allowed) => Self::Allowed(is_allowed),
            NodeReply::Identities(identities) => Self::Identities(identities),
            NodeReply::Written(version) => Self::Written(version),
            NodeReply::Done | NodeReply::ChildCount(_) => Self::Done,
        }
    }
}

/// A change of the state of the session or of a hold. The client reports such changes to the program.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The state of the session has changed.
    #[non_exhaustive]
    Client {
        /// The new state.
        state: ClientState,
        /// The old state.
        previous: ClientState,
    },
    /// The state of a hold has changed.
    #[non_exhaustive]
    Lock {
        /// The lock.
        lock: LockId,
        /// The path of the lock in the form that the program passed.
        path: Arc<str>,
        /// The fencing token of the hold.
        token: i64,
        /// The number of local hand-overs under this token before the hold began.
        fencing_pass: u32,
        /// The new state.
        state: LockState,
        /// The old state.
        previous: LockState,
    },
}

/// The variants are not exhaustive outside of this crate. These functions let the models of the shell make events.
#[doc(hidden)]
impl Event {
    pub const fn client(state: ClientState, previous: ClientState) -> Self {
        Self::Client { state, previous }
    }

    pub const fn lock(lock: LockId, path: Arc<str>, state: LockState, previous: LockState) -> Self {
        Self::Lock { lock, path, token: 1, fencing_pass: 0, state, previous }
    }
}

/// A revocation request: another participant asks this client to release a lock or to leave its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocation {
    /// The lock.
    pub lock: LockId,
    /// The path of the node that the client should delete, without the client's chroot.
    pub node_path: String,
}

/// A notification for the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// A state has changed.
    Event(Event),
    /// A hold ends because the program closes the client.
    Forfeit(Event),
    /// A participant has requested a revocation.
    Revocation(Revocation),
}

impl Notification {
    /// Returns whether this is a loss: a safe hold is no longer safe, or the hold ends because its client is closed.
    pub const fn is_loss(&self) -> bool {
        match self {
            Self::Event(Event::Lock { state: LockState::Uncertain | LockState::Lost, previous, .. })
            | Self::Forfeit(Event::Lock { previous, .. }) => {
                !matches!(previous, LockState::Uncertain | LockState::Lost)
            }
            _ => false,
        }
    }
}

/// The state of a hold at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldView {
    /// The state.
    pub state: LockState,
    /// The fencing token.
    pub token: i64,
    /// The number of local hand-overs under this token before this hold began.
    pub fencing_pass: u32,
    /// The time for which the hold stays safe if no server answers. The value is zero if the hold is not safe.
    pub remaining: Duration,
}

impl HoldView {
    /// Returns the id of the hold.
    pub const fn id(self) -> HoldId {
        HoldId { token: self.token, fencing_pass: self.fencing_pass }
    }

    /// Returns whether the hold is certainly not lost.
    pub const fn is_safe(self) -> bool {
        matches!(self.state, LockState::Held | LockState::Suspended)
    }

    /// Combines the states of two holds. The result has the worse state, the smaller token and the shorter remaining
    /// time.
    pub fn and(self, other: Self) -> Self {
        let (token, fencing_pass) = (self.token, self.fencing_pass).min((other.token, other.fencing_pass));
        Self {
            state: if other.state as i32 > self.state as i32 { other.state } else { self.state },
            token,
            fencing_pass,
            remaining: self.remaining.min(other.remaining),
        }
    }
}
