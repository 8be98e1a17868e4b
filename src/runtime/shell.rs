//! One client's shell: its engine under a lock, its socket, and those who wait for answers.
//!
//! Whoever has something for the engine, a calling thread or the I/O thread, takes the lock, feeds it, carries out what it
//! says (bytes go straight to the socket), and tells exactly those whose call is answered, after the lock is free again.
//!
//! The socket is read by the I/O thread, or by a thread that waits for an answer: the *reader*. There is one at most, and it alone ends its
//! turn: when its call is answered, by whomever, or its time is over.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mio::Token;
use tracing::Span;

use super::callback::{Hook, during, run};
use super::connection::{Connection, Watch};
use super::fork::Epoch;
use super::io::{Io, serving};
use super::lookout::{Lookout, Seen};
use super::outlet::Outlet;
use super::sync::{Monitor, Mutex, MutexGuard, lock};
use super::{clock, report, resolve, resource};
use crate::config::Config;
use crate::engine::{Answer, Engine, LockId, OpId};
use crate::error::{Error, Result, Status};
use crate::lock::RevocationHandler;
use crate::session::{Command, Server};
use crate::time::Time;

pub(crate) struct Shell {
    epoch: Epoch,
    token: Token,
    this: Weak<Self>,
    state: Mutex<State>,
    /// Locked after the state, where both are.
    outlet: Arc<Outlet>,
    /// Of the session that there is, for those who trace. Used by who reports, under no lock but this one.
    span: Mutex<Span>,
}

struct State {
    engine: Engine,
    link: Link,
    /// How many connections were tried: each begins with another one of a name's addresses.
    attempts: usize,
    /// What is being resolved now, each on a thread of its own. A resolver that hangs is not asked again.
    resolving: Vec<Server>,
    /// Answers that came when it was another server's turn.
    resolved: Vec<(Server, Vec<SocketAddr>)>,
    callers: HashMap<OpId, Arc<dyn Caller>>,
    /// The callers of guards. No thread waits for a guard, so it does not keep the thread that waits for another call from reading.
    guards: HashMap<OpId, Arc<dyn Caller>>,
    reader: Option<Reader>,
    /// Where the reader waits. None when the client is closed.
    lookout: Option<Arc<Lookout>>,
    /// What is read comes here first.
    buffer: Box<[u8]>,
    /// A thread is telling the log what happened, and goes on until it is told all.
    is_reporting: bool,
    /// When the I/O thread will call by itself.
    planned: Option<Time>,
    /// The engine has panicked on the I/O thread, and is not to be relied on.
    has_failed: bool,
    /// The I/O thread, as long as the client has a place there.
    io: Option<Arc<Io>>,
}

enum Link {
    Idle,
    Resolving(Server),
    Connecting { connection: Connection, others: Vec<SocketAddr> },
    Open(Connection),
}

/// The thread that reads the socket in the place of the I/O thread.
struct Reader {
    /// What it waits for.
    op: OpId,
    /// Where it waits.
    socket: Option<RawFd>,
}

impl Shell {
    /// Gives an engine a place on the I/O thread, and its handler somebody who calls it.
    pub(crate) fn start(engine: Engine, config: &Config) -> Result<Arc<Self>> {
        let outlet = Outlet::open(config.calls(), config.handler())?;
        let lookout = Lookout::new()?;
        Io::join(|io, token| Self::new(engine, token, Some(io), outlet, lookout))
    }

    fn new(engine: Engine, token: Token, io: Option<Arc<Io>>, outlet: Arc<Outlet>, lookout: Lookout) -> Arc<Self> {
        let state = State {
            engine,
            link: Link::Idle,
            attempts: 0,
            resolving: Vec::new(),
            resolved: Vec::new(),
            callers: HashMap::new(),
            guards: HashMap::new(),
            reader: None,
            lookout: Some(Arc::new(lookout)),
            buffer: vec![0; BUFFER].into(),
            is_reporting: false,
            planned: None,
            has_failed: false,
            io,
        };
        let state = Mutex::new(state);
        Arc::new_cyclic(|this| Self {
            epoch: Epoch::current(),
            token,
            this: Weak::clone(this),
            state,
            outlet,
            span: Mutex::new(Span::none()),
        })
    }

