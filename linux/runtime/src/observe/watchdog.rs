//! The watchdog: a thread that looks, from time to time, at what each vCPU polls.
//!
//! It looks every half of the stall limit (0.5 to 5 ms): marks the poll that is under
//! way, so that its end is timed (`upshift_core::Poll`), and reports one that is older
//! than the limit and has not ended. So every poll beyond the limit is found, and of
//! shorter ones a sample in which each counts by its length.
//!
//! When nothing has been polled for [`IDLE_LOOKS`] looks it sleeps until a vCPU that
//! wakes up tells it (one load per wake of a vCPU): an idle process is not woken for
//! nothing. Both sides of that step have a full barrier in between, as in parking.

use std::io;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::longest::{NamedPoll, OnStall, to_stderr};
use super::starved::{self, Starved};
use super::watch::Watch;
use crate::affinity::{self, Mask};
use crate::notice::notice;
use crate::runtime::shared::Shared;
use crate::time::clock;
use crate::user_code::catch_panic::catch_panic;

/// Looks that find nothing going on before the watchdog sleeps.
const IDLE_LOOKS: u32 = 20;
/// A stall of the same name or spawn location is reported by default once in this time.
const AGAIN: Duration = Duration::from_secs(60);
/// Looks at which a poll is seen before it is reported: the time of one that was seen once may be
/// that in which the process was stopped.
const SEEN: u32 = 3;
/// Reports per second.
const REPORTS: u32 = 10;

/// The thread. Ended by its drop.
pub(crate) struct Watchdog {
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts to watch, on the CPUs of `mask`. With `reports` starved levels are reported, and also
    /// stalls, unless `on_stall` takes them.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        watch: &Arc<Watch>,
        on_stall: Option<OnStall>,
        reports: bool,
        mask: Mask,
    ) -> io::Result<Watchdog> {
        let (weak, shown) = (Arc::downgrade(shared), watch.clone());
        let around = shared.outermost.clone();
        let thread = thread::Builder::new()
            .name(format!("{}-watchdog", shared.settings.name))
            .spawn(move || {
                // If they have been taken away meanwhile, it goes where it may.
                let _ = affinity::restore(&mask);
                let _within = around.begin();
                run(&weak, &shown, on_stall.as_ref(), reports);
            })?;
        let _ = watch.thread.set(thread.thread().clone());
        Ok(Watchdog {
            watch: watch.clone(),
            thread: Some(thread),
        })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.watch.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

/// What was seen of a vCPU at the last look.
#[derive(Clone, Copy, Default, PartialEq)]
struct Seen {
    clock: u64,
    /// When the poll began that was seen at the last look, and at how many looks in a row.
    began: u64,
    looks: u32,
    /// When the poll began that was reported.
    reported: u64,
}

fn run(shared: &Weak<Shared>, watch: &Watch, on_stall: Option<&OnStall>, reports: bool) {
    let limit = clock::to_ticks(watch.limit);
    let mut seen: Vec<Seen> = Vec::new();
    let mut starved: Vec<Starved> = Vec::new();
    let mut idle = 0;
    let mut pace = Pace::new();
    let mut told = Told::default();
    while !watch.stop.load(SeqCst) {
        {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            if reports {
                look_for_starved(&shared, &mut starved);
            }
            if look(&shared, watch, &mut seen, limit) {
                idle = 0;
            } else {
                idle += 1;
            }
        }
        match on_stall {
            None if reports => told.report(shared, watch),
            _ => report(watch, on_stall, &mut pace),
        }
        if idle < IDLE_LOOKS {
            thread::park_timeout(watch.period);
        } else {
            sleep(shared, watch);
            idle = 0;
        }
    }
    if on_stall.is_some() {
        report(watch, on_stall, &mut pace);
    }
}

/// Looks for starved levels, and reports them.
fn look_for_starved(shared: &Shared, starved: &mut Vec<Starved>) {
    let now = Instant::now();
    for (index, vcpu) in shared.domain.vcpus().enumerate() {
        if starved.len() <= index {
            starved.push(Starved::new(index));
        }
        let of = |level| starved::Seen {
            ready: vcpu.ready_len(level),
            polls: vcpu.level_polls(level),
        };
        if let Some(starvation) = starved[index].look(now, of) {
            notice(format_args!("starved: {starvation}"));
        }
    }
}

/// Looks at all vCPUs. False: nothing has been polled since the last look.
fn look(shared: &Shared, watch: &Watch, seen: &mut Vec<Seen>, limit: u64) -> bool {
    let mut busy = false;
    for (index, vcpu) in shared.domain.vcpus().enumerate() {
        if seen.len() <= index {
            seen.push(Seen::default());
        }
        let last = &mut seen[index];
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
            let is_reported =
                last.looks >= SEEN && clock::from_ticks(now - poll.began) >= watch.reported;
            let is_new = last.reported != poll.began && is_reported;
            if is_new {
                last.reported = poll.began;
            }
            let work = shared.domain.host().names().under_way(vcpu, &poll);
            let poll = NamedPoll::new(&poll, work);
            watch.longest.seen(index, &poll, now, is_new);
        }
    }
    busy
}

/// Sleeps until a vCPU wakes up.
fn sleep(shared: &Weak<Shared>, watch: &Watch) {
    watch.asleep.store(true, SeqCst);
    fence(SeqCst);
    let at_work = shared.upgrade().is_some_and(|shared| {
        shared
            .domain
            .vcpus()
            .any(|vcpu| vcpu.is_polling() && !vcpu.is_parked())
    });
    if at_work {
        watch.asleep.store(false, SeqCst);
        return;
    }
    while watch.asleep.load(SeqCst) && !watch.stop.load(SeqCst) {
        thread::park();
    }
}

/// The names and spawn locations of recent reports by default.
#[derive(Default)]
struct Told(Vec<(String, Instant)>);

impl Told {
    /// Reports the stalls that have gathered, each when it is seen, and each name or spawn location
    /// once in [`AGAIN`]. Polls that preemption can suspend delay nobody.
    fn report(&mut self, shared: &Weak<Shared>, watch: &Watch) {
        while let Some(stall) = watch.longest.next_report() {
            let now = Instant::now();
            self.0.retain(|(_, at)| now.duration_since(*at) < AGAIN);
            let preempts = |shared: Arc<Shared>| shared.settings.preemption.is_some();
            if !stall.is_running || shared.upgrade().is_some_and(preempts) {
                continue;
            }
            let place = match &stall.name {
                Some(name) => name.to_string(),
                None => stall.location.to_string(),
            };
            if self.0.iter().all(|(told, _)| *told != place) {
                to_stderr(&stall);
                self.0.push((place, now));
            }
        }
    }
}

/// At most so many reports a second.
struct Pace {
    since: Instant,
    reports: u32,
}

impl Pace {
    fn new() -> Pace {
        Pace {
            since: Instant::now(),
            reports: 0,
        }
    }

    fn may_report(&mut self) -> bool {
        if self.since.elapsed() >= Duration::from_secs(1) {
            *self = Pace::new();
        }
        self.reports += 1;
        self.reports <= REPORTS
    }
}

/// Tells of the stalls that have gathered.
fn report(watch: &Watch, on_stall: Option<&OnStall>, pace: &mut Pace) {
    while let Some(stall) = watch.longest.next_report() {
        let Some(OnStall(tell)) = on_stall else {
            continue;
        };
        if !pace.may_report() {
            watch.longest.suppress(stall.suppressed + 1);
            continue;
        }
        // It has been printed; the next stall is told all the same.
        let _ = catch_panic(|| tell(&stall));
    }
}
