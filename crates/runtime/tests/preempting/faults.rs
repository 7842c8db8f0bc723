//! What goes wrong from outside, and what is left behind.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use upshift::{Level, Preemption, Runtime, time};

use crate::{builder, burn, runtime, spin_until};

/// The policy and the real-time priority of a thread of this process; 0 is the caller.
fn policy(tid: libc::pid_t) -> libc::c_int {
    // SAFETY: no pointers.
    unsafe { libc::sched_getscheduler(tid) & !libc::SCHED_RESET_ON_FORK }
}

/// Soon no thread of this process is elevated.
fn assert_nobody_is_elevated() {
    let began = Instant::now();
    loop {
        let elevated: Vec<_> = threads()
            .into_iter()
            .filter(|tid| policy(*tid) == libc::SCHED_FIFO)
            .collect();
        if elevated.is_empty() {
            return;
        }
        assert!(began.elapsed() < crate::LIMIT, "{elevated:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn threads() -> Vec<libc::pid_t> {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .collect()
}

#[test]
fn nothing_stays_elevated_when_the_runtime_is_gone() {
    let Some(runtime) = runtime() else { return };
    runtime.block_on(async {
        assert_eq!(policy(0), libc::SCHED_FIFO, "the thread of block_on");
        let mut policies = Vec::new();
        for _ in 0..10 {
            let long = upshift::spawn(
                async {
                    let before = policy(0);
                    burn(Duration::from_millis(3));
                    (before, policy(0))
                },
                Level::at::<40>(),
            );
            time::sleep(Duration::from_millis(1)).await;
            policies.push(long.await.unwrap());
        }
        // While the machine stands still a poll becomes a very long one.
        let expected = (libc::SCHED_FIFO, libc::SCHED_FIFO);
        assert!(policies.contains(&expected), "{policies:?}");
        // Who goes on for very long does so at ordinary priority.
        let ordinary = Arc::new(AtomicBool::new(false));
        let set = ordinary.clone();
        let endless = upshift::spawn(
            async move {
                let began = Instant::now();
                while policy(0) != libc::SCHED_OTHER && began.elapsed() < crate::LIMIT {
                    burn(Duration::from_millis(1));
                }
                set.store(true, Ordering::Relaxed);
                policy(0)
            },
            Level::at::<40>(),
        );
        // Something more urgent, again and again.
        crate::reached(&ordinary).await;
        assert_eq!(endless.await.unwrap(), libc::SCHED_OTHER);
        let next = upshift::spawn(async { policy(0) }, Level::at::<40>());
        assert_eq!(next.await.unwrap(), libc::SCHED_FIFO);
    });
    assert_eq!(policy(0), libc::SCHED_OTHER, "outside of block_on");
    drop(runtime);
    assert_nobody_is_elevated();
}

#[test]
fn a_child_process_is_not_elevated() {
    let Some(runtime) = runtime() else { return };
    let output = runtime.block_on(async {
        let child = async {
            burn(Duration::from_millis(1));
            // The fields of interest of `stat`: rt_priority and policy.
            Command::new("cut")
                .args(["-d", " ", "-f", "40,41", "/proc/self/stat"])
                .output()
        };
        upshift::spawn(child, Level::at::<40>()).await.unwrap()
    });
    let Ok(output) = output else {
        crate::skipped(&"there is no `cut`");
        return;
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0 0");
}

#[test]
fn threads_that_are_moved_to_other_cpus_stay_correct() {
    let Some(runtime) = runtime() else { return };
    // Somebody moves every thread of the process around, at random moments.
    let stop = Arc::new(AtomicBool::new(false));
    let seen = stop.clone();
    let mover = std::thread::spawn(move || {
        // SAFETY: all-zero sets are valid; the CPUs are within them.
        let sets = unsafe {
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(0, &mut one);
            let mut all: libc::cpu_set_t = std::mem::zeroed();
            for cpu in 0..64 {
                libc::CPU_SET(cpu, &mut all);
            }
            [one, all]
        };
        let mut round = 0usize;
        while !seen.load(Ordering::Relaxed) {
            for tid in threads() {
                let set = &sets[round % 2];
                // SAFETY: a pointer to a set of the size given.
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

/// Drops CAP_SYS_NICE from every thread that does it for itself.
fn drop_rights() {
    const PR_CAPBSET_DROP: libc::c_int = 24;
    let header = [0x2008_0522u32, 0];
    let mut data = [0u32; 6];
    // SAFETY: the layouts of version 3 of the capability calls: header of two words, data of six.
    unsafe {
        libc::prctl(PR_CAPBSET_DROP, 23, 0, 0, 0);
        libc::syscall(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr());
        data[0] &= !(1 << 23);
        data[1] &= !(1 << 23);
        libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr());
    }
}

/// A process of its own, in which `name` of [`child`] runs; its exit status.
fn in_a_child(name: &str) -> Option<std::process::ExitStatus> {
    let test = std::env::current_exe().unwrap();
    let mut command = Command::new(test);
    command
        .args(["--exact", "faults::child", "--nocapture"])
        .env("UPSHIFT_PREEMPT_CHILD", name);
    command.status().ok()
}

/// Not a test: the body of the children.
#[test]
fn child() {
    let Ok(name) = std::env::var("UPSHIFT_PREEMPT_CHILD") else {
        return;
    };
    // SAFETY: no pointers.
    unsafe { libc::alarm(150) };
    match name.as_str() {
        "without rights" => {
            drop_rights();
            let required = builder().build();
            let error = required.expect_err("there are no rights");
            let text = error.to_string();
            assert!(
                text.contains("CAP_SYS_NICE") || text.contains("RTPRIO"),
                "{text}"
            );
            let preferred = builder().preemption(Preemption::Preferred).build().unwrap();
            assert_eq!(preferred.block_on(async { 7 }), 7);
            assert_eq!(preferred.handle().preemption_stats().vcpus, 0);
        }
        "rights lost" => {
            let runtime = builder().build().unwrap();
            let flag = Arc::new(AtomicBool::new(false));
            runtime.block_on(async {
                for _ in 0..50 {
                    // Seat by seat they go.
                    upshift::spawn(
                        async {
                            drop_rights();
                            burn(Duration::from_millis(1));
                        },
                        Level::at::<40>(),
                    )
                    .detach();
                    time::sleep(Duration::from_millis(1)).await;
                }
                let (set, seen) = (flag.clone(), flag.clone());
                let long = upshift::spawn(async move { spin_until(&seen) }, Level::at::<40>());
                upshift::spawn(
                    async move { set.store(true, Ordering::Relaxed) },
                    Level::at::<40>(),
                )
                .await
                .unwrap();
                assert!(long.await.unwrap());
            });
        }
        "endless at the end" => {
            let runtime: Runtime = builder().build().unwrap();
            runtime.block_on(async {
                upshift::spawn(
                    async {
                        // Longer than the runtime waits, and not for ever.
                        burn(Duration::from_secs(20));
                    },
                    Level::at::<40>(),
                )
                .detach();
                time::sleep(Duration::from_millis(5)).await;
            });
            drop(runtime);
            assert_nobody_is_elevated();
            std::process::exit(33);
        }
        other => panic!("no child is called {other}"),
    }
}

#[test]
fn without_rights_preemption_is_refused_or_goes_without() {
    let status = in_a_child("without rights").unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn rights_lost_while_running_cost_speed_only() {
    let Some(_alone) = runtime() else { return };
    let status = in_a_child("rights lost").unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn a_runtime_does_not_wait_for_ever_for_a_poll_that_does_not_end() {
    let Some(_alone) = runtime() else { return };
    let status = in_a_child("endless at the end").unwrap();
    assert_eq!(status.code(), Some(33), "{status}");
}

#[test]
fn more_vcpus_than_cpus_are_refused() {
    let error = builder()
        .vcpus(10_000)
        .build()
        .err()
        .map(|error| error.to_string());
    if let Some(text) = error {
        assert!(text.contains("vCPUs on"), "{text}");
    }
}

#[test]
fn blocking_functions_run_on_all_cpus_and_are_not_elevated() {
    let Some(runtime) = runtime() else { return };
    let cpus = || std::thread::available_parallelism().unwrap().get();
    let outside = cpus();
    runtime.block_on(async {
        let blocking = async move {
            let inside = cpus();
            let there = upshift::spawn_blocking(move || (cpus(), policy(0))).await;
            (inside, there.unwrap())
        };
        let (inside, there) = upshift::spawn(blocking, Level::at::<40>()).await.unwrap();
        assert_eq!(inside, 1, "a vCPU has one CPU");
        assert_eq!(there, (outside, libc::SCHED_OTHER));
    });
}

#[test]
fn a_thread_for_a_blocking_function_starts_beside_polls_that_take_the_whole_cpu() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return crate::skipped(&"needs two CPUs");
    }
    // Short polls, always elevated: who is ordinary on this CPU runs when the kernel throttles SCHED_FIFO.
    let start = || {
        let runtime = runtime()?;
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let took = runtime.block_on(async {
            let busy = upshift::spawn(
                async move {
                    let began = Instant::now();
                    while !seen.load(Ordering::Relaxed) && began.elapsed() < crate::LIMIT {
                        burn(Duration::from_micros(500));
                        upshift::yield_now().await;
                    }
                },
                Level::at::<40>(),
            );
            time::sleep(Duration::from_millis(20)).await;
            let asked = Instant::now();
            let started = upshift::spawn_blocking(Instant::now).await.unwrap();
            stop.store(true, Ordering::Relaxed);
            busy.await.unwrap();
            started.duration_since(asked)
        });
        Some(took)
    };
    let Some(first) = start() else { return };
    let best = (0..4).filter_map(|_| start()).fold(first, Duration::min);
    let period = std::fs::read_to_string("/proc/sys/kernel/sched_rt_period_us").unwrap();
    let period = Duration::from_micros(period.trim().parse().unwrap());
    assert!(best < period / 8, "{best:?}");
}
