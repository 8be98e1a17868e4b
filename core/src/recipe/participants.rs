//! A query for the holders and waiters of a lock. The query lists each directory and then reads each node. The number of
//! requests without a reply and the size of the answer have a limit, because other programs decide how many nodes there
//! are, and how much data is in them.

use std::collections::VecDeque;
use std::sync::Arc;

use zklock_proto::{Code, Request, Response};

use super::contender::Input;
use super::name::{ChildKind, ContenderName, Mode, classify};
use super::node_request::parse;
use super::rank::holders;
use super::{Context, RequestKind};
use crate::acl::Permission;
use crate::error::{Error, Result, Status};
use crate::session::Failure;

/// The maximum number of nodes that the query reads at the same time.
const WINDOW: usize = 64;
/// The maximum number of data bytes in one node. zklock and its documentation promise the same limit for a program's data.
const MAX_NODE_DATA: usize = 512 * 1024;
/// The maximum size of the answer in bytes: the sum of the paths and the data, and of [`OVERHEAD`] for each node.
const MAX_ANSWER: usize = 32 * 1024 * 1024;
/// The memory that a participant needs in addition to its path and its data, in bytes.
const OVERHEAD: usize = 200;

/// A holder or waiter of a lock, in any client. Each participant has one node, which identifies it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Participant {
    /// The node path of the participant, without the chroot.
    pub node_path: String,
    /// True if the participant holds the lock; false if it waits for the lock.
    pub holds: bool,
    /// The id of the session that owns the node, or 0 if the node is not ephemeral.
    pub session_id: i64,
    /// The zxid at which the node was created. This zxid is the fencing token of the hold.
    pub czxid: i64,
    /// The node's data.
    pub data: Vec<u8>,
}

/// A lock whose participants the query returns.
#[derive(Debug, Clone)]
pub(crate) enum QueryScope {
    /// A mutex or a read/write lock.
    Queue {
        /// The full path of the directory.
        directory: Arc<str>,
        /// The mode of the requested participants.
        mode: Mode,
        /// True if the query treats kazoo's locks as contenders of the same queue.
        with_kazoo: bool,
        /// True if the query returns both the readers and the writers of a read/write lock.
        include_both_modes: bool,
    },
    /// A semaphore.
    Semaphore {
        /// The full path of the directory.
        directory: Arc<str>,
        /// The maximum number of leases.
        max_leases: MaxLeases,
    },
}

/// The maximum number of leases of a semaphore.
#[derive(Debug, Clone)]
pub(crate) enum MaxLeases {
    /// A fixed number.
    Fixed(i32),
    /// The value of the shared count at this full path.
    Count(String),
}

/// The state machine of a participant query.
#[derive(Debug)]
pub(crate) struct ParticipantQuery {
    scopes: Vec<QueryScope>,
    chroot_len: usize,
    /// The directories that the query lists, in the order of the requests, with the nodes in them.
    listings: Vec<Listing>,
    /// The nodes that the query reads, with the replies received so far.
    reads: Vec<Read>,
    /// The nodes that the query has not begun to read: each with the index of its listing, and its index there.
    unread: VecDeque<(usize, usize)>,
    /// The number of requests without a reply.
    pending_replies: usize,
    /// The number of nodes in the lists, and the size of the answer so far.
    node_count: usize,
    size: usize,
}

/// The content of a node, if the query has read it.
type Read = Option<NodeRead>;

/// The part of a node's content that the query needs. There may be a hundred thousand nodes.
#[derive(Debug)]
struct NodeRead {
    data: Option<Vec<u8>>,
    session_id: i64,
    czxid: i64,
}

#[derive(Debug)]
struct Listing {
    scope: usize,
    directory: String,
    /// The nodes in the directory, each with its index in `ParticipantQuery::reads`.
    nodes: Vec<(String, usize)>,
}

impl ParticipantQuery {
    /// Creates a query for the participants of the locks in `scopes`. The paths of these locks begin with a chroot of
    /// `chroot_len` bytes.
    pub(crate) const fn new(scopes: Vec<QueryScope>, chroot_len: usize) -> Self {
        Self {
            scopes,
            chroot_len,
            listings: Vec::new(),
            reads: Vec::new(),
            unread: VecDeque::new(),
            pending_replies: 0,
            node_count: 0,
            size: 0,
        }
    }

