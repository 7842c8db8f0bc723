//! Elevation: of which thread, against which rival, and until when.

use std::time::Duration;

use upshift_board::NO_LEVEL;
use upshift_board::wire::Role;
use upshift_daemon::{Config, Daemon};
use upshift_elevate::sys::Kernel;
use upshift_elevate::{Class, Policy, current_tid};

use crate::attack::{MALLORY, TRUDY, from_now, open_daemon, start_child};
use crate::child::{number, pin, wait_for_go};
use crate::client::{Registration, census, of_vcpu, processes};
use crate::process::{PATIENCE, Process, elevated_threads, monotonic, until};
use crate::puppet::start_puppet;
use crate::{config, daemon, permitted, skipped, socket, turn};

fn ms_from_now(ms: u64) -> u64 {
    monotonic() + ms * 1_000_000
}

#[test]
fn a_client_that_claims_level_0_for_ever_gets_its_ceiling() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("ceiling");
    let config = Config {
        ceiling: 16,
        ..config("ceiling")
    };
    let _daemon = Daemon::start(config).unwrap();
    let mut liar = start_puppet(&path);
    liar.obey("level 0");
    liar.obey(format!("bits {}", u64::MAX));
    let mut honest = start_puppet(&path);
    honest.obey("level 16");
    let seen = census(&path);
    assert_eq!(of_vcpu(&seen, liar.pid(), "potential"), 16);
    assert_eq!(of_vcpu(&seen, liar.pid(), "bitmap").trailing_zeros(), 16);
    let end = ms_from_now(300);
    liar.say(format!("burn {end}"));
    honest.say(format!("burn {end}"));
    let (a, b) = (liar.number("burn="), honest.number("burn="));
    assert!(a < 2 * b && b < 2 * a, "equal after the ceiling: {a} {b}");
}

#[test]
fn forks_of_a_registered_process_are_ordinary() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("forks");
    let _daemon = daemon("forks");
    let mut low = start_puppet(&path);
    low.obey("level 40");
    let mut forker = start_puppet(&path);
    forker.obey("level 2");
    until("it is elevated", || {
        !elevated_threads(forker.pid()).is_empty()
    });
    assert_eq!(forker.obey("fork"), libc::SCHED_OTHER.to_string());
    assert_eq!(processes(&path), 2);
    forker.obey("leave");
    assert!(elevated_threads(forker.pid()).is_empty());
}

#[test]
fn a_process_that_execs_while_elevated_is_restored() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("execs");
    let _daemon = daemon("execs");
    let mut low = start_puppet(&path);
    low.obey("level 40");
    let mut execs = start_puppet(&path);
    let before = execs.obey("own");
    execs.obey("level 2");
    until("it is elevated", || {
        !elevated_threads(execs.pid()).is_empty()
    });
    execs.obey("exec");
    until("it is forgotten", || processes(&path) == 1);
    until("it is as it was", || {
        Policy::of(&Kernel, execs.pid()).is_ok_and(|now| now.to_string() == before)
    });
}

#[test]
fn a_process_that_moves_to_another_cpu_is_ejected() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return crate::skipped("needs two CPUs");
    }
    let path = socket("mover");
    let _daemon = daemon("mover");
    let mut low = start_puppet(&path);
    low.obey("level 40");
    let mut mover = start_puppet(&path);
    mover.obey("level 2");
    until("it is elevated", || {
        !elevated_threads(mover.pid()).is_empty()
    });
    assert_eq!(mover.obey("affinity 1"), "true");
    until("it is ejected", || elevated_threads(mover.pid()).is_empty());
    assert_eq!(census(&path)["ejected"], 1);
    // The process chose its CPU, so it keeps it; its policy is restored.
    let own = mover.obey("own");
    assert!(own.starts_with("SCHED_OTHER"), "{own}");
}

#[test]
fn a_process_that_changes_its_own_policy_harms_itself_only() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("policy");
    let _daemon = daemon("policy");
    let mut low = start_puppet(&path);
    low.obey("level 40");
    let mut changer = start_puppet(&path);
    changer.obey("level 2");
    until("it is elevated", || {
        !elevated_threads(changer.pid()).is_empty()
    });
    assert_eq!(changer.obey("policy"), "true");
    let end = ms_from_now(100);
    low.say(format!("burn {end}"));
    assert!(low.number("burn=") > 0);
    changer.obey("leave");
    // Its own choice stays.
    assert_eq!(changer.obey("own"), "SCHED_OTHER nice 5");
}

#[test]
fn a_stopped_winner_does_not_keep_the_cpu() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("stopped");
    let _daemon = daemon("stopped");
    let mut low = start_puppet(&path);
    low.obey("level 40");
    let mut winner = start_puppet(&path);
    winner.obey("level 2");
    until("it is elevated", || {
        !elevated_threads(winner.pid()).is_empty()
    });
    winner.signal(libc::SIGSTOP);
    low.say(format!("burn {}", ms_from_now(400)));
    assert!(low.number("burn=") > 1_000);
    winner.signal(libc::SIGKILL);
    until("it is forgotten", || processes(&path) == 1);
    until("nobody is elevated", || {
        elevated_threads(low.pid()).is_empty()
    });
}

