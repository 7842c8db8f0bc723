//! Attacks by calls of the kernel outside of the protocol. The attackers are in
//! `kernel/attackers.rs`.

pub(crate) mod attackers;

use std::time::Duration;

use crate::attack::{
    ALICE, MALLORY, TIME, TRUDY, bystander, from_now, open_daemon, settings, start_child,
    takes_at_most, turn_with_two_cpus, us,
};
use crate::client::census;
use crate::process::elevated_threads;
use crate::{permitted, turn};

/// Settings of children that may occupy a CPU in SCHED_FIFO for longer than others, µs.
pub(crate) fn long() -> Vec<(&'static str, String)> {
    settings(&[("LIMIT", "5000000")])
}

#[test]
fn memory_calls_on_a_page_that_the_daemon_reads_leave_a_victim_its_cpu() {
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
    for it in [&mut bystander, &mut victim, &mut attacker] {
        it.go_until(end);
    }
    let longest = bystander.number("longest ");
    let used = victim.number("used ");
    let calls = attacker.line("calls ").unwrap();
    println!(
        "{calls}; victim {used} us of {}, longest gap of a bystander {longest} us",
        2 * us()
    );
    // The scheduler has locked the page, so its checks only wait at the moment in which the page is
    // mapped.
    assert!(used * 2 > us(), "{used}");
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
    let (used, calls) = (victim.number("used "), jostler.line("calls ").unwrap());
    println!("{calls}; victim {used} us of {}", us());
    // 94 % by the rules; half if elevated threads of another daemon have the CPU, too.
    assert!(used * 2 > us(), "{used}");
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
    // It is not elevated in a pause.
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
    // It is the same user to the kernel and to the daemon, and has no more than the rules allow.
    assert!(takes_at_most(97, burnt, us()));
    assert_eq!(ejected, 0);
}
