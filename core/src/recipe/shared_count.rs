//! A watched count. A Curator `SharedCount` stores the number of leases of a semaphore, and the client watches this
//! number.

use zklock_proto::{Code, Response};

use super::contender::Input;
use super::directories::DirectoryCreation;
use super::node_request::{MAX_ATTEMPTS, create_count, parse};
use super::{Context, RequestKind};
use crate::acl::{Permission, Place};
use crate::error::{Error, Result};
use crate::path::parent;
use crate::session::Failure;

/// The state machine of a watched count.
#[derive(Debug)]
pub(crate) struct SharedCount {
    path: String,
    /// The value with which the client creates a missing node.
    initial: i32,
    directories: DirectoryCreation,
    /// The number of times that the client may still create the node after a server has found no parent.
    attempts_left: u32,
    /// True if a server has refused to create the node, because the client lacks the permission.
    is_creation_denied: bool,
}

impl SharedCount {
    /// Creates the state machine for the count at a full path.
    pub(crate) fn new(path: String, initial: i32) -> Self {
        let directories = DirectoryCreation::default();
        Self { path, initial, directories, attempts_left: MAX_ATTEMPTS, is_creation_denied: false }
    }

    /// Handles one input. Whenever the client has read the count, the method returns the value or the error.
    pub(crate) fn handle(&mut self, cx: &mut Context<'_>, input: Input<'_>) -> Option<Result<i32>> {
        match input {
            // After a reconnect, the session restores only watches that a server had set. The client therefore reads
            // the count again after every reconnect.
            Input::SendRequests | Input::WatchFired(..) => {
                (self.attempts_left, self.is_creation_denied) = (MAX_ATTEMPTS, false);
                self.read(cx);
                None
            }
            Input::Reply { kind: RequestKind::WatchData(_), result, .. } => self.on_read(cx, result),
            Input::Reply { kind: RequestKind::CreateDirectory, result, .. } => {
                self.directories.on_reply(&result);
                None
            }
            Input::Reply { kind: RequestKind::NodeRequest, result, .. } => self.on_created(cx, result),
            Input::Leave => {
                cx.unwatch_data(&self.path);
                None
            }
            _ => None,
        }
    }

    fn read(&self, cx: &mut Context<'_>) {
        cx.watch_data(RequestKind::WatchData(0), &self.path);
    }

    fn on_read(&mut self, cx: &mut Context<'_>, result: std::result::Result<Response, Failure>) -> Option<Result<i32>> {
        match result {
            Ok(Response::Data { data, .. }) => Some(parse(&self.path, data.as_deref())),
            Err(Failure::Code(Code::NO_NODE)) if self.is_creation_denied => {
                Some(Err(self.creation_error(cx, Code::NO_AUTH.into())))
            }
            Err(Failure::Code(Code::NO_NODE)) => {
                self.create(cx);
                None
            }
            // The client reads the count again on the next connection.
            Ok(_) | Err(Failure::ConnectionLost) => None,
            Err(failure) => {
                let error = failure.to_error(&format!("reading the count {}", self.path));
                Some(Err(error.requiring(Permission::Read, &self.path)))
            }
        }
    }

    /// Handles the reply to the request that creates the node. If another client has already created the node, the
    /// client reads the count too.
    fn on_created(
        &mut self,
        cx: &mut Context<'_>,
        result: std::result::Result<Response, Failure>,
    ) -> Option<Result<i32>> {
        match result {
            Ok(_) | Err(Failure::Code(Code::NODE_EXISTS)) => self.read(cx),
            Err(Failure::ConnectionLost) => {}
            // A server denies the request before it checks whether the node exists. The node can exist, because the
            // server that found no node may have lagged behind.
            Err(Failure::Code(Code::NO_AUTH)) => {
                self.is_creation_denied = true;
                self.read(cx);
            }
            Err(Failure::Code(Code::NO_NODE)) => {
                if let Some(error) = self.directories.missing_directory_error(cx, 0) {
                    return Some(Err(error));
                }
                if self.attempts_left == 0 {
                    return Some(Err(self.creation_error(cx, Code::NO_NODE.into())));
                }
                // A server has removed an empty directory after the client had created it.
                self.attempts_left -= 1;
                self.create(cx);
            }
            Err(failure) => return Some(Err(self.creation_error(cx, failure))),
        }
        None
    }

    fn create(&mut self, cx: &mut Context<'_>) {
        create_count(cx, &mut self.directories, &self.path, self.initial);
    }

    fn creation_error(&self, cx: &Context<'_>, failure: Failure) -> Error {
        let doing = format!("creating the count {}", self.path);
        cx.create_error(failure, &doing, parent(&self.path), Place::LockDirectory)
    }
}
