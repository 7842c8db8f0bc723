//! Tests of `fork` and `exec`.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU64};

use os_user::coroutine::{current, spawn, spawn_local, yield_now};
use os_user::cpu::alloc_cpu;
use os_user::number::KILLED;
use os_user::testing::{Outcome, message, run_all};
use os_user::{
    Error, Fork, exec, exit, now, pipe, process_number, read, sleep_micros, sys, thread,
    ticks_per_second, wait, write,
};
use os_user::{ensure, tests};

os_user::coroutine_entry!(main);

tests! {
    child_has_a_copy_of_memory,
    child_continues_in_the_same_coroutine,
    child_shares_descriptors,
    calls_in_flight_stay_with_the_parent,
    fork_while_threads_allocate,
    fork_with_several_vcpus,
    forks_of_two_threads_at_once,
    fork_storm_ends_at_the_limit,
    fork_bomb_stays_within_the_limit,
    fork_of_much_memory_is_an_error,
    exec_replaces_the_program,
    exec_keeps_descriptors_and_children,
    exec_of_a_missing_program_is_an_error,
    exec_ends_the_other_threads,
    process_can_be_killed_during_exec,
}

async fn main() -> isize {
    run_all(TESTS).await
}

/// Forks, and retries if the host has stopped a hart for longer than the kernel's time limit.
fn fork() -> Result<Fork, Error> {
    for _ in 0..20 {
        match os_user::fork() {
            Err(Error::Busy) => {}
            answer => return answer,
        }
    }
    Err(Error::Busy)
}

/// Runs `f` in a child, and returns the child's status.
fn in_child(f: impl FnOnce() -> isize) -> Result<isize, String> {
    match fork().map_err(message)? {
        Fork::Child => exit(f()),
        Fork::Parent(child) => wait(child).map_err(message),
    }
}

async fn child_has_a_copy_of_memory() -> Outcome {
    static WORD: AtomicU64 = AtomicU64::new(1);
    let mut numbers: Vec<u64> = (0..3000).collect();
    let parent = process_number();
    let status = in_child(|| {
        let is_equal = numbers.iter().sum::<u64>() == 3000 * 2999 / 2;
        numbers.fill(7);
        WORD.store(2, SeqCst);
        // New memory of the child, above the inherited memory.
        let new_block = vec![1u8; 100_000];
        let is_valid = process_number() != parent && new_block.iter().all(|byte| *byte == 1);
        if is_equal && is_valid { 5 } else { 6 }
    })?;
    ensure!(status == 5, "status {status}");
    ensure!(
        numbers.is_sorted() && WORD.load(SeqCst) == 1,
        "the child has changed the parent"
    );
    Ok(())
}

async fn child_continues_in_the_same_coroutine() -> Outcome {
    let cid = current();
    match fork().map_err(message)? {
        Fork::Child => {
            // The scheduler works in the child if another coroutine runs and this coroutine
            // resumes.
            let other = spawn_local(async { 40 }, None);
            yield_now().await;
            let sum = match other {
                Ok(other) => other.await.unwrap_or(0) + isize::from(current() == cid),
                Err(_) => 0,
            };
            os_user::sleep(1_000).await;
            exit(sum)
        }
        Fork::Parent(child) => {
            let status = os_user::asynchronous::wait(child, current()).await;
            ensure!(status == Ok(41), "{status:?}");
        }
    }
    Ok(())
}

async fn child_shares_descriptors() -> Outcome {
    let pipe = pipe().map_err(message)?;
    let status = in_child(|| isize::from(write(pipe.writer, b"from the child").is_err()))?;
    ensure!(status == 0, "the child cannot write");
    sys::close(pipe.writer).map_err(message)?;
    let mut bytes = [0; 32];
    let count = read(pipe.reader, &mut bytes).map_err(message)?;
    ensure!(&bytes[..count] == b"from the child", "{count} bytes");
    let end = read(pipe.reader, &mut bytes).map_err(message)?;
    ensure!(end == 0, "the child's end is still open");
    sys::close(pipe.reader).map(|_| ()).map_err(message)
}

