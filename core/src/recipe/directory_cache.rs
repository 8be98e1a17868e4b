//! Directory caches. A client keeps the queue of a heavily used directory in memory, and updates it through one
//! persistent recursive watch. Contenders in this directory do not request lists or set watches. An acquire and its
//! release then cost only one create request and one delete request.
//!
//! Before a server answers a request, it sends the events of all earlier changes on the same connection. When the
//! client reads the reply to a create request, the cache therefore contains all changes up to the creation of the node.
//! Each cache checks that it has missed no node. The server numbers all children of a directory, and each new name
//! contains the next number. If the cache does not receive a number, it has missed a node and ends at once. For
//! example, the server sends no events about a node that the client may not read (ZOOKEEPER-4799). A cache also ends if
//! the server reports the deletion of a node that the cache does not contain. All caches end when the client loses the
//! connection.
//!
//! A directory that only this client uses needs no cache. Suppose that the client's node was the only node in the
//! directory. If the client's next node gets the next sequence number, no other client has created a node in the
//! meantime. The client must also watch the directory itself (see [`UncontendedPath`]). If the directory is deleted and
//! created again, its sequence numbers start again.
//!
//! The servers send every change to every client that has a cache. Caches are therefore useful only for directories
//! with few sessions. The name of a node does not contain its session, but all nodes of a client have a common name
//! prefix ([`client_prefix`](super::name::client_prefix)).

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use zklock_proto::{Code, EventKind, Request, Response, Stat};

use super::name::{self, ChildKind, Mode};
use super::queue_index::QueueIndex;
use super::rank::Rank;
use super::{RequestKind, Tag};
use crate::limits::DirectoryCacheLimits;
use crate::mutant::Mutant;
use crate::session::{CacheId, Failure, MachineId, Session, Subscriber};
use crate::time::Time;

/// Contains all directory caches and uncontended paths of one client.
#[derive(Debug)]
pub(crate) struct DirectoryCaches {
    limits: DirectoryCacheLimits,
    /// The half of a UUID that the names of all nodes of this client contain. `own_prefix` is a name prefix with this
    /// half.
    client_uuid_high: u64,
    own_prefix: String,
    caches: BTreeMap<CacheId, DirectoryCache>,
    uncontended: BTreeMap<CacheId, UncontendedPath>,
    by_directory: HashMap<Arc<str>, CacheId>,
    usage: HashMap<Arc<str>, DirectoryUsage>,
    /// The number of usage records at which the client removes old records.
    cleanup_threshold: usize,
    last_id: u64,
    attempts_left: u32,
    /// True if the connection was lost while the client was setting a watch for a cache.
    has_start_failed: bool,
    events: VecDeque<(MachineId, CacheEvent)>,
    timeout: Option<Time>,
    /// The state machines in `new_waiters` began to wait after the last call of [`DirectoryCaches::advance`]. The state
    /// machines in `waiters` began to wait before this call.
    new_waiters: Vec<MachineId>,
    waiters: Vec<MachineId>,
}

/// An event for a contender that uses a directory cache.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CacheEvent {
    /// The client has loaded the cache.
    Live,
    /// The cache has ended. The value is true if the cache was consistent until its end, and false if the cache may
    /// have been wrong.
    Ended(bool),
    /// The node at this path was deleted.
    NodeDeleted(String),
    /// A server has answered this client's request to delete the node at this path, so the session was alive at that
    /// time. The node no longer exists. The event of its deletion may arrive before or after the answer.
    NodeDeletedByUs(String),
    /// The contender has waited for some time. It must now read its predecessor to find out the owner of this node.
    ReadPredecessor,
}

/// The result of a request that deletes a node of this client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deletion {
    /// The request deleted the node.
    Done,
    /// The node did not exist when the server performed the request.
    Missing,
    Refused,
}

/// Describes how this client uses a directory.
#[derive(Debug)]
struct DirectoryUsage {
    last_join: Time,
    /// `rapid_joins` is the number of consecutive joins that each came shortly after the previous join.
    /// `present_contenders` is the number of this client's contenders in the directory.
    rapid_joins: u32,
    present_contenders: u32,
    /// True if a contender found nodes of other contenders in the directory.
    is_contended: bool,
    no_cache_until: Option<Time>,
}

