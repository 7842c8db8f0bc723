//! Time slices and policies of threads: the order in which the kernel runs the threads of a vCPU.
//! No rights are needed.
//!
//! A thread that wakes up goes before a running thread of the same priority if its slice is
//! shorter; otherwise the running thread is left alone until the next tick. So the watcher has the
//! shortest slice that the kernel takes, or with rights the lowest real-time priority, and the
//! workers keep the slices that the kernel gives to all.
//!
//! Workers that wait, spare or with a suspended poll, are in the batch policy: a thread of that
//! policy does not go before the thread that wakes it ([`BatchPolicy`]). Workers that poll are in
//! the default policy.

/// The watcher's slice: the shortest that the kernel takes, ns.
const SLICE: u64 = 100_000;
/// Flag: threads and processes that the thread starts inherit neither slice nor priority.
const RESET_ON_FORK: u64 = 1;

/// The kernel's `sched_attr`.
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

fn get() -> Option<Attributes> {
    let mut attributes = Attributes::default();
    let size = size_of::<Attributes>();
    // SAFETY: a pointer to a local of the size given.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    (result == 0).then_some(attributes)
}

fn set(attributes: &mut Attributes) -> bool {
    attributes.size = size_of::<Attributes>() as u32;
    // SAFETY: `attributes` is a valid struct, of the size in its first field.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) == 0 }
}

fn is_ordinary(attributes: &Attributes) -> bool {
    attributes.policy == libc::SCHED_OTHER as u32
}

/// Prepares the calling thread to be a watcher. With rights it gets the lowest real-time priority:
/// it runs when it wakes up, however much CPU time it has used. It polls nothing, and its work is
/// bounded. Without rights it gets a short slice, if the kernel supports slices. With a `daemon` it
/// gets a short slice, too: the daemon elevates the watcher above all threads that compute while
/// processes compete, and leaves alone threads that have a real-time priority of their own.
pub(super) fn schedule_as_watcher(daemon: bool) {
    let mut real_time = Attributes {
        policy: libc::SCHED_FIFO as u32,
        flags: RESET_ON_FORK,
        priority: 1,
        ..Attributes::default()
    };
    if daemon || !set(&mut real_time) {
        shorten();
    }
}

/// Prepares the calling thread to mostly wait, and to wake coroutines. The thread loses a real-time
/// priority that it has inherited.
pub(crate) fn schedule_as_waiter() {
    if get().is_some_and(|attributes| !is_ordinary(&attributes)) {
        set(&mut Attributes::default());
    }
    shorten();
}

/// Guard of a wait: while it lives, the calling thread, if it has ordinary priority, does not go
/// before the thread that wakes it, which is about to sleep. If it did, that thread would stay in
/// the kernel's queue, and the watcher, when it wakes up, would be compared with that thread
/// instead of with the poll, and be left to wait for the tick. Async-signal-safe.
pub(super) struct BatchPolicy {
    /// Set if this guard has changed the policy, which its drop restores.
    is_ours: bool,
}

impl BatchPolicy {
    pub(super) fn begin() -> BatchPolicy {
        BatchPolicy {
            is_ours: exchange(libc::SCHED_OTHER, libc::SCHED_BATCH),
        }
    }
}

impl Drop for BatchPolicy {
    fn drop(&mut self) {
        if self.is_ours {
            exchange(libc::SCHED_BATCH, libc::SCHED_OTHER);
        }
    }
}

/// Changes the policy of the calling thread if it is `from`: another program, or the user, may have
/// set another policy. Returns whether it has changed.
fn exchange(from: libc::c_int, to: libc::c_int) -> bool {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: a pointer to a local. A refusal leaves the thread as it is.
    unsafe {
        libc::sched_getscheduler(0) == from
            && libc::sched_setscheduler(0, to, &raw const priority) == 0
    }
}

fn shorten() {
    let Some(mut attributes) = get().filter(is_ordinary) else {
        return;
    };
    // The flag would also replace a negative niceness by 0 in threads that this thread starts.
    if attributes.nice >= 0 {
        attributes.flags |= RESET_ON_FORK;
    }
    attributes.runtime = SLICE;
    set(&mut attributes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that runs in the batch policy stays there.
    #[test]
    fn a_wait_leaves_the_policy_of_the_thread_as_it_was() {
        // SAFETY: no pointers.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        std::thread::spawn(move || {
            let before = policy();
            drop(BatchPolicy::begin());
            assert_eq!(policy(), before);
            assert!(exchange(before, libc::SCHED_BATCH));
            drop(BatchPolicy::begin());
            assert_eq!(policy(), libc::SCHED_BATCH);
        })
        .join()
        .unwrap();
    }
}
