//! The watches of one session, of one kind: who asked for which node, and what the server knows of it.
//!
//! A server keeps one watch for a path however often it was asked for, and drops it when it fires; all of a session's
//! watches go with the connection. So this is where subscribers of one path meet, where a reconnect finds what has to be
//! set again, and where the last one who loses interest makes the watch superfluous.

use std::collections::BTreeMap;

/// What a watch is for; the session's owner gives out the numbers.
pub type Subscriber = u64;

#[derive(Debug, Default)]
struct Entry {
    /// The server confirmed a watch that has not fired yet.
    set: bool,
    /// Requests for it that are not answered yet.
    asked: u32,
    subscribers: Vec<Subscriber>,
}

impl Entry {
    fn is_idle(&self) -> bool {
        !self.set && self.asked == 0 && self.subscribers.is_empty()
    }
}

/// What to do about the server's watch after a change here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Then {
    /// Nothing.
    Leave,
    /// Nobody wants it any more: take it off the server.
    Remove,
}

#[derive(Debug, Default)]
pub(super) struct Watches {
    entries: BTreeMap<String, Entry>,
}

impl Watches {
    /// `subscriber` wants to hear of `path`, and a request that sets the watch is on its way.
    pub(super) fn ask(&mut self, path: &str, subscriber: Subscriber) {
        let entry = self.entries.entry(path.to_owned()).or_default();
        entry.asked += 1;
        if !entry.subscribers.contains(&subscriber) {
            entry.subscribers.push(subscriber);
        }
    }

    /// The request for it was answered: the watch is `set`, or it is not (no such node, connection lost).
    pub(super) fn answered(&mut self, path: &str, set: bool) -> Then {
        let Some(entry) = self.entries.get_mut(path) else { return Then::Leave };
        entry.asked = entry.asked.saturating_sub(1);
        entry.set |= set;
        // Where there is no watch, whoever still wants one has to ask again.
        let wanted = entry.set && !entry.subscribers.is_empty();
        if wanted || entry.asked > 0 {
            return Then::Leave;
        }
        self.drop_entry(path)
    }

    /// `subscriber` has lost interest.
    pub(super) fn unsubscribe(&mut self, path: &str, subscriber: Subscriber) -> Then {
        let Some(entry) = self.entries.get_mut(path) else { return Then::Leave };
        entry.subscribers.retain(|&s| s != subscriber);
        if !entry.subscribers.is_empty() || entry.asked > 0 {
            return Then::Leave;
        }
        self.drop_entry(path)
    }

    /// `subscriber` has lost interest, and the node is about to be deleted by this session: its watch will fire by itself.
    pub(super) fn unsubscribe_doomed(&mut self, path: &str, subscriber: Subscriber) {
        let Some(entry) = self.entries.get_mut(path) else { return };
        entry.subscribers.retain(|&s| s != subscriber);
        if entry.is_idle() {
            self.entries.remove(path);
        }
    }

    /// `to` takes the place of `from`.
    pub(super) fn hand_over(&mut self, path: &str, from: Subscriber, to: Subscriber) {
        let Some(entry) = self.entries.get_mut(path) else { return };
        entry.subscribers.iter_mut().filter(|s| **s == from).for_each(|s| *s = to);
    }

    /// The watch fired; gives those who wanted to hear of it. It has to be asked for again.
    pub(super) fn fired(&mut self, path: &str) -> Vec<Subscriber> {
        let Some(entry) = self.entries.get_mut(path) else { return Vec::new() };
        entry.set = false;
        let subscribers = std::mem::take(&mut entry.subscribers);
        if entry.is_idle() {
            self.entries.remove(path);
        }
        subscribers
    }

    /// The paths whose watches a new connection of the same session has to set again.
    pub(super) fn take_stock(&mut self) -> Vec<String> {
        // What nobody wants any more is simply not restored.
        self.entries.retain(|_, entry| !entry.subscribers.is_empty());
        self.entries.iter().filter(|(_, entry)| entry.set).map(|(path, _)| path.clone()).collect()
    }

    /// Whether the server may keep a watch for this path.
    pub(super) fn contains(&self, path: &str) -> bool {
        self.entries.contains_key(path)
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// How many watches the server is believed to keep.
    pub(super) fn count(&self) -> usize {
        self.entries.values().filter(|entry| entry.set).count()
    }

    fn drop_entry(&mut self, path: &str) -> Then {
        match self.entries.remove(path) {
            Some(Entry { set: true, .. }) => Then::Remove,
            _ => Then::Leave,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_takes_the_watch_along() {
        let mut watches = Watches::default();
        watches.ask("/a", 1);
        watches.ask("/a", 2);
        assert_eq!(watches.answered("/a", true), Then::Leave);
        assert_eq!(watches.answered("/a", true), Then::Leave);
        assert_eq!(watches.unsubscribe("/a", 1), Then::Leave);
        assert_eq!(watches.unsubscribe("/a", 2), Then::Remove);
        assert_eq!(watches.count(), 0);
    }

    #[test]
    fn interest_lost_before_the_answer_removes_it_on_the_answer() {
        let mut watches = Watches::default();
        watches.ask("/a", 1);
        assert_eq!(watches.unsubscribe("/a", 1), Then::Leave);
        assert_eq!(watches.answered("/a", true), Then::Remove);

        watches.ask("/a", 1);
        assert_eq!(watches.unsubscribe("/a", 1), Then::Leave);
        assert_eq!(watches.answered("/a", false), Then::Leave);
        assert!(watches.entries.is_empty());
    }

    #[test]
    fn a_refused_watch_leaves_nothing() {
        let mut watches = Watches::default();
        watches.ask("/a", 1);
        assert_eq!(watches.answered("/a", false), Then::Leave);
        assert!(watches.entries.is_empty());
    }

    #[test]
    fn a_fired_watch_is_not_restored() {
        let mut watches = Watches::default();
        for path in ["/a", "/b"] {
            watches.ask(path, 7);
            assert_eq!(watches.answered(path, true), Then::Leave);
        }
        assert_eq!(watches.fired("/a"), [7]);
        assert_eq!(watches.take_stock(), ["/b"]);
    }

    #[test]
    fn a_doomed_watch_is_left_to_fire() {
        let mut watches = Watches::default();
        watches.ask("/a", 1);
        assert_eq!(watches.answered("/a", true), Then::Leave);
        watches.unsubscribe_doomed("/a", 1);
        assert_eq!(watches.fired("/a"), []);
        assert!(watches.entries.is_empty());
    }
}
