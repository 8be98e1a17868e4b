//! The floors: the requests that each of them sends, and the replies that it waits for.

/// How a floor finds out that it has the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrantDetection {
    /// It creates a node, waits for the reply, lists the directory, and watches the node ahead. When that node is gone,
    /// it lists again.
    ListAfterCreate,
    /// It sends create and list in one write. When the node ahead is gone, it lists again only if that node was not the
    /// head of the queue.
    ListWithCreate,
    /// One persistent watch reports every change of the directory, so it knows the queue without a list.
    PersistentWatch,
    /// There is no queue: it creates a node with a fixed name that no other client uses.
    NoQueue,
}

/// How a floor deletes its node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// It waits for the reply.
    WaitsForReply,
    /// It sends the delete immediately and does not wait for the reply.
    SkipsReply,
    /// It sends the delete in one write with the next create.
    WithNext,
    /// It sends the delete in one transaction with the next create.
    InOneTransaction,
}

#[derive(Clone, Copy)]
pub(crate) struct FloorRecipe {
    pub(crate) turn: GrantDetection,
    pub(crate) release: Release,
    /// Whether each worker has its own session.
    pub(crate) has_sessions: bool,
}

impl FloorRecipe {
    /// The floor with this name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let (letter, has_sessions) = match name.strip_prefix("raw-")? {
            "bs" => ("b", true),
            "qs" => ("q", true),
            letter => (letter, false),
        };
        let (grant_detection, release) = match letter {
            "a" => (GrantDetection::ListAfterCreate, Release::WaitsForReply),
            "b" => (GrantDetection::ListWithCreate, Release::WaitsForReply),
            "c" => (GrantDetection::ListWithCreate, Release::WithNext),
            "e" => (GrantDetection::ListWithCreate, Release::SkipsReply),
            "m" => (GrantDetection::ListWithCreate, Release::InOneTransaction),
            "n" => (GrantDetection::NoQueue, Release::WaitsForReply),
            "p" => (GrantDetection::PersistentWatch, Release::WithNext),
            "q" => (GrantDetection::PersistentWatch, Release::WaitsForReply),
            _ => return None,
        };
        Some(Self { turn: grant_detection, release, has_sessions })
    }
}
