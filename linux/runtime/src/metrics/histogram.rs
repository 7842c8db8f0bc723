//! Histograms of durations. There are four buckets for each power of two of the
//! scheduler's ticks. Only buckets with counts are stored, at most 128. A quantile takes time in
//! proportion to the number of buckets.

use std::time::Duration;

use upshift_core::WaitHistogram;

use crate::time::clock;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// Durations, counted in buckets. The lower bound of a bucket is at most 20% below each duration in
/// it. All histograms of one process have the same bounds.
///
/// A serialised histogram is a list of `[from_ns, to_ns, count]`.
///
/// ```
/// use upshift::{Handle, Level};
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let level = Level::at::<3>();
/// for _ in 0..10 {
///     upshift::spawn(async {}, level).await.unwrap();
/// }
/// let metrics = Handle::current().unwrap().metrics();
/// let wait = &metrics.level(level).unwrap().wait;
/// assert_eq!(wait.count(), 10);
/// assert!(wait.quantile(0.5) <= wait.quantile(0.99));
/// # });
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(transparent))]
pub struct Histogram {
    /// Sorted, without overlaps and without empty buckets.
    buckets: Vec<Bucket>,
}

/// A bucket, which counts durations from `from_ns` (included) to `to_ns` (excluded).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(Serialize, Deserialize),
    serde(from = "(u64, u64, u64)", into = "(u64, u64, u64)")
)]
pub struct Bucket {
    /// The shortest duration, ns.
    pub from_ns: u64,
    /// Upper bound of the durations, ns.
    pub to_ns: u64,
    /// Number of durations.
    pub count: u64,
}

impl From<(u64, u64, u64)> for Bucket {
    fn from((from_ns, to_ns, count): (u64, u64, u64)) -> Bucket {
        Bucket {
            from_ns,
            to_ns,
            count,
        }
    }
}

impl From<Bucket> for (u64, u64, u64) {
    fn from(bucket: Bucket) -> (u64, u64, u64) {
        (bucket.from_ns, bucket.to_ns, bucket.count)
    }
}

impl Histogram {
    pub(crate) fn from_ticks(waits: &WaitHistogram) -> Histogram {
        let nanos = |ticks| clock::nanos(clock::from_ticks(ticks));
        Histogram {
            buckets: waits
                .ranges()
                .map(|(from, to, count)| Bucket {
                    from_ns: nanos(from),
                    to_ns: nanos(to),
                    count,
                })
                .collect(),
        }
    }

    #[cfg(test)]
    pub(crate) fn from_buckets(buckets: &[(u64, u64, u64)]) -> Histogram {
        Histogram {
            buckets: buckets.iter().copied().map(Bucket::from).collect(),
        }
    }

    /// Returns the number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.count).sum()
    }

    /// Returns the buckets that have counts, shortest first.
    #[must_use]
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Returns the `q`-quantile (0.0 to 1.0) of the durations, rounded down to the lower bound of
    /// its bucket, so that it may be up to 20% below the exact value. Zero if the histogram is
    /// empty.
    ///
    /// ```
    /// use std::time::Duration;
    /// use upshift::metrics::Histogram;
    ///
    /// assert_eq!(Histogram::default().quantile(0.99), Duration::ZERO);
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// upshift::yield_now().await;
    /// let metrics = upshift::Handle::current().unwrap().metrics();
    /// for level in &metrics.levels {
    ///     let [median, p99] = [0.5, 0.99].map(|q| level.wait.quantile(q));
    ///     assert!(median <= p99);
    /// }
    /// # });
    /// ```
    #[must_use]
    pub fn quantile(&self, q: f64) -> Duration {
        let rank = (q.clamp(0.0, 1.0) * self.count() as f64).ceil() as u64;
        let mut count = 0;
        for bucket in &self.buckets {
            count += bucket.count;
            if count >= rank.max(1) {
                return Duration::from_nanos(bucket.from_ns);
            }
        }
        Duration::ZERO
    }

    /// Returns an estimate of the sum of all durations, for which each duration counts as the
    /// middle of its bucket.
    #[must_use]
    pub fn estimated_sum(&self) -> Duration {
        let middle = |bucket: &Bucket| {
            let middle = u128::from(bucket.from_ns.midpoint(bucket.to_ns));
            middle * u128::from(bucket.count)
        };
        let sum: u128 = self.buckets.iter().map(middle).sum();
        Duration::from_nanos(u64::try_from(sum).unwrap_or(u64::MAX))
    }

    /// Adds the counts of another histogram.
    ///
    /// ```
    /// use upshift::metrics::Histogram;
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// upshift::spawn(async {}, upshift::Level::at::<3>()).await.unwrap();
    /// upshift::spawn(async {}, upshift::Level::at::<4>()).await.unwrap();
    /// let mut total = Histogram::default();
    /// for level in &upshift::Handle::current().unwrap().metrics().levels {
    ///     total.merge(&level.wait);
    /// }
    /// assert!(total.count() >= 2);
    /// # });
    /// ```
    pub fn merge(&mut self, other: &Histogram) {
        self.combine(other, u64::wrapping_add);
    }

    /// Subtracts the counts of an earlier histogram of the same quantity.
    pub(crate) fn subtract(&mut self, earlier: &Histogram) {
        self.combine(earlier, u64::saturating_sub);
        self.buckets.retain(|bucket| bucket.count != 0);
    }

    fn combine(&mut self, other: &Histogram, step: impl Fn(u64, u64) -> u64) {
        for bucket in &other.buckets {
            match self
                .buckets
                .binary_search_by_key(&bucket.from_ns, |own| own.from_ns)
            {
                Ok(place) => {
                    let count = &mut self.buckets[place].count;
                    *count = step(*count, bucket.count);
                }
                Err(place) => self.buckets.insert(
                    place,
                    Bucket {
                        count: step(0, bucket.count),
                        ..*bucket
                    },
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_lower_bound_of_the_bucket_that_reaches_the_rank() {
        let waits = Histogram::from_buckets(&[(100, 125, 98), (1000, 1250, 1), (5000, 6000, 1)]);
        assert_eq!(waits.quantile(0.5), Duration::from_nanos(100));
        assert_eq!(waits.quantile(0.98), Duration::from_nanos(100));
        assert_eq!(waits.quantile(0.99), Duration::from_nanos(1000));
        assert_eq!(waits.quantile(1.0), Duration::from_nanos(5000));
        assert_eq!(Histogram::default().quantile(0.5), Duration::ZERO);
    }

    #[test]
    fn merging_and_subtracting_are_inverse() {
        let first = Histogram::from_buckets(&[(1, 2, 3), (8, 10, 1)]);
        let second = Histogram::from_buckets(&[(4, 5, 7), (8, 10, 2)]);
        let mut merged = first.clone();
        merged.merge(&second);
        assert_eq!(
            merged,
            Histogram::from_buckets(&[(1, 2, 3), (4, 5, 7), (8, 10, 3)])
        );
        merged.subtract(&first);
        assert_eq!(merged, second);
    }
}
