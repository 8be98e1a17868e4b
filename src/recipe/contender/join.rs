//! How a contender comes to its nodes: they are created, and found again where the answer was lost.

use std::collections::BTreeSet;

use super::wait::placed;
use super::{Contender, Due, Line, Node, Output, Place, Stage, Stand, Wish};
use crate::error::{Error, Status};
use crate::mutant::Mutant;
use crate::path::from_the_top;
use crate::proto::{Acl, Code, CreateMode, MultiResult, Request, Response};
use crate::recipe::errand::code_of;
use crate::recipe::mirror::children_ever;
use crate::recipe::name::{self, Mode, SEQUENCE_LIMIT};
use crate::recipe::rank::rank;
use crate::recipe::{Desk, Step};
use crate::session::Failure;

impl Contender {
    /// Takes the first step. A contender that looks once lists its directories before it writes anything, so that a try that can't win
    /// costs no transaction. If it is known that the directories are free, it joins at once.
    pub(super) fn begin(&mut self, desk: &mut Desk<'_>) {
        let is_unknown = |stand: &Stand| {
            let Wish { directory, mode, with_kazoo, under, .. } = &stand.wish;
            let line = || Line::new(*mode, *with_kazoo);
            // The engine looks at leases before it makes their contender. Under a hold of the same owner, a read lock has no contender ahead.
            *mode != Mode::Lease && under.is_none() && !desk.mirrors.is_free(directory, line, &stand.asked, *mode)
        };
        let unknown: Vec<usize> = self
            .stands
            .iter()
            .enumerate()
            .filter(|(_, stand)| self.one_look && is_unknown(stand))
            .map(|(at, _)| at)
            .collect();
        let Some(first) = unknown.first().and_then(|&at| self.stands.get(at)) else {
            self.come(desk);
            return self.join(desk);
        };
        // A server that lags may still show nodes that were deleted before the call began.
        if !Mutant::LookWithoutSync.lives() {
            desk.session.sync(desk.now, &first.wish.directory);
        }
        self.stage = Stage::Looking { is_missing: false };
        for at in unknown {
            self.list(desk, at);
        }
    }

    /// One of the directories was listed before anything was written. A new node there would get the number `next`.
    fn looked(&mut self, desk: &mut Desk<'_>, at: usize, children: &[String], next: i64) -> Option<Output> {
        let Stand { wish, asked, place, .. } = self.stands.get_mut(at)?;
        let own = format!("{asked}{next:0digits$}", digits = name::DIGITS);
        match placed(rank(children, &own, wish.mode, wish.with_kazoo, &[]), &wish.directory) {
            Ok(Place::First) => {}
            Ok(ahead) => {
                *place = ahead;
                desk.mirrors.listed_behind(&wish.directory);
                self.has_waited = true;
                self.stage = Stage::Gone;
                return Some(Output::Busy);
            }
            Err(error) => {
                self.stage = Stage::Gone;
                return Some(Output::Failed(error));
            }
        }
        if self.is_listing() {
            return None;
        }
        let is_missing = self.stage == Stage::Looking { is_missing: true };
        self.come(desk);
        match is_missing {
            true => self.join_with_parents(desk),
            false => self.join(desk),
        }
        None
    }

    /// It will be in its directories soon: those that are used hard have a mirror.
    pub(super) fn come(&mut self, desk: &mut Desk<'_>) {
        for stand in self.stands.iter_mut().filter(|stand| stand.wish.mode != Mode::Lease && !stand.is_present) {
            stand.is_present = true;
            let Wish { directory, mode, with_kazoo, .. } = &stand.wish;
            let line = || Line::new(*mode, *with_kazoo);
            stand.mirror = desk.mirrors.join(desk.now, desk.session, directory, line, desk.machine);
        }
    }

    /// The counterpart.
    pub(super) fn depart(&mut self, desk: &mut Desk<'_>) {
        for stand in self.stands.iter_mut().filter(|stand| stand.is_present) {
            stand.is_present = false;
            let mirror = stand.mirror.take();
            desk.mirrors.leave(desk.now, desk.session, &stand.wish.directory, mirror, desk.machine);
        }
    }

    /// Create and lists go out together: a server answers a session's requests in order, so a free lock costs one round trip. Where
    /// there is a mirror, it is the list.
    pub(super) fn join(&mut self, desk: &mut Desk<'_>) {
        self.stage = Stage::Joining { leaving: false };
        desk.send(Step::Create, &self.creation());
        for at in 0..self.stands.len() {
            if self.stands.get(at).is_some_and(|stand| stand.mirror.is_none()) {
                self.list(desk, at);
            }
        }
    }

