//! The servers: a leader, replicas that lag behind it, and the loss of contact between them.
//!
//! A transaction is committed at the moment at which the leader orders it, so the committed state is always known. The
//! replicas, including that of the leader, apply the transaction later. An isolated leader continues to answer requests
//! that need no quorum until it notices its isolation.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use zklock_core::time::Time;
use zklock_proto::{CreateMode, Request};
use zklock_standalone::{Change, Leader, LeaderRequest, NodeKind, Origin, Replica, ServerId, Settings, Txn, TxnBody};

use crate::checker::Checker;
use crate::plan::Plan;

/// A message of the leader to a replica.
#[derive(Debug)]
pub(crate) enum LeaderMessage {
    /// The log has a new transaction.
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
    /// Number of transactions of the log that it has applied.
    pub(crate) applied: usize,
    /// Whether its process runs.
    pub(crate) is_alive: bool,
    /// Whether it accepts clients.
    pub(crate) is_serving: bool,
    /// Whether it is isolated from the other servers.
    pub(crate) is_cut_off: bool,
    pub(crate) lag: Duration,
    /// Messages in transit to the server and from it, in order.
    pub(crate) from_leader: VecDeque<(Time, LeaderMessage)>,
    pub(crate) to_leader: VecDeque<(Time, LeaderRequest)>,
    /// Touches of sessions that it will send to its leader together.
    touches: Vec<(i64, Duration)>,
}

pub(crate) struct Cluster {
    settings: Settings,
    pub(crate) servers: Vec<Server>,
    /// The committed state.
    pub(crate) committed: Replica,
    pub(crate) log: Vec<Rc<Txn>>,
    epoch: u32,
    /// The leader, if there is one.
    pub(crate) leader: Option<(usize, Leader)>,
    /// A deposed leader that does not know that it was replaced.
    pub(crate) deposed_leader: Option<(usize, Leader)>,
    lag: (Duration, Duration),
    /// Transactions that the leader orders are not committed any more.
    pub(crate) is_commit_blocked: bool,
    /// Sessions that a deposed leader has wrongly reported as expired.
    pub(crate) wrongly_expired: BTreeSet<i64>,
}

impl Cluster {
    pub(crate) fn new(plan: &Plan, now: Time) -> Self {
        let settings = Settings {
            tick: plan.session_timeout / 4,
            min_session_timeout: Some(plan.session_timeout),
            max_session_timeout: Some(plan.session_timeout),
            sweep: plan.sweep_interval,
            supports_persistent_watches: !plan.is_old,
            sasl_secret: plan.sasl_secret,
            frame_limit: plan.frame_limit.unwrap_or(zklock_proto::DEFAULT_FRAME_LIMIT),
            ..Settings::default()
        };
        let server = |index| Server {
            replica: Replica::new(id_of(index), settings.clone()),
            applied: 0,
            is_alive: true,
            is_serving: true,
            is_cut_off: false,
            lag: Duration::ZERO,
            from_leader: VecDeque::new(),
            to_leader: VecDeque::new(),
            touches: Vec::new(),
        };
        Self {
            servers: (0..plan.servers).map(server).collect(),
            committed: Replica::new(0, settings.clone()),
            log: Vec::new(),
            epoch: 1,
            leader: Some((0, Leader::new(settings.clone(), now, 1, []))),
            deposed_leader: None,
            settings,
            lag: plan.lag,
            is_commit_blocked: false,
            wrongly_expired: BTreeSet::new(),
        }
    }

    /// Returns when a message that is sent now arrives. It arrives after all earlier messages.
    fn arrival(&self, rng: &mut Rng, now: Time, server: usize, last: Option<Time>) -> Time {
        let is_leader = self.leader.as_ref().is_some_and(|(leader, _)| *leader == server);
        let spread = if is_leader { Duration::ZERO } else { between(rng, self.lag) };
        let at = now + spread + self.servers[server].lag;
        last.map_or(at, |last| at.max(last))
    }

    /// Sends a message of a replica to the leader. Returns its time of arrival, or `None` if it is not sent now.
    pub(crate) fn send_to_leader(
        &mut self,
        rng: &mut Rng,
        now: Time,
        server: usize,
        leader_request: LeaderRequest,
    ) -> Option<Time> {
        let leads = |who: &Option<(usize, Leader)>| who.as_ref().is_some_and(|(leader, _)| *leader == server);
        if leads(&self.deposed_leader) {
            self.ask_deposed_leader(now, leader_request);
            return Some(now);
        }
        if self.servers[server].is_cut_off || self.leader.is_none() {
            return None;
        }
        if let (LeaderRequest::TouchSession { session, timeout }, false) = (&leader_request, leads(&self.leader)) {
            self.servers[server].touches.push((*session, *timeout));
            return None;
        }
        let last = self.servers[server].to_leader.back().map(|&(at, _)| at);
        let at = self.arrival(rng, now, server, last);
        self.servers[server].to_leader.push_back((at, leader_request));
        Some(at)
    }

