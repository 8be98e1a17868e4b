//! A lock's handle: acquire, release, and what can be asked of a hold.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::client::OpenSession;
use crate::engine::{Answer, HoldView, LockId, LockState, Owner, Patience};
use crate::error::{Error, Result, Status};
use crate::recipe::Participant;
use crate::runtime::{Pending, now};
use crate::time::Time;

/// More node data than this is refused, so that every frame with it stays below the servers' default limit of 1 MiB.
pub const MAX_DATA: usize = 512 * 1024;

/// A lock. All methods may be called from any thread; threads exclude each other and queue fairly, each with a node of its
/// own. Dropping the handle releases what is held by it.
pub struct Lock {
    session: Arc<OpenSession>,
    id: LockId,
    path: Box<str>,
}

impl Lock {
    pub(crate) fn new(session: Arc<OpenSession>, path: &str, base: &'static str) -> Result<Self> {
        session.check_open()?;
        let mut id = 0;
        session.shell.tell(|engine, _| id = engine.add_lock(path, base))?;
        Ok(Self { session, id, path: path.into() })
    }

    /// The lock's number, as it stands in events; unique within its client.
    pub fn id(&self) -> LockId {
        self.id
    }

    /// Acquires the lock for the calling thread, or enters it once more. `None` waits without limit; zero looks once, without
    /// waiting for anybody.
    ///
    /// Errors: TIMEOUT where it was not got; CONNECTION where no server answered by then; CANCELED, CLOSED; LOST where this
    /// thread's hold was lost and is not released yet; DEADLOCK where this thread holds the path by another handle.
    pub fn acquire(&self, timeout: Option<Duration>) -> Result<()> {
        self.start_acquire(Owner::current_thread(), timeout)?.wait()
    }

    /// The same with a guard that releases when it is dropped.
    pub fn guard(&self, timeout: Option<Duration>) -> Result<Guard<'_>> {
        self.acquire(timeout)?;
        Ok(Guard { lock: self, owner: Owner::current_thread() })
    }

    /// Starts to acquire the lock for `owner`.
    pub fn start_acquire(&self, owner: Owner, timeout: Option<Duration>) -> Result<Acquiring<'_>> {
        self.check_open()?;
        let start = now();
        let (patience, deadline) = match timeout {
            None => (Patience::Forever, None),
            Some(Duration::ZERO) => (Patience::OneLook, Some(start + crate::engine::LOOK_LIMIT)),
            Some(timeout) => (Patience::Until(start + timeout), Some(start + timeout)),
        };
        let call = self.session.shell.call(deadline, |engine, now| engine.acquire(now, self.id, owner, patience))?;
        Ok(Acquiring { lock: self, owner, call, done: Cell::new(false) })
    }

    /// Releases one entry of the calling thread, and waits until the server has confirmed that the node is gone.
    ///
    /// Errors: NOT_OWNER from a thread that does not hold, and nothing changes; LOST where the hold had been lost; CONNECTION
    /// where no server confirmed within the session timeout. In every case but the first the entry is released.
    pub fn release(&self) -> Result<()> {
        self.release_as(Owner::current_thread())
    }

    /// The same for any owner.
    pub fn release_as(&self, owner: Owner) -> Result<()> {
        self.start_release(owner, true)?.wait()
    }

    /// Starts to release one entry of `owner`. Dropped unfinished, it goes on by itself. Without `confirmed` it is decided at
    /// once, and the removal of the node is left to the library.
    pub fn start_release(&self, owner: Owner, confirmed: bool) -> Result<Call<()>> {
        self.check_open()?;
        let mut deadline = Time::default();
        let pending = self.session.shell.call(None, |engine, now| {
            deadline = now + engine.session_timeout();
            engine.release(now, self.id, owner, confirmed)
        })?;
        Ok(Call { pending: pending.until(deadline), take: |_| Ok(()) })
    }

    /// Releases one entry of the calling thread, and leaves the removal of the node to the library.
    pub fn release_nowait(&self) -> Result<()> {
        self.start_release(Owner::current_thread(), false)?.wait()
    }

    /// Wakes those that wait on this handle now, with CANCELED. Who waits later is not concerned.
    pub fn cancel(&self) -> Result<()> {
        self.check_open()?;
        self.session.shell.tell(|engine, now| engine.cancel(now, self.id))
    }

    /// Whether the calling thread holds the lock, and safely so at this moment: its session is surely alive.
    pub fn is_held(&self) -> Result<bool> {
        self.is_held_by(Owner::current_thread())
    }

    /// The same for any owner.
    pub fn is_held_by(&self, owner: Owner) -> Result<bool> {
        Ok(is_safe(self.view(|engine, now| engine.hold_of(now, self.id, owner))?))
    }

    /// Whether anybody in this process holds the lock by this handle, and safely so.
    pub fn is_held_in_process(&self) -> Result<bool> {
        Ok(is_safe(self.view(|engine, now| engine.hold_of_any(now, self.id))?))
    }

    /// How the calling thread's hold stands; where it has none, that of whoever in this process holds by this handle.
    pub fn state(&self) -> Result<LockState> {
        Ok(self.own_or_any()?.map_or(LockState::Free, |view| view.state))
    }

    /// The fencing token of that hold: a number that grows with every hold of the path, for a store to refuse the stale
    /// (the znode's `czxid`). Errors: NOT_OWNER where nobody holds, LOST where the hold was lost.
    pub fn fencing_token(&self) -> Result<i64> {
        Ok(self.hold()?.token)
    }

    /// How long that hold is safe without hearing from a server; zero where it is not safe now. Errors as above.
    pub fn remaining(&self) -> Result<Duration> {
        Ok(self.hold()?.remaining)
    }

    /// Who holds and who waits, in the order of the queue. Blocks for the session timeout at most.
    pub fn participants(&self) -> Result<Vec<Participant>> {
        self.start_participants()?.wait()
    }

    /// Starts to ask. Dropped unfinished, it asks no more.
    pub fn start_participants(&self) -> Result<Call<Vec<Participant>>> {
        self.check_open()?;
        let mut deadline = Time::default();
        let pending = self.session.shell.call(None, |engine, now| {
            deadline = now + engine.session_timeout();
            engine.participants(now, self.id)
        })?;
        let take = |answer| match answer {
            Answer::Participants(participants) => Ok(participants),
            Answer::Done => Err(Status::Internal.into()),
        };
        Ok(Call { pending: pending.until(deadline), take })
    }

    /// The data of nodes that later acquires create; `None`: the host's address, as Curator has it.
    pub fn set_data(&self, data: Option<&[u8]>) -> Result<()> {
        self.check_open()?;
        if let Some(data) = data.filter(|data| data.len() > MAX_DATA) {
            return Err(Error::invalid(format!("node data of {} bytes: at most {MAX_DATA} are allowed", data.len())));
        }
        self.session.shell.tell(|engine, _| engine.set_data(self.id, data.map(<[u8]>::to_vec)))
    }

    /// Takes the handle out of service, as dropping it does: those that wait on it wake with CLOSED, and what is held by it
    /// is released without waiting. Later calls give CLOSED.
    pub fn close(&self) -> Result<()> {
        self.session.shell.tell(|engine, now| engine.remove_lock(now, self.id))
    }

    fn hold(&self) -> Result<HoldView> {
        match self.own_or_any()? {
            None => {
                let message = format!("{}: nobody in this process holds this lock by this handle", self.path);
                Err(Error::new(Status::NotOwner, message))
            }
            Some(HoldView { state: LockState::Lost, .. }) => Err(self.error(Status::Lost)),
            Some(view) => Ok(view),
        }
    }

    fn own_or_any(&self) -> Result<Option<HoldView>> {
        let owner = Owner::current_thread();
        self.view(|engine, now| engine.hold_of(now, self.id, owner).or_else(|| engine.hold_of_any(now, self.id)))
    }

    fn view<T>(&self, question: impl FnOnce(&crate::engine::Engine, Time) -> T) -> Result<T> {
        self.check_open()?;
        self.session.shell.ask(question)
    }

    fn check_open(&self) -> Result<()> {
        self.session.check_open().map_err(|error| match error.status() {
            Status::Closed => self.error(Status::Closed),
            _ => error,
        })
    }

    fn error(&self, status: Status) -> Error {
        Error::new(status, format!("{}: {}", self.path, status.text()))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Fails in a forked child, where there is nothing to do.
        let _ = self.close();
    }
}