async fn calls_in_flight_stay_with_the_parent() -> Outcome {
    let pipe = pipe().map_err(message)?;
    let reading = read!(pipe.reader, vec![0; 8], current());
    match fork().map_err(message)? {
        Fork::Child => {
            let (result, bytes) = reading.await;
            let is_right = result == Err(Error::NotInherited) && bytes == [0; 8];
            // The child can make calls itself.
            let (result, _) = write!(pipe.writer, vec![9; 4], current()).await;
            exit(isize::from(!(is_right && result == Ok(4))))
        }
        Fork::Parent(child) => {
            let (result, bytes) = reading.await;
            let status = wait(child).map_err(message)?;
            ensure!(status == 0, "in the child: status {status}");
            ensure!(result == Ok(4) && bytes[..4] == [9; 4], "{result:?}");
        }
    }
    for file in [pipe.reader, pipe.writer] {
        sys::close(file).map_err(message)?;
    }
    Ok(())
}

/// A child can allocate although threads of the parent allocate and free memory without end. A copy
/// of memory in the middle of an allocation would contain a locked or inconsistent heap.
async fn fork_while_threads_allocate() -> Outcome {
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for n in 1..4 {
        let stop = stop.clone();
        let work = move || {
            let mut blocks = Vec::new();
            while !stop.load(Relaxed) {
                blocks.push(vec![n as u8; 16 << (blocks.len() % 6)]);
                if blocks.len() == 50 {
                    blocks.clear();
                }
            }
        };
        threads.push(thread::spawn(work).map_err(message)?);
    }
    for round in 0..10 {
        let status = in_child(|| {
            let mut sum = 0;
            for size in 1..500 {
                sum += Box::<[u8]>::from(vec![1; size]).len();
            }
            isize::from(sum != 499 * 500 / 2)
        });
        ensure!(status == Ok(0), "round {round}: {status:?}");
    }
    stop.store(true, SeqCst);
    for thread in threads {
        thread.join().map_err(message)?;
    }
    Ok(())
}

/// The child has one thread, which serves one vCPU and takes the ready coroutines of all vCPUs.
async fn fork_with_several_vcpus() -> Outcome {
    let cpus = [alloc_cpu(), alloc_cpu()];
    let stop = Arc::new(AtomicBool::new(false));
    let mut handles = Vec::new();
    for _ in 0..10 {
        let stop = stop.clone();
        let turn = async move {
            while !stop.load(Relaxed) {
                yield_now().await;
            }
        };
        handles.push(spawn(turn, Some(33)).map_err(message)?);
    }
    for round in 0..5 {
        yield_now().await;
        match fork().map_err(message)? {
            Fork::Child => {
                stop.store(true, SeqCst);
                // The new coroutine is more urgent than the coroutines that yield.
                let coroutine = spawn(async { 3 }, Some(31));
                let status = match coroutine {
                    Ok(coroutine) => coroutine.await.map_or(1, |three| three - 3),
                    Err(_) => 2,
                };
                exit(status)
            }
            Fork::Parent(child) => {
                let status = wait(child).map_err(message)?;
                ensure!(status == 0, "round {round}: status {status}");
            }
        }
    }
    stop.store(true, SeqCst);
    for handle in handles {
        handle.await;
    }
    for cpu in cpus {
        cpu.map_err(message)?.release().map_err(message)?;
    }
    Ok(())
}

async fn forks_of_two_threads_at_once() -> Outcome {
    let forker = || {
        for _ in 0..5 {
            let status = in_child(|| 11);
            if status != Ok(11) {
                return status;
            }
        }
        Ok(11)
    };
    let other = thread::spawn(forker).map_err(message)?;
    let mine = forker();
    let theirs = other.join().map_err(message)?;
    ensure!(mine == Ok(11) && theirs == Ok(11), "{mine:?} {theirs:?}");
    Ok(())
}

async fn fork_storm_ends_at_the_limit() -> Outcome {
    let mut children = Vec::new();
    let error = loop {
        match fork() {
            Ok(Fork::Child) => loop {
                sleep_micros(1_000_000);
            },
            Ok(Fork::Parent(child)) => children.push(child),
            Err(error) => break error,
        }
    };
    let count = children.len();
    for child in children {
        sys::kill(child).map_err(message)?;
        let status = wait(child).map_err(message)?;
        ensure!(status == KILLED, "status {status}");
    }
    // The limit of processes is 256; the bound is a wide margin.
    ensure!(
        matches!(error, Error::TooMany | Error::OutOfMemory) && count > 50,
        "{count} children, then {error:?}"
    );
    Ok(())
}

