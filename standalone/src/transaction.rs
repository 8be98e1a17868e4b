//! Turns a request into the changes that it makes, or into the error code of its failure. It must not change the tree.
//!
//! This module checks all rules of the tree: required nodes, permissions and versions. A `TransactionBuilder` applies
//! each check to the tree with all changes that it has prepared so far. Each operation of a multi therefore depends on
//! the changes of the earlier operations.

use std::collections::HashMap;
use std::sync::Arc;

use zklock_proto::{Acl, Code, CreateMode, Identity, Request};

use crate::acl;
use crate::tree::{
    ADMIN, CONFIG, CREATE, Change, DELETE, NodeKind, QUOTA, READ, SYSTEM_PATH, Tree, WRITE, next_version, split,
};

/// The changes of one request, while they are being prepared.
pub(crate) struct TransactionBuilder<'a> {
    tree: &'a Tree,
    identities: &'a [Identity],
    session: i64,
    /// The nodes that this request has changed so far. The value is `None` if the request has deleted the node.
    pending: HashMap<String, Option<NodeState>>,
}

/// The attributes of a node on which the rules depend.
#[derive(Clone)]
struct NodeState {
    acl: Arc<[Acl]>,
    ephemeral: bool,
    version: i32,
    aversion: i32,
    created_children: i32,
    children: usize,
}

impl<'a> TransactionBuilder<'a> {
    /// Creates a builder for a session whose connection has these identities.
    pub(crate) fn new(tree: &'a Tree, session: i64, identities: &'a [Identity]) -> Self {
        Self { tree, identities, session, pending: HashMap::new() }
    }

    /// Checks one operation and returns its change.
    pub(crate) fn prepare(&mut self, request: &Request) -> Result<Change, Code> {
        match request {
            Request::Create { path, data, acl, mode } => {
                self.create(path, data.as_deref(), acl, kind(*mode, self.session), *mode, false)
            }
            Request::Create2 { path, data, acl, mode } => {
                self.create(path, data.as_deref(), acl, kind(*mode, self.session), *mode, true)
            }
            Request::CreateTtl { path, data, acl, mode, ttl_ms } => {
                if !(1..=MAX_TTL_MS).contains(ttl_ms) {
                    return Err(Code::BAD_ARGUMENTS);
                }
                self.create(path, data.as_deref(), acl, NodeKind::Ttl(*ttl_ms), *mode, true)
            }
            Request::Delete { path, version } => self.delete(path, *version),
            Request::SetData { path, data, version } => {
                let mut node = self.checked_node(path, WRITE)?;
                check_version(node.version, *version)?;
                node.version = next_version(node.version);
                self.pending.insert(path.clone(), Some(node));
                Ok(Change::SetData { path: path.as_str().into(), data: data.as_deref().map(Arc::from) })
            }
            Request::SetAcl { path, acl, version } => {
                if !is_valid(path) {
                    return Err(Code::BAD_ARGUMENTS);
                }
                let resolved: Arc<[Acl]> = acl::resolve(acl, self.identities)?.into();
                let mut node = self.checked_node(path, ADMIN)?;
                check_version(node.aversion, *version)?;
                node.aversion = next_version(node.aversion);
                node.acl = Arc::clone(&resolved);
                self.pending.insert(path.clone(), Some(node));
                Ok(Change::SetAcl { path: path.as_str().into(), acl: resolved })
            }
            Request::Check { path, version } => {
                let node = self.checked_node(path, READ)?;
                check_version(node.version, *version)?;
                Ok(Change::Check)
            }
            _ => Err(Code::UNIMPLEMENTED),
        }
    }

