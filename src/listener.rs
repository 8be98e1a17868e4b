//! Listeners. A handler stays registered with the event deliveries of one or more clients until the program drops the
//! listener. The code in this file does not call handlers, and does not depend on locks.

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use zklock_core::error::Result;
use zklock_process::ForkEpoch;

use crate::runtime::{EventDelivery, EventHandler, HandlerId, Listen, Scope};

/// The registration of an event handler. The handler stays registered until the program drops the listener.
///
/// After the drop has returned, the handler is not running on another thread and is not called again. If the handler is
/// running on another thread, the drop waits, with no time limit, until the handler returns. The caller must therefore
/// not hold a mutex that the handler needs. If a handler drops its own listener, the drop does not wait, and the
/// handler is not called again. In a forked child, the drop does nothing. The client may be closed before the listener
/// is dropped.
#[must_use = "the handler is removed when the listener is dropped"]
pub struct Listener {
    epoch: ForkEpoch,
    handlers: Vec<(Arc<EventDelivery>, HandlerId)>,
}

impl Listener {
    /// Registers the same handler with every event delivery in `places`.
    pub(crate) fn register<'a>(
        handler: &Arc<EventHandler>,
        which: Listen,
        places: impl Iterator<Item = Result<(&'a Arc<EventDelivery>, Scope)>>,
    ) -> Result<Self> {
        let mut listener = Self { epoch: ForkEpoch::current(), handlers: Vec::new() };
        for place in places {
            let (delivery, scope) = place?;
            let number = delivery.add_handler(scope, which, Arc::clone(handler))?;
            listener.handlers.push((Arc::clone(delivery), number));
        }
        Ok(listener)
    }

    /// Removes the handler without waiting for a handler call that is still running. An object calls this method if
    /// dropping the object itself must not wait.
    #[doc(hidden)]
    pub fn remove_nowait(mut self) {
        let places = mem::take(&mut self.handlers);
        match self.epoch.check() {
            Ok(()) => places.iter().for_each(|(delivery, number)| delivery.remove_nowait(*number)),
            Err(_) => mem::forget(places),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let places = mem::take(&mut self.handlers);
        match self.epoch.check() {
            Ok(()) => places.iter().for_each(|(delivery, number)| delivery.remove(*number)),
            // The registrations belong to the parent process, so the child leaves them unchanged.
            Err(_) => mem::forget(places),
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

/// The current listener of an object. The program can replace the handler of the object. Dropping this value does not
/// wait for a running handler.
#[derive(Default)]
pub(crate) struct ReplaceableListener(Mutex<Option<Listener>>);

impl ReplaceableListener {
    /// Replaces the listener, and drops the previous [`Listener`]. The drop waits until the previous handler has
    /// returned.
    pub(crate) fn set(&self, listener: Option<Listener>) {
        let before = mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), listener);
        drop(before);
    }

    pub(crate) fn remove_nowait(&self) {
        let before = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        before.into_iter().for_each(Listener::remove_nowait);
    }
}

impl Drop for ReplaceableListener {
    fn drop(&mut self) {
        self.remove_nowait();
    }
}
