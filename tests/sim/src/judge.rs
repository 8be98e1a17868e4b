//! The judge: looks at what the servers know and at what the clients were told, and when.
//!
//! A claim is what a program may rely on: from the moment it looked at its hold until the end of the time that was said to
//! be left, or until it releases. Whatever becomes of the client meanwhile, the claim stands.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use zklock::engine::{LockId, Owner};
use zklock::{ClientState, LockState, Time};

/// Who holds: a client, one of its threads, and what it holds for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    pub(crate) client: usize,
    pub(crate) actor: usize,
    pub(crate) lock: LockId,
    pub(crate) owner: Owner,
}

/// What a store compares: the fencing token of a hold, and how often it had been passed on in its process.
pub(crate) type Pair = (i64, u32);

/// A node. A path is not enough: once its directory was removed and made anew, a node may come to the path of an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct NodeId {
    czxid: i64,
    path: String,
}

/// Whom a hold excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stance {
    /// Everybody: a mutex, a writer.
    Exclusive,
    /// Writers.
    Shared,
    /// Everybody, as the only lease there is.
    Single,
    /// Those for whom no lease is left.
    Leases,
}

/// What somebody was told that he has.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) path: usize,
    pub(crate) stance: Stance,
    pub(crate) nodes: Vec<String>,
    pub(crate) token: Pair,
    /// What happened before he should know.
    pub(crate) since: Time,
    /// News of how many leases there are may be this old.
    pub(crate) count_since: Time,
}

/// Somebody asks whether a token is a holder's; and what there was to know of it when he began.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) token: i64,
    node: NodeId,
    was_there: bool,
    /// Who kept it out.
    ahead: Vec<NodeId>,
}

#[derive(Debug, Default)]
pub(crate) struct Judge {
    claims: BTreeMap<Holder, Claim>,
    /// The newest token that was given out for each path to somebody who excludes all others.
    last: BTreeMap<usize, Pair>,
    /// Nodes that are no more, and since when.
    gone: BTreeMap<NodeId, Time>,
    /// Those that are, by directory and path.
    queues: BTreeMap<String, BTreeMap<String, Node>>,
    /// All that ever were, in their order, but for strays.
    born: Vec<NodeId>,
    /// Nodes that somebody took away who may: no claim to them is worth anything any more.
    void: BTreeSet<NodeId>,
    /// How many leases there were of each path, from when on.
    limits: BTreeMap<usize, Vec<(Time, i32)>>,
    /// Who was asked to give up a node: when he was last asked, how often, how often he heard of it, and when.
    revoked: BTreeMap<NodeId, Revoked>,
    /// The client and the thread that last held by a node.
    holders: BTreeMap<NodeId, (usize, usize)>,
    /// How often a node was passed on in its process, and when last.
    passes: BTreeMap<NodeId, (u32, Time)>,
    /// The directories to which other recipes came, and those whose permissions were taken away for a while.
    foreign: BTreeSet<String>,
    forbidden: BTreeSet<String>,
    /// How often it may be.
    pub(crate) max_passes: u32,
    /// Limit on the bytes that the paths of all nodes of one session take.
    pub(crate) max_path_bytes: Option<usize>,
    /// When a directory last lost its last node.
    emptied: BTreeMap<String, Time>,
    /// What all paths are below.
    pub(crate) root: &'static str,
    /// What was told of each session, by client.
    clients: BTreeMap<usize, ClientState>,
    /// What was told of each hold, by client, lock and token.
    told: BTreeMap<(usize, u64, Pair), LockState>,
    pub(crate) grants: usize,
    pub(crate) losses: usize,
    pub(crate) verdict: Option<String>,
}

#[derive(Debug)]
struct Claim {
    path: usize,
    stance: Stance,
    nodes: Vec<NodeId>,
    token: Pair,
    until: Time,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    czxid: i64,
    session: i64,
    /// It chose the number of a node that was gone by then. It has no place in the queue and must never become a hold.
    is_stray: bool,
}

