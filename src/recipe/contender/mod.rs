//! The one algorithm: a contender, which is one attempt to get in, with nodes of its own that are made in one transaction: one node
//! for a mutex, several in one directory for the leases of a semaphore, one in each of several directories for a multi-lock.
//!
//! Its life is a straight line, whatever happens on the way: it joins, waits, is in, leaves, and is gone. It never joins a
//! second time: when one of its nodes is lost, it says so, and whoever wants to go on makes a new one, with a new UUID. That keeps
//! a late delete from hurting anybody, and a node of a session that ended from ever being taken for ours (CURATOR-604).

mod join;
mod leave;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use super::directories::Directories;
use super::line::Line;
use super::name::{self, Mode};
use super::{Desk, Spot, Step};
use crate::error::{Error, Status};
use crate::mutant::Mutant;
use crate::proto::{Code, EventKind, Response};
use crate::session::{Failure, Subscriber};
use crate::time::Time;

/// See [`Contender::container_tries`].
const CONTAINER_TRIES: u32 = 3;

/// So much is kept of the data of a node ahead.
const SEEN_DATA: usize = 64;

/// What asks the owner of a node to give it up, as its data (Curator's `Revoker`).
pub(in crate::recipe) const REVOKE: &[u8] = b"__REVOKE__";

/// What can happen to a contender.
#[derive(Debug)]
pub enum Input<'a> {
    /// The session has a connection: its first, or again. Never a new session: that is [`Input::SessionEnded`].
    Connected,
    /// The connection is gone.
    Disconnected,
    /// The session is over.
    SessionEnded {
        /// Its nodes may still be there, and until this moment surely are.
        replaced: Option<Time>,
    },
    /// A request of ours was answered.
    Reply(Step, Result<Response, Failure>),
    /// A watched node changed.
    Fired(EventKind, &'a str),
    /// Whoever wanted the lock does not want it any more: see to it that nothing of ours stays.
    Leave,
    /// Look whether the own nodes are still there, and watch them.
    Confirm,
    /// Our own delete of a node ahead is answered, and the node was gone by then.
    Passed(&'a str),
    /// A mirror that it uses shows the queue now.
    MirrorLive,
    /// There is none any more, and what it showed last was so (true), or may not have been.
    MirrorEnded(bool),
    /// It may have waited for long enough to want to know for whom.
    Look,
    /// So many leases may be out from now on.
    Max(i32),
    /// The time asked for by [`Contender::take_retry`] has come.
    Retry,
}

/// What a contender has to say.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// It is in: with nodes of the session that is alive now, nobody ahead of any.
    In,
    /// Somebody is ahead, and it was told to look only once. It has left.
    Busy,
    /// There are not enough leases, so it waits.
    Crowded,
    /// Its nodes are there, as of now.
    Confirmed,
    /// A node of it is lost. It is gone, or on its way out if something of it may be left.
    Removed(Removal),
    /// It can't join. It is gone, or on its way out.
    Failed(Error),
    /// The server refuses to delete a node of it, and will be asked again.
    Refused(Error),
    /// Nothing of it is left on any server.
    Gone,
}

/// How a node was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Its session ended.
    SessionEnded,
    /// Somebody deleted it.
    Deleted,
}

/// What a contender wants in one directory.
#[derive(Debug, Clone)]
pub struct Wish {
    /// The directory: a full path.
    pub directory: Arc<str>,
    /// How its nodes stand there.
    pub mode: Mode,
    /// kazoo's locks queue along.
    pub with_kazoo: bool,
    /// What its nodes hold.
    pub data: Vec<u8>,
    /// How many nodes it wants; more than one only of leases.
    pub count: usize,
    /// Of leases: how many may be out.
    pub max: i32,
    /// Of a read lock whose owner is in already: the name of the node that keeps others out. It stands in that one's place
    /// (CURATOR-621).
    pub under: Option<String>,
}

