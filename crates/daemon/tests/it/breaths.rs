//! Attackers that take what is meant for others only while it is meant for them. `docs/threat-model.md` names these tests.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::time::Duration;

use upshift_board::NOTHING;
use upshift_board::wire::Role;
use upshift_elevate::current_tid;

use crate::attacks::takes_at_most;
use crate::beside::{beside, us};
use crate::child::{cpu_time, number, pin, wait_for_go};
use crate::process::monotonic;
use crate::villain::Foothold;
use crate::{permitted, turn};

const MS: u64 = 1_000_000;

fn futex(word: &AtomicU32, operation: i32) {
    // SAFETY: a live word, and no time limit.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 0, 0) };
}

/// Its worker burns and holds a lock. When it stands still, a dispatcher, which looks each 0.3 ms, waits for the lock, so that the worker
/// goes on with its priority; for `LENT` µs, so that no canary is silent.
pub(crate) fn whisperer() {
    pin(number("CPU") as usize);
    let [beat, deadline] = [0, u64::MAX].map(AtomicU64::new);
    let lock = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let (lock, beat, deadline) = (&lock, &beat, &deadline);
        scope.spawn(move || {
            tell.send(current_tid()).unwrap();
            while monotonic() < deadline.load(Relaxed) {
                std::thread::sleep(Duration::from_micros(300));
                let last = beat.load(Relaxed);
                if last > 0 && monotonic().saturating_sub(last) > MS / 4 {
                    futex(lock, libc::FUTEX_LOCK_PI);
                    futex(lock, libc::FUTEX_UNLOCK_PI);
                }
            }
        });
        let dispatcher = told.recv().unwrap();
        let own = (current_tid(), Role::Worker);
        let it = Foothold::new(&[own, (dispatcher, Role::Dispatcher)]);
        println!("ready");
        deadline.store(wait_for_go(), Relaxed);
        let (before, lent, mut times) = (cpu_time(), number("LENT") * 1000, 0u64);
        let mut since = None;
        loop {
            let now = monotonic();
            if now >= deadline.load(Relaxed) {
                break;
            }
            beat.store(now, Relaxed);
            let _ = lock.compare_exchange(0, own.0 as u32, AcqRel, Acquire);
            if lock.load(Acquire) & libc::FUTEX_WAITERS == 0 {
                since = None;
            } else if now - *since.get_or_insert(now) > lent {
                futex(lock, libc::FUTEX_UNLOCK_PI);
                (since, times) = (None, times + 1);
            }
        }
        println!("used {}", (cpu_time() - before) / 1000);
        println!("lent {times} times");
        if lock.load(Acquire) != 0 {
            futex(lock, libc::FUTEX_UNLOCK_PI);
        }
        it.run(NOTHING);
    });
    wait_for_go();
}

#[test]
fn a_priority_lent_in_breaths_only_leaves_bystanders_their_share() {
    let _turn = turn();
    if permitted() {
        let burnt = beside("whisperer", "whisperer", &[("LENT", "600".to_string())]);
        assert!(takes_at_most(97, burnt, us()));
    }
}