/// All children fork further children for a while. The kernel refuses forks beyond the limit, and
/// the first child can still end with status 0.
async fn fork_bomb_stays_within_the_limit() -> Outcome {
    let end = now() + ticks_per_second() / 5;
    let status = in_child(|| {
        loop {
            match fork() {
                Ok(Fork::Child) => {}
                Ok(Fork::Parent(_)) => {}
                Err(_) => sleep_micros(2_000),
            }
            if now() > end {
                return 0;
            }
        }
    })?;
    ensure!(status == 0, "status {status}");
    // Wait for the last child to end.
    for _ in 0..1000 {
        sleep_micros(2_000);
        if let Ok(0) = in_child(|| 0) {
            break;
        }
    }
    sleep_micros(100_000);
    Ok(())
}

/// The parent uses most of a process's memory limit, and the machine has too little memory for many
/// such children, so a fork must fail for lack of memory after a few children.
async fn fork_of_much_memory_is_an_error() -> Outcome {
    let status = in_child(|| {
        while sys::map(64).is_ok() {}
        let mut children = Vec::new();
        let error = loop {
            match fork() {
                Ok(Fork::Child) => loop {
                    sleep_micros(1_000_000);
                },
                Ok(Fork::Parent(child)) => children.push(child),
                Err(error) => break error,
            }
        };
        let count = children.len();
        for child in children {
            let _ = sys::kill(child);
            let _ = wait(child);
        }
        // 128 MiB have space for about eight copies of 16 MiB; the bound is a wide margin.
        isize::from(error != Error::OutOfMemory || count > 20)
    })?;
    ensure!(status == 0, "status {status}");
    Ok(())
}

async fn exec_replaces_the_program() -> Outcome {
    for status in [3, 250] {
        let argument = format!("exit {status}");
        let returned = in_child(|| {
            let _ = exec("child", argument.as_bytes());
            1
        })?;
        ensure!(returned == status, "{status} became {returned}");
    }
    Ok(())
}

async fn exec_keeps_descriptors_and_children() -> Outcome {
    let status = in_child(|| {
        // The pipe gets the lowest free descriptors, because `child note` writes to descriptor 1.
        let _ = (sys::close(0), sys::close(1));
        let Ok(pipe) = pipe() else { return 1 };
        if in_child(|| exec("child", b"note here").code()) != Ok(0) {
            return 2;
        }
        let mut bytes = [0; 8];
        isize::from(read(pipe.reader, &mut bytes) != Ok(4) || !bytes.starts_with(b"here"))
    })?;
    ensure!(status == 0, "status {status}");
    // A wait for a process that executes another program returns the status of that program. The
    // process's own children end unnoticed.
    let status = in_child(|| {
        match fork() {
            Ok(Fork::Child) => {
                sleep_micros(10_000);
                return 0;
            }
            Ok(Fork::Parent(_)) => {}
            Err(_) => return 1,
        }
        let _ = exec("child", b"exit 4");
        2
    })?;
    ensure!(status == 4, "status {status}");
    sleep_micros(20_000);
    Ok(())
}

async fn exec_of_a_missing_program_is_an_error() -> Outcome {
    let error = exec("nothing", b"");
    ensure!(error == Error::NoProgram, "{error:?}");
    let error = exec("child", &[0; 257]);
    ensure!(error == Error::BadArgument, "{error:?}");
    let result = sys::exec(0, 5, 0, 0);
    ensure!(result == Err(Error::BadAddress), "{result:?}");
    Ok(())
}

async fn exec_ends_the_other_threads() -> Outcome {
    let status = in_child(|| {
        for n in 0..6 {
            let work = move || {
                loop {
                    match n % 2 {
                        0 => sleep_micros(300),
                        _ => core::hint::black_box(()),
                    }
                }
            };
            if thread::spawn(work).is_err() {
                return 1;
            }
        }
        sleep_micros(3_000);
        let _ = exec("child", b"exit 9");
        2
    })?;
    ensure!(status == 9, "status {status}");
    Ok(())
}

/// The kill arrives at different stages of the `exec`.
async fn process_can_be_killed_during_exec() -> Outcome {
    for round in 0..12u64 {
        let child = match fork().map_err(message)? {
            Fork::Child => {
                sleep_micros(1_000);
                let _ = exec("child", b"endless");
                exit(1)
            }
            Fork::Parent(child) => child,
        };
        sleep_micros(300 * round);
        sys::kill(child).map_err(message)?;
        let status = wait(child).map_err(message)?;
        ensure!(status == KILLED, "round {round}: status {status}");
    }
    Ok(())
}
