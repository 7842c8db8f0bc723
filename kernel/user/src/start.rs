//! Starts and ends a program.

use core::future::Future;
use core::panic::PanicInfo;

use os_abi::VERSION;

use crate::info::{info, process_number};
use crate::{asynchronous, coroutine, cpu, heap, println, sys, vdso};

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

/// Declares the main coroutine of a program: an `async fn() -> isize`.
#[macro_export]
macro_rules! coroutine_entry {
    ($main:path) => {
        fn start_main_coroutine() -> isize {
            $crate::run_coroutines($main())
        }
        $crate::entry!(start_main_coroutine);
    };
}

/// Runs `main` as a coroutine, and the coroutines that it spawns, until `main` ends; its result is
/// the exit status of the process. `main` gets the initial level of the process.
#[doc(hidden)]
pub fn run_coroutines(main: impl Future<Output = isize> + 'static) -> isize {
    let (allocate, release) = (heap::allocate as *const (), heap::release as *const ());
    if info().vdso[0] == 0 || vdso::upshift_init(allocate as u64, release as u64) == 0 {
        println!("no scheduler: the machine was booted without a vDSO, or is out of memory");
        return 2;
    }
    asynchronous::enable_interrupts();
    let main = async move { exit(main.await) };
    if coroutine::spawn_local(main, Some(info().level as u8)).is_err() {
        return 2;
    }
    cpu::serve(|| false);
    2
}

/// Runs `main` and ends the process with its result.
#[doc(hidden)]
pub fn run(main: fn() -> isize) -> ! {
    if info().version != VERSION {
        println!("this program was built for another kernel: rebuild both");
        exit(2);
    }
    exit(main())
}

/// Ends the process.
pub fn exit(status: isize) -> ! {
    loop {
        // The call does not return; the loop gives this function the type `!`.
        let _ = sys::exit(status as usize);
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    println!("process {}: {info}", process_number());
    exit(101)
}
