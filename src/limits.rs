//! The tunable constants of the session, the engine and the recipes, in one struct.
//!
//! Programs always run with [`Limits::default`]. The simulation draws other values for each seed, so that a few clients reach branches
//! that otherwise take hundreds of watches or thousands of cycles.

#![forbid(unsafe_code)]

use std::time::Duration;

/// Thresholds of one client; see the module's description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of paths in one `setWatches` request, at most. A single longer path has a request to itself. If a server closes the
    /// connection on such a request, the client halves its bound.
    pub watch_batch: usize,
    /// The bound is not halved any more once it is below this.
    pub least_watch_batch: usize,
    /// A request of at least this many bytes may be the reason why a server closed its connection. No server works with a smaller
    /// `jute.maxbuffer`: names and paths would not fit.
    pub suspect_size: usize,
    /// How long a request of a size that servers have refused is not sent again: servers may be restarted with another limit.
    pub suspicion: Duration,
    /// A connection that lasted this long counts as sound: after its loss the client reconnects without a pause.
    pub sound_connection: Duration,
    /// Contenders of one client that may be on their way out while others join. Each of them lengthens the lists of all clients.
    pub max_leaving: usize,
    /// The pause after a server has refused a step on the way out; it doubles each time, up to `last_retry`.
    pub first_retry: Duration,
    /// The longest such pause.
    pub last_retry: Duration,
    /// How long a multi-lock waits before it looks for deadlocks with other contenders; it doubles each time, up to `last_look`.
    pub first_look: Duration,
    /// The longest pause between two such looks.
    pub last_look: Duration,
    /// The pause before a deadlock that was seen once is looked for again.
    pub second_look: Duration,
    /// A multi-lock with more contenders ahead of it in one queue does not look: a look reads whole queues.
    pub most_ahead: usize,
    /// When directories are mirrored.
    pub mirror: MirrorLimits,
}

/// Thresholds of the mirrors of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MirrorLimits {
    /// A contender that joins a directory within this time after the one before it uses the directory heavily.
    pub soon: Duration,
    /// Number of such joins in a row after which a mirror pays.
    pub hot: u32,
    /// If a client has this many contenders in a directory at once, a mirror pays.
    pub company: u32,
    /// A mirror that was not used for this long is taken down.
    pub idle: Duration,
    /// A mirror does not begin if more sessions than this are in the queue. Each of them that has a mirror receives each change; a
    /// list and a watch for each contender that joins cost as much as that with about a dozen sessions.
    pub few: usize,
    /// A mirror is given up if more sessions than this are in the queue.
    pub many: usize,
    /// Changes by others, while nothing of this client joins or leaves, after which a mirror costs more than it saves.
    pub noise: u32,
    /// Directories that are mirrored at once, at most.
    pub most: usize,
    /// Uses of a mirror since the last change by another client, after which a watch on the directory is enough.
    pub solo: u32,
    /// How long a directory is not mirrored after a mirror was given up because of `many` or `noise`.
    pub pause: Duration,
    /// How long a directory is not mirrored after a mirror that was wrong, or was refused.
    pub ban: Duration,
    /// A contender that has waited for one or two of these reads the node ahead of it, to know whose it is.
    pub look: Duration,
    /// How often a mirror is tried, if the connection is lost each time: a server that does not know the watch may hang up.
    pub tries: u32,
    /// Number of directories whose use is remembered.
    pub remembered: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            watch_batch: 32 * 1024,
            least_watch_batch: 1024,
            suspect_size: 1024,
            suspicion: Duration::from_secs(60),
            sound_connection: Duration::from_secs(1),
            max_leaving: 16,
            first_retry: Duration::from_millis(250),
            last_retry: Duration::from_secs(30),
            first_look: Duration::from_millis(250),
            last_look: Duration::from_secs(8),
            second_look: Duration::from_millis(100),
            most_ahead: 16,
            mirror: MirrorLimits::default(),
        }
    }
}

impl Default for MirrorLimits {
    fn default() -> Self {
        Self {
            soon: Duration::from_millis(250),
            hot: 3,
            company: 2,
            idle: Duration::from_secs(1),
            few: 8,
            many: 12,
            noise: 256,
            most: 128,
            solo: 32,
            pause: Duration::from_secs(5),
            ban: Duration::from_secs(30),
            look: Duration::from_millis(100),
            tries: 3,
            remembered: 1024,
        }
    }
}
