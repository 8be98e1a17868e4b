//! The shell of one client. The shell contains the engine, the socket, and the answer handlers. One mutex protects all
//! three parts. The engine, not the shell, makes all decisions about locks and sessions.
//!
//! A calling thread or the I/O thread locks the mutex, passes input to the engine, and applies the engine's output. The
//! thread writes bytes directly to the socket. After the thread has unlocked the mutex, it passes each answer to the
//! matching answer handler.
//!
//! One thread at a time, called the *reader*, reads the socket. A calling thread becomes the reader if it waits for the
//! only pending answer. Otherwise the I/O thread is the reader. A calling thread remains the reader until its operation
//! is answered or its time limit has passed. A thread may be unable to run: in a signal handler, in a debugger, with a
//! low priority, or because it has left the call with `siglongjmp`. The I/O thread therefore takes the reading back
//! after `READER_LIMIT`, and at once if another operation waits for an answer.

mod connecting;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mio::Token;
use tracing::Span;
use zeroize::Zeroize;
use zklock_core::engine::{Answer, Engine, LockId, OpId};
use zklock_core::error::{Error, Result, Status};
use zklock_core::session::{ClientState, Command, ConnectionEvent, Server};
use zklock_core::time::Time;
use zklock_process::ForkEpoch;

use super::attempt_inputs::AttemptInputs;
use super::callback::call_catching_panic;
use super::connection::{Connection, SocketInterest};
use super::event_delivery::{EventDelivery, RevocationHandler};
use super::io_thread::{IoClient, IoThread, while_driving_io};
use super::socket_waiter::{SocketWaiter, WakeReason};
use super::sync::{Mutex, MutexGuard, lock};
use super::{clock, report, tls};

pub(crate) struct Shell {
    epoch: ForkEpoch,
    token: Token,
    this: Weak<Self>,
    state: Mutex<State>,
    /// A thread that needs the locks of both `state` and `event_delivery` must take the `state` lock first.
    event_delivery: Arc<EventDelivery>,
    /// The `tracing` span of the current session. A thread locks this span while it writes log records, and holds no
    /// other lock at that time.
    span: Mutex<Span>,
}

struct State {
    engine: Engine,
    socket_state: SocketState,
    /// The address that the client tried last, for each server. If the name of the server has several addresses, the next
    /// attempt to connect to the server begins with the address after this one.
    tried: HashMap<Server, SocketAddr>,
    /// The sources of the credentials and TLS files for an attempt to connect. The value is empty if the client is
    /// closed.
    inputs: Arc<AttemptInputs>,
    /// The progress of loading the credentials and TLS files.
    loading: LoadingState,
    /// The servers whose names are being resolved, each on its own thread. While a server is in this list, the shell
    /// does not start to resolve its name again.
    resolving: Vec<Server>,
    /// Addresses that the resolver returned while the client was connecting to another server.
    resolved: Vec<LateAddresses>,
    answer_handlers: HashMap<OpId, Arc<dyn AnswerHandler>>,
    /// The answer handlers of hold waits. No thread waits for the answer to a hold wait. A hold wait must therefore not
    /// prevent a calling thread from becoming the reader. The field `answer_handlers` therefore does not contain the
    /// handlers of hold waits.
    hold_wait_handlers: HashMap<OpId, Arc<dyn AnswerHandler>>,
    /// The calling thread that reads the socket, or that has not noticed yet that it no longer reads.
    reader: Option<SocketReader>,
    /// The reader uses this object to wait for the socket. The value is `None` if the client is closed.
    socket_waiter: Option<Arc<SocketWaiter>>,
    /// The receive buffer.
    buffer: Box<[u8]>,
    /// True while a thread is writing log records of this client to the log. While the value is true, no other thread
    /// may write log records of this client.
    is_emitting_records: bool,
    /// The time at which the I/O thread will run the next timers of this client.
    timer_at: Option<Time>,
    /// True if a thread has panicked while it worked on this state. After a panic, the shell no longer uses the engine.
    has_failed: bool,
    /// The I/O thread that serves the client. The value is `None` while the client is not registered.
    io_thread: Option<Arc<IoThread>>,
}

/// Addresses that the resolver returned too late for the attempt that needed them.
struct LateAddresses {
    server: Server,
    addresses: Vec<SocketAddr>,
    received_at: Time,
}

enum SocketState {
    Idle,
    /// A thread is loading the inputs for an attempt to connect to this server.
    Loading(Server),
    Resolving(Server),
    Connecting {
        server: Server,
        connection: Connection,
        others: Vec<SocketAddr>,
    },
    /// The TLS handshake continues. `local_address` is the IP address of this machine on the connection.
    Securing {
        connection: Connection,
        local_address: String,
    },
    Connected(Connection),
}

