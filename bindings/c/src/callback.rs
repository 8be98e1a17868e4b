//! The callbacks that objects keep for the program: the `user` pointers of all callbacks, the listeners of
//! `zkl_lock_set_event_callback`, and the callbacks for revocation requests. This module does not know which object keeps a
//! callback or which arguments the callback has. It must not use other modules of this crate.

use std::ffi::c_void;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use zklock::{Listener, Result, Status};

/// The library calls this function when it no longer needs the pointer user.
pub type zkl_user_drop = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// The `user` pointer of a callback. If the library owns the pointer, dropping this value calls `user_drop`.
pub(crate) struct UserData {
    user: *mut c_void,
    user_drop: zkl_user_drop,
    is_taken: AtomicBool,
}

// SAFETY: zklock.h says that the library passes `user` to another thread. The library never dereferences `user`.
unsafe impl Send for UserData {}
// SAFETY: the reason for `Send` also applies to `Sync`. The library makes the calls with `user` one after the other.
unsafe impl Sync for UserData {}

impl UserData {
    pub(crate) const fn new(user: *mut c_void, user_drop: zkl_user_drop) -> Self {
        Self { user, user_drop, is_taken: AtomicBool::new(false) }
    }

    /// Makes the library the owner of the pointer.
    pub(crate) fn take_ownership(&self) {
        self.is_taken.store(true, Ordering::Release);
    }

    pub(crate) const fn pointer(&self) -> *mut c_void {
        self.user
    }
}

impl Drop for UserData {
    fn drop(&mut self) {
        if let (Some(user_drop), true) = (self.user_drop, *self.is_taken.get_mut()) {
            // SAFETY: the caller passed a function of this type for this pointer, and the library calls this function only
            // once.
            unsafe { user_drop(self.user) };
        }
    }
}

/// The listeners that `zkl_lock_set_event_callback` sets for a lock. The next call of this function replaces the listeners.
#[derive(Default)]
pub struct ReplaceableListeners(Mutex<ListenerSlot>);

#[derive(Default)]
struct ListenerSlot {
    listeners: Vec<Listener>,
    is_closed: bool,
}

impl ReplaceableListeners {
    /// Replaces the listeners, and waits for running calls of the previous listeners. After `close`, the call fails with
    /// CLOSED.
    pub(crate) fn set(&self, listeners: Vec<Listener>) -> Result<()> {
        let before = {
            let mut slot = lock(&self.0);
            if slot.is_closed {
                drop(slot);
                return Err(Status::Closed.into());
            }
            mem::replace(&mut slot.listeners, listeners)
        };
        // Dropping a listener waits until its callback returns, and the callback may call this function. The mutex must
        // therefore not be locked during the drop.
        drop(before);
        Ok(())
    }

    /// Removes the listeners of a handle that is being freed, without waiting for their callbacks.
    pub(crate) fn close(&self) {
        let before = {
            let mut slot = lock(&self.0);
            slot.is_closed = true;
            mem::take(&mut slot.listeners)
        };
        before.into_iter().for_each(Listener::remove_nowait);
    }
}

/// The core calls this function with the path of each node that receives a request.
type Handler = Box<dyn Fn(&str) + Send + Sync>;

/// The current callback of a handle, and the previous callbacks that the core has not dropped yet.
#[derive(Default)]
pub struct RevocationCallbacks(Mutex<CallbackList>);

#[derive(Default)]
struct CallbackList {
    callbacks: Vec<Weak<RevocationCallback>>,
    is_closed: bool,
}

/// The `user` pointer of a callback. The field is empty after the handle was freed. The core owns this object, and drops the
/// object when the core no longer needs the callback.
struct RevocationCallback(Mutex<Option<Arc<UserData>>>);

impl RevocationCallbacks {
    /// Passes a callback to the core. If `cb` is `None`, the function passes `None` to the core. If the core refuses the
    /// callback, `user` still belongs to the program.
    pub(crate) fn set<F: Fn(*mut c_void) + Send + Sync + 'static>(
        &self,
        cb: Option<F>,
        user: UserData,
        give: impl FnOnce(Option<Handler>) -> Result<()>,
    ) -> Result<()> {
        let user = Arc::new(user);
        let callback = Arc::new(RevocationCallback(Mutex::new(Some(Arc::clone(&user)))));
        let handler = cb.map(|cb| self.handler(cb, Arc::clone(&callback))).transpose()?;
        give(handler).inspect_err(|_| callback.retire())?;
        user.take_ownership();
        Ok(())
    }

    fn handler<F: Fn(*mut c_void) + Send + Sync + 'static>(
        &self,
        cb: F,
        callback: Arc<RevocationCallback>,
    ) -> Result<Handler> {
        let mut given = lock(&self.0);
        if given.is_closed {
            return Err(Status::Closed.into());
        }
        given.callbacks.retain(|callback| callback.strong_count() > 0);
        given.callbacks.push(Arc::downgrade(&callback));
        Ok(Box::new(move |_| {
            let user = lock(&callback.0).clone();
            if let Some(user) = user {
                cb(user.pointer());
            }
        }))
    }

    /// Prevents later calls of the callbacks of a handle that is being freed.
    pub(crate) fn close(&self) {
        let given = {
            let mut given = lock(&self.0);
            given.is_closed = true;
            mem::take(&mut given.callbacks)
        };
        given.iter().filter_map(Weak::upgrade).for_each(|callback| callback.retire());
    }
}

impl RevocationCallback {
    /// Prevents later calls of this callback.
    fn retire(&self) {
        let user = lock(&self.0).take();
        // Dropping the callback can call user_drop of the program. The mutex must not be locked during this call.
        drop(user);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
