//! Attacks by calls of the kernel that are none of the protocol. The attackers are in `kernel/attackers.rs`; `docs/threat-model.md` names these tests.

pub(crate) mod attackers;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::attack::{
    ALICE, MALLORY, TIME, TRUDY, barred_until, bystander, from_now, open_daemon, settings,
    start_child, takes_at_most, turn_with_two_cpus, two_cpus, us,
};
use crate::client::census;
use crate::process::{Process, elevated_threads, thread_named};
use crate::{permitted, turn};

/// For children that have a CPU for longer than others may, in SCHED_FIFO, µs.
pub(crate) fn long() -> Vec<(&'static str, String)> {
    settings(&[("LIMIT", "5000000")])
}

/// A user that elevates below a victim lends its priority to a thread on the victim's CPU: what it lends to runs when the victim leaves the CPU in a
/// breath, so that the canary is silent and the victim has used the CPU all the time.
#[test]
fn a_user_is_not_barred_for_what_another_one_takes_of_its_breaths() {
    let Some((_turn, (here, there))) = turn_with_two_cpus() else {
        return;
    };
    let pieces = |burn: &str, rest: &str| {
        let all = [
            ("CALL", "plain"),
            ("EXCUSES", "false"),
            ("BURN", burn),
            ("REST", rest),
        ];
        settings(&all)
    };
    for (role, more) in [
        ("lender", Vec::new()),
        ("contriver", pieces("38000", "2000")),
        ("contriver", pieces("70000", "1000")),
    ] {
        let (path, _daemon) = open_daemon("framer");
        let _rivals = [(here, 63), (there, 63), (there, 40)]
            .map(|place| start_child("ghost", &path, TRUDY, place, &[]));
        let mut victim = start_child("burner", &path, ALICE, (there, 10), &long());
        let more = [more, vec![("VICTIM", there.to_string())]].concat();
        let mut framer = start_child(role, &path, MALLORY, (here, 40), &more);
        let end = from_now(2 * TIME);
        victim.go_until(end);
        framer.go_until(end);
        let barred = barred_until(end, &path);
        let (used, burnt) = (victim.number("used "), framer.number("used "));
        println!(
            "{role}: {burnt}, victim {used} us of {}, {} alarms, barred {barred:?}",
            2 * us(),
            census(&path)["alarms"]
        );
        // What it lends to is below the victim: it has breaths, and a part of the time that what was demoted rests.
        assert!(takes_at_most(50, burnt, 2 * us()));
        assert!(!barred.contains(&u64::from(ALICE)), "{barred:?}");
    }
}

/// A user lends its priority in pieces, above an innocent one whose threads end before it is seen what they have used: these would explain all that is taken.
#[test]
fn a_user_whose_threads_end_is_not_barred_for_what_another_one_lends() {
    let Some((_turn, (here, there))) = turn_with_two_cpus() else {
        return;
    };
    let (path, _daemon) = open_daemon("scapegoat");
    let _rivals = [(here, 63), (here, 50), (there, 63)]
        .map(|place| start_child("ghost", &path, TRUDY, place, &[]));
    let more = settings(&[("EACH", "5"), ("LIMIT", "5000000")]);
    let mut innocent = start_child("forgetful", &path, ALICE, (there, 40), &more);
    let more = settings(&[
        ("CALL", "plain"),
        ("EXCUSES", "false"),
        ("BURN", "15000"),
        ("REST", "200"),
    ]);
    let more = [more, vec![("VICTIM", there.to_string())]].concat();
    let mut lender = start_child("contriver", &path, MALLORY, (here, 40), &more);
    let end = from_now(2 * TIME);
    innocent.go_until(end);
    lender.go_until(end);
    let barred = barred_until(end, &path);
    let (ended, burnt) = (innocent.number("ended "), lender.number("used "));
    println!(
        "lender {burnt} of {} us, {ended} threads ended, {} alarms, barred {barred:?}",
        2 * us(),
        census(&path)["alarms"]
    );
    assert!(ended > 10, "{ended}");
    assert!(
        barred.is_subset(&BTreeSet::from([u64::from(MALLORY)])),
        "{barred:?}"
    );
}

