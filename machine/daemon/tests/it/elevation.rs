//! Tests of which threads are elevated, beside which other threads, and for how long.

use std::time::Duration;

use upshift_board::NO_LEVEL;
use upshift_board::wire::Role;
use upshift_daemon::{Config, Daemon};
use upshift_elevate::sys::Kernel;
use upshift_elevate::{Class, Policy, current_tid};

use crate::attack::{MALLORY, TRUDY, deadline_after, open_daemon, start_child};
use crate::child::{number, pin, wait_for_parent};
use crate::client::{Registration, census, processes, vcpu_counter};
use crate::process::{Process, WAIT_LIMIT, elevated_threads, monotonic, wait_until};
use crate::scripted_client::start_scripted_client;
use crate::{config, daemon, permitted, serial_test, skipped, socket};

fn ms_from_now(ms: u64) -> u64 {
    monotonic() + ms * 1_000_000
}

#[test]
fn a_client_that_always_claims_level_0_gets_its_ceiling() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("ceiling");
    let config = Config {
        ceiling: 16,
        ..config("ceiling")
    };
    let _daemon = Daemon::start(config).unwrap();
    let mut misreporting = start_scripted_client(&path);
    misreporting.execute("level 0");
    misreporting.execute(format!("bits {}", u64::MAX));
    let mut other = start_scripted_client(&path);
    other.execute("level 16");
    let status = census(&path);
    assert_eq!(vcpu_counter(&status, misreporting.pid(), "potential"), 16);
    assert_eq!(
        vcpu_counter(&status, misreporting.pid(), "bitmap").trailing_zeros(),
        16
    );
    let end = ms_from_now(300);
    misreporting.send(format!("burn {end}"));
    other.send(format!("burn {end}"));
    let (first, second) = (misreporting.number("burn="), other.number("burn="));
    assert!(
        first < 2 * second && second < 2 * first,
        "clients of equal level do not share the CPU equally: {first} and {second} us"
    );
}

#[test]
fn children_that_a_registered_process_forks_are_ordinary() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("forks");
    let _daemon = daemon("forks");
    let mut rival = start_scripted_client(&path);
    rival.execute("level 40");
    let mut client = start_scripted_client(&path);
    client.execute("level 2");
    wait_until("the forking client is elevated", || {
        !elevated_threads(client.pid()).is_empty()
    });
    assert_eq!(client.execute("fork"), libc::SCHED_OTHER.to_string());
    assert_eq!(processes(&path), 2);
    client.execute("leave");
    assert!(elevated_threads(client.pid()).is_empty());
}

#[test]
fn a_process_that_execs_while_elevated_is_restored() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("execs");
    let _daemon = daemon("execs");
    let mut rival = start_scripted_client(&path);
    rival.execute("level 40");
    let mut client = start_scripted_client(&path);
    let before = client.execute("show-policy");
    client.execute("level 2");
    wait_until("the client is elevated", || {
        !elevated_threads(client.pid()).is_empty()
    });
    client.execute("exec");
    wait_until("the client is removed", || processes(&path) == 1);
    wait_until("the policy is restored", || {
        Policy::of(&Kernel, client.pid()).is_ok_and(|now| now.to_string() == before)
    });
}

#[test]
fn a_process_that_moves_to_another_cpu_is_ejected() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return crate::skipped("needs two CPUs");
    }
    let path = socket("mover");
    let _daemon = daemon("mover");
    let mut rival = start_scripted_client(&path);
    rival.execute("level 40");
    let mut client = start_scripted_client(&path);
    client.execute("level 2");
    wait_until("the client is elevated", || {
        !elevated_threads(client.pid()).is_empty()
    });
    assert_eq!(client.execute("affinity 1"), "true");
    wait_until("the client is ejected", || {
        elevated_threads(client.pid()).is_empty()
    });
    assert_eq!(census(&path)["ejected"], 1);
    // The policy is restored, but not the CPUs, which the process has chosen itself.
    let policy = client.execute("show-policy");
    assert!(policy.starts_with("SCHED_OTHER"), "{policy}");
}

