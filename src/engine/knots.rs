//! Knots: a multi-lock and somebody else who wait for each other.
//!
//! Among multi-locks that are joined in one transaction there are none (decision 6). But who takes one lock after the other, as Curator's
//! multi-lock does, holds the first and comes to the second, where a multi-lock stands ahead of him that waits behind him in the
//! first. Only that one can give way: it leaves all its queues and joins them again, behind him.

use std::collections::BTreeSet;
use std::time::Duration;

use super::attempt::Attempt;
use super::{Engine, Kind, Machine, Op, OpId};
use crate::error::Result;
use crate::recipe::{Census, Contender, Input, Participant};
use crate::time::Time;

/// What is known of the knots of one call.
#[derive(Debug, Default)]
pub(super) struct Knots {
    /// A node that holds ahead of ours, and one that waits behind another of ours, both of one session.
    seen: BTreeSet<(String, String)>,
    wait: Duration,
    /// When it is looked for them next.
    next: Option<Time>,
}

impl Engine {
    /// A call waits in several queues from now on.
    pub(super) fn look_out_for_knots(&mut self, now: Time, op: OpId) {
        let before = self.forget_knots(op);
        // Who has given way more than once is looking at something that only looks like a knot.
        let limits = self.session.limits();
        self.plan_look(now, op, (before * 2).max(limits.first_look).min(limits.last_look));
    }

    /// A call has ended, or left its queues. Gives how long it last waited between two looks.
    pub(super) fn forget_knots(&mut self, op: OpId) -> Duration {
        let knots = self.ops.get_mut(&op).map(|op| std::mem::take(&mut op.knots)).unwrap_or_default();
        if let Some(next) = knots.next {
            self.looks.remove(&(next, op));
        }
        knots.wait
    }

    /// It is time to look.
    pub(super) fn look_for_knots(&mut self, now: Time, op: OpId) {
        let Some(Op { kind: Kind::Acquire { lock, attempt: Attempt::Queue(contender), .. }, .. }) = self.ops.get(&op)
        else {
            return;
        };
        let (lock, contender) = (*lock, *contender);
        let most_ahead = match self.machines.get(&contender) {
            Some(Machine::Contender(own, _)) => own.most_ahead(),
            _ => return,
        };
        let limits = self.session.limits();
        if most_ahead.is_none_or(|ahead| ahead > limits.most_ahead) {
            return self.plan_look(now, op, limits.first_look);
        }
        let places = self.members(lock).iter().filter_map(|&member| self.place(member, true)).collect();
        let machine = self.next_id();
        self.machines.insert(machine, Machine::Knots(Box::new(Census::new(places, 0)), op, contender));
        if self.session.is_connected() {
            self.feed(now, machine, Input::Connected);
        }
    }

    /// Who stands in the queues of a call. What was seen before and is still there is a knot.
    pub(super) fn queues_seen(&mut self, now: Time, op: OpId, contender: u64, queues: Result<Vec<Participant>>) {
        let is_waiting = matches!(
            self.ops.get(&op).map(|op| op.kind),
            Some(Kind::Acquire { attempt: Attempt::Queue(current), .. }) if current == contender
        );
        let Some(Machine::Contender(own, _)) = self.machines.get(&contender).filter(|_| is_waiting) else { return };
        let seen = mutual(&queues.unwrap_or_default(), own);
        let Some(Op { knots, .. }) = self.ops.get_mut(&op) else { return };
        let limits = self.session.limits();
        if !knots.seen.is_disjoint(&seen) {
            self.dismiss(now, contender, None);
            return self.join(now, op);
        }
        let wait = match seen.is_empty() {
            true => (knots.wait * 2).min(limits.last_look),
            // A pair that only looks like a deadlock resolves by itself.
            false => limits.second_look,
        };
        knots.seen = seen;
        self.plan_look(now, op, wait);
    }

    fn plan_look(&mut self, now: Time, op: OpId, wait: Duration) {
        if let Some(Op { knots, .. }) = self.ops.get_mut(&op) {
            knots.wait = wait.max(knots.wait);
            knots.next = Some(now + wait);
            self.looks.insert((now + wait, op));
        }
    }
}

/// Pairs of nodes of one session, of which one holds, ahead of `own` in one queue, and the other waits behind it in another. Who takes one
/// after the other waits in one queue at a time, and holds all that came before.
fn mutual(queues: &[Participant], own: &Contender) -> BTreeSet<(String, String)> {
    let own: Vec<&str> = own.node_paths().collect();
    let directory = |path: &str| path.rsplit_once('/').map_or("", |(directory, _)| directory).to_owned();
    let (mut ahead, mut behind) = (Vec::new(), Vec::new());
    for node in &own {
        let queue = queues.iter().filter(|other| directory(&other.node_path) == directory(node));
        let mut is_behind = false;
        for other in queue {
            if other.node_path == *node {
                is_behind = true;
            } else if is_behind && !other.holds {
                behind.push(other);
            } else if !is_behind && other.holds {
                ahead.push(other);
            }
        }
    }
    let pairs = ahead.iter().flat_map(|ahead| behind.iter().map(move |behind| (ahead, behind)));
    pairs
        .filter(|(ahead, behind)| {
            ahead.session_id == behind.session_id && directory(&ahead.node_path) != directory(&behind.node_path)
        })
        .map(|(ahead, behind)| (ahead.node_path.clone(), behind.node_path.clone()))
        .collect()
}
