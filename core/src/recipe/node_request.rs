//! A node request is a request for one node. The client repeats the request on each connection until a server has
//! answered. A node request reads, sets or creates a count, reads a node or writes it while a hold exists, deletes a
//! node, requests a revocation, lists or counts children or waits until they change, checks a permission, or checks the
//! chroot. One request concerns no node: it reads the identities of the client.

use zklock_proto::{Code, CreateMode, Identity, MultiResult, Request, Response, Stat};

use super::contender::{Input, REVOKE};
use super::directories::{DirectoryCreation, ancestors, parents};
use super::directory_cache::children_created;
use super::{Context, RequestKind};
use crate::acl::{Permission, Place};
use crate::error::{Error, Result, Status};
use crate::mutant::Mutant;
use crate::path::parent;
use crate::session::Failure;

/// If another client creates or deletes the node in the meantime, the client repeats a node request at most this number
/// of times on one connection.
pub(super) const MAX_ATTEMPTS: u32 = 3;

/// The state machine of a node request.
#[derive(Debug)]
pub(crate) struct RetriedRequest {
    request: NodeRequest,
    /// The remaining number of repetitions on this connection.
    attempts_left: u32,
    directories: DirectoryCreation,
    /// True if the last request creates the node of a count.
    is_creating: bool,
    /// True if the server refused to create the node. After such a refusal, the client asks the server whether the node
    /// exists.
    is_checking_existence: bool,
    /// True if a connection was lost before the reply arrived. A server may have performed the request.
    was_interrupted: bool,
    /// True while the client reads the node to find out whether the server performed an interrupted write.
    is_comparing: bool,
}

/// The content of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeContent {
    /// The data of the node.
    pub data: Vec<u8>,
    /// The version of the data. Each write increments the version.
    pub version: i32,
    /// The zxid of the transaction that created the node. For the node of a holder, this is the fencing token.
    pub czxid: i64,
    /// The time at which the node was created, in milliseconds since the Unix epoch, according to the clock of the
    /// leader.
    pub created_ms: i64,
    /// The id of the session that owns the node, or 0 if the node is not ephemeral.
    pub session_id: i64,
}

/// The children of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Children {
    /// The names of the children, in no particular order.
    pub names: Vec<String>,
    /// The zxid of the transaction that last created or deleted a child. The value differs for each list of the same
    /// node.
    pub zxid: i64,
    /// The number of children that the node has ever had. The next sequential child gets this sequence number.
    pub created: i64,
}

/// The suffix of the name with which the client checks a permission. No lock recipe uses such a name.
const PROBE: &str = "/zklock-permission-check";

/// A query or a change of one node, or of the children of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeRequest {
    /// Reads a count (Curator's `SharedCount`).
    GetCount {
        /// The full path of the node.
        path: String,
    },
    /// Sets a count, and creates its node if it does not exist.
    SetCount {
        /// The full path of the node.
        path: String,
        /// The new value.
        value: i32,
    },
    /// Creates the node of a count if it does not exist.
    CreateCount {
        /// The full path of the node.
        path: String,
        /// The initial value.
        value: i32,
    },
    /// Reads a node.
    Read {
        /// The full path of the node.
        path: String,
    },
    /// Writes a node if it has the expected version and the node of a hold exists.
    Write {
        /// The full path of the node.
        path: String,
        /// The new data.
        data: Vec<u8>,
        /// The expected version, or `None` if the node must not exist yet.
        version: Option<i32>,
        /// The full path of the node of the hold.
        hold_node: String,
    },
    /// Asks the owner of a node to release its lock (Curator's `Revoker`).
    Revoke {
        /// The full path of the node.
        path: String,
    },
    /// Deletes a node that has no children.
    Delete {
        /// The full path of the node.
        path: String,
    },
    /// Lists the children of a node.
    List {
        /// The full path of the node.
        path: String,
    },
    /// Lists the children of a node as soon as the list differs from an earlier list.
    AwaitChange {
        /// The full path of the node.
        path: String,
        /// The zxid of the earlier list.
        zxid: i64,
    },
    /// Checks whether the client has a permission on a node. The check changes nothing.
    CheckPermission {
        /// The full path of the node.
        path: String,
        /// The permission.
        permission: Permission,
    },
    /// Lists a directory to count its children.
    CountChildren {
        /// The full path of the directory.
        path: String,
    },
    /// Reads the identities that the server knows for this client.
    Identities,
    /// Checks that the chroot exists. The client creates a missing chroot if the config allows this.
    FindChroot {
        /// The path of the chroot.
        path: String,
    },
}

