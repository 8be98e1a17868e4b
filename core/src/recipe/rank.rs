//! Computes the rank of a node among the children of its directory, the holders of a queue, and whether leases are
//! available. All functions are pure.

use super::name::{ChildKind, ContenderName, Mode, classify};
use crate::mutant::Mutant;

/// The rank of a node among the children of its directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rank {
    /// No node ahead excludes this node.
    First,
    Behind {
        /// The predecessor: the nearest node ahead that excludes this node. Only the predecessor needs a watch.
        predecessor: String,
        ahead_count: usize,
        /// True if both nodes have the same sequence number. If two nodes have the same number, the node that was
        /// created first is ahead.
        is_tie: bool,
    },
    /// The directory contains a node of another lock family. Contenders of different families cannot wait for each
    /// other. The position of the foreign node says nothing: its program may ignore all other nodes, and may therefore
    /// hold its lock already.
    Foreign { name: String, family: &'static str },
}

/// Returns the rank of the node `own` in a list of the children. The nodes in `ties_behind` have the same sequence
/// number as `own`, and were created after it.
pub(super) fn rank(children: &[String], own: &str, mode: Mode, with_kazoo: bool, ties_behind: &[String]) -> Rank {
    let foreign = children.iter().find_map(|name| match classify(name, mode, with_kazoo) {
        ChildKind::Foreign(family) if !Mutant::IgnoreForeignNodes.is_active() => {
            Some(Rank::Foreign { name: name.to_owned(), family })
        }
        _ => None,
    });
    if let Some(foreign) = foreign {
        return foreign;
    }
    let Some(own_contender) = parse_contender(own, mode, with_kazoo) else { return Rank::First };
    let contenders = children.iter().filter_map(|name| Some((parse_contender(name, mode, with_kazoo)?, name.as_str())));
    rank_among(contenders, (own_contender, own), mode, ties_behind)
}

/// Returns the rank of the node `own` among contenders and their names, in any order. All nodes ahead of `own` must be
/// among them.
pub(super) fn rank_among<'a>(
    contenders: impl Iterator<Item = (ContenderName<'a>, &'a str)>,
    own: (ContenderName<'_>, &str),
    mode: Mode,
    ties_behind: &[String],
) -> Rank {
    let (own_sequence, own_name) = (own.0.sequence, own.1);
    let is_ahead = |sequence: &str, name: &str| {
        sequence < own_sequence
            || (sequence == own_sequence && name != own_name && !ties_behind.iter().any(|behind| behind == name))
    };
    let excludes_own = |is_shared: bool| mode != Mode::Read || !(is_shared || Mutant::ReadAlways.is_active());
    let mut ahead_count = 0;
    let mut predecessor = None;
    for (contender, name) in contenders {
        if excludes_own(contender.is_shared) && is_ahead(contender.sequence, name) {
            ahead_count += 1;
            predecessor = predecessor.max(Some((contender.sequence, name)));
        }
    }
    match predecessor {
        None => Rank::First,
        Some((sequence, name)) => {
            Rank::Behind { predecessor: name.to_owned(), ahead_count, is_tie: sequence == own_sequence }
        }
    }
}

/// Returns whether a semaphore with this maximum can grant this number of leases at the same time.
pub(crate) fn are_leases_available(count: usize, max: i32) -> bool {
    usize::try_from(max).is_ok_and(|max| count <= max)
}

/// Returns whether each node of a complete queue is a holder, in the order of the queue.
pub(super) fn holders<'a>(queue: impl IntoIterator<Item = ContenderName<'a>>) -> Vec<bool> {
    // If a writer is first, only readers with the same sequence number also hold the lock. These readers are nested
    // read locks, and have the same owner as the writer.
    let mut first: Option<ContenderName<'a>> = None;
    let mut closed = false;
    let mut holds = Vec::new();
    for contender in queue {
        let is_holder = match first {
            None => true,
            Some(first) if !first.is_shared => contender.is_shared && contender.sequence == first.sequence,
            Some(_) => contender.is_shared && !closed,
        };
        closed |= !contender.is_shared;
        first.get_or_insert(contender);
        holds.push(is_holder);
    }
    holds
}