#[derive(Debug, Default)]
struct Revoked {
    asked: u32,
    told: u32,
    asked_at: Time,
    told_at: Time,
}

impl Judge {
    pub(crate) fn blame(&mut self, what: impl FnOnce() -> String) {
        self.verdict.get_or_insert_with(what);
    }

    /// So many leases of a path there are from now on.
    pub(crate) fn limit(&mut self, now: Time, path: usize, leases: i32) {
        self.limits.entry(path).or_default().push((now, leases));
    }

    /// The most leases that there were at any moment since then.
    fn most_leases(&self, path: usize, since: Time) -> usize {
        let limits = self.limits.get(&path).map_or(&[][..], Vec::as_slice);
        let first = limits.iter().rposition(|&(at, _)| at <= since).unwrap_or_default();
        let most = limits.iter().skip(first).map(|&(_, leases)| leases).max().unwrap_or_default();
        usize::try_from(most).unwrap_or_default()
    }

    /// A node is made. Where `is_named`, its creator chose its number, and not the server.
    pub(crate) fn created(&mut self, path: &str, czxid: i64, session: i64, is_named: bool) {
        let queue = self.queues.entry(directory(path).to_owned()).or_default();
        let shares_place = |(other, node): (&String, &Node)| number(other) == number(path) && node.session == session;
        let is_stray = is_named && !queue.iter().any(shares_place);
        queue.insert(path.to_owned(), Node { czxid, session, is_stray });
        if !is_stray {
            self.born.push(NodeId { czxid, path: path.to_owned() });
        }
        if let Some(most) = self.max_path_bytes {
            // As in the transaction that would end the session.
            let of_session = self.queues.values().flatten().filter(|(_, node)| node.session == session);
            let bytes: usize = of_session.map(|(path, _)| 4 + path.len()).sum();
            if bytes > most {
                self.blame(|| format!("session {session:#x} has nodes whose paths take {bytes} bytes, with {path}"));
            }
        }
    }

    /// Whether there was a node in this directory at some moment since then.
    pub(crate) fn was_used(&self, directory: &str, since: Time) -> bool {
        let is_used = self.queues.get(directory).is_some_and(|queue| !queue.is_empty());
        is_used || self.emptied.get(directory).is_some_and(|&at| at >= since)
    }

    /// Another program creates a node of another recipe.
    pub(crate) fn stranger(&mut self, path: &str, czxid: i64) {
        self.foreign.insert(directory(path).to_owned());
        let queue = self.queues.entry(directory(path).to_owned()).or_default();
        queue.insert(path.to_owned(), Node { czxid, session: 0, is_stray: false });
    }

    pub(crate) fn had_foreign(&self, path: &str) -> bool {
        self.foreign.contains(path)
    }

    /// An operator takes permissions from a directory.
    pub(crate) fn forbid(&mut self, directory: &str) {
        self.forbidden.insert(directory.to_owned());
    }

    /// Whether that happened to the directories of a lock, or to one that they are below.
    pub(crate) fn was_forbidden(&self, path: &str) -> bool {
        let is_own = |directory: &str| matches!(directory.strip_prefix(path), Some("" | "/leases" | "/locks"));
        let is_above = |directory: &str| path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'));
        self.forbidden.iter().any(|directory| is_own(directory) || is_above(directory))
    }

    /// The node that is at a path now.
    fn node_at(&self, path: &str) -> Option<NodeId> {
        let found = self.queues.get(directory(path))?.get(path)?;
        Some(NodeId { czxid: found.czxid, path: path.to_owned() })
    }

    fn is_there(&self, node: &NodeId) -> bool {
        let found = self.queues.get(directory(&node.path)).and_then(|queue| queue.get(&node.path));
        found.is_some_and(|found| found.czxid == node.czxid)
    }