impl Wish {
    /// How many bytes its nodes take of the transaction that ends their session: of each the path, and four bytes for its length.
    pub fn path_bytes(&self) -> usize {
        let name = 1 + name::PREFIX + self.mode.base().len() + name::DIGITS;
        (4 + self.directory.len() + name).saturating_mul(self.count)
    }
}

/// One attempt to get in.
#[derive(Debug)]
pub struct Contender {
    stands: Vec<Stand>,
    /// Leave at once where somebody is ahead.
    one_look: bool,
    /// Its nodes are to be watched from the start, for somebody may ask to have them back.
    is_revocable: bool,
    stage: Stage,
    /// The session that made its nodes.
    session: i64,
    /// How often parents may still be tried to be made as containers. A server that has none says so or, worse, hangs up.
    container_tries: u32,
    /// What is known of the chroot, if the directories were missing.
    parents: Directories,
    /// Which directory's parents could not be made and why, in case the nodes can't be made either.
    parent_refused: Option<(usize, Code)>,
    /// Nothing is deleted before.
    spared_until: Option<Time>,
    /// Somebody was ahead of it, or too many leases were out.
    has_waited: bool,
    /// Somebody else had deleted one of its nodes.
    was_robbed: bool,
    /// A node that was asked back, and nobody was told yet.
    revoked: Option<String>,
    retry: Retry,
}

/// What it has in one directory.
#[derive(Debug)]
struct Stand {
    wish: Wish,
    /// See [`Wish::path_bytes`]; 0 once its session has ended.
    path_bytes: usize,
    /// What its nodes are called, but for the sequence number that the server puts behind.
    asked: String,
    nodes: Vec<Node>,
    place: Place,
    /// A list is under way.
    is_asked: bool,
    /// It was noted that somebody is about to be in the directory.
    is_present: bool,
    /// The mirror that tells where it stands.
    mirror: Option<Subscriber>,
    /// The node ahead that is being read: its mirror shows it, and nobody has read it.
    look: Option<String>,
    /// Nodes with the same sequence number that were created later.
    later: Vec<String>,
}

#[derive(Debug)]
struct Node {
    path: String,
    /// `None`: found by its UUID and not read yet.
    czxid: Option<i64>,
    watch: Watch,
    /// It was seen since that was last asked for.
    is_confirmed: bool,
    is_gone: bool,
    /// A delete was sent whose answer was lost.
    maybe_deleted: bool,
    /// The version of its data by which it was last asked back.
    revoked_at: Option<i32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watch {
    Unset,
    Asked,
    Set,
    /// There is none: a mirror tells.
    Mirrored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing was sent yet.
    Outside,
    /// The directories are being listed, to see whether it is worth joining. Nothing was written yet.
    Looking {
        /// One of them does not exist.
        is_missing: bool,
    },
    /// The create is under way, perhaps behind the parents, with the lists right behind it.
    Joining {
        leaving: bool,
    },
    /// The create was answered: there is no directory. The last list is still to say so as well.
    NoParent,
    /// The create's answer was lost: are there nodes with our UUID?
    Unsure {
        leaving: bool,
    },
    /// The nodes are known, and each has a place or is looking for it.
    Queued,
    /// Nobody is ahead of any of them.
    In,
    /// The nodes are being deleted.
    Leaving,
    Gone,
}

/// Where the nodes of one directory stand.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// That is being found out.
    Listing,
    /// Behind somebody.
    Waiting(Wait),
    /// Leases: so many are out, with ours, and that is too many.
    Crowded { count: usize },
    /// Nobody is ahead.
    First,
}

#[derive(Debug, PartialEq, Eq)]
struct Wait {
    /// The path of the nearest node ahead.
    ahead: String,
    /// How many are ahead.
    count: usize,
    watch: Watch,
    /// It has our sequence number, and may turn out to be behind us.
    is_tie: bool,
    /// It is a node of our own session, which may go because the session has ended.
    is_ours: bool,
    /// The connection was lost since the list: changes were missed, and what fires may fire in any order.
    gap: bool,
    /// What it said when it was last read.
    seen: Option<Seen>,
}

