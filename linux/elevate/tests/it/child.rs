//! The code of the tests' child processes: victims, whose threads other processes elevate, and
//! owners, which elevate threads and die.

use std::time::{Duration, Instant};

use upshift_elevate::sys::{Kernel, SchedAttr, Sys};
use upshift_elevate::{Elevated, Elevator, Priority, Tid, current_tid};

use crate::process::{ROLE, Random};

/// Entry point of child processes, not a test: the environment variable [`ROLE`] selects the role.
#[test]
fn role_of_a_child_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    // The limit exceeds the duration of every test on a slow machine.
    limit_process(300);
    match role.as_str() {
        "victim" => victim(),
        "spinner" => spinner(),
        "owner" => owner(),
        "cpu-hog" => cpu_hog(),
        "guardian-killer" => guardian_killer(),
        "heartbeat" => heartbeat(),
        "exec" => exec(),
        "namespace" => namespace(),
        other => panic!("unknown role {other}"),
    }
}

/// Arranges that this process ends after `seconds`, when its parent dies, or when a thread occupies
/// a CPU in SCHED_FIFO for 1 s.
fn limit_process(seconds: u32) {
    let limit = libc::rlimit {
        rlim_cur: 1_000_000,
        rlim_max: 1_000_000,
    };
    // SAFETY: the only pointer is to `limit`, a live local.
    unsafe {
        libc::alarm(seconds);
        libc::setrlimit(libc::RLIMIT_RTTIME, &raw const limit);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn tids() -> Vec<Tid> {
    let text = setting("TIDS");
    text.split_whitespace()
        .map(|tid| tid.parse().unwrap())
        .collect()
}

fn sleep(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Starts a thread of each policy. The threads sleep until the process is killed.
fn victim() {
    let attr = |policy: i32, nice: i32, priority: u32| SchedAttr {
        policy: policy as u32,
        nice,
        priority,
        ..SchedAttr::normal()
    };
    let attributes = [
        attr(libc::SCHED_OTHER, 0, 0),
        attr(libc::SCHED_OTHER, 5, 0),
        attr(libc::SCHED_OTHER, -3, 0),
        attr(libc::SCHED_BATCH, 2, 0),
        attr(libc::SCHED_IDLE, 0, 0),
        attr(libc::SCHED_RR, 0, 4),
        attr(libc::SCHED_FIFO, 0, 3),
    ];
    let threads: Vec<Tid> = attributes
        .into_iter()
        .map(|attr| {
            let (sender, receiver) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                Kernel.sched_setattr(0, &attr).unwrap();
                sender.send(current_tid()).unwrap();
                sleep(300_000);
            });
            receiver.recv().unwrap()
        })
        .collect();
    print_tids(&threads);
    sleep(300_000);
}

/// Starts a thread for each CPU. The threads sleep for 50 ms and then spin for 0.7 s.
fn spinner() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let threads: Vec<Tid> = (0..cpus)
        .map(|_| {
            let (sender, receiver) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                sender.send(current_tid()).unwrap();
                sleep(50);
                let end = Instant::now() + Duration::from_millis(700);
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                sleep(300_000);
            });
            receiver.recv().unwrap()
        })
        .collect();
    print_tids(&threads);
    sleep(300_000);
}

fn print_tids(threads: &[Tid]) {
    let threads: Vec<String> = threads.iter().map(Tid::to_string).collect();
    println!("threads {}", threads.join(" "));
}

/// Elevates threads of other processes and gives signs of life. Elevates the threads again after
/// the guardian has demoted them.
fn heartbeat() {
    let builder = Elevator::builder().guardian(true);
    let elevator = builder
        .heartbeat(Duration::from_millis(100))
        .build()
        .unwrap();
    let priority = Priority::of::<5>();
    // The elevated threads occupy all CPUs, so this thread runs only after the guardian has demoted
    // them.
    let mut demotions = elevator.demotions();
    let guards: Vec<Elevated> = tids()
        .into_iter()
        .map(|tid| elevator.elevate(tid, priority).unwrap())
        .collect();
    println!("ready");
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        elevator.beat();
        let now = elevator.demotions();
        if std::mem::replace(&mut demotions, now) != now {
            for guard in &guards {
                guard.set(priority).unwrap();
            }
        }
        sleep(5);
    }
}

/// Elevates threads of this and of other processes at random, until it dies as `MANNER` says.
fn owner() {
    let mut random = Random(setting("SEED").parse().unwrap());
    let (manner, tids) = (setting("MANNER"), tids());
    let elevator = Elevator::with_guardian().unwrap();
    println!("ready");
    let thread_elevator = elevator.clone();
    let seed = random.below(u64::MAX) | 1;
    // Another thread elevates and restores itself continuously.
    std::thread::spawn(move || elevate_self_repeatedly(&thread_elevator, Random(seed)));
    let delay = Duration::from_micros(random.below(5000));
    let death = manner.clone();
    if !matches!(manner.as_str(), "exit" | "panic" | "return" | "killed") {
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            die(&death);
        });
    }
    let mut guards = Vec::new();
    let end = Instant::now() + delay;
    let give_up_at = Instant::now() + Duration::from_secs(2);
    let loses_rights = random.below(4) == 0;
    loop {
        change_randomly(&elevator, &tids, &mut guards, &mut random);
        if Instant::now() > end {
            match manner.as_str() {
                "exit" => std::process::exit(0),
                "panic" => panic!("with guards alive"),
                "return" => {
                    drop(guards);
                    return;
                }
                _ => {}
            }
            if loses_rights {
                become_nobody();
            }
        }
        if Instant::now() > give_up_at {
            std::process::exit(3);
        }
        if random.below(8) == 0 {
            std::thread::sleep(Duration::from_micros(random.below(300)));
        }
    }
}

