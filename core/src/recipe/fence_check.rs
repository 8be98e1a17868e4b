//! Checks whether a fencing token belongs to a current holder.
//!
//! First, a transaction makes a lagging server catch up. The check then lists the directories that the recipes use for
//! the path, and reads each node that may belong to a holder.
//!
//! The order of the requests makes the result reliable. The first node in a list stays first until it is deleted. If
//! the check can read this node later, the node is therefore still first. If a node existed before the check began and
//! still exists, the lists contain this node.

use zklock_proto::{Code, Request, Response, Stat};

use super::contender::Input;
use super::name::{ContenderName, Mode};
use super::rank::{holders, parse_contender, possible_holders};
use super::{Context, RequestKind};
use crate::acl::Permission;
use crate::error::{Error, Result};
use crate::mutant::Mutant;
use crate::session::Failure;

/// The maximum number of rounds. If the nodes still change in the last round, the check returns that no holder has the
/// token.
const MAX_ROUNDS: u32 = 3;

/// The directories of the path that the check lists, relative to the path.
const DIRECTORIES: [&str; 3] = ["", "/leases", "/locks"];

/// The state machine of a fence check.
#[derive(Debug)]
pub(crate) struct FenceCheck {
    path: String,
    token: i64,
    with_kazoo: bool,
    rounds_left: u32,
    names: NodeNames,
    candidates: Vec<Candidate>,
    /// The number of requests without a reply.
    pending_replies: usize,
}

/// The names of the nodes in the directories of the path.
#[derive(Debug, Default)]
struct NodeNames {
    queue: Vec<String>,
    /// The leases of a semaphore.
    leases: Vec<String>,
    inner_mutex: Vec<String>,
}

/// A node that may belong to a holder.
#[derive(Debug)]
struct Candidate {
    location: Location,
    name: String,
    /// The value is `None` if the node no longer exists.
    creation: Option<Creation>,
}

#[derive(Debug, Clone, Copy)]
struct Creation {
    czxid: i64,
    session: i64,
}

/// The directory that contains a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    /// The node is in the inner mutex of a semaphore.
    InnerMutex,
    /// The node is in the path itself, and belongs to a contender of this mode.
    Queue(Mode),
    /// The node is in the directory of leases.
    Leases,
}

/// The status of a node that has the token. If several nodes have the token, the check uses the greatest status.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TokenStatus {
    NotHeld,
    /// The status is not certain, because a node is changing at the moment.
    Changing,
    Held,
}

impl FenceCheck {
    /// Creates a check of this token for the given full path.
    pub(crate) const fn new(path: String, token: i64, with_kazoo: bool) -> Self {
        let names = NodeNames { queue: Vec::new(), leases: Vec::new(), inner_mutex: Vec::new() };
        Self { path, token, with_kazoo, rounds_left: MAX_ROUNDS, names, candidates: Vec::new(), pending_replies: 0 }
    }

    /// Handles one input. Returns the result as soon as the check knows it.
    pub(crate) fn handle(&mut self, cx: &mut Context<'_>, input: Input<'_>) -> Option<Result<bool>> {
        match input {
            Input::SendRequests => {
                self.begin(cx);
                None
            }
            Input::Reply { kind: RequestKind::List(at), result, .. } => self.on_list(cx, at, result),
            Input::Reply { kind: RequestKind::ReadParticipant(index), result, .. } => {
                self.on_node_read(cx, index, result)
            }
            _ => None,
        }
    }

    fn begin(&mut self, cx: &mut Context<'_>) {
        self.names = NodeNames::default();
        self.candidates.clear();
        if !Mutant::AskOneServer.is_active() {
            cx.session.request_proof(cx.now);
        }
        self.pending_replies = DIRECTORIES.len();
        for at in 0..DIRECTORIES.len() {
            cx.send(RequestKind::List(at), &Request::GetChildren2 { path: self.directory(at), watch: false });
        }
    }

    fn directory(&self, at: usize) -> String {
        format!("{}{}", self.path, DIRECTORIES.get(at).copied().unwrap_or_default())
    }

