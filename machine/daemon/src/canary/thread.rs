//! The canary of one CPU: a pinned thread that answers when the monitor asks.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::JoinHandle;
use std::time::Instant;

use upshift_elevate::sys::CpuSet;

use crate::canary::rule::{Check, Demotion, SilenceRule};
use crate::shared::{CANARY, Shared};

/// Size in bytes of the stack of a canary, which needs very little.
const STACK_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Canary {
    pub(super) cpu: usize,
    answers: Arc<Answers>,
    thread: Option<JoinHandle<()>>,
    rule: SilenceRule,
}

#[derive(Debug, Default)]
struct Answers {
    /// Number of the last question, written by the monitor.
    questions: AtomicU64,
    /// Number of the last answered question, written by the canary.
    answered: AtomicU64,
    /// Set when the canary must end.
    ends: AtomicBool,
}

impl Canary {
    pub(super) fn new(cpu: usize, shared: &Arc<Shared>) -> io::Result<Canary> {
        let answers = Arc::new(Answers::default());
        let (answers_of_thread, shared) = (Arc::clone(&answers), Arc::clone(shared));
        let thread = std::thread::Builder::new()
            .name(format!("upshift-can{cpu}"))
            .stack_size(STACK_BYTES)
            .spawn(move || answers_of_thread.answer(cpu, &shared))?;
        Ok(Canary {
            cpu,
            answers,
            thread: Some(thread),
            rule: SilenceRule::new(Instant::now()),
        })
    }

    pub(super) fn demotion(&self) -> Demotion {
        self.rule.demotion()
    }

    /// Asks again. An answer to an earlier question does not count.
    pub(super) fn restart(&mut self, now: Instant) {
        self.rule.restart(now);
        self.ask();
    }

    /// Checks once, and asks again after an answer. For `elevated` see [`SilenceRule::check`].
    pub(super) fn check(&mut self, elevated: impl FnOnce() -> bool, now: Instant) -> Check {
        let question = self.answers.questions.load(Acquire);
        let has_answered = self.answers.answered.load(Acquire) == question;
        let check = self.rule.check(has_answered, elevated, now);
        if check == Check::Answer {
            self.ask();
        }
        check
    }

    fn ask(&self) {
        self.answers.questions.fetch_add(1, Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
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
            // An unplugged CPU may have returned.
            if rustix::thread::sched_getcpu() != cpu
                && let Some(only) = CpuSet::only(cpu)
            {
                let _ = shared.sys.sched_setaffinity(0, &only);
            }
            self.answered.store(self.questions.load(Acquire), Release);
            std::thread::park();
        }
    }
}
