//! Does the periodic work of the server. A coroutine, the *sweep*, advances the coarse clock,
//! closes connections that exceed a time-out, closes the cached files, and trims the heap after
//! many connections have closed.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use upshift::time;

use crate::clock;
use crate::server::shared::Shared;

/// Time between two sweeps.
const PERIOD: Duration = Duration::from_millis(250);
/// Number of closed connections at which the heap is trimmed.
const TRIM_THRESHOLD: usize = 256;
/// Minimum time between two trims of the heap, in ms.
const MIN_TRIM_INTERVAL: u64 = 2000;

pub(crate) async fn sweep(shared: Arc<Shared>) {
    let mut trend = ConnectionTrend::default();
    loop {
        time::sleep(PERIOD).await;
        let now = clock::millis();
        if trend.should_trim(shared.connections.count(), now) {
            upshift::spawn_blocking(upshift::sys::trim_heap).detach();
        }
        shared.coarse_clock.store(now, Relaxed);
        let settings = shared.settings();
        shared.connections.for_each(|conn| {
            conn.note_progress(now);
            let overdue = conn.clocks.overdue(now, &settings.config.limits);
            let (Some(_), Some(id)) = (overdue, conn.coroutine()) else {
                return;
            };
            if shared.runtime.cancel(id).is_ok() {
                shared.metrics.timed_out.fetch_add(1, Relaxed);
            }
        });
        shared.rate_limiter.prune(clock::nanos());
        shared.recent_files.clear();
    }
}

/// Recent numbers of open connections, for the decision to trim the heap.
#[derive(Default)]
struct ConnectionTrend {
    peak: usize,
    previous: usize,
    trimmed_at: u64,
}

impl ConnectionTrend {
    /// Returns whether many connections have closed since the peak and none are closing now. The
    /// second condition matters because the memory of connections that close after a trim stays
    /// until the next trim.
    fn should_trim(&mut self, open: usize, now: u64) -> bool {
        self.peak = self.peak.max(open);
        let is_falling = open < self.previous;
        self.previous = open;
        let is_due = now.saturating_sub(self.trimmed_at) >= MIN_TRIM_INTERVAL;
        let should_trim = self.peak - open >= TRIM_THRESHOLD && is_due && !is_falling;
        if should_trim {
            self.peak = open;
            self.trimmed_at = now;
        }
        should_trim
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_is_trimmed_once_after_many_connections_have_closed() {
        let mut trend = ConnectionTrend::default();
        let mut should_trim = |open, now| trend.should_trim(open, now);
        assert!(!should_trim(10_000, 10_000));
        assert!(!should_trim(9_900, 10_250));
        assert!(!should_trim(5_000, 10_500), "more connections may close");
        assert!(!should_trim(4_900, 10_750));
        assert!(should_trim(4_900, 11_000));
        assert!(!should_trim(4_900, 13_000));
        assert!(!should_trim(5_200, 13_250));
        assert!(!should_trim(0, 13_500));
        assert!(should_trim(0, 13_750));
        // The last trim is too recent.
        assert!(!should_trim(1_000, 14_000));
        assert!(!should_trim(0, 14_250));
        assert!(!should_trim(0, 15_500));
        assert!(should_trim(0, 15_750));
    }
}
