//! Clients. Each client has one ZooKeeper session. This module must not use locks and semaphores. A client only keeps the
//! handles of its locks.

use std::ffi::c_char;

use zklock::internal::PerProcess;
use zklock::{Client, ClientState};
use zklock_abi::arg::{self, Output};
use zklock_abi::boundary::{ffi_call, free, status};
use zklock_abi::handle::{self, Handle, HandleKind, Table};

use crate::config::{self, zkl_config};
use crate::lock_object::LockHandles;
use crate::status::zkl_status;

/// The client is connecting to a server and has not had a session yet.
pub const ZKL_STATE_CONNECTING: i32 = 0;
/// The client has a session and a connection.
pub const ZKL_STATE_CONNECTED: i32 = 1;
/// The client has lost its connection and is trying to connect again. Despite the lost connection, the session may still be
/// alive.
pub const ZKL_STATE_SUSPENDED: i32 = 2;
/// The session of the client has ended, and the client does not have a new session yet.
pub const ZKL_STATE_LOST: i32 = 3;
/// The client is closed.
pub const ZKL_STATE_CLOSED: i32 = 4;

const _: () = {
    assert!(ZKL_STATE_CONNECTING == ClientState::Connecting as i32);
    assert!(ZKL_STATE_CONNECTED == ClientState::Connected as i32);
    assert!(ZKL_STATE_SUSPENDED == ClientState::Suspended as i32);
    assert!(ZKL_STATE_LOST == ClientState::Lost as i32);
    assert!(ZKL_STATE_CLOSED == ClientState::Closed as i32);
};

/// A client has one ZooKeeper session, which any number of locks and threads can share. If the session ends, all holds of the
/// client are lost, and the client begins a new session.
pub struct zkl_client(());

/// The object that a `zkl_client` handle identifies.
pub struct ClientObject {
    pub(crate) client: Client,
    /// The lock handles of this client. Events of the client contain these handles.
    pub(crate) handles: LockHandles,
}

impl Handle for zkl_client {
    type Object = ClientObject;
    const KIND: HandleKind = HandleKind::Client;

    fn table() -> &'static Table<ClientObject> {
        static TABLE: PerProcess<Table<ClientObject>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

/// Makes a client, connects to a ZooKeeper server, and waits until the client has a session. The parameter `servers` is a list
/// of addresses with an optional chroot, for example "host:2181,host:2181/chroot". All paths that the client uses are relative
/// to the chroot. If `config` is NULL, the client uses the default settings. If `config` is not NULL, the client copies the
/// settings of config. The caller must free the new client, `*client_out`, with zkl_client_free.
///
/// Returns: ZKL_OK if the client has a session. On failure:
/// - ZKL_E_INVALID if an argument is not valid, or a file with credentials or certificates is not usable.
/// - ZKL_E_CONNECTION if no server accepted the client within the connect timeout.
/// - ZKL_E_AUTH if a server refused the credentials, a callback for credentials failed, or the client or a server refused a
///   certificate.
/// - ZKL_E_SERVER if the chroot does not exist and the option chroot.create is off.
/// - ZKL_E_DENIED if an access control list does not allow the client to create the chroot.
/// - ZKL_E_HANDLE or ZKL_E_FORKED if `config` is not a live config of this process.
/// - Other failures: ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
///
/// Blocks until the client has a session, but no longer than the connect timeout. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_client_new(
    servers: *const c_char,
    config: *const zkl_config,
    client_out: *mut *mut zkl_client,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps both pointers valid during the call.
        let (servers, out) = unsafe { (arg::text("servers", servers)?, Output::new("client_out", client_out)?) };
        let handles = LockHandles::default();
        let client = Client::connect(servers, &config::copy_of(config, &handles)?)?;
        out.set(handle::insert(ClientObject { client, handles })?);
        Ok(())
    })
}

