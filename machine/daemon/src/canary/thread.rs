//! One CPU's canary: a thread that answers when it is asked, and the watch's side of it.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use upshift_elevate::sys::CpuSet;

use crate::accounts::Accounts;
use crate::canary::ROUND;
use crate::canary::odds::{LATE, Odds, Verdict};
use crate::evidence;
use crate::shared::{CANARY, Shared};

/// It needs next to nothing.
const STACK: usize = 64 * 1024;

/// How long no user is blamed for a silence after a CPU was unplugged.
const UPHEAVAL: Duration = Duration::from_secs(1);

/// The watch's side.
#[derive(Debug)]
pub(super) struct Canary {
    pub(super) cpu: usize,
    answers: Arc<Answers>,
    thread: Option<JoinHandle<()>>,
    asked: Instant,
    /// How often it was listened for since.
    listened: u32,
    odds: Odds,
    /// Since when it is not on its CPU, because that has gone.
    away_since: Option<Instant>,
}

/// What the thread and the watch share.
#[derive(Debug)]
struct Answers {
    questions: AtomicU64,
    answered: AtomicU64,
    /// When it answered last: ns since `began`.
    when: AtomicU64,
    began: Instant,
    /// Its CPU was not there when it answered last.
    away: AtomicBool,
    ends: AtomicBool,
}

impl Canary {
    /// `explained` of the CPU's time so far.
    pub(super) fn new(cpu: usize, explained: Duration, shared: &Arc<Shared>) -> io::Result<Canary> {
        let now = Instant::now();
        let answers = Arc::new(Answers {
            questions: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            when: AtomicU64::new(0),
            began: now,
            away: AtomicBool::new(false),
            ends: AtomicBool::new(false),
        });
        let odds = Odds::new(explained, now);
        let (inside, shared) = (Arc::clone(&answers), Arc::clone(shared));
        let thread = std::thread::Builder::new()
            .name(format!("upshift-can{cpu}"))
            .stack_size(STACK)
            .spawn(move || inside.answer(cpu, &shared))?;
        Ok(Canary {
            cpu,
            answers,
            thread: Some(thread),
            asked: now,
            listened: 0,
            odds,
            away_since: None,
        })
    }

    pub(super) fn ask(&mut self, accounts: &Accounts, now: Instant) {
        self.asked = now;
        self.listened = 0;
        self.answers.questions.fetch_add(1, Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
        // It waits for its CPU from now on, or has answered meanwhile.
        accounts.asks(self.cpu, Instant::now());
        if self.has_answered() {
            accounts.answers(self.cpu);
        }
    }

    /// As [`Canary::ask`]; what it answered before does not count.
    pub(super) fn start_over(&mut self, accounts: &Accounts, explained: Duration, now: Instant) {
        self.odds = Odds::new(explained, now);
        self.ask(accounts, now);
    }

    /// Counts whether it is late. To be called each round, after [`Canary::silence`] and before [`Canary::ask`].
    pub(super) fn count(&mut self) {
        if self.listened > 0 {
            if !self.has_answered() {
                self.odds.count(true);
            }
            return;
        }
        let when = self.answers.began + Duration::from_nanos(self.answers.when.load(Acquire));
        self.odds
            .count(when.saturating_duration_since(self.asked) > LATE);
    }

    /// See [`Odds::is_due`].
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.odds.is_due(now)
    }

    /// See [`Odds::verdict`].
    pub(super) fn verdict(
        &mut self,
        explained: Duration,
        unknown: HashMap<u32, Duration>,
        now: Instant,
    ) -> Verdict {
        self.odds.verdict(explained, unknown, now)
    }

    /// Whether it has answered the last question.
    pub(super) fn has_answered(&self) -> bool {
        self.answers.answered.load(SeqCst) == self.answers.questions.load(Acquire)
    }

    /// Whether its CPU has gone a moment ago: then the kernel has moved what was there, and the machine has stood still.
    pub(super) fn has_just_lost_its_cpu(&mut self, now: Instant) -> bool {
        match self.answers.away.load(Acquire) {
            true => now - *self.away_since.get_or_insert(now) < UPHEAVAL,
            false => {
                self.away_since = None;
                false
            }
        }
    }

    /// For how long it has not answered: no longer than it was listened for, or a machine that stands still would be taken for
    /// a canary that does. To be called each round.
    pub(super) fn silence(&mut self, now: Instant) -> Duration {
        if self.has_answered() {
            return Duration::ZERO;
        }
        self.listened += 1;
        let silence = now.saturating_duration_since(self.asked);
        evidence::counted(silence, ROUND * self.listened)
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.answers.ends.store(true, Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Answers {
    fn answer(&self, cpu: usize, shared: &Shared) {
        let elevator = shared.elevator.as_ref();
        let _own = elevator.map(|elevator| elevator.elevate_current(CANARY));
        while !self.ends.load(Acquire) {
            let away = rustix::thread::sched_getcpu() != cpu
                && CpuSet::only(cpu)
                    .is_some_and(|only| shared.sys.sched_setaffinity(0, &only).is_err());
            self.away.store(away, Release);
            let when = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.when.store(when, Release);
            self.answered.store(self.questions.load(Acquire), SeqCst);
            shared.accounts.answers(cpu);
            std::thread::park();
        }
    }
}
