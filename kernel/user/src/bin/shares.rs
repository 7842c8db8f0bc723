//! Tests of the limits of a program, and of the end of the processes that it has started.
//!
//! A *share* is the part of the machine's processes, threads, memory and sockets that a program and
//! its descendants may use (`Bounds`). A *bomb* takes a resource until the kernel refuses; a
//! *bystander* beside the bomb must still have its own share. A *family* is a program with
//! children, grandchildren and orphans, all of which must end with the program. Arguments select
//! the bomb, the bystander or the family; without an argument the tests run.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use os_user::net::{SELF, connect, datagrams, listen};
use os_user::number::KILLED;
use os_user::testing::{Outcome, message, run_all};
use os_user::{
    Bounds, Error, Fork, Pipe, exec, exit, fork, layout, number, pipe, read, sleep_micros, spawn,
    spawn_within, sys, wait, write,
};
use os_user::{ensure, tests};

os_user::coroutine_entry!(main);

tests! {
    fork_bomb_leaves_the_shares_of_others,
    spawn_bomb_leaves_the_shares_of_others,
    orphan_bomb_leaves_the_shares_of_others,
    thread_bomb_leaves_the_shares_of_others,
    memory_bomb_leaves_the_shares_of_others,
    socket_bomb_leaves_the_shares_of_others,
    pipe_bomb_leaves_the_shares_of_others,
    call_bomb_leaves_the_shares_of_others,
    exec_bomb_leaves_the_shares_of_others,
    share_ends_with_its_first_process,
    killed_process_takes_its_orphans_along,
    orphan_in_the_same_share_lives_on,
    empty_share_is_an_error,
}

/// Level of the programs that the tests start: less urgent than the tests.
const PROGRAM_LEVEL: u8 = 40;
/// Number of times that the share of the tests is halved to give the share of a bomb.
const HALVINGS: u8 = 2;

async fn main() -> isize {
    match os_user::argument() {
        b"fork" => fork_bomb(),
        b"spawn" => spawn_bomb(),
        b"orphan" => orphan_bomb(),
        b"thread" => thread_bomb(),
        b"memory" => memory_bomb(),
        b"socket" => socket_bomb(),
        b"pipe" => pipe_bomb(),
        b"call" => call_bomb(),
        b"exec" => exec_bomb(),
        b"bystander" => match bystander() {
            Ok(()) => 0,
            Err(reason) => {
                os_user::println!("bystander: {reason}");
                1
            }
        },
        b"family" => family(),
        _ => run_all(TESTS).await,
    }
}

fn bounds_at(level: u8, halvings: u8) -> Bounds {
    Bounds {
        level,
        ceiling: level,
        halvings,
    }
}

fn close(pipe: Pipe) -> Outcome {
    for file in [pipe.reader, pipe.writer] {
        sys::close(file).map_err(message)?;
    }
    Ok(())
}

async fn run_beside_bomb(bomb: &[u8]) -> Outcome {
    run_beside_bomb_within(bomb, HALVINGS).await
}

/// Starts a bomb, waits until it has used up its share, and runs the bystander. Then kills the bomb
/// and checks that all its memory is free again.
async fn run_beside_bomb_within(bomb: &[u8], halvings: u8) -> Outcome {
    let before = sys::free_pages().map_err(message)?;
    let ready = pipe().map_err(message)?;
    let files = [ready.writer, 1];
    let bomb = spawn_within("shares", bomb, &files, bounds_at(PROGRAM_LEVEL, halvings))
        .map_err(message)?;
    read!(ready.reader, &mut [0]).map_err(message)?;
    let bystander = spawn("shares", b"bystander", &[1, 1], PROGRAM_LEVEL - 1).map_err(message)?;
    let status = wait(bystander).map_err(message)?;
    sys::kill(bomb).map_err(message)?;
    let end = wait(bomb).map_err(message)?;
    close(ready)?;
    ensure!(status == 0, "the bystander ended with status {status}");
    ensure!(end == KILLED, "the bomb ended with status {end}");
    // Other harts may use the bomb's page tables for a moment, and a busy host may stop a hart.
    for _ in 0..1000 {
        if sys::free_pages() == Ok(before) {
            return Ok(());
        }
        sleep_micros(10_000);
    }
    let now = sys::free_pages().map_err(message)?;
    Err(format!("{} pages were not freed", before - now))
}

async fn fork_bomb_leaves_the_shares_of_others() -> Outcome {
    run_beside_bomb(b"fork").await
}

async fn spawn_bomb_leaves_the_shares_of_others() -> Outcome {
    run_beside_bomb(b"spawn").await
}