/// Returns the names of the nodes that may belong to holders: all contenders up to the first contender that excludes
/// others. The names may be in any order.
pub(super) fn possible_holders(names: &[String], mode: Mode, with_kazoo: bool) -> Vec<&String> {
    let marked = || names.iter().filter_map(|name| Some((parse_contender(name, mode, with_kazoo)?, name)));
    let first = marked().filter(|(contender, _)| !contender.is_shared).map(|(contender, _)| contender.sequence).min();
    let first = first.filter(|_| !Mutant::TakeWaiterForHolder.is_active());
    marked()
        .filter(|(contender, _)| first.is_none_or(|first| contender.sequence <= first))
        .map(|(_, name)| name)
        .collect()
}

/// Parses the name of a node. Returns `None` if the node is not a contender.
pub(super) fn parse_contender(name: &str, mode: Mode, with_kazoo: bool) -> Option<ContenderName<'_>> {
    match classify(name, mode, with_kazoo) {
        ChildKind::Contender(contender) => Some(contender),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn behind(ahead: &str, ahead_count: usize) -> Rank {
        Rank::Behind { predecessor: ahead.to_owned(), ahead_count, is_tie: false }
    }

    #[test]
    fn a_mutex_waits_for_the_one_before() {
        let children = names(&["c-lock-0000000002", "a-lock-0000000000", "b-lock-0000000001", "zzz", "0"]);
        assert_eq!(rank(&children, "a-lock-0000000000", Mode::Mutex, false, &[]), Rank::First);
        assert_eq!(rank(&children, "c-lock-0000000002", Mode::Mutex, false, &[]), behind("b-lock-0000000001", 2));
    }

    #[test]
    fn a_reader_waits_for_the_nearest_writer() {
        let children = names(&[
            "a-__WRIT__0000000000",
            "b-__READ__0000000001",
            "c-__WRIT__0000000002",
            "d-__READ__0000000003",
            "e-__READ__0000000004",
            "f-__WRIT__0000000005",
        ]);
        assert_eq!(rank(&children, "b-__READ__0000000001", Mode::Read, false, &[]), behind("a-__WRIT__0000000000", 1));
        assert_eq!(rank(&children, "e-__READ__0000000004", Mode::Read, false, &[]), behind("c-__WRIT__0000000002", 2));
        assert_eq!(rank(&children, "f-__WRIT__0000000005", Mode::Write, false, &[]), behind("e-__READ__0000000004", 5));
    }

    #[test]
    fn equal_sequence_numbers_are_a_tie_until_resolved() {
        let children = names(&["a-lock-0000000007", "b-lock-0000000007"]);
        let tie = Rank::Behind { predecessor: "b-lock-0000000007".to_owned(), ahead_count: 1, is_tie: true };
        assert_eq!(rank(&children, "a-lock-0000000007", Mode::Mutex, false, &[]), tie);
        assert_eq!(
            rank(&children, "a-lock-0000000007", Mode::Mutex, false, &names(&["b-lock-0000000007"])),
            Rank::First
        );
    }

    #[test]
    fn foreign_node_is_reported_with_its_family() {
        let kazoo = "509e033e5443480e924d21ab1ded34a7__lock__0000000004";
        let children = names(&[kazoo, "a-lock-0000000005"]);
        let foreign = Rank::Foreign { name: kazoo.to_owned(), family: "kazoo's lock" };
        assert_eq!(rank(&children, "a-lock-0000000005", Mode::Mutex, false, &[]), foreign);
        assert_eq!(rank(&children, "a-lock-0000000005", Mode::Mutex, true, &[]), behind(kazoo, 1));
    }

    #[test]
    fn holders_are_first_writer_or_leading_readers() {
        let writer = |sequence| ContenderName { sequence, is_shared: false };
        let reader = |sequence| ContenderName { sequence, is_shared: true };
        assert_eq!(holders([writer("1"), writer("2")]), [true, false]);
        assert_eq!(holders([reader("1"), reader("2"), writer("3"), reader("4")]), [true, true, false, false]);
        assert_eq!(holders([writer("1"), reader("1"), reader("2")]), [true, true, false]);
        assert_eq!(holders([]), [] as [bool; 0]);
    }
}
