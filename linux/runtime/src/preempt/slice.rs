//! The watcher's time slice. A thread that wakes up goes before one that runs, of the same priority, if its slice is shorter; a thread
//! that runs is otherwise left alone until the next tick. So the watcher has the shortest slice that the kernel takes, and the workers
//! keep those that the kernel gives to all. Needs no rights.
//!
//! Workers with slices of 200 µs, so that they do not hold up each other, were worse: a worker that has woken another one, and is about to
//! sleep, is more often overtaken by it, waits among those that run with the earlier deadline, and is then what the kernel compares the watcher
//! with, which is left to wait for the tick (4 ms): 22 to 28 of 1,400 wake-ups, 16 of 1,490 without.
//!
//! That is why a thread that goes on with a suspended poll [`settles`](settle) the kernel's queue first, if a thread has been overtaken like that.

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

/// For the ticker: the shortest slice.
pub(super) fn of_ticker() {
    shorten();
}

/// For a thread that mostly waits, and wakes coroutines. It keeps no real-time priority of the thread that started it.
pub(crate) fn of_waiter() {
    if get().is_some_and(|attributes| !is_ordinary(&attributes)) {
        set(&mut Attributes::default());
    }
    shorten();
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

/// Sleeps for an instant, before a poll that may be long. Async-signal-safe.
///
/// A thread that goes to sleep when it has had more than its share of the CPU, as one that was stopped has, stays in the kernel's queue until
/// the kernel picks it and finds that it sleeps. Until then any thread that wakes, the watcher without real-time priority or the next worker, is compared with it
/// instead of with the poll, and is left to wait for the tick. The kernel picks when the CPU changes hands: so it does here. To yield would do it, too, and give up the rest of
/// the slice to other processes.
pub(super) fn settle() {
    let instant = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1,
    };
    // SAFETY: a pointer to a local, and none for the rest. Cut short or refused, the watcher may come later.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            0,
            &raw const instant,
            std::ptr::null_mut(),
        )
    };
}

/// While it lives, an instant of the calling thread's sleep is one: the kernel adds 50 µs to the sleeps of most.
pub(super) struct Punctual(Option<libc::c_ulong>);

impl Punctual {
    pub(super) fn begin() -> Punctual {
        // SAFETY: no pointers.
        let before = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
        let before = libc::c_ulong::try_from(before).ok().filter(|it| *it > 1);
        if before.is_some() {
            set_slack(1);
        }
        Punctual(before)
    }
}

impl Drop for Punctual {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            set_slack(before);
        }
    }
}

fn set_slack(time: libc::c_ulong) {
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, time) };
}