    /// One of the newest tokens of a path, in use or not, for somebody to ask about.
    pub(crate) fn question(&self, rng: &mut Rng, path: &str) -> Option<Question> {
        let is_of = |node: &&NodeId| matches!(directory(&node.path).strip_prefix(path), Some("" | "/leases"));
        if self.had_foreign(path) {
            return None;
        }
        let newest: Vec<&NodeId> = self.born.iter().rev().filter(is_of).take(6).collect();
        let node = (!newest.is_empty()).then(|| newest[rng.usize(..newest.len())])?;
        let queue = self.queues.get(directory(&node.path));
        let is_lease = directory(&node.path).ends_with("/leases");
        let keeps_out = |&(other, found): &(&String, &Node)| match (is_lease, is_reader(&node.path)) {
            (true, _) => found.czxid < node.czxid,
            // A nested read stands in its writer's place.
            (false, true) => !is_reader(other) && number(other) < number(&node.path),
            (false, false) => (number(other), found.czxid) < (number(&node.path), node.czxid),
        };
        let others = queue.into_iter().flatten();
        // Several leases may have one token.
        let was_there = others.clone().any(|(_, found)| found.czxid == node.czxid);
        let ahead = others.filter(keeps_out).map(|(other, found)| NodeId { czxid: found.czxid, path: other.clone() });
        Some(Question { token: node.czxid, node: node.clone(), was_there, ahead: ahead.collect() })
    }

    /// He was answered. What was so when he began and still is, was so all the time: then there is one right answer.
    pub(crate) fn checked(&mut self, client: usize, question: &Question, holds: bool) {
        let Question { token, node, was_there, ahead } = question;
        // How many leases there may be, nobody is told who asks; so of those that wait, not all is known.
        let is_lease = directory(&node.path).ends_with("/leases");
        let is_kept_out = !is_lease && ahead.iter().any(|other| self.is_there(other));
        if self.had_foreign(directory(&node.path)) {
            return;
        }
        let is_wrong = match holds {
            true => !was_there || is_kept_out,
            false => *was_there && ahead.is_empty() && self.is_there(node),
        };
        if is_wrong {
            self.blame(|| format!("client {client} was told that {token} holds: {holds}; {question:?}"));
        }
    }

    /// A node is written to.
    pub(crate) fn written(&mut self, now: Time, path: &str, data: &[u8]) {
        if data == REVOKE
            && let Some(node) = self.node_at(path)
        {
            let revoked = self.revoked.entry(node).or_default();
            (revoked.asked, revoked.asked_at) = (revoked.asked + 1, now);
        }
        let count = path.strip_prefix(self.root).and_then(|path| path.strip_prefix(COUNTS));
        if let Some(path) = count.and_then(|path| path.parse().ok())
            && let Ok(count) = data.try_into().map(i32::from_be_bytes)
        {
            self.limit(now, path, count);
        }
    }

    /// A client reports a request to give up a node. The report names a path, which two nodes may have had: the one without a report counts.
    pub(crate) fn told_revoked(&mut self, now: Time, client: usize, path: &str) {
        let is_missing = |(node, revoked): &(&NodeId, &mut Revoked)| node.path == path && revoked.told < revoked.asked;
        match self.revoked.iter_mut().find(is_missing) {
            Some((_, revoked)) => (revoked.told, revoked.told_at) = (revoked.told + 1, now),
            None => self.blame(|| format!("client {client} was told once too often to give up {path}")),
        }
    }

    /// Somebody still has a node, and should know who asked for it before `since`.
    pub(crate) fn should_know(&mut self, client: usize, path: String, token: i64, since: Time) {
        let node = NodeId { czxid: token, path };
        // Who was passed it a moment ago may not.
        let is_new = self.passes.get(&node).is_some_and(|&(pass, at)| pass > 0 && at >= since);
        let is_unheard = |revoked: &Revoked| revoked.asked_at < since && revoked.told_at < revoked.asked_at;
        if !is_new && self.revoked.get(&node).is_some_and(is_unheard) {
            self.blame(|| format!("client {client} was never told to give up {node:?}"));
        }
    }