    /// Has the calling thread tell the last news of a program that dispatches by itself, by `patience` or not at all. To be called
    /// once, when the engine is told to close.
    pub(crate) fn tell_rest(&self, patience: Time) {
        self.outlet.tell_rest(patience);
    }

    /// Takes the client off the I/O thread. To be called once, when the engine is closed. Its last events are delivered by
    /// `patience` or not at all.
    pub(crate) fn stop(&self, patience: Time) {
        let io = {
            let mut state = self.state();
            // Its descriptor is closed with the client, or by a reader that has been woken and not gone yet.
            state.lookout = None;
            state.io.take()
        };
        if let Some(io) = io {
            io.leave(self.token);
        }
        // Not under the lock: it waits for handlers, which may ask us something.
        self.outlet.close(patience - clock::now());
    }

    /// Waits until another thread has stopped it, `patience` at most.
    pub(crate) fn await_end(&self, patience: Duration) -> Result<()> {
        self.outlet()?.await_end(patience);
        Ok(())
    }

    /// The client's way to its program.
    pub(crate) fn outlet(&self) -> Result<&Arc<Outlet>> {
        self.check()?;
        Ok(&self.outlet)
    }

    /// FORKED in a child of the process that made it.
    pub(crate) fn check(&self) -> Result<()> {
        self.epoch.check()
    }

    /// Asks the engine something that changes nothing.
    pub(crate) fn ask<T>(&self, question: impl FnOnce(&Engine, Time) -> T) -> Result<T> {
        self.check()?;
        let state = lock(&self.state);
        state.check()?;
        Ok(question(&state.engine, clock::now()))
    }

    /// Tells the engine something that has no answer.
    pub(crate) fn tell(&self, order: impl FnOnce(&mut Engine, Time)) -> Result<()> {
        self.check()?;
        self.with(|engine, now| order(engine, now));
        Ok(())
    }

    /// Has `handler` called when a lock is asked back, in the place of the one before, if any.
    pub(crate) fn set_revocable(&self, id: LockId, handler: Option<Arc<RevocationHandler>>) -> Result<()> {
        self.check()?;
        let is_revocable = handler.is_some();
        if is_revocable {
            self.outlet.engage()?;
        }
        let mut woken = Woken::default();
        let mut state = self.state();
        state.check()?;
        if !state.engine.is_open(id) || state.io.is_none() {
            return Err(Status::Closed.into());
        }
        // In one step with what the engine is told, so that of two that are set at once one is there as a whole.
        let before = self.outlet.set_revocable(id, handler);
        let now = clock::now();
        state.engine.set_revocable(now, id, is_revocable);
        self.pump(&mut state, now, &mut woken);
        drop(state);
        self.finish(woken);
        drop(before);
        Ok(())
    }

    /// Nobody is to hear any more that a lock is asked back.
    pub(crate) fn forget(&self, id: LockId) -> Result<()> {
        self.check()?;
        drop(self.outlet.set_revocable(id, None));
        Ok(())
    }

    /// Starts a call that is waited for.
    pub(crate) fn call(
        self: &Arc<Self>,
        deadline: Option<Time>,
        submit: impl FnOnce(&mut Engine, Time) -> OpId,
    ) -> Result<Pending> {
        let waiter = Arc::new(Waiter::default());
        let op = self.submit(Arc::clone(&waiter) as Arc<dyn Caller>, submit)?;
        Ok(Pending { shell: Arc::clone(self), op, waiter, deadline })
    }

    /// Starts a call. Its caller may have been told the answer before this returns.
    pub(crate) fn submit(
        &self,
        caller: Arc<dyn Caller>,
        submit: impl FnOnce(&mut Engine, Time) -> OpId,
    ) -> Result<OpId> {
        self.begin(submit, |state| &mut state.callers, caller)
    }

    /// Starts a call that looks after a hold. As with [`submit`](Self::submit), the answer may come first.
    pub(crate) fn guard(
        &self,
        caller: Arc<dyn Caller>,
        submit: impl FnOnce(&mut Engine, Time) -> OpId,
    ) -> Result<OpId> {
        self.begin(submit, |state| &mut state.guards, caller)
    }

