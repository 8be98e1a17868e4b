//! Requests of a client.

use super::codec::{Reader, Writer, try_frame, wire_enum};
use super::{Acl, ProtoError};

/// A request without its xid.
///
/// The `Debug` output contains all fields, including the credentials of `Auth` and the token of `Sasl`. Log messages should therefore contain
/// [`Request::op`] instead of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Creates a node. The reply contains the path of the node.
    ///
    /// A request for a container node has a separate opcode, and its reply contains a stat. With
    /// [`CreateMode::Container`], this request therefore equals `Create2`, and the decoder returns `Create2`.
    Create {
        /// The path of the node, without the suffix that a sequential mode appends.
        path: String,
        /// The data, or null. Some programs distinguish null from empty data.
        data: Option<Vec<u8>>,
        /// The access list.
        acl: Vec<Acl>,
        /// The kind of node.
        mode: CreateMode,
    },
    /// Creates a node. The reply contains the path and the stat of the node.
    Create2 {
        /// The path of the node, without the suffix that a sequential mode appends.
        path: String,
        /// The data, or null. Some programs distinguish null from empty data.
        data: Option<Vec<u8>>,
        /// The access list.
        acl: Vec<Acl>,
        /// The kind of node.
        mode: CreateMode,
    },
    /// Creates a node with a time to live. The server deletes the node after the node has had no children and no
    /// changes for this time. The reply contains the path and the stat of the node.
    CreateTtl {
        /// The path of the node, without the suffix that a sequential mode appends.
        path: String,
        /// The data, or null. Some programs distinguish null from empty data.
        data: Option<Vec<u8>>,
        /// The access list.
        acl: Vec<Acl>,
        /// The kind of node, which must be one of the two kinds with a time to live.
        mode: CreateMode,
        /// The time to live, in milliseconds.
        ttl_ms: i64,
    },
    /// Deletes a node without children.
    Delete {
        /// The node.
        path: String,
        /// The version that the node must have; -1 matches any version.
        version: i32,
    },
    /// Requests a node's stat.
    Exists {
        /// The node.
        path: String,
        /// True to set a watch. If the node is missing, the watch fires when the node is created. If the node exists,
        /// the watch fires when the data changes or the node is deleted.
        watch: bool,
    },
    /// Requests a node's data and stat.
    GetData {
        /// The node.
        path: String,
        /// True to set a watch on the data and the deletion of the node.
        watch: bool,
    },
    /// Replaces a node's data.
    SetData {
        /// The node.
        path: String,
        /// The new data, or null.
        data: Option<Vec<u8>>,
        /// The version that the node must have; -1 matches any version.
        version: i32,
    },
    /// Requests a node's access list and stat.
    GetAcl {
        /// The node.
        path: String,
    },
    /// Replaces a node's access list.
    SetAcl {
        /// The node.
        path: String,
        /// The new list.
        acl: Vec<Acl>,
        /// The version that the access list must have; -1 matches any version.
        version: i32,
    },
    /// Requests the names of the children of a node.
    GetChildren {
        /// The node.
        path: String,
        /// True to set a watch on the children and the deletion of the node.
        watch: bool,
    },
    /// Requests a node's stat and the names of its children.
    GetChildren2 {
        /// The node.
        path: String,
        /// True to set a watch on the children and the deletion of the node.
        watch: bool,
    },
    /// Requests the number of nodes below a node.
    GetAllChildrenNumber {
        /// The node.
        path: String,
    },
    /// Requests the paths of all ephemeral nodes of the session.
    GetEphemerals {
        /// The prefix of the requested paths.
        prefix: String,
    },
    /// Requests the identities of the session.
    WhoAmI,
    /// Makes the server catch up with the leader and then reply.
    Sync {
        /// A path that the reply repeats.
        path: String,
    },
    /// Checks the version of a node. This request is useful inside a multi request.
    Check {
        /// The node.
        path: String,
        /// The version that the node must have; -1 matches any version.
        version: i32,
    },
    /// Performs either all of these operations or, if an operation fails, none of these operations. Allowed operations
    /// are the create requests, `Delete`, `SetData` and `Check`.
    Multi(Vec<Self>),
    /// Performs several reads in one request. Allowed operations are `GetData` and `GetChildren`.
    MultiRead(Vec<Self>),
    /// Sets watches again on a new connection. A watch fires at once if its node has changed since `relative_zxid`.
    SetWatches {
        /// The largest zxid that the client has seen.
        relative_zxid: i64,
        /// Nodes with a watch on their data.
        data: Vec<String>,
        /// Missing nodes with a watch on their creation.
        exist: Vec<String>,
        /// Nodes with a watch on their children.
        child: Vec<String>,
    },
    /// Sets watches again like [`Request::SetWatches`], including persistent watches.
    SetWatches2 {
        /// The largest zxid that the client has seen.
        relative_zxid: i64,
        /// Nodes with a watch on their data.
        data: Vec<String>,
        /// Missing nodes with a watch on their creation.
        exist: Vec<String>,
        /// Nodes with a watch on their children.
        child: Vec<String>,
        /// Nodes with a persistent watch.
        persistent: Vec<String>,
        /// Nodes with a persistent recursive watch.
        persistent_recursive: Vec<String>,
    },
    /// Sets a watch that remains after it has fired.
    AddWatch {
        /// The node.
        path: String,
        /// The mode of the watch.
        mode: AddWatchMode,
    },
    /// Asks whether this connection has watches of the given kind on a node.
    CheckWatches {
        /// The node.
        path: String,
        /// The kind of the watches.
        kind: WatcherType,
    },
    /// Removes this connection's watches of the given kind from a node.
    RemoveWatches {
        /// The node.
        path: String,
        /// The kind of the watches.
        kind: WatcherType,
    },
    /// Adds an identity to the session.
    Auth {
        /// The authentication scheme that defines the format of `auth`, such as `digest`.
        scheme: String,
        /// The credentials.
        auth: Vec<u8>,
    },
    /// Passes a token of a SASL mechanism to the server. The reply contains the next token of the server. Unlike `Auth`,
    /// this request has an ordinary xid.
    Sasl {
        /// The token, whose format the mechanism defines.
        token: Vec<u8>,
    },
    /// Keeps the session alive.
    Ping,
    /// Ends the session.
    CloseSession,
}

