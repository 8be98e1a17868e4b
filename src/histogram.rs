//! How long things took: counts in buckets whose bounds double, so that counting is a handful of instructions, and what is read off the
//! buckets is at most twice too large.

#![forbid(unsafe_code)]

use std::time::Duration;

/// The bound of the first bucket.
const FIRST: u64 = 50_000;

/// How often something was measured, how long it took in all, and how often at most so long. The buckets are the same everywhere: 50 µs, and
/// twice as much from one to the next up to 209.7152 s; the last takes what was longer. So a quantile that is read off them is never too
/// small, and at most twice too large where it is between 50 µs and 210 s; the sum is exact to the nanosecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Histogram {
    counts: [u64; Self::BUCKETS],
    sum: u64,
}

impl Histogram {
    /// How many buckets there are.
    pub const BUCKETS: usize = 24;

    /// The largest that a bucket takes; `None` for the last, which takes all, and beyond.
    pub const fn bound(bucket: usize) -> Option<Duration> {
        if bucket + 1 < Self::BUCKETS { Some(Duration::from_nanos(FIRST << bucket)) } else { None }
    }

    /// How often something was measured.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All that was measured, together.
    pub const fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// The bound of each bucket, as [`bound`](Self::bound) gives it, and how often it was not exceeded: as Prometheus has it, each count
    /// includes those before it, and the last is that of all.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let mut up_to_here = 0;
        self.counts.iter().enumerate().map(move |(bucket, count)| {
            up_to_here += count;
            (Self::bound(bucket), up_to_here)
        })
    }

    pub(crate) fn observe(&mut self, value: Duration) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        // How often the first bound has to be doubled.
        let doublings = u64::BITS - (nanos.saturating_sub(1) / FIRST).leading_zeros();
        let bucket = usize::try_from(doublings).unwrap_or(Self::BUCKETS).min(Self::BUCKETS - 1);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum = self.sum.saturating_add(nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket_of(value: Duration) -> usize {
        let mut histogram = Histogram::default();
        histogram.observe(value);
        assert_eq!((histogram.count(), histogram.sum()), (1, value));
        histogram.counts.iter().position(|&count| count == 1).unwrap()
    }

    #[test]
    fn a_bucket_takes_what_is_above_the_bound_before_up_to_its_own() {
        assert_eq!(bucket_of(Duration::ZERO), 0);
        let nano = Duration::from_nanos(1);
        for bucket in 0..Histogram::BUCKETS - 1 {
            let bound = Histogram::bound(bucket).unwrap();
            assert_eq!(bucket_of(bound), bucket);
            assert_eq!(bucket_of(bound + nano), bucket + 1);
            assert_eq!(bound, Duration::from_micros(50) * 2_u32.pow(u32::try_from(bucket).unwrap()));
        }
        assert_eq!(Histogram::bound(Histogram::BUCKETS - 2), Some(Duration::from_micros(209_715_200)));
        assert_eq!(Histogram::bound(Histogram::BUCKETS - 1), None);
        assert_eq!(bucket_of(Duration::from_nanos(u64::MAX)), Histogram::BUCKETS - 1);
    }

    #[test]
    fn each_count_includes_those_before() {
        let mut histogram = Histogram::default();
        for micros in [10, 60, 60, 1_000_000_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let counts: Vec<u64> = histogram.buckets().map(|(_, count)| count).collect();
        assert_eq!(counts[..3], [1, 3, 3]);
        assert_eq!(counts[Histogram::BUCKETS - 2..], [3, 4]);
        assert_eq!((histogram.count(), histogram.sum()), (4, Duration::from_micros(1_000_000_000_130)));
    }

    #[test]
    fn a_sum_that_would_be_too_large_stays_where_it_is() {
        let mut histogram = Histogram::default();
        for value in [Duration::MAX, Duration::MAX] {
            histogram.observe(value);
        }
        assert_eq!((histogram.count(), histogram.sum()), (2, Duration::from_nanos(u64::MAX)));
    }
}
