//! Whether a fencing token is that of a holder, by what the ensemble knows: behind a transaction that brings a lagging server up to
//! date, the lists of a path whatever recipe uses it, then one look at each node that can be a holder's.
//!
//! A node that is first in a list stays first until it goes, so what is true of the list is still true when the node is seen after
//! it; and what had come before the question, the lists have.

use super::contender::Input;
use super::name::{Kind, Mark, Mode, classify};
use super::rank::holders;
use super::{Desk, Step};
use crate::error::{Error, Result};
use crate::mutant::Mutant;
use crate::proto::{Code, Request, Response, Stat};
use crate::session::Failure;

/// How often it looks before it takes what is just changing for what it was.
const ROUNDS: u32 = 3;

/// The question under way.
#[derive(Debug)]
pub struct Fence {
    path: String,
    token: i64,
    with_kazoo: bool,
    rounds: u32,
    lists: Lists,
    found: Vec<Found>,
    /// So many answers are still due.
    outstanding: usize,
}

/// The names of the nodes below the path.
#[derive(Debug, Default)]
struct Lists {
    queue: Vec<String>,
    /// Of a semaphore.
    leases: Vec<String>,
    inner: Vec<String>,
}

/// A node that can be a holder's.
#[derive(Debug)]
struct Found {
    room: Room,
    name: String,
    /// `None`: it is gone.
    birth: Option<Birth>,
}

#[derive(Debug, Clone, Copy)]
struct Birth {
    czxid: i64,
    session: i64,
}

/// Where a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// At the head of a semaphore's inner mutex.
    Inner,
    /// Among those of the path itself that stand like this.
    Queue(Mode),
    /// Among the leases.
    Leases,
}

/// What a node with the token says. One that holds outdoes all others.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    HoldsNot,
    /// It depends on what is just changing.
    Changing,
    Holds,
}

impl Fence {
    /// Asks whether the hold with this token is that of a holder on a full path.
    pub const fn new(path: String, token: i64, with_kazoo: bool) -> Self {
        let lists = Lists { queue: Vec::new(), leases: Vec::new(), inner: Vec::new() };
        Self { path, token, with_kazoo, rounds: ROUNDS, lists, found: Vec::new(), outstanding: 0 }
    }

    /// Takes one input to its consequences; gives the answer once it is known.
    pub fn handle(&mut self, desk: &mut Desk<'_>, input: Input<'_>) -> Option<Result<bool>> {
        match input {
            Input::Connected => {
                self.begin(desk);
                None
            }
            Input::Reply(Step::List(at), result) => self.listed(desk, at, result),
            Input::Reply(Step::Read(index), result) => self.seen(desk, index, result),
            _ => None,
        }
    }

    fn begin(&mut self, desk: &mut Desk<'_>) {
        self.lists = Lists::default();
        self.found.clear();
        if !Mutant::AskOneServer.lives() {
            desk.session.prove(desk.now);
        }
        let directories = ["", "/leases", "/locks"];
        self.outstanding = directories.len();
        for (at, below) in directories.into_iter().enumerate() {
            desk.send(Step::List(at), &Request::GetChildren2 { path: format!("{}{below}", self.path), watch: false });
        }
    }

    fn listed(
        &mut self,
        desk: &mut Desk<'_>,
        at: usize,
        result: std::result::Result<Response, Failure>,
    ) -> Option<Result<bool>> {
        let names = match result {
            Ok(Response::Children2 { children, .. }) => children,
            Ok(_) | Err(Failure::Code(Code::NO_NODE)) => Vec::new(),
            // All that are under way are lost together, and asked for again with the next connection.
            Err(Failure::ConnectionLost) => return None,
            Err(failure) => return Some(Err(self.error(failure))),
        };
        match at {
            0 => self.lists.queue = names,
            1 => self.lists.leases = names,
            _ => self.lists.inner = names,
        }
        self.outstanding = self.outstanding.saturating_sub(1);
        if self.outstanding > 0 {
            return None;
        }
        self.found = self.lists.candidates(self.with_kazoo);
        self.outstanding = self.found.len();
        for (index, Found { room, name, .. }) in self.found.iter().enumerate() {
            let below = match room {
                Room::Inner => "/locks",
                Room::Queue(_) => "",
                Room::Leases => "/leases",
            };
            let path = format!("{}{below}/{name}", self.path);
            desk.send(Step::Read(index), &Request::Exists { path, watch: false });
        }
        self.conclude(desk)
    }

