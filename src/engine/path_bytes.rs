//! How many bytes the paths of a session's nodes take. The transaction that ends a session carries the path of each of its ephemeral
//! nodes, and a server that writes a transaction longer than twice its `jute.maxbuffer` can't read it back: it does not start again.
//! A session can end at any time without a word from its client, so the limit applies at all times, and to every node that may exist.

use crate::error::{Error, Status};
use crate::mutant::Mutant;

/// Three quarters of the 1 MiB that `jute.maxbuffer` is by default. A server reads a transaction up to that length whatever its other
/// settings are; the rest is left to the transaction's header, and to a margin of safety.
pub(crate) const DEFAULT_MAX_PATH_BYTES: usize = 768 * 1024;

/// The bytes of one session, by the state of the contenders that they belong to.
#[derive(Debug)]
pub(super) struct PathBytes {
    limit: usize,
    /// Of all contenders, from before they create their nodes until nothing of them is left.
    all: usize,
    /// Of those among them that are on their way out.
    leaving: usize,
}

impl PathBytes {
    pub(super) const fn new(limit: usize) -> Self {
        Self { limit, all: 0, leaving: 0 }
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Whether there is room for a contender with `bytes`, now or when others have left. The error names the limit.
    pub(super) fn check(&self, path: &str, bytes: usize) -> Result<(), Error> {
        let staying = self.all.saturating_sub(self.leaving).saturating_add(bytes);
        if staying <= self.limit || Mutant::OverfillSession.lives() {
            return Ok(());
        }
        let message = format!(
            "{path}: with {bytes} bytes more, the paths of this session's nodes would take {staying} bytes, and session.max_path_bytes \
             allows {}; use another client for more locks, or raise the limit together with jute.maxbuffer on all servers",
            self.limit
        );
        Err(Error::new(Status::Exhausted, message))
    }

    /// Whether all contenders can have their nodes at the same time.
    pub(super) fn fit(&self) -> bool {
        self.all <= self.limit || Mutant::OverlookLeaving.lives() || Mutant::OverfillSession.lives()
    }

    /// A session with more than this is emptied before it is closed.
    pub(super) const fn is_large(&self) -> bool {
        self.all > self.limit / 8
    }

    /// How many bytes of paths one transaction deletes when a session is emptied: far below what servers accept at once, and few
    /// enough that a transaction that fails leaves little behind.
    pub(super) const fn batch(&self) -> usize {
        self.limit / 64
    }

    pub(super) fn joined(&mut self, bytes: usize) {
        self.all = self.all.saturating_add(bytes);
    }

    /// A contender is on its way out from now on, or counts as one that stays.
    pub(super) fn set_leaving(&mut self, bytes: usize, was_leaving: bool, is_leaving: bool) {
        match (was_leaving, is_leaving) {
            (false, true) => self.leaving = self.leaving.saturating_add(bytes),
            (true, false) => self.leaving = self.leaving.saturating_sub(bytes),
            _ => {}
        }
    }

    pub(super) fn gone(&mut self, bytes: usize, was_leaving: bool) {
        self.set_leaving(bytes, was_leaving, false);
        self.all = self.all.saturating_sub(bytes);
    }

    /// The session has ended: what is left of it counts no longer.
    pub(super) fn session_ended(&mut self) {
        (self.all, self.leaving) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_on_their_way_out_make_room_later_but_not_yet() {
        let mut bytes = PathBytes::new(100);
        bytes.joined(60);
        bytes.joined(40);
        assert!(bytes.fit() && bytes.check("/a", 1).is_err());
        bytes.set_leaving(60, false, true);
        bytes.check("/a", 60).unwrap();
        bytes.joined(60);
        assert!(!bytes.fit() && bytes.check("/a", 1).is_err());
        bytes.gone(60, true);
        assert!(bytes.fit() && bytes.check("/a", 1).is_err());
        bytes.session_ended();
        bytes.check("/a", 100).unwrap();
    }

    #[test]
    fn the_message_names_the_bytes_the_limit_and_the_remedies() {
        let error = PathBytes::new(1000).check("/a", 1001).unwrap_err();
        assert_eq!(error.status(), Status::Exhausted);
        for part in ["/a: ", "1001 bytes", "session.max_path_bytes allows 1000", "another client", "jute.maxbuffer"] {
            assert!(error.message().contains(part), "{part}: {error}");
        }
    }
}
