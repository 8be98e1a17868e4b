//! A server that is its own leader: the whole of a ZooKeeper that never fails over, as a value.

use std::collections::VecDeque;
use std::net::SocketAddr;

use zklock::Time;
use zklock::proto::OpCode;

use crate::leader::Leader;
use crate::replica::{Action, Output, Replica, Upcall};
use crate::{ConnectionId, ServerId, Settings};

const SERVER: ServerId = 1;
const EPOCH: u32 = 0;

/// One server without others.
#[derive(Debug)]
pub struct Standalone {
    leader: Leader,
    replica: Replica,
    actions: VecDeque<Action>,
}

impl Standalone {
    /// A fresh one.
    pub fn new(settings: Settings, now: Time) -> Self {
        let leader = Leader::new(settings.clone(), now, EPOCH, []);
        Self { leader, replica: Replica::new(SERVER, settings), actions: VecDeque::new() }
    }

    /// What it knows.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// A client has connected.
    pub fn accept(&mut self, now: Time, id: ConnectionId, peer: SocketAddr) {
        self.replica.accept(id, peer);
        self.settle(now);
    }

    /// A client has sent something.
    pub fn received(&mut self, now: Time, id: ConnectionId, bytes: &[u8]) {
        self.advance(now);
        self.replica.received(id, bytes);
        self.settle(now);
    }

    /// A client has gone.
    pub fn closed(&mut self, now: Time, id: ConnectionId) {
        self.replica.closed(id);
        self.settle(now);
    }

    /// Does what is due.
    pub fn advance(&mut self, now: Time) {
        while let Some(txn) = self.leader.advance(now, &self.replica.tree) {
            self.replica.apply(&txn);
        }
        self.settle(now);
    }

    /// When [`advance`](Self::advance) has something to do.
    pub fn next_timeout(&self) -> Time {
        self.leader.next_timeout()
    }

    /// The next thing to be done for a client.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Ends a session at once, as if it had been silent for too long. False if there is none such.
    pub fn expire(&mut self, now: Time, session: i64) -> bool {
        let txn = self.leader.expire(now, session);
        txn.iter().for_each(|txn| self.replica.apply(txn));
        self.settle(now);
        txn.is_some()
    }

    /// Lets the next reply to such a request be lost: of this session, or of any.
    pub fn lose_reply(&mut self, session: Option<i64>, op: OpCode) {
        self.replica.lose_reply(session, op);
    }

    /// What happens when the process ends and begins anew with its disk as it was: all connections are gone, and all
    /// sessions have their whole time once more.
    pub fn restart(&mut self, now: Time) {
        let sessions: Vec<_> = self.replica.sessions().map(|(id, session)| (id, session.timeout)).collect();
        self.leader.restart(now, sessions);
        self.replica.restart();
        self.actions.clear();
    }

    fn settle(&mut self, now: Time) {
        while let Some(output) = self.replica.poll() {
            match output {
                Output::Act(action) => self.actions.push_back(action),
                Output::Ask(upcall) => self.answer(now, upcall),
            }
        }
    }

    fn answer(&mut self, now: Time, upcall: Upcall) {
        match upcall {
            Upcall::Open { origin, timeout } => {
                let txn = self.leader.open(now, origin, timeout);
                self.replica.apply(&txn);
            }
            Upcall::Resume { connection, session, timeout } => {
                let alive = self.leader.resume(now, session, SERVER, timeout);
                self.replica.resumed(connection, session, alive);
            }
            Upcall::Touch { session, timeout } => {
                self.leader.touch(now, session, timeout);
            }
            Upcall::Write { origin, session, identities, request } => {
                let txn = self.leader.order(now, &self.replica.tree, origin, session, &identities, &request);
                self.replica.apply(&txn);
            }
            Upcall::Sync { origin } => self.replica.synced(origin),
        }
    }
}
