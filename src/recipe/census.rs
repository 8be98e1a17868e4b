//! Who stands in a queue: one list of each directory, then one read of each node, all in one write.

use std::sync::Arc;

use super::contender::Input;
use super::errand::parse;
use super::name::{Kind, Mark, Mode, classify};
use super::rank::holders;
use super::{Desk, Step};
use crate::error::{Error, Result};
use crate::proto::{Code, Request, Response, Stat};
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

/// Where to look, and for whom.
#[derive(Debug, Clone)]
pub enum Place {
    /// In a queue.
    Queue {
        /// Its directory: a full path.
        directory: Arc<str>,
        /// How those who stand there do.
        mode: Mode,
        /// kazoo's locks queue along.
        with_kazoo: bool,
        /// Of a read/write lock: its writers as well as its readers.
        both: bool,
    },
    /// In a semaphore.
    Semaphore {
        /// Its directory: a full path.
        directory: Arc<str>,
        /// How many leases it has.
        max: Max,
    },
}

/// How many leases a semaphore has.
#[derive(Debug, Clone)]
pub enum Max {
    /// So many.
    Fixed(i32),
    /// As many as the count at this full path says.
    Count(String),
}

/// The question under way.
#[derive(Debug)]
pub struct Census {
    places: Vec<Place>,
    chroot_len: usize,
    /// What was listed, in the order of the requests; which of them are still due.
    lists: Vec<Listing>,
    /// What is to be read, and what was.
    reads: Vec<Option<(Option<Vec<u8>>, Stat)>>,
    /// So many answers are still due.
    outstanding: usize,
}

#[derive(Debug)]
struct Listing {
    place: usize,
    directory: String,
    /// The nodes, and where each of them is among what is read.
    nodes: Vec<(String, usize)>,
}

impl Census {
    /// Asks who stands in these places. Their paths begin with a chroot of `chroot_len` bytes.
    pub const fn new(places: Vec<Place>, chroot_len: usize) -> Self {
        Self { places, chroot_len, lists: Vec::new(), reads: Vec::new(), outstanding: 0 }
    }

    /// Takes one input to its consequences; gives the answer once it is complete, holders first.
    pub fn handle(&mut self, desk: &mut Desk<'_>, input: Input<'_>) -> Option<Result<Vec<Participant>>> {
        match input {
            Input::Connected => {
                self.begin(desk);
                None
            }
            Input::Reply(Step::List(at), result) => self.listed(desk, at, result),
            Input::Reply(Step::Read(index), result) => self.read(index, result),
            _ => None,
        }
    }

    fn begin(&mut self, desk: &mut Desk<'_>) {
        self.lists.clear();
        self.reads.clear();
        for (place, wanted) in self.places.iter().enumerate() {
            let directories = match wanted {
                Place::Queue { directory, .. } => vec![directory.to_string()],
                Place::Semaphore { directory, .. } => vec![format!("{directory}/leases"), format!("{directory}/locks")],
            };
            let listing = |directory| Listing { place, directory, nodes: Vec::new() };
            self.lists.extend(directories.into_iter().map(listing));
        }
        self.outstanding = self.lists.len();
        for (at, listing) in self.lists.iter().enumerate() {
            desk.send(Step::List(at), &Request::GetChildren2 { path: listing.directory.clone(), watch: false });
        }
        let counts = self.places.iter().filter_map(|place| match place {
            Place::Semaphore { max: Max::Count(path), .. } => Some(path.clone()),
            _ => None,
        });
        for path in counts.collect::<Vec<_>>() {
            self.ask(desk, path);
        }
    }

    /// Reads a node; gives where its answer will be.
    fn ask(&mut self, desk: &mut Desk<'_>, path: String) -> usize {
        let index = self.reads.len();
        self.reads.push(None);
        self.outstanding += 1;
        desk.send(Step::Read(index), &Request::GetData { path, watch: false });
        index
    }

    fn listed(
        &mut self,
        desk: &mut Desk<'_>,
        at: usize,
        result: std::result::Result<Response, Failure>,
    ) -> Option<Result<Vec<Participant>>> {
        let children = match result {
            Ok(Response::Children2 { children, .. }) => children,
            Ok(_) | Err(Failure::Code(Code::NO_NODE)) => Vec::new(),
            // All that are under way are lost together, and asked for again with the next connection.
            Err(Failure::ConnectionLost) => return None,
            Err(failure) => return Some(Err(self.error(failure))),
        };
        let Listing { place, directory, .. } = self.lists.get(at)?;
        let (place, directory) = (self.places.get(*place)?, directory.clone());
        let takes_part = |name: &String| match place {
            Place::Queue { mode, with_kazoo, .. } => matches!(classify(name, *mode, *with_kazoo), Kind::Contender(_)),
            // Whatever is among the leases counts as one.
            Place::Semaphore { .. } => {
                directory.ends_with("/leases") || matches!(classify(name, Mode::Mutex, false), Kind::Contender(_))
            }
        };
        let names: Vec<String> = children.into_iter().filter(takes_part).collect();
        let read = |name: String| (name.clone(), self.ask(desk, format!("{directory}/{name}")));
        let nodes = names.into_iter().map(read).collect();
        self.lists.get_mut(at)?.nodes = nodes;
        self.one_less()
    }