/// An uncontended path: a directory whose only node belonged to this client.
#[derive(Debug)]
struct UncontendedPath {
    directory: Arc<str>,
    /// The sequence number of this client's last node in the directory.
    last_sequence: i64,
    /// True if this client has deleted its last node.
    is_deleted: bool,
    /// True if the client watches the directory. The client set the watch while its node existed. If the watch has not
    /// fired, the directory has not been deleted.
    is_watched: bool,
    last_use: Time,
}

/// The result of a search for a node.
#[derive(Debug)]
pub(super) enum Lookup {
    /// The directory has no cache.
    NoCache,
    /// The client is loading the cache.
    Loading,
    /// The rank of the node.
    Ranked(Rank),
}

#[derive(Debug)]
struct DirectoryCache {
    directory: Arc<str>,
    state: CacheState,
    queue: QueueIndex,
    /// The size of the changes that have arrived before the list, in bytes.
    loading_size: usize,
    /// The sequence number that the server will give to the next child.
    next_sequence: i64,
    /// Contenders that use this cache instead of a list.
    users: BTreeSet<MachineId>,
    /// Nodes of this client for which a delete request is in flight.
    pending_deletes: BTreeMap<String, PendingDelete>,
    foreign_changes: u32,
    /// The number of uses since the last change by another client.
    uses_since_foreign_change: u32,
    last_use: Time,
}

#[derive(Debug)]
enum CacheState {
    /// The client has requested the watch and the list. The value contains the changes since that request. Each change
    /// has the name of a child, and true for a creation or false for a deletion.
    Loading(Vec<(String, bool)>),
    Live,
}

/// A delete request of this client that is in flight. The client notifies the contenders behind the node only when the
/// reply arrives. The reply shows that the delete request, and not the end of the session, has deleted the node.
#[derive(Debug, Default)]
struct PendingDelete {
    is_deleted: bool,
    subscribers: Vec<MachineId>,
}

/// The error for a cache whose content differs from the directory.
struct Inconsistent;

/// The reason why a cache ends.
#[derive(Debug, Clone, Copy)]
enum EndReason {
    /// The client has not used the cache for some time, or is alone in the directory.
    Unused,
    /// Too many clients use the queue, or other clients change it too often.
    TooBusy,
    /// The server refused a request, or the cache differs from the directory.
    Unreliable,
}

impl DirectoryCaches {
    /// Creates an empty collection of caches. `client_uuid_high` is the half of a UUID that the names of all nodes of
    /// this client contain.
    pub(crate) fn new(client_uuid_high: u64, limits: DirectoryCacheLimits) -> Self {
        Self {
            limits,
            client_uuid_high,
            own_prefix: name::protected_prefix(client_uuid_high, 0),
            caches: BTreeMap::new(),
            uncontended: BTreeMap::new(),
            by_directory: HashMap::new(),
            usage: HashMap::new(),
            cleanup_threshold: limits.remembered_directories,
            last_id: 0,
            attempts_left: limits.max_failed_starts,
            has_start_failed: false,
            events: VecDeque::new(),
            timeout: None,
            new_waiters: Vec::new(),
            waiters: Vec::new(),
        }
    }

    /// Returns the half of a UUID that the names of all nodes of this client contain.
    pub(crate) const fn client_uuid_high(&self) -> u64 {
        self.client_uuid_high
    }

    /// Returns the next event and its recipient.
    pub(crate) fn poll_event(&mut self) -> Option<(MachineId, CacheEvent)> {
        self.events.pop_front()
    }

    /// Returns the time at which [`advance`](Self::advance) must be called.
    pub(crate) const fn next_timeout(&self) -> Option<Time> {
        self.timeout
    }

    // Calls of contenders.

    /// Records that a contender is about to create nodes in a directory. Returns the id of the cache or uncontended
    /// path that will determine the ranks of the nodes. If the result is `None`, the contender must list the directory.
    pub(super) fn begin_use(
        &mut self,
        now: Time,
        session: &mut Session<Tag>,
        directory: &Arc<str>,
        index: impl FnOnce() -> QueueIndex,
        machine_id: MachineId,
    ) -> Option<CacheId> {
        let pays = self.record_join(now, directory);
        let cache_id = self.by_directory.get(directory).copied();
        if let Some(uncontended) = cache_id.and_then(|cache_id| self.uncontended.get_mut(&cache_id)) {
            uncontended.last_use = now;
            return cache_id;
        }
        if let Some(cache) = cache_id.and_then(|cache_id| self.caches.get_mut(&cache_id)) {
            if !cache.queue.has_same_mode(&index()) {
                return None;
            }
            cache.users.insert(machine_id);
            (cache.foreign_changes, cache.last_use) = (0, now);
            return cache_id;
        }
        let may_begin = pays && self.attempts_left > 0 && self.caches.len() < self.limits.max_caches;
        if may_begin { self.start_cache(now, session, directory, index(), machine_id) } else { None }
    }

