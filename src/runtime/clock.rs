//! The clock of all times that the shell passes to the core. The code in this file does not wait.

use std::io;

use zklock_core::error::{Error, Result, Status};
use zklock_core::time::Time;

/// Fails with UNSUPPORTED if the process cannot read the clock. A client needs the clock to know when its leases end.
pub(crate) fn check() -> Result<()> {
    if now() < Time::from_nanos(u64::MAX) {
        return Ok(());
    }
    let cause = io::Error::last_os_error();
    let message = format!(
        "clock_gettime(CLOCK_BOOTTIME) fails ({cause}), so a client could not notice the end of its leases; a seccomp filter or \
         an old kernel may forbid the call"
    );
    Err(Error::new(Status::Unsupported, message))
}

/// Returns the current time of a clock that never goes back and continues while the machine is suspended. The clock of
/// `std::time::Instant` stops while the machine is suspended, so a lease measured with `Instant` could last longer than
/// its session.
pub(crate) fn now() -> Time {
    let mut spec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `spec` is valid for writing; the call has no other precondition.
    if unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut spec) } != 0 {
        // Without a clock, no lease is valid and every deadline has passed.
        return Time::from_nanos(u64::MAX);
    }
    let seconds = u64::try_from(spec.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(spec.tv_nsec).unwrap_or_default();
    Time::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}
