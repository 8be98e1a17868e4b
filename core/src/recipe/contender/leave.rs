//! Makes a contender leave its queues. The contender deletes its nodes. It repeats each delete request until a server
//! has confirmed the deletion.

use std::time::Duration;

use zklock_proto::{Code, Refusal, Request, Response};

use super::{Contender, Deleting, JoinStep, Joining, Leaving, Output, Phase, Removal, RetryState};
use crate::acl::Permission;
use crate::mutant::Mutant;
use crate::path::parent;
use crate::recipe::directory_cache::Deletion;
use crate::recipe::{Context, NodeIndex, RequestKind};
use crate::session::Failure;

impl Contender {
    pub(super) fn leave(&mut self, cx: &mut Context<'_>) -> Option<Output> {
        match &self.phase {
            Phase::Joining(Joining { step, .. }) => {
                self.stop_all_waiting(cx);
                self.phase = match step {
                    JoinStep::NotBegun
                    | JoinStep::Checking { .. }
                    | JoinStep::Blocked { .. }
                    | JoinStep::DirectoryMissing { .. } => return self.finish(),
                    JoinStep::Creating => Phase::Leaving(Leaving::Creating),
                    JoinStep::CreateUnknown => Phase::Leaving(Leaving::Searching),
                };
                None
            }
            Phase::Queued(_) | Phase::Acquired => {
                self.start_leaving(cx);
                None
            }
            Phase::Leaving(_) | Phase::Gone => None,
        }
    }

    /// Starts deleting the contender's nodes. The contender must already know its nodes.
    pub(super) fn start_leaving(&mut self, cx: &mut Context<'_>) {
        self.stop_all_waiting(cx);
        self.delete_known_nodes(cx);
    }

    /// Deletes the nodes of a contender that has stopped waiting.
    pub(super) fn delete_known_nodes(&mut self, cx: &mut Context<'_>) {
        self.phase = Phase::Leaving(Leaving::Deleting(Deleting::default()));
        self.delete(cx);
    }

    pub(super) fn delete(&mut self, cx: &mut Context<'_>) {
        let Phase::Leaving(Leaving::Deleting(Deleting { not_before, deleted, .. })) = &self.phase else { return };
        if let Some(end) = not_before.filter(|&end| cx.now < end) {
            if self.retry.state == RetryState::Idle {
                self.retry.state = RetryState::Requested(end - cx.now);
            }
            return;
        }
        if !cx.session.is_connected() {
            // The contender deletes these nodes after the next reconnect.
            return;
        }
        // The contender deletes its nodes in reverse order, so its first directory becomes free last. Another contender
        // that waits in the same directories then finds all of them free.
        for index in self.node_indices().into_iter().rev().filter(|index| !deleted.contains(index)) {
            let Some(slot) = self.slots.get(index.slot) else { continue };
            if let Some(node) = slot.nodes.get(index.node) {
                cx.session.unwatch_before_delete(&node.path, cx.subscriber());
                if let Some(cache) = slot.cache {
                    cx.caches.on_delete_sent(cache, node.name(), cx.machine_id);
                }
                cx.send(RequestKind::Delete(index), &Request::Delete { path: node.path.clone(), version: -1 });
            }
        }
    }

    pub(super) fn on_deleted(
        &mut self,
        cx: &mut Context<'_>,
        index: NodeIndex,
        result: Result<Response, Failure>,
    ) -> Option<Output> {
        self.report_delete_to_cache(cx, index, &result);
        let node_count = self.nodes().count();
        let Phase::Leaving(Leaving::Deleting(deleting)) = &mut self.phase else { return None };
        let node = self.slots.get(index.slot)?.nodes.get(index.node).filter(|_| !deleting.deleted.contains(&index))?;
        match result {
            Ok(_) => {}
            // If the contender has no earlier delete request without a reply, another client or an operator has deleted
            // the node. The contender then reports the loss of its node.
            Err(Failure::Code(Code::NO_NODE)) => {
                deleting.was_deleted_by_other |= !deleting.unconfirmed.contains(&index);
            }
            Err(Failure::ConnectionLost) if Mutant::DeleteOnce.is_active() => {}
            // The contender repeats the delete request after the next reconnect.
            Err(Failure::ConnectionLost) => {
                deleting.unconfirmed.insert(index);
                return None;
            }
            Err(Failure::Code(_)) if Mutant::GiveUpRefused.is_active() => {}
            Err(Failure::Code(code)) if code.refusal() == Refusal::Transient => return None,
            Err(failure) => {
                match failure {
                    Failure::Code(Code::NO_AUTH) => deleting.denied.insert(index),
                    _ => deleting.denied.remove(&index),
                };
                let what = format!("deleting {} (zklock repeats the request)", node.path);
                let error = failure.to_error(&what).requiring(Permission::Delete, parent(&node.path));
                self.schedule_retry(cx);
                return Some(Output::DeleteRefused(error));
            }
        }
        deleting.denied.remove(&index);
        if deleting.deleted.len() + 1 < node_count {
            deleting.deleted.insert(index);
            return None;
        }
        let was_deleted_by_other = deleting.was_deleted_by_other;
        self.phase = Phase::Gone;
        Some(if was_deleted_by_other { Output::Removed(Removal::Deleted) } else { Output::Gone })
    }

    /// Reports the result of a delete request to the directory cache, which notifies the contenders behind the node.
    fn report_delete_to_cache(&self, cx: &mut Context<'_>, index: NodeIndex, result: &Result<Response, Failure>) {
        let Some(slot) = self.slots.get(index.slot) else { return };
        let (Some(cache), Some(node)) = (slot.cache, slot.nodes.get(index.node)) else { return };
        let how = match result {
            Ok(_) => Deletion::Done,
            Err(Failure::Code(Code::NO_NODE)) => Deletion::Missing,
            // The directory cache ends when the connection is lost.
            Err(Failure::ConnectionLost) => return,
            Err(_) => Deletion::Refused,
        };
        let number = slot.sequence_of(node);
        cx.caches.on_delete_reply(cx.now, cx.session, cache, node.name(), number, how);
    }

    pub(super) fn schedule_retry(&mut self, cx: &Context<'_>) {
        self.retry_after(cx, cx.session.limits().last_retry);
    }

    /// Plans to repeat a request that a server has refused for the moment.
    pub(super) fn repeat_soon(&mut self, cx: &Context<'_>) {
        self.retry_after(cx, cx.session.limits().last_repetition);
    }

    /// Plans a repetition after a pause of at most `longest`.
    fn retry_after(&mut self, cx: &Context<'_>, longest: Duration) {
        if self.retry.state == RetryState::Idle {
            let wait = self.retry.delay.max(cx.session.limits().first_retry).min(longest);
            self.retry.state = RetryState::Requested(wait);
            self.retry.delay = wait * 2;
        }
    }

    /// Handles the end of a pause. The contender repeats what it could not do, for example deletes its nodes. If it
    /// waits, it first requests a proof of the session. Without a connection, the next connect has the same effect.
    pub(super) fn on_retry(&mut self, cx: &mut Context<'_>) -> Option<Output> {
        self.retry.state = RetryState::Idle;
        if !cx.session.is_connected() {
            return None;
        }
        match &self.phase {
            Phase::Joining(Joining { step: JoinStep::DirectoryMissing { .. }, .. }) => {
                return self.on_directory_missing(cx);
            }
            Phase::Queued(_) => self.verify_session_and_list(cx),
            Phase::Acquired => self.watch_unwatched(cx),
            Phase::Joining(_) | Phase::Leaving(_) | Phase::Gone => return self.send_requests(cx),
        }
        None
    }
}
