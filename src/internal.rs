//! Items of this crate that are not part of its public API. Only the bindings for other languages, the command and
//! the tests use these items. The items may change in any release.
//!
//! No other module of this crate may use this module.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use zklock_core::error::Result;

use crate::client::{Client, WeakClient};
use crate::config::Config;
use crate::hold::Hold;
use crate::runtime::LOCK;
use crate::semaphore::Semaphore;

pub use crate::once::{counting_run, keep_run, past_run_json, period_zone, record_path, start_run, user_name};
pub use crate::options::{FileOption, LONGEST_TIME, read_options, read_options_and, time_in_seconds, time_with_units};
pub use crate::runtime::{
    CompletionQueue, EventSource, LogDispatch, LogHandler, LogLine, LogValue, OnceWakeSocket, WakeSocket,
    mark_callback_thread, refuse_in_callback, set_log_handler, set_log_level,
};
pub use zklock_core::log_record::Level;
pub use zklock_process::{ForkEpoch, PerProcess};

/// Changes a config in place. If a method refuses a value, the config does not change.
pub fn configure(config: &mut Config, change: impl FnOnce(Config) -> Config) -> Result<()> {
    config.try_update(change)
}

/// Removes all callbacks that [`Config::auth_callback`] has added for `scheme`.
pub fn remove_auth_callbacks(config: Config, scheme: &str) -> Config {
    config.remove_auth_callbacks(scheme)
}

/// Lets the program call its handlers on its own threads. Unlike with [`Config::poll_events`], the library provides no
/// descriptor. When the first event is queued, the library calls `notifier` with the event source of the client. The
/// library can call `notifier` on any thread, and holds internal locks during the call. `notifier` must only pass the
/// event source to the thread that will dispatch the events.
pub fn set_event_notifier(config: &mut Config, notifier: impl Fn(EventSource) + Send + Sync + 'static) {
    config.set_event_notifier(notifier);
}

/// Reads the files of TLS that a config names, as a client does before it connects.
pub fn load_tls_files(config: &Config) -> Result<()> {
    config.tls_source().map_or(Ok(()), |source| source.load())
}

/// Returns the identities that a server knows for this client, each in the form `scheme:id`. A server before version 3.7
/// does not support the request, and ends the session. The call blocks for at most the session timeout.
pub fn identities(client: &Client) -> Result<Vec<String>> {
    client.identities()
}

/// Returns the event source of a client. The config's notifier receives the same event source.
pub fn event_source(client: &Client) -> Result<EventSource> {
    client.event_source()
}

/// Removes all handlers of the client, so that closing the client does not wait for the handlers. A program that can no
/// longer run its handlers calls this function before it closes the client.
pub fn discard_handlers(client: &Client) -> Result<()> {
    client.discard_handlers()
}

/// Closes the client like [`Client::start_close`], and calls `hook` with the result. The hook may block, because it runs
/// on the thread that closes the client.
pub fn close_and_then(client: &Client, hook: impl FnOnce(Result<()>) + Send + 'static) -> Result<()> {
    client.inner.close_in_background(hook)
}

/// Removes all handlers of the client, and then closes the client like [`Client::start_close`]. A handler that
/// is already running continues. The library calls no other handler.
pub fn close_nowait(client: &Client) -> Result<()> {
    client.close_nowait()
}

/// Returns whether the program still uses the client or any of its locks, semaphores or leases. In contrast to
/// `upgrade`, this function creates no reference to the client. The caller therefore cannot cause the client to close.
pub fn has_users(client: &WeakClient) -> bool {
    client.has_users()
}

/// Fails with NOT_OWNER if the hold was released, and with LOST if it was lost.
pub fn check_exists(hold: &Hold) -> Result<()> {
    hold.check_exists()
}

/// Returns whether the program has released the hold through one of its [`Hold`] values.
pub fn is_released(hold: &Hold) -> bool {
    hold.is_released()
}

/// Returns a flag for each member lock or for the lock itself. The flag becomes true when the program releases the hold.
/// The flag keeps its value after the client is closed, and in a forked child. A hold that ends with its client is not
/// released.
pub fn release_flags(hold: &Hold) -> Result<Vec<Arc<AtomicBool>>> {
    hold.release_flags()
}

/// Logs a warning about a hold that its owner left behind. A binding calls this function when the program drops a handle.
pub fn log_hold_left(text: &str) {
    tracing::warn!(target: LOCK, "{text}");
}

/// Creates a semaphore like [`Client::semaphore_counted`], but does not wait until the node of the count exists. If the
/// node does not exist yet, the library creates the node before it grants leases.
pub fn semaphore_counted_nowait(client: &Client, path: &str, count_path: &str, initial: i32) -> Result<Semaphore> {
    client.semaphore_counted_nowait(path, count_path, initial)
}
