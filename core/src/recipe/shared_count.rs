//! A watched count. A Curator `SharedCount` stores the number of leases of a semaphore, and the client watches this
//! number.

use zklock_proto::{Code, Response};

use super::contender::Input;
use super::directories::DirectoryCreation;
use super::node_request::{create_count, parse};
use super::{Context, RequestKind};
use crate::acl::{Permission, Place};
use crate::error::Result;
use crate::path::parent;
use crate::session::Failure;

/// The state machine of a watched count.
#[derive(Debug)]
pub(crate) struct SharedCount {
    path: String,
    /// The value with which the client creates a missing node.
    initial: i32,
    directories: DirectoryCreation,
}

impl SharedCount {
    /// Creates the state machine for the count at a full path.
    pub(crate) fn new(path: String, initial: i32) -> Self {
        Self { path, initial, directories: DirectoryCreation::default() }
    }

    /// Handles one input. Whenever the client has read the count, the method returns the value or the error.
    pub(crate) fn handle(&mut self, cx: &mut Context<'_>, input: Input<'_>) -> Option<Result<i32>> {
        match input {
            // After a reconnect, the session restores only watches that a server had set. The client therefore reads
            // the count again after every reconnect.
            Input::SendRequests | Input::WatchFired(..) => {
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
            Err(Failure::Code(Code::NO_NODE)) => {
                create_count(cx, &mut self.directories, &self.path, self.initial);
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
    fn on_created(&self, cx: &mut Context<'_>, result: std::result::Result<Response, Failure>) -> Option<Result<i32>> {
        match result {
            Ok(_) | Err(Failure::Code(Code::NODE_EXISTS)) => {
                self.read(cx);
                None
            }
            Err(Failure::ConnectionLost) => None,
            Err(failure) => {
                let is_directory_missing = matches!(failure, Failure::Code(Code::NO_NODE));
                let missing = self.directories.missing_directory_error(cx, 0).filter(|_| is_directory_missing);
                Some(Err(missing.unwrap_or_else(|| {
                    let doing = format!("creating the count {}", self.path);
                    cx.create_error(failure, &doing, parent(&self.path), Place::LockDirectory)
                })))
            }
        }
    }
}
