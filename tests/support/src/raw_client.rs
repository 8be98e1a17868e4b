//! A blocking ZooKeeper client in plain `std::net`. It shares no code with the client under test, so that tests can use
//! it to observe the server independently.

use std::io::ErrorKind::{ConnectionReset, UnexpectedEof};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A client with its own session, to inspect and change the state of the server from outside.
///
/// It sends no heartbeats, so its session timeout must be longer than the test. Dropping it closes the session. Methods
/// panic if the connection breaks. Methods whose failure a test may expect return ZooKeeper's (negative) error code.
pub struct RawClient {
    stream: TcpStream,
    session_id: i64,
    password: Vec<u8>,
    xid: i32,
}

/// The fields of a stat that tests use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawStat {
    /// The zxid of the transaction that created the node.
    pub czxid: i64,
    /// The zxid of the transaction that last changed the data of the node.
    pub mzxid: i64,
    /// The number of changes of the data.
    pub version: i32,
    /// The number of changes of the list of children.
    pub cversion: i32,
    /// The session that owns the node, or 0 if the node is not ephemeral.
    pub ephemeral_owner: i64,
    /// The number of children.
    pub children: i32,
}

/// The flags of a create request.
pub mod flags {
    /// A persistent node.
    pub const PERSISTENT: i32 = 0;
    /// An ephemeral node.
    pub const EPHEMERAL: i32 = 1;
    /// A persistent node with a sequence number appended to its name.
    pub const SEQUENTIAL: i32 = 2;
    /// An ephemeral node with a sequence number appended to its name.
    pub const EPHEMERAL_SEQUENTIAL: i32 = 3;
    /// A container: the server deletes it after its last child.
    pub const CONTAINER: i32 = 4;
}

/// An entry of an access control list: the permissions, the scheme and the id.
pub type AclEntry<'a> = (i32, &'a str, &'a str);

/// The permissions of an access control list.
pub mod permissions {
    /// Read a node and list its children.
    pub const READ: i32 = 1;
    /// Change the data of a node.
    pub const WRITE: i32 = 2;
    /// Create children.
    pub const CREATE: i32 = 4;
    /// Delete children.
    pub const DELETE: i32 = 8;
    /// Change the access control list.
    pub const ADMIN: i32 = 16;
    /// All permissions.
    pub const ALL: i32 = 31;
}

const NO_NODE: i32 = -101;

impl RawClient {
    /// Creates a new session.
    pub fn connect(address: &str, timeout_ms: i32) -> Self {
        Self::attach(address, timeout_ms, 0, &[0; 16]).expect("the server did not create a new session")
    }

    /// Resumes an existing session on a new connection. Returns `None` if the session has expired.
    pub fn attach(address: &str, timeout_ms: i32, session_id: i64, password: &[u8]) -> Option<Self> {
        Self::try_attach(address, timeout_ms, session_id, password).expect("read the connect response")
    }

    /// Resumes an existing session as [`attach`](Self::attach) does. Fails if the server closes the connection before it
    /// answers.
    fn try_attach(address: &str, timeout_ms: i32, session_id: i64, password: &[u8]) -> io::Result<Option<Self>> {
        let mut stream = TcpStream::connect(address).expect("connect to ZooKeeper");
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (protocol, last_zxid, read_only) = (0_i32, 0_i64, false);
        let request = RequestBody::default().int(protocol).long(last_zxid).int(timeout_ms).long(session_id);
        send(&mut stream, request.buffer(password).bool(read_only)).expect("send the connect request");
        let mut reply = receive(&mut stream)?;
        let (_protocol, negotiated) = (reply.int(), reply.int());
        let (session_id, password) = (reply.long(), reply.buffer());
        Ok((negotiated > 0).then_some(Self { stream, session_id, password, xid: 0 }))
    }

    /// Closes a session on behalf of its owner. The server deletes its ephemeral nodes immediately. If the owner
    /// resumes the session before that, the server closes this connection, and the function connects again.
    pub fn close_session(address: &str, session_id: i64, password: &[u8]) {
        loop {
            let is_over = match Self::try_attach(address, 60_000, session_id, password) {
                Ok(Some(mut session)) => session.try_call(-11, RequestBody::default()).is_ok(),
                Ok(None) => true,
                Err(error) if matches!(error.kind(), UnexpectedEof | ConnectionReset) => false,
                Err(error) => panic!("read the connect response: {error}"),
            };
            if is_over {
                return;
            }
        }
    }

    /// The id of this session.
    pub fn session_id(&self) -> i64 {
        self.session_id
    }

    /// The password of this session.
    pub fn password(&self) -> &[u8] {
        &self.password
    }

