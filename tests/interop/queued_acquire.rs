//! Queued acquires of both sides, behind one interface.

use std::time::Duration;

use zklock::{Client, Hold, Lock, Operation, Owner};
use zklock_test_support::{PendingAnswer, wait_until};

use crate::common::{OwnerCalls as _, TEST_TIMEOUT};
use crate::fixture::{CheckContext, OtherLibrary};

/// A kind of lock that both sides have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    Mutex,
    SemaphoreMutex,
    Read,
    Write,
}

/// The side that queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    Zklock,
    Other,
}

impl Library {
    pub(crate) const BOTH: [Self; 2] = [Self::Zklock, Self::Other];

    /// Alternates between the two sides, beginning with `self`.
    pub(crate) fn alternating(self) -> impl Iterator<Item = Self> {
        let other = if self == Self::Zklock { Self::Other } else { Self::Zklock };
        [self, other].into_iter().cycle()
    }
}

/// The owner of all holds of zklock in the checks. It is not a thread.
pub(crate) const ME: Owner = Owner::task(1);

/// An acquire that has joined the queue. It may have been granted.
pub(crate) struct QueuedAcquire<'a> {
    side: &'a CheckContext<'a>,
    stand: AcquireHandle,
    acquired: bool,
}

enum AcquireHandle {
    Zklock {
        lock: Lock,
        call: Operation<Hold>,
    },
    /// The thread and the lock, by their names on the other side.
    Other {
        thread_and_lock: String,
        answer: PendingAnswer,
    },
}

/// Creates a lock handle of zklock.
pub(crate) fn lock(client: &Client, kind: LockKind, path: &str) -> Lock {
    match kind {
        LockKind::Mutex => client.mutex(path).unwrap(),
        LockKind::SemaphoreMutex => client.semaphore_mutex(path).unwrap(),
        LockKind::Read => client.rwlock(path).unwrap().read,
        LockKind::Write => client.rwlock(path).unwrap().write,
    }
}

impl CheckContext<'_> {
    /// Creates a lock on the other side, with the options that it needs to share its path. Returns the name of the
    /// lock.
    pub(crate) fn define(&self, kind: LockKind, name: &str, path: &str) -> String {
        let (definition, called) = match (self.other, kind) {
            (OtherLibrary::Kazoo(_), LockKind::Mutex) => {
                (format!("lock {name} {path} patterns=-lock-"), name.to_owned())
            }
            (OtherLibrary::Kazoo(_), LockKind::Write) => {
                (format!("write-lock {name} {path} patterns=__READ__,__WRIT__"), name.to_owned())
            }
            (OtherLibrary::Kazoo(_), LockKind::Read) => {
                (format!("read-lock {name} {path} patterns=__WRIT__"), name.to_owned())
            }
            (_, LockKind::Mutex) => (format!("mutex {name} {path}"), name.to_owned()),
            (_, LockKind::SemaphoreMutex) => (format!("semaphore-mutex {name} {path}"), name.to_owned()),
            (_, LockKind::Read) => (format!("rw {name} {path}"), format!("{name}.read")),
            (_, LockKind::Write) => (format!("rw {name} {path}"), format!("{name}.write")),
        };
        self.run(&definition);
        called
    }
}

impl<'a> QueuedAcquire<'a> {
    /// Starts an acquire and waits until its node is in the queue. An acquire of zklock uses its own session. `ahead`
    /// is the number of nodes that are in the queue before.
    #[track_caller]
    pub(crate) fn start(cx: &'a CheckContext<'a>, who: Library, kind: LockKind, path: &str, ahead: usize) -> Self {
        let mut place = Self { side: cx, stand: Self::send_acquire(cx, who, kind, path, ahead), acquired: false };
        match (kind, ahead) {
            (LockKind::SemaphoreMutex, 0) => place.wait_acquired(),
            // The holder of a semaphore mutex has its node among the leases.
            (LockKind::SemaphoreMutex, _) => cx.wait_for_nodes(&format!("{path}/locks"), ahead),
            _ => cx.wait_for_nodes(path, ahead + 1),
        }
        place
    }

    fn send_acquire(cx: &CheckContext<'_>, who: Library, kind: LockKind, path: &str, number: usize) -> AcquireHandle {
        if who == Library::Zklock {
            let lock = lock(&cx.client(), kind, path);
            let call = lock.start_acquire(ME, Some(TEST_TIMEOUT)).unwrap();
            return AcquireHandle::Zklock { lock, call };
        }
        // A name may be reused, because its previous lock is no longer needed.
        let thread_and_lock = format!("$place{number} {}", cx.define(kind, &format!("$place{number}"), path));
        AcquireHandle::Other { answer: cx.send(&format!("acquire {thread_and_lock}")), thread_and_lock }
    }

    pub(crate) fn poll_acquired(&mut self) -> bool {
        if !self.acquired {
            self.acquired = match &self.stand {
                AcquireHandle::Zklock { call, .. } => call.wait_for(Duration::ZERO).is_some_and(|result| {
                    result.unwrap().leave_to_owner();
                    true
                }),
                AcquireHandle::Other { answer, .. } => answer.is_done(),
            };
        }
        self.acquired
    }

    #[track_caller]
    pub(crate) fn wait_acquired(&mut self) {
        wait_until(TEST_TIMEOUT, || self.poll_acquired());
        match &self.stand {
            AcquireHandle::Zklock { lock, .. } => assert!(lock.is_held_as(ME).unwrap()),
            AcquireHandle::Other { answer, .. } => assert_eq!(answer.wait(TEST_TIMEOUT), "true"),
        }
    }

    #[track_caller]
    pub(crate) fn release(self) {
        match self.stand {
            AcquireHandle::Zklock { lock, .. } => lock.release_as(ME).unwrap(),
            AcquireHandle::Other { thread_and_lock, .. } => self.side.run(&format!("release {thread_and_lock}")),
        }
    }
}
