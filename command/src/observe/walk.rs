//! All locks below a path.
//!
//! The tree is read level by level, in batches of requests. The number of nodes that are read and the number of locks
//! that are returned have a limit, so that the walk through a tree of any size ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};
use zklock::{Client, Error, Operation, Result as ZkResult, Status};

use crate::clock::wall_time;
use crate::survey::{BATCH, Entry, Kind, Role, Survey, below, is_of_one_object, read_contents};

/// The number of nodes that one walk lists. With more nodes, the answer would take long, and would need much memory.
const MOST_LISTED: usize = 10_000;
/// The number of holders of one lock whose content is read.
const MOST_HOLDERS: usize = 3;

/// The part of a tree that a user wants to see.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    pub(crate) root: String,
    /// The largest number of locks.
    pub(crate) limit: usize,
    /// True if the nodes that are no locks, or are free locks, also count.
    pub(crate) has_directories: bool,
}

/// What a walk through a tree has found.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) root: String,
    /// When the walk ended, according to the clock of this host.
    pub(crate) time: Timestamp,
    /// False if the root does not exist.
    pub(crate) exists: bool,
    /// The locks, and the other nodes that the user wants to see, by path.
    pub(crate) found: BTreeMap<String, Found>,
    /// The number of nodes that were not listed because of a limit.
    pub(crate) not_listed: usize,
    /// The number of locks that were found beyond the limit.
    pub(crate) not_shown: usize,
    /// The time between the first request and its answer.
    pub(crate) round_trip: Duration,
    /// The number of requests, and how long the walk took.
    pub(crate) cost: (u64, Duration),
}

/// A node of the tree.
#[derive(Debug)]
pub(crate) enum Found {
    Lock(Survey),
    /// A node without lock nodes.
    Directory,
    /// A node that this client cannot list, with the reason.
    Unreadable(Error),
}

impl Walk {
    /// Lists the tree, and reads the first holders and the first waiters of each lock.
    pub(crate) fn read(client: &Client, scope: &Scope) -> ZkResult<Self> {
        let mut walk = Self {
            root: scope.root.clone(),
            time: wall_time(),
            exists: true,
            found: BTreeMap::new(),
            not_listed: 0,
            not_shown: 0,
            round_trip: Duration::ZERO,
            cost: (0, Duration::ZERO),
        };
        let (started, requests) = (Instant::now(), client.metrics()?.requests);
        walk.list(client, scope)?;
        let surveys = walk.found.values_mut().filter_map(|found| match found {
            Found::Lock(survey) => Some(survey),
            _ => None,
        });
        read_contents(client, surveys.flat_map(first_entries))?;
        walk.cost = (client.metrics()?.requests.saturating_sub(requests), started.elapsed());
        walk.time = wall_time();
        Ok(walk)
    }

    fn list(&mut self, client: &Client, scope: &Scope) -> ZkResult<()> {
        let (started, mut level, mut listed) = (Instant::now(), vec![scope.root.clone()], 0);
        while !level.is_empty() {
            let mut next = Vec::new();
            for batch in level.chunks(BATCH) {
                let calls: Vec<ZkResult<Operation<_>>> = batch.iter().map(|path| client.start_children(path)).collect();
                for (path, call) in batch.iter().zip(calls) {
                    let children = call.and_then(Operation::wait);
                    if *path == scope.root {
                        self.round_trip = started.elapsed();
                    }
                    let survey = match children {
                        // If the root itself is not listed, there is no list, unless the reason is a right.
                        Err(error)
                            // A client refuses names that some servers accept.
                            if (is_of_one_object(&error) || error.status() == Status::Invalid)
                                && (*path != scope.root || error.status() == Status::Denied) =>
                        {
                            self.add(path, Found::Unreadable(error), scope.limit);
                            continue;
                        }
                        children => Survey::of(client, path, children?.as_ref())?,
                    };
                    self.exists &= survey.exists || *path != scope.root;
                    let room = MOST_LISTED.saturating_sub(listed);
                    self.not_listed += survey.others.len().saturating_sub(room);
                    listed += survey.others.len().min(room);
                    let children = survey.others.iter().take(room).map(|name| below(path, name));
                    next.extend(children.filter(|path| path != "/zookeeper"));
                    match survey.kind {
                        Some(_) => {
                            self.add(path, Found::Lock(Survey { others: Vec::new(), ..survey }), scope.limit);
                        }
                        None if scope.has_directories && survey.exists => {
                            self.add(path, Found::Directory, scope.limit);
                        }
                        None => {}
                    }
                }
            }
            level = next;
        }
        Ok(())
    }

    fn add(&mut self, path: &str, found: Found, limit: usize) {
        if self.found.len() < limit {
            self.found.insert(path.to_owned(), found);
        } else {
            self.not_shown += 1;
        }
    }

    /// Returns the locks, in the order of their paths.
    pub(crate) fn locks(&self) -> impl Iterator<Item = &Survey> {
        self.found.values().filter_map(|found| match found {
            Found::Lock(survey) => Some(survey),
            _ => None,
        })
    }

