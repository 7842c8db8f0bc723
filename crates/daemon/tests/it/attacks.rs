//! Attacks of ordinary users, and what a bystander or a victim has left. `docs/threat-model.md` names these tests.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use upshift_daemon::{Config, Daemon, Limits, Rule, Subject};

use crate::beside::barred_until;
use crate::hostile::{census, processes};
use crate::process::{PATIENCE, Process, elevated_threads, monotonic, until};
use crate::quiet::used_by_the_scheduler;
use crate::{config, directory, permitted, skipped, socket, turn};

/// Users without a name, a password or a process.
pub(crate) const MALLORY: u32 = 64_001;
pub(crate) const TRUDY: u32 = 64_002;
pub(crate) const ALICE: u32 = 64_003;

/// Everybody may connect.
pub(crate) fn open_config(name: &str) -> Config {
    Config {
        mode: 0o666,
        ..config(name)
    }
}

/// The child `role` of `user`, on CPU `cpu` at `level`, when it is ready.
pub(crate) fn villain(
    role: &str,
    path: &Path,
    user: u32,
    (cpu, level): (usize, u8),
    more: &[(&str, String)],
) -> Process {
    let mut settings = vec![
        ("USER", user.to_string()),
        ("CPU", cpu.to_string()),
        ("LEVEL", level.to_string()),
    ];
    settings.extend_from_slice(more);
    let mut child = Process::start(role, path, &settings);
    child.line("ready").unwrap();
    child
}

pub(crate) fn from_now(time: Duration) -> u64 {
    monotonic() + time.as_nanos() as u64
}

/// Whether the attackers, which had `burnt` µs of a CPU in `time` µs, had so many percent at most. What else runs on the machine takes from
/// them, too, so that this holds on a loaded one if it does on a quiet one; what a single bystander has does not.
pub(crate) fn takes_at_most(percent: u64, burnt: u64, time: u64) -> bool {
    println!("{burnt} of {time} us are taken: {percent} % may be");
    burnt * 100 <= percent * time
}

/// The first and the last CPU; the same if there is one only.
pub(crate) fn two_cpus() -> (usize, usize) {
    let count = std::thread::available_parallelism().unwrap().get();
    (0, usize::from(count > 1))
}

#[test]
fn a_priority_lent_behind_the_daemons_back_is_taken_back_by_the_canary() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (here, there) = two_cpus();
    for role in ["worker", "dispatcher"] {
        let path = socket(role);
        let _daemon = Daemon::start(open_config(role)).unwrap();
        let _ghost = villain("ghost", &path, TRUDY, (here, 63), &[]);
        let mut bystander = Process::start("gap", &path, &[("CPU", there.to_string())]);
        bystander.line("ready").unwrap();
        let more = [("ROLE", role.to_string()), ("VICTIM", there.to_string())];
        let mut lender = villain("lender", &path, MALLORY, (here, 40), &more);
        let end = from_now(Duration::from_millis(1300));
        lender.go_until(end);
        bystander.go_until(end);
        let barred = barred_until(end, &path);
        let used = bystander.number("used ");
        let longest = bystander.number("longest ");
        let burnt = lender.number("used ");
        let seen = census(&path);
        println!("{role}: {burnt} us, bystander {used} us of 1300000, longest gap {longest} us");
        // Each time 0.12 s, and an equal part of the rest; without a canary 95 %.
        assert!(takes_at_most(75, burnt, 1_300_000));
        assert!(seen["alarms"].as_u64() > Some(0));
        assert_eq!(barred, BTreeSet::from([u64::from(MALLORY)]));
    }
}

#[test]
fn dispatchers_together_leave_a_victim_of_level_0_its_cpu() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    // Many that burn all the time, and a few of which each has a budget that would be its own.
    for (threads, duty) in [("30", "100"), ("6", "17")] {
        let path = socket("dispatchers");
        let _daemon = Daemon::start(open_config("dispatchers")).unwrap();
        let mut victim = villain("burner", &path, ALICE, (0, 0), &[]);
        let more = [("THREADS", threads.to_string()), ("DUTY", duty.to_string())];
        let mut attacker = villain("dispatchers", &path, MALLORY, (0, 63), &more);
        let end = from_now(Duration::from_millis(1000));
        victim.go_until(end);
        attacker.go_until(end);
        let used = (victim.number("used "), attacker.number("used "));
        println!(
            "{threads} at {duty} %: victim {}, attacker {} us of 1000000",
            used.0, used.1
        );
        assert!(used.0 > 2 * used.1, "{used:?}");
        // It is to be the budget, not the canary, but other real-time programs of the machine silence that, too.
        println!("{} alarms", census(&path)["alarms"]);
    }
}

