//! What an observer finds at a path: the kind of lock, its holders and its queue. An observer takes no part in the
//! lock.
//!
//! The names of all lock nodes are read, but the content of a limited number of nodes only, because a queue can be long
//! and its nodes can be large.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde_json::{Value, json};
use zklock::{Children, Client, Error, LockFamily, NodeContent, Operation, QueueNode, Result as ZkResult, Status};

use crate::clock::wall_time;
use crate::duration::age;
use crate::exit::Failure;
use crate::owner::{Described, describe};

/// The number of requests that an observer sends before it reads the replies.
pub(crate) const BATCH: usize = 64;

/// The kind of lock at a path, as far as the names of the nodes show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Semaphore,
    Queue(LockFamily),
}

/// What a participant does in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Holds,
    /// The participant has created its leases of a semaphore, and checks or waits until enough leases are free.
    Acquires,
    Waits,
}

/// One participant: the name of its node, and later the content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The path of the node.
    pub(crate) node: String,
    pub(crate) role: Role,
    pub(crate) is_shared: bool,
    pub(crate) kind: Kind,
    /// The kind of queue in which the participant waits. It differs from `kind` if kazoo's locks wait in the queue of
    /// other locks.
    pub(crate) queue: Kind,
    /// False if another kind of lock uses the same path, and this node belongs to it.
    pub(crate) is_own_kind: bool,
    /// The content, if it was read and the node still exists.
    pub(crate) content: Option<Content>,
    /// True if this client cannot read the content, for example because an access control list forbids it.
    pub(crate) is_unreadable: bool,
}

/// The content of a node, without data that no verb shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) who: Described,
    pub(crate) token: i64,
    pub(crate) session: i64,
    pub(crate) created: Timestamp,
}

/// A lock, or a directory without lock nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Survey {
    pub(crate) path: String,
    /// False if the node does not exist.
    pub(crate) exists: bool,
    /// The kind, or `None` if no lock node was found.
    pub(crate) kind: Option<Kind>,
    /// All participants in the order of the queue. The holders of a semaphore come first.
    pub(crate) entries: Vec<Entry>,
    /// The names of the children that are no lock nodes.
    pub(crate) others: Vec<String>,
    /// The directories of a semaphore that this client cannot list, so the leases and waiters in them are missing.
    pub(crate) denied: Vec<String>,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Semaphore => "semaphore",
            Self::Queue(LockFamily::Mutex) => "mutex",
            Self::Queue(LockFamily::ReadWrite) => "read/write",
            Self::Queue(LockFamily::Kazoo) => "kazoo",
            Self::Queue(LockFamily::ZooKeeper) => "zookeeper",
            Self::Queue(_) => "unknown",
        }
    }

    /// Returns whether zklock and Curator use this kind of lock.
    pub(crate) const fn is_of_curator(self) -> bool {
        matches!(self, Self::Semaphore | Self::Queue(LockFamily::Mutex | LockFamily::ReadWrite))
    }
}

impl Role {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Acquires => "acquires",
            Self::Waits => "waits",
        }
    }
}

impl Content {
    /// Returns whether no session owns the node, so that it does not leave by itself.
    pub(crate) const fn is_permanent(&self) -> bool {
        self.session == 0
    }
}

impl Survey {
    /// Finds out what is at one path.
    pub(crate) fn read(client: &Client, path: &str) -> ZkResult<Self> {
        Self::of(client, path, client.children(path)?.as_ref())
    }

    /// Finds out what is at the path that the user has given. Refuses the path of the node of a participant, which messages
    /// contain: the node is no lock, and would look like a free lock.
    pub(crate) fn of_lock(client: &Client, path: &str) -> Result<Self, Failure> {
        let survey = Self::read(client, path)?;
        // A node of a participant has no children.
        if survey.entries.is_empty()
            && survey.others.is_empty()
            && let Some(lock) = lock_of_node(client, path)?
        {
            let message = format!("{path} is the path of a participant's node, and not of a lock; the lock is {lock}");
            return Err(Failure::usage(message));
        }
        Ok(survey)
    }

