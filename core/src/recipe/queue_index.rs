//! An index of the nodes in a queue. The client updates the index whenever a node is created or deleted. The index
//! computes the same ranks as [`rank`](super::rank), but does not need a list.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::name::{self, ChildKind, ContenderName, Mode, classify};
use super::rank::{Rank, rank_among};
use crate::session::MachineId;

/// The children of one directory that take part in locking.
#[derive(Debug)]
pub(super) struct QueueIndex {
    mode: Mode,
    with_kazoo: bool,
    /// The contenders, sorted by sequence number. Contenders with the same sequence number are sorted by name.
    by_sequence: BTreeMap<Box<str>, Vec<QueueEntry>>,
    foreign: BTreeMap<Box<str>, &'static str>,
    /// The number of nodes of each client. The key is the client prefix of the node names.
    nodes_per_client: BTreeMap<Box<str>, usize>,
    size: usize,
}

/// The memory of a node in addition to its name, in bytes.
const OVERHEAD: usize = 128;

/// One contender in the queue.
#[derive(Debug)]
pub(super) struct QueueEntry {
    name: Box<str>,
    is_shared: bool,
    /// The state machines that the client must notify when the node is deleted.
    pub(super) subscribers: Vec<MachineId>,
}

impl QueueIndex {
    /// Creates an empty index for contenders of this mode, and for contenders of modes that share a queue with this
    /// mode.
    pub(super) fn new(mode: Mode, with_kazoo: bool) -> Self {
        // Readers and writers share one queue.
        let mode = if mode.is_read_write() { Mode::Read } else { mode };
        Self {
            mode,
            with_kazoo,
            by_sequence: BTreeMap::new(),
            foreign: BTreeMap::new(),
            nodes_per_client: BTreeMap::new(),
            size: 0,
        }
    }

    /// Returns about how much memory the index needs, in bytes.
    pub(super) const fn size(&self) -> usize {
        self.size
    }

    /// Returns whether both indexes contain the same kinds of contenders.
    pub(super) fn has_same_mode(&self, other: &Self) -> bool {
        (self.mode, self.with_kazoo) == (other.mode, other.with_kazoo)
    }

    /// Returns whether the directory contains no contender and no foreign node.
    pub(super) fn is_empty(&self) -> bool {
        self.by_sequence.is_empty() && self.foreign.is_empty()
    }

    /// Returns an upper bound of the number of clients with nodes in the directory. The index treats each node of
    /// another library as a separate client.
    pub(super) fn client_count(&self) -> usize {
        self.nodes_per_client.len()
    }