/// The result of a node request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeReply {
    /// The request succeeded and returns no value.
    Done,
    /// The count.
    Count(i32),
    /// The number of children.
    ChildCount(usize),
    /// The content of a node, or `None` if the node does not exist.
    Content(Option<NodeContent>),
    /// The children of a node, or `None` if the node does not exist.
    Children(Option<Children>),
    /// True if the client has a permission.
    Allowed(bool),
    /// The identities of the client, each in the form `scheme:id`.
    Identities(Vec<String>),
    /// The version after a write, or `None` if the node did not have the expected version.
    Written(Option<i32>),
}

impl RetriedRequest {
    /// Creates the state machine for a node request.
    pub(crate) fn new(request: NodeRequest) -> Self {
        Self {
            request,
            attempts_left: MAX_ATTEMPTS,
            directories: DirectoryCreation::default(),
            is_creating: false,
            is_checking_existence: false,
            was_interrupted: false,
            is_comparing: false,
        }
    }

    /// Handles one input. The method returns the result when the request is complete.
    pub(crate) fn handle(&mut self, cx: &mut Context<'_>, input: Input<'_>) -> Option<Result<NodeReply>> {
        match input {
            Input::SendRequests => {
                // The client forgets the errors from the last connection, because the server of that connection may
                // have lagged behind.
                (self.is_checking_existence, self.is_comparing) = (false, false);
                self.attempts_left = MAX_ATTEMPTS;
                self.directories.forget_replies();
                self.send(cx);
                None
            }
            Input::Reply { kind: RequestKind::CreateDirectory, result, .. } => {
                self.directories.on_reply(&result);
                None
            }
            Input::Reply { kind: RequestKind::NodeRequest, result, .. } => self.on_reply(cx, result),
            Input::WatchFired(..) if self.is_watching() => {
                self.send(cx);
                None
            }
            Input::Leave if self.is_watching() => {
                cx.unwatch_children(self.request.path());
                None
            }
            _ => None,
        }
    }

    /// Returns whether the request waits for a change, and not only for a server.
    pub(crate) const fn is_watching(&self) -> bool {
        matches!(self.request, NodeRequest::AwaitChange { .. })
    }

    fn send(&mut self, cx: &mut Context<'_>) {
        let request = match &self.request {
            NodeRequest::GetCount { path } => Request::GetData { path: path.clone(), watch: false },
            NodeRequest::SetCount { path, value } => set(path, &value.to_be_bytes()),
            NodeRequest::CreateCount { .. } => return self.create_count(cx),
            NodeRequest::Read { path } => Request::GetData { path: path.clone(), watch: false },
            NodeRequest::Write { path, data, version, hold_node } => write(cx, path, data, *version, hold_node),
            NodeRequest::Revoke { path } => set(path, REVOKE),
            NodeRequest::Delete { path } => Request::Delete { path: path.clone(), version: -1 },
            NodeRequest::List { path } => Request::GetChildren2 { path: path.clone(), watch: false },
            NodeRequest::CountChildren { path } => {
                // Without `sync`, a lagging server could count nodes of sessions that ended before this call.
                if !Mutant::CountWithoutSync.is_active() {
                    cx.session.sync(cx.now, path);
                }
                Request::GetChildren2 { path: path.clone(), watch: false }
            }
            NodeRequest::AwaitChange { path, .. } => return cx.watch_children(RequestKind::NodeRequest, path),
            NodeRequest::CheckPermission { path, permission } => check_permission(cx, path, *permission),
            NodeRequest::Identities => Request::WhoAmI,
            NodeRequest::FindChroot { path } => Request::Exists { path: path.clone(), watch: false },
        };
        self.is_creating = false;
        cx.send(RequestKind::NodeRequest, &request);
    }

