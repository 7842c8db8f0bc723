//! Tests of polls that cannot be suspended by the runtime's signal, because they block it or the
//! program has replaced its handler. Other tests suspend polls that hold locks which the runtime
//! needs.

use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use upshift::io::{AsyncReadExt, AsyncWriteExt};
use upshift::{Driver, Level, time};

use crate::child::child;
use crate::cpu::burn as burn_cpu_time;
use crate::handler;
use crate::masked::without_signals;
use crate::{LIMIT, builder, burn, runtime, spin_until};

/// The polls block all signals, and wait in short sleeps for a lock whose holder is suspended. Go's
/// runtime waits like that when a thread first calls into it.
#[test]
fn polls_that_block_all_signals_while_they_wait_make_progress() {
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
                                assert!(
                                    began.elapsed() < 3 * LIMIT,
                                    "the holder makes no progress"
                                );
                                std::thread::sleep(Duration::from_micros(1));
                            }
                        });
                        burn_cpu_time(Duration::from_millis(3));
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

/// A poll that blocks the signal cannot be suspended by it. The poll's thread keeps running beside
/// the other threads until it next calls the runtime. In that call the thread waits, and later
/// continues.
#[test]
fn a_poll_that_blocks_all_signals_does_not_delay_urgent_polls() {
    let Some(runtime) = runtime() else { return };
    for _ in 0..5 {
        runtime.block_on(async {
            let stop = Arc::new(AtomicBool::new(false));
            let flag = stop.clone();
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
                stop.store(true, SeqCst);
            };
            upshift::spawn(urgent, Level::at::<0>()).await.unwrap();
            assert!(long.await.unwrap());
        });
    }
}

/// Environment variable with the variant of a test, set in the child process that runs the test's
/// body.
const CHILD_VARIANT: &str = "UPSHIFT_SIGNALS_CHILD";

/// Runs the body of the test `name` in a child process. Returns its standard error.
fn run_in_child(name: &str, variant: &str, variables: &[(&str, &str)]) -> String {
    let output = child(&format!("signals::{name}"))
        .env(CHILD_VARIANT, variant)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success(),
        "{variant}: {}: {stderr}",
        output.status
    );
    stderr
}

/// Returns the variant to run if this process is a child. Limits a child to 120 s.
fn child_variant() -> Option<String> {
    let variant = std::env::var(CHILD_VARIANT).ok()?;
    // SAFETY: `alarm` takes no pointer.
    unsafe { libc::alarm(120) };
    Some(variant)
}

#[test]
fn a_program_that_replaces_the_handler_has_a_cooperative_runtime() {
    if let Some(variant) = child_variant() {
        return run_with_replaced_handler(&variant);
    }
    let Some(_exclusive) = runtime() else { return };
    for variant in ["own", "ignore", "own readiness", "ignore readiness"] {
        let name = "a_program_that_replaces_the_handler_has_a_cooperative_runtime";
        let stderr = run_in_child(name, variant, &[]);
        let lines = stderr
            .lines()
            .filter(|line| line.contains("replaced the handler"));
        assert_eq!(lines.count(), 1, "{variant}: {stderr}");
    }
}

