//! Attacks on the doorbells, on which the daemon sleeps.

use crate::attack::{
    ALICE, MALLORY, TIME, TRUDY, from_now, open_daemon, start_child, takes_at_most, two_cpus, us,
};
use crate::client::{census, of_vcpu};
use crate::process::{elevated_threads, until};
use crate::puppet::start_puppet;
use crate::quiet::used_by_the_scheduler;
use crate::{daemon, permitted, socket, turn};

#[test]
fn a_flooded_doorbell_is_ignored_for_a_while() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("flood");
    let _daemon = daemon("flood");
    let mut flooder = start_puppet(&path);
    let mut other = start_puppet(&path);
    flooder.obey("level 40");
    let rings: u64 = flooder.obey("ring 400").parse().unwrap();
    let seen = census(&path);
    let answered = of_vcpu(&seen, flooder.pid(), "rings");
    println!("{rings} rings, {answered} answered");
    assert!(of_vcpu(&seen, flooder.pid(), "floods") > 0);
    assert!(answered < 10_000, "{answered} of {rings}");
    other.obey("level 2");
    until("the other is elevated", || {
        !elevated_threads(other.pid()).is_empty()
    });
}

#[test]
fn a_doorbell_that_blocks_and_has_many_listeners_delays_no_client() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("listeners");
    let (_, there) = two_cpus();
    let mut victim = start_child("burner", &path, ALICE, (0, 0), &[]);
    let more = [("ROLE", "listeners".to_string())];
    let mut here = start_child("flapper", &path, MALLORY, (0, 30), &more);
    let mut other = start_child("flapper", &path, TRUDY, (there, 30), &more);
    let (end, before) = (from_now(TIME), used_by_the_scheduler());
    for it in [&mut victim, &mut here, &mut other] {
        it.go_until(end);
    }
    let (used, burnt) = (victim.number("used "), here.number("used "));
    let daemon = (used_by_the_scheduler() - before) / 1000;
    println!("victim {used} us, the attacker {burnt}, the daemon {daemon}");
    assert!(takes_at_most(60, burnt + daemon, us()));
}
