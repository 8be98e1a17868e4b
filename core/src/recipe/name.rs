//! The names of lock nodes. This module implements Curator's naming scheme and recognizes nodes of other lock families.

use uuid::Uuid;

/// An acquire fails if its sequence number is not below this limit (rule 10). Near 2^31, servers repeat numbers or make
/// them negative. If clients compare names as text, as Curator does, two contenders could then acquire the same lock.
/// ZOOKEEPER-2944, ZOOKEEPER-3249.
pub(crate) const SEQUENCE_LIMIT: i64 = (1 << 31) - (1 << 20);

/// The mode of a contender. The mode determines the node names, and which other contenders the contender excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A mutex (Curator's `InterProcessMutex`). A mutex contender waits for all nodes ahead.
    Mutex,
    /// The read lock of Curator's `InterProcessReadWriteLock`. A reader waits for the writers ahead.
    Read,
    /// The write lock of Curator's `InterProcessReadWriteLock`. A writer waits for all nodes ahead.
    Write,
    /// A lease of Curator's `InterProcessSemaphoreV2`. A contender for leases waits until the number of nodes in the
    /// directory does not exceed the maximum number of leases.
    Lease,
}

impl Mode {
    /// Returns the part of a node name before the sequence number.
    pub const fn base(self) -> &'static str {
        match self {
            Self::Mutex => "lock-",
            Self::Read => READ,
            Self::Write => WRITE,
            Self::Lease => "lease-",
        }
    }

    /// Returns whether the mode is that of a read lock or a write lock.
    pub const fn is_read_write(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }
}

const READ: &str = "__READ__";
const WRITE: &str = "__WRIT__";
/// The texts before the sequence numbers of kazoo's locks. The first text belongs to `Lock` and `WriteLock`, and the
/// second text belongs to `ReadLock`. The flag is true if several holders can share the lock.
const KAZOO: [(&str, bool); 2] = [("__lock__", false), ("__rlock__", true)];

/// The kind of lock that a node belongs to, according to its name. Locks of different families do not exclude each
/// other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LockFamily {
    /// The mutex of zklock and Curator. The inner mutex of a semaphore has the same names.
    Mutex,
    /// The read/write lock of zklock and Curator.
    ReadWrite,
    /// The locks of kazoo.
    Kazoo,
    /// The lock recipe in the source of ZooKeeper.
    ZooKeeper,
}

impl LockFamily {
    /// Returns the name of the family for messages.
    const fn text(self) -> &'static str {
        match self {
            Self::Mutex => "Curator's mutex",
            Self::ReadWrite => "Curator's read/write lock",
            Self::Kazoo => "kazoo's lock",
            Self::ZooKeeper => "ZooKeeper's own lock recipe",
        }
    }
}

/// The kind of a child of a lock directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildKind<'a> {
    /// A contender of the same queue.
    Contender(ContenderName<'a>),
    /// A contender of another lock family. A foreign contender has no position in this queue.
    Foreign(&'static str),
    /// A child that is not a lock node.
    Unrelated,
}

/// The information in a contender's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContenderName<'a> {
    /// The sequence number as text. Like Curator, zklock compares sequence numbers as text.
    pub sequence: &'a str,
    /// True if the contender is a reader, which does not exclude other readers.
    pub is_shared: bool,
}

/// The length of Curator's protection prefix, and the number of digits of a sequence number.
pub(super) const PROTECTION_LENGTH: usize = 40;
pub(super) const DIGITS: usize = 10;

/// The length of the client prefix: `_c_` and the first half of the UUID.
const CLIENT_PREFIX_LENGTH: usize = 21;

/// Returns the prefix `_c_<uuid>-` (Curator's protection). If the reply to a create request is lost, the client finds
/// its node by this prefix. The first half of the UUID is `client_uuid_high`, which identifies the client. The second
/// half of the UUID is random for each attempt.
pub(crate) fn protected_prefix(client_uuid_high: u64, entropy: u64) -> String {
    let bytes = u128::from(client_uuid_high).wrapping_shl(64) | u128::from(entropy);
    format!("_c_{}-", uuid::Builder::from_random_bytes(bytes.to_be_bytes()).into_uuid())
}

/// Returns the client prefix of a node name, which all nodes of one client share. If the name is not protected, the
/// result is the whole name. Other libraries use a new UUID for each node, so each of their nodes seems to belong to a
/// different client.
pub(crate) fn client_prefix(name: &str) -> &str {
    match strip_protection(name) {
        Some(_) => name.get(..CLIENT_PREFIX_LENGTH).unwrap_or(name),
        None => name,
    }
}

