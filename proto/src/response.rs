//! Replies of a server.

use super::codec::{Reader, Writer, frame, try_frame};
use super::request::{MultiHeader, is_allowed_in_multi, is_allowed_in_multi_read};
use super::{Acl, Code, OpCode, ProtoError, Stat};

/// The header of every frame that a server sends after the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The xid of the request that this frame answers, or one of the `XID_` constants.
    pub xid: i32,
    /// The largest zxid that the server has processed.
    pub zxid: i64,
    /// The result of the request. If the result is an error, no body follows the header.
    pub err: Code,
}

impl ReplyHeader {
    /// The size of the header in bytes.
    pub const LENGTH: usize = 16;

    /// Decodes the header at the front of a frame body. Returns the header and the bytes that follow it.
    pub fn decode(body: &[u8]) -> Result<(Self, &[u8]), ProtoError> {
        let mut r = Reader::new(body);
        let header = Self { xid: r.i32("reply xid")?, zxid: r.i64("reply zxid")?, err: Code(r.i32("reply err")?) };
        Ok((header, r.rest()))
    }

    pub(super) fn write(&self, w: &mut Writer<'_>) {
        w.i32(self.xid);
        w.i64(self.zxid);
        w.i32(self.err.0);
    }
}

/// The body of a reply to a successful request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// A reply without a body.
    Empty,
    /// The reply to a check operation in a multi request, if the node has the required version.
    Checked,
    /// The reply to addWatch. The body of this reply contains an error code. The code is always 0, because servers
    /// report errors in the header.
    WatchAdded,
    /// The reply to create contains the path of the created node. The reply to sync contains the path of the request.
    Path(String),
    /// The reply to create2, createContainer and createTTL.
    Create2 {
        /// The path of the created node.
        path: String,
        /// The node's stat.
        stat: Stat,
    },
    /// The reply to exists, setData and setACL.
    Stat(Stat),
    /// The reply to getData.
    Data {
        /// The node's data, which may be null.
        data: Option<Vec<u8>>,
        /// The node's stat.
        stat: Stat,
    },
    /// The reply to getACL.
    Acl {
        /// The node's access list.
        acl: Vec<Acl>,
        /// The node's stat.
        stat: Stat,
    },
    /// The reply to getChildren, with the names of the children instead of their paths.
    Children(Vec<String>),
    /// The reply to getEphemerals.
    Paths(Vec<String>),
    /// The reply to getAllChildrenNumber.
    AllChildrenNumber(i32),
    /// The reply to whoAmI.
    Identities(Vec<Identity>),
    /// The reply to a SASL token, with the next token of the server. If the server has no more to say, the token is null.
    SaslToken(Option<Vec<u8>>),
    /// The reply to getChildren2.
    Children2 {
        /// The names of the children, not their paths.
        children: Vec<String>,
        /// The parent's stat.
        stat: Stat,
    },
    /// The reply to a multi request, with one result for each operation.
    ///
    /// If a multi request of changes fails, every result is an error, although the header of the reply reports success.
    /// In a multi request of reads, each operation succeeds or fails independently.
    Multi(Vec<MultiResult>),
}

/// An identity of the session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The authentication scheme that defines the format of `id`, such as `ip` or `digest`.
    pub scheme: String,
    /// The text that names the user of the session. If the identity comes from credentials, this field contains the
    /// part of the credentials that is not secret.
    pub id: String,
}

impl Identity {
    /// The size in bytes of the smallest identity, which consists of two empty strings.
    const MIN_BYTES: usize = 8;
}

/// The result of one operation in a multi request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MultiResult {
    /// The operation succeeded. A create operation returns `Path` or `Create2`, setData returns `Stat`, a check returns
    /// `Checked`, and a delete operation returns `Empty`. A read operation returns `Data` or `Children`.
    Ok(Response),
    /// The server has not performed the operation. For the operation that failed, the code is the code of its error.
    /// For earlier operations the code is [`Code::OK`], and for later operations the code is
    /// [`Code::RUNTIME_INCONSISTENCY`].
    Err(Code),
}

impl Response {
    /// Decodes the part of a successful reply that follows the [`ReplyHeader`]. `op` is the type of the request.
    pub fn decode(op: OpCode, body: &[u8]) -> Result<Self, ProtoError> {
        let mut r = Reader::new(body);
        let response = Self::read(op, &mut r)?;
        r.finish("reply")?;
        Ok(response)
    }

    /// Appends a complete frame: the length, the header of a successful reply, and the body.
    ///
    /// Fails if a multi reply contains a result that is not allowed in a multi reply, or if the reply is too long for a
    /// frame. In both cases, `out` does not change.
    pub fn encode(&self, xid: i32, zxid: i64, out: &mut Vec<u8>) -> Result<(), ProtoError> {
        try_frame(out, |w| {
            ReplyHeader { xid, zxid, err: Code::OK }.write(w);
            self.write(w)
        })
    }

