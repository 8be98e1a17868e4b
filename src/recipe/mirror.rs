//! Mirrors: directories that are used so often that their queue is kept here, by one persistent recursive watch, so that neither a
//! list nor a watch of its own is needed by anybody who joins. What is sent of a cycle is its create and its delete.
//!
//! A server tells a connection of a change before it answers anything that came after it. So when the answer to a create is read, the
//! mirror shows the queue as it was when the node was made. That is not taken on trust: a directory counts its children, the count is
//! the number in each new name, and a mirror that sees a number missing was not told of a node (one that its reader may not read, for
//! instance, ZOOKEEPER-4799) and is broken at once. So is one that hears of the end of a node that it does not know. Nothing outlives
//! the connection.
//!
//! Where nobody else comes, not even that is needed. Whoever was alone in a directory and gets the next number after his own when he joins
//! once more is alone again: nobody has come in between. That takes a watch on the directory itself, since one that was removed and made
//! again counts anew ([`Alone`]).
//!
//! Every change goes to every client that has a mirror, so it pays where few sessions use a path. Which session a node is of is not in
//! its name, but a client's own names begin with the same letters ([`kin`](super::name::kin)).

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use super::line::Line;
use super::name::{self, Kind, Mode};
use super::rank::Rank;
use super::{Step, Tag};
use crate::limits::MirrorLimits;
use crate::mutant::Mutant;
use crate::proto::{Code, EventKind, Request, Response, Stat};
use crate::session::{Failure, Session, Subscriber};
use crate::time::Time;

/// The numbers of mirrors among the subscribers.
const NUMBERS: Subscriber = 1 << 63;

/// All mirrors of one client.
#[derive(Debug)]
pub struct Mirrors {
    limits: MirrorLimits,
    /// What the names of this client's nodes begin with, as a number and as an example.
    kin: u64,
    prefix: String,
    mirrors: BTreeMap<Subscriber, Mirror>,
    alones: BTreeMap<Subscriber, Alone>,
    by_directory: HashMap<Arc<str>, Subscriber>,
    use_of: HashMap<Arc<str>, Use>,
    /// When so many directories' use is remembered, old ones are forgotten.
    tidy_at: usize,
    last_number: Subscriber,
    tries: u32,
    /// A mirror's beginning was lost with this connection.
    has_failed: bool,
    told: VecDeque<(Subscriber, Told)>,
    due: Option<Time>,
    /// Who began to wait since the last look, and before.
    fresh: Vec<Subscriber>,
    waiting: Vec<Subscriber>,
}

/// What a mirror tells one who uses it.
#[derive(Debug, PartialEq, Eq)]
pub enum Told {
    /// It shows the queue now.
    Live,
    /// There is none any more, and what it showed last was so (true), or may not have been.
    Ended(bool),
    /// The node at this path is gone.
    Gone(String),
    /// The same, and it was deleted by a request of ours: the session was alive then.
    Passed(String),
    /// It is time to look who is ahead, for those who have waited for a while.
    Look,
}

/// What came of a delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deletion {
    /// The node is gone, and was there until then.
    Done,
    /// It was gone before.
    Missing,
    Refused,
}

/// How a directory is used by this client.
#[derive(Debug)]
struct Use {
    last: Time,
    /// How many joined soon after another, and how many are there.
    soon: u32,
    present: u32,
    /// Others were there, too.
    is_shared: bool,
    not_before: Option<Time>,
}

/// A directory in which our node was the only one: all that came before it are gone.
#[derive(Debug)]
struct Alone {
    directory: Arc<str>,
    /// The number of our last node there.
    number: i64,
    /// We have deleted it.
    is_gone: bool,
    /// The directory is watched: it was while that node stood in it, so it is the same one as long as nothing is heard.
    is_watched: bool,
    last_use: Time,
}

/// What a mirror has to say about a directory.
#[derive(Debug)]
pub(super) enum View {
    /// There is none.
    None,
    /// Its list is on the way.
    Coming,
    /// There the node stands.
    At(Rank),
}

