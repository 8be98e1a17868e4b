//! Records for a node's metadata, for access lists and for the session handshake.

use std::fmt;

use super::ProtoError;
use super::codec::{Reader, Writer, frame};

/// The metadata of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stat {
    /// The zxid of the transaction that created the node.
    pub czxid: i64,
    /// The zxid of the transaction that last changed the node's data.
    pub mzxid: i64,
    /// The creation time of the node in milliseconds since the Unix epoch, according to the leader's clock.
    pub ctime: i64,
    /// The time of the last change of the data in milliseconds since the Unix epoch, according to the leader's clock.
    pub mtime: i64,
    /// The number of times that the data of the node has changed.
    pub version: i32,
    /// The number of times that a child was created or deleted.
    pub cversion: i32,
    /// The number of times that the access list of the node has changed.
    pub aversion: i32,
    /// The id of the session that owns an ephemeral node, or 0 for other nodes.
    pub ephemeral_owner: i64,
    /// The length of the data in bytes.
    pub data_length: i32,
    /// The number of children.
    pub num_children: i32,
    /// The zxid of the transaction that last changed the set of children.
    pub pzxid: i64,
}

impl Stat {
    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, ProtoError> {
        Ok(Self {
            czxid: r.i64("stat czxid")?,
            mzxid: r.i64("stat mzxid")?,
            ctime: r.i64("stat ctime")?,
            mtime: r.i64("stat mtime")?,
            version: r.i32("stat version")?,
            cversion: r.i32("stat cversion")?,
            aversion: r.i32("stat aversion")?,
            ephemeral_owner: r.i64("stat ephemeral owner")?,
            data_length: r.i32("stat data length")?,
            num_children: r.i32("stat number of children")?,
            pzxid: r.i64("stat pzxid")?,
        })
    }

    pub(super) fn write(&self, w: &mut Writer<'_>) {
        w.i64(self.czxid);
        w.i64(self.mzxid);
        w.i64(self.ctime);
        w.i64(self.mtime);
        w.i32(self.version);
        w.i32(self.cversion);
        w.i32(self.aversion);
        w.i64(self.ephemeral_owner);
        w.i32(self.data_length);
        w.i32(self.num_children);
        w.i64(self.pzxid);
    }
}

/// One entry of an access list, which consists of an identity and its permissions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Acl {
    /// The permissions, as bits: 1 read, 2 write, 4 create, 8 delete, 16 administer.
    pub perms: i32,
    /// The authentication scheme that defines the format of `id`, such as `world` or `digest`.
    pub scheme: String,
    /// The identity that has the permissions.
    pub id: String,
}

impl Acl {
    /// The size in bytes of the smallest entry, which consists of the permissions and two empty strings.
    pub(super) const MIN_BYTES: usize = 12;
    const ALL_PERMS: i32 = 31;

    /// Returns the access list that gives all permissions to everyone.
    pub fn open() -> Vec<Self> {
        vec![Self { perms: Self::ALL_PERMS, scheme: "world".to_owned(), id: "anyone".to_owned() }]
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, ProtoError> {
        Ok(Self { perms: r.i32("acl perms")?, scheme: r.string("acl scheme")?, id: r.string("acl id")? })
    }

    pub(super) fn write(&self, w: &mut Writer<'_>) {
        w.i32(self.perms);
        w.string(&self.scheme);
        w.string(&self.id);
    }
}

/// The first frame of a connection. The record requests a new session or resumes an existing session.
///
/// The `Debug` output does not contain the password, because the password and the session id are enough to take over a
/// session.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The version of the protocol, always 0.
    pub protocol_version: i32,
    /// The largest zxid that the client has seen. A server that has not reached this zxid refuses the client.
    pub last_zxid_seen: i64,
    /// The requested session timeout, in milliseconds.
    pub timeout_ms: i32,
    /// The id of the session to resume. The value 0 requests a new session.
    pub session_id: i64,
    /// The password of the session to resume. If the client requests a new session, the password consists of zeros.
    pub password: Vec<u8>,
    /// True if the client accepts a read-only server.
    pub read_only: bool,
}

impl ConnectRequest {
    /// Appends a complete frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        frame(out, |w| {
            w.i32(self.protocol_version);
            w.i64(self.last_zxid_seen);
            w.i32(self.timeout_ms);
            w.i64(self.session_id);
            w.buffer(&self.password);
            w.bool(self.read_only);
        });
    }

    /// Decodes the body of a frame. Like ZooKeeper's servers, this function ignores bytes after the record.
    pub fn decode(body: &[u8]) -> Result<Self, ProtoError> {
        let mut r = Reader::new(body);
        Ok(Self {
            protocol_version: r.i32("connect request protocol version")?,
            last_zxid_seen: r.i64("connect request last zxid")?,
            timeout_ms: r.i32("connect request timeout")?,
            session_id: r.i64("connect request session id")?,
            password: r.buffer("connect request password")?,
            read_only: read_only(&mut r, "connect request read-only flag")?,
        })
    }
}

impl fmt::Debug for ConnectRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectRequest")
            .field("protocol_version", &self.protocol_version)
            .field("last_zxid_seen", &self.last_zxid_seen)
            .field("timeout_ms", &self.timeout_ms)
            .field("session_id", &self.session_id)
            .field("read_only", &self.read_only)
            .finish_non_exhaustive()
    }
}

/// The reply to a [`ConnectRequest`]. The server accepts the session, or reports that the session has expired.
///
/// The `Debug` output does not contain the password.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectResponse {
    /// The version of the protocol, always 0.
    pub protocol_version: i32,
    /// The negotiated session timeout in milliseconds. The value is 0 or less if the requested session has expired.
    pub timeout_ms: i32,
    /// The session id, or 0 if the requested session has expired.
    pub session_id: i64,
    /// The password that a client needs to resume the session.
    pub password: Vec<u8>,
    /// True if the server is read-only.
    pub read_only: bool,
}

impl ConnectResponse {
    /// Appends a complete frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        frame(out, |w| {
            w.i32(self.protocol_version);
            w.i32(self.timeout_ms);
            w.i64(self.session_id);
            w.buffer(&self.password);
            w.bool(self.read_only);
        });
    }

    /// Decodes the body of a frame.
    pub fn decode(body: &[u8]) -> Result<Self, ProtoError> {
        let mut r = Reader::new(body);
        let response = Self {
            protocol_version: r.i32("connect response protocol version")?,
            timeout_ms: r.i32("connect response timeout")?,
            session_id: r.i64("connect response session id")?,
            password: r.buffer("connect response password")?,
            read_only: read_only(&mut r, "connect response read-only flag")?,
        };
        r.finish("connect response")?;
        Ok(response)
    }
}

impl fmt::Debug for ConnectResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectResponse")
            .field("protocol_version", &self.protocol_version)
            .field("timeout_ms", &self.timeout_ms)
            .field("session_id", &self.session_id)
            .field("read_only", &self.read_only)
            .finish_non_exhaustive()
    }
}

/// Reads the read-only flag. Old clients and servers do not send this flag. If the flag is missing, the function
/// returns false.
fn read_only(r: &mut Reader<'_>, what: &'static str) -> Result<bool, ProtoError> {
    if r.is_empty() { Ok(false) } else { r.bool(what) }
}
