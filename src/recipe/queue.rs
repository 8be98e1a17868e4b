//! The one algorithm: a contender, which is one attempt to get to the head of a queue, with one node of its own.
//!
//! Its life is a straight line, whatever happens on the way: it joins, waits, is in, leaves, and is gone. It never joins a
//! second time: when its node is lost, it says so, and whoever wants to go on makes a new one, with a new UUID. That keeps
//! a late delete from hurting anybody, and a node of a session that ended from ever being taken for ours (CURATOR-604).

use std::sync::Arc;
use std::time::Duration;

use super::name::{self, Kind, SEQUENCE_LIMIT};
use super::{Desk, Step};
use crate::error::{Error, Status};
use crate::mutant::Mutant;
use crate::path::from_the_top;
use crate::proto::{Acl, Code, CreateMode, EventKind, Request, Response};
use crate::session::Failure;
use crate::time::Time;

/// The first wait before a refused delete is tried again; it doubles up to the last.
const FIRST_RETRY: Duration = Duration::from_millis(250);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// See [`Contender::container_tries`].
const CONTAINER_TRIES: u32 = 3;

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
    /// Look whether the own node is still there, and watch it.
    Confirm,
    /// The time asked for by [`Contender::take_retry`] has come.
    Retry,
}

/// What a contender has to say.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// It is in: first in the queue, with a node of the session that is alive now.
    In,
    /// Somebody is ahead, and it was told to look only once. It has left.
    Busy,
    /// Its node is there, as of now.
    Confirmed,
    /// Its node is lost. It is gone, or on its way out if something of it may be left.
    Removed(Removal),
    /// It can't join. It is gone, or on its way out.
    Failed(Error),
    /// The server refuses to delete its node, and will be asked again.
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

/// One attempt to get to the head of one queue.
#[derive(Debug)]
pub struct Contender {
    directory: Arc<str>,
    base: &'static str,
    /// `_c_<uuid>-<base>`: how its node was asked for, without the sequence number.
    asked: String,
    data: Vec<u8>,
    /// Leave at once where somebody is ahead.
    one_look: bool,
    stage: Stage,
    node: Option<Node>,
    own_watch: Watch,
    /// How often parents may still be tried to be made as containers. A server that has none says so or, worse, hangs up.
    container_tries: u32,
    /// Why a parent could not be made, in case the node can't be made either.
    parent_refused: Option<Code>,
    /// A delete was sent whose answer was lost.
    maybe_deleted: bool,
    /// It is not deleted before.
    spared_until: Option<Time>,
    retry: Retry,
}

