//! Converts the timeout of an acquire call to a deadline. The code in this file does not wait, and does not depend on
//! operations or locks.

use std::time::Duration;

use zklock_core::engine::{AcquireLimit, TRY_ONCE_LIMIT};
use zklock_core::error::Result;
use zklock_core::time::Time;

use crate::runtime::{now, refuse_in_callback};

/// The time limit of a call, counted from the start of the call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeout {
    pub(crate) start: Time,
    pub(crate) acquire_limit: AcquireLimit,
    pub(crate) deadline: Option<Time>,
}

impl Timeout {
    /// Fails with DEADLOCK if the calling thread runs a callback and a wait for the acquire could block. The wait
    /// cannot block if the timeout of the acquire is zero, or if `slice` is zero.
    pub(crate) fn check_may_wait(&self, slice: Duration) -> Result<()> {
        match self.acquire_limit {
            AcquireLimit::TryOnce(_) => Ok(()),
            AcquireLimit::Until(_) | AcquireLimit::Unlimited => refuse_in_callback(Some(slice)),
        }
    }

    /// The timeout that the program passed, in whole milliseconds. The value 0 means one attempt, and `None` means no
    /// limit.
    pub(crate) fn milliseconds(&self) -> Option<u64> {
        match self.acquire_limit {
            AcquireLimit::TryOnce(_) => Some(0),
            AcquireLimit::Until(end) => Some(u64::try_from((end - self.start).as_millis()).unwrap_or(u64::MAX)),
            AcquireLimit::Unlimited => None,
        }
    }
}

impl From<Option<Duration>> for Timeout {
    fn from(timeout: Option<Duration>) -> Self {
        let start = now();
        match timeout {
            None => Self { start, acquire_limit: AcquireLimit::Unlimited, deadline: None },
            Some(Duration::ZERO) => {
                let end = start + TRY_ONCE_LIMIT;
                Self { start, acquire_limit: AcquireLimit::TryOnce(end), deadline: Some(end) }
            }
            Some(timeout) => {
                let end = start + timeout;
                Self { start, acquire_limit: AcquireLimit::Until(end), deadline: Some(end) }
            }
        }
    }
}