    /// Describes a path whose children are known. For a semaphore, the observer lists its two inner directories.
    pub(crate) fn of(client: &Client, path: &str, children: Option<&Children>) -> ZkResult<Self> {
        let Some(children) = children else {
            return Ok(Self {
                path: path.to_owned(),
                exists: false,
                kind: None,
                entries: Vec::new(),
                others: Vec::new(),
                denied: Vec::new(),
            });
        };
        let names = || children.names.iter().map(String::as_str);
        let queue = client.order_queue(names())?;
        let own_queue = queue.first().map(|node| node.queue);
        // The kind of the lock is the kind of its queue, unless the queue contains only kazoo's nodes.
        let own_family = queue.iter().find(|node| Some(node.family) == own_queue).or_else(|| queue.first());
        let own_family = own_family.map(|node| node.family);
        let entries = queue.iter().map(|node| Entry {
            node: below(path, &node.name),
            role: if node.holds { Role::Holds } else { Role::Waits },
            is_shared: node.is_shared,
            kind: Kind::Queue(node.family),
            queue: Kind::Queue(node.queue),
            is_own_kind: Some(node.queue) == own_queue,
            content: None,
            is_unreadable: false,
        });
        let mut survey = Self {
            path: path.to_owned(),
            exists: true,
            kind: own_family.map(Kind::Queue),
            entries: entries.collect(),
            others: others(names(), &queue),
            denied: Vec::new(),
        };
        if survey.others.iter().any(|name| name == "leases") {
            survey.add_semaphore(client)?;
        }
        Ok(survey)
    }

    /// Adds the participants of a semaphore, if the directories `leases` and `locks` contain nothing but the nodes of a
    /// semaphore.
    fn add_semaphore(&mut self, client: &Client) -> ZkResult<()> {
        let (leases, locks) = (below(&self.path, "leases"), below(&self.path, "locks"));
        let (held, queued) = (client.start_children(&leases)?, client.start_children(&locks)?);
        let mut names = |directory: &str, children: Operation<Option<Children>>| match children.wait() {
            Err(error) if is_of_one_object(&error) => {
                self.denied.push(directory.to_owned());
                Ok(Vec::new())
            }
            children => Ok::<_, Error>(children?.map(|children| children.names).unwrap_or_default()),
        };
        let (mut held, queued) = (names(&leases, held)?, names(&locks, queued)?);
        let queue = client.order_queue(queued.iter().map(String::as_str))?;
        let is_semaphore = queue.len() == queued.len() && held.iter().all(|name| QueueNode::is_lease(name));
        if !is_semaphore || held.len() + queue.len() == 0 {
            return Ok(());
        }
        // The names of leases end with the sequence number, in the order of their creation.
        held.sort_by(|a, b| a.rsplit('-').next().cmp(&b.rsplit('-').next()));
        let is_own_kind = self.kind.is_none();
        let entry = |node, role| Entry {
            node,
            role,
            is_shared: false,
            kind: Kind::Semaphore,
            queue: Kind::Semaphore,
            is_own_kind,
            content: None,
            is_unreadable: false,
        };
        let mut waiters: VecDeque<Entry> =
            queue.iter().map(|node| entry(below(&locks, &node.name), Role::Waits)).collect();
        let mut entries: Vec<Entry> = held.iter().map(|name| entry(below(&leases, name), Role::Holds)).collect();
        if let (Some(newest), Some(first)) = (entries.last_mut(), waiters.front_mut()) {
            read_contents(client, [&mut *newest, &mut *first])?;
            let is_same = newest.session().is_some() && newest.session() == first.session();
            let prefix = newest.prefix().to_owned();
            let pending = entries.iter().filter(|lease| lease.prefix() == prefix).count();
            if is_same && pending < entries.len() {
                waiters.pop_front();
                let newest = entries.iter_mut().filter(|lease| lease.prefix() == prefix);
                newest.for_each(|lease| lease.role = Role::Acquires);
            }
        }
        self.entries.extend(entries.into_iter().chain(waiters));
        self.kind = self.kind.or(Some(Kind::Semaphore));
        self.others.retain(|name| name != "leases" && name != "locks");
        Ok(())
    }

