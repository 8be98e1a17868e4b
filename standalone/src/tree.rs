//! The tree of nodes: what a server knows, and how a committed change alters it.
//!
//! It takes changes that were found right before (`draft`), so that applying one can't fail; every server of an ensemble
//! applies the same changes in the same order and ends with the same tree.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use zklock::proto::{Acl, EventKind, Response, Stat};

/// Children are listed in no particular order, as by other servers, but in the same one in every run.
type Names = HashSet<String, BuildHasherDefault<DefaultHasher>>;

/// What the server itself keeps below.
pub(crate) const OWN: &str = "/zookeeper";
/// The ensemble's configuration, which clients may read.
pub(crate) const CONFIG: &str = "/zookeeper/config";
/// Where quotas are kept.
pub(crate) const QUOTA: &str = "/zookeeper/quota";

/// All nodes.
#[derive(Debug, Clone)]
pub struct Tree {
    nodes: HashMap<Arc<str>, Node>,
    ephemerals: HashMap<i64, BTreeSet<Arc<str>>>,
    /// The nodes that may have to go by themselves.
    transient: BTreeSet<Arc<str>>,
}

/// One node.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its data, or null.
    pub data: Option<Arc<[u8]>>,
    /// Its access list.
    pub acl: Arc<[Acl]>,
    /// What becomes of it.
    pub kind: Kind,
    /// The names of its children.
    pub children: Names,
    /// How many children were ever created: the number behind the name of the next sequential one.
    pub creates: i32,
    stat: Stat,
}

/// What becomes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It stays.
    Persistent,
    /// It goes with this session.
    Ephemeral(i64),
    /// It goes some time after its last child.
    Container,
    /// It goes when it has had no children and no change for so many milliseconds.
    Ttl(i64),
}

/// A change that was found right, and is about to be made by all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A node is created.
    Create {
        /// Its full path.
        path: Arc<str>,
        /// Its data.
        data: Option<Arc<[u8]>>,
        /// Its access list.
        acl: Arc<[Acl]>,
        /// What becomes of it.
        kind: Kind,
        /// Its parent's count of creations from now on.
        creates: i32,
        /// Whether who asked for it wants its stat.
        with_stat: bool,
    },
    /// A node is deleted.
    Delete {
        /// Its path.
        path: Arc<str>,
    },
    /// A node's data is replaced.
    SetData {
        /// Its path.
        path: Arc<str>,
        /// The new data.
        data: Option<Arc<[u8]>>,
    },
    /// A node's access list is replaced.
    SetAcl {
        /// Its path.
        path: Arc<str>,
        /// The new list.
        acl: Arc<[Acl]>,
    },
    /// Nothing: a version was as expected.
    Check,
}

/// Something that watches may be waiting for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happening {
    /// What.
    pub kind: EventKind,
    /// To which node.
    pub path: Arc<str>,
    /// Its access list: who may not read the node is not told.
    pub acl: Arc<[Acl]>,
}

impl Default for Tree {
    /// What a fresh server has.
    fn default() -> Self {
        let mut tree = Self { nodes: HashMap::new(), ephemerals: HashMap::new(), transient: BTreeSet::new() };
        let open: Arc<[Acl]> = Acl::open().into();
        let readable: Arc<[Acl]> = Acl::open().into_iter().map(|acl| Acl { perms: READ, ..acl }).collect();
        for (path, acl) in [("/", &open), (OWN, &open), (QUOTA, &open), (CONFIG, &readable)] {
            tree.nodes.insert(path.into(), Node::new(Some(Arc::new([])), Arc::clone(acl), Kind::Persistent, 0, 0));
        }
        if let Some(config) = tree.nodes.get_mut(CONFIG) {
            // Where servers without an ensemble begin to count.
            config.stat.aversion = -1;
        }
        for (parent, name) in [("/", "zookeeper"), (OWN, "quota"), (OWN, "config")] {
            if let Some(parent) = tree.nodes.get_mut(parent) {
                parent.children.insert(name.to_owned());
            }
        }
        tree
    }
}

impl Tree {
    /// A node. The root has an empty path too.
    pub fn get(&self, path: &str) -> Option<&Node> {
        self.nodes.get(if path.is_empty() { "/" } else { path })
    }

    /// How many nodes there are.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// How many bytes their paths and data take.
    pub fn data_size(&self) -> usize {
        self.nodes.iter().map(|(path, node)| path.len() + node.data_len()).sum()
    }

    /// How many nodes there are below one.
    pub fn count_below(&self, path: &str) -> usize {
        let prefix = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        self.nodes.keys().filter(|other| other.len() > prefix.len() && other.starts_with(&prefix)).count()
    }

    /// The ephemeral nodes of a session, sorted.
    pub fn ephemerals_of(&self, session: i64) -> impl Iterator<Item = &Arc<str>> {
        self.ephemerals.get(&session).into_iter().flatten()
    }

    /// How many ephemeral nodes there are.
    pub fn ephemeral_count(&self) -> usize {
        self.ephemerals.values().map(BTreeSet::len).sum()
    }

