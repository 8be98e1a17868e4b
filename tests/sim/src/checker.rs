//! The checker compares the committed state of the servers with the reports that the clients received.
//!
//! A claim is a hold that a program may rely on: from the time at which the program reads its state until the end of
//! the reported remaining time, or until the release. A claim remains valid whatever happens to the client meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use zklock_core::engine::LockState;
use zklock_core::engine::{LockId, Owner};
use zklock_core::session::ClientState;
use zklock_core::time::Time;

/// The holder of a lock: a client, one of its threads, the lock and the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    pub(crate) client: usize,
    pub(crate) thread: usize,
    pub(crate) lock: LockId,
    pub(crate) owner: Owner,
}

/// The fencing token and the fencing pass of a hold, as a store compares them.
pub(crate) type TokenPair = (i64, u32);

/// The identity of a node. Its path is not enough, because a directory that is deleted and created again may contain
/// the same path again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct NodeId {
    czxid: i64,
    path: String,
}

/// The other holders that a hold excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exclusion {
    /// All others: a mutex or a write lock.
    Exclusive,
    /// Writers: a read lock.
    Shared,
    /// All others, because there is only one lease.
    SingleLease,
    /// Others that would exceed the number of leases.
    Leases,
}

/// A grant, as reported to a client.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) path: usize,
    pub(crate) exclusion: Exclusion,
    pub(crate) nodes: Vec<String>,
    pub(crate) token: TokenPair,
    /// The client must know all changes before this time.
    pub(crate) known_before: Time,
    /// The client must know all changes of the number of leases before this time.
    pub(crate) count_known_before: Time,
}

/// A fence check in progress, with the true state at its start.
#[derive(Debug)]
pub(crate) struct FenceQuestion {
    pub(crate) token: i64,
    node: NodeId,
    was_there: bool,
    /// The nodes ahead of the node that excluded it at the start.
    ahead: Vec<NodeId>,
}

#[derive(Debug, Default)]
pub(crate) struct Checker {
    claims: BTreeMap<Holder, Claim>,
    /// For each path, the newest token of a holder that excluded all others.
    last_tokens: BTreeMap<usize, TokenPair>,
    /// Deleted nodes, with the time of the deletion.
    removed_nodes: BTreeMap<NodeId, Time>,
    /// Existing nodes, by directory and path.
    queues: BTreeMap<String, BTreeMap<String, Node>>,
    /// All nodes that ever existed, in the order of their creation, without those that have no place in the queue.
    created_nodes: Vec<NodeId>,
    /// Nodes that an operator deleted. Claims to them are not checked any more.
    void_nodes: BTreeSet<NodeId>,
    /// For each path, its numbers of leases and the times since when they apply.
    max_leases: BTreeMap<usize, Vec<(Time, i32)>>,
    /// For each node, its revocation requests and the reports of them.
    revocations: BTreeMap<NodeId, RevocationState>,
    /// The client and the thread that last held a lock by the node.
    holders: BTreeMap<NodeId, (usize, usize)>,
    /// For each node, the fencing pass of its last grant, and the time of that grant.
    passes: BTreeMap<NodeId, (u32, Time)>,
    /// Directories with nodes of other recipes, and directories whose permissions were restricted for a while.
    foreign_directories: BTreeSet<String>,
    restricted_directories: BTreeSet<String>,
    /// Maximum number of local hand-overs of one node.
    pub(crate) max_passes: u32,
    /// Limit on the bytes of the paths of all nodes of one session.
    pub(crate) max_path_bytes: Option<usize>,
    /// The time at which a directory last became empty.
    emptied_at: BTreeMap<String, Time>,
    /// The root of all paths.
    pub(crate) root: &'static str,
    /// For each client, the last reported state of its session.
    reported_client_states: BTreeMap<usize, ClientState>,
    /// The last reported state of each hold, by client, lock and token.
    reported_states: BTreeMap<(usize, u64, TokenPair), LockState>,
    pub(crate) grants: usize,
    pub(crate) losses: usize,
    pub(crate) violation: Option<String>,
}

#[derive(Debug)]
struct Claim {
    path: usize,
    exclusion: Exclusion,
    nodes: Vec<NodeId>,
    token: TokenPair,
    until: Time,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    czxid: i64,
    session: i64,
    /// The node has the sequence number of a node that was already deleted. It has no place in the queue and must never
    /// become a hold.
    is_nested_in_deleted: bool,
}

