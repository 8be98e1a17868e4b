//! Creates the nodes of a contender. If the reply to the create request was lost, the contender searches for its nodes.

use std::collections::BTreeSet;

use zklock_proto::{Code, CreateMode, MultiResult, Refusal, Request, Response};

use super::wait::position_of;
use super::{
    Contender, JoinStep, Joining, Leaving, Node, Output, Phase, Position, QueueIndex, QueueRequest, QueueSlot,
    RetryState,
};
use crate::acl::{CreateAcls, Place};
use crate::error::{Error, Status};
use crate::mutant::Mutant;
use crate::path::from_the_top;
use crate::recipe::directories::Directory;
use crate::recipe::directory_cache::children_created;
use crate::recipe::name::{self, Mode, SEQUENCE_LIMIT};
use crate::recipe::rank::rank;
use crate::recipe::{Context, RequestKind};
use crate::session::Failure;

impl Contender {
    /// Starts the attempt to acquire. If the contender makes only a single attempt, it first lists its directories. If
    /// the lists show that the attempt cannot succeed, the contender writes nothing. If the client knows that the
    /// directories are free, the contender joins at once.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>) {
        let is_unknown = |slot: &QueueSlot| {
            let QueueRequest { directory, mode, with_kazoo, nested_in, .. } = &slot.request;
            let index = || QueueIndex::new(*mode, *with_kazoo);
            // A contender for leases needs no list here, because the engine has already counted the leases. A nested
            // read lock needs no list, because its owner holds the write lock.
            *mode != Mode::Lease
                && nested_in.is_none()
                && !cx.caches.is_known_free(directory, index, &slot.name_prefix, *mode)
        };
        let unknown: Vec<usize> = self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| self.try_once && is_unknown(slot))
            .map(|(at, _)| at)
            .collect();
        let Some(first) = unknown.first().and_then(|&at| self.slots.get(at)) else {
            self.begin_cache_use(cx);
            return self.join(cx);
        };
        // Without `sync`, a lagging server could list nodes that were deleted before this call.
        if !Mutant::CheckWithoutSync.is_active() {
            cx.session.sync(cx.now, &first.request.directory);
        }
        self.set_join_step(JoinStep::Checking { is_directory_missing: false });
        for at in unknown {
            self.list(cx, at);
        }
    }

    /// Handles the list of a directory that the contender requested before its create request. The server would give
    /// the sequence number `next` to the next node in the directory.
    fn on_check_list(&mut self, cx: &mut Context<'_>, at: usize, children: &[String], next: i64) -> Option<Output> {
        let QueueSlot { request, name_prefix, .. } = self.slots.get(at)?;
        let own = format!("{name_prefix}{next:0digits$}", digits = name::DIGITS);
        match position_of(rank(children, &own, request.mode, request.with_kazoo, &[]), &request.directory) {
            Ok(Position::First) => {}
            Ok(position) => {
                cx.caches.record_contended(&request.directory);
                self.has_waited = true;
                let blocker = match &position {
                    Position::Behind(predecessor) => predecessor.path.clone(),
                    _ => return Some(Output::WouldBlock),
                };
                self.set_join_step(JoinStep::Blocked { at, position });
                cx.send(RequestKind::ReadPredecessor(at), &Request::GetData { path: blocker, watch: false });
                return None;
            }
            Err(error) => {
                self.phase = Phase::Gone;
                return Some(Output::Failed(error));
            }
        }
        if self.is_any_list_pending() {
            return None;
        }
        let is_missing = self.join_step() == Some(&JoinStep::Checking { is_directory_missing: true });
        self.begin_cache_use(cx);
        match is_missing {
            true => self.join_with_directories(cx),
            false => self.join(cx),
        }
        None
    }

    /// Records that the contender is about to use its directories. The client starts a directory cache for each heavily
    /// used directory.
    pub(super) fn begin_cache_use(&mut self, cx: &mut Context<'_>) {
        for slot in self.slots.iter_mut().filter(|slot| slot.request.mode != Mode::Lease && !slot.is_use_recorded) {
            slot.is_use_recorded = true;
            let QueueRequest { directory, mode, with_kazoo, .. } = &slot.request;
            let index = || QueueIndex::new(*mode, *with_kazoo);
            slot.cache = cx.caches.begin_use(cx.now, cx.session, directory, index, cx.machine_id);
        }
    }

    /// Records that the contender no longer uses its directories.
    pub(super) fn end_cache_use(&mut self, cx: &mut Context<'_>) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_use_recorded) {
            slot.is_use_recorded = false;
            let cache = slot.cache.take();
            cx.caches.end_use(cx.now, cx.session, &slot.request.directory, cache, cx.machine_id);
        }
    }

    /// Sends the create request and the list requests together. A server answers the requests of a session in order, so
    /// acquiring a free lock takes one round trip. If a directory has a directory cache, the contender does not need to
    /// list it.
    pub(super) fn join(&mut self, cx: &mut Context<'_>) {
        self.set_join_step(JoinStep::Creating);
        let mut creates: Vec<Request> = self.slots.iter().flat_map(|slot| creates(slot, cx.acls)).collect();
        let request = match creates.pop() {
            Some(only) if creates.is_empty() => only,
            // All nodes are created in one transaction. Two contenders that join the same queues in this way have the
            // same order in each queue, so they cannot deadlock.
            last => {
                creates.extend(last);
                Request::Multi(creates)
            }
        };
        cx.send(RequestKind::Create, &request);
        for at in 0..self.slots.len() {
            if self.slots.get(at).is_some_and(|slot| slot.cache.is_none()) {
                self.list(cx, at);
            }
        }
    }

    /// Sends the requests that create the ancestors and the nodes, and the list requests, in one write. Only the reply
    /// to the create request for the nodes shows whether the contender has joined. The contender ignores most errors in
    /// the other replies, because the server reports an error for each ancestor that already exists.
    fn join_with_directories(&mut self, cx: &mut Context<'_>) {
        let mut known = BTreeSet::new();
        let Self { slots, phase: Phase::Joining(Joining { directory_creation, .. }), .. } = self else { return };
        let paths = slots
            .iter()
            .enumerate()
            .flat_map(|(at, QueueSlot { request, .. })| from_the_top(&request.directory).map(move |path| (at, path)));
        let directory =
            |(at, path): (usize, &str)| Directory { at, path: path.to_owned(), place: place_of(slots, path) };
        directory_creation.create(
            cx,
            paths.filter(|&(_, path)| known.insert(path)).map(directory),
            CreateMode::Container,
        );
        self.join(cx);
    }

    pub(super) fn list(&mut self, cx: &mut Context<'_>, at: usize) {
        if let Some((_, queued)) = self.queued_mut(at) {
            queued.position = Position::Unknown;
        }
        let is_joining_or_queued = self.is_queued() || self.join_step() == Some(&JoinStep::Creating);
        let Some(slot) = self.slots.get_mut(at) else { return };
        slot.is_list_pending = true;
        let is_watched = slot.request.mode == Mode::Lease && is_joining_or_queued;
        match is_watched {
            true => cx.watch_children(RequestKind::List(at), &slot.request.directory),
            false => cx.send(RequestKind::List(at), &list(&slot.request.directory)),
        }
    }

    pub(super) fn on_reply(
        &mut self,
        cx: &mut Context<'_>,
        kind: RequestKind,
        zxid: i64,
        result: Result<Response, Failure>,
    ) -> Option<Output> {
        let refusal = match &result {
            Err(Failure::Code(code)) => code.refusal(),
            _ => Refusal::Final,
        };
        let result = match (refusal, kind) {
            (Refusal::Transient, RequestKind::Delete(_) | RequestKind::CreateDirectory) => {
                self.repeat_soon(cx);
                result
            }
            // As after a lost connection, the contender does not know the answer and asks again.
            (Refusal::Transient, _) => {
                self.repeat_soon(cx);
                Err(Failure::ConnectionLost)
            }
            _ => result,
        };
        match kind {
            RequestKind::CreateDirectory => {
                if let Phase::Joining(joining) = &mut self.phase {
                    joining.directory_creation.on_reply(&result);
                }
                None
            }
            RequestKind::Create => self.on_created(cx, zxid, result),
            RequestKind::List(at) => self.on_list(cx, at, result),
            RequestKind::WatchOwn(index) => self.on_own_node_read(cx, index, result),
            RequestKind::WatchData(at) => self.on_predecessor_watched(cx, at, result),
            RequestKind::ReadPredecessor(at) => self.on_predecessor_read(cx, at, result),
            RequestKind::Delete(index) => self.on_deleted(cx, index, result),
            RequestKind::ReadParticipant(_)
            | RequestKind::NodeRequest
            | RequestKind::WatchRecursive
            | RequestKind::WatchDirectory => None,
        }
    }

    fn on_created(&mut self, cx: &mut Context<'_>, zxid: i64, result: Result<Response, Failure>) -> Option<Output> {
        let is_leaving = self.phase == Phase::Leaving(Leaving::Creating);
        if !is_leaving && self.join_step() != Some(&JoinStep::Creating) {
            return None;
        }
        let (at, result) = match result.map(|response| parse_create_response(response, zxid)) {
            Ok(Ok(created)) => (0, Ok(created)),
            Ok(Err((_, code))) if code.refusal() == Refusal::Transient => {
                self.repeat_soon(cx);
                (0, Err(Failure::ConnectionLost))
            }
            Ok(Err((operation, code))) => (self.slot_of(operation), Err(Failure::Code(code))),
            Err(failure) => (0, Err(failure)),
        };
        match result {
            Ok(created) => self.adopt_created_nodes(cx, created, is_leaving),
            Err(Failure::Code(Code::NO_NODE)) if !is_leaving => {
                self.set_join_step(JoinStep::DirectoryMissing { at });
                if self.must_wait_for_directories() { None } else { self.on_directory_missing(cx) }
            }
            Err(Failure::ConnectionLost) if Mutant::ForgetLostCreate.is_active() && !is_leaving => {
                self.set_join_step(JoinStep::NotBegun);
                None
            }
            Err(Failure::ConnectionLost) => {
                match is_leaving {
                    true => self.phase = Phase::Leaving(Leaving::Searching),
                    false => self.set_join_step(JoinStep::CreateUnknown),
                }
                None
            }
            Err(Failure::Code(code)) if is_surely_not_created(code) => match is_leaving {
                true => self.finish(),
                false => self.fail(cx, self.create_error(cx, code.into(), at)),
            },
            // After some errors, the nodes may exist nevertheless. The contender therefore searches for its nodes and
            // deletes them.
            Err(failure) => {
                self.seek_and_leave(cx);
                (!is_leaving).then(|| Output::Failed(self.create_error(cx, failure, at)))
            }
        }
    }

    fn create_error(&self, cx: &Context<'_>, failure: Failure, at: usize) -> Error {
        let doing = format!("creating a node in {}", self.directories());
        cx.create_error(failure, &doing, self.directory(at), Place::Contender)
    }

    /// Returns the index of the directory for which the contender requests this operation of its transaction.
    fn slot_of(&self, operation: usize) -> usize {
        let ends = self.slots.iter().scan(0, |end: &mut usize, slot| {
            *end = end.saturating_add(slot.request.node_count);
            Some(*end)
        });
        ends.take_while(|&end| end <= operation).count()
    }

    fn adopt_created_nodes(
        &mut self,
        cx: &mut Context<'_>,
        created: Vec<(String, i64)>,
        is_leaving: bool,
    ) -> Option<Output> {
        let mut created = created.into_iter();
        let mut fits = true;
        for QueueSlot { request, name_prefix, nodes, .. } in &mut self.slots {
            let own = |(path, czxid): (String, i64)| {
                let name = path.strip_prefix(&*request.directory)?.strip_prefix('/')?;
                let is_own = name.starts_with(&**name_prefix) && !name.contains('/');
                is_own.then(|| Node::new(path, Some(czxid)))
            };
            nodes.clear();
            nodes.reserve_exact(request.node_count);
            nodes.extend(created.by_ref().take(request.node_count).filter_map(own));
            fits &= nodes.len() == request.node_count;
        }
        if !fits || created.next().is_some() {
            self.slots.iter_mut().for_each(|slot| slot.nodes.clear());
            self.seek_and_leave(cx);
            let message = format!("{}: the server created other nodes than the client requested", self.directories());
            return (!is_leaving).then(|| Output::Failed(Error::new(Status::Internal, message)));
        }
        self.session_id = cx.session.id();
        if is_leaving {
            self.delete_known_nodes(cx);
            return None;
        }
        self.start_queuing();
        self.watch_for_revocation(cx);
        self.check_sequences(cx).or_else(|| self.update_positions(cx))
    }

    /// Searches for nodes of this contender, and deletes the nodes that exist.
    fn seek_and_leave(&mut self, cx: &mut Context<'_>) {
        self.stop_all_waiting(cx);
        self.phase = Phase::Leaving(Leaving::Searching);
        self.find_nodes(cx);
    }

    fn check_sequences(&mut self, cx: &mut Context<'_>) -> Option<Output> {
        for slot in &self.slots {
            for node in slot.nodes.iter().filter(|_| slot.request.nested_in.is_none()) {
                let number = name::sequence_number(node.name(), &slot.name_prefix);
                if number.is_some_and(|number| (0..SEQUENCE_LIMIT).contains(&number)) {
                    continue;
                }
                let number = number.map_or_else(|| node.name().to_owned(), |number| number.to_string());
                let message = format!(
                    "{}: sequence number {number} is too near the end at 2147483647; let the directory fall empty and be \
                     removed, so that it starts again",
                    slot.request.directory
                );
                self.start_leaving(cx);
                return Some(Output::Failed(Error::new(Status::Exhausted, message)));
            }
        }
        None
    }

    fn on_list(&mut self, cx: &mut Context<'_>, at: usize, result: Result<Response, Failure>) -> Option<Output> {
        self.slots.get_mut(at)?.is_list_pending = false;
        let (children, next) = match result {
            Ok(Response::Children2 { children, stat }) => (children, children_created(stat)),
            Err(Failure::Code(Code::NO_NODE)) => {
                if matches!(self.join_step(), Some(JoinStep::Checking { .. })) {
                    self.set_join_step(JoinStep::Checking { is_directory_missing: true });
                }
                (Vec::new(), 0)
            }
            // If the contender still needs this list, it sends the request again on the next connection.
            Err(Failure::ConnectionLost) => {
                if matches!(self.join_step(), Some(JoinStep::DirectoryMissing { .. } | JoinStep::Checking { .. })) {
                    self.set_join_step(JoinStep::NotBegun);
                }
                return None;
            }
            Err(failure) => return self.on_list_refused(cx, at, failure),
            Ok(other) => return self.on_unexpected_response(cx, &other, "getChildren2"),
        };
        match &self.phase {
            Phase::Joining(Joining { step, .. }) => match step {
                JoinStep::Checking { .. } => self.on_check_list(cx, at, &children, next),
                JoinStep::DirectoryMissing { .. } if !self.must_wait_for_directories() => self.on_directory_missing(cx),
                JoinStep::CreateUnknown => self.match_found_nodes(cx, at, children, false),
                JoinStep::NotBegun
                | JoinStep::Blocked { .. }
                | JoinStep::Creating
                | JoinStep::DirectoryMissing { .. } => None,
            },
            Phase::Queued(_) => self.rank(cx, at, &children),
            Phase::Leaving(Leaving::Searching) => self.match_found_nodes(cx, at, children, true),
            Phase::Acquired | Phase::Leaving(_) | Phase::Gone => None,
        }
    }

    fn is_any_list_pending(&self) -> bool {
        self.slots.iter().any(|slot| slot.is_list_pending)
    }

    /// Returns whether the contender must wait before it creates missing directories: for a list that is in flight, or
    /// because a server has just refused a request.
    fn must_wait_for_directories(&self) -> bool {
        self.is_any_list_pending() || self.retry.state != RetryState::Idle
    }

    fn on_list_refused(&mut self, cx: &mut Context<'_>, at: usize, failure: Failure) -> Option<Output> {
        let error = self.read_error(failure, "listing", self.directory(at));
        match &self.phase {
            Phase::Joining(Joining { step, .. }) => match step {
                JoinStep::Checking { .. } => self.fail(cx, error),
                JoinStep::DirectoryMissing { .. } if !self.is_any_list_pending() => self.fail(cx, error),
                JoinStep::CreateUnknown => {
                    self.phase = Phase::Leaving(Leaving::Searching);
                    self.schedule_retry(cx);
                    Some(Output::Failed(error))
                }
                JoinStep::NotBegun
                | JoinStep::Blocked { .. }
                | JoinStep::Creating
                | JoinStep::DirectoryMissing { .. } => None,
            },
            Phase::Queued(_) => {
                self.start_leaving(cx);
                Some(Output::Failed(error))
            }
            Phase::Leaving(Leaving::Searching) => {
                self.schedule_retry(cx);
                None
            }
            Phase::Acquired | Phase::Leaving(_) | Phase::Gone => None,
        }
    }

    /// Creates the missing directories and joins again. The contender fails if the chroot is missing, or if the server
    /// has refused to create a directory.
    pub(super) fn on_directory_missing(&mut self, cx: &mut Context<'_>) -> Option<Output> {
        let Phase::Joining(Joining { step: JoinStep::DirectoryMissing { at }, directory_creation }) = &self.phase
        else {
            return None;
        };
        match directory_creation.missing_directory_error(cx, *at) {
            Some(error) => self.fail(cx, error),
            None => {
                self.join_with_directories(cx);
                None
            }
        }
    }

    /// Searches for the contender's nodes after the reply to the create request was lost. The current server may lag
    /// behind the server that received the create request. The contender therefore first sends a transaction, which
    /// makes the current server catch up.
    pub(super) fn find_nodes(&mut self, cx: &mut Context<'_>) {
        cx.session.request_proof(cx.now);
        for at in 0..self.slots.len() {
            self.list(cx, at);
        }
    }

    /// Searches a list for the contender's nodes. All nodes of the contender were created in one transaction. If only
    /// some of these nodes exist, the missing nodes were deleted.
    fn match_found_nodes(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        children: Vec<String>,
        is_leaving: bool,
    ) -> Option<Output> {
        let QueueSlot { request, name_prefix, nodes, .. } = self.slots.get_mut(at)?;
        let own = children.iter().filter(|name| name.starts_with(&**name_prefix));
        *nodes = own.map(|name| Node::new(format!("{}/{name}", request.directory), None)).collect();
        // If a server refused one of the lists, the contender requests all lists again. The missing list may contain a
        // node of the contender.
        if at + 1 < self.slots.len() || self.retry.state != RetryState::Idle {
            return None;
        }
        if self.nodes().next().is_none() {
            if is_leaving {
                return self.finish();
            }
            // The server has not created the nodes. The server has already processed all earlier requests of the
            // session, so the nodes cannot appear later.
            self.join(cx);
            return None;
        }
        self.session_id = cx.session.id();
        if is_leaving {
            self.delete_known_nodes(cx);
            return None;
        }
        self.start_queuing();
        if self.slots.iter().any(|slot| slot.nodes.len() < slot.request.node_count) {
            return self.on_own_node_removed(cx);
        }
        self.resume_waiting(cx);
        self.check_sequences(cx)
    }
}

