//! The registry of the handlers of one client. The registry selects the handlers that receive an event or a revocation
//! request. The registry starts no threads and calls no handler.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use zklock_core::engine::{Event, HoldId, LockId, Notification};

/// A closure from the program, which the client calls for each event.
pub(crate) type EventHandler = dyn Fn(&Event) + Send + Sync;

/// A handler for revocation requests. The handler receives the path of the node whose revocation was requested.
pub(crate) type RevocationHandler = dyn Fn(&str) + Send + Sync;

/// Selects which events of a lock or of a hold a listener receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(i32)]
#[non_exhaustive]
pub enum Listen {
    /// The listener is notified of every change to every hold.
    #[default]
    All = 0,
    /// The listener receives only losses. A loss is the change of a hold from [`Held`](crate::LockState::Held) or
    /// [`Suspended`](crate::LockState::Suspended) to [`Uncertain`](crate::LockState::Uncertain) or
    /// [`Lost`](crate::LockState::Lost). If the program closes the client, the end of each safe hold is also a loss,
    /// and the new state in the event is [`Free`](crate::LockState::Free). In this case, the client waits up to one
    /// second for the handler to return before it ends the session. During this wait, no other client can acquire the
    /// lock.
    Loss = 1,
}

/// The id of a handler in its client's registry. A registry never reuses an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HandlerId(u64);

/// A scope selects the events for a handler: the events of a client, of a lock, or of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The session and all holds of the client.
    Client,
    /// All holds of a lock.
    Lock(LockId),
    /// The hold of a lock or of leases with this id.
    Hold(LockId, HoldId),
    /// The revocation requests for a lock.
    Revocation(LockId),
}

#[derive(Clone)]
pub(super) enum Handler {
    Event(Arc<EventHandler>),
    Revocation(Arc<RevocationHandler>),
}

struct RegisteredHandler {
    scope: Scope,
    which: Listen,
    handler: Handler,
}

/// The handlers of one client.
#[derive(Default)]
pub(super) struct Registry {
    entries: BTreeMap<HandlerId, RegisteredHandler>,
    client_handlers: Vec<HandlerId>,
    lock_handlers: HashMap<LockId, Vec<HandlerId>>,
    revocation_handlers: HashMap<LockId, HandlerId>,
    /// The number of handlers that receive only losses.
    loss_handler_count: usize,
    last_id: u64,
}

impl Registry {
    pub(super) fn add(&mut self, scope: Scope, which: Listen, handler: Handler) -> HandlerId {
        self.last_id += 1;
        let id = HandlerId(self.last_id);
        match scope {
            Scope::Client => self.client_handlers.push(id),
            Scope::Lock(lock) | Scope::Hold(lock, _) => self.lock_handlers.entry(lock).or_default().push(id),
            Scope::Revocation(lock) => drop(self.revocation_handlers.insert(lock, id)),
        }
        self.loss_handler_count += usize::from(which == Listen::Loss);
        self.entries.insert(id, RegisteredHandler { scope, which, handler });
        id
    }

    /// Removes a handler and returns it. The caller must not hold a lock while it drops the handler, because the drop
    /// may run program code.
    pub(super) fn remove(&mut self, id: HandlerId) -> Option<Handler> {
        let RegisteredHandler { scope, which, handler } = self.entries.remove(&id)?;
        match scope {
            Scope::Client => self.client_handlers.retain(|&other| other != id),
            Scope::Lock(lock) | Scope::Hold(lock, _) => {
                let listening = self.lock_handlers.entry(lock).or_default();
                listening.retain(|&other| other != id);
                if listening.is_empty() {
                    self.lock_handlers.remove(&lock);
                }
            }
            Scope::Revocation(lock) => {
                self.revocation_handlers.remove(&lock);
            }
        }
        self.loss_handler_count -= usize::from(which == Listen::Loss);
        Some(handler)
    }

    pub(super) fn get(&self, id: HandlerId) -> Option<(Handler, Scope)> {
        self.entries.get(&id).map(|entry| (entry.handler.clone(), entry.scope))
    }

    /// Returns the handler for revocation requests for a lock.
    pub(super) fn revocation_handler(&self, lock: LockId) -> Option<HandlerId> {
        self.revocation_handlers.get(&lock).copied()
    }

    /// Returns the ids of the handlers that receive this event or request. The ids are in the order in which the
    /// handlers must be called.
    pub(super) fn matching<'a>(&'a self, notification: &'a Notification) -> impl Iterator<Item = HandlerId> + 'a {
        let of_lock = match notification {
            Notification::Event(Event::Lock { lock, .. }) | Notification::Forfeit(Event::Lock { lock, .. }) => {
                self.lock_handlers.get(lock)
            }
            _ => None,
        };
        let of_client = if matches!(notification, Notification::Revocation(_)) { &[] } else { &*self.client_handlers };
        let listening = of_client.iter().chain(of_lock.into_iter().flatten()).copied();
        let revocation_handler = match notification {
            Notification::Revocation(revocation) => self.revocation_handler(revocation.lock),
            _ => None,
        };
        listening
            .filter(|id| self.entries.get(id).is_some_and(|entry| entry.matches(notification)))
            .chain(revocation_handler)
    }

    /// Returns whether this handler receives only losses.
    pub(super) fn is_for_losses_only(&self, id: HandlerId) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.which == Listen::Loss)
    }

    /// Returns whether the registry contains a handler that receives only losses.
    pub(super) const fn has_loss_handlers(&self) -> bool {
        self.loss_handler_count > 0
    }

    /// Removes all handlers and returns them. The caller must not hold a lock while it drops the handlers (see
    /// [`remove`](Self::remove)).
    pub(super) fn take_all(&mut self) -> Self {
        std::mem::replace(self, Self { last_id: self.last_id, ..Self::default() })
    }

    #[cfg(all(test, zklock_loom))]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl RegisteredHandler {
    fn matches(&self, notification: &Notification) -> bool {
        let is_of = match (self.scope, notification) {
            (Scope::Hold(_, id), Notification::Event(event) | Notification::Forfeit(event)) => {
                matches!(*event, Event::Lock { token, fencing_pass, .. } if id == HoldId { token, fencing_pass })
            }
            _ => true,
        };
        is_of && (self.which == Listen::All || notification.is_loss())
    }
}
