//! The one server that orders: it numbers changes, and keeps the clock of all sessions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use zklock::Time;
use zklock::proto::{Acl, Code, CreateMode, Identity, Request};

use crate::draft::Draft;
use crate::tree::{Change, Tree};
use crate::{ConnectionId, ServerId, Settings};

/// What all servers apply, in the order of their numbers.
#[derive(Debug, Clone)]
pub struct Txn {
    /// Its number.
    pub zxid: i64,
    /// When it was ordered, in milliseconds since the epoch.
    pub wall_ms: i64,
    /// The session it is about.
    pub session: i64,
    /// Who waits for the answer.
    pub origin: Option<Origin>,
    /// What it does.
    pub body: Body,
}

/// The request behind a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The server it came to.
    pub server: ServerId,
    /// By this connection.
    pub connection: ConnectionId,
    /// The server's own number for it.
    pub number: u64,
}

/// What a transaction does.
#[derive(Debug, Clone)]
pub enum Body {
    /// A session begins.
    OpenSession {
        /// After how much silence it ends.
        timeout: Duration,
    },
    /// A session ends, and its ephemeral nodes go.
    CloseSession,
    /// A change.
    One(Change),
    /// Several changes at once.
    Many(Vec<Change>),
    /// Nothing, for this reason.
    Failed(Code),
    /// None of several changes: a code for each.
    ManyFailed(Vec<Code>),
}

/// The one that orders.
#[derive(Debug)]
pub struct Leader {
    settings: Settings,
    zxid: i64,
    sessions: BTreeMap<i64, Lease>,
    expiries: BTreeSet<(Time, i64)>,
    opened: i64,
    sweep_at: Time,
    /// What a sweep found, while it goes on.
    ripe: Option<VecDeque<Arc<str>>>,
}

#[derive(Debug)]
struct Lease {
    timeout: Duration,
    expires: Time,
    /// The server its client is connected to; none before the client has come back after a change of leaders.
    home: Option<ServerId>,
}

impl Leader {
    /// The leader of an epoch: all sessions that were alive before have their whole time once more.
    pub fn new(settings: Settings, now: Time, epoch: u32, sessions: impl IntoIterator<Item = (i64, Duration)>) -> Self {
        let (zxid, opened) = (i64::from(epoch) << 32, i64::from(epoch) << 24);
        let (sessions_kept, expiries) = (BTreeMap::new(), BTreeSet::new());
        let mut leader = Self { settings, zxid, sessions: sessions_kept, expiries, opened, sweep_at: now, ripe: None };
        leader.restart(now, sessions);
        leader
    }

    /// The process has ended and begun anew: all sessions have their whole time once more.
    pub fn restart(&mut self, now: Time, sessions: impl IntoIterator<Item = (i64, Duration)>) {
        self.sweep_at = now + self.settings.sweep;
        self.ripe = None;
        self.sessions.clear();
        self.expiries.clear();
        for (session, timeout) in sessions {
            self.sessions.insert(session, Lease { timeout, expires: now + timeout, home: None });
            self.expiries.insert((now + timeout, session));
        }
    }

    /// The number of the last transaction.
    pub fn zxid(&self) -> i64 {
        self.zxid
    }

    /// Opens a session with a timeout that is as near to the one asked for as the settings allow.
    pub fn open(&mut self, now: Time, origin: Origin, timeout: Duration) -> Txn {
        self.opened += 1;
        let session = self.settings.session_base | self.opened;
        self.sessions.insert(session, Lease { timeout, expires: now + timeout, home: Some(origin.server) });
        self.expiries.insert((now + timeout, session));
        self.txn(now, session, Some(origin), Body::OpenSession { timeout })
    }

    /// A client is there again, perhaps at another server, perhaps with another timeout. False if its session has ended.
    pub fn resume(&mut self, now: Time, session: i64, server: ServerId, timeout: Duration) -> bool {
        if let Some(lease) = self.sessions.get_mut(&session) {
            lease.home = Some(server);
        }
        self.touch(now, session, timeout)
    }

    /// A sign of life. False if the session has ended.
    pub fn touch(&mut self, now: Time, session: i64, timeout: Duration) -> bool {
        let Some(lease) = self.sessions.get_mut(&session) else { return false };
        self.expiries.remove(&(lease.expires, session));
        (lease.timeout, lease.expires) = (timeout, now + timeout);
        self.expiries.insert((lease.expires, session));
        true
    }

