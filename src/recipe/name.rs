//! The names of lock nodes: Curator's wire format, and who else may stand in the same directory.

use uuid::Uuid;

/// Sequence numbers from here on are refused (rule 10): near 2^31 servers repeat them or turn negative, and clients that
/// compare names as text, as Curator does, would let two in. ZOOKEEPER-2944, ZOOKEEPER-3249.
pub const SEQUENCE_LIMIT: i64 = (1 << 31) - (1 << 20);

/// How a contender stands in its directory: what its nodes are called, and whom they exclude.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Waits for everybody ahead, and excludes everybody behind: Curator's `InterProcessMutex`.
    Mutex,
    /// Waits for the writers ahead, in Curator's `InterProcessReadWriteLock`.
    Read,
    /// Waits for everybody ahead, in the same.
    Write,
    /// Is in while the directory holds no more than so many nodes: the leases of Curator's `InterProcessSemaphoreV2`.
    Lease,
}

impl Mode {
    /// What stands in a node's name before its sequence number.
    pub const fn base(self) -> &'static str {
        match self {
            Self::Mutex => "lock-",
            Self::Read => READ,
            Self::Write => WRITE,
            Self::Lease => "lease-",
        }
    }

    /// Whether it is one half of a read/write lock.
    pub const fn is_read_write(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }
}

const READ: &str = "__READ__";
const WRITE: &str = "__WRIT__";
/// kazoo's `Lock` and `WriteLock`, and its `ReadLock`.
const KAZOO: [(&str, bool); 2] = [("__lock__", false), ("__rlock__", true)];

/// What a node name in the directory is to those who queue there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A contender of the same queue.
    Contender(Mark<'a>),
    /// A contender of another lock family, whose order and ours know nothing of each other.
    Foreign(&'static str),
    /// Nothing that takes part in locking.
    Plain,
}

/// Where a contender stands, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark<'a> {
    /// Compared as text, as Curator does.
    pub key: &'a str,
    /// A reader: it lets other readers in.
    pub is_shared: bool,
}

/// How long the prefix is that protects a name, and how many digits the server puts behind the name.
pub(super) const PREFIX: usize = 40;
pub(super) const DIGITS: usize = 10;

/// So much of a protected name is the same in all nodes of one client: `_c_` and half of the UUID.
const KIN: usize = 21;

/// The prefix that makes a node findable although the reply to its creation was lost: `_c_<uuid>-` (Curator's protection). The first
/// half of the UUID is `kin`, by which clients tell whose nodes belong together; the second is fresh for each attempt.
pub fn protected_prefix(kin: u64, entropy: u64) -> String {
    let bytes = u128::from(kin).wrapping_shl(64) | u128::from(entropy);
    format!("_c_{}-", uuid::Builder::from_random_bytes(bytes.to_be_bytes()).into_uuid())
}

/// What the names of one client's nodes have in common; of a name that is not protected, all of it. Other libraries' UUIDs are random as
/// a whole, so there each node counts as another client's.
pub fn kin(name: &str) -> &str {
    match protected(name) {
        Some(_) => name.get(..KIN).unwrap_or(name),
        None => name,
    }
}

/// Tells what a child of the directory is to contenders of this mode. `with_kazoo`: kazoo's locks queue along.
pub fn classify(name: &str, mode: Mode, with_kazoo: bool) -> Kind<'_> {
    if let Some(mark) = mark(name, mode) {
        return Kind::Contender(mark);
    }
    if with_kazoo && let Some(mark) = kazoo_mark(name) {
        return Kind::Contender(mark);
    }
    match family(name) {
        Some(family) => Kind::Foreign(family),
        None => Kind::Plain,
    }
}

/// Curator's order. It orders mutexes by the text behind the last `lock-`, readers and writers by that behind the last `__READ__` and
/// then `__WRIT__`; a name with `__WRIT__` is a writer's. Whatever comes before does not matter.
fn mark(name: &str, mode: Mode) -> Option<Mark<'_>> {
    if !mode.is_read_write() {
        return Some(Mark { key: name.rsplit_once(mode.base())?.1, is_shared: false });
    }
    let behind = |text: &'static str| name.rsplit_once(text).map(|(_, key)| key);
    match behind(WRITE) {
        Some(key) => Some(Mark { key, is_shared: false }),
        None => Some(Mark { key: behind(READ)?, is_shared: true }),
    }
}

/// The sequence number in the name of a node that stands like this; empty where there is none.
pub fn number(name: &str, mode: Mode) -> &str {
    mark(name, mode).map_or("", |mark| mark.key)
}

/// kazoo's, as kazoo recognises them. Its sequence numbers come from the same counter of the directory as ours.
fn kazoo_mark(name: &str) -> Option<Mark<'_>> {
    let (_, is_shared) = KAZOO.into_iter().find(|(marker, _)| name.contains(marker))?;
    let (head, key) = name.split_at_checked(name.len().checked_sub(10)?)?;
    let is_numbered = head.ends_with("lock__") && key.bytes().all(|b| b.is_ascii_digit());
    is_numbered.then_some(Mark { key, is_shared })
}

/// The number that the server gave a sequential node, from the name it was asked for.
pub fn sequence(name: &str, asked: &str) -> Option<i64> {
    name.strip_prefix(asked)?.parse().ok()
}