    /// Lets the deposed leader answer a request that needs no quorum.
    fn ask_deposed_leader(&mut self, now: Time, leader_request: LeaderRequest) {
        let Some((server, leader)) = &mut self.deposed_leader else { return };
        let message = match leader_request {
            LeaderRequest::TouchSession { session, timeout } => {
                leader.touch_session(now, session, timeout);
                return;
            }
            LeaderRequest::ResumeSession { connection, session, timeout } => {
                let alive = leader.resume_session(now, session, id_of(*server), timeout);
                if !alive {
                    self.wrongly_expired.insert(session);
                }
                LeaderMessage::Resumed { connection, session, alive }
            }
            LeaderRequest::Sync { origin } => LeaderMessage::Synced(origin),
            // These requests need a quorum, so they are never answered.
            LeaderRequest::CreateSession { .. } | LeaderRequest::Write { .. } => return,
        };
        self.servers[*server].from_leader.push_back((now, message));
    }

    /// Lets a follower answer its leader's ping and report the sessions that are alive. Returns when the leader
    /// receives the answer.
    pub(crate) fn relay_touches(&mut self, rng: &mut Rng, now: Time, server: usize) -> Option<Time> {
        let touches = std::mem::take(&mut self.servers[server].touches);
        if touches.is_empty() || self.servers[server].is_cut_off || !self.servers[server].is_serving {
            return None;
        }
        let last = self.servers[server].to_leader.back().map(|&(at, _)| at);
        let at = self.arrival(rng, now, server, last);
        let touches =
            touches.into_iter().map(|(session, timeout)| (at, LeaderRequest::TouchSession { session, timeout }));
        self.servers[server].to_leader.extend(touches);
        Some(at)
    }

    /// Lets the leader handle the messages of a replica. Returns the replicas that receive messages, and when.
    pub(crate) fn deliver_to_leader(
        &mut self,
        rng: &mut Rng,
        checker: &mut Checker,
        now: Time,
        server: usize,
    ) -> Vec<(usize, Time)> {
        let mut deliveries = Vec::new();
        while self.servers[server].to_leader.front().is_some_and(|&(at, _)| at <= now) {
            let Some((_, leader_request)) = self.servers[server].to_leader.pop_front() else { break };
            let Some((_, leader)) = &mut self.leader else { continue };
            match leader_request {
                LeaderRequest::TouchSession { session, timeout } => {
                    leader.touch_session(now, session, timeout);
                }
                LeaderRequest::CreateSession { origin, timeout } => {
                    let txn = leader.create_session(now, origin, timeout);
                    deliveries.extend(self.commit(rng, checker, now, txn));
                }
                LeaderRequest::Write { origin, session, identities, request } => {
                    let txn = leader.propose(now, self.committed.tree(), origin, session, &identities, &request);
                    deliveries.extend(self.commit_request(rng, checker, now, txn, Some(&request)));
                }
                LeaderRequest::ResumeSession { connection, session, timeout } => {
                    let alive = leader.resume_session(now, session, id_of(server), timeout);
                    if !alive && self.is_commit_blocked {
                        self.wrongly_expired.insert(session);
                    }
                    deliveries.push(self.send_to_replica(
                        rng,
                        now,
                        server,
                        LeaderMessage::Resumed { connection, session, alive },
                    ));
                }
                LeaderRequest::Sync { origin } => {
                    deliveries.push(self.send_to_replica(rng, now, server, LeaderMessage::Synced(origin)));
                }
            }
        }
        deliveries
    }