    fn create_count(&mut self, cx: &mut Context<'_>) {
        if let NodeRequest::SetCount { path, value } | NodeRequest::CreateCount { path, value } = &self.request {
            self.is_creating = true;
            create_count(cx, &mut self.directories, path, *value);
        }
    }

    fn on_reply(
        &mut self,
        cx: &mut Context<'_>,
        result: std::result::Result<Response, Failure>,
    ) -> Option<Result<NodeReply>> {
        let code = match result {
            Ok(response) if matches!(self.request, NodeRequest::CheckPermission { .. }) => {
                return Some(self.on_permission_checked(cx, &response));
            }
            // The list has not changed yet.
            Ok(Response::Children2 { stat, .. }) if matches!(self.request, NodeRequest::AwaitChange { zxid, .. } if zxid == stat.pzxid) =>
            {
                return None;
            }
            Ok(response) if self.is_watching() => {
                cx.unwatch_children(self.request.path());
                return Some(self.request.reply(response));
            }
            Ok(response) if self.is_comparing || matches!(response, Response::Multi(_)) => {
                return self.on_write_reply(cx, &response).map(|result| result.map(NodeReply::Written));
            }
            Ok(response) => return Some(self.request.reply(response)),
            // The client repeats the request on the next connection. The server may then perform the request twice, but
            // the second time has no additional effect, except for a write: its second attempt finds a newer version
            // than expected.
            Err(Failure::ConnectionLost) => {
                self.was_interrupted = true;
                return None;
            }
            Err(Failure::Code(code)) => code,
            Err(failure) => return Some(Err(failure.to_error(&self.request.description()))),
        };
        let missing = if code == Code::NO_NODE { self.directories.missing_directory_error(cx, 0) } else { None };
        match (&self.request, code) {
            (NodeRequest::FindChroot { path }, Code::NO_NODE) if self.attempts_left == MAX_ATTEMPTS => {
                self.attempts_left -= 1;
                if cx.chroot.create {
                    self.directories.create(cx, parents(path), CreateMode::Persistent);
                } else {
                    // This server may lag behind the server through which the chroot was created.
                    cx.session.request_proof(cx.now);
                }
                self.send(cx);
                None
            }
            (NodeRequest::FindChroot { .. }, Code::NO_NODE) => {
                Some(Err(missing.unwrap_or_else(|| cx.chroot.missing())))
            }
            // The chroot exists, because a server reports a missing node before a missing permission.
            (NodeRequest::FindChroot { .. }, Code::NO_AUTH) => Some(Ok(NodeReply::Done)),
            (NodeRequest::SetCount { .. } | NodeRequest::CreateCount { .. }, Code::NO_NODE) if missing.is_some() => {
                missing.map(Err)
            }
            (NodeRequest::SetCount { .. } | NodeRequest::CreateCount { .. }, Code::NO_NODE)
                if self.attempts_left > 0 && !self.is_checking_existence =>
            {
                self.attempts_left -= 1;
                self.create_count(cx);
                None
            }
            // Another client has just created the node, so this client now sets the value of the existing node.
            (NodeRequest::SetCount { .. }, Code::NODE_EXISTS) if self.attempts_left > 0 => {
                self.send(cx);
                None
            }
            (NodeRequest::CreateCount { .. }, Code::NODE_EXISTS) => Some(Ok(NodeReply::Done)),
            // If a client may not change the parent, a server refuses the create request before it checks whether the
            // node exists.
            (NodeRequest::CreateCount { path, .. }, Code::NO_AUTH) if !self.is_checking_existence => {
                (self.is_checking_existence, self.is_creating) = (true, false);
                cx.send(RequestKind::NodeRequest, &Request::GetData { path: path.clone(), watch: false });
                None
            }
            (NodeRequest::CreateCount { .. }, Code::NO_NODE) if self.is_checking_existence => {
                self.is_creating = true;
                Some(Err(self.to_error(cx, Code::NO_AUTH)))
            }
            // The node no longer exists, so its owner has released the lock.
            (NodeRequest::Revoke { .. } | NodeRequest::Delete { .. }, Code::NO_NODE) => Some(Ok(NodeReply::Done)),
            (NodeRequest::List { .. } | NodeRequest::AwaitChange { .. }, Code::NO_NODE) => {
                Some(Ok(NodeReply::Children(None)))
            }
            (NodeRequest::CountChildren { .. }, Code::NO_NODE) => Some(Ok(NodeReply::ChildCount(0))),
            (NodeRequest::Read { .. }, Code::NO_NODE) => Some(Ok(NodeReply::Content(None))),
            (NodeRequest::Write { .. }, Code::NO_NODE) if self.is_comparing => Some(Ok(NodeReply::Written(None))),
            (NodeRequest::GetCount { path }, Code::NO_NODE) => {
                let message = format!("{path}: the node does not exist; set the count to create the node");
                Some(Err(Error::new(Status::Server, message)))
            }
            _ => Some(Err(self.to_error(cx, code))),
        }
    }

