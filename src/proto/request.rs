//! What a client asks a server for.

use super::codec::{Reader, Writer, try_frame, wire_enum};
use super::{Acl, ProtoError};

/// A request, without the xid that ties its reply to it.
///
/// `Debug` prints everything, the credentials of `Auth` included: log [`Request::op`] rather than the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Create a node; the reply is its path.
    ///
    /// A container node has an opcode of its own whose reply has a stat as well, so with
    /// [`CreateMode::Container`] this is the same request as `Create2`, and decodes as that.
    Create {
        /// The node, without the suffix a sequential mode appends.
        path: String,
        /// Its data, or null, which some programs tell from nothing.
        data: Option<Vec<u8>>,
        /// Its access list.
        acl: Vec<Acl>,
        /// What kind of node.
        mode: CreateMode,
    },
    /// Create a node; the reply is its path and stat.
    Create2 {
        /// The node, without the suffix a sequential mode appends.
        path: String,
        /// Its data, or null, which some programs tell from nothing.
        data: Option<Vec<u8>>,
        /// Its access list.
        acl: Vec<Acl>,
        /// What kind of node.
        mode: CreateMode,
    },
    /// Create a node that the server deletes once it has had no children and no changes for a time; the reply is its path and
    /// stat.
    CreateTtl {
        /// The node, without the suffix a sequential mode appends.
        path: String,
        /// Its data, or null, which some programs tell from nothing.
        data: Option<Vec<u8>>,
        /// Its access list.
        acl: Vec<Acl>,
        /// What kind of node: one of the two with a time to live.
        mode: CreateMode,
        /// The time, in milliseconds.
        ttl_ms: i64,
    },
    /// Delete a node without children.
    Delete {
        /// The node.
        path: String,
        /// The version it must have; -1 for any.
        version: i32,
    },
    /// Ask for a node's stat.
    Exists {
        /// The node.
        path: String,
        /// Whether to watch it: its creation when it does not exist, else its data and deletion.
        watch: bool,
    },
    /// Ask for a node's data and stat.
    GetData {
        /// The node.
        path: String,
        /// Whether to watch its data and deletion.
        watch: bool,
    },
    /// Replace a node's data.
    SetData {
        /// The node.
        path: String,
        /// The new data, or null.
        data: Option<Vec<u8>>,
        /// The version it must have; -1 for any.
        version: i32,
    },
    /// Ask for a node's access list and stat.
    GetAcl {
        /// The node.
        path: String,
    },
    /// Replace a node's access list.
    SetAcl {
        /// The node.
        path: String,
        /// The new list.
        acl: Vec<Acl>,
        /// The version the list must have; -1 for any.
        version: i32,
    },
    /// Ask for the names of a node's children.
    GetChildren {
        /// The node.
        path: String,
        /// Whether to watch its children and deletion.
        watch: bool,
    },
    /// Ask for the names of a node's children and its stat.
    GetChildren2 {
        /// The node.
        path: String,
        /// Whether to watch its children and deletion.
        watch: bool,
    },
    /// Ask how many nodes there are below a node.
    CountDescendants {
        /// The node.
        path: String,
    },
    /// Ask for the paths of the session's ephemeral nodes.
    GetEphemerals {
        /// What the paths must begin with.
        prefix: String,
    },
    /// Ask for the identities of the session.
    WhoAmI,
    /// Let the server catch up with the leader before it answers.
    Sync {
        /// A node; the reply echoes it.
        path: String,
    },
    /// Require a version of a node; of use inside a multi.
    Check {
        /// The node.
        path: String,
        /// The version it must have; -1 for any.
        version: i32,
    },
    /// Do all of these or none. Only the creates, `Delete`, `SetData` and `Check` can be in it.
    Multi(Vec<Self>),
    /// Several reads at one moment. Only `GetData` and `GetChildren` can be in it.
    MultiRead(Vec<Self>),
    /// Register watches again on a new connection; what changed meanwhile fires at once.
    SetWatches {
        /// The newest transaction the client has seen.
        relative_zxid: i64,
        /// Nodes whose data is watched.
        data: Vec<String>,
        /// Nodes whose creation is watched.
        exist: Vec<String>,
        /// Nodes whose children are watched.
        child: Vec<String>,
    },
    /// [`Request::SetWatches`] with persistent watches too.
    SetWatches2 {
        /// The newest transaction the client has seen.
        relative_zxid: i64,
        /// Nodes whose data is watched.
        data: Vec<String>,
        /// Nodes whose creation is watched.
        exist: Vec<String>,
        /// Nodes whose children are watched.
        child: Vec<String>,
        /// Nodes with a persistent watch.
        persistent: Vec<String>,
        /// Nodes with a persistent watch on all that is below them.
        persistent_recursive: Vec<String>,
    },
    /// Register a watch that stays after it has fired.
    AddWatch {
        /// The node.
        path: String,
        /// How far the watch reaches.
        mode: AddWatchMode,
    },
    /// Ask whether this connection has such watches on a node.
    CheckWatches {
        /// The node.
        path: String,
        /// Which watches.
        kind: WatcherType,
    },
    /// Remove this connection's watches from a node.
    RemoveWatches {
        /// The node.
        path: String,
        /// Which watches.
        kind: WatcherType,
    },
    /// Add an identity to the session.
    Auth {
        /// How `auth` is to be understood, such as `digest`.
        scheme: String,
        /// The credentials.
        auth: Vec<u8>,
    },
    /// Keep the session alive.
    Ping,
    /// End the session.
    CloseSession,
}

