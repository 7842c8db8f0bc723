//! Ways that the kernel offers everybody: leases on files, the freezer, forks, programs that become others, limits. `docs/threat-model.md`
//! names these tests; the children are in `knave.rs`.

use std::time::{Duration, Instant};

use upshift_daemon::{Assign, Bound, Config, Daemon, Reservation};
use upshift_elevate::Class;
use upshift_elevate::sys::{Kernel, SchedAttr, Sys};

use crate::assign::{assigned, deadline_rule, rule};
use crate::assign_rules::Shell;
use crate::attacks::{ALICE, MALLORY, TRUDY, from_now, open_config, takes_at_most, villain};
use crate::beside::{TIME, beside, bystander, us};
use crate::hostile::census;
use crate::process::{PATIENCE, Process, elevated_threads, monotonic, until};
use crate::{permitted, skipped, socket, turn};

fn settings<'a>(all: &[(&'a str, &str)]) -> Vec<(&'a str, String)> {
    all.iter()
        .map(|&(name, value)| (name, value.to_string()))
        .collect()
}

/// A process of `MALLORY` that holds leases on its files in `/proc`; `None` where the kernel gives none.
fn lessor(path: &std::path::Path, more: &[(&str, &str)]) -> Option<Process> {
    let mut all = settings(&[("CPU", "0"), ("LEVEL", "40")]);
    all.push(("USER", MALLORY.to_string()));
    all.extend(settings(more));
    let mut lessor = Process::start("lessor", path, &all);
    let leases = lessor.number("leases ");
    lessor.line("ready")?;
    if leases == 0 {
        skipped("the kernel gives no leases on files of /proc");
        return None;
    }
    println!("{leases} leases");
    Some(lessor)
}

/// How long a newcomer of another user waits until it is registered and elevated.
fn newcomer(path: &std::path::Path) -> Duration {
    let began = Instant::now();
    let mut burner = villain("burner", path, ALICE, (0, 2), &[]);
    burner.go_until(from_now(PATIENCE));
    until("the newcomer is elevated", || {
        !elevated_threads(burner.pid()).is_empty()
    });
    began.elapsed()
}

#[test]
fn leases_on_files_in_proc_hold_up_nobody() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    // One that registers, one that would be elevated and takes them afterwards, one that a rule may name.
    for more in [
        [("WHEN", "before"), ("JOINS", "false")],
        [("WHEN", "after"), ("JOINS", "true")],
    ] {
        let path = socket("leases");
        let config = Config {
            assign: vec![rule(TRUDY, 8)],
            ..open_config("leases")
        };
        let daemon = Daemon::start(config).unwrap();
        let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
        let Some(mut lessor) = lessor(&path, &more) else {
            return;
        };
        lessor.go_until(from_now(TIME));
        // Longer than a cgroup is remembered.
        std::thread::sleep(Duration::from_millis(1200));
        until("whose quotas cannot be read is not elevated", || {
            elevated_threads(lessor.pid()).is_empty()
        });
        let waited = newcomer(&path);
        let mut later = Process::start("spinners", &path, &[("USER", TRUDY.to_string())]);
        later.line("ready").unwrap();
        until("what starts later is assigned", || {
            assigned(&census(&path), later.pid()).is_some()
        });
        println!("{more:?}: a newcomer is elevated after {waited:?}");
        let began = Instant::now();
        daemon.stop();
        let stopped = began.elapsed();
        assert!(elevated_threads(lessor.pid()).is_empty());
        // Opening one such file takes 45 s, or until the lessor ends.
        let held_up = Duration::from_secs(10);
        assert!(
            waited < held_up && stopped < held_up,
            "{waited:?} {stopped:?}"
        );
    }
}

/// Thousands of processes a second that a rule fits, beside a bystander; another program that a rule fits is still found and elevated.
#[test]
fn a_storm_of_processes_that_a_rule_fits_leaves_bystanders_their_share() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    for (each, at_once) in [("300", "1"), ("4000", "1"), ("4000", "20")] {
        let path = socket("storm");
        let config = Config {
            assign: vec![rule(MALLORY, 8), rule(ALICE, 8)],
            ..open_config("storm")
        };
        let _daemon = Daemon::start(config).unwrap();
        let mut bystander = bystander(&path, 0);
        let more = settings(&[("EACH", each), ("AT_ONCE", at_once)]);
        let mut storm = villain("stormer", &path, MALLORY, (0, 0), &more);
        let end = from_now(TIME);
        bystander.go_until(end);
        storm.go_until(end);
        let began = Instant::now();
        let later = villain("spinners", &path, ALICE, (0, 0), &[]);
        until("what starts later is assigned", || {
            assigned(&census(&path), later.pid()).is_some()
        });
        let found = began.elapsed();
        let (used, longest) = (bystander.number("used "), bystander.number("longest "));
        let (taken, born) = (storm.number("used "), storm.number("born "));
        println!(
            "{born} processes of {each} us, {at_once} at once: {taken}, bystander {used} us of {}, longest gap {longest} us; another is assigned after {found:?}",
            us()
        );
        // As suspects all would be, those who keep their budgets included.
        assert!(census(&path)["barred"].as_array().unwrap().is_empty());
        // A budget of 80 %, half of the rest, and what each has before it is seen.
        assert!(takes_at_most(96, taken, us()));
    }
}