    /// Handles the results of the transaction of a write, or the content of the node after an interrupted write. The
    /// method returns the version of the node, or `None` as the version if the node did not have the expected version.
    fn on_write_reply(&mut self, cx: &mut Context<'_>, response: &Response) -> Option<Result<Option<i32>>> {
        let NodeRequest::Write { path, data, hold_node, .. } = &self.request else {
            return Some(Err(Status::Internal.into()));
        };
        match response {
            Response::Data { data: found, stat } => Some(Ok((found.as_ref() == Some(data)).then_some(stat.version))),
            Response::Multi(results) => match results.as_slice() {
                [_, MultiResult::Ok(Response::Stat(stat))] => Some(Ok(Some(stat.version))),
                // Servers send the reply of a create request without a stat. A new node has version 0.
                [_, MultiResult::Ok(Response::Create2 { .. } | Response::Path(_))] => Some(Ok(Some(0))),
                [MultiResult::Err(Code::NO_NODE), ..] => {
                    let message = format!("writing {path}: the node of the hold, {hold_node}, no longer exists");
                    Some(Err(Error::new(Status::Lost, message)))
                }
                [_, MultiResult::Err(Code::BAD_VERSION | Code::NODE_EXISTS | Code::NO_NODE)]
                    if self.was_interrupted =>
                {
                    self.is_comparing = true;
                    cx.send(RequestKind::NodeRequest, &Request::GetData { path: path.clone(), watch: false });
                    None
                }
                [_, MultiResult::Err(Code::BAD_VERSION | Code::NODE_EXISTS | Code::NO_NODE)] => Some(Ok(None)),
                [MultiResult::Err(Code::OK), MultiResult::Err(code)] => Some(Err(self.to_error(cx, *code))),
                [MultiResult::Err(code), ..] => {
                    let error = Error::from_code(*code, &self.request.description());
                    Some(Err(error.requiring(Permission::Read, hold_node)))
                }
                _ => Some(Err(Status::Internal.into())),
            },
            _ => Some(Err(Status::Internal.into())),
        }
    }

    /// Handles the results of the transaction of a permission check. The transaction always fails: either because the
    /// server denies its first request, or because of the missing node that a later request needs.
    fn on_permission_checked(&self, cx: &Context<'_>, response: &Response) -> Result<NodeReply> {
        let Response::Multi(results) = response else { return Err(Status::Internal.into()) };
        // A server checks the permission to delete before it looks for the child.
        let is_delete = matches!(self.request, NodeRequest::CheckPermission { permission: Permission::Delete, .. });
        match results.as_slice() {
            [MultiResult::Err(Code::NO_AUTH), ..] => Ok(NodeReply::Allowed(false)),
            [MultiResult::Err(Code::NO_NODE), ..] if is_delete => Ok(NodeReply::Allowed(true)),
            [.., MultiResult::Err(Code::NO_NODE)] => Ok(NodeReply::Allowed(true)),
            [MultiResult::Err(code), ..] => Err(self.to_error(cx, *code)),
            _ => Err(Status::Internal.into()),
        }
    }