/// What every frame from the client starts with, once the session is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// The client's number for the request, or one of the `XID_` constants; the reply repeats it.
    pub xid: i32,
    /// What kind of request follows: an [`OpCode`], unless the client knows more of them.
    pub op: i32,
}

impl RequestHeader {
    /// Reads the front of a frame's body, and returns what is behind it.
    pub fn decode(body: &[u8]) -> Result<(Self, &[u8]), ProtoError> {
        let mut r = Reader::new(body);
        let header = Self { xid: r.i32("request xid")?, op: r.i32("request type")? };
        Ok((header, r.rest()))
    }
}

wire_enum! {
    /// What kind of request follows its header.
    "request type" OpCode {
        /// Create a node, and reply with its path.
        Create = 1,
        /// Delete a node.
        Delete = 2,
        /// Ask for a node's stat.
        Exists = 3,
        /// Ask for a node's data.
        GetData = 4,
        /// Replace a node's data.
        SetData = 5,
        /// Ask for a node's access list.
        GetAcl = 6,
        /// Replace a node's access list.
        SetAcl = 7,
        /// Ask for a node's children.
        GetChildren = 8,
        /// Catch up with the leader.
        Sync = 9,
        /// Keep the session alive.
        Ping = 11,
        /// Ask for a node's children and stat.
        GetChildren2 = 12,
        /// Require a version of a node.
        Check = 13,
        /// Several operations at once.
        Multi = 14,
        /// Create a node, and reply with its path and stat.
        Create2 = 15,
        /// Ask whether there is a watch.
        CheckWatches = 17,
        /// Remove watches.
        RemoveWatches = 18,
        /// Create a container node, and reply with its path and stat.
        CreateContainer = 19,
        /// Create a node with a time to live, and reply with its path and stat.
        CreateTtl = 21,
        /// Several reads at once.
        MultiRead = 22,
        /// Add an identity to the session.
        Auth = 100,
        /// Register watches again.
        SetWatches = 101,
        /// Ask for the session's ephemeral nodes.
        GetEphemerals = 103,
        /// Ask how many nodes there are below a node.
        CountDescendants = 104,
        /// Register watches again, persistent ones too.
        SetWatches2 = 105,
        /// Register a persistent watch.
        AddWatch = 106,
        /// Ask for the session's identities.
        WhoAmI = 107,
        /// End the session.
        CloseSession = -11,
    }
}

wire_enum! {
    /// What kind of node to create.
    "create flags" CreateMode {
        /// One that stays until it is deleted.
        Persistent = 0,
        /// One that goes with the session.
        Ephemeral = 1,
        /// One that stays, its name ending in a number the server counts up.
        PersistentSequential = 2,
        /// One that goes with the session, its name ending in a number the server counts up.
        EphemeralSequential = 3,
        /// One that the server deletes some time after its last child is gone.
        Container = 4,
        /// One that the server deletes some time after its last change, when it has no children.
        PersistentWithTtl = 5,
        /// The same, its name ending in a number the server counts up.
        PersistentSequentialWithTtl = 6,
    }
}

wire_enum! {
    /// Which watches to remove from a node.
    "watcher type" WatcherType {
        /// Those on its children.
        Children = 1,
        /// Those on its data and existence.
        Data = 2,
        /// All of them.
        Any = 3,
    }
}

wire_enum! {
    /// How far a persistent watch reaches.
    "add watch mode" AddWatchMode {
        /// The node and its list of children.
        Persistent = 0,
        /// The node and all that is below it.
        PersistentRecursive = 1,
    }
}