    /// Returns whether a new node would probably have no contender ahead. The method sends no request. The name of the
    /// new node would begin with `name_prefix`. If the directory is an uncontended path, the result is probable but not
    /// certain. After the creation, the sequence number of the new node shows whether another client has created a node
    /// in the meantime.
    pub(super) fn is_known_free(
        &self,
        directory: &str,
        index: impl FnOnce() -> QueueIndex,
        name_prefix: &str,
        mode: Mode,
    ) -> bool {
        let Some(cache_id) = self.by_directory.get(directory) else { return false };
        if let Some(uncontended) = self.uncontended.get(cache_id) {
            return uncontended.is_watched && uncontended.is_deleted;
        }
        let cache = self.caches.get(cache_id).filter(|cache| cache.is_live() && cache.queue.has_same_mode(&index()));
        cache.is_some_and(|cache| {
            let own = format!("{name_prefix}{:0digits$}", cache.next_sequence, digits = name::DIGITS);
            cache.next_sequence >= 0 && cache.queue.rank(&own, mode, &[]) == Rank::First
        })
    }

    /// Records that a node of this client was first in a list of `count` nodes. If this node was the only node and the
    /// directory is used often, the method returns the id of a new uncontended path.
    pub(super) fn record_first(
        &mut self,
        now: Time,
        session: &mut Session<Tag>,
        directory: &Arc<str>,
        count: usize,
        own_sequence: Option<i64>,
    ) -> Option<CacheId> {
        let usage = self.usage.get_mut(directory)?;
        usage.is_contended |= count > 1;
        let may_begin = !usage.is_contended
            && usage.rapid_joins >= self.limits.joins_to_start
            && !self.by_directory.contains_key(directory);
        let (true, Some(own_sequence)) =
            (may_begin && self.uncontended.len() < self.limits.remembered_directories, own_sequence)
        else {
            return None;
        };
        let cache_id = self.next_id();
        // The server must set the watch before it deletes the client's node. This order is certain, because the client
        // has not sent the delete request yet, and the server performs requests in order.
        session.watch_data(
            now,
            directory,
            Subscriber::Cache(cache_id),
            Tag { recipient: Some(Subscriber::Cache(cache_id)), kind: RequestKind::WatchDirectory },
        );
        let uncontended = UncontendedPath {
            directory: Arc::clone(directory),
            last_sequence: own_sequence,
            is_deleted: false,
            is_watched: false,
            last_use: now,
        };
        self.uncontended.insert(cache_id, uncontended);
        self.by_directory.insert(Arc::clone(directory), cache_id);
        self.schedule_timeout(now + self.limits.idle_time);
        Some(cache_id)
    }

    /// Records that a list contained another node ahead of a node of this client.
    pub(super) fn record_contended(&mut self, directory: &str) {
        if let Some(usage) = self.usage.get_mut(directory) {
            usage.is_contended = true;
        }
    }

    /// Records that a contender has completely left the directory.
    pub(super) fn end_use(
        &mut self,
        now: Time,
        session: &mut Session<Tag>,
        directory: &str,
        cache_id: Option<CacheId>,
        machine_id: MachineId,
    ) {
        if let Some(usage) = self.usage.get_mut(directory) {
            usage.present_contenders = usage.present_contenders.saturating_sub(1);
        }
        let Some(cache_id) = cache_id else { return };
        if let Some(cache) = self.caches.get_mut(&cache_id) {
            cache.users.remove(&machine_id);
            (cache.foreign_changes, cache.last_use) = (0, now);
            if cache.uses_since_foreign_change >= self.limits.max_unshared_uses
                && cache.users.is_empty()
                && cache.queue.is_empty()
            {
                self.end_unshared_cache(now, session, cache_id);
            }
        }
    }

