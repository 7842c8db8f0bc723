//! Collects a [`Metrics`] from the counters of all vCPUs.

use upshift_core::{LEVELS, Level};

use super::{CoroutineMetrics, Histogram, LevelMetrics, Metrics, StallMetrics, VcpuMetrics};
use crate::host::Linux;
use crate::runtime::shared::Shared;
use crate::time::clock;

type Vcpu = upshift_core::Vcpu<Linux>;

pub(crate) fn collect(shared: &Shared) -> Metrics {
    let domain = &shared.domain;
    let (mut exited, mut panicked) = (0, 0);
    // The numbers of exits are read before the number of spawned coroutines, so that their sum does
    // not exceed that number.
    for vcpu in domain.vcpus() {
        let exits = vcpu.exits();
        exited += exits.0;
        panicked += exits.1;
    }
    let mut levels = Levels::default();
    let mut vcpus = Vec::new();
    for vcpu in domain.vcpus() {
        vcpus.push(vcpu_metrics(shared, vcpu, &mut levels));
    }
    let spawned = domain.spawned().max(exited);
    let live = spawned - exited;
    let running = vcpus.iter().filter(|vcpu| vcpu.running.is_some()).count() as u64;
    let queued: u64 = vcpus.iter().map(|vcpu| vcpu.ready).sum();
    let suspended: u64 = vcpus.iter().map(|vcpu| vcpu.suspended).sum();
    let running = running.min(live);
    let suspended = suspended.min(live - running);
    let ready = queued
        .saturating_sub(suspended)
        .min(live - running - suspended);
    Metrics {
        uptime: clock::from_ticks(clock::ticks().saturating_sub(shared.built_at)),
        driver: shared.settings.driver.driver.to_string(),
        coroutines: CoroutineMetrics {
            live,
            ready,
            running,
            blocked: live - running - suspended - ready,
            suspended,
            spawned,
            exited,
            panicked,
        },
        levels: levels.finish(),
        vcpus,
        preemption: shared.preemption_stats(),
        blocking: shared.pool.metrics(),
        stalls: stalls(shared),
        named: domain.host().names().metrics(),
    }
}

fn stalls(shared: &Shared) -> StallMetrics {
    let Some(monitor) = shared.monitor.get() else {
        return StallMetrics::default();
    };
    let (count, longest) = monitor.longest.snapshot();
    StallMetrics {
        limit: monitor.limit,
        count,
        longest,
    }
}

fn vcpu_metrics(shared: &Shared, vcpu: &Vcpu, levels: &mut Levels) -> VcpuMetrics {
    let meter = shared.meter(vcpu.index());
    let running = vcpu.running_level().filter(|_| vcpu.is_polling());
    let (mut polls, mut suspensions, mut polling, mut ready) = (0, 0, 0, 0);
    for level in all_levels() {
        let queued = vcpu.ready_len(level) as u64;
        let running = u64::from(running == Some(level));
        let poll_count = vcpu.level_polls(level);
        if poll_count + queued + running == 0 {
            continue;
        }
        let stats = vcpu.level_stats(level);
        ready += queued;
        polls += stats.polls;
        suspensions += stats.suspensions;
        polling += stats.run_ticks;
        levels.add(level, queued, running, &stats);
    }
    let poll = vcpu.current_poll();
    let names = shared.domain.host().names();
    let work = poll.and_then(|poll| names.current_work(vcpu, &poll));
    let now = clock::ticks();
    let age = poll.map_or(0, |poll| now.saturating_sub(poll.began));
    let times = meter.times(now);
    let idle = times.parked + times.spin;
    // A poll may seem to have begun in the wait before it, so `polling` is limited to `busy` below.
    let busy = times.in_service.saturating_sub(idle);
    VcpuMetrics {
        index: vcpu.index(),
        active: !vcpu.is_retired(),
        is_parked: vcpu.is_parked(),
        polls_name: work.map(|(work, _)| work.name.to_string()),
        polls_location: poll.map(|poll| poll.location.to_string()),
        poll_age: clock::from_ticks(age),
        running,
        ready,
        suspended: vcpu.suspended() as u64,
        in_service: clock::from_ticks(times.in_service),
        busy: clock::from_ticks(busy),
        polling: clock::from_ticks(polling.min(busy)),
        parked: clock::from_ticks(times.parked),
        spin: clock::from_ticks(times.spin),
        parks: times.parks,
        polls,
        suspensions,
        stolen: vcpu.stolen(),
        ring: meter.ring(),
    }
}

fn all_levels() -> impl Iterator<Item = Level> {
    (0..LEVELS as u8).filter_map(|level| Level::new(level).ok())
}

/// Sums over all vCPUs, by level; `None` for a level that was never used.
struct Levels(Box<[Option<Sum>]>);

struct Sum {
    ready: u64,
    running: u64,
    stats: upshift_core::LevelStats,
}

impl Default for Levels {
    fn default() -> Levels {
        Levels((0..LEVELS).map(|_| None).collect())
    }
}

impl Levels {
    fn add(&mut self, level: Level, ready: u64, running: u64, stats: &upshift_core::LevelStats) {
        match &mut self.0[usize::from(level.get())] {
            Some(sum) => {
                sum.ready += ready;
                sum.running += running;
                sum.stats.merge(stats);
            }
            empty => {
                *empty = Some(Sum {
                    ready,
                    running,
                    stats: stats.clone(),
                });
            }
        }
    }

    fn finish(self) -> Vec<LevelMetrics> {
        let sums = all_levels().zip(self.0);
        sums.filter_map(|(level, sum)| {
            let sum = sum?;
            Some(LevelMetrics {
                level,
                polls: sum.stats.polls,
                suspensions: sum.stats.suspensions,
                ready: sum.ready,
                running: sum.running,
                run: clock::from_ticks(sum.stats.run_ticks),
                starve: clock::from_ticks(sum.stats.starve_ticks),
                wait: Histogram::from_ticks(&sum.stats.wait),
            })
        })
        .collect()
    }
}