fn run_with_replaced_handler(variant: &str) {
    let driver = if variant.ends_with("readiness") {
        Driver::Readiness
    } else {
        Driver::Auto
    };
    let runtime = builder().driver(driver).build().unwrap();
    handler::replace(if variant.starts_with("own") {
        handler::do_nothing as *const () as usize
    } else {
        libc::SIG_IGN
    });
    runtime.block_on(async {
        for _ in 0..3 {
            let endless = async {
                loop {
                    burn(Duration::from_millis(20));
                    upshift::yield_now().await;
                }
            };
            upshift::spawn(endless, Level::at::<32>()).detach();
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
    // Exits without dropping the runtime, because the coroutines loop forever.
    std::process::exit(0);
}

/// Runs a poll that calls `hold_lock` repeatedly and is suspended within that function, mostly
/// while the function holds a lock. Meanwhile an urgent coroutine calls `need_lock`, which takes
/// the same lock, twice in each of a hundred rounds: once inside `no_suspend` and once outside. All
/// rounds must end in time.
fn assert_progress(hold_lock: impl Fn() + Send + 'static, need_lock: impl Fn() + Send + 'static) {
    let Some(runtime) = runtime() else { return };
    runtime.block_on(async {
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicUsize::new(0));
        let (stopped, began) = (stop.clone(), Instant::now());
        let holder = async move {
            while !stopped.load(SeqCst) && began.elapsed() < 3 * LIMIT {
                hold_lock();
            }
        };
        let holder = upshift::spawn(holder, Level::at::<40>());
        let counted = rounds.clone();
        let urgent = async move {
            for _ in 0..100 {
                time::sleep(Duration::from_millis(1)).await;
                upshift::no_suspend(&need_lock);
                need_lock();
                counted.fetch_add(1, SeqCst);
            }
        };
        upshift::spawn(urgent, Level::at::<0>()).await.unwrap();
        let in_time = began.elapsed() < 3 * LIMIT;
        stop.store(true, SeqCst);
        holder.await.unwrap();
        assert!(
            in_time,
            "only {} of 100 rounds ended in time",
            rounds.load(SeqCst)
        );
    });
    let stats = runtime.handle().preemption_stats();
    assert!(stats.suspensions > 0, "{stats:?}");
}

/// A suspended poll holds the allocator's lock in a process with one heap, from which the runtime
/// allocates large futures.
#[test]
fn a_suspended_poll_may_hold_the_lock_of_the_allocator() {
    let name = "a_suspended_poll_may_hold_the_lock_of_the_allocator";
    if child_variant().is_none() {
        let Some(_exclusive) = runtime() else { return };
        let one_heap = [("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")];
        run_in_child(name, "one heap", &one_heap);
        return;
    }
    // `mallinfo2` holds the lock for milliseconds when there are many free blocks that are not
    // adjacent.
    let mut blocks: Vec<Option<Box<[u8; 1500]>>> =
        (0..60_000).map(|_| Some(Box::new([0; 1500]))).collect();
    for free in blocks.iter_mut().step_by(2) {
        *free = None;
    }
    let need_lock = || {
        drop(std::hint::black_box(vec![0u8; 3000]));
        let large = std::hint::black_box([0u8; 3000]);
        let spawned = upshift::spawn(
            async move { _ = std::hint::black_box(large) },
            Level::at::<0>(),
        );
        spawned.detach();
    };
    // SAFETY: the call has no arguments.
    let hold_lock = || unsafe { _ = std::hint::black_box(libc::mallinfo2()) };
    assert_progress(hold_lock, need_lock);
    drop(blocks);
}

/// A suspended poll holds the lock of the dynamic loader, which a starting thread and a backtrace
/// need as well.
#[test]
fn a_suspended_poll_may_hold_the_lock_of_the_dynamic_loader() {
    unsafe extern "C" fn compute_and_stop(
        _: *mut libc::dl_phdr_info,
        _: libc::size_t,
        _: *mut libc::c_void,
    ) -> libc::c_int {
        burn_cpu_time(Duration::from_millis(1));
        1
    }
    unsafe extern "C" fn stop_at_once(
        _: *mut libc::dl_phdr_info,
        _: libc::size_t,
        _: *mut libc::c_void,
    ) -> libc::c_int {
        1
    }
    // SAFETY: the callback does not use its arguments.
    let hold_lock = || unsafe { _ = libc::dl_iterate_phdr(Some(compute_and_stop), null_mut()) };
    let need_lock = || {
        // SAFETY: the callback does not use its arguments, and a null name stands for the program.
        unsafe {
            libc::dl_iterate_phdr(Some(stop_at_once), null_mut());
            let program = libc::dlopen(null(), libc::RTLD_NOW);
            assert!(!program.is_null());
            libc::dlclose(program);
        }
    };
    assert_progress(hold_lock, need_lock);
}