/// Interprets the reply to the create request. Returns the paths and creation zxids of the nodes. If an operation
/// failed, returns the index of the operation and the error code. `zxid` is the zxid of the transaction. The function
/// needs this value, because the reply to a `multi` request does not contain the creation zxids.
fn parse_create_response(response: Response, zxid: i64) -> Result<Vec<(String, i64)>, (usize, Code)> {
    match response {
        Response::Create2 { path, stat } => Ok(vec![(path, stat.czxid)]),
        Response::Multi(results) => {
            // If one operation of a `multi` request fails, all its operations fail. Only the result of the failed
            // operation contains the cause. The results of the other operations say only that an operation has failed.
            let failure = results.iter().enumerate().find_map(|(operation, result)| match result {
                MultiResult::Err(code) if !matches!(*code, Code::OK | Code::RUNTIME_INCONSISTENCY) => {
                    Some((operation, *code))
                }
                _ => None,
            });
            let nodes = results.into_iter().map(|result| match result {
                MultiResult::Ok(Response::Create2 { path, .. } | Response::Path(path)) => Ok((path, zxid)),
                _ => Err(failure.unwrap_or((0, Code::RUNTIME_INCONSISTENCY))),
            });
            nodes.collect()
        }
        // Responses of other types contain no nodes.
        _ => Ok(Vec::new()),
    }
}