    fn to_error(&self, cx: &Context<'_>, code: Code) -> Error {
        let (doing, path) = (self.request.description(), self.request.path());
        if matches!(self.request, NodeRequest::Delete { .. }) {
            return Error::from_code(code, &doing).requiring(Permission::Delete, parent(path));
        }
        let is_creating = self.is_creating || matches!(self.request, NodeRequest::Write { version: None, .. });
        if is_creating && !self.is_comparing {
            return cx.create_error(code.into(), &doing, parent(path), Place::LockDirectory);
        }
        let permission = match self.request {
            NodeRequest::Write { .. } if self.is_comparing => Permission::Read,
            NodeRequest::SetCount { .. } | NodeRequest::Write { .. } | NodeRequest::Revoke { .. } => Permission::Write,
            NodeRequest::GetCount { .. }
            | NodeRequest::Read { .. }
            | NodeRequest::CreateCount { .. }
            | NodeRequest::Delete { .. }
            | NodeRequest::List { .. }
            | NodeRequest::AwaitChange { .. }
            | NodeRequest::CheckPermission { .. }
            | NodeRequest::CountChildren { .. }
            | NodeRequest::Identities
            | NodeRequest::FindChroot { .. } => Permission::Read,
        };
        Error::from_code(code, &doing).requiring(permission, path)
    }
}

impl NodeRequest {
    /// Returns the same request with the chroot prepended to its path.
    pub(crate) fn with_chroot(mut self, chroot: &str) -> Self {
        if let Self::Write { hold_node, .. } = &mut self {
            hold_node.insert_str(0, chroot);
        }
        let path = match &mut self {
            Self::Identities => return self,
            Self::GetCount { path }
            | Self::Read { path }
            | Self::Write { path, .. }
            | Self::SetCount { path, .. }
            | Self::CreateCount { path, .. }
            | Self::Revoke { path }
            | Self::Delete { path }
            | Self::List { path }
            | Self::AwaitChange { path, .. }
            | Self::CheckPermission { path, .. }
            | Self::CountChildren { path }
            | Self::FindChroot { path } => path,
        };
        if path == "/" && !chroot.is_empty() {
            path.clear();
        }
        path.insert_str(0, chroot);
        self
    }

    fn path(&self) -> &str {
        match self {
            Self::GetCount { path }
            | Self::Read { path }
            | Self::Write { path, .. }
            | Self::SetCount { path, .. }
            | Self::CreateCount { path, .. }
            | Self::Revoke { path }
            | Self::Delete { path }
            | Self::List { path }
            | Self::AwaitChange { path, .. }
            | Self::CheckPermission { path, .. }
            | Self::CountChildren { path }
            | Self::FindChroot { path } => path,
            Self::Identities => "",
        }
    }

    fn reply(&self, response: Response) -> Result<NodeReply> {
        Ok(match (self, response) {
            (Self::GetCount { path }, Response::Data { data, .. }) => NodeReply::Count(parse(path, data.as_deref())?),
            (Self::Read { .. }, Response::Data { data, stat }) => {
                let data = data.unwrap_or_default();
                let Stat { version, czxid, ctime: created_ms, ephemeral_owner: session_id, .. } = stat;
                NodeReply::Content(Some(NodeContent { data, version, czxid, created_ms, session_id }))
            }
            (Self::List { .. } | Self::AwaitChange { .. }, Response::Children2 { children, stat }) => {
                NodeReply::Children(Some(Children {
                    names: children,
                    zxid: stat.pzxid,
                    created: children_created(stat),
                }))
            }
            (Self::Identities, Response::Identities(identities)) => {
                let name = |identity: Identity| format!("{}:{}", identity.scheme, identity.id);
                NodeReply::Identities(identities.into_iter().map(name).collect())
            }
            (Self::CountChildren { .. }, Response::Children2 { children, .. }) => NodeReply::ChildCount(children.len()),
            _ => NodeReply::Done,
        })
    }

