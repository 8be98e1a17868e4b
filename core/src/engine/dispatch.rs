//! Passes the inputs of the shell to the session and to the state machines, and carries out the outputs of the state
//! machines.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::ControlFlow;
use std::time::Duration;

use zklock_proto::{EventKind, Refusal, Response};

use super::interface::{Answer, Event, Notification, OpId};
use super::machines::{Role, StateMachine, StateMachines};
use super::metrics::Metrics;
use super::path_bytes::DEFAULT_MAX_PATH_BYTES;
use super::state::{Engine, HoldCondition, NodeStatus, Op, OpKind};
use super::timers::{Timer, TimerTable};
use crate::acl::CreateAcls;
use crate::error::{Error, Result, Status};
use crate::log_record::{Level, LogBuffer, LogRecord};
use crate::mutant::Mutant;
use crate::path::quote;
use crate::recipe::{CacheEvent, Chroot, Contender, Context, DirectoryCaches, Input, Output, RequestKind, Tag};
use crate::session::{
    self, ClientState, Command, ConnectString, ConnectionEvent, Credentials, Entropy, Failure, LeaseDemand, MachineId,
    SaslMechanism, Server, Session, SessionConfig, Subscriber,
};
use crate::time::Time;

impl Engine {
    /// Creates the engine of a client. The engine begins to connect at the first call of [`advance`](Self::advance).
    pub fn new(target: ConnectString, config: SessionConfig, now: Time, entropy: Entropy) -> Self {
        let servers = joined(&target.servers);
        let limits = config.limits.directory_cache;
        let mut session = Session::new(target.servers, config, now, entropy);
        let client_uuid_high = random_u64(&mut session);
        Self {
            session,
            caches: DirectoryCaches::new(client_uuid_high, limits),
            servers,
            chroot: Chroot { path: target.chroot, create: false },
            acls: CreateAcls::default(),
            locks: BTreeMap::new(),
            locks_by_directory: HashMap::new(),
            cohorts: HashMap::new(),
            ops: BTreeMap::new(),
            ops_by_owner: BTreeMap::new(),
            machines: StateMachines::new(DEFAULT_MAX_PATH_BYTES),
            timers: TimerTable::default(),
            held_back: VecDeque::new(),
            is_admitting: false,
            lease_counts: BTreeMap::new(),
            with_kazoo: false,
            is_lease_over: false,
            reported_state: ClientState::Connecting,
            is_closing: false,
            has_failed_to_connect: false,
            last_id: 0,
            answers: VecDeque::new(),
            notifications: VecDeque::new(),
            metrics: Metrics::default(),
        }
    }

    /// Makes the engine treat kazoo's locks in the same directories as contenders of the same queue. The kazoo programs
    /// must set `extra_lock_patterns`. Without this setting, kazoo ignores this library's nodes.
    pub fn enable_kazoo_queuing(&mut self) {
        self.with_kazoo = true;
    }

    /// Sets the maximum total length of the node paths of the session, in bytes. An acquire that would exceed the limit
    /// fails with EXHAUSTED.
    pub fn set_max_path_bytes(&mut self, limit: usize) {
        self.machines.path_bytes.set_limit(limit);
    }

    /// Makes the engine create the chroot if the chroot is missing.
    pub fn enable_chroot_creation(&mut self) {
        self.chroot.create = true;
    }

    /// Sets the access control lists of the nodes that the engine creates.
    pub fn set_acls(&mut self, acls: CreateAcls) {
        self.acls = acls;
    }

    // Inputs from the shell.

    /// Handles one input. The engine first checks whether the session lease has ended, and finally processes all events
    /// that the input has caused. Every public method that can cause events must call this method.
    pub(super) fn handle<T>(&mut self, now: Time, input: impl FnOnce(&mut Self) -> T) -> T {
        self.check_lease(now);
        let result = input(self);
        self.process_events(now);
        result
    }

    /// Handles a change of the connection.
    pub fn on_connection_event(&mut self, now: Time, event: ConnectionEvent<'_>) {
        self.handle(now, |engine| engine.session.on_connection_event(now, event));
    }

    /// Sets the credentials and the SASL mechanism for the next connection. The engine forgets both after it has used
    /// them, so the shell must call this method before each connection.
    pub fn set_credentials(&mut self, credentials: Vec<Credentials>, sasl: Option<Box<dyn SaslMechanism>>) {
        self.session.set_credentials(credentials, sasl);
    }

