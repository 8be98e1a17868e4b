//! The records that are neither request nor reply: a node's metadata, its access list, the session handshake.

use std::fmt;

use super::ProtoError;
use super::codec::{Reader, Writer, frame};

/// What the server knows about a node besides its data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stat {
    /// The transaction that created the node.
    pub czxid: i64,
    /// The transaction that last changed its data.
    pub mzxid: i64,
    /// When it was created, in milliseconds since the epoch, by the leader's clock.
    pub ctime: i64,
    /// When its data last changed, likewise.
    pub mtime: i64,
    /// How many times its data changed.
    pub version: i32,
    /// How many times its set of children changed.
    pub cversion: i32,
    /// How many times its access list changed.
    pub aversion: i32,
    /// The session that owns an ephemeral node; 0 for other nodes.
    pub ephemeral_owner: i64,
    /// How many bytes of data it has.
    pub data_length: i32,
    /// How many children it has.
    pub num_children: i32,
    /// The transaction that last changed its set of children.
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

/// One entry of an access list: who may do what.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Acl {
    /// What is allowed, as bits: 1 read, 2 write, 4 create, 8 delete, 16 administer.
    pub perms: i32,
    /// How `id` is to be understood, such as `world` or `digest`.
    pub scheme: String,
    /// Who is allowed.
    pub id: String,
}

impl Acl {
    /// Fewest bytes an entry takes: the permissions and two empty strings.
    pub(super) const MIN_BYTES: usize = 12;
    const ALL_PERMS: i32 = 31;

    /// The list that allows everyone everything.
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

/// The first frame of a connection: asks for a new session, or for an old one back.
///
/// `Debug` leaves the password out: with the session id it is all it takes to steal a session.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Always 0 so far.
    pub protocol_version: i32,
    /// The newest transaction the client has seen; a server that is behind it refuses the client.
    pub last_zxid_seen: i64,
    /// The session timeout asked for, in milliseconds.
    pub timeout_ms: i32,
    /// The session to resume; 0 for a new one.
    pub session_id: i64,
    /// The password of the session to resume; zeros for a new one.
    pub password: Vec<u8>,
    /// Whether a read-only server will do.
    pub read_only: bool,
}

impl ConnectRequest {
    /// Appends a whole frame.
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

    /// Reads the body of a frame. Bytes behind it are ignored, as by other servers.
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

/// The answer to a [`ConnectRequest`]: the session, or that there is none to be had.
///
/// `Debug` leaves the password out, as it does for the request.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectResponse {
    /// Always 0 so far.
    pub protocol_version: i32,
    /// The session timeout granted, in milliseconds; 0 or less when the session asked for has expired.
    pub timeout_ms: i32,
    /// The session; 0 when the one asked for has expired.
    pub session_id: i64,
    /// What to show to resume the session elsewhere.
    pub password: Vec<u8>,
    /// Whether the server is read-only.
    pub read_only: bool,
}

impl ConnectResponse {
    /// Appends a whole frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        frame(out, |w| {
            w.i32(self.protocol_version);
            w.i32(self.timeout_ms);
            w.i64(self.session_id);
            w.buffer(&self.password);
            w.bool(self.read_only);
        });
    }

    /// Reads the body of a frame.
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

/// The flag came to both records later than the rest, and peers from before leave it out.
fn read_only(r: &mut Reader<'_>, what: &'static str) -> Result<bool, ProtoError> {
    if r.is_empty() { Ok(false) } else { r.bool(what) }
}