#[test]
fn every_arrival_elevates_a_demoted_process_until_it_is_reaped() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("arrivals");
    let _daemon = daemon("arrivals");
    let mut rival = start_puppet(&path);
    rival.obey("level 40");
    let mut demoted = start_puppet(&path);
    demoted.obey("level 50");
    for _ in 0..20 {
        until("the rival is above", || {
            elevated_threads(demoted.pid()).is_empty()
        });
        // Whether the call rings depends on whether the daemon is checking at this moment.
        demoted.obey("arrive 2");
        until("it is above", || {
            !elevated_threads(demoted.pid()).is_empty()
        });
        demoted.obey("taken");
    }
}

#[test]
fn a_client_that_claims_to_sleep_and_spins_leaves_bystanders_their_share() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("sleepless");
    let _daemon = daemon("sleepless");
    let mut honest = start_puppet(&path);
    honest.obey("level 40");
    let mut liar = start_puppet(&path);
    liar.obey("await 0");
    until("it has its band", || {
        !elevated_threads(liar.pid()).is_empty()
    });
    let mut bystander = Process::start("bystander", &path, &[("CPU", "0".to_string())]);
    bystander.line("ready").unwrap();
    let end = ms_from_now(600);
    liar.say(format!("burn {end}"));
    honest.say(format!("burn {end}"));
    bystander.go_until(end);
    let used = (liar.number("burn="), honest.number("burn="));
    assert!(
        of_vcpu(&census(&path), liar.pid(), "pauses") > 0,
        "{used:?}"
    );
    assert!((used.0 + used.1) * 100 <= 98 * 600_000, "{used:?}");
}

#[test]
fn cooperative_processes_see_which_is_more_urgent() {
    let _turn = turn();
    let path = socket("cooperative");
    let _daemon = Daemon::start(Config {
        cooperative: true,
        ..config("cooperative")
    })
    .unwrap();
    let mut low = start_puppet(&path);
    let mut high = start_puppet(&path);
    low.obey("level 40");
    assert_eq!(low.obey("outranked 40"), "false");
    high.obey("level 2");
    until("the less urgent sees it", || {
        low.obey("outranked 40") == "true"
    });
    assert_eq!(high.obey("outranked 2"), "false");
    high.obey("level 64");
    high.obey("ring 1");
    until("and that it is over", || {
        low.obey("outranked 40") == "false"
    });
    assert!(elevated_threads(low.pid()).is_empty() && elevated_threads(high.pid()).is_empty());
}

#[test]
fn a_lone_client_is_not_elevated_and_a_former_rival_is_restored() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("lone");
    let _daemon = daemon("lone");
    let mut lone = start_puppet(&path);
    lone.obey("level 2");
    std::thread::sleep(Duration::from_millis(50));
    assert!(elevated_threads(lone.pid()).is_empty());
    let mut rival = start_puppet(&path);
    rival.obey("level 40");
    until("it is elevated", || {
        !elevated_threads(lone.pid()).is_empty()
    });
    rival.kill();
    until("it is not", || elevated_threads(lone.pid()).is_empty());
    // After a second without competition everything is restored, reset-on-fork included.
    until("it is as it was", || {
        Policy::of(&Kernel, lone.pid()).is_ok_and(|policy| {
            !policy.resets_on_fork() && matches!(policy.class(), Class::Other { .. })
        })
    });
}

#[test]
fn no_process_is_elevated_by_a_contest_with_itself() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("itself");
    let mut burner = start_child("burner", &path, MALLORY, (0, 40), &[]);
    burner.go_until(from_now(PATIENCE));
    let none = [("THREADS", "0".to_string())];
    let mut rivals = [
        start_child("ghost", &path, MALLORY, (0, 63), &[]),
        // A vCPU without threads has nothing that could run.
        start_child("ghost", &path, TRUDY, (0, 62), &none),
    ];
    let end = monotonic() + 300_000_000;
    while monotonic() < end {
        assert!(elevated_threads(burner.pid()).is_empty());
        std::thread::sleep(Duration::from_millis(1));
    }
    for rival in &mut rivals {
        rival.kill();
    }
    let _other = start_child("ghost", &path, TRUDY, (0, 63), &[]);
    until("it is elevated against another user", || {
        !elevated_threads(burner.pid()).is_empty()
    });
}

#[test]
fn threads_that_the_kernel_starts_for_an_elevated_one_are_ordinary() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("summoner");
    let _rival = start_child("ghost", &path, TRUDY, (0, 63), &[]);
    let mut summoner = start_child("summoner", &path, MALLORY, (0, 40), &[]);
    summoner.go_until(from_now(PATIENCE));
    if summoner.number("ring ") == 0 {
        return skipped("ordinary users may not use io_uring here");
    }
    let threads = std::fs::read_dir(format!("/proc/{}/task", summoner.pid())).unwrap();
    assert!(threads.count() > 2, "there is a thread of the kernel's");
    // At most the main thread of the role.
    assert!(elevated_threads(summoner.pid()).len() <= 1);
}

/// Has the kernel start threads of io_uring, which poll and work, once it is elevated.
pub(crate) fn summoner() {
    pin(number("CPU") as usize);
    let registration = Registration::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_go();
    while crate::process::elevated_threads(std::process::id() as i32).is_empty()
        && monotonic() < deadline
    {
        std::hint::spin_loop();
    }
    // `struct io_uring_params`: two lengths, flags, CPU and idle time of the polling thread.
    let mut parameters = [0u32; 30];
    const SQPOLL: u32 = 2;
    parameters[2] = SQPOLL;
    parameters[4] = 10_000;
    // SAFETY: a live structure of the kernel's length.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, parameters.as_mut_ptr()) };
    println!("ring {}", i32::from(ring >= 0));
    registration.run(NO_LEVEL);
    wait_for_go();
}