/// Returns the kind of a child, as contenders of this mode see it. If `with_kazoo` is true, the function treats kazoo's
/// locks as contenders of the same queue.
pub fn classify(name: &str, mode: Mode, with_kazoo: bool) -> ChildKind<'_> {
    if mode == Mode::Lease {
        return match split_sequence(name, mode.base()) {
            Some((head, sequence)) if is_prefix(head) => {
                ChildKind::Contender(ContenderName { sequence, is_shared: false })
            }
            _ => ChildKind::Unrelated,
        };
    }
    let own = if mode.is_read_write() { LockFamily::ReadWrite } else { LockFamily::Mutex };
    match recognize(name) {
        Some((family, contender)) if family == own || (with_kazoo && family == LockFamily::Kazoo) => {
            ChildKind::Contender(contender)
        }
        Some((family, _)) => ChildKind::Foreign(family.text()),
        None => ChildKind::Unrelated,
    }
}

/// Recognizes a node of a lock by its whole name, and returns its family and its sequence number. All other children of
/// a lock directory are independent of the lock, for example the directory of another lock.
pub(super) fn recognize(name: &str) -> Option<(LockFamily, ContenderName<'_>)> {
    let curator =
        [(Mode::Mutex, LockFamily::Mutex), (Mode::Write, LockFamily::ReadWrite), (Mode::Read, LockFamily::ReadWrite)];
    for (mode, family) in curator {
        if let Some((head, sequence)) = split_sequence(name, mode.base()) {
            let contender = ContenderName { sequence, is_shared: mode == Mode::Read };
            return is_prefix(head).then_some((family, contender));
        }
    }
    for (mark, is_shared) in KAZOO {
        if let Some((head, sequence)) = split_sequence(name, mark) {
            let is_uuid = head.len() == 32 && head.bytes().all(|byte| byte.is_ascii_hexdigit());
            return is_uuid.then_some((LockFamily::Kazoo, ContenderName { sequence, is_shared }));
        }
    }
    let (head, sequence) = split_sequence(name, "-")?;
    let owner = head.strip_prefix("x-")?;
    let is_session = !owner.is_empty() && owner.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_session.then_some((LockFamily::ZooKeeper, ContenderName { sequence, is_shared: false }))
}

/// Splits a name into the text before `mark` and the sequence number behind it. A number has at least ten
/// digits. After 2147483647, it has a minus sign.
fn split_sequence<'a>(name: &'a str, mark: &str) -> Option<(&'a str, &'a str)> {
    let before = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let head = before.strip_suffix(mark).or_else(|| before.strip_suffix('-')?.strip_suffix(mark))?;
    let sequence = name.get(head.len() + mark.len()..)?;
    (name.len() - before.len() >= DIGITS).then_some((head, sequence))
}

/// Returns whether a text can precede the base name of a Curator node: nothing, a protection prefix, or another prefix
/// that ends with a hyphen. Some libraries write their UUID in another form.
fn is_prefix(head: &str) -> bool {
    head.is_empty() || head.ends_with('-')
}

/// Returns the sequence number in the name of a contender of this mode. Returns an empty text if the name is not that of
/// a contender.
pub fn sequence_text(name: &str, mode: Mode) -> &str {
    match classify(name, mode, false) {
        ChildKind::Contender(contender) => contender.sequence,
        _ => "",
    }
}

/// Returns the sequence number that the server appended to the requested name `asked`.
pub fn sequence_number(name: &str, asked: &str) -> Option<i64> {
    name.strip_prefix(asked)?.parse().ok()
}