impl Request {
    /// The path that it is about, in a transaction the first; of watches that are set again and of what is about no node, none.
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
            | Self::CountDescendants { path }
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
            | Self::Ping
            | Self::CloseSession => None,
        }
    }

    /// The opcode it goes out with, which is also what its reply must be decoded as.
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
            Self::CountDescendants { .. } => OpCode::CountDescendants,
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
            Self::Ping => OpCode::Ping,
            Self::CloseSession => OpCode::CloseSession,
        }
    }

    /// Appends a whole frame: length, header, body.
    ///
    /// Fails, and leaves `out` as it was, on a multi of what cannot be in one and on a request too long for a frame.
    pub fn encode(&self, xid: i32, out: &mut Vec<u8>) -> Result<(), ProtoError> {
        try_frame(out, |w| {
            w.i32(xid);
            w.i32(self.op().to_wire());
            self.write(w)
        })
    }

    /// Reads the body of a frame: the xid and the request.
    pub fn decode(body: &[u8]) -> Result<(i32, Self), ProtoError> {
        let (RequestHeader { xid, op }, rest) = RequestHeader::decode(body)?;
        Ok((xid, Self::decode_as(op.try_into()?, rest)?))
    }

    /// Reads what follows the [`RequestHeader`], as a request of type `op`. Bytes behind it are ignored, as by other servers.
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
            Self::Sync { path } | Self::GetAcl { path } | Self::CountDescendants { path } => w.string(path),
            Self::GetEphemerals { prefix } => w.string(prefix),
            Self::Multi(requests) => return write_multi(requests, fits_multi, w),
            Self::MultiRead(requests) => return write_multi(requests, fits_multi_read, w),
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
            OpCode::Multi => Self::Multi(read_multi(fits_multi, r)?),
            OpCode::MultiRead => Self::MultiRead(read_multi(fits_multi_read, r)?),
            OpCode::GetAcl => Self::GetAcl { path: r.string("getACL path")? },
            OpCode::SetAcl => Self::SetAcl {
                path: r.string("setACL path")?,
                acl: r.vector("setACL acl", Acl::MIN_BYTES, Acl::read)?,
                version: r.i32("setACL version")?,
            },
            OpCode::CountDescendants => Self::CountDescendants { path: r.string("getAllChildrenNumber path")? },
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
            OpCode::AddWatch => Self::AddWatch { path: r.string("addWatch path")?, mode: r.choice("addWatch mode")? },
            OpCode::RemoveWatches => {
                Self::RemoveWatches { path: r.string("removeWatches path")?, kind: r.choice("removeWatches type")? }
            }
            OpCode::Auth => read_auth(r)?,
            OpCode::Ping => Self::Ping,
            OpCode::CloseSession => Self::CloseSession,
            OpCode::CheckWatches => {
                Self::CheckWatches { path: r.string("checkWatches path")?, kind: r.choice("checkWatches type")? }
            }
        })
    }
}

/// The `type` field of an auth packet, which has only ever had this value.
const AUTH_PACKET: i32 = 0;

/// Goes before each part of a multi, in requests and replies alike, and once more after the last.
pub(super) struct MultiHeader {
    pub(super) kind: i32,
    pub(super) done: bool,
    pub(super) err: i32,
}

impl MultiHeader {
    /// The `kind` of an error result, and of the header that ends a multi.
    pub(super) const ERROR: i32 = -1;
    /// Ends a multi.
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

fn write_multi(requests: &[Request], fits: fn(OpCode) -> bool, w: &mut Writer<'_>) -> Result<(), ProtoError> {
    for request in requests {
        let op = request.op();
        if !fits(op) {
            return Err(ProtoError::NotInMulti { op });
        }
        MultiHeader { kind: op.to_wire(), done: false, err: -1 }.write(w);
        request.write(w)?;
    }
    MultiHeader::END.write(w);
    Ok(())
}

fn read_multi(fits: fn(OpCode) -> bool, r: &mut Reader<'_>) -> Result<Vec<Request>, ProtoError> {
    let mut requests = Vec::new();
    loop {
        let header = MultiHeader::read(r)?;
        if header.done {
            return Ok(requests);
        }
        let op = OpCode::try_from(header.kind)?;
        if !fits(op) {
            return Err(ProtoError::NotInMulti { op });
        }
        requests.push(Request::read(op, r)?);
    }
}

/// Whether an operation can be part of a multi.
///
/// Saying no to a multi here is what keeps the recursion of readers and writers one level deep.
pub(super) const fn fits_multi(op: OpCode) -> bool {
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

/// Whether an operation can be part of a multi of reads.
pub(super) const fn fits_multi_read(op: OpCode) -> bool {
    matches!(op, OpCode::GetData | OpCode::GetChildren)
}

fn read_create(op: OpCode, r: &mut Reader<'_>) -> Result<Request, ProtoError> {
    let path = r.string("create path")?;
    let data = r.nullable("create data")?;
    let acl = r.vector("create acl", Acl::MIN_BYTES, Acl::read)?;
    let mode: CreateMode = r.choice("create flags")?;
    // The opcode and the flags both say what kind it is, and a server believes now one, now the other.
    let fits = match mode {
        CreateMode::Container => op == OpCode::CreateContainer,
        CreateMode::PersistentWithTtl | CreateMode::PersistentSequentialWithTtl => op == OpCode::CreateTtl,
        _ => matches!(op, OpCode::Create | OpCode::Create2),
    };
    if !fits {
        return Err(ProtoError::Unknown { what: "create flags for this request type", value: mode.to_wire() });
    }
    Ok(match op {
        OpCode::Create => Request::Create { path, data, acl, mode },
        OpCode::CreateTtl => Request::CreateTtl { path, data, acl, mode, ttl_ms: r.i64("create ttl")? },
        _ => Request::Create2 { path, data, acl, mode },
    })
}

fn read_auth(r: &mut Reader<'_>) -> Result<Request, ProtoError> {
    // Nobody has ever looked at the type.
    r.i32("auth type")?;
    Ok(Request::Auth { scheme: r.string("auth scheme")?, auth: r.buffer("auth data")? })
}
