//! A queue in its order, kept up to date name by name: what [`rank`](super::rank) finds in a list, without one.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::name::{self, Kind, Mode, classify};
use super::rank::Rank;
use crate::session::Subscriber;

/// The children of one directory that take part in locking.
#[derive(Debug)]
pub(super) struct Line {
    mode: Mode,
    with_kazoo: bool,
    /// By sequence number; those that share one by name.
    groups: BTreeMap<Box<str>, Vec<Mate>>,
    foreign: BTreeMap<Box<str>, &'static str>,
    /// How many nodes each client has, as far as names tell.
    kins: BTreeMap<Box<str>, usize>,
}

/// A contender in it.
#[derive(Debug)]
pub(super) struct Mate {
    name: Box<str>,
    is_shared: bool,
    /// Who wants to hear of its end.
    pub(super) followers: Vec<Subscriber>,
}

impl Line {
    /// An empty one, for contenders of this mode and those that queue with them.
    pub(super) fn new(mode: Mode, with_kazoo: bool) -> Self {
        // Readers and writers stand in one line.
        let mode = if mode.is_read_write() { Mode::Read } else { mode };
        Self { mode, with_kazoo, groups: BTreeMap::new(), foreign: BTreeMap::new(), kins: BTreeMap::new() }
    }

    /// Whether it is a line of the same contenders.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        (self.mode, self.with_kazoo) == (other.mode, other.with_kazoo)
    }

    /// Nobody is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.foreign.is_empty()
    }

    /// How many clients have nodes in it, at most: of others than zklock each node may be another's.
    pub(super) fn sessions(&self) -> usize {
        self.kins.len()
    }

    /// Takes a child in, and tells what it is; `None` if it is there already.
    pub(super) fn insert<'a>(&mut self, name: &'a str) -> Option<Kind<'a>> {
        let kind = classify(name, self.mode, self.with_kazoo);
        match kind {
            Kind::Plain => return Some(kind),
            Kind::Foreign(family) => {
                if self.foreign.insert(name.into(), family).is_some() {
                    return None;
                }
            }
            Kind::Contender(mark) => {
                let mate = Mate { name: name.into(), is_shared: mark.is_shared, followers: Vec::new() };
                match self.groups.get_mut(mark.key) {
                    None => {
                        self.groups.insert(mark.key.into(), vec![mate]);
                    }
                    Some(group) => {
                        let at = group.binary_search_by(|mate| (*mate.name).cmp(name)).err()?;
                        group.insert(at, mate);
                    }
                }
            }
        }
        let kin = name::kin(name);
        match self.kins.get_mut(kin) {
            Some(count) => *count += 1,
            None => {
                self.kins.insert(kin.into(), 1);
            }
        }
        Some(kind)
    }

    /// Takes a child out, and tells who wanted to hear of it; `None` if it is not there. Of what takes no part in locking nothing is
    /// known.
    pub(super) fn remove(&mut self, name: &str) -> Option<Vec<Subscriber>> {
        let followers = match classify(name, self.mode, self.with_kazoo) {
            Kind::Plain => return Some(Vec::new()),
            Kind::Foreign(_) => self.foreign.remove(name).map(|_| Vec::new())?,
            Kind::Contender(mark) => self.remove_mate(mark.key, name)?,
        };
        let kin = name::kin(name);
        if let Some(count) = self.kins.get_mut(kin) {
            *count -= 1;
            if *count == 0 {
                self.kins.remove(kin);
            }
        }
        Some(followers)
    }

    fn remove_mate(&mut self, key: &str, name: &str) -> Option<Vec<Subscriber>> {
        let group = self.groups.get_mut(key)?;
        let at = group.iter().position(|mate| &*mate.name == name)?;
        let Mate { followers, .. } = group.remove(at);
        if group.is_empty() {
            self.groups.remove(key);
        }
        Some(followers)
    }

    /// Whether this contender is in it.
    pub(super) fn contains(&self, name: &str) -> bool {
        let Kind::Contender(mark) = classify(name, self.mode, self.with_kazoo) else { return false };
        self.groups.get(mark.key).is_some_and(|group| group.iter().any(|mate| &*mate.name == name))
    }

    /// A contender in it.
    pub(super) fn mate_mut(&mut self, name: &str) -> Option<&mut Mate> {
        let Kind::Contender(mark) = classify(name, self.mode, self.with_kazoo) else { return None };
        self.groups.get_mut(mark.key)?.iter_mut().find(|mate| &*mate.name == name)
    }

    /// Whether this node has taken the number of another, that excludes others.
    pub(super) fn is_nested(&self, name: &str) -> bool {
        let group = self.groups.get(name::number(name, self.mode));
        group.into_iter().flatten().any(|mate| !mate.is_shared && &*mate.name != name)
    }

    /// Finds the place of `own`; see [`rank`](super::rank::rank).
    pub(super) fn rank(&self, own: &str, mode: Mode, later: &[String]) -> Rank {
        if let Some((name, family)) = self.foreign.first_key_value() {
            return Rank::Foreign { name: name.to_string(), family };
        }
        let Kind::Contender(own_mark) = classify(own, self.mode, self.with_kazoo) else { return Rank::First };
        let is_ahead = |key: &str, mate: &Mate| {
            key != own_mark.key || (&*mate.name != own && !later.iter().any(|later| **later == *mate.name))
        };
        let matters = |mate: &Mate| mode != Mode::Read || !mate.is_shared;
        let mut ahead = self.groups.range::<str, _>((Bound::Unbounded, Bound::Included(own_mark.key))).rev().flat_map(
            |(key, group)| {
                let ahead = group.iter().rev().filter(move |mate| matters(mate) && is_ahead(key, mate));
                ahead.map(move |mate| (key, mate))
            },
        );
        match ahead.next() {
            None => Rank::First,
            Some((key, nearest)) => {
                let (name, is_tie) = (nearest.name.to_string(), **key == *own_mark.key);
                Rank::Behind { ahead: name, count: 1 + ahead.count(), is_tie }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::rank::rank;
    use super::*;

    fn names() -> impl Strategy<Value = Vec<String>> {
        let name = (0..3u8, prop::sample::select(vec!["lock-", "__READ__", "__WRIT__", "__lock__", "x"]), 0..6u8);
        let name = name.prop_map(|(head, base, number)| format!("{head}{base}{number:010}"));
        prop::collection::btree_set(name, 0..12).prop_map(|names| names.into_iter().collect())
    }

    proptest! {
        #[test]
        fn finds_what_is_found_in_a_list(
            children in names(), gone in names(), with_kazoo: bool, mode in prop::sample::select(vec![Mode::Mutex, Mode::Read, Mode::Write]),
            later in names(),
        ) {
            let mut line = Line::new(mode, with_kazoo);
            for name in children.iter().chain(&gone) {
                let was_there = line.contains(name) || line.foreign.contains_key(&**name);
                prop_assert_eq!(line.insert(name).is_none(), was_there);
            }
            for name in gone.iter().filter(|name| !children.contains(name)) {
                prop_assert!(line.remove(name).is_some());
            }
            let is_foreign = |rank: &Rank| matches!(rank, Rank::Foreign { .. });
            for own in &children {
                let (kept, listed) = (line.rank(own, mode, &later), rank(&children, own, mode, with_kazoo, &later));
                prop_assert!(kept == listed || (is_foreign(&kept) && is_foreign(&listed)), "{kept:?} {listed:?}");
            }
            for name in &children {
                prop_assert!(line.remove(name).is_some());
            }
            prop_assert!(line.is_empty() && line.sessions() == 0);
        }
    }

    #[test]
    fn counts_clients_and_not_nodes() {
        let mut line = Line::new(Mode::Mutex, false);
        for (kin, entropy) in [(1, 7), (1, 8), (2, 9)] {
            line.insert(&format!("{}lock-000000000{entropy}", name::protected_prefix(kin, entropy)));
        }
        assert_eq!(line.sessions(), 2);
        line.insert("_c_11111111-1111-1111-1111-111111111111-lock-0000000012");
        line.insert("anybody-lock-0000000013");
        assert_eq!(line.sessions(), 4);
    }
}
