//! The one algorithm: a contender, which is one attempt to get in, with nodes of its own that are made in one transaction: one node
//! for a mutex, several in one directory for the leases of a semaphore, one in each of several directories for a multi-lock.
//!
//! Its life is a straight line, whatever happens on the way: it joins, waits, is in, leaves, and is gone. It never joins a
//! second time: when one of its nodes is lost, it says so, and whoever wants to go on makes a new one, with a new UUID. That keeps
//! a late delete from hurting anybody, and a node of a session that ended from ever being taken for ours (CURATOR-604).

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::name::{self, Mode, SEQUENCE_LIMIT};
use super::rank::{Rank, rank};
use super::{Desk, Spot, Step};
use crate::error::{Error, Status};
use crate::mutant::Mutant;
use crate::path::from_the_top;
use crate::proto::{Acl, Code, CreateMode, EventKind, MultiResult, Request, Response};
use crate::session::Failure;
use crate::time::Time;

/// The first wait before a refused delete is tried again; it doubles up to the last.
const FIRST_RETRY: Duration = Duration::from_millis(250);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// See [`Contender::container_tries`].
const CONTAINER_TRIES: u32 = 3;

/// What asks the owner of a node to give it up, as its data (Curator's `Revoker`).
pub(super) const REVOKE: &[u8] = b"__REVOKE__";

/// What can happen to a contender.
#[derive(Debug)]
pub enum Input<'a> {
    /// The session has a connection: its first, or again. Never a new session: that is [`Input::SessionEnded`].
    Connected,
    /// The connection is gone.
    Disconnected,
    /// The session is over.
    SessionEnded {
        /// Its nodes may still be there, and until this moment surely are.
        replaced: Option<Time>,
    },
    /// A request of ours was answered.
    Reply(Step, Result<Response, Failure>),
    /// A watched node changed.
    Fired(EventKind, &'a str),
    /// Whoever wanted the lock does not want it any more: see to it that nothing of ours stays.
    Leave,
    /// Look whether the own nodes are still there, and watch them.
    Confirm,
    /// So many leases may be out from now on.
    Max(i32),
    /// The time asked for by [`Contender::take_retry`] has come.
    Retry,
}

/// What a contender has to say.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// It is in: with nodes of the session that is alive now, nobody ahead of any.
    In,
    /// Somebody is ahead, and it was told to look only once. It has left.
    Busy,
    /// There are not enough leases, so it waits.
    Crowded,
    /// Its nodes are there, as of now.
    Confirmed,
    /// A node of it is lost. It is gone, or on its way out if something of it may be left.
    Removed(Removal),
    /// It can't join. It is gone, or on its way out.
    Failed(Error),
    /// The server refuses to delete a node of it, and will be asked again.
    Refused(Error),
    /// Nothing of it is left on any server.
    Gone,
}

/// How a node was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Its session ended.
    SessionEnded,
    /// Somebody deleted it.
    Deleted,
}

/// What a contender wants in one directory.
#[derive(Debug, Clone)]
pub struct Wish {
    /// The directory: a full path.
    pub directory: Arc<str>,
    /// How its nodes stand there.
    pub mode: Mode,
    /// kazoo's locks queue along.
    pub with_kazoo: bool,
    /// What its nodes hold.
    pub data: Vec<u8>,
    /// How many nodes it wants; more than one only of leases.
    pub count: usize,
    /// Of leases: how many may be out.
    pub max: i32,
    /// Of a read lock whose owner is in already: the name of the node that keeps others out. It stands in that one's place
    /// (CURATOR-621).
    pub under: Option<String>,
}

/// One attempt to get in.
#[derive(Debug)]
pub struct Contender {
    stands: Vec<Stand>,
    /// `_c_<uuid>-`: what all its nodes are called.
    prefix: String,
    /// Leave at once where somebody is ahead.
    one_look: bool,
    /// Its nodes are to be watched from the start, for somebody may ask to have them back.
    is_revocable: bool,
    stage: Stage,
    /// The session that made its nodes.
    session: i64,
    /// How often parents may still be tried to be made as containers. A server that has none says so or, worse, hangs up.
    container_tries: u32,
    /// Why a parent could not be made, in case the nodes can't be made either.
    parent_refused: Option<Code>,
    /// Nothing is deleted before.
    spared_until: Option<Time>,
    /// Somebody else had deleted one of its nodes.
    was_robbed: bool,
    /// A node that was asked back, and nobody was told yet.
    revoked: Option<String>,
    retry: Retry,
}

/// What it has in one directory.
#[derive(Debug)]
struct Stand {
    wish: Wish,
    nodes: Vec<Node>,
    place: Place,
    /// Nodes with the same sequence number that were created later.
    later: Vec<String>,
}

#[derive(Debug)]
struct Node {
    path: String,
    name: String,
    /// `None`: found by its UUID and not read yet.
    czxid: Option<i64>,
    watch: Watch,
    /// It was seen since that was last asked for.
    is_confirmed: bool,
    is_gone: bool,
    /// A delete was sent whose answer was lost.
    maybe_deleted: bool,
    /// The version of its data by which it was last asked back.
    revoked_at: Option<i32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watch {
    Unset,
    Asked,
    Set,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing was sent yet.
    Outside,
    /// The create is under way, perhaps behind the parents, with the lists right behind it.
    Joining {
        leaving: bool,
    },
    /// The create was answered: there is no directory. The last list is still to say so as well.
    NoParent,
    /// The create's answer was lost: are there nodes with our UUID?
    Unsure {
        leaving: bool,
    },
    /// The nodes are known, and each has a place or is looking for it.
    Queued,
    /// Nobody is ahead of any of them.
    In,
    /// The nodes are being deleted.
    Leaving,
    Gone,
}

/// Where the nodes of one directory stand.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// That is being found out.
    Listing,
    /// Behind somebody.
    Waiting(Wait),
    /// Leases: so many are out, with ours, and that is too many.
    Crowded { count: usize },
    /// Nobody is ahead.
    First,
}