/// An acquire under way. Dropped unfinished, it is cancelled, and released if it had just won.
pub struct Acquiring<'a> {
    lock: &'a Lock,
    owner: Owner,
    call: Pending,
    done: Cell<bool>,
}

impl Acquiring<'_> {
    /// Waits for the lock.
    pub fn wait(self) -> Result<()> {
        let answer = self.call.wait();
        self.done.set(true);
        answer.map(drop)
    }

    /// Waits `slice` at most; `None` if it is not decided by then. Not to be called again after it was.
    pub fn wait_for(&self, slice: Duration) -> Option<Result<()>> {
        let answer = self.call.wait_for(slice)?;
        self.done.set(true);
        Some(answer.map(drop))
    }
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        if self.done.get() || self.lock.session.shell.check().is_err() {
            return;
        }
        self.call.cancel();
        if self.call.wait().is_ok() {
            let _ = self.lock.start_release(self.owner, false);
        }
    }
}

/// A call under way that nothing can undo.
pub struct Call<T> {
    pending: Pending,
    take: fn(Answer) -> Result<T>,
}

impl<T> Call<T> {
    /// Waits for its end.
    pub fn wait(self) -> Result<T> {
        self.pending.wait().and_then(self.take)
    }

    /// Waits `slice` at most; `None` if it has not ended by then. Not to be called again after it has.
    pub fn wait_for(&self, slice: Duration) -> Option<Result<T>> {
        Some(self.pending.wait_for(slice)?.and_then(self.take))
    }
}

/// A hold of the thread that made it, released on drop.
pub struct Guard<'a> {
    lock: &'a Lock,
    owner: Owner,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.lock.release_as(self.owner) {
            tracing::warn!("release: {error}");
        }
    }
}

impl Owner {
    /// The calling thread.
    pub fn current_thread() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        thread_local! {
            static NUMBER: u64 = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        }
        // While a thread is being torn down it has no number any more; 0 is nobody's.
        Self::Thread(NUMBER.try_with(|&number| number).unwrap_or_default())
    }
}

fn is_safe(view: Option<HoldView>) -> bool {
    view.is_some_and(|view| matches!(view.state, LockState::Held | LockState::Suspended))
}
