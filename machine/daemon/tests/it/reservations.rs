//! SCHED_DEADLINE: reservations of others, and those of many programs that rules name.

use std::time::Duration;

use upshift_daemon::{Assign, Bound, Config, Daemon, Reservation};
use upshift_elevate::sys::{Kernel, SchedAttr, Sys};
use upshift_elevate::{Class, Policy};

use crate::assign::{deadline_rule, rule};
use crate::assign_rules::Shell;
use crate::attack::{
    ALICE, MALLORY, TIME, TRUDY, bystander, daemon_with_rules, from_now, newcomer, open_config,
    start_child, takes_at_most, turn_with_two_cpus,
};
use crate::bandwidth::{
    Recount, Reserved, has_the_kernel_lost_bandwidth, turn_with_all_bandwidth, until_admitted,
};
use crate::budgets::attackers::burn_until;
use crate::child::wait_for_go;
use crate::client::census;
use crate::process::{Process, Random, monotonic, until, within};
use crate::{permitted, skipped, socket};

#[test]
fn reservations_of_others_keep_no_process_from_being_elevated() {
    let _turn = turn_with_all_bandwidth();
    if !permitted() {
        return;
    }
    let path = socket("reserved");
    let config = Config {
        assign: vec![deadline_rule()],
        ..open_config("reserved")
    };
    let reserved = Reserved::everything();
    let _daemon = Daemon::start(config).unwrap();
    let _rival = start_child("ghost", &path, TRUDY, (0, 63), &[]);
    let shell = Shell::start(ALICE, None);
    until("what the kernel does not admit has a budget", || {
        matches!(shell.class(), Some(Class::Fifo(2..=10)))
    });
    let waited = newcomer(&path);
    let tried = reserved.0.len();
    println!("{tried} reservations; a newcomer is elevated after {waited:?}");
    let began = monotonic();
    drop(reserved);
    let ended = (monotonic() - began) / 1000;
    println!("they have ended after {ended} us");
    until("the kernel admits it as soon as there is room", || {
        shell.class() == Some(Class::Deadline) || !shell.lives()
    });
    // It has used its 10 s of CPU without.
    if !shell.lives() {
        assert!(has_the_kernel_lost_bandwidth(), "it is never admitted");
        skipped(
            "the kernel does not admit what it has admitted before, with all reservations gone",
        );
    }
}

/// One that sleeps uses nothing of its budget, so nothing else puts it anew.
#[test]
fn a_sleeper_that_the_kernel_did_not_admit_is_admitted_when_there_is_room() {
    let _turn = turn_with_all_bandwidth();
    if !permitted() {
        return;
    }
    let _path = socket("sleeper");
    let config = Config {
        assign: vec![deadline_rule()],
        ..open_config("sleeper")
    };
    let _daemon = Daemon::start(config).unwrap();
    // Since then the canaries' watch has its own.
    let first = Shell::asleep(ALICE);
    until("the kernel admits the first one", || {
        first.class() == Some(Class::Deadline)
    });
    let reserved = Reserved::everything();
    let second = Shell::asleep(ALICE);
    until("what the kernel does not admit has a budget", || {
        matches!(second.class(), Some(Class::Fifo(2..=10)))
    });
    drop(reserved);
    until("the kernel admits it as soon as there is room", || {
        second.class() == Some(Class::Deadline)
    });
}

/// As the kernel does now and then to one that comes back to SCHED_DEADLINE; here by a reservation of next to nothing.
#[test]
fn a_program_that_the_kernel_does_not_run_in_its_reservation_has_a_budget_instead() {
    let _turn = turn_with_all_bandwidth();
    if !permitted() {
        return;
    }
    let path = socket("kept-off");
    let config = Config {
        assign: vec![deadline_rule()],
        ..open_config("kept-off")
    };
    let _daemon = Daemon::start(config).unwrap();
    let _rival = start_child("ghost", &path, TRUDY, (0, 63), &[]);
    let shell = Shell::start(ALICE, None);
    until("the kernel admits it", || {
        shell.class() == Some(Class::Deadline)
    });
    let attr = SchedAttr {
        policy: libc::SCHED_DEADLINE as u32,
        flags: libc::SCHED_FLAG_RESET_ON_FORK as u64,
        runtime: 1 << 10,
        deadline: 4_000_000_000,
        period: 4_000_000_000,
        ..SchedAttr::normal()
    };
    Kernel.sched_setattr(shell.pid(), &attr).unwrap();
    until("it runs again", || {
        matches!(shell.class(), Some(Class::Fifo(2..=10)))
    });
    let before = shell.used();
    until("by its budget", || shell.used() > before + 100_000_000);
}

