//! One request on behalf of a call, sent until it is answered: reading, setting and seeding a count, asking for a node back, looking
//! whether there is room.

use super::contender::{Input, REVOKE};
use super::directories::{Directories, ancestors};
use super::{Desk, Step};
use crate::error::{Error, Result, Status};
use crate::path::from_the_top;
use crate::proto::{Acl, Code, CreateMode, Request, Response};
use crate::session::Failure;

/// How often an errand may find that the node came or went in between.
const ROUNDS: u32 = 3;

/// An errand under way.
#[derive(Debug)]
pub struct Errand {
    task: Task,
    /// How often it may still find that the node came or went in between.
    rounds: u32,
    directories: Directories,
    /// Why a directory could not be created.
    refused: Option<Code>,
    /// The client may not make the node; whether it exists is being asked.
    is_refused: bool,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// Reads a count (Curator's `SharedCount`).
    GetCount {
        /// The full path of its node.
        path: String,
    },
    /// Sets a count; makes its node where there is none.
    SetCount {
        /// The full path of its node.
        path: String,
        /// To this.
        value: i32,
    },
    /// Makes a count's node, unless it is there.
    SeedCount {
        /// The full path of its node.
        path: String,
        /// With this value.
        value: i32,
    },
    /// Asks the owner of a node to give it up (Curator's `Revoker`).
    Revoke {
        /// The full path of the node.
        path: String,
    },
    /// Lists a directory.
    List {
        /// Its full path.
        path: String,
    },
    /// Looks whether the chroot is there, and creates it if the client may.
    FindChroot {
        /// Its path.
        path: String,
    },
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// It is done.
    Done,
    /// The count.
    Count(i32),
    /// How many children there are.
    Children(usize),
}

impl Errand {
    /// To do this.
    pub fn new(task: Task) -> Self {
        Self { task, rounds: ROUNDS, directories: Directories::default(), refused: None, is_refused: false }
    }

    /// Takes one input to its consequences; says so when it is done.
    pub fn handle(&mut self, desk: &mut Desk<'_>, input: Input<'_>) -> Option<Result<Done>> {
        match input {
            Input::Connected => {
                // What the last connection said, or a server that lags, does not count any more.
                (self.is_refused, self.refused) = (false, None);
                if matches!(self.task, Task::FindChroot { .. }) {
                    self.rounds = ROUNDS;
                }
                self.send(desk);
                None
            }
            Input::Reply(Step::CreateParent(_), result) => {
                let code = code_of(&result);
                self.directories.answered(code);
                self.refused = self.refused.or_else(|| code.filter(|&code| code != Code::NODE_EXISTS));
                None
            }
            Input::Reply(Step::Errand, result) => self.answered(desk, result),
            _ => None,
        }
    }

    fn send(&mut self, desk: &mut Desk<'_>) {
        let request = match &self.task {
            Task::GetCount { path } => Request::GetData { path: path.clone(), watch: false },
            Task::SetCount { path, value } => set(path, &value.to_be_bytes()),
            Task::SeedCount { path, value } => return seed(desk, &mut self.directories, path, *value),
            Task::Revoke { path } => set(path, REVOKE),
            Task::List { path } => Request::GetChildren2 { path: path.clone(), watch: false },
            Task::FindChroot { path } => Request::Exists { path: path.clone(), watch: false },
        };
        desk.send(Step::Errand, &request);
    }

