//! Makes a contender wait. The contender finds its positions in the queues and watches its predecessors. When no node
//! ahead excludes the contender in any directory, it acquires its locks.
//!
//! A contender watches its own nodes and its predecessors by `getData`. Unlike `exists`, this request sets no watch on
//! a missing node.

use std::time::Duration;

use zklock_proto::{Code, EventKind, Request, Response};

use super::{
    Contender, JoinStep, Joining, Leaving, Node, NodeWatch, Output, Phase, Position, Predecessor, PredecessorInfo,
    QueueRequest, QueueSlot, Queued, REVOKE, Removal, RetryState, name_of,
};
use crate::error::{Error, Status};
use crate::mutant::Mutant;
use crate::recipe::directory_cache::Lookup;
use crate::recipe::name::{Mode, client_prefix};
use crate::recipe::rank::{Rank, are_leases_available, rank};
use crate::recipe::{Context, NodeIndex, RequestKind};
use crate::session::Failure;

impl Contender {
    /// Continues to wait. The contender determines unknown positions and sets missing watches. If the contender has
    /// found its nodes by their UUID, it first reads the nodes. It does not know their creation zxid and their owner
    /// yet (rule 1).
    pub(super) fn resume_waiting(&mut self, cx: &mut Context<'_>) {
        if self.nodes().any(|node| node.czxid.is_none()) {
            return self.watch_own(cx, |node| node.czxid.is_none());
        }
        // A server replies to requests in their order. If another client has deleted the node of this contender, the
        // contender therefore notices this before it receives the last list and acquires the locks.
        if !Mutant::ListFirst.is_active() {
            self.set_missing_watches(cx);
        }
        for at in 0..self.slots.len() {
            if self.queued_mut(at).is_some_and(|(_, queued)| queued.position == Position::Unknown) {
                self.list(cx, at);
            }
        }
        if Mutant::ListFirst.is_active() {
            self.set_missing_watches(cx);
        }
    }

    /// Determines the ranks of the nodes from directory caches. If a directory has no cache and no list request is in
    /// flight, the contender lists the directory. While a cache is loading, the contender waits for the cache.
    pub(super) fn update_positions(&mut self, cx: &mut Context<'_>) -> Option<Output> {
        (0..self.slots.len()).find_map(|at| match self.queued_mut(at)? {
            (QueueSlot { is_list_pending: false, .. }, Queued { position: Position::Unknown, .. }) => {
                self.update_position(cx, at)
            }
            _ => None,
        })
    }

    /// Finds the position in one directory from a directory cache or from a list.
    fn update_position(&mut self, cx: &mut Context<'_>, at: usize) -> Option<Output> {
        let (slot, Queued { position, ties_behind, .. }) = self.queued_mut(at)?;
        *position = Position::Unknown;
        let own_sequence = slot.sequence_of(slot.nodes.first()?);
        let QueueSlot { request, nodes, cache, .. } = slot;
        let own = nodes.first()?.name();
        let view = match (*cache, &request.nested_in) {
            (None, _) => Lookup::NoCache,
            (Some(cache), None) => cx
                .caches
                .rank(cx.now, cx.session, cache, own, own_sequence, |index| index.rank(own, request.mode, ties_behind)),
            (Some(cache), Some(nested_in)) => {
                cx.caches.rank(cx.now, cx.session, cache, nested_in, None, |_| Rank::First)
            }
        };
        match view {
            Lookup::Ranked(rank) => {
                let place = position_of(rank, &request.directory);
                self.set_position(cx, at, place)
            }
            Lookup::Loading => None,
            Lookup::NoCache => {
                // The cache may have ended just now, before the contender receives the event that reports the end. When
                // this event arrives, the contender no longer uses the cache and ignores the event. The contender must
                // therefore begin to watch its own node now.
                match Mutant::TrustEndedCache.is_active() {
                    true => *cache = None,
                    false => self.detach_cache(at, true),
                }
                self.list(cx, at);
                None
            }
        }
    }