    /// Somebody was told that he has the lock.
    pub(crate) fn granted(&mut self, now: Time, holder: Holder, grant: Grant) {
        self.grants += 1;
        let Grant { path, stance, nodes, token, since, count_since } = grant;
        let nodes: Vec<NodeId> = nodes.into_iter().map(|path| NodeId { czxid: token.0, path }).collect();
        let who =
            format!("path {path}: thread {} of client {} was granted token {token:?}", holder.actor, holder.client);
        if nodes.iter().any(|node| self.gone.get(node).is_some_and(|&gone| gone < since)) {
            self.blame(|| format!("{who}, whose node had long been gone"));
        }
        let is_void = self.is_void(&nodes);
        if !is_void {
            self.check_nodes(&who, &nodes);
            self.check_token(&who, path, stance, token);
            self.check_passes(now, &who, &nodes, token);
            self.check_order(&who, &holder, stance, &nodes);
        }
        self.holders.extend(nodes.iter().map(|node| (node.clone(), (holder.client, holder.actor))));
        let most = self.most_leases(path, count_since);
        self.claims.insert(holder, Claim { path, stance, nodes, token, until: now });
        if !is_void {
            self.check_claims(now, &who, &holder, most);
            self.check_leases(&who, &holder, most);
        }
    }

    /// All its nodes are there, and the token is what they were made by.
    fn check_nodes(&mut self, who: &str, nodes: &[NodeId]) {
        for NodeId { czxid, path } in nodes {
            match self.queues.get(directory(path)).and_then(|queue| queue.get(path)) {
                None => self.blame(|| format!("{who}, whose node {path} is gone")),
                Some(found) if found.czxid != *czxid => {
                    let made = found.czxid;
                    self.blame(|| format!("{who}, though {path} was made by {made}"));
                }
                Some(Node { is_stray: true, .. }) => self.blame(|| format!("{who}, whose place had been taken")),
                Some(_) => {}
            }
        }
    }

    /// A node is passed on one time after the other, and not more often than it may be: who waits behind it counts on that.
    fn check_passes(&mut self, now: Time, who: &str, nodes: &[NodeId], (_, pass): Pair) {
        for node in nodes {
            let expected = self.passes.get(node).map_or(0, |(passes, _)| passes + 1);
            if pass != expected || pass > self.max_passes {
                let most = self.max_passes;
                self.blame(|| format!("{who}, which is pass {expected} of {}, of {most}", node.path));
            }
            self.passes.insert(node.clone(), (pass, now));
        }
    }

    /// Tokens grow. Readers that are in together may have come in any order.
    fn check_token(&mut self, who: &str, path: usize, stance: Stance, token: Pair) {
        if stance == Stance::Leases {
            return;
        }
        let last = self.last.get(&path).copied().unwrap_or((i64::MIN, 0));
        if token <= last {
            self.blame(|| format!("{who} after {last:?}"));
        }
        if stance != Stance::Shared {
            self.last.insert(path, token);
        }
    }

    /// Who has left may still seem to be there, but nobody who is there may be overtaken.
    fn check_order(&mut self, who: &str, holder: &Holder, stance: Stance, nodes: &[NodeId]) {
        let [NodeId { path: own, .. }] = nodes else { return };
        if !matches!(stance, Stance::Exclusive | Stance::Shared) {
            return;
        }
        let Some(queue) = self.queues.get(directory(own)) else { return };
        let Some(me) = queue.get(own) else { return };
        let is_ahead = |path: &str, node: &Node| (number(path), node.czxid) < (number(own), me.czxid) && !node.is_stray;
        let excludes = |path: &str| stance == Stance::Exclusive || !is_reader(path);
        // A nested read stands in its writer's place.
        let is_own = |path: &str, node: &Node| {
            let id = NodeId { czxid: node.czxid, path: path.to_owned() };
            let claimed = || self.holders.get(&id) == Some(&(holder.client, holder.actor));
            stance == Stance::Shared && number(path) == number(own) && node.session == me.session && claimed()
        };
        let ahead = queue
            .iter()
            .find(|&(path, node)| path != own && is_ahead(path, node) && excludes(path) && !is_own(path, node));
        if let Some((ahead, _)) = ahead {
            let text = format!("{who} before {ahead}, which is still there");
            self.blame(|| text);
        }
    }

