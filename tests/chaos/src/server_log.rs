//! The history of the servers, according to their transaction logs.
//!
//! A transaction counts if two of the three servers have it after all servers follow one leader again. A transaction
//! that a deposed leader could not commit is in at most one log.
//!
//! There is one exception. A server (3.8.0) that loses its leader or its followers may write transactions to its log
//! that it does not have in memory. If it then becomes the leader, it even sends its log to other servers
//! (ZOOKEEPER-4712). The end of an epoch may therefore be in all logs without any effect. In this case, a later epoch
//! uses a sequence number of a queue again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

use crate::trace::Nanos;

/// A transaction in the log of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// The zxid. Later transactions have larger zxids.
    pub zxid: i64,
    /// When the leader made the proposal: milliseconds of CLOCK_REALTIME, rounded down.
    pub wall_ms: i64,
    /// The session of the transaction.
    pub session: i64,
    /// The changes that it makes.
    pub changes: Vec<Change>,
}

/// A change, reduced to what the checker needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A node is created.
    Create {
        /// The path of the node.
        path: String,
        /// Whether the node is ephemeral.
        is_ephemeral: bool,
    },
    /// A node is deleted.
    Delete(String),
    /// The session ends, and its ephemeral nodes are deleted.
    CloseSession,
}

/// The lifetime of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The path of the node.
    pub path: String,
    /// The transaction that created the node.
    pub czxid: i64,
    /// The session that owns the node, or 0 for a persistent node.
    pub session: i64,
    /// The time of its creation.
    pub created_at: Nanos,
    /// Its removal.
    pub removal: Option<NodeRemoval>,
}

/// The removal of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeRemoval {
    /// The time at which the leader proposed the removal. No client can have learned of the removal before this time.
    pub at: Nanos,
    /// The cause of the removal.
    pub why: RemovalCause,
}

/// The cause of the removal of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalCause {
    /// Its owner deleted it.
    DeletedByOwnSession,
    /// Another session deleted it.
    DeletedByOtherSession,
    /// A client closed its session: the owner, or another client with the password of the session.
    SessionClosed,
    /// Its session expired.
    SessionExpired,
}

/// All nodes that ever existed, in the order of their creation.
#[derive(Debug, Default)]
pub struct ServerHistory {
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The number of transactions in the logs.
    pub transactions: usize,
    /// The number of transactions in the logs that a later leader did not have in memory.
    pub rolled_back: usize,
}

impl ServerHistory {
    /// Combines the logs of all servers. `to_nanos` converts the clock of the servers to the clock of the traces.
    pub fn from_logs(
        logs: &[Vec<Transaction>],
        closed_by_request: &BTreeSet<i64>,
        to_nanos: impl Fn(i64) -> Nanos,
    ) -> Self {
        let mut seen: BTreeMap<i64, (usize, &Transaction)> = BTreeMap::new();
        for transaction in logs.iter().flatten() {
            seen.entry(transaction.zxid).or_insert((0, transaction)).0 += 1;
        }
        let needed = logs.len() / 2 + 1;
        let committed = seen.values().filter(|(count, _)| *count >= needed).map(|(_, transaction)| *transaction);
        let mut committed: Vec<&Transaction> = committed.collect();
        let all = committed.len();
        let forgotten = rolled_back_ranges(&committed);
        committed.retain(|one| !forgotten.iter().any(|range| range.contains(&one.zxid)));
        let mut history = Self { rolled_back: all - committed.len(), ..Self::default() };
        let mut living: BTreeMap<&str, usize> = BTreeMap::new();
        for transaction in committed {
            history.transactions += 1;
            history.apply(transaction, &mut living, closed_by_request, to_nanos(transaction.wall_ms));
        }
        history
    }