    /// Returns whether the cache or uncontended path still exists.
    pub(super) fn contains(&self, cache_id: CacheId) -> bool {
        self.caches.contains_key(&cache_id) || self.uncontended.contains_key(&cache_id)
    }

    /// Returns the rank of a node of this client. If the cache does not contain the node, the cache is wrong and ends.
    pub(super) fn rank(
        &mut self,
        now: Time,
        session: &mut Session<Tag>,
        cache_id: CacheId,
        own: &str,
        own_sequence: Option<i64>,
        rank: impl FnOnce(&QueueIndex) -> Rank,
    ) -> Lookup {
        if let Some(uncontended) = self.uncontended.get_mut(&cache_id) {
            if own_sequence.is_some_and(|own_sequence| uncontended.record_next(own_sequence)) {
                return Lookup::Ranked(Rank::First);
            }
            let directory = Arc::clone(&uncontended.directory);
            self.record_contended(&directory);
            self.end_uncontended(now, session, cache_id);
            return Lookup::NoCache;
        }
        match self.caches.get_mut(&cache_id) {
            None => Lookup::NoCache,
            Some(DirectoryCache { state: CacheState::Loading(_), .. }) => Lookup::Loading,
            Some(cache) if cache.queue.contains(own) => {
                cache.uses_since_foreign_change = cache.uses_since_foreign_change.saturating_add(1);
                Lookup::Ranked(rank(&cache.queue))
            }
            Some(_) => {
                self.end_cache(now, session, cache_id, EndReason::Unreliable);
                Lookup::NoCache
            }
        }
    }

    /// Subscribes a state machine to the deletion of a node. The method returns false if the cache does not contain the
    /// node.
    pub(super) fn subscribe(&mut self, cache_id: CacheId, name: &str, machine_id: MachineId) -> bool {
        let cache = self.caches.get_mut(&cache_id).filter(|cache| cache.is_live());
        let Some(entry) = cache.and_then(|cache| cache.queue.entry_mut(name)) else { return false };
        if !entry.subscribers.contains(&machine_id) {
            entry.subscribers.push(machine_id);
        }
        true
    }

    /// Schedules [`CacheEvent::ReadPredecessor`] for a contender that does not know the owner of its predecessor.
    pub(super) fn schedule_predecessor_read(&mut self, now: Time, machine_id: MachineId) {
        self.new_waiters.push(machine_id);
        self.schedule_timeout(now + self.limits.read_delay);
    }

    /// Ends the subscription of a state machine to the deletion of a node.
    pub(super) fn unsubscribe(&mut self, cache_id: CacheId, name: &str, machine_id: MachineId) {
        let Some(cache) = self.caches.get_mut(&cache_id) else { return };
        if let Some(pending_delete) = cache.pending_deletes.get_mut(name) {
            pending_delete.subscribers.retain(|&subscriber| subscriber != machine_id);
        }
        if let Some(entry) = cache.queue.entry_mut(name) {
            entry.subscribers.retain(|&subscriber| subscriber != machine_id);
        }
    }

    /// Replaces the user and subscriber `from` by the subscriber `to`.
    pub(super) fn transfer(&mut self, cache_id: CacheId, name: &str, from: MachineId, to: MachineId) {
        let Some(cache) = self.caches.get_mut(&cache_id) else { return };
        if cache.users.remove(&from) {
            cache.users.insert(to);
        }
        let subscribers = cache.queue.entry_mut(name).into_iter().flat_map(|entry| &mut entry.subscribers);
        subscribers.filter(|subscriber| **subscriber == from).for_each(|subscriber| *subscriber = to);
    }

    /// Records that the client is about to send a delete request for this node.
    pub(super) fn on_delete_sent(&mut self, cache_id: CacheId, name: &str, machine_id: MachineId) {
        self.unsubscribe(cache_id, name, machine_id);
        if let Some(cache) = self.caches.get_mut(&cache_id) {
            cache.pending_deletes.entry(name.to_owned()).or_default();
        }
    }

