//! Communication between a thread and the kernel: a line of words for each thread of a process, in
//! the page [`THREADS`](crate::layout::THREADS).
//!
//! The kernel starts a thread with the address of its line in `tp`, by which the thread knows its
//! index. The kernel does not trust the words, so a wrong word harms only the process. Only the
//! program uses [`SERVER`] and [`IN_INTERRUPT`].
//!
//! *Grace:* while [`CRITICAL`] is not 0 the thread holds a lock for which other threads of its
//! process may spin. If the kernel is about to preempt such a thread, it lets the thread continue
//! for a little longer, once, and sets [`YIELD_REQUESTED`]. The thread must then yield when it
//! leaves the critical section.
//!
//! *Locks:* the word of a lending lock is 0 while the lock is free. Otherwise it contains the
//! low-order bits of the number of the lock's holder ([`HOLDER`]), and [`CONTENDED`] while other
//! threads wait for the lock. A program acquires a free lock and releases an uncontended lock
//! without a system call, otherwise by the calls `futex_lock` and `futex_unlock`.

/// Maximum number of threads of a process.
pub const MAX_THREADS: usize = 64;
/// Number of words of a line, which is a cache line.
pub const LINE_WORDS: usize = 8;

/// Bit L is set if a coroutine of level L is ready or running on the vCPU that the thread serves
/// (program → kernel). If the word is 0, the thread keeps its level.
pub const LOCAL_BITMAP: usize = 0;
/// Number of nested critical sections that the thread is in (program → kernel).
pub const CRITICAL: usize = 1;
/// Nonzero if the thread must yield when it leaves its critical section (kernel → program).
pub const YIELD_REQUESTED: usize = 2;
/// Address of the scheduler's data for the thread.
pub const SERVER: usize = 3;
/// Nonzero while the thread is in the handler of a user interrupt.
pub const IN_INTERRUPT: usize = 4;
/// Number of the thread (kernel → program).
pub const NUMBER: usize = 5;

/// Bits of a lock's word that contain the number of its holder.
pub const HOLDER: u32 = CONTENDED - 1;
/// Bit of a lock's word that is set while other threads wait for the lock.
pub const CONTENDED: u32 = 1 << 31;

const _: () = assert!(MAX_THREADS * LINE_WORDS == 512);