    /// Nobody else may rely on what can't be shared with him.
    fn check_claims(&mut self, now: Time, who: &str, holder: &Holder, most: usize) {
        let Some(own) = self.claims.get(holder) else { return };
        let counts = |claim: &Claim| claim.path == own.path && claim.until > now && !self.is_void(&claim.nodes);
        let others = self.claims.iter().filter(|&(other, claim)| other != holder && counts(claim));
        if own.stance == Stance::Leases {
            let out: usize = others.map(|(_, claim)| claim.nodes.len()).sum();
            let count = own.nodes.len();
            if out + count > most {
                self.blame(|| format!("{who} with {count} leases, where {out} of {most} are out"));
            }
            return;
        }
        let is_mine = |other: &Holder| (other.client, other.actor) == (holder.client, holder.actor);
        let excluded = |(other, claim): &(&Holder, &Claim)| match (own.stance, claim.stance) {
            (Stance::Shared, Stance::Shared) => false,
            (Stance::Shared, _) => !is_mine(other),
            _ => true,
        };
        if let Some((other, claim)) = others.into_iter().find(excluded) {
            let left = claim.until - now;
            let text =
                format!("two hold a lock: {who} while {other:?} may rely on token {:?} for {left:?}", claim.token);
            self.blame(|| text);
        }
    }

    /// With those who came before him there are no more leases out than there may be.
    fn check_leases(&mut self, who: &str, holder: &Holder, most: usize) {
        let Some(own) = self.claims.get(holder) else { return };
        if !matches!(own.stance, Stance::Single | Stance::Leases) {
            return;
        }
        let Some(queue) = own.nodes.first().and_then(|node| self.queues.get(directory(&node.path))) else { return };
        let out = queue.values().filter(|node| node.czxid <= own.token.0).count();
        if out > most {
            self.blame(|| format!("{who}, with which {out} of {most} leases are out"));
        }
    }

    fn is_void(&self, nodes: &[NodeId]) -> bool {
        nodes.iter().any(|node| self.void.contains(node))
    }

    /// Somebody looked at his hold, and it is safe until then. He should know what happened before `since`.
    pub(crate) fn safe(&mut self, now: Time, holder: Holder, until: Time, since: Option<Time>) {
        let Some(claim) = self.claims.get_mut(&holder) else { return };
        claim.until = claim.until.max(until);
        let was_gone = |node: &NodeId| self.gone.get(node).is_some_and(|&gone| since.is_some_and(|since| gone < since));
        if claim.nodes.iter().any(was_gone) {
            let token = claim.token;
            self.blame(|| format!("{holder:?} takes token {token:?} for safe, whose node had long been gone"));
        }
        let Some(claim) = self.claims.get(&holder) else { return };
        if until > now && claim.nodes.iter().any(|node| self.gone.contains_key(node)) && !self.is_void(&claim.nodes) {
            let token = claim.token;
            self.blame(|| format!("{holder:?} takes token {token:?} for safe, whose node is gone"));
        }
    }

    /// Somebody has begun to release.
    pub(crate) fn released(&mut self, holder: Holder) {
        self.claims.remove(&holder);
    }

    /// A lock is taken out of service, and all that is held by it released.
    pub(crate) fn abandoned(&mut self, client: usize, lock: LockId) {
        self.claims.retain(|holder, _| (holder.client, holder.lock) != (client, lock));
    }

    /// A client is no more: whoever worked with its holds is gone too.
    pub(crate) fn died(&mut self, client: usize) {
        self.claims.retain(|holder, _| holder.client != client);
    }

