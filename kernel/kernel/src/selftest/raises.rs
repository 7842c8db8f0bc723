//! Raises: an event for a program makes one of its threads as urgent, wherever that thread is. A
//! thread that has ended leaves nothing behind.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use os_abi::shared::{DRAINING, ENTRY_WORDS};
use os_abi::thread::CRITICAL;
use upshift_core::Level;

use super::Outcome;
use super::executor::with_the_others_busy;
use crate::arch::{csr, hart_index};
use crate::process::{self, Process, Spawn};
use crate::users::{self, Next};
use crate::{ensure, hart};

/// Returns the parameters of a process with one thread of level 40, which may be as urgent as 20.
fn child_of(parent: usize) -> Result<Spawn<'static>, String> {
    let level = |level| Level::new(level).unwrap_or(Level::DEFAULT);
    Ok(Spawn {
        name: "child",
        program: crate::archive::find("child").ok_or("there is no such program")?,
        argument: b"endless",
        files: Vec::new(),
        level: level(40),
        ceiling: level(20),
        parent,
        share: process::share::machine(),
        halvings: 1,
    })
}

/// Creates such a process. It is in the queue, and all harts are busy.
fn program_that_waits() -> Result<Arc<Process>, String> {
    process::spawn(child_of(0)?).map_err(|error| format!("{error}"))
}

/// A child that is killed while its parent ends, before either knows that of the other, gives its
/// place back.
pub(super) async fn child_that_is_killed_as_it_comes_leaves_nothing() -> Outcome {
    let before = process::living();
    let parent = process::spawn(child_of(0)?).map_err(|error| format!("{error}"))?;
    let number = parent.number();
    parent.end(0, Level::at::<30>());
    process::spawn_and_end(child_of(number)?).map_err(|error| format!("{error}"))?;
    let living = process::living();
    ensure!(
        living == before,
        "{before} processes before, {living} after"
    );
    Ok(())
}

/// A completion of level 10 comes for a process.
fn complete(process: &Process) -> Outcome {
    let reserved = process.reserve_completion();
    reserved.map_err(|error| format!("{error}"))?;
    process.complete([0; ENTRY_WORDS], Level::at::<10>());
    Ok(())
}

/// The level of the most urgent thread that is ready.
fn ready() -> u32 {
    users::ready().trailing_zeros()
}

/// A thread that is about to leave its hart for something more urgent counts as one that runs: a
/// completion that comes then raises it in the queue.
pub(super) async fn completion_reaches_a_thread_that_leaves_its_hart() -> Outcome {
    with_the_others_busy(async {
        let process = program_that_waits()?;
        let interrupts = csr::interrupts_off();
        let index = hart_index();
        // The hart may be more urgent still for the test before; it gives way once then.
        let thread = [(); 2].into_iter().find_map(|()| match users::take(index) {
            Next::Run(thread) => Some(thread),
            _ => None,
        });
        let is_taken = thread.is_some();
        hart::enters_user(index);
        let completed = complete(&process);
        hart::takes_from_user(index);
        users::stopped(index);
        thread.into_iter().for_each(users::push_front);
        let ready = ready();
        process.end(0, Level::at::<30>());
        csr::interrupts_restore(interrupts);
        ensure!(is_taken, "it is not in the queue");
        completed?;
        ensure!(ready == 20, "it has level {ready}");
        Ok(())
    })
    .await
}

/// A thread that has lost its hart while it takes completions out is as urgent as one that comes
/// then; so is one that was unparked to take them out.
pub(super) async fn completion_reaches_a_thread_that_drains() -> Outcome {
    with_the_others_busy(async {
        for critical in [0, 1] {
            let process = program_that_waits()?;
            let space = process.space().map_err(|error| format!("{error}"))?;
            space.set_line(0, CRITICAL, critical);
            ensure!(space.shared().claim(DRAINING), "a thread drains");
            complete(&process)?;
            let ready = ready();
            process.end(0, Level::at::<30>());
            ensure!(ready == 20, "{critical}: it has level {ready}");
        }
        Ok(())
    })
    .await
}

/// A completion raises a thread that is neither in the queue nor on a hart, but between the
/// two: it comes into the queue as urgent as that.
pub(super) async fn raise_reaches_a_thread_on_its_way_to_the_queue() -> Outcome {
    with_the_others_busy(async {
        let level = |level| Level::new(level).unwrap_or(Level::DEFAULT);
        let process = program_that_waits()?;
        for (raised, becomes) in [(35, 35), (50, 35), (10, 20)] {
            let thread = process.take_ready().ok_or("it is not in the queue")?;
            process.raise(level(raised));
            users::push_front(thread);
            let ready = ready();
            ensure!(ready == becomes, "raised to {raised}, it has {ready}");
        }
        process.end(0, level(30));
        Ok(())
    })
    .await
}
