//! How a contender leaves: its nodes are deleted, however long that takes.

use super::{Contender, Due, Output, Removal, Stage};
use crate::mutant::Mutant;
use crate::proto::{Code, Request, Response};
use crate::recipe::mirror::Deletion;
use crate::recipe::{Desk, Spot, Step};
use crate::session::Failure;

impl Contender {
    pub(super) fn leave(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        match &mut self.stage {
            Stage::Outside | Stage::Looking { .. } | Stage::NoParent => {
                self.stop_all_waiting(desk);
                self.gone()
            }
            Stage::Joining { leaving } | Stage::Unsure { leaving } => {
                *leaving = true;
                self.stop_all_waiting(desk);
                None
            }
            Stage::Leaving | Stage::Gone => None,
            Stage::Queued | Stage::In => {
                self.start_leaving(desk);
                None
            }
        }
    }

    /// On the way out, from a stage in which the nodes are known.
    pub(super) fn start_leaving(&mut self, desk: &mut Desk<'_>) {
        self.stop_all_waiting(desk);
        self.stage = Stage::Leaving;
        self.delete(desk);
    }

    pub(super) fn delete(&mut self, desk: &mut Desk<'_>) {
        if let Some(end) = self.spared_until.filter(|&end| desk.now < end) {
            if self.retry.due == Due::Never {
                self.retry.due = Due::In(end - desk.now);
            }
            return;
        }
        if !desk.session.is_connected() {
            // They are deleted as soon as there is a connection.
            return;
        }
        // In reverse, so that who follows in the same order finds his way free once he has the first.
        for spot in self.spots().into_iter().rev() {
            let Some(stand) = self.stands.get(spot.stand) else { continue };
            if let Some(node) = stand.nodes.get(spot.node).filter(|node| !node.is_gone) {
                desk.session.unwatch_doomed(&node.path, desk.machine);
                if let Some(mirror) = stand.mirror {
                    desk.mirrors.doom(mirror, node.name(), desk.machine);
                }
                desk.send(Step::Delete(spot), &Request::Delete { path: node.path.clone(), version: -1 });
            }
        }
    }

    pub(super) fn deleted(
        &mut self,
        desk: &mut Desk<'_>,
        spot: Spot,
        result: Result<Response, Failure>,
    ) -> Option<Output> {
        self.tell_mirror(desk, spot, &result);
        let is_leaving = self.stage == Stage::Leaving;
        let node = self.node_mut(spot).filter(|node| is_leaving && !node.is_gone)?;
        match result {
            Ok(_) => node.is_gone = true,
            Err(Failure::Code(Code::NO_NODE)) if node.maybe_deleted => node.is_gone = true,
            // Somebody else was here first: whoever held it held nothing.
            Err(Failure::Code(Code::NO_NODE)) => {
                node.is_gone = true;
                self.was_robbed = true;
            }
            // Sent again as soon as there is a connection.
            Err(Failure::ConnectionLost) if Mutant::DeleteOnce.lives() => node.is_gone = true,
            Err(Failure::ConnectionLost) => node.maybe_deleted = true,
            Err(Failure::Code(_)) if Mutant::GiveUpRefused.lives() => node.is_gone = true,
            Err(failure) => {
                let what = format!("deleting {} (zklock goes on trying)", node.path);
                self.try_again_later(desk);
                return Some(Output::Refused(failure.to_error(&what)));
            }
        }
        if !self.nodes().all(|node| node.is_gone) {
            return None;
        }
        self.stage = Stage::Gone;
        Some(if self.was_robbed { Output::Removed(Removal::Deleted) } else { Output::Gone })
    }

    /// Those behind learn from the answer, where the mirror is what they go by.
    fn tell_mirror(&self, desk: &mut Desk<'_>, spot: Spot, result: &Result<Response, Failure>) {
        let Some(stand) = self.stands.get(spot.stand) else { return };
        let (Some(mirror), Some(node)) = (stand.mirror, stand.nodes.get(spot.node)) else { return };
        let how = match result {
            Ok(_) => Deletion::Done,
            Err(Failure::Code(Code::NO_NODE)) => Deletion::Missing,
            Err(Failure::Code(_) | Failure::TooLarge(_)) => Deletion::Refused,
            // The mirror goes with the connection.
            Err(Failure::ConnectionLost) => return,
        };
        let number = stand.number_of(node);
        desk.mirrors.deleted(desk.now, desk.session, mirror, node.name(), number, how);
    }

    pub(super) fn try_again_later(&mut self, desk: &Desk<'_>) {
        if self.retry.due == Due::Never {
            let limits = desk.session.limits();
            let wait = self.retry.wait.max(limits.first_retry);
            self.retry.due = Due::In(wait);
            self.retry.wait = (wait * 2).min(limits.last_retry);
        }
    }

    pub(super) fn retry(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        self.retry.due = Due::Never;
        match self.stage {
            Stage::Leaving => self.delete(desk),
            Stage::Unsure { .. } if desk.session.is_connected() => self.look_for_nodes(desk),
            Stage::Queued if desk.session.is_connected() => self.list_when_alive(desk),
            Stage::In => return Some(Output::In),
            _ => {}
        }
        None
    }
}