/// Returns whether the reply to a create request proves that the node does not exist. If the error code is a different
/// one, the server may have created the node nevertheless.
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
            | C::EPHEMERAL_ON_LOCAL_SESSION
            | C::SESSION_CLOSED_REQUIRE_SASL_AUTH
            | C::QUOTA_EXCEEDED
    )
}

/// Returns the place of a directory in these slots, or of one of its ancestors.
fn place_of(slots: &[QueueSlot], path: &str) -> Place {
    let is_lock_directory =
        |QueueSlot { request, .. }: &QueueSlot| path == &*request.lock_path || path == &*request.directory;
    if slots.iter().any(is_lock_directory) { Place::LockDirectory } else { Place::Parent }
}

fn creates(slot: &QueueSlot, acls: &CreateAcls) -> Vec<Request> {
    let request = &slot.request;
    let mode = match request.nested_in {
        Some(_) => CreateMode::Ephemeral,
        None => CreateMode::EphemeralSequential,
    };
    let path = [&*request.directory, "/", &slot.name_prefix].concat();
    let (data, acl) = (Some(request.data.clone()), acls.entries(Place::Contender));
    let create = Request::Create2 { path, data, acl, mode };
    vec![create; request.node_count]
}

fn list(directory: &str) -> Request {
    Request::GetChildren2 { path: directory.to_owned(), watch: false }
}