    fn apply<'a>(
        &mut self,
        transaction: &'a Transaction,
        living: &mut BTreeMap<&'a str, usize>,
        closed_by_request: &BTreeSet<i64>,
        at: Nanos,
    ) {
        let session = transaction.session;
        for change in &transaction.changes {
            match change {
                Change::Create { path, is_ephemeral } => {
                    living.insert(path, self.nodes.len());
                    let owner = if *is_ephemeral { session } else { 0 };
                    self.nodes.push(Node {
                        path: path.clone(),
                        czxid: transaction.zxid,
                        session: owner,
                        created_at: at,
                        removal: None,
                    });
                }
                Change::Delete(path) => {
                    let Some(node) = living.remove(path.as_str()).and_then(|index| self.nodes.get_mut(index)) else {
                        continue;
                    };
                    let cause = if node.session == session {
                        RemovalCause::DeletedByOwnSession
                    } else {
                        RemovalCause::DeletedByOtherSession
                    };
                    node.removal = Some(NodeRemoval { at, why: cause });
                }
                Change::CloseSession => {
                    let cause = if closed_by_request.contains(&session) {
                        RemovalCause::SessionClosed
                    } else {
                        RemovalCause::SessionExpired
                    };
                    living.retain(|_, index| match self.nodes.get_mut(*index) {
                        Some(node) if node.session == session => {
                            node.removal = Some(NodeRemoval { at, why: cause });
                            false
                        }
                        _ => true,
                    });
                }
            }
        }
    }
}

/// Finds the transactions that the next leader did not have in memory. They begin with a node whose sequence number a
/// later epoch uses again, and extend to the end of their epoch.
fn rolled_back_ranges(committed: &[&Transaction]) -> Vec<RangeInclusive<i64>> {
    let mut ranges = Vec::new();
    // The sequence numbers and their transactions, by directory. The deletion or creation of the directory resets them.
    let mut given: BTreeMap<&str, BTreeMap<&str, i64>> = BTreeMap::new();
    let creates = committed.iter().flat_map(|one| one.changes.iter().map(|change| (one.zxid, change)));
    for (zxid, change) in creates {
        let path = match change {
            Change::Create { path, is_ephemeral: true } => path,
            Change::Create { path, .. } | Change::Delete(path) => {
                given.remove(path.as_str());
                continue;
            }
            Change::CloseSession => continue,
        };
        let (Some((directory, _)), Some(number)) = (path.rsplit_once('/'), path.get(path.len().saturating_sub(10)..))
        else {
            continue;
        };
        let numbers = given.entry(directory).or_default();
        if let Some(first) = numbers.split_off(number).into_values().min()
            && epoch(first) < epoch(zxid)
        {
            ranges.push(first..=(first | i64::from(u32::MAX)));
        }
        numbers.insert(number, zxid);
    }
    ranges
}

/// The epoch of a transaction.
fn epoch(zxid: i64) -> i64 {
    zxid >> 32
}

/// Reads all logs in the directory of a server.
pub fn read(directory: &Path) -> io::Result<Vec<Transaction>> {
    let mut transactions = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log.")) {
            let file = parse(&fs::read(&path)?);
            transactions.extend(file.map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?);
        }
    }
    // A server that was killed may start a new log with transactions that an older log already contains. Each counts
    // once.
    transactions.sort_by_key(|transaction| transaction.zxid);
    transactions.dedup_by_key(|transaction| transaction.zxid);
    Ok(transactions)
}

/// The first bytes of a log.
const MAGIC: &[u8] = b"ZKLG";
/// The byte after each transaction. If it is missing, the server was killed while it wrote the record.
const END_OF_RECORD: u8 = b'B';

/// Parses a log.
pub fn parse(bytes: &[u8]) -> Result<Vec<Transaction>, String> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let Some(mut rest) = bytes.strip_prefix(MAGIC).and_then(|rest| rest.get(12..)) else {
        return Err("not a transaction log".to_owned());
    };
    let mut transactions = Vec::new();
    while let Some(entry) = next_entry(&mut rest) {
        transactions.push(Jute(entry).transaction().ok_or_else(|| format!("a transaction of {} bytes", entry.len()))?);
    }
    Ok(transactions)
}

/// Returns the bytes between a checksum and the end of its record. Returns `None` at the end of the log: at zeros, or
/// in an incomplete record.
fn next_entry<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let mut file = Jute(rest);
    let _checksum = file.long()?;
    let entry = file.buffer().filter(|entry| !entry.is_empty())?;
    let [END_OF_RECORD, behind @ ..] = file.0 else { return None };
    *rest = behind;
    Some(entry)
}

/// A decoder of ZooKeeper's record format.
struct Jute<'a>(&'a [u8]);