/// What is known of a node ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The session that owns it; 0 if it is not ephemeral.
    pub session: i64,
    /// The beginning of its data.
    pub data: Vec<u8>,
}

impl Seen {
    fn new(session: i64, mut data: Vec<u8>) -> Self {
        data.truncate(SEEN_DATA);
        Self { session, data }
    }
}

/// What the server refused to do for us on the way out is tried again, less and less often, and once at a time.
#[derive(Debug)]
struct Retry {
    /// The next pause; zero before the first one.
    wait: Duration,
    due: Due,
}

#[derive(Debug, PartialEq, Eq)]
enum Due {
    Never,
    /// The engine is still to be told.
    In(Duration),
    /// The engine will call.
    Called,
}

/// Whom a contender waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle<'a> {
    /// Somebody is ahead.
    Ahead {
        /// The full path of the nearest node ahead.
        node: &'a str,
        /// How many were ahead when they were last counted.
        count: usize,
        /// It is in, and not only nearer.
        is_in: bool,
        /// What it says, once it was read.
        seen: Option<&'a Seen>,
    },
    /// Too many leases are out.
    Crowd {
        /// The full path of the leases' directory.
        directory: &'a str,
        /// So many are out, our own among them.
        count: usize,
        /// Of so many.
        max: i32,
    },
}

impl Contender {
    /// A contender for places in one or several directories. `one_look`: do not wait.
    /// Its names begin with `kin`, as do all of its client's.
    pub fn new(wishes: Vec<Wish>, one_look: bool, kin: u64, entropy: u64) -> Self {
        let prefix = name::protected_prefix(kin, entropy);
        let stands = wishes.into_iter().map(|wish| Stand::new(wish, &prefix)).collect();
        Self::with_stands(stands, one_look)
    }

    fn with_stands(stands: Vec<Stand>, one_look: bool) -> Self {
        Self {
            stands,
            one_look,
            is_revocable: false,
            stage: Stage::Outside,
            session: 0,
            container_tries: CONTAINER_TRIES,
            parents: Directories::default(),
            parent_refused: None,
            spared_until: None,
            has_waited: false,
            was_robbed: false,
            revoked: None,
            retry: Retry { wait: Duration::ZERO, due: Due::Never },
        }
    }

    /// The full paths of its nodes, in the order of its wishes.
    pub fn node_paths(&self) -> impl Iterator<Item = &str> {
        self.nodes().map(|node| node.path.as_str())
    }

    /// The full paths of the nodes that exist, as far as it knows, and whose deletion it has not requested.
    pub fn present_nodes(&self) -> impl Iterator<Item = &str> {
        let is_present = matches!(self.stage, Stage::Queued | Stage::In);
        self.node_paths().filter(move |_| is_present)
    }

    /// How many bytes the paths of its nodes take of the transaction that ends their session, also while it is not known whether
    /// they exist.
    pub fn path_bytes(&self) -> usize {
        self.stands.iter().map(|stand| stand.path_bytes).fold(0, usize::saturating_add)
    }

    /// The session that it has made nodes in has ended.
    pub fn forget_path_bytes(&mut self) {
        self.stands.iter_mut().for_each(|stand| stand.path_bytes = 0);
    }

    /// The name of its only node, where it has one.
    pub fn node_name(&self) -> Option<&str> {
        self.nodes().next().map(Node::name)
    }

    /// Its fencing token: the zxid in which its nodes were created. It grows with every node of a path, also across parents that
    /// were removed and made again; sequence numbers start again.
    pub fn token(&self) -> Option<i64> {
        let stand = self.stands.first()?;
        if Mutant::TokenIsSequence.lives() {
            return stand.nodes.first().and_then(|node| name::sequence(node.name(), &stand.asked));
        }
        stand.nodes.first().and_then(|node| node.czxid)
    }

