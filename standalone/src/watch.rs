//! The watches of the connections of one server. The watches determine which connections the server notifies when a
//! node changes. They do not contain the connections, so this file cannot send anything.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use zklock_proto::{EventKind, WatcherType};

use crate::ConnectionId;
use crate::tree::{NodeEvent, split};

/// The kinds of watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchKind {
    /// Fires at the next change of the data or the existence of a node.
    Data,
    /// Fires at the next change of the children of a node.
    Children,
    /// Fires at every change of a node and of its list of children.
    Persistent,
    /// Fires at every change of a node and of all its descendants.
    PersistentRecursive,
}

/// The aspect of a node that a watch observes. A client has at most one watch for each aspect of a node. A new watch
/// replaces the old watch, even if the two watches are of different kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Aspect {
    Data,
    Children,
}

/// How often a watch fires, and for which nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchMode {
    Standard,
    Persistent,
    PersistentRecursive,
}

type Key = (Aspect, Arc<str>);

/// All watches of a server.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    by_path: HashMap<Key, BTreeMap<ConnectionId, WatchMode>>,
    by_connection: BTreeMap<ConnectionId, BTreeSet<Key>>,
}

impl Watches {
    /// Sets a watch.
    pub(crate) fn add(&mut self, kind: WatchKind, path: &str, connection: ConnectionId) {
        let (aspects, mode): (&[_], _) = match kind {
            WatchKind::Data => (&[Aspect::Data], WatchMode::Standard),
            WatchKind::Children => (&[Aspect::Children], WatchMode::Standard),
            WatchKind::Persistent => (&[Aspect::Data, Aspect::Children], WatchMode::Persistent),
            WatchKind::PersistentRecursive => (&[Aspect::Data, Aspect::Children], WatchMode::PersistentRecursive),
        };
        for &aspect in aspects {
            let key = (aspect, Arc::from(path));
            self.by_connection.entry(connection).or_default().insert(key.clone());
            self.by_path.entry(key).or_default().insert(connection, mode);
        }
    }

    /// Removes the watches of a connection from a node. Returns false if the connection had no watch of this type.
    pub(crate) fn remove(&mut self, wanted: WatcherType, path: &str, connection: ConnectionId) -> bool {
        let mut keys = keys(wanted, path);
        keys.retain(|key| self.by_connection.get(&connection).is_some_and(|own| own.contains(key)));
        keys.iter().for_each(|key| self.remove_key(key, connection));
        !keys.is_empty()
    }

    /// Whether any connection has a watch of this type on a node. Like ZooKeeper 3.8, this function does not check
    /// which connection has the watch.
    pub(crate) fn contains(&self, wanted: WatcherType, path: &str) -> bool {
        keys(wanted, path).iter().any(|key| self.by_path.contains_key(key))
    }

    /// Removes all watches of a connection.
    pub(crate) fn remove_connection(&mut self, connection: ConnectionId) {
        for key in self.by_connection.remove(&connection).unwrap_or_default() {
            self.remove_key(&key, connection);
        }
    }

    /// Returns the connections to notify and their events, in order, and removes the watches that fire only once.
    pub(crate) fn trigger(&mut self, node_event: &NodeEvent) -> Vec<(ConnectionId, EventKind, Arc<str>)> {
        let NodeEvent { kind, path, .. } = node_event;
        let mut recipients = self.trigger_on(Aspect::Data, *kind, path);
        if *kind == EventKind::Deleted {
            recipients.extend(self.trigger_on(Aspect::Children, *kind, path));
        }
        let mut events: Vec<_> =
            recipients.into_iter().map(|connection| (connection, *kind, Arc::clone(path))).collect();
        if matches!(kind, EventKind::Created | EventKind::Deleted) {
            let parent: Arc<str> = split(path).0.into();
            let recipients = self.trigger_on(Aspect::Children, EventKind::ChildrenChanged, &parent);
            let event = |connection| (connection, EventKind::ChildrenChanged, Arc::clone(&parent));
            events.extend(recipients.into_iter().map(event));
        }
        events
    }

    /// The number of watches.
    pub(crate) fn count(&self) -> usize {
        self.by_path.values().map(BTreeMap::len).sum()
    }

    /// For each connection, the paths whose data the connection watches.
    pub(crate) fn of_data(&self) -> impl Iterator<Item = (ConnectionId, BTreeSet<&str>)> {
        let paths = |keys| -> BTreeSet<&str> {
            let keys: &BTreeSet<Key> = keys;
            keys.iter().filter(|(aspect, _)| *aspect == Aspect::Data).map(|(_, path)| &**path).collect()
        };
        self.by_connection.iter().map(move |(&id, keys)| (id, paths(keys))).filter(|(_, paths)| !paths.is_empty())
    }

    /// Returns the connections to notify.
    fn trigger_on(&mut self, aspect: Aspect, kind: EventKind, path: &str) -> BTreeSet<ConnectionId> {
        let mut recipients = BTreeSet::new();
        for node in path_and_ancestors(path) {
            let key = (aspect, Arc::from(node));
            let mut spent = Vec::new();
            for (&connection, mode) in self.by_path.get(&key).into_iter().flatten() {
                let concerned = match mode {
                    // A recursive watch reports the creation and the deletion of the children instead.
                    WatchMode::PersistentRecursive => kind != EventKind::ChildrenChanged,
                    WatchMode::Persistent | WatchMode::Standard => node == path,
                };
                if concerned {
                    recipients.insert(connection);
                    spent.extend((*mode == WatchMode::Standard).then_some(connection));
                }
            }
            spent.into_iter().for_each(|connection| self.remove_key(&key, connection));
        }
        recipients
    }

    fn remove_key(&mut self, key: &Key, connection: ConnectionId) {
        if let Some(connections) = self.by_path.get_mut(key) {
            connections.remove(&connection);
            if connections.is_empty() {
                self.by_path.remove(key);
            }
        }
        if let Some(keys) = self.by_connection.get_mut(&connection) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_connection.remove(&connection);
            }
        }
    }
}

fn keys(wanted: WatcherType, path: &str) -> Vec<Key> {
    let aspects: &[_] = match wanted {
        WatcherType::Data => &[Aspect::Data],
        WatcherType::Children => &[Aspect::Children],
        WatcherType::Any => &[Aspect::Data, Aspect::Children],
    };
    aspects.iter().map(|&aspect| (aspect, Arc::from(path))).collect()
}

/// Iterates over a path and its ancestors: `/a/b`, `/a`, `/`.
fn path_and_ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| if *path == "/" { None } else { Some(split(path).0) })
}