/// The header of every frame that a client sends after the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// The xid that the client gave to the request, or one of the `XID_` constants. The reply contains the same xid.
    pub xid: i32,
    /// The type of the request: an [`OpCode`], or a number that this crate does not know.
    pub op: i32,
}

impl RequestHeader {
    /// Decodes the header at the front of a frame body. Returns the header and the bytes that follow it.
    pub fn decode(body: &[u8]) -> Result<(Self, &[u8]), ProtoError> {
        let mut r = Reader::new(body);
        let header = Self { xid: r.i32("request xid")?, op: r.i32("request type")? };
        Ok((header, r.rest()))
    }
}

wire_enum! {
    /// The type of a request.
    "request type" OpCode {
        /// Creates a node; the reply contains its path.
        Create = 1,
        /// Deletes a node.
        Delete = 2,
        /// Requests a node's stat.
        Exists = 3,
        /// Requests a node's data.
        GetData = 4,
        /// Replaces a node's data.
        SetData = 5,
        /// Requests a node's access list.
        GetAcl = 6,
        /// Replaces a node's access list.
        SetAcl = 7,
        /// Requests the names of the children of a node.
        GetChildren = 8,
        /// Makes the server catch up with the leader.
        Sync = 9,
        /// Keeps the session alive.
        Ping = 11,
        /// Requests a node's stat and the names of its children.
        GetChildren2 = 12,
        /// Checks the version of a node.
        Check = 13,
        /// Performs several changes in one transaction.
        Multi = 14,
        /// Creates a node; the reply contains its path and stat.
        Create2 = 15,
        /// Asks whether a watch exists.
        CheckWatches = 17,
        /// Removes watches.
        RemoveWatches = 18,
        /// Creates a container node; the reply contains its path and stat.
        CreateContainer = 19,
        /// Creates a node with a time to live; the reply contains its path and stat.
        CreateTtl = 21,
        /// Performs several reads.
        MultiRead = 22,
        /// Adds an identity to the session.
        Auth = 100,
        /// Sets watches again.
        SetWatches = 101,
        /// Passes a token of a SASL mechanism to the server.
        Sasl = 102,
        /// Requests the session's ephemeral nodes.
        GetEphemerals = 103,
        /// Requests the number of nodes below a node.
        CountDescendants = 104,
        /// Sets watches again, including persistent watches.
        SetWatches2 = 105,
        /// Sets a persistent watch.
        AddWatch = 106,
        /// Requests the session's identities.
        WhoAmI = 107,
        /// Ends the session.
        CloseSession = -11,
    }
}

