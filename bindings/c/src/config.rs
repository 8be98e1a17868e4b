//! Configs: the settings of a client. This module must not use clients.

use std::error::Error;
use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zeroize::Zeroizing;
use zklock::internal::{PerProcess, configure, remove_auth_callbacks};
use zklock::{Config, Result};
use zklock_abi::arg;
use zklock_abi::boundary::{ffi_call, free, status};
use zklock_abi::handle::{self, Handle, HandleKind, Table};

use crate::callback::{UserData, zkl_user_drop};
use crate::event::{EventCallback, handler};
use crate::lock_object::LockHandles;
use crate::status::zkl_status;

/// The largest length of credentials in bytes. The library refuses longer credentials without reading the bytes.
const MAX_AUTH: usize = 64 * 1024;

/// The settings of a client. Each call of zkl_client_new copies the settings. A program can therefore use one config for many
/// clients, change the config after making a client, and free the config at any time.
pub struct zkl_config(());

/// The object that a `zkl_config` handle identifies.
pub struct ConfigObject {
    config: Config,
    callback: Option<Arc<EventCallback>>,
}

impl ConfigObject {
    fn new() -> Self {
        Self { config: Config::new(), callback: None }
    }
}

impl Handle for zkl_config {
    type Object = Mutex<ConfigObject>;
    const KIND: HandleKind = HandleKind::Config;

    fn table() -> &'static Table<Self::Object> {
        static TABLE: PerProcess<Table<Mutex<ConfigObject>>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

/// Makes a config with the default settings. A program that needs only the default settings can pass NULL to zkl_client_new
/// instead.
///
/// Returns: the config, which the caller must free with zkl_config_free. On failure, the function returns NULL, and
/// zkl_last_error_message explains the failure.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn zkl_config_new() -> *mut zkl_config {
    ffi_call(|| handle::insert(Mutex::new(ConfigObject::new())))
}

/// Frees a config. The parameter `config` may be NULL. Clients that already exist keep their settings.
///
/// Returns nothing. If `config` is not a live handle, the call has no effect. The last error message does not change.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_config_free(config: *mut zkl_config) {
    free(|| handle::free(config, |_| Ok(())));
}

/// Sets the session timeout in milliseconds. If the servers receive nothing from a client during the session timeout, they end
/// the client's session. The parameter `ms` must be 1 or more. The default is 10000. A server may choose a different session
/// timeout when the client connects.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_config_set_session_timeout_ms(config: *mut zkl_config, ms: i32) -> zkl_status {
    status(|| set_with(config, || arg::milliseconds("session timeout", ms, 1), Config::session_timeout))
}

/// Sets the connect timeout in milliseconds. The connect timeout limits the time that zkl_client_new takes. The parameter `ms`
/// must be 1 or more. The default is 10000.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_config_set_connect_timeout_ms(config: *mut zkl_config, ms: i32) -> zkl_status {
    status(|| set_with(config, || arg::milliseconds("connect timeout", ms, 1), Config::connect_timeout))
}

/// Sets the lease margin in milliseconds. The session lease is shorter than the session timeout by at least the lease margin.
/// The client counts both times from the moment at which it sent the last transaction that the servers confirmed. A hold is
/// safe only until the session lease ends. The parameter `ms` must be 0 or more. The default is a third of the negotiated
/// session timeout. A larger lease margin makes holds safer. With a smaller lease margin, holds survive longer interruptions of
/// the connection.
///
/// If the lease margin is larger than two thirds of the session timeout, the library reduces the lease margin to two thirds of
/// the session timeout. After a period without traffic, the session lease is even shorter, because the servers may not have
/// received the client's last requests.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_config_set_lease_margin_ms(config: *mut zkl_config, ms: i32) -> zkl_status {
    status(|| set_with(config, || arg::milliseconds("lease margin", ms, 0), Config::lease_margin))
}

/// Sets an option by its name, for example "session.timeout" to "5000". The page docs/options.md lists all options and their
/// values. The functions above set some of these options with typed parameters. The config copies both strings.
///
/// Returns: ZKL_OK. On failure:
/// - ZKL_E_INVALID if the name is unknown or the value is not allowed.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_config_set(
    config: *mut zkl_config,
    name: *const c_char,
    value: *const c_char,
) -> zkl_status {
    status(|| {
        set(config, |config| {
            // SAFETY: the caller keeps both pointers valid during the call.
            let (name, value) = unsafe { (arg::text("name", name)?, arg::text("value", value)?) };
            config.set(name, value)
        })
    })
}

