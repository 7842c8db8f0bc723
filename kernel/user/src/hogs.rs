//! Threads that compute on all harts, for tests of more and less urgent work. They end when a test
//! tells them to, or when their time has run out, which is a failure in a machine of any number of
//! harts and any speed.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::SeqCst;

use crate::testing::{Outcome, text};
use crate::thread::{self, JoinHandle};
use crate::{ensure, now, sleep, sys, ticks_per_second};

/// Threads that compute on all harts.
pub struct Hogs {
    threads: Vec<JoinHandle<bool>>,
    over: Arc<AtomicBool>,
}

/// Number of hogs: more than a machine has harts.
pub const COUNT: usize = 9;
/// Seconds after which they give up.
pub const PATIENCE: u64 = 20;

/// Maximum time that counts between two looks, in thousandths of a second. A host that stands still
/// during a test would otherwise be taken for a machine that makes no progress.
const MOST_AT_ONCE: u64 = 100;

/// Time in which the machine runs.
pub struct Patience {
    looked: u64,
    left: u64,
}

impl Patience {
    /// Creates a patience of `seconds` seconds.
    #[must_use]
    pub fn seconds(seconds: u64) -> Patience {
        Patience {
            looked: now(),
            left: seconds * ticks_per_second(),
        }
    }

    /// Returns whether the time has run out. To be called again and again.
    #[must_use]
    pub fn is_over(&mut self) -> bool {
        let since = core::mem::replace(&mut self.looked, now());
        let passed = self.looked.saturating_sub(since);
        let most = MOST_AT_ONCE * ticks_per_second() / 1_000;
        self.left = self.left.saturating_sub(passed.min(most));
        self.left == 0
    }
}

/// Computes until `over` is set. Returns false if the time has run out first.
#[must_use]
pub fn hog(over: &AtomicBool) -> bool {
    let mut patience = Patience::seconds(PATIENCE);
    while !over.load(SeqCst) {
        for n in 0..2_000 {
            core::hint::black_box(n);
        }
        if patience.is_over() {
            return false;
        }
    }
    true
}

impl Hogs {
    /// Starts hogs at this level.
    ///
    /// # Errors
    /// The reason why they do not start.
    pub fn start(level: usize) -> Result<Hogs, String> {
        let over = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for _ in 0..COUNT {
            let over = over.clone();
            let hog = thread::spawn(move || {
                let _ = sys::set_level(level);
                hog(&over)
            });
            threads.push(hog.map_err(text)?);
        }
        Ok(Hogs { threads, over })
    }

    /// Returns the flag that ends the hogs.
    #[must_use]
    pub fn end(&self) -> Arc<AtomicBool> {
        self.over.clone()
    }

    /// Waits for all hogs, once they are to end.
    ///
    /// # Errors
    /// The hogs have not been told to end in time.
    pub async fn join(self) -> Outcome {
        // Joining lends, so not before.
        let mut patience = Patience::seconds(2 * PATIENCE);
        while !self.over.load(SeqCst) && !patience.is_over() {
            sleep(1_000).await;
        }
        let mut in_time = self.over.swap(true, SeqCst);
        for hog in self.threads {
            in_time &= hog.join().map_err(text)?;
        }
        ensure!(in_time, "it waited behind what is less urgent");
        Ok(())
    }
}