#[derive(Debug, Default)]
struct RevocationState {
    requested: u32,
    reported: u32,
    requested_at: Time,
    reported_at: Time,
}

impl Checker {
    pub(crate) fn add_violation(&mut self, what: impl FnOnce() -> String) {
        self.violation.get_or_insert_with(what);
    }

    /// Sets the number of leases of a path from now on.
    pub(crate) fn set_max_leases(&mut self, now: Time, path: usize, leases: i32) {
        self.max_leases.entry(path).or_default().push((now, leases));
    }

    /// Returns the largest number of leases since a time.
    fn most_leases(&self, path: usize, since: Time) -> usize {
        let limits = self.max_leases.get(&path).map_or(&[][..], Vec::as_slice);
        let first = limits.iter().rposition(|&(at, _)| at <= since).unwrap_or_default();
        let most = limits.iter().skip(first).map(|&(_, leases)| leases).max().unwrap_or_default();
        usize::try_from(most).unwrap_or_default()
    }

    /// Records the creation of a node. `is_named` is true if the creator chose the sequence number.
    pub(crate) fn created(&mut self, path: &str, czxid: i64, session: i64, is_named: bool) {
        let queue = self.queues.entry(directory(path).to_owned()).or_default();
        let shares_place =
            |(other, node): (&String, &Node)| sequence_text(other) == sequence_text(path) && node.session == session;
        let is_nested_in_deleted = is_named && !queue.iter().any(shares_place);
        queue.insert(path.to_owned(), Node { czxid, session, is_nested_in_deleted });
        if !is_nested_in_deleted {
            self.created_nodes.push(NodeId { czxid, path: path.to_owned() });
        }
        if let Some(most) = self.max_path_bytes {
            // The transaction that ends a session contains the same bytes.
            let of_session = self.queues.values().flatten().filter(|(_, node)| node.session == session);
            let bytes: usize = of_session.map(|(path, _)| 4 + path.len()).sum();
            if bytes > most {
                self.add_violation(|| {
                    format!("session {session:#x} has nodes whose paths take {bytes} bytes, with {path}")
                });
            }
        }
    }

    /// Returns whether the directory contained a node at any time since `since`.
    pub(crate) fn was_used(&self, directory: &str, since: Time) -> bool {
        let is_used = self.queues.get(directory).is_some_and(|queue| !queue.is_empty());
        is_used || self.emptied_at.get(directory).is_some_and(|&at| at >= since)
    }

    /// Records that another program created a node of another recipe.
    pub(crate) fn on_foreign_created(&mut self, path: &str, czxid: i64) {
        self.foreign_directories.insert(directory(path).to_owned());
        let queue = self.queues.entry(directory(path).to_owned()).or_default();
        queue.insert(path.to_owned(), Node { czxid, session: 0, is_nested_in_deleted: false });
    }

    pub(crate) fn had_foreign(&self, path: &str) -> bool {
        self.foreign_directories.contains(path)
    }

    /// Records that an operator restricted the permissions of a directory.
    pub(crate) fn on_permissions_removed(&mut self, directory: &str) {
        self.restricted_directories.insert(directory.to_owned());
    }

    /// Returns whether an operator restricted the permissions of a directory of the lock, or of one of its ancestors.
    pub(crate) fn were_permissions_removed(&self, path: &str) -> bool {
        let is_own = |directory: &str| matches!(directory.strip_prefix(path), Some("" | "/leases" | "/locks"));
        let is_above = |directory: &str| path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'));
        self.restricted_directories.iter().any(|directory| is_own(directory) || is_above(directory))
    }

    /// Returns the node that exists at a path now.
    fn node_at(&self, path: &str) -> Option<NodeId> {
        let found = self.queues.get(directory(path))?.get(path)?;
        Some(NodeId { czxid: found.czxid, path: path.to_owned() })
    }

    fn is_there(&self, node: &NodeId) -> bool {
        let found = self.queues.get(directory(&node.path)).and_then(|queue| queue.get(&node.path));
        found.is_some_and(|found| found.czxid == node.czxid)
    }