/// Ends the session of a client, closes the client, and frees its handle. All holds of the client end when the session ends.
/// Calls that wait for a lock of this client fail with ZKL_E_CLOSED. Later calls with the client's locks also fail with
/// ZKL_E_CLOSED. The caller must still free the lock handles, either before or after it frees the client. The parameter
/// `client` may be NULL. In a forked child, the call does not change the session of the parent.
///
/// Before the client closes, it delivers its queued events, but only for a limited time. After this time, the client drops the
/// events that are still queued. If the program polls this client for events, zkl_client_free delivers the queued events on the
/// calling thread. After zkl_client_free has returned, the library does not call the client's callbacks any more.
///
/// If a client callback is running on another thread, the call waits without a time limit until the callback returns. The
/// caller of zkl_client_free must not hold a mutex that such a callback needs. Callbacks of other clients delay the call by at
/// most two seconds.
///
/// A callback may free its own client. If a callback frees its own client, zkl_client_free does not wait for this callback.
/// From then on, the library does not call the client's callbacks. If a callback on a library thread frees another client, the
/// library drops the queued events of the freed client. However, for each hold that ends, the library still calls the freed
/// client's ZKL_LISTEN_LOSS listeners. If two callbacks that run at the same time free each other's clients, one of the calls
/// does not wait for the other callback.
///
/// Returns nothing. If `client` is not a live handle, the call has no effect. The last error message does not change.
/// Blocks until the server has confirmed the end of the session and the last callback has returned. The call blocks for at most
/// two seconds, plus the running time of callbacks. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_client_free(client: *mut zkl_client) {
    free(|| handle::free(client, |session| session.client.close()));
}

/// Frees the handle of a client, and lets the library close the client in the background. The function waits neither for
/// callbacks nor for the server. Use this function in destructors and finalizers, which may run on a thread that a callback
/// needs.
///
/// The library drops the queued events, and no longer calls the client's callbacks. The library does not call the
/// ZKL_LISTEN_LOSS listeners either. A callback that is running on another thread at this moment continues. After this callback
/// has returned, the library calls the callback's user_drop function on the same thread. Before zkl_client_free_nowait returns,
/// the library calls all the client's other user_drop functions on the calling thread. The only exception is the callback that
/// returns credentials (zkl_config_set_auth_callback): the library calls its user_drop function on any thread, after the client
/// is closed. Apart from these differences, this function follows the rules of zkl_client_free. The parameter `client` may be
/// NULL. In a forked child, the call does nothing.
///
/// Returns nothing. If `client` is not a live handle, the call has no effect. The last error message does not change.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_client_free_nowait(client: *mut zkl_client) {
    free(|| handle::free(client, |open| zklock::internal::close_nowait(&open.client)));
}

/// Replaces the server list of a client. The parameter `servers` has the same form as in zkl_client_new. The list must have
/// the same chroot as the client, or no chroot. The chroot of the client does not change.
///
/// The client keeps its session, its holds and the positions of its waiters. The client stays connected to its server, except
/// in two cases. If the new list does not contain the server, the client moves to a server in that list. If the list has
/// grown, some clients move to an added server, so that each server has about the same number of clients. Before a client
/// moves, it waits for the answers to its requests, for at most a sixth of the session timeout. While the client moves, its
/// holds are ZKL_LOCK_SUSPENDED. A hold is lost only if the client reaches no server of the new list before the session ends.
///
/// Returns: ZKL_OK. On failure:
/// - ZKL_E_INVALID if the list is not valid or has a different chroot. The client then keeps its server list.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_client_set_servers(client: *mut zkl_client, servers: *const c_char) -> zkl_status {
    status(|| {
        let session = handle::get(client)?;
        // SAFETY: the caller keeps the pointer valid during the call.
        session.client.set_servers(unsafe { arg::text("servers", servers)? })
    })
}

/// Reports the session state of a client.
///
/// Returns: a ZKL_STATE_*, which is 0 or more; a negative status on failure (ZKL_E_HANDLE, ZKL_E_FORKED or ZKL_E_INTERNAL).
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_client_state(client: *const zkl_client) -> i32 {
    ffi_call(|| Ok(handle::get(client)?.client.state()? as i32))
}

/// Reports the session id of a client. The logs of the servers show the same id. A session id may be negative.
///
/// Returns: the session id. The function returns 0 if the client has no session, or if the call failed. To distinguish these
/// two cases, call zkl_client_state. If zkl_client_session_id failed, zkl_client_state also fails and returns a negative
/// status.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_client_session_id(client: *const zkl_client) -> i64 {
    ffi_call(|| handle::get(client)?.client.session_id())
}