    /// Handles the reply to a delete request.
    pub(super) fn on_delete_reply(
        &mut self,
        now: Time,
        session: &mut Session<Tag>,
        cache_id: CacheId,
        name: &str,
        own_sequence: Option<i64>,
        how: Deletion,
    ) {
        if let Some(uncontended) =
            self.uncontended.get_mut(&cache_id).filter(|uncontended| Some(uncontended.last_sequence) == own_sequence)
        {
            uncontended.last_use = now;
            uncontended.is_deleted = how == Deletion::Done;
            if how != Deletion::Done {
                // Another client may have deleted the node. In this case, the directory may also have been deleted and
                // created again.
                self.end_uncontended(now, session, cache_id);
            }
        }
        let is_gone = how != Deletion::Refused;
        let Some(cache) = self.caches.get_mut(&cache_id) else { return };
        let Some(pending_delete) = cache.pending_deletes.remove(name) else { return };
        let path = format!("{}/{name}", cache.directory);
        let events = pending_delete.subscribers.into_iter();
        match (is_gone, pending_delete.is_deleted) {
            (true, true) => {
                self.events.extend(events.map(|subscriber| (subscriber, CacheEvent::NodeDeletedByUs(path.clone()))));
            }
            (false, true) => {
                self.events.extend(events.map(|subscriber| (subscriber, CacheEvent::NodeDeleted(path.clone()))));
            }
            (true, false) if cache.queue.contains(name) => {
                self.end_cache(now, session, cache_id, EndReason::Unreliable);
            }
            (_, false) => {}
        }
    }

    /// Ends a cache, because the client could not read one of its nodes and the cache is therefore wrong.
    pub(super) fn report_unreadable(&mut self, now: Time, session: &mut Session<Tag>, cache_id: CacheId, name: &str) {
        if self.caches.get(&cache_id).is_some_and(|cache| cache.queue.contains(name)) {
            self.end_cache(now, session, cache_id, EndReason::Unreliable);
        }
    }

    // Inputs of the engine.

    /// Ends all caches, because the connection is lost. The engine itself notifies the contenders of the loss of the
    /// connection.
    pub(crate) fn on_disconnected(&mut self, now: Time, session: &mut Session<Tag>) {
        if Mutant::KeepCacheAfterDisconnect.is_active() {
            return;
        }
        self.attempts_left = self.attempts_left.saturating_sub(u32::from(std::mem::take(&mut self.has_start_failed)));
        for cache_id in self.uncontended.keys().copied().collect::<Vec<_>>() {
            self.end_uncontended(now, session, cache_id);
        }
        self.caches.clear();
        self.by_directory.clear();
        self.events.clear();
        self.new_waiters.clear();
        self.waiters.clear();
        self.timeout = None;
    }

    /// Handles the reply to a request that a cache made.
    pub(crate) fn on_reply(
        &mut self,
        now: Time,
        session: &mut Session<Tag>,
        cache_id: CacheId,
        kind: RequestKind,
        result: Result<Response, Failure>,
    ) {
        if let Some(uncontended) = self.uncontended.get_mut(&cache_id) {
            match result {
                Ok(_) => uncontended.is_watched = true,
                Err(_) => self.end_uncontended(now, session, cache_id),
            }
            return;
        }
        let is_watch = kind == RequestKind::WatchRecursive;
        match result {
            // The session reports the loss of the connection next. When the connection is lost, the cache ends.
            Err(Failure::ConnectionLost) => self.has_start_failed |= is_watch,
            Err(Failure::Code(Code::UNIMPLEMENTED)) if is_watch => {
                self.attempts_left = 0;
                self.end_cache(now, session, cache_id, EndReason::Unreliable);
            }
            Ok(_) if is_watch => self.attempts_left = self.limits.max_failed_starts,
            Ok(Response::Children2 { children, stat }) => self.on_list(now, session, cache_id, children, Some(stat)),
            Err(Failure::Code(Code::NO_NODE)) if !is_watch => self.on_list(now, session, cache_id, Vec::new(), None),
            Ok(_) | Err(_) => {
                self.end_cache(now, session, cache_id, EndReason::Unreliable);
            }
        }
    }

