//! Events: how a program hears that its session or a hold stands differently.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zklock::{Event, LockId, Result};
use zklock_abi::guard::status;
use zklock_abi::handle;

use crate::client::zkl_client;
use crate::config::{self, zkl_config};
use crate::lock::zkl_lock;
use crate::status::zkl_status;

/// The client's session stands differently: state and previous are ZKL_STATE_*.
pub const ZKL_EVENT_CLIENT: i32 = 0;
/// A hold of a lock, or of leases, stands differently: state and previous are ZKL_LOCK_*.
pub const ZKL_EVENT_LOCK: i32 = 1;

/// Something that happened. All memory is the library's, and valid during the callback.
#[repr(C)]
pub struct zkl_event {
    /// The library's own size of this struct. New fields are only ever appended: look at them where size covers them.
    pub size: u32,
    /// A ZKL_EVENT_*.
    pub kind: i32,
    /// How it stands now.
    pub state: i32,
    /// How it stood before.
    pub previous: i32,
    /// The lock, or NULL: of a client's event, of leases, and where the lock was freed meanwhile. What is held by a multi-lock
    /// is told of each of its locks.
    pub lock: *mut zkl_lock,
    /// The path of the lock or of the leases' semaphore, or NULL.
    pub path: *const c_char,
    /// The fencing token of the hold or of the leases, or 0.
    pub token: i64,
    /// How often the lock had been passed on in this process when the hold began (zkl_fencing_pass), or 0.
    pub pass: i64,
}

/// Is called with each event. It must return: no exception, no longjmp.
pub type zkl_event_cb = Option<unsafe extern "C" fn(user: *mut c_void, event: *const zkl_event)>;

/// Is called with user when the library will not use it any more.
pub type zkl_user_drop = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// Has cb called, with user as it was given, for every change in how a client's session or one of its holds stands. The calls
/// come one after the other, in the order in which things happened, on a thread of the library that does nothing else, or where the
/// program wants them (zkl_config_set_poll_events). What cb may call stands under Callbacks, above. While cb does not return on the
/// library's thread, no other callback is called in this process.
///
/// Of what happens at one moment, holds come before the session: HELD becomes SUSPENDED, then CONNECTED becomes SUSPENDED. While nobody
/// is called, about a thousand events of a client wait as they came. Those on top of that are joined: each hold and the session are
/// told fewer steps, each of which begins where the one before ended, but not another end; and that they were lost is always told.
///
/// user_drop, which may be NULL, is called once: when the config and all clients made with it are freed, or the config was
/// given another callback and those clients are freed, and cb has returned for the last time. With cb NULL there are no
/// events, and user_drop is called at once.
///
/// Returns: ZKL_OK; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL, and user is not taken.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_config_set_event_callback(
    config: *mut zkl_config,
    cb: zkl_event_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
) -> zkl_status {
    status(|| set(cb, user, user_drop, |callback| config::set_callback(config, callback)))
}

/// Has cb called, with user as it was given, for every change from now on, and for what still waits to be told, as
/// zkl_config_set_event_callback has it, and beside the callback of the config: for a part of a program that is given a client. Another
/// callback takes the place of the one that was set by this function before; with cb NULL there is none any more, and user_drop is
/// called at once.
///
/// user_drop, which may be NULL, is called once: when another callback has taken its place, or the client was freed, and cb has
/// returned for the last time. A call that is just beginning when another takes its place may still come.
///
/// Returns: ZKL_OK; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL, and user is not taken.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_client_set_event_callback(
    client: *mut zkl_client,
    cb: zkl_event_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
) -> zkl_status {
    status(|| {
        let session = handle::get(client)?;
        set(cb, user, user_drop, |callback| {
            let handler = callback.map(|callback| handler(callback, session.handles.clone()));
            session.client.set_event_handler(handler.map(|handler| Box::new(handler) as _))
        })
    })
}