/// The progress of loading the inputs for an attempt to connect. The shell uses this value only if loading can block.
/// Only one thread at a time loads a client's inputs.
#[derive(Default)]
struct LoadingState {
    /// True while a thread is loading the inputs.
    is_running: bool,
    /// Set if inputs were loaded for a later attempt.
    ready: Option<ReadyInputs>,
    /// True if the inputs were loaded at least once.
    has_succeeded: bool,
}

/// Describes inputs that a thread has loaded before an attempt to connect. A later attempt to connect uses these
/// inputs.
struct ReadyInputs {
    loaded_at: Time,
    /// The value of the counter `Metrics::connections` when the inputs were loaded.
    connections: u64,
    /// The server for which the inputs were loaded, if it was known.
    server: Option<Server>,
}

/// The calling thread that reads the socket instead of the I/O thread.
struct SocketReader {
    /// The operation that the thread waits for.
    op: OpId,
    /// The socket for which the thread waits.
    socket: Option<RawFd>,
    /// The time at which the I/O thread takes the reading back.
    until: Time,
    turn: Turn,
}

/// The stages of one turn of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The thread reads the socket.
    Reads,
    /// The I/O thread reads the socket again. The calling thread must be notified.
    Ended,
    /// The calling thread was notified, but has not run since then.
    Noticed,
}

impl Shell {
    /// Starts the shell of an engine. This function registers the shell with the I/O thread. The shell passes the
    /// engine's notifications to `delivery`, and loads `inputs` before each attempt to connect.
    pub(crate) fn start(engine: Engine, delivery: Arc<EventDelivery>, inputs: AttemptInputs) -> Result<Arc<Self>> {
        clock::check()?;
        let waiter = SocketWaiter::new()?;
        IoThread::register(|io, token| Self::new(engine, token, Some(io), delivery, waiter, inputs))
    }

    fn new(
        mut engine: Engine,
        token: Token,
        io_thread: Option<Arc<IoThread>>,
        delivery: Arc<EventDelivery>,
        waiter: SocketWaiter,
        inputs: AttemptInputs,
    ) -> Arc<Self> {
        if inputs.can_block() {
            engine.require_loading();
        }
        let state = State {
            engine,
            socket_state: SocketState::Idle,
            tried: HashMap::new(),
            inputs: Arc::new(inputs),
            loading: LoadingState::default(),
            resolving: Vec::new(),
            resolved: Vec::new(),
            answer_handlers: HashMap::new(),
            hold_wait_handlers: HashMap::new(),
            reader: None,
            socket_waiter: Some(Arc::new(waiter)),
            buffer: vec![0; BUFFER].into(),
            is_emitting_records: false,
            timer_at: None,
            has_failed: false,
            io_thread,
        };
        let state = Mutex::new(state);
        Arc::new_cyclic(|this| Self {
            epoch: ForkEpoch::current(),
            token,
            this: Weak::clone(this),
            state,
            event_delivery: delivery,
            span: Mutex::new(Span::none()),
        })
    }

    /// Returns whether the client has a handler that receives only losses. The library must call such a handler before
    /// the session ends.
    pub(crate) fn has_loss_handlers(&self) -> bool {
        self.event_delivery.has_loss_handlers()
    }

    /// Waits until the handlers for all queued events have been called, or until the time `end`. The caller must call
    /// this method after the engine has begun to close.
    pub(crate) fn deliver_losses(&self, end: Time) {
        self.event_delivery.deliver_losses(end);
    }

    /// If the program polls, this method itself calls the handlers for the remaining events, on the calling thread.
    /// After the time `deadline`, the method calls no more handlers. The caller must call this method once, after the
    /// engine has begun to close.
    pub(crate) fn deliver_remaining(&self, deadline: Time) {
        self.event_delivery.deliver_remaining(deadline);
    }

    /// Removes the client from the I/O thread. The caller must call this method once, when the engine is closed. The
    /// method delivers the remaining events, until `deadline` at the latest.
    pub(crate) fn stop(&self, deadline: Time) {
        let (io, inputs) = {
            let mut state = self.lock_state();
            // This statement closes the descriptor of the socket waiter, unless a reader still uses the socket waiter.
            // If a reader still uses the socket waiter, the reader closes the descriptor.
            state.socket_waiter = None;
            (state.io_thread.take(), std::mem::take(&mut state.inputs))
        };
        // This statement can run the program's destructors, and a destructor can call the library. This thread must
        // therefore hold no lock.
        drop(inputs);
        if let Some(io) = io {
            io.deregister(self.token);
        }
        // This thread has released the lock before this call. The call waits for handlers, and a handler may lock this
        // mutex.
        self.event_delivery.close(deadline - clock::now());
    }

    /// Waits for at most `timeout` until another thread has stopped the client.
    pub(crate) fn wait_until_closed(&self, timeout: Duration) -> Result<()> {
        self.event_delivery()?.wait_until_closed(timeout);
        Ok(())
    }