    fn read(
        &mut self,
        index: usize,
        result: std::result::Result<Response, Failure>,
    ) -> Option<Result<Vec<Participant>>> {
        match result {
            Ok(Response::Data { data, stat }) => *self.reads.get_mut(index)? = Some((data, stat)),
            // It left meanwhile.
            Ok(_) | Err(Failure::Code(Code::NO_NODE)) => {}
            Err(Failure::ConnectionLost) => return None,
            Err(failure) => return Some(Err(self.error(failure))),
        }
        self.one_less()
    }

    fn one_less(&mut self) -> Option<Result<Vec<Participant>>> {
        self.outstanding = self.outstanding.saturating_sub(1);
        (self.outstanding == 0).then(|| self.conclude())
    }

    fn conclude(&self) -> Result<Vec<Participant>> {
        let mut all = Vec::new();
        let mut counts = self.reads.iter();
        for (at, place) in self.places.iter().enumerate() {
            let mut lists = self.lists.iter().filter(|listing| listing.place == at).map(|listing| self.found(listing));
            match place {
                Place::Queue { mode, with_kazoo, both, .. } => {
                    all.extend(in_queue(lists.next().unwrap_or_default(), *mode, *with_kazoo, *both));
                }
                Place::Semaphore { max, .. } => {
                    let max = match max {
                        Max::Fixed(max) => *max,
                        Max::Count(path) => match counts.next() {
                            Some(Some((data, _))) => parse(path, data.as_deref())?,
                            // Nobody counts at present.
                            _ => i32::MAX,
                        },
                    };
                    all.extend(in_semaphore(lists.next().unwrap_or_default(), lists.next().unwrap_or_default(), max));
                }
            }
        }
        Ok(all)
    }

    /// The nodes of one directory that were still there to be read. Nobody holds yet.
    fn found(&self, listing: &Listing) -> Vec<(String, Participant)> {
        let directory = listing.directory.get(self.chroot_len..).unwrap_or_default();
        let participant = |(name, index): &(String, usize)| {
            let (data, stat) = self.reads.get(*index)?.as_ref()?;
            let participant = Participant {
                node_path: format!("{directory}/{name}"),
                holds: false,
                session_id: stat.ephemeral_owner,
                czxid: stat.czxid,
                data: data.clone().unwrap_or_default(),
            };
            Some((name.clone(), participant))
        };
        listing.nodes.iter().filter_map(participant).collect()
    }

    fn error(&self, why: Failure) -> Error {
        let directories: Vec<&str> = self.lists.iter().map(|listing| listing.directory.as_str()).collect();
        why.to_error(&format!("reading the participants of {}", directories.join(", ")))
    }
}

/// A queue in its order, with its holders.
fn in_queue(
    mut found: Vec<(String, Participant)>,
    mode: Mode,
    with_kazoo: bool,
    both: bool,
) -> impl Iterator<Item = Participant> {
    let mark = |name: &str| match classify(name, mode, with_kazoo) {
        Kind::Contender(mark) => (mark.key.to_owned(), mark.is_shared),
        _ => (name.to_owned(), false),
    };
    found.sort_by_cached_key(|(name, participant)| (mark(name).0, participant.czxid));
    let marks: Vec<(String, bool)> = found.iter().map(|(name, _)| mark(name)).collect();
    let holds = holders(marks.iter().map(|(key, is_shared)| Mark { key, is_shared: *is_shared }));
    let is_wanted = move |is_shared: bool| both || !mode.is_read_write() || is_shared == (mode == Mode::Read);
    found
        .into_iter()
        .zip(marks)
        .zip(holds)
        .filter(move |((_, (_, is_shared)), _)| is_wanted(*is_shared))
        .map(|(((_, participant), _), holds)| Participant { holds, ..participant })
}

/// The leases, the oldest first, and those who wait for one. Leases beyond the maximum are of the one that is next, whose place in
/// the queue says no more; what was made together with them waits with them.
fn in_semaphore(
    mut leases: Vec<(String, Participant)>,
    mut waiters: Vec<(String, Participant)>,
    max: i32,
) -> impl Iterator<Item = Participant> {
    leases.sort_by_cached_key(|(name, participant)| (participant.czxid, name.clone()));
    waiters.sort_by_key(|(_, participant)| participant.czxid);
    let max = usize::try_from(max).unwrap_or_default();
    let next = match (leases.last(), waiters.first()) {
        (Some((_, last)), Some((_, first))) if leases.len() > max && last.session_id == first.session_id => {
            Some(last.czxid)
        }
        _ => None,
    };
    if next.is_some() {
        waiters.remove(0);
    }
    // Who waits stands at the inner mutex, too: where nobody does, all leases that are out are held, however many there should be.
    let all_hold = waiters.is_empty() && next.is_none();
    let holds = move |at: usize, lease: &Participant| all_hold || (at < max && next != Some(lease.czxid));
    let leases =
        leases.into_iter().enumerate().map(move |(at, (_, lease))| Participant { holds: holds(at, &lease), ..lease });
    leases.chain(waiters.into_iter().map(|(_, waiter)| waiter))
}
