//! The watchdog: a thread that examines the polls of all vCPUs from time to time, and reports those
//! that take too long.
//!
//! The watchdog finds every poll that exceeds the stall limit. It looks twice in each limit, at
//! intervals of 0.5 to 5 ms (50 ms if there are only the default reports). At each look it marks
//! the poll that is under way, so that the poll is timed when it ends (`upshift_core::Poll`). It
//! reports a poll that is older than the limit and has not ended. A shorter poll may also be
//! marked, with a probability in proportion to its length.
//!
//! An idle process must not be woken for nothing, so the watchdog sleeps when nothing has been
//! polled for [`IDLE_LOOKS`] looks. A vCPU that wakes up notifies the watchdog, at the cost of one
//! load. No notification is lost, because the watchdog and the vCPU each have a full barrier
//! between their write and their read, as in parking.

use std::io;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::longest::{NamedPoll, OnStall, to_stderr};
use super::monitor::Monitor;
use super::starved::{LevelState, StarvedLevels};
use crate::affinity::{self, Mask};
use crate::notice::notice;
use crate::runtime::shared::Shared;
use crate::time::clock;
use crate::user_code::catch_panic::catch_panic;

/// Number of looks in a row that find nothing polled, after which the watchdog sleeps.
const IDLE_LOOKS: u32 = 20;
/// Interval between two default reports of the same name or spawn location.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Number of looks that must see a poll before it is reported. If fewer looks have seen it, the
/// process may have been stopped for most of the time.
const MIN_LOOKS: u32 = 3;
const MAX_REPORTS_PER_SECOND: u32 = 10;

/// Handle to the thread. Its drop ends the thread.
pub(crate) struct Watchdog {
    monitor: Arc<Monitor>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the thread on the CPUs of `mask`. With `reports`, the thread reports starved levels
    /// on standard error, and also stalls, unless `on_stall` receives them.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        monitor: &Arc<Monitor>,
        on_stall: Option<OnStall>,
        reports: bool,
        mask: Mask,
    ) -> io::Result<Watchdog> {
        let (weak, state) = (Arc::downgrade(shared), monitor.clone());
        let hooks = shared.outer_hooks.clone();
        let thread = thread::Builder::new()
            .name(format!("{}-watchdog", shared.settings.name))
            .spawn(move || {
                // If the process may not use these CPUs any more, the thread keeps its present
                // CPUs.
                let _ = affinity::set(&mask);
                let _hooks = hooks.begin();
                run(&weak, &state, on_stall.as_ref(), reports);
            })?;
        let _ = monitor.thread.set(thread.thread().clone());
        Ok(Watchdog {
            monitor: monitor.clone(),
            thread: Some(thread),
        })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.monitor.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that panicked has reported it already.
            let _ = thread.join();
        }
    }
}

/// The state of a vCPU at the last look.
#[derive(Clone, Copy, Default, PartialEq)]
struct LastLook {
    /// Tick at which the vCPU has last read the clock.
    clock: u64,
    /// Tick at which the poll that the last look found began.
    began: u64,
    /// Number of looks that have found this poll.
    looks: u32,
    /// Tick at which the poll that was reported last began.
    reported_poll: u64,
}

fn run(shared: &Weak<Shared>, monitor: &Monitor, on_stall: Option<&OnStall>, reports: bool) {
    let limit = clock::to_ticks(monitor.limit);
    let mut last_looks: Vec<LastLook> = Vec::new();
    let mut starved: Vec<StarvedLevels> = Vec::new();
    let mut idle_looks = 0;
    let mut rate_limit = RateLimit::new();
    let mut recent_reports = RecentReports::default();
    while !monitor.stop.load(SeqCst) {
        {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            if reports {
                look_for_starved(&shared, &mut starved);
            }
            if look(&shared, monitor, &mut last_looks, limit) {
                idle_looks = 0;
            } else {
                idle_looks += 1;
            }
        }
        match on_stall {
            None if reports => recent_reports.report(shared, monitor),
            _ => report(monitor, on_stall, &mut rate_limit),
        }
        if idle_looks < IDLE_LOOKS {
            thread::park_timeout(monitor.period);
        } else {
            sleep(shared, monitor);
            idle_looks = 0;
        }
    }
    if on_stall.is_some() {
        report(monitor, on_stall, &mut rate_limit);
    }
}