    /// Returns the event delivery of the client. Fails with FORKED in a forked child.
    pub(crate) fn event_delivery(&self) -> Result<&Arc<EventDelivery>> {
        self.check_process()?;
        Ok(&self.event_delivery)
    }

    /// Fails with FORKED in a child of the process that created the client.
    pub(crate) fn check_process(&self) -> Result<()> {
        self.epoch.check()
    }

    /// Calls `question` with the engine, and returns the result.
    pub(crate) fn read_engine<T>(&self, question: impl FnOnce(&Engine, Time) -> T) -> Result<T> {
        self.check_process()?;
        let mut deferred = DeferredWork::default();
        let result =
            self.catch_panics(lock(&self.state), &mut deferred, |state, _| question(&state.engine, clock::now()));
        self.run_deferred(deferred);
        result
    }

    /// Calls `order`, which changes the engine, and applies the engine's output. `order` must not start an operation
    /// whose answer the caller needs.
    pub(crate) fn update_engine(&self, order: impl FnOnce(&mut Engine, Time)) -> Result<()> {
        self.check_process()?;
        self.with_state(|state| order(&mut state.engine, clock::now()))
    }

    /// Sets the handler for revocation requests for a lock. The method then waits until no other thread is running the
    /// previous handler. If the lock is closed, the method fails with CLOSED. If `handler` is `None`, the method also
    /// waits for the handler of a closed lock, which is no longer in the registry.
    pub(crate) fn set_revocable(&self, id: LockId, handler: Option<Arc<RevocationHandler>>) -> Result<()> {
        self.check_process()?;
        let is_revocable = handler.is_some();
        if is_revocable {
            self.event_delivery.ensure_dispatcher()?;
        }
        // If the lock is closed, this thread may drop the last reference to the handler. It must hold no mutex at that
        // time, because the handler's destructor can call the library.
        let _kept = handler.clone();
        let before = self.with_state(|state| {
            if !state.engine.is_open(id) || state.io_thread.is_none() {
                return Err(Error::from(Status::Closed));
            }
            // This thread changes the engine and the event delivery under one lock. If two threads set handlers at
            // once, the engine and the event delivery therefore use the same handler in the end.
            let before = self.event_delivery.set_revocable(id, handler);
            state.engine.set_revocable(clock::now(), id, is_revocable);
            Ok(before)
        });
        // A hook may have forked this process. The child must not use the previous handler.
        self.check_process()?;
        let before = before.and_then(|before| before);
        if !is_revocable {
            if before.is_err() {
                drop(self.event_delivery.set_revocable(id, None));
            }
            self.event_delivery.wait_for_revocation_handler(id);
        }
        before?.into_iter().for_each(|before| self.event_delivery.wait_for_removed(before));
        Ok(())
    }

    /// Removes a lock's handler for revocation requests, without waiting for a running call of the handler.
    pub(crate) fn remove_revocation_handler(&self, id: LockId) -> Result<()> {
        self.check_process()?;
        drop(self.event_delivery.set_revocable(id, None));
        Ok(())
    }

    /// Starts an operation. `handler` may receive the answer before this method returns.
    pub(crate) fn submit(
        &self,
        handler: Arc<dyn AnswerHandler>,
        submit: impl FnOnce(&mut Engine, Time) -> OpId,
    ) -> Result<OpId> {
        self.submit_to(submit, State::answer_handlers_of_new_op, handler)
    }

    /// Starts a hold wait. As with [`submit`](Self::submit), `handler` may receive the answer before this method
    /// returns.
    pub(crate) fn submit_hold_wait(
        &self,
        handler: Arc<dyn AnswerHandler>,
        submit: impl FnOnce(&mut Engine, Time) -> OpId,
    ) -> Result<OpId> {
        self.submit_to(submit, |state| &mut state.hold_wait_handlers, handler)
    }

    fn submit_to(
        &self,
        submit: impl FnOnce(&mut Engine, Time) -> OpId,
        handlers: fn(&mut State) -> &mut HashMap<OpId, Arc<dyn AnswerHandler>>,
        handler: Arc<dyn AnswerHandler>,
    ) -> Result<OpId> {
        self.check_process()?;
        let mut begun = None;
        let result = self.with_state(|state| {
            let op = submit(&mut state.engine, clock::now());
            handlers(state).insert(op, handler);
            begun = Some(op);
        });
        match (begun, result) {
            // If the client has failed since the operation began, the handler has already received an answer.
            (Some(op), _) => Ok(op),
            (None, result) => Err(result.err().unwrap_or_else(client_failed_error)),
        }
    }

