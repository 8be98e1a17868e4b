//! Delivers events and revocation requests on the threads of the program. This module must not register a callback.

use std::ffi::c_int;

use zklock::Config;
use zklock_abi::arg::{self, Output};
use zklock_abi::boundary::{ffi_call, status};
use zklock_abi::handle;

use crate::client::zkl_client;
use crate::config::{set_with, zkl_config};
use crate::status::zkl_status;

/// Selects the thread that calls the callbacks for events and revocation requests. If `poll` is 0, the library calls the
/// callbacks on its event thread. The default is 0. If `poll` is 1, the program must call zkl_client_dispatch_events whenever
/// the descriptor that zkl_client_event_fd returns is readable.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_config_set_poll_events(config: *mut zkl_config, poll: i32) -> zkl_status {
    status(|| set_with(config, || arg::switch("poll", poll), Config::poll_events))
}

/// Gets the event descriptor of a client, for poll, select, epoll and event loops. The descriptor is readable while callbacks
/// are pending (level-triggered), and becomes readable when the client is freed. The descriptor belongs to the library, and the
/// program must not read, write or close it. The library closes the descriptor when it closes the client. The kernel then
/// removes the closed descriptor from every epoll set. If one thread can free the client while another thread polls, the
/// polling thread must poll a duplicate of the descriptor. dup() creates such a duplicate.
///
/// Returns: the descriptor, which is 0 or more.
/// On failure, the function returns the same statuses as zkl_client_dispatch_events.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_client_event_fd(client: *const zkl_client) -> c_int {
    ffi_call(|| handle::get(client)?.client.event_fd())
}

/// Delivers the queued events and revocation requests of a client. The function calls the callbacks on the calling thread, in
/// the order in which the events and requests occurred. Events that the client queues during the call stay queued for the next
/// call. Only one thread at a time delivers a client's events. The call delivers nothing if another thread is delivering events
/// of this client, or if a client callback makes the call.
///
/// Returns: ZKL_OK, with the number of delivered events and revocation requests in `*count_out`. On failure:
/// - ZKL_E_INVALID if the client does not poll its events (zkl_config_set_poll_events), or if `count_out` is NULL.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
///
/// Blocks while the callbacks run. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_client_dispatch_events(client: *mut zkl_client, count_out: *mut i32) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("count_out", count_out)? };
        let called = handle::get(client)?.client.dispatch_events()?;
        out.set(i32::try_from(called).unwrap_or(i32::MAX));
        Ok(())
    })
}
