//! Calls the firmware (SBI 1.0) to set timers, send IPIs, and start harts.
//!
//! Each call costs several microseconds, because it traps to M-mode and back.

use core::arch::asm;

/// Id of the extension for timers.
const TIME: usize = 0x5449_4d45;
/// Id of the extension for IPIs.
const IPI: usize = 0x0073_5049;
/// Id of the extension that manages the state of harts.
const HSM: usize = 0x0048_534d;

/// Error word of a call; never 0, which means success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SbiError(pub(crate) isize);

fn call(extension: usize, function: usize, args: [usize; 3]) -> Result<(), SbiError> {
    let error: isize;
    // SAFETY: the calls below change the timer, pending bits or the state of harts, but no memory;
    // the firmware preserves all registers except a0 and a1.
    unsafe {
        asm!(
            "ecall",
            inlateout("a0") args[0] => error,
            inlateout("a1") args[1] => _,
            in("a2") args[2],
            in("a6") function,
            in("a7") extension,
            options(nostack),
        );
    }
    if error == 0 {
        Ok(())
    } else {
        Err(SbiError(error))
    }
}

pub(crate) fn set_timer(deadline: u64) {
    // The firmware of a machine without Sstc provides this call; if it fails, nothing can be done.
    let _ = call(TIME, 0, [deadline as usize, 0, 0]);
}

pub(crate) fn send_ipi(hart: usize) {
    // The call fails only for a hart that does not exist; this hart was started.
    let _ = call(IPI, 0, [1, hart, 0]);
}

/// Starts a stopped hart at a physical address, with `argument` in `a1`.
///
/// # Errors
/// The firmware's error word: the hart does not exist or is not stopped.
///
/// # Safety
/// `entry` is the physical address of code that expects `argument` in `a1` and the state of a hart
/// that was just started.
pub(crate) unsafe fn start_hart(
    hart: usize,
    entry: usize,
    argument: usize,
) -> Result<(), SbiError> {
    call(HSM, 0, [hart, entry, argument])
}