    fn begin(
        &self,
        submit: impl FnOnce(&mut Engine, Time) -> OpId,
        calls: fn(&mut State) -> &mut HashMap<OpId, Arc<dyn Caller>>,
        caller: Arc<dyn Caller>,
    ) -> Result<OpId> {
        self.check()?;
        let mut woken = Woken::default();
        let mut state = self.state();
        state.check()?;
        let now = clock::now();
        let op = submit(&mut state.engine, now);
        calls(&mut state).insert(op, caller);
        self.pump(&mut state, now, &mut woken);
        drop(state);
        self.finish(woken);
        Ok(op)
    }

    /// A call's deadline has come, by its caller's clock. True where the call is answered: by this, before it returns, or by another
    /// thread, which is about to say so.
    pub(crate) fn expire(&self, op: OpId) -> bool {
        let mut woken = Woken::default();
        let mut state = self.state();
        if state.has_failed {
            return true;
        }
        if state.reader.is_some() {
            // A thread that gets no processor time may be the reader, and the answer be there.
            receive(&mut state, Thoroughly::No);
        }
        let now = clock::now();
        state.engine.expire(now, op);
        self.pump(&mut state, now, &mut woken);
        let is_answered = !state.callers.contains_key(&op);
        drop(state);
        self.finish(woken);
        is_answered
    }

    /// Gives up a call that wants to get into a lock; its answer comes all the same, and may be a success that was just quicker.
    pub(crate) fn cancel(&self, op: OpId) {
        self.with(|engine, now| engine.cancel_op(now, op));
    }

    // The reader.

    /// Waits until a call is answered, `limit` at most, and reads the socket meanwhile. False, at once, where that is not for this thread to do:
    /// others wait as well, one reads already, or is about to hand the answer over, or there is no connection.
    pub(crate) fn read_for(&self, op: OpId, limit: Option<Duration>) -> bool {
        let end = limit.map(|limit| clock::now() + limit);
        let Some(mut turn) = self.take_turn(op) else { return false };
        while !turn.is_over {
            let mut seen = turn.lookout.wait(turn.socket, end.map(|end| end - clock::now()));
            if end.is_some_and(|end| clock::now() >= end) {
                // Whatever it was: others' answers may come all the time.
                seen = Seen::Nothing;
            }
            self.go_on(&mut turn, seen);
            // A child that somebody's hook has forked, and in it a copy of this thread, leaves all as it is.
            turn.is_over |= self.check().is_err();
        }
        true
    }