    /// Handles an event of a directory or of a node in it.
    pub(crate) fn on_watch_fired(
        &mut self,
        now: Time,
        session: &mut Session<Tag>,
        cache_id: CacheId,
        kind: EventKind,
        path: &str,
    ) {
        if self.uncontended.contains_key(&cache_id) && !Mutant::ForgetDirectory.is_active() {
            return self.end_uncontended(now, session, cache_id);
        }
        let memory = self.memory_of_a_cache();
        let Some(cache) = self.caches.get_mut(&cache_id) else { return };
        if kind == EventKind::PersistentWatchRemoved {
            return self.end_cache(now, session, cache_id, EndReason::TooBusy);
        }
        let seen = cache.on_event(name::client_prefix(&self.own_prefix), kind, path, &mut self.events);
        let reason = match seen {
            Err(Inconsistent) => EndReason::Unreliable,
            Ok(())
                if cache.foreign_changes > self.limits.max_foreign_changes
                    || cache.queue.client_count() > self.limits.max_clients
                    || cache.size() > memory =>
            {
                EndReason::TooBusy
            }
            Ok(()) => return,
        };
        self.end_cache(now, session, cache_id, reason);
    }

    /// Performs all actions whose time has come.
    pub(crate) fn advance(&mut self, now: Time, session: &mut Session<Tag>) {
        if self.timeout.is_none_or(|due| now < due) {
            return;
        }
        let is_idle = |cache: &DirectoryCache| cache.users.is_empty() && now >= cache.last_use + self.limits.idle_time;
        let idle = self.caches.iter().filter(|(_, cache)| is_idle(cache)).map(|(&cache_id, _)| cache_id);
        for cache_id in idle.collect::<Vec<_>>() {
            self.end_cache(now, session, cache_id, EndReason::Unused);
        }
        let idle = self
            .uncontended
            .iter()
            .filter(|(_, uncontended)| now >= uncontended.last_use + self.limits.idle_time)
            .map(|(&cache_id, _)| cache_id);
        for cache_id in idle.collect::<Vec<_>>() {
            self.end_uncontended(now, session, cache_id);
        }
        // A waiter receives one event, at the second call of this method after it began to wait.
        let waiting = std::mem::replace(&mut self.waiters, std::mem::take(&mut self.new_waiters));
        self.events.extend(waiting.into_iter().map(|waiting| (waiting, CacheEvent::ReadPredecessor)));
        let pause = if self.waiters.is_empty() { self.limits.idle_time } else { self.limits.read_delay };
        let is_needed = !self.caches.is_empty() || !self.uncontended.is_empty();
        self.timeout = is_needed.then(|| now + pause);
    }

    // How caches start and end.

    fn start_cache(
        &mut self,
        now: Time,
        session: &mut Session<Tag>,
        directory: &Arc<str>,
        index: QueueIndex,
        machine_id: MachineId,
    ) -> Option<CacheId> {
        if &**directory == "/" {
            // A cache expects that the path of each child begins with the path of the directory and a slash. The
            // children of the root directory `/` do not have such paths.
            return None;
        }
        let cache_id = self.next_id();
        let subscriber = Subscriber::Cache(cache_id);
        let tag = |kind| Tag { recipient: Some(subscriber), kind };
        if !session.watch_recursive(now, directory, subscriber, tag(RequestKind::WatchRecursive)) {
            return None;
        }
        let list = Request::GetChildren2 { path: directory.to_string(), watch: false };
        session.submit(now, &list, tag(RequestKind::List(0)));
        let cache = DirectoryCache {
            directory: Arc::clone(directory),
            state: CacheState::Loading(Vec::new()),
            queue: index,
            loading_size: 0,
            next_sequence: 0,
            users: BTreeSet::from([machine_id]),
            pending_deletes: BTreeMap::new(),
            foreign_changes: 0,
            uses_since_foreign_change: 0,
            last_use: now,
        };
        self.caches.insert(cache_id, cache);
        self.by_directory.insert(Arc::clone(directory), cache_id);
        self.schedule_timeout(now + self.limits.idle_time);
        Some(cache_id)
    }

    fn next_id(&mut self) -> CacheId {
        self.last_id += 1;
        CacheId(self.last_id)
    }