async fn orphan_bomb_leaves_the_shares_of_others() -> Outcome {
    run_beside_bomb(b"orphan").await
}

async fn thread_bomb_leaves_the_shares_of_others() -> Outcome {
    run_beside_bomb(b"thread").await
}

async fn memory_bomb_leaves_the_shares_of_others() -> Outcome {
    run_beside_bomb(b"memory").await
}

async fn socket_bomb_leaves_the_shares_of_others() -> Outcome {
    run_beside_bomb(b"socket").await
}

async fn pipe_bomb_leaves_the_shares_of_others() -> Outcome {
    run_beside_bomb(b"pipe").await
}

async fn call_bomb_leaves_the_shares_of_others() -> Outcome {
    // The bomb gets fewer calls than the initial capacity of the kernel's table of coroutines,
    // which would otherwise grow and keep its size.
    run_beside_bomb_within(b"call", HALVINGS + 1).await
}

async fn exec_bomb_leaves_the_shares_of_others() -> Outcome {
    run_beside_bomb(b"exec").await
}

/// Reports that the share is used up, and never returns, so that the share stays used up.
fn hold_share() -> ! {
    let _ = write(0, b"!");
    loop {
        sleep_micros(1_000_000);
    }
}

fn take_all<T>(mut take: impl FnMut() -> Result<T, Error>) {
    while take().is_ok() {}
}

fn fork_bomb() -> ! {
    take_all(fork);
    hold_share()
}

fn spawn_bomb() -> ! {
    take_all(|| spawn("shares", b"spawn", &[0], PROGRAM_LEVEL));
    hold_share()
}

/// Starts processes that exit soon and leave a child behind, in the share of the first process.
fn orphan_bomb() -> ! {
    if let Ok(Fork::Parent(_)) = fork() {
        hold_share();
    }
    loop {
        for _ in 0..2 {
            if fork().is_ok_and(|fork| fork == Fork::Child) {
                break;
            }
        }
        sleep_micros(500);
        if let Ok(Fork::Parent(_)) = fork() {
            exit(0);
        }
    }
}

/// Starts processes with as many threads as possible.
fn thread_bomb() -> ! {
    extern "C" fn sleeper() -> ! {
        loop {
            sleep_micros(1_000_000);
        }
    }
    loop {
        take_all(|| {
            let stack = sys::map_stack(1)? as usize + layout::PAGE;
            sys::thread_create(sleeper as *const () as usize, stack, 0)
        });
        if fork().is_err() {
            hold_share();
        }
    }
}

fn memory_bomb() -> ! {
    loop {
        take_all(|| sys::map(64));
        take_all(|| sys::map(1));
        if fork().is_err() {
            hold_share();
        }
    }
}

/// Leaks sockets of every kind, with backlogs as long as possible.
fn socket_bomb() -> ! {
    for port in 3000.. {
        if listen(port, 16).is_err() {
            break;
        }
        let _ = connect(SELF, port);
    }
    take_all(|| datagrams(0));
    hold_share()
}

/// Opens pipes until the kernel refuses, and starts a process that does the same.
fn pipe_bomb() -> ! {
    take_all(pipe);
    let _ = spawn_within("shares", b"pipe", &[0], bounds_at(PROGRAM_LEVEL, 0))
        .map_err(|_| hold_share());
    hold_share()
}

/// Makes calls that never complete until the kernel refuses, and starts a process that does the
/// same.
fn call_bomb() -> ! {
    let Ok(pipe) = pipe() else { hold_share() };
    let mut byte = [0u8; 1];
    let arguments = [pipe.reader, (&raw mut byte).addr(), 1, 0, 0, 0];
    take_all(|| sys::raw_with(number::read | number::ASYNCHRONOUS, arguments, 0));
    let _ = spawn_within("shares", b"call", &[0], bounds_at(PROGRAM_LEVEL, 0))
        .map_err(|_| hold_share());
    hold_share()
}

/// Repeats `exec` of this program, with another child each time.
fn exec_bomb() -> ! {
    match fork() {
        Ok(_) => {
            let _ = exec("shares", b"exec");
        }
        Err(_) => hold_share(),
    }
    hold_share()
}