    /// Chooses one of the newest tokens of a path, held or not, for a fence check.
    pub(crate) fn fence_question(&self, rng: &mut Rng, path: &str) -> Option<FenceQuestion> {
        let is_of = |node: &&NodeId| matches!(directory(&node.path).strip_prefix(path), Some("" | "/leases"));
        if self.had_foreign(path) {
            return None;
        }
        let newest: Vec<&NodeId> = self.created_nodes.iter().rev().filter(is_of).take(6).collect();
        let node = (!newest.is_empty()).then(|| newest[rng.usize(..newest.len())])?;
        let queue = self.queues.get(directory(&node.path));
        let is_lease = directory(&node.path).ends_with("/leases");
        let keeps_out = |&(other, found): &(&String, &Node)| match (is_lease, is_reader(&node.path)) {
            (true, _) => found.czxid < node.czxid,
            // A nested read has the same place as its owner's write node.
            (false, true) => !is_reader(other) && sequence_text(other) < sequence_text(&node.path),
            (false, false) => (sequence_text(other), found.czxid) < (sequence_text(&node.path), node.czxid),
        };
        let others = queue.into_iter().flatten();
        // Several leases may have one token.
        let was_there = others.clone().any(|(_, found)| found.czxid == node.czxid);
        let ahead = others.filter(keeps_out).map(|(other, found)| NodeId { czxid: found.czxid, path: other.clone() });
        Some(FenceQuestion { token: node.czxid, node: node.clone(), was_there, ahead: ahead.collect() })
    }

    /// Checks the result of a fence check. A fact that was true at the start and at the end was true all the time. In
    /// this case only one result is correct.
    pub(crate) fn on_fence_checked(&mut self, client: usize, question: &FenceQuestion, holds: bool) {
        let FenceQuestion { token, node, was_there, ahead } = question;
        // A fence check does not get the number of leases, so the correct result for a waiting lease is not always
        // known.
        let is_lease = directory(&node.path).ends_with("/leases");
        let is_behind_other = !is_lease && ahead.iter().any(|other| self.is_there(other));
        if self.had_foreign(directory(&node.path)) {
            return;
        }
        let is_wrong = match holds {
            true => !was_there || is_behind_other,
            false => *was_there && ahead.is_empty() && self.is_there(node),
        };
        if is_wrong {
            self.add_violation(|| format!("client {client} received the answer {holds} for the fence check of token {token}, which is wrong; {question:?}"));
        }
    }

    /// Records a write to a node, which may be a revocation request or a new number of leases.
    pub(crate) fn written(&mut self, now: Time, path: &str, data: &[u8]) {
        if data == REVOKE
            && let Some(node) = self.node_at(path)
        {
            let revoked = self.revocations.entry(node).or_default();
            (revoked.requested, revoked.requested_at) = (revoked.requested + 1, now);
        }
        let count = path.strip_prefix(self.root).and_then(|path| path.strip_prefix(COUNTS_DIRECTORY));
        if let Some(path) = count.and_then(|path| path.parse().ok())
            && let Ok(count) = data.try_into().map(i32::from_be_bytes)
        {
            self.set_max_leases(now, path, count);
        }
    }

    /// Checks the report of a revocation request to a client. The report contains a path, and several nodes may have
    /// had this path. The report belongs to a node with an unreported request.
    pub(crate) fn on_revocation_reported(&mut self, now: Time, client: usize, path: &str) {
        let is_missing = |(node, revocations): &(&NodeId, &mut RevocationState)| {
            node.path == path && revocations.reported < revocations.requested
        };
        match self.revocations.iter_mut().find(is_missing) {
            Some((_, revocations)) => (revocations.reported, revocations.reported_at) = (revocations.reported + 1, now),
            None => {
                self.add_violation(|| format!("client {client} received an unexpected revocation request for {path}"));
            }
        }
    }

    /// Checks that the holder of a node knows all revocation requests from before `since`.
    pub(crate) fn expect_revocation_reported(&mut self, client: usize, path: String, token: i64, since: Time) {
        let node = NodeId { czxid: token, path };
        // A holder that received the lock by local hand-over a moment ago may not know the request.
        let is_new = self.passes.get(&node).is_some_and(|&(pass, at)| pass > 0 && at >= since);
        let is_unreported = |revocations: &RevocationState| {
            revocations.requested_at < since && revocations.reported_at < revocations.requested_at
        };
        if !is_new && self.revocations.get(&node).is_some_and(is_unreported) {
            self.add_violation(|| format!("client {client} never received the revocation request for {node:?}"));
        }
    }