    fn on_list(
        &mut self,
        now: Time,
        session: &mut Session<Tag>,
        cache_id: CacheId,
        children: Vec<String>,
        stat: Option<Stat>,
    ) {
        let memory = self.memory_of_a_cache();
        let Some(cache) = self.caches.get_mut(&cache_id) else { return };
        let CacheState::Loading(changes) = std::mem::replace(&mut cache.state, CacheState::Live) else { return };
        // The list already includes the changes that the server has reported since it set the watch. If several of
        // these changes concern the same child, the list must agree with the last change.
        let last_changes: BTreeMap<String, bool> = changes.into_iter().collect();
        let listed: BTreeSet<&String> = children.iter().collect();
        if last_changes.iter().any(|(name, &is_there)| listed.contains(name) != is_there) {
            return self.end_cache(now, session, cache_id, EndReason::Unreliable);
        }
        cache.loading_size = 0;
        cache.next_sequence = stat.map_or(0, children_created);
        children.iter().for_each(|name| {
            cache.queue.insert(name);
        });
        if cache.queue.client_count() > self.limits.max_clients_to_start || cache.size() > memory {
            return self.end_cache(now, session, cache_id, EndReason::TooBusy);
        }
        self.events.extend(cache.users.iter().map(|&user| (user, CacheEvent::Live)));
    }

    /// Returns how many bytes one cache may need.
    fn memory_of_a_cache(&self) -> usize {
        self.limits.max_memory / self.caches.len().max(1)
    }

    /// Ends a cache and notifies its users.
    fn end_cache(&mut self, now: Time, session: &mut Session<Tag>, cache_id: CacheId, reason: EndReason) {
        let Some(cache) = self.caches.remove(&cache_id) else { return };
        let (was_consistent, pause) = match reason {
            EndReason::Unused => (true, None),
            EndReason::TooBusy => (true, Some(self.limits.busy_pause)),
            EndReason::Unreliable => (false, Some(self.limits.error_pause)),
        };
        self.by_directory.remove(&cache.directory);
        session.unwatch_recursive(now, &cache.directory);
        if !Mutant::EndCacheSilently.is_active() {
            self.events.extend(cache.users.into_iter().map(|user| (user, CacheEvent::Ended(was_consistent))));
        }
        if let Some(usage) = self.usage.get_mut(&cache.directory) {
            usage.no_cache_until = pause.map(|pause| now + pause);
        }
    }

    /// Ends a cache if other clients have changed nothing in its directory for some time.
    fn end_unshared_cache(&mut self, now: Time, session: &mut Session<Tag>, cache_id: CacheId) {
        if let Some(usage) = self.caches.get(&cache_id).and_then(|cache| self.usage.get_mut(&cache.directory)) {
            usage.is_contended = false;
        }
        self.end_cache(now, session, cache_id, EndReason::Unused);
    }

    fn end_uncontended(&mut self, now: Time, session: &mut Session<Tag>, cache_id: CacheId) {
        if let Some(UncontendedPath { directory, .. }) = self.uncontended.remove(&cache_id) {
            self.by_directory.remove(&directory);
            session.unwatch_data(now, &directory, Subscriber::Cache(cache_id));
        }
    }

    /// Records that a contender joins a directory. Returns whether a cache for the directory is worthwhile. A cache is
    /// worthwhile if several contenders use the directory often.
    fn record_join(&mut self, now: Time, directory: &Arc<str>) -> bool {
        if self.usage.len() >= self.cleanup_threshold && !self.usage.contains_key(directory) {
            self.usage.retain(|_, usage| {
                usage.present_contenders > 0 || usage.last_join + self.limits.quick_succession > now
            });
            // The client does not examine the remaining records at every join. The larger the number of remaining
            // records, the later the next cleanup.
            self.cleanup_threshold = self.limits.remembered_directories.max(self.usage.len() * 2);
        }
        let fresh = || DirectoryUsage {
            last_join: now,
            rapid_joins: 0,
            present_contenders: 0,
            is_contended: false,
            no_cache_until: None,
        };
        let usage = match self.usage.get_mut(directory) {
            Some(usage) => usage,
            None => self.usage.entry(Arc::clone(directory)).or_insert_with(fresh),
        };
        usage.rapid_joins = if usage.present_contenders > 0 || now < usage.last_join + self.limits.quick_succession {
            usage.rapid_joins.saturating_add(1)
        } else {
            0
        };
        usage.last_join = now;
        usage.is_contended &= usage.rapid_joins > 0;
        let is_hot = (usage.rapid_joins >= self.limits.joins_to_start && usage.is_contended)
            || usage.present_contenders >= self.limits.contenders_to_start;
        usage.present_contenders = usage.present_contenders.saturating_add(1);
        is_hot && usage.no_cache_until.is_none_or(|at| now >= at)
    }

