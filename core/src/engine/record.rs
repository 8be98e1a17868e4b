//! Updates the metrics of the client, and creates log records.

use std::sync::Arc;

use super::interface::{LockId, LockState, OpId};
use super::machines::{Role, StateMachine};
use super::metrics::Metrics;
use super::state::{Engine, Hold, NodeStatus, Op, OpKind};
use crate::error::{Result, Status};
use crate::log_record::{Level, LogBuffer, LogRecord};
use crate::recipe::Removal;
use crate::session::{MachineId, Traffic};
use crate::time::Time;

impl Engine {
    /// Returns the metrics of this client and its state.
    pub fn metrics(&self) -> Metrics {
        let Traffic {
            connection_attempts,
            connections,
            reconnects,
            connections_lost,
            sessions,
            sessions_lost,
            requests,
            answers,
            pings,
            watch_events,
            bytes_sent,
            bytes_received,
            round_trips,
        } = *self.session.traffic();
        let is_leaving = |(_, machine): &(MachineId, &StateMachine)| {
            matches!(machine, StateMachine::Contender(_, Role::Leaving(_) | Role::DeletePostponed))
        };
        let is_live = |hold: &&Hold| !matches!(hold.node_status, NodeStatus::Lost(_));
        let waits = |op: &&Op| matches!(op.kind, OpKind::Acquire(_));
        Metrics {
            connection_attempts,
            connections,
            reconnects,
            connections_lost,
            sessions,
            sessions_lost,
            requests,
            answers,
            pings,
            watch_events,
            bytes_sent,
            bytes_received,
            round_trips,
            held: to_u64(self.locks.values().flat_map(|lock| &lock.holds).filter(is_live).count()),
            waiting: to_u64(self.ops.values().filter(waits).count()),
            leaving: to_u64(self.machines.iter().filter(is_leaving).count()),
            watches: to_u64(self.session.watch_count()),
            session_timeout: self.session.timeout(),
            state: self.session.state(),
            ..self.metrics
        }
    }

    /// Records that an acquire has received new holds of these locks.
    pub(super) fn record_grant(&mut self, now: Time, op: OpId, joined: &[LockId]) {
        let Some(Op { kind: OpKind::Acquire(acquire), started, .. }) = self.ops.get(&op) else { return };
        let (owner, handed_over, waited) = (acquire.owner, acquire.has_waited, now - *started);
        self.metrics.acquires_ok += 1;
        self.metrics.handovers += u64::from(handed_over);
        self.metrics.waits.observe(waited);
        if !self.session.log_buffer().is_enabled(Level::Debug) {
            return;
        }
        let hold = joined.first().and_then(|&lock| self.hold(lock, owner));
        let (token, pass) = hold.map_or((0, 0), |hold| (hold.token, hold.fencing_pass));
        let path = self.path_of(op);
        let record = || LogRecord::Acquired { path, owner: owner.to_string(), token, pass, waited, handed_over };
        self.session.log_buffer().add(Level::Debug, record);
    }

    /// Records the result of an operation. For a successful acquire, the engine has already recorded the grant.
    pub(super) fn record_answer<T>(&mut self, now: Time, kind: &OpKind, started: Time, result: &Result<T>) {
        let (Some((lock, owner)), Err(error)) = (kind.lock_and_owner(), result) else { return };
        if matches!(kind, OpKind::HoldWait { .. }) {
            return;
        }
        *match error.status() {
            // The metrics do not count operations with invalid arguments or operations that the engine refuses before
            // they start.
            Status::Invalid => return,
            Status::Timeout => &mut self.metrics.acquires_timeout,
            Status::Canceled | Status::Closed => &mut self.metrics.acquires_canceled,
            Status::Connection => &mut self.metrics.acquires_connection,
            _ => &mut self.metrics.acquires_failed,
        } += 1;
        let path = self.locks.get(&lock).map(|lock| Arc::clone(&lock.path)).unwrap_or_default();
        let record =
            || LogRecord::AcquireFailed { path, owner: owner.to_string(), waited: now - started, error: error.clone() };
        self.session.log_buffer().add(Level::Debug, record);
    }

    /// Records that this program has released a hold. If the hold was lost, the engine has already recorded the loss.
    pub(super) fn record_release(&mut self, now: Time, hold: &Hold, path: &Arc<str>) {
        if matches!(hold.node_status, NodeStatus::Lost(_)) {
            return;
        }
        let &Hold { owner, token, fencing_pass, granted_at, .. } = hold;
        let held = now - granted_at;
        self.metrics.releases += 1;
        self.metrics.holds.observe(held);
        let record = || LogRecord::Released {
            path: Arc::clone(path),
            owner: owner.to_string(),
            token,
            pass: fencing_pass,
            held,
        };
        self.session.log_buffer().add(Level::Debug, record);
    }

    pub(super) fn record_loss(&mut self, now: Time, lock: LockId, machine_id: MachineId, removal: Removal) {
        let Some(path) = self.locks.get(&lock).map(|lock| Arc::clone(&lock.path)) else { return };
        let Some(&mut Hold { granted_at, token, fencing_pass, .. }) = self.hold_by_machine(lock, machine_id) else {
            return;
        };
        let held = now - granted_at;
        self.metrics.holds.observe(held);
        *match removal {
            Removal::SessionEnded => &mut self.metrics.losses_session,
            Removal::Deleted => &mut self.metrics.losses_deleted,
        } += 1;
        let record = || LogRecord::HoldLost { path, token, pass: fencing_pass, held, cause: loss_cause(removal) };
        self.session.log_buffer().add(Level::Warn, record);
    }
}

/// Records a change of the state of a hold.
pub(super) fn record_state(
    tally: &mut Metrics,
    log_buffer: &mut LogBuffer,
    path: &Arc<str>,
    hold: &Hold,
    previous: LockState,
) {
    let &Hold { token, fencing_pass, reported_state, .. } = hold;
    let state_record =
        |state| move || LogRecord::HoldStateChanged { path: Arc::clone(path), token, pass: fencing_pass, state };
    match reported_state {
        LockState::Suspended => {
            tally.suspensions += 1;
            log_buffer.add(Level::Debug, state_record("SUSPENDED"));
        }
        LockState::Uncertain => {
            tally.uncertainties += 1;
            log_buffer.add(Level::Warn, || LogRecord::HoldUncertain {
                path: Arc::clone(path),
                token,
                pass: fencing_pass,
            });
        }
        LockState::Held if previous != LockState::Free => log_buffer.add(Level::Debug, state_record("HELD")),
        // The engine records these states in other methods.
        LockState::Free | LockState::Held | LockState::Lost => {}
    }
}

pub(super) const fn loss_cause(removal: Removal) -> &'static str {
    match removal {
        Removal::SessionEnded => "its session ended",
        Removal::Deleted => "another client or an operator deleted its node",
    }
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
