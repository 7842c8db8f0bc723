//! Computes the activity of a process between two snapshots, as a [`Frame`] of table rows.

use serde::Serialize;
use upshift::metrics::Metrics;
use upshift::observe::View;

use super::attach::Peer;

/// All figures of a process.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Frame {
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) command: String,
    /// Version of the library in the process.
    pub(super) version: String,
    pub(super) uptime_ns: u64,
    /// Length of the interval that rates and shares refer to.
    pub(super) interval_ns: u64,
    pub(super) coroutines: Coroutines,
    /// Bitmap: bit L is set if a coroutine of level L is ready, suspended or running.
    pub(super) occupied: u64,
    pub(super) levels: Vec<Level>,
    pub(super) vcpus: Vec<Vcpu>,
    pub(super) preemption: Preemption,
    /// Duration above which a poll is a stall; 0 if stalls are not detected.
    pub(super) stall_limit_ns: u64,
    pub(super) stalls: u64,
    pub(super) longest_polls: Vec<Poll>,
    /// Named work, such as the requests of a route; the names that took most time come first.
    pub(super) routes: Vec<Route>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Coroutines {
    pub(super) live: u64,
    pub(super) ready: u64,
    pub(super) running: u64,
    pub(super) blocked: u64,
    pub(super) suspended: u64,
    pub(super) spawned_per_s: f64,
    pub(super) exited_per_s: f64,
    pub(super) panicked: u64,
    pub(super) blocking_threads: u64,
    pub(super) blocking_queued: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Level {
    pub(super) level: u8,
    pub(super) ready: u64,
    pub(super) running: u64,
    pub(super) polls_per_s: f64,
    /// CPU time as a share of one CPU: 2.0 means two busy vCPUs.
    pub(super) cpu: f64,
    /// Share of the interval in which the level had a ready coroutine, but no coroutine of the
    /// level was picked, summed over vCPUs.
    pub(super) starve: f64,
    pub(super) wait_p50_ns: u64,
    pub(super) wait_p99_ns: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Vcpu {
    pub(super) index: usize,
    pub(super) active: bool,
    /// Share of the interval, as are `polling`, `parked` and `spin`.
    pub(super) busy: f64,
    pub(super) polling: f64,
    pub(super) parked: f64,
    pub(super) spin: f64,
    pub(super) polls_per_s: f64,
    pub(super) stolen_per_s: f64,
    pub(super) suspensions_per_s: f64,
    pub(super) enters_per_s: f64,
    pub(super) sqes_per_s: f64,
    pub(super) cqes_per_s: f64,
    pub(super) in_flight: u64,
    /// Number of times that the completion queue has overflowed since the start.
    pub(super) overflows: u64,
    pub(super) running: Option<u8>,
    pub(super) work: Option<String>,
    /// Spawn location of the polled coroutine.
    pub(super) location: Option<String>,
    /// Duration of the current poll so far.
    pub(super) poll_age_ns: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Preemption {
    pub(super) vcpus: usize,
    pub(super) suspended: usize,
    pub(super) suspensions_per_s: f64,
    pub(super) looks_per_s: f64,
    pub(super) useless_per_s: f64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Poll {
    pub(super) work: Option<String>,
    pub(super) location: String,
    pub(super) id: String,
    pub(super) level: u8,
    pub(super) longest_ns: u64,
    pub(super) is_running: bool,
    /// Number of polls that were timed.
    pub(super) watched: u64,
}

/// Work under one name.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Route {
    pub(super) name: String,
    /// Level of the last poll.
    pub(super) level: u8,
    pub(super) under_way: u64,
    pub(super) ended_per_s: f64,
    /// Share of one CPU that the polls took.
    pub(super) cpu: f64,
    /// Median time from the first poll to the end, in this interval.
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) longest_poll_ns: u64,
}

/// Document that `--once --json` prints.
#[derive(Debug, Serialize)]
pub(super) struct Document<'a> {
    /// Version of this document.
    schema: u32,
    #[serde(flatten)]
    frame: &'a Frame,
    /// Snapshot at the end of the interval, with counters since the start.
    metrics: &'a Metrics,
}

impl<'a> Document<'a> {
    pub(super) fn new(frame: &'a Frame, now: &'a View) -> Document<'a> {
        Document {
            schema: 1,
            frame,
            metrics: &now.metrics,
        }
    }
}

fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Removes control characters, which could move the cursor, from foreign text.
fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

impl Level {
    pub(super) const COLUMNS: [&'static str; 8] = [
        "level", "ready", "run", "polls/s", "CPU", "wait p50", "wait p99", "starved",
    ];

    pub(super) fn cells(&self) -> [String; 8] {
        [
            self.level.to_string(),
            self.ready.to_string(),
            self.running.to_string(),
            rate(self.polls_per_s),
            percent(self.cpu),
            time(self.wait_p50_ns),
            time(self.wait_p99_ns),
            percent(self.starve),
        ]
    }
}

impl Frame {
    /// Computes the activity of a process between two snapshots.
    pub(super) fn new(peer: &Peer, before: &View, now: &View) -> Frame {
        let part = now.metrics.since(&before.metrics);
        let seconds = part.uptime.as_secs_f64().max(1e-9);
        let rate = |count: u64| count as f64 / seconds;
        let share = |time: std::time::Duration| time.as_secs_f64() / seconds;
        let all = &part.coroutines;
        let levels = part.levels.iter().map(|level| Level {
            level: level.level.get(),
            ready: level.ready,
            running: level.running,
            polls_per_s: rate(level.polls),
            cpu: share(level.run),
            starve: share(level.starve),
            wait_p50_ns: nanos(level.wait.quantile(0.5)),
            wait_p99_ns: nanos(level.wait.quantile(0.99)),
        });
        let vcpus = part.vcpus.iter().map(|vcpu| Vcpu {
            index: vcpu.index,
            active: vcpu.active,
            busy: share(vcpu.busy).min(1.0),
            polling: share(vcpu.polling).min(1.0),
            parked: share(vcpu.parked).min(1.0),
            spin: share(vcpu.spin).min(1.0),
            polls_per_s: rate(vcpu.polls),
            stolen_per_s: rate(vcpu.stolen),
            suspensions_per_s: rate(vcpu.suspensions),
            enters_per_s: rate(vcpu.ring.enters),
            sqes_per_s: rate(vcpu.ring.submitted),
            cqes_per_s: rate(vcpu.ring.completed),
            in_flight: vcpu.ring.in_flight,
            overflows: now.metrics.vcpus[vcpu.index].ring.overflows,
            running: vcpu.running.map(|level| level.get()),
            work: vcpu.polls_name.as_deref().map(clean),
            location: vcpu.polls_location.as_deref().map(clean),
            poll_age_ns: nanos(vcpu.poll_age),
        });
        let polls = part.stalls.longest.iter().map(|poll| Poll {
            work: poll.name.as_deref().map(clean),
            location: clean(&poll.location),
            id: clean(&poll.id),
            level: poll.level.get(),
            longest_ns: nanos(poll.longest),
            is_running: poll.is_running,
            watched: poll.watched,
        });
        let mut routes: Vec<Route> = part
            .named
            .iter()
            .map(|work| Route {
                name: clean(&work.name),
                level: work.level.get(),
                under_way: work.under_way,
                ended_per_s: rate(work.ended),
                cpu: share(work.polling),
                p50_ns: nanos(work.latency.quantile(0.5)),
                p99_ns: nanos(work.latency.quantile(0.99)),
                longest_poll_ns: nanos(work.longest),
            })
            .collect();
        routes.sort_by(|a, b| b.cpu.total_cmp(&a.cpu).then_with(|| a.name.cmp(&b.name)));
        Frame {
            pid: peer.pid,
            name: clean(&now.name),
            command: peer.command.clone(),
            version: clean(&now.version),
            uptime_ns: nanos(now.metrics.uptime),
            interval_ns: nanos(part.uptime),
            coroutines: Coroutines {
                live: all.live,
                ready: all.ready,
                running: all.running,
                blocked: all.blocked,
                suspended: all.suspended,
                spawned_per_s: rate(all.spawned),
                exited_per_s: rate(all.exited),
                panicked: now.metrics.coroutines.panicked,
                blocking_threads: part.blocking.threads,
                blocking_queued: part.blocking.queued,
            },
            occupied: part.occupied(),
            levels: levels.collect(),
            vcpus: vcpus.collect(),
            preemption: Preemption {
                vcpus: part.preemption.vcpus,
                suspended: part.preemption.suspended,
                suspensions_per_s: rate(part.preemption.suspensions),
                looks_per_s: rate(part.preemption.wakeups),
                useless_per_s: rate(part.preemption.spurious_wakeups),
            },
            stall_limit_ns: nanos(part.stalls.limit),
            stalls: now.metrics.stalls.count,
            longest_polls: polls.collect(),
            routes,
        }
    }
}

