//! The scheduler of user programs: `upshift-core` as a position-independent image that the kernel
//! maps into every process.
//!
//! All processes share the image's read-only text; its data is private to each process. The image
//! exports the functions of `os_abi::vdso_functions!`. They take and return words, so the program
//! and the image may be built by different compilers. The program supplies the memory
//! ([`upshift_init`]) and the coroutines ([`upshift_spawn`]); wakers are ids.
//!
//! Any thread of the process may call these functions; a thread that has called `upshift_serve`
//! serves its own vCPU. A *user interrupt* stops a thread anywhere, even in this image. Between
//! `upshift_interrupt(1)` and `upshift_interrupt(0)` the thread may only call `upshift_wake`, which
//! then uses the inbox and takes no lock (`Host::current`).
//!
//! A thread holds a lock of the scheduler only between `enter` and `leave` (`host.rs`), where the
//! kernel avoids stopping the thread.

#![no_std]
#![no_main]
#![deny(unsafe_code)]

extern crate alloc;

mod chaos;
#[allow(unsafe_code)]
mod exports;
#[allow(unsafe_code)]
mod host;
#[allow(unsafe_code)]
mod memory;
mod trace;

/// Ends the process, because panics do not unwind.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    host::exit(101)
}