    /// Ends an operation if its deadline has passed. The calling thread itself reads the clock. Returns true if the
    /// operation has ended, so that its handler has the answer, or another thread is about to deliver the answer.
    pub(crate) fn expire_op(&self, op: OpId) -> bool {
        let is_answered = self.with_state(|state| {
            if state.reader.is_some() {
                // If the reader thread could not run, the answer may already be in the socket.
                receive(state, ReadExtent::Available);
            }
            state.report_stall();
            state.engine.expire_op(clock::now(), op);
            !state.engine.is_pending(op)
        });
        // If the client has failed, all its operations have already ended.
        is_answered.unwrap_or(true)
    }

    /// Cancels an operation. The handler of the operation still receives an answer. The answer may be a success if the
    /// operation was about to succeed.
    pub(crate) fn cancel(&self, op: OpId) {
        // If the client has failed after a panic, the operation already has its answer.
        let _ = self.update_engine(|engine, now| engine.cancel_op(now, op));
    }

    /// Cancels an operation whose result the program no longer needs. If the answer is already on its way to its handler,
    /// the engine releases the acquired holds at once.
    pub(crate) fn abandon(&self, op: OpId) {
        let _ = self.update_engine(|engine, now| engine.abandon_op(now, op));
    }

    // The reader.

    /// Waits until an operation is answered, for at most `limit`, and reads the socket in the meantime. Returns true if
    /// the limit has passed. Returns false earlier if another thread has taken the reading over, and at once if this
    /// thread must not read the socket. This thread must not read if another thread is also waiting or is already
    /// reading, if the operation already has its answer, or if the client has no connection.
    pub(crate) fn read_until_answered(&self, op: OpId, limit: Duration) -> bool {
        let end = (limit < Duration::MAX).then(|| clock::now() + limit);
        let Some(mut turn) = self.try_become_reader(op) else { return false };
        let mut seen = WakeReason::WokenUp;
        while !turn.is_over {
            seen = turn.socket_waiter.wait(turn.socket, end.map(|end| end - clock::now()));
            if end.is_some_and(|end| clock::now() >= end) {
                // The time limit applies even if the socket is readable, because answers for other operations may
                // arrive continuously.
                seen = WakeReason::TimedOut;
            }
            self.on_wakeup(&mut turn, seen);
            // In a child that a hook has forked, the copy of this thread must not change the state.
            turn.is_over |= self.check_process().is_err();
        }
        seen == WakeReason::TimedOut
    }

