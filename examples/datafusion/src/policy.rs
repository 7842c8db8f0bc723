//! Scheduling policies of threads.

/// Puts the calling thread below all ordinary threads. Needs no rights.
pub(crate) fn run_when_idle() {
    set(libc::SCHED_IDLE, 0);
}

/// Puts the calling thread, which represents a client on another machine, above the threads of the
/// server, if the process is permitted to do so.
pub(crate) fn run_first() {
    set(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1);
}

fn set(policy: i32, priority: i32) {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the pointer is valid, since `parameters` lives during the call, which keeps no
    // pointer. A refusal leaves the thread as it was.
    unsafe { libc::sched_setscheduler(0, policy, &parameters) };
}