    /// Orders what a request wants changed; `tree` is as of the last transaction.
    pub fn order(
        &mut self,
        now: Time,
        tree: &Tree,
        origin: Origin,
        session: i64,
        identities: &[Identity],
        request: &Request,
    ) -> Txn {
        let body = match self.admit(session, origin.server) {
            Err(code) => Body::Failed(code),
            Ok(()) => match request {
                Request::CloseSession => {
                    self.forget(session);
                    Body::CloseSession
                }
                Request::Multi(requests) => many(Draft::new(tree, session, identities), requests),
                request => match Draft::new(tree, session, identities).add(request) {
                    Ok(change) => Body::One(change),
                    Err(code) => Body::Failed(code),
                },
            },
        };
        self.txn(now, session, Some(origin), body)
    }

    /// Deletes a node whoever owns it, as an operator may. None if it can't be deleted.
    pub fn delete(&mut self, now: Time, tree: &Tree, path: &str) -> Option<Txn> {
        self.operate(now, tree, &Request::Delete { path: path.to_owned(), version: -1 })
    }

    /// Writes to a node, as an operator may. None if it can't be written to.
    pub fn set_data(&mut self, now: Time, tree: &Tree, path: &str, data: &[u8]) -> Option<Txn> {
        self.operate(now, tree, &Request::SetData { path: path.to_owned(), data: Some(data.to_vec()), version: -1 })
    }

    /// Creates a node that everybody may use, as an operator may. None if it can't be created.
    pub fn create(&mut self, now: Time, tree: &Tree, path: &str, mode: CreateMode) -> Option<Txn> {
        let (path, acl) = (path.to_owned(), Acl::open());
        self.operate(now, tree, &Request::Create2 { path, data: None, acl, mode })
    }

    /// Lets everybody do this with a node, as an operator may. None if there is no such node.
    pub fn allow(&mut self, now: Time, tree: &Tree, path: &str, perms: i32) -> Option<Txn> {
        let acl = Acl::open().into_iter().map(|acl| Acl { perms, ..acl }).collect();
        self.operate(now, tree, &Request::SetAcl { path: path.to_owned(), acl, version: -1 })
    }

    fn operate(&mut self, now: Time, tree: &Tree, request: &Request) -> Option<Txn> {
        let change = Draft::new(tree, 0, &[]).add(request).ok()?;
        Some(self.txn(now, 0, None, Body::One(change)))
    }

    /// Ends a session as if its time were over. None if there is no such session.
    pub fn expire(&mut self, now: Time, session: i64) -> Option<Txn> {
        self.forget(session).then(|| self.txn(now, session, None, Body::CloseSession))
    }

    /// The next transaction that is due by itself: a session that has been silent for too long, a node that is overripe.
    pub fn advance(&mut self, now: Time, tree: &Tree) -> Option<Txn> {
        if let Some(&(at, session)) = self.expiries.first()
            && at <= now
        {
            return self.expire(now, session);
        }
        if self.sweep_at <= now {
            if let Some(path) = self.sweep(self.settings.wall_ms(now), tree) {
                return Some(self.txn(now, 0, None, Body::One(Change::Delete { path })));
            }
            self.sweep_at = now + self.settings.sweep;
        }
        None
    }

    /// The next node to go in a sweep. One looks at all nodes once: what ripens meanwhile waits for the next (`ContainerManager`).
    fn sweep(&mut self, wall_ms: i64, tree: &Tree) -> Option<Arc<str>> {
        let ripe = self.ripe.get_or_insert_with(|| tree.overripe(wall_ms).collect());
        while let Some(path) = ripe.pop_front() {
            // It may have been used since.
            if tree.is_overripe(&path, wall_ms) {
                return Some(path);
            }
        }
        self.ripe = None;
        None
    }

    /// When [`advance`](Self::advance) has something to do.
    pub fn next_timeout(&self) -> Time {
        self.expiries.first().map_or(self.sweep_at, |&(at, _)| at.min(self.sweep_at))
    }

    fn admit(&mut self, session: i64, server: ServerId) -> Result<(), Code> {
        let lease = self.sessions.get_mut(&session).ok_or(Code::SESSION_EXPIRED)?;
        match *lease.home.get_or_insert(server) {
            home if home == server => Ok(()),
            _ => Err(Code::SESSION_MOVED),
        }
    }

