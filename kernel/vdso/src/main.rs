//! The scheduler of user programs: `upshift-core`, as one position-independent
//! image that the kernel maps into every process.
//!
//! Its text is shared by all and cannot be written; its data is private to each.
//! The functions below are what `os_abi::vdso_functions!` lists; they take and
//! return words, so that a program binds to the image whatever compiler made
//! either. The program brings the memory ([`upshift_init`]) and the coroutines
//! ([`upshift_spawn`]); wakers are ids.
//!
//! Any thread of the process calls them; each serves a vCPU of its own after
//! `upshift_serve`. A *user interrupt* stops a thread anywhere, also in here: between
//! `upshift_interrupt(1)` and `upshift_interrupt(0)` only `upshift_wake` may be called
//! on it, which goes through the inbox then and takes no lock (`Host::current`).
//!
//! Whatever holds a lock of the scheduler is between `enter` and `leave` (`host.rs`),
//! so that the kernel does not stop a thread there unless it must.

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

/// There is no unwinding: the process ends.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    host::exit(101)
}