#[test]
fn a_process_that_changes_its_own_policy_harms_itself_only() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("policy");
    let _daemon = daemon("policy");
    let mut rival = start_scripted_client(&path);
    rival.execute("level 40");
    let mut client = start_scripted_client(&path);
    client.execute("level 2");
    wait_until("the client is elevated", || {
        !elevated_threads(client.pid()).is_empty()
    });
    assert_eq!(client.execute("set-policy"), "true");
    let end = ms_from_now(100);
    rival.send(format!("burn {end}"));
    assert!(rival.number("burn=") > 0);
    client.execute("leave");
    // The policy that the process has chosen itself stays.
    assert_eq!(client.execute("show-policy"), "SCHED_OTHER nice 5");
}

#[test]
fn a_stopped_winner_does_not_keep_the_cpu() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("stopped");
    let _daemon = daemon("stopped");
    let mut rival = start_scripted_client(&path);
    rival.execute("level 40");
    let mut winner = start_scripted_client(&path);
    winner.execute("level 2");
    wait_until("the winner is elevated", || {
        !elevated_threads(winner.pid()).is_empty()
    });
    winner.signal(libc::SIGSTOP);
    rival.send(format!("burn {}", ms_from_now(400)));
    assert!(rival.number("burn=") > 1_000);
    winner.signal(libc::SIGKILL);
    wait_until("the killed client is removed", || processes(&path) == 1);
    wait_until("no thread is elevated", || {
        elevated_threads(rival.pid()).is_empty()
    });
}

#[test]
fn every_arrival_elevates_a_demoted_process_until_the_arrival_is_reaped() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("arrivals");
    let _daemon = daemon("arrivals");
    let mut rival = start_scripted_client(&path);
    rival.execute("level 40");
    let mut demoted = start_scripted_client(&path);
    demoted.execute("level 50");
    for _ in 0..20 {
        wait_until("only the rival is elevated", || {
            elevated_threads(demoted.pid()).is_empty()
        });
        // The result is not checked, because the call does not ring if the daemon is just reading
        // the claims.
        demoted.execute("arrive 2");
        wait_until("the demoted client is elevated", || {
            !elevated_threads(demoted.pid()).is_empty()
        });
        demoted.execute("reap");
    }
}

#[test]
fn a_client_that_claims_to_sleep_and_spins_leaves_bystanders_their_share() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("sleepless");
    let _daemon = daemon("sleepless");
    let mut other = start_scripted_client(&path);
    other.execute("level 40");
    let mut misreporting = start_scripted_client(&path);
    misreporting.execute("await 0");
    wait_until("the misreporting client is elevated", || {
        !elevated_threads(misreporting.pid()).is_empty()
    });
    let mut bystander = Process::start("bystander", &path, &[("CPU", "0".to_string())]);
    bystander.line("ready").unwrap();
    let end = ms_from_now(600);
    misreporting.send(format!("burn {end}"));
    other.send(format!("burn {end}"));
    bystander.run_until(end);
    let used = (misreporting.number("burn="), other.number("burn="));
    assert!(
        vcpu_counter(&census(&path), misreporting.pid(), "pauses") > 0,
        "no pauses; CPU times of the clients, us: {used:?}"
    );
    // The share of bystanders is 5 %, and the bound leaves a margin of 3 %.
    assert!(
        (used.0 + used.1) * 100 <= 98 * 600_000,
        "CPU times of the clients, us: {used:?}"
    );
}

#[test]
fn cooperative_processes_see_whether_they_are_outranked() {
    let _guard = serial_test();
    let path = socket("cooperative");
    let _daemon = Daemon::start(Config {
        cooperative: true,
        ..config("cooperative")
    })
    .unwrap();
    let mut rival = start_scripted_client(&path);
    let mut urgent = start_scripted_client(&path);
    rival.execute("level 40");
    assert_eq!(rival.execute("outranked 40"), "false");
    urgent.execute("level 2");
    wait_until("the less urgent client is outranked", || {
        rival.execute("outranked 40") == "true"
    });
    assert_eq!(urgent.execute("outranked 2"), "false");
    urgent.execute("level 64");
    urgent.execute("ring 1");
    wait_until("the less urgent client is no longer outranked", || {
        rival.execute("outranked 40") == "false"
    });
    assert!(elevated_threads(rival.pid()).is_empty() && elevated_threads(urgent.pid()).is_empty());
}