#[derive(Debug, PartialEq, Eq)]
struct Wait {
    /// The path of the nearest node ahead.
    ahead: String,
    /// How many are ahead.
    count: usize,
    watch: Watch,
    /// It has our sequence number, and may turn out to be behind us.
    is_tie: bool,
    /// It is a node of our own session, which may go because the session has ended.
    is_ours: bool,
    /// The connection was lost since the list: changes were missed, and what fires may fire in any order.
    gap: bool,
}

/// What the server refused to do for us on the way out is tried again, less and less often, and once at a time.
#[derive(Debug)]
struct Retry {
    wait: Duration,
    due: Due,
}

#[derive(Debug, PartialEq, Eq)]
enum Due {
    Never,
    /// The engine is still to be told.
    In(Duration),
    /// The engine will call.
    Called,
}

/// Whom a contender waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle<'a> {
    /// The full path of the nearest node ahead, and how many are ahead.
    Ahead(&'a str, usize),
    /// So many leases are out, our own among them, of so many.
    Crowd(usize, i32),
}

impl Contender {
    /// A contender for places in one or several directories. `one_look`: do not wait.
    pub fn new(wishes: Vec<Wish>, one_look: bool, entropy: u128) -> Self {
        let stand = |wish| Stand { wish, nodes: Vec::new(), place: Place::Listing, later: Vec::new() };
        Self::with_stands(wishes.into_iter().map(stand).collect(), name::protected_prefix(entropy), one_look)
    }

    fn with_stands(stands: Vec<Stand>, prefix: String, one_look: bool) -> Self {
        Self {
            stands,
            prefix,
            one_look,
            is_revocable: false,
            stage: Stage::Outside,
            session: 0,
            container_tries: CONTAINER_TRIES,
            parent_refused: None,
            spared_until: None,
            was_robbed: false,
            revoked: None,
            retry: Retry { wait: FIRST_RETRY, due: Due::Never },
        }
    }

    /// The full paths of its nodes, in the order of its wishes.
    pub fn node_paths(&self) -> impl Iterator<Item = &str> {
        self.nodes().map(|node| node.path.as_str())
    }

    /// The name of its only node, where it has one.
    pub fn node_name(&self) -> Option<&str> {
        self.nodes().next().map(|node| node.name.as_str())
    }

    /// Its fencing token: the zxid in which its nodes were created. It grows with every node of a path, also across parents that
    /// were removed and made again; sequence numbers start again.
    pub fn token(&self) -> Option<i64> {
        let stand = self.stands.first()?;
        if Mutant::TokenIsSequence.lives() {
            return stand.nodes.first().and_then(|node| name::sequence(&node.name, &self.asked(stand)));
        }
        stand.nodes.first().and_then(|node| node.czxid)
    }