    fn seen(
        &mut self,
        desk: &mut Desk<'_>,
        index: usize,
        result: std::result::Result<Response, Failure>,
    ) -> Option<Result<bool>> {
        match result {
            Ok(Response::Stat(Stat { czxid, ephemeral_owner, .. })) => {
                self.found.get_mut(index)?.birth = Some(Birth { czxid, session: ephemeral_owner });
            }
            Ok(_) | Err(Failure::Code(Code::NO_NODE)) => {}
            Err(Failure::ConnectionLost) => return None,
            Err(failure) => return Some(Err(self.error(failure))),
        }
        self.outstanding = self.outstanding.saturating_sub(1);
        self.conclude(desk)
    }

    fn conclude(&mut self, desk: &mut Desk<'_>) -> Option<Result<bool>> {
        if self.outstanding > 0 {
            return None;
        }
        match verdict(&self.found, self.token, self.with_kazoo) {
            Verdict::Changing if self.rounds > 1 => {
                self.rounds -= 1;
                self.begin(desk);
                None
            }
            verdict => Some(Ok(verdict == Verdict::Holds)),
        }
    }

    fn error(&self, why: Failure) -> Error {
        why.to_error(&format!("looking for the holder of {} with the token {}", self.path, self.token))
    }
}

impl Lists {
    /// The nodes that can be a holder's. The head of an inner mutex comes first: it goes after the leases that are given up.
    fn candidates(&self, with_kazoo: bool) -> Vec<Found> {
        let found = |room, name: &String| Found { room, name: name.clone(), birth: None };
        // Of a single lease there is nothing to find out, wherever its owner stands.
        let inner = if self.leases.len() > 1 { heads(&self.inner, Mode::Mutex, false) } else { Vec::new() };
        let queues = self.modes(with_kazoo).into_iter();
        let queues = queues.flat_map(|mode| {
            heads(&self.queue, mode, with_kazoo).into_iter().map(move |name| found(Room::Queue(mode), name))
        });
        let inner = inner.into_iter().map(|name| found(Room::Inner, name));
        inner.chain(queues).chain(self.leases.iter().map(|name| found(Room::Leases, name))).collect()
    }

    /// How those stand who queue at the path itself: as for a mutex or for a read/write lock. Where one has come to the other's
    /// path by mistake, it takes nothing away from those who were there.
    fn modes(&self, with_kazoo: bool) -> Vec<Mode> {
        let is_there = |mode: &Mode| self.queue.iter().any(|name| mark(name, *mode, false).is_some());
        let modes: Vec<Mode> = [Mode::Mutex, Mode::Write].into_iter().filter(is_there).collect();
        // kazoo's may be alone there, and they read and write.
        if modes.is_empty() && with_kazoo { vec![Mode::Write] } else { modes }
    }
}

/// Those in a list up to the first that excludes others.
fn heads(names: &[String], mode: Mode, with_kazoo: bool) -> Vec<&String> {
    let marked = || names.iter().filter_map(|name| Some((mark(name, mode, with_kazoo)?, name)));
    let first = marked().filter(|(mark, _)| !mark.is_shared).map(|(mark, _)| mark.key).min();
    let first = first.filter(|_| !Mutant::TakeWaiterForHolder.lives());
    marked().filter(|(mark, _)| first.is_none_or(|first| mark.key <= first)).map(|(_, name)| name).collect()
}

fn mark(name: &str, mode: Mode, with_kazoo: bool) -> Option<Mark<'_>> {
    match classify(name, mode, with_kazoo) {
        Kind::Contender(mark) => Some(mark),
        _ => None,
    }
}