/// Scouts are ordinary threads, and here each CPU has many of these.
#[test]
fn a_lender_that_keeps_the_cpus_of_scouts_busy_has_no_other_user_barred() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (here, there) = two_cpus();
    let (path, _daemon) = open_daemon("smotherer");
    let _rivals = [here, there].map(|cpu| start_child("ghost", &path, TRUDY, (cpu, 63), &[]));
    let mut innocent = start_child("burner", &path, ALICE, (here, 20), &long());
    let mut crowd: Vec<Process> = (0..24)
        .map(|it| {
            let cpu = if it % 2 == 0 { here } else { there };
            start_child("bystander", &path, MALLORY, (cpu, 0), &[])
        })
        .collect();
    let victim = [("VICTIM", there.to_string())];
    let mut lender = start_child("lender", &path, MALLORY, (here, 40), &victim);
    let end = from_now(2 * TIME);
    for it in crowd.iter_mut().chain([&mut innocent, &mut lender]) {
        it.go_until(end);
    }
    let barred = barred_until(end, &path);
    let (used, burnt) = (innocent.number("used "), lender.number("used "));
    println!(
        "lender {burnt}, innocent {used} us of {}, {} alarms, barred {barred:?}",
        2 * us(),
        census(&path)["alarms"]
    );
    // 0.11 s of each 1.1, and an equal part of the rest with twelve others.
    assert!(takes_at_most(25, burnt, 2 * us()));
    assert!(
        barred.is_subset(&BTreeSet::from([u64::from(MALLORY)])),
        "{barred:?}"
    );
}

/// What a thread of this process was seen doing.
#[derive(Debug, Default)]
struct Seen {
    looks: u64,
    /// How often it slept where nothing interrupts it, and for how long at a time at most.
    asleep: u64,
    longest: Duration,
    /// Page faults meanwhile.
    faults: u64,
}

/// The fields after the name of a thread in its file `stat`: state, and page faults, minor and major.
fn state_and_faults(stat: &std::fs::File) -> (u8, u64) {
    use std::os::unix::fs::FileExt;
    let mut text = [0; 512];
    let length = stat.read_at(&mut text, 0).unwrap();
    let text = std::str::from_utf8(&text[..length]).unwrap();
    let words: Vec<&str> = text.rsplit_once(") ").unwrap().1.split(' ').collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    (words[0].as_bytes()[0], number(7) + number(9))
}

/// Looks at the thread `name` of this process as often as it can, until `end`.
fn observe(name: &str, end: Instant) -> Seen {
    let tid = thread_named(name).unwrap();
    let stat = std::fs::File::open(format!("/proc/self/task/{tid}/stat")).unwrap();
    let before = state_and_faults(&stat).1;
    let (mut seen, mut since) = (Seen::default(), None);
    while Instant::now() < end {
        let now = Instant::now();
        let (state, faults) = state_and_faults(&stat);
        seen.looks += 1;
        seen.faults = faults - before;
        if state == b'D' {
            seen.asleep += 1;
            seen.longest = seen.longest.max(now - *since.get_or_insert(now));
        } else {
            since = None;
        }
    }
    seen
}

#[test]
fn memory_calls_on_a_page_that_the_daemon_reads_delay_no_look() {
    let Some((_turn, (here, there))) = turn_with_two_cpus() else {
        return;
    };
    let (path, _daemon) = open_daemon("collapser");
    let _rival = start_child("ghost", &path, TRUDY, (here, 63), &[]);
    let mut bystander = bystander(&path, here);
    let mut victim = start_child("burner", &path, ALICE, (here, 0), &long());
    let more = [("CALLER", there.to_string())];
    let mut attacker = start_child("collapser", &path, MALLORY, (here, 40), &more);
    let end = from_now(2 * TIME);
    let until = Instant::now() + 2 * TIME;
    for it in [&mut bystander, &mut victim, &mut attacker] {
        it.go_until(end);
    }
    let seen = observe(&format!("upshift-cpu{here}"), until);
    let longest = bystander.number("longest ");
    let used = victim.number("used ");
    let calls = attacker.line("calls ").unwrap();
    let barred = census(&path)["barred"].clone();
    println!(
        "{calls}; the scheduler: {seen:?}; victim {used} us of {}, longest gap of a bystander {longest} us, barred {barred}",
        2 * us()
    );
    assert!(seen.looks > 1000, "{seen:?}");
    // The scheduler has locked the page: its looks take no part in what becomes of it, but for the moment in which it is mapped anew.
    assert!(seen.longest < Duration::from_millis(10), "{seen:?}");
    assert_eq!(barred.as_array().unwrap().len(), 0);
}

