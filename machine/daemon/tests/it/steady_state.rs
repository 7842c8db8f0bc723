//! Tests of the cost of a daemon whose ranking does not change. The daemon must make no scheduling
//! calls and few checks, and its elevated threads must look up no files of other processes.
//!
//! A client *rings* the doorbell of its vCPU if a change of its level may change the ranking. The
//! commands `level`, `bits` and `await` of a scripted client answer whether it rang.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use upshift_daemon::{Config, Daemon};
use upshift_elevate::testing::Faulty;

use crate::attack::{ALICE, MALLORY, TRUDY, deadline_after, start_child, two_cpus};
use crate::client::census;
use crate::process::{Process, cpu_time_of_threads, elevated_threads, monotonic, wait_until};
use crate::scripted_client::start_scripted_client;
use crate::{config, permitted, serial_test, skipped, socket};

/// Starts a client that sleeps at level 2, and a client that spins at level 40 for 600 ms. Their
/// order does not change.
fn start_steady_pair(path: &std::path::Path) -> (Process, Process) {
    let mut sleeper = start_scripted_client(path);
    let mut burner = start_scripted_client(path);
    sleeper.execute("await 2");
    burner.execute("level 40");
    wait_until("the sleeper is elevated", || {
        !elevated_threads(sleeper.pid()).is_empty()
    });
    burner.send(format!("burn {}", monotonic() + 600_000_000));
    std::thread::sleep(Duration::from_millis(100));
    (sleeper, burner)
}

#[test]
fn no_scheduling_call_is_made_while_the_winner_is_unchanged() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("quiet");
    // Counts the daemon's system calls; it injects no fault.
    let counting = Arc::new(Faulty::new());
    let daemon = Daemon::builder(config("quiet")).sys(counting.clone());
    let _daemon = daemon.start().unwrap();
    let (sleeper, burner) = start_steady_pair(&path);
    let began = Instant::now();
    let before = (
        counting.calls(),
        census(&path)["cpus"][0]["switches"].as_u64(),
    );
    std::thread::sleep(Duration::from_millis(400));
    let after = (
        counting.calls(),
        census(&path)["cpus"][0]["switches"].as_u64(),
    );
    assert_eq!(before.1, after.1);
    // The daemon makes two calls for the CPUs of the elevated thread every 36 ms, and scans the
    // online CPUs every 500 ms, which is about every thirteenth check. One more of each may have
    // begun. The elapsed time is measured, because it may be longer on a loaded machine.
    let checks = began.elapsed().as_millis() as u64 / 36 + 1;
    let calls = after.0 - before.0;
    assert!(
        calls <= 2 * checks + checks / 13 + 4,
        "{calls} calls in {checks} checks"
    );
    assert!(
        !elevated_threads(sleeper.pid()).is_empty() && elevated_threads(burner.pid()).is_empty()
    );
}

#[test]
fn the_census_is_current_although_no_client_rings() {
    let _guard = serial_test();
    let path = socket("view");
    let config = Config {
        cooperative: true,
        ..config("view")
    };
    let _daemon = Daemon::start(config).unwrap();
    let mut client = start_scripted_client(&path);
    let cpu_and_winner = || {
        let census = census(&path);
        let vcpu = census["processes"][0]["vcpus"][0].clone();
        assert_eq!(vcpu["rings"], 0);
        assert_eq!(census["bitmap"], census["cpus"][0]["bitmap"]);
        (census["cpus"][0].clone(), vcpu["winner"].as_bool().unwrap())
    };
    // Bits 7 and 9: the most urgent ready level is 7.
    assert_eq!(client.execute("bits 640"), "false");
    let (cpu, is_winner) = cpu_and_winner();
    assert_eq!((&cpu["level"], &cpu["bitmap"]), (&7.into(), &640.into()));
    assert!(is_winner && cpu["winner"].is_number() && cpu["contenders"] == 1);
    assert_eq!(client.execute("level 3"), "false");
    assert_eq!(cpu_and_winner().0["level"], 3);
    // Level 64 stands for a vCPU that polls nothing.
    client.execute("bits 0");
    client.execute("level 64");
    let (cpu, is_winner) = cpu_and_winner();
    assert!(!is_winner && cpu["level"].is_null() && cpu["winner"].is_null());
    assert_eq!((&cpu["bitmap"], &cpu["contenders"]), (&0.into(), &0.into()));
}

/// Returns the CPU time of the scheduler of CPU 0, ns.
pub(crate) fn scheduler_cpu_time() -> u64 {
    cpu_time_of_threads("upshift-cpu0")
}

#[test]
fn a_cooperative_daemon_sleeps_while_clients_compete_and_notices_changes_although_no_client_rings()
{
    let _guard = serial_test();
    let path = socket("sampled");
    let cooperative = Config {
        cooperative: true,
        ..config("sampled")
    };
    let _daemon = Daemon::start(cooperative).unwrap();
    let (mut high, mut low) = (start_scripted_client(&path), start_scripted_client(&path));
    high.execute("await 2");
    high.execute("level 2");
    low.execute("level 40");
    wait_until("the scheduler runs", || scheduler_cpu_time() > 0);
    let before = scheduler_cpu_time();
    std::thread::sleep(Duration::from_secs(1));
    let used = scheduler_cpu_time() - before;
    assert!(used < 100_000_000, "{used} ns of a second");
    wait_until("the less urgent client is outranked", || {
        low.execute("outranked 40") == "true"
    });
    // A client keeps its rank while it sleeps, so it does not ring.
    assert_eq!(high.execute("level 64"), "false");
    wait_until("the less urgent client is no longer outranked", || {
        low.execute("outranked 40") == "false"
    });
}

