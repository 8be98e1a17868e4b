//! Counts the bytes in the paths of all nodes of a session.
//!
//! The transaction that ends a session contains the paths of all ephemeral nodes of the session. A server cannot start
//! again if its log contains a transaction that is longer than twice its `jute.maxbuffer`. A session can end at any
//! time without a request from its client. The limit therefore applies at all times, and includes every node that may
//! exist.

use std::collections::HashMap;

use crate::error::{Error, Status};
use crate::mutant::Mutant;
use crate::session::MachineId;

/// Three quarters of 1 MiB, which is the default of `jute.maxbuffer`. With any settings, a server
/// can read transactions of up to 1 MiB. The remaining quarter is for the transaction's header and a safety margin.
pub const DEFAULT_MAX_PATH_BYTES: usize = 768 * 1024;

/// Counts the path bytes of all contenders of one session.
#[derive(Debug)]
pub(super) struct PathBytes {
    limit: usize,
    /// The contenders of this session. The engine adds a contender before the contender creates its nodes, and removes
    /// it after it has left completely.
    contenders: HashMap<MachineId, ContenderBytes>,
    /// The bytes of all contenders.
    all: usize,
    /// The bytes of the contenders that are leaving.
    leaving: usize,
}

#[derive(Debug)]
struct ContenderBytes {
    bytes: usize,
    is_leaving: bool,
}

impl PathBytes {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, contenders: HashMap::new(), all: 0, leaving: 0 }
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Returns an error if `bytes` additional path bytes would exceed the limit. The check ignores leaving contenders,
    /// because the client will soon have deleted their nodes.
    pub(super) fn check(&self, path: &str, bytes: usize) -> Result<(), Error> {
        let leaving = if Mutant::RefuseBeforeDeletion.is_active() { 0 } else { self.leaving };
        let staying = self.all.saturating_sub(leaving).saturating_add(bytes);
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

    /// Returns how many path bytes one transaction may contain when the client deletes its nodes before it closes the
    /// session. This number is far below the servers' limits, and a failed transaction leaves only few nodes behind.
    pub(super) const fn delete_batch_bytes(&self) -> usize {
        self.limit / 64
    }

    pub(super) fn add(&mut self, contender: MachineId, bytes: usize) {
        self.contenders.insert(contender, ContenderBytes { bytes, is_leaving: false });
        self.all = self.all.saturating_add(bytes);
    }

    /// Records whether a contender is leaving.
    pub(super) fn set_leaving(&mut self, contender: MachineId, is_leaving: bool) {
        let Some(entry) = self.contenders.get_mut(&contender) else { return };
        match (std::mem::replace(&mut entry.is_leaving, is_leaving), is_leaving) {
            (false, true) => self.leaving = self.leaving.saturating_add(entry.bytes),
            (true, false) => self.leaving = self.leaving.saturating_sub(entry.bytes),
            _ => {}
        }
    }

    pub(super) fn remove(&mut self, contender: MachineId) {
        self.set_leaving(contender, false);
        if let Some(entry) = self.contenders.remove(&contender) {
            self.all = self.all.saturating_sub(entry.bytes);
        }
    }

    /// Replaces a contender by the contenders into which it was split.
    pub(super) fn split(&mut self, contender: MachineId, parts: impl Iterator<Item = (MachineId, usize)>) {
        if self.contenders.contains_key(&contender) {
            self.remove(contender);
            parts.for_each(|(part, bytes)| self.add(part, bytes));
        }
    }

    /// Forgets all contenders, because the session has ended. The nodes of a new session belong to other contenders.
    pub(super) fn session_ended(&mut self) {
        *self = Self::new(self.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaving_contenders_free_bytes_only_when_gone() {
        let [first, second, third] = [1, 2, 3].map(MachineId);
        let mut bytes = PathBytes::new(100);
        bytes.add(first, 60);
        bytes.add(second, 40);
        assert!(bytes.has_room() && bytes.check("/a", 1).is_err());
        bytes.set_leaving(first, true);
        bytes.check("/a", 60).unwrap();
        bytes.add(third, 60);
        assert!(!bytes.has_room() && bytes.check("/a", 1).is_err());
        bytes.remove(first);
        assert!(bytes.has_room() && bytes.check("/a", 1).is_err());
        bytes.session_ended();
        bytes.check("/a", 100).unwrap();
        bytes.remove(second);
        bytes.set_leaving(third, true);
        bytes.check("/a", 100).unwrap();
        assert!(bytes.check("/a", 101).is_err());
    }

    #[test]
    fn split_contender_keeps_its_bytes_unless_its_session_has_ended() {
        let [whole, first, second] = [1, 2, 3].map(MachineId);
        let mut bytes = PathBytes::new(100);
        bytes.add(whole, 100);
        bytes.split(whole, [(first, 70), (second, 30)].into_iter());
        bytes.remove(whole);
        assert!(bytes.check("/a", 1).is_err());
        bytes.remove(second);
        bytes.check("/a", 30).unwrap();
        bytes.session_ended();
        bytes.split(first, [(second, 70)].into_iter());
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