    /// Adds a child to the index. Returns the kind of the child, or `None` if the index already contains the child.
    pub(super) fn insert<'a>(&mut self, name: &'a str) -> Option<ChildKind<'a>> {
        let kind = classify(name, self.mode, self.with_kazoo);
        match kind {
            ChildKind::Unrelated => return Some(kind),
            ChildKind::Foreign(family) => {
                if self.foreign.insert(name.into(), family).is_some() {
                    return None;
                }
            }
            ChildKind::Contender(contender) => {
                let entry = QueueEntry { name: name.into(), is_shared: contender.is_shared, subscribers: Vec::new() };
                match self.by_sequence.get_mut(contender.sequence) {
                    None => {
                        self.by_sequence.insert(contender.sequence.into(), vec![entry]);
                    }
                    Some(group) => {
                        let at = group.binary_search_by(|entry| (*entry.name).cmp(name)).err()?;
                        group.insert(at, entry);
                    }
                }
            }
        }
        self.size += OVERHEAD + name.len();
        let client_prefix = name::client_prefix(name);
        match self.nodes_per_client.get_mut(client_prefix) {
            Some(count) => *count += 1,
            None => {
                self.nodes_per_client.insert(client_prefix.into(), 1);
            }
        }
        Some(kind)
    }

    /// Removes a child from the index. Returns the subscribers of the child, or `None` if the index does not contain
    /// the child. The index does not store children that take no part in locking, so it returns no subscribers for such
    /// children.
    pub(super) fn remove(&mut self, name: &str) -> Option<Vec<MachineId>> {
        let subscribers = match classify(name, self.mode, self.with_kazoo) {
            ChildKind::Unrelated => return Some(Vec::new()),
            ChildKind::Foreign(_) => self.foreign.remove(name).map(|_| Vec::new())?,
            ChildKind::Contender(contender) => self.remove_entry(contender.sequence, name)?,
        };
        self.size = self.size.saturating_sub(OVERHEAD + name.len());
        let client_prefix = name::client_prefix(name);
        if let Some(count) = self.nodes_per_client.get_mut(client_prefix) {
            *count -= 1;
            if *count == 0 {
                self.nodes_per_client.remove(client_prefix);
            }
        }
        Some(subscribers)
    }

    fn remove_entry(&mut self, key: &str, name: &str) -> Option<Vec<MachineId>> {
        let group = self.by_sequence.get_mut(key)?;
        let at = group.iter().position(|entry| &*entry.name == name)?;
        let QueueEntry { subscribers, .. } = group.remove(at);
        if group.is_empty() {
            self.by_sequence.remove(key);
        }
        Some(subscribers)
    }

    /// Returns whether the index contains this contender.
    pub(super) fn contains(&self, name: &str) -> bool {
        let ChildKind::Contender(contender) = classify(name, self.mode, self.with_kazoo) else { return false };
        self.by_sequence.get(contender.sequence).is_some_and(|group| group.iter().any(|entry| &*entry.name == name))
    }

    pub(super) fn entry_mut(&mut self, name: &str) -> Option<&mut QueueEntry> {
        let ChildKind::Contender(contender) = classify(name, self.mode, self.with_kazoo) else { return None };
        self.by_sequence.get_mut(contender.sequence)?.iter_mut().find(|entry| &*entry.name == name)
    }

    /// Returns whether a read node belongs to a nested read lock. In this case, another node that excludes other
    /// contenders has the same sequence number.
    pub(super) fn is_nested(&self, name: &str) -> bool {
        let group = self.by_sequence.get(name::sequence_text(name, self.mode));
        group.into_iter().flatten().any(|entry| !entry.is_shared && &*entry.name != name)
    }

    /// Returns the rank of the node `own`. See [`rank`](super::rank::rank).
    pub(super) fn rank(&self, own: &str, mode: Mode, ties_behind: &[String]) -> Rank {
        if let Some((name, family)) = self.foreign.first_key_value() {
            return Rank::Foreign { name: name.to_string(), family };
        }
        let ChildKind::Contender(own_contender) = classify(own, self.mode, self.with_kazoo) else { return Rank::First };
        let up_to_own = self.by_sequence.range::<str, _>((Bound::Unbounded, Bound::Included(own_contender.sequence)));
        let contenders = up_to_own.flat_map(|(sequence, group)| {
            group.iter().map(|entry| (ContenderName { sequence, is_shared: entry.is_shared }, &*entry.name))
        });
        rank_among(contenders, (own_contender, own), mode, ties_behind)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::rank::rank;
    use super::*;

    fn names() -> impl Strategy<Value = Vec<String>> {
        let name = (0..3u8, prop::sample::select(vec!["-lock-", "-__READ__", "-__WRIT__", "__lock__", "x"]), 0..6u8);
        let name = name.prop_map(|(head, base, number)| format!("{head:032x}{base}{number:010}"));
        prop::collection::btree_set(name, 0..12).prop_map(|names| names.into_iter().collect())
    }

    proptest! {
        #[test]
        fn queue_index_ranks_like_a_list(
            children in names(), gone in names(), with_kazoo: bool, mode in prop::sample::select(vec![Mode::Mutex, Mode::Read, Mode::Write]),
            ties_behind in names(),
        ) {
            let mut index = QueueIndex::new(mode, with_kazoo);
            for name in children.iter().chain(&gone) {
                let was_there = index.contains(name) || index.foreign.contains_key(&**name);
                prop_assert_eq!(index.insert(name).is_none(), was_there);
            }
            for name in gone.iter().filter(|name| !children.contains(name)) {
                prop_assert!(index.remove(name).is_some());
            }
            let is_foreign = |rank: &Rank| matches!(rank, Rank::Foreign { .. });
            for own in &children {
                let (kept, listed) = (index.rank(own, mode, &ties_behind), rank(&children, own, mode, with_kazoo, &ties_behind));
                prop_assert!(kept == listed || (is_foreign(&kept) && is_foreign(&listed)), "{kept:?} {listed:?}");
            }
            for name in &children {
                prop_assert!(index.remove(name).is_some());
            }
            prop_assert!(index.is_empty() && index.client_count() == 0);
        }
    }

    #[test]
    fn counts_clients_and_not_nodes() {
        let mut index = QueueIndex::new(Mode::Mutex, false);
        for (client_uuid_high, entropy) in [(1, 7), (1, 8), (2, 9)] {
            index.insert(&format!("{}lock-000000000{entropy}", name::protected_prefix(client_uuid_high, entropy)));
        }
        assert_eq!(index.client_count(), 2);
        index.insert("_c_11111111-1111-1111-1111-111111111111-lock-0000000012");
        index.insert("anybody-lock-0000000013");
        assert_eq!(index.client_count(), 4);
    }
}
