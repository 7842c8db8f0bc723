//! Hogs: threads that compute on all harts, for tests of urgent work. They end when a test
//! stops them, or when their time limit has passed. The limit is long enough that, for any number
//! of harts and any speed of the machine, reaching it is a failure.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::SeqCst;

use crate::testing::{Outcome, message};
use crate::thread::{self, JoinHandle};
use crate::{ensure, now, sleep, sys, ticks_per_second};

/// Threads that compute on all harts.
pub struct Hogs {
    threads: Vec<JoinHandle<bool>>,
    over: Arc<AtomicBool>,
}

/// Number of hogs: more than a machine has harts.
pub const COUNT: usize = 9;
/// Time limit of the hogs, in seconds.
pub const LIMIT_SECONDS: u64 = 20;

/// Longest time that counts between two checks, in milliseconds. Without this limit, a host that is
/// stopped during a test would look like a machine without progress.
const MAX_STEP_MILLIS: u64 = 100;

/// A time limit that counts only the time in which the machine runs.
pub struct RunTimeLimit {
    /// Clock at the last check, in ticks.
    last_check: u64,
    ticks_left: u64,
}

impl RunTimeLimit {
    /// Creates a limit of `seconds` seconds.
    #[must_use]
    pub fn seconds(seconds: u64) -> RunTimeLimit {
        RunTimeLimit {
            last_check: now(),
            ticks_left: seconds * ticks_per_second(),
        }
    }

    /// Returns whether the time has passed. Must be called often, because of a longer interval only
    /// 100 ms count.
    #[must_use]
    pub fn is_over(&mut self) -> bool {
        let since = core::mem::replace(&mut self.last_check, now());
        let passed = self.last_check.saturating_sub(since);
        let max_step = MAX_STEP_MILLIS * ticks_per_second() / 1_000;
        self.ticks_left = self.ticks_left.saturating_sub(passed.min(max_step));
        self.ticks_left == 0
    }
}

/// Computes until `over` is set. Returns false if the time limit has passed first.
#[must_use]
pub fn hog(over: &AtomicBool) -> bool {
    let mut limit = RunTimeLimit::seconds(LIMIT_SECONDS);
    while !over.load(SeqCst) {
        for n in 0..2_000 {
            core::hint::black_box(n);
        }
        if limit.is_over() {
            return false;
        }
    }
    true
}

impl Hogs {
    /// Starts hogs at this level.
    ///
    /// # Errors
    /// The reason why a thread could not start.
    pub fn start(level: usize) -> Result<Hogs, String> {
        let over = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for _ in 0..COUNT {
            let over = over.clone();
            let hog = thread::spawn(move || {
                let _ = sys::set_level(level);
                hog(&over)
            });
            threads.push(hog.map_err(message)?);
        }
        Ok(Hogs { threads, over })
    }

    /// Returns the flag that ends the hogs.
    #[must_use]
    pub fn end(&self) -> Arc<AtomicBool> {
        self.over.clone()
    }

    /// Waits for all hogs, after the test has stopped them.
    ///
    /// # Errors
    /// The hogs were not stopped in time.
    pub async fn join(self) -> Outcome {
        // A join lends the level of the test to the hogs, so they must be stopped first.
        let mut limit = RunTimeLimit::seconds(2 * LIMIT_SECONDS);
        while !self.over.load(SeqCst) && !limit.is_over() {
            sleep(1_000).await;
        }
        let mut in_time = self.over.swap(true, SeqCst);
        for hog in self.threads {
            in_time &= hog.join().map_err(message)?;
        }
        ensure!(in_time, "the test waited behind less urgent work");
        Ok(())
    }
}
