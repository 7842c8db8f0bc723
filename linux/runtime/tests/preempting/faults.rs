//! Tests of preemption under faults (missing rights, changed CPU affinities, long polls), and of
//! the state in which a runtime leaves the process's threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use upshift::{Level, Runtime, time};

use crate::{builder, burn, runtime, spin_until};

/// Returns the policy of a thread of this process, or -1 if the thread has ended.
fn policy(tid: libc::pid_t) -> libc::c_int {
    // SAFETY: `sched_getscheduler` takes no pointer.
    match unsafe { libc::sched_getscheduler(tid) } {
        -1 => -1,
        policy => policy & !libc::SCHED_RESET_ON_FORK,
    }
}

/// Asserts that no thread except the watchers, which poll nothing, has a real-time policy.
fn assert_no_thread_is_elevated() {
    for tid in threads() {
        let name = std::fs::read_to_string(format!("/proc/self/task/{tid}/comm"));
        if name.is_ok_and(|name| !name.contains("/watch")) {
            // A thread may end after its name was read.
            assert!(
                matches!(policy(tid), libc::SCHED_OTHER | libc::SCHED_BATCH | -1),
                "thread {tid} has a real-time policy"
            );
        }
    }
}

fn threads() -> Vec<libc::pid_t> {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .collect()
}

#[test]
fn polling_threads_are_never_elevated() {
    let Some(runtime) = runtime() else { return };
    let flag = Arc::new(AtomicBool::new(false));
    let was_suspended = runtime.block_on(async {
        for _ in 0..20 {
            let long = upshift::spawn(async { burn(Duration::from_millis(3)) }, Level::at::<40>());
            time::sleep(Duration::from_millis(1)).await;
            assert_no_thread_is_elevated();
            long.await.unwrap();
        }
        // Whether one of those polls was suspended depends on the machine. The next poll spins
        // until the main coroutine, for which it must be suspended, has set the flag.
        let is_set = flag.clone();
        let long = upshift::spawn(async move { spin_until(&is_set) }, Level::at::<40>());
        time::sleep(Duration::from_millis(1)).await;
        assert_no_thread_is_elevated();
        flag.store(true, Ordering::Relaxed);
        long.await.unwrap()
    });
    assert!(was_suspended);
}

#[test]
fn a_dropped_runtime_leaves_the_thread_of_block_on_unchanged() {
    let before = attributes();
    let Some(runtime) = runtime() else { return };
    runtime.block_on(async { time::sleep(Duration::from_millis(1)).await });
    // The thread may be bound to the vCPU's CPU until the runtime is dropped.
    assert_eq!(attributes().0, before.0);
    drop(runtime);
    assert_eq!(attributes(), before);
}

/// Returns the words of the calling thread's `sched_attr`, and the number of its CPUs.
fn attributes() -> ([u64; 6], usize) {
    let mut words = [0u64; 6];
    let size = size_of_val(&words);
    // SAFETY: `words` is a live local of `size` bytes.
    unsafe { libc::syscall(libc::SYS_sched_getattr, 0, words.as_mut_ptr(), size, 0) };
    (words, std::thread::available_parallelism().unwrap().get())
}

#[test]
fn threads_that_are_moved_to_other_cpus_lose_no_work() {
    let Some(runtime) = runtime() else { return };
    // The mover changes the CPUs of all threads of the runtime, and of this thread, every 300 µs,
    // at arbitrary points of their work.
    // SAFETY: `gettid` takes no pointer.
    let this_thread = unsafe { libc::gettid() };
    let stop = Arc::new(AtomicBool::new(false));
    let mover_stop = stop.clone();
    let mover = std::thread::spawn(move || {
        // SAFETY: zeroes are a valid `cpu_set_t`, and the CPUs are within its size.
        let sets = unsafe {
            let mut first_cpu: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(0, &mut first_cpu);
            let mut all_cpus: libc::cpu_set_t = std::mem::zeroed();
            for cpu in 0..64 {
                libc::CPU_SET(cpu, &mut all_cpus);
            }
            [first_cpu, all_cpus]
        };
        let mut round = 0usize;
        while !mover_stop.load(Ordering::Relaxed) {
            let is_runtime_thread = |&tid: &libc::pid_t| {
                let name = std::fs::read_to_string(format!("/proc/self/task/{tid}/comm"));
                tid == this_thread || name.is_ok_and(|name| name.starts_with("upshift"))
            };
            for tid in threads().into_iter().filter(is_runtime_thread) {
                let set = &sets[round % 2];
                // SAFETY: `set` is a live set of the given size.
                unsafe { libc::sched_setaffinity(tid, size_of_val(set), set) };
            }
            round += 1;
            std::thread::sleep(Duration::from_micros(300));
        }
    });
    let total = Arc::new(AtomicU64::new(0));
    runtime.block_on(async {
        let handles: Vec<_> = (0..300u64)
            .map(|n| {
                let total = total.clone();
                let work = async move {
                    for _ in 0..5 {
                        burn(Duration::from_micros(if n % 3 == 0 { 600 } else { 20 }));
                        upshift::spawn(async {}, Level::at::<40>()).await.unwrap();
                        time::sleep(Duration::from_micros(100)).await;
                    }
                    total.fetch_add(n, Ordering::Relaxed);
                };
                upshift::spawn(work, Level::at::<40>())
            })
            .collect();
        for handle in handles {
            handle.await.unwrap();
        }
    });
    stop.store(true, Ordering::Relaxed);
    mover.join().unwrap();
    assert_eq!(total.load(Ordering::Relaxed), 300 * 299 / 2);
}

