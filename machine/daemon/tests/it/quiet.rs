//! The daemon does next to no work while the winner is unchanged.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use upshift_daemon::{Config, Daemon};
use upshift_elevate::testing::Faulty;

use crate::attack::{ALICE, MALLORY, TRUDY, from_now, start_child, two_cpus};
use crate::client::census;
use crate::process::{Process, elevated_threads, monotonic, until, used_by_threads};
use crate::puppet::start_puppet;
use crate::{config, permitted, skipped, socket, turn};

/// Starts a sleeper that awaits level 2, above a process of level 40 that spins: for 600 ms the
/// same order.
fn steady(path: &std::path::Path) -> (Process, Process) {
    let mut sleeper = start_puppet(path);
    let mut burner = start_puppet(path);
    sleeper.obey("await 2");
    burner.obey("level 40");
    until("the sleeper keeps a band", || {
        !elevated_threads(sleeper.pid()).is_empty()
    });
    burner.say(format!("burn {}", monotonic() + 600_000_000));
    std::thread::sleep(Duration::from_millis(100));
    (sleeper, burner)
}

#[test]
fn no_scheduling_call_is_made_while_the_winner_is_unchanged() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("quiet");
    let counting = Arc::new(Faulty::new());
    let daemon = Daemon::builder(config("quiet")).sys(counting.clone());
    let _daemon = daemon.start().unwrap();
    let (sleeper, burner) = steady(&path);
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
    // Two checks of the CPUs of the one elevated thread each 36 ms, one scan of the online CPUs
    // each 500 ms, however long that took on a loaded machine; the last ones may have begun.
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
fn the_census_is_current_although_no_doorbell_rings() {
    let _turn = turn();
    let path = socket("view");
    let quiet = Config {
        cooperative: true,
        ..config("view")
    };
    let _daemon = Daemon::start(quiet).unwrap();
    let mut alone = start_puppet(&path);
    let line = || {
        let census = census(&path);
        let vcpu = census["processes"][0]["vcpus"][0].clone();
        assert_eq!(vcpu["rings"], 0);
        assert_eq!(census["bitmap"], census["cpus"][0]["bitmap"]);
        (census["cpus"][0].clone(), vcpu["winner"].as_bool().unwrap())
    };
    assert_eq!(alone.obey("bits 640"), "false");
    let (cpu, wins) = line();
    assert_eq!((&cpu["level"], &cpu["bitmap"]), (&7.into(), &640.into()));
    assert!(wins && cpu["winner"].is_number() && cpu["contenders"] == 1);
    assert_eq!(alone.obey("level 3"), "false");
    assert_eq!(line().0["level"], 3);
    alone.obey("bits 0");
    alone.obey("level 64");
    let (cpu, wins) = line();
    assert!(!wins && cpu["level"].is_null() && cpu["winner"].is_null());
    assert_eq!((&cpu["bitmap"], &cpu["contenders"]), (&0.into(), &0.into()));
}

/// Returns the CPU time of the scheduler of CPU 0, a thread of this process, ns.
pub(crate) fn used_by_the_scheduler() -> u64 {
    used_by_threads("upshift-cpu0")
}

#[test]
fn a_cooperative_daemon_sleeps_while_two_compete_and_notices_changes_without_rings() {
    let _turn = turn();
    let path = socket("sampled");
    let cooperative = Config {
        cooperative: true,
        ..config("sampled")
    };
    let _daemon = Daemon::start(cooperative).unwrap();
    let (mut high, mut low) = (start_puppet(&path), start_puppet(&path));
    high.obey("await 2");
    high.obey("level 2");
    low.obey("level 40");
    // The scheduler may not have run yet.
    until("the scheduler runs", || used_by_the_scheduler() > 0);
    let before = used_by_the_scheduler();
    std::thread::sleep(Duration::from_secs(1));
    let used = used_by_the_scheduler() - before;
    assert!(used < 100_000_000, "{used} ns of a second");
    until("the less urgent gives way", || {
        low.obey("outranked 40") == "true"
    });
    // The process keeps its rank while it sleeps, so no ring reports that.
    assert_eq!(high.obey("level 64"), "false");
    until("the less urgent continues", || {
        low.obey("outranked 40") == "false"
    });
}

#[test]
fn strace_sees_only_waits_and_checks() {
    let _turn = turn();
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
    let _both = steady(&path);
    let log = path.with_extension("strace");
    let began = Instant::now();
    let traced = Command::new("timeout")
        .args(["0.4", "strace", "-f", "-qq", "-o"])
        .arg(&log)
        .args(["-p", &daemon.pid().to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let halves = began.elapsed().as_millis() as usize / 500 + 1;
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
    let sets = calls
        .iter()
        .filter(|call| call.starts_with("sched_set"))
        .count();
    // Attaching may delay the daemon for so long that the canaries' monitor or the guardian demotes
    // all threads, once.
    assert!(sets <= 4, "{log}");
    // Waits, including those of the canaries and their monitor, and of a scheduler that tracing
    // slows down beyond its budget.
    let waits = ["epoll", "futex", "restart_syscall", "clock_nanosleep"];
    let others = calls
        .iter()
        .filter(|call| !waits.iter().any(|wait| call.starts_with(wait)));
    let (count, checks) = (
        others.count(),
        calls.iter().filter(|call| *call == "fstat").count(),
    );
    // A check reads the user of the one elevated process, and is counted by that call; then the
    // thread's CPU time and its CPUs: three calls. Twice a second the monitor reads the online CPUs
    // (six calls). Each thread was in some call when it was attached, and the last check may be
    // incomplete.
    let threads = log
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let threads = threads.collect::<std::collections::BTreeSet<_>>().len();
    println!("{count} calls in {checks} checks, {threads} threads");
    let most = 3 * checks + 6 * halves + threads + 4;
    assert!(
        checks > 0 && count <= most,
        "{count} in {checks} checks: {log}"
    );
}

/// A thread that looks up a path in `/proc` may have to wait for a less urgent one. Here a client
/// registers, a program that fits a rule starts, and a canary is silent.
#[test]
fn no_elevated_thread_looks_up_a_file_of_others() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (here, there) = two_cpus();
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
    let _ghost = start_child("ghost", &path, TRUDY, (here, 63), &[]);
    let more = [("VICTIM", there.to_string())];
    let mut lender = start_child("lender", &path, MALLORY, (here, 40), &more);
    lender.go_until(from_now(Duration::from_secs(2)));
    let program = start_child("gap", &path, ALICE, (here, 0), &[]);
    until("the program is elevated", || {
        !elevated_threads(program.pid()).is_empty()
    });
    for file in ["/cgroup", "/schedstat", "/comm"] {
        until(file, || read().contains(file));
    }
    // SAFETY: a child that has not been waited for: `timeout`, which passes the signal on.
    unsafe { libc::kill(tracer.id() as i32, libc::SIGTERM) };
    let _ = tracer.wait();
    let log = read();
    let tasks = std::fs::read_dir(&task).unwrap();
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
        let of_others = |line: &&str| {
            line.starts_with(&tid) && line.contains("\"/proc/") && !line.contains("/proc/self/")
        };
        let opens: Vec<&str> = log.lines().filter(of_others).collect();
        assert!(opens.is_empty(), "{name}: {opens:?}");
    }
}