    fn take_turn(&self, op: OpId) -> Option<Turn<'_>> {
        let mut woken = Woken::default();
        let mut state = self.state();
        // Others' answers would have to wait until this thread gets a processor, and it would go on before it lets them.
        let is_alone = state.callers.len() == 1 && state.callers.contains_key(&op);
        let is_free = is_alone && state.reader.is_none() && matches!(state.link, Link::Open(_));
        let lookout = state.lookout.clone().filter(|_| is_free)?;
        let socket = state.link.socket();
        state.reader = Some(Reader { op, socket });
        self.pump(&mut state, clock::now(), &mut woken);
        drop(state);
        let mut turn = Turn { shell: self, lookout, op, socket, is_over: false };
        serving(|| self.finish(woken));
        turn.is_over = self.check().is_err();
        Some(turn)
    }

    /// Once it has waited.
    fn go_on(&self, turn: &mut Turn<'_>, seen: Seen) {
        let mut woken = Woken::default();
        let mut state = self.state();
        // Where its time is over, too: a thread that stood still may find its answer there.
        if seen != Seen::Alarm {
            receive(&mut state, Thoroughly::No);
        }
        self.pump(&mut state, clock::now(), &mut woken);
        turn.is_over = seen == Seen::Nothing || !state.callers.contains_key(&turn.op);
        if turn.is_over {
            self.end_turn(&mut state, &mut woken);
        }
        turn.socket = state.link.socket();
        drop(state);
        woken.reader = None;
        if turn.is_over { self.finish(woken) } else { serving(|| self.finish(woken)) }
    }

    /// The I/O thread reads again, and first what has come in meanwhile.
    fn end_turn(&self, state: &mut State, woken: &mut Woken) {
        state.reader = None;
        self.pump(state, clock::now(), woken);
    }

    // The I/O thread.

    /// The socket may have something to read, room to write, or a connection. Gives the time of the next tick, and whether the
    /// socket may have still more.
    pub(super) fn ready(&self) -> (Option<Time>, bool) {
        let mut state = self.state();
        if matches!(state.link, Link::Connecting { .. }) {
            self.finish_connecting(&mut state, clock::now());
        }
        let more = receive(&mut state, Thoroughly::Yes);
        (self.go_to_sleep(state), more)
    }

    /// Something may be due. Gives the time of the next tick. What has come in is read first: where a thread that stood still was the reader, it may
    /// be there that nothing is due.
    pub(super) fn tick(&self) -> (Option<Time>, bool) {
        let mut state = self.state();
        self.check_connection(&mut state);
        let more = receive(&mut state, Thoroughly::Yes);
        state.engine.advance(clock::now());
        state.planned = None;
        (self.go_to_sleep(state), more)
    }

    /// Drops a connection whose descriptor another part of the program has closed, or that the I/O thread does not wait for any more.
    fn check_connection(&self, state: &mut State) {
        let (Link::Connecting { connection, .. } | Link::Open(connection)) = &mut state.link else { return };
        if let Some(io) = &state.io
            && let Err(cause) = connection.check(io)
        {
            self.give_up_attempt(state, clock::now(), &cause.to_string());
        }
    }

    /// Ends the client after a panic in its work on the I/O thread. Pending and later calls fail with INTERNAL, and all holds are LOST. The
    /// connection is dropped and the session left to its timeout, so no other client gets a lock before that.
    pub(super) fn fail(&self) {
        let mut state = lock(&self.state);
        state.has_failed = true;
        state.link = Link::Idle;
        let callers = std::mem::take(&mut state.callers).into_iter().chain(std::mem::take(&mut state.guards));
        let lookout = state.lookout.take();
        // The engine is asked for no more than its last news, and may panic again.
        let engine = &mut state.engine;
        let last_news = catch_unwind(AssertUnwindSafe(|| {
            engine.abandon(clock::now());
            std::iter::from_fn(|| engine.poll_news()).collect::<Vec<_>>()
        }));
        for news in last_news.unwrap_or_default() {
            self.outlet.tell(news);
        }
        drop(state);
        for (op, caller) in callers {
            caller.answered(op, Err(failed()));
        }
        if let Some(lookout) = lookout {
            lookout.wake();
        }
    }

    fn go_to_sleep(&self, mut state: MutexGuard<'_, State>) -> Option<Time> {
        let mut woken = Woken::default();
        self.pump(&mut state, clock::now(), &mut woken);
        // The I/O thread itself is here, and need not be told.
        woken.thread = None;
        // Not put off before it has come: the next call's deadline would be nearer again, and to be told.
        let next = state.planned;
        drop(state);
        self.finish(woken);
        next
    }

    // Carrying out.

    /// For those who feed the engine, and so may have it make notes.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        state.engine.notes().want(report::wanted());
        if let Link::Open(connection) = &mut state.link {
            connection.locked();
        }
        state
    }

    fn with(&self, work: impl FnOnce(&mut Engine, Time)) {
        self.with_state(|state, now| work(&mut state.engine, now));
    }

    fn with_state(&self, work: impl FnOnce(&mut State, Time)) {
        let mut woken = Woken::default();
        let mut state = self.state();
        if state.has_failed {
            return;
        }
        let now = clock::now();
        work(&mut state, now);
        self.pump(&mut state, now, &mut woken);
        drop(state);
        self.finish(woken);
    }

    /// Carries out what the engine says, but for what has to wait until the lock is free.
    fn pump(&self, state: &mut State, now: Time, woken: &mut Woken) {
        if state.has_failed {
            return;
        }
        loop {
            while let Some(command) = state.engine.poll_command() {
                match command {
                    Command::Connect(server) => self.connect(state, now, server),
                    Command::Disconnect => state.link = Link::Idle,
                }
            }
            match flush(state).and_then(|()| watch(state)) {
                Ok(()) => break,
                Err(cause) => {
                    state.link = Link::Idle;
                    state.engine.disconnected(now, &cause.to_string());
                }
            }
        }
        while let Some((op, answer)) = state.engine.poll_answer() {
            if let Some(caller) = state.callers.remove(&op).or_else(|| state.guards.remove(&op)) {
                woken.callers.push((caller, op, answer));
            }
        }
        while let Some(news) = state.engine.poll_news() {
            self.outlet.tell(news);
        }
        if !state.is_reporting && !state.engine.notes().is_empty() {
            state.is_reporting = true;
            woken.reports = true;
        }
        let socket = state.link.socket();
        if let Some(reader) = &mut state.reader {
            let is_answered = !woken.callers.is_empty() && !state.callers.contains_key(&reader.op);
            if is_answered || reader.socket != socket {
                woken.reader = state.lookout.clone();
            }
            reader.socket = socket;
        }
        let next = state.engine.next_timeout();
        if next.is_some_and(|next| state.planned.is_none_or(|planned| next < planned)) {
            state.planned = next;
            woken.thread = state.io.clone();
        }
    }

    fn finish(&self, woken: Woken) {
        if let Some(io) = woken.thread {
            io.changed(self.token);
        }
        for (caller, op, answer) in woken.callers {
            caller.answered(op, answer);
            if self.check().is_err() {
                // A child that somebody's hook has forked.
                return;
            }
        }
        if let Some(lookout) = woken.reader {
            lookout.wake();
        }
        if woken.reports {
            // Who listens must not wait for what this thread may have to bring.
            during(|| self.report());
        }
    }

    /// Tells the log what happened, in the order in which it did: one thread at a time, and with no lock that others wait for. What others add meanwhile
    /// it tells as well, up to a limit, for it has a call of its own to end: what is left then is told by the next that does anything.
    fn report(&self) {
        let mut left = REPORTED_AT_ONCE;
        loop {
            let notes = {
                let mut state = lock(&self.state);
                let notes = if left > 0 { state.engine.notes().take() } else { VecDeque::new() };
                state.is_reporting = !notes.is_empty();
                notes
            };
            if notes.is_empty() {
                return;
            }
            left = left.saturating_sub(notes.len());
            let mut span = lock(&self.span);
            for note in &notes {
                // A panic in the program's subscriber has been printed, and concerns no client.
                let _ = catch_unwind(AssertUnwindSafe(|| report::report(note, &mut span)));
                if self.check().is_err() {
                    // A child that whoever listens has forked.
                    return;
                }
            }
        }
    }

    // Connecting.

    fn connect(&self, state: &mut State, now: Time, server: Server) {
        state.attempts += 1;
        if let Some(address) = resolve::literal(&server) {
            return self.try_next(state, now, vec![address], "no address");
        }
        if let Some(at) = state.resolved.iter().position(|(name, _)| *name == server) {
            let (_, addresses) = state.resolved.swap_remove(at);
            return self.try_next(state, now, addresses, "no address");
        }
        state.link = Link::Resolving(server.clone());
        if state.resolving.contains(&server) {
            return;
        }
        let (this, name) = (Weak::clone(&self.this), server.clone());
        let started = resolve::in_background(&server, move |addresses| {
            if let Some(shell) = this.upgrade() {
                shell.resolved(&name, addresses);
            }
        });
        match started {
            Ok(()) => state.resolving.push(server),
            Err(cause) => self.give_up_attempt(state, now, &format!("its name can't be resolved: no thread: {cause}")),
        }
    }

    fn resolved(&self, server: &Server, addresses: resolve::Found) {
        let mut woken = Woken::default();
        let mut state = self.state();
        state.resolving.retain(|resolving| resolving != server);
        let wanted = matches!(&state.link, Link::Resolving(wanted) if wanted == server);
        if !wanted {
            // Slow, but not lost: it is this server's turn again soon.
            let addresses = addresses.unwrap_or_default();
            if !addresses.is_empty() && state.io.is_some() {
                state.resolved.push((server.clone(), addresses));
            }
            return;
        }
        let now = clock::now();
        match addresses {
            Ok(mut addresses) if !addresses.is_empty() => {
                // Another one first each time, lest one that swallows everything keeps the others from their turn.
                let first = state.attempts % addresses.len();
                addresses.rotate_left(first);
                self.try_next(&mut state, now, addresses, "no address");
            }
            Ok(_) => self.give_up_attempt(&mut state, now, "its name has no address"),
            Err(cause) => self.give_up_attempt(&mut state, now, &format!("its name can't be resolved: {cause}")),
        }
        self.pump(&mut state, now, &mut woken);
        drop(state);
        self.finish(woken);
    }

    /// Begins a connection to the first address that does not fail at once.
    fn try_next(&self, state: &mut State, now: Time, mut addresses: Vec<SocketAddr>, cause: &str) {
        let mut cause = cause.to_owned();
        while !addresses.is_empty() {
            let address = addresses.remove(0);
            match begin(state, address, self.token) {
                Ok(connection) => {
                    state.link = Link::Connecting { connection, others: addresses };
                    return;
                }
                Err(error) => {
                    if let Some(what) = resource::shortage(&error) {
                        // The same would happen to the other addresses.
                        state.link = Link::Idle;
                        return state.engine.starved(now, &format!("{what} ({error})"));
                    }
                    cause = error.to_string();
                }
            }
        }
        self.give_up_attempt(state, now, &cause);
    }

    fn finish_connecting(&self, state: &mut State, now: Time) {
        #[cfg_attr(feature = "loom", allow(unused_mut, reason = "a wire's outcome changes nothing"))]
        let Link::Connecting { mut connection, others } = std::mem::replace(&mut state.link, Link::Idle) else {
            return;
        };
        let failed = match connection.outcome() {
            Some(Ok(local)) => {
                state.link = Link::Open(connection);
                state.engine.connected(now, &local);
                return;
            }
            None => {
                // Not yet: the event was an old one.
                state.link = Link::Connecting { connection, others };
                return;
            }
            Some(Err(cause)) => cause,
        };
        self.try_next(state, now, others, &failed.to_string());
    }

    fn give_up_attempt(&self, state: &mut State, now: Time, cause: &str) {
        state.link = Link::Idle;
        state.engine.disconnected(now, cause);
    }
}

