//! The clock of all times that the shell passes to the core. The code in this file does not wait.

use zklock_core::time::Time;

/// Returns the current time of a clock that never goes back and continues while the machine is suspended. The clock of
/// `std::time::Instant` stops while the machine is suspended, so a lease measured with `Instant` could last longer than
/// its session.
pub(crate) fn now() -> Time {
    let mut spec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `spec` is valid for writing; the call has no other precondition.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut spec) };
    debug_assert_eq!(result, 0, "CLOCK_BOOTTIME exists since Linux 2.6.39");
    let seconds = u64::try_from(spec.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(spec.tv_nsec).unwrap_or_default();
    Time::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}