    fn on_list(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        result: std::result::Result<Response, Failure>,
    ) -> Option<Result<bool>> {
        let names = match result {
            Ok(Response::Children2 { children, .. }) => children,
            Ok(_) | Err(Failure::Code(Code::NO_NODE)) => Vec::new(),
            // When the connection is lost, all requests in flight fail. The check then starts again on the next
            // connection.
            Err(Failure::ConnectionLost) => return None,
            Err(failure) => return Some(Err(self.to_error(failure, &self.directory(at)))),
        };
        match at {
            0 => self.names.queue = names,
            1 => self.names.leases = names,
            _ => self.names.inner_mutex = names,
        }
        self.pending_replies = self.pending_replies.saturating_sub(1);
        if self.pending_replies > 0 {
            return None;
        }
        self.candidates = self.names.candidates(self.with_kazoo);
        self.pending_replies = self.candidates.len();
        for (index, candidate) in self.candidates.iter().enumerate() {
            let path = candidate.path(&self.path);
            cx.send(RequestKind::ReadParticipant(index), &Request::Exists { path, watch: false });
        }
        self.finish(cx)
    }

    fn on_node_read(
        &mut self,
        cx: &mut Context<'_>,
        index: usize,
        result: std::result::Result<Response, Failure>,
    ) -> Option<Result<bool>> {
        match result {
            Ok(Response::Stat(Stat { czxid, ephemeral_owner, .. })) => {
                self.candidates.get_mut(index)?.creation = Some(Creation { czxid, session: ephemeral_owner });
            }
            Ok(_) | Err(Failure::Code(Code::NO_NODE)) => {}
            Err(Failure::ConnectionLost) => return None,
            Err(failure) => {
                let path = self.candidates.get(index).map(|candidate| candidate.path(&self.path)).unwrap_or_default();
                return Some(Err(self.to_error(failure, &path)));
            }
        }
        self.pending_replies = self.pending_replies.saturating_sub(1);
        self.finish(cx)
    }

    fn finish(&mut self, cx: &mut Context<'_>) -> Option<Result<bool>> {
        if self.pending_replies > 0 {
            return None;
        }
        match token_status(&self.candidates, self.token, self.with_kazoo) {
            TokenStatus::Changing if self.rounds_left > 1 => {
                self.rounds_left -= 1;
                self.begin(cx);
                None
            }
            status => Some(Ok(status == TokenStatus::Held)),
        }
    }

    fn to_error(&self, failure: Failure, path: &str) -> Error {
        let doing = format!("looking for the holder of {} with the token {}", self.path, self.token);
        failure.to_error(&doing).requiring(Permission::Read, path)
    }
}

impl Candidate {
    /// Returns the full path of the node. `lock_path` is the full path of the lock.
    fn path(&self, lock_path: &str) -> String {
        let below = match self.location {
            Location::InnerMutex => "/locks",
            Location::Queue(_) => "",
            Location::Leases => "/leases",
        };
        format!("{lock_path}{below}/{}", self.name)
    }
}

impl NodeNames {
    /// Returns the nodes that may belong to a holder. The check reads the nodes of the inner mutex before the leases.
    /// The reason is that an owner that leaves deletes its leases before its node in the inner mutex.
    fn candidates(&self, with_kazoo: bool) -> Vec<Candidate> {
        let found = |location, name: &String| Candidate { location, name: name.clone(), creation: None };
        // If only one lease exists, it is held. The check then does not need the inner mutex.
        let inner =
            if self.leases.len() > 1 { possible_holders(&self.inner_mutex, Mode::Mutex, false) } else { Vec::new() };
        let queues = self.queue_modes(with_kazoo).into_iter();
        let queues = queues.flat_map(|mode| {
            possible_holders(&self.queue, mode, with_kazoo)
                .into_iter()
                .map(move |name| found(Location::Queue(mode), name))
        });
        let inner = inner.into_iter().map(|name| found(Location::InnerMutex, name));
        inner.chain(queues).chain(self.leases.iter().map(|name| found(Location::Leases, name))).collect()
    }

    /// Returns the modes of the contenders in the path itself. These contenders belong to a mutex, to a read/write
    /// lock, or to both. If programs use the same path for both recipes by mistake, the check includes the contenders
    /// of both recipes.
    fn queue_modes(&self, with_kazoo: bool) -> Vec<Mode> {
        let is_there = |mode: &Mode| self.queue.iter().any(|name| parse_contender(name, *mode, false).is_some());
        let modes: Vec<Mode> = [Mode::Mutex, Mode::Write].into_iter().filter(is_there).collect();
        // If the path contains only kazoo's nodes, the check treats these nodes as readers and writers.
        if modes.is_empty() && with_kazoo { vec![Mode::Write] } else { modes }
    }
}

fn token_status(found: &[Candidate], token: i64, with_kazoo: bool) -> TokenStatus {
    let has_token = |node: &&Candidate| node.creation.is_some_and(|creation| creation.czxid == token);
    let statuses = found.iter().filter(has_token).map(|node| match node.location {
        Location::Queue(mode) => status_in_queue(found, node, mode, with_kazoo),
        Location::Leases => status_among_leases(found, token),
        // A node in the inner mutex is not a lease.
        Location::InnerMutex => TokenStatus::NotHeld,
    });
    statuses.max().unwrap_or(TokenStatus::NotHeld)
}

