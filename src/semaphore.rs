//! A semaphore: Curator's `InterProcessSemaphoreV2`. Its leases are values, which belong to whoever has them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::call::Call;
use crate::engine::{Answer, HoldView, LockId, LockState, Owner, Waiting};
use crate::error::{Error, Result, Status};
use crate::lock::{Part, RevocationHandler, is_safe};
use crate::operation::{Entrance, Goal, Notices, Operation};
use crate::recipe::Participant;
use crate::runtime::refuse_in_callback;
use crate::span;

/// A semaphore. All methods may be called from any thread. Clones are the same semaphore.
#[derive(Clone)]
pub struct Semaphore {
    part: Arc<Part>,
    /// Of this part.
    entrance: Arc<[Entrance]>,
    notices: Arc<Notices>,
}

/// Leases of a semaphore. Any thread may give them back; dropping them does, without waiting for the server.
pub struct Leases {
    part: Arc<Part>,
    owner: Owner,
    quantity: u32,
}

impl Semaphore {
    pub(crate) fn new(part: Part) -> Self {
        let entrance = Arc::new([part.entrance()]);
        Self { part: Arc::new(part), entrance, notices: Arc::default() }
    }

    /// The semaphore's number, as it stands in events; unique within its client.
    pub fn id(&self) -> LockId {
        self.part.id
    }

    /// Its path.
    pub fn path(&self) -> &str {
        self.part.path()
    }

    /// Acquires so many leases, all or none. `None` waits without limit; zero looks once, without waiting for anybody.
    ///
    /// Requests are served in their order, whole: a large one is not overtaken by small ones. Curator takes leases one by one; where one of its
    /// clients has a part of what it wants and zklock the rest, the first deadline that passes decides.
    ///
    /// Errors: INVALID for none, or more than the fixed maximum (where a count says how many there are, it may yet be raised, so that
    /// is waited for); TIMEOUT, CONNECTION, CANCELED, CLOSED as [`Lock::acquire`](crate::Lock::acquire).
    pub fn acquire(&self, quantity: u32, timeout: Option<Duration>) -> Result<Leases> {
        refuse_in_callback(timeout)?;
        self.start_acquire(quantity, timeout)?.wait()
    }

    /// Starts to acquire leases. It goes on by itself, within its time as well, whether anybody waits or not.
    pub fn start_acquire(&self, quantity: u32, timeout: Option<Duration>) -> Result<AcquiringLeases> {
        self.check_open()?;
        let timeout = timeout.into();
        let span = span::acquire(self.path(), self.part.recipe(), None, Some(quantity), &timeout);
        let operation = Operation::start(&self.entrance, Goal::Leases(quantity), timeout, &self.notices, span)?;
        Ok(AcquiringLeases { operation, part: Arc::clone(&self.part), quantity, is_taken: AtomicBool::new(false) })
    }

    /// Wakes those that wait for leases now, with CANCELED.
    pub fn cancel(&self) -> Result<()> {
        self.check_open()?;
        self.part.tell(|engine, now| engine.cancel(now, self.part.id))
    }

    /// The leases that are out, the oldest first, and those who wait for some. Blocks for the session timeout at most.
    pub fn participants(&self) -> Result<Vec<Participant>> {
        self.start_participants()?.wait()
    }

    /// Starts to ask.
    pub fn start_participants(&self) -> Result<Call<Vec<Participant>>> {
        self.check_open()?;
        Ok(Call::new(vec![self.part.participants(true)?], |answers| match answers.into_iter().next() {
            Some(Answer::Participants(participants)) => Ok(participants),
            _ => Err(Status::Internal.into()),
        }))
    }

    /// What those who wait for leases by this handle wait for, in this process; see [`Lock::waiting`](crate::Lock::waiting).
    pub fn waiting(&self) -> Result<Vec<Waiting>> {
        self.check_open()?;
        self.part.waiting()
    }

    /// The data of the leases' nodes that later acquires create; `None`: the host's address.
    pub fn set_data(&self, data: Option<&[u8]>) -> Result<()> {
        self.check_open()?;
        self.part.set_data(data)
    }

    /// Has `handler` called, with the path of the lease's node, whenever somebody asks for a lease to be given back; see
    /// [`Lock::set_revocable`](crate::Lock::set_revocable).
    pub fn set_revocable<F: Fn(&str) + Send + Sync + 'static>(&self, handler: Option<F>) -> Result<()> {
        self.check_open()?;
        self.part.set_revocable(handler.map(|handler| Arc::new(handler) as Arc<RevocationHandler>))
    }

    /// Takes the semaphore out of service: those that wait for leases wake with CLOSED, and later calls give CLOSED. Leases that
    /// are out stay out until they are given back.
    pub fn close(&self) -> Result<()> {
        self.part.session.shell.check()?;
        self.notices.close();
        self.entrance.iter().for_each(Entrance::close);
        Ok(())
    }

    fn check_open(&self) -> Result<()> {
        // First: in a forked child it is FORKED, whatever became of it.
        self.part.check_open()?;
        if self.notices.is_closed() {
            return Err(Error::new(Status::Closed, format!("{}: {}", self.part.path(), Status::Closed.text())));
        }
        Ok(())
    }
}

