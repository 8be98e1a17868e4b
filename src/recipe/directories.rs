//! Creating the directories of nodes. The chroot of a client is no such directory: a mistyped one must not come into being, or two programs that
//! are meant to exclude each other would use two. It is created only on request.

use super::{Desk, Step};
use crate::error::{Error, Status};
use crate::path::from_the_top;
use crate::proto::{Acl, Code, CreateMode, Request};

/// A client's chroot.
#[derive(Debug, Clone, Default)]
pub struct Chroot {
    /// Empty, or a valid path that is put before every path.
    pub path: String,
    /// Create it if it is missing.
    pub create: bool,
}

impl Chroot {
    /// It is missing, and a client may not create it.
    pub(super) fn missing(&self) -> Error {
        let path = &self.path;
        let message = format!(
            "the chroot {path} does not exist; create it, or set the option chroot.create to true if the client is to create it"
        );
        Error::new(Status::Server, message)
    }

    /// Whether this ancestor of one of its nodes may be created.
    fn allows(&self, ancestor: &str) -> bool {
        self.create || ancestor.len() > self.path.len()
    }

    /// A chroot stays when it is empty.
    fn mode(&self, ancestor: &str, mode: CreateMode) -> CreateMode {
        if ancestor.len() > self.path.len() { mode } else { CreateMode::Persistent }
    }
}

/// What the answers to [`create`](Self::create) say about the chroot.
#[derive(Debug, Default)]
pub(super) struct Directories {
    top: Top,
}

/// The topmost of the directories, whose parent is the chroot.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Top {
    #[default]
    Unknown,
    Asked,
    /// Its parent is missing.
    Orphan,
}

impl Directories {
    /// Creates these directories, ancestors first, each for the node with this number. The answers of those that exist say so.
    pub(super) fn create<'p>(
        &mut self,
        desk: &mut Desk<'_>,
        paths: impl Iterator<Item = (usize, &'p str)>,
        mode: CreateMode,
    ) {
        let chroot = desk.chroot;
        // With no directory between the chroot and the node, the node itself is the topmost.
        self.top = if chroot.create || chroot.path.is_empty() { Top::Unknown } else { Top::Orphan };
        for (at, path) in paths.filter(|(_, path)| chroot.allows(path)) {
            let mode = chroot.mode(path, mode);
            let request = Request::Create2 { path: path.to_owned(), data: Some(Vec::new()), acl: Acl::open(), mode };
            desk.send(Step::CreateParent(at), &request);
            if self.top == Top::Orphan {
                self.top = Top::Asked;
            }
        }
    }

    /// One of them was answered, in order.
    pub(super) fn answered(&mut self, code: Option<Code>) {
        if self.top == Top::Asked {
            self.top = if code == Some(Code::NO_NODE) { Top::Orphan } else { Top::Unknown };
        }
    }

    /// The node could not be created, since it has no directory. Whether that is because the chroot is missing: the leader has said so.
    pub(super) fn is_chroot_missing(&self) -> bool {
        self.top == Top::Orphan
    }
}

/// The ancestors of a path, without the path itself.
pub(super) fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    from_the_top(path).filter(move |&ancestor| ancestor != path)
}
