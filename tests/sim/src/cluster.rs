//! The servers: replicas that lag behind a leader, and what happens when they lose touch with each other.
//!
//! A transaction is committed the moment the leader orders it, so that one truth is known at any time; the replicas, the leader's
//! own among them, come to know it later. A leader that was cut off goes on answering what needs no quorum until it notices.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use zklock::Time;
use zklock::proto::{CreateMode, Request};
use zklock_standalone::{Body, Change, Kind, Leader, Origin, Replica, ServerId, Settings, Txn, Upcall};

use crate::judge::Judge;
use crate::plan::Plan;

/// What a leader tells a replica.
#[derive(Debug)]
pub(crate) enum Decree {
    /// The next transaction is in the log.
    Apply,
    Resumed {
        connection: u64,
        session: i64,
        alive: bool,
    },
    Synced(Origin),
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) replica: Replica,
    /// How much of the log it has applied.
    pub(crate) applied: usize,
    /// Its process runs.
    pub(crate) is_alive: bool,
    /// It takes clients.
    pub(crate) serves: bool,
    /// It has no link to the others.
    pub(crate) is_cut_off: bool,
    pub(crate) lag: Duration,
    /// What is on its way to it, and from it, in order.
    pub(crate) decrees: VecDeque<(Time, Decree)>,
    pub(crate) upcalls: VecDeque<(Time, Upcall)>,
    /// Signs of life that its leader is told of in one go.
    touches: Vec<(i64, Duration)>,
}

pub(crate) struct Cluster {
    settings: Settings,
    pub(crate) servers: Vec<Server>,
    /// The truth: everything that was committed.
    pub(crate) truth: Replica,
    pub(crate) log: Vec<Rc<Txn>>,
    epoch: u32,
    /// Who leads, if anybody does.
    pub(crate) leader: Option<(usize, Leader)>,
    /// Who thinks so without being it.
    pub(crate) stale: Option<(usize, Leader)>,
    lag: (Duration, Duration),
    /// Nothing that the leader orders is committed any more.
    pub(crate) is_doomed: bool,
    /// Sessions of which a leader that was cut off said that they had ended, since it did not know better.
    pub(crate) disowned: BTreeSet<i64>,
}

impl Cluster {
    pub(crate) fn new(plan: &Plan, now: Time) -> Self {
        let settings = Settings {
            tick: plan.session_timeout / 4,
            min_session_timeout: Some(plan.session_timeout),
            max_session_timeout: Some(plan.session_timeout),
            sweep: plan.sweep,
            knows_persistent_watches: !plan.is_old,
            frame_limit: plan.frame_limit.unwrap_or(zklock::proto::DEFAULT_FRAME_LIMIT),
            ..Settings::default()
        };
        let server = |index| Server {
            replica: Replica::new(id_of(index), settings.clone()),
            applied: 0,
            is_alive: true,
            serves: true,
            is_cut_off: false,
            lag: Duration::ZERO,
            decrees: VecDeque::new(),
            upcalls: VecDeque::new(),
            touches: Vec::new(),
        };
        Self {
            servers: (0..plan.servers).map(server).collect(),
            truth: Replica::new(0, settings.clone()),
            log: Vec::new(),
            epoch: 1,
            leader: Some((0, Leader::new(settings.clone(), now, 1, []))),
            stale: None,
            settings,
            lag: plan.lag,
            is_doomed: false,
            disowned: BTreeSet::new(),
        }
    }

    /// When something that is said now arrives; what was said before arrives before.
    fn arrival(&self, rng: &mut Rng, now: Time, server: usize, last: Option<Time>) -> Time {
        let is_leader = self.leader.as_ref().is_some_and(|(leader, _)| *leader == server);
        let spread = if is_leader { Duration::ZERO } else { between(rng, self.lag) };
        let at = now + spread + self.servers[server].lag;
        last.map_or(at, |last| at.max(last))
    }

    /// A replica asks for something. Gives the time when the leader hears of it, if it is to be told at all.
    pub(crate) fn ask(&mut self, rng: &mut Rng, now: Time, server: usize, upcall: Upcall) -> Option<Time> {
        let leads = |who: &Option<(usize, Leader)>| who.as_ref().is_some_and(|(leader, _)| *leader == server);
        if leads(&self.stale) {
            self.ask_stale(now, upcall);
            return Some(now);
        }
        if self.servers[server].is_cut_off || self.leader.is_none() {
            return None;
        }
        if let (Upcall::Touch { session, timeout }, false) = (&upcall, leads(&self.leader)) {
            self.servers[server].touches.push((*session, *timeout));
            return None;
        }
        let last = self.servers[server].upcalls.back().map(|&(at, _)| at);
        let at = self.arrival(rng, now, server, last);
        self.servers[server].upcalls.push_back((at, upcall));
        Some(at)
    }