#[test]
fn a_crowd_of_vcpus_neither_gets_in_nor_keeps_the_scheduler_busy() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("crowd");
    let limits = Limits {
        registrations_per_second: 100_000,
        ..Limits::default()
    };
    let _daemon = Daemon::start(Config {
        limits,
        ..open_config("crowd")
    })
    .unwrap();
    let settings = [("USER", MALLORY.to_string()), ("CPU", "0".to_string())];
    let mut crowd = Process::start("crowd", &path, &settings);
    let count = crowd.number("ready ");
    assert!(
        (32..=64).contains(&count),
        "{count} vCPUs of one user on one CPU"
    );
    let (began, before) = (monotonic(), used_by_the_scheduler());
    crowd.go_until(from_now(Duration::from_millis(500)));
    crowd.line("done").unwrap();
    let (time, used) = (monotonic() - began, used_by_the_scheduler() - before);
    println!("{count} vCPUs; the scheduler used {used} of {time} ns");
    // A fifth, and what one turn exceeds it by.
    assert!(used * 100 < time * 30, "{used} of {time} ns");
}

#[test]
fn censuses_that_nobody_reads_take_no_memory() {
    let _turn = turn();
    let path = socket("hoarder");
    let _daemon = Daemon::start(open_config("hoarder")).unwrap();
    let _somebody = processes(&path);
    let mut hoarder = Process::start("hoarder", &path, &[]);
    let asked = hoarder.number("ready ");
    // The daemon answers in its own time.
    std::thread::sleep(Duration::from_millis(200));
    hoarder.say("go");
    let (full, writable) = (hoarder.number("full "), hoarder.number("writable "));
    println!("{full} of {asked} answers held anything");
    assert!(asked > 50 && full <= 4, "{full} of {asked}");
    // For root, only truncating fails where opening does not.
    // SAFETY: cannot fail.
    assert!(writable == 0 || unsafe { libc::geteuid() } == 0);
    assert_eq!(processes(&path), 0);
}

#[test]
fn a_process_that_is_another_users_now_is_not_elevated() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("changeling");
    let _daemon = Daemon::start(open_config("changeling")).unwrap();
    let program = directory().join("sleep");
    std::fs::copy("/bin/sleep", &program).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
    let settings = |when: &str| {
        [
            ("USER", MALLORY.to_string()),
            ("CPU", "0".to_string()),
            ("LEVEL", "2".to_string()),
            ("WHEN", when.to_string()),
            ("PROGRAM", program.display().to_string()),
        ]
    };
    let mut before = Process::start("changeling", &path, &settings("before"));
    before.number("pid ");
    if before.line("changed ").unwrap() == "false" {
        return skipped("the set-user-id bit has no effect here");
    }
    assert_eq!(before.line("verdict ").unwrap(), "Forbidden");
    let mut after = Process::start("changeling", &path, &settings("after"));
    let pid = after.number("pid ") as i32;
    after.line("elevated").unwrap();
    until("it is another program", || {
        std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.trim() == "sleep")
    });
    until("it is not elevated", || elevated_threads(pid).is_empty());
    assert!(census(&path)["ejected"].as_u64() > Some(0));
}

#[test]
fn nobody_is_elevated_by_a_contest_with_itself() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("itself");
    let _daemon = Daemon::start(open_config("itself")).unwrap();
    let mut burner = villain("burner", &path, MALLORY, (0, 40), &[]);
    burner.go_until(from_now(PATIENCE));
    let none = [("THREADS", "0".to_string())];
    let mut rivals = [
        villain("ghost", &path, MALLORY, (0, 63), &[]),
        // Has nothing that could run.
        villain("ghost", &path, TRUDY, (0, 62), &none),
    ];
    let end = monotonic() + 300_000_000;
    while monotonic() < end {
        assert!(elevated_threads(burner.pid()).is_empty());
        std::thread::sleep(Duration::from_millis(1));
    }
    for rival in &mut rivals {
        rival.kill();
    }
    let _other = villain("ghost", &path, TRUDY, (0, 63), &[]);
    until("it is elevated against another user", || {
        !elevated_threads(burner.pid()).is_empty()
    });
}

#[test]
fn thousands_of_users_do_not_keep_root_out() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("legion");
    let rules = vec![Rule {
        subject: Subject::User(ALICE),
        ceiling: Some(8),
    }];
    let config = Config {
        rules,
        ..open_config("legion")
    };
    let _daemon = Daemon::start(config).unwrap();
    let users = [
        ("USERS", "1100".to_string()),
        ("FIRST", "70000".to_string()),
    ];
    let mut legion = Process::start("legion", &path, &users);
    assert_eq!(legion.number("ready "), 1100);
    assert_eq!(processes(&path), 0);
    let root = crate::hostile::puppet(&path);
    // Nor those whom a rule names.
    let named = villain("ghost", &path, ALICE, (0, 10), &[]);
    assert_eq!(processes(&path), 2);
    drop((root, named));
}