/// Returns the part of a name behind the protection prefix, or `None` if the name has no prefix.
fn strip_protection(name: &str) -> Option<&str> {
    let (uuid, rest) = name.strip_prefix("_c_")?.split_at_checked(36)?;
    Uuid::try_parse(uuid).ok()?;
    rest.strip_prefix('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn contender(sequence: &str, is_shared: bool) -> ChildKind<'_> {
        ChildKind::Contender(ContenderName { sequence, is_shared })
    }

    fn seen(name: &str, mode: Mode) -> ChildKind<'_> {
        classify(name, mode, false)
    }

    #[test]
    fn prefix_is_a_random_uuid_in_curators_form() {
        let prefix = protected_prefix(0x1234_5678_9abc_def0, 0x1234_5678_9abc_def0);
        assert_eq!(prefix.len(), PROTECTION_LENGTH);
        let node = format!("{prefix}lock-0000000000");
        assert_eq!(strip_protection(&node), Some("lock-0000000000"));
        assert_eq!(node.as_bytes()[17], b'4', "a version 4 UUID: {node}");
    }

    #[test]
    fn sequence_text_follows_curators_rules() {
        let uuid = "_c_d477f9d3-4b7a-4335-82e1-a2be2be1b4b0";
        assert_eq!(seen(&format!("{uuid}-lock-0000000007"), Mode::Mutex), contender("0000000007", false));
        assert_eq!(seen("lock-0000000003", Mode::Mutex), contender("0000000003", false));
        assert_eq!(seen("sub-lock--2147483648", Mode::Mutex), contender("-2147483648", false));
        assert_eq!(seen("lock-lock-0000000012", Mode::Mutex), contender("0000000012", false));
        assert_eq!(seen(&format!("{uuid}-lease-0000000012"), Mode::Lease), contender("0000000012", false));
        for mode in [Mode::Read, Mode::Write] {
            assert_eq!(seen(&format!("{uuid}-__READ__0000000007"), mode), contender("0000000007", true));
            assert_eq!(seen(&format!("{uuid}-__WRIT__0000000007"), mode), contender("0000000007", false));
        }
    }

    #[test]
    fn other_lock_families_are_foreign() {
        for name in [
            "_c_d477f9d3-4b7a-4335-82e1-a2be2be1b4b0-__READ__0000000000",
            "d477f9d34b7a433582e1a2be2be1b4b0__lock__0000000001",
            "d477f9d34b7a433582e1a2be2be1b4b0__rlock__0000000001",
            "x-0100000714a2000f-0000000003",
            "x-72057624736235520-0000000003",
        ] {
            assert!(matches!(seen(name, Mode::Mutex), ChildKind::Foreign(_)), "{name}");
        }
        let mutex = "_c_d477f9d3-4b7a-4335-82e1-a2be2be1b4b0-lock-0000000000";
        assert_eq!(seen(mutex, Mode::Write), ChildKind::Foreign("Curator's mutex"));
    }

    #[test]
    fn kazoo_nodes_are_contenders_if_enabled() {
        let (lock, read) = (
            "509e033e5443480e924d21ab1ded34a7__lock__0000000004",
            "ad3c29a8f7504f0ea926086954ecc5c3__rlock__0000000005",
        );
        for mode in [Mode::Mutex, Mode::Read, Mode::Write] {
            assert_eq!(classify(lock, mode, true), contender("0000000004", false));
            assert_eq!(classify(read, mode, true), contender("0000000005", true));
            assert_eq!(
                classify("x-0100000714a2000f-0000000003", mode, true),
                ChildKind::Foreign("ZooKeeper's own lock recipe")
            );
            assert_eq!(classify("__lock__", mode, true), ChildKind::Unrelated);
            assert_eq!(classify("a__lock__ü234567890", mode, true), ChildKind::Unrelated);
        }
    }

    #[test]
    fn children_that_only_resemble_lock_nodes_are_unrelated() {
        let uuid = "_c_d477f9d3-4b7a-4335-82e1-a2be2be1b4b0";
        let protected = ["-lock-", "-lock-7", "-lock-000000000", "-clock-0000000001", "-__READ__", "-lock-0000000001x"];
        let protected = protected.map(|rest| format!("{uuid}{rest}"));
        let names = [
            "0",
            "a",
            "LOCK-0000000000",
            "leases",
            "locks",
            "x-y-0000000001",
            "x--",
            "x-1-12",
            "_c_lock",
            "block-0",
            "block-0000000001",
            "clock-",
            "clock-0000000001",
            "lock-",
            "lock-7",
            "lock-00000000a1",
            "lock--214748364",
            "lock-files",
            "__lock__",
            "__lock__a",
            "__lock__0000000001",
            "a__rlock__0000000001",
            "x__READ__1",
            "x-__READ__",
            "x__READ__0000000001",
            "__READ____WRIT__1",
            "x-__WRIT__-1",
            "x-0100-",
            "lease-0",
            "0000000001",
            "-",
            "",
            "x-0100-00000000é1",
        ];
        for name in names.into_iter().chain(protected.iter().map(String::as_str)) {
            for mode in [Mode::Mutex, Mode::Read, Mode::Write, Mode::Lease] {
                assert_eq!(seen(name, mode), ChildKind::Unrelated, "{name}");
                assert_eq!(classify(name, mode, true), ChildKind::Unrelated, "{name}");
                assert_eq!(sequence_text(name, mode), "");
            }
        }
    }

    #[test]
    fn sequence_number_is_parsed_behind_name_prefix() {
        assert_eq!(sequence_number("p-lock-0000000042", "p-lock-"), Some(42));
        assert_eq!(sequence_number("p-lock--2147483648", "p-lock-"), Some(-2_147_483_648));
        assert_eq!(sequence_number("q-lock-0000000042", "p-lock-"), None);
        assert_eq!(sequence_number("p-lock-", "p-lock-"), None);
    }
}
