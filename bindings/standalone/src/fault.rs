//! Faults, which are failures that a test causes on purpose. This module must not keep faults: the server keeps them.

use zklock_abi::arg;
use zklock_abi::boundary::status;
use zklock_abi::handle;
use zklock_base::error::{Error, Result, Status};
use zklock_proto::OpCode;
use zklock_standalone::{Server, Target};

use crate::server::zkl_standalone;
use crate::zkl_status;

/// The request that older clients send to create a node.
pub const ZKL_OP_CREATE: i32 = 1;
/// The request that deletes a node. Releasing a lock sends this request.
pub const ZKL_OP_DELETE: i32 = 2;
/// The request that reads a node and sets a watch on the node. An acquire that waits for a lock sends this request.
pub const ZKL_OP_GET_DATA: i32 = 4;
/// The request that keeps an idle session alive.
pub const ZKL_OP_PING: i32 = 11;
/// The request that lists the children of a node. An acquire sends this request to find the position of its node in the queue.
pub const ZKL_OP_GET_CHILDREN2: i32 = 12;
/// The request that executes several operations in one transaction. A client that has holds sends this request to extend its
/// session lease.
pub const ZKL_OP_MULTI: i32 = 14;
/// The request that creates a node. An acquire of a lock sends this request to join the queue.
pub const ZKL_OP_CREATE2: i32 = 15;
/// The request that creates a directory. ZooKeeper deletes the directory when the directory is empty.
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

/// Ends a session at once. A real server ends a session after it has received nothing from the client for the session timeout.
/// All locks of the session are lost.
///
/// Returns: ZKL_OK. On failure:
/// - ZKL_E_INVALID if there is no such session.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
///
/// Blocks for a short time, until the fault takes effect. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_expire(server: *mut zkl_standalone, session_id: i64) -> zkl_status {
    apply_fault(server, |server| server.expire(target(session_id)))
}

/// Resets the connection of a client. The session of the client continues, and the client may connect again.
///
/// Returns: the statuses of zkl_standalone_expire.
/// Blocks for a short time, until the fault takes effect. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_cut(server: *mut zkl_standalone, session_id: i64) -> zkl_status {
    apply_fault(server, |server| server.cut(target(session_id)))
}

/// Freezes the connection of a client, and all connections that the client makes later. A frozen connection delivers no data in
/// either direction until the program calls zkl_standalone_thaw. The server receives nothing from a frozen client, so the
/// session expires after its timeout.
///
/// Returns: the statuses of zkl_standalone_expire.
/// Blocks for a short time, until the fault takes effect. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_freeze(server: *mut zkl_standalone, session_id: i64) -> zkl_status {
    apply_fault(server, |server| server.freeze(target(session_id)))
}

/// Ends the effect of zkl_standalone_freeze. If the session has expired while the connection was frozen, the server now reports
/// the expiry to the client.
///
/// Returns: the statuses of zkl_standalone_expire.
/// Blocks for a short time, until the fault takes effect. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_thaw(server: *mut zkl_standalone, session_id: i64) -> zkl_status {
    apply_fault(server, |server| server.thaw(target(session_id)))
}

/// Delays everything that the server sends to a client after this call. The parameter `ms` is the delay in milliseconds. A
/// value of 0 ends the delay.
///
/// Returns: the statuses of zkl_standalone_expire. The call also fails with ZKL_E_INVALID if `ms` is negative.
/// Blocks for a short time, until the fault takes effect. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_delay_ms(server: *mut zkl_standalone, session_id: i64, ms: i32) -> zkl_status {
    apply_fault(server, |server| server.delay(target(session_id), arg::milliseconds("delay", ms, 0)?))
}

/// Drops the reply to a client's next request of the given kind, and resets this client's connection. The server still
/// executes the request. The parameter `op` is a ZKL_OP_*, or another number that ZooKeeper uses for a kind of request. If
/// `session_id` is 0, the server drops only the reply to the first client that sends such a request.
///
/// Returns: the statuses of zkl_standalone_expire. The call also fails with ZKL_E_INVALID if `op` is not a request number.
/// Blocks for a short time, until the fault takes effect. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_lose_reply(server: *mut zkl_standalone, session_id: i64, op: i32) -> zkl_status {
    apply_fault(server, |server| server.lose_reply(target(session_id), request(op)?))
}

/// Closes all connections, and accepts no new connections until the program calls zkl_standalone_restart. No session expires
/// while the server is halted.
///
/// Returns: ZKL_OK, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
/// Blocks for a short time, until the fault takes effect. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_halt(server: *mut zkl_standalone) -> zkl_status {
    apply_fault(server, Server::halt)
}

/// Closes all connections, and accepts new connections at the same address. The server keeps its data. Every session timeout
/// restarts.
///
/// Returns: the statuses of zkl_standalone_halt. The call also fails with ZKL_E_SERVER if another program listens on the
/// address.
/// Blocks for a short time, until the fault takes effect. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_restart(server: *mut zkl_standalone) -> zkl_status {
    apply_fault(server, Server::restart)
}

fn apply_fault(server: *const zkl_standalone, fault: impl FnOnce(&Server) -> Result<()>) -> zkl_status {
    status(|| fault(&handle::get(server)?.server))
}

const fn target(session_id: i64) -> Target {
    if session_id == 0 { Target::All } else { Target::Session(session_id) }
}

fn request(op: i32) -> Result<OpCode> {
    OpCode::try_from(op)
        .map_err(|_| Error::new(Status::Invalid, format!("op is {op}; expected the number of a ZooKeeper request")))
}
