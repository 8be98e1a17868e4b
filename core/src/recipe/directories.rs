//! Creates the directories of lock nodes.
//!
//! This module does not treat the chroot of a client as such a directory. The client creates a chroot only if the
//! program requests it. If every client created its chroot, a mistyped chroot would be created too. Two programs that
//! should exclude each other would then use different directories.

use std::collections::{BTreeMap, VecDeque};

use zklock_proto::{Code, CreateMode, Refusal, Request, Response};

use super::{Context, RequestKind};
use crate::acl::Place;
use crate::error::{Error, Status};
use crate::path::{from_the_top, parent};
use crate::session::Failure;

/// The initial value of [`DirectoryCreation::container_tries`].
const CONTAINER_TRIES: u32 = 3;

/// A client's chroot.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chroot {
    /// The path of the chroot, which the client prepends to all paths, or an empty text.
    pub path: String,
    /// True if the client creates the chroot when it is missing.
    pub create: bool,
}

impl Chroot {
    /// Returns the error for a missing chroot that the client may not create.
    pub(super) fn missing(&self) -> Error {
        let path = &self.path;
        let message = format!(
            "the chroot {path} does not exist; create it, or set the option chroot.create to true to let the client create it"
        );
        Error::new(Status::Server, message)
    }

    /// Returns whether the client may create this ancestor of a node.
    fn allows(&self, ancestor: &str) -> bool {
        self.create || ancestor.len() > self.path.len()
    }

    /// Returns the mode for creating an ancestor. A chroot is a persistent node, so it remains when it is empty.
    fn mode(&self, ancestor: &str, mode: CreateMode) -> CreateMode {
        if ancestor.len() > self.path.len() { mode } else { CreateMode::Persistent }
    }
}

/// A directory that a client creates if it is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Directory {
    /// The index of the node that needs the directory.
    pub at: usize,
    /// The full path.
    pub path: String,
    /// The place of the directory, which determines its access control list.
    pub place: Place,
}

/// Creates directories, and finds out from the replies whether the chroot is missing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DirectoryCreation {
    chroot: ChrootState,
    /// The remaining number of attempts to create directories as container nodes. A server that does not support
    /// container nodes refuses the request or closes the connection.
    container_tries: u32,
    /// The directories whose creation the server has not answered yet, in the order of the requests.
    pending: VecDeque<Directory>,
    /// For each node that needs directories: the last directory that the server refused to create, with the error code.
    refusals: BTreeMap<usize, (Directory, Code)>,
}

/// What the client knows about the chroot, which is the parent of the topmost directory.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ChrootState {
    #[default]
    Unknown,
    Requested,
    /// The chroot does not exist.
    Missing,
}

impl Default for DirectoryCreation {
    fn default() -> Self {
        Self {
            chroot: ChrootState::default(),
            container_tries: CONTAINER_TRIES,
            pending: VecDeque::new(),
            refusals: BTreeMap::new(),
        }
    }
}

impl DirectoryCreation {
    /// Sends requests that create directories, beginning with the ancestors. The server replies with an error if a
    /// directory already exists. If the servers do not support container nodes, the method creates persistent nodes
    /// instead.
    pub(super) fn create(
        &mut self,
        cx: &mut Context<'_>,
        directories: impl Iterator<Item = Directory>,
        mode: CreateMode,
    ) {
        (self.pending, self.refusals) = (VecDeque::new(), BTreeMap::new());
        let chroot = cx.chroot;
        let mode = if self.container_tries == 0 { CreateMode::Persistent } else { mode };
        // If the node is directly below the chroot, the reply to the node itself shows whether the chroot exists.
        self.chroot = if chroot.create || chroot.path.is_empty() { ChrootState::Unknown } else { ChrootState::Missing };
        for directory in directories.filter(|directory| chroot.allows(&directory.path)) {
            let mode = chroot.mode(&directory.path, mode);
            let acl = cx.acls.entries(directory.place);
            let request = Request::Create2 { path: directory.path.clone(), data: Some(Vec::new()), acl, mode };
            cx.send(RequestKind::CreateDirectory, &request);
            self.pending.push_back(directory);
            if self.chroot == ChrootState::Missing {
                self.chroot = ChrootState::Requested;
            }
        }
    }

    /// Forgets the replies of the last connection, but not whether the servers support container nodes.
    pub(super) fn forget_replies(&mut self) {
        *self = Self { container_tries: self.container_tries, ..Self::default() };
    }

    /// Handles the reply to one of the requests. The caller must pass the replies in the order of the requests.
    ///
    /// If the client may not change the parent, the server refuses the request, even for a directory that already
    /// exists. A refusal is therefore an error only if the directory does not exist. The later replies show this: a
    /// create request below a missing directory fails with "no node".
    pub(super) fn on_reply(&mut self, result: &Result<Response, Failure>) {
        let code = code_of(result);
        if code == Some(Code::UNIMPLEMENTED) {
            self.container_tries = 0;
        } else if matches!(result, Err(Failure::ConnectionLost)) && self.pending.len() == 1 {
            // If the connection is lost, all pending requests fail. The last failure stands for the attempt.
            self.container_tries = self.container_tries.saturating_sub(1);
        }
        if self.chroot == ChrootState::Requested {
            self.chroot = if code == Some(Code::NO_NODE) { ChrootState::Missing } else { ChrootState::Unknown };
        }
        let Some(directory) = self.pending.pop_front() else { return };
        match code {
            None if result.is_err() => {}
            None | Some(Code::NODE_EXISTS) => drop(self.refusals.remove(&directory.at)),
            Some(Code::NO_NODE | Code::UNIMPLEMENTED) => {}
            Some(code) if code.refusal() == Refusal::Transient => {}
            Some(code) => drop(self.refusals.insert(directory.at, (directory, code))),
        }
    }

    /// Returns why the directory of a node is missing, after the server has refused to create the node with "no node":
    /// either the chroot is missing, or the server has refused to create a directory. Returns `None` if the client may
    /// try again. `at` is the index of the node. The result is reliable, because the leader has checked whether the
    /// chroot exists.
    pub(super) fn missing_directory_error(&self, cx: &Context<'_>, at: usize) -> Option<Error> {
        if self.chroot == ChrootState::Missing {
            return Some(cx.chroot.missing());
        }
        let (directory, code) = self.refusals.get(&at)?;
        let Directory { path, place, .. } = directory;
        Some(cx.create_error((*code).into(), &format!("creating the directory {path}"), parent(path), *place))
    }
}

/// Returns the ancestors of a node, beginning at the top, without the node itself.
pub(super) fn ancestors(path: &str) -> impl Iterator<Item = Directory> {
    parents(path).filter(move |ancestor| ancestor.path != path)
}

/// Returns a path and its ancestors, beginning at the top. None of them is a lock directory.
pub(super) fn parents(path: &str) -> impl Iterator<Item = Directory> {
    from_the_top(path).map(|path| Directory { at: 0, path: path.to_owned(), place: Place::Parent })
}

/// Returns the server's error code, if the server refused the request.
pub(super) fn code_of(result: &Result<Response, Failure>) -> Option<Code> {
    match result {
        Err(Failure::Code(code)) => Some(*code),
        _ => None,
    }
}
