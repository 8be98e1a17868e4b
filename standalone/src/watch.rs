//! Watches of one server's connections: who is told what when something happens to a node.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use zklock::proto::{EventKind, WatcherType};

use crate::ConnectionId;
use crate::tree::{Happening, split};

/// What a watch waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// The next change of a node's data or existence.
    Data,
    /// The next change of a node's children.
    Children,
    /// All changes of a node and its children.
    Persistent,
    /// All changes of a node and of everything below it.
    Recursive,
}

/// All watches.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    by_path: HashMap<(Kind, Arc<str>), BTreeSet<ConnectionId>>,
    by_connection: BTreeMap<ConnectionId, BTreeSet<(Kind, Arc<str>)>>,
}

impl Watches {
    /// Sets a watch.
    pub(crate) fn add(&mut self, kind: Kind, path: &str, connection: ConnectionId) {
        let key = (kind, Arc::from(path));
        self.by_connection.entry(connection).or_default().insert(key.clone());
        self.by_path.entry(key).or_default().insert(connection);
    }

    /// Takes a connection's watches off a node; false if it had none such.
    pub(crate) fn remove(&mut self, wanted: WatcherType, path: &str, connection: ConnectionId) -> bool {
        let found: Vec<_> = self.find(wanted, path, connection).collect();
        for key in &found {
            self.forget(key, connection);
        }
        !found.is_empty()
    }

    /// Whether a connection has such a watch on a node.
    pub(crate) fn contains(&self, wanted: WatcherType, path: &str, connection: ConnectionId) -> bool {
        self.find(wanted, path, connection).next().is_some()
    }

    /// Takes off all watches of a connection.
    pub(crate) fn close(&mut self, connection: ConnectionId) {
        for key in self.by_connection.remove(&connection).unwrap_or_default() {
            self.forget(&key, connection);
        }
    }

    /// Whom to tell what, in this order; one-shot watches that are told are gone.
    pub(crate) fn fire(&mut self, happening: &Happening) -> Vec<(ConnectionId, EventKind, Arc<str>)> {
        let Happening { kind, path } = happening;
        let mut told = BTreeSet::new();
        told.extend(self.take(Kind::Data, path));
        if *kind == EventKind::Deleted {
            told.extend(self.take(Kind::Children, path));
        }
        told.extend(self.look(Kind::Persistent, path));
        for ancestor in itself_and_ancestors(path) {
            told.extend(self.look(Kind::Recursive, ancestor));
        }
        let mut events: Vec<_> = told.into_iter().map(|connection| (connection, *kind, Arc::clone(path))).collect();
        if matches!(kind, EventKind::Created | EventKind::Deleted) {
            let parent: Arc<str> = split(path).0.into();
            let mut told = self.take(Kind::Children, &parent);
            told.extend(self.look(Kind::Persistent, &parent));
            let event = |connection| (connection, EventKind::ChildrenChanged, Arc::clone(&parent));
            events.extend(told.into_iter().map(event));
        }
        events
    }

    /// How many connections watch how many nodes with how many watches.
    pub(crate) fn count(&self) -> (usize, usize, usize) {
        let paths: BTreeSet<&str> = self.by_path.keys().map(|(_, path)| &**path).collect();
        (self.by_connection.len(), paths.len(), self.by_path.values().map(BTreeSet::len).sum())
    }

    /// What each connection watches.
    pub(crate) fn by_connection(&self) -> impl Iterator<Item = (ConnectionId, BTreeSet<&str>)> {
        self.by_connection.iter().map(|(&id, keys)| (id, keys.iter().map(|(_, path)| &**path).collect()))
    }

    fn find(&self, wanted: WatcherType, path: &str, id: ConnectionId) -> impl Iterator<Item = (Kind, Arc<str>)> {
        let kinds: &[Kind] = match wanted {
            WatcherType::Data => &[Kind::Data],
            WatcherType::Children => &[Kind::Children],
            WatcherType::Any => &[Kind::Data, Kind::Children, Kind::Persistent, Kind::Recursive],
        };
        let path: Arc<str> = path.into();
        let of_connection = self.by_connection.get(&id);
        kinds
            .iter()
            .map(move |&kind| (kind, Arc::clone(&path)))
            .filter(move |key| of_connection.is_some_and(|keys| keys.contains(key)))
    }

    fn look(&self, kind: Kind, path: &str) -> impl Iterator<Item = ConnectionId> {
        self.by_path.get(&(kind, Arc::from(path))).into_iter().flatten().copied()
    }

    fn take(&mut self, kind: Kind, path: &str) -> BTreeSet<ConnectionId> {
        let key = (kind, Arc::from(path));
        let taken = self.by_path.remove(&key).unwrap_or_default();
        for connection in &taken {
            self.forget(&key, *connection);
        }
        taken
    }

    fn forget(&mut self, key: &(Kind, Arc<str>), connection: ConnectionId) {
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

/// `/a/b` gives `/a/b`, `/a`, `/`.
fn itself_and_ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| if *path == "/" { None } else { Some(split(path).0) })
}
