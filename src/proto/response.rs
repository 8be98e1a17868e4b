//! What a server answers.

use super::codec::{Reader, Writer, frame, try_frame};
use super::request::{MultiHeader, fits_multi, fits_multi_read};
use super::{Acl, Code, OpCode, ProtoError, Stat};

/// What every frame from the server starts with, once the session is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The request this answers, or one of the `XID_` constants.
    pub xid: i32,
    /// The newest transaction the server has seen.
    pub zxid: i64,
    /// How it went; nothing follows the header of an error.
    pub err: Code,
}

impl ReplyHeader {
    /// How many bytes it takes.
    pub const LENGTH: usize = 16;

    /// Reads the front of a frame's body, and returns what is behind it.
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

/// The body of a reply to a request that went well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// Nothing but success.
    Empty,
    /// To a check, which is part of a multi: the version is the one asked for.
    Checked,
    /// To addWatch. Servers put a code behind the header that has said the same already; it is always 0.
    WatchAdded,
    /// To create, the node's actual path; to sync, the path it was sent.
    Path(String),
    /// To create2, createContainer and createTTL.
    Create2 {
        /// The node's actual path.
        path: String,
        /// Its stat.
        stat: Stat,
    },
    /// To exists, setData and setACL.
    Stat(Stat),
    /// To getData.
    Data {
        /// The node's data, or null.
        data: Option<Vec<u8>>,
        /// Its stat.
        stat: Stat,
    },
    /// To getACL.
    Acl {
        /// The node's access list.
        acl: Vec<Acl>,
        /// Its stat.
        stat: Stat,
    },
    /// To getChildren: names, not paths.
    Children(Vec<String>),
    /// To getEphemerals.
    Paths(Vec<String>),
    /// To getAllChildrenNumber.
    Count(i32),
    /// To whoAmI.
    Identities(Vec<Identity>),
    /// To getChildren2.
    Children2 {
        /// The children's names, not paths.
        children: Vec<String>,
        /// The parent's stat.
        stat: Stat,
    },
    /// To multi, one result for each operation.
    ///
    /// A multi that failed has only errors in it, while the header of its reply says success. In a multi of reads each
    /// succeeds or fails for itself.
    Multi(Vec<MultiResult>),
}

/// Who a session is taken for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// How `id` is to be understood, such as `ip` or `digest`.
    pub scheme: String,
    /// Who it is; of credentials the part that is no secret.
    pub id: String,
}

impl Identity {
    /// Fewest bytes one takes: two empty strings.
    const MIN_BYTES: usize = 8;
}

/// How one operation of a multi went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MultiResult {
    /// It was done: `Path`, `Create2`, `Stat`, `Checked`, or `Empty` for a delete; of reads `Data` and `Children`.
    Ok(Response),
    /// It was not done: the operation at fault has the reason, those before it [`Code::OK`], those after it
    /// [`Code::RUNTIME_INCONSISTENCY`].
    Err(Code),
}

impl Response {
    /// Reads what follows the [`ReplyHeader`] of a success, as the answer to a request of type `op`.
    pub fn decode(op: OpCode, body: &[u8]) -> Result<Self, ProtoError> {
        let mut r = Reader::new(body);
        let response = Self::read(op, &mut r)?;
        r.finish("reply")?;
        Ok(response)
    }

    /// Appends a whole frame: length, header of a success, body.
    ///
    /// Fails, and leaves `out` as it was, on a multi result that cannot be one and on a reply too long for a frame.
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
            OpCode::CountDescendants => Self::Count(r.i32("reply count")?),
            OpCode::WhoAmI => Self::Identities(r.vector("reply identities", Identity::MIN_BYTES, |r| {
                Ok(Identity { scheme: r.string("identity scheme")?, id: r.string("identity id")? })
            })?),
            OpCode::Multi => Self::Multi(read_multi(fits_multi, r)?),
            OpCode::MultiRead => Self::Multi(read_multi(fits_multi_read, r)?),
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
            Self::Count(count) => w.i32(*count),
            Self::Identities(identities) => w.vector(identities, |w, identity| {
                w.string(&identity.scheme);
                w.string(&identity.id);
            }),
            Self::Children2 { children, stat } => {
                w.strings(children);
                stat.write(w);
            }
            Self::Multi(results) => return write_multi(results, w),
        }
        Ok(())
    }

    /// The type a multi reply gives it.
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
            Self::Count(_) => "Count",
            Self::Identities(_) => "Identities",
            Self::Children2 { .. } => "Children2",
            Self::Multi(_) => "Multi",
        };
        Err(ProtoError::NotInMultiReply { response })
    }
}

/// Appends a whole frame: the reply to a request that failed, which is a header and no more.
pub fn encode_error(xid: i32, zxid: i64, err: Code, out: &mut Vec<u8>) {
    frame(out, |w| ReplyHeader { xid, zxid, err }.write(w));
}

/// Without the code, fine too.
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

fn read_multi(fits: fn(OpCode) -> bool, r: &mut Reader<'_>) -> Result<Vec<MultiResult>, ProtoError> {
    let mut results = Vec::new();
    loop {
        let header = MultiHeader::read(r)?;
        if header.done {
            return Ok(results);
        }
        results.push(read_multi_result(header.kind, fits, r)?);
    }
}

fn read_multi_result(kind: i32, fits: fn(OpCode) -> bool, r: &mut Reader<'_>) -> Result<MultiResult, ProtoError> {
    if kind == MultiHeader::ERROR {
        return Ok(MultiResult::Err(Code(r.i32("multi result err")?)));
    }
    let op = OpCode::try_from(kind)?;
    if !fits(op) {
        return Err(ProtoError::NotInMulti { op });
    }
    Response::read(op, r).map(MultiResult::Ok)
}
