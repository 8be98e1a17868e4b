//! The registration of callbacks for events. A config, a client and a lock have one callback each, which the program can replace.
//! A program can also register any number of listeners, and must free each listener. This module must not call a callback.

use std::ffi::c_void;
use std::sync::Arc;

use zklock::internal::PerProcess;
use zklock::{Error, Listen, Listener, Lock, Result, Status};
use zklock_abi::arg::{self, Output};
use zklock_abi::boundary::{free, status};
use zklock_abi::handle::{self, Handle, HandleKind, Table};

use crate::callback::{UserData, zkl_user_drop};
use crate::client::zkl_client;
use crate::config::{self, zkl_config};
use crate::event::{EventCallback, handler, zkl_event_cb};
use crate::hold::{self, zkl_hold};
use crate::lock_object::{LockHandles, zkl_lock};
use crate::status::zkl_status;

/// The listener is notified of every change to every hold.
pub const ZKL_LISTEN_ALL: i32 = 0;
/// The listener receives only losses. A loss occurs when a hold changes from ZKL_LOCK_HELD or ZKL_LOCK_SUSPENDED to
/// ZKL_LOCK_UNCERTAIN or ZKL_LOCK_LOST, or when the program frees the hold's client. If the program frees the client, the new
/// state in the event is ZKL_LOCK_FREE. The function zkl_client_free waits up to one second for the listener's callback before
/// it ends the session. While zkl_client_free waits for the callback, no other client can acquire the lock.
pub const ZKL_LISTEN_LOSS: i32 = 1;

const _: () = {
    assert!(ZKL_LISTEN_ALL == Listen::All as i32);
    assert!(ZKL_LISTEN_LOSS == Listen::Loss as i32);
};

/// The registration of a callback for events. The registration ends when the listener is freed. A client, a lock or leases can
/// have any number of listeners.
pub struct zkl_listener(());

impl Handle for zkl_listener {
    type Object = Vec<Listener>;
    const KIND: HandleKind = HandleKind::Listener;

    fn table() -> &'static Table<Vec<Listener>> {
        static TABLE: PerProcess<Table<Vec<Listener>>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

/// Sets a config's callback for state changes. Each client made with this config calls `cb` for every change of its session
/// and of its holds, and passes `user` to `cb`. For each client, the library makes one call at a time, in the order of the
/// changes.
///
/// By default, the library calls `cb` on its event thread. If a client has a loss in its queue while the event thread runs
/// another callback, a second thread calls the callbacks of this client. The callbacks of two clients can therefore run at the
/// same time. A program can also call the callbacks on its own threads (zkl_config_set_poll_events). The Callbacks section
/// above describes which functions `cb` may call.
///
/// If a hold and the session change at the same moment, the client reports the hold's event first. For example, the client
/// reports ZKL_LOCK_SUSPENDED for a hold before it reports ZKL_STATE_SUSPENDED for the session. Each client queues up to 1024
/// separate events. If the queue is full, the client merges the events of each hold into one event, and the events of the
/// session into another. Merging drops intermediate states. Even after a merge, the previous state in an event equals the new
/// state in the event before it. The last event contains the current state. The client always reports the loss of a hold. If
/// the client loses several sessions one after the other while it merges events, the client sometimes reports only one of these
/// losses.
///
/// If `user_drop` is not NULL, the library calls `user_drop` once. This call occurs when neither the config nor an open client
/// uses the callback any more, and the last call of `cb` has returned. If `cb` is NULL, the config has no callback, and the
/// library calls `user_drop` at once.
///
/// Returns: ZKL_OK, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL. On failure, the library does not use the pointer `user` and
/// does not call `user_drop`.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_config_set_event_callback(
    config: *mut zkl_config,
    cb: zkl_event_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
) -> zkl_status {
    status(|| set(cb, user, user_drop, |callback| config::set_callback(config, callback)))
}