    /// Whom it waits for.
    pub fn obstacle(&self) -> Option<Obstacle<'_>> {
        self.stands.iter().filter(|_| self.stage == Stage::Queued).find_map(|stand| match &stand.place {
            Place::Waiting(Wait { ahead, count, .. }) => Some(Obstacle::Ahead(ahead, *count)),
            Place::Crowded { count } => Some(Obstacle::Crowd(*count, stand.wish.max)),
            Place::Listing | Place::First => None,
        })
    }

    /// How many are ahead of it in the longest of its queues, once it is known in all of them.
    pub fn most_ahead(&self) -> Option<usize> {
        let ahead = self.stands.iter().map(|stand| match &stand.place {
            Place::Waiting(wait) => Some(wait.count),
            Place::First => Some(0),
            Place::Listing | Place::Crowded { .. } => None,
        });
        ahead.collect::<Option<Vec<_>>>().filter(|_| self.stage == Stage::Queued)?.into_iter().max()
    }

    /// Whether its nodes are watched, so that their removal would be noticed.
    pub fn is_watched(&self) -> bool {
        self.nodes().all(|node| node.watch != Watch::Unset)
    }

    /// Whether it has not begun to join.
    pub fn is_outside(&self) -> bool {
        self.stage == Stage::Outside
    }

    /// Whether nothing of it is left.
    pub fn is_gone(&self) -> bool {
        self.stage == Stage::Gone
    }

    /// Takes one input to its consequences.
    pub fn handle(&mut self, desk: &mut Desk<'_>, input: Input<'_>) -> Option<Output> {
        match input {
            Input::Connected => self.connected(desk),
            Input::Disconnected => self.disconnected(),
            Input::SessionEnded { replaced } => self.session_ended(desk, replaced),
            Input::Reply(step, result) => self.reply(desk, step, result),
            Input::Fired(kind, path) => self.fired(desk, kind, path),
            Input::Leave => self.leave(desk),
            Input::Confirm => self.confirm(desk),
            Input::Max(max) => self.max_changed(desk, max),
            Input::Retry => self.retry(desk),
        }
    }

    /// How long it wants to be left alone before [`Input::Retry`]; says so once.
    pub fn take_retry(&mut self) -> Option<Duration> {
        let Due::In(wait) = self.retry.due else { return None };
        self.retry.due = Due::Called;
        Some(wait)
    }

    /// The full path of a node that somebody asks to have back; says so once for each time that it is asked.
    pub fn take_revoked(&mut self) -> Option<String> {
        self.revoked.take()
    }

    /// From now on it wants to know whether its nodes are asked back, or not.
    pub fn set_revocable(&mut self, desk: &mut Desk<'_>, is_revocable: bool) {
        if is_revocable != std::mem::replace(&mut self.is_revocable, is_revocable) {
            self.watch_for_revocation(desk);
        }
    }

    /// Makes one contender of each place, all of which are in. They have nothing in common from here on. What each of them watches,
    /// it watches under the number that `number` gives it.
    pub fn split(self, desk: &mut Desk<'_>, mut number: impl FnMut() -> u64) -> Vec<(u64, Self)> {
        let (prefix, session, stage, is_revocable) = (self.prefix, self.session, self.stage, self.is_revocable);
        let part = |mut stand: Stand| {
            let own = number();
            for node in &mut stand.nodes {
                // What was asked for in the old number is answered to the old number.
                if node.watch == Watch::Asked {
                    node.watch = Watch::Unset;
                }
                if !Mutant::SplitWithoutWatches.lives() {
                    desk.session.hand_over_watch(&node.path, desk.machine, own);
                }
            }
            let part = Self::with_stands(vec![stand], prefix.clone(), false);
            (own, Self { stage, session, is_revocable, ..part })
        };
        self.stands.into_iter().map(part).collect()
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.stands.iter().flat_map(|stand| &stand.nodes)
    }

    fn nodes_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.stands.iter_mut().flat_map(|stand| &mut stand.nodes)
    }

    fn node_mut(&mut self, spot: Spot) -> Option<&mut Node> {
        self.stands.get_mut(spot.stand)?.nodes.get_mut(spot.node)
    }

    fn spots(&self) -> Vec<Spot> {
        let of_stand = |(stand, has): (usize, &Stand)| (0..has.nodes.len()).map(move |node| Spot { stand, node });
        self.stands.iter().enumerate().flat_map(of_stand).collect()
    }

    /// What this stand's nodes are called, but for the sequence number that the server puts behind.
    fn asked(&self, stand: &Stand) -> String {
        let base = stand.wish.mode.base();
        let number = stand.wish.under.as_deref().map_or("", |under| name::number(under, stand.wish.mode));
        format!("{}{base}{number}", self.prefix)
    }

    /// For messages: where it stands.
    fn directories(&self) -> String {
        self.stands.iter().map(|stand| &*stand.wish.directory).collect::<Vec<_>>().join(", ")
    }

    // The connection and the session.

    fn connected(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        match self.stage {
            Stage::Outside => self.join(desk),
            Stage::Unsure { .. } => self.look_for_nodes(desk),
            Stage::Queued => self.go_on(desk),
            Stage::Leaving => self.delete(desk),
            Stage::Joining { .. } | Stage::NoParent | Stage::In | Stage::Gone => {}
        }
        None
    }

    fn disconnected(&mut self) -> Option<Output> {
        for stand in &mut self.stands {
            if let Place::Waiting(wait) = &mut stand.place {
                wait.gap = !Mutant::GrantAcrossGap.lives();
            }
        }
        None
    }

    fn session_ended(&mut self, desk: &mut Desk<'_>, replaced: Option<Time>) -> Option<Output> {
        let was_leaving = self.is_leaving();
        if Mutant::AdoptDeadNode.lives() && self.stage == Stage::Queued {
            self.nodes_mut().for_each(|node| node.watch = Watch::Unset);
            return None;
        }
        let may_be_left = replaced.is_some() && !matches!(self.stage, Stage::Outside | Stage::NoParent | Stage::Gone);
        // While they are being looked for, not all may have been found.
        let are_known = self.nodes().next().is_some() && !matches!(self.stage, Stage::Unsure { .. });
        if !may_be_left {
            self.stage = Stage::Gone;
        } else if are_known {
            // What is left of it would stand in everybody's way until the old session expires. The new one may delete it, but not
            // before the moment until which the program was told that it is safe.
            if self.stage == Stage::In && !Mutant::SpareNothing.lives() {
                self.spared_until = replaced;
            }
            self.stage = Stage::Leaving;
            self.delete(desk);
        } else {
            self.stage = Stage::Unsure { leaving: true };
        }
        match was_leaving {
            true => (self.stage == Stage::Gone).then_some(Output::Gone),
            false => Some(Output::Removed(Removal::SessionEnded)),
        }
    }

    fn is_leaving(&self) -> bool {
        matches!(
            self.stage,
            Stage::Joining { leaving: true } | Stage::Unsure { leaving: true } | Stage::Leaving | Stage::Gone
        )
    }

    // Joining.

    /// Create and lists go out together: a server answers a session's requests in order, so a free lock costs one round trip.
    fn join(&mut self, desk: &mut Desk<'_>) {
        self.stage = Stage::Joining { leaving: false };
        desk.send(Step::Create, &self.creation());
        self.list_all(desk);
    }

    /// One transaction for all its nodes: so all queues see the contenders in one order, and no two of them wait for each other.
    fn creation(&self) -> Request {
        let mut creates: Vec<Request> = self.stands.iter().flat_map(|stand| self.creates(stand)).collect();
        match creates.pop() {
            Some(only) if creates.is_empty() => only,
            last => {
                creates.extend(last);
                Request::Multi(creates)
            }
        }
    }

    fn creates(&self, stand: &Stand) -> Vec<Request> {
        let wish = &stand.wish;
        let mode = match wish.under {
            Some(_) => CreateMode::Ephemeral,
            None => CreateMode::EphemeralSequential,
        };
        let path = format!("{}/{}", wish.directory, self.asked(stand));
        vec![create(path, wish.data.clone(), mode); wish.count]
    }

    /// All ancestors, the nodes, and the lists in one write. Those that exist say so, and only the nodes' answer counts.
    fn join_with_parents(&mut self, desk: &mut Desk<'_>) {
        self.parent_refused = None;
        let mode = if self.container_tries > 0 { CreateMode::Container } else { CreateMode::Persistent };
        let mut made = BTreeSet::new();
        for path in self.stands.iter().flat_map(|stand| from_the_top(&stand.wish.directory)) {
            if made.insert(path) {
                desk.send(Step::CreateParent, &create(path.to_owned(), Vec::new(), mode));
            }
        }
        self.join(desk);
    }

    fn list_all(&mut self, desk: &mut Desk<'_>) {
        for at in 0..self.stands.len() {
            self.list(desk, at);
        }
    }

    fn list(&mut self, desk: &mut Desk<'_>, at: usize) {
        let Some(stand) = self.stands.get_mut(at) else { return };
        if self.stage == Stage::Queued {
            stand.place = Place::Listing;
        }
        let is_watched = stand.wish.mode == Mode::Lease && matches!(self.stage, Stage::Queued | Stage::Joining { .. });
        match is_watched {
            true => desk.watch_children(Step::List(at), &stand.wish.directory),
            false => desk.send(Step::List(at), &list(&stand.wish.directory)),
        }
    }

    fn reply(&mut self, desk: &mut Desk<'_>, step: Step, result: Result<Response, Failure>) -> Option<Output> {
        match step {
            Step::CreateParent => self.parent_created(result),
            Step::Create => self.created(desk, result),
            Step::List(at) => self.listed(desk, at, result),
            Step::WatchOwn(spot) => self.own_seen(desk, spot, result),
            Step::WatchAhead(at) => self.ahead_seen(desk, at, result),
            Step::Delete(spot) => self.deleted(spot, result),
            Step::Read(_) | Step::Errand => None,
        }
    }

    fn parent_created(&mut self, result: Result<Response, Failure>) -> Option<Output> {
        match result {
            Err(Failure::Code(Code::UNIMPLEMENTED)) => self.container_tries = 0,
            Err(Failure::ConnectionLost) => self.container_tries = self.container_tries.saturating_sub(1),
            Err(Failure::Code(code)) if code != Code::NODE_EXISTS => {
                self.parent_refused.get_or_insert(code);
            }
            _ => {}
        }
        None
    }

    fn created(&mut self, desk: &mut Desk<'_>, result: Result<Response, Failure>) -> Option<Output> {
        let Stage::Joining { leaving } = self.stage else { return None };
        match result.and_then(|response| outcome(response, desk.zxid).map_err(Failure::Code)) {
            Ok(created) => self.adopt_created(desk, created, leaving),
            Err(Failure::Code(Code::NO_NODE)) if !leaving => {
                self.stage = Stage::NoParent;
                None
            }
            Err(Failure::ConnectionLost) if Mutant::ForgetLostCreate.lives() && !leaving => {
                self.stage = Stage::Outside;
                None
            }
            Err(Failure::ConnectionLost) => {
                self.stage = Stage::Unsure { leaving };
                None
            }
            Err(Failure::Code(code)) if is_surely_not_created(code) => match leaving {
                true => self.gone(),
                false => self.fail(desk, code, "creating a node in"),
            },
            // Some errors come after the node: it is looked for, and deleted.
            Err(Failure::Code(code)) => {
                self.seek_and_leave(desk);
                if leaving { None } else { self.failure(code, "creating a node in") }
            }
        }
    }

    fn adopt_created(&mut self, desk: &mut Desk<'_>, created: Vec<(String, i64)>, leaving: bool) -> Option<Output> {
        let mut created = created.into_iter();
        let mut fits = true;
        for at in 0..self.stands.len() {
            let Some(stand) = self.stands.get(at) else { continue };
            let asked = self.asked(stand);
            let (directory, count) = (Arc::clone(&stand.wish.directory), stand.wish.count);
            let own = |(path, czxid): (String, i64)| {
                let name = path.strip_prefix(&*directory)?.strip_prefix('/')?;
                let is_own = name.starts_with(&asked) && !name.contains('/');
                is_own.then(|| Node::new(&directory, name, Some(czxid)))
            };
            let nodes: Vec<Node> = created.by_ref().take(count).filter_map(own).collect();
            fits &= nodes.len() == count;
            if let Some(stand) = self.stands.get_mut(at) {
                stand.nodes = nodes;
            }
        }
        if !fits || created.next().is_some() {
            self.forget_nodes();
            self.seek_and_leave(desk);
            let message = format!("{}: the server made other nodes than it was asked for", self.directories());
            return (!leaving).then(|| Output::Failed(Error::new(Status::Internal, message)));
        }
        self.session = desk.session.id();
        if leaving {
            self.stage = Stage::Leaving;
            self.delete(desk);
            return None;
        }
        self.stage = Stage::Queued;
        self.watch_for_revocation(desk);
        self.check_sequences(desk)
    }

    fn forget_nodes(&mut self) {
        self.stands.iter_mut().for_each(|stand| stand.nodes.clear());
    }

    /// There may be a node of ours: see to it that there is none.
    fn seek_and_leave(&mut self, desk: &mut Desk<'_>) {
        self.stop_all_waiting(desk);
        self.stage = Stage::Unsure { leaving: true };
        self.look_for_nodes(desk);
    }

    fn check_sequences(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        for stand in &self.stands {
            let asked = self.asked(stand);
            for node in stand.nodes.iter().filter(|_| stand.wish.under.is_none()) {
                let number = name::sequence(&node.name, &asked);
                if number.is_some_and(|number| (0..SEQUENCE_LIMIT).contains(&number)) {
                    continue;
                }
                let number = number.map_or_else(|| node.name.clone(), |number| number.to_string());
                let message = format!(
                    "{}: sequence number {number} is too near the end at 2147483647; let the directory fall empty and be \
                     removed, so that it starts again",
                    stand.wish.directory
                );
                self.start_leaving(desk);
                return Some(Output::Failed(Error::new(Status::Exhausted, message)));
            }
        }
        None
    }

    fn listed(&mut self, desk: &mut Desk<'_>, at: usize, result: Result<Response, Failure>) -> Option<Output> {
        let children = match result {
            Ok(Response::Children2 { children, .. }) => children,
            Err(Failure::Code(Code::NO_NODE)) => Vec::new(),
            // Asked again, as far as it still matters, once there is a connection.
            Err(Failure::ConnectionLost) => {
                if self.stage == Stage::NoParent {
                    self.stage = Stage::Outside;
                }
                return None;
            }
            Err(Failure::Code(code)) => return self.list_refused(desk, at, code),
            Ok(other) => return self.nonsense(desk, &other, "getChildren2"),
        };
        match self.stage {
            Stage::Queued => self.rank(desk, at, &children),
            Stage::NoParent if self.is_last(at) => self.without_parent(desk),
            Stage::Unsure { leaving } => self.search(desk, at, children, leaving),
            _ => None,
        }
    }

    fn is_last(&self, at: usize) -> bool {
        at + 1 == self.stands.len()
    }

    fn list_refused(&mut self, desk: &mut Desk<'_>, at: usize, code: Code) -> Option<Output> {
        match self.stage {
            Stage::NoParent if self.is_last(at) => self.fail(desk, code, "listing"),
            Stage::Queued => {
                self.start_leaving(desk);
                self.failure(code, "listing")
            }
            Stage::Unsure { leaving } => {
                self.stage = Stage::Unsure { leaving: true };
                self.try_again_later();
                if leaving { None } else { self.failure(code, "listing") }
            }
            _ => None,
        }
    }

    /// A directory is not there.
    fn without_parent(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        match self.parent_refused {
            Some(code) if code != Code::NO_NODE => self.fail(desk, code, "creating"),
            _ => {
                self.join_with_parents(desk);
                None
            }
        }
    }

    /// Asks for nodes whose creation was not answered. A server may lag behind the one that took the create: a transaction
    /// brings it up to date first.
    fn look_for_nodes(&mut self, desk: &mut Desk<'_>) {
        desk.session.prove(desk.now);
        self.list_all(desk);
    }

    /// Looks for them in the answers. They were made in one transaction, so all are there or none; what is missing was deleted.
    fn search(&mut self, desk: &mut Desk<'_>, at: usize, children: Vec<String>, leaving: bool) -> Option<Output> {
        let stand = self.stands.get(at)?;
        let (asked, directory) = (self.asked(stand), Arc::clone(&stand.wish.directory));
        let own = children.iter().filter(|name| name.starts_with(&asked));
        let nodes = own.map(|name| Node::new(&directory, name, None)).collect();
        self.stands.get_mut(at)?.nodes = nodes;
        // Where one of the lists was refused, all are asked for again: a node may stand there.
        if !self.is_last(at) || self.retry.due != Due::Never {
            return None;
        }
        if self.nodes().next().is_none() {
            if leaving {
                return self.gone();
            }
            // They were never created, and the session that asked for them lives: they can't appear any more.
            self.join(desk);
            return None;
        }
        self.session = desk.session.id();
        if leaving {
            self.stage = Stage::Leaving;
            self.delete(desk);
            return None;
        }
        self.stage = Stage::Queued;
        if self.stands.iter().any(|stand| stand.nodes.len() < stand.wish.count) {
            return self.removed(desk);
        }
        self.go_on(desk);
        self.check_sequences(desk)
    }

    // Waiting.

    /// Takes up the search for a place, and asks for the watches that are missing. Nodes that were found by their UUID are read
    /// first: their czxid and their owner are still unknown (rule 1).
    fn go_on(&mut self, desk: &mut Desk<'_>) {
        if self.nodes().any(|node| node.czxid.is_none()) {
            return self.watch_own(desk, |node| node.czxid.is_none());
        }
        for at in 0..self.stands.len() {
            if self.stands.get(at).is_some_and(|stand| stand.place == Place::Listing) {
                self.list(desk, at);
            }
        }
        self.watch_missing(desk);
    }

    /// Finds the place of one stand.
    fn rank(&mut self, desk: &mut Desk<'_>, at: usize, children: &[String]) -> Option<Output> {
        let Stand { wish, nodes, place, later } = self.stands.get_mut(at)?;
        if *place != Place::Listing {
            return None;
        }
        let names: HashSet<&String> = children.iter().collect();
        if !nodes.iter().all(|node| names.contains(&node.name)) {
            return self.removed(desk);
        }
        *place = match (&wish.under, wish.mode) {
            (Some(under), _) if children.contains(under) || Mutant::NestBlindly.lives() => Place::First,
            // The own writer is not there any more: nothing keeps others out.
            (Some(_), _) => return self.removed(desk),
            (None, Mode::Lease) if fits(children.len(), wish.max) => Place::First,
            (None, Mode::Lease) if Mutant::CountOthersOnly.lives() && fits(children.len() - nodes.len(), wish.max) => {
                Place::First
            }
            (None, Mode::Lease) => Place::Crowded { count: children.len() },
            (None, mode) => match rank(children, &nodes.first()?.name, mode, wish.with_kazoo, later) {
                Rank::First => Place::First,
                Rank::Behind { ahead, count, is_tie } => {
                    let ahead = format!("{}/{ahead}", wish.directory);
                    Place::Waiting(Wait { ahead, count, watch: Watch::Unset, is_tie, is_ours: false, gap: false })
                }
                Rank::Foreign { name, family } => {
                    let why = format!("{name} belongs to {family}, which zklock can't take turns with");
                    let error = Error::new(Status::Foreign, format!("{}: {why}", wish.directory));
                    self.start_leaving(desk);
                    return Some(Output::Failed(error));
                }
            },
        };
        let is_first = *place == Place::First;
        if self.one_look && !is_first {
            self.start_leaving(desk);
            return Some(Output::Busy);
        }
        if is_first {
            return self.moved_to_first(desk);
        }
        let is_crowded = matches!(place, Place::Crowded { .. });
        self.watch_missing(desk);
        is_crowded.then_some(Output::Crowded)
    }

    /// Asks for the watches that are not set. The own nodes come first: where they are still there, what follows is sound.
    fn watch_missing(&mut self, desk: &mut Desk<'_>) {
        if Mutant::IgnoreOwnNode.lives() {
            self.nodes_mut().for_each(|node| node.watch = Watch::Set);
        }
        // Leases see their own nodes in the list that they watch.
        if self.stands.iter().any(|stand| stand.wish.mode != Mode::Lease) {
            self.watch_own(desk, |node| node.watch == Watch::Unset);
        }
        for at in 0..self.stands.len() {
            if let Some(Stand { place: Place::Waiting(wait), .. }) = self.stands.get_mut(at)
                && wait.watch == Watch::Unset
            {
                wait.watch = Watch::Asked;
                desk.watch(Step::WatchAhead(at), &wait.ahead);
            }
        }
    }

    fn own_seen(&mut self, desk: &mut Desk<'_>, spot: Spot, result: Result<Response, Failure>) -> Option<Output> {
        let (is_leaving, is_in) = (self.is_leaving(), self.stage == Stage::In);
        let node = self.node_mut(spot)?;
        node.watch = if result.is_ok() { Watch::Set } else { Watch::Unset };
        if is_leaving {
            return None;
        }
        let (data, stat) = match result {
            Ok(Response::Data { data, stat }) => (data, stat),
            Ok(other) => return self.nonsense(desk, &other, "getData"),
            Err(Failure::ConnectionLost) => return None,
            Err(Failure::Code(Code::NO_NODE)) => return self.removed(desk),
            // It is there, without being readable. Whoever waits, though, could be misled.
            Err(Failure::Code(Code::NO_AUTH)) if is_in => return self.confirmed(spot),
            // Asked again with the next check.
            Err(Failure::Code(_)) if is_in => return None,
            Err(Failure::Code(code)) => {
                self.start_leaving(desk);
                return self.failure(code, "reading the own node in");
            }
        };
        if stat.ephemeral_owner != desk.session.id() && !Mutant::AdoptDeadNode.lives() {
            // Rule 1: it has the UUID we asked for, but another session's life.
            self.start_leaving(desk);
            return Some(Output::Removed(Removal::SessionEnded));
        }
        let was_found = node.czxid.replace(stat.czxid).is_none();
        let is_new = node.revoked_at != Some(stat.version) || Mutant::RevokeOnEveryLook.lives();
        if data.as_deref() == Some(REVOKE) && is_new && self.is_revocable {
            let node = self.node_mut(spot)?;
            node.revoked_at = Some(stat.version);
            self.revoked = Some(node.path.clone());
        }
        if was_found && self.stage == Stage::Queued && self.nodes().all(|node| node.czxid.is_some()) {
            self.go_on(desk);
        }
        if is_in { self.confirmed(spot) } else { None }
    }

    /// All its nodes have been seen, once the last of them has.
    fn confirmed(&mut self, spot: Spot) -> Option<Output> {
        self.node_mut(spot)?.is_confirmed = true;
        self.nodes().all(|node| node.is_confirmed).then_some(Output::Confirmed)
    }

    fn ahead_seen(&mut self, desk: &mut Desk<'_>, at: usize, result: Result<Response, Failure>) -> Option<Output> {
        let is_queued = self.stage == Stage::Queued || Mutant::LetInLeaver.lives();
        let Stand { nodes, place, later, .. } = self.stands.get_mut(at)?;
        let Place::Waiting(wait) = place else { return None };
        if wait.watch != Watch::Asked || !is_queued {
            return None;
        }
        match result {
            Ok(Response::Data { stat, .. }) => {
                wait.watch = Watch::Set;
                wait.is_ours = stat.ephemeral_owner == desk.session.id();
                if wait.is_tie && nodes.first().and_then(|node| node.czxid).is_some_and(|own| own < stat.czxid) {
                    later.extend(wait.ahead.rsplit('/').next().map(str::to_owned));
                    desk.unwatch(&wait.ahead);
                    self.list(desk, at);
                }
            }
            Ok(other) => return self.nonsense(desk, &other, "getData"),
            Err(Failure::ConnectionLost) => wait.watch = Watch::Unset,
            Err(Failure::Code(Code::NO_NODE)) if Mutant::WaitForNobody.lives() => return None,
            Err(Failure::Code(Code::NO_NODE)) => return self.moved_up(desk, at),
            Err(Failure::Code(code)) => {
                self.start_leaving(desk);
                return self.failure(code, "reading the node ahead in");
            }
        }
        None
    }

    fn fired(&mut self, desk: &mut Desk<'_>, kind: EventKind, path: &str) -> Option<Output> {
        if let Some(spot) =
            self.spots().into_iter().find(|&spot| self.node_mut(spot).is_some_and(|own| own.path == path))
        {
            self.node_mut(spot)?.watch = Watch::Unset;
            if kind == EventKind::Deleted {
                return self.removed(desk);
            }
            if matches!(self.stage, Stage::Queued | Stage::In) {
                self.watch_own(desk, |node| node.path == path);
            }
            return None;
        }
        let is_joining = self.stage == Stage::Joining { leaving: false } && !Mutant::HearNothingWhileJoining.lives();
        if self.stage != Stage::Queued && !is_joining {
            return None;
        }
        for at in 0..self.stands.len() {
            let Stand { wish, place, .. } = self.stands.get_mut(at)?;
            match place {
                Place::Waiting(wait) if wait.ahead == path => {
                    if kind == EventKind::Deleted {
                        return self.moved_up(desk, at);
                    }
                    wait.watch = Watch::Unset;
                    self.watch_missing(desk);
                }
                // Asked for anew in any case, also by who has just joined and hears what one who left had asked for: whoever hears of
                // a change is not told of the next.
                Place::Crowded { .. } | Place::Listing if wish.mode == Mode::Lease && *wish.directory == *path => {
                    self.list(desk, at);
                }
                _ => {}
            }
        }
        None
    }

    /// The node ahead is gone. If it was the only one, we are first: our own nodes were there when the watches on them were set,
    /// would have been reported gone before, and nodes are only ever added behind them. Otherwise the list tells. So it does where
    /// both nodes are of one session, whose end takes them away one after the other; and for writers, since whoever held the node
    /// ahead may have put a read lock in its place.
    fn moved_up(&mut self, desk: &mut Desk<'_>, at: usize) -> Option<Output> {
        let is_watched = self.nodes().all(|node| node.watch == Watch::Set);
        let Stand { wish, place, .. } = self.stands.get_mut(at)?;
        let is_plain =
            matches!(place, Place::Waiting(Wait { count: 1, is_tie: false, is_ours: false, gap: false, .. }));
        let may_be_replaced = wish.mode == Mode::Write && !Mutant::OverlookDowngrade.lives();
        if (is_plain && is_watched && !may_be_replaced) || Mutant::GrantOutOfTurn.lives() {
            *place = Place::First;
            return self.moved_to_first(desk);
        }
        self.stop_waiting(desk, at);
        self.list(desk, at);
        None
    }

    /// Nobody is ahead of this one. It is in when that is true of all.
    fn moved_to_first(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        if self.stands.iter().all(|stand| stand.place == Place::First) {
            return self.enter(desk);
        }
        // While others wait, this one has to stay. If they do is known with the last list.
        if self.stands.iter().all(|stand| stand.place != Place::Listing) {
            self.watch_missing(desk);
        }
        None
    }

    /// Nobody is ahead. Rule 1: granted only to nodes of the session that is surely alive now.
    fn enter(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        if self.session != desk.session.id() && !Mutant::AdoptDeadNode.lives() {
            self.start_leaving(desk);
            return Some(Output::Removed(Removal::SessionEnded));
        }
        if !desk.session.lease_runs(desk.now) && !Mutant::GrantOnDeadLease.lives() {
            // The answer was long on its way, or the process stood still: have the session confirmed, and look again.
            for at in 0..self.stands.len() {
                self.stop_waiting(desk, at);
                self.stands.get_mut(at)?.place = Place::Listing;
            }
            self.list_when_alive(desk);
            return None;
        }
        self.stop_all_waiting(desk);
        self.stage = Stage::In;
        Some(Output::In)
    }

    /// Has a quorum confirm the session, and lists. A proof that comes too soon after a silence proves too little.
    fn list_when_alive(&mut self, desk: &mut Desk<'_>) {
        desk.session.prove(desk.now);
        match desk.session.proof_due_in(desk.now) {
            Duration::ZERO => self.go_on(desk),
            wait if self.retry.due == Due::Never => self.retry.due = Due::In(wait),
            _ => {}
        }
    }

    fn confirm(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        if self.stage == Stage::In {
            self.nodes_mut().for_each(|node| node.is_confirmed = false);
            self.watch_own(desk, |_| true);
        }
        None
    }

    fn max_changed(&mut self, desk: &mut Desk<'_>, max: i32) -> Option<Output> {
        for at in 0..self.stands.len() {
            let stand = self.stands.get_mut(at)?;
            stand.wish.max = max;
            if self.stage == Stage::Queued
                && matches!(stand.place, Place::Crowded { .. })
                && desk.session.is_connected()
            {
                self.list(desk, at);
            }
        }
        None
    }

    fn watch_for_revocation(&mut self, desk: &mut Desk<'_>) {
        if self.is_revocable && matches!(self.stage, Stage::Queued | Stage::In) && desk.session.is_connected() {
            self.watch_own(desk, |_| true);
        }
    }

    fn watch_own(&mut self, desk: &mut Desk<'_>, which: impl Fn(&Node) -> bool) {
        for spot in self.spots() {
            if let Some(node) = self.node_mut(spot).filter(|node| which(node)) {
                node.watch = Watch::Asked;
                desk.watch(Step::WatchOwn(spot), &node.path);
            }
        }
    }

    fn stop_waiting(&self, desk: &mut Desk<'_>, at: usize) {
        let Some(Stand { wish, place, .. }) = self.stands.get(at) else { return };
        if let Place::Waiting(wait) = place {
            desk.unwatch(&wait.ahead);
        }
        if wish.mode == Mode::Lease {
            desk.unwatch_children(&wish.directory);
        }
    }

    fn stop_all_waiting(&self, desk: &mut Desk<'_>) {
        (0..self.stands.len()).for_each(|at| self.stop_waiting(desk, at));
    }

    // Leaving.

    fn leave(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        match &mut self.stage {
            Stage::Outside | Stage::NoParent => {
                self.stop_all_waiting(desk);
                self.gone()
            }
            Stage::Joining { leaving } | Stage::Unsure { leaving } => {
                *leaving = true;
                self.stop_all_waiting(desk);
                None
            }
            Stage::Leaving | Stage::Gone => None,
            Stage::Queued | Stage::In => {
                self.start_leaving(desk);
                None
            }
        }
    }

    /// On the way out, from a stage in which the nodes are known.
    fn start_leaving(&mut self, desk: &mut Desk<'_>) {
        self.stop_all_waiting(desk);
        self.stage = Stage::Leaving;
        self.delete(desk);
    }

    fn delete(&mut self, desk: &mut Desk<'_>) {
        if let Some(end) = self.spared_until.filter(|&end| desk.now < end) {
            if self.retry.due == Due::Never {
                self.retry.due = Due::In(end - desk.now);
            }
            return;
        }
        if !desk.session.is_connected() {
            // They are deleted as soon as there is a connection.
            return;
        }
        // In reverse, so that who follows in the same order finds his way free once he has the first.
        for spot in self.spots().into_iter().rev() {
            if let Some(node) = self.node_mut(spot).filter(|node| !node.is_gone) {
                desk.session.unwatch_doomed(&node.path, desk.machine);
                desk.send(Step::Delete(spot), &Request::Delete { path: node.path.clone(), version: -1 });
            }
        }
    }

    fn deleted(&mut self, spot: Spot, result: Result<Response, Failure>) -> Option<Output> {
        let is_leaving = self.stage == Stage::Leaving;
        let node = self.node_mut(spot).filter(|node| is_leaving && !node.is_gone)?;
        match result {
            Ok(_) => node.is_gone = true,
            Err(Failure::Code(Code::NO_NODE)) if node.maybe_deleted => node.is_gone = true,
            // Somebody else was here first: whoever held it held nothing.
            Err(Failure::Code(Code::NO_NODE)) => {
                node.is_gone = true;
                self.was_robbed = true;
            }
            // Sent again as soon as there is a connection.
            Err(Failure::ConnectionLost) if Mutant::DeleteOnce.lives() => node.is_gone = true,
            Err(Failure::ConnectionLost) => node.maybe_deleted = true,
            Err(Failure::Code(code)) => {
                let what = format!("deleting {} (zklock goes on trying)", node.path);
                self.try_again_later();
                return Some(Output::Refused(Error::from_code(code, &what)));
            }
        }
        if !self.nodes().all(|node| node.is_gone) {
            return None;
        }
        self.stage = Stage::Gone;
        Some(if self.was_robbed { Output::Removed(Removal::Deleted) } else { Output::Gone })
    }

    fn try_again_later(&mut self) {
        if self.retry.due == Due::Never {
            self.retry.due = Due::In(self.retry.wait);
            self.retry.wait = (self.retry.wait * 2).min(LAST_RETRY);
        }
    }

    fn retry(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        self.retry.due = Due::Never;
        match self.stage {
            Stage::Leaving => self.delete(desk),
            Stage::Unsure { .. } if desk.session.is_connected() => self.look_for_nodes(desk),
            Stage::Queued if desk.session.is_connected() => self.list_when_alive(desk),
            Stage::In => return Some(Output::In),
            _ => {}
        }
        None
    }

    // Ends.

    /// An own node is not there any more, while we are not leaving.
    fn removed(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        if self.is_leaving() || (Mutant::OverlookLostMember.lives() && self.stands.len() > 1) {
            return None;
        }
        // It should not be there, but if it were, it would stand in everybody's way; and so would the others.
        self.start_leaving(desk);
        Some(Output::Removed(Removal::Deleted))
    }

    fn gone(&mut self) -> Option<Output> {
        self.stage = Stage::Gone;
        Some(Output::Gone)
    }

    /// It can't be joined, and there is no node.
    fn fail(&mut self, desk: &mut Desk<'_>, code: Code, doing: &str) -> Option<Output> {
        self.stop_all_waiting(desk);
        self.stage = Stage::Gone;
        self.failure(code, doing)
    }

    fn failure(&self, code: Code, doing: &str) -> Option<Output> {
        Some(Output::Failed(Error::from_code(code, &format!("{doing} {}", self.directories()))))
    }

    /// The response decoded, but is not the one to this request; the session matches them, so it does not happen.
    fn nonsense(&mut self, desk: &mut Desk<'_>, response: &Response, request: &str) -> Option<Output> {
        self.leave(desk);
        let message = format!("{}: {request} was answered with {response:?}", self.directories());
        Some(Output::Failed(Error::new(Status::Internal, message)))
    }
}