    /// Returns the paths of the locks that each transaction has joined. The members of a multi-lock are created by one
    /// transaction.
    pub(crate) fn multi_locks(&self) -> BTreeMap<i64, BTreeSet<&str>> {
        let mut paths: BTreeMap<i64, BTreeSet<&str>> = BTreeMap::new();
        for survey in self.locks() {
            for content in survey.holders().filter_map(|entry| entry.content.as_ref()) {
                paths.entry(content.token).or_default().insert(&survey.path);
            }
        }
        paths.retain(|_, paths| paths.len() > 1);
        paths
    }

    /// Keeps only the locks that are held or waited for longer than this time.
    pub(crate) fn keep_longer_than(&mut self, limit: Duration) {
        let time = self.time;
        let is_old = |entry: &Entry| {
            let since = entry.since();
            since.and_then(|since| Duration::try_from(time.duration_since(since)).ok()).is_some_and(|age| age > limit)
        };
        self.found.retain(|_, found| match found {
            Found::Lock(survey) => survey.entries.iter().any(is_old),
            Found::Directory => false,
            Found::Unreadable(_) => true,
        });
    }

    /// Says what is missing because of a limit.
    pub(crate) fn missing(&self) -> String {
        [
            (
                self.not_shown,
                "lock is not shown; a higher --limit shows it",
                "locks are not shown; a higher --limit shows them",
            ),
            (
                self.not_listed,
                "node was not looked at; give the path of a part of the tree",
                "nodes were not looked at; give the path of a part of the tree",
            ),
        ]
        .into_iter()
        .filter(|&(count, ..)| count > 0)
        .map(|(count, one, several)| format!("... {count} more {}\n", if count == 1 { one } else { several }))
        .collect()
    }

    /// Says why the list is empty, or returns `None` if it is not.
    pub(crate) fn emptiness(&self) -> Option<String> {
        let root = crate::owner::printable_line(&self.root);
        match (self.exists, self.found.is_empty() && self.not_shown == 0) {
            (false, _) => Some(format!("{root} does not exist, so every lock below it is free\n")),
            (true, true) => Some(format!("no lock below {root} is held or waited for\n")),
            (true, false) => None,
        }
    }

    /// Describes the tree for a program, with the nodes in the order of `paths`.
    pub(crate) fn to_json<'p>(&self, paths: impl Iterator<Item = &'p String>) -> Value {
        let multi_locks = self.multi_locks();
        let nodes = paths.filter_map(|path| Some((path, self.found.get(path)?)));
        let locks = nodes.map(|(path, found)| match found {
            Found::Directory => json!({"path": path, "kind": null}),
            Found::Unreadable(error) if error.status() == Status::Denied => {
                json!({"path": path, "kind": null, "error": "denied"})
            }
            Found::Unreadable(error) => json!({"path": path, "kind": null, "error": error.message()}),
            Found::Lock(survey) => {
                let holders = || survey.holders().filter(|entry| entry.content.is_some());
                let tokens = holders().filter_map(|entry| entry.content.as_ref()).map(|content| content.token);
                let members = tokens.filter_map(|token| multi_locks.get(&token)).next();
                json!({
                    "path": path,
                    "kind": survey.kind.map(Kind::name),
                    "holders": survey.holders().count(),
                    "waiting": survey.waiting(),
                    "foreign": survey.foreign(),
                    "not_readable": survey.denied,
                    "multi_lock": members,
                    "first_holders": holders().map(Entry::to_json).collect::<Vec<_>>(),
                    "longest_waiting": survey.longest_waiting().map(Entry::to_json),
                })
            }
        });
        json!({
            "path": self.root,
            "time": self.time.to_string(),
            "exists": self.exists,
            "locks": locks.collect::<Vec<_>>(),
            "not_shown": self.not_shown,
            "not_listed": self.not_listed,
        })
    }
}

/// Says in a table why a node is not listed.
pub(crate) fn why_unreadable(error: &Error) -> String {
    match error.status() {
        Status::Denied => "not readable".to_owned(),
        _ => format!("not readable: {}", crate::owner::printable_line(error.message())),
    }
}

/// Returns the entries whose content a list of locks shows: the first holders, and the participants that may have
/// waited longest. A participant that has created its leases of a semaphore may have come later than the first one in
/// the queue.
fn first_entries(survey: &mut Survey) -> impl Iterator<Item = &mut Entry> {
    let (mut holders, mut acquiring, mut waiting) = (MOST_HOLDERS, 1_usize, 1_usize);
    survey.entries.iter_mut().filter(move |entry| {
        let left = match entry.role {
            Role::Holds => &mut holders,
            Role::Acquires => &mut acquiring,
            Role::Waits => &mut waiting,
        };
        let is_first = *left > 0;
        *left = left.saturating_sub(1);
        is_first
    })
}
