//! Limits of a program, and the end of the processes that it has started: bombs of every kind
//! beside a bystander that keeps its own share, and ends of whole families. With another argument
//! the program is one of these.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use os_user::net::{SELF, connect, datagrams, listen};
use os_user::number::KILLED;
use os_user::testing::{Outcome, run_all, text};
use os_user::{
    Bounds, Error, Fork, Pipe, exec, exit, fork, layout, number, pipe, read, sleep_micros, spawn,
    spawn_within, sys, wait, write,
};
use os_user::{ensure, tests};

os_user::coroutine_entry!(main);

tests! {
    fork_bomb_leaves_others_theirs,
    spawn_bomb_leaves_others_theirs,
    orphan_bomb_leaves_others_theirs,
    thread_bomb_leaves_others_theirs,
    memory_bomb_leaves_others_theirs,
    socket_bomb_leaves_others_theirs,
    pipe_bomb_leaves_others_theirs,
    call_bomb_leaves_others_theirs,
    exec_bomb_leaves_others_theirs,
    share_is_over_with_its_first_process,
    killed_process_takes_its_orphans_along,
    orphan_in_the_same_share_lives_on,
    share_of_nothing_is_an_error,
}

/// The level of bombs: less urgent than the tests.
const LATER: u8 = 40;
/// Number of halvings of the share of a bomb.
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

fn at(level: u8, halvings: u8) -> Bounds {
    Bounds {
        level,
        ceiling: level,
        halvings,
    }
}

fn close(pipe: Pipe) -> Outcome {
    for file in [pipe.reader, pipe.writer] {
        sys::close(file).map_err(text)?;
    }
    Ok(())
}

async fn beside(bomb: &[u8]) -> Outcome {
    beside_smaller(bomb, HALVINGS).await
}

/// Starts a bomb, waits until it gets nothing more, and starts the bystander. When the bomb has
/// been killed, everything is back.
async fn beside_smaller(bomb: &[u8], halvings: u8) -> Outcome {
    let before = sys::free_pages().map_err(text)?;
    let note = pipe().map_err(text)?;
    let files = [note.writer, 1];
    let bomb = spawn_within("shares", bomb, &files, at(LATER, halvings)).map_err(text)?;
    read!(note.reader, &mut [0]).map_err(text)?;
    let bystander = spawn("shares", b"bystander", &[1, 1], LATER - 1).map_err(text)?;
    let status = wait(bystander).map_err(text)?;
    sys::kill(bomb).map_err(text)?;
    let end = wait(bomb).map_err(text)?;
    close(note)?;
    ensure!(status == 0, "the bystander: status {status}");
    ensure!(end == KILLED, "the bomb: status {end}");
    // Other harts may have its memory loaded for a moment, and a host that is busy may stop one.
    for _ in 0..1000 {
        if sys::free_pages() == Ok(before) {
            return Ok(());
        }
        sleep_micros(10_000);
    }
    let now = sys::free_pages().map_err(text)?;
    Err(format!("{} pages are not back", before - now))
}

async fn fork_bomb_leaves_others_theirs() -> Outcome {
    beside(b"fork").await
}

async fn spawn_bomb_leaves_others_theirs() -> Outcome {
    beside(b"spawn").await
}

async fn orphan_bomb_leaves_others_theirs() -> Outcome {
    beside(b"orphan").await
}

async fn thread_bomb_leaves_others_theirs() -> Outcome {
    beside(b"thread").await
}

async fn memory_bomb_leaves_others_theirs() -> Outcome {
    beside(b"memory").await
}

async fn socket_bomb_leaves_others_theirs() -> Outcome {
    beside(b"socket").await
}

async fn pipe_bomb_leaves_others_theirs() -> Outcome {
    beside(b"pipe").await
}

async fn call_bomb_leaves_others_theirs() -> Outcome {
    // The initial capacity of the kernel's table of coroutines: it would grow, and keep its size.
    beside_smaller(b"call", HALVINGS + 1).await
}

async fn exec_bomb_leaves_others_theirs() -> Outcome {
    beside(b"exec").await
}

/// Reports that it gets nothing more, and stays.
fn stay() -> ! {
    let _ = write(0, b"!");
    loop {
        sleep_micros(1_000_000);
    }
}

/// Takes until there is an error.
fn take_all<T>(mut take: impl FnMut() -> Result<T, Error>) {
    while take().is_ok() {}
}

fn fork_bomb() -> ! {
    take_all(fork);
    stay()
}

fn spawn_bomb() -> ! {
    take_all(|| spawn("shares", b"spawn", &[0], LATER));
    stay()
}

/// Each lives for a moment and leaves a child behind, in the share of the first one.
fn orphan_bomb() -> ! {
    if let Ok(Fork::Parent(_)) = fork() {
        stay();
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

/// Processes with as many threads as they get.
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
            stay();
        }
    }
}

fn memory_bomb() -> ! {
    loop {
        take_all(|| sys::map(64));
        take_all(|| sys::map(1));
        if fork().is_err() {
            stay();
        }
    }
}

/// Leaks sockets of every kind, and as many places in backlogs as there are.
fn socket_bomb() -> ! {
    for port in 3000.. {
        if listen(port, 16).is_err() {
            break;
        }
        let _ = connect(SELF, port);
    }
    take_all(|| datagrams(0));
    stay()
}