    /// Handles one input. When all replies have arrived, the method returns the participants. In each queue, the
    /// holders come first.
    pub(crate) fn handle(&mut self, cx: &mut Context<'_>, input: Input<'_>) -> Option<Result<Vec<Participant>>> {
        match input {
            Input::SendRequests => {
                self.begin(cx);
                None
            }
            Input::Reply { kind: RequestKind::List(at), result, .. } => self.on_list(cx, at, result),
            Input::Reply { kind: RequestKind::ReadParticipant(index), result, .. } => {
                self.on_node_read(cx, index, result)
            }
            _ => None,
        }
    }

    fn begin(&mut self, cx: &mut Context<'_>) {
        self.listings.clear();
        self.reads.clear();
        self.unread.clear();
        (self.node_count, self.size) = (0, 0);
        for (scope, wanted) in self.scopes.iter().enumerate() {
            let directories = match wanted {
                QueryScope::Queue { directory, .. } => vec![directory.to_string()],
                QueryScope::Semaphore { directory, .. } => {
                    vec![format!("{directory}/leases"), format!("{directory}/locks")]
                }
            };
            let listing = |directory| Listing { scope, directory, nodes: Vec::new() };
            self.listings.extend(directories.into_iter().map(listing));
        }
        self.pending_replies = self.listings.len();
        for (at, listing) in self.listings.iter().enumerate() {
            cx.send(RequestKind::List(at), &Request::GetChildren2 { path: listing.directory.clone(), watch: false });
        }
        for path in self.counts().collect::<Vec<_>>() {
            let index = self.reads.len();
            self.reads.push(None);
            self.read_node(cx, path, index);
        }
    }

    /// Sends a request to read a node. `index` is the index of its reply in `ParticipantQuery::reads`.
    fn read_node(&mut self, cx: &mut Context<'_>, path: String, index: usize) {
        self.pending_replies += 1;
        cx.send(RequestKind::ReadParticipant(index), &Request::GetData { path, watch: false });
    }

    /// Sends as many requests as the window allows.
    fn send_reads(&mut self, cx: &mut Context<'_>) {
        while self.pending_replies < WINDOW
            && let Some((at, node)) = self.unread.pop_front()
        {
            let Some(Listing { directory, nodes, .. }) = self.listings.get(at) else { return };
            let Some((name, index)) = nodes.get(node) else { return };
            let (path, index) = (format!("{directory}/{name}"), *index);
            self.read_node(cx, path, index);
        }
    }

    /// Adds to the size of the answer. Fails if the answer is too large.
    fn add_size(&mut self, bytes: usize) -> Result<()> {
        self.size = self.size.saturating_add(bytes);
        if self.size <= MAX_ANSWER {
            return Ok(());
        }
        let count = self.node_count;
        Err(self.exhausted(&format!(
            "the {count} nodes need more than {MAX_ANSWER} bytes for their paths and data, which is the limit"
        )))
    }

    fn exhausted(&self, why: &str) -> Error {
        Error::new(Status::Exhausted, format!("{}: {why}", self.doing()))
    }

    fn on_list(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        result: std::result::Result<Response, Failure>,
    ) -> Option<Result<Vec<Participant>>> {
        let children = match result {
            Ok(Response::Children2 { children, .. }) => children,
            Ok(_) | Err(Failure::Code(Code::NO_NODE)) => Vec::new(),
            // When the connection is lost, all requests in flight fail. The query then starts again on the next
            // connection.
            Err(Failure::ConnectionLost) => return None,
            Err(failure) => {
                let directory = self.listings.get(at).map_or("", |listing| &listing.directory);
                return Some(Err(self.to_error(failure, directory)));
            }
        };
        let Listing { scope, directory, .. } = self.listings.get(at)?;
        let (place, directory) = (self.scopes.get(*scope)?, directory.clone());
        let takes_part = |name: &String| match place {
            QueryScope::Queue { mode, with_kazoo, .. } => {
                matches!(classify(name, *mode, *with_kazoo), ChildKind::Contender(_))
            }
            // Every node in the directory of leases is a lease.
            QueryScope::Semaphore { .. } => {
                directory.ends_with("/leases") || matches!(classify(name, Mode::Mutex, false), ChildKind::Contender(_))
            }
        };
        let names: Vec<String> = children.into_iter().filter(takes_part).collect();
        self.node_count += names.len();
        let size = |name: &String| OVERHEAD + directory.len() + 1 + name.len();
        if let Err(error) = self.add_size(names.iter().map(size).sum()) {
            return Some(Err(error));
        }
        let first = self.reads.len();
        self.unread.extend((0..names.len()).map(|node| (at, node)));
        self.reads.resize_with(first + names.len(), || None);
        self.listings.get_mut(at)?.nodes = names.into_iter().zip(first..).collect();
        self.count_reply(cx)
    }

