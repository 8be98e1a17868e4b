//! Events, which are the state changes of sessions and holds, in the form that a callback receives. This module must not use
//! clients or configs: `listener.rs` registers the callbacks.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use zklock::Event;

use crate::callback::UserData;
use crate::lock_object::{LockHandles, zkl_lock};

/// The session state of the client changed. The state and previous fields contain ZKL_STATE_* values.
pub const ZKL_EVENT_CLIENT: i32 = 0;
/// The state of a lock hold, or of leases, changed. The state and previous fields contain ZKL_LOCK_* values.
pub const ZKL_EVENT_LOCK: i32 = 1;

/// A state change. The struct and the memory that it points to belong to the library. Both are valid until the callback
/// returns.
#[repr(C)]
pub struct zkl_event {
    /// The size of this struct in the library. Later versions only add fields at the end. Before a program reads an added
    /// field, the program must check that size includes the field.
    pub size: u32,
    /// The kind of the event: a ZKL_EVENT_*.
    pub kind: i32,
    /// The new state.
    pub state: i32,
    /// The previous state.
    pub previous: i32,
    /// The lock of the hold. This field is NULL if the event is about a session or leases, or if the lock was freed. For a
    /// multi-lock, the library reports a separate event for each member lock.
    pub lock: *mut zkl_lock,
    /// The path of the lock or semaphore; NULL if the event is about a session.
    pub path: *const c_char,
    /// The fencing token of the hold or leases; 0 if the event is about a session.
    pub token: i64,
    /// The number of local hand-overs under this token before the hold began (zkl_fencing_pass). The number is 0 if the event
    /// is about a session or leases.
    pub fencing_pass: i64,
}

/// A callback that receives each event. The callback must return normally. A callback must not throw an exception or call
/// longjmp.
pub type zkl_event_cb = Option<unsafe extern "C" fn(user: *mut c_void, event: *const zkl_event)>;

/// A program callback, and the `user` pointer for this callback.
pub(crate) struct EventCallback {
    cb: unsafe extern "C" fn(user: *mut c_void, event: *const zkl_event),
    user: Arc<UserData>,
}

impl EventCallback {
    pub(crate) fn new(cb: unsafe extern "C" fn(*mut c_void, *const zkl_event), user: Arc<UserData>) -> Self {
        Self { cb, user }
    }

    fn call(&self, event: &Event, handles: &LockHandles) {
        // ZooKeeper does not allow a NUL in a path.
        let text = match event {
            Event::Lock { path, .. } => CString::new(path.as_bytes()).unwrap_or_default(),
            _ => CString::default(),
        };
        let c_event = match *event {
            Event::Client { state, previous, .. } => zkl_event {
                size: SIZE,
                kind: ZKL_EVENT_CLIENT,
                state: state as i32,
                previous: previous as i32,
                lock: ptr::null_mut(),
                path: ptr::null(),
                token: 0,
                fencing_pass: 0,
            },
            Event::Lock { lock, token, fencing_pass, state, previous, .. } => zkl_event {
                size: SIZE,
                kind: ZKL_EVENT_LOCK,
                state: state as i32,
                previous: previous as i32,
                lock: handles.find(lock),
                path: text.as_ptr(),
                token,
                fencing_pass: i64::from(fencing_pass),
            },
            // The C interface has no kind for other events.
            _ => return,
        };
        // SAFETY: the caller passed a function of this type, and the arguments outlive the call.
        unsafe { (self.cb)(self.user.pointer(), &raw const c_event) };
    }
}

/// Makes the handler that the Rust API calls for the events of a client. Events get their lock handles from `handles`.
pub(crate) fn handler(callback: Arc<EventCallback>, handles: LockHandles) -> impl Fn(&Event) + Send + Sync + 'static {
    move |event| callback.call(event, &handles)
}

const SIZE: u32 = size_of::<zkl_event>() as u32;