impl<'a> Jute<'a> {
    fn transaction(mut self) -> Option<Transaction> {
        let (session, _cxid, zxid, wall_ms, kind) =
            (self.long()?, self.int()?, self.long()?, self.long()?, self.int()?);
        let mut changes = Vec::new();
        self.changes(kind, &mut changes)?;
        Some(Transaction { zxid, wall_ms, session, changes })
    }

    fn changes(&mut self, kind: i32, changes: &mut Vec<Change>) -> Option<()> {
        const CREATE: i32 = 1;
        const DELETE: i32 = 2;
        const MULTI: i32 = 14;
        const CREATE2: i32 = 15;
        const CREATE_CONTAINER: i32 = 19;
        const DELETE_CONTAINER: i32 = 20;
        const CREATE_TTL: i32 = 21;
        const CLOSE_SESSION: i32 = -11;
        const ERROR: i32 = -1;
        match kind {
            CREATE | CREATE2 => {
                let path = self.created()?;
                changes.push(Change::Create { path, is_ephemeral: self.take(1)? == [1] });
            }
            CREATE_CONTAINER | CREATE_TTL => {
                changes.push(Change::Create { path: self.created()?, is_ephemeral: false });
            }
            DELETE | DELETE_CONTAINER => changes.push(Change::Delete(self.string()?)),
            CLOSE_SESSION => changes.push(Change::CloseSession),
            MULTI => {
                let parts =
                    (0..self.int()?).map(|_| Some((self.int()?, self.buffer()?))).collect::<Option<Vec<_>>>()?;
                // If one operation of a multi failed, the log still contains all of them, but none took effect.
                if parts.iter().all(|&(kind, _)| kind != ERROR) {
                    parts.into_iter().try_for_each(|(kind, part)| Jute(part).changes(kind, changes))?;
                }
            }
            _ => {}
        }
        Some(())
    }

    /// Decodes the common beginning of all create transactions.
    fn created(&mut self) -> Option<String> {
        let path = self.string()?;
        let _data = self.buffer()?;
        for _ in 0..self.int()? {
            let (_permissions, _scheme, _id) = (self.int()?, self.string()?, self.string()?);
        }
        Some(path)
    }

    fn int(&mut self) -> Option<i32> {
        self.take(4)?.try_into().ok().map(i32::from_be_bytes)
    }

    fn long(&mut self) -> Option<i64> {
        self.take(8)?.try_into().ok().map(i64::from_be_bytes)
    }

