//! Threads that compute on all harts, for tests of what is more urgent or less: they end when something tells them to, or when their
//! time has run out, which is a failure in a machine of any number of harts and any speed.

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

/// More than a machine has harts.
pub const COUNT: usize = 9;
/// Seconds after which they give up.
pub const PATIENCE: u64 = 20;

/// Computes until it is over. False: nothing has said so.
#[must_use]
pub fn hog(over: &AtomicBool) -> bool {
    let limit = now() + PATIENCE * ticks_per_second();
    while !over.load(SeqCst) {
        for n in 0..2_000 {
            core::hint::black_box(n);
        }
        if now() > limit {
            return false;
        }
    }
    true
}

impl Hogs {
    /// They have this level.
    ///
    /// # Errors
    /// Why they do not start.
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

    /// Whatever ends them.
    #[must_use]
    pub fn end(&self) -> Arc<AtomicBool> {
        self.over.clone()
    }

    /// Waits for all, once they are to end. An error: their time had run out.
    ///
    /// # Errors
    /// They have not been told to end in time.
    pub async fn join(self) -> Outcome {
        // Joining lends, so not before.
        let limit = now() + 2 * PATIENCE * ticks_per_second();
        while !self.over.load(SeqCst) && now() < limit {
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
