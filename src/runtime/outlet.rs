//! One client's way to its program: the news that wait to be told, the program's handlers, and who calls them. That is the
//! dispatcher thread, or one of the program's that was told to, by a descriptor or a bell of its own.
//!
//! At any time one thread calls, and in the order in which things happened. No lock of ours is held meanwhile.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::dispatcher::{self, Place, Served};
use super::eventfd::EventFd;
use super::fork::Epoch;
use super::sync::{Monitor, MutexGuard, ThreadId, current_thread};
use super::{callback, clock};
use crate::config::{Bell, Calls, EventHandler};
use crate::engine::{Backlog, LockId, News};
use crate::error::{Error, Result, Status};
use crate::lock::RevocationHandler;
use crate::time::Time;

/// So many news of a client wait as they came, while nobody listens.
const LIMIT: usize = 1024;

/// See the module's description.
pub(crate) struct Outlet {
    state: Monitor<State>,
}

struct State {
    backlog: Backlog,
    caller: Caller,
    /// The caller knows that something waits.
    is_rung: bool,
    /// Which thread is calling now.
    serving: Option<ThreadId>,
    /// From now on only the thread that closes calls.
    is_closing: bool,
    is_closed: bool,
    /// Nobody is called any more, and no call is under way but of the one that closes.
    is_over: bool,
    listeners: Listeners,
    /// Who wants to hear that a lock is asked back.
    on_revocation: HashMap<LockId, Arc<RevocationHandler>>,
}

/// Who wants to hear of every change.
#[derive(Default)]
struct Listeners {
    of_config: Option<Arc<EventHandler>>,
    of_client: Option<Arc<EventHandler>>,
}

#[derive(Default)]
pub(super) enum Caller {
    /// There is nobody yet who wants to hear of anything.
    #[default]
    None,
    Dispatcher(Place),
    Polling(EventFd),
    Bell(Arc<Bell>),
}

impl Caller {
    /// Whether the calling thread is it, and would wait for itself.
    pub(super) fn is_this_thread(&self) -> bool {
        match self {
            Self::Dispatcher(_) => dispatcher::is_this_thread(),
            Self::Bell(_) => callback::is_within(),
            Self::None | Self::Polling(_) => false,
        }
    }
}

/// A client's handlers, to be called by who was told that one of them waits. It does not keep the client.
#[derive(Clone)]
pub struct Handlers(Arc<dyn Served>);

impl Handlers {
    pub(super) fn of(served: Arc<dyn Served>) -> Self {
        Self(served)
    }

    /// Calls the next one that waits, on the calling thread. False where none does. The bell rings again where others wait.
    pub fn call_next(&self) -> bool {
        Arc::clone(&self.0).call_next()
    }
}

/// Whether they are one client's.
impl PartialEq for Handlers {
    fn eq(&self, other: &Self) -> bool {
        self.0.address() == other.0.address()
    }
}

impl Outlet {
    pub(crate) fn handlers(self: &Arc<Self>) -> Handlers {
        Handlers::of(Arc::clone(self) as Arc<dyn Served>)
    }

    /// For a program that wants its handlers called in this way.
    pub(super) fn open(calls: &Calls, on_event: Option<Arc<EventHandler>>) -> Result<Arc<Self>> {
        let caller = match calls {
            Calls::OnThread if on_event.is_none() => Caller::None,
            Calls::OnThread => Caller::Dispatcher(Place::open()?),
            Calls::Polled => Caller::Polling(EventFd::new()?),
            Calls::Rung(bell) => Caller::Bell(Arc::clone(bell)),
        };
        Ok(Arc::new(Self::new(caller, on_event)))
    }

    pub(super) fn new(caller: Caller, on_event: Option<Arc<EventHandler>>) -> Self {
        let state = State {
            backlog: Backlog::new(LIMIT),
            caller,
            is_rung: false,
            serving: None,
            is_closing: false,
            is_closed: false,
            is_over: false,
            listeners: Listeners { of_config: on_event, of_client: None },
            on_revocation: HashMap::new(),
        };
        Self { state: Monitor::new(state) }
    }