/// Gives programs so many of each 20 ms.
fn deadline(runtime: u64, rule: Assign) -> Assign {
    let (runtime, period) = (Duration::from_millis(runtime), Duration::from_millis(20));
    let times = Reservation {
        runtime,
        deadline: period,
        period,
    };
    Assign {
        bound: Bound::Deadline(times),
        comm: Some("sh".into()),
        ..rule
    }
}

/// Sleeping shells of `MALLORY`, of which the first ones take what the kernel and the rules give, and one of `ALICE`, which comes afterwards.
fn latecomer_has_its_deadline(name: &str, assign: Vec<Assign>, crowd: usize) {
    let path = socket(name);
    let config = Config {
        assign,
        ..open_config(name)
    };
    let _daemon = Daemon::start(config).unwrap();
    let crowd: Vec<_> = (0..crowd).map(|_| Shell::asleep(MALLORY)).collect();
    let count = |class: &dyn Fn(&Class) -> bool| {
        let classes = crowd.iter().filter_map(Shell::class);
        classes.filter(|it| class(it)).count()
    };
    until_admitted("all have a deadline or a budget", || {
        let some = count(&|it| *it == Class::Deadline);
        some > 0 && some + count(&|it| matches!(it, Class::Fifo(2..=10))) == crowd.len()
    });
    let some = count(&|it| *it == Class::Deadline);
    println!("{some} of {} have a deadline", crowd.len());
    let late = Shell::asleep(ALICE);
    until("it is assigned", || {
        crate::assign::assigned(&crate::client::census(&path), late.pid()).is_some()
    });
    // What is refused would be tried again each second.
    within(Duration::from_secs(5), "another user has one", || {
        late.class() == Some(Class::Deadline)
    });
}

/// More shells than have room in half of the CPUs, of so many of 20 ms each.
fn too_many(runtime: usize) -> usize {
    let cpus = std::thread::available_parallelism().unwrap().get();
    cpus * 10 / runtime + 2
}

#[test]
fn a_user_does_not_take_all_deadlines_of_a_rule() {
    let _turn = turn_with_all_bandwidth();
    if !permitted() {
        return;
    }
    latecomer_has_its_deadline(
        "one-rule",
        vec![deadline(8, Assign::default())],
        too_many(8),
    );
}

#[test]
fn programs_of_a_rule_do_not_take_the_deadlines_of_another_rule() {
    let _turn = turn_with_all_bandwidth();
    if !permitted() {
        return;
    }
    let rules = vec![deadline(2, rule(MALLORY, 0)), deadline(8, rule(ALICE, 0))];
    latecomer_has_its_deadline("two-rules", rules, too_many(2));
}

/// Lowers its main thread whenever that sleeps in SCHED_DEADLINE, by a thread that computes besides, so that the budget puts it there anew: how often.
pub(crate) fn quitter() {
    let main = std::process::id() as i32;
    let has_deadline = || Policy::of(&Kernel, main).unwrap().class() == Class::Deadline;
    println!("ready");
    let end = wait_for_go();
    let mut lowered = 0;
    while monotonic() < end {
        if !has_deadline() {
            burn_until(end.min(monotonic() + 1_000_000));
            continue;
        }
        // So long that the kernel has ended its reservation of this period.
        std::thread::sleep(Duration::from_millis(25));
        let ordinary = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
        if has_deadline() && Kernel.sched_setscheduler(main, ordinary, 0).is_ok() {
            lowered += 1;
        }
    }
    println!("lowered {lowered}");
    wait_for_go();
}

#[test]
fn a_process_that_lowers_its_sleeping_thread_loses_no_more_than_its_user_has() {
    let _turn = turn_with_all_bandwidth();
    if !permitted() {
        return;
    }
    let Some(_recount) = Recount::new() else {
        return skipped("nothing here gives back what the kernel loses");
    };
    let path = socket("quitter");
    let of_all = Assign {
        comm: None,
        ..deadline(8, rule(MALLORY, 0))
    };
    let config = Config {
        assign: vec![of_all, deadline(8, rule(ALICE, 0))],
        ..open_config("quitter")
    };
    let _daemon = Daemon::start(config).unwrap();
    for _ in 0..2 {
        let mut quitter = start_child("quitter", &path, MALLORY, (0, 0), &[]);
        quitter.go_until(from_now(TIME));
        println!("lowered {} times", quitter.number("lowered "));
    }
    let late = Shell::asleep(ALICE);
    within(Duration::from_secs(5), "another user has one", || {
        late.class() == Some(Class::Deadline)
    });
}