impl Link {
    /// What a reader waits at.
    fn socket(&self) -> Option<RawFd> {
        if let Self::Open(connection) = self { Some(connection.socket()) } else { None }
    }
}

impl State {
    fn check(&self) -> Result<()> {
        if self.has_failed { Err(failed()) } else { Ok(()) }
    }
}

fn failed() -> Error {
    let message = "the client has failed, by a panic on the I/O thread, and what it held is to be taken for lost: free it, and make \
                   another one; please report the panic's message, which is on standard error";
    Error::new(Status::Internal, message)
}

fn begin(state: &State, address: SocketAddr, token: Token) -> io::Result<Connection> {
    let io = state.io.as_ref().ok_or(io::ErrorKind::NotConnected)?;
    Connection::begin(io, token, address)
}

/// So many notes a thread tells the log for others, beside its own.
const REPORTED_AT_ONCE: usize = 1024;
/// How much is read at once.
const BUFFER: usize = 16 * 1024;
/// How often a socket is read before others have their turn.
const READS: usize = 4;

/// Whether a socket is read until it says that it is empty: who is told only once that it has something must, who looks again need not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thoroughly {
    Yes,
    No,
}

/// Feeds what has come in. True if there may be more.
fn receive(state: &mut State, thoroughly: Thoroughly) -> bool {
    for _ in 0..READS {
        let Link::Open(connection) = &mut state.link else { return false };
        let failed = match connection.read(&mut state.buffer) {
            Ok(0) => "it closed the connection".to_owned(),
            Ok(count) => {
                let bytes = state.buffer.get(..count).unwrap_or_default();
                let goes_on = state.engine.received(clock::now(), bytes).is_continue();
                if goes_on && (thoroughly == Thoroughly::Yes || count == BUFFER) {
                    continue;
                }
                // Where the engine has hung up, what else is in the socket is nobody's.
                return false;
            }
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return false,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
            Err(cause) => cause.to_string(),
        };
        state.link = Link::Idle;
        state.engine.disconnected(clock::now(), &failed);
        return false;
    }
    true
}

