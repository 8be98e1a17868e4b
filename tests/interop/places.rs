//! Places in a queue that both sides share, whoever stands there.

use std::time::Duration;

use zklock::{Acquiring, Client, Lock, Owner};
use zklock_rig::{Ticket, wait_until};

use crate::common::SOON;
use crate::side::{Met, Side};

/// A lock that both sides have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutex,
    SemaphoreMutex,
    Read,
    Write,
}

/// Who stands in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Zklock,
    Other,
}

impl Who {
    pub(crate) const BOTH: [Self; 2] = [Self::Zklock, Self::Other];

    /// The first, the second, and again, beginning with `self`.
    pub(crate) fn alternating(self) -> impl Iterator<Item = Self> {
        let other = if self == Self::Zklock { Self::Other } else { Self::Zklock };
        [self, other].into_iter().cycle()
    }
}

/// Whoever holds by our handles: no thread.
pub(crate) const ME: Owner = Owner::Custom(1);

/// Somebody who queued, and may be in.
pub(crate) struct Place<'a> {
    side: &'a Side<'a>,
    stand: Stand,
    is_in: bool,
}

enum Stand {
    Ours {
        lock: Lock,
        call: Acquiring,
    },
    /// Thread and lock, as the other side calls them.
    Theirs {
        words: String,
        ticket: Ticket,
    },
}

/// A lock of ours.
pub(crate) fn lock(client: &Client, kind: Kind, path: &str) -> Lock {
    match kind {
        Kind::Mutex => client.mutex(path).unwrap(),
        Kind::SemaphoreMutex => client.semaphore_mutex(path).unwrap(),
        Kind::Read => client.rwlock(path).unwrap().read,
        Kind::Write => client.rwlock(path).unwrap().write,
    }
}

impl Side<'_> {
    /// Has the other side make a lock, with all that it needs to share its path; returns what it is called.
    pub(crate) fn define(&self, kind: Kind, name: &str, path: &str) -> String {
        let (definition, called) = match (self.met, kind) {
            (Met::Kazoo(_), Kind::Mutex) => (format!("lock {name} {path} patterns=-lock-"), name.to_owned()),
            (Met::Kazoo(_), Kind::Write) => {
                (format!("write-lock {name} {path} patterns=__READ__,__WRIT__"), name.to_owned())
            }
            (Met::Kazoo(_), Kind::Read) => (format!("read-lock {name} {path} patterns=__WRIT__"), name.to_owned()),
            (_, Kind::Mutex) => (format!("mutex {name} {path}"), name.to_owned()),
            (_, Kind::SemaphoreMutex) => (format!("semaphore-mutex {name} {path}"), name.to_owned()),
            (_, Kind::Read) => (format!("rw {name} {path}"), format!("{name}.read")),
            (_, Kind::Write) => (format!("rw {name} {path}"), format!("{name}.write")),
        };
        self.tell(&definition);
        called
    }
}

impl<'a> Place<'a> {
    /// Somebody queues, in a session of his own if he is ours; `ahead` others stand in the queue.
    #[track_caller]
    pub(crate) fn join(side: &'a Side<'a>, who: Who, kind: Kind, path: &str, ahead: usize) -> Self {
        let mut place = Self { side, stand: Self::start(side, who, kind, path, ahead), is_in: false };
        match (kind, ahead) {
            (Kind::SemaphoreMutex, 0) => place.wait(),
            // Who holds one stands among the leases.
            (Kind::SemaphoreMutex, _) => side.wait_for_nodes(&format!("{path}/locks"), ahead),
            _ => side.wait_for_nodes(path, ahead + 1),
        }
        place
    }

    fn start(side: &Side<'_>, who: Who, kind: Kind, path: &str, number: usize) -> Stand {
        if who == Who::Zklock {
            let lock = lock(&side.client(), kind, path);
            let call = lock.start_acquire(ME, Some(SOON)).unwrap();
            return Stand::Ours { lock, call };
        }
        // Names may be used again: what they stood for is gone by then.
        let words = format!("$place{number} {}", side.define(kind, &format!("$place{number}"), path));
        Stand::Theirs { ticket: side.send(&format!("acquire {words}")), words }
    }

    pub(crate) fn is_in(&mut self) -> bool {
        if !self.is_in {
            self.is_in = match &self.stand {
                Stand::Ours { call, .. } => call.wait_for(Duration::ZERO).is_some_and(|result| {
                    result.unwrap();
                    true
                }),
                Stand::Theirs { ticket, .. } => ticket.is_done(),
            };
        }
        self.is_in
    }

    #[track_caller]
    pub(crate) fn wait(&mut self) {
        wait_until(SOON, || self.is_in());
        match &self.stand {
            Stand::Ours { lock, .. } => assert!(lock.is_held_by(ME).unwrap()),
            Stand::Theirs { ticket, .. } => assert_eq!(ticket.wait(SOON), "true"),
        }
    }

    #[track_caller]
    pub(crate) fn leave(self) {
        match self.stand {
            Stand::Ours { lock, .. } => lock.release_as(ME).unwrap(),
            Stand::Theirs { words, .. } => self.side.tell(&format!("release {words}")),
        }
    }
}
