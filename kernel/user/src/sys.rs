//! System calls on words, one function each, generated from the table in `os_abi`.
//!
//! Arguments and results are words; the functions in the root of the crate give them types. Invalid
//! words are safe, because the kernel validates them, and the memory that it writes to must belong
//! to the program and be writable. However, a `read` into memory that Rust uses otherwise breaks
//! the program, so programs use [`calls`](crate::calls) and the root of the crate; tests of the
//! kernel use these functions.

use core::arch::asm;
use core::sync::atomic::Ordering::Relaxed;

use os_abi::shared::CHAOS;
use os_abi::{Error, number, system_calls};

fn call(number: usize, arguments: [usize; 6]) -> Result<isize, Error> {
    raw_with(number, arguments, 0)
}

/// Makes a call with a word in a6, too: in the asynchronous form, the coroutine to wake.
///
/// # Errors
/// Errors of the call.
pub fn raw_with(number: usize, arguments: [usize; 6], coroutine: usize) -> Result<isize, Error> {
    raw_pair(number, arguments, coroutine).0
}

/// Makes a call and returns a1, too: the result of an asynchronous call that completed at once.
pub(crate) fn raw_pair(
    number: usize,
    arguments: [usize; 6],
    coroutine: usize,
) -> (Result<isize, Error>, isize) {
    let mut answer = ecall(number, arguments, coroutine);
    // Chaos, the kernel's fault injection, makes a part of the calls fail for lack of memory. A
    // repeated call succeeds unless the memory is exhausted.
    for _ in 0..32 {
        if answer.0 != Err(Error::OutOfMemory) || !has_chaos() {
            break;
        }
        answer = ecall(number, arguments, coroutine);
    }
    answer
}

/// Returns whether the kernel injects faults (chaos).
#[must_use]
pub fn has_chaos() -> bool {
    os_pages::shared(CHAOS).load(Relaxed) != 0
}

fn ecall(number: usize, arguments: [usize; 6], coroutine: usize) -> (Result<isize, Error>, isize) {
    let result: isize;
    let second: isize;
    // SAFETY: the kernel changes a0, a1 and the memory that the arguments name, nothing else.
    unsafe {
        asm!(
            "ecall",
            inlateout("a0") arguments[0] => result,
            inlateout("a1") arguments[1] => second,
            in("a2") arguments[2],
            in("a3") arguments[3],
            in("a4") arguments[4],
            in("a5") arguments[5],
            in("a6") coroutine,
            in("a7") number,
            options(nostack),
        );
    }
    let first = match Error::from_code(result) {
        Some(error) => Err(error),
        None => Ok(result),
    };
    (first, second)
}

/// Makes a call by its number, which need not exist.
///
/// # Errors
/// Errors of the call.
pub fn raw(number: usize, arguments: [usize; 6]) -> Result<isize, Error> {
    call(number, arguments)
}

macro_rules! stubs {
    ($($(#[$doc:meta])* $number:literal $kind:ident $name:ident($($argument:ident),*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// See [`Error`].
            pub fn $name($($argument: usize),*) -> Result<isize, Error> {
                let given: &[usize] = &[$($argument),*];
                let mut all = [0; 6];
                all[..given.len()].copy_from_slice(given);
                call(number::$name, all)
            }
        )*
    };
}

system_calls!(stubs);

/// A call that may wait, before its form (synchronous or asynchronous) is chosen.
#[derive(Clone, Copy)]
pub struct Request {
    pub(crate) number: usize,
    /// Arguments; the last is the token of the asynchronous form.
    pub(crate) words: [usize; 6],
}

impl Request {
    /// Makes the call synchronously.
    ///
    /// # Errors
    /// Errors of the call.
    #[inline(always)]
    pub fn wait(self) -> Result<isize, Error> {
        call(self.number, self.words)
    }
}

macro_rules! requests {
    (@later $(#[$doc:meta])* $name:ident($($argument:ident),*)) => {
        $(#[$doc])*
        #[inline(always)]
        #[must_use]
        pub fn $name($($argument: usize),*) -> Request {
            let given: &[usize] = &[$($argument),*];
            let mut words = [0; 6];
            words[..given.len()].copy_from_slice(given);
            Request { number: number::$name, words }
        }
    };
    (@$kind:ident $($rest:tt)*) => {};
    ($($(#[$doc:meta])* $number:literal $kind:ident $name:ident($($argument:ident),*);)*) => {
        /// Calls that may wait, for either form.
        pub mod later {
            use super::{Request, number};

            $(requests!(@$kind $(#[$doc])* $name($($argument),*));)*
        }
    };
}

system_calls!(requests);