    /// Has somebody call the handlers that are to come.
    pub(super) fn engage(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(Status::Closed.into());
        }
        if matches!(state.caller, Caller::None) {
            state.caller = Caller::Dispatcher(Place::open()?);
        }
        Ok(())
    }

    /// Puts a handler of events, or none, beside that of the config. The one before is given back.
    pub(crate) fn set_event_handler(&self, handler: Option<Arc<EventHandler>>) -> Result<Option<Arc<EventHandler>>> {
        if handler.is_some() {
            self.engage()?;
        }
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(Status::Closed.into());
        }
        Ok(std::mem::replace(&mut state.listeners.of_client, handler))
    }

    /// Puts a handler, or none, into the place of the one before, which is given back.
    pub(super) fn set_revocable(
        &self,
        id: LockId,
        handler: Option<Arc<RevocationHandler>>,
    ) -> Option<Arc<RevocationHandler>> {
        let handlers = &mut self.state.lock().on_revocation;
        match handler {
            Some(handler) => handlers.insert(id, handler),
            None => handlers.remove(&id),
        }
    }

    /// From now on nobody is called any more but whoever is being called now.
    pub(crate) fn silence(&self) {
        let mut state = self.state.lock();
        let dropped = (
            std::mem::replace(&mut state.backlog, Backlog::new(LIMIT)),
            std::mem::take(&mut state.listeners),
            std::mem::take(&mut state.on_revocation),
        );
        self.state.notify();
        drop(state);
        // Not under the lock: a handler may take the program's things with it.
        drop(dropped);
    }

    /// Something has happened.
    pub(super) fn tell(self: &Arc<Self>, news: News) {
        let mut state = self.state.lock();
        if state.is_closed || !state.is_wanted(&news) {
            return;
        }
        state.backlog.push(news);
        self.ring(&mut state);
    }

    /// Calls the handlers of what waits now, up to `limit`, on this thread, and gives how many that were. None where another
    /// thread is calling them: that one goes on.
    pub(crate) fn dispatch(self: &Arc<Self>, limit: usize) -> usize {
        let mut state = self.state.lock();
        if state.serving.is_some() || state.is_closing {
            return 0;
        }
        state.begin();
        let waiting = state.backlog.len().min(limit);
        let mut called = 0;
        while called < waiting && !state.is_closing {
            let Some(call) = state.next() else { break };
            called += 1;
            match self.call(state, call) {
                Some(next) => state = next,
                None => return called,
            }
        }
        self.end(&mut state);
        called
    }

    /// The descriptor that is readable while handlers wait to be called, and when the client is closed. Another one if the program has closed
    /// the one before, as if it were its own.
    pub(crate) fn fd(&self) -> Result<RawFd> {
        let state = &mut *self.state.lock();
        match &mut state.caller {
            Caller::Polling(fd) => {
                if !fd.is_ours() {
                    *fd = EventFd::new()?;
                    if state.is_rung {
                        fd.signal();
                    }
                }
                Ok(fd.as_raw_fd())
            }
            _ if state.is_closed => Err(Status::Closed.into()),
            _ => Err(not_polling()),
        }
    }

    /// INVALID where nobody is to dispatch.
    pub(crate) fn check_polling(&self) -> Result<()> {
        let state = self.state.lock();
        match &state.caller {
            Caller::Polling(_) => Ok(()),
            _ if state.is_closed => Err(Status::Closed.into()),
            _ => Err(not_polling()),
        }
    }

    /// A program that dispatches by itself, and closes, has the last news told by the thread that does, unless that is just being
    /// called. No other thread calls from then on. What has not begun by `end` is not told.
    pub(super) fn tell_rest(&self, end: Time) {
        let mut state = self.state.lock();
        if !matches!(state.caller, Caller::Polling(_)) || state.is_own() {
            return;
        }
        state.is_closing = true;
        state = self.state.wait_while(state, None, |state| state.serving.is_some());
        state.begin();
        while clock::now() < end {
            let Some(call) = state.next() else { break };
            match self.call(state, call) {
                Some(next) => state = next,
                None => return,
            }
        }
        state.serving = None;
        self.state.notify();
    }

    /// Tells what is left, within `patience`, and drops the rest and the handlers. Waits until the last call is over, unless it
    /// is a handler itself that asks.
    pub(super) fn close(self: &Arc<Self>, patience: Duration) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        let own = state.is_own();
        if !own {
            let has_more =
                |state: &mut State| state.serving.is_some() || !state.is_closing && !state.backlog.is_empty();
            state = self.state.wait_while(state, Some(patience), has_more);
        }
        state.is_closing = true;
        state.is_closed = true;
        let dropped = (
            std::mem::replace(&mut state.backlog, Backlog::new(0)),
            std::mem::take(&mut state.listeners),
            std::mem::take(&mut state.on_revocation),
        );
        if !own {
            state = self.state.wait_while(state, None, |state| state.serving.is_some());
        }
        let caller = std::mem::replace(&mut state.caller, Caller::None);
        state.is_over = true;
        self.state.notify();
        drop(state);
        match caller {
            // Who polls it now is to wake.
            Caller::Polling(fd) => fd.signal(),
            // The thread is seen off, where it was the last.
            caller => drop(caller),
        }
        // Not under the lock: a handler may take the program's things with it.
        drop(dropped);
    }

    /// Waits until another thread has closed it, `patience` at most, unless it is a handler itself that asks.
    pub(super) fn await_end(&self, patience: Duration) {
        let state = self.state.lock();
        if !state.is_own() {
            drop(self.state.wait_while(state, Some(patience), |state| !state.is_over));
        }
    }

    /// Calls a handler, with the lock free meanwhile. None in a child that the handler forked: there the lock may be taken for good, and
    /// what is under it is the parent's.
    fn call<'a>(&'a self, mut state: MutexGuard<'a, State>, call: Call) -> Option<MutexGuard<'a, State>> {
        let Call { handlers, news } = call;
        let epoch = Epoch::current();
        let mut handlers = handlers.into_iter();
        while let Some(handler) = handlers.next() {
            drop(state);
            handler.run(&news, epoch);
            if epoch != Epoch::current() {
                // What is left of them is the parent's.
                std::mem::forget(handlers);
                return None;
            }
            state = self.state.lock();
            if state.listeners.is_empty() {
                // Nobody is called any more, the other one of two included.
                break;
            }
        }
        Some(state)
    }

    fn end(self: &Arc<Self>, state: &mut State) {
        state.serving = None;
        self.state.notify();
        if !state.backlog.is_empty() {
            self.ring(state);
        }
    }

    fn ring(self: &Arc<Self>, state: &mut State) {
        // Who calls looks again when he is done.
        if state.is_rung || state.serving.is_some() {
            return;
        }
        state.is_rung = true;
        match &state.caller {
            Caller::None => {}
            Caller::Dispatcher(place) => place.serve(Arc::<Self>::clone(self)),
            Caller::Polling(fd) => fd.signal(),
            Caller::Bell(bell) => {
                // The panic has been printed. The next one to tell rings again.
                let rung = catch_unwind(AssertUnwindSafe(|| bell(self.handlers())));
                state.is_rung = rung.is_ok();
            }
        }
    }
}

