//! Attacks on the canary: a priority that is lent to a thread that is not registered. The attackers
//! are in `lending/attackers.rs`.

pub(crate) mod attackers;

use crate::attack::{
    MALLORY, TIME, TRUDY, bystander, compete, open_daemon, race_bystander, settings, start_child,
    takes_at_most, turn_with_two_cpus, two_cpus, us,
};
use crate::{permitted, turn};

/// Lets `role` lend a priority to a thread that spins on the other CPU, beside a bystander there:
/// everything rests after 0.12 s, for 1 s, then for 2 s.
fn is_taken_back(name: &str, role: &str, more: &[(&str, &str)]) {
    let (here, there) = two_cpus();
    let (path, _daemon) = open_daemon(name);
    let _rival = start_child("ghost", &path, TRUDY, (here, 63), &[]);
    let mut bystander = bystander(&path, there);
    let more = [settings(more), vec![("VICTIM", there.to_string())]].concat();
    let mut lender = start_child(role, &path, MALLORY, (here, 40), &more);
    let (burnt, alarms) = race_bystander(name, &path, &mut bystander, &mut lender, TIME);
    // 0.24 s, and an equal part of the rest.
    assert!(takes_at_most(75, burnt, us()), "{role} {more:?}");
    assert!(alarms > 0, "{role} {more:?}");
}

#[test]
fn a_priority_lent_behind_the_daemons_back_is_taken_back_by_the_canary() {
    let _turn = turn();
    if permitted() {
        for role in ["worker", "dispatcher"] {
            is_taken_back(role, "lender", &[("ROLE", role)]);
        }
    }
}

#[test]
fn a_priority_lent_to_an_unregistered_process_is_taken_back_by_the_canary() {
    let _turn = turn();
    if permitted() {
        for links in ["1", "3"] {
            is_taken_back("patron", "patron", &[("LINKS", links)]);
        }
    }
}

#[test]
fn a_priority_lent_along_a_chain_of_locks_is_taken_back_by_the_canary() {
    let _turn = turn();
    if permitted() {
        for links in ["4", "900"] {
            is_taken_back("chain", "chain", &[("LINKS", links)]);
        }
    }
}

#[test]
fn a_priority_lent_by_calls_of_another_kind_is_taken_back_by_the_canary() {
    let _turn = turn();
    if permitted() {
        for call in ["plain", "requeued", "of 32 bits"] {
            is_taken_back("calls", "lender", &[("CALL", call)]);
        }
    }
}

/// The threads of the process lend again as soon as the rest is over: the second rest is twice as
/// long.
#[test]
fn rests_of_a_process_that_lends_again_grow() {
    let Some((_turn, (here, there))) = turn_with_two_cpus() else {
        return;
    };
    let (path, _daemon) = open_daemon("again");
    let _rival = start_child("ghost", &path, TRUDY, (here, 63), &[]);
    let mut bystander = bystander(&path, there);
    let more = settings(&[("VICTIM", &there.to_string())]);
    let mut lender = start_child("lender", &path, MALLORY, (here, 40), &more);
    let time = 4 * TIME;
    let (burnt, alarms) = race_bystander("again", &path, &mut bystander, &mut lender, time);
    // Rests of 1, 2 and 4 s: three alarms of 0.12 s in 6 s, and an equal part of the rest.
    assert!(takes_at_most(65, burnt, time.as_micros() as u64));
    assert!((2..=3).contains(&alarms), "{alarms} alarms");
}

#[test]
fn a_priority_lent_in_pauses_only_leaves_bystanders_their_share() {
    let _turn = turn();
    if permitted() {
        let burnt = compete("whisperer", "whisperer", &[("LENT", "600".to_string())]);
        assert!(takes_at_most(97, burnt, us()));
    }
}
