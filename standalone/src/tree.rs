//! The tree of nodes of one server, and the effect of a committed change on it.
//!
//! The tree applies only changes that `transaction` has checked, so applying a change cannot fail. Every server of an
//! ensemble applies the same changes in the same order and ends with the same tree.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use zklock_proto::{Acl, EventKind, Response, Stat};

/// A set of names. As in ZooKeeper, the iteration order is arbitrary, but it is the same in every run.
type ChildNames = HashSet<String, BuildHasherDefault<DefaultHasher>>;

/// The parent of the nodes that the server itself creates.
pub(crate) const SYSTEM_PATH: &str = "/zookeeper";
/// The configuration of the ensemble. Clients may read it.
pub(crate) const CONFIG: &str = "/zookeeper/config";
/// The parent of the quota nodes.
pub(crate) const QUOTA: &str = "/zookeeper/quota";

/// All nodes of a server.
#[derive(Debug, Clone)]
pub struct Tree {
    nodes: HashMap<Arc<str>, Node>,
    ephemerals: HashMap<i64, BTreeSet<Arc<str>>>,
    /// The containers and the nodes with a time to live.
    containers_and_ttl_nodes: BTreeSet<Arc<str>>,
}

/// A node.
#[derive(Debug, Clone)]
pub struct Node {
    /// The data of the node, or null.
    pub data: Option<Arc<[u8]>>,
    /// The access control list of the node.
    pub acl: Arc<[Acl]>,
    /// The kind of the node.
    pub kind: NodeKind,
    /// The names of the children.
    pub children: ChildNames,
    /// The number of children that have ever been created. The next sequential child gets this number as its suffix.
    pub created_children: i32,
    stat: Stat,
}

/// The kinds of nodes. The kind decides when the server deletes a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// The server never deletes the node.
    Persistent,
    /// The server deletes the node when this session ends.
    Ephemeral(i64),
    /// The server deletes the node some time after the deletion of its last child.
    Container,
    /// The server deletes the node after this number of milliseconds without children and without a change.
    Ttl(i64),
}

/// A change that has passed all checks. Every server applies the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Creates a node.
    Create {
        /// The full path of the node.
        path: Arc<str>,
        /// The data of the node.
        data: Option<Arc<[u8]>>,
        /// The access control list of the node.
        acl: Arc<[Acl]>,
        /// The kind of the node.
        kind: NodeKind,
        /// The number of children ever created under the parent, including this node.
        created_children: i32,
        /// Whether the reply contains the stat of the node.
        with_stat: bool,
    },
    /// Deletes a node.
    Delete {
        /// The path of the node.
        path: Arc<str>,
    },
    /// Replaces the data of a node.
    SetData {
        /// The path of the node.
        path: Arc<str>,
        /// The new data.
        data: Option<Arc<[u8]>>,
    },
    /// Replaces the access control list of a node.
    SetAcl {
        /// The path of the node.
        path: Arc<str>,
        /// The new list.
        acl: Arc<[Acl]>,
    },
    /// Changes nothing, because the request only checked a version.
    Check,
}

/// An event of a node that may fire watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEvent {
    /// The kind of the event.
    pub kind: EventKind,
    /// The path of the node.
    pub path: Arc<str>,
    /// The access control list of the node. The server notifies only connections that may read the node.
    pub acl: Arc<[Acl]>,
}