#[derive(Debug)]
struct Mirror {
    directory: Arc<str>,
    stage: Stage,
    line: Line,
    /// The number that the next child will get.
    next: i64,
    /// Contenders that asked for no list, since there is this.
    users: BTreeSet<Subscriber>,
    /// Nodes that are being deleted by us.
    doomed: BTreeMap<String, Doom>,
    noise: u32,
    /// How often it was asked since anybody else came or went.
    solo: u32,
    last_use: Time,
}

#[derive(Debug)]
enum Stage {
    /// Watch and list are asked for. What is heard meanwhile: which child came (true) or went.
    Coming(Vec<(String, bool)>),
    Live,
}

/// Whoever is behind a node of our own session is told when the answer to the delete is there: had the session ended, which takes
/// away all its nodes at once, there would be none.
#[derive(Debug, Default)]
struct Doom {
    is_gone: bool,
    followers: Vec<Subscriber>,
}

/// A mirror that does not show what is there.
struct Broken;

/// Why a mirror is taken down.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Nobody uses it.
    Idle,
    /// There are too many in the queue, or too much is going on.
    Crowd,
    /// It was refused, or does not show what is there.
    Wrong,
}

impl Mirrors {
    /// None yet. `kin`: what the names of this client's nodes begin with.
    pub fn new(kin: u64, limits: MirrorLimits) -> Self {
        Self {
            limits,
            kin,
            prefix: name::protected_prefix(kin, 0),
            mirrors: BTreeMap::new(),
            alones: BTreeMap::new(),
            by_directory: HashMap::new(),
            use_of: HashMap::new(),
            tidy_at: limits.remembered,
            last_number: NUMBERS,
            tries: limits.tries,
            has_failed: false,
            told: VecDeque::new(),
            due: None,
            fresh: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// What the names of this client's nodes begin with.
    pub const fn kin(&self) -> u64 {
        self.kin
    }

    /// Whether this is the number of a mirror.
    pub const fn is_mirror(subscriber: Subscriber) -> bool {
        subscriber >= NUMBERS
    }

    /// The next thing that somebody is to be told.
    pub fn poll(&mut self) -> Option<(Subscriber, Told)> {
        self.told.pop_front()
    }

    /// When [`tidy`](Self::tidy) wants to be called.
    pub const fn next_timeout(&self) -> Option<Time> {
        self.due
    }

    // What contenders ask.

    /// A contender is about to create nodes in a directory. Where it needs no list, gives the number of the mirror that will tell it where
    /// it stands.
    pub(super) fn join(
        &mut self,
        now: Time,
        session: &mut Session<Tag>,
        directory: &Arc<str>,
        line: impl FnOnce() -> Line,
        machine: Subscriber,
    ) -> Option<Subscriber> {
        let pays = self.note_use(now, directory);
        let number = self.by_directory.get(directory).copied();
        if let Some(alone) = number.and_then(|number| self.alones.get_mut(&number)) {
            alone.last_use = now;
            return number;
        }
        if let Some(mirror) = number.and_then(|number| self.mirrors.get_mut(&number)) {
            if !mirror.line.is_like(&line()) {
                return None;
            }
            mirror.users.insert(machine);
            (mirror.noise, mirror.last_use) = (0, now);
            return number;
        }
        let may_begin = pays && self.tries > 0 && self.mirrors.len() < self.limits.most;
        if may_begin { self.begin(now, session, directory, line(), machine) } else { None }
    }

    /// Whether a new node, whose name begins with `asked`, would have no contender ahead, as far as this is known without a request. If
    /// this client was the only one in the directory, that is likely enough: the number of the new node will tell.
    pub(super) fn is_free(&self, directory: &str, line: impl FnOnce() -> Line, asked: &str, mode: Mode) -> bool {
        let Some(number) = self.by_directory.get(directory) else { return false };
        if let Some(alone) = self.alones.get(number) {
            return alone.is_watched && alone.is_gone;
        }
        let mirror = self.mirrors.get(number).filter(|mirror| mirror.is_live() && mirror.line.is_like(&line()));
        mirror.is_some_and(|mirror| {
            let own = format!("{asked}{:0digits$}", mirror.next, digits = name::DIGITS);
            mirror.next >= 0 && mirror.line.rank(&own, mode, &[]) == Rank::First
        })
    }

    /// A node was first in a list of so many. Where it was the only one, and that may matter soon, gives the number of what will tell.
    pub(super) fn listed_first(
        &mut self,
        now: Time,
        session: &mut Session<Tag>,
        directory: &Arc<str>,
        count: usize,
        number: Option<i64>,
    ) -> Option<Subscriber> {
        let used = self.use_of.get_mut(directory)?;
        used.is_shared |= count > 1;
        let may_begin = !used.is_shared && used.soon >= self.limits.hot && !self.by_directory.contains_key(directory);
        let (true, Some(number)) = (may_begin && self.alones.len() < self.limits.remembered, number) else {
            return None;
        };
        self.last_number += 1;
        let subscriber = self.last_number;
        // Before its node is deleted, for it stands and the requests are carried out in their order.
        session.watch(now, directory, subscriber, Tag { machine: subscriber, step: Step::WatchDirectory });
        let alone =
            Alone { directory: Arc::clone(directory), number, is_gone: false, is_watched: false, last_use: now };
        self.alones.insert(subscriber, alone);
        self.by_directory.insert(Arc::clone(directory), subscriber);
        self.look_by(now + self.limits.idle);
        Some(subscriber)
    }

    /// Somebody was ahead of a node.
    pub(super) fn listed_behind(&mut self, directory: &str) {
        if let Some(used) = self.use_of.get_mut(directory) {
            used.is_shared = true;
        }
    }

    /// The counterpart: nothing of the contender is left there.
    pub(super) fn leave(
        &mut self,
        now: Time,
        session: &mut Session<Tag>,
        directory: &str,
        number: Option<Subscriber>,
        machine: Subscriber,
    ) {
        if let Some(used) = self.use_of.get_mut(directory) {
            used.present = used.present.saturating_sub(1);
        }
        let Some(number) = number else { return };
        if let Some(mirror) = self.mirrors.get_mut(&number) {
            mirror.users.remove(&machine);
            (mirror.noise, mirror.last_use) = (0, now);
            if mirror.solo >= self.limits.solo && mirror.users.is_empty() && mirror.line.is_empty() {
                self.end_solo(now, session, number);
            }
        }
    }

    /// Whether there still is this mirror.
    pub(super) fn stands(&self, number: Subscriber) -> bool {
        self.mirrors.contains_key(&number) || self.alones.contains_key(&number)
    }

    /// Where a node stands in its queue. A mirror that does not know it is broken.
    pub(super) fn place(
        &mut self,
        now: Time,
        session: &mut Session<Tag>,
        number: Subscriber,
        own: &str,
        own_number: Option<i64>,
        rank: impl FnOnce(&Line) -> Rank,
    ) -> View {
        if let Some(alone) = self.alones.get_mut(&number) {
            if own_number.is_some_and(|own_number| alone.is_so_again(own_number)) {
                return View::At(Rank::First);
            }
            let directory = Arc::clone(&alone.directory);
            self.listed_behind(&directory);
            self.end_alone(now, session, number);
            return View::None;
        }
        match self.mirrors.get_mut(&number) {
            None => View::None,
            Some(Mirror { stage: Stage::Coming(_), .. }) => View::Coming,
            Some(mirror) if mirror.line.contains(own) => {
                mirror.solo = mirror.solo.saturating_add(1);
                View::At(rank(&mirror.line))
            }
            Some(_) => {
                self.end(now, session, number, End::Wrong);
                View::None
            }
        }
    }

    /// Tells `machine` when the node is gone. False where it is not shown.
    pub(super) fn follow(&mut self, number: Subscriber, name: &str, machine: Subscriber) -> bool {
        let mirror = self.mirrors.get_mut(&number).filter(|mirror| mirror.is_live());
        let Some(mate) = mirror.and_then(|mirror| mirror.line.mate_mut(name)) else { return false };
        if !mate.followers.contains(&machine) {
            mate.followers.push(machine);
        }
        true
    }

    /// A contender waits for a node that nobody has read: it will be told when that may be worth it.
    pub(super) fn will_look(&mut self, now: Time, machine: Subscriber) {
        self.fresh.push(machine);
        self.look_by(now + self.limits.look);
    }

    /// `machine` does not want to hear of the node any more.
    pub(super) fn unfollow(&mut self, number: Subscriber, name: &str, machine: Subscriber) {
        let Some(mirror) = self.mirrors.get_mut(&number) else { return };
        if let Some(doom) = mirror.doomed.get_mut(name) {
            doom.followers.retain(|&follower| follower != machine);
        }
        if let Some(mate) = mirror.line.mate_mut(name) {
            mate.followers.retain(|&follower| follower != machine);
        }
    }

    /// From now on `to` uses the mirror, and follows the node, in the place of `from`.
    pub(super) fn hand_over(&mut self, number: Subscriber, name: &str, from: Subscriber, to: Subscriber) {
        let Some(mirror) = self.mirrors.get_mut(&number) else { return };
        if mirror.users.remove(&from) {
            mirror.users.insert(to);
        }
        let followers = mirror.line.mate_mut(name).into_iter().flat_map(|mate| &mut mate.followers);
        followers.filter(|follower| **follower == from).for_each(|follower| *follower = to);
    }

    /// A delete of this node is about to be sent.
    pub(super) fn doom(&mut self, number: Subscriber, name: &str, machine: Subscriber) {
        self.unfollow(number, name, machine);
        if let Some(mirror) = self.mirrors.get_mut(&number) {
            mirror.doomed.entry(name.to_owned()).or_default();
        }
    }

    /// The delete was answered.
    pub(super) fn deleted(
        &mut self,
        now: Time,
        session: &mut Session<Tag>,
        number: Subscriber,
        name: &str,
        own_number: Option<i64>,
        how: Deletion,
    ) {
        if let Some(alone) = self.alones.get_mut(&number).filter(|alone| Some(alone.number) == own_number) {
            alone.last_use = now;
            alone.is_gone = how == Deletion::Done;
            if how != Deletion::Done {
                // Where it did not stand any more when it was to go, the directory may not have been the one that is watched.
                self.end_alone(now, session, number);
            }
        }
        let is_gone = how != Deletion::Refused;
        let Some(mirror) = self.mirrors.get_mut(&number) else { return };
        let Some(doom) = mirror.doomed.remove(name) else { return };
        let path = format!("{}/{name}", mirror.directory);
        let told = doom.followers.into_iter();
        match (is_gone, doom.is_gone) {
            (true, true) => self.told.extend(told.map(|follower| (follower, Told::Passed(path.clone())))),
            (false, true) => self.told.extend(told.map(|follower| (follower, Told::Gone(path.clone())))),
            (true, false) if mirror.line.contains(name) => self.end(now, session, number, End::Wrong),
            (_, false) => {}
        }
    }

    /// A node that is shown was read, and is not there or may not be read.
    pub(super) fn is_wrong(&mut self, now: Time, session: &mut Session<Tag>, number: Subscriber, name: &str) {
        if self.mirrors.get(&number).is_some_and(|mirror| mirror.line.contains(name)) {
            self.end(now, session, number, End::Wrong);
        }
    }

    // What the engine feeds.

    /// The connection is gone, and all mirrors with it. Contenders hear of the same event.
    pub fn disconnected(&mut self, now: Time, session: &mut Session<Tag>) {
        if Mutant::TrustOldMirror.lives() {
            return;
        }
        self.tries = self.tries.saturating_sub(u32::from(std::mem::take(&mut self.has_failed)));
        for number in self.alones.keys().copied().collect::<Vec<_>>() {
            self.end_alone(now, session, number);
        }
        self.mirrors.clear();
        self.by_directory.clear();
        self.told.clear();
        self.fresh.clear();
        self.waiting.clear();
        self.due = None;
    }

    /// A request of a mirror was answered.
    pub fn answered(
        &mut self,
        now: Time,
        session: &mut Session<Tag>,
        Tag { machine, step }: Tag,
        result: Result<Response, Failure>,
    ) {
        if let Some(alone) = self.alones.get_mut(&machine) {
            match result {
                Ok(_) => alone.is_watched = true,
                Err(_) => self.end_alone(now, session, machine),
            }
            return;
        }
        let is_watch = step == Step::WatchBelow;
        match result {
            // What is lost is lost with the connection, which is told next.
            Err(Failure::ConnectionLost) => self.has_failed |= is_watch,
            Err(Failure::Code(Code::UNIMPLEMENTED)) if is_watch => {
                self.tries = 0;
                self.end(now, session, machine, End::Wrong);
            }
            Ok(_) if is_watch => self.tries = self.limits.tries,
            Ok(Response::Children2 { children, stat }) => self.listed(now, session, machine, children, Some(stat)),
            Err(Failure::Code(Code::NO_NODE)) if !is_watch => self.listed(now, session, machine, Vec::new(), None),
            Ok(_) | Err(Failure::Code(_) | Failure::TooLarge(_)) => self.end(now, session, machine, End::Wrong),
        }
    }

    /// Something happened in a mirrored directory, or below.
    pub fn fired(&mut self, now: Time, session: &mut Session<Tag>, number: Subscriber, kind: EventKind, path: &str) {
        if self.alones.contains_key(&number) && !Mutant::ForgetDirectory.lives() {
            return self.end_alone(now, session, number);
        }
        let Some(mirror) = self.mirrors.get_mut(&number) else { return };
        if kind == EventKind::PersistentWatchRemoved {
            return self.end(now, session, number, End::Crowd);
        }
        let seen = mirror.note(name::kin(&self.prefix), kind, path, &mut self.told);
        let why = match seen {
            Err(Broken) => End::Wrong,
            Ok(()) if mirror.noise > self.limits.noise || mirror.line.sessions() > self.limits.many => End::Crowd,
            Ok(()) => return,
        };
        self.end(now, session, number, why);
    }

    /// Does what is due.
    pub fn tidy(&mut self, now: Time, session: &mut Session<Tag>) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        let is_idle = |mirror: &Mirror| mirror.users.is_empty() && now >= mirror.last_use + self.limits.idle;
        let idle = self.mirrors.iter().filter(|(_, mirror)| is_idle(mirror)).map(|(&number, _)| number);
        for number in idle.collect::<Vec<_>>() {
            self.end(now, session, number, End::Idle);
        }
        let idle =
            self.alones.iter().filter(|(_, alone)| now >= alone.last_use + self.limits.idle).map(|(&number, _)| number);
        for number in idle.collect::<Vec<_>>() {
            self.end_alone(now, session, number);
        }
        // Who waits is told once, at the second look.
        let waiting = std::mem::replace(&mut self.waiting, std::mem::take(&mut self.fresh));
        self.told.extend(waiting.into_iter().map(|waiting| (waiting, Told::Look)));
        let pause = if self.waiting.is_empty() { self.limits.idle } else { self.limits.look };
        let is_needed = !self.mirrors.is_empty() || !self.alones.is_empty();
        self.due = is_needed.then(|| now + pause);
    }

    // Beginning and ending.

    fn begin(
        &mut self,
        now: Time,
        session: &mut Session<Tag>,
        directory: &Arc<str>,
        line: Line,
        machine: Subscriber,
    ) -> Option<Subscriber> {
        if &**directory == "/" {
            // What is below it has no path that begins with it and a slash.
            return None;
        }
        let number = self.last_number + 1;
        let tag = |step| Tag { machine: number, step };
        if !session.watch_below(now, directory, number, tag(Step::WatchBelow)) {
            return None;
        }
        self.last_number = number;
        let list = Request::GetChildren2 { path: directory.to_string(), watch: false };
        session.submit(now, &list, tag(Step::List(0)));
        let mirror = Mirror {
            directory: Arc::clone(directory),
            stage: Stage::Coming(Vec::new()),
            line,
            next: 0,
            users: BTreeSet::from([machine]),
            doomed: BTreeMap::new(),
            noise: 0,
            solo: 0,
            last_use: now,
        };
        self.mirrors.insert(number, mirror);
        self.by_directory.insert(Arc::clone(directory), number);
        self.look_by(now + self.limits.idle);
        Some(number)
    }

    fn listed(
        &mut self,
        now: Time,
        session: &mut Session<Tag>,
        number: Subscriber,
        children: Vec<String>,
        stat: Option<Stat>,
    ) {
        let Some(mirror) = self.mirrors.get_mut(&number) else { return };
        let Stage::Coming(heard) = std::mem::replace(&mut mirror.stage, Stage::Live) else { return };
        // What was heard since the watch was set is in the list. Each child's last word counts.
        let last_words: BTreeMap<String, bool> = heard.into_iter().collect();
        let listed: BTreeSet<&String> = children.iter().collect();
        if last_words.iter().any(|(name, &is_there)| listed.contains(name) != is_there) {
            return self.end(now, session, number, End::Wrong);
        }
        mirror.next = stat.map_or(0, children_ever);
        children.iter().for_each(|name| {
            mirror.line.insert(name);
        });
        if mirror.line.sessions() > self.limits.few {
            return self.end(now, session, number, End::Crowd);
        }
        self.told.extend(mirror.users.iter().map(|&user| (user, Told::Live)));
    }

    /// Takes a mirror down, and says so to those who use it.
    fn end(&mut self, now: Time, session: &mut Session<Tag>, number: Subscriber, why: End) {
        let Some(mirror) = self.mirrors.remove(&number) else { return };
        let (is_sound, pause) = match why {
            End::Idle => (true, None),
            End::Crowd => (true, Some(self.limits.pause)),
            End::Wrong => (false, Some(self.limits.ban)),
        };
        self.by_directory.remove(&mirror.directory);
        session.unwatch_below(now, &mirror.directory);
        if !Mutant::LeaveUsersBlind.lives() {
            self.told.extend(mirror.users.into_iter().map(|user| (user, Told::Ended(is_sound))));
        }
        if let Some(used) = self.use_of.get_mut(&mirror.directory) {
            used.not_before = pause.map(|pause| now + pause);
        }
    }

    /// The mirror of a directory that nobody else uses.
    fn end_solo(&mut self, now: Time, session: &mut Session<Tag>, number: Subscriber) {
        if let Some(used) = self.mirrors.get(&number).and_then(|mirror| self.use_of.get_mut(&mirror.directory)) {
            used.is_shared = false;
        }
        self.end(now, session, number, End::Idle);
    }

    fn end_alone(&mut self, now: Time, session: &mut Session<Tag>, number: Subscriber) {
        if let Some(Alone { directory, .. }) = self.alones.remove(&number) {
            self.by_directory.remove(&directory);
            session.unwatch(now, &directory, number);
        }
    }

    /// Counts one more use of a directory; true where it is used hard, and not by one alone, and may be mirrored.
    fn note_use(&mut self, now: Time, directory: &Arc<str>) -> bool {
        if self.use_of.len() >= self.tidy_at && !self.use_of.contains_key(directory) {
            self.use_of.retain(|_, used| used.present > 0 || used.last + self.limits.soon > now);
            // What has to be kept is not looked through again for a while.
            self.tidy_at = self.limits.remembered.max(self.use_of.len() * 2);
        }
        let fresh = || Use { last: now, soon: 0, present: 0, is_shared: false, not_before: None };
        let used = match self.use_of.get_mut(directory) {
            Some(used) => used,
            None => self.use_of.entry(Arc::clone(directory)).or_insert_with(fresh),
        };
        used.soon =
            if used.present > 0 || now < used.last + self.limits.soon { used.soon.saturating_add(1) } else { 0 };
        used.last = now;
        used.is_shared &= used.soon > 0;
        let is_hot = (used.soon >= self.limits.hot && used.is_shared) || used.present >= self.limits.company;
        used.present = used.present.saturating_add(1);
        is_hot && used.not_before.is_none_or(|at| now >= at)
    }

    fn look_by(&mut self, at: Time) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}

impl Alone {
    /// Whether a new node of ours with this number is the only one, too.
    fn is_so_again(&mut self, number: i64) -> bool {
        let is_next = number == self.number + 1 || Mutant::SkipNumbers.lives();
        let is_so = self.is_watched && self.is_gone && is_next;
        (self.number, self.is_gone) = (number, false);
        is_so
    }
}

impl Mirror {
    const fn is_live(&self) -> bool {
        matches!(self.stage, Stage::Live)
    }

