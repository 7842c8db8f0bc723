//! The progress coroutine: the only place where MPI is asked what is complete.
//!
//! It runs at the level of the most urgent operation that is awaited, and bounds what it takes:
//!
//! * nothing outstanding: it sleeps until something is started;
//! * something outstanding, nothing else to do on this rank: it looks all the time for [`SPIN`], which is about what
//!   a sleep and a wake cost, and for as long as what is outstanding takes to copy at [`BYTES_PER_NANOSECOND`], because long messages go in
//!   pieces that each need a look; it calls `sched_yield` meanwhile if ranks share CPUs, so a rank that has what the
//!   others wait for comes to run, also if all of them are elevated;
//! * otherwise it sleeps between looks, for an eighth of the time for which nothing has come: so what is waited for is late by
//!   an eighth of its time, or by [`FLOOR`], and a rank where nothing comes looks once in [`CEILING`]. A rank of the same node ends the
//!   sleep by a datagram.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use upshift::{time, yield_if_needed, yield_now};

use crate::job::Job;
use crate::table::Found;

/// How long it looks without sleeping.
const SPIN: Duration = Duration::from_micros(100);
/// The shortest sleep: that of a rank that computes.
const FLOOR: Duration = Duration::from_micros(50);
/// The longest: a rank where nothing comes takes well under 1 % of a CPU.
const CEILING: Duration = Duration::from_millis(20);
/// What a copy through shared memory does at least.
const BYTES_PER_NANOSECOND: u64 = 1;

/// One look: all requests, a window at a time. How many of them are complete.
async fn look(job: &Job) -> usize {
    let mut found = Found::default();
    let mut end = job.look_first(&mut found);
    while end > 0 {
        end = job.look_at(end, &mut found);
        for waker in found.wakers.drain(..) {
            waker.wake();
        }
        if end > 0 {
            yield_if_needed().await;
        }
    }
    found.wakers.into_iter().for_each(std::task::Waker::wake);
    for peers in &found.peers {
        job.node.ring(peers);
    }
    found.events
}

/// Looks until the job ends.
pub(crate) async fn progress(job: Arc<Job>) {
    let mut last = Instant::now();
    while !job.has_ended() {
        if look(&job).await > 0 {
            last = Instant::now();
            yield_now().await;
            continue;
        }
        if job.with(|table| table.is_idle()) {
            kicked(&job).await;
            last = Instant::now();
            continue;
        }
        let waited = last.elapsed();
        let bytes = job.with(|table| table.bytes());
        let spin = SPIN + Duration::from_nanos(bytes / BYTES_PER_NANOSECOND);
        if waited < spin && job.is_quiet() {
            if job.node.crowded {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            yield_now().await;
            continue;
        }
        job.node.sleep();
        if look(&job).await > 0 {
            last = Instant::now();
        } else {
            let pause = (waited.saturating_sub(spin) / 8).clamp(FLOOR, CEILING);
            if time::timeout(pause, kicked(&job)).await.is_ok() {
                last = Instant::now();
            }
        }
        job.node.wake();
    }
}

/// Something has been started, or left by a destructor, or a datagram has come.
async fn kicked(job: &Job) {
    let wait = poll_fn(|cx| {
        if job.has_ended() {
            return Poll::Ready(());
        }
        job.with(|table| {
            if std::mem::take(&mut table.kicked) {
                return Poll::Ready(());
            }
            table.sleeper = Some(cx.waker().clone());
            Poll::Pending
        })
    });
    pin!(wait).await;
}
