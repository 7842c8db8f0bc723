//! How a program starts and ends.

use core::panic::PanicInfo;

use os_abi::{ProcessInfo, VERSION, layout};

use crate::{println, sys};

/// Declares the main function of a program.
#[macro_export]
macro_rules! entry {
    ($main:path) => {
        #[unsafe(no_mangle)]
        #[unsafe(link_section = ".text.start")]
        extern "C" fn _start() -> ! {
            $crate::run($main)
        }
    };
}

fn info() -> &'static ProcessInfo {
    // SAFETY: the kernel has mapped this page and filled it with the structure;
    // nobody can write it.
    unsafe { &*(layout::INFO as *const ProcessInfo) }
}

/// Runs `main` and ends the process with what it returns.
#[doc(hidden)]
pub fn run(main: fn() -> isize) -> ! {
    if info().version != VERSION {
        println!("this program is for another kernel: build both again");
        exit(2);
    }
    exit(main())
}

/// Ends the process.
pub fn exit(status: isize) -> ! {
    loop {
        // It does not come back.
        let _ = sys::exit(status as usize);
    }
}

/// What `spawn` was given for this program.
#[must_use]
pub fn argument() -> &'static [u8] {
    let info = info();
    &info.argument[..info.argument_len as usize]
}

/// The number of this process.
#[must_use]
pub fn process_number() -> usize {
    info().process as usize
}

/// Ticks of the clock per second.
#[must_use]
pub fn ticks_per_second() -> u64 {
    info().ticks_per_second
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    println!("process {}: {info}", process_number());
    exit(101)
}