impl Served for Outlet {
    fn call_next(self: Arc<Self>) -> bool {
        self.dispatch(1) > 0
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl State {
    /// The calling thread serves from now on.
    fn begin(&mut self) {
        self.serving = Some(current_thread());
        self.is_rung = false;
        if let Caller::Polling(fd) = &self.caller {
            fd.clear();
        }
    }

    /// The next call. What nobody wants to hear of any more is passed over.
    fn next(&mut self) -> Option<Call> {
        while let Some(news) = self.backlog.pop() {
            let handlers = self.handlers(&news);
            if !handlers.is_empty() {
                return Some(Call { handlers, news });
            }
        }
        None
    }

    /// Whom to call, one after the other.
    fn handlers(&self, news: &News) -> Vec<Handler> {
        match news {
            News::Event(_) => self.listeners.each().map(Handler::Event).collect(),
            News::Revocation(revocation) => {
                self.on_revocation.get(&revocation.lock).cloned().map(Handler::Revocation).into_iter().collect()
            }
        }
    }

    /// Whether anybody wants to hear of it.
    fn is_wanted(&self, news: &News) -> bool {
        match news {
            News::Event(_) => !self.listeners.is_empty(),
            News::Revocation(revocation) => self.on_revocation.contains_key(&revocation.lock),
        }
    }

    /// Whether the calling thread would wait for itself.
    fn is_own(&self) -> bool {
        self.caller.is_this_thread() || self.serving == Some(current_thread())
    }
}

impl Listeners {
    const fn is_empty(&self) -> bool {
        self.of_config.is_none() && self.of_client.is_none()
    }

    fn each(&self) -> impl Iterator<Item = Arc<EventHandler>> {
        [&self.of_config, &self.of_client].into_iter().flatten().cloned()
    }
}

/// What is to be called, and with what.
struct Call {
    handlers: Vec<Handler>,
    news: News,
}

enum Handler {
    Event(Arc<EventHandler>),
    Revocation(Arc<RevocationHandler>),
}

impl Handler {
    /// The handler may be dropped with it, and what it drops is the program's as well; but in a child that it forked, the parent drops it.
    fn run(self, news: &News, epoch: Epoch) {
        let call = move || {
            match (&self, news) {
                (Self::Event(handler), News::Event(event)) => handler(event),
                (Self::Revocation(handler), News::Revocation(revocation)) => handler(&revocation.node_path),
                _ => {}
            }
            if epoch != Epoch::current() {
                std::mem::forget(self);
            }
        };
        callback::during(|| {
            if catch_unwind(AssertUnwindSafe(call)).is_err() {
                tracing::error!("a handler of the program panicked");
            }
        });
    }
}

fn not_polling() -> Error {
    let message = "this client's callbacks are called on a thread of the library: to call them by itself, a program sets \
                   poll_events in the config that the client is made with";
    Error::invalid(message)
}

#[cfg(all(test, feature = "loom"))]
mod models;
