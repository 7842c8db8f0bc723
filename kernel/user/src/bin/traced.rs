//! The default program of `os-runner trace`, which shows every state of a coroutine. `urgent`
//! sleeps asynchronously; `patient`, less urgent, computes through an interrupt until `urgent` is
//! ready, then makes a call that waits.

#![no_std]
#![no_main]

extern crate alloc;

use os_user::asynchronous::sleep_until;
use os_user::coroutine::{current, need_preempt, spawn, yield_now};
use os_user::{now, sys, ticks_per_second};

os_user::coroutine_entry!(main);

async fn main() -> isize {
    let soon = now() + ticks_per_second() / 1_000;
    let urgent = async move {
        let _ = sleep_until(soon, current()).await;
    };
    let patient = async move {
        // The first iteration ends for the kernel's half of the call of `urgent`, the second for
        // `urgent`. The loops are bounded in case the interrupt does not arrive.
        for _ in 0..2 {
            for _ in 0..10_000_000 {
                if need_preempt() {
                    break;
                }
            }
            yield_now().await;
        }
        let _ = sys::sleep_until((soon + ticks_per_second() / 1_000) as usize);
    };
    let (Ok(urgent), Ok(patient)) = (spawn(urgent, Some(20)), spawn(patient, Some(40))) else {
        return 1;
    };
    urgent.await;
    patient.await;
    0
}