fn look_for_starved(shared: &Shared, starved: &mut Vec<StarvedLevels>) {
    let now = Instant::now();
    for (index, vcpu) in shared.domain.vcpus().enumerate() {
        if starved.len() <= index {
            starved.push(StarvedLevels::new(index));
        }
        let state_of = |level| LevelState {
            ready: vcpu.ready_len(level),
            polls: vcpu.level_polls(level),
        };
        if let Some(starvation) = starved[index].look(now, state_of) {
            notice(format_args!("starved: {starvation}"));
        }
    }
}

/// Looks at the polls of all vCPUs. Returns whether anything has been polled since the last look.
fn look(shared: &Shared, monitor: &Monitor, last_looks: &mut Vec<LastLook>, limit: u64) -> bool {
    let mut busy = false;
    for (index, vcpu) in shared.domain.vcpus().enumerate() {
        if last_looks.len() <= index {
            last_looks.push(LastLook::default());
        }
        let last = &mut last_looks[index];
        let clock = vcpu.clock();
        busy |= vcpu.is_polling() || (clock != last.clock && !vcpu.is_parked());
        last.clock = clock;
        let Some(poll) = vcpu.current_poll() else {
            continue;
        };
        vcpu.watch_current_poll();
        if std::mem::replace(&mut last.began, poll.began) != poll.began {
            last.looks = 0;
        }
        last.looks += 1;
        let now = clock::ticks();
        if now.saturating_sub(poll.began) >= limit {
            let is_reported = last.looks >= MIN_LOOKS
                && clock::from_ticks(now - poll.began) >= monitor.report_limit;
            let is_new = last.reported_poll != poll.began && is_reported;
            if is_new {
                last.reported_poll = poll.began;
            }
            let work = shared.domain.host().names().current_work(vcpu, &poll);
            let poll = NamedPoll::new(&poll, work);
            monitor.longest.record_look(index, &poll, now, is_new);
        }
    }
    busy
}

fn sleep(shared: &Weak<Shared>, monitor: &Monitor) {
    monitor.asleep.store(true, SeqCst);
    fence(SeqCst);
    let has_poll = shared.upgrade().is_some_and(|shared| {
        shared
            .domain
            .vcpus()
            .any(|vcpu| vcpu.is_polling() && !vcpu.is_parked())
    });
    if has_poll {
        monitor.asleep.store(false, SeqCst);
        return;
    }
    while monitor.asleep.load(SeqCst) && !monitor.stop.load(SeqCst) {
        thread::park();
    }
}

#[derive(Default)]
struct RecentReports(Vec<(String, Instant)>);

impl RecentReports {
    /// Reports pending stalls whose polls are still under way, at most once per [`REPORT_INTERVAL`]
    /// for each name or spawn location. Polls that preemption can suspend are not reported, because
    /// they do not delay other polls.
    fn report(&mut self, shared: &Weak<Shared>, monitor: &Monitor) {
        while let Some(stall) = monitor.longest.next_report() {
            let now = Instant::now();
            self.0
                .retain(|(_, at)| now.duration_since(*at) < REPORT_INTERVAL);
            let preempts = |shared: Arc<Shared>| shared.settings.preemption.is_some();
            if !stall.is_running || shared.upgrade().is_some_and(preempts) {
                continue;
            }
            let key = match &stall.name {
                Some(name) => name.to_string(),
                None => stall.location.to_string(),
            };
            if self.0.iter().all(|(recent, _)| *recent != key) {
                to_stderr(&stall);
                self.0.push((key, now));
            }
        }
    }
}

/// Number of reports within the current second.
struct RateLimit {
    since: Instant,
    reports: u32,
}

impl RateLimit {
    fn new() -> RateLimit {
        RateLimit {
            since: Instant::now(),
            reports: 0,
        }
    }

    fn may_report(&mut self) -> bool {
        if self.since.elapsed() >= Duration::from_secs(1) {
            *self = RateLimit::new();
        }
        self.reports += 1;
        self.reports <= MAX_REPORTS_PER_SECOND
    }
}

fn report(monitor: &Monitor, on_stall: Option<&OnStall>, rate_limit: &mut RateLimit) {
    while let Some(stall) = monitor.longest.next_report() {
        let Some(OnStall(callback)) = on_stall else {
            continue;
        };
        if !rate_limit.may_report() {
            monitor.longest.suppress(stall.suppressed + 1);
            continue;
        }
        // If `callback` panics, the panic has been printed, and later stalls are still reported.
        let _ = catch_panic(|| callback(&stall));
    }
}