    fn description(&self) -> String {
        match self {
            Self::GetCount { path } => format!("reading the count {path}"),
            Self::SetCount { path, .. } | Self::CreateCount { path, .. } => format!("setting the count {path}"),
            Self::Read { path } => format!("reading {path}"),
            Self::Write { path, .. } => format!("writing {path}"),
            Self::Revoke { path } => format!("revoking {path}"),
            Self::Delete { path } => format!("deleting {path}"),
            Self::List { path } | Self::AwaitChange { path, .. } | Self::CountChildren { path } => {
                format!("listing {path}")
            }
            Self::CheckPermission { path, permission } => format!("checking the permission {permission} on {path}"),
            Self::Identities => "reading the identities of the client".to_owned(),
            Self::FindChroot { path } => format!("looking for the chroot {path}"),
        }
    }
}

/// Creates the node of a count, and all ancestors of the node. The server replies with an error if an ancestor already
/// exists.
pub(super) fn create_count(cx: &mut Context<'_>, directories: &mut DirectoryCreation, path: &str, value: i32) {
    directories.create(cx, ancestors(path), CreateMode::Container);
    let (data, acl) = (Some(value.to_be_bytes().to_vec()), cx.acls.entries(Place::LockDirectory));
    let request = Request::Create2 { path: path.to_owned(), data, acl, mode: CreateMode::Persistent };
    cx.send(RequestKind::NodeRequest, &request);
}

/// Parses the data of a count, which consists of four bytes in big-endian order.
pub(super) fn parse(path: &str, data: Option<&[u8]>) -> Result<i32> {
    let data = data.unwrap_or_default();
    match <[u8; 4]>::try_from(data) {
        Ok(bytes) => Ok(i32::from_be_bytes(bytes)),
        Err(_) => Err(Error::invalid(format!(
            "{path}: the node has {} bytes of data; expected the 4 bytes of a SharedCount",
            data.len()
        ))),
    }
}

/// Makes a transaction that writes a node if the node of the hold exists.
fn write(cx: &Context<'_>, path: &str, data: &[u8], version: Option<i32>, hold_node: &str) -> Request {
    let (path, data) = (path.to_owned(), Some(data.to_vec()));
    let write = match version {
        Some(version) => Request::SetData { path, data, version },
        None => {
            let acl = cx.acls.entries(Place::LockDirectory);
            Request::Create2 { path, data, acl, mode: CreateMode::Persistent }
        }
    };
    Request::Multi(vec![Request::Check { path: hold_node.to_owned(), version: -1 }, write])
}

/// Makes a transaction that a server denies if the client does not have the permission, and that fails otherwise.
fn check_permission(cx: &Context<'_>, path: &str, permission: Permission) -> Request {
    let probe = format!("{}{PROBE}", path.trim_end_matches('/'));
    let first = match permission {
        Permission::Create => {
            let acl = cx.acls.entries(Place::Contender);
            Request::Create2 { path: probe.clone(), data: None, acl, mode: CreateMode::Ephemeral }
        }
        Permission::Delete => Request::Delete { path: probe.clone(), version: -1 },
        Permission::Read => Request::Check { path: path.to_owned(), version: -1 },
        Permission::Write => Request::SetData { path: path.to_owned(), data: None, version: -1 },
    };
    Request::Multi(vec![first, Request::Check { path: format!("{probe}/none"), version: -1 }])
}

fn set(path: &str, data: &[u8]) -> Request {
    Request::SetData { path: path.to_owned(), data: Some(data.to_vec()), version: -1 }
}
