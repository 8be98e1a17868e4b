//! What really was: the servers' own transaction logs.
//!
//! A transaction counts if two of three servers have it in the end, when all of them follow one leader again: what a
//! leader wrote down that was deposed before anybody agreed is in one log at most, but for one thing. A server (3.8.0) that loses its
//! leader, or its followers, may write to its log what it does not have in memory, and then lead, and even pass on what is in its
//! log (ZOOKEEPER-4712). So the end of an epoch may be in all logs and have happened to nobody. It shows where the next epoch
//! gives out a number of a queue again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

use crate::trace::Nanos;

/// A transaction of a server's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Its number: later ones are larger.
    pub zxid: i64,
    /// When the leader proposed it, in milliseconds of the host's CLOCK_REALTIME, rounded down.
    pub wall_ms: i64,
    /// Whose it is.
    pub session: i64,
    /// What it does.
    pub changes: Vec<Change>,
}

/// What a transaction does, as far as a judge looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A node is made.
    Create {
        /// Its path.
        path: String,
        /// Whether it goes with its session.
        is_ephemeral: bool,
    },
    /// A node is deleted.
    Delete(String),
    /// The session is over, and its ephemeral nodes are gone.
    CloseSession,
}

/// A node's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its path.
    pub path: String,
    /// The transaction that made it.
    pub czxid: i64,
    /// Whose it is; 0 if it is nobody's.
    pub owner: i64,
    /// When it was made.
    pub made: Nanos,
    /// How it ended.
    pub gone: Option<Gone>,
}

/// How a node ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone {
    /// When the leader proposed it; nobody can have known before.
    pub at: Nanos,
    /// Why.
    pub why: Why,
}

/// Why a node is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Its owner deleted it.
    Given,
    /// Somebody else deleted it.
    Taken,
    /// Its session was closed, by its owner or by whoever had its password.
    Closed,
    /// Its session expired.
    Expired,
}

/// All nodes there were, in the order in which they were made.
#[derive(Debug, Default)]
pub struct Truth {
    /// They.
    pub nodes: Vec<Node>,
    /// How many transactions they come from.
    pub transactions: usize,
    /// How many there are in the logs that a leader had forgotten.
    pub forgotten: usize,
}

impl Truth {
    /// Made of the logs of all servers. `to_nanos` maps the servers' clock to that of the traces.
    pub fn of(logs: &[Vec<Transaction>], closed_by_request: &BTreeSet<i64>, to_nanos: impl Fn(i64) -> Nanos) -> Self {
        let mut seen: BTreeMap<i64, (usize, &Transaction)> = BTreeMap::new();
        for transaction in logs.iter().flatten() {
            seen.entry(transaction.zxid).or_insert((0, transaction)).0 += 1;
        }
        let needed = logs.len() / 2 + 1;
        let committed = seen.values().filter(|(count, _)| *count >= needed).map(|(_, transaction)| *transaction);
        let mut committed: Vec<&Transaction> = committed.collect();
        let all = committed.len();
        let forgotten = forgotten(&committed);
        committed.retain(|one| !forgotten.iter().any(|range| range.contains(&one.zxid)));
        let mut truth = Self { forgotten: all - committed.len(), ..Self::default() };
        let mut living: BTreeMap<&str, usize> = BTreeMap::new();
        for transaction in committed {
            truth.transactions += 1;
            truth.apply(transaction, &mut living, closed_by_request, to_nanos(transaction.wall_ms));
        }
        truth
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
                    self.nodes.push(Node { path: path.clone(), czxid: transaction.zxid, owner, made: at, gone: None });
                }
                Change::Delete(path) => {
                    let Some(node) = living.remove(path.as_str()).and_then(|index| self.nodes.get_mut(index)) else {
                        continue;
                    };
                    let why = if node.owner == session { Why::Given } else { Why::Taken };
                    node.gone = Some(Gone { at, why });
                }
                Change::CloseSession => {
                    let why = if closed_by_request.contains(&session) { Why::Closed } else { Why::Expired };
                    living.retain(|_, index| match self.nodes.get_mut(*index) {
                        Some(node) if node.owner == session => {
                            node.gone = Some(Gone { at, why });
                            false
                        }
                        _ => true,
                    });
                }
            }
        }
    }
}

/// What the next leader did not have in memory: from a node on, whose number it gave out again, to the end of its epoch.
fn forgotten(committed: &[&Transaction]) -> Vec<RangeInclusive<i64>> {
    let mut ranges = Vec::new();
    // By directory: who was given which number, as long as the directory is the same.
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

/// The leader's reign in which a transaction was.
fn epoch(zxid: i64) -> i64 {
    zxid >> 32
}

/// Reads all logs of a server's directory.
pub fn read(directory: &Path) -> io::Result<Vec<Transaction>> {
    let mut transactions = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log.")) {
            let file = parse(&fs::read(&path)?);
            transactions.extend(file.map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?);
        }
    }
    // A server that was killed may begin a log anew with what it had: each counts once.
    transactions.sort_by_key(|transaction| transaction.zxid);
    transactions.dedup_by_key(|transaction| transaction.zxid);
    Ok(transactions)
}