/// The watch takes it out of SCHED_DEADLINE then, and nothing follows from that for the program.
#[test]
fn alarms_that_others_cause_take_no_deadline_for_good() {
    let Some((_turn, (here, there))) = turn_with_two_cpus() else {
        return;
    };
    let (path, _daemon) = daemon_with_rules("alarms", vec![deadline_rule()]);
    let _rivals = [here, there].map(|cpu| start_child("ghost", &path, TRUDY, (cpu, 63), &[]));
    let shell = Shell::start(ALICE, None);
    let has_deadline = || shell.class() == Some(Class::Deadline);
    until("the kernel admits it", has_deadline);
    let more = [("VICTIM", there.to_string())];
    let mut lender = start_child("lender", &path, MALLORY, (here, 40), &more);
    lender.go_until(from_now(Duration::from_secs(4)));
    let _ = lender.number("used ");
    assert!(census(&path)["alarms"].as_u64() > Some(0));
    // Rests of 1, 2 and 4 s at most.
    within(Duration::from_secs(10), "it has it again", has_deadline);
}

/// The guardian takes it out then.
#[test]
fn a_daemon_that_is_stopped_takes_no_deadline_for_good() {
    let _turn = turn_with_all_bandwidth();
    if !permitted() {
        return;
    }
    let path = socket("stopped-deadline");
    let rule = format!(
        "[[assign]]\nuser = {ALICE}\ncomm = \"sh\"\nlevel = 8\nruntime_us = 6000\ndeadline_us = 20000\n"
    );
    let mut daemon = Process::start("daemon", &path, &[("CONFIG", rule)]);
    daemon.line("ready").unwrap();
    let shell = Shell::asleep(ALICE);
    let has_deadline = || shell.class() == Some(Class::Deadline);
    until("the kernel admits it", has_deadline);
    let (mut random, mut demoted) = (Random(0x5eed), 0);
    for _ in 0..20 {
        daemon.signal(libc::SIGSTOP);
        // The guardian does it 100 to 125 ms after the last heartbeat.
        std::thread::sleep(Duration::from_millis(90 + random.below(60)));
        demoted += u32::from(!has_deadline());
        daemon.signal(libc::SIGCONT);
        // In less than that nothing is taken to be for good.
        std::thread::sleep(Duration::from_millis(150));
        within(Duration::from_secs(5), "it has it again", has_deadline);
    }
    println!("it was demoted {demoted} times of 20");
}

/// By its terminal or a debugger: the kernel is not what keeps it from the CPU.
#[test]
fn a_program_that_is_stopped_keeps_its_deadline() {
    let _turn = turn_with_all_bandwidth();
    if !permitted() {
        return;
    }
    let _path = socket("stopped");
    let config = Config {
        assign: vec![deadline_rule()],
        ..open_config("stopped")
    };
    let _daemon = Daemon::start(config).unwrap();
    let shell = Shell::asleep(ALICE);
    let has_deadline = || shell.class() == Some(Class::Deadline);
    until("the kernel admits it", has_deadline);
    // SAFETY: signals to a child of this process that has not been waited for.
    unsafe { libc::kill(shell.pid(), libc::SIGSTOP) };
    // Twice what is waited for one that does not run in its reservation.
    std::thread::sleep(Duration::from_secs(1));
    assert!(has_deadline(), "{:?}", shell.class());
    // SAFETY: as above.
    unsafe { libc::kill(shell.pid(), libc::SIGCONT) };
}

/// Many programs of one user, each of which a rule gives a deadline: what the kernel admits, and the budgets of the others.
#[test]
fn deadlines_of_many_programs_together_leave_bystanders_their_share() {
    let _turn = turn_with_all_bandwidth();
    if !permitted() {
        return;
    }
    let path = socket("deadlines");
    let ms = Duration::from_millis;
    let deadline = Assign {
        bound: Bound::Deadline(Reservation {
            runtime: ms(8),
            deadline: ms(20),
            period: ms(20),
        }),
        ..rule(MALLORY, 0)
    };
    let config = Config {
        assign: vec![deadline],
        ..open_config("deadlines")
    };
    let _daemon = Daemon::start(config).unwrap();
    let shells: Vec<_> = (0..8).map(|_| Shell::start(MALLORY, None)).collect();
    until_admitted("some have their deadlines", || {
        shells.iter().any(|it| it.class() == Some(Class::Deadline))
    });
    let cpus = std::thread::available_parallelism().unwrap().get();
    let mut bystanders: Vec<_> = (0..cpus).map(|cpu| bystander(&path, cpu)).collect();
    let used = || -> u64 { shells.iter().map(Shell::used).sum() };
    let (before, began, end) = (used(), monotonic(), from_now(TIME));
    bystanders.iter_mut().for_each(|it| it.go_until(end));
    let had: Vec<_> = bystanders
        .iter_mut()
        .map(|it| (it.number("used "), it.number("longest ")))
        .collect();
    let (taken, time) = ((used() - before) / 1000, (monotonic() - began) / 1000);
    println!("8 with deadlines have {taken} us, bystanders (used, longest gap) {had:?}");
    assert!(takes_at_most(97, taken, time * cpus as u64));
}