    fn on_node_read(
        &mut self,
        cx: &mut Context<'_>,
        index: usize,
        result: std::result::Result<Response, Failure>,
    ) -> Option<Result<Vec<Participant>>> {
        match result {
            Ok(Response::Data { data, stat }) => {
                let len = data.as_ref().map_or(0, Vec::len);
                if let Err(error) = self.check_data(index, len).and_then(|()| self.add_size(len)) {
                    return Some(Err(error));
                }
                *self.reads.get_mut(index)? =
                    Some(NodeRead { data, session_id: stat.ephemeral_owner, czxid: stat.czxid });
            }
            // The node was deleted after the server had returned the list.
            Ok(_) | Err(Failure::Code(Code::NO_NODE)) => {}
            Err(Failure::ConnectionLost) => return None,
            Err(failure) => return Some(Err(self.to_error(failure, &self.path_of_read(index)))),
        }
        self.count_reply(cx)
    }

    fn check_data(&self, index: usize, len: usize) -> Result<()> {
        if len <= MAX_NODE_DATA {
            return Ok(());
        }
        let path = self.path_of_read(index);
        Err(self.exhausted(&format!("{path} has {len} bytes of data; at most {MAX_NODE_DATA} are allowed")))
    }

    fn count_reply(&mut self, cx: &mut Context<'_>) -> Option<Result<Vec<Participant>>> {
        self.pending_replies = self.pending_replies.saturating_sub(1);
        self.send_reads(cx);
        (self.pending_replies == 0).then(|| self.finish())
    }

    fn finish(&mut self) -> Result<Vec<Participant>> {
        let mut all = Vec::new();
        let (mut reads, listings) = (std::mem::take(&mut self.reads), std::mem::take(&mut self.listings));
        let counts: Vec<_> = reads.iter_mut().take(self.counts().count()).map(Option::take).collect();
        let (mut counts, mut listings) = (counts.iter(), listings.into_iter().peekable());
        for (at, place) in self.scopes.iter().enumerate() {
            let mut lists = std::iter::from_fn(|| {
                let listing = listings.next_if(|listing| listing.scope == at)?;
                Some(self.listed_participants(listing, &mut reads))
            });
            match place {
                QueryScope::Queue { mode, with_kazoo, include_both_modes, .. } => {
                    all.extend(order_queue(lists.next().unwrap_or_default(), *mode, *with_kazoo, *include_both_modes));
                }
                QueryScope::Semaphore { max_leases, .. } => {
                    let max = match max_leases {
                        MaxLeases::Fixed(max) => *max,
                        MaxLeases::Count(path) => match counts.next() {
                            Some(Some(NodeRead { data, .. })) => parse(path, data.as_deref())?,
                            // The node of the count does not exist, so the number of leases is not limited.
                            _ => i32::MAX,
                        },
                    };
                    all.extend(order_semaphore(
                        lists.next().unwrap_or_default(),
                        lists.next().unwrap_or_default(),
                        max,
                    ));
                }
            }
        }
        Ok(all)
    }

    /// Returns a participant for each node of one directory that the client could read. The function does not mark any
    /// participant as a holder.
    fn listed_participants(&self, listing: Listing, reads: &mut [Read]) -> Vec<Participant> {
        let directory = listing.directory.get(self.chroot_len..).unwrap_or_default();
        let participant = |(name, index): (String, usize)| {
            let NodeRead { data, session_id, czxid } = reads.get_mut(index)?.take()?;
            let (node_path, data) = (format!("{directory}/{name}"), data.unwrap_or_default());
            Some(Participant { node_path, holds: false, session_id, czxid, data })
        };
        listing.nodes.into_iter().filter_map(participant).collect()
    }