    fn schedule_timeout(&mut self, at: Time) {
        self.timeout = Some(self.timeout.map_or(at, |due| due.min(at)));
    }
}

impl UncontendedPath {
    /// Records the sequence number of this client's new node. Returns whether the new node is the only node in the
    /// directory.
    fn record_next(&mut self, own_sequence: i64) -> bool {
        let is_next = own_sequence == self.last_sequence + 1 || Mutant::IgnoreSequenceGap.is_active();
        let is_only_node = self.is_watched && self.is_deleted && is_next;
        (self.last_sequence, self.is_deleted) = (own_sequence, false);
        is_only_node
    }
}

impl DirectoryCache {
    const fn is_live(&self) -> bool {
        matches!(self.state, CacheState::Live)
    }

    /// Returns about how much memory the cache needs, in bytes.
    const fn size(&self) -> usize {
        self.queue.size() + self.loading_size
    }

    /// Handles an event of the directory or of a node in it.
    fn on_event(
        &mut self,
        client_prefix: &str,
        kind: EventKind,
        path: &str,
        events: &mut VecDeque<(MachineId, CacheEvent)>,
    ) -> Result<(), Inconsistent> {
        let name = match path.strip_prefix(&*self.directory) {
            Some("") => return self.on_directory_event(kind),
            Some(below) => below.strip_prefix('/').filter(|name| !name.contains('/')),
            None => None,
        };
        if name.is_none_or(|name| name::client_prefix(name) != client_prefix) {
            self.foreign_changes += 1;
            self.uses_since_foreign_change = 0;
        }
        let (Some(name), EventKind::Created | EventKind::Deleted) = (name, kind) else { return Ok(()) };
        let is_created = kind == EventKind::Created;
        if let CacheState::Loading(changes) = &mut self.state {
            changes.push((name.to_owned(), is_created));
            self.loading_size += size_of::<(String, bool)>() + name.len();
            return Ok(());
        }
        if is_created { self.add_child(name) } else { self.remove_child(name, path, events) }
    }

    /// Handles the creation or deletion of the directory itself.
    fn on_directory_event(&mut self, kind: EventKind) -> Result<(), Inconsistent> {
        match kind {
            EventKind::Created => self.next_sequence = 0,
            EventKind::Deleted if self.is_live() && !self.queue.is_empty() => return Err(Inconsistent),
            // The next sequence number is unknown until an event reports that the directory was created again.
            EventKind::Deleted => self.next_sequence = -1,
            _ => {}
        }
        Ok(())
    }

    fn add_child(&mut self, name: &str) -> Result<(), Inconsistent> {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        match self.queue.insert(name) {
            Some(ChildKind::Unrelated | ChildKind::Foreign(_)) => Ok(()),
            // A nested read lock takes the number of the write node, so the name does not contain the next number.
            Some(ChildKind::Contender(contender)) if contender.is_shared && self.queue.is_nested(name) => Ok(()),
            Some(ChildKind::Contender(contender)) if contender.sequence.parse() == Ok(sequence) => Ok(()),
            Some(ChildKind::Contender(_)) | None => Err(Inconsistent),
        }
    }

    fn remove_child(
        &mut self,
        name: &str,
        path: &str,
        events: &mut VecDeque<(MachineId, CacheEvent)>,
    ) -> Result<(), Inconsistent> {
        let subscribers = self.queue.remove(name).ok_or(Inconsistent)?;
        if Mutant::SkipCacheSubscribers.is_active() {
            return Ok(());
        }
        match self.pending_deletes.get_mut(name) {
            Some(pending_delete) => *pending_delete = PendingDelete { is_deleted: true, subscribers },
            None => events.extend(
                subscribers.into_iter().map(|subscriber| (subscriber, CacheEvent::NodeDeleted(path.to_owned()))),
            ),
        }
        Ok(())
    }
}

/// Returns the number of children that a directory has ever had. The counter `cversion` counts creations and deletions,
/// and wraps around at 32 bits. A deleted child therefore counts twice in `cversion`. A present child counts once in
/// `cversion`, and once in the number of present children. The sum of the two numbers counts each child twice.
pub(super) const fn children_created(stat: Stat) -> i64 {
    (stat.cversion.cast_unsigned().wrapping_add(stat.num_children.cast_unsigned()) / 2) as i64
}
