//! Histograms of durations. Each bucket bound is twice the previous bound, so counting takes only a few instructions. A
//! quantile that is estimated from the buckets is at most twice the true value.

use std::time::Duration;

/// The upper bound of the first bucket in nanoseconds.
const FIRST: u64 = 50_000;

/// A histogram of durations. The histogram stores the number of durations, their sum, and the number of durations in
/// each bucket. All histograms have the same buckets. The upper bound of the first bucket is 50 µs, and each further
/// bound is twice the previous bound, up to 209.7152 s. The last bucket has no upper bound. A quantile that is
/// estimated from the upper bounds is therefore never too small. For durations between 50 µs and 210 s, the estimate is
/// at most twice the true value. The sum is exact to the nanosecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Histogram {
    counts: [u64; Self::BUCKETS],
    sum: u64,
}

impl Histogram {
    /// The number of buckets.
    pub const BUCKETS: usize = 24;

    /// Returns the upper bound of a bucket, or `None` if the bucket has no upper bound.
    pub const fn bound(bucket: usize) -> Option<Duration> {
        if bucket + 1 < Self::BUCKETS { Some(Duration::from_nanos(FIRST << bucket)) } else { None }
    }

    /// Returns the number of measured durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all measured durations.
    pub const fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// Returns the upper bound of each bucket ([`bound`](Self::bound)) with the number of durations up to that bound.
    /// As in Prometheus, these numbers are cumulative: each number includes the smaller buckets, and the last number
    /// equals [`count`](Self::count).
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let mut up_to_here = 0;
        self.counts.iter().enumerate().map(move |(bucket, count)| {
            up_to_here += count;
            (Self::bound(bucket), up_to_here)
        })
    }

    pub(crate) fn observe(&mut self, value: Duration) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        // The number of times that the first bound must be doubled to reach this duration.
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
    fn value_is_counted_in_first_bucket_that_bounds_it() {
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
    fn bucket_counts_are_cumulative() {
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
    fn sum_saturates() {
        let mut histogram = Histogram::default();
        for value in [Duration::MAX, Duration::MAX] {
            histogram.observe(value);
        }
        assert_eq!((histogram.count(), histogram.sum()), (2, Duration::from_nanos(u64::MAX)));
    }
}