    /// Returns whether the engine has credentials or a SASL mechanism that it has not used yet.
    pub fn has_credentials(&self) -> bool {
        self.session.has_credentials()
    }

    /// Returns whether [`connect`](Self::connect) has failed. The engine still makes attempts to connect until the shell
    /// drops it, but the shell must not load inputs for them.
    pub fn has_failed_to_connect(&self) -> bool {
        self.has_failed_to_connect
    }

    /// Makes the engine send [`Command::Load`] before it leaves a server on purpose. The shell must call this method if
    /// it loads inputs before it connects, and if loading can fail or block.
    pub fn require_loading(&mut self) {
        self.session.require_loading();
    }

    /// Reports that the shell could not load the inputs for a connection. `is_final` is true if the shell has never
    /// loaded these inputs. In this case, the operations that wait for the first connection fail at once.
    pub fn loading_failed(&mut self, now: Time, error: &Error, is_final: bool) {
        self.handle(now, |engine| {
            engine.session.log_buffer().add(Level::Warn, || LogRecord::LoadingFailed { error: error.clone() });
            for op in engine.ops_where(|kind| is_final && matches!(kind, OpKind::Connect { .. })) {
                engine.fail_op(now, op, error.clone());
            }
        });
    }

    /// Handles received bytes. Returns `Break` if the client needs no further bytes from this connection.
    pub fn received(&mut self, now: Time, bytes: &[u8]) -> ControlFlow<()> {
        self.handle(now, |engine| engine.session.received(now, bytes))
    }

    /// Performs all actions whose time has come. Before this call, the shell should pass all bytes that have already
    /// arrived to [`received`](Self::received).
    pub fn advance(&mut self, now: Time) {
        self.handle(now, |engine| engine.session.advance(now));
        self.handle(now, |engine| {
            while let Some(timer) = engine.timers.pop_due(now) {
                engine.on_timer(now, timer);
            }
            engine.caches.advance(now, &mut engine.session);
        });
    }

    fn on_timer(&mut self, now: Time, timer: Timer) {
        match timer {
            Timer::Deadline(op) => self.expire_op(now, op),
            Timer::Retry(machine_id) => self.on_retry(now, machine_id),
            Timer::Join(machine_id) => {
                if self.machines.contender(machine_id).is_some_and(Contender::has_not_joined) {
                    self.admit(now, machine_id);
                }
            }
            Timer::ReentryCheck(machine_id) => {
                if let Some(&StateMachine::Contender(_, Role::Acquiring(op))) = self.machines.get(machine_id) {
                    self.grant_queues(now, machine_id, op);
                }
            }
            Timer::DeadlockCheck(op) => self.check_for_deadlock(now, op),
            Timer::HoldCheck => {
                if self.machines.has_holds() {
                    self.timers.set(Timer::HoldCheck, now + self.session.heartbeat_interval());
                }
                self.verify_holds(now, |contender| !contender.are_nodes_watched());
            }
        }
    }

    /// Replaces the server list. The chroot of `target` must be the chroot of the client, or empty.
    ///
    /// If the client must move to another server, it does so when no request is without an answer, and at the latest
    /// after a sixth of the session timeout. The session and all holds remain.
    pub fn set_servers(&mut self, now: Time, target: ConnectString) -> Result<()> {
        if !target.chroot.is_empty() && target.chroot != self.chroot.path {
            let own = match self.chroot.path.as_str() {
                "" => "but the client has no chroot; expected servers without a chroot".to_owned(),
                own => format!("but the chroot of the client is {}; expected the same chroot, or none", quote(own)),
            };
            return Err(Error::invalid(format!("the server list has the chroot {}, {own}", quote(&target.chroot))));
        }
        self.servers = joined(&target.servers);
        self.handle(now, |engine| engine.session.set_servers(now, target.servers));
        Ok(())
    }

    /// Returns whether the client's present server list contains the server.
    pub fn uses_server(&self, server: &Server) -> bool {
        self.session.uses_server(server)
    }

