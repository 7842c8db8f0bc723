//! Other threads on the vCPU's CPU.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use upshift::Level;

use crate::{build, builder, spin_until};

/// Threads outside of any vCPU that keep a CPU busy until they are dropped.
struct Others(Arc<AtomicBool>, Vec<JoinHandle<()>>);

impl Others {
    fn on(cpu: usize, count: usize) -> Others {
        let over = Arc::new(AtomicBool::new(false));
        let other = |_| {
            let over = over.clone();
            std::thread::spawn(move || {
                // SAFETY: a set of CPUs of zeroes is valid, and the call reads it.
                unsafe {
                    let mut set: libc::cpu_set_t = std::mem::zeroed();
                    libc::CPU_SET(cpu, &mut set);
                    libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
                }
                spin_until(&over);
            })
        };
        let threads = (0..count).map(other).collect();
        Others(over, threads)
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Uses some microseconds of CPU time, however long other programs have the CPU meanwhile.
fn work() {
    (0..5_000_u64).for_each(|n| {
        black_box(n);
    });
}

#[test]
fn a_poll_is_not_stopped_for_cpu_time_that_others_take() {
    let quantum = Duration::from_millis(1);
    let Some(runtime) = build(builder().pin([0]).quantum(quantum)) else {
        return;
    };
    let _others = Others::on(0, 2);
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
        // Time that a poll takes here stops none; but the kernel also counts a hypervisor's time as
        // a thread's.
        assert!(stats.suspensions < 20, "{stats:?}");

        // A poll that does not return is still stopped.
        let over = Arc::new(AtomicBool::new(false));
        let seen = over.clone();
        let long = upshift::spawn(async move { spin_until(&seen) }, Level::at::<20>());
        let equal = upshift::spawn(
            async move { over.store(true, Ordering::Relaxed) },
            Level::at::<20>(),
        );
        equal.await.unwrap();
        assert!(long.await.unwrap());
    });
}

/// Theorem 2 for looks, however little the vCPU gets of its CPU: a poll under way is looked at
/// twice without a charge, and once in each 2 ms for turns; all other looks are paid. Time in which
/// the thread does not run must not make the watcher look again and again.
#[test]
fn looks_stay_within_their_bound_beside_others() {
    let Some(runtime) = build(builder().pin([0])) else {
        return;
    };
    let _others = Others::on(0, 3);
    let began = Instant::now();
    let is_under_way = move || began.elapsed() < Duration::from_secs(3);
    let stats = runtime.block_on(async {
        let long = || {
            upshift::spawn(
                async move {
                    while is_under_way() {
                        (0..200).for_each(|_| work());
                        upshift::yield_now().await;
                    }
                },
                Level::at::<20>(),
            )
        };
        for it in [long(), long(), long(), long()] {
            it.await.unwrap();
        }
        upshift::Handle::current().unwrap().preemption_stats()
    });
    let time = began.elapsed().as_micros() as u64;
    let free = 2 * stats.suspensions + time / 2_000;
    // A suspension costs less than 100 µs, and a look more than 10 µs: the counts differ by a
    // factor of nine.
    let paid = time / 100 + 1_000 + stats.suspensions * 50;
    println!("{stats:?}: {free} free, {paid} us paid");
    assert!(
        stats.spurious_wakeups <= free + paid / 10,
        "{stats:?} in {time} us"
    );
}