    /// Whom it waits for, or waited for when it left, and its own node there, if it had one: of several places, in the first where it
    /// has to wait.
    pub fn obstacle(&self) -> Option<(Option<&str>, Obstacle<'_>)> {
        self.stands.iter().find_map(|stand| {
            let obstacle = match &stand.place {
                Place::Waiting(Wait { ahead, count, seen, .. }) => {
                    let is_in = *count == 1 && stand.wish.mode != Mode::Read;
                    Obstacle::Ahead { node: ahead, count: *count, is_in, seen: seen.as_ref() }
                }
                Place::Crowded { count } => {
                    Obstacle::Crowd { directory: &stand.wish.directory, count: *count, max: stand.wish.max }
                }
                Place::Listing | Place::First => return None,
            };
            Some((stand.nodes.first().map(|node| node.path.as_str()), obstacle))
        })
    }

    /// How many are ahead of it in the longest of its queues, once it is known in all of them.
    pub fn most_ahead(&self) -> Option<usize> {
        let ahead = self.stands.iter().map(|stand| match &stand.place {
            Place::Waiting(wait) => Some(wait.count),
            Place::First => Some(0),
            Place::Listing | Place::Crowded { .. } => None,
        });
        ahead.collect::<Option<Vec<_>>>().filter(|_| self.stage == Stage::Queued)?.into_iter().max()
    }

    /// Whether somebody has asked for one of its nodes to be given up, as far as it was to look for that.
    pub fn is_asked_back(&self) -> bool {
        self.nodes().any(|node| node.revoked_at.is_some())
    }

    /// Whether it leaves where it would have to wait.
    pub fn looks_once(&self) -> bool {
        self.one_look
    }

    /// Whether it had to wait for somebody.
    pub fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// Whether its nodes are watched, so that their removal would be noticed.
    pub fn is_watched(&self) -> bool {
        self.nodes().all(|node| node.watch != Watch::Unset)
    }

    /// Whether nobody is ahead of it.
    pub fn is_in(&self) -> bool {
        self.stage == Stage::In
    }

    /// Whether it has not begun to join.
    pub fn is_outside(&self) -> bool {
        self.stage == Stage::Outside
    }

    /// Whether nothing of it is left.
    pub fn is_gone(&self) -> bool {
        self.stage == Stage::Gone
    }

    /// Takes one input to its consequences.
    pub fn handle(&mut self, desk: &mut Desk<'_>, input: Input<'_>) -> Option<Output> {
        let output = self.take(desk, input);
        if self.stage == Stage::Gone {
            self.depart(desk);
        }
        output
    }

    fn take(&mut self, desk: &mut Desk<'_>, input: Input<'_>) -> Option<Output> {
        match input {
            Input::Connected => self.connected(desk),
            Input::Disconnected => self.disconnected(),
            Input::SessionEnded { replaced } => self.session_ended(desk, replaced),
            Input::Reply(step, result) => self.reply(desk, step, result),
            Input::Fired(kind, path) => self.fired(desk, kind, path),
            Input::Leave => self.leave(desk),
            Input::Confirm => self.confirm(desk),
            Input::Passed(path) => self.passed(desk, path),
            Input::MirrorLive => self.seek_all(desk),
            Input::MirrorEnded(was_sound) => self.mirror_ended(desk, was_sound),
            Input::Look => self.look(desk),
            Input::Max(max) => self.max_changed(desk, max),
            Input::Retry => self.retry(desk),
        }
    }

    /// How long it wants to be left alone before [`Input::Retry`]; says so once.
    pub fn take_retry(&mut self) -> Option<Duration> {
        let Due::In(wait) = self.retry.due else { return None };
        self.retry.due = Due::Called;
        Some(wait)
    }

    /// The full path of a node that somebody asks to have back; says so once for each time that it is asked.
    pub fn take_revoked(&mut self) -> Option<String> {
        self.revoked.take()
    }

