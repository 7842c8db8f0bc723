//! What a thread and the kernel tell each other: a line of words for each thread of
//! a process, in the page [`THREADS`](crate::layout::THREADS).
//!
//! The kernel starts a thread with the address of its line in `tp`; that is how a
//! thread knows its own number. What the kernel reads here is hearsay: a lie harms only
//! the process. [`SERVER`] and [`IN_INTERRUPT`] are the program's own business.
//!
//! *Grace:* while [`CRITICAL`] is not 0 the thread holds something for which other
//! threads of its process may spin. The kernel then lets it go on for a little
//! longer, once, and sets [`OWED`]: when it comes out of what it was in, it is to
//! yield by itself.
//!
//! *Locks:* the word of a lock that lends is 0 while it is free, else the lowest bits of the
//! number of the thread that has it ([`HOLDER`]), and [`CONTENDED`] while others wait for it.
//! A program takes a free one and gives one back that is not contended by itself, else by
//! the calls `futex_lock` and `futex_unlock`.

/// Threads a process may have.
pub const MAX_THREADS: usize = 64;
/// Words of a line: one cache line.
pub const LINE_WORDS: usize = 8;

/// Bit L: a coroutine of level L is ready or running on the vCPU that the thread
/// serves (program → kernel). 0: the thread keeps its level.
pub const LOCAL_BITMAP: usize = 0;
/// How many critical sections the thread is in (program → kernel).
pub const CRITICAL: usize = 1;
/// Not 0: the thread is to yield when it leaves its critical section (kernel →
/// program).
pub const OWED: usize = 2;
/// What the scheduler knows of the thread.
pub const SERVER: usize = 3;
/// Not 0: the thread is in the handler of a user interrupt.
pub const IN_INTERRUPT: usize = 4;
/// Its number (kernel → program).
pub const NUMBER: usize = 5;

/// Of the word of a lock: its holder.
pub const HOLDER: u32 = CONTENDED - 1;
/// Of the word of a lock: others wait for it.
pub const CONTENDED: u32 = 1 << 31;

const _: () = assert!(MAX_THREADS * LINE_WORDS == 512);