    /// Takes in one change.
    fn note(
        &mut self,
        kin: &str,
        kind: EventKind,
        path: &str,
        told: &mut VecDeque<(Subscriber, Told)>,
    ) -> Result<(), Broken> {
        let name = match path.strip_prefix(&*self.directory) {
            Some("") => return self.note_own(kind),
            Some(below) => below.strip_prefix('/').filter(|name| !name.contains('/')),
            None => None,
        };
        if name.is_none_or(|name| name::kin(name) != kin) {
            self.noise += 1;
            self.solo = 0;
        }
        let (Some(name), EventKind::Created | EventKind::Deleted) = (name, kind) else { return Ok(()) };
        let has_come = kind == EventKind::Created;
        if let Stage::Coming(heard) = &mut self.stage {
            heard.push((name.to_owned(), has_come));
            return Ok(());
        }
        if has_come { self.come(name) } else { self.go(name, path, told) }
    }

    /// The directory itself has come or gone.
    fn note_own(&mut self, kind: EventKind) -> Result<(), Broken> {
        match kind {
            EventKind::Created => self.next = 0,
            EventKind::Deleted if self.is_live() && !self.line.is_empty() => return Err(Broken),
            // Until it is heard of again.
            EventKind::Deleted => self.next = -1,
            _ => {}
        }
        Ok(())
    }