    /// From now on it wants to know whether its nodes are asked back, or not.
    pub fn set_revocable(&mut self, desk: &mut Desk<'_>, is_revocable: bool) {
        if is_revocable != std::mem::replace(&mut self.is_revocable, is_revocable) {
            self.watch_for_revocation(desk);
        }
    }

    /// Makes one contender of each place, all of which are in. They have nothing in common from here on. What each of them watches,
    /// it watches under the number that `number` gives it.
    pub fn split(self, desk: &mut Desk<'_>, mut number: impl FnMut() -> u64) -> Vec<(u64, Self)> {
        let (session, stage, is_revocable) = (self.session, self.stage, self.is_revocable);
        let part = |mut stand: Stand| {
            let own = number();
            for node in &mut stand.nodes {
                // What was asked for in the old number is answered to the old number.
                if node.watch == Watch::Asked {
                    node.watch = Watch::Unset;
                }
                if !Mutant::SplitWithoutWatches.lives() {
                    desk.session.hand_over_watch(&node.path, desk.machine, own);
                    if let Some(mirror) = stand.mirror {
                        desk.mirrors.hand_over(mirror, node.name(), desk.machine, own);
                    }
                }
            }
            // MirrorEnded is on its way to the old number.
            if stand.mirror.is_some_and(|mirror| !desk.mirrors.stands(mirror)) {
                stand.forget_mirror(true);
            }
            let part = Self::with_stands(vec![stand], false);
            (own, Self { stage, session, is_revocable, ..part })
        };
        self.stands.into_iter().map(part).collect()
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.stands.iter().flat_map(|stand| &stand.nodes)
    }

    fn nodes_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.stands.iter_mut().flat_map(|stand| &mut stand.nodes)
    }

    fn node_mut(&mut self, spot: Spot) -> Option<&mut Node> {
        self.stands.get_mut(spot.stand)?.nodes.get_mut(spot.node)
    }

    fn spots(&self) -> Vec<Spot> {
        let of_stand = |(stand, has): (usize, &Stand)| (0..has.nodes.len()).map(move |node| Spot { stand, node });
        self.stands.iter().enumerate().flat_map(of_stand).collect()
    }

    /// For messages: where it stands.
    fn directories(&self) -> String {
        self.stands.iter().map(|stand| &*stand.wish.directory).collect::<Vec<_>>().join(", ")
    }

    // The connection and the session.

    fn connected(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        match self.stage {
            Stage::Outside => self.begin(desk),
            Stage::Unsure { .. } => self.look_for_nodes(desk),
            Stage::Queued => self.go_on(desk),
            Stage::Leaving => self.delete(desk),
            Stage::Looking { .. } | Stage::Joining { .. } | Stage::NoParent | Stage::In | Stage::Gone => {}
        }
        None
    }

    fn disconnected(&mut self) -> Option<Output> {
        for stand in &mut self.stands {
            if let Place::Waiting(wait) = &mut stand.place {
                wait.gap = !Mutant::GrantAcrossGap.lives();
            }
            if !Mutant::TrustOldMirror.lives() {
                stand.forget_mirror(false);
            }
        }
        None
    }

    fn session_ended(&mut self, desk: &mut Desk<'_>, replaced: Option<Time>) -> Option<Output> {
        let was_leaving = self.is_leaving();
        if Mutant::AdoptDeadNode.lives() && self.stage == Stage::Queued {
            self.nodes_mut().for_each(|node| node.watch = Watch::Unset);
            return None;
        }
        let has_written = !matches!(self.stage, Stage::Outside | Stage::Looking { .. } | Stage::NoParent | Stage::Gone);
        let may_be_left = replaced.is_some() && has_written;
        // While they are being looked for, not all may have been found.
        let are_known = self.nodes().next().is_some() && !matches!(self.stage, Stage::Unsure { .. });
        if !may_be_left {
            self.stage = Stage::Gone;
        } else if are_known {
            // What is left of it would stand in everybody's way until the old session expires. The new one may delete it, but not
            // before the moment until which the program was told that it is safe.
            if self.stage == Stage::In && !Mutant::SpareNothing.lives() {
                self.spared_until = replaced;
            }
            self.stage = Stage::Leaving;
            self.delete(desk);
        } else {
            self.stage = Stage::Unsure { leaving: true };
        }
        match was_leaving {
            true => (self.stage == Stage::Gone).then_some(Output::Gone),
            false => Some(Output::Removed(Removal::SessionEnded)),
        }
    }

    fn is_leaving(&self) -> bool {
        matches!(
            self.stage,
            Stage::Joining { leaving: true } | Stage::Unsure { leaving: true } | Stage::Leaving | Stage::Gone
        )
    }

    // Ends.

    /// An own node is not there any more, while we are not leaving.
    fn removed(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        if self.is_leaving() || (Mutant::OverlookLostMember.lives() && self.stands.len() > 1) {
            return None;
        }
        // It should not be there, but if it were, it would stand in everybody's way; and so would the others.
        self.start_leaving(desk);
        Some(Output::Removed(Removal::Deleted))
    }

    fn gone(&mut self) -> Option<Output> {
        self.stage = Stage::Gone;
        Some(Output::Gone)
    }

    /// It can't be joined, and there is no node.
    fn fail(&mut self, desk: &mut Desk<'_>, why: impl Into<Failure>, doing: &str) -> Option<Output> {
        self.stop_all_waiting(desk);
        self.stage = Stage::Gone;
        self.failure(why, doing)
    }

    fn failure(&self, why: impl Into<Failure>, doing: &str) -> Option<Output> {
        Some(Output::Failed(why.into().to_error(&format!("{doing} {}", self.directories()))))
    }

    /// The response decoded, but is not the one to this request; the session matches them, so it does not happen.
    fn nonsense(&mut self, desk: &mut Desk<'_>, response: &Response, request: &str) -> Option<Output> {
        self.leave(desk);
        let message = format!("{}: {request} was answered with {response:?}", self.directories());
        Some(Output::Failed(Error::new(Status::Internal, message)))
    }
}