#[test]
fn a_lone_client_is_not_elevated_and_a_former_rival_is_restored() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("lone");
    let _daemon = daemon("lone");
    let mut lone = start_scripted_client(&path);
    lone.execute("level 2");
    std::thread::sleep(Duration::from_millis(50));
    assert!(elevated_threads(lone.pid()).is_empty());
    let mut rival = start_scripted_client(&path);
    rival.execute("level 40");
    wait_until("the client is elevated beside a rival", || {
        !elevated_threads(lone.pid()).is_empty()
    });
    rival.kill();
    wait_until("the client is not elevated without a rival", || {
        elevated_threads(lone.pid()).is_empty()
    });
    // After a second without competition the daemon restores the whole policy, including the
    // reset-on-fork flag.
    wait_until("the policy is restored", || {
        Policy::of(&Kernel, lone.pid()).is_ok_and(|policy| {
            !policy.resets_on_fork() && matches!(policy.class(), Class::Other { .. })
        })
    });
}

#[test]
fn no_process_is_elevated_above_processes_of_its_own_user_only() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("itself");
    let mut burner = start_child("burner", &path, MALLORY, (0, 40), &[]);
    burner.run_until(deadline_after(WAIT_LIMIT));
    let without_threads = [("THREADS", "0".to_string())];
    let mut rivals = [
        start_child("idle-claimant", &path, MALLORY, (0, 63), &[]),
        // A vCPU without threads is no rival, since it cannot run.
        start_child("idle-claimant", &path, TRUDY, (0, 62), &without_threads),
    ];
    let end = monotonic() + 300_000_000;
    while monotonic() < end {
        assert!(elevated_threads(burner.pid()).is_empty());
        std::thread::sleep(Duration::from_millis(1));
    }
    for rival in &mut rivals {
        rival.kill();
    }
    let _other = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
    wait_until("the client is elevated above another user", || {
        !elevated_threads(burner.pid()).is_empty()
    });
}

#[test]
fn threads_that_the_kernel_starts_for_an_elevated_thread_are_ordinary() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("kernel-thread-starter");
    let _rival = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
    let mut starter = start_child("kernel-thread-starter", &path, MALLORY, (0, 40), &[]);
    starter.run_until(deadline_after(WAIT_LIMIT));
    if starter.number("ring ") == 0 {
        return skipped("ordinary users may not use io_uring here");
    }
    let threads = std::fs::read_dir(format!("/proc/{}/task", starter.pid())).unwrap();
    assert!(threads.count() > 2, "the kernel has started no thread");
    // At most the registered thread is elevated.
    assert!(elevated_threads(starter.pid()).len() <= 1);
}

/// Creates an io_uring with a polling thread of the kernel, once the calling thread is elevated.
pub(crate) fn kernel_thread_starter() {
    pin(number("CPU") as usize);
    let registration = Registration::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_parent();
    while crate::process::elevated_threads(std::process::id() as i32).is_empty()
        && monotonic() < deadline
    {
        std::hint::spin_loop();
    }
    // The fields of `struct io_uring_params`: two lengths, the flags, the CPU and the idle time of
    // the polling thread.
    let mut parameters = [0u32; 30];
    const SQPOLL: u32 = 2;
    parameters[2] = SQPOLL;
    parameters[4] = 10_000;
    // SAFETY: `parameters` has the size of the structure and is valid for writes.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, parameters.as_mut_ptr()) };
    println!("ring {}", i32::from(ring >= 0));
    registration.run(NO_LEVEL);
    wait_for_parent();
}
