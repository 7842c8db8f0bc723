//! Sets the scheduling policies of threads.

/// Lets the calling thread run only while no ordinary thread wants the CPU. Needs no privilege.
pub(crate) fn run_when_idle() {
    set_policy(libc::SCHED_IDLE, 0);
}

/// Gives the calling thread priority over the threads of the server, if the process is permitted to
/// do so. The thread stands in for a client on another machine.
pub(crate) fn run_first() {
    set_policy(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1);
}

fn set_policy(policy: i32, priority: i32) {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the pointer is valid, since `parameters` lives during the call, which keeps no
    // pointer. A refusal leaves the thread as it was.
    unsafe { libc::sched_setscheduler(0, policy, &parameters) };
}
