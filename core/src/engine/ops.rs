//! Starts and ends operations, and decides with which status an operation fails when its deadline has expired.
//!
//! At its deadline, an acquire fails with CONNECTION if the client has no connection. With a connection, the acquire
//! fails with TIMEOUT if the client knows what the acquire waits for. If the client does not know this yet, the acquire
//! fails with CONNECTION if the server has owed an answer for at least `MAX_SERVER_SILENCE`. If the server has been
//! silent for a shorter time, the acquire fails with TIMEOUT, because the server may only be slow.

use std::sync::Arc;
use std::time::Duration;

use zklock_proto::Request;

use super::attempt::Reentry;
use super::holds::lost_error;
use super::interface::{AcquireLimit, Answer, Event, HoldToRelease, LockId, LockState, Notification, OpId, Recipe};
use super::machines::StateMachine;
use super::owner::Owner;
use super::state::{Acquire, Attempt, Engine, HoldCondition, NodeStatus, Op, OpKind};
use super::timers::Timer;
use crate::error::{Error, Result, Status};
use crate::mutant::Mutant;
use crate::recipe::{
    FenceCheck, Input, Mode, NodeRequest, ParticipantQuery, QueryScope, QueueNode, RequestKind, RetriedRequest, Tag,
};
use crate::session::ClientState;
use crate::time::{Time, in_words};

/// An acquire that makes only one attempt waits for the server at most this long.
pub const TRY_ONCE_LIMIT: Duration = Duration::from_secs(1);
/// If a server has owed an answer for at least this time when a deadline expires, the operation fails with CONNECTION
/// instead of TIMEOUT.
pub(super) const MAX_SERVER_SILENCE: Duration = Duration::from_millis(100);
/// When the program closes a client, the client waits at most this long for a server that does not answer.
pub const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// How an owner may acquire a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Admission {
    /// The owner holds the lock, and may re-enter it.
    Reenter,
    /// The owner must join the queue.
    Join,
}

impl Engine {
    /// Starts an operation that ends when the client has a session and the chroot exists. The operation fails if the
    /// chroot is missing, the deadline expires, the server refuses the credentials, or the client cannot use its own
    /// files or is closed.
    pub fn connect(&mut self, now: Time, deadline: Time) -> OpId {
        self.handle(now, |engine| {
            let op = engine.start_op(now, OpKind::Connect { machine_id: None }, Some(deadline));
            if engine.is_closed() {
                engine.answer_op(now, op, Err(Status::Closed.into()));
            }
            if engine.session.is_connected() {
                engine.find_chroot(now, op);
            }
            op
        })
    }

    /// Returns the error for an attempt to connect that the program cancels. The message says why the client is not
    /// connected yet.
    pub fn canceled_connect_error(&self, now: Time) -> Error {
        let connecting = self.ops.values().find(|op| matches!(op.kind, OpKind::Connect { .. }));
        let canceled = Status::Canceled.text();
        connecting.map_or_else(
            || Status::Canceled.into(),
            |op| {
                let reason = self.connection_error(now, op.started);
                Error::new(Status::Canceled, format!("{canceled}: {}", reason.message()))
            },
        )
    }

    /// Checks the chroot for an operation that has waited for the connection. The operation ends when the client has
    /// found the chroot.
    pub(super) fn find_chroot(&mut self, now: Time, op: OpId) {
        if self.chroot.path.is_empty() {
            return self.answer_op(now, op, Ok(Answer::Done));
        }
        let id = self.next_machine_id();
        let Some(Op { kind: OpKind::Connect { machine_id }, .. }) = self.ops.get_mut(&op) else { return };
        *machine_id = Some(id);
        let request = NodeRequest::FindChroot { path: self.chroot.path.clone() };
        self.start_machine(now, id, StateMachine::RetriedRequest(Box::new(RetriedRequest::new(request)), op));
    }

    /// Ends all operations with CLOSED, and ends all holds. After this call, the engine grants no lock. The session and
    /// its nodes remain until [`close`](Self::close). The program can thus react to the end of its holds before another
    /// client acquires the locks.
    pub fn begin_close(&mut self, now: Time) {
        if std::mem::replace(&mut self.is_closing, true) {
            return;
        }
        let pending: Vec<OpId> = self.ops.keys().copied().collect();
        for op in pending {
            let error = self.status_error(op, Status::Closed);
            self.answer_op(now, op, Err(error));
        }
        for lock in self.held_locks() {
            self.close_holds(now, lock);
        }
        self.cohorts.clear();
    }