#[derive(Debug, Clone)]
struct Node {
    path: String,
    name: String,
    /// `None`: found by its UUID and not read yet.
    czxid: Option<i64>,
    session: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watch {
    Unset,
    Asked,
    Set,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing was sent yet.
    Outside,
    /// The create is under way, perhaps behind the parents, with a list right behind it.
    Joining {
        leaving: bool,
    },
    /// The create was answered: there is no directory. The list is still to say so as well.
    NoParent,
    /// The create's answer was lost: is there a node with our UUID?
    Unsure {
        leaving: bool,
    },
    /// The node is known; where it stands is being found out.
    Listing,
    /// In the queue.
    Waiting(Wait),
    /// First in the queue.
    In,
    /// The node is being deleted.
    Leaving,
    Gone,
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

#[derive(Debug, PartialEq, Eq)]
struct Wait {
    /// The path of the node just ahead.
    ahead: String,
    /// How many are ahead.
    count: usize,
    watch: Watch,
    /// It is a node of our own session, which may go because the session has ended.
    is_ours: bool,
    /// The connection was lost since the list: changes were missed, and what fires may fire in any order.
    gap: bool,
}

impl Contender {
    /// A contender for the queue in `directory` (a full path). `one_look`: do not wait.
    pub fn new(directory: Arc<str>, base: &'static str, data: Vec<u8>, one_look: bool, entropy: u128) -> Self {
        Self {
            asked: format!("{}{base}", name::protected_prefix(entropy)),
            directory,
            base,
            data,
            one_look,
            stage: Stage::Outside,
            node: None,
            own_watch: Watch::Unset,
            container_tries: CONTAINER_TRIES,
            parent_refused: None,
            maybe_deleted: false,
            spared_until: None,
            retry: Retry { wait: FIRST_RETRY, due: Due::Never },
        }
    }

    /// The full path of its node, where it has one.
    pub fn node_path(&self) -> Option<&str> {
        self.node.as_ref().map(|node| node.path.as_str())
    }

    /// The fencing token of its node: the zxid of its creation. It grows with every node of a path, also across parents that
    /// were removed and made again; sequence numbers start again.
    pub fn token(&self) -> Option<i64> {
        if Mutant::TokenIsSequence.lives() {
            return self.node.as_ref().and_then(|node| name::sequence(&node.name, &self.asked));
        }
        self.node.as_ref().and_then(|node| node.czxid)
    }

    /// The full path of the node just ahead, and how many are ahead, where it waits.
    pub fn ahead(&self) -> Option<(&str, usize)> {
        match &self.stage {
            Stage::Waiting(wait) => Some((&wait.ahead, wait.count)),
            _ => None,
        }
    }

    /// Whether its node is watched, so that its removal would be noticed.
    pub fn is_watched(&self) -> bool {
        self.own_watch != Watch::Unset
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
            Input::Retry => self.retry(desk),
        }
    }

    /// How long it wants to be left alone before [`Input::Retry`]; says so once.
    pub fn take_retry(&mut self) -> Option<Duration> {
        let Due::In(wait) = self.retry.due else { return None };
        self.retry.due = Due::Called;
        Some(wait)
    }

    // The connection and the session.

    fn connected(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        match &mut self.stage {
            Stage::Outside => {
                self.join(desk);
            }
            Stage::Unsure { .. } => self.look_for_node(desk),
            Stage::Listing => self.find_place(desk),
            Stage::Waiting(_) => self.watch_missing(desk),
            Stage::Leaving => self.delete(desk),
            Stage::Joining { .. } | Stage::NoParent | Stage::In | Stage::Gone => {}
        }
        None
    }

    fn disconnected(&mut self) -> Option<Output> {
        if let Stage::Waiting(wait) = &mut self.stage {
            wait.gap = !Mutant::GrantAcrossGap.lives();
        }
        None
    }

    fn session_ended(&mut self, desk: &mut Desk<'_>, replaced: Option<Time>) -> Option<Output> {
        let was_leaving = self.is_leaving();
        if Mutant::AdoptDeadNode.lives() && matches!(self.stage, Stage::Waiting(_)) {
            self.own_watch = Watch::Unset;
            return None;
        }
        let may_be_left = replaced.is_some() && !matches!(self.stage, Stage::Outside | Stage::NoParent | Stage::Gone);
        if !may_be_left {
            self.stage = Stage::Gone;
        } else if self.node.is_some() {
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

    /// Create and list go out together: a server answers a session's requests in order, so a free lock costs one round trip.
    fn join(&mut self, desk: &mut Desk<'_>) {
        self.stage = Stage::Joining { leaving: false };
        self.send_create(desk);
        self.list(desk);
    }

    fn send_create(&self, desk: &mut Desk<'_>) {
        let path = format!("{}/{}", self.directory, self.asked);
        desk.send(Step::Create, &create(path, self.data.clone(), CreateMode::EphemeralSequential));
    }

    /// All ancestors, the node, and the list in one write. Those that exist say so, and only the node's answer counts.
    fn join_with_parents(&mut self, desk: &mut Desk<'_>) {
        self.parent_refused = None;
        let mode = if self.container_tries > 0 { CreateMode::Container } else { CreateMode::Persistent };
        for path in from_the_top(&self.directory) {
            desk.send(Step::CreateParent, &create(path.to_owned(), Vec::new(), mode));
        }
        self.join(desk);
    }

    fn list(&self, desk: &mut Desk<'_>) {
        desk.send(Step::List, &Request::GetChildren2 { path: self.directory.to_string(), watch: false });
    }

    fn reply(&mut self, desk: &mut Desk<'_>, step: Step, result: Result<Response, Failure>) -> Option<Output> {
        match step {
            Step::CreateParent => self.parent_created(result),
            Step::Create => self.created(desk, result),
            Step::List => self.listed(desk, result),
            Step::WatchOwn => self.own_seen(desk, result),
            Step::WatchAhead => self.ahead_seen(desk, result),
            Step::Delete => self.deleted(result),
            Step::Read(_) => None,
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
        match result {
            Ok(Response::Create2 { path, stat }) if self.is_own(&path) => {
                let name = path.rsplit('/').next().unwrap_or_default().to_owned();
                self.node = Some(Node { path, name, czxid: Some(stat.czxid), session: desk.session.id() });
                if leaving {
                    self.stage = Stage::Leaving;
                    self.delete(desk);
                    return None;
                }
                self.stage = Stage::Listing;
                self.check_sequence(desk)
            }
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
                false => self.fail(code, "creating a node in"),
            },
            // Some errors come after the node: it is looked for, and deleted.
            Err(Failure::Code(code)) => {
                self.seek_and_leave(desk);
                if leaving { None } else { self.failure(code, "creating a node in") }
            }
            Ok(other) => {
                self.seek_and_leave(desk);
                if leaving { None } else { self.nonsense(desk, &other, "create2") }
            }
        }
    }

    /// Whether a node that was created is the one that was asked for.
    fn is_own(&self, path: &str) -> bool {
        let name = path.strip_prefix(&*self.directory).and_then(|rest| rest.strip_prefix('/'));
        name.is_some_and(|name| name.starts_with(&self.asked) && !name.contains('/'))
    }

    /// There may be a node of ours: see to it that there is none.
    fn seek_and_leave(&mut self, desk: &mut Desk<'_>) {
        self.stage = Stage::Unsure { leaving: true };
        self.look_for_node(desk);
    }

    fn check_sequence(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        let node = self.node.as_ref()?;
        match name::sequence(&node.name, &self.asked) {
            Some(number) if (0..SEQUENCE_LIMIT).contains(&number) => None,
            number => {
                let number = number.map_or_else(|| node.name.clone(), |number| number.to_string());
                let message = format!(
                    "{}: sequence number {number} is too near the end at 2147483647; let the directory fall empty and be \
                     removed, so that it starts again",
                    self.directory
                );
                self.start_leaving(desk);
                Some(Output::Failed(Error::new(Status::Exhausted, message)))
            }
        }
    }

    fn listed(&mut self, desk: &mut Desk<'_>, result: Result<Response, Failure>) -> Option<Output> {
        let children = match result {
            Ok(Response::Children2 { children, .. }) => Some(children),
            Err(Failure::Code(Code::NO_NODE)) => None,
            // Asked again, as far as it still matters, once there is a connection.
            Err(Failure::ConnectionLost) => {
                if self.stage == Stage::NoParent {
                    self.stage = Stage::Outside;
                }
                return None;
            }
            Err(Failure::Code(code)) => {
                return self.list_refused(desk, code);
            }
            Ok(other) => return self.nonsense(desk, &other, "getChildren2"),
        };
        match self.stage {
            Stage::Listing => self.rank(desk, children),
            Stage::NoParent => self.without_parent(desk),
            Stage::Unsure { leaving } => self.search(desk, &children.unwrap_or_default(), leaving),
            _ => None,
        }
    }

    fn list_refused(&mut self, desk: &mut Desk<'_>, code: Code) -> Option<Output> {
        match self.stage {
            Stage::NoParent => self.fail(code, "listing"),
            Stage::Listing => {
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

    /// The directory is not there.
    fn without_parent(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        match self.parent_refused {
            Some(code) if code != Code::NO_NODE => self.fail(code, "creating"),
            _ => {
                self.join_with_parents(desk);
                None
            }
        }
    }

    /// Asks for a node whose creation was not answered. A server may lag behind the one that took the create: a transaction
    /// brings it up to date first.
    fn look_for_node(&self, desk: &mut Desk<'_>) {
        desk.session.prove(desk.now);
        self.list(desk);
    }

    /// Looks for it in the answer.
    fn search(&mut self, desk: &mut Desk<'_>, children: &[String], leaving: bool) -> Option<Output> {
        let Some(name) = children.iter().find(|name| name.starts_with(&self.asked)) else {
            if leaving {
                return self.gone();
            }
            // It was never created, and the session that asked for it lives: it can't appear any more.
            self.join(desk);
            return None;
        };
        let path = format!("{}/{name}", self.directory);
        self.node = Some(Node { path, name: name.clone(), czxid: None, session: desk.session.id() });
        if leaving {
            self.stage = Stage::Leaving;
            self.delete(desk);
            return None;
        }
        self.stage = Stage::Listing;
        self.find_place(desk);
        self.check_sequence(desk)
    }

    // Waiting.

    /// Lists. A node that was found by its UUID is read first: its czxid and its owner are still unknown (rule 1).
    fn find_place(&mut self, desk: &mut Desk<'_>) {
        if self.node.as_ref().is_some_and(|node| node.czxid.is_none()) {
            return self.watch_own(desk);
        }
        self.list(desk);
    }

    /// Finds our place in the queue.
    fn rank(&mut self, desk: &mut Desk<'_>, children: Option<Vec<String>>) -> Option<Output> {
        let children = children.unwrap_or_default();
        let node = self.node.as_ref()?;
        if !children.contains(&node.name) {
            return self.removed(desk);
        }
        if let Some((name, family)) = children.iter().find_map(|name| match name::classify(name, self.base) {
            Kind::Foreign(family) => Some((name, family)),
            _ => None,
        }) {
            let message = format!("{}: {name} belongs to {family}, which zklock can't take turns with", self.directory);
            self.start_leaving(desk);
            return Some(Output::Failed(Error::new(Status::Foreign, message)));
        }
        let own = (key(&node.name, self.base), node.name.as_str());
        let ahead = children.iter().map(|name| (key(name, self.base), name.as_str()));
        let (count, last) = ahead
            .filter(|other| other.0.is_some() && *other < own)
            .fold((0, None), |(count, last), other| (count + 1, last.max(Some(other))));
        let Some((_, name)) = last else { return self.enter(desk) };
        if self.one_look {
            self.start_leaving(desk);
            return Some(Output::Busy);
        }
        let ahead = format!("{}/{name}", self.directory);
        self.stage = Stage::Waiting(Wait { ahead, count, watch: Watch::Unset, is_ours: false, gap: false });
        self.watch_missing(desk);
        None
    }

    /// Asks for the watches that are not set. The own node comes first: where it is still there, what follows is sound.
    fn watch_missing(&mut self, desk: &mut Desk<'_>) {
        if Mutant::IgnoreOwnNode.lives() {
            self.own_watch = Watch::Set;
        }
        if self.own_watch == Watch::Unset {
            self.watch_own(desk);
        }
        let Stage::Waiting(wait) = &mut self.stage else { return };
        if wait.watch == Watch::Unset {
            wait.watch = Watch::Asked;
            desk.watch(Step::WatchAhead, &wait.ahead);
        }
    }

    fn own_seen(&mut self, desk: &mut Desk<'_>, result: Result<Response, Failure>) -> Option<Output> {
        self.own_watch = if result.is_ok() { Watch::Set } else { Watch::Unset };
        if self.is_leaving() {
            return None;
        }
        let stat = match result {
            Ok(Response::Data { stat, .. }) => stat,
            Ok(other) => return self.nonsense(desk, &other, "getData"),
            Err(Failure::ConnectionLost) => return None,
            Err(Failure::Code(Code::NO_NODE)) => return self.removed(desk),
            // It is there, without being readable. Whoever waits, though, could be misled.
            Err(Failure::Code(Code::NO_AUTH)) if self.stage == Stage::In => return Some(Output::Confirmed),
            // Asked again with the next check.
            Err(Failure::Code(_)) if self.stage == Stage::In => return None,
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
        let found = self.node.as_mut().is_some_and(|node| node.czxid.replace(stat.czxid).is_none());
        if found && self.stage == Stage::Listing {
            self.list(desk);
        }
        (self.stage == Stage::In).then_some(Output::Confirmed)
    }

    fn ahead_seen(&mut self, desk: &mut Desk<'_>, result: Result<Response, Failure>) -> Option<Output> {
        let Stage::Waiting(wait) = &mut self.stage else { return None };
        if wait.watch != Watch::Asked {
            return None;
        }
        match result {
            Ok(Response::Data { stat, .. }) => {
                wait.watch = Watch::Set;
                wait.is_ours = stat.ephemeral_owner == desk.session.id();
            }
            Ok(other) => return self.nonsense(desk, &other, "getData"),
            Err(Failure::ConnectionLost) => wait.watch = Watch::Unset,
            Err(Failure::Code(Code::NO_NODE)) if Mutant::WaitForNobody.lives() => return None,
            Err(Failure::Code(Code::NO_NODE)) => return self.moved_up(desk),
            Err(Failure::Code(code)) => {
                self.start_leaving(desk);
                return self.failure(code, "reading the node ahead in");
            }
        }
        None
    }

    fn fired(&mut self, desk: &mut Desk<'_>, kind: EventKind, path: &str) -> Option<Output> {
        if self.node_path() == Some(path) {
            self.own_watch = Watch::Unset;
            if kind == EventKind::Deleted {
                return self.removed(desk);
            }
            return self.confirm(desk);
        }
        let Stage::Waiting(wait) = &mut self.stage else { return None };
        if wait.ahead != path {
            return None;
        }
        if kind == EventKind::Deleted {
            return self.moved_up(desk);
        }
        wait.watch = Watch::Unset;
        self.watch_missing(desk);
        None
    }

    /// The node ahead is gone. If it was the only one, we are first: our own node was there when the watch on it was set,
    /// would have been reported gone before, and nodes are only ever added behind it. Otherwise the list tells. So it does where
    /// both nodes are of one session, whose end takes them away one after the other.
    fn moved_up(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        if Mutant::GrantOutOfTurn.lives() {
            return self.enter(desk);
        }
        if let (Stage::Waiting(Wait { count: 1, is_ours: false, gap: false, .. }), Watch::Set) =
            (&self.stage, self.own_watch)
        {
            return self.enter(desk);
        }
        self.stop_waiting(desk);
        self.stage = Stage::Listing;
        self.list(desk);
        None
    }

    /// Nobody is ahead. Rule 1: granted only to a node of the session that is surely alive now.
    fn enter(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        let node = self.node.as_ref()?;
        if node.session != desk.session.id() && !Mutant::AdoptDeadNode.lives() {
            self.start_leaving(desk);
            return Some(Output::Removed(Removal::SessionEnded));
        }
        if !desk.session.lease_runs(desk.now) && !Mutant::GrantOnDeadLease.lives() {
            // The answer was long on its way, or the process stood still: have the session confirmed, and look again.
            self.stop_waiting(desk);
            self.stage = Stage::Listing;
            self.list_when_alive(desk);
            return None;
        }
        self.stage = Stage::In;
        Some(Output::In)
    }

    /// Has a quorum confirm the session, and lists. A proof that comes too soon after a silence proves too little.
    fn list_when_alive(&mut self, desk: &mut Desk<'_>) {
        desk.session.prove(desk.now);
        match desk.session.proof_due_in(desk.now) {
            Duration::ZERO => self.list(desk),
            wait if self.retry.due == Due::Never => self.retry.due = Due::In(wait),
            _ => {}
        }
    }

    fn confirm(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        match self.stage {
            Stage::In => self.watch_own(desk),
            Stage::Waiting(_) => self.watch_missing(desk),
            _ => {}
        }
        None
    }

    fn watch_own(&mut self, desk: &mut Desk<'_>) {
        if let Some(node) = &self.node {
            self.own_watch = Watch::Asked;
            desk.watch(Step::WatchOwn, &node.path);
        }
    }

    fn stop_waiting(&self, desk: &mut Desk<'_>) {
        if let Stage::Waiting(wait) = &self.stage {
            desk.unwatch(&wait.ahead);
        }
    }

    // Leaving.

    fn leave(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        match &mut self.stage {
            Stage::Outside | Stage::NoParent => self.gone(),
            Stage::Joining { leaving } | Stage::Unsure { leaving } => {
                *leaving = true;
                None
            }
            Stage::Leaving | Stage::Gone => None,
            _ => {
                self.start_leaving(desk);
                None
            }
        }
    }

    /// On the way out, from a stage in which the node is known.
    fn start_leaving(&mut self, desk: &mut Desk<'_>) {
        self.stop_waiting(desk);
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
        let Some(node) = &self.node else { return };
        if !desk.session.is_connected() {
            // It is deleted as soon as there is a connection.
            return;
        }
        desk.session.unwatch_doomed(&node.path, desk.machine);
        desk.send(Step::Delete, &Request::Delete { path: node.path.clone(), version: -1 });
    }

    fn deleted(&mut self, result: Result<Response, Failure>) -> Option<Output> {
        match result {
            _ if self.stage != Stage::Leaving => None,
            Ok(_) => self.gone(),
            Err(Failure::Code(Code::NO_NODE)) if self.maybe_deleted => self.gone(),
            // Somebody else was here first: whoever held it held nothing.
            Err(Failure::Code(Code::NO_NODE)) => {
                self.stage = Stage::Gone;
                Some(Output::Removed(Removal::Deleted))
            }
            // Sent again as soon as there is a connection.
            Err(Failure::ConnectionLost) if Mutant::DeleteOnce.lives() => self.gone(),
            Err(Failure::ConnectionLost) => {
                self.maybe_deleted = true;
                None
            }
            Err(Failure::Code(code)) => {
                self.try_again_later();
                let path = self.node_path().unwrap_or_default();
                let error = Error::from_code(code, &format!("deleting {path} (zklock goes on trying)"));
                Some(Output::Refused(error))
            }
        }
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
            Stage::Unsure { .. } if desk.session.is_connected() => self.look_for_node(desk),
            Stage::Listing if desk.session.is_connected() => self.list_when_alive(desk),
            _ => {}
        }
        None
    }

    // Ends.

    /// The own node is not there any more, while we are not leaving.
    fn removed(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        if self.is_leaving() {
            return None;
        }
        // It should not be there, but if it were, it would stand in everybody's way.
        self.start_leaving(desk);
        Some(Output::Removed(Removal::Deleted))
    }

    fn gone(&mut self) -> Option<Output> {
        self.stage = Stage::Gone;
        Some(Output::Gone)
    }

    /// It can't be joined, and there is no node.
    fn fail(&mut self, code: Code, doing: &str) -> Option<Output> {
        self.stage = Stage::Gone;
        self.failure(code, doing)
    }

    fn failure(&self, code: Code, doing: &str) -> Option<Output> {
        Some(Output::Failed(Error::from_code(code, &format!("{doing} {}", self.directory))))
    }

    /// The response decoded, but is not the one to this request; the session matches them, so it does not happen.
    fn nonsense(&mut self, desk: &mut Desk<'_>, response: &Response, request: &str) -> Option<Output> {
        self.leave(desk);
        let message = format!("{}: {request} was answered with {response:?}", self.directory);
        Some(Output::Failed(Error::new(Status::Internal, message)))
    }
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

fn key<'a>(name: &'a str, base: &str) -> Option<&'a str> {
    match name::classify(name, base) {
        Kind::Contender(key) => Some(key),
        _ => None,
    }
}

fn create(path: String, data: Vec<u8>, mode: CreateMode) -> Request {
    Request::Create2 { path, data: Some(data), acl: Acl::open(), mode }
}