impl Node {
    fn new(directory: &str, name: &str, czxid: Option<i64>) -> Self {
        Self {
            path: format!("{directory}/{name}"),
            name: name.to_owned(),
            czxid,
            watch: Watch::Unset,
            is_confirmed: true,
            is_gone: false,
            maybe_deleted: false,
            revoked_at: None,
        }
    }
}

/// What the answer to the creation says: the nodes that were made and when, or why none was. `zxid` is that of the transaction; of nodes
/// that are made together servers do not tell more.
fn outcome(response: Response, zxid: i64) -> Result<Vec<(String, i64)>, Code> {
    match response {
        Response::Create2 { path, stat } => Ok(vec![(path, stat.czxid)]),
        Response::Multi(results) => {
            // All fail with the one that does; those that did not are only told that another did.
            let failure = results.iter().find_map(|result| match result {
                MultiResult::Err(code) if !matches!(*code, Code::OK | Code::RUNTIME_INCONSISTENCY) => Some(*code),
                _ => None,
            });
            let nodes = results.into_iter().map(|result| match result {
                MultiResult::Ok(Response::Create2 { path, .. } | Response::Path(path)) => Ok((path, zxid)),
                _ => Err(failure.unwrap_or(Code::RUNTIME_INCONSISTENCY)),
            });
            nodes.collect()
        }
        // Nothing that could be said about nodes.
        _ => Ok(Vec::new()),
    }
}

/// Whether so many leases may be out.
fn fits(count: usize, max: i32) -> bool {
    usize::try_from(max).is_ok_and(|max| count <= max)
}

/// Whether this answer to a create means that there is no node. Others may come from a server that has made it and then failed to
/// say so.
fn is_surely_not_created(code: Code) -> bool {
    use Code as C;
    matches!(
        code,
        C::NO_NODE
            | C::NO_AUTH
            | C::NODE_EXISTS
            | C::NO_CHILDREN_FOR_EPHEMERALS
            | C::INVALID_ACL
            | C::AUTH_FAILED
            | C::BAD_ARGUMENTS
            | C::UNIMPLEMENTED
            | C::NOT_READONLY
            | C::EPHEMERAL_ON_LOCAL_SESSION
            | C::SESSION_CLOSED_REQUIRE_SASL_AUTH
            | C::QUOTA_EXCEEDED
    )
}

fn list(directory: &str) -> Request {
    Request::GetChildren2 { path: directory.to_owned(), watch: false }
}

fn create(path: String, data: Vec<u8>, mode: CreateMode) -> Request {
    Request::Create2 { path, data: Some(data), acl: Acl::open(), mode }
}
