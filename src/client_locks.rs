//! The client locks of a lock or a semaphore, and the holds that an acquire has acquired in them. The code in this file
//! neither grants a lock nor decides whether a hold is safe.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use zklock_core::engine::{HoldToRelease, HoldView};
use zklock_core::error::Result;

use crate::acquire::HoldIds;
use crate::client_lock::ClientLock;
use crate::operation::Operation;
use crate::request::Request;
use crate::span;

/// The client locks of a lock or a semaphore, and the client locks on which they depend. An acquire in progress and a
/// hold keep them open.
pub(crate) struct ClientLocks {
    client_locks: Box<[Arc<ClientLock>]>,
    /// The client locks of the member locks of a multi-lock. The list is empty for other locks.
    members: Box<[Arc<Self>]>,
}

impl ClientLocks {
    pub(crate) fn new(client_locks: Box<[Arc<ClientLock>]>, members: Box<[Arc<Self>]>) -> Self {
        Self { client_locks, members }
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &ClientLock> + ExactSizeIterator {
        self.client_locks.iter().map(AsRef::as_ref)
    }

    /// Returns the client lock, unless there are several.
    pub(crate) fn only(&self) -> Option<&ClientLock> {
        if let [only] = &*self.client_locks { Some(only) } else { None }
    }

    /// Returns the client lock of the first member lock of a multi-lock, or of the lock itself.
    pub(crate) fn first(&self) -> Option<&ClientLock> {
        self.members.first().map_or(self, AsRef::as_ref).iter().next()
    }

    /// Fails with CLOSED if a client lock or the lock of a member is closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.iter().map(|client_lock| client_lock.read_engine(|_, _| ())).collect::<Vec<_>>().into_iter().collect()
    }

    /// Returns, for each member lock or for the lock itself, the hold that `ids` contain, or `None` if the owner no
    /// longer has it. Fails with CLOSED if a member lock or a client is closed, but not if the multi-lock itself is.
    pub(crate) fn exact_holds(&self, ids: &HoldIds) -> Result<Vec<Option<HoldView>>> {
        let steps = self.iter().zip(&ids.steps);
        Ok(steps.map(|(lock, step)| lock.exact_holds(ids.owner, step)).collect::<Result<Vec<_>>>()?.concat())
    }

    /// Returns the hold that `ids` identify, or `None` if the owner no longer has the whole hold. Fails with CLOSED if
    /// the lock, a member lock or a client is closed.
    pub(crate) fn view(&self, ids: &HoldIds) -> Result<Option<HoldView>> {
        self.check_open()?;
        Ok(weakest(self.exact_holds(ids)?))
    }

    /// Returns the node paths of the owner that `ids` contain.
    pub(crate) fn node_paths(&self, ids: &HoldIds) -> Result<Vec<String>> {
        let parts = self.iter().map(|client_lock| Ok(client_lock.hold_and_nodes(ids.owner)?.1));
        Ok(parts.collect::<Result<Vec<_>>>()?.concat())
    }

    /// Returns, for each member lock or for the lock itself, a flag that becomes true when the program releases the hold
    /// that `ids` contain.
    pub(crate) fn release_flags(&self, ids: &HoldIds) -> Result<Vec<Arc<AtomicBool>>> {
        let steps = self.iter().zip(&ids.steps);
        Ok(steps.map(|(lock, step)| lock.release_flags(ids.owner, step)).collect::<Result<Vec<_>>>()?.concat())
    }

    /// Starts one release of each hold that `ids` contain. The call does not release a later hold of the owner, and
    /// releases the member locks even if the multi-lock is closed. If the owner no longer has some of the holds, the call
    /// releases the others, and then fails with NOT_OWNER.
    pub(crate) fn start_release_of(&self, path: &str, ids: &HoldIds, confirmed: bool) -> Result<Operation<()>> {
        let span = span::release(path, ids.owner, confirmed);
        let all_open = self.check_open();
        let steps = self.iter().zip(&ids.steps).rev();
        let pending: Vec<_> = steps
            .map(|(client_lock, step)| {
                client_lock.release_members(ids.owner, step.iter().copied().map(HoldToRelease::Exact), confirmed)
            })
            .collect();
        let request = Request::new(pending.into_iter().collect::<Result<_>>()?, move |_| all_open.clone());
        Ok(request.within(span).into_operation())
    }
}

/// Combines hold views. The result contains the worst state and the shortest remaining time of all these holds. Returns
/// `None` if one of the holds does not exist.
pub(crate) fn weakest(views: Vec<Option<HoldView>>) -> Option<HoldView> {
    views.into_iter().reduce(|least, view| Some(least?.and(view?))).flatten()
}
