//! Divides the client locks of a multi-lock into groups that one transaction can acquire, and decides the order of the
//! groups. The code in this file does not acquire locks.

use std::sync::Arc;

use zklock_core::engine::Recipe;
use zklock_core::error::{Result, Status};

use crate::client_lock::ClientLock;

/// Combines several locks of one client into one. To acquire the combined lock, the client joins all queues in one
/// transaction.
pub(crate) fn combine(group: Vec<&ClientLock>) -> Result<ClientLock> {
    let client = Arc::clone(&group.first().ok_or(Status::Internal)?.client);
    let path = match &*group {
        [first, others @ ..] if !others.is_empty() => format!("{} and {} more", first.path(), others.len()),
        _ => group.first().map(|client_lock| client_lock.path().to_string()).unwrap_or_default(),
    };
    ClientLock::new(client, &path, Recipe::MultiLock(group.iter().map(|client_lock| client_lock.id).collect()))
}

/// Divides client locks into groups. An engine can join all queues of one group in one transaction. The multi-lock
/// acquires the groups one after the other, in the returned order.
pub(crate) fn at_once(client_locks: Vec<&ClientLock>) -> Vec<Vec<&ClientLock>> {
    let mut groups: Vec<Vec<&ClientLock>> = Vec::new();
    for client_lock in client_locks {
        let is_queue = |client_lock: &ClientLock| matches!(client_lock.recipe(), Recipe::Queue(_));
        let joins = |group: &&mut Vec<&ClientLock>| {
            group.iter().all(|other| is_queue(other) && Arc::ptr_eq(&other.client, &client_lock.client))
                && is_queue(client_lock)
        };
        match groups.iter_mut().find(joins) {
            Some(group) => group.push(client_lock),
            None => groups.push(vec![client_lock]),
        }
    }
    groups.sort_by_cached_key(|group| group.iter().map(|&client_lock| acquire_order(client_lock)).min());
    groups
}

/// Puts each client lock into a separate group. The groups are in the same order as `client_locks`.
pub(crate) fn one_by_one(client_locks: Vec<&ClientLock>) -> Vec<Vec<&ClientLock>> {
    client_locks.into_iter().map(|client_lock| vec![client_lock]).collect()
}

/// Returns the key by which [`at_once`] sorts client locks. Semaphore mutexes come last.
fn acquire_order(client_lock: &ClientLock) -> (bool, &str, &str) {
    let is_semaphore = matches!(client_lock.recipe(), Recipe::SemaphoreMutex);
    (is_semaphore, client_lock.client.servers(), client_lock.path())
}
