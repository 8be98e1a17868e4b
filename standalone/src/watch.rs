//! Watches of one server's connections: who is told what when something happens to a node.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use zklock::proto::{EventKind, WatcherType};

use crate::ConnectionId;
use crate::tree::{Happening, split};

/// What a client asks to be told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// What of a node is watched. A client has at most one watch on each: a new one takes the place of the old one, of
/// whatever kind that was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Aspect {
    Data,
    Children,
}

/// When a watch fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Once,
    Always,
    AlwaysAndBelow,
}

type Key = (Aspect, Arc<str>);

/// All watches.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    by_path: HashMap<Key, BTreeMap<ConnectionId, Mode>>,
    by_connection: BTreeMap<ConnectionId, BTreeSet<Key>>,
}

impl Watches {
    /// Sets a watch.
    pub(crate) fn add(&mut self, kind: Kind, path: &str, connection: ConnectionId) {
        let (aspects, mode): (&[_], _) = match kind {
            Kind::Data => (&[Aspect::Data], Mode::Once),
            Kind::Children => (&[Aspect::Children], Mode::Once),
            Kind::Persistent => (&[Aspect::Data, Aspect::Children], Mode::Always),
            Kind::Recursive => (&[Aspect::Data, Aspect::Children], Mode::AlwaysAndBelow),
        };
        for &aspect in aspects {
            let key = (aspect, Arc::from(path));
            self.by_connection.entry(connection).or_default().insert(key.clone());
            self.by_path.entry(key).or_default().insert(connection, mode);
        }
    }

    /// Takes a connection's watches off a node; false if it had none such.
    pub(crate) fn remove(&mut self, wanted: WatcherType, path: &str, connection: ConnectionId) -> bool {
        let mut keys = keys(wanted, path);
        keys.retain(|key| self.by_connection.get(&connection).is_some_and(|own| own.contains(key)));
        keys.iter().for_each(|key| self.forget(key, connection));
        !keys.is_empty()
    }

    /// Whether a node has such a watch. Whose it is makes no difference to a server of this version.
    pub(crate) fn contains(&self, wanted: WatcherType, path: &str) -> bool {
        keys(wanted, path).iter().any(|key| self.by_path.contains_key(key))
    }

    /// Takes off all watches of a connection.
    pub(crate) fn close(&mut self, connection: ConnectionId) {
        for key in self.by_connection.remove(&connection).unwrap_or_default() {
            self.forget(&key, connection);
        }
    }

    /// Whom to tell what, in this order; watches that fire once are gone.
    pub(crate) fn fire(&mut self, happening: &Happening) -> Vec<(ConnectionId, EventKind, Arc<str>)> {
        let Happening { kind, path, .. } = happening;
        let mut told = self.take(Aspect::Data, *kind, path);
        if *kind == EventKind::Deleted {
            told.extend(self.take(Aspect::Children, *kind, path));
        }
        let mut events: Vec<_> = told.into_iter().map(|connection| (connection, *kind, Arc::clone(path))).collect();
        if matches!(kind, EventKind::Created | EventKind::Deleted) {
            let parent: Arc<str> = split(path).0.into();
            let told = self.take(Aspect::Children, EventKind::ChildrenChanged, &parent);
            let event = |connection| (connection, EventKind::ChildrenChanged, Arc::clone(&parent));
            events.extend(told.into_iter().map(event));
        }
        events
    }

    /// How many watches there are.
    pub(crate) fn count(&self) -> usize {
        self.by_path.values().map(BTreeMap::len).sum()
    }

    /// Which nodes' data each connection watches.
    pub(crate) fn of_data(&self) -> impl Iterator<Item = (ConnectionId, BTreeSet<&str>)> {
        let paths = |keys| -> BTreeSet<&str> {
            let keys: &BTreeSet<Key> = keys;
            keys.iter().filter(|(aspect, _)| *aspect == Aspect::Data).map(|(_, path)| &**path).collect()
        };
        self.by_connection.iter().map(move |(&id, keys)| (id, paths(keys))).filter(|(_, paths)| !paths.is_empty())
    }

    /// Who has to be told.
    fn take(&mut self, aspect: Aspect, kind: EventKind, path: &str) -> BTreeSet<ConnectionId> {
        let mut told = BTreeSet::new();
        for node in itself_and_ancestors(path) {
            let key = (aspect, Arc::from(node));
            let mut spent = Vec::new();
            for (&connection, mode) in self.by_path.get(&key).into_iter().flatten() {
                let concerned = match mode {
                    // Changes of a list show as what happens to its members.
                    Mode::AlwaysAndBelow => kind != EventKind::ChildrenChanged,
                    Mode::Always | Mode::Once => node == path,
                };
                if concerned {
                    told.insert(connection);
                    spent.extend((*mode == Mode::Once).then_some(connection));
                }
            }
            spent.into_iter().for_each(|connection| self.forget(&key, connection));
        }
        told
    }

    fn forget(&mut self, key: &Key, connection: ConnectionId) {
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

/// `/a/b` gives `/a/b`, `/a`, `/`.
fn itself_and_ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| if *path == "/" { None } else { Some(split(path).0) })
}
