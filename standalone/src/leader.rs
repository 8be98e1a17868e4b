//! The leader of an ensemble. It orders all changes, numbers them, and measures the timeouts of all sessions. It does
//! not change a tree: each replica applies the transactions to its own copy.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use zklock_base::time::Time;
use zklock_proto::{Acl, Code, CreateMode, Identity, Request};

use crate::transaction::TransactionBuilder;
use crate::tree::{Change, Tree};
use crate::{ConnectionId, ServerId, Settings};

/// A transaction. All servers apply all transactions in the order of their zxids.
#[derive(Debug, Clone)]
pub struct Txn {
    /// The number of the transaction.
    pub zxid: i64,
    /// The wall-clock time of the transaction, in milliseconds since the epoch.
    pub wall_ms: i64,
    /// The session that the transaction belongs to, or 0 for none.
    pub session: i64,
    /// The request that caused the transaction.
    pub origin: Option<Origin>,
    /// The effect of the transaction.
    pub body: TxnBody,
}

/// The request that caused a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The server that received the request.
    pub server: ServerId,
    /// The connection that sent the request.
    pub connection: ConnectionId,
    /// The number that the server gave to the request.
    pub request_number: u64,
}

/// The effect of a transaction.
#[derive(Debug, Clone)]
pub enum TxnBody {
    /// Creates a session.
    CreateSession {
        /// The session expires after this time without a message from its client.
        timeout: Duration,
    },
    /// Ends a session and deletes its ephemeral nodes.
    CloseSession,
    /// Makes one change.
    Change(Change),
    /// Makes several changes in one step.
    Multi(Vec<Change>),
    /// Changes nothing, because the request failed with this code.
    Error(Code),
    /// Changes nothing, because one of several changes failed. Contains an error code for each change.
    MultiError(Vec<Code>),
}

/// The leader: it orders the changes of all servers and expires sessions.
#[derive(Debug)]
pub struct Leader {
    settings: Settings,
    zxid: i64,
    sessions: BTreeMap<i64, TrackedSession>,
    expiries: BTreeSet<(Time, i64)>,
    sessions_created: i64,
    sweep_at: Time,
    /// The nodes that the present container check must still delete.
    sweep_candidates: Option<VecDeque<Arc<str>>>,
}

#[derive(Debug)]
struct TrackedSession {
    timeout: Duration,
    expires_at: Time,
    /// The server that the client is connected to. `None` after a change of leader, until the client reconnects.
    server: Option<ServerId>,
}

impl Leader {
    /// Creates the leader of an epoch. The timeouts of the given sessions start at `now`.
    pub fn new(settings: Settings, now: Time, epoch: u32, sessions: impl IntoIterator<Item = (i64, Duration)>) -> Self {
        let (zxid, sessions_created) = (i64::from(epoch) << 32, i64::from(epoch) << 24);
        let (sessions_kept, expiries) = (BTreeMap::new(), BTreeSet::new());
        let mut leader = Self {
            settings,
            zxid,
            sessions: sessions_kept,
            expiries,
            sessions_created,
            sweep_at: now,
            sweep_candidates: None,
        };
        leader.restart(now, sessions);
        leader
    }

    /// Behaves as if the process had ended and started again. The timeouts of the given sessions start at `now`.
    pub fn restart(&mut self, now: Time, sessions: impl IntoIterator<Item = (i64, Duration)>) {
        self.sweep_at = now + self.settings.sweep;
        self.sweep_candidates = None;
        self.sessions.clear();
        self.expiries.clear();
        for (session, timeout) in sessions {
            self.sessions.insert(session, TrackedSession { timeout, expires_at: now + timeout, server: None });
            self.expiries.insert((now + timeout, session));
        }
    }

    /// The number of the last transaction.
    pub fn zxid(&self) -> i64 {
        self.zxid
    }

    /// Creates a session with this timeout.
    pub fn create_session(&mut self, now: Time, origin: Origin, timeout: Duration) -> Txn {
        self.sessions_created += 1;
        let session = self.settings.session_base | self.sessions_created;
        self.sessions
            .insert(session, TrackedSession { timeout, expires_at: now + timeout, server: Some(origin.server) });
        self.expiries.insert((now + timeout, session));
        self.txn(now, session, Some(origin), TxnBody::CreateSession { timeout })
    }

    /// Extends a session after its client has reconnected. The client may use another server and another timeout than
    /// before. Returns false if the session has ended.
    pub fn resume_session(&mut self, now: Time, session: i64, server: ServerId, timeout: Duration) -> bool {
        if let Some(lease) = self.sessions.get_mut(&session) {
            lease.server = Some(server);
        }
        self.touch_session(now, session, timeout)
    }