/// Sends what there is to send, as far as the socket takes it; the rest goes when it has room.
fn flush(state: &mut State) -> io::Result<()> {
    let Link::Open(connection) = &mut state.link else { return Ok(()) };
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
    Ok(())
}

/// The I/O thread is told what nobody else looks for.
fn watch(state: &mut State) -> io::Result<()> {
    let Link::Open(connection) = &mut state.link else { return Ok(()) };
    let watch = Watch { input: state.reader.is_none(), room: !state.engine.output().is_empty() };
    connection.set_watch(watch)
}

/// What is left to do once the lock is free.
#[derive(Default)]
struct Woken {
    callers: Vec<(Arc<dyn Caller>, OpId, Result<Answer>)>,
    /// To be told that the next timeout has come nearer.
    thread: Option<Arc<Io>>,
    /// The reader is to look: its call is answered, or there is another socket, or none.
    reader: Option<Arc<Lookout>>,
    /// The log is to be told what happened.
    reports: bool,
}

/// A thread's turn as the reader.
struct Turn<'a> {
    shell: &'a Shell,
    lookout: Arc<Lookout>,
    op: OpId,
    socket: Option<RawFd>,
    is_over: bool,
}

/// However it ends, the socket is read.
impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let mut woken = Woken::default();
            self.shell.end_turn(&mut self.shell.state(), &mut woken);
            self.shell.finish(woken);
        }
    }
}