impl Stand {
    fn new(wish: Wish, prefix: &str) -> Self {
        let number = wish.under.as_deref().map_or("", |under| name::number(under, wish.mode));
        Self {
            asked: [prefix, wish.mode.base(), number].concat(),
            path_bytes: wish.path_bytes(),
            wish,
            nodes: Vec::new(),
            place: Place::Listing,
            is_asked: false,
            is_present: false,
            mirror: None,
            look: None,
            later: Vec::new(),
        }
    }

    /// The number that the server gave a node; `None` where it took that of another.
    fn number_of(&self, node: &Node) -> Option<i64> {
        let number = || name::number(node.name(), self.wish.mode).parse().ok();
        if self.wish.under.is_none() { number() } else { None }
    }

    /// Who is in never joins again. There may be ten thousands of holds.
    fn shed(&mut self) {
        self.wish.data = Vec::new();
        self.later = Vec::new();
        if !Mutant::TokenIsSequence.lives() {
            self.asked = String::new();
        }
    }

    /// What a mirror told has to be asked for.
    fn forget_mirror(&mut self, was_sound: bool) {
        self.mirror = None;
        let own = self.nodes.iter_mut().map(|node| &mut node.watch);
        let ahead = match &mut self.place {
            Place::Waiting(wait) if wait.watch == Watch::Mirrored => {
                wait.gap |= !was_sound;
                Some(&mut wait.watch)
            }
            _ => None,
        };
        own.chain(ahead).filter(|watch| **watch == Watch::Mirrored).for_each(|watch| *watch = Watch::Unset);
    }
}

impl Node {
    fn name(&self) -> &str {
        name_of(&self.path)
    }

    /// One whose full path is known.
    fn new(path: String, czxid: Option<i64>) -> Self {
        Self {
            path,
            czxid,
            watch: Watch::Unset,
            is_confirmed: true,
            is_gone: false,
            maybe_deleted: false,
            revoked_at: None,
        }
    }
}

fn name_of(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}