/// Uses a little of every resource.
fn bystander() -> Outcome {
    let mut children = Vec::new();
    for _ in 0..8 {
        children.push(spawn("child", b"sleep 1000", &[], PROGRAM_LEVEL - 1).map_err(message)?);
    }
    for child in children {
        let status = wait(child).map_err(message)?;
        ensure!(status == 0, "a child ended with status {status}");
    }
    match fork().map_err(message)? {
        Fork::Child => exit(5),
        Fork::Parent(child) => {
            let status = wait(child).map_err(message)?;
            ensure!(status == 5, "the forked child ended with status {status}");
        }
    }
    let mut threads = Vec::new();
    for n in 0..16 {
        threads.push(os_user::thread::spawn(move || n).map_err(message)?);
    }
    for (n, thread) in threads.into_iter().enumerate() {
        let result = thread.join().map_err(message)?;
        ensure!(result == n, "thread {n} returned {result}");
    }
    sys::map(512).map_err(message)?;
    for _ in 0..100 {
        pipe().map_err(message)?;
    }
    let listener = listen(2000, 8).map_err(message)?;
    let connection = connect(SELF, 2000).map_err(message)?;
    let accepted = sys::accept(listener).map_err(message)? as usize;
    write(connection, b"here").map_err(message)?;
    let mut bytes = [0; 8];
    let count = read!(accepted, &mut bytes).map_err(message)?;
    ensure!(&bytes[..count] == b"here", "{count} bytes");
    for _ in 0..50 {
        datagrams(0).map_err(message)?;
    }
    Ok(())
}

/// Starts children, grandchildren and orphans that hold descriptor 1, reads a byte from descriptor
/// 0, and exits with status 7.
fn family() -> isize {
    for _ in 0..3 {
        let child = spawn("child", b"endless", &[1, 1], 60);
        let orphans = match fork() {
            Ok(Fork::Child) => {
                // One process has the same share, the other a share of its own.
                for halvings in [0, 1] {
                    let bounds = bounds_at(60, halvings);
                    if spawn_within("child", b"sleep 99000000", &[1, 1], bounds).is_err() {
                        exit(1);
                    }
                }
                exit(0)
            }
            Ok(Fork::Parent(child)) => wait(child),
            Err(error) => Err(error),
        };
        if child.is_err() || orphans != Ok(0) {
            return 1;
        }
    }
    let _ = write(1, b"!");
    let _ = read!(0, &mut [0]);
    7
}

/// Starts a family, and calls `end` to end it. Checks that no member is left that holds the pipe.
fn with_a_family(end: impl FnOnce(usize, Pipe) -> Result<isize, Error>) -> Result<isize, String> {
    let (trigger, members) = (pipe().map_err(message)?, pipe().map_err(message)?);
    let files = [trigger.reader, members.writer];
    let first = spawn("shares", b"family", &files, PROGRAM_LEVEL).map_err(message)?;
    read!(members.reader, &mut [0]).map_err(message)?;
    end(first, trigger).map_err(message)?;
    let status = wait(first).map_err(message)?;
    sys::close(members.writer).map_err(message)?;
    let count = read!(members.reader, &mut [0]).map_err(message)?;
    ensure!(count == 0, "a member of the family has written");
    sys::close(members.reader).map_err(message)?;
    close(trigger)?;
    Ok(status)
}

async fn share_ends_with_its_first_process() -> Outcome {
    let status = with_a_family(|_, trigger| write(trigger.writer, b"!").map(|_| 0))?;
    ensure!(status == 7, "status {status}");
    Ok(())
}

async fn killed_process_takes_its_orphans_along() -> Outcome {
    let status = with_a_family(|first, _| sys::kill(first))?;
    ensure!(status == KILLED, "status {status}");
    Ok(())
}

async fn orphan_in_the_same_share_lives_on() -> Outcome {
    let pipe = pipe().map_err(message)?;
    match fork().map_err(message)? {
        Fork::Child => {
            let files = [pipe.writer, pipe.writer];
            let orphan = spawn_within("child", b"late 20000", &files, bounds_at(PROGRAM_LEVEL, 0));
            exit(isize::from(orphan.is_err()))
        }
        Fork::Parent(child) => {
            let status = wait(child).map_err(message)?;
            ensure!(
                status == 0,
                "the process could not start its child: status {status}"
            );
        }
    }
    let mut byte = [0];
    read!(pipe.reader, &mut byte).map_err(message)?;
    ensure!(byte == *b"!", "the orphan has written {byte:?}");
    close(pipe)
}

async fn empty_share_is_an_error() -> Outcome {
    // The kernel has space for 256 processes, so nine halvings leave none.
    for halvings in [9, 10, 64, u8::MAX] {
        let child = spawn_within("child", b"exit 0", &[], bounds_at(PROGRAM_LEVEL, halvings));
        ensure!(child == Err(Error::TooMany), "{halvings}: {child:?}");
    }
    let child =
        spawn_within("child", b"exit 0", &[], bounds_at(PROGRAM_LEVEL, 4)).map_err(message)?;
    let status = wait(child).map_err(message)?;
    ensure!(status == 0, "status {status}");
    Ok(())
}