    /// Finds the contender's position in one directory from a list.
    pub(super) fn rank(&mut self, cx: &mut Context<'_>, at: usize, children: &[String]) -> Option<Output> {
        let (QueueSlot { request, name_prefix, nodes, .. }, Queued { position, ties_behind, .. }) =
            self.queued_mut(at)?;
        if *position != Position::Unknown {
            return None;
        }
        // The prefix is unique to this contender, so the number of names with this prefix is the number of its
        // remaining nodes.
        if children.iter().filter(|name| name.starts_with(&**name_prefix)).count() < nodes.len() {
            return self.on_own_node_removed(cx);
        }
        let place = match (&request.nested_in, request.mode) {
            (Some(nested_in), _) if children.contains(nested_in) || Mutant::NestBlindly.is_active() => {
                Ok(Position::First)
            }
            // The owner's write node no longer exists, so other contenders may acquire the lock.
            (Some(_), _) => return self.on_own_node_removed(cx),
            (None, Mode::Lease) if are_leases_available(children.len(), request.max_leases) => Ok(Position::First),
            (None, Mode::Lease)
                if Mutant::CountOthersOnly.is_active()
                    && are_leases_available(children.len() - nodes.len(), request.max_leases) =>
            {
                Ok(Position::First)
            }
            (None, Mode::Lease) => Ok(Position::TooFewLeases { taken: children.len() }),
            (None, mode) => position_of(
                rank(children, nodes.first()?.name(), mode, request.with_kazoo, ties_behind),
                &request.directory,
            ),
        };
        self.report_usage(cx, at, place.as_ref().ok(), children.len());
        self.set_position(cx, at, place)
    }

