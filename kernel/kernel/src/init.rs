//! Starts the first program. When it ends, the machine ends with the program's status.
//!
//! Afterwards the numbers of processes, free pages and bytes of the heap must be the same as
//! before. A difference is a leak, and a failure.

use alloc::string::String;
use alloc::vec::Vec;

use os_abi::Error;
use upshift_core::{Level, Priority};

use crate::arch::finisher;
use crate::memory::heap;
use crate::process::{self, File, Spawn, share};
use crate::sleep::sleep_until;
use crate::trace::{self, Purpose};
use crate::{archive, chaos, clock, executor, println, storage};

/// Level of the first thread of the first program.
const LEVEL: Level = Level::DEFAULT;

/// Resources that must be the same before and after the program.
#[derive(PartialEq, Eq)]
struct InUse {
    processes: usize,
    free_pages: usize,
    /// Number of allocated bytes of the heap.
    heap: usize,
}

impl InUse {
    fn now() -> InUse {
        InUse {
            processes: process::count(),
            free_pages: heap::free_pages(),
            heap: heap::in_use(),
        }
    }
}

pub(crate) fn start(program: String, argument: &'static str) -> Result<(), Error> {
    let supervise = async move {
        let before = InUse::now();
        let status = match storage::mount().await {
            Ok(()) => run(&program, argument).await,
            Err(error) => Err(error),
        };
        if let Some(count) = chaos::end() {
            println!("upshift: disturbed {count} times");
        }
        trace::stop();
        let status = match status {
            Ok(status) => status,
            Err(error) => {
                println!("upshift: {program} does not start: {error}");
                2
            }
        };
        storage::unmount().await;
        let leaked = !wait_for_release(&before).await;
        trace::print();
        println!("upshift: {program} ended with {status}");
        let status = u16::try_from(status & 0xff).unwrap_or(1);
        finisher::exit(if leaked && status == 0 { 1 } else { status });
    };
    let options = Priority::At(Level::MOST_URGENT);
    let supervisor = executor::spawn(supervise, options).map_err(|_| Error::OutOfMemory)?;
    trace::name(supervisor.id(), Purpose::Supervisor);
    supervisor.detach();
    Ok(())
}

async fn run(program: &str, argument: &str) -> Result<isize, Error> {
    let mut files = Vec::new();
    files.resize_with(3, || File::Console);
    let share = share::machine();
    let stored;
    let name = program;
    let program = match archive::find(name) {
        Some(program) => program,
        None => {
            stored = storage::load(name.as_bytes(), &share).await?;
            &stored.0
        }
    };
    let init = process::spawn(Spawn {
        name,
        program,
        argument: argument.as_bytes(),
        files,
        level: LEVEL,
        ceiling: Level::MOST_URGENT,
        parent: 0,
        share,
        halvings: 0,
    })?;
    chaos::begin();
    Ok(process::wait_for_end(&init).await)
}

/// Waits until the resources in use equal `before`, for at most ten seconds, because the host may
/// stop a hart for seconds. Returns false after a leak.
async fn wait_for_release(before: &InUse) -> bool {
    let mut now = InUse::now();
    for _ in 0..1000 {
        if now == *before {
            return true;
        }
        sleep_until(clock::now() + clock::ticks_per_second() / 100).await;
        now = InUse::now();
    }
    println!(
        "upshift: leaked {} processes, {} pages, {} bytes",
        now.processes as isize - before.processes as isize,
        before.free_pages as isize - now.free_pages as isize,
        now.heap as isize - before.heap as isize,
    );
    false
}