/// Reads options from a file, and sets them in the config. The options file must be UTF-8 text of at most 64 KiB, with one
/// "name = value" on each line. The function ignores empty lines and lines that begin with #. If a # follows a value, the # is
/// part of the value. If the file contains an error, the function sets no option.
///
/// Returns: ZKL_OK. On failure:
/// - ZKL_E_INVALID if the file cannot be read or contains an error. The error message names the file and the line.
/// - ZKL_E_EXHAUSTED if the process or the machine has no file descriptors left.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
///
/// Blocks while it reads the file. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_config_load(config: *mut zkl_config, file: *const c_char) -> zkl_status {
    status(|| {
        handle::get(config)?;
        // SAFETY: the caller keeps the pointer valid during the call.
        let options = zklock::internal::read_options(unsafe { arg::file("file", file)? })?;
        set(config, |config| options.iter().try_for_each(|(name, value)| config.set(name, value)))
    })
}

/// Adds credentials to a config, for example the "digest" scheme with "user:password". On every connection, the client sends
/// all credentials in the order in which the program added them. Credentials for the "sasl" scheme are the password of the
/// option sasl.user. The parameter `scheme` is a string. The parameter `auth` must point to `len` bytes. The maximum `len` is
/// 64 KiB. The parameter `auth` may be NULL if `len` is 0. The config copies scheme and auth.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_config_add_auth(
    config: *mut zkl_config,
    scheme: *const c_char,
    auth: *const c_void,
    len: usize,
) -> zkl_status {
    status(|| {
        set(config, |config| {
            // SAFETY: the caller keeps both pointers valid during the call.
            let (scheme, auth) = unsafe { (arg::text("scheme", scheme)?, arg::bytes("auth", auth, len, MAX_AUTH)?) };
            configure(config, |config| config.add_auth(scheme, auth))
        })
    })
}

/// A callback that returns credentials. The callback must write the credentials to `buf`, which has `size` bytes, and must
/// return the length of the credentials. If the callback fails, it must return a negative number. The callback must return
/// normally. A callback must not throw an exception or call longjmp.
pub type zkl_auth_cb = Option<unsafe extern "C" fn(user: *mut c_void, buf: *mut c_char, size: usize) -> i64>;

/// Sets a callback in a config. The callback returns the credentials for one scheme. For example, the "digest" scheme uses
/// credentials of the form "user:password", and the "sasl" scheme uses the password of the option sasl.user. Each client made
/// with this config calls `cb` before each attempt to connect, and passes `user` to `cb`. The callback can therefore return new
/// credentials after a credential rotation. On each connection, the client first sends the credentials from earlier calls of
/// zkl_config_add_auth, and then the result of `cb`. The buffer that the library passes to `cb` is 64 KiB long. The library
/// erases the buffer. After the library sends the credentials, it also erases its copy of the credentials.
///
/// The library calls `cb` on a thread that it starts for this purpose. Different clients can call `cb` at the same time. For
/// one client, the library makes one call at a time. The callback may block. A slow callback delays only the attempt to
/// connect. Other calls still end at their deadlines. The Callbacks section above describes which functions `cb` may call. If
/// `cb` forks a child, the child exits with status 0 as soon as `cb` returns in it.
///
/// If `cb` fails before the first connection, zkl_client_new fails at once with ZKL_E_AUTH. If `cb` fails later, the client
/// writes a warning to the log, and calls `cb` again after a pause of at most half a second. The session can expire in the
/// meantime.
///
/// A later call of zkl_config_set_auth_callback replaces the callback for the same scheme, but existing clients keep their
/// callback. If `cb` is NULL, the call removes the callback for the scheme and calls `user_drop` at once. If `user_drop` is
/// not NULL, the library calls `user_drop` once, when neither the config nor an open client uses the callback any more.
///
/// The function zkl_client_free does not wait for calls of `cb` to return. When zkl_client_free returns, one call of `cb` can
/// still be running or be about to begin. In this case, the library calls `user_drop` after `cb` has returned. A program must
/// therefore keep everything that the callback uses until the library calls `user_drop`.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL. On failure, the library does not use the pointer
/// `user` and does not call `user_drop`.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_config_set_auth_callback(
    config: *mut zkl_config,
    scheme: *const c_char,
    cb: zkl_auth_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
) -> zkl_status {
    status(|| {
        let settings = handle::get(config)?;
        // SAFETY: the caller keeps the pointer valid during the call.
        let scheme = unsafe { arg::text("scheme", scheme)? };
        let user = Arc::new(UserData::new(user, user_drop));
        let callback = cb.map(|cb| auth_callback(cb, Arc::clone(&user)));
        let before = {
            let mut settings = lock(&settings);
            let mut changed = settings.config.clone();
            configure(&mut changed, |config| {
                let config = remove_auth_callbacks(config, scheme);
                match callback {
                    Some(callback) => config.auth_callback(scheme, callback),
                    None => config,
                }
            })?;
            std::mem::replace(&mut settings.config, changed)
        };
        // Dropping a callback can call user_drop of the program. The mutex must not be locked during this call.
        drop(before);
        user.take_ownership();
        Ok(())
    })
}

