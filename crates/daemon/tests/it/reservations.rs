//! SCHED_DEADLINE: reservations of others, and those of many programs that rules name. `docs/threat-model.md` names these tests.

use std::time::Duration;

use upshift_daemon::{Assign, Bound, Config, Daemon, Reservation};
use upshift_elevate::Class;
use upshift_elevate::sys::{Kernel, SchedAttr, Sys};

use crate::assign::{deadline_rule, rule};
use crate::assign_rules::Shell;
use crate::attack::{
    ALICE, MALLORY, TIME, TRUDY, bystander, from_now, newcomer, open_config, start_child,
    takes_at_most,
};
use crate::process::{monotonic, until};
use crate::{permitted, skipped, socket, turn};

/// Processes that sleep in SCHED_DEADLINE and have reserved whatever the kernel admits; gone with their guard.
struct Reserved(Vec<std::process::Child>);

impl Reserved {
    fn everything() -> Reserved {
        let mut all = Reserved(Vec::new());
        // What threads reserved that have ended a moment ago is the kernel's again a period later.
        let mut admitted = true;
        while admitted {
            admitted = false;
            for part in [40, 10, 2, 1] {
                while all.reserves(part) {
                    admitted = true;
                }
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        all
    }

    /// One more process, which reserves so many hundredths of a CPU, if the kernel admits that.
    fn reserves(&mut self, part: u64) -> bool {
        let sleep = std::process::Command::new("sleep").arg("60").spawn();
        let sleep = sleep.unwrap();
        let attr = SchedAttr {
            policy: libc::SCHED_DEADLINE as u32,
            runtime: part * 1_000_000,
            deadline: 100_000_000,
            period: 100_000_000,
            ..SchedAttr::normal()
        };
        let admitted = Kernel.sched_setattr(sleep.id() as i32, &attr).is_ok();
        self.0.push(sleep);
        admitted
    }
}

/// Linux 6.18 loses what threads have reserved at times, until the scheduling domains are built again.
fn has_the_kernel_lost_bandwidth() -> bool {
    let mut probe = Reserved(Vec::new());
    // The canaries' watch, and a program.
    !(probe.reserves(10) && probe.reserves(40))
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // As small as can be: Linux 6.18 does not always get back what a thread has reserved that is killed in its sleep.
        let least = SchedAttr {
            policy: libc::SCHED_DEADLINE as u32,
            runtime: 1 << 10,
            deadline: 2_000_000_000,
            period: 2_000_000_000,
            ..SchedAttr::normal()
        };
        for it in &mut self.0 {
            let _ = Kernel.sched_setattr(it.id() as i32, &least);
            let _ = Kernel.sched_setattr(it.id() as i32, &SchedAttr::normal());
            let _ = it.kill();
        }
        for it in &mut self.0 {
            let _ = it.wait();
        }
    }
}

#[test]
fn reservations_of_others_keep_no_process_from_being_elevated() {
    let _turn = turn();
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
        matches!(shell.class(), Some(Class::Fifo(2..=9)))
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
    let _turn = turn();
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
        matches!(second.class(), Some(Class::Fifo(2..=9)))
    });
    drop(reserved);
    until("the kernel admits it as soon as there is room", || {
        second.class() == Some(Class::Deadline)
    });
}

/// As the kernel does now and then to one that comes back to SCHED_DEADLINE; here by a reservation of next to nothing.
#[test]
fn a_program_that_the_kernel_does_not_run_in_its_reservation_has_a_budget_instead() {
    let _turn = turn();
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
        matches!(shell.class(), Some(Class::Fifo(2..=9)))
    });
    let before = shell.used();
    until("by its budget", || shell.used() > before + 100_000_000);
}

/// Many programs of one user, each of which a rule gives a deadline: what the kernel admits, and the budgets of the others.
#[test]
fn deadlines_of_many_programs_together_leave_bystanders_their_share() {
    let _turn = turn();
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
    until("some have their deadlines", || {
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