wire_enum! {
    /// The kind of node to create.
    "create flags" CreateMode {
        /// The node exists until a client deletes it.
        Persistent = 0,
        /// The server deletes the node when the session ends.
        Ephemeral = 1,
        /// A persistent node. The server appends a sequence number to the node's name.
        PersistentSequential = 2,
        /// An ephemeral node. The server appends a sequence number to the node's name.
        EphemeralSequential = 3,
        /// The server deletes the node some time after the deletion of its last child.
        Container = 4,
        /// If the node has no children, the server deletes the node some time after the last change of the node.
        PersistentWithTtl = 5,
        /// A node with a time to live. The server appends a sequence number to the node's name.
        PersistentSequentialWithTtl = 6,
    }
}

wire_enum! {
    /// The kind of watches that a request removes from a node.
    "watcher type" WatcherType {
        /// Watches on the children of the node.
        Children = 1,
        /// Watches on the data and the existence of the node.
        Data = 2,
        /// All watches.
        Any = 3,
    }
}

wire_enum! {
    /// The mode of a persistent watch.
    "add watch mode" AddWatchMode {
        /// The watch covers the node and its list of children.
        Persistent = 0,
        /// The watch covers the node and all nodes below it.
        PersistentRecursive = 1,
    }
}

impl Request {
    /// Returns the path of the node that the request concerns. For a multi, returns the path of the first operation.
    /// Returns `None` for a request without a path and for a request that sets watches again.
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::Create { path, .. }
            | Self::Create2 { path, .. }
            | Self::CreateTtl { path, .. }
            | Self::Delete { path, .. }
            | Self::Exists { path, .. }
            | Self::GetData { path, .. }
            | Self::SetData { path, .. }
            | Self::GetAcl { path }
            | Self::SetAcl { path, .. }
            | Self::GetChildren { path, .. }
            | Self::GetChildren2 { path, .. }
            | Self::GetAllChildrenNumber { path }
            | Self::GetEphemerals { prefix: path }
            | Self::Sync { path }
            | Self::Check { path, .. }
            | Self::AddWatch { path, .. }
            | Self::CheckWatches { path, .. }
            | Self::RemoveWatches { path, .. } => Some(path),
            Self::Multi(requests) | Self::MultiRead(requests) => requests.first()?.path(),
            Self::WhoAmI
            | Self::SetWatches { .. }
            | Self::SetWatches2 { .. }
            | Self::Auth { .. }
            | Self::Sasl { .. }
            | Self::Ping
            | Self::CloseSession => None,
        }
    }

    /// Returns the opcode of the request. The reply must be decoded with the same opcode.
    pub const fn op(&self) -> OpCode {
        match self {
            Self::Create { mode: CreateMode::Container, .. } | Self::Create2 { mode: CreateMode::Container, .. } => {
                OpCode::CreateContainer
            }
            Self::Create { .. } => OpCode::Create,
            Self::Create2 { .. } => OpCode::Create2,
            Self::CreateTtl { .. } => OpCode::CreateTtl,
            Self::Delete { .. } => OpCode::Delete,
            Self::Exists { .. } => OpCode::Exists,
            Self::GetData { .. } => OpCode::GetData,
            Self::SetData { .. } => OpCode::SetData,
            Self::GetAcl { .. } => OpCode::GetAcl,
            Self::SetAcl { .. } => OpCode::SetAcl,
            Self::GetChildren { .. } => OpCode::GetChildren,
            Self::GetChildren2 { .. } => OpCode::GetChildren2,
            Self::GetAllChildrenNumber { .. } => OpCode::CountDescendants,
            Self::GetEphemerals { .. } => OpCode::GetEphemerals,
            Self::WhoAmI => OpCode::WhoAmI,
            Self::Sync { .. } => OpCode::Sync,
            Self::Check { .. } => OpCode::Check,
            Self::Multi(_) => OpCode::Multi,
            Self::MultiRead(_) => OpCode::MultiRead,
            Self::SetWatches { .. } => OpCode::SetWatches,
            Self::SetWatches2 { .. } => OpCode::SetWatches2,
            Self::AddWatch { .. } => OpCode::AddWatch,
            Self::CheckWatches { .. } => OpCode::CheckWatches,
            Self::RemoveWatches { .. } => OpCode::RemoveWatches,
            Self::Auth { .. } => OpCode::Auth,
            Self::Sasl { .. } => OpCode::Sasl,
            Self::Ping => OpCode::Ping,
            Self::CloseSession => OpCode::CloseSession,
        }
    }

    /// Appends a complete frame: the length, the header and the body.
    ///
    /// Fails if a multi request contains an operation that is not allowed in a multi request, or if the request is too
    /// long for a frame. In both cases, `out` does not change.
    pub fn encode(&self, xid: i32, out: &mut Vec<u8>) -> Result<(), ProtoError> {
        try_frame(out, |w| {
            w.i32(xid);
            w.i32(self.op().to_wire());
            self.write(w)
        })
    }

    /// Decodes the body of a frame. Returns the xid and the request.
    pub fn decode(body: &[u8]) -> Result<(i32, Self), ProtoError> {
        let (RequestHeader { xid, op }, rest) = RequestHeader::decode(body)?;
        Ok((xid, Self::decode_as(op.try_into()?, rest)?))
    }

    /// Decodes the part of a frame that follows the [`RequestHeader`]. `op` is the type of the request. Like
    /// ZooKeeper's servers, this function ignores bytes after the record.
    pub fn decode_as(op: OpCode, body: &[u8]) -> Result<Self, ProtoError> {
        Self::read(op, &mut Reader::new(body))
    }

    fn write(&self, w: &mut Writer<'_>) -> Result<(), ProtoError> {
        match self {
            Self::Create { path, data, acl, mode } | Self::Create2 { path, data, acl, mode } => {
                w.string(path);
                w.nullable(data.as_deref());
                w.vector(acl, |w, entry| entry.write(w));
                w.i32(mode.to_wire());
            }
            Self::CreateTtl { path, data, acl, mode, ttl_ms } => {
                w.string(path);
                w.nullable(data.as_deref());
                w.vector(acl, |w, entry| entry.write(w));
                w.i32(mode.to_wire());
                w.i64(*ttl_ms);
            }
            Self::SetAcl { path, acl, version } => {
                w.string(path);
                w.vector(acl, |w, entry| entry.write(w));
                w.i32(*version);
            }
            Self::Delete { path, version } | Self::Check { path, version } => {
                w.string(path);
                w.i32(*version);
            }
            Self::Exists { path, watch }
            | Self::GetData { path, watch }
            | Self::GetChildren { path, watch }
            | Self::GetChildren2 { path, watch } => {
                w.string(path);
                w.bool(*watch);
            }
            Self::SetData { path, data, version } => {
                w.string(path);
                w.nullable(data.as_deref());
                w.i32(*version);
            }
            Self::Sync { path } | Self::GetAcl { path } | Self::GetAllChildrenNumber { path } => w.string(path),
            Self::GetEphemerals { prefix } => w.string(prefix),
            Self::Multi(requests) => return write_multi(requests, is_allowed_in_multi, w),
            Self::MultiRead(requests) => return write_multi(requests, is_allowed_in_multi_read, w),
            Self::SetWatches { relative_zxid, data, exist, child } => {
                w.i64(*relative_zxid);
                for paths in [data, exist, child] {
                    w.strings(paths);
                }
            }
            Self::SetWatches2 { relative_zxid, data, exist, child, persistent, persistent_recursive } => {
                w.i64(*relative_zxid);
                for paths in [data, exist, child, persistent, persistent_recursive] {
                    w.strings(paths);
                }
            }
            Self::AddWatch { path, mode } => {
                w.string(path);
                w.i32(mode.to_wire());
            }
            Self::CheckWatches { path, kind } | Self::RemoveWatches { path, kind } => {
                w.string(path);
                w.i32(kind.to_wire());
            }
            Self::Auth { scheme, auth } => {
                w.i32(AUTH_PACKET);
                w.string(scheme);
                w.buffer(auth);
            }
            Self::Sasl { token } => w.buffer(token),
            Self::WhoAmI | Self::Ping | Self::CloseSession => {}
        }
        Ok(())
    }

    fn read(op: OpCode, r: &mut Reader<'_>) -> Result<Self, ProtoError> {
        Ok(match op {
            OpCode::Create | OpCode::Create2 | OpCode::CreateContainer | OpCode::CreateTtl => read_create(op, r)?,
            OpCode::Delete => Self::Delete { path: r.string("delete path")?, version: r.i32("delete version")? },
            OpCode::Exists => Self::Exists { path: r.string("exists path")?, watch: r.bool("exists watch")? },
            OpCode::GetData => Self::GetData { path: r.string("getData path")?, watch: r.bool("getData watch")? },
            OpCode::SetData => Self::SetData {
                path: r.string("setData path")?,
                data: r.nullable("setData data")?,
                version: r.i32("setData version")?,
            },
            OpCode::GetChildren => {
                Self::GetChildren { path: r.string("getChildren path")?, watch: r.bool("getChildren watch")? }
            }
            OpCode::GetChildren2 => {
                Self::GetChildren2 { path: r.string("getChildren2 path")?, watch: r.bool("getChildren2 watch")? }
            }
            OpCode::Sync => Self::Sync { path: r.string("sync path")? },
            OpCode::Check => Self::Check { path: r.string("check path")?, version: r.i32("check version")? },
            OpCode::Multi => Self::Multi(read_multi(is_allowed_in_multi, r)?),
            OpCode::MultiRead => Self::MultiRead(read_multi(is_allowed_in_multi_read, r)?),
            OpCode::GetAcl => Self::GetAcl { path: r.string("getACL path")? },
            OpCode::SetAcl => Self::SetAcl {
                path: r.string("setACL path")?,
                acl: r.vector("setACL acl", Acl::MIN_BYTES, Acl::read)?,
                version: r.i32("setACL version")?,
            },
            OpCode::CountDescendants => Self::GetAllChildrenNumber { path: r.string("getAllChildrenNumber path")? },
            OpCode::GetEphemerals => Self::GetEphemerals { prefix: r.string("getEphemerals prefix")? },
            OpCode::WhoAmI => Self::WhoAmI,
            OpCode::SetWatches => Self::SetWatches {
                relative_zxid: r.i64("setWatches zxid")?,
                data: r.strings("setWatches data paths")?,
                exist: r.strings("setWatches exist paths")?,
                child: r.strings("setWatches child paths")?,
            },
            OpCode::SetWatches2 => Self::SetWatches2 {
                relative_zxid: r.i64("setWatches2 zxid")?,
                data: r.strings("setWatches2 data paths")?,
                exist: r.strings("setWatches2 exist paths")?,
                child: r.strings("setWatches2 child paths")?,
                persistent: r.strings("setWatches2 persistent paths")?,
                persistent_recursive: r.strings("setWatches2 recursive paths")?,
            },
            OpCode::AddWatch => {
                Self::AddWatch { path: r.string("addWatch path")?, mode: r.enum_value("addWatch mode")? }
            }
            OpCode::RemoveWatches => {
                Self::RemoveWatches { path: r.string("removeWatches path")?, kind: r.enum_value("removeWatches type")? }
            }
            OpCode::Auth => read_auth(r)?,
            OpCode::Sasl => Self::Sasl { token: r.buffer("sasl token")? },
            OpCode::Ping => Self::Ping,
            OpCode::CloseSession => Self::CloseSession,
            OpCode::CheckWatches => {
                Self::CheckWatches { path: r.string("checkWatches path")?, kind: r.enum_value("checkWatches type")? }
            }
        })
    }
}