    fn forget(&mut self, session: i64) -> bool {
        let Some(lease) = self.sessions.remove(&session) else { return false };
        self.expiries.remove(&(lease.expires, session));
        true
    }

    fn txn(&mut self, now: Time, session: i64, origin: Option<Origin>, body: Body) -> Txn {
        self.zxid += 1;
        Txn { zxid: self.zxid, wall_ms: self.settings.wall_ms(now), session, origin, body }
    }
}

/// All of several changes, or the codes that say which of them can't be made.
fn many(mut draft: Draft<'_>, requests: &[Request]) -> Body {
    let mut changes = Vec::with_capacity(requests.len());
    for (at, request) in requests.iter().enumerate() {
        match draft.add(request) {
            Ok(mut change) => {
                // A server takes the one type of create for the other here.
                if let (Request::Create2 { mode, .. }, Change::Create { with_stat, .. }) = (request, &mut change) {
                    *with_stat = *mode == CreateMode::Container;
                }
                changes.push(change);
            }
            Err(code) => {
                let mut codes = vec![Code::OK; at];
                codes.push(code);
                codes.resize(requests.len(), Code::RUNTIME_INCONSISTENCY);
                return Body::ManyFailed(codes);
            }
        }
    }
    Body::Many(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Kind;

    const SWEEP: Duration = Duration::from_secs(60);

    /// A tree and who orders its changes.
    struct Alone {
        leader: Leader,
        tree: Tree,
    }

    impl Alone {
        fn new() -> Self {
            let settings = Settings { sweep: SWEEP, ..Settings::default() };
            Self { leader: Leader::new(settings, Time::default(), 0, []), tree: Tree::default() }
        }

        fn make(&mut self, change: &Change) {
            self.tree.apply(0, 0, change, &mut Vec::new());
        }

        fn create(&mut self, path: &str, kind: Kind) {
            let (path, acl) = (path.into(), [].into());
            self.make(&Change::Create { path, data: None, acl, kind, creates: 1, with_stat: false });
        }

        /// A container that has lost its last child.
        fn ripen(&mut self, path: &str) {
            self.create(path, Kind::Container);
            self.create(&format!("{path}/child"), Kind::Persistent);
            self.make(&Change::Delete { path: format!("{path}/child").into() });
        }

        /// The next node that goes by itself.
        fn advance(&mut self, now: Time) -> Option<Arc<str>> {
            match self.leader.advance(now, &self.tree)?.body {
                Body::One(change @ Change::Delete { .. }) => {
                    self.make(&change);
                    let Change::Delete { path } = change else { unreachable!() };
                    Some(path)
                }
                other => panic!("nothing is due but deletions: {other:?}"),
            }
        }

        fn sweep(&mut self, now: Time) -> Vec<Arc<str>> {
            std::iter::from_fn(|| self.advance(now)).collect()
        }
    }

    /// So many that to look at all of them for each of them would take minutes.
    #[test]
    fn a_sweep_looks_at_each_node_once() {
        let mut alone = Alone::new();
        let paths: Vec<_> = (0..100_000).map(|i| format!("/{i:06}")).collect();
        paths.iter().for_each(|path| alone.ripen(path));
        assert!(alone.sweep(Time::default() + SWEEP / 2).is_empty());
        let swept = alone.sweep(Time::default() + SWEEP);
        assert!(swept.iter().map(|path| &**path).eq(paths.iter().map(String::as_str)));
    }

    #[test]
    fn what_is_used_during_a_sweep_stays() {
        let mut alone = Alone::new();
        ["/a", "/b", "/c"].iter().for_each(|path| alone.ripen(path));
        let now = Time::default() + SWEEP;
        assert_eq!(alone.advance(now).as_deref(), Some("/a"));
        alone.create("/b/child", Kind::Persistent);
        assert_eq!(alone.sweep(now), ["/c".into()]);
        assert!(alone.tree.get("/b").is_some());
    }

    #[test]
    fn a_container_goes_one_sweep_after_the_container_in_it() {
        let mut alone = Alone::new();
        alone.create("/outer", Kind::Container);
        alone.ripen("/outer/inner");
        assert_eq!(alone.sweep(Time::default() + SWEEP), ["/outer/inner".into()]);
        assert_eq!(alone.sweep(Time::default() + 2 * SWEEP), ["/outer".into()]);
    }
}
