//! The part of ZooKeeper's protocol that a floor needs, on a blocking socket. Requests are collected and sent in one
//! write.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// The type of a request, with ZooKeeper's number.
#[derive(Clone, Copy)]
pub(crate) enum Op {
    Create = 1,
    Delete = 2,
    GetData = 4,
    GetChildren = 8,
    Multi = 14,
    AddWatch = 106,
    CloseSession = -11,
}

/// The create mode of a node.
#[derive(Clone, Copy)]
pub(crate) enum Node {
    Persistent = 0,
    Ephemeral = 1,
    EphemeralSequential = 3,
}

/// A message from the server.
pub(crate) enum Message {
    /// A reply to the oldest request without one: its error code (0 for none) and its record.
    Reply(i32, Record),
    /// A watch has fired.
    Event(Event, String),
}

/// The event of a watched node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Created,
    Deleted,
    Other,
}

pub(crate) const OK: i32 = 0;
pub(crate) const NO_NODE: i32 = -101;
pub(crate) const NODE_EXISTS: i32 = -110;

const SESSION_TIMEOUT_MS: i32 = 60_000;
const NOTIFICATION: i32 = -1;
const ALL_PERMISSIONS: i32 = 31;
const ANY_VERSION: i32 = -1;
const PERSISTENT_RECURSIVE: i32 = 1;
/// The data of a lock node. Other libraries store the same.
const DATA: &[u8] = b"127.0.0.1";

/// A connection with its own session. It sends no heartbeats, so it must be closed within the session timeout of one
/// minute.
pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    descriptor: RawFd,
    xid: i32,
    out: Vec<u8>,
    read: Vec<u8>,
    /// The start of the next message in `read`, and the end of the received bytes.
    begin: usize,
    end: usize,
}

trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

impl Connection {
    pub(crate) fn open(address: &str) -> Self {
        let socket = connect(address);
        let descriptor = socket.as_raw_fd();
        Self::start_session(Box::new(socket), descriptor)
    }

    /// The certificate of the server must contain the host of `address`.
    pub(crate) fn open_with_tls(address: &str, config: &Arc<ClientConfig>) -> Self {
        let (host, _port) = address.rsplit_once(':').expect("a host and a port");
        let name = ServerName::try_from(host.to_owned()).expect("a name or an address");
        let tls = ClientConnection::new(Arc::clone(config), name).expect("a TLS configuration");
        let socket = connect(address);
        let descriptor = socket.as_raw_fd();
        Self::start_session(Box::new(StreamOwned::new(tls, socket)), descriptor)
    }

