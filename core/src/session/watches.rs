//! Records the watches of one kind of one session. For each watch, the module records the subscribers, and whether the
//! server has the watch.
//!
//! A server keeps at most one watch of a kind for each path and session, and removes the watch when the watch fires. If
//! the connection is lost, the server drops all watches of the session. This module therefore combines all subscribers
//! of a path into one watch. After a reconnect, the module lists the watches that the session must set again. The
//! module also reports watches without subscribers.

use std::collections::BTreeMap;
use std::fmt;

/// The recipient of watch events. The owner of the session assigns the ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Subscriber {
    Machine(MachineId),
    Cache(CacheId),
}

/// Identifies a state machine of the engine. Later state machines have greater ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MachineId(pub(crate) u64);

impl fmt::Debug for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies a directory cache. Later caches have greater ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CacheId(pub(crate) u64);

#[derive(Debug, Default)]
struct WatchEntry {
    /// True if the server has confirmed the watch, and the watch has not fired since then.
    set: bool,
    /// The number of requests that set the watch and are not answered yet.
    pending_requests: u32,
    subscribers: Vec<Subscriber>,
}

impl WatchEntry {
    fn is_idle(&self) -> bool {
        !self.set && self.pending_requests == 0 && self.subscribers.is_empty()
    }
}

/// Describes what the session must do with the server's watch after the subscribers of the watch have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum WatchAction {
    /// Leave the watch unchanged.
    Keep,
    /// Remove the watch from the server, because the watch has no subscribers.
    Remove,
}

#[derive(Debug, Default)]
pub(super) struct Watches {
    entries: BTreeMap<String, WatchEntry>,
}

impl Watches {
    /// Adds a subscriber. The caller has already sent a request that sets the watch.
    pub(super) fn subscribe(&mut self, path: &str, subscriber: Subscriber) {
        let entry = self.entries.entry(path.to_owned()).or_default();
        entry.pending_requests += 1;
        if !entry.subscribers.contains(&subscriber) {
            entry.subscribers.push(subscriber);
        }
    }

    /// Handles the reply to a request that sets the watch. `set` is false if the server has not set the watch, because
    /// the node does not exist or the connection was lost.
    pub(super) fn on_reply(&mut self, path: &str, set: bool) -> WatchAction {
        let Some(entry) = self.entries.get_mut(path) else { return WatchAction::Keep };
        entry.pending_requests = entry.pending_requests.saturating_sub(1);
        entry.set |= set;
        // If the server has no watch, this method removes the subscribers. The subscribers must then subscribe again.
        let wanted = entry.set && !entry.subscribers.is_empty();
        if wanted || entry.pending_requests > 0 {
            return WatchAction::Keep;
        }
        self.drop_entry(path)
    }

    /// Removes a subscriber.
    pub(super) fn unsubscribe(&mut self, path: &str, subscriber: Subscriber) -> WatchAction {
        let Some(entry) = self.entries.get_mut(path) else { return WatchAction::Keep };
        entry.subscribers.retain(|&s| s != subscriber);
        if !entry.subscribers.is_empty() || entry.pending_requests > 0 {
            return WatchAction::Keep;
        }
        self.drop_entry(path)
    }

    /// Removes a subscriber of a node that this session is about to delete. The session need not remove the watch from
    /// the server, because the deletion of the node makes the watch fire.
    pub(super) fn unsubscribe_before_delete(&mut self, path: &str, subscriber: Subscriber) {
        let Some(entry) = self.entries.get_mut(path) else { return };
        entry.subscribers.retain(|&s| s != subscriber);
        if entry.is_idle() {
            self.entries.remove(path);
        }
    }

    /// Replaces the subscriber `from` by the subscriber `to`.
    pub(super) fn transfer(&mut self, path: &str, from: Subscriber, to: Subscriber) {
        let Some(entry) = self.entries.get_mut(path) else { return };
        entry.subscribers.iter_mut().filter(|s| **s == from).for_each(|s| *s = to);
    }