#[test]
fn the_threads_of_a_steady_daemon_only_wait_and_check() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    if Command::new("strace")
        .arg("-V")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        return skipped("strace is not installed");
    }
    let path = socket("strace");
    let mut daemon = Process::start("daemon", &path, &[]);
    daemon.line("ready").unwrap();
    let _clients = start_steady_pair(&path);
    let log = path.with_extension("strace");
    let began = Instant::now();
    let traced = Command::new("timeout")
        .args(["0.4", "strace", "-f", "-qq", "-o"])
        .arg(&log)
        .args(["-p", &daemon.pid().to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let half_seconds = began.elapsed().as_millis() as usize / 500 + 1;
    let log = std::fs::read_to_string(&log).unwrap_or_default();
    if traced.is_err() || log.is_empty() {
        return skipped("strace may not trace here");
    }
    let calls = log.lines().filter_map(|line| {
        let call = line.split_whitespace().nth(1)?;
        Some(call.split('(').next()?.to_string())
    });
    let calls: Vec<String> = calls
        .filter(|call| !call.starts_with(['<', '+', '-']))
        .collect();
    let policy_changes = calls
        .iter()
        .filter(|call| call.starts_with("sched_set"))
        .count();
    // Attaching strace may delay the daemon for such a long time that one of its two watchdogs (the
    // monitor of the canaries, and the guardian process) demotes all threads once.
    assert!(policy_changes <= 4, "{policy_changes} calls: {log}");
    // Waits of all threads, including a scheduler that exceeds its budget because of the tracing.
    let waits = ["epoll", "futex", "restart_syscall", "clock_nanosleep"];
    let others = calls
        .iter()
        .filter(|call| !waits.iter().any(|wait| call.starts_with(wait)));
    let (count, checks) = (
        others.count(),
        calls.iter().filter(|call| *call == "fstat").count(),
    );
    // A check makes three calls, for the user of the elevated process (`fstat`, which counts the
    // checks), the thread's CPU time, and the thread's CPUs. The monitor reads the online CPUs
    // twice a second, in six calls. Each thread may have been in a call when strace attached, and
    // the last check may be incomplete.
    let threads = log
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let threads = threads.collect::<std::collections::BTreeSet<_>>().len();
    println!("{count} calls in {checks} checks, {threads} threads");
    let limit = 3 * checks + 6 * half_seconds + threads + 4;
    assert!(
        checks > 0 && count <= limit,
        "{count} calls in {checks} checks, at most {limit} are allowed: {log}"
    );
}

/// A thread that looks up a path in `/proc` may have to wait for a less urgent thread, so no
/// elevated thread of the daemon may do this. During the test a client registers, a program that
/// matches a rule starts, and a canary is silent.
#[test]
fn no_elevated_thread_looks_up_a_file_of_another_process() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (first_cpu, last_cpu) = two_cpus();
    let path = socket("opens");
    let config = format!("mode = \"0666\"\n[[assign]]\nuser = {ALICE}\nlevel = 8\n");
    let mut daemon = Process::start("daemon", &path, &[("CONFIG", config)]);
    daemon.line("ready").unwrap();
    let log = path.with_extension("strace");
    let tracer = Command::new("timeout")
        .args(["60", "strace", "-f", "-qq", "-e", "trace=open,openat", "-o"])
        .arg(&log)
        .args(["-p", &daemon.pid().to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut tracer) = tracer else {
        return skipped("timeout is not installed");
    };
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    let task = format!("/proc/{}/task", daemon.pid());
    let is_traced = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status"));
        status
            .is_ok_and(|status| status.contains("TracerPid:") && !status.contains("TracerPid:\t0"))
    };
    let all_traced = || std::fs::read_dir(&task).unwrap().flatten().all(is_traced);
    let deadline = Instant::now() + Duration::from_secs(5);
    while !all_traced() {
        if Instant::now() > deadline {
            let _ = (tracer.kill(), tracer.wait());
            return skipped("strace is not installed, or may not trace here");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // The lender is elevated, because the claimant makes it one of two competitors. A thread that
    // holds a lock for it spins on the last CPU at its priority, so that the canary there, a thread
    // that runs as long as ordinary threads do, gets no time.
    let _claimant = start_child("idle-claimant", &path, TRUDY, (first_cpu, 63), &[]);
    let extra_settings = [("VICTIM", last_cpu.to_string())];
    let mut lender = start_child("lender", &path, MALLORY, (first_cpu, 40), &extra_settings);
    lender.run_until(deadline_after(Duration::from_secs(2)));
    let program = start_child("gap-meter", &path, ALICE, (first_cpu, 0), &[]);
    wait_until("the program is elevated", || {
        !elevated_threads(program.pid()).is_empty()
    });
    for file in ["/cgroup", "/schedstat", "/comm"] {
        wait_until(file, || read().contains(file));
    }
    // SAFETY: `timeout` has not been waited for, so its pid is not reused. It passes the signal on.
    unsafe { libc::kill(tracer.id() as i32, libc::SIGTERM) };
    let _ = tracer.wait();
    let log = read();
    let tasks = std::fs::read_dir(&task).unwrap();
    // Beginnings of the names of the elevated threads, after `upshift-`; the last is `canary`.
    let names = ["cpu", "daemon", "watch", "assign", "close", "can"];
    for task in tasks.flatten() {
        let comm = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let Some(name) = comm.trim().strip_prefix("upshift-") else {
            continue;
        };
        if !names.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let tid = task.file_name().into_string().unwrap();
        let is_foreign_lookup = |line: &&str| {
            line.starts_with(&tid) && line.contains("\"/proc/") && !line.contains("/proc/self/")
        };
        let opens: Vec<&str> = log.lines().filter(is_foreign_lookup).collect();
        assert!(opens.is_empty(), "{name}: {opens:?}");
    }
}