    fn come(&mut self, name: &str) -> Result<(), Broken> {
        let number = self.next;
        self.next += 1;
        match self.line.insert(name) {
            Some(Kind::Plain | Kind::Foreign(_)) => Ok(()),
            // One that takes the number of its owner's node stands behind that.
            Some(Kind::Contender(mark)) if mark.is_shared && self.line.is_nested(name) => Ok(()),
            Some(Kind::Contender(mark)) if mark.key.parse() == Ok(number) => Ok(()),
            Some(Kind::Contender(_)) | None => Err(Broken),
        }
    }

    fn go(&mut self, name: &str, path: &str, told: &mut VecDeque<(Subscriber, Told)>) -> Result<(), Broken> {
        let followers = self.line.remove(name).ok_or(Broken)?;
        if Mutant::ForgetFollower.lives() {
            return Ok(());
        }
        match self.doomed.get_mut(name) {
            Some(doom) => *doom = Doom { is_gone: true, followers },
            None => told.extend(followers.into_iter().map(|follower| (follower, Told::Gone(path.to_owned())))),
        }
        Ok(())
    }
}

/// How many children a directory has had. A server counts two changes for a child that came and went and one for a child that came, in 32
/// bits that run over.
pub(super) const fn children_ever(stat: Stat) -> i64 {
    (stat.cversion.cast_unsigned().wrapping_add(stat.num_children.cast_unsigned()) / 2) as i64
}
