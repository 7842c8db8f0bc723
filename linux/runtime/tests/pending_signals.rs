//! Threads are interrupted even if the user may queue no more signals. In a process of its own,
//! since the limit is for all of it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use upshift::{Level, Preemption, Runtime, time};

/// Longest time that a loop spins.
const LIMIT: Duration = Duration::from_secs(10);

/// Sets the limit to 0: the queue takes no more signals.
fn exhaust() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a pointer to a local.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_SIGPENDING, &raw const none) };
    assert_eq!(set, 0);
    // SAFETY: no pointers; the signal would be blocked.
    let refused = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut all);
        libc::sigaddset(&raw mut all, libc::SIGRTMIN());
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        let (process, thread) = (libc::getpid(), libc::gettid());
        libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGRTMIN())
    };
    assert_eq!(refused, -1, "the limit has no effect");
}

/// Spins until the count has come so far.
fn spins_until(count: &AtomicUsize, goal: usize) -> bool {
    let began = Instant::now();
    while count.load(SeqCst) < goal {
        if began.elapsed() > LIMIT {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

#[test]
fn polls_are_suspended_and_served_without_a_place_for_a_signal() {
    // SAFETY: no pointers. A test that hangs is ended.
    unsafe { libc::alarm(120) };
    let preemptible = Runtime::builder()
        .vcpus(1)
        .preemption(Preemption::Required)
        .build();
    let reachable = Runtime::builder().vcpus(2).build().unwrap();
    // Its threads are there.
    reachable.block_on(async { time::sleep(Duration::from_millis(20)).await });
    match &preemptible {
        Ok(preemptible) => suspends(preemptible),
        Err(error) => println!("skipped: {error}"),
    }
    let (built, is_built) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    let other = thread::spawn(move || {
        let builder = Runtime::builder().vcpus(1);
        let runtime = builder.preemption(Preemption::Required).build();
        built.send(()).unwrap();
        may_go.recv().unwrap();
        if let Ok(runtime) = runtime {
            leaves_nothing_behind(&runtime);
        }
    });
    is_built.recv().unwrap();
    exhaust();
    go.send(()).unwrap();
    other.join().unwrap();
    // A build fails if the threads of the runtime could not be interrupted.
    let builder = Runtime::builder().vcpus(1);
    assert!(builder.preemption(Preemption::Required).build().is_err());
    let builder = Runtime::builder().vcpus(1);
    let cooperative = builder.preemption(Preemption::Preferred).build().unwrap();
    cooperative.block_on(async { time::sleep(Duration::from_millis(1)).await });
    if let Ok(preemptible) = &preemptible {
        suspends(preemptible);
    }
    serves(&reachable);
}

/// The thread has built the runtime and has never polled for it. The coroutine borrows from the
/// call: it is dropped when the call returns.
fn leaves_nothing_behind(runtime: &Runtime) {
    struct Gone<'a>(&'a Cell<bool>);
    impl Drop for Gone<'_> {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    let is_gone = Cell::new(false);
    let gone = Gone(&is_gone);
    let run = || {
        runtime.block_on(async move {
            time::sleep(Duration::from_millis(1)).await;
            drop(gone)
        })
    };
    let ran = catch_unwind(AssertUnwindSafe(run));
    assert!(is_gone.get(), "it is left with what it has borrowed");
    assert!(
        ran.is_ok(),
        "a thread that has built a runtime can poll for it"
    );
}

/// A poll of level 40 spins until a coroutine of level 0, which sleeps and reads, has run some
/// times.
fn suspends(runtime: &Runtime) {
    let in_time = runtime.block_on(async {
        let rounds = Arc::new(AtomicUsize::new(0));
        let counted = rounds.clone();
        let urgent = upshift::spawn(
            async move {
                let (mut reader, mut writer) = upshift::io::pipe().unwrap();
                for _ in 0..20 {
                    use upshift::io::{AsyncReadExt, AsyncWriteExt};
                    time::sleep(Duration::from_millis(1)).await;
                    writer.write_all(b"x").await.unwrap();
                    reader.read_exact(&mut [0]).await.unwrap();
                    counted.fetch_add(1, SeqCst);
                }
            },
            Level::at::<0>(),
        );
        let spins = upshift::spawn(async move { spins_until(&rounds, 20) }, Level::at::<40>());
        let in_time = spins.await.unwrap();
        urgent.await.unwrap();
        in_time
    });
    assert!(in_time, "it was not suspended");
}

/// A byte arrives at the ring of a vCPU that computes until the waiting coroutine, which another
/// vCPU can poll, has the byte.
fn serves(runtime: &Runtime) {
    let in_time = runtime.block_on(async {
        let has = Arc::new(AtomicBool::new(false));
        let set = has.clone();
        let (mut reader, writer) = upshift::io::pipe().unwrap();
        let waits = upshift::spawn(
            async move {
                use upshift::io::AsyncReadExt;
                reader.read_exact(&mut [0]).await.unwrap();
                set.store(true, SeqCst);
            },
            Level::at::<10>(),
        );
        time::sleep(Duration::from_millis(5)).await;
        let writes = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            use std::io::Write;
            let fd = writer.into_owned_fd().unwrap();
            std::fs::File::from(fd).write_all(b"x").unwrap();
        });
        let began = Instant::now();
        while !has.load(SeqCst) && began.elapsed() < LIMIT {
            std::hint::spin_loop();
        }
        let in_time = has.load(SeqCst);
        writes.join().unwrap();
        waits.await.unwrap();
        in_time
    });
    assert!(in_time, "the byte was not fetched");
}