    /// Checks a grant, and starts the claim of its holder.
    pub(crate) fn granted(&mut self, now: Time, holder: Holder, grant: Grant) {
        self.grants += 1;
        let Grant { path, exclusion, nodes, token, known_before, count_known_before } = grant;
        let nodes: Vec<NodeId> = nodes.into_iter().map(|path| NodeId { czxid: token.0, path }).collect();
        let who =
            format!("path {path}: thread {} of client {} was granted token {token:?}", holder.thread, holder.client);
        if nodes
            .iter()
            .any(|node| self.removed_nodes.get(node).is_some_and(|&removed_nodes| removed_nodes < known_before))
        {
            self.add_violation(|| format!("{who}, but its node was deleted long before"));
        }
        let is_void = self.is_void(&nodes);
        if !is_void {
            self.check_nodes(&who, &nodes);
            self.check_token(&who, path, exclusion, token);
            self.check_passes(now, &who, &nodes, token);
            self.check_order(&who, &holder, exclusion, &nodes);
        }
        self.holders.extend(nodes.iter().map(|node| (node.clone(), (holder.client, holder.thread))));
        let most = self.most_leases(path, count_known_before);
        self.claims.insert(holder, Claim { path, exclusion, nodes, token, until: now });
        if !is_void {
            self.check_claims(now, &who, &holder, most);
            self.check_leases(&who, &holder, most);
        }
    }

    /// Checks that all nodes of a grant exist and that its token is their creation zxid.
    fn check_nodes(&mut self, who: &str, nodes: &[NodeId]) {
        for NodeId { czxid, path } in nodes {
            match self.queues.get(directory(path)).and_then(|queue| queue.get(path)) {
                None => self.add_violation(|| format!("{who}, but its node {path} does not exist")),
                Some(found) if found.czxid != *czxid => {
                    let made = found.czxid;
                    self.add_violation(|| format!("{who}, but the transaction {made} created {path}"));
                }
                Some(Node { is_nested_in_deleted: true, .. }) => {
                    self.add_violation(|| format!("{who}, but its node is out of order"));
                }
                Some(_) => {}
            }
        }
    }

    /// Checks that each local hand-over increments the fencing pass by one and stays below the limit, which bounds the
    /// wait of other participants.
    fn check_passes(&mut self, now: Time, who: &str, nodes: &[NodeId], (_, pass): TokenPair) {
        for node in nodes {
            let expected = self.passes.get(node).map_or(0, |(passes, _)| passes + 1);
            if pass != expected || pass > self.max_passes {
                let most = self.max_passes;
                self.add_violation(|| {
                    format!("{who}, but the expected fencing pass of {} is {expected}, at most {most}", node.path)
                });
            }
            self.passes.insert(node.clone(), (pass, now));
        }
    }

    /// Checks that tokens grow. Concurrent readers may acquire in any order.
    fn check_token(&mut self, who: &str, path: usize, exclusion: Exclusion, token: TokenPair) {
        if exclusion == Exclusion::Leases {
            return;
        }
        let last = self.last_tokens.get(&path).copied().unwrap_or((i64::MIN, 0));
        if token <= last {
            self.add_violation(|| format!("{who}, which is not larger than the token before it, {last:?}"));
        }
        if exclusion != Exclusion::Shared {
            self.last_tokens.insert(path, token);
        }
    }

    /// Checks that every node ahead that excludes the new holder was deleted.
    fn check_order(&mut self, who: &str, holder: &Holder, exclusion: Exclusion, nodes: &[NodeId]) {
        let [NodeId { path: own, .. }] = nodes else { return };
        if !matches!(exclusion, Exclusion::Exclusive | Exclusion::Shared) {
            return;
        }
        let Some(queue) = self.queues.get(directory(own)) else { return };
        let Some(me) = queue.get(own) else { return };
        let is_ahead = |path: &str, node: &Node| {
            (sequence_text(path), node.czxid) < (sequence_text(own), me.czxid) && !node.is_nested_in_deleted
        };
        let excludes = |path: &str| exclusion == Exclusion::Exclusive || !is_reader(path);
        // A nested read has the same place as its owner's write node.
        let is_own = |path: &str, node: &Node| {
            let id = NodeId { czxid: node.czxid, path: path.to_owned() };
            let claimed = || self.holders.get(&id) == Some(&(holder.client, holder.thread));
            exclusion == Exclusion::Shared
                && sequence_text(path) == sequence_text(own)
                && node.session == me.session
                && claimed()
        };
        let ahead = queue
            .iter()
            .find(|&(path, node)| path != own && is_ahead(path, node) && excludes(path) && !is_own(path, node));
        if let Some((ahead, _)) = ahead {
            let text = format!("{who}, but {ahead} is still ahead");
            self.add_violation(|| text);
        }
    }