impl Route {
    pub(super) const COLUMNS: [&'static str; 7] =
        ["level", "active", "done/s", "CPU", "p50", "p99", "longest"];

    pub(super) fn cells(&self) -> [String; 7] {
        [
            self.level.to_string(),
            self.under_way.to_string(),
            rate(self.ended_per_s),
            percent(self.cpu),
            time(self.p50_ns),
            time(self.p99_ns),
            time(self.longest_poll_ns),
        ]
    }
}

impl Poll {
    /// Returns the name of the work, or else the spawn location.
    pub(super) fn work_name(&self) -> &str {
        self.work.as_deref().unwrap_or(&self.location)
    }
}

/// Shortens a text to `width` cells: an ellipsis and its end, which in a path is the file and the
/// line.
pub(super) fn keep_end(text: &str, width: usize) -> String {
    let cells = text.chars().count();
    if cells <= width {
        return text.into();
    }
    let shown_width = width.saturating_sub(1);
    let end: String = text.chars().skip(cells - shown_width).collect();
    format!("…{end}")
}

/// Formats a time with three digits and a unit; a dash for 0.
pub(super) fn time(ns: u64) -> String {
    match ns {
        0 => "–".into(),
        1..1_000 => format!("{ns} ns"),
        ns => upshift_report::number::micros(ns as f64 / 1e3),
    }
}

/// Formats a rate with up to three digits.
pub(super) fn rate(per_second: f64) -> String {
    match per_second {
        r if r >= 99_950_000.0 => format!("{:.0} M", r / 1e6),
        r if r >= 999_500.0 => format!("{:.1} M", r / 1e6),
        r if r >= 9_995.0 => format!("{:.0} k", r / 1e3),
        r if r >= 999.5 => format!("{:.1} k", r / 1e3),
        r if r >= 10.0 || r == 0.0 => format!("{r:.0}"),
        r => format!("{r:.1}"),
    }
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

pub(super) fn age(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {:02} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_texts_have_no_control_characters() {
        let rates = [0.0, 0.25, 12.4, 999.0, 1_234.0, 56_789.0, 1.5e6, 2e8].map(rate);
        assert_eq!(
            rates,
            ["0", "0.2", "12", "999", "1.2 k", "57 k", "1.5 M", "200 M"]
        );
        assert_eq!(time(0), "–");
        assert_eq!(time(999), "999 ns");
        assert_eq!(time(1_500_000), "1.50 ms");
        assert_eq!(percent(0.1234), "12.3 %");
        assert_eq!(age(59_900_000_000), "59 s");
        assert_eq!(age(3_700_000_000_000), "1 h 01 min");
        assert_eq!(clean("a\u{1b}[2Jb\n"), "a[2Jb");
        assert_eq!(keep_end("src/main.rs:10:5", 16), "src/main.rs:10:5");
        assert_eq!(keep_end("/home/a/src/main.rs:10:5", 13), "…main.rs:10:5");
    }
}
