//! Pages that kernel and program share, word by word.
//!
//! [`SHARED`](crate::layout::SHARED) is private to a process, which can write to it. The kernel
//! does not trust its contents, not even the words that it wrote itself, because the program may
//! have overwritten them. A wrong word harms only the process.
//!
//! [`GLOBAL`](crate::layout::GLOBAL) is the same page in every process, and read-only: its first
//! word is the *global bitmap*, of which bit L is set if work of level L waits for a hart, in the
//! kernel or in any process.

/// Number of completions that the program has read (program → kernel).
pub const RING_HEAD: usize = 1;
/// Number of all completions (kernel → program).
pub const RING_TAIL: usize = 2;
/// Nonzero while a thread of the program drains the ring; the thread checks the ring again
/// afterwards, so no thread need be interrupted (program → kernel).
pub const DRAINING: usize = 3;
/// Address of the handler of user interrupts, or 0 if there is none (program → kernel).
pub const HANDLER: usize = 4;
/// Nonzero while the kernel traces coroutines; then the page [`TRACE`](crate::layout::TRACE) is
/// mapped (kernel → program).
pub const TRACING: usize = 5;
/// Seed of random disturbances that the program causes for tests, or 0 if there are none (kernel →
/// program).
pub const CHAOS: usize = 6;
/// Number of words of a completion: token, coroutine id, result.
pub const ENTRY_WORDS: usize = 3;
/// Number of pages of the completion ring, from [`COMPLETIONS`](crate::layout::COMPLETIONS) on. The
/// kernel maps a page with the first call whose completion may be in it.
pub const RING_PAGES: usize = 24;
/// Number of completions in a page.
const PAGE_ENTRIES: usize = 512 / ENTRY_WORDS;
/// Capacity of the ring: calls in flight plus completions that were not read never exceed it.
pub const RING_ENTRIES: usize = RING_PAGES * PAGE_ENTRIES;

/// Returns the position of completion number `n`: its page of the ring, and its first word there.
#[must_use]
pub const fn completion(n: u64) -> (usize, usize) {
    let slot = (n % RING_ENTRIES as u64) as usize;
    (slot / PAGE_ENTRIES, slot % PAGE_ENTRIES * ENTRY_WORDS)
}

/// Placeholder for "inherit the level of the spawner".
pub const INHERIT: u8 = u8::MAX;

/// Placeholder for "no coroutine runs" or "no level is lent".
pub const NO_LEVEL: u64 = INHERIT as u64;

/// Result of `upshift_turn`, which polls at most one coroutine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum PollOutcome {
    /// No coroutine is ready.
    Idle = 0,
    /// A coroutine was polled.
    Polled = 1,
    /// A coroutine was polled, and work that is more urgent than all work of this thread waits for
    /// a hart, so the thread should yield its hart.
    Overtaken = 2,
}

/// The functions of the vDSO, by name and number of arguments. All arguments are words. The kernel
/// looks each function up and passes the addresses in this order.
#[macro_export]
macro_rules! vdso_functions {
    ($with:ident) => {
        $with! {
            upshift_init(allocate, release);
            upshift_spawn(task, poll, discard, level);
            upshift_spawn_local(task, poll, discard, level);
            upshift_wake(id);
            upshift_reprio(id, level);
            upshift_cancel(id);
            upshift_current();
            upshift_need_preempt();
            upshift_turn();
            upshift_prepare_park();
            upshift_unpark();
            upshift_serve();
            upshift_release();
            upshift_interrupt(begins);
            upshift_waits();
            upshift_lend(id, before);
            upshift_end_loan(id);
        }
    };
}

macro_rules! names {
    ($($name:ident($($argument:ident),*);)*) => {
        /// Names of the functions of the vDSO, in order.
        pub const VDSO_NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

vdso_functions!(names);
