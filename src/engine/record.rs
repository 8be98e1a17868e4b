//! What the engine writes down of what happens: it counts, and makes notes for a log.

use std::sync::Arc;

use super::holds::{Hold, Trust, cause_of};
use super::{Engine, Kind, LockId, LockState, Metrics, OpId, Owner};
use crate::error::{Result, Status};
use crate::note::{Level, Note, Notes};
use crate::recipe::Removal;
use crate::time::Time;

impl Engine {
    /// A call that wanted to get in has a hold of its own, of each of these.
    pub(super) fn record_grant(&mut self, now: Time, op: OpId, owner: Owner, joined: &[LockId]) {
        let Some(granted) = self.ops.get(&op) else { return };
        let (waited, handed_over) = (now - granted.started, granted.had_to_wait);
        self.tally.acquires_ok += 1;
        self.tally.handovers += u64::from(handed_over);
        self.tally.waits.observe(waited);
        if !self.session.notes().wants(Level::Debug) {
            return;
        }
        let hold = joined.first().and_then(|&lock| self.hold(lock, owner));
        let (token, pass) = hold.map_or((0, 0), |hold| (hold.token, hold.pass));
        let path = self.path_of(op);
        let note = || Note::Acquired { path, owner: owner.to_string(), token, pass, waited, handed_over };
        self.session.notes().add(Level::Debug, note);
    }

    /// A call is answered. Those that got in were recorded when they did.
    pub(super) fn record_answer<T>(&mut self, now: Time, kind: Kind, started: Time, result: &Result<T>) {
        let (Some((lock, owner)), Err(error)) = (kind.entrance(), result) else { return };
        if matches!(kind, Kind::Guard { .. }) {
            return;
        }
        *match error.status() {
            // As one that is refused before it begins.
            Status::Invalid => return,
            Status::Timeout => &mut self.tally.acquires_timeout,
            Status::Canceled | Status::Closed => &mut self.tally.acquires_canceled,
            Status::Connection => &mut self.tally.acquires_connection,
            _ => &mut self.tally.acquires_failed,
        } += 1;
        let path = self.locks.get(&lock).map(|lock| Arc::clone(&lock.path)).unwrap_or_default();
        let note = || Note::GaveUp { path, owner: owner.to_string(), waited: now - started, error: error.clone() };
        self.session.notes().add(Level::Debug, note);
    }

    /// A hold was given up by this program. One that had been lost was recorded before.
    pub(super) fn record_release(&mut self, now: Time, hold: &Hold, path: &Arc<str>) {
        if matches!(hold.trust, Trust::Lost(_)) {
            return;
        }
        let &Hold { owner, token, pass, since, .. } = hold;
        let held = now - since;
        self.tally.releases += 1;
        self.tally.holds.observe(held);
        let note = || Note::Released { path: Arc::clone(path), owner: owner.to_string(), token, pass, held };
        self.session.notes().add(Level::Debug, note);
    }

    /// A hold was lost.
    pub(super) fn record_loss(&mut self, now: Time, lock: LockId, machine: u64, removal: Removal) {
        let Some(path) = self.locks.get(&lock).map(|lock| Arc::clone(&lock.path)) else { return };
        let Some(&mut Hold { since, token, pass, .. }) = self.hold_by_machine(lock, machine) else { return };
        let held = now - since;
        self.tally.holds.observe(held);
        *match removal {
            Removal::SessionEnded => &mut self.tally.losses_session,
            Removal::Deleted => &mut self.tally.losses_deleted,
        } += 1;
        let note = || Note::Lost { path, token, pass, held, cause: cause_of(removal) };
        self.session.notes().add(Level::Warn, note);
    }
}

/// A hold stands differently.
pub(super) fn record_state(tally: &mut Metrics, notes: &mut Notes, path: &Arc<str>, hold: &Hold, previous: LockState) {
    let &Hold { token, pass, told, .. } = hold;
    let stands = |state| move || Note::LockStands { path: Arc::clone(path), token, pass, state };
    match told {
        LockState::Suspended => {
            tally.suspensions += 1;
            notes.add(Level::Debug, stands("SUSPENDED"));
        }
        LockState::Uncertain => {
            tally.uncertainties += 1;
            notes.add(Level::Warn, || Note::Uncertain { path: Arc::clone(path), token, pass });
        }
        LockState::Held if previous != LockState::Free => notes.add(Level::Debug, stands("HELD")),
        // These are recorded where they happen.
        LockState::Free | LockState::Held | LockState::Lost => {}
    }
}