    fn try_become_reader(&self, op: OpId) -> Option<ReaderTurn<'_>> {
        let mut deferred = DeferredWork::default();
        let become_reader = |state: &mut State| {
            // If other threads also wait, this thread does not become the reader. As the reader, this thread could
            // delay the answers of the other threads while it waits for a processor or does its own work.
            let is_alone = state.answer_handlers.len() == 1 && state.answer_handlers.contains_key(&op);
            let is_free = is_alone && state.reader.is_none() && matches!(state.socket_state, SocketState::Connected(_));
            let waiter = state.socket_waiter.clone().filter(|_| is_free)?;
            let until = clock::now() + READER_LIMIT;
            state.reader = Some(SocketReader { op, socket: state.socket_state.socket(), until, turn: Turn::Reads });
            Some(waiter)
        };
        let start_turn = |state: &State, waiter: Option<Arc<SocketWaiter>>| {
            let socket = state.socket_state.socket();
            Some(ReaderTurn { shell: self, socket_waiter: waiter?, op, socket, is_over: false })
        };
        let turn = self.change_state(&mut deferred, become_reader, start_turn).ok().flatten();
        while_driving_io(|| self.run_deferred(deferred));
        let mut turn = turn?;
        turn.is_over = self.check_process().is_err();
        Some(turn)
    }

    /// Reads the socket after the reader has woken up. Ends the reader's turn if the reader's operation is answered, its
    /// time limit has passed, another thread reads, or the thread cannot wait for the socket.
    fn on_wakeup(&self, turn: &mut ReaderTurn<'_>, seen: WakeReason) {
        let mut deferred = DeferredWork::default();
        let read_socket = |state: &mut State| {
            // The reader reads the socket once more even if its time limit has passed. If this thread was stopped for
            // some time, the socket may already contain the answer.
            if seen != WakeReason::WokenUp {
                receive(state, ReadExtent::Available);
            }
            let is_over = matches!(seen, WakeReason::TimedOut | WakeReason::CannotWait)
                || !state.engine.is_pending(turn.op)
                || !state.has_reader();
            if is_over {
                state.reader = None;
            }
        };
        let read_turn = |state: &State, ()| (state.reader.is_none(), state.socket_state.socket());
        let result = self.change_state(&mut deferred, read_socket, read_turn);
        (turn.is_over, turn.socket) = result.unwrap_or((true, None));
        if turn.is_over { self.run_deferred(deferred) } else { while_driving_io(|| self.run_deferred(deferred)) }
    }

    // The I/O thread.

    fn run_on_io_thread(&self, work: impl FnOnce(&mut State) -> bool) -> (Option<Time>, bool) {
        let mut deferred = DeferredWork::default();
        // If the next timeout of the engine moves to a later time, `timer_at` does not change. If a later call moves
        // the timeout to an earlier time again, that call then need not wake the I/O thread.
        let result = self.change_state(&mut deferred, work, |state, more| (state.timer_at, more));
        // The calling thread is the I/O thread itself, so it needs no wake-up.
        deferred.io_thread = None;
        self.run_deferred(deferred);
        // A failed client no longer needs the I/O thread.
        result.unwrap_or((None, false))
    }

    /// Drops the connection if another part of the program has closed its descriptor. Also drops the connection if the
    /// I/O thread no longer waits for events on it.
    fn check_connection(&self, state: &mut State) {
        let (SocketState::Connecting { connection, .. }
        | SocketState::Securing { connection, .. }
        | SocketState::Connected(connection)) = &mut state.socket_state
        else {
            return;
        };
        if let Some(io) = &state.io_thread
            && let Err(cause) = connection.check_usable(io)
        {
            self.fail_attempt(state, clock::now(), &cause.to_string());
        }
    }

    // Applying the output of the engine.

    /// Locks the state, so that the caller can pass input to the engine. Sets the level of the log records that the
    /// engine adds during this work.
    fn lock_state(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        state.engine.log_buffer().set_max_level(report::enabled_level());
        if let SocketState::Connected(connection) = &mut state.socket_state {
            connection.reset_check();
        }
        state
    }

    /// Calls `change` (which may pass input to the engine), applies the engine's output, and runs the deferred work.
    fn with_state<T>(&self, change: impl FnOnce(&mut State) -> T) -> Result<T> {
        let mut deferred = DeferredWork::default();
        let result = self.change_state(&mut deferred, change, |_, result| result);
        self.run_deferred(deferred);
        result
    }

    /// Calls `change` (which may pass input to the engine) and applies the engine's output. Then calls `read` with the
    /// changed state and the result of `change`, and returns the result of `read`. Only a client that has just been
    /// created or has failed receives input in another way.
    fn change_state<T, U>(
        &self,
        deferred: &mut DeferredWork,
        change: impl FnOnce(&mut State) -> T,
        read: impl FnOnce(&State, T) -> U,
    ) -> Result<U> {
        self.catch_panics(self.lock_state(), deferred, |state, deferred| {
            let result = change(state);
            self.apply_engine_output(state, deferred);
            read(state, result)
        })
    }

    /// Runs `work` on the state of the client. All work on a client, on any thread, uses this method. If `work` panics,
    /// only this client fails. The panic does not reach the caller, because the calling thread may serve other clients
    /// too.
    ///
    /// Errors: INTERNAL if the client has failed.
    fn catch_panics<T>(
        &self,
        mut state: MutexGuard<'_, State>,
        deferred: &mut DeferredWork,
        work: impl FnOnce(&mut State, &mut DeferredWork) -> T,
    ) -> Result<T> {
        if state.has_failed {
            return Err(client_failed_error());
        }
        catch_unwind(AssertUnwindSafe(|| work(&mut state, deferred))).map_err(|_| {
            self.fail(&mut state, deferred);
            client_failed_error()
        })
    }

    /// Ends the client after a panic. Pending and later calls fail with INTERNAL, and all holds are LOST. The client
    /// drops its connection, but does not end its session. The servers end the session after the session timeout.
    /// Before the servers end the session, no other client can acquire the locks of this client.
    fn fail(&self, state: &mut State, deferred: &mut DeferredWork) {
        if std::mem::replace(&mut state.has_failed, true) {
            return;
        }
        state.socket_state = SocketState::Idle;
        let handlers =
            std::mem::take(&mut state.answer_handlers).into_iter().chain(std::mem::take(&mut state.hold_wait_handlers));
        deferred.answers.extend(handlers.map(|(op, handler)| (handler, op, Err(client_failed_error()))));
        deferred.reader_to_wake = state.socket_waiter.take().or_else(|| deferred.reader_to_wake.take());
        // This last call to the engine only marks the holds as LOST and returns the last events. The engine may panic a
        // second time during this call.
        let engine = &mut state.engine;
        let _ = catch_unwind(AssertUnwindSafe(|| {
            engine.fail_client(clock::now());
            while let Some(notification) = engine.poll_notification() {
                self.event_delivery.push(notification);
            }
        }));
    }

    /// Applies those engine outputs that require the lock on the state. Adds the other outputs to `deferred`, which the
    /// caller applies after it has released the lock.
    fn apply_engine_output(&self, state: &mut State, deferred: &mut DeferredWork) {
        loop {
            while let Some(command) = state.engine.poll_command() {
                match command {
                    Command::Connect(server) => self.connect(state, clock::now(), server),
                    Command::Load => self.load_before_departure(state, clock::now()),
                    Command::Disconnect => close_connection(state),
                }
            }
            match flush(state).and_then(|()| update_interest(state)) {
                Ok(()) => break,
                Err(cause) => lose_connection(state, clock::now(), &cause),
            }
        }
        while let Some((op, answer)) = state.engine.poll_answer() {
            if let Some(handler) = state.answer_handlers.remove(&op).or_else(|| state.hold_wait_handlers.remove(&op)) {
                deferred.answers.push_back((handler, op, answer));
            }
        }
        while let Some(notification) = state.engine.poll_notification() {
            self.event_delivery.push(notification);
        }
        if !state.is_emitting_records && !state.engine.log_buffer().is_empty() {
            state.is_emitting_records = true;
            deferred.has_log_records = true;
        }
        let socket = state.socket_state.socket();
        if let Some(reader) = &mut state.reader {
            let is_answered = !deferred.answers.is_empty() && !state.answer_handlers.contains_key(&reader.op);
            if is_answered || reader.socket != socket || reader.turn == Turn::Ended {
                deferred.reader_to_wake = state.socket_waiter.clone();
            }
            reader.socket = socket;
            if reader.turn == Turn::Ended {
                reader.turn = Turn::Noticed;
            }
        }
        let end_of_turn = state.reader.as_ref().filter(|reader| reader.turn == Turn::Reads).map(|reader| reader.until);
        let next = [state.engine.next_timeout(), end_of_turn].into_iter().flatten().min();
        if next.is_some_and(|next| state.timer_at.is_none_or(|planned| next < planned)) {
            state.timer_at = next;
            deferred.io_thread = state.io_thread.clone();
        }
    }

    fn run_deferred(&self, mut deferred: DeferredWork) {
        if let Some(io) = deferred.io_thread.take() {
            io.reschedule(self.token);
        }
        while let Some((handler, op, answer)) = deferred.answers.pop_front() {
            let answered = catch_unwind(AssertUnwindSafe(|| handler.on_answer(op, answer)));
            if self.check_process().is_err() {
                // This process is a child that a hook has forked.
                return;
            }
            if answered.is_err() {
                self.fail(&mut lock(&self.state), &mut deferred);
            }
        }
        if let Some(waiter) = deferred.reader_to_wake {
            waiter.wake();
        }
        if deferred.has_log_records {
            // Like a callback, a subscriber must not wait for an answer, because its thread may have to read that
            // answer.
            call_catching_panic(|| self.emit_log_records());
        }
    }

    /// Writes the engine's log records to the log, in order. Only one thread at a time writes records, and it holds no
    /// lock that other threads wait for. The thread also writes records that other threads add in the meantime. After a
    /// limited number of records the thread stops, because it has to finish its own call. The next thread that works on
    /// the client writes the remaining records.
    fn emit_log_records(&self) {
        let mut left = REPORTED_AT_ONCE;
        loop {
            let records = {
                let mut state = lock(&self.state);
                let records = if left > 0 { state.engine.log_buffer().take() } else { VecDeque::new() };
                state.is_emitting_records = !records.is_empty();
                records
            };
            if records.is_empty() {
                return;
            }
            left = left.saturating_sub(records.len());
            let mut span = lock(&self.span);
            for record in &records {
                // Rust has already printed the subscriber's panic message, and the panic does not affect the client.
                let _ = catch_unwind(AssertUnwindSafe(|| report::emit(record, &mut span)));
                if self.check_process().is_err() {
                    // This process is a child that a subscriber has forked.
                    return;
                }
            }
        }
    }
}

