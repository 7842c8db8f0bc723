//! Records the longest polls of coroutines, and the polls that exceeded the limit (*stalls*) until
//! they are reported. There is an entry for each name of work (if any) and spawn location. Entries
//! and stalls are bounded in number. A poll that the watchdog has marked is *watched*, that is,
//! timed when it ends. Recording a poll takes time in proportion to the number of entries.

use std::collections::VecDeque;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use upshift_core::{CoroutineId, Level, Poll};

use super::names::Work;

use crate::metrics::LongPoll;
use crate::time::clock;

/// Largest number of entries; those with the longest polls are kept.
const MAX_SITES: usize = 32;
/// Number of stalls that may wait to be reported; further stalls are counted.
const MAX_PENDING: usize = 64;

/// A poll that took longer than the limit, or is still taking longer.
///
/// Its `Display` is a sentence.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stall {
    /// The coroutine.
    pub id: CoroutineId,
    /// The level at which it was polled.
    pub level: Level,
    /// The name of its work, if it has one; see [`named`](super::named).
    pub name: Option<Arc<str>>,
    /// The location where it was spawned.
    pub location: &'static Location<'static>,
    /// The vCPU that polls it.
    pub vcpu: usize,
    /// Duration of the poll, including the time in which it was suspended.
    pub duration: Duration,
    /// Set while the poll has not ended. The stall is reported again when the poll ends.
    pub is_running: bool,
    /// Number of stalls since the last report that were not reported, because there were too many.
    pub suppressed: u64,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref();
        write!(
            f,
            "{} {} for {:.1?} on vCPU {}",
            Identity(name, self.id, self.level, self.location),
            if self.is_running {
                "has been polled"
            } else {
                "was polled"
            },
            self.duration,
            self.vcpu,
        )?;
        if self.is_running {
            f.write_str(" and is still running")?;
        }
        match self.suppressed {
            0 => Ok(()),
            count => write!(f, "; {count} other stalls were not reported"),
        }
    }
}

/// Formats what identifies the coroutine of a poll: the name of its work if it has one, its level,
/// and its spawn location.
struct Identity<'a>(
    Option<&'a str>,
    CoroutineId,
    Level,
    &'static Location<'static>,
);

impl fmt::Display for Identity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity(name, id, level, location) = self;
        match name {
            Some(name) => write!(
                f,
                "{name} (level {level}, coroutine {id}, spawned at {location})"
            ),
            None => write!(f, "coroutine {id} (level {level}, spawned at {location})"),
        }
    }
}

/// A poll, with the named work in it, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct NamedPoll {
    poll: Poll,
    work: Option<Arc<Work>>,
}

impl NamedPoll {
    pub(crate) fn new(poll: &Poll, work: Option<(Arc<Work>, Level)>) -> NamedPoll {
        let level = work.as_ref().map_or(poll.level, |(_, level)| *level);
        NamedPoll {
            poll: Poll { level, ..*poll },
            work: work.map(|(work, _)| work),
        }
    }

    fn is_like(&self, other: &NamedPoll) -> bool {
        self.name() == other.name() && self.poll.location == other.poll.location
    }

    fn name(&self) -> Option<&Arc<str>> {
        self.work.as_ref().map(|work| &work.name)
    }
}

/// Reports the panic of a detached coroutine on standard error.
pub(crate) fn report_panic(vcpu: usize, poll: &NamedPoll) {
    let NamedPoll { poll: inner, .. } = poll;
    let identity = Identity(
        poll.name().map(|name| &**name),
        inner.id,
        inner.level,
        inner.location,
    );
    crate::notice::notice(format_args!(
        "panic: {identity} panicked on vCPU {vcpu}; it was detached, so no join handle has the panic"
    ));
}

/// Prints a stall on standard error. Meant for [`Builder::on_stall`](crate::Builder::on_stall).
pub fn to_stderr(stall: &Stall) {
    crate::notice::notice(format_args!("stall: {stall}"));
}

