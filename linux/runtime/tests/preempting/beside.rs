//! Tests of preemption while threads outside of the runtime keep the same CPU busy.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use upshift::Level;

use crate::{build, builder, spin_until};

/// Threads outside of any vCPU that keep a CPU busy. Dropping the value ends them.
struct BusyThreads(Arc<AtomicBool>, Vec<JoinHandle<()>>);

impl BusyThreads {
    fn start(cpu: usize, count: usize) -> BusyThreads {
        let stop = Arc::new(AtomicBool::new(false));
        let other = |_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                // SAFETY: zeroes are a valid `cpu_set_t`, and `set` outlives the call.
                unsafe {
                    let mut set: libc::cpu_set_t = std::mem::zeroed();
                    libc::CPU_SET(cpu, &mut set);
                    libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
                }
                spin_until(&stop);
            })
        };
        let threads = (0..count).map(other).collect();
        BusyThreads(stop, threads)
    }
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Uses a few microseconds of CPU time, whether other programs have the CPU meanwhile or not.
fn work() {
    (0..5_000_u64).for_each(|n| {
        black_box(n);
    });
}

#[test]
fn a_poll_is_not_suspended_for_time_in_which_other_threads_run() {
    let quantum = Duration::from_millis(1);
    let Some(runtime) = build(builder().pin([0]).quantum(quantum)) else {
        return;
    };
    let _busy_threads = BusyThreads::start(0, 2);
    runtime.block_on(async {
        let began = Instant::now();
        let peer = move || {
            upshift::spawn(
                async move {
                    while began.elapsed() < Duration::from_secs(3) {
                        work();
                        upshift::yield_now().await;
                    }
                },
                Level::at::<20>(),
            )
        };
        for peer in [peer(), peer(), peer()] {
            peer.await.unwrap();
        }
        let stats = upshift::Handle::current().unwrap().preemption_stats();
        // No poll here uses its quantum. But the kernel counts the time that a hypervisor takes as
        // time of the thread, so a few suspensions are possible.
        assert!(stats.suspensions < 20, "{stats:?}");

        // A poll that does not return is still suspended.
        let stop = Arc::new(AtomicBool::new(false));
        let is_set = stop.clone();
        let long = upshift::spawn(async move { spin_until(&is_set) }, Level::at::<20>());
        let equal = upshift::spawn(
            async move { stop.store(true, Ordering::Relaxed) },
            Level::at::<20>(),
        );
        equal.await.unwrap();
        assert!(long.await.unwrap());
    });
}

/// A watcher thread interrupts the running poll to examine it (a *look*). The bound on the number
/// of looks (Theorem 3 of `docs/preemption-proofs.md`) holds no matter how little CPU time the vCPU
/// gets. Two looks at a poll are free, and so is one look in each 2 ms for turns (short times in
/// which suspended polls run on). A budget pays for all other looks. Time in which the polling
/// thread does not run must not cause further looks.
#[test]
fn looks_stay_within_their_bound_beside_busy_threads() {
    let Some(runtime) = build(builder().pin([0])) else {
        return;
    };
    let _busy_threads = BusyThreads::start(0, 3);
    let began = Instant::now();
    let is_running = move || began.elapsed() < Duration::from_secs(3);
    let stats = runtime.block_on(async {
        let long = || {
            upshift::spawn(
                async move {
                    while is_running() {
                        (0..200).for_each(|_| work());
                        upshift::yield_now().await;
                    }
                },
                Level::at::<20>(),
            )
        };
        for task in [long(), long(), long(), long()] {
            task.await.unwrap();
        }
        upshift::Handle::current().unwrap().preemption_stats()
    });
    let elapsed_us = began.elapsed().as_micros() as u64;
    let free_looks = 2 * stats.suspensions + elapsed_us / 2_000;
    // A suspension costs less than 100 µs, and a look more than 10 µs. A watcher that ignored the
    // bound would exceed the count about ninefold.
    let budget_us = elapsed_us / 100 + 1_000 + stats.suspensions * 50;
    println!("{stats:?}: {free_looks} free looks, a budget of {budget_us} us");
    assert!(
        stats.spurious_wakeups <= free_looks + budget_us / 10,
        "{stats:?} in {elapsed_us} us"
    );
}
