//! Handles the interrupts of the timer, of devices, and of other harts (IPIs).
//!
//! A handler wakes coroutines and does nothing else. It runs with interrupts masked, on the stack
//! of the interrupted code, and the hart serves no vCPU while it runs (`arch/host.rs`).

use core::sync::atomic::Ordering::Relaxed;

use crate::arch::csr;
use crate::trace::TraceState;
use crate::{clock, devices, hart, trace};

/// Handles an interrupt that was taken in the kernel.
pub(crate) fn handle(code: usize) {
    let in_interrupt = &hart::this().in_interrupt;
    in_interrupt.store(true, Relaxed);
    trace::interrupted(TraceState::Interrupted);
    serve(code);
    trace::interrupted(TraceState::Running);
    in_interrupt.store(false, Relaxed);
}

/// Serves an interrupt. Also called for an interrupt that was taken in user mode. The hart is then
/// in the poll of its switching coroutine, with interrupts masked, and holds no lock.
pub(crate) fn serve(code: usize) {
    match code {
        csr::TIMER => {
            let hart = hart::this();
            let now = clock::now();
            if hart.quantum_end.load(Relaxed) <= now {
                // The switching coroutine notices the end of the quantum at its next check of the
                // clock.
                hart.quantum_end.store(u64::MAX, Relaxed);
            }
            loop {
                let expired = hart.timers.lock().expire(now);
                match expired {
                    Some(waker) => waker.wake(),
                    None => break,
                }
            }
            clock::rearm(hart);
        }
        // The interrupt has already ended a wait or the run of a program.
        csr::SOFTWARE => csr::clear_software_interrupt(),
        csr::EXTERNAL => devices::serve(),
        _ => panic!("unexpected interrupt {code}"),
    }
}