/// Sets a callback for the events of one client. The callback receives changes that are still queued, and all later changes.
/// The rules of zkl_config_set_event_callback apply to this callback. The library also calls the callback of the config. This
/// function is useful for code that receives a client from another part of the program. A later call of
/// zkl_client_set_event_callback replaces the callback. If `cb` is NULL, the call removes the callback and calls `user_drop` at
/// once.
///
/// After the function has returned, the previous callback is not running on another thread, and the library does not call this
/// callback again. If the previous callback itself calls zkl_client_set_event_callback, the function does not wait. If
/// `user_drop` is not NULL, the library calls `user_drop` after the callback is replaced or the client is freed. The library
/// calls `user_drop` only once, after the last call of `cb` has returned.
///
/// Returns: ZKL_OK, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL. On failure, the library does not
/// use the pointer `user` and does not call `user_drop`.
/// Blocks while the previous callback is running. Any thread may call this function.
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

/// Registers a callback for the events of a client. The callback receives the queued changes and all later changes of the
/// session and of the holds. Until the listener is freed, the client calls `cb` and passes `user` to it. The rules of
/// zkl_config_set_event_callback apply to these calls. Other callbacks and listeners also receive these events. The client may
/// call `cb` before zkl_client_listen returns. The caller must free the new listener, `*listener_out`, with zkl_listener_free.
///
/// If `user_drop` is not NULL, the library calls `user_drop` after the listener or the client is freed. The library calls
/// `user_drop` only once, after the last call of `cb` has returned.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL. On failure, the
/// library does not use the pointer `user` and does not call `user_drop`.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_client_listen(
    client: *mut zkl_client,
    cb: zkl_event_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
    listener_out: *mut *mut zkl_listener,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("listener_out", listener_out)? };
        let client_object = handle::get(client)?;
        out.set(register(cb, user, user_drop, |callback| {
            Ok(vec![client_object.client.listen(handler(callback, client_object.handles.clone()))?])
        })?);
        Ok(())
    })
}

/// Registers a callback for changes of all holds that are acquired through this lock handle. The holds can belong to any owner
/// in this process. With ZKL_LISTEN_ALL, `cb` receives every change. With ZKL_LISTEN_LOSS, `cb` receives only losses. For a
/// multi-lock, `cb` receives the changes of each member lock. All other rules of zkl_client_listen also apply to this function.
///
/// The listener receives changes that are still queued, and all later changes. Register the listener before the program
/// acquires the lock, or query the state of the lock after the registration. The token and the fencing_pass in an event
/// identify the hold. A listener remains registered when its lock is freed. After the lock is freed, the listener still
/// receives an event when a hold ends. In such an event, the lock field is NULL.
///
/// Returns: the same statuses as zkl_client_listen. The call also fails with ZKL_E_INVALID if the parameter `events` is not a
/// ZKL_LISTEN_*.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_lock_listen(
    lock: *mut zkl_lock,
    events: i32,
    cb: zkl_event_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
    listener_out: *mut *mut zkl_listener,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("listener_out", listener_out)? };
        let (which, lock) = (which(events)?, handle::get(lock)?);
        out.set(register(cb, user, user_drop, |callback| listen(lock.members_or_self(), which, &callback))?);
        Ok(())
    })
}

/// Registers a callback for changes of one hold. The rules of zkl_lock_listen also apply to a hold. The state of the hold can
/// change before the registration. The program should therefore query the state after it registers the callback. The events
/// contain no lock handle.
///
/// Returns: the same statuses as zkl_lock_listen, and also ZKL_E_NOT_OWNER if the program has already released the hold through
/// the lock.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_hold_listen(
    hold: *mut zkl_hold,
    events: i32,
    cb: zkl_event_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
    listener_out: *mut *mut zkl_listener,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { Output::new("listener_out", listener_out)? };
        let which = which(events)?;
        out.set(register(cb, user, user_drop, |callback| {
            let handler = handler(callback, LockHandles::default());
            hold::query(hold, |hold| Ok(vec![hold.listen(which, handler)?]))
        })?);
        Ok(())
    })
}