    /// A leader that is none any more answers what it needs nobody for.
    fn ask_stale(&mut self, now: Time, upcall: Upcall) {
        let Some((server, leader)) = &mut self.stale else { return };
        let decree = match upcall {
            Upcall::Touch { session, timeout } => {
                leader.touch(now, session, timeout);
                return;
            }
            Upcall::Resume { connection, session, timeout } => {
                let alive = leader.resume(now, session, id_of(*server), timeout);
                if !alive {
                    self.disowned.insert(session);
                }
                Decree::Resumed { connection, session, alive }
            }
            Upcall::Sync { origin } => Decree::Synced(origin),
            // These need a quorum, and wait for ever.
            Upcall::Open { .. } | Upcall::Write { .. } => return,
        };
        self.servers[*server].decrees.push_back((now, decree));
    }

    /// A follower answers its leader's ping: it reports who is alive. Gives the time when the leader receives that.
    pub(crate) fn relay(&mut self, rng: &mut Rng, now: Time, server: usize) -> Option<Time> {
        let touches = std::mem::take(&mut self.servers[server].touches);
        if touches.is_empty() || self.servers[server].is_cut_off || !self.servers[server].serves {
            return None;
        }
        let last = self.servers[server].upcalls.back().map(|&(at, _)| at);
        let at = self.arrival(rng, now, server, last);
        let touches = touches.into_iter().map(|(session, timeout)| (at, Upcall::Touch { session, timeout }));
        self.servers[server].upcalls.extend(touches);
        Some(at)
    }

    /// The leader hears what a replica asked. Gives the times when replicas hear of the consequences.
    pub(crate) fn hear(&mut self, rng: &mut Rng, judge: &mut Judge, now: Time, server: usize) -> Vec<(usize, Time)> {
        let mut news = Vec::new();
        while self.servers[server].upcalls.front().is_some_and(|&(at, _)| at <= now) {
            let Some((_, upcall)) = self.servers[server].upcalls.pop_front() else { break };
            let Some((_, leader)) = &mut self.leader else { continue };
            match upcall {
                Upcall::Touch { session, timeout } => {
                    leader.touch(now, session, timeout);
                }
                Upcall::Open { origin, timeout } => {
                    let txn = leader.open(now, origin, timeout);
                    news.extend(self.commit(rng, judge, now, txn));
                }
                Upcall::Write { origin, session, identities, request } => {
                    let txn = leader.order(now, self.truth.tree(), origin, session, &identities, &request);
                    news.extend(self.commit_request(rng, judge, now, txn, Some(&request)));
                }
                Upcall::Resume { connection, session, timeout } => {
                    let alive = leader.resume(now, session, id_of(server), timeout);
                    if !alive && self.is_doomed {
                        self.disowned.insert(session);
                    }
                    news.push(self.decree(rng, now, server, Decree::Resumed { connection, session, alive }));
                }
                Upcall::Sync { origin } => news.push(self.decree(rng, now, server, Decree::Synced(origin))),
            }
        }
        news
    }