#[test]
fn who_becomes_another_program_again_and_again_leaves_bystanders_their_share() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    for how in ["exec", "vfork"] {
        let burnt = beside(how, "shifter", &settings(&[("HOW", how)]));
        assert!(takes_at_most(97, burnt, us()));
    }
}

#[test]
fn a_program_with_a_limit_on_real_time_stays_ordinary_and_lives() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("limit");
    let config = Config {
        assign: vec![rule(ALICE, 8)],
        ..open_config("limit")
    };
    let _daemon = Daemon::start(config).unwrap();
    let limit = settings(&[("LIMIT", "200000")]);
    let mut limited = villain("gap", &path, ALICE, (0, 0), &limit);
    let other = villain("gap", &path, ALICE, (0, 0), &[]);
    until("what has no limit is assigned", || {
        assigned(&census(&path), other.pid()).is_some()
    });
    limited.go_until(from_now(TIME));
    // As it was before it was elevated for longer than its limit, if it was.
    let used = limited.number("used ");
    println!("it has used {used} us, with a limit of 200000 in SCHED_FIFO");
    assert_eq!(assigned(&census(&path), limited.pid()), None);
}

/// A cgroup that stops all that is in it; the processes have to end before. `None`: this machine does not let us.
struct Freezer {
    directory: std::path::PathBuf,
    file: &'static str,
    words: [&'static str; 2],
}

impl Freezer {
    fn new() -> Option<Freezer> {
        let name = format!("upshift-test-{}", std::process::id());
        let kinds = [
            (
                "/sys/fs/cgroup/freezer",
                "freezer.state",
                ["THAWED", "FROZEN"],
            ),
            ("/sys/fs/cgroup", "cgroup.freeze", ["0", "1"]),
        ];
        kinds.into_iter().find_map(|(root, file, words)| {
            let directory = std::path::Path::new(root).join(&name);
            std::fs::create_dir(&directory).ok()?;
            let it = Freezer {
                directory,
                file,
                words,
            };
            it.directory.join(file).exists().then_some(it)
        })
    }

    fn take(&self, process: &Process) {
        let procs = self.directory.join("cgroup.procs");
        std::fs::write(procs, process.pid().to_string()).unwrap();
    }

    fn freeze(&self, frozen: bool) {
        let word = self.words[usize::from(frozen)];
        std::fs::write(self.directory.join(self.file), word).unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.freeze(false);
        for _ in 0..500 {
            if std::fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn who_is_frozen_while_it_is_elevated_keeps_nothing() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let Some(freezer) = Freezer::new() else {
        return skipped("no cgroup that freezes can be made");
    };
    let path = socket("frozen");
    let daemon = Daemon::start(open_config("frozen")).unwrap();
    let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
    let mut frozen = villain("burner", &path, MALLORY, (0, 0), &[]);
    freezer.take(&frozen);
    let mut victim = villain("burner", &path, ALICE, (0, 40), &[]);
    let end = from_now(2 * TIME);
    frozen.go_until(end);
    until("it is elevated", || {
        !elevated_threads(frozen.pid()).is_empty()
    });
    freezer.freeze(true);
    victim.go_until(from_now(TIME));
    let used = victim.number("used ");
    // In turns, so that each look finds it another way.
    for turn in 0..100 {
        freezer.freeze(turn % 2 == 0);
        std::thread::sleep(Duration::from_millis(5));
    }
    freezer.freeze(true);
    println!(
        "beside one that is frozen at level 0 the victim has {used} us of {}",
        us()
    );
    assert!(used * 4 > us(), "{used}");
    // Others come and go meanwhile, and it is given back as it is.
    let waited = newcomer(&path);
    daemon.stop();
    assert!(elevated_threads(frozen.pid()).is_empty());
    freezer.freeze(false);
    assert!(elevated_threads(frozen.pid()).is_empty());
    println!("a newcomer is elevated after {waited:?}");
    frozen.kill();
}

/// Processes that sleep in SCHED_DEADLINE and have reserved whatever the kernel admits; gone with their guard.
struct Reserved(Vec<std::process::Child>);

impl Reserved {
    fn everything() -> Reserved {
        let mut all = Reserved(Vec::new());
        // Hundredths of a CPU.
        for part in [40, 10, 2, 1] {
            loop {
                let sleep = std::process::Command::new("sleep").arg("30").spawn();
                let sleep = sleep.unwrap();
                let attr = SchedAttr {
                    policy: libc::SCHED_DEADLINE as u32,
                    runtime: part * 1_000_000,
                    deadline: 100_000_000,
                    period: 100_000_000,
                    ..SchedAttr::normal()
                };
                let admitted = Kernel.sched_setattr(sleep.id() as i32, &attr).is_ok();
                all.0.push(sleep);
                if !admitted {
                    break;
                }
            }
        }
        all
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        for it in &mut self.0 {
            let _ = it.kill();
            let _ = it.wait();
        }
    }
}

#[test]
fn reservations_of_others_keep_nobody_from_being_elevated() {
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
    let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
    let shell = Shell::start(ALICE, None);
    until("what the kernel does not admit has a budget", || {
        matches!(shell.class(), Some(Class::Fifo(2..=9)))
    });
    let waited = newcomer(&path);
    println!(
        "{} reservations; a newcomer is elevated after {waited:?}",
        reserved.0.len()
    );
    drop(reserved);
    until("the kernel admits it as soon as there is room", || {
        shell.class() == Some(Class::Deadline)
    });
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
