//! Short time slices: a thread that has used up less than its slice is not preempted for others of ordinary priority, and one with a
//! shorter slice may go before it. So the threads of a preemptible vCPU, which wake each other, have short ones. Needs no rights.
//!
//! Measured (`docs/preemption.md`): with the default slices the p99 of short requests beside 25 ms ones is 1.2–1.6 ms instead of 0.8–1.2,
//! and beside a spinning process the watcher wakes after 281 µs instead of 21.

/// The shortest that the kernel takes, ns.
const SLICE: u64 = 100_000;
/// Threads and processes that are started by the thread do not inherit it.
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
    let result =
        unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
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

/// For a thread of the runtime. A kernel that knows nothing of slices leaves it as it is.
pub(super) fn shorten_own() {
    if let Some(mut attributes) = get()
        && is_ordinary(&attributes)
    {
        attributes.flags |= RESET_ON_FORK;
        attributes.runtime = SLICE;
        set(&mut attributes);
    }
}

/// The slice of before comes back when it is dropped.
pub(super) struct Shortened(Option<Attributes>);

/// For a thread of the user's.
pub(super) fn shorten() -> Shortened {
    let Some(before) = get().filter(is_ordinary) else {
        return Shortened(None);
    };
    let mut attributes = Attributes {
        runtime: SLICE,
        ..before
    };
    Shortened(set(&mut attributes).then_some(before))
}

impl Drop for Shortened {
    fn drop(&mut self) {
        if let Some(before) = &mut self.0 {
            set(before);
        }
    }
}
