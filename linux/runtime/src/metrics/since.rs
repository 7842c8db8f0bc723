//! Computes the difference of two snapshots of the metrics.

use crate::preempt::PreemptionStats;

use super::{LevelMetrics, Metrics, NamedMetrics, RingMetrics, VcpuMetrics};

impl Metrics {
    /// Returns the difference between this snapshot and an earlier one of the same runtime.
    /// Counters, times and histograms are those of the interval; fields that describe a state are
    /// those of this snapshot.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let handle = upshift::Handle::current().unwrap();
    /// let before = handle.metrics();
    /// upshift::time::sleep(Duration::from_millis(10)).await;
    /// let interval = handle.metrics().since(&before);
    /// for level in &interval.levels {
    ///     let rate = level.polls as f64 / interval.uptime.as_secs_f64();
    ///     println!("{}: {rate:.0}/s, p99 {:?}", level.level, level.wait.quantile(0.99));
    /// }
    /// # });
    /// ```
    #[must_use]
    pub fn since(&self, earlier: &Metrics) -> Metrics {
        let mut now = self.clone();
        now.uptime = now.uptime.saturating_sub(earlier.uptime);
        let (new, old) = (&mut now.coroutines, &earlier.coroutines);
        subtract_count(&mut new.spawned, old.spawned);
        subtract_count(&mut new.exited, old.exited);
        subtract_count(&mut new.panicked, old.panicked);
        for level in &mut now.levels {
            if let Some(before) = earlier.level(level.level) {
                level.subtract(before);
            }
        }
        for vcpu in &mut now.vcpus {
            if let Some(before) = earlier.vcpus.iter().find(|old| old.index == vcpu.index) {
                vcpu.subtract(before);
            }
        }
        // All fields are named, so that a new counter is not forgotten.
        let PreemptionStats {
            vcpus: _,
            suspensions,
            suspended: _,
            set_aside,
            blocked: _,
            wakeups,
            spurious_wakeups,
            services,
        } = &mut now.preemption;
        let before = &earlier.preemption;
        subtract_count(suspensions, before.suspensions);
        subtract_count(set_aside, before.set_aside);
        subtract_count(wakeups, before.wakeups);
        subtract_count(spurious_wakeups, before.spurious_wakeups);
        subtract_count(services, before.services);
        for work in &mut now.named {
            if let Some(before) = earlier.named.iter().find(|old| old.name == work.name) {
                work.subtract(before);
            }
        }
        subtract_count(&mut now.stalls.count, earlier.stalls.count);
        now
    }
}

fn subtract_count(counter: &mut u64, before: u64) {
    *counter = counter.saturating_sub(before);
}

impl LevelMetrics {
    fn subtract(&mut self, before: &LevelMetrics) {
        subtract_count(&mut self.polls, before.polls);
        subtract_count(&mut self.suspensions, before.suspensions);
        self.run = self.run.saturating_sub(before.run);
        self.starve = self.starve.saturating_sub(before.starve);
        self.wait.subtract(&before.wait);
    }
}

impl NamedMetrics {
    fn subtract(&mut self, before: &NamedMetrics) {
        subtract_count(&mut self.ended, before.ended);
        subtract_count(&mut self.polls, before.polls);
        self.polling = self.polling.saturating_sub(before.polling);
        self.latency.subtract(&before.latency);
    }
}

impl VcpuMetrics {
    fn subtract(&mut self, before: &VcpuMetrics) {
        for (time, before) in [
            (&mut self.in_service, before.in_service),
            (&mut self.busy, before.busy),
            (&mut self.polling, before.polling),
            (&mut self.parked, before.parked),
            (&mut self.spin, before.spin),
        ] {
            *time = time.saturating_sub(before);
        }
        subtract_count(&mut self.parks, before.parks);
        subtract_count(&mut self.polls, before.polls);
        subtract_count(&mut self.suspensions, before.suspensions);
        subtract_count(&mut self.stolen, before.stolen);
        self.ring.subtract(&before.ring);
    }
}

impl RingMetrics {
    fn subtract(&mut self, before: &RingMetrics) {
        subtract_count(&mut self.enters, before.enters);
        subtract_count(&mut self.submitted, before.submitted);
        subtract_count(&mut self.completed, before.completed);
        subtract_count(&mut self.overflows, before.overflows);
        subtract_count(&mut self.out_of_buffers, before.out_of_buffers);
        subtract_count(&mut self.stalled_streams, before.stalled_streams);
        subtract_count(&mut self.kicks, before.kicks);
        subtract_count(&mut self.refused, before.refused);
    }
}