    /// Checks that no claim of another holder conflicts with this one.
    fn check_claims(&mut self, now: Time, who: &str, holder: &Holder, most: usize) {
        let Some(own) = self.claims.get(holder) else { return };
        let counts = |claim: &Claim| claim.path == own.path && claim.until > now && !self.is_void(&claim.nodes);
        let others = self.claims.iter().filter(|&(other, claim)| other != holder && counts(claim));
        if own.exclusion == Exclusion::Leases {
            let out: usize = others.map(|(_, claim)| claim.nodes.len()).sum();
            let count = own.nodes.len();
            if out + count > most {
                self.add_violation(|| format!("{who} with {count} leases, but {out} of {most} leases are in use"));
            }
            return;
        }
        let is_mine = |other: &Holder| (other.client, other.thread) == (holder.client, holder.thread);
        let excluded = |(other, claim): &(&Holder, &Claim)| match (own.exclusion, claim.exclusion) {
            (Exclusion::Shared, Exclusion::Shared) => false,
            (Exclusion::Shared, _) => !is_mine(other),
            _ => true,
        };
        if let Some((other, claim)) = others.into_iter().find(excluded) {
            let left = claim.until - now;
            let text = format!(
                "two holders of one lock: {who} while {other:?} may rely on token {:?} for {left:?}",
                claim.token
            );
            self.add_violation(|| text);
        }
    }

    /// Checks that the number of leases is not exceeded, counting those created earlier.
    fn check_leases(&mut self, who: &str, holder: &Holder, most: usize) {
        let Some(own) = self.claims.get(holder) else { return };
        if !matches!(own.exclusion, Exclusion::SingleLease | Exclusion::Leases) {
            return;
        }
        let Some(queue) = own.nodes.first().and_then(|node| self.queues.get(directory(&node.path))) else { return };
        let out = queue.values().filter(|node| node.czxid <= own.token.0).count();
        if out > most {
            self.add_violation(|| format!("{who}, but now {out} of {most} leases are in use"));
        }
    }

    fn is_void(&self, nodes: &[NodeId]) -> bool {
        nodes.iter().any(|node| self.void_nodes.contains(node))
    }

    /// Extends a claim after the program has read that its hold is safe until `until`. The client must know all changes
    /// before `since`.
    pub(crate) fn on_hold_safe(&mut self, now: Time, holder: Holder, until: Time, since: Option<Time>) {
        let Some(claim) = self.claims.get_mut(&holder) else { return };
        claim.until = claim.until.max(until);
        let was_gone =
            |node: &NodeId| self.removed_nodes.get(node).is_some_and(|&gone| since.is_some_and(|since| gone < since));
        if claim.nodes.iter().any(was_gone) {
            let token = claim.token;
            self.add_violation(|| {
                format!("{holder:?} treats token {token:?} as safe, but its node was deleted long before")
            });
        }
        let Some(claim) = self.claims.get(&holder) else { return };
        if until > now
            && claim.nodes.iter().any(|node| self.removed_nodes.contains_key(node))
            && !self.is_void(&claim.nodes)
        {
            let token = claim.token;
            self.add_violation(|| format!("{holder:?} treats token {token:?} as safe, but its node does not exist"));
        }
    }

    /// Ends the claim of a hold when the program starts to release the hold.
    pub(crate) fn released(&mut self, holder: Holder) {
        self.claims.remove(&holder);
    }

    /// Ends the claims of a lock that the client has removed. The removal released all holds of the lock.
    pub(crate) fn on_lock_removed(&mut self, client: usize, lock: LockId) {
        self.claims.retain(|holder, _| (holder.client, holder.lock) != (client, lock));
    }

    /// Ends the claims of a client that has ended together with the threads that relied on its holds.
    pub(crate) fn on_client_ended(&mut self, client: usize) {
        self.claims.retain(|holder, _| holder.client != client);
    }

    /// Forgets the reported states of a client whose program receives no more reports.
    pub(crate) fn on_reports_stopped(&mut self, client: usize) {
        self.reported_states.retain(|&(owner, _, _), _| owner != client);
    }