    /// The containers that have lost their last child, and the nodes that have outlived their time, at `wall_ms`.
    pub fn overripe(&self, wall_ms: i64) -> impl Iterator<Item = Arc<str>> {
        self.transient.iter().filter(move |path| self.is_overripe(path, wall_ms)).map(Arc::clone)
    }

    /// Whether a node is one of these.
    pub fn is_overripe(&self, path: &str, wall_ms: i64) -> bool {
        self.nodes.get(path).is_some_and(|node| {
            node.children.is_empty()
                && match node.kind {
                    Kind::Container => node.creates > 0,
                    Kind::Ttl(ttl_ms) => wall_ms.saturating_sub(node.stat.mtime) > ttl_ms,
                    Kind::Persistent | Kind::Ephemeral(_) => false,
                }
        })
    }

    /// Makes a change. Gives the answer for who asked for it, and reports what watches may be waiting for.
    pub fn apply(&mut self, zxid: i64, wall_ms: i64, change: &Change, happened: &mut Vec<Happening>) -> Response {
        match change {
            Change::Create { path, data, acl, kind, creates, with_stat } => {
                let node = Node::new(data.clone(), Arc::clone(acl), *kind, zxid, wall_ms);
                let stat = node.stat();
                self.insert(zxid, path, node, *creates);
                happened.push(Happening { kind: EventKind::Created, path: Arc::clone(path), acl: Arc::clone(acl) });
                let path = path.to_string();
                if *with_stat { Response::Create2 { path, stat } } else { Response::Path(path) }
            }
            Change::Delete { path } => {
                if let Some(Node { acl, .. }) = self.remove(zxid, path) {
                    happened.push(Happening { kind: EventKind::Deleted, path: Arc::clone(path), acl });
                }
                Response::Empty
            }
            Change::SetData { path, data } => {
                let Some(node) = self.nodes.get_mut(path) else { return Response::Empty };
                node.data = data.clone();
                node.stat.version = next_version(node.stat.version);
                (node.stat.mzxid, node.stat.mtime) = (zxid, wall_ms);
                let (path, acl) = (Arc::clone(path), Arc::clone(&node.acl));
                happened.push(Happening { kind: EventKind::DataChanged, path, acl });
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
            Kind::Persistent => {}
            Kind::Ephemeral(session) => drop(self.ephemerals.entry(session).or_default().insert(Arc::clone(path))),
            Kind::Container | Kind::Ttl(_) => drop(self.transient.insert(Arc::clone(path))),
        }
        let (parent, name) = split(path);
        if let Some(parent) = self.nodes.get_mut(parent) {
            parent.children.insert(name.to_owned());
            parent.creates = creates;
            parent.stat.pzxid = zxid;
        }
        self.nodes.insert(Arc::clone(path), node);
    }

    fn remove(&mut self, zxid: i64, path: &Arc<str>) -> Option<Node> {
        let node = self.nodes.remove(path)?;
        if let Kind::Ephemeral(session) = node.kind
            && let Some(paths) = self.ephemerals.get_mut(&session)
        {
            paths.remove(path);
            if paths.is_empty() {
                self.ephemerals.remove(&session);
            }
        }
        self.transient.remove(path);
        let (parent, name) = split(path);
        if let Some(parent) = self.nodes.get_mut(parent) {
            parent.children.remove(name);
            parent.stat.pzxid = zxid;
        }
        Some(node)
    }
}

impl Node {
    fn new(data: Option<Arc<[u8]>>, acl: Arc<[Acl]>, kind: Kind, zxid: i64, wall_ms: i64) -> Self {
        let stat = Stat { czxid: zxid, mzxid: zxid, pzxid: zxid, ctime: wall_ms, mtime: wall_ms, ..Stat::default() };
        Self { data, acl, kind, children: Names::default(), creates: 0, stat }
    }

    fn data_len(&self) -> usize {
        self.data.as_ref().map_or(0, |data| data.len())
    }

    /// What the server tells of it.
    pub fn stat(&self) -> Stat {
        let num_children = i32::try_from(self.children.len()).unwrap_or(i32::MAX);
        Stat {
            // Inside, a server counts creations; outside it has always counted deletions too.
            cversion: self.creates.wrapping_mul(2).wrapping_sub(num_children),
            ephemeral_owner: match self.kind {
                Kind::Ephemeral(session) => session,
                Kind::Persistent | Kind::Container | Kind::Ttl(_) => 0,
            },
            data_length: i32::try_from(self.data_len()).unwrap_or(i32::MAX),
            num_children,
            ..self.stat
        }
    }
}

/// The permission to read a node, and to list its children.
pub(crate) const READ: i32 = 1;
/// The permission to replace a node's data.
pub(crate) const WRITE: i32 = 2;
/// The permission to create children.
pub(crate) const CREATE: i32 = 4;
/// The permission to delete children.
pub(crate) const DELETE: i32 = 8;
/// The permission to replace the access list.
pub(crate) const ADMIN: i32 = 16;

/// A path's parent and its own name: `/a/b` gives `/a` and `b`.
pub(crate) fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((parent, name)) => (parent, name),
        None => ("", path),
    }
}

/// The version after this one; -1 is left out, since it means "any" to those who ask.
pub(crate) const fn next_version(version: i32) -> i32 {
    match version.wrapping_add(1) {
        -1 => 0,
        next => next,
    }
}