/// Whoever made a call.
pub(crate) trait Caller: Send + Sync {
    /// It is answered; every call is, once. No lock is held, and the thread is often one that reads for others: it must not be kept waiting.
    fn answered(self: Arc<Self>, op: OpId, answer: Result<Answer>);
}

/// Where a thread waits for the answer to one call.
#[derive(Default)]
struct Waiter {
    reply: Monitor<Reply>,
}

#[derive(Default)]
struct Reply {
    answer: Option<Result<Answer>>,
    /// It is there, or was, and has been taken.
    is_over: bool,
    /// To be run when it is there.
    hooks: Vec<Hook>,
}

impl Caller for Waiter {
    fn answered(self: Arc<Self>, _: OpId, answer: Result<Answer>) {
        let mut reply = self.reply.lock();
        reply.answer = Some(answer);
        reply.is_over = true;
        let hooks = std::mem::take(&mut reply.hooks);
        drop(reply);
        self.reply.notify();
        hooks.into_iter().for_each(run);
    }
}

impl Waiter {
    /// Waits for the answer, `limit` at most.
    fn wait(&self, limit: Option<Duration>) -> Option<Result<Answer>> {
        let reply = self.reply.lock();
        self.reply.wait_while(reply, limit, |reply| reply.answer.is_none()).answer.take()
    }
}

/// A call under way.
pub(crate) struct Pending {
    shell: Arc<Shell>,
    op: OpId,
    waiter: Arc<Waiter>,
    deadline: Option<Time>,
}

impl Pending {
    /// The same call, whose engine gives it a deadline.
    pub(crate) fn until(self, deadline: Time) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Has `hook` run when the answer is there, by the thread that finds it so: at once where it is.
    pub(crate) fn on_done(&self, hook: Hook) -> Result<()> {
        self.shell.check()?;
        let mut reply = self.waiter.reply.lock();
        if !reply.is_over {
            reply.hooks.push(hook);
            return Ok(());
        }
        drop(reply);
        run(hook);
        Ok(())
    }

    /// Whether the answer is there, or was taken.
    pub(crate) fn is_over(&self) -> bool {
        self.waiter.reply.lock().is_over
    }

    /// Waits for the answer. The deadline is kept by this thread itself, whatever the I/O thread is doing.
    pub(crate) fn wait(&self) -> Result<Answer> {
        loop {
            if let Some(answer) = self.wait_for(Duration::MAX) {
                return answer;
            }
        }
    }

    /// Waits `slice` at most.
    pub(crate) fn wait_for(&self, slice: Duration) -> Option<Result<Answer>> {
        if let Some(answer) = self.waiter.wait(Some(Duration::ZERO)) {
            return Some(answer);
        }
        let left = self.deadline.map(|deadline| deadline - clock::now());
        let limit = match left {
            Some(left) => Some(left.min(slice)),
            None => (slice < Duration::MAX).then_some(slice),
        };
        let has_waited = limit != Some(Duration::ZERO) && self.shell.read_for(self.op, limit);
        if let Err(forked) = self.shell.check() {
            return Some(Err(forked));
        }
        if let Some(answer) = self.waiter.wait(if has_waited { Some(Duration::ZERO) } else { limit }) {
            return Some(answer);
        }
        // Whoever has the answer is about to hand it over.
        if self.shell.expire(self.op) { self.waiter.wait(None) } else { None }
    }
}

#[cfg(all(test, feature = "loom"))]
pub(crate) mod models;