impl IoClient for Shell {
    fn on_ready(&self) -> (Option<Time>, bool) {
        self.run_on_io_thread(|state| {
            match state.socket_state {
                SocketState::Connecting { .. } => self.finish_connecting(state, clock::now()),
                SocketState::Securing { .. } => continue_securing(state, clock::now()),
                _ => {}
            }
            receive(state, ReadExtent::UntilEmpty)
        })
    }

    /// Reads received data before it runs the timers. The thread that reads the socket may have been stopped for some
    /// time. The unread data can then make a timer unnecessary.
    fn on_timer(&self) -> (Option<Time>, bool) {
        self.run_on_io_thread(|state| {
            self.check_connection(state);
            let more = receive(state, ReadExtent::UntilEmpty);
            state.report_stall();
            let now = clock::now();
            state.engine.advance(now);
            if state.reader.as_ref().is_some_and(|reader| now >= reader.until) {
                state.end_turn();
            }
            state.timer_at = None;
            more
        })
    }
}

impl SocketState {
    /// Returns the socket for which a reader waits.
    fn socket(&self) -> Option<RawFd> {
        if let Self::Connected(connection) = self { Some(connection.socket()) } else { None }
    }
}

impl LateAddresses {
    fn is_recent(&self, now: Time) -> bool {
        now - self.received_at <= MAX_ADDRESS_AGE
    }
}

