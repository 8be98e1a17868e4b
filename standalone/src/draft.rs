//! From a request to the changes it makes, or to the reason why it makes none.
//!
//! All rules of the tree are here: what must exist, who may, which version. A draft looks at the tree through the changes it
//! has made up so far, so that the operations of a multi see each other's.

use std::collections::HashMap;
use std::sync::Arc;

use zklock::proto::{Acl, Code, CreateMode, Identity, Request};

use crate::acl;
use crate::tree::{ADMIN, CONFIG, CREATE, Change, DELETE, Kind, OWN, QUOTA, READ, Tree, WRITE, next_version, split};

/// The changes of one request in the making.
pub(crate) struct Draft<'a> {
    tree: &'a Tree,
    identities: &'a [Identity],
    session: i64,
    /// What is known of nodes that were touched: none if it is gone.
    touched: HashMap<String, Option<Head>>,
}

/// What the rules look at.
#[derive(Clone)]
struct Head {
    acl: Arc<[Acl]>,
    ephemeral: bool,
    version: i32,
    aversion: i32,
    creates: i32,
    children: usize,
}

impl<'a> Draft<'a> {
    /// A draft for a session whose connection has these identities.
    pub(crate) fn new(tree: &'a Tree, session: i64, identities: &'a [Identity]) -> Self {
        Self { tree, identities, session, touched: HashMap::new() }
    }

    /// The change that one operation makes.
    pub(crate) fn add(&mut self, request: &Request) -> Result<Change, Code> {
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
                self.create(path, data.as_deref(), acl, Kind::Ttl(*ttl_ms), *mode, true)
            }
            Request::Delete { path, version } => self.delete(path, *version),
            Request::SetData { path, data, version } => {
                let mut head = self.permitted(path, WRITE)?;
                expect(head.version, *version)?;
                head.version = next_version(head.version);
                self.touched.insert(path.clone(), Some(head));
                Ok(Change::SetData { path: path.as_str().into(), data: data.as_deref().map(Arc::from) })
            }
            Request::SetAcl { path, acl, version } => {
                if !is_valid(path) {
                    return Err(Code::BAD_ARGUMENTS);
                }
                let resolved: Arc<[Acl]> = acl::resolve(acl, self.identities)?.into();
                let mut head = self.permitted(path, ADMIN)?;
                expect(head.aversion, *version)?;
                head.aversion = next_version(head.aversion);
                head.acl = Arc::clone(&resolved);
                self.touched.insert(path.clone(), Some(head));
                Ok(Change::SetAcl { path: path.as_str().into(), acl: resolved })
            }
            Request::Check { path, version } => {
                let head = self.permitted(path, READ)?;
                expect(head.version, *version)?;
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
        kind: Kind,
        mode: CreateMode,
        with_stat: bool,
    ) -> Result<Change, Code> {
        if !path.contains('/') || path.contains('\0') {
            return Err(Code::BAD_ARGUMENTS);
        }
        let acl = acl::resolve(acl, self.identities)?.into();
        let (parent_path, _) = split(path);
        let mut parent = self.head(parent_path).ok_or(Code::NO_NODE)?;
        acl::check(&parent.acl, CREATE, self.identities)?;
        let mut path = path.to_owned();
        if is_sequential(mode) {
            path.push_str(&format!("{:010}", parent.creates));
        }
        if !is_valid(&path) {
            return Err(Code::BAD_ARGUMENTS);
        }
        if self.head(&path).is_some() {
            return Err(Code::NODE_EXISTS);
        }
        if parent.ephemeral {
            return Err(Code::NO_CHILDREN_FOR_EPHEMERALS);
        }
        parent.creates = parent.creates.wrapping_add(1);
        parent.children += 1;
        let creates = parent.creates;
        self.touched.insert(parent_path.to_owned(), Some(parent));
        let head = Head {
            acl: Arc::clone(&acl),
            ephemeral: matches!(kind, Kind::Ephemeral(_)),
            version: 0,
            aversion: 0,
            creates: 0,
            children: 0,
        };
        let change =
            Change::Create { path: path.as_str().into(), data: data.map(Arc::from), acl, kind, creates, with_stat };
        self.touched.insert(path, Some(head));
        Ok(change)
    }

    fn delete(&mut self, path: &str, version: i32) -> Result<Change, Code> {
        if !path.contains('/') || path.contains('\0') || ["/", OWN, QUOTA, CONFIG].contains(&path) {
            return Err(Code::BAD_ARGUMENTS);
        }
        let (parent_path, _) = split(path);
        let mut parent = self.head(parent_path).ok_or(Code::NO_NODE)?;
        acl::check(&parent.acl, DELETE, self.identities)?;
        let head = self.head(path).ok_or(Code::NO_NODE)?;
        expect(head.version, version)?;
        if head.children > 0 {
            return Err(Code::NOT_EMPTY);
        }
        parent.children -= 1;
        self.touched.insert(parent_path.to_owned(), Some(parent));
        self.touched.insert(path.to_owned(), None);
        Ok(Change::Delete { path: path.into() })
    }

    /// A node that exists and that the connection may use so.
    fn permitted(&self, path: &str, permission: i32) -> Result<Head, Code> {
        if !is_valid(path) {
            return Err(Code::BAD_ARGUMENTS);
        }
        let head = self.head(path).ok_or(Code::NO_NODE)?;
        acl::check(&head.acl, permission, self.identities)?;
        Ok(head)
    }

    fn head(&self, path: &str) -> Option<Head> {
        if let Some(touched) = self.touched.get(path) {
            return touched.clone();
        }
        let node = self.tree.get(path)?;
        let stat = node.stat();
        Some(Head {
            acl: Arc::clone(&node.acl),
            ephemeral: matches!(node.kind, Kind::Ephemeral(_)),
            version: stat.version,
            aversion: stat.aversion,
            creates: node.creates,
            children: node.children.len(),
        })
    }
}

/// Longer times to live do not fit into what a server keeps of them.
const MAX_TTL_MS: i64 = 0x00ff_ffff_ffff;
/// The version that any version is as good as.
const ANY_VERSION: i32 = -1;

const fn expect(version: i32, wanted: i32) -> Result<(), Code> {
    if wanted == ANY_VERSION || wanted == version { Ok(()) } else { Err(Code::BAD_VERSION) }
}

const fn kind(mode: CreateMode, session: i64) -> Kind {
    match mode {
        CreateMode::Ephemeral | CreateMode::EphemeralSequential => Kind::Ephemeral(session),
        CreateMode::Container => Kind::Container,
        _ => Kind::Persistent,
    }
}

const fn is_sequential(mode: CreateMode) -> bool {
    matches!(
        mode,
        CreateMode::PersistentSequential | CreateMode::EphemeralSequential | CreateMode::PersistentSequentialWithTtl
    )
}

/// Whether a node may be called so (ZooKeeper's `PathUtils.validatePath`).
pub(crate) fn is_valid(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    if rest.is_empty() {
        return true;
    }
    // A server looks at UTF-16 units and refuses surrogates, hence everything beyond the basic plane.
    let forbidden = |c| matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..);
    rest.split('/').all(|part| !matches!(part, "" | "." | "..")) && !path.contains(forbidden)
}
