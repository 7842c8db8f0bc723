//! The library of user programs: start, system calls, memory, output.
//!
//! A program is `#![no_std] #![no_main]` and declares `os_user::entry!(main)` with
//! `fn main() -> isize`, which returns its status.

#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod asynchronous;
pub mod calls;
mod clock;
#[allow(unsafe_code)]
pub mod coroutine;
pub mod cpu;
pub mod files;
#[allow(unsafe_code)]
mod heap;
pub mod hogs;
#[allow(unsafe_code)]
mod info;
mod io;
#[allow(unsafe_code)]
pub mod lock;
pub mod net;
#[allow(unsafe_code)]
mod start;
pub mod status;
#[allow(unsafe_code)]
pub mod sync;
#[allow(unsafe_code)]
pub mod sys;
pub mod testing;
#[allow(unsafe_code)]
pub mod thread;
#[allow(unsafe_code)]
mod vdso;

pub use calls::{read, wait, write};
pub use clock::{now, sleep_micros};
pub use heap::heap_pages;
pub use info::{argument, process_number, ticks_per_second};
pub use io::{Output, print};
pub use os_abi::{Error, layout, number};
pub use start::{exit, run, run_coroutines};
pub use status::{HartStatus, ProcessStatus};

/// Suspends the running coroutine for `micros` microseconds.
pub async fn sleep(micros: u64) {
    let deadline = now() + micros * ticks_per_second() / 1_000_000;
    // The call fails only if too many calls are in flight; then the coroutine continues at once.
    let _ = asynchronous::sleep_until(deadline, coroutine::current()).await;
}

/// The two ends of a pipe.
#[derive(Clone, Copy, Debug)]
pub struct Pipe {
    /// Descriptor to read from.
    pub reader: usize,
    /// Descriptor to write to.
    pub writer: usize,
}

/// Creates a pipe.
///
/// # Errors
/// [`Error::TooMany`] descriptors.
pub fn pipe() -> Result<Pipe, Error> {
    let word = sys::pipe()? as usize;
    Ok(Pipe {
        reader: word & 0xffff_ffff,
        writer: word >> 32,
    })
}

/// Starts a program with an argument, with descriptors of the caller as its descriptors 0, 1, …,
/// and with a level that is also its ceiling; returns its process number. The process gets its own
/// share, half of the caller's: see [`Bounds`].
///
/// # Errors
/// No such program, no memory, too many processes, a level above the caller's ceiling.
pub fn spawn(program: &str, argument: &[u8], files: &[usize], level: u8) -> Result<usize, Error> {
    spawn_below(program, argument, files, level, level)
}

/// Starts a program like [`spawn`], with a separate ceiling: the most urgent level that the process
/// may have.
///
/// # Errors
/// Errors of [`spawn`].
pub fn spawn_below(
    program: &str,
    argument: &[u8],
    files: &[usize],
    level: u8,
    ceiling: u8,
) -> Result<usize, Error> {
    let bounds = Bounds {
        level,
        ceiling,
        halvings: 1,
    };
    spawn_within(program, argument, files, bounds)
}

/// Limits of a process.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Level that the process starts with.
    pub level: u8,
    /// Most urgent level that the process may have.
    pub ceiling: u8,
    /// Number of halvings of the caller's share of the machine (processes, threads, memory,
    /// sockets) for the process and its descendants; descendants that are alive when the process
    /// ends are killed. With 0 the process is in the caller's share, and may outlive the caller.
    pub halvings: u8,
}

/// Starts a program like [`spawn`], with all bounds.
///
/// # Errors
/// Errors of [`spawn`].
pub fn spawn_within(
    program: &str,
    argument: &[u8],
    files: &[usize],
    bounds: Bounds,
) -> Result<usize, Error> {
    let number = calls::spawn(program, argument, files, bounds)?;
    testing::record_child(number);
    Ok(number)
}

/// Result of `fork`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// The caller is the parent of this child.
    Parent(usize),
    /// The caller is the child.
    Child,
}

/// Creates a child with a copy of memory and descriptors. In the child, only the calling thread
/// continues, with the coroutines that no other thread was polling; asynchronous calls that were in
/// flight end with [`Error::NotInherited`]. A mutex that another thread held stays locked in the
/// child.
///
/// # Errors
/// No memory, too many processes, [`Error::Busy`].
pub fn fork() -> Result<Fork, Error> {
    match sys::fork()? {
        0 => {
            asynchronous::fail_inherited_calls();
            testing::forget_children();
            Ok(Fork::Child)
        }
        child => {
            testing::record_child(child as usize);
            Ok(Fork::Parent(child as usize))
        }
    }
}

/// Replaces the program of this process by a program in the archive, or else on the disk, with an
/// argument. The process keeps its descriptors, level and children. Returns only on failure, with
/// the error.
#[must_use]
pub fn exec(program: &str, argument: &[u8]) -> Error {
    let [name, argument] =
        [program.as_bytes(), argument].map(|bytes| (bytes.as_ptr(), bytes.len()));
    let result = sys::exec(name.0 as usize, name.1, argument.0 as usize, argument.1);
    result.err().unwrap_or(Error::NoProgram)
}
