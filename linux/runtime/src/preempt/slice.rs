//! The time slices of threads that mostly wait.
//!
//! A thread that wakes up goes before one that runs, of the same priority, if its slice is shorter;
//! a thread that runs is otherwise left alone until the next tick. So the watcher has the shortest
//! slice that the kernel takes, and the workers keep those that the kernel gives to all. No rights
//! are needed.

/// The watcher's slice: the shortest that the kernel takes, ns.
const SLICE: u64 = 100_000;
/// Threads and processes that are started by the thread inherit neither slice nor priority.
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
    // SAFETY: a pointer to a struct of the size that it says.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) == 0 }
}

fn is_ordinary(attributes: &Attributes) -> bool {
    attributes.policy == libc::SCHED_OTHER as u32
}

/// For the watcher. With the right to, the least real-time priority: then it runs when it wakes, whatever it has used of the CPU before.
/// It polls nothing, and what it does is bounded. Without, and if the kernel knows of slices, a short one; so also with a `daemon`, which
/// elevates it above all that computes, when others compete, and leaves alone what has a real-time priority of its own.
pub(super) fn of_watcher(daemon: bool) {
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

/// For a thread that mostly waits, and wakes coroutines. It keeps no real-time priority of the thread that started it.
pub(crate) fn of_waiter() {
    if get().is_some_and(|attributes| !is_ordinary(&attributes)) {
        set(&mut Attributes::default());
    }
    shorten();
}

/// While it lives, a thread of ordinary priority that waits does not go before the thread that
/// wakes it, which is about to sleep. If it did, that thread would stay in the kernel's queue, and
/// the watcher, when it wakes, would be compared with it instead of with the poll, and be left to
/// wait for the tick (4 ms). Async-signal-safe.
pub(super) struct Modest(());

impl Modest {
    pub(super) fn begin() -> Modest {
        exchange(libc::SCHED_OTHER, libc::SCHED_BATCH);
        Modest(())
    }
}

impl Drop for Modest {
    fn drop(&mut self) {
        exchange(libc::SCHED_BATCH, libc::SCHED_OTHER);
    }
}

/// Changes the policy of the calling thread, if it is `from`: another program, or the user, may
/// have given it a third one.
fn exchange(from: libc::c_int, to: libc::c_int) {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: a pointer to a local. A refusal leaves the thread as it is.
    unsafe {
        if libc::sched_getscheduler(0) == from {
            libc::sched_setscheduler(0, to, &raw const priority);
        }
    }
}

fn shorten() {
    let Some(mut attributes) = get().filter(is_ordinary) else {
        return;
    };
    // It would also give a thread that this one starts the niceness 0 in place of a negative one.
    if attributes.nice >= 0 {
        attributes.flags |= RESET_ON_FORK;
    }
    attributes.runtime = SLICE;
    set(&mut attributes);
}
