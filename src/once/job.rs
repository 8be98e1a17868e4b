//! The job of a hold: the lock whose path names the record, and the requests for the record. This file decides nothing
//! about runs.

use std::sync::Arc;
use std::time::SystemTime;

use jiff::Timestamp;
use zklock_core::engine::Recipe;
use zklock_core::error::{Error, Result, Status};
use zklock_core::recipe::{Mode, NodeContent};

use super::period::timestamp;
use super::record::Record;
use crate::client::Client;
use crate::hold::Hold;
use crate::operation::Operation;

/// A hold, and the first path that it holds.
#[derive(Debug)]
pub(super) struct Job {
    client: Client,
    hold: Hold,
    /// The path of the lock, or of the first member lock of a multi-lock.
    pub(super) path: String,
    /// The first node of the hold.
    pub(super) node: String,
    /// The fencing token of that node.
    pub(super) token: i64,
}

impl Job {
    /// Fails with INVALID if several participants can hold the lock at the same time.
    pub(super) fn of(hold: &Hold) -> Result<Self> {
        hold.check_exists()?;
        let lock = hold.first_lock().ok_or(Status::Internal)?;
        let path = lock.path().to_string();
        if !is_exclusive(lock.recipe()) {
            let message = "a run needs a lock that only one participant can hold: a mutex, a semaphore mutex, a write lock, or a \
                           semaphore with exactly one lease";
            return Err(Error::invalid(format!("{path}: {message}")));
        }
        let (view, nodes) = lock.hold_and_nodes(hold.owner())?;
        let (Some(view), Some(node)) = (view, nodes.into_iter().next()) else {
            return Err(Error::new(Status::NotOwner, format!("{path}: the hold was already released")));
        };
        let client = Client { inner: Arc::clone(&lock.client) };
        Ok(Self { client, hold: hold.clone(), path, node, token: view.token })
    }

    /// Starts reading a node.
    pub(super) fn read(&self, node: &str) -> Result<Operation<Answer>> {
        Ok(self.client.start_read_node(node)?.and_then(|content| Ok(Answer::Content(content))))
    }

    /// Starts writing the record. Fails with LOST if the hold was lost, and with NOT_OWNER if it was released.
    pub(super) fn write(&self, record: &Record) -> Result<Operation<Answer>> {
        self.hold.check_exists()?;
        let write = self.client.start_write_node(&self.node, record.path(), &record.data(), record.version())?;
        Ok(write.and_then(|version| Ok(Answer::Written(version))))
    }
}

/// The answer to a request for the record or for the node of a hold.
pub(super) enum Answer {
    Content(Option<NodeContent>),
    /// The new version, or `None` if another program has changed the record.
    Written(Option<i32>),
}

impl Answer {
    /// Returns what a request to read a node has found.
    pub(super) fn content(self) -> Result<Option<NodeContent>> {
        match self {
            Self::Content(content) => Ok(content),
            Self::Written(_) => Err(Status::Internal.into()),
        }
    }
}

/// A shared count can change, so the number of leases of a counted semaphore is not known.
const fn is_exclusive(recipe: &Recipe) -> bool {
    matches!(recipe, Recipe::Queue(Mode::Mutex | Mode::Write) | Recipe::SemaphoreMutex | Recipe::Semaphore(1))
}

/// Returns the time of day in milliseconds, as the record contains it.
pub(super) fn wall_time() -> Result<SystemTime> {
    let now = timestamp(SystemTime::now())?;
    Ok(Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now).into())
}
