//! A server: its start, its address, its end.

use std::ffi::{CString, c_char};

use zklock::PerProcess;
use zklock_abi::arg::{self, Output};
use zklock_abi::guard::{self, free, guard, status};
use zklock_abi::handle::{self, Handle, Kind, Table};
use zklock_standalone::{Server, Settings};

use crate::zkl_status;

/// A ZooKeeper server in this process, on a thread of its own.
pub struct zkl_standalone(());

/// What stands behind a server.
pub struct Running {
    pub(crate) server: Server,
    address: CString,
}

impl Handle for zkl_standalone {
    type Object = Running;
    const KIND: Kind = Kind::Standalone;

    fn table() -> &'static Table<Running> {
        static TABLE: PerProcess<Table<Running>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

/// Starts a server. The address is a string like "127.0.0.1:2181", where port 0 stands for a free one; NULL stands for a free
/// port on the loopback interface. The server written to *server_out is to be stopped with zkl_standalone_stop.
///
/// Returns: ZKL_OK; ZKL_E_INVALID where the address is none; ZKL_E_SERVER where nobody can listen there; ZKL_E_EXHAUSTED,
/// ZKL_E_INTERNAL.
/// Blocks no longer than it takes to resolve a host name; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_standalone_start(
    address: *const c_char,
    server_out: *mut *mut zkl_standalone,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends it for the length of the call.
        let out = unsafe { Output::new("server_out", server_out)? };
        let address = match address.is_null() {
            true => "127.0.0.1:0",
            // SAFETY: as above.
            false => unsafe { arg::text("address", address)? },
        };
        let server = Server::bind(address, Settings::for_tests())?;
        let address = CString::new(server.address().to_string()).unwrap_or_default();
        out.set(handle::insert(Running { server, address })?);
        Ok(())
    })
}

/// Where the server listens, as zkl_client_new wants it: like "127.0.0.1:2181".
///
/// Returns: a text that stays until the server is stopped; NULL on failure, which zkl_standalone_last_error_message explains.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_address(server: *const zkl_standalone) -> *const c_char {
    guard(|| Ok(handle::get(server)?.address.as_ptr()))
}

/// Stops a server and frees it: its connections and its port are closed, its data is forgotten. NULL is allowed. In a forked
/// child the parent's server is left alone.
///
/// Returns nothing; a handle that is not live changes nothing. The last error message stays as it was.
/// Blocks for a moment, until the server's thread has ended; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_stop(server: *mut zkl_standalone) {
    free(|| handle::free(server, |running| running.server.stop()));
}

/// What went wrong in this thread's last call of this library. (Calls of libzklock have zkl_last_error_message.)
///
/// Returns: a text, never NULL; empty if the last call succeeded. It is UTF-8, cut after 1023 bytes, and stays valid until
/// the thread's next call of this library, except this one.
/// Does not block; each thread has its own.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_standalone_last_error_message() -> *const c_char {
    guard::last_error()
}