    /// The sorted names of the children of a node, or `None` if the node does not exist.
    pub fn children(&mut self, path: &str) -> Option<Vec<String>> {
        let mut reply = none_if_missing(self.call(8, RequestBody::default().string(path).bool(false)))?;
        let mut names: Vec<String> = (0..reply.int()).map(|_| reply.string()).collect();
        names.sort();
        Some(names)
    }

    /// Creates a node with open access. Returns its path, which includes the sequence number of a sequential node.
    pub fn create(&mut self, path: &str, data: &[u8], flags: i32) -> Result<String, i32> {
        self.create_with_acl(path, data, flags, &[(permissions::ALL, "world", "anyone")])
    }

    /// Creates a node, and its missing ancestors as persistent nodes. Some ancestors may be containers, which the
    /// server removes while they are empty.
    pub fn create_with_ancestors(&mut self, path: &str, data: &[u8], flags: i32) -> Result<String, i32> {
        loop {
            for (end, _) in path.match_indices('/').skip(1) {
                let _ = self.create(&path[..end], b"", 0);
            }
            match self.create(path, data, flags) {
                Err(NO_NODE) => {}
                result => return result,
            }
        }
    }

    /// Creates `count` nodes without data and with open access, in transactions of a thousand.
    pub fn create_many(&mut self, path: &str, count: usize, flags: i32) {
        let (create, multi) = (1, 14);
        let acl: &[AclEntry<'_>] = &[(permissions::ALL, "world", "anyone")];
        for first in (0..count).step_by(1000) {
            let operations = (first..count.min(first + 1000)).fold(RequestBody::default(), |operations, _| {
                operations.int(create).bool(false).int(-1).string(path).buffer(b"").acl(acl).int(flags)
            });
            let mut reply = self.call(multi, operations.int(-1).bool(true).int(-1)).unwrap();
            assert_eq!(reply.int(), create, "the server refused a transaction");
        }
    }

    /// Creates a node that no client may read. Any client may delete it.
    pub fn create_unreadable(&mut self, path: &str, flags: i32) -> Result<String, i32> {
        self.create_with_acl(path, &[], flags, &[(permissions::ALL & !permissions::READ, "world", "anyone")])
    }

    /// Creates a persistent node to which only this identity has access.
    pub fn create_private(&mut self, path: &str, scheme: &str, id: &str) -> Result<String, i32> {
        self.create_with_acl(path, &[], 0, &[(permissions::ALL, scheme, id)])
    }

    /// Creates a node with an access control list. Returns its path, which includes the sequence number of a sequential
    /// node.
    pub fn create_with_acl(
        &mut self,
        path: &str,
        data: &[u8],
        flags: i32,
        acl: &[AclEntry<'_>],
    ) -> Result<String, i32> {
        let opcode = if flags == flags::CONTAINER { 19 } else { 15 };
        let request = RequestBody::default().string(path).buffer(data).acl(acl);
        self.call(opcode, request.int(flags)).map(|mut reply| reply.string())
    }

    /// Adds an identity to the connection, for example with the `digest` scheme and `user:password`.
    pub fn authenticate(&mut self, scheme: &str, credentials: &str) -> Result<(), i32> {
        const AUTH_XID: i32 = -4;
        let request = RequestBody::default().int(AUTH_XID).int(100).int(0).string(scheme).string(credentials);
        send(&mut self.stream, request).expect("send credentials to ZooKeeper");
        let mut reply = receive(&mut self.stream).expect("read the reply to the credentials");
        let (_xid, _zxid, error) = (reply.int(), reply.long(), reply.int());
        if error == 0 { Ok(()) } else { Err(error) }
    }

    /// Replaces the access control list of a node.
    pub fn set_acl(&mut self, path: &str, acl: &[AclEntry<'_>]) {
        let any_version = -1;
        self.call(7, RequestBody::default().string(path).acl(acl).int(any_version)).map(drop).unwrap();
    }

    /// Forbids all clients to create children of this node. All other permissions remain.
    pub fn forbid_creation(&mut self, path: &str) {
        self.set_acl(path, &[(permissions::ALL & !permissions::CREATE, "world", "anyone")]);
    }

    /// Deletes a node of any version. Returns 0 or ZooKeeper's error code.
    pub fn delete(&mut self, path: &str) -> i32 {
        let any_version = -1;
        self.call(2, RequestBody::default().string(path).int(any_version)).err().unwrap_or(0)
    }

    /// Replaces the data of a node of any version. Returns 0 or ZooKeeper's error code.
    pub fn set_data(&mut self, path: &str, data: &[u8]) -> i32 {
        let any_version = -1;
        self.call(5, RequestBody::default().string(path).buffer(data).int(any_version)).err().unwrap_or(0)
    }

    /// The data of a node, or `None` if the node does not exist.
    pub fn data(&mut self, path: &str) -> Option<Vec<u8>> {
        none_if_missing(self.call(4, RequestBody::default().string(path).bool(false))).map(|mut reply| reply.buffer())
    }

    /// The stat of a node, or `None` if the node does not exist.
    pub fn stat(&mut self, path: &str) -> Option<RawStat> {
        none_if_missing(self.call(3, RequestBody::default().string(path).bool(false))).map(|mut reply| reply.stat())
    }

    /// The access control list of a node as lines `permissions scheme:id`, or `None` if the node does not exist.
    pub fn acl(&mut self, path: &str) -> Option<Vec<String>> {
        let mut reply = none_if_missing(self.call(6, RequestBody::default().string(path)))?;
        let count = reply.int();
        let entry = |_| format!("{} {}:{}", reply.int(), reply.string(), reply.string());
        Some((0..count).map(entry).collect())
    }

    /// Changes the members of the ensemble. `joining` has lines like `server.4=host:port:port:participant;host:port`,
    /// and `leaving` has ids. Returns ZooKeeper's error code if the servers refuse the change, and an error if the
    /// server closes the connection.
    pub fn reconfigure(&mut self, joining: &str, leaving: &str) -> io::Result<Result<(), i32>> {
        let (reconfigure, any_version) = (16, -1);
        let members = RequestBody::default().string(joining).string(leaving).int(-1);
        Ok(self.try_call(reconfigure, members.long(any_version))?.map(drop))
    }

    /// Whether a node exists.
    pub fn exists(&mut self, path: &str) -> bool {
        self.stat(path).is_some()
    }

    /// Closes the session and waits until the server has closed it.
    pub fn close(mut self) {
        self.call(-11, RequestBody::default()).expect("close the session");
    }

    /// Closes the connection without closing the session. The session and its ephemeral nodes last until it expires.
    pub fn abandon(self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    fn call(&mut self, opcode: i32, body: RequestBody) -> Result<Reply, i32> {
        self.try_call(opcode, body).expect("a reply of ZooKeeper")
    }

    fn try_call(&mut self, opcode: i32, body: RequestBody) -> io::Result<Result<Reply, i32>> {
        self.xid += 1;
        let request = RequestBody::default().int(self.xid).int(opcode).append(body);
        send(&mut self.stream, request)?;
        loop {
            let mut reply = receive(&mut self.stream)?;
            let (xid, _zxid, error) = (reply.int(), reply.long(), reply.int());
            // Any other frame is a notification.
            if xid == self.xid {
                return Ok(if error == 0 { Ok(reply) } else { Err(error) });
            }
        }
    }
}

impl Drop for RawClient {
    fn drop(&mut self) {
        // Send the request to close the session, but do not wait: the server may be stopped or paused. After `close` or
        // `abandon`, the request has no effect.
        let _ = send(&mut self.stream, RequestBody::default().int(self.xid + 1).int(-11));
    }
}

#[track_caller]
fn none_if_missing(result: Result<Reply, i32>) -> Option<Reply> {
    match result {
        Ok(reply) => Some(reply),
        Err(NO_NODE) => None,
        Err(error) => panic!("ZooKeeper answered with error {error}"),
    }
}

fn send(stream: &mut TcpStream, body: RequestBody) -> io::Result<()> {
    stream.write_all(&RequestBody::default().buffer(&body.0).0)
}

fn receive(stream: &mut TcpStream) -> io::Result<Reply> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body)?;
    Ok(Reply(io::Cursor::new(body)))
}

/// A request under construction, encoded in ZooKeeper's big-endian records.
#[derive(Default)]
struct RequestBody(Vec<u8>);

impl RequestBody {
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

    fn acl(self, entries: &[AclEntry<'_>]) -> Self {
        let list = self.int(i32::try_from(entries.len()).unwrap());
        entries.iter().fold(list, |list, (permissions, scheme, id)| list.int(*permissions).string(scheme).string(id))
    }

    fn append(self, body: Self) -> Self {
        self.raw(&body.0)
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// A reply that is decoded from front to back.
struct Reply(io::Cursor<Vec<u8>>);

impl Reply {
    fn int(&mut self) -> i32 {
        i32::from_be_bytes(self.bytes())
    }

    fn long(&mut self) -> i64 {
        i64::from_be_bytes(self.bytes())
    }

    /// Decodes a buffer. ZooKeeper's null buffer (length -1) becomes an empty one.
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
