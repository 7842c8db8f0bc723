//! A preemptive server that was published with the priority elevation trick (Yasukata and Ishiguro,
//! APSys 2024), reproduced from its design on `upshift-elevate`. It serves requests that burn CPU
//! time over ordinary sockets, on one CPU, with all threads in SCHED_FIFO.
//!
//! | thread | priority | does |
//! |---|---|---|
//! | dispatcher | 2 | receives, starts an idle worker, resumes preempted workers in turn, replies |
//! | 128 workers | 1, elevated 3 | compute; an elevated worker runs until the queue is empty |
//! | switcher | 4 | demotes the worker whose timer, armed before each request, expires |
//!
//! The numbers of workers and of queued requests, and the order of the steps in a round of the
//! dispatcher, are as published.
//!
//! Differences: the slice is 100 µs instead of 5 µs. On a virtual machine a timer costs about 20
//! µs, so a worker with a slice of 5 µs would compute nothing, and a long request would never end.
//! An idle worker sleeps in a futex, whereas the published worker yields. An idle dispatcher sleeps
//! in `epoll_wait`, whereas the published dispatcher polls its network card. An idle server
//! therefore leaves the CPU to other programs, and an idle worker is started by a wake-up instead
//! of an elevation; each is one system call. If the queue is full, requests stay in their socket.
//! Threads sleep while they wait for the mutex of a queue, so a worker may be demoted while it
//! holds one. The trick has no levels; a reply repeats the level of its request.

mod dispatcher;
mod worker;

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;

use bench_kit::server::{Args, listen, parse_args_for};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use upshift_elevate::{Elevator, Priority};
use upshift_load::Burner;
use upshift_load::spin::Request;

use worker::Worker;

/// Largest number of preempted requests, and of requests that wait for a worker.
const WORKERS: usize = 128;
/// The slice, after which a worker that has not ended its request yields the CPU to the dispatcher:
/// five times the cost of a timer on a virtual machine.
const QUANTUM_NS: i64 = 100_000;

const DEMOTED: Priority = Priority::of::<1>();
const DISPATCHER: Priority = Priority::of::<2>();
const ELEVATED: Priority = Priority::of::<3>();
const SWITCHER: Priority = Priority::of::<4>();

/// A request, with the number of its connection.
type Job = (usize, Request);

struct Shared {
    requests: Mutex<VecDeque<Job>>,
    served: Mutex<Vec<Job>>,
    /// Index of the running worker, or [`WORKERS`].
    current: AtomicUsize,
    timer: OwnedFd,
    workers: Vec<Worker>,
    burner: Burner,
}

fn main() -> io::Result<()> {
    let args: Args<()> = parse_args_for(&[("spin", ())], &["default"]);
    let burner = Burner::calibrate();
    pin_to_one_cpu()?;
    let elevator = Elevator::new()?;
    let shared = Arc::new(Shared {
        requests: Mutex::default(),
        served: Mutex::default(),
        current: WORKERS.into(),
        timer: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?,
        workers: (0..WORKERS).map(|_| Worker::default()).collect(),
        burner,
    });
    let start_barrier = Arc::new(Barrier::new(WORKERS + 2));
    for number in 0..=WORKERS {
        let (shared, elevator, start_barrier) =
            (shared.clone(), elevator.clone(), start_barrier.clone());
        thread::spawn(move || {
            let priority = if number < WORKERS { ELEVATED } else { SWITCHER };
            let elevated = elevator.elevate_current(priority).unwrap_or_else(|error| {
                // Without the right to use SCHED_FIFO there is nothing to measure.
                eprintln!("peer-trick: {error}");
                std::process::exit(1)
            });
            match shared.workers.get(number) {
                Some(worker) => {
                    worker.introduce(elevated);
                    start_barrier.wait();
                    worker::serve(&shared, worker)
                }
                None => {
                    start_barrier.wait();
                    worker::switch(&shared)
                }
            }
        });
    }
    start_barrier.wait();
    let listener = listen(&args)?;
    let _elevated = elevator
        .elevate_current(DISPATCHER)
        .map_err(io::Error::other)?;
    dispatcher::run(&shared, &listener)
}

/// Binds the process to one CPU, because priorities decide between threads of one CPU only.
fn pin_to_one_cpu() -> io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu));
    let mut cpu_set = CpuSet::new();
    cpu_set.set(first.unwrap_or(0));
    Ok(sched_setaffinity(None, &cpu_set)?)
}

/// Locks a mutex, which is never poisoned, because a panic ends the process.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
