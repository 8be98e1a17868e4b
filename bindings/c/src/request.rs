//! Requests: the operations that acquire nothing. A request connects or closes a client, releases a hold, or asks the servers
//! a question. The Rust API carries out the request. This module keeps the request for a `zkl_op` handle, and reports the end
//! of the request to waiting threads. This module must not use handles of operations.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use zklock::internal::{canceled_error, refuse_in_callback};
use zklock::{Call, Client, Connecting, Error, Participant, Result, Status, WaitLost};

use crate::client::ClientObject;
use crate::lock_object::LockHandles;
use crate::participant::ParticipantRecord;
use crate::semaphore::SemaphoreObject;

/// A request in progress. If the program drops this value, the request continues, except that a client stops connecting, and that a
/// wait for a loss ends.
pub struct Request {
    end: Arc<RequestEnd>,
    /// The request in the Rust API. The field is empty after the result was taken from it.
    running: Mutex<Option<Running>>,
    result: OnceLock<Result<RequestAnswer>>,
    /// Returns the error of the request after the program has canceled it. The field is `None` if the program cannot
    /// cancel the request.
    canceled: Option<CanceledError>,
}

/// The answer to a request.
pub(crate) enum RequestAnswer {
    Done,
    Number(i64),
    Participants(Vec<ParticipantRecord>),
    /// The field is empty after the program has taken the client.
    Client(Mutex<Option<ClientObject>>),
    /// The field is empty after the program has taken the semaphore.
    Semaphore(Mutex<Option<SemaphoreObject>>),
}

/// A request of the Rust API. After the request has ended, the closure returns the result.
type Running = Box<dyn Fn() -> Option<Result<RequestAnswer>> + Send>;

type CanceledError = Box<dyn Fn() -> Error + Send + Sync>;

/// Records that a request has ended.
#[derive(Default)]
struct RequestEnd {
    state: Mutex<EndState>,
    changed: Condvar,
}

#[derive(Default)]
struct EndState {
    is_over: bool,
    /// True if the program has freed the operation.
    is_closed: bool,
    hooks: Vec<Box<dyn FnOnce() + Send>>,
}

