//! Sets the time slices and scheduling policies of threads, so that the kernel runs the threads of
//! a vCPU in the right order. The process needs no privileges.
//!
//! A thread that wakes up preempts a running thread of the same priority if its slice is shorter.
//! Otherwise the running thread continues until the next tick. So the watcher has the shortest
//! slice that the kernel accepts, or, if the process has the privilege, the lowest real-time
//! priority. The workers keep the default slice.
//!
//! Workers that wait, as spare threads or with a suspended poll, are in the batch policy, because a
//! thread of that policy does not preempt the thread that wakes it ([`BatchPolicy`]). Workers that
//! poll are in the default policy.

/// The watcher's slice, ns. It is the shortest that the kernel accepts.
const SLICE: u64 = 100_000;
/// Flag with which threads and processes that the thread starts inherit neither its slice nor its
/// priority.
const RESET_ON_FORK: u64 = 1;

/// The kernel's `struct sched_attr`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Returns the attributes of the calling thread.
fn attributes() -> Option<Attributes> {
    let mut attributes = Attributes::default();
    let size = size_of::<Attributes>();
    // SAFETY: the pointer is to a local of the size given.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    (result == 0).then_some(attributes)
}

/// Sets the attributes of the calling thread. Returns false if the kernel refuses.
fn set_attributes(attributes: &mut Attributes) -> bool {
    attributes.size = size_of::<Attributes>() as u32;
    // SAFETY: the pointer is to a valid struct, whose first field holds its size, as the call
    // requires.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) == 0 }
}

fn is_ordinary(attributes: &Attributes) -> bool {
    attributes.policy == libc::SCHED_OTHER as u32
}

/// Prepares the calling thread to be a watcher. If the process has the privilege, the thread gets
/// the lowest real-time priority, so that it runs when it wakes up, however much CPU time it has
/// used. This starves no other thread, because a watcher polls nothing, and its work is bounded.
/// Without the privilege the thread gets a short slice, if the kernel supports slices.
///
/// If there is a daemon, the thread gets a short slice, too. The daemon leaves threads alone that
/// have a real-time priority of their own, but elevates other watchers above all threads that
/// compute while processes compete.
pub(super) fn schedule_as_watcher(has_daemon: bool) {
    let mut real_time = Attributes {
        policy: libc::SCHED_FIFO as u32,
        flags: RESET_ON_FORK,
        priority: 1,
        ..Attributes::default()
    };
    if has_daemon || !set_attributes(&mut real_time) {
        shorten_slice();
    }
}

/// Prepares a thread that mostly waits, and wakes coroutines. The thread loses a real-time priority
/// that it has inherited.
pub(crate) fn schedule_as_waiter() {
    if attributes().is_some_and(|attributes| !is_ordinary(&attributes)) {
        set_attributes(&mut Attributes::default());
    }
    shorten_slice();
}

/// Guard of a wait. While the guard lives, the calling thread (the waiter), if it has ordinary
/// priority, does not preempt the thread that wakes it (the waker), which is about to sleep.
/// Otherwise the waker would stay in the kernel's run queue. When the watcher then wakes up, the
/// kernel would compare it with the waker instead of with the waiter's poll, and could make the
/// watcher wait for the next tick. Async-signal-safe.
pub(super) struct BatchPolicy {
    /// Set if this guard has changed the policy, which its drop restores.
    is_ours: bool,
}

impl BatchPolicy {
    pub(super) fn begin() -> BatchPolicy {
        BatchPolicy {
            is_ours: change_policy(libc::SCHED_OTHER, libc::SCHED_BATCH),
        }
    }
}

impl Drop for BatchPolicy {
    fn drop(&mut self) {
        if self.is_ours {
            change_policy(libc::SCHED_BATCH, libc::SCHED_OTHER);
        }
    }
}

/// Changes the policy of the calling thread to `to` if it is `from`. Any other policy is kept,
/// because the program or the user may have set it. Returns whether the policy was changed.
fn change_policy(from: libc::c_int, to: libc::c_int) -> bool {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the pointer is to a local. If the kernel refuses, the thread is unchanged.
    unsafe {
        libc::sched_getscheduler(0) == from
            && libc::sched_setscheduler(0, to, &raw const priority) == 0
    }
}

/// Gives the calling thread a short slice, if it has ordinary priority.
fn shorten_slice() {
    let Some(mut attributes) = attributes().filter(is_ordinary) else {
        return;
    };
    // The flag would also replace a negative niceness by 0 in threads that this thread starts.
    if attributes.nice >= 0 {
        attributes.flags |= RESET_ON_FORK;
    }
    attributes.runtime = SLICE;
    set_attributes(&mut attributes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that runs in the batch policy stays there after a wait.
    #[test]
    fn a_wait_leaves_the_policy_of_the_thread_as_it_was() {
        // SAFETY: the call takes no pointers.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        std::thread::spawn(move || {
            let original = policy();
            drop(BatchPolicy::begin());
            assert_eq!(policy(), original);
            assert!(change_policy(original, libc::SCHED_BATCH));
            drop(BatchPolicy::begin());
            assert_eq!(policy(), libc::SCHED_BATCH);
        })
        .join()
        .unwrap();
    }
}