    pub(crate) fn count(&self, role: Role) -> usize {
        self.entries.iter().filter(|entry| entry.role == role).count()
    }

    /// Returns the number of participants that do not hold the lock.
    pub(crate) fn waiting(&self) -> usize {
        self.entries.len() - self.count(Role::Holds)
    }

    /// Returns the number of participants of another kind of lock than the first participant.
    pub(crate) fn foreign(&self) -> usize {
        self.entries.iter().filter(|entry| !entry.is_own_kind).count()
    }

    /// Says which directories are not readable, or nothing.
    pub(crate) fn unreadable(&self) -> String {
        if self.denied.is_empty() { String::new() } else { format!("; {} is not readable", self.denied.join(" and ")) }
    }

    /// Returns the participant that has waited longest, among the participants whose content was read.
    pub(crate) fn longest_waiting(&self) -> Option<&Entry> {
        let waiting = self.entries.iter().filter(|entry| !entry.is_holder() && entry.content.is_some());
        waiting.min_by_key(|entry| entry.since())
    }

    /// Returns the participants that hold the lock.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.is_holder())
    }

    /// Names the holders for a person, and what the list of holders does not contain.
    pub(crate) fn describe_holders(&self) -> String {
        let count = self.holders().count();
        let first = self.holders().next().map(Entry::who);
        let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        let foreign = match self.foreign() {
            0 => String::new(),
            1 => "; 1 foreign node".to_owned(),
            count => format!("; {count} foreign nodes"),
        };
        let denied = if self.denied.is_empty() { "" } else { "; not all readable" };
        format!("{}{more}{foreign}{denied}", first.unwrap_or_else(|| "nobody".to_owned()))
    }
}

impl Entry {
    /// Names the participant, and how long it has held the lock or waited for it. Returns `None` if the content of its
    /// node is unknown.
    pub(crate) fn describe(&self) -> Option<String> {
        let verb = if self.is_holder() { "held" } else { "wanted" };
        let content = self.content.as_ref()?;
        if content.is_permanent() {
            return Some(format!("{} is not ephemeral, so no session ends it", self.node));
        }
        Some(format!("{verb} by {} for {}", content.who.text, age(self.since(), wall_time())))
    }

    pub(crate) fn is_holder(&self) -> bool {
        self.role == Role::Holds
    }

    fn session(&self) -> Option<i64> {
        self.content.as_ref().map(|content| content.session)
    }

    /// Returns the path without the sequence number. The leases that one call acquires differ only in this number.
    fn prefix(&self) -> &str {
        self.node.rsplit_once('-').map_or("", |(prefix, _)| prefix)
    }

    /// The role and, for a read/write lock, what the participant wants.
    pub(crate) fn role_name(&self) -> String {
        match (self.kind, self.is_shared) {
            (Kind::Queue(LockFamily::ReadWrite | LockFamily::Kazoo), true) => format!("{} read", self.role.name()),
            (Kind::Queue(LockFamily::ReadWrite), false) => format!("{} write", self.role.name()),
            _ => self.role.name().to_owned(),
        }
    }

    /// Returns when the participant acquired the lock, or joined the queue.
    pub(crate) fn since(&self) -> Option<Timestamp> {
        let content = self.content.as_ref()?;
        let held = if self.role == Role::Holds { content.who.held } else { None };
        Some(held.unwrap_or(content.created))
    }

    /// The number of leases of the semaphore that the participant uses, if it is known.
    pub(crate) fn max_leases(&self) -> Option<i32> {
        self.content.as_ref()?.who.owner.as_ref()?.max_leases
    }