    /// Returns the time at which [`advance`](Self::advance) must be called.
    pub fn next_timeout(&self) -> Option<Time> {
        let lease_end =
            self.session.lease().filter(|_| self.machines.has_holds() && !self.is_lease_over).map(session::Lease::end);
        let layers = [self.session.next_timeout(), self.caches.next_timeout(), self.timers.next_timeout()];
        layers.into_iter().chain([lease_end]).flatten().min()
    }

    /// Returns the buffer with the bytes to send. After the shell has sent bytes, it removes these bytes from the front
    /// of the buffer.
    pub fn output(&mut self) -> &mut Vec<u8> {
        self.session.output()
    }

    /// Returns the next command for the shell.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.session.poll_command()
    }

    /// Returns a completed operation with its result.
    pub fn poll_answer(&mut self) -> Option<(OpId, Result<Answer>)> {
        self.answers.pop_front()
    }

    /// Returns the next notification for the program. The method returns notifications in the order in which the
    /// changes happened. The engine reports revocation requests only for revocable locks (see
    /// [`set_revocable`](Self::set_revocable)).
    pub fn poll_notification(&mut self) -> Option<Notification> {
        self.notifications.pop_front()
    }

    /// Returns the buffer with the log records that the shell has not written yet.
    pub fn log_buffer(&mut self) -> &mut LogBuffer {
        self.session.log_buffer()
    }

    // Queries.

    /// Returns whether an operation has not ended yet. After the operation has ended,
    /// [`poll_answer`](Self::poll_answer) returns or has already returned its answer.
    pub fn is_pending(&self, op: OpId) -> bool {
        self.ops.contains_key(&op)
    }

    /// Returns the state of the session.
    pub fn state(&self) -> ClientState {
        self.session.state()
    }

    /// Returns the session id, or 0 if there is no session.
    pub fn session_id(&self) -> i64 {
        self.session.id()
    }

    /// Returns the session timeout in effect.
    pub fn session_timeout(&self) -> Duration {
        self.session.timeout()
    }

    /// Returns the length of a session lease with the session timeout in effect.
    pub fn lease_length(&self) -> Duration {
        self.session.lease_length()
    }

    /// Returns the number of watches that the server has for this client, according to the client.
    pub fn watch_count(&self) -> usize {
        self.session.watch_count()
    }

    // Session.

    /// Processes all events of the session and the directory caches.
    fn process_events(&mut self, now: Time) {
        while let Some(event) = self.next_event(now) {
            match event {
                session::Event::Connected { resumed } => self.on_connected(now, resumed),
                session::Event::Disconnected => self.on_disconnected(now),
                session::Event::SessionEnded { nodes_until } => self.on_session_ended(now, nodes_until),
                session::Event::Reply { tag, zxid, result } => match tag.recipient {
                    Some(Subscriber::Machine(machine_id)) => self.on_reply(now, machine_id, tag.kind, zxid, result),
                    Some(Subscriber::Cache(id)) => self.caches.on_reply(now, &mut self.session, id, tag.kind, result),
                    None => {}
                },
                session::Event::WatchFired { subscriber, kind, path } => match subscriber {
                    Subscriber::Machine(machine_id) => {
                        self.handle_input(now, machine_id, Input::WatchFired(kind, &path));
                    }
                    Subscriber::Cache(id) => self.caches.on_watch_fired(now, &mut self.session, id, kind, &path),
                },
                session::Event::AuthFailed => self.on_auth_failed(now),
                session::Event::ServersRefused => self.on_servers_refused(now),
                session::Event::Closed => self.on_closed(now),
            }
        }
        self.on_lease_regained(now);
        self.stop_idle_counts(now);
        self.session.set_lease_demand(match self.machines.is_empty() {
            true => LeaseDemand::None,
            false if self.machines.has_holds() => LeaseDemand::Holding,
            false => LeaseDemand::Waiting,
        });
        let state = self.session.state();
        if state != self.reported_state && !Mutant::HideSession.is_active() {
            let previous = std::mem::replace(&mut self.reported_state, state);
            self.notifications.push_back(Notification::Event(Event::Client { state, previous }));
        }
    }

    /// Returns the next event of the session. The events of the directory caches are older. The method therefore first
    /// passes these events to the contenders.
    fn next_event(&mut self, now: Time) -> Option<session::Event<Tag>> {
        while let Some((machine_id, event)) = self.caches.poll_event() {
            match event {
                CacheEvent::Live => self.handle_input(now, machine_id, Input::CacheLive),
                CacheEvent::Ended(was_consistent) => {
                    self.handle_input(now, machine_id, Input::CacheEnded(was_consistent));
                }
                CacheEvent::NodeDeleted(path) => {
                    self.handle_input(now, machine_id, Input::WatchFired(EventKind::Deleted, &path));
                }
                CacheEvent::NodeDeletedByUs(path) => {
                    self.handle_input(now, machine_id, Input::PredecessorDeletedByUs(&path));
                }
                CacheEvent::ReadPredecessor => self.handle_input(now, machine_id, Input::ReadPredecessor),
            }
        }
        self.session.poll_event()
    }

    fn on_connected(&mut self, now: Time, resumed: bool) {
        // The paths of all contenders may be too long for one session. In this case, a contender that has not joined
        // yet must wait until other contenders have left.
        let is_outside = |machine: &StateMachine| matches!(machine, StateMachine::Contender(contender, _) if contender.has_not_joined());
        let is_full = !self.machines.path_bytes.has_room();
        let outside = self.machines.iter().filter(|(_, machine)| is_full && is_outside(machine));
        self.held_back = outside.map(|(id, _)| id).collect();
        let is_held_back = |machine_id: &MachineId| self.held_back.binary_search(machine_id).is_ok();
        let others: Vec<MachineId> = self.machines.ids().into_iter().filter(|id| !is_held_back(id)).collect();
        for machine_id in others {
            self.handle_input(now, machine_id, Input::SendRequests);
        }
        self.admit_held_back(now);
        for op in self.ops_where(|kind| matches!(kind, OpKind::Connect { machine_id: None })) {
            self.find_chroot(now, op);
        }
        if resumed {
            self.mark_holds_unverified(now, NodeStatus::Unverified);
        }
    }

    fn on_disconnected(&mut self, now: Time) {
        self.caches.on_disconnected(now, &mut self.session);
        self.broadcast_input(now, |_| Input::Disconnected);
        self.report_all_states(now);
        // An acquire that makes only one attempt fails, because it does not wait for the next connection. A re-entry
        // waits, because its owner already holds the lock.
        let gives_up =
            |kind: &OpKind| matches!(kind, OpKind::Acquire(acquire) if acquire.try_once && !acquire.is_reentering());
        let gives_up = |kind: &OpKind| !self.session.is_moving() && gives_up(kind);
        for op in self.ops_where(gives_up) {
            let started = self.ops.get(&op).map_or(now, |op| op.started);
            let error = self.connection_error(now, started);
            self.fail_op(now, op, error);
        }
    }

    pub(super) fn on_session_ended(&mut self, now: Time, nodes_until: Option<Time>) {
        self.is_lease_over = false;
        for op in self.ops_where(|kind| matches!(kind, OpKind::Release { .. })) {
            let path = self.path_of(op);
            let message = format!(
                "{path}: the session ended before a server confirmed the release; another owner may have held the lock at the same time"
            );
            self.answer_op(now, op, Err(Error::new(Status::Lost, message)));
        }
        // The contenders that were held back do not join. Each of these contenders ends with the session, and a new
        // contender replaces it.
        self.held_back.clear();
        self.machines.path_bytes.session_ended();
        self.broadcast_input(now, |_| Input::SessionEnded { nodes_until });
        for op in self.ops_where(|kind| matches!(kind, OpKind::Acquire(_))) {
            self.forget_node_losses(op);
        }
    }

    fn on_auth_failed(&mut self, now: Time) {
        let error = Error::new(
            Status::Auth,
            format!("authentication with {} has failed; {}", self.servers, self.session.connection_summary()),
        );
        // The session and its nodes still exist, so the state of the holds does not change.
        let goes_on = |kind: &OpKind| {
            matches!(
                kind,
                OpKind::Close | OpKind::Release { .. } | OpKind::HoldWait { until: HoldCondition::Unsafe, .. }
            )
        };
        for op in self.ops_where(|kind| !goes_on(kind)) {
            self.fail_op(now, op, error.clone());
        }
    }

    /// Fails the operations that wait for the first connection. Other operations wait until their deadline, because the
    /// servers or the files of the client may change: certificates are rotated while programs run.
    fn on_servers_refused(&mut self, now: Time) {
        for op in self.ops_where(|kind| matches!(kind, OpKind::Connect { .. })) {
            let started = self.ops.get(&op).map_or(now, |op| op.started);
            let error = self.connection_error(now, started);
            self.fail_op(now, op, error);
        }
    }

    fn on_closed(&mut self, now: Time) {
        self.machines.clear();
        self.caches.on_disconnected(now, &mut self.session);
        self.held_back.clear();
        // No contender exists any more.
        self.timers.stop_all_except_deadlines();
        for op in self.ops_where(|kind| matches!(kind, OpKind::Close)) {
            self.answer_op(now, op, Ok(Answer::Done));
        }
    }

    // State machines.

    fn broadcast_input<'a>(&mut self, now: Time, input: impl Fn(MachineId) -> Input<'a>) {
        for machine_id in self.machines.ids() {
            self.handle_input(now, machine_id, input(machine_id));
        }
    }

    /// Adds a state machine. The state machine sends its requests at once if the client is connected, and otherwise
    /// after the next connect.
    pub(super) fn start_machine(&mut self, now: Time, machine_id: MachineId, machine: StateMachine) {
        self.machines.insert(machine_id, machine);
        if self.session.is_connected() {
            self.handle_input(now, machine_id, Input::SendRequests);
        }
    }

    /// Passes a reply to its state machine. A contender itself repeats a request that a server has refused for the
    /// moment. Other state machines treat the refusal like the loss of the connection, and the engine makes them send
    /// their requests again.
    fn on_reply(
        &mut self,
        now: Time,
        machine_id: MachineId,
        kind: RequestKind,
        zxid: i64,
        result: std::result::Result<Response, Failure>,
    ) {
        let is_transient = matches!(&result, Err(Failure::Code(code)) if code.refusal() == Refusal::Transient);
        let result = match self.machines.get(machine_id) {
            Some(StateMachine::Contender(..)) | None => result,
            Some(_) if !is_transient => result,
            Some(_) => {
                if !self.timers.is_set(Timer::Retry(machine_id)) {
                    self.timers.set(Timer::Retry(machine_id), now + self.session.limits().first_retry);
                }
                Err(Failure::ConnectionLost)
            }
        };
        self.handle_input(now, machine_id, Input::Reply { kind, zxid, result });
    }

    fn on_retry(&mut self, now: Time, machine_id: MachineId) {
        let op = match self.machines.get(machine_id) {
            Some(StateMachine::Contender(..)) => return self.handle_input(now, machine_id, Input::Retry),
            // The state machine sends its requests after the next connect.
            Some(_) if !self.session.is_connected() => return,
            Some(StateMachine::ParticipantQuery(_, op) | StateMachine::FenceCheck(_, op)) => Some(*op),
            Some(StateMachine::DeadlockCheck(..)) => None,
            Some(StateMachine::RetriedRequest(..) | StateMachine::SharedCount(..)) | None => {
                return self.handle_input(now, machine_id, Input::SendRequests);
            }
        };
        // A query that begins again gets a new id, so that it receives no reply to its earlier requests.
        let restarted = self.next_machine_id();
        self.machines.rename(machine_id, restarted);
        if let Some(Op { kind: OpKind::Query { machine_id }, .. }) = op.and_then(|op| self.ops.get_mut(&op)) {
            *machine_id = restarted;
        }
        self.handle_input(now, restarted, Input::SendRequests);
    }

    /// Passes an input to a state machine, and applies its output. The order for a contender: first its revocation
    /// request, then its output, which may give the contender another role, then its next retry, and at last its end.
    pub(super) fn handle_input(&mut self, now: Time, machine_id: MachineId, input: Input<'_>) {
        let mut cx = Context::new(now, machine_id, &mut self.session, &mut self.caches, &self.chroot, &self.acls);
        match self.machines.get_mut(machine_id) {
            None => {}
            Some(StateMachine::ParticipantQuery(query, op)) => {
                let op = *op;
                if let Some(result) = query.handle(&mut cx, input) {
                    self.machines.remove(machine_id);
                    self.answer_op(now, op, result.map(|found| Answer::Participants(found.into())));
                }
            }
            Some(StateMachine::RetriedRequest(request, op)) => {
                let op = *op;
                if let Some(result) = request.handle(&mut cx, input) {
                    self.machines.remove(machine_id);
                    match self.pending_acquire(op) {
                        Some(_) => self.on_leases_counted(now, op, result),
                        None => self.answer_op(now, op, result.map(Answer::from)),
                    }
                }
            }
            Some(StateMachine::FenceCheck(check, op)) => {
                let op = *op;
                if let Some(result) = check.handle(&mut cx, input) {
                    self.machines.remove(machine_id);
                    self.answer_op(now, op, result.map(Answer::Holds));
                }
            }
            Some(StateMachine::DeadlockCheck(query, op, contender)) => {
                let (op, contender) = (*op, *contender);
                if let Some(result) = query.handle(&mut cx, input) {
                    self.machines.remove(machine_id);
                    self.on_queues_listed(now, op, contender, result);
                }
            }
            Some(StateMachine::SharedCount(count, lock)) => {
                let lock = *lock;
                if let Some(result) = count.handle(&mut cx, input) {
                    self.on_lease_count(now, lock, result);
                }
            }
            Some(StateMachine::Contender(contender, role)) => {
                let role = *role;
                let output = contender.handle(&mut cx, input);
                let gone = contender.is_gone();
                let is_refused = matches!(output, Some(Output::DeleteRefused(_)));
                let is_undeletable = is_refused && contender.has_undeletable_node();
                let retry = contender.take_retry();
                if let Some(node) = contender.take_revocation() {
                    self.report_revocation(machine_id, &node);
                }
                if let Some(Output::DeleteRefused(error)) = &output {
                    self.metrics.deletes_refused += 1;
                    self.machines.set_undeletable(machine_id, is_undeletable);
                    self.session.log_buffer().add(Level::Warn, || LogRecord::DeleteRefused { error: error.clone() });
                }
                if let Some(output) = output {
                    self.apply_output(now, machine_id, role, output);
                }
                if let Some(wait) = retry {
                    self.timers.set(Timer::Retry(machine_id), now + wait);
                    self.postpone_delete(now, machine_id);
                }
                if gone {
                    self.forget_contender(now, machine_id);
                }
            }
        }
    }

    /// Lets a contender join the queue, or holds the contender back.
    ///
    /// The engine holds the contender back while too many contenders are leaving. A program may start and cancel
    /// acquires faster than a server deletes nodes. Without this limit, the remaining nodes would fill the directory
    /// and the client's memory, and would make the lists of all clients longer. The engine also holds the contender
    /// back while the paths of leaving contenders leave no room for its own paths.
    pub(super) fn admit(&mut self, now: Time, machine_id: MachineId) {
        if !self.session.is_connected() {
            return;
        }
        if self.has_few_leaving() && self.machines.path_bytes.has_room() {
            self.handle_input(now, machine_id, Input::SendRequests);
        } else {
            self.held_back.push_back(machine_id);
        }
    }

    fn has_few_leaving(&self) -> bool {
        self.machines.leaving_count() < self.session.limits().max_leaving
    }

    /// Removes a contender that has left its queues completely.
    fn forget_contender(&mut self, now: Time, machine_id: MachineId) {
        self.machines.remove(machine_id);
        self.admit_held_back(now);
    }

    fn admit_held_back(&mut self, now: Time) {
        if std::mem::replace(&mut self.is_admitting, true) {
            return;
        }
        while self.session.is_connected()
            && self.has_few_leaving()
            && !Mutant::HoldBackForever.is_active()
            && let Some(&next) = self.held_back.front()
        {
            let waits = match self.machines.get(next) {
                Some(StateMachine::Contender(contender, Role::Acquiring(op))) if contender.has_not_joined() => {
                    Some(*op)
                }
                _ => None,
            };
            let refusal = waits.and_then(|op| self.machines.path_bytes.check(&self.path_of(op), 0).err());
            if waits.is_some() && refusal.is_none() && !self.machines.path_bytes.has_room() {
                // This contender can join when other contenders have left.
                break;
            }
            self.held_back.pop_front();
            match (waits, refusal) {
                (Some(op), Some(error)) => {
                    // Another operation of the cohort may take over this contender, so the contender remains in
                    // `held_back`.
                    if !Mutant::ForgetReassignedHeldBack.is_active() {
                        self.held_back.push_front(next);
                    }
                    self.fail_op(now, op, error);
                }
                (Some(_), None) => self.handle_input(now, next, Input::SendRequests),
                (None, _) => {}
            }
        }
        self.is_admitting = false;
    }

    /// Carries out the output of a contender.
    fn apply_output(&mut self, now: Time, machine_id: MachineId, role: Role, output: Output) {
        match (role, output) {
            (Role::Acquiring(op), Output::Acquired) => self.on_acquired(now, machine_id, op),
            (Role::Acquiring(op), Output::WouldBlock) => self.fail_would_block(now, op),
            (Role::Acquiring(op), Output::Failed(error)) => {
                self.detach_from_op(machine_id);
                self.fail_op(now, op, error);
            }
            (Role::Acquiring(op), Output::Removed(_)) => {
                self.record_waited(machine_id, op);
                self.record_node_loss(now, op);
                self.detach_from_op(machine_id);
                // The lost node may have been a read node under the write node of a hold. If the write node no longer
                // exists, the engine must detect this before the next contender joins.
                self.verify_holds(now, |contender| !contender.are_nodes_watched());
                self.retry_attempt(now, op);
            }
            (Role::Acquiring(op), Output::TooFewLeases) => self.watch_inner_mutex(now, op),
            (Role::InnerMutex(op), Output::Removed(_)) => {
                self.record_waited(machine_id, op);
                self.record_node_loss(now, op);
                self.detach_from_op(machine_id);
                self.on_inner_mutex_lost(now, op);
            }
            (Role::Holding(lock, owner), Output::Removed(removal)) => {
                self.detach_from_op(machine_id);
                self.on_hold_lost(now, lock, owner, machine_id, removal);
            }
            (Role::Holding(lock, owner), Output::NodesVerified) => {
                if let Some(hold) = self.hold_by_machine(lock, machine_id) {
                    hold.node_status = NodeStatus::Verified;
                }
                self.report_states(now, lock);
                self.answer_ops_on_hold(now, lock, owner);
            }
            (Role::Leaving(Some(op)), Output::Gone) => self.on_node_released(now, op, None),
            (Role::Leaving(Some(op)), Output::Removed(_)) => {
                let path = self.path_of(op);
                let message = format!("{path}: another client or an operator had deleted its node before the release");
                self.on_node_released(now, op, Some(Error::new(Status::Lost, message)));
            }
            (Role::Leaving(Some(op)), Output::DeleteRefused(error)) => {
                self.detach_from_op(machine_id);
                self.on_node_released(now, op, Some(error));
            }
            _ => {}
        }
    }

    /// Detaches a contender from its operation, and marks the contender as leaving.
    fn detach_from_op(&mut self, machine_id: MachineId) {
        self.machines.set_role(machine_id, Role::Leaving(None));
    }

    /// Marks a leaving contender that must wait before it sends a delete request: a server has refused the last
    /// request, or the program may still rely on the hold. The contenders that were held back no longer wait for this
    /// contender.
    fn postpone_delete(&mut self, now: Time, machine_id: MachineId) {
        if matches!(self.machines.get(machine_id), Some(StateMachine::Contender(_, Role::Leaving(None)))) {
            self.machines.set_role(machine_id, Role::DeletePostponed);
            self.admit_held_back(now);
        }
    }

    // Bookkeeping.

    pub(super) fn next_op_id(&mut self) -> OpId {
        OpId(self.next_id())
    }

    pub(super) fn next_machine_id(&mut self) -> MachineId {
        MachineId(self.next_id())
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}

/// Returns the servers as text for error messages. If the list is long, the text contains only its first servers, because
/// the C interface cuts off long messages, and the causes of the failures follow this text.
fn joined(servers: &[Server]) -> String {
    const LISTED: usize = 5;
    let text = servers.iter().take(LISTED).map(ToString::to_string).collect::<Vec<_>>().join(",");
    match servers.len().saturating_sub(LISTED) {
        0 => text,
        more => format!("{text} and {more} more servers"),
    }
}

/// Returns 64 random bits for one half of a UUID.
pub(super) fn random_u64(session: &mut Session<Tag>) -> u64 {
    // All bits are equally random, so the engine can discard half of the bits.
    session.entropy() as u64
}
