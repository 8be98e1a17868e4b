//! A count that is watched: how many leases a semaphore has, where a `SharedCount` of Curator's says so.

use super::contender::Input;
use super::directories::Directories;
use super::errand::{code_of, parse, seed};
use super::{Desk, Step};
use crate::error::Result;
use crate::proto::{Code, Response};
use crate::session::Failure;

/// A watched count.
#[derive(Debug)]
pub struct Count {
    path: String,
    /// What it begins with, where its node is not there.
    initial: i32,
    directories: Directories,
}

impl Count {
    /// The count at a full path.
    pub fn new(path: String, initial: i32) -> Self {
        Self { path, initial, directories: Directories::default() }
    }

    /// Takes one input to its consequences; gives the value when it is read, or why it can't be.
    pub fn handle(&mut self, desk: &mut Desk<'_>, input: Input<'_>) -> Option<Result<i32>> {
        match input {
            // Its watch was set again, if it had one. It may never have been.
            Input::Connected | Input::Fired(..) => {
                self.read(desk);
                None
            }
            Input::Reply(Step::WatchAhead(_), result) => self.seen(desk, result),
            Input::Reply(Step::CreateParent(_), result) => {
                self.directories.answered(code_of(&result));
                None
            }
            Input::Reply(Step::Errand, result) => self.made(desk, result),
            Input::Leave => {
                desk.unwatch(&self.path);
                None
            }
            _ => None,
        }
    }

    fn read(&self, desk: &mut Desk<'_>) {
        desk.watch(Step::WatchAhead(0), &self.path);
    }

    fn seen(&mut self, desk: &mut Desk<'_>, result: std::result::Result<Response, Failure>) -> Option<Result<i32>> {
        match result {
            Ok(Response::Data { data, .. }) => Some(parse(&self.path, data.as_deref())),
            Err(Failure::Code(Code::NO_NODE)) => {
                seed(desk, &mut self.directories, &self.path, self.initial);
                None
            }
            // Asked again with the next connection.
            Ok(_) | Err(Failure::ConnectionLost) => None,
            Err(failure) => Some(Err(failure.to_error(&format!("reading the count {}", self.path)))),
        }
    }

    /// Its node is there now, whoever made it; or it can't be made.
    fn made(&self, desk: &mut Desk<'_>, result: std::result::Result<Response, Failure>) -> Option<Result<i32>> {
        match result {
            Ok(_) | Err(Failure::Code(Code::NODE_EXISTS)) => {
                self.read(desk);
                None
            }
            Err(Failure::Code(Code::NO_NODE)) if self.directories.is_chroot_missing() => {
                Some(Err(desk.chroot.missing()))
            }
            Err(Failure::ConnectionLost) => None,
            Err(failure) => Some(Err(failure.to_error(&format!("making the count {}", self.path)))),
        }
    }
}