    /// Nobody will tell this client's program anything any more.
    pub(crate) fn forgotten(&mut self, client: usize) {
        self.told.retain(|&(owner, _, _), _| owner != client);
    }

    /// A node is about to be taken away by somebody who may.
    pub(crate) fn voided(&mut self, path: &str) {
        self.void.extend(self.node_at(path));
    }

    /// A node is taken away.
    pub(crate) fn removed(&mut self, now: Time, path: &str) {
        let Some(node) = self.node_at(path) else { return };
        if let Some(queue) = self.queues.get_mut(directory(path)) {
            queue.remove(path);
            if queue.is_empty() {
                self.emptied.insert(directory(path).to_owned(), now);
            }
        }
        self.gone.insert(node.clone(), now);
        let relies = |claim: &Claim| claim.until > now && claim.nodes.contains(&node);
        // Who has lost one of several leases gives back the others.
        let found = self.claims.iter().find(|(_, claim)| relies(claim) && !self.is_void(&claim.nodes));
        if let Some((holder, claim)) = found {
            let text = format!("{path} was removed while {holder:?} may rely on it for {:?}", claim.until - now);
            self.blame(|| text);
        }
    }

    /// A client's program was told how a hold stands.
    pub(crate) fn told(&mut self, client: usize, lock: u64, token: Pair, previous: LockState, state: LockState) {
        let key = (client, lock, token);
        let before = self.told.get(&key).copied().unwrap_or(LockState::Free);
        if before != previous {
            self.blame(|| {
                format!("client {client}: token {token:?} was {before:?} and is now told to have been {previous:?}")
            });
        }
        if before == state {
            self.blame(|| format!("client {client}: token {token:?} was told twice to be {state:?}"));
        }
        if before == LockState::Lost && state != LockState::Free {
            self.blame(|| format!("client {client}: token {token:?} was lost and came back as {state:?}"));
        }
        self.losses += usize::from(state == LockState::Lost);
        self.told.insert(key, state);
    }

    /// A client's program was told how its session stands.
    pub(crate) fn told_client(&mut self, client: usize, previous: ClientState, state: ClientState) {
        let before = self.clients.insert(client, state).unwrap_or(ClientState::Connecting);
        if before != previous || before == state {
            self.blame(|| {
                format!("client {client} was {before:?} and is told to have been {previous:?} and to be {state:?}")
            });
        }
    }

    /// A client's program looked at its session, with nothing due.
    pub(crate) fn seen_client(&mut self, client: usize, state: ClientState) {
        let told = self.clients.get(&client).copied().unwrap_or(ClientState::Connecting);
        if told != state {
            self.blame(|| format!("client {client} is {state:?}, and was told to be {told:?}"));
        }
    }

    /// A client's program looked, with nothing due: what it sees is what it was told.
    pub(crate) fn seen(&mut self, client: usize, lock: u64, token: Pair, state: LockState) {
        let told = self.told.get(&(client, lock, token)).copied().unwrap_or(LockState::Free);
        if told != state {
            self.blame(|| format!("client {client}: token {token:?} is {state:?}, and was told to be {told:?}"));
        }
    }

    /// Everything is over: nobody has anything.
    pub(crate) fn ended(&mut self) {
        let left = self.told.iter().find(|&(_, &state)| state != LockState::Free).map(|(key, state)| (*key, *state));
        if let Some((key, state)) = left {
            self.blame(|| format!("{key:?} was told to be {state:?} at last"));
        }
    }
}

/// Where the counts of semaphores are.
pub(crate) const COUNTS: &str = "/counts/";
/// What asks for a node to be given up.
pub(crate) const REVOKE: &[u8] = b"__REVOKE__";

fn directory(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// Its place in the queue, but for those that were given the same.
fn number(path: &str) -> &str {
    path.get(path.len().saturating_sub(10)..).unwrap_or_default()
}

fn is_reader(path: &str) -> bool {
    path.contains("__READ__") || path.contains("__rlock__")
}