    /// A null buffer becomes an empty one.
    fn buffer(&mut self) -> Option<&'a [u8]> {
        match self.int()? {
            -1 => Some(&[]),
            length => self.take(usize::try_from(length).ok()?),
        }
    }

    fn string(&mut self) -> Option<String> {
        String::from_utf8(self.buffer()?.to_vec()).ok()
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use super::*;

    fn transaction(zxid: i64, session: i64, change: Change) -> Transaction {
        Transaction { zxid, wall_ms: zxid * 10, session, changes: vec![change] }
    }

    fn create(path: &str) -> Change {
        Change::Create { path: path.to_owned(), is_ephemeral: true }
    }

    #[test]
    fn transaction_in_a_minority_of_logs_is_ignored() {
        let common = transaction(1, 7, create("/l/a"));
        let lonely = transaction(2, 7, Change::CloseSession);
        let logs = [vec![common.clone(), lonely], vec![common.clone()], vec![common]];
        let history = ServerHistory::from_logs(&logs, &BTreeSet::new(), |ms| ms as u64);
        assert_eq!(history.transactions, 1);
        assert_eq!(history.nodes[0].removal, None);
    }

    #[test]
    fn transactions_rolled_back_by_the_next_leader_are_ignored() {
        let next = 1 << 32;
        let log = vec![
            transaction(1, 7, create("/l/a-0000000001")),
            transaction(2, 7, create("/l/b-0000000002")),
            transaction(3, 8, Change::Delete("/l/a-0000000001".to_owned())),
            transaction(next, 8, create("/l/c-0000000002")),
            transaction(next + 1, 8, create("/l/d-0000000003")),
        ];
        let history = ServerHistory::from_logs(&[log], &BTreeSet::new(), |ms| ms as u64);
        assert_eq!((history.transactions, history.rolled_back), (3, 2));
        assert!(history.nodes.iter().all(|node| node.removal.is_none() && !node.path.contains('b')));
        // If the directory is created again, its sequence numbers start again.
        let log = vec![
            transaction(1, 7, create("/l/a-0000000002")),
            transaction(2, 7, Change::Delete("/l".to_owned())),
            transaction(next, 7, Change::Create { path: "/l".to_owned(), is_ephemeral: false }),
            transaction(next + 1, 7, create("/l/b-0000000002")),
        ];
        assert_eq!(ServerHistory::from_logs(&[log], &BTreeSet::new(), |ms| ms as u64).rolled_back, 0);
    }

    #[test]
    fn removal_cause_follows_from_the_log() {
        let log = vec![
            transaction(1, 7, create("/l/a")),
            transaction(2, 7, create("/l/b")),
            transaction(3, 7, create("/l/c")),
            transaction(4, 8, create("/l/d")),
            transaction(5, 7, Change::Delete("/l/a".to_owned())),
            transaction(6, 8, Change::Delete("/l/b".to_owned())),
            transaction(7, 7, Change::CloseSession),
            transaction(8, 8, Change::CloseSession),
        ];
        let history = ServerHistory::from_logs(&[log], &BTreeSet::from([8]), |ms| ms as u64);
        let ends: Vec<NodeRemoval> = history.nodes.iter().filter_map(|node| node.removal).collect();
        let expected = [
            (50, RemovalCause::DeletedByOwnSession),
            (60, RemovalCause::DeletedByOtherSession),
            (70, RemovalCause::SessionExpired),
            (80, RemovalCause::SessionClosed),
        ];
        assert_eq!(ends, expected.map(|(at, cause)| NodeRemoval { at, why: cause }));
    }

    /// A log with one record for each of these bodies, all as transaction 3 of session 7.
    fn log(records: &[(i32, Vec<u8>)]) -> Vec<u8> {
        let mut log = Vec::from(*b"ZKLG\0\0\0\x02\0\0\0\0\0\0\0\0");
        for (kind, body) in records {
            let (session, cxid, zxid, wall_ms) = (7_i64, 1_i32, 3_i64, 30_i64);
            let mut entry = session.to_be_bytes().to_vec();
            entry.extend(cxid.to_be_bytes());
            entry.extend([zxid, wall_ms].map(i64::to_be_bytes).concat());
            entry.extend(kind.to_be_bytes());
            entry.extend(body);
            log.extend([0; 8]);
            log.extend(buffer(&entry));
            log.push(END_OF_RECORD);
        }
        log
    }

    fn buffer(bytes: &[u8]) -> Vec<u8> {
        [&i32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
    }

    fn multi(parts: &[(i32, Vec<u8>)]) -> Vec<u8> {
        let count = i32::try_from(parts.len()).unwrap().to_be_bytes().to_vec();
        let parts = parts.iter().map(|(kind, part)| [kind.to_be_bytes().to_vec(), buffer(part)].concat());
        [count].into_iter().chain(parts).collect::<Vec<_>>().concat()
    }

    #[test]
    fn truncated_log_is_read_up_to_the_last_whole_record() {
        let one = log(&[(2, buffer(b"/l/a"))]);
        let expected = Ok(vec![transaction(3, 7, Change::Delete("/l/a".to_owned()))]);
        assert_eq!(parse(&one), expected);
        assert_eq!(parse(&[&one[..], &[0; 100]].concat()), expected);
        let two = log(&[(2, buffer(b"/l/a")), (2, buffer(b"/l/b"))]);
        assert_eq!(parse(&two[..two.len() - 5]), expected);
        assert!(parse(b"something else, long enough").is_err());
    }

    #[test]
    fn failed_multi_in_the_log_changes_nothing() {
        let delete = (2, buffer(b"/l/a"));
        let no_node = (-1, (-101_i32).to_be_bytes().to_vec());
        let changes = |parts: &[_]| parse(&log(&[(14, multi(parts))])).unwrap().remove(0).changes;
        assert_eq!(changes(&[delete.clone(), delete.clone()]).len(), 2);
        assert_eq!(changes(&[delete, no_node]), []);
    }
}
