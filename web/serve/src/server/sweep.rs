//! The periodic work of the server: a coroutine advances the coarse clock, ends waits that exceed
//! their time-outs, closes the cached files, and returns memory when many connections have gone.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use upshift::time;

use crate::clock;
use crate::server::shared::Shared;

/// Period of the sweep.
const EVERY: Duration = Duration::from_millis(250);
/// Number of closed connections after which the heap is trimmed.
const MANY: usize = 256;
/// Shortest time between two trims of the heap, in ms.
const REST: u64 = 2000;

/// Sweeps until it is cancelled.
pub(crate) async fn sweep(shared: Arc<Shared>) {
    let mut trend = ConnectionTrend::default();
    loop {
        time::sleep(EVERY).await;
        let now = clock::millis();
        if trend.is_out(shared.connections.count(), now) {
            upshift::spawn_blocking(upshift::sys::trim_heap).detach();
        }
        shared.coarse.store(now, Relaxed);
        let live = shared.live();
        shared.connections.each(|conn| {
            conn.note_progress(now);
            let overdue = conn.clocks.overdue(now, &live.config.limits);
            let (Some(_), Some(id)) = (overdue, conn.coroutine()) else {
                return;
            };
            if shared.runtime.cancel(id).is_ok() {
                shared.metrics.timed_out.fetch_add(1, Relaxed);
            }
        });
        shared.rates.prune(clock::nanos());
        shared.recent_files.forget();
    }
}

/// The course of the number of connections.
#[derive(Default)]
struct ConnectionTrend {
    high: usize,
    before: usize,
    trimmed: u64,
}

impl ConnectionTrend {
    /// Tells whether many connections have gone since the maximum, and none goes any more.
    /// Connections that closed after a trim would keep their memory until as many had gone again.
    fn is_out(&mut self, open: usize, now: u64) -> bool {
        self.high = self.high.max(open);
        let falls = open < self.before;
        self.before = open;
        let is_due = now.saturating_sub(self.trimmed) >= REST;
        let is_out = self.high - open >= MANY && is_due && !falls;
        if is_out {
            self.high = open;
            self.trimmed = now;
        }
        is_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tide_is_out_once_when_many_have_gone() {
        let mut trend = ConnectionTrend::default();
        let mut is_out = |open, now| trend.is_out(open, now);
        assert!(!is_out(10_000, 10_000));
        assert!(!is_out(9_900, 10_250));
        assert!(!is_out(5_000, 10_500), "more may go");
        assert!(!is_out(4_900, 10_750));
        assert!(is_out(4_900, 11_000));
        assert!(!is_out(4_900, 13_000));
        assert!(!is_out(5_200, 13_250));
        assert!(!is_out(0, 13_500));
        assert!(is_out(0, 13_750));
        // The last trim is too recent.
        assert!(!is_out(1_000, 14_000));
        assert!(!is_out(0, 14_250));
        assert!(!is_out(0, 15_500));
        assert!(is_out(0, 15_750));
    }
}