fn verdict(found: &[Found], token: i64, with_kazoo: bool) -> Verdict {
    let has_token = |node: &&Found| node.birth.is_some_and(|birth| birth.czxid == token);
    let verdicts = found.iter().filter(has_token).map(|node| match node.room {
        Room::Queue(mode) => in_queue(found, node, mode, with_kazoo),
        Room::Leases => among_leases(found, token),
        // That is a place, and no lease yet.
        Room::Inner => Verdict::HoldsNot,
    });
    verdicts.max().unwrap_or(Verdict::HoldsNot)
}

fn in_queue(found: &[Found], own: &Found, mode: Mode, with_kazoo: bool) -> Verdict {
    let of_mode = found.iter().filter(|node| node.room == Room::Queue(mode));
    let mut queue: Vec<(Mark<'_>, &Found)> =
        of_mode.filter_map(|node| Some((mark(&node.name, mode, with_kazoo)?, node))).collect();
    let Some(own_key) = mark(&own.name, mode, with_kazoo).map(|mark| mark.key) else { return Verdict::HoldsNot };
    // Who of two with one number is ahead, their birth says. One that has gone meanwhile has none; but in the list it stood.
    if queue.iter().any(|(mark, node)| mark.key == own_key && node.birth.is_none()) {
        return Verdict::Changing;
    }
    queue.sort_by_key(|(mark, node)| (mark.key, node.birth.map(|birth| birth.czxid)));
    let holds = holders(queue.iter().map(|(mark, _)| *mark));
    let is_own = |((_, node), holds): (&(Mark<'_>, &Found), bool)| holds && std::ptr::eq(*node, own);
    if queue.iter().zip(holds).any(is_own) || Mutant::TakeWaiterForHolder.lives() {
        Verdict::Holds
    } else {
        Verdict::HoldsNot
    }
}

/// A lease is held, unless it was made by who is inside the inner mutex, since he came there: he waits for others to go. That can only
/// be the newest. He may just have got it, and be about to leave the inner mutex.
fn among_leases(found: &[Found], token: i64) -> Verdict {
    let births = |room| found.iter().filter(move |node| node.room == room).filter_map(|node| node.birth);
    let (mut oldest, mut newest, mut owner) = (token, token, 0);
    for Birth { czxid, session } in births(Room::Leases) {
        (oldest, newest) = (oldest.min(czxid), newest.max(czxid));
        if czxid == token {
            owner = session;
        }
    }
    let inside = births(Room::Inner).min_by_key(|birth| birth.czxid);
    match inside {
        Some(Birth { czxid, session }) if oldest < token && token == newest && session == owner && czxid < token => {
            Verdict::Changing
        }
        _ => Verdict::Holds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes with their birth; 0 is one that has gone. Sessions are given behind a colon, where they matter.
    fn scene(queue: &[(&str, i64)], leases: &[(&str, i64, i64)], inner: &[(&str, i64, i64)]) -> Vec<Found> {
        let name = |name: &str| name.to_owned();
        let lists = Lists {
            queue: queue.iter().map(|node| name(node.0)).collect(),
            leases: leases.iter().map(|node| name(node.0)).collect(),
            inner: inner.iter().map(|node| name(node.0)).collect(),
        };
        let mut found = lists.candidates(true);
        for node in &mut found {
            let (czxid, session) = match node.room {
                Room::Queue(_) => (queue.iter().find(|known| known.0 == node.name).unwrap().1, 1),
                Room::Leases => {
                    leases.iter().find(|known| known.0 == node.name).map(|known| (known.1, known.2)).unwrap()
                }
                Room::Inner => inner.iter().find(|known| known.0 == node.name).map(|known| (known.1, known.2)).unwrap(),
            };
            node.birth = (czxid != 0).then_some(Birth { czxid, session });
        }
        found
    }

    fn holds(queue: &[(&str, i64)], token: i64) -> Verdict {
        verdict(&scene(queue, &[], &[]), token, true)
    }

    #[test]
    fn the_first_of_a_mutex_holds_and_nobody_else() {
        let queue = [("b-lock-2", 12), ("a-lock-1", 11), ("other", 10)];
        assert_eq!(holds(&queue, 11), Verdict::Holds);
        for token in [1, 10, 12] {
            assert_eq!(holds(&queue, token), Verdict::HoldsNot, "{token}");
        }
        assert_eq!(holds(&[], 11), Verdict::HoldsNot);
        // It went after it was listed. Who was behind is not taken for a holder before he was seen in front.
        let queue = [("a-lock-1", 0), ("b-lock-2", 12)];
        assert_eq!(holds(&queue, 11), Verdict::HoldsNot);
        assert_eq!(holds(&queue, 12), Verdict::HoldsNot);
    }

    #[test]
    fn of_one_number_the_elder_holds() {
        let queue = [("b-lock-1", 11), ("a-lock-1", 12)];
        assert_eq!(holds(&queue, 11), Verdict::Holds);
        assert_eq!(holds(&queue, 12), Verdict::HoldsNot);
        let queue = [("b-lock-1", 0), ("a-lock-1", 12)];
        assert_eq!(holds(&queue, 12), Verdict::Changing);
    }

    #[test]
    fn readers_up_to_the_first_writer_hold() {
        let queue = [("a__READ__1", 11), ("b__READ__2", 12), ("c__WRIT__3", 13), ("d__READ__4", 14)];
        for (token, verdict) in
            [(11, Verdict::Holds), (12, Verdict::Holds), (13, Verdict::HoldsNot), (14, Verdict::HoldsNot)]
        {
            assert_eq!(holds(&queue, token), verdict, "{token}");
        }
        let queue = [("a__WRIT__1", 11), ("b__READ__1", 13), ("c__READ__2", 12)];
        for (token, verdict) in [(11, Verdict::Holds), (13, Verdict::Holds), (12, Verdict::HoldsNot)] {
            assert_eq!(holds(&queue, token), verdict, "{token}");
        }
        // A reader may stand in the place of another that has gone: the writer behind is not in yet.
        assert_eq!(holds(&[("a__READ__1", 0), ("b__WRIT__2", 12)], 12), Verdict::HoldsNot);
    }

    #[test]
    fn kazoo_queues_along_and_nobody_loses_by_who_is_there_by_mistake() {
        let kazoo = "509e033e5443480e924d21ab1ded34a7__lock__0000000001";
        assert_eq!(holds(&[(kazoo, 11), ("a-lock-0000000002", 12)], 11), Verdict::Holds);
        assert_eq!(holds(&[(kazoo, 11), ("a-lock-0000000002", 12)], 12), Verdict::HoldsNot);
        assert_eq!(holds(&[(kazoo, 11)], 11), Verdict::Holds);
        assert_eq!(holds(&[("a-lock-1", 11), ("b__WRIT__2", 12)], 11), Verdict::Holds);
    }

    #[test]
    fn leases_are_held_unless_their_owner_is_still_inside() {
        let leases = [("b", 12, 2), ("a", 11, 1), ("c", 14, 3)];
        let told = |inner: &[(&str, i64, i64)], token| verdict(&scene(&[], &leases, inner), token, true);
        for token in [11, 12, 14] {
            assert_eq!(told(&[], token), Verdict::Holds, "{token}");
        }
        assert_eq!(told(&[], 13), Verdict::HoldsNot);
        // The third has made his and waits, or is about to leave. Others who want to come inside change nothing.
        assert_eq!(told(&[("i-lock-1", 13, 3), ("j-lock-2", 10, 2)], 14), Verdict::Changing);
        assert_eq!(told(&[("i-lock-1", 13, 3)], 12), Verdict::Holds);
        assert_eq!(told(&[("i-lock-1", 0, 0), ("j-lock-2", 10, 3)], 14), Verdict::Holds);
        // He came back for more.
        assert_eq!(told(&[("i-lock-1", 15, 3)], 14), Verdict::Holds);
        assert_eq!(told(&[("i-lock-1", 13, 3)], 13), Verdict::HoldsNot, "no lease");
    }

    #[test]
    fn the_only_lease_is_held_wherever_its_owner_stands() {
        let leases = [("a", 12, 1), ("b", 12, 1)];
        assert_eq!(verdict(&scene(&[], &leases, &[("i-lock-1", 11, 1)]), 12, true), Verdict::Holds);
    }
}