    /// One transaction for all its nodes: so all queues see the contenders in one order, and no two of them wait for each other.
    fn creation(&self) -> Request {
        let mut creates: Vec<Request> = self.stands.iter().flat_map(creates).collect();
        match creates.pop() {
            Some(only) if creates.is_empty() => only,
            last => {
                creates.extend(last);
                Request::Multi(creates)
            }
        }
    }

    /// All ancestors, the nodes, and the lists in one write. Those that exist say so, and only the nodes' answer counts.
    fn join_with_parents(&mut self, desk: &mut Desk<'_>) {
        self.parent_refused = None;
        let mode = if self.container_tries > 0 { CreateMode::Container } else { CreateMode::Persistent };
        let mut known = BTreeSet::new();
        let paths = self
            .stands
            .iter()
            .enumerate()
            .flat_map(|(at, Stand { wish, .. })| from_the_top(&wish.directory).map(move |path| (at, path)));
        self.parents.create(desk, paths.filter(|&(_, path)| known.insert(path)), mode);
        self.join(desk);
    }

    fn list_all(&mut self, desk: &mut Desk<'_>) {
        for at in 0..self.stands.len() {
            self.list(desk, at);
        }
    }

    pub(super) fn list(&mut self, desk: &mut Desk<'_>, at: usize) {
        let Some(stand) = self.stands.get_mut(at) else { return };
        if self.stage == Stage::Queued {
            stand.place = Place::Listing;
        }
        stand.is_asked = true;
        let is_watched = stand.wish.mode == Mode::Lease && matches!(self.stage, Stage::Queued | Stage::Joining { .. });
        match is_watched {
            true => desk.watch_children(Step::List(at), &stand.wish.directory),
            false => desk.send(Step::List(at), &list(&stand.wish.directory)),
        }
    }

    pub(super) fn reply(
        &mut self,
        desk: &mut Desk<'_>,
        step: Step,
        result: Result<Response, Failure>,
    ) -> Option<Output> {
        match step {
            Step::CreateParent(at) => self.parent_created(at, result),
            Step::Create => self.created(desk, result),
            Step::List(at) => self.listed(desk, at, result),
            Step::WatchOwn(spot) => self.own_seen(desk, spot, result),
            Step::WatchAhead(at) => self.ahead_seen(desk, at, result),
            Step::LookAhead(at) => self.ahead_looked_at(desk, at, result),
            Step::Delete(spot) => self.deleted(desk, spot, result),
            Step::Read(_) | Step::Errand | Step::WatchBelow | Step::WatchDirectory => None,
        }
    }

    /// A server says "no permission" of an ancestor that exists if its parent must not be changed. So a refusal counts only if no
    /// ancestor below it exists. The answers come from the top down, and below a missing ancestor they are "no node".
    fn parent_created(&mut self, at: usize, result: Result<Response, Failure>) -> Option<Output> {
        self.parents.answered(code_of(&result));
        let is_of_this = self.parent_refused.is_none_or(|(refused, _)| refused == at);
        match result {
            Ok(_) | Err(Failure::Code(Code::NODE_EXISTS)) if is_of_this => self.parent_refused = None,
            // Made once more, as a node of another kind.
            Err(Failure::Code(Code::UNIMPLEMENTED)) => (self.container_tries, self.parent_refused) = (0, None),
            Err(Failure::ConnectionLost) => self.container_tries = self.container_tries.saturating_sub(1),
            Err(Failure::Code(code)) if code != Code::NO_NODE && is_of_this => self.parent_refused = Some((at, code)),
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
                if self.is_listing() { None } else { self.without_parent(desk) }
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
            Err(failure) => {
                self.seek_and_leave(desk);
                if leaving { None } else { self.failure(failure, "creating a node in") }
            }
        }
    }

