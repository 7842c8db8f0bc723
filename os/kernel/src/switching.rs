//! The switching coroutine of a hart: its poll waits for an interrupt.

use core::future::{Future, poll_fn};
use core::task::Poll;

use crate::arch::{csr, hart_index};
use crate::executor;

/// The coroutine. It never ends.
pub(crate) fn run() -> impl Future<Output = ()> + Send {
    poll_fn(|_| {
        idle();
        Poll::Pending
    })
}

/// Waits until an interrupt is pending, unless there is work.
///
/// No wake is lost: with interrupts masked, the vCPU is announced as parked and
/// its queues are looked at once more; from then on each wake from another hart
/// sends an IPI, and `wfi` ends at once if one is pending, masked or not.
fn idle() {
    let interrupts = csr::interrupts_off();
    if let Some(vcpu) = executor::domain().vcpus().nth(hart_index()) {
        if vcpu.prepare_park() {
            csr::wait_for_interrupt();
        }
        vcpu.unpark();
    }
    // The pending interrupt is taken here.
    csr::interrupts_restore(interrupts);
}
