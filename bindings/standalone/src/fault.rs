//! Faults: what a test wants to go wrong.

use zklock::proto::OpCode;
use zklock::{Error, Result, Status};
use zklock_abi::arg;
use zklock_abi::guard::status;
use zklock_abi::handle;
use zklock_standalone::{Server, Target};

use crate::server::zkl_standalone;
use crate::zkl_status;

/// Creates a node; older clients do.
pub const ZKL_OP_CREATE: i32 = 1;
/// Deletes a node: how a lock leaves the queue.
pub const ZKL_OP_DELETE: i32 = 2;
/// Reads a node, and watches it: how a lock waits.
pub const ZKL_OP_GET_DATA: i32 = 4;
/// Keeps an idle session alive.
pub const ZKL_OP_PING: i32 = 11;
/// Lists the nodes of a directory: how a lock finds its place.
pub const ZKL_OP_GET_CHILDREN2: i32 = 12;
/// Does several things at once: how a hold is kept alive.
pub const ZKL_OP_MULTI: i32 = 14;
/// Creates a node: how a lock joins the queue.
pub const ZKL_OP_CREATE2: i32 = 15;
/// Creates a directory that goes when it is empty.
pub const ZKL_OP_CREATE_CONTAINER: i32 = 19;

const _: () = {
    assert!(ZKL_OP_CREATE == OpCode::Create as i32);
    assert!(ZKL_OP_DELETE == OpCode::Delete as i32);
    assert!(ZKL_OP_GET_DATA == OpCode::GetData as i32);
    assert!(ZKL_OP_PING == OpCode::Ping as i32);
    assert!(ZKL_OP_GET_CHILDREN2 == OpCode::GetChildren2 as i32);
    assert!(ZKL_OP_MULTI == OpCode::Multi as i32);
    assert!(ZKL_OP_CREATE2 == OpCode::Create2 as i32);
    assert!(ZKL_OP_CREATE_CONTAINER == OpCode::CreateContainer as i32);
};

/// Ends a session at once, as if it had been silent for too long: its locks are lost.
///
/// Returns: ZKL_OK, ZKL_E_INVALID where there is no such session, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_expire(server: *mut zkl_standalone, session_id: i64) -> zkl_status {
    tell(server, |server| server.expire(target(session_id)))
}

/// Resets a client's connection. The client may come back, and its session lives on.
///
/// Returns: as zkl_standalone_expire.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_cut(server: *mut zkl_standalone, session_id: i64) -> zkl_status {
    tell(server, |server| server.cut(target(session_id)))
}

/// Lets a client's connection stand still, and those that it makes later: what is sent, either way, arrives when it is thawed.
/// The server hears nothing of the client, so the session expires in time.
///
/// Returns: as zkl_standalone_expire.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_freeze(server: *mut zkl_standalone, session_id: i64) -> zkl_status {
    tell(server, |server| server.freeze(target(session_id)))
}

/// Ends zkl_standalone_freeze, also of a session that has expired meanwhile: its client can now be told.
///
/// Returns: as zkl_standalone_expire.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_thaw(server: *mut zkl_standalone, session_id: i64) -> zkl_status {
    tell(server, |server| server.thaw(target(session_id)))
}

/// Delays everything that a client is sent from now on, by this many milliseconds; 0 ends it.
///
/// Returns: as zkl_standalone_expire; ZKL_E_INVALID for a negative delay.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_delay_ms(server: *mut zkl_standalone, session_id: i64, ms: i32) -> zkl_status {
    tell(server, |server| server.delay(target(session_id), arg::milliseconds("delay", ms)?))
}

/// Lets the reply to a client's next request of this kind be lost, and its connection with it, though the request is carried
/// out. The kind is a ZKL_OP_*, or any other of ZooKeeper's numbers for a request.
///
/// Returns: as zkl_standalone_expire; ZKL_E_INVALID for a number that is no request.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_lose_reply(server: *mut zkl_standalone, session_id: i64, op: i32) -> zkl_status {
    tell(server, |server| server.lose_reply(target(session_id), request(op)?))
}

/// Closes all connections, and takes none until zkl_standalone_restart. Meanwhile no session expires.
///
/// Returns: ZKL_OK, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_halt(server: *mut zkl_standalone) -> zkl_status {
    tell(server, Server::halt)
}

/// Closes all connections and goes on, with the same data at the same address. All sessions have their whole time once more.
///
/// Returns: as zkl_standalone_halt; ZKL_E_SERVER where somebody else listens there now.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_restart(server: *mut zkl_standalone) -> zkl_status {
    tell(server, Server::restart)
}

fn tell(server: *const zkl_standalone, fault: impl FnOnce(&Server) -> Result<()>) -> zkl_status {
    status(|| fault(&handle::get(server)?.server))
}

const fn target(session_id: i64) -> Target {
    if session_id == 0 { Target::All } else { Target::Session(session_id) }
}

fn request(op: i32) -> Result<OpCode> {
    OpCode::try_from(op).map_err(|_| Error::new(Status::Invalid, format!("op {op} is no request of ZooKeeper's")))
}
