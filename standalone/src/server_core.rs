//! The part of the standalone server that does no I/O: a complete ZooKeeper server as a value. The server contains its
//! own leader, so there is no election. It must not read a clock: the caller passes the time to each function.

use std::collections::VecDeque;
use std::net::SocketAddr;

use zklock_base::time::Time;
use zklock_proto::OpCode;

use crate::leader::Leader;
use crate::replica::{ConnectionAction, LeaderRequest, Replica, ReplicaOutput};
use crate::{ConnectionId, ServerId, Settings};

const SERVER_ID: ServerId = 1;
const LEADER_EPOCH: u32 = 0;

/// A leader together with its only replica.
#[derive(Debug)]
pub struct ServerCore {
    leader: Leader,
    replica: Replica,
    actions: VecDeque<ConnectionAction>,
}

impl ServerCore {
    /// Creates a server with an empty tree.
    pub fn new(settings: Settings, now: Time) -> Self {
        let leader = Leader::new(settings.clone(), now, LEADER_EPOCH, []);
        Self { leader, replica: Replica::new(SERVER_ID, settings), actions: VecDeque::new() }
    }

    /// The replica, which contains the tree, the sessions and the connections.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Registers a connection that a client has opened.
    pub fn accept(&mut self, now: Time, id: ConnectionId, peer: SocketAddr) {
        self.replica.accept(id, peer);
        self.process_output(now);
    }

    /// Processes bytes that a client has sent.
    pub fn received(&mut self, now: Time, id: ConnectionId, bytes: &[u8]) {
        self.advance(now);
        self.replica.received(id, bytes);
        self.process_output(now);
    }

    /// Removes a connection that has ended.
    pub fn closed(&mut self, now: Time, id: ConnectionId) {
        self.replica.closed(id);
        self.process_output(now);
    }

    /// Performs all work that is due: ends the sessions of silent clients and deletes containers.
    pub fn advance(&mut self, now: Time) {
        while let Some(txn) = self.leader.advance(now, &self.replica.tree) {
            self.replica.apply(&txn);
        }
        self.process_output(now);
    }

    /// The next time at which [`advance`](Self::advance) has work to do.
    pub fn next_timeout(&self) -> Time {
        self.leader.next_timeout()
    }

    /// Returns the next action for a connection.
    pub fn poll(&mut self) -> Option<ConnectionAction> {
        self.actions.pop_front()
    }

    /// Ends a session immediately, as if its timeout had elapsed. Returns false if the session does not exist.
    pub fn expire(&mut self, now: Time, session: i64) -> bool {
        let txn = self.leader.expire_session(now, session);
        txn.iter().for_each(|txn| self.replica.apply(txn));
        self.process_output(now);
        txn.is_some()
    }

    /// Drops the next reply to a request of type `op`, in this session or, if `session` is `None`, in any session.
    pub fn lose_reply(&mut self, session: Option<i64>, op: OpCode) {
        self.replica.lose_reply(session, op);
    }

    /// Behaves as if the server process had ended and a new process had loaded its data: all connections are closed,
    /// and the timeouts of all sessions start again.
    pub fn restart(&mut self, now: Time) {
        let sessions: Vec<_> = self.replica.sessions().map(|(id, session)| (id, session.timeout)).collect();
        self.leader.restart(now, sessions);
        self.replica.restart();
        self.actions.clear();
    }

    fn process_output(&mut self, now: Time) {
        while let Some(output) = self.replica.poll() {
            match output {
                ReplicaOutput::ToClient(action) => self.actions.push_back(action),
                ReplicaOutput::ToLeader(leader_request) => self.handle_leader_request(now, leader_request),
            }
        }
    }

    fn handle_leader_request(&mut self, now: Time, leader_request: LeaderRequest) {
        match leader_request {
            LeaderRequest::CreateSession { origin, timeout } => {
                let txn = self.leader.create_session(now, origin, timeout);
                self.replica.apply(&txn);
            }
            LeaderRequest::ResumeSession { connection, session, timeout } => {
                let alive = self.leader.resume_session(now, session, SERVER_ID, timeout);
                self.replica.resume_decided(connection, session, alive);
            }
            LeaderRequest::TouchSession { session, timeout } => {
                self.leader.touch_session(now, session, timeout);
            }
            LeaderRequest::Write { origin, session, identities, request } => {
                let txn = self.leader.propose(now, &self.replica.tree, origin, session, &identities, &request);
                self.replica.apply(&txn);
            }
            LeaderRequest::Sync { origin } => self.replica.synced(origin),
        }
    }
}