    /// Extends a session because its client has sent a message. Returns false if the session has ended.
    pub fn touch_session(&mut self, now: Time, session: i64, timeout: Duration) -> bool {
        let Some(lease) = self.sessions.get_mut(&session) else { return false };
        self.expiries.remove(&(lease.expires_at, session));
        (lease.timeout, lease.expires_at) = (timeout, now + timeout);
        self.expiries.insert((lease.expires_at, session));
        true
    }

    /// Orders a write request as the next transaction. `tree` must contain all earlier transactions.
    pub fn propose(
        &mut self,
        now: Time,
        tree: &Tree,
        origin: Origin,
        session: i64,
        identities: &[Identity],
        request: &Request,
    ) -> Txn {
        let body = match self.check_session(session, origin.server) {
            Err(code) => TxnBody::Error(code),
            Ok(()) => match request {
                Request::CloseSession => {
                    self.forget(session);
                    TxnBody::CloseSession
                }
                Request::Multi(requests) => multi_body(TransactionBuilder::new(tree, session, identities), requests),
                request => match TransactionBuilder::new(tree, session, identities).prepare(request) {
                    Ok(change) => TxnBody::Change(change),
                    Err(code) => TxnBody::Error(code),
                },
            },
        };
        self.txn(now, session, Some(origin), body)
    }

    /// Deletes a node on behalf of an operator, outside of any session. Returns `None` if the deletion fails.
    pub fn operator_delete(&mut self, now: Time, tree: &Tree, path: &str) -> Option<Txn> {
        self.operator_txn(now, tree, &Request::Delete { path: path.to_owned(), version: -1 })
    }

    /// Replaces the data of a node on behalf of an operator. Returns `None` if the write fails.
    pub fn operator_set_data(&mut self, now: Time, tree: &Tree, path: &str, data: &[u8]) -> Option<Txn> {
        self.operator_txn(
            now,
            tree,
            &Request::SetData { path: path.to_owned(), data: Some(data.to_vec()), version: -1 },
        )
    }

    /// Creates a node with open access on behalf of an operator. Returns `None` if the creation fails.
    pub fn operator_create(&mut self, now: Time, tree: &Tree, path: &str, mode: CreateMode) -> Option<Txn> {
        let (path, acl) = (path.to_owned(), Acl::open());
        self.operator_txn(now, tree, &Request::Create2 { path, data: None, acl, mode })
    }

    /// Grants these permissions on a node to everyone, on behalf of an operator. Returns `None` if the node does not
    /// exist.
    pub fn operator_set_permissions(&mut self, now: Time, tree: &Tree, path: &str, perms: i32) -> Option<Txn> {
        let acl = Acl::open().into_iter().map(|acl| Acl { perms, ..acl }).collect();
        self.operator_txn(now, tree, &Request::SetAcl { path: path.to_owned(), acl, version: -1 })
    }

    fn operator_txn(&mut self, now: Time, tree: &Tree, request: &Request) -> Option<Txn> {
        let change = TransactionBuilder::new(tree, 0, &[]).prepare(request).ok()?;
        Some(self.txn(now, 0, None, TxnBody::Change(change)))
    }

    /// Ends a session as if its timeout had elapsed. Returns `None` if the session does not exist.
    pub fn expire_session(&mut self, now: Time, session: i64) -> Option<Txn> {
        self.forget(session).then(|| self.txn(now, session, None, TxnBody::CloseSession))
    }

    /// Returns the next transaction that is due: the end of an expired session, or the deletion of a node by the
    /// container check.
    pub fn advance(&mut self, now: Time, tree: &Tree) -> Option<Txn> {
        if let Some(&(at, session)) = self.expiries.first()
            && at <= now
        {
            return self.expire_session(now, session);
        }
        if self.sweep_at <= now {
            if let Some(path) = self.sweep(self.settings.wall_ms(now), tree) {
                return Some(self.txn(now, 0, None, TxnBody::Change(Change::Delete { path })));
            }
            self.sweep_at = now + self.settings.sweep;
        }
        None
    }

    /// Returns the next node that the container check deletes. As in ZooKeeper's `ContainerManager`, each check lists
    /// the nodes only once. If a node becomes empty after the list, a later check deletes it.
    fn sweep(&mut self, wall_ms: i64, tree: &Tree) -> Option<Arc<str>> {
        let ripe = self.sweep_candidates.get_or_insert_with(|| tree.sweep_candidates(wall_ms).collect());
        while let Some(path) = ripe.pop_front() {
            // A client may have changed the node or created a child since the check began.
            if tree.is_sweep_candidate(&path, wall_ms) {
                return Some(path);
            }
        }
        self.sweep_candidates = None;
        None
    }

    /// The next time at which [`advance`](Self::advance) has work to do.
    pub fn next_timeout(&self) -> Time {
        self.expiries.first().map_or(self.sweep_at, |&(at, _)| at.min(self.sweep_at))
    }