    /// Returns the full path of a node that the query reads.
    fn path_of_read(&self, index: usize) -> String {
        let node = self.listings.iter().find_map(|Listing { directory, nodes, .. }| {
            let (name, _) = nodes.iter().find(|(_, read)| *read == index)?;
            Some(format!("{directory}/{name}"))
        });
        // The query reads the counts first, and all other nodes are in the listings.
        node.or_else(|| self.counts().nth(index)).unwrap_or_default()
    }

    /// Returns the full paths of the counts that the query reads.
    fn counts(&self) -> impl Iterator<Item = String> {
        self.scopes.iter().filter_map(|place| match place {
            QueryScope::Semaphore { max_leases: MaxLeases::Count(path), .. } => Some(path.clone()),
            _ => None,
        })
    }

    fn doing(&self) -> String {
        let directories: Vec<&str> = self.listings.iter().map(|listing| listing.directory.as_str()).collect();
        format!("reading the participants of {}", directories.join(", "))
    }

    fn to_error(&self, failure: Failure, path: &str) -> Error {
        failure.to_error(&self.doing()).requiring(Permission::Read, path)
    }
}

/// Sorts the participants of a queue and marks the holders.
fn order_queue(
    mut found: Vec<Participant>,
    mode: Mode,
    with_kazoo: bool,
    both: bool,
) -> impl Iterator<Item = Participant> {
    found.sort_by_cached_key(|participant| {
        (contender_of(participant, mode, with_kazoo).sequence.to_owned(), participant.czxid)
    });
    let holds = holders(found.iter().map(|participant| contender_of(participant, mode, with_kazoo)));
    let is_wanted = move |participant: &Participant| {
        both || !mode.is_read_write() || contender_of(participant, mode, with_kazoo).is_shared == (mode == Mode::Read)
    };
    found
        .into_iter()
        .zip(holds)
        .filter(move |(participant, _)| is_wanted(participant))
        .map(|(participant, holds)| Participant { holds, ..participant })
}

fn contender_of(participant: &Participant, mode: Mode, with_kazoo: bool) -> ContenderName<'_> {
    let name = name_of(participant);
    match classify(name, mode, with_kazoo) {
        ChildKind::Contender(contender) => contender,
        _ => ContenderName { sequence: name, is_shared: false },
    }
}

/// The name of the participant's node. A copy of each name would need much memory.
fn name_of(participant: &Participant) -> &str {
    participant.node_path.rsplit_once('/').map_or("", |(_, name)| name)
}

/// Returns the leases, beginning with the oldest, and then the waiters. If more leases exist than the maximum, the
/// first waiter has created the newest leases. All leases from the same transaction then count as waiting, and the
/// result omits the first waiter's node in the inner mutex.
fn order_semaphore(
    mut leases: Vec<Participant>,
    mut waiters: Vec<Participant>,
    max: i32,
) -> impl Iterator<Item = Participant> {
    leases.sort_by(|one, other| (one.czxid, name_of(one)).cmp(&(other.czxid, name_of(other))));
    waiters.sort_by_key(|participant| participant.czxid);
    let max = usize::try_from(max).unwrap_or_default();
    let next = match (leases.last(), waiters.first()) {
        (Some(last), Some(first)) if leases.len() > max && last.session_id == first.session_id => Some(last.czxid),
        _ => None,
    };
    if next.is_some() {
        waiters.remove(0);
    }
    // Every waiter for leases has a node in the inner mutex. If the inner mutex has no nodes, all leases are held, even
    // if their number exceeds the maximum.
    let all_hold = waiters.is_empty() && next.is_none();
    let holds = move |at: usize, lease: &Participant| all_hold || (at < max && next != Some(lease.czxid));
    let leases =
        leases.into_iter().enumerate().map(move |(at, lease)| Participant { holds: holds(at, &lease), ..lease });
    leases.chain(waiters)
}
