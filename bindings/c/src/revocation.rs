//! Revocation: a request to give up what is held, and who hears of it.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use zklock::{Result, Status};
use zklock_abi::arg;
use zklock_abi::guard::status;
use zklock_abi::handle;

use crate::client::zkl_client;
use crate::event::{User, zkl_user_drop};
use crate::lock::zkl_lock;
use crate::semaphore::zkl_semaphore;
use crate::status::zkl_status;

/// Is called when somebody asks for the lock to be given up. It must return: no exception, no longjmp.
pub type zkl_revocable_cb = Option<unsafe extern "C" fn(user: *mut c_void, lock: *mut zkl_lock)>;

/// Is called when somebody asks for leases of the semaphore to be given back. It must return: no exception, no longjmp.
pub type zkl_semaphore_revocable_cb = Option<unsafe extern "C" fn(user: *mut c_void, semaphore: *mut zkl_semaphore)>;

/// Has cb called, with user and the lock as they were given, whenever somebody asks for what is held or waited for by this lock
/// to be given up (zkl_revoke, Curator's Revoker): once for each node that is asked for. It is a request: nothing is taken away.
/// The calls come on the thread of the event callbacks, one after the other with those, in the order in which things happened, and cb
/// may do what these may (Callbacks, above). While nobody is called, a node that is asked for again and again may be told once. Since holds belong to threads, that of a mutex or a read/write lock is to be released by its own.
///
/// Another callback takes the place of the one before; with cb NULL there is none any more, and user_drop is called at once.
/// user_drop, which may be NULL, is called once: when another callback has taken its place, the lock or its client was freed, and
/// cb has returned for the last time. A call that is just beginning when the lock is freed may still come. The callback of a multi-lock is
/// that of each of its locks, in the place of their own, and serves until the multi-lock is freed, or all of them are.
///
/// Returns: ZKL_OK; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL, and user is not taken: user_drop is not called.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_set_revocable(
    lock: *mut zkl_lock,
    cb: zkl_revocable_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
) -> zkl_status {
    status(|| {
        let named = handle::get(lock)?;
        // A handle is a number; as one it may go to another thread.
        let address = lock.addr();
        let cb = cb.map(|cb| {
            move |user: *mut c_void| {
                // SAFETY: the caller gave a function of this type, and `user` for it.
                unsafe { cb(user, std::ptr::without_provenance_mut(address)) };
            }
        });
        named.callbacks.set(cb, User::new(user, user_drop), |handler| named.set_revocable(handler))
    })
}

/// The same for a semaphore, of which leases are asked back. Those that are out when it is freed can't be asked back any more.
///
/// Returns: as zkl_set_revocable.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_semaphore_set_revocable(
    semaphore: *mut zkl_semaphore,
    cb: zkl_semaphore_revocable_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
) -> zkl_status {
    status(|| {
        let open = handle::get(semaphore)?;
        let address = semaphore.addr();
        let cb = cb.map(|cb| {
            move |user: *mut c_void| {
                // SAFETY: as above.
                unsafe { cb(user, std::ptr::without_provenance_mut(address)) };
            }
        });
        open.callbacks.set(cb, User::new(user, user_drop), |handler| open.set_revocable(handler))
    })
}

/// Asks the owner of a node to give up what he holds or waits for by it. The node's path is that which zkl_participants shows. It is a
/// request, which he hears of if he wants to (zkl_set_revocable, Curator's makeRevocable).
///
/// Returns: ZKL_OK, also where there is no such node: it was given up; ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED,
/// ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_INTERNAL.
/// Blocks for the session timeout at most; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_revoke(client: *mut zkl_client, node_path: *const c_char) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends it for the length of the call.
        let node_path = unsafe { arg::text("node_path", node_path)? };
        handle::get(client)?.client.revoke(node_path)
    })
}

/// What the core calls with the path of a node that is asked for.
type Handler = Box<dyn Fn(&str) + Send + Sync>;

/// The callbacks of one handle: that which is in force, and others that the core has not let go of yet.
#[derive(Default)]
pub struct Callbacks(Mutex<Given>);

#[derive(Default)]
struct Given {
    callbacks: Vec<Weak<Callback>>,
    is_closed: bool,
}

/// A callback's user, until the handle is freed. It belongs to the core, which drops it when it needs it no more.
struct Callback(Mutex<Option<Arc<User>>>);

impl Callbacks {
    /// Has the core take a callback, or none. If it does not, the user stays with the program.
    fn set<F: Fn(*mut c_void) + Send + Sync + 'static>(
        &self,
        cb: Option<F>,
        user: User,
        give: impl FnOnce(Option<Handler>) -> Result<()>,
    ) -> Result<()> {
        let user = Arc::new(user);
        let callback = Arc::new(Callback(Mutex::new(Some(Arc::clone(&user)))));
        let handler = cb.map(|cb| self.handler(cb, Arc::clone(&callback))).transpose()?;
        give(handler).inspect_err(|_| callback.retire())?;
        user.take();
        Ok(())
    }

    fn handler<F: Fn(*mut c_void) + Send + Sync + 'static>(&self, cb: F, callback: Arc<Callback>) -> Result<Handler> {
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

    /// The handle is freed: they are not called any more.
    pub(crate) fn close(&self) {
        let given = {
            let mut given = lock(&self.0);
            given.is_closed = true;
            std::mem::take(&mut given.callbacks)
        };
        given.iter().filter_map(Weak::upgrade).for_each(|callback| callback.retire());
    }
}

impl Callback {
    /// It is not called any more.
    fn retire(&self) {
        let user = lock(&self.0).take();
        // Not under the lock: it may call the program.
        drop(user);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
