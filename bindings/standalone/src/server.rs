//! The functions that start and stop a server and report its address. This module must not cause faults.

use std::ffi::{CString, c_char};

use zklock_abi::arg::{self, Output};
use zklock_abi::boundary::{self, ffi_call, free, status};
use zklock_abi::handle::{self, Handle, HandleKind, Table};
use zklock_process::PerProcess;
use zklock_standalone::{Server, Settings};

use crate::zkl_status;

/// A ZooKeeper server in this process, with its own thread.
pub struct zkl_standalone(());

/// The object that a `zkl_standalone` handle identifies.
pub struct ServerObject {
    pub(crate) server: Server,
    address: CString,
}

impl Handle for zkl_standalone {
    type Object = ServerObject;
    const KIND: HandleKind = HandleKind::Standalone;

    fn table() -> &'static Table<ServerObject> {
        static TABLE: PerProcess<Table<ServerObject>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

/// Starts a server. The parameter `address` is a string such as "127.0.0.1:2181". Port 0 selects a free port. If `address` is
/// NULL, the server listens on a free port of the loopback interface. The caller must stop the new server, `*server_out`, with
/// zkl_standalone_stop.
///
/// Returns: ZKL_OK if the server is running. On failure:
/// - ZKL_E_INVALID if an argument is not valid, for example the address.
/// - ZKL_E_SERVER if the server cannot listen on the address.
/// - Other failures: ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
///
/// Blocks while the call resolves a host name in the address. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_standalone_start(
    address: *const c_char,
    server_out: *mut *mut zkl_standalone,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("server_out", server_out)? };
        let address = match address.is_null() {
            true => "127.0.0.1:0",
            // SAFETY: the caller keeps the string valid during the call.
            false => unsafe { arg::text("address", address)? },
        };
        let server = Server::bind(address, Settings::for_tests())?;
        let address = CString::new(server.address().to_string()).unwrap_or_default();
        out.set(handle::insert(ServerObject { server, address })?);
        Ok(())
    })
}

/// Reports the address of the server in the form that zkl_client_new accepts, for example "127.0.0.1:2181".
///
/// Returns: a string that is valid until the server is stopped. On failure, the function returns NULL, and
/// zkl_standalone_last_error_message explains the failure.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_address(server: *const zkl_standalone) -> *const c_char {
    ffi_call(|| Ok(handle::get(server)?.address.as_ptr()))
}

/// Stops a server, and frees its handle. The server closes its connections and its port, and its data is lost. The parameter
/// `server` may be NULL. In a forked child, the call does not change the server of the parent.
///
/// Returns nothing. If `server` is not a live handle, the call has no effect. The last error message does not change.
/// Blocks for a short time, until the server thread has ended. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_stop(server: *mut zkl_standalone) {
    free(|| handle::free(server, |running| running.server.stop()));
}

/// Describes the last failure of this library in the calling thread. For failures of libzklock, call zkl_last_error_message
/// instead. Successful calls and zkl_standalone_stop do not change the message.
///
/// Returns: a string, never NULL. The string is empty if no call on this thread has failed yet. The string is in UTF-8 and has
/// at most 1023 bytes. The string stays valid until the thread calls another function of this library. Does not block. Each
/// thread has its own message.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_last_error_message() -> *const c_char {
    boundary::last_error()
}
