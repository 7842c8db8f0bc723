//! Counters of a vCPU that the scheduler's core does not keep. Only the thread that serves the vCPU
//! writes them, so plain loads and stores suffice. They cost a nanosecond per visit to the vCPU's
//! io_uring.
//!
//! A sum of spans of time, the last of which may be under way, is kept in one word, so that a
//! reader never sees an inconsistent state. The beginning of each span is subtracted from the word,
//! and its end is added. Tick 0 lies before the start of the process, so the word is negative
//! exactly while a span is under way.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use upshift_ring::Ring;

use super::RingMetrics;
use crate::time::clock;

/// A sum of spans of time, in ticks, as described above.
#[derive(Debug, Default)]
struct Spans(AtomicU64);

impl Spans {
    fn begin(&self, now: u64) {
        self.0
            .store(self.0.load(Relaxed).wrapping_sub(now), Relaxed);
    }

    fn end(&self, now: u64) {
        if self.is_open() {
            self.0
                .store(self.0.load(Relaxed).wrapping_add(now), Relaxed);
        }
    }

    fn is_open(&self) -> bool {
        (self.0.load(Relaxed) as i64) < 0
    }

    fn sum(&self, now: u64) -> u64 {
        let sum = self.0.load(Relaxed);
        if (sum as i64) < 0 {
            // The reader's clock may have been read before the span began.
            let sum = sum.wrapping_add(now);
            if (sum as i64) < 0 { 0 } else { sum }
        } else {
            sum
        }
    }
}

/// The counters of a vCPU, aligned to avoid false sharing.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Meter {
    in_service: Spans,
    parked: Spans,
    parks: AtomicU64,
    spin: AtomicU64,
    /// The figures of [`RingMetrics`], in the order of [`Meter::publish`].
    ring: [AtomicU64; 10],
}

fn add(counter: &AtomicU64, n: u64) {
    // There is one writer, so no read-modify-write is needed.
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

impl Meter {
    pub(crate) fn enter_service(&self) {
        self.in_service.begin(clock::ticks());
    }

    pub(crate) fn leave_service(&self) {
        self.in_service.end(clock::ticks());
    }

    #[inline]
    pub(crate) fn park(&self, now: u64) {
        add(&self.parks, 1);
        self.parked.begin(now);
    }

    #[inline]
    pub(crate) fn unpark(&self, now: u64) {
        self.parked.end(now);
    }

    pub(crate) fn parked(&self, now: u64) -> u64 {
        self.parked.sum(now)
    }

    #[inline]
    pub(crate) fn add_spin(&self, ticks: u64) {
        add(&self.spin, ticks);
    }

    #[inline]
    pub(crate) fn publish(&self, ring: &Ring) {
        let stats = ring.stats();
        let figures = [
            stats.enters,
            stats.submitted,
            stats.completed,
            stats.overflows,
            ring.in_flight() as u64,
            stats.backlog_max,
            stats.enobufs,
            stats.stalled,
            stats.kicks,
            stats.refused,
        ];
        for (published, figure) in self.ring.iter().zip(figures) {
            published.store(figure, Relaxed);
        }
    }

    pub(crate) fn ring(&self) -> RingMetrics {
        let [
            enters,
            submitted,
            completed,
            overflows,
            in_flight,
            backlog_max,
            out_of_buffers,
            stalled_streams,
            kicks,
            refused,
        ] = std::array::from_fn(|index| self.ring[index].load(Relaxed));
        RingMetrics {
            enters,
            submitted,
            completed,
            overflows,
            in_flight,
            backlog_max,
            out_of_buffers,
            stalled_streams,
            kicks,
            refused,
        }
    }

    pub(crate) fn times(&self, now: u64) -> Times {
        let parked = self.parked.sum(now);
        let in_service = self.in_service.sum(now);
        Times {
            in_service,
            parked: parked.min(in_service),
            spin: self.spin.load(Relaxed),
            parks: self.parks.load(Relaxed),
        }
    }
}

/// Times in ticks, and the number of parks.
pub(crate) struct Times {
    pub(crate) in_service: u64,
    pub(crate) parked: u64,
    pub(crate) spin: u64,
    pub(crate) parks: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_count_while_they_last_and_after() {
        let spans = Spans::default();
        assert_eq!(spans.sum(1_000), 0);
        spans.begin(1_000);
        assert!(spans.is_open());
        assert_eq!(spans.sum(1_400), 400);
        spans.end(1_500);
        assert!(!spans.is_open());
        assert_eq!(spans.sum(9_000), 500);
        spans.begin(10_000);
        assert_eq!(spans.sum(10_250), 750);
        assert_eq!(spans.sum(9_000), 0, "a clock that was read too early");
    }
}