/// The `type` field of an auth packet, which is always 0.
const AUTH_PACKET: i32 = 0;

/// The header of each operation in a multi request, and of each result in a multi reply. An additional header marks the
/// end of the list.
pub(super) struct MultiHeader {
    pub(super) kind: i32,
    pub(super) done: bool,
    pub(super) err: i32,
}

impl MultiHeader {
    /// The value of `kind` in an error result, and in the header that ends a multi request or a multi reply.
    pub(super) const ERROR: i32 = -1;
    /// The header that ends a multi request or a multi reply.
    pub(super) const END: Self = Self { kind: Self::ERROR, done: true, err: -1 };

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, ProtoError> {
        Ok(Self { kind: r.i32("multi type")?, done: r.bool("multi done flag")?, err: r.i32("multi err")? })
    }

    pub(super) fn write(&self, w: &mut Writer<'_>) {
        w.i32(self.kind);
        w.bool(self.done);
        w.i32(self.err);
    }
}

fn write_multi(requests: &[Request], is_allowed: fn(OpCode) -> bool, w: &mut Writer<'_>) -> Result<(), ProtoError> {
    for request in requests {
        let op = request.op();
        if !is_allowed(op) {
            return Err(ProtoError::NotInMulti { op: format!("{op:?}") });
        }
        MultiHeader { kind: op.to_wire(), done: false, err: -1 }.write(w);
        request.write(w)?;
    }
    MultiHeader::END.write(w);
    Ok(())
}

