//! The names of lock nodes: Curator's wire format, and who else may stand in the same directory.

use uuid::Uuid;

/// Sequence numbers from here on are refused (rule 10): near 2^31 servers repeat them or turn negative, and clients that
/// compare names as text, as Curator does, would let two in. ZOOKEEPER-2944, ZOOKEEPER-3249.
pub const SEQUENCE_LIMIT: i64 = (1 << 31) - (1 << 20);

/// What a node name in the queue's directory is to a queue whose nodes are called `base`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A contender of this queue. Curator orders by the text behind the last `base`, compared as text.
    Contender(&'a str),
    /// A contender of another lock family, whose order and ours know nothing of each other.
    Foreign(&'static str),
    /// Nothing that takes part in locking.
    Plain,
}

/// The prefix that makes a node findable although the reply to its creation was lost: `_c_<uuid>-` (Curator's protection).
pub fn protected_prefix(entropy: u128) -> String {
    format!("_c_{}-", uuid::Builder::from_random_bytes(entropy.to_ne_bytes()).into_uuid())
}

/// Tells what a child of the directory is.
pub fn classify<'a>(name: &'a str, base: &str) -> Kind<'a> {
    if let Some((_, key)) = name.rsplit_once(base) {
        return Kind::Contender(key);
    }
    match family(name) {
        Some(family) => Kind::Foreign(family),
        None => Kind::Plain,
    }
}

/// The number that the server gave a sequential node, from the name it was asked for.
pub fn sequence(name: &str, asked: &str) -> Option<i64> {
    name.strip_prefix(asked)?.parse().ok()
}

/// The lock family whose nodes are called like this.
fn family(name: &str) -> Option<&'static str> {
    if name.contains("__READ__") || name.contains("__WRIT__") {
        return Some("Curator's read/write lock");
    }
    if protected(name).is_some_and(|rest| rest.starts_with("lock-")) {
        return Some("Curator's mutex");
    }
    if name.contains("__lock__") || name.contains("__rlock__") {
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

    const MUTEX: &str = "lock-";

    #[test]
    fn prefix_is_a_random_uuid_in_curators_form() {
        let prefix = protected_prefix(0x1234_5678_9abc_def0_1234_5678_9abc_def0);
        assert_eq!(prefix.len(), 40);
        let node = format!("{prefix}lock-0000000000");
        assert_eq!(protected(&node), Some("lock-0000000000"));
        assert_eq!(node.as_bytes()[17], b'4', "a version 4 UUID: {node}");
    }

    #[test]
    fn order_is_curators() {
        assert_eq!(
            classify("_c_d477f9d3-4b7a-4335-82e1-a2be2be1b4b0-lock-0000000007", MUTEX),
            Kind::Contender("0000000007")
        );
        assert_eq!(classify("sub-lock-3", MUTEX), Kind::Contender("3"));
        assert_eq!(classify("lock-lock-12", MUTEX), Kind::Contender("12"));
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
            assert!(matches!(classify(name, MUTEX), Kind::Foreign(_)), "{name}");
        }
        let mutex = "_c_d477f9d3-4b7a-4335-82e1-a2be2be1b4b0-lock-0000000000";
        assert_eq!(classify(mutex, "__WRIT__"), Kind::Foreign("Curator's mutex"));
    }

    #[test]
    fn plain_children_are_nobody() {
        for name in ["0", "a", "LOCK-0000000000", "leases", "locks", "x-y-0000000001", "x--", "x-1-12", "_c_lock"] {
            assert_eq!(classify(name, MUTEX), Kind::Plain, "{name}");
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