impl Default for Tree {
    /// The nodes of a new server.
    fn default() -> Self {
        let mut tree =
            Self { nodes: HashMap::new(), ephemerals: HashMap::new(), containers_and_ttl_nodes: BTreeSet::new() };
        let open: Arc<[Acl]> = Acl::open().into();
        let readable: Arc<[Acl]> = Acl::open().into_iter().map(|acl| Acl { perms: READ, ..acl }).collect();
        for (path, acl) in [("/", &open), (SYSTEM_PATH, &open), (QUOTA, &open), (CONFIG, &readable)] {
            tree.nodes.insert(path.into(), Node::new(Some(Arc::new([])), Arc::clone(acl), NodeKind::Persistent, 0, 0));
        }
        if let Some(config) = tree.nodes.get_mut(CONFIG) {
            // A ZooKeeper server without an ensemble starts with this value.
            config.stat.aversion = -1;
        }
        for (parent, name) in [("/", "zookeeper"), (SYSTEM_PATH, "quota"), (SYSTEM_PATH, "config")] {
            if let Some(parent) = tree.nodes.get_mut(parent) {
                parent.children.insert(name.to_owned());
            }
        }
        tree
    }
}

impl Tree {
    /// Returns a node. An empty path also refers to the root.
    pub fn get(&self, path: &str) -> Option<&Node> {
        self.nodes.get(if path.is_empty() { "/" } else { path })
    }

    /// The number of nodes.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The size of all paths and data, in bytes.
    pub fn data_size(&self) -> usize {
        self.nodes.iter().map(|(path, node)| path.len() + node.data_len()).sum()
    }

    /// The number of descendants of a node.
    pub fn count_below(&self, path: &str) -> usize {
        let prefix = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        self.nodes.keys().filter(|other| other.len() > prefix.len() && other.starts_with(&prefix)).count()
    }

    /// The ephemeral nodes of a session, sorted by path.
    pub fn ephemerals_of(&self, session: i64) -> impl Iterator<Item = &Arc<str>> {
        self.ephemerals.get(&session).into_iter().flatten()
    }

    /// The number of ephemeral nodes.
    pub fn ephemeral_count(&self) -> usize {
        self.ephemerals.values().map(BTreeSet::len).sum()
    }

    /// The nodes that the container check deletes at `wall_ms`: empty containers that had a child, and empty nodes
    /// whose time to live has passed.
    pub fn sweep_candidates(&self, wall_ms: i64) -> impl Iterator<Item = Arc<str>> {
        self.containers_and_ttl_nodes.iter().filter(move |path| self.is_sweep_candidate(path, wall_ms)).map(Arc::clone)
    }

    /// Whether the container check deletes this node at `wall_ms`.
    pub fn is_sweep_candidate(&self, path: &str, wall_ms: i64) -> bool {
        self.nodes.get(path).is_some_and(|node| {
            node.children.is_empty()
                && match node.kind {
                    NodeKind::Container => node.created_children > 0,
                    NodeKind::Ttl(ttl_ms) => wall_ms.saturating_sub(node.stat.mtime) > ttl_ms,
                    NodeKind::Persistent | NodeKind::Ephemeral(_) => false,
                }
        })
    }

    /// Applies a change. Returns the reply for the client, and adds the node events to `events`.
    pub fn apply(&mut self, zxid: i64, wall_ms: i64, change: &Change, events: &mut Vec<NodeEvent>) -> Response {
        match change {
            Change::Create { path, data, acl, kind, created_children, with_stat } => {
                let node = Node::new(data.clone(), Arc::clone(acl), *kind, zxid, wall_ms);
                let stat = node.stat();
                self.insert(zxid, path, node, *created_children);
                events.push(NodeEvent { kind: EventKind::Created, path: Arc::clone(path), acl: Arc::clone(acl) });
                let path = path.to_string();
                if *with_stat { Response::Create2 { path, stat } } else { Response::Path(path) }
            }
            Change::Delete { path } => {
                if let Some(Node { acl, .. }) = self.remove(zxid, path) {
                    events.push(NodeEvent { kind: EventKind::Deleted, path: Arc::clone(path), acl });
                }
                Response::Empty
            }
            Change::SetData { path, data } => {
                let Some(node) = self.nodes.get_mut(path) else { return Response::Empty };
                node.data = data.clone();
                node.stat.version = next_version(node.stat.version);
                (node.stat.mzxid, node.stat.mtime) = (zxid, wall_ms);
                let (path, acl) = (Arc::clone(path), Arc::clone(&node.acl));
                events.push(NodeEvent { kind: EventKind::DataChanged, path, acl });
                Response::Stat(node.stat())
            }
            Change::SetAcl { path, acl } => {
                let Some(node) = self.nodes.get_mut(path) else { return Response::Empty };
                node.acl = Arc::clone(acl);
                node.stat.aversion = next_version(node.stat.aversion);
                Response::Stat(node.stat())
            }
            Change::Check => Response::Checked,
        }
    }