impl State {
    /// Returns whether a calling thread reads the socket.
    fn has_reader(&self) -> bool {
        self.reader.as_ref().is_some_and(|reader| reader.turn == Turn::Reads)
    }

    /// Reports to the engine why the client does not connect, if it waits for another thread of the library. The reason
    /// is for the messages of calls that fail at their deadline.
    fn report_stall(&mut self) {
        let stalled = match (&self.io_thread, &self.socket_state) {
            (Some(io), _) if !io.has_started() => "the I/O thread has not started to run",
            // The resolver also needs the lock of the dynamic loader.
            (_, SocketState::Resolving(_)) => "its name is not resolved yet",
            _ => return,
        };
        let cause = format!(
            "{stalled} (threads cannot start and names cannot be resolved in a constructor of a library that is opened with \
             dlopen; a client must be created later, for example at its first use)"
        );
        self.engine.on_connection_event(clock::now(), ConnectionEvent::Stalled(&cause));
    }

    /// Returns the place for the handler of an operation that begins now. The present reader could delay its answer.
    fn answer_handlers_of_new_op(&mut self) -> &mut HashMap<OpId, Arc<dyn AnswerHandler>> {
        self.end_turn();
        &mut self.answer_handlers
    }

    /// Gives the reading back to the I/O thread.
    fn end_turn(&mut self) {
        if let Some(reader @ SocketReader { turn: Turn::Reads, .. }) = &mut self.reader {
            reader.turn = Turn::Ended;
        }
    }

    /// Returns whether the next attempt to connect can use inputs that are already loaded. If an attempt fails before
    /// the client has sent its credentials, the next attempt uses the same inputs. If a client leaves a server on
    /// purpose, it can therefore connect again even if a second load of the inputs would fail.
    fn has_ready_inputs(&self, now: Time, server: &Server) -> bool {
        let Some(ready) = &self.loading.ready else { return false };
        if !self.can_use_inputs(ready.server.as_ref(), server) {
            return false;
        }
        let is_recent = now - ready.loaded_at <= MAX_INPUT_AGE;
        let is_unused = self.engine.metrics().connections == ready.connections;
        is_recent && is_unused && (!self.inputs.has_credentials() || self.engine.has_credentials())
    }

    /// Returns whether inputs that were loaded for one server can be used for another one.
    fn can_use_inputs(&self, loaded_for: Option<&Server>, server: &Server) -> bool {
        !self.inputs.depend_on_server() || loaded_for == Some(server)
    }
}

fn client_failed_error() -> Error {
    let message = "the client has failed because of a panic in the library, and its locks are lost: free the client and create another \
                   one; please report the message of the panic, which is on standard error";
    Error::new(Status::Internal, message)
}

/// Continues the TLS handshake. If the connection does not use TLS, the function reports the connection to the engine
/// at once.
fn continue_securing(state: &mut State, now: Time) {
    let SocketState::Securing { mut connection, local_address } =
        std::mem::replace(&mut state.socket_state, SocketState::Idle)
    else {
        return;
    };
    match connection.continue_handshake() {
        Ok(true) => {
            state.socket_state = SocketState::Connected(connection);
            state.engine.on_connection_event(now, ConnectionEvent::Connected(&local_address));
        }
        Ok(false) => state.socket_state = SocketState::Securing { connection, local_address },
        Err(cause) => lose_connection(state, now, &cause),
    }
}

/// Reports to the engine that the connection has failed.
fn lose_connection(state: &mut State, now: Time, cause: &io::Error) {
    state.socket_state = SocketState::Idle;
    let message = cause.to_string();
    if tls::is_refusal(cause) {
        state.engine.on_connection_event(now, ConnectionEvent::CertificateRefused(&message));
    } else if tls::is_plain_text(cause) {
        state.engine.on_connection_event(now, ConnectionEvent::ProtocolRefused(&message));
    } else {
        state.engine.on_connection_event(now, ConnectionEvent::Disconnected(&message));
    }
}

/// Closes the connection, because the engine has ended it.
fn close_connection(state: &mut State) {
    if let SocketState::Connected(connection) = std::mem::replace(&mut state.socket_state, SocketState::Idle) {
        connection.close();
    }
}