/// Frees a listener, and ends its registration. After the function has returned, the callback of the listener is not running on
/// another thread, and the library does not call this callback again. If the callback is running on another thread, the call
/// waits without a time limit until the callback returns. The caller must therefore not hold a mutex that the callback needs.
/// If a callback frees its own listener, zkl_listener_free does not wait, and the library does not call the callback again. The
/// parameter `listener` may be NULL. The program may free the lock, the leases or the client before it frees the listener. In
/// a forked child, the call does nothing.
///
/// Returns nothing. If `listener` is not a live handle, the call has no effect. The last error message does not change.
/// Blocks while the callback is running on another thread. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_listener_free(listener: *mut zkl_listener) {
    // Dropping the listener waits until its callback returns. The table must not be locked during this wait.
    free(|| handle::take(listener).map(drop));
}

/// Sets a callback for changes of all holds that are acquired through this lock handle. The holds can belong to any owner in
/// this process. The callback receives the same events as a listener with ZKL_LISTEN_ALL (zkl_lock_listen). A later call of
/// zkl_lock_set_event_callback replaces the callback. If `cb` is NULL, the call removes the callback and calls `user_drop` at
/// once.
///
/// After the function has returned, the previous callback is not running on another thread, and the library does not call this
/// callback again. If the previous callback itself calls zkl_lock_set_event_callback, the function does not wait. If
/// `user_drop` is not NULL, the library calls `user_drop` after the callback is replaced, or after the lock or its client is
/// freed. The library calls `user_drop` only once, after the last call of `cb` has returned. If the program frees the lock when
/// the library is about to call `cb`, the library can still make that call.
///
/// Returns: ZKL_OK, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL. On failure, the library does not
/// use the pointer `user` and does not call `user_drop`.
/// Blocks while the previous callback is running. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_lock_set_event_callback(
    lock: *mut zkl_lock,
    cb: zkl_event_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
) -> zkl_status {
    status(|| {
        let named = handle::get(lock)?;
        set(cb, user, user_drop, |callback| {
            let listeners =
                callback.map(|callback| listen(named.members_or_self(), Listen::All, &callback)).transpose()?;
            named.on_event.set(listeners.unwrap_or_default())
        })
    })
}

/// Passes a callback to `give`. If `cb` is NULL, the function passes `None` to `give`. After `give` has succeeded, the library
/// owns `user`. If `give` fails, `user` still belongs to the program.
fn set(
    cb: zkl_event_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
    give: impl FnOnce(Option<Arc<EventCallback>>) -> Result<()>,
) -> Result<()> {
    let user = Arc::new(UserData::new(user, user_drop));
    give(cb.map(|cb| Arc::new(EventCallback::new(cb, Arc::clone(&user)))))?;
    user.take_ownership();
    Ok(())
}

/// Registers a callback with `listen`, and makes a listener handle. If `listen` fails, `user` still belongs to the program.
fn register(
    cb: zkl_event_cb,
    user: *mut c_void,
    user_drop: zkl_user_drop,
    listen: impl FnOnce(Arc<EventCallback>) -> Result<Vec<Listener>>,
) -> Result<*mut zkl_listener> {
    let cb = cb.ok_or_else(|| arg::null_error("cb"))?;
    let user = Arc::new(UserData::new(user, user_drop));
    let listener = handle::insert(listen(Arc::new(EventCallback::new(cb, Arc::clone(&user))))?)?;
    user.take_ownership();
    Ok(listener)
}

/// Registers a callback with each lock. The handler of an event looks up the lock handle in the `LockHandles` of the client.
fn listen<'a>(
    locks: impl Iterator<Item = (&'a Lock, &'a LockHandles)>,
    which: Listen,
    callback: &Arc<EventCallback>,
) -> Result<Vec<Listener>> {
    locks.map(|(lock, handles)| lock.listen(which, handler(Arc::clone(callback), handles.clone()))).collect()
}

fn which(events: i32) -> Result<Listen> {
    match events {
        ZKL_LISTEN_ALL => Ok(Listen::All),
        ZKL_LISTEN_LOSS => Ok(Listen::Loss),
        _ => {
            let message = format!("events is {events}; expected ZKL_LISTEN_ALL (0) or ZKL_LISTEN_LOSS (1)");
            Err(Error::new(Status::Invalid, message))
        }
    }
}
