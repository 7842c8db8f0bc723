//! Measures the latency of a wake-up in a process that is demoted, and in a process that sleeps
//! while it is elevated.
//!
//! Needs a daemon (`upshift daemon`, as root). Then run:
//!
//! ```text
//! cargo run --release -p upshift-daemon --example wake -- [SOCKET [CPU [ROUNDS]]]
//! ```
//!
//! Two processes share a CPU. A rival spins at level 40. This process spins at level 50, so it is
//! demoted, and has a dispatcher thread; another CPU sends it an event every 3 ms. The example
//! measures the time from the event to
//!
//! * `dispatcher`: the first instruction of the dispatcher, which is the minimum, since dispatchers
//!   run above all workers;
//! * `worker`: the first instruction of the worker, after the dispatcher has published level 2 and
//!   rung, and the daemon has elevated the worker;
//! * `sleeper`: a worker that sleeps in its band because it awaits level 2, so the daemon has no
//!   work.
//!
//! The rival ends with this process.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64};
use std::time::{Duration, Instant};

use upshift_board::{Board, NO_LEVEL, Role, ThreadSpec, Vcpu, VcpuSpec, client, os};
use upshift_elevate::current_tid;
use upshift_elevate::sys::{CpuSet, Kernel, Sys};

/// Maximum duration of the measurement, and of the rival.
const MAX_TIME: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let socket = arguments.next().map(PathBuf::from).or_else(client::find);
    let socket =
        socket.ok_or("no daemon found: start one with `upshift daemon`, or give its socket")?;
    let cpu: usize = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(1000), |text| text.parse())?;
    if arguments.next().as_deref() == Some("rival") {
        return rival(&socket, cpu);
    }
    let mut child = Command::new(std::env::current_exe()?)
        .args([
            &socket.display().to_string(),
            &cpu.to_string(),
            "0",
            "rival",
        ])
        .stdout(Stdio::piped())
        .stdin(Stdio::piped())
        .spawn()?;
    let out = child.stdout.take().ok_or("no pipe")?;
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    let result = measure(&socket, cpu, rounds);
    let _ = child.kill();
    let _ = child.wait();
    result
}

/// Spins at level 40 until its standard input is closed.
fn rival(socket: &std::path::Path, cpu: usize) -> Result<(), Box<dyn std::error::Error>> {
    let has_ended = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&has_ended);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        end.store(true, Release);
    });
    pin(cpu)?;
    let board = Board::new()?;
    let spec = spec(cpu, &[(current_tid(), Role::Worker)]);
    board.join(socket, &[spec])?;
    let vcpu = board.vcpu(0).ok_or("no vCPU")?;
    vcpu.line().set_running(40);
    vcpu.settle()?;
    println!("ready");
    let start = Instant::now();
    while !has_ended.load(Acquire) && start.elapsed() < MAX_TIME {
        std::hint::spin_loop();
    }
    Ok(())
}

fn pin(cpu: usize) -> Result<(), Box<dyn std::error::Error>> {
    Kernel.sched_setaffinity(0, &CpuSet::only(cpu).ok_or("no such CPU")?)?;
    Ok(())
}

fn spec(cpu: usize, threads: &[(i32, Role)]) -> VcpuSpec {
    VcpuSpec {
        cpu,
        threads: threads
            .iter()
            .map(|&(tid, role)| ThreadSpec { tid, role })
            .collect(),
    }
}

struct Shared {
    start: Instant,
    /// Time at which the last event was sent, ns.
    sent_at: AtomicU64,
    /// Time at which the dispatcher noticed the last event, ns.
    dispatched_at: AtomicU64,
    /// Time at which the worker noticed the last event, ns; 0 until the worker has noticed it.
    answered_at: AtomicU64,
    is_over: AtomicBool,
    /// Set in the second half of the rounds, in which the worker sleeps between events.
    worker_sleeps: AtomicBool,
    /// TIDs of the worker and the dispatcher.
    tids: [AtomicI32; 2],
    /// Wakes the dispatcher.
    eventfd: OwnedFd,
    /// Wakes the worker in the second half of the rounds.
    sleep_eventfd: OwnedFd,
}

impl Shared {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// Creates an eventfd that blocks readers.
fn waiting_eventfd() -> std::io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(
        0,
        rustix::event::EventfdFlags::CLOEXEC,
    )?)
}

fn wait(eventfd: &OwnedFd) {
    let _ = rustix::io::read(eventfd, &mut [0u8; 8]);
}

