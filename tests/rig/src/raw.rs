//! A witness: a blocking ZooKeeper client in plain `std::net` that shares no code with the client under test.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A session of its own, for looking at the server's state and changing it from outside.
///
/// It sends no heartbeats: ask for a timeout that outlasts the test. Dropping it closes the session. Methods panic when
/// the connection breaks, and return ZooKeeper's (negative) error code where a test may want to see it.
pub struct Raw {
    stream: TcpStream,
    session_id: i64,
    password: Vec<u8>,
    xid: i32,
}

/// The part of a node's stat that tests look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawStat {
    /// The transaction that created the node.
    pub czxid: i64,
    /// The transaction that last changed its data.
    pub mzxid: i64,
    /// How often its data was changed.
    pub version: i32,
    /// How often its children were changed.
    pub cversion: i32,
    /// The session that owns the node, 0 if it is not ephemeral.
    pub ephemeral_owner: i64,
    /// The number of its children.
    pub children: i32,
}

/// The flags of a create request.
pub mod flags {
    /// A plain node that stays.
    pub const PERSISTENT: i32 = 0;
    /// A node that goes with its session.
    pub const EPHEMERAL: i32 = 1;
    /// A node that stays, with a number appended to its name.
    pub const SEQUENTIAL: i32 = 2;
    /// A node that goes with its session, with a number appended to its name.
    pub const EPHEMERAL_SEQUENTIAL: i32 = 3;
    /// A node that the server removes after its last child.
    pub const CONTAINER: i32 = 4;
}

const NO_NODE: i32 = -101;
const ALL_PERMISSIONS: i32 = 31;
const CREATE: i32 = 4;
const READ: i32 = 1;

impl Raw {
    /// Opens a new session.
    pub fn connect(address: &str, timeout_ms: i32) -> Self {
        Self::attach(address, timeout_ms, 0, &[0; 16]).expect("the server gives out a new session")
    }

    /// Takes over an existing session, on a new connection. `None` if the server says that the session has expired.
    pub fn attach(address: &str, timeout_ms: i32, session_id: i64, password: &[u8]) -> Option<Self> {
        let mut stream = TcpStream::connect(address).expect("connect to ZooKeeper");
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let (protocol, last_zxid, read_only) = (0_i32, 0_i64, false);
        let request = Body::default().int(protocol).long(last_zxid).int(timeout_ms).long(session_id);
        send(&mut stream, request.buffer(password).bool(read_only)).expect("send the connect request");
        let mut reply = receive(&mut stream).expect("read the connect response");
        let (_protocol, negotiated) = (reply.int(), reply.int());
        let (session_id, password) = (reply.long(), reply.buffer());
        (negotiated > 0).then_some(Self { stream, session_id, password, xid: 0 })
    }

    /// Ends a session from outside, as its owner would: its ephemeral nodes go at once.
    pub fn close_session(address: &str, session_id: i64, password: &[u8]) {
        if let Some(session) = Self::attach(address, 60_000, session_id, password) {
            session.close();
        }
    }

    /// This session's id.
    pub fn session_id(&self) -> i64 {
        self.session_id
    }

    /// This session's password.
    pub fn password(&self) -> &[u8] {
        &self.password
    }

    /// The names of a node's children, sorted; `None` without the node.
    pub fn children(&mut self, path: &str) -> Option<Vec<String>> {
        let mut reply = found(self.call(8, Body::default().string(path).bool(false)))?;
        let mut names: Vec<String> = (0..reply.int()).map(|_| reply.string()).collect();
        names.sort();
        Some(names)
    }

    /// Creates a node that anyone may do anything with, and returns its path: with the number, if it is sequential.
    pub fn create(&mut self, path: &str, data: &[u8], flags: i32) -> Result<String, i32> {
        self.create_for(path, data, flags, ALL_PERMISSIONS)
    }

    /// Creates a node that nobody may read, though anybody may delete it.
    pub fn create_unreadable(&mut self, path: &str, flags: i32) -> Result<String, i32> {
        self.create_for(path, &[], flags, ALL_PERMISSIONS & !READ)
    }

    fn create_for(&mut self, path: &str, data: &[u8], flags: i32, permissions: i32) -> Result<String, i32> {
        let opcode = if flags == flags::CONTAINER { 19 } else { 15 };
        let request = Body::default().string(path).buffer(data);
        let acl = request.int(1).int(permissions).string("world").string("anyone");
        self.call(opcode, acl.int(flags)).map(|mut reply| reply.string())
    }

    /// Forbids all clients to create nodes below this one. Everything else stays allowed.
    pub fn forbid_creation(&mut self, path: &str) {
        let request = Body::default().string(path).int(1).int(ALL_PERMISSIONS & !CREATE);
        let any_version = -1;
        self.call(7, request.string("world").string("anyone").int(any_version)).map(drop).unwrap();
    }

