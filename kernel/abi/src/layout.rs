//! Layout of a process's address space.
//!
//! ```text
//!  0x31_0000_0000  VDSO: the scheduler
//!  0x30_0010_0000  COMPLETIONS: results of asynchronous calls
//!  0x30_0004_0000  TRACE: events of coroutines, while the kernel traces
//!  0x30_0003_0000  THREADS: each thread's line of words for the kernel
//!  0x30_0002_0000  GLOBAL: the global bitmap; read-only
//!  0x30_0001_0000  SHARED: state of the completion ring
//!  0x30_0000_0000  INFO: start parameters of the program; read-only
//!  0x20_0000_0000  STACK_TOP: the stack, downwards, above unmapped pages
//!  0x10_0000_0000  HEAP: memory that the program has mapped, upwards
//!  0x1_0000        IMAGE: the program
//! ```

/// Size of a page in bytes.
pub const PAGE: usize = 4096;
/// Address to which programs are linked.
pub const IMAGE: usize = 0x1_0000;
/// End of the addresses of a program's image.
pub const IMAGE_END: usize = 0x1000_0000;
/// First address of the heap.
pub const HEAP: usize = 0x10_0000_0000;
/// End of the stack of the main thread.
pub const STACK_TOP: usize = 0x20_0000_0000;
/// Default and maximum size of the main thread's stack, in bytes.
pub const STACK_SIZE: usize = 16 * PAGE;
/// The page with [`ProcessInfo`](crate::ProcessInfo).
pub const INFO: usize = 0x30_0000_0000;
/// The page of [`shared`](crate::shared) words, private to the process.
pub const SHARED: usize = 0x30_0001_0000;
/// The page with the global bitmap.
pub const GLOBAL: usize = 0x30_0002_0000;
/// The page of [`thread`](crate::thread) lines, private to the process.
pub const THREADS: usize = 0x30_0003_0000;
/// The page of [`trace`](crate::trace) entries, if the kernel traces.
pub const TRACE: usize = 0x30_0004_0000;
/// The completion ring.
pub const COMPLETIONS: usize = 0x30_0010_0000;
/// Address of the vDSO.
pub const VDSO: usize = 0x31_0000_0000;