/// The lock family whose nodes are called like this.
fn family(name: &str) -> Option<&'static str> {
    if name.contains(READ) || name.contains(WRITE) {
        return Some("Curator's read/write lock");
    }
    if protected(name).is_some_and(|rest| rest.starts_with("lock-")) {
        return Some("Curator's mutex");
    }
    if KAZOO.iter().any(|(marker, _)| name.contains(marker)) {
        return Some("kazoo's lock");
    }
    let (head, digits) = name.rsplit_once('-')?;
    let owner = head.strip_prefix("x-")?;
    let numbered = digits.len() == 10 && digits.bytes().all(|b| b.is_ascii_digit());
    let owned = !owner.is_empty() && owner.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    (numbered && owned).then_some("ZooKeeper's own lock recipe")
}

/// What follows the protection prefix, where there is one.
fn protected(name: &str) -> Option<&str> {
    let (uuid, rest) = name.strip_prefix("_c_")?.split_at_checked(36)?;
    Uuid::try_parse(uuid).ok()?;
    rest.strip_prefix('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn contender(key: &str, is_shared: bool) -> Kind<'_> {
        Kind::Contender(Mark { key, is_shared })
    }

    fn seen(name: &str, mode: Mode) -> Kind<'_> {
        classify(name, mode, false)
    }

    #[test]
    fn prefix_is_a_random_uuid_in_curators_form() {
        let prefix = protected_prefix(0x1234_5678_9abc_def0, 0x1234_5678_9abc_def0);
        assert_eq!(prefix.len(), PREFIX);
        let node = format!("{prefix}lock-0000000000");
        assert_eq!(protected(&node), Some("lock-0000000000"));
        assert_eq!(node.as_bytes()[17], b'4', "a version 4 UUID: {node}");
    }

    #[test]
    fn order_is_curators() {
        let uuid = "_c_d477f9d3-4b7a-4335-82e1-a2be2be1b4b0";
        assert_eq!(seen(&format!("{uuid}-lock-0000000007"), Mode::Mutex), contender("0000000007", false));
        assert_eq!(seen("sub-lock-3", Mode::Mutex), contender("3", false));
        assert_eq!(seen("lock-lock-12", Mode::Mutex), contender("12", false));
        for mode in [Mode::Read, Mode::Write] {
            assert_eq!(seen(&format!("{uuid}-__READ__0000000007"), mode), contender("0000000007", true));
            assert_eq!(seen(&format!("{uuid}-__WRIT__0000000007"), mode), contender("0000000007", false));
            assert_eq!(seen("__READ____WRIT__1", mode), contender("1", false));
            assert_eq!(seen("__READ__", mode), contender("", true));
        }
    }

    #[test]
    fn others_are_known() {
        for name in [
            "_c_d477f9d3-4b7a-4335-82e1-a2be2be1b4b0-__READ__0000000000",
            "d477f9d34b7a433582e1a2be2be1b4b0__lock__0000000001",
            "d477f9d34b7a433582e1a2be2be1b4b0__rlock__0000000001",
            "x-0100000714a2000f-0000000003",
            "x-72057624736235520-0000000003",
        ] {
            assert!(matches!(seen(name, Mode::Mutex), Kind::Foreign(_)), "{name}");
        }
        let mutex = "_c_d477f9d3-4b7a-4335-82e1-a2be2be1b4b0-lock-0000000000";
        assert_eq!(seen(mutex, Mode::Write), Kind::Foreign("Curator's mutex"));
    }

    #[test]
    fn kazoo_queues_along_where_it_is_asked_for() {
        let (lock, read) = (
            "509e033e5443480e924d21ab1ded34a7__lock__0000000004",
            "ad3c29a8f7504f0ea926086954ecc5c3__rlock__0000000005",
        );
        for mode in [Mode::Mutex, Mode::Read, Mode::Write] {
            assert_eq!(classify(lock, mode, true), contender("0000000004", false));
            assert_eq!(classify(read, mode, true), contender("0000000005", true));
            assert_eq!(
                classify("x-0100000714a2000f-0000000003", mode, true),
                Kind::Foreign("ZooKeeper's own lock recipe")
            );
            assert_eq!(classify("__lock__", mode, true), Kind::Foreign("kazoo's lock"));
            assert_eq!(classify("a__lock__ü234567890", mode, true), Kind::Foreign("kazoo's lock"));
        }
    }

    #[test]
    fn plain_children_are_nobody() {
        for name in ["0", "a", "LOCK-0000000000", "leases", "locks", "x-y-0000000001", "x--", "x-1-12", "_c_lock"] {
            assert_eq!(seen(name, Mode::Mutex), Kind::Plain, "{name}");
            assert_eq!(seen(name, Mode::Read), Kind::Plain, "{name}");
        }
    }

    #[test]
    fn sequences() {
        assert_eq!(sequence("p-lock-0000000042", "p-lock-"), Some(42));
        assert_eq!(sequence("p-lock--2147483648", "p-lock-"), Some(-2_147_483_648));
        assert_eq!(sequence("q-lock-0000000042", "p-lock-"), None);
        assert_eq!(sequence("p-lock-", "p-lock-"), None);
    }
}
