//! What a client can be told before it connects.

use std::ffi::c_char;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zklock::{Config, PerProcess, Result};
use zklock_abi::arg;
use zklock_abi::guard::{free, guard, status};
use zklock_abi::handle::{self, Handle, Kind, Table};

use crate::event::{Callback, LockHandles, handler};
use crate::status::zkl_status;

/// More credentials are refused before they are looked at.
const MAX_AUTH: usize = 64 * 1024;

/// A client's settings. zkl_client_new copies them, so a config may serve for many clients, be changed in between, and be
/// freed at any time.
pub struct zkl_config(());

/// What stands behind a config.
pub struct Settings {
    config: Config,
    callback: Option<Arc<Callback>>,
}

impl Settings {
    fn new() -> Self {
        Self { config: Config::new(), callback: None }
    }
}

impl Handle for zkl_config {
    type Object = Mutex<Settings>;
    const KIND: Kind = Kind::Config;

    fn table() -> &'static Table<Self::Object> {
        static TABLE: PerProcess<Table<Mutex<Settings>>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

/// Makes a config with the defaults. Where they will do, zkl_client_new takes NULL in its place.
///
/// Returns: the config, to be freed with zkl_config_free; NULL on failure, which zkl_last_error_message explains.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_config_new() -> *mut zkl_config {
    guard(|| handle::insert(Mutex::new(Settings::new())))
}

/// Frees a config. NULL is allowed. Clients made with it are not concerned.
///
/// Returns nothing; a handle that is not live changes nothing. The last error message stays as it was.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_config_free(config: *mut zkl_config) {
    free(|| handle::free(config, |_| Ok(())));
}

/// How long the servers keep a session they do not hear of, in milliseconds: 1 or more, 10000 by default. The servers may
/// negotiate another value.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_config_set_session_timeout_ms(config: *mut zkl_config, ms: i32) -> zkl_status {
    status(|| set(config, |config| config.set_session_timeout(arg::milliseconds("session timeout", ms)?)))
}

/// How long zkl_client_new may take, in milliseconds: 1 or more, 10000 by default.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_config_set_connect_timeout_ms(config: *mut zkl_config, ms: i32) -> zkl_status {
    status(|| set(config, |config| config.set_connect_timeout(arg::milliseconds("connect timeout", ms)?)))
}

/// How long before its session can end a lock ceases to count as held, in milliseconds: 0 or more, a third of the
/// negotiated session timeout by default. More is safer; less rides out longer interruptions. The margin always
/// leaves at least a third of the session timeout; after a silence a lease may be shorter, for the servers may not have heard.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_config_set_lease_margin_ms(config: *mut zkl_config, ms: i32) -> zkl_status {
    status(|| set(config, |config| config.set_lease_margin(arg::milliseconds("lease margin", ms)?)))
}

/// Sets an option by its name, for instance "session.timeout" to "5000". The page on options (docs/options.md) has all of them. The functions
/// above are shorthands for the same options. Both strings are copied.
///
/// Returns: ZKL_OK, ZKL_E_INVALID for an unknown name and for a bad value, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_config_set(
    config: *mut zkl_config,
    name: *const c_char,
    value: *const c_char,
) -> zkl_status {
    status(|| {
        set(config, |config| {
            // SAFETY: the caller lends both for the length of the call.
            let (name, value) = unsafe { (arg::text("name", name)?, arg::text("value", value)?) };
            config.set(name, value)
        })
    })
}

/// Sets the options in a file. The file is UTF-8 text of 64 KiB at most, with one "name = value" a line. Empty lines, and lines that begin
/// with #, are skipped; a # behind a value belongs to the value. If the file has an error, no option is set.
///
/// Returns: ZKL_OK, ZKL_E_INVALID if the file cannot be read or a line is wrong; the message names the file and the line.
/// ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Blocks while it reads the file; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_config_load(config: *mut zkl_config, file: *const c_char) -> zkl_status {
    status(|| {
        handle::get(config)?;
        // SAFETY: the caller lends it for the length of the call.
        let options = zklock::read_options(unsafe { arg::file("file", file)? })?;
        set(config, |config| options.iter().try_for_each(|(name, value)| config.set(name, value)))
    })
}

/// Adds credentials, for instance "digest" and "user:password". They are sent on every connection, in the order in which
/// they were added. The scheme is a string; auth is len bytes, and may be NULL if len is 0. Both are copied.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_config_add_auth(
    config: *mut zkl_config,
    scheme: *const c_char,
    auth: *const u8,
    len: usize,
) -> zkl_status {
    status(|| {
        set(config, |config| {
            // SAFETY: the caller lends both for the length of the call.
            let (scheme, auth) = unsafe { (arg::text("scheme", scheme)?, arg::bytes("auth", auth, len, MAX_AUTH)?) };
            config.add_auth(scheme, auth)
        })
    })
}

/// Has mutexes and read/write locks queue with the locks of kazoo that stand on the same path, instead of returning
/// ZKL_E_FOREIGN: 1, or 0, which is the default. For programs that move from kazoo, which has to wait for zklock's in turn: its locks
/// need extra_lock_patterns=["-lock-"] beside a mutex, and ["__READ__", "__WRIT__"] beside a read/write lock.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_config_set_wait_for_kazoo(config: *mut zkl_config, wait: i32) -> zkl_status {
    status(|| {
        set(config, |config| {
            config.set_wait_for_kazoo(arg::switch("wait", wait)?);
            Ok(())
        })
    })
}

/// Has the callbacks of clients, those of events and of revocations, called by the program, with zkl_client_dispatch_events when the
/// descriptor of zkl_client_event_fd is readable: 1; or on a thread of the library's: 0, which is the default.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_config_set_poll_events(config: *mut zkl_config, poll: i32) -> zkl_status {
    status(|| {
        set(config, |config| {
            config.set_poll_events(arg::switch("poll", poll)?);
            Ok(())
        })
    })
}

/// Gives the config a callback, or none, and drops the one it had.
pub(crate) fn set_callback(config: *const zkl_config, callback: Option<Arc<Callback>>) -> Result<()> {
    let settings = handle::get(config)?;
    let before = std::mem::replace(&mut lock(&settings).callback, callback);
    // Not under the lock: it may call the program.
    drop(before);
    Ok(())
}

/// The settings for a new client, whose events go to the callback with the handles of its locks.
pub(crate) fn copy_of(config: *const zkl_config, handles: &LockHandles) -> Result<Config> {
    if config.is_null() {
        return Ok(Config::new());
    }
    let settings = handle::get(config)?;
    let settings = lock(&settings);
    let mut config = settings.config.clone();
    if let Some(callback) = &settings.callback {
        config.set_event_handler(handler(Arc::clone(callback), handles.clone()));
    }
    Ok(config)
}

fn set(config: *const zkl_config, setter: impl FnOnce(&mut Config) -> Result<()>) -> Result<()> {
    setter(&mut lock(&*handle::get(config)?).config)
}

fn lock(settings: &Mutex<Settings>) -> MutexGuard<'_, Settings> {
    settings.lock().unwrap_or_else(PoisonError::into_inner)
}
