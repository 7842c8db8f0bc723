//! Measures the wake-up delay of a thread on an idle CPU while another CPU computes. This delay is
//! the lower bound for `conserve`, because no runtime that sleeps in the kernel wakes up sooner
//! than a thread.
//!
//! The *neighbour* is bound to CPU 0, the *other* thread to CPU 1. The other thread sleeps until an
//! instant (`clock_nanosleep`, or `epoll_wait` for a timerfd), waits for the neighbour (`futex`),
//! or waits for a byte that a third thread writes (`read`, or `epoll_wait`).

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bench_kit::conserve::{COMPUTE, ITERATIONS, SETTLE, TIMER, WRITE, print_samples};

/// The system call with which the other thread waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitMethod {
    /// A system call that waits for this kind of event only.
    Alone,
    /// `epoll_wait`, as in a runtime.
    Epoll,
}

pub(crate) fn conserve() {
    for (method, peer) in [
        (WaitMethod::Alone, "a thread"),
        (WaitMethod::Epoll, "a thread, epoll"),
    ] {
        print_samples("timer", peer, &samples(|| timer(method)));
        if method == WaitMethod::Alone {
            print_samples("wake", peer, &samples(wake));
        }
        print_samples("data", peer, &samples(|| data(method)));
    }
}

fn samples(mut run: impl FnMut() -> Duration) -> Vec<u128> {
    (0..=ITERATIONS).map(|_| run().as_nanos()).skip(1).collect()
}

fn bind(cpu: usize) {
    // SAFETY: an all-zero set is a valid empty set. The pointer is valid, because the call only
    // reads this local; the call changes only the calling thread.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    assert_eq!(result, 0, "CPUs 0 and 1 are needed");
}

/// Runs `other` in a thread on CPU 1, beside the neighbour on CPU 0, which calls `release` and
/// computes. One of the two threads reports the instant from which the other thread is ready.
/// Returns the delay from this instant until the other thread runs.
fn wake_delay(
    other: impl FnOnce() -> Times + Send + 'static,
    release: impl FnOnce(&thread::Thread) -> Option<Instant> + Send + 'static,
) -> Duration {
    let other = thread::spawn(move || {
        bind(1);
        other()
    });
    let thread = other.thread().clone();
    let neighbour = thread::spawn(move || {
        bind(0);
        thread::sleep(SETTLE);
        let ready = release(&thread);
        let start_time = Instant::now();
        while start_time.elapsed() < COMPUTE {
            std::hint::spin_loop();
        }
        ready
    });
    let times = other.join().expect("the thread does not panic");
    let ready = neighbour.join().expect("the thread does not panic");
    let ready = ready
        .or(times.ready)
        .expect("one thread reports the instant");
    times.ran.saturating_duration_since(ready)
}

/// Times of the other thread.
struct Times {
    /// Instant from which the thread is ready, if the thread knows it.
    ready: Option<Instant>,
    /// Instant at which the thread runs.
    ran: Instant,
}

fn timer(method: WaitMethod) -> Duration {
    let other = move || {
        let due = Instant::now() + TIMER;
        match method {
            WaitMethod::Alone => thread::sleep(TIMER),
            WaitMethod::Epoll => epoll_wait(&timerfd(TIMER)),
        }
        Times {
            ready: Some(due),
            ran: Instant::now(),
        }
    };
    wake_delay(other, |_| None)
}

fn wake() -> Duration {
    let (sender, receiver) = mpsc::channel();
    let other = move || {
        thread::park();
        let ran = Instant::now();
        Times {
            ready: receiver.recv().ok(),
            ran,
        }
    };
    wake_delay(other, move |other| {
        let now = Instant::now();
        other.unpark();
        let _ = sender.send(now);
        Some(now)
    })
}

fn data(method: WaitMethod) -> Duration {
    let (mut outside, mut inside) = UnixStream::pair().expect("a pair of sockets");
    let (sender, receiver) = mpsc::channel();
    let other = move || {
        if method == WaitMethod::Epoll {
            epoll_wait(&inside);
        }
        let _ = inside.read(&mut [0]);
        let ran = Instant::now();
        Times {
            ready: receiver.recv().ok(),
            ran,
        }
    };
    wake_delay(other, move |_| {
        thread::spawn(move || {
            bind(1);
            thread::sleep(WRITE);
            let now = Instant::now();
            let _ = outside.write_all(b"!");
            let _ = sender.send(now);
        });
        None
    })
}

/// Returns a timer that expires after `time`.
fn timerfd(time: Duration) -> std::fs::File {
    use std::os::fd::FromRawFd;
    let expiry = libc::itimerspec {
        it_interval: libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        },
        it_value: libc::timespec {
            tv_sec: 0,
            tv_nsec: time.subsec_nanos().into(),
        },
    };
    // SAFETY: the descriptor has just been created, and nothing else owns it.
    let timer = unsafe {
        let timer = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC);
        assert!(timer >= 0, "timerfd_create failed");
        std::fs::File::from_raw_fd(timer)
    };
    // SAFETY: the pointer is valid, because the call only reads `expiry`, an initialized local. A
    // null pointer is permitted; the call then does not return the previous value.
    let result = unsafe {
        libc::timerfd_settime(
            timer.as_raw_fd(),
            0,
            &raw const expiry,
            std::ptr::null_mut(),
        )
    };
    assert_eq!(result, 0, "the timer can be set");
    timer
}

fn epoll_wait(fd: &impl AsRawFd) {
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 0,
    };
    // SAFETY: the pointers are valid, because the calls only access `event`, an initialized local.
    // `fd` is open.
    unsafe {
        let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event);
        libc::epoll_wait(epoll, &raw mut event, 1, -1);
        libc::close(epoll);
    }
}
