//! A semaphore: Curator's `InterProcessSemaphoreV2`. Its leases are values, which belong to whoever has them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::call::Call;
use crate::engine::{Answer, HoldView, LockId, LockState, Owner, Waiting};
use crate::error::{Error, Result, Status};
use crate::lock::{Part, RevocationHandler, Timeout, is_safe};
use crate::recipe::Participant;
use crate::runtime::Pending;

/// A semaphore. All methods may be called from any thread. Clones are the same semaphore.
#[derive(Clone)]
pub struct Semaphore {
    part: Arc<Part>,
    is_closed: Arc<AtomicBool>,
}

/// Leases of a semaphore. Any thread may give them back; dropping them does, without waiting for the server.
pub struct Leases {
    part: Arc<Part>,
    owner: Owner,
    quantity: u32,
}

impl Semaphore {
    pub(crate) fn new(part: Part) -> Self {
        Self { part: Arc::new(part), is_closed: Arc::default() }
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
        self.start_acquire(quantity, timeout)?.wait()
    }

    /// Starts to acquire leases.
    pub fn start_acquire(&self, quantity: u32, timeout: Option<Duration>) -> Result<AcquiringLeases> {
        self.check_open()?;
        let timeout = Timeout::from(timeout);
        let mut owner = Owner::Leases(0);
        let pending = self.part.session.shell.call(timeout.deadline, |engine, now| {
            let op;
            (op, owner) = engine.acquire_leases(now, self.part.id, quantity, timeout.patience);
            // Closed by another thread since it was looked at: that one may have found nobody to wake.
            if self.is_closed.load(Ordering::Acquire) {
                engine.close_entrance(now, self.part.id);
            }
            op
        })?;
        let leases = Leases { part: Arc::clone(&self.part), owner, quantity };
        Ok(AcquiringLeases { pending, leases: std::cell::Cell::new(Some(leases)) })
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
        self.is_closed.store(true, Ordering::Release);
        self.part.close_entrance();
        Ok(())
    }

    fn check_open(&self) -> Result<()> {
        // First: in a forked child it is FORKED, whatever became of it.
        self.part.check_open()?;
        if self.is_closed.load(Ordering::Acquire) {
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
        Ok(Call::new(vec![self.part.release(self.owner, confirmed)?], |_| Ok(())))
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

/// An acquire of leases under way. Dropped unfinished, it is cancelled, and what it had just won is given back.
pub struct AcquiringLeases {
    pending: Pending,
    leases: std::cell::Cell<Option<Leases>>,
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

    /// Waits `slice` at most; `None` if it is not decided by then. Not to be called again after it was.
    pub fn wait_for(&self, slice: Duration) -> Option<Result<Leases>> {
        let answer = self.pending.wait_for(slice)?;
        // Where they were not got there is nothing to give back, and dropping them changes nothing.
        let leases = self.leases.take();
        Some(answer.and_then(|_| leases.ok_or_else(|| Status::Internal.into())))
    }
}

impl Drop for AcquiringLeases {
    fn drop(&mut self) {
        let Some(leases) = self.leases.take() else { return };
        if leases.part.session.shell.check().is_ok() {
            self.pending.cancel();
            let _ = self.pending.wait();
        }
    }
}