    fn check_session(&mut self, session: i64, server: ServerId) -> Result<(), Code> {
        let lease = self.sessions.get_mut(&session).ok_or(Code::SESSION_EXPIRED)?;
        match *lease.server.get_or_insert(server) {
            home if home == server => Ok(()),
            _ => Err(Code::SESSION_MOVED),
        }
    }

    fn forget(&mut self, session: i64) -> bool {
        let Some(lease) = self.sessions.remove(&session) else { return false };
        self.expiries.remove(&(lease.expires_at, session));
        true
    }

    fn txn(&mut self, now: Time, session: i64, origin: Option<Origin>, body: TxnBody) -> Txn {
        self.zxid += 1;
        Txn { zxid: self.zxid, wall_ms: self.settings.wall_ms(now), session, origin, body }
    }
}

/// Prepares all changes of a multi. If one of them fails, returns an error code for each operation.
fn multi_body(mut transaction: TransactionBuilder<'_>, requests: &[Request]) -> TxnBody {
    let mut changes = Vec::with_capacity(requests.len());
    for (at, request) in requests.iter().enumerate() {
        match transaction.prepare(request) {
            Ok(mut change) => {
                // In a multi, ZooKeeper swaps the reply types of the two create operations.
                if let (Request::Create2 { mode, .. }, Change::Create { with_stat, .. }) = (request, &mut change) {
                    *with_stat = *mode == CreateMode::Container;
                }
                changes.push(change);
            }
            Err(code) => {
                let mut codes = vec![Code::OK; at];
                codes.push(code);
                codes.resize(requests.len(), Code::RUNTIME_INCONSISTENCY);
                return TxnBody::MultiError(codes);
            }
        }
    }
    TxnBody::Multi(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::NodeKind;

    const SWEEP: Duration = Duration::from_secs(60);

    /// A leader with its tree.
    struct LeaderWithTree {
        leader: Leader,
        tree: Tree,
    }

    impl LeaderWithTree {
        fn new() -> Self {
            let settings = Settings { sweep: SWEEP, ..Settings::default() };
            Self { leader: Leader::new(settings, Time::default(), 0, []), tree: Tree::default() }
        }

        fn apply(&mut self, change: &Change) {
            self.tree.apply(0, 0, change, &mut Vec::new());
        }

        fn create(&mut self, path: &str, kind: NodeKind) {
            let (path, acl) = (path.into(), [].into());
            self.apply(&Change::Create { path, data: None, acl, kind, created_children: 1, with_stat: false });
        }

        /// Creates a container and deletes its only child.
        fn empty_container(&mut self, path: &str) {
            self.create(path, NodeKind::Container);
            self.create(&format!("{path}/child"), NodeKind::Persistent);
            self.apply(&Change::Delete { path: format!("{path}/child").into() });
        }

        /// Applies the next deletion that is due, and returns its path.
        fn advance(&mut self, now: Time) -> Option<Arc<str>> {
            match self.leader.advance(now, &self.tree)?.body {
                TxnBody::Change(change @ Change::Delete { .. }) => {
                    self.apply(&change);
                    let Change::Delete { path } = change else { unreachable!() };
                    Some(path)
                }
                other => panic!("expected only deletions: {other:?}"),
            }
        }

        fn sweep(&mut self, now: Time) -> Vec<Arc<str>> {
            std::iter::from_fn(|| self.advance(now)).collect()
        }
    }

    /// With this large number of nodes, a quadratic algorithm would take minutes.
    #[test]
    fn a_sweep_looks_at_each_node_once() {
        let mut fixture = LeaderWithTree::new();
        let paths: Vec<_> = (0..100_000).map(|i| format!("/{i:06}")).collect();
        paths.iter().for_each(|path| fixture.empty_container(path));
        assert!(fixture.sweep(Time::default() + SWEEP / 2).is_empty());
        let swept = fixture.sweep(Time::default() + SWEEP);
        assert!(swept.iter().map(|path| &**path).eq(paths.iter().map(String::as_str)));
    }

    #[test]
    fn what_is_used_during_a_sweep_stays() {
        let mut fixture = LeaderWithTree::new();
        ["/a", "/b", "/c"].iter().for_each(|path| fixture.empty_container(path));
        let now = Time::default() + SWEEP;
        assert_eq!(fixture.advance(now).as_deref(), Some("/a"));
        fixture.create("/b/child", NodeKind::Persistent);
        assert_eq!(fixture.sweep(now), ["/c".into()]);
        assert!(fixture.tree.get("/b").is_some());
    }

    #[test]
    fn a_container_goes_one_sweep_after_the_container_in_it() {
        let mut fixture = LeaderWithTree::new();
        fixture.create("/outer", NodeKind::Container);
        fixture.empty_container("/outer/inner");
        assert_eq!(fixture.sweep(Time::default() + SWEEP), ["/outer/inner".into()]);
        assert_eq!(fixture.sweep(Time::default() + 2 * SWEEP), ["/outer".into()]);
    }
}