/// Makes one random change to a random thread of another process.
fn change_randomly(
    elevator: &Elevator,
    tids: &[Tid],
    guards: &mut Vec<Elevated>,
    random: &mut Random,
) {
    let priority = Priority::new(1 + random.below(48) as u8).unwrap();
    match random.below(5) {
        0 | 1 => {
            let tid = tids[random.below(tids.len() as u64) as usize];
            guards.extend(elevator.elevate(tid, priority));
        }
        2 if !guards.is_empty() => {
            let index = random.below(guards.len() as u64) as usize;
            drop(guards.swap_remove(index));
        }
        3 => {
            let cpu = random.below(2) as usize;
            if let Some(guard) = guards.last() {
                let _ = guard.pin(cpu);
            }
        }
        _ => {
            for guard in &*guards {
                let _ = guard.set(priority);
            }
        }
    }
}

/// Elevates the calling thread, starts children from it, and restores it, for two seconds.
fn elevate_self_repeatedly(elevator: &Elevator, mut random: Random) {
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        let priority = Priority::new(1 + random.below(48) as u8).unwrap();
        if let Ok(guard) = elevator.elevate_current(priority) {
            if random.below(50) == 0 {
                let child = std::process::Command::new("sleep").arg("5").spawn();
                drop(child);
            }
            let _ = guard.set(Priority::MIN);
            std::thread::sleep(Duration::from_micros(random.below(200)));
        }
    }
}

fn die(manner: &str) {
    // SAFETY: each call ends the process, which is the purpose of the test.
    unsafe {
        match manner {
            "segv" => {
                std::ptr::null_mut::<u32>().write_volatile(1);
            }
            "abort" => std::process::abort(),
            "_exit" => libc::_exit(0),
            "term" => {
                libc::kill(libc::getpid(), libc::SIGTERM);
            }
            "kill" => {
                libc::kill(libc::getpid(), libc::SIGKILL);
            }
            other => panic!("unknown manner {other}"),
        }
    }
}

fn become_nobody() {
    // SAFETY: the calls read no memory of this process.
    unsafe {
        libc::setgroups(0, std::ptr::null());
        libc::setresgid(65534, 65534, 65534);
        libc::setresuid(65534, 65534, 65534);
    }
}

/// Elevates a spinning thread on each CPU to the highest priority for other processes' threads, and
/// then kills itself.
fn cpu_hog() {
    let elevator = Elevator::with_guardian().unwrap();
    let _own = elevator.elevate_current(Priority::MAX).unwrap();
    let guards: Vec<Elevated> = tids()
        .into_iter()
        .enumerate()
        .map(|(cpu, tid)| {
            let guard = elevator.elevate(tid, Priority::FOREIGN_MAX).unwrap();
            guard.pin(cpu).unwrap();
            guard
        })
        .collect();
    println!("ready {}", guards.len());
    sleep(100);
    println!("dead");
    die("kill");
}

/// Kills its guardian and starts another one. The parent then kills this process.
fn guardian_killer() {
    let elevator = Elevator::with_guardian().unwrap();
    let guards: Vec<Elevated> = tids()
        .into_iter()
        .map(|tid| elevator.elevate(tid, Priority::MIN).unwrap())
        .collect();
    let first = elevator.guardian_pid().unwrap();
    // SAFETY: the pid is valid, because this child has not been waited for.
    unsafe { libc::kill(first, libc::SIGKILL) };
    while elevator.guardian_pid().is_some() {
        sleep(1);
    }
    elevator.ensure_guardian().unwrap();
    assert_ne!(elevator.guardian_pid().unwrap(), first);
    println!("ready {}", guards.len());
    sleep(60_000);
}

/// Executes another program while elevated, from the main thread or from another thread.
fn exec() {
    if setting("WHERE") == "elsewhere" {
        return exec_elevated();
    }
    // Tests do not run on the main thread, but the only thread of a forked child is its main
    // thread. glibc keeps its allocator usable in the child.
    // SAFETY: the child executes another program or panics, and does not return.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        exec_elevated();
    }
    // SAFETY: the pointer is null, so the call writes no status.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}

fn exec_elevated() {
    use std::os::unix::process::CommandExt;
    let elevator = Elevator::with_guardian().unwrap();
    let guard = elevator.elevate_current(Priority::of::<5>()).unwrap();
    guard.pin(0).unwrap();
    let pid = std::process::id();
    println!("ready {pid} {}", pid == current_tid() as u32);
    let error = std::process::Command::new("sleep").arg("300").exec();
    panic!("cannot execute sleep: {error}");
}

fn namespace() {
    let rights = upshift_elevate::Rights::probe();
    println!("lacks {:?} capable {}", rights.obstacles, rights.capable);
}
