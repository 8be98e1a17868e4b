//! A client: one ZooKeeper session.

use std::ffi::{c_char, c_int};

use zklock::{Client, ClientState, PerProcess};
use zklock_abi::arg::{self, Output};
use zklock_abi::guard::{free, guard, status};
use zklock_abi::handle::{self, Handle, Kind, Table};

use crate::config::{self, zkl_config};
use crate::event::LockHandles;
use crate::status::zkl_status;

/// A client looks for its first session.
pub const ZKL_STATE_CONNECTING: i32 = 0;
/// Its session has a connection.
pub const ZKL_STATE_CONNECTED: i32 = 1;
/// The connection is gone; the session may still live, and another connection is being sought.
pub const ZKL_STATE_SUSPENDED: i32 = 2;
/// The session ended, and the next one has not begun.
pub const ZKL_STATE_LOST: i32 = 3;
/// The client was closed.
pub const ZKL_STATE_CLOSED: i32 = 4;

const _: () = {
    assert!(ZKL_STATE_CONNECTING == ClientState::Connecting as i32);
    assert!(ZKL_STATE_CONNECTED == ClientState::Connected as i32);
    assert!(ZKL_STATE_SUSPENDED == ClientState::Suspended as i32);
    assert!(ZKL_STATE_LOST == ClientState::Lost as i32);
    assert!(ZKL_STATE_CLOSED == ClientState::Closed as i32);
};

/// A client: one ZooKeeper session, shared by any number of locks and threads. When a session ends, the client seeks the
/// next one by itself; what was held is lost.
pub struct zkl_client(());

/// What stands behind a client.
pub struct Session {
    pub(crate) client: Client,
    /// For its events.
    pub(crate) handles: LockHandles,
}

impl Handle for zkl_client {
    type Object = Session;
    const KIND: Kind = Kind::Client;

    fn table() -> &'static Table<Session> {
        static TABLE: PerProcess<Table<Session>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

/// Connects, and waits for the session. The servers are a string like "host:2181,host:2181/chroot"; all paths are below the
/// chroot, if there is one. The config may be NULL for the defaults, and is copied. The client written to *client_out is to
/// be freed with zkl_client_free.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_SERVER if the chroot does not exist (the option chroot.create),
/// ZKL_E_DENIED if it may not be created, ZKL_E_HANDLE and ZKL_E_FORKED (of the config),
/// ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
/// Blocks until there is a session, but no longer than the connect timeout; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_client_new(
    servers: *const c_char,
    config: *const zkl_config,
    client_out: *mut *mut zkl_client,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends both for the length of the call.
        let (servers, out) = unsafe { (arg::text("servers", servers)?, Output::new("client_out", client_out)?) };
        let handles = LockHandles::default();
        let client = Client::connect(servers, &config::copy_of(config, &handles)?)?;
        out.set(handle::insert(Session { client, handles })?);
        Ok(())
    })
}

/// Ends the session and frees the client. Those that wait for its locks wake with ZKL_E_CLOSED, what is held by them is
/// given up, and later calls on them return ZKL_E_CLOSED; their handles are still to be freed, before or after. NULL is
/// allowed. In a forked child the parent's session is left alone.
///
/// The client's last events are delivered before, as far as there is time, and the rest is dropped; afterwards its callbacks are
/// not called any more. If one is being called now, that is waited for, however long it takes: do not hold a lock that it needs.
/// (A callback that frees its own client is not waited for, and is the last to be called; nor are events delivered of another client
/// that it frees on the library's thread.) Other clients' callbacks can delay it by the two seconds below, and no longer. Of a
/// client that polls its events, the last are delivered by the thread that frees it.
///
/// Returns nothing; a handle that is not live changes nothing. The last error message stays as it was.
/// Blocks until the server has confirmed and the last callback has returned, but for callbacks that take longer no more than
/// two seconds; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_client_free(client: *mut zkl_client) {
    free(|| handle::free(client, |session| session.client.close()));
}

/// How the client's session stands.
///
/// Returns: a ZKL_STATE_*, or the negative ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_client_state(client: *const zkl_client) -> i32 {
    guard(|| Ok(handle::get(client)?.client.state()? as i32))
}

/// The id of the client's session, as the servers' logs have it. It may be negative.
///
/// Returns: the id; 0 while there is none, and on failure, in which case zkl_client_state returns a negative status.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_client_session_id(client: *const zkl_client) -> i64 {
    guard(|| handle::get(client)?.client.session_id())
}

/// Calls the callbacks that wait, those of events and of revocations, one after the other, in the order in which things happened,
/// on the calling thread. Those that come to wait meanwhile are left for the next time. At any time one thread calls; where another
/// one does, or the calling one, in a callback, it goes on, and this returns 0.
///
/// Returns: how many were called; or the negative ZKL_E_INVALID where the client's config did not say zkl_config_set_poll_events;
/// ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
/// Blocks as long as the callbacks do; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_client_dispatch_events(client: *mut zkl_client) -> i32 {
    guard(|| {
        let called = handle::get(client)?.client.dispatch_events()?;
        Ok(i32::try_from(called).unwrap_or(i32::MAX))
    })
}

/// A descriptor for poll, select, epoll and event loops: readable while callbacks wait to be called (level-triggered), and when the client
/// is freed. It is the library's: not to be read, written to or closed; it is closed with the client, and epoll forgets what is closed.
/// Where another thread than the one that frees the client is to hear of it, have that one wait for a duplicate (dup) of its own.
///
/// Returns: the descriptor; or a negative status, as zkl_client_dispatch_events.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_client_event_fd(client: *const zkl_client) -> c_int {
    guard(|| handle::get(client)?.client.event_fd())
}