/// Emits a stall as a `tracing` warning. Meant for [`Builder::on_stall`](crate::Builder::on_stall).
#[cfg(feature = "tracing")]
pub fn to_tracing(stall: &Stall) {
    tracing::warn!(
        target: "upshift::stall",
        coroutine = %stall.id,
        name = stall.name.as_deref(),
        level = stall.level.get(),
        location = %stall.location,
        vcpu = stall.vcpu,
        duration_ns = clock::nanos(stall.duration),
        is_running = stall.is_running,
        suppressed = stall.suppressed,
        "{stall}"
    );
}

/// The function that receives stalls.
#[derive(Clone)]
pub(crate) struct OnStall(pub(crate) Arc<dyn Fn(&Stall) + Send + Sync>);

impl fmt::Debug for OnStall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnStall")
    }
}

/// The polls of one name of work (or none) and one spawn location.
struct Entry {
    poll: NamedPoll,
    /// Ticks of the longest poll.
    longest_ticks: u64,
    /// Tick at which a poll began that has exceeded the limit and has not ended, if there is one.
    running_since: Option<u64>,
    /// Number of polls that were timed.
    watched: u64,
}

#[derive(Default)]
struct Inner {
    entries: Vec<Entry>,
    /// Stalls to be reported.
    pending: VecDeque<Stall>,
    suppressed: u64,
    stalls: u64,
}

pub(crate) struct LongestPolls {
    limit: u64,
    inner: Mutex<Inner>,
}