fn read_multi(is_allowed: fn(OpCode) -> bool, r: &mut Reader<'_>) -> Result<Vec<Request>, ProtoError> {
    let mut requests = Vec::new();
    loop {
        let header = MultiHeader::read(r)?;
        if header.done {
            return Ok(requests);
        }
        let op = OpCode::try_from(header.kind)?;
        if !is_allowed(op) {
            return Err(ProtoError::NotInMulti { op: format!("{op:?}") });
        }
        requests.push(Request::read(op, r)?);
    }
}

/// Returns whether an operation is allowed in a multi request that performs changes.
///
/// A multi request must not contain another multi request. This rule limits the recursion of readers and writers.
pub(super) const fn is_allowed_in_multi(op: OpCode) -> bool {
    matches!(
        op,
        OpCode::Create
            | OpCode::Create2
            | OpCode::CreateContainer
            | OpCode::CreateTtl
            | OpCode::Delete
            | OpCode::SetData
            | OpCode::Check
    )
}

/// Returns whether an operation is allowed in a multi request that performs reads.
pub(super) const fn is_allowed_in_multi_read(op: OpCode) -> bool {
    matches!(op, OpCode::GetData | OpCode::GetChildren)
}

fn read_create(op: OpCode, r: &mut Reader<'_>) -> Result<Request, ProtoError> {
    let path = r.string("create path")?;
    let data = r.nullable("create data")?;
    let acl = r.vector("create acl", Acl::MIN_BYTES, Acl::read)?;
    let mode: CreateMode = r.enum_value("create flags")?;
    // The opcode and the flags both contain the kind of node, but a server reads only one of the two. The decoder
    // refuses a request if the opcode and the flags disagree.
    let is_consistent = match mode {
        CreateMode::Container => op == OpCode::CreateContainer,
        CreateMode::PersistentWithTtl | CreateMode::PersistentSequentialWithTtl => op == OpCode::CreateTtl,
        _ => matches!(op, OpCode::Create | OpCode::Create2),
    };
    if !is_consistent {
        return Err(ProtoError::Unknown { what: "create flags for this request type", value: mode.to_wire() });
    }
    Ok(match op {
        OpCode::Create => Request::Create { path, data, acl, mode },
        OpCode::CreateTtl => Request::CreateTtl { path, data, acl, mode, ttl_ms: r.i64("create ttl")? },
        _ => Request::Create2 { path, data, acl, mode },
    })
}

fn read_auth(r: &mut Reader<'_>) -> Result<Request, ProtoError> {
    // Servers ignore the type of an auth packet.
    r.i32("auth type")?;
    Ok(Request::Auth { scheme: r.string("auth scheme")?, auth: r.buffer("auth data")? })
}