    /// Removes and returns the subscribers of a watch that fired. These subscribers must subscribe again if they need
    /// further events.
    pub(super) fn on_fired(&mut self, path: &str) -> Vec<Subscriber> {
        let Some(entry) = self.entries.get_mut(path) else { return Vec::new() };
        entry.set = false;
        let subscribers = std::mem::take(&mut entry.subscribers);
        if entry.is_idle() {
            self.entries.remove(path);
        }
        subscribers
    }

    /// Drops entries without subscribers. Returns the paths of the watches that the session must set again after a
    /// reconnect.
    pub(super) fn paths_to_restore(&mut self) -> Vec<String> {
        self.entries.retain(|_, entry| !entry.subscribers.is_empty());
        self.entries.iter().filter(|(_, entry)| entry.set).map(|(path, _)| path.clone()).collect()
    }

    /// Returns whether the server may have a watch for this path.
    pub(super) fn contains(&self, path: &str) -> bool {
        self.entries.contains_key(path)
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Returns the number of watches that the server has confirmed and that have not fired since then.
    pub(super) fn count(&self) -> usize {
        self.entries.values().filter(|entry| entry.set).count()
    }

    fn drop_entry(&mut self, path: &str) -> WatchAction {
        match self.entries.remove(path) {
            Some(WatchEntry { set: true, .. }) => WatchAction::Remove,
            _ => WatchAction::Keep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Subscriber = Subscriber::Machine(MachineId(1));
    const SECOND: Subscriber = Subscriber::Machine(MachineId(2));

    #[test]
    fn last_unsubscribe_removes_watch() {
        let mut watches = Watches::default();
        watches.subscribe("/a", FIRST);
        watches.subscribe("/a", SECOND);
        assert_eq!(watches.on_reply("/a", true), WatchAction::Keep);
        assert_eq!(watches.on_reply("/a", true), WatchAction::Keep);
        assert_eq!(watches.unsubscribe("/a", FIRST), WatchAction::Keep);
        assert_eq!(watches.unsubscribe("/a", SECOND), WatchAction::Remove);
        assert_eq!(watches.count(), 0);
    }

    #[test]
    fn unsubscribe_before_reply_removes_watch_on_reply() {
        let mut watches = Watches::default();
        watches.subscribe("/a", FIRST);
        assert_eq!(watches.unsubscribe("/a", FIRST), WatchAction::Keep);
        assert_eq!(watches.on_reply("/a", true), WatchAction::Remove);

        watches.subscribe("/a", FIRST);
        assert_eq!(watches.unsubscribe("/a", FIRST), WatchAction::Keep);
        assert_eq!(watches.on_reply("/a", false), WatchAction::Keep);
        assert!(watches.entries.is_empty());
    }

    #[test]
    fn refused_watch_leaves_no_entry() {
        let mut watches = Watches::default();
        watches.subscribe("/a", FIRST);
        assert_eq!(watches.on_reply("/a", false), WatchAction::Keep);
        assert!(watches.entries.is_empty());
    }

    #[test]
    fn a_fired_watch_is_not_restored() {
        let mut watches = Watches::default();
        for path in ["/a", "/b"] {
            watches.subscribe(path, FIRST);
            assert_eq!(watches.on_reply(path, true), WatchAction::Keep);
        }
        assert_eq!(watches.on_fired("/a"), [FIRST]);
        assert_eq!(watches.paths_to_restore(), ["/b"]);
    }

    #[test]
    fn unsubscribe_before_delete_keeps_watch_until_it_fires() {
        let mut watches = Watches::default();
        watches.subscribe("/a", FIRST);
        assert_eq!(watches.on_reply("/a", true), WatchAction::Keep);
        watches.unsubscribe_before_delete("/a", FIRST);
        assert_eq!(watches.on_fired("/a"), []);
        assert!(watches.entries.is_empty());
    }
}