/// Pipes, in process after process.
fn pipe_bomb() -> ! {
    take_all(pipe);
    let _ = spawn_within("shares", b"pipe", &[0], at(LATER, 0)).map_err(|_| stay());
    stay()
}

/// Calls that wait for ever, in process after process.
fn call_bomb() -> ! {
    let Ok(pipe) = pipe() else { stay() };
    let mut byte = [0u8; 1];
    let arguments = [pipe.reader, (&raw mut byte).addr(), 1, 0, 0, 0];
    take_all(|| sys::raw_with(number::read | number::ASYNCHRONOUS, arguments, 0));
    let _ = spawn_within("shares", b"call", &[0], at(LATER, 0)).map_err(|_| stay());
    stay()
}

/// Becomes itself again and again, with a child more each time.
fn exec_bomb() -> ! {
    match fork() {
        Ok(_) => {
            let _ = exec("shares", b"exec");
        }
        Err(_) => stay(),
    }
    stay()
}

/// Takes a little of everything.
fn bystander() -> Outcome {
    let mut children = Vec::new();
    for _ in 0..8 {
        children.push(spawn("child", b"sleep 1000", &[], LATER - 1).map_err(text)?);
    }
    for child in children {
        let status = wait(child).map_err(text)?;
        ensure!(status == 0, "a child: status {status}");
    }
    match fork().map_err(text)? {
        Fork::Child => exit(5),
        Fork::Parent(child) => {
            let status = wait(child).map_err(text)?;
            ensure!(status == 5, "the forked one: status {status}");
        }
    }
    let mut threads = Vec::new();
    for n in 0..16 {
        threads.push(os_user::thread::spawn(move || n).map_err(text)?);
    }
    for (n, thread) in threads.into_iter().enumerate() {
        let result = thread.join().map_err(text)?;
        ensure!(result == n, "thread {n}: {result}");
    }
    sys::map(512).map_err(text)?;
    for _ in 0..100 {
        pipe().map_err(text)?;
    }
    let listener = listen(2000, 8).map_err(text)?;
    let connection = connect(SELF, 2000).map_err(text)?;
    let accepted = sys::accept(listener).map_err(text)? as usize;
    write(connection, b"here").map_err(text)?;
    let mut bytes = [0; 8];
    let count = read!(accepted, &mut bytes).map_err(text)?;
    ensure!(&bytes[..count] == b"here", "{count} bytes");
    for _ in 0..50 {
        datagrams(0).map_err(text)?;
    }
    Ok(())
}

/// Starts children, grandchildren and orphans that have descriptor 1, waits until one may read
/// from descriptor 0, and ends.
fn family() -> isize {
    for _ in 0..3 {
        let child = spawn("child", b"endless", &[1, 1], 60);
        let orphans = match fork() {
            Ok(Fork::Child) => {
                // Some of the same share, some of their own.
                for halvings in [0, 1] {
                    let bounds = at(60, halvings);
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

/// Starts a family; `end` ends it, then the pipe is closed.
fn with_a_family(end: impl FnOnce(usize, Pipe) -> Result<isize, Error>) -> Result<isize, String> {
    let (begin, all) = (pipe().map_err(text)?, pipe().map_err(text)?);
    let files = [begin.reader, all.writer];
    let first = spawn("shares", b"family", &files, LATER).map_err(text)?;
    read!(all.reader, &mut [0]).map_err(text)?;
    end(first, begin).map_err(text)?;
    let status = wait(first).map_err(text)?;
    sys::close(all.writer).map_err(text)?;
    let rest = read!(all.reader, &mut [0]).map_err(text)?;
    ensure!(rest == 0, "another program has written");
    sys::close(all.reader).map_err(text)?;
    close(begin)?;
    Ok(status)
}

async fn share_is_over_with_its_first_process() -> Outcome {
    let status = with_a_family(|_, begin| write(begin.writer, b"!").map(|_| 0))?;
    ensure!(status == 7, "status {status}");
    Ok(())
}

async fn killed_process_takes_its_orphans_along() -> Outcome {
    let status = with_a_family(|first, _| sys::kill(first))?;
    ensure!(status == KILLED, "status {status}");
    Ok(())
}

async fn orphan_in_the_same_share_lives_on() -> Outcome {
    let pipe = pipe().map_err(text)?;
    match fork().map_err(text)? {
        Fork::Child => {
            let files = [pipe.writer, pipe.writer];
            let orphan = spawn_within("child", b"late 20000", &files, at(LATER, 0));
            exit(isize::from(orphan.is_err()))
        }
        Fork::Parent(child) => {
            let status = wait(child).map_err(text)?;
            ensure!(status == 0, "it has no child: status {status}");
        }
    }
    let mut byte = [0];
    read!(pipe.reader, &mut byte).map_err(text)?;
    ensure!(byte == *b"!", "it has said {byte:?}");
    close(pipe)
}

async fn share_of_nothing_is_an_error() -> Outcome {
    // The machine has 256 processes.
    for halvings in [9, 10, 64, u8::MAX] {
        let child = spawn_within("child", b"exit 0", &[], at(LATER, halvings));
        ensure!(child == Err(Error::TooMany), "{halvings}: {child:?}");
    }
    let child = spawn_within("child", b"exit 0", &[], at(LATER, 4)).map_err(text)?;
    let status = wait(child).map_err(text)?;
    ensure!(status == 0, "status {status}");
    Ok(())
}