    fn read(op: OpCode, r: &mut Reader<'_>) -> Result<Self, ProtoError> {
        Ok(match op {
            OpCode::Create | OpCode::Sync => Self::Path(r.string("reply path")?),
            OpCode::Create2 | OpCode::CreateContainer | OpCode::CreateTtl => {
                Self::Create2 { path: r.string("reply path")?, stat: Stat::read(r)? }
            }
            OpCode::Exists | OpCode::SetData | OpCode::SetAcl => Self::Stat(Stat::read(r)?),
            OpCode::GetData => Self::Data { data: r.nullable("reply data")?, stat: Stat::read(r)? },
            OpCode::GetChildren => Self::Children(r.strings("reply children")?),
            OpCode::GetChildren2 => Self::Children2 { children: r.strings("reply children")?, stat: Stat::read(r)? },
            OpCode::GetAcl => {
                Self::Acl { acl: r.vector("reply acl", Acl::MIN_BYTES, Acl::read)?, stat: Stat::read(r)? }
            }
            OpCode::GetEphemerals => Self::Paths(r.strings("reply paths")?),
            OpCode::CountDescendants => Self::AllChildrenNumber(r.i32("reply count")?),
            OpCode::WhoAmI => Self::Identities(r.vector("reply identities", Identity::MIN_BYTES, |r| {
                Ok(Identity { scheme: r.string("identity scheme")?, id: r.string("identity id")? })
            })?),
            OpCode::Sasl => Self::SaslToken(r.nullable("reply sasl token")?),
            OpCode::Multi => Self::Multi(read_multi(is_allowed_in_multi, r)?),
            OpCode::MultiRead => Self::Multi(read_multi(is_allowed_in_multi_read, r)?),
            OpCode::AddWatch => read_add_watch(r)?,
            OpCode::Check => Self::Checked,
            OpCode::Delete
            | OpCode::Ping
            | OpCode::CheckWatches
            | OpCode::RemoveWatches
            | OpCode::Auth
            | OpCode::SetWatches
            | OpCode::SetWatches2
            | OpCode::CloseSession => Self::Empty,
        })
    }

    fn write(&self, w: &mut Writer<'_>) -> Result<(), ProtoError> {
        match self {
            Self::Empty | Self::Checked => {}
            Self::WatchAdded => w.i32(Code::OK.0),
            Self::Path(path) => w.string(path),
            Self::Create2 { path, stat } => {
                w.string(path);
                stat.write(w);
            }
            Self::Stat(stat) => stat.write(w),
            Self::Data { data, stat } => {
                w.nullable(data.as_deref());
                stat.write(w);
            }
            Self::Acl { acl, stat } => {
                w.vector(acl, |w, entry| entry.write(w));
                stat.write(w);
            }
            Self::Children(names) | Self::Paths(names) => w.strings(names),
            Self::AllChildrenNumber(count) => w.i32(*count),
            Self::Identities(identities) => w.vector(identities, |w, identity| {
                w.string(&identity.scheme);
                w.string(&identity.id);
            }),
            Self::SaslToken(token) => w.nullable(token.as_deref()),
            Self::Children2 { children, stat } => {
                w.strings(children);
                stat.write(w);
            }
            Self::Multi(results) => return write_multi(results, w),
        }
        Ok(())
    }

    /// Returns the operation type that a multi reply uses for this response.
    const fn multi_type(&self) -> Result<OpCode, ProtoError> {
        let response = match self {
            Self::Empty => return Ok(OpCode::Delete),
            Self::Checked => return Ok(OpCode::Check),
            Self::Path(_) => return Ok(OpCode::Create),
            Self::Create2 { .. } => return Ok(OpCode::Create2),
            Self::Stat(_) => return Ok(OpCode::SetData),
            Self::WatchAdded => "WatchAdded",
            Self::Data { .. } => return Ok(OpCode::GetData),
            Self::Children(_) => return Ok(OpCode::GetChildren),
            Self::Acl { .. } => "Acl",
            Self::Paths(_) => "Paths",
            Self::AllChildrenNumber(_) => "Count",
            Self::Identities(_) => "Identities",
            Self::SaslToken(_) => "SaslToken",
            Self::Children2 { .. } => "Children2",
            Self::Multi(_) => "Multi",
        };
        Err(ProtoError::NotInMultiReply { response })
    }
}

/// Appends a complete frame for the reply to a failed request. The frame consists of a header only.
pub fn encode_error(xid: i32, zxid: i64, err: Code, out: &mut Vec<u8>) {
    frame(out, |w| ReplyHeader { xid, zxid, err }.write(w));
}

/// Reads the reply to addWatch. The error code in this reply may be missing.
fn read_add_watch(r: &mut Reader<'_>) -> Result<Response, ProtoError> {
    if r.is_empty() {
        return Ok(Response::WatchAdded);
    }
    match Code(r.i32("addWatch reply err")?) {
        Code::OK => Ok(Response::WatchAdded),
        Code(value) => Err(ProtoError::Unknown { what: "addWatch reply err", value }),
    }
}

fn write_multi(results: &[MultiResult], w: &mut Writer<'_>) -> Result<(), ProtoError> {
    for result in results {
        match result {
            MultiResult::Ok(response) => {
                let kind = response.multi_type()?.to_wire();
                MultiHeader { kind, done: false, err: Code::OK.0 }.write(w);
                response.write(w)?;
            }
            MultiResult::Err(Code(err)) => {
                MultiHeader { kind: MultiHeader::ERROR, done: false, err: *err }.write(w);
                w.i32(*err);
            }
        }
    }
    MultiHeader::END.write(w);
    Ok(())
}

fn read_multi(is_allowed: fn(OpCode) -> bool, r: &mut Reader<'_>) -> Result<Vec<MultiResult>, ProtoError> {
    let mut results = Vec::new();
    loop {
        let header = MultiHeader::read(r)?;
        if header.done {
            return Ok(results);
        }
        results.push(read_multi_result(header.kind, is_allowed, r)?);
    }
}

fn read_multi_result(kind: i32, is_allowed: fn(OpCode) -> bool, r: &mut Reader<'_>) -> Result<MultiResult, ProtoError> {
    if kind == MultiHeader::ERROR {
        return Ok(MultiResult::Err(Code(r.i32("multi result err")?)));
    }
    let op = OpCode::try_from(kind)?;
    if !is_allowed(op) {
        return Err(ProtoError::NotInMulti { op: format!("{op:?}") });
    }
    Response::read(op, r).map(MultiResult::Ok)
}