    /// What is due at the leader by itself.
    pub(crate) fn advance(&mut self, rng: &mut Rng, judge: &mut Judge, now: Time) -> Vec<(usize, Time)> {
        let mut news = Vec::new();
        while let Some((_, leader)) = &mut self.leader
            && let Some(txn) = leader.advance(now, self.truth.tree())
        {
            news.extend(self.commit(rng, judge, now, txn));
        }
        news
    }

    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.leader.as_ref().map(|(_, leader)| leader.next_timeout())
    }

    /// Ends a session, or deletes a node, by an operator's hand.
    pub(crate) fn expire(&mut self, rng: &mut Rng, judge: &mut Judge, now: Time, session: i64) -> Vec<(usize, Time)> {
        let leader = self.leader.as_mut().filter(|_| !self.is_doomed);
        let Some(txn) = leader.and_then(|(_, leader)| leader.expire(now, session)) else { return Vec::new() };
        for path in self.nodes_of(session) {
            judge.voided(&path);
        }
        self.commit(rng, judge, now, txn)
    }

    pub(crate) fn delete(&mut self, rng: &mut Rng, judge: &mut Judge, now: Time, path: &str) -> Vec<(usize, Time)> {
        let Some((_, leader)) = self.leader.as_mut().filter(|_| !self.is_doomed) else { return Vec::new() };
        let Some(txn) = leader.delete(now, self.truth.tree(), path) else { return Vec::new() };
        judge.voided(path);
        self.commit(rng, judge, now, txn)
    }

    /// Deletes a node with all that is below it, by an operator's hand.
    pub(crate) fn delete_all(&mut self, rng: &mut Rng, judge: &mut Judge, now: Time, path: &str) -> Vec<(usize, Time)> {
        let children: Vec<String> =
            self.truth.tree().get(path).into_iter().flat_map(|node| node.children.iter().cloned()).collect();
        let mut news = Vec::new();
        for child in children {
            news.extend(self.delete_all(rng, judge, now, &format!("{path}/{child}")));
        }
        news.extend(self.delete(rng, judge, now, path));
        news
    }

    /// Creates a node by an operator's hand; one with a number if its mode says so.
    pub(crate) fn create(
        &mut self,
        rng: &mut Rng,
        judge: &mut Judge,
        now: Time,
        path: &str,
        mode: CreateMode,
    ) -> Vec<(usize, Time)> {
        let Some((_, leader)) = self.leader.as_mut().filter(|_| !self.is_doomed) else { return Vec::new() };
        let Some(txn) = leader.create(now, self.truth.tree(), path, mode) else { return Vec::new() };
        self.commit(rng, judge, now, txn)
    }

    /// Sets what everybody may do with a node, by an operator's hand.
    pub(crate) fn allow(
        &mut self,
        rng: &mut Rng,
        judge: &mut Judge,
        now: Time,
        path: &str,
        perms: i32,
    ) -> Vec<(usize, Time)> {
        let Some((_, leader)) = self.leader.as_mut().filter(|_| !self.is_doomed) else { return Vec::new() };
        let Some(txn) = leader.allow(now, self.truth.tree(), path, perms) else { return Vec::new() };
        self.commit(rng, judge, now, txn)
    }

    /// The path of the node that was created last.
    pub(crate) fn last_created(&self) -> Option<&str> {
        changes_of(&self.log.last()?.body).iter().find_map(|change| match change {
            Change::Create { path, .. } => Some(&**path),
            _ => None,
        })
    }

    /// Whether there is a leader that commits what it orders.
    pub(crate) fn has_leader(&self) -> bool {
        self.leader.is_some() && !self.is_doomed
    }

    /// Writes to a node by an operator's hand.
    pub(crate) fn set(
        &mut self,
        rng: &mut Rng,
        judge: &mut Judge,
        now: Time,
        path: &str,
        data: &[u8],
    ) -> Vec<(usize, Time)> {
        let Some((_, leader)) = self.leader.as_mut().filter(|_| !self.is_doomed) else { return Vec::new() };
        let Some(txn) = leader.set_data(now, self.truth.tree(), path, data) else { return Vec::new() };
        self.commit(rng, judge, now, txn)
    }

    fn nodes_of(&self, session: i64) -> Vec<String> {
        self.truth.tree().ephemerals_of(session).map(|path| path.to_string()).collect()
    }

    fn commit(&mut self, rng: &mut Rng, judge: &mut Judge, now: Time, txn: Txn) -> Vec<(usize, Time)> {
        self.commit_request(rng, judge, now, txn, None)
    }

    /// Commits a transaction, and the request that it comes from.
    fn commit_request(
        &mut self,
        rng: &mut Rng,
        judge: &mut Judge,
        now: Time,
        txn: Txn,
        request: Option<&Request>,
    ) -> Vec<(usize, Time)> {
        if self.is_doomed {
            return Vec::new();
        }
        let removed: Vec<String> = match &txn.body {
            Body::CloseSession => self.nodes_of(txn.session),
            body => changes_of(body).iter().filter_map(deleted_by).map(str::to_owned).collect(),
        };
        for path in removed {
            judge.removed(now, &path);
        }
        self.truth.apply(&txn);
        for change in changes_of(&txn.body) {
            let Some(node) = self.truth.tree().get(written_by(change)) else { continue };
            match change {
                Change::Create { path, kind: Kind::Ephemeral(session), .. } => {
                    let is_named = request.is_some_and(|request| names(request, path));
                    judge.created(path, node.stat().czxid, *session, is_named);
                }
                Change::Create { path, .. } | Change::SetData { path, .. } => {
                    judge.written(now, path, node.data.as_deref().unwrap_or_default());
                }
                _ => {}
            }
        }
        self.log.push(Rc::new(txn));
        (0..self.servers.len())
            .filter(|&server| self.servers[server].serves && !self.servers[server].is_cut_off)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|server| self.decree(rng, now, server, Decree::Apply))
            .collect()
    }

    fn decree(&mut self, rng: &mut Rng, now: Time, server: usize, decree: Decree) -> (usize, Time) {
        let last = self.servers[server].decrees.back().map(|&(at, _)| at);
        let at = self.arrival(rng, now, server, last);
        self.servers[server].decrees.push_back((at, decree));
        (server, at)
    }

    /// A replica hears from its leader.
    pub(crate) fn obey(&mut self, now: Time, index: usize) {
        let server = &mut self.servers[index];
        while server.decrees.front().is_some_and(|&(at, _)| at <= now) {
            match server.decrees.pop_front() {
                Some((_, Decree::Apply)) => {
                    if let Some(txn) = self.log.get(server.applied) {
                        server.replica.apply(txn);
                        server.applied += 1;
                    }
                }
                Some((_, Decree::Resumed { connection, session, alive })) => {
                    server.replica.resumed(connection, session, alive);
                }
                Some((_, Decree::Synced(origin))) => server.replica.synced(origin),
                None => {}
            }
        }
    }

    // Losing and finding each other.

    /// A server's process ends, or it stops serving: its connections are gone.
    pub(crate) fn stop_serving(&mut self, index: usize) {
        let server = &mut self.servers[index];
        server.serves = false;
        server.replica.restart();
        server.decrees.clear();
        server.upcalls.clear();
        server.touches.clear();
        if self.stale.as_ref().is_some_and(|(leader, _)| *leader == index) {
            self.stale = None;
        }
    }

    /// The others, if they are enough, choose the one that knows most; all begin to serve from the same state.
    pub(crate) fn elect(&mut self, now: Time) -> bool {
        let able = |server: &Server| server.is_alive && !server.is_cut_off;
        let voters: Vec<usize> = (0..self.servers.len()).filter(|&index| able(&self.servers[index])).collect();
        if self.leader.is_some() || voters.len() * 2 <= self.servers.len() {
            return false;
        }
        let Some(&chosen) = voters.iter().max_by_key(|&&index| self.servers[index].applied) else { return false };
        self.epoch += 1;
        self.is_doomed = false;
        let sessions: Vec<_> = self.truth.sessions().map(|(id, session)| (id, session.timeout)).collect();
        self.leader = Some((chosen, Leader::new(self.settings.clone(), now, self.epoch, sessions)));
        voters.into_iter().for_each(|index| self.join(index));
        true
    }

    /// A server finds the leader: it catches up, and serves.
    pub(crate) fn join(&mut self, index: usize) {
        self.stop_serving(index);
        let server = &mut self.servers[index];
        for txn in self.log.iter().skip(server.applied) {
            server.replica.apply(txn);
        }
        while server.replica.poll().is_some() {}
        server.applied = self.log.len();
        server.serves = true;
    }
}

pub(crate) fn changes_of(body: &Body) -> &[Change] {
    match body {
        Body::One(change) => std::slice::from_ref(change),
        Body::Many(changes) => changes,
        _ => &[],
    }
}

fn deleted_by(change: &Change) -> Option<&str> {
    match change {
        Change::Delete { path } => Some(path),
        _ => None,
    }
}

fn written_by(change: &Change) -> &str {
    match change {
        Change::Create { path, .. } | Change::SetData { path, .. } => path,
        _ => "",
    }
}

/// Whether a request names the node that it makes, and leaves no number to the server.
fn names(request: &Request, made: &str) -> bool {
    match request {
        Request::Create { path, .. } | Request::Create2 { path, .. } => path == made,
        Request::Multi(requests) => requests.iter().any(|request| names(request, made)),
        _ => false,
    }
}

pub(crate) fn id_of(index: usize) -> ServerId {
    ServerId::try_from(index + 1).unwrap_or(ServerId::MAX)
}

pub(crate) fn between(rng: &mut Rng, (least, most): (Duration, Duration)) -> Duration {
    least + (most - least).mul_f64(rng.f64())
}
