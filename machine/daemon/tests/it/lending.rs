//! Attacks on the canary: a priority that is lent to a thread that is not registered. The attackers are in `lending/attackers.rs`;
//! `docs/threat-model.md` names these tests.

pub(crate) mod attackers;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::attack::{
    ALICE, MALLORY, TIME, TRUDY, barred_until, bystander, compete, from_now, open_daemon,
    race_bystander, start_child, takes_at_most, two_cpus, us,
};
use crate::client::census;
use crate::process::Process;
use crate::{permitted, turn};

#[test]
fn a_priority_lent_behind_the_daemons_back_is_taken_back_by_the_canary() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (here, there) = two_cpus();
    for role in ["worker", "dispatcher"] {
        let (path, _daemon) = open_daemon(role);
        let _ghost = start_child("ghost", &path, TRUDY, (here, 63), &[]);
        let mut bystander = Process::start("gap", &path, &[("CPU", there.to_string())]);
        bystander.line("ready").unwrap();
        let more = [("ROLE", role.to_string()), ("VICTIM", there.to_string())];
        let mut lender = start_child("lender", &path, MALLORY, (here, 40), &more);
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
fn a_priority_lent_to_a_process_of_nobody_is_taken_back_by_the_canary() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (here, there) = two_cpus();
    for links in ["1", "3"] {
        let (path, _daemon) = open_daemon("patron");
        let _rival = start_child("ghost", &path, TRUDY, (here, 63), &[]);
        let mut bystander = bystander(&path, there);
        let more = [("VICTIM", there.to_string()), ("LINKS", links.to_string())];
        let mut attacker = start_child("patron", &path, MALLORY, (here, 40), &more);
        let (burnt, alarms) = race_bystander("patron", &path, &mut bystander, &mut attacker, TIME);
        // 0.12 s in a second, and an equal part of the rest.
        assert!(takes_at_most(75, burnt, us()));
        assert!(alarms > 0, "it was lent along {links}");
    }
}

#[test]
fn a_priority_lent_along_a_chain_of_locks_is_taken_back_by_the_canary() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (here, there) = two_cpus();
    let (path, _daemon) = open_daemon("chain");
    let _rival = start_child("ghost", &path, TRUDY, (here, 63), &[]);
    let mut bystander = bystander(&path, there);
    let victim = [("VICTIM", there.to_string())];
    let mut attacker = start_child("chain", &path, MALLORY, (here, 40), &victim);
    let (burnt, alarms) = race_bystander("chain", &path, &mut bystander, &mut attacker, TIME);
    // 0.12 s, and an equal part of the rest.
    assert!(takes_at_most(75, burnt, us()));
    assert!(alarms > 0);
}

/// What a contriver gets on CPU 0, µs, with the users that are barred.
fn contrive(
    call: &str,
    (burn, rest): (u64, u64),
    excuses: bool,
    time: Duration,
) -> (u64, BTreeSet<u64>) {
    let (path, _daemon) = open_daemon("contriver");
    let _rival = start_child("ghost", &path, TRUDY, (0, 63), &[]);
    let honest = start_child("ghost", &path, ALICE, (0, 20), &[]);
    let mut bystander = bystander(&path, 0);
    let more = [
        ("CALL", call.to_string()),
        ("VICTIM", "0".to_string()),
        ("BURN", burn.to_string()),
        ("REST", rest.to_string()),
        ("EXCUSES", excuses.to_string()),
    ];
    let mut contriver = start_child("contriver", &path, MALLORY, (0, 40), &more);
    let end = from_now(time);
    bystander.go_until(end);
    contriver.go_until(end);
    let barred = barred_until(end, &path);
    let (used, longest) = (bystander.number("used "), bystander.number("longest "));
    let burnt = contriver.number("used ");
    let seen = census(&path);
    println!(
        "{call}, {burn} and {rest} us: {burnt}, bystander {used} us of {}, longest gap {longest} us, {} alarms, barred {barred:?}",
        time.as_micros(),
        seen["alarms"]
    );
    drop(honest);
    (burnt, barred)
}

#[test]
fn a_priority_lent_by_calls_of_another_kind_is_taken_back_by_the_canary() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    for call in ["plain", "requeued", "of 32 bits"] {
        let (burnt, barred) = contrive(call, (2_000_000, 1000), false, TIME);
        assert!(takes_at_most(75, burnt, us()));
        assert_eq!(barred, BTreeSet::from([u64::from(MALLORY)]), "{call}");
    }
}

/// Whether the attacker is barred, and no other. If other programs leave it little it is not noticed.
fn is_found(barred: &BTreeSet<u64>) -> bool {
    barred.iter().all(|&user| user == u64::from(MALLORY))
}

/// Lends in such pieces for a while. What it takes: two spans of half a second until a whole one is taken, and a third if the machine stands still in one of
/// these; two inquiries of a quarter, since scouts come at a moment of which the piece is more than nine in ten; after that it is barred for 5 s at least, and has half beside the
/// bystander. Of 4.5 s that is 2 s, and half of 2.5: 72 %.
fn lend_in_pieces(pieces: (u64, u64), excuses: bool) {
    let time = 3 * TIME;
    let (burnt, barred) = contrive("plain", pieces, excuses, time);
    assert!(takes_at_most(72, burnt, time.as_micros() as u64));
    assert!(is_found(&barred), "{barred:?}");
}

#[test]
fn a_priority_lent_in_pieces_is_taken_back_by_the_odds() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    for pieces in [(70_000, 1000), (15_000, 200)] {
        lend_in_pieces(pieces, false);
    }
}

#[test]
fn threads_that_end_excuse_no_priority_lent_in_pieces() {
    let _turn = turn();
    if permitted() {
        lend_in_pieces((70_000, 1000), true);
    }
}

#[test]
fn a_priority_lent_in_breaths_only_leaves_bystanders_their_share() {
    let _turn = turn();
    if permitted() {
        let burnt = compete("whisperer", "whisperer", &[("LENT", "600".to_string())]);
        assert!(takes_at_most(97, burnt, us()));
    }
}
