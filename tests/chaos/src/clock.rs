//! The clocks of the host. All traces use CLOCK_MONOTONIC. The servers use CLOCK_REALTIME, which this module converts.

use crate::trace::Nanos;

/// The current time of CLOCK_MONOTONIC.
pub fn now() -> Nanos {
    read(libc::CLOCK_MONOTONIC)
}

/// The offset of CLOCK_REALTIME from CLOCK_MONOTONIC. The host may set CLOCK_REALTIME during a run, so the offset is
/// sampled repeatedly.
#[derive(Debug)]
pub struct Offsets(Vec<(Nanos, Nanos)>);

impl Offsets {
    /// Takes the first sample.
    pub fn begin() -> Self {
        let mut offsets = Self(Vec::new());
        offsets.sample();
        offsets
    }

    /// Takes another sample.
    pub fn sample(&mut self) {
        let real = read(libc::CLOCK_REALTIME);
        self.0.push((real, real - now()));
    }

    /// Converts a time of CLOCK_REALTIME, in milliseconds, to CLOCK_MONOTONIC.
    pub fn to_monotonic(&self, wall_ms: i64) -> Nanos {
        let real = wall_ms.unsigned_abs() * 1_000_000;
        let last = self.0.iter().rev().find(|(at, _)| *at <= real).or_else(|| self.0.first());
        real.saturating_sub(last.map_or(0, |&(_, offset)| offset))
    }
}

fn read(clock: libc::clockid_t) -> Nanos {
    let mut spec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `spec` is valid for writes, and both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut spec) };
    spec.tv_sec.unsigned_abs() * 1_000_000_000 + spec.tv_nsec.unsigned_abs()
}