fn measure(
    socket: &std::path::Path,
    cpu: usize,
    rounds: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let board = Board::new()?;
    let shared = Arc::new(Shared {
        start: Instant::now(),
        sent_at: AtomicU64::new(0),
        dispatched_at: AtomicU64::new(0),
        answered_at: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        worker_sleeps: AtomicBool::new(false),
        tids: [const { AtomicI32::new(0) }; 2],
        eventfd: waiting_eventfd()?,
        sleep_eventfd: waiting_eventfd()?,
    });
    let vcpu = board.vcpu(0).ok_or("no vCPU")?;
    let threads = [
        spawn(&shared, &vcpu, 0, cpu, worker),
        spawn(&shared, &vcpu, 1, cpu, dispatcher),
    ];
    while shared.tids.iter().any(|tid| tid.load(Acquire) == 0) {
        std::thread::sleep(Duration::from_millis(1));
    }
    if std::thread::available_parallelism()?.get() > 1 || cpu != 0 {
        pin(usize::from(cpu == 0))?;
    }
    let [worker, dispatcher] = [0, 1].map(|index| shared.tids[index].load(Acquire));
    let spec = spec(
        cpu,
        &[(worker, Role::Worker), (dispatcher, Role::Dispatcher)],
    );
    let joined = board.join(socket, &[spec])?;
    println!(
        "{}, CPU {cpu}, {rounds} rounds, µs",
        if joined.enforcing {
            "enforcing"
        } else {
            "cooperative"
        }
    );
    vcpu.line().set_running(50);
    vcpu.settle()?;
    let mut latencies_ns: [Vec<u64>; 3] = Default::default();
    for round in 0..2 * rounds {
        let worker_sleeps = round >= rounds;
        if round == rounds {
            vcpu.line().set_awaited(2);
            vcpu.line().set_running(NO_LEVEL);
            shared.worker_sleeps.store(true, Release);
            os::ring(shared.eventfd.as_fd())?;
            std::thread::sleep(Duration::from_millis(100));
        }
        std::thread::sleep(Duration::from_millis(3));
        let sent_at = shared.now().max(1);
        shared.answered_at.store(0, Release);
        shared.sent_at.store(sent_at, Release);
        os::ring(if worker_sleeps {
            shared.sleep_eventfd.as_fd()
        } else {
            shared.eventfd.as_fd()
        })?;
        while shared.answered_at.load(Acquire) == 0 && shared.start.elapsed() < MAX_TIME {
            std::hint::spin_loop();
        }
        let latency_ns = shared.answered_at.load(Acquire).saturating_sub(sent_at);
        if worker_sleeps {
            latencies_ns[2].push(latency_ns);
        } else {
            let dispatched_at = shared.dispatched_at.load(Acquire);
            latencies_ns[0].push(dispatched_at.saturating_sub(sent_at));
            latencies_ns[1].push(latency_ns);
        }
        if shared.start.elapsed() >= MAX_TIME {
            break;
        }
    }
    shared.is_over.store(true, Release);
    os::ring(shared.eventfd.as_fd())?;
    os::ring(shared.sleep_eventfd.as_fd())?;
    for thread in threads {
        let _ = thread.join();
    }
    for (name, latencies_ns) in ["dispatcher", "worker", "sleeper"]
        .into_iter()
        .zip(&mut latencies_ns)
    {
        latencies_ns.sort_unstable();
        let quantile_us = |quantile: f64| {
            latencies_ns
                .get((latencies_ns.len() as f64 * quantile) as usize)
                .copied()
                .unwrap_or(0) as f64
                / 1000.0
        };
        println!(
            "{name:10}  p50 {:6.1}  p90 {:6.1}  p99 {:6.1}  p99.9 {:6.1}",
            quantile_us(0.5),
            quantile_us(0.9),
            quantile_us(0.99),
            quantile_us(0.999)
        );
    }
    Ok(())
}

fn spawn(
    shared: &Arc<Shared>,
    vcpu: &Vcpu,
    index: usize,
    cpu: usize,
    body: fn(&Shared, &Vcpu),
) -> std::thread::JoinHandle<()> {
    let (shared, vcpu) = (Arc::clone(shared), vcpu.clone());
    std::thread::spawn(move || {
        if pin(cpu).is_ok() {
            shared.tids[index].store(current_tid(), Release);
            body(&shared, &vcpu);
        }
    })
}

/// Spins at level 50 and polls for arrivals, or sleeps until an arrival.
fn worker(shared: &Shared, vcpu: &Vcpu) {
    while !shared.is_over.load(Acquire) && shared.start.elapsed() < MAX_TIME {
        if shared.worker_sleeps.load(Acquire) {
            wait(&shared.sleep_eventfd);
            shared.answered_at.store(shared.now(), Release);
            continue;
        }
        if vcpu.line().arrived().load(Acquire) != 0 {
            shared.answered_at.store(shared.now(), Release);
            vcpu.line().arrived().store(0, Release);
            let _ = vcpu.settle();
        }
    }
}

/// Sleeps until an event is sent, and publishes an arrival of level 2.
fn dispatcher(shared: &Shared, vcpu: &Vcpu) {
    while !shared.is_over.load(Acquire) {
        wait(&shared.eventfd);
        if shared.worker_sleeps.load(Acquire) || shared.is_over.load(Acquire) {
            continue;
        }
        shared.dispatched_at.store(shared.now(), Release);
        let _ = vcpu.arrive(2);
    }
}