#[test]
fn who_is_in_hundreds_of_groups_is_denied_by_the_last() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("groups");
    let denied = 64_100;
    let _daemon = Daemon::start(Config {
        rules: vec![Rule {
            subject: Subject::Group(denied),
            ceiling: None,
        }],
        ..open_config("groups")
    })
    .unwrap();
    for (group, verdict) in [(denied, "Forbidden"), (denied + 1, "in")] {
        let settings = [("GROUP", group.to_string()), ("CPU", "0".to_string())];
        let mut joiner = Process::start("joiner", &path, &settings);
        assert_eq!(joiner.line("verdict ").unwrap(), verdict);
    }
}

#[test]
fn a_daemon_that_is_stopped_keeps_nobody_elevated() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("stopped-daemon");
    let open = [("CONFIG", "mode = \"0666\"".to_string())];
    let mut daemon = Process::start("daemon", &path, &open);
    daemon.line("ready").unwrap();
    let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
    let mut burner = villain("burner", &path, MALLORY, (0, 40), &[]);
    burner.go_until(from_now(PATIENCE));
    let elevated = |it: &Process| !elevated_threads(it.pid()).is_empty();
    until("it is elevated", || elevated(&burner));
    daemon.signal(libc::SIGSTOP);
    until("it is demoted", || !elevated(&burner));
    daemon.signal(libc::SIGCONT);
    let mut again = villain("burner", &path, MALLORY, (0, 40), &[]);
    again.go_until(from_now(PATIENCE));
    until("the burning client is elevated again", || elevated(&again));
}

/// A cgroup with a fifth of a CPU; goes with its guard. `None`: this machine does not let us.
pub(crate) struct Fifth(std::path::PathBuf);

impl Fifth {
    pub(crate) fn new() -> Option<Fifth> {
        let name = format!("upshift-test-{}", std::process::id());
        for (root, first) in [("/sys/fs/cgroup/cpu", true), ("/sys/fs/cgroup", false)] {
            let path = Path::new(root).join(&name);
            if std::fs::create_dir(&path).is_err() {
                continue;
            }
            let it = Fifth(path);
            let write = |file: &str, text: &str| std::fs::write(it.0.join(file), text).is_ok();
            let limited = match first {
                // Where real-time is shared out by cgroup, a part of it is needed, too. Elsewhere there is no such file.
                true => {
                    let _ = write("cpu.rt_runtime_us", "500000");
                    write("cpu.cfs_period_us", "100000") && write("cpu.cfs_quota_us", "20000")
                }
                false => write("cpu.max", "20000 100000"),
            };
            if limited {
                return Some(it);
            }
        }
        None
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn take(&self, process: &Process) -> bool {
        std::fs::write(self.0.join("cgroup.procs"), process.pid().to_string()).is_ok()
    }
}

impl Drop for Fifth {
    fn drop(&mut self) {
        // A process that was killed takes a moment to leave.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Lets a program with a quota of a fifth of a CPU burn for a second: it gets little more.
#[track_caller]
pub(crate) fn gets_a_fifth(mut burner: Process) {
    burner.go_until(from_now(Duration::from_millis(1000)));
    let used = burner.number("used ");
    println!("{used} us of 1000000 with a quota of 200000");
    burner.kill();
    assert!(takes_at_most(45, used, 1_000_000));
}

#[test]
fn nobody_is_elevated_beyond_the_quota_of_its_cgroup() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("quota");
    let _daemon = Daemon::start(open_config("quota")).unwrap();
    let Some(fifth) = Fifth::new() else {
        return skipped("no cgroup with a CPU quota can be made");
    };
    let burner = villain("burner", &path, MALLORY, (0, 2), &[]);
    if !fifth.take(&burner) {
        return skipped("a process cannot be moved to a cgroup");
    }
    // Makes the daemon look it up.
    let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
    std::thread::sleep(Duration::from_millis(1100));
    gets_a_fifth(burner);
}

#[test]
fn two_that_take_turns_leave_bystanders_their_share() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("turns");
    let _daemon = Daemon::start(open_config("turns")).unwrap();
    let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
    let mut bystander = Process::start("gap", &path, &[("CPU", "0".to_string())]);
    bystander.line("ready").unwrap();
    // They change each 37 ms: who has burnt in the time that is looked at sleeps when it has to leave the CPU.
    let mut pair = [0, 1].map(|turn| {
        let turn = [("TURN", turn.to_string())];
        villain("alternator", &path, MALLORY, (0, 40), &turn)
    });
    let end = from_now(Duration::from_millis(1200));
    bystander.go_until(end);
    for it in &mut pair {
        it.go_until(end);
    }
    let (used, longest) = (bystander.number("used "), bystander.number("longest "));
    let burnt: u64 = pair.iter_mut().map(|it| it.number("used ")).sum();
    println!("the pair {burnt}, bystander {used} us of 1200000, longest gap {longest} us");
    assert!(takes_at_most(97, burnt, 1_200_000));
    assert_eq!(census(&path)["alarms"], 0);
}
