//! Client locks, which represent locks in the engine of a client. Each [`Lock`](crate::Lock) and
//! [`Semaphore`](crate::Semaphore) consists of client locks. A client lock passes calls to the engine, and fails with
//! CLOSED if the lock or its client is closed. The code in this file neither starts acquires nor combines client locks.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use zklock_core::engine::{Engine, HoldId, HoldToRelease, HoldView, LockId, OpId, Owner, Recipe, Waiting};
use zklock_core::error::{Error, Result, Status};
use zklock_core::time::Time;

use crate::acquire::LockTarget;
use crate::client_inner::ClientInner;
use crate::runtime::{EventDelivery, PendingOp, RevocationHandler, Scope, Shell};

/// The maximum number of data bytes in a node. A frame that contains data of this size stays below 1 MiB, the default
/// limit of the servers.
pub const MAX_DATA: usize = 512 * 1024;

/// A lock in the engine of one client. When the program drops the last reference to this value, the library closes the
/// lock.
pub(crate) struct ClientLock {
    pub(crate) client: Arc<ClientInner>,
    pub(crate) id: LockId,
    recipe: Recipe,
    path: Arc<str>,
}

impl ClientLock {
    pub(crate) fn new(client: Arc<ClientInner>, path: &str, recipe: Recipe) -> Result<Self> {
        client.check_open()?;
        let (mut id, path) = (0, Arc::<str>::from(path));
        client.shell.update_engine(|engine, _| id = engine.add_lock(Arc::clone(&path), recipe.clone()))?;
        Ok(Self { client, id, recipe, path })
    }

    pub(crate) fn path(&self) -> &Arc<str> {
        &self.path
    }

