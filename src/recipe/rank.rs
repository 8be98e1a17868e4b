//! Where a node stands among the children of its directory, and who of them is in. Pure functions of one list.

use super::name::{Kind, Mark, Mode, classify};
use crate::mutant::Mutant;

/// Where a node stands.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rank {
    /// Nobody is ahead that it has to wait for.
    First,
    Behind {
        /// The nearest of them: the only one whose end can matter.
        ahead: String,
        count: usize,
        /// They have the same number: who was created first is ahead.
        is_tie: bool,
    },
    /// Somebody is there with whom it can't take turns.
    Foreign { name: String, family: &'static str },
}

/// Finds the place of `own`. Those `later` have the same number as `own`, and are known to have been created behind it.
pub(super) fn rank(children: &[String], own: &str, mode: Mode, with_kazoo: bool, later: &[String]) -> Rank {
    let kinds = || children.iter().map(|name| (classify(name, mode, with_kazoo), name.as_str()));
    let foreign = kinds().find_map(|(kind, name)| match kind {
        Kind::Foreign(family) if !Mutant::PassByForeign.lives() => {
            Some(Rank::Foreign { name: name.to_owned(), family })
        }
        _ => None,
    });
    if let Some(foreign) = foreign {
        return foreign;
    }
    let Kind::Contender(Mark { key: own_key, .. }) = classify(own, mode, with_kazoo) else { return Rank::First };
    let is_ahead = |mark: Mark<'_>, name: &str| {
        mark.key < own_key || (mark.key == own_key && name != own && !later.iter().any(|later| later == name))
    };
    let matters = |mark: Mark<'_>| mode != Mode::Read || !(mark.is_shared || Mutant::ReadAlways.lives());
    let ahead = kinds().filter_map(|(kind, name)| match kind {
        Kind::Contender(mark) if matters(mark) && is_ahead(mark, name) => Some((mark.key, name)),
        _ => None,
    });
    match ahead.fold((0, None), |(count, last), other| (count + 1, last.max(Some(other)))) {
        (count, Some((key, ahead))) => Rank::Behind { ahead: ahead.to_owned(), count, is_tie: key == own_key },
        _ => Rank::First,
    }
}

/// Who of a queue is in, from all of it in its order.
pub(super) fn holders<'a>(queue: impl IntoIterator<Item = Mark<'a>>) -> Vec<bool> {
    // The first that excludes others, if it is the first of all, lets in only readers that took its own number: its holder's.
    let mut first: Option<Mark<'a>> = None;
    let mut closed = false;
    let mut holds = Vec::new();
    for mark in queue {
        let is_in = match first {
            None => true,
            Some(first) if !first.is_shared => mark.is_shared && mark.key == first.key,
            Some(_) => mark.is_shared && !closed,
        };
        closed |= !mark.is_shared;
        first.get_or_insert(mark);
        holds.push(is_in);
    }
    holds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn behind(ahead: &str, count: usize) -> Rank {
        Rank::Behind { ahead: ahead.to_owned(), count, is_tie: false }
    }

    #[test]
    fn a_mutex_waits_for_the_one_before() {
        let children = names(&["c-lock-2", "a-lock-0", "b-lock-1", "zzz", "0"]);
        assert_eq!(rank(&children, "a-lock-0", Mode::Mutex, false, &[]), Rank::First);
        assert_eq!(rank(&children, "c-lock-2", Mode::Mutex, false, &[]), behind("b-lock-1", 2));
    }

    #[test]
    fn a_reader_waits_for_the_nearest_writer() {
        let children = names(&["a__WRIT__0", "b__READ__1", "c__WRIT__2", "d__READ__3", "e__READ__4", "f__WRIT__5"]);
        assert_eq!(rank(&children, "b__READ__1", Mode::Read, false, &[]), behind("a__WRIT__0", 1));
        assert_eq!(rank(&children, "e__READ__4", Mode::Read, false, &[]), behind("c__WRIT__2", 2));
        assert_eq!(rank(&children, "f__WRIT__5", Mode::Write, false, &[]), behind("e__READ__4", 5));
    }

    #[test]
    fn the_same_number_is_decided_by_who_came_first() {
        let children = names(&["a-lock-7", "b-lock-7"]);
        let tie = Rank::Behind { ahead: "b-lock-7".to_owned(), count: 1, is_tie: true };
        assert_eq!(rank(&children, "a-lock-7", Mode::Mutex, false, &[]), tie);
        assert_eq!(rank(&children, "a-lock-7", Mode::Mutex, false, &names(&["b-lock-7"])), Rank::First);
    }

    #[test]
    fn foreigners_are_named() {
        let kazoo = "509e033e5443480e924d21ab1ded34a7__lock__0000000004";
        let children = names(&[kazoo, "a-lock-0000000005"]);
        let foreign = Rank::Foreign { name: kazoo.to_owned(), family: "kazoo's lock" };
        assert_eq!(rank(&children, "a-lock-0000000005", Mode::Mutex, false, &[]), foreign);
        assert_eq!(rank(&children, "a-lock-0000000005", Mode::Mutex, true, &[]), behind(kazoo, 1));
    }

    #[test]
    fn who_is_in() {
        let writer = |key| Mark { key, is_shared: false };
        let reader = |key| Mark { key, is_shared: true };
        assert_eq!(holders([writer("1"), writer("2")]), [true, false]);
        assert_eq!(holders([reader("1"), reader("2"), writer("3"), reader("4")]), [true, true, false, false]);
        assert_eq!(holders([writer("1"), reader("1"), reader("2")]), [true, true, false]);
        assert_eq!(holders([]), [] as [bool; 0]);
    }
}