    fn insert(&mut self, zxid: i64, path: &Arc<str>, node: Node, creates: i32) {
        match node.kind {
            NodeKind::Persistent => {}
            NodeKind::Ephemeral(session) => drop(self.ephemerals.entry(session).or_default().insert(Arc::clone(path))),
            NodeKind::Container | NodeKind::Ttl(_) => drop(self.containers_and_ttl_nodes.insert(Arc::clone(path))),
        }
        let (parent, name) = split(path);
        if let Some(parent) = self.nodes.get_mut(parent) {
            parent.children.insert(name.to_owned());
            parent.created_children = creates;
            parent.stat.pzxid = zxid;
        }
        self.nodes.insert(Arc::clone(path), node);
    }

    fn remove(&mut self, zxid: i64, path: &Arc<str>) -> Option<Node> {
        let node = self.nodes.remove(path)?;
        if let NodeKind::Ephemeral(session) = node.kind
            && let Some(paths) = self.ephemerals.get_mut(&session)
        {
            paths.remove(path);
            if paths.is_empty() {
                self.ephemerals.remove(&session);
            }
        }
        self.containers_and_ttl_nodes.remove(path);
        let (parent, name) = split(path);
        if let Some(parent) = self.nodes.get_mut(parent) {
            parent.children.remove(name);
            parent.stat.pzxid = zxid;
        }
        Some(node)
    }
}

impl Node {
    fn new(data: Option<Arc<[u8]>>, acl: Arc<[Acl]>, kind: NodeKind, zxid: i64, wall_ms: i64) -> Self {
        let stat = Stat { czxid: zxid, mzxid: zxid, pzxid: zxid, ctime: wall_ms, mtime: wall_ms, ..Stat::default() };
        Self { data, acl, kind, children: ChildNames::default(), created_children: 0, stat }
    }

    fn data_len(&self) -> usize {
        self.data.as_ref().map_or(0, |data| data.len())
    }

    /// The stat of the node, as clients see it.
    pub fn stat(&self) -> Stat {
        let num_children = i32::try_from(self.children.len()).unwrap_or(i32::MAX);
        Stat {
            // The server counts only creations. Clients see a version that also counts deletions.
            cversion: self.created_children.wrapping_mul(2).wrapping_sub(num_children),
            ephemeral_owner: match self.kind {
                NodeKind::Ephemeral(session) => session,
                NodeKind::Persistent | NodeKind::Container | NodeKind::Ttl(_) => 0,
            },
            data_length: i32::try_from(self.data_len()).unwrap_or(i32::MAX),
            num_children,
            ..self.stat
        }
    }
}

/// The permission to read a node and to list its children.
pub(crate) const READ: i32 = 1;
/// The permission to replace the data of a node.
pub(crate) const WRITE: i32 = 2;
/// The permission to create children.
pub(crate) const CREATE: i32 = 4;
/// The permission to delete children.
pub(crate) const DELETE: i32 = 8;
/// The permission to replace the access control list.
pub(crate) const ADMIN: i32 = 16;

/// Splits a path into the path of its parent and its name: `/a/b` gives `/a` and `b`.
pub(crate) fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((parent, name)) => (parent, name),
        None => ("", path),
    }
}

/// The version after this version. The function skips -1, because requests use -1 for "any version".
pub(crate) const fn next_version(version: i32) -> i32 {
    match version.wrapping_add(1) {
        -1 => 0,
        next => next,
    }
}