    /// Closes the session. The caller must have called [`begin_close`](Self::begin_close) before. The operation ends
    /// when the server has confirmed the end of the session, or after a short time limit that ends at `deadline` or
    /// earlier.
    pub fn close(&mut self, now: Time, deadline: Time) -> OpId {
        self.handle(now, |engine| {
            engine.begin_close(now);
            let op = engine.start_op(now, OpKind::Close, None);
            engine.delete_session_nodes(now);
            engine.session.close(now, deadline.min(now + engine.session.timeout() / 3));
            op
        })
    }

    /// Returns whether the engine has stopped granting locks.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closing || self.session.state() == ClientState::Closed
    }

    /// Deletes the nodes of a large session before the client closes the session. As a result, the transaction that
    /// ends the session is short.
    ///
    /// A server performs the requests of a session in order. The engine therefore sends the delete requests and the
    /// close request in one write, without waiting for replies. The client does not send a delete request that is too
    /// large. At the end of the session, the server deletes all nodes that still exist.
    fn delete_session_nodes(&mut self, now: Time) {
        if !self.machines.path_bytes.is_large() || !self.session.is_connected() {
            return;
        }
        let contenders = self.machines.iter().filter_map(|(_, machine)| match machine {
            StateMachine::Contender(contender, _) => Some(contender),
            _ => None,
        });
        let (mut batches, mut bytes) = (Vec::new(), usize::MAX);
        for node in contenders.flat_map(|contender| contender.present_nodes()) {
            if bytes > self.machines.path_bytes.delete_batch_bytes() {
                batches.push(Vec::new());
                bytes = 0;
            }
            bytes += node.len();
            if let Some(batch) = batches.last_mut() {
                batch.push(Request::Delete { path: node.to_owned(), version: -1 });
            }
        }
        for batch in batches {
            self.session.submit(now, &Request::Multi(batch), Tag { recipient: None, kind: RequestKind::NodeRequest });
        }
    }

    /// Marks all holds as lost and the client as closed. The shell calls this method after a failure, when it will pass
    /// no further input to the session.
    pub fn fail_client(&mut self, now: Time) {
        self.on_session_ended(now, None);
        let previous = std::mem::replace(&mut self.reported_state, ClientState::Closed);
        if previous != ClientState::Closed {
            self.notifications.push_back(Notification::Event(Event::Client { state: ClientState::Closed, previous }));
        }
    }

    /// Starts an operation that acquires or re-enters a lock.
    pub fn acquire(&mut self, now: Time, lock: LockId, owner: Owner, acquire_limit: AcquireLimit) -> OpId {
        self.handle(now, |engine| {
            let admission = engine.check_acquire(now, lock, owner);
            let max_passes = engine.locks.get(&lock).map_or(0, |lock| lock.max_passes);
            let acquire = Acquire::new(lock, owner, 1, max_passes, acquire_limit);
            let op = engine.start_op(now, OpKind::Acquire(acquire), acquire_limit.deadline());
            match admission {
                Ok(Admission::Reenter) => engine.reenter(now, op),
                Ok(Admission::Join) => engine.join(now, op),
                Err(error) => engine.answer_op(now, op, Err(error)),
            }
            op
        })
    }

    /// Starts an operation that ends with LOST when the hold of `owner` is lost, and with NOT_OWNER when the hold is
    /// released. For a multi-lock, the first loss or release of a member lock ends the operation.
    pub fn wait_until_ended(&mut self, now: Time, lock: LockId, owner: Owner) -> OpId {
        self.start_hold_wait(now, lock, owner, HoldCondition::Ended, None)
    }

    /// Starts an operation that ends when the session lease for the hold of `owner` has ended. The operation ends even
    /// if the lease becomes valid again a moment later. The operation also ends when the hold is lost or released, as
    /// in [`wait_until_ended`](Self::wait_until_ended). Because the operation does not wait for the lock,
    /// [`cancel_waits`](Self::cancel_waits) does not end the operation.
    pub fn wait_until_unsafe(&mut self, now: Time, lock: LockId, owner: Owner) -> OpId {
        self.start_hold_wait(now, lock, owner, HoldCondition::Unsafe, None)
    }

    /// Starts an operation that waits until the hold of `owner` is safe. If the hold is lost or released, the operation
    /// fails with the same status as [`wait_until_ended`](Self::wait_until_ended). If the deadline expires, the
    /// operation fails with CONNECTION.
    pub fn wait_until_safe(&mut self, now: Time, lock: LockId, owner: Owner, acquire_limit: AcquireLimit) -> OpId {
        self.start_hold_wait(now, lock, owner, HoldCondition::Safe, acquire_limit.deadline())
    }

    fn start_hold_wait(
        &mut self,
        now: Time,
        lock: LockId,
        owner: Owner,
        until: HoldCondition,
        deadline: Option<Time>,
    ) -> OpId {
        self.handle(now, |engine| {
            let op = engine.start_op(now, OpKind::HoldWait { lock, owner, until }, deadline);
            engine.answer_ops_on_hold(now, lock, owner);
            op
        })
    }

    /// Starts an operation that acquires leases of a semaphore. The acquired leases belong to the returned owner.
    pub fn acquire_leases(
        &mut self,
        now: Time,
        lock: LockId,
        quantity: i32,
        acquire_limit: AcquireLimit,
    ) -> (OpId, Owner) {
        self.handle(now, |engine| {
            let refused = match engine.locks.get(&lock).map(|lock| (&lock.recipe, &lock.path)) {
                _ if engine.is_closed() => Some(Status::Closed.into()),
                None => Some(Status::Closed.into()),
                Some((Recipe::Semaphore(max), path)) if quantity > *max => Some(Error::invalid(format!(
                    "{path}: quantity is {quantity}, but the semaphore has only {max} leases"
                ))),
                Some((_, path)) if quantity < 1 => {
                    Some(Error::invalid(format!("{path}: quantity is {quantity}; expected 1 or more")))
                }
                Some(_) => None,
            };
            let op = engine.next_op_id();
            let owner = Owner::leases(op);
            match refused {
                // The metrics do not count a refused acquire, so the engine records no operation.
                Some(error) => engine.answers.push_back((op, Err(error))),
                None => {
                    let acquire = Acquire::new(lock, owner, quantity.unsigned_abs(), 0, acquire_limit);
                    engine.insert_op(now, op, OpKind::Acquire(acquire), acquire_limit.deadline());
                    engine.join(now, op);
                }
            }
            (op, owner)
        })
    }

    /// Cancels all operations that currently wait for this lock.
    pub fn cancel_waits(&mut self, now: Time, lock: LockId) {
        self.handle(now, |engine| engine.fail_waits(now, lock, Status::Canceled, false));
    }

    /// Fails all operations that wait for this lock with CLOSED. Holds remain.
    pub fn close_waits(&mut self, now: Time, lock: LockId) {
        self.handle(now, |engine| engine.fail_waits(now, lock, Status::Closed, false));
    }

    /// Cancels an operation that waits for a lock or for a change of a hold.
    pub fn cancel_op(&mut self, now: Time, op: OpId) {
        if self.ops.get(&op).is_some_and(|op| matches!(op.kind, OpKind::Acquire(_) | OpKind::HoldWait { .. })) {
            let error = self.status_error(op, Status::Canceled);
            self.handle(now, |engine| engine.fail_op(now, op, error));
        }
    }

    /// Cancels an operation whose result the program no longer needs. If the engine has already granted an acquire, but
    /// the caller has not processed the answer yet, the engine releases the holds that belong to this acquire alone.
    pub fn abandon_op(&mut self, now: Time, op: OpId) {
        if self.ops.contains_key(&op) {
            return self.cancel_op(now, op);
        }
        let mut owner = None;
        let mut holds = Vec::new();
        for (&id, lock) in &self.locks {
            for hold in lock.holds.iter().filter(|hold| hold.acquired_by == op && hold.hold_count == 1) {
                owner = Some(hold.owner);
                holds.push((id, HoldToRelease::Exact(hold.id())));
            }
        }
        if let Some(owner) = owner {
            self.release_holds(now, owner, &holds, false);
        }
    }

    /// Starts a query for the holders and waiters of a lock. If `both` is true, the result for a read lock or a write
    /// lock includes the participants of both locks.
    pub fn participants(&mut self, now: Time, lock: LockId, both: bool) -> OpId {
        let scopes: Vec<QueryScope> =
            self.members(lock).iter().filter_map(|&member| self.query_scope(member, both)).collect();
        let (chroot_len, is_known) = (self.chroot.path.len(), self.is_open(lock));
        let make_machine = |op| StateMachine::ParticipantQuery(Box::new(ParticipantQuery::new(scopes, chroot_len)), op);
        self.start_query(now, is_known, make_machine)
    }

    /// Starts a node request. The paths in `request` must not contain the chroot.
    pub fn start_node_request(&mut self, now: Time, request: NodeRequest) -> OpId {
        let deadline = now + self.session.timeout();
        self.start_node_request_until(now, request, Some(deadline))
    }

    /// Starts a request for the children of a node, which waits until they differ from the list with this zxid.
    pub fn await_children(&mut self, now: Time, path: &str, zxid: i64, deadline: Option<Time>) -> OpId {
        self.start_node_request_until(now, NodeRequest::AwaitChange { path: path.to_owned(), zxid }, deadline)
    }

    fn start_node_request_until(&mut self, now: Time, request: NodeRequest, deadline: Option<Time>) -> OpId {
        let request = request.with_chroot(&self.chroot.path);
        let make_machine = |op| StateMachine::RetriedRequest(Box::new(RetriedRequest::new(request)), op);
        self.start_query_until(now, true, deadline, make_machine)
    }

    /// Returns the lock nodes among the children of a directory, in the order of the queue.
    pub fn order_queue<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Vec<QueueNode> {
        QueueNode::order(names, self.with_kazoo)
    }

    /// Starts a check whether a fencing token belongs to a current holder on this path. The check includes the nodes of
    /// all recipes.
    pub fn fence_check(&mut self, now: Time, path: &str, token: i64) -> OpId {
        let check = FenceCheck::new(format!("{}{path}", self.chroot.path), token, self.with_kazoo);
        self.start_query(now, true, |op| StateMachine::FenceCheck(Box::new(check), op))
    }

    fn start_query(&mut self, now: Time, is_known: bool, make_machine: impl FnOnce(OpId) -> StateMachine) -> OpId {
        let deadline = now + self.session.timeout();
        self.start_query_until(now, is_known, Some(deadline), make_machine)
    }

    fn start_query_until(
        &mut self,
        now: Time,
        is_known: bool,
        deadline: Option<Time>,
        make_machine: impl FnOnce(OpId) -> StateMachine,
    ) -> OpId {
        self.handle(now, |engine| {
            let id = engine.next_machine_id();
            let op = engine.start_op(now, OpKind::Query { machine_id: id }, deadline);
            if !is_known || engine.is_closed() {
                engine.answer_op(now, op, Err(Status::Closed.into()));
                return op;
            }
            engine.start_machine(now, id, make_machine(op));
            op
        })
    }

    /// Ends an operation if its deadline has expired at the time `now`. If the operation has already ended or its
    /// deadline has not expired, the method does nothing.
    pub fn expire_op(&mut self, now: Time, op: OpId) {
        let Some(due) = self.ops.get(&op) else { return };
        if due.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        if Mutant::OversleepDeadline.is_active() && !self.session.is_connected() {
            self.timers.stop(Timer::Deadline(op));
            return;
        }
        let error = self.deadline_error(now, due);
        self.handle(now, |engine| engine.fail_op(now, op, error));
    }

    // Acquiring.

    /// Returns how `owner` may acquire the lock, or an error if the owner may not acquire it. The owner re-enters a
    /// multi-lock only if it holds all members.
    fn check_acquire(&self, now: Time, lock: LockId, owner: Owner) -> Result<Admission> {
        if self.is_closed() || !self.locks.contains_key(&lock) {
            return Err(Status::Closed.into());
        }
        let mut admission = Admission::Reenter;
        for member in self.members(lock) {
            if self.check_acquire_member(now, member, owner)? == Admission::Join {
                admission = Admission::Join;
            }
        }
        Ok(admission)
    }

    fn check_acquire_member(&self, now: Time, lock: LockId, owner: Owner) -> Result<Admission> {
        let Some(wanted) = self.locks.get(&lock) else { return Err(Status::Closed.into()) };
        let Recipe::Queue(mode) = wanted.recipe else {
            // The lock is not re-entrant. However, an owner that has a lost hold must release this hold before it can
            // acquire the lock again.
            return match self.hold(lock, owner).map(|hold| hold.node_status) {
                Some(NodeStatus::Lost(removal)) => Err(lost_error(&wanted.path, removal)),
                _ => Ok(Admission::Join),
            };
        };
        if let Some(hold) = self.hold(lock, owner) {
            return match hold.node_status {
                NodeStatus::Lost(removal) => Err(lost_error(&wanted.path, removal)),
                _ if hold.hold_count == u32::MAX => {
                    Err(Error::new(Status::Exhausted, "the hold count is 2^32-1, which is the maximum"))
                }
                _ => Ok(Admission::Reenter),
            };
        }
        for sibling in self.locks_in_same_directory(lock) {
            let Some(hold) = self.hold(sibling, owner) else { continue };
            let held = self.locks.get(&sibling).map(|lock| &lock.recipe);
            let nests = mode == Mode::Read && matches!(held, Some(Recipe::Queue(Mode::Read | Mode::Write)));
            if !nests && self.hold_state(now, hold) != LockState::Lost && !Mutant::UpgradeForever.is_active() {
                return Err(self.deadlock_error(&wanted.path, mode, held));
            }
        }
        Ok(Admission::Join)
    }

    fn deadlock_error(&self, path: &str, wanted: Mode, held: Option<&Recipe>) -> Error {
        let why = match (wanted, held) {
            (Mode::Write, Some(Recipe::Queue(Mode::Read))) => {
                "the caller holds the read lock, so a writer would wait for itself; release the read lock first"
            }
            _ => "the caller holds this path through another handle of the same client, and would wait for itself",
        };
        Error::new(Status::Deadlock, format!("{path}: {why}"))
    }

    /// Completes operations of `owner` after the state of a hold has changed. Such an operation re-enters the hold, or
    /// waits for a change of the hold.
    pub(super) fn answer_ops_on_hold(&mut self, now: Time, lock: LockId, owner: Owner) {
        for lock in self.with_multi_locks(lock) {
            let members = self.members(lock);
            for op in self.ops_of_owner(lock, owner) {
                let condition = match self.ops.get(&op).map(|op| &op.kind) {
                    Some(OpKind::Acquire(acquire)) if acquire.is_reentering() => None,
                    Some(OpKind::HoldWait { until, .. }) => Some(*until),
                    _ => continue,
                };
                match (self.check_reentry(now, &members, owner), condition) {
                    (Reentry::Allowed, None) => {
                        self.increment_hold_counts(&members, owner);
                        self.metrics.reentries += 1;
                        let answer = self.acquired_answer(op);
                        self.answer_op(now, op, Ok(answer));
                    }
                    // The hold was released while the acquire waited, so the acquire joins the end of the queue.
                    (Reentry::NotHeld, None) => {
                        if self.begin_attempt(now, op) {
                            self.join_queues(now, op, lock, owner);
                        }
                    }
                    (Reentry::Allowed, Some(HoldCondition::Safe)) | (Reentry::Unknown, Some(HoldCondition::Unsafe)) => {
                        self.answer_op(now, op, Ok(Answer::Done));
                    }
                    (Reentry::NotHeld, Some(_)) => {
                        let error = self.status_error(op, Status::NotOwner);
                        self.answer_op(now, op, Err(error));
                    }
                    (Reentry::Lost(error), _) => self.answer_op(now, op, Err(error)),
                    (Reentry::Allowed | Reentry::Unknown, _) => {}
                }
            }
        }
    }

    /// Re-enters the locks of an acquire whose owner already holds all of them. If a hold is not safe, the acquire
    /// waits.
    pub(super) fn reenter(&mut self, now: Time, op: OpId) {
        self.set_attempt(op, Attempt::Reentering);
        if let Some(&Acquire { lock, owner, .. }) = self.pending_acquire(op) {
            self.answer_ops_on_hold(now, lock, owner);
        }
    }

    pub(super) fn fail_waits(&mut self, now: Time, lock: LockId, status: Status, with_unsafe_waits: bool) {
        let is_unsafe_wait = |op: &Op| matches!(op.kind, OpKind::HoldWait { until: HoldCondition::Unsafe, .. });
        for op in self.ops_of_lock(lock) {
            if !with_unsafe_waits && self.ops.get(&op).is_some_and(is_unsafe_wait) {
                continue;
            }
            let error = self.status_error(op, status);
            self.fail_op(now, op, error);
        }
    }

    /// Ends an operation with an error. The method also ends the attempt of an acquire, and removes the state machine
    /// of a query.
    pub(super) fn fail_op(&mut self, now: Time, op: OpId, error: Error) {
        match self.end_op(now, op, Err(error)) {
            Some(OpKind::Acquire(_)) if Mutant::LeaveNode.is_active() => {}
            Some(OpKind::Acquire(acquire)) => self.end_attempt(now, acquire.lock, acquire.attempt),
            Some(OpKind::Query { machine_id } | OpKind::Connect { machine_id: Some(machine_id) }) => {
                // A request that waits for a change removes its watch.
                self.handle_input(now, machine_id, Input::Leave);
                self.machines.remove(machine_id);
            }
            Some(
                OpKind::Connect { machine_id: None } | OpKind::HoldWait { .. } | OpKind::Release { .. } | OpKind::Close,
            )
            | None => {}
        }
    }

    /// Fails an operation that makes only one attempt, because another participant holds the lock or is ahead in the
    /// queue.
    pub(super) fn fail_would_block(&mut self, now: Time, op: OpId) {
        let path = self.path_of(op);
        let reason_text = self
            .pending_acquire(op)
            .and_then(|acquire| self.wait_reason(acquire).describe(&self.chroot.path))
            .unwrap_or_else(|| "another participant holds the lock or is ahead in the queue".to_owned());
        self.fail_op(now, op, Error::new(Status::Timeout, format!("{path}: {reason_text}")));
    }

    /// Returns the error for an operation that the program itself has ended. The message contains the path of the lock.
    fn status_error(&self, op: OpId, status: Status) -> Error {
        match self.path_of(op) {
            path if path.is_empty() => status.into(),
            path => Error::new(status, format!("{path}: {}", status.text())),
        }
    }

    /// Returns the error for an operation whose deadline has expired.
    pub(super) fn deadline_error(&self, now: Time, op: &Op) -> Error {
        let waited = in_words(now - op.started);
        let is_answered = self.session.is_connected() && self.session.unanswered_for(now) < MAX_SERVER_SILENCE;
        if is_answered && self.is_watching(op) {
            return Error::new(Status::Timeout, format!("no change within {waited}"));
        }
        let acquire = match &op.kind {
            OpKind::Acquire(acquire) if !acquire.is_reentering() => acquire,
            _ => return self.connection_error(now, op.started),
        };
        let path = self.locks.get(&acquire.lock).map_or("", |lock| &lock.path);
        match self.wait_reason(acquire).describe(&self.chroot.path) {
            Some(reason_text) if self.session.is_connected() => {
                Error::new(Status::Timeout, format!("{path}: not acquired within {waited}; {reason_text}"))
            }
            _ if is_answered => Error::new(Status::Timeout, format!("{path}: not acquired within {waited}")),
            _ => self.connection_error(now, op.started),
        }
    }

    /// Returns whether an operation waits for a change of a node.
    fn is_watching(&self, op: &Op) -> bool {
        let OpKind::Query { machine_id } = op.kind else { return false };
        matches!(self.machines.get(machine_id), Some(StateMachine::RetriedRequest(request, _)) if request.is_watching())
    }

    pub(super) fn connection_error(&self, now: Time, started: Time) -> Error {
        let (servers, waited) = (&self.servers, in_words(now - started));
        let is_silent = self.session.unanswered_for(now) >= MAX_SERVER_SILENCE;
        self.no_service_error(&match self.session.is_connected()
            && !is_silent
            && self.session.has_answered_since(started)
        {
            true => format!("not finished within {waited}, although {servers} has answered; it may be overloaded"),
            false => format!("no answer from {servers} within {waited}"),
        })
    }

    /// Returns the error for an operation that has no working connection.
    pub(super) fn no_service_error(&self, problem: &str) -> Error {
        let summary = self.session.connection_summary();
        if self.session.are_all_certificates_refused() {
            return Error::new(Status::Auth, format!("{}: {summary}", self.servers));
        }
        let status = if self.session.is_out_of_resources() { Status::Exhausted } else { Status::Connection };
        Error::new(status, format!("{problem}; {summary}"))
    }

    // The table of operations.

    pub(super) fn start_op(&mut self, now: Time, kind: OpKind, deadline: Option<Time>) -> OpId {
        let id = self.next_op_id();
        self.insert_op(now, id, kind, deadline);
        id
    }

    pub(super) fn insert_op(&mut self, now: Time, id: OpId, kind: OpKind, deadline: Option<Time>) {
        if let Some(place) = kind.lock_and_owner() {
            self.ops_by_owner.entry(place).or_default().push(id);
        }
        if let Some(at) = deadline {
            self.timers.set(Timer::Deadline(id), at);
        }
        self.ops.insert(id, Op { kind, started: now, deadline });
    }

    /// Completes an operation, and stores its result.
    pub(super) fn answer_op(&mut self, now: Time, op: OpId, result: Result<Answer>) {
        self.end_op(now, op, result);
    }

    /// Completes an operation, stores its result, and returns what the operation did. Its state machines remain. Only
    /// this method completes operations. Each operation is completed once.
    pub(super) fn end_op(&mut self, now: Time, op: OpId, result: Result<Answer>) -> Option<OpKind> {
        if self.pending_acquire(op).is_some_and(|acquire| acquire.attempt == Attempt::WaitingInCohort) {
            self.set_attempt(op, Attempt::NotStarted);
        }
        let Op { kind, started, .. } = self.ops.remove(&op)?;
        self.record_answer(now, &kind, started, &result);
        if let Some(place) = kind.lock_and_owner()
            && let Some(calls) = self.ops_by_owner.get_mut(&place)
        {
            calls.retain(|&call| call != op);
            if calls.is_empty() {
                self.ops_by_owner.remove(&place);
            }
        }
        self.timers.stop(Timer::Deadline(op));
        self.timers.stop(Timer::DeadlockCheck(op));
        self.has_failed_to_connect |= matches!(kind, OpKind::Connect { .. }) && result.is_err();
        match &kind {
            // The engine returns new holds before other results. The sooner the program uses its lock, the sooner other
            // participants can acquire the lock.
            OpKind::Acquire(acquire) if result.is_ok() && !acquire.is_reentering() => {
                self.answers.push_front((op, result));
            }
            _ => self.answers.push_back((op, result)),
        }
        Some(kind)
    }

    /// Returns the operations that acquire a lock or wait for a change of its hold.
    pub(super) fn ops_of_lock(&self, lock: LockId) -> Vec<OpId> {
        let (first, last) = Owner::ALL;
        let all_owners = (lock, first)..=(lock, last);
        self.ops_by_owner.range(all_owners).flat_map(|(_, calls)| calls.clone()).collect()
    }

    /// Returns whether an operation acquires the lock. The method stops at the first such operation.
    pub(super) fn has_pending_acquire(&self, lock: LockId) -> bool {
        let (first, last) = Owner::ALL;
        let mut calls = self.ops_by_owner.range((lock, first)..=(lock, last)).flat_map(|(_, calls)| calls);
        calls.any(|&op| self.pending_acquire(op).is_some())
    }

    /// Returns the operations of `owner` that acquire the lock or wait for a change of its hold.
    pub(super) fn ops_of_owner(&self, lock: LockId, owner: Owner) -> Vec<OpId> {
        self.ops_by_owner.get(&(lock, owner)).cloned().unwrap_or_default()
    }

    pub(super) fn ops_where(&self, which: impl Fn(&OpKind) -> bool) -> Vec<OpId> {
        self.ops.iter().filter(|(_, op)| which(&op.kind)).map(|(&id, _)| id).collect()
    }

    pub(super) fn path_of(&self, op: OpId) -> Arc<str> {
        match self.ops.get(&op) {
            Some(Op {
                kind: OpKind::Acquire(Acquire { lock, .. }) | OpKind::HoldWait { lock, .. } | OpKind::Release { lock, .. },
                ..
            }) => self.locks.get(lock).map(|lock| Arc::clone(&lock.path)),
            _ => None,
        }
        .unwrap_or_default()
    }

    /// Returns an unfinished acquire, or `None` if the operation has ended or does not acquire.
    pub(super) fn pending_acquire(&self, op: OpId) -> Option<&Acquire> {
        match &self.ops.get(&op)?.kind {
            OpKind::Acquire(acquire) => Some(acquire),
            _ => None,
        }
    }

    pub(super) fn pending_acquire_mut(&mut self, op: OpId) -> Option<&mut Acquire> {
        match &mut self.ops.get_mut(&op)?.kind {
            OpKind::Acquire(acquire) => Some(acquire),
            _ => None,
        }
    }
}

impl AcquireLimit {
    const fn deadline(self) -> Option<Time> {
        match self {
            Self::TryOnce(at) | Self::Until(at) => Some(at),
            Self::Unlimited => None,
        }
    }
}
