//! The scheduler of user programs: `upshift-core`, as one position-independent
//! image that the kernel maps into every process.
//!
//! All processes share its text, which is read-only; its data is private to each. The functions
//! below are those of `os_abi::vdso_functions!`. They take and return words, so a program binds to
//! the image independently of the two compilers. The program supplies the memory ([`upshift_init`])
//! and the coroutines ([`upshift_spawn`]); wakers are ids.
//!
//! Any thread of the process may call them; each serves a vCPU of its own after `upshift_serve`. A
//! *user interrupt* stops a thread anywhere, also in this image: between `upshift_interrupt(1)` and
//! `upshift_interrupt(0)` the thread may call `upshift_wake` only, which goes through the inbox
//! then and takes no lock (`Host::current`).
//!
//! A holder of a lock of the scheduler is between `enter` and `leave` (`host.rs`), so that the
//! kernel does not stop the thread there unless it must.

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

/// Ends the process: there is no unwinding.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    host::exit(101)
}
