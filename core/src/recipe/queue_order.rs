//! The order of a queue, for an observer that takes no part in the queue. An observer knows only the names of the
//! nodes, and does not know which kind of lock a directory belongs to. This module therefore recognizes the nodes of
//! all known lock families.

use super::name::{ChildKind, ContenderName, LockFamily, Mode, classify, recognize};
use super::rank::holders;

/// A lock node, as its name and the names of its siblings describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueNode {
    /// The name of the node, without the path of its directory.
    pub name: String,
    /// The kind of lock.
    pub family: LockFamily,
    /// The kind of queue in which the participant waits. If kazoo's nodes wait in the same queue as Curator's nodes,
    /// this is the kind of Curator's nodes. If there are no Curator nodes, it is `ReadWrite`. In all other cases, the
    /// value is the same as `family`.
    pub queue: LockFamily,
    /// True if the participant shares the lock: it is a reader.
    pub is_shared: bool,
    /// True if the participant holds the lock, as far as its own family is concerned.
    pub holds: bool,
}

impl QueueNode {
    /// Returns the lock nodes among the children of a directory, in the order of their sequence numbers. If
    /// `with_kazoo` is true, kazoo's nodes wait in the same queue as Curator's nodes.
    ///
    /// The names do not show which of two nodes with the same sequence number is older. In this case, a reader follows
    /// a writer, because the reader belongs to a nested read lock.
    pub fn order<'n>(names: impl IntoIterator<Item = &'n str>, with_kazoo: bool) -> Vec<Self> {
        let parsed = names.into_iter().filter_map(|name| recognize(name).map(|(family, mark)| (mark, family, name)));
        let mut found: Vec<(ContenderName<'_>, LockFamily, &str)> = parsed.collect();
        found.sort_unstable();
        let queues: Vec<LockFamily> = if with_kazoo {
            let is_mutex = found.iter().any(|(_, family, _)| *family == LockFamily::Mutex);
            let joined = if is_mutex { LockFamily::Mutex } else { LockFamily::ReadWrite };
            let queue_of = |family| if family == LockFamily::Kazoo { joined } else { family };
            found.iter().map(|(_, family, _)| queue_of(*family)).collect()
        } else {
            found.iter().map(|(_, family, _)| *family).collect()
        };
        let mut nodes: Vec<Self> = found
            .iter()
            .zip(&queues)
            .map(|(&(mark, family, name), &queue)| Self {
                name: name.to_owned(),
                family,
                queue,
                is_shared: mark.is_shared,
                holds: false,
            })
            .collect();
        for queue in [LockFamily::Mutex, LockFamily::ReadWrite, LockFamily::Kazoo, LockFamily::ZooKeeper] {
            let marks = found.iter().zip(&queues).filter(|(_, of)| **of == queue).map(|((mark, ..), _)| *mark);
            let holds = holders(marks.collect::<Vec<_>>());
            for (node, holds) in nodes.iter_mut().filter(|node| node.queue == queue).zip(holds) {
                node.holds = holds;
            }
        }
        nodes
    }

    /// Returns whether the name is that of a lease of a semaphore.
    pub fn is_lease(name: &str) -> bool {
        matches!(classify(name, Mode::Lease, false), ChildKind::Contender(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KAZOO: &str = "509e033e5443480e924d21ab1ded34a7__lock__0000000004";

    fn shown(names: &[&str], with_kazoo: bool) -> Vec<(String, LockFamily, bool)> {
        let nodes = QueueNode::order(names.iter().copied(), with_kazoo);
        nodes.into_iter().map(|node| (node.name, node.family, node.holds)).collect()
    }

    #[test]
    fn each_family_has_its_own_holder_unless_kazoo_waits_in_the_same_queue() {
        let (first, second) = ("b-lock-0000000003", "a-lock-0000000005");
        let names = [second, KAZOO, "x-0100000714a2000f-0000000006", first, "sub", "lock-files"];
        let own = |holds| (KAZOO.to_owned(), LockFamily::Kazoo, holds);
        let expected = |kazoo| {
            vec![
                (first.to_owned(), LockFamily::Mutex, true),
                own(kazoo),
                (second.to_owned(), LockFamily::Mutex, false),
                ("x-0100000714a2000f-0000000006".to_owned(), LockFamily::ZooKeeper, true),
            ]
        };
        assert_eq!(shown(&names, false), expected(true));
        assert_eq!(shown(&names, true), expected(false));
        let queues = |names: &[&str], with_kazoo| -> Vec<LockFamily> {
            QueueNode::order(names.iter().copied(), with_kazoo).iter().map(|node| node.queue).collect()
        };
        let (mutex, kazoo, zookeeper) = (LockFamily::Mutex, LockFamily::Kazoo, LockFamily::ZooKeeper);
        assert_eq!(queues(&names, false), [mutex, kazoo, mutex, zookeeper]);
        assert_eq!(queues(&names, true), [mutex, mutex, mutex, zookeeper]);
        assert_eq!((queues(&[KAZOO], false), queues(&[KAZOO], true)), (vec![kazoo], vec![LockFamily::ReadWrite]));
    }

    #[test]
    fn readers_hold_up_to_the_first_writer_and_a_nested_read_follows_its_writer() {
        let names = ["a-__READ__0000000002", "b-__READ__0000000001", "c-__WRIT__0000000003", "d-__READ__0000000004"];
        let holds: Vec<bool> = QueueNode::order(names, false).iter().map(|node| node.holds).collect();
        assert_eq!(holds, [true, true, false, false]);
        let nodes = QueueNode::order(["a-__READ__0000000001", "b-__WRIT__0000000001"], false);
        let names: Vec<(bool, bool)> = nodes.iter().map(|node| (node.is_shared, node.holds)).collect();
        assert_eq!(names, [(false, true), (true, true)]);
    }

    #[test]
    fn leases_are_recognized_by_name() {
        assert!(QueueNode::is_lease("_c_d477f9d3-4b7a-4335-82e1-a2be2be1b4b0-lease-0000000000"));
        assert!(!QueueNode::is_lease("lease-holders") && !QueueNode::is_lease("a-lock-0000000001"));
    }
}