    /// Records whether the list contained only the contender's own node. The client uses this information when a
    /// contender joins the directory next time.
    fn report_usage(&mut self, cx: &mut Context<'_>, at: usize, position: Option<&Position>, count: usize) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        match position {
            Some(Position::First) if slot.is_use_recorded && slot.cache.is_none() => {
                let number = slot.nodes.first().and_then(|node| slot.sequence_of(node));
                let directory = &slot.request.directory;
                slot.cache = cx.caches.record_first(cx.now, cx.session, directory, count, number);
            }
            Some(Position::Behind(_)) => cx.caches.record_contended(&slot.request.directory),
            _ => {}
        }
    }

    fn set_position(&mut self, cx: &mut Context<'_>, at: usize, position: Result<Position, Error>) -> Option<Output> {
        let position = match position {
            Ok(position) => position,
            Err(error) => {
                self.start_leaving(cx);
                return Some(Output::Failed(error));
            }
        };
        let (is_first, is_crowded) = (position == Position::First, matches!(position, Position::TooFewLeases { .. }));
        self.queued_mut(at)?.1.position = position;
        self.has_waited |= !is_first;
        if self.try_once && !is_first {
            return Some(Output::WouldBlock);
        }
        if is_first {
            return self.on_first(cx);
        }
        self.set_missing_watches(cx);
        is_crowded.then_some(Output::TooFewLeases)
    }

    /// Sets missing watches. The contender watches its own nodes first. If these nodes exist, the contender can rely on
    /// the later replies.
    fn set_missing_watches(&mut self, cx: &mut Context<'_>) {
        if Mutant::IgnoreOwnNode.is_active() {
            self.nodes_mut().for_each(|node| node.watch = NodeWatch::Set);
        }
        self.subscribe_to_own_nodes(cx);
        // A contender for leases sees its own nodes in the list that it watches. Only a contender that detects
        // revocation requests needs a watch on each node.
        if self.is_revocable || self.slots.iter().any(|slot| slot.request.mode != Mode::Lease) {
            self.watch_unwatched(cx);
        }
        for at in 0..self.slots.len() {
            self.watch_predecessor(cx, at);
        }
    }

    fn watch_predecessor(&mut self, cx: &mut Context<'_>, at: usize) {
        let Some((QueueSlot { name_prefix, cache, .. }, queued)) = self.queued_mut(at) else { return };
        let Position::Behind(predecessor) = &mut queued.position else { return };
        if predecessor.watch != NodeWatch::Unset {
            return;
        }
        let name = name_of(&predecessor.path);
        // The creation zxids decide a tie, but the directory cache does not contain them.
        if let Some(cache) = *cache
            && !predecessor.is_tie
            && cx.caches.subscribe(cache, name, cx.machine_id)
        {
            predecessor.is_own_session = name.starts_with(client_prefix(name_prefix));
            predecessor.watch = NodeWatch::Cached;
            cx.caches.schedule_predecessor_read(cx.now, cx.machine_id);
            return;
        }
        predecessor.watch = NodeWatch::Requested;
        cx.watch_data(RequestKind::WatchData(at), &predecessor.path);
    }

    /// Subscribes to the contender's own nodes in the directory cache instead of watching them. A contender that must
    /// read revocation requests still sets watches.
    fn subscribe_to_own_nodes(&mut self, cx: &mut Context<'_>) {
        for slot in self.slots.iter_mut().filter(|_| !self.is_revocable) {
            let Some(cache) = slot.cache else { continue };
            for node in slot.nodes.iter_mut().filter(|node| node.watch == NodeWatch::Unset && node.czxid.is_some()) {
                if cx.caches.subscribe(cache, node.name(), cx.machine_id) {
                    node.watch = NodeWatch::Cached;
                }
            }
        }
    }

    pub(super) fn on_own_node_read(
        &mut self,
        cx: &mut Context<'_>,
        index: NodeIndex,
        result: Result<Response, Failure>,
    ) -> Option<Output> {
        let (is_leaving, is_acquired) = (self.is_leaving(), self.phase == Phase::Acquired);
        let node = self.node_mut(index)?;
        node.watch = if result.is_ok() { NodeWatch::Set } else { NodeWatch::Unset };
        if is_leaving {
            return None;
        }
        let (data, stat) = match result {
            Ok(Response::Data { data, stat }) => (data, stat),
            Ok(other) => return self.on_unexpected_response(cx, &other, "getData"),
            Err(Failure::ConnectionLost) => return None,
            Err(Failure::Code(Code::NO_NODE)) => return self.on_own_node_removed(cx),
            // The node exists, but the client may not read it. A holder can accept this state, but a waiter cannot.
            Err(Failure::Code(Code::NO_AUTH)) if is_acquired => return self.on_node_verified(index),
            // The contender reads the node again at the next verification.
            Err(_) if is_acquired => return None,
            Err(failure) => {
                let path = node.path.clone();
                self.start_leaving(cx);
                return Some(Output::Failed(self.read_error(failure, "reading the client's own node in", &path)));
            }
        };
        if stat.ephemeral_owner != cx.session.id() && !Mutant::AdoptDeadNode.is_active() {
            // Rule 1: the node has the right UUID, but belongs to another session.
            self.start_leaving(cx);
            return Some(Output::Removed(Removal::SessionEnded));
        }
        let was_found = node.czxid.replace(stat.czxid).is_none();
        let is_new = node.revocation_version != Some(stat.version) || Mutant::RepeatRevocationReports.is_active();
        // The command `zklock` adds the data that the node had before.
        if data.as_deref().is_some_and(|data| data.starts_with(REVOKE)) && is_new && self.is_revocable {
            let node = self.node_mut(index)?;
            node.revocation_version = Some(stat.version);
            self.revocation = Some(node.path.clone());
        }
        if was_found && self.is_queued() && self.nodes().all(|node| node.czxid.is_some()) {
            self.resume_waiting(cx);
        }
        if is_acquired { self.on_node_verified(index) } else { None }
    }

    /// Records that a node is verified. When all nodes of the contender are verified, the method returns
    /// [`Output::NodesVerified`].
    fn on_node_verified(&mut self, index: NodeIndex) -> Option<Output> {
        self.node_mut(index)?.is_verified = true;
        self.nodes().all(|node| node.is_verified).then_some(Output::NodesVerified)
    }

    pub(super) fn on_predecessor_watched(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        result: Result<Response, Failure>,
    ) -> Option<Output> {
        if Mutant::GrantWhileLeaving.is_active()
            && matches!(self.phase, Phase::Leaving(Leaving::Deleting(_)))
            && matches!(result, Err(Failure::Code(Code::NO_NODE)))
        {
            return self.try_acquire(cx);
        }
        let (QueueSlot { nodes, .. }, Queued { position, ties_behind, .. }) = self.queued_mut(at)?;
        let Position::Behind(predecessor) = position else { return None };
        if predecessor.watch != NodeWatch::Requested {
            return None;
        }
        match result {
            Ok(Response::Data { data, stat }) => {
                predecessor.watch = NodeWatch::Set;
                let info = PredecessorInfo::new(stat.ephemeral_owner, data.unwrap_or_default());
                if let Some(error) = info.permanent_node_error(&predecessor.path) {
                    self.start_leaving(cx);
                    return Some(Output::Failed(error));
                }
                predecessor.info = Some(info);
                predecessor.is_own_session = stat.ephemeral_owner == cx.session.id();
                if predecessor.is_tie && nodes.first().and_then(|node| node.czxid).is_some_and(|own| own < stat.czxid) {
                    ties_behind.extend(predecessor.path.rsplit('/').next().map(str::to_owned));
                    cx.unwatch_data(&predecessor.path);
                    self.list(cx, at);
                }
            }
            Ok(other) => return self.on_unexpected_response(cx, &other, "getData"),
            Err(Failure::ConnectionLost) => predecessor.watch = NodeWatch::Unset,
            Err(Failure::Code(Code::NO_NODE)) if Mutant::WaitForNobody.is_active() => return None,
            Err(Failure::Code(Code::NO_NODE)) => return self.on_predecessor_gone(cx, at),
            Err(failure) => {
                let path = predecessor.path.clone();
                self.start_leaving(cx);
                return Some(Output::Failed(self.read_error(failure, "reading the node ahead in", &path)));
            }
        }
        None
    }

    /// Handles the end of a directory cache. `was_consistent` is false if the cache may have been wrong before its end.
    pub(super) fn on_cache_ended(&mut self, cx: &mut Context<'_>, was_consistent: bool) -> Option<Output> {
        for at in 0..self.slots.len() {
            if self.slots.get(at).and_then(|slot| slot.cache).is_some_and(|cache| !cx.caches.contains(cache)) {
                self.detach_cache(at, was_consistent);
            }
        }
        let output = self.update_positions(cx);
        if output.is_none() && cx.session.is_connected() {
            match self.phase {
                Phase::Queued(_) => self.set_missing_watches(cx),
                // A hold is watched for its whole life.
                Phase::Acquired => self.watch_unwatched(cx),
                _ => {}
            }
        }
        output
    }

    /// Reads predecessors whose owner is unknown, because the contender knows them only from a directory cache.
    pub(super) fn read_predecessors(&mut self, cx: &mut Context<'_>) -> Option<Output> {
        let Phase::Queued(queues) = &mut self.phase else { return None };
        for (at, queued) in queues.iter_mut().enumerate() {
            if let Position::Behind(Predecessor { path, watch: NodeWatch::Cached, info: None, .. }) = &queued.position
                && queued.pending_predecessor_read.is_none()
            {
                queued.pending_predecessor_read = Some(path.clone());
                cx.send(RequestKind::ReadPredecessor(at), &Request::GetData { path: path.clone(), watch: false });
            }
        }
        None
    }

    /// Handles the reply to a request that reads a predecessor to find out its owner. If the node does not exist or the
    /// client may not read it, the directory cache was wrong.
    pub(super) fn on_predecessor_read(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        result: Result<Response, Failure>,
    ) -> Option<Output> {
        if let Some(JoinStep::Blocked { .. }) = self.join_step() {
            return self.on_blocker_read(result);
        }
        let (QueueSlot { cache, .. }, Queued { position, pending_predecessor_read, .. }) = self.queued_mut(at)?;
        let read_path = pending_predecessor_read.take()?;
        let (Position::Behind(predecessor), Some(cache)) = (position, *cache) else { return None };
        if predecessor.path != read_path {
            // The contender has a different predecessor now.
            return None;
        }
        match result {
            Ok(Response::Data { data, stat }) => {
                let info = PredecessorInfo::new(stat.ephemeral_owner, data.unwrap_or_default());
                if let Some(error) = info.permanent_node_error(&predecessor.path) {
                    self.start_leaving(cx);
                    return Some(Output::Failed(error));
                }
                predecessor.info = Some(info);
            }
            Err(Failure::Code(_)) => {
                cx.caches.report_unreadable(cx.now, cx.session, cache, name_of(&predecessor.path));
            }
            _ => {}
        }
        None
    }

    /// Handles the reply to a request that reads the node because of which a single attempt cannot succeed.
    fn on_blocker_read(&mut self, result: Result<Response, Failure>) -> Option<Output> {
        let Phase::Joining(Joining { step: JoinStep::Blocked { position, .. }, .. }) = &mut self.phase else {
            return None;
        };
        if let (Position::Behind(blocker), Ok(Response::Data { data, stat })) = (position, result) {
            let info = PredecessorInfo::new(stat.ephemeral_owner, data.unwrap_or_default());
            if let Some(error) = info.permanent_node_error(&blocker.path) {
                self.phase = Phase::Gone;
                return Some(Output::Failed(error));
            }
            blocker.info = Some(info);
        }
        // Even if the node has just left, it was ahead when this attempt looked at the queue.
        Some(Output::WouldBlock)
    }

    /// Handles the deletion of a predecessor by this client. The directory cache contains the next predecessor.
    pub(super) fn on_predecessor_deleted_by_us(&mut self, cx: &mut Context<'_>, path: &str) -> Option<Output> {
        let Phase::Queued(queues) = &self.phase else { return None };
        let is_behind =
            |queued: &Queued| matches!(&queued.position, Position::Behind(predecessor) if predecessor.path == path);
        let at = queues.iter().position(is_behind)?;
        self.update_position(cx, at)
    }

    pub(super) fn on_watch_fired(&mut self, cx: &mut Context<'_>, kind: EventKind, path: &str) -> Option<Output> {
        if let Some(index) =
            self.node_indices().into_iter().find(|&index| self.node_mut(index).is_some_and(|own| own.path == path))
        {
            self.node_mut(index)?.watch = NodeWatch::Unset;
            if kind == EventKind::Deleted {
                return self.on_own_node_removed(cx);
            }
            if self.is_queued() || self.is_acquired() {
                self.watch_own(cx, |node| node.path == path);
            }
            return None;
        }
        let is_joining = self.join_step() == Some(&JoinStep::Creating) && !Mutant::IgnoreEventsWhileJoining.is_active();
        for at in 0..self.slots.len() {
            let QueueRequest { mode, directory, .. } = &self.slots.get(at)?.request;
            let is_lease_directory = *mode == Mode::Lease && **directory == *path;
            match self.queued_mut(at).map(|(_, queued)| &mut queued.position) {
                Some(Position::Behind(predecessor)) if predecessor.path == path => {
                    if kind == EventKind::Deleted {
                        return self.on_predecessor_gone(cx, at);
                    }
                    predecessor.watch = NodeWatch::Unset;
                    self.set_missing_watches(cx);
                }
                // The event ends the watch on the directory, so the contender must list the directory and set the watch
                // again.
                Some(Position::TooFewLeases { .. } | Position::Unknown) if is_lease_directory => self.list(cx, at),
                // The event may come from a watch of an earlier contender.
                None if is_joining && is_lease_directory => self.list(cx, at),
                _ => {}
            }
        }
        None
    }

    /// Handles the deletion of the predecessor.
    ///
    /// If the predecessor was the only node ahead, the contender is now first. The contender's own nodes still exist,
    /// because the watches on these nodes have not reported a deletion. New nodes can join the queue only behind the
    /// contender.
    ///
    /// The contender needs a list if several nodes were ahead. The contender also needs a list if the predecessor
    /// belongs to the same session. When a session ends, the server deletes the nodes of the session one after the
    /// other. A writer always needs a list, because the predecessor's owner may have replaced the predecessor by a read
    /// node. If the contender uses a directory cache, it needs a list only if the predecessor belongs to the same
    /// session.
    fn on_predecessor_gone(&mut self, cx: &mut Context<'_>, at: usize) -> Option<Output> {
        let is_watched = self.nodes().all(|node| node.watch == NodeWatch::Set);
        let (QueueSlot { request, .. }, Queued { position, .. }) = self.queued_mut(at)?;
        if matches!(position, Position::Behind(Predecessor { watch: NodeWatch::Cached, is_own_session: false, .. })) {
            return self.update_position(cx, at);
        }
        let is_plain = matches!(
            position,
            Position::Behind(Predecessor {
                ahead_count: 1,
                is_tie: false,
                is_own_session: false,
                may_have_missed_events: false,
                ..
            })
        );
        let may_be_replaced = request.mode == Mode::Write && !Mutant::OverlookDowngrade.is_active();
        if (is_plain && is_watched && !may_be_replaced) || Mutant::GrantOutOfTurn.is_active() {
            *position = Position::First;
            return self.on_first(cx);
        }
        self.stop_waiting(cx, at);
        self.list(cx, at);
        None
    }

    /// Handles a node that has become the first in its directory. The contender acquires its locks when it is first in
    /// all its directories.
    fn on_first(&mut self, cx: &mut Context<'_>) -> Option<Output> {
        let Phase::Queued(queues) = &self.phase else { return None };
        if queues.iter().all(|queued| queued.position == Position::First) {
            return self.try_acquire(cx);
        }
        // While the contender waits in another directory, it must watch its node in this directory. The contender sets
        // its watches after it has received the last list.
        if queues.iter().all(|queued| queued.position != Position::Unknown) {
            self.set_missing_watches(cx);
        }
        None
    }

    /// Acquires the locks, because no node ahead excludes the contender. Rule 1: the nodes must belong to the current
    /// session, and the session lease must be valid.
    fn try_acquire(&mut self, cx: &mut Context<'_>) -> Option<Output> {
        if self.session_id != cx.session.id() && !Mutant::AdoptDeadNode.is_active() {
            self.start_leaving(cx);
            return Some(Output::Removed(Removal::SessionEnded));
        }
        if !cx.session.is_lease_valid(cx.now) && !Mutant::GrantOnDeadLease.is_active() {
            // The session lease has ended, because the reply was late or the process was suspended. The contender
            // extends the lease and determines its ranks again.
            self.stop_all_waiting(cx);
            if let Phase::Queued(queues) = &mut self.phase {
                queues.iter_mut().for_each(|queued| queued.position = Position::Unknown);
            }
            self.verify_session_and_list(cx);
            return None;
        }
        self.stop_all_waiting(cx);
        self.phase = Phase::Acquired;
        // If a directory cache contains the nodes, it reports their deletion to the holder from the start at no
        // additional cost.
        self.subscribe_to_own_nodes(cx);
        self.slots.iter_mut().for_each(QueueSlot::free_memory);
        Some(Output::Acquired)
    }

    /// Requests a proof of the session, and then determines the ranks again. If a proof that the client requests now
    /// would not make the lease valid, the contender waits before it requests the proof.
    pub(super) fn verify_session_and_list(&mut self, cx: &mut Context<'_>) {
        cx.session.request_proof(cx.now);
        match cx.session.proof_delay(cx.now) {
            Duration::ZERO => self.resume_waiting(cx),
            wait if self.retry.state == RetryState::Idle => self.retry.state = RetryState::Requested(wait),
            _ => {}
        }
    }

    pub(super) fn verify_nodes(&mut self, cx: &mut Context<'_>) -> Option<Output> {
        if self.phase == Phase::Acquired {
            self.nodes_mut().for_each(|node| node.is_verified = false);
            self.watch_own(cx, |_| true);
        }
        None
    }

    pub(super) fn on_max_leases(&mut self, cx: &mut Context<'_>, max: i32) -> Option<Output> {
        for at in 0..self.slots.len() {
            let slot = self.slots.get_mut(at)?;
            slot.request.max_leases = max;
            if let Some((_, Queued { position: Position::TooFewLeases { .. }, .. })) = self.queued_mut(at)
                && cx.session.is_connected()
            {
                self.list(cx, at);
            }
        }
        None
    }

    pub(super) fn watch_for_revocation(&mut self, cx: &mut Context<'_>) {
        if !self.is_revocable || !(self.is_queued() || self.is_acquired()) {
            return;
        }
        match cx.session.is_connected() {
            true => self.watch_own(cx, |_| true),
            // Another client may have requested a revocation while the client had no connection, so the contender reads
            // its nodes after the reconnect.
            false => self.nodes_mut().for_each(|node| node.watch = NodeWatch::Unset),
        }
    }

    /// Sets a watch on each own node that has none.
    pub(super) fn watch_unwatched(&mut self, cx: &mut Context<'_>) {
        self.watch_own(cx, |node| node.watch == NodeWatch::Unset);
    }

    fn watch_own(&mut self, cx: &mut Context<'_>, which: impl Fn(&Node) -> bool) {
        for index in self.node_indices() {
            if let Some(node) = self.node_mut(index).filter(|node| which(node)) {
                node.watch = NodeWatch::Requested;
                cx.watch_data(RequestKind::WatchOwn(index), &node.path);
            }
        }
    }

    fn stop_waiting(&self, cx: &mut Context<'_>, at: usize) {
        let Some(QueueSlot { request, cache, .. }) = self.slots.get(at) else { return };
        if let Phase::Queued(queues) = &self.phase
            && let Some(Queued { position: Position::Behind(predecessor), .. }) = queues.get(at)
        {
            match (predecessor.watch, cache) {
                (NodeWatch::Cached, Some(cache)) => {
                    cx.caches.unsubscribe(*cache, name_of(&predecessor.path), cx.machine_id);
                }
                _ => cx.unwatch_data(&predecessor.path),
            }
        }
        if request.mode == Mode::Lease {
            cx.unwatch_children(&request.directory);
        }
    }

    pub(super) fn stop_all_waiting(&self, cx: &mut Context<'_>) {
        (0..self.slots.len()).for_each(|at| self.stop_waiting(cx, at));
    }
}

/// Converts a rank to a position in this directory. The function returns an error if the node ahead is foreign.
pub(super) fn position_of(rank: Rank, directory: &str) -> Result<Position, Error> {
    match rank {
        Rank::First => Ok(Position::First),
        Rank::Behind { predecessor, ahead_count, is_tie } => Ok(Position::Behind(Predecessor {
            path: format!("{directory}/{predecessor}"),
            ahead_count,
            watch: NodeWatch::Unset,
            is_tie,
            is_own_session: false,
            may_have_missed_events: false,
            info: None,
        })),
        Rank::Foreign { name, family } => {
            let reason = format!("{name} belongs to {family}, with which this lock cannot share a path");
            Err(Error::new(Status::Foreign, format!("{directory}: {reason}")))
        }
    }
}