impl Request {
    /// Keeps a call that has started.
    pub(crate) fn call<T: 'static>(call: Call<T>, convert: fn(T) -> RequestAnswer) -> Result<Self> {
        let end = Arc::<RequestEnd>::default();
        call.on_done(end.setter())?;
        Ok(Self::new(end, None, move || Some(call.wait_for(Duration::ZERO)?.map(convert))))
    }

    /// Keeps a client that has started to connect.
    pub(crate) fn connect(connecting: Connecting, handles: LockHandles) -> Result<Self> {
        let end = Arc::<RequestEnd>::default();
        connecting.on_done(end.setter())?;
        let object = move |client| ClientObject { client, handles: handles.clone() };
        let connecting = Arc::new(connecting);
        let weak = Arc::downgrade(&connecting);
        let canceled =
            move || weak.upgrade().map_or_else(|| Status::Canceled.into(), |attempt| canceled_error(&attempt));
        Ok(Self::new(end, Some(Box::new(canceled)), move || {
            let connected = connecting.wait_for(Duration::ZERO)?;
            Some(connected.map(|client| RequestAnswer::Client(Mutex::new(Some(object(client))))))
        }))
    }

    /// Keeps a wait for the loss of a hold. `whose` names the hold for the message.
    pub(crate) fn wait_lost(wait: WaitLost, whose: String) -> Result<Self> {
        let end = Arc::<RequestEnd>::default();
        wait.on_done(end.setter())?;
        Ok(Self::new(end, Some(Box::new(|| Status::Canceled.into())), move || {
            let lost = wait.wait_for(Duration::ZERO)?;
            Some(lost.and_then(|()| Err(Error::new(Status::Lost, format!("{whose} no longer safe")))))
        }))
    }

    /// Starts closing a client.
    pub(crate) fn close(client: &Client) -> Result<Self> {
        let end = Arc::<RequestEnd>::default();
        let closed = Arc::new(OnceLock::new());
        let (set_over, result) = (end.setter(), Arc::clone(&closed));
        client.close_in_background(move |outcome| {
            // The hook is called only once.
            let _ = result.set(outcome);
            set_over();
        })?;
        Ok(Self::new(end, None, move || Some(closed.get()?.clone().map(|()| RequestAnswer::Done))))
    }

    fn new(
        end: Arc<RequestEnd>,
        canceled: Option<CanceledError>,
        running: impl Fn() -> Option<Result<RequestAnswer>> + Send + 'static,
    ) -> Self {
        Self { end, running: Mutex::new(Some(Box::new(running))), result: OnceLock::new(), canceled }
    }

    /// Waits for at most `slice`, and returns how the request ended. Returns `None` if the request still runs. A callback must
    /// not wait.
    pub(crate) fn wait_for(&self, slice: Duration) -> Option<Result<()>> {
        let mut state = self.end.lock();
        if !state.is_over && !state.is_closed {
            if refuse_in_callback(Some(slice)).is_err() {
                return Some(Err(callback_error()));
            }
            let runs = |state: &mut EndState| !state.is_over && !state.is_closed;
            state = self.end.changed.wait_timeout_while(state, slice, runs).unwrap_or_else(PoisonError::into_inner).0;
        }
        match (state.is_closed, state.is_over) {
            (true, _) => Some(Err(Status::Closed.into())),
            (false, true) => {
                drop(state);
                Some(self.result().as_ref().map(drop).map_err(Clone::clone))
            }
            (false, false) => None,
        }
    }

    /// Returns the answer of a request that has ended. Fails with PENDING if the request still runs.
    pub(crate) fn answer(&self) -> Result<&RequestAnswer> {
        self.wait_for(Duration::ZERO).ok_or(Status::Pending)??;
        self.result().as_ref().map_err(Clone::clone)
    }

    /// Calls `hook` once when the request has ended. If the request has already ended, the calling thread calls `hook` at once.
    pub(crate) fn on_done(&self, hook: impl FnOnce() + Send + 'static) {
        let mut state = self.end.lock();
        if !state.is_over {
            state.hooks.push(Box::new(hook));
            return;
        }
        drop(state);
        hook();
    }

    /// Makes a client stop connecting, or ends a wait for a loss. Other requests continue.
    pub(crate) fn cancel(&self) {
        let Some(canceled) = &self.canceled else { return };
        if self.end.lock().is_over {
            return;
        }
        let mut stopped = None;
        self.result.get_or_init(|| {
            let error = canceled();
            stopped = self.take_running();
            Err(error)
        });
        self.end.set_over();
        // Dropping a client can run functions of the program, which may use this request.
        drop(stopped);
    }

    /// Makes the waits for this request fail with CLOSED, and cancels the request.
    pub(crate) fn abandon(&self) {
        self.end.lock().is_closed = true;
        self.end.changed.notify_all();
        self.cancel();
    }

    fn result(&self) -> &Result<RequestAnswer> {
        let mut ended = None;
        let result = self.result.get_or_init(|| {
            ended = self.take_running();
            ended.as_ref().and_then(|running| running()).unwrap_or_else(|| Err(Status::Internal.into()))
        });
        // Dropping a client that could not connect can run functions of the program, which may use this request.
        drop(ended);
        result
    }

    fn take_running(&self) -> Option<Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl RequestEnd {
    /// Returns a function that records the end of the request.
    fn setter(self: &Arc<Self>) -> impl FnOnce() + Send + 'static {
        let end = Arc::clone(self);
        move || end.set_over()
    }

    fn set_over(&self) {
        let mut state = self.lock();
        state.is_over = true;
        let hooks = std::mem::take(&mut state.hooks);
        drop(state);
        self.changed.notify_all();
        hooks.into_iter().for_each(|hook| hook());
    }

    fn lock(&self) -> MutexGuard<'_, EndState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestAnswer {
    pub(crate) const fn done((): ()) -> Self {
        Self::Done
    }

    pub(crate) fn number(value: impl Into<i64>) -> Self {
        Self::Number(value.into())
    }

    pub(crate) const fn semaphore(semaphore: SemaphoreObject) -> Self {
        Self::Semaphore(Mutex::new(Some(semaphore)))
    }

    pub(crate) fn participants(found: Vec<Participant>) -> Self {
        Self::Participants(found.into_iter().map(ParticipantRecord::new).collect())
    }
}

fn callback_error() -> Error {
    let message = "a callback must not wait for an operation, because the operation may wait until this callback returns; \
                   wait on another thread, or check the operation with timeout 0";
    Error::new(Status::Deadlock, message)
}