    /// Names the participant for a person.
    pub(crate) fn who(&self) -> String {
        let unknown = if self.is_unreadable { "not readable" } else { "has just left" };
        self.content.as_ref().map_or_else(|| unknown.to_owned(), |content| content.who.text.clone())
    }

    /// Describes the participant for a program.
    pub(crate) fn to_json(&self) -> Value {
        let content = self.content.as_ref();
        let owner = content.and_then(|content| content.who.owner.as_ref());
        json!({
            "node": self.node,
            "kind": self.kind.name(),
            "role": self.role.name(),
            "shared": self.is_shared,
            "foreign": !self.is_own_kind,
            "participant": content.map(|content| &content.who.text),
            "host": owner.map(|owner| &owner.host),
            "pid": owner.map(|owner| owner.pid),
            "user": owner.map(|owner| &owner.user),
            "command": owner.map(|owner| &owner.command),
            "leases": self.max_leases(),
            "held": content.and_then(|content| content.who.held).map(|held| format!("{held:.0}")),
            "created": content.map(|content| format!("{:.3}", content.created)),
            "token": content.map(|content| content.token),
            "session": content.map(|content| format!("0x{:x}", content.session)),
        })
    }
}

/// Reads the content of nodes.
pub(crate) fn read_contents<'e>(client: &Client, entries: impl IntoIterator<Item = &'e mut Entry>) -> ZkResult<()> {
    let mut entries = entries.into_iter();
    loop {
        let batch: Vec<&mut Entry> = entries.by_ref().take(BATCH).collect();
        if batch.is_empty() {
            return Ok(());
        }
        let start = |entry: &&mut Entry| client.start_read_node(&entry.node);
        let calls: Vec<Operation<Option<NodeContent>>> = batch.iter().map(start).collect::<ZkResult<_>>()?;
        for (entry, call) in batch.into_iter().zip(calls) {
            let node = match call.wait() {
                Err(error) if is_of_one_object(&error) => {
                    entry.is_unreadable = true;
                    None
                }
                node => node?,
            };
            entry.content = node.map(|node| Content {
                who: describe(&node.data, node.session_id),
                token: node.czxid,
                session: node.session_id,
                created: Timestamp::from_millisecond(node.created_ms).unwrap_or_default(),
            });
        }
    }
}

/// Returns whether an error concerns only the object of the request: a right, a size, or a refusal of the server. An
/// observer of many objects then continues with the next one.
pub(crate) fn is_of_one_object(error: &Error) -> bool {
    matches!(
        error.status(),
        Status::Denied | Status::Exhausted | Status::Server | Status::Unsupported | Status::Foreign
    )
}

/// Returns the path of a child.
pub(crate) fn below(path: &str, name: &str) -> String {
    format!("{}/{name}", path.trim_end_matches('/'))
}

/// Returns the lock of a node, if the name of the node is one that participants give to their nodes.
fn lock_of_node(client: &Client, path: &str) -> ZkResult<Option<String>> {
    let Some((directory, name)) = path.rsplit_once('/') else { return Ok(None) };
    let lock = match directory.strip_suffix("/leases").or_else(|| directory.strip_suffix("/locks")) {
        Some(semaphore) if QueueNode::is_lease(name) => semaphore,
        _ if client.order_queue([name])?.is_empty() => return Ok(None),
        _ => directory,
    };
    Ok(Some(if lock.is_empty() { "/" } else { lock }.to_owned()))
}

/// Returns the children that are no lock nodes, in the order of their names. `/zookeeper` belongs to the server.
fn others<'n>(names: impl Iterator<Item = &'n str>, queue: &[QueueNode]) -> Vec<String> {
    let queue: std::collections::BTreeSet<&str> = queue.iter().map(|node| node.name.as_str()).collect();
    let mut others: Vec<String> = names.filter(|name| !queue.contains(name)).map(str::to_owned).collect();
    others.sort_unstable();
    others
}
