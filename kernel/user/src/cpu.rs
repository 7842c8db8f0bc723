//! Additional vCPUs for the coroutines of a program: `alloc_cpu` of the SharedScheduler papers.
//!
//! A separate thread serves each vCPU. An idle vCPU takes coroutines that were started with
//! [`coroutine::spawn`](crate::coroutine::spawn) from other vCPUs, the most urgent first.

use alloc::sync::Arc;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use os_abi::Error;
use os_abi::shared::PollOutcome;
use os_abi::thread::MAX_THREADS;

use crate::thread::{self, JoinHandle};
use crate::{asynchronous, sys, vdso};

/// Returns the time of the clock, like [`now`](crate::now), without a system call.
#[must_use]
pub fn time() -> u64 {
    os_pages::time()
}

/// Returns the levels of work that waits for a hart, in the kernel or in any process: bit L is
/// level L. Costs a load.
#[must_use]
pub fn ready_levels() -> u64 {
    os_pages::global().load(Relaxed)
}

/// An additional vCPU.
pub struct Cpu {
    released: Arc<AtomicBool>,
    thread: JoinHandle<bool>,
}

/// Adds a vCPU.
///
/// # Errors
/// [`Error::TooMany`] threads, [`Error::OutOfMemory`].
pub fn alloc_cpu() -> Result<Cpu, Error> {
    let released = Arc::new(AtomicBool::new(false));
    let stop = released.clone();
    let thread = thread::spawn(move || {
        if vdso::upshift_serve() == 0 {
            return false;
        }
        serve(|| stop.load(Relaxed));
        vdso::upshift_release() != 0
    })?;
    Ok(Cpu { released, thread })
}

impl Cpu {
    /// Takes the vCPU out of service (`release_cpu`), and waits until its thread has ended, which
    /// happens after the current poll. Other vCPUs take its coroutines; coroutines that were
    /// started on it with `spawn_local` are discarded.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there was no memory for the vCPU, which has then run nothing.
    pub fn release(self) -> Result<(), Error> {
        self.released.store(true, SeqCst);
        let line = self.thread.number() % MAX_THREADS;
        // Level 62 is the least urgent level that a thread can have.
        sys::unpark(line, 62)?;
        if self.thread.join()? {
            Ok(())
        } else {
            Err(Error::OutOfMemory)
        }
    }
}

/// Polls coroutines until `stop` returns true: the loop of each thread that serves a vCPU.
pub(crate) fn serve(stop: impl Fn() -> bool) {
    while !stop() {
        asynchronous::drain_if_any();
        match vdso::upshift_turn() {
            outcome if outcome == PollOutcome::Polled as u64 => {}
            outcome if outcome == PollOutcome::Overtaken as u64 => {
                let _ = sys::yield_cpu();
            }
            _ => asynchronous::wait_until_ready(&stop),
        }
    }
}