/// The maximum time for which the client keeps addresses that the resolver returned too late for the attempt that
/// needed them. The next attempt uses these addresses. A name can move to another address within seconds, as the name
/// of a pod does in Kubernetes. If this limit were shorter, addresses from a slow resolver would always be too old. The
/// client would then resolve its servers' names again and again without ever trying to connect.
const MAX_ADDRESS_AGE: Duration = Duration::from_secs(30);
/// An attempt to connect uses credentials and TLS files only if the client loaded them within this time. A
/// client that leaves a server on purpose tries another server in less than this time.
const MAX_INPUT_AGE: Duration = Duration::from_secs(30);
/// After writing this many log records, a thread stops writing to the log.
const REPORTED_AT_ONCE: usize = 1024;
/// The longest time for which a calling thread reads the socket. An answer to a request usually takes less time. In a
/// longer wait, the additional wake-up of the calling thread does not matter.
const READER_LIMIT: Duration = Duration::from_millis(10);
/// The number of bytes that one read can return.
const BUFFER: usize = 16 * 1024;
/// The largest number of reads from one socket before the I/O thread serves other clients.
const READS: usize = 4;

/// Selects whether a thread reads a socket until it is empty. A thread that receives only one event for each change of
/// the socket must read until the socket is empty. Other threads may leave unread data in the socket, because they
/// check it again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadExtent {
    UntilEmpty,
    Available,
}

/// Passes received data to the engine. Returns true if the socket may have more data.
///
/// A TLS connection can contain decrypted data for which the socket reports no event. The function therefore reads
/// until the connection contains no such data.
fn receive(state: &mut State, extent: ReadExtent) -> bool {
    let mut reads = 0;
    loop {
        let SocketState::Connected(connection) = &mut state.socket_state else { return false };
        if reads >= READS && !connection.has_unread() {
            return true;
        }
        reads += 1;
        let failed = match connection.read(&mut state.buffer) {
            Ok(0) => io::Error::other("the server closed the connection"),
            Ok(count) => {
                let has_unread = connection.has_unread();
                // The answer to the handshake contains the password of the session.
                let has_password = state.engine.state() != ClientState::Connected;
                let bytes = state.buffer.get_mut(..count).unwrap_or_default();
                let goes_on = state.engine.received(clock::now(), bytes).is_continue();
                if has_password {
                    bytes.zeroize();
                }
                if goes_on && (extent == ReadExtent::UntilEmpty || count == BUFFER || has_unread) {
                    continue;
                }
                // If the engine has ended the connection, the engine does not need the remaining data.
                return false;
            }
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return false,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
            Err(cause) => cause,
        };
        lose_connection(state, clock::now(), &failed);
        return false;
    }
}

/// Sends the engine's output until all bytes are sent or the socket has no more room. If the socket has no more room, a
/// later call of this function sends the remaining bytes.
fn flush(state: &mut State) -> io::Result<()> {
    let SocketState::Connected(connection) = &mut state.socket_state else { return Ok(()) };
    let output = state.engine.output();
    while !output.is_empty() {
        match connection.write(output) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => drop(output.drain(..count)),
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    connection.flush()
}

/// Selects the events that the poller reports to the I/O thread. If a calling thread is the reader, the poller does not
/// report received data.
fn update_interest(state: &mut State) -> io::Result<()> {
    let has_reader = state.has_reader();
    let SocketState::Connected(connection) = &mut state.socket_state else { return Ok(()) };
    let has_output = connection.wants_write() || !state.engine.output().is_empty();
    let watch = SocketInterest { readable: !has_reader, writable: has_output };
    connection.set_interest(watch)
}

/// The work that a thread does after it has released the state lock.
#[derive(Default)]
struct DeferredWork {
    answers: VecDeque<(Arc<dyn AnswerHandler>, OpId, Result<Answer>)>,
    /// The I/O thread, if it must be notified of an earlier timeout.
    io_thread: Option<Arc<IoThread>>,
    /// The reader's socket waiter, if the reader must wake up. The reader must wake up when its operation is answered,
    /// or when the socket is replaced or closed.
    reader_to_wake: Option<Arc<SocketWaiter>>,
    /// True if there are records to write to the log.
    has_log_records: bool,
}

/// The period during which a thread is the reader.
struct ReaderTurn<'a> {
    shell: &'a Shell,
    socket_waiter: Arc<SocketWaiter>,
    op: OpId,
    socket: Option<RawFd>,
    is_over: bool,
}

/// Ends the turn of the reader after a panic, so that another thread can read the socket.
impl Drop for ReaderTurn<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = self.shell.with_state(|state| state.reader = None);
        }
    }
}

/// An answer handler, which receives the answer of one operation of the engine.
pub(crate) trait AnswerHandler: Send + Sync {
    /// Receives the answer. The library calls this method exactly once, and holds no lock during the call. The calling
    /// thread often reads for other threads, so this method must not block.
    fn on_answer(self: Arc<Self>, op: OpId, answer: Result<Answer>);
}

#[cfg(all(test, zklock_loom))]
pub(crate) mod models;

#[cfg(all(test, not(zklock_loom)))]
mod tests;