    fn answered(
        &mut self,
        desk: &mut Desk<'_>,
        result: std::result::Result<Response, Failure>,
    ) -> Option<Result<Done>> {
        let code = match result {
            Ok(response) => return Some(self.task.done(response)),
            // Sent again with the next connection; doing it twice is doing it once.
            Err(Failure::ConnectionLost) => return None,
            Err(Failure::Code(code)) => code,
            Err(failure @ Failure::TooLarge(_)) => return Some(Err(failure.to_error(&self.task.doing()))),
        };
        match (&self.task, code) {
            (Task::SetCount { .. } | Task::SeedCount { .. }, Code::NO_NODE) if self.directories.is_chroot_missing() => {
                Some(Err(desk.chroot.missing()))
            }
            (Task::FindChroot { path }, Code::NO_NODE) if self.rounds == ROUNDS => {
                self.rounds -= 1;
                if desk.chroot.create {
                    self.directories.create(desk, from_the_top(path).map(|path| (0, path)), CreateMode::Persistent);
                } else {
                    // The server may lag behind the one through which it was created.
                    desk.session.prove(desk.now);
                }
                self.send(desk);
                None
            }
            (Task::FindChroot { path }, Code::NO_NODE) => Some(Err(match self.refused {
                Some(code) => Error::from_code(code, &format!("creating the chroot {path}")),
                None => desk.chroot.missing(),
            })),
            // It is there: a server that refuses to show a node says first if there is none.
            (Task::FindChroot { .. }, Code::NO_AUTH) => Some(Ok(Done::Done)),
            (Task::SetCount { path, value }, Code::NO_NODE) if self.rounds > 0 => {
                self.rounds -= 1;
                seed(desk, &mut self.directories, path, *value);
                None
            }
            // Somebody else made it first: it is there to be set.
            (Task::SetCount { .. }, Code::NODE_EXISTS) if self.rounds > 0 => {
                self.send(desk);
                None
            }
            (Task::SeedCount { .. }, Code::NODE_EXISTS) => Some(Ok(Done::Done)),
            // A server refuses to create a node in a parent that the client may not change before it looks whether the node exists.
            (Task::SeedCount { path, .. }, Code::NO_AUTH) if !self.is_refused => {
                self.is_refused = true;
                desk.send(Step::Errand, &Request::GetData { path: path.clone(), watch: false });
                None
            }
            (Task::SeedCount { .. }, Code::NO_NODE) if self.is_refused => {
                Some(Err(Error::from_code(Code::NO_AUTH, &self.task.doing())))
            }
            // Who has gone has given it up.
            (Task::Revoke { .. }, Code::NO_NODE) => Some(Ok(Done::Done)),
            (Task::List { .. }, Code::NO_NODE) => Some(Ok(Done::Children(0))),
            (Task::GetCount { path }, Code::NO_NODE) => {
                let message = format!("{path}: there is no such node; a count is made by setting it");
                Some(Err(Error::new(Status::Server, message)))
            }
            _ => Some(Err(Error::from_code(code, &self.task.doing()))),
        }
    }
}

impl Task {
    /// The same below a chroot.
    pub(crate) fn below(mut self, chroot: &str) -> Self {
        let (Self::GetCount { path }
        | Self::SetCount { path, .. }
        | Self::SeedCount { path, .. }
        | Self::Revoke { path }
        | Self::List { path }
        | Self::FindChroot { path }) = &mut self;
        path.insert_str(0, chroot);
        self
    }

    fn done(&self, response: Response) -> Result<Done> {
        Ok(match (self, response) {
            (Self::GetCount { path }, Response::Data { data, .. }) => Done::Count(parse(path, data.as_deref())?),
            (Self::List { .. }, Response::Children2 { children, .. }) => Done::Children(children.len()),
            _ => Done::Done,
        })
    }

    fn doing(&self) -> String {
        match self {
            Self::GetCount { path } => format!("reading the count {path}"),
            Self::SetCount { path, .. } | Self::SeedCount { path, .. } => format!("setting the count {path}"),
            Self::Revoke { path } => format!("revoking {path}"),
            Self::List { path } => format!("listing {path}"),
            Self::FindChroot { path } => format!("looking for the chroot {path}"),
        }
    }
}

/// Makes the node of a count, with all its ancestors; those that exist say so.
pub(super) fn seed(desk: &mut Desk<'_>, directories: &mut Directories, path: &str, value: i32) {
    directories.create(desk, ancestors(path).map(|path| (0, path)), CreateMode::Container);
    desk.send(Step::Errand, &create(path, value.to_be_bytes().to_vec(), CreateMode::Persistent));
}

/// Why a request failed, if its server has said so.
pub(super) fn code_of(result: &std::result::Result<Response, Failure>) -> Option<Code> {
    match result {
        Err(Failure::Code(code)) => Some(*code),
        _ => None,
    }
}

/// What the node of a count holds: four bytes, the highest first.
pub(super) fn parse(path: &str, data: Option<&[u8]>) -> Result<i32> {
    let data = data.unwrap_or_default();
    match <[u8; 4]>::try_from(data) {
        Ok(bytes) => Ok(i32::from_be_bytes(bytes)),
        Err(_) => {
            Err(Error::invalid(format!("{path} holds {} bytes, and is no count: a SharedCount has 4", data.len())))
        }
    }
}

fn set(path: &str, data: &[u8]) -> Request {
    Request::SetData { path: path.to_owned(), data: Some(data.to_vec()), version: -1 }
}

fn create(path: &str, data: Vec<u8>, mode: CreateMode) -> Request {
    Request::Create2 { path: path.to_owned(), data: Some(data), acl: Acl::open(), mode }
}
