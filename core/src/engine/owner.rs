//! Owners of holds. The number of an owner is only an identity: the engine compares owners, and decides nothing by
//! their numbers.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::interface::OpId;

/// The owner of a hold, which is a thread or a task of the program.
///
/// Only the owner of a hold can re-enter the lock, release it, or query its fencing token. As an exception, any owner
/// may release a semaphore mutex.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(OwnerKind);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum OwnerKind {
    /// A thread of this process. The library never reuses the number of a thread.
    Thread(u64),
    /// A number that the program has chosen.
    Task(u64),
    /// A number that the library has chosen. The library never reuses such a number.
    Unique(u64),
    /// The owner of leases of a semaphore, which belong to no thread or task. The number is the id of the operation
    /// that acquired the leases.
    Leases(u64),
}

impl Owner {
    /// The smallest and the largest owner, for searches that include all owners.
    pub(super) const ALL: (Self, Self) = (Self(OwnerKind::Thread(0)), Self(OwnerKind::Leases(u64::MAX)));

    /// Creates an owner from a number that the program has chosen, for example the number of a task or a request.
    /// Owners with equal numbers are the same owner in all threads.
    pub const fn task(number: u64) -> Self {
        Self(OwnerKind::Task(number))
    }

    /// Returns the number of an owner that [`task`](Self::task) has created, or `None` for any other owner.
    pub const fn task_number(self) -> Option<u64> {
        if let OwnerKind::Task(number) = self.0 { Some(number) } else { None }
    }

    /// Returns the owner that represents the calling thread.
    pub fn current_thread() -> Self {
        thread_local! {
            static NUMBER: u64 = next_number();
        }
        // A thread that is ending no longer has a number. For such a thread, this method uses the number 0, which no
        // other thread has.
        Self(OwnerKind::Thread(NUMBER.try_with(|&number| number).unwrap_or_default()))
    }

    /// Makes a new owner, which differs from every thread, every task and every other owner that this method has made.
    /// A program can use the new owner, for example, for a greenlet, or for a guard that moves between threads.
    pub fn unique() -> Self {
        Self(OwnerKind::Unique(next_number()))
    }

    /// Creates the owner of the leases that an operation has acquired. Only the crates of zklock use this function.
    #[doc(hidden)]
    pub const fn leases(op: OpId) -> Self {
        Self(OwnerKind::Leases(op.0))
    }
}

fn next_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// The name of the owner in logs.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            OwnerKind::Thread(number) => write!(f, "thread {number}"),
            OwnerKind::Task(number) => write!(f, "owner {number}"),
            OwnerKind::Unique(number) => write!(f, "unique owner {number}"),
            OwnerKind::Leases(number) => write!(f, "leases {number}"),
        }
    }
}