    /// Deletes a node, whatever its version. 0, or ZooKeeper's error code.
    pub fn delete(&mut self, path: &str) -> i32 {
        let any_version = -1;
        self.call(2, Body::default().string(path).int(any_version)).err().unwrap_or(0)
    }

    /// Replaces a node's data, whatever its version. 0, or ZooKeeper's error code.
    pub fn set_data(&mut self, path: &str, data: &[u8]) -> i32 {
        let any_version = -1;
        self.call(5, Body::default().string(path).buffer(data).int(any_version)).err().unwrap_or(0)
    }

    /// A node's data; `None` without the node.
    pub fn data(&mut self, path: &str) -> Option<Vec<u8>> {
        found(self.call(4, Body::default().string(path).bool(false))).map(|mut reply| reply.buffer())
    }

    /// A node's stat; `None` without the node.
    pub fn stat(&mut self, path: &str) -> Option<RawStat> {
        found(self.call(3, Body::default().string(path).bool(false))).map(|mut reply| reply.stat())
    }

    /// Who may do what with a node: `permissions scheme:id`; `None` without the node.
    pub fn acl(&mut self, path: &str) -> Option<Vec<String>> {
        let mut reply = found(self.call(6, Body::default().string(path)))?;
        let count = reply.int();
        let entry = |_| format!("{} {}:{}", reply.int(), reply.string(), reply.string());
        Some((0..count).map(entry).collect())
    }

    /// Whether there is such a node.
    pub fn exists(&mut self, path: &str) -> bool {
        self.stat(path).is_some()
    }

    /// Closes the session and waits until the server has done so.
    pub fn close(mut self) {
        self.call(-11, Body::default()).expect("close the session");
    }

    /// Drops the connection and leaves the session, with its ephemeral nodes, to expire.
    pub fn abandon(self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    fn call(&mut self, opcode: i32, body: Body) -> Result<Reply, i32> {
        self.xid += 1;
        let request = Body::default().int(self.xid).int(opcode).append(body);
        send(&mut self.stream, request).expect("send a request to ZooKeeper");
        loop {
            let mut reply = receive(&mut self.stream).expect("read a reply of ZooKeeper");
            let (xid, _zxid, error) = (reply.int(), reply.long(), reply.int());
            // Anything else is a notification.
            if xid == self.xid {
                return if error == 0 { Ok(reply) } else { Err(error) };
            }
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // The server may be stopped or paused: tell it, but do not wait. After `close` or `abandon` nobody listens.
        let _ = send(&mut self.stream, Body::default().int(self.xid + 1).int(-11));
    }
}

#[track_caller]
fn found(result: Result<Reply, i32>) -> Option<Reply> {
    match result {
        Ok(reply) => Some(reply),
        Err(NO_NODE) => None,
        Err(error) => panic!("ZooKeeper answered with error {error}"),
    }
}

fn send(stream: &mut TcpStream, body: Body) -> io::Result<()> {
    stream.write_all(&Body::default().buffer(&body.0).0)
}

fn receive(stream: &mut TcpStream) -> io::Result<Reply> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body)?;
    Ok(Reply(io::Cursor::new(body)))
}

/// A request under construction, in ZooKeeper's big-endian records.
#[derive(Default)]
struct Body(Vec<u8>);

impl Body {
    fn bool(self, value: bool) -> Self {
        self.raw(&[u8::from(value)])
    }

    fn int(self, value: i32) -> Self {
        self.raw(&value.to_be_bytes())
    }

    fn long(self, value: i64) -> Self {
        self.raw(&value.to_be_bytes())
    }

    fn buffer(self, bytes: &[u8]) -> Self {
        self.int(i32::try_from(bytes.len()).unwrap()).raw(bytes)
    }

    fn string(self, text: &str) -> Self {
        self.buffer(text.as_bytes())
    }

    fn append(self, body: Self) -> Self {
        self.raw(&body.0)
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// A reply, read from front to back.
struct Reply(io::Cursor<Vec<u8>>);

impl Reply {
    fn int(&mut self) -> i32 {
        i32::from_be_bytes(self.bytes())
    }

    fn long(&mut self) -> i64 {
        i64::from_be_bytes(self.bytes())
    }

    /// A buffer; ZooKeeper's null (length -1) is read as an empty one.
    fn buffer(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.int()).unwrap_or(0)];
        self.0.read_exact(&mut bytes).expect("a whole reply");
        bytes
    }

    fn string(&mut self) -> String {
        String::from_utf8(self.buffer()).unwrap()
    }

    fn stat(&mut self) -> RawStat {
        let (czxid, mzxid, _ctime, _mtime) = (self.long(), self.long(), self.long(), self.long());
        let (version, cversion, _aversion) = (self.int(), self.int(), self.int());
        let (ephemeral_owner, _data_length, children) = (self.long(), self.int(), self.int());
        RawStat { czxid, mzxid, version, cversion, ephemeral_owner, children }
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).expect("a whole reply");
        bytes
    }
}