impl Leases {
    /// How many there are.
    pub fn quantity(&self) -> u32 {
        self.quantity
    }

    /// Gives all of them back, and waits until the server has confirmed it.
    ///
    /// Errors: LOST where one of them had been lost; CONNECTION where no server confirmed within the session timeout, and the library goes
    /// on trying; NOT_OWNER where they were given back before.
    pub fn release(&self) -> Result<()> {
        self.start_release(true)?.wait()
    }

    /// Starts to give them back. Without `confirmed` it is decided at once, and the removal of the nodes is left to the library.
    pub fn start_release(&self, confirmed: bool) -> Result<Call<()>> {
        let span = span::release(self.part.path(), self.owner, confirmed);
        Ok(Call::new(vec![self.part.release(self.owner, confirmed)?], |_| Ok(())).within(span))
    }

    /// Whether they are held, and safely so at this moment.
    pub fn is_held(&self) -> Result<bool> {
        Ok(is_safe(self.view()?))
    }

    /// How they stand.
    pub fn state(&self) -> Result<LockState> {
        Ok(self.view()?.map_or(LockState::Free, |view| view.state))
    }

    /// Their fencing token: it grows with the leases of the semaphore. Errors: NOT_OWNER where they were given back, LOST.
    pub fn fencing_token(&self) -> Result<i64> {
        Ok(self.hold()?.token)
    }

    /// How long they are safe without hearing from a server; zero where they are not safe now. Errors as above.
    pub fn remaining(&self) -> Result<Duration> {
        Ok(self.hold()?.remaining)
    }

    /// The paths of their nodes, without the client's chroot. Errors as above.
    pub fn node_paths(&self) -> Result<Vec<String>> {
        self.hold()?;
        self.part.ask(|engine, _| engine.nodes_of(self.part.id, self.owner))
    }

    fn view(&self) -> Result<Option<HoldView>> {
        self.part.ask(|engine, now| engine.hold_of(now, self.part.id, self.owner))
    }

    fn hold(&self) -> Result<HoldView> {
        let error = |status: Status| Error::new(status, format!("{}: {}", self.part.path(), status.text()));
        match self.view()? {
            None => Err(error(Status::NotOwner)),
            Some(HoldView { state: LockState::Lost, .. }) => Err(error(Status::Lost)),
            Some(view) => Ok(view),
        }
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        // Fails where they were given back, or the client is closed: there is nothing to do then.
        let _ = self.start_release(false);
    }
}

/// An acquire of leases under way, which goes on by itself. Dropped before the leases were taken, it is cancelled, and what it had got is given
/// back. All methods may be called from any thread.
pub struct AcquiringLeases {
    operation: Arc<Operation>,
    part: Arc<Part>,
    quantity: u32,
    is_taken: AtomicBool,
}

impl AcquiringLeases {
    /// Waits for the leases.
    pub fn wait(self) -> Result<Leases> {
        loop {
            if let Some(result) = self.wait_for(Duration::MAX) {
                return result;
            }
        }
    }

    /// Waits `slice` at most, and takes the leases; `None` if it is not decided by then. They can be taken once: INVALID. In a callback
    /// it is DEADLOCK where it would have to wait.
    pub fn wait_for(&self, slice: Duration) -> Option<Result<Leases>> {
        self.operation.wait_for(slice, true).map(|result| result.and_then(|()| self.take()))
    }

    /// How it ended, after `slice` at most, and leaves the leases where they are; `None` if it is not decided by then.
    pub fn look_for(&self, slice: Duration) -> Option<Result<()>> {
        self.operation.wait_for(slice, false)
    }

    /// Ends it, with CANCELED unless it is just succeeding.
    pub fn cancel(&self) -> Result<()> {
        self.operation.cancel()
    }

    /// Has `hook` called once when it is over, as [`Acquiring::on_done`](crate::Acquiring::on_done).
    pub fn on_done(&self, hook: impl FnOnce() + Send + 'static) -> Result<()> {
        self.operation.on_done(Box::new(hook))
    }

    /// What dropping it does. Who waits for it elsewhere hears CLOSED.
    pub fn abandon(&self) {
        self.operation.abandon();
    }

    fn take(&self) -> Result<Leases> {
        if self.is_taken.swap(true, Ordering::Relaxed) {
            return Err(Error::invalid("the leases of this acquire were taken before"));
        }
        Ok(Leases { part: Arc::clone(&self.part), owner: self.operation.owner(), quantity: self.quantity })
    }
}

impl Drop for AcquiringLeases {
    fn drop(&mut self) {
        self.abandon();
    }
}
