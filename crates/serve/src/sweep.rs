//! The coroutine that advances the coarse clock and ends what has lasted too long.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use upshift::time;

use crate::clock;
use crate::shared::Shared;

/// How often it looks.
const EVERY: Duration = Duration::from_millis(250);

/// Runs until it is cancelled.
pub(crate) async fn sweep(shared: Arc<Shared>) {
    loop {
        time::sleep(EVERY).await;
        let now = clock::millis();
        shared.coarse.store(now, Relaxed);
        let live = shared.live();
        shared.connections.each(|conn| {
            let (Some(_), Some(id)) =
                (conn.overdue(now, &live.config.limits), conn.coroutine.get())
            else {
                return;
            };
            if shared.runtime.cancel(*id).is_ok() {
                shared.metrics.timed_out.fetch_add(1, Relaxed);
            }
        });
        shared.rates.prune(clock::nanos());
    }
}
