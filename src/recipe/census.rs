//! Who stands in a queue: one list, then one read of each node, all in one write.

use std::sync::Arc;

use super::name::{Kind, classify};
use super::queue::Input;
use super::{Desk, Step};
use crate::error::{Error, Result};
use crate::proto::{Code, Request, Response};
use crate::session::Failure;

/// A contender as everybody can see it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Participant {
    /// The path of its node, without the client's chroot.
    pub node_path: String,
    /// Whether it holds the lock now; otherwise it waits.
    pub holds: bool,
    /// The session that owns the node; 0 if the node is not ephemeral.
    pub session_id: i64,
    /// The zxid of the node's creation: the fencing token of its hold.
    pub czxid: i64,
    /// The node's data.
    pub data: Vec<u8>,
}

/// The question under way.
#[derive(Debug)]
pub struct Census {
    directory: Arc<str>,
    chroot_len: usize,
    base: &'static str,
    names: Vec<String>,
    found: Vec<Participant>,
    outstanding: usize,
}

impl Census {
    /// Asks who stands in `directory`, a full path that begins with a chroot of `chroot_len` bytes.
    pub fn new(directory: Arc<str>, chroot_len: usize, base: &'static str) -> Self {
        Self { directory, chroot_len, base, names: Vec::new(), found: Vec::new(), outstanding: 0 }
    }

    /// Takes one input to its consequences; gives the answer once it is complete, holder first.
    pub fn handle(&mut self, desk: &mut Desk<'_>, input: Input<'_>) -> Option<Result<Vec<Participant>>> {
        match input {
            Input::Connected => {
                desk.send(Step::List, &Request::GetChildren2 { path: self.directory.to_string(), watch: false });
                None
            }
            Input::Reply(Step::List, result) => self.listed(desk, result),
            Input::Reply(Step::Read(index), result) => self.read(index, result),
            _ => None,
        }
    }

    fn listed(
        &mut self,
        desk: &mut Desk<'_>,
        result: std::result::Result<Response, Failure>,
    ) -> Option<Result<Vec<Participant>>> {
        let children = match result {
            Ok(Response::Children2 { children, .. }) => children,
            Ok(_) | Err(Failure::Code(Code::NO_NODE)) => Vec::new(),
            // Asked again with the next connection.
            Err(Failure::ConnectionLost) => return None,
            Err(Failure::Code(code)) => return Some(Err(self.error(code))),
        };
        let mut keyed: Vec<_> = children
            .iter()
            .filter_map(|name| match classify(name, self.base) {
                Kind::Contender(key) => Some((key, name)),
                _ => None,
            })
            .collect();
        keyed.sort_unstable();
        self.names = keyed.into_iter().map(|(_, name)| name.clone()).collect();
        self.found.clear();
        self.outstanding = self.names.len();
        for (index, name) in self.names.iter().enumerate() {
            let path = format!("{}/{name}", self.directory);
            desk.send(Step::Read(index), &Request::GetData { path, watch: false });
        }
        self.answer_if_complete()
    }

    fn read(
        &mut self,
        index: usize,
        result: std::result::Result<Response, Failure>,
    ) -> Option<Result<Vec<Participant>>> {
        match result {
            Ok(Response::Data { data, stat }) => {
                let directory = self.directory.get(self.chroot_len..).unwrap_or_default();
                let name = self.names.get(index).map_or("", String::as_str);
                self.found.push(Participant {
                    node_path: format!("{directory}/{name}"),
                    holds: self.found.is_empty(),
                    session_id: stat.ephemeral_owner,
                    czxid: stat.czxid,
                    data: data.unwrap_or_default(),
                });
            }
            // It left meanwhile.
            Ok(_) | Err(Failure::Code(Code::NO_NODE)) => {}
            // All that are under way are lost together, and the list is asked for again.
            Err(Failure::ConnectionLost) => return None,
            Err(Failure::Code(code)) => return Some(Err(self.error(code))),
        }
        self.outstanding = self.outstanding.saturating_sub(1);
        self.answer_if_complete()
    }

    fn answer_if_complete(&mut self) -> Option<Result<Vec<Participant>>> {
        (self.outstanding == 0).then(|| Ok(std::mem::take(&mut self.found)))
    }

    fn error(&self, code: Code) -> Error {
        Error::from_code(code, &format!("reading the participants of {}", self.directory))
    }
}