    fn create(
        &mut self,
        path: &str,
        data: Option<&[u8]>,
        acl: &[Acl],
        kind: NodeKind,
        mode: CreateMode,
        with_stat: bool,
    ) -> Result<Change, Code> {
        if !path.contains('/') || path.contains('\0') {
            return Err(Code::BAD_ARGUMENTS);
        }
        let acl = acl::resolve(acl, self.identities)?.into();
        let (parent_path, _) = split(path);
        let mut parent = self.node_state(parent_path).ok_or(Code::NO_NODE)?;
        acl::check(&parent.acl, CREATE, self.identities)?;
        let mut path = path.to_owned();
        if is_sequential(mode) {
            path.push_str(&format!("{:010}", parent.created_children));
        }
        if !is_valid(&path) {
            return Err(Code::BAD_ARGUMENTS);
        }
        if self.node_state(&path).is_some() {
            return Err(Code::NODE_EXISTS);
        }
        if parent.ephemeral {
            return Err(Code::NO_CHILDREN_FOR_EPHEMERALS);
        }
        parent.created_children = parent.created_children.wrapping_add(1);
        parent.children += 1;
        let created_children = parent.created_children;
        self.pending.insert(parent_path.to_owned(), Some(parent));
        let node = NodeState {
            acl: Arc::clone(&acl),
            ephemeral: matches!(kind, NodeKind::Ephemeral(_)),
            version: 0,
            aversion: 0,
            created_children: 0,
            children: 0,
        };
        let change = Change::Create {
            path: path.as_str().into(),
            data: data.map(Arc::from),
            acl,
            kind,
            created_children,
            with_stat,
        };
        self.pending.insert(path, Some(node));
        Ok(change)
    }

    fn delete(&mut self, path: &str, version: i32) -> Result<Change, Code> {
        if !path.contains('/') || path.contains('\0') || ["/", SYSTEM_PATH, QUOTA, CONFIG].contains(&path) {
            return Err(Code::BAD_ARGUMENTS);
        }
        let (parent_path, _) = split(path);
        let mut parent = self.node_state(parent_path).ok_or(Code::NO_NODE)?;
        acl::check(&parent.acl, DELETE, self.identities)?;
        let node = self.node_state(path).ok_or(Code::NO_NODE)?;
        check_version(node.version, version)?;
        if node.children > 0 {
            return Err(Code::NOT_EMPTY);
        }
        parent.children -= 1;
        self.pending.insert(parent_path.to_owned(), Some(parent));
        self.pending.insert(path.to_owned(), None);
        Ok(Change::Delete { path: path.into() })
    }

    /// Returns a node if it exists and the connection has this permission.
    fn checked_node(&self, path: &str, permission: i32) -> Result<NodeState, Code> {
        if !is_valid(path) {
            return Err(Code::BAD_ARGUMENTS);
        }
        let node = self.node_state(path).ok_or(Code::NO_NODE)?;
        acl::check(&node.acl, permission, self.identities)?;
        Ok(node)
    }

    fn node_state(&self, path: &str) -> Option<NodeState> {
        if let Some(touched) = self.pending.get(path) {
            return touched.clone();
        }
        let node = self.tree.get(path)?;
        let stat = node.stat();
        Some(NodeState {
            acl: Arc::clone(&node.acl),
            ephemeral: matches!(node.kind, NodeKind::Ephemeral(_)),
            version: stat.version,
            aversion: stat.aversion,
            created_children: node.created_children,
            children: node.children.len(),
        })
    }
}

/// The longest time to live that ZooKeeper can store.
const MAX_TTL_MS: i64 = 0x00ff_ffff_ffff;
/// The version in requests that accept any version of a node.
const ANY_VERSION: i32 = -1;

const fn check_version(version: i32, expected: i32) -> Result<(), Code> {
    if expected == ANY_VERSION || expected == version { Ok(()) } else { Err(Code::BAD_VERSION) }
}

const fn kind(mode: CreateMode, session: i64) -> NodeKind {
    match mode {
        CreateMode::Ephemeral | CreateMode::EphemeralSequential => NodeKind::Ephemeral(session),
        CreateMode::Container => NodeKind::Container,
        _ => NodeKind::Persistent,
    }
}

const fn is_sequential(mode: CreateMode) -> bool {
    matches!(
        mode,
        CreateMode::PersistentSequential | CreateMode::EphemeralSequential | CreateMode::PersistentSequentialWithTtl
    )
}

/// Whether a path is valid by the rules of ZooKeeper (`PathUtils.validatePath`).
pub(crate) fn is_valid(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    if rest.is_empty() {
        return true;
    }
    // ZooKeeper checks UTF-16 code units and rejects surrogates. It therefore rejects all characters outside the Basic
    // Multilingual Plane.
    let forbidden = |c| matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..);
    rest.split('/').all(|part| !matches!(part, "" | "." | "..")) && !path.contains(forbidden)
}