impl LongestPolls {
    /// Creates an empty record that counts polls of at least `limit` ticks as stalls.
    pub(crate) fn new(limit: u64) -> LongestPolls {
        LongestPolls {
            limit,
            inner: Mutex::default(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a watched poll that has ended at the tick `ended`. Called on the thread that polled.
    pub(crate) fn record_end(&self, vcpu: usize, poll: &NamedPoll, ended: u64) {
        let ticks = ended.saturating_sub(poll.poll.began);
        let mut inner = self.inner();
        if let Some(entry) = inner.entry(poll, ticks) {
            entry.watched += 1;
            if entry.running_since == Some(poll.poll.began) {
                entry.running_since = None;
            }
        }
        if ticks >= self.limit {
            inner.stalls += 1;
            inner.report(vcpu, poll, ticks, false);
        }
    }

    /// Records a poll under way that has exceeded the limit. With `report`, also queues it to be
    /// reported.
    pub(crate) fn record_look(&self, vcpu: usize, poll: &NamedPoll, now: u64, report: bool) {
        let ticks = now.saturating_sub(poll.poll.began);
        let mut inner = self.inner();
        if let Some(entry) = inner.entry(poll, ticks) {
            entry.running_since = Some(poll.poll.began);
        }
        if report {
            inner.report(vcpu, poll, ticks, true);
        }
    }

    pub(crate) fn next_report(&self) -> Option<Stall> {
        self.inner().pending.pop_front()
    }

    /// Counts stalls that are not reported; the next report states their number.
    pub(crate) fn suppress(&self, count: u64) {
        self.inner().suppressed += count;
    }

    /// Returns the number of stalls, and the longest polls, longest first.
    pub(crate) fn snapshot(&self) -> (u64, Vec<LongPoll>) {
        let inner = self.inner();
        let mut longest: Vec<LongPoll> = inner
            .entries
            .iter()
            .map(|entry| LongPoll {
                name: entry.poll.name().map(ToString::to_string),
                location: entry.poll.poll.location.to_string(),
                id: entry.poll.poll.id.to_string(),
                level: entry.poll.poll.level,
                longest: clock::from_ticks(entry.longest_ticks),
                is_running: entry.running_since.is_some(),
                watched: entry.watched,
            })
            .collect();
        longest.sort_by_key(|poll| std::cmp::Reverse(poll.longest));
        (inner.stalls, longest)
    }
}

impl Inner {
    /// Returns the entry for the poll's name and spawn location, after updating its longest poll.
    /// Returns `None` if the poll is too short for an entry.
    fn entry(&mut self, poll: &NamedPoll, ticks: u64) -> Option<&mut Entry> {
        let existing_index = self
            .entries
            .iter()
            .position(|entry| entry.poll.is_like(poll));
        let index = match existing_index {
            Some(index) => index,
            None => self.new_entry(poll, ticks)?,
        };
        let entry = &mut self.entries[index];
        if ticks >= entry.longest_ticks {
            entry.longest_ticks = ticks;
            entry.poll = poll.clone();
        }
        Some(entry)
    }

    fn new_entry(&mut self, poll: &NamedPoll, ticks: u64) -> Option<usize> {
        let entry = Entry {
            poll: poll.clone(),
            longest_ticks: ticks,
            running_since: None,
            watched: 0,
        };
        if self.entries.len() < MAX_SITES {
            self.entries.push(entry);
            return Some(self.entries.len() - 1);
        }
        let shortest = (0..MAX_SITES).min_by_key(|&index| self.entries[index].longest_ticks)?;
        if self.entries[shortest].longest_ticks >= ticks {
            return None;
        }
        self.entries[shortest] = entry;
        Some(shortest)
    }

    fn report(&mut self, vcpu: usize, poll: &NamedPoll, ticks: u64, is_running: bool) {
        if self.pending.len() >= MAX_PENDING {
            self.suppressed += 1;
            return;
        }
        self.pending.push_back(Stall {
            id: poll.poll.id,
            level: poll.poll.level,
            name: poll.name().cloned(),
            location: poll.poll.location,
            vcpu,
            duration: clock::from_ticks(ticks),
            is_running,
            suppressed: std::mem::take(&mut self.suppressed),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(location: &'static Location<'static>, id: u64) -> NamedPoll {
        let poll = Poll {
            id: CoroutineId::from_u64(id),
            level: Level::DEFAULT,
            location,
            began: 1_000,
        };
        NamedPoll::new(&poll, None)
    }

    #[test]
    fn an_entry_keeps_the_longest_poll_of_its_location() {
        let longest = LongestPolls::new(u64::MAX);
        // Each line is a spawn location of its own.
        let here = Location::caller();
        for n in 0..3 {
            longest.record_end(0, &poll(here, n), 1_000 + 100_000 * (3 - n));
        }
        let (stalls, list) = longest.snapshot();
        assert_eq!((stalls, list.len()), (0, 1));
        assert_eq!(list[0].watched, 3);
        assert_eq!(list[0].id, CoroutineId::from_u64(0).to_string());
    }

    #[test]
    fn stalls_wait_in_a_bounded_queue_and_further_stalls_are_counted() {
        let longest = LongestPolls::new(10);
        for n in 0..100 {
            longest.record_end(1, &poll(Location::caller(), n), 2_000);
        }
        let mut report_count = 0;
        while let Some(stall) = longest.next_report() {
            assert_eq!((stall.vcpu, stall.suppressed), (1, 0));
            report_count += 1;
        }
        assert_eq!(report_count, MAX_PENDING);
        longest.record_end(1, &poll(Location::caller(), 0), 2_000);
        let next_stall = longest.next_report().unwrap();
        assert_eq!(next_stall.suppressed, 100 - MAX_PENDING as u64);
        assert!(
            next_stall.to_string().contains("36 other stalls"),
            "{next_stall}"
        );
        assert_eq!(longest.snapshot().0, 101);
    }

    #[test]
    fn a_poll_is_shown_as_running_until_it_ends() {
        let longest = LongestPolls::new(10);
        let poll = poll(Location::caller(), 7);
        longest.record_look(0, &poll, 5_000, true);
        assert!(longest.snapshot().1[0].is_running);
        assert!(longest.next_report().unwrap().is_running);
        longest.record_end(0, &poll, 9_000);
        assert!(!longest.snapshot().1[0].is_running);
        assert!(!longest.next_report().unwrap().is_running);
    }
}
