//! An operator: a client that lists queues, deletes nodes and closes the sessions of other clients.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use zklock_proto::{ConnectRequest, ConnectResponse, ReplyHeader, Request, Response};

const IO_TIMEOUT: Duration = Duration::from_secs(2);

/// A session on one server. All methods fail if this server does not answer.
pub(crate) struct Operator {
    stream: TcpStream,
    xid: i32,
}

impl Operator {
    /// Creates a session.
    pub(crate) fn connect(server: &str) -> io::Result<Self> {
        Self::attach(server, 0)
    }

    /// Resumes the session of any client.
    fn attach(server: &str, session_id: i64) -> io::Result<Self> {
        let address: SocketAddr = server.parse().map_err(io::Error::other)?;
        let mut stream = TcpStream::connect_timeout(&address, IO_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 0,
            timeout_ms: 20_000,
            session_id,
            password: password(session_id),
            read_only: false,
        };
        let mut frame = Vec::new();
        request.encode(&mut frame);
        stream.write_all(&frame)?;
        let response = ConnectResponse::decode(&receive(&mut stream)?).map_err(io::Error::other)?;
        if response.timeout_ms <= 0 {
            return Err(io::Error::other(format!("session {session_id:#x} has expired")));
        }
        Ok(Self { stream, xid: 0 })
    }

    /// Closes the session of another client.
    pub(crate) fn close_session(server: &str, session: i64) -> io::Result<()> {
        Self::attach(server, session)?.close()
    }

    /// The names of the children of a node. Empty if the node does not exist.
    pub(crate) fn children(&mut self, path: &str) -> io::Result<Vec<String>> {
        match self.request(Request::GetChildren { path: path.to_owned(), watch: false })? {
            Some(Response::Children(mut names)) => {
                names.sort_by_key(|name| name.get(name.len().saturating_sub(10)..).map(str::to_owned));
                Ok(names)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The session that owns a node, or `None` if the node does not exist.
    pub(crate) fn owner(&mut self, path: &str) -> io::Result<Option<i64>> {
        match self.request(Request::Exists { path: path.to_owned(), watch: false })? {
            Some(Response::Stat(stat)) => Ok(Some(stat.ephemeral_owner)),
            _ => Ok(None),
        }
    }

    /// Deletes a node if it exists.
    pub(crate) fn delete(&mut self, path: &str) -> io::Result<()> {
        self.request(Request::Delete { path: path.to_owned(), version: -1 }).map(drop)
    }

    /// Waits until the server has applied all transactions that were committed before.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.request(Request::Sync { path: "/".to_owned() }).map(drop)
    }

    /// Closes the session.
    pub(crate) fn close(mut self) -> io::Result<()> {
        self.request(Request::CloseSession).map(drop)
    }

    /// Sends a request. Returns `None` if the server answers with an error code.
    fn request(&mut self, request: Request) -> io::Result<Option<Response>> {
        self.xid += 1;
        let mut frame = Vec::new();
        request.encode(self.xid, &mut frame).map_err(io::Error::other)?;
        self.stream.write_all(&frame)?;
        loop {
            let reply = receive(&mut self.stream)?;
            let (header, body) = ReplyHeader::decode(&reply).map_err(io::Error::other)?;
            if header.xid != self.xid {
                continue;
            }
            if header.err.0 != 0 {
                return Ok(None);
            }
            return Response::decode(request.op(), body).map(Some).map_err(io::Error::other);
        }
    }
}

/// Computes the password of a session as the server does. The server does not store passwords: it derives each from the
/// session id with `java.util.Random` and a constant in its source code.
fn password(session: i64) -> Vec<u8> {
    const SECRET: u64 = 0xb341_5c00;
    const FACTOR: u64 = 0x5_deec_e66d;
    const MASK: u64 = (1 << 48) - 1;
    if session == 0 {
        return vec![0; 16];
    }
    let mut state = ((session.cast_unsigned() ^ SECRET) ^ FACTOR) & MASK;
    let mut next = || {
        state = state.wrapping_mul(FACTOR).wrapping_add(0xb) & MASK;
        (state >> 16) as u32
    };
    (0..4).flat_map(|_| next().to_le_bytes()).collect()
}

fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body)?;
    Ok(body)
}
