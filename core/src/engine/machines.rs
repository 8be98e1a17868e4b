//! The state machines of a client, with the counts that depend on their roles. The code in this file does not pass
//! inputs to state machines.

use std::collections::{BTreeMap, BTreeSet};

use super::interface::{LockId, OpId};
use super::owner::Owner;
use super::path_bytes::PathBytes;
use crate::recipe::{Contender, FenceCheck, ParticipantQuery, RetriedRequest, SharedCount};
use crate::session::MachineId;

/// A state machine of the client. The variants are boxed, because the map of state machines also reserves memory for
/// unused entries.
pub(super) enum StateMachine {
    Contender(Box<Contender>, Role),
    ParticipantQuery(Box<ParticipantQuery>, OpId),
    RetriedRequest(Box<RetriedRequest>, OpId),
    FenceCheck(Box<FenceCheck>, OpId),
    /// Reads the queues of an operation to detect a deadlock. The [`MachineId`] names the contender that represents the
    /// operation.
    DeadlockCheck(Box<ParticipantQuery>, OpId, MachineId),
    SharedCount(Box<SharedCount>, LockId),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Role {
    /// The engine has created this contender by splitting another contender, and is about to create its hold.
    Unassigned,
    Acquiring(OpId),
    /// The contender has acquired the inner mutex of a semaphore, and the operation waits for leases.
    InnerMutex(OpId),
    Holding(LockId, Owner),
    /// The contender is leaving. If the variant contains an operation, the operation waits until the contender has
    /// left.
    Leaving(Option<OpId>),
    /// The contender is leaving, but must wait before it sends the next delete request. It does not count for
    /// `Limits::max_leaving`, because it may have to wait for long.
    DeletePostponed,
}

/// All state machines of one client.
pub(super) struct StateMachines {
    machines: BTreeMap<MachineId, StateMachine>,
    /// The number of contenders with a hold.
    holding: usize,
    /// The number of contenders that are leaving.
    leaving: usize,
    /// Contenders that have left, but whose nodes the client may not delete.
    undeletable: BTreeSet<MachineId>,
    pub(super) path_bytes: PathBytes,
}

impl StateMachines {
    pub(super) fn new(max_path_bytes: usize) -> Self {
        Self {
            machines: BTreeMap::new(),
            holding: 0,
            leaving: 0,
            undeletable: BTreeSet::new(),
            path_bytes: PathBytes::new(max_path_bytes),
        }
    }

    pub(super) fn get(&self, id: MachineId) -> Option<&StateMachine> {
        self.machines.get(&id)
    }

    /// Returns a contender, or `None` if the id belongs to no contender.
    pub(super) fn contender(&self, id: MachineId) -> Option<&Contender> {
        match self.get(id) {
            Some(StateMachine::Contender(contender, _)) => Some(contender),
            _ => None,
        }
    }

    /// Returns a state machine. The caller must not change the role of a contender, because the counts depend on it.
    pub(super) fn get_mut(&mut self, id: MachineId) -> Option<&mut StateMachine> {
        self.machines.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (MachineId, &StateMachine)> {
        self.machines.iter().map(|(&id, machine)| (id, machine))
    }

    pub(super) fn ids(&self) -> Vec<MachineId> {
        self.machines.keys().copied().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.machines.is_empty()
    }

    /// Returns whether a contender has a hold.
    pub(super) const fn has_holds(&self) -> bool {
        self.holding > 0
    }

    /// Returns the number of contenders that are leaving.
    pub(super) const fn leaving_count(&self) -> usize {
        self.leaving
    }

    /// Returns the contenders that have left, but whose nodes the client may not delete.
    pub(super) fn undeletable(&self) -> impl Iterator<Item = &Contender> {
        self.undeletable.iter().filter_map(|&id| self.contender(id))
    }

    pub(super) fn set_undeletable(&mut self, id: MachineId, is_undeletable: bool) {
        match is_undeletable {
            true => self.undeletable.insert(id),
            false => self.undeletable.remove(&id),
        };
    }

    /// Adds a state machine.
    pub(super) fn insert(&mut self, id: MachineId, machine: StateMachine) {
        self.machines.insert(id, machine);
    }

    /// Removes a state machine.
    pub(super) fn remove(&mut self, id: MachineId) {
        if let Some(StateMachine::Contender(_, role)) = self.machines.remove(&id) {
            self.holding -= usize::from(role.is_holding());
            self.leaving -= usize::from(role.is_leaving());
            self.undeletable.remove(&id);
            self.path_bytes.remove(id);
        }
    }

    /// Gives a query another id.
    pub(super) fn rename(&mut self, id: MachineId, new: MachineId) {
        if let Some(machine) = self.machines.remove(&id) {
            self.machines.insert(new, machine);
        }
    }

    /// Removes all state machines.
    pub(super) fn clear(&mut self) {
        self.machines.clear();
        self.undeletable.clear();
        (self.holding, self.leaving) = (0, 0);
        self.path_bytes.session_ended();
    }

    /// Gives a contender another role.
    pub(super) fn set_role(&mut self, id: MachineId, role: Role) {
        if let Some(StateMachine::Contender(_, current)) = self.machines.get_mut(&id) {
            self.path_bytes.set_leaving(id, role.is_leaving());
            self.holding = self.holding + usize::from(role.is_holding()) - usize::from(current.is_holding());
            self.leaving = self.leaving + usize::from(role.is_leaving()) - usize::from(current.is_leaving());
            *current = role;
        }
    }

    /// Replaces a contender that has acquired its locks by the contenders into which `split` splits it. Returns their
    /// ids.
    pub(super) fn split(
        &mut self,
        id: MachineId,
        split: impl FnOnce(Contender) -> Vec<(MachineId, Contender)>,
    ) -> Vec<MachineId> {
        let Some(StateMachine::Contender(contender, _)) = self.machines.remove(&id) else { return Vec::new() };
        let parts = split(*contender);
        self.path_bytes.split(id, parts.iter().map(|(part_id, part)| (*part_id, part.path_bytes())));
        let insert = |(part_id, part)| {
            self.machines.insert(part_id, StateMachine::Contender(Box::new(part), Role::Unassigned));
            part_id
        };
        parts.into_iter().map(insert).collect()
    }
}

impl Role {
    pub(super) const fn is_holding(self) -> bool {
        matches!(self, Self::Holding(..))
    }

    pub(super) const fn is_leaving(self) -> bool {
        matches!(self, Self::Leaving(_))
    }
}
