//! Tests that threads are interrupted even if the user's queue of pending signals is full. This
//! file has its own process, because the limit applies to all threads of a process.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use upshift::{Level, Preemption, Runtime, time};

/// Longest time that a loop spins.
const LIMIT: Duration = Duration::from_secs(10);

/// Sets RLIMIT_SIGPENDING to 0, so that no signal can be queued.
fn exhaust_pending_signals() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `none` is a live local.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_SIGPENDING, &raw const none) };
    assert_eq!(result, 0);
    // SAFETY: the pointers are to a local, and the signal is blocked.
    let refused = unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGRTMIN());
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
        let (process, thread) = (libc::getpid(), libc::gettid());
        libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGRTMIN())
    };
    assert_eq!(refused, -1, "the limit has no effect");
}

/// Spins until the counter has reached `goal`. Returns false if that takes longer than [`LIMIT`].
fn spin_until(count: &AtomicUsize, goal: usize) -> bool {
    let start = Instant::now();
    while count.load(SeqCst) < goal {
        if start.elapsed() > LIMIT {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

#[test]
fn polls_are_interrupted_although_no_signal_can_be_queued() {
    // SAFETY: `alarm` takes no pointer.
    unsafe { libc::alarm(120) };
    let preemptible = Runtime::builder()
        .vcpus(1)
        .preemption(Preemption::Required)
        .build();
    let reachable = Runtime::builder().vcpus(2).build().unwrap();
    // After this wait, the threads of the runtime run.
    reachable.block_on(async { time::sleep(Duration::from_millis(20)).await });
    match &preemptible {
        Ok(preemptible) => check_suspension(preemptible),
        Err(error) => println!("skipped: {error}"),
    }
    let (built_sender, built_receiver) = mpsc::channel();
    let (permission_sender, permission_receiver) = mpsc::channel();
    let other = thread::spawn(move || {
        let builder = Runtime::builder().vcpus(1);
        let runtime = builder.preemption(Preemption::Required).build();
        built_sender.send(()).unwrap();
        permission_receiver.recv().unwrap();
        if let Ok(runtime) = runtime {
            check_first_poll(&runtime);
        }
    });
    built_receiver.recv().unwrap();
    exhaust_pending_signals();
    permission_sender.send(()).unwrap();
    other.join().unwrap();
    // A build fails if the threads of the runtime could not be interrupted.
    let builder = Runtime::builder().vcpus(1);
    assert!(builder.preemption(Preemption::Required).build().is_err());
    let builder = Runtime::builder().vcpus(1);
    let cooperative = builder.preemption(Preemption::Preferred).build().unwrap();
    cooperative.block_on(async { time::sleep(Duration::from_millis(1)).await });
    if let Ok(preemptible) = &preemptible {
        check_suspension(preemptible);
    }
    check_interruption(&reachable);
}

/// Checks the first `block_on` of a thread that built the runtime before the limit was set. The
/// coroutine borrows from the caller, so it must be dropped before the call returns.
fn check_first_poll(runtime: &Runtime) {
    struct SetOnDrop<'a>(&'a Cell<bool>);
    impl Drop for SetOnDrop<'_> {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    let is_dropped = Cell::new(false);
    let value = SetOnDrop(&is_dropped);
    let run = || {
        runtime.block_on(async move {
            time::sleep(Duration::from_millis(1)).await;
            drop(value)
        })
    };
    let ran = catch_unwind(AssertUnwindSafe(run));
    assert!(is_dropped.get(), "the coroutine outlived its borrow");
    assert!(ran.is_ok(), "block_on panicked");
}

/// Checks that a poll of level 40 is suspended. The poll spins until a coroutine of level 0, which
/// sleeps and reads, has run 20 times.
fn check_suspension(runtime: &Runtime) {
    let in_time = runtime.block_on(async {
        let rounds = Arc::new(AtomicUsize::new(0));
        let rounds_of_urgent = rounds.clone();
        let urgent = upshift::spawn(
            async move {
                let (mut reader, mut writer) = upshift::io::pipe().unwrap();
                for _ in 0..20 {
                    use upshift::io::{AsyncReadExt, AsyncWriteExt};
                    time::sleep(Duration::from_millis(1)).await;
                    writer.write_all(b"x").await.unwrap();
                    reader.read_exact(&mut [0]).await.unwrap();
                    rounds_of_urgent.fetch_add(1, SeqCst);
                }
            },
            Level::at::<0>(),
        );
        let spinner = upshift::spawn(async move { spin_until(&rounds, 20) }, Level::at::<40>());
        let in_time = spinner.await.unwrap();
        urgent.await.unwrap();
        in_time
    });
    assert!(in_time, "the poll was not suspended");
}

/// Checks that a poll is interrupted for its vCPU's ring. The poll computes until another coroutine
/// has received a byte, which arrives at that ring meanwhile. The other vCPU can poll that
/// coroutine.
fn check_interruption(runtime: &Runtime) {
    let in_time = runtime.block_on(async {
        let has_byte = Arc::new(AtomicBool::new(false));
        let setter = has_byte.clone();
        let (mut reader, writer) = upshift::io::pipe().unwrap();
        let waiter = upshift::spawn(
            async move {
                use upshift::io::AsyncReadExt;
                reader.read_exact(&mut [0]).await.unwrap();
                setter.store(true, SeqCst);
            },
            Level::at::<10>(),
        );
        time::sleep(Duration::from_millis(5)).await;
        let writer_thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            use std::io::Write;
            let fd = writer.into_owned_fd().unwrap();
            std::fs::File::from(fd).write_all(b"x").unwrap();
        });
        let start = Instant::now();
        while !has_byte.load(SeqCst) && start.elapsed() < LIMIT {
            std::hint::spin_loop();
        }
        let in_time = has_byte.load(SeqCst);
        writer_thread.join().unwrap();
        waiter.await.unwrap();
        in_time
    });
    assert!(in_time, "the byte was not received during the poll");
}