/// A program's callback, with what it owns.
pub(crate) struct Callback {
    cb: unsafe extern "C" fn(user: *mut c_void, event: *const zkl_event),
    user: Arc<User>,
}

/// Has `give` take a callback. Without a function there is none, and what it would have owned is given back. Where `give` fails, that stays
/// with the program.
fn set(
    cb: zkl_event_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
    give: impl FnOnce(Option<Arc<Callback>>) -> Result<()>,
) -> Result<()> {
    let user = Arc::new(User::new(user, user_drop));
    give(cb.map(|cb| Arc::new(Callback { cb, user: Arc::clone(&user) })))?;
    user.take();
    Ok(())
}

/// What a program gave for its callback. Once it is taken, it is given back when it is dropped.
pub(crate) struct User {
    user: *mut c_void,
    user_drop: zkl_user_drop,
    is_taken: AtomicBool,
}

// SAFETY: the program lends `user` to the library's thread, and is told so; the library does not look at it.
unsafe impl Send for User {}
// SAFETY: as above; calls come one after the other.
unsafe impl Sync for User {}

impl User {
    pub(crate) const fn new(user: *mut c_void, user_drop: zkl_user_drop) -> Self {
        Self { user, user_drop, is_taken: AtomicBool::new(false) }
    }

    /// It is the library's from now on.
    pub(crate) fn take(&self) {
        self.is_taken.store(true, Ordering::Release);
    }

    pub(crate) const fn pointer(&self) -> *mut c_void {
        self.user
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if let (Some(user_drop), true) = (self.user_drop, *self.is_taken.get_mut()) {
            // SAFETY: the caller gave a function of this type, for this pointer; nothing calls it a second time.
            unsafe { user_drop(self.user) };
        }
    }
}

/// The handles of one client's locks, by the numbers that events have.
#[derive(Clone, Default)]
pub(crate) struct LockHandles(Arc<Mutex<HashMap<LockId, Ticket>>>);

struct Ticket(*mut zkl_lock);

// SAFETY: a handle is a number, and points nowhere.
unsafe impl Send for Ticket {}

impl LockHandles {
    pub(crate) fn add(&self, id: LockId, handle: *mut zkl_lock) {
        self.lock().insert(id, Ticket(handle));
    }

    pub(crate) fn remove(&self, id: LockId) {
        self.lock().remove(&id);
    }

    fn find(&self, id: LockId) -> *mut zkl_lock {
        self.lock().get(&id).map_or(ptr::null_mut(), |ticket| ticket.0)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockId, Ticket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the Rust API is to call for a client with these handles.
pub(crate) fn handler(callback: Arc<Callback>, handles: LockHandles) -> impl Fn(&Event) + Send + Sync + 'static {
    move |event| callback.deliver(event, &handles)
}

impl Callback {
    fn deliver(&self, event: &Event, handles: &LockHandles) {
        // ZooKeeper allows no NUL in a path.
        let text = match event {
            Event::Lock { path, .. } => CString::new(path.as_bytes()).unwrap_or_default(),
            Event::Client { .. } => CString::default(),
        };
        let told = match *event {
            Event::Client { state, previous } => zkl_event {
                size: SIZE,
                kind: ZKL_EVENT_CLIENT,
                state: state as i32,
                previous: previous as i32,
                lock: ptr::null_mut(),
                path: ptr::null(),
                token: 0,
                pass: 0,
            },
            Event::Lock { lock, token, pass, state, previous, .. } => zkl_event {
                size: SIZE,
                kind: ZKL_EVENT_LOCK,
                state: state as i32,
                previous: previous as i32,
                lock: handles.find(lock),
                path: text.as_ptr(),
                token,
                pass: i64::from(pass),
            },
        };
        // SAFETY: the caller gave a function of this type; what it is lent outlives the call.
        unsafe { (self.cb)(self.user.pointer(), &raw const told) };
    }
}

const SIZE: u32 = size_of::<zkl_event>() as u32;