    fn adopt_created(&mut self, desk: &mut Desk<'_>, created: Vec<(String, i64)>, leaving: bool) -> Option<Output> {
        let mut created = created.into_iter();
        let mut fits = true;
        for Stand { wish, asked, nodes, .. } in &mut self.stands {
            let own = |(path, czxid): (String, i64)| {
                let name = path.strip_prefix(&*wish.directory)?.strip_prefix('/')?;
                let is_own = name.starts_with(&**asked) && !name.contains('/');
                is_own.then(|| Node::new(path, Some(czxid)))
            };
            nodes.clear();
            nodes.reserve_exact(wish.count);
            nodes.extend(created.by_ref().take(wish.count).filter_map(own));
            fits &= nodes.len() == wish.count;
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
        self.check_sequences(desk).or_else(|| self.seek_all(desk))
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
            for node in stand.nodes.iter().filter(|_| stand.wish.under.is_none()) {
                let number = name::sequence(node.name(), &stand.asked);
                if number.is_some_and(|number| (0..SEQUENCE_LIMIT).contains(&number)) {
                    continue;
                }
                let number = number.map_or_else(|| node.name().to_owned(), |number| number.to_string());
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
        self.stands.get_mut(at)?.is_asked = false;
        let (children, next) = match result {
            Ok(Response::Children2 { children, stat }) => (children, children_ever(stat)),
            Err(Failure::Code(Code::NO_NODE)) => {
                if let Stage::Looking { is_missing } = &mut self.stage {
                    *is_missing = true;
                }
                (Vec::new(), 0)
            }
            // Asked again, as far as it still matters, once there is a connection.
            Err(Failure::ConnectionLost) => {
                if matches!(self.stage, Stage::NoParent | Stage::Looking { .. }) {
                    self.stage = Stage::Outside;
                }
                return None;
            }
            Err(failure) => return self.list_refused(desk, failure),
            Ok(other) => return self.nonsense(desk, &other, "getChildren2"),
        };
        match self.stage {
            Stage::Looking { .. } => self.looked(desk, at, &children, next),
            Stage::Queued => self.rank(desk, at, &children),
            Stage::NoParent if !self.is_listing() => self.without_parent(desk),
            Stage::Unsure { leaving } => self.search(desk, at, children, leaving),
            _ => None,
        }
    }

    fn is_last(&self, at: usize) -> bool {
        at + 1 == self.stands.len()
    }

    fn is_listing(&self) -> bool {
        self.stands.iter().any(|stand| stand.is_asked)
    }

    fn list_refused(&mut self, desk: &mut Desk<'_>, why: Failure) -> Option<Output> {
        match self.stage {
            Stage::Looking { .. } => self.fail(desk, why, "listing"),
            Stage::NoParent if !self.is_listing() => self.fail(desk, why, "listing"),
            Stage::Queued => {
                self.start_leaving(desk);
                self.failure(why, "listing")
            }
            Stage::Unsure { leaving } => {
                self.stage = Stage::Unsure { leaving: true };
                self.try_again_later(desk);
                if leaving { None } else { self.failure(why, "listing") }
            }
            _ => None,
        }
    }

    /// A directory is not there.
    fn without_parent(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        match self.parent_refused {
            _ if self.parents.is_chroot_missing() => {
                self.stop_all_waiting(desk);
                self.stage = Stage::Gone;
                Some(Output::Failed(desk.chroot.missing()))
            }
            Some((_, code)) => self.fail(desk, code, "creating"),
            None => {
                self.join_with_parents(desk);
                None
            }
        }
    }

    /// Asks for nodes whose creation was not answered. A server may lag behind the one that took the create: a transaction
    /// brings it up to date first.
    pub(super) fn look_for_nodes(&mut self, desk: &mut Desk<'_>) {
        desk.session.prove(desk.now);
        self.list_all(desk);
    }

    /// Looks for them in the answers. They were made in one transaction, so all are there or none; what is missing was deleted.
    fn search(&mut self, desk: &mut Desk<'_>, at: usize, children: Vec<String>, leaving: bool) -> Option<Output> {
        let Stand { wish, asked, nodes, .. } = self.stands.get_mut(at)?;
        let own = children.iter().filter(|name| name.starts_with(&**asked));
        *nodes = own.map(|name| Node::new(format!("{}/{name}", wish.directory), None)).collect();
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

fn creates(stand: &Stand) -> Vec<Request> {
    let wish = &stand.wish;
    let mode = match wish.under {
        Some(_) => CreateMode::Ephemeral,
        None => CreateMode::EphemeralSequential,
    };
    let path = [&*wish.directory, "/", &stand.asked].concat();
    vec![create(path, wish.data.clone(), mode); wish.count]
}

fn list(directory: &str) -> Request {
    Request::GetChildren2 { path: directory.to_owned(), watch: false }
}

fn create(path: String, data: Vec<u8>, mode: CreateMode) -> Request {
    Request::Create2 { path, data: Some(data), acl: Acl::open(), mode }
}
