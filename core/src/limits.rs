//! The tunable constants of the session, the engine and the recipes.
//!
//! Programs always use [`Limits::default`]. The simulation chooses other values for each seed. With these values, a few
//! clients are enough to reach code that otherwise runs only with hundreds of watches or after thousands of cycles.

use std::time::Duration;

/// The tunable constants of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of path bytes in one `setWatches` request. The client sends a longer path in a separate
    /// request. If a server closes the connection after such a request, the client halves its limit, and doubles it
    /// after an answer.
    pub watch_batch: usize,
    /// The client never halves the limit of `setWatches` requests below this number of bytes.
    pub least_watch_batch: usize,
    /// If a server closes a connection, the client suspects that a pending request was too large for the server. The
    /// client suspects only requests of at least this number of bytes. Every usable server accepts smaller requests,
    /// because names and paths would not fit into a smaller `jute.maxbuffer`.
    pub suspect_size: usize,
    /// If the client loses a connection that has lasted at least this long, it reconnects without a pause.
    pub sound_connection: Duration,
    /// If this number of contenders of one client are leaving their queues, no other contender of the client joins. The
    /// nodes of leaving contenders make the lists of all clients longer.
    pub max_leaving: usize,
    /// The pause after a server has refused a request of a leaving contender. The pause doubles after each refusal, up
    /// to `last_retry`.
    pub first_retry: Duration,
    /// The longest pause after a server has refused a request of a leaving contender.
    pub last_retry: Duration,
    /// The longest pause before the client repeats a request that a server has refused for the moment.
    pub last_repetition: Duration,
    /// The time after which a multi-lock checks for deadlocks with other contenders. The time doubles after each check,
    /// up to `longest_deadlock_check`.
    pub first_deadlock_check: Duration,
    /// The longest pause between two checks for deadlocks.
    pub longest_deadlock_check: Duration,
    /// The longest time after which a multi-lock checks for deadlocks if it has left its queues because of suspected
    /// deadlocks. The time doubles each time the multi-lock joins its queues again.
    pub longest_pause_after_deadlocks: Duration,
    /// The pause before a second check, which confirms a deadlock.
    pub deadlock_recheck: Duration,
    /// If more than this number of contenders are ahead of a multi-lock in one queue, the multi-lock does not check for
    /// deadlocks. Such a check would be expensive, because each check reads the whole queues.
    pub max_ahead_for_deadlock_check: usize,
    /// The tunable constants of directory caches.
    pub directory_cache: DirectoryCacheLimits,
}

/// The tunable constants of the directory caches of one client. A directory cache is a local copy of a directory. A
/// persistent recursive watch keeps the local copy up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryCacheLimits {
    /// If a contender joins a directory within this time after the previous contender, the two joins count as joins in
    /// quick succession.
    pub quick_succession: Duration,
    /// If contenders have joined a directory this number of times in quick succession, the client starts a cache for
    /// the directory.
    pub joins_to_start: u32,
    /// The client starts a cache if it has this number of contenders in a directory at the same time.
    pub contenders_to_start: u32,
    /// The client removes a cache that no contender has used for this time.
    pub idle_time: Duration,
    /// The client does not start a cache if more than this number of sessions have nodes in the queue. The server sends
    /// every change to each session that has a cache. With about a dozen sessions, a cache causes as much work as one
    /// list and one watch for each joining contender.
    pub max_clients_to_start: usize,
    /// The client removes a cache if more than this number of sessions have nodes in the queue.
    pub max_clients: usize,
    /// The client removes a cache after more than this number of changes by other clients. The count starts again when
    /// a contender of this client joins or leaves.
    pub max_foreign_changes: u32,
    /// The maximum number of directories that the client caches at the same time.
    pub max_caches: usize,
    /// The client removes a cache that needs more than its share of this memory, in bytes. All caches have the same
    /// share.
    pub max_memory: usize,
    /// If a cache was used this number of times without a change by another client, the client replaces the cache by a
    /// watch on the directory.
    pub max_unshared_uses: u32,
    /// If the client has removed a cache because of `max_clients`, `max_foreign_changes` or `max_memory`, it does not
    /// cache the directory again for this time.
    pub busy_pause: Duration,
    /// If a cache was wrong or a server refused its watch, the client does not cache the directory again for this time.
    pub error_pause: Duration,
    /// A contender that uses a directory cache reads the node ahead after one to two times this duration. It then knows
    /// the session of this node.
    pub read_delay: Duration,
    /// After this number of failed starts in a row, the client starts no more caches. A start fails if the client loses
    /// the connection while it sets the watch. A server that does not support persistent recursive watches may close
    /// the connection.
    pub max_failed_starts: u32,
    /// The client remembers for about this number of directories how often it has used each directory.
    pub remembered_directories: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            watch_batch: 32 * 1024,
            least_watch_batch: 1024,
            suspect_size: 1024,
            sound_connection: Duration::from_secs(1),
            max_leaving: 16,
            first_retry: Duration::from_millis(250),
            last_retry: Duration::from_secs(30),
            last_repetition: Duration::from_secs(2),
            first_deadlock_check: Duration::from_millis(250),
            longest_deadlock_check: Duration::from_secs(2),
            longest_pause_after_deadlocks: Duration::from_secs(30),
            deadlock_recheck: Duration::from_millis(100),
            max_ahead_for_deadlock_check: 16,
            directory_cache: DirectoryCacheLimits::default(),
        }
    }
}

impl Default for DirectoryCacheLimits {
    fn default() -> Self {
        Self {
            quick_succession: Duration::from_millis(250),
            joins_to_start: 3,
            contenders_to_start: 2,
            idle_time: Duration::from_secs(1),
            max_clients_to_start: 8,
            max_clients: 12,
            max_foreign_changes: 256,
            max_caches: 128,
            max_memory: 8 * 1024 * 1024,
            max_unshared_uses: 32,
            busy_pause: Duration::from_secs(5),
            error_pause: Duration::from_secs(30),
            read_delay: Duration::from_millis(100),
            max_failed_starts: 3,
            remembered_directories: 1024,
        }
    }
}
