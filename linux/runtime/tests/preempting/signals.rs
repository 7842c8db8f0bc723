//! The signal that stops polls is never answered, because polls block it or the program has
//! replaced its handler; and suspended polls hold locks that the runtime needs.

use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use upshift::io::{AsyncReadExt, AsyncWriteExt};
use upshift::{Driver, Level, time};

use crate::child::child;
use crate::cpu::burn as compute;
use crate::handler;
use crate::masked::without_signals;
use crate::{LIMIT, builder, burn, runtime, spin_until};

/// Polls that block all signals wait by short sleeps for a lock whose holder is suspended. Go's
/// runtime does so when a thread first calls it.
#[test]
fn polls_that_block_all_signals_while_they_wait_get_on() {
    let Some(runtime) = runtime() else { return };
    let held = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    runtime.block_on(async {
        let polls: Vec<_> = (0..4)
            .map(|_| {
                let held = held.clone();
                let work = async move {
                    for _ in 0..10 {
                        without_signals(|| {
                            while held.swap(true, SeqCst) {
                                assert!(began.elapsed() < 3 * LIMIT, "the holder does not go on");
                                std::thread::sleep(Duration::from_micros(1));
                            }
                        });
                        compute(Duration::from_millis(3));
                        held.store(false, SeqCst);
                        upshift::yield_now().await;
                    }
                };
                upshift::spawn(work, Level::at::<32>())
            })
            .collect();
        for poll in polls {
            poll.await.unwrap();
        }
    });
}

/// A poll that blocks the signal throughout is suspended without it: its thread runs on beside the
/// others until it calls the runtime, waits there, and continues from there.
#[test]
fn a_poll_that_blocks_all_signals_does_not_delay_urgent_ones() {
    let Some(runtime) = runtime() else { return };
    for _ in 0..5 {
        runtime.block_on(async {
            let seen = Arc::new(AtomicBool::new(false));
            let flag = seen.clone();
            let long = async move {
                let mut in_time = false;
                without_signals(|| in_time = spin_until(&flag));
                time::sleep(Duration::from_millis(1)).await;
                in_time
            };
            let long = upshift::spawn(long, Level::at::<40>());
            let urgent = async move {
                let (mut reader, mut writer) = upshift::io::pipe().unwrap();
                for _ in 0..5 {
                    time::sleep(Duration::from_millis(1)).await;
                    writer.write_all(b"x").await.unwrap();
                    reader.read_exact(&mut [0]).await.unwrap();
                }
                seen.store(true, SeqCst);
            };
            upshift::spawn(urgent, Level::at::<0>()).await.unwrap();
            assert!(long.await.unwrap());
        });
    }
}

/// Name of the variable that makes a test run its body, in a process of its own.
const INSIDE: &str = "UPSHIFT_SIGNALS_CHILD";

/// Runs the body of the test `name` in a process of its own. Returns its standard error.
fn in_a_child(name: &str, how: &str, variables: &[(&str, &str)]) -> String {
    let output = child(&format!("signals::{name}"))
        .env(INSIDE, how)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{how}: {}: {said}", output.status);
    said
}

/// Returns the variant to run, in a process that runs the body of a test.
fn inside() -> Option<String> {
    let how = std::env::var(INSIDE).ok()?;
    // SAFETY: no pointers. A process that hangs is ended.
    unsafe { libc::alarm(120) };
    Some(how)
}

#[test]
fn a_program_that_replaces_the_handler_has_a_cooperative_runtime() {
    if let Some(how) = inside() {
        return replaces_the_handler(&how);
    }
    let Some(_alone) = runtime() else { return };
    for how in ["own", "ignore", "own readiness", "ignore readiness"] {
        let name = "a_program_that_replaces_the_handler_has_a_cooperative_runtime";
        let said = in_a_child(name, how, &[]);
        let lines = said
            .lines()
            .filter(|line| line.contains("replaced the handler"));
        assert_eq!(lines.count(), 1, "{how}: {said}");
    }
}

