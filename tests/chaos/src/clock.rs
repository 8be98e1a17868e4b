//! The host's clocks: the one that everybody writes down, and what the servers' clock says in its terms.

use crate::trace::Nanos;

/// Now, on CLOCK_MONOTONIC.
pub fn now() -> Nanos {
    read(libc::CLOCK_MONOTONIC)
}

/// By how much CLOCK_REALTIME is ahead. It may be set while we run, so it is asked for now and then.
#[derive(Debug)]
pub struct Offsets(Vec<(Nanos, Nanos)>);

impl Offsets {
    /// As it is now.
    pub fn begin() -> Self {
        let mut offsets = Self(Vec::new());
        offsets.sample();
        offsets
    }

    /// Asks again.
    pub fn sample(&mut self) {
        let real = read(libc::CLOCK_REALTIME);
        self.0.push((real, real - now()));
    }

    /// What CLOCK_MONOTONIC said at that millisecond of CLOCK_REALTIME.
    pub fn to_monotonic(&self, wall_ms: i64) -> Nanos {
        let real = wall_ms.unsigned_abs() * 1_000_000;
        let last = self.0.iter().rev().find(|(at, _)| *at <= real).or_else(|| self.0.first());
        real.saturating_sub(last.map_or(0, |&(_, offset)| offset))
    }
}

fn read(clock: libc::clockid_t) -> Nanos {
    let mut spec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `spec` is valid for writing; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut spec) };
    spec.tv_sec.unsigned_abs() * 1_000_000_000 + spec.tv_nsec.unsigned_abs()
}