/// Makes the callback that the Rust API calls.
fn auth_callback(
    cb: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> i64,
    user: Arc<UserData>,
) -> impl Fn() -> std::result::Result<Vec<u8>, Box<dyn Error + Send + Sync>> + Send + Sync + 'static {
    move || {
        let mut buffer = Zeroizing::new(vec![0; MAX_AUTH]);
        // SAFETY: the caller passed a function of this type, and the buffer outlives the call.
        let length = unsafe { cb(user.pointer(), buffer.as_mut_ptr().cast(), buffer.len()) };
        let bytes = usize::try_from(length).map_err(|_| format!("it returned {length}"))?;
        let credentials =
            buffer.get(..bytes).ok_or_else(|| format!("it returned {length}; expected at most {MAX_AUTH}"))?;
        Ok(credentials.to_vec())
    }
}

/// Controls whether mutexes and read/write locks share one queue with kazoo locks on the same path. If `wait` is 1, zklock
/// locks and kazoo locks share one queue. If `wait` is 0 and a kazoo lock uses the path, an acquire fails with ZKL_E_FOREIGN.
/// The default is 0. Programs that migrate from kazoo to zklock need this setting. During a migration, kazoo locks must also
/// wait for zklock locks. To make a kazoo lock wait for a zklock mutex, construct the kazoo lock with
/// extra_lock_patterns=["-lock-"]. To make a kazoo lock wait for a zklock read/write lock, construct the kazoo lock with
/// extra_lock_patterns=["__READ__", "__WRIT__"].
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_config_set_wait_for_kazoo(config: *mut zkl_config, wait: i32) -> zkl_status {
    status(|| set_with(config, || arg::switch("wait", wait), Config::wait_for_kazoo))
}

/// Sets or removes the callback of a config, and drops the previous callback.
pub(crate) fn set_callback(config: *const zkl_config, callback: Option<Arc<EventCallback>>) -> Result<()> {
    let settings = handle::get(config)?;
    let before = std::mem::replace(&mut lock(&settings).callback, callback);
    // Dropping the callback can call user_drop of the program. The mutex must not be locked during this call.
    drop(before);
    Ok(())
}

/// Copies the settings for a new client. The callback looks up lock handles in `handles`.
pub(crate) fn copy_of(config: *const zkl_config, handles: &LockHandles) -> Result<Config> {
    if config.is_null() {
        return Ok(Config::new());
    }
    let settings = handle::get(config)?;
    let settings = lock(&settings);
    let config = settings.config.clone();
    Ok(match &settings.callback {
        Some(callback) => config.on_event(handler(Arc::clone(callback), handles.clone())),
        None => config,
    })
}

fn set(config: *const zkl_config, setter: impl FnOnce(&mut Config) -> Result<()>) -> Result<()> {
    setter(&mut lock(&*handle::get(config)?).config)
}

/// Sets a value of a config. The function checks the handle before the value.
pub(crate) fn set_with<T>(
    config: *const zkl_config,
    value: impl FnOnce() -> Result<T>,
    set_value: impl FnOnce(Config, T) -> Config,
) -> Result<()> {
    set(config, |config| {
        let value = value()?;
        configure(config, |config| set_value(config, value))
    })
}

fn lock(settings: &Mutex<ConfigObject>) -> MutexGuard<'_, ConfigObject> {
    settings.lock().unwrap_or_else(PoisonError::into_inner)
}
