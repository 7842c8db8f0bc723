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
    let measured = measure(&socket, cpu, rounds);
    let _ = child.kill();
    let _ = child.wait();
    measured
}

/// Spins at level 40 until its standard input is closed.
fn rival(socket: &std::path::Path, cpu: usize) -> Result<(), Box<dyn std::error::Error>> {
    let ended = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&ended);
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
    while !ended.load(Acquire) && start.elapsed() < MAX_TIME {
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
    sent: AtomicU64,
    /// Time at which the dispatcher noticed the last event, ns.
    dispatched: AtomicU64,
    /// Time at which the worker noticed the last event, ns; 0 until the worker has noticed it.
    answered: AtomicU64,
    over: AtomicBool,
    /// Set in the second half of the rounds, in which the worker sleeps between events.
    sleeping: AtomicBool,
    /// TIDs of the worker and the dispatcher.
    tids: [AtomicI32; 2],
    eventfd: OwnedFd,
    /// Wakes the worker in the second half of the rounds.
    nap: OwnedFd,
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
        sent: AtomicU64::new(0),
        dispatched: AtomicU64::new(0),
        answered: AtomicU64::new(0),
        over: AtomicBool::new(false),
        sleeping: AtomicBool::new(false),
        tids: [const { AtomicI32::new(0) }; 2],
        eventfd: waiting_eventfd()?,
        nap: waiting_eventfd()?,
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
    let [worker, dispatcher] = [0, 1].map(|at| shared.tids[at].load(Acquire));
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
    let mut figures: [Vec<u64>; 3] = Default::default();
    for round in 0..2 * rounds {
        let asleep = round >= rounds;
        if round == rounds {
            vcpu.line().set_awaited(2);
            vcpu.line().set_running(NO_LEVEL);
            shared.sleeping.store(true, Release);
            os::ring(shared.eventfd.as_fd())?;
            std::thread::sleep(Duration::from_millis(100));
        }
        std::thread::sleep(Duration::from_millis(3));
        let sent = shared.now().max(1);
        shared.answered.store(0, Release);
        shared.sent.store(sent, Release);
        os::ring(if asleep {
            shared.nap.as_fd()
        } else {
            shared.eventfd.as_fd()
        })?;
        while shared.answered.load(Acquire) == 0 && shared.start.elapsed() < MAX_TIME {
            std::hint::spin_loop();
        }
        let answered = shared.answered.load(Acquire).saturating_sub(sent);
        if asleep {
            figures[2].push(answered);
        } else {
            figures[0].push(shared.dispatched.load(Acquire).saturating_sub(sent));
            figures[1].push(answered);
        }
        if shared.start.elapsed() >= MAX_TIME {
            break;
        }
    }
    shared.over.store(true, Release);
    os::ring(shared.eventfd.as_fd())?;
    os::ring(shared.nap.as_fd())?;
    for thread in threads {
        let _ = thread.join();
    }
    for (name, figures) in ["dispatcher", "worker", "sleeper"]
        .into_iter()
        .zip(&mut figures)
    {
        figures.sort_unstable();
        let at = |share: f64| {
            figures
                .get((figures.len() as f64 * share) as usize)
                .copied()
                .unwrap_or(0) as f64
                / 1000.0
        };
        println!(
            "{name:10}  p50 {:6.1}  p90 {:6.1}  p99 {:6.1}  p99.9 {:6.1}",
            at(0.5),
            at(0.9),
            at(0.99),
            at(0.999)
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
    while !shared.over.load(Acquire) && shared.start.elapsed() < MAX_TIME {
        if shared.sleeping.load(Acquire) {
            wait(&shared.nap);
            shared.answered.store(shared.now(), Release);
            continue;
        }
        if vcpu.line().arrived().load(Acquire) != 0 {
            shared.answered.store(shared.now(), Release);
            vcpu.line().arrived().store(0, Release);
            let _ = vcpu.settle();
        }
    }
}

/// Sleeps until an event is sent, and publishes an arrival of level 2.
fn dispatcher(shared: &Shared, vcpu: &Vcpu) {
    while !shared.over.load(Acquire) {
        wait(&shared.eventfd);
        if shared.sleeping.load(Acquire) || shared.over.load(Acquire) {
            continue;
        }
        shared.dispatched.store(shared.now(), Release);
        let _ = vcpu.arrive(2);
    }
}