    fn start_session(stream: Box<dyn Stream>, descriptor: RawFd) -> Self {
        let (out, read) = (Vec::new(), vec![0; 1 << 20]);
        let mut connection = Self { stream, descriptor, xid: 0, out, read, begin: 0, end: 0 };
        let (protocol, last_zxid, session, password, read_only) = (0, 0, 0, [0; 16], 0);
        connection.frame(|out| {
            int(out, protocol);
            long(out, last_zxid);
            int(out, SESSION_TIMEOUT_MS);
            long(out, session);
            buffer(out, &password);
            out.push(read_only);
        });
        connection.flush();
        connection.next_frame();
        connection
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    pub(crate) fn create(&mut self, path: &str, node: Node) {
        self.request(Op::Create, |out| create_record(out, path, node));
    }

    pub(crate) fn delete(&mut self, path: &str) {
        self.request(Op::Delete, |out| delete_record(out, path));
    }

    pub(crate) fn list(&mut self, path: &str) {
        self.request(Op::GetChildren, |out| {
            string(out, path);
            out.push(0);
        });
    }

    /// Reads the data of a node and sets a watch. If the node does not exist, the server sets no watch.
    pub(crate) fn watch(&mut self, path: &str) {
        self.request(Op::GetData, |out| {
            string(out, path);
            out.push(1);
        });
    }

    pub(crate) fn add_recursive_watch(&mut self, path: &str) {
        self.request(Op::AddWatch, |out| {
            string(out, path);
            int(out, PERSISTENT_RECURSIVE);
        });
    }

    /// Deletes one node and creates another in one transaction.
    pub(crate) fn replace(&mut self, old: &str, new: &str, node: Node) {
        self.request(Op::Multi, |out| {
            multi_header(out, Op::Delete as i32, false);
            delete_record(out, old);
            multi_header(out, Op::Create as i32, false);
            create_record(out, new, node);
            multi_header(out, -1, true);
        });
    }

    /// Creates a node and waits for the reply. The node may exist already.
    pub(crate) fn ensure_exists(&mut self, path: &str) {
        self.create(path, Node::Persistent);
        let error = self.call();
        assert!(error == OK || error == NODE_EXISTS, "create {path}: {error}");
    }

    /// Sends the collected requests, waits for the only reply, and returns its error code.
    pub(crate) fn call(&mut self) -> i32 {
        self.flush();
        loop {
            if let Message::Reply(error, _) = self.receive() {
                return error;
            }
        }
    }

    pub(crate) fn close(mut self) {
        self.request(Op::CloseSession, |_| ());
        self.call();
    }

    /// Sends all requests since the last flush in one write.
    pub(crate) fn flush(&mut self) {
        if !self.out.is_empty() {
            self.stream.write_all(&self.out).expect("write to the server");
            self.out.clear();
        }
    }

    /// Blocks until a message arrives, and returns it.
    pub(crate) fn receive(&mut self) -> Message {
        let mut record = self.next_frame();
        let (xid, _zxid, error) = (record.int(), record.long(), record.int());
        if xid != NOTIFICATION {
            return Message::Reply(error, record);
        }
        let (kind, _state) = (record.int(), record.int());
        let event = match kind {
            1 => Event::Created,
            2 => Event::Deleted,
            _ => Event::Other,
        };
        Message::Event(event, record.string())
    }

    /// Whether a complete message has been read already.
    pub(crate) fn has_message(&self) -> bool {
        let read = &self.read[self.begin..self.end];
        read.first_chunk().is_some_and(|&length| read.len() >= 4 + u32::from_be_bytes(length) as usize)
    }

    fn next_frame(&mut self) -> Record {
        while !self.has_message() {
            self.fill();
        }
        let length = u32::from_be_bytes(self.read[self.begin..self.begin + 4].try_into().expect("four bytes")) as usize;
        let body = self.begin + 4..self.begin + 4 + length;
        self.begin = body.end;
        Record { bytes: self.read[body].to_vec(), at: 0 }
    }

    fn fill(&mut self) {
        self.read.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        let count = self.stream.read(&mut self.read[self.end..]).expect("read from the server");
        assert!(count > 0, "the server has closed the connection");
        self.end += count;
    }

    fn request(&mut self, op: Op, record: impl FnOnce(&mut Vec<u8>)) {
        self.xid += 1;
        let xid = self.xid;
        self.frame(|out| {
            int(out, xid);
            int(out, op as i32);
            record(out);
        });
    }

    fn frame(&mut self, record: impl FnOnce(&mut Vec<u8>)) {
        let begin = self.out.len();
        int(&mut self.out, 0);
        record(&mut self.out);
        let length = u32::try_from(self.out.len() - begin - 4).expect("a small frame");
        self.out[begin..begin + 4].copy_from_slice(&length.to_be_bytes());
    }
}

fn connect(address: &str) -> TcpStream {
    let socket = TcpStream::connect(address).expect("connect to the server");
    socket.set_nodelay(true).expect("set TCP_NODELAY");
    socket
}

/// A record from the server that is decoded from front to back.
pub(crate) struct Record {
    bytes: Vec<u8>,
    at: usize,
}

impl Record {
    pub(crate) fn int(&mut self) -> i32 {
        i32::from_be_bytes(self.take(4).try_into().expect("four bytes"))
    }

    fn long(&mut self) -> i64 {
        i64::from_be_bytes(self.take(8).try_into().expect("eight bytes"))
    }

    pub(crate) fn string(&mut self) -> String {
        String::from_utf8(self.bytes().to_vec()).expect("a path in UTF-8")
    }

    /// Decodes a length and this number of bytes. ZooKeeper's null becomes an empty slice.
    pub(crate) fn bytes(&mut self) -> &[u8] {
        let length = usize::try_from(self.int()).unwrap_or(0);
        self.take(length)
    }

    /// Decodes the header of one result of a transaction. Returns the type of the result.
    pub(crate) fn multi_header(&mut self) -> i32 {
        let kind = self.int();
        let (done, error) = (1, 4);
        self.take(done + error);
        kind
    }

    fn take(&mut self, count: usize) -> &[u8] {
        let begin = self.at;
        self.at += count;
        &self.bytes[begin..self.at]
    }
}

fn create_record(out: &mut Vec<u8>, path: &str, node: Node) {
    string(out, path);
    buffer(out, DATA);
    let entries = 1;
    int(out, entries);
    int(out, ALL_PERMISSIONS);
    string(out, "world");
    string(out, "anyone");
    int(out, node as i32);
}

fn delete_record(out: &mut Vec<u8>, path: &str) {
    string(out, path);
    int(out, ANY_VERSION);
}

fn multi_header(out: &mut Vec<u8>, kind: i32, is_end: bool) {
    let error = -1;
    int(out, kind);
    out.push(u8::from(is_end));
    int(out, error);
}

fn int(out: &mut Vec<u8>, value: i32) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn long(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn string(out: &mut Vec<u8>, text: &str) {
    buffer(out, text.as_bytes());
}

fn buffer(out: &mut Vec<u8>, bytes: &[u8]) {
    int(out, i32::try_from(bytes.len()).expect("a short buffer"));
    out.extend_from_slice(bytes);
}