    /// Lets the leader perform the actions that are due.
    pub(crate) fn advance(&mut self, rng: &mut Rng, checker: &mut Checker, now: Time) -> Vec<(usize, Time)> {
        let mut deliveries = Vec::new();
        while let Some((_, leader)) = &mut self.leader
            && let Some(txn) = leader.advance(now, self.committed.tree())
        {
            deliveries.extend(self.commit(rng, checker, now, txn));
        }
        deliveries
    }

    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.leader.as_ref().map(|(_, leader)| leader.next_timeout())
    }

    /// Ends a session on behalf of an operator.
    pub(crate) fn expire(
        &mut self,
        rng: &mut Rng,
        checker: &mut Checker,
        now: Time,
        session: i64,
    ) -> Vec<(usize, Time)> {
        let leader = self.leader.as_mut().filter(|_| !self.is_commit_blocked);
        let Some(txn) = leader.and_then(|(_, leader)| leader.expire_session(now, session)) else { return Vec::new() };
        for path in self.nodes_of(session) {
            checker.on_node_voided(&path);
        }
        self.commit(rng, checker, now, txn)
    }

    pub(crate) fn delete(&mut self, rng: &mut Rng, checker: &mut Checker, now: Time, path: &str) -> Vec<(usize, Time)> {
        let Some((_, leader)) = self.leader.as_mut().filter(|_| !self.is_commit_blocked) else { return Vec::new() };
        let Some(txn) = leader.operator_delete(now, self.committed.tree(), path) else { return Vec::new() };
        checker.on_node_voided(path);
        self.commit(rng, checker, now, txn)
    }

    /// Deletes a node and all nodes below it, on behalf of an operator.
    pub(crate) fn delete_all(
        &mut self,
        rng: &mut Rng,
        checker: &mut Checker,
        now: Time,
        path: &str,
    ) -> Vec<(usize, Time)> {
        let children: Vec<String> =
            self.committed.tree().get(path).into_iter().flat_map(|node| node.children.iter().cloned()).collect();
        let mut deliveries = Vec::new();
        for child in children {
            deliveries.extend(self.delete_all(rng, checker, now, &format!("{path}/{child}")));
        }
        deliveries.extend(self.delete(rng, checker, now, path));
        deliveries
    }

    /// Creates a node on behalf of an operator, with a sequence number if the mode requires it.
    pub(crate) fn create(
        &mut self,
        rng: &mut Rng,
        checker: &mut Checker,
        now: Time,
        path: &str,
        mode: CreateMode,
    ) -> Vec<(usize, Time)> {
        let Some((_, leader)) = self.leader.as_mut().filter(|_| !self.is_commit_blocked) else { return Vec::new() };
        let Some(txn) = leader.operator_create(now, self.committed.tree(), path, mode) else { return Vec::new() };
        self.commit(rng, checker, now, txn)
    }

    /// Sets the permissions of everyone for a node, on behalf of an operator.
    pub(crate) fn set_permissions(
        &mut self,
        rng: &mut Rng,
        checker: &mut Checker,
        now: Time,
        path: &str,
        perms: i32,
    ) -> Vec<(usize, Time)> {
        let Some((_, leader)) = self.leader.as_mut().filter(|_| !self.is_commit_blocked) else { return Vec::new() };
        let Some(txn) = leader.operator_set_permissions(now, self.committed.tree(), path, perms) else {
            return Vec::new();
        };
        self.commit(rng, checker, now, txn)
    }

    /// Returns the path of the node that was created last.
    pub(crate) fn last_created(&self) -> Option<&str> {
        changes_of(&self.log.last()?.body).iter().find_map(|change| match change {
            Change::Create { path, .. } => Some(&**path),
            _ => None,
        })
    }

    /// Returns whether there is a leader whose transactions are committed.
    pub(crate) fn has_leader(&self) -> bool {
        self.leader.is_some() && !self.is_commit_blocked
    }

    /// Sets the data of a node on behalf of an operator.
    pub(crate) fn set(
        &mut self,
        rng: &mut Rng,
        checker: &mut Checker,
        now: Time,
        path: &str,
        data: &[u8],
    ) -> Vec<(usize, Time)> {
        let Some((_, leader)) = self.leader.as_mut().filter(|_| !self.is_commit_blocked) else { return Vec::new() };
        let Some(txn) = leader.operator_set_data(now, self.committed.tree(), path, data) else { return Vec::new() };
        self.commit(rng, checker, now, txn)
    }

    fn nodes_of(&self, session: i64) -> Vec<String> {
        self.committed.tree().ephemerals_of(session).map(|path| path.to_string()).collect()
    }

    fn commit(&mut self, rng: &mut Rng, checker: &mut Checker, now: Time, txn: Txn) -> Vec<(usize, Time)> {
        self.commit_request(rng, checker, now, txn, None)
    }

    /// Commits a transaction and reports its changes to the checker.
    fn commit_request(
        &mut self,
        rng: &mut Rng,
        checker: &mut Checker,
        now: Time,
        txn: Txn,
        request: Option<&Request>,
    ) -> Vec<(usize, Time)> {
        if self.is_commit_blocked {
            return Vec::new();
        }
        let removed: Vec<String> = match &txn.body {
            TxnBody::CloseSession => self.nodes_of(txn.session),
            body => changes_of(body).iter().filter_map(deleted_by).map(str::to_owned).collect(),
        };
        for path in removed {
            checker.removed(now, &path);
        }
        self.committed.apply(&txn);
        for change in changes_of(&txn.body) {
            let Some(node) = self.committed.tree().get(written_by(change)) else { continue };
            match change {
                Change::Create { path, kind: NodeKind::Ephemeral(session), .. } => {
                    let is_named = request.is_some_and(|request| is_named_by_client(request, path));
                    checker.created(path, node.stat().czxid, *session, is_named);
                }
                Change::Create { path, .. } | Change::SetData { path, .. } => {
                    checker.written(now, path, node.data.as_deref().unwrap_or_default());
                }
                _ => {}
            }
        }
        self.log.push(Rc::new(txn));
        (0..self.servers.len())
            .filter(|&server| self.servers[server].is_serving && !self.servers[server].is_cut_off)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|server| self.send_to_replica(rng, now, server, LeaderMessage::Apply))
            .collect()
    }

    fn send_to_replica(&mut self, rng: &mut Rng, now: Time, server: usize, message: LeaderMessage) -> (usize, Time) {
        let last = self.servers[server].from_leader.back().map(|&(at, _)| at);
        let at = self.arrival(rng, now, server, last);
        self.servers[server].from_leader.push_back((at, message));
        (server, at)
    }

    /// Lets a replica handle the messages of its leader.
    pub(crate) fn deliver_to_replica(&mut self, now: Time, index: usize) {
        let server = &mut self.servers[index];
        while server.from_leader.front().is_some_and(|&(at, _)| at <= now) {
            match server.from_leader.pop_front() {
                Some((_, LeaderMessage::Apply)) => {
                    if let Some(txn) = self.log.get(server.applied) {
                        server.replica.apply(txn);
                        server.applied += 1;
                    }
                }
                Some((_, LeaderMessage::Resumed { connection, session, alive })) => {
                    server.replica.resume_decided(connection, session, alive);
                }
                Some((_, LeaderMessage::Synced(origin))) => server.replica.synced(origin),
                None => {}
            }
        }
    }

    // Losing and restoring contact.

    /// Stops a server, or ends its process. All its connections are lost.
    pub(crate) fn stop_serving(&mut self, index: usize) {
        let server = &mut self.servers[index];
        server.is_serving = false;
        server.replica.restart();
        server.from_leader.clear();
        server.to_leader.clear();
        server.touches.clear();
        if self.deposed_leader.as_ref().is_some_and(|(leader, _)| *leader == index) {
            self.deposed_leader = None;
        }
    }

    /// Elects the server with the longest log if there is a majority. All servers then begin with the same state.
    pub(crate) fn elect(&mut self, now: Time) -> bool {
        let able = |server: &Server| server.is_alive && !server.is_cut_off;
        let voters: Vec<usize> = (0..self.servers.len()).filter(|&index| able(&self.servers[index])).collect();
        if self.leader.is_some() || voters.len() * 2 <= self.servers.len() {
            return false;
        }
        let Some(&chosen) = voters.iter().max_by_key(|&&index| self.servers[index].applied) else { return false };
        self.epoch += 1;
        self.is_commit_blocked = false;
        let sessions: Vec<_> = self.committed.sessions().map(|(id, session)| (id, session.timeout)).collect();
        self.leader = Some((chosen, Leader::new(self.settings.clone(), now, self.epoch, sessions)));
        voters.into_iter().for_each(|index| self.join(index));
        true
    }

    /// Lets a server find the leader, apply all transactions and begin to serve.
    pub(crate) fn join(&mut self, index: usize) {
        self.stop_serving(index);
        let server = &mut self.servers[index];
        for txn in self.log.iter().skip(server.applied) {
            server.replica.apply(txn);
        }
        while server.replica.poll().is_some() {}
        server.applied = self.log.len();
        server.is_serving = true;
    }
}

pub(crate) fn changes_of(body: &TxnBody) -> &[Change] {
    match body {
        TxnBody::Change(change) => std::slice::from_ref(change),
        TxnBody::Multi(changes) => changes,
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

/// Returns whether a request itself contains the name of the created node, without a sequence number from the server.
fn is_named_by_client(request: &Request, made: &str) -> bool {
    match request {
        Request::Create { path, .. } | Request::Create2 { path, .. } => path == made,
        Request::Multi(requests) => requests.iter().any(|request| is_named_by_client(request, made)),
        _ => false,
    }
}

pub(crate) fn id_of(index: usize) -> ServerId {
    ServerId::try_from(index + 1).unwrap_or(ServerId::MAX)
}

pub(crate) fn between(rng: &mut Rng, (least, most): (Duration, Duration)) -> Duration {
    least + (most - least).mul_f64(rng.f64())
}