    pub(crate) fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        self.client.check_open().map_err(|error| match error.status() {
            Status::Closed => self.closed_error(),
            _ => error,
        })
    }

    /// Calls `question` with the engine if this lock is open, and returns the result. Fails with CLOSED if the lock or
    /// one of its member locks is closed.
    pub(crate) fn read_engine<T>(&self, question: impl FnOnce(&Engine, Time) -> T) -> Result<T> {
        self.check_open()?;
        let about = |engine: &Engine, now| engine.is_open(self.id).then(|| question(engine, now));
        let answer = self.client.shell.read_engine(about)?.ok_or_else(|| self.closed_error())?;
        // Another thread may have closed the client since the first check. In this case, the answer is not valid,
        // because the holds of the client have ended.
        self.check_open()?;
        Ok(answer)
    }

    /// Returns the hold of `owner`, with the node paths of the hold. If the caller asked for each separately, another
    /// thread could release the hold between the two calls.
    pub(crate) fn hold_and_nodes(&self, owner: Owner) -> Result<(Option<HoldView>, Vec<String>)> {
        self.read_engine(|engine, now| (engine.hold_of(now, self.id, owner), engine.nodes_of(self.id, owner)))
    }

    pub(crate) fn update_engine(&self, order: impl FnOnce(&mut Engine, Time)) -> Result<()> {
        self.check_open()?;
        let mut is_open = false;
        self.client.shell.update_engine(|engine, now| {
            is_open = engine.is_open(self.id);
            if is_open {
                order(engine, now);
            }
        })?;
        if is_open { Ok(()) } else { Err(self.closed_error()) }
    }

    fn closed_error(&self) -> Error {
        Error::new(Status::Closed, format!("{}: {}", self.path, Status::Closed.text()))
    }

    /// Starts an operation that ends within the session timeout.
    pub(crate) fn start_op(&self, submit: impl FnOnce(&mut Engine, Time) -> OpId) -> Result<PendingOp> {
        self.check_open()?;
        self.client.start_op(submit)
    }

    pub(crate) fn release(&self, owner: Owner, confirmed: bool) -> Result<PendingOp> {
        self.start_op(|engine, now| engine.release(now, self.id, owner, confirmed))
    }

    /// Releases one hold of each member lock. The result does not depend on whether the multi-lock itself is open.
    pub(crate) fn release_members(
        &self,
        owner: Owner,
        holds: impl IntoIterator<Item = HoldToRelease>,
        confirmed: bool,
    ) -> Result<PendingOp> {
        let holds: Vec<_> = self.members().iter().copied().zip(holds).collect();
        self.start_op(|engine, now| engine.release_holds(now, owner, &holds, confirmed))
    }

    /// Returns the hold of each member lock that `owner` still has. Fails with CLOSED if a member lock or the client is
    /// closed, but not if the multi-lock itself is closed.
    pub(crate) fn exact_holds(&self, owner: Owner, ids: &[HoldId]) -> Result<Vec<Option<HoldView>>> {
        self.check_open()?;
        let read = |engine: &Engine, now| {
            let find = |(&lock, &id)| engine.is_open(lock).then(|| engine.exact_hold(now, lock, owner, id));
            self.members().iter().zip(ids).map(find).collect::<Option<Vec<_>>>()
        };
        self.client.shell.read_engine(read)?.ok_or_else(|| self.closed_error())
    }

    /// Returns, for the hold of each member lock, a flag that becomes true when the program releases the hold.
    pub(crate) fn release_flags(&self, owner: Owner, ids: &[HoldId]) -> Result<Vec<Arc<AtomicBool>>> {
        let mut flags = Vec::new();
        let holds = || self.members().iter().zip(ids);
        self.client.shell.update_engine(|engine, _| {
            flags.extend(holds().map(|(&lock, &id)| engine.release_flag(lock, owner, id)));
        })?;
        Ok(flags)
    }

    /// Returns the member locks of a multi-lock, or the lock itself.
    pub(crate) fn members(&self) -> &[LockId] {
        match &self.recipe {
            Recipe::MultiLock(members) => members,
            _ => std::slice::from_ref(&self.id),
        }
    }

    /// Returns the lock target, which contains the data needed to acquire this client lock.
    pub(crate) fn target(&self) -> LockTarget {
        let (shell, members) = (Arc::clone(&self.client.shell), self.members().into());
        LockTarget { shell, id: self.id, members, path: Arc::clone(&self.path) }
    }

    pub(crate) fn shell_and_id(&self) -> (Arc<Shell>, LockId) {
        (Arc::clone(&self.client.shell), self.id)
    }

    /// Returns the two values that the caller needs to register a listener for this lock: the event delivery and the
    /// scope. Fails with CLOSED if the lock is closed.
    pub(crate) fn listener_target(&self, scope: Scope) -> Result<(&Arc<EventDelivery>, Scope)> {
        self.read_engine(|_, _| ())?;
        Ok((self.client.shell.event_delivery()?, scope))
    }

    pub(crate) fn set_data(&self, data: Option<&[u8]>) -> Result<()> {
        if let Some(data) = data.filter(|data| data.len() > MAX_DATA) {
            return Err(Error::invalid(format!("node data of {} bytes: at most {MAX_DATA} are allowed", data.len())));
        }
        self.update_engine(|engine, _| engine.set_data(self.id, data))
    }

    /// Sets the handler for revocation requests, or removes it. To remove the handler of a closed lock, this method
    /// waits until the handler has returned, and then fails with CLOSED.
    pub(crate) fn set_revocable(&self, handler: Option<Arc<RevocationHandler>>) -> Result<()> {
        let open = self.check_open();
        if handler.is_none() {
            return self.client.shell.set_revocable(self.id, None).and(open);
        }
        open?;
        self.client.shell.set_revocable(self.id, handler)
    }

    pub(crate) fn set_local_handover(&self, max_passes: u32) -> Result<()> {
        let mut result = Ok(());
        self.update_engine(|engine, _| result = engine.set_local_handover(self.id, max_passes))?;
        result
    }

    pub(crate) fn participants(&self, both: bool) -> Result<PendingOp> {
        self.start_op(|engine, now| engine.participants(now, self.id, both))
    }

    pub(crate) fn waiting(&self) -> Result<Vec<Waiting>> {
        self.read_engine(|engine, now| engine.waiting(now, self.id))
    }

    /// Closes the client lock. This method first removes the lock from the engine, and then the handler for revocation
    /// requests. If the method removed the handler first, another thread could set a new handler before the lock is
    /// removed.
    pub(crate) fn close(&self) -> Result<()> {
        // If the client has failed, this call fails. The following statements must run nevertheless.
        let removed = self.client.shell.update_engine(|engine, now| engine.remove_lock(now, self.id));
        self.client.shell.remove_revocation_handler(self.id)?;
        let is_this_lock =
            |step: &LockTarget| Arc::ptr_eq(&step.shell, &self.client.shell) && step.members.contains(&self.id);
        self.client.close_stepwise_multis(|steps| steps.iter().any(is_this_lock));
        removed
    }
}

impl Drop for ClientLock {
    fn drop(&mut self) {
        // In a forked child, `close` fails, but the child has nothing to close anyway.
        let _ = self.close();
    }
}
