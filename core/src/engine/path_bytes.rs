//! Counts the bytes in the paths of all nodes of a session.
//!
//! The transaction that ends a session contains the paths of all ephemeral nodes of the session. A server cannot start again if its log
//! contains a transaction that is longer than twice its `jute.maxbuffer`. A session can end at any time without a request from its client.
//! The limit therefore applies at all times, and includes every node that may exist.

use crate::error::{Error, Status};
use crate::mutant::Mutant;

/// Three quarters of 1 MiB, which is the default of `jute.maxbuffer`. A server can read transactions of up to 1 MiB, whatever its settings
/// are. The remaining quarter is for the transaction's header and a safety margin.
pub const DEFAULT_MAX_PATH_BYTES: usize = 768 * 1024;

/// Counts the path bytes of all contenders of one session.
#[derive(Debug)]
pub(super) struct PathBytes {
    limit: usize,
    /// The bytes of all contenders. The engine adds the bytes of a contender before the contender creates its nodes, and subtracts them
    /// after the contender has left completely.
    all: usize,
    /// The bytes of the contenders that are leaving.
    leaving: usize,
}

impl PathBytes {
    pub(super) const fn new(limit: usize) -> Self {
        Self { limit, all: 0, leaving: 0 }
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Returns an error if `bytes` additional path bytes would exceed the limit. The check ignores leaving contenders, because the client
    /// will soon have deleted their nodes.
    pub(super) fn check(&self, path: &str, bytes: usize) -> Result<(), Error> {
        let staying = self.all.saturating_sub(self.leaving).saturating_add(bytes);
        if staying <= self.limit || Mutant::OverfillSession.is_active() {
            return Ok(());
        }
        let message = format!(
            "{path}: with {bytes} bytes more, the paths of this session's nodes would take {staying} bytes, and session.max_path_bytes \
             allows {}; use another client for more locks, or raise the limit together with jute.maxbuffer on all servers",
            self.limit
        );
        Err(Error::new(Status::Exhausted, message))
    }

    /// Returns whether the path bytes of all contenders, including leaving contenders, are within the limit.
    pub(super) fn has_room(&self) -> bool {
        self.all <= self.limit || Mutant::OverlookLeaving.is_active() || Mutant::OverfillSession.is_active()
    }

    /// Returns whether the session has so many nodes that the client must delete them before it closes the session.
    pub(super) const fn is_large(&self) -> bool {
        self.all > self.limit / 8
    }

    /// Returns how many path bytes one transaction may contain when the client deletes its nodes before it closes the session. This number
    /// is far below the servers' limits, and a failed transaction leaves only few nodes behind.
    pub(super) const fn delete_batch_bytes(&self) -> usize {
        self.limit / 64
    }

    pub(super) fn add(&mut self, bytes: usize) {
        self.all = self.all.saturating_add(bytes);
    }

    /// Records that a contender has begun to leave or has stopped leaving.
    pub(super) fn set_leaving(&mut self, bytes: usize, was_leaving: bool, is_leaving: bool) {
        match (was_leaving, is_leaving) {
            (false, true) => self.leaving = self.leaving.saturating_add(bytes),
            (true, false) => self.leaving = self.leaving.saturating_sub(bytes),
            _ => {}
        }
    }

    pub(super) fn remove(&mut self, bytes: usize, was_leaving: bool) {
        self.set_leaving(bytes, was_leaving, false);
        self.all = self.all.saturating_sub(bytes);
    }

    /// Resets all counters, because the session has ended.
    pub(super) fn session_ended(&mut self) {
        (self.all, self.leaving) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaving_contenders_free_bytes_only_when_gone() {
        let mut bytes = PathBytes::new(100);
        bytes.add(60);
        bytes.add(40);
        assert!(bytes.has_room() && bytes.check("/a", 1).is_err());
        bytes.set_leaving(60, false, true);
        bytes.check("/a", 60).unwrap();
        bytes.add(60);
        assert!(!bytes.has_room() && bytes.check("/a", 1).is_err());
        bytes.remove(60, true);
        assert!(bytes.has_room() && bytes.check("/a", 1).is_err());
        bytes.session_ended();
        bytes.check("/a", 100).unwrap();
    }

    #[test]
    fn exhausted_message_names_bytes_limit_and_remedies() {
        let error = PathBytes::new(1000).check("/a", 1001).unwrap_err();
        assert_eq!(error.status(), Status::Exhausted);
        for part in ["/a: ", "1001 bytes", "session.max_path_bytes allows 1000", "another client", "jute.maxbuffer"] {
            assert!(error.message().contains(part), "{part}: {error}");
        }
    }
}