#[test]
fn threads_that_are_moved_and_changed_without_end_leave_a_victim_its_cpu() {
    let Some((_turn, (here, there))) = turn_with_two_cpus() else {
        return;
    };
    let (path, _daemon) = open_daemon("jostler");
    let _rival = start_child("ghost", &path, TRUDY, (here, 63), &[]);
    let mut victim = start_child("burner", &path, ALICE, (here, 0), &[]);
    let more = [("CALLER", there.to_string())];
    let mut jostler = start_child("jostler", &path, MALLORY, (here, 40), &more);
    let end = from_now(TIME);
    victim.go_until(end);
    jostler.go_until(end);
    let barred = barred_until(end, &path);
    let (used, calls) = (victim.number("used "), jostler.line("calls ").unwrap());
    println!("{calls}; victim {used} us of {}, barred {barred:?}", us());
    // 94 % by the rules; half where elevated threads of another daemon have the CPU, too.
    assert!(used * 2 > us(), "{used}");
    assert!(barred.is_empty(), "{barred:?}");
}

#[test]
fn a_priority_lent_along_hundreds_of_locks_is_taken_back_by_the_canary() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (here, there) = two_cpus();
    let (path, _daemon) = open_daemon("long-chain");
    let _ghost = start_child("ghost", &path, TRUDY, (here, 63), &[]);
    let mut bystander = bystander(&path, there);
    let more = settings(&[("LINKS", "900")]);
    let more = [more, vec![("VICTIM", there.to_string())]].concat();
    let mut attacker = start_child("chain", &path, MALLORY, (here, 40), &more);
    let end = from_now(TIME);
    bystander.go_until(end);
    attacker.go_until(end);
    let barred = barred_until(end, &path);
    let (burnt, longest) = (attacker.number("used "), bystander.number("longest "));
    println!("{burnt} us, longest gap {longest} us, barred {barred:?}");
    // 0.12 s, and an equal part of the rest.
    assert!(takes_at_most(75, burnt, us()));
    assert!(barred == BTreeSet::from([u64::from(MALLORY)]), "{barred:?}");
}

#[test]
fn a_process_that_goes_to_other_namespaces_stays_its_users() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("emigrant");
    let _rival = start_child("ghost", &path, TRUDY, (0, 63), &[]);
    let mut bystander = bystander(&path, 0);
    let mut emigrant = start_child("emigrant", &path, MALLORY, (0, 40), &[]);
    let pid: i32 = emigrant.line("pid ").unwrap().parse().unwrap();
    let end = from_now(TIME);
    bystander.go_until(end);
    emigrant.go_until(end);
    // It is not while a breath is under way.
    let elevated = (0..20).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        !elevated_threads(pid).is_empty()
    });
    let burnt = emigrant.number("used ");
    let (used, longest) = (bystander.number("used "), bystander.number("longest "));
    let went = emigrant.line("went ").unwrap();
    let ejected = &census(&path)["ejected"];
    println!(
        "went {went}, elevated {elevated}: {burnt}, bystander {used} us of {}, longest gap {longest} us, {ejected} ejected",
        us()
    );
    // It is the same user to the kernel, and to the daemon, and has what the rules give, no more.
    assert!(takes_at_most(97, burnt, us()));
    assert_eq!(ejected, 0);
}