/// What a log's first bytes are.
const MAGIC: &[u8] = b"ZKLG";
/// Behind each transaction; without it the server was killed while it wrote.
const END_OF_RECORD: u8 = b'B';

/// Reads a log.
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

/// What stands between a checksum and the end of a record; none where the log ends, in zeros or in the middle.
fn next_entry<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let mut file = Jute(rest);
    let _checksum = file.long()?;
    let entry = file.buffer().filter(|entry| !entry.is_empty())?;
    let [END_OF_RECORD, behind @ ..] = file.0 else { return None };
    *rest = behind;
    Some(entry)
}

/// ZooKeeper's own records.
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
                // Where one part failed, those before it are in the log all the same, and none was done.
                if parts.iter().all(|&(kind, _)| kind != ERROR) {
                    parts.into_iter().try_for_each(|(kind, part)| Jute(part).changes(kind, changes))?;
                }
            }
            _ => {}
        }
        Some(())
    }

    /// The beginning of all that makes a node.
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

    /// A null buffer is read as an empty one.
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
    fn what_one_server_alone_has_never_was() {
        let common = transaction(1, 7, create("/l/a"));
        let lonely = transaction(2, 7, Change::CloseSession);
        let logs = [vec![common.clone(), lonely], vec![common.clone()], vec![common]];
        let truth = Truth::of(&logs, &BTreeSet::new(), |ms| ms as u64);
        assert_eq!(truth.transactions, 1);
        assert_eq!(truth.nodes[0].gone, None);
    }

    #[test]
    fn what_the_next_leader_had_forgotten_never_was() {
        let next = 1 << 32;
        let log = vec![
            transaction(1, 7, create("/l/a-0000000001")),
            transaction(2, 7, create("/l/b-0000000002")),
            transaction(3, 8, Change::Delete("/l/a-0000000001".to_owned())),
            transaction(next, 8, create("/l/c-0000000002")),
            transaction(next + 1, 8, create("/l/d-0000000003")),
        ];
        let truth = Truth::of(&[log], &BTreeSet::new(), |ms| ms as u64);
        assert_eq!((truth.transactions, truth.forgotten), (3, 2));
        assert!(truth.nodes.iter().all(|node| node.gone.is_none() && !node.path.contains('b')));
        // A directory that was made anew begins anew.
        let log = vec![
            transaction(1, 7, create("/l/a-0000000002")),
            transaction(2, 7, Change::Delete("/l".to_owned())),
            transaction(next, 7, Change::Create { path: "/l".to_owned(), is_ephemeral: false }),
            transaction(next + 1, 7, create("/l/b-0000000002")),
        ];
        assert_eq!(Truth::of(&[log], &BTreeSet::new(), |ms| ms as u64).forgotten, 0);
    }

    #[test]
    fn it_says_why_a_node_is_gone() {
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
        let truth = Truth::of(&[log], &BTreeSet::from([8]), |ms| ms as u64);
        let ends: Vec<Gone> = truth.nodes.iter().filter_map(|node| node.gone).collect();
        let expected = [(50, Why::Given), (60, Why::Taken), (70, Why::Expired), (80, Why::Closed)];
        assert_eq!(ends, expected.map(|(at, why)| Gone { at, why }));
    }

    /// A log with one record for each of these, as session 7's transaction 3.
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
    fn a_log_ends_where_its_server_was_killed() {
        let one = log(&[(2, buffer(b"/l/a"))]);
        let expected = Ok(vec![transaction(3, 7, Change::Delete("/l/a".to_owned()))]);
        assert_eq!(parse(&one), expected);
        assert_eq!(parse(&[&one[..], &[0; 100]].concat()), expected);
        let two = log(&[(2, buffer(b"/l/a")), (2, buffer(b"/l/b"))]);
        assert_eq!(parse(&two[..two.len() - 5]), expected);
        assert!(parse(b"something else, long enough").is_err());
    }

    #[test]
    fn several_are_done_or_none() {
        let delete = (2, buffer(b"/l/a"));
        let no_node = (-1, (-101_i32).to_be_bytes().to_vec());
        let changes = |parts: &[_]| parse(&log(&[(14, multi(parts))])).unwrap().remove(0).changes;
        assert_eq!(changes(&[delete.clone(), delete.clone()]).len(), 2);
        assert_eq!(changes(&[delete, no_node]), []);
    }
}