fn status_in_queue(found: &[Candidate], own: &Candidate, mode: Mode, with_kazoo: bool) -> TokenStatus {
    let of_mode = found.iter().filter(|node| node.location == Location::Queue(mode));
    let mut queue: Vec<(ContenderName<'_>, &Candidate)> =
        of_mode.filter_map(|node| Some((parse_contender(&node.name, mode, with_kazoo)?, node))).collect();
    let Some(own_key) = parse_contender(&own.name, mode, with_kazoo).map(|contender| contender.sequence) else {
        return TokenStatus::NotHeld;
    };
    // If two nodes have the same sequence number, the creation zxid decides their order. A node that was deleted after
    // the list has no creation zxid.
    if queue.iter().any(|(contender, node)| contender.sequence == own_key && node.creation.is_none()) {
        return TokenStatus::Changing;
    }
    queue.sort_by_key(|(contender, node)| (contender.sequence, node.creation.map(|creation| creation.czxid)));
    let holds = holders(queue.iter().map(|(contender, _)| *contender));
    let is_own = |((_, node), holds): (&(ContenderName<'_>, &Candidate), bool)| holds && std::ptr::eq(*node, own);
    if queue.iter().zip(holds).any(is_own) || Mutant::TakeWaiterForHolder.is_active() {
        TokenStatus::Held
    } else {
        TokenStatus::NotHeld
    }
}

/// Returns the status of a lease. To acquire a lease, an owner joins the inner mutex, creates the lease, waits until
/// enough leases are free, and leaves the inner mutex. While the owner is still in the inner mutex, the check cannot
/// decide whether the owner still waits or has just acquired the lease. Only the newest lease can be in this state. All
/// other leases are held.
fn status_among_leases(found: &[Candidate], token: i64) -> TokenStatus {
    let creations =
        |location| found.iter().filter(move |node| node.location == location).filter_map(|node| node.creation);
    let (mut oldest, mut newest, mut owner) = (token, token, 0);
    for Creation { czxid, session } in creations(Location::Leases) {
        (oldest, newest) = (oldest.min(czxid), newest.max(czxid));
        if czxid == token {
            owner = session;
        }
    }
    let inside = creations(Location::InnerMutex).min_by_key(|creation| creation.czxid);
    match inside {
        Some(Creation { czxid, session }) if oldest < token && token == newest && session == owner && czxid < token => {
            TokenStatus::Changing
        }
        _ => TokenStatus::Held,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds candidates from names and creation zxids. A zxid of 0 means that the node no longer exists. The third
    /// field of a lease is the session id.
    fn candidates_from(
        queue: &[(&str, i64)],
        leases: &[(&str, i64, i64)],
        inner: &[(&str, i64, i64)],
    ) -> Vec<Candidate> {
        let name = |name: &str| name.to_owned();
        let lists = NodeNames {
            queue: queue.iter().map(|node| name(node.0)).collect(),
            leases: leases.iter().map(|node| name(node.0)).collect(),
            inner_mutex: inner.iter().map(|node| name(node.0)).collect(),
        };
        let mut found = lists.candidates(true);
        for node in &mut found {
            let (czxid, session) = match node.location {
                Location::Queue(_) => (queue.iter().find(|known| known.0 == node.name).unwrap().1, 1),
                Location::Leases => {
                    leases.iter().find(|known| known.0 == node.name).map(|known| (known.1, known.2)).unwrap()
                }
                Location::InnerMutex => {
                    inner.iter().find(|known| known.0 == node.name).map(|known| (known.1, known.2)).unwrap()
                }
            };
            node.creation = (czxid != 0).then_some(Creation { czxid, session });
        }
        found
    }

    fn queue_status(queue: &[(&str, i64)], token: i64) -> TokenStatus {
        token_status(&candidates_from(queue, &[], &[]), token, true)
    }

    #[test]
    fn only_first_node_of_mutex_holds() {
        let queue = [("b-lock-0000000002", 12), ("a-lock-0000000001", 11), ("other", 10)];
        assert_eq!(queue_status(&queue, 11), TokenStatus::Held);
        for token in [1, 10, 12] {
            assert_eq!(queue_status(&queue, token), TokenStatus::NotHeld, "{token}");
        }
        assert_eq!(queue_status(&[], 11), TokenStatus::NotHeld);
        // The holder's node was deleted after the list. The next contender becomes a holder only when it is first in a
        // list.
        let queue = [("a-lock-0000000001", 0), ("b-lock-0000000002", 12)];
        assert_eq!(queue_status(&queue, 11), TokenStatus::NotHeld);
        assert_eq!(queue_status(&queue, 12), TokenStatus::NotHeld);
    }

    #[test]
    fn equal_sequence_numbers_older_node_holds() {
        let queue = [("b-lock-0000000001", 11), ("a-lock-0000000001", 12)];
        assert_eq!(queue_status(&queue, 11), TokenStatus::Held);
        assert_eq!(queue_status(&queue, 12), TokenStatus::NotHeld);
        let queue = [("b-lock-0000000001", 0), ("a-lock-0000000001", 12)];
        assert_eq!(queue_status(&queue, 12), TokenStatus::Changing);
    }

    #[test]
    fn readers_up_to_the_first_writer_hold() {
        let queue = [
            ("a-__READ__0000000001", 11),
            ("b-__READ__0000000002", 12),
            ("c-__WRIT__0000000003", 13),
            ("d-__READ__0000000004", 14),
        ];
        for (token, status) in
            [(11, TokenStatus::Held), (12, TokenStatus::Held), (13, TokenStatus::NotHeld), (14, TokenStatus::NotHeld)]
        {
            assert_eq!(queue_status(&queue, token), status, "{token}");
        }
        let queue = [("a-__WRIT__0000000001", 11), ("b-__READ__0000000001", 13), ("c-__READ__0000000002", 12)];
        for (token, status) in [(11, TokenStatus::Held), (13, TokenStatus::Held), (12, TokenStatus::NotHeld)] {
            assert_eq!(queue_status(&queue, token), status, "{token}");
        }
        // The reader was deleted, but another reader may be ahead of the writer. The writer therefore does not count as
        // a holder yet.
        assert_eq!(
            queue_status(&[("a-__READ__0000000001", 0), ("b-__WRIT__0000000002", 12)], 12),
            TokenStatus::NotHeld
        );
    }

    #[test]
    fn kazoo_nodes_count_and_other_recipes_do_not_change_holders() {
        let kazoo = "509e033e5443480e924d21ab1ded34a7__lock__0000000001";
        assert_eq!(queue_status(&[(kazoo, 11), ("a-lock-0000000002", 12)], 11), TokenStatus::Held);
        assert_eq!(queue_status(&[(kazoo, 11), ("a-lock-0000000002", 12)], 12), TokenStatus::NotHeld);
        assert_eq!(queue_status(&[(kazoo, 11)], 11), TokenStatus::Held);
        assert_eq!(queue_status(&[("a-lock-0000000001", 11), ("b-__WRIT__0000000002", 12)], 11), TokenStatus::Held);
    }

    #[test]
    fn lease_of_inner_mutex_holder_is_changing_others_are_held() {
        let leases = [("b", 12, 2), ("a", 11, 1), ("c", 14, 3)];
        let status_of =
            |inner: &[(&str, i64, i64)], token| token_status(&candidates_from(&[], &leases, inner), token, true);
        for token in [11, 12, 14] {
            assert_eq!(status_of(&[], token), TokenStatus::Held, "{token}");
        }
        assert_eq!(status_of(&[], 13), TokenStatus::NotHeld);
        // The owner of the third lease waits for leases or is about to leave the inner mutex. Other nodes in the inner
        // mutex do not matter.
        assert_eq!(status_of(&[("i-lock-0000000001", 13, 3), ("j-lock-0000000002", 10, 2)], 14), TokenStatus::Changing);
        assert_eq!(status_of(&[("i-lock-0000000001", 13, 3)], 12), TokenStatus::Held);
        assert_eq!(status_of(&[("i-lock-0000000001", 0, 0), ("j-lock-0000000002", 10, 3)], 14), TokenStatus::Held);
        // The owner has joined the inner mutex again to acquire more leases.
        assert_eq!(status_of(&[("i-lock-0000000001", 15, 3)], 14), TokenStatus::Held);
        assert_eq!(status_of(&[("i-lock-0000000001", 13, 3)], 13), TokenStatus::NotHeld, "no lease");
    }

    #[test]
    fn single_token_leases_are_held_while_owner_has_inner_mutex() {
        let leases = [("a", 12, 1), ("b", 12, 1)];
        assert_eq!(
            token_status(&candidates_from(&[], &leases, &[("i-lock-0000000001", 11, 1)]), 12, true),
            TokenStatus::Held
        );
    }
}