fn replaces_the_handler(how: &str) {
    let driver = if how.ends_with("readiness") {
        Driver::Readiness
    } else {
        Driver::Auto
    };
    let runtime = builder().driver(driver).build().unwrap();
    handler::replace(if how.starts_with("own") {
        handler::own as *const () as usize
    } else {
        libc::SIG_IGN
    });
    runtime.block_on(async {
        for _ in 0..3 {
            let long = async {
                loop {
                    burn(Duration::from_millis(20));
                    upshift::yield_now().await;
                }
            };
            upshift::spawn(long, Level::at::<32>()).detach();
        }
        let (mut reader, mut writer) = upshift::io::pipe().unwrap();
        let echoes = async move {
            for _ in 0..30 {
                time::sleep(Duration::from_millis(1)).await;
                writer.write_all(b"x").await.unwrap();
                reader.read_exact(&mut [0]).await.unwrap();
            }
        };
        upshift::spawn(echoes, Level::at::<2>()).await.unwrap();
    });
    // The polls that never end are left behind.
    std::process::exit(0);
}

/// A poll calls `holds` again and again and is suspended in the middle of it, most often with a
/// lock. Meanwhile an urgent coroutine calls `needs` a hundred times, each time once with its
/// permit in use and once in the middle of its poll.
fn gets_on(holds: impl Fn() + Send + 'static, needs: impl Fn() + Send + 'static) {
    let Some(runtime) = runtime() else { return };
    runtime.block_on(async {
        let over = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicUsize::new(0));
        let (is_over, began) = (over.clone(), Instant::now());
        let holder = async move {
            while !is_over.load(SeqCst) && began.elapsed() < 3 * LIMIT {
                holds();
            }
        };
        let holder = upshift::spawn(holder, Level::at::<40>());
        let counted = rounds.clone();
        let urgent = async move {
            for _ in 0..100 {
                time::sleep(Duration::from_millis(1)).await;
                upshift::no_suspend(&needs);
                needs();
                counted.fetch_add(1, SeqCst);
            }
        };
        upshift::spawn(urgent, Level::at::<0>()).await.unwrap();
        let in_time = began.elapsed() < 3 * LIMIT;
        over.store(true, SeqCst);
        holder.await.unwrap();
        assert!(in_time, "only {} rounds", rounds.load(SeqCst));
    });
    let stats = runtime.handle().preemption_stats();
    assert!(stats.suspensions > 0, "{stats:?}");
}

/// A suspended poll holds the allocator's lock in a process with one heap, where the runtime
/// allocates large futures.
#[test]
fn a_suspended_poll_may_hold_the_lock_of_the_allocator() {
    let name = "a_suspended_poll_may_hold_the_lock_of_the_allocator";
    if inside().is_none() {
        let Some(_alone) = runtime() else { return };
        let one_heap = [("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")];
        in_a_child(name, "one heap", &one_heap);
        return;
    }
    // Counting free blocks that are not neighbours takes milliseconds, with the lock held.
    let mut blocks: Vec<Option<Box<[u8; 1500]>>> =
        (0..60_000).map(|_| Some(Box::new([0; 1500]))).collect();
    for free in blocks.iter_mut().step_by(2) {
        *free = None;
    }
    let needs = || {
        drop(std::hint::black_box(vec![0u8; 3000]));
        let large = std::hint::black_box([0u8; 3000]);
        let spawned = upshift::spawn(
            async move { _ = std::hint::black_box(large) },
            Level::at::<0>(),
        );
        spawned.detach();
    };
    // SAFETY: it reads the allocator's own.
    let holds = || unsafe { _ = std::hint::black_box(libc::mallinfo2()) };
    gets_on(holds, needs);
    drop(blocks);
}

/// A suspended poll holds the lock of the dynamic loader, which a starting thread and a backtrace
/// need as well.
#[test]
fn a_suspended_poll_may_hold_the_lock_of_the_dynamic_loader() {
    unsafe extern "C" fn stay(
        _: *mut libc::dl_phdr_info,
        _: libc::size_t,
        _: *mut libc::c_void,
    ) -> libc::c_int {
        compute(Duration::from_millis(1));
        1
    }
    unsafe extern "C" fn pass(
        _: *mut libc::dl_phdr_info,
        _: libc::size_t,
        _: *mut libc::c_void,
    ) -> libc::c_int {
        1
    }
    // SAFETY: the callback touches nothing.
    let holds = || unsafe { _ = libc::dl_iterate_phdr(Some(stay), null_mut()) };
    let needs = || {
        // SAFETY: as above; the program itself is always there.
        unsafe {
            libc::dl_iterate_phdr(Some(pass), null_mut());
            let program = libc::dlopen(null(), libc::RTLD_NOW);
            assert!(!program.is_null());
            libc::dlclose(program);
        }
    };
    gets_on(holds, needs);
}