/// Changes to an unprivileged user, if the process is privileged.
fn become_nobody() {
    // SAFETY: the only pointer is null, for an empty list of groups.
    unsafe {
        if libc::geteuid() == 0 {
            libc::setgroups(0, std::ptr::null());
            assert_eq!(libc::setgid(65534), 0);
            assert_eq!(libc::setuid(65534), 0);
        }
    }
}

/// Runs the body `name` of [`child`] in a child process. Returns its exit status.
fn run_in_child(name: &str) -> Option<std::process::ExitStatus> {
    let mut command = crate::child::child("faults::child");
    command.env("UPSHIFT_PREEMPT_CHILD", name).status().ok()
}

/// Exit code of a child whose `drop(runtime)` has returned before the alarm.
const RUNTIME_DROPPED: i32 = 33;

/// Not a test, but the entry point of the child processes.
#[test]
fn child() {
    let Ok(name) = std::env::var("UPSHIFT_PREEMPT_CHILD") else {
        return;
    };
    // SAFETY: `alarm` takes no pointer.
    unsafe { libc::alarm(150) };
    match name.as_str() {
        "unprivileged" => {
            become_nobody();
            let runtime = builder().build().expect("preemption needs no privileges");
            let flag = Arc::new(AtomicBool::new(false));
            runtime.block_on(async {
                let (setter, is_set) = (flag.clone(), flag.clone());
                let long = upshift::spawn(async move { spin_until(&is_set) }, Level::at::<40>());
                upshift::spawn(
                    async move { setter.store(true, Ordering::Relaxed) },
                    Level::at::<40>(),
                )
                .await
                .unwrap();
                assert!(long.await.unwrap());
            });
        }
        "long poll at the end" => {
            let runtime: Runtime = builder().build().unwrap();
            runtime.block_on(async {
                upshift::spawn(
                    async {
                        // The poll lasts longer than the drop of a runtime waits for it, but ends,
                        // so that a failing test ends, too.
                        burn(Duration::from_secs(20));
                    },
                    Level::at::<40>(),
                )
                .detach();
                time::sleep(Duration::from_millis(5)).await;
            });
            drop(runtime);
            assert_no_thread_is_elevated();
            std::process::exit(RUNTIME_DROPPED);
        }
        other => panic!("unknown child {other}"),
    }
}

#[test]
fn an_unprivileged_user_has_preemption() {
    // Keeps other tests from running meanwhile, and skips this one if there is no preemption here.
    let Some(_exclusive) = runtime() else { return };
    let status = run_in_child("unprivileged").unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn dropping_a_runtime_does_not_wait_for_a_long_poll() {
    // Keeps other tests from running meanwhile, and skips this one if there is no preemption here.
    let Some(_exclusive) = runtime() else { return };
    let status = run_in_child("long poll at the end").unwrap();
    assert_eq!(status.code(), Some(RUNTIME_DROPPED), "{status}");
}

#[test]
fn blocking_functions_run_on_all_cpus() {
    let Some(runtime) = runtime() else { return };
    let cpus = || std::thread::available_parallelism().unwrap().get();
    let outside = cpus();
    runtime.block_on(async {
        let blocking = async move {
            let inside = cpus();
            let in_function = upshift::spawn_blocking(cpus).await;
            (inside, in_function.unwrap())
        };
        let (inside, in_function) = upshift::spawn(blocking, Level::at::<40>()).await.unwrap();
        assert_eq!(inside, 1, "the vCPU's thread has several CPUs");
        assert_eq!(in_function, outside);
    });
}