    /// Excludes a node from the checks, because an operator is about to delete the node.
    pub(crate) fn on_node_voided(&mut self, path: &str) {
        self.void_nodes.extend(self.node_at(path));
    }

    /// Checks that no program relies on a node that was deleted.
    pub(crate) fn removed(&mut self, now: Time, path: &str) {
        let Some(node) = self.node_at(path) else { return };
        if let Some(queue) = self.queues.get_mut(directory(path)) {
            queue.remove(path);
            if queue.is_empty() {
                self.emptied_at.insert(directory(path).to_owned(), now);
            }
        }
        self.removed_nodes.insert(node.clone(), now);
        let relies = |claim: &Claim| claim.until > now && claim.nodes.contains(&node);
        // A client that has lost one of several leases releases the others.
        let found = self.claims.iter().find(|(_, claim)| relies(claim) && !self.is_void(&claim.nodes));
        if let Some((holder, claim)) = found {
            let text = format!("{path} was deleted while {holder:?} may rely on it for {:?}", claim.until - now);
            self.add_violation(|| text);
        }
    }

    /// Checks a reported state change of a hold against the reports before it.
    pub(crate) fn on_hold_reported(
        &mut self,
        client: usize,
        lock: u64,
        token: TokenPair,
        previous: LockState,
        state: LockState,
    ) {
        let key = (client, lock, token);
        let before = self.reported_states.get(&key).copied().unwrap_or(LockState::Free);
        if before != previous {
            self.add_violation(|| {
                format!("client {client}: token {token:?} was {before:?}, but an event reports the previous state {previous:?}")
            });
        }
        if before == state {
            self.add_violation(|| format!("client {client}: two events report token {token:?} as {state:?}"));
        }
        if before == LockState::Lost && state != LockState::Free {
            self.add_violation(|| format!("client {client}: token {token:?} was LOST, but an event reports {state:?}"));
        }
        self.losses += usize::from(state == LockState::Lost);
        self.reported_states.insert(key, state);
    }

    /// Checks a reported state change of a session against the reports before it.
    pub(crate) fn on_client_state_reported(&mut self, client: usize, previous: ClientState, state: ClientState) {
        let before = self.reported_client_states.insert(client, state).unwrap_or(ClientState::Connecting);
        if before != previous || before == state {
            self.add_violation(|| {
                format!("client {client} was {before:?}, but an event reports a change from {previous:?} to {state:?}")
            });
        }
    }

    /// Checks that a state of a session, which a program read while no action was due, is the last reported one.
    pub(crate) fn on_client_state_seen(&mut self, client: usize, state: ClientState) {
        let reported = self.reported_client_states.get(&client).copied().unwrap_or(ClientState::Connecting);
        if reported != state {
            self.add_violation(|| format!("client {client} is {state:?}, but the last event reported {reported:?}"));
        }
    }

    /// Checks that a state of a hold, which a program read while no action was due, is the last reported one.
    pub(crate) fn on_hold_seen(&mut self, client: usize, lock: u64, token: TokenPair, state: LockState) {
        let reported = self.reported_states.get(&(client, lock, token)).copied().unwrap_or(LockState::Free);
        if reported != state {
            self.add_violation(|| {
                format!("client {client}: token {token:?} is {state:?}, but the last event reported {reported:?}")
            });
        }
    }

    /// Checks at the end of the run that no hold is left.
    pub(crate) fn finish(&mut self) {
        let left = self
            .reported_states
            .iter()
            .find(|&(_, &state)| state != LockState::Free)
            .map(|(key, state)| (*key, *state));
        if let Some((key, state)) = left {
            self.add_violation(|| format!("the last event of {key:?} reported {state:?}; expected Free"));
        }
    }
}

/// The directory of the counts of semaphores.
pub(crate) const COUNTS_DIRECTORY: &str = "/counts/";
/// The node data that requests a revocation.
pub(crate) const REVOKE: &[u8] = b"__REVOKE__";

fn directory(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// The sequence number in a path. It determines the place in the queue, except for ties.
fn sequence_text(path: &str) -> &str {
    path.get(path.len().saturating_sub(10)..).unwrap_or_default()
}

fn is_reader(path: &str) -> bool {
    path.contains("__READ__") || path.contains("__rlock__")
}
